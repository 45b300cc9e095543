/*
 * cancel_ops.h - what a transaction cancels: its operations, and what they end at the commit.
 */
#ifndef PN_CANCEL_OPS_H
#define PN_CANCEL_OPS_H

#include <errno.h>

#include "base/moment.h"
#include "commit/async.h"
#include "queue/queue.h"

/* Into the transaction's list.  1; 0: no message of that id is deferred; -errno.  It takes the
 * lock. */
int pn_topic_txn_cancel(struct pn_txn *txn, pn_ref topic, uint64_t id);

/*
 * Step a of the group of operations that begins with the `first` one: what they end is staged.  0,
 * PN_CANCEL_AGAIN, or -errno; of a prepared transaction always 0.  `prepare`: of prepare().
 * *left: bytes that this hold of the lock still looks at, of PN_LOOK_BYTES for all groups.
 */
int pn_cancel_ops_plan_locked(struct pn_txn *txn, size_t first, const struct pn_moment *now,
                              bool prepare, uint64_t *left);
void pn_cancel_op_undo_locked(const struct pn_conn *conn, struct pn_pending_op *op, bool prepare);

/* For the log of a durable topic: what it will end. */
void pn_cancel_op_note_locked(struct pn_segment *seg, struct pn_topic *topic,
                              const struct pn_pending_op *op);
/* What it ends, of one that ends something; *ended is to live as long as the entry. */
struct pn_new_entry pn_cancel_op_entry(const struct pn_segment *seg, const struct pn_pending_op *op,
                                       struct pn_ended *ended);

/* The message is in more places than there are operations, or there is more to look at than one
 * hold of the lock does.  Without it groups get the operations that they lack, and the commit
 * begins again. */
enum { PN_CANCEL_AGAIN = -EOVERFLOW };
int pn_cancel_ops_grow(struct pn_txn *txn);

#endif
