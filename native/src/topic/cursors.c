/* cursors.c - which channels of a topic rest, and where each stands in its files (rest.c 4). */
#include "topic/cursors.h"

#include "base/crashpoint.h"
#include "segment/lock.h"
#include "topic/area.h"
#include "topic/on_disk.h"
#include "topic/queues.h"
#include "topic/tombstones.h"

uint32_t pn_topic_firm_channels(const struct pn_segment *seg, const struct pn_topic *topic)
{
    uint32_t n = 0;
    PN_EACH_CHANNEL_AS (seg, topic, ch)
        n += ch->ephemeral == 0;
    return n;
}

/* ---- may they, and does it go there? --------------------------------------------------------- */

static bool has_firm_channel(const struct pn_segment *seg, const struct pn_topic *topic)
{
    PN_EACH_CHANNEL_AS (seg, topic, ch)
        if (ch->ephemeral == 0)
            return true;
    return false;
}

bool pn_rest_may(const struct pn_segment *seg, const struct pn_topic *topic)
{
    if (!pn_topic_may_spill(seg, topic) || topic->nchannels == 0)
        return false;
    return pn_rest_records(topic) != 0 || has_firm_channel(seg, topic);
}

bool pn_rest_runs(const struct pn_segment *seg, const struct pn_topic *topic)
{
    const uint32_t index = (uint32_t) (topic - seg->topics.topic);
    return pn_rest_may(seg, topic) && topic->paused == 0 && topic->disk_staged == 0 &&
           pn_topic_channel_at(seg, index)->ready == 0 && pn_topic_on_disk(topic) == 0;
}

/* ---- where each stands ----------------------------------------------------------------------- */

const struct pn_rest_cursor *pn_rest_cursor_of(const struct pn_topic_channel *ch)
{
    return &ch->rest_cursor[pn_load_relaxed(&ch->rests) == 2];
}

void pn_rest_cursor_set(struct pn_topic_channel *ch, const struct pn_diskqueue_cursor *to,
                        uint64_t others)
{
    const uint32_t next = pn_load_relaxed(&ch->rests) == 1 ? 2 : 1;
    ch->rest_cursor[next - 1] =
        (struct pn_rest_cursor) {to->file, to->at, to->seq, to->sum, others};
    ch->rest_stuck = 0;
    PN_CRASH("rest:cursor");
    pn_store_release(&ch->rests, next);
    PN_CRASH("rest:moved");
}

void pn_rest_begin(const struct pn_topic *topic, struct pn_topic_channel *ch, bool staged)
{
    struct pn_diskqueue_cursor end;
    pn_diskqueue_end(&topic->rest, staged, &end);
    pn_rest_cursor_set(ch, &end, 0);
}

bool pn_rests(const struct pn_topic *topic, const struct pn_topic_channel *ch)
{
    return pn_load_relaxed(&ch->rests) != 0 &&
           pn_rest_cursor_of(ch)->seq < pn_diskqueue_now(&topic->rest)->write_seq;
}

uint64_t pn_rest_depth(const struct pn_segment *seg, const struct pn_topic *topic,
                       const struct pn_topic_channel *ch)
{
    if (!pn_rests(topic, ch))
        return 0;
    const uint64_t from = pn_rest_cursor_of(ch)->seq;
    const uint64_t to_all = from > topic->rest_given ? from : topic->rest_given;
    const uint64_t there = pn_diskqueue_now(&topic->rest)->write_seq - from,
                   not_its = pn_rest_cursor_of(ch)->others +
                             pn_tombstones_from_locked(seg, topic, to_all | PN_REST_SEQ);
    return there > not_its ? there - not_its : 0; /* of damaged records it is not known whose */
}

bool pn_rest_is_named(const struct pn_segment *seg, const struct pn_topic *topic,
                      const struct pn_topic_channel *ch, const struct pn_topic_on_disk *record,
                      struct pn_spilled_delivery *d)
{
    const uint32_t index = pn_topic_channel_index(seg, ch);
    for (uint32_t i = 0; i < record->deliveries.n; i++)
        if (pn_spilled_channel(&record->deliveries, i) == index &&
            pn_spilled_delivery_locked(seg, topic, &record->deliveries, i, d))
            return true;
    return false;
}

bool pn_rest_has(const struct pn_segment *seg, const struct pn_topic *topic,
                 const struct pn_topic_channel *ch, const struct pn_topic_on_disk *record)
{
    struct pn_spilled_delivery d;
    return pn_rests(topic, ch) && pn_rest_cursor_of(ch)->seq <= (record->seq & ~PN_REST_SEQ) &&
           (!record->given || pn_rest_is_named(seg, topic, ch, record, &d));
}

