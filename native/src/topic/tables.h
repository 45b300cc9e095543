/*
 * tables.h - the tables of topics and of their channels: found by name or reference, and made.
 *
 * Everything needs the writer lock except where noted.
 */
#ifndef PN_TOPIC_TABLES_H
#define PN_TOPIC_TABLES_H

#include "topic/area.h"

/* What it names, of any database; NULL after pn_fail(PN_ETOPICDELETED). */
struct pn_topic *pn_topic_named_locked(const struct pn_segment *seg, pn_ref ref);
struct pn_topic_channel *pn_topic_channel_named_locked(const struct pn_segment *seg, pn_ref ref);
/* The same of the connection's database. */
struct pn_topic *pn_topic_resolve_locked(struct pn_conn *conn, pn_ref ref);
struct pn_topic_channel *pn_topic_channel_resolve_locked(struct pn_conn *conn, pn_ref ref);

int pn_topic_check_name(const char *what, const char *name, size_t len);

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

/* The lists of channels that hang on topics, from the truth. */
void pn_topics_link_locked(struct pn_segment *seg);

/* The topic's channel of that name, or NULL. */
struct pn_topic_channel *pn_topic_find_channel(const struct pn_segment *seg,
                                               const struct pn_topic *topic, const char *name,
                                               size_t len);

#endif
