/*
 * rest_given.h - records of `rest` that name their channels: of messages that were given before.
 *
 * Everything needs the writer lock and `topics_dirty`.
 */
#ifndef PN_TOPIC_REST_GIVEN_H
#define PN_TOPIC_REST_GIVEN_H

#include "base/moment.h"
#include "topic/on_disk.h"

/* What the log of before the segment was made says: the channels of `given`, which is written to,
 * have it, in memory or on disk.  No other thread has seen the topic yet. */
int pn_rest_restore_locked(struct pn_segment *seg, struct pn_topic *topic,
                           const struct pn_new_message *m, const struct pn_moment *then, uint32_t n,
                           struct pn_spilled_delivery *given);

/* The record of `later`, behind which that queue goes on at `to`, is due: channels that have room
 * have it in memory, the others in `rest`.  1: it moved; -errno: nothing has happened. */
int pn_rest_divide_locked(struct pn_segment *seg, struct pn_topic *topic,
                          const struct pn_topic_on_disk *from, const struct pn_diskqueue_cursor *to,
                          int64_t now);

#endif
