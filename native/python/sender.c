/*
 * sender.c - Notifier, the base of Connection: notify() and notify_many().
 *
 * Whatever is out of the ordinary is left to the methods _notify() and _notify_many() of the
 * connection, which do the whole again: arguments of other types, a lock that has to be waited for,
 * and what a transaction refuses.
 */
#include "hot.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct notifier {
    PyObject head;
    PyObject *handle;       /* Handle; NULL before it is stored */
    PyObject *transactions; /* dict: those that are open, of any thread */
    PyObject *owner;        /* what says whose the caller's is */
};

/* What a call is made with. */
struct call {
    struct pn_py_within in;
    struct pn_py_port *port;
    struct pn_py_text name;
};

/* 1: it can be made; 0: not here; -1 with an exception. */
static int begin(struct notifier *n, PyObject *channel, struct call *c)
{
    if (!PyUnicode_CheckExact(channel) || !pn_py_text_of(channel, &c->name) ||
        memchr(c->name.at, 0, (size_t) c->name.len) != NULL)
        return 0;
    int rc = pn_py_within(n->transactions, n->owner, &c->in);
    if (rc != 1)
        return rc;
    c->port = n->handle == NULL ? NULL : pn_py_port_of(n->handle);
    if (c->port == NULL)
        PyErr_Clear();
    if (c->port != NULL && (c->in.core == NULL || c->port->conn != pn_closed_conn()))
        return 1;
    pn_py_within_end(&c->in);
    return 0;
}

static bool has_to_wait(int rc)
{
    return rc == -PN_ELOCKBUSY || rc == -PN_EROOMBUSY;
}

/* Whether that is all: else it has done nothing, and Python does the whole again. */
static bool is_done(const struct call *c, int rc)
{
    return c->in.core != NULL ? rc >= 0 : !has_to_wait(rc) && rc != -EINTR;
}

static int notify_core(const struct call *c, const struct pn_py_text *data)
{
    const char *name = c->name.at;
    size_t len = (size_t) c->name.len;
    if (c->in.core != NULL)
        return pn_txn_notify(c->in.core, name, len, data->at, (size_t) data->len);
    int before = pn_set_never_wait(1);
    int rc = pn_notify(c->port->conn, name, len, data->at, (size_t) data->len);
    pn_set_never_wait(before);
    return rc;
}

/* 1: pn_notify() was called, and returned *rc; 0: not here; -1 with an exception. */
static int sent(struct notifier *n, PyObject *channel, PyObject *payload, int *rc)
{
    struct call c;
    struct pn_py_text data = {"", 0};
    if (payload != NULL && !pn_py_text_of(payload, &data))
        return 0;
    int here = begin(n, channel, &c);
    if (here != 1)
        return here;
    *rc = notify_core(&c, &data);
    here = is_done(&c, *rc);
    pn_py_within_end(&c.in);
    return here;
}

/* The same with headers, of which encode_headers() has made bytes. */
static int sent_with(struct notifier *n, PyObject *channel, PyObject *payload, PyObject *headers,
                     int *rc)
{
    struct call c;
    struct pn_py_text data = {"", 0};
    uint64_t queued;
    if ((payload != NULL && !pn_py_text_of(payload, &data)) || (uint64_t) data.len > UINT32_MAX ||
        (uint64_t) PyBytes_Size(headers) > UINT32_MAX)
        return 0;
    int here = begin(n, channel, &c);
    if (here != 1)
        return here;
    const uint32_t len = (uint32_t) data.len;
    const pn_notify_in in = {.channel = c.name.at,
                             .channel_len = (size_t) c.name.len,
                             .payloads = data.at,
                             .lens = &len,
                             .n = 1,
                             .headers = PyBytes_AsString(headers),
                             .headers_len = (uint32_t) PyBytes_Size(headers)};
    int before = pn_set_never_wait(1);
    *rc = pn_notify_headers(c.port->conn, c.in.core, &in, &queued);
    pn_set_never_wait(before);
    here = is_done(&c, *rc);
    pn_py_within_end(&c.in);
    return here;
}

