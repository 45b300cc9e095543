/*
 * rebuild_found.c - what exists: the tables, the truth of every cell, and the marks of the arena
 * that follow from it (rebuild_topics.c 1).
 *
 * What does not exist is freed, and nothing else of the truth is changed: after a death in here all
 * of it is done again, and finds the same.
 */
#include "recovery/rebuild_found.h"

#include "base/crashpoint.h"
#include "segment/arena_body.h"
#include "segment/arena_share.h"
#include "topic/frontier.h"
#include "topic/later.h"
#include "topic/message.h"
#include "topic/tables.h"
#include "topic/timedset.h"
#include "topic/tombstones.h"

/* ---- tables ---------------------------------------------------------------------------------- */

static void clear_topic(const struct pn_segment *seg, struct pn_topic *topic)
{
    topic->oldest = topic->newest = 0;
    topic->messages = topic->firm = topic->staged = 0;
    topic->bytes = 0;
    topic->rest_buried = topic->later_buried = 0;
    pn_later_forget_locked(seg, topic);
    topic->disk_staged = topic->buried = topic->refilling = 0;
    topic->stuck_seq = 0;
    topic->touched = 0;
    pn_frontier_forget(topic);
}

static void clear_channel(const struct pn_segment *seg, struct pn_topic_channel *ch)
{
    const struct pn_topic *topic = pn_topic_of(seg, ch);
    if (pn_load_relaxed(&ch->state) == PN_RECORD_USED &&
        (pn_load_relaxed(&topic->state) != PN_RECORD_USED ||
         topic->generation != ch->topic_generation))
        pn_store_release(&ch->state, PN_RECORD_DELETED);
    ch->swept_below = ch->discarded_below;
    if (ch->next_order < ch->discarded_below && ch->discarded_below != UINT64_MAX)
        ch->next_order = ch->discarded_below;
    ch->first = ch->last = ch->ready = ch->deferred = ch->in_flight = ch->held = 0;
    ch->staged = 0;
    ch->bytes = ch->rest_stuck = 0;
    ch->later_look = 0;
    if (ch->rest_cursor[pn_load_relaxed(&ch->rests) == 2].seq >=
        pn_diskqueue_now(&topic->rest)->write_seq) /* it never began to, or has all of it */
        pn_store_release(&ch->rests, 0);
    ch->first_consumer = ch->consumers = ch->samplers = ch->waiting = ch->notified = 0;
    ch->leaving = ch->throttled = 0;
    ch->next_deadline = INT64_MAX;
    pn_timedset_forget_locked(&seg->topics.arena, &ch->timed);
}

/* kind: 0 topics, 1 channels */
bool pn_rebuild_tables_locked(struct pn_rebuild_step *s)
{
    pn_assert_held(s->seg);
    struct pn_topics *t = &s->seg->topics;
    uint32_t row;
    for (; s->at->kind == 0 && s->left > 0 && pn_rebuild_row(s, t->max_topics, &row); s->left--)
        clear_topic(s->seg, &t->topic[row]);
    if (s->left <= 0)
        return false;
    if (s->at->kind == 0)
        s->at->kind = 1, s->at->cursor = 0;
    for (; s->left > 0 && pn_rebuild_row(s, t->max_channels, &row); s->left--)
        clear_channel(s->seg, &t->channel[row]);
    if (s->left <= 0)
        return false;
    t->ctl->topic_hint = t->ctl->consumer_hint = t->ctl->prepared = t->ctl->refill_next = 0;
    t->ctl->channel_hint = t->max_topics;
    t->ctl->deleted = t->ctl->spilled = t->ctl->sweeping = 1; /* perhaps */
    pn_tombstones_recover_locked(s->seg);
    pn_arena_rebuild_begin_locked(&t->arena);
    s->left -= (PN_TOMBSTONES + t->arena.owners) / 4; /* less than a look at a cell each */
    return true;
}

/* ---- what exists ----------------------------------------------------------------------------- */

static bool owner_lives(const struct pn_segment *seg, const struct pn_message *m)
{
    return m->prev < seg->max_backends &&
           pn_load_relaxed(&seg->backend[m->prev].state) == PN_SLOT_CLAIMED &&
           pn_load_relaxed(&seg->backend[m->prev].generation) == m->next;
}

