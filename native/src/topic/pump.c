/* pump.c - from the backlog of a topic to its channels; the model is in message.c (3). */
#include "base/crashpoint.h"
#include "segment/arena_share.h"
#include "segment/lock.h"
#include "topic/delivery.h"
#include "topic/message.h"
#include "topic/pump.h"
#include "topic/area.h"
#include "topic/cursors.h"
#include "topic/rest.h"
#include "topic/settings.h"
#include "topic/staging.h"
#include "topic/timedset.h"
#include "topic/waiting.h"

enum { PN_PUMP_LEAST = 64 };

static void give_back(struct pn_segment *seg, struct pn_topic *topic, struct pn_message *m,
                      uint32_t before)
{
    pn_pump_give_back_locked(seg, m, before);
    PN_EACH_CHANNEL (seg, topic, i)
        pn_topic_channel_at(seg, i - 1)->dropped -=
            pn_topic_channel_goes_without(topic, pn_topic_channel_at(seg, i - 1));
}

/* What its share allows; and beyond it no more than is needed so that channels have something, or
 * nothing of the topic would ever be finished. */
static bool may_pump(const struct pn_segment *seg, const struct pn_topic *topic, bool timed)
{
    const uint32_t index = (uint32_t) (topic - seg->topics.topic);
    struct pn_arena_need need = {.deliveries = topic->nchannels > 0 ? topic->nchannels - 1 : 0,
                                 .most = pn_topic_most_pages(topic)};
    uint64_t there = 0;
    PN_EACH_CHANNEL (seg, topic, i) {
        const struct pn_topic_channel *ch = pn_topic_channel_at(seg, i - 1);
        there += (uint64_t) ch->ready + ch->deferred + ch->in_flight;
        need.pages += timed ? pn_timedset_needs(&ch->timed, 1) : 0;
    }
    return there < PN_PUMP_LEAST || pn_arena_may_locked(&seg->topics.arena, index, &need);
}

/* One delivery out of the backlog, to all channels in memory.  False: there is no memory for it. */
static bool pump_to_memory(struct pn_segment *seg, struct pn_topic *topic, uint32_t at, int64_t now)
{
    struct pn_arena *mem = &seg->topics.arena;
    struct pn_delivery *own = pn_delivery_at(seg, at);
    struct pn_message *m = pn_message_at(seg, own->message);
    struct pn_topic_channel *last = NULL;
    uint32_t before = m->first;
    int64_t due = own->due > now ? own->due : 0;
    bool timed = m->expires != 0 || due != 0, room = may_pump(seg, topic, timed);
    PN_EACH_CHANNEL (seg, topic, i) {
        struct pn_topic_channel *ch = pn_topic_channel_at(seg, i - 1);
        bool without = pn_topic_channel_goes_without(topic, ch);
        ch->dropped += without;
        if (without)
            continue;
        room = room &&
               (last == NULL || pn_message_add_delivery_locked(seg, m, own->message, last, due));
        last = ch;
    }
    if (last == NULL) {
        pn_delivery_end_locked(seg, at);
        return true;
    }
    if (!room || (timed && !pn_timedset_reserve_locked(mem, m->topic, &last->timed, 1))) {
        give_back(seg, topic, m, before);
        return false;
    }
    m->firm = (uint16_t) (m->firm - 1 + (last->ephemeral == 0));
    topic->firm -= m->firm == 0;
    PN_CRASH("topic:pump");
    pn_delivery_take_over_locked(seg, at, last, now, timed);
    last->message_count++;
    uint32_t steps = 0;
    for (uint32_t ref = m->first; ref != before && pn_cells_go_on(seg, &steps);
         ref = pn_delivery_at(seg, ref)->of_message) {
        struct pn_topic_channel *ch = pn_topic_channel_at(seg, pn_delivery_at(seg, ref)->channel);
        ch->message_count++;
        ch->staged--;
        pn_delivery_enqueue_locked(seg, ref);
    }
    return true;
}

/* False: there is neither memory nor disk for it. */
static bool pump_one(struct pn_segment *seg, struct pn_topic *topic, uint32_t at, int64_t now)
{
    int rc = pn_rest_may(seg, topic) ? pn_rest_pump_locked(seg, topic, at, now, false) : 1;
    if (rc == 1 && pump_to_memory(seg, topic, at, now))
        return true;
    if (rc == 1 && pn_rest_may(seg, topic))
        rc = pn_rest_pump_locked(seg, topic, at, now, true);
    return rc == 0;
}

bool pn_topic_pump_locked(struct pn_segment *seg, struct pn_topic *topic)
{
    pn_assert_topics_held(seg);
    struct pn_topic_channel *own = pn_topic_channel_at(seg, (uint32_t) (topic - seg->topics.topic));
    int64_t now = pn_now_ns();
    for (uint32_t steps = 0; topic->paused == 0 && topic->nchannels != 0 && own->first != 0;
         steps++) {
        uint32_t at = own->first;
        const struct pn_message *m = pn_message_at(seg, pn_delivery_at(seg, at)->message);
        if (steps == PN_TOPIC_STEPS)
            return true;
        if (!pn_topic_may_write_locked(seg)) {
            topic->refilling = seg->topics.ctl->spilled = 1; /* the next hold goes on with it */
            return true;
        }
        if (pn_is_void(own, pn_delivery_at(seg, at))) {
            pn_delivery_end_locked(seg, at);
        } else if (m->expires != 0 && m->expires <= now) {
            topic->expired++;
            pn_delivery_end_locked(seg, at);
        } else if (!pump_one(seg, topic, at, now)) {
            return false; /* when there is room again: each get from a channel pumps */
        }
    }
    return false;
}

void pn_topic_go_on_locked(struct pn_segment *seg, struct pn_topic *topic)
{
    pn_assert_topics_held(seg);
    if (pn_load_relaxed(&topic->state) != PN_RECORD_USED)
        return;
    if (pn_topic_channel_at(seg, (uint32_t) (topic - seg->topics.topic))->ready != 0)
        pn_topic_pump_locked(seg, topic);
    pn_topic_settle_locked(seg, topic);
}
