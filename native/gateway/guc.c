/* guc.c - see guc.h. */
#include "guc.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "arena.h"

enum kind {
    TEXT,
    TRUTH,
    CHOICE,
    NUMBER,
    DURATION,
    ENCODING,
    DATE_STYLE,
    CONFORMING,
    IDENTITY,
    FIXED
};

enum { REPORTED = 1 };

struct known {
    const char *name, *value;
    enum kind kind;
    unsigned flags;
    const char *choices; /* words with a blank around each */
};

#define LEVELS   " debug5 debug4 debug3 debug2 debug1 debug log notice warning error "
#define ISOLATED " serializable repeatable_read read_committed read_uncommitted "

/* In the order in which PostgreSQL shows them: the alphabet's, whatever the case. */
static const struct known known_settings[] = {
    {"application_name", "", TEXT, REPORTED, NULL},
    {"backslash_quote", "safe_encoding", CHOICE, 0, " safe_encoding on off "},
    {"bytea_output", "hex", CHOICE, 0, " escape hex "},
    {"check_function_bodies", "on", TRUTH, 0, NULL},
    {"client_encoding", "UTF8", ENCODING, REPORTED, NULL},
    {"client_min_messages", "notice", CHOICE, 0, LEVELS},
    {"DateStyle", "ISO, MDY", DATE_STYLE, REPORTED, NULL},
    {"deadlock_timeout", "1s", DURATION, 0, NULL},
    {"default_transaction_deferrable", "off", TRUTH, 0, NULL},
    {"default_transaction_isolation", "read committed", CHOICE, 0, ISOLATED},
    {"default_transaction_read_only", "off", TRUTH, REPORTED, NULL},
    {"escape_string_warning", "on", TRUTH, 0, NULL},
    {"extra_float_digits", "1", NUMBER, 0, NULL},
    {"geqo", "on", TRUTH, 0, NULL},
    {"idle_in_transaction_session_timeout", "0", DURATION, 0, NULL},
    {"idle_session_timeout", "0", DURATION, 0, NULL},
    {"in_hot_standby", "off", FIXED, REPORTED, NULL},
    {"integer_datetimes", "on", FIXED, REPORTED, NULL},
    {"IntervalStyle", "postgres", CHOICE, REPORTED,
     " postgres postgres_verbose sql_standard iso_8601 "},
    {"is_superuser", "off", FIXED, REPORTED, NULL},
    {"jit", "on", TRUTH, 0, NULL},
    {"lc_messages", "C", TEXT, 0, NULL},
    {"lc_monetary", "C", TEXT, 0, NULL},
    {"lc_numeric", "C", TEXT, 0, NULL},
    {"lc_time", "C", TEXT, 0, NULL},
    {"lock_timeout", "0", DURATION, 0, NULL},
    {"max_identifier_length", "63", FIXED, 0, NULL},
    {"quote_all_identifiers", "off", TRUTH, 0, NULL},
    {"role", "none", TEXT, 0, NULL},
    {"row_security", "on", TRUTH, 0, NULL},
    {"search_path", "\"$user\", public", TEXT, 0, NULL},
    {"server_encoding", "UTF8", FIXED, REPORTED, NULL},
    {"server_version", NULL, FIXED, REPORTED, NULL},
    {"server_version_num", "150000", FIXED, 0, NULL},
    {"session_authorization", NULL, IDENTITY, REPORTED, NULL},
    {"standard_conforming_strings", "on", CONFORMING, REPORTED, NULL},
    {"statement_timeout", "0", DURATION, 0, NULL},
    {"synchronous_commit", "on", TEXT, 0, NULL},
    {"synchronize_seqscans", "on", TRUTH, 0, NULL},
    {"tcp_keepalives_count", "0", NUMBER, 0, NULL},
    {"tcp_keepalives_idle", "0", NUMBER, 0, NULL},
    {"tcp_keepalives_interval", "0", NUMBER, 0, NULL},
    {"tcp_user_timeout", "0", NUMBER, 0, NULL},
    {"TimeZone", "UTC", TEXT, REPORTED, NULL},
    {"transaction_deferrable", "off", TRUTH, 0, NULL},
    {"transaction_isolation", "read committed", CHOICE, 0, ISOLATED},
    {"transaction_read_only", "off", TRUTH, 0, NULL},
    {"work_mem", "4MB", TEXT, 0, NULL},
    {"xmloption", "content", CHOICE, 0, " content document "},
};

