/*
 * recover_topics.c - topics after the death of a lock holder: everything derived, from the truth.
 *
 * 1. First the truth is completed: what a valid redo record says, and what committed entries of
 *    the queue say (recover.c calls pn_topic_redo_entry_locked() before), is stored again.  Both
 *    may be done any number of times.
 * 2. Then what exists is found by looking at every cell: messages that are LIVE, or PREPARED by a
 *    slot that lives; deliveries that are not FREE, not void, in a channel in use, and of such a
 *    message.  A message in a backlog and in channels as well was half pumped, and is in the
 *    backlog (message.c 3); one without a delivery is free.  The rest of the arena is free.
 * 3. Then the lists: pushed in any order, and sorted by merging, without memory.
 * 4. All of it may be repeated: `topics_dirty` is cleared at the end.  It costs a look at each
 *    cell of the arena, which is what a death under the lock costs and nothing else does.
 */
#include "recovery/recover_topics.h"

#include <errno.h>
#include <string.h>

#include "base/crashpoint.h"
#include "segment/arena_share.h"
#include "segment/lock.h"
#include "topic/cancel.h"
#include "topic/delivery.h"
#include "topic/message.h"
#include "topic/pump.h"
#include "topic/timedset.h"

/* ---- redo ------------------------------------------------------------------------------------ */

static void redo_publish(struct pn_segment *seg, uint32_t ref)
{
    uint32_t limit = seg->topics.arena.pages * PN_BODY_CELLS; /* a scribbled chain may be a ring */
    for (; ref != 0 && limit > 0; ref = pn_message_at(seg, ref)->next, limit--) {
        struct pn_message *m = pn_message_at(seg, ref);
        if (pn_load_relaxed(&m->state) == PN_MSG_STAGED)
            pn_store_release(&m->state, PN_MSG_LIVE);
        PN_CRASH("topic-recover:live");
    }
}

static void redo_record(struct pn_segment *seg)
{
    struct pn_topic_redo *redo = &seg->topics.ctl->redo;
    if (pn_load_relaxed(&redo->valid) == 0)
        return;
    redo_publish(seg, redo->messages);
    struct pn_delivery *d = pn_delivery_at(seg, redo->delivery);
    if (redo->delivery != 0 && pn_load_relaxed(&d->state) == redo->expected)
        pn_store_release(&d->state,
                         pn_state_word(PN_KIND_FREE, 0, 0, pn_state_tag(redo->expected)));
    pn_topic_disk_redo_locked(seg);
    if (redo->spill != 0 && (redo->rest & PN_REDO_REST) != 0)
        pn_diskqueue_commit(&pn_topic_at(seg, redo->spill - 1)->rest, redo->spill_seq);
    else if (redo->spill != 0)
        pn_topic_spill_commit_locked(seg, pn_topic_at(seg, redo->spill - 1), redo->spill_seq);
    PN_CRASH("topic-recover:redo");
    pn_store_release(&redo->valid, 0);
    PN_CRASH("topic-recover:redone");
}

bool pn_topic_entry_possible(const struct pn_segment *seg, const AsyncQueueEntry *qe)
{
    const struct pn_arena *mem = &seg->topics.arena;
    if (pn_topics_ready(seg) && qe->kind == PN_ENTRY_SPILL)
        return qe->channel_hash < seg->topics.max_topics && qe->payload_len == 0;
    if (pn_topics_ready(seg) && qe->kind == PN_ENTRY_BURY)
        return qe->channel_hash > 0 && qe->channel_hash <= PN_TOMBSTONES &&
               (qe->payload_len == 0 || qe->payload_len == sizeof(struct pn_buried_too));
    if (!pn_topics_ready(seg) || !pn_arena_inside(mem, qe->channel_hash))
        return false;
    if (qe->kind == PN_ENTRY_ANSWER)
        return qe->payload_len == sizeof(struct pn_answer_redo);
    return (qe->kind == PN_ENTRY_PUBLISH || qe->kind == PN_ENTRY_CANCEL) && qe->payload_len == 0;
}

#define EACH_CELL(seg, class, ref)                                                                 \
    for (uint32_t ref = pn_arena_next_cell(&(seg)->topics.arena, class, 0); ref != 0;              \
         ref = pn_arena_next_cell(&(seg)->topics.arena, class, ref))

