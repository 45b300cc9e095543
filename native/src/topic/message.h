/*
 * message.h - messages: publishing, the fan-out to channels, the backlog, and their end.
 *
 * Everything with _locked needs the writer lock, and what changes something `topics_dirty`.
 */
#ifndef PN_MESSAGE_H
#define PN_MESSAGE_H

#include "base/moment.h"
#include "topic/area.h"

/* What is to be staged. */
struct pn_new_message {
    const void *body, *headers;
    uint32_t body_len, headers_len;
    uint64_t id;
    int64_t delay_ns, ttl_ns;
    bool fresh; /* it is being published, and may be refused; else it was accepted before */
};

int pn_message_check(const struct pn_segment *seg, size_t body_len, size_t headers_len);

/* One that is a transaction of its own. */
int pn_message_publish(struct pn_conn *conn, pn_ref topic, const pn_message_in *in, uint64_t *id);
int pn_message_publish_many(struct pn_conn *conn, pn_ref topic, const unsigned char *bodies,
                            const uint32_t *lens, size_t n, const pn_message_in *common,
                            uint64_t *first_id);

/*
 * May n more messages be published?  The topic's bound and policy: *skip of them, from the front,
 * and all after *keep are dropped.  Older ones may be dropped here.  0 or -PN_ETOPICFULL.
 */
int pn_message_admit_locked(struct pn_segment *seg, struct pn_topic *topic, size_t n, size_t *skip,
                            size_t *keep);
/* Write it, with its deliveries, STAGED; 0: no memory. */
uint32_t pn_message_stage_locked(struct pn_segment *seg, struct pn_topic *topic,
                                 const struct pn_new_message *m, const struct pn_moment *now,
                                 bool backlog);
/* The same, if there is room once messages are dropped that only ephemeral channels have. */
uint32_t pn_message_stage_firm_locked(struct pn_segment *seg, struct pn_topic *topic,
                                      const struct pn_new_message *m, const struct pn_moment *now,
                                      bool backlog);
/* Has one of so many bytes of headers and body room, by the topic's share?  `timed`: it has a delay
 * or a time to live. */
bool pn_message_has_room_locked(const struct pn_segment *seg, const struct pn_topic *topic,
                                uint64_t bytes, bool timed);
/* The same, and where there is no room the topic's policy decides: 0 with *ref 0: dropped. */
int pn_message_stage_or_drop_locked(struct pn_segment *seg, struct pn_topic *topic,
                                    const struct pn_new_message *m, const struct pn_moment *now,
                                    bool backlog, uint32_t *ref);
/* One that was there before: STAGED, without deliveries if not in the backlog; then those. */
uint32_t pn_message_restore_begin_locked(struct pn_segment *seg, struct pn_topic *topic,
                                         const struct pn_new_message *m,
                                         const struct pn_moment *then, bool backlog, bool shared);
bool pn_message_restore_delivery_locked(struct pn_segment *seg, uint32_t ref, uint32_t channel,
                                        int64_t due, uint32_t attempts);
/* Not published after all. */
void pn_message_unstage_locked(struct pn_segment *seg, uint32_t ref);
/* It is LIVE now: into the lists with it. */
void pn_message_link_locked(struct pn_segment *seg, uint32_t ref);
/* A chain of staged ones, whose commit point has passed: LIVE, and into the lists. */
void pn_message_golive_locked(struct pn_segment *seg, uint32_t ref);
/* The end of a whole message, whatever its deliveries are at. */
void pn_message_discard_locked(struct pn_segment *seg, uint32_t ref);
/* Its last delivery has ended. */
void pn_message_free_locked(struct pn_segment *seg, uint32_t ref);
/* With the lock, and `topics_dirty`: what a connection does to a topic.  Else -errno. */
int pn_topic_enter(struct pn_conn *conn, struct pn_hold *hold, pn_ref ref, struct pn_topic **topic);

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
/* The oldest that only ephemeral channels have, and no consumer works on, goes; false: none
 * does. */
bool pn_message_drop_soft_locked(struct pn_segment *seg, struct pn_topic *topic);

/* Has the channel, which is ephemeral, as many as its topic may have?  Then it goes without. */
bool pn_topic_channel_goes_without(const struct pn_topic *topic, const struct pn_topic_channel *ch);
/* One delivery more of a message that is staged, or is pumped.  False: no memory. */
bool pn_message_add_delivery_locked(struct pn_segment *seg, struct pn_message *m, uint32_t ref,
                                    struct pn_topic_channel *ch, int64_t due);

#endif
