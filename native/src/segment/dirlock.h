/*
 * dirlock.h - a log of durable topics belongs to one segment; dirlock.c has the model.
 *
 * Those that have a segment need the writer lock.
 */
#ifndef PN_DIRLOCK_H
#define PN_DIRLOCK_H

#include "segment/segment.h"

/*
 * Hold <data_dir>/<segment>/, which is there, for this process, as long as the segment is mapped.
 * `start`: the log is not read yet, and may be taken over from a segment that is not used.
 * -PN_EDATADIR: it is another segment's.
 */
int pn_dirlock_take(struct pn_segment *seg, bool start);
/* Is it held?  A program may have closed the descriptor. */
bool pn_dirlock_held(const struct pn_segment *seg);

/*
 * Without a segment, of the directory with the log: is it in use?  1, and the process that opened
 * it last and its host (pid 0: not known); 0: no; -errno.  `host` has PN_DIRLOCK_HOST bytes.
 */
#define PN_DIRLOCK_HOST 64
int pn_dirlock_look(const char *path, int32_t *pid, char *host);

/* Take it again if the file of that lock was removed or moved away.  -PN_EDATADIR: it is another
 * segment's by now, also in its place; -PN_EGONE: likewise, and this one was unlinked. */
int pn_dirlock_renew(struct pn_segment *seg);
/* Forget the descriptor: at unmapping, and in a forked child.  No lock is needed. */
void pn_dirlock_close(struct pn_segment *seg);

#endif
