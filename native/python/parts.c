/*
 * parts.c - parts of a large object that follow each other (pynotify/pubsub/_parts.py).
 *
 * A MiB has more than a hundred parts, and to look at one of them takes Python as long as to copy
 * it.  No Python code runs meanwhile, so the messages stay what they are.
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
    {"run_of_parts", run_of_parts, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int pn_py_add_parts(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
