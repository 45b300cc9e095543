/* terms.c - see terms.h. */
#include "terms.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 200, MAX_PARAMETER = 65535 };

const char gw_no_database_hint[] =
    "This is no database but a pynotify gateway: it knows LISTEN, NOTIFY, UNLISTEN, pg_notify(), "
    "transactions, savepoints, settings, and SELECT of simple expressions.";

/* ---- tokens ---------------------------------------------------------------------------------- */

const struct gw_token *gw_ahead(const struct gw_parser *parser, size_t n)
{
    size_t last = parser->source.ntokens - 1;
    return &parser->source.token[parser->at + n < last ? parser->at + n : last];
}

const struct gw_token *gw_next(const struct gw_parser *parser)
{
    return gw_ahead(parser, 0);
}

static bool is(const struct gw_token *token, const char *text)
{
    return (token->kind == GW_WORD || token->kind == GW_OPERATOR) && strcmp(token->text, text) == 0;
}

bool gw_next_is(const struct gw_parser *parser, const char *word_or_operator)
{
    return is(gw_next(parser), word_or_operator);
}

bool gw_accept(struct gw_parser *parser, const char *word_or_operator)
{
    bool there = gw_next_is(parser, word_or_operator);
    if (there)
        parser->at++;
    return there;
}

void gw_unexpected(struct gw_parser *parser)
{
    gw_syntax_error(&parser->source, gw_next(parser));
}

void gw_expect(struct gw_parser *parser, const char *word_or_operator)
{
    if (!gw_accept(parser, word_or_operator))
        gw_unexpected(parser);
}

bool gw_at_end(const struct gw_parser *parser)
{
    return gw_next(parser)->kind == GW_END || gw_next_is(parser, ";");
}

void gw_skip_statement(struct gw_parser *parser)
{
    while (!gw_at_end(parser)) {
        const struct gw_token *token = gw_next(parser);
        unsigned long n = token->kind == GW_PARAMETER ? strtoul(token->text, NULL, 10) : 0;
        if (n > MAX_PARAMETER)
            gw_unexpected(parser);
        if (n > parser->nparams)
            parser->nparams = (uint32_t) n;
        parser->at++;
    }
}

const struct gw_token *gw_expect_name(struct gw_parser *parser)
{
    const struct gw_token *token = gw_next(parser);
    if (token->kind != GW_QUOTED && (token->kind != GW_WORD || gw_is_reserved(token->text)))
        gw_unexpected(parser);
    parser->at++;
    return token;
}

void gw_not_supported(struct gw_parser *parser, const char *what)
{
    struct gw_error *error = parser->source.error;
    gw_fail(error, "0A000", "%s is not supported", what);
    gw_hint(error, "%s", gw_no_database_hint);
    error->position = gw_position(&parser->source, gw_next(parser)->start);
    gw_give_up(&parser->source);
}

/* ---- types ----------------------------------------------------------------------------------- */

static const struct type_name {
    const char *name;
    uint32_t type;
} type_names[] = {
    /* The first name of each is the one that PostgreSQL shows. */
    {"boolean", GW_BOOL},
    {"bool", GW_BOOL},
    {"name", GW_NAME},
    {"bigint", GW_INT8},
    {"int8", GW_INT8},
    {"smallint", GW_INT2},
    {"int2", GW_INT2},
    {"integer", GW_INT4},
    {"int4", GW_INT4},
    {"int", GW_INT4},
    {"text", GW_TEXT},
    {"oid", GW_OID},
    {"double precision", GW_FLOAT8},
    {"float8", GW_FLOAT8},
    {"float", GW_FLOAT8},
    {"unknown", GW_UNKNOWN},
    {"character varying", GW_VARCHAR},
    {"varchar", GW_VARCHAR},
    {"void", GW_VOID},
    {"integer[]", GW_INT4_ARRAY},
};

const char *gw_type_name(uint32_t type)
{
    for (size_t i = 0; i < sizeof type_names / sizeof *type_names; i++)
        if (type_names[i].type == type)
            return type_names[i].name;
    return "???";
}

static uint32_t find_type(const char *name)
{
    for (size_t i = 0; i < sizeof type_names / sizeof *type_names; i++)
        if (strcmp(type_names[i].name, name) == 0)
            return type_names[i].type;
    return 0;
}

