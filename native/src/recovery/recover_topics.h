/* recover_topics.h - topics after the death of a lock holder.  Writer lock held. */
#ifndef PN_TOPIC_RECOVER_H
#define PN_TOPIC_RECOVER_H

#include "queue/entry.h"
#include "topic/area.h"

/* What steers the redo of an entry of the queue.  It is loaded once: others write there. */
struct pn_topic_entry {
    uint32_t kind, index; /* enum pn_entry_kind, and of what its channel_hash is the number */
    uint32_t payload_len;
    const char *payload;
};

struct pn_topic_entry pn_topic_entry_of(const AsyncQueueEntry *qe,
                                        const struct pn_entry_extent *extent);
/* Can it be one that changes topics? */
bool pn_topic_entry_possible(const struct pn_segment *seg, const struct pn_topic_entry *entry);
/* Redo it, or poison.  Only the truth is changed. */
int pn_topic_redo_entry_locked(struct pn_segment *seg, const AsyncQueueEntry *qe,
                               const struct pn_entry_extent *extent);
/* If topics_dirty is set: the redo record, and the topics are closed until they are rebuilt. */
void pn_topics_recover_locked(struct pn_segment *seg);
/* Without the lock: rebuild them, in short holds; after pn_repair_steps of these another process
 * does, or the next call.  Then reap the dead. */
extern uint32_t pn_repair_steps;
void pn_topics_repair(struct pn_segment *seg);

#endif
