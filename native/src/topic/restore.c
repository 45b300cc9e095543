/*
 * restore.c - durable topics come back: what the log says (topic_log_replay.c) is put into
 * memory, and what there is no room for on disk (overflow.c).
 *
 * 1. No other thread has seen the topic area yet (open.c), so nothing here is a commit point; after
 *    a death in it the next one begins again.  What was in flight is ready again, with its
 *    attempts.
 * 2. Messages come in the order of ids, which is what each channel has them in afterwards.  So once
 *    one of a topic has no room in memory, all that follow go behind it on disk, whatever their
 *    size, and also if they were given to channels before and the one that has no room was not: of
 *    two that a channel gets, the later one must not come from memory while the earlier one
 *    waits on disk, and which channels will get a message that is still the topic's own is not
 *    known.  It costs as much as publishing to a topic with something on disk.
 * 3. One that was given to its channels goes to disk with its deliveries (overflow.c 2).  It is
 *    not bound by max_depth while nothing is on disk: neither was it before.
 */
#include <errno.h>
#include <stdlib.h>

#include "topic/restore.h"

#include "backend/backend.h"
#include "base/moment.h"
#include "segment/arena_body.h"
#include "segment/arena_share.h"
#include "topic/area.h"
#include "topic/cursors.h"
#include "topic/message.h"
#include "topic/on_disk.h"
#include "topic/rest_given.h"
#include "topic/settings.h"
#include "topic/staging.h"
#include "topic/tables.h"

static int64_t to_mono(const struct pn_moment *now, int64_t real)
{
    int64_t mono = real - now->real + now->mono;
    return real == 0 ? 0 : mono > 0 ? mono : 1;
}

/* A topic, and the row of its database, which is shared with processes that have nothing to do with
 * topics; NULL: there is no room for it. */
static int make_topic(struct pn_restore *r, const struct pn_log_topic *what, const char *database,
                      const char *name, const pn_topic_options *o, struct pn_topic **made)
{
    struct pn_hold hold;
    struct pn_segment *seg = r->seg;
    int rc = r->alone ? pn_lock_acquire(seg, &hold, PN_LOCK_TIMEOUT_NS) : 0;
    if (rc != 0)
        return rc;
    uint32_t dboid = pn_database_of_locked(seg, database, what->database_len);
    *made = dboid == 0 ? NULL : pn_topic_make_locked(seg, dboid, name, what->name_len, o);
    if (r->alone)
        pn_lock_release(seg);
    return 0;
}

static int restore_topic(void *arg, const struct pn_log_topic *what, const char *database,
                         const char *name)
{
    struct pn_restore *r = arg;
    const pn_topic_options o = {.given = PN_TOPIC_DURABLE | PN_TOPIC_FSYNC | PN_TOPIC_OVERFLOW |
                                         PN_TOPIC_MAX_DEPTH,
                                .durable = 1,
                                .fsync = what->fsync,
                                .overflow = what->overflow,
                                .max_depth = what->max_depth};
    void *more = realloc(r->topic, (what->topic + 1) * sizeof *r->topic);
    if (more == NULL)
        return pn_fail(ENOMEM, "out of memory");
    r->topic = more;
    while (r->topics <= what->topic)
        r->topic[r->topics++] = NULL;
    struct pn_topic *t;
    int rc = make_topic(r, what, database, name, &o, &t);
    if (rc != 0)
        return rc;
    if (t == NULL)
        return pn_fail(PN_ETOPICS, "there is no room for the durable topic \"%.*s\"",
                       (int) what->name_len, name);
    t->paused = what->paused;
    r->topic[what->topic] = t;
    return 0;
}

