/*
 * waiting.c - consumers that wait: whether one does, and which is notified (consumers.c).
 *
 * What is in flight stays in memory, and with a consumer that hangs it stays long.  So while more
 * of its channel waits on disk for room, the last quarter of what the channel has in memory, and
 * one message at least, is for consumers that have nothing in flight: those with something are
 * THROTTLED.  They wait for more to be ready, or for the end of what they have.
 */
#include "topic/waiting.h"

#include "base/crashpoint.h"
#include "segment/lock.h"
#include "topic/area.h"
#include "topic/cursors.h"
#include "topic/queues.h"
#include "topic/timedset.h"

bool pn_consumer_full(const struct pn_consumer_slot *c)
{
    return c->in_flight >= c->level;
}

bool pn_consumer_throttled(const struct pn_segment *seg, const struct pn_consumer_slot *c)
{
    const struct pn_topic_channel *ch = pn_topic_channel_at(seg, c->channel);
    if (__builtin_expect(pn_load_relaxed(&ch->rests) == 0, 1) || c->in_flight == 0 ||
        !pn_rests(pn_topic_of(seg, ch), ch))
        return false;
    const uint64_t part = ((uint64_t) ch->ready + ch->in_flight) / 4;
    return ch->ready <= (part > 1 ? part : 1);
}

void pn_consumer_set_wait_locked(struct pn_segment *seg, uint32_t ci, enum pn_consumer_wait wait)
{
    pn_assert_topics_held(seg);
    struct pn_consumer_slot *c = pn_consumer_at(seg, ci);
    struct pn_topic_channel *ch = pn_topic_channel_at(seg, c->channel);
    uint32_t was = pn_load_relaxed(&c->wait);
    ch->waiting -= was == PN_CONSUMER_WAITING;
    ch->notified -= was == PN_CONSUMER_NOTIFIED;
    ch->leaving -= was == PN_CONSUMER_LEAVING;
    ch->throttled -= was == PN_CONSUMER_THROTTLED;
    ch->waiting += wait == PN_CONSUMER_WAITING;
    ch->notified += wait == PN_CONSUMER_NOTIFIED;
    ch->leaving += wait == PN_CONSUMER_LEAVING;
    ch->throttled += wait == PN_CONSUMER_THROTTLED;
    pn_store_release(&c->wait, wait);
    PN_CRASH("topic:wait");
}

void pn_consumer_notify_locked(struct pn_segment *seg, uint32_t ci)
{
    pn_assert_topics_held(seg);
    struct pn_consumer_slot *c = pn_consumer_at(seg, ci);
    struct pn_hold *hold = pn_topics_hold(seg);
    pn_store_relaxed(&c->notified_at, (uint64_t) pn_now_coarse_ns());
    pn_consumer_set_wait_locked(seg, ci, PN_CONSUMER_NOTIFIED);
    PN_CRASH("topic:notified");
    uint32_t slot = *(volatile const uint32_t *) &c->slot;
    if (slot >= seg->max_backends) {
        pn_segment_poison(seg, "a consumer is of backend %u, which is not", slot);
        return;
    }
    for (uint32_t i = 0; i < hold->nwakes && i < PN_TOPIC_WAKES; i++)
        if (hold->wake[i] == slot)
            return;
    if (hold->nwakes < PN_TOPIC_WAKES)
        hold->wake[hold->nwakes] = slot;
    hold->at_end |= PN_WAKE_CONSUMERS;
    if (hold->nwakes <= PN_TOPIC_WAKES)
        hold->nwakes++;
}

/* Has it perhaps not yet passed over what is ready? */
static bool eligible(const struct pn_topic_channel *ch, const struct pn_consumer_slot *c)
{
    return pn_load_relaxed(&c->wait) == PN_CONSUMER_WAITING &&
           (c->cursor == 0 || c->cursor != ch->last);
}

