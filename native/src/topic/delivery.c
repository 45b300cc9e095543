/*
 * delivery.c - deliveries: where each stands, how it moves, and which consumer is woken for it.
 *
 * 1. A delivery is one message in one channel.  Its state word is the truth: a process that moves
 *    it stores what the new state needs (order, due) while that means nothing in the old one, then
 *    the word, then changes the indices.  A kill before the word leaves it where it was, a kill
 *    after it where it goes to; the indices are built again.
 *
 *        READY      in the ready list, in the order that it was given when it came there
 *        DEFERRED   in the timed set, until `due`; then READY at the tail
 *        IN_FLIGHT  in its consumer's list, until the deadline `due`; then READY at the tail
 *        HELD       answered by a prepared transaction: in no list, and never times out
 *
 * 2. A message with a time to live has an entry in the timed set while it is READY or DEFERRED.
 *    While it is in flight it does not expire, but its entry is reserved for it, so that it can go
 *    back whatever happens to the memory meanwhile.
 * 3. A claim takes the first of the ready list; a sampling consumer the first that it samples,
 *    which is decided by a hash of the message and the consumer, so that it is decided once.  What
 *    no attached consumer samples is dropped by the next operation that comes to it.
 * 4. Timers.  Nothing ticks.  Each operation on a channel does what is due in it; and if consumers
 *    wait, one of them sleeps no longer than until the next thing is due (I24).  The deadline of
 *    what its consumer has fetched, and the program has not got yet, is put off for as long as the
 *    consumer is alive; then it goes back as if it had never been fetched.
 * 5. Waking.  A consumer that finds nothing says so in `wait`, under the lock, and sleeps.  For
 *    each message that is ready beyond those for which a consumer was notified already, a random
 *    one is NOTIFIED, and signalled after the release of the lock.  NOTIFIED stays until it comes,
 *    so that recovery and watchers (watch.c) find the consumers that a dead process did not signal
 *    any more.
 * 6. What is void (empty(), I20) is freed by the next operation that meets it.
 */
#define _GNU_SOURCE
#include "topic/delivery.h"

#include "base/crashpoint.h"
#include "base/hash.h"
#include "segment/lock.h"
#include "topic/area.h"
#include "topic/frontier.h"
#include "topic/message.h"
#include "topic/notes.h"
#include "topic/timedset.h"
#include "topic/waiting.h"

static inline struct pn_arena *arena(struct pn_segment *seg)
{
    return &seg->topics.arena;
}

static inline struct pn_topic_channel *channel_of(struct pn_segment *seg,
                                                  const struct pn_delivery *d)
{
    return pn_topic_channel_at(seg, d->channel);
}

/* ---- the ready list -------------------------------------------------------------------------- */

/* Move the cursors of sampling consumers that stand here to the one before. */
static void move_cursors(struct pn_segment *seg, struct pn_topic_channel *ch, uint32_t from,
                         uint32_t to)
{
    PN_EACH_CONSUMER (seg, ch, i)
        if (pn_consumer_at(seg, i - 1)->cursor == from)
            pn_consumer_at(seg, i - 1)->cursor = to;
}

static void reset_cursors(struct pn_segment *seg, struct pn_topic_channel *ch)
{
    PN_EACH_CONSUMER (seg, ch, i)
        pn_consumer_at(seg, i - 1)->cursor = 0;
}

/* By order; almost always it is the last. */
static void ready_insert(struct pn_segment *seg, struct pn_topic_channel *ch, uint32_t ref)
{
    struct pn_delivery *d = pn_delivery_at(seg, ref);
    uint32_t after = ch->last, before = 0, steps = 0;
    if (after != 0 && pn_delivery_at(seg, after)->order > d->order) {
        /* from the front, where what comes back in its old order belongs */
        before = ch->first;
        while (before != 0 && pn_delivery_at(seg, before)->order < d->order &&
               pn_cells_go_on(seg, &steps))
            before = pn_delivery_at(seg, before)->next;
        after = before != 0 ? pn_delivery_at(seg, before)->prev : ch->last;
    }
    pn_invariant(seg, "I22",
                 (after == 0 || pn_delivery_at(seg, after)->order < d->order) &&
                     (before == 0 || pn_delivery_at(seg, before)->order > d->order));
    d->prev = after;
    d->next = before;
    if (after != 0)
        pn_delivery_at(seg, after)->next = ref;
    else
        ch->first = ref;
    if (before != 0)
        pn_delivery_at(seg, before)->prev = ref;
    else
        ch->last = ref;
    ch->ready++;
    if (before != 0 && ch->samplers != 0)
        reset_cursors(seg, ch);
}

