/* rebuild_topics.h - closed topics are opened again, in steps.  Writer lock held. */
#ifndef PN_TOPIC_REBUILD_H
#define PN_TOPIC_REBUILD_H

#include "topic/area.h"

/* Units of work in one hold of the lock: cells, rows of tables, moves within a list.  Tests have
 * fewer. */
#define PN_REBUILD_UNITS 2048
extern uint32_t pn_rebuild_units;

/* So long no process that wants topics has made a step: others are woken.  Tests have less. */
#define PN_REPAIR_AGAIN_NS 100000000LL
extern int64_t pn_repair_again_ns;

/* It begins with its first step; or, if the death was in the middle of writing the log, with
 * the first of those. */
void pn_topics_rebuild_anew_locked(struct pn_segment *seg);
/* A step, the last of which opens the topics; `all`: also one that needs files, which the caller
 * may have no business with.  -errno: the segment is poisoned, or there is no memory. */
int pn_topics_rebuild_step_locked(struct pn_segment *seg, bool all);

#endif
