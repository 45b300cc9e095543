/*
 * durable.c - durable topics: what happens to them is written to the segment's log.
 *
 * 1. Whatever changes a durable topic notes it in this process's memory; when the operation ends
 *    (pn_topics_end_locked) the notes become one batch of the log (topic_log.c).  What publishes
 *    flushes before its commit point, so a full disk is the publisher's error and nothing has
 *    happened; a transaction flushes messages and answers together before `head`.
 * 2. So log and memory differ while `topics_dirty` stands, and at no other time.  A death there is
 *    followed by a rebuild, before whose end the log is written again from memory: all topics, all
 *    messages, by a compaction of which each step is one of the rebuild's.  If no process is left,
 *    the log is what counts: a message whose publisher was not told may be there or not, an answer
 *    whose consumer was not told may have happened or not.
 * 3. On a full disk what has not happened is refused, and what has goes to the blocks that were
 *    reserved for it (pn_carry_owed); attempts and delays are left out.  When a flush fails of
 *    what memory has done already, the caller is told (PN_ESYNC) and `log_behind` is set until the
 *    log could be written again; publishing fails until then.  So it does when files of it are
 *    gone.
 * 4. After a sync that failed it is not known what of the files is on the disk, and the next one
 *    may succeed without it (topic_log.c 7).  The log is written again from memory, into a new
 *    file, and that is synced: at once by the caller that needs it for fsync="always", else by the
 *    next operation.  If that fails, too, its caller is told (PN_ESYNC); what it did is committed
 *    and cannot be refused any more.  Whatever was on the disk before stays there until the new
 *    file is (topic_log.c 5).
 * 5. Times: in the log CLOCK_REALTIME, in memory CLOCK_MONOTONIC.
 * 6. Ephemeral channels are not in the log.
 */
#include "topic/carry.h"
#include "topic/durable.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crashpoint.h"
#include "base/moment.h"
#include "segment/dirlock.h"
#include "segment/lock.h"
#include "topic/area.h"
#include "topic/end.h"
#include "topic/message.h"
#include "topic/on_disk.h"
#include "topic/restore.h"

/* Bits of `noted`: there is something to be written; and to be compacted, when memory says what
 * the log does: what a commit has written it has not done yet. */
enum { NOTED = 1, GROWN = 2 };

/* ---- notes ----------------------------------------------------------------------------------- */

static int open_files(struct pn_segment *seg);

/* Space for a record; NULL: there is none, and the flush will say so. */
static uint8_t *note(struct pn_segment *seg, uint32_t kind, size_t length)
{
    seg->topics.noted |= NOTED;
    if (open_files(seg) != 0)
        return NULL;
    struct pn_durable *d = pn_durable_mine(seg);
    if (pn_durable_room((void **) &d->note, &d->notes_cap, d->notes + 1, sizeof *d->note) == NULL ||
        pn_durable_room((void **) &d->bytes, &d->cap, d->used + length + 8, 1) == NULL) {
        d->failed = true;
        return NULL;
    }
    d->note[d->notes++] = (struct pn_durable_note) {kind, false, d->used, length};
    uint8_t *at = d->bytes + d->used;
    d->used += (length + 7) & ~(size_t) 7;
    return at;
}

static void wants(struct pn_segment *seg, const struct pn_topic *topic)
{
    if (pn_durable_mine(seg) != NULL && topic->fsync > pn_durable_mine(seg)->policy)
        pn_durable_mine(seg)->policy = topic->fsync;
}

/* Without these a message comes again with the attempts or the delay that it had before. */
static bool may_be_left_out(uint32_t kind)
{
    return kind == PN_LOG_DELIVERED || kind == PN_LOG_REQUEUED;
}

/* Memory has what was noted last.  What is noted before it happens does not happen if it cannot be
 * written. */
static void has_happened(struct pn_segment *seg)
{
    struct pn_durable *d = pn_durable_mine(seg);
    if (d == NULL)
        return;
    if (d->notes != 0)
        d->note[d->notes - 1].happened = true;
    d->happened |= d->notes == 0 || !may_be_left_out(d->note[d->notes - 1].kind);
}

