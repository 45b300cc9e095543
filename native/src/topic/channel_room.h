/*
 * channel_room.h - how much of a topic's memory each of its channels may have (rest.c 3).
 *
 * Everything needs the writer lock.
 */
#ifndef PN_TOPIC_CHANNEL_ROOM_H
#define PN_TOPIC_CHANNEL_ROOM_H

#include "topic/area.h"

/* What there is room for; bytes and messages are those of a channel that has little. */
struct pn_channel_room {
    bool plenty;    /* for every channel: what is below `little` is of no matter */
    bool little;    /* for those that have little */
    bool least;     /* the same, beyond the topic's share */
    bool first;     /* for those that have nothing: what others move may have to wait for it */
    uint64_t part;  /* bytes that such a channel may have */
    uint64_t count; /* messages, likewise; 0: any */
};

/* For one more of so many bytes of headers and body, behind `more` that are staged.  What only
 * ephemeral channels have goes where there is no room. */
struct pn_channel_room pn_channel_room_locked(struct pn_segment *seg, struct pn_topic *topic,
                                              uint64_t bytes, bool timed, uint32_t more);
/* May the channel have that in memory, if it does not rest? */
bool pn_channel_takes(const struct pn_topic_channel *ch, const struct pn_channel_room *room,
                      uint64_t bytes);
/* Would one of so many bytes of headers and body not go to all channels in memory? */
bool pn_rest_splits_locked(struct pn_segment *seg, struct pn_topic *topic, uint64_t bytes,
                           bool timed);

/* Surely it does not take one of so many bytes, since pages are wanting; a quick look. */
bool pn_channel_waits_for_pages(const struct pn_segment *seg, const struct pn_topic *topic,
                                const struct pn_topic_channel *ch, uint64_t bytes);

#endif
