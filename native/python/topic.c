/*
 * topic.c - Publisher, the base of topics: publish() and publish_many() without headers.
 *
 * 1. Whatever is out of the ordinary is left to Python, which does the whole again, and once more
 *    after a signal: to the method _publish_otherwise(), or to what publish_at_once() returns to.
 *    So is what a transaction refuses, and one message that would have to wait for another process.
 * 2. The GIL is given up for a durable topic, since that writes, and may sync, and for many
 *    messages.  What is added to a transaction (txn.c) is kept in this process until the commit:
 *    that is no different for a durable topic.
 */
#include "hot.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

struct publisher {
    PyObject head;
    PyObject *handle;       /* Handle; NULL before it is stored */
    PyObject *transactions; /* dict: those that are open, of any thread */
    PyObject *owner;        /* what says whose the caller's is */
    unsigned long long ref; /* the core's reference to the topic */
    char in_memory;         /* not durable: at most a full memory's overflow is written */
};

#define LONGEST 4e9 /* seconds; pynotify/topics/_options.py clips what is above */

/* A float or int of seconds that is neither negative nor clipped, in nanoseconds. */
static bool plain_seconds(PyObject *value, int64_t *ns)
{
    double seconds;
    if (PyFloat_CheckExact(value)) {
        seconds = PyFloat_AsDouble(value);
    } else if (PyLong_CheckExact(value)) {
        int overflow;
        seconds = (double) PyLong_AsLongLongAndOverflow(value, &overflow);
        if (overflow != 0)
            return false;
    } else {
        return false;
    }
    if (!(seconds >= 0 && seconds <= LONGEST))
        return false;
    *ns = llrint(seconds * 1e9); /* half to even, as round() */
    return true;
}

static bool plain_ttl(PyObject *value, struct pn_message_in *message)
{
    return value == Py_None || (plain_seconds(value, &message->ttl_ns) && message->ttl_ns != 0);
}

/* delay= and ttl=, if all of `names` are these and plain. */
static bool plain_times(PyObject *const *values, PyObject *names, struct pn_message_in *message)
{
    for (Py_ssize_t i = 0, n = PyTuple_Size(names); i < n; i++) {
        PyObject *name = PyTuple_GetItem(names, i);
        if (PyUnicode_CompareWithASCIIString(name, "delay") == 0) {
            if (!plain_seconds(values[i], &message->delay_ns))
                return false;
        } else if (PyUnicode_CompareWithASCIIString(name, "ttl") == 0) {
            if (!plain_ttl(values[i], message))
                return false;
        } else {
            return false;
        }
    }
    return true;
}

/* A call of the core, and where it is made. */
struct call {
    struct pn_py_within in;
    struct pn_py_port *port;
    pn_ref topic;
    bool writes; /* to files */
    struct pn_message_in message;
    const struct pn_py_joined *many; /* NULL: the one body of `message` */
    uint64_t id;                     /* of the first */
};

/* 1: it can be made; 0: not here; -1 with an exception. */
static int begin(struct publisher *p, struct call *c)
{
    int rc = pn_py_within(p->transactions, p->owner, &c->in);
    if (rc != 1)
        return rc;
    c->port = p->handle == NULL ? NULL : pn_py_port_of(p->handle);
    if (c->port == NULL)
        PyErr_Clear();
    c->topic = p->ref;
    c->writes = !p->in_memory && c->in.core == NULL;
    if (c->port != NULL && (c->in.core == NULL || c->port->conn != pn_closed_conn()))
        return 1;
    pn_py_within_end(&c->in);
    return 0;
}

static int call_core(struct call *c, pn_conn *conn)
{
    const struct pn_py_joined *many = c->many;
    if (many == NULL)
        return pn_topic_publish(conn, c->in.core, c->topic, &c->message, &c->id);
    return pn_topic_publish_many(conn, c->in.core, c->topic, many->bytes, many->lens, many->n,
                                 &c->message, &c->id);
}

/* With the GIL, without waiting for another process. */
static int call_at_once(struct call *c)
{
    int before = pn_set_never_wait(1);
    int rc = call_core(c, c->port->conn);
    pn_set_never_wait(before);
    return rc;
}

/* Without the GIL, in slices of a wait. */
static int call_waiting(struct call *c)
{
    PyObject *native = Py_XNewRef(c->port->native); /* another thread may close the connection */
    pn_conn *conn = c->port->conn;
    int rc;
    Py_BEGIN_ALLOW_THREADS;
    rc = call_core(c, conn);
    Py_END_ALLOW_THREADS;
    Py_XDECREF(native);
    return rc;
}

static bool has_to_wait(int rc)
{
    return rc == -PN_ELOCKBUSY || rc == -PN_EROOMBUSY;
}

/* What the core returned.  1: published; 0: not here; -1 with its error. */
static int went(struct publisher *p, const struct call *c, int rc)
{
    if (rc >= 0)
        return 1;
    if (rc == -EINTR) /* a handler may raise before it is called again */
        pn_forget_wait();
    if (has_to_wait(rc) || rc == -EINTR || c->in.core != NULL)
        return 0;
    PyObject *handle = Py_NewRef(p->handle);
    PyObject *checked = PyObject_CallMethod(handle, "check", "i", rc);
    Py_DECREF(handle);
    if (checked != NULL)
        PyErr_SetString(PyExc_SystemError, "an error of the core is none");
    Py_XDECREF(checked);
    return -1;
}

