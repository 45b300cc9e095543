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

static int traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((struct pn_py_port *) self)->native);
    return 0;
}

static int clear(PyObject *self)
{
    struct pn_py_port *port = (struct pn_py_port *) self;
    port->conn = pn_closed_conn(); /* a __del__ of the same cycle may use it still */
    Py_CLEAR(port->native);
    return 0;
}

static PyObject *construct(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *self = ((allocfunc) PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    (void) args, (void) kwargs; /* of __init__() */
    if (self != NULL)
        ((struct pn_py_port *) self)->conn = pn_closed_conn();
    return self;
}

static void destroy(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear(self);
    ((freefunc) PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyGetSetDef properties[] = {
    {"native", get_native, set_native, "cffi's pointer to the C connection.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *) "The C connection under a connection of Python."},
    {Py_tp_new, construct},
    {Py_tp_dealloc, destroy},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_getset, properties},
    {0, NULL},
};

int pn_py_add_port(PyObject *module)
{
    static PyType_Spec spec = {
        .name = "pynotify._hot.Port",
        .basicsize = sizeof(struct pn_py_port),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
        .slots = slots,
    };
    PyObject *ffi = pn_py_import("pynotify._ffi", "ffi");
    if (ffi == NULL)
        return -1;
    cast = PyObject_GetAttrString(ffi, "cast");
    address_type = PyObject_CallMethod(ffi, "typeof", "s", "uintptr_t");
    Py_DECREF(ffi);
    port_type = (PyTypeObject *) PyType_FromSpec(&spec);
    if (cast == NULL || address_type == NULL || port_type == NULL)
        return -1;
    return PyModule_AddObjectRef(module, "Port", (PyObject *) port_type);
}
