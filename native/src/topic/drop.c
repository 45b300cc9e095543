/* drop.c - whole messages that end: cancelled, or dropped for others (message.c 4, 5). */
#include "topic/drop.h"

#include "base/crashpoint.h"
#include "segment/lock.h"
#include "topic/area.h"
#include "topic/delivery.h"
#include "topic/frontier.h"

void pn_message_discard_locked(struct pn_segment *seg, uint32_t ref)
{
    pn_assert_topics_held(seg);
    struct pn_message *m = pn_message_at(seg, ref);
    uint32_t refs = m->refs, steps = 0;
    if (refs == 0) { /* the end of the last one frees it */
        pn_segment_poison(seg, "message %016llx has no deliveries", (unsigned long long) m->id);
        return;
    }
    pn_store_release(&m->state, PN_MSG_FREE);
    PN_CRASH("topic:discarded");
    while (refs-- > 0 && pn_cells_go_on(seg, &steps))
        pn_delivery_end_locked(seg, m->first);
}

/* Each channel that there is goes without so many. */
void pn_topic_count_without(struct pn_segment *seg, const struct pn_topic *topic, uint64_t n)
{
    PN_EACH_CHANNEL (seg, topic, i)
        pn_topic_channel_at(seg, i - 1)->dropped += n;
}

/* Of so many, which the topic's policy keeps from every channel. */
void pn_topic_count_dropped(struct pn_segment *seg, struct pn_topic *topic, uint64_t n)
{
    topic->dropped += n;
    pn_topic_count_without(seg, topic, n);
}

static void drop(struct pn_segment *seg, uint32_t ref)
{
    const struct pn_message *m = pn_message_at(seg, ref);
    PN_EACH_DELIVERY (seg, m, at) {
        struct pn_topic_channel *ch = pn_topic_channel_at(seg, pn_delivery_at(seg, at)->channel);
        if (pn_is_backlog(seg, ch)) /* every channel was to get it */
            pn_topic_count_without(seg, pn_topic_at(seg, m->topic), 1);
        else
            ch->dropped++;
    }
    pn_message_discard_locked(seg, ref);
}

/* Of those that no consumer works on; false: there is none. */
bool pn_message_drop_oldest_locked(struct pn_segment *seg, struct pn_topic *topic)
{
    pn_assert_topics_held(seg);
    uint32_t steps = (uint32_t) (seg->topics.memory / 32), ref;
    ref = pn_frontier_find_locked(seg, topic, &steps);
    if (ref == 0)
        return false;
    topic->dropped++;
    drop(seg, ref);
    return true;
}

bool pn_message_drop_soft_locked(struct pn_segment *seg, struct pn_topic *topic)
{
    pn_assert_topics_held(seg);
    uint32_t ref = 0;
    if (topic->messages != topic->firm)
        ref = pn_frontier_find_soft_locked(seg, topic, PN_TOPIC_STEPS);
    if (ref != 0)
        drop(seg, ref);
    return ref != 0;
}