static void ready_remove(struct pn_segment *seg, struct pn_topic_channel *ch, uint32_t ref)
{
    struct pn_delivery *d = pn_delivery_at(seg, ref);
    if (d->prev != 0)
        pn_delivery_at(seg, d->prev)->next = d->next;
    else
        ch->first = d->next;
    if (d->next != 0)
        pn_delivery_at(seg, d->next)->prev = d->prev;
    else
        ch->last = d->prev;
    pn_invariant(seg, "I23", ch->ready > 0);
    ch->ready--;
    if (ch->samplers != 0)
        move_cursors(seg, ch, ref, d->prev);
    d->prev = d->next = 0;
}

/* ---- the consumer's list --------------------------------------------------------------------- */

/* By deadline; almost always it is the last. */
static void flight_insert(struct pn_segment *seg, struct pn_consumer_slot *c, uint32_t ref)
{
    struct pn_delivery *d = pn_delivery_at(seg, ref);
    uint32_t after = c->last, steps = 0;
    while (after != 0 && pn_delivery_at(seg, after)->due > d->due && pn_cells_go_on(seg, &steps))
        after = pn_delivery_at(seg, after)->prev;
    d->prev = after;
    d->next = after != 0 ? pn_delivery_at(seg, after)->next : c->first;
    pn_invariant(seg, "I22", d->next == 0 || pn_delivery_at(seg, d->next)->due > d->due);
    if (after != 0)
        pn_delivery_at(seg, after)->next = ref;
    else
        c->first = ref;
    if (d->next != 0)
        pn_delivery_at(seg, d->next)->prev = ref;
    else
        c->last = ref;
}

static void flight_remove(struct pn_segment *seg, struct pn_consumer_slot *c, uint32_t ref)
{
    struct pn_delivery *d = pn_delivery_at(seg, ref);
    if (d->prev != 0)
        pn_delivery_at(seg, d->prev)->next = d->next;
    else
        c->first = d->next;
    if (d->next != 0)
        pn_delivery_at(seg, d->next)->prev = d->prev;
    else
        c->last = d->prev;
    d->prev = d->next = 0;
}

/* It has one less in flight: perhaps that was what it waits for. */
static void flight_left(struct pn_segment *seg, struct pn_consumer_slot *c)
{
    uint32_t ci = (uint32_t) (c - seg->topics.consumer);
    if (c->in_flight > 0)
        c->in_flight--;
    if (pn_load_relaxed(&c->wait) == PN_CONSUMER_BLOCKED && !pn_consumer_full(c)) {
        pn_consumer_set_wait_locked(seg, ci, PN_CONSUMER_WAITING);
        pn_topic_channel_settle_locked(seg, pn_topic_channel_at(seg, c->channel));
    }
}

/* ---- where it stands ------------------------------------------------------------------------- */

static void timed_add(struct pn_segment *seg, struct pn_topic_channel *ch, uint32_t ref,
                      int64_t due)
{
    struct pn_delivery *d = pn_delivery_at(seg, ref);
    const struct pn_message *m = pn_message_at(seg, d->message);
    pn_timedset_add_locked(arena(seg), &ch->timed,
                           (struct pn_timed) {.due = due, .ref = ref, .low = (uint32_t) m->id});
    if (d->timed_reserved > 0)
        d->timed_reserved--;
}

