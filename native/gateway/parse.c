/* parse.c - see parse.h. */
#include "parse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "select.h"
#include "terms.h"

enum { MAX_MODES = 64, MAX_VALUES = 64 };

typedef void parse_function(struct gw_parser *parser, struct gw_statement *statement);

static void take_name(struct gw_parser *parser, struct gw_statement *statement)
{
    const struct gw_token *token = gw_expect_name(parser);
    statement->name = token->text;
    statement->name_len = token->len;
}

static char *text_of(struct gw_parser *parser, const char *text, size_t len)
{
    char *copy = gw_copy(parser->source.arena, text, len);
    if (copy == NULL)
        gw_no_memory(&parser->source);
    return copy;
}

/* ---- LISTEN, UNLISTEN, NOTIFY ---------------------------------------------------------------- */

static void parse_listen(struct gw_parser *parser, struct gw_statement *statement)
{
    statement->kind = GW_LISTEN;
    statement->tag = "LISTEN";
    take_name(parser, statement);
}

static void parse_unlisten(struct gw_parser *parser, struct gw_statement *statement)
{
    statement->tag = "UNLISTEN";
    if (gw_accept(parser, "*")) {
        statement->kind = GW_UNLISTEN_ALL;
        return;
    }
    statement->kind = GW_UNLISTEN;
    take_name(parser, statement);
}

static void parse_notify(struct gw_parser *parser, struct gw_statement *statement)
{
    statement->kind = GW_NOTIFY;
    statement->tag = "NOTIFY";
    take_name(parser, statement);
    statement->text = "";
    if (!gw_accept(parser, ","))
        return;
    const struct gw_token *payload = gw_next(parser);
    if (payload->kind != GW_STRING)
        gw_unexpected(parser);
    statement->text = payload->text;
    statement->text_len = payload->len;
    parser->at++;
}

/* ---- transactions ---------------------------------------------------------------------------- */

static struct gw_assignment *assign(struct gw_parser *parser, struct gw_statement *statement,
                                    const char *name, const char *value, bool local)
{
    struct gw_assignment *assignment = gw_need(&parser->source, sizeof *assignment);
    struct gw_assignment **last = &statement->settings;
    size_t n = 0;
    for (; *last != NULL; last = &(*last)->next)
        if (++n == MAX_MODES)
            gw_unexpected(parser);
    *assignment = (struct gw_assignment) {NULL, name, value, local};
    *last = assignment;
    return assignment;
}

static const char *isolation_level(struct gw_parser *parser)
{
    if (gw_accept(parser, "serializable"))
        return "serializable";
    if (gw_accept(parser, "repeatable")) {
        gw_expect(parser, "read");
        return "repeatable read";
    }
    gw_expect(parser, "read");
    if (gw_accept(parser, "uncommitted"))
        return "read uncommitted";
    gw_expect(parser, "committed");
    return "read committed";
}

/* One mode of a transaction; false: none follows. */
static bool parse_mode(struct gw_parser *parser, struct gw_statement *statement,
                       const char *const names[3], bool local)
{
    if (gw_accept(parser, "isolation")) {
        gw_expect(parser, "level");
        assign(parser, statement, names[0], isolation_level(parser), local);
    } else if (gw_accept(parser, "read")) {
        bool only = gw_accept(parser, "only");
        if (!only)
            gw_expect(parser, "write");
        assign(parser, statement, names[1], only ? "on" : "off", local);
    } else if (gw_next_is(parser, "deferrable") || gw_next_is(parser, "not")) {
        bool no = gw_accept(parser, "not");
        gw_expect(parser, "deferrable");
        assign(parser, statement, names[2], no ? "off" : "on", local);
    } else {
        return false;
    }
    return true;
}

static const char *const of_transaction[] = {"transaction_isolation", "transaction_read_only",
                                             "transaction_deferrable"};
