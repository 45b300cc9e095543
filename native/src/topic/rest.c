/*
 * rest.c - channels of a topic that do not keep up: what they have on disk.
 *
 * 1. A channel that is not consumed must not stop the topic's other channels.  So one that has more
 *    than its part of the topic's memory rests: what is published from then on it gets from disk.
 *    It is written once, into the topic's `rest` (diskqueue.c), and each channel that rests has a
 *    cursor there.  What stands at the cursor or behind it is the channel's, whichever others have
 *    it: a record is written when a channel rests, and all that do so then get it.  The others have
 *    the message in memory.  A channel that is made later does not rest, and so gets none of it.
 * 2. While a channel rests it gets everything from there: the order is kept.  Whenever an operation
 *    on topics ends, each that has room again is given the next ones.  Channels whose cursors stand
 *    at the same record are given the same copy.  At the end of the files it rests no more.
 * 3. Room (channel_room.c).  As long as the topic may have the message and a reserve besides, by
 *    its share (arena_share.c) and its max_depth, every channel takes it.  The reserve is for
 *    channels that have little: each may have its part of it, or one message.  So whatever a
 *    channel does not finish, the reserve is there for those that do; and one that has nothing may
 *    also take what publishers leave to what moves messages (message.c, 4).  Shares get smaller
 *    when topics come: a topic that has more than its share by then may take for such channels half
 *    of what is free, less what they have.
 *    An ephemeral channel never rests; what only such channels have goes when there is no room.
 *    Where one channel is not ephemeral there is no other to be spared, and nothing is reserved.
 * 4. Truth: `rests` says whether, and which of two cursors; the one store of it moves the
 *    channel.  A cursor that is not before the committed end says that it does not rest: so
 *    a channel begins to rest before the commit of the record that it begins with, and if that is
 *    never committed it never did.
 *    What is in memory for some and on disk for others is committed by one redo record; so is a
 *    message that comes back, with the cursors of the channels that it has deliveries for.
 * 5. Of a durable topic the log says which channels have a message (topic_log.h), whichever have it
 *    on disk: it is published to all channels of that moment, and each finishes it for itself.  So
 *    nothing is noted when it comes back, and `rest` goes with the segment like all files of
 *    overflow.c.  After that, what the log says of each channel goes to memory or to `rest` again,
 *    in the order of ids.  There a record may be for some channels only, which it names
 *    (rest_given.c).
 * 6. The queue's own reading end follows the last of the cursors, and files before it are removed.
 *    It may be behind after a death; it is never ahead (I27).
 */
#include "topic/rest.h"

#include <errno.h>
#include <stdlib.h>

#include "base/crashpoint.h"
#include "base/moment.h"
#include "segment/arena_body.h"
#include "segment/arena_share.h"
#include "segment/lock.h"
#include "topic/area.h"
#include "topic/channel_room.h"
#include "topic/cursors.h"
#include "topic/delivery.h"
#include "topic/journal.h"
#include "topic/message.h"
#include "topic/notes.h"
#include "topic/on_disk.h"
#include "topic/queues.h"
#include "topic/staging.h"
#include "topic/tombstones.h"
#include "topic/waiting.h"

/* A look at a channel counts as so many bytes: of a thousand few records go in one hold. */
enum { PN_CHANNEL_WRITTEN = 8, PN_CHANNEL_READ = 64 };

/* ---- giving out ------------------------------------------------------------------------------ */

/* What is staged so far. */
struct batch {
    struct pn_segment *seg;
    struct pn_topic *topic;
    uint32_t first, last, n;            /* messages in memory */
    uint64_t seq;                       /* the rest goes on to there; 0: nothing was written */
    uint64_t written, bytes;            /* messages that are nowhere else, and their bodies */
    struct pn_topic_gathered *gathered; /* of several; or NULL */
};

/* Where the next record will stand is known when those before it are written. */
static int write_gathered(struct batch *b)
{
    int rc = b->gathered == NULL ? 0 : pn_topic_gathered_stage_locked(b->seg, b->gathered);
    if (b->gathered != NULL)
        b->seq = b->gathered->seq;
    return rc;
}

static int begin_to_rest(struct batch *b, struct pn_topic_channel *ch)
{
    if (pn_load_relaxed(&ch->rests) != 0)
        return 0;
    int rc = write_gathered(b);
    if (rc == 0)
        pn_rest_begin(b->topic, ch, b->seq != 0);
    return rc;
}

