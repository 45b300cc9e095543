/*
 * copy.h - a reader's private copy of a piece of the queue.
 */
#ifndef PN_COPY_H
#define PN_COPY_H

#include "segment/segment.h"

struct pn_copy {
    unsigned char *bytes;
    size_t cap;
    QueuePosition base;       /* of bytes[0] */
    QueuePosition start, end; /* validated, and whole entries */
    bool from_file;
    bool left_file; /* a file was read to its end: perhaps it can go */
    uint64_t file;  /* the number of the file that was read last */
};

/* Why nothing was copied: what lies before `until` is lost. */
struct pn_copy_gap {
    QueuePosition until;
    uint32_t reason; /* enum pn_gap_reason */
};

struct pn_entry_extent; /* queue.h */

/*
 * See that `at`, where an entry begins, is in the copy.  0; 1: it is lost, *gap says why and how
 * far; -ENOMEM, or why a file could not be opened, after which nothing is lost; -ERANGE: no entry
 * can stand there, or no queue is so long.
 */
int pn_copy_fetch(struct pn_segment *seg, struct pn_copy *copy, QueuePosition at,
                  QueuePosition head, struct pn_copy_gap *gap);

/* The entry at `at`; as pn_copy_fetch() if none can stand there. */
int pn_copy_entry(struct pn_segment *seg, struct pn_copy *copy, QueuePosition at,
                  const AsyncQueueEntry **qe, struct pn_entry_extent *extent,
                  struct pn_copy_gap *gap);

void pn_copy_free(struct pn_copy *copy);

#endif
