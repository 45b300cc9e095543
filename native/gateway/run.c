/* run.c - statements: what each of them does, and the rows that it returns. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analyse.h"
#include "evaluate.h"
#include "work.h"

enum { MAX_SERIES = 1000000, CHANNEL_MAX = 63 };
enum { ROW_WORK = 64, ARENA_KEPT = 8192, MAX_WORK = 1 << 27 };

static enum gw_result result_of(bool done)
{
    return done ? GW_DONE : GW_FAILED;
}

/* ---- functions of the session ---------------------------------------------------------------- */

static bool text_result(struct gw_value *out, const char *text)
{
    *out = gw_text_value(text, strlen(text));
    return true;
}

static bool call_notify(struct gw_session *session, const struct gw_value *args,
                        struct gw_value *out, struct gw_error *error)
{
    if (args[0].null || args[0].len == 0)
        return gw_fail(error, "22023", "channel name cannot be empty");
    if (args[0].len > CHANNEL_MAX)
        return gw_fail(error, "22023", "channel name too long");
    if (gw_need_transaction(session) != GW_DONE)
        return false;
    size_t len = args[1].null ? 0 : args[1].len;
    int rc = pn_txn_notify(session->txn, args[0].text, args[0].len, args[1].text, len);
    if (rc < 0)
        return gw_core_error(session, rc) == GW_DONE;
    gw_count(&session->shared->received, 1);
    *out = gw_text_value("", 0);
    return true;
}

static bool unknown_setting(struct gw_error *error, const char *name)
{
    return gw_fail(error, "42704", "unrecognized configuration parameter \"%s\"", name);
}

static bool call_current_setting(struct gw_session *session, const struct gw_value *args,
                                 size_t nargs, struct gw_value *out, struct gw_error *error)
{
    const char *value = gw_setting(session->settings, args[0].text);
    bool missing_ok = nargs > 1 && args[1].whole != 0;
    if (value == NULL && !missing_ok)
        return unknown_setting(error, args[0].text);
    if (value == NULL) {
        *out = (struct gw_value) {.type = GW_TEXT, .null = true};
        return true;
    }
    char *copy = gw_copy(&session->arena, value, strlen(value)); /* it may be set in this row */
    return copy != NULL ? text_result(out, copy) : gw_fail(error, "53200", "out of memory");
}

static bool call_set_config(struct gw_session *session, const struct gw_value *args,
                            struct gw_value *out, struct gw_error *error)
{
    if (args[0].null)
        return gw_fail(error, "22004", "SET requires parameter name");
    const char *value = args[1].null ? NULL : args[1].text;
    bool local = !args[2].null && args[2].whole != 0;
    if (!gw_setting_set(session->settings, args[0].text, value, local, gw_level(session), error))
        return false;
    const char *now = gw_setting(session->settings, args[0].text);
    char *copy = gw_copy(&session->arena, now, strlen(now));
    return copy != NULL ? text_result(out, copy) : gw_fail(error, "53200", "out of memory");
}

static bool call_usage(struct gw_session *session, struct gw_value *out)
{
    *out = (struct gw_value) {.type = GW_FLOAT8};
    struct gw_shared *shared = session->shared;
    int rc = pn_queue_usage(shared->engine, &out->real);
    if (rc >= 0)
        shared->usage = out->real;
    else if (rc == -PN_ELOCKBUSY || rc == -EINTR) /* a figure of a moment ago will do */
        out->real = shared->usage;
    else
        return gw_core_error(session, rc) == GW_DONE;
    return true;
}

