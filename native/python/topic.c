/*
 * topic.c - Publisher, the base of topics: publish() without headers, outside of a transaction.
 *
 * Whatever is out of the ordinary is left to the method _publish_otherwise(), which does the whole
 * again, and once more after a signal.  So is what would have to wait for another process.  A
 * durable topic is published to without the GIL, since that writes, and may sync.
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

/* delay= and ttl=, if all of `names` are these and plain. */
static bool plain_times(PyObject *const *values, PyObject *names, struct pn_message_in *message)
{
    for (Py_ssize_t i = 0, n = PyTuple_Size(names); i < n; i++) {
        PyObject *name = PyTuple_GetItem(names, i);
        if (PyUnicode_CompareWithASCIIString(name, "delay") == 0) {
            if (!plain_seconds(values[i], &message->delay_ns))
                return false;
        } else if (PyUnicode_CompareWithASCIIString(name, "ttl") == 0) {
            if (values[i] == Py_None)
                continue;
            if (!plain_seconds(values[i], &message->ttl_ns) || message->ttl_ns == 0)
                return false;
        } else {
            return false;
        }
    }
    return true;
}

/* With the GIL without waiting for another process, without it in slices of such a wait. */
static int call_core(struct publisher *p, struct pn_py_port *port, const pn_message_in *message,
                     uint64_t *id)
{
    int rc;
    if (p->in_memory) {
        int before = pn_set_never_wait(1);
        rc = pn_topic_publish(port->conn, NULL, p->ref, message, id);
        pn_set_never_wait(before);
        return rc;
    }
    PyObject *native = Py_XNewRef(port->native); /* another thread may close the connection */
    pn_conn *conn = port->conn;
    pn_ref topic = p->ref;
    Py_BEGIN_ALLOW_THREADS;
    rc = pn_topic_publish(conn, NULL, topic, message, id);
    Py_END_ALLOW_THREADS;
    Py_XDECREF(native);
    return rc;
}

/* Whether it was published, and the id; or the core's error. */
static bool published(struct publisher *p, PyObject *body, struct pn_message_in *message,
                      int64_t *number)
{
    struct pn_py_text data;
    if (p->handle == NULL || p->transactions == NULL || !PyDict_CheckExact(p->transactions) ||
        PyDict_Size(p->transactions) != 0 || !pn_py_text_of(body, &data))
        return false;
    struct pn_py_port *port = pn_py_port_of(p->handle);
    if (port == NULL) {
        PyErr_Clear();
        return false;
    }
    message->body = data.at;
    message->body_len = (size_t) data.len;
    uint64_t id;
    int rc = call_core(p, port, message, &id);
    *number = rc < 0 ? rc : (int64_t) id;
    return rc != -PN_ELOCKBUSY && rc != -PN_EROOMBUSY && rc != -EINTR;
}

/* The id as text: 16 hex digits. */
static PyObject *id_of(int64_t number)
{
    static const char digits[] = "0123456789abcdef";
    char text[16];
    for (int i = 15; i >= 0; i--, number = (int64_t) ((uint64_t) number >> 4))
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
    struct publisher *p = (struct publisher *) self;
    struct pn_message_in message = {0};
    int64_t number;
    if (n != 1 || (names != NULL && !plain_times(args + 1, names, &message)) ||
        !published(p, args[0], &message, &number))
        return publish_otherwise(self, args, n, names);
    if (number >= 0)
        return id_of(number);
    PyObject *handle = Py_NewRef(p->handle);
    PyObject *checked = PyObject_CallMethod(handle, "check", "L", (long long) number);
    Py_DECREF(handle);
    Py_XDECREF(checked);
    if (checked != NULL)
        PyErr_SetString(PyExc_SystemError, "an error of the core is none");
    return NULL;
}

/* ---- the type -------------------------------------------------------------------------------- */

#define AT(field) offsetof(struct publisher, field)

static PyMemberDef members[] = {
    {"_handle", T_OBJECT_EX, AT(handle), 0, NULL},
    {"_open", T_OBJECT_EX, AT(transactions), 0, NULL},
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
    {NULL, NULL, 0, NULL},
};

int pn_py_add_topic(PyObject *module)
{
    static const struct pn_py_owner owner = {
        .name = "pynotify._hot.Publisher",
        .doc = "What a topic publishes outside of transactions.",
        .size = sizeof(struct publisher),
        .first = offsetof(struct publisher, handle),
        .refs = 2,
        .members = members,
        .methods = methods,
    };
    return pn_py_add_owner(module, &owner) == NULL ? -1 : 0;
}
