/* extended.c - the extended protocol: prepared statements, portals, and batches of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analyse.h"
#include "parse.h"
#include "work.h"

enum { MAX_PREPARED = 10000, MAX_PORTALS = 1000 };

/* ---- prepared statements --------------------------------------------------------------------- */

static bool no_statement(struct gw_error *error, const char *name)
{
    if (name[0] == '\0')
        return gw_fail(error, "26000", "unnamed prepared statement does not exist");
    return gw_fail(error, "26000", "prepared statement \"%s\" does not exist", name);
}

static bool aborted(struct gw_error *error)
{
    return gw_fail(error, "25P02",
                   "current transaction is aborted, commands ignored until end of transaction "
                   "block");
}

/* In a failed block nothing but its end, or nothing at all, may be prepared. */
static bool allowed(struct gw_session *session, const struct gw_script *script)
{
    if (session->block != GW_BLOCK_FAILED)
        return true;
    return (script->n > 0 && gw_ends_block(&script->statement[0])) || aborted(&session->error);
}

/* What the client has prepared, and the rows that it has not fetched, are bounded in bytes. */
static bool holds_too_much(struct gw_session *session)
{
    size_t held = 0;
    for (struct gw_prepared *at = session->prepared; at != NULL; at = at->next)
        held += at->script->arena.bytes;
    for (struct gw_portal *at = session->portals; at != NULL; at = at->next)
        held += at->arena.bytes + at->rows.cap;
    if (held <= GW_HELD_MAX)
        return false;
    gw_fail(&session->error, "53400", "prepared statements and portals hold more than %d bytes",
            GW_HELD_MAX);
    return true;
}

static bool add_prepared(struct gw_session *session, const char *name, struct gw_script *script)
{
    struct gw_prepared *prepared = calloc(1, sizeof *prepared);
    char *copy = strdup(name);
    if (prepared == NULL || copy == NULL || session->nprepared == MAX_PREPARED) {
        free(prepared);
        free(copy);
        return gw_fail(&session->error, "53400", "too many prepared statements");
    }
    *prepared = (struct gw_prepared) {session->prepared, copy, gw_script_hold(script)};
    session->prepared = prepared;
    session->nprepared++;
    return true;
}

static bool prepare(struct gw_session *session, const char *name, struct gw_script *script)
{
    if (script->n > 1)
        return gw_fail(&session->error, "42601",
                       "cannot insert multiple commands into a prepared statement");
    if (script->n > 0 && !allowed(session, script))
        return false;
    if (script->n > 0 && !gw_analyse(script, &script->statement[0], &session->error)) {
        script->spoiled = true;
        return false;
    }
    if (name[0] == '\0')
        gw_drop_prepared(session, name);
    else if (gw_find_prepared(session, name) != NULL)
        return gw_fail(&session->error, "42P05", "prepared statement \"%s\" already exists", name);
    return !holds_too_much(session) && add_prepared(session, name, script);
}

static bool cut_message(struct gw_session *session)
{
    return gw_fail(&session->error, "08P01", "insufficient data left in message");
}

static bool handle_parse(struct gw_session *session, struct gw_reader *in)
{
    size_t len;
    const char *name = gw_get_text(in, &len);
    const char *text = gw_get_text(in, &len);
    size_t n = gw_get16(in);
    uint32_t *types = calloc(n + 1, sizeof *types);
    for (size_t i = 0; types != NULL && i < n; i++)
        types[i] = gw_get32(in);
    if (in->cut || types == NULL) {
        free(types);
        return cut_message(session);
    }
    struct gw_script *script = gw_script_of(session, text, len, true, types, n);
    free(types);
    if (script == NULL)
        return false;
    bool done = prepare(session, name, script);
    gw_script_let_go(script);
    if (done)
        gw_send_empty(&session->out, '1');
    return done;
}

/* ---- portals --------------------------------------------------------------------------------- */

static bool no_portal(struct gw_error *error, const char *name)
{
    return gw_fail(error, "34000", "portal \"%s\" does not exist", name);
}

/* What Bind says about its parameters: formats, then the values. */
struct parameters {
    uint16_t *format;
    size_t nformats, n;
};

static bool read_formats(struct gw_session *session, struct gw_arena *arena, struct gw_reader *in,
                         uint16_t **format, size_t *n)
{
    *n = gw_get16(in);
    *format = gw_alloc(arena, (*n + 1) * sizeof **format);
    if (*format == NULL)
        return gw_fail(&session->error, "53200", "out of memory");
    for (size_t i = 0; i < *n; i++) {
        (*format)[i] = gw_get16(in);
        if ((*format)[i] > 1 && !in->cut)
            return gw_fail(&session->error, "22023", "unsupported format code: %u", (*format)[i]);
    }
    return true;
}

