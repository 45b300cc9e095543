/*
 * receive.c - the model's receiving half: asyncQueueReadAllNotifications, and sleeping.
 *
 * 1. Readers take no shared lock.  As long as `want` is beyond `pos` the backend pins the queue
 *    at max(pos, from), so what lies between there and head is not overwritten while it is read;
 *    storing pos gives it up.  A reader whose `want` is not beyond pos reads nothing at all.
 * 2. What of the entries is owed to a reader is read.c's to say.
 * 3. poll() that found nothing leaves the slot asleep and armed.  poll() that found something
 *    leaves it awake: as long as the application works on it, notifiers send no signal, and its
 *    next wait() looks.  A program that watches the descriptor, or waits in another thread, does
 *    not come to that wait(); then the slot is put to sleep at once, or the latch is set if
 *    something is unread (R5).
 * 4. wait() never moves pos, it only puts the slot to sleep where it stands and wakes it: only
 *    reading moves pos over entries.  It leaves ASLEEP only if `want` is beyond pos (R3).
 * 5. watch.c detects deaths.  The slow timer covers the rest: watchers that are all stopped or
 *    busy, a handler or liveness locks that were lost, a segment whose name was removed.  It comes
 *    a second after something was read (two seconds by the descriptor),
 *    jittered, and then each time after twice as long, up to PN_TIMER_MAX_NS: trouble of that kind
 *    follows activity, and a thousand listeners that sleep for an hour cost nothing.  It looks at
 *    the locks, the handler, the name, the writer lock (a dead holder is recovered), and at signals
 *    that are owed and were not sent.
 * 6. Entries of the kind GENERATION are no messages, but may hold a reader back: it stops in front
 *    of the transaction until that is announced, asleep if need be, and never waits for its
 *    committer (generation.c 4 to 6).
 * 7. A sleep that ended with nothing to read returns to the caller, -EINTR.  What ended it may be
 *    a signal of ours and one of the program's at once: the kernel interrupts one sleep for both,
 *    and the program may handle its own only after we return (Python does).  A group that is told
 *    to stop is that case: the first to go signals its neighbours.
 */
#define _GNU_SOURCE
#include "receive/receive.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "backend/backend.h"
#include "backend/channel.h"
#include "backend/generation.h"
#include "backend/latency.h"
#include "base/crashpoint.h"
#include "base/os.h"
#include "queue/queue.h"
#include "receive/linger.h"
#include "receive/read.h"
#include "segment/identity.h"
#include "segment/lock.h"
#include "wakeup/latch.h"
#include "wakeup/lost.h"
#include "wakeup/procsignal.h"
#include "wakeup/watch.h"

#define PN_TIMER_MIN_NS  1000000000LL  /* the slow timer, +-25 %, when something was read; */
#define PN_TIMER_MAX_NS  30000000000LL /* and when nothing was for a minute */
#define PN_TIMER_OWED_NS 500000000LL   /* signals owed longer than that are sent by it */
#define PN_POLL_MODE_NS  2000000LL     /* wakeup="poll": how often it looks, */
#define PN_POLL_BACK_NS  50000000LL    /* and how often the caller may look at its signals */
#define PN_FILE_TRIES    200
#define PN_READ_PIECE    (UINT64_C(1) << 18) /* of the queue; writers that wait get it back */

void pn_receive_close_files(struct pn_conn *conn)
{
    pn_latch_close(conn);
    pn_close_if_ours(conn->epfd, PN_KIND_EPOLL);
    pn_close_if_ours(conn->tfd, PN_KIND_TIMERFD);
    conn->epfd = conn->tfd = -1;
    pn_watch_close(conn);
}

void pn_receive_free(struct pn_conn *conn)
{
    pn_local_free(&conn->local);
    free(conn->chan_seqs);
    pn_copy_free(&conn->copy);
}

/* ---- reading --------------------------------------------------------------------------------- */

static void count_wake(struct pn_conn *conn, bool useful)
{
    struct pn_free_counters *counters = &conn->seg->ctl->free;
    pn_fetch_add_relaxed(useful ? &counters->wakeups_useful : &counters->wakeups_useless, 1);
}

/*
 * Drain the latch, but for what is meant for waiting threads (pn_conn_interrupt() and
 * pn_conn_interrupt_wait()).  Where no flag is set and the program watches no descriptor it is
 * left: if it was written in the very moment, that costs the next wait() a look in vain, and no
 * poll() two system calls.
 */
