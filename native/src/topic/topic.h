/*
 * topic.h - topics, their channels, and consumers: tables in the topic area (layout_topic.h).
 *
 * Everything needs the writer lock except where noted.
 */
#ifndef PN_TOPIC_H
#define PN_TOPIC_H

#include "topic/area.h"

/* ---- references ------------------------------------------------------------------------------ */

/* What it names, of any database; NULL after pn_fail(PN_ETOPICDELETED). */
struct pn_topic *pn_topic_named_locked(const struct pn_segment *seg, pn_ref ref);
struct pn_topic_channel *pn_topic_channel_named_locked(const struct pn_segment *seg, pn_ref ref);
/* The same of the connection's database. */
struct pn_topic *pn_topic_resolve_locked(struct pn_conn *conn, pn_ref ref);
struct pn_topic_channel *pn_topic_channel_resolve_locked(struct pn_conn *conn, pn_ref ref);

/* ---- what the API does; these take the lock themselves --------------------------------------- */

int pn_topic_check_name(const char *what, const char *name, size_t len);
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

/* The topic of that name and database, or NULL. */
struct pn_topic *pn_topic_lookup_locked(const struct pn_segment *seg, uint32_t dboid,
                                        const char *name, size_t len);
/* Found or made; dirty is set.  NULL: the table is full, or the database's row is not kept. */
struct pn_topic *pn_topic_make_locked(struct pn_segment *seg, uint32_t dboid, const char *name,
                                      size_t len, const pn_topic_options *options);
/* The channel of that name, made if need be; NULL: the table is full. */
struct pn_topic_channel *pn_topic_channel_make_locked(struct pn_segment *seg,
                                                      struct pn_topic *topic, const char *name,
                                                      size_t len, uint32_t max_consumers,
                                                      const pn_channel_options *options);
/* May what is given up in a channel of that topic go to the one of that name?  Not if it would come
 * back, by what channels there are set to.  0, or -PN_ETOPICOPTIONS with a sentence. */
int pn_dead_letter_check_locked(const struct pn_segment *seg, const struct pn_topic *from,
                                const char *to, size_t len);
/* An ephemeral channel has lost its last consumer, perhaps.  dirty is set. */
void pn_topic_channel_left_locked(struct pn_segment *seg, struct pn_topic_channel *ch);
/* Up to PN_TOPIC_STEPS steps of freeing what was deleted or emptied; true: there is more. */
bool pn_topics_sweep_locked(struct pn_segment *seg);
/* The lists of channels that hang on topics, from the truth. */
void pn_topics_link_locked(struct pn_segment *seg);

#endif
