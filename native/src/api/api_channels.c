/* api_channels.c - the C API: which channels are listened to, and by how many backends. */
#include <stdbool.h>
#include <string.h>

#include "backend/backend.h"
#include "backend/channel.h"
#include "backend/conn.h"
#include "backend/upstream.h"
#include "segment/lock.h"

/* Entries of the table that one hold of the writer lock looks at. */
#define SLICE 1024

/* A bridge that listens in order to send on is none of them. */
static uint32_t listeners_of(const struct GlobalChannelEntry *e)
{
    return pn_is_heard_here(e) ? e->numListeners - (e->upstream != 0) : 0;
}

PN_API int pn_channel_listeners(pn_conn *conn, const char *channel, size_t len)
{
    struct pn_hold hold;
    int rc = pn_conn_check(conn);
    if (rc == 0)
        rc = pn_check_channel(conn, channel, len);
    if (rc == 0)
        rc = pn_lock_wait(conn->seg, &hold, PN_LOCK_TIMEOUT_NS, conn);
    if (rc != 0)
        return rc;
    const struct GlobalChannelEntry *e = pn_channel_find_locked(
        conn->seg, pn_channel_hash(conn->dboid, channel, len), conn->dboid, channel, len);
    rc = e != NULL ? (int) listeners_of(e) : 0;
    pn_lock_release(conn->seg);
    return rc;
}

/* Whether the entry is one that was asked for; then `row` has it. */
static bool fill_row(const pn_conn *conn, struct GlobalChannelEntry *e, const char *prefix,
                     size_t len, pn_channel_row *row)
{
    const struct pn_segment *seg = conn->seg;
    size_t name_len = *(volatile const uint16_t *) &e->name_len;
    if (e->state != PN_CHANNEL_USED || e->dboid != conn->dboid || listeners_of(e) == 0)
        return false;
    if (name_len < len || name_len > seg->max_channel_name || name_len > sizeof row->name)
        return false;
    if (memcmp(pn_channel_name(seg, e), prefix, len) != 0)
        return false;
    row->listeners = listeners_of(e);
    row->name_len = (uint32_t) name_len;
    memcpy(row->name, pn_channel_name(seg, e), name_len);
    return true;
}

PN_API int pn_channel_list(pn_conn *conn, const char *prefix, size_t len, uint32_t *from,
                           pn_channel_row *rows, size_t cap)
{
    struct pn_hold hold;
    int found = 0, rc = pn_conn_check(conn);
    if (rc == 0)
        rc = *from == 0 ? pn_backend_reap_and_lock(conn->seg, &hold)
                        : pn_lock_wait(conn->seg, &hold, PN_LOCK_TIMEOUT_NS, conn);
    if (rc != 0)
        return rc;
    uint32_t at = *from, end = conn->seg->max_channels;
    if (at < end && end - at > SLICE)
        end = at + SLICE;
    for (; at < end && (size_t) found < cap; at++)
        found += fill_row(conn, pn_channel_at(conn->seg, at), prefix, len, &rows[found]);
    *from = at < conn->seg->max_channels ? at : 0;
    pn_lock_release(conn->seg);
    return found;
}
