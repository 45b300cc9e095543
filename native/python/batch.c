/*
 * batch.c - Batch, which reads for one connection, and what makes messages of columns.
 *
 * 1. A read fills the pn_batch, learns the names of channels that it did not know, and makes a
 *    list.  `pending` is set from before the call of the core until the caller has stored the list
 *    and clears it: an exception in between (no memory, or a signal handler's after our return)
 *    loses nothing, since the next read makes its list of what the batch still holds.
 * 2. Only making a Gap, and an error, runs Python code, so only then can a signal handler of Python
 *    come in between.  `busy` says so; the caller refuses to read from such a handler.
 * 3. The caller holds the lock of the connection's receiver: one thread reads at a time.
 */
#include "hot.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct batch {
    PyObject head;
    pn_batch *core;
    PyObject *channels; /* list of str, by number of the connection; "" for those not known */
    PyObject *gap;      /* make_gap(missed_bytes, reason, channel or None) */
    char pending, busy;
};

/* The columns of n messages; seen as bytes they need not be aligned. */
struct columns {
    const char *seq, *sent_ns, *pid, *sender, *channel, *offset, *data;
    size_t n;
};

#define FETCH(column, i, to) memcpy(&(to), (column) + (i) * sizeof(to), sizeof(to))

static struct batch *self_of(PyObject *self)
{
    return (struct batch *) self;
}

static PyObject *failed(int64_t rc)
{
    PyObject *make = pn_py_import("pynotify.errors", "native_error");
    if (make == NULL)
        return NULL;
    PyObject *error = PyObject_CallFunction(make, "i", (int) rc);
    Py_DECREF(make);
    if (error != NULL)
        PyErr_SetObject((PyObject *) Py_TYPE(error), error);
    Py_XDECREF(error);
    return NULL;
}

/* ---- from columns to messages ---------------------------------------------------------------- */

/* Payload number i; a new reference. */
static PyObject *payload_at(const struct columns *c, size_t i)
{
    uint64_t begin, end;
    FETCH(c->offset, i, begin);
    FETCH(c->offset, i + 1, end);
    return PyBytes_FromStringAndSize(c->data + begin, (Py_ssize_t) (end - begin));
}

/* Message number i; a new reference. */
static PyObject *message_at(const struct columns *c, PyObject *channels, size_t i)
{
    uint32_t number;
    uint64_t seq, sender;
    int64_t sent_ns;
    int32_t pid;
    FETCH(c->channel, i, number);
    FETCH(c->seq, i, seq);
    FETCH(c->sender, i, sender);
    FETCH(c->sent_ns, i, sent_ns);
    FETCH(c->pid, i, pid);
    PyObject *channel = PyList_GetItem(channels, (Py_ssize_t) number); /* borrowed */
    if (channel == NULL)
        return NULL;
    PyObject *data = payload_at(c, i);
    if (data == NULL)
        return NULL;
    const struct pn_py_origin origin = {
        .seq = seq, .sender = sender, .index = i, .sent_ns = sent_ns, .pid = pid};
    return pn_py_notify_new(channel, data, &origin);
}

/* A list of `make` of each of them. */
static PyObject *list_of(const struct columns *c, PyObject *channels)
{
    PyObject *list = PyList_New((Py_ssize_t) c->n);
    for (size_t i = 0; list != NULL && i < c->n; i++) {
        PyObject *item = channels == NULL ? payload_at(c, i) : message_at(c, channels, i);
        if (item == NULL || PyList_SetItem(list, (Py_ssize_t) i, item) < 0)
            Py_CLEAR(list);
    }
    return list;
}

/* ---- reading --------------------------------------------------------------------------------- */

static int64_t poll_core(struct batch *b, struct pn_py_port *port, unsigned long long limit)
{
    PyObject *native = Py_XNewRef(port->native); /* another thread may close it meanwhile */
    pn_conn *conn = port->conn;
    int before = pn_set_never_wait(1);
    int64_t count = pn_poll(conn, b->core, limit);
    pn_set_never_wait(before);
    if (count == -PN_ELOCKBUSY) {
        Py_BEGIN_ALLOW_THREADS;
        count = pn_poll(conn, b->core, limit);
        Py_END_ALLOW_THREADS;
    }
    Py_XDECREF(native);
    return count;
}