static bool read_value(struct gw_session *session, struct gw_portal *portal, struct gw_reader *in,
                       const struct parameters *parameters, size_t i)
{
    uint32_t len = gw_get32(in);
    struct gw_value *value = &portal->args[i];
    struct gw_env env = {.arena = &portal->arena, .script = portal->script};
    uint32_t type = portal->script->types[i];
    bool binary =
        parameters->nformats > 0 && parameters->format[parameters->nformats == 1 ? 0 : i] == 1;
    if (len == UINT32_MAX) {
        *value = (struct gw_value) {.type = type, .null = true};
        return true;
    }
    const char *bytes = gw_get(in, len);
    if (bytes == NULL)
        return cut_message(session);
    return gw_decode(&env, type, binary, bytes, len, value, &session->error);
}

static bool read_parameters(struct gw_session *session, struct gw_portal *portal,
                            const char *statement_name, struct gw_reader *in)
{
    struct parameters parameters = {0};
    if (!read_formats(session, &portal->arena, in, &parameters.format, &parameters.nformats))
        return false;
    parameters.n = gw_get16(in);
    if (parameters.nformats > 1 && parameters.nformats != parameters.n)
        return gw_fail(&session->error, "08P01",
                       "bind message has %zu parameter formats but %zu parameters",
                       parameters.nformats, parameters.n);
    if (parameters.n != portal->script->ntypes)
        return gw_fail(&session->error, "08P01",
                       "bind message supplies %zu parameters, but prepared statement \"%s\" "
                       "requires %zu",
                       parameters.n, statement_name, portal->script->ntypes);
    portal->args = gw_alloc(&portal->arena, (parameters.n + 1) * sizeof *portal->args);
    if (portal->args == NULL)
        return gw_fail(&session->error, "53200", "out of memory");
    for (size_t i = 0; i < parameters.n; i++)
        if (!read_value(session, portal, in, &parameters, i))
            return false;
    return read_formats(session, &portal->arena, in, &portal->format, &portal->nformats) &&
           (!in->cut || cut_message(session));
}

static struct gw_portal *new_portal(struct gw_session *session, const char *name,
                                    struct gw_script *script)
{
    struct gw_portal *portal = calloc(1, sizeof *portal);
    char *copy = strdup(name);
    if (portal == NULL || copy == NULL || session->nportals == MAX_PORTALS) {
        free(portal);
        free(copy);
        gw_fail(&session->error, "53400", "too many portals");
        return NULL;
    }
    portal->name = copy;
    portal->script = gw_script_hold(script);
    return portal;
}

static bool handle_bind(struct gw_session *session, struct gw_reader *in)
{
    size_t len;
    const char *name = gw_get_text(in, &len);
    const char *statement_name = gw_get_text(in, &len);
    if (in->cut)
        return cut_message(session);
    struct gw_prepared *prepared = gw_find_prepared(session, statement_name);
    if (prepared == NULL)
        return no_statement(&session->error, statement_name);
    if (!allowed(session, prepared->script))
        return false;
    if (name[0] == '\0')
        gw_drop_portal(session, name);
    else if (gw_find_portal(session, name) != NULL)
        return gw_fail(&session->error, "42P03", "cursor \"%s\" already exists", name);
    if (holds_too_much(session))
        return false;
    struct gw_portal *portal = new_portal(session, name, prepared->script);
    if (portal == NULL)
        return false;
    if (!read_parameters(session, portal, statement_name, in) || !gw_fold(session, portal)) {
        gw_free_portal(portal);
        return false;
    }
    portal->next = session->portals;
    session->portals = portal;
    session->nportals++;
    gw_send_empty(&session->out, '2');
    return true;
}

/* ---- Describe, Close ------------------------------------------------------------------------- */

static void describe(struct gw_session *session, const struct gw_script *script,
                     const struct gw_portal *portal)
{
    if (script->n > 0 && gw_returns_rows(&script->statement[0]))
        gw_send_row_description(session, &script->statement[0], portal);
    else
        gw_send_empty(&session->out, 'n');
}

static bool describe_statement(struct gw_session *session, const char *name)
{
    struct gw_prepared *prepared = gw_find_prepared(session, name);
    if (prepared == NULL)
        return no_statement(&session->error, name);
    const struct gw_script *script = prepared->script;
    if (session->block == GW_BLOCK_FAILED && script->n > 0 &&
        gw_returns_rows(&script->statement[0]))
        return aborted(&session->error);
    size_t message = gw_begin(&session->out, 't');
    gw_put16(&session->out, (uint16_t) script->ntypes);
    for (size_t i = 0; i < script->ntypes; i++)
        gw_put32(&session->out, script->types[i]);
    gw_end(&session->out, message);
    describe(session, script, NULL);
    return true;
}

static bool handle_describe(struct gw_session *session, struct gw_reader *in)
{
    size_t len;
    uint8_t what = gw_get8(in);
    const char *name = gw_get_text(in, &len);
    if (in->cut)
        return cut_message(session);
    if (what == 'S')
        return describe_statement(session, name);
    if (what != 'P')
        return gw_fail(&session->error, "08P01", "invalid DESCRIBE message subtype %u", what);
    struct gw_portal *portal = gw_find_portal(session, name);
    if (portal == NULL)
        return no_portal(&session->error, name);
    describe(session, portal->script, portal);
    return true;
}

