/*
 * topic_ops.h - what a transaction does to topics: the steps of its commit (async.c).
 */
#ifndef PN_TOPIC_TXN_H
#define PN_TOPIC_TXN_H

#include "commit/announce.h"
#include "topic/answer.h"

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
