/*
 * batch.c - Batch, which reads for one connection.
 *
 * 1. A read fills the pn_batch, learns the names of channels that it did not know, and puts what
 *    came into a sink of the caller's.  `pending` is set from before the call of the core until
 *    that is done: an exception in between (no memory) loses nothing, since the next read goes on
 *    with what the batch still holds.  Of that, `skip` messages are in an earlier sink.
 * 2. The sink is the caller's before the call, so a signal handler of Python that raises, or reads
 *    itself, between our return and the next step of the caller finds every message in one place.
 * 3. Making a Gap, an error, and the garbage collector (up to 3.11, wherever an object is made that
 *    it knows) run Python code.  `busy` says so: to read from there is refused.  A list that gets
 *    messages alone is filled without: no other thread, nor a signal handler, comes in between.
 * 4. One thread reads at a time.  It holds the lock of the connection's receiver; or, pn_py_take(),
 *    the GIL, which it does not give up, and `pending` is not set, as it is in all other readers
 *    where they may give it up.  What it cannot do so it leaves pending, for its caller to go on
 *    with under the lock.
 */
#include "hot.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct batch {
    PyObject head;
    pn_batch *core;
    PyObject *channels; /* list of str, by number of the connection; "" for those not known.
                         * Patterns are among them */
    PyObject *gap;      /* make_gap(missed_bytes, reason, channel or None) */
    size_t skip;        /* of what is pending; 0 where there are gaps */
    uint64_t before;    /* messages of the reads before this one */
    uint64_t limit;     /* of the read, 0: none; core->max_data is the other */
    char pending, busy;
};

static PyTypeObject *batch_type;

bool pn_py_is_batch(PyObject *object)
{
    return Py_IS_TYPE(object, batch_type);
}

static struct batch *self_of(PyObject *self)
{
    return (struct batch *) self;
}

