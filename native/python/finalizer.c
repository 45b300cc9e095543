/*
 * finalizer.c - `__del__` and callbacks of weak references, in which no exception of a signal
 *               handler is lost.
 *
 * 1. Python runs signal handlers between bytecodes, also those of a `__del__`; what they raise
 *    there, Ctrl-C for one, is printed and forgotten, and the rest of the `__del__` is not done.
 * 2. A function in @finalizer is called again when it was interrupted, until it comes to its end.
 *    So it has to do its work once, however often it is begun: a step that must not be done twice
 *    is one call of C, or marks itself as done before that.
 * 3. What was raised is raised in the main thread as soon as it is outside, as it would have been
 *    had the signal come a moment later.  Of several only the first, without the places it came
 *    from: they would keep the object that is going.  So it is marked, since another finalizer
 *    that it is raised in could not know it by these.
 * 4. What does not come from a signal handler (pynotify/_finalizing.py) is the function's own, and
 *    is reported by Python as ever.
 */
#include "hot.h"

#include <stddef.h>

enum { TRIES = 100 };

struct finalizer {
    PyObject head;
    PyObject *function;
};

static PyObject *method; /* types.MethodType, as long as the process */

static PyObject *new_finalizer(PyTypeObject *of, PyObject *args, PyObject *kwargs)
{
    PyObject *function;
    (void) kwargs;
    if (!PyArg_ParseTuple(args, "O:finalizer", &function))
        return NULL;
    struct finalizer *made =
        (struct finalizer *) ((allocfunc) PyType_GetSlot(of, Py_tp_alloc))(of, 0);
    if (made != NULL)
        made->function = Py_NewRef(function);
    return (PyObject *) made;
}

static int traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((struct finalizer *) self)->function);
    return 0;
}

static int clear(PyObject *self)
{
    Py_CLEAR(((struct finalizer *) self)->function);
    return 0;
}

static void destroy(PyObject *self)
{
    PyTypeObject *of = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear(self);
    ((freefunc) PyType_GetSlot(of, Py_tp_free))(self);
    Py_DECREF(of);
}

/* ---- what a signal handler raised ------------------------------------------------------------ */

static PyObject *taken_exception(void)
{
    PyObject *kind, *value, *places;
    PyErr_Fetch(&kind, &value, &places);
    PyErr_NormalizeException(&kind, &value, &places);
    if (places != NULL)
        PyException_SetTraceback(value, places);
    Py_XDECREF(kind);
    Py_XDECREF(places);
    return value;
}

static void restore(PyObject *exception)
{
    PyErr_SetObject((PyObject *) Py_TYPE(exception), exception);
    Py_DECREF(exception);
}

/* Called by the main thread between two bytecodes, which may be those of the next finalizer. */
static int raise(void *exception)
{
    restore(exception);
    return -1;
}

/* Takes the reference. */
static void raise_outside(PyObject *exception, PyObject *where)
{
    PyException_SetTraceback(exception, Py_None);
    PyObject *mark = PyUnicode_FromString("_raised_outside");
    if (mark == NULL || PyObject_GenericSetAttr(exception, mark, Py_True) < 0)
        PyErr_Clear();
    Py_XDECREF(mark);
    if (Py_AddPendingCall(raise, exception) == 0)
        return;
    restore(exception); /* dozens wait already */
    PyErr_WriteUnraisable(where);
}

/* The first is kept.  Takes the reference, NULL: none. */
static void keep_first(PyObject **first, PyObject *exception)
{
    if (*first == NULL)
        *first = exception;
    else
        Py_XDECREF(exception);
}

/* What comes instead of an answer, and would come again. */
static bool keeps_from_asking(PyObject *exception)
{
    return PyErr_GivenExceptionMatches(exception, PyExc_MemoryError) ||
           PyErr_GivenExceptionMatches(exception, PyExc_RecursionError) ||
           PyErr_GivenExceptionMatches(exception, PyExc_ImportError); /* the interpreter ends */
}

/* Python code runs in it, which a signal handler may interrupt as well: `interruption` is what that
 * has raised, a new reference or NULL. */
static bool is_of_a_handler(PyObject *exception, PyObject **interruption)
{
    bool is = false, answered = false;
    *interruption = NULL;
    for (int i = 0; !answered && i < TRIES; i++) {
        PyObject *asked = pn_py_import("pynotify._finalizing", "is_of_a_handler");
        PyObject *answer = asked ? PyObject_CallFunctionObjArgs(asked, exception, NULL) : NULL;
        answered = answer != NULL;
        is = answer == Py_True;
        Py_XDECREF(asked);
        Py_XDECREF(answer);
        if (answered)
            continue;
        PyObject *raised = taken_exception();
        answered = keeps_from_asking(raised);
        is = !PyErr_GivenExceptionMatches(exception, PyExc_Exception); /* Ctrl-C */
        if (answered)
            Py_DECREF(raised);
        else
            keep_first(interruption, raised);
    }
    return is;
}

/* ---- calling --------------------------------------------------------------------------------- */

static PyObject *call(PyObject *self, PyObject *args, PyObject *kwargs)
{
    PyObject *function = Py_NewRef(((struct finalizer *) self)->function), *before = NULL;
    PyObject *result = PyObject_Call(function, args, kwargs);
    for (int i = 0; result == NULL && i < TRIES; i++) {
        PyObject *exception = taken_exception(), *later;
        bool its_own = !is_of_a_handler(exception, &later);
        if (!its_own)
            keep_first(&before, exception);
        keep_first(&before, later);
        if (its_own) {
            restore(exception);
            break;
        }
        result = PyObject_Call(function, args, kwargs);
    }
    if (before != NULL) {
        if (result == NULL)
            PyErr_WriteUnraisable(function);
        raise_outside(before, function);
    }
    Py_DECREF(function);
    return result != NULL || before == NULL ? result : Py_NewRef(Py_None);
}

static PyObject *bind(PyObject *self, PyObject *object, PyObject *of)
{
    (void) of;
    if (object == NULL || object == Py_None)
        return Py_NewRef(self);
    return PyObject_CallFunctionObjArgs(method, self, object, NULL);
}

/* Of the function, for messages. */
static PyObject *attribute(PyObject *self, void *name)
{
    return PyObject_GetAttrString(((struct finalizer *) self)->function, name);
}

static PyGetSetDef properties[] = {
    {"__name__", attribute, NULL, NULL, (void *) (uintptr_t) "__name__"},
    {"__qualname__", attribute, NULL, NULL, (void *) (uintptr_t) "__qualname__"},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
    {"__wrapped__", T_OBJECT_EX, offsetof(struct finalizer, function), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

int pn_py_add_finalizer(PyObject *module)
{
    static PyType_Slot slots[] = {
        {Py_tp_new, new_finalizer}, {Py_tp_dealloc, destroy},   {Py_tp_traverse, traverse},
        {Py_tp_clear, clear},       {Py_tp_call, call},         {Py_tp_descr_get, bind},
        {Py_tp_members, members},   {Py_tp_getset, properties}, {0, NULL}};
    static PyType_Spec spec = {
        .name = "pynotify._hot.finalizer",
        .basicsize = sizeof(struct finalizer),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
        .slots = slots,
    };
    method = pn_py_import("types", "MethodType");
    PyObject *type = method == NULL ? NULL : PyType_FromSpec(&spec);
    int rc = type == NULL ? -1 : PyModule_AddObjectRef(module, "finalizer", type);
    Py_XDECREF(type);
    return rc;
}
