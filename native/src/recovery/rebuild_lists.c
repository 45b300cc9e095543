/*
 * rebuild_lists.c - what exists is put into its lists, in any order: consumers on their channels,
 * deliveries and messages where they belong; with the counts (rebuild_topics.c 1).
 */
#include "recovery/rebuild_lists.h"

#include "segment/segment.h"
#include "topic/message.h"
#include "topic/tables.h"
#include "topic/timedset.h"

static void attach_consumer(struct pn_segment *seg, uint32_t i)
{
    struct pn_consumer_slot *c = pn_consumer_at(seg, i);
    c->first = c->last = c->in_flight = c->cursor = c->next = c->prev = 0;
    uint32_t slot = *(volatile const uint32_t *) &c->slot;
    if (pn_load_relaxed(&c->state) != PN_RECORD_USED || slot >= seg->max_backends)
        return;
    pn_fetch_or(&seg->consuming[slot / 64], 1ULL << (slot % 64));
    struct pn_topic_channel *ch = pn_topic_channel_at(seg, c->channel);
    if (pn_load_relaxed(&ch->state) != PN_RECORD_USED || ch->generation != c->channel_generation) {
        if (pn_load_relaxed(&c->wait) != PN_CONSUMER_BUSY) /* it is to see that */
            pn_store_release(&c->wait, PN_CONSUMER_NOTIFIED);
        return;
    }
    pn_consumer_link(seg, ch, i);
    ch->waiting += pn_load_relaxed(&c->wait) == PN_CONSUMER_WAITING;
    ch->notified += pn_load_relaxed(&c->wait) == PN_CONSUMER_NOTIFIED;
    ch->leaving += pn_load_relaxed(&c->wait) == PN_CONSUMER_LEAVING;
    ch->throttled += pn_load_relaxed(&c->wait) == PN_CONSUMER_THROTTLED;
}

bool pn_rebuild_consumers_locked(struct pn_rebuild_step *s)
{
    pn_assert_held(s->seg);
    struct pn_segment *seg = s->seg;
    uint32_t row;
    if (s->at->cursor == 0)
        for (uint32_t word = 0; word < seg->words; word++)
            pn_store_relaxed(&seg->consuming[word], 0);
    for (; s->left > 0 && pn_rebuild_row(s, seg->topics.max_consumers, &row); s->left--)
        attach_consumer(seg, row);
    return pn_rebuild_cursor(s) >= seg->topics.max_consumers;
}

/* The error of a step is that of any call, also of notify(), and would come again each time. */
static int no_room(struct pn_segment *seg)
{
    return pn_segment_poison(seg, "there is no room in topic_memory for what was in it before");
}

/* Its place in the timed set, which had room for it before the death, and so has it now. */
static int place_timed(struct pn_segment *seg, struct pn_topic_channel *ch, uint32_t ref,
                       int64_t due)
{
    const struct pn_delivery *d = pn_delivery_at(seg, ref);
    if (!pn_timedset_reserve_locked(&seg->topics.arena, ch->topic, &ch->timed, 1))
        return no_room(seg);
    pn_timedset_add_locked(
        &seg->topics.arena, &ch->timed,
        (struct pn_timed) {
            .due = due, .ref = ref, .low = (uint32_t) pn_message_at(seg, d->message)->id});
    return 0;
}

static int lend(struct pn_segment *seg, struct pn_topic_channel *ch, struct pn_delivery *d)
{
    if (pn_message_at(seg, d->message)->expires == 0)
        return 0;
    if (!pn_timedset_reserve_locked(&seg->topics.arena, ch->topic, &ch->timed, 1))
        return no_room(seg);
    d->timed_reserved = 1;
    return 0;
}