void pn_durable_note_topic_locked(struct pn_segment *seg, const struct pn_topic *topic)
{
    pn_assert_topics_held(seg);
    uint8_t bytes[PN_TOPIC_RECORD];
    const struct pn_log_delivery gone = {.topic = (uint32_t) (topic - seg->topics.topic)};
    if (!pn_is_durable(seg, topic))
        return;
    bool used = pn_load_relaxed(&topic->state) == PN_RECORD_USED;
    size_t length = used ? pn_topic_record(seg, topic, bytes) : sizeof gone;
    uint8_t *to = note(seg, used ? PN_LOG_TOPIC : PN_LOG_TOPIC_DELETED, length);
    if (to != NULL)
        memcpy(to, used ? bytes : (const uint8_t *) &gone, length);
    has_happened(seg);
    wants(seg, topic);
}

void pn_durable_note_channel_locked(struct pn_segment *seg, const struct pn_topic_channel *ch)
{
    pn_assert_topics_held(seg);
    uint8_t bytes[PN_CHANNEL_RECORD];
    const struct pn_log_delivery gone = {.topic = ch->topic,
                                         .channel = pn_topic_channel_index(seg, ch)};
    const struct pn_topic *topic = pn_topic_of(seg, ch);
    if (!pn_is_durable(seg, topic) || ch->ephemeral != 0 || ch->name_len == 0)
        return;
    bool used = pn_load_relaxed(&ch->state) == PN_RECORD_USED;
    size_t length = used ? pn_channel_record(seg, ch, bytes) : sizeof gone;
    uint8_t *to = note(seg, used ? PN_LOG_CHANNEL : PN_LOG_CHANNEL_DELETED, length);
    if (to != NULL)
        memcpy(to, used ? bytes : (const uint8_t *) &gone, length);
    has_happened(seg);
    wants(seg, topic);
}

/* `happened`: it will be said to have. */
static void note_one(struct pn_segment *seg, uint32_t kind, const struct pn_log_delivery *what,
                     bool happened)
{
    struct pn_durable *d = pn_durable_mine(seg);
    struct pn_durable_note *last = d != NULL && d->notes > 0 ? &d->note[d->notes - 1] : NULL;
    bool several = kind == PN_LOG_FANNED_OUT || kind == PN_LOG_DELIVERED ||
                   kind == PN_LOG_FINISHED || kind == PN_LOG_REQUEUED || kind == PN_LOG_CANCELLED;
    uint8_t *to;
    if (several && last != NULL && last->kind == kind && last->happened == happened &&
        pn_durable_room((void **) &d->bytes, &d->cap, d->used + sizeof *what, 1) != NULL) {
        to = d->bytes + d->used;
        last->length += sizeof *what;
        d->used += sizeof *what;
    } else {
        to = note(seg, kind, sizeof *what);
    }
    if (to != NULL)
        memcpy(to, what, sizeof *what);
}

void pn_durable_note_delivery_locked(struct pn_segment *seg, uint32_t kind, uint32_t delivery)
{
    pn_assert_topics_held(seg);
    const struct pn_delivery *d = pn_delivery_at(seg, delivery);
    const struct pn_topic_channel *ch = pn_topic_channel_at(seg, d->channel);
    const struct pn_topic *topic = pn_topic_of(seg, ch);
    uint64_t word = pn_load_relaxed(&d->state);
    if (!pn_is_durable(seg, topic) || ch->ephemeral != 0 || pn_topics_hold(seg)->told)
        return;
    struct pn_log_delivery what = {.id = pn_message_at(seg, d->message)->id,
                                   .topic = ch->topic,
                                   .channel = d->channel,
                                   .attempts = pn_state_attempts(word)};
    if (pn_state_kind(word) == PN_KIND_DEFERRED) {
        struct pn_moment now = pn_moment_now();
        what.due = pn_to_real(&now, d->due);
    }
    if (pn_is_backlog(seg, ch))
        kind = PN_LOG_CANCELLED;
    note_one(seg, kind, &what, true);
    has_happened(seg);
    if (kind != PN_LOG_DELIVERED) /* no caller was promised anything by it */
        wants(seg, topic);
}

