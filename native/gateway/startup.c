/* startup.c - the beginning of a connection: versions, parameters, the claim of a slot. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "work.h"

enum { STARTUP_MAX = 10000 };

#define VERSION(major, minor) ((uint32_t) (major) << 16 | (minor))

enum {
    CANCEL_REQUEST = VERSION(1234, 5678),
    SSL_REQUEST = VERSION(1234, 5679),
    GSS_REQUEST = VERSION(1234, 5680)
};

/* An old server says so, and the client goes on with what it has. */
static void negotiate_version(struct gw_session *session, struct gw_reader in, uint32_t version)
{
    struct gw_buffer names = {0};
    uint32_t unknown = 0;
    size_t len;
    for (;;) {
        const char *name = gw_get_text(&in, &len);
        if (len == 0)
            break;
        if (strncmp(name, "_pq_.", 5) == 0) {
            gw_put_text(&names, name, len);
            unknown++;
        }
        gw_get_text(&in, &len);
    }
    if ((version & 0xFFFF) > 0 || unknown > 0) {
        size_t message = gw_begin(&session->out, 'v');
        gw_put32(&session->out, VERSION(3, 0));
        gw_put32(&session->out, unknown);
        gw_put(&session->out, names.data + names.begin, gw_buffer_size(&names));
        gw_end(&session->out, message);
    }
    gw_buffer_free(&names);
}

/* FATAL, with the error of session->error. */
void gw_refuse(struct gw_session *session)
{
    gw_send_error(&session->out, "FATAL", &session->error);
    session->activity = GW_CLOSING;
    gw_count(&session->shared->refused, 1);
}

static void no_slot(struct gw_session *session, int rc)
{
    gw_core_error(session, rc);
    char reason[sizeof session->error.message];
    memcpy(reason, session->error.message, sizeof reason);
    gw_fail(&session->error, "53300", "sorry, too many clients already");
    gw_hint(&session->error, "%s", reason);
    gw_refuse(session);
}

/* "-c name=value" and "--name=value", as in PGOPTIONS; a backslash keeps a blank. */
static bool take_options(struct gw_session *session, const char *options)
{
    char word[512];
    while (*(options += strspn(options, " \t\n")) != '\0') {
        size_t n = 0;
        for (; *options != '\0' && strchr(" \t\n", *options) == NULL; options++) {
            if (*options == '\\' && options[1] != '\0')
                options++;
            if (n + 1 < sizeof word)
                word[n++] = *options;
        }
        word[n] = '\0';
        char *setting = word;
        if (strcmp(word, "-c") == 0)
            continue;
        if (strncmp(word, "--", 2) == 0 || strncmp(word, "-c", 2) == 0)
            setting += 2;
        char *equals = strchr(setting, '=');
        if (equals == NULL)
            return gw_fail(&session->error, "42601",
                           "invalid command-line argument for server process: %s", word);
        *equals = '\0';
        for (char *at = setting; *at != '\0'; at++)
            if (*at == '-')
                *at = '_';
        if (!gw_setting_start(session->settings, setting, equals + 1, &session->error))
            return false;
    }
    return true;
}

static bool take_parameter(struct gw_session *session, const char *name, const char *value)
{
    if (strcmp(name, "user") == 0 || strcmp(name, "database") == 0 ||
        strncmp(name, "_pq_.", 5) == 0)
        return true;
    if (strcmp(name, "replication") == 0) {
        static const char *const no[] = {"false", "off", "no", "0"};
        for (size_t i = 0; i < sizeof no / sizeof *no; i++)
            if (strcmp(value, no[i]) == 0)
                return true;
        return gw_fail(&session->error, "0A000", "replication is not supported");
    }
    if (strcmp(name, "options") == 0)
        return take_options(session, value);
    return gw_setting_start(session->settings, name, value, &session->error);
}

/* user and database first: settings know the user. */
static bool take_names(struct gw_session *session, struct gw_reader in)
{
    size_t len;
    for (;;) {
        const char *name = gw_get_text(&in, &len);
        if (len == 0)
            break;
        const char *value = gw_get_text(&in, &len);
        char **into = strcmp(name, "user") == 0       ? &session->user
                      : strcmp(name, "database") == 0 ? &session->database
                                                      : NULL;
        if (into == NULL || len == 0)
            continue;
        free(*into);
        *into = strdup(value);
    }
    if (session->user == NULL)
        return gw_fail(&session->error, "28000",
                       "no PostgreSQL user name specified in startup packet");
    if (session->database == NULL)
        session->database = strdup(session->user);
    if (gw_utf8_valid(session->user, strlen(session->user)) < strlen(session->user) ||
        session->database == NULL)
        return gw_fail(&session->error, "22021", "the user's name is no UTF-8 text");
    session->settings = gw_settings_new(strchr(session->shared->version, ' ') + 1, session->user);
    return session->settings != NULL || gw_fail(&session->error, "53200", "out of memory");
}

