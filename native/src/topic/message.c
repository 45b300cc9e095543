/*
 * message.c - messages: publishing, the fan-out to channels, the backlog, and their end.
 *
 * 1. A message is staged first: its cells, and a delivery for each channel, with everything that
 *    can fail.  STAGED it does not exist, and neither do its deliveries; if its publisher dies,
 *    recovery frees them.  The store of LIVE publishes it; then the lists follow.
 * 2. Several messages at once have ids one after the other.  While redo.void_n says so, those ids
 *    do not exist; so they are published one by one, in one pass over the memory, and the store of
 *    0 makes them exist together.  If the last does not fit the others are taken back before.
 *    A transaction's messages are a chain of STAGED ones, and the store of `head` behind an entry
 *    that names the chain publishes them (topic_ops.c); a dead letter, the store of redo.valid.
 *    Of a chain all become LIVE before the first goes into a list, since the chain runs through
 *    the links of the lists.
 * 3. The backlog.  Where a topic has no channel, is paused, or keeps something already, a message
 *    gets one delivery, in the topic's own queue.  The pump moves on what stands there, the oldest
 *    first, to the channels that there are then: a delivery is written for each but the last, and
 *    the backlog's own delivery becomes the last one's, by the store of its `channel`; a channel
 *    that is ephemeral and full goes without, and if all do that is the message's end.  A message
 *    that has a delivery in the backlog and others as well was left so by a process that died:
 *    recovery frees the others (I22).
 * 4. Memory.  A publisher takes no more than its topic's share allows (arena_share.c), and leaves
 *    PN_ARENA_RESERVE pages to operations that move what is there: the pump and a requeue with a
 *    delay.  What only ephemeral channels have makes room for what others are to get, the oldest
 *    first.
 * 5. The end of a message as a whole (cancel.c, drop-oldest) is the store of FREE: what it
 *    still has of deliveries does not exist from then on (I20).
 */
#define _GNU_SOURCE
#include "topic/message.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/crashpoint.h"
#include "base/moment.h"
#include "segment/arena_share.h"
#include "segment/lock.h"
#include "topic/area.h"
#include "topic/channel_room.h"
#include "topic/cursors.h"
#include "topic/delivery.h"
#include "topic/end.h"
#include "topic/journal.h"
#include "topic/latency.h"
#include "topic/notes.h"
#include "topic/on_disk.h"
#include "topic/overflow.h"
#include "topic/pump.h"
#include "topic/queues.h"
#include "topic/rest.h"
#include "topic/settings.h"
#include "topic/tables.h"
#include "topic/timedset.h"
#include "topic/topic.h"
#include "wakeup/make_way.h"

enum {
    PN_ARENA_RESERVE = 4,
    PN_DROPS = 4096, /* no more of them for one message */
    PN_SWEEP_TRIES = 64,
    PN_DEAD_HEADERS = 8192 /* what a dead letter's headers are longer */
};

int pn_message_check(const struct pn_segment *seg, size_t body_len, size_t headers_len)
{
    if (body_len == 0)
        return pn_fail(PN_EBODY, "the body of a message cannot be empty");
    if (body_len > seg->topics.max_body)
        return pn_fail(PN_EBODYLONG,
                       "message body too long\n"
                       "It has %zu bytes; max_body of the segment is %u.",
                       body_len, seg->topics.max_body);
    if (headers_len > PN_HEADERS_MAX)
        return pn_fail(PN_EBODYLONG, "the headers of a message have %zu bytes, at most %u",
                       headers_len, PN_HEADERS_MAX);
    struct pn_arena_need need = {.deliveries = 1};
    pn_arena_need_body(&need, sizeof(struct pn_message),
                       (uint64_t) body_len + headers_len + PN_DEAD_HEADERS, 1);
    if (!pn_arena_ever(&seg->topics.arena, &need))
        return pn_fail(PN_EBODYLONG,
                       "message too long for topic_memory\n"
                       "It has %zu bytes; a message may have half of topic_memory, which is %llu.",
                       body_len + headers_len, (unsigned long long) seg->topics.memory);
    return 0;
}

/* ---- staging --------------------------------------------------------------------------------- */