/* The name of channel `number`; "" when it has none, which an unusable connection explains. */
static PyObject *name_of(struct pn_py_port *port, uint32_t number)
{
    PyObject *native = Py_XNewRef(port->native); /* the name is the connection's */
    pn_conn *conn = port->conn;
    size_t len = 0;
    const char *name;
    Py_BEGIN_ALLOW_THREADS;
    name = pn_conn_channel(conn, number, &len);
    Py_END_ALLOW_THREADS;
    PyObject *text =
        PyUnicode_DecodeUTF8(name == NULL ? "" : name, (Py_ssize_t) len, "backslashreplace");
    Py_XDECREF(native);
    if (text != NULL && len == 0) {
        PyObject *usable = PyObject_CallMethod((PyObject *) port, "check_usable", NULL);
        if (usable == NULL)
            Py_CLEAR(text);
        Py_XDECREF(usable);
    }
    return text;
}

/* Learn what the batch brought for the first time; may be repeated.  0 or -1. */
static int learn(struct batch *b, struct pn_py_port *port)
{
    for (size_t i = 0; i < b->core->nrenamed; i++) {
        Py_ssize_t number = (Py_ssize_t) b->core->renamed[i];
        PyObject *text = name_of(port, b->core->renamed[i]);
        if (text == NULL)
            return -1;
        while (PyList_Size(b->channels) <= number)
            if (PyList_Append(b->channels, text) < 0) {
                Py_DECREF(text);
                return -1;
            }
        if (PyList_SetItem(b->channels, number, text) < 0)
            return -1;
    }
    return 0;
}

static struct columns columns_of(const pn_batch *core)
{
    return (struct columns) {.seq = (const char *) core->seq,
                             .sent_ns = (const char *) core->sent_ns,
                             .pid = (const char *) core->pid,
                             .sender = (const char *) core->sender,
                             .channel = (const char *) core->channel,
                             .offset = (const char *) core->offset,
                             .data = (const char *) core->data,
                             .n = core->n};
}

static PyObject *gap_of(struct batch *b, const pn_gap *row)
{
    PyObject *channel = Py_None; /* borrowed */
    if (row->channel >= 0 && (channel = PyList_GetItem(b->channels, row->channel)) == NULL)
        return NULL;
    return PyObject_CallFunction(b->gap, "KIO", (unsigned long long) row->missed_bytes,
                                 (unsigned) row->reason, channel);
}

/* Between two gaps in several channels that say the same nothing was delivered: one is enough. */
static bool repeats(const pn_gap *row, const pn_gap *before)
{
    return row->reason == PN_GAP_UPSTREAM && before->reason == row->reason &&
           before->missed_bytes == row->missed_bytes && before->before == row->before;
}