static bool take_parameters(struct gw_session *session, struct gw_reader *in)
{
    size_t len;
    if (!take_names(session, *in))
        return false;
    if (session->refused) {
        gw_fail(&session->error, "28000", "peer authentication failed for user \"%s\"",
                session->user);
        gw_hint(&session->error,
                "The process is of another user than the segment (uid %u); the gateway lets it in "
                "with --allow-uid or --allow-gid.",
                (unsigned) pn_engine_owner_euid(session->shared->engine));
        return false;
    }
    for (;;) {
        const char *name = gw_get_text(in, &len);
        if (len == 0)
            return true;
        const char *value = gw_get_text(in, &len);
        if (!take_parameter(session, name, value))
            return false;
    }
}

/* ---- the slot -------------------------------------------------------------------------------- */

/*
 * A pid for the client, above those of Linux: unique among all clients of all gateways of the
 * segment as long as the slot's claims are counted, and used again after 2^31 - 2^22 at the
 * earliest.
 */
static uint32_t virtual_pid(const struct gw_session *session)
{
    uint64_t stride = 1;
    while (stride < session->shared->options.max_backends)
        stride *= 2;
    uint64_t slot = (uint64_t) pn_conn_backend_id(session->conn);
    uint64_t number = (uint64_t) pn_conn_claim(session->conn) * stride + slot;
    return GW_FIRST_PID + (uint32_t) (number % ((1U << 31) - GW_FIRST_PID));
}

static void welcome(struct gw_session *session)
{
    struct gw_buffer *out = &session->out;
    session->pid = virtual_pid(session);
    pn_conn_set_source(session->conn, (int32_t) session->pid);
    size_t message = gw_begin(out, 'R');
    gw_put32(out, 0); /* authenticated */
    gw_end(out, message);
    gw_settings_report(session->settings, out, true);
    gw_send_key(out, session->pid, session->secret);
    gw_ready(session);
}

void gw_go_on_connecting(struct gw_session *session)
{
    struct gw_shared *shared = session->shared;
    const char *database = shared->database(shared->server, session->database);
    int rc =
        pn_connect(shared->engine, database, strlen(database), 0, shared->log_dir, &session->conn);
    if (rc == -PN_ELOCKBUSY || rc == -EINTR) {
        gw_try_again(session);
        return;
    }
    session->pause = 0;
    shared->gone |= rc == -PN_EGONE;
    if (rc == -PN_EBACKENDS || rc == -EMFILE || rc == -ENFILE)
        no_slot(session, rc);
    else if (rc < 0) {
        gw_core_error(session, rc);
        gw_refuse(session);
    } else
        welcome(session);
}

static void start(struct gw_session *session, struct gw_reader *in, uint32_t version)
{
    struct gw_shared *shared = session->shared;
    negotiate_version(session, *in, version);
    if (!take_parameters(session, in)) {
        gw_refuse(session);
        return;
    }
    if (shared->database(shared->server, session->database) == NULL) {
        gw_fail(&session->error, "3D000", "database \"%s\" does not exist", session->database);
        gw_hint(&session->error,
                "This is a pynotify gateway; it serves %s. Name it when you connect, for instance "
                "by PGDATABASE.",
                shared->served);
        gw_refuse(session);
        return;
    }
    session->activity = GW_CONNECT;
    gw_go_on_connecting(session);
}

static void close_silently(struct gw_session *session)
{
    session->activity = GW_CLOSING;
}

static void handle_packet(struct gw_session *session, struct gw_reader *in)
{
    uint32_t version = gw_get32(in);
    if (version == SSL_REQUEST || version == GSS_REQUEST) {
        gw_put8(&session->out, 'N');
        return;
    }
    if (version == CANCEL_REQUEST) {
        uint32_t pid = gw_get32(in), secret = gw_get32(in);
        if (!in->cut && !session->refused)
            session->shared->cancel(session->shared->server, pid, secret);
        close_silently(session);
        return;
    }
    if (version >> 16 == 3) {
        start(session, in, version);
        return;
    }
    gw_fail(&session->error, "0A000",
            "unsupported frontend protocol %u.%u: server supports 3.0 to 3.0", version >> 16,
            version & 0xFFFF);
    gw_refuse(session);
}

bool gw_startup(struct gw_session *session)
{
    size_t size = gw_buffer_size(&session->in);
    if (size < 4)
        return false;
    const char *at = session->in.data + session->in.begin;
    uint32_t len = gw_peek32(at);
    if (len < 8 || len > STARTUP_MAX) {
        close_silently(session);
        return true;
    }
    if (size < len)
        return false;
    struct gw_reader in = {at + 4, at + len, false};
    handle_packet(session, &in);
    gw_buffer_sent(&session->in, len);
    return true;
}
