/*
 * accept.c - new clients: which may connect, and how many may be silent.
 *
 * A peer that may not connect is told so once it has said its name; until then it holds a
 * descriptor, and so does one that says nothing.  Of both kinds there is a bounded number.
 */
#define _GNU_SOURCE
#include "accept.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clients.h"
#include "peer.h"

enum { ACCEPTED_AT_ONCE = 64, NO_DESCRIPTOR_US = 10000 };

static bool contains(const uint32_t *ids, size_t n, uint32_t id)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] == id)
            return true;
    return false;
}

static bool may_connect(const pn_gateway *gateway, int fd, bool tcp, struct gw_peer *peer)
{
    if (!(tcp ? gw_tcp_peer(fd, peer) : gw_unix_peer(fd, peer))) {
        *peer = (struct gw_peer) {.uid = (uid_t) -1};
        return false;
    }
    return peer->uid == (uid_t) pn_engine_owner_euid(gateway->shared.engine) ||
           contains(gateway->uids, gateway->nuids, peer->uid) ||
           (peer->has_gid && contains(gateway->gids, gateway->ngids, peer->gid));
}

static void note_silent(pn_gateway *gateway, struct gw_silent *among, struct gw_client *client,
                        int64_t now)
{
    if (among->n == among->most)
        gw_client_input(gateway, among->client[0], now); /* it may have said its name by now */
    if (among->n == among->most)
        gw_client_refuse(
            gateway, among->client[0], "53300", "sorry, too many clients already",
            "Too many processes have connected and not sent a startup message; this one "
            "waited longest.");
    client->among = among;
    among->client[among->n++] = client;
}

static bool add_client(pn_gateway *gateway, int fd, bool tcp, int64_t now)
{
    uint32_t secret = 0;
    struct gw_peer peer;
    bool refused = !may_connect(gateway, fd, tcp, &peer);
    struct gw_client *client = calloc(1, sizeof *client);
    if (client == NULL || getrandom(&secret, sizeof secret, 0) != sizeof secret) {
        free(client);
        return false;
    }
    client->session = gw_session_new(&gateway->shared, &peer, refused, secret);
    client->fd = fd;
    client->slot_fd = -1;
    client->events = EPOLLIN;
    client->started = now;
    int on = 1; /* notifications do not wait for one another */
    if (tcp)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (client->session == NULL || !gw_watch(gateway, EPOLL_CTL_ADD, fd, EPOLLIN, client, false)) {
        if (client->session != NULL)
            gw_session_free(client->session);
        free(client);
        return false;
    }
    client->next = gateway->clients;
    if (gateway->clients != NULL)
        gateway->clients->previous = client;
    gateway->clients = client;
    gw_client_set_timed(gateway, client, true);
    gw_add(&gateway->stat.clients, 1);
    note_silent(gateway, refused ? &gateway->refused : &gateway->allowed, client, now);
    return true;
}

/* No descriptor is left: with the spare one, the client is told. */
static void refuse_one(pn_gateway *gateway, int listener)
{
    struct gw_buffer out = {0};
    struct gw_error error;
    if (gateway->spare_fd >= 0)
        close(gateway->spare_fd);
    else
        usleep(NO_DESCRIPTOR_US); /* not even that: others have to give one back */
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    gw_fail(&error, "53300", "sorry, too many clients already");
    gw_hint(&error, "The gateway's process has no descriptor left: raise its limit (ulimit -n).");
    gw_send_error(&out, "FATAL", &error);
    if (fd >= 0) {
        if (!out.failed)
            (void) !send(fd, out.data, out.end, MSG_NOSIGNAL | MSG_DONTWAIT);
        close(fd);
    }
    gw_buffer_free(&out);
    gateway->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    gw_add(&gateway->shared.refused, 1);
}

void gw_accept_clients(pn_gateway *gateway, int listener, int64_t now)
{
    for (int i = 0; i < ACCEPTED_AT_ONCE; i++) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
            refuse_one(gateway, listener);
            return;
        }
        if (fd < 0)
            return;
        gw_add(&gateway->stat.accepted, 1);
        if (!add_client(gateway, fd, listener == gateway->sockets.tcp_fd, now))
            close(fd);
    }
}