static void timed_lend(struct pn_segment *seg, struct pn_topic_channel *ch, uint32_t ref)
{
    struct pn_delivery *d = pn_delivery_at(seg, ref);
    if (d->timed == 0)
        return;
    pn_timedset_lend_locked(arena(seg), &ch->timed, ref);
    d->timed_reserved++;
}

static void timed_give_back(struct pn_segment *seg, struct pn_topic_channel *ch,
                            struct pn_delivery *d)
{
    if (d->timed_reserved != 0)
        pn_timedset_unreserve_locked(arena(seg), &ch->timed, d->timed_reserved);
    d->timed_reserved = 0;
}

void pn_delivery_enqueue_locked(struct pn_segment *seg, uint32_t ref)
{
    pn_assert_topics_held(seg);
    struct pn_delivery *d = pn_delivery_at(seg, ref);
    struct pn_topic_channel *ch = channel_of(seg, d);
    const struct pn_message *m = pn_message_at(seg, d->message);
    bool deferred =
        pn_state_kind(pn_load_relaxed(&d->state)) == PN_KIND_DEFERRED && !pn_is_backlog(seg, ch);
    if (deferred) {
        ch->deferred++;
        timed_add(seg, ch, ref, m->expires != 0 && m->expires < d->due ? m->expires : d->due);
    } else {
        ready_insert(seg, ch, ref);
        if (m->expires != 0)
            timed_add(seg, ch, ref, m->expires);
    }
    timed_give_back(seg, ch, d);
}

/* Out of whatever list it stands in; an entry of the timed set is reserved for it. */
static void take_out(struct pn_segment *seg, uint32_t ref, uint64_t was)
{
    struct pn_delivery *d = pn_delivery_at(seg, ref);
    struct pn_topic_channel *ch = channel_of(seg, d);
    struct pn_consumer_slot *c = pn_consumer_at(seg, pn_state_consumer(was));
    enum pn_delivery_kind kind = pn_state_kind(was);
    if (pn_is_backlog(seg, ch) && kind != PN_KIND_FREE)
        kind = PN_KIND_READY;
    switch (kind) {
    case PN_KIND_READY:
        ready_remove(seg, ch, ref);
        break;
    case PN_KIND_DEFERRED:
        pn_invariant(seg, "I23", ch->deferred > 0);
        ch->deferred--;
        break;
    case PN_KIND_IN_FLIGHT:
        pn_invariant(seg, "I23", ch->in_flight > 0 && c->in_flight > 0);
        flight_remove(seg, c, ref);
        ch->in_flight--;
        flight_left(seg, c);
        break;
    case PN_KIND_HELD:
        d->prev = d->next = 0; /* whose it was */
        ch->held--;
        ch->in_flight--;
        break;
    case PN_KIND_FREE:
        break;
    }
    timed_lend(seg, ch, ref);
}

/* ---- the end --------------------------------------------------------------------------------- */

static void leave_message(struct pn_segment *seg, struct pn_delivery *d, uint32_t ref)
{
    struct pn_message *m = pn_message_at(seg, d->message);
    uint32_t *link = &m->first, steps = 0;
    while (*link != 0 && *link != ref && pn_cells_go_on(seg, &steps))
        link = &pn_delivery_at(seg, *link)->of_message;
    if (*link == ref)
        *link = d->of_message;
    m->refs--;
    channel_of(seg, d)->bytes -= pn_message_cost(m);
    if (channel_of(seg, d)->ephemeral == 0 && --m->firm == 0)
        pn_topic_at(seg, m->topic)->firm--;
    if (m->refs == 0)
        pn_message_free_locked(seg, d->message);
    else
        pn_frontier_back_locked(seg, pn_topic_at(seg, m->topic), d->message);
}

void pn_delivery_ended_locked(struct pn_segment *seg, uint32_t ref, uint64_t was)
{
    pn_assert_topics_held(seg);
    struct pn_delivery *d = pn_delivery_at(seg, ref);
    pn_durable_note_delivery_locked(seg, PN_LOG_FINISHED, ref);
    take_out(seg, ref, was);
    timed_give_back(seg, channel_of(seg, d), d);
    leave_message(seg, d, ref);
    PN_CRASH("topic:delivery-ended");
    pn_arena_give_locked(arena(seg), ref);
}

