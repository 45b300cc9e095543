/*
 * stats.c - statistics of topics, channels and consumers; peeking.
 *
 * 1. Depths are derived counters, exact under the lock.  Counters of events (message_count and the
 *    like) stand in the records; one that was about to be raised by a process that was killed may
 *    be one too low.
 * 2. A look through an engine has no backend slot, so no other process watches for its death: if it
 *    notified a consumer and died before the signal, only that consumer's slow timer would make up
 *    for it.  So such a look changes nothing (look_*): what is due by now but stands where it was,
 *    since no operation on the channel has come since (delivery.c 4), is counted where it would go
 *    to.  A look through a connection does what is due first, like every operation.
 * 3. A look counts PN_LOOK_STEPS deliveries one by one at the most, whatever it is about; so no
 *    process waits longer for the lock.
 */
#include "topic/stats.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "backend/backend.h"
#include "segment/arena_body.h"
#include "segment/lock.h"
#include "topic/area.h"
#include "topic/attach.h"
#include "topic/cursors.h"
#include "topic/durable.h"
#include "topic/e2e.h"
#include "topic/end.h"
#include "topic/journal.h"
#include "topic/later.h"
#include "topic/message.h"
#include "topic/on_disk.h"
#include "topic/open.h"
#include "topic/queues.h"
#include "topic/returns.h"
#include "topic/settings.h"
#include "topic/tables.h"
#include "topic/timedset.h"
#include "topic/waiting.h"

#define PN_LOOK_STEPS 4096U

/* ---- the lock -------------------------------------------------------------------------------- */

static int enter_to_look(struct pn_conn *conn, struct pn_hold *hold)
{
    int rc = pn_lock_topics_wait(conn->seg, hold, PN_LOCK_TIMEOUT_NS, conn);
    if (rc == 0 && pn_topics_ready(conn->seg))
        pn_topics_begin_locked(conn->seg);
    return rc;
}

static int leave_from_look(struct pn_conn *conn, int rc)
{
    if (pn_topics_ready(conn->seg))
        pn_topics_end_locked(conn->seg);
    pn_lock_release(conn->seg);
    return rc;
}

/* What a dead consumer had in flight went back in part: the rest goes at the release, and then a
 * look is to be made.  True: the lock was released. */
static bool leave_for_rest(struct pn_conn *conn)
{
    if ((pn_hold_of(conn->seg)->at_end & PN_REAP) == 0)
        return false;
    leave_from_look(conn, 0);
    return true;
}

int pn_topic_channels_e2e(struct pn_conn *conn, pn_ref ref, const double *q, size_t n,
                          double *seconds)
{
    struct pn_hold hold;
    int rc = pn_e2e_check(q, n);
    if (rc == 0)
        rc = enter_to_look(conn, &hold);
    if (rc != 0)
        return rc;
    const struct pn_topic_channel *ch = pn_topic_channel_resolve_locked(conn, ref);
    return leave_from_look(conn, ch == NULL
                                     ? -PN_ETOPICDELETED
                                     : pn_e2e_quantiles_locked(conn->seg, ch, q, n, seconds));
}

int pn_look_e2e(struct pn_segment *seg, pn_ref ref, const double *q, size_t n, double *seconds)
{
    struct pn_hold hold;
    int rc = pn_e2e_check(q, n);
    if (rc == 0)
        rc = pn_lock_topics_wait(seg, &hold, PN_LOCK_TIMEOUT_NS, seg);
    if (rc != 0)
        return rc;
    const struct pn_topic_channel *ch = pn_topic_channel_named_locked(seg, ref);
    rc = ch == NULL ? -PN_ETOPICDELETED : pn_e2e_quantiles_locked(seg, ch, q, n, seconds);
    pn_lock_release(seg);
    return rc;
}

/* ---- what has fallen due --------------------------------------------------------------------- */

static int64_t real_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

struct look {
    int64_t now;
    uint32_t steps; /* how many more deliveries it may count one by one (3) */
};

static struct look begin_look(void)
{
    return (struct look) {.now = pn_now_ns(), .steps = PN_LOOK_STEPS};
}

