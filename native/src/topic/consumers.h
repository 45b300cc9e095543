/* consumers.h - how the consumers of all processes wait, and what becomes of a dead one's. */
#ifndef PN_CONSUMERS_H
#define PN_CONSUMERS_H

#include "topic/area.h"

/* So many messages of consumers that are no more one hold returns: tests set it. */
extern uint32_t pn_return_steps;

/* It is no more: what it has in flight goes back, one a step; true: more, and it is LEAVING. */
bool pn_consumer_drain_locked(struct pn_segment *seg, uint32_t ci, uint32_t *steps);
/* The same for those of the channel that are LEAVING; true: more, and nothing is to be claimed. */
bool pn_consumers_leave_locked(struct pn_segment *seg, struct pn_topic_channel *ch);
void pn_consumer_free_locked(struct pn_segment *seg, uint32_t ci);

/* The slot's owner is no more.  False: there is more to do, in another hold. */
bool pn_consumers_reap_locked(struct pn_segment *seg, uint32_t slot);

/* Signal those that were notified; the hook of lock.c.  Lock not held. */
void pn_consumers_signal(struct pn_segment *seg, const uint32_t *slots, uint32_t n);

/* Signal consumers that were notified at least so long ago and have not come.  Lock not held. */
void pn_consumers_signal_owed(struct pn_segment *seg, int64_t min_age_ns);

#endif
