/*
 * drop.h - whole messages that end: cancelled, or dropped for others.
 *
 * Everything needs the writer lock and, where something changes, `topics_dirty`.
 */
#ifndef PN_TOPIC_DROP_H
#define PN_TOPIC_DROP_H

#include "topic/area.h"

/* The end of a whole message, whatever its deliveries are at. */
void pn_message_discard_locked(struct pn_segment *seg, uint32_t ref);

/* The oldest that only ephemeral channels have, and no consumer works on, goes; false: none
 * does. */
bool pn_message_drop_soft_locked(struct pn_segment *seg, struct pn_topic *topic);
/* The oldest that a channel waits for, and no consumer works on; false: there is none. */
bool pn_message_drop_oldest_locked(struct pn_segment *seg, struct pn_topic *topic);

/* Each channel that there is goes without so many; and the topic drops so many. */
void pn_topic_count_without(struct pn_segment *seg, const struct pn_topic *topic, uint64_t n);
void pn_topic_count_dropped(struct pn_segment *seg, struct pn_topic *topic, uint64_t n);

#endif
