/*
 * room.c - a full queue.
 *
 * 1. There is room for an append up to `end` if it stays below tail + max_queue_pages and, where
 *    pages go to files, below mem_tail + the ring; what others have reserved counts as used (I12).
 *    When it does not: the tail is computed; a process that holds it, or has reserved room, is
 *    reaped if it is dead; the oldest pages are moved to files (spill.c), if that is what is short;
 *    and then on_full decides.
 *    While topics are closed no slot is freed: a writer that finds a dead process in its way takes
 *    the lock once more as those do that want topics, and so helps to open them.
 * 2. error: QueueFull, which names the process that holds the tail.
 * 3. drop-slowest: `floor` is raised to the end of the page in which enough room is reached, then
 *    the tail to `floor`, then the ring is overwritten.  A reader that stands below `floor` has
 *    lost what is there, and is told by a Gap when it reads (copy.c).  Its position is not touched:
 *    that of an awake slot has one writer, its owner (R7).  Killed between floor and tail: the
 *    eviction has happened, a little early.
 * 4. block: wait until the holder of the tail reads, without any lock, up to full_timeout.  The
 *    second scan, after the fence, is what closes the race:
 *
 *        writer (lock held)                     reader
 *          s = room_seq                             pos = ... (or quiet)
 *          room_waiters = 1                         --- full fence ---
 *          --- full fence ---                       if room_waiters:
 *          scan again; room: go on                     room_waiters = 0; room_seq++; wake all
 *          unlock; wait while room_seq == s
 *
 *    The wait is bounded because a reader may die instead of reading, or between the two stores;
 *    so a reader may also leave the fence out while it is busy.
 * 5. block, fairness.  Room comes in small pieces, and small commits would take every piece before
 *    a large one has what it needs.  So a writer that has to wait draws a ticket, and no writer
 *    takes room while a smaller number is valid (any, if it has none itself), but
 *      - a commit that has its room reserved;
 *      - a writer that holds the tail itself, since it cannot read while it waits here;
 *      - a writer at its own deadline: room that is there is not refused.
 *    A ticket is valid for 300 ms from the last time that its owner looked, so an owner that is
 *    stopped or dead holds the others up no longer than that; and for half of full_timeout in all,
 *    so that an owner that waits for a stuck listener does not stop all others for as long.  An
 *    expired one is forgotten; its owner comes back with its old number.  All of it may be lost
 *    without harm but to order.
 * 6. block, signals.  A caller whose language runs its signal handlers between two calls gets
 *    -EINTR after each sleep, of 100 ms at the most, and comes back with its ticket, which is valid
 *    meanwhile.  When it does not come back, because a handler raised, it gives the ticket back;
 *    and if it cannot do so at once, or is killed before, that is a dead owner's ticket: 5.
 */
#define _GNU_SOURCE
#include "commit/room.h"

#include <errno.h>
#include <stdio.h>

#include "backend/backend.h"
#include "base/crashpoint.h"
#include "base/os.h"
#include "queue/queue.h"
#include "queue/spill.h"
#include "segment/lock.h"
#include "wakeup/send.h"

#define PN_ROOM_WAIT_MIN_NS 10000000LL
#define PN_ROOM_WAIT_MAX_NS 100000000LL
#define PN_ROOM_LEFT_NS     1000000000LL /* a wait that a signal ended goes on within this */

/* ---- is there room ------------------------------------------------------------------------ */

/* What is about to be appended.  What others have reserved may change meanwhile, by reaping. */
struct append {
    QueuePosition end;
    uint64_t own_reserved;
};

static QueuePosition end_of(const struct pn_segment *seg, const struct append *a)
{
    return a->end + seg->ctl->reserved - a->own_reserved;
}

/* Below which position what is appended, and what others have reserved, has to end. */
static QueuePosition limit_of(const struct pn_segment *seg)
{
    QueuePosition limit = pn_load_relaxed(&seg->ctl->tail) + seg->capacity;
    if (!seg->spills)
        return limit;
    QueuePosition ring_limit = pn_load_relaxed(&seg->ctl->mem_tail) + seg->ring_bytes;
    return limit < ring_limit ? limit : ring_limit;
}

static bool fits(const struct pn_segment *seg, const struct append *a)
{
    return end_of(seg, a) <= limit_of(seg);
}

