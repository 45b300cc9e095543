/*
 * columns.c - Columns, what poll_batch() has read, and what makes messages of columns.
 *
 * 1. The columns of a large batch are taken over from the core together with their memory; those of
 *    a small one are copied into a block, so that a batch of one message keeps no room for many.
 * 2. The memory of a large one that was freed is kept for the next, one of them and up to
 *    KEPT_BYTES: fresh memory costs a page fault every 4 KiB, which is more than the copying.
 * 3. Likewise CPython gives an arena of objects back to the kernel with the last of them, and a
 *    reader of a full ring frees and makes as many payloads with each batch.  So of a large list
 *    one payload in each arena is kept, until the next but one large list has been made, or a
 *    small one: anchors.
 * 4. A column is seen through a Column, an object with the buffer protocol that keeps its Columns.
 */
#include "hot.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MOVED_BYTES ((size_t) 1 << 16) /* of payload: from here on it is no copy */
#define KEPT_BYTES  ((size_t) 1 << 24)
#define LARGEST     512 /* what is in no arena; it is not kept, however large it is */
#define ARENA_BITS  20 /* of CPython; where they are larger an anchor more is kept than is of use */

enum column {
    SEQ,
    SENT_NS,
    PID,
    SENDER,
    CHANNEL,
    PATTERN,
    HEADERS_OFFSETS,
    HEADERS,
    OFFSETS,
    DATA,
    N_COLUMNS
};

struct columns {
    PyObject head;
    struct pn_py_view view;
    pn_batch memory; /* of what was taken over; its columns alone */
    char *block;     /* of what was copied */
    PyObject *channels;
};

struct column_object {
    PyObject head;
    PyObject *columns; /* keeps the memory */
    void *at;
    Py_ssize_t size;
};

enum { MAX_ANCHORS = KEPT_BYTES >> ARENA_BITS, ANCHORED_LISTS = 2, STRIDE = 64 };

struct anchors {
    PyObject *at[MAX_ANCHORS];
    size_t n;
};

static struct anchors anchors[ANCHORED_LISTS]; /* the GIL is held */
static size_t oldest;
static PyTypeObject *columns_type, *column_type;
static pn_batch kept; /* for the next; the GIL is held */

#define FETCH(column, i, to) memcpy(&(to), (column) + (i) * sizeof(to), sizeof(to))

/* ---- from columns to messages ---------------------------------------------------------------- */

/* Payload number i; a new reference. */
static PyObject *payload_at(const struct pn_py_view *v, size_t i)
{
    uint64_t begin, end;
    FETCH(v->offset, i, begin);
    FETCH(v->offset, i + 1, end);
    return PyBytes_FromStringAndSize(v->data + begin, (Py_ssize_t) (end - begin));
}

/* Headers number i; a new reference.  Empty: it has none. */
static PyObject *headers_at(const struct pn_py_view *v, size_t i)
{
    uint64_t begin = 0, end = 0;
    if (v->headers_offset != NULL) {
        FETCH(v->headers_offset, i, begin);
        FETCH(v->headers_offset, i + 1, end);
    }
    return PyBytes_FromStringAndSize(begin == end ? "" : v->headers + begin,
                                     (Py_ssize_t) (end - begin));
}

PyObject *pn_py_message_at(const struct pn_py_view *v, PyObject *channels, size_t i)
{
    uint32_t number;
    uint64_t seq, sender;
    int64_t sent_ns;
    int32_t pid, by = -1;
    FETCH(v->channel, i, number);
    if (v->pattern != NULL)
        FETCH(v->pattern, i, by);
    FETCH(v->seq, i, seq);
    FETCH(v->sender, i, sender);
    FETCH(v->sent_ns, i, sent_ns);
    FETCH(v->pid, i, pid);
    PyObject *channel = PyList_GetItem(channels, (Py_ssize_t) number); /* borrowed */
    if (channel == NULL)
        return NULL;
    PyObject *pattern = by < 0 ? NULL : PyList_GetItem(channels, by); /* likewise */
    if (by >= 0 && pattern == NULL)
        return NULL;
    PyObject *data = payload_at(v, i);
    if (data == NULL)
        return NULL;
    PyObject *headers = NULL;
    if (__builtin_expect(v->headers_offset != NULL, 0)) {
        headers = headers_at(v, i);
        if (headers == NULL) {
            Py_DECREF(data);
            return NULL;
        }
        if (PyBytes_Size(headers) == 0)
            Py_CLEAR(headers);
    }
    const struct pn_py_origin origin = {
        .seq = seq, .sender = sender, .index = v->before + i, .sent_ns = sent_ns, .pid = pid};
    return pn_py_notify_new(channel, pattern, data, headers, &origin);
}

