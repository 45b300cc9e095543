/*
 * conn.c - what all modules need of a connection: may it be used, its notices, its channels; and
 * what may be given to it.
 */
#define _GNU_SOURCE
#include "conn.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "os.h"

int pn_conn_foreign(const struct pn_conn *conn)
{
    return pn_fail(PN_EFORKED,
                   "this connection belongs to the process with PID %d, we are PID %d\n"
                   "Connect again in the child; pynotify.get() does that by itself.",
                   conn->pid, pn_my_pid);
}

int pn_conn_reaped(const struct pn_conn *conn)
{
    static const char advice[] =
        "The process had lost its liveness locks, because something in it closed the descriptor of "
        "a lock file, or in a checkpoint. Close the connection and connect again.";
    int32_t pid = pn_load_relaxed(&conn->me->pid);
    if (pn_load_acquire(&conn->me->state) == PN_SLOT_FREE ||
        pn_load_relaxed(&conn->me->generation) == conn->generation)
        return pn_fail(PN_EREAPED,
                       "backend %u of the process with PID %d was taken for dead, and is free\n%s",
                       conn->slot, conn->pid, advice);
    return pn_fail(PN_EREAPED,
                   "backend %u of the process with PID %d was taken for dead, and belongs to the "
                   "process with PID %d now\n%s",
                   conn->slot, conn->pid, pid, advice);
}

int pn_conn_impossible(struct pn_conn *conn, const char *format, ...)
{
    char reason[128];
    va_list args;
    atomic_thread_fence(memory_order_acquire); /* pairs with the one in pn_backend_reap_locked */
    int rc = pn_conn_check_slot(conn);
    if (rc != 0)
        return rc;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    return pn_segment_poison(conn->seg, "%s", reason);
}

int pn_conn_closed(void)
{
    return pn_fail(PN_ECLOSED, "the connection is closed\n"
                               "Open a new one.");
}

struct pn_conn pn_conn_that_is_closed = {.closing = 1,
                                         .efd = -1,
                                         .sleepfd = -1,
                                         .epfd = -1,
                                         .tfd = -1,
                                         .postfd = -1,
                                         .recv_mutex = PTHREAD_MUTEX_INITIALIZER,
                                         .notice_mutex = PTHREAD_MUTEX_INITIALIZER,
                                         .log_mutex = PTHREAD_MUTEX_INITIALIZER};

void pn_conn_add_notice(struct pn_conn *conn, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    pthread_mutex_lock(&conn->notice_mutex);
    vsnprintf(conn->notice, sizeof conn->notice, format, args);
    pn_store_relaxed(&conn->notices, 1); /* a later one replaces an unread one */
    pthread_mutex_unlock(&conn->notice_mutex);
    va_end(args);
}

/* ---- what callers give ---------------------------------------------------------------------- */

int pn_check_name(const struct pn_conn *conn, const char *what, const char *name, size_t len)
{
    if (len == 0)
        return pn_fail(PN_ECHANNELNAME, "%s name cannot be empty", what);
    if (len > conn->seg->max_channel_name)
        return pn_fail(PN_ECHANNELNAME,
                       "%s name too long\n"
                       "It has %zu bytes; max_channel_name of the segment is %u.",
                       what, len, conn->seg->max_channel_name);
    if (memchr(name, '\0', len) != NULL)
        return pn_fail(PN_ECHANNELNAME, "%s name cannot contain a NUL byte", what);
    return 0;
}

int pn_check_channel(const struct pn_conn *conn, const char *channel, size_t len)
{
    return pn_check_name(conn, "channel", channel, len);
}

int pn_check_payload(const struct pn_conn *conn, size_t len)
{
    if (len <= conn->seg->max_payload)
        return 0;
    return pn_fail(PN_EPAYLOAD,
                   "payload string too long\n"
                   "It has %zu bytes; max_payload of the segment is %u.",
                   len, conn->seg->max_payload);
}

/* ---- local channels -------------------------------------------------------------------------- */

struct pn_local_channel *pn_local_find(struct pn_conn *conn, uint64_t hash, const char *name,
                                       size_t len)
{
    if (conn->table_size == 0)
        return NULL;
    uint32_t mask = conn->table_size - 1;
    for (uint32_t at = (uint32_t) hash & mask; conn->channel_table[at] != 0; at = (at + 1) & mask) {
        struct pn_local_channel *c = &conn->channels[conn->channel_table[at] - 1];
        if (c->hash == hash && c->len == len && memcmp(c->name, name, len) == 0)
            return c;
    }
    return NULL;
}

static int grow_table(struct pn_conn *conn)
{
    uint32_t size = conn->table_size == 0 ? 16 : 2 * conn->table_size;
    uint32_t *table = calloc(size, sizeof *table);
    if (table == NULL)
        return -ENOMEM;
    for (uint32_t i = 0; i < conn->nchannels; i++) {
        uint32_t at = (uint32_t) conn->channels[i].hash & (size - 1);
        while (table[at] != 0)
            at = (at + 1) & (size - 1);
        table[at] = i + 1;
    }
    free(conn->channel_table);
    conn->channel_table = table;
    conn->table_size = size;
    return 0;
}

struct pn_local_channel *pn_local_add(struct pn_conn *conn, uint64_t hash, const char *name,
                                      size_t len)
{
    struct pn_local_channel *known = pn_local_find(conn, hash, name, len);
    if (known != NULL)
        return known;
    if (conn->nchannels == conn->channels_cap) {
        uint32_t cap = conn->channels_cap == 0 ? 8 : 2 * conn->channels_cap;
        struct pn_local_channel *bigger = realloc(conn->channels, cap * sizeof *bigger);
        if (bigger == NULL)
            return NULL;
        conn->channels = bigger;
        conn->channels_cap = cap;
    }
    char *copy = malloc(len + 1);
    if (copy == NULL)
        return NULL;
    if (2 * (conn->nchannels + 1) > conn->table_size && grow_table(conn) != 0) {
        free(copy);
        return NULL;
    }
    memcpy(copy, name, len);
    copy[len] = '\0';
    struct pn_local_channel *c = &conn->channels[conn->nchannels];
    *c = (struct pn_local_channel){.name = copy, .len = (uint32_t) len, .hash = hash};
    uint32_t at = (uint32_t) hash & (conn->table_size - 1);
    while (conn->channel_table[at] != 0)
        at = (at + 1) & (conn->table_size - 1);
    conn->channel_table[at] = ++conn->nchannels;
    return c;
}
