/* expr.c - see expr.h. */
#include "expr.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parse.h"
#include "terms.h"

enum { MAX_REPEATED = 1 << 24, MAX_ARENA = 1 << 26 };

static const struct gw_function functions[] = {
    {"count", GW_F_COUNT, GW_INT8, 1, 1, {0}, false},
    {"length", GW_F_LENGTH, GW_INT4, 1, 1, {GW_TEXT}, true},
    {"lower", GW_F_LOWER, GW_TEXT, 1, 1, {GW_TEXT}, true},
    {"repeat", GW_F_REPEAT, GW_TEXT, 2, 2, {GW_TEXT, GW_INT4}, true},
    {"upper", GW_F_UPPER, GW_TEXT, 1, 1, {GW_TEXT}, true},
    {"pg_listening_channels", GW_F_LISTENING, GW_TEXT, 0, 0, {0}, false},
    {"pg_backend_pid", GW_F_BACKEND_PID, GW_INT4, 0, 0, {0}, false},
    {"pg_cancel_backend", GW_F_CANCEL, GW_BOOL, 1, 1, {GW_INT4}, true},
    {"current_setting", GW_F_CURRENT_SETTING, GW_TEXT, 1, 2, {GW_TEXT, GW_BOOL}, true},
    {"current_database", GW_F_DATABASE, GW_NAME, 0, 0, {0}, false},
    {"current_catalog", GW_F_DATABASE, GW_NAME, 0, 0, {0}, false},
    {"pg_client_encoding", GW_F_ENCODING, GW_NAME, 0, 0, {0}, false},
    {"pg_is_in_recovery", GW_F_IN_RECOVERY, GW_BOOL, 0, 0, {0}, false},
    {"pg_isolation_test_session_is_blocked",
     GW_F_IS_BLOCKED,
     GW_BOOL,
     2,
     2,
     {GW_INT4, GW_INT4_ARRAY},
     true},
    {"pg_notify", GW_F_NOTIFY, GW_VOID, 2, 2, {GW_TEXT, GW_TEXT}, false},
    {"current_schema", GW_F_SCHEMA, GW_NAME, 0, 0, {0}, false},
    {"set_config", GW_F_SET_CONFIG, GW_TEXT, 3, 3, {GW_TEXT, GW_TEXT, GW_BOOL}, false},
    {"pg_sleep", GW_F_SLEEP, GW_VOID, 1, 1, {GW_FLOAT8}, true},
    {"pg_terminate_backend", GW_F_TERMINATE, GW_BOOL, 1, 2, {GW_INT4, GW_INT8}, true},
    {"pg_advisory_unlock_all", GW_F_UNLOCK_ALL, GW_VOID, 0, 0, {0}, false},
    {"pg_notification_queue_usage", GW_F_USAGE, GW_FLOAT8, 0, 0, {0}, false},
    {"current_user", GW_F_USER, GW_NAME, 0, 0, {0}, false},
    {"session_user", GW_F_USER, GW_NAME, 0, 0, {0}, false},
    {"current_role", GW_F_USER, GW_NAME, 0, 0, {0}, false},
    {"user", GW_F_USER, GW_NAME, 0, 0, {0}, false},
    {"version", GW_F_VERSION, GW_TEXT, 0, 0, {0}, false},
};

/* ---- kinds of types -------------------------------------------------------------------------- */

static bool is_text(uint32_t type)
{
    return type == GW_TEXT || type == GW_VARCHAR || type == GW_NAME || type == GW_UNKNOWN;
}

static bool is_whole(uint32_t type)
{
    return type == GW_INT2 || type == GW_INT4 || type == GW_INT8 || type == GW_OID;
}

