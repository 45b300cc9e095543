/* backend.h - the backend array: claim, release, liveness, reaping. */
#ifndef PN_BACKEND_H
#define PN_BACKEND_H

#include "backend/conn.h"
#include "segment/lock.h"

enum pn_verdict {
    PN_ALIVE, /* its liveness byte is held by the process that stands in the slot */
    PN_DEAD,  /* exited, killed, or exec'd */
    PN_LOST   /* the process lives but lost its lock: neither reaped nor signalled (L2) */
};

/* The number of the database of that name, which gets a row if it has none; 0: no row is left. */
uint32_t pn_database_of_locked(struct pn_segment *seg, const char *name, uint32_t len);
/* Its name; "": no row has that number. */
const char *pn_database_name_locked(const struct pn_segment *seg, uint32_t dboid);

/* Fill in a slot for conn (seg, signo, database are set).  Takes the writer lock itself. */
int pn_backend_claim(struct pn_conn *conn);
/* The slot's owner gives it up.  Writer lock held.  False: not yet, once more in another hold. */
bool pn_backend_release_locked(struct pn_conn *conn);

/* Give the slot up without the writer lock: drop its liveness locks, and it will be reaped. */
void pn_backend_abandon(struct pn_conn *conn);

enum pn_verdict pn_backend_verdict(struct pn_segment *seg, uint32_t slot);
/* Is its owner a connection of this process?  signal_mutex not held. */
bool pn_backend_is_ours(struct pn_segment *seg, uint32_t slot);
/*
 * Free the slot of a dead process.  Writer lock held.  False: not while topics are closed, or not
 * yet (PN_REAP): its consumers had more in flight than one hold returns.
 */
bool pn_backend_reap_locked(struct pn_segment *seg, uint32_t slot);
/* Only if it is one. */
bool pn_backend_reap_if_dead_locked(struct pn_segment *seg, uint32_t slot);
/* Every dead slot: a system call for each that is taken.  Writer lock held. */
void pn_backend_reap_all_locked(struct pn_segment *seg);
/* Take the writer lock, and reap the slots whose processes were dead before; found without it. */
int pn_backend_reap_and_lock(struct pn_segment *seg, struct pn_hold *hold);
/* PN_REAP: what was begun is done to its end.  Lock not held. */
void pn_backend_reap_rest(struct pn_segment *seg);

/*
 * A watch walk may need more slots: one was claimed, or is no walk's end any more (watch.c 3).
 * Release: a process that sees the new number sees the slot.  Writer lock held.
 */
static inline void pn_watch_lengthened_locked(struct pn_segment *seg)
{
    pn_assert_held(seg);
    pn_store_release(&seg->ctl->members, pn_load_relaxed(&seg->ctl->members) + 1);
}

/* L3: take our liveness locks again, in case another open+close in this process lost them. */
int pn_backend_keep_alive(struct pn_conn *conn);
/* The same before a sleep, but not at each of many short ones. */
int pn_backend_keep_alive_asleep(struct pn_conn *conn, int64_t now);

/* There may be room: wake the writers that wait for it (rule R9). */
void pn_room_wake(struct pn_segment *seg);

#endif