static const char *const of_session[] = {"default_transaction_isolation",
                                         "default_transaction_read_only",
                                         "default_transaction_deferrable"};

static void parse_modes(struct gw_parser *parser, struct gw_statement *statement,
                        const char *const names[3], bool local, bool needed)
{
    bool found = parse_mode(parser, statement, names, local);
    if (!found && needed)
        gw_unexpected(parser);
    while (found) {
        bool comma = gw_accept(parser, ",");
        found = parse_mode(parser, statement, names, local);
        if (comma && !found)
            gw_unexpected(parser);
    }
}

static bool skip_work(struct gw_parser *parser)
{
    return gw_accept(parser, "work") || gw_accept(parser, "transaction");
}

static void parse_begin(struct gw_parser *parser, struct gw_statement *statement)
{
    statement->kind = GW_BEGIN;
    statement->tag = "BEGIN";
    skip_work(parser);
    parse_modes(parser, statement, of_transaction, true, false);
}

static void parse_start(struct gw_parser *parser, struct gw_statement *statement)
{
    statement->kind = GW_BEGIN;
    statement->tag = "START TRANSACTION";
    gw_expect(parser, "transaction");
    parse_modes(parser, statement, of_transaction, true, false);
}

static void parse_chain(struct gw_parser *parser, struct gw_statement *statement)
{
    if (!gw_accept(parser, "and"))
        return;
    statement->chain = !gw_accept(parser, "no");
    gw_expect(parser, "chain");
}

static void parse_commit(struct gw_parser *parser, struct gw_statement *statement)
{
    statement->kind = GW_COMMIT;
    statement->tag = "COMMIT";
    if (gw_next_is(parser, "prepared"))
        gw_not_supported(parser, "COMMIT PREPARED");
    skip_work(parser);
    parse_chain(parser, statement);
}

static void parse_rollback(struct gw_parser *parser, struct gw_statement *statement)
{
    statement->kind = GW_ROLLBACK;
    statement->tag = "ROLLBACK";
    if (gw_next_is(parser, "prepared"))
        gw_not_supported(parser, "ROLLBACK PREPARED");
    skip_work(parser);
    if (gw_accept(parser, "to")) {
        statement->kind = GW_ROLLBACK_TO;
        gw_accept(parser, "savepoint");
        take_name(parser, statement);
        return;
    }
    parse_chain(parser, statement);
}

static void parse_savepoint(struct gw_parser *parser, struct gw_statement *statement)
{
    statement->kind = GW_SAVEPOINT;
    statement->tag = "SAVEPOINT";
    take_name(parser, statement);
}

static void parse_release(struct gw_parser *parser, struct gw_statement *statement)
{
    statement->kind = GW_RELEASE;
    statement->tag = "RELEASE";
    gw_accept(parser, "savepoint");
    take_name(parser, statement);
}

/* ---- settings -------------------------------------------------------------------------------- */

/* "a" or "a.b". */
static const char *setting_name(struct gw_parser *parser)
{
    const struct gw_token *token = gw_expect_name(parser);
    if (!gw_accept(parser, "."))
        return token->text;
    const struct gw_token *rest = gw_expect_name(parser);
    size_t size = token->len + rest->len + 2;
    char *name = gw_need(&parser->source, size);
    snprintf(name, size, "%s.%s", token->text, rest->text);
    return name;
}

/* A word, literal or number; as text. */
static const char *setting_value(struct gw_parser *parser)
{
    bool minus = gw_accept(parser, "-");
    if (!minus)
        gw_accept(parser, "+");
    const struct gw_token *token = gw_next(parser);
    bool number = token->kind == GW_INTEGER || token->kind == GW_DECIMAL;
    bool keyword =
        gw_next_is(parser, "true") || gw_next_is(parser, "false") || gw_next_is(parser, "on");
    if (token->kind == GW_END || (minus && !number) ||
        (token->kind == GW_WORD && !keyword && gw_is_reserved(token->text)) ||
        token->kind == GW_OPERATOR || token->kind == GW_PARAMETER || token->kind == GW_BITS)
        gw_unexpected(parser);
    parser->at++;
    if (!minus)
        return token->text;
    char *value = gw_need(&parser->source, token->len + 2);
    value[0] = '-';
    memcpy(value + 1, token->text, token->len);
    return value;
}

