/*
 * rebuild_topics.c - closed topics are opened again: everything derived, from the truth, in steps.
 *
 * 1. What exists is found by looking at every cell: messages that are LIVE, or PREPARED by a
 *    slot that lives; deliveries that are not FREE, not void, in a channel in use, and of such a
 *    message.  A message in a backlog and in channels as well was half pumped, and is in the
 *    backlog (message.c 3); one without a delivery is free.  The rest of the arena is free.  Then
 *    the lists: pushed in any order, and sorted by merging, without memory.  Then the log of
 *    durable topics is written again.
 * 2. A step is at most PN_REBUILD_UNITS of that, and a hold of the lock has one step: so
 *    notifications go on, and wait for one step, not for all.  Where the next step begins stands in
 *    shared memory (struct pn_topic_repair), so that any process makes it: each that takes the
 *    lock, and those that want topics until they are open (pn_lock_topics).
 * 3. Between two steps PN_TOPICS_CLOSED stands alone, and nothing changes what the next
 *    one relies on: operations on topics wait; no slot is freed (backend.c), so what is PREPARED
 *    or HELD stays so; nothing is noted for the log.  What is read without the lock is a message
 *    that a consumer copies: nothing of it is changed, but the arena's marks are, so a copy that
 *    failed is made again when they are open (consume.c).
 * 4. Within a step PN_TOPICS_DIRTY stands as well.  A death there leaves lists and counters that
 *    say nothing; the truth is only ever freed of what does not exist, and so is still the truth.
 *    Recovery begins again with the first step (recover_topics.c); but where only the log was being
 *    written, with that: indices are right by then, and the log's compaction begins again as often
 *    as one likes.  A sorted list is long, and one step too short for it: so the merging stands in
 *    shared memory as well.
 * 5. The log is written again by a compaction that begins now (topic_log.c 4), before any call may
 *    change a topic: what the dead one had written and memory does not have must not be answered
 *    a second time before it is gone.  If that fails (a full disk), `log_behind` stands, topics are
 *    opened, and the next operation on a durable one says so.  A process that only notifies does
 *    none of its steps: they open files.
 * 6. At last what is waited for, which may have become true by what was redone: each topic is
 *    swept, pumped and settled as by any operation on it, so that consumers that sleep are woken.
 */
#include "recovery/rebuild_topics.h"

#include <string.h>

#include "base/crashpoint.h"
#include "segment/arena_share.h"
#include "topic/area.h"
#include "topic/end.h"
#include "topic/frontier.h"
#include "topic/journal.h"
#include "topic/later.h"
#include "topic/message.h"
#include "topic/pump.h"
#include "topic/sweep.h"
#include "topic/tables.h"
#include "topic/timedset.h"
#include "topic/tombstones.h"
#include "topic/waiting.h"

uint32_t pn_rebuild_units = PN_REBUILD_UNITS;
int64_t pn_repair_again_ns = PN_REPAIR_AGAIN_NS;

enum phase {
    TABLES,     /* of topics and channels: counts and lists are forgotten */
    MESSAGES,   /* which exist; and pages are unmarked */
    DELIVERIES, /* which exist, hung on their messages */
    MARKS,      /* bodies of messages that have deliveries */
    DELIVERY_MARKS,
    HISTOGRAMS,
    PAGES,     /* what is not marked is free, from the last page on */
    CONSUMERS, /* hung on their channels */
    PUSHING,   /* deliveries into the lists */
    LISTING,   /* messages into those of topics */
    SORTING,
    LOG_BEGIN,
    LOG,
    GOING_ON,
    OPEN
};

/* A step: what is left of its units. */
struct step {
    struct pn_segment *seg;
    struct pn_topic_repair *at;
    int64_t left;
};