static void note_fanned_out(struct pn_segment *seg, const struct pn_topic *topic, uint64_t id)
{
    const struct pn_log_delivery what = {.id = id, .topic = (uint32_t) (topic - seg->topics.topic)};
    if (!pn_is_durable(seg, topic))
        return;
    note_one(seg, PN_LOG_FANNED_OUT, &what, true);
    has_happened(seg);
    wants(seg, topic);
}

void pn_durable_note_fanned_out_locked(struct pn_segment *seg, const struct pn_message *m)
{
    pn_assert_topics_held(seg);
    note_fanned_out(seg, pn_topic_at(seg, m->topic), m->id);
}

/* What is carried of it has no record that tells of the channels that have it on disk, if it was
 * in memory when those were looked through (carry.c 4): it is published once more, to all. */
void pn_durable_note_given_locked(struct pn_segment *seg, const struct pn_topic *topic,
                                  const struct pn_new_message *m, const struct pn_moment *then)
{
    pn_assert_topics_held(seg);
    if (!pn_is_durable(seg, topic))
        return;
    if (seg->topics.ctl->log.compact_file == 0) {
        note_fanned_out(seg, topic, m->id);
        return;
    }
    pn_durable_note_spilled_locked(seg, topic, m, then, true);
    has_happened(seg);
}

void pn_durable_note_emptied_locked(struct pn_segment *seg, const struct pn_topic_channel *ch)
{
    pn_assert_topics_held(seg);
    bool own = pn_is_backlog(seg, ch);
    const struct pn_topic *topic = pn_topic_of(seg, ch);
    const struct pn_log_delivery what = {
        .topic = ch->topic, .channel = own ? PN_LOG_TOPICS_OWN : pn_topic_channel_index(seg, ch)};
    if (!pn_is_durable(seg, topic) || ch->ephemeral != 0)
        return;
    note_one(seg, PN_LOG_EMPTIED, &what, true);
    has_happened(seg);
    wants(seg, topic);
}

void pn_durable_note_cancelled_locked(struct pn_segment *seg, const struct pn_topic *topic,
                                      uint64_t id, bool happened)
{
    pn_assert_topics_held(seg);
    const struct pn_log_delivery what = {.id = id, .topic = (uint32_t) (topic - seg->topics.topic)};
    if (!pn_is_durable(seg, topic))
        return;
    note_one(seg, PN_LOG_CANCELLED, &what, happened);
    if (happened)
        has_happened(seg);
    wants(seg, topic);
}

void pn_durable_note_answer_locked(struct pn_segment *seg, uint32_t delivery,
                                   const struct pn_answer_redo *redo)
{
    pn_assert_topics_held(seg);
    const struct pn_delivery *d = pn_delivery_at(seg, delivery);
    const struct pn_topic_channel *ch = pn_topic_channel_at(seg, d->channel);
    const struct pn_topic *topic = pn_topic_of(seg, ch);
    enum pn_delivery_kind kind = pn_state_kind(redo->word);
    if (!pn_is_durable(seg, topic) || ch->ephemeral != 0)
        return;
    const struct pn_moment now = pn_moment_now();
    const struct pn_log_delivery what = {
        .id = pn_message_at(seg, d->message)->id,
        .due = kind == PN_KIND_DEFERRED ? pn_to_real(&now, redo->due) : 0,
        .topic = ch->topic,
        .channel = d->channel,
        .attempts = pn_state_attempts(redo->word)};
    note_one(seg, kind == PN_KIND_FREE ? PN_LOG_FINISHED : PN_LOG_REQUEUED, &what, false);
    wants(seg, topic);
}

