/*
 * later.h - deferred messages that leave memory for what is for now, and come back when due.
 *
 * Everything needs the writer lock and, where something changes, `topics_dirty`.
 */
#ifndef PN_TOPIC_LATER_H
#define PN_TOPIC_LATER_H

#include "files/diskqueue.h"
#include "topic/area.h"

/* Something of the topic is on disk for want of memory: deferred ones make room for it.  True: some
 * did, so it is to be looked at again. */
bool pn_later_make_room_locked(struct pn_segment *seg, struct pn_topic *topic);

/* What is due soon comes back, in bounded steps, if it is time for that. */
void pn_later_turn_locked(struct pn_segment *seg, struct pn_topic *topic);

/* What the channel had there is void by now: empty(), delete(). */
void pn_later_emptied_locked(struct pn_segment *seg, struct pn_topic_channel *ch);

/* How many the channel has there. */
uint64_t pn_later_depth(const struct pn_topic *topic, const struct pn_topic_channel *ch);

/* After a death: what a valid redo record says; what was derived is not known. */
void pn_later_redo_locked(struct pn_segment *seg);
void pn_later_forget_locked(const struct pn_segment *seg, struct pn_topic *topic);

#endif