static int64_t later_ns(int64_t now, int64_t by)
{
    return by <= 0 ? 0 : by > INT64_MAX - now ? INT64_MAX : now + by;
}

bool pn_topic_channel_goes_without(const struct pn_topic *topic, const struct pn_topic_channel *ch)
{
    return ch->ephemeral != 0 && topic->max_depth != 0 &&
           (uint64_t) ch->ready + ch->deferred + ch->in_flight + ch->staged >= topic->max_depth;
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
    struct pn_delivery *d = pn_delivery_at(seg, at);
    uint64_t word = pn_load_relaxed(&d->state);
    d->order = ch->next_order++;
    d->due = due;
    d->delivered_ns = 0;
    d->message = ref;
    d->channel = pn_topic_channel_index(seg, ch);
    d->prev = d->next = d->timed = 0;
    d->lent = timed;
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
                           uint32_t ref, int64_t due, bool backlog)
{
    struct pn_topic_channel *own = pn_topic_channel_at(seg, m->topic);
    const uint64_t bytes = (uint64_t) m->headers_len + m->body_len;
    bool before = own->ready != 0 || own->staged != 0; /* also of one transaction: in order */
    if (backlog || before || topic->paused != 0 || topic->nchannels == 0 ||
        pn_rest_splits_locked(seg, topic, bytes, due != 0 || m->expires != 0))
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

/* What it takes; *cells: with its body in cells alone, since it has no room with pages (arena.c,
 * 6).  Nothing happens between the answer and the taking, so both are of one mind. */
static struct pn_arena_need need_of(const struct pn_segment *seg, const struct pn_topic *topic,
                                    uint64_t bytes, bool timed, bool *cells)
{
    const struct pn_arena *mem = &seg->topics.arena;
    struct pn_arena_need need = {.deliveries = topic->nchannels + 1U,
                                 .spare = PN_ARENA_RESERVE,
                                 .most = pn_topic_most_pages(topic)};
    uint32_t index = (uint32_t) (topic - seg->topics.topic);
    if (timed)
        PN_EACH_CHANNEL (seg, topic, i)
            need.pages += pn_timedset_needs(&pn_topic_channel_at(seg, i - 1)->timed, 1);
    if (timed)
        need.pages += pn_timedset_needs(&pn_topic_channel_at(seg, index)->timed, 1);
    struct pn_arena_need in_cells = need;
    pn_arena_need_body(&need, sizeof(struct pn_message), bytes, 1);
    *cells = false;
    if (need.pages == in_cells.pages || pn_arena_may_locked(mem, index, &need))
        return need;
    pn_arena_need_cells(&in_cells, sizeof(struct pn_message), bytes);
    *cells = pn_arena_pages_for(mem, index, &in_cells) < pn_arena_pages_for(mem, index, &need);
    return *cells ? in_cells : need;
}

struct pn_arena_need pn_message_need(const struct pn_segment *seg, const struct pn_topic *topic,
                                     uint64_t bytes, bool timed)
{
    bool cells;
    return need_of(seg, topic, bytes, timed, &cells);
}

bool pn_message_has_room_locked(const struct pn_segment *seg, const struct pn_topic *topic,
                                uint64_t bytes, bool timed)
{
    pn_assert_topics_held(seg);
    const struct pn_arena_need need = pn_message_need(seg, topic, bytes, timed);
    return pn_arena_may_locked(&seg->topics.arena, (uint32_t) (topic - seg->topics.topic), &need);
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
        need_of(seg, topic, bytes, in->delay_ns > 0 || in->ttl_ns > 0, &cells);
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
                                   later_ns(now->mono, in->delay_ns), backlog))
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
        if (d->lent != 0)
            pn_timedset_unreserve_locked(mem, &ch->timed, d->lent);
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
    m->next = 0;
    m->prev = topic->newest;
    if (m->prev != 0)
        pn_message_at(seg, m->prev)->next = ref;
    else
        topic->oldest = ref;
    topic->newest = ref;
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

/* ---- the end --------------------------------------------------------------------------------- */

