/*
 * carry.c - what the log of durable topics says of what there is now; see durable.c.
 *
 * 1. The log is written again after a death under the lock, after a write or a sync that failed
 *    (pn_carry_all_locked), and when most of it is over (compaction: pn_carry_some_locked).  Both
 *    begin a file, which describes topics and channels, and carry each message into it:
 *    PN_LOG_CARRIED says all of one, whatever was said before (topic_log.c 4, 5).
 * 2. Messages in memory come as they lie there, a few at a time while others write: a message stays
 *    where it is, and what is published behind the cursor is in the new file already.  (A topic's
 *    list is in no order that a cursor could go by: a transaction's messages have lower ids than
 *    what was published before it committed, and what stands there may be gone the next time.)
 * 3. Those on disk for lack of memory come first, topic by topic, from the front.  A message goes
 *    from disk to memory and never back, and only from the front: one that has gone before its
 *    turn is found in memory afterwards, one that goes after it is carried twice.  (What is
 *    deferred does leave memory, but not meanwhile: later.c 6.)
 * 4. A topic of which channels have rested (rest.c) may have a message in memory for some, on disk
 *    for others, and in memory twice.  So what is carried of it says nothing of channels that it
 *    does not name (PN_LOG_FANNED_TOO); what channels have on disk comes before what is in memory.
 *    What was in the backlog when that was looked through, and is on disk for some when memory is,
 *    was published again in between (pn_durable_note_given_locked()).
 * 5. What is being published while a file is begun is neither on disk nor in memory yet, and its
 *    record stands in the old file; so nothing is carried before the next flush.
 */
#include "topic/carry.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/moment.h"
#include "segment/arena_body.h"
#include "segment/lock.h"
#include "topic/area.h"
#include "topic/cursors.h"
#include "topic/message.h"
#include "topic/on_disk.h"
#include "topic/queues.h"
#include "topic/settings.h"

/* What one hold of the lock carries: as many messages, until they have PN_TOPICLOG_STEP bytes, or
 * there were PN_TOPICLOG_LOOKS, each at as many cells. */
enum { PN_CARRY_CELLS = 64, PN_CARRY_MESSAGES = 192 };
enum { PN_CARRY_NAME = 512 }; /* bytes that describe a topic or a channel, which is done twice */

void *pn_durable_room(void **vector, size_t *cap, size_t need, size_t size)
{
    if (need > *cap) {
        size_t more = need * 2 > 64 ? need * 2 : 64;
        void *bigger = realloc(*vector, more * size);
        if (bigger == NULL)
            return NULL;
        *vector = bigger;
        *cap = more;
    }
    return *vector;
}

/* ---- records --------------------------------------------------------------------------------- */

/* Loaded once; none is longer, whatever stands there. */
static uint32_t name_length(const uint32_t *len, size_t most)
{
    uint32_t n = *(volatile const uint32_t *) len;
    return n <= most ? n : 0;
}

size_t pn_topic_record(const struct pn_segment *seg, const struct pn_topic *topic,
                       uint8_t out[PN_TOPIC_RECORD])
{
    struct pn_log_topic what = {.topic = (uint32_t) (topic - seg->topics.topic),
                                .paused = topic->paused,
                                .fsync = topic->fsync,
                                .overflow = topic->overflow,
                                .max_depth = topic->max_depth,
                                .name_len = name_length(&topic->name_len, sizeof topic->name)};
    const struct pn_database *db = NULL;
    for (uint32_t i = 0; i < seg->max_databases && db == NULL; i++)
        if (seg->database[i].dboid == topic->dboid)
            db = &seg->database[i];
    what.database_len = db == NULL ? 0 : name_length(&db->name_len, sizeof db->name - 1);
    memcpy(out, &what, sizeof what);
    if (db != NULL)
        memcpy(out + sizeof what, db->name, what.database_len);
    size_t length = sizeof what + what.database_len;
    memcpy(out + length, topic->name, what.name_len);
    length += what.name_len;
    const struct pn_topic_limits *limits = pn_topic_limits(topic);
    const struct pn_log_limits more = {.default_ttl = limits->default_ttl,
                                       .max_memory = limits->max_memory,
                                       .max_disk_bytes = limits->max_disk_bytes};
    memcpy(out + length, &more, sizeof more);
    return length + sizeof more;
}

