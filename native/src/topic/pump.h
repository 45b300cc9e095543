/* pump.h - from a topic's backlog to its channels. */
#ifndef PN_PUMP_H
#define PN_PUMP_H

#include "topic/area.h"

/* From the backlog to the channels, in bounded steps; true: there is more. */
bool pn_topic_pump_locked(struct pn_segment *seg, struct pn_topic *topic);

/* The same, and I24, of what was published there. */
void pn_topic_go_on_locked(struct pn_segment *seg, struct pn_topic *topic);

#endif
