/*
 * bridge.c - a backend that stands for another place, as a bridge to PostgreSQL needs it.
 *
 * 1. A connection becomes the bridge of its database under the lock, and is it until its slot is
 *    free: so there is one at the most, and a dead one is in no other's way.
 * 2. It wants to know which channels have listeners.  `heard` counts the changes of that: a
 *    channel's or pattern's first listener came, or its last one went, by UNLISTEN, close or death,
 *    since a dead listener's slot is reaped by its watchers; the bridge itself is never counted.
 *    The process that brings a change about adds one under the lock, and wakes the bridges after
 *    its release; they look at `heard` and ask for the channels that they care about.  Killed
 *    before the signal, it leaves a change that the bridge sees with its next one: only
 *    wait_upstream needs it at once, and that sends a message of its own.  Nothing of this is on
 *    the path of a notification.
 * 3. What a bridge listens to goes upstream, and `upstream` of the channel says so.  PostgreSQL
 *    takes fewer than 8000 bytes of text without NUL, and to find that out later would be to drop
 *    what was committed.  So a commit is refused that notifies such a channel of something else.
 *    The flag stands in the line that a commit looks at anyway.  A transaction that was prepared
 *    before cannot be refused any more; the bridge counts what it cannot send.
 * 4. Where something may be missing, since the bridge was not connected, it says so by an entry of
 *    the kind GAP in the channel: it takes its place among the messages, wakes as they do, and is a
 *    pn_gap for its readers.
 * 5. What a bridge brings in is not its own: with pn_conn_set_source() it bears the pid of its
 *    sender, and a number of the sender that no claim of a slot will have.  Otherwise the segments
 *    of several senders (docs/pubsub.md) would come from one.
 */
#define _GNU_SOURCE
#include "commit/bridge.h"

#include <errno.h>
#include <string.h>

#include "backend/backend.h"
#include "backend/channel.h"
#include "backend/pattern.h"
#include "commit/async.h"
#include "commit/upstream_payload.h"
#include "segment/lock.h"
#include "wakeup/handlers.h"
#include "wakeup/send.h"

#define PN_FOREIGN 0x80000000U /* in srcGeneration: not a claim of the slot, but a pid elsewhere */

/* ---- the bridge of a database ------------------------------------------------------------ */

/* The slot of the database's bridge, or -1.  A dead one is reaped. */
static int64_t find_bridge_locked(struct pn_segment *seg, uint32_t dboid)
{
    pn_assert_held(seg);
    for (uint32_t slot = 0; slot < seg->max_backends; slot++) {
        const struct QueueBackendStatus *backend = &seg->backend[slot];
        if (pn_load_relaxed(&backend->state) != PN_SLOT_CLAIMED ||
            pn_load_relaxed(&backend->bridge) == 0 || backend->dboid != dboid)
            continue;
        if (pn_backend_verdict(seg, slot) != PN_DEAD)
            return slot;
        pn_backend_reap_locked(seg, slot);
    }
    return -1;
}

static int begin_locked(struct pn_conn *conn)
{
    pn_assert_held(conn->seg);
    struct pn_segment *seg = conn->seg;
    int64_t other = find_bridge_locked(seg, conn->dboid);
    if (other >= 0)
        return pn_fail(EBUSY,
                       "database \"%s\" of segment \"%s\" has a bridge already: the process with "
                       "PID %d\nOne is enough for all processes; end it first, or give that one "
                       "the channels.",
                       conn->database, seg->name, pn_load_relaxed(&seg->backend[other].pid));
    int rc = pn_conn_check_slot(conn);
    if (rc != 0)
        return rc;
    if (conn->me->firstSub != 0)
        return pn_fail(EINVAL, "a connection that listens cannot become a bridge");
    pn_store_relaxed(&conn->me->bridge, 1);
    pn_bridge_count_locked(seg);
    return 0;
}

PN_API int pn_conn_bridge(pn_conn *conn)
{
    struct pn_hold hold;
    int rc = pn_conn_check(conn);
    if (rc == 0)
        rc = pn_handler_arm(conn); /* it is told by a signal, and need not listen */
    if (rc == 0)
        rc = pn_lock_wait(conn->seg, &hold, PN_LOCK_TIMEOUT_NS, conn);
    if (rc != 0)
        return rc;
    rc = begin_locked(conn);
    pn_lock_release(conn->seg);
    return rc;
}

