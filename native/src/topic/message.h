/*
 * message.h - messages: what they are, what they take of memory, and their end.
 *
 * Everything with _locked needs the writer lock, and what changes something `topics_dirty`.
 */
#ifndef PN_MESSAGE_H
#define PN_MESSAGE_H

#include "base/moment.h"
#include "topic/area.h"

/* Pages that publishers leave to operations that move what is there (message.c 4). */
enum { PN_ARENA_RESERVE = 4 };

/* What is to be staged. */
struct pn_new_message {
    const void *body, *headers;
    uint32_t body_len, headers_len;
    uint64_t id;
    int64_t delay_ns, ttl_ns;
    bool fresh; /* it is being published, and may be refused; else it was accepted before */
    bool fits;  /* all channels have room for it in memory: that was looked at, just now */
};

int pn_message_check(const struct pn_segment *seg, size_t body_len, size_t headers_len);

/* Has one of so many bytes of headers and body room, by the topic's share?  `timed`: it has a delay
 * or a time to live. */
bool pn_message_has_room_locked(const struct pn_segment *seg, const struct pn_topic *topic,
                                uint64_t bytes, bool timed);
/* Its last delivery has ended. */
void pn_message_free_locked(struct pn_segment *seg, uint32_t ref);

/* What a message of so many bytes of headers and body takes of memory, about. */
static inline uint64_t pn_bytes_cost(uint64_t bytes)
{
    return bytes + sizeof(struct pn_message) + sizeof(struct pn_delivery);
}
static inline uint64_t pn_message_cost(const struct pn_message *m)
{
    return pn_bytes_cost((uint64_t) m->headers_len + m->body_len);
}

/* How long what a message carries is: loaded once, before room is made for it and it is copied. */
struct pn_lengths {
    uint32_t headers, body;
    uint64_t both;
};
static inline struct pn_lengths pn_message_lengths(const struct pn_message *m)
{
    uint32_t headers = *(volatile const uint32_t *) &m->headers_len;
    uint32_t body = *(volatile const uint32_t *) &m->body_len;
    return (struct pn_lengths) {headers, body, (uint64_t) headers + body};
}
/* What one would take of the arena, exactly. */
struct pn_arena_need pn_message_need(const struct pn_segment *seg, const struct pn_topic *topic,
                                     uint64_t bytes, bool timed);
/* The same; *cells: with its body in cells alone, since it has no room with pages (arena_body.c
 * 1).  Nothing happens between the answer and the taking, so both are of one mind. */
struct pn_arena_need pn_message_need_of(const struct pn_segment *seg, const struct pn_topic *topic,
                                        uint64_t bytes, bool timed, bool *cells);

/* Has the channel, which is ephemeral, as many as its topic may have?  Then it goes without. */
bool pn_topic_channel_goes_without(const struct pn_topic *topic, const struct pn_topic_channel *ch);

#endif