static uint32_t parse_type(struct gw_parser *parser)
{
    if (gw_next_is(parser, "pg_catalog") && is(gw_ahead(parser, 1), "."))
        parser->at += 2;
    const struct gw_token *token = gw_expect_name(parser);
    const char *name = token->text;
    if (strcmp(name, "double") == 0 && gw_accept(parser, "precision"))
        name = "float8";
    if (strcmp(name, "character") == 0 && gw_accept(parser, "varying"))
        name = "varchar";
    uint32_t type = find_type(name);
    if (type == GW_INT4 && gw_accept(parser, "[")) {
        gw_expect(parser, "]");
        type = GW_INT4_ARRAY;
    }
    if (type == 0) {
        gw_fail(parser->source.error, "42704", "type \"%s\" does not exist", name);
        parser->source.error->position = gw_position(&parser->source, token->start);
        gw_give_up(&parser->source);
    }
    if (gw_next_is(parser, "(") || gw_next_is(parser, "["))
        gw_not_supported(parser, "a type with a length or an array");
    return type;
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static struct gw_node *new_node(struct gw_parser *parser, enum gw_node_kind kind,
                                const struct gw_token *token)
{
    struct gw_node *node = gw_need(&parser->source, sizeof *node);
    node->kind = kind;
    node->at = token->start;
    return node;
}

static void __attribute__((noreturn)) too_deep(struct gw_parser *parser)
{
    gw_fail(parser->source.error, "54001", "stack depth limit exceeded");
    gw_give_up(&parser->source);
}

/* One argument more; what evaluates a tree goes as deep as it is. */
static void add_argument(struct gw_parser *parser, struct gw_node *node, struct gw_node *value)
{
    node->args[node->nargs++] = value;
    if (value->height >= node->height)
        node->height = value->height + 1;
    if (node->height > MAX_DEPTH)
        too_deep(parser);
}

static struct gw_node *join(struct gw_parser *parser, enum gw_node_kind kind,
                            const struct gw_token *token, struct gw_node *left,
                            struct gw_node *right)
{
    struct gw_node *node = new_node(parser, kind, token);
    node->name = token->text;
    add_argument(parser, node, left);
    if (right != NULL)
        add_argument(parser, node, right);
    return node;
}

static struct gw_node *number(struct gw_parser *parser, const struct gw_token *token)
{
    struct gw_node *node = new_node(parser, GW_WHOLE, token);
    errno = 0;
    node->whole = strtoll(token->text, NULL, 10);
    if (token->kind == GW_DECIMAL || errno != 0) {
        node->kind = GW_REAL;
        node->real = strtod(token->text, NULL);
    }
    return node;
}

static struct gw_node *argument(struct gw_parser *parser, const struct gw_token *token)
{
    struct gw_node *node = new_node(parser, GW_ARGUMENT, token);
    node->whole = token->len > 5 ? MAX_PARAMETER + 1 : strtol(token->text, NULL, 10);
    if (node->whole < 1 || node->whole > MAX_PARAMETER) {
        gw_fail(parser->source.error, "42P02", "there is no parameter $%s", token->text);
        parser->source.error->position = gw_position(&parser->source, token->start);
        gw_give_up(&parser->source);
    }
    if ((uint32_t) node->whole > parser->nparams)
        parser->nparams = (uint32_t) node->whole;
    return node;
}

static struct gw_node *conversion(struct gw_parser *parser, const struct gw_token *token,
                                  struct gw_node *value, uint32_t type)
{
    struct gw_node *node = join(parser, GW_CONVERSION, token, value, NULL);
    node->type = type;
    return node;
}

static struct gw_node *call(struct gw_parser *parser, const struct gw_token *name)
{
    struct gw_node *node = new_node(parser, GW_CALL, name);
    node->name = name->text;
    gw_expect(parser, "(");
    if (gw_accept(parser, "*")) {
        node->star = true;
    } else if (!gw_next_is(parser, ")")) {
        do {
            if (node->nargs == sizeof node->args / sizeof *node->args)
                gw_not_supported(parser, "a function of so many arguments");
            add_argument(parser, node, gw_parse_expression(parser));
        } while (gw_accept(parser, ","));
    }
    gw_expect(parser, ")");
    return node;
}

/* Functions that are called without parentheses; NULL: it is none. */
static const char *bare_function(const char *word)
{
    static const char *const names[] = {"current_user", "session_user",    "user",
                                        "current_role", "current_catalog", "current_schema"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], word) == 0)
            return names[i];
    return NULL;
}

static struct gw_node *truth(struct gw_parser *parser, const struct gw_token *token, bool value)
{
    struct gw_node *node = new_node(parser, GW_TRUTH, token);
    node->whole = value;
    return node;
}

