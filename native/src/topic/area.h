/*
 * area.h - the topic area: where its records are, and the lists that lead through them.
 *
 * Everything needs the writer lock except where noted.
 */
#ifndef PN_TOPIC_AREA_H
#define PN_TOPIC_AREA_H

#include "backend/conn.h"
#include "base/os.h"
#include "segment/lock.h"

enum { PN_TOPIC_STEPS = 256 }; /* no more of them in one hold of the lock */

/* May the topic area be touched?  Also without the lock. */
static inline bool pn_topics_ready(const struct pn_segment *seg)
{
    return pn_load_acquire(&seg->ctl->topics_ready) != 0; /* pairs with the release in make() */
}

/*
 * Between the two the indices contradict the truth; a death there is followed by a rebuild.  A
 * process dies between two instructions, so it is the compiler that must keep the order.  The lock
 * was taken by pn_lock_topics(): the topics are not closed.
 */
static inline void pn_topics_begin_locked(struct pn_segment *seg)
{
    pn_assert_topics_held(seg);
    pn_store_relaxed(&seg->ctl->topics_dirty, PN_TOPICS_DIRTY);
    pn_compiler_fence();
}

/* ---- addresses; whatever stands in the segment, they are inside of it ----------------------- */

static inline struct pn_delivery *pn_delivery_at(const struct pn_segment *seg, uint32_t ref)
{
    return pn_arena_at(&seg->topics.arena, pn_arena_inside(&seg->topics.arena, ref) ? ref : 0);
}
static inline struct pn_message *pn_message_at(const struct pn_segment *seg, uint32_t ref)
{
    return pn_arena_at(&seg->topics.arena, pn_arena_inside(&seg->topics.arena, ref) ? ref : 0);
}
static inline struct pn_topic *pn_topic_at(const struct pn_segment *seg, uint32_t i)
{
    return &seg->topics.topic[i < seg->topics.max_topics ? i : 0];
}
static inline struct pn_topic_channel *pn_topic_channel_at(const struct pn_segment *seg, uint32_t i)
{
    return &seg->topics.channel[i < seg->topics.max_channels ? i : 0];
}
static inline struct pn_consumer_slot *pn_consumer_at(const struct pn_segment *seg, uint32_t i)
{
    return &seg->topics.consumer[i < seg->topics.max_consumers ? i : 0];
}

/* A list that was overwritten may lead round and round: so many steps, then the segment is bad. */
bool pn_list_ends(const struct pn_segment *seg, const char *what);

static inline bool pn_list_goes_on(const struct pn_segment *seg, uint32_t steps, uint32_t most,
                                   const char *what)
{
    return __builtin_expect(steps < most, 1) || pn_list_ends(seg, what);
}

/* The same of messages and deliveries, with the steps so far. */
static inline bool pn_cells_go_on(const struct pn_segment *seg, uint32_t *steps)
{
    return pn_list_goes_on(seg, (*steps)++, (uint32_t) (seg->topics.memory / 32), "messages");
}

/* The deliveries of a message. */
#define PN_EACH_DELIVERY(seg, m, at)                                                               \
    for (uint32_t at = (m)->first, at##_steps = 0; at != 0 && pn_cells_go_on(seg, &at##_steps);    \
         at = pn_delivery_at(seg, at)->of_message)

/* The channels of a topic, in i one above the index of each. */
#define PN_EACH_CHANNEL(seg, topic, i)                                                             \
    for (uint32_t i = (topic)->first_channel, i##_steps = 0;                                       \
         i != 0 && pn_list_goes_on(seg, i##_steps++, (seg)->topics.max_channels, "channels");      \
         i = pn_topic_channel_at(seg, i - 1)->sibling)

/* The same, in ch the channel itself. */
#define PN_EACH_CHANNEL_AS(seg, topic, ch)                                                         \
    PN_EACH_CHANNEL (seg, topic, ch##_at)                                                          \
        for (struct pn_topic_channel *ch = pn_topic_channel_at(seg, ch##_at - 1); ch != NULL;      \
             ch = NULL)

/* The consumers of a channel, in i one above the index of each. */
#define PN_EACH_CONSUMER(seg, ch, i)                                                               \
    for (uint32_t i = (ch)->first_consumer, i##_steps = 0;                                         \
         i != 0 && pn_list_goes_on(seg, i##_steps++, (seg)->topics.max_consumers, "consumers");    \
         i = pn_consumer_at(seg, i - 1)->next)

/* The first of its channel's from now on. */
static inline void pn_consumer_link(const struct pn_segment *seg, struct pn_topic_channel *ch,
                                    uint32_t ci)
{
    struct pn_consumer_slot *c = pn_consumer_at(seg, ci);
    c->next = ch->first_consumer;
    if (c->next != 0)
        pn_consumer_at(seg, c->next - 1)->prev = ci + 1;
    ch->first_consumer = ci + 1;
    ch->consumers++;
    ch->samplers += c->sample_rate != 0;
}

static inline uint32_t pn_topic_channel_index(const struct pn_segment *seg,
                                              const struct pn_topic_channel *ch)
{
    return (uint32_t) (ch - seg->topics.channel);
}
static inline bool pn_is_backlog(const struct pn_segment *seg, const struct pn_topic_channel *ch)
{
    return pn_topic_channel_index(seg, ch) < seg->topics.max_topics;
}
static inline struct pn_topic *pn_topic_of(const struct pn_segment *seg,
                                           const struct pn_topic_channel *ch)
{
    return pn_topic_at(seg, ch->topic);
}

/* Was it emptied, with all that stood in the channel then (I20)? */
static inline bool pn_is_void(const struct pn_topic_channel *ch, const struct pn_delivery *d)
{
    return d->order < ch->discarded_below;
}

/* ---- references ------------------------------------------------------------------------------ */

static inline pn_ref pn_ref_make(uint32_t index, uint32_t generation)
{
    return (uint64_t) generation << 32 | (index + 1);
}

#endif
