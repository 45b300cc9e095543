/* words.c - see words.h. */
#include "words.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* In alphabetical order: they are searched by halves. */
static const char *const reserved[] = {
    "all",
    "analyse",
    "analyze",
    "and",
    "any",
    "array",
    "as",
    "asc",
    "asymmetric",
    "authorization",
    "binary",
    "both",
    "case",
    "cast",
    "check",
    "collate",
    "collation",
    "column",
    "concurrently",
    "constraint",
    "create",
    "cross",
    "current_catalog",
    "current_date",
    "current_role",
    "current_schema",
    "current_time",
    "current_timestamp",
    "current_user",
    "default",
    "deferrable",
    "desc",
    "distinct",
    "do",
    "else",
    "end",
    "except",
    "false",
    "fetch",
    "for",
    "foreign",
    "freeze",
    "from",
    "full",
    "grant",
    "group",
    "having",
    "ilike",
    "in",
    "initially",
    "inner",
    "intersect",
    "into",
    "is",
    "isnull",
    "join",
    "lateral",
    "leading",
    "left",
    "like",
    "limit",
    "localtime",
    "localtimestamp",
    "natural",
    "not",
    "notnull",
    "null",
    "offset",
    "on",
    "only",
    "or",
    "order",
    "outer",
    "overlaps",
    "placing",
    "primary",
    "references",
    "returning",
    "right",
    "select",
    "session_user",
    "similar",
    "some",
    "symmetric",
    "table",
    "tablesample",
    "then",
    "to",
    "trailing",
    "true",
    "union",
    "unique",
    "user",
    "using",
    "variadic",
    "verbose",
    "when",
    "where",
    "window",
    "with",
};

static const char *const unsupported[] = {
    "alter",    "analyse", "analyze",  "call",     "checkpoint", "cluster", "comment",
    "copy",     "create",  "declare",  "delete",   "do",         "drop",    "execute",
    "explain",  "fetch",   "grant",    "import",   "insert",     "load",    "lock",
    "merge",    "move",    "prepare",  "reassign", "refresh",    "reindex", "revoke",
    "security", "table",   "truncate", "update",   "vacuum",     "values",  "with",
};

static const char *const clauses[] = {
    "cross",  "except",    "fetch", "for",         "full",  "group", "having",
    "inner",  "intersect", "into",  "join",        "left",  "limit", "natural",
    "offset", "order",     "right", "tablesample", "union", "where", "window",
};

static int compare(const void *word, const void *entry)
{
    return strcmp(word, *(const char *const *) entry);
}

#define CONTAINS(list, word)                                                                       \
    (bsearch(word, list, sizeof list / sizeof *list, sizeof *list, compare) != NULL)

bool gw_is_reserved(const char *word)
{
    return CONTAINS(reserved, word);
}

bool gw_begins_unsupported(const char *word)
{
    return CONTAINS(unsupported, word);
}

bool gw_begins_clause(const char *word)
{
    return CONTAINS(clauses, word);
}