/* The cells of a class in the page at the cursor, in ref. */
#define EACH_CELL_HERE(s, class, ref)                                                              \
    for (uint64_t ref##_left = pn_arena_cells_of(&(s)->seg->topics.arena, (s)->at->cursor, class), \
                  ref = 0;                                                                         \
         ref##_left != 0 && (ref = (uint64_t) (s)->at->cursor * PN_ARENA_GRANULES +                \
                                   (uint32_t) __builtin_ctzll(ref##_left),                         \
                            (s)->left--, true);                                                    \
         ref##_left &= ref##_left - 1)

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
static bool clear_tables(struct step *s)
{
    struct pn_topics *t = &s->seg->topics;
    for (; s->at->kind == 0 && s->left > 0 && s->at->cursor < t->max_topics; s->left--)
        clear_topic(s->seg, &t->topic[s->at->cursor++]);
    if (s->left <= 0)
        return false;
    if (s->at->kind == 0)
        s->at->kind = 1, s->at->cursor = 0;
    for (; s->left > 0 && s->at->cursor < t->max_channels; s->left--)
        clear_channel(s->seg, &t->channel[s->at->cursor++]);
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

/* Pages from the cursor on, each looked at by `page`, while units are left; true: all were. */
static bool each_page(struct step *s, void (*page)(struct step *))
{
    const struct pn_arena *mem = &s->seg->topics.arena;
    if (s->at->cursor < mem->first)
        s->at->cursor = mem->first;
    for (; s->left > 0 && s->at->cursor < pn_arena_pages_used(mem); s->at->cursor++) {
        page(s);
        s->left--;
    }
    return s->at->cursor >= pn_arena_pages_used(mem);
}

static void messages_of_page(struct step *s)
{
    pn_arena_unmark_page_locked(&s->seg->topics.arena, s->at->cursor);
    EACH_CELL_HERE(s, PN_PAGE_BODY, ref)
    look_at_message(s->seg, (uint32_t) ref);
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

static void deliveries_of_page(struct step *s)
{
    EACH_CELL_HERE(s, PN_PAGE_DELIVERY, ref)
    {
        struct pn_delivery *d = pn_delivery_at(s->seg, (uint32_t) ref);
        d->timed = d->lent = 0;
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

static int mark_bodies(struct step *s, bool *done)
{
    struct pn_arena *mem = &s->seg->topics.arena;
    if (s->at->cursor < mem->first)
        s->at->cursor = mem->first;
    for (; s->left > 0 && s->at->cursor < pn_arena_pages_used(mem); s->at->cursor++, s->left--)
        EACH_CELL_HERE(s, PN_PAGE_BODY, ref)
        {
            int rc = mark_message(s->seg, (uint32_t) ref);
            if (rc < 0)
                return rc;
            s->left -= rc;
        }
    *done = s->at->cursor >= pn_arena_pages_used(mem);
    return 0;
}

static void mark_deliveries_of_page(struct step *s)
{
    struct pn_segment *seg = s->seg;
    EACH_CELL_HERE(s, PN_PAGE_DELIVERY, ref)
    if (pn_state_kind(pn_load_relaxed(&pn_delivery_at(seg, (uint32_t) ref)->state)) !=
            PN_KIND_FREE &&
        !pn_arena_mark_locked(&seg->topics.arena, (uint32_t) ref, PN_PAGE_DELIVERY))
        pn_segment_poison(seg, "delivery %u is broken", (uint32_t) ref);
}

static bool mark_histograms(struct step *s)
{
    struct pn_topics *t = &s->seg->topics;
    for (; s->left > 0 && s->at->cursor < t->max_channels; s->left--) {
        struct pn_topic_channel *ch = &t->channel[s->at->cursor++];
        if (pn_load_relaxed(&ch->state) != PN_RECORD_USED ||
            !pn_arena_valid(&t->arena, ch->histogram, PN_PAGE_WHOLE) ||
            !pn_arena_mark_locked(&t->arena, ch->histogram, PN_PAGE_WHOLE))
            ch->histogram = 0;
    }
    return s->at->cursor >= t->max_channels;
}

/* The cursor counts those that are done. */
static bool settle_pages(struct step *s)
{
    struct pn_arena *mem = &s->seg->topics.arena;
    uint32_t n = pn_arena_pages_used(mem) - mem->first;
    for (; s->left > 0 && s->at->cursor < n; s->left -= 4)
        pn_arena_settle_page_locked(mem, mem->first + n - ++s->at->cursor, PN_TAG_MASK);
    if (s->at->cursor < n)
        return false;
    for (uint32_t i = 0; i < s->seg->topics.max_topics; i++)
        mem->owner[i].counts = pn_load_relaxed(&s->seg->topics.topic[i].state) == PN_RECORD_USED;
    pn_arena_share_locked(mem);
    pn_topics_link_locked(s->seg);
    s->left -= s->seg->topics.max_channels / 4;
    return true;
}

/* ---- lists ----------------------------------------------------------------------------------- */

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
    c->next = ch->first_consumer;
    if (c->next != 0)
        pn_consumer_at(seg, c->next - 1)->prev = i + 1;
    ch->first_consumer = i + 1;
    ch->consumers++;
    ch->samplers += c->sample_rate != 0;
    ch->waiting += pn_load_relaxed(&c->wait) == PN_CONSUMER_WAITING;
    ch->notified += pn_load_relaxed(&c->wait) == PN_CONSUMER_NOTIFIED;
    ch->leaving += pn_load_relaxed(&c->wait) == PN_CONSUMER_LEAVING;
    ch->throttled += pn_load_relaxed(&c->wait) == PN_CONSUMER_THROTTLED;
}

static bool attach_consumers(struct step *s)
{
    struct pn_segment *seg = s->seg;
    if (s->at->cursor == 0)
        for (uint32_t word = 0; word < seg->words; word++)
            pn_store_relaxed(&seg->consuming[word], 0);
    for (; s->left > 0 && s->at->cursor < seg->topics.max_consumers; s->left--)
        attach_consumer(seg, s->at->cursor++);
    return s->at->cursor >= seg->topics.max_consumers;
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

/* Also of what there is no room for: then not all is pushed. */
static int push_deliveries(struct step *s, bool *done)
{
    const struct pn_arena *mem = &s->seg->topics.arena;
    if (s->at->cursor < mem->first)
        s->at->cursor = mem->first;
    for (; s->left > 0 && s->at->cursor < pn_arena_pages_used(mem); s->at->cursor++, s->left--)
        EACH_CELL_HERE(s, PN_PAGE_DELIVERY, ref)
        {
            int rc = pn_arena_taken(mem, (uint32_t) ref, PN_PAGE_DELIVERY)
                         ? push(s->seg, (uint32_t) ref)
                         : 0;
            if (rc != 0)
                return rc;
        }
    *done = s->at->cursor >= pn_arena_pages_used(mem);
    return 0;
}

static void list_messages_of_page(struct step *s)
{
    struct pn_topic_control *ctl = s->seg->topics.ctl;
    EACH_CELL_HERE(s, PN_PAGE_BODY, ref)
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

/* ---- sorting (4) ----------------------------------------------------------------------------- */

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

enum doing { NEXT_LIST, TAKING, CARRYING, MERGING, GATHERING, GATHER_MERGING, LINKING };

/* Bottom up, as lists of 1, 2, 4 ... are merged, and then those; then the links back. */
struct sorting {
    struct step *s;
    struct pn_topic_sort *is;
    enum sorted by;
    uint32_t *head, *last;
};

/* The list of the row at the cursor, of its kind; false: that was the last. */
static bool list_at(struct step *s, struct sorting *of)
{
    struct pn_topics *t = &s->seg->topics;
    const uint32_t n[] = {t->max_channels, t->max_consumers, t->max_topics};
    static const enum sorted by[] = {BY_ORDER, BY_DUE, BY_ID};
    while (s->at->kind < 3 && s->at->cursor >= n[s->at->kind])
        s->at->kind++, s->at->cursor = 0;
    if (s->at->kind == 3)
        return false;
    uint32_t i = s->at->cursor;
    *of = (struct sorting) {.s = s, .is = &s->at->sort, .by = by[s->at->kind]};
    if (s->at->kind == 0)
        of->head = &t->channel[i].first, of->last = &t->channel[i].last;
    else if (s->at->kind == 1)
        of->head = &t->consumer[i].first, of->last = &t->consumer[i].last;
    else
        of->head = &t->topic[i].oldest, of->last = &t->topic[i].newest;
    return true;
}

static void begin_merge(struct sorting *of, uint32_t a, uint32_t b)
{
    of->is->a = a;
    of->is->b = b;
    of->is->first = of->is->tail = 0;
}

/* One move; true: all is merged, and stands in `first`. */
static bool merge_one(struct sorting *of)
{
    struct pn_topic_sort *is = of->is;
    const struct pn_segment *seg = of->s->seg;
    uint32_t *from = is->a == 0                                           ? &is->b
                     : is->b == 0                                         ? &is->a
                     : key(seg, of->by, is->a) <= key(seg, of->by, is->b) ? &is->a
                                                                          : &is->b;
    bool last = is->a == 0 || is->b == 0; /* what is left of the other follows as it is */
    uint32_t ref = *from;
    if (is->tail == 0)
        is->first = ref;
    else
        *link_of(seg, of->by, is->tail) = ref;
    if (last)
        return true;
    is->tail = ref;
    *from = *link_of(seg, of->by, ref);
    return false;
}

static void take_one(struct sorting *of)
{
    struct pn_topic_sort *is = of->is;
    is->level = 0;
    if (is->rest == 0) {
        is->one = 0;
        is->doing = GATHERING;
        return;
    }
    is->one = is->rest;
    is->rest = *link_of(of->s->seg, of->by, is->one);
    *link_of(of->s->seg, of->by, is->one) = 0;
    is->doing = CARRYING;
}

/* `one` into the next level; `gather`: through all of them. */
static void carry(struct sorting *of, bool gather)
{
    struct pn_topic_sort *is = of->is;
    uint32_t level = is->level;
    if (gather && level == 32) {
        *of->head = is->one;
        is->a = is->one;
        is->b = 0;
        is->doing = LINKING;
        return;
    }
    if (level == 32 || is->part[level] == 0) { /* there are fewer than 2^32 */
        if (!gather) {
            is->part[level % 32] = is->one;
            is->doing = TAKING;
        }
        is->level++;
        return;
    }
    begin_merge(of, is->part[level], is->one);
    is->part[level] = 0;
    is->doing = gather ? GATHER_MERGING : MERGING;
}

/* `a` is at, and `b` what stands before it. */
static void link_back(struct sorting *of)
{
    struct pn_topic_sort *is = of->is;
    if (is->a == 0) {
        *of->last = is->b;
        is->doing = NEXT_LIST;
        of->s->at->cursor++;
        return;
    }
    if (of->by == BY_ID)
        pn_message_at(of->s->seg, is->a)->prev = is->b;
    else
        pn_delivery_at(of->s->seg, is->a)->prev = is->b;
    is->b = is->a;
    is->a = *link_of(of->s->seg, of->by, is->a);
}

/* One unit, at whatever place the list is. */
static void sort_on(struct sorting *of)
{
    struct pn_topic_sort *is = of->is;
    switch ((enum doing) is->doing) {
    case NEXT_LIST:
        *is = (struct pn_topic_sort) {.doing = TAKING, .rest = *of->head};
        if (is->rest == 0)
            *of->last = 0, is->doing = NEXT_LIST, of->s->at->cursor++;
        break;
    case TAKING:
        take_one(of);
        break;
    case CARRYING:
    case GATHERING:
        carry(of, is->doing == GATHERING);
        break;
    case MERGING:
    case GATHER_MERGING:
        if (merge_one(of)) {
            is->one = is->first;
            is->level++;
            is->doing = is->doing == MERGING ? CARRYING : GATHERING;
        }
        break;
    default:
        link_back(of);
    }
}

static bool sort_lists(struct step *s)
{
    struct sorting of;
    const uint64_t most = 64 * (s->seg->topics.memory / 32); /* of one list, by far */
    while (list_at(s, &of)) {
        if (s->left <= 0)
            return false;
        if (of.is->moves > most) {
            pn_list_ends(s->seg, "messages");
            return true;
        }
        sort_on(&of);
        of.is->moves++;
        s->left--;
    }
    return true;
}

/* ---- the log, and what is waited for --------------------------------------------------------- */

static bool write_log(struct step *s)
{
    bool first = s->at->phase == LOG_BEGIN;
    s->left = 0;
    if (pn_durable_anew_locked(s->seg, first))
        return first; /* and on with LOG */
    s->at->phase = LOG;
    return true;
}

static bool go_on(struct step *s)
{
    struct pn_topics *t = &s->seg->topics;
    if (s->at->cursor == 0)
        pn_topics_sweep_locked(s->seg);
    while (s->left > 0 && s->at->cursor < t->max_topics) {
        struct pn_topic *topic = &t->topic[s->at->cursor++];
        s->left -= 4;
        if (pn_load_relaxed(&topic->state) != PN_RECORD_USED)
            continue;
        s->left -= 4 * (int64_t) PN_TOPIC_STEPS;
        pn_topic_pump_locked(s->seg, topic);
        pn_topic_settle_locked(s->seg, topic);
    }
    pn_topics_tend_locked(s->seg);
    return s->at->cursor >= t->max_topics;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static bool needs_files(const struct pn_segment *seg, uint32_t phase)
{
    return phase >= LOG_BEGIN && seg->topics.ctl->log_ready != 0 && seg->topics.durable == NULL;
}

/* What the phase does in what is left of the step; *done: it is over. */
static int play(struct step *s, bool *done)
{
    switch ((enum phase) s->at->phase) {
    case TABLES:
        *done = clear_tables(s);
        return 0;
    case MESSAGES:
        *done = each_page(s, messages_of_page);
        return 0;
    case DELIVERIES:
        if (s->at->cursor == 0)
            pn_store_release(&s->seg->topics.ctl->redo.void_n, 0); /* none of them is left */
        *done = each_page(s, deliveries_of_page);
        return 0;
    case MARKS:
        return mark_bodies(s, done);
    case DELIVERY_MARKS:
        *done = each_page(s, mark_deliveries_of_page);
        return pn_segment_check_state(s->seg);
    case HISTOGRAMS:
        *done = mark_histograms(s);
        return 0;
    case PAGES:
        *done = settle_pages(s);
        return 0;
    case CONSUMERS:
        *done = attach_consumers(s);
        return 0;
    case PUSHING:
        return push_deliveries(s, done);
    case LISTING:
        *done = each_page(s, list_messages_of_page);
        return 0;
    case SORTING:
        *done = sort_lists(s);
        return pn_segment_check_state(s->seg);
    case LOG_BEGIN:
    case LOG:
        *done = write_log(s);
        return 0;
    case GOING_ON:
        *done = go_on(s);
        return pn_segment_check_state(s->seg);
    default:
        *done = true;
        return pn_segment_poison(s->seg, "the repair of topics is at %u, which is not",
                                 s->at->phase);
    }
}

static void crash_between(enum phase over)
{
    if (over == MESSAGES)
        PN_CRASH("topic-recover:messages");
    else if (over == DELIVERIES)
        PN_CRASH("topic-recover:deliveries");
    else if (over == TABLES)
        PN_CRASH("topic-recover:tables");
    else if (over == PAGES)
        PN_CRASH("topic-recover:arena");
    else if (over == LISTING)
        PN_CRASH("topic-recover:pushed");
    else if (over == SORTING)
        PN_CRASH("topic-recover:lists");
    else if (over == LOG)
        PN_CRASH("topic-recover:log");
    else if (over == GOING_ON)
        PN_CRASH("topic-recover:before-clean");
}

/* Phases, until the units are spent or the lists are right or all is. */
static int play_some(struct step *s, bool all)
{
    struct pn_topic_repair *at = s->at;
    int rc = 0;
    while (rc == 0 && s->left > 0 && at->phase != OPEN &&
           (all || !needs_files(s->seg, at->phase))) {
        bool done = false;
        rc = play(s, &done);
        if (rc != 0 || !done)
            break;
        crash_between(at->phase);
        at->phase++;
        at->cursor = at->kind = 0;
        at->sort.doing = NEXT_LIST;
    }
    return rc;
}

void pn_topics_rebuild_anew_locked(struct pn_segment *seg)
{
    pn_assert_held(seg);
    struct pn_topic_repair *at = &seg->topics.ctl->repair;
    bool closed = pn_topics_closed(seg);
    bool log = closed && (at->phase == LOG_BEGIN || at->phase == LOG);
    at->phase = log ? LOG_BEGIN : TABLES;
    at->cursor = at->kind = 0;
    at->sort.doing = NEXT_LIST;
    at->rebuilds += !closed;
    at->helped_at = pn_now_ns(); /* the process that found the death goes on with it */
}

/* What indexes something in a step; where another word was overwritten, less or more is done. */
static int check_place(struct pn_segment *seg, const struct pn_topic_repair *at)
{
    if (at->phase < OPEN && at->kind <= 3 && at->sort.doing <= LINKING && at->sort.level <= 32)
        return 0;
    return pn_segment_poison(seg, "the repair of topics is at %u, %u, %u, %u, which is no place",
                             at->phase, at->kind, at->sort.doing, at->sort.level);
}

/* `wanted`: this process goes on with it. */
static void look_for_help(struct pn_segment *seg, bool wanted)
{
    struct pn_topic_repair *at = &seg->topics.ctl->repair;
    const int64_t now = pn_now_ns();
    if (wanted)
        at->helped_at = now;
    else if (now - at->helped_at >= pn_repair_again_ns)
        pn_hold_of(seg)->at_end |= PN_REPAIR;
}

int pn_topics_rebuild_step_locked(struct pn_segment *seg, bool all)
{
    pn_assert_held(seg);
    struct pn_topic_repair *at = &seg->topics.ctl->repair;
    const int64_t units = pn_rebuild_units;
    struct step s = {.seg = seg, .at = at, .left = units};
    int rc = check_place(seg, at);
    look_for_help(seg, all);
    if (rc != 0 || (!all && needs_files(seg, at->phase)))
        return rc;
    pn_store_relaxed(&seg->ctl->topics_dirty, PN_TOPICS_CLOSED | PN_TOPICS_DIRTY);
    pn_compiler_fence();
    PN_CRASH("topic-recover:step");
    rc = play_some(&s, all);
    if (rc != 0)
        return rc; /* the next holder begins again */
    at->steps++;
    if (units - s.left > at->most)
        at->most = (uint32_t) (units - s.left);
    PN_CRASH("topic-recover:stepped");
    pn_compiler_fence();
    pn_store_relaxed(&seg->ctl->topics_dirty, at->phase == OPEN ? 0 : PN_TOPICS_CLOSED);
    if (at->phase == OPEN) {
        PN_CRASH("topic-recover:clean");
        pn_hold_of(seg)->at_end |= PN_REPAIR; /* the dead are reaped */
    }
    return pn_segment_check_state(seg);
}
