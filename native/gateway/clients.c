/*
 * clients.c - the clients of a gateway's loop.
 *
 * A client has two descriptors in the loop: its socket, and its slot's, for the timer and for
 * neighbours.  A client is freed at the end of a round, since events of the round may still name
 * it.
 */
#define _GNU_SOURCE
#include "clients.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ROUNDS = 8 };
#define STOP_PATIENCE_NS  200000000LL /* for what is left to be sent when it stops */
#define CLOSE_PATIENCE_NS 1000000000LL

void gw_client_set_timed(pn_gateway *gateway, struct gw_client *client, bool timed)
{
    if (client->timed == timed)
        return;
    client->timed = timed;
    if (timed) {
        client->previous_timed = NULL;
        client->next_timed = gateway->timed;
        if (gateway->timed != NULL)
            gateway->timed->previous_timed = client;
        gateway->timed = client;
        return;
    }
    if (client->next_timed != NULL)
        client->next_timed->previous_timed = client->previous_timed;
    if (client->previous_timed != NULL)
        client->previous_timed->next_timed = client->next_timed;
    else
        gateway->timed = client->next_timed;
}

static void gw_client_named(struct gw_client *client)
{
    struct gw_silent *among = client->among;
    client->among = NULL;
    for (size_t i = 0; among != NULL && i < among->n; i++)
        if (among->client[i] == client) {
            among->n--;
            memmove(&among->client[i], &among->client[i + 1],
                    (among->n - i) * sizeof(struct gw_client *));
            return;
        }
}

void gw_client_drop(pn_gateway *gateway, struct gw_client *client)
{
    if (client->dead)
        return;
    client->dead = true;
    gw_client_set_timed(gateway, client, false);
    if (client->next != NULL)
        client->next->previous = client->previous;
    if (client->previous != NULL)
        client->previous->next = client->next;
    else
        gateway->clients = client->next;
    if (client->slot_fd >= 0)
        epoll_ctl(gateway->epfd, EPOLL_CTL_DEL, client->slot_fd, NULL);
    /* A forked child may have a copy, with which it would stay in the set. */
    epoll_ctl(gateway->epfd, EPOLL_CTL_DEL, client->fd, NULL);
    shutdown(client->fd, SHUT_RDWR);
    close(client->fd);
    client->next = gateway->dead;
    gateway->dead = client;
    gw_client_named(client);
    gw_add(&gateway->stat.clients, -1);
    if (client->slow)
        gw_add(&gateway->stat.slow, -1);
}

void gw_clients_free_dead(pn_gateway *gateway)
{
    while (gateway->dead != NULL) {
        struct gw_client *client = gateway->dead;
        gateway->dead = client->next;
        gw_session_free(client->session);
        free(client);
    }
}

/* The lowest bit of a pointer says which of a client's descriptors it is. */
bool gw_watch(const pn_gateway *gateway, int operation, int fd, uint32_t events, void *data,
              bool slot)
{
    struct epoll_event event = {.events = events};
    event.data.u64 = (uint64_t) (uintptr_t) data | slot;
    return epoll_ctl(gateway->epfd, operation, fd, &event) == 0;
}

