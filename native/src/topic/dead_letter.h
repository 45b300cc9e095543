/*
 * dead_letter.h - what is given up goes to another topic, as a copy (dead_letter.c).
 *
 * Everything needs the writer lock and, where something changes, `topics_dirty`.
 */
#ifndef PN_TOPIC_DEAD_LETTER_H
#define PN_TOPIC_DEAD_LETTER_H

#include "topic/area.h"

/* Where the copy of a dead letter was staged. */
struct pn_dead_letter {
    uint32_t ref;       /* in memory, or 0 */
    uint32_t spilled;   /* on disk, of that topic, + 1, or 0; if both are 0 it is dropped */
    uint64_t spill_seq; /* where that topic's queue is to end */
    uint32_t headers_len;
};
/* A copy of the delivery's message in the dead-letter topic of its consumer.  `on_disk`: it may go
 * there, and what the log is told of it has been noted. */
int pn_dead_letter_stage_locked(struct pn_segment *seg, uint32_t delivery, const char *reason,
                                size_t reason_len, bool backlog, bool on_disk,
                                struct pn_dead_letter *out);

/* Publish a copy of it in another topic and end the delivery, both or neither. */
int pn_message_dead_letter_locked(struct pn_segment *seg, uint32_t delivery, const char *reason,
                                  size_t reason_len);

#endif
