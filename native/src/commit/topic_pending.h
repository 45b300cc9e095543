/*
 * topic_pending.h - what a transaction is to do to topics, until its commit.
 */
#ifndef PN_TOPIC_PENDING_H
#define PN_TOPIC_PENDING_H

#include "commit/async.h"
#include "topic/answer.h"

/* Into the transaction's list.  These take the lock where something is checked now. */
int pn_topic_txn_publish(struct pn_txn *txn, pn_ref topic, const pn_message_in *in, uint64_t *id);
int pn_topic_txn_publish_many(struct pn_txn *txn, pn_ref topic, const unsigned char *bodies,
                              const uint32_t *lens, size_t n, const pn_message_in *common,
                              uint64_t *first_id);
int pn_topic_txn_answer(struct pn_txn *txn, const struct pn_handle *h, int answer, int64_t delay_ns,
                        const char *reason, size_t reason_len);

#endif