void pn_rest_empty_locked(struct pn_segment *seg, struct pn_topic_channel *ch)
{
    pn_assert_topics_held(seg);
    if (pn_load_relaxed(&ch->rests) == 0)
        return;
    pn_store_release(&ch->rests, 0);
    ch->rest_stuck = 0;
    PN_CRASH("rest:emptied");
}

void pn_rest_cursors_settle_locked(const struct pn_segment *seg, const struct pn_topic *topic)
{
    pn_assert_topics_held(seg);
    PN_EACH_CHANNEL_AS (seg, topic, ch)
        if (pn_load_relaxed(&ch->rests) != 0 && !pn_rests(topic, ch))
            pn_store_release(&ch->rests, 0);
}

void pn_rest_cursors_follow_locked(struct pn_segment *seg, struct pn_topic *topic)
{
    pn_assert_topics_held(seg);
    struct pn_diskqueue_cursor to;
    pn_diskqueue_end(&topic->rest, false, &to);
    PN_EACH_CHANNEL_AS (seg, topic, ch)
        if (pn_rests(topic, ch) && pn_rest_cursor_of(ch)->seq < to.seq)
            to = (struct pn_diskqueue_cursor) {
                pn_rest_cursor_of(ch)->file, pn_rest_cursor_of(ch)->at, pn_rest_cursor_of(ch)->seq,
                pn_rest_cursor_of(ch)->sum};
    PN_EACH_CHANNEL_AS (seg, topic, ch)
        pn_invariant(seg, "I27", !pn_rests(topic, ch) || to.seq <= pn_rest_cursor_of(ch)->seq);
    pn_diskqueue_forget(&topic->rest, seg->topics.disk, &to);
    PN_CRASH("rest:followed");
    pn_tombstones_passed_locked(seg, topic);
}

void pn_rest_redo_locked(struct pn_segment *seg)
{
    pn_assert_topics_held(seg);
    const struct pn_topic_redo *redo = &seg->topics.ctl->redo;
    const struct pn_diskqueue_cursor to = {redo->disk_file, redo->disk_at, redo->disk_seq,
                                           redo->disk_sum};
    uint32_t limit = seg->topics.max_channels, at = pn_message_at(seg, redo->messages)->first;
    for (; at != 0 && limit > 0; at = pn_delivery_at(seg, at)->of_message, limit--) {
        struct pn_topic_channel *ch = pn_topic_channel_at(seg, pn_delivery_at(seg, at)->channel);
        if (pn_load_relaxed(&ch->rests) != 0 && pn_rest_cursor_of(ch)->seq < to.seq)
            pn_rest_cursor_set(ch, &to, pn_rest_cursor_of(ch)->others);
    }
}

bool pn_topic_spills_locked(const struct pn_segment *seg, const struct pn_topic *topic, size_t n)
{
    pn_assert_topics_held(seg);
    uint64_t there = (uint64_t) topic->firm + topic->staged;
    bool all_soft = topic->nchannels != 0 && topic->paused == 0;
    if (!pn_topic_may_spill(seg, topic))
        return false;
    if (pn_topic_on_disk(topic) != 0)
        return true;
    if (pn_rest_runs(seg, topic)) /* the channels see to themselves */
        return false;
    if (topic->max_depth == 0 || there + n <= topic->max_depth)
        return false;
    if (all_soft)
        PN_EACH_CHANNEL (seg, topic, i)
            all_soft = all_soft && pn_topic_channel_at(seg, i - 1)->ephemeral != 0;
    return !all_soft;
}

void pn_topic_disk_redo_locked(struct pn_segment *seg)
{
    pn_assert_topics_held(seg);
    const struct pn_topic_redo *redo = &seg->topics.ctl->redo;
    if (redo->disk == 0)
        return;
    if ((redo->rest & PN_REDO_CURSORS) != 0) {
        pn_rest_redo_locked(seg);
        return;
    }
    struct pn_topic *topic = pn_topic_at(seg, redo->disk - 1);
    const uint64_t from = (redo->rest & PN_REDO_FROM_LATER) != 0 ? PN_LATER_SEQ : 0;
    pn_diskqueue_pass(pn_topic_queue(topic, from), redo->disk_file, redo->disk_at, redo->disk_seq,
                      redo->disk_sum);
    pn_invariant(seg, "I29", pn_topic_queue_adds_up(pn_topic_queue(topic, from)));
    PN_CRASH("refill:passed");
    if ((redo->rest & PN_REDO_AGAIN) != 0)
        pn_tombstones_moved_locked(seg, topic, redo->disk_seq | from,
                                   (redo->spill_seq - 1) | PN_LATER_SEQ);
}
