/* sockets.h - the files and addresses at which a gateway listens. */
#ifndef PN_GATEWAY_SOCKETS_H
#define PN_GATEWAY_SOCKETS_H

#include <limits.h>
#include <stdbool.h>
#include <sys/un.h>

struct gw_sockets {
    int unix_fd, tcp_fd; /* -1: none */
    int lock_fd;
    struct sockaddr_un address;
    char lock_path[PATH_MAX];
    char *message; /* [GW_SAID], about the last error */
};

/*
 * Listen in `directory`.  What a dead gateway left is taken over, under a lock; a live one's is
 * -EADDRINUSE.  `shared`: other users may connect, so the directory and the socket are open to
 * them.
 */
int gw_sockets_open(struct gw_sockets *sockets, const char *directory, int port, bool tcp,
                    bool shared);
void gw_sockets_close(struct gw_sockets *sockets);

enum { GW_SAID = 1024 };

/* Writes `message` [GW_SAID] and returns -error. */
int gw_say(char *message, int error, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