enum {
    NKNOWN = sizeof known_settings / sizeof *known_settings,
    MAX_CUSTOM = 256,
    VALUE_MAX = 8192,
    MAX_UNDO = 10000
};

/* A setting; `value` and `reset` are NULL as long as they are the known default. */
struct setting {
    const struct known *known; /* NULL: a custom one, of a name with a dot */
    char *name, *value, *reset;
    bool changed; /* and the client is to be told, unless it knows */
    char *told;   /* what it was told; NULL: nothing yet, or no memory */
};

/* What a transaction that is rolled back has to put back. */
struct undo {
    size_t setting;
    char *value;
    uint32_t level;
    bool local;
};

struct gw_settings {
    struct setting *setting;
    size_t n;
    struct undo *undo;
    size_t nundo, undo_room;
    char *server_version, *user;
};

/* ---- memory ---------------------------------------------------------------------------------- */

struct gw_settings *gw_settings_new(const char *server_version, const char *user)
{
    struct gw_settings *settings = calloc(1, sizeof *settings);
    if (settings == NULL)
        return NULL;
    settings->setting = calloc(NKNOWN, sizeof *settings->setting);
    settings->server_version = strdup(server_version);
    settings->user = strdup(user);
    if (settings->setting == NULL || settings->server_version == NULL || settings->user == NULL) {
        gw_settings_free(settings);
        return NULL;
    }
    settings->n = NKNOWN;
    for (size_t i = 0; i < NKNOWN; i++)
        settings->setting[i].known = &known_settings[i];
    return settings;
}

void gw_settings_free(struct gw_settings *settings)
{
    if (settings == NULL)
        return;
    for (size_t i = 0; i < settings->n; i++) {
        free(settings->setting[i].name);
        free(settings->setting[i].value);
        free(settings->setting[i].reset);
        free(settings->setting[i].told);
    }
    for (size_t i = 0; i < settings->nundo; i++)
        free(settings->undo[i].value);
    free(settings->setting);
    free(settings->undo);
    free(settings->server_version);
    free(settings->user);
    free(settings);
}

/* ---- finding --------------------------------------------------------------------------------- */

static const char *name_of(const struct setting *setting)
{
    return setting->known != NULL ? setting->known->name : setting->name;
}

static const char *default_of(const struct gw_settings *settings, const struct setting *setting)
{
    if (setting->reset != NULL)
        return setting->reset;
    if (setting->known == NULL)
        return "";
    if (setting->known->value != NULL)
        return setting->known->value;
    return setting->known->kind == IDENTITY ? settings->user : settings->server_version;
}

static const char *value_of(const struct gw_settings *settings, const struct setting *setting)
{
    return setting->value != NULL ? setting->value : default_of(settings, setting);
}

static struct setting *find(const struct gw_settings *settings, const char *name)
{
    size_t len = strlen(name);
    for (size_t i = 0; i < settings->n; i++)
        if (gw_same_word(name, len, name_of(&settings->setting[i])))
            return &settings->setting[i];
    return NULL;
}

const char *gw_setting(const struct gw_settings *settings, const char *name)
{
    const struct setting *setting = find(settings, name);
    return setting == NULL ? NULL : value_of(settings, setting);
}

const char *gw_setting_name(const struct gw_settings *settings, const char *name)
{
    const struct setting *setting = find(settings, name);
    return setting == NULL ? NULL : name_of(setting);
}