void pn_durable_note_publish_locked(struct pn_segment *seg, uint32_t ref)
{
    pn_assert_topics_held(seg);
    const struct pn_message *m = pn_message_at(seg, ref);
    const struct pn_topic *topic = pn_topic_at(seg, m->topic);
    if (!pn_is_durable(seg, topic))
        return;
    struct pn_log_message what = pn_message_record(seg, m);
    const struct pn_lengths length = pn_message_lengths(m);
    what.headers_len = length.headers;
    uint8_t *to = note(seg, PN_LOG_PUBLISH, sizeof what + length.both);
    if (to == NULL)
        return;
    memcpy(to, &what, sizeof what);
    if (!pn_arena_read(&seg->topics.arena, ref, sizeof *m, 0, to + sizeof what, length.both))
        pn_segment_poison(seg, "the body of message %016llx is broken",
                          (unsigned long long) what.id);
    wants(seg, topic);
}

void pn_durable_note_spilled_locked(struct pn_segment *seg, const struct pn_topic *topic,
                                    const struct pn_new_message *m, const struct pn_moment *now,
                                    bool given)
{
    pn_assert_topics_held(seg);
    if (!pn_is_durable(seg, topic))
        return;
    const struct pn_log_message what = {.id = m->id,
                                        .published = now->real,
                                        .due = m->delay_ns > 0 ? now->real + m->delay_ns : 0,
                                        .expires = m->ttl_ns > 0 ? now->real + m->ttl_ns : 0,
                                        .topic = (uint32_t) (topic - seg->topics.topic),
                                        .fanned_out = given,
                                        .headers_len = m->headers_len};
    uint8_t *to = note(seg, PN_LOG_PUBLISH, sizeof what + m->headers_len + m->body_len);
    if (to == NULL)
        return;
    memcpy(to, &what, sizeof what);
    if (m->headers_len != 0)
        memcpy(to + sizeof what, m->headers, m->headers_len);
    memcpy(to + sizeof what + m->headers_len, m->body, m->body_len);
    wants(seg, topic);
}

static int write_notes(struct pn_segment *seg, bool ends)
{
    struct pn_durable *d = pn_durable_mine(seg);
    uint64_t seq;
    size_t n = 0;
    struct pn_record_in *records = calloc(2 * d->notes, sizeof *records);
    if (records == NULL)
        return pn_fail(ENOMEM, "out of memory");
    for (size_t i = 0; i < d->notes; i++) {
        const struct pn_durable_note *from = &d->note[i];
        records[n] = (struct pn_record_in) {.type = from->kind, .parts = 1};
        records[n++].part[0] = (struct iovec) {d->bytes + from->off, from->length};
        if (from->kind == PN_LOG_TOPIC || from->kind == PN_LOG_CHANNEL) { /* carry.c emit() */
            records[n] = records[n - 1];
            n++;
        }
    }
    struct pn_topiclog *log = &seg->topics.ctl->log;
    int rc = ends ? pn_topiclog_append_ends(log, &d->files, records, n, &seq)
                  : pn_topiclog_append(log, &d->files, records, n, &seq);
    free(records);
    return rc;
}

/* Only what memory has, `required`: and cannot be left out.  Was there more that counts? */
static bool keep_what_happened(struct pn_durable *d, bool required)
{
    size_t n = 0;
    bool refused = false;
    for (size_t i = 0; i < d->notes; i++) {
        refused |= !d->note[i].happened;
        if (d->note[i].happened && !(required && may_be_left_out(d->note[i].kind)))
            d->note[n++] = d->note[i];
    }
    d->notes = n;
    return refused;
}

void pn_durable_forget_locked(struct pn_segment *seg)
{
    pn_assert_topics_held(seg);
    if (pn_durable_mine(seg) != NULL)
        keep_what_happened(pn_durable_mine(seg), false);
}

static bool is_no_room(int rc)
{
    return rc == -ENOSPC || rc == -EDQUOT || rc == -EFBIG;
}

/* There is room for them, if the file system reserves (pn_carry_owed). */
static bool are_ends(const struct pn_durable *d)
{
    bool ends = true;
    for (size_t i = 0; i < d->notes && ends; i++)
        ends = d->note[i].happened &&
               (d->note[i].kind == PN_LOG_FINISHED || d->note[i].kind == PN_LOG_FANNED_OUT ||
                d->note[i].kind == PN_LOG_CANCELLED);
    return ends;
}