size_t pn_channel_record(const struct pn_segment *seg, const struct pn_topic_channel *ch,
                         uint8_t out[PN_CHANNEL_RECORD])
{
    const struct pn_log_channel what = {.topic = ch->topic,
                                        .channel = pn_topic_channel_index(seg, ch),
                                        .paused = pn_load_relaxed(&ch->paused),
                                        .name_len = name_length(&ch->name_len, sizeof ch->name),
                                        .max_consumers = ch->max_consumers};
    memcpy(out, &what, sizeof what);
    memcpy(out + sizeof what, ch->name, what.name_len);
    const struct pn_channel_defaults *d = pn_channel_defaults(ch);
    struct pn_log_defaults more = {.given = d->given,
                                   .max_attempts = d->max_attempts,
                                   .dead_letter_len = d->dead_letter_len,
                                   .msg_timeout = d->msg_timeout};
    memcpy(more.dead_letter, d->dead_letter, sizeof more.dead_letter);
    memcpy(out + sizeof what + what.name_len, &more, sizeof more);
    return sizeof what + what.name_len + sizeof more;
}

/* In the backlog there is one delivery, which has its delay. */
struct pn_log_message pn_message_record(struct pn_segment *seg, const struct pn_message *m)
{
    const struct pn_moment now = pn_moment_now();
    const struct pn_delivery *d = pn_delivery_at(seg, m->first);
    bool own = m->first != 0 && pn_is_backlog(seg, pn_topic_channel_at(seg, d->channel));
    bool later = own || pn_state_kind(pn_load_relaxed(&d->state)) == PN_KIND_DEFERRED;
    return (struct pn_log_message) {.id = m->id,
                                    .published = m->published_ns,
                                    .due = later ? pn_to_real(&now, d->due) : 0,
                                    .expires = pn_to_real(&now, m->expires),
                                    .topic = m->topic,
                                    .fanned_out = !own,
                                    .headers_len = m->headers_len};
}

/* ---- all of it ------------------------------------------------------------------------------- */

/* A name is written twice: damage to one record costs no topic. */
static int emit(struct pn_diskqueue_writing *w, uint32_t kind, const uint8_t *bytes, size_t length)
{
    struct pn_record_in record = {.type = kind, .parts = 1};
    record.part[0] = (struct iovec) {(void *) (uintptr_t) bytes, length};
    int rc = pn_topiclog_emit(w, &record);
    return rc == 0 ? pn_topiclog_emit(w, &record) : rc;
}

int pn_carry_describe(void *arg, struct pn_diskqueue_writing *w)
{
    uint8_t bytes[PN_TOPIC_RECORD];
    const struct pn_segment *seg = arg;
    int rc = 0;
    for (uint32_t i = 0; i < seg->topics.max_topics && rc == 0; i++) {
        const struct pn_topic *topic = &seg->topics.topic[i];
        if (pn_topic_kept(topic))
            rc = emit(w, PN_LOG_TOPIC, bytes, pn_topic_record(seg, topic, bytes));
    }
    for (uint32_t i = seg->topics.max_topics; i < seg->topics.max_channels && rc == 0; i++) {
        const struct pn_topic_channel *ch = &seg->topics.channel[i];
        if (pn_load_relaxed(&ch->state) == PN_RECORD_USED && ch->ephemeral == 0 &&
            pn_topic_kept(pn_topic_of(seg, ch)))
            rc = emit(w, PN_LOG_CHANNEL, bytes, pn_channel_record(seg, ch, bytes));
    }
    return rc;
}

/* Of the queues on disk, in this order: what is deferred goes from the topic's own to `later`. */
enum carried { OWN, LATER, RESTING, QUEUES };

/* The next message in memory that is to be carried, from cell *at on, which moves past it; 0: none
 * among the next cells, or none at all: then *at is 0. */
static uint32_t next_live(struct pn_segment *seg, uint32_t *at)
{
    const struct pn_arena *mem = &seg->topics.arena;
    for (uint32_t steps = 0; steps < PN_CARRY_CELLS; steps++) {
        *at = pn_arena_next_cell(mem, PN_PAGE_BODY, *at);
        if (*at == 0)
            return 0;
        const struct pn_message *m = pn_message_at(seg, *at);
        if (pn_arena_taken(mem, *at, PN_PAGE_BODY) && pn_load_relaxed(&m->state) == PN_MSG_LIVE &&
            pn_topic_kept(pn_topic_at(seg, m->topic)))
            return *at;
    }
    return 0;
}