uint64_t pn_queue_largest(const struct pn_segment *seg)
{
    return seg->ring_bytes - (seg->spills ? PN_QUEUE_PAGE : 0); /* spill.c 3 */
}

/* `closed`: it is dead, but no slot is freed while topics are closed. */
static bool reap_holder(struct pn_segment *seg, uint32_t slot, bool *closed)
{
    if (pn_load_relaxed(&seg->backend[slot].state) != PN_SLOT_CLAIMED ||
        pn_backend_verdict(seg, slot) != PN_DEAD)
        return false;
    bool reaped = pn_backend_reap_locked(seg, slot);
    *closed = *closed || !reaped;
    return reaped;
}

/*
 * Reap the dead among those that hold the room: by pinning the tail, or by having reserved some
 * (R10).  Of those that pin, only the first decides: one that stands behind a living one gives
 * nothing if it is reaped, and liveness is a system call.  Returns the slot that holds the tail
 * then.
 */
static int32_t reap_room_holders(struct pn_segment *seg, const struct append *a, int32_t holder,
                                 bool *closed)
{
    *closed = false;
    while (!fits(seg, a) && holder >= 0 && reap_holder(seg, (uint32_t) holder, closed))
        holder = pn_queue_advance_tail_locked(seg);
    for (uint32_t slot = 0;
         slot < seg->max_backends && !fits(seg, a) && seg->ctl->reserved > a->own_reserved; slot++)
        if (seg->backend[slot].reserved != 0 && reap_holder(seg, slot, closed))
            holder = pn_queue_advance_tail_locked(seg);
    return holder;
}

/* ---- why there is none -------------------------------------------------------------------- */

static const char full_message[] = "too many notifications in the NOTIFY queue";

static int queue_full(struct pn_conn *conn, int32_t holder, bool waited)
{
    struct pn_segment *seg = conn->seg;
    char within[48] = "";
    if (holder < 0)
        return pn_fail(PN_EQUEUEFULL,
                       "%s\nPrepared transactions have reserved %llu of its %llu bytes.",
                       full_message, (unsigned long long) seg->ctl->reserved,
                       (unsigned long long) pn_queue_largest(seg));
    if (waited)
        snprintf(within, sizeof within, " within %g s", (double) seg->full_timeout_ns / 1e9);
    return pn_fail(PN_EQUEUEFULL,
                   "%s\nThe process with PID %d (backend %d) has not read the oldest of them%s. "
                   "Let it call poll() or end its transaction, or create the segment with more "
                   "%s.",
                   full_message, pn_load_relaxed(&seg->backend[holder].pid), holder, within,
                   seg->spills ? "max_queue_pages" : "queue_pages");
}

/* The sentence about the file is in pn_error_message(). */
static int spill_failed(struct pn_conn *conn, int32_t holder)
{
    char cause[512];
    snprintf(cause, sizeof cause, "%s", pn_error_message());
    cause[strcspn(cause, "\n")] = '\0';
    int32_t pid = holder < 0 ? 0 : pn_load_relaxed(&conn->seg->backend[holder].pid);
    return pn_fail(PN_EQUEUEFULL,
                   "%s\nIts oldest pages cannot go to a file: %s. Make room there, or let the "
                   "process with PID %d read what it has not read.",
                   full_message, cause, pid);
}

static bool may_warn(struct pn_segment *seg, int64_t now)
{
    if (now - seg->ctl->last_room_warn < PN_WARN_INTERVAL_NS && seg->ctl->last_room_warn != 0)
        return false;
    seg->ctl->last_room_warn = now;
    return true;
}

/* ---- drop-slowest ------------------------------------------------------------------------- */

/* The first start of a page from `target` on where an entry begins, or head.  0: poisoned. */
static QueuePosition find_floor(struct pn_segment *seg, QueuePosition target, QueuePosition head)
{
    QueuePosition at = pn_load_relaxed(&seg->ctl->tail);
    QueuePosition mem_tail = pn_load_relaxed(&seg->ctl->mem_tail);
    if (at < mem_tail)
        at = pn_spill_boundary(seg, target, mem_tail);
    while (at < target) {
        at = pn_queue_next_page(seg, at, head);
        if (at == 0)
            return 0;
    }
    return at < head ? at : head;
}

