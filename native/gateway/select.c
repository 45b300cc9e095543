/* select.c - see select.h. */
#include "select.h"

#include <string.h>

enum { MAX_ITEMS = 1600 };

static struct gw_item *add_item(struct gw_parser *parser, struct gw_statement *statement)
{
    struct gw_item *item = gw_need(&parser->source, sizeof *item);
    struct gw_item **last = &statement->items;
    while (*last != NULL)
        last = &(*last)->next;
    *last = item;
    if (++statement->nitems > MAX_ITEMS)
        gw_not_supported(parser, "a target list of more than 1600 entries");
    return item;
}

/* AS label, or a label alone; NULL: there is none. */
static const char *parse_label(struct gw_parser *parser)
{
    const struct gw_token *token = gw_next(parser);
    if (gw_accept(parser, "as")) {
        token = gw_next(parser);
        if (token->kind != GW_WORD && token->kind != GW_QUOTED)
            gw_unexpected(parser);
        parser->at++;
        return token->text;
    }
    if (token->kind == GW_QUOTED || (token->kind == GW_WORD && !gw_is_reserved(token->text))) {
        parser->at++;
        return token->text;
    }
    return NULL;
}

static void parse_item(struct gw_parser *parser, struct gw_statement *statement)
{
    const struct gw_token *star = gw_next(parser);
    struct gw_item *item = add_item(parser, statement);
    if (gw_accept(parser, "*")) {
        item->value = gw_need(&parser->source, sizeof *item->value);
        item->value->kind = GW_COLUMN;
        item->value->at = star->start;
        item->value->star = true;
        return;
    }
    item->value = gw_parse_expression(parser);
    item->label = parse_label(parser);
    if (item->label == NULL)
        item->label = gw_column_label(item->value);
}

/* The index of FROM behind a select list; 0: there is none. */
static size_t find_from(const struct gw_parser *parser)
{
    int depth = 0;
    for (size_t i = parser->at; i < parser->source.ntokens; i++) {
        const struct gw_token *token = &parser->source.token[i];
        if (token->kind == GW_WORD && depth == 0 && strcmp(token->text, "from") == 0)
            return i;
        if (token->kind != GW_OPERATOR)
            continue;
        if (token->text[0] == ';')
            return 0;
        depth += (token->text[0] == '(' || token->text[0] == '[') ? 1 : 0;
        depth -= (token->text[0] == ')' || token->text[0] == ']') ? 1 : 0;
    }
    return 0;
}

/* In [begin, end) of the tokens: a name of the catalogue. */
static bool names_catalogue(const struct gw_parser *parser, size_t begin, size_t end)
{
    for (size_t i = begin; i < end; i++) {
        const struct gw_token *token = &parser->source.token[i];
        if (token->kind == GW_OPERATOR && token->text[0] == ';')
            break;
        if ((token->kind == GW_WORD || token->kind == GW_QUOTED) &&
            (strncmp(token->text, "pg_", 3) == 0 || strcmp(token->text, "information_schema") == 0))
            return true;
    }
    return false;
}

/*
 * A column of the catalogue, which has no rows: all that counts is its name, the last one of the
 * item, and a type that a client can read.
 */
static void catalogue_item(struct gw_parser *parser, struct gw_statement *statement, size_t from)
{
    struct gw_item *item = add_item(parser, statement);
    int depth = 0;
    for (; parser->at < from; parser->at++) {
        const struct gw_token *token = gw_next(parser);
        if (token->kind == GW_OPERATOR && depth == 0 && token->text[0] == ',')
            break;
        if (token->kind == GW_OPERATOR) {
            depth += (token->text[0] == '(' || token->text[0] == '[') ? 1 : 0;
            depth -= (token->text[0] == ')' || token->text[0] == ']') ? 1 : 0;
        }
        if (depth == 0 && (token->kind == GW_WORD || token->kind == GW_QUOTED))
            item->label = token->text;
    }
    if (item->label == NULL)
        item->label = "?column?";
    item->type = strcmp(item->label, "oid") == 0 ? GW_OID : GW_NAME;
}

