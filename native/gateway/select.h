/*
 * select.h - the grammar of SELECT: expressions, the two functions that have rows, and the
 * catalogue, which has none.
 */
#ifndef PN_GATEWAY_SELECT_H
#define PN_GATEWAY_SELECT_H

#include "terms.h"

/* Behind the word itself. */
void gw_parse_select(struct gw_parser *parser, struct gw_statement *statement);

#endif
