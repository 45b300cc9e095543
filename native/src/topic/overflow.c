/*
 * overflow.c - overflow="disk": messages of a topic for which there is no room in memory.
 *
 * 1. Each topic has a queue on disk (diskqueue.c), in the segment's data_dir.  Once something is in
 *    it, what is published goes behind it; the oldest come back as soon as there is room: whenever
 *    an operation on topics ends (pn_topics_end_locked).  So the order is kept, and the queue on
 *    disk holds something only while the topic has all the memory that it may have (arena_share.c),
 *    or max_depth messages: no consumer waits for what is there.  All topics with something on disk
 *    take turns, but for the one of a consumer that comes, which is first; what a hold of the lock
 *    moves is bounded (PN_MOVE_*).  One whose next record had no room is looked at again, without
 *    reading it, when it would have.  A long row of what has expired or was cancelled takes several
 *    holds as well: meanwhile `refilling` stands, and a consumer that waits is made to come by
 *    (I24).
 * 2. In files a message has no channels yet.  When it comes back it is given to those that
 *    there are then, or to the backlog, as if it were published at that moment; its times are those
 *    of its publishing (CLOCK_MONOTONIC: the files do not outlive the segment).
 * 3. Publishing to disk is committed by the one store of diskqueue.c; a transaction's by `head`,
 *    with an entry that names the topic and how far its queue goes from there on.
 * 4. Coming back changes two truths, the message and the queue: one redo record has both
 *    (message.c 2), so nothing is lost or doubled by a death in between.
 * 5. A batch goes to memory whole or to files whole; a transaction's messages one by one.
 *    Records of either are gathered and written some at a time, behind the committed end, where no
 *    process looks: a writer that is killed between two writes or within one has put none, and what
 *    it left is cut off by the next.  A refusal cuts that off at once: the disk may be full.
 *    prepare() never writes to files: it takes memory beyond max_depth, if there is any.
 * 6. What was cancelled there has a tombstone (cancel.c), and is passed when its turn comes.
 * 7. What is deferred leaves memory for what has no room there (later.c).
 * 8. What is published is refused when the topic's records would have more than max_disk_bytes, or
 *    have (pn_topic_disk_admit()); what was accepted before never is.  So they have more only by
 *    what left memory since (later.c), or was there before the bound or the segment.
 * 9. The files of all topics are read and written through one set of descriptors per process.
 */
#include "topic/overflow.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crashpoint.h"
#include "base/moment.h"
#include "segment/lock.h"
#include "topic/area.h"
#include "topic/cursors.h"
#include "topic/journal.h"
#include "topic/later.h"
#include "topic/message.h"
#include "topic/notes.h"
#include "topic/on_disk.h"
#include "topic/pump.h"
#include "topic/queues.h"
#include "topic/rest.h"
#include "topic/staging.h"
#include "topic/tombstones.h"
#include "topic/waiting.h"

/* ---- publishing ------------------------------------------------------------------------------ */

static int spill_many_locked(struct pn_segment *seg, struct pn_topic *topic,
                             const struct pn_new_message *common, const unsigned char *bodies,
                             const uint32_t *lens, size_t n)
{
    pn_assert_topics_held(seg);
    const struct pn_moment now = pn_moment_now();
    struct pn_new_message m = *common;
    uint64_t bytes = 0;
    struct pn_topic_gathered g;
    pn_topic_gather(topic, 0, &g);
    for (size_t i = 0; i < n; i++)
        bytes += sizeof(struct pn_spilled) + m.headers_len + lens[i];
    int rc = m.fresh ? pn_topic_disk_admit(topic, &topic->disk, 0, bytes, n)
                     : 0; /* before anything is written */
    for (size_t i = 0; i < n && rc == 0; bodies += lens[i], i++, m.id++) {
        m.body = bodies;
        m.body_len = lens[i];
        rc = pn_topic_gather_locked(seg, &g, &m, &now);
        if (rc == 0)
            pn_durable_note_spilled_locked(seg, topic, &m, &now, false);
    }
    if (rc == 0)
        rc = pn_topic_gathered_stage_locked(seg, &g);
    if (pn_is_durable(seg, topic)) {
        if (rc != 0)
            pn_durable_forget_locked(seg);
        int flushed = pn_durable_flush_locked(seg);
        rc = rc != 0 ? rc : flushed;
    }
    if (rc != 0) {
        pn_topic_gathered_drop_locked(seg, &g);
        return rc;
    }
    topic->message_bytes -= n * common->headers_len; /* see count() */
    pn_topic_spill_commit_locked(seg, topic, g.seq);
    return 0;
}

