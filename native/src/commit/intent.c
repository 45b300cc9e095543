/*
 * intent.c - what the LISTEN and UNLISTEN of a transaction come to, channel by channel.
 *
 * 1. An intent is what the last of them wants for one channel and route (X3).  A commit makes its
 *    own of the pending actions (fold); a prepared transaction keeps those of its prepare().
 * 2. Step a: LISTEN stages a subscription in the channel table, which can fail, and which only its
 *    owner has an interest in.  Unless it is prepared the transaction stages none for a channel
 *    that its connection listens to.
 * 3. Step b: it takes effect, and cannot fail (async.c 3).  LISTEN comes before UNLISTEN, so that a
 *    channel that goes from one route to the other keeps its subscription.
 */
#define _GNU_SOURCE
#include "commit/intent.h"

#include "backend/channel.h"
#include "backend/latency.h"
#include "backend/pattern.h"
#include "base/grow.h"
#include "segment/lock.h"

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

/* ---- step a ---------------------------------------------------------------------------------- */

void pn_intents_unstage_locked(struct pn_txn *txn)
{
    pn_assert_held(txn->conn->seg);
    for (size_t i = 0; i < txn->nintents; i++)
        if (txn->intents[i].subscription != PN_NO_SUBSCRIPTION) {
            pn_unlisten_locked(txn->conn->seg, txn->conn->slot, txn->intents[i].subscription);
            txn->intents[i].subscription = PN_NO_SUBSCRIPTION;
        }
}

int pn_intents_stage_locked(struct pn_txn *txn, bool even_if_listening)
{
    pn_assert_held(txn->conn->seg);
    struct pn_conn *conn = txn->conn;
    for (size_t i = 0; i < txn->nintents; i++) {
        struct pn_intent *intent = &txn->intents[i];
        const struct pn_local_channel *local = &conn->local.at[intent->local];
        if (!intent->listen || intent->subscription != PN_NO_SUBSCRIPTION ||
            (local->routes != 0 && !even_if_listening))
            continue;
        uint32_t dboid = conn->dboid | (local->pattern ? PN_PATTERN : 0);
        int rc = pn_listen_stage_locked(conn->seg, conn->slot, local->hash, dboid, local->name,
                                        local->len, &intent->subscription);
        if (rc != 0) {
            pn_intents_unstage_locked(txn);
            return rc;
        }
    }
    return 0;
}

/* ---- step b ---------------------------------------------------------------------------------- */

static void apply_listen_locked(struct pn_conn *conn, struct pn_intent *intent)
{
    pn_assert_held(conn->seg);
    struct pn_local_channel *local = &conn->local.at[intent->local];
    struct pn_segment *seg = conn->seg;
    QueuePosition head = pn_load_relaxed(&seg->ctl->head);
    uint8_t route = (uint8_t) (1U << intent->route);
    if ((local->routes & route) == 0) {
        local->since[intent->route] = head;
        local->since_xid[intent->route] = seg->ctl->last_xid;
    }
    if (local->routes != 0) { /* by the other route, or a prepared LISTEN was overtaken */
        if (intent->subscription != PN_NO_SUBSCRIPTION)
            pn_unlisten_locked(seg, conn->slot, intent->subscription);
        intent->subscription = PN_NO_SUBSCRIPTION;
        local->routes |= route;
        return;
    }
    const struct GlobalChannelEntry *e = pn_subscribed_locked(seg, intent->subscription);
    if (e == NULL)
        return;
    local->subscription = intent->subscription;
    if (local->pattern) {
        pn_local_begin_pattern(&conn->local, intent->local);
    } else {
        local->next_chan_seq = e->next_chan_seq;
        intent->chan_seq = local->next_chan_seq;
    }
    pn_listen_apply_locked(seg, conn->slot, intent->subscription, head);
    local->routes = route;
    pn_store_relaxed(&conn->nlistening, pn_load_relaxed(&conn->nlistening) + 1);
}

static void apply_unlisten_locked(struct pn_conn *conn, struct pn_intent *intent)
{
    pn_assert_held(conn->seg);
    struct pn_local_channel *local = &conn->local.at[intent->local];
    struct pn_segment *seg = conn->seg;
    if (intent->subscription != PN_NO_SUBSCRIPTION) /* staged by LISTEN, then UNLISTEN */
        pn_unlisten_locked(seg, conn->slot, intent->subscription);
    intent->subscription = PN_NO_SUBSCRIPTION;
    uint8_t left = local->routes & (uint8_t) ~(1U << intent->route);
    if (left == local->routes)
        return;
    local->routes = left;
    if (left != 0)
        return; /* the other route still wants it */
    const struct GlobalChannelEntry *e = pn_subscribed_locked(seg, local->subscription);
    if (e == NULL)
        return;
    if (local->pattern) {
        pn_local_end_pattern(&conn->local, intent->local);
    } else {
        intent->chan_seq = e->next_chan_seq;
        intent->lag = intent->chan_seq - local->next_chan_seq;
    }
    pn_unlisten_locked(seg, conn->slot, local->subscription);
    pn_store_relaxed(&conn->nlistening, pn_load_relaxed(&conn->nlistening) - 1);
}

void pn_intents_apply_locked(struct pn_txn *txn)
{
    pn_assert_held(txn->conn->seg);
    for (size_t i = 0; i < txn->nintents; i++) {
        txn->intents[i].chan_seq = 0;
        if (txn->intents[i].listen)
            apply_listen_locked(txn->conn, &txn->intents[i]);
    }
    for (size_t i = 0; i < txn->nintents; i++)
        if (!txn->intents[i].listen)
            apply_unlisten_locked(txn->conn, &txn->intents[i]);
}

void pn_intents_log(const struct pn_txn *txn, uint64_t xid, int64_t now)
{
    for (size_t i = 0; i < txn->nintents; i++) {
        const struct pn_intent *intent = &txn->intents[i];
        const struct pn_log_listen what = {.local = intent->local,
                                           .listen = intent->listen,
                                           .chan_seq = intent->chan_seq,
                                           .unread = intent->lag};
        if (intent->chan_seq != 0) /* else it changed nothing */
            pn_log_listening(txn->conn, &what, xid, now);
    }
}