/* cursor[0]: cell */
static int carry_from_memory(struct pn_segment *seg, uint64_t *cursor, struct pn_record_in *record)
{
    struct pn_durable *mem = pn_durable_mine(seg);
    uint32_t at = (uint32_t) *cursor, ref = next_live(seg, &at), n = 0;
    *cursor = at;
    if (ref == 0)
        return at == 0 ? 0 : PN_TOPICLOG_LATER;
    const struct pn_message *m = pn_message_at(seg, ref);
    struct pn_log_message what = pn_message_record(seg, m);
    const struct pn_lengths lengths = pn_message_lengths(m);
    size_t length = lengths.both;
    what.headers_len = lengths.headers;
    uint32_t refs = *(volatile const uint16_t *) &m->refs;
    size_t most = sizeof what + (size_t) refs * sizeof(struct pn_log_delivery) + length;
    if (pn_durable_room((void **) &mem->scratch, &mem->scratch_cap, most, 1) == NULL)
        return -ENOMEM;
    struct pn_log_delivery *to = (void *) (mem->scratch + sizeof what);
    const struct pn_moment now = pn_moment_now();
    uint32_t steps = 0;
    for (uint32_t next = m->first;
         next != 0 && n < refs && what.fanned_out && pn_cells_go_on(seg, &steps);
         next = pn_delivery_at(seg, next)->of_message) {
        const struct pn_delivery *d = pn_delivery_at(seg, next);
        const struct pn_topic_channel *ch = pn_topic_channel_at(seg, d->channel);
        uint64_t word = pn_load_relaxed(&d->state);
        if (ch->ephemeral != 0 || pn_is_void(ch, d))
            continue;
        to[n++] = (struct pn_log_delivery) {
            .id = m->id,
            .due = pn_state_kind(word) == PN_KIND_DEFERRED ? pn_to_real(&now, d->due) : 0,
            .topic = m->topic,
            .channel = d->channel,
            .attempts = pn_state_attempts(word)};
    }
    what.deliveries = n;
    if (what.fanned_out != 0 && pn_topic_at(seg, m->topic)->rest.max_file != 0)
        what.fanned_out = PN_LOG_FANNED_TOO;
    memcpy(mem->scratch, &what, sizeof what);
    uint8_t *tail = (uint8_t *) (to + n);
    if (!pn_arena_read(&seg->topics.arena, ref, sizeof *m, 0, tail, length))
        return pn_segment_poison(seg, "the body of message %016llx is broken",
                                 (unsigned long long) what.id);
    *record = (struct pn_record_in) {.type = PN_LOG_CARRIED, .parts = 1};
    record->part[0] = (struct iovec) {mem->scratch, (size_t) (tail - mem->scratch) + length};
    return 1;
}

/* Of those that were given to channels already, their deliveries. */
static uint32_t given_on_disk(const struct pn_segment *seg, const struct pn_topic *topic,
                              const struct pn_topic_on_disk *from, struct pn_log_delivery *to)
{
    const struct pn_moment now = pn_moment_now();
    struct pn_spilled_delivery d;
    uint32_t n = 0;
    for (uint32_t i = 0; i < from->deliveries.n; i++)
        if (pn_spilled_delivery_locked(seg, topic, &from->deliveries, i, &d) &&
            ((from->seq & PN_REST_SEQ) == 0 ||
             pn_rest_has(seg, topic, pn_topic_channel_at(seg, d.channel), from)))
            to[n++] = (struct pn_log_delivery) {.id = from->m.id,
                                                .due = pn_to_real(&now, d.due),
                                                .topic = (uint32_t) (topic - seg->topics.topic),
                                                .channel = d.channel,
                                                .attempts = d.attempts};
    return n;
}