/* Through a connection the deferred of a backlog are all counted, as ever. */
static struct look exact_look(const struct pn_segment *seg)
{
    /* there are no more deliveries, unless a list leads round */
    return (struct look) {.now = pn_now_ns(), .steps = (uint32_t) (seg->topics.memory / 32)};
}

static bool is_expired(const struct pn_message *m, int64_t now)
{
    return m->expires != 0 && m->expires <= now;
}

/* It is due, and counts where it would go to.  What is void is on its way out, and not due. */
static void count_due(const struct pn_segment *seg, const struct pn_topic_channel *ch, uint32_t ref,
                      const struct look *look, pn_topic_channel_stats *out, int64_t *oldest)
{
    const struct pn_delivery *d = pn_delivery_at(seg, ref);
    const struct pn_message *m = pn_message_at(seg, d->message);
    enum pn_delivery_kind kind = pn_state_kind(pn_load_relaxed(&d->state));
    uint64_t *from = kind == PN_KIND_DEFERRED    ? &out->deferred
                     : kind == PN_KIND_IN_FLIGHT ? &out->in_flight
                                                 : &out->depth;
    bool expires = kind != PN_KIND_IN_FLIGHT && is_expired(m, look->now);
    if (pn_is_void(ch, d) || *from == 0 || (kind == PN_KIND_READY && !expires))
        return;
    --*from;
    if (expires) {
        out->expired++;
        return;
    }
    out->depth++;
    if (m->published_ns < *oldest)
        *oldest = m->published_ns;
}

/* What has timed out; what has been delivered often enough will not be ready again. */
static void count_timed_out(const struct pn_segment *seg, const struct pn_topic_channel *ch,
                            struct look *look, pn_topic_channel_stats *out, int64_t *oldest)
{
    if (ch->next_deadline > look->now)
        return;
    PN_EACH_CONSUMER (seg, ch, i) {
        const struct pn_consumer_slot *c = pn_consumer_at(seg, i - 1);
        const uint32_t most = pn_giving_up_of(ch, c).max_attempts;
        for (uint32_t at = c->first; at != 0 && look->steps != 0; look->steps--) {
            const struct pn_delivery *d = pn_delivery_at(seg, at);
            uint32_t attempts = pn_state_attempts(pn_load_relaxed(&d->state));
            if (d->due > look->now)
                break;
            if (most == 0 || attempts < most)
                count_due(seg, ch, at, look, out, oldest);
            at = d->next;
        }
    }
}

/* When the first in line was published: INT64_MAX, nothing is ready. */
static int64_t first_published(const struct pn_segment *seg, const struct pn_topic_channel *ch,
                               struct look *look)
{
    for (uint32_t at = ch->first; at != 0 && look->steps != 0; look->steps--) {
        const struct pn_delivery *d = pn_delivery_at(seg, at);
        const struct pn_message *m = pn_message_at(seg, d->message);
        if (!pn_is_void(ch, d) && !is_expired(m, look->now))
            return m->published_ns;
        at = d->next;
    }
    return INT64_MAX;
}

static int64_t age_of(int64_t published)
{
    int64_t age = real_ns() - published; /* the clock may have been set back */
    return published == INT64_MAX ? -1 : age < 0 ? 0 : age;
}

/* What is due by now stands where it was: after the rest of `out` was filled in. */
static void count_all_due(const struct pn_segment *seg, const struct pn_topic_channel *ch,
                          struct look *look, pn_topic_channel_stats *out)
{
    int64_t first = first_published(seg, ch, look), due = INT64_MAX;
    struct pn_timed entry;
    uint32_t at = 0;
    for (; look->steps != 0 &&
           pn_timedset_next_due(&seg->topics.arena, &ch->timed, look->now, &at, &entry);
         look->steps--)
        count_due(seg, ch, entry.ref, look, out, &due);
    count_timed_out(seg, ch, look, out, &due);
    out->oldest_ready_ns = age_of(first == INT64_MAX ? due : first); /* due: goes to the tail */
}

/* ---- rows ------------------------------------------------------------------------------------ */

static void copy_name(char to[65], const char *name, uint32_t len)
{
    memset(to, 0, 65);
    memcpy(to, name, len <= 64 ? len : 64);
}

/* Of records on disk that were lost it is not known how many bytes were whose (overflow.c). */
static uint64_t published_bytes(const struct pn_topic *t)
{
    int64_t bytes = (int64_t) (t->message_bytes + pn_topic_disk_bytes(t));
    return bytes > 0 ? (uint64_t) bytes : 0;
}