void pn_delivery_end_locked(struct pn_segment *seg, uint32_t ref)
{
    pn_assert_topics_held(seg);
    struct pn_delivery *d = pn_delivery_at(seg, ref);
    uint64_t was = pn_load_relaxed(&d->state);
    pn_store_release(&d->state, pn_state_word(PN_KIND_FREE, 0, 0, pn_state_tag(was)));
    PN_CRASH("topic:delivery-free");
    pn_delivery_ended_locked(seg, ref, was);
}

/* ---- moves ----------------------------------------------------------------------------------- */

struct pn_answer_redo pn_delivery_back_redo(struct pn_segment *seg, uint32_t ref,
                                            enum pn_back where, int64_t due, uint32_t attempts)
{
    struct pn_delivery *d = pn_delivery_at(seg, ref);
    struct pn_topic_channel *ch = channel_of(seg, d);
    enum pn_delivery_kind kind = where == PN_BACK_LATER ? PN_KIND_DEFERRED : PN_KIND_READY;
    uint32_t tag = pn_state_tag(pn_load_relaxed(&d->state));
    return (struct pn_answer_redo) {.word = pn_state_word(kind, attempts, 0, tag),
                                    .order = where == PN_BACK_HEAD ? d->order : ch->next_order++,
                                    .due = where == PN_BACK_LATER ? due : 0};
}

void pn_delivery_apply_locked(struct pn_segment *seg, uint32_t ref,
                              const struct pn_answer_redo *redo)
{
    pn_assert_topics_held(seg);
    struct pn_delivery *d = pn_delivery_at(seg, ref);
    uint64_t was = pn_load_relaxed(&d->state);
    bool gone = pn_load_relaxed(&channel_of(seg, d)->state) != PN_RECORD_USED;
    if (pn_state_kind(redo->word) == PN_KIND_FREE || gone || pn_is_void(channel_of(seg, d), d)) {
        pn_store_release(&d->state, pn_state_word(PN_KIND_FREE, 0, 0, pn_state_tag(was)));
        PN_CRASH("answer:free");
        pn_delivery_ended_locked(seg, ref, was);
        return;
    }
    take_out(seg, ref, was); /* before the deadline is no more: its list is sorted by it */
    pn_frontier_back_locked(seg, pn_topic_of(seg, channel_of(seg, d)), d->message);
    d->order = redo->order;
    d->due = redo->due;
    PN_CRASH("answer:order");
    pn_store_release(&d->state, redo->word);
    PN_CRASH("answer:back");
    pn_durable_note_delivery_locked(seg, PN_LOG_REQUEUED, ref);
    pn_delivery_enqueue_locked(seg, ref);
}

void pn_delivery_back_locked(struct pn_segment *seg, uint32_t ref, enum pn_back where, int64_t due,
                             uint32_t attempts)
{
    pn_assert_topics_held(seg);
    struct pn_answer_redo redo = pn_delivery_back_redo(seg, ref, where, due, attempts);
    pn_delivery_apply_locked(seg, ref, &redo);
}

/* Of one in flight it is there: a consumer that closes gives back what it has, but for what is
 * held. */
struct pn_consumer_slot *pn_delivery_consumer(const struct pn_segment *seg, uint32_t ref)
{
    const struct pn_delivery *d = pn_delivery_at(seg, ref);
    uint64_t word = pn_load_relaxed(&d->state);
    struct pn_consumer_slot *c = pn_consumer_at(seg, pn_state_consumer(word));
    if (pn_state_kind(word) == PN_KIND_HELD &&
        (pn_load_relaxed(&c->state) != PN_RECORD_USED || c->generation != d->consumer_generation))
        return NULL;
    return c;
}

