/* session.c - see session.h: messages, simple queries, and what keeps a session going. */
#include "session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analyse.h"
#include "parse.h"
#include "terms.h"
#include "work.h"

enum { MESSAGE_SLACK = 1 << 20 };

/* ---- simple queries -------------------------------------------------------------------------- */

static enum gw_result run_next(struct gw_session *session)
{
    struct gw_statement *statement = &session->script->statement[session->next];
    size_t before = gw_buffer_size(&session->out), nrows;
    char *tag = session->tag;
    bool rows = gw_returns_rows(statement);
    if (session->block != GW_BLOCK_FAILED &&
        !gw_analyse(session->script, statement, &session->error)) {
        session->script->spoiled = true;
        return GW_FAILED;
    }
    if (rows && session->block != GW_BLOCK_FAILED)
        gw_send_row_description(session, statement, NULL);
    enum gw_result result = gw_run_statement(session, statement, NULL, session->script->n == 1,
                                             &session->out, &nrows, tag);
    if (result != GW_DONE && rows && !session->failed_late)
        gw_buffer_rewind(&session->out, before);
    if (result != GW_DONE)
        return result;
    if (statement->kind == GW_SELECT)
        snprintf(tag, GW_TAG_SIZE, "SELECT %zu", nrows);
    session->ran = true;
    return GW_DONE;
}

/*
 * The statements of a Query that are left.  What they did is committed before the last one is said
 * to be complete: a client that reads so knows that it happened.
 */
static enum gw_result run_query(struct gw_session *session)
{
    size_t n = session->script->n;
    enum gw_result result = GW_DONE;
    while (session->next < n) {
        if (!session->ran)
            result = run_next(session);
        if (result == GW_DONE && gw_buffer_size(&session->out) > GW_RESULT_MAX) {
            gw_fail(&session->error, "54000", "the results are larger than %d bytes",
                    GW_RESULT_MAX);
            result = GW_FAILED;
        }
        if (result == GW_DONE && session->next + 1 == n && session->block == GW_BLOCK_NONE)
            result = gw_commit(session);
        if (result != GW_DONE)
            return result;
        gw_send_complete(&session->out, session->tag);
        session->ran = false;
        session->next++;
    }
    return session->block == GW_BLOCK_NONE ? gw_commit(session) : GW_DONE;
}

static void go_on_querying(struct gw_session *session)
{
    enum gw_result result = run_query(session);
    if (result == GW_WAITS)
        return;
    if (result == GW_FAILED) {
        gw_report(session);
        gw_fail_transaction(session);
    }
    gw_script_let_go(session->script);
    session->script = NULL;
    gw_ready(session);
}

static void handle_query(struct gw_session *session, struct gw_reader *in)
{
    size_t len;
    const char *text = gw_get_text(in, &len);
    if (session->skip_to_sync)
        return;
    gw_drop_prepared(session, "");
    session->script = NULL;
    if (in->cut)
        gw_fail(&session->error, "08P01", "invalid string in message");
    else
        session->script = gw_script_of(session, text, len, false, NULL, 0);
    if (session->script == NULL) {
        gw_report(session);
        gw_fail_transaction(session);
        gw_ready(session);
        return;
    }
    if (session->script->n == 0)
        gw_send_empty(&session->out, 'I');
    session->next = 0;
    session->ran = false;
    session->work = 0;
    session->activity = GW_QUERY;
    go_on_querying(session);
}

/* ---- Sync ------------------------------------------------------------------------------------ */

static void go_on_syncing(struct gw_session *session)
{
    enum gw_result result = session->block == GW_BLOCK_NONE ? gw_commit(session) : GW_DONE;
    if (result == GW_WAITS)
        return;
    if (result == GW_FAILED)
        gw_report(session);
    gw_ready(session);
}

/* ---- messages -------------------------------------------------------------------------------- */

static void handle_message(struct gw_session *session, char type, struct gw_reader *in)
{
    char text[48];
    switch (type) {
    case 'Q':
        handle_query(session, in);
        return;
    case 'P':
    case 'B':
    case 'D':
    case 'E':
    case 'C':
    case 'H':
        gw_handle_extended(session, type, in);
        return;
    case 'S':
        session->activity = GW_SYNC;
        go_on_syncing(session);
        return;
    case 'X':
        session->activity = GW_CLOSING;
        return;
    case 'd':
    case 'c':
    case 'f':
        return;
    case 'F':
        if (session->skip_to_sync)
            return;
        gw_fail(&session->error, "0A000", "function calls are not supported");
        gw_hint(&session->error, "%s", gw_no_database_hint);
        gw_report(session);
        gw_fail_transaction(session);
        gw_ready(session);
        return;
    default:
        snprintf(text, sizeof text, "invalid frontend message type %u", (unsigned char) type);
        gw_end_session(session, "08P01", text);
    }
}

