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
 *    The exception are durable ones of before the segment was made that had been given to their
 *    channels and have no room now (restore.c): their records have these deliveries, and they
 *    come back to those channels only that are still the same and were not emptied meanwhile.  The
 *    log has been told of that all: it is told nothing when they come back.
 * 3. Publishing to disk is committed by the one store of diskqueue.c; a transaction's by `head`,
 *    with an entry that names the topic and how far its queue goes from there on.
 * 4. Coming back changes two truths, the message and the queue: one redo record has both
 *    (message.c 2), so nothing is lost or doubled by a death in between.
 * 5. A batch goes to memory whole or to files whole; a transaction's messages one by one.
 *    Records of a batch are gathered and written some at a time, behind the committed end, where no
 *    process looks: a writer that is killed between two writes or within one has put none, and what
 *    it left is cut off by the next.  A refusal cuts that off at once: the disk may be full.
 *    prepare() never writes to files: it takes memory beyond max_depth, if there is any.
 * 6. What was cancelled there has a tombstone (cancel.c), and is passed when its turn comes.
 * 7. What is deferred leaves memory for what has no room there (later.c).
 * 8. What is published is refused when the topic's records would have more than max_disk_bytes, or
 *    have (admit()); what was accepted before never is.  So they have more only by what left memory
 *    since (later.c), or was there before the bound or the segment.
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
#include "topic/durable.h"
#include "topic/later.h"
#include "topic/message.h"
#include "topic/pump.h"
#include "topic/queues.h"
#include "topic/rest.h"
#include "topic/settings.h"
#include "topic/tombstones.h"

/* numbers of a topic's files from there on are of its `later`, or its `rest` */
#define PN_LATER_FILES (1U << 30)
#define PN_REST_FILES  (1U << 31)

static uint64_t bytes_of(const struct pn_spilled *head)
{
    return (uint64_t) head->deliveries * sizeof(struct pn_spilled_delivery);
}

