/* recover.h - what the successor of a dead lock holder does before anything else. */
#ifndef PN_RECOVER_H
#define PN_RECOVER_H

#include "segment/segment.h"

/* Writer lock held (EOWNERDEAD).  0, or -PN_ECORRUPT with the segment poisoned. */
int pn_recover_locked(struct pn_segment *seg);

#endif
