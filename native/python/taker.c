/*
 * taker.c - Taker, the base of consumers: what get() and a message's finish() are where nothing is
 * out of the ordinary.
 *
 * 1. A lock that is not free, an error, and nothing to be had: all that is left to Python, which
 *    does the whole again; so is what a transaction refuses.
 * 2. What take_at_once() takes is in the caller's list when it returns (hot.h, 3), and no Python
 *    code runs before.  Without memory for it the message goes back, as if it had not been
 *    delivered.
 * 3. A durable topic is asked without the GIL, since that writes, and may sync, so the caller of
 *    take_at_once() has the consumer's lock: what the core hands out is the next call's as well.
 *    Of a topic in memory both are made with the GIL, from the first look to the last step.
 *    A finish() in a transaction (txn.c) is kept in this process until the commit.
 * 4. `in_core` says that another thread, or what a signal handler has interrupted, is in the core
 *    with this consumer, which hands out one body at a time.  W: that thread, in Python.
 */
#include "hot.h"

#include <errno.h>
#include <stddef.h>

struct taker {
    PyObject head;
    PyObject *native;       /* cffi's pointer, which owns the C consumer */
    PyObject *handle;       /* Handle; NULL before it is stored */
    PyObject *transactions; /* dict: those that are open, of any thread */
    PyObject *owner;        /* what says whose the caller's is */
    PyObject *out;          /* cffi's pointer to a pn_message_out */
    PyObject *draining, *in_memory;
    pn_consumer *core;       /* what `native` points to */
    pn_message_out *message; /* what `out` points to */
    char in_core;
};

static pn_conn *conn_of(const struct taker *t)
{
    struct pn_py_port *port = t->handle == NULL ? NULL : pn_py_port_of(t->handle);
    if (port == NULL)
        PyErr_Clear();
    return port == NULL ? NULL : port->conn;
}

static bool gets_at_once(const struct taker *t)
{
    return !t->in_core && t->draining == Py_False && t->transactions != NULL &&
           PyDict_CheckExact(t->transactions) && PyDict_Size(t->transactions) == 0;
}

/* (id, delivery, tag, attempts, published_ns, expires_ns); a new reference. */
static PyObject *fields_of(const pn_message_out *m)
{
    PyObject *number[] = {
        PyLong_FromUnsignedLongLong(m->id),   PyLong_FromUnsignedLongLong(m->delivery),
        PyLong_FromUnsignedLong(m->tag),      PyLong_FromUnsignedLong(m->attempts),
        PyLong_FromLongLong(m->published_ns), PyLong_FromLongLong(m->expires_ns)};
    const Py_ssize_t n = (Py_ssize_t) (sizeof number / sizeof *number);
    PyObject *fields = PyTuple_New(n);
    bool good = fields != NULL;
    for (Py_ssize_t i = 0; i < n; i++) {
        good = good && number[i] != NULL;
        if (fields == NULL)
            Py_XDECREF(number[i]);
        else if (number[i] != NULL)
            PyTuple_SetItem(fields, i, number[i]);
    }
    if (!good)
        Py_CLEAR(fields);
    return fields;
}

/* (fields, body, headers); a new reference. */
static PyObject *parts_of(const pn_message_out *m)
{
    int collects = PyGC_Disable(); /* it would run Python code */
    PyObject *parts = Py_BuildValue(
        "(NNN)", fields_of(m),
        PyBytes_FromStringAndSize((const char *) m->body, (Py_ssize_t) m->body_len),
        PyBytes_FromStringAndSize((const char *) m->headers, (Py_ssize_t) m->headers_len));
    if (collects)
        PyGC_Enable();
    return parts;
}

/* Put it back in front, as if it had not been delivered; if that fails its time-out does it. */
static void release(pn_conn *conn, const pn_message_out *m)
{
    int rc = 0;
    Py_BEGIN_ALLOW_THREADS;
    do
        rc = pn_message_answer(conn, NULL, m->delivery, m->tag, m->id, PN_ANSWER_RELEASE, 0, NULL,
                               0);
    while (rc == -EINTR);
    Py_END_ALLOW_THREADS;
}

static int get_at_once(struct taker *t, pn_message_out *m)
{
    pn_consumer *core = t->core;
    int rc;
    if (t->in_memory == Py_True) {
        int before = pn_set_never_wait(1);
        rc = pn_consumer_get(core, 0, m);
        pn_set_never_wait(before);
        return rc;
    }
    t->in_core = 1;
    Py_BEGIN_ALLOW_THREADS;
    rc = pn_consumer_get(core, 0, m);
    Py_END_ALLOW_THREADS;
    t->in_core = 0;
    if (rc == -EINTR) /* a handler may raise before it is called again */
        pn_forget_wait();
    return rc;
}