bool pn_topic_may_spill(const struct pn_segment *seg, const struct pn_topic *topic)
{
    return topic->overflow == PN_OVERFLOW_DISK && topic->ephemeral == 0 && seg->data_dir[0] != '\0';
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

uint64_t pn_topic_disk_bytes(const struct pn_topic *topic)
{
    return pn_diskqueue_bytes(&topic->disk) - pn_topic_on_disk(topic) * sizeof(struct pn_spilled);
}

/* The queue, ready to be used, and our descriptors; -PN_ECORRUPT if it cannot be what it says. */
static int use_files(struct pn_segment *seg, struct pn_topic *topic)
{
    struct pn_segfile_dir dir;
    uint32_t index = (uint32_t) (topic - seg->topics.topic);
    uint64_t base = (uint64_t) (topic->generation & 0xffff) << 48 | (uint64_t) index << 32;
    if (topic->disk.max_file == 0)
        pn_diskqueue_init(&topic->disk, base, 0);
    if (topic->rest.max_file == 0)
        pn_diskqueue_init(&topic->rest, base + PN_REST_FILES, 0);
    if (topic->later.max_file == 0)
        pn_diskqueue_init(&topic->later, base + PN_LATER_FILES, 0);
    if (!pn_diskqueue_possible(&topic->disk, base) ||
        !pn_diskqueue_possible(&topic->later, base + PN_LATER_FILES) ||
        !pn_diskqueue_possible(&topic->rest, base + PN_REST_FILES))
        return pn_segment_poison(seg, "the queue on disk of topic %u is broken", index);
    if (seg->topics.disk != NULL)
        return 0;
    int rc = pn_segfile_open_dir(&dir, seg->data_dir, seg->uid, seg->name, seg->instance, 'd');
    if (rc != 0)
        return rc;
    seg->topics.disk = malloc(sizeof *seg->topics.disk);
    if (seg->topics.disk == NULL)
        return pn_fail(ENOMEM, "out of memory");
    rc = pn_diskqueue_open(seg->topics.disk, &dir,
                           seg->topics.max_body + PN_HEADERS_MAX +
                               (uint32_t) sizeof(struct pn_spilled) +
                               (seg->topics.max_channels - seg->topics.max_topics) *
                                   (uint32_t) sizeof(struct pn_spilled_delivery));
    if (rc != 0) {
        free(seg->topics.disk);
        seg->topics.disk = NULL;
    } else {
        seg->topics.disk->unmarked = true;
    }
    return rc;
}

int pn_topic_use_files_locked(struct pn_segment *seg, struct pn_topic *topic)
{
    pn_assert_topics_held(seg);
    return use_files(seg, topic);
}

/* ---- publishing ------------------------------------------------------------------------------ */

static int64_t later_ns(int64_t now, int64_t by)
{
    return by <= 0 ? 0 : by > INT64_MAX - now ? INT64_MAX : now + by;
}

static struct pn_spilled head_of(const struct pn_new_message *m, const struct pn_moment *now)
{
    return (struct pn_spilled) {.id = m->id,
                                .published_ns = now->real,
                                .published_mono = now->mono,
                                .due = later_ns(now->mono, m->delay_ns),
                                .expires = later_ns(now->mono, m->ttl_ns),
                                .headers_len = m->headers_len,
                                .body_len = m->body_len};
}

int pn_topic_disk_full(const struct pn_topic *topic, uint64_t more)
{
    char asked[48] = "";
    if (more != 0)
        snprintf(asked, sizeof asked, ", this takes %llu more", (unsigned long long) more);
    return pn_fail(PN_ETOPICFULL,
                   "topic \"%.*s\" is full: max_disk_bytes is %llu bytes, %llu are used%s\n"
                   "Wait until its consumers have finished some, or raise the bound.",
                   (int) topic->name_len, topic->name,
                   (unsigned long long) pn_topic_limits(topic)->max_disk_bytes,
                   (unsigned long long) pn_topic_disk_used(topic), asked);
}

/* May `bytes` in n records be added to the queue, behind what is staged if *seq is not 0? */
static int admit(const struct pn_topic *topic, const struct pn_diskqueue *queue, uint64_t seq,
                 uint64_t bytes, uint64_t n)
{
    const uint64_t most = pn_topic_limits(topic)->max_disk_bytes;
    struct pn_diskqueue_cursor end;
    if (most == 0)
        return 0;
    pn_diskqueue_end(queue, seq != 0, &end);
    const struct pn_diskqueue_state *now = pn_diskqueue_now(queue);
    bytes += end.sum - now->write_sum + (end.seq - now->write_seq + n) * PN_RECORD_HEADER;
    const uint64_t used = pn_topic_disk_used(topic);
    return used > most || bytes > most - used ? pn_topic_disk_full(topic, bytes) : 0;
}

/* n records behind those of *seq; `fresh`: max_disk_bytes may refuse them. */
static int stage(struct pn_segment *seg, struct pn_topic *topic, struct pn_diskqueue *queue,
                 bool fresh, const struct pn_record_in *records, size_t n, uint64_t *seq)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        bytes += pn_record_length(&records[i]);
    int rc = pn_topic_use_files_locked(seg, topic);
    if (rc == 0 && fresh)
        rc = admit(topic, queue, *seq, bytes, n);
    if (rc == 0 && *seq != 0)
        rc = pn_diskqueue_stage_more(queue, seg->topics.disk, records, n, seq);
    else if (rc == 0)
        rc = pn_diskqueue_stage(queue, seg->topics.disk, records, n, seq);
    PN_CRASH("spilled:staged");
    return pn_disk_result(seg, rc);
}

/* `head`: what stands before the headers. */
static struct pn_record_in record_of(void *head, size_t head_len, const struct pn_new_message *m)
{
    return (struct pn_record_in) {
        .parts = 3,
        .part = {{head, head_len},
                 {(void *) (uintptr_t) m->headers, m->headers_len},
                 {(void *) (uintptr_t) m->body, m->body_len}},
    };
}

int pn_topic_spill_stage_locked(struct pn_segment *seg, struct pn_topic *topic,
                                const struct pn_new_message *m, const struct pn_moment *now,
                                uint64_t *seq)
{
    pn_assert_topics_held(seg);
    struct pn_spilled head = head_of(m, now);
    const struct pn_record_in record = record_of(&head, sizeof head, m);
    int rc = stage(seg, topic, &topic->disk, m->fresh, &record, 1, seq);
    if (rc == 0)
        topic->message_bytes -= m->headers_len; /* see count() */
    return rc;
}

