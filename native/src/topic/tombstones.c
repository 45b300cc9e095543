/* tombstones.c - records on disk that are cancelled (cancel.c 2 to 4). */
#include "topic/tombstones.h"

#include "backend/backend.h"
#include "base/crashpoint.h"
#include "segment/lock.h"
#include "topic/area.h"
#include "topic/queues.h"

static bool has_buried(const struct pn_topic *topic)
{
    return topic->buried + topic->rest_buried + topic->later_buried != 0;
}

static bool is_of(const struct pn_tombstone *tomb, const struct pn_segment *seg,
                  const struct pn_topic *topic, uint64_t seq)
{
    return tomb->seq == seq && tomb->topic == (uint32_t) (topic - seg->topics.topic) &&
           tomb->generation == topic->generation;
}

/* Of all that are not FREE; no more than there can be, whatever stands there. */
static uint32_t last_tombstone(const struct pn_segment *seg)
{
    uint32_t end = *(volatile const uint32_t *) &seg->topics.ctl->tombstone_end;
    return end < PN_TOMBSTONES ? end : PN_TOMBSTONES;
}

static bool has_one(const struct pn_segment *seg, const struct pn_topic *topic, uint64_t seq,
                    enum pn_tombstone_state state)
{
    for (uint32_t i = last_tombstone(seg); i > 0; i--)
        if (pn_load_relaxed(&pn_tombstone_at(seg, i)->state) == state &&
            is_of(pn_tombstone_at(seg, i), seg, topic, seq))
            return true;
    return false;
}

/* Has the queue that the number is of not passed the record? */
static bool is_there(const struct pn_topic *topic, uint64_t seq)
{
    const struct pn_diskqueue_state *s = pn_diskqueue_now(pn_topic_queue_of(topic, seq));
    return (seq & ~PN_SEQ_QUEUE) >= s->read_seq && (seq & ~PN_SEQ_QUEUE) < s->write_seq;
}

static uint64_t *buried_in(struct pn_topic *topic, uint64_t seq)
{
    return (seq & PN_REST_SEQ) != 0    ? &topic->rest_buried
           : (seq & PN_LATER_SEQ) != 0 ? &topic->later_buried
                                       : &topic->buried;
}

uint64_t pn_tombstones_from_locked(const struct pn_segment *seg, const struct pn_topic *topic,
                                   uint64_t seq)
{
    pn_assert_topics_held(seg);
    uint64_t n = 0;
    if (!has_buried(topic))
        return 0;
    for (uint32_t i = last_tombstone(seg); i > 0; i--) {
        const struct pn_tombstone *tomb = pn_tombstone_at(seg, i);
        n += pn_load_relaxed(&tomb->state) == PN_TOMB_LIVE && tomb->seq >= seq &&
             ((tomb->seq ^ seq) & PN_SEQ_QUEUE) == 0 && is_of(tomb, seg, topic, tomb->seq);
    }
    return n;
}

bool pn_topic_is_buried_locked(const struct pn_segment *seg, const struct pn_topic *topic,
                               uint64_t seq)
{
    pn_assert_topics_held(seg);
    return __builtin_expect(has_buried(topic), 0) && has_one(seg, topic, seq, PN_TOMB_LIVE);
}

bool pn_deferred_on_disk_locked(const struct pn_segment *seg, const struct pn_topic *topic,
                                uint64_t seq)
{
    pn_assert_topics_held(seg);
    return is_there(topic, seq) && !pn_topic_is_buried_locked(seg, topic, seq) &&
           !has_one(seg, topic, seq, PN_TOMB_STAGED);
}

uint32_t pn_tombstone_make_locked(struct pn_segment *seg, struct pn_topic *topic, uint64_t seq,
                                  enum pn_tombstone_state state, const struct pn_conn *owner)
{
    pn_assert_topics_held(seg);
    struct pn_topic_control *ctl = seg->topics.ctl;
    uint32_t i = 1;
    while (i <= last_tombstone(seg) &&
           pn_load_relaxed(&pn_tombstone_at(seg, i)->state) != PN_TOMB_FREE)
        i++;
    if (i > PN_TOMBSTONES) {
        pn_fail(PN_ETOPICFULL,
                "topic \"%.*s\": the message is on disk, or may go there before the prepared "
                "transaction commits, and all %u places for what is cancelled there are taken\n"
                "Wait until some of them have been passed: consumers have to finish messages, so "
                "that those on disk come back to memory. Or give the segment more topic_memory.",
                (int) topic->name_len, topic->name, PN_TOMBSTONES);
        return 0;
    }
    struct pn_tombstone *tomb = pn_tombstone_at(seg, i);
    tomb->topic = (uint32_t) (topic - seg->topics.topic);
    tomb->generation = topic->generation;
    tomb->owner = owner->slot;
    tomb->owner_generation = owner->generation;
    tomb->seq = seq;
    if (ctl->tombstone_end < i)
        ctl->tombstone_end = i;
    ctl->prepared += state == PN_TOMB_PREPARED;
    PN_CRASH("tombstone:written");
    pn_store_release(&tomb->state, state); /* LIVE: cancelled */
    *buried_in(topic, seq) += state == PN_TOMB_LIVE;
    PN_CRASH("tombstone:stored");
    return i;
}

bool pn_tombstone_is_prepared(const struct pn_segment *seg, uint32_t tombstone,
                              const struct pn_conn *owner)
{
    const struct pn_tombstone *tomb = pn_tombstone_at(seg, tombstone);
    return tombstone != 0 && pn_load_relaxed(&tomb->state) == PN_TOMB_PREPARED &&
           tomb->owner == owner->slot && tomb->owner_generation == owner->generation;
}