int pn_rest_or_spill_locked(struct pn_segment *seg, struct pn_topic *topic,
                            const struct pn_new_message *common, const unsigned char *bodies,
                            const uint32_t *lens, size_t n)
{
    pn_assert_topics_held(seg);
    return pn_rest_runs(seg, topic) ? pn_rest_publish_locked(seg, topic, common, bodies, lens, n)
                                    : spill_many_locked(seg, topic, common, bodies, lens, n);
}

/* ---- coming back ----------------------------------------------------------------------------- */

struct refill {
    struct pn_segment *seg;
    struct pn_topic *topic;
    int64_t now;
    bool moved; /* some came back */
};

/* The message is in memory, and the queue has moved past it: both, or neither. */
static void move(struct pn_segment *seg, struct pn_topic *topic, uint32_t ref,
                 const struct pn_record_out *record)
{
    struct pn_topic_redo *redo = &seg->topics.ctl->redo;
    redo->messages = ref;
    redo->delivery = 0;
    pn_topic_disk_redo_set_locked(seg, topic, record);
    redo->spill = 0;
    redo->rest = 0;
    PN_CRASH("refill:redo");
    pn_store_release(&redo->valid, 1); /* it has moved */
    PN_CRASH("refill:redo-valid");
    pn_topic_disk_redo_locked(seg);
    pn_message_golive_locked(seg, ref);
    redo->disk = 0;
    const struct pn_message *m = pn_message_at(seg, ref);
    if (m->first != 0 &&
        !pn_is_backlog(seg, pn_topic_channel_at(seg, pn_delivery_at(seg, m->first)->channel)))
        pn_durable_note_fanned_out_locked(seg, m);
}

/* It is none of those on disk any more.  What pn_topic_disk_bytes() has counted of its headers was
 * taken off when it went there: of a message its body counts. */
static void count(struct pn_topic *topic, const struct pn_spilled *head, bool in_memory)
{
    topic->message_bytes += head->headers_len;
    if (in_memory)
        return;
    topic->message_count++;
    topic->message_bytes += head->body_len;
}

/* There is no room yet. */
static int stay(struct pn_topic *topic, const struct pn_record_out *record,
                const struct pn_spilled *head)
{
    topic->stuck_seq = record->seq;
    topic->stuck_bytes = head->body_len + head->headers_len;
    topic->stuck_until = head->expires != 0 ? head->expires : INT64_MAX;
    return 0;
}

/* Do the channels see to themselves what has no room? */
static bool runs(const struct refill *r)
{
    const uint32_t index = (uint32_t) (r->topic - r->seg->topics.topic);
    return pn_rest_may(r->seg, r->topic) && r->topic->paused == 0 &&
           pn_topic_channel_at(r->seg, index)->ready == 0;
}

/* Is that so still?  What would be told by reading the record counts as well. */
static bool is_stuck(const struct refill *r)
{
    const struct pn_topic *topic = r->topic;
    if (topic->stuck_seq == 0 || topic->stuck_seq != pn_diskqueue_now(&topic->disk)->read_seq ||
        topic->buried != 0 || topic->messages != topic->firm || r->now >= topic->stuck_until ||
        runs(r))
        return false;
    return (topic->max_depth != 0 && (uint64_t) topic->firm + topic->staged >= topic->max_depth) ||
           !pn_message_has_room_locked(r->seg, topic, topic->stuck_bytes, false);
}

/* In this hold of the lock. */
static bool may_take(const struct refill *r)
{
    return pn_topic_may_read_locked(r->seg) && (pn_topic_may_write_locked(r->seg) || !runs(r));
}

static int take(void *arg, const struct pn_record_out *record)
{
    struct refill *r = arg;
    struct pn_segment *seg = r->seg;
    struct pn_topic *topic = r->topic;
    struct pn_new_message m;
    struct pn_moment then;
    struct pn_spilled head;
    if (!may_take(r))
        return 0;
    pn_topic_has_read_locked(seg, record->length);
    if (!pn_spilled_parse(seg, record, &head, &m, &then))
        return 1;
    if (pn_topic_is_buried_locked(seg, topic, record->seq)) {
        count(topic, &head, false);
        return 1;
    }
    bool expired = head.expires != 0 && head.expires <= r->now;
    if (!expired && runs(r)) {
        int rc = pn_rest_move_locked(seg, topic, &m, &then, record);
        if (rc != 0)
            return rc;
        r->moved = true;
        count(topic, &head, true);
        return 1;
    }
    if (!expired && topic->max_depth != 0 &&
        (uint64_t) topic->firm + topic->staged >= topic->max_depth)
        return stay(topic, record, &head);
    uint32_t ref = expired ? 0 : pn_message_stage_firm_locked(seg, topic, &m, &then, false);
    if (ref == 0 && !expired)
        return stay(topic, record, &head);
    if (ref != 0 && pn_message_at(seg, ref)->refs != 0) {
        move(seg, topic, ref, record);
        r->moved = true;
        count(topic, &head, true);
        return 1;
    }
    if (ref != 0) /* every channel goes without */
        pn_message_unstage_locked(seg, ref);
    pn_durable_note_cancelled_locked(seg, topic, m.id, true);
    topic->expired += expired;
    count(topic, &head, false);
    return 1;
}

