/*
 * parse.h - texts to statements: the grammar of what concerns LISTEN and NOTIFY, and of what
 * drivers say besides.
 *
 * A statement that PostgreSQL knows and the gateway does not becomes GW_UNSUPPORTED, which fails
 * when it is run, as an error of the statement alone; a syntax error fails the whole text.
 */
#ifndef PN_GATEWAY_PARSE_H
#define PN_GATEWAY_PARSE_H

#include "tree.h"
#include "wire.h"

/* NULL: *error says why. */
struct gw_script *gw_compile(const char *text, size_t len, struct gw_error *error);
struct gw_script *gw_script_hold(struct gw_script *script);
void gw_script_let_go(struct gw_script *script);

/* Fill in the field P for a byte of the text. */
void gw_point_at(struct gw_error *error, const struct gw_script *script, size_t at);

#endif
