/* values.h - values: their kinds, from one type to another, and as they travel. */
#ifndef PN_GATEWAY_VALUES_H
#define PN_GATEWAY_VALUES_H

#include "tree.h"
#include "wire.h"

struct gw_value {
    uint32_t type;
    bool null;
    int64_t whole; /* integers, booleans, OIDs */
    double real;
    const char *text;
    size_t len;
};

/* What an expression is evaluated with. */
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

bool gw_is_text(uint32_t type);
bool gw_is_whole(uint32_t type);
bool gw_is_number(uint32_t type);
/* What PostgreSQL calls pg_type.typlen. */
int16_t gw_type_length(uint32_t type);

struct gw_value gw_null_value(uint32_t type);
struct gw_value gw_text_value(const char *text, size_t len);
struct gw_value gw_whole_value(uint32_t type, int64_t whole);
struct gw_value gw_real_value(double real);

/* Whether an integer type has room for it. */
bool gw_in_range(int64_t whole, uint32_t type);
bool gw_out_of_range(struct gw_error *error, uint32_t type);
bool gw_value_no_memory(struct gw_error *error);
/* Zeroed memory; NULL: there is none, or one statement has taken more than its share. */
char *gw_take(struct gw_env *env, size_t size);

bool gw_convert(struct gw_env *env, struct gw_value *value, uint32_t type, struct gw_error *error);

/* A parameter as Bind brings it. */
bool gw_decode(struct gw_env *env, uint32_t type, bool binary, const char *bytes, size_t len,
               struct gw_value *out, struct gw_error *error);
/* A field of a DataRow, with its length. */
void gw_put_value(struct gw_buffer *out, const struct gw_value *value, bool binary);

#endif
