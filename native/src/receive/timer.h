/* timer.h - the slow timer of a connection that receives: what covers for a lost wake-up. */
#ifndef PN_TIMER_H
#define PN_TIMER_H

#include "backend/conn.h"

#define PN_POLL_MODE_NS 2000000LL /* wakeup="poll": how often it looks */

/* The longest period; a benchmark sets it. */
extern int64_t pn_slow_timer_max_ns;

/* The descriptor's timer at that time, CLOCK_MONOTONIC ns. */
void pn_timer_set(const struct pn_conn *conn, int64_t at);
/* The same for the time that it is due, or at once after a post.  recv_mutex held. */
void pn_timer_arm_descriptor(struct pn_conn *conn);
/* A period from now on; sooner, if a neighbour is to be looked at. */
void pn_timer_set_descriptor(struct pn_conn *conn);
/* The descriptor's timer, for a connection that never waits.  1: it ticked, 0, or an error. */
int pn_timer_serve(struct pn_conn *conn);

/* When it is due for a thread that waits; sooner than it was set for, if something was read. */
int64_t pn_timer_due(struct pn_conn *conn, int64_t now);
/* What is looked at when it is due; clears `owed`, so the caller must look again. */
int pn_timer_checks(struct pn_conn *conn);

void pn_timer_shorten(struct pn_conn *conn);
/* Something was read. */
static inline void pn_timer_quicken(struct pn_conn *conn)
{
    if (__builtin_expect(pn_load_relaxed(&conn->timer_step) != 0, 0))
        pn_timer_shorten(conn);
}

#endif
