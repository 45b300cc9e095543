/*
 * api_topic.c - the C API of topics, nothing else: arguments are checked, and the work is handed to
 * the module that does it.  The contract of each function is in pynotify.h.
 */
#define _GNU_SOURCE
#include <errno.h>

#include "api/api_send.h"
#include "api/api_conn.h"
#include "commit/async.h"
#include "commit/cancel_ops.h"
#include "commit/topic_pending.h"
#include "topic/answer.h"
#include "topic/attach.h"
#include "topic/cancel.h"
#include "topic/consume.h"
#include "topic/durable.h"
#include "topic/journal.h"
#include "topic/message.h"
#include "topic/publish.h"
#include "topic/stats.h"
#include "topic/topic.h"

/* Of what is to be on the disk when it returns, if a durable topic wants that. */
static int begin_call(pn_conn *conn)
{
    pn_sync_error = 0;
    pn_calling = conn;
    return pn_conn_check(conn);
}

static int done(const struct pn_conn *conn, int rc)
{
    return pn_durable_result(conn->seg, rc);
}

PN_API void pn_set_put_off(const pn_conn *conn)
{
    pn_puts_off = conn;
}

PN_API pn_sync *pn_sync_owed(void)
{
    pn_sync *mine = pn_put_off;
    pn_put_off = NULL;
    return mine;
}

PN_API int pn_sync_wait(pn_sync *sync)
{
    return pn_durable_wait(sync);
}

/* ---- topics and channels --------------------------------------------------------------------- */

PN_API int pn_topic_open(pn_conn *conn, const char *name, size_t len,
                         const pn_topic_options *options, pn_ref *out)
{
    int rc = begin_call(conn);
    return rc != 0 ? rc : done(conn, pn_topics_open(conn, name, len, options, out));
}

PN_API int pn_topic_find(pn_conn *conn, const char *name, size_t len, pn_ref *out)
{
    int rc = pn_conn_check(conn);
    return rc != 0 ? rc : pn_topics_find(conn, name, len, out);
}

PN_API int pn_topic_channel_open(pn_conn *conn, pn_ref topic, const char *name, size_t len,
                                 int64_t max_consumers, pn_ref *out)
{
    return pn_topic_channel_open_with(conn, topic, name, len, max_consumers, NULL, out);
}

PN_API int pn_topic_channel_open_with(pn_conn *conn, pn_ref topic, const char *name, size_t len,
                                      int64_t max_consumers, const pn_channel_options *options,
                                      pn_ref *out)
{
    int rc = begin_call(conn);
    return rc != 0 ? rc
                   : done(conn, pn_topic_channels_open(conn, topic, name, len, max_consumers,
                                                       options, out));
}

PN_API int pn_topic_configure(pn_conn *conn, pn_ref topic, const pn_topic_options *options)
{
    int rc = begin_call(conn);
    return rc != 0 ? rc : done(conn, pn_topics_configure(conn, topic, options));
}

PN_API int pn_topic_channel_configure(pn_conn *conn, pn_ref channel,
                                      const pn_channel_options *options)
{
    int rc = begin_call(conn);
    return rc != 0 ? rc : done(conn, pn_topic_channels_configure(conn, channel, options));
}

PN_API int pn_topic_channel_find(pn_conn *conn, pn_ref topic, const char *name, size_t len,
                                 pn_ref *out)
{
    int rc = pn_conn_check(conn);
    return rc != 0 ? rc : pn_topic_channels_find(conn, topic, name, len, out);
}

PN_API int pn_topic_pause(pn_conn *conn, pn_ref topic, int paused)
{
    int rc = begin_call(conn);
    return rc != 0 ? rc : done(conn, pn_topics_pause(conn, topic, paused != 0));
}

PN_API int pn_topic_empty(pn_conn *conn, pn_ref topic)
{
    int rc = begin_call(conn);
    return rc != 0 ? rc : done(conn, pn_topics_empty(conn, topic));
}

PN_API int pn_topic_delete(pn_conn *conn, pn_ref topic)
{
    int rc = begin_call(conn);
    return rc != 0 ? rc : done(conn, pn_topics_delete(conn, topic));
}

PN_API int pn_topic_channel_pause(pn_conn *conn, pn_ref channel, int paused)
{
    int rc = begin_call(conn);
    return rc != 0 ? rc : done(conn, pn_topic_channels_pause(conn, channel, paused != 0));
}

PN_API int pn_topic_channel_empty(pn_conn *conn, pn_ref channel)
{
    int rc = begin_call(conn);
    return rc != 0 ? rc : done(conn, pn_topic_channels_empty(conn, channel));
}

PN_API int pn_topic_channel_delete(pn_conn *conn, pn_ref channel)
{
    int rc = begin_call(conn);
    return rc != 0 ? rc : done(conn, pn_topic_channels_delete(conn, channel));
}

/* ---- publishing ------------------------------------------------------------------------------ */