/* Deliveries for those that take it; the others are to read it from disk: 1: there are some; 0;
 * -errno, only if others are gathered. */
static int share_out(struct batch *b, struct pn_message *m, uint32_t ref, uint64_t bytes,
                     int64_t due, const struct pn_channel_room *room)
{
    bool on_disk = false;
    PN_EACH_CHANNEL_AS (b->seg, b->topic, ch) {
        bool without = pn_topic_channel_goes_without(b->topic, ch);
        if (ref != 0 && !without && pn_load_relaxed(&ch->rests) == 0 && room != NULL &&
            pn_channel_takes(ch, room, bytes) &&
            pn_message_add_delivery_locked(b->seg, m, ref, ch, due))
            continue;
        if (ch->ephemeral != 0) {
            ch->dropped++;
            continue;
        }
        int rc = begin_to_rest(b, ch);
        if (rc != 0)
            return rc;
        on_disk = true;
    }
    return on_disk;
}

/* What was written is there for those that rest, from record `begin` on. */
static void commit_records(const struct batch *b)
{
    const uint64_t begin = pn_diskqueue_now(&b->topic->rest)->write_seq;
    if (b->seq == 0)
        return;
    pn_diskqueue_commit(&b->topic->rest, b->seq);
    PN_EACH_CHANNEL_AS (b->seg, b->topic, ch)
        if (pn_rests(b->topic, ch))
            ch->message_count +=
                b->seq - (pn_rest_cursor_of(ch)->seq > begin ? pn_rest_cursor_of(ch)->seq : begin);
}

static bool anybody_takes(const struct batch *b, const struct pn_channel_room *room, uint64_t bytes)
{
    PN_EACH_CHANNEL_AS (b->seg, b->topic, ch)
        if (pn_load_relaxed(&ch->rests) == 0 && pn_channel_takes(ch, room, bytes))
            return true;
    return false;
}

static int write_record(struct batch *b, const struct pn_new_message *m,
                        const struct pn_moment *now)
{
    if (b->gathered == NULL)
        return pn_rest_stage_locked(b->seg, b->topic, m, now, &b->seq);
    int rc = pn_topic_gather_locked(b->seg, b->gathered, m, now);
    b->seq = b->gathered->seq;
    return rc;
}

/* One more.  -errno: nothing of it is staged. */
static int stage_one(struct batch *b, const struct pn_new_message *m, const struct pn_moment *now)
{
    struct pn_segment *seg = b->seg;
    const uint64_t bytes = (uint64_t) m->headers_len + m->body_len;
    const int64_t due = m->delay_ns <= 0                      ? 0
                        : m->delay_ns > INT64_MAX - now->mono ? INT64_MAX
                                                              : now->mono + m->delay_ns;
    if (m->fresh && pn_topic_disk_is_over(b->topic))
        return pn_topic_disk_full(b->topic, 0);
    struct pn_channel_room room =
        pn_channel_room_locked(seg, b->topic, bytes, due != 0 || m->ttl_ns > 0, b->n);
    uint32_t ref = anybody_takes(b, &room, bytes)
                       ? pn_message_restore_begin_locked(seg, b->topic, m, now, false, false)
                       : 0;
    int rc = share_out(b, pn_message_at(seg, ref), ref, bytes, due, &room);
    if (ref != 0 && pn_message_at(seg, ref)->refs == 0) {
        pn_message_unstage_locked(seg, ref);
        ref = 0;
    }
    if (rc == 1)
        rc = write_record(b, m, now);
    if (rc != 0) {
        if (ref != 0)
            pn_message_unstage_locked(seg, ref);
        return rc;
    }
    b->written += ref == 0;
    b->bytes += ref == 0 ? m->body_len : 0;
    if (ref == 0)
        return 0;
    if (b->last != 0)
        pn_message_at(seg, b->last)->next = ref;
    else
        b->first = ref;
    b->last = ref;
    b->n++;
    PN_CRASH("rest:staged");
    return 0;
}

static void unstage(struct batch *b)
{
    uint32_t steps = 0;
    for (uint32_t ref = b->first, next; ref != 0 && pn_cells_go_on(b->seg, &steps); ref = next) {
        next = pn_message_at(b->seg, ref)->next;
        pn_message_unstage_locked(b->seg, ref);
    }
}