/* Messages, and gaps in their places.  With `once` not the gaps that repeat another. */
static PyObject *list_with_gaps(struct batch *b, bool once)
{
    const pn_batch *core = b->core;
    const struct columns c = columns_of(core);
    PyObject *list = PyList_New(0);
    size_t at = 0;
    for (size_t i = 0; list != NULL && i < core->n + core->ngaps; i++) {
        bool is_gap = at < core->ngaps && core->gap[at].before <= i - at;
        const pn_gap *row = is_gap ? &core->gap[at++] : NULL;
        if (is_gap && once && at > 1 && repeats(row, row - 1))
            continue;
        PyObject *item = is_gap ? gap_of(b, row) : message_at(&c, b->channels, i - at);
        if (item == NULL || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

static PyObject *make_list(struct batch *b, bool once)
{
    if (b->core->ngaps == 0) {
        const struct columns c = columns_of(b->core);
        return list_of(&c, b->channels);
    }
    b->busy = 1;
    PyObject *list = list_with_gaps(b, once);
    b->busy = 0;
    return list;
}

/* Fill the batch, unless it still holds what was not stored.  0 or -1. */
static int fill(struct batch *b, PyObject *handle, unsigned long long limit,
                unsigned long long max_bytes)
{
    struct pn_py_port *port = pn_py_port_of(handle);
    if (port == NULL)
        return -1;
    if (!b->pending || (b->core->n == 0 && b->core->ngaps == 0)) {
        b->core->n = b->core->ngaps = 0; /* what it held has been returned */
        b->core->max_data = max_bytes;
        b->pending = 1;
        int64_t count = poll_core(b, port, limit);
        if (count < 0) {
            b->pending = 0;
            failed(count);
            return -1;
        }
    }
    return b->core->nrenamed == 0 ? 0 : learn(b, port);
}

static PyObject *read_messages(PyObject *self, PyObject *args)
{
    PyObject *handle;
    unsigned long long limit, max_bytes;
    if (!PyArg_ParseTuple(args, "OKK:read", &handle, &limit, &max_bytes) ||
        fill(self_of(self), handle, limit, max_bytes) < 0)
        return NULL;
    return make_list(self_of(self), true);
}

/* [(message, routes), ...]; a new reference. */
static PyObject *with_routes(const pn_batch *core, PyObject *messages)
{
    PyObject *list = PyList_New((Py_ssize_t) (core->n + core->ngaps));
    size_t at = 0;
    for (size_t i = 0; list != NULL && i < core->n + core->ngaps; i++) {
        bool is_gap = at < core->ngaps && core->gap[at].before <= i - at;
        unsigned routes = is_gap ? core->gap[at++].routes : core->routes[i - at];
        PyObject *pair = Py_BuildValue("(OI)", PyList_GetItem(messages, (Py_ssize_t) i), routes);
        if (pair == NULL || PyList_SetItem(list, (Py_ssize_t) i, pair) < 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *read_routed(PyObject *self, PyObject *args)
{
    struct batch *b = self_of(self);
    PyObject *handle, *sink;
    unsigned long long limit, max_bytes;
    if (!PyArg_ParseTuple(args, "OKKO:read_routed", &handle, &limit, &max_bytes, &sink) ||
        fill(b, handle, limit, max_bytes) < 0)
        return NULL;
    PyObject *messages = make_list(b, false);
    PyObject *pairs = messages == NULL ? NULL : with_routes(b->core, messages);
    PyObject *done = pairs == NULL ? NULL : PyObject_CallMethod(sink, "extend", "O", pairs);
    if (done == NULL)
        Py_CLEAR(messages);
    else
        b->pending = 0; /* in one step with the call before, which runs no Python code */
    Py_XDECREF(pairs);
    Py_XDECREF(done);
    return messages;
}

static PyObject *bytes_of(const void *column, size_t size)
{
    return PyBytes_FromStringAndSize(size == 0 ? "" : column, (Py_ssize_t) size);
}

static PyObject *read_columns(PyObject *self, PyObject *args)
{
    struct batch *b = self_of(self);
    PyObject *handle;
    unsigned long long limit;
    if (!PyArg_ParseTuple(args, "OK:read_columns", &handle, &limit) ||
        fill(b, handle, limit, 0) < 0)
        return NULL;
    const pn_batch *core = b->core;
    if (core->ngaps > 0 || core->n == 0)
        Py_RETURN_NONE;
    uint32_t last = 0;
    for (size_t i = 0; i < core->n; i++)
        last = core->channel[i] > last ? core->channel[i] : last;
    return Py_BuildValue("(NNNNNNNN)", bytes_of(core->seq, 8 * core->n),
                         bytes_of(core->sent_ns, 8 * core->n), bytes_of(core->pid, 4 * core->n),
                         bytes_of(core->sender, 8 * core->n), bytes_of(core->channel, 4 * core->n),
                         bytes_of(core->offset, 8 * (core->n + 1)),
                         bytes_of(core->data, core->offset[core->n]),
                         PyList_GetSlice(b->channels, 0, (Py_ssize_t) last + 1));
}

/* ---- the type -------------------------------------------------------------------------------- */

static PyObject *construct(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *gap;
    (void) kwargs;
    if (!PyArg_ParseTuple(args, "O:Batch", &gap))
        return NULL;
    PyObject *self = ((allocfunc) PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL)
        return NULL;
    self_of(self)->gap = Py_NewRef(gap);
    self_of(self)->channels = PyList_New(0);
    self_of(self)->core = pn_batch_new();
    if (self_of(self)->core == NULL)
        PyErr_SetString(PyExc_MemoryError, "no memory for receiving");
    if (self_of(self)->channels == NULL || self_of(self)->core == NULL)
        Py_CLEAR(self);
    return self;
}

static int traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self_of(self)->channels);
    Py_VISIT(self_of(self)->gap);
    return 0;
}

/* Without a tp_clear: a list of str and a function of a module close no cycle. */
static void destroy(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self_of(self)->channels);
    Py_XDECREF(self_of(self)->gap);
    pn_batch_free(self_of(self)->core);
    ((freefunc) PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMemberDef members[] = {
    {"channels", T_OBJECT_EX, offsetof(struct batch, channels), READONLY,
     "Names by number of the connection."},
    {"pending", T_BOOL, offsetof(struct batch, pending), 0,
     "What was read last has not been stored yet."},
    {"busy", T_BOOL, offsetof(struct batch, busy), 0, "It is being read, and must not be again."},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef methods[] = {
    {"read", read_messages, METH_VARARGS, "read(handle, limit, max_bytes): messages and gaps."},
    {"read_routed", read_routed, METH_VARARGS,
     "read_routed(handle, limit, max_bytes, sink): the same, in the sink with their routes."},
    {"read_columns", read_columns, METH_VARARGS,
     "read_columns(handle, limit): the columns, or None where there are gaps, or nothing."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *) "Batch(make_gap): reads for one connection, whose lock the caller holds."},
    {Py_tp_new, construct},
    {Py_tp_dealloc, destroy},
    {Py_tp_traverse, traverse},
    {Py_tp_members, members},
    {Py_tp_methods, methods},
    {0, NULL},
};

/* ---- functions ------------------------------------------------------------------------------- */

static PyObject *split(PyObject *module, PyObject *args)
{
    const char *offsets, *data;
    Py_ssize_t size, data_size;
    (void) module;
    if (!PyArg_ParseTuple(args, "y#y#:split", &data, &data_size, &offsets, &size))
        return NULL;
    const struct columns c = {.offset = offsets, .data = data, .n = (size_t) size / 8 - 1};
    return list_of(&c, NULL);
}

static PyObject *messages(PyObject *module, PyObject *args)
{
    struct columns c;
    PyObject *channels;
    Py_ssize_t size[7];
    (void) module;
    if (!PyArg_ParseTuple(args, "y#y#y#y#y#y#y#O!:messages", &c.seq, &size[0], &c.sent_ns, &size[1],
                          &c.pid, &size[2], &c.sender, &size[3], &c.channel, &size[4], &c.offset,
                          &size[5], &c.data, &size[6], &PyList_Type, &channels))
        return NULL;
    c.n = (size_t) size[5] / 8 - 1;
    return list_of(&c, channels);
}

static PyMethodDef functions[] = {
    {"split", split, METH_VARARGS, "split(blob, offsets): the pieces between the offsets (u64)."},
    {"messages", messages, METH_VARARGS,
     "messages(seq, sent_ns, pid, sender, channel_index, offsets, blob, channels): [Notify]."},
    {NULL, NULL, 0, NULL},
};

int pn_py_add_batch(PyObject *module)
{
    static PyType_Spec spec = {
        .name = "pynotify._hot.Batch",
        .basicsize = sizeof(struct batch),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
        .slots = slots,
    };
    PyObject *type = PyType_FromSpec(&spec);
    if (type == NULL)
        return -1;
    int rc = PyModule_AddObjectRef(module, "Batch", type);
    Py_DECREF(type);
    return rc < 0 ? rc : PyModule_AddFunctions(module, functions);
}