static bool call_signal(struct gw_session *session, const struct gw_value *args, bool terminates,
                        struct gw_value *out, struct gw_error *error)
{
    struct gw_shared *shared = session->shared;
    enum gw_signaled done = GW_NO_CLIENT;
    if (args[0].whole > 0)
        done = shared->terminate(shared->server, session->peer.uid, (uint32_t) args[0].whole,
                                 terminates);
    if (done == GW_NOT_ALLOWED) {
        gw_fail(error, "42501",
                "must be a member of the role whose %s or member of pg_signal_backend",
                terminates ? "process is being terminated" : "query is being canceled");
        gw_hint(error,
                "A client may signal those of its own uid, %u; root and the segment's owner may "
                "signal all.",
                (unsigned) session->peer.uid);
        return false;
    }
    if (done == GW_NO_CLIENT) {
        char text[96];
        snprintf(text, sizeof text, "PID %lld is not a PostgreSQL server process",
                 (long long) args[0].whole);
        gw_notice(session, "WARNING", "01000", text);
    }
    *out = gw_whole_value(GW_BOOL, done == GW_SIGNALED);
    return true;
}

static bool do_call(struct gw_env *env, const struct gw_function *function,
                    const struct gw_value *args, size_t nargs, struct gw_value *out,
                    struct gw_error *error)
{
    struct gw_session *session = env->session;
    switch (function->kind) {
    case GW_F_NOTIFY:
        return call_notify(session, args, out, error);
    case GW_F_CURRENT_SETTING:
        return call_current_setting(session, args, nargs, out, error);
    case GW_F_SET_CONFIG:
        return call_set_config(session, args, out, error);
    case GW_F_USAGE:
        return call_usage(session, out);
    case GW_F_BACKEND_PID:
        *out = gw_whole_value(GW_INT4, session->pid);
        return true;
    case GW_F_CANCEL:
    case GW_F_TERMINATE:
        return call_signal(session, args, function->kind == GW_F_TERMINATE, out, error);
    case GW_F_IN_RECOVERY:
    case GW_F_IS_BLOCKED:
        *out = gw_whole_value(GW_BOOL, false);
        return true;
    case GW_F_DATABASE:
        return text_result(out, session->database);
    case GW_F_ENCODING:
        return text_result(out, "UTF8");
    case GW_F_SCHEMA:
        return text_result(out, "public");
    case GW_F_USER:
        return text_result(out, session->user);
    case GW_F_VERSION:
        return text_result(out, session->shared->version);
    default: /* pg_sleep() has slept already, and there are no advisory locks */
        return text_result(out, "");
    }
}

static bool call_session(struct gw_env *env, const struct gw_function *function,
                         const struct gw_value *args, size_t nargs, struct gw_value *out,
                         struct gw_error *error)
{
    struct gw_session *session = env->session;
    bool done = do_call(env, function, args, nargs, out, error);
    session->failed_late = !done;
    return done;
}

/* ---- rows ------------------------------------------------------------------------------------ */

struct row_sink {
    struct gw_session *session;
    struct gw_statement *statement;
    const struct gw_portal *portal;
    struct gw_buffer *rows;
    struct gw_env env;
    size_t n;
};

static bool is_binary(const struct gw_portal *portal, size_t column)
{
    if (portal == NULL || portal->nformats == 0)
        return false;
    return portal->format[portal->nformats == 1 ? 0 : column] == 1;
}

/* One client keeps the thread for some hundredths of a second at the most. */
static bool may_go_on(struct gw_session *session)
{
    size_t used = session->arena.bytes > ARENA_KEPT ? session->arena.bytes : 0;
    session->work += ROW_WORK + used;
    return session->work <= MAX_WORK ||
           gw_fail(&session->error, "54000", "a query does more than a gateway does for one");
}

/* All of it is evaluated before it is written: a notice on the way is a message of its own. */
static bool put_row(struct row_sink *sink)
{
    struct gw_error *error = &sink->session->error;
    struct gw_arena *arena = &sink->session->arena;
    size_t n = sink->statement->nitems, column = 0;
    struct gw_value *value = gw_alloc(arena, (n + 1) * sizeof *value);
    if (value == NULL)
        return gw_fail(error, "53200", "out of memory");
    for (struct gw_item *item = sink->statement->items; item != NULL; item = item->next, column++)
        if (!gw_evaluate(&sink->env, item->value, &value[column], error) ||
            !gw_convert(&sink->env, &value[column], item->type, error))
            return false;
    size_t message = gw_begin(sink->rows, 'D');
    gw_put16(sink->rows, (uint16_t) n);
    for (column = 0; column < n; column++)
        gw_put_value(sink->rows, &value[column], is_binary(sink->portal, column));
    gw_end(sink->rows, message);
    sink->n++;
    bool may = may_go_on(sink->session);
    gw_arena_reset(arena);
    if (!may)
        return false;
    return gw_buffer_size(sink->rows) <= GW_RESULT_MAX ||
           gw_fail(error, "54000", "the result is larger than %d bytes", GW_RESULT_MAX);
}

