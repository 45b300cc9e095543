/*
 * recover_topics.c - topics after the death of a lock holder: the truth, at once; the rest later.
 *
 * 1. The truth is completed: what a valid redo record says, and what committed entries of the queue
 *    say (recover.c calls pn_topic_redo_entry_locked() before), is stored again.  Both may be done
 *    any number of times, and take as long as what the dead one was about to do.
 * 2. All else, the indices and the log, is derived from it, and takes a look at each cell of the
 *    arena.  So the topics are closed (PN_TOPICS_CLOSED), and the lock goes on to those that need
 *    it: notifications do not wait.  rebuild_topics.c opens them again, in steps.
 * 3. Consumers that sleep depend on no other call: so the process that found the death goes on
 *    with that after its release of the lock (PN_REPAIR).  It may have no business with topics, and
 *    of a million messages they are closed for seconds: after a few steps it wakes some of those
 *    consumers, which do the rest (PROCSIG_REPAIR); if there are none, the next call on topics
 *    does.  If these die or are stopped as well, the next process that takes the lock after
 *    PN_REPAIR_AGAIN_NS wakes others (rebuild_topics.c), and so do the watchers of the dead, which
 *    come again and again until they have reaped them (watch.c); and each consumer that sleeps has
 *    its slow timer.
 * 4. The process that opens the topics reaps the dead: meanwhile no slot was freed.
 */
#include "recovery/recover_topics.h"

#include <errno.h>
#include <string.h>

#include "backend/backend.h"
#include "base/crashpoint.h"
#include "recovery/rebuild_topics.h"
#include "topic/area.h"
#include "topic/cursors.h"
#include "topic/later.h"
#include "topic/on_disk.h"
#include "topic/tombstones.h"
#include "topic/waiting.h"
#include "wakeup/send.h"

/* ---- redo ------------------------------------------------------------------------------------ */

static void redo_publish(struct pn_segment *seg, uint32_t ref)
{
    uint32_t limit = seg->topics.arena.pages * PN_BODY_CELLS; /* a scribbled chain may be a ring */
    for (; ref != 0 && limit > 0; ref = pn_message_at(seg, ref)->next, limit--) {
        struct pn_message *m = pn_message_at(seg, ref);
        if (pn_load_relaxed(&m->state) == PN_MSG_STAGED)
            pn_store_release(&m->state, PN_MSG_LIVE);
        PN_CRASH("topic-recover:live");
    }
}

static void redo_record(struct pn_segment *seg)
{
    struct pn_topic_redo *redo = &seg->topics.ctl->redo;
    if (pn_load_relaxed(&redo->valid) == 0)
        return;
    redo_publish(seg, redo->messages);
    struct pn_delivery *d = pn_delivery_at(seg, redo->delivery);
    if (redo->delivery != 0 && pn_load_relaxed(&d->state) == redo->expected)
        pn_store_release(&d->state,
                         pn_state_word(PN_KIND_FREE, 0, 0, pn_state_tag(redo->expected)));
    /* before its queue moves on, which takes back what is staged */
    if (redo->spill != 0 && (redo->rest & PN_REDO_REST) != 0)
        pn_diskqueue_commit(&pn_topic_at(seg, redo->spill - 1)->rest, redo->spill_seq);
    else if (redo->spill != 0 && (redo->rest & PN_REDO_TO_LATER) != 0)
        pn_later_redo_locked(seg);
    else if (redo->spill != 0)
        pn_topic_spill_commit_locked(seg, pn_topic_at(seg, redo->spill - 1), redo->spill_seq);
    pn_topic_disk_redo_locked(seg);
    PN_CRASH("topic-recover:redo");
    pn_store_release(&redo->valid, 0);
    PN_CRASH("topic-recover:redone");
}

struct pn_topic_entry pn_topic_entry_of(const AsyncQueueEntry *qe,
                                        const struct pn_entry_extent *extent)
{
    return (struct pn_topic_entry) {.kind = *(volatile const uint8_t *) &qe->kind,
                                    .index = *(volatile const uint32_t *) &qe->channel_hash,
                                    .payload_len = extent->payload_len,
                                    .payload = qe->data + extent->channel_len};
}

