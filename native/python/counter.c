/*
 * counter.c - Counter, the base of Generation: its value is one load from shared memory.
 *
 * The engine is kept by its Python object as long as that has memory (pynotify/_ownership.py, 5),
 * so the value can be read also when the collector has cleared the object.
 */
#include "hot.h"

#include <stddef.h>

struct counter {
    PyObject head;
    const pn_engine *engine; /* NULL before it is stored */
    unsigned index;
};

static PyObject *get_value(PyObject *self, void *unused)
{
    const struct counter *c = (struct counter *) self;
    (void) unused;
    if (c->engine == NULL) {
        PyErr_SetString(PyExc_AttributeError, "value");
        return NULL;
    }
    return PyLong_FromUnsignedLongLong(pn_generation_value(c->engine, c->index));
}

static PyObject *get_changed_at(PyObject *self, void *unused)
{
    const struct counter *c = (struct counter *) self;
    (void) unused;
    if (c->engine == NULL) {
        PyErr_SetString(PyExc_AttributeError, "changed_at");
        return NULL;
    }
    int64_t ns = pn_generation_changed_ns(c->engine, c->index);
    if (ns == 0)
        Py_RETURN_NONE;
    return PyFloat_FromDouble((double) ns / 1e9); /* as time.time() does */
}

static PyObject *read_from(PyObject *self, PyObject *engine)
{
    const pn_engine *address = pn_py_address_of(engine);
    if (address == NULL)
        return NULL;
    ((struct counter *) self)->engine = address;
    Py_RETURN_NONE;
}

static PyGetSetDef properties[] = {
    {"value", get_value, NULL,
     "How often the counter was bumped: one load from shared memory.\n\n"
     "It can be read by any thread, in a forked child, and after the connection was closed.",
     NULL},
    {"changed_at", get_changed_at, NULL,
     "When it was bumped last, in seconds as those of `time.time()`; None: never.\n"
     "\n"
     "It is the time of that transaction's commit, by this host's clock, which may be set back.\n"
     "After a value was read it is the time of that value or of a later one; read before the\n"
     "value, it may be of one that is about to be seen.  Like `value` it can be read by any\n"
     "thread, in a forked child, and after the connection was closed.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
    {"_index", T_UINT, offsetof(struct counter, index), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef methods[] = {
    {"_read_from", read_from, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

int pn_py_add_counter(PyObject *module)
{
    static const struct pn_py_owner owner = {
        .name = "pynotify._hot.Counter",
        .doc = "The value of a shared generation counter.",
        .size = sizeof(struct counter),
        .members = members,
        .properties = properties,
        .methods = methods,
    };
    return pn_py_add_owner(module, &owner) == NULL ? -1 : 0;
}
