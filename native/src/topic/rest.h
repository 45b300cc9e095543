/*
 * rest.h - channels of a topic that do not keep up: what they have on disk.
 *
 * Everything needs the writer lock and, where something changes, `topics_dirty`.
 */
#ifndef PN_TOPIC_REST_H
#define PN_TOPIC_REST_H

#include "base/moment.h"
#include "topic/area.h"
#include "topic/message.h"
#include "topic/on_disk.h"

/* n messages of consecutive ids, to channels in memory and on disk: all of them, or none. */
int pn_rest_publish_locked(struct pn_segment *seg, struct pn_topic *topic,
                           const struct pn_new_message *common, const unsigned char *bodies,
                           const uint32_t *lens, size_t n);
/* The same of a message in the backlog; 0: it is out; 1: all have room in memory; -errno. */
int pn_rest_pump_locked(struct pn_segment *seg, struct pn_topic *topic, uint32_t delivery,
                        int64_t now, bool all_rest);
/* The same of one in the topic's own queue on disk, which moves past `record`. */
int pn_rest_move_locked(struct pn_segment *seg, struct pn_topic *topic,
                        const struct pn_new_message *m, const struct pn_moment *then,
                        const struct pn_record_out *record);

/* What channels have room for comes back; true: more could be looked at right now. */
bool pn_rest_refill_locked(struct pn_segment *seg, struct pn_topic *topic);

#endif
