/*
 * logging.h - what a connection writes into its latency log (latlog.h has the records).
 *
 * Never under the writer lock: a full disk or a page fault must not hold up the others.
 */
#ifndef PN_LOGGING_H
#define PN_LOGGING_H

#include "async.h"

void pn_log_send(struct pn_conn *conn, const struct pn_pending_channel *ch,
                 const struct pn_pending_event *event, const void *payload, uint64_t xid,
                 int64_t now);
void pn_log_signals(struct pn_conn *conn, uint64_t xid, int64_t now, uint64_t sent);

/* LISTEN and UNLISTEN that a commit brought.  recv_mutex held. */
void pn_log_intents(struct pn_conn *conn, const struct pn_intent *intents, size_t n, uint64_t xid,
                    int64_t now);

/* Messages that pn_poll() hands over at `now`.  recv_mutex held. */
void pn_log_received(struct pn_conn *conn, const pn_batch *batch, const uint64_t *chan_seq,
                     int64_t now, uint64_t behind);
/* `at`: when the sleep ended, before anybody looked for messages. */
void pn_log_wake(struct pn_conn *conn, uint8_t why, bool useful, uint64_t drained, int64_t at);

#endif
