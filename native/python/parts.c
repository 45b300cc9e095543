/*
 * parts.c - the parts of a large object (pynotify/pubsub/_parts.py): many of them are made, and
 *           found, at once.
 *
 * A MiB has more than a hundred parts, and to make or look at one of them takes Python as long as
 * to copy it.
 *
 * 1. Parts that are sent stand one after the other in one block, as notify_many() hands them to the
 *    core (join.c): the object is copied once before it is in the transaction.
 * 2. Parts that have come are looked at without Python code's running, so the messages stay what
 *    they are.
 */
#include "hot.h"

#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the numbers of a part are stored as they are"
#endif

enum { MARK = '~' };

/* What a part begins with. */
struct header {
    uint64_t number, place, size;
};

enum { START = 1 + sizeof(struct header) };

/* ---- parts to be sent ------------------------------------------------------------------------ */

/* pynotify._hot.Parts, a sequence of bytes, immutable. */
struct parts {
    PyObject head;
    struct pn_py_joined joined;
    size_t each; /* bytes of all but the last */
};

static PyTypeObject *parts_type; /* as long as the process */

bool pn_py_parts_of(PyObject *object, struct pn_py_joined *joined)
{
    if (!Py_IS_TYPE(object, parts_type))
        return false;
    *joined = ((const struct parts *) object)->joined;
    joined->borrowed = true;
    return true;
}

static void destroy(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    pn_py_join_free(&((struct parts *) self)->joined);
    PyObject_Free(self);
    Py_DECREF(type);
}

static Py_ssize_t length(PyObject *self)
{
    return (Py_ssize_t) ((const struct parts *) self)->joined.n;
}

static PyObject *item(PyObject *self, Py_ssize_t index)
{
    const struct parts *parts = (const struct parts *) self;
    if (index < 0 || index >= length(self)) {
        PyErr_SetString(PyExc_IndexError, "there is no such part");
        return NULL;
    }
    return PyBytes_FromStringAndSize(parts->joined.bytes + (size_t) index * parts->each,
                                     (Py_ssize_t) parts->joined.lens[index]);
}

/* A container is `flag` and `body`; its bytes from `from` on. */
struct whole {
    const char *flag, *body;
    size_t flag_bytes, body_bytes;
};

static void copy(char *to, const struct whole *whole, size_t from, size_t bytes)
{
    while (from < whole->flag_bytes && bytes > 0) {
        *to++ = whole->flag[from++];
        bytes--;
    }
    if (bytes > 0)
        memcpy(to, whole->body + (from - whole->flag_bytes), bytes);
}

static void fill(struct pn_py_joined *joined, const struct whole *whole, uint64_t number,
                 size_t from, size_t end, size_t size)
{
    char *to = joined->bytes;
    struct header header = {number, from, whole->flag_bytes + whole->body_bytes};
    for (size_t i = 0; i < joined->n; i++) {
        size_t bytes = end - (size_t) header.place < size ? end - (size_t) header.place : size;
        *to = MARK;
        memcpy(to + 1, &header, sizeof header);
        copy(to + START, whole, (size_t) header.place, bytes);
        joined->lens[i] = (uint32_t) (START + bytes);
        to += START + bytes;
        header.place += bytes;
    }
}

/* Room for them. */
static struct parts *room_for(size_t n, size_t bytes, size_t size)
{
    struct parts *made = PyObject_New(struct parts, parts_type);
    if (made == NULL)
        return NULL;
    made->each = START + size;
    made->joined = (struct pn_py_joined) {.n = n, .size = bytes + n * START};
    made->joined.bytes = PyMem_Malloc(made->joined.size);
    made->joined.lens = PyMem_Malloc(n * sizeof *made->joined.lens);
    if (made->joined.bytes != NULL && made->joined.lens != NULL)
        return made;
    Py_DECREF((PyObject *) made);
    PyErr_NoMemory();
    return NULL;
}

static PyObject *make_parts(const struct whole *whole, uint64_t number, Py_ssize_t from,
                            Py_ssize_t end, Py_ssize_t size)
{
    bool within = from >= 0 && from < end && (size_t) end <= whole->flag_bytes + whole->body_bytes;
    if (!within || size < 1 || (uint64_t) size > UINT32_MAX - START) {
        PyErr_SetString(PyExc_ValueError, "no such parts");
        return NULL;
    }
    size_t bytes = (size_t) (end - from);
    struct parts *made = room_for((bytes - 1) / (size_t) size + 1, bytes, (size_t) size);
    if (made == NULL)
        return NULL;
    if (bytes <= PN_PY_AT_ONCE_BYTES) {
        fill(&made->joined, whole, number, (size_t) from, (size_t) end, (size_t) size);
    } else {
        Py_BEGIN_ALLOW_THREADS;
        fill(&made->joined, whole, number, (size_t) from, (size_t) end, (size_t) size);
        Py_END_ALLOW_THREADS;
    }
    return (PyObject *) made;
}

