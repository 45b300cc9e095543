/*
 * deliver.c - notifications to the client.
 *
 * What cannot be told in this protocol ends the session: after a Gap the client has to load its
 * state again, as after any lost connection.  A payload that is no text is left out and counted,
 * since drivers that raise in the middle of a message cannot go on.
 *
 * ReadyForQuery comes behind all that was committed when it was due, the session's own included, as
 * from a PostgreSQL: a client that has it knows what it has heard.  Where that is more than
 * GW_OUT_MAX bytes, the session is READYING until the client has taken them.  What is committed
 * meanwhile does not count, so others that go on sending hold nothing up.
 */
#include <stdio.h>
#include <string.h>

#include "work.h"

#define WARNING_INTERVAL_NS 1000000000LL

enum { AT_ONCE = 1000 }; /* notifications */
#define EVENT 0ULL       /* no commit has this number */

static bool may_deliver(const struct gw_session *session)
{
    return session->activity == GW_IDLE && session->block == GW_BLOCK_NONE && !session->batch;
}

static void end_for(struct gw_session *session, int64_t rc);

/*
 * The slot's descriptor is readable, and must not wake the loop again before this is over.  Each
 * time: while it is muted its timer ticks, and neighbours die.
 */
static void mute(struct gw_session *session)
{
    const int64_t rc = session->conn != NULL ? pn_conn_mute_fd(session->conn) : 0;
    session->muted = session->conn != NULL;
    if (rc < 0)
        end_for(session, rc);
}

static void warn(struct gw_session *session, int64_t now)
{
    gw_count(&session->shared->unreadable, 1);
    if (session->warned_at != 0 && now - session->warned_at < WARNING_INTERVAL_NS)
        return;
    session->warned_at = now;
    gw_notice(session, "WARNING", "22021",
              "a notification was left out: its payload is no UTF-8 text, or contains NUL");
}

static void send_batch(struct gw_session *session, const pn_batch *batch, int64_t now)
{
    for (size_t i = 0; i < batch->n; i++) {
        size_t channel_len = 0, len = batch->offset[i + 1] - batch->offset[i];
        const char *payload = (const char *) batch->data + batch->offset[i];
        const char *channel = pn_conn_channel(session->conn, batch->channel[i], &channel_len);
        if (channel == NULL || gw_utf8_valid(payload, len) < len) {
            warn(session, now);
            continue;
        }
        gw_send_notification(&session->out, (uint32_t) batch->pid[i], channel, channel_len, payload,
                             len);
        gw_count(&session->shared->sent, 1);
    }
}

static void end_for(struct gw_session *session, int64_t rc)
{
    session->shared->gone |= rc == -PN_EGONE;
    if (rc == -PN_EGONE)
        gw_end_session(session, "57P01", "terminating connection due to administrator command");
    else
        gw_end_session(session, "58000", pn_error_message());
}

/*
 * A backend that stands behind what is in memory, since its client was slow, reads from files: it
 * may, a piece at a time.  No other thread has this slot, so nothing else is waited for.
 */
static int64_t poll_slot(pn_conn *conn, pn_batch *batch)
{
    int64_t n = pn_poll(conn, batch, AT_ONCE);
    if (n != -PN_ELOCKBUSY)
        return n;
    pn_set_never_wait(0);
    n = pn_poll(conn, batch, AT_ONCE);
    pn_set_never_wait(1);
    return n;
}

/*
 * What is owed, as long as the client takes it.  True: all of it, at least up to the commit of the
 * number `until`; false: `out` is full, or the session ended.  EVENT: what one look has; the slot's
 * descriptor is readable if there is more.
 */
static bool send_owed(struct gw_session *session, int64_t now, uint64_t until)
{
    pn_batch *batch = session->shared->batch;
    while (gw_buffer_size(&session->out) < GW_OUT_MAX) {
        batch->max_data = GW_OUT_MAX / 4;
        int64_t n = poll_slot(session->conn, batch);
        if (n < 0) {
            end_for(session, n);
            return false;
        }
        if (batch->ngaps > 0) {
            gw_end_session(session, "57P01", "notifications were lost");
            return false;
        }
        send_batch(session, batch, now);
        if (n == 0 || until == EVENT || batch->seq[n - 1] > until)
            return true;
    }
    return false;
}

static void unmute(struct gw_session *session)
{
    if (!session->muted)
        return;
    session->muted = false;
    pn_conn_mark_readable(session->conn);
}

void gw_session_deliver(struct gw_session *session, int64_t now)
{
    if (session->conn == NULL)
        return;
    if (!may_deliver(session) || gw_buffer_size(&session->out) >= GW_OUT_MAX) {
        mute(session);
        return;
    }
    unmute(session);
    send_owed(session, now, EVENT);
}

static bool is_told_all(struct gw_session *session)
{
    if (session->conn == NULL || session->block != GW_BLOCK_NONE)
        return true;
    if (!send_owed(session, session->now, session->owed)) {
        mute(session);
        return false;
    }
    unmute(session);
    return true;
}

/* What statistics show of the slot: the program's own name, and its process or port. */
static void tell_name(struct gw_session *session)
{
    const struct gw_peer *peer = &session->peer;
    const char *name = gw_setting(session->settings, "application_name");
    char at[32], text[sizeof session->known_as];
    if (session->conn == NULL)
        return;
    if (peer->pid != 0)
        snprintf(at, sizeof at, "[%d]", (int) peer->pid);
    else
        snprintf(at, sizeof at, "[tcp %u]", (unsigned) peer->port);
    size_t len = strlen(name), room = sizeof text - 2 - strlen(at);
    while (len > 0 &&
           (len > room || (name[len] & 0xC0) == 0x80)) /* not in the middle of a character */
        len--;
    snprintf(text, sizeof text, "%.*s%s%s", (int) len, name, len != 0 ? " " : "", at);
    /* while a process holds the lock: at the next statement's end */
    if (strcmp(text, session->known_as) != 0 &&
        pn_conn_set_application_name(session->conn, text, strlen(text)) == 0)
        memcpy(session->known_as, text, sizeof text);
}

void gw_go_on_readying(struct gw_session *session)
{
    static const char status[] = {
        [GW_BLOCK_NONE] = 'I', [GW_BLOCK_OPEN] = 'T', [GW_BLOCK_FAILED] = 'E'};
    if (!is_told_all(session))
        return;
    session->activity = GW_IDLE;
    gw_settings_report(session->settings, &session->out, false);
    tell_name(session);
    gw_send_ready(&session->out, status[session->block]);
}

void gw_ready(struct gw_session *session)
{
    session->activity = GW_READYING;
    session->batch = session->pipelined = session->skip_to_sync = false;
    session->wake_at = 0;
    session->owed = UINT64_MAX;
    pn_commit_seq(session->shared->engine, &session->owed);
    gw_go_on_readying(session);
}
