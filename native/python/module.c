/* module.c - see hot.h. */
#include "hot.h"

PyObject *pn_py_import(const char *module, const char *name)
{
    PyObject *found = PyImport_ImportModule(module);
    if (found == NULL)
        return NULL;
    PyObject *object = PyObject_GetAttrString(found, name);
    Py_DECREF(found);
    return object;
}

static int make(PyObject *module)
{
    if (pn_py_add_notify(module) < 0 || pn_py_add_port(module) < 0 || pn_py_add_batch(module) < 0)
        return -1;
    if (pn_py_add_join(module) < 0 || pn_py_add_topic(module) < 0 || pn_py_add_inlet(module) < 0)
        return -1;
    if (pn_py_add_election(module) < 0 || pn_py_add_taker(module) < 0 ||
        pn_py_add_columns(module) < 0 || pn_py_add_mapped(module) < 0)
        return -1;
    if (pn_py_add_finalizer(module) < 0 || pn_py_add_counter(module) < 0 ||
        pn_py_add_sleep(module) < 0 || pn_py_add_lock(module) < 0 || pn_py_add_parts(module) < 0)
        return -1;
    return pn_py_add_sender(module) < 0 || pn_py_add_txn(module) < 0 ? -1 : 0;
}

/*
 * A program may forget what it has imported, and import it again (sys.modules, importlib.reload).
 * Objects of before live on, so the types are the same: they belong to the process.
 */
static int fill(PyObject *module)
{
    static PyObject *first; /* the names of the module that was made first */
    if (first != NULL)
        return PyDict_Merge(PyModule_GetDict(module), first, 0);
    if (make(module) < 0)
        return -1;
    first = PyDict_Copy(PyModule_GetDict(module));
    return first == NULL ? -1 : 0;
}

PyMODINIT_FUNC PyInit__hot(void)
{
    static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *) fill}, {0, NULL}};
    static PyModuleDef definition = {
        PyModuleDef_HEAD_INIT,
        .m_name = "pynotify._hot",
        .m_doc = "What is called for every message, in C.",
        .m_slots = slots,
    };
    return PyModuleDef_Init(&definition);
}
