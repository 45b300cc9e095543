/*
 * rest_given.c - records of `rest` that name their channels: of messages that were given before.
 *
 * 1. Two things write such: what the log says of before the segment was made (rest.c 5), and a
 *    deferred message that is due when memory has no room for all that have it (later.c 3).  Of its
 *    channels those that take it (channel_room.c) have it in memory, the others rest.
 * 2. A channel that rests and is not named passes the record; `others` of its cursor counts those.
 *    It is counted behind the commit, so after a death it may be one too few, and the channel's
 *    depth one too many, until it has come to the end of the files.
 * 3. What is divided is due in one channel at least.  What others have put off is one deferred
 *    message more: a cancel finds their record, if it is deferred for all that it names.
 */
#include "topic/rest_given.h"

#include <errno.h>
#include <stdlib.h>

#include "base/crashpoint.h"
#include "segment/lock.h"
#include "topic/area.h"
#include "topic/channel_room.h"
#include "topic/cursors.h"
#include "topic/message.h"
#include "topic/on_disk.h"
#include "topic/staging.h"

/* Those of `given` that have no room for it in memory; the others are given it there. */
static uint32_t without_room(struct pn_segment *seg, uint32_t *ref,
                             const struct pn_channel_room *room, uint64_t bytes, int64_t now,
                             uint32_t n, struct pn_spilled_delivery *given)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct pn_topic_channel *ch = pn_topic_channel_at(seg, given[i].channel);
        const int64_t due = given[i].due > now ? given[i].due : 0;
        if (*ref != 0 && pn_load_relaxed(&ch->rests) == 0 && pn_channel_takes(ch, room, bytes) &&
            pn_message_restore_delivery_locked(seg, *ref, given[i].channel, due, given[i].attempts))
            continue;
        if (ch->ephemeral != 0)
            ch->dropped++; /* it never rests */
        else
            given[left++] = given[i];
    }
    if (*ref != 0 && pn_message_at(seg, *ref)->refs == 0) {
        pn_message_unstage_locked(seg, *ref);
        *ref = 0;
    }
    return left;
}

/* Until when is it deferred for all of them?  0: it is due for one. */
static int64_t deferred_until(const struct pn_spilled_deliveries *given, int64_t now)
{
    const struct pn_spilled_delivery *to = given->bytes;
    int64_t due = INT64_MAX;
    for (uint32_t i = 0; i < given->n; i++)
        due = to[i].due < due ? to[i].due : due;
    return due > now ? due : 0;
}

/* Their record, staged. */
static int stage_record(struct pn_segment *seg, struct pn_topic *topic,
                        const struct pn_new_message *m, const struct pn_moment *then,
                        const struct pn_spilled_deliveries *given, uint64_t *seq)
{
    const struct pn_spilled_delivery *to = given->bytes;
    for (uint32_t i = 0; i < given->n; i++) {
        struct pn_topic_channel *ch = pn_topic_channel_at(seg, to[i].channel);
        if (pn_load_relaxed(&ch->rests) == 0)
            pn_rest_begin(topic, ch, false);
    }
    return pn_rest_stage_given_locked(seg, topic, m, then, given, seq);
}

/* Behind the commit.  `counts`: the channels that it names have not counted the message. */
static void count_record(struct pn_segment *seg, struct pn_topic *topic,
                         const struct pn_spilled_deliveries *given, bool counts)
{
    struct pn_spilled_delivery d;
    PN_EACH_CHANNEL_AS (seg, topic, ch)
        if (pn_rests(topic, ch))
            ch->rest_cursor[pn_load_relaxed(&ch->rests) - 1].others++;
    for (uint32_t i = 0; i < given->n; i++) {
        if (!pn_spilled_delivery_locked(seg, topic, given, i, &d))
            continue;
        struct pn_topic_channel *ch = pn_topic_channel_at(seg, d.channel);
        if (!pn_rests(topic, ch))
            continue;
        ch->rest_cursor[pn_load_relaxed(&ch->rests) - 1].others--;
        ch->message_count += counts;
    }
}

/* ---- of before the segment was made ---------------------------------------------------------- */

static int restore_on_disk(struct pn_segment *seg, struct pn_topic *topic,
                           const struct pn_new_message *m, const struct pn_moment *then,
                           const struct pn_spilled_deliveries *given)
{
    uint64_t seq = 0;
    int rc = stage_record(seg, topic, m, then, given, &seq);
    if (rc != 0)
        return rc;
    seg->topics.ctl->spilled = 1;
    pn_diskqueue_commit(&topic->rest, seq);
    topic->rest_given = seq;
    count_record(seg, topic, given, true);
    return 0;
}

