/*
 * analyse.h - of which types the expressions of a statement are, and which functions they call.
 */
#ifndef PN_GATEWAY_ANALYSE_H
#define PN_GATEWAY_ANALYSE_H

#include "tree.h"
#include "wire.h"

enum gw_function_kind {
    GW_F_COUNT,
    GW_F_LENGTH,
    GW_F_LOWER,
    GW_F_REPEAT,
    GW_F_UPPER,
    GW_F_LISTENING,
    GW_F_SESSION, /* from here on it is gw_env.call()'s */
    GW_F_BACKEND_PID = GW_F_SESSION,
    GW_F_CANCEL,
    GW_F_CURRENT_SETTING,
    GW_F_DATABASE,
    GW_F_ENCODING,
    GW_F_IN_RECOVERY,
    GW_F_IS_BLOCKED,
    GW_F_NOTIFY,
    GW_F_SCHEMA,
    GW_F_SET_CONFIG,
    GW_F_SLEEP,
    GW_F_TERMINATE,
    GW_F_UNLOCK_ALL,
    GW_F_USAGE,
    GW_F_USER,
    GW_F_VERSION
};

struct gw_function {
    const char *name;
    enum gw_function_kind kind;
    uint32_t result;
    size_t least, most; /* arguments */
    uint32_t args[3];   /* 0: of any type */
    bool strict;        /* NULL of NULL */
};

/*
 * Resolve what a SELECT says; script->types [ntypes] are what is known of its parameters, 0 of
 * those of which nothing is, and are resolved as well.
 */
bool gw_analyse(struct gw_script *script, struct gw_statement *statement, struct gw_error *error);

#endif