/* On a full disk what has not happened is refused, and what has takes what was reserved for it. */
static int write_what_was_noted(struct pn_segment *seg)
{
    struct pn_durable *d = pn_durable_mine(seg);
    int rc = write_notes(seg, are_ends(d));
    if (!is_no_room(rc))
        return rc;
    pn_topiclog_starve(&seg->topics.ctl->log);
    bool refused = keep_what_happened(d, true);
    int behind = d->notes == 0 ? 0 : write_notes(seg, true);
    d->happened = behind != 0;
    return refused || behind != 0 ? rc : 0;
}

/* A process that has carried what others have synced has it synced again. */
static void tidy(struct pn_segment *seg)
{
    struct pn_topiclog *log = &seg->topics.ctl->log;
    struct pn_durable *d = pn_durable_mine(seg);
    uint32_t policy = PN_FSYNC_NONE;
    if (__builtin_expect(!pn_topiclog_is_untidy(log), 1))
        return;
    for (uint32_t i = 0; i < seg->topics.max_topics; i++)
        if (pn_topic_kept(&seg->topics.topic[i]) && policy < seg->topics.topic[i].fsync)
            policy = seg->topics.topic[i].fsync;
    pn_topiclog_tidy(log, &d->files, policy == PN_FSYNC_NONE);
    if (d->policy < policy && pn_topiclog_is_untidy(log))
        d->policy = log->queue.starved != 0 ? PN_FSYNC_ALWAYS : policy; /* a full disk waits */
}

/* Of several flushes in one hold of the lock all are. */
static void to_be_synced(struct pn_segment *seg)
{
    struct pn_durable *d = pn_durable_mine(seg);
    struct pn_hold *hold = pn_topics_hold(seg);
    struct pn_topic_sync *sync = &hold->sync;
    if (d->policy == PN_FSYNC_ALWAYS) {
        uint32_t failures = sync->policy == PN_FSYNC_ALWAYS ? sync->kept.failures : d->failures;
        if (sync->policy == PN_FSYNC_ALWAYS)
            pn_topiclog_forget(&sync->kept);
        pn_topiclog_keep(&seg->topics.ctl->log, &d->files, failures, &sync->kept);
    }
    if (sync->policy < d->policy)
        sync->policy = d->policy;
    if (sync->policy != 0)
        hold->at_end |= PN_SYNC_LOG;
    d->policy = 0;
}

enum { LOOK_NS = 1000000000 };

/* What others have removed is to be written again, from memory: 1, and `log_behind` stands; 0; or
 * -errno.  `at_once`, or once in a second. */
static int look_for_files(struct pn_segment *seg, bool at_once)
{
    struct pn_topic_control *ctl = seg->topics.ctl;
    struct pn_durable *d = pn_durable_mine(seg);
    const int64_t now = pn_now_ns();
    if (!at_once && now - d->looked < LOOK_NS)
        return 0;
    d->looked = now;
    int rc = pn_topiclog_make_dir(seg->data_dir, seg->name);
    if (rc == 0)
        rc = pn_dirlock_renew(seg);
    if (rc != 0 || !pn_topiclog_is_gone(&ctl->log, &d->files))
        return rc;
    ctl->log_behind = 1;
    pn_store_relaxed(&seg->log_gone, 1);
    return 1;
}

/* All of it again if it is behind, and what was noted. */
static int write_all(struct pn_segment *seg)
{
    struct pn_topic_control *ctl = seg->topics.ctl;
    int rc = 0;
    if (ctl->log_behind != 0) {
        rc = pn_carry_all_locked(seg);
        ctl->log_behind = rc != 0;
        PN_CRASH("durable:rewritten");
    }
    return rc == 0 && pn_durable_mine(seg)->notes != 0 ? write_what_was_noted(seg) : rc;
}

static int flush(struct pn_segment *seg)
{
    struct pn_durable *d = pn_durable_mine(seg);
    int rc = d->failed ? pn_fail(ENOMEM, "out of memory") : look_for_files(seg, false);
    if (rc < 0)
        return rc;
    tidy(seg);
    rc = write_all(seg);
    if (rc == -ENOENT && look_for_files(seg, true) == 1)
        rc = write_all(seg);
    PN_CRASH("durable:flushed");
    return rc;
}