static uint32_t drain(struct pn_conn *conn)
{
    uint32_t why = 0;
    if (pn_load_relaxed(&conn->fd_flags) != 0 || pn_load_relaxed(&conn->has_fd) != 0)
        why = pn_latch_reset(conn);
    if (pn_load_acquire(&conn->closing) != 0 ||
        (pn_load_acquire(&conn->kicked) != 0 && pn_load_acquire(&conn->waiters) != 0))
        pn_latch_set(conn, PN_FD_POSTED);
    return why;
}

/*
 * Leave the descriptor, and the latch of a thread that waits, as they must be: readable if
 * something is unread, otherwise drained and the slot asleep, since a backend that is awake
 * is not signalled (R5).  Drain first, then go to sleep, which looks once more; never the reverse.
 */
static void leave_armed(struct pn_conn *conn)
{
    uint64_t pos = pn_load_acquire(&conn->me->pos);
    if ((pos & PN_ASLEEP) != 0)
        return;
    if (!pn_readable(conn, pos)) {
        drain(conn);
        pn_clear_owed(conn);
        if (pn_fall_asleep(conn, pos))
            return;
    }
    pn_latch_set(conn, PN_FD_POSTED);
}

/* After a read that took something. */
static void count_productive(struct pn_conn *conn)
{
    uint32_t flags = pn_load_relaxed(&conn->fd_flags);
    if ((flags & PN_FD_SIGNALLED) != 0) { /* that wake-up was useful; what is left is our own */
        pn_fetch_or(&conn->fd_flags, PN_FD_POSTED);
        pn_fetch_and(&conn->fd_flags, ~(uint32_t) PN_FD_SIGNALLED);
        count_wake(conn, true);
        pn_store_relaxed(&conn->woke_at, conn->log != NULL ? (uint64_t) pn_now_ns() : 0);
        pn_store_relaxed(&conn->wake_to_log, PN_LATWAKE_FD);
        pn_store_relaxed(&conn->last_wake, PN_LATWAKE_FD);
    }
}

/*
 * We have read a file to its end, perhaps as the last one: then it can go.  It may be long
 * until another process comes by.  A holder that keeps the lock for longer than a commit takes is
 * not waited for: the next look tries again.
 */
static void pass_files_on(struct pn_conn *conn)
{
    struct pn_hold hold;
    int rc = -EBUSY;
    for (int i = 0; i < PN_FILE_TRIES && rc == -EBUSY; i++) {
        rc = pn_lock_try(conn->seg, &hold);
        if (rc == -EBUSY)
            pn_cpu_relax();
    }
    if (rc != 0)
        return;
    pn_queue_advance_tail_locked(conn->seg);
    pn_lock_release(conn->seg);
    conn->copy.left_file = false;
}

static bool has_some(const pn_batch *batch)
{
    return batch->n + batch->ngaps > 0;
}

/* Read up to `until` or a piece of it, and give it up.  1: go on; 0: no more is there; an error. */
static int read_piece(struct pn_conn *conn, pn_batch *batch, uint64_t max, QueuePosition stood,
                      QueuePosition pos, QueuePosition until)
{
    const struct pn_read_mark mark = {batch->n, batch->ngaps};
    QueuePosition begin = pos;
    int rc = pn_read_entries(conn, batch, &pos, until, max, PN_READ_PIECE);
    PN_CRASH("read:copied");
    if (rc == 0)
        rc = pn_read_move(conn, batch, &mark, stood, pos);
    if (__builtin_expect(rc == -EAGAIN, 0))
        return 1;
    if (rc != 0) {
        batch->n = mark.n;
        batch->ngaps = mark.ngaps;
        return rc;
    }
    PN_CRASH("read:pos");
    if (__builtin_expect(conn->copy.left_file, 0))
        pass_files_on(conn);
    if (has_some(batch)) {
        if (pos >= until || pos == begin || !pn_read_wants_more(batch, max))
            return 0;
        if (pn_load_relaxed(&conn->seg->ctl->room_waiters) != 0)
            pn_room_wake(conn->seg);
        return !pn_held_back(conn);
    }
    if (!pn_held_back(conn))
        return 1;
    rc = pn_generation_await(conn);
    return rc != 0 ? rc : !(pn_held_back(conn) && pn_fall_asleep(conn, pos));
}

