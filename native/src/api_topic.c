/*
 * api_topic.c - the C API of topics: arguments are checked, and the work is handed to the module
 * that does it.  The contract of each function is in pynotify.h.
 */
#include <errno.h>

#include "pynotify.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

PN_API int pn_topic_open(pn_conn *conn, const char *name, size_t len, const pn_topic_options *options,
                  pn_ref *out)
{
    return -ENOSYS;
}

PN_API int pn_topic_find(pn_conn *conn, const char *name, size_t len, pn_ref *out)
{
    return -ENOSYS;
}

PN_API int pn_topic_channel_open(pn_conn *conn, pn_ref topic, const char *name, size_t len,
                          int64_t max_consumers, pn_ref *out)
{
    return -ENOSYS;
}

PN_API int pn_topic_channel_find(pn_conn *conn, pn_ref topic, const char *name, size_t len, pn_ref *out)
{
    return -ENOSYS;
}

PN_API int pn_topic_publish(pn_conn *conn, pn_txn *txn, pn_ref topic, const pn_message_in *message,
                     uint64_t *id)
{
    return -ENOSYS;
}

PN_API int pn_topic_publish_many(pn_conn *conn, pn_txn *txn, pn_ref topic, const void *bodies,
                          const uint32_t *lens, size_t n, const pn_message_in *common,
                          uint64_t *first_id)
{
    return -ENOSYS;
}

PN_API int pn_topic_cancel(pn_conn *conn, pn_txn *txn, pn_ref topic, uint64_t id)
{
    return -ENOSYS;
}

PN_API int pn_topic_pause(pn_conn *conn, pn_ref topic, int paused)
{
    return -ENOSYS;
}

PN_API int pn_topic_empty(pn_conn *conn, pn_ref topic)
{
    return -ENOSYS;
}

PN_API int pn_topic_delete(pn_conn *conn, pn_ref topic)
{
    return -ENOSYS;
}

PN_API int pn_topic_channel_pause(pn_conn *conn, pn_ref channel, int paused)
{
    return -ENOSYS;
}

PN_API int pn_topic_channel_empty(pn_conn *conn, pn_ref channel)
{
    return -ENOSYS;
}

PN_API int pn_topic_channel_delete(pn_conn *conn, pn_ref channel)
{
    return -ENOSYS;
}

PN_API int pn_consumer_open(pn_conn *conn, pn_ref channel, const pn_consumer_options *options,
                     pn_consumer **out)
{
    return -ENOSYS;
}

PN_API int pn_consumer_get(pn_consumer *consumer, int64_t timeout_ns, pn_message_out *out)
{
    return -ENOSYS;
}

PN_API int pn_consumer_fileno(pn_consumer *consumer)
{
    return -ENOSYS;
}

PN_API int pn_consumer_pause(pn_consumer *consumer, int level)
{
    return -ENOSYS;
}

PN_API void pn_consumer_interrupt(pn_consumer *consumer)
{
}

PN_API int pn_consumer_close(pn_consumer *consumer)
{
    return -ENOSYS;
}

PN_API pn_ref pn_consumer_ref(const pn_consumer *consumer)
{
    return 0;
}

PN_API int pn_message_answer(pn_conn *conn, pn_txn *txn, uint64_t delivery, uint32_t tag, uint64_t id,
                      int answer, int64_t delay_ns, const char *reason, size_t reason_len)
{
    return -ENOSYS;
}

PN_API int pn_message_deadline(pn_conn *conn, uint64_t delivery, uint32_t tag, uint64_t id,
                        int64_t *deadline_ns)
{
    return -ENOSYS;
}

PN_API int pn_topic_list(pn_conn *conn, pn_topic_stats *rows, size_t cap)
{
    return -ENOSYS;
}

PN_API int pn_topic_channel_list(pn_conn *conn, pn_ref topic, pn_topic_channel_stats *rows, size_t cap)
{
    return -ENOSYS;
}

PN_API int pn_consumer_list(pn_conn *conn, pn_ref channel, pn_consumer_stats *rows, size_t cap)
{
    return -ENOSYS;
}

PN_API int pn_topic_stat(pn_conn *conn, pn_ref topic, pn_topic_stats *out)
{
    return -ENOSYS;
}

PN_API int pn_topic_channel_stat(pn_conn *conn, pn_ref channel, pn_topic_channel_stats *out)
{
    return -ENOSYS;
}

PN_API int pn_consumer_stat(pn_consumer *consumer, pn_consumer_stats *out)
{
    return -ENOSYS;
}

PN_API int pn_topic_channel_e2e(pn_conn *conn, pn_ref channel, const double *q, size_t n,
                         double *seconds)
{
    return -ENOSYS;
}

PN_API int pn_topic_channel_peek(pn_conn *conn, pn_ref channel, pn_peeked *out, size_t cap,
                          uint8_t *bodies, size_t body_max)
{
    return -ENOSYS;
}


PN_API int64_t pn_topic_publish_body(pn_conn *conn, pn_ref topic, const char *body,
                                     size_t body_len)
{
    return -ENOSYS;
}

PN_API int pn_message_finish(pn_conn *conn, uint64_t delivery, uint32_t tag, uint64_t id)
{
    return -ENOSYS;
}
