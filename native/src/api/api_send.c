/*
 * api_send.c - the C API of sending and of transactions, nothing else: arguments are checked, and
 * the work is handed to the module that does it.  The contract of each function is in pynotify.h.
 */
#define _GNU_SOURCE
#include "api/api_send.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api/api_conn.h"
#include "backend/generation.h"
#include "base/crashpoint.h"
#include "base/os.h"
#include "commit/async.h"
#include "commit/bridge.h"
#include "topic/durable.h"
#include "topic/journal.h"
#include "wakeup/handlers.h"

/* ---- sending --------------------------------------------------------------------------------- */

PN_API int pn_notify(pn_conn *conn, const char *channel, size_t channel_len, const void *payload,
                     size_t payload_len)
{
    int rc = pn_conn_check(conn);
    return rc != 0
               ? rc
               : pn_async_notify(conn, channel, channel_len, payload, payload_len, PN_ENTRY_NOTIFY);
}

PN_API int pn_notify_cstr(pn_conn *conn, const char *channel, const void *payload,
                          size_t payload_len)
{
    return pn_notify(conn, channel, strlen(channel), payload, payload_len);
}

/* False: the slot is not ours any more. */
static bool count_transaction(struct pn_conn *conn, uint32_t change)
{
    uint64_t counted = pn_load_relaxed(&conn->me->in_transaction);
    PN_CRASH("txn:count");
    while (counted >> 32 == conn->generation)
        if (pn_cas_weak(&conn->me->in_transaction, &counted,
                        pn_owned(conn->generation, (uint32_t) counted + change)))
            return true;
    return false;
}

static void free_txn(pn_txn *txn)
{
    struct pn_conn *conn = txn->conn;
    if (txn->explicit_begin && conn->pid == pn_my_pid)
        count_transaction(conn, (uint32_t) -1);
    pn_pending_free(&txn->pending);
    free(txn->intents);
    free(txn);
    pn_conn_let_go(conn);
}

int pn_txn_new(pn_conn *conn, pn_txn **out)
{
    int rc = pn_conn_check(conn);
    if (rc != 0)
        return rc;
    pn_txn *txn = calloc(1, sizeof *txn);
    if (txn == NULL)
        return pn_fail(ENOMEM, "out of memory");
    pn_conn_hold(conn);
    txn->conn = conn;
    txn->pending.dboid = conn->dboid;
    *out = txn;
    return 0;
}

static int check_many(pn_txn *txn, const char *channel, size_t channel_len,
                      const struct pn_payloads *payloads)
{
    int rc = pn_check_channel(txn->conn, channel, channel_len);
    const char *payload = payloads->bytes;
    if (rc == 0 && payloads->headers_len > PN_NOTIFY_HEADERS_MAX)
        return pn_fail(PN_EPAYLOAD,
                       "headers too long\n"
                       "They have %u bytes; a notification takes %u. Send large things as its "
                       "payload.",
                       payloads->headers_len, PN_NOTIFY_HEADERS_MAX);
    for (size_t i = 0; rc == 0 && i < payloads->n; i++) {
        rc = pn_check_payload(txn->conn, payloads->lens[i]);
        if (rc == 0)
            rc = pn_bridge_refuse(txn->conn, channel, channel_len, payload, payloads->lens[i]);
        payload += payloads->lens[i];
    }
    return rc;
}

static int check_open(const pn_txn *txn)
{
    int rc = pn_conn_check(txn->conn);
    if (rc == 0 && txn->prepared)
        rc =
            pn_fail(PN_EPREPARED, "the transaction is prepared: only commit and rollback are left");
    return rc;
}

static int add_many(pn_txn *txn, const char *channel, size_t channel_len,
                    const struct pn_payloads *payloads, bool dedup, uint64_t *queued)
{
    int rc = check_open(txn);
    if (rc == 0)
        rc = check_many(txn, channel, channel_len, payloads);
    return rc != 0 ? rc
                   : pn_pending_notify_many(&txn->pending, channel, channel_len, payloads, dedup,
                                            queued);
}

