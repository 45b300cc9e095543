/*
 * recover.c - repair after the death of a lock holder.
 *
 * What to do is decided by positions, not by a label that the dead one left:
 *
 *   index_dirty         the channel table is rebuilt from the slots' lists
 *   woken == head       nothing was being announced; bytes beyond head do not exist
 *   woken <  head       [woken, head) is committed, but perhaps not announced: what its entries
 *                       imply is derived again (chan_seq, the commit sequence number; each kind
 *                       of entry has its case in apply_entry), and every live listener is treated
 *                       as interested in it; generation counters after `want` of all, as in a
 *                       commit (generation.c 3).  woken = head comes last.
 *
 *   topics_dirty        topics are closed until their indices are built again (recover_topics.c)
 *
 *   mem_tail < tail     the tail was being moved: mem_tail follows
 *
 * A file that was being written is of no interest: mem_tail does not vouch for it, and the
 * next process that spills writes it again.  An eviction is complete with its first store
 * (room.c 3).
 *
 * Every step may be repeated, so a crash in here is the same event once more.  A slot that was
 * un-slept is `owed`, and the next release of the lock signals everything owed.
 */
#include "recovery/recover.h"

#include "backend/backend.h"
#include "backend/channel.h"
#include "backend/generation.h"
#include "base/crashpoint.h"
#include "base/os.h"
#include "commit/bridge.h"
#include "queue/queue.h"
#include "recovery/recover_topics.h"
#include "segment/lock.h"
#include "wakeup/procsignal.h"

/* chan_seq of the channel; a reader filters by the low half of the hash, which must be right. */
static void apply_notify(struct pn_segment *seg, const AsyncQueueEntry *qe, uint32_t channel_len)
{
    uint64_t hash = pn_channel_hash(qe->dboid, qe->data, channel_len);
    struct GlobalChannelEntry *e =
        pn_channel_find_locked(seg, hash, qe->dboid, qe->data, channel_len);
    if (e != NULL && e->next_chan_seq <= qe->chan_seq)
        e->next_chan_seq = qe->chan_seq + 1;
}

static int apply_entry(struct pn_segment *seg, const AsyncQueueEntry *qe,
                       const struct pn_entry_extent *extent)
{
    switch (qe->kind) {
    case PN_ENTRY_NOTIFY:
        apply_notify(seg, qe, extent->channel_len);
        break;
    case PN_ENTRY_GAP:
        break; /* it implies nothing */
    case PN_ENTRY_GENERATION:
        if (qe->channel_hash >= seg->max_generations)
            return pn_segment_poison(seg, "an entry bumps counter %u, which is not",
                                     qe->channel_hash);
        break; /* later, in redo_counters() */
    case PN_ENTRY_PUBLISH:
    case PN_ENTRY_ANSWER:
    case PN_ENTRY_CANCEL:
    case PN_ENTRY_SPILL:
    case PN_ENTRY_BURY: {
        int rc = pn_topic_redo_entry_locked(seg, qe, extent);
        if (rc != 0)
            return rc;
        break;
    }
    default:
        return pn_segment_poison(seg, "an entry of unknown kind %u", qe->kind);
    }
    if (seg->ctl->last_xid < qe->xid)
        seg->ctl->last_xid = qe->xid;
    return 0;
}