/* True: what came has left the backlog, and with that made room for more. */
static bool refill_once(struct refill *r)
{
    struct pn_segment *seg = r->seg;
    struct pn_topic *topic = r->topic;
    int64_t n = -EAGAIN;
    for (int tries = 0; tries < 16 && n == -EAGAIN; tries++)
        n = pn_diskqueue_get(&topic->disk, seg->topics.disk, PN_MOVE_RECORDS, take, r);
    PN_CRASH("refill:done");
    if ((!may_take(r) || n == -EAGAIN) && pn_topic_on_disk(topic) != 0)
        topic->refilling = 1;
    const uint32_t firm = topic->firm;
    if (n <= 0 || pn_topic_channel_at(seg, (uint32_t) (topic - seg->topics.topic))->ready == 0 ||
        pn_topic_pump_locked(seg, topic))
        return false;
    return topic->firm < firm && topic->refilling == 0 && pn_topic_on_disk(topic) != 0;
}

static void refill_locked(struct pn_segment *seg, struct pn_topic *topic)
{
    pn_assert_topics_held(seg);
    if (pn_topic_on_disk(topic) == 0)
        return;
    struct refill r = {.seg = seg, .topic = topic, .now = pn_now_ns()};
    uint32_t before = topic->messages;
    if (is_stuck(&r) || pn_topic_use_files_locked(seg, topic) != 0)
        return;
    if (!may_take(&r)) {
        topic->refilling = 1;
        return;
    }
    while (refill_once(&r))
        ;
    pn_tombstones_passed_locked(seg, topic);
    /* as many may have been dropped for those that came */
    if (!r.moved && topic->messages == before && topic->refilling == 0)
        return;
    if (pn_topic_channel_at(seg, (uint32_t) (topic - seg->topics.topic))->ready != 0)
        pn_topic_pump_locked(seg, topic);
    pn_topic_settle_locked(seg, topic);
}

static void refill(struct pn_segment *seg, struct pn_topic *topic)
{
    /* What channels have comes before what is on its way to them: a long way takes many holds. */
    if (pn_topic_on_disk(topic) != 0 && pn_rest_records(topic) != 0 &&
        pn_rest_refill_locked(seg, topic))
        topic->refilling = 1;
    refill_locked(seg, topic);
    if (pn_rest_records(topic) != 0 && pn_rest_refill_locked(seg, topic))
        topic->refilling = 1;
    if (pn_topic_later(topic) != 0)
        pn_later_turn_locked(seg, topic);
}

static bool may_move(const struct pn_segment *seg)
{
    return pn_topic_may_read_locked(seg) && pn_topic_may_look_locked(seg);
}

void pn_topics_refill_locked(struct pn_segment *seg)
{
    pn_assert_topics_held(seg);
    struct pn_topic_control *ctl = seg->topics.ctl;
    uint32_t n = ctl->topic_end < seg->topics.max_topics ? ctl->topic_end : seg->topics.max_topics;
    uint32_t first = ctl->refill_next < n ? ctl->refill_next : 0;
    bool more = false;
    ctl->refill_next = first + 1;
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t index = first + k < n ? first + k : first + k - n;
        struct pn_topic *topic = &seg->topics.topic[index];
        const bool was = topic->refilling != 0;
        if (pn_load_relaxed(&topic->state) != PN_RECORD_USED ||
            (!was && pn_topic_on_disk(topic) == 0 && pn_rest_records(topic) == 0 &&
             pn_topic_later(topic) == 0))
            continue;
        const bool may = may_move(seg);
        if (topic->disk_staged == 0) { /* else a commit is on its way, which holds both copies */
            topic->refilling = 0;
            if (was)
                pn_topic_go_on_locked(seg, topic);
            refill(seg, topic);
            while (topic->refilling == 0 && pn_later_make_room_locked(seg, topic))
                refill(seg, topic);
            if (topic->refilling != 0 && (may || !was)) /* a consumer that waits is to go on */
                pn_topic_settle_locked(seg, topic);
        }
        if (may && !may_move(seg))
            ctl->refill_next = index + 1;
        more = more || topic->refilling != 0 || pn_topic_on_disk(topic) != 0 ||
               pn_rest_records(topic) != 0 || pn_topic_later(topic) != 0;
    }
    ctl->spilled = more;
}
