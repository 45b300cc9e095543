/* rebuild_sort.h - a phase of a rebuilding: the lists are sorted.  Writer lock held. */
#ifndef PN_REBUILD_SORT_H
#define PN_REBUILD_SORT_H

#include "recovery/rebuild_step.h"

/* With the next list. */
void pn_rebuild_sort_begin(struct pn_topic_sort *sort);
/* False: a word of it was overwritten. */
bool pn_rebuild_sort_possible(const struct pn_topic_sort *sort);
/* As far as the step's units reach; true: all lists are. */
bool pn_rebuild_sort_locked(struct pn_rebuild_step *s);

#endif