/* All of it, by the one store. */
static void commit(struct batch *b, const struct pn_record_out *from)
{
    struct pn_segment *seg = b->seg;
    struct pn_topic_redo *redo = &seg->topics.ctl->redo;
    const uint32_t topic = (uint32_t) (b->topic - seg->topics.topic) + 1;
    redo->messages = b->first;
    redo->delivery = 0;
    redo->spill = b->seq != 0 ? topic : 0;
    redo->spill_seq = b->seq;
    redo->rest = PN_REDO_REST;
    redo->disk = 0;
    if (from != NULL)
        pn_topic_disk_redo_set_locked(seg, b->topic, from);
    seg->topics.ctl->spilled = 1;
    PN_CRASH("rest:redo");
    pn_store_release(&redo->valid, 1);
    PN_CRASH("rest:redo-valid");
    pn_topic_disk_redo_locked(seg);
    commit_records(b);
    pn_message_golive_locked(seg, b->first);
    redo->disk = redo->spill = 0;
    b->topic->message_count += b->written;
    b->topic->message_bytes += b->bytes;
}

/* Of one that was in the backlog, as a record or in memory. */
static void has_written(const struct batch *b, uint64_t bytes)
{
    const uint64_t looks = (uint64_t) b->topic->nchannels * PN_CHANNEL_WRITTEN;
    if (b->seq != 0)
        pn_topic_has_written_locked(b->seg,
                                    bytes + sizeof(struct pn_spilled) + PN_RECORD_HEADER + looks);
}

int pn_rest_publish_locked(struct pn_segment *seg, struct pn_topic *topic,
                           const struct pn_new_message *common, const unsigned char *bodies,
                           const uint32_t *lens, size_t n)
{
    pn_assert_topics_held(seg);
    const struct pn_moment now = pn_moment_now();
    struct pn_new_message m = *common;
    struct pn_topic_gathered gathered;
    struct batch b = {.seg = seg, .topic = topic, .gathered = &gathered};
    int rc = 0;
    size_t done = 0;
    pn_topic_gather(topic, PN_REST_SEQ, &gathered);
    pn_rest_cursors_settle_locked(seg, topic);
    for (; done < n && rc == 0; bodies += lens[done], done++, m.id++) {
        m.body = bodies;
        m.body_len = lens[done];
        rc = stage_one(&b, &m, &now);
        if (rc == 0)
            pn_durable_note_spilled_locked(seg, topic, &m, &now, true);
    }
    if (rc == 0)
        rc = write_gathered(&b);
    if (pn_is_durable(seg, topic)) {
        if (rc != 0)
            pn_durable_forget_locked(seg);
        int flushed = pn_durable_flush_locked(seg);
        rc = rc != 0 ? rc : flushed;
    }
    if (rc == 0) {
        commit(&b, NULL);
        return 0;
    }
    unstage(&b);
    pn_topic_gathered_drop_locked(seg, &gathered);
    pn_rest_cursors_settle_locked(seg, topic);
    return rc;
}

int pn_rest_move_locked(struct pn_segment *seg, struct pn_topic *topic,
                        const struct pn_new_message *m, const struct pn_moment *then,
                        const struct pn_record_out *record)
{
    pn_assert_topics_held(seg);
    struct batch b = {.seg = seg, .topic = topic};
    pn_rest_cursors_settle_locked(seg, topic);
    int rc = stage_one(&b, m, then);
    if (rc != 0) {
        pn_rest_cursors_settle_locked(seg, topic);
        return rc;
    }
    commit(&b, record);
    has_written(&b, (uint64_t) m->headers_len + m->body_len);
    pn_durable_note_given_locked(seg, topic, m, then);
    return 0;
}

/* ---- out of the backlog ---------------------------------------------------------------------- */

/* The message as it stands in memory, for its record; nothing can fail afterwards. */
static int write_from_memory(struct batch *b, uint32_t ref, int64_t due)
{
    const struct pn_message *m = pn_message_at(b->seg, ref);
    const struct pn_moment then = {.mono = m->published_mono, .real = m->published_ns};
    const struct pn_lengths length = pn_message_lengths(m);
    unsigned char *bytes = malloc(length.both);
    if (bytes == NULL)
        return pn_fail(ENOMEM, "out of memory");
    if (!pn_arena_read(&b->seg->topics.arena, ref, sizeof *m, 0, bytes, length.both)) {
        free(bytes);
        return pn_segment_poison(b->seg, "the body of message %016llx is broken",
                                 (unsigned long long) m->id);
    }
    const struct pn_new_message copy = {.headers = bytes,
                                        .headers_len = length.headers,
                                        .body = bytes + length.headers,
                                        .body_len = length.body,
                                        .id = m->id,
                                        .delay_ns = due == 0 ? 0 : due - then.mono,
                                        .ttl_ns = m->expires == 0 ? 0 : m->expires - then.mono};
    int rc = pn_rest_stage_locked(b->seg, b->topic, &copy, &then, &b->seq);
    if (rc == 0)
        pn_durable_note_given_locked(b->seg, b->topic, &copy, &then);
    free(bytes);
    return rc;
}

