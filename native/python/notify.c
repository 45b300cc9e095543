/*
 * notify.c - Notify, a notification as Python sees it.
 *
 * It compares, hashes, orders and unpacks as the tuple (channel, payload, pid); where the payload
 * is not UTF-8, data takes its place in comparisons.
 *
 * One that came by a pattern, or has headers, has these and the payload's text in an object of
 * their own: a pointer more would be a sixth more memory for all, which costs poll() a tenth.
 * The garbage collector knows neither type, so that none of it runs when they are made (batch.c 3);
 * for that headers stay bytes, of which each look makes a dict.
 */
#include "hot.h"

#include <stddef.h>

static PyTypeObject *notify_type, *extra_type;

/* In the place of Notify's payload. */
struct extra {
    PyObject head;
    PyObject *pattern; /* str; or NULL */
    PyObject *headers; /* bytes; or NULL */
    PyObject *payload; /* str, once it was asked for */
};

static struct pn_py_notify *self_of(PyObject *self)
{
    return (struct pn_py_notify *) self;
}

PyObject *pn_py_notify_new(PyObject *channel, PyObject *pattern, PyObject *data, PyObject *headers,
                           const struct pn_py_origin *origin)
{
    struct extra *more = NULL;
    if (__builtin_expect(pattern != NULL || headers != NULL, 0)) {
        more = PyObject_New(struct extra, extra_type);
        if (more == NULL) {
            Py_XDECREF(headers);
            Py_DECREF(data);
            return NULL;
        }
        more->pattern = Py_XNewRef(pattern);
        more->headers = headers;
        more->payload = NULL;
    }
    struct pn_py_notify *n = PyObject_New(struct pn_py_notify, notify_type);
    if (n == NULL) {
        Py_XDECREF((PyObject *) more);
        Py_DECREF(data);
        return NULL;
    }
    Py_INCREF(channel);
    n->channel = channel;
    n->data = data;
    n->payload = (PyObject *) more;
    n->seq = origin->seq;
    n->sender = origin->sender;
    n->index = origin->index;
    n->sent_ns = origin->sent_ns;
    n->pid = origin->pid;
    return (PyObject *) n;
}

bool pn_py_is_notify(PyObject *object)
{
    return Py_IS_TYPE(object, notify_type);
}

static void destroy(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_DECREF(self_of(self)->channel);
    Py_DECREF(self_of(self)->data);
    Py_XDECREF(self_of(self)->payload);
    PyObject_Free(self);
    Py_DECREF(type);
}

static void destroy_extra(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(((struct extra *) self)->pattern);
    Py_XDECREF(((struct extra *) self)->headers);
    Py_XDECREF(((struct extra *) self)->payload);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* NULL: it came by its channel, and has no headers. */
static struct extra *extra_of(const struct pn_py_notify *n)
{
    bool is = n->payload != NULL && Py_IS_TYPE(n->payload, extra_type);
    return is ? (struct extra *) n->payload : NULL;
}

/* A str or bytes-like object as bytes; a new reference. */
static PyObject *bytes_of(PyObject *data)
{
    if (PyUnicode_Check(data))
        return PyUnicode_AsUTF8String(data);
    if (PyObject_CheckBuffer(data))
        return PyBytes_FromObject(data);
    PyErr_SetString(PyExc_TypeError, "payload must be str or bytes-like");
    return NULL;
}

/* A mapping as bytes, which pass as they are; empty for None.  A new reference. */
static PyObject *headers_of(PyObject *headers)
{
    if (headers == Py_None)
        return PyBytes_FromStringAndSize(NULL, 0);
    if (PyBytes_CheckExact(headers))
        return Py_NewRef(headers);
    PyObject *encode = pn_py_import("pynotify._encoding", "encode_headers");
    PyObject *bytes = encode == NULL ? NULL : PyObject_CallFunctionObjArgs(encode, headers, NULL);
    Py_XDECREF(encode);
    return bytes;
}

/* A converter: the format for such a number takes any modulo 2^64. */
static int whole(PyObject *object, void *number)
{
    unsigned long long value = PyLong_AsUnsignedLongLong(object);
    *(unsigned long long *) number = value;
    return value != (unsigned long long) -1 || PyErr_Occurred() == NULL;
}

static PyObject *construct(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"channel", "payload", "pid",     "seq",     "sent_ns",
                            "sender",  "index",   "pattern", "headers", NULL};
    PyObject *channel, *payload, *pattern = Py_None, *headers = Py_None;
    struct pn_py_origin origin = {0};
    (void) type;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "UO|iO&LO&O&OO:Notify", names, &channel,
                                     &payload, &origin.pid, whole, &origin.seq, &origin.sent_ns,
                                     whole, &origin.sender, whole, &origin.index, &pattern,
                                     &headers))
        return NULL;
    if (pattern != Py_None && !PyUnicode_Check(pattern)) {
        PyErr_SetString(PyExc_TypeError, "pattern must be str or None");
        return NULL;
    }
    PyObject *data = bytes_of(payload), *made = NULL;
    PyObject *encoded = data == NULL ? NULL : headers_of(headers);
    if (encoded == NULL) {
        Py_XDECREF(data);
        return NULL;
    }
    if (PyBytes_Size(encoded) == 0)
        Py_CLEAR(encoded);
    PyObject *plain = PyUnicode_FromObject(channel); /* an object of a subclass may be in a cycle */
    PyObject *plain_pattern = pattern == Py_None ? NULL : PyUnicode_FromObject(pattern);
    if (plain == NULL || (pattern != Py_None && plain_pattern == NULL)) {
        Py_DECREF(data);
        Py_XDECREF(encoded);
    } else {
        made = pn_py_notify_new(plain, plain_pattern, data, encoded, &origin);
    }
    Py_XDECREF(plain);
    Py_XDECREF(plain_pattern);
    return made;
}

