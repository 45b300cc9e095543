/*
 * sweep.h - what was deleted or emptied is freed, in steps.
 *
 * Everything needs the writer lock and, where something changes, `topics_dirty`.
 */
#ifndef PN_TOPIC_SWEEP_H
#define PN_TOPIC_SWEEP_H

#include "topic/area.h"

/* Up to PN_TOPIC_STEPS steps of freeing what was deleted or emptied; true: there is more. */
bool pn_topics_sweep_locked(struct pn_segment *seg);
/* The same of one channel. */
bool pn_topic_sweep_one_locked(struct pn_segment *seg, struct pn_topic_channel *ch);

#endif