int pn_rest_stage_locked(struct pn_segment *seg, struct pn_topic *topic,
                         const struct pn_new_message *m, const struct pn_moment *now, uint64_t *seq)
{
    pn_assert_topics_held(seg);
    struct pn_spilled head = head_of(m, now);
    const struct pn_record_in record = record_of(&head, sizeof head, m);
    return stage(seg, topic, &topic->rest, m->fresh, &record, 1, seq);
}

void pn_topic_gather(struct pn_topic *topic, uint64_t queue, struct pn_topic_gathered *to)
{
    to->topic = topic;
    to->queue = pn_topic_queue(topic, queue);
    to->n = 0;
    to->bytes = 0;
    to->seq = 0;
}

int pn_topic_gathered_stage_locked(struct pn_segment *seg, struct pn_topic_gathered *g)
{
    pn_assert_topics_held(seg);
    const uint32_t n = g->n;
    g->n = 0;
    g->bytes = 0;
    return n == 0 ? 0 : stage(seg, g->topic, g->queue, g->fresh, g->record, n, &g->seq);
}

int pn_topic_gather_locked(struct pn_segment *seg, struct pn_topic_gathered *g,
                           const struct pn_new_message *m, const struct pn_moment *now)
{
    pn_assert_topics_held(seg);
    g->fresh = m->fresh;
    g->head[g->n] = head_of(m, now);
    g->record[g->n] = record_of(&g->head[g->n], sizeof g->head[0], m);
    g->bytes += pn_record_length(&g->record[g->n]);
    g->n++;
    return g->n < PN_TOPIC_GATHER && g->bytes < PN_TOPIC_GATHER_BYTES
               ? 0
               : pn_topic_gathered_stage_locked(seg, g);
}

/* The sentence is that of the refusal. */
void pn_topic_gathered_drop_locked(struct pn_segment *seg, struct pn_topic_gathered *g)
{
    pn_assert_topics_held(seg);
    if (g->seq != 0)
        pn_diskqueue_take_back(g->queue, seg->topics.disk);
    g->n = 0;
    g->seq = 0;
}

/* The same of one that was given to its channels already. */
static int stage_given(struct pn_segment *seg, struct pn_topic *topic, struct pn_diskqueue *queue,
                       const struct pn_new_message *m, const struct pn_moment *then,
                       const struct pn_spilled_deliveries *given, uint64_t *seq)
{
    struct pn_spilled head = head_of(m, then);
    head.fanned_out = 1;
    head.deliveries = given->n;
    char *bytes = malloc(sizeof head + bytes_of(&head));
    if (bytes == NULL)
        return pn_fail(ENOMEM, "out of memory");
    memcpy(bytes, &head, sizeof head);
    memcpy(bytes + sizeof head, given->bytes, bytes_of(&head));
    const struct pn_record_in record = record_of(bytes, sizeof head + bytes_of(&head), m);
    int rc = stage(seg, topic, queue, m->fresh, &record, 1, seq);
    free(bytes);
    return rc;
}

int pn_rest_stage_given_locked(struct pn_segment *seg, struct pn_topic *topic,
                               const struct pn_new_message *m, const struct pn_moment *then,
                               const struct pn_spilled_deliveries *given, uint64_t *seq)
{
    pn_assert_topics_held(seg);
    return stage_given(seg, topic, &topic->rest, m, then, given, seq);
}

int pn_later_stage_locked(struct pn_segment *seg, struct pn_topic *topic,
                          const struct pn_new_message *m, const struct pn_moment *then,
                          const struct pn_spilled_deliveries *given, uint64_t *seq)
{
    pn_assert_topics_held(seg);
    return stage_given(seg, topic, &topic->later, m, then, given, seq);
}

void pn_topic_spill_commit_locked(struct pn_segment *seg, struct pn_topic *topic, uint64_t seq)
{
    pn_assert_topics_held(seg);
    seg->topics.ctl->spilled = 1;
    PN_CRASH("spilled:told");
    pn_diskqueue_commit(&topic->disk, seq);
    PN_CRASH("spilled:committed");
}