/* A row of an aggregate: its arguments are evaluated, and counted unless they are NULL. */
static bool count_row(struct row_sink *sink, int64_t *counts)
{
    struct gw_error *error = &sink->session->error;
    for (struct gw_item *item = sink->statement->items; item != NULL; item = item->next) {
        struct gw_value value = {.null = false};
        if (!item->value->star && !gw_evaluate(&sink->env, item->value->args[0], &value, error))
            return false;
        *counts++ += !value.null;
    }
    bool may = may_go_on(sink->session);
    gw_arena_reset(&sink->session->arena);
    return may;
}

static void put_counts(struct row_sink *sink, const int64_t *counts)
{
    size_t message = gw_begin(sink->rows, 'D');
    gw_put16(sink->rows, (uint16_t) sink->statement->nitems);
    for (size_t i = 0; i < sink->statement->nitems; i++) {
        struct gw_value value = gw_whole_value(GW_INT8, counts[i]);
        gw_put_value(sink->rows, &value, is_binary(sink->portal, i));
    }
    gw_end(sink->rows, message);
    sink->n++;
}

static bool take_row(struct row_sink *sink, int64_t *counts)
{
    return counts != NULL ? count_row(sink, counts) : put_row(sink);
}

static bool series_rows(struct row_sink *sink, int64_t *counts)
{
    struct gw_error *error = &sink->session->error;
    const struct gw_statement *statement = sink->statement;
    struct gw_value first, last;
    uint32_t type =
        statement->first->type == GW_INT8 || statement->last->type == GW_INT8 ? GW_INT8 : GW_INT4;
    if (!gw_evaluate(&sink->env, statement->first, &first, error) ||
        !gw_convert(&sink->env, &first, type, error) ||
        !gw_evaluate(&sink->env, statement->last, &last, error) ||
        !gw_convert(&sink->env, &last, type, error))
        return false;
    if (first.null || last.null || first.whole > last.whole)
        return true;
    if ((uint64_t) last.whole - (uint64_t) first.whole >= MAX_SERIES)
        return gw_fail(error, "54000", "a series has at most %d rows", MAX_SERIES);
    for (int64_t i = first.whole;; i++) {
        sink->env.column = gw_whole_value(type, i);
        if (!take_row(sink, counts))
            return false;
        if (i == last.whole)
            return true;
    }
}

static bool listening_rows(struct row_sink *sink, int64_t *counts)
{
    struct gw_session *session = sink->session;
    int64_t size = pn_conn_listening_names(session->conn, NULL, 0);
    char *names = size > 0 ? malloc((size_t) size) : NULL;
    if (size > 0 && names == NULL)
        return gw_fail(&session->error, "53200", "out of memory");
    if (size > 0) /* no other thread listens for this slot */
        size = pn_conn_listening_names(session->conn, names, (size_t) size);
    bool done = size >= 0 || gw_core_error(session, (int) size) == GW_DONE;
    for (int64_t at = 0; done && at < size;) {
        size_t len = strlen(names + at);
        sink->env.column = gw_text_value(names + at, len);
        done = take_row(sink, counts);
        at += (int64_t) len + 1;
    }
    free(names);
    return done;
}

static bool rows_of(struct row_sink *sink, int64_t *counts)
{
    switch (sink->statement->from) {
    case GW_FROM_SERIES:
        return series_rows(sink, counts);
    case GW_FROM_LISTENING:
        return listening_rows(sink, counts);
    case GW_FROM_CATALOGUE:
        return true;
    case GW_FROM_NOTHING:
        break;
    }
    return take_row(sink, counts);
}

/* ---- pg_sleep() ------------------------------------------------------------------------------ */

