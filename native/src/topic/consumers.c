/*
 * consumers.c - consumers as the others see them: waiting, woken, gone.
 *
 * 1. `wait` of a consumer is written under the writer lock only, by itself when it comes or goes
 *    to sleep, by others when they notify it.  Since both hold the lock there is no handshake:
 *    it sleeps, so it is notified; or it has not slept yet, and will find the message.
 * 2. A consumer that was notified is signalled after the release of the lock (lock.c), through the
 *    reason PROCSIG_TOPIC: its process's handler looks which of its consumers are NOTIFIED, and
 *    writes their eventfds.  A signal that was not sent, since the notifier died, is sent by the
 *    process that recovers the lock, by a watcher (watch.c), or it is made good by a slow timer.
 * 3. A dead process's consumers go when its slot is reaped: what they have in flight returns to
 *    the head of the queue in its old order, counted neither as requeued nor as timed out; unless
 *    it was delivered for the last time.
 * 4. One hold returns pn_return_steps messages of the dead at the most, the newest first.  Until
 *    the last has gone back the consumer is LEAVING, and another of its channel that comes for a
 *    message returns some more instead (I30): so none gets a newer one before an older one.  What
 *    is left to be done is recorded by what is there: the slot of the dead is not free, and the
 *    consumer has something in flight.  So any process goes on with it: the one that began, after
 *    its release (PN_REAP), the others that watched the dead, a consumer of the channel, and all
 *    that look for dead slots.
 * 5. What prepared transactions of the dead hold goes back in the last of these holds, in which the
 *    slot is freed as well.  A process that was taken for dead, and has its liveness locks again
 *    in between, keeps its slot, its transactions and its consumers; what went back went back, as
 *    after a time-out.
 */
#define _GNU_SOURCE
#include "backend/backend.h"
#include "base/crashpoint.h"
#include "base/hash.h"
#include "segment/lock.h"
#include "topic/consumers.h"
#include "topic/area.h"
#include "topic/delivery.h"
#include "topic/end.h"
#include "topic/returns.h"
#include "topic/staging.h"
#include "topic/tombstones.h"
#include "topic/topic.h"
#include "topic/waiting.h"
#include "wakeup/send.h"

uint32_t pn_return_steps = PN_TOPIC_STEPS;

/* ---- leaving --------------------------------------------------------------------------------- */

/* Of a deleted channel no consumer gets a message. */
static void set_leaving(struct pn_segment *seg, uint32_t ci, bool leaving)
{
    const struct pn_consumer_slot *c = pn_consumer_at(seg, ci);
    const struct pn_topic_channel *ch = pn_topic_channel_at(seg, c->channel);
    if (pn_load_relaxed(&ch->state) != PN_RECORD_USED || ch->generation != c->channel_generation ||
        leaving == (pn_load_relaxed(&c->wait) == PN_CONSUMER_LEAVING))
        return;
    pn_consumer_set_wait_locked(seg, ci, leaving ? PN_CONSUMER_LEAVING : PN_CONSUMER_BUSY);
    PN_CRASH("topic:leaving");
}

/* From the last to the first: each goes to the head, so that they stand in their old order. */
bool pn_consumer_drain_locked(struct pn_segment *seg, uint32_t ci, uint32_t *steps)
{
    pn_assert_topics_held(seg);
    struct pn_consumer_slot *c = pn_consumer_at(seg, ci);
    struct pn_topic_channel *ch = pn_topic_channel_at(seg, c->channel);
    for (uint32_t ref; (ref = c->last) != 0;) {
        if (*steps == 0) {
            set_leaving(seg, ci, true);
            return true;
        }
        --*steps;
        if (pn_is_void(ch, pn_delivery_at(seg, ref)))
            pn_delivery_end_locked(seg, ref);
        else
            pn_delivery_return_locked(seg, ref, PN_BACK_HEAD);
        PN_CRASH("topic:returned");
        if (c->last == ref) /* by its own word it is another consumer's */
            pn_segment_poison(seg, "a message is in flight to two consumers");
        if (pn_segment_check_state(seg) == -PN_ECORRUPT)
            return false;
    }
    set_leaving(seg, ci, false);
    return false;
}

bool pn_consumers_leave_locked(struct pn_segment *seg, struct pn_topic_channel *ch)
{
    pn_assert_topics_held(seg);
    uint32_t steps = pn_return_steps;
    if (__builtin_expect(ch->leaving == 0, 1))
        return false;
    PN_EACH_CONSUMER (seg, ch, i)
        if (pn_load_relaxed(&pn_consumer_at(seg, i - 1)->wait) == PN_CONSUMER_LEAVING &&
            pn_consumer_drain_locked(seg, i - 1, &steps))
            return true;
    return false;
}

