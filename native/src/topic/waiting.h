/*
 * waiting.h - consumers that wait: whether one does, and which is notified.
 *
 * Everything needs the writer lock and, where something changes, `topics_dirty`.
 */
#ifndef PN_TOPIC_WAITING_H
#define PN_TOPIC_WAITING_H

#include "topic/area.h"

/* Consumers: how one waits, and its owner. */
void pn_consumer_set_wait_locked(struct pn_segment *seg, uint32_t ci, enum pn_consumer_wait wait);
void pn_consumer_notify_locked(struct pn_segment *seg, uint32_t ci);

/* I24: after anything that may have broken it. */
void pn_topic_channel_settle_locked(struct pn_segment *seg, struct pn_topic_channel *ch);
/* The same for all channels of the topic. */
void pn_topic_settle_locked(struct pn_segment *seg, struct pn_topic *topic);

/* When the first of those in flight times out, or INT64_MAX. */
int64_t pn_topic_channel_deadline(const struct pn_segment *seg, const struct pn_topic_channel *ch);
/* When something is due next, or INT64_MAX. */
int64_t pn_topic_channel_next_due_locked(struct pn_segment *seg, struct pn_topic_channel *ch);

/* Has it as many in flight as it may have? */
bool pn_consumer_full(const struct pn_consumer_slot *c);
/* Does it leave what is ready to others, for want of memory? */
bool pn_consumer_throttled(const struct pn_segment *seg, const struct pn_consumer_slot *c);
/* Does it sleep, whatever for? */
static inline bool pn_consumer_sleeps(const struct pn_consumer_slot *c)
{
    const uint32_t wait = pn_load_relaxed(&c->wait);
    return wait == PN_CONSUMER_WAITING || wait == PN_CONSUMER_BLOCKED ||
           wait == PN_CONSUMER_THROTTLED;
}

#endif