int pn_durable_flush_locked(struct pn_segment *seg)
{
    pn_assert_topics_held(seg);
    struct pn_topic_control *ctl = seg->topics.ctl;
    uint32_t failures = pn_load_acquire(&ctl->log.failures); /* before: pn_topiclog_sync() */
    if (ctl->log_ready != 0 && pn_exchange(&ctl->log.failed, 0) != 0)
        ctl->log_behind = 1;
    if (ctl->log_ready == 0 || ((seg->topics.noted & NOTED) == 0 && ctl->log_behind == 0))
        return 0;
    seg->topics.noted &= ~(uint32_t) NOTED;
    int rc = open_files(seg);
    struct pn_durable *d = pn_durable_mine(seg);
    if (rc == 0 && !pn_diskqueue_possible(&ctl->log.queue, ctl->log.queue.base))
        rc = pn_segment_poison(seg, "the log of durable topics is broken");
    if (rc != 0) {
        pn_durable_unwritten(seg, rc);
        return rc;
    }
    d->failures = failures;
    rc = flush(seg);
    if (rc != 0 && d->happened)
        pn_durable_unwritten(seg, rc);
    if (pn_topiclog_may_compact(&ctl->log))
        seg->topics.noted |= GROWN;
    tidy(seg);
    d->notes = d->used = 0;
    d->failed = d->happened = false;
    to_be_synced(seg);
    return pn_disk_result(seg, rc);
}

void pn_durable_end_locked(struct pn_segment *seg)
{
    pn_assert_topics_held(seg);
    int rc = pn_durable_flush_locked(seg);
    bool grown = (seg->topics.noted & GROWN) != 0;
    seg->topics.noted &= ~(uint32_t) GROWN;
    if (rc != 0 || !grown || seg->topics.ctl->log_behind != 0)
        return;
    pn_carry_some_locked(seg);
    tidy(seg);
    to_be_synced(seg);
}

bool pn_durable_compacts_locked(struct pn_segment *seg, const struct pn_topic *topic)
{
    pn_assert_topics_held(seg);
    if (!pn_is_durable(seg, topic) || seg->topics.ctl->log.compact_file == 0)
        return false;
    seg->topics.noted |= GROWN;
    return true;
}

bool pn_durable_anew_locked(struct pn_segment *seg, bool first)
{
    pn_assert_topics_held(seg);
    struct pn_topic_control *ctl = seg->topics.ctl;
    if (ctl->log_ready == 0)
        return false;
    if (first) {
        ctl->log_behind = 1;
        pn_store_relaxed(&ctl->log.failed, 0);
    }
    int rc = open_files(seg);
    if (rc == 0 && !pn_diskqueue_possible(&ctl->log.queue, ctl->log.queue.base))
        rc = pn_segment_poison(seg, "the log of durable topics is broken");
    if (rc != 0)
        return false;
    struct pn_durable *d = pn_durable_mine(seg);
    d->failures = pn_load_acquire(&ctl->log.failures);
    rc = first ? pn_topiclog_begin_anew(&ctl->log, &d->files) : pn_carry_step_locked(seg);
    if (rc == 0)
        ctl->log_behind = 0;
    PN_CRASH("durable:step");
    tidy(seg);
    to_be_synced(seg);
    return rc > 0;
}

/* ---- opening --------------------------------------------------------------------------------- */

static int open_files(struct pn_segment *seg)
{
    if (pn_durable_mine(seg) != NULL)
        return 0;
    /* Before the names of the files are looked at: they are its owner's. */
    int rc = pn_topiclog_make_dir(seg->data_dir, seg->name);
    if (rc == 0)
        rc = pn_dirlock_take(seg, seg->topics.ctl->log_ready == 0);
    if (rc != 0)
        return rc;
    struct pn_durable *d = calloc(1, sizeof *d);
    if (d == NULL)
        return pn_fail(ENOMEM, "out of memory");
    const struct pn_topiclog_source source = {pn_carry_describe, pn_carry_next, pn_carry_owed, seg};
    rc = pn_topiclog_open(&d->files, seg->data_dir, seg->name,
                          seg->topics.max_body + PN_HEADERS_MAX + (4U << 20), &source);
    if (rc != 0) {
        free(d);
        return rc;
    }
    seg->topics.durable = d;
    return 0;
}

