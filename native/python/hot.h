/*
 * hot.h - what Python calls for every message, in C: the module pynotify._hot.
 *
 * 1. It stands in the shared object of the cffi extension, with a PyInit_ of its own (PEP 489), and
 *    calls the same core by pynotify.h.  cffi stays for everything that is not hot.
 * 2. The GIL is held while a call cannot wait.  Each call is first made with pn_set_never_wait();
 *    one that would have to wait comes back, has done nothing, and is made again without the GIL.
 * 3. Between two bytecodes of the caller a signal handler may raise, also between the return of a
 *    function of ours and the store of its result.  So messages are never owned by a result alone:
 *    they are put into a list that the caller, a Python function, has had before (batch.c).
 * 4. CPython's limited API of 3.11, one interpreter (pynotify/_interpreter.py).
 */
#ifndef PN_PYTHON_HOT_H
#define PN_PYTHON_HOT_H

#ifdef Py_GIL_DISABLED
#error "the GIL orders the calls of a connection: no free-threaded build"
#endif
#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <structmember.h>

#include "pynotify.h"

/* pynotify._hot.Notify, immutable.  It refers to str, bytes and numbers only: no cycle. */
struct pn_py_notify {
    PyObject head;
    PyObject *channel; /* str */
    PyObject *data;    /* bytes */
    PyObject *payload; /* str, once it was asked for; or a struct extra */
    unsigned long long seq, sender, index;
    long long sent_ns;
    int pid;
};

/* What came to the caller in a batch, beside channel and data. */
struct pn_py_origin {
    unsigned long long seq, sender, index;
    long long sent_ns;
    int pid;
};

/*
 * `pattern`: or NULL; `headers`: bytes, or NULL.  Takes the references to `data` and `headers`,
 * also when it returns NULL.
 */
PyObject *pn_py_notify_new(PyObject *channel, PyObject *pattern, PyObject *data, PyObject *headers,
                           const struct pn_py_origin *origin);

/* Whether it is a Notify. */
bool pn_py_is_notify(PyObject *object);

/* The columns of n messages; seen as bytes they need not be aligned.  No `pattern`: -1 of all; no
 * `headers_offset`: none of them has headers. */
struct pn_py_view {
    const char *seq, *sent_ns, *pid, *sender, *channel, *pattern, *headers_offset, *headers;
    const char *offset, *data;
    size_t n;
    uint64_t before; /* where their index begins */
};

/* All of the batch but the first `skip`; their index begins at `before`. */
struct pn_py_view pn_py_view_of(const pn_batch *core, size_t skip, uint64_t before);

/* Message number i; a new reference. */
PyObject *pn_py_message_at(const struct pn_py_view *view, PyObject *channels, size_t i);

/* A list of all messages, or without channels of their payloads; a new reference. */
PyObject *pn_py_list_of(const struct pn_py_view *view, PyObject *channels);

/* A pynotify._hot.Columns of all messages, which the batch may have no more; a new reference. */
PyObject *pn_py_columns_of(pn_batch *core, uint64_t before, PyObject *channels);

/* A type that classes of Python are derived from (owner.c). */
struct pn_py_owner {
    const char *name, *doc; /* "pynotify._hot.Name" */
    size_t size;            /* of an object */
    size_t first, refs;     /* where its references to others begin, and how many there are */
    /* Call the core with something closed from now on; or NULL. */
    void (*reset)(PyObject *self);
    PyMemberDef *members; /* each may be NULL, as the next two */
    PyGetSetDef *properties;
    PyMethodDef *methods;
};

/* Borrowed: it lives as long as the process.  NULL with an exception. */
PyTypeObject *pn_py_add_owner(PyObject *module, const struct pn_py_owner *owner);

/* The arguments of a METH_FASTCALL | METH_KEYWORDS method, as PyArg_ParseTupleAndKeywords() would
 * have them; what it stores is the caller's still.  0 or -1. */
int pn_py_parse(PyObject *const *args, Py_ssize_t n, PyObject *names, const char *format,
                char **known, ...);

/* pynotify._hot.Port, the base of Handle: the C connection. */
struct pn_py_port {
    PyObject head;
    PyObject *native; /* cffi's pointer, which owns a reference to the connection */
    pn_conn *conn;    /* the same */
};

/* `port` as what it is; NULL with a TypeError. */
struct pn_py_port *pn_py_port_of(PyObject *port);

/* The address that cffi's pointer has; NULL with an exception.  No Python code runs. */
void *pn_py_address_of(PyObject *native);