/* Several are one text with ", " between them. */
static const char *setting_values(struct gw_parser *parser)
{
    const char *value = setting_value(parser);
    for (int n = 1; gw_accept(parser, ","); n++) {
        if (n == MAX_VALUES)
            gw_unexpected(parser);
        const char *next = setting_value(parser);
        size_t size = strlen(value) + strlen(next) + 3;
        char *joined = gw_need(&parser->source, size);
        snprintf(joined, size, "%s, %s", value, next);
        value = joined;
    }
    return value;
}

static void parse_time_zone(struct gw_parser *parser, struct gw_statement *statement, bool local)
{
    gw_expect(parser, "zone");
    bool plain = gw_accept(parser, "local") || gw_accept(parser, "default");
    if (!plain && gw_next_is(parser, "interval"))
        gw_not_supported(parser, "a time zone as an interval");
    assign(parser, statement, "TimeZone", plain ? NULL : setting_value(parser), local);
}

/* SESSION AUTHORIZATION, SESSION CHARACTERISTICS, behind SET; false: neither. */
static bool parse_set_session(struct gw_parser *parser, struct gw_statement *statement)
{
    if (gw_accept(parser, "authorization")) {
        const char *name = gw_accept(parser, "default") ? NULL : setting_value(parser);
        assign(parser, statement, "session_authorization", name, false);
        return true;
    }
    if (!gw_accept(parser, "characteristics"))
        return false;
    gw_expect(parser, "as");
    gw_expect(parser, "transaction");
    parse_modes(parser, statement, of_session, false, true);
    return true;
}

static void parse_set(struct gw_parser *parser, struct gw_statement *statement)
{
    statement->kind = GW_SET;
    statement->tag = "SET";
    bool session = gw_accept(parser, "session"), local = !session && gw_accept(parser, "local");
    if (session && parse_set_session(parser, statement))
        return;
    if (gw_next_is(parser, "constraints"))
        gw_not_supported(parser, "SET CONSTRAINTS");
    if (gw_next_is(parser, "transaction") && gw_ahead(parser, 1)->kind == GW_WORD) {
        parser->at++;
        if (gw_next_is(parser, "snapshot"))
            gw_not_supported(parser, "SET TRANSACTION SNAPSHOT");
        parse_modes(parser, statement, of_transaction, true, true);
        return;
    }
    if (gw_accept(parser, "time")) {
        parse_time_zone(parser, statement, local);
        return;
    }
    if (gw_accept(parser, "names")) {
        bool none = gw_at_end(parser) || gw_accept(parser, "default");
        assign(parser, statement, "client_encoding", none ? NULL : setting_value(parser), local);
        return;
    }
    if (gw_accept(parser, "role")) {
        assign(parser, statement, "role", setting_value(parser), local);
        return;
    }
    const char *name = setting_name(parser);
    if (!gw_accept(parser, "to"))
        gw_expect(parser, "=");
    const char *value = gw_accept(parser, "default") ? NULL : setting_values(parser);
    assign(parser, statement, name, value, local);
}

/* The names that RESET and SHOW know besides those of settings; NULL: none of them. */
static const char *spoken_name(struct gw_parser *parser)
{
    if (gw_accept(parser, "time")) {
        gw_expect(parser, "zone");
        return "TimeZone";
    }
    if (gw_next_is(parser, "transaction") && gw_ahead(parser, 1)->kind == GW_WORD) {
        parser->at++;
        gw_expect(parser, "isolation");
        gw_expect(parser, "level");
        return "transaction_isolation";
    }
    if (gw_next_is(parser, "session") && gw_ahead(parser, 1)->kind == GW_WORD) {
        parser->at++;
        gw_expect(parser, "authorization");
        return "session_authorization";
    }
    return NULL;
}

