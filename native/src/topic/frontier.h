/*
 * frontier.h - where a topic looks for what it can drop (frontier.c).
 *
 * Everything needs the writer lock.  All that is stored is derived: a death makes it unknown.
 */
#ifndef PN_TOPIC_FRONTIER_H
#define PN_TOPIC_FRONTIER_H

#include "topic/area.h"

/* The oldest message that a channel waits for and no consumer works on; 0: there is none, or it
 * was not found in so many steps, of which *steps are left: the next look goes on. */
uint32_t pn_frontier_find_locked(struct pn_segment *seg, struct pn_topic *topic, uint32_t *steps);
/* The same of those that only ephemeral channels have; it begins again behind the newest. */
uint32_t pn_frontier_find_soft_locked(struct pn_segment *seg, struct pn_topic *topic,
                                      uint32_t steps);

/* A message became the newest. */
void pn_frontier_linked_locked(struct pn_segment *seg, struct pn_topic *topic, uint32_t ref);
/* A consumer works on it no longer. */
void pn_frontier_back_locked(struct pn_segment *seg, struct pn_topic *topic, uint32_t ref);
/* It leaves the topic's list, in which it still stands. */
void pn_frontier_left_locked(struct pn_segment *seg, struct pn_topic *topic, uint32_t ref);

static inline void pn_frontier_forget(struct pn_topic *topic)
{
    topic->passed[0] = topic->passed[1] = topic->back_last = topic->beyond = 0;
    topic->unsorted = PN_SORTED;
}

#endif
