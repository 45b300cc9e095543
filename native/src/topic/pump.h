/* pump.h - from a topic's backlog to its channels. */
#ifndef PN_PUMP_H
#define PN_PUMP_H

#include "topic/area.h"

/* From the backlog to the channels, as much as one hold moves (PN_MOVE_WRITTEN) and no more than
 * PN_TOPIC_STEPS; true: there is more. */
bool pn_topic_pump_locked(struct pn_segment *seg, struct pn_topic *topic);

/* The same, and I24, of what was published there. */
void pn_topic_go_on_locked(struct pn_segment *seg, struct pn_topic *topic);

#endif
