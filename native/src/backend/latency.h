/*
 * latency.h - what a connection writes into its latency log; latency_log.h has the records.
 *
 * Never under the writer lock: a full disk or a page fault must not hold up the others.
 */
#ifndef PN_LOGGING_H
#define PN_LOGGING_H

#include "backend/conn.h"

/* A notification as it was sent. */
struct pn_log_sent {
    const char *channel;
    const void *payload;
    uint64_t hash;     /* of the channel */
    uint64_t chan_seq; /* 0: it has none */
    uint32_t channel_len, payload_len;
};
void pn_log_send(struct pn_conn *conn, const struct pn_log_sent *sent, uint64_t xid, int64_t now);
void pn_log_signals(struct pn_conn *conn, uint64_t xid, int64_t now, uint64_t sent);

/* LISTEN, or UNLISTEN with so many messages left unread.  recv_mutex held. */
struct pn_log_listen {
    uint32_t local; /* index into conn->channels */
    bool listen;
    uint64_t chan_seq, unread;
};
void pn_log_listening(struct pn_conn *conn, const struct pn_log_listen *what, uint64_t xid,
                      int64_t now);

/* Messages that pn_poll() hands over at `now`; chan_seq 0: by a pattern.  recv_mutex held. */
void pn_log_received(struct pn_conn *conn, const pn_batch *batch, const uint64_t *chan_seq,
                     int64_t now, uint64_t behind);
/* `at`: when the sleep ended, before any look for messages. */
void pn_log_wake(struct pn_conn *conn, uint8_t why, bool useful, uint64_t drained, int64_t at);

#endif
