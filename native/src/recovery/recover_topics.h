/* recover_topics.h - topics after the death of a lock holder.  Writer lock held. */
#ifndef PN_TOPIC_RECOVER_H
#define PN_TOPIC_RECOVER_H

#include "topic/area.h"

/* Redo of an entry of the queue: PUBLISH, ANSWER.  Only the truth is changed. */
int pn_topic_redo_entry_locked(struct pn_segment *seg, const AsyncQueueEntry *qe);
/* Can it be such an entry? */
bool pn_topic_entry_possible(const struct pn_segment *seg, const AsyncQueueEntry *qe);
/* If topics_dirty is set: the redo record, and the topics are closed until they are rebuilt. */
void pn_topics_recover_locked(struct pn_segment *seg);
/* Without the lock: rebuild them, in short holds; after pn_repair_steps of these another process
 * does, or the next call.  Then reap the dead. */
extern uint32_t pn_repair_steps;
void pn_topics_repair(struct pn_segment *seg);

#endif