static struct gw_node *name_or_call(struct gw_parser *parser)
{
    const struct gw_token *token = gw_next(parser);
    const char *bare = token->kind == GW_WORD ? bare_function(token->text) : NULL;
    if (bare != NULL && !is(gw_ahead(parser, 1), "(")) {
        struct gw_node *node = new_node(parser, GW_CALL, token);
        node->name = bare;
        parser->at++;
        return node;
    }
    if (bare != NULL)
        parser->at++;
    else
        gw_expect_name(parser);
    if (gw_next_is(parser, ".")) {
        bool catalogue = strcmp(token->text, "pg_catalog") == 0;
        parser->at++;
        const struct gw_token *last = gw_expect_name(parser);
        if (catalogue || !gw_next_is(parser, "("))
            token = last;
    }
    if (gw_next_is(parser, "("))
        return call(parser, token);
    if (gw_next(parser)->kind == GW_STRING && token->kind == GW_WORD) { /* text 'x' */
        parser->at--;
        uint32_t type = parse_type(parser);
        const struct gw_token *value = gw_next(parser);
        struct gw_node *node = new_node(parser, GW_LITERAL, value);
        node->text = value->text;
        node->len = value->len;
        parser->at++;
        return conversion(parser, token, node, type);
    }
    struct gw_node *node = new_node(parser, GW_COLUMN, token);
    node->name = token->text;
    return node;
}

static struct gw_node *cast_function(struct gw_parser *parser)
{
    const struct gw_token *token = gw_next(parser);
    parser->at++;
    gw_expect(parser, "(");
    struct gw_node *value = gw_parse_expression(parser);
    gw_expect(parser, "as");
    uint32_t type = parse_type(parser);
    gw_expect(parser, ")");
    return conversion(parser, token, value, type);
}

static struct gw_node *word(struct gw_parser *parser)
{
    const struct gw_token *token = gw_next(parser);
    if (gw_accept(parser, "null"))
        return new_node(parser, GW_NULL, token);
    if (gw_accept(parser, "true"))
        return truth(parser, token, true);
    if (gw_accept(parser, "false"))
        return truth(parser, token, false);
    if (gw_next_is(parser, "cast"))
        return cast_function(parser);
    if (gw_next_is(parser, "case") || gw_next_is(parser, "array") || gw_next_is(parser, "exists"))
        gw_not_supported(parser, token->text);
    return name_or_call(parser);
}

static struct gw_node *primary(struct gw_parser *parser)
{
    const struct gw_token *token = gw_next(parser);
    switch (token->kind) {
    case GW_INTEGER:
    case GW_DECIMAL:
        parser->at++;
        return number(parser, token);
    case GW_PARAMETER:
        parser->at++;
        return argument(parser, token);
    case GW_STRING: {
        struct gw_node *node = new_node(parser, GW_LITERAL, token);
        node->text = token->text;
        node->len = token->len;
        parser->at++;
        return node;
    }
    case GW_BITS:
        gw_not_supported(parser, "a bit string");
    case GW_WORD:
    case GW_QUOTED:
        return word(parser);
    case GW_OPERATOR:
    case GW_END:
        break;
    }
    gw_expect(parser, "(");
    if (gw_next_is(parser, "select"))
        gw_not_supported(parser, "a subquery");
    struct gw_node *node = gw_parse_expression(parser);
    gw_expect(parser, ")");
    return node;
}

/* ---- operators, those that bind most tightly first ------------------------------------------- */

static struct gw_node *converted(struct gw_parser *parser)
{
    struct gw_node *node = primary(parser);
    for (;;) {
        const struct gw_token *token = gw_next(parser);
        if (!gw_accept(parser, "::"))
            return node;
        node = conversion(parser, token, node, parse_type(parser));
    }
}

static struct gw_node *signed_term(struct gw_parser *parser)
{
    uint32_t signs = 0;
    const struct gw_token *token = gw_next(parser);
    for (;;) {
        if (gw_accept(parser, "-"))
            signs++;
        else if (!gw_accept(parser, "+"))
            break;
    }
    struct gw_node *node = converted(parser);
    return signs % 2 == 0 ? node : join(parser, GW_NEGATION, token, node, NULL);
}

