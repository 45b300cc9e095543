/*
 * pynotify_gateway.h - PostgreSQL's wire protocol on a segment.
 *
 * A gateway is a thread of one process that speaks protocol 3.0 on a Unix socket, and on loopback
 * TCP if asked: each client is a backend of the segment, in whatever language it is written, of
 * another user or in another container if it may reach the socket.  It knows LISTEN, NOTIFY,
 * UNLISTEN, pg_notify(), transactions, savepoints, settings and SELECT of simple expressions, and
 * refuses everything else: it is no database.
 */
#ifndef PYNOTIFY_GATEWAY_H
#define PYNOTIFY_GATEWAY_H

#include "pynotify.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cffi:begin */

typedef struct pn_gateway pn_gateway;

typedef struct pn_gateway_options {
    const char *directory;        /* of the socket .s.PGSQL.PORT; made if it is not there */
    int port;                     /* 0: 5432 */
    int tcp;                      /* 1: on 127.0.0.1 at this port, too */
    const char *const *databases; /* that clients may ask for; "*": any; none: "default" */
    size_t ndatabases;
    const char *const *maps; /* "name=database": what a client calls one of the segment's */
    size_t nmaps;
    const uint32_t *uids; /* users besides the segment's that may connect */
    size_t nuids;
    const uint32_t *gids; /* groups likewise */
    size_t ngids;
    const char *latency_log;    /* a directory, or NULL */
    int interruptible;          /* 1: when wake_fd is readable, pn_gateway_run() returns -EINTR */
    int wake_fd;                /* what a signal handler writes to; it is read until it is empty */
    int authentication_timeout; /* seconds for a client to send its startup message; 0: 60 */
    /* us to look for the next statement before it sleeps, at most 1,000; 0: 50, -1: never */
    int busy_poll;
} pn_gateway_options;

typedef struct pn_gateway_stat {
    uint64_t accepted;   /* connections, ever */
    uint64_t refused;    /* of these: not allowed, no such database, no slot, nothing said */
    uint64_t clients;    /* now */
    uint64_t received;   /* notifications from clients, committed or not */
    uint64_t delivered;  /* notifications to clients */
    uint64_t unreadable; /* left out: no UTF-8 text */
    uint64_t slow;       /* clients that do not read what waits for them, now */
    uint64_t listens;    /* channels that clients listen to, each for each client, now */
} pn_gateway_stat;

/*
 * Bind the sockets.  -EADDRINUSE: another gateway has them; -EACCES: the directory is not safe;
 * -EINVAL: an option.  Then a sentence for people is in `error` [size], "message" or "message\n
 * what to do".  `engine` stays the caller's, and has to outlive the gateway.
 */
int pn_gateway_open(pn_engine *engine, const pn_gateway_options *options, char *error, size_t size,
                    pn_gateway **out);

/*
 * Serve until pn_gateway_stop(), in this thread alone.  0: it was stopped; -PN_EGONE: the segment
 * was removed; or another error.  Clients are told (57P01), and their transactions rolled back.
 * -EINTR: nothing of that; call again.
 */
int pn_gateway_run(pn_gateway *gateway);

/* From any thread or signal handler; also before pn_gateway_run(), which returns at once then. */
void pn_gateway_stop(pn_gateway *gateway);

/* After pn_gateway_run() has returned: the sockets' files go. */
void pn_gateway_close(pn_gateway *gateway);

/* Any thread, while it runs. */
void pn_gateway_get_stat(const pn_gateway *gateway, pn_gateway_stat *out);

/* Where the Unix socket is. */
const char *pn_gateway_path(const pn_gateway *gateway);

/* A sentence about the last error of pn_gateway_run(). */
const char *pn_gateway_error(const pn_gateway *gateway);

/* cffi:end */

#ifdef __cplusplus
}
#endif

#endif