int pn_topic_spill_many_locked(struct pn_segment *seg, struct pn_topic *topic,
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
    int rc = m.fresh ? admit(topic, &topic->disk, 0, bytes, n) : 0; /* before anything is written */
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

int pn_topic_spill_again_locked(struct pn_segment *seg, struct pn_topic *topic,
                                const struct pn_new_message *m, const struct pn_moment *then,
                                const struct pn_spilled_deliveries *given)
{
    pn_assert_topics_held(seg);
    uint64_t seq = 0;
    int rc = given == NULL ? pn_topic_spill_stage_locked(seg, topic, m, then, &seq)
                           : stage_given(seg, topic, &topic->disk, m, then, given, &seq);
    if (rc != 0)
        return rc;
    if (given != NULL) {
        topic->disk_given = seq;
        topic->message_bytes -= m->headers_len + given->n * sizeof(struct pn_spilled_delivery);
    }
    pn_topic_spill_commit_locked(seg, topic, seq);
    return 0;
}

/* ---- coming back ----------------------------------------------------------------------------- */

struct refill {
    struct pn_segment *seg;
    struct pn_topic *topic;
    int64_t now;
    bool moved; /* some came back */
};

bool pn_spilled_delivery_locked(const struct pn_segment *seg, const struct pn_topic *topic,
                                const struct pn_spilled_deliveries *given, uint32_t i,
                                struct pn_spilled_delivery *out)
{
    pn_assert_topics_held(seg);
    memcpy(out, (const char *) given->bytes + i * sizeof *out, sizeof *out);
    const struct pn_topic_channel *ch = pn_topic_channel_at(seg, out->channel);
    return out->channel >= seg->topics.max_topics && out->channel < seg->topics.max_channels &&
           pn_load_relaxed(&ch->state) == PN_RECORD_USED && ch->generation == out->generation &&
           ch->topic == (uint32_t) (topic - seg->topics.topic) && out->order >= ch->void_below;
}

void pn_topic_disk_redo_set_locked(struct pn_segment *seg, const struct pn_topic *topic,
                                   const struct pn_record_out *record)
{
    pn_assert_topics_held(seg);
    struct pn_topic_redo *redo = &seg->topics.ctl->redo;
    redo->disk_seq = record->seq;
    redo->disk_sum = record->sum + record->length;
    redo->disk_file = record->file;
    redo->disk_at = record->next;
    redo->disk = (uint32_t) (topic - seg->topics.topic) + 1;
}

/* The message is in memory, and the queue has moved past it: both, or neither.  `given`: to its
 * channels, long ago. */
static void move(struct pn_segment *seg, struct pn_topic *topic, uint32_t ref,
                 const struct pn_record_out *record, bool given)
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
    if (!given && m->first != 0 &&
        !pn_is_backlog(seg, pn_topic_channel_at(seg, pn_delivery_at(seg, m->first)->channel)))
        pn_durable_note_fanned_out_locked(seg, m);
}

/* What a record says; false: nothing that we have written. */
static bool parse(const struct pn_segment *seg, const struct pn_record_out *record,
                  struct pn_spilled *head, struct pn_new_message *m, struct pn_moment *then)
{
    if (record->length < sizeof *head)
        return false;
    memcpy(head, record->body, sizeof *head);
    const uint8_t *headers = record->body + sizeof *head + bytes_of(head);
    *then = (struct pn_moment) {.mono = head->published_mono, .real = head->published_ns};
    *m = (struct pn_new_message) {.body = headers + head->headers_len,
                                  .headers = headers,
                                  .body_len = head->body_len,
                                  .headers_len = head->headers_len,
                                  .id = head->id,
                                  .delay_ns = head->due == 0 ? 0 : head->due - then->mono,
                                  .ttl_ns = head->expires == 0 ? 0 : head->expires - then->mono};
    return head->body_len <= seg->topics.max_body && head->headers_len <= PN_HEADERS_MAX &&
           sizeof *head + bytes_of(head) + head->headers_len + head->body_len == record->length;
}