static void parse_reset(struct gw_parser *parser, struct gw_statement *statement)
{
    statement->kind = GW_SET;
    statement->tag = "RESET";
    if (gw_accept(parser, "all")) {
        statement->kind = GW_RESET_ALL;
        return;
    }
    const char *name = spoken_name(parser);
    assign(parser, statement, name != NULL ? name : setting_name(parser), NULL, false);
}

static void parse_show(struct gw_parser *parser, struct gw_statement *statement)
{
    statement->kind = GW_SHOW;
    statement->tag = "SHOW";
    if (gw_accept(parser, "all")) {
        statement->kind = GW_SHOW_ALL;
        return;
    }
    const char *name = spoken_name(parser);
    statement->name = name != NULL ? name : setting_name(parser);
    statement->name_len = strlen(statement->name);
}

/* ---- what cleans a session up ---------------------------------------------------------------- */

static void parse_discard(struct gw_parser *parser, struct gw_statement *statement)
{
    static const struct {
        const char *word, *tag;
    } kinds[] = {{"plans", "DISCARD PLANS"},
                 {"sequences", "DISCARD SEQUENCES"},
                 {"temp", "DISCARD TEMP"},
                 {"temporary", "DISCARD TEMP"}};
    if (gw_accept(parser, "all")) {
        statement->kind = GW_DISCARD_ALL;
        statement->tag = "DISCARD ALL";
        return;
    }
    statement->kind = GW_NOTHING_TO_DO;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (gw_accept(parser, kinds[i].word)) {
            statement->tag = kinds[i].tag;
            return;
        }
    gw_unexpected(parser);
}

static void parse_close(struct gw_parser *parser, struct gw_statement *statement)
{
    if (!gw_accept(parser, "all"))
        gw_not_supported(parser, "a cursor");
    statement->kind = GW_NOTHING_TO_DO;
    statement->tag = "CLOSE CURSOR ALL";
}

static void parse_deallocate(struct gw_parser *parser, struct gw_statement *statement)
{
    statement->kind = GW_DEALLOCATE;
    statement->tag = "DEALLOCATE";
    gw_accept(parser, "prepare");
    if (gw_accept(parser, "all")) {
        statement->kind = GW_DEALLOCATE_ALL;
        statement->tag = "DEALLOCATE ALL";
        return;
    }
    take_name(parser, statement);
}

/* ---- a text ---------------------------------------------------------------------------------- */

static const struct {
    const char *word;
    parse_function *parse;
} grammar[] = {
    {"listen", parse_listen},    {"unlisten", parse_unlisten},   {"notify", parse_notify},
    {"select", gw_parse_select}, {"begin", parse_begin},         {"start", parse_start},
    {"commit", parse_commit},    {"end", parse_commit},          {"rollback", parse_rollback},
    {"abort", parse_rollback},   {"savepoint", parse_savepoint}, {"release", parse_release},
    {"set", parse_set},          {"reset", parse_reset},         {"show", parse_show},
    {"discard", parse_discard},  {"close", parse_close},         {"deallocate", parse_deallocate},
};

static void parse_unsupported(struct gw_parser *parser)
{
    const struct gw_token *token = gw_next(parser);
    char *name = text_of(parser, token->text, token->len);
    for (size_t i = 0; i < token->len; i++)
        if (name[i] >= 'a' && name[i] <= 'z')
            name[i] = (char) (name[i] - 'a' + 'A');
    gw_not_supported(parser, name);
}

