/* values.c - see values.h. */
#include "values.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "terms.h"

enum { MAX_ARENA = 1 << 26 };

/* ---- kinds of types -------------------------------------------------------------------------- */

bool gw_is_text(uint32_t type)
{
    return type == GW_TEXT || type == GW_VARCHAR || type == GW_NAME || type == GW_UNKNOWN;
}

bool gw_is_whole(uint32_t type)
{
    return type == GW_INT2 || type == GW_INT4 || type == GW_INT8 || type == GW_OID;
}

bool gw_is_number(uint32_t type)
{
    return gw_is_whole(type) || type == GW_FLOAT8;
}

int16_t gw_type_length(uint32_t type)
{
    switch (type) {
    case GW_BOOL:
        return 1;
    case GW_INT2:
        return 2;
    case GW_INT4:
    case GW_OID:
    case GW_VOID:
        return 4;
    case GW_INT8:
    case GW_FLOAT8:
        return 8;
    case GW_NAME:
        return 64;
    default:
        return -1;
    }
}

/* ---- made, and turned into one another ------------------------------------------------------- */

struct gw_value gw_text_value(const char *text, size_t len)
{
    return (struct gw_value) {.type = GW_TEXT, .text = text, .len = len};
}

struct gw_value gw_whole_value(uint32_t type, int64_t whole)
{
    return (struct gw_value) {.type = type, .whole = whole};
}

struct gw_value gw_null_value(uint32_t type)
{
    return (struct gw_value) {.type = type, .null = true};
}

struct gw_value gw_real_value(double real)
{
    return (struct gw_value) {.type = GW_FLOAT8, .real = real};
}

bool gw_value_no_memory(struct gw_error *error)
{
    return gw_fail(error, "53200", "out of memory");
}

char *gw_take(struct gw_env *env, size_t size)
{
    return env->arena->bytes > MAX_ARENA ? NULL : gw_alloc(env->arena, size);
}

/* The shortest text that reads as the same number. */
static void write_real(double real, char *into, size_t size)
{
    if (isnan(real))
        snprintf(into, size, "NaN");
    else if (isinf(real))
        snprintf(into, size, real < 0 ? "-Infinity" : "Infinity");
    else
        for (int digits = 15; digits <= 17; digits++) {
            snprintf(into, size, "%.*g", digits, real);
            if (strtod(into, NULL) == real)
                break;
        }
}

/* What it is as text; `into` has room for any number. */
static const char *as_text(const struct gw_value *value, char *into, size_t size, size_t *len)
{
    if (gw_is_text(value->type) || value->type == GW_INT4_ARRAY || value->type == GW_VOID) {
        *len = value->len;
        return value->text;
    }
    if (value->type == GW_BOOL)
        snprintf(into, size, "%s", value->whole != 0 ? "t" : "f");
    else if (value->type == GW_FLOAT8)
        write_real(value->real, into, size);
    else
        snprintf(into, size, "%" PRId64, value->whole);
    *len = strlen(into);
    return into;
}

bool gw_out_of_range(struct gw_error *error, uint32_t type)
{
    return gw_fail(error, "22003", "%s out of range", gw_type_name(type));
}

bool gw_in_range(int64_t whole, uint32_t type)
{
    if (type == GW_INT2)
        return whole >= INT16_MIN && whole <= INT16_MAX;
    if (type == GW_INT4)
        return whole >= INT32_MIN && whole <= INT32_MAX;
    return type != GW_OID || (whole >= 0 && whole <= UINT32_MAX);
}

static bool bad_syntax(struct gw_error *error, uint32_t type, const char *text)
{
    return gw_fail(error, "22P02", "invalid input syntax for type %s: \"%s\"", gw_type_name(type),
                   text);
}