static void fill_topic(const struct pn_segment *seg, struct pn_topic *t, struct look *look,
                       pn_topic_stats *out)
{
    uint32_t index = (uint32_t) (t - seg->topics.topic);
    const struct pn_topic_channel *own = pn_topic_channel_at(seg, index);
    *out = (pn_topic_stats) {.ref = pn_ref_make(index, t->generation),
                             .paused = t->paused,
                             .ephemeral = t->ephemeral,
                             .durable = t->durable,
                             .fsync = t->fsync,
                             .overflow = t->overflow,
                             .channels = t->nchannels,
                             .max_depth = t->max_depth,
                             .default_ttl_ns = pn_topic_limits(t)->default_ttl,
                             .max_memory = pn_topic_limits(t)->max_memory,
                             .memory = pn_topic_memory(seg, t),
                             .max_disk_bytes = pn_topic_limits(t)->max_disk_bytes,
                             .disk_bytes = pn_topic_disk_used(t),
                             .depth = own->ready + pn_topic_waits_on_disk(t),
                             .unfinished = t->messages,
                             .message_count = t->message_count + pn_topic_on_disk(t) +
                                              pn_diskqueue_now(&t->disk)->corrupt,
                             .message_bytes = published_bytes(t),
                             .on_disk = pn_topic_waits_on_disk(t) + pn_topic_waits_later(t) +
                                        pn_rest_records(t) - t->rest_buried,
                             .corrupt =
                                 (uint32_t) (pn_diskqueue_now(&t->disk)->corrupt + t->rest_lost +
                                             pn_diskqueue_now(&t->later)->corrupt),
                             .dropped = t->dropped,
                             .expired = t->expired + own->expired};
    const struct pn_topiclog *log = &seg->topics.ctl->log;
    if (t->durable != 0)
        out->corrupt += (uint32_t) pn_diskqueue_now(&log->queue)->corrupt;
    int error = pn_load_relaxed(&t->disk.error);
    if (error == 0)
        error = pn_load_relaxed(&t->rest.error);
    if (error == 0)
        error = pn_load_relaxed(&t->later.error);
    if (error == 0 && t->durable != 0)
        error = pn_load_relaxed(&log->queue.error);
    if (error == 0 && t->durable != 0)
        error = (int) pn_load_relaxed(&log->failed);
    if (error != 0)
        snprintf(out->error, sizeof out->error, "%s", pn_durable_reason(error));
    copy_name(out->name, t->name, t->name_len);
    snprintf(out->database, sizeof out->database, "%s", pn_database_name_locked(seg, t->dboid));
    for (uint32_t at = own->first; at != 0 && look->steps != 0; look->steps--) {
        out->deferred += pn_delivery_at(seg, at)->due > look->now;
        at = pn_delivery_at(seg, at)->next;
    }
}

/* Of one database, or of all (0). */
static size_t topic_rows(struct pn_segment *seg, uint32_t dboid, struct look look,
                         pn_topic_stats *rows, size_t cap)
{
    size_t n = 0;
    for (uint32_t i = 0; i < seg->topics.ctl->topic_end && i < seg->topics.max_topics; i++) {
        struct pn_topic *t = &seg->topics.topic[i];
        if (pn_load_relaxed(&t->state) != PN_RECORD_USED || (dboid != 0 && t->dboid != dboid))
            continue;
        if (n < cap)
            fill_topic(seg, t, &look, &rows[n]);
        n++;
    }
    return n;
}

/* 1: there are topics, by now; 0: none were ever made. */
static int wake(struct pn_segment *seg)
{
    int rc = pn_topics_ready(seg) || !pn_durable_exists(seg) ? 0 : pn_topics_wake(seg);
    return rc != 0 ? rc : pn_topics_ready(seg);
}

int pn_topic_rows(struct pn_conn *conn, pn_topic_stats *rows, size_t cap)
{
    struct pn_hold hold;
    struct pn_segment *seg = conn->seg;
    int rc = wake(seg);
    if (rc != 1)
        return rc;
    rc = enter_to_look(conn, &hold);
    if (rc != 0)
        return rc;
    return leave_from_look(conn, (int) topic_rows(seg, conn->dboid, exact_look(seg), rows, cap));
}

