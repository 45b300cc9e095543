/*
 * owner.c - the life of the types that Python's classes are derived from, and the arguments of
 * their methods.
 *
 * Their objects refer to others by fields that stand one after the other.  The collector is shown
 * them, and may clear them; then `reset` has put something closed in the place of what the core is
 * called with, since a __del__ of the same cycle may still use the object.
 */
#include "hot.h"

#include <stdarg.h>

enum { MAX_KINDS = 8, MAX_SLOTS = 9 };

static struct kind {
    PyTypeObject *type; /* as long as the process */
    size_t first, refs;
    void (*reset)(PyObject *self);
} kinds[MAX_KINDS];
static size_t n_kinds;

static const struct kind *kind_of(PyTypeObject *type)
{
    const struct kind *kind = kinds;
    while (!PyType_IsSubtype(type, kind->type))
        kind++;
    return kind;
}

static PyObject **refs_of(PyObject *self, const struct kind *kind)
{
    return (PyObject **) (void *) ((char *) self + kind->first);
}

static int traverse(PyObject *self, visitproc visit, void *arg)
{
    const struct kind *kind = kind_of(Py_TYPE(self));
    PyObject **ref = refs_of(self, kind);
    Py_VISIT(Py_TYPE(self));
    for (size_t i = 0; i < kind->refs; i++)
        Py_VISIT(ref[i]);
    return 0;
}

static int clear(PyObject *self)
{
    const struct kind *kind = kind_of(Py_TYPE(self));
    PyObject **ref = refs_of(self, kind);
    if (kind->reset != NULL)
        kind->reset(self);
    for (size_t i = 0; i < kind->refs; i++)
        Py_CLEAR(ref[i]);
    return 0;
}

static PyObject *construct(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *self = ((allocfunc) PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    const struct kind *kind = kind_of(type);
    (void) args, (void) kwargs; /* of __init__() */
    if (self != NULL && kind->reset != NULL)
        kind->reset(self);
    return self;
}

static void destroy(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear(self);
    ((freefunc) PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

PyTypeObject *pn_py_add_owner(PyObject *module, const struct pn_py_owner *owner)
{
    PyType_Slot slots[MAX_SLOTS] = {{Py_tp_doc, (void *) (uintptr_t) owner->doc},
                                    {Py_tp_new, construct},
                                    {Py_tp_dealloc, destroy},
                                    {Py_tp_traverse, traverse},
                                    {Py_tp_clear, clear}};
    size_t n = 5;
    if (owner->members != NULL)
        slots[n++] = (PyType_Slot) {Py_tp_members, owner->members};
    if (owner->properties != NULL)
        slots[n++] = (PyType_Slot) {Py_tp_getset, owner->properties};
    if (owner->methods != NULL)
        slots[n++] = (PyType_Slot) {Py_tp_methods, owner->methods};
    PyType_Spec spec = {
        .name = owner->name,
        .basicsize = (int) owner->size,
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
        .slots = slots,
    };
    if (n_kinds == MAX_KINDS) {
        PyErr_SetString(PyExc_SystemError, "too many kinds of owners");
        return NULL;
    }
    PyTypeObject *type = (PyTypeObject *) PyType_FromSpec(&spec);
    if (type == NULL)
        return NULL;
    kinds[n_kinds++] = (struct kind) {type, owner->first, owner->refs, owner->reset};
    const char *short_name = owner->name + sizeof "pynotify._hot." - 1;
    return PyModule_AddObjectRef(module, short_name, (PyObject *) type) < 0 ? NULL : type;
}

int pn_py_parse(PyObject *const *args, Py_ssize_t n, PyObject *names, const char *format,
                char **known, ...)
{
    PyObject *positional = PyTuple_New(n), *named = PyDict_New();
    int rc = positional == NULL || named == NULL ? -1 : 0;
    va_list to;
    for (Py_ssize_t i = 0; rc == 0 && i < n; i++)
        rc = PyTuple_SetItem(positional, i, Py_NewRef(args[i]));
    for (Py_ssize_t i = 0; rc == 0 && names != NULL && i < PyTuple_Size(names); i++)
        rc = PyDict_SetItem(named, PyTuple_GetItem(names, i), args[n + i]);
    va_start(to, known);
    if (rc == 0 && !PyArg_VaParseTupleAndKeywords(positional, named, format, known, to))
        rc = -1;
    va_end(to);
    Py_XDECREF(positional);
    Py_XDECREF(named);
    return rc;
}