static bool truth_of(const char *text, size_t len, int64_t *whole)
{
    static const char *const words[] = {"t", "true",  "y", "yes", "on",  "1",
                                        "f", "false", "n", "no",  "off", "0"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (gw_same_word(text, len, words[i])) {
            *whole = i < 6;
            return true;
        }
    return false;
}

static bool read_text(struct gw_env *env, struct gw_value *value, uint32_t type,
                      struct gw_error *error)
{
    char *text = gw_copy(env->arena, value->text, value->len), *end;
    if (text == NULL)
        return gw_value_no_memory(error);
    if (type == GW_BOOL) {
        if (!truth_of(text, value->len, &value->whole))
            return bad_syntax(error, type, text);
    } else if (type == GW_FLOAT8) {
        value->real = strtod(text, &end);
        if (end == text || end[strspn(end, " ")] != '\0')
            return bad_syntax(error, type, text);
    } else {
        errno = 0;
        value->whole = strtoll(text, &end, 10);
        if (end == text || end[strspn(end, " ")] != '\0')
            return bad_syntax(error, type, text);
        if (errno != 0 || !gw_in_range(value->whole, type))
            return gw_fail(error, "22003", "value \"%s\" is out of range for type %s", text,
                           gw_type_name(type));
    }
    value->type = type;
    return true;
}

static bool write_text(struct gw_env *env, struct gw_value *value, uint32_t type,
                       struct gw_error *error)
{
    char into[40];
    size_t len;
    const char *text = as_text(value, into, sizeof into, &len);
    if (value->type == GW_BOOL) /* a cast says the word */
        text = value->whole != 0 ? "true" : "false", len = strlen(text);
    if (type == GW_NAME)
        len = gw_utf8_clip(text, len, 63);
    text = gw_copy(env->arena, text, len);
    if (text == NULL)
        return gw_value_no_memory(error);
    *value = (struct gw_value) {.type = type, .text = text, .len = len};
    return true;
}

static bool cannot_cast(struct gw_error *error, uint32_t from, uint32_t to)
{
    return gw_fail(error, "42846", "cannot cast type %s to %s", gw_type_name(from),
                   gw_type_name(to));
}

bool gw_convert(struct gw_env *env, struct gw_value *value, uint32_t type, struct gw_error *error)
{
    if (value->type == type || value->null) {
        value->type = type;
        return true;
    }
    if (gw_is_text(type))
        return write_text(env, value, type, error);
    if (gw_is_text(value->type) && type == GW_INT4_ARRAY) {
        value->type = type;
        return true;
    }
    if (gw_is_text(value->type) && (type == GW_BOOL || gw_is_number(type)))
        return read_text(env, value, type, error);
    if (gw_is_whole(value->type) && type == GW_FLOAT8) {
        *value = gw_real_value((double) value->whole);
        return true;
    }
    if (value->type == GW_FLOAT8 && gw_is_whole(type)) {
        double whole = nearbyint(value->real);
        if (!(whole >= -9.2e18 && whole <= 9.2e18) || !gw_in_range((int64_t) whole, type))
            return gw_out_of_range(error, type);
        *value = gw_whole_value(type, (int64_t) whole);
        return true;
    }
    bool whole_or_truth = (gw_is_whole(value->type) || value->type == GW_BOOL);
    if (!whole_or_truth || !(gw_is_whole(type) || type == GW_BOOL))
        return cannot_cast(error, value->type, type);
    if (!gw_in_range(value->whole, type))
        return gw_out_of_range(error, type);
    *value = gw_whole_value(type, type == GW_BOOL ? value->whole != 0 : value->whole);
    return true;
}

/* ---- as they travel -------------------------------------------------------------------------- */

static bool bad_binary(struct gw_error *error)
{
    return gw_fail(error, "22P03", "incorrect binary data format in bind parameter");
}

static bool decode_binary(uint32_t type, const char *bytes, size_t len, struct gw_value *out,
                          struct gw_error *error)
{
    struct gw_reader in = {bytes, bytes + len, false};
    int16_t wanted = gw_type_length(type);
    if (wanted < 0 || (size_t) wanted != len)
        return bad_binary(error);
    uint64_t bits = 0;
    for (size_t i = 0; i < len; i++)
        bits = bits << 8 | gw_get8(&in);
    *out = gw_whole_value(type, (int64_t) bits);
    if (type == GW_FLOAT8)
        memcpy(&out->real, &bits, sizeof out->real);
    else if (type == GW_INT4)
        out->whole = (int32_t) bits;
    else if (type == GW_INT2)
        out->whole = (int16_t) bits;
    return true;
}

bool gw_decode(struct gw_env *env, uint32_t type, bool binary, const char *bytes, size_t len,
               struct gw_value *out, struct gw_error *error)
{
    if (binary && (type == GW_BOOL || gw_is_number(type)))
        return decode_binary(type, bytes, len, out, error);
    if (binary && type == GW_INT4_ARRAY) { /* nothing looks into it */
        *out = (struct gw_value) {.type = type, .text = "{}", .len = 2};
        return true;
    }
    size_t valid = gw_utf8_valid(bytes, len);
    if (valid < len)
        return gw_not_utf8(error, bytes + valid, len - valid);
    const char *text = gw_copy(env->arena, bytes, len);
    if (text == NULL)
        return gw_value_no_memory(error);
    *out = gw_text_value(text, len);
    if (gw_is_text(type)) {
        out->type = type;
        return true;
    }
    return gw_convert(env, out, type, error);
}

void gw_put_value(struct gw_buffer *out, const struct gw_value *value, bool binary)
{
    char into[40];
    size_t len;
    if (value->null) {
        gw_put32(out, UINT32_MAX);
        return;
    }
    if (binary && (value->type == GW_BOOL || gw_is_number(value->type))) {
        uint64_t bits = (uint64_t) value->whole;
        int16_t size = gw_type_length(value->type);
        if (value->type == GW_FLOAT8)
            memcpy(&bits, &value->real, sizeof bits);
        gw_put32(out, (uint32_t) size);
        for (int i = size - 1; i >= 0; i--)
            gw_put8(out, (uint8_t) (bits >> (8 * i)));
        return;
    }
    const char *text = as_text(value, into, sizeof into, &len);
    gw_put32(out, (uint32_t) len);
    gw_put(out, text, len);
}
