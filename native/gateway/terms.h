/* terms.h - the grammar of expressions; and what all parts of the grammar need. */
#ifndef PN_GATEWAY_TERMS_H
#define PN_GATEWAY_TERMS_H

#include "lex.h"
#include "tree.h"
#include "words.h"

struct gw_parser {
    struct gw_source source;
    size_t at; /* index of the next token */
    uint32_t nparams;
    uint32_t depth;
    const struct gw_error *failure; /* of the first statement that is not supported */
};

const struct gw_token *gw_next(const struct gw_parser *parser);
/* The `n`th behind the next one; the last one is GW_END. */
const struct gw_token *gw_ahead(const struct gw_parser *parser, size_t n);
bool gw_next_is(const struct gw_parser *parser, const char *word_or_operator);
/* Go past it if it is there. */
bool gw_accept(struct gw_parser *parser, const char *word_or_operator);
void gw_expect(struct gw_parser *parser, const char *word_or_operator);
/* An identifier, no reserved word. */
const struct gw_token *gw_expect_name(struct gw_parser *parser);
bool gw_at_end(const struct gw_parser *parser);
/* To the end of the statement, noting its parameters. */
void gw_skip_statement(struct gw_parser *parser);
void gw_unexpected(struct gw_parser *parser) __attribute__((noreturn));
/* 0A000: "`what` is not supported". */
void gw_not_supported(struct gw_parser *parser, const char *what) __attribute__((noreturn));

struct gw_node *gw_parse_expression(struct gw_parser *parser);
/* What a column is called to which no name is given. */
const char *gw_column_label(const struct gw_node *node);
const char *gw_type_name(uint32_t type);

extern const char gw_no_database_hint[];

#endif
