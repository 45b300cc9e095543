/* options.c - the options of a gateway, copied and checked; which databases it has. */
#define _GNU_SOURCE
#include "options.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { BUSY_POLL_US = 50, BUSY_POLL_MAX_US = 1000 };

const char *gw_find_database(void *server, const char *name)
{
    const pn_gateway *gateway = server;
    size_t len = strlen(name);
    for (size_t i = 0; i < gateway->nmaps; i++)
        if (strncmp(gateway->maps[i], name, len) == 0 && gateway->maps[i][len] == '=')
            return gateway->maps[i] + len + 1;
    for (size_t i = 0; i < gateway->ndatabases; i++)
        if (strcmp(gateway->databases[i], "*") == 0 || strcmp(gateway->databases[i], name) == 0)
            return name;
    return NULL;
}

/* "a, b and c", for people. */
static char *list_databases(const pn_gateway *gateway)
{
    size_t size = 16, used = 0;
    for (size_t i = 0; i < gateway->ndatabases; i++)
        size += strlen(gateway->databases[i]) + 4;
    for (size_t i = 0; i < gateway->nmaps; i++)
        size += strlen(gateway->maps[i]) + 4;
    char *text = calloc(1, size);
    for (size_t i = 0; text != NULL && i < gateway->ndatabases + gateway->nmaps; i++) {
        const char *name = i < gateway->ndatabases ? gateway->databases[i]
                                                   : gateway->maps[i - gateway->ndatabases];
        used += (size_t) snprintf(text + used, size - used, "%s\"%.*s\"", i > 0 ? ", " : "",
                                  (int) strcspn(name, "="), name);
    }
    return text;
}

static char **copy_texts(const char *const *texts, size_t n)
{
    char **copy = calloc(n + 1, sizeof *copy);
    for (size_t i = 0; copy != NULL && i < n; i++) {
        copy[i] = strdup(texts[i]);
        if (copy[i] == NULL)
            return NULL;
    }
    return copy;
}

static uint32_t *copy_ids(const uint32_t *ids, size_t n)
{
    uint32_t *copy = calloc(n + 1, sizeof *copy);
    if (copy != NULL && n > 0)
        memcpy(copy, ids, n * sizeof *copy);
    return copy;
}

/* More than one: else a client cannot go on while this process looks for what it sends. */
static bool has_processors(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) != 0 || CPU_COUNT(&set) > 1;
}

/* Silent peers leave most of the descriptors to clients. */
static size_t silent_most(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur / 4 >= GW_SILENT_MAX)
        return GW_SILENT_MAX;
    return limit.rlim_cur / 4 > GW_SILENT_MIN ? (size_t) limit.rlim_cur / 4 : GW_SILENT_MIN;
}

int gw_options_copy(pn_gateway *gateway, const pn_gateway_options *options)
{
    static const char *const otherwise[] = {"default"};
    bool none = options->ndatabases == 0 && options->nmaps == 0;
    gateway->ndatabases = none ? 1 : options->ndatabases;
    gateway->databases = copy_texts(none ? otherwise : options->databases, gateway->ndatabases);
    gateway->nmaps = options->nmaps;
    gateway->maps = copy_texts(options->maps, options->nmaps);
    gateway->nuids = options->nuids;
    gateway->uids = copy_ids(options->uids, options->nuids);
    gateway->ngids = options->ngids;
    gateway->gids = copy_ids(options->gids, options->ngids);
    gateway->log_dir = options->latency_log != NULL ? strdup(options->latency_log) : NULL;
    if (gateway->databases == NULL || gateway->maps == NULL || gateway->uids == NULL ||
        gateway->gids == NULL || (options->latency_log != NULL && gateway->log_dir == NULL))
        return gw_say(gateway->message, ENOMEM, "out of memory");
    gateway->refused.most = GW_REFUSED_MAX;
    gateway->allowed.most = silent_most();
    gateway->authentication_ns =
        (options->authentication_timeout > 0 ? options->authentication_timeout : 60) * 1000000000LL;
    const int busy_poll = options->busy_poll == 0 ? BUSY_POLL_US : options->busy_poll;
    if (busy_poll > BUSY_POLL_MAX_US)
        return gw_say(gateway->message, EINVAL, "busy_poll is at most %d us, not %d",
                      BUSY_POLL_MAX_US, busy_poll);
    gateway->busy_poll_ns = busy_poll > 0 && has_processors() ? busy_poll * 1000LL : 0;
    gateway->interruptible = options->interruptible != 0;
    gateway->wake_fd = options->wake_fd;
    gateway->served = list_databases(gateway);
    for (size_t i = 0; i < gateway->nmaps; i++)
        if (strchr(gateway->maps[i], '=') == NULL)
            return gw_say(gateway->message, EINVAL, "a map is NAME=DATABASE, not \"%s\"",
                          gateway->maps[i]);
    return gateway->served == NULL ? gw_say(gateway->message, ENOMEM, "out of memory") : 0;
}

static void free_texts(char **texts, size_t n)
{
    for (size_t i = 0; texts != NULL && i < n; i++)
        free(texts[i]);
    free(texts);
}

void gw_options_free(pn_gateway *gateway)
{
    free_texts(gateway->databases, gateway->ndatabases);
    free_texts(gateway->maps, gateway->nmaps);
    free(gateway->uids);
    free(gateway->gids);
    free(gateway->served);
    free(gateway->log_dir);
}
