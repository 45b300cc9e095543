/*
 * queue.c - AsyncQueueControl and the ring of pages.
 *
 * 1. Positions are 64-bit byte counts that never wrap; the ring holds [tail, tail + capacity).
 *    What is beyond head does not exist: a crashed writer's bytes are simply overwritten.
 * 2. Pinning.  A backend holds the tail back at the start of what it has not read:
 *
 *        want > pos               at max(pos, from)
 *        want <= pos ("quiet")    nowhere, however old its pos is, asleep or awake
 *
 *    This may be computed while owners move: pos only grows, so a stale one only pins too much;
 *    and nobody reads from a quiet slot's position, since a reader looks at `want` first, and
 *    `want` is the lock holder's.  (An awake slot that pinned at pos, as PostgreSQL's do, would
 *    let a listener that has read everything hold up all others until its next poll().)  For the
 *    same reason a scan need not look at all slots: a bit in pinning[] is set before `want` is
 *    raised, and cleared by a scan that finds the slot quiet.  So a scan costs the interested only.
 * 3. The tail is computed only when room is short (PostgreSQL does it every fourth page, and
 *    never when the queue is full, where it would help).  If room is still short then, the dead
 *    among those that pin or have reserved are reaped; only then does the policy decide.
 */
#define _GNU_SOURCE
#include "queue.h"

#include <errno.h>

#include "backend.h"
#include "crashpoint.h"
#include "lock.h"
#include "os.h"
#include "procsignal.h"

#define PN_FILL_WARN_INTERVAL_NS 5000000000LL /* PostgreSQL's QUEUE_FULL_WARN_INTERVAL */
#define PN_ROOM_WAIT_MIN_NS 10000000LL
#define PN_ROOM_WAIT_MAX_NS 100000000LL

/* ---- entries ------------------------------------------------------------------------------ */

/* Dummy entries up to `end`, one a page; of each only length and dboid are written. */
static void pad(struct pn_segment *seg, QueuePosition pos, QueuePosition end)
{
    while (pos < end) {
        QueuePosition page_end = (pos | (PN_QUEUE_PAGE - 1)) + 1;
        QueuePosition stop = page_end < end ? page_end : end;
        AsyncQueueEntry *dummy = (void *) pn_ring_at(seg, pos);
        dummy->length = (uint32_t) (stop - pos);
        dummy->dboid = 0;
        pos = stop;
    }
}

QueuePosition pn_queue_append_locked(struct pn_conn *conn, QueuePosition pos, uint64_t xid,
                                     int64_t now, const struct pn_new_entry *entry)
{
    struct pn_segment *seg = conn->seg;
    uint64_t length = pn_entry_length(entry->channel_len, entry->payload_len);
    QueuePosition start = pn_queue_place(seg, pos, length);
    QueuePosition end = pn_queue_after(start, length);

    if (__builtin_expect(start != pos, 0))
        pad(seg, pos, start);
    AsyncQueueEntry *qe = (void *) pn_ring_at(seg, start);
    qe->length = (uint32_t) (end - start);
    qe->dboid = conn->dboid;
    qe->xid = xid;
    qe->sent_ns = now;
    qe->chan_seq = entry->chan_seq;
    qe->srcPid = conn->pid;
    qe->srcBackend = conn->slot;
    qe->srcGeneration = conn->generation;
    qe->kind = (uint16_t) entry->kind;
    qe->channel_len = (uint16_t) entry->channel_len;
    qe->payload_len = entry->payload_len;
    qe->channel_hash = entry->channel_hash;
    if (entry->channel_len > 0)
        memcpy(qe->data, entry->channel, entry->channel_len);
    if (entry->payload_len > 0)
        memcpy(qe->data + entry->channel_len, entry->payload, entry->payload_len);
    /* the lines of the next entry, which a reader's processor owns: fetch them meanwhile */
    for (uint64_t ahead = 512; ahead < 512 + 192; ahead += PN_CACHE_LINE)
        __builtin_prefetch(pn_ring_at(seg, end + ahead), 1);
    PN_CRASH("commit:entry");
    return end;
}