static int check_open(pn_conn *conn, const pn_txn *txn)
{
    int rc = begin_call(txn != NULL ? txn->conn : conn);
    if (rc == 0 && txn != NULL && txn->prepared)
        rc =
            pn_fail(PN_EPREPARED, "the transaction is prepared: only commit and rollback are left");
    return rc;
}

PN_API int pn_topic_publish(pn_conn *conn, pn_txn *txn, pn_ref topic, const pn_message_in *message,
                            uint64_t *id)
{
    int rc = check_open(conn, txn);
    if (rc == 0)
        rc = pn_message_check(txn != NULL ? txn->conn->seg : conn->seg, message->body_len,
                              message->headers_len);
    if (rc != 0)
        return rc;
    return txn == NULL ? done(conn, pn_message_publish(conn, topic, message, id))
                       : pn_topic_txn_publish(txn, topic, message, id);
}

PN_API int64_t pn_topic_publish_body(pn_conn *conn, pn_ref topic, const char *body, size_t body_len)
{
    pn_message_in message = {.body = body, .body_len = body_len};
    uint64_t id;
    int rc = pn_topic_publish(conn, NULL, topic, &message, &id);
    return rc < 0 ? rc : (int64_t) id;
}

PN_API int pn_topic_publish_many(pn_conn *conn, pn_txn *txn, pn_ref topic, const void *bodies,
                                 const uint32_t *lens, size_t n, const pn_message_in *common,
                                 uint64_t *first_id)
{
    int rc = check_open(conn, txn);
    size_t headers_len = common == NULL ? 0 : common->headers_len;
    const struct pn_segment *seg = txn != NULL ? txn->conn->seg : conn->seg;
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = pn_message_check(seg, lens[i], headers_len);
    *first_id = 0;
    if (rc != 0 || n == 0)
        return rc;
    return txn == NULL
               ? done(conn, pn_message_publish_many(conn, topic, bodies, lens, n, common, first_id))
               : pn_topic_txn_publish_many(txn, topic, bodies, lens, n, common, first_id);
}

/* pn_txn_goes_on(): nothing has happened; -EINTR: perhaps as it has to wait for room, for which the
 * caller needs a transaction that it keeps. */
static int cancel_everywhere(pn_conn *conn, pn_ref topic, uint64_t id)
{
    pn_txn *txn;
    size_t cancelled = 0; /* it may fall due while the commit waits */
    int rc = pn_txn_new(conn, &txn);
    if (rc != 0)
        return rc;
    txn->cancelled = &cancelled;
    const int found = pn_topic_txn_cancel(txn, topic, id);
    if (found == 1)
        rc = pn_txn_commit(txn);
    if (found != 1 || pn_txn_goes_on(rc))
        pn_txn_abort(txn);
    return rc < 0 ? rc : found == 1 ? cancelled > 0 : found;
}

PN_API int pn_topic_cancel(pn_conn *conn, pn_txn *txn, pn_ref topic, uint64_t id)
{
    int rc = check_open(conn, txn);
    if (rc != 0)
        return rc;
    if (txn != NULL)
        return pn_topic_txn_cancel(txn, topic, id);
    rc = done(conn, pn_message_cancel(conn, topic, id));
    return rc == PN_CANCEL_EVERYWHERE ? cancel_everywhere(conn, topic, id) : rc;
}

PN_API void pn_txn_count_cancelled(pn_txn *txn, size_t *count)
{
    txn->cancelled = count;
}

/* ---- consuming ------------------------------------------------------------------------------- */

PN_API int pn_consumer_open(pn_conn *conn, pn_ref channel, const pn_consumer_options *options,
                            pn_consumer **out)
{
    int rc = pn_conn_check(conn);
    return rc != 0 ? rc : pn_consume_open(conn, channel, options, out);
}

PN_API int pn_consumer_get(pn_consumer *consumer, int64_t timeout_ns, pn_message_out *out)
{
    int rc = pn_consume_get(consumer, timeout_ns, out);
    if (rc != 1)
        out->id = 0; /* of one that expired, or was taken away, while it was copied */
    return rc;
}

PN_API int pn_consumer_fileno(pn_consumer *consumer)
{
    return pn_consume_fileno(consumer);
}

PN_API int pn_consumer_pause(pn_consumer *consumer, int level)
{
    return pn_consume_pause(consumer, level);
}

PN_API void pn_consumer_interrupt(pn_consumer *consumer)
{
    if (consumer == &pn_consumer_that_is_closed)
        return;
    pn_consume_interrupt(consumer);
}

PN_API int pn_consumer_close(pn_consumer *consumer)
{
    pn_conn *conn = consumer->conn; /* it held one reference */
    int rc = pn_consume_close(consumer);
    pn_conn_let_go(conn);
    return rc;
}

PN_API pn_consumer *pn_closed_consumer(void)
{
    return &pn_consumer_that_is_closed;
}