/* ---- attributes ------------------------------------------------------------------------------ */

/* Borrowed; NULL with a UnicodeDecodeError. */
static PyObject *text_of(struct pn_py_notify *n)
{
    struct extra *more = extra_of(n);
    PyObject **text = more == NULL ? &n->payload : &more->payload;
    if (*text == NULL)
        *text = PyUnicode_DecodeUTF8(PyBytes_AsString(n->data), PyBytes_Size(n->data), NULL);
    return *text;
}

static PyObject *get_pattern(PyObject *self, void *unused)
{
    const struct extra *more = extra_of(self_of(self));
    (void) unused;
    return Py_NewRef(more == NULL || more->pattern == NULL ? Py_None : more->pattern);
}

static PyObject *get_headers(PyObject *self, void *unused)
{
    const struct extra *more = extra_of(self_of(self));
    (void) unused;
    if (more == NULL || more->headers == NULL)
        return PyDict_New();
    PyObject *decode = pn_py_import("pynotify._encoding", "decode_headers");
    PyObject *found =
        decode == NULL ? NULL : PyObject_CallFunctionObjArgs(decode, more->headers, NULL);
    Py_XDECREF(decode);
    return found;
}

/* As they were sent: for what makes columns of messages. */
static PyObject *get_raw_headers(PyObject *self, void *unused)
{
    const struct extra *more = extra_of(self_of(self));
    (void) unused;
    return more == NULL || more->headers == NULL ? PyBytes_FromStringAndSize(NULL, 0)
                                                 : Py_NewRef(more->headers);
}

static PyObject *get_payload(PyObject *self, void *unused)
{
    PyObject *text = text_of(self_of(self));
    (void) unused;
    if (text != NULL) {
        Py_INCREF(text);
        return text;
    }
    if (!PyErr_ExceptionMatches(PyExc_UnicodeDecodeError))
        return NULL;
    PyErr_Clear();
    PyObject *decode = pn_py_import("pynotify._encoding", "decode_payload"); /* raises ours */
    if (decode == NULL)
        return NULL;
    text = PyObject_CallFunctionObjArgs(decode, self_of(self)->data, NULL);
    Py_DECREF(decode);
    return text;
}

static PyObject *get_backend_id(PyObject *self, void *unused)
{
    (void) unused;
    return PyLong_FromUnsignedLong((unsigned long) (self_of(self)->sender & 0xFFFFFFFF));
}

static PyObject *get_order(PyObject *self, void *unused)
{
    (void) unused;
    return Py_BuildValue("(KK)", self_of(self)->seq, self_of(self)->index);
}