PyObject *pn_py_list_of(const struct pn_py_view *v, PyObject *channels)
{
    PyObject *list = PyList_New((Py_ssize_t) v->n);
    for (size_t i = 0; list != NULL && i < v->n; i++) {
        PyObject *item = channels == NULL ? payload_at(v, i) : pn_py_message_at(v, channels, i);
        if (item == NULL || PyList_SetItem(list, (Py_ssize_t) i, item) < 0)
            Py_CLEAR(list);
    }
    return list;
}

/* ---- anchors --------------------------------------------------------------------------------- */

static void weigh(struct anchors *a)
{
    while (a->n > 0)
        Py_DECREF(a->at[--a->n]); /* bytes: no Python code runs */
}

/* Keep one object of each arena that has many of the list. */
static void drop_anchors(struct anchors *a, PyObject *list)
{
    uintptr_t last = 0;
    for (Py_ssize_t i = 0; i < PyList_Size(list) && a->n < MAX_ANCHORS; i += STRIDE) {
        PyObject *item = PyList_GetItem(list, i);
        if (PyBytes_Size(item) > LARGEST || (uintptr_t) item >> ARENA_BITS == last)
            continue;
        last = (uintptr_t) item >> ARENA_BITS;
        a->at[a->n++] = Py_NewRef(item);
    }
}

