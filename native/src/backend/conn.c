/*
 * conn.c - what all modules need of a connection: may it be used, its notices; and what may be
 * given to it.
 */
#define _GNU_SOURCE
#include "backend/conn.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"

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
    pn_fence_acquire(); /* pairs with the one in pn_backend_reap_locked() */
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
                                         .sleep_set = {.fd = -1},
                                         .epfd = -1,
                                         .tfd = -1,
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
                       "It has %zu bytes; max_channel_name of the segment is %u. A segment can be "
                       "created with up to %d (PYNOTIFY_NAME=\"max_channel_name=%d\").",
                       what, len, conn->seg->max_channel_name, PN_NAME_MAX, PN_NAME_MAX);
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
                   "It has %zu bytes; max_payload of the segment is %u. Create the segment with a "
                   "larger one (PYNOTIFY_NAME=\"max_payload=1MiB\"), or send it through a PubSub.",
                   len, conn->seg->max_payload);
}