PN_API int pn_bridge_pid(pn_conn *conn)
{
    struct pn_hold hold;
    int rc = pn_conn_check(conn);
    if (rc == 0)
        rc = pn_lock_wait(conn->seg, &hold, PN_LOCK_TIMEOUT_NS, conn);
    if (rc != 0)
        return rc;
    int64_t slot = find_bridge_locked(conn->seg, conn->dboid);
    int pid = slot < 0 ? 0 : pn_load_relaxed(&conn->seg->backend[slot].pid);
    pn_lock_release(conn->seg);
    return pid;
}

/* ---- listeners of a channel -------------------------------------------------------------- */

void pn_bridge_tell(struct pn_segment *seg)
{
    for (uint32_t slot = 0; slot < seg->max_backends; slot++)
        if (pn_load_relaxed(&seg->backend[slot].bridge) != 0)
            pn_procsignal_send(seg, slot, PROCSIG_NOTIFY_INTERRUPT);
}

/* Under the lock, what `ask` says of the channel and its entry, which may be NULL. */
static int ask_channel(pn_conn *conn, const char *channel, size_t len, bool may_leave,
                       bool (*ask)(pn_conn *, const struct GlobalChannelEntry *, const char *,
                                   size_t))
{
    struct pn_hold hold;
    int rc = pn_conn_check(conn);
    if (rc == 0)
        rc = pn_check_channel(conn, channel, len);
    if (rc == 0)
        rc = may_leave ? pn_lock_wait(conn->seg, &hold, PN_LOCK_TIMEOUT_NS, conn)
                       : pn_lock_acquire(conn->seg, &hold, PN_LOCK_TIMEOUT_NS);
    if (rc != 0)
        return rc;
    const struct GlobalChannelEntry *e = pn_channel_find_locked(
        conn->seg, pn_channel_hash(conn->dboid, channel, len), conn->dboid, channel, len);
    rc = ask(conn, e, channel, len);
    pn_lock_release(conn->seg);
    return rc;
}

static bool is_heard(pn_conn *conn, const struct GlobalChannelEntry *e, const char *channel,
                     size_t len)
{
    return (e != NULL && pn_is_heard_here(e)) ||
           pn_pattern_hears_locked(conn->seg, conn->dboid, channel, len);
}

PN_API int pn_channel_heard(pn_conn *conn, const char *channel, size_t len)
{
    return ask_channel(conn, channel, len, true, is_heard);
}

static bool is_upstream(pn_conn *conn, const struct GlobalChannelEntry *e, const char *channel,
                        size_t len)
{
    (void) conn, (void) channel, (void) len;
    return e != NULL && e->upstream != 0;
}

PN_API int pn_channel_upstream(pn_conn *conn, const char *channel, size_t len)
{
    return ask_channel(conn, channel, len, true, is_upstream);
}

/* ---- what PostgreSQL does not take --------------------------------------------------------- */

int pn_bridge_refuse(struct pn_conn *conn, const char *channel, size_t channel_len,
                     const void *payload, size_t payload_len)
{
    if (__builtin_expect(pn_load_relaxed(&conn->seg->ctl->bridges) == 0, 1))
        return 0;
    int refusal = pn_upstream_check_payload(channel, channel_len, payload, payload_len);
    if (refusal == 0)
        return 0;
    int rc = ask_channel(conn, channel, channel_len, false, is_upstream);
    /* the sentence is that of the last failure, so it is made again */
    return rc <= 0 ? rc : pn_upstream_check_payload(channel, channel_len, payload, payload_len);
}

/* ---- what comes from there ----------------------------------------------------------------- */

PN_API void pn_conn_set_source(pn_conn *conn, int32_t pid)
{
    if (conn == &pn_conn_that_is_closed)
        return;
    conn->src_pid = pid == 0 ? conn->pid : pid;
    conn->src_generation = pid == 0 ? conn->generation : PN_FOREIGN | (uint32_t) pid;
}

PN_API int pn_send_gap(pn_conn *conn, const char *channel, size_t len)
{
    int rc = pn_conn_check(conn);
    return rc != 0 ? rc : pn_async_notify(conn, channel, len, "", 0, PN_ENTRY_GAP);
}