static int apply_range(struct pn_segment *seg, QueuePosition pos, QueuePosition end)
{
    while (pos < end) {
        struct pn_entry_extent extent;
        const AsyncQueueEntry *qe = pn_queue_entry_at(seg, pos, end, &extent);
        if (qe == NULL)
            return -PN_ECORRUPT;
        pos = extent.next;
        int rc = qe->dboid == 0 ? 0 : apply_entry(seg, qe, &extent);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* What apply_range() has found good. */
static int redo_counters(struct pn_segment *seg, QueuePosition pos, QueuePosition end)
{
    while (pos < end) {
        struct pn_entry_extent extent;
        const AsyncQueueEntry *qe = pn_queue_entry_at(seg, pos, end, &extent);
        if (qe == NULL)
            return -PN_ECORRUPT;
        pos = extent.next;
        if (qe->dboid == 0 || qe->kind != PN_ENTRY_GENERATION)
            continue;
        pn_generation_redo_locked(seg, qe);
        PN_CRASH("recover:generation");
    }
    return 0;
}

static void raise_wants(struct pn_segment *seg, QueuePosition begin, QueuePosition end)
{
    for (uint32_t slot = 0; slot < seg->max_backends; slot++) {
        struct QueueBackendStatus *backend = &seg->backend[slot];
        if (pn_load_relaxed(&backend->state) != PN_SLOT_CLAIMED || backend->numSubs == 0)
            continue;
        seg->pinning[slot / 64] |= 1ULL << (slot % 64);
        pn_set_from_if_quiet(backend, begin);
        PN_CRASH("recover:from");
        pn_store_release(&backend->want, end);
        PN_CRASH("recover:want");
    }
}

static void unsleep_all(struct pn_segment *seg)
{
    pn_fence_seq_cst(); /* pairs with the exchange in pn_fall_asleep() */
    int64_t now = pn_now_ns();
    for (uint32_t slot = 0; slot < seg->max_backends; slot++)
        if (pn_load_relaxed(&seg->backend[slot].state) == PN_SLOT_CLAIMED &&
            seg->backend[slot].numSubs != 0) {
            pn_unsleep_locked(seg, slot, now);
            PN_CRASH("recover:unslept");
        }
}

static void sum_reservations(struct pn_segment *seg)
{
    uint64_t sum = 0;
    for (uint32_t slot = 0; slot < seg->max_backends; slot++)
        if (pn_load_relaxed(&seg->backend[slot].state) == PN_SLOT_CLAIMED)
            sum += seg->backend[slot].reserved;
    seg->ctl->reserved = sum;
}

int pn_recover_locked(struct pn_segment *seg)
{
    pn_assert_held(seg);
    struct AsyncQueueControl *ctl = seg->ctl;
    QueuePosition head = pn_load_relaxed(&ctl->head), woken = pn_load_relaxed(&ctl->woken);
    QueuePosition tail = pn_load_relaxed(&ctl->tail);
    int rc = pn_segment_check_state(seg);
    PN_CRASH("recover:begin");
    if (rc != 0)
        return rc;
    QueuePosition mem_tail = pn_load_relaxed(&ctl->mem_tail);
    if (mem_tail < tail) { /* killed between the two stores of pn_queue_advance_tail_locked */
        mem_tail = tail;
        pn_store_release(&ctl->mem_tail, mem_tail);
        PN_CRASH("recover:mem-tail");
    }
    if (mem_tail > woken || woken > head || head - mem_tail > seg->ring_bytes ||
        head - tail > seg->capacity || pn_load_relaxed(&ctl->floor) > head)
        return pn_segment_poison(seg, "tail %llu, woken %llu and head %llu contradict each other",
                                 (unsigned long long) tail, (unsigned long long) woken,
                                 (unsigned long long) head);
    if (ctl->index_dirty != 0)
        rc = pn_channel_rebuild_locked(seg);
    if (rc == 0 && woken < head) {
        rc = apply_range(seg, woken, head);
        PN_CRASH("recover:applied");
        if (rc == 0) {
            raise_wants(seg, woken, head);
            rc = redo_counters(seg, woken, head);
        }
        if (rc == 0)
            unsleep_all(seg);
        PN_CRASH("recover:before-woken");
    }
    if (rc != 0)
        return rc;
    pn_topics_recover_locked(seg); /* while `woken` still says that entries are redone */
    pn_store_release(&ctl->woken, head);
    PN_CRASH("recover:woken");
    sum_reservations(seg);
    ctl->generations_used = pn_generation_count_locked(seg);
    pn_bridge_count_locked(seg);
    pn_backend_reap_all_locked(seg); /* not those whose memory is still being torn down (L6) */
    if ((pn_hold_of(seg)->at_end & PN_REAP) != 0)
        pn_hold_of(seg)->at_end |= PN_REPAIR; /* whatever else this hold reaps */
    pn_queue_let_go_locked(seg);
    pn_fetch_add_relaxed(&ctl->locked.recoveries, 1);
    pn_hold_of(seg)->at_end |= PN_RESIGNAL;
    PN_CRASH("recover:consistent");
    return pn_segment_check_state(seg);
}