static bool is_number(uint32_t type)
{
    return is_whole(type) || type == GW_FLOAT8;
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

/* ---- analysis -------------------------------------------------------------------------------- */

struct analysis {
    struct gw_script *script;
    struct gw_statement *statement;
    struct gw_error *error;
    bool inconsistent; /* a parameter would have two types; `error` says so */
};

static bool refuse(struct analysis *a, const struct gw_node *node)
{
    gw_point_at(a->error, a->script, node->at);
    return false;
}

/* What is not known yet becomes `type`. */
static void deduce(struct analysis *a, struct gw_node *node, uint32_t type)
{
    if (node->type != GW_UNKNOWN)
        return;
    node->type = type;
    if (node->kind != GW_ARGUMENT)
        return;
    uint32_t *known = &a->script->types[node->whole - 1];
    if (*known == 0 || *known == GW_UNKNOWN)
        *known = type;
    if (*known == type || a->inconsistent)
        return;
    gw_fail(a->error, "42P08", "inconsistent types deduced for parameter $%" PRId64, node->whole);
    gw_detail(a->error, "%s versus %s", gw_type_name(*known), gw_type_name(type));
    gw_point_at(a->error, a->script, node->at);
    a->inconsistent = true;
}

static bool fits(uint32_t given, uint32_t wanted)
{
    if (wanted == 0 || given == wanted || given == GW_UNKNOWN)
        return true;
    if (wanted == GW_TEXT)
        return is_text(given);
    if (wanted == GW_FLOAT8)
        return is_number(given);
    if (wanted == GW_INT8)
        return given == GW_INT4 || given == GW_INT2;
    return wanted == GW_INT4 && given == GW_INT2;
}

static bool unknown_function(struct analysis *a, const struct gw_node *node)
{
    char types[256] = "";
    size_t used = 0;
    for (size_t i = 0; i < node->nargs; i++)
        used += (size_t) snprintf(types + used, sizeof types - used, "%s%s", i > 0 ? ", " : "",
                                  gw_type_name(node->args[i]->type));
    gw_fail(a->error, "42883", "function %s(%s) does not exist", node->name, types);
    gw_hint(a->error, "No function matches the given name and argument types. You might need to "
                      "add explicit type casts.");
    return refuse(a, node);
}

static bool analyse_call(struct analysis *a, struct gw_node *node)
{
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        const struct gw_function *function = &functions[i];
        bool found = strcmp(function->name, node->name) == 0 &&
                     (node->star ? function->kind == GW_F_COUNT
                                 : node->nargs >= function->least && node->nargs <= function->most);
        for (size_t j = 0; found && j < node->nargs; j++)
            found = fits(node->args[j]->type, function->args[j]);
        if (!found)
            continue;
        for (size_t j = 0; j < node->nargs; j++)
            deduce(a, node->args[j], function->args[j] != 0 ? function->args[j] : GW_TEXT);
        node->function = function;
        node->type = function->result;
        return true;
    }
    return unknown_function(a, node);
}

static bool no_operator(struct analysis *a, const struct gw_node *node)
{
    gw_fail(a->error, "42883", "operator does not exist: %s %s %s",
            gw_type_name(node->args[0]->type), node->name, gw_type_name(node->args[1]->type));
    gw_hint(a->error, "No operator matches the given name and argument types. You might need to "
                      "add explicit type casts.");
    return refuse(a, node);
}

/* Of two operands one may say what the other is. */
static void deduce_both(struct analysis *a, struct gw_node *left, struct gw_node *right,
                        uint32_t otherwise)
{
    deduce(a, left, right->type != GW_UNKNOWN ? right->type : otherwise);
    deduce(a, right, left->type);
}

static bool analyse_comparison(struct analysis *a, struct gw_node *node)
{
    struct gw_node *left = node->args[0], *right = node->args[1];
    deduce_both(a, left, right, GW_TEXT);
    node->type = GW_BOOL;
    bool alike = left->type == right->type || (is_text(left->type) && is_text(right->type)) ||
                 (is_number(left->type) && is_number(right->type));
    return (alike && left->type != GW_VOID && left->type != GW_INT4_ARRAY) || no_operator(a, node);
}

static bool analyse_concatenation(struct analysis *a, struct gw_node *node)
{
    deduce(a, node->args[0], GW_TEXT);
    deduce(a, node->args[1], GW_TEXT);
    node->type = GW_TEXT;
    return is_text(node->args[0]->type) || is_text(node->args[1]->type) || no_operator(a, node);
}

