/* staging.c - messages that are written, and become live (message.c 1, 2). */
#include "topic/staging.h"

#include "base/crashpoint.h"
#include "base/moment.h"
#include "segment/arena_body.h"
#include "segment/arena_share.h"
#include "segment/lock.h"
#include "topic/area.h"
#include "topic/channel_room.h"
#include "topic/delivery.h"
#include "topic/drop.h"
#include "topic/frontier.h"
#include "topic/message.h"
#include "topic/on_disk.h"
#include "topic/timedset.h"

enum { PN_DROPS = 4096 }; /* no more of them for one message */

static int64_t later_ns(int64_t now, int64_t by)
{
    return by <= 0 ? 0 : by > INT64_MAX - now ? INT64_MAX : now + by;
}

bool pn_message_add_delivery_locked(struct pn_segment *seg, struct pn_message *m, uint32_t ref,
                                    struct pn_topic_channel *ch, int64_t due)
{
    pn_assert_topics_held(seg);
    struct pn_arena *mem = &seg->topics.arena;
    bool backlog = pn_is_backlog(seg, ch);
    bool timed = m->expires != 0 || (due != 0 && !backlog);
    if (timed && !pn_timedset_reserve_locked(mem, m->topic, &ch->timed, 1))
        return false;
    uint32_t at = pn_arena_take_locked(mem, m->topic, PN_PAGE_DELIVERY);
    if (at == 0) {
        if (timed)
            pn_timedset_unreserve_locked(mem, &ch->timed, 1);
        return false;
    }
    pn_invariant(seg, "I26",
                 pn_arena_owner_of(mem, at) == m->topic && pn_arena_owner_of(mem, ref) == m->topic);
    struct pn_delivery *d = pn_delivery_at(seg, at);
    uint64_t word = pn_load_relaxed(&d->state);
    d->order = ch->next_order++;
    d->due = due;
    d->delivered_ns = 0;
    d->message = ref;
    d->channel = pn_topic_channel_index(seg, ch);
    d->prev = d->next = d->timed = 0;
    d->timed_reserved = timed;
    d->of_message = m->first;
    m->first = at;
    m->refs++;
    m->firm = (uint16_t) (m->firm + (ch->ephemeral == 0));
    ch->staged++;
    ch->bytes += pn_message_cost(m);
    PN_CRASH("publish:delivery");
    pn_store_release(&d->state,
                     pn_state_word(due != 0 && !backlog ? PN_KIND_DEFERRED : PN_KIND_READY, 0, 0,
                                   pn_state_tag(word)));
    PN_CRASH("publish:delivery-state");
    return true;
}

static bool add_deliveries(struct pn_segment *seg, struct pn_topic *topic, struct pn_message *m,
                           uint32_t ref, int64_t due, bool backlog, bool fits)
{
    struct pn_topic_channel *own = pn_topic_channel_at(seg, m->topic);
    const uint64_t bytes = (uint64_t) m->headers_len + m->body_len;
    bool before = own->ready != 0 || own->staged != 0; /* also of one transaction: in order */
    if (backlog || before || topic->paused != 0 || topic->nchannels == 0 ||
        (!fits && pn_rest_splits_locked(seg, topic, bytes, due != 0 || m->expires != 0)))
        return pn_message_add_delivery_locked(seg, m, ref, own, due);
    PN_EACH_CHANNEL (seg, topic, i) {
        struct pn_topic_channel *ch = pn_topic_channel_at(seg, i - 1);
        if (pn_topic_channel_goes_without(topic, ch))
            ch->dropped++;
        else if (!pn_message_add_delivery_locked(seg, m, ref, ch, due))
            return false;
    }
    return true;
}