static bool is_message(const struct pn_segment *seg, uint32_t ref)
{
    uint16_t state = pn_load_relaxed(&pn_message_at(seg, ref)->state);
    return state == PN_MSG_LIVE || state == PN_MSG_PREPARED;
}

static void look_at_message(struct pn_segment *seg, uint32_t ref)
{
    const struct pn_topic_redo *redo = &seg->topics.ctl->redo;
    struct pn_message *m = pn_message_at(seg, ref);
    if (pn_load_relaxed(&m->state) == PN_MSG_LIVE &&
        m->id - redo->void_first < pn_load_relaxed(&redo->void_n))
        pn_store_release(&m->state, PN_MSG_FREE);
    if (pn_load_relaxed(&m->state) == PN_MSG_STAGED ||
        (pn_load_relaxed(&m->state) == PN_MSG_PREPARED && !owner_lives(seg, m)))
        pn_store_release(&m->state, PN_MSG_FREE);
    if (!is_message(seg, ref))
        return;
    if (m->topic >= seg->topics.max_topics)
        pn_store_release(&m->state, PN_MSG_FREE);
    m->first = 0;
    m->refs = m->firm = 0;
}

static void messages_of_page(struct pn_rebuild_step *s)
{
    pn_arena_unmark_page_locked(&s->seg->topics.arena, s->page);
    PN_EACH_CELL_HERE(s, PN_PAGE_BODY, ref)
    look_at_message(s->seg, (uint32_t) ref);
}

bool pn_rebuild_messages_locked(struct pn_rebuild_step *s)
{
    pn_assert_held(s->seg);
    return pn_rebuild_each_page(s, messages_of_page);
}

static bool exists(struct pn_segment *seg, const struct pn_delivery *d)
{
    if (pn_state_kind(pn_load_relaxed(&d->state)) == PN_KIND_FREE ||
        d->channel >= seg->topics.max_channels ||
        !pn_arena_valid(&seg->topics.arena, d->message, PN_PAGE_BODY))
        return false;
    const struct pn_topic_channel *ch = pn_topic_channel_at(seg, d->channel);
    if (!is_message(seg, d->message))
        return false;
    if (pn_load_relaxed(&pn_message_at(seg, d->message)->state) == PN_MSG_PREPARED ||
        pn_state_kind(pn_load_relaxed(&d->state)) == PN_KIND_HELD)
        return pn_load_relaxed(&ch->state) != PN_RECORD_FREE; /* its transaction will see */
    return pn_load_relaxed(&ch->state) == PN_RECORD_USED && !pn_is_void(ch, d);
}

static void free_word(struct pn_delivery *d)
{
    pn_store_release(&d->state,
                     pn_state_word(PN_KIND_FREE, 0, 0, pn_state_tag(pn_load_relaxed(&d->state))));
}

static void deliveries_of_page(struct pn_rebuild_step *s)
{
    PN_EACH_CELL_HERE(s, PN_PAGE_DELIVERY, ref)
    {
        struct pn_delivery *d = pn_delivery_at(s->seg, (uint32_t) ref);
        d->timed = d->timed_reserved = 0;
        if (!exists(s->seg, d)) {
            free_word(d);
            continue;
        }
        struct pn_message *m = pn_message_at(s->seg, d->message);
        d->of_message = m->first;
        m->first = (uint32_t) ref;
        m->refs++;
        m->firm = (uint16_t) (m->firm + (pn_topic_channel_at(s->seg, d->channel)->ephemeral == 0));
    }
}

bool pn_rebuild_deliveries_locked(struct pn_rebuild_step *s)
{
    pn_assert_held(s->seg);
    if (s->at->cursor == 0)
        pn_store_release(&s->seg->topics.ctl->redo.void_n, 0); /* none of them is left */
    return pn_rebuild_each_page(s, deliveries_of_page);
}