static int push_flight(struct pn_segment *seg, struct pn_topic_channel *ch, uint32_t ref)
{
    struct pn_delivery *d = pn_delivery_at(seg, ref);
    uint64_t word = pn_load_relaxed(&d->state);
    struct pn_consumer_slot *c = pn_consumer_at(seg, pn_state_consumer(word));
    ch->in_flight++;
    if (pn_state_kind(word) == PN_KIND_HELD) {
        seg->topics.ctl->prepared++;
        ch->held++;
    } else {
        d->next = c->first;
        c->first = ref;
        c->in_flight++;
        if (d->due < ch->next_deadline)
            ch->next_deadline = d->due;
    }
    return lend(seg, ch, d);
}

static int push(struct pn_segment *seg, uint32_t ref)
{
    struct pn_delivery *d = pn_delivery_at(seg, ref);
    struct pn_topic_channel *ch = pn_topic_channel_at(seg, d->channel);
    const struct pn_message *m = pn_message_at(seg, d->message);
    uint64_t word = pn_load_relaxed(&d->state);
    enum pn_delivery_kind kind = pn_is_backlog(seg, ch) ? PN_KIND_READY : pn_state_kind(word);
    if (d->order >= ch->next_order)
        ch->next_order = d->order + 1;
    ch->bytes += pn_message_cost(m);
    if (pn_load_relaxed(&m->state) == PN_MSG_PREPARED) {
        ch->staged++;
        return lend(seg, ch, d);
    }
    if (kind == PN_KIND_IN_FLIGHT) {
        const struct pn_consumer_slot *c = pn_consumer_at(seg, pn_state_consumer(word));
        if (pn_load_relaxed(&c->state) != PN_RECORD_USED || c->channel != d->channel ||
            c->channel_generation != ch->generation) {
            kind = PN_KIND_READY;
            pn_store_release(&d->state,
                             pn_state_word(kind, pn_state_attempts(word), 0, pn_state_tag(word)));
        }
    }
    if (kind == PN_KIND_IN_FLIGHT || kind == PN_KIND_HELD)
        return push_flight(seg, ch, ref);
    if (kind == PN_KIND_DEFERRED) {
        ch->deferred++;
        return place_timed(seg, ch, ref,
                           m->expires != 0 && m->expires < d->due ? m->expires : d->due);
    }
    d->next = ch->first;
    ch->first = ref;
    ch->ready++;
    return m->expires != 0 ? place_timed(seg, ch, ref, m->expires) : 0;
}

/* Also of what there is no room for: then not all is pushed. */
int pn_rebuild_push_locked(struct pn_rebuild_step *s, bool *done)
{
    pn_assert_held(s->seg);
    const struct pn_arena *mem = &s->seg->topics.arena;
    for (; pn_rebuild_page(s, done); pn_rebuild_page_done(s))
        PN_EACH_CELL_HERE(s, PN_PAGE_DELIVERY, ref)
        {
            int rc = pn_arena_taken(mem, (uint32_t) ref, PN_PAGE_DELIVERY)
                         ? push(s->seg, (uint32_t) ref)
                         : 0;
            if (rc != 0)
                return rc;
        }
    return 0;
}

static void list_messages_of_page(struct pn_rebuild_step *s)
{
    struct pn_topic_control *ctl = s->seg->topics.ctl;
    PN_EACH_CELL_HERE(s, PN_PAGE_BODY, ref)
    {
        struct pn_message *m = pn_message_at(s->seg, (uint32_t) ref);
        uint16_t state = pn_load_relaxed(&m->state);
        struct pn_topic *topic = pn_topic_at(s->seg, m->topic);
        ctl->prepared += state == PN_MSG_PREPARED;
        topic->staged += state == PN_MSG_PREPARED;
        if (state != PN_MSG_LIVE)
            continue;
        m->next = topic->oldest;
        topic->oldest = (uint32_t) ref;
        topic->messages++;
        topic->bytes += (uint64_t) m->headers_len + m->body_len;
        topic->firm += m->firm != 0;
    }
}

bool pn_rebuild_list_locked(struct pn_rebuild_step *s)
{
    pn_assert_held(s->seg);
    return pn_rebuild_each_page(s, list_messages_of_page);
}