static void leave_channel(struct pn_segment *seg, struct pn_consumer_slot *c)
{
    struct pn_topic_channel *ch = pn_topic_channel_at(seg, c->channel);
    uint32_t ci = (uint32_t) (c - seg->topics.consumer);
    pn_consumer_set_wait_locked(seg, ci, PN_CONSUMER_BUSY);
    if (c->prev != 0)
        pn_consumer_at(seg, c->prev - 1)->next = c->next;
    else if (ch->first_consumer == ci + 1)
        ch->first_consumer = c->next;
    else
        return; /* it stands in no list: the channel was deleted */
    if (c->next != 0)
        pn_consumer_at(seg, c->next - 1)->prev = c->prev;
    ch->consumers--;
    ch->samplers -= c->sample_rate != 0;
    PN_EACH_CONSUMER (seg, ch, i)
        pn_consumer_at(seg, i - 1)->cursor = 0; /* what the others passed over is dropped now */
}

static void count_slot(struct pn_segment *seg, uint32_t slot)
{
    bool has = false;
    if (slot >= seg->max_backends) {
        pn_segment_poison(seg, "a consumer is of backend %u, which is not", slot);
        return;
    }
    for (uint32_t i = 0; i < seg->topics.max_consumers && !has; i++)
        has = pn_load_relaxed(&seg->topics.consumer[i].state) == PN_RECORD_USED &&
              seg->topics.consumer[i].slot == slot;
    uint64_t mask = 1ULL << (slot % 64);
    if (!has)
        pn_fetch_and(&seg->consuming[slot / 64], ~mask);
}

void pn_consumer_free_locked(struct pn_segment *seg, uint32_t ci)
{
    pn_assert_topics_held(seg);
    struct pn_consumer_slot *c = pn_consumer_at(seg, ci);
    struct pn_topic_channel *ch = pn_topic_channel_at(seg, c->channel);
    uint32_t state = pn_load_relaxed(&ch->state);
    bool listed = state != PN_RECORD_FREE && ch->generation == c->channel_generation;
    bool attached = listed && state == PN_RECORD_USED;
    pn_store_release(&c->state, PN_RECORD_FREE);
    PN_CRASH("topic:consumer-free");
    if (listed) /* also of a deleted one, which stays while something in it is held */
        leave_channel(seg, c);
    count_slot(seg, c->slot);
    if (ci < seg->topics.ctl->consumer_hint)
        seg->topics.ctl->consumer_hint = ci;
    if (attached) {
        pn_topic_channel_settle_locked(seg, ch);
        pn_topic_channel_left_locked(seg, ch);
    }
}

/* What prepared transactions of that slot hold: they are rolled back. */
static void reap_held(struct pn_segment *seg, uint32_t slot)
{
    uint32_t generation = pn_load_relaxed(&seg->backend[slot].generation);
    struct pn_arena *mem = &seg->topics.arena;
    uint32_t ref = pn_arena_next_cell(mem, PN_PAGE_DELIVERY, 0);
    for (; ref != 0; ref = pn_arena_next_cell(mem, PN_PAGE_DELIVERY, ref)) {
        const struct pn_delivery *d = pn_delivery_at(seg, ref);
        struct pn_topic_channel *ch = pn_topic_channel_at(seg, d->channel);
        uint64_t word = pn_load_relaxed(&d->state);
        if (pn_state_kind(word) != PN_KIND_HELD || d->holder != slot ||
            d->holder_generation != generation)
            continue;
        pn_delivery_unhold_locked(seg, ref);
        PN_CRASH("topic:unheld");
        seg->topics.ctl->prepared--;
        pn_topic_channel_settle_locked(seg, ch);
    }
}

static void reap_prepared(struct pn_segment *seg, uint32_t slot)
{
    uint32_t generation = pn_load_relaxed(&seg->backend[slot].generation);
    struct pn_arena *mem = &seg->topics.arena;
    uint32_t ref = pn_arena_next_cell(mem, PN_PAGE_BODY, 0);
    for (; ref != 0; ref = pn_arena_next_cell(mem, PN_PAGE_BODY, ref)) {
        struct pn_message *m = pn_message_at(seg, ref);
        if (pn_load_relaxed(&m->state) == PN_MSG_PREPARED && m->prev == slot &&
            m->next == generation)
            pn_message_unstage_locked(seg, ref);
    }
}

