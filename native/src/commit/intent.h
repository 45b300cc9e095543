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

#endif