int pn_look_topics(struct pn_segment *seg, pn_topic_stats *rows, size_t cap)
{
    struct pn_hold hold;
    int rc = wake(seg);
    if (rc != 1)
        return rc;
    rc = pn_lock_topics_wait(seg, &hold, PN_LOCK_TIMEOUT_NS, seg);
    if (rc != 0)
        return rc;
    rc = (int) topic_rows(seg, 0, begin_look(), rows, cap);
    pn_lock_release(seg);
    return rc;
}

/* What the dead had in flight is counted where it goes to. */
static struct pn_topic *topic_without_dead_locked(struct pn_conn *conn, pn_ref ref)
{
    pn_assert_held(conn->seg);
    struct pn_topic *t = pn_topic_resolve_locked(conn, ref);
    uint32_t next = t == NULL ? 0 : t->first_channel, steps = 0, reaped = 0;
    const struct pn_topics *all = &conn->seg->topics;
    while (next != 0 && pn_list_goes_on(conn->seg, steps++, all->max_channels, "channels")) {
        struct pn_topic_channel *ch = pn_topic_channel_at(conn->seg, next - 1);
        next = ch->sibling;
        if (pn_consumers_reap_dead_locked(conn->seg, ch) && reaped++ < all->max_consumers) {
            next = t->first_channel; /* a channel may have gone with them */
            steps = 0;
        }
    }
    return pn_topic_resolve_locked(conn, ref);
}

int pn_topic_row(struct pn_conn *conn, pn_ref ref, pn_topic_stats *out)
{
    struct pn_hold hold;
    struct pn_topic *t;
    do {
        int rc = enter_to_look(conn, &hold);
        if (rc != 0)
            return rc;
        t = topic_without_dead_locked(conn, ref);
    } while (leave_for_rest(conn));
    struct look look = exact_look(conn->seg);
    if (t != NULL)
        fill_topic(conn->seg, t, &look, out);
    return leave_from_look(conn, t == NULL ? -PN_ETOPICDELETED : 0);
}

static void fill_queue(const struct pn_segment *seg, const struct pn_topic_channel *ch,
                       pn_topic_channel_stats *out)
{
    *out = (pn_topic_channel_stats) {
        .ref = pn_ref_make(pn_topic_channel_index(seg, ch), ch->generation),
        .topic = pn_ref_make(ch->topic, ch->topic_generation),
        .paused = pn_load_relaxed(&ch->paused),
        .ephemeral = ch->ephemeral,
        .consumers = ch->consumers,
        .max_consumers = ch->max_consumers,
        .depth = ch->ready + pn_rest_depth(seg, pn_topic_of(seg, ch), ch),
        .in_flight = ch->in_flight,
        .deferred = ch->deferred + pn_later_depth(pn_topic_of(seg, ch), ch),
        .message_count = ch->message_count,
        .requeued = ch->requeued,
        .timed_out = ch->timed_out,
        .finished = ch->finished,
        .dead_lettered = ch->dead_lettered,
        .dropped = ch->dropped,
        .expired = ch->expired};
    copy_name(out->name, ch->name, ch->name_len);
    const struct pn_channel_defaults *d = pn_channel_defaults(ch);
    out->max_attempts = (d->given & PN_CHANNEL_MAX_ATTEMPTS) != 0 ? (int64_t) d->max_attempts : -1;
    out->msg_timeout_ns = d->msg_timeout;
    copy_name(out->dead_letter, d->dead_letter, d->dead_letter_len);
}

/* What is due by now happens. */
static void tick_and_fill(struct pn_segment *seg, struct pn_topic_channel *ch, struct look *look,
                          pn_topic_channel_stats *out)
{
    pn_topic_channel_tick_locked(seg, ch, look->now);
    pn_topic_channel_settle_locked(seg, ch);
    fill_queue(seg, ch, out);
    out->oldest_ready_ns = age_of(first_published(seg, ch, look));
}