/* One look at the queue, as read_piece().  *until: where it ends; 0 before the first. */
static int look(struct pn_conn *conn, pn_batch *batch, uint64_t max, QueuePosition *until)
{
    QueuePosition stood = pn_load_acquire(&conn->me->pos), pos = stood;
    if ((pos & PN_ASLEEP) != 0)
        return 1; /* a wait() of another thread came in between */
    /* up to `want` we pin the queue from max(pos, from) on; nothing else is ours to read */
    uint64_t want = pn_load_acquire(&conn->me->want);
    if (__builtin_expect(!pn_owns_slot(conn), 0)) /* after both: they are no later owner's */
        return pn_conn_reaped(conn);
    if (want <= pos) {
        if (__builtin_expect(conn->copy.left_file, 0))
            pass_files_on(conn);
        return !has_some(batch) && !pn_fall_asleep(conn, pos);
    }
    uint64_t from = pn_load_relaxed(&conn->me->from);
    pos = pos > from ? pos : from;
    QueuePosition head = pn_load_acquire(&conn->seg->ctl->head); /* pairs with atcommit_locked() */
    PN_CRASH("read:head");
    if (pos > head || want > head) /* head was stored before want: it cannot be less */
        return pn_conn_impossible(conn, "backend %u stands beyond the head", conn->slot);
    if (pos >= *until && has_some(batch))
        return 0;
    if (pos >= *until)
        *until = head;
    return read_piece(conn, batch, max, stood, pos, *until);
}

/*
 * Read what is owed; recv_mutex held.  True: something was taken, or an error occurred.  It is
 * given up piece by piece, since writers may wait for room; what was committed since the first
 * look is left, or a fast writer would keep us here.
 */
static bool read_available(struct pn_conn *conn, pn_batch *batch, uint64_t max, int *error)
{
    QueuePosition until = 0;
    int rc = 1;
    pn_clear_owed(conn);
    if (__builtin_expect(pn_held_back(conn), 0)) {
        int failed = pn_generation_await(conn);
        rc = failed != 0 ? failed : 1;
    }
    while (rc > 0 && pn_wake_self(conn))
        rc = look(conn, batch, max, &until);
    *error = rc < 0 && !has_some(batch) ? rc : 0; /* the next call comes to it again */
    return rc < 0 || has_some(batch);
}

static void quicken_timer(struct pn_conn *conn);

static void hand_over(struct pn_conn *conn, const pn_batch *batch)
{
    count_productive(conn);
    quicken_timer(conn);
    if (pn_load_relaxed(&conn->has_fd) != 0 || pn_load_relaxed(&conn->waiters) != 0 ||
        pn_load_relaxed(&conn->in_group.group) != NULL)
        leave_armed(conn);
    if (pn_load_relaxed(&conn->seg->ctl->room_waiters) != 0)
        pn_room_wake(conn->seg);
    if (conn->log == NULL)
        return;
    uint32_t woken_by = pn_exchange(&conn->wake_to_log, 0);
    if (woken_by != 0)
        pn_log_wake(conn, (uint8_t) woken_by, true, batch->n,
                    (int64_t) pn_load_relaxed(&conn->woke_at));
    uint64_t behind =
        pn_load_relaxed(&conn->seg->ctl->head) - (pn_load_relaxed(&conn->me->pos) & ~PN_ASLEEP);
    pn_log_received(conn, batch, conn->chan_seqs, pn_now_ns(), behind / PN_ENTRY_HEADER);
    pn_store_relaxed(&conn->last_wake, PN_LATWAKE_NONE);
}

int64_t pn_slow_timer_max_ns = PN_TIMER_MAX_NS;

static int slow_timer_checks(struct pn_conn *conn);
static void set_descriptor_timer(struct pn_conn *conn);
static void arm_descriptor_timer(struct pn_conn *conn);

/* The descriptor's timer, for a connection that never waits.  1: it ticked, 0, or an error. */
static int serve_timer(struct pn_conn *conn)
{
    uint64_t expired;
    if (pn_load_relaxed(&conn->has_fd) == 0 || pn_load_relaxed(&conn->posted) != 0 ||
        !pn_is_anonymous(conn->tfd) ||
        read(conn->tfd, &expired, sizeof expired) != (ssize_t) sizeof expired)
        return 0;
    int rc = slow_timer_checks(conn); /* clears `owed`, so the caller must look again */
    set_descriptor_timer(conn);
    return rc != 0 ? rc : 1;
}

