/*
 * inlet.c - Inlet, the base of Receiver: take(), which is poll() where nothing is out of the
 * ordinary.
 *
 * It takes no lock: it holds the GIL from the first look to the last message (batch.c, 4).
 * Everything else is left to the method take_otherwise() of the receiver, which takes the lock:
 * subscriptions and notify handlers, what was read ahead, what an exception of a signal handler
 * left behind, gaps, channels that are new to the connection, a core that has to be waited for, and
 * the rest of a large backlog.
 */
#include "hot.h"

#include <stddef.h>

struct inlet {
    PyObject head;
    PyObject *handle;   /* Handle; NULL before it is stored, as the next three */
    PyObject *batch;    /* Batch */
    PyObject *backlog;  /* deque: read already */
    PyObject *handlers; /* list: the notify handlers */
    char routed;        /* subscriptions exist */
    char interrupted;   /* an exception of a signal handler came in between */
};

static bool is_empty(PyObject *container)
{
    return container != NULL && PyObject_Size(container) == 0;
}

static bool is_ordinary(const struct inlet *in)
{
    return !in->routed && !in->interrupted && in->handle != NULL && in->batch != NULL &&
           pn_py_is_batch(in->batch) && is_empty(in->backlog) && is_empty(in->handlers);
}

/* The limit of poll(), 0: none; false without an exception: it is not for here. */
static bool limit_of(PyObject *maximum, unsigned long long *limit)
{
    *limit = 0;
    if (maximum == Py_None)
        return true;
    if (!PyLong_CheckExact(maximum))
        return false;
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(maximum, &overflow);
    *limit = (unsigned long long) value;
    return overflow == 0 && value > 0;
}

static PyObject *take(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    struct inlet *in = (struct inlet *) self;
    unsigned long long limit;
    if (n != 2 || !PyList_CheckExact(args[0])) {
        PyErr_SetString(PyExc_TypeError, "take() takes a list and a number or None");
        return NULL;
    }
    if (!limit_of(args[1], &limit) || !is_ordinary(in))
        Py_RETURN_FALSE;
    struct pn_py_port *port = pn_py_port_of(in->handle);
    int rc = port == NULL ? -1 : pn_py_take(in->batch, port, args[0], limit);
    return rc < 0 ? NULL : PyBool_FromLong(rc);
}

/* ---- the type -------------------------------------------------------------------------------- */

#define AT(field) offsetof(struct inlet, field)

static PyMemberDef members[] = {
    {"handle", T_OBJECT_EX, AT(handle), 0, NULL},
    {"batch", T_OBJECT_EX, AT(batch), 0, NULL},
    {"backlog", T_OBJECT_EX, AT(backlog), 0, "What was read ahead."},
    {"handlers", T_OBJECT_EX, AT(handlers), 0, "Notify handlers."},
    {"routed", T_BOOL, AT(routed), 0,
     "Subscriptions exist: what is read has to be put where it belongs."},
    {"interrupted", T_BOOL, AT(interrupted), 0,
     "An exception of a signal handler came in between; the next caller goes on with it."},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef methods[] = {
    {"take", (PyCFunction) (void (*)(void)) take, METH_FASTCALL,
     "take(messages, max): append what is owed; False: take_otherwise() has to go on."},
    {NULL, NULL, 0, NULL},
};

int pn_py_add_inlet(PyObject *module)
{
    static const struct pn_py_owner owner = {
        .name = "pynotify._hot.Inlet",
        .doc = "What receives, where nothing is out of the ordinary.",
        .size = sizeof(struct inlet),
        .first = offsetof(struct inlet, handle),
        .refs = 4,
        .members = members,
        .methods = methods,
    };
    if (PyModule_AddIntConstant(module, "AT_ONCE", PN_PY_AT_ONCE) < 0 ||
        PyModule_AddIntConstant(module, "AT_ONCE_BYTES", PN_PY_AT_ONCE_BYTES) < 0)
        return -1;
    return pn_py_add_owner(module, &owner) == NULL ? -1 : 0;
}