/* It leaves the backlog, and is in the channels' lists. */
static void leave_backlog(struct batch *b, uint32_t at, uint32_t before)
{
    struct pn_segment *seg = b->seg;
    struct pn_delivery *own = pn_delivery_at(seg, at);
    struct pn_topic_redo *redo = &seg->topics.ctl->redo;
    const struct pn_message *m = pn_message_at(seg, own->message);
    const uint64_t was = pn_load_relaxed(&own->state);
    uint32_t given = m->first;
    redo->messages = 0;
    redo->delivery = at;
    redo->expected = was;
    redo->disk = 0;
    redo->spill = (uint32_t) (b->topic - seg->topics.topic) + 1;
    redo->spill_seq = b->seq;
    redo->rest = PN_REDO_REST;
    seg->topics.ctl->spilled = 1;
    PN_CRASH("rest:pump");
    pn_store_release(&redo->valid, 1);
    PN_CRASH("rest:pump-valid");
    commit_records(b);
    pn_store_release(&own->state, pn_state_word(PN_KIND_FREE, 0, 0, pn_state_tag(was)));
    PN_CRASH("rest:pumped");
    pn_store_release(&redo->valid, 0);
    redo->spill = 0;
    for (uint32_t next, steps = 0; given != before && pn_cells_go_on(seg, &steps); given = next) {
        struct pn_topic_channel *ch = pn_topic_channel_at(seg, pn_delivery_at(seg, given)->channel);
        next = pn_delivery_at(seg, given)->of_message;
        ch->message_count++;
        ch->staged--;
        pn_delivery_enqueue_locked(seg, given);
    }
    struct pn_hold *hold = pn_topics_hold(seg);
    const bool told = hold->told;
    hold->told = true; /* it is not over: write_from_memory() has noted where it is */
    pn_delivery_ended_locked(seg, at, was);
    hold->told = told;
}

int pn_rest_pump_locked(struct pn_segment *seg, struct pn_topic *topic, uint32_t at, int64_t now,
                        bool all_rest)
{
    pn_assert_topics_held(seg);
    struct batch b = {.seg = seg, .topic = topic};
    const struct pn_delivery *own = pn_delivery_at(seg, at);
    struct pn_message *m = pn_message_at(seg, own->message);
    const uint64_t bytes = (uint64_t) m->headers_len + m->body_len;
    const int64_t due = own->due > now ? own->due : 0;
    const uint32_t before = m->first;
    bool timed = m->expires != 0 || due != 0;
    pn_rest_cursors_settle_locked(seg, topic);
    if (!all_rest && !pn_rest_splits_locked(seg, topic, bytes, timed))
        return 1;
    struct pn_channel_room room = pn_channel_room_locked(seg, topic, bytes, timed, 0);
    (void) share_out(&b, m, own->message, bytes, due, all_rest ? NULL : &room);
    int rc = write_from_memory(&b, own->message, due);
    if (rc == 0) {
        leave_backlog(&b, at, before);
        has_written(&b, bytes);
        return 0;
    }
    pn_pump_give_back_locked(seg, m, before);
    pn_rest_cursors_settle_locked(seg, topic);
    return rc;
}

/* ---- coming back ----------------------------------------------------------------------------- */

static void stage_back_to(struct pn_segment *seg, struct pn_topic *topic,
                          const struct pn_topic_channel *ch, uint64_t seq, uint32_t ref,
                          const struct pn_channel_room *room, uint64_t bytes, int64_t due,
                          uint32_t attempts)
{
    if (pn_rests(topic, ch) && pn_rest_cursor_of(ch)->seq == seq &&
        pn_channel_takes(ch, room, bytes))
        pn_message_restore_delivery_locked(seg, ref, pn_topic_channel_index(seg, ch), due,
                                           attempts);
}