/* Its next consumer from `ci` on; max_consumers: there is none. */
static uint32_t next_of_slot(const struct pn_segment *seg, uint32_t slot, uint32_t ci)
{
    const struct pn_topics *t = &seg->topics;
    while (ci < t->max_consumers && (pn_load_relaxed(&t->consumer[ci].state) != PN_RECORD_USED ||
                                     t->consumer[ci].slot != slot))
        ci++;
    return ci;
}

#define EACH_OF_SLOT(seg, slot, ci)                                                                \
    for (uint32_t ci = next_of_slot((seg), (slot), 0); (ci) < (seg)->topics.max_consumers;         \
         (ci) = next_of_slot((seg), (slot), (ci) + 1))

/* True: this hold has returned as many as it may, and there are more. */
static bool return_some(struct pn_segment *seg, uint32_t slot)
{
    struct pn_hold *hold = pn_hold_of(seg);
    const uint32_t may = pn_return_steps - hold->returned;
    uint64_t flying = 0;
    uint32_t steps = may;
    bool more = false;
    EACH_OF_SLOT (seg, slot, ci)
        flying += pn_consumer_at(seg, ci)->in_flight;
    if (flying > may)
        EACH_OF_SLOT (seg, slot, ci)
            if (pn_consumer_at(seg, ci)->last != 0) /* at once: they may be of one channel */
                set_leaving(seg, ci, true);
    EACH_OF_SLOT (seg, slot, ci) {
        struct pn_topic_channel *ch = pn_topic_channel_at(seg, pn_consumer_at(seg, ci)->channel);
        more = pn_consumer_drain_locked(seg, ci, &steps);
        pn_topic_channel_settle_locked(seg, ch);
        if (more)
            break;
    }
    hold->returned += may - steps;
    return more;
}

static void reap_rest(struct pn_segment *seg, uint32_t slot)
{
    uint32_t all = UINT32_MAX;
    if (seg->topics.ctl->prepared != 0) {
        reap_held(seg, slot);
        reap_prepared(seg, slot);
        pn_tombstones_reap_locked(seg, slot, pn_load_relaxed(&seg->backend[slot].generation));
    }
    EACH_OF_SLOT (seg, slot, ci) {
        struct pn_topic_channel *ch = pn_topic_channel_at(seg, pn_consumer_at(seg, ci)->channel);
        pn_consumer_drain_locked(seg, ci, &all); /* what was held */
        pn_consumer_free_locked(seg, ci);
        pn_topic_channel_settle_locked(seg, ch);
        PN_CRASH("topic:reaped");
    }
}

bool pn_consumers_reap_locked(struct pn_segment *seg, uint32_t slot)
{
    pn_assert_topics_held(seg);
    if (!pn_topics_ready(seg))
        return true;
    bool consuming = (pn_load_relaxed(&seg->consuming[slot / 64]) >> (slot % 64) & 1) != 0;
    if (!consuming && seg->topics.ctl->prepared == 0)
        return true;
    bool inside = pn_load_relaxed(&seg->ctl->topics_dirty) != 0; /* the caller has begun */
    pn_topics_begin_locked(seg);
    PN_CRASH("topic:reap");
    bool more = return_some(seg, slot);
    if (!more)
        reap_rest(seg, slot);
    if (!inside)
        pn_topics_end_locked(seg);
    PN_CRASH("topic:reaped-some");
    return !more;
}

/* ---- signals --------------------------------------------------------------------------------- */

void pn_consumers_signal(struct pn_segment *seg, const uint32_t *slots, uint32_t n)
{
    PN_CRASH("topic:unlocked");
    if (n > PN_TOPIC_WAKES) {
        pn_consumers_signal_owed(seg, 0);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        pn_procsignal_send(seg, slots[i], PROCSIG_TOPIC);
}

void pn_consumers_signal_owed(struct pn_segment *seg, int64_t min_age_ns)
{
    if (!pn_topics_ready(seg))
        return;
    int64_t newest = pn_now_ns() - min_age_ns;
    for (uint32_t ci = 0; ci < seg->topics.max_consumers; ci++) {
        struct pn_consumer_slot *c = &seg->topics.consumer[ci];
        if (pn_load_relaxed(&c->state) != PN_RECORD_USED ||
            pn_load_acquire(&c->wait) != PN_CONSUMER_NOTIFIED)
            continue;
        uint32_t slot = *(volatile const uint32_t *) &c->slot;
        if (slot < seg->max_backends && (int64_t) pn_load_relaxed(&c->notified_at) <= newest)
            pn_procsignal_send(seg, slot, PROCSIG_TOPIC);
    }
}
