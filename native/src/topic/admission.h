/*
 * admission.h - may a message be published?  The bounds of its topic, and what makes room.
 *
 * Everything needs the writer lock and, where something changes, `topics_dirty`.
 */
#ifndef PN_TOPIC_ADMISSION_H
#define PN_TOPIC_ADMISSION_H

#include "base/moment.h"
#include "topic/area.h"
#include "topic/message.h"

/* Would it have more than max_depth with n more? */
static inline bool pn_topic_would_be_too_deep(const struct pn_topic *topic, size_t n)
{
    return topic->max_depth != 0 && n + (uint64_t) topic->firm + topic->staged > topic->max_depth;
}

/*
 * May n more messages be published?  The topic's bound and policy: *skip of them, from the front,
 * and all after *keep are dropped.  Older ones may be dropped here.  0 or -PN_ETOPICFULL.
 */
int pn_message_admit_locked(struct pn_segment *seg, struct pn_topic *topic, size_t n, size_t *skip,
                            size_t *keep);

/*
 * Write it, with its deliveries, STAGED.  0: with *ref 0 it is dropped; PN_NO_ROOM: nothing has
 * happened, and the second makes room, or does what the topic's policy says; else -errno.
 */
enum { PN_NO_ROOM = 1 };
int pn_message_stage_if_room_locked(struct pn_segment *seg, struct pn_topic *topic,
                                    const struct pn_new_message *m, const struct pn_moment *now,
                                    bool backlog, uint32_t *ref);
int pn_message_make_room_locked(struct pn_segment *seg, struct pn_topic *topic,
                                const struct pn_new_message *m, const struct pn_moment *now,
                                bool backlog, uint32_t *ref);

#endif