const AsyncQueueEntry *pn_queue_entry_at(struct pn_segment *seg, QueuePosition pos,
                                         QueuePosition limit, QueuePosition *next)
{
    if (pos % 8 != 0)
        goto impossible;
    const AsyncQueueEntry *qe = (const void *) pn_ring_at(seg, pos);
    uint64_t length = *(volatile const uint32_t *) &qe->length; /* once: it is not ours alone */
    uint64_t room = PN_QUEUE_PAGE - QUEUE_POS_OFFSET(pos);
    bool large = length > PN_QUEUE_PAGE;

    if (length < 8 || length % 8 != 0 || length > limit - pos || (!large && length > room) ||
        (large && (room != PN_QUEUE_PAGE || length % PN_QUEUE_PAGE != 0 ||
                   pos % seg->ring_bytes + length > seg->ring_bytes)))
        goto impossible;
    if (qe->dboid != 0) {
        uint64_t channel_len = qe->channel_len, payload_len = qe->payload_len;
        if (length < PN_ENTRY_HEADER || PN_ENTRY_HEADER + channel_len + payload_len > length)
            goto impossible;
    }
    *next = pos + length;
    return qe;
impossible:
    pn_segment_poison(seg, "no entry can stand at queue position %llu",
                      (unsigned long long) pos);
    return NULL;
}

/* ---- tail --------------------------------------------------------------------------------- */

bool pn_backend_pins(const struct QueueBackendStatus *backend, QueuePosition *start)
{
    uint64_t pos = pn_load_acquire(&backend->pos) & ~PN_ASLEEP; /* pairs with the reader's store */
    if (pn_load_relaxed(&backend->want) <= pos)
        return false;
    uint64_t from = pn_load_relaxed(&backend->from);
    *start = pos > from ? pos : from;
    return true;
}

int32_t pn_queue_advance_tail_locked(struct pn_segment *seg)
{
    QueuePosition head = pn_load_relaxed(&seg->ctl->head), least = head;
    int32_t holder = -1;
    for (uint32_t word = 0; word < seg->words; word++) {
        for (uint64_t bits = seg->pinning[word]; bits != 0; bits &= bits - 1) {
            uint32_t slot = word * 64 + (uint32_t) __builtin_ctzll(bits);
            QueuePosition start;
            if (slot >= seg->max_backends || !pn_backend_pins(&seg->backend[slot], &start)) {
                seg->pinning[word] &= ~(bits & -bits);
            } else if (start < least) {
                least = start;
                holder = (int32_t) slot;
            }
        }
    }
    PN_CRASH("tail:scanned");
    if (least < pn_load_relaxed(&seg->ctl->tail)) {
        pn_segment_poison(seg, "backend %d stands behind the tail", holder);
        return holder;
    }
    pn_store_release(&seg->ctl->tail, least);
    PN_CRASH("tail:stored");
    return holder;
}

/* ---- room --------------------------------------------------------------------------------- */

static bool fits(const struct pn_segment *seg, QueuePosition end, uint64_t own_reserved)
{
    uint64_t others = seg->ctl->reserved - own_reserved;
    return end + others <= pn_load_relaxed(&seg->ctl->tail) + seg->ring_bytes;
}

/* Reap the dead among those that hold room: by pinning it or by having reserved it (R10). */
static uint32_t reap_room_holders(struct pn_segment *seg)
{
    uint32_t reaped = 0;
    for (uint32_t slot = 0; slot < seg->max_backends; slot++) {
        struct QueueBackendStatus *backend = &seg->backend[slot];
        QueuePosition start;
        if (pn_load_relaxed(&backend->state) != PN_SLOT_CLAIMED)
            continue;
        if (backend->reserved == 0 && (backend->numSubs == 0 || !pn_backend_pins(backend, &start)))
            continue;
        if (pn_backend_verdict(seg, slot) == PN_DEAD) {
            pn_backend_reap_locked(seg, slot);
            reaped++;
        }
    }
    return reaped;
}

static int queue_full(struct pn_conn *conn, int32_t holder)
{
    static const char message[] = "too many notifications in the NOTIFY queue";
    struct pn_segment *seg = conn->seg;
    if (holder < 0)
        return pn_fail(PN_EQUEUEFULL,
                       "%s\nPrepared transactions have reserved %llu of its %llu bytes.", message,
                       (unsigned long long) seg->ctl->reserved,
                       (unsigned long long) seg->ring_bytes);
    return pn_fail(PN_EQUEUEFULL,
                   "%s\nThe process with PID %d (backend %d) has not read the oldest of them. Let "
                   "it call poll() or end its transaction, or create the segment with more "
                   "queue_pages.",
                   message, pn_load_relaxed(&seg->backend[holder].pid), holder);
}

