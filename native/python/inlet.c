/*
 * inlet.c - Inlet, the base of Receiver: receiving where nothing is out of the ordinary.
 *
 * 1. take() is poll().  It takes no lock: it holds the GIL from the first look to the last message
 *    (batch.c, 4).  Everything else is left to the method take_otherwise() of the receiver, which
 *    takes the lock: subscriptions and notify handlers, what was read ahead, what an exception of a
 *    signal handler left behind, gaps, channels that are new to the connection, a core that has to
 *    be waited for, and the rest of a large backlog.
 * 2. take_ahead() is the same for a reader that fills the backlog: the event loop's.
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

/* Which of the items have one of these numbers, a byte each; NULL with an exception. */
static char *find_doomed(PyObject *items, PyObject *doomed)
{
    Py_ssize_t n = PyList_Size(items);
    char *found = PyMem_Malloc((size_t) n + 1);
    if (found == NULL)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; found != NULL && i < n; i++) {
        PyObject *number = PyLong_FromVoidPtr(PyList_GetItem(items, i));
        int is = number == NULL ? -1 : PySet_Contains(doomed, number);
        Py_XDECREF(number);
        found[i] = (char) is;
        if (is < 0) {
            PyMem_Free(found);
            found = NULL;
        }
    }
    return found;
}

enum { BLOCK = 64 }; /* items that a deque has room for at a time */

/* Have memory in reserve for one block more: a deque keeps those that it has no use for. */
static int reserve(PyObject *append, PyObject *pop)
{
    int rc = 0;
    Py_ssize_t n = 0;
    for (; rc == 0 && n < BLOCK; n += rc == 0) {
        PyObject *done = PyObject_CallFunctionObjArgs(append, Py_None, NULL);
        rc = done == NULL ? -1 : 0;
        Py_XDECREF(done);
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    while (n-- > 0)
        Py_XDECREF(PyObject_CallNoArgs(pop));
    PyErr_Restore(type, value, traceback);
    return rc;
}

/* Once around, since to take one out of the middle moves all others: an item is popped, and is
 * appended unless it is doomed.  It takes no memory, what was popped was in one block at most that
 * is not free yet; and frees none, the caller has the items. */
static int turn(PyObject *popleft, PyObject *append, const char *doomed, Py_ssize_t n)
{
    int rc = 0;
    for (Py_ssize_t i = 0; rc == 0 && i < n; i++) {
        PyObject *item = PyObject_CallNoArgs(popleft), *done = NULL;
        if (item != NULL && !doomed[i])
            done = PyObject_CallFunctionObjArgs(append, item, NULL);
        rc = item == NULL || (!doomed[i] && done == NULL) ? -1 : 0;
        Py_XDECREF(done);
        Py_XDECREF(item);
    }
    return rc;
}

/* The collector does not run, and no other Python code. */
static int take_out_of(PyObject *backlog, PyObject *doomed)
{
    PyObject *items = PySequence_List(backlog);
    char *found = items == NULL ? NULL : find_doomed(items, doomed);
    PyObject *popleft = found == NULL ? NULL : PyObject_GetAttrString(backlog, "popleft");
    PyObject *append = popleft == NULL ? NULL : PyObject_GetAttrString(backlog, "append");
    PyObject *pop = append == NULL ? NULL : PyObject_GetAttrString(backlog, "pop");
    int rc = pop == NULL || reserve(append, pop) < 0
                 ? -1
                 : turn(popleft, append, found, PyList_Size(items));
    Py_XDECREF(pop);
    Py_XDECREF(append);
    Py_XDECREF(popleft);
    PyMem_Free(found);
    Py_XDECREF(items);
    return rc;
}

/* In one step: a receiver that reads without the lock sees the backlog before it, or after it.
 * Without memory nothing has happened. */
static PyObject *take_out(PyObject *self, PyObject *doomed)
{
    PyObject *backlog = ((struct inlet *) self)->backlog;
    if (backlog == NULL || !PyAnySet_CheckExact(doomed)) {
        PyErr_SetString(PyExc_TypeError, "take_out() takes a set of numbers");
        return NULL;
    }
    if (PySet_Size(doomed) == 0)
        Py_RETURN_NONE;
    int collects = PyGC_Disable();
    int rc = take_out_of(backlog, doomed);
    if (collects)
        PyGC_Enable();
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *sleep_in_core(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    struct inlet *in = (struct inlet *) self;
    if (n != 4) {
        PyErr_SetString(PyExc_TypeError, "sleep() takes an election, a waiter and two numbers");
        return NULL;
    }
    if (in->handle == NULL) {
        PyErr_SetString(PyExc_AttributeError, "handle");
        return NULL;
    }
    struct pn_py_port *port = pn_py_port_of(in->handle);
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
