/* stats.h - statistics of topics, channels and consumers; peeking. */
#ifndef PN_TOPIC_STAT_H
#define PN_TOPIC_STAT_H

#include "topic/area.h"

int pn_topic_rows(struct pn_conn *conn, pn_topic_stats *rows, size_t cap);
int pn_topic_row(struct pn_conn *conn, pn_ref topic, pn_topic_stats *out);
int pn_topic_channels_rows(struct pn_conn *conn, pn_ref topic, pn_topic_channel_stats *rows,
                           size_t cap);
int pn_topic_channels_row(struct pn_conn *conn, pn_ref channel, pn_topic_channel_stats *out);
int pn_consumer_rows(struct pn_conn *conn, pn_ref channel, pn_consumer_stats *rows, size_t cap);
int pn_consumer_row(struct pn_conn *conn, pn_ref consumer, pn_consumer_stats *out);
int pn_topic_channels_e2e(struct pn_conn *conn, pn_ref channel, const double *q, size_t n,
                          double *seconds);
int pn_topic_channels_peek(struct pn_conn *conn, pn_ref channel, pn_peeked *out, size_t cap,
                           uint8_t *bodies, size_t body_max);

/* The same through an engine, of any database: they change nothing, and no consumer is notified. */
int pn_look_topics(struct pn_segment *seg, pn_topic_stats *rows, size_t cap);
int pn_look_channels(struct pn_segment *seg, pn_ref topic, pn_topic_channel_stats *rows,
                     size_t cap);
int pn_look_consumers(struct pn_segment *seg, pn_ref channel, pn_consumer_stats *rows, size_t cap);
int pn_look_e2e(struct pn_segment *seg, pn_ref channel, const double *q, size_t n, double *seconds);

#endif