int pn_topic_channels_rows(struct pn_conn *conn, pn_ref ref, pn_topic_channel_stats *rows,
                           size_t cap)
{
    struct pn_hold hold;
    struct pn_segment *seg = conn->seg;
    size_t n = 0;
    int rc = enter_to_look(conn, &hold);
    if (rc != 0)
        return rc;
    struct look look = begin_look();
    const struct pn_topic *t = topic_without_dead_locked(conn, ref);
    if (t == NULL)
        return leave_from_look(conn, -PN_ETOPICDELETED);
    PN_EACH_CHANNEL (seg, t, i) {
        if (n < cap)
            tick_and_fill(seg, pn_topic_channel_at(seg, i - 1), &look, &rows[n]);
        n++;
    }
    return leave_from_look(conn, (int) n);
}

int pn_look_channels(struct pn_segment *seg, pn_ref ref, pn_topic_channel_stats *rows, size_t cap)
{
    struct pn_hold hold;
    size_t n = 0;
    int rc = pn_lock_topics_wait(seg, &hold, PN_LOCK_TIMEOUT_NS, seg);
    if (rc != 0)
        return rc;
    struct look look = begin_look();
    const struct pn_topic *t = pn_topic_named_locked(seg, ref);
    if (t == NULL) {
        pn_lock_release(seg);
        return -PN_ETOPICDELETED;
    }
    PN_EACH_CHANNEL (seg, t, i) {
        const struct pn_topic_channel *ch = pn_topic_channel_at(seg, i - 1);
        if (n < cap) {
            fill_queue(seg, ch, &rows[n]);
            count_all_due(seg, ch, &look, &rows[n]);
        }
        n++;
    }
    pn_lock_release(seg);
    return (int) n;
}

int pn_topic_channels_row(struct pn_conn *conn, pn_ref ref, pn_topic_channel_stats *out)
{
    struct pn_hold hold;
    struct pn_topic_channel *ch;
    do {
        int rc = enter_to_look(conn, &hold);
        if (rc != 0)
            return rc;
        ch = pn_topic_channel_resolve_locked(conn, ref);
        if (ch != NULL && pn_consumers_reap_dead_locked(conn->seg, ch))
            ch = pn_topic_channel_resolve_locked(conn, ref); /* an ephemeral one went with them */
    } while (leave_for_rest(conn));
    struct look look = begin_look();
    if (ch != NULL)
        tick_and_fill(conn->seg, ch, &look, out);
    return leave_from_look(conn, ch == NULL ? -PN_ETOPICDELETED : 0);
}

static void fill_consumer(const struct pn_segment *seg, uint32_t ci, pn_consumer_stats *out)
{
    const struct pn_consumer_slot *c = pn_consumer_at(seg, ci);
    *out = (pn_consumer_stats) {.ref = pn_ref_make(ci, c->generation),
                                .pid = c->pid,
                                .backend_id = (int32_t) c->slot,
                                .in_flight = c->in_flight,
                                .max_in_flight = c->max_in_flight,
                                .level = c->level,
                                .sample_rate = c->sample_rate,
                                .delivered = c->delivered,
                                .finished = c->finished,
                                .requeued = c->requeued,
                                .timed_out = c->timed_out};
}

static size_t consumer_rows(const struct pn_segment *seg, const struct pn_topic_channel *ch,
                            pn_consumer_stats *rows, size_t cap)
{
    size_t n = 0;
    PN_EACH_CONSUMER (seg, ch, i) {
        if (n < cap)
            fill_consumer(seg, i - 1, &rows[n]);
        n++;
    }
    return n;
}

int pn_consumer_rows(struct pn_conn *conn, pn_ref ref, pn_consumer_stats *rows, size_t cap)
{
    struct pn_hold hold;
    int rc = enter_to_look(conn, &hold);
    if (rc != 0)
        return rc;
    const struct pn_topic_channel *ch = pn_topic_channel_resolve_locked(conn, ref);
    return leave_from_look(conn, ch == NULL ? -PN_ETOPICDELETED
                                            : (int) consumer_rows(conn->seg, ch, rows, cap));
}

int pn_look_consumers(struct pn_segment *seg, pn_ref ref, pn_consumer_stats *rows, size_t cap)
{
    struct pn_hold hold;
    int rc = pn_lock_topics_wait(seg, &hold, PN_LOCK_TIMEOUT_NS, seg);
    if (rc != 0)
        return rc;
    const struct pn_topic_channel *ch = pn_topic_channel_named_locked(seg, ref);
    rc = ch == NULL ? -PN_ETOPICDELETED : (int) consumer_rows(seg, ch, rows, cap);
    pn_lock_release(seg);
    return rc;
}

