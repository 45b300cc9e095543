/*
 * queue.c - AsyncQueueControl and the ring of pages.
 *
 * 1. Positions are 64-bit byte counts that never wrap; the ring holds [mem_tail, head), where
 *    mem_tail is the tail unless pages are in files (spill.c).
 *    What is beyond head does not exist: a crashed writer's bytes are simply overwritten.
 * 2. Pinning.  A backend holds the tail back at the start of what it has not read:
 *
 *        want > pos               at max(pos, from)
 *        want <= pos ("quiet")    nowhere, however old its pos is, asleep or awake
 *
 *    This may be computed while owners move: pos only grows, so a stale one only pins too much;
 *    and no thread reads from a quiet slot's position, since a reader looks at `want` first, and
 *    `want` is the lock holder's.  (An awake slot that pinned at pos, as PostgreSQL's do, would
 *    let a listener that has read everything hold up all others until its next poll().)  For the
 *    same reason a scan need not look at all slots: a bit in pinning[] is set before `want` is
 *    raised, and cleared by a scan that finds the slot quiet.  So a scan costs the interested only.
 *    An evicted slot (room.c) pins at `floor` instead, until it has read its Gap.
 * 3. The tail is computed only when room is short (PostgreSQL does it every fourth page, and
 *    never when the queue is full, where it would help); room.c goes on from there.
 */
#define _GNU_SOURCE
#include "queue/queue.h"

#include <errno.h>

#include "base/crashpoint.h"
#include "queue/spill.h"
#include "segment/lock.h"

/* ---- tail --------------------------------------------------------------------------------- */

static inline QueuePosition later(QueuePosition a, QueuePosition b)
{
    return a > b ? a : b;
}

bool pn_backend_pins(const struct pn_segment *seg, const struct QueueBackendStatus *backend,
                     QueuePosition *start)
{
    uint64_t pos = pn_load_acquire(&backend->pos) & ~PN_ASLEEP; /* pairs with pn_read_move() */
    if (pn_load_relaxed(&backend->want) <= pos)
        return false;
    *start = later(later(pos, pn_load_relaxed(&backend->from)), pn_load_relaxed(&seg->ctl->floor));
    return true;
}

/* Looks at all slots, not only at those whose bit is set. */
static inline bool none_pins_below(const struct pn_segment *seg, QueuePosition end)
{
    QueuePosition start;
    for (uint32_t slot = 0; slot < seg->max_backends; slot++)
        if (pn_backend_pins(seg, &seg->backend[slot], &start) && start < end)
            return false;
    return true;
}

int32_t pn_queue_advance_tail_locked(struct pn_segment *seg)
{
    pn_assert_held(seg);
    QueuePosition head = pn_load_relaxed(&seg->ctl->head), least = head;
    int32_t holder = -1;
    for (uint32_t word = 0; word < seg->words; word++) {
        for (uint64_t bits = seg->pinning[word]; bits != 0; bits &= bits - 1) {
            uint32_t slot = word * 64 + (uint32_t) __builtin_ctzll(bits);
            QueuePosition start;
            if (slot >= seg->max_backends || !pn_backend_pins(seg, &seg->backend[slot], &start)) {
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
    pn_invariant(seg, "I1", least <= pn_load_relaxed(&seg->ctl->head));
    pn_invariant(seg, "I2", none_pins_below(seg, least));
    pn_store_release(&seg->ctl->tail, least);
    PN_CRASH("tail:stored");
    if (pn_load_relaxed(&seg->ctl->mem_tail) < least)
        pn_store_release(&seg->ctl->mem_tail, least); /* pairs with pn_copy_fetch() */
    if (seg->spills)
        pn_spill_retire_locked(seg);
    return holder;
}
