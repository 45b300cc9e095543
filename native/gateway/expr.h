/*
 * expr.h - expressions: of which type they are, and what they are worth.
 *
 * gw_analyse() resolves types and functions once for a statement; gw_evaluate() walks the tree.
 * What a function does to the session it leaves to gw_env.call().
 */
#ifndef PN_GATEWAY_EXPR_H
#define PN_GATEWAY_EXPR_H

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

struct gw_value {
    uint32_t type;
    bool null;
    int64_t whole; /* integers, booleans, OIDs */
    double real;
    const char *text;
    size_t len;
};

struct gw_env {
    struct gw_arena *arena; /* for what is made on the way */
    const struct gw_script *script;
    const struct gw_value *args; /* of the script */
    struct gw_value column;      /* the row's */
    bool (*call)(struct gw_env *env, const struct gw_function *function,
                 const struct gw_value *args, size_t nargs, struct gw_value *out,
                 struct gw_error *error);
    void *session;
};

/*
 * Resolve what a SELECT says; script->types [ntypes] are what is known of its parameters, 0 of
 * those of which nothing is, and are resolved as well.
 */
bool gw_analyse(struct gw_script *script, struct gw_statement *statement, struct gw_error *error);

bool gw_evaluate(struct gw_env *env, const struct gw_node *node, struct gw_value *out,
                 struct gw_error *error);
bool gw_convert(struct gw_env *env, struct gw_value *value, uint32_t type, struct gw_error *error);
/* What PostgreSQL calls pg_type.typlen. */
int16_t gw_type_length(uint32_t type);

struct gw_value gw_text_value(const char *text, size_t len);
struct gw_value gw_whole_value(uint32_t type, int64_t whole);

/* A parameter as Bind brings it. */
bool gw_decode(struct gw_env *env, uint32_t type, bool binary, const char *bytes, size_t len,
               struct gw_value *out, struct gw_error *error);
/* A field of a DataRow, with its length. */
void gw_put_value(struct gw_buffer *out, const struct gw_value *value, bool binary);

#endif