void pn_message_free_locked(struct pn_segment *seg, uint32_t ref)
{
    pn_assert_topics_held(seg);
    struct pn_message *m = pn_message_at(seg, ref);
    struct pn_topic *topic = pn_topic_at(seg, m->topic);
    pn_store_release(&m->state, PN_MSG_FREE);
    PN_CRASH("topic:message-free");
    for (int i = 0; i < 2; i++)
        if (topic->passed[i] == ref)
            topic->passed[i] = m->next;
    if (m->prev != 0)
        pn_message_at(seg, m->prev)->next = m->next;
    else
        topic->oldest = m->next;
    if (m->next != 0)
        pn_message_at(seg, m->next)->prev = m->prev;
    else
        topic->newest = m->prev;
    topic->messages--;
    topic->bytes -= (uint64_t) m->headers_len + m->body_len;
    pn_arena_give_body_locked(&seg->topics.arena, ref);
}

void pn_message_discard_locked(struct pn_segment *seg, uint32_t ref)
{
    pn_assert_topics_held(seg);
    struct pn_message *m = pn_message_at(seg, ref);
    uint32_t refs = m->refs, steps = 0;
    pn_store_release(&m->state, PN_MSG_FREE);
    PN_CRASH("topic:discarded");
    while (refs-- > 0 && pn_cells_go_on(seg, &steps))
        pn_delivery_end_locked(seg, m->first);
}

/* ---- bounds ---------------------------------------------------------------------------------- */

static bool any_in_flight(const struct pn_segment *seg, const struct pn_message *m)
{
    PN_EACH_DELIVERY (seg, m, at)
        if (pn_state_kind(pn_load_relaxed(&pn_delivery_at(seg, at)->state)) >= PN_KIND_IN_FLIGHT)
            return true;
    return false;
}

/* The first from where we stopped last that no consumer works on; 0: none, or, after so many steps,
 * it goes on next time. */
static uint32_t find_idle(struct pn_segment *seg, struct pn_topic *topic, bool soft, uint32_t steps)
{
    uint32_t ref = topic->passed[soft] != 0 ? topic->passed[soft] : topic->oldest;
    for (; ref != 0; ref = pn_message_at(seg, ref)->next) {
        const struct pn_message *m = pn_message_at(seg, ref);
        topic->passed[soft] = ref;
        if (steps-- == 0)
            return 0;
        if ((m->firm == 0) == soft && !any_in_flight(seg, m))
            return ref;
    }
    topic->passed[soft] = 0;
    return 0;
}

/* Each channel that there is goes without so many. */
static void count_without(struct pn_segment *seg, const struct pn_topic *topic, uint64_t n)
{
    PN_EACH_CHANNEL (seg, topic, i)
        pn_topic_channel_at(seg, i - 1)->dropped += n;
}

/* Of so many, which the topic's policy keeps from every channel. */
static void count_dropped(struct pn_segment *seg, struct pn_topic *topic, uint64_t n)
{
    topic->dropped += n;
    count_without(seg, topic, n);
}

static void drop(struct pn_segment *seg, uint32_t ref)
{
    const struct pn_message *m = pn_message_at(seg, ref);
    PN_EACH_DELIVERY (seg, m, at) {
        struct pn_topic_channel *ch = pn_topic_channel_at(seg, pn_delivery_at(seg, at)->channel);
        if (pn_is_backlog(seg, ch)) /* every channel was to get it */
            count_without(seg, pn_topic_at(seg, m->topic), 1);
        else
            ch->dropped++;
    }
    pn_message_discard_locked(seg, ref);
}

/* Of those that no consumer works on; false: there is none. */
static bool drop_oldest(struct pn_segment *seg, struct pn_topic *topic)
{
    uint32_t ref = find_idle(seg, topic, false, (uint32_t) (seg->topics.memory / 32));
    if (ref == 0)
        return false;
    topic->dropped++;
    drop(seg, ref);
    return true;
}

bool pn_message_drop_soft_locked(struct pn_segment *seg, struct pn_topic *topic)
{
    pn_assert_topics_held(seg);
    uint32_t ref = topic->messages == topic->firm ? 0 : find_idle(seg, topic, true, PN_TOPIC_STEPS);
    if (ref != 0)
        drop(seg, ref);
    return ref != 0;
}