/* Without deliveries; 0: no memory.  `shared`: no more than the topic's share allows. */
static uint32_t stage_body(struct pn_segment *seg, const struct pn_topic *topic,
                           const struct pn_new_message *in, const struct pn_moment *now,
                           bool shared)
{
    struct pn_arena *mem = &seg->topics.arena;
    uint64_t bytes = (uint64_t) in->body_len + in->headers_len;
    uint32_t index = (uint32_t) (topic - seg->topics.topic);
    bool cells;
    const struct pn_arena_need need =
        pn_message_need_of(seg, topic, bytes, in->delay_ns > 0 || in->ttl_ns > 0, &cells);
    if (shared && !pn_arena_may_locked(mem, index, &need))
        return 0;
    uint32_t ref = (cells ? pn_arena_take_cells_locked : pn_arena_take_body_locked)(
        mem, index, sizeof(struct pn_message), bytes);
    if (ref == 0)
        return 0;
    struct pn_message *m = pn_message_at(seg, ref);
    m->topic = (uint16_t) index;
    m->id = in->id;
    m->published_ns = now->real;
    m->published_mono = now->mono;
    m->expires = later_ns(now->mono, in->ttl_ns);
    m->body_len = in->body_len;
    m->headers_len = in->headers_len;
    m->first = 0;
    m->refs = m->firm = 0;
    m->prev = m->next = 0;
    const struct pn_piece pieces[] = {{in->headers, in->headers_len}, {in->body, in->body_len}};
    PN_CRASH("publish:cells");
    pn_store_release(&m->state, PN_MSG_STAGED);
    PN_CRASH("publish:staged");
    if (pn_arena_write_body(mem, ref, sizeof(struct pn_message), pieces, 2) == 0)
        return ref;
    pn_message_unstage_locked(seg, ref);
    return 0;
}

uint32_t pn_message_stage_locked(struct pn_segment *seg, struct pn_topic *topic,
                                 const struct pn_new_message *in, const struct pn_moment *now,
                                 bool backlog)
{
    pn_assert_topics_held(seg);
    uint32_t ref = stage_body(seg, topic, in, now, true);
    if (ref == 0 || add_deliveries(seg, topic, pn_message_at(seg, ref), ref,
                                   later_ns(now->mono, in->delay_ns), backlog, in->fits))
        return ref;
    pn_message_unstage_locked(seg, ref);
    return 0;
}

uint32_t pn_message_restore_begin_locked(struct pn_segment *seg, struct pn_topic *topic,
                                         const struct pn_new_message *m,
                                         const struct pn_moment *then, bool backlog, bool shared)
{
    pn_assert_topics_held(seg);
    uint32_t ref = stage_body(seg, topic, m, then, shared);
    if (ref != 0 && backlog &&
        !pn_message_add_delivery_locked(
            seg, pn_message_at(seg, ref), ref,
            pn_topic_channel_at(seg, (uint32_t) (topic - seg->topics.topic)),
            later_ns(then->mono, m->delay_ns))) {
        pn_message_unstage_locked(seg, ref);
        return 0;
    }
    return ref;
}

bool pn_message_restore_delivery_locked(struct pn_segment *seg, uint32_t ref, uint32_t channel,
                                        int64_t due, uint32_t attempts)
{
    pn_assert_topics_held(seg);
    struct pn_message *m = pn_message_at(seg, ref);
    if (!pn_message_add_delivery_locked(seg, m, ref, pn_topic_channel_at(seg, channel), due))
        return false;
    struct pn_delivery *d = pn_delivery_at(seg, m->first);
    uint64_t word = pn_load_relaxed(&d->state);
    pn_store_release(&d->state,
                     pn_state_word(pn_state_kind(word), attempts, 0, pn_state_tag(word)));
    return true;
}

void pn_message_unstage_locked(struct pn_segment *seg, uint32_t ref)
{
    pn_assert_topics_held(seg);
    struct pn_arena *mem = &seg->topics.arena;
    struct pn_message *m = pn_message_at(seg, ref);
    if (pn_load_relaxed(&m->state) == PN_MSG_PREPARED) {
        pn_topic_at(seg, m->topic)->staged--;
        seg->topics.ctl->prepared--;
    }
    uint32_t steps = 0;
    for (uint32_t at = m->first, next; at != 0 && pn_cells_go_on(seg, &steps); at = next) {
        struct pn_delivery *d = pn_delivery_at(seg, at);
        struct pn_topic_channel *ch = pn_topic_channel_at(seg, d->channel);
        next = d->of_message;
        ch->staged--;
        ch->bytes -= pn_message_cost(m);
        pn_store_release(
            &d->state, pn_state_word(PN_KIND_FREE, 0, 0, pn_state_tag(pn_load_relaxed(&d->state))));
        if (d->timed_reserved != 0)
            pn_timedset_unreserve_locked(mem, &ch->timed, d->timed_reserved);
        pn_arena_give_locked(mem, at);
        PN_CRASH("publish:unstaged");
    }
    m->first = 0;
    pn_arena_give_body_locked(mem, ref);
}

/* ---- going live ------------------------------------------------------------------------------ */