static void parse_known(struct gw_parser *parser, struct gw_statement *statement)
{
    const struct gw_token *token = gw_next(parser);
    for (size_t i = 0; i < sizeof grammar / sizeof *grammar; i++)
        if (token->kind == GW_WORD && strcmp(grammar[i].word, token->text) == 0) {
            parser->at++;
            grammar[i].parse(parser, statement);
            return;
        }
    if ((token->kind == GW_WORD && gw_begins_unsupported(token->text)) ||
        (token->kind == GW_OPERATOR && token->text[0] == '('))
        parse_unsupported(parser);
    gw_unexpected(parser);
}

/* Whether the text is false, and not only beyond what the gateway knows. */
static bool fails_the_text(const struct gw_error *error)
{
    static const char *const codes[] = {"0A000", "42P01", "42P02", "42704"};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (strcmp(error->code, codes[i]) == 0)
            return false;
    return true;
}

/* What is not supported is an error of the statement, when it is run. */
static void parse_statement(struct gw_parser *parser, struct gw_statement *statement)
{
    jmp_buf unsupported, *whole = parser->source.out;
    statement->at = gw_next(parser)->start;
    parser->nparams = parser->depth = 0;
    if (setjmp(unsupported) == 0) {
        parser->source.out = &unsupported;
        parse_known(parser, statement);
        parser->source.out = whole;
    } else {
        parser->source.out = whole;
        if (fails_the_text(parser->source.error))
            gw_give_up(&parser->source);
        if (parser->failure == NULL) { /* those behind it are never run */
            struct gw_error *failure = gw_need(&parser->source, sizeof *failure);
            *failure = *parser->source.error;
            parser->failure = failure;
        }
        parser->source.placeless = true;
        *statement = (struct gw_statement) {.kind = GW_UNSUPPORTED, .at = statement->at};
        statement->failure = parser->failure;
        gw_skip_statement(parser);
    }
    statement->nparams = parser->nparams;
}

static void parse_script(struct gw_parser *parser, struct gw_script *script)
{
    size_t room = 1;
    for (size_t i = 0; i < parser->source.ntokens; i++)
        room +=
            parser->source.token[i].kind == GW_OPERATOR && parser->source.token[i].text[0] == ';';
    script->statement = gw_need(&parser->source, room * sizeof *script->statement);
    for (;;) {
        while (gw_accept(parser, ";"))
            ;
        if (gw_next(parser)->kind == GW_END)
            break;
        parse_statement(parser, &script->statement[script->n]);
        script->n++;
        if (!gw_at_end(parser))
            gw_unexpected(parser);
    }
    script->notices = parser->source.cut_names;
}

/* false: the error is filled in. */
static bool __attribute__((noinline)) parse_all(struct gw_parser *parser, struct gw_script *script)
{
    jmp_buf failed;
    if (setjmp(failed) != 0)
        return false;
    parser->source.out = &failed;
    gw_lex(&parser->source);
    parse_script(parser, script);
    return true;
}

struct gw_script *gw_compile(const char *text, size_t len, struct gw_error *error)
{
    struct gw_parser parser = {.source = {.len = len, .error = error}};
    struct gw_script *script = calloc(1, sizeof *script);
    if (script != NULL)
        script->text = gw_copy(&script->arena, text, len);
    if (script == NULL || script->text == NULL) {
        free(script);
        gw_fail(error, "53200", "out of memory");
        return NULL;
    }
    script->refs = 1;
    script->len = len;
    parser.source.text = script->text;
    parser.source.arena = &script->arena;
    if (parse_all(&parser, script))
        return script;
    gw_script_let_go(script);
    return NULL;
}

struct gw_script *gw_script_hold(struct gw_script *script)
{
    script->refs++;
    return script;
}

void gw_script_let_go(struct gw_script *script)
{
    if (script == NULL || --script->refs > 0)
        return;
    gw_arena_free(&script->arena);
    free(script);
}

void gw_point_at(struct gw_error *error, const struct gw_script *script, size_t at)
{
    error->position = gw_utf8_length(script->text, at) + 1;
}
