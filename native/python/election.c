/*
 * election.c - Election, the base of LeaderElection: leave() where no other thread waits.
 *
 * The leader leaves in one step, with the GIL held and no Python code run.  So a follower has put
 * itself among the followers before, and is seen here; or it looks for a leader afterwards, and
 * finds none (the handover of pynotify/_leader.py).
 */
#include "hot.h"

#include <stddef.h>

struct election {
    PyObject head;
    PyObject *leader;    /* the waiter that sleeps in the core, or None; NULL before it is stored,
                          * as the next three */
    PyObject *inside;    /* dict: the waiters that are not the leader */
    PyObject *followers; /* deque: those of them that sleep */
    PyObject *waiters;   /* list: of the main inbox, those that messages wake */
};

static PyTypeObject *election_type;

bool pn_py_leave(PyObject *election, PyObject *waiter)
{
    struct election *e = (struct election *) election;
    if (!PyObject_TypeCheck(election, election_type) || e->leader != waiter || e->inside == NULL ||
        e->followers == NULL || e->waiters == NULL || !PyDict_CheckExact(e->inside) ||
        !PyList_CheckExact(e->waiters))
        return false;
    if (PyDict_Size(e->inside) != 0 || PyObject_Size(e->followers) != 0 ||
        PyList_Size(e->waiters) != 1 || PyList_GetItem(e->waiters, 0) != waiter)
        return false;
    if (PyList_SetSlice(e->waiters, 0, 1, NULL) < 0) {
        PyErr_Clear();
        return false;
    }
    e->leader = Py_NewRef(Py_None);
    Py_DECREF(waiter); /* the caller has it */
    return true;
}

#define AT(field) offsetof(struct election, field)

static PyMemberDef members[] = {
    {"leader", T_OBJECT_EX, AT(leader), 0, "The waiter that sleeps in the core, or is about to."},
    {"inside", T_OBJECT_EX, AT(inside), 0, "Waiters that are not the leader, by thread."},
    {"followers", T_OBJECT_EX, AT(followers), 0, "Waiters that sleep until they are called."},
    {"waiters", T_OBJECT_EX, AT(waiters), 0, "Those that are woken when messages come."},
    {NULL, 0, 0, 0, NULL},
};

int pn_py_add_election(PyObject *module)
{
    static const struct pn_py_owner owner = {
        .name = "pynotify._hot.Election",
        .doc = "The waiting threads of a connection, one of which leads.",
        .size = sizeof(struct election),
        .first = offsetof(struct election, leader),
        .refs = 4,
        .members = members,
    };
    election_type = pn_py_add_owner(module, &owner);
    return election_type == NULL ? -1 : 0;
}