/* The result of the core: nothing, or its error, or its notices logged.  0 or -1. */
static int went(struct notifier *n, int rc)
{
    if (rc == 0)
        return 0;
    PyObject *handle = Py_NewRef(n->handle);
    PyObject *checked = PyObject_CallMethod(handle, "check", "i", rc);
    Py_DECREF(handle);
    Py_XDECREF(checked);
    return checked == NULL ? -1 : 0;
}

static PyObject *finish_one(PyObject *self, int rc)
{
    if (went((struct notifier *) self, rc) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *send_one(PyObject *self, PyObject *channel, PyObject *payload)
{
    int rc = 0;
    int here = sent((struct notifier *) self, channel, payload, &rc);
    if (here != 0)
        return here < 0 ? NULL : finish_one(self, rc);
    return payload == NULL ? PyObject_CallMethod(self, "_notify", "O", channel)
                           : PyObject_CallMethod(self, "_notify", "OO", channel, payload);
}

static PyObject *send_with(PyObject *self, PyObject *channel, PyObject *payload, PyObject *headers)
{
    int rc = 0;
    PyObject *encode = pn_py_import("pynotify._encoding", "encode_headers");
    PyObject *encoded = encode == NULL ? NULL : PyObject_CallFunctionObjArgs(encode, headers, NULL);
    Py_XDECREF(encode);
    if (encoded == NULL && !PyErr_ExceptionMatches(PyExc_TypeError))
        return NULL;
    PyErr_Clear(); /* a TypeError comes again, unless there is another error before it */
    bool none = encoded != NULL && PyBytes_Size(encoded) == 0;
    int here = 0;
    if (encoded != NULL && !none)
        here = sent_with((struct notifier *) self, channel, payload, encoded, &rc);
    Py_XDECREF(encoded);
    if (none)
        return send_one(self, channel, payload);
    if (here != 0)
        return here < 0 ? NULL : finish_one(self, rc);
    return payload == NULL ? PyObject_CallMethod(self, "_notify", "OsO", channel, "", headers)
                           : PyObject_CallMethod(self, "_notify", "OOO", channel, payload, headers);
}

static PyObject *notify(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
    static char *known[] = {"channel", "payload", "headers", NULL};
    PyObject *channel = n > 0 ? args[0] : NULL, *payload = n > 1 ? args[1] : NULL, *headers = NULL;
    if ((n < 1 || n > 2 || names != NULL) &&
        pn_py_parse(args, n, names, "O|O$O:notify", known, &channel, &payload, &headers) < 0)
        return NULL;
    return headers == NULL || headers == Py_None ? send_one(self, channel, payload)
                                                 : send_with(self, channel, payload, headers);
}

/* ---- notify_many() --------------------------------------------------------------------------- */

/* So many bytes, each payload counted as 64 more, are sent with the GIL held: up to 50 us. */
#define HELD_BYTES ((size_t) 1 << 17)

static int many_core(const struct call *c, pn_conn *conn, const struct pn_py_joined *joined,
                     int dedup, uint64_t *queued)
{
    return pn_notify_many(conn, c->in.core, c->name.at, (size_t) c->name.len, joined->bytes,
                          joined->lens, joined->n, dedup, queued);
}

/* What pn_notify_many() returned, made without the GIL where it takes long or has to wait. */
static int send_joined(const struct call *c, const struct pn_py_joined *joined, int dedup,
                       uint64_t *queued)
{
    PyObject *native = Py_XNewRef(c->port->native); /* another thread may close it meanwhile */
    pn_conn *conn = c->port->conn;
    int rc = -PN_ELOCKBUSY, before = pn_set_never_wait(1);
    if (joined->size + 64 * joined->n <= HELD_BYTES)
        rc = many_core(c, conn, joined, dedup, queued);
    pn_set_never_wait(before);
    if (has_to_wait(rc)) {
        Py_BEGIN_ALLOW_THREADS;
        rc = many_core(c, conn, joined, dedup, queued);
        Py_END_ALLOW_THREADS;
    }
    Py_XDECREF(native);
    return rc;
}

/* 1: sent; 0: not here; -1 with an exception. */
static int send_many(struct notifier *n, PyObject *channel, PyObject *payloads, int dedup,
                     uint64_t *queued)
{
    struct call c;
    struct pn_py_joined joined;
    int made = pn_py_join(payloads, &joined);
    if (made != 1)
        return made;
    int rc = 0, here = begin(n, channel, &c);
    if (here == 1) {
        rc = send_joined(&c, &joined, dedup, queued);
        here = is_done(&c, rc);
        pn_py_within_end(&c.in);
    }
    pn_py_join_free(&joined);
    return here != 1 || went(n, rc) == 0 ? here : -1;
}

static PyObject *notify_many(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *known[] = {"channel", "payloads", "dedup", "headers", NULL};
    PyObject *channel, *payloads, *dedup = Py_True, *headers = Py_None;
    uint64_t queued = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|$OO:notify_many", known, &channel, &payloads,
                                     &dedup, &headers))
        return NULL;
    int done = 0;
    if (headers == Py_None && (dedup == Py_True || dedup == Py_False))
        done = send_many((struct notifier *) self, channel, payloads, dedup == Py_True, &queued);
    if (done < 0)
        return NULL;
    if (done > 0)
        return PyLong_FromUnsignedLongLong(queued);
    return PyObject_CallMethod(self, "_notify_many", "OOOO", channel, payloads, dedup, headers);
}