void pn_message_link_locked(struct pn_segment *seg, uint32_t ref)
{
    pn_assert_topics_held(seg);
    struct pn_message *m = pn_message_at(seg, ref);
    struct pn_topic *topic = pn_topic_at(seg, m->topic);
    pn_invariant(seg, "I21", m->first != 0 && m->refs != 0);
    m->next = 0;
    m->prev = topic->newest;
    if (m->prev != 0)
        pn_message_at(seg, m->prev)->next = ref;
    else
        topic->oldest = ref;
    topic->newest = ref;
    pn_frontier_linked_locked(seg, topic, ref);
    topic->messages++;
    topic->bytes += (uint64_t) m->headers_len + m->body_len;
    topic->firm += m->firm != 0;
    topic->message_count++;
    topic->message_bytes += m->body_len;
    PN_EACH_DELIVERY (seg, m, at) {
        struct pn_topic_channel *ch = pn_topic_channel_at(seg, pn_delivery_at(seg, at)->channel);
        ch->message_count++;
        ch->staged--;
        pn_delivery_enqueue_locked(seg, at);
    }
    PN_CRASH("publish:linked");
}

void pn_message_golive_locked(struct pn_segment *seg, uint32_t first)
{
    pn_assert_topics_held(seg);
    uint32_t steps = 0, linked = 0;
    for (uint32_t ref = first; ref != 0 && pn_cells_go_on(seg, &steps);
         ref = pn_message_at(seg, ref)->next) {
        pn_store_release(&pn_message_at(seg, ref)->state, PN_MSG_LIVE);
        PN_CRASH("publish:live");
    }
    pn_store_release(&seg->topics.ctl->redo.valid, 0);
    PN_CRASH("publish:redone");
    for (uint32_t ref = first, next; ref != 0 && pn_cells_go_on(seg, &linked); ref = next) {
        next = pn_message_at(seg, ref)->next;
        pn_message_link_locked(seg, ref);
    }
}

/* Each channel there is goes without a message, if it must. */
bool pn_topic_all_ephemeral(const struct pn_segment *seg, const struct pn_topic *topic)
{
    PN_EACH_CHANNEL (seg, topic, i)
        if (pn_topic_channel_at(seg, i - 1)->ephemeral == 0)
            return false;
    return topic->nchannels != 0;
}

uint32_t pn_message_stage_firm_locked(struct pn_segment *seg, struct pn_topic *topic,
                                      const struct pn_new_message *in, const struct pn_moment *now,
                                      bool backlog)
{
    pn_assert_topics_held(seg);
    uint32_t ref = pn_message_stage_locked(seg, topic, in, now, backlog);
    if (pn_topic_all_ephemeral(seg, topic))
        return ref; /* of these each goes without the new one */
    for (int i = 0; ref == 0 && i < PN_DROPS && pn_message_drop_soft_locked(seg, topic); i++)
        ref = pn_message_stage_locked(seg, topic, in, now, backlog);
    return ref;
}

uint32_t pn_topic_stage_given_locked(struct pn_segment *seg, struct pn_topic *topic,
                                     const struct pn_new_message *m, const struct pn_moment *then,
                                     const struct pn_spilled_deliveries *given, int64_t now,
                                     bool shared)
{
    pn_assert_topics_held(seg);
    struct pn_spilled_delivery d;
    uint32_t ref = pn_message_restore_begin_locked(seg, topic, m, then, false, shared);
    for (uint32_t i = 0; ref != 0 && i < given->n; i++) {
        if (!pn_spilled_delivery_locked(seg, topic, given, i, &d) ||
            pn_message_restore_delivery_locked(seg, ref, d.channel, d.due > now ? d.due : 0,
                                               d.attempts))
            continue;
        pn_message_unstage_locked(seg, ref);
        return 0;
    }
    return ref;
}

void pn_pump_give_back_locked(struct pn_segment *seg, struct pn_message *m, uint32_t before)
{
    pn_assert_topics_held(seg);
    struct pn_arena *mem = &seg->topics.arena;
    uint32_t steps = 0;
    while (m->first != before && pn_cells_go_on(seg, &steps)) {
        struct pn_delivery *d = pn_delivery_at(seg, m->first);
        uint32_t ref = m->first;
        struct pn_topic_channel *ch = pn_topic_channel_at(seg, d->channel);
        pn_store_release(
            &d->state, pn_state_word(PN_KIND_FREE, 0, 0, pn_state_tag(pn_load_relaxed(&d->state))));
        m->first = d->of_message;
        m->refs--;
        m->firm = (uint16_t) (m->firm - (ch->ephemeral == 0));
        ch->staged--;
        ch->bytes -= pn_message_cost(m);
        if (d->timed_reserved != 0)
            pn_timedset_unreserve_locked(mem, &ch->timed, d->timed_reserved);
        pn_arena_give_locked(mem, ref);
    }
}