/* A dead neighbour makes the descriptor readable until its slot is taken over. */
static void serve_neighbours(struct pn_conn *conn)
{
    pn_watch_look_receiving(conn);
    if (pn_load_relaxed(&conn->watch.retry_at) != 0)
        set_descriptor_timer(conn);
}

static int64_t poll_once(struct pn_conn *conn, pn_batch *batch, uint64_t max)
{
    int error = 0;
    if (read_available(conn, batch, max, &error)) {
        if (error != 0)
            return error;
        hand_over(conn, batch);
        return (int64_t) batch->n;
    }
    /* drain what made us look in vain, and then look once more: never the reverse */
    if (pn_load_relaxed(&conn->has_fd) != 0)
        serve_neighbours(conn);
    error = serve_timer(conn);
    if (error < 0)
        return error;
    uint32_t why = drain(conn);
    if (why == 0 && error == 0)
        return 0;
    PN_CRASH("wake:drained");
    if (read_available(conn, batch, max, &error)) {
        if (error != 0)
            return error;
        if ((why & PN_FD_SIGNALLED) != 0)
            count_wake(conn, true);
        hand_over(conn, batch);
        return (int64_t) batch->n;
    }
    if ((why & PN_FD_SIGNALLED) != 0) {
        count_wake(conn, false);
        if (conn->log != NULL)
            pn_log_wake(conn, PN_LATWAKE_FD, false, 0, pn_now_ns());
    }
    return 0;
}

static int64_t poll_receiving(struct pn_conn *conn, pn_batch *batch, uint64_t max)
{
    int64_t n = poll_once(conn, batch, max);
    if (n != 0 || batch->ngaps != 0)
        return n;
    int rc = pn_watch_look_at_commit(conn);
    return rc > 0 ? poll_once(conn, batch, max) : rc;
}

/* 0 with recv_mutex held.  -PN_ELOCKBUSY: the caller must not wait, neither for another thread that
 * commits a LISTEN nor for pages that are in files. */
static int lock_receiving(struct pn_conn *conn)
{
    if (!pn_never_wait) {
        pthread_mutex_lock(&conn->recv_mutex);
        return 0;
    }
    if (pn_load_relaxed(&conn->me->pos) < pn_load_relaxed(&conn->seg->ctl->mem_tail))
        return -PN_ELOCKBUSY;
    return pthread_mutex_trylock(&conn->recv_mutex) == 0 ? 0 : -PN_ELOCKBUSY;
}

int64_t pn_receive_poll(struct pn_conn *conn, pn_batch *batch, uint64_t max)
{
    batch->n = 0;
    batch->ngaps = 0;
    batch->by_pattern = 0;
    batch->with_headers = 0;
    int64_t n = pn_conn_check_receiver(conn);
    if (n != 0)
        return n;
    if ((n = lock_receiving(conn)) != 0)
        return n;
    if (pn_load_relaxed(&conn->posted) != 0 && pn_exchange(&conn->posted, 0) != 0)
        arm_descriptor_timer(conn);
    if (pn_load_relaxed(&conn->has_fd) != 0)
        pn_watch_arm_receiving(conn); /* this may leave the slot asleep */
    n = pn_local_begin_poll(&conn->local, batch);
    if (n == 0)
        n = poll_receiving(conn, batch, max == 0 ? UINT64_MAX : max);
    if (n < 0)
        pn_local_tell_again(batch);
    pthread_mutex_unlock(&conn->recv_mutex);
    return n;
}

uint64_t pn_receive_unread(struct pn_conn *conn)
{
    if (pn_conn_check_receiver(conn) != 0)
        return 0;
    uint64_t pos = pn_load_acquire(&conn->me->pos) & ~PN_ASLEEP;
    uint64_t from = pn_load_relaxed(&conn->me->from), want = pn_load_relaxed(&conn->me->want);
    uint64_t begin = pos > from ? pos : from;
    return want > begin ? want - begin : 0;
}

/* ---- the slow timer -------------------------------------------------------------------------- */

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
static void set_timer(const struct pn_conn *conn, int64_t at)
{
    const struct itimerspec timer = {
        .it_interval = {.tv_nsec = conn->signo < 0 ? PN_POLL_MODE_NS : 0},
        .it_value = {.tv_sec = at / 1000000000, .tv_nsec = at % 1000000000}};
    if (pn_load_acquire(&conn->fd_lost) == 0)
        timerfd_settime(conn->tfd, TFD_TIMER_ABSTIME, &timer, NULL);
}

