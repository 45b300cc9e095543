/* rebuild_lists.h - phases of a rebuilding: into the lists, in any order.  Writer lock held. */
#ifndef PN_REBUILD_LISTS_H
#define PN_REBUILD_LISTS_H

#include "recovery/rebuild_step.h"

/* Each goes on at the step's cursor, as far as its units reach; true, or *done: it is over. */

/* Consumers, hung on their channels. */
bool pn_rebuild_consumers_locked(struct pn_rebuild_step *s);
/* Deliveries into the lists.  -errno: the segment is poisoned. */
int pn_rebuild_push_locked(struct pn_rebuild_step *s, bool *done);
/* Messages into those of topics. */
bool pn_rebuild_list_locked(struct pn_rebuild_step *s);

#endif
