/* returns.c - deliveries that come back: not answered in time, or of a consumer that is no more. */
#include "topic/returns.h"

#include "base/crashpoint.h"
#include "segment/lock.h"
#include "topic/area.h"
#include "topic/dead_letter.h"
#include "topic/delivery.h"
#include "topic/latency.h"
#include "topic/settings.h"
#include "topic/waiting.h"

/* Has the program not got it yet? */
static bool is_ahead(const struct pn_consumer_slot *c, const struct pn_delivery *d)
{
    return (int32_t) ((uint32_t) pn_load_relaxed(&c->handed) - d->claim) < 0;
}

void pn_delivery_return_locked(struct pn_segment *seg, uint32_t ref, enum pn_back where)
{
    pn_assert_topics_held(seg);
    struct pn_delivery *d = pn_delivery_at(seg, ref);
    struct pn_topic_channel *ch = pn_topic_channel_at(seg, d->channel);
    uint64_t word = pn_load_relaxed(&d->state);
    const struct pn_consumer_slot *c = pn_consumer_at(seg, pn_state_consumer(word));
    const struct pn_giving_up up = pn_giving_up_of(ch, c);
    uint32_t attempts = pn_state_attempts(word);
    if (is_ahead(c, d)) {
        /* the program has not seen it: it was not delivered */
        pn_delivery_back_locked(seg, ref, PN_BACK_HEAD, 0, attempts > 0 ? attempts - 1 : 0);
    } else if (up.max_attempts == 0 || attempts < up.max_attempts) {
        pn_delivery_back_locked(seg, ref, where, 0, attempts);
    } else if (up.dead_letter_len == 0) {
        ch->dropped++;
        pn_delivery_end_locked(seg, ref);
    } else if (pn_message_dead_letter_locked(seg, ref, NULL, 0) != 0) {
        pn_delivery_back_locked(seg, ref, where, 0, attempts); /* no room: it is not lost */
    }
}

static void time_out(struct pn_segment *seg, struct pn_topic_channel *ch,
                     struct pn_consumer_slot *c, uint32_t ref, int64_t now)
{
    const struct pn_delivery *d = pn_delivery_at(seg, ref);
    if (pn_is_void(ch, d)) {
        pn_delivery_end_locked(seg, ref);
        return;
    }
    if (is_ahead(c, d)) {
        const int64_t until = c->alive + c->msg_timeout;
        if (c->alive <= now && until > now)
            pn_delivery_touch_locked(seg, ref, until);
        else
            pn_delivery_return_locked(seg, ref, PN_BACK_HEAD);
        return;
    }
    c->timed_out++;
    ch->timed_out++;
    PN_CRASH("topic:timing-out");
    pn_note_timeout_locked(seg, ref, now);
    pn_delivery_return_locked(seg, ref, PN_BACK_TAIL);
}

void pn_delivery_time_out_locked(struct pn_segment *seg, uint32_t ref, int64_t now)
{
    pn_assert_topics_held(seg);
    uint64_t word = pn_load_relaxed(&pn_delivery_at(seg, ref)->state);
    struct pn_topic_channel *ch = pn_topic_channel_at(seg, pn_delivery_at(seg, ref)->channel);
    time_out(seg, ch, pn_consumer_at(seg, pn_state_consumer(word)), ref, now);
    pn_topic_channel_settle_locked(seg, ch);
}

bool pn_topic_channel_tick_locked(struct pn_segment *seg, struct pn_topic_channel *ch, int64_t now)
{
    pn_assert_topics_held(seg);
    uint32_t steps = PN_TOPIC_STEPS;
    if (pn_topic_channel_expire_locked(seg, ch, now, &steps))
        return true;
    if (ch->next_deadline > now)
        return false;
    PN_EACH_CONSUMER (seg, ch, i) {
        struct pn_consumer_slot *c = pn_consumer_at(seg, i - 1);
        while (c->first != 0 && pn_delivery_at(seg, c->first)->due <= now) {
            uint32_t ref = c->first;
            if (steps-- == 0 || pn_notes_full(seg))
                return true;
            time_out(seg, ch, c, ref, now);
            if (c->first == ref && pn_delivery_at(seg, ref)->due <= now)
                return pn_delivery_stays(seg, ref);
        }
    }
    ch->next_deadline = pn_topic_channel_deadline(seg, ch);
    return false;
}

void pn_topic_tick_locked(struct pn_segment *seg, struct pn_topic *topic)
{
    pn_assert_topics_held(seg);
    const int64_t now = pn_now_ns();
    PN_EACH_CHANNEL (seg, topic, i)
        pn_topic_channel_tick_locked(seg, pn_topic_channel_at(seg, i - 1), now);
    pn_topic_channel_tick_locked(
        seg, pn_topic_channel_at(seg, (uint32_t) (topic - seg->topics.topic)), now);
}
