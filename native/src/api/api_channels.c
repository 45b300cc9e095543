/* api_channels.c - the C API: which channels and patterns are listened to, by how many backends. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "api/api_conn.h"
#include "backend/backend.h"
#include "backend/channel.h"
#include "backend/conn.h"
#include "backend/pattern.h"
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

/* What is asked for: channels or patterns, `all` databases or one, and how the names begin. */
struct wanted {
    bool patterns, all;
    uint32_t dboid;
    const char *prefix;
    size_t len;
};

/* Whether the entry is one that was asked for; then `row` has it. */
static bool fill_row(const struct pn_segment *seg, struct GlobalChannelEntry *e,
                     const struct wanted *want, pn_channel_row *row)
{
    size_t name_len = *(volatile const uint16_t *) &e->name_len;
    uint32_t dboid = e->dboid & ~PN_PATTERN;
    if (e->state != PN_CHANNEL_USED || pn_is_pattern(e) != want->patterns ||
        (!want->all && dboid != want->dboid) || listeners_of(e) == 0)
        return false;
    if (name_len < want->len || name_len > seg->max_channel_name || name_len > sizeof row->name)
        return false;
    if (memcmp(pn_channel_name(seg, e), want->prefix, want->len) != 0)
        return false;
    row->listeners = listeners_of(e);
    row->first = e->first_chan_seq;
    row->notifications = e->next_chan_seq - e->first_chan_seq;
    row->name_len = (uint32_t) name_len;
    memcpy(row->name, pn_channel_name(seg, e), name_len);
    snprintf(row->database, sizeof row->database, "%.255s", pn_database_name_locked(seg, dboid));
    return true;
}

static int fill_rows(const struct pn_segment *seg, const struct wanted *want, uint32_t *from,
                     pn_channel_row *rows, size_t cap)
{
    int found = 0;
    uint32_t at = *from, end = seg->max_channels;
    if (at < end && end - at > SLICE)
        end = at + SLICE;
    for (; at < end && (size_t) found < cap; at++)
        found += fill_row(seg, pn_channel_at(seg, at), want, &rows[found]);
    *from = at < seg->max_channels ? at : 0;
    return found;
}

static int list(pn_conn *conn, struct wanted want, uint32_t *from, pn_channel_row *rows, size_t cap)
{
    struct pn_hold hold;
    int rc = pn_conn_check(conn);
    if (rc == 0)
        rc = *from == 0 ? pn_backend_reap_and_lock(conn->seg, &hold)
                        : pn_lock_wait(conn->seg, &hold, PN_LOCK_TIMEOUT_NS, conn);
    if (rc != 0)
        return rc;
    want.dboid = conn->dboid;
    rc = fill_rows(conn->seg, &want, from, rows, cap);
    pn_lock_release(conn->seg);
    return rc;
}

PN_API int pn_channel_list(pn_conn *conn, const char *prefix, size_t len, uint32_t *from,
                           pn_channel_row *rows, size_t cap)
{
    return list(conn, (struct wanted) {.prefix = prefix, .len = len}, from, rows, cap);
}

PN_API int pn_pattern_list(pn_conn *conn, const char *prefix, size_t len, uint32_t *from,
                           pn_channel_row *rows, size_t cap)
{
    return list(conn, (struct wanted) {.patterns = true, .prefix = prefix, .len = len}, from, rows,
                cap);
}

static int list_all(pn_engine *engine, struct wanted want, const char *database,
                    size_t database_len, uint32_t *from, pn_channel_row *rows, size_t cap)
{
    struct pn_hold hold;
    struct pn_segment *seg = engine->seg;
    int rc = *from == 0 ? pn_backend_reap_and_lock(seg, &hold)
                        : pn_lock_wait(seg, &hold, PN_LOCK_TIMEOUT_NS, engine);
    if (rc != 0)
        return rc;
    want.all = database_len == 0;
    if (!want.all)
        want.dboid = pn_database_of_locked(seg, database, (uint32_t) database_len);
    if (want.all || want.dboid != 0)
        rc = fill_rows(seg, &want, from, rows, cap);
    else
        *from = 0;
    pn_lock_release(seg);
    return rc;
}

PN_API int pn_engine_channels(pn_engine *engine, const char *database, size_t database_len,
                              const char *prefix, size_t len, uint32_t *from, pn_channel_row *rows,
                              size_t cap)
{
    struct wanted want = {.prefix = prefix, .len = len};
    return list_all(engine, want, database, database_len, from, rows, cap);
}

PN_API int pn_engine_patterns(pn_engine *engine, const char *database, size_t database_len,
                              const char *prefix, size_t len, uint32_t *from, pn_channel_row *rows,
                              size_t cap)
{
    struct wanted want = {.patterns = true, .prefix = prefix, .len = len};
    return list_all(engine, want, database, database_len, from, rows, cap);
}