/* The tail has to come to `target`.  False: it cannot. */
static bool evict_locked(struct pn_conn *conn, QueuePosition target, int32_t holder)
{
    pn_assert_held(conn->seg);
    struct pn_segment *seg = conn->seg;
    struct AsyncQueueControl *ctl = seg->ctl;
    QueuePosition head = pn_load_relaxed(&ctl->head), tail = pn_load_relaxed(&ctl->tail);
    if (target > head)
        return false; /* others have reserved too much */
    QueuePosition floor = find_floor(seg, target, head);
    if (floor == 0)
        return false;
    pn_store_release(&ctl->floor, floor); /* pairs with the acquire in pn_copy_fetch() */
    PN_CRASH("evict:floor");
    pn_queue_advance_tail_locked(seg);
    PN_CRASH("evict:tail");
    pn_fence_release(); /* before the ring is overwritten: pairs with still_there() */
    pn_store_relaxed(&ctl->locked.evictions, pn_load_relaxed(&ctl->locked.evictions) + 1);
    if (holder >= 0 && may_warn(seg, pn_now_ns()))
        pn_conn_add_notice(conn,
                           "NOTIFY queue is full\nThe process with PID %d (backend %d) has not "
                           "read %llu bytes of it, and has lost them (on_full=\"drop-slowest\").",
                           pn_load_relaxed(&seg->backend[holder].pid), holder,
                           (unsigned long long) (floor - tail));
    return true;
}

/* ---- making it ---------------------------------------------------------------------------- */

/* I1, I19: what moves the tail goes from page to page, and so do readers. */
static int check_ends(struct pn_segment *seg)
{
    QueuePosition head = pn_load_relaxed(&seg->ctl->head), tail = pn_load_relaxed(&seg->ctl->tail);
    QueuePosition mem_tail = pn_load_relaxed(&seg->ctl->mem_tail);
    if (tail <= mem_tail && mem_tail <= head && head - tail <= seg->capacity)
        return 0;
    return pn_segment_poison(
        seg, "the queue cannot have its tail at %llu, %llu and its head at %llu",
        (unsigned long long) tail, (unsigned long long) mem_tail, (unsigned long long) head);
}

/* -EAGAIN: another process has to, or `wait->topics`. */
static int make_room_in_queue(struct pn_conn *conn, const struct append *a,
                              struct pn_room_wait *wait, int32_t *holder)
{
    struct pn_segment *seg = conn->seg;
    struct AsyncQueueControl *ctl = seg->ctl;
    if (check_ends(seg) != 0)
        return -PN_ECORRUPT;
    *holder = pn_queue_advance_tail_locked(seg);
    *holder = reap_room_holders(seg, a, *holder, &wait->topics);
    QueuePosition end = end_of(seg, a);
    if (end > pn_load_relaxed(&ctl->tail) + seg->capacity &&
        (seg->on_full != PN_FULL_DROP_SLOWEST ||
         !evict_locked(conn, end - seg->capacity, *holder))) {
        int rc = pn_segment_check_state(seg);
        return rc != 0 ? rc : -EAGAIN;
    }
    if (seg->spills && end > pn_load_relaxed(&ctl->mem_tail) + seg->ring_bytes) {
        int rc = pn_spill_locked(seg, end);
        if (rc != 0 && wait->topics && rc != -PN_ECORRUPT)
            return -EAGAIN;
        if (rc != 0)
            return rc == -EAGAIN || rc == -PN_ECORRUPT ? rc : spill_failed(conn, *holder);
    }
    wait->topics = false;
    return pn_segment_check_state(seg);
}

int64_t pn_ticket_ns = PN_TICKET_NS;

/* ---- tickets ------------------------------------------------------------------------------ */

/*
 * The smallest that is valid, 0: none.  Forgets the others, and counts.  No owner makes one that is
 * valid for longer than pn_ticket_ns: that would be overwritten memory.
 */
static uint64_t first_ticket(struct AsyncQueueControl *ctl, int64_t now)
{
    uint64_t first = 0;
    uint32_t taken = 0;
    for (uint32_t i = 0; i < PN_ROOM_TICKETS; i++) {
        struct pn_room_ticket *t = &ctl->room_ticket[i];
        if (t->number != 0 && (t->until <= now || t->until > now + pn_ticket_ns))
            t->number = 0;
        if (t->number == 0)
            continue;
        taken++;
        if (first == 0 || t->number < first)
            first = t->number;
    }
    ctl->tickets = taken;
    return first;
}

