/*
 * txn.c - Pending, the base of OpenTransaction: what the other types here ask of the caller's.
 *
 * 1. Its owner is a thread, or what the registry has instead (pynotify/_registry.py): a greenlet
 *    where gevent has patched that.  So the registry is asked, which may run Python code; nothing
 *    that such code may change has been looked at before.
 * 2. What has failed, is prepared or is being committed is left to Python, which raises its error;
 *    so is all that the core refuses: then it has added nothing, and says so again.
 * 3. The address of `native` is asked of cffi once, by the first call that needs it here.
 */
#include "hot.h"

#include <stddef.h>

struct pending {
    PyObject head;
    PyObject *native; /* cffi's pointer, which owns the C transaction */
    PyObject *failed, *prepared, *committing;
    pn_txn *core; /* what `native` points to; NULL: that was not asked for */
};

static PyTypeObject *pending_type;

/* Asked once: cffi's own code runs. */
static bool know_core(struct pending *t)
{
    if (t->native == NULL || t->core != NULL)
        return t->native != NULL;
    PyObject *native = Py_NewRef(t->native);
    pn_txn *core = pn_py_address_of(native);
    if (core == NULL)
        PyErr_Clear();
    else if (t->native == native)
        t->core = core;
    Py_DECREF(native);
    return t->core != NULL;
}

/* Whether more can be added to it here; false without an exception. */
static bool is_usable(struct pending *t)
{
    return know_core(t) && t->core != pn_ended_txn() && t->failed == Py_False &&
           t->prepared == Py_False && t->committing == Py_False;
}

int pn_py_within_some(PyObject *open, PyObject *owner, struct pn_py_within *in)
{
    if (open == NULL || owner == NULL || !PyDict_CheckExact(open))
        return 0;
    PyObject *key = PyObject_CallNoArgs(owner);
    if (key == NULL)
        return -1;
    bool plain = PyLong_CheckExact(key); /* to look it up runs no Python code */
    PyObject *found = plain ? Py_XNewRef(PyDict_GetItemWithError(open, key)) : NULL;
    Py_DECREF(key);
    if (PyErr_Occurred() != NULL)
        return -1;
    if (found == NULL)
        return plain;
    struct pending *t = (struct pending *) found;
    if (!PyObject_TypeCheck(found, pending_type) || !is_usable(t)) {
        Py_DECREF(found);
        return 0;
    }
    *in = (struct pn_py_within) {found, Py_NewRef(t->native), t->core};
    return 1;
}

void pn_py_leave_some(struct pn_py_within *in)
{
    Py_CLEAR(in->transaction);
    Py_CLEAR(in->native); /* may end the C transaction, and run Python code */
    in->core = NULL;
}

/* ---- the type -------------------------------------------------------------------------------- */

static PyObject *get_native(PyObject *self, void *unused)
{
    PyObject *native = ((struct pending *) self)->native;
    (void) unused;
    if (native == NULL) {
        PyErr_SetString(PyExc_AttributeError, "_native");
        return NULL;
    }
    return Py_NewRef(native);
}

static int set_native(PyObject *self, PyObject *native, void *unused)
{
    struct pending *t = (struct pending *) self;
    PyObject *before = t->native;
    (void) unused;
    if (native == NULL) {
        PyErr_SetString(PyExc_TypeError, "_native cannot be deleted");
        return -1;
    }
    t->native = Py_NewRef(native);
    t->core = NULL;
    Py_XDECREF(before); /* may end the C transaction, and run Python code */
    return 0;
}

/* As objects, which Python's bytecodes read and store in one step. */
static PyMemberDef members[] = {
    {"failed", T_OBJECT_EX, offsetof(struct pending, failed), 0, NULL},
    {"prepared", T_OBJECT_EX, offsetof(struct pending, prepared), 0, NULL},
    {"committing", T_OBJECT_EX, offsetof(struct pending, committing), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"_native", get_native, set_native, "cffi's pointer to the C transaction.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

int pn_py_add_txn(PyObject *module)
{
    static const struct pn_py_owner owner = {
        .name = "pynotify._hot.Pending",
        .doc = "What a transaction is to do.",
        .size = sizeof(struct pending),
        .first = offsetof(struct pending, native),
        .refs = 4,
        .members = members,
        .properties = properties,
    };
    pending_type = pn_py_add_owner(module, &owner);
    return pending_type == NULL ? -1 : 0;
}