bool pn_topic_entry_possible(const struct pn_segment *seg, const struct pn_topic_entry *entry)
{
    const struct pn_arena *mem = &seg->topics.arena;
    const uint32_t kind = entry->kind, index = entry->index, payload_len = entry->payload_len;
    if (pn_topics_ready(seg) && kind == PN_ENTRY_SPILL)
        return index < seg->topics.max_topics && payload_len == 0;
    if (pn_topics_ready(seg) && kind == PN_ENTRY_BURY)
        return index > 0 && index <= PN_TOMBSTONES &&
               (payload_len == 0 || payload_len == sizeof(struct pn_ended));
    if (!pn_topics_ready(seg) || !pn_arena_inside(mem, index))
        return false;
    if (kind == PN_ENTRY_ANSWER)
        return payload_len == sizeof(struct pn_answer_redo);
    if (kind == PN_ENTRY_CANCEL)
        return payload_len == sizeof(struct pn_ended);
    return kind == PN_ENTRY_PUBLISH && payload_len == 0;
}

static void redo_cancel(struct pn_segment *seg, const struct pn_topic_entry *entry)
{
    struct pn_ended ended;
    memcpy(&ended, entry->payload, sizeof ended);
    struct pn_message *m = pn_message_at(seg, ended.message);
    const struct pn_delivery *d = pn_delivery_at(seg, m->first);
    if (m->id == ended.id && pn_load_relaxed(&m->state) == PN_MSG_LIVE &&
        d->channel == ended.channel && d->order == ended.order)
        pn_store_release(&m->state, PN_MSG_FREE);
}

int pn_topic_redo_entry_locked(struct pn_segment *seg, const AsyncQueueEntry *qe,
                               const struct pn_entry_extent *extent)
{
    pn_assert_held(seg);
    struct pn_answer_redo redo;
    const struct pn_topic_entry entry = pn_topic_entry_of(qe, extent);
    if (!pn_topic_entry_possible(seg, &entry))
        return pn_segment_poison(seg, "an entry changes message or delivery %u, which is not",
                                 entry.index);
    if (entry.kind == PN_ENTRY_PUBLISH) {
        if (pn_message_at(seg, entry.index)->id == qe->chan_seq)
            redo_publish(seg, entry.index);
        return 0;
    }
    if (entry.kind == PN_ENTRY_SPILL) {
        pn_topic_spill_commit_locked(seg, pn_topic_at(seg, entry.index), qe->chan_seq);
        return 0;
    }
    if (entry.kind == PN_ENTRY_BURY) {
        pn_tombstone_bury_locked(seg, entry.index, qe->chan_seq);
        if (entry.payload_len != 0)
            redo_cancel(seg, &entry);
        return 0;
    }
    if (entry.kind == PN_ENTRY_CANCEL) {
        redo_cancel(seg, &entry);
        PN_CRASH("topic-recover:cancel");
        return 0;
    }
    struct pn_delivery *d = pn_delivery_at(seg, entry.index);
    memcpy(&redo, entry.payload, sizeof redo);
    if (pn_load_relaxed(&d->state) != qe->chan_seq)
        return 0; /* done */
    d->order = redo.order;
    d->due = redo.due;
    pn_store_release(&d->state, redo.word);
    PN_CRASH("topic-recover:answer");
    return 0;
}

/* ---- closing, and opening again -------------------------------------------------------------- */

void pn_topics_recover_locked(struct pn_segment *seg)
{
    pn_assert_held(seg);
    uint32_t state = pn_load_relaxed(&seg->ctl->topics_dirty);
    if (state == 0)
        return;
    if (state > (PN_TOPICS_DIRTY | PN_TOPICS_CLOSED)) {
        pn_segment_poison(seg, "the state of the topics is %u, which is not", state);
        return;
    }
    PN_CRASH("topic-recover:begin");
    if ((state & PN_TOPICS_DIRTY) != 0) {
        redo_record(seg);
        pn_topics_rebuild_anew_locked(seg);
        PN_CRASH("topic-recover:closing");
        pn_store_relaxed(&seg->ctl->topics_dirty, PN_TOPICS_CLOSED);
        PN_CRASH("topic-recover:closed");
    }
    pn_hold_of(seg)->at_end |= PN_REPAIR;
}