/* And of its copies those that are there (topic/rest.c 2). */
static void redo_cancel(struct pn_segment *seg, uint32_t ref, uint64_t id)
{
    struct pn_message *m = pn_message_at(seg, ref);
    bool copies = false; /* the cell may be another topic's by now, so all topics are asked */
    for (uint32_t i = 0; i < seg->topics.max_topics && !copies; i++)
        copies = seg->topics.topic[i].rest.max_file != 0;
    if (m->id == id && pn_load_relaxed(&m->state) == PN_MSG_LIVE)
        pn_store_release(&m->state, PN_MSG_FREE);
    if (!copies)
        return;
    EACH_CELL (seg, PN_PAGE_BODY, at) {
        m = pn_message_at(seg, at);
        if (pn_arena_valid(&seg->topics.arena, at, PN_PAGE_BODY) && m->id == id &&
            pn_load_relaxed(&m->state) == PN_MSG_LIVE)
            pn_store_release(&m->state, PN_MSG_FREE);
    }
}

int pn_topic_redo_entry_locked(struct pn_segment *seg, const AsyncQueueEntry *qe)
{
    pn_assert_held(seg);
    struct pn_answer_redo redo;
    if (!pn_topic_entry_possible(seg, qe))
        return pn_segment_poison(seg, "an entry changes message or delivery %u, which is not",
                                 qe->channel_hash);
    if (qe->kind == PN_ENTRY_PUBLISH) {
        if (pn_message_at(seg, qe->channel_hash)->id == qe->chan_seq)
            redo_publish(seg, qe->channel_hash);
        return 0;
    }
    if (qe->kind == PN_ENTRY_SPILL) {
        pn_topic_spill_commit_locked(seg, pn_topic_at(seg, qe->channel_hash), qe->chan_seq);
        return 0;
    }
    if (qe->kind == PN_ENTRY_BURY) {
        struct pn_buried_too too = {.message = 0};
        pn_tombstone_bury_locked(seg, qe->channel_hash, qe->chan_seq);
        if (qe->payload_len == sizeof too)
            memcpy(&too, qe->data + qe->channel_len, sizeof too);
        if (too.message != 0)
            redo_cancel(seg, too.message, too.id);
        return 0;
    }
    if (qe->kind == PN_ENTRY_CANCEL) {
        redo_cancel(seg, qe->channel_hash, qe->chan_seq);
        PN_CRASH("topic-recover:cancel");
        return 0;
    }
    struct pn_delivery *d = pn_delivery_at(seg, qe->channel_hash);
    memcpy(&redo, qe->data + qe->channel_len, sizeof redo);
    if (pn_load_relaxed(&d->state) != qe->chan_seq)
        return 0; /* done */
    d->order = redo.order;
    d->due = redo.due;
    pn_store_release(&d->state, redo.word);
    PN_CRASH("topic-recover:answer");
    return 0;
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

static void clear_messages(struct pn_segment *seg)
{
    const struct pn_topic_redo *redo = &seg->topics.ctl->redo;
    uint64_t void_n = pn_load_relaxed(&redo->void_n);
    EACH_CELL (seg, PN_PAGE_BODY, ref) {
        struct pn_message *m = pn_message_at(seg, ref);
        if (pn_load_relaxed(&m->state) == PN_MSG_LIVE && m->id - redo->void_first < void_n)
            pn_store_release(&m->state, PN_MSG_FREE);
        if (pn_load_relaxed(&m->state) == PN_MSG_STAGED ||
            (pn_load_relaxed(&m->state) == PN_MSG_PREPARED && !owner_lives(seg, m)))
            pn_store_release(&m->state, PN_MSG_FREE);
        if (!is_message(seg, ref))
            continue;
        if (m->topic >= seg->topics.max_topics)
            pn_store_release(&m->state, PN_MSG_FREE);
        m->first = 0;
        m->refs = m->firm = 0;
    }
    PN_CRASH("topic-recover:messages");
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

static void chain_deliveries(struct pn_segment *seg)
{
    EACH_CELL (seg, PN_PAGE_DELIVERY, ref) {
        struct pn_delivery *d = pn_delivery_at(seg, ref);
        d->timed = d->lent = 0;
        if (!exists(seg, d)) {
            free_word(d);
            continue;
        }
        struct pn_message *m = pn_message_at(seg, d->message);
        d->of_message = m->first;
        m->first = ref;
        m->refs++;
        m->firm = (uint16_t) (m->firm + (pn_topic_channel_at(seg, d->channel)->ephemeral == 0));
    }
    PN_CRASH("topic-recover:deliveries");
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

static int mark_messages(struct pn_segment *seg)
{
    struct pn_arena *mem = &seg->topics.arena;
    EACH_CELL (seg, PN_PAGE_BODY, ref) {
        struct pn_message *m = pn_message_at(seg, ref);
        if (!is_message(seg, ref))
            continue;
        unpump(seg, m);
        if (m->refs == 0) {
            pn_store_release(&m->state, PN_MSG_FREE);
            continue;
        }
        if (!pn_arena_mark_body_locked(mem, ref, sizeof *m,
                                       (uint64_t) m->body_len + m->headers_len))
            return pn_segment_poison(seg, "the body of message %016llx is broken",
                                     (unsigned long long) m->id);
    }
    EACH_CELL (seg, PN_PAGE_DELIVERY, ref)
        if (pn_state_kind(pn_load_relaxed(&pn_delivery_at(seg, ref)->state)) != PN_KIND_FREE &&
            !pn_arena_mark_locked(mem, ref, PN_PAGE_DELIVERY))
            return pn_segment_poison(seg, "delivery %u is broken", ref);
    for (uint32_t i = 0; i < seg->topics.max_channels; i++) {
        struct pn_topic_channel *ch = &seg->topics.channel[i];
        if (pn_load_relaxed(&ch->state) != PN_RECORD_USED ||
            !pn_arena_valid(mem, ch->histogram, PN_PAGE_WHOLE) ||
            !pn_arena_mark_locked(mem, ch->histogram, PN_PAGE_WHOLE))
            ch->histogram = 0;
    }
    return 0;
}

/* ---- lists ----------------------------------------------------------------------------------- */

/* What a list is sorted by, and how it is linked. */
enum sorted { BY_ORDER, BY_DUE, BY_ID };

static uint64_t key(const struct pn_segment *seg, enum sorted by, uint32_t ref)
{
    return by == BY_ORDER ? pn_delivery_at(seg, ref)->order
           : by == BY_DUE ? (uint64_t) pn_delivery_at(seg, ref)->due
                          : pn_message_at(seg, ref)->id;
}

static uint32_t *link_of(const struct pn_segment *seg, enum sorted by, uint32_t ref)
{
    return by == BY_ID ? &pn_message_at(seg, ref)->next : &pn_delivery_at(seg, ref)->next;
}

static uint32_t merge(const struct pn_segment *seg, enum sorted by, uint32_t a, uint32_t b)
{
    uint32_t first = 0, *tail = &first, steps = 0;
    while (a != 0 && b != 0 && pn_cells_go_on(seg, &steps)) {
        uint32_t *from = key(seg, by, a) <= key(seg, by, b) ? &a : &b;
        *tail = *from;
        tail = link_of(seg, by, *from);
        *from = *tail;
    }
    *tail = a != 0 ? a : b;
    return first;
}

/* Bottom up, as lists of 1, 2, 4 ... are merged; then the links back. */
static uint32_t sort(const struct pn_segment *seg, enum sorted by, uint32_t list, uint32_t *last)
{
    uint32_t part[32] = {0}, all = 0, steps = 0, walked = 0;
    while (list != 0 && pn_cells_go_on(seg, &steps)) {
        uint32_t one = list, i = 0;
        list = *link_of(seg, by, one);
        *link_of(seg, by, one) = 0;
        for (; i < 31 && part[i] != 0; i++) {
            one = merge(seg, by, part[i], one);
            part[i] = 0;
        }
        part[i] = i == 31 && part[i] != 0 ? merge(seg, by, part[i], one) : one;
    }
    for (uint32_t i = 0; i < 32; i++)
        all = merge(seg, by, part[i], all);
    *last = 0;
    for (uint32_t at = all; at != 0 && pn_cells_go_on(seg, &walked); at = *link_of(seg, by, at)) {
        if (by == BY_ID)
            pn_message_at(seg, at)->prev = *last;
        else
            pn_delivery_at(seg, at)->prev = *last;
        *last = at;
    }
    return all;
}

static void clear_tables(struct pn_segment *seg)
{
    struct pn_topics *t = &seg->topics;
    for (uint32_t i = 0; i < t->max_topics; i++) {
        t->topic[i].oldest = t->topic[i].newest = 0;
        t->topic[i].messages = t->topic[i].firm = t->topic[i].staged = 0;
        t->topic[i].rest_buried = 0;
        t->topic[i].disk_staged = t->topic[i].buried = t->topic[i].refilling = 0;
        t->topic[i].stuck_seq = 0;
        t->topic[i].touched = 0;
        t->topic[i].passed[0] = t->topic[i].passed[1] = 0;
        uint64_t end = pn_diskqueue_now(&t->topic[i].disk)->write_seq; /* nothing replaced it */
        if (t->topic[i].disk_given > end)
            t->topic[i].disk_given = end;
    }
    for (uint32_t i = 0; i < t->max_channels; i++) {
        struct pn_topic_channel *ch = &t->channel[i];
        const struct pn_topic *topic = pn_topic_of(seg, ch);
        if (pn_load_relaxed(&ch->state) == PN_RECORD_USED &&
            (pn_load_relaxed(&topic->state) != PN_RECORD_USED ||
             topic->generation != ch->topic_generation))
            pn_store_release(&ch->state, PN_RECORD_DELETED);
        ch->swept_below = ch->void_below;
        if (ch->next_order < ch->void_below && ch->void_below != UINT64_MAX)
            ch->next_order = ch->void_below;
        ch->first = ch->last = ch->ready = ch->deferred = ch->in_flight = ch->held = 0;
        ch->staged = 0;
        ch->bytes = ch->rest_stuck = 0;
        if (ch->rest_cursor[pn_load_relaxed(&ch->rests) == 2].seq >=
            pn_diskqueue_now(&topic->rest)->write_seq) /* it never began to, or has all of it */
            pn_store_release(&ch->rests, 0);
        ch->first_consumer = ch->consumers = ch->samplers = ch->waiting = ch->notified = 0;
        ch->next_deadline = INT64_MAX;
        pn_timedset_forget_locked(&seg->topics.arena, &ch->timed);
    }
    t->ctl->topic_hint = t->ctl->consumer_hint = t->ctl->prepared = t->ctl->refill_next = 0;
    t->ctl->channel_hint = t->max_topics;
    t->ctl->deleted = t->ctl->spilled = t->ctl->sweeping = 1; /* perhaps */
}

static void attach_consumers(struct pn_segment *seg)
{
    struct pn_topics *t = &seg->topics;
    for (uint32_t word = 0; word < seg->words; word++)
        pn_store_relaxed(&seg->consuming[word], 0);
    for (uint32_t i = 0; i < t->max_consumers; i++) {
        struct pn_consumer_slot *c = &t->consumer[i];
        c->first = c->last = c->in_flight = c->cursor = c->next = c->prev = 0;
        uint32_t slot = *(volatile const uint32_t *) &c->slot;
        if (pn_load_relaxed(&c->state) != PN_RECORD_USED || slot >= seg->max_backends)
            continue;
        pn_fetch_or(&seg->consuming[slot / 64], 1ULL << (slot % 64));
        struct pn_topic_channel *ch = pn_topic_channel_at(seg, c->channel);
        if (pn_load_relaxed(&ch->state) != PN_RECORD_USED ||
            ch->generation != c->channel_generation) {
            if (pn_load_relaxed(&c->wait) != PN_CONSUMER_BUSY) /* it is to see that */
                pn_store_release(&c->wait, PN_CONSUMER_NOTIFIED);
            continue;
        }
        c->next = ch->first_consumer;
        if (c->next != 0)
            pn_consumer_at(seg, c->next - 1)->prev = i + 1;
        ch->first_consumer = i + 1;
        ch->consumers++;
        ch->samplers += c->sample_rate != 0;
        ch->waiting += pn_load_relaxed(&c->wait) == PN_CONSUMER_WAITING;
        ch->notified += pn_load_relaxed(&c->wait) == PN_CONSUMER_NOTIFIED;
    }
}

/* Its place in the timed set, which had room for it before the death, and so has it now. */
static int place_timed(struct pn_segment *seg, struct pn_topic_channel *ch, uint32_t ref,
                       int64_t due)
{
    const struct pn_delivery *d = pn_delivery_at(seg, ref);
    if (!pn_timedset_reserve_locked(&seg->topics.arena, ch->topic, &ch->timed, 1))
        return pn_fail(ENOMEM, "there is no room in topic_memory to repair the topics");
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
        return pn_fail(ENOMEM, "there is no room in topic_memory to repair the topics");
    d->lent = 1;
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

static int fill_lists(struct pn_segment *seg)
{
    struct pn_topics *t = &seg->topics;
    int rc = 0;
    EACH_CELL (seg, PN_PAGE_DELIVERY, ref)
        if (rc == 0 && pn_arena_taken(&t->arena, ref, PN_PAGE_DELIVERY))
            rc = push(seg, ref);
    EACH_CELL (seg, PN_PAGE_BODY, ref) {
        struct pn_message *m = pn_message_at(seg, ref);
        uint16_t state = pn_load_relaxed(&m->state);
        struct pn_topic *topic = pn_topic_at(seg, m->topic);
        t->ctl->prepared += state == PN_MSG_PREPARED;
        topic->staged += state == PN_MSG_PREPARED;
        if (state != PN_MSG_LIVE)
            continue;
        m->next = topic->oldest;
        topic->oldest = ref;
        topic->messages++;
        topic->firm += m->firm != 0;
    }
    PN_CRASH("topic-recover:pushed");
    for (uint32_t i = 0; i < t->max_channels; i++)
        t->channel[i].first = sort(seg, BY_ORDER, t->channel[i].first, &t->channel[i].last);
    for (uint32_t i = 0; i < t->max_consumers; i++)
        t->consumer[i].first = sort(seg, BY_DUE, t->consumer[i].first, &t->consumer[i].last);
    for (uint32_t i = 0; i < t->max_topics; i++)
        t->topic[i].oldest = sort(seg, BY_ID, t->topic[i].oldest, &t->topic[i].newest);
    return rc;
}

/* What is waited for may have become true by what was redone. */
static void go_on(struct pn_segment *seg)
{
    struct pn_topics *t = &seg->topics;
    pn_topics_sweep_locked(seg);
    for (uint32_t i = 0; i < t->max_topics; i++)
        if (pn_load_relaxed(&t->topic[i].state) == PN_RECORD_USED) {
            pn_topic_pump_locked(seg, &t->topic[i]);
            pn_topic_settle_locked(seg, &t->topic[i]);
        }
}

int pn_topics_recover_locked(struct pn_segment *seg)
{
    pn_assert_held(seg);
    if (pn_load_relaxed(&seg->ctl->topics_dirty) == 0)
        return 0;
    PN_CRASH("topic-recover:begin");
    redo_record(seg);
    clear_tables(seg);
    pn_tombstones_recover_locked(seg);
    clear_messages(seg);
    pn_store_release(&seg->topics.ctl->redo.void_n, 0);
    chain_deliveries(seg);
    pn_arena_rebuild_begin_locked(&seg->topics.arena);
    PN_CRASH("topic-recover:marking");
    int rc = mark_messages(seg);
    if (rc != 0)
        return rc;
    pn_arena_rebuild_end_locked(&seg->topics.arena, PN_TAG_MASK);
    for (uint32_t i = 0; i < seg->topics.max_topics; i++)
        seg->topics.arena.owner[i].counts =
            pn_load_relaxed(&seg->topics.topic[i].state) == PN_RECORD_USED;
    pn_arena_share_locked(&seg->topics.arena);
    PN_CRASH("topic-recover:arena");
    pn_topics_link_locked(seg);
    attach_consumers(seg);
    rc = fill_lists(seg);
    if (rc != 0)
        return rc;
    PN_CRASH("topic-recover:lists");
    go_on(seg);
    seg->topics.ctl->log_behind = seg->topics.ctl->log_ready; /* as far as anybody knows */
    PN_CRASH("topic-recover:before-clean");
    pn_topics_end_locked(seg);
    PN_CRASH("topic-recover:clean");
    return pn_segment_check_state(seg);
}
