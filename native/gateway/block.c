/* block.c - the transaction of a session: blocks, savepoints, and commits that may have to wait. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "work.h"

#define LOCK_PATIENCE_NS 10000000000LL /* as long as the core waits for the lock */

uint32_t gw_level(const struct gw_session *session)
{
    return (uint32_t) session->nsavepoints + 1;
}

static void drop_savepoints(struct gw_session *session, size_t from)
{
    while (session->nsavepoints > from)
        free(session->savepoint[--session->nsavepoints].name);
    if (from == 0) {
        free(session->savepoint);
        session->savepoint = NULL;
    }
}

static void ended(struct gw_session *session)
{
    session->txn = NULL;
    session->block = GW_BLOCK_NONE;
    session->give_up_at = session->deadline = session->pause = 0;
    drop_savepoints(session, 0);
    gw_drop_portals(session);
}

void gw_rollback(struct gw_session *session)
{
    if (session->txn != NULL)
        pn_txn_abort(session->txn);
    gw_settings_rollback(session->settings, 1);
    ended(session);
}

void gw_fail_transaction(struct gw_session *session)
{
    if (session->block == GW_BLOCK_NONE)
        gw_rollback(session);
    else
        session->block = GW_BLOCK_FAILED;
}

enum gw_result gw_need_transaction(struct gw_session *session)
{
    int rc = session->txn != NULL ? 0 : pn_txn_begin(session->conn, &session->txn);
    return rc < 0 ? gw_core_error(session, rc) : GW_DONE;
}

/* The core's notices, the warning about a queue that fills for instance, to the client. */
static void pass_notices(struct gw_session *session)
{
    char text[1024];
    while (pn_conn_notice(session->conn, text, sizeof text) > 0)
        gw_notice(session, "WARNING", "01000", text);
}

/* Whether a commit that another process holds up is given up; *error then. */
static bool gives_up(struct gw_session *session, int rc)
{
    int64_t full = (int64_t) session->shared->options.full_timeout_ns;
    int64_t timeout = gw_statement_timeout(session->settings);
    if (session->give_up_at == 0) {
        session->give_up_at = session->now + (rc == -PN_EROOMBUSY ? full : LOCK_PATIENCE_NS);
        session->deadline = timeout > 0 ? session->now + timeout : 0;
    }
    if (session->deadline > 0 && session->now >= session->deadline)
        gw_fail(&session->error, "57014", "canceling statement due to statement timeout");
    else if (session->now >= session->give_up_at)
        gw_core_error(session, rc);
    else
        return false;
    return true;
}

static void count_listens(struct gw_session *session)
{
    int n = pn_conn_listening(session->conn, NULL, 0);
    uint64_t listens = n > 0 ? (uint64_t) n : 0;
    gw_count(&session->shared->listens, listens - session->listens);
    session->listens = listens;
    session->listens_change = false;
}

enum gw_result gw_commit(struct gw_session *session)
{
    if (session->canceled && session->txn != NULL && session->give_up_at != 0) {
        session->canceled = false;
        gw_rollback(session);
        gw_fail(&session->error, "57014", "canceling statement due to user request");
        return GW_FAILED;
    }
    int rc = session->txn != NULL ? pn_txn_commit(session->txn) : 0;
    if (rc == -PN_ELOCKBUSY || rc == -PN_EROOMBUSY || rc == -EINTR) {
        if (!gives_up(session, rc)) {
            gw_try_again(session);
            return GW_WAITS;
        }
        gw_rollback(session);
        return GW_FAILED;
    }
    session->txn = NULL;
    if (rc < 0) {
        gw_core_error(session, rc);
        gw_rollback(session);
        return GW_FAILED;
    }
    gw_settings_commit(session->settings);
    ended(session);
    if (session->listens_change)
        count_listens(session);
    if ((rc & PN_NOTICE) != 0)
        pass_notices(session);
    return GW_DONE;
}

/* ---- statements ------------------------------------------------------------------------------ */

static enum gw_result only_in_block(struct gw_session *session, const char *what)
{
    gw_fail(&session->error, "25P01", "%s can only be used in transaction blocks", what);
    return GW_FAILED;
}

static enum gw_result begin(struct gw_session *session, const struct gw_statement *statement)
{
    if (session->block == GW_BLOCK_OPEN)
        gw_notice(session, "WARNING", "25001", "there is already a transaction in progress");
    if (gw_need_transaction(session) != GW_DONE)
        return GW_FAILED;
    for (const struct gw_assignment *mode = statement->settings; mode != NULL; mode = mode->next)
        if (!gw_setting_set(session->settings, mode->name, mode->value, true, gw_level(session),
                            &session->error))
            return GW_FAILED;
    session->block = GW_BLOCK_OPEN;
    return GW_DONE;
}