static bool analyse_arithmetic(struct analysis *a, struct gw_node *node)
{
    struct gw_node *left = node->args[0], *right = node->args[1];
    deduce_both(a, left, right, GW_INT4);
    if (!is_number(left->type) || !is_number(right->type) ||
        (node->name[0] == '%' && (left->type == GW_FLOAT8 || right->type == GW_FLOAT8)))
        return no_operator(a, node);
    if (left->type == GW_FLOAT8 || right->type == GW_FLOAT8)
        node->type = GW_FLOAT8;
    else if (left->type == GW_INT8 || right->type == GW_INT8)
        node->type = GW_INT8;
    else
        node->type = GW_INT4;
    return true;
}

static bool analyse_truth(struct analysis *a, struct gw_node *node, const char *what)
{
    node->type = GW_BOOL;
    for (size_t i = 0; i < node->nargs; i++) {
        deduce(a, node->args[i], GW_BOOL);
        if (node->args[i]->type == GW_BOOL)
            continue;
        gw_fail(a->error, "42804", "argument of %s must be type boolean, not type %s", what,
                gw_type_name(node->args[i]->type));
        return refuse(a, node->args[i]);
    }
    return true;
}

static bool analyse_argument(struct analysis *a, struct gw_node *node)
{
    if ((size_t) node->whole > a->script->ntypes) {
        gw_fail(a->error, "42P02", "there is no parameter $%" PRId64, node->whole);
        return refuse(a, node);
    }
    uint32_t type = a->script->types[node->whole - 1];
    node->type = type == 0 ? GW_UNKNOWN : type;
    return true;
}

static bool analyse_column(struct analysis *a, struct gw_node *node)
{
    const struct gw_statement *statement = a->statement;
    node->type = statement->from == GW_FROM_SERIES ? GW_INT4 : GW_TEXT;
    if (statement->from == GW_FROM_SERIES &&
        (statement->first->type == GW_INT8 || statement->last->type == GW_INT8))
        node->type = GW_INT8;
    if (node->star && statement->from == GW_FROM_NOTHING) {
        gw_fail(a->error, "42601", "SELECT * with no tables specified is not valid");
        return refuse(a, node);
    }
    if (node->star ||
        (statement->from != GW_FROM_NOTHING && (strcmp(node->name, statement->column) == 0 ||
                                                strcmp(node->name, statement->relation) == 0)))
        return true;
    gw_fail(a->error, "42703", "column \"%s\" does not exist", node->name);
    return refuse(a, node);
}

static bool analyse(struct analysis *a, struct gw_node *node)
{
    for (size_t i = 0; i < node->nargs; i++)
        if (!analyse(a, node->args[i]))
            return false;
    switch (node->kind) {
    case GW_NULL:
    case GW_LITERAL:
        node->type = GW_UNKNOWN;
        return true;
    case GW_TRUTH:
        node->type = GW_BOOL;
        return true;
    case GW_WHOLE:
        node->type = node->whole > INT32_MAX ? GW_INT8 : GW_INT4;
        return true;
    case GW_REAL:
        node->type = GW_FLOAT8;
        return true;
    case GW_ARGUMENT:
        return analyse_argument(a, node);
    case GW_COLUMN:
        return analyse_column(a, node);
    case GW_CALL:
        return analyse_call(a, node);
    case GW_CONVERSION:
        deduce(a, node->args[0], node->type);
        return true;
    case GW_COMPARISON:
        return analyse_comparison(a, node);
    case GW_CONCATENATION:
        return analyse_concatenation(a, node);
    case GW_ARITHMETIC:
        return analyse_arithmetic(a, node);
    case GW_NEGATION:
        deduce(a, node->args[0], GW_INT4);
        node->type = node->args[0]->type;
        if (is_number(node->type))
            return true;
        gw_fail(a->error, "42883", "operator does not exist: - %s", gw_type_name(node->type));
        return refuse(a, node);
    case GW_NOT:
        return analyse_truth(a, node, "NOT");
    case GW_AND:
        return analyse_truth(a, node, "AND");
    case GW_OR:
        return analyse_truth(a, node, "OR");
    case GW_IS:
        return analyse_truth(a, node, "IS");
    case GW_IS_NULL:
        deduce(a, node->args[0], GW_TEXT);
        node->type = GW_BOOL;
        return true;
    }
    return false;
}