/* What it compares as with tuples, and hashes as; a new reference. */
static PyObject *key_of(PyObject *self)
{
    PyObject *payload = text_of(self_of(self));
    if (payload == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_UnicodeDecodeError))
            return NULL;
        PyErr_Clear();
        payload = self_of(self)->data;
    }
    return Py_BuildValue("(OOi)", self_of(self)->channel, payload, self_of(self)->pid);
}

/* What it compares as with another: UTF-8 sorts as its characters do.  A new reference. */
static PyObject *bytes_key_of(PyObject *self)
{
    return Py_BuildValue("(OOi)", self_of(self)->channel, self_of(self)->data, self_of(self)->pid);
}

/* Would bytes be compared with a str?  They differ, and `python -b` would warn. */
static bool differ_in_type(PyObject *mine, PyObject *theirs)
{
    return PyTuple_Size(theirs) == 3 && PyBytes_Check(PyTuple_GetItem(mine, 1)) &&
           PyUnicode_Check(PyTuple_GetItem(theirs, 1));
}

/* What it unpacks to; a new reference. */
static PyObject *fields_of(PyObject *self)
{
    PyObject *payload = get_payload(self, NULL);
    if (payload == NULL)
        return NULL;
    return Py_BuildValue("(ONi)", self_of(self)->channel, payload, self_of(self)->pid);
}

/* ---- as a tuple and a value ------------------------------------------------------------------ */

static PyObject *iterate(PyObject *self)
{
    PyObject *fields = fields_of(self);
    if (fields == NULL)
        return NULL;
    PyObject *iterator = PyObject_GetIter(fields);
    Py_DECREF(fields);
    return iterator;
}

static Py_ssize_t length(PyObject *self)
{
    (void) self;
    return 3;
}

static PyObject *item(PyObject *self, PyObject *index)
{
    PyObject *fields = fields_of(self);
    if (fields == NULL)
        return NULL;
    PyObject *found = PyObject_GetItem(fields, index);
    Py_DECREF(fields);
    return found;
}

static PyObject *compare(PyObject *self, PyObject *other, int op)
{
    bool is_ours = Py_IS_TYPE(other, notify_type);
    if (!is_ours && !PyTuple_Check(other))
        Py_RETURN_NOTIMPLEMENTED;
    PyObject *mine = is_ours ? bytes_key_of(self) : key_of(self);
    PyObject *theirs = is_ours ? bytes_key_of(other) : Py_NewRef(other);
    PyObject *result = NULL;
    if (mine != NULL && theirs != NULL) {
        if ((op == Py_EQ || op == Py_NE) && differ_in_type(mine, theirs))
            result = PyBool_FromLong(op == Py_NE);
        else
            result = PyObject_RichCompare(mine, theirs, op);
    }
    Py_XDECREF(mine);
    Py_XDECREF(theirs);
    return result;
}

static Py_hash_t hash(PyObject *self)
{
    PyObject *key = key_of(self);
    if (key == NULL)
        return -1;
    Py_hash_t value = PyObject_Hash(key);
    Py_DECREF(key);
    return value;
}

static PyObject *represent(PyObject *self)
{
    PyObject *key = key_of(self);
    if (key == NULL)
        return NULL;
    PyObject *text =
        PyUnicode_FromFormat("Notify(channel=%R, payload=%R, pid=%d)", PyTuple_GetItem(key, 0),
                             PyTuple_GetItem(key, 1), self_of(self)->pid);
    Py_DECREF(key);
    return text;
}

static PyObject *reduce(PyObject *self, PyObject *unused)
{
    const struct pn_py_notify *n = self_of(self);
    const struct extra *more = extra_of(n);
    PyObject *pattern = more == NULL || more->pattern == NULL ? Py_None : more->pattern;
    PyObject *headers = more == NULL || more->headers == NULL ? Py_None : more->headers;
    (void) unused;
    return Py_BuildValue("O(OOiKLKKOO)", notify_type, n->channel, n->data, n->pid, n->seq,
                         n->sent_ns, n->sender, n->index, pattern, headers);
}

/* ---- the type -------------------------------------------------------------------------------- */

#define AT(field) offsetof(struct pn_py_notify, field)