bool gw_setting_at(const struct gw_settings *settings, size_t i, const char **name,
                   const char **value)
{
    if (i >= NKNOWN)
        return false;
    *name = name_of(&settings->setting[i]);
    *value = value_of(settings, &settings->setting[i]);
    return true;
}

static bool out_of_memory(struct gw_error *error)
{
    return gw_fail(error, "53200", "out of memory");
}

/* A name with a dot is any client's; NULL: *error. */
static struct setting *find_or_add(struct gw_settings *settings, const char *name,
                                   struct gw_error *error)
{
    struct setting *setting = find(settings, name);
    if (setting != NULL)
        return setting;
    if (strchr(name, '.') == NULL) {
        gw_fail(error, "42704", "unrecognized configuration parameter \"%s\"", name);
        return NULL;
    }
    if (settings->n == NKNOWN + MAX_CUSTOM) {
        gw_fail(error, "53400", "a session has at most %d custom parameters", MAX_CUSTOM);
        return NULL;
    }
    struct setting *grown =
        realloc(settings->setting, (settings->n + 1) * sizeof *settings->setting);
    char *copy = strdup(name);
    if (grown != NULL)
        settings->setting = grown;
    if (grown == NULL || copy == NULL) {
        free(copy);
        out_of_memory(error);
        return NULL;
    }
    setting = &settings->setting[settings->n++];
    *setting = (struct setting) {.name = copy};
    return setting;
}

/* ---- values: what is accepted, and how it is written ----------------------------------------- */

static bool invalid(const struct setting *setting, const char *value, struct gw_error *error)
{
    return gw_fail(error, "22023", "invalid value for parameter \"%s\": \"%s\"", name_of(setting),
                   value);
}

static bool is_prefix(const char *value, const char *word, size_t least)
{
    size_t len = strlen(value);
    char begin[8];
    if (len < least || len > strlen(word) || len >= sizeof begin)
        return false;
    memcpy(begin, word, len);
    begin[len] = '\0';
    return gw_same_word(value, len, begin);
}

static const char *as_truth(const char *value)
{
    if (is_prefix(value, "true", 1) || is_prefix(value, "yes", 1) || is_prefix(value, "on", 2) ||
        strcmp(value, "1") == 0)
        return "on";
    if (is_prefix(value, "false", 1) || is_prefix(value, "no", 1) || is_prefix(value, "off", 2) ||
        strcmp(value, "0") == 0)
        return "off";
    return NULL;
}

/* The choice as it is written, with blanks for "_" in isolation levels. */
static bool as_choice(const struct setting *setting, const char *value, char *into, size_t size,
                      struct gw_error *error)
{
    size_t len = strlen(value);
    bool isolation = strstr(name_of(setting), "isolation") != NULL;
    for (const char *word = setting->known->choices + 1; *word != '\0';) {
        size_t word_len = strcspn(word, " ");
        snprintf(into, size, "%.*s", (int) word_len, word);
        for (char *at = into; isolation && *at != '\0'; at++)
            if (*at == '_')
                *at = ' ';
        if (len == word_len && gw_same_word(value, len, into))
            return true;
        word += word_len + 1;
    }
    invalid(setting, value, error);
    size_t used = 0;
    char hint[256] = "";
    for (const char *word = setting->known->choices + 1; *word != '\0' && used < 200;) {
        size_t word_len = strcspn(word, " ");
        if (gw_same_word(word, word_len, "debug")) { /* a second name of debug2 */
            word += word_len + 1;
            continue;
        }
        used += (size_t) snprintf(hint + used, sizeof hint - used, "%s%.*s", used > 0 ? ", " : "",
                                  (int) word_len, word);
        word += word_len + 1;
    }
    for (char *at = hint; isolation && *at != '\0'; at++)
        if (*at == '_')
            *at = ' ';
    gw_hint(error, "Available values: %s.", hint);
    return false;
}