static bool handle_close(struct gw_session *session, struct gw_reader *in)
{
    size_t len;
    uint8_t what = gw_get8(in);
    const char *name = gw_get_text(in, &len);
    if (in->cut)
        return cut_message(session);
    if (what == 'S')
        gw_drop_prepared(session, name);
    else if (what == 'P')
        gw_drop_portal(session, name);
    else
        return gw_fail(&session->error, "08P01", "invalid CLOSE message subtype %u", what);
    gw_send_empty(&session->out, '3');
    return true;
}

/* ---- Execute --------------------------------------------------------------------------------- */

static bool has_rows(const struct gw_portal *portal)
{
    return gw_buffer_size(&portal->rows) > 0;
}

/* The rows that the client wants, and what ends them. */
static void send_rows(struct gw_session *session, struct gw_portal *portal, const char *tag)
{
    uint32_t sent = 0;
    char text[GW_TAG_SIZE];
    while (has_rows(portal) && (session->max_rows == 0 || sent < session->max_rows)) {
        const char *row = portal->rows.data + portal->rows.begin;
        size_t len = 1 + gw_peek32(row + 1);
        gw_put(&session->out, row, len);
        gw_buffer_sent(&portal->rows, len);
        sent++;
    }
    if (session->max_rows > 0 && sent == session->max_rows) {
        gw_send_empty(&session->out, 's');
        return;
    }
    snprintf(text, sizeof text, "SELECT %u", sent);
    gw_send_complete(&session->out, tag[0] != '\0' ? tag : text);
}

static bool execute(struct gw_session *session, struct gw_portal *portal, bool *waits)
{
    struct gw_statement *statement = &portal->script->statement[0];
    char tag[GW_TAG_SIZE] = "";
    size_t nrows;
    *waits = false;
    if (!portal->ran) {
        enum gw_result result =
            gw_run_statement(session, statement, portal, true, &portal->rows, &nrows, tag);
        *waits = result == GW_WAITS;
        if (result != GW_DONE)
            return false;
        portal->ran = true;
    } else if (portal->finished) {
        return gw_fail(&session->error, "55000", "portal \"%s\" cannot be run", portal->name);
    }
    if (portal->rows.failed)
        return gw_fail(&session->error, "53200", "out of memory");
    portal->finished = !gw_returns_rows(statement);
    if (portal->finished)
        gw_send_complete(&session->out, tag);
    else
        send_rows(session, portal, statement->kind == GW_SELECT ? "" : "SHOW");
    return true;
}

static void fail_batch(struct gw_session *session)
{
    gw_report(session);
    gw_fail_transaction(session);
    session->skip_to_sync = true;
}

void gw_go_on_executing(struct gw_session *session)
{
    bool waits;
    struct gw_portal *portal = session->portal;
    bool done = execute(session, portal, &waits);
    if (waits)
        return;
    session->activity = GW_IDLE;
    enum gw_statement_kind kind = portal->script->statement[0].kind;
    session->pipelined = kind != GW_COMMIT && kind != GW_ROLLBACK && kind != GW_DISCARD_ALL;
    if (!done) {
        gw_buffer_free(&portal->rows);
        portal->ran = portal->finished = true;
        fail_batch(session);
    }
    session->portal = NULL;
    if (portal->doomed)
        gw_drop_portal(session, portal->name);
}

static bool handle_execute(struct gw_session *session, struct gw_reader *in)
{
    size_t len;
    const char *name = gw_get_text(in, &len);
    session->max_rows = gw_get32(in);
    if (in->cut)
        return cut_message(session);
    if (session->max_rows > INT32_MAX) /* as many as there are */
        session->max_rows = 0;
    struct gw_portal *portal = gw_find_portal(session, name);
    if (portal == NULL)
        return no_portal(&session->error, name);
    if (portal->script->n == 0) {
        gw_send_empty(&session->out, 'I');
        return true;
    }
    session->portal = portal;
    session->work = 0;
    session->activity = GW_EXECUTE;
    gw_go_on_executing(session);
    return true;
}

void gw_handle_extended(struct gw_session *session, char type, struct gw_reader *in)
{
    bool done = true;
    if (session->skip_to_sync)
        return;
    session->batch = true;
    switch (type) {
    case 'P':
        done = handle_parse(session, in);
        break;
    case 'B':
        done = handle_bind(session, in);
        break;
    case 'D':
        done = handle_describe(session, in);
        break;
    case 'E':
        done = handle_execute(session, in);
        break;
    case 'C':
        done = handle_close(session, in);
        break;
    default: /* Flush: everything is sent at once */
        break;
    }
    if (!done)
        fail_batch(session);
}