/* Of the channels that stand where `ch` does, those that have room are given it. */
static uint32_t stage_back(struct pn_segment *seg, struct pn_topic *topic,
                           const struct pn_topic_channel *ch, const struct pn_topic_on_disk *from,
                           const struct pn_channel_room *room, int64_t now)
{
    const uint64_t bytes = (uint64_t) from->m.headers_len + from->m.body_len;
    const uint64_t seq = pn_rest_cursor_of(ch)->seq;
    uint32_t ref = pn_message_restore_begin_locked(seg, topic, &from->m, &from->then, false, false);
    struct pn_message *m = pn_message_at(seg, ref);
    if (ref == 0)
        return 0;
    struct pn_spilled_delivery d;
    for (uint32_t i = 0; from->given && i < from->deliveries.n; i++)
        if (pn_spilled_delivery_locked(seg, topic, &from->deliveries, i, &d))
            stage_back_to(seg, topic, pn_topic_channel_at(seg, d.channel), seq, ref, room, bytes,
                          d.due > now ? d.due : 0, d.attempts);
    if (!from->given)
        PN_EACH_CHANNEL_AS (seg, topic, other)
            stage_back_to(seg, topic, other, seq, ref, room, bytes, from->due > now ? from->due : 0,
                          0);
    if (m->refs != 0)
        return ref;
    pn_message_unstage_locked(seg, ref);
    return 0;
}

/* All that stand at a record know then how long it is, and do not read it again to learn that. */
static void wait_for_room(const struct pn_segment *seg, const struct pn_topic *topic,
                          struct pn_topic_channel *ch, const struct pn_topic_on_disk *record,
                          uint64_t bytes)
{
    const uint64_t seq = pn_rest_cursor_of(ch)->seq;
    ch->rest_stuck = bytes;
    if (!record->given) /* else its next one may be another */
        PN_EACH_CHANNEL_AS (seg, topic, other)
            if (pn_rests(topic, other) && pn_rest_cursor_of(other)->seq == seq)
                other->rest_stuck = bytes;
}

static void bring_back(struct pn_segment *seg, struct pn_topic *topic, uint32_t ref,
                       const struct pn_diskqueue_cursor *to)
{
    struct pn_topic_redo *redo = &seg->topics.ctl->redo;
    const struct pn_message *m = pn_message_at(seg, ref);
    redo->messages = ref;
    redo->delivery = redo->spill = 0;
    redo->rest = PN_REDO_CURSORS;
    redo->disk = (uint32_t) (topic - seg->topics.topic) + 1;
    redo->disk_file = to->file;
    redo->disk_at = to->at;
    redo->disk_seq = to->seq;
    redo->disk_sum = to->sum;
    PN_CRASH("rest:back");
    pn_store_release(&redo->valid, 1);
    PN_CRASH("rest:back-valid");
    pn_rest_redo_locked(seg);
    const uint32_t given = m->first, body = m->body_len;
    pn_message_golive_locked(seg, ref);
    redo->disk = redo->rest = 0;
    topic->message_count--; /* it was counted when it was published, for the channels as well */
    topic->message_bytes -= body;
    uint32_t steps = 0;
    for (uint32_t at = given; at != 0 && pn_cells_go_on(seg, &steps);
         at = pn_delivery_at(seg, at)->of_message)
        pn_topic_channel_at(seg, pn_delivery_at(seg, at)->channel)->message_count--;
}

/* Damaged records are passed: those that were not counted yet. */
static void count_lost(struct pn_topic *topic, uint64_t from, uint64_t to)
{
    from = from < topic->rest_lost_end ? topic->rest_lost_end : from;
    if (to <= from)
        return;
    topic->rest_lost += to - from;
    topic->rest_lost_end = to;
}

/* What channels have room for, as long as nothing moves: of a thousand that wait each would look at
 * all of them. */
struct room_looked_for {
    bool known;
    uint64_t bytes;
    struct pn_channel_room room;
};

static bool has_room(struct pn_segment *seg, struct pn_topic *topic,
                     const struct pn_topic_channel *ch, struct room_looked_for *looked)
{
    if (!looked->known || looked->bytes != ch->rest_stuck) {
        const uint32_t messages = topic->messages;
        looked->bytes = ch->rest_stuck;
        looked->room = pn_channel_room_locked(seg, topic, looked->bytes, false, 0);
        looked->known = topic->messages == messages; /* else some went that may go: perhaps more */
    }
    return pn_channel_takes(ch, &looked->room, looked->bytes);
}