/*
 * on_full=block (spin.md R9).  The second scan, after the fence, is what closes the race:
 *
 *     writer (lock held)                       reader
 *       s = room_seq                             pos = ... (or quiet)
 *       room_waiters = 1                         --- full fence ---
 *       --- full fence ---                       if room_waiters:
 *       scan again; room: go on                     room_waiters = 0; room_seq++; wake all
 *       unlock; wait while room_seq == s
 *
 * The wait is bounded because a reader may die instead of reading, or between the two stores;
 * so a reader may also leave the fence out while it is busy.
 */
static int arm_room_wait(struct pn_conn *conn, QueuePosition end, uint64_t own_reserved,
                         struct pn_room_wait *wait)
{
    struct pn_segment *seg = conn->seg;
    int64_t now = pn_now_ns();
    if (wait->deadline == 0) {
        wait->deadline = now + (int64_t) seg->full_timeout_ns;
        wait->interval = PN_ROOM_WAIT_MIN_NS;
    }
    if (now >= wait->deadline)
        return -ETIMEDOUT;
    wait->seq = pn_load_relaxed(&seg->ctl->room_seq);
    pn_store_relaxed(&seg->ctl->room_waiters, 1);
    PN_CRASH("block:armed");
    pn_fence_seq_cst();
    wait->holder = pn_queue_advance_tail_locked(seg);
    if (fits(seg, end, own_reserved))
        return pn_segment_check_state(seg);
    if (wait->holder >= 0 && (uint32_t) wait->holder == conn->slot)
        return -ETIMEDOUT; /* we ourselves hold it: nobody else could make room */
    return -EAGAIN;
}

int pn_queue_wait_for_room(struct pn_conn *conn, struct pn_room_wait *wait)
{
    struct pn_segment *seg = conn->seg;
    if (pn_never_wait)
        return pn_fail(PN_EROOMBUSY, "too many notifications in the NOTIFY queue");
    int64_t left = wait->deadline - pn_now_ns();
    if (wait->holder >= 0)
        pn_procsignal_send(seg, (uint32_t) wait->holder, PROCSIG_NOTIFY_INTERRUPT);
    if (left > 0)
        pn_futex_wait(&seg->ctl->room_seq, wait->seq,
                      wait->interval < left ? wait->interval : left);
    if (wait->interval < PN_ROOM_WAIT_MAX_NS)
        wait->interval *= 2;
    return -EAGAIN;
}

int pn_queue_make_room_locked(struct pn_conn *conn, QueuePosition end, uint64_t own_reserved,
                              struct pn_room_wait *wait)
{
    struct pn_segment *seg = conn->seg;
    if (__builtin_expect(fits(seg, end, own_reserved), 1))
        return 0;
    int32_t holder = pn_queue_advance_tail_locked(seg);
    if (!fits(seg, end, own_reserved) && reap_room_holders(seg) > 0)
        holder = pn_queue_advance_tail_locked(seg);
    if (fits(seg, end, own_reserved))
        return pn_segment_check_state(seg);
    if (seg->on_full == PN_FULL_BLOCK) {
        int rc = arm_room_wait(conn, end, own_reserved, wait);
        if (rc != -ETIMEDOUT)
            return rc;
    }
    return queue_full(conn, holder);
}

/* ---- fill warning ------------------------------------------------------------------------- */

void pn_queue_fill_warning_locked(struct pn_conn *conn, QueuePosition head, int64_t now)
{
    struct pn_segment *seg = conn->seg;
    struct AsyncQueueControl *ctl = seg->ctl;
    if (now - ctl->lastQueueFillWarn < PN_FILL_WARN_INTERVAL_NS && ctl->lastQueueFillWarn != 0)
        return;
    if (head < ctl->no_scan_below)
        return;
    int32_t holder = pn_queue_advance_tail_locked(seg);
    uint64_t used = head - pn_load_relaxed(&ctl->tail);
    if (used * 2 < seg->ring_bytes) {
        /* not before it can be true, and not at every commit of a queue that is nearly so */
        uint64_t half = pn_load_relaxed(&ctl->tail) + seg->ring_bytes / 2;
        uint64_t step = head + seg->ring_bytes / 64;
        ctl->no_scan_below = half > step ? half : step;
        return;
    }
    ctl->lastQueueFillWarn = now;
    double percent = 100.0 * (double) used / (double) seg->ring_bytes;
    if (holder < 0)
        pn_conn_add_notice(conn, "NOTIFY queue is %.0f%% full", percent);
    else
        pn_conn_add_notice(
            conn,
            "NOTIFY queue is %.0f%% full\n"
            "The server process with PID %d is among those with the oldest transactions.\n"
            "The NOTIFY queue cannot be emptied until that process ends its current transaction.",
            percent, pn_load_relaxed(&seg->backend[holder].pid));
}