/* It has a delivery in the backlog: then no other. */
static void unpump(struct pn_segment *seg, struct pn_message *m)
{
    uint32_t own = 0;
    PN_EACH_DELIVERY (seg, m, at)
        if (pn_is_backlog(seg, pn_topic_channel_at(seg, pn_delivery_at(seg, at)->channel)))
            own = at;
    if (own == 0 || m->refs == 1)
        return;
    PN_EACH_DELIVERY (seg, m, at)
        if (at != own)
            free_word(pn_delivery_at(seg, at));
    PN_CRASH("topic-recover:unpumped");
    m->first = own;
    pn_delivery_at(seg, own)->of_message = 0;
    m->refs = m->firm = 1;
}

/* Its cells, however many: the units that this has taken, or -errno. */
static int mark_message(struct pn_segment *seg, uint32_t ref)
{
    struct pn_message *m = pn_message_at(seg, ref);
    uint64_t bytes = (uint64_t) m->body_len + m->headers_len;
    if (!is_message(seg, ref))
        return 0;
    unpump(seg, m);
    if (m->refs == 0) {
        pn_store_release(&m->state, PN_MSG_FREE);
        return 0;
    }
    if (!pn_arena_mark_body_locked(&seg->topics.arena, ref, sizeof *m, bytes))
        return pn_segment_poison(seg, "the body of message %016llx is broken",
                                 (unsigned long long) m->id);
    return (int) (m->refs + bytes / PN_ARENA_PAGE);
}

int pn_rebuild_bodies_locked(struct pn_rebuild_step *s, bool *done)
{
    pn_assert_held(s->seg);
    for (; pn_rebuild_page(s, done); pn_rebuild_page_done(s))
        PN_EACH_CELL_HERE(s, PN_PAGE_BODY, ref)
        {
            int rc = mark_message(s->seg, (uint32_t) ref);
            if (rc < 0)
                return rc;
            s->left -= rc;
        }
    return 0;
}

static void mark_deliveries_of_page(struct pn_rebuild_step *s)
{
    struct pn_segment *seg = s->seg;
    PN_EACH_CELL_HERE(s, PN_PAGE_DELIVERY, ref)
    if (pn_state_kind(pn_load_relaxed(&pn_delivery_at(seg, (uint32_t) ref)->state)) !=
            PN_KIND_FREE &&
        !pn_arena_mark_locked(&seg->topics.arena, (uint32_t) ref, PN_PAGE_DELIVERY))
        pn_segment_poison(seg, "delivery %u is broken", (uint32_t) ref);
}

bool pn_rebuild_delivery_marks_locked(struct pn_rebuild_step *s)
{
    pn_assert_held(s->seg);
    return pn_rebuild_each_page(s, mark_deliveries_of_page);
}

bool pn_rebuild_histograms_locked(struct pn_rebuild_step *s)
{
    pn_assert_held(s->seg);
    struct pn_topics *t = &s->seg->topics;
    uint32_t row;
    for (; s->left > 0 && pn_rebuild_row(s, t->max_channels, &row); s->left--) {
        struct pn_topic_channel *ch = &t->channel[row];
        if (pn_load_relaxed(&ch->state) != PN_RECORD_USED ||
            !pn_arena_valid(&t->arena, ch->histogram, PN_PAGE_WHOLE) ||
            !pn_arena_mark_locked(&t->arena, ch->histogram, PN_PAGE_WHOLE))
            ch->histogram = 0;
    }
    return pn_rebuild_cursor(s) >= t->max_channels;
}

/* The cursor counts those that are done. */
bool pn_rebuild_pages_locked(struct pn_rebuild_step *s)
{
    pn_assert_held(s->seg);
    struct pn_arena *mem = &s->seg->topics.arena;
    uint32_t n = pn_arena_pages_used(mem) - mem->first, done;
    for (; s->left > 0 && pn_rebuild_row(s, n, &done); s->left -= 4)
        pn_arena_settle_page_locked(mem, mem->first + n - 1 - done, PN_TAG_MASK);
    if (pn_rebuild_cursor(s) < n)
        return false;
    for (uint32_t i = 0; i < s->seg->topics.max_topics; i++)
        mem->owner[i].counts = pn_load_relaxed(&s->seg->topics.topic[i].state) == PN_RECORD_USED;
    pn_arena_share_locked(mem);
    pn_topics_link_locked(s->seg);
    s->left -= s->seg->topics.max_channels / 4;
    return true;
}
