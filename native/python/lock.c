/*
 * lock.c - a lock that no thread keeps when a signal handler raises just after `with` has taken it.
 *
 * 1. CPython 3.14 runs signal handlers between the return of a `with` statement's __enter__ and its
 *    block (python/cpython#148874).  What they raise there, Ctrl-C for one, passes __exit__ by: the
 *    lock stayed locked, and every other thread would wait for ever.
 * 2. `with` looks up __exit__ before it calls __enter__, and drops what it has found when that
 *    call is interrupted.  So here each look-up makes a new object, the hold.  __enter__ tells it
 *    that the lock was taken; it gives the lock back when it is called, as __exit__, or dropped.
 * 3. Between the look-up and __enter__ no other Python code runs, so the last hold is that of the
 *    calling thread.  Where a trace function does run there, the hold may be another one's: then
 *    __enter__ finds none, and the lock is as any other.
 */
#include "hot.h"

#include <pythread.h>
#include <stddef.h>

struct lock {
    PyObject head;
    PyObject *acquire, *release; /* bound methods of one of threading's */
    struct hold *entering;       /* looked up, and __enter__ has not begun; borrowed */
};

struct hold {
    PyObject head;
    struct lock *lock;
    unsigned long thread;
    bool taken;
};

static PyTypeObject *hold_type;

static PyObject *allocated(PyTypeObject *of)
{
    return ((allocfunc) PyType_GetSlot(of, Py_tp_alloc))(of, 0);
}

static void freed(PyObject *self)
{
    PyTypeObject *of = Py_TYPE(self);
    ((freefunc) PyType_GetSlot(of, Py_tp_free))(self);
    Py_DECREF(of);
}

/* ---- the hold -------------------------------------------------------------------------------- */

static PyObject *give_back(PyObject *self, PyObject *exception, PyObject *kwargs)
{
    struct hold *hold = (struct hold *) self;
    (void) exception, (void) kwargs;
    hold->taken = false;
    return PyObject_CallNoArgs(hold->lock->release);
}

static void drop_hold(PyObject *self)
{
    struct hold *hold = (struct hold *) self;
    if (hold->lock->entering == hold)
        hold->lock->entering = NULL;
    if (hold->taken) {
        PyObject *kind, *value, *places;
        PyErr_Fetch(&kind, &value, &places);
        PyObject *none = give_back(self, NULL, NULL);
        if (none == NULL)
            PyErr_WriteUnraisable(hold->lock->release);
        Py_XDECREF(none);
        PyErr_Restore(kind, value, places);
    }
    Py_DECREF((PyObject *) hold->lock);
    freed(self);
}

/* ---- the lock -------------------------------------------------------------------------------- */

static PyObject *new_lock(PyTypeObject *of, PyObject *args, PyObject *kwargs)
{
    PyObject *inner;
    (void) kwargs;
    if (!PyArg_ParseTuple(args, "O:Lock", &inner))
        return NULL;
    struct lock *made = (struct lock *) allocated(of);
    if (made == NULL)
        return NULL;
    made->acquire = PyObject_GetAttrString(inner, "acquire");
    made->release = made->acquire ? PyObject_GetAttrString(inner, "release") : NULL;
    if (made->release == NULL) {
        Py_DECREF((PyObject *) made);
        return NULL;
    }
    return (PyObject *) made;
}

static void drop_lock(PyObject *self)
{
    struct lock *lock = (struct lock *) self;
    Py_XDECREF(lock->acquire);
    Py_XDECREF(lock->release);
    freed(self);
}

static PyObject *look_up_exit(PyObject *self, void *unused)
{
    struct hold *made = (struct hold *) allocated(hold_type);
    (void) unused;
    if (made == NULL)
        return NULL;
    made->lock = (struct lock *) Py_NewRef(self);
    made->thread = PyThread_get_thread_ident();
    made->lock->entering = made;
    return (PyObject *) made;
}

static PyObject *enter(PyObject *self, PyObject *unused)
{
    struct lock *lock = (struct lock *) self;
    struct hold *hold = lock->entering;
    (void) unused;
    if (hold != NULL && hold->thread == PyThread_get_thread_ident()) {
        lock->entering = NULL;
        Py_INCREF((PyObject *) hold);
    } else {
        hold = NULL;
    }
    PyObject *result = PyObject_CallNoArgs(lock->acquire); /* signal handlers may run in it */
    if (result != NULL && hold != NULL)
        hold->taken = true;
    Py_XDECREF((PyObject *) hold);
    return result;
}

static PyMethodDef methods[] = {
    {"__enter__", enter, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

#define AT(field) offsetof(struct lock, field)

static PyMemberDef members[] = {
    {"acquire", T_OBJECT_EX, AT(acquire), READONLY, NULL},
    {"release", T_OBJECT_EX, AT(release), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

/* A getset is a descriptor whose look-up calls a function, also by `with`. */
static PyGetSetDef properties[] = {
    {"__exit__", look_up_exit, NULL, "A new hold, see lock.c.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

int pn_py_add_lock(PyObject *module)
{
    static PyType_Slot hold_slots[] = {
        {Py_tp_dealloc, drop_hold}, {Py_tp_call, give_back}, {0, NULL}};
    static PyType_Spec hold_spec = {
        .name = "pynotify._hot.Hold",
        .basicsize = sizeof(struct hold),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
        .slots = hold_slots,
    };
    static PyType_Slot slots[] = {{Py_tp_new, new_lock},      {Py_tp_dealloc, drop_lock},
                                  {Py_tp_methods, methods},   {Py_tp_members, members},
                                  {Py_tp_getset, properties}, {0, NULL}};
    static PyType_Spec spec = {
        .name = "pynotify._hot.Lock",
        .basicsize = sizeof(struct lock),
        .flags = Py_TPFLAGS_DEFAULT,
        .slots = slots,
    };
    hold_type = (PyTypeObject *) PyType_FromSpec(&hold_spec);
    PyObject *type = hold_type == NULL ? NULL : PyType_FromSpec(&spec);
    int rc = type == NULL ? -1 : PyModule_AddObjectRef(module, "Lock", type);
    Py_XDECREF(type);
    return rc;
}
