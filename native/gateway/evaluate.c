/* evaluate.c - see evaluate.h. */
#include "evaluate.h"

#include <math.h>
#include <string.h>

#include "analyse.h"
#include "parse.h"

enum { MAX_REPEATED = 1 << 24 };

static bool call_own(struct gw_env *env, enum gw_function_kind kind, const struct gw_value *args,
                     struct gw_value *out, struct gw_error *error)
{
    size_t len = args[0].len, times = 1;
    if (kind == GW_F_LENGTH) {
        *out = gw_whole_value(GW_INT4, (int64_t) gw_utf8_length(args[0].text, len));
        return true;
    }
    if (kind == GW_F_REPEAT)
        times = args[1].whole < 0 ? 0 : (size_t) args[1].whole;
    if (len > 0 && times > MAX_REPEATED / len)
        return gw_fail(error, "54000", "requested length too large");
    char *text = gw_take(env, len * times + 1);
    if (text == NULL)
        return gw_value_no_memory(error);
    for (size_t i = 0; len > 0 && i < times; i++)
        memcpy(text + i * len, args[0].text, len);
    for (size_t i = 0; kind != GW_F_REPEAT && i < len; i++) {
        if (kind == GW_F_LOWER && text[i] >= 'A' && text[i] <= 'Z')
            text[i] = (char) (text[i] + 32);
        if (kind == GW_F_UPPER && text[i] >= 'a' && text[i] <= 'z')
            text[i] = (char) (text[i] - 32);
    }
    *out = gw_text_value(text, len * times);
    return true;
}

static bool evaluate_call(struct gw_env *env, const struct gw_node *node, struct gw_value *out,
                          struct gw_error *error)
{
    struct gw_value args[3];
    const struct gw_function *function = node->function;
    for (size_t i = 0; i < node->nargs; i++) {
        uint32_t wanted = function->args[i];
        if (!gw_evaluate(env, node->args[i], &args[i], error))
            return false;
        if (wanted != 0 && !gw_convert(env, &args[i], wanted, error))
            return false;
        if (args[i].null && function->strict) {
            *out = gw_null_value(function->result);
            return true;
        }
    }
    if (function->kind == GW_F_LISTENING) {
        *out = env->column;
        return true;
    }
    if (function->kind >= GW_F_SESSION) {
        bool done = env->call(env, function, args, node->nargs, out, error);
        out->type = function->result; /* names and void look like text */
        return done;
    }
    return call_own(env, function->kind, args, out, error);
}

static int compare_values(const struct gw_value *left, const struct gw_value *right)
{
    if (gw_is_text(left->type)) {
        size_t len = left->len < right->len ? left->len : right->len;
        int order = len > 0 ? memcmp(left->text, right->text, len) : 0;
        return order != 0 ? order : (left->len > right->len) - (left->len < right->len);
    }
    if (left->type != GW_FLOAT8 && right->type != GW_FLOAT8)
        return (left->whole > right->whole) - (left->whole < right->whole);
    /* NaN is greater than any number, and equal to itself. */
    double a = left->type == GW_FLOAT8 ? left->real : (double) left->whole;
    double b = right->type == GW_FLOAT8 ? right->real : (double) right->whole;
    if (isnan(a) || isnan(b))
        return (isnan(a) != 0) - (isnan(b) != 0);
    return (a > b) - (a < b);
}

static bool holds(const char *operator, int order)
{
    switch (operator[0]) {
    case '=':
        return order == 0;
    case '!':
        return order != 0;
    case '>':
        return operator[1] == '=' ? order >= 0 : order> 0;
    default:
        return operator[1] == '>' ? order != 0 : operator[1] == '=' ? order <= 0 : order<0;
    }
}

static bool divide(char operator, const struct gw_value * left, const struct gw_value *right,
                   struct gw_value *out, struct gw_error *error)
{
    if (right->whole == 0)
        return gw_fail(error, "22012", "division by zero");
    if (right->whole == -1) { /* the least number has no negative */
        if (operator== '/' && __builtin_sub_overflow(0, left->whole, &out->whole))
            return gw_out_of_range(error, GW_INT8);
        out->whole = operator== '/' ? out->whole : 0;
        return true;
    }
    out->whole = operator== '/' ? left->whole / right->whole : left->whole % right->whole;
    return true;
}

static bool calculate_whole(char operator, const struct gw_value * left,
                            const struct gw_value *right, struct gw_value *out,
                            struct gw_error *error)
{
    bool overflow = false;
    if (operator== '+')
        overflow = __builtin_add_overflow(left->whole, right->whole, &out->whole);
    else if (operator== '-')
        overflow = __builtin_sub_overflow(left->whole, right->whole, &out->whole);
    else if (operator== '*')
        overflow = __builtin_mul_overflow(left->whole, right->whole, &out->whole);
    else if (!divide(operator, left, right, out, error))
        return false;
    return (!overflow && gw_in_range(out->whole, out->type)) || gw_out_of_range(error, out->type);
}

