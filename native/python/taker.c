/*
 * taker.c - Taker, the base of consumers: what get() and a message's finish() are where nothing is
 * out of the ordinary.
 *
 * 1. Both are made with the GIL held, from the first look to the last step, and wait for nothing.
 *    A lock that is not free, a transaction, a durable topic (answers write, and may sync), an
 *    error, and nothing to be had: all that is left to Python, which does the whole again.
 * 2. What take_at_once() takes is in the caller's list when it returns (hot.h, 3), and no Python
 *    code runs before.  Without memory for it the message goes back, as if it had not been
 *    delivered.
 * 3. `in_core` says that another thread, or what a signal handler has interrupted, is in the core
 *    with this consumer, which hands out one body at a time.  W: that thread, in Python.
 */
#include "hot.h"

#include <errno.h>
#include <stddef.h>

struct taker {
    PyObject head;
    PyObject *native;        /* cffi's pointer, which owns the C consumer */
    PyObject *handle;        /* Handle; NULL before it is stored */
    PyObject *transactions;  /* dict: those that are open, of any thread */
    PyObject *out;           /* cffi's pointer to a pn_message_out */
    pn_consumer *core;       /* what `native` points to */
    pn_message_out *message; /* what `out` points to */
    char draining, in_memory, in_core;
};

static pn_conn *conn_of(const struct taker *t)
{
    struct pn_py_port *port = t->handle == NULL ? NULL : pn_py_port_of(t->handle);
    if (port == NULL)
        PyErr_Clear();
    return port == NULL ? NULL : port->conn;
}

static bool is_ordinary(const struct taker *t)
{
    return t->in_memory && !t->draining && t->transactions != NULL &&
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
static void release(struct taker *t, pn_conn *conn, const pn_message_out *m)
{
    PyObject *handle = Py_NewRef(t->handle); /* another thread may close it meanwhile */
    PyObject *native = Py_XNewRef(((struct pn_py_port *) handle)->native);
    int rc = 0;
    Py_BEGIN_ALLOW_THREADS;
    do
        rc = pn_message_answer(conn, NULL, m->delivery, m->tag, m->id, PN_ANSWER_RELEASE, 0, NULL,
                               0);
    while (rc == -EINTR);
    Py_END_ALLOW_THREADS;
    Py_XDECREF(native);
    Py_DECREF(handle);
}

static PyObject *take_at_once(PyObject *self, PyObject *found)
{
    struct taker *t = (struct taker *) self;
    pn_conn *conn = conn_of(t);
    pn_message_out m;
    if (!PyList_CheckExact(found)) {
        PyErr_SetString(PyExc_TypeError, "take_at_once() takes a list");
        return NULL;
    }
    if (conn == NULL || t->in_core || !is_ordinary(t))
        Py_RETURN_FALSE;
    int before = pn_set_never_wait(1);
    int rc = pn_consumer_get(t->core, 0, &m);
    pn_set_never_wait(before);
    if (rc != 1)
        Py_RETURN_FALSE;
    PyObject *parts = parts_of(&m);
    rc = parts == NULL ? -1 : PyList_Append(found, parts);
    Py_XDECREF(parts);
    if (rc == 0)
        Py_RETURN_TRUE;
    release(t, conn, &m);
    return NULL;
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

static PyObject *finish_at_once(PyObject *self, PyObject *fields)
{
    struct taker *t = (struct taker *) self;
    pn_conn *conn = conn_of(t);
    unsigned long long id, delivery, tag;
    if (conn == NULL || !is_ordinary(t) || !PyTuple_CheckExact(fields) ||
        !number_at(fields, 0, &id) || !number_at(fields, 1, &delivery) ||
        !number_at(fields, 2, &tag))
        Py_RETURN_FALSE;
    int before = pn_set_never_wait(1);
    int rc = pn_message_finish(conn, delivery, (uint32_t) tag, id);
    pn_set_never_wait(before);
    if (rc < 0)
        Py_RETURN_FALSE; /* it has not happened, and says so again */
    if (rc > 0) {
        PyObject *handle = Py_NewRef(t->handle);
        PyObject *checked = PyObject_CallMethod(handle, "check", "i", rc);
        Py_DECREF(handle);
        if (checked == NULL)
            return NULL;
        Py_DECREF(checked);
    }
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
    {"draining", T_BOOL, AT(draining), 0, "drain() was called: it takes nothing more."},
    {"in_memory", T_BOOL, AT(in_memory), 0, "Its topic is not durable."},
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
        .refs = 4,
        .reset = reset,
        .members = members,
        .properties = properties,
        .methods = methods,
    };
    return pn_py_add_owner(module, &owner) == NULL ? -1 : 0;
}
