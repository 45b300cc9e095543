/*
 * intent.c - what the LISTEN and UNLISTEN of a transaction come to, channel by channel.
 */
#define _GNU_SOURCE
#include "commit/intent.h"

#include <stdlib.h>

#include "base/grow.h"

static int set_intent(struct pn_txn *txn, uint32_t local, enum pn_route route, bool listen)
{
    struct pn_local_channel *c = &txn->conn->local.at[local];
    bool known = c->folded[route] == txn->conn->foldings;
    if (listen && c->routes == 0 && !(known && txn->intents[c->intent[route]].listen))
        c->order = ++txn->conn->local.orders;
    if (known) {
        txn->intents[c->intent[route]].listen = listen;
        return 0;
    }
    int rc = PN_GROW(txn->intents, txn->intents_cap, 8, txn->nintents + 1);
    if (rc != 0)
        return rc;
    c->folded[route] = txn->conn->foldings;
    c->intent[route] = (uint32_t) txn->nintents;
    txn->intents[txn->nintents++] = (struct pn_intent) {
        .listen = listen, .route = route, .local = local, .subscription = PN_NO_SUBSCRIPTION};
    return 0;
}

/* UNLISTEN *: what was subscribed to is another's. */
static int fold_unlisten_all(struct pn_txn *txn)
{
    struct pn_conn *conn = txn->conn;
    int rc = 0;
    for (size_t i = 0; i < txn->nintents; i++)
        if (txn->intents[i].route == PN_ROUTE_LISTEN)
            txn->intents[i].listen = false;
    for (uint32_t i = 0; rc == 0 && i < conn->local.n; i++)
        if ((conn->local.at[i].routes & 1U << PN_ROUTE_LISTEN) != 0)
            rc = set_intent(txn, i, PN_ROUTE_LISTEN, false);
    return rc;
}

static int fold_action(struct pn_txn *txn, const struct pn_pending_action *a)
{
    struct pn_conn *conn = txn->conn;
    const char *name = "";
    struct pn_local_channel *local;
    enum pn_route route = PN_ROUTE_LISTEN;
    int rc;

    if (a->name_len != 0) /* else there may be no arena */
        name = (const char *) txn->pending.arena + a->name_off;
    switch (a->kind) {
    case PN_ACTION_UNLISTEN_ALL:
        return fold_unlisten_all(txn);
    case PN_ACTION_SUBSCRIBE:
        route = PN_ROUTE_SUBSCRIBE;
        __attribute__((fallthrough));
    case PN_ACTION_LISTEN:
        local = pn_local_add(&conn->local, a->hash, name, a->name_len, a->pattern);
        if (local == NULL)
            return pn_fail(ENOMEM, "out of memory");
        rc = set_intent(txn, pn_local_number(&conn->local, local), route, true);
        if (rc != 0)
            pn_local_let_go(&conn->local, pn_local_number(&conn->local, local));
        return rc;
    case PN_ACTION_UNSUBSCRIBE:
        route = PN_ROUTE_SUBSCRIBE;
        __attribute__((fallthrough));
    case PN_ACTION_UNLISTEN:
        local = pn_local_find(&conn->local, a->hash, name, a->name_len, a->pattern);
        if (local == NULL)
            return 0;
        return set_intent(txn, pn_local_number(&conn->local, local), route, false);
    }
    return -EINVAL;
}

int pn_intents_fold(struct pn_txn *txn)
{
    int rc = 0;
    if (txn->prepared)
        return 0;
    txn->nintents = 0;
    txn->conn->foldings++; /* what stands in the channels is of earlier ones */
    for (size_t i = 0; rc == 0 && i < txn->pending.nactions; i++)
        rc = fold_action(txn, &txn->pending.actions[i]);
    return rc;
}

void pn_intents_keep(struct pn_txn *txn)
{
    for (size_t i = 0; i < txn->nintents; i++)
        txn->conn->local.at[txn->intents[i].local].uses++;
    txn->keeps_names = true;
}

void pn_intents_let_go(struct pn_txn *txn)
{
    for (size_t i = 0; i < txn->nintents; i++) {
        if (txn->keeps_names)
            txn->conn->local.at[txn->intents[i].local].uses--;
        pn_local_let_go(&txn->conn->local, txn->intents[i].local);
    }
    txn->keeps_names = false;
    txn->nintents = 0;
}
