/* tree.h - what a text says: its statements and their expressions. */
#ifndef PN_GATEWAY_TREE_H
#define PN_GATEWAY_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "arena.h"
#include "wire.h"

/* Object identifiers of PostgreSQL's catalogue, which never change. */
enum gw_type {
    GW_BOOL = 16,
    GW_NAME = 19,
    GW_INT8 = 20,
    GW_INT2 = 21,
    GW_INT4 = 23,
    GW_TEXT = 25,
    GW_OID = 26,
    GW_FLOAT8 = 701,
    GW_UNKNOWN = 705, /* a literal or parameter of which nothing is known yet */
    GW_INT4_ARRAY = 1007,
    GW_VARCHAR = 1043,
    GW_VOID = 2278
};

enum gw_node_kind {
    GW_NULL,
    GW_LITERAL, /* in quotes */
    GW_TRUTH,
    GW_WHOLE,
    GW_REAL,
    GW_ARGUMENT, /* $1 */
    GW_COLUMN,   /* of what stands in FROM */
    GW_CALL,
    GW_CONVERSION, /* to `type` */
    GW_COMPARISON, /* `name` is the operator, for these three */
    GW_CONCATENATION,
    GW_ARITHMETIC,
    GW_NEGATION, /* of a number */
    GW_NOT,
    GW_AND,
    GW_OR,
    GW_IS_NULL,
    GW_IS /* TRUE or FALSE: `whole` */
};

struct gw_function;

struct gw_node {
    enum gw_node_kind kind;
    uint32_t type; /* enum gw_type; of all but conversions set by gw_analyse() */
    size_t at;     /* byte of the text */
    const char *name;
    const char *text; /* of a literal */
    size_t len;
    int64_t whole; /* the number of an argument, from 1, too */
    double real;
    struct gw_node *args[3];
    size_t nargs;
    uint32_t height; /* of the tree below it */
    bool star;       /* count(*) */
    bool negated;    /* IS NOT */
    const struct gw_function *function;
};

struct gw_item {
    struct gw_item *next;
    const char *label;
    struct gw_node *value; /* NULL: of the empty catalogue */
    uint32_t type;
};

enum gw_from {
    GW_FROM_NOTHING, /* one row */
    GW_FROM_LISTENING,
    GW_FROM_SERIES,
    GW_FROM_CATALOGUE /* no row */
};

enum gw_statement_kind {
    GW_EMPTY,
    GW_LISTEN,
    GW_UNLISTEN,
    GW_UNLISTEN_ALL,
    GW_NOTIFY,
    GW_SELECT,
    GW_BEGIN,
    GW_COMMIT,
    GW_ROLLBACK,
    GW_SAVEPOINT,
    GW_RELEASE,
    GW_ROLLBACK_TO,
    GW_SET,
    GW_RESET_ALL,
    GW_SHOW,
    GW_SHOW_ALL,
    GW_DISCARD_ALL,
    GW_NOTHING_TO_DO, /* DISCARD PLANS, CLOSE ALL: there is never any such thing */
    GW_DEALLOCATE,
    GW_DEALLOCATE_ALL,
    GW_UNSUPPORTED /* `failure` says what it is */
};

/* A setting and its new value; NULL: its default. */
struct gw_assignment {
    struct gw_assignment *next;
    const char *name, *value;
    bool local;
};

struct gw_statement {
    enum gw_statement_kind kind;
    const char *tag; /* of CommandComplete; NULL: SELECT and a number */
    size_t at;       /* byte of the text */
    const char *name;
    size_t name_len;
    const char *text; /* a payload */
    size_t text_len;
    bool chain;
    struct gw_assignment *settings;
    struct gw_item *items;
    size_t nitems;
    bool aggregate; /* count() */
    enum gw_from from;
    struct gw_node *first, *last; /* of a series */
    const char *column;           /* its name, and that of what stands in FROM */
    const char *relation;
    uint32_t nparams; /* the highest $n */
    bool analysed;
    const struct gw_error *failure; /* of what is not supported, for when it is run */
};

/* A text, compiled.  Shared by all that run it; the last one that lets go frees it. */
struct gw_script {
    uint32_t refs;
    struct gw_arena arena;
    const char *text; /* a copy */
    size_t len;
    struct gw_statement *statement; /* [n], without empty ones */
    size_t n;
    struct gw_cut_name *notices;
    uint32_t *types; /* [ntypes] of its parameters, resolved by gw_analyse() */
    size_t ntypes;
    const uint32_t *given; /* [ngiven], as the client said */
    size_t ngiven;
    bool extended; /* it may have parameters */
    bool spoiled;  /* its analysis failed: not to be used again */
};

#endif