static int topic_full(const struct pn_topic *topic, const char *what)
{
    return pn_fail(PN_ETOPICFULL,
                   "topic \"%.*s\" is full: %s\n"
                   "Wait until its consumers have finished some, or raise the bound.",
                   (int) topic->name_len, topic->name, what);
}

/* What is deferred counts, and no consumer can finish it: how many has the channel with most? */
static int depth_full(const struct pn_segment *seg, const struct pn_topic *topic)
{
    const struct pn_topic_channel *most = NULL;
    char deferred[128] = "";
    PN_EACH_CHANNEL (seg, topic, i) {
        const struct pn_topic_channel *ch = pn_topic_channel_at(seg, i - 1);
        if (ch->ephemeral == 0 && ch->deferred > (most == NULL ? 0 : most->deferred))
            most = ch;
    }
    if (most != NULL)
        snprintf(deferred, sizeof deferred, ", of which channel \"%.*s\" has %u deferred",
                 (int) (most->name_len <= sizeof most->name ? most->name_len : 0), most->name,
                 most->deferred);
    return pn_fail(PN_ETOPICFULL,
                   "topic \"%.*s\" is full: max_depth is %llu messages%s\n"
                   "Wait until %sits consumers have finished some, or raise the bound.",
                   (int) topic->name_len, topic->name, (unsigned long long) topic->max_depth,
                   deferred, most != NULL ? "deferred ones are due and " : "");
}

/* By its own bound, or because of what all topics have. */
static int memory_full(const struct pn_segment *seg, const struct pn_topic *topic)
{
    const uint64_t most = pn_topic_limits(topic)->max_memory, has = pn_topic_memory(seg, topic);
    char what[96];
    if (most == 0 || has + most / 4 < most) /* a long message, or fragments, leave a part of it */
        return topic_full(topic, "its part of topic_memory");
    snprintf(what, sizeof what, "max_memory is %llu bytes, %llu are used",
             (unsigned long long) most, (unsigned long long) has);
    return topic_full(topic, what);
}

/* Each channel there is goes without a message, if it must. */
static bool all_ephemeral(const struct pn_segment *seg, const struct pn_topic *topic)
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
    if (all_ephemeral(seg, topic))
        return ref; /* of these each goes without the new one */
    for (int i = 0; ref == 0 && i < PN_DROPS && pn_message_drop_soft_locked(seg, topic); i++)
        ref = pn_message_stage_locked(seg, topic, in, now, backlog);
    return ref;
}

/* What has expired makes room. */
static void expire_locked(struct pn_segment *seg, struct pn_topic *topic)
{
    pn_assert_topics_held(seg);
    int64_t now = pn_now_ns();
    PN_EACH_CHANNEL (seg, topic, i)
        pn_topic_channel_tick_locked(seg, pn_topic_channel_at(seg, i - 1), now);
    pn_topic_channel_tick_locked(
        seg, pn_topic_channel_at(seg, (uint32_t) (topic - seg->topics.topic)), now);
}

int pn_message_admit_locked(struct pn_segment *seg, struct pn_topic *topic, size_t n, size_t *skip,
                            size_t *keep)
{
    pn_assert_topics_held(seg);
    uint64_t max = topic->max_depth, there = (uint64_t) topic->firm + topic->staged;
    *skip = 0;
    *keep = n;
    if (__builtin_expect(pn_topic_disk_is_over(topic), 0))
        return pn_topic_disk_full(topic, 0);
    if (max == 0 || n + there <= max)
        return 0;
    expire_locked(seg, topic);
    there = (uint64_t) topic->firm + topic->staged;
    if (n + there <= max)
        return 0;
    if (all_ephemeral(seg, topic) && topic->paused == 0)
        return 0; /* each of them goes without, if it is full */
    switch (topic->overflow) {
    case PN_OVERFLOW_DROP_NEW:
        *keep = there >= max ? 0 : max - there;
        count_dropped(seg, topic, n - *keep);
        return 0;
    case PN_OVERFLOW_DROP_OLDEST:
        *skip = n > max ? n - max : 0;
        for (uint32_t steps = 0; topic->firm + topic->staged + (n - *skip) > max &&
                                 pn_cells_go_on(seg, &steps) && drop_oldest(seg, topic);)
            ;
        if (topic->firm + topic->staged + (n - *skip) > max)
            return topic_full(topic, "all is in flight");
        count_dropped(seg, topic, *skip);
        return 0;
    default:
        return pn_topic_may_spill(seg, topic) ? 0 : depth_full(seg, topic);
    }
}