void pn_delivery_hold_locked(struct pn_segment *seg, uint32_t ref, uint32_t slot)
{
    pn_assert_topics_held(seg);
    struct pn_delivery *d = pn_delivery_at(seg, ref);
    uint64_t word = pn_load_relaxed(&d->state);
    struct pn_topic_channel *ch = channel_of(seg, d);
    struct pn_consumer_slot *c = pn_consumer_at(seg, pn_state_consumer(word));
    flight_remove(seg, c, ref);
    d->consumer_generation = c->generation;
    d->holder_generation = pn_load_relaxed(&seg->backend[slot].generation);
    d->holder = (uint16_t) slot;
    PN_CRASH("prepare:owner");
    pn_store_release(&d->state, pn_state_word(PN_KIND_HELD, pn_state_attempts(word),
                                              pn_state_consumer(word), pn_state_tag(word)));
    PN_CRASH("prepare:held");
    ch->held++;
    flight_left(seg, c);
}

void pn_delivery_unhold_locked(struct pn_segment *seg, uint32_t ref)
{
    pn_assert_topics_held(seg);
    struct pn_delivery *d = pn_delivery_at(seg, ref);
    uint64_t word = pn_load_relaxed(&d->state);
    struct pn_topic_channel *ch = channel_of(seg, d);
    struct pn_consumer_slot *c = pn_delivery_consumer(seg, ref);
    if (c == NULL || pn_is_void(ch, d)) { /* closed, or emptied, meanwhile */
        pn_delivery_back_locked(seg, ref, PN_BACK_HEAD, 0, pn_state_attempts(word));
        return;
    }
    pn_store_release(&d->state, pn_state_word(PN_KIND_IN_FLIGHT, pn_state_attempts(word),
                                              pn_state_consumer(word), pn_state_tag(word)));
    PN_CRASH("prepare:unheld");
    ch->held--;
    c->in_flight++;
    flight_insert(seg, c, ref);
    if (d->due < ch->next_deadline)
        ch->next_deadline = d->due;
}

/* The store of `channel` is what counts: a backlog does not look at the kind, and a delivery that
 * dies here with a larger order has moved to the backlog's end, no more. */
void pn_delivery_take_over_locked(struct pn_segment *seg, uint32_t ref, struct pn_topic_channel *to,
                                  int64_t now, bool timed_reserved)
{
    pn_assert_topics_held(seg);
    struct pn_delivery *d = pn_delivery_at(seg, ref);
    uint64_t word = pn_load_relaxed(&d->state);
    take_out(seg, ref, word);
    timed_give_back(seg, channel_of(seg, d), d);
    /* until the store of `channel` the backlog's discarded_below is what counts */
    if (to->next_order < channel_of(seg, d)->discarded_below)
        to->next_order = channel_of(seg, d)->discarded_below;
    d->order = to->next_order++;
    PN_CRASH("topic:pump-order");
    pn_store_release(&d->state, pn_state_word(d->due > now ? PN_KIND_DEFERRED : PN_KIND_READY, 0, 0,
                                              pn_state_tag(word)));
    PN_CRASH("topic:pump-kind");
    channel_of(seg, d)->bytes -= pn_message_cost(pn_message_at(seg, d->message));
    to->bytes += pn_message_cost(pn_message_at(seg, d->message));
    d->channel = pn_topic_channel_index(seg, to);
    pn_compiler_fence();
    PN_CRASH("topic:pumped");
    pn_durable_note_fanned_out_locked(seg, pn_message_at(seg, d->message));
    d->timed_reserved = timed_reserved;
    pn_delivery_enqueue_locked(seg, ref);
}

void pn_delivery_touch_locked(struct pn_segment *seg, uint32_t ref, int64_t due)
{
    pn_assert_topics_held(seg);
    struct pn_delivery *d = pn_delivery_at(seg, ref);
    struct pn_topic_channel *ch = channel_of(seg, d);
    struct pn_consumer_slot *c = pn_consumer_at(seg, pn_state_consumer(pn_load_relaxed(&d->state)));
    flight_remove(seg, c, ref);
    d->due = due;
    PN_CRASH("answer:touched");
    flight_insert(seg, c, ref);
    if (due < ch->next_deadline)
        ch->next_deadline = due;
}