static struct pn_spilled_deliveries deliveries_of(const struct pn_record_out *record,
                                                  const struct pn_spilled *head)
{
    return (struct pn_spilled_deliveries) {record->body + sizeof *head, head->deliveries};
}

/* `queue`: PN_REST_SEQ, PN_LATER_SEQ, or 0 */
static int look(struct pn_segment *seg, struct pn_topic *topic, uint64_t queue,
                struct pn_diskqueue_cursor *cursor, struct pn_topic_on_disk *out)
{
    struct pn_record_out record;
    struct pn_spilled head;
    int rc = pn_topic_use_files_locked(seg, topic);
    if (rc == 0)
        rc = pn_diskqueue_look(pn_topic_queue(topic, queue), seg->topics.disk, cursor, &record);
    if (rc != 1)
        return rc;
    *out = (struct pn_topic_on_disk) {.seq = record.seq | queue, .bytes = record.length};
    if (!parse(seg, &record, &head, &out->m, &out->then))
        return 1;
    out->deliveries = deliveries_of(&record, &head);
    if (pn_topic_is_buried_locked(seg, topic, out->seq))
        return 1;
    out->there = true;
    out->due = head.due;
    out->expires = head.expires;
    out->given = head.fanned_out != 0;
    return 1;
}

int pn_topic_disk_look_locked(struct pn_segment *seg, struct pn_topic *topic,
                              struct pn_diskqueue_cursor *cursor, struct pn_topic_on_disk *out)
{
    pn_assert_topics_held(seg);
    return look(seg, topic, 0, cursor, out);
}

int pn_rest_look_locked(struct pn_segment *seg, struct pn_topic *topic,
                        struct pn_diskqueue_cursor *cursor, struct pn_topic_on_disk *out)
{
    pn_assert_topics_held(seg);
    return look(seg, topic, PN_REST_SEQ, cursor, out);
}

int pn_later_look_locked(struct pn_segment *seg, struct pn_topic *topic,
                         struct pn_diskqueue_cursor *cursor, struct pn_topic_on_disk *out)
{
    pn_assert_topics_held(seg);
    return look(seg, topic, PN_LATER_SEQ, cursor, out);
}

/* Does one of its channels still want it?  If it has `expired`, each of those counts it as
 * expired. */
static bool is_wanted(const struct refill *r, const struct pn_spilled_deliveries *given,
                      bool expired)
{
    struct pn_spilled_delivery d;
    uint32_t wanted = 0;
    for (uint32_t i = 0; i < given->n; i++) {
        bool there = pn_spilled_delivery_locked(r->seg, r->topic, given, i, &d);
        wanted += there;
        if (there && expired)
            pn_topic_channel_at(r->seg, d.channel)->expired++;
    }
    return wanted != 0;
}

uint32_t pn_topic_stage_given_locked(struct pn_segment *seg, struct pn_topic *topic,
                                     const struct pn_new_message *m, const struct pn_moment *then,
                                     const struct pn_spilled_deliveries *given, int64_t now)
{
    pn_assert_topics_held(seg);
    struct pn_spilled_delivery d;
    uint32_t ref = pn_message_restore_begin_locked(seg, topic, m, then, false, true);
    for (uint32_t i = 0; ref != 0 && i < given->n; i++) {
        if (!pn_spilled_delivery_locked(seg, topic, given, i, &d) ||
            pn_message_restore_delivery_locked(seg, ref, d.channel, d.due > now ? d.due : 0,
                                               d.attempts))
            continue;
        pn_message_unstage_locked(seg, ref);
        return 0;
    }
    return ref;
}

/* It is none of those on disk any more.  What pn_topic_disk_bytes() has counted of its headers and
 * deliveries was taken off when it went there: of a message its body counts. */
static void count(struct pn_topic *topic, const struct pn_spilled *head, bool in_memory)
{
    topic->message_bytes += head->headers_len + bytes_of(head);
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
        topic->buried != 0 || topic->disk_given > topic->stuck_seq ||
        topic->messages != topic->firm || r->now >= topic->stuck_until || runs(r))
        return false;
    return (topic->max_depth != 0 && (uint64_t) topic->firm + topic->staged >= topic->max_depth) ||
           !pn_message_has_room_locked(r->seg, topic, topic->stuck_bytes, false);
}

