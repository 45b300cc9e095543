/*
 * returns.h - deliveries that come back: not answered in time, or of a consumer that is no more.
 *
 * Everything needs the writer lock and, where something changes, `topics_dirty`.
 */
#ifndef PN_TOPIC_RETURNS_H
#define PN_TOPIC_RETURNS_H

#include "topic/delivery.h"

/* It is in flight, and its deadline is over.  The others that are due stay for the next tick. */
void pn_delivery_time_out_locked(struct pn_segment *seg, uint32_t ref, int64_t now);
/* It would go back; if it has been delivered often enough it is a dead letter instead. */
void pn_delivery_return_locked(struct pn_segment *seg, uint32_t ref, enum pn_back where);

/* Whatever is due in the channel by now, in bounded steps; true: there is more. */
bool pn_topic_channel_tick_locked(struct pn_segment *seg, struct pn_topic_channel *ch, int64_t now);
/* The same in all channels of the topic. */
void pn_topic_tick_locked(struct pn_segment *seg, struct pn_topic *topic);

#endif
