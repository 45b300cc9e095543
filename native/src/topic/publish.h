/*
 * publish.h - one message or many are published, each call a transaction of its own.
 */
#ifndef PN_TOPIC_PUBLISH_H
#define PN_TOPIC_PUBLISH_H

#include "base/moment.h"
#include "topic/area.h"
#include "topic/message.h"

/* One that is a transaction of its own. */
int pn_message_publish(struct pn_conn *conn, pn_ref topic, const pn_message_in *in, uint64_t *id);
int pn_message_publish_many(struct pn_conn *conn, pn_ref topic, const unsigned char *bodies,
                            const uint32_t *lens, size_t n, const pn_message_in *common,
                            uint64_t *first_id);

/* With the lock; what may have to be dropped for a new message was found in holds before this one.
 * Else -errno. */
int pn_topic_look_ahead(struct pn_conn *conn, struct pn_hold *hold, pn_ref ref,
                        struct pn_topic **topic);
/* The same, and `topics_dirty`: what a connection does to a topic. */
int pn_topic_enter(struct pn_conn *conn, struct pn_hold *hold, pn_ref ref, struct pn_topic **topic);

/* As pn_message_admit_locked(), and as pn_message_stage_if_room_locked() with what makes room, of
 * what is published. */
int pn_publish_admit_locked(struct pn_segment *seg, struct pn_topic *topic, size_t n, size_t *skip,
                            size_t *keep);
int pn_publish_stage_locked(struct pn_segment *seg, struct pn_topic *topic,
                            const struct pn_new_message *m, const struct pn_moment *now,
                            bool backlog, uint32_t *ref);

#endif
