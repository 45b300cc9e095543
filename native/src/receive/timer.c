/*
 * timer.c - the slow timer of a connection that receives.
 *
 * watch.c detects deaths.  The slow timer covers the rest: watchers that are all stopped or busy, a
 * handler or liveness locks that were lost, a segment whose name was removed.  It comes a second
 * after something was read (two seconds by the descriptor), jittered, and then each time after
 * twice as long, up to PN_TIMER_MAX_NS: trouble of that kind follows activity, and a thousand
 * listeners that sleep for an hour cost nothing.  It looks at the locks, the handler, the name, the
 * writer lock (a dead holder is recovered), and at signals that are owed and were not sent.
 */
#define _GNU_SOURCE
#include "receive/timer.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include "backend/backend.h"
#include "base/os.h"
#include "receive/read.h"
#include "segment/identity.h"
#include "segment/lock.h"
#include "wakeup/handlers.h"
#include "wakeup/latch.h"
#include "wakeup/procsignal.h"
#include "wakeup/watch.h"

#define PN_TIMER_MIN_NS  1000000000LL  /* +-25 %, when something was read; */
#define PN_TIMER_MAX_NS  30000000000LL /* and when nothing was for a minute */
#define PN_TIMER_OWED_NS 500000000LL   /* signals owed longer than that are sent by it */

int64_t pn_slow_timer_max_ns = PN_TIMER_MAX_NS;

/* While we have not as many neighbours in view as we should, the timer stands in for them. */
static int64_t timer_period(struct pn_conn *conn)
{
    /* jitter from what differs between connections, so that a thousand do not tick together */
    uint64_t mixed = ((uint64_t) conn->pid << 20 ^ conn->slot) * 0x9e3779b97f4a7c15ULL;
    bool watched =
        pn_load_relaxed(&conn->nlistening) == 0 || pn_load_relaxed(&conn->watch.complete) != 0;
    int64_t period = PN_TIMER_MIN_NS << (watched ? pn_load_relaxed(&conn->timer_step) : 0);
    if (pn_load_relaxed(&conn->has_fd) != 0)
        period *= 2;
    period = period < pn_slow_timer_max_ns ? period : pn_slow_timer_max_ns;
    return period * 3 / 4 + (int64_t) (mixed >> 24) % (period / 2);
}

/* The timer at that time, CLOCK_MONOTONIC ns; a program that polls has an interval, a short one. */
void pn_timer_set(const struct pn_conn *conn, int64_t at)
{
    const struct itimerspec timer = {
        .it_interval = {.tv_nsec = conn->signo < 0 ? PN_POLL_MODE_NS : 0},
        .it_value = {.tv_sec = at / 1000000000, .tv_nsec = at % 1000000000}};
    if (pn_load_acquire(&conn->fd_lost) == 0)
        timerfd_settime(conn->tfd, TFD_TIMER_ABSTIME, &timer, NULL);
}

/* recv_mutex held.  After a post at once: one that comes in between is seen after the call. */
void pn_timer_arm_descriptor(struct pn_conn *conn)
{
    pn_timer_set(conn, conn->tfd_due);
    if (pn_load_seq_cst(&conn->posted) != 0)
        pn_timer_set(conn, 1);
}

void pn_timer_set_descriptor(struct pn_conn *conn)
{
    int64_t now = pn_now_ns();
    if (conn->signo < 0) {
        conn->tfd_due = now + PN_POLL_MODE_NS;
        return pn_timer_arm_descriptor(conn);
    }
    int64_t retry_at = (int64_t) pn_load_relaxed(&conn->watch.retry_at);
    int64_t period = timer_period(conn);
    conn->tfd_due = retry_at == 0 ? now + period : retry_at > 1 ? retry_at : 1;
    pn_timer_arm_descriptor(conn);
}

/* The timer is at its shortest again. */
void pn_timer_shorten(struct pn_conn *conn)
{
    pn_store_relaxed(&conn->timer_step, 0);
    if (pn_load_relaxed(&conn->has_fd) != 0)
        pn_timer_set_descriptor(conn);
}

int pn_timer_checks(struct pn_conn *conn)
{
    struct pn_hold hold;
    struct pn_segment *seg = conn->seg;
    uint32_t step = pn_load_relaxed(&conn->timer_step);
    if (PN_TIMER_MIN_NS << step < PN_TIMER_MAX_NS)
        pn_store_relaxed(&conn->timer_step, step + 1);
    pn_store_relaxed(&conn->next_timer_ns, (uint64_t) (pn_now_ns() + timer_period(conn)));
    pn_os_refresh_cpus();
    pn_segment_unlinked(seg);
    int rc = pn_segment_check_state(seg);
    if (rc == 0)
        rc = pn_segment_check_user(seg);
    if (rc == 0)
        rc = pn_backend_keep_alive(conn);
    if (rc == 0 && pn_load_relaxed(&conn->nlistening) != 0)
        rc = pn_handler_arm(conn);
    if (rc != 0)
        return rc;
    if (pn_lock_try(seg, &hold) == 0) /* a dead holder is recovered in here */
        pn_lock_release(seg);
    pn_clear_owed(conn);
    pn_watch_send_owed(seg, PN_TIMER_OWED_NS);
    return pn_segment_check_state(seg);
}

/* The descriptor's timer, for a connection that never waits.  1: it ticked, 0, or an error. */
int pn_timer_serve(struct pn_conn *conn)
{
    uint64_t expired;
    if (pn_load_relaxed(&conn->has_fd) == 0 || pn_load_relaxed(&conn->posted) != 0 ||
        !pn_is_anonymous(conn->tfd) ||
        read(conn->tfd, &expired, sizeof expired) != (ssize_t) sizeof expired)
        return 0;
    int rc = pn_timer_checks(conn); /* clears `owed`, so the caller must look again */
    pn_timer_set_descriptor(conn);
    return rc != 0 ? rc : 1;
}

/* The slow timer's time; sooner than it was set for, if something was read since. */
int64_t pn_timer_due(struct pn_conn *conn, int64_t now)
{
    int64_t due = (int64_t) pn_load_relaxed(&conn->next_timer_ns);
    if (pn_load_relaxed(&conn->timer_step) == 0 && due != INT64_MAX &&
        due - now > PN_TIMER_MIN_NS * 5 / 2) {
        due = now + timer_period(conn);
        pn_store_relaxed(&conn->next_timer_ns, (uint64_t) due);
    }
    return due;
}