static int notify_all(pn_conn *conn, pn_txn *txn, const char *channel, size_t channel_len,
                      const struct pn_payloads *payloads, int dedup, uint64_t *queued)
{
    pn_txn *own = NULL;
    *queued = 0;
    if (txn != NULL)
        return add_many(txn, channel, channel_len, payloads, dedup != 0, queued);
    int rc = pn_txn_new(conn, &own);
    if (rc != 0)
        return rc;
    rc = check_many(own, channel, channel_len, payloads);
    if (rc == 0)
        rc = pn_pending_borrow_many(&own->pending, channel, channel_len, payloads, dedup != 0,
                                    queued);
    if (rc == 0)
        rc = pn_async_commit(own);
    free_txn(own);
    return rc;
}

PN_API int pn_notify_many(pn_conn *conn, pn_txn *txn, const char *channel, size_t channel_len,
                          const void *payloads, const uint32_t *lens, size_t n, int dedup,
                          uint64_t *queued)
{
    const struct pn_payloads many = {.bytes = payloads, .lens = lens, .n = n};
    return notify_all(conn, txn, channel, channel_len, &many, dedup, queued);
}

PN_API int pn_notify_headers(pn_conn *conn, pn_txn *txn, const pn_notify_in *in, uint64_t *queued)
{
    const struct pn_payloads many = {.bytes = in->payloads,
                                     .lens = in->lens,
                                     .n = in->n,
                                     .headers = in->headers,
                                     .headers_len = in->headers_len};
    return notify_all(conn, txn, in->channel, in->channel_len, &many, in->keep_equal == 0, queued);
}

/* ---- transactions ---------------------------------------------------------------------------- */

PN_API int pn_txn_begin(pn_conn *conn, pn_txn **out)
{
    int rc = pn_txn_new(conn, out);
    if (rc == 0)
        (*out)->explicit_begin = count_transaction(conn, 1); /* if not, its commit says so */
    return rc;
}

PN_API int pn_txn_notify(pn_txn *txn, const char *channel, size_t channel_len, const void *payload,
                         size_t payload_len)
{
    int rc = check_open(txn);
    if (rc == 0)
        rc = pn_check_channel(txn->conn, channel, channel_len);
    if (rc == 0)
        rc = pn_check_payload(txn->conn, payload_len);
    if (rc == 0)
        rc = pn_bridge_refuse(txn->conn, channel, channel_len, payload, payload_len);
    if (rc == 0)
        rc = pn_pending_notify(&txn->pending, channel, channel_len, payload, payload_len, true);
    return rc < 0 ? rc : 0;
}

static int act_on(pn_txn *txn, enum pn_action_kind kind, bool pattern, const char *channel,
                  size_t len)
{
    int rc = check_open(txn);
    if (rc == 0 && kind != PN_ACTION_UNLISTEN_ALL)
        rc = pn_check_name(txn->conn, pattern ? "pattern" : "channel", channel, len);
    if (rc == 0 && pattern && pn_load_relaxed(&txn->conn->me->bridge) != 0)
        return pn_fail(EINVAL, "a bridge cannot listen to patterns");
    if (rc == 0 && (kind == PN_ACTION_LISTEN || kind == PN_ACTION_SUBSCRIBE))
        rc = pn_handler_arm(txn->conn); /* a listener is signalled from its commit on */
    return rc != 0 ? rc : pn_pending_action(&txn->pending, kind, pattern, channel, len);
}

static int act(pn_txn *txn, enum pn_action_kind kind, const char *channel, size_t len)
{
    return act_on(txn, kind, false, channel, len);
}

PN_API int pn_txn_listen(pn_txn *txn, const char *channel, size_t channel_len)
{
    return act(txn, PN_ACTION_LISTEN, channel, channel_len);
}

PN_API int pn_txn_unlisten(pn_txn *txn, const char *channel, size_t channel_len)
{
    return act(txn, PN_ACTION_UNLISTEN, channel, channel_len);
}

PN_API int pn_txn_unlisten_all(pn_txn *txn)
{
    return act(txn, PN_ACTION_UNLISTEN_ALL, NULL, 0);
}

