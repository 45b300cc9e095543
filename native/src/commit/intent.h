/* intent.h - what the LISTEN and UNLISTEN of a transaction come to.  recv_mutex held. */
#ifndef PN_INTENT_H
#define PN_INTENT_H

#include "commit/async.h"

/* From pending actions to intents; not of a prepared transaction, which has them. */
int pn_intents_fold(struct pn_txn *txn);

/* A prepared transaction keeps the names of its intents until it ends. */
void pn_intents_keep(struct pn_txn *txn);

/* The intents are done with, or were in vain: names that only they had need not be known. */
void pn_intents_let_go(struct pn_txn *txn);

/* Step a: subscriptions for its LISTENs, or an error after which there are none.  Lock held.
 * Prepared transactions stage every LISTEN: by their commit another one may have UNLISTENed. */
int pn_intents_stage_locked(struct pn_txn *txn, bool even_if_listening);
void pn_intents_unstage_locked(struct pn_txn *txn);

/* Step b: LISTEN and UNLISTEN take effect.  Lock held. */
void pn_intents_apply_locked(struct pn_txn *txn);

/* What the commit's LISTENs and UNLISTENs have begun and ended. */
void pn_intents_log(const struct pn_txn *txn, uint64_t xid, int64_t now);

#endif
