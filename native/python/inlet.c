/*
 * inlet.c - Inlet, the base of Receiver: receiving where nothing is out of the ordinary.
 *
 * 1. take() is poll().  It takes no lock: it holds the GIL from the first look to the last message
 *    (batch.c, 4).  Everything else is left to the method take_otherwise() of the receiver, which
 *    takes the lock: subscriptions and notify handlers, what was read ahead, what an exception of a
 *    signal handler left behind, gaps, channels that are new to the connection, a core that has to
 *    be waited for, and the rest of a large backlog.
 * 2. take_ahead() is the same for those who read into the backlog: the event loop's reader.
 * 3. sleep() is what the leader of the threads that wait does (pynotify/_leader.py), and what it
 *    does once it is awake, in one call: beside other work a thread that was woken has cold caches,
 *    and there each frame of Python between the kernel and the message counts.
 * 4. When the sleep is over, the leader leaves and reads ahead without giving up the GIL in
 *    between, so no other thread sees a step of it.  Where another thread waits as well, nothing of
 *    that is done, and the caller goes on as after wait().  What was read and cannot be put into
 *    the backlog here is shown by `interrupted`: Ctrl-C may keep the caller from going on with it,
 *    and another thread that comes then would sleep in the core, which has nothing unread.
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
    char interrupted;   /* an exception of a signal handler came in between; or what was read ahead
                         * has to be put into the backlog under the lock */
    char watched;       /* fileno() was called, and shows only what is not read yet */
};

static bool is_empty(PyObject *container)
{
    return container != NULL && PyObject_Size(container) == 0;
}

/* It may read without the lock, and what it reads is for one receiver. */
static bool reads_alone(const struct inlet *in)
{
    return !in->routed && !in->interrupted && in->handle != NULL && in->batch != NULL &&
           pn_py_is_batch(in->batch) && is_empty(in->backlog);
}

static bool is_ordinary(const struct inlet *in)
{
    return reads_alone(in) && is_empty(in->handlers);
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

/* Read up to `limit` messages into the backlog.  False: that is left to a read under the lock. */
static bool read_ahead(const struct inlet *in, unsigned long long limit)
{
    struct pn_py_port *port = reads_alone(in) && !in->watched ? pn_py_port_of(in->handle) : NULL;
    int rc = port == NULL ? -1 : pn_py_take_ahead(in->batch, port, in->backlog, limit);
    if (rc < 0)
        PyErr_Clear(); /* no memory, and it is still pending; no exception of a signal handler */
    return rc == 1;
}

static PyObject *take_ahead(PyObject *self, PyObject *limit)
{
    unsigned long long count = PyLong_AsUnsignedLongLong(limit);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(read_ahead((struct inlet *) self, count));
}

/* Move the first of a deque to its end, unless it is doomed.  0 or -1. */
static int turn(PyObject *popleft, PyObject *append, PyObject *doomed)
{
    PyObject *item = PyObject_CallNoArgs(popleft);
    PyObject *number = item == NULL ? NULL : PyLong_FromVoidPtr(item);
    int doom = number == NULL ? -1 : PySet_Contains(doomed, number);
    PyObject *done = item == NULL || doom > 0 ? Py_NewRef(Py_None)
                                              : PyObject_CallFunctionObjArgs(append, item, NULL);
    int rc = doom < 0 || done == NULL ? -1 : 0;
    Py_XDECREF(done);
    Py_XDECREF(number);
    Py_XDECREF(item); /* the caller has it, too: nothing is freed, no Python code runs */
    return rc;
}

/* In one step: a receiver that reads without the lock sees the backlog before it, or after it. */
static PyObject *take_out(PyObject *self, PyObject *doomed)
{
    PyObject *backlog = ((struct inlet *) self)->backlog;
    if (backlog == NULL || !PyAnySet_CheckExact(doomed)) {
        PyErr_SetString(PyExc_TypeError, "take_out() takes a set of numbers");
        return NULL;
    }
    PyObject *popleft = PyObject_GetAttrString(backlog, "popleft");
    PyObject *append = popleft == NULL ? NULL : PyObject_GetAttrString(backlog, "append");
    /* From here on the collector does not run.  Once around: to take one out of the middle moves
     * all others.  What is appended has the place of what was popped, so memory suffices. */
    Py_ssize_t left = append == NULL ? -1 : PyObject_Size(backlog);
    while (left > 0 && turn(popleft, append, doomed) == 0)
        left--;
    Py_XDECREF(popleft);
    Py_XDECREF(append);
    return left != 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *sleep_in_core(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    struct inlet *in = (struct inlet *) self;
    if (n != 4) {
        PyErr_SetString(PyExc_TypeError, "sleep() takes an election, a waiter and two numbers");
        return NULL;
    }
    struct pn_py_port *port = in->handle == NULL ? NULL : pn_py_port_of(in->handle);
    long long ns = PyLong_AsLongLong(args[2]);
    unsigned long long limit = PyErr_Occurred() ? 0 : PyLong_AsUnsignedLongLong(args[3]);
    int rc;
    if (port == NULL || PyErr_Occurred() || pn_py_wait(port, ns, &rc) < 0)
        return NULL;
    if (rc != 1 || in->routed || in->interrupted || !pn_py_leave(args[0], args[1]))
        return PyLong_FromLong(rc);
    if (limit != 0 && !read_ahead(in, limit) && in->batch != NULL && pn_py_is_batch(in->batch))
        in->interrupted = pn_py_is_pending(in->batch); /* the next one that looks goes on with it */
    Py_RETURN_NONE;
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
     "What was read is not where it belongs; the next caller goes on with it."},
    {"watched", T_BOOL, AT(watched), 0, "fileno() was called."},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef methods[] = {
    {"take", (PyCFunction) (void (*)(void)) take, METH_FASTCALL,
     "take(messages, max): append what is owed; False: take_otherwise() has to go on."},
    {"take_ahead", take_ahead, METH_O,
     "take_ahead(count): put up to so many into the backlog; False: read them under the lock."},
    {"take_out", take_out, METH_O,
     "take_out(ids): take the objects of these ids out of the backlog."},
    {"sleep", (PyCFunction) (void (*)(void)) sleep_in_core, METH_FASTCALL,
     "sleep(election, waiter, timeout_ns, ahead): wait() of the leader; None: it has left."},
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
