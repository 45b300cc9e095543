/* analyse.c - see analyse.h. */
#include "analyse.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "parse.h"
#include "terms.h"
#include "values.h"

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
        return gw_is_text(given);
    if (wanted == GW_FLOAT8)
        return gw_is_number(given);
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
    bool alike = left->type == right->type || (gw_is_text(left->type) && gw_is_text(right->type)) ||
                 (gw_is_number(left->type) && gw_is_number(right->type));
    return (alike && left->type != GW_VOID && left->type != GW_INT4_ARRAY) || no_operator(a, node);
}

static bool analyse_concatenation(struct analysis *a, struct gw_node *node)
{
    deduce(a, node->args[0], GW_TEXT);
    deduce(a, node->args[1], GW_TEXT);
    node->type = GW_TEXT;
    return gw_is_text(node->args[0]->type) || gw_is_text(node->args[1]->type) ||
           no_operator(a, node);
}

static bool analyse_arithmetic(struct analysis *a, struct gw_node *node)
{
    struct gw_node *left = node->args[0], *right = node->args[1];
    deduce_both(a, left, right, GW_INT4);
    if (!gw_is_number(left->type) || !gw_is_number(right->type) ||
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
        if (gw_is_number(node->type))
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
        if (gw_is_whole(bound[i]->type))
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
