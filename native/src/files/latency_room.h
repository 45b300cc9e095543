/*
 * latency_room.h - room for latency logs: the files of a directory may have so many bytes together,
 * and when there is no more room the oldest of those that no process writes go.
 */
#ifndef PN_LATENCY_ROOM_H
#define PN_LATENCY_ROOM_H

#include <stdint.h>

#define PN_LATROOM_LEDGER "recycled.jsonl"

/*
 * Is there room for a file of `need` bytes below `limit`?  Files are removed for it; how many is
 * added to *recycled.  0, also while another process makes room here; -EDQUOT: what is left is
 * being written.  `dir` is a descriptor of its own: it is locked meanwhile.
 */
int pn_latroom_make(int dir, uint64_t limit, uint64_t need, uint64_t *recycled);

/* How large RLIMIT_FSIZE lets a file become.  Beyond that SIGXFSZ ends a program that did not ask
 * for it, so nothing here is written beyond it. */
uint64_t pn_latroom_largest(void);

/* Marks a new, empty file as one that is written, until its last descriptor is closed.  -EEXIST:
 * it was taken for an old one, and another name is to be tried. */
int pn_latroom_own(int fd);

#endif