/* A parameter that is used twice may be known only at its second place. */
static void settle(struct analysis *a, struct gw_node *node)
{
    if (node->kind == GW_ARGUMENT)
        node->type = a->script->types[node->whole - 1];
    for (size_t i = 0; i < node->nargs; i++)
        settle(a, node->args[i]);
}

/* What is allowed at the top of a select list only. */
static bool check_places(struct analysis *a, const struct gw_node *node, bool top)
{
    bool counts = node->function != NULL && node->function->kind == GW_F_COUNT;
    bool of_session = node->function != NULL && (node->function->kind == GW_F_SLEEP ||
                                                 node->function->kind == GW_F_LISTENING);
    if (!top && (counts || of_session)) {
        gw_fail(a->error, "0A000", "%s() inside of another expression is not supported",
                node->name);
        gw_hint(a->error, "%s", gw_no_database_hint);
        return refuse(a, node);
    }
    for (size_t i = 0; i < node->nargs; i++)
        if (!check_places(a, node->args[i], false))
            return false;
    return true;
}

static bool analyse_item(struct analysis *a, struct gw_item *item)
{
    struct gw_node *node = item->value;
    struct gw_statement *statement = a->statement;
    if (!analyse(a, node) || !check_places(a, node, true))
        return false;
    if (node->kind == GW_COLUMN && item->label == NULL)
        item->label = statement->column;
    if (node->function == NULL)
        return true;
    statement->aggregate |= node->function->kind == GW_F_COUNT;
    if (node->function->kind == GW_F_LISTENING) {
        if (statement->from == GW_FROM_NOTHING && statement->nitems == 1)
            statement->from = GW_FROM_LISTENING;
        else {
            gw_fail(a->error, "0A000", "%s() beside other columns is not supported", node->name);
            return refuse(a, node);
        }
    }
    return true;
}

static bool analyse_series(struct analysis *a)
{
    struct gw_node *bound[2] = {a->statement->first, a->statement->last};
    for (size_t i = 0; i < 2; i++) {
        if (!analyse(a, bound[i]) || !check_places(a, bound[i], false))
            return false;
        deduce(a, bound[i], GW_INT4);
        if (is_whole(bound[i]->type))
            continue;
        gw_fail(a->error, "0A000", "a series of no integers is not supported");
        return refuse(a, bound[i]);
    }
    return true;
}

static bool only_aggregates(struct analysis *a)
{
    for (struct gw_item *item = a->statement->items; item != NULL; item = item->next) {
        const struct gw_function *function = item->value->function;
        if (!a->statement->aggregate || (function != NULL && function->kind == GW_F_COUNT))
            continue;
        gw_fail(a->error, "0A000", "count() beside other columns is not supported");
        return refuse(a, item->value);
    }
    return true;
}

bool gw_analyse(struct gw_script *script, struct gw_statement *statement, struct gw_error *error)
{
    struct analysis a = {script, statement, error, false};
    if (statement->analysed)
        return true;
    if (statement->kind == GW_SELECT && statement->from != GW_FROM_CATALOGUE) {
        if (statement->from == GW_FROM_SERIES && !analyse_series(&a))
            return false;
        for (struct gw_item *item = statement->items; item != NULL; item = item->next)
            if (!analyse_item(&a, item))
                return false;
        for (struct gw_item *item = statement->items; item != NULL; item = item->next)
            deduce(&a, item->value, GW_TEXT);
        if (a.inconsistent || !only_aggregates(&a))
            return false;
    } else if (statement->nparams > script->ntypes) {
        gw_fail(error, "42P02", "there is no parameter $%u", statement->nparams);
        return false;
    }
    for (size_t i = 0; i < script->ntypes; i++)
        if (script->types[i] == 0 || script->types[i] == GW_UNKNOWN)
            script->types[i] = GW_TEXT;
    for (struct gw_item *item = statement->items; item != NULL; item = item->next) {
        if (item->value == NULL)
            continue;
        settle(&a, item->value);
        item->type = item->value->type;
    }
    statement->analysed = true;
    return true;
}