void pn_tombstone_stage_locked(struct pn_segment *seg, uint32_t tombstone)
{
    pn_assert_topics_held(seg);
    pn_store_release(&pn_tombstone_at(seg, tombstone)->state, PN_TOMB_STAGED);
    seg->topics.ctl->prepared--;
    PN_CRASH("tombstone:staged");
}

void pn_tombstone_bury_locked(struct pn_segment *seg, uint32_t tombstone, uint64_t seq)
{
    pn_assert_topics_held(seg);
    struct pn_tombstone *tomb = pn_tombstone_at(seg, tombstone);
    if (tomb->seq != seq || pn_load_relaxed(&tomb->state) != PN_TOMB_STAGED)
        return;
    pn_invariant(seg, "I25", is_there(pn_topic_at(seg, tomb->topic), seq));
    pn_store_release(&tomb->state, PN_TOMB_LIVE);
    ++*buried_in(pn_topic_at(seg, tomb->topic), seq);
    PN_CRASH("tombstone:buried");
}

void pn_tombstone_free_locked(struct pn_segment *seg, uint32_t tombstone)
{
    pn_assert_topics_held(seg);
    struct pn_tombstone *tomb = pn_tombstone_at(seg, tombstone);
    uint32_t state = pn_load_relaxed(&tomb->state);
    if (state == PN_TOMB_LIVE)
        --*buried_in(pn_topic_at(seg, tomb->topic), tomb->seq);
    seg->topics.ctl->prepared -= state == PN_TOMB_PREPARED;
    pn_store_release(&tomb->state, PN_TOMB_FREE);
    PN_CRASH("tombstone:freed");
    uint32_t end = last_tombstone(seg);
    while (end > 0 && pn_load_relaxed(&pn_tombstone_at(seg, end)->state) == PN_TOMB_FREE)
        end--;
    seg->topics.ctl->tombstone_end = end;
}

void pn_tombstones_moved_locked(struct pn_segment *seg, const struct pn_topic *topic, uint64_t from,
                                uint64_t to)
{
    pn_assert_topics_held(seg);
    for (uint32_t i = last_tombstone(seg); i > 0; i--) {
        struct pn_tombstone *tomb = pn_tombstone_at(seg, i);
        if (pn_load_relaxed(&tomb->state) != PN_TOMB_FREE && is_of(tomb, seg, topic, from))
            tomb->seq = to;
    }
}

void pn_tombstones_passed_locked(struct pn_segment *seg, struct pn_topic *topic)
{
    pn_assert_topics_held(seg);
    for (uint32_t i = last_tombstone(seg); has_buried(topic) && i > 0; i--) {
        const struct pn_tombstone *tomb = pn_tombstone_at(seg, i);
        if (pn_load_relaxed(&tomb->state) == PN_TOMB_LIVE && is_of(tomb, seg, topic, tomb->seq) &&
            !is_there(topic, tomb->seq))
            pn_tombstone_free_locked(seg, i);
    }
}

void pn_tombstones_reap_locked(struct pn_segment *seg, uint32_t slot, uint32_t generation)
{
    pn_assert_topics_held(seg);
    for (uint32_t i = last_tombstone(seg); i > 0; i--) {
        const struct pn_tombstone *tomb = pn_tombstone_at(seg, i);
        if (pn_load_relaxed(&tomb->state) == PN_TOMB_PREPARED && tomb->owner == slot &&
            tomb->owner_generation == generation)
            pn_tombstone_free_locked(seg, i);
    }
}

static bool outlives(const struct pn_segment *seg, const struct pn_tombstone *tomb)
{
    const struct pn_topic *topic = pn_topic_at(seg, tomb->topic);
    bool there = tomb->topic < seg->topics.max_topics && is_of(tomb, seg, topic, tomb->seq) &&
                 pn_load_relaxed(&topic->state) == PN_RECORD_USED;
    switch (pn_load_relaxed(&tomb->state)) {
    case PN_TOMB_LIVE:
        return there && is_there(topic, tomb->seq);
    case PN_TOMB_PREPARED:
        return tomb->owner < seg->max_backends &&
               pn_load_relaxed(&seg->backend[tomb->owner].state) == PN_SLOT_CLAIMED &&
               pn_load_relaxed(&seg->backend[tomb->owner].generation) == tomb->owner_generation;
    default:
        return false;
    }
}

void pn_tombstones_recover_locked(struct pn_segment *seg)
{
    pn_assert_topics_held(seg);
    struct pn_topic_control *ctl = seg->topics.ctl;
    ctl->tombstone_end = 0;
    for (uint32_t i = 1; i <= PN_TOMBSTONES; i++) {
        struct pn_tombstone *tomb = pn_tombstone_at(seg, i);
        if (pn_load_relaxed(&tomb->state) == PN_TOMB_FREE)
            continue;
        if (!outlives(seg, tomb)) {
            pn_store_release(&tomb->state, PN_TOMB_FREE);
            PN_CRASH("tombstone:recovered");
            continue;
        }
        ctl->tombstone_end = i;
        ctl->prepared += pn_load_relaxed(&tomb->state) == PN_TOMB_PREPARED;
        *buried_in(pn_topic_at(seg, tomb->topic), tomb->seq) +=
            pn_load_relaxed(&tomb->state) == PN_TOMB_LIVE;
    }
}