/* How long a SELECT sleeps, in ns, before it is evaluated; < 0: *error. */
static int64_t sleep_of(struct row_sink *sink)
{
    double seconds = 0;
    if (sink->statement->from != GW_FROM_NOTHING)
        return 0;
    for (struct gw_item *item = sink->statement->items; item != NULL; item = item->next) {
        const struct gw_node *node = item->value;
        struct gw_value value;
        if (node->function == NULL || node->function->kind != GW_F_SLEEP)
            continue;
        if (!gw_evaluate(&sink->env, node->args[0], &value, &sink->session->error) ||
            !gw_convert(&sink->env, &value, GW_FLOAT8, &sink->session->error))
            return -1;
        if (!value.null && value.real > 0)
            seconds += value.real;
    }
    return seconds < 1e9 ? (int64_t) (seconds * 1e9) : (int64_t) 1e18;
}

/* GW_DONE: it has slept enough. */
static enum gw_result sleep_before(struct gw_session *session, struct row_sink *sink)
{
    if (session->canceled || session->slept) {
        bool timeout = session->deadline > 0 && session->now >= session->deadline;
        if (!session->canceled && session->now < session->wake_at)
            return GW_WAITS;
        session->wake_at = 0;
        session->deadline = 0;
        session->slept = false;
        if (session->canceled)
            gw_fail(&session->error, "57014", "canceling statement due to user request");
        else if (timeout)
            gw_fail(&session->error, "57014", "canceling statement due to statement timeout");
        bool done = !session->canceled && !timeout;
        session->canceled = false;
        return result_of(done);
    }
    int64_t duration = sleep_of(sink);
    int64_t timeout = duration > 0 ? gw_statement_timeout(session->settings) : 0;
    if (duration <= 0)
        return result_of(duration == 0);
    session->deadline = timeout > 0 && timeout < duration ? session->now + timeout : 0;
    session->wake_at = session->now + (session->deadline > 0 ? timeout : duration);
    session->slept = true;
    return GW_WAITS;
}

/* ---- SELECT, SHOW ---------------------------------------------------------------------------- */

bool gw_returns_rows(const struct gw_statement *statement)
{
    return statement->kind == GW_SELECT || statement->kind == GW_SHOW ||
           statement->kind == GW_SHOW_ALL;
}

static void describe_column(struct gw_buffer *out, const char *label, uint32_t type, bool binary)
{
    uint32_t shown = type == GW_UNKNOWN ? GW_TEXT : type;
    gw_put_text(out, label, strlen(label));
    gw_put32(out, 0); /* no table */
    gw_put16(out, 0);
    gw_put32(out, shown);
    gw_put16(out, (uint16_t) gw_type_length(shown));
    gw_put32(out, UINT32_MAX); /* no modifier */
    gw_put16(out, binary ? 1 : 0);
}

void gw_send_row_description(struct gw_session *session, const struct gw_statement *statement,
                             const struct gw_portal *portal)
{
    static const char *const of_all[] = {"name", "setting", "description"};
    struct gw_buffer *out = &session->out;
    size_t message = gw_begin(out, 'T'), column = 0;
    if (statement->kind == GW_SHOW) {
        const char *name = gw_setting_name(session->settings, statement->name);
        gw_put16(out, 1);
        describe_column(out, name != NULL ? name : statement->name, GW_TEXT, is_binary(portal, 0));
    } else if (statement->kind == GW_SHOW_ALL) {
        gw_put16(out, 3);
        for (; column < 3; column++)
            describe_column(out, of_all[column], GW_TEXT, is_binary(portal, column));
    } else {
        gw_put16(out, (uint16_t) statement->nitems);
        for (struct gw_item *item = statement->items; item != NULL; item = item->next)
            describe_column(out, item->label, item->type, is_binary(portal, column++));
    }
    gw_end(out, message);
}

