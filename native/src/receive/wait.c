/*
 * wait.c - sleeping until something is to be read, and being one of many descriptors in an event
 * loop.
 *
 * 1. wait() never moves pos, it only puts the slot to sleep where it stands and wakes it: only
 *    reading moves pos over entries.  It leaves ASLEEP only if `want` is beyond pos (R3).
 * 2. A sleep that ended with nothing to read returns to the caller, -EINTR.  What ended it may be
 *    a signal of ours and one of the program's at once: the kernel interrupts one sleep for both,
 *    and the program may handle its own only after we return (Python does).  A group that is told
 *    to stop is that case: the first to go signals its neighbours.
 */
#define _GNU_SOURCE
#include "receive/wait.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "backend/backend.h"
#include "backend/latency.h"
#include "base/crashpoint.h"
#include "base/os.h"
#include "receive/linger.h"
#include "receive/read.h"
#include "receive/receive.h"
#include "receive/timer.h"
#include "segment/identity.h"
#include "segment/lock.h"
#include "wakeup/handlers.h"
#include "wakeup/latch.h"
#include "wakeup/lost.h"
#include "wakeup/procsignal.h"
#include "wakeup/watch.h"

#define PN_POLL_BACK_NS 50000000LL /* wakeup="poll": how often the caller may look at its signals */

/* Go to sleep where we stand.  False: something is wanted. */
static bool prepare_to_sleep(struct pn_conn *conn)
{
    bool asleep = true;
    pthread_mutex_lock(&conn->recv_mutex); /* a poll() may be moving pos */
    uint64_t pos = pn_load_relaxed(&conn->me->pos);
    if ((pos & PN_ASLEEP) == 0)
        asleep = pn_fall_asleep(conn, pos);
    else
        asleep = !pn_wake_self(conn);
    pthread_mutex_unlock(&conn->recv_mutex);
    return asleep;
}

static int interrupted(struct pn_conn *conn)
{
    pn_latch_set(conn, PN_FD_POSTED); /* the next waiter must see it as well */
    return pn_conn_closed();
}

/* After blocking: drain the latch, clear owed, look (in that order, R3). */
static bool woken(struct pn_conn *conn, const struct pn_sleeper *sleeper, int64_t started)
{
    uint32_t why = (uint32_t) sleeper->signalled;
    int64_t woke_at = conn->log != NULL ? pn_now_ns() : 0;
    if (why == 0 || pn_load_relaxed(&conn->fd_flags) != 0) /* else the latch was not written */
        why |= pn_latch_reset(conn);
    PN_CRASH("wake:drained");
    pn_clear_owed(conn);
    bool found = pn_receive_wanted(conn);
    if ((why & PN_FD_SIGNALLED) != 0) {
        pn_receive_count_wake(conn, found);
        if (found) {
            pn_store_relaxed(&conn->woke_at, (uint64_t) woke_at);
            pn_store_relaxed(&conn->wake_to_log, PN_LATWAKE_SIGNAL);
            pn_store_relaxed(&conn->last_wake, PN_LATWAKE_SIGNAL);
        } else if (conn->log != NULL) {
            pn_log_wake(conn, PN_LATWAKE_SIGNAL, false, 0, woke_at);
        }
    }
    /* a sample of the wake-ups is enough; the clock would be a part of each one's latency */
    if (found && pn_fetch_add_relaxed(&conn->wakes, 1) % 4 == 0) {
        int64_t gap = pn_now_ns() - started;
        pn_linger_note_gap(conn, gap);
        if (gap < PN_SPIN_MAX_NS)
            pn_store_relaxed(&conn->spin_skip, 0); /* spinning would have caught it */
    }
    return found;
}

/*
 * What must hold before a process may block: it is alive to others, and its handler is ours.
 * The handler is looked at each time, since a signal may kill without it; the liveness locks
 * (L3) less often, since without them we are merely not signalled and the slow timer is near.
 */
static int before_blocking(struct pn_conn *conn, int64_t now)
{
    int rc = pn_segment_check_user(conn->seg);
    if (rc == 0)
        rc = pn_backend_keep_alive_asleep(conn, now);
    return rc == 0 && pn_load_relaxed(&conn->nlistening) != 0 ? pn_handler_arm(conn) : rc;
}