int pn_rest_restore_locked(struct pn_segment *seg, struct pn_topic *topic,
                           const struct pn_new_message *m, const struct pn_moment *then, uint32_t n,
                           struct pn_spilled_delivery *given)
{
    pn_assert_topics_held(seg);
    const uint64_t bytes = (uint64_t) m->headers_len + m->body_len;
    bool timed = m->ttl_ns > 0;
    for (uint32_t i = 0; i < n; i++)
        timed |= given[i].due != 0;
    int rc = pn_topic_use_files_locked(seg, topic);
    if (rc != 0)
        return rc;
    const struct pn_channel_room room = pn_channel_room_locked(seg, topic, bytes, timed, 0);
    uint32_t ref = pn_message_restore_begin_locked(seg, topic, m, then, false, false);
    const struct pn_spilled_deliveries left = {
        given, without_room(seg, &ref, &room, bytes, INT64_MIN, n, given)};
    if (left.n != 0)
        rc = restore_on_disk(seg, topic, m, then, &left);
    if (ref == 0 && rc == 0) {
        topic->message_count++;
        topic->message_bytes += m->body_len;
    }
    if (ref == 0)
        return rc;
    pn_store_release(&pn_message_at(seg, ref)->state, PN_MSG_LIVE);
    pn_message_link_locked(seg, ref);
    return rc;
}

/* ---- out of `later` -------------------------------------------------------------------------- */

/* All of it by the one store; `to`: where `later` goes on. */
static void commit(struct pn_segment *seg, struct pn_topic *topic, uint32_t ref, uint64_t seq,
                   const struct pn_diskqueue_cursor *to)
{
    struct pn_topic_redo *redo = &seg->topics.ctl->redo;
    const uint32_t index = (uint32_t) (topic - seg->topics.topic) + 1;
    redo->messages = ref;
    redo->delivery = redo->gone = 0;
    redo->spill = seq != 0 ? index : 0;
    redo->spill_seq = seq;
    redo->disk = index;
    redo->disk_seq = to->seq - 1;
    redo->disk_sum = to->sum;
    redo->disk_file = to->file;
    redo->disk_at = to->at;
    redo->rest = PN_REDO_REST | PN_REDO_FROM_LATER;
    PN_CRASH("divide:staged");
    pn_store_release(&redo->valid, 1);
    PN_CRASH("divide:valid");
    if (seq != 0)
        pn_diskqueue_commit(&topic->rest, seq);
    PN_CRASH("divide:written");
    pn_topic_disk_redo_locked(seg);
}

static void golive(struct pn_segment *seg, struct pn_topic *topic, uint32_t ref)
{
    struct pn_topic_redo *redo = &seg->topics.ctl->redo;
    if (ref == 0) {
        pn_store_release(&redo->valid, 0);
    } else {
        const struct pn_message *m = pn_message_at(seg, ref);
        const uint32_t first = m->first, body = m->body_len;
        uint32_t steps = 0;
        pn_message_golive_locked(seg, ref);
        topic->message_count--; /* it was counted when it was published */
        topic->message_bytes -= body;
        for (uint32_t at = first; at != 0 && pn_cells_go_on(seg, &steps);
             at = pn_delivery_at(seg, at)->of_message)
            pn_topic_channel_at(seg, pn_delivery_at(seg, at)->channel)->message_count--;
    }
    redo->disk = redo->spill = redo->rest = 0;
}

static int divide(struct pn_segment *seg, struct pn_topic *topic,
                  const struct pn_topic_on_disk *from, const struct pn_diskqueue_cursor *to,
                  int64_t now, uint32_t n, struct pn_spilled_delivery *given)
{
    const uint64_t bytes = (uint64_t) from->m.headers_len + from->m.body_len;
    const struct pn_channel_room room = pn_channel_room_locked(seg, topic, bytes, true, 0);
    uint64_t seq = 0;
    pn_rest_cursors_settle_locked(seg, topic);
    uint32_t ref = pn_message_restore_begin_locked(seg, topic, &from->m, &from->then, false, false);
    const struct pn_spilled_deliveries left = {
        given, without_room(seg, &ref, &room, bytes, now, n, given)};
    const int64_t due = left.n == 0 ? 0 : deferred_until(&left, now);
    struct pn_new_message m = from->m;
    if (due != 0)
        m.delay_ns = due - from->then.mono;
    int rc = left.n == 0 ? 0 : stage_record(seg, topic, &m, &from->then, &left, &seq);
    if (rc != 0) {
        if (ref != 0)
            pn_message_unstage_locked(seg, ref);
        pn_rest_cursors_settle_locked(seg, topic);
        return rc;
    }
    commit(seg, topic, ref, seq, to);
    if (left.n != 0)
        count_record(seg, topic, &left, false);
    if (due != 0) /* its tombstone may not count for others (pn_rest_depth()) */
        topic->rest_given = seq;
    golive(seg, topic, ref);
    pn_topic_has_written_locked(seg, left.n == 0 ? 0 : from->bytes);
    return 1;
}

int pn_rest_divide_locked(struct pn_segment *seg, struct pn_topic *topic,
                          const struct pn_topic_on_disk *from, const struct pn_diskqueue_cursor *to,
                          int64_t now)
{
    pn_assert_topics_held(seg);
    struct pn_spilled_delivery *given = calloc(from->deliveries.n + (size_t) 1, sizeof *given);
    uint32_t n = 0;
    if (given == NULL)
        return pn_fail(ENOMEM, "out of memory");
    for (uint32_t i = 0; i < from->deliveries.n; i++)
        n += pn_spilled_delivery_locked(seg, topic, &from->deliveries, i, &given[n]);
    int rc = divide(seg, topic, from, to, now, n, given);
    free(given);
    return rc;
}
