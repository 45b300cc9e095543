/*
 * topic.c - Publisher, the base of topics: publish() of just a body, outside of a transaction.
 *
 * Whatever is out of the ordinary is left to the method _publish_otherwise(), which does the whole
 * again.  So is a durable topic, whose publishing writes, and may sync, without the GIL.
 */
#include "hot.h"

#include <stddef.h>
#include <string.h>

struct publisher {
    PyObject head;
    PyObject *handle;       /* Handle; NULL before it is stored */
    PyObject *transactions; /* dict: those that are open, of any thread */
    unsigned long long ref; /* the core's reference to the topic */
    char in_memory;         /* not durable: at most a full memory's overflow is written */
};

/* Whether it was published, and the id; or the core's error. */
static bool published(struct publisher *p, PyObject *body, int64_t *number)
{
    struct pn_py_text data;
    if (!p->in_memory || p->handle == NULL || p->transactions == NULL ||
        !PyDict_CheckExact(p->transactions) || PyDict_Size(p->transactions) != 0 ||
        !pn_py_text_of(body, &data))
        return false;
    struct pn_py_port *port = pn_py_port_of(p->handle);
    if (port == NULL) {
        PyErr_Clear();
        return false;
    }
    int before = pn_set_never_wait(1);
    *number = pn_topic_publish_body(port->conn, p->ref, data.at, (size_t) data.len);
    pn_set_never_wait(before);
    return *number != -PN_ELOCKBUSY && *number != -PN_EROOMBUSY;
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
    int64_t number;
    if (n != 1 || names != NULL || !published(p, args[0], &number))
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