PN_API int pn_txn_subscribe(pn_txn *txn, const char *channel, size_t channel_len)
{
    return act(txn, PN_ACTION_SUBSCRIBE, channel, channel_len);
}

PN_API int pn_txn_unsubscribe(pn_txn *txn, const char *channel, size_t channel_len)
{
    return act(txn, PN_ACTION_UNSUBSCRIBE, channel, channel_len);
}

PN_API int pn_txn_listen_pattern(pn_txn *txn, const char *pattern, size_t pattern_len)
{
    return act_on(txn, PN_ACTION_LISTEN, true, pattern, pattern_len);
}

PN_API int pn_txn_unlisten_pattern(pn_txn *txn, const char *pattern, size_t pattern_len)
{
    return act_on(txn, PN_ACTION_UNLISTEN, true, pattern, pattern_len);
}

PN_API int pn_txn_subscribe_pattern(pn_txn *txn, const char *pattern, size_t pattern_len)
{
    return act_on(txn, PN_ACTION_SUBSCRIBE, true, pattern, pattern_len);
}

PN_API int pn_txn_unsubscribe_pattern(pn_txn *txn, const char *pattern, size_t pattern_len)
{
    return act_on(txn, PN_ACTION_UNSUBSCRIBE, true, pattern, pattern_len);
}

PN_API void pn_txn_count_listeners(pn_txn *txn, uint32_t *count)
{
    txn->listeners = count;
}

PN_API int pn_txn_bump(pn_txn *txn, uint32_t index)
{
    int rc = check_open(txn);
    if (rc == 0)
        rc = pn_generation_check(txn->conn, index);
    return rc != 0 ? rc : pn_pending_bump(&txn->pending, index);
}

PN_API int pn_txn_savepoint(pn_txn *txn)
{
    int rc = check_open(txn);
    return rc != 0 ? rc : pn_pending_push(&txn->pending);
}

PN_API int pn_txn_release(pn_txn *txn, int level)
{
    int rc = check_open(txn);
    if (rc == 0)
        pn_pending_release(&txn->pending, level > 0 ? (size_t) level : 0);
    return rc;
}

PN_API int pn_txn_rollback_to(pn_txn *txn, int level)
{
    int rc = check_open(txn);
    if (rc == 0)
        pn_pending_rollback(&txn->pending, level > 0 ? (size_t) level : 0);
    return rc;
}

PN_API int pn_txn_prepare(pn_txn *txn)
{
    int rc = check_open(txn);
    return rc != 0 ? rc : pn_async_prepare(txn);
}

PN_API int pn_txn_commit(pn_txn *txn)
{
    struct pn_segment *seg = txn->conn->seg;
    int rc = pn_txn_check_commit(txn);
    pn_sync_error = 0;
    pn_calling = txn->conn;
    if (rc == 0)
        rc = pn_async_commit(txn);
    if (pn_txn_goes_on(rc))
        return rc;
    if (rc < 0)
        pn_async_abort(txn);
    rc = pn_durable_result(seg, rc); /* before the last reference to the segment may go */
    free_txn(txn);
    return rc;
}

PN_API void pn_txn_abort(pn_txn *txn)
{
    if (txn->conn->pid == pn_my_pid)
        pn_async_abort(txn);
    free_txn(txn);
}

/* ---- for bindings ---------------------------------------------------------------------------- */

static pn_txn ended = {.conn = &pn_conn_that_is_closed};

PN_API pn_txn *pn_ended_txn(void)
{
    return &ended;
}

PN_API void pn_txn_drop(pn_txn **owner, pn_txn *txn)
{
    (void) txn;
    pn_txn *mine = *owner;
    *owner = NULL;
    if (mine != NULL)
        pn_txn_abort(mine);
}

PN_API int pn_txn_commit_owned(pn_txn **owner, pn_txn *txn)
{
    if (txn == &ended || *owner == NULL)
        return pn_conn_closed();
    pn_txn *mine = *owner;
    int rc = pn_txn_commit(mine);
    if (!pn_txn_goes_on(rc))
        *owner = NULL;
    return rc;
}
