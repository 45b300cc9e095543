/*
 * topic_ops.h - what a transaction does to topics: the steps of its commit (async.c).
 */
#ifndef PN_TOPIC_TXN_H
#define PN_TOPIC_TXN_H

#include "commit/announce.h"
#include "topic/answer.h"

/* Into the transaction's list.  These take the lock where something is checked now. */
int pn_topic_txn_publish(struct pn_txn *txn, pn_ref topic, const pn_message_in *in, uint64_t *id);
int pn_topic_txn_publish_many(struct pn_txn *txn, pn_ref topic, const unsigned char *bodies,
                              const uint32_t *lens, size_t n, const pn_message_in *common,
                              uint64_t *first_id);
int pn_topic_txn_answer(struct pn_txn *txn, const struct pn_handle *h, int answer, int64_t delay_ns,
                        const char *reason, size_t reason_len);

/* Step a: all that can fail, or PN_CANCEL_AGAIN (cancel_ops.h).  topics_dirty is set, until
 * pn_topic_apply_locked(), if it is 0. */
int pn_topic_precommit_locked(struct pn_commit *c);
/* Step c: the entries; returns the position behind them. */
QueuePosition pn_topic_append_locked(struct pn_commit *c, QueuePosition pos);
/* Step e: what the entries say. */
void pn_topic_apply_locked(struct pn_commit *c);

/* After the release of the lock: into the latency log. */
void pn_topic_log_commit(struct pn_commit *c);

/* prepare(): what can fail is done, and kept.  And given back. */
int pn_topic_prepare_locked(struct pn_txn *txn);
void pn_topic_abort_locked(struct pn_txn *txn);

#endif