/* ---- claiming -------------------------------------------------------------------------------- */

/* Mixed twice: ids follow each other, and so do consumers. */
bool pn_is_sampled(uint64_t id, uint64_t consumer, uint32_t percent)
{
    const uint64_t k0 = 0xa0761d6478bd642fULL, k1 = 0xe7037ed1a0b428dbULL;
    return pn_mix(pn_mix(id ^ k0, consumer ^ k1) ^ k0, k1) % 100 < percent;
}

/* Once for each message and consumer. */
static bool samples(const struct pn_segment *seg, uint32_t ci, uint64_t id)
{
    const struct pn_consumer_slot *c = pn_consumer_at(seg, ci);
    return c->sample_rate == 0 ||
           pn_is_sampled(id, (uint64_t) c->generation << 32 | ci, c->sample_rate);
}

static bool anybody_samples(const struct pn_segment *seg, const struct pn_topic_channel *ch,
                            uint64_t id)
{
    PN_EACH_CONSUMER (seg, ch, i)
        if (samples(seg, i - 1, id))
            return true;
    return false;
}

static void claim(struct pn_segment *seg, struct pn_topic_channel *ch, uint32_t ref, uint32_t ci,
                  int64_t now)
{
    struct pn_delivery *d = pn_delivery_at(seg, ref);
    struct pn_consumer_slot *c = pn_consumer_at(seg, ci);
    uint64_t word = pn_load_relaxed(&d->state);
    uint32_t attempts = pn_state_attempts(word), tag = (pn_state_tag(word) + 1) & PN_TAG_MASK;
    pn_invariant(seg, "I20",
                 pn_load_relaxed(&pn_message_at(seg, d->message)->state) == PN_MSG_LIVE);
    pn_invariant(seg, "I30", ch->leaving == 0);
    d->claim = ++c->claims;
    d->due = now + c->msg_timeout;
    d->delivered_ns = now;
    PN_CRASH("claim:due");
    pn_store_release(
        &d->state,
        pn_state_word(PN_KIND_IN_FLIGHT, attempts < 0xffff ? attempts + 1 : attempts, ci, tag));
    PN_CRASH("claim:in-flight");
    ready_remove(seg, ch, ref);
    timed_lend(seg, ch, ref);
    flight_insert(seg, c, ref);
    pn_durable_note_delivery_locked(seg, PN_LOG_DELIVERED, ref);
    c->in_flight++;
    ch->in_flight++;
    c->delivered++;
    if (d->due < ch->next_deadline)
        ch->next_deadline = d->due;
    PN_CRASH("claim:listed");
}

/* Void or expired: it is freed. */
static bool is_over(struct pn_segment *seg, struct pn_topic_channel *ch, uint32_t ref, int64_t now)
{
    const struct pn_delivery *d = pn_delivery_at(seg, ref);
    const struct pn_message *m = pn_message_at(seg, d->message);
    bool expired = m->expires != 0 && m->expires <= now;
    if (!pn_is_void(ch, d) && !expired)
        return false;
    if (!pn_is_void(ch, d))
        ch->expired++;
    pn_delivery_end_locked(seg, ref);
    return true;
}

uint32_t pn_delivery_claim_locked(struct pn_segment *seg, uint32_t ci, int64_t now)
{
    pn_assert_topics_held(seg);
    struct pn_consumer_slot *c = pn_consumer_at(seg, ci);
    struct pn_topic_channel *ch = pn_topic_channel_at(seg, c->channel);
    if (pn_load_relaxed(&ch->paused) != 0)
        return 0;
    for (uint32_t steps = 0; steps < PN_TOPIC_STEPS; steps++) {
        uint32_t ref = c->cursor != 0 ? pn_delivery_at(seg, c->cursor)->next : ch->first;
        if (ref == 0)
            return 0;
        if (is_over(seg, ch, ref, now))
            continue;
        uint64_t id = pn_message_at(seg, pn_delivery_at(seg, ref)->message)->id;
        if (ch->samplers == 0 || samples(seg, ci, id)) {
            claim(seg, ch, ref, ci, now);
            return ref;
        }
        if (anybody_samples(seg, ch, id)) {
            c->cursor = ref;
        } else {
            ch->dropped++;
            pn_delivery_end_locked(seg, ref);
        }
    }
    return 0;
}

