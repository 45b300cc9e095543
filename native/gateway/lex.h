/*
 * lex.h - texts to tokens, by PostgreSQL's rules (its manual, "Lexical Structure").
 *
 * What is false ends the compilation of the text: gw_give_up() goes back to the setjmp() of
 * gw_compile(), with the error filled in.
 */
#ifndef PN_GATEWAY_LEX_H
#define PN_GATEWAY_LEX_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "arena.h"
#include "wire.h"

enum { GW_NAME_MAX = 63 }; /* bytes of an identifier; NAMEDATALEN - 1 */

enum gw_token_kind {
    GW_END,
    GW_WORD,   /* an identifier or keyword without quotes, in lower case */
    GW_QUOTED, /* "an identifier" */
    GW_STRING,
    GW_BITS, /* B'01', X'ff' */
    GW_INTEGER,
    GW_DECIMAL,
    GW_PARAMETER, /* $1; the text is what follows the $ */
    GW_OPERATOR   /* also , ( ) [ ] . ; : and :: */
};

struct gw_token {
    enum gw_token_kind kind;
    const char *text; /* its value, with a NUL behind it */
    size_t len;
    size_t start, end; /* bytes of the source */
};

/* A NOTICE about an identifier that was cut, sent each time the text is run. */
struct gw_cut_name {
    struct gw_cut_name *next;
    const char *text;
};

struct gw_source {
    const char *text;
    size_t len;
    struct gw_arena *arena;
    struct gw_error *error;
    jmp_buf *out;           /* where gw_give_up() goes */
    struct gw_token *token; /* [ntokens], the last one is GW_END */
    size_t ntokens, room;
    struct gw_cut_name *cut_names, **last_cut_name;
    bool placeless; /* errors need no position any more: an earlier one comes first */
    char *scratch;  /* where the value of a literal is put together; as long as the text */
};

void gw_lex(struct gw_source *source);

void gw_give_up(struct gw_source *source) __attribute__((noreturn));
void gw_no_memory(struct gw_source *source) __attribute__((noreturn));
void gw_syntax_error(struct gw_source *source, const struct gw_token *token)
    __attribute__((noreturn));
/* For the field P: the number of the character at this byte, from 1. */
size_t gw_position(const struct gw_source *source, size_t at);

/* Memory of the arena, or gw_no_memory(). */
void *gw_need(struct gw_source *source, size_t size);

#endif