/* What cannot leave memory is not to fill it with what is deferred (later.c): a part of a share is
 * for what is for now.  Where the oldest are dropped there is room anyway. */
static bool leaves_too_little(const struct pn_segment *seg, const struct pn_topic *topic,
                              const struct pn_new_message *in)
{
    const struct pn_arena *mem = &seg->topics.arena;
    if (in->delay_ns <= 0 || topic->messages == 0 || topic->overflow == PN_OVERFLOW_DROP_OLDEST ||
        pn_topic_may_spill(seg, topic))
        return false;
    struct pn_arena_need need =
        pn_message_need(seg, topic, (uint64_t) in->headers_len + in->body_len, true);
    need.pages += pn_arena_reserve_of(mem, &need);
    return !pn_arena_may_locked(mem, (uint32_t) (topic - seg->topics.topic), &need);
}

static int refuse(struct pn_segment *seg, struct pn_topic *topic, const char *what)
{
    if (all_ephemeral(seg, topic) && topic->paused == 0) {
        count_without(seg, topic, 1);
        return 0;
    }
    if (topic->overflow == PN_OVERFLOW_DROP_NEW) {
        count_dropped(seg, topic, 1);
        return 0;
    }
    return what != NULL ? topic_full(topic, what) : memory_full(seg, topic);
}

int pn_message_stage_or_drop_locked(struct pn_segment *seg, struct pn_topic *topic,
                                    const struct pn_new_message *in, const struct pn_moment *now,
                                    bool backlog, uint32_t *ref)
{
    pn_assert_topics_held(seg);
    *ref = 0;
    if (__builtin_expect(in->delay_ns > 0, 0) && leaves_too_little(seg, topic, in))
        return refuse(
            seg, topic,
            "deferred messages may have no more of its part of topic_memory, as a quarter "
            "of a share is for what is for now");
    *ref = pn_message_stage_locked(seg, topic, in, now, backlog);
    if (*ref == 0) {
        expire_locked(seg, topic);
        *ref = pn_message_stage_locked(seg, topic, in, now, backlog);
    }
    /* before anything is refused, dropped or spilled */
    for (int i = 0; *ref == 0 && i < PN_SWEEP_TRIES && seg->topics.ctl->sweeping != 0; i++) {
        pn_topics_sweep_locked(seg);
        *ref = pn_message_stage_locked(seg, topic, in, now, backlog);
    }
    if (*ref == 0)
        *ref = pn_message_stage_firm_locked(seg, topic, in, now, backlog);
    for (int i = 0; *ref == 0 && topic->overflow == PN_OVERFLOW_DROP_OLDEST && i < PN_DROPS &&
                    drop_oldest(seg, topic);
         i++)
        *ref = pn_message_stage_locked(seg, topic, in, now, backlog);
    if (*ref != 0 && pn_message_at(seg, *ref)->refs == 0) { /* every channel goes without */
        pn_message_unstage_locked(seg, *ref);
        *ref = 0;
        topic->message_count++;
        topic->message_bytes += in->body_len;
        return 0;
    }
    return *ref != 0 ? 0 : refuse(seg, topic, NULL);
}

/* ---- publishing ------------------------------------------------------------------------------ */

int pn_topic_enter(struct pn_conn *conn, struct pn_hold *hold, pn_ref ref, struct pn_topic **topic)
{
    int rc = pn_lock_topics_wait(conn->seg, hold, PN_LOCK_TIMEOUT_NS, conn);
    if (rc != 0)
        return rc;
    rc = pn_conn_check_slot(conn);
    *topic = rc == 0 ? pn_topic_resolve_locked(conn, ref) : NULL;
    if (*topic == NULL) {
        pn_lock_release(conn->seg);
        return rc != 0 ? rc : -PN_ETOPICDELETED;
    }
    pn_topics_begin_locked(conn->seg);
    return 0;
}