/* Those that rest and have not passed it. */
static uint32_t resting(const struct pn_segment *seg, const struct pn_topic *topic,
                        const struct pn_topic_on_disk *from, struct pn_log_delivery *to)
{
    const struct pn_moment now = pn_moment_now();
    uint32_t n = 0;
    PN_EACH_CHANNEL (seg, topic, i)
        if (pn_rest_has(seg, topic, pn_topic_channel_at(seg, i - 1), from))
            to[n++] = (struct pn_log_delivery) {.id = from->m.id,
                                                .due = pn_to_real(&now, from->due),
                                                .topic = (uint32_t) (topic - seg->topics.topic),
                                                .channel = i - 1};
    return n;
}

static int carry_one_on_disk(struct pn_segment *seg, const struct pn_topic *topic,
                             const struct pn_topic_on_disk *from, struct pn_record_in *record)
{
    const struct pn_new_message *m = &from->m;
    struct pn_durable *mem = pn_durable_mine(seg);
    const struct pn_moment then = from->then;
    const bool rest = (from->seq & PN_REST_SEQ) != 0, later = (from->seq & PN_LATER_SEQ) != 0;
    struct pn_log_message what = {.id = m->id,
                                  .published = then.real,
                                  .due = m->delay_ns > 0 ? then.real + m->delay_ns : 0,
                                  .expires = m->ttl_ns > 0 ? then.real + m->ttl_ns : 0,
                                  .topic = (uint32_t) (topic - seg->topics.topic),
                                  .fanned_out = rest || later ? PN_LOG_FANNED_TOO : 0,
                                  .headers_len = m->headers_len};
    const size_t given = from->given ? from->deliveries.n : rest ? topic->nchannels : 0;
    size_t most = sizeof what + given * sizeof(struct pn_log_delivery);
    if (pn_durable_room((void **) &mem->scratch, &mem->scratch_cap, most, 1) == NULL)
        return pn_fail(ENOMEM, "out of memory");
    struct pn_log_delivery *to = (void *) (mem->scratch + sizeof what);
    if (from->given)
        what.deliveries = given_on_disk(seg, topic, from, to);
    else if (rest)
        what.deliveries = resting(seg, topic, from, to);
    memcpy(mem->scratch, &what, sizeof what);
    *record = (struct pn_record_in) {.type = PN_LOG_CARRIED, .parts = 3};
    record->part[0] = (struct iovec) {mem->scratch, sizeof what + what.deliveries * sizeof *to};
    record->part[1] = (struct iovec) {(void *) (uintptr_t) m->headers, m->headers_len};
    record->part[2] = (struct iovec) {(void *) (uintptr_t) m->body, m->body_len};
    return 1;
}

static int carry_from_disk(struct pn_segment *seg, struct pn_topic *topic, enum carried queue,
                           uint64_t *cursor, struct pn_record_in *record)
{
    struct pn_diskqueue_cursor at = {cursor[0], cursor[1], cursor[2], cursor[3]};
    struct pn_topic_on_disk from = {.there = false};
    int rc = queue == RESTING ? pn_rest_look_locked(seg, topic, &at, &from)
             : queue == LATER ? pn_later_look_locked(seg, topic, &at, &from)
                              : pn_topic_disk_look_locked(seg, topic, &at, &from);
    cursor[0] = at.file;
    cursor[1] = at.at;
    cursor[2] = at.seq;
    cursor[3] = at.sum;
    if (rc == -EAGAIN || (rc == 1 && !from.there))
        return PN_TOPICLOG_LATER;
    return rc == 1 ? carry_one_on_disk(seg, topic, &from, record) : rc;
}

/* cursor: which topic's files, and of the three queues that it has there; which cell; where in
 * those files */
int pn_carry_next(void *arg, uint64_t cursor[PN_TOPICLOG_CURSOR], struct pn_record_in *record)
{
    struct pn_segment *seg = arg;
    for (; cursor[0] < QUEUES * (uint64_t) seg->topics.max_topics; cursor[0]++) {
        struct pn_topic *topic = &seg->topics.topic[cursor[0] / QUEUES];
        const enum carried rest = (enum carried)(cursor[0] % QUEUES);
        uint64_t there = rest == RESTING ? pn_rest_records(topic)
                         : rest == LATER ? pn_topic_later(topic)
                                         : pn_topic_on_disk(topic);
        int rc = pn_topic_kept(topic) && there != 0
                     ? carry_from_disk(seg, topic, rest, cursor + 2, record)
                     : 0;
        if (rc != 0)
            return rc;
        memset(cursor + 2, 0, 4 * sizeof *cursor);
    }
    return carry_from_memory(seg, cursor + 1, record);
}