static int take(void *arg, const struct pn_record_out *record)
{
    struct refill *r = arg;
    struct pn_segment *seg = r->seg;
    struct pn_topic *topic = r->topic;
    struct pn_new_message m;
    struct pn_moment then;
    struct pn_spilled head;
    if (!pn_topic_may_read_locked(seg))
        return 0;
    pn_topic_has_read_locked(seg, record->length);
    if (!parse(seg, record, &head, &m, &then))
        return 1;
    const struct pn_spilled_deliveries given = deliveries_of(record, &head);
    if (pn_topic_is_buried_locked(seg, topic, record->seq)) {
        count(topic, &head, false);
        return 1;
    }
    bool expired = head.expires != 0 && head.expires <= r->now;
    if (!expired && head.fanned_out == 0 && runs(r)) {
        int rc = pn_rest_move_locked(seg, topic, &m, &then, record);
        if (rc != 0)
            return rc;
        r->moved = true;
        count(topic, &head, true);
        return 1;
    }
    if (topic->max_depth != 0 && (uint64_t) topic->firm + topic->staged >= topic->max_depth)
        return stay(topic, record, &head);
    bool over = head.fanned_out != 0 ? !is_wanted(r, &given, expired) || expired : expired;
    uint32_t ref = over ? 0
                   : head.fanned_out != 0
                       ? pn_topic_stage_given_locked(seg, topic, &m, &then, &given, r->now)
                       : pn_message_stage_firm_locked(seg, topic, &m, &then, false);
    if (ref == 0 && !over)
        return stay(topic, record, &head);
    if (ref != 0 && pn_message_at(seg, ref)->refs != 0) {
        move(seg, topic, ref, record, head.fanned_out != 0);
        r->moved = true;
        count(topic, &head, true);
        return 1;
    }
    if (ref != 0) /* every channel goes without */
        pn_message_unstage_locked(seg, ref);
    pn_durable_note_cancelled_locked(seg, topic, m.id, true);
    topic->expired += expired && head.fanned_out == 0;
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
    if ((!pn_topic_may_read_locked(seg) || n == -EAGAIN) && pn_topic_on_disk(topic) != 0)
        topic->refilling = 1;
    const uint32_t firm = topic->firm;
    if (n <= 0 || pn_topic_channel_at(seg, (uint32_t) (topic - seg->topics.topic))->ready == 0 ||
        pn_topic_pump_locked(seg, topic))
        return false;
    return topic->firm < firm && topic->refilling == 0 && pn_topic_on_disk(topic) != 0;
}

void pn_topic_refill_locked(struct pn_segment *seg, struct pn_topic *topic)
{
    pn_assert_topics_held(seg);
    struct refill r = {.seg = seg, .topic = topic, .now = pn_now_ns()};
    uint32_t before = topic->messages;
    if (pn_topic_on_disk(topic) == 0 || is_stuck(&r) || pn_topic_use_files_locked(seg, topic) != 0)
        return;
    if (!pn_topic_may_read_locked(seg)) {
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
    pn_topic_refill_locked(seg, topic);
    if (pn_rest_records(topic) != 0 && pn_rest_refill_locked(seg, topic))
        topic->refilling = 1;
    if (pn_topic_later(topic) != 0)
        pn_later_turn_locked(seg, topic);
}

static bool may_move(const struct pn_segment *seg)
{
    return pn_topic_may_read_locked(seg) && pn_topic_may_write_locked(seg);
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
        const bool may = may_move(seg);
        if (pn_load_relaxed(&topic->state) != PN_RECORD_USED ||
            (pn_topic_on_disk(topic) == 0 && pn_rest_records(topic) == 0 &&
             pn_topic_later(topic) == 0))
            continue;
        if (topic->disk_staged == 0) { /* else a commit is on its way, which holds both copies */
            const bool was = topic->refilling != 0;
            topic->refilling = 0;
            refill(seg, topic);
            while (topic->refilling == 0 && pn_later_make_room_locked(seg, topic))
                refill(seg, topic);
            if (topic->refilling != 0 && (may || !was)) /* a consumer that waits is to go on */
                pn_topic_settle_locked(seg, topic);
        }
        if (may && !may_move(seg))
            ctl->refill_next = index + 1;
        more = more || pn_topic_on_disk(topic) != 0 || pn_rest_records(topic) != 0 ||
               pn_topic_later(topic) != 0;
    }
    ctl->spilled = more;
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
    PN_CRASH("refill:passed");
    if ((redo->rest & PN_REDO_AGAIN) != 0)
        pn_tombstones_moved_locked(seg, topic, redo->disk_seq | from,
                                   (redo->spill_seq - 1) | PN_LATER_SEQ);
}