static int restore_channel(void *arg, const struct pn_log_channel *what, const char *name)
{
    struct pn_restore *r = arg;
    struct pn_topic *t = what->topic < r->topics ? r->topic[what->topic] : NULL;
    if (t == NULL)
        return 0;
    struct pn_topic_channel *ch = pn_topic_channel_make_locked(
        r->seg, t, name, what->name_len, (uint32_t) what->max_consumers, NULL);
    if (ch == NULL)
        return pn_fail(PN_ETOPICS, "there is no room for the channel \"%.*s\"",
                       (int) what->name_len, name);
    pn_store_relaxed(&ch->paused, what->paused);
    void *more = realloc(r->channel, (r->channels + 1) * sizeof *r->channel);
    if (more == NULL)
        return pn_fail(ENOMEM, "out of memory");
    r->channel = more;
    r->channel[r->channels].topic = what->topic;
    r->channel[r->channels].channel = what->channel;
    r->channel[r->channels++].index = pn_topic_channel_index(r->seg, ch);
    return 0;
}

static int restore_limits(void *arg, const struct pn_log_topic *what,
                          const struct pn_log_limits *limits)
{
    struct pn_restore *r = arg;
    const pn_topic_options o = {.given = PN_TOPIC_DEFAULT_TTL | PN_TOPIC_MAX_MEMORY |
                                         PN_TOPIC_MAX_DISK_BYTES,
                                .default_ttl_ns = limits->default_ttl,
                                .max_memory = limits->max_memory,
                                .max_disk_bytes = limits->max_disk_bytes};
    pn_topic_settings_store_locked(r->seg, r->topic[what->topic], &o);
    return 0;
}

/* It is the last one. */
static int restore_defaults(void *arg, const struct pn_log_channel *what,
                            const struct pn_log_defaults *d)
{
    struct pn_restore *r = arg;
    const uint32_t len = d->dead_letter_len <= PN_TOPIC_NAME_MAX ? d->dead_letter_len : 0;
    const pn_channel_options o = {.given = d->given,
                                  .max_attempts = (int64_t) (d->max_attempts & UINT16_MAX),
                                  .msg_timeout_ns = d->msg_timeout,
                                  .dead_letter = len == 0 ? NULL : d->dead_letter,
                                  .dead_letter_len = len};
    (void) what;
    if (r->channels != 0)
        pn_channel_settings_store_locked(
            r->seg, pn_topic_channel_at(r->seg, r->channel[r->channels - 1].index), &o);
    return 0;
}

static uint32_t channel_index(const struct pn_restore *r, const struct pn_log_delivery *d)
{
    for (uint32_t i = 0; i < r->channels; i++)
        if (r->channel[i].topic == d->topic && r->channel[i].channel == d->channel)
            return r->channel[i].index;
    return 0;
}

/* Its deliveries stand for places in their channels: emptying one of these empties it of them.  Of
 * the message itself `due` is the first of theirs. */
static int give_on_disk(const struct pn_restore *r, struct pn_topic *t, struct pn_new_message *m,
                        const struct pn_moment *then, const struct pn_log_message *what,
                        const struct pn_log_delivery *from)
{
    struct pn_spilled_deliveries given = {.n = 0};
    struct pn_spilled_delivery *d = calloc(what->deliveries + 1, sizeof *d);
    int64_t first = INT64_MAX;
    if (d == NULL)
        return pn_fail(ENOMEM, "out of memory");
    for (uint32_t i = 0; i < what->deliveries; i++) {
        uint32_t index = channel_index(r, &from[i]);
        struct pn_topic_channel *ch = pn_topic_channel_at(r->seg, index);
        int64_t due = from[i].due > r->now.real ? to_mono(&r->now, from[i].due) : 0;
        if (index == 0)
            continue;
        d[given.n++] = (struct pn_spilled_delivery) {.channel = index,
                                                     .generation = ch->generation,
                                                     .order = ch->next_order++,
                                                     .due = due,
                                                     .attempts = from[i].attempts};
        first = due < first ? due : first;
    }
    given.bytes = d;
    m->delay_ns = first > then->mono && given.n != 0 ? first - then->mono : 0;
    int rc = given.n == 0 ? 0 : pn_rest_restore_locked(r->seg, t, m, then, given.n, d);
    free(d);
    return rc;
}

