/* check.h - every invariant of layout.h that can be seen from outside, and statistics. */
#ifndef PN_CHECK_H
#define PN_CHECK_H

#include "segment/segment.h"

/* Lock held.  How many problems there are; a line each goes to buf. */
int pn_check_locked(struct pn_segment *seg, char *buf, size_t cap);

/* Lock held. */
void pn_stat_locked(struct pn_segment *seg, pn_stat *out, pn_backend_stat *rows, size_t cap);

#endif