/* cut_parts(flag, body, number, from, end, size): of `size` bytes each, from and up to these. */
static PyObject *cut_parts(PyObject *module, PyObject *arguments)
{
    PyObject *flag, *body;
    unsigned long long number;
    Py_ssize_t from, end, size;
    (void) module;
    if (!PyArg_ParseTuple(arguments, "SSKnnn", &flag, &body, &number, &from, &end, &size))
        return NULL;
    struct whole whole = {.flag = PyBytes_AsString(flag),
                          .body = PyBytes_AsString(body),
                          .flag_bytes = (size_t) Py_SIZE(flag),
                          .body_bytes = (size_t) Py_SIZE(body)};
    return make_parts(&whole, number, from, end, size);
}

static int add_type(PyObject *module)
{
    static PyType_Slot slots[] = {
        {Py_tp_dealloc, (void *) destroy},
        {Py_sq_length, (void *) length},
        {Py_sq_item, (void *) item},
        {0, NULL},
    };
    static PyType_Spec spec = {
        .name = "pynotify._hot.Parts",
        .basicsize = sizeof(struct parts),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
        .slots = slots,
    };
    PyObject *type = PyType_FromSpec(&spec);
    parts_type = (PyTypeObject *) type;
    return type == NULL ? -1 : PyModule_AddObjectRef(module, "Parts", type);
}

/* ---- parts that have come -------------------------------------------------------------------- */

/* What the next part of a run has to continue. */
struct run {
    const struct pn_py_notify *first;
    struct header next;
    uint64_t end; /* no part reaches beyond it */
};

/* False: no part.  `bytes`: after its header. */
static bool header_of(const struct pn_py_notify *message, struct header *header, uint64_t *bytes)
{
    const char *data = PyBytes_AsString(message->data);
    size_t length = (size_t) Py_SIZE(message->data);
    if (length <= START || data[0] != MARK)
        return false;
    memcpy(header, data + 1, sizeof *header);
    *bytes = length - START;
    return true;
}

static bool begins(const struct pn_py_notify *first, uint64_t most, struct run *run)
{
    uint64_t bytes;
    run->first = first;
    if (!header_of(first, &run->next, &bytes))
        return false;
    uint64_t place = run->next.place, size = run->next.size;
    if (size >= (uint64_t) 1 << 48 || place >= size || bytes > size - place)
        return false;
    run->next.place = place + bytes;
    run->end = most < size - place ? place + most : size;
    return true;
}

static bool same_text(PyObject *a, PyObject *b)
{
    return a == b || PyUnicode_Compare(a, b) == 0;
}

static bool continues(const struct pn_py_notify *message, struct run *run)
{
    struct header header;
    uint64_t bytes;
    if (!header_of(message, &header, &bytes) || memcmp(&header, &run->next, sizeof header) != 0)
        return false;
    if (bytes > run->end - run->next.place || message->sender != run->first->sender)
        return false;
    if (!same_text(message->channel, run->first->channel))
        return false;
    run->next.place += bytes;
    return true;
}

/* Append the messages of the run; 0, or -1 with an exception. */
static int collect(PyObject *iterator, uint64_t most, PyObject *found)
{
    struct run run = {0};
    for (bool goes_on = true; goes_on;) {
        PyObject *message = PyIter_Next(iterator);
        if (message == NULL)
            return PyErr_Occurred() ? -1 : 0;
        const struct pn_py_notify *notify = (const struct pn_py_notify *) message;
        bool fits = pn_py_is_notify(message) &&
                    (run.first == NULL ? begins(notify, most, &run) : continues(notify, &run));
        int rc = fits ? PyList_Append(found, message) : 0;
        goes_on = rc == 0 && fits && run.next.place < run.end;
        Py_DECREF(message);
        if (rc != 0)
            return -1;
    }
    return 0;
}

/* run_of_parts(messages, most): the first of them that are parts, each continuing the last. */
static PyObject *run_of_parts(PyObject *module, PyObject *arguments)
{
    PyObject *messages;
    unsigned long long most;
    (void) module;
    if (!PyArg_ParseTuple(arguments, "OK", &messages, &most))
        return NULL;
    PyObject *iterator = PyObject_GetIter(messages);
    PyObject *found = iterator == NULL ? NULL : PyList_New(0);
    if (found != NULL && collect(iterator, most, found) != 0)
        Py_CLEAR(found);
    Py_XDECREF(iterator);
    return found;
}

static PyMethodDef functions[] = {
    {"cut_parts", cut_parts, METH_VARARGS, NULL},
    {"run_of_parts", run_of_parts, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int pn_py_add_parts(PyObject *module)
{
    return add_type(module) < 0 ? -1 : PyModule_AddFunctions(module, functions);
}