static void put_texts(struct gw_buffer *rows, const char *const *texts, size_t n)
{
    size_t message = gw_begin(rows, 'D');
    gw_put16(rows, (uint16_t) n);
    for (size_t i = 0; i < n; i++) {
        gw_put32(rows, (uint32_t) strlen(texts[i]));
        gw_put(rows, texts[i], strlen(texts[i]));
    }
    gw_end(rows, message);
}

static enum gw_result run_show(struct gw_session *session, const struct gw_statement *statement,
                               struct gw_buffer *rows, size_t *nrows)
{
    const char *texts[3] = {NULL, NULL, ""};
    if (statement->kind == GW_SHOW_ALL) {
        while (gw_setting_at(session->settings, *nrows, &texts[0], &texts[1])) {
            put_texts(rows, texts, 3);
            ++*nrows;
        }
        return GW_DONE;
    }
    texts[0] = gw_setting(session->settings, statement->name);
    if (texts[0] == NULL)
        return result_of(unknown_setting(&session->error, statement->name));
    put_texts(rows, texts, 1);
    *nrows = 1;
    return GW_DONE;
}

static enum gw_result run_select(struct gw_session *session, struct gw_statement *statement,
                                 const struct gw_portal *portal, struct gw_buffer *rows,
                                 size_t *nrows)
{
    struct row_sink sink = {session, statement, portal, rows, {0}, 0};
    const struct gw_value *args = portal != NULL ? portal->args : NULL;
    const struct gw_script *script = portal != NULL ? portal->script : session->script;
    sink.env = (struct gw_env) {&session->arena, script, args, {0}, call_session, session};
    if (portal != NULL && portal->nformats > 1 && portal->nformats != statement->nitems) {
        gw_fail(&session->error, "08P01",
                "bind message has %zu result formats but query has %zu columns", portal->nformats,
                statement->nitems);
        return GW_FAILED;
    }
    enum gw_result slept = sleep_before(session, &sink);
    if (slept != GW_DONE)
        return slept;
    int64_t *counts = NULL;
    if (statement->aggregate && statement->from != GW_FROM_CATALOGUE) {
        counts = calloc(statement->nitems, sizeof *counts);
        if (counts == NULL)
            return result_of(gw_fail(&session->error, "53200", "out of memory"));
    }
    bool done = rows_of(&sink, counts);
    if (done && counts != NULL)
        put_counts(&sink, counts);
    free(counts);
    *nrows = sink.n;
    return result_of(done);
}

static bool is_constant(const struct gw_node *node)
{
    if (node->kind == GW_COLUMN ||
        (node->function != NULL &&
         (node->function->kind >= GW_F_LISTENING || node->function->kind == GW_F_COUNT)))
        return false;
    for (size_t i = 0; i < node->nargs; i++)
        if (!is_constant(node->args[i]))
            return false;
    return true;
}

bool gw_fold(struct gw_session *session, const struct gw_portal *portal)
{
    const struct gw_statement *statement = portal->script->statement;
    bool done = true;
    if (portal->script->n == 0 || statement->kind != GW_SELECT)
        return true;
    struct gw_env env = {&session->arena, portal->script, portal->args, {0}, call_session, session};
    for (struct gw_item *item = statement->items; done && item != NULL; item = item->next) {
        struct gw_value value;
        if (item->value != NULL && is_constant(item->value))
            done = gw_evaluate(&env, item->value, &value, &session->error);
    }
    gw_arena_reset(&session->arena);
    return done;
}

/* ---- everything else ------------------------------------------------------------------------- */

static enum gw_result run_notification(struct gw_session *session,
                                       const struct gw_statement *statement)
{
    int rc;
    if (gw_need_transaction(session) != GW_DONE)
        return GW_FAILED;
    session->listens_change = session->listens_change || statement->kind != GW_NOTIFY;
    switch (statement->kind) {
    case GW_LISTEN:
        rc = pn_txn_listen(session->txn, statement->name, statement->name_len);
        break;
    case GW_UNLISTEN:
        rc = pn_txn_unlisten(session->txn, statement->name, statement->name_len);
        break;
    case GW_UNLISTEN_ALL:
        rc = pn_txn_unlisten_all(session->txn);
        break;
    default:
        rc = pn_txn_notify(session->txn, statement->name, statement->name_len, statement->text,
                           statement->text_len);
        gw_count(&session->shared->received, rc >= 0);
    }
    return rc < 0 ? gw_core_error(session, rc) : GW_DONE;
}

