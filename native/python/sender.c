/*
 * sender.c - Notifier, the base of Connection: notify() outside of a transaction.
 *
 * Whatever is out of the ordinary is left to the method _notify() of the connection, which does the
 * whole again: an open transaction, arguments of other types, a lock that has to be waited for.
 */
#include "hot.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct notifier {
    PyObject head;
    PyObject *handle;       /* Handle; NULL before it is stored */
    PyObject *transactions; /* dict: those that are open, of any thread */
};

struct text {
    const char *at;
    Py_ssize_t len;
};

/* The bytes of an exact str or bytes, which has to stay; false without an exception: another. */
static bool bytes_of(PyObject *object, struct text *text)
{
    if (PyUnicode_CheckExact(object)) {
        text->at = PyUnicode_AsUTF8AndSize(object, &text->len);
        if (text->at == NULL)
            PyErr_Clear(); /* a lone surrogate: told by who encodes it again */
        return text->at != NULL;
    }
    if (!PyBytes_CheckExact(object))
        return false;
    text->at = PyBytes_AsString(object);
    text->len = PyBytes_Size(object);
    return true;
}

/* Whether pn_notify() was called, and what it returned. */
static bool sent(struct notifier *n, PyObject *channel, PyObject *payload, int *rc)
{
    struct text name, data = {"", 0};
    if (n->handle == NULL || n->transactions == NULL || !PyDict_CheckExact(n->transactions) ||
        PyDict_Size(n->transactions) != 0 || !PyUnicode_CheckExact(channel) ||
        !bytes_of(channel, &name) || memchr(name.at, 0, (size_t) name.len) != NULL ||
        (payload != NULL && !bytes_of(payload, &data)))
        return false;
    struct pn_py_port *port = pn_py_port_of(n->handle);
    if (port == NULL) {
        PyErr_Clear();
        return false;
    }
    int before = pn_set_never_wait(1);
    *rc = pn_notify(port->conn, name.at, (size_t) name.len, data.at, (size_t) data.len);
    pn_set_never_wait(before);
    return *rc != -PN_ELOCKBUSY && *rc != -PN_EROOMBUSY;
}

static PyObject *send_one(PyObject *self, PyObject *channel, PyObject *payload)
{
    int rc;
    if (sent((struct notifier *) self, channel, payload, &rc)) {
        if (rc == 0)
            Py_RETURN_NONE;
        PyObject *handle = Py_NewRef(((struct notifier *) self)->handle);
        PyObject *checked = PyObject_CallMethod(handle, "check", "i", rc);
        Py_DECREF(handle);
        if (checked == NULL)
            return NULL;
        Py_DECREF(checked);
        Py_RETURN_NONE;
    }
    return payload == NULL ? PyObject_CallMethod(self, "_notify", "O", channel)
                           : PyObject_CallMethod(self, "_notify", "OO", channel, payload);
}

/* The arguments where they were not given by position alone; borrowed.  0 or -1. */
static int parse(PyObject *const *args, Py_ssize_t n, PyObject *names, PyObject **channel,
                 PyObject **payload)
{
    static char *known[] = {"channel", "payload", NULL};
    PyObject *positional = PyTuple_New(n), *named = PyDict_New();
    int rc = positional == NULL || named == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; rc == 0 && i < n; i++)
        rc = PyTuple_SetItem(positional, i, Py_NewRef(args[i]));
    for (Py_ssize_t i = 0; rc == 0 && names != NULL && i < PyTuple_Size(names); i++)
        rc = PyDict_SetItem(named, PyTuple_GetItem(names, i), args[n + i]);
    if (rc == 0 &&
        !PyArg_ParseTupleAndKeywords(positional, named, "O|O:notify", known, channel, payload))
        rc = -1;
    Py_XDECREF(positional);
    Py_XDECREF(named);
    return rc;
}

static PyObject *notify(PyObject *self, PyObject *const *args, Py_ssize_t n, PyObject *names)
{
    PyObject *channel = n > 0 ? args[0] : NULL, *payload = n > 1 ? args[1] : NULL;
    if (n < 1 || n > 2 || names != NULL)
        if (parse(args, n, names, &channel, &payload) < 0)
            return NULL;
    return send_one(self, channel, payload);
}

/* ---- the type -------------------------------------------------------------------------------- */

static int traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((struct notifier *) self)->handle);
    Py_VISIT(((struct notifier *) self)->transactions);
    return 0;
}

static int clear(PyObject *self)
{
    Py_CLEAR(((struct notifier *) self)->handle);
    Py_CLEAR(((struct notifier *) self)->transactions);
    return 0;
}

static void destroy(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear(self);
    ((freefunc) PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMemberDef members[] = {
    {"_handle", T_OBJECT_EX, offsetof(struct notifier, handle), 0, NULL},
    {"_transactions", T_OBJECT_EX, offsetof(struct notifier, transactions), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static const char notify_doc[] =
    "notify($self, /, channel, payload='')\n--\n\n"
    "Send a notification; outside a transaction it is committed at once.\n\n"
    "`channel`: 1 to 63 bytes of UTF-8 without NUL, else `InvalidChannelName`.  `payload`:\n"
    "str (sent as UTF-8) or bytes-like, at most 7999 bytes, else `PayloadTooLong`; both\n"
    "limits are options of the segment.  Raises `QueueFull`, at commit inside a transaction.";

static PyMethodDef methods[] = {
    {"notify", (PyCFunction) (void (*)(void)) notify, METH_FASTCALL | METH_KEYWORDS, notify_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *) "What a connection sends outside of transactions."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, destroy},
    {Py_tp_traverse, traverse},
    {Py_tp_clear, clear},
    {Py_tp_members, members},
    {Py_tp_methods, methods},
    {0, NULL},
};

int pn_py_add_sender(PyObject *module)
{
    static PyType_Spec spec = {
        .name = "pynotify._hot.Notifier",
        .basicsize = sizeof(struct notifier),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
        .slots = slots,
    };
    PyObject *type = PyType_FromSpec(&spec);
    if (type == NULL)
        return -1;
    int rc = PyModule_AddObjectRef(module, "Notifier", type);
    Py_DECREF(type);
    return rc;
}
