/*
 * receive.c - the model's receiving half: asyncQueueReadAllNotifications.
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
 * 4. Entries of the kind GENERATION are no messages, but may hold a reader back: it stops in front
 *    of the transaction until that is announced, asleep if need be, and never waits for its
 *    committer (generation.c 4 to 6).
 */
#define _GNU_SOURCE
#include "receive/receive.h"

#include <errno.h>
#include <stdlib.h>

#include "backend/backend.h"
#include "backend/channel.h"
#include "backend/latency.h"
#include "base/crashpoint.h"
#include "base/os.h"
#include "queue/queue.h"
#include "receive/read.h"
#include "receive/timer.h"
#include "segment/lock.h"
#include "wakeup/latch.h"
#include "wakeup/procsignal.h"
#include "wakeup/watch.h"

#define PN_FILE_TRIES 200
#define PN_READ_PIECE (UINT64_C(1) << 18) /* of the queue; writers that wait get it back */

void pn_receive_free(struct pn_conn *conn)
{
    pn_local_free(&conn->local);
    free(conn->chan_seqs);
    pn_copy_free(&conn->copy);
}

/* ---- reading --------------------------------------------------------------------------------- */

void pn_receive_count_wake(struct pn_conn *conn, bool useful)
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
uint32_t pn_receive_drain(struct pn_conn *conn)
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
void pn_receive_leave_armed(struct pn_conn *conn)
{
    uint64_t pos = pn_load_acquire(&conn->me->pos);
    if ((pos & PN_ASLEEP) != 0)
        return;
    if (!pn_readable(conn, pos)) {
        pn_receive_drain(conn);
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
        pn_receive_count_wake(conn, true);
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
static int read_once(struct pn_conn *conn, pn_batch *batch, uint64_t max, QueuePosition *until)
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
        rc = read_once(conn, batch, max, &until);
    *error = rc < 0 && !has_some(batch) ? rc : 0; /* the next call comes to it again */
    return rc < 0 || has_some(batch);
}

static void hand_over(struct pn_conn *conn, const pn_batch *batch)
{
    count_productive(conn);
    pn_timer_quicken(conn);
    if (pn_load_relaxed(&conn->has_fd) != 0 || pn_load_relaxed(&conn->waiters) != 0 ||
        pn_load_relaxed(&conn->in_group.group) != NULL)
        pn_receive_leave_armed(conn);
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

/* A dead neighbour makes the descriptor readable until its slot is taken over. */
void pn_receive_serve_neighbours(struct pn_conn *conn)
{
    pn_watch_look_receiving(conn);
    if (pn_load_relaxed(&conn->watch.retry_at) != 0)
        pn_timer_set_descriptor(conn);
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
        pn_receive_serve_neighbours(conn);
    error = pn_timer_serve(conn);
    if (error < 0)
        return error;
    uint32_t why = pn_receive_drain(conn);
    if (why == 0 && error == 0)
        return 0;
    PN_CRASH("wake:drained");
    if (read_available(conn, batch, max, &error)) {
        if (error != 0)
            return error;
        if ((why & PN_FD_SIGNALLED) != 0)
            pn_receive_count_wake(conn, true);
        hand_over(conn, batch);
        return (int64_t) batch->n;
    }
    if ((why & PN_FD_SIGNALLED) != 0) {
        pn_receive_count_wake(conn, false);
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
        pn_timer_arm_descriptor(conn);
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