/* ---- after the release ----------------------------------------------------------------------- */

uint32_t pn_repair_steps = 2;

enum {
    DEPUTIES = 3, /* as many as watch a process: one may be stopped */
    LOOPS = 13 /* which may be busy; nothing waits in those that do not look at their descriptor */
};

struct deputies {
    int32_t pid[DEPUTIES + LOOPS];
    uint32_t n;
    bool left; /* there is one that could not be signalled */
};

static bool is_one(const struct deputies *d, int32_t pid)
{
    for (uint32_t i = 0; i < d->n; i++)
        if (d->pid[i] == pid)
            return true;
    return false;
}

/* Signal consumers that sleep, from `from` on, until there are `most`.  Which is the next then. */
static uint32_t signal_some(struct pn_segment *seg, struct deputies *d, bool inside, uint32_t most,
                            uint32_t from)
{
    const uint32_t max = seg->topics.max_consumers;
    for (uint32_t i = 0; i < max && d->n < most; i++) {
        const uint32_t ci = (from % max + i) % max;
        const struct pn_consumer_slot *c = &seg->topics.consumer[ci];
        const uint32_t slot = *(volatile const uint32_t *) &c->slot;
        if (pn_load_relaxed(&c->state) != PN_RECORD_USED || !pn_consumer_sleeps(c) ||
            (pn_load_relaxed(&c->inside) != 0) != inside || slot >= seg->max_backends)
            continue;
        const int32_t pid = pn_load_relaxed(&seg->backend[slot].pid);
        if (is_one(d, pid))
            continue;
        if (pn_procsignal_send(seg, slot, PROCSIG_REPAIR)) {
            d->pid[d->n++] = pid;
            if (d->n == most)
                return ci + 1;
        } else if (pn_backend_verdict(seg, slot) != PN_DEAD) {
            d->left = true;
        }
    }
    return 0;
}

/* None goes to sleep while topics are closed, so those that sleep are seen without the lock.
 * False: there are some, and none of them could be signalled. */
static bool hand_over(struct pn_segment *seg)
{
    struct pn_topic_repair *at = &seg->topics.ctl->repair;
    const uint32_t from = pn_load_relaxed(&at->handed_next);
    struct deputies deputies = {.n = 0};
    PN_CRASH("topic-recover:handing-over");
    const uint32_t next = signal_some(seg, &deputies, true, DEPUTIES, from);
    const bool done = deputies.n != 0 || !deputies.left;
    signal_some(seg, &deputies, false, deputies.n + LOOPS, from);
    pn_store_relaxed(&at->handed_next, next);
    PN_CRASH("topic-recover:handed-over");
    return done;
}

void pn_topics_repair(struct pn_segment *seg)
{
    static _Thread_local bool repairing; /* its releases may find more to do */
    struct pn_hold hold;
    bool never_wait = pn_never_wait;
    if (repairing)
        return;
    repairing = true;
    pn_never_wait = false; /* others may only come by, and do a step each */
    for (bool closed = true; closed;) {
        int rc = pn_lock_topics_after(seg, &hold, pn_repair_steps);
        const bool taken_over = rc == 0 || hand_over(seg);
        if (rc == -EAGAIN && !taken_over)
            continue;
        if (rc != 0) /* the caller's thread may have little time, or the holder is stopped */
            break;
        pn_lock_release(seg);
        PN_CRASH("topic-recover:opened");
        while ((rc = pn_backend_reap_and_lock(seg, &hold)) == -EINTR)
            ; /* a handler may run later */
        if (rc != 0)
            break;
        closed = pn_topics_closed(seg); /* another death, found just now */
        pn_lock_release(seg);
    }
    pn_never_wait = never_wait;
    repairing = false;
}
