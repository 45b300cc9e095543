/* async.h - LISTEN, NOTIFY, UNLISTEN in transactions: the model's sending half. */
#ifndef PN_ASYNC_H
#define PN_ASYNC_H

#include <errno.h>

#include "backend/conn.h"
#include "commit/pending.h"
#include "commit/room.h"

/* What LISTEN and UNLISTEN actions come to for one channel and route; the last one wins (X3). */
struct pn_intent {
    bool listen;
    enum pn_route route;
    uint32_t local;        /* index into conn->local.at */
    uint32_t subscription; /* staged, or PN_NO_SUBSCRIPTION */
    uint64_t lag;          /* UNLISTEN: messages left unread */
    uint64_t chan_seq;     /* the channel's next at the commit; 0: nothing began or ended */
};
#define PN_NO_SUBSCRIPTION UINT32_MAX

struct pn_txn {
    struct pn_conn *conn; /* holds a reference, unless it lives on the stack */
    struct pn_pending pending;
    bool explicit_begin;
    bool prepared;
    bool keeps_names;  /* the channels of its intents count it in `uses` */
    uint64_t reserved; /* bytes, counted in our slot and in the segment's sum */
    struct pn_intent *intents;
    size_t nintents, intents_cap;
    struct pn_room_wait room; /* of its commit, or its prepare(), that was left with -EINTR */
    size_t *cancelled;        /* for its commit to say how many of its cancels ended something */
    uint32_t *listeners;      /* likewise, how many connections its notifications are owed to */
};

/* A prepared transaction can be committed to the end, also when its connection was closed. */
static inline int pn_txn_check_commit(const struct pn_txn *txn)
{
    return txn->prepared ? pn_conn_check_held(txn->conn) : pn_conn_check(txn->conn);
}

/* After such a result of its commit it has not ended: nothing has happened, and it can be committed
 * again. */
static inline bool pn_txn_goes_on(int rc)
{
    return rc == -PN_ELOCKBUSY || rc == -PN_EROOMBUSY || rc == -EINTR;
}

/* A notification that is a transaction of its own, or a PN_ENTRY_GAP. */
int pn_async_notify(struct pn_conn *conn, const char *channel, size_t channel_len,
                    const void *payload, size_t payload_len, enum pn_entry_kind kind);
/* A bump that is a transaction of its own. */
int pn_async_bump(struct pn_conn *conn, uint32_t index);
/* 0, PN_NOTICE, or an error after which nothing has happened.  The txn itself stays. */
int pn_async_commit(struct pn_txn *txn);
/* The same, also when the connection was closed. */
int pn_async_commit_held(struct pn_txn *txn);
int pn_async_prepare(struct pn_txn *txn);
void pn_async_abort(struct pn_txn *txn);

#endif
