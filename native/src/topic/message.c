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

#include <stdio.h>

#include "base/crashpoint.h"
#include "segment/arena_body.h"
#include "segment/arena_share.h"
#include "segment/lock.h"
#include "topic/area.h"
#include "topic/frontier.h"
#include "topic/settings.h"
#include "topic/timedset.h"

enum { PN_DEAD_HEADERS = 8192 /* what a dead letter's headers are longer */ };

int pn_message_check(const struct pn_segment *seg, size_t body_len, size_t headers_len)
{
    if (body_len == 0)
        return pn_fail(PN_EBODY, "the body of a message cannot be empty");
    if (body_len > seg->topics.max_body)
        return pn_fail(PN_EBODYLONG,
                       "message body too long\n"
                       "It has %zu bytes; max_body of the segment is %u. Create the segment with a "
                       "larger one (PYNOTIFY_NAME=\"max_body=2MiB\").",
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

bool pn_topic_channel_goes_without(const struct pn_topic *topic, const struct pn_topic_channel *ch)
{
    return ch->ephemeral != 0 && topic->max_depth != 0 &&
           (uint64_t) ch->ready + ch->deferred + ch->in_flight + ch->staged >= topic->max_depth;
}

struct pn_arena_need pn_message_need_of(const struct pn_segment *seg, const struct pn_topic *topic,
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
    return pn_message_need_of(seg, topic, bytes, timed, &cells);
}

bool pn_message_has_room_locked(const struct pn_segment *seg, const struct pn_topic *topic,
                                uint64_t bytes, bool timed)
{
    pn_assert_topics_held(seg);
    const struct pn_arena_need need = pn_message_need(seg, topic, bytes, timed);
    return pn_arena_may_locked(&seg->topics.arena, (uint32_t) (topic - seg->topics.topic), &need);
}

/* ---- the end --------------------------------------------------------------------------------- */

void pn_message_free_locked(struct pn_segment *seg, uint32_t ref)
{
    pn_assert_topics_held(seg);
    struct pn_message *m = pn_message_at(seg, ref);
    struct pn_topic *topic = pn_topic_at(seg, m->topic);
    pn_store_release(&m->state, PN_MSG_FREE);
    PN_CRASH("topic:message-free");
    pn_frontier_left_locked(seg, topic, ref);
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
