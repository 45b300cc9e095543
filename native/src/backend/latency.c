/* latency.c - see latency.h. */
#define _GNU_SOURCE
#include "backend/latency.h"

#include "base/crc32c.h"

static uint32_t low32(uint64_t n)
{
    return n > UINT32_MAX ? UINT32_MAX : (uint32_t) n;
}

#define HOLD_FOR 64 /* records: so long may the other half of the connection have to wait */

static void append(struct pn_conn *conn, struct pn_latrec *rec)
{
    pthread_mutex_lock(&conn->log_mutex);
    pn_latlog_append(conn->log, rec);
    pthread_mutex_unlock(&conn->log_mutex);
}

/* log_mutex held.  The channel's number in this log; without memory for it 0, which means none. */
static uint32_t number_of(struct pn_conn *conn, uint64_t hash, const char *name, uint32_t len)
{
    return pn_latlog_number(conn->log, hash, conn->dboid, name, len);
}

/* log_mutex held.  CRC32C of channel and payload. */
static uint32_t message_crc(struct pn_conn *conn, uint32_t channel, const char *name, uint32_t len,
                            const void *payload, size_t bytes)
{
    uint32_t crc = channel != 0 ? pn_latlog_name_crc(conn->log, channel) : pn_crc32c(0, name, len);
    return pn_crc32c(crc, payload, bytes);
}

void pn_log_send(struct pn_conn *conn, const struct pn_log_sent *sent, uint64_t xid, int64_t now)
{
    pthread_mutex_lock(&conn->log_mutex);
    uint32_t channel = number_of(conn, sent->hash, sent->channel, sent->channel_len);
    struct pn_latrec rec = {.ts = (uint64_t) now,
                            .commit_seq = xid,
                            .chan_seq = sent->chan_seq,
                            .channel = channel,
                            .bytes = sent->payload_len,
                            .peer = conn->slot,
                            .kind = PN_LAT_SEND,
                            .flags = sent->chan_seq == 0 ? PN_LATREC_UNNUMBERED : 0,
                            .aux = message_crc(conn, channel, sent->channel, sent->channel_len,
                                               sent->payload, sent->payload_len)};
    pn_latlog_append(conn->log, &rec);
    pthread_mutex_unlock(&conn->log_mutex);
}

void pn_log_signals(struct pn_conn *conn, uint64_t xid, int64_t now, uint64_t sent)
{
    struct pn_latrec rec = {.ts = (uint64_t) now,
                            .commit_seq = xid,
                            .peer = conn->slot,
                            .kind = PN_LAT_SIGNAL,
                            .aux = low32(sent)};
    append(conn, &rec);
}

void pn_log_listening(struct pn_conn *conn, const struct pn_log_listen *what, uint64_t xid,
                      int64_t now)
{
    const struct pn_local_channel *local = &conn->local.at[what->local];
    pthread_mutex_lock(&conn->log_mutex);
    struct pn_latrec rec = {.ts = (uint64_t) now,
                            .commit_seq = xid,
                            .chan_seq = what->chan_seq,
                            .channel = number_of(conn, local->hash, local->name, local->len),
                            .peer = conn->slot,
                            .lag = low32(what->unread),
                            .kind = what->listen ? PN_LAT_LISTEN : PN_LAT_UNLISTEN};
    pn_latlog_append(conn->log, &rec);
    pthread_mutex_unlock(&conn->log_mutex);
}

/* log_mutex held.  What was lost in front of the batch's message i; from *gap on. */
static void log_gaps(struct pn_conn *conn, const pn_batch *batch, size_t i, int64_t now,
                     size_t *gap)
{
    for (; *gap < batch->ngaps && batch->gap[*gap].before <= i; (*gap)++) {
        if (batch->gap[*gap].reason == PN_GAP_UPSTREAM)
            continue; /* nothing of this segment is missing */
        struct pn_latrec rec = {.ts = (uint64_t) now,
                                .bytes = low32(batch->gap[*gap].missed_bytes),
                                .peer = conn->slot,
                                .kind = PN_LAT_DROP};
        pn_latlog_append(conn->log, &rec);
    }
}

void pn_log_received(struct pn_conn *conn, const pn_batch *batch, const uint64_t *chan_seq,
                     int64_t now, uint64_t behind)
{
    uint8_t wake = (uint8_t) pn_load_relaxed(&conn->last_wake);
    size_t gap = 0;
    pthread_mutex_lock(&conn->log_mutex);
    for (size_t i = 0; i < batch->n; i++) {
        if (__builtin_expect(batch->ngaps != 0, 0))
            log_gaps(conn, batch, i, now, &gap);
        const struct pn_local_channel *local = &conn->local.at[batch->channel[i]];
        uint64_t bytes = batch->offset[i + 1] - batch->offset[i];
        uint32_t channel = number_of(conn, local->hash, local->name, local->len);
        struct pn_latrec rec = {.ts = (uint64_t) now,
                                .ref_ts = (uint64_t) batch->sent_ns[i],
                                .commit_seq = batch->seq[i],
                                .chan_seq = chan_seq[i],
                                .channel = channel,
                                .bytes = (uint32_t) bytes,
                                .peer = (uint32_t) batch->backend_id[i],
                                .lag = low32(behind + (batch->n - 1 - i)),
                                .kind = PN_LAT_RECV,
                                .flags = chan_seq[i] == 0 ? PN_LATREC_UNNUMBERED : 0,
                                .wake = wake,
                                .batch = (uint32_t) batch->n,
                                .aux = message_crc(conn, channel, local->name, local->len,
                                                   batch->data + batch->offset[i], bytes)};
        pn_latlog_append(conn->log, &rec);
        if (i % HOLD_FOR == HOLD_FOR - 1) {
            pthread_mutex_unlock(&conn->log_mutex);
            pthread_mutex_lock(&conn->log_mutex);
        }
    }
    log_gaps(conn, batch, batch->n, now, &gap);
    pthread_mutex_unlock(&conn->log_mutex);
}

void pn_log_wake(struct pn_conn *conn, uint8_t why, bool useful, uint64_t drained, int64_t at)
{
    struct pn_latrec rec = {.ts = (uint64_t) at,
                            .batch = low32(drained),
                            .peer = conn->slot,
                            .kind = PN_LAT_WAKE,
                            .wake = why,
                            .flags = useful ? PN_LATREC_USEFUL : 0};
    append(conn, &rec);
}