/* A random one that waits; false: there is none. */
static bool notify_one(struct pn_segment *seg, struct pn_topic_channel *ch)
{
    uint32_t n = ch->waiting;
    if (ch->samplers != 0) {
        n = 0;
        PN_EACH_CONSUMER (seg, ch, i)
            n += eligible(ch, pn_consumer_at(seg, i - 1));
    }
    if (n == 0)
        return false;
    uint32_t *seed = &seg->topics.ctl->seed;
    uint32_t pick = 0;
    if (n > 1) {
        *seed = *seed * 1664525U + 1013904223U;
        pick = (uint32_t) ((uint64_t) *seed * n >> 32);
    }
    PN_EACH_CONSUMER (seg, ch, i)
        if (eligible(ch, pn_consumer_at(seg, i - 1)) && pick-- == 0) {
            pn_consumer_notify_locked(seg, i - 1);
            return true;
        }
    return false;
}

int64_t pn_topic_channel_deadline(const struct pn_segment *seg, const struct pn_topic_channel *ch)
{
    int64_t earliest = INT64_MAX;
    PN_EACH_CONSUMER (seg, ch, i) {
        const struct pn_consumer_slot *c = pn_consumer_at(seg, i - 1);
        if (c->first != 0 && pn_delivery_at(seg, c->first)->due < earliest)
            earliest = pn_delivery_at(seg, c->first)->due;
    }
    return earliest;
}

int64_t pn_topic_channel_next_due_locked(struct pn_segment *seg, struct pn_topic_channel *ch)
{
    pn_assert_topics_held(seg);
    struct pn_timed entry;
    if (pn_topic_of(seg, ch)->refilling != 0) /* the next operation goes on with it */
        return 0;
    if (ch->next_deadline != INT64_MAX)
        ch->next_deadline = pn_topic_channel_deadline(seg, ch);
    const int64_t later = pn_topic_later_due(pn_topic_of(seg, ch));
    int64_t next = later < ch->next_deadline ? later : ch->next_deadline;
    if (pn_timedset_first(&seg->topics.arena, &ch->timed, &entry) && entry.due < next)
        next = entry.due;
    return next;
}

static bool has_timekeeper(const struct pn_segment *seg, const struct pn_topic_channel *ch,
                           int64_t due)
{
    PN_EACH_CONSUMER (seg, ch, i) {
        const struct pn_consumer_slot *c = pn_consumer_at(seg, i - 1);
        if (pn_consumer_sleeps(c) && c->armed <= due)
            return true;
    }
    return false;
}

/* Those that may have more by now wait for it like the others. */
static void release_throttled(struct pn_segment *seg, const struct pn_topic_channel *ch)
{
    PN_EACH_CONSUMER (seg, ch, i) {
        const struct pn_consumer_slot *c = pn_consumer_at(seg, i - 1);
        if (pn_load_relaxed(&c->wait) == PN_CONSUMER_THROTTLED && !pn_consumer_throttled(seg, c))
            pn_consumer_set_wait_locked(
                seg, i - 1, pn_consumer_full(c) ? PN_CONSUMER_BLOCKED : PN_CONSUMER_WAITING);
    }
}

void pn_topic_channel_settle_locked(struct pn_segment *seg, struct pn_topic_channel *ch)
{
    pn_assert_topics_held(seg);
    if (__builtin_expect(ch->throttled != 0, 0))
        release_throttled(seg, ch);
    if (ch->waiting == 0)
        return;
    while (pn_load_relaxed(&ch->paused) == 0 && ch->ready > ch->notified && notify_one(seg, ch))
        ;
    pn_invariant(seg, "I24",
                 pn_load_relaxed(&ch->paused) != 0 || ch->samplers != 0 || ch->waiting == 0 ||
                     ch->ready <= ch->notified);
    if (ch->waiting == 0 || ch->notified != 0) /* the next one that looks arms itself */
        return;
    int64_t due = pn_topic_channel_next_due_locked(seg, ch);
    if (due == INT64_MAX || has_timekeeper(seg, ch, due))
        return;
    PN_EACH_CONSUMER (seg, ch, i)
        if (pn_load_relaxed(&pn_consumer_at(seg, i - 1)->wait) == PN_CONSUMER_WAITING) {
            pn_consumer_notify_locked(seg, i - 1);
            return;
        }
}

void pn_topic_settle_locked(struct pn_segment *seg, struct pn_topic *topic)
{
    pn_assert_topics_held(seg);
    PN_EACH_CHANNEL (seg, topic, i)
        pn_topic_channel_settle_locked(seg, pn_topic_channel_at(seg, i - 1));
}