/* recv_mutex held.  After a post at once: one that comes in between is seen after the call. */
static void arm_descriptor_timer(struct pn_conn *conn)
{
    set_timer(conn, conn->tfd_due);
    if (pn_load_seq_cst(&conn->posted) != 0)
        set_timer(conn, 1);
}

static void set_descriptor_timer(struct pn_conn *conn)
{
    int64_t now = pn_now_ns();
    if (conn->signo < 0) {
        conn->tfd_due = now + PN_POLL_MODE_NS;
        return arm_descriptor_timer(conn);
    }
    int64_t retry_at = (int64_t) pn_load_relaxed(&conn->watch.retry_at);
    int64_t period = timer_period(conn);
    conn->tfd_due = retry_at == 0 ? now + period : retry_at > 1 ? retry_at : 1;
    arm_descriptor_timer(conn);
}

/* Something was read: the timer is at its shortest again. */
static void quicken_timer(struct pn_conn *conn)
{
    if (__builtin_expect(pn_load_relaxed(&conn->timer_step) == 0, 1))
        return;
    pn_store_relaxed(&conn->timer_step, 0);
    if (pn_load_relaxed(&conn->has_fd) != 0)
        set_descriptor_timer(conn);
}

static int slow_timer_checks(struct pn_conn *conn)
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
        rc = pn_procsignal_arm(conn);
    if (rc != 0)
        return rc;
    if (pn_lock_try(seg, &hold) == 0) /* a dead holder is recovered in here */
        pn_lock_release(seg);
    pn_clear_owed(conn);
    pn_watch_send_owed(seg, PN_TIMER_OWED_NS);
    return pn_segment_check_state(seg);
}

/* ---- waiting --------------------------------------------------------------------------------- */

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
        count_wake(conn, found);
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
    return rc == 0 && pn_load_relaxed(&conn->nlistening) != 0 ? pn_procsignal_arm(conn) : rc;
}

/* Another thread read what this one waits for.  Set before the latch, taken after its reset. */
static bool take_interrupt(struct pn_conn *conn)
{
    return pn_load_relaxed(&conn->kicked) != 0 && pn_exchange(&conn->kicked, 0) != 0;
}

/* The slow timer's time; sooner than it was set for, if something was read since. */
static int64_t timer_due(struct pn_conn *conn, int64_t now)
{
    int64_t due = (int64_t) pn_load_relaxed(&conn->next_timer_ns);
    if (pn_load_relaxed(&conn->timer_step) == 0 && due != INT64_MAX &&
        due - now > PN_TIMER_MIN_NS * 5 / 2) {
        due = now + timer_period(conn);
        pn_store_relaxed(&conn->next_timer_ns, (uint64_t) due);
    }
    return due;
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
        /* prepare_to_sleep() takes recv_mutex: after an earlier drain() `kicked` is set for us, a
         * later one sees us */
        if (!prepare_to_sleep(conn) || take_interrupt(conn))
            return 1 | pn_conn_notice_bit(conn);
        int64_t now = pn_now_ns();
        if (first) {
            start = now;
            deadline = timeout_ns < 0 ? INT64_MAX : now + timeout_ns;
            back_at = conn->signo < 0 && deadline - now > PN_POLL_BACK_NS ? now + PN_POLL_BACK_NS
                                                                          : INT64_MAX;
            rc = before_blocking(conn, now);
            if (rc == 0 && pn_lost_due()) {
                rc = replace_lost(conn);
                continue;
            }
        }
        int64_t timer_at = timer_due(conn, now);
        if (rc == 0 && now >= timer_at) {
            rc = slow_timer_checks(conn);
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
            return -EINTR; /* 7 */
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
    set_timer(conn, 1);
}

/* ---- one descriptor for any event loop ------------------------------------------------------- */

int pn_receive_mute_fd(struct pn_conn *conn)
{
    int rc = pn_conn_check_receiver(conn);
    if (rc != 0)
        return rc;
    pthread_mutex_lock(&conn->recv_mutex);
    serve_neighbours(conn);
    rc = serve_timer(conn);
    drain(conn);
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
    set_descriptor_timer(conn);
    pn_watch_arm_receiving(conn);
    leave_armed(conn); /* what is unread now was perhaps never signalled */
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