PN_API void pn_consumer_drop(pn_consumer **owner, pn_consumer *consumer)
{
    (void) consumer;
    pn_consumer *mine = *owner;
    *owner = NULL;
    if (mine != NULL)
        pn_consumer_close(mine);
}

PN_API pn_ref pn_consumer_ref(const pn_consumer *consumer)
{
    return pn_consume_ref(consumer);
}

PN_API int pn_message_answer(pn_conn *conn, pn_txn *txn, uint64_t delivery, uint32_t tag,
                             uint64_t id, int answer, int64_t delay_ns, const char *reason,
                             size_t reason_len)
{
    const struct pn_handle handle = {.id = id, .delivery = (uint32_t) delivery, .tag = tag};
    int rc = check_open(conn, txn);
    if (rc != 0)
        return rc;
    return txn == NULL ? done(conn, pn_answer(conn, &handle, answer, delay_ns, reason, reason_len))
                       : pn_topic_txn_answer(txn, &handle, answer, delay_ns, reason, reason_len);
}

PN_API int pn_message_finish(pn_conn *conn, uint64_t delivery, uint32_t tag, uint64_t id)
{
    return pn_message_answer(conn, NULL, delivery, tag, id, PN_ANSWER_FINISH, 0, NULL, 0);
}

PN_API int pn_message_deadline(pn_conn *conn, uint64_t delivery, uint32_t tag, uint64_t id,
                               int64_t *deadline_ns)
{
    const struct pn_handle handle = {.id = id, .delivery = (uint32_t) delivery, .tag = tag};
    int rc = pn_conn_check(conn);
    return rc != 0 ? rc : pn_answer_deadline(conn, &handle, deadline_ns);
}

/* ---- statistics ------------------------------------------------------------------------------ */

PN_API int pn_topic_list(pn_conn *conn, pn_topic_stats *rows, size_t cap)
{
    int rc = pn_conn_check(conn);
    return rc != 0 ? rc : pn_topic_rows(conn, rows, cap);
}

PN_API int pn_topic_channel_list(pn_conn *conn, pn_ref topic, pn_topic_channel_stats *rows,
                                 size_t cap)
{
    int rc = pn_conn_check(conn);
    return rc != 0 ? rc : pn_topic_channels_rows(conn, topic, rows, cap);
}

PN_API int pn_consumer_list(pn_conn *conn, pn_ref channel, pn_consumer_stats *rows, size_t cap)
{
    int rc = pn_conn_check(conn);
    return rc != 0 ? rc : pn_consumer_rows(conn, channel, rows, cap);
}

PN_API int pn_topic_stat(pn_conn *conn, pn_ref topic, pn_topic_stats *out)
{
    int rc = pn_conn_check(conn);
    return rc != 0 ? rc : pn_topic_row(conn, topic, out);
}

PN_API int pn_topic_channel_stat(pn_conn *conn, pn_ref channel, pn_topic_channel_stats *out)
{
    int rc = pn_conn_check(conn);
    return rc != 0 ? rc : pn_topic_channels_row(conn, channel, out);
}

PN_API int pn_consumer_stat(pn_consumer *consumer, pn_consumer_stats *out)
{
    struct pn_conn *conn = pn_consume_conn(consumer);
    int rc = pn_conn_check(conn);
    return rc != 0 ? rc : pn_consumer_row(conn, pn_consume_ref(consumer), out);
}

PN_API int pn_topic_channel_e2e(pn_conn *conn, pn_ref channel, const double *q, size_t n,
                                double *seconds)
{
    int rc = pn_conn_check(conn);
    return rc != 0 ? rc : pn_topic_channels_e2e(conn, channel, q, n, seconds);
}

PN_API int pn_engine_topics(pn_engine *engine, pn_topic_stats *rows, size_t cap)
{
    return pn_look_topics(engine->seg, rows, cap);
}

PN_API int pn_engine_topic_channels(pn_engine *engine, pn_ref topic, pn_topic_channel_stats *rows,
                                    size_t cap)
{
    return pn_look_channels(engine->seg, topic, rows, cap);
}

PN_API int pn_engine_consumers(pn_engine *engine, pn_ref channel, pn_consumer_stats *rows,
                               size_t cap)
{
    return pn_look_consumers(engine->seg, channel, rows, cap);
}

PN_API int pn_engine_topic_channel_e2e(pn_engine *engine, pn_ref channel, const double *q, size_t n,
                                       double *seconds)
{
    return pn_look_e2e(engine->seg, channel, q, n, seconds);
}

PN_API int pn_topic_channel_peek(pn_conn *conn, pn_ref channel, pn_peeked *out, size_t cap,
                                 uint8_t *bodies, size_t body_max)
{
    int rc = pn_conn_check(conn);
    return rc != 0 ? rc : pn_topic_channels_peek(conn, channel, out, cap, bodies, body_max);
}