/* ---- values ---------------------------------------------------------------------------------- */

struct gw_value gw_text_value(const char *text, size_t len)
{
    return (struct gw_value) {.type = GW_TEXT, .text = text, .len = len};
}

struct gw_value gw_whole_value(uint32_t type, int64_t whole)
{
    return (struct gw_value) {.type = type, .whole = whole};
}

static struct gw_value real_value(double real)
{
    return (struct gw_value) {.type = GW_FLOAT8, .real = real};
}

static bool no_memory(struct gw_error *error)
{
    return gw_fail(error, "53200", "out of memory");
}

/* Zeroed memory; NULL: there is none, or one statement has taken more than its share. */
static char *take(struct gw_env *env, size_t size)
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
    if (is_text(value->type) || value->type == GW_INT4_ARRAY || value->type == GW_VOID) {
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

static bool out_of_range(struct gw_error *error, uint32_t type)
{
    return gw_fail(error, "22003", "%s out of range", gw_type_name(type));
}

static bool in_range(int64_t whole, uint32_t type)
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
        return no_memory(error);
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
        if (errno != 0 || !in_range(value->whole, type))
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
        return no_memory(error);
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
    if (is_text(type))
        return write_text(env, value, type, error);
    if (is_text(value->type) && type == GW_INT4_ARRAY) {
        value->type = type;
        return true;
    }
    if (is_text(value->type) && (type == GW_BOOL || is_number(type)))
        return read_text(env, value, type, error);
    if (is_whole(value->type) && type == GW_FLOAT8) {
        *value = real_value((double) value->whole);
        return true;
    }
    if (value->type == GW_FLOAT8 && is_whole(type)) {
        double whole = nearbyint(value->real);
        if (!(whole >= -9.2e18 && whole <= 9.2e18) || !in_range((int64_t) whole, type))
            return out_of_range(error, type);
        *value = gw_whole_value(type, (int64_t) whole);
        return true;
    }
    bool whole_or_truth = (is_whole(value->type) || value->type == GW_BOOL);
    if (!whole_or_truth || !(is_whole(type) || type == GW_BOOL))
        return cannot_cast(error, value->type, type);
    if (!in_range(value->whole, type))
        return out_of_range(error, type);
    *value = gw_whole_value(type, type == GW_BOOL ? value->whole != 0 : value->whole);
    return true;
}

/* ---- evaluation ------------------------------------------------------------------------------ */

static struct gw_value null_value(uint32_t type)
{
    return (struct gw_value) {.type = type, .null = true};
}

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
    char *text = take(env, len * times + 1);
    if (text == NULL)
        return no_memory(error);
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
            *out = null_value(function->result);
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
    if (is_text(left->type)) {
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
            return out_of_range(error, GW_INT8);
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
    return (!overflow && in_range(out->whole, out->type)) || out_of_range(error, out->type);
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
    char *text = take(env, left->len + right->len + 1);
    if (text == NULL)
        return no_memory(error);
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
        *out = null_value(node->type);
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
    *out = null ? null_value(GW_BOOL) : gw_whole_value(GW_BOOL, !decisive);
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
             !in_range(out->whole, node->type)))
            return out_of_range(error, node->type);
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
        *out = null_value(node->type);
        return true;
    case GW_LITERAL:
        return evaluate_literal(env, node, out, error);
    case GW_TRUTH:
    case GW_WHOLE:
        *out = gw_whole_value(node->type, node->whole);
        return true;
    case GW_REAL:
        *out = real_value(node->real);
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
    if (binary && (type == GW_BOOL || is_number(type)))
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
        return no_memory(error);
    *out = gw_text_value(text, len);
    if (is_text(type)) {
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
    if (binary && (value->type == GW_BOOL || is_number(value->type))) {
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
