/* words.h - PostgreSQL's keywords, as far as the gateway has to know them. */
#ifndef PN_GATEWAY_WORDS_H
#define PN_GATEWAY_WORDS_H

#include <stdbool.h>

/* It cannot name a channel: it is a reserved word, or one of types and functions. */
bool gw_is_reserved(const char *word);
/* A statement of PostgreSQL begins with it which the gateway does not know. */
bool gw_begins_unsupported(const char *word);
/* A clause of SELECT begins with it. */
bool gw_begins_clause(const char *word);

#endif