/* ---- timers ---------------------------------------------------------------------------------- */

static void fire(struct pn_segment *seg, struct pn_topic_channel *ch, uint32_t ref, int64_t now)
{
    struct pn_delivery *d = pn_delivery_at(seg, ref);
    if (is_over(seg, ch, ref, now))
        return;
    uint64_t word = pn_load_relaxed(&d->state);
    take_out(seg, ref, word);
    d->order = ch->next_order++;
    PN_CRASH("topic:fire-order");
    pn_store_release(&d->state,
                     pn_state_word(PN_KIND_READY, pn_state_attempts(word), 0, pn_state_tag(word)));
    PN_CRASH("topic:fired");
    pn_delivery_enqueue_locked(seg, ref);
}

bool pn_delivery_stays(struct pn_segment *seg, uint32_t ref)
{
    pn_segment_poison(seg, "delivery %u stands where it does not belong", ref);
    return true; /* the next look finds that */
}

bool pn_topic_channel_expire_locked(struct pn_segment *seg, struct pn_topic_channel *ch,
                                    int64_t now, uint32_t *steps)
{
    pn_assert_topics_held(seg);
    uint32_t fired = 0;
    struct pn_timed entry;
    while (pn_timedset_first(arena(seg), &ch->timed, &entry) && entry.due <= now) {
        if (entry.ref == fired)
            return pn_delivery_stays(seg, fired);
        if (*steps == 0)
            return true;
        --*steps;
        fired = entry.ref;
        fire(seg, ch, fired, now);
    }
    return false;
}

/* ---- void ------------------------------------------------------------------------------------ */

static bool sweep_flights(struct pn_segment *seg, struct pn_topic_channel *ch, uint32_t *steps)
{
    PN_EACH_CONSUMER (seg, ch, i)
        for (uint32_t ref = pn_consumer_at(seg, i - 1)->first, next, walked = 0;
             ref != 0 && pn_cells_go_on(seg, &walked); ref = next) {
            next = pn_delivery_at(seg, ref)->next;
            if (!pn_is_void(ch, pn_delivery_at(seg, ref)))
                continue;
            if (*steps == 0)
                return true;
            --*steps;
            pn_delivery_end_locked(seg, ref);
        }
    return false;
}

bool pn_topic_channel_sweep_locked(struct pn_segment *seg, struct pn_topic_channel *ch,
                                   uint32_t *steps)
{
    pn_assert_topics_held(seg);
    struct pn_timed entry;
    if (ch->swept_below >= ch->discarded_below)
        return false;
    for (uint32_t ref; (ref = ch->first) != 0 && pn_is_void(ch, pn_delivery_at(seg, ref));) {
        if ((*steps)-- == 0)
            return *steps = 0, true;
        pn_delivery_end_locked(seg, ref);
        if (ch->first == ref)
            return pn_delivery_stays(seg, ref);
    }
    for (uint32_t i = ch->timed.n, ended = 0; i-- > 0;) {
        if (i >= ch->timed.n)
            continue;
        if (!pn_timedset_entry(arena(seg), &ch->timed, i, &entry))
            return true; /* it is broken, which the next look finds */
        if (!pn_is_void(ch, pn_delivery_at(seg, entry.ref)))
            continue;
        if (entry.ref == ended)
            return pn_delivery_stays(seg, ended);
        if (*steps == 0)
            return true;
        --*steps;
        ended = entry.ref;
        pn_delivery_end_locked(seg, ended);
        if (i < ch->timed.n)
            i++; /* what stood before it may stand there now */
    }
    if (sweep_flights(seg, ch, steps))
        return true;
    ch->swept_below = ch->discarded_below;
    return false;
}
