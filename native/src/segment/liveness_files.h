/* liveness_files.h - the files that carry the liveness locks of backends. */
#ifndef PN_LIVENESS_FILES_H
#define PN_LIVENESS_FILES_H

#include "segment/segment.h"

/*
 * The liveness lock file of the slot's group of 64: its descriptor, or -errno, -PN_EGONE.  Once
 * opened it stays open as long as the mapping.  Async-signal-safe.
 */
int pn_segment_open_lock_file(struct pn_segment *seg, uint32_t slot);
static inline int pn_segment_lock_file(struct pn_segment *seg, uint32_t slot)
{
    int fd = pn_load_acquire(&seg->lock_fd[slot / PN_SLOTS_PER_LOCK_FILE]);
    return __builtin_expect(fd >= 0, 1) ? fd : pn_segment_open_lock_file(seg, slot);
}

/*
 * The lock file of the slot's group as pn_segment_lock_file(), but certainly that file.  What the
 * process held in the old one is lost if this opens it again.  Async-signal-safe.
 */
int pn_segment_true_lock_file(struct pn_segment *seg, uint32_t slot);

/*
 * How often a lock file was opened.  False: a thread is about to.  What a descriptor said is of the
 * lock file if it was settled before, the number has not changed, and the descriptor is the lock
 * file's afterwards: else another file may have had its number only in between.
 */
bool pn_lock_files_settled(const struct pn_segment *seg, uint32_t *openings);

/* As pn_segment_lock_file() for a claim of a slot: makes it if need be.  Writer lock held. */
int pn_segment_make_lock_file(struct pn_segment *seg, uint32_t slot);

/* The processes that hold a slot in any segment of this name: how many; at most `cap` stored. */
int pn_lock_file_pids(const char *name, int32_t *pids, size_t cap);
int pn_lock_files_unlink(const char *name);

/* Forget the descriptors: at unmapping, and in a forked child. */
void pn_lock_files_close(struct pn_segment *seg);
/* At unmapping: remove the files if the segment has lost its name. */
void pn_lock_files_orphaned(struct pn_segment *seg);

#endif