/* The next whole message; false: there is none. */
static bool take_message(struct gw_session *session)
{
    size_t size = gw_buffer_size(&session->in);
    if (session->activity == GW_STARTUP)
        return gw_startup(session);
    if (size < 5)
        return false;
    const char *at = session->in.data + session->in.begin;
    uint32_t len = gw_peek32(at + 1);
    size_t most = 4 * (size_t) session->shared->options.max_payload + MESSAGE_SLACK;
    if (len < 4 || len > most) {
        gw_end_session(session, "08P01", "invalid message length");
        return true;
    }
    if (size - 1 < len)
        return false;
    struct gw_reader in = {at + 5, at + 1 + len, false};
    handle_message(session, *at, &in);
    gw_buffer_sent(&session->in, (size_t) len + 1);
    return true;
}

/* ---- the session ----------------------------------------------------------------------------- */

struct gw_session *gw_session_new(struct gw_shared *shared, const struct gw_peer *peer,
                                  bool refused, uint32_t secret)
{
    struct gw_session *session = calloc(1, sizeof *session);
    if (session == NULL)
        return NULL;
    session->shared = shared;
    session->peer = *peer;
    session->refused = refused;
    session->secret = secret;
    session->activity = GW_STARTUP;
    return session;
}

void gw_session_free(struct gw_session *session)
{
    if (session->settings != NULL)
        gw_rollback(session);
    session->portal = NULL;
    gw_drop_portals(session);
    gw_drop_prepared(session, NULL);
    gw_script_let_go(session->script);
    if (session->conn != NULL)
        pn_conn_close(session->conn);
    gw_count(&session->shared->listens, -session->listens);
    gw_settings_free(session->settings);
    gw_arena_free(&session->arena);
    gw_buffer_free(&session->in);
    gw_buffer_free(&session->out);
    free(session->user);
    free(session->database);
    free(session);
}

/* Its transaction is not kept while its last words wait to be read. */
static void give_up(struct gw_session *session)
{
    if (session->activity == GW_CLOSING && session->txn != NULL)
        gw_rollback(session);
}

void gw_session_terminate(struct gw_session *session, const char *message)
{
    if (session->activity != GW_CLOSING)
        gw_end_session(session, "57P01", message);
    give_up(session);
}

void gw_session_refuse(struct gw_session *session, const char *code, const char *message,
                       const char *hint)
{
    gw_fail(&session->error, code, "%s", message);
    if (hint != NULL)
        gw_hint(&session->error, "%s", hint);
    gw_refuse(session);
}

void gw_session_input(struct gw_session *session, const void *bytes, size_t len)
{
    gw_put(&session->in, bytes, len);
}

bool gw_session_reads(const struct gw_session *session)
{
    bool waits = session->activity != GW_IDLE && session->activity != GW_STARTUP;
    return !waits && gw_buffer_size(&session->out) < GW_OUT_MAX;
}

static void go_on(struct gw_session *session)
{
    switch (session->activity) {
    case GW_CONNECT:
        gw_go_on_connecting(session);
        return;
    case GW_QUERY:
        go_on_querying(session);
        return;
    case GW_EXECUTE:
        gw_go_on_executing(session);
        return;
    case GW_READYING:
        gw_go_on_readying(session);
        return;
    default:
        go_on_syncing(session);
    }
}

static bool is_waiting(const struct gw_session *session)
{
    return session->activity == GW_CONNECT || session->activity == GW_QUERY ||
           session->activity == GW_EXECUTE || session->activity == GW_SYNC ||
           session->activity == GW_READYING;
}

void gw_session_run(struct gw_session *session, int64_t now)
{
    session->now = now;
    if (session->terminated)
        gw_session_terminate(session, "terminating connection due to administrator command");
    if (is_waiting(session) && (session->canceled || now >= session->wake_at))
        go_on(session);
    while (gw_session_reads(session) && take_message(session))
        ;
    if (!is_waiting(session)) {
        session->wake_at = 0;
        session->canceled = false;
    }
    if (session->in.failed || session->out.failed)
        session->activity = GW_CLOSING;
    if (session->terminated)
        gw_session_terminate(session, "terminating connection due to administrator command");
    give_up(session);
}