static struct pn_room_ticket *find_ticket(struct AsyncQueueControl *ctl, uint64_t number)
{
    for (uint32_t i = 0; i < PN_ROOM_TICKETS; i++)
        if (ctl->room_ticket[i].number == number)
            return &ctl->room_ticket[i];
    return NULL;
}

static int64_t full_timeout(const struct pn_segment *seg)
{
    return seg->full_timeout_ns < INT64_MAX ? (int64_t) seg->full_timeout_ns : INT64_MAX;
}

/* More writers than the table has rows: those wait without one, and are as they were. */
static void renew_ticket(const struct pn_segment *seg, struct pn_room_wait *wait, int64_t now)
{
    struct AsyncQueueControl *ctl = seg->ctl;
    int64_t until = wait->deadline - full_timeout(seg) / 2;
    if (pn_never_wait || wait->brief)
        return;
    if (wait->ticket == 0)
        wait->ticket = ++ctl->last_ticket;
    struct pn_room_ticket *t = find_ticket(ctl, wait->ticket);
    if (t == NULL)
        t = find_ticket(ctl, 0);
    if (t == NULL || until <= now)
        return;
    t->until = until < now + pn_ticket_ns ? until : now + pn_ticket_ns;
    PN_CRASH("block:ticket");
    if (t->number == 0)
        ctl->tickets++;
    t->number = wait->ticket;
}

static void drop_ticket(struct AsyncQueueControl *ctl, struct pn_room_wait *wait)
{
    struct pn_room_ticket *t = wait->ticket == 0 ? NULL : find_ticket(ctl, wait->ticket);
    if (t == NULL)
        return;
    t->number = 0;
    ctl->tickets -= ctl->tickets > 0;
    wait->pass_on = true;
    PN_CRASH("block:passed-on");
}

void pn_queue_pass_on(struct pn_segment *seg, struct pn_room_wait *wait)
{
    wait->pass_on = false;
    pn_room_wake(seg);
}

/* ---- block -------------------------------------------------------------------------------- */

static void warn_blocked(struct pn_conn *conn, int32_t holder, int64_t now)
{
    if (holder < 0 || !may_warn(conn->seg, now))
        return;
    pn_conn_add_notice(conn,
                       "NOTIFY queue is full\nWaiting for the process with PID %d (backend %d), "
                       "which has not read the oldest notifications.",
                       pn_load_relaxed(&conn->seg->backend[holder].pid), holder);
}

/* There is none, or it is another's turn: wait, unless the time is over. */
static int arm_wait(struct pn_conn *conn, const struct append *a, struct pn_room_wait *wait,
                    bool behind, int64_t now)
{
    struct pn_segment *seg = conn->seg;
    renew_ticket(seg, wait, now);
    wait->seq = pn_load_relaxed(&seg->ctl->room_seq);
    pn_store_relaxed(&seg->ctl->room_waiters, 1);
    PN_CRASH("block:armed");
    pn_fence_seq_cst(); /* pairs with pn_room_wake() */
    wait->holder = pn_queue_advance_tail_locked(seg);
    if (fits(seg, a) && !behind) {
        drop_ticket(seg->ctl, wait);
        return pn_segment_check_state(seg);
    }
    if (!fits(seg, a) && wait->holder == (int32_t) conn->slot) {
        drop_ticket(seg->ctl, wait);
        return queue_full(conn, wait->holder, false); /* no other process could make room */
    }
    warn_blocked(conn, wait->holder, now);
    return -EAGAIN;
}

static int make_room_or_wait(struct pn_conn *conn, const struct append *a,
                             struct pn_room_wait *wait)
{
    struct pn_segment *seg = conn->seg;
    int64_t now = pn_now_ns();
    int32_t holder;
    /* committed again long after a handler has raised: that is another wait */
    bool again = wait->left_at != 0 && now - wait->left_at > PN_ROOM_LEFT_NS;
    wait->left_at = 0;
    if (wait->deadline == 0 || again) {
        wait->deadline = pn_after(now, full_timeout(seg));
        wait->interval = PN_ROOM_WAIT_MIN_NS;
    }
    uint64_t first = first_ticket(seg->ctl, now);
    bool behind = a->own_reserved == 0 && first != 0 && (wait->ticket == 0 || first < wait->ticket);
    int rc = make_room_in_queue(conn, a, wait, &holder);
    if (rc == -EAGAIN && wait->topics)
        return rc;
    bool last_chance = now >= wait->deadline || holder == (int32_t) conn->slot;
    if (rc == -EAGAIN && last_chance)
        rc = queue_full(conn, holder, now >= wait->deadline);
    else if (rc == -EAGAIN || (rc == 0 && behind && !last_chance))
        return arm_wait(conn, a, wait, behind, now);
    drop_ticket(seg->ctl, wait);
    return rc;
}

