/*
 * join.c - payloads one after the other, as the core takes many of them.
 *
 * Only an exact list or tuple of exact str and bytes is joined here: to look at it runs no Python
 * code, so nothing changes meanwhile.  Parts (parts.c) are joined already.  All else is left to
 * pynotify/_encoding.py.
 */
#include "hot.h"

#include <stdint.h>
#include <string.h>

bool pn_py_text_of(PyObject *object, struct pn_py_text *text)
{
    if (PyUnicode_CheckExact(object)) {
        text->at = PyUnicode_AsUTF8AndSize(object, &text->len);
        if (text->at == NULL)
            PyErr_Clear(); /* a lone surrogate: encoding it again tells so */
        return text->at != NULL;
    }
    if (!PyBytes_CheckExact(object))
        return false;
    text->at = PyBytes_AsString(object);
    text->len = Py_SIZE(object);
    return true;
}

/* Element i of a list or tuple; borrowed. */
static PyObject *element(PyObject *sequence, size_t i)
{
    return PyList_CheckExact(sequence) ? PyList_GetItem(sequence, (Py_ssize_t) i)
                                       : PyTuple_GetItem(sequence, (Py_ssize_t) i);
}

/* Where each stands, the lengths, and their sum; false without an exception: others are among
 * them. */
static bool measure(PyObject *sequence, struct pn_py_joined *joined, const char **at)
{
    for (size_t i = 0; i < joined->n; i++) {
        struct pn_py_text text;
        if (!pn_py_text_of(element(sequence, i), &text) || (uint64_t) text.len > UINT32_MAX)
            return false;
        at[i] = text.at;
        joined->lens[i] = (uint32_t) text.len;
        joined->size += (size_t) text.len;
    }
    return true;
}

static void copy(const struct pn_py_joined *joined, const char *const *at)
{
    char *to = joined->bytes;
    for (size_t i = 0; i < joined->n; i++) {
        memcpy(to, at[i], joined->lens[i]);
        to += joined->lens[i];
    }
}

/* 1: joined; 0 without an exception: not here; -1 with one. */
static int fill(PyObject *sequence, struct pn_py_joined *joined)
{
    const char **at = PyMem_Malloc((joined->n + 1) * sizeof *at);
    joined->lens = PyMem_Malloc((joined->n + 1) * sizeof *joined->lens);
    int rc = at == NULL || joined->lens == NULL ? -1 : measure(sequence, joined, at);
    if (rc == 1) {
        joined->bytes = PyMem_Malloc(joined->size + 1);
        rc = joined->bytes == NULL ? -1 : 1;
    }
    if (rc == 1)
        copy(joined, at);
    PyMem_Free((void *) at);
    return rc;
}

int pn_py_join(PyObject *sequence, struct pn_py_joined *joined)
{
    *joined = (struct pn_py_joined) {0};
    if (pn_py_parts_of(sequence, joined))
        return 1;
    if (PyList_CheckExact(sequence))
        joined->n = (size_t) PyList_Size(sequence);
    else if (PyTuple_CheckExact(sequence))
        joined->n = (size_t) PyTuple_Size(sequence);
    else
        return 0;
    int rc = fill(sequence, joined);
    if (rc != 1)
        pn_py_join_free(joined);
    if (rc < 0)
        PyErr_NoMemory();
    return rc;
}

void pn_py_join_free(struct pn_py_joined *joined)
{
    if (!joined->borrowed) {
        PyMem_Free(joined->lens);
        PyMem_Free(joined->bytes);
    }
    *joined = (struct pn_py_joined) {0};
}

static PyObject *join(PyObject *module, PyObject *sequence)
{
    struct pn_py_joined joined;
    (void) module;
    int rc = pn_py_join(sequence, &joined);
    if (rc < 0)
        return NULL;
    if (rc == 0)
        Py_RETURN_NONE;
    PyObject *pair = Py_BuildValue("(y#y#)", joined.bytes, (Py_ssize_t) joined.size,
                                   (const char *) joined.lens, (Py_ssize_t) (4 * joined.n));
    pn_py_join_free(&joined);
    return pair;
}

static PyMethodDef functions[] = {
    {"join", join, METH_O,
     "join(sequence): the bytes of its str and bytes and their lengths (u32); None: it has "
     "others."},
    {NULL, NULL, 0, NULL},
};

int pn_py_add_join(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
