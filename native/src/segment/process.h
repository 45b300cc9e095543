/* process.h - the tables of a process: the segments that it has mapped, and the lock of these. */
#ifndef PN_PROCESS_H
#define PN_PROCESS_H

#include "segment/segment.h"

/* The lock of the process's own tables (segments, connections, lock files). */
void pn_process_lock(void);
void pn_process_unlock(void);
void pn_process_lock_reset(void); /* in a forked child */

/* All mapped segments, linked by `next`.  Process lock held. */
struct pn_segment *pn_first_segment(void);
void pn_process_add(struct pn_segment *seg);
void pn_process_remove(struct pn_segment *seg);

#endif
