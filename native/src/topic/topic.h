/*
 * topic.h - topics, their channels, and consumers: tables in the topic area (layout_topic.h).
 *
 * Everything needs the writer lock except where noted.
 */
#ifndef PN_TOPIC_H
#define PN_TOPIC_H

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
void pn_topics_refill_locked(struct pn_segment *seg); /* overflow.c */
void pn_durable_end_locked(struct pn_segment *seg);   /* durable.c */
/* Up to PN_TOPIC_STEPS steps of freeing what was deleted or emptied; true: there is more. */
bool pn_topics_sweep_locked(struct pn_segment *seg);
/* What every operation on topics does at its end, for those before it. */
static inline void pn_topics_tend_locked(struct pn_segment *seg)
{
    pn_assert_topics_held(seg);
    if (__builtin_expect(seg->topics.ctl->sweeping != 0, 0)) /* perhaps of a dead process */
        pn_topics_sweep_locked(seg);
    if (__builtin_expect(seg->topics.ctl->spilled != 0, 0))
        pn_topics_refill_locked(seg);
    if (__builtin_expect(seg->topics.noted != 0 || seg->topics.ctl->log_behind != 0 ||
                             pn_load_relaxed(&seg->topics.ctl->log.failed) != 0,
                         0))
        pn_durable_end_locked(seg);
}
static inline void pn_topics_end_locked(struct pn_segment *seg)
{
    pn_topics_tend_locked(seg);
    pn_compiler_fence();
    pn_store_relaxed(&seg->ctl->topics_dirty, 0);
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

/* The consumers of a channel, in i one above the index of each. */
#define PN_EACH_CONSUMER(seg, ch, i)                                                               \
    for (uint32_t i = (ch)->first_consumer, i##_steps = 0;                                         \
         i != 0 && pn_list_goes_on(seg, i##_steps++, (seg)->topics.max_consumers, "consumers");    \
         i = pn_consumer_at(seg, i - 1)->next)

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

/* ---- references ------------------------------------------------------------------------------ */

static inline pn_ref pn_ref_make(uint32_t index, uint32_t generation)
{
    return (uint64_t) generation << 32 | (index + 1);
}

/* What it names, of any database; NULL after pn_fail(PN_ETOPICDELETED). */
struct pn_topic *pn_topic_named_locked(const struct pn_segment *seg, pn_ref ref);
struct pn_topic_channel *pn_topic_channel_named_locked(const struct pn_segment *seg, pn_ref ref);
/* The same of the connection's database. */
struct pn_topic *pn_topic_resolve_locked(struct pn_conn *conn, pn_ref ref);
struct pn_topic_channel *pn_topic_channel_resolve_locked(struct pn_conn *conn, pn_ref ref);

/* ---- what the API does; these take the lock themselves --------------------------------------- */

int pn_topic_check_name(const char *what, const char *name, size_t len);
int pn_topics_open(struct pn_conn *conn, const char *name, size_t len,
                   const pn_topic_options *options, pn_ref *out);
int pn_topics_find(struct pn_conn *conn, const char *name, size_t len, pn_ref *out);
int pn_topic_channels_open(struct pn_conn *conn, pn_ref topic, const char *name, size_t len,
                           int64_t max_consumers, const pn_channel_options *options, pn_ref *out);
int pn_topic_channels_find(struct pn_conn *conn, pn_ref topic, const char *name, size_t len,
                           pn_ref *out);
int pn_topics_configure(struct pn_conn *conn, pn_ref topic, const pn_topic_options *options);
int pn_topic_channels_configure(struct pn_conn *conn, pn_ref channel,
                                const pn_channel_options *options);
int pn_topics_pause(struct pn_conn *conn, pn_ref topic, bool paused);
int pn_topics_empty(struct pn_conn *conn, pn_ref topic);
int pn_topics_delete(struct pn_conn *conn, pn_ref topic);
int pn_topic_channels_pause(struct pn_conn *conn, pn_ref channel, bool paused);
int pn_topic_channels_empty(struct pn_conn *conn, pn_ref channel);
int pn_topic_channels_delete(struct pn_conn *conn, pn_ref channel);

/* ---- for the other modules ------------------------------------------------------------------- */

/* The topic of that name and database, or NULL. */
struct pn_topic *pn_topic_lookup_locked(const struct pn_segment *seg, uint32_t dboid,
                                        const char *name, size_t len);
/* Found or made; dirty is set.  NULL: the table is full, or the database's row is not kept. */
struct pn_topic *pn_topic_make_locked(struct pn_segment *seg, uint32_t dboid, const char *name,
                                      size_t len, const pn_topic_options *options);
/* The channel of that name, made if need be; NULL: the table is full. */
struct pn_topic_channel *pn_topic_channel_make_locked(struct pn_segment *seg,
                                                      struct pn_topic *topic, const char *name,
                                                      size_t len, uint32_t max_consumers,
                                                      const pn_channel_options *options);
/* May what is given up in a channel of that topic go to the one of that name?  Not if it would come
 * back, by what channels there are set to.  0, or -PN_ETOPICOPTIONS with a sentence. */
int pn_dead_letter_check_locked(const struct pn_segment *seg, const struct pn_topic *from,
                                const char *to, size_t len);
/* An ephemeral channel has lost its last consumer, perhaps.  dirty is set. */
void pn_topic_channel_left_locked(struct pn_segment *seg, struct pn_topic_channel *ch);
/* The lists of channels that hang on topics, from the truth. */
void pn_topics_link_locked(struct pn_segment *seg);

#endif