static int publish_locked(struct pn_segment *seg, struct pn_topic *topic,
                          const struct pn_new_message *m)
{
    pn_assert_topics_held(seg);
    struct pn_moment now = pn_moment_now();
    size_t skip = 0, keep = 1;
    uint32_t ref = 0;
    if (pn_rest_runs(seg, topic) &&
        pn_rest_splits_locked(seg, topic, (uint64_t) m->headers_len + m->body_len,
                              m->delay_ns > 0 || m->ttl_ns > 0))
        return pn_rest_publish_locked(seg, topic, m, m->body, &m->body_len, 1);
    bool spill = pn_topic_spills_locked(seg, topic, 1);
    int rc = spill ? 0 : pn_message_admit_locked(seg, topic, 1, &skip, &keep);
    if (rc == 0 && skip < keep && !spill)
        rc = pn_message_stage_or_drop_locked(seg, topic, m, &now, false, &ref);
    if (spill || (rc == -PN_ETOPICFULL && pn_topic_may_spill(seg, topic)))
        return pn_rest_or_spill_locked(seg, topic, m, m->body, &m->body_len, 1);
    if (rc != 0 || ref == 0)
        return rc;
    pn_durable_note_publish_locked(seg, ref);
    rc = pn_is_durable(seg, topic) ? pn_durable_flush_locked(seg) : 0;
    if (rc != 0) {
        pn_message_unstage_locked(seg, ref);
        return rc;
    }
    PN_CRASH("publish:before-live");
    pn_store_release(&pn_message_at(seg, ref)->state, PN_MSG_LIVE); /* published */
    PN_CRASH("publish:after-live");
    pn_message_link_locked(seg, ref);
    return 0;
}

static void release_after_publish(struct pn_conn *conn)
{
    bool woken = pn_topics_hold(conn->seg)->nwakes != 0;
    pn_lock_release(conn->seg);
    if (woken)
        pn_make_way_for_consumers(conn);
}

int pn_message_publish(struct pn_conn *conn, pn_ref ref, const pn_message_in *in, uint64_t *id)
{
    struct pn_hold hold;
    struct pn_segment *seg = conn->seg;
    struct pn_topic *topic;
    struct pn_new_message m = {.body = in->body,
                               .headers = in->headers,
                               .body_len = (uint32_t) in->body_len,
                               .headers_len = (uint32_t) in->headers_len,
                               .delay_ns = in->delay_ns,
                               .ttl_ns = in->ttl_ns,
                               .fresh = true};
    int rc = pn_topic_enter(conn, &hold, ref, &topic);
    if (rc != 0)
        return rc;
    m.ttl_ns = pn_topic_ttl(topic, m.ttl_ns);
    *id = m.id = pn_fetch_add_relaxed(&seg->topics.ctl->next_id, 1);
    rc = publish_locked(seg, topic, &m);
    if (rc == 0)
        pn_topic_go_on_locked(seg, topic);
    bool log = __builtin_expect(conn->log != NULL, 0);
    struct pn_topic_note note;
    if (log)
        note.len = pn_log_topic_name(topic, note.name);
    pn_topics_end_locked(seg);
    PN_CRASH("publish:done");
    release_after_publish(conn);
    if (log && rc == 0)
        pn_log_publish(conn, &note, m.id, m.body_len);
    return rc;
}

/* Those that were published so far of a publish_many that fails. */
static void take_back_locked(struct pn_segment *seg, struct pn_topic *topic, uint64_t first_id)
{
    pn_assert_topics_held(seg);
    uint32_t steps = 0;
    while (topic->newest != 0 && pn_message_at(seg, topic->newest)->id >= first_id &&
           pn_cells_go_on(seg, &steps)) {
        const struct pn_message *m = pn_message_at(seg, topic->newest);
        topic->message_count--;
        topic->message_bytes -= m->body_len;
        PN_EACH_DELIVERY (seg, m, at)
            pn_topic_channel_at(seg, pn_delivery_at(seg, at)->channel)->message_count--;
        pn_message_discard_locked(seg, topic->newest);
        PN_CRASH("publish:taken-back");
    }
}