/* Of a new log, about and at the most: topics, channels, and messages with a record each. */
static uint64_t live_bytes(const struct pn_segment *seg)
{
    enum { MESSAGE = PN_RECORD_HEADER + sizeof(struct pn_log_message) + 8 };
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < seg->topics.max_topics; i++) {
        const struct pn_topic *t = &seg->topics.topic[i];
        if (!pn_topic_kept(t))
            continue;
        const uint64_t on_disk = pn_topic_on_disk(t) + pn_rest_records(t) + pn_topic_later(t);
        bytes += t->bytes + (uint64_t) t->messages * MESSAGE + pn_topic_disk_used(t);
        bytes += (t->messages + on_disk) * t->nchannels * sizeof(struct pn_log_delivery);
        bytes += (1 + (uint64_t) t->nchannels) * PN_CARRY_NAME;
    }
    return bytes;
}

/* What was synced before is not, in the new file. */
static void to_be_synced_as_all(struct pn_segment *seg)
{
    struct pn_durable *d = pn_durable_mine(seg);
    for (uint32_t i = 0; i < seg->topics.max_topics; i++) {
        const struct pn_topic *topic = &seg->topics.topic[i];
        if (pn_topic_kept(topic) && d->policy < topic->fsync)
            d->policy = topic->fsync;
    }
}

int pn_carry_all_locked(struct pn_segment *seg)
{
    pn_assert_topics_held(seg);
    struct pn_durable *d = pn_durable_mine(seg);
    int rc = pn_topiclog_write_anew(&seg->topics.ctl->log, &d->files, live_bytes(seg) / 2);
    if (rc == 0)
        to_be_synced_as_all(seg);
    return rc;
}

void pn_carry_some_locked(struct pn_segment *seg)
{
    pn_assert_topics_held(seg);
    struct pn_topiclog *log = &seg->topics.ctl->log;
    int rc =
        pn_topiclog_compact(log, &pn_durable_mine(seg)->files, live_bytes(seg), PN_CARRY_MESSAGES);
    if (rc < 0 && pn_load_relaxed(&log->queue.error) == 0) /* it could not be read, or the like */
        pn_store_relaxed(&log->queue.error, -rc < PN_EQUEUEFULL ? -rc : EIO);
}

int pn_carry_step_locked(struct pn_segment *seg)
{
    pn_assert_topics_held(seg);
    struct pn_topiclog *log = &seg->topics.ctl->log;
    if (log->compact_file == 0) /* scribbled: there is nothing to go on with */
        return -PN_ECORRUPT;
    int rc = pn_topiclog_compact(log, &pn_durable_mine(seg)->files, 0, PN_CARRY_MESSAGES);
    if (rc == 0)
        to_be_synced_as_all(seg);
    return rc;
}

/*
 * What ends a message takes a record for each channel that has it, and one when it is given to
 * them; so does every message that `more` bytes of records may bring, the shortest of which has
 * one byte.  The rest is for what empties and deletes, and for files that have to begin again on a
 * full disk, with all names.
 */
uint64_t pn_carry_owed(void *arg, uint64_t more, uint64_t *rest)
{
    enum { END = PN_RECORD_HEADER + sizeof(struct pn_log_delivery) };
    const struct pn_segment *seg = arg;
    const uint64_t least = PN_RECORD_HEADER + sizeof(struct pn_log_message) + 8;
    uint64_t ends = 0, most = 0, names = 0;
    for (uint32_t i = 0; i < seg->topics.max_topics; i++) {
        const struct pn_topic *topic = &seg->topics.topic[i];
        if (!pn_topic_kept(topic))
            continue;
        uint64_t each = 1 + (uint64_t) topic->nchannels;
        names += each;
        ends += each * (topic->messages + pn_topic_on_disk(topic) + pn_rest_records(topic) +
                        pn_topic_later(topic));
        most = each > most ? each : most;
    }
    *rest = (64 << 10) + 4 * PN_CARRY_NAME * names;
    return (ends + (more == 0 ? 0 : most * (more / least + 1))) * END + *rest;
}
