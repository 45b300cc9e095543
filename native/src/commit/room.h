/*
 * room.h - making room in the queue for what is about to be appended.
 */
#ifndef PN_ROOM_H
#define PN_ROOM_H

#include "backend/conn.h"

#define PN_TICKET_NS        300000000LL  /* a ticket is valid for: three of the longest waits */
#define PN_WARN_INTERVAL_NS 5000000000LL /* PostgreSQL's QUEUE_FULL_WARN_INTERVAL */

/*
 * One commit's waiting for room under on_full=block; zero at first.  With pn_interruptible a commit
 * that `may_leave` is left, with -EINTR, after each sleep, and goes on with the same struct when it
 * is called again: with its time and its ticket.  Where nothing keeps the struct until then, it is
 * `brief`: left before it sleeps, and without a ticket.
 * `topics`: the dead hold the room, and cannot be reaped while topics are closed: the lock is to be
 * taken by pn_lock_topics() next.
 */
struct pn_room_wait {
    int64_t deadline, interval;
    int64_t left_at; /* a signal ended the wait then; 0: none did */
    uint32_t seq;
    int32_t holder;
    uint64_t ticket;
    bool pass_on; /* others stood behind our ticket */
    bool may_leave, brief, topics;
};

/*
 * Make sure that the queue up to `end` fits, leaving what others have reserved.  0; -EAGAIN: give
 * up every lock, call pn_queue_wait_for_room() and start the commit again; -PN_EQUEUEFULL.
 */
int pn_queue_make_room_locked(struct pn_conn *conn, QueuePosition end, uint64_t own_reserved,
                              struct pn_room_wait *wait);
int pn_queue_wait_for_room(struct pn_conn *conn, struct pn_room_wait *wait);

/* After the lock was released: let the writers look that had to stand behind us. */
void pn_queue_pass_on(struct pn_segment *seg, struct pn_room_wait *wait);

/*
 * The caller will not go on with this wait, and holds no lock: its ticket is given back, and no
 * writer stands behind it any more.  When the writer lock is taken just now, the ticket is left as
 * a dead process's is, and expires.
 */
void pn_queue_stop_waiting(struct pn_segment *seg, struct pn_room_wait *wait);

/* PN_TICKET_NS; tests, in which a writer may not run for longer, have more. */
extern int64_t pn_ticket_ns;

/* What a transaction may take at the most: an empty queue. */
uint64_t pn_queue_largest(const struct pn_segment *seg);

/* PostgreSQL's warning at 50 %, at most every 5 s for the whole segment.  Lock held. */
void pn_queue_fill_warning_locked(struct pn_conn *conn, QueuePosition head, int64_t now);

#endif
