/* sweep.c - what was deleted or emptied is freed, in steps (topic.c 3). */
#include "topic/sweep.h"

#include "base/crashpoint.h"
#include "segment/arena_share.h"
#include "segment/lock.h"
#include "topic/area.h"
#include "topic/delivery.h"
#include "topic/on_disk.h"

bool pn_topic_sweep_one_locked(struct pn_segment *seg, struct pn_topic_channel *ch)
{
    pn_assert_topics_held(seg);
    uint32_t steps = PN_TOPIC_STEPS;
    return pn_topic_channel_sweep_locked(seg, ch, &steps);
}

/* Nothing is in it any more: its consumers stand in no list, the record is free. */
static void free_queue(struct pn_segment *seg, struct pn_topic_channel *ch)
{
    struct pn_topic_control *ctl = seg->topics.ctl;
    for (uint32_t i = ch->first_consumer, next; i != 0; i = next) {
        next = pn_consumer_at(seg, i - 1)->next;
        pn_consumer_at(seg, i - 1)->next = pn_consumer_at(seg, i - 1)->prev = 0;
    }
    ch->first_consumer = 0;
    if (ch->histogram != 0)
        pn_arena_give_locked(&seg->topics.arena, ch->histogram);
    ch->histogram = 0;
    pn_store_release(&ch->state, PN_RECORD_FREE);
    PN_CRASH("topic:channel-freed");
    uint32_t i = pn_topic_channel_index(seg, ch);
    if (i >= seg->topics.max_topics && i < ctl->channel_hint)
        ctl->channel_hint = i;
}

bool pn_topics_sweep_locked(struct pn_segment *seg)
{
    pn_assert_topics_held(seg);
    struct pn_topics *t = &seg->topics;
    uint32_t left = 0;
    for (uint32_t i = 0; i < t->max_channels; i++) {
        struct pn_topic_channel *ch = &t->channel[i];
        uint32_t state = pn_load_relaxed(&ch->state);
        if (state != PN_RECORD_FREE && pn_topic_sweep_one_locked(seg, ch))
            return true;
        if (state != PN_RECORD_DELETED)
            continue;
        if (ch->held != 0 || (pn_is_backlog(seg, ch) && t->topic[i].staged != 0))
            left++; /* of a prepared transaction: when that has ended */
        else
            free_queue(seg, ch);
    }
    for (uint32_t i = 0; i < t->max_topics; i++) {
        if (pn_load_relaxed(&t->topic[i].state) != PN_RECORD_DELETED)
            continue;
        if (pn_load_relaxed(&t->channel[i].state) == PN_RECORD_DELETED ||
            t->topic[i].messages != 0 || t->topic[i].staged != 0) {
            left++;
            continue;
        }
        pn_topic_disk_delete_locked(seg, &t->topic[i]);
        pn_store_release(&t->topic[i].state, PN_RECORD_FREE);
        PN_CRASH("topic:freed");
        if (i < t->ctl->topic_hint)
            t->ctl->topic_hint = i;
    }
    t->ctl->deleted = left;
    t->ctl->sweeping = 0;
    return false;
}