/* Append what is there.  1; 0: nothing; -1 with an exception; or the core's other results. */
static int take(struct taker *t, pn_conn *conn, PyObject *found)
{
    pn_message_out m;
    int rc = get_at_once(t, &m);
    if (rc != 1)
        return rc;
    PyObject *parts = parts_of(&m);
    rc = parts == NULL ? -1 : PyList_Append(found, parts);
    Py_XDECREF(parts);
    if (rc == 0)
        return 1;
    release(conn, &m);
    return -1;
}

static PyObject *take_at_once(PyObject *self, PyObject *found)
{
    struct taker *t = (struct taker *) self;
    pn_conn *conn = conn_of(t);
    if (!PyList_CheckExact(found)) {
        PyErr_SetString(PyExc_TypeError, "take_at_once() takes a list");
        return NULL;
    }
    if (conn == NULL || !gets_at_once(t))
        Py_RETURN_FALSE;
    PyObject *native = Py_XNewRef(t->native); /* another thread may close both meanwhile */
    PyObject *port = Py_XNewRef(((struct pn_py_port *) t->handle)->native);
    int rc = take(t, conn, found);
    Py_XDECREF(native);
    Py_XDECREF(port);
    if (rc == 0)
        Py_RETURN_NONE;
    return PyErr_Occurred() != NULL ? NULL : PyBool_FromLong(rc == 1);
}

static int get_once(void *arg, int64_t timeout_ns)
{
    struct taker *t = arg;
    PyObject *native = Py_XNewRef(t->native), *out = Py_XNewRef(t->out);
    pn_consumer *core = t->core;
    pn_message_out *message = t->message;
    int rc;
    Py_BEGIN_ALLOW_THREADS;
    rc = pn_consumer_get(core, timeout_ns, message);
    Py_END_ALLOW_THREADS;
    Py_XDECREF(native);
    Py_XDECREF(out);
    return rc;
}

/* The next message into `out`, as pn_consumer_get() has it. */
static PyObject *get(PyObject *self, PyObject *timeout_ns)
{
    long long ns = PyLong_AsLongLong(timeout_ns);
    int rc;
    if ((ns == -1 && PyErr_Occurred()) || pn_py_sleep(get_once, self, ns, &rc) < 0)
        return NULL;
    return PyLong_FromLong(rc);
}

/* Number i of the tuple; false without an exception: it has none. */
static bool number_at(PyObject *fields, Py_ssize_t i, unsigned long long *number)
{
    PyObject *item = PyTuple_Size(fields) > i ? PyTuple_GetItem(fields, i) : NULL;
    if (item == NULL || !PyLong_CheckExact(item))
        return false;
    *number = PyLong_AsUnsignedLongLong(item);
    if (PyErr_Occurred() == NULL)
        return true;
    PyErr_Clear();
    return false;
}

/* The delivery's fields, as far as an answer names it; false without an exception. */
struct delivery {
    unsigned long long id, delivery, tag;
};

static bool delivery_of(PyObject *fields, struct delivery *d)
{
    return PyTuple_CheckExact(fields) && number_at(fields, 0, &d->id) &&
           number_at(fields, 1, &d->delivery) && number_at(fields, 2, &d->tag);
}

static int finish_at(pn_conn *conn, pn_txn *txn, const struct delivery *d)
{
    return pn_message_answer(conn, txn, d->delivery, (uint32_t) d->tag, d->id, PN_ANSWER_FINISH, 0,
                             NULL, 0);
}

/* Without the GIL where it writes. */
static int finish_in_core(const struct taker *t, pn_conn *conn, pn_txn *txn,
                          const struct delivery *d)
{
    int rc;
    if (t->in_memory == Py_True || txn != NULL) {
        int before = pn_set_never_wait(1);
        rc = finish_at(conn, txn, d);
        pn_set_never_wait(before);
        return rc;
    }
    PyObject *native = Py_XNewRef(((struct pn_py_port *) t->handle)->native); /* it may be closed */
    Py_BEGIN_ALLOW_THREADS;
    rc = finish_at(conn, NULL, d);
    Py_END_ALLOW_THREADS;
    Py_XDECREF(native);
    if (rc == -EINTR) /* as in get_at_once() */
        pn_forget_wait();
    return rc;
}

/* What the core returned for a finish() outside of a transaction, which has happened.  0 or -1. */
static int finished(struct taker *t, int rc)
{
    if (rc != 0) {
        PyObject *handle = Py_NewRef(t->handle);
        PyObject *checked = PyObject_CallMethod(handle, "check", "i", rc);
        Py_DECREF(handle);
        Py_XDECREF(checked);
        if (checked == NULL)
            return -1;
    }
    if (t->draining == Py_False)
        return 0;
    /* drain() has begun meanwhile */
    PyObject *told = PyObject_CallMethod((PyObject *) t, "answer_given", NULL);
    Py_XDECREF(told);
    return told == NULL ? -1 : 0;
}