int pn_durable_join_locked(struct pn_segment *seg)
{
    pn_assert_topics_held(seg);
    return seg->topics.ctl->log_ready == 0 || pn_dirlock_held(seg) ? 0
                                                                   : pn_dirlock_take(seg, false);
}

bool pn_durable_exists(const struct pn_segment *seg)
{
    char path[2 * PN_DATA_DIR_MAX];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", seg->data_dir, seg->name);
    return seg->data_dir[0] != '\0' && lstat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Rows of databases belong to the writer lock. */
static int describe_alone(void *arg, struct pn_diskqueue_writing *w)
{
    struct pn_hold hold;
    int rc = pn_lock_acquire(arg, &hold, PN_LOCK_TIMEOUT_NS);
    if (rc != 0)
        return rc;
    rc = pn_carry_describe(arg, w);
    pn_lock_release(arg);
    return rc;
}

static int start(struct pn_segment *seg, bool alone)
{
    struct pn_topic_control *ctl = seg->topics.ctl;
    struct pn_restore r = {.seg = seg, .now = pn_moment_now(), .alone = alone};
    uint64_t damaged;
    if (ctl->log_ready != 0)
        return 0;
    int rc = open_files(seg);
    if (rc == 0) {
        struct pn_topiclog_files *files = &pn_durable_mine(seg)->files;
        files->source.describe = alone ? describe_alone : pn_carry_describe;
        rc = pn_topiclog_start(&ctl->log, files, seg->instance, 0, &pn_restore, &r, &damaged);
        files->source.describe = pn_carry_describe;
    }
    free(r.topic);
    free(r.channel);
    if (rc < 0)
        return pn_disk_result(seg, rc);
    if (pn_load_relaxed(&ctl->next_id) <= r.last_id)
        pn_store_relaxed(&ctl->next_id, r.last_id + 1);
    pn_store_relaxed(&seg->log_damaged, damaged);
    ctl->log_behind = (uint32_t) rc; /* a full disk: then what is there can be had all the same */
    ctl->log_ready = 1;
    PN_CRASH("durable:ready");
    return 0;
}

int pn_durable_start_locked(struct pn_segment *seg)
{
    pn_assert_topics_held(seg);
    return start(seg, false);
}

int pn_durable_start_alone(struct pn_segment *seg)
{
    return start(seg, true);
}

/* ---- syncing --------------------------------------------------------------------------------- */

_Thread_local int pn_sync_error;

/* All that was written, for no caller in particular: the next operation hears of a failure. */
static void sync_all(struct pn_segment *seg)
{
    pn_topiclog_sync(&seg->topics.ctl->log, &pn_durable_mine(seg)->files, UINT64_MAX, NULL);
}

/* After a sync that has failed: all of it once more, into a new file.  0: that is on the disk. */
static int write_anew_and_sync(struct pn_segment *seg, int rc)
{
    struct pn_hold hold;
    if (pn_lock_topics(seg, &hold, PN_LOCK_TIMEOUT_NS) != 0)
        return rc;
    pn_topics_begin_locked(seg);
    pn_topics_end_locked(seg);
    hold.at_end &= ~(uint32_t) PN_SYNC_LOG; /* here */
    bool behind = seg->topics.ctl->log_behind != 0;
    pn_lock_release(seg);
    if (hold.sync.policy == PN_FSYNC_ALWAYS) {
        if (!behind)
            rc = pn_topiclog_sync(&seg->topics.ctl->log, &pn_durable_mine(seg)->files, UINT64_MAX,
                                  &hold.sync.kept);
        pn_topiclog_forget(&hold.sync.kept);
    }
    return rc;
}

_Thread_local const struct pn_conn *pn_puts_off, *pn_calling;
_Thread_local struct pn_sync *pn_put_off;

/* Leave it to the connection that puts syncs off; false: it is to be done at once. */
static bool is_put_off(struct pn_segment *seg, struct pn_topic_sync *sync)
{
    struct pn_sync *mine = pn_put_off;
    if (pn_puts_off == NULL || pn_calling != pn_puts_off || (mine != NULL && mine->seg != seg))
        return false;
    if (mine == NULL) {
        mine = malloc(sizeof *mine);
        if (mine == NULL)
            return false;
        pn_segment_acquire(seg);
        *mine = (struct pn_sync) {seg, *sync};
        pn_put_off = mine;
    } else if (mine->sync.policy != PN_FSYNC_ALWAYS) {
        mine->sync = *sync;
    } else if (sync->policy == PN_FSYNC_ALWAYS) { /* the older one began before more failures */
        sync->kept.failures = mine->sync.kept.failures;
        pn_topiclog_forget(&mine->sync.kept);
        mine->sync = *sync;
    }
    return true;
}

static void sync_now(struct pn_segment *seg, struct pn_topic_sync *sync)
{
    struct pn_topiclog *log = &seg->topics.ctl->log;
    if (sync->policy != PN_FSYNC_ALWAYS) {
        sync_all(seg);
        return;
    }
    int rc = pn_topiclog_sync(log, &pn_durable_mine(seg)->files, UINT64_MAX, &sync->kept);
    pn_topiclog_forget(&sync->kept);
    if (rc == -EIO || rc == -ENOSPC || rc == -EDQUOT)
        rc = write_anew_and_sync(seg, rc);
    if (rc != 0 && pn_sync_error == 0)
        pn_sync_error = -rc;
}

void pn_durable_sync(struct pn_segment *seg, struct pn_topic_sync *sync)
{
    bool interval = sync->policy == PN_FSYNC_INTERVAL;
    if (interval)
        pn_durable_mine(seg)->interval = true;
    if (interval && !pn_topiclog_sync_due(&seg->topics.ctl->log, pn_now_ns()))
        return;
    if (sync->policy >= PN_FSYNC_INTERVAL && !is_put_off(seg, sync))
        sync_now(seg, sync);
}

int pn_durable_wait(struct pn_sync *sync)
{
    pn_sync_error = 0;
    sync_now(sync->seg, &sync->sync);
    int rc = pn_durable_result(sync->seg, 0);
    pn_segment_release(sync->seg);
    free(sync);
    return rc;
}

int pn_durable_unwritten(struct pn_segment *seg, int rc)
{
    seg->topics.ctl->log_behind = 1;
    pn_sync_error = rc == -PN_EDISKFULL ? -ENOSPC : rc;
    return 0;
}

int pn_durable_failed(const struct pn_segment *seg)
{
    int error = pn_sync_error;
    pn_sync_error = 0;
    if (error < 0)
        return pn_fail(PN_ESYNC,
                       "it has happened, but is not in the log in %s/%s, which could not be "
                       "written (%s): if all processes end now, it is undone\n"
                       "See to that disk, and do not repeat the call: the next operation on a "
                       "durable topic writes the log again.",
                       seg->data_dir, seg->name, strerror(-error));
    return pn_fail(PN_ESYNC,
                   "it has happened, but a power cut may undo it: the log in %s/%s could not be "
                   "synced (%s)\n"
                   "See to that disk, and do not repeat the call: the next operation on a durable "
                   "topic writes the log again.",
                   seg->data_dir, seg->name, strerror(error));
}

void pn_durable_close(struct pn_segment *seg)
{
    struct pn_durable *d = pn_durable_mine(seg);
    if (seg->topics.disk != NULL)
        pn_diskqueue_close(seg->topics.disk);
    free(seg->topics.disk);
    seg->topics.disk = NULL;
    if (d == NULL)
        return;
    if (d->interval)
        sync_all(seg);
    pn_topiclog_close(&d->files);
    free(d->note);
    free(d->bytes);
    free(d->scratch);
    free(d);
    seg->topics.durable = NULL;
}