static bool calculate(struct gw_env *env, const struct gw_node *node, struct gw_value *left,
                      struct gw_value *right, struct gw_value *out, struct gw_error *error)
{
    *out = gw_whole_value(node->type, 0);
    if (node->type != GW_FLOAT8)
        return calculate_whole(node->name[0], left, right, out, error);
    if (!gw_convert(env, left, GW_FLOAT8, error) || !gw_convert(env, right, GW_FLOAT8, error))
        return false;
    if (node->name[0] == '/' && right->real == 0)
        return gw_fail(error, "22012", "division by zero");
    switch (node->name[0]) {
    case '+':
        out->real = left->real + right->real;
        return true;
    case '-':
        out->real = left->real - right->real;
        return true;
    case '*':
        out->real = left->real * right->real;
        return true;
    default:
        out->real = left->real / right->real;
        return true;
    }
}

static bool concatenate(struct gw_env *env, struct gw_value *left, struct gw_value *right,
                        struct gw_value *out, struct gw_error *error)
{
    if (!gw_convert(env, left, GW_TEXT, error) || !gw_convert(env, right, GW_TEXT, error))
        return false;
    char *text = gw_take(env, left->len + right->len + 1);
    if (text == NULL)
        return gw_value_no_memory(error);
    if (left->len > 0)
        memcpy(text, left->text, left->len);
    if (right->len > 0)
        memcpy(text + left->len, right->text, right->len);
    *out = gw_text_value(text, left->len + right->len);
    return true;
}

/* A literal has the type of what it is used with, which conversions in gw_analyse() gave it. */
static bool operand(struct gw_env *env, const struct gw_node *node, struct gw_value *out,
                    struct gw_error *error)
{
    return gw_evaluate(env, node, out, error) && gw_convert(env, out, node->type, error);
}

static bool evaluate_binary(struct gw_env *env, const struct gw_node *node, struct gw_value *out,
                            struct gw_error *error)
{
    struct gw_value left, right;
    if (!operand(env, node->args[0], &left, error) || !operand(env, node->args[1], &right, error))
        return false;
    if (left.null || right.null) {
        *out = gw_null_value(node->type);
        return true;
    }
    if (node->kind == GW_CONCATENATION)
        return concatenate(env, &left, &right, out, error);
    if (node->kind == GW_ARITHMETIC)
        return calculate(env, node, &left, &right, out, error);
    *out = gw_whole_value(GW_BOOL, holds(node->name, compare_values(&left, &right)));
    return true;
}

/* AND and OR of three values: what decides is `decisive`, else NULL if there is one. */
static bool evaluate_junction(struct gw_env *env, const struct gw_node *node, struct gw_value *out,
                              struct gw_error *error)
{
    bool decisive = node->kind == GW_OR, null = false;
    for (size_t i = 0; i < 2; i++) {
        if (!operand(env, node->args[i], out, error))
            return false;
        if (!out->null && (out->whole != 0) == decisive)
            return true;
        null |= out->null;
    }
    *out = null ? gw_null_value(GW_BOOL) : gw_whole_value(GW_BOOL, !decisive);
    return true;
}

static bool evaluate_unary(struct gw_env *env, const struct gw_node *node, struct gw_value *out,
                           struct gw_error *error)
{
    if (!operand(env, node->args[0], out, error))
        return false;
    bool truth = out->whole != 0, null = out->null;
    switch (node->kind) {
    case GW_IS_NULL:
        *out = gw_whole_value(GW_BOOL, null != node->negated);
        return true;
    case GW_IS:
        *out = gw_whole_value(GW_BOOL, (!null && truth == (node->whole != 0)) != node->negated);
        return true;
    case GW_NOT:
        out->whole = !truth;
        return true;
    default:
        if (!null && node->type != GW_FLOAT8 &&
            (__builtin_sub_overflow(0, out->whole, &out->whole) ||
             !gw_in_range(out->whole, node->type)))
            return gw_out_of_range(error, node->type);
        out->real = -out->real;
        return true;
    }
}

static bool evaluate_literal(struct gw_env *env, const struct gw_node *node, struct gw_value *out,
                             struct gw_error *error)
{
    *out = gw_text_value(node->text, node->len);
    if (gw_convert(env, out, node->type == GW_UNKNOWN ? GW_TEXT : node->type, error))
        return true;
    gw_point_at(error, env->script, node->at);
    return false;
}

bool gw_evaluate(struct gw_env *env, const struct gw_node *node, struct gw_value *out,
                 struct gw_error *error)
{
    switch (node->kind) {
    case GW_NULL:
        *out = gw_null_value(node->type);
        return true;
    case GW_LITERAL:
        return evaluate_literal(env, node, out, error);
    case GW_TRUTH:
    case GW_WHOLE:
        *out = gw_whole_value(node->type, node->whole);
        return true;
    case GW_REAL:
        *out = gw_real_value(node->real);
        return true;
    case GW_ARGUMENT:
        *out = env->args[node->whole - 1];
        return true;
    case GW_COLUMN:
        *out = env->column;
        return true;
    case GW_CALL:
        return evaluate_call(env, node, out, error);
    case GW_CONVERSION:
        return gw_evaluate(env, node->args[0], out, error) &&
               gw_convert(env, out, node->type, error);
    case GW_COMPARISON:
    case GW_CONCATENATION:
    case GW_ARITHMETIC:
        return evaluate_binary(env, node, out, error);
    case GW_AND:
    case GW_OR:
        return evaluate_junction(env, node, out, error);
    case GW_NEGATION:
    case GW_NOT:
    case GW_IS_NULL:
    case GW_IS:
        return evaluate_unary(env, node, out, error);
    }
    return false;
}