bool pn_py_is_pending(PyObject *batch)
{
    return self_of(batch)->pending;
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

/* ---- reading --------------------------------------------------------------------------------- */

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

struct pn_py_view pn_py_view_of(const pn_batch *core, size_t skip, uint64_t before)
{
    if (core->n == 0) /* there may be no columns */
        return (struct pn_py_view) {.before = before};
    return (struct pn_py_view) {
        .seq = (const char *) (core->seq + skip),
        .sent_ns = (const char *) (core->sent_ns + skip),
        .pid = (const char *) (core->pid + skip),
        .sender = (const char *) (core->sender + skip),
        .channel = (const char *) (core->channel + skip),
        .pattern = core->by_pattern == 0 ? NULL : (const char *) (core->pattern + skip),
        .headers_offset =
            core->with_headers == 0 ? NULL : (const char *) (core->headers_offset + skip),
        .headers = (const char *) core->headers,
        .offset = (const char *) (core->offset + skip),
        .data = (const char *) core->data,
        .n = core->n - skip,
        .before = before + skip};
}

/* What has not been put into a sink yet. */
static struct pn_py_view rest_of(const struct batch *b)
{
    return pn_py_view_of(b->core, b->skip, b->before);
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
    const struct pn_py_view c = rest_of(b);
    PyObject *list = PyList_New(0);
    size_t at = 0;
    for (size_t i = 0; list != NULL && i < core->n + core->ngaps; i++) {
        bool is_gap = at < core->ngaps && core->gap[at].before <= i - at;
        const pn_gap *row = is_gap ? &core->gap[at++] : NULL;
        if (is_gap && once && at > 1 && repeats(row, row - 1))
            continue;
        PyObject *item = is_gap ? gap_of(b, row) : pn_py_message_at(&c, b->channels, i - at);
        if (item == NULL || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

/* A list of what is pending; the caller has set `busy`. */
static PyObject *make_list(struct batch *b, bool once)
{
    if (b->core->ngaps != 0)
        return list_with_gaps(b, once);
    const struct pn_py_view c = rest_of(b);
    return pn_py_list_of(&c, b->channels);
}

/* What it held is in a sink. */
static void begin_read(struct batch *b, unsigned long long limit, unsigned long long max_bytes)
{
    b->before += b->core->n;
    b->core->n = b->core->ngaps = b->skip = 0;
    b->core->max_data = max_bytes;
    b->limit = limit;
}

/* What pn_poll() returned. */
static int64_t poll_core(struct batch *b, struct pn_py_port *port)
{
    int before = pn_set_never_wait(1);
    int64_t count = pn_poll(port->conn, b->core, b->limit);
    pn_set_never_wait(before);
    return count;
}

/* The same without the GIL; it may wait. */
static int64_t poll_waiting(struct batch *b, struct pn_py_port *port)
{
    PyObject *native = Py_XNewRef(port->native); /* another thread may close it meanwhile */
    pn_conn *conn = port->conn;
    int64_t count;
    Py_BEGIN_ALLOW_THREADS;
    count = pn_poll(conn, b->core, b->limit);
    Py_END_ALLOW_THREADS;
    Py_XDECREF(native);
    return count;
}

/* Whether it copies so much that other threads are to run meanwhile. */
static bool takes_long(const struct batch *b, const struct pn_py_port *port)
{
    return b->core->max_data == 0 && (b->limit == 0 || b->limit > PN_PY_AT_ONCE) &&
           pn_conn_unread(port->conn) > PN_PY_AT_ONCE_BYTES;
}

static bool holds_something(const pn_batch *core)
{
    return core->n != 0 || core->ngaps != 0 || core->nrenamed != 0;
}

/* Fill the batch, unless it still holds what is pending.  0 or -1. */
static int fill(struct batch *b, PyObject *handle, unsigned long long limit,
                unsigned long long max_bytes)
{
    struct pn_py_port *port = pn_py_port_of(handle);
    if (port == NULL)
        return -1;
    if (!b->pending || !holds_something(b->core)) {
        b->pending = 1;
        begin_read(b, limit, max_bytes);
        int64_t count = takes_long(b, port) ? -PN_ELOCKBUSY : poll_core(b, port);
        if (count == -PN_ELOCKBUSY)
            count = poll_waiting(b, port);
        if (count < 0) {
            b->pending = 0;
            failed(count);
            return -1;
        }
    }
    return b->core->nrenamed == 0 ? 0 : learn(b, port);
}

/* The first n of them, in a list; no Python code runs, as the collector might let it. */
static PyObject *list_of_first(const struct pn_py_view *v, PyObject *channels, size_t n)
{
    struct pn_py_view first = *v;
    first.n = n;
    int collects = PyGC_Disable();
    PyObject *list = pn_py_list_of(&first, channels);
    if (collects)
        PyGC_Enable();
    return list;
}

/* To so many a list may grow one by one: that costs less than another list. */
#define FEW 16

/* Append the first n messages of the columns; no Python code runs.  0 or -1. */
static int append_first(struct batch *b, PyObject *list, const struct pn_py_view *c, size_t n)
{
    if (n > FEW) {
        PyObject *made = list_of_first(c, b->channels, n);
        Py_ssize_t end = PyList_Size(list);
        int rc = made == NULL ? -1 : PyList_SetSlice(list, end, end, made);
        Py_XDECREF(made);
        b->skip += rc == 0 ? n : 0;
        return rc;
    }
    for (size_t i = 0; i < n; i++) {
        PyObject *message = pn_py_message_at(c, b->channels, i);
        if (message == NULL)
            return -1;
        int rc = PyList_Append(list, message);
        Py_DECREF(message);
        if (rc < 0)
            return -1;
        b->skip++;
    }
    return 0;
}

/* Append up to `limit` messages, 0: all, where there are no gaps.  0 or -1. */
static int append_messages(struct batch *b, PyObject *list, unsigned long long limit)
{
    const struct pn_py_view c = rest_of(b);
    size_t n = limit != 0 && limit < c.n ? (size_t) limit : c.n;
    if (append_first(b, list, &c, n) < 0)
        return -1;
    if (n == c.n)
        b->pending = 0;
    return 0;
}

/* Take out of the end of a deque what an extend() that failed has put there.  Frees no memory that
 * is not its own, and needs none. */
static void shorten(PyObject *sink, PyObject *pop, Py_ssize_t size)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    while (pop != NULL && PyObject_Size(sink) > size)
        Py_XDECREF(PyObject_CallNoArgs(pop)); /* the caller has it, too */
    PyErr_Restore(type, value, traceback);
}

/* Put everything, or nothing, into the sink by its extend(); no Python code runs.  0 or -1. */
static int extend(struct batch *b, PyObject *sink, PyObject *made)
{
    if (made == NULL)
        return -1;
    int collects = PyGC_Disable(); /* or others might take out of it meanwhile */
    Py_ssize_t size = PyObject_Size(sink);
    PyObject *pop = PyObject_GetAttrString(sink, "pop");
    PyObject *done = pop == NULL ? NULL : PyObject_CallMethod(sink, "extend", "O", made);
    if (done == NULL)
        shorten(sink, pop, size);
    else
        b->pending = 0;
    if (collects)
        PyGC_Enable();
    int rc = done == NULL ? -1 : 0;
    Py_XDECREF(pop);
    Py_XDECREF(done);
    return rc;
}

/* Whether the read stopped at one of its limits, so that there may be more. */
static bool is_full(const struct batch *b)
{
    const pn_batch *core = b->core;
    return core->n > 0 && ((b->limit != 0 && core->n >= b->limit) ||
                           (core->max_data != 0 && core->offset[core->n] >= core->max_data));
}

static PyObject *read_messages(PyObject *self, PyObject *args)
{
    struct batch *b = self_of(self);
    PyObject *handle, *sink;
    unsigned long long limit, max_bytes;
    if (!PyArg_ParseTuple(args, "OOKK:read", &handle, &sink, &limit, &max_bytes) ||
        fill(b, handle, limit, max_bytes) < 0)
        return NULL;
    int rc;
    if (b->core->ngaps == 0 && PyList_CheckExact(sink)) {
        rc = append_messages(b, sink, limit);
    } else {
        b->busy = 1;
        PyObject *made = make_list(b, true);
        rc = extend(b, sink, made);
        Py_XDECREF(made);
        b->busy = 0;
    }
    return rc < 0 ? NULL : PyBool_FromLong(b->pending || is_full(b));
}

/* Fill the batch without giving up the GIL.  1: it holds messages, or nothing; 0: to be gone on
 * with under the lock; or the core's error, without an exception. */
static int64_t read_alone(struct batch *b, struct pn_py_port *port, unsigned long long limit)
{
    if (b->pending)
        return 0;
    begin_read(b, limit, PN_PY_AT_ONCE_BYTES);
    int64_t count = poll_core(b, port);
    if (count < 0)
        return count == -PN_ELOCKBUSY ? 0 : count;
    b->pending = holds_something(b->core);
    return b->core->ngaps == 0 && b->core->nrenamed == 0;
}

int pn_py_take(PyObject *batch, struct pn_py_port *port, PyObject *list, unsigned long long limit)
{
    struct batch *b = self_of(batch);
    unsigned long long few = limit == 0 || limit > PN_PY_AT_ONCE ? PN_PY_AT_ONCE : limit;
    int64_t ready = read_alone(b, port, few);
    if (ready < 0) {
        failed(ready);
        return -1;
    }
    if (ready == 0 || b->core->n == 0)
        return (int) ready;
    if (append_messages(b, list, 0) < 0)
        return -1;
    return (limit != 0 && b->core->n >= limit) || !is_full(b);
}

int pn_py_take_ahead(PyObject *batch, struct pn_py_port *port, PyObject *deque,
                     unsigned long long limit)
{
    struct batch *b = self_of(batch);
    int64_t ready = read_alone(b, port, limit);
    if (ready <= 0) /* an error comes again there; here no Python code may run to make it */
        return 0;
    if (b->core->n == 0)
        return 1;
    const struct pn_py_view c = rest_of(b);
    int collects = PyGC_Disable(); /* what it runs might read, and get them as well */
    PyObject *made = pn_py_list_of(&c, b->channels);
    int rc = extend(b, deque, made);
    Py_XDECREF(made);
    if (collects)
        PyGC_Enable();
    return rc < 0 ? -1 : 1;
}

/* [(message, routes), ...]; a new reference. */
static PyObject *with_routes(const struct batch *b, PyObject *messages)
{
    const pn_batch *core = b->core;
    Py_ssize_t n = PyList_Size(messages);
    PyObject *list = PyList_New(n);
    size_t at = 0;
    for (Py_ssize_t i = 0; list != NULL && i < n; i++) {
        size_t number = b->skip + (size_t) i - at;
        bool is_gap = at < core->ngaps && core->gap[at].before <= number;
        unsigned routes = is_gap ? core->gap[at++].routes : core->routes[number];
        PyObject *pair = Py_BuildValue("(OI)", PyList_GetItem(messages, i), routes);
        if (pair == NULL || PyList_SetItem(list, i, pair) < 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *read_routed(PyObject *self, PyObject *args)
{
    struct batch *b = self_of(self);
    PyObject *handle, *sink;
    unsigned long long limit, max_bytes;
    if (!PyArg_ParseTuple(args, "OOKK:read_routed", &handle, &sink, &limit, &max_bytes) ||
        fill(b, handle, limit, max_bytes) < 0)
        return NULL;
    b->busy = 1;
    PyObject *messages = make_list(b, false);
    PyObject *pairs = messages == NULL ? NULL : with_routes(b, messages);
    if (extend(b, sink, pairs) < 0)
        Py_CLEAR(messages);
    Py_XDECREF(pairs);
    b->busy = 0;
    return messages;
}

static PyObject *read_columns(PyObject *self, PyObject *args)
{
    struct batch *b = self_of(self);
    PyObject *handle, *sink;
    unsigned long long limit;
    if (!PyArg_ParseTuple(args, "OO!K:read_columns", &handle, &PyList_Type, &sink, &limit) ||
        fill(b, handle, limit, 0) < 0)
        return NULL;
    if (b->core->ngaps == 0 && b->core->n == 0) {
        b->pending = 0;
        Py_RETURN_TRUE;
    }
    if (b->core->ngaps > 0 || b->skip > 0 || (limit != 0 && b->core->n > limit))
        Py_RETURN_FALSE;
    b->busy = 1;
    PyObject *room =
        PyList_Append(sink, Py_None) < 0 ? NULL : Py_None; /* what follows cannot fail */
    size_t n = b->core->n;
    PyObject *columns = room == NULL ? NULL : pn_py_columns_of(b->core, b->before, b->channels);
    b->busy = 0;
    if (columns == NULL) {
        if (room != NULL)
            PyList_SetSlice(sink, PyList_Size(sink) - 1, PyList_Size(sink), NULL);
        return NULL;
    }
    b->before += n - b->core->n; /* taken over, it is not there to be counted */
    PyList_SetItem(sink, PyList_Size(sink) - 1, columns);
    b->pending = 0;
    Py_RETURN_TRUE;
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
     "What was read last is not in a sink yet."},
    {"busy", T_BOOL, offsetof(struct batch, busy), 0, "It is being read, and must not be again."},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef methods[] = {
    {"read", read_messages, METH_VARARGS,
     "read(handle, sink, limit, max_bytes): put messages and gaps there; may there be more?"},
    {"read_routed", read_routed, METH_VARARGS,
     "read_routed(handle, sink, limit, max_bytes): the same with their routes; the messages."},
    {"read_columns", read_columns, METH_VARARGS,
     "read_columns(handle, sink, limit): put the columns there; False: that is for read()."},
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

int pn_py_add_batch(PyObject *module)
{
    static PyType_Spec spec = {
        .name = "pynotify._hot.Batch",
        .basicsize = sizeof(struct batch),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
        .slots = slots,
    };
    batch_type = (PyTypeObject *) PyType_FromSpec(&spec); /* as long as the process */
    if (batch_type == NULL)
        return -1;
    return PyModule_AddObjectRef(module, "Batch", (PyObject *) batch_type);
}