/* ---- the type -------------------------------------------------------------------------------- */

static PyMemberDef members[] = {
    {"_handle", T_OBJECT_EX, offsetof(struct notifier, handle), 0, NULL},
    {"_transactions", T_OBJECT_EX, offsetof(struct notifier, transactions), 0, NULL},
    {"_owner", T_OBJECT_EX, offsetof(struct notifier, owner), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static const char notify_doc[] =
    "notify($self, /, channel, payload='', *, headers=None)\n--\n\n"
    "Send a notification; outside a transaction it is committed at once.\n\n"
    "`channel`: 1 to 63 bytes of UTF-8 without NUL, else `InvalidChannelName`.  `payload`:\n"
    "str (sent as UTF-8) or bytes-like, at most 7999 bytes, else `PayloadTooLong`; both\n"
    "limits are options of the segment.  `headers`: str to str, which go along beside the\n"
    "payload (`Notify.headers`).  Raises `QueueFull`, at commit inside a transaction.";

static const char notify_many_doc[] =
    "notify_many($self, /, channel, payloads, *, dedup=True, headers=None)\n--\n\n"
    "Send any number of notifications on one channel, all or none.\n\n"
    "Outside a transaction they are one of their own.  `dedup=False` keeps duplicates among\n"
    "them; each has the `headers`.  Returns how many are left after collapsing, heard or not.\n"
    "Errors as `notify`.";

static PyMethodDef methods[] = {
    {"notify_many", (PyCFunction) (void (*)(void)) notify_many, METH_VARARGS | METH_KEYWORDS,
     notify_many_doc},
    {"notify", (PyCFunction) (void (*)(void)) notify, METH_FASTCALL | METH_KEYWORDS, notify_doc},
    {NULL, NULL, 0, NULL},
};

int pn_py_add_sender(PyObject *module)
{
    static const struct pn_py_owner owner = {
        .name = "pynotify._hot.Notifier",
        .doc = "What a connection sends.",
        .size = sizeof(struct notifier),
        .first = offsetof(struct notifier, handle),
        .refs = 3,
        .members = members,
        .methods = methods,
    };
    return pn_py_add_owner(module, &owner) == NULL ? -1 : 0;
}
