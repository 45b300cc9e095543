/*
 * overflow.h - overflow="disk": messages of a topic for which there is no room in memory.
 *
 * Everything needs the writer lock and, where something changes, `topics_dirty`.
 */
#ifndef PN_TOPIC_DISK_H
#define PN_TOPIC_DISK_H

#include "base/moment.h"
#include "topic/area.h"
#include "topic/message.h"
#include "topic/on_disk.h"

/* Of all topics, as many as there is room for come back into memory, in bounded steps, and what
 * else they have on disk; at the end of an operation. */
void pn_topics_refill_locked(struct pn_segment *seg);

/* n messages of consecutive ids for which there is no room in memory, for one channel at least: to
 * the files of those that rest or to the topic's own; all of them, or none. */
int pn_rest_or_spill_locked(struct pn_segment *seg, struct pn_topic *topic,
                            const struct pn_new_message *common, const unsigned char *bodies,
                            const uint32_t *lens, size_t n);

#endif
