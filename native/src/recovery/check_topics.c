/*
 * check_topics.c - do the topics hold together?
 *
 * Counts what exists by looking at every cell of the arena, walks every list, and compares both
 * with what the tables say.  It believes nothing, so every walk is bounded.
 */
#include "recovery/check_topics.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "segment/arena_body.h"
#include "segment/lock.h"
#include "topic/area.h"
#include "topic/message.h"
#include "topic/queues.h"
#include "topic/timedset.h"
#include "topic/tombstones.h"
#include "topic/waiting.h"

/* What was counted of a channel. */
struct seen {
    uint32_t ready, deferred, in_flight, held, staged, timed_reserved;
    uint64_t bytes;
};

struct check {
    struct pn_segment *seg;
    void (*problem)(void *arg, const char *text);
    void *arg;
    struct seen *seen; /* of each channel */
    struct pn_arena_need used;
    uint32_t limit; /* of a walk */
};

static void report(struct check *k, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void report(struct check *k, const char *format, ...)
{
    char text[200];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    k->problem(k->arg, text);
}

static enum pn_delivery_kind kind_of(const struct check *k, uint32_t ref)
{
    const struct pn_delivery *d = pn_delivery_at(k->seg, ref);
    enum pn_delivery_kind kind = pn_state_kind(pn_load_relaxed(&d->state));
    return d->channel < k->seg->topics.max_topics && kind != PN_KIND_FREE ? PN_KIND_READY : kind;
}

/* ---- cells ----------------------------------------------------------------------------------- */

/* I20 */
static void check_delivery(struct check *k, uint32_t ref)
{
    const struct pn_segment *seg = k->seg;
    const struct pn_delivery *d = pn_delivery_at(seg, ref);
    const uint32_t channel = *(volatile const uint32_t *) &d->channel; /* once */
    enum pn_delivery_kind kind = kind_of(k, ref);
    k->used.deliveries++;
    if (kind == PN_KIND_FREE || kind > PN_KIND_HELD || channel >= seg->topics.max_channels ||
        !pn_arena_taken(&seg->topics.arena, d->message, PN_PAGE_BODY)) {
        report(k, "I20: delivery %u has the kind %d, channel %u, message %u", ref, (int) kind,
               channel, d->message);
        return;
    }
    const struct pn_topic_channel *ch = pn_topic_channel_at(seg, channel);
    const struct pn_message *m = pn_message_at(seg, d->message);
    uint16_t life = pn_load_relaxed(&m->state);
    struct seen *seen = &k->seen[channel];
    seen->timed_reserved += d->timed_reserved;
    seen->bytes += pn_message_cost(m);
    if (pn_arena_owner_of(&seg->topics.arena, ref) != m->topic)
        report(k, "I26: delivery %u does not lie in a page of topic %u", ref, m->topic);
    if (d->order >= ch->next_order)
        report(k, "I20: delivery %u has an order beyond its channel's next", ref);
    if (pn_load_relaxed(&ch->state) == PN_RECORD_FREE)
        report(k, "I20: delivery %u is in channel %u, which is free", ref, channel);
    seen->staged += life == PN_MSG_PREPARED;
    if (life == PN_MSG_PREPARED)
        return; /* in no list yet */
    if (life != PN_MSG_LIVE)
        report(k, "I20: delivery %u is of a message in state %u", ref, life);
    seen->ready += kind == PN_KIND_READY;
    seen->deferred += kind == PN_KIND_DEFERRED;
    seen->in_flight += kind == PN_KIND_IN_FLIGHT || kind == PN_KIND_HELD;
    seen->held += kind == PN_KIND_HELD;
    bool timed = (kind == PN_KIND_READY && m->expires != 0) || kind == PN_KIND_DEFERRED;
    if (timed != (d->timed != 0))
        report(k, "I22: delivery %u, kind %d, stands in the timed set at %u", ref, (int) kind,
               d->timed);
}

/* I21 and the second half of I22. */
static void check_message(struct check *k, uint32_t ref)
{
    const struct pn_segment *seg = k->seg;
    const struct pn_message *m = pn_message_at(seg, ref);
    uint32_t refs = 0, firm = 0, own = 0;
    if (pn_arena_owner_of(&seg->topics.arena, ref) != m->topic)
        report(k, "I26: message %u does not lie in a page of topic %u", ref, m->topic);
    for (uint32_t at = m->first; at != 0 && refs <= k->limit; refs++) {
        const struct pn_delivery *d = pn_delivery_at(seg, at);
        if (!pn_arena_taken(&seg->topics.arena, at, PN_PAGE_DELIVERY) || d->message != ref) {
            report(k, "I21: message %016llx has delivery %u, which is not its own",
                   (unsigned long long) m->id, at);
            return;
        }
        firm += pn_topic_channel_at(seg, d->channel)->ephemeral == 0;
        own += d->channel < seg->topics.max_topics;
        at = d->of_message;
    }
    if (refs == 0 || refs != m->refs || firm != m->firm || own > 1 || (own == 1 && refs > 1))
        report(k, "I21: message %016llx has %u deliveries, %u firm, %u in the backlog; says %u, %u",
               (unsigned long long) m->id, refs, firm, own, m->refs, m->firm);
    pn_arena_count_body(&seg->topics.arena, ref, sizeof *m, (uint64_t) m->body_len + m->headers_len,
                        &k->used);
}

static void check_cells(struct check *k)
{
    const struct pn_arena *mem = &k->seg->topics.arena;
    uint32_t ref = 0;
    while ((ref = pn_arena_next_cell(mem, PN_PAGE_DELIVERY, ref)) != 0)
        if (pn_arena_taken(mem, ref, PN_PAGE_DELIVERY))
            check_delivery(k, ref);
    while ((ref = pn_arena_next_cell(mem, PN_PAGE_BODY, ref)) != 0) {
        uint16_t life = pn_load_relaxed(&pn_message_at(k->seg, ref)->state);
        if (pn_arena_taken(mem, ref, PN_PAGE_BODY) && life == PN_MSG_STAGED)
            report(k, "message %u is staged while the lock is free", ref);
        else if (pn_arena_taken(mem, ref, PN_PAGE_BODY) &&
                 (life == PN_MSG_LIVE || life == PN_MSG_PREPARED))
            check_message(k, ref);
    }
}

/* ---- lists (I22, I23) ------------------------------------------------------------------------ */

static void check_ready(struct check *k, uint32_t index)
{
    const struct pn_topic_channel *ch = pn_topic_channel_at(k->seg, index);
    uint32_t n = 0, last = 0;
    uint64_t order = 0;
    for (uint32_t at = ch->first; at != 0 && n <= k->limit; n++) {
        const struct pn_delivery *d = pn_delivery_at(k->seg, at);
        if (d->channel != index || kind_of(k, at) != PN_KIND_READY || d->prev != last ||
            d->order < order) {
            report(k, "I22: the ready list of channel %u is wrong at delivery %u", index, at);
            return;
        }
        order = d->order;
        last = at;
        at = d->next;
    }
    const struct seen *seen = &k->seen[index];
    if (ch->last != last || n != ch->ready)
        report(k, "I22: the ready list of channel %u has %u, says %u", index, n, ch->ready);
    if (seen->ready != ch->ready || seen->deferred != ch->deferred ||
        seen->in_flight != ch->in_flight || seen->held != ch->held)
        report(k,
               "I23: channel %u has %u ready, %u deferred, %u in flight, %u held; "
               "says %u, %u, %u, %u",
               index, seen->ready, seen->deferred, seen->in_flight, seen->held, ch->ready,
               ch->deferred, ch->in_flight, ch->held);
    if (seen->staged != ch->staged)
        report(k, "I23: channel %u has %u that are prepared, says %u", index, seen->staged,
               ch->staged);
    if (seen->bytes != ch->bytes)
        report(k, "I23: channel %u has %llu bytes in memory, says %llu", index,
               (unsigned long long) seen->bytes, (unsigned long long) ch->bytes);
    if (seen->timed_reserved != ch->timed.reserved)
        report(k, "I23: deliveries of channel %u have %u reserved entries, its timed set %u", index,
               seen->timed_reserved, ch->timed.reserved);
}

static uint32_t check_flights(struct check *k, uint32_t ci)
{
    const struct pn_consumer_slot *c = pn_consumer_at(k->seg, ci);
    uint32_t n = 0, last = 0;
    int64_t due = INT64_MIN;
    for (uint32_t at = c->first; at != 0 && n <= k->limit; n++) {
        const struct pn_delivery *d = pn_delivery_at(k->seg, at);
        if (kind_of(k, at) != PN_KIND_IN_FLIGHT || d->prev != last || d->due < due ||
            d->channel != c->channel || pn_state_consumer(pn_load_relaxed(&d->state)) != ci) {
            report(k, "I22: the list of consumer %u is wrong at delivery %u", ci, at);
            return n;
        }
        due = d->due;
        last = at;
        at = d->next;
    }
    if (n != c->in_flight || last != c->last)
        report(k, "I22: consumer %u has %u in flight, says %u", ci, n, c->in_flight);
    if (c->first != 0 && pn_delivery_at(k->seg, c->first)->due <
                             pn_topic_channel_at(k->seg, c->channel)->next_deadline)
        report(k, "I24: consumer %u has an earlier deadline than its channel knows", ci);
    return n;
}

/* I24 */
static void check_waiting(struct check *k, uint32_t index, bool in_time)
{
    struct pn_topic_channel *ch = pn_topic_channel_at(k->seg, index);
    if (ch->waiting == 0 || ch->samplers != 0)
        return;
    if (pn_load_relaxed(&ch->paused) == 0 && ch->ready > ch->notified)
        report(k, "I24: %u of channel %u wait, %u messages are ready, %u were notified",
               ch->waiting, index, ch->ready, ch->notified);
    if (ch->notified == 0 && !in_time)
        report(k, "I24: no consumer that waits in channel %u keeps its time", index);
}

/* A consumer goes with the slot that it is of: no other slot's claim may find it there. */
static void check_owner(struct check *k, uint32_t ci)
{
    const struct pn_consumer_slot *c = pn_consumer_at(k->seg, ci);
    if (pn_load_relaxed(&c->state) != PN_RECORD_USED)
        return;
    const struct QueueBackendStatus *b =
        c->slot < k->seg->max_backends ? &k->seg->backend[c->slot] : NULL;
    if (b == NULL || pn_load_relaxed(&b->state) != PN_SLOT_CLAIMED ||
        pn_load_relaxed(&b->generation) != c->slot_generation)
        report(k, "I23: consumer %u is of backend %u, which is gone", ci, c->slot);
}

static void check_consumers(struct check *k, uint32_t index)
{
    struct pn_topic_channel *ch = pn_topic_channel_at(k->seg, index);
    uint32_t n = 0, waiting = 0, notified = 0, leaving = 0, flying = 0, samplers = 0;
    uint32_t throttled = 0;
    int64_t due = pn_topic_channel_next_due_locked(k->seg, ch);
    bool in_time = due == INT64_MAX;
    for (uint32_t i = ch->first_consumer; i != 0 && n <= k->seg->topics.max_consumers; n++) {
        const struct pn_consumer_slot *c = pn_consumer_at(k->seg, i - 1);
        uint32_t wait = pn_load_relaxed(&c->wait);
        if (pn_load_relaxed(&c->state) != PN_RECORD_USED || c->channel != index)
            report(k, "consumer %u stands in the list of channel %u", i - 1, index);
        waiting += wait == PN_CONSUMER_WAITING;
        notified += wait == PN_CONSUMER_NOTIFIED;
        leaving += wait == PN_CONSUMER_LEAVING;
        throttled += wait == PN_CONSUMER_THROTTLED;
        samplers += c->sample_rate != 0;
        in_time = in_time || (pn_consumer_sleeps(c) && c->armed <= due);
        if (wait == PN_CONSUMER_THROTTLED && !pn_consumer_throttled(k->seg, c))
            report(k, "I24: consumer %u of channel %u leaves messages to others for no reason",
                   i - 1, index);
        flying += check_flights(k, i - 1);
        i = c->next;
    }
    if (n != ch->consumers || waiting != ch->waiting || notified != ch->notified ||
        samplers != ch->samplers)
        report(k, "I23: channel %u has %u consumers, %u wait, %u notified; says %u, %u, %u", index,
               n, waiting, notified, ch->consumers, ch->waiting, ch->notified);
    if (flying + ch->held != ch->in_flight)
        report(k, "I23: %u in the lists of channel %u, %u in flight", flying, index, ch->in_flight);
    if (throttled != ch->throttled)
        report(k, "I23: %u consumers of channel %u are throttled, it says %u", throttled, index,
               ch->throttled);
    if (leaving != ch->leaving)
        report(k, "I30: %u consumers leave channel %u, it says %u", leaving, index, ch->leaving);
    check_waiting(k, index, in_time);
}

/* The frontier has passed it: has it done so rightly? */
static void check_passed(struct check *k, uint32_t index, const struct pn_message *m)
{
    bool idle = m->firm != 0;
    PN_EACH_DELIVERY (k->seg, m, at)
        idle = idle && kind_of(k, at) < PN_KIND_IN_FLIGHT;
    if (idle)
        report(k, "I31: message %llu of topic %u was passed, and can be dropped",
               (unsigned long long) m->id, index);
}

static void check_topic(struct check *k, uint32_t index)
{
    const struct pn_topic *t = pn_topic_at(k->seg, index);
    uint32_t n = 0, firm = 0, last = 0;
    uint64_t bytes = 0;
    bool passed = t->passed[0] != 0 && t->unsorted == PN_SORTED;
    for (uint32_t at = t->oldest; at != 0 && n <= k->limit; n++) {
        const struct pn_message *m = pn_message_at(k->seg, at);
        passed = passed && at != t->passed[0] && at != t->beyond;
        if (passed)
            check_passed(k, index, m);
        passed = passed || (t->unsorted == PN_SORTED && at == t->back_last);
        if (pn_load_relaxed(&m->state) != PN_MSG_LIVE || m->topic != index || m->prev != last) {
            report(k, "I22: the list of topic %u is wrong at message %u", index, at);
            return;
        }
        firm += m->firm != 0;
        bytes += (uint64_t) m->headers_len + m->body_len;
        last = at;
        at = m->next;
    }
    if (n != t->messages || firm != t->firm || last != t->newest || bytes != t->bytes)
        report(k, "I23: topic %u has %u messages, %u firm, %llu bytes; says %u, %u, %llu", index, n,
               firm, (unsigned long long) bytes, t->messages, t->firm,
               (unsigned long long) t->bytes);
}

/* I28, as far as it can be told without the files. */
static void check_later(struct check *k, uint32_t index)
{
    const struct pn_topic *t = pn_topic_at(k->seg, index);
    const struct pn_diskqueue_state *s = pn_diskqueue_now(&t->later);
    if (t->later_turn > s->write_seq || t->later_buried > s->write_seq - s->read_seq)
        report(k,
               "I28: topic %u: a turn ends at record %llu, %llu are buried; there are %llu to %llu",
               index, (unsigned long long) t->later_turn, (unsigned long long) t->later_buried,
               (unsigned long long) s->read_seq, (unsigned long long) s->write_seq);
}

static void check_queue(struct check *k, uint32_t index, const struct pn_diskqueue *q)
{
    if (!pn_topic_queue_adds_up(q))
        report(k, "I29: topic %u: %llu records on disk have %llu bytes", index,
               (unsigned long long) pn_diskqueue_depth(q),
               (unsigned long long) pn_diskqueue_bytes(q));
}

static void check_disk(struct check *k, uint32_t index)
{
    const struct pn_topic *t = pn_topic_at(k->seg, index);
    check_queue(k, index, &t->disk);
    check_queue(k, index, &t->rest);
    check_queue(k, index, &t->later);
}

/* I27: what stands on disk for a channel is there. */
static void check_cursor(struct check *k, uint32_t index)
{
    const struct pn_topic_channel *ch = pn_topic_channel_at(k->seg, index);
    const struct pn_topic *topic = pn_topic_of(k->seg, ch);
    const struct pn_diskqueue_state *s = pn_diskqueue_now(&topic->rest);
    const uint32_t rests = pn_load_relaxed(&ch->rests);
    const uint64_t seq = ch->rest_cursor[rests == 2].seq;
    if (rests > 2 || (rests != 0 && (seq < s->read_seq || seq > s->write_seq)))
        report(k, "I27: channel %u rests (%u) at record %llu, there are %llu to %llu", index, rests,
               (unsigned long long) seq, (unsigned long long) s->read_seq,
               (unsigned long long) s->write_seq);
}

/* I25 */
static void check_tombstones(struct check *k)
{
    const struct pn_segment *seg = k->seg;
    uint64_t live = 0, buried = 0;
    for (uint32_t i = 1; i <= PN_TOMBSTONES; i++) {
        const struct pn_tombstone *tomb = pn_tombstone_at(seg, i);
        uint32_t state = pn_load_relaxed(&tomb->state);
        const struct pn_topic *topic = pn_topic_at(seg, tomb->topic);
        const struct pn_diskqueue_state *s = pn_diskqueue_now(pn_topic_queue_of(topic, tomb->seq));
        if (state != PN_TOMB_FREE && i > seg->topics.ctl->tombstone_end)
            report(k, "I25: tombstone %u stands beyond the last, %u", i,
                   seg->topics.ctl->tombstone_end);
        if (state == PN_TOMB_STAGED || state > PN_TOMB_PREPARED)
            report(k, "tombstone %u is in state %u while the lock is free", i, state);
        if (state != PN_TOMB_LIVE)
            continue;
        live++;
        if (tomb->topic >= seg->topics.max_topics || tomb->generation != topic->generation ||
            (tomb->seq & ~PN_SEQ_QUEUE) < s->read_seq ||
            (tomb->seq & ~PN_SEQ_QUEUE) >= s->write_seq)
            report(k, "I25: tombstone %u is of record %llu of topic %u, which is not on disk", i,
                   (unsigned long long) tomb->seq, tomb->topic);
        for (uint32_t j = 1; j < i; j++)
            if (pn_load_relaxed(&pn_tombstone_at(seg, j)->state) == PN_TOMB_LIVE &&
                pn_tombstone_at(seg, j)->topic == tomb->topic &&
                pn_tombstone_at(seg, j)->seq == tomb->seq)
                report(k, "I25: tombstones %u and %u are of the same record", j, i);
    }
    for (uint32_t i = 0; i < seg->topics.max_topics; i++)
        buried += pn_topic_at(seg, i)->buried + pn_topic_at(seg, i)->rest_buried +
                  pn_topic_at(seg, i)->later_buried;
    if (live != buried)
        report(k, "I25: %llu tombstones, the topics say %llu", (unsigned long long) live,
               (unsigned long long) buried);
}

/* Every allocated cell is reachable from exactly one owner. */
static void check_memory(struct check *k)
{
    const struct pn_topics *t = &k->seg->topics;
    const uint32_t *used = t->ctl->arena.cells_used;
    for (uint32_t i = 0; i < t->max_channels; i++)
        k->used.pages += pn_timedset_pages(&t->channel[i].timed) + (t->channel[i].histogram != 0);
    if (used[PN_PAGE_DELIVERY] != k->used.deliveries || used[PN_PAGE_BODY] != k->used.bodies ||
        used[PN_PAGE_WHOLE] != k->used.pages)
        report(k, "I23: cells taken %u, %u, %u; in use %llu, %llu, %llu", used[PN_PAGE_DELIVERY],
               used[PN_PAGE_BODY], used[PN_PAGE_WHOLE], (unsigned long long) k->used.deliveries,
               (unsigned long long) k->used.bodies, (unsigned long long) k->used.pages);
}

void pn_check_topics_locked(struct pn_segment *seg, void (*problem)(void *arg, const char *text),
                            void *arg)
{
    pn_assert_held(seg);
    const struct pn_topics *t = &seg->topics;
    struct check k = {.seg = seg, .problem = problem, .arg = arg};
    if (!pn_topics_ready(seg))
        return;
    if (pn_load_relaxed(&seg->ctl->topics_dirty) != 0 ||
        pn_load_relaxed(&t->ctl->redo.valid) != 0 || pn_load_relaxed(&t->ctl->redo.void_n) != 0)
        report(&k, "the topics are marked as being changed");
    if (pn_arena_check(&t->arena, problem, arg) != 0)
        return;
    k.limit = t->arena.pages * PN_ARENA_GRANULES;
    k.seen = calloc(t->max_channels, sizeof *k.seen);
    if (k.seen == NULL) {
        report(&k, "out of memory while checking");
        return;
    }
    check_cells(&k);
    for (uint32_t i = 0; i < t->max_channels; i++) {
        check_ready(&k, i);
        pn_timedset_check(&t->arena, &t->channel[i].timed, problem, arg);
        if (pn_load_relaxed(&t->channel[i].state) != PN_RECORD_FREE)
            check_consumers(&k, i);
        if (pn_load_relaxed(&t->channel[i].state) == PN_RECORD_USED)
            check_cursor(&k, i);
    }
    for (uint32_t i = 0; i < t->max_consumers; i++)
        check_owner(&k, i);
    for (uint32_t i = 0; i < t->max_topics; i++)
        if (pn_load_relaxed(&t->topic[i].state) != PN_RECORD_FREE) {
            check_topic(&k, i);
            check_later(&k, i);
            check_disk(&k, i);
        }
    check_tombstones(&k);
    check_memory(&k);
    free(k.seen);
}