/* True; or the transaction that it is finished in; False: not here. */
static PyObject *finish_at_once(PyObject *self, PyObject *fields)
{
    struct taker *t = (struct taker *) self;
    struct delivery d;
    struct pn_py_within in;
    if (t->draining != Py_False || !delivery_of(fields, &d))
        Py_RETURN_FALSE;
    int here = pn_py_within(t->transactions, t->owner, &in);
    if (here < 0)
        return NULL;
    pn_conn *conn = conn_of(t);
    if (here == 0 || conn == NULL || (in.core != NULL && conn == pn_closed_conn())) {
        pn_py_within_end(&in);
        Py_RETURN_FALSE;
    }
    int rc = finish_in_core(t, conn, in.core, &d);
    if (in.transaction != NULL) {
        PyObject *answer = Py_NewRef(rc < 0 ? Py_False : in.transaction);
        pn_py_within_end(&in);
        return answer;
    }
    if (rc < 0 && rc != -PN_ESYNC)
        Py_RETURN_FALSE; /* it has not happened, and says so again */
    if (finished(t, rc) < 0)
        return NULL;
    Py_RETURN_TRUE;
}

/* ---- the type -------------------------------------------------------------------------------- */

static PyObject *get_native(PyObject *self, void *unused)
{
    PyObject *native = ((struct taker *) self)->native;
    (void) unused;
    if (native == NULL) {
        PyErr_SetString(PyExc_AttributeError, "_handle");
        return NULL;
    }
    return Py_NewRef(native);
}

static int set_native(PyObject *self, PyObject *native, void *unused)
{
    struct taker *t = (struct taker *) self;
    (void) unused;
    pn_consumer *core = pn_py_address_of(native);
    if (core == NULL)
        return -1;
    PyObject *before = t->native;
    t->native = Py_NewRef(native);
    t->core = core;
    Py_XDECREF(before); /* may free the consumer, and run Python code */
    return 0;
}

static PyObject *get_out(PyObject *self, void *unused)
{
    PyObject *out = ((struct taker *) self)->out;
    (void) unused;
    if (out == NULL) {
        PyErr_SetString(PyExc_AttributeError, "_out");
        return NULL;
    }
    return Py_NewRef(out);
}

static int set_out(PyObject *self, PyObject *out, void *unused)
{
    struct taker *t = (struct taker *) self;
    (void) unused;
    pn_message_out *message = pn_py_address_of(out);
    if (message == NULL)
        return -1;
    PyObject *before = t->out;
    t->out = Py_NewRef(out);
    t->message = message;
    Py_XDECREF(before);
    return 0;
}

/* The core writes to `message` whatever it says. */
static void reset(PyObject *self)
{
    static pn_message_out nothing;
    ((struct taker *) self)->core = pn_closed_consumer();
    ((struct taker *) self)->message = &nothing;
}

#define AT(field) offsetof(struct taker, field)

static PyMemberDef members[] = {
    {"handle", T_OBJECT_EX, AT(handle), 0, "Of its connection."},
    {"open_transactions", T_OBJECT_EX, AT(transactions), 0, "Of its connection."},
    {"owner", T_OBJECT_EX, AT(owner), 0, "What says whose the caller's is."},
    /* As objects, which Python's bytecodes read in one step. */
    {"draining", T_OBJECT_EX, AT(draining), 0, "drain() was called: it takes nothing more."},
    {"in_memory", T_OBJECT_EX, AT(in_memory), 0, "Its topic is not durable."},
    {"in_core", T_BOOL, AT(in_core), 0, "A thread is in the core with it."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"_handle", get_native, set_native, "cffi's pointer to the C consumer.", NULL},
    {"_out", get_out, set_out, "cffi's pointer to what get() fills.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

/* Without docstrings, since they are no part of what users call (_hot.pyi describes them). */
static PyMethodDef methods[] = {
    {"get_in_core", get, METH_O, NULL},
    {"take_at_once", take_at_once, METH_O, NULL},
    {"finish_at_once", finish_at_once, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

int pn_py_add_taker(PyObject *module)
{
    static const struct pn_py_owner owner = {
        .name = "pynotify._hot.Taker",
        .doc = "What a consumer does where nothing is out of the ordinary.",
        .size = sizeof(struct taker),
        .first = offsetof(struct taker, native),
        .refs = 7,
        .reset = reset,
        .members = members,
        .properties = properties,
        .methods = methods,
    };
    return pn_py_add_owner(module, &owner) == NULL ? -1 : 0;
}