/* Milliseconds of "5s", "100", "1.5min"; -1: it is no such thing. */
static int64_t milliseconds(const char *value)
{
    static const struct {
        const char *unit;
        double ms;
    } units[] = {{"", 1},      {"us", 0.001}, {"ms", 1},    {"s", 1e3},
                 {"min", 6e4}, {"h", 3.6e6},  {"d", 8.64e7}};
    char *end;
    double number = strtod(value, &end);
    if (end == value || !(number >= 0))
        return -1;
    end += strspn(end, " ");
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (strcmp(end, units[i].unit) == 0)
            return number * units[i].ms <= INT_MAX ? (int64_t) (number * units[i].ms + 0.5) : -1;
    return -1;
}

static bool as_duration(const struct setting *setting, const char *value, char *into, size_t size,
                        struct gw_error *error)
{
    static const struct {
        const char *unit;
        int64_t ms;
    } units[] = {{"d", 86400000}, {"h", 3600000}, {"min", 60000}, {"s", 1000}, {"ms", 1}};
    int64_t ms = milliseconds(value);
    if (ms < 0)
        return invalid(setting, value, error);
    snprintf(into, size, "0");
    for (size_t i = 0; ms > 0 && i < sizeof units / sizeof *units; i++)
        if (ms % units[i].ms == 0) {
            snprintf(into, size, "%lld%s", (long long) (ms / units[i].ms), units[i].unit);
            break;
        }
    return true;
}

static bool as_number(const struct setting *setting, const char *value, char *into, size_t size,
                      struct gw_error *error)
{
    char *end;
    long number = strtol(value, &end, 10);
    if (end == value || *end != '\0' || number > INT_MAX || number < INT_MIN)
        return invalid(setting, value, error);
    snprintf(into, size, "%ld", number);
    return true;
}

/* Letters and digits count, as in PostgreSQL: 'utf-8' is UTF8. */
static bool as_encoding(const struct setting *setting, const char *value, struct gw_error *error)
{
    static const char *const others[] = {"latin1",   "latin2",  "latin9",  "iso88591", "iso885915",
                                         "sqlascii", "win1251", "win1252", "eucjp",    "koi8r",
                                         "sjis",     "gbk",     "gb18030", "big5",     "euckr"};
    char plain[32];
    size_t n = 0;
    for (const char *at = value; *at != '\0' && n + 1 < sizeof plain; at++) {
        char c = *at >= 'A' && *at <= 'Z' ? (char) (*at - 'A' + 'a') : *at;
        if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'))
            plain[n++] = c;
    }
    plain[n] = '\0';
    if (strcmp(plain, "utf8") == 0 || strcmp(plain, "unicode") == 0)
        return true;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(plain, others[i]) == 0) {
            gw_fail(error, "0A000", "client_encoding \"%s\" is not supported", value);
            gw_hint(error, "What is sent on a segment is UTF-8: use client_encoding UTF8.");
            return false;
        }
    return invalid(setting, value, error);
}

static bool as_date_style(const struct gw_settings *settings, const struct setting *setting,
                          const char *value, char *into, size_t size, struct gw_error *error)
{
    static const char *const styles[] = {"ISO", "SQL", "Postgres", "German"};
    static const char *const orders[] = {"MDY", "DMY", "YMD"};
    const char *current = value_of(settings, setting), *style = "ISO", *order = "MDY";
    for (size_t i = 0; i < 4; i++)
        if (strstr(current, styles[i]) != NULL)
            style = styles[i];
    for (size_t i = 0; i < 3; i++)
        if (strstr(current, orders[i]) != NULL)
            order = orders[i];
    for (const char *at = value + strspn(value, ", "); *at != '\0';) {
        size_t len = strcspn(at, ", ");
        bool found = false;
        for (size_t i = 0; i < 4 && !found; i++)
            if ((found = gw_same_word(at, len, styles[i])))
                style = styles[i];
        for (size_t i = 0; i < 3 && !found; i++)
            if ((found = gw_same_word(at, len, orders[i])))
                order = orders[i];
        if (!found)
            return invalid(setting, value, error);
        at += len;
        at += strspn(at, ", ");
    }
    snprintf(into, size, "%s, %s", style, order);
    return true;
}

