/* peer.h - which user is at the other end of a socket of this host. */
#ifndef PN_GATEWAY_PEER_H
#define PN_GATEWAY_PEER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct gw_peer {
    uid_t uid;
    gid_t gid;
    bool has_gid;
    pid_t pid;     /* 0: it cannot be told, as of TCP */
    uint16_t port; /* of TCP */
};

/* false: it cannot be told. */
bool gw_unix_peer(int fd, struct gw_peer *out);
/* Of a connection over loopback, in this network namespace. */
bool gw_tcp_peer(int fd, struct gw_peer *out);

#endif