static enum gw_result run_set(struct gw_session *session, const struct gw_statement *statement,
                              bool alone)
{
    for (const struct gw_assignment *a = statement->settings; a != NULL; a = a->next) {
        bool outside = a->local && session->block == GW_BLOCK_NONE && alone;
        if (outside)
            gw_notice(session, "WARNING", "25P01",
                      "SET LOCAL can only be used in transaction blocks");
        if (!gw_setting_set(session->settings, a->name, a->value, a->local, gw_level(session),
                            &session->error))
            return GW_FAILED;
    }
    return GW_DONE;
}

static enum gw_result run_discard_all(struct gw_session *session, bool alone)
{
    bool inside = session->block != GW_BLOCK_NONE || !alone;
    if (inside || session->pipelined) {
        gw_fail(&session->error, "25001", "DISCARD ALL cannot %s",
                inside ? "run inside a transaction block" : "be executed within a pipeline");
        return GW_FAILED;
    }
    if (gw_need_transaction(session) != GW_DONE)
        return GW_FAILED;
    session->listens_change = true;
    int rc = pn_txn_unlisten_all(session->txn);
    if (rc < 0)
        return gw_core_error(session, rc);
    gw_drop_prepared(session, NULL);
    return result_of(gw_settings_reset(session->settings, 1, &session->error));
}

static enum gw_result run_deallocate(struct gw_session *session,
                                     const struct gw_statement *statement)
{
    if (gw_drop_prepared(session, statement->name))
        return GW_DONE;
    gw_fail(&session->error, "26000", "prepared statement \"%s\" does not exist", statement->name);
    return GW_FAILED;
}

static enum gw_result run_plain(struct gw_session *session, const struct gw_statement *statement,
                                bool alone)
{
    switch (statement->kind) {
    case GW_LISTEN:
    case GW_UNLISTEN:
    case GW_UNLISTEN_ALL:
    case GW_NOTIFY:
        return run_notification(session, statement);
    case GW_SET:
        return run_set(session, statement, alone);
    case GW_RESET_ALL:
        return result_of(gw_settings_reset(session->settings, gw_level(session), &session->error));
    case GW_DISCARD_ALL:
        return run_discard_all(session, alone);
    case GW_DEALLOCATE:
        return run_deallocate(session, statement);
    case GW_DEALLOCATE_ALL:
        gw_drop_prepared(session, NULL);
        return GW_DONE;
    case GW_NOTHING_TO_DO:
        return GW_DONE;
    case GW_UNSUPPORTED:
        session->error = *statement->failure;
        return GW_FAILED;
    default:
        return gw_run_block_statement(session, statement);
    }
}

enum gw_result gw_run_statement(struct gw_session *session, struct gw_statement *statement,
                                const struct gw_portal *portal, bool alone, struct gw_buffer *rows,
                                size_t *nrows, char tag[GW_TAG_SIZE])
{
    enum gw_result result;
    bool failed_before = session->block == GW_BLOCK_FAILED;
    *nrows = 0;
    session->failed_late = false;
    tag[0] = '\0';
    if (failed_before && !gw_ends_block(statement)) {
        gw_fail(&session->error, "25P02",
                "current transaction is aborted, commands ignored until end of transaction block");
        return GW_FAILED;
    }
    if (statement->kind == GW_SELECT)
        result = run_select(session, statement, portal, rows, nrows);
    else if (gw_returns_rows(statement))
        result = run_show(session, statement, rows, nrows);
    else
        result = run_plain(session, statement, alone);
    if (result == GW_WAITS)
        return result;
    gw_arena_reset(&session->arena);
    bool undone = statement->kind == GW_COMMIT && failed_before;
    if (result == GW_DONE && statement->kind != GW_SELECT)
        snprintf(tag, GW_TAG_SIZE, "%s", undone ? "ROLLBACK" : statement->tag);
    return result;
}