static bool cannot_change(const struct setting *setting, struct gw_error *error)
{
    return gw_fail(error, "55P02", "parameter \"%s\" cannot be changed", name_of(setting));
}

static bool as_conforming(const char *value, struct gw_error *error)
{
    const char *truth = as_truth(value);
    if (truth != NULL && strcmp(truth, "on") == 0)
        return true;
    gw_fail(error, "0A000", "standard_conforming_strings = off is not supported");
    gw_hint(error, "Write E'...' for literals with escapes.");
    return false;
}

/* The value as it is kept, in `into` or itself; NULL: *error. */
static const char *accept(const struct gw_settings *settings, const struct setting *setting,
                          const char *value, char *into, size_t size, struct gw_error *error)
{
    if (strlen(value) > VALUE_MAX) {
        gw_fail(error, "22023", "a value of parameter \"%s\" has more than %d bytes",
                name_of(setting), VALUE_MAX);
        return NULL;
    }
    if (setting->known == NULL)
        return value;
    switch (setting->known->kind) {
    case TEXT:
        return value;
    case TRUTH: {
        const char *truth = as_truth(value);
        if (truth == NULL)
            gw_fail(error, "22023", "parameter \"%s\" requires a Boolean value", name_of(setting));
        return truth;
    }
    case CHOICE:
        return as_choice(setting, value, into, size, error) ? into : NULL;
    case NUMBER:
        return as_number(setting, value, into, size, error) ? into : NULL;
    case DURATION:
        return as_duration(setting, value, into, size, error) ? into : NULL;
    case ENCODING:
        return as_encoding(setting, value, error) ? "UTF8" : NULL;
    case DATE_STYLE:
        return as_date_style(settings, setting, value, into, size, error) ? into : NULL;
    case CONFORMING:
        return as_conforming(value, error) ? "on" : NULL;
    case IDENTITY:
        if (strcmp(value, settings->user) == 0)
            return value;
        gw_fail(error, "42501", "permission denied to set session authorization");
        return NULL;
    case FIXED:
        break;
    }
    cannot_change(setting, error);
    return NULL;
}

/* ---- setting --------------------------------------------------------------------------------- */

static void change(struct gw_settings *settings, struct setting *setting, char *value)
{
    const char *now = value != NULL ? value : default_of(settings, setting);
    if (strcmp(value_of(settings, setting), now) != 0)
        setting->changed = true;
    free(setting->value);
    setting->value = value;
}

bool gw_setting_start(struct gw_settings *settings, const char *name, const char *value,
                      struct gw_error *error)
{
    char into[64];
    struct setting *setting = find_or_add(settings, name, error);
    const char *accepted =
        setting == NULL ? NULL : accept(settings, setting, value, into, sizeof into, error);
    if (accepted == NULL)
        return false;
    char *copy = strdup(accepted);
    if (copy == NULL)
        return out_of_memory(error);
    free(setting->reset);
    setting->reset = copy;
    return true;
}

static bool remember(struct gw_settings *settings, size_t index, bool local, uint32_t level,
                     struct gw_error *error)
{
    if (settings->nundo == MAX_UNDO)
        return gw_fail(error, "53400", "a transaction changes parameters at most %d times",
                       MAX_UNDO);
    if (settings->nundo == settings->undo_room) {
        size_t room = settings->undo_room == 0 ? 4 : settings->undo_room * 2;
        struct undo *grown = realloc(settings->undo, room * sizeof *grown);
        if (grown == NULL)
            return out_of_memory(error);
        settings->undo = grown;
        settings->undo_room = room;
    }
    const struct setting *setting = &settings->setting[index];
    char *value = setting->value != NULL ? strdup(setting->value) : NULL;
    if (setting->value != NULL && value == NULL)
        return out_of_memory(error);
    settings->undo[settings->nundo++] = (struct undo) {index, value, level, local};
    return true;
}

