/*
 * port.c - Port, the base of Handle: the C connection under a connection of Python.
 *
 * The attribute `native` is cffi's pointer.  Storing it is one step for the pointer and for what C
 * calls with, so that a closed connection is closed for both (pynotify/_ownership.py, 4).  Before
 * it is stored, and when the garbage collector has cleared it, C calls with a closed connection.
 */
#include "hot.h"

#include <stddef.h>

static PyTypeObject *port_type;
static PyObject *cast, *address_type; /* ffi.cast, the ctype uintptr_t */

struct pn_py_port *pn_py_port_of(PyObject *port)
{
    if (PyObject_TypeCheck(port, port_type))
        return (struct pn_py_port *) port;
    PyErr_SetString(PyExc_TypeError, "not a handle");
    return NULL;
}

void *pn_py_address_of(PyObject *native)
{
    if (native == NULL) {
        PyErr_SetString(PyExc_TypeError, "native cannot be deleted");
        return NULL;
    }
    PyObject *number = PyObject_CallFunctionObjArgs(cast, address_type, native, NULL);
    if (number == NULL)
        return NULL;
    PyObject *whole = PyNumber_Long(number);
    Py_DECREF(number);
    if (whole == NULL)
        return NULL;
    void *address = PyLong_AsVoidPtr(whole);
    Py_DECREF(whole);
    if (address == NULL && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "a null pointer");
    return address;
}

static PyObject *get_native(PyObject *self, void *unused)
{
    PyObject *native = ((struct pn_py_port *) self)->native;
    (void) unused;
    if (native == NULL) {
        PyErr_SetString(PyExc_AttributeError, "native");
        return NULL;
    }
    return Py_NewRef(native);
}

static int set_native(PyObject *self, PyObject *native, void *unused)
{
    struct pn_py_port *port = (struct pn_py_port *) self;
    (void) unused;
    pn_conn *conn = pn_py_address_of(native);
    if (conn == NULL)
        return -1;
    PyObject *before = port->native;
    port->native = Py_NewRef(native);
    port->conn = conn;
    Py_XDECREF(before); /* may free the connection, and run Python code */
    return 0;
}

static void reset(PyObject *self)
{
    ((struct pn_py_port *) self)->conn = pn_closed_conn();
}

static PyGetSetDef properties[] = {
    {"native", get_native, set_native, "cffi's pointer to the C connection.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

int pn_py_add_port(PyObject *module)
{
    static const struct pn_py_owner owner = {
        .name = "pynotify._hot.Port",
        .doc = "The C connection under a connection of Python.",
        .size = sizeof(struct pn_py_port),
        .first = offsetof(struct pn_py_port, native),
        .refs = 1,
        .reset = reset,
        .properties = properties,
    };
    PyObject *ffi = pn_py_import("pynotify._ffi", "ffi");
    if (ffi == NULL)
        return -1;
    cast = PyObject_GetAttrString(ffi, "cast");
    address_type = PyObject_CallMethod(ffi, "typeof", "s", "uintptr_t");
    Py_DECREF(ffi);
    if (cast == NULL || address_type == NULL)
        return -1;
    port_type = pn_py_add_owner(module, &owner);
    return port_type == NULL ? -1 : 0;
}
