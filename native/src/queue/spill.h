/*
 * spill.h - the part of the queue that stands in files: [tail, mem_tail).
 */
#ifndef PN_SPILL_H
#define PN_SPILL_H

#include "files/page_file.h"
#include "segment/segment.h"

#define PN_SPILL_FILE ((uint64_t) PN_FILE_PAGES * PN_QUEUE_PAGE) /* bytes of queue in a file */

/*
 * Write the oldest pages of the ring to files until the ring has room up to `end`.  0;
 * -PN_ECORRUPT; -EAGAIN when what is left in the ring is not enough; otherwise the -errno of the
 * file system, with its sentence.  After an error the queue is as it was, or has moved a part.
 * Lock held.
 */
int pn_spill_locked(struct pn_segment *seg, QueuePosition end);

/*
 * Files that no reader needs any more are removed, after the hold (PN_REMOVE_FILES).  Lock held,
 * after the tail was stored.
 */
void pn_spill_retire_locked(struct pn_segment *seg);

/* After the release: those below `end`, which pn_spill_retire_locked() has noted in the hold. */
void pn_spill_remove(struct pn_segment *seg, uint64_t end);

/* Remove the files of this segment, even if a reader has not read them. */
void pn_spill_remove_all(struct pn_segment *seg);

/* Copy n pages that begin at position `page`, all of one file. */
int pn_spill_read(const struct pn_segment *seg, QueuePosition page, uint32_t n, void *out);

/* The first page from `pos` on whose first byte is known to begin an entry; else `mem_tail`. */
QueuePosition pn_spill_boundary(const struct pn_segment *seg, QueuePosition pos,
                                QueuePosition mem_tail);

#endif