/* What is to be sent; false: the client is gone. */
static bool flush(struct gw_client *client)
{
    struct gw_buffer *out = &client->session->out;
    while (gw_buffer_size(out) > 0) {
        ssize_t n = send(client->fd, out->data + out->begin, gw_buffer_size(out),
                         MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK;
        gw_buffer_sent(out, (size_t) n);
    }
    return true;
}

static void watch_socket(pn_gateway *gateway, struct gw_client *client)
{
    const struct gw_session *session = client->session;
    uint32_t events = 0;
    if (gw_session_reads(session))
        events |= EPOLLIN;
    if (gw_buffer_size(&session->out) > 0)
        events |= EPOLLOUT;
    if (events == client->events)
        return;
    client->events = events;
    if (!gw_watch(gateway, EPOLL_CTL_MOD, client->fd, events, client, false))
        gw_client_drop(gateway, client);
}

/* A session that has got its slot: the slot's descriptor joins the loop. */
static void watch_slot(pn_gateway *gateway, struct gw_client *client)
{
    if (client->slot_fd >= 0 || client->session->conn == NULL)
        return;
    if (pn_conn_join(client->session->conn, gateway->group, client) == 0)
        client->slot_fd = pn_fileno(client->session->conn);
    if (client->slot_fd < 0 ||
        !gw_watch(gateway, EPOLL_CTL_ADD, client->slot_fd, EPOLLIN, client, true)) {
        client->slot_fd = -1;
        gw_session_terminate(client->session, "the gateway cannot watch the client's slot");
    }
}

static void note_slow(pn_gateway *gateway, struct gw_client *client)
{
    bool slow = gw_buffer_size(&client->session->out) >= GW_OUT_MAX;
    if (slow != client->slow)
        gw_add(&gateway->stat.slow, slow ? 1 : -1);
    client->slow = slow;
}

/*
 * Go on until the session waits for input, time, or its client.  A session that had more to say
 * than fits is run again when its client has taken that; one client does not keep the others
 * waiting for long.
 */
void gw_client_serve(pn_gateway *gateway, struct gw_client *client, int64_t now)
{
    struct gw_session *session = client->session;
    bool again = true;
    for (int rounds = 0; again; rounds++) {
        gw_session_run(session, now);
        if (client->among != NULL && session->activity != GW_STARTUP)
            gw_client_named(client);
        watch_slot(gateway, client);
        bool full = gw_buffer_size(&session->out) >= GW_OUT_MAX;
        bool sent = flush(client), empty = gw_buffer_size(&session->out) == 0;
        if (!sent || (session->activity == GW_CLOSING && empty)) {
            gw_client_drop(gateway, client);
            return;
        }
        if (empty && session->muted)
            gw_session_deliver(session, now);
        bool more = gw_buffer_size(&session->out) > 0;
        again = empty && (full || (more && rounds < ROUNDS));
    }
    note_slow(gateway, client);
    watch_socket(gateway, client);
    if (session->activity == GW_CLOSING && client->drop_at == 0)
        client->drop_at = now + CLOSE_PATIENCE_NS;
    if (!client->dead)
        gw_client_set_timed(gateway, client,
                            session->wake_at > 0 || session->activity == GW_STARTUP ||
                                client->drop_at > 0);
}

void gw_client_input(pn_gateway *gateway, struct gw_client *client, int64_t now)
{
    ssize_t n = recv(client->fd, gateway->in, GW_READ_SIZE, MSG_DONTWAIT);
    if (n > 0) {
        gw_session_input(client->session, gateway->in, (size_t) n);
        gw_client_serve(gateway, client, now);
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR && errno != EWOULDBLOCK)) {
        gw_client_drop(gateway, client);
    }
}

void gw_client_event(pn_gateway *gateway, struct gw_client *client, uint32_t events, bool slot,
                     int64_t now)
{
    if (client->dead)
        return;
    if (slot) {
        gw_session_deliver(client->session, now);
        gw_client_serve(gateway, client, now);
    } else if ((events & EPOLLIN) != 0) {
        gw_client_input(gateway, client, now);
    } else if ((events & (EPOLLERR | EPOLLHUP)) != 0) {
        gw_client_drop(gateway, client);
    } else {
        gw_client_serve(gateway, client, now);
    }
}

void gw_client_refuse(pn_gateway *gateway, struct gw_client *client, const char *code,
                      const char *message, const char *hint)
{
    gw_session_refuse(client->session, code, message, hint);
    flush(client);
    gw_client_drop(gateway, client);
}

void gw_clients_say_goodbye(pn_gateway *gateway)
{
    int64_t until = gw_now_ns() + STOP_PATIENCE_NS;
    for (struct gw_client *client = gateway->clients; client != NULL; client = client->next) {
        gw_session_terminate(client->session,
                             "terminating connection due to administrator command");
        flush(client);
    }
    while (gateway->clients != NULL) {
        struct gw_client *client = gateway->clients;
        while (gw_buffer_size(&client->session->out) > 0 && gw_now_ns() < until && flush(client))
            poll(&(struct pollfd) {client->fd, POLLOUT, 0}, 1, 10);
        gw_client_drop(gateway, client);
    }
    gw_clients_free_dead(gateway);
}

/* ---- what clients ask of one another --------------------------------------------------------- */

void gw_clients_cancel(void *server, uint32_t pid, uint32_t secret)
{
    pn_gateway *gateway = server;
    for (struct gw_client *client = gateway->clients; client != NULL; client = client->next) {
        struct gw_session *session = client->session;
        if (session->conn == NULL || session->pid != pid || session->secret != secret)
            continue;
        session->canceled = session->wake_at > 0;
        if (session->canceled)
            session->wake_at = 1; /* at once */
        return;
    }
}

enum gw_signaled gw_clients_terminate(void *server, uint32_t by_uid, uint32_t pid,
                                      bool whole_session)
{
    pn_gateway *gateway = server;
    bool all = by_uid == 0 || by_uid == (uint32_t) pn_engine_owner_euid(gateway->shared.engine);
    for (struct gw_client *client = gateway->clients; client != NULL; client = client->next) {
        struct gw_session *session = client->session;
        if (session->conn == NULL || session->pid != pid)
            continue;
        if (!all && session->peer.uid != by_uid)
            return GW_NOT_ALLOWED;
        if (whole_session)
            session->terminated = true;
        else
            session->canceled = session->wake_at > 0;
        if (session->wake_at > 0 || whole_session)
            session->wake_at = 1;
        gw_client_set_timed(gateway, client, true);
        return GW_SIGNALED;
    }
    return GW_NO_CLIENT;
}
