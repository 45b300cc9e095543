/*
 * server.h - what the files of a gateway's loop share: the gateway itself and its clients.  All
 * of it belongs to the one thread that runs the loop; `stat` alone is read by others.
 */
#ifndef PN_GATEWAY_SERVER_H
#define PN_GATEWAY_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "pynotify_gateway.h"
#include "session.h"
#include "sockets.h"

/* Peers that have not said their names, at a time; each holds a descriptor. */
enum { GW_REFUSED_MAX = 32, GW_SILENT_MAX = 256, GW_SILENT_MIN = 8 };
enum { GW_READ_SIZE = 64 * 1024 };

struct gw_client {
    struct gw_client *next, *previous; /* all */
    struct gw_client *next_timed, *previous_timed;
    bool timed;
    struct gw_session *session;
    int fd, slot_fd; /* -1: none yet */
    uint32_t events; /* that the socket is waited for */
    int64_t started; /* CLOCK_MONOTONIC ns */
    int64_t drop_at; /* what is closing is dropped then; 0: it is not closing */
    bool dead, slow;
    struct gw_silent *among; /* NULL: it has said its name */
};

/* The oldest first; it makes room for one more than `most`. */
struct gw_silent {
    struct gw_client *client[GW_SILENT_MAX];
    size_t n, most;
};

struct pn_gateway {
    struct gw_shared shared;
    struct gw_sockets sockets;
    int epfd, stop_fd, spare_fd;
    pn_group *group; /* of the clients' slots */
    struct gw_client *clients, *timed, *dead;
    struct gw_silent allowed, refused; /* peers that may connect, and that may not */
    int64_t authentication_ns;
    char **databases, **maps;
    char *served;
    size_t ndatabases, nmaps;
    uint32_t *uids, *gids;
    size_t nuids, ngids;
    char *log_dir;
    bool interruptible, interrupted;
    int64_t busy_poll_ns; /* before it sleeps; 0: never */
    int soon;             /* > 0: lately events have come soon after one another */
    int wake_fd;
    char message[GW_SAID];
    pn_gateway_stat stat; /* the rest is in `shared`; written by the loop alone */
    char in[GW_READ_SIZE];
};

static inline int64_t gw_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t) now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline void gw_add(uint64_t *counter, int64_t by)
{
    gw_count(counter, (uint64_t) by);
}

#endif