/* Another thread read what this one waits for.  Set before the latch, taken after its reset. */
static bool take_interrupt(struct pn_conn *conn)
{
    return pn_load_relaxed(&conn->kicked) != 0 && pn_exchange(&conn->kicked, 0) != 0;
}

/* Block until there is reason to look again, at the latest at `until`. */
static int block(struct pn_conn *conn, struct pn_sleeper *sleeper, int64_t now, int64_t until)
{
    int64_t retry_at = (int64_t) pn_load_relaxed(&conn->watch.retry_at);
    if (conn->signo < 0 && until > now + PN_POLL_MODE_NS)
        until = now + PN_POLL_MODE_NS;
    if (retry_at != 0 && until > retry_at)
        until = retry_at > now ? retry_at : now;
    *sleeper =
        (struct pn_sleeper) {.conn = conn,
                             .fd = pn_load_relaxed(&conn->efd),
                             .set = &conn->sleep_set,
                             .timeout = {(until - now) / 1000000000, (until - now) % 1000000000}};
    int rc = pn_latch_block(sleeper);
    if (__builtin_expect(sleeper->neighbour, 0))
        pn_watch_look(conn);
    return rc;
}

/*
 * The program has closed what we sleep on, or may have: what is lost is made again, and the caller
 * goes round again.
 */
static int replace_lost(struct pn_conn *conn)
{
    pn_lost_look();
    int rc = pn_lost_check_fd(conn);
    return rc != 0 ? rc : pn_latch_open(conn);
}

/* The slow half of wait(): counted in `waiters` from before it settles (R5 across threads). */
static int sleep_until_wanted(struct pn_conn *conn, int64_t timeout_ns)
{
    int64_t start = 0, deadline = INT64_MAX, back_at = INT64_MAX;
    int failures = 0, rc = pn_lost_check_fd(conn);
    if (rc == 0)
        rc = pn_latch_open(conn);
    if (rc == 0 && pn_load_acquire(&conn->closing) != 0)
        return interrupted(conn);
    for (bool first = true; rc == 0; first = false) {
        pn_watch_arm(conn);
        /* prepare_to_sleep() takes recv_mutex: after an earlier drain of the latch
         * `kicked` is set for us, a later one sees us */
        if (!prepare_to_sleep(conn) || take_interrupt(conn))
            return 1 | pn_conn_notice_bit(conn);
        int64_t now = pn_now_ns();
        if (first) {
            start = now;
            deadline = timeout_ns < 0 ? INT64_MAX : pn_after(now, timeout_ns);
            back_at = conn->signo < 0 && deadline - now > PN_POLL_BACK_NS ? now + PN_POLL_BACK_NS
                                                                          : INT64_MAX;
            rc = before_blocking(conn, now);
            if (rc == 0 && pn_lost_due()) {
                rc = replace_lost(conn);
                continue;
            }
        }
        int64_t timer_at = pn_timer_due(conn, now);
        if (rc == 0 && now >= timer_at) {
            rc = pn_timer_checks(conn);
            return rc != 0 ? rc : -EINTR; /* the caller may have signals of its own to handle */
        }
        if (rc != 0)
            break;
        if (now >= deadline)
            return pn_conn_notice_bit(conn);
        struct pn_sleeper sleeper;
        rc = block(conn, &sleeper, now, timer_at < deadline ? timer_at : deadline);
        if (pn_load_acquire(&conn->closing) != 0)
            return interrupted(conn);
        if (woken(conn, &sleeper, start) || take_interrupt(conn))
            return 1 | pn_conn_notice_bit(conn);
        bool timed_out = rc == 0 && sleeper.signalled == 0;
        if ((rc == -EBADF || rc == -EINVAL) && failures++ < PN_WAIT_TRIES) {
            rc = replace_lost(conn);
            continue;
        }
        rc = rc < 0 && rc != -EINTR ? pn_fail(-rc, "could not wait: %s", strerror(-rc))
                                    : pn_conn_check_receiver(conn);
        if (rc == 0 && !(timed_out && pn_now_ns() < back_at))
            return -EINTR; /* 2 */
    }
    return rc;
}