static PyObject *list_of_payloads(const struct pn_py_view *v)
{
    PyObject *list = pn_py_list_of(v, NULL);
    uint64_t size = 0;
    if (list == NULL || v->n == 0)
        return list;
    FETCH(v->offset, v->n, size);
    bool is_large = size >> ARENA_BITS != 0;
    for (size_t i = 0; i < ANCHORED_LISTS; i++)
        if (!is_large || i == oldest)
            weigh(&anchors[i]);
    if (is_large) {
        drop_anchors(&anchors[oldest], list);
        oldest = (oldest + 1) % ANCHORED_LISTS;
    }
    return list;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void free_columns(pn_batch *memory)
{
    free(memory->seq);
    free(memory->sent_ns);
    free(memory->pid);
    free(memory->backend_id);
    free(memory->sender);
    free(memory->channel);
    free(memory->pattern);
    free(memory->headers_offset);
    free(memory->headers);
    free(memory->routes);
    free(memory->offset);
    free(memory->data);
}

/* Exchange the columns and their memory, nothing else. */
static void exchange(pn_batch *a, pn_batch *b)
{
    const pn_batch was = *a;
#define MOVE(to, from)                                                                             \
    ((to)->n = (from)->n, (to)->seq = (from)->seq, (to)->sent_ns = (from)->sent_ns,                \
     (to)->pid = (from)->pid, (to)->backend_id = (from)->backend_id,                               \
     (to)->sender = (from)->sender, (to)->channel = (from)->channel,                               \
     (to)->pattern = (from)->pattern, (to)->pattern_cap = (from)->pattern_cap,                     \
     (to)->by_pattern = (from)->by_pattern, (to)->with_headers = (from)->with_headers,             \
     (to)->headers_offset = (from)->headers_offset, (to)->headers = (from)->headers,               \
     (to)->headers_offset_cap = (from)->headers_offset_cap,                                        \
     (to)->headers_cap = (from)->headers_cap, (to)->routes = (from)->routes,                       \
     (to)->offset = (from)->offset, (to)->data = (from)->data, (to)->cap = (from)->cap,            \
     (to)->data_cap = (from)->data_cap)
    MOVE(a, b);
    MOVE(b, &was);
#undef MOVE
}

static void keep_columns(pn_batch *memory)
{
    memory->n = 0;
    if (kept.data == NULL &&
        memory->data_cap + memory->headers_cap + 64 * memory->cap <= KEPT_BYTES)
        exchange(&kept, memory);
    free_columns(memory);
}

/* What it has more room for than four times the payload goes back. */
static void shrink(pn_batch *memory)
{
    size_t used = (size_t) memory->offset[memory->n];
    if (memory->data_cap / 4 <= used)
        return;
    uint8_t *smaller = realloc(memory->data, used);
    if (smaller == NULL)
        return;
    memory->data = smaller;
    memory->data_cap = used;
}

/* Copy the columns into one block, the widest first.  0 or -1. */
static int copy(struct columns *c, const struct pn_py_view *from)
{
    uint64_t size = 0, end = 0;
    size_t n = from->n, room = 8 * (4 * n + 1) + 12 * n;
    if (from->offset != NULL)
        FETCH(from->offset, n, size);
    if (from->headers_offset != NULL) {
        FETCH(from->headers_offset, n, end);
        room += 8 * (n + 1) + (size_t) end;
    }
    char *at = c->block = PyMem_Malloc(room + (size_t) size + 1);
    if (at == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    c->view = (struct pn_py_view) {.n = n, .before = from->before};
#define COPY(column, width, count)                                                                 \
    do {                                                                                           \
        if ((count) != 0 && from->column != NULL)                                                  \
            memcpy(at, from->column, (width) * (count));                                           \
        c->view.column = at;                                                                       \
        at += (width) * (count);                                                                   \
    } while (0)
    memset(at + 24 * n, 0, 8); /* the first offset, where there are none */
    COPY(seq, 8, n);
    COPY(sent_ns, 8, n);
    COPY(sender, 8, n);
    COPY(offset, 8, n + 1);
    if (from->headers_offset != NULL)
        COPY(headers_offset, 8, n + 1);
    COPY(pid, 4, n);
    COPY(channel, 4, n);
    if (from->pattern != NULL)
        COPY(pattern, 4, n);
    if (from->headers_offset != NULL)
        COPY(headers, 1, (size_t) end);
    COPY(data, 1, (size_t) size);
#undef COPY
    return 0;
}

static struct columns *new_columns(PyObject *channels)
{
    struct columns *c = PyObject_New(struct columns, columns_type);
    if (c == NULL)
        return NULL;
    c->view = (struct pn_py_view) {0};
    memset(&c->memory, 0, sizeof c->memory);
    c->block = NULL;
    c->channels = Py_NewRef(channels);
    return c;
}

PyObject *pn_py_columns_of(pn_batch *core, uint64_t before, PyObject *channels)
{
    const struct pn_py_view view = pn_py_view_of(core, 0, before);
    PyObject *own = PyList_GetSlice(channels, 0, PyList_Size(channels));
    struct columns *c = own == NULL ? NULL : new_columns(own);
    Py_XDECREF(own);
    if (c == NULL)
        return NULL;
    if (core->n == 0 || core->offset[core->n] < MOVED_BYTES) {
        if (copy(c, &view) < 0)
            Py_CLEAR(c);
        return (PyObject *) c;
    }
    exchange(&c->memory, &kept);
    exchange(&c->memory, core);
    shrink(&c->memory);
    c->view = pn_py_view_of(&c->memory, 0, before);
    return (PyObject *) c;
}

static void destroy_columns(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    struct columns *c = (struct columns *) self;
    keep_columns(&c->memory);
    PyMem_Free(c->block);
    Py_DECREF(c->channels);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* ---- made by hand, or unpickled -------------------------------------------------------------- */

/* Whether the n + 1 offsets do not fall, from 0 on, and end where `size` does. */
static bool rise(const char *offsets, size_t n, Py_ssize_t size)
{
    uint64_t last = 0;
    for (size_t i = 0; i <= n; i++) {
        uint64_t offset;
        FETCH(offsets, i, offset);
        if (offset < last || (i == 0 && offset != 0))
            return false;
        last = offset;
    }
    return last == (uint64_t) size;
}

/* Whether the columns fit together, and channels are str. */
static bool fit(const struct pn_py_view *v, const Py_ssize_t *size, PyObject *channels)
{
    static const size_t width[HEADERS_OFFSETS] = {8, 8, 4, 8, 4, 4};
    for (int i = 0; i < HEADERS_OFFSETS; i++)
        if ((size_t) size[i] != width[i] * v->n && (i != PATTERN || size[i] != 0))
            return false;
    if (size[HEADERS_OFFSETS] == 0 ? size[HEADERS] != 0
                                   : (size_t) size[HEADERS_OFFSETS] != 8 * (v->n + 1) ||
                                         !rise(v->headers_offset, v->n, size[HEADERS]))
        return false;
    for (Py_ssize_t i = 0; i < PyList_Size(channels); i++)
        if (!PyUnicode_CheckExact(PyList_GetItem(channels, i)))
            return false;
    return rise(v->offset, v->n, size[DATA]);
}

static PyObject *construct_columns(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    struct pn_py_view v = {0};
    Py_ssize_t size[N_COLUMNS];
    PyObject *channels;
    unsigned long long before;
    (void) type, (void) kwargs;
    if (!PyArg_ParseTuple(args, "y#y#y#y#y#y#y#y#y#y#O!K:Columns", &v.seq, &size[SEQ], &v.sent_ns,
                          &size[SENT_NS], &v.pid, &size[PID], &v.sender, &size[SENDER], &v.channel,
                          &size[CHANNEL], &v.pattern, &size[PATTERN], &v.headers_offset,
                          &size[HEADERS_OFFSETS], &v.headers, &size[HEADERS], &v.offset,
                          &size[OFFSETS], &v.data, &size[DATA], &PyList_Type, &channels, &before))
        return NULL;
    v.before = before;
    if (size[PATTERN] == 0)
        v.pattern = NULL;
    if (size[HEADERS_OFFSETS] == 0)
        v.headers_offset = v.headers = NULL;
    v.n = size[OFFSETS] < 8 ? 0 : (size_t) size[OFFSETS] / 8 - 1;
    if (size[OFFSETS] < 8 || size[OFFSETS] % 8 != 0 || !fit(&v, size, channels)) {
        PyErr_SetString(PyExc_ValueError, "columns that do not fit together");
        return NULL;
    }
    PyObject *own = PyList_GetSlice(channels, 0, PyList_Size(channels));
    struct columns *c = own == NULL ? NULL : new_columns(own);
    Py_XDECREF(own);
    if (c != NULL && copy(c, &v) < 0)
        Py_CLEAR(c);
    return (PyObject *) c;
}

/* ---- Columns --------------------------------------------------------------------------------- */

static struct columns *columns_self(PyObject *self)
{
    return (struct columns *) self;
}

/* Where the column begins, and its size. */
static const char *extent_of(const struct columns *c, enum column which, size_t *size)
{
    const struct pn_py_view *v = &c->view;
    bool headed = v->headers_offset != NULL;
    const char *const at[N_COLUMNS] = {v->seq,
                                       v->sent_ns,
                                       v->pid,
                                       v->sender,
                                       v->channel,
                                       v->pattern,
                                       v->headers_offset,
                                       headed ? v->headers : NULL,
                                       v->offset,
                                       v->data};
    uint64_t end, headers_end = 0;
    FETCH(v->offset, v->n, end);
    if (headed)
        FETCH(v->headers_offset, v->n, headers_end);
    const size_t sizes[N_COLUMNS] = {
        8 * v->n,       8 * v->n,    4 * v->n,       8 * v->n,
        4 * v->n,       4 * v->n,    8 * (v->n + 1), (size_t) headers_end,
        8 * (v->n + 1), (size_t) end};
    *size = at[which] == NULL ? 0 : sizes[which];
    return at[which] == NULL ? "" : at[which];
}

static PyObject *get_column(PyObject *self, void *which)
{
    size_t size;
    const char *at = extent_of(columns_self(self), (enum column)(uintptr_t) which, &size);
    struct column_object *column = PyObject_New(struct column_object, column_type);
    if (column == NULL)
        return NULL;
    column->columns = Py_NewRef(self);
    column->at = (void *) (uintptr_t) at; /* read-only (get_buffer) */
    column->size = (Py_ssize_t) size;
    return (PyObject *) column;
}

static PyObject *get_channels(PyObject *self, void *unused)
{
    PyObject *channels = columns_self(self)->channels;
    (void) unused;
    return PyList_GetSlice(channels, 0, PyList_Size(channels));
}

static PyObject *payloads(PyObject *self, PyObject *unused)
{
    (void) unused;
    return list_of_payloads(&columns_self(self)->view);
}

static PyObject *messages(PyObject *self, PyObject *unused)
{
    (void) unused;
    return pn_py_list_of(&columns_self(self)->view, columns_self(self)->channels);
}

static PyObject *payload_extent(PyObject *self, PyObject *number)
{
    const struct pn_py_view *v = &columns_self(self)->view;
    uint64_t begin, end;
    size_t i = PyLong_AsSize_t(number);
    if (i == (size_t) -1 && PyErr_Occurred())
        return NULL;
    if (i >= v->n) {
        PyErr_SetString(PyExc_IndexError, "no such message");
        return NULL;
    }
    FETCH(v->offset, i, begin);
    FETCH(v->offset, i + 1, end);
    return Py_BuildValue("(KK)", (unsigned long long) begin, (unsigned long long) end);
}

static PyObject *headers(PyObject *self, PyObject *number)
{
    const struct pn_py_view *v = &columns_self(self)->view;
    size_t i = PyLong_AsSize_t(number);
    if (i == (size_t) -1 && PyErr_Occurred())
        return NULL;
    if (i >= v->n) {
        PyErr_SetString(PyExc_IndexError, "no such message");
        return NULL;
    }
    return headers_at(v, i);
}

static PyObject *reduce(PyObject *self, PyObject *unused)
{
    const struct columns *c = columns_self(self);
    const char *at[N_COLUMNS];
    size_t size[N_COLUMNS];
    (void) unused;
    for (int i = 0; i < N_COLUMNS; i++)
        at[i] = extent_of(c, (enum column) i, &size[i]);
    return Py_BuildValue(
        "O(y#y#y#y#y#y#y#y#y#y#OK)", columns_type, at[SEQ], (Py_ssize_t) size[SEQ], at[SENT_NS],
        (Py_ssize_t) size[SENT_NS], at[PID], (Py_ssize_t) size[PID], at[SENDER],
        (Py_ssize_t) size[SENDER], at[CHANNEL], (Py_ssize_t) size[CHANNEL], at[PATTERN],
        (Py_ssize_t) size[PATTERN], at[HEADERS_OFFSETS], (Py_ssize_t) size[HEADERS_OFFSETS],
        at[HEADERS], (Py_ssize_t) size[HEADERS], at[OFFSETS], (Py_ssize_t) size[OFFSETS], at[DATA],
        (Py_ssize_t) size[DATA], c->channels, (unsigned long long) c->view.before);
}

static Py_ssize_t length(PyObject *self)
{
    return (Py_ssize_t) columns_self(self)->view.n;
}

#define COLUMN(name, which) {name, get_column, NULL, NULL, (void *) (uintptr_t) (which)}

static PyGetSetDef properties[] = {
    COLUMN("seq", SEQ),
    COLUMN("sent_ns", SENT_NS),
    COLUMN("pid", PID),
    COLUMN("sender", SENDER),
    COLUMN("channel_index", CHANNEL),
    COLUMN("pattern_index", PATTERN),
    COLUMN("blob", DATA),
    {"channels", get_channels, NULL, "Names by number of this batch.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef methods[] = {
    {"payloads", payloads, METH_NOARGS, "[bytes]"},
    {"messages", messages, METH_NOARGS, "[Notify]"},
    {"extent", payload_extent, METH_O, "extent(i): where payload i begins and ends in `blob`."},
    {"headers", headers, METH_O, "headers(i): those of message i as bytes."},
    {"__reduce__", reduce, METH_NOARGS, "How it is pickled."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot columns_slots[] = {
    {Py_tp_doc, (void *) "Columns(seq, sent_ns, pid, sender, channel_index, pattern_index, "
                         "headers_offsets, headers, offsets, blob, channels, before): messages as "
                         "columns."},
    {Py_tp_new, construct_columns},
    {Py_tp_dealloc, destroy_columns},
    {Py_tp_getset, properties},
    {Py_tp_methods, methods},
    {Py_sq_length, length},
    {0, NULL},
};

/* ---- Column ---------------------------------------------------------------------------------- */

static int get_buffer(PyObject *self, Py_buffer *buffer, int flags)
{
    const struct column_object *column = (struct column_object *) self;
    return PyBuffer_FillInfo(buffer, self, column->at, column->size, 1, flags);
}

static void destroy_column(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_DECREF(((struct column_object *) self)->columns);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyType_Slot column_slots[] = {
    {Py_tp_doc, (void *) "The bytes of a column, without a copy."},
    {Py_tp_dealloc, destroy_column},
    {Py_bf_getbuffer, get_buffer},
    {0, NULL},
};

int pn_py_add_columns(PyObject *module)
{
    static PyType_Spec spec = {
        .name = "pynotify._hot.Columns",
        .basicsize = sizeof(struct columns),
        .flags = Py_TPFLAGS_DEFAULT,
        .slots = columns_slots,
    };
    static PyType_Spec column_spec = {
        .name = "pynotify._hot.Column",
        .basicsize = sizeof(struct column_object),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
        .slots = column_slots,
    };
    columns_type = (PyTypeObject *) PyType_FromSpec(&spec); /* as long as the process */
    column_type = (PyTypeObject *) PyType_FromSpec(&column_spec);
    if (columns_type == NULL || column_type == NULL)
        return -1;
    return PyModule_AddObjectRef(module, "Columns", (PyObject *) columns_type);
}
