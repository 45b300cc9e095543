/* notes.c - what happens to a durable topic is noted in this process's memory (durable.c 1). */
#include "topic/notes.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/crashpoint.h"
#include "base/moment.h"
#include "segment/arena_body.h"
#include "segment/dirlock.h"
#include "segment/lock.h"
#include "topic/area.h"
#include "topic/carry.h"
#include "topic/message.h"

static int own_directory(void *seg)
{
    return pn_dirlock_renew(seg);
}

int pn_durable_open_files(struct pn_segment *seg)
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
    const struct pn_topiclog_source source = {pn_carry_describe, pn_carry_next, pn_carry_owed,
                                              own_directory, seg};
    rc = pn_topiclog_open(&d->files, seg->data_dir, seg->name,
                          seg->topics.max_body + PN_HEADERS_MAX + (4U << 20), &source);
    if (rc != 0) {
        free(d);
        return rc;
    }
    seg->topics.durable = d;
    return 0;
}

/* Space for a record; NULL: there is none, and the flush will say so. */
static uint8_t *note(struct pn_segment *seg, uint32_t kind, size_t length)
{
    seg->topics.noted |= PN_NOTED;
    if (pn_durable_open_files(seg) != 0)
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

/* Memory has what was noted last.  What is noted before it happens does not happen if it cannot be
 * written. */
static void has_happened(struct pn_segment *seg)
{
    struct pn_durable *d = pn_durable_mine(seg);
    if (d == NULL)
        return;
    if (d->notes != 0)
        d->note[d->notes - 1].happened = true;
    d->happened |= d->notes == 0 || !pn_note_may_be_left_out(d->note[d->notes - 1].kind);
}

/* What a topic or channel has become, which has happened. */
static void note_record(struct pn_segment *seg, const struct pn_topic *topic, uint32_t kind,
                        const void *record, size_t length)
{
    uint8_t *to = note(seg, kind, length);
    if (to != NULL)
        memcpy(to, record, length);
    has_happened(seg);
    wants(seg, topic);
}

void pn_durable_note_topic_locked(struct pn_segment *seg, const struct pn_topic *topic)
{
    pn_assert_topics_held(seg);
    uint8_t bytes[PN_TOPIC_RECORD];
    const struct pn_log_delivery gone = {.topic = (uint32_t) (topic - seg->topics.topic)};
    if (!pn_is_durable(seg, topic))
        return;
    bool used = pn_load_relaxed(&topic->state) == PN_RECORD_USED;
    if (used)
        note_record(seg, topic, PN_LOG_TOPIC, bytes, pn_topic_record(seg, topic, bytes));
    else
        note_record(seg, topic, PN_LOG_TOPIC_DELETED, &gone, sizeof gone);
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
    if (used)
        note_record(seg, topic, PN_LOG_CHANNEL, bytes, pn_channel_record(seg, ch, bytes));
    else
        note_record(seg, topic, PN_LOG_CHANNEL_DELETED, &gone, sizeof gone);
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

void pn_durable_note_ended_locked(struct pn_segment *seg, const struct pn_topic *topic, uint64_t id,
                                  uint32_t channel, bool happened)
{
    pn_assert_topics_held(seg);
    const struct pn_log_delivery what = {
        .id = id, .topic = (uint32_t) (topic - seg->topics.topic), .channel = channel};
    if (!pn_is_durable(seg, topic) || pn_topic_channel_at(seg, channel)->ephemeral != 0)
        return;
    note_one(seg, PN_LOG_FINISHED, &what, happened);
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
