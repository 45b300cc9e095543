/*
 * topic.h - topics and channels: what happens to them as a whole.
 *
 * Everything needs the writer lock except where noted.
 */
#ifndef PN_TOPIC_H
#define PN_TOPIC_H

#include "topic/area.h"

/* ---- what the API does; these take the lock themselves --------------------------------------- */

int pn_topics_open(struct pn_conn *conn, const char *name, size_t len,
                   const pn_topic_options *options, pn_ref *out);
int pn_topics_find(struct pn_conn *conn, const char *name, size_t len, pn_ref *out);
int pn_topic_channels_open(struct pn_conn *conn, pn_ref topic, const char *name, size_t len,
                           int64_t max_consumers, const pn_channel_options *options, pn_ref *out);
int pn_topic_channels_find(struct pn_conn *conn, pn_ref topic, const char *name, size_t len,
                           pn_ref *out);
int pn_topics_configure(struct pn_conn *conn, pn_ref topic, const pn_topic_options *options);
int pn_topic_channels_configure(struct pn_conn *conn, pn_ref channel,
                                const pn_channel_options *options);
int pn_topics_pause(struct pn_conn *conn, pn_ref topic, bool paused);
int pn_topics_empty(struct pn_conn *conn, pn_ref topic);
int pn_topics_delete(struct pn_conn *conn, pn_ref topic);
int pn_topic_channels_pause(struct pn_conn *conn, pn_ref channel, bool paused);
int pn_topic_channels_empty(struct pn_conn *conn, pn_ref channel);
int pn_topic_channels_delete(struct pn_conn *conn, pn_ref channel);

/* ---- for the other modules ------------------------------------------------------------------- */

/* An ephemeral channel has lost its last consumer, perhaps.  dirty is set. */
void pn_topic_channel_left_locked(struct pn_segment *seg, struct pn_topic_channel *ch);

#endif