static PyMemberDef members[] = {
    {"channel", T_OBJECT_EX, AT(channel), READONLY, "The channel, str."},
    {"data", T_OBJECT_EX, AT(data), READONLY, "The payload as bytes."},
    {"pid", T_INT, AT(pid), READONLY, "The sender's process."},
    {"seq", T_ULONGLONG, AT(seq), READONLY, "Commit sequence number."},
    {"sent_ns", T_LONGLONG, AT(sent_ns), READONLY,
     "CLOCK_MONOTONIC at the sender's commit, nanoseconds."},
    {"sender", T_ULONGLONG, AT(sender), READONLY,
     "The sender's connection: its slot and which claim of it; never used again."},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef properties[] = {
    {"payload", get_payload, NULL,
     "The payload as text.\n\n"
     "Raises `PayloadDecodeError`, which is also a ValueError, when it is not UTF-8.",
     NULL},
    {"pattern", get_pattern, NULL, "The pattern by which it came; None: by its channel.", NULL},
    {"headers", get_headers, NULL,
     "The headers that it was sent with, str to str: a dict of the caller's own.", NULL},
    {"raw_headers", get_raw_headers, NULL, "The same as bytes, as they were sent; empty: none.",
     NULL},
    {"backend_id", get_backend_id, NULL, "The sender's backend slot.", NULL},
    {"order", get_order, NULL,
     "Sorts the messages that one connection has read in the order of their commits.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef methods[] = {
    {"__reduce__", reduce, METH_NOARGS, "How it is pickled."},
    {NULL, NULL, 0, NULL},
};

static const char notify_doc[] =
    "Notify(channel, payload, pid=0, seq=0, sent_ns=0, sender=0, index=0, pattern=None, "
    "headers=None)\n--\n\n"
    "One notification, as psycopg's `Notify`: unpacks and compares as (channel, payload, pid).\n\n"
    "* `channel`: str\n"
    "* `payload`: str; `data`: the same as bytes\n"
    "* `pid`, `backend_id`: the sender's process and backend slot\n"
    "* `seq`: commit sequence number, one per commit, common to all databases\n"
    "* `sent_ns`: CLOCK_MONOTONIC at the sender's commit, nanoseconds\n"
    "* `pattern`: the pattern by which it came; None: its channel is listened to itself\n"
    "* `headers`: what it was sent with beside the payload, str to str; `raw_headers`: as bytes\n"
    "\n"
    "Immutable; it hashes by its contents.";

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *) notify_doc},
    {Py_tp_new, construct},
    {Py_tp_dealloc, destroy},
    {Py_tp_members, members},
    {Py_tp_getset, properties},
    {Py_tp_methods, methods},
    {Py_tp_iter, iterate},
    {Py_tp_richcompare, compare},
    {Py_tp_hash, hash},
    {Py_tp_repr, represent},
    {Py_sq_length, length},
    {Py_mp_length, length},
    {Py_mp_subscript, item},
    {0, NULL},
};

static PyType_Slot extra_slots[] = {
    {Py_tp_dealloc, destroy_extra},
    {0, NULL},
};

int pn_py_add_notify(PyObject *module)
{
    static PyType_Spec extra_spec = {
        .name = "pynotify._hot.Extra",
        .basicsize = sizeof(struct extra),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
        .slots = extra_slots,
    };
    static PyType_Spec spec = {
        .name = "pynotify.Notify",
        .basicsize = sizeof(struct pn_py_notify),
        .flags = Py_TPFLAGS_DEFAULT,
        .slots = slots,
    };
    extra_type = (PyTypeObject *) PyType_FromSpec(&extra_spec); /* likewise */
    PyObject *type = extra_type == NULL ? NULL : PyType_FromSpec(&spec);
    if (type == NULL)
        return -1;
    PyObject *names = Py_BuildValue("(sss)", "channel", "payload", "pid");
    if (names == NULL || PyObject_SetAttrString(type, "__match_args__", names) < 0) {
        Py_XDECREF(names);
        Py_DECREF(type);
        return -1;
    }
    Py_DECREF(names);
    notify_type = (PyTypeObject *) type; /* as long as the process */
    return PyModule_AddObjectRef(module, "Notify", type);
}