/* COMMIT or ROLLBACK AND CHAIN. */
static enum gw_result chain(struct gw_session *session)
{
    if (gw_need_transaction(session) != GW_DONE)
        return GW_FAILED;
    session->block = GW_BLOCK_OPEN;
    return GW_DONE;
}

static enum gw_result end_block(struct gw_session *session, const struct gw_statement *statement)
{
    bool commits = statement->kind == GW_COMMIT && session->block != GW_BLOCK_FAILED;
    if (session->block == GW_BLOCK_NONE && statement->chain)
        return only_in_block(session, statement->kind == GW_COMMIT ? "COMMIT AND CHAIN"
                                                                   : "ROLLBACK AND CHAIN");
    bool outside = session->block == GW_BLOCK_NONE && session->give_up_at == 0;
    if (commits) {
        enum gw_result result = gw_commit(session);
        if (outside && result != GW_FAILED)
            gw_notice(session, "WARNING", "25P01", "there is no transaction in progress");
        if (result != GW_DONE)
            return result;
    } else {
        if (outside)
            gw_notice(session, "WARNING", "25P01", "there is no transaction in progress");
        gw_rollback(session);
    }
    return statement->chain ? chain(session) : GW_DONE;
}

static enum gw_result savepoint(struct gw_session *session, const struct gw_statement *statement)
{
    if (session->block == GW_BLOCK_NONE)
        return only_in_block(session, "SAVEPOINT");
    size_t n = session->nsavepoints + 1;
    struct gw_savepoint *grown = realloc(session->savepoint, n * sizeof *grown);
    char *name = strdup(statement->name);
    if (grown != NULL)
        session->savepoint = grown;
    int level = grown != NULL && name != NULL ? pn_txn_savepoint(session->txn) : -ENOMEM;
    if (level < 0) {
        free(name);
        return gw_core_error(session, level);
    }
    session->savepoint[session->nsavepoints++] = (struct gw_savepoint) {name, level};
    return GW_DONE;
}

/* The newest of this name; -1 and *error: there is none. */
static int64_t find_savepoint(struct gw_session *session, const char *name)
{
    for (size_t i = session->nsavepoints; i > 0; i--)
        if (strcmp(session->savepoint[i - 1].name, name) == 0)
            return (int64_t) i - 1;
    gw_fail(&session->error, "3B001", "savepoint \"%s\" does not exist", name);
    return -1;
}

static enum gw_result release(struct gw_session *session, const struct gw_statement *statement)
{
    if (session->block == GW_BLOCK_NONE)
        return only_in_block(session, "RELEASE SAVEPOINT");
    int64_t at = find_savepoint(session, statement->name);
    if (at < 0)
        return GW_FAILED;
    int rc = pn_txn_release(session->txn, session->savepoint[at].level);
    if (rc < 0)
        return gw_core_error(session, rc);
    gw_settings_release(session->settings, (uint32_t) at + 2);
    drop_savepoints(session, (size_t) at);
    return GW_DONE;
}

static enum gw_result rollback_to(struct gw_session *session, const struct gw_statement *statement)
{
    if (session->block == GW_BLOCK_NONE)
        return only_in_block(session, "ROLLBACK TO SAVEPOINT");
    int64_t at = find_savepoint(session, statement->name);
    if (at < 0)
        return GW_FAILED;
    struct gw_savepoint *to = &session->savepoint[at];
    int rc = pn_txn_rollback_to(session->txn, to->level);
    int level = rc < 0 ? rc : pn_txn_savepoint(session->txn); /* it stays */
    if (level < 0)
        return gw_core_error(session, level);
    gw_settings_rollback(session->settings, (uint32_t) at + 2);
    drop_savepoints(session, (size_t) at + 1);
    to->level = level;
    session->block = GW_BLOCK_OPEN;
    return GW_DONE;
}

bool gw_ends_block(const struct gw_statement *statement)
{
    return statement->kind == GW_COMMIT || statement->kind == GW_ROLLBACK ||
           statement->kind == GW_ROLLBACK_TO;
}

enum gw_result gw_run_block_statement(struct gw_session *session,
                                      const struct gw_statement *statement)
{
    switch (statement->kind) {
    case GW_BEGIN:
        return begin(session, statement);
    case GW_SAVEPOINT:
        return savepoint(session, statement);
    case GW_RELEASE:
        return release(session, statement);
    case GW_ROLLBACK_TO:
        return rollback_to(session, statement);
    default:
        return end_block(session, statement);
    }
}
