/*
 * mapped.c - memory of a shared file, until the last reference to it goes.
 *
 * Not by mmap of the standard library, which keeps a descriptor for each mapping.  It ends in a
 * capsule's destructor and not in a `__del__`, in which Ctrl-C would be lost: to give up a large
 * block takes milliseconds, and Python would run the signal's handler right behind it.
 */
#include "hot.h"

#include <stddef.h>
#include <sys/mman.h>

static const char NAME[] = "pynotify mapping";

static void end_mapping(PyObject *capsule)
{
    void *address = PyCapsule_GetPointer(capsule, NAME);
    size_t length = (size_t) (uintptr_t) PyCapsule_GetContext(capsule);
    if (address == NULL)
        return;
    Py_BEGIN_ALLOW_THREADS;
    munmap(address, length);
    Py_END_ALLOW_THREADS;
}

/* map_shared(fd, length, writable): what keeps it, and its address. */
static PyObject *map_shared(PyObject *module, PyObject *arguments)
{
    int fd, writable;
    Py_ssize_t length;
    (void) module;
    if (!PyArg_ParseTuple(arguments, "inp", &fd, &length, &writable))
        return NULL;
    int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *address = mmap(NULL, length > 0 ? (size_t) length : 0, protection, MAP_SHARED, fd, 0);
    if (address == MAP_FAILED)
        return PyErr_SetFromErrno(PyExc_OSError);
    PyObject *keeper = PyCapsule_New(address, NAME, NULL);
    if (keeper == NULL || PyCapsule_SetContext(keeper, (void *) (uintptr_t) length) != 0 ||
        PyCapsule_SetDestructor(keeper, end_mapping) != 0) {
        Py_XDECREF(keeper);
        munmap(address, (size_t) length);
        return NULL;
    }
    return Py_BuildValue("NK", keeper, (unsigned long long) (uintptr_t) address);
}

static PyMethodDef functions[] = {
    {"map_shared", map_shared, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

int pn_py_add_mapped(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
