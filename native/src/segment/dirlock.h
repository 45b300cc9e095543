/*
 * dirlock.h - a log of durable topics belongs to one segment; dirlock.c has the model.
 *
 * Both need the writer lock.
 */
#ifndef PN_DIRLOCK_H
#define PN_DIRLOCK_H

#include "segment/segment.h"

/*
 * Hold <data_dir>/<segment>/, which is there, for this process, as long as the segment is mapped.
 * `start`: the log is not read yet, and may be taken over from a segment that nobody uses.
 * -PN_EDATADIR: it is another segment's.
 */
int pn_dirlock_take(struct pn_segment *seg, bool start);
/* Is it held?  A program may have closed the descriptor. */
bool pn_dirlock_held(const struct pn_segment *seg);

/* Forget the descriptor: at unmapping, and in a forked child.  No lock is needed. */
/* The same if somebody has removed the file of that lock; else nothing. */
int pn_dirlock_renew(struct pn_segment *seg);
void pn_dirlock_close(struct pn_segment *seg);

#endif