/* The next one of the channel: 1, it has moved; 0: not now; -EAGAIN: call again; -errno. */
static int refill_one(struct pn_segment *seg, struct pn_topic *topic, struct pn_topic_channel *ch,
                      int64_t now, struct room_looked_for *looked)
{
    struct pn_topic_on_disk d;
    const struct pn_rest_cursor at = *pn_rest_cursor_of(ch);
    struct pn_diskqueue_cursor to = {at.file, at.at, at.seq, at.sum};
    if (!pn_rests(topic, ch))
        return 0;
    if (!has_room(seg, topic, ch, looked) &&
        !pn_topic_is_buried_locked(seg, topic, at.seq | PN_REST_SEQ))
        return 0;
    looked->known = false;
    int rc = pn_rest_look_locked(seg, topic, &to, &d);
    if (rc < 0 && rc != -EAGAIN)
        return rc;
    const uint64_t looks = (uint64_t) topic->nchannels * PN_CHANNEL_READ;
    pn_topic_has_read_locked(seg, looks + (rc == 1 ? d.bytes : 0));
    count_lost(topic, at.seq, rc == 1 ? to.seq - 1 : to.seq);
    struct pn_spilled_delivery own;
    bool other = rc == 1 && d.given && !pn_rest_is_named(seg, topic, ch, &d, &own);
    bool expired = rc == 1 && d.there && !other && d.expires != 0 && d.expires <= now;
    if (rc != 1 || !d.there || other || expired) {
        pn_rest_cursor_set(ch, &to, at.others - (other && at.others != 0));
        ch->expired += expired;
        return rc;
    }
    const uint64_t bytes = (uint64_t) d.m.headers_len + d.m.body_len;
    const struct pn_channel_room room =
        pn_channel_room_locked(seg, topic, bytes, d.due > now || d.expires != 0, 0);
    uint32_t ref =
        pn_channel_takes(ch, &room, bytes) ? stage_back(seg, topic, ch, &d, &room, now) : 0;
    if (ref == 0) {
        wait_for_room(seg, topic, ch, &d, bytes);
        return 0;
    }
    bring_back(seg, topic, ref, &to);
    return 1;
}

/* Nothing can be done for any of them: beside a channel that is not read each operation asks.  Not
 * known of one channel alone, for which nothing is reserved, nor beside an ephemeral one, which
 * makes room (channel_room.c). */
static bool is_stuck(const struct pn_segment *seg, const struct pn_topic *topic)
{
    uint64_t first = UINT64_MAX;
    if (topic->rest_buried != 0 || topic->nchannels < 2)
        return false;
    PN_EACH_CHANNEL_AS (seg, topic, ch) {
        if (ch->ephemeral != 0)
            return false;
        if (!pn_rests(topic, ch))
            continue;
        if (!pn_channel_waits_for_pages(seg, topic, ch, ch->rest_stuck))
            return false;
        if (pn_rest_cursor_of(ch)->seq < first)
            first = pn_rest_cursor_of(ch)->seq;
    }
    return first == pn_diskqueue_now(&topic->rest)->read_seq;
}

bool pn_rest_refill_locked(struct pn_segment *seg, struct pn_topic *topic)
{
    pn_assert_topics_held(seg);
    if (is_stuck(seg, topic))
        return false;
    const int64_t now = pn_now_ns();
    const uint32_t first = topic->nchannels == 0 ? 0 : seg->topics.rest_turn++ % topic->nchannels;
    struct room_looked_for looked = {.known = false};
    uint32_t steps = 0;
    bool more = false;
    if (pn_topic_use_files_locked(seg, topic) != 0)
        return false;
    for (int round = 0; round < 2; round++) { /* from `first` on, then those before it */
        uint32_t i = 0;
        PN_EACH_CHANNEL_AS (seg, topic, ch) {
            if ((i++ < first) != (round == 1))
                continue;
            int rc = pn_rests(topic, ch);
            while (rc == 1 && pn_topic_may_read_locked(seg)) {
                rc = refill_one(seg, topic, ch, now, &looked);
                steps += rc == 1;
            }
            more = more || rc == 1 || rc == -EAGAIN;
        }
    }
    pn_rest_cursors_follow_locked(seg, topic);
    PN_CRASH("rest:refilled");
    if (steps != 0)
        pn_topic_settle_locked(seg, topic);
    return more;
}