int pn_receive_wait(struct pn_conn *conn, int64_t timeout_ns)
{
    int rc = pn_conn_check_receiver(conn);
    if (rc != 0)
        return rc;
    if (take_interrupt(conn))
        return 1 | pn_conn_notice_bit(conn);
    if (pn_receive_wanted(conn) || (timeout_ns != 0 && pn_linger(conn))) {
        pn_linger_note_gap(conn, 0);
        return 1 | pn_conn_notice_bit(conn);
    }
    /* ordered against a poll() of another thread by recv_mutex, which prepare_to_sleep() takes */
    pn_fetch_add_relaxed(&conn->waiters, 1);
    rc = sleep_until_wanted(conn, timeout_ns);
    pn_fetch_add_relaxed(&conn->waiters, (uint32_t) -1);
    return rc;
}

void pn_receive_interrupt(struct pn_conn *conn)
{
    pn_store_release(&conn->closing, 1);
    pn_latch_set(conn, PN_FD_POSTED);
}

void pn_receive_interrupt_wait(struct pn_conn *conn)
{
    pn_store_release(&conn->kicked, 1);
    pn_latch_set(conn, PN_FD_POSTED);
}

/*
 * Not the latch: a thread in wait() would drain that, and find nothing.  The flag goes first:
 * a thread that sets the timer for later looks at it afterwards.
 */
void pn_receive_mark_readable(struct pn_conn *conn)
{
    if (pn_load_acquire(&conn->has_fd) == 0)
        return;
    pn_store_seq_cst(&conn->posted, 1);
    pn_timer_set(conn, 1);
}

/* ---- one descriptor for any event loop ------------------------------------------------------- */

int pn_receive_mute_fd(struct pn_conn *conn)
{
    int rc = pn_conn_check_receiver(conn);
    if (rc != 0)
        return rc;
    pthread_mutex_lock(&conn->recv_mutex);
    pn_receive_serve_neighbours(conn);
    rc = pn_timer_serve(conn);
    pn_receive_drain(conn);
    pthread_mutex_unlock(&conn->recv_mutex);
    return rc < 0 ? rc : 0;
}

static int add_to_epoll(int epfd, int fd)
{
    struct epoll_event ev = {.events = EPOLLIN};
    return epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &ev);
}

static int make_descriptor(struct pn_conn *conn)
{
    int epfd = epoll_create1(EPOLL_CLOEXEC);
    int tfd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    int watched = pn_watch_open(conn);
    bool grouped = pn_load_relaxed(&conn->in_group.group) != NULL;
    if (epfd < 0 || tfd < 0 || watched < 0 ||
        (!grouped && add_to_epoll(epfd, pn_load_relaxed(&conn->efd)) != 0) ||
        add_to_epoll(epfd, tfd) != 0 ||
        (watched == 0 && add_to_epoll(epfd, pn_load_relaxed(&conn->watch.epfd)) != 0)) {
        int error = errno;
        const int made[] = {epfd, tfd};
        for (size_t i = 0; i < sizeof made / sizeof made[0]; i++)
            if (made[i] >= 0)
                close(made[i]);
        return pn_fail(error, "could not create the descriptor to wait on: %s", strerror(error));
    }
    conn->epfd = epfd;
    conn->tfd = tfd;
    conn->watch.in_epfd = watched == 0;
    pn_store_release(&conn->has_fd, 1);
    pn_timer_set_descriptor(conn);
    pn_watch_arm_receiving(conn);
    pn_receive_leave_armed(conn); /* what is unread now was perhaps never signalled */
    return 0;
}

int pn_receive_fileno(struct pn_conn *conn)
{
    int rc = pn_conn_check_receiver(conn);
    if (rc == 0)
        rc = pn_segment_check_user(conn->seg);
    if (rc == 0)
        rc = pn_lost_check_fd(conn);
    if (rc == 0 && pn_load_relaxed(&conn->in_group.group) == NULL)
        rc = pn_latch_open(conn);
    if (rc != 0)
        return rc;
    pthread_mutex_lock(&conn->recv_mutex);
    if (conn->epfd < 0)
        rc = make_descriptor(conn);
    pthread_mutex_unlock(&conn->recv_mutex);
    return rc != 0 ? rc : conn->epfd;
}

void pn_receive_close_files(struct pn_conn *conn)
{
    pn_latch_close(conn);
    pn_close_if_ours(conn->epfd, PN_KIND_EPOLL);
    pn_close_if_ours(conn->tfd, PN_KIND_TIMERFD);
    conn->epfd = conn->tfd = -1;
    pn_watch_close(conn);
}