static void parse_catalogue(struct gw_parser *parser, struct gw_statement *statement, size_t from)
{
    statement->from = GW_FROM_CATALOGUE;
    do
        catalogue_item(parser, statement, from);
    while (parser->at < from && gw_accept(parser, ","));
    gw_skip_statement(parser);
}

/* Whether all that follows FROM is a call of `function`, perhaps with an alias. */
static bool from_is(const struct gw_parser *parser, size_t from, const char *function)
{
    struct gw_parser ahead = *parser;
    int depth = 0;
    ahead.at = from + 1;
    if (gw_next_is(&ahead, "pg_catalog") && gw_ahead(&ahead, 1)->text[0] == '.')
        ahead.at += 2;
    if (!gw_accept(&ahead, function) || !gw_next_is(&ahead, "("))
        return false;
    for (;; ahead.at++) {
        depth += gw_next_is(&ahead, "(") ? 1 : 0;
        depth -= gw_next_is(&ahead, ")") ? 1 : 0;
        if (depth == 0 || gw_next(&ahead)->kind == GW_END)
            break;
    }
    for (ahead.at++; !gw_at_end(&ahead); ahead.at++) {
        const struct gw_token *token = gw_next(&ahead);
        if (token->kind == GW_OPERATOR ? token->text[0] == ','
                                       : token->kind == GW_WORD && gw_begins_clause(token->text))
            return false;
    }
    return true;
}

static void parse_from(struct gw_parser *parser, struct gw_statement *statement)
{
    if (gw_accept(parser, "pg_catalog"))
        gw_expect(parser, ".");
    statement->column = gw_expect_name(parser)->text;
    gw_expect(parser, "(");
    if (statement->from == GW_FROM_SERIES) {
        statement->first = gw_parse_expression(parser);
        gw_expect(parser, ",");
        statement->last = gw_parse_expression(parser);
    }
    gw_expect(parser, ")");
    const char *alias = parse_label(parser);
    statement->relation = alias != NULL ? alias : statement->column;
    if (alias != NULL)
        statement->column = alias;
    if (alias != NULL && gw_accept(parser, "(")) {
        statement->column = gw_expect_name(parser)->text;
        gw_expect(parser, ")");
    }
}

static void no_relation(struct gw_parser *parser, size_t from)
{
    const struct gw_token *token = &parser->source.token[from + 1];
    if (token->kind != GW_WORD && token->kind != GW_QUOTED)
        gw_not_supported(parser, "a subquery in FROM");
    gw_fail(parser->source.error, "42P01", "relation \"%s\" does not exist", token->text);
    gw_hint(parser->source.error, "%s", gw_no_database_hint);
    parser->source.error->position = gw_position(&parser->source, token->start);
    gw_give_up(&parser->source);
}

static size_t statement_end(const struct gw_parser *parser, size_t at)
{
    while (at + 1 < parser->source.ntokens && !(parser->source.token[at].kind == GW_OPERATOR &&
                                                parser->source.token[at].text[0] == ';'))
        at++;
    return at;
}

void gw_parse_select(struct gw_parser *parser, struct gw_statement *statement)
{
    statement->kind = GW_SELECT;
    size_t from = find_from(parser);
    if (from > 0 && from_is(parser, from, "pg_listening_channels"))
        statement->from = GW_FROM_LISTENING;
    else if (from > 0 && from_is(parser, from, "generate_series"))
        statement->from = GW_FROM_SERIES;
    else if (from > 0 && names_catalogue(parser, from, statement_end(parser, from))) {
        parse_catalogue(parser, statement, from);
        return;
    } else if (from > 0)
        no_relation(parser, from);
    if (gw_next_is(parser, "distinct"))
        gw_not_supported(parser, "DISTINCT");
    gw_accept(parser, "all");
    if (!gw_at_end(parser) && !gw_next_is(parser, "from")) {
        do
            parse_item(parser, statement);
        while (gw_accept(parser, ","));
    }
    if (gw_accept(parser, "from"))
        parse_from(parser, statement);
    const struct gw_token *token = gw_next(parser);
    if (token->kind == GW_WORD && gw_begins_clause(token->text))
        gw_not_supported(parser, token->text);
}
