/* rebuild_found.h - phases of a rebuilding: what exists.  Writer lock held. */
#ifndef PN_REBUILD_FOUND_H
#define PN_REBUILD_FOUND_H

#include "recovery/rebuild_step.h"

/* Each goes on at the step's cursor, as far as its units reach; true, or *done: it is over. */

/* Of topics and channels: counts and lists are forgotten. */
bool pn_rebuild_tables_locked(struct pn_rebuild_step *s);
/* Which messages exist; pages are unmarked. */
bool pn_rebuild_messages_locked(struct pn_rebuild_step *s);
/* Which deliveries exist, hung on their messages. */
bool pn_rebuild_deliveries_locked(struct pn_rebuild_step *s);
/* Bodies of messages that have deliveries.  -errno: the segment is poisoned. */
int pn_rebuild_bodies_locked(struct pn_rebuild_step *s, bool *done);
/* Poisons the segment where a delivery cannot be one. */
bool pn_rebuild_delivery_marks_locked(struct pn_rebuild_step *s);
bool pn_rebuild_histograms_locked(struct pn_rebuild_step *s);
/* What is not marked is free, from the last page on. */
bool pn_rebuild_pages_locked(struct pn_rebuild_step *s);

#endif