static int publish_many_locked(struct pn_segment *seg, struct pn_topic *topic,
                               struct pn_new_message *m, const unsigned char *bodies,
                               const uint32_t *lens, size_t n)
{
    pn_assert_topics_held(seg);
    struct pn_topic_redo *redo = &seg->topics.ctl->redo;
    struct pn_moment now = pn_moment_now();
    uint64_t first_id = m->id;
    size_t skip, keep;
    uint32_t ref;
    int rc = pn_message_admit_locked(seg, topic, n, &skip, &keep);
    redo->void_first = first_id;
    PN_CRASH("publish:many");
    pn_store_release(&redo->void_n, n);
    for (size_t i = 0; rc == 0 && i < keep; bodies += lens[i], i++, m->id++) {
        if (i < skip)
            continue;
        m->body = bodies;
        m->body_len = lens[i];
        rc = pn_message_stage_or_drop_locked(seg, topic, m, &now, false, &ref);
        if (rc != 0 || ref == 0)
            continue;
        pn_store_release(&pn_message_at(seg, ref)->state, PN_MSG_LIVE);
        PN_CRASH("publish:one-of-many");
        pn_message_link_locked(seg, ref);
        pn_durable_note_publish_locked(seg, ref);
    }
    if (rc == 0 && pn_is_durable(seg, topic))
        rc = pn_durable_flush_locked(seg);
    if (rc != 0) { /* the log has none of it, and is told nothing of their end */
        pn_durable_forget_locked(seg);
        pn_topics_hold(seg)->told = true;
        take_back_locked(seg, topic, first_id);
        pn_topics_hold(seg)->told = false;
    }
    PN_CRASH("publish:before-all");
    pn_store_release(&redo->void_n, 0); /* published, all of them */
    PN_CRASH("publish:after-all");
    return rc;
}

int pn_message_publish_many(struct pn_conn *conn, pn_ref ref, const unsigned char *bodies,
                            const uint32_t *lens, size_t n, const pn_message_in *common,
                            uint64_t *first_id)
{
    struct pn_hold hold;
    struct pn_segment *seg = conn->seg;
    struct pn_topic *topic;
    struct pn_new_message m = {.fresh = true};
    if (common != NULL)
        m = (struct pn_new_message) {.headers = common->headers,
                                     .headers_len = (uint32_t) common->headers_len,
                                     .delay_ns = common->delay_ns,
                                     .ttl_ns = common->ttl_ns,
                                     .fresh = true};
    int rc = pn_topic_enter(conn, &hold, ref, &topic);
    if (rc != 0)
        return rc;
    m.ttl_ns = pn_topic_ttl(topic, m.ttl_ns);
    *first_id = m.id = pn_fetch_add_relaxed(&seg->topics.ctl->next_id, n);
    const struct pn_new_message all = m;
    bool spill = pn_topic_spills_locked(seg, topic, n) ||
                 (pn_rest_runs(seg, topic) &&
                  pn_rest_splits_locked(seg, topic, (uint64_t) m.headers_len + lens[0],
                                        m.delay_ns > 0 || m.ttl_ns > 0));
    if (!spill)
        rc = publish_many_locked(seg, topic, &m, bodies, lens, n);
    if (spill || (rc == -PN_ETOPICFULL && pn_topic_may_spill(seg, topic)))
        rc = pn_rest_or_spill_locked(seg, topic, &all, bodies, lens, n);
    if (rc == 0)
        pn_topic_go_on_locked(seg, topic);
    bool log = rc == 0 && __builtin_expect(conn->log != NULL, 0);
    struct pn_topic_note note;
    if (log)
        note.len = pn_log_topic_name(topic, note.name);
    pn_topics_end_locked(seg);
    release_after_publish(conn);
    for (size_t i = 0; log && i < n; i++)
        pn_log_publish(conn, &note, *first_id + i, lens[i]);
    return rc;
}
