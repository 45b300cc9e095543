/* channel_room.c - how much of a topic's memory each of its channels may have (rest.c 3). */
#include "topic/channel_room.h"

#include "segment/arena_share.h"
#include "segment/lock.h"
#include "topic/area.h"
#include "topic/cursors.h"
#include "topic/drop.h"
#include "topic/message.h"
#include "topic/queues.h"

enum { PN_REST_DROPS = 64 };

static uint64_t in_memory(const struct pn_topic_channel *ch)
{
    return (uint64_t) ch->ready + ch->deferred + ch->in_flight + ch->staged;
}

static bool has_little(const struct pn_topic_channel *ch, const struct pn_channel_room *room,
                       uint64_t cost)
{
    uint64_t n = in_memory(ch);
    return n == 0 || (ch->bytes + cost <= room->part && (room->count == 0 || n < room->count));
}

bool pn_channel_takes(const struct pn_topic_channel *ch, const struct pn_channel_room *room,
                      uint64_t bytes)
{
    if (ch->ephemeral != 0)
        return room->little;
    return room->plenty || (room->first && in_memory(ch) == 0) ||
           ((room->little || room->least) && has_little(ch, room, pn_bytes_cost(bytes)));
}

/* What it has is more than any part (look_at_share()), and there are no pages for a reserve. */
bool pn_channel_waits_for_pages(const struct pn_segment *seg, const struct pn_topic *topic,
                                const struct pn_topic_channel *ch, uint64_t bytes)
{
    const struct pn_arena *mem = &seg->topics.arena;
    struct pn_arena_need need = {.bodies = 1, /* at the least */
                                 .deliveries = topic->nchannels + 1U,
                                 .spare = PN_ARENA_RESERVE,
                                 .most = pn_topic_most_pages(topic)};
    const uint64_t share =
        need.most != 0 && need.most < mem->ctl->share ? need.most : mem->ctl->share;
    const uint64_t one = bytes / PN_ARENA_PAGE + 8 + UINT64_C(2) * topic->nchannels; /* or less */
    need.pages = share / 4;
    return need.pages != 0 && ch->bytes > (need.pages + one) * PN_ARENA_PAGE &&
           !pn_arena_may_locked(mem, (uint32_t) (topic - seg->topics.topic), &need);
}

/* Is there plenty, even if there are several channels that are not ephemeral?  Every publish asks,
 * and nearly always it is so: no channel is looked at. */
static bool is_plenty(const struct pn_segment *seg, const struct pn_topic *topic,
                      struct pn_arena_need need, uint64_t there)
{
    const struct pn_arena *mem = &seg->topics.arena;
    if (topic->max_depth != 0 && there + 1 + topic->max_depth / 4 > topic->max_depth)
        return false;
    need.pages += pn_arena_reserve_of(mem, &need);
    return pn_arena_may_locked(mem, (uint32_t) (topic - seg->topics.topic), &need);
}

static struct pn_channel_room look_at_share(const struct pn_segment *seg,
                                            const struct pn_topic *topic, uint64_t bytes,
                                            bool timed, uint32_t more)
{
    const struct pn_arena *mem = &seg->topics.arena;
    const uint64_t there = (uint64_t) topic->firm + topic->staged + more;
    struct pn_arena_need need = pn_message_need(seg, topic, bytes, timed);
    if (is_plenty(seg, topic, need, there))
        return (struct pn_channel_room) {.plenty = true, .little = true};
    const uint32_t index = (uint32_t) (topic - seg->topics.topic),
                   n = pn_topic_firm_channels(seg, topic);
    const uint64_t reserve = n < 2 ? 0 : pn_arena_reserve_of(mem, &need);
    const uint64_t places = n < 2 ? 0 : topic->max_depth / 4;
    struct pn_channel_room room = {.part = reserve * PN_ARENA_PAGE / (n == 0 ? 1 : n),
                                   .count =
                                       topic->max_depth == 0 ? 0 : places / (n == 0 ? 1 : n) + 1};
    bool deep = topic->max_depth != 0 && there + 1 > topic->max_depth;
    bool almost = topic->max_depth != 0 && there + 1 + places > topic->max_depth;
    room.little = !deep && pn_arena_may_locked(mem, index, &need);
    uint64_t had = 0;
    PN_EACH_CHANNEL_AS (seg, topic, ch)
        had += ch->ephemeral == 0 && has_little(ch, &room, 0) ? ch->bytes : 0;
    room.least = pn_arena_pages_for(mem, index, &need) + had / PN_ARENA_PAGE + need.spare <=
                 mem->ctl->pages_free / 2;
    need.pages += reserve;
    room.plenty = room.little && !almost && pn_arena_may_locked(mem, index, &need);
    need.pages -= reserve;
    need.spare = 0;
    room.first = pn_arena_may_locked(mem, index, &need);
    return room;
}

struct pn_channel_room pn_channel_room_locked(struct pn_segment *seg, struct pn_topic *topic,
                                              uint64_t bytes, bool timed, uint32_t more)
{
    pn_assert_topics_held(seg);
    struct pn_channel_room room = look_at_share(seg, topic, bytes, timed, more);
    for (int i = 0; !room.little && i < PN_REST_DROPS && pn_message_drop_soft_locked(seg, topic);
         i++)
        room = look_at_share(seg, topic, bytes, timed, more);
    return room;
}

bool pn_rest_splits_locked(struct pn_segment *seg, struct pn_topic *topic, uint64_t bytes,
                           bool timed)
{
    pn_assert_topics_held(seg);
    if (!pn_rest_may(seg, topic))
        return false;
    struct pn_channel_room room = pn_channel_room_locked(seg, topic, bytes, timed, 0);
    if (room.plenty && pn_rest_records(topic) == 0) /* no channel rests, all take it */
        return false;
    PN_EACH_CHANNEL_AS (seg, topic, ch)
        if (pn_rests(topic, ch) || !pn_channel_takes(ch, &room, bytes))
            return true;
    return false;
}