/* The caller's transaction. */
struct pn_py_within {
    PyObject *transaction; /* OpenTransaction; NULL: the call is outside of any */
    PyObject *native;      /* cffi's pointer, which keeps it */
    pn_txn *core;          /* the same; or NULL */
};

/*
 * The one of `open`, by what `owner` returns.  1: it is usable, or there is none: what was found is
 * the caller's, until pn_py_within_end(); 0: not for here; -1 with an exception.  Python code may
 * run, in both.
 */
int pn_py_within_some(PyObject *open, PyObject *owner, struct pn_py_within *in);
void pn_py_leave_some(struct pn_py_within *in);

/* Most calls are outside of any: they cost a look at `open`. */
static inline int pn_py_within(PyObject *open, PyObject *owner, struct pn_py_within *in)
{
    *in = (struct pn_py_within) {NULL, NULL, NULL};
    bool none = open != NULL && PyDict_CheckExact(open) && PyDict_Size(open) == 0;
    return none ? 1 : pn_py_within_some(open, owner, in);
}

static inline void pn_py_within_end(struct pn_py_within *in)
{
    if (in->transaction != NULL)
        pn_py_leave_some(in);
}

/* The bytes of a str or bytes. */
struct pn_py_text {
    const char *at;
    Py_ssize_t len;
};

/* Of an exact str or bytes, which has to stay; false without an exception: another object. */
bool pn_py_text_of(PyObject *object, struct pn_py_text *text);

/* Payloads one after the other. */
struct pn_py_joined {
    char *bytes;
    uint32_t *lens;
    size_t n, size;
    bool borrowed; /* of what they were joined from, which has to stay */
};

/* Whether it is a pynotify._hot.Parts, which are joined already. */
bool pn_py_parts_of(PyObject *object, struct pn_py_joined *joined);

/* 1: joined, to be freed; 0: not here, without an exception; -1 with one. */
int pn_py_join(PyObject *sequence, struct pn_py_joined *joined);
void pn_py_join_free(struct pn_py_joined *joined);

/* So many messages, or bytes of payload and one message more, are taken with the GIL held. */
#define PN_PY_AT_ONCE       2048
#define PN_PY_AT_ONCE_BYTES (1 << 18)

/* Whether it is a pynotify._hot.Batch. */
bool pn_py_is_batch(PyObject *object);

/* Whether a Batch holds what is in no sink. */
bool pn_py_is_pending(PyObject *batch);

/*
 * Append up to `limit` messages, 0: all that are owed, to an exact list, without the GIL's being
 * given up and without Python code's running.  1: done; -1 with an exception, and some may have
 * been appended; 0: to be gone on with under the lock.
 */
int pn_py_take(PyObject *batch, struct pn_py_port *port, PyObject *list, unsigned long long limit);

/*
 * Likewise, up to `limit` messages, into a deque.  1: done; 0: to be gone on with under the lock,
 * where an error of the core comes again; -1: no memory, and nothing has been appended.
 */
int pn_py_take_ahead(PyObject *batch, struct pn_py_port *port, PyObject *deque,
                     unsigned long long limit);

/* Leave an Election, where no other thread waits; false: nothing was done.  No Python code runs. */
bool pn_py_leave(PyObject *election, PyObject *waiter);

/*
 * Sleep in the core so that signals always end it (sleep.c): by `once`, perhaps twice, which gives
 * up the GIL and returns what the core does: 0: the time is over.  0, or -1 with an exception of a
 * signal handler.
 */
int pn_py_sleep(int (*once)(void *arg, int64_t timeout_ns), void *arg, int64_t timeout_ns, int *rc);

/* pn_wait() in such a sleep. */
int pn_py_wait(struct pn_py_port *port, int64_t timeout_ns, int *rc);

/* Each adds its types or functions to the module.  0 or -1. */
int pn_py_add_notify(PyObject *module);
int pn_py_add_port(PyObject *module);
int pn_py_add_batch(PyObject *module);
int pn_py_add_columns(PyObject *module);
int pn_py_add_counter(PyObject *module);
int pn_py_add_election(PyObject *module);
int pn_py_add_finalizer(PyObject *module);
int pn_py_add_inlet(PyObject *module);
int pn_py_add_join(PyObject *module);
int pn_py_add_lock(PyObject *module);
int pn_py_add_mapped(PyObject *module);
int pn_py_add_parts(PyObject *module);
int pn_py_add_sender(PyObject *module);
int pn_py_add_sleep(PyObject *module);
int pn_py_add_topic(PyObject *module);
int pn_py_add_taker(PyObject *module);
int pn_py_add_txn(PyObject *module);

/* The object `name` of the module pynotify.`module`; a new reference. */
PyObject *pn_py_import(const char *module, const char *name);

#endif