int pn_consumer_row(struct pn_conn *conn, pn_ref ref, pn_consumer_stats *out)
{
    struct pn_hold hold;
    uint32_t ci = (uint32_t) ref - 1;
    int rc = enter_to_look(conn, &hold);
    if (rc != 0)
        return rc;
    const struct pn_consumer_slot *c = pn_consumer_at(conn->seg, ci);
    bool there = pn_load_relaxed(&c->state) == PN_RECORD_USED && c->generation == ref >> 32;
    if (there)
        fill_consumer(conn->seg, ci, out);
    return leave_from_look(conn, there ? 0 : pn_fail(PN_ETOPICDELETED, "the consumer is no more"));
}

/* ---- peeking --------------------------------------------------------------------------------- */

struct peek {
    struct pn_segment *seg;
    pn_peeked *out;
    size_t cap, n, body_max;
    uint8_t *bodies;
    int64_t now;
};

static void peek_one(struct peek *p, uint32_t ref)
{
    const struct pn_delivery *d = pn_delivery_at(p->seg, ref);
    const struct pn_message *m = pn_message_at(p->seg, d->message);
    uint64_t word = pn_load_relaxed(&d->state);
    enum pn_delivery_kind kind = pn_state_kind(word);
    if (p->n == p->cap || pn_is_void(pn_topic_channel_at(p->seg, d->channel), d))
        return;
    const struct pn_lengths length = pn_message_lengths(m);
    uint64_t len = length.body < p->body_max ? length.body : p->body_max;
    if (len != 0 && !pn_arena_read(&p->seg->topics.arena, d->message, sizeof *m, length.headers,
                                   p->bodies + p->n * p->body_max, len))
        return;
    p->out[p->n++] = (pn_peeked) {.id = m->id,
                                  .state = kind == PN_KIND_READY      ? PN_MESSAGE_READY
                                           : kind == PN_KIND_DEFERRED ? PN_MESSAGE_DEFERRED
                                                                      : PN_MESSAGE_IN_FLIGHT,
                                  .attempts = pn_state_attempts(word),
                                  .due_in_ns = kind == PN_KIND_READY ? 0 : d->due - p->now,
                                  .published_ns = m->published_ns,
                                  .body_len = length.body};
}

int pn_topic_channels_peek(struct pn_conn *conn, pn_ref ref, pn_peeked *out, size_t cap,
                           uint8_t *bodies, size_t body_max)
{
    struct pn_hold hold;
    struct pn_segment *seg = conn->seg;
    struct peek p = {.seg = seg, .out = out, .cap = cap, .bodies = bodies, .body_max = body_max};
    struct pn_timed entry;
    uint32_t steps = 0;
    int rc = enter_to_look(conn, &hold);
    if (rc != 0)
        return rc;
    struct pn_topic_channel *ch = pn_topic_channel_resolve_locked(conn, ref);
    if (ch == NULL)
        return leave_from_look(conn, -PN_ETOPICDELETED);
    p.now = pn_now_ns();
    pn_topic_channel_tick_locked(seg, ch, p.now);
    pn_topic_channel_settle_locked(seg, ch);
    for (uint32_t at = ch->first; at != 0 && p.n < cap && pn_cells_go_on(seg, &steps);
         at = pn_delivery_at(seg, at)->next)
        peek_one(&p, at);
    for (uint32_t i = 0; p.n < cap && pn_timedset_entry(&seg->topics.arena, &ch->timed, i, &entry);
         i++)
        if (pn_state_kind(pn_load_relaxed(&pn_delivery_at(seg, entry.ref)->state)) ==
            PN_KIND_DEFERRED)
            peek_one(&p, entry.ref);
    PN_EACH_CONSUMER (seg, ch, i)
        for (uint32_t at = pn_consumer_at(seg, i - 1)->first;
             at != 0 && p.n < cap && pn_cells_go_on(seg, &steps);
             at = pn_delivery_at(seg, at)->next)
            peek_one(&p, at);
    return leave_from_look(conn, (int) p.n);
}