/* ---- the end --------------------------------------------------------------------------------- */

/* How many there were, and how much, is as before. */
static void forget_all(struct pn_segment *seg, struct pn_topic *topic)
{
    uint64_t n = pn_topic_on_disk(topic), bytes = pn_topic_disk_bytes(topic);
    pn_diskqueue_empty(&topic->disk, seg->topics.disk); /* files that stay, a later one removes */
    topic->message_count += n;
    topic->message_bytes += bytes;
    pn_tombstones_passed_locked(seg, topic);
}

static int keep_given(struct pn_segment *seg, struct pn_topic *topic, uint64_t *seq)
{
    struct pn_diskqueue_cursor cursor = {0};
    struct pn_topic_on_disk d;
    int rc;
    while ((rc = pn_topic_disk_look_locked(seg, topic, &cursor, &d)) == 1 || rc == -EAGAIN) {
        if (rc == 1 && d.there && d.given)
            rc = stage_given(seg, topic, &topic->disk, &d.m, &d.then, &d.deliveries, seq);
        if (rc < 0 && rc != -EAGAIN)
            break;
    }
    return rc;
}

/* What channels have stays: it is written once more, and the queue begins there. */
int pn_topic_disk_empty_locked(struct pn_segment *seg, struct pn_topic *topic)
{
    pn_assert_topics_held(seg);
    uint64_t seq = 0;
    if (topic->disk.max_file == 0)
        return 0; /* it was never used */
    int rc = pn_topic_use_files_locked(seg, topic);
    if (rc == 0 && topic->disk_given > pn_diskqueue_now(&topic->disk)->read_seq)
        rc = keep_given(seg, topic, &seq);
    if (rc != 0)
        return rc;
    if (seq == 0) {
        forget_all(seg, topic);
        return 0;
    }
    uint64_t n = pn_topic_on_disk(topic), bytes = pn_topic_disk_bytes(topic);
    topic->disk_given = seq;
    PN_CRASH("spilled:kept");
    pn_diskqueue_replace(&topic->disk, seg->topics.disk, seq);
    pn_tombstones_passed_locked(seg, topic);
    topic->message_count += n - pn_topic_on_disk(topic);
    topic->message_bytes += bytes - pn_topic_disk_bytes(topic);
    return 0;
}

void pn_topic_disk_delete_locked(struct pn_segment *seg, struct pn_topic *topic)
{
    pn_assert_topics_held(seg);
    if (topic->disk.max_file != 0 && pn_topic_use_files_locked(seg, topic) == 0) {
        forget_all(seg, topic);
        pn_diskqueue_empty(&topic->rest, seg->topics.disk);
        pn_diskqueue_empty(&topic->later, seg->topics.disk);
        pn_tombstones_passed_locked(seg, topic);
    }
}

/* The segment is gone: its lock is not to be had any more. */
void pn_topics_remove_files(struct pn_segment *seg)
{
    if (!pn_topics_ready(seg) || seg->data_dir[0] == '\0')
        return;
    for (uint32_t i = 0; i < seg->topics.ctl->topic_end && i < seg->topics.max_topics; i++) {
        struct pn_topic *topic = &seg->topics.topic[i];
        if (topic->disk.max_file == 0 || use_files(seg, topic) != 0)
            continue;
        pn_diskqueue_remove(&topic->disk, seg->topics.disk);
        pn_diskqueue_remove(&topic->rest, seg->topics.disk);
        pn_diskqueue_remove(&topic->later, seg->topics.disk);
    }
}