/* The last entry says the same already: a loop of SETs in one transaction needs no memory. */
static bool is_remembered(const struct gw_settings *settings, size_t index, bool local,
                          uint32_t level)
{
    for (size_t i = settings->nundo; i > 0; i--) {
        const struct undo *undo = &settings->undo[i - 1];
        if (undo->level != level)
            return false;
        if (undo->setting == index)
            return undo->local == local;
    }
    return false;
}

bool gw_setting_set(struct gw_settings *settings, const char *name, const char *value, bool local,
                    uint32_t level, struct gw_error *error)
{
    char into[64];
    struct setting *setting = find_or_add(settings, name, error);
    if (setting == NULL)
        return false;
    if (value == NULL && setting->known != NULL && setting->known->kind == FIXED)
        return cannot_change(setting, error);
    const char *accepted = NULL;
    if (value != NULL) {
        accepted = accept(settings, setting, value, into, sizeof into, error);
        if (accepted == NULL)
            return false;
    }
    size_t index = (size_t) (setting - settings->setting);
    char *copy = accepted != NULL ? strdup(accepted) : NULL;
    if (accepted != NULL && copy == NULL)
        return out_of_memory(error);
    if (!is_remembered(settings, index, local, level) &&
        !remember(settings, index, local, level, error)) {
        free(copy);
        return false;
    }
    change(settings, setting, copy);
    return true;
}

bool gw_settings_reset(struct gw_settings *settings, uint32_t level, struct gw_error *error)
{
    for (size_t i = 0; i < settings->n; i++) {
        struct setting *setting = &settings->setting[i];
        bool of_transaction = strncmp(name_of(setting), "transaction_", 12) == 0;
        if (setting->value == NULL || of_transaction)
            continue;
        if (!remember(settings, i, false, level, error))
            return false;
        change(settings, setting, NULL);
    }
    return true;
}

void gw_settings_rollback(struct gw_settings *settings, uint32_t level)
{
    while (settings->nundo > 0 && settings->undo[settings->nundo - 1].level >= level) {
        struct undo *undo = &settings->undo[--settings->nundo];
        change(settings, &settings->setting[undo->setting], undo->value);
    }
}

void gw_settings_release(struct gw_settings *settings, uint32_t level)
{
    for (size_t i = 0; i < settings->nundo; i++)
        if (settings->undo[i].level >= level)
            settings->undo[i].level = level - 1;
}

/* What was set for good stays; what was local since then, or without it, is put back. */
void gw_settings_commit(struct gw_settings *settings)
{
    bool set[NKNOWN + MAX_CUSTOM] = {false};
    while (settings->nundo > 0) {
        struct undo *undo = &settings->undo[--settings->nundo];
        set[undo->setting] |= !undo->local;
        if (set[undo->setting])
            free(undo->value);
        else
            change(settings, &settings->setting[undo->setting], undo->value);
    }
}

/* ---- what has an effect ---------------------------------------------------------------------- */

void gw_settings_report(struct gw_settings *settings, struct gw_buffer *out, bool all)
{
    for (size_t i = 0; i < NKNOWN; i++) {
        struct setting *setting = &settings->setting[i];
        const char *value = value_of(settings, setting);
        bool due = all || (setting->changed &&
                           (setting->told == NULL || strcmp(setting->told, value) != 0));
        setting->changed = false;
        if (!due || (setting->known->flags & REPORTED) == 0)
            continue;
        gw_send_parameter(out, setting->known->name, value);
        free(setting->told);
        setting->told = strdup(value);
    }
}

bool gw_settings_notice(const struct gw_settings *settings, const char *severity)
{
    const char *least = gw_setting(settings, "client_min_messages");
    if (strcmp(least, "error") == 0)
        return false;
    return strcmp(least, "warning") != 0 || strcmp(severity, "WARNING") == 0;
}

int64_t gw_statement_timeout(const struct gw_settings *settings)
{
    int64_t ms = milliseconds(gw_setting(settings, "statement_timeout"));
    return ms > 0 ? ms * 1000000 : 0;
}