int pn_queue_wait_for_room(struct pn_conn *conn, struct pn_room_wait *wait)
{
    struct pn_segment *seg = conn->seg;
    if (wait->topics)
        return -EAGAIN; /* the lock is waited for */
    if (pn_never_wait)
        return pn_fail(PN_EROOMBUSY, "%s", full_message);
    if (wait->brief)
        return -EINTR;
    int64_t left = wait->deadline - pn_now_ns();
    if (wait->holder >= 0)
        pn_procsignal_send(seg, (uint32_t) wait->holder, PROCSIG_NOTIFY_INTERRUPT);
    if (left > 0)
        pn_futex_wait(&seg->ctl->room_seq, wait->seq,
                      wait->interval < left ? wait->interval : left);
    if (wait->interval < PN_ROOM_WAIT_MAX_NS)
        wait->interval *= 2;
    return wait->may_leave ? -EINTR : -EAGAIN;
}

void pn_queue_stop_waiting(struct pn_segment *seg, struct pn_room_wait *wait)
{
    struct pn_hold hold;
    if (wait->ticket == 0 || pn_lock_try(seg, &hold) != 0)
        return;
    drop_ticket(seg->ctl, wait);
    pn_lock_release(seg);
    if (wait->pass_on)
        pn_queue_pass_on(seg, wait);
    wait->ticket = 0;
}

int pn_queue_make_room_locked(struct pn_conn *conn, QueuePosition end, uint64_t own_reserved,
                              struct pn_room_wait *wait)
{
    pn_assert_held(conn->seg);
    struct pn_segment *seg = conn->seg;
    const struct append a = {.end = end, .own_reserved = own_reserved};
    wait->topics = false;
    if (__builtin_expect(fits(seg, &a) && seg->ctl->tickets == 0, 1))
        return 0;
    if (seg->on_full == PN_FULL_BLOCK)
        return make_room_or_wait(conn, &a, wait);
    int32_t holder;
    int rc = make_room_in_queue(conn, &a, wait, &holder);
    return rc == -EAGAIN && !wait->topics ? queue_full(conn, holder, false) : rc;
}

/* ---- fill warning ------------------------------------------------------------------------- */

void pn_queue_fill_warning_locked(struct pn_conn *conn, QueuePosition head, int64_t now)
{
    pn_assert_held(conn->seg);
    struct pn_segment *seg = conn->seg;
    struct AsyncQueueControl *ctl = seg->ctl;
    if (now - ctl->lastQueueFillWarn < PN_WARN_INTERVAL_NS && ctl->lastQueueFillWarn != 0)
        return;
    if (head < ctl->no_scan_below)
        return;
    int32_t holder = pn_queue_advance_tail_locked(seg);
    uint64_t used = head - pn_load_relaxed(&ctl->tail);
    if (used * 2 < seg->capacity) {
        /* not before it can be true, and not at every commit of a queue that is nearly so */
        uint64_t half = pn_load_relaxed(&ctl->tail) + seg->capacity / 2;
        uint64_t step = head + seg->capacity / 64;
        ctl->no_scan_below = half > step ? half : step;
        return;
    }
    ctl->lastQueueFillWarn = now;
    double percent = 100.0 * (double) used / (double) seg->capacity;
    if (holder < 0)
        pn_conn_add_notice(conn, "NOTIFY queue is %.0f%% full", percent);
    else
        pn_conn_add_notice(
            conn,
            "NOTIFY queue is %.0f%% full\n"
            "The server process with PID %d is among those with the oldest transactions.\n"
            "The NOTIFY queue cannot be emptied until that process ends its current transaction, "
            "or calls poll().",
            percent, pn_load_relaxed(&seg->backend[holder].pid));
}