static struct gw_node *product(struct gw_parser *parser)
{
    struct gw_node *node = signed_term(parser);
    for (;;) {
        const struct gw_token *token = gw_next(parser);
        if (!gw_accept(parser, "*") && !gw_accept(parser, "/") && !gw_accept(parser, "%"))
            return node;
        node = join(parser, GW_ARITHMETIC, token, node, signed_term(parser));
    }
}

static struct gw_node *sum(struct gw_parser *parser)
{
    struct gw_node *node = product(parser);
    for (;;) {
        const struct gw_token *token = gw_next(parser);
        if (!gw_accept(parser, "+") && !gw_accept(parser, "-"))
            return node;
        node = join(parser, GW_ARITHMETIC, token, node, product(parser));
    }
}

static bool compares(const struct gw_token *token)
{
    static const char *const operators[] = {"<", ">", "=", "<=", ">=", "<>", "!="};
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++)
        if (is(token, operators[i]))
            return true;
    return false;
}

static struct gw_node *concatenation(struct gw_parser *parser)
{
    struct gw_node *node = sum(parser);
    for (;;) {
        const struct gw_token *token = gw_next(parser);
        if (gw_accept(parser, "||"))
            node = join(parser, GW_CONCATENATION, token, node, sum(parser));
        else if (token->kind == GW_OPERATOR && !compares(token) &&
                 strchr(",()[].;:", token->text[0]) == NULL)
            gw_not_supported(parser, "this operator");
        else
            return node;
    }
}

static struct gw_node *comparison(struct gw_parser *parser)
{
    struct gw_node *node = concatenation(parser);
    const struct gw_token *token = gw_next(parser);
    if (!compares(token))
        return node;
    parser->at++;
    return join(parser, GW_COMPARISON, token, node, concatenation(parser));
}

static struct gw_node *is_test(struct gw_parser *parser)
{
    struct gw_node *node = comparison(parser);
    for (;;) {
        const struct gw_token *token = gw_next(parser);
        bool negated = gw_accept(parser, "notnull");
        if (negated || gw_accept(parser, "isnull")) {
            node = join(parser, GW_IS_NULL, token, node, NULL);
            node->negated = negated;
            continue;
        }
        if (!gw_accept(parser, "is"))
            return node;
        negated = gw_accept(parser, "not");
        bool of_null = gw_accept(parser, "null"), of_true = !of_null && gw_accept(parser, "true");
        if (!of_null && !of_true)
            gw_expect(parser, "false");
        node = join(parser, of_null ? GW_IS_NULL : GW_IS, token, node, NULL);
        node->negated = negated;
        node->whole = of_true;
    }
}

static struct gw_node *negated(struct gw_parser *parser)
{
    uint32_t times = 0;
    const struct gw_token *token = gw_next(parser);
    while (gw_accept(parser, "not"))
        times++;
    struct gw_node *node = is_test(parser);
    for (; times > 0; times--)
        node = join(parser, GW_NOT, token, node, NULL);
    return node;
}

static struct gw_node *conjunction(struct gw_parser *parser)
{
    struct gw_node *node = negated(parser);
    for (;;) {
        const struct gw_token *token = gw_next(parser);
        if (!gw_accept(parser, "and"))
            return node;
        node = join(parser, GW_AND, token, node, negated(parser));
    }
}

struct gw_node *gw_parse_expression(struct gw_parser *parser)
{
    if (++parser->depth > MAX_DEPTH)
        too_deep(parser);
    struct gw_node *node = conjunction(parser);
    for (;;) {
        const struct gw_token *token = gw_next(parser);
        if (!gw_accept(parser, "or"))
            break;
        node = join(parser, GW_OR, token, node, conjunction(parser));
    }
    parser->depth--;
    return node;
}

const char *gw_column_label(const struct gw_node *node)
{
    static const struct {
        uint32_t type;
        const char *name;
    } inner_names[] = {{GW_BOOL, "bool"},      {GW_INT8, "int8"},     {GW_INT2, "int2"},
                       {GW_INT4, "int4"},      {GW_FLOAT8, "float8"}, {GW_VARCHAR, "varchar"},
                       {GW_INT4_ARRAY, "int4"}};
    if (node->kind == GW_CALL || node->kind == GW_COLUMN)
        return node->name;
    if (node->kind != GW_CONVERSION)
        return "?column?";
    const char *inside = gw_column_label(node->args[0]);
    if (strcmp(inside, "?column?") != 0)
        return inside;
    for (size_t i = 0; i < sizeof inner_names / sizeof *inner_names; i++)
        if (inner_names[i].type == node->type)
            return inner_names[i].name;
    return gw_type_name(node->type);
}