/* 1: it was published; 0: not here; -1 with an exception. */
static int publish_one(struct publisher *p, PyObject *body, struct call *c)
{
    struct pn_py_text data;
    if (!pn_py_text_of(body, &data))
        return 0;
    int rc = begin(p, c);
    if (rc != 1)
        return rc;
    c->message.body = data.at;
    c->message.body_len = (size_t) data.len;
    rc = went(p, c, c->writes ? call_waiting(c) : call_at_once(c));
    pn_py_within_end(&c->in);
    return rc;
}

/* The id as text: 16 hex digits. */
static PyObject *id_of(uint64_t number)
{
    static const char digits[] = "0123456789abcdef";
    char text[16];
    for (int i = 15; i >= 0; i--, number >>= 4)
        text[i] = digits[number & 15];
    return PyUnicode_FromStringAndSize(text, sizeof text);
}

/* As it is called with arguments by name, or too few or too many. */
static PyObject *publish_otherwise(PyObject *self, PyObject *const *args, Py_ssize_t n,
                                   PyObject *names)
{
    static char *known[] = {"body", "delay", "ttl", "headers", NULL};
    PyObject *body, *delay = NULL, *ttl = Py_None, *headers = Py_None;
    if (pn_py_parse(args, n, names, "O|$OOO:publish", known, &body, &delay, &ttl, &headers) < 0)
        return NULL;
    PyObject *zero = PyFloat_FromDouble(0);
    if (zero == NULL)
        return NULL;
    PyObject *result = PyObject_CallMethod(self, "_publish_otherwise", "OOOO", body,
                                           delay == NULL ? zero : delay, ttl, headers);
    Py_DECREF(zero);
    return result;
}

static PyObject *publish(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
    struct call call = {0};
    if (n != 1 || (names != NULL && !plain_times(args + 1, names, &call.message)))
        return publish_otherwise(self, args, n, names);
    int rc = publish_one((struct publisher *) self, args[0], &call);
    if (rc == 0)
        return publish_otherwise(self, args, n, names);
    return rc < 0 ? NULL : id_of(call.id);
}

/* ---- publish_many() -------------------------------------------------------------------------- */

/* So many bytes, each message counted as 256 more, are published with the GIL held: up to 50 us. */
#define HELD_BYTES ((size_t) 1 << 17)

/* 1: published; 0: not here; -1 with an exception. */
static int publish_joined(struct publisher *p, struct call *c)
{
    int rc = begin(p, c);
    if (rc != 1)
        return rc;
    rc = -PN_ELOCKBUSY;
    if (!c->writes && c->many->size + 256 * c->many->n <= HELD_BYTES)
        rc = call_at_once(c);
    if (has_to_wait(rc))
        rc = call_waiting(c);
    rc = went(p, c, rc);
    pn_py_within_end(&c->in);
    return rc;
}

static PyObject *publish_at_once(PyObject *self, PyObject *args)
{
    PyObject *bodies, *delay, *ttl;
    struct pn_py_joined joined;
    struct call call = {.many = &joined};
    if (!PyArg_ParseTuple(args, "OOO:publish_at_once", &bodies, &delay, &ttl))
        return NULL;
    if (!plain_seconds(delay, &call.message.delay_ns) || !plain_ttl(ttl, &call.message))
        Py_RETURN_NONE;
    int rc = pn_py_join(bodies, &joined);
    if (rc == 1)
        rc = joined.n == 0 ? 0 : publish_joined((struct publisher *) self, &call);
    unsigned long long first = call.id, end = first + joined.n;
    pn_py_join_free(&joined);
    if (rc < 0)
        return NULL;
    if (rc == 0)
        Py_RETURN_NONE;
    return PyObject_CallFunction((PyObject *) &PyRange_Type, "KK", first, end);
}

/* ---- the type -------------------------------------------------------------------------------- */

#define AT(field) offsetof(struct publisher, field)

static PyMemberDef members[] = {
    {"_handle", T_OBJECT_EX, AT(handle), 0, NULL},
    {"_open", T_OBJECT_EX, AT(transactions), 0, NULL},
    {"_owner", T_OBJECT_EX, AT(owner), 0, NULL},
    {"_ref", T_ULONGLONG, AT(ref), 0, NULL},
    {"in_memory", T_BOOL, AT(in_memory), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static const char publish_doc[] =
    "publish($self, /, body, *, delay=0.0, ttl=None, headers=None)\n--\n\n"
    "Publish a message and return its id, 16 hex digits.\n\n"
    "`body`: str (published as UTF-8) or bytes-like, 1 byte to the segment's `max_body`, else\n"
    "`ProgrammingError` or `PayloadTooLong`.  `delay`: seconds before it is delivered; `ttl`:\n"
    "seconds after which it no longer is; both from the commit on.  `headers`: str to str.\n"
    "Raises `TopicFull`, at commit inside a transaction; `SyncFailed` of a topic with\n"
    "`fsync=\"always\"`: the message is published, but not known to be on the disk.";

static PyMethodDef methods[] = {
    {"publish", (PyCFunction) (void (*)(void)) publish, METH_FASTCALL | METH_KEYWORDS, publish_doc},
    {"publish_at_once", publish_at_once, METH_VARARGS, NULL}, /* _hot.pyi describes it */
    {NULL, NULL, 0, NULL},
};

int pn_py_add_topic(PyObject *module)
{
    static const struct pn_py_owner owner = {
        .name = "pynotify._hot.Publisher",
        .doc = "What a topic publishes where nothing is out of the ordinary.",
        .size = sizeof(struct publisher),
        .first = offsetof(struct publisher, handle),
        .refs = 3,
        .members = members,
        .methods = methods,
    };
    return pn_py_add_owner(module, &owner) == NULL ? -1 : 0;
}