static int check_size(const struct pn_segment *seg, uint32_t body_len, uint32_t headers_len)
{
    struct pn_arena_need need = {.deliveries = 1};
    if (body_len > seg->topics.max_body)
        return pn_fail(PN_EBODYLONG,
                       "a durable topic has a message of %u bytes, max_body of the segment is %u\n"
                       "Make the segment with a larger one.",
                       body_len, seg->topics.max_body);
    pn_arena_need_body(&need, sizeof(struct pn_message), (uint64_t) body_len + headers_len, 1);
    if (pn_arena_ever(&seg->topics.arena, &need))
        return 0;
    return pn_fail(PN_EBODYLONG,
                   "a durable topic has a message of %u bytes, too many for topic_memory\n"
                   "Make the segment with a larger one.",
                   body_len);
}

static int restore_message(void *arg, const struct pn_log_message *what,
                           const struct pn_log_delivery *deliveries, const uint8_t *headers,
                           const uint8_t *body, uint32_t body_len)
{
    struct pn_restore *r = arg;
    struct pn_segment *seg = r->seg;
    struct pn_topic *t = what->topic < r->topics ? r->topic[what->topic] : NULL;
    if (what->id > r->last_id)
        r->last_id = what->id;
    if (t == NULL || body_len == 0)
        return 0;
    int rc = check_size(seg, body_len, what->headers_len);
    if (rc != 0)
        return rc;
    if (what->expires != 0 && what->expires <= r->now.real) {
        t->expired++;
        return 0;
    }
    const struct pn_moment then = {.mono = r->now.mono - (r->now.real - what->published),
                                   .real = what->published};
    struct pn_new_message m = {
        .body = body,
        .headers = headers,
        .body_len = body_len,
        .headers_len = what->headers_len,
        .id = what->id,
        .delay_ns = what->due > r->now.real ? to_mono(&r->now, what->due) - then.mono : 0,
        .ttl_ns = what->expires == 0 ? 0 : to_mono(&r->now, what->expires) - then.mono};
    if (what->fanned_out == 0 && pn_topic_spills_locked(seg, t, 1))
        return pn_topic_spill_again_locked(seg, t, &m, &then);
    if (what->fanned_out != 0 && pn_rest_may(seg, t))
        return give_on_disk(r, t, &m, &then, what, deliveries);
    /* What cannot go to disk was in memory before, when shares may have been larger. */
    uint32_t ref = pn_message_restore_begin_locked(seg, t, &m, &then, what->fanned_out == 0,
                                                   pn_topic_may_spill(seg, t));
    bool whole = ref != 0;
    for (uint32_t i = 0; whole && i < what->deliveries; i++) {
        uint32_t index = channel_index(r, &deliveries[i]);
        int64_t due = deliveries[i].due > r->now.real ? to_mono(&r->now, deliveries[i].due) : 0;
        if (index != 0)
            whole =
                pn_message_restore_delivery_locked(seg, ref, index, due, deliveries[i].attempts);
    }
    if (whole) {
        pn_store_release(&pn_message_at(seg, ref)->state, PN_MSG_LIVE);
        pn_message_link_locked(seg, ref);
        return 0;
    }
    if (ref != 0)
        pn_message_unstage_locked(seg, ref);
    if (!pn_topic_may_spill(seg, t))
        return pn_fail(PN_ETOPICFULL, "durable topics have more messages than topic_memory\n"
                                      "Make the segment with a larger one.");
    return what->fanned_out != 0 ? give_on_disk(r, t, &m, &then, what, deliveries)
                                 : pn_topic_spill_again_locked(seg, t, &m, &then);
}

const struct pn_topiclog_replay pn_restore = {.topic = restore_topic,
                                              .channel = restore_channel,
                                              .limits = restore_limits,
                                              .defaults = restore_defaults,
                                              .message = restore_message};
