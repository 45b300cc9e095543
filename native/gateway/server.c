/*
 * server.c - a gateway: it is opened, its loop, it is closed.
 *
 * One thread, one epoll.  That notifications are owed to clients, the descriptor of their group
 * says; what a client's own descriptors are for, clients.c.
 *
 * Nothing here waits: pn_set_never_wait() makes a commit that another process holds up return, and
 * the session is run again when its time has come.
 */
#define _GNU_SOURCE
#include "server.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "accept.h"
#include "clients.h"
#include "options.h"
#include "parse.h"

enum { EVENTS = 256, SOON = 4, SOON_MAX = 4 };
enum { LOOK_MS = 1000 }; /* so often it looks whether the segment is there */

#define REFUSED_PATIENCE_NS 5000000000LL /* with a peer that will only be told that it may not */

/* ---- the loop -------------------------------------------------------------------------------- */

/* Those whose time has come; when the next one's will, in ms for epoll_wait(), -1: never. */
static int run_timed(pn_gateway *gateway, int64_t now)
{
    int64_t next = INT64_MAX;
    const struct gw_client *first = gateway->timed;
    for (struct gw_client *client = gateway->timed, *following; client != NULL;
         client = following) {
        struct gw_session *session = client->session;
        following = client->next_timed;
        int64_t end = client->drop_at;
        if (session->activity == GW_STARTUP)
            end = client->started +
                  (session->refused ? REFUSED_PATIENCE_NS : gateway->authentication_ns);
        int64_t at = end > 0 ? end : session->wake_at;
        if (at <= now && end > 0) {
            if (session->activity == GW_STARTUP)
                gw_client_refuse(gateway, client, "57014",
                                 "canceling authentication due to timeout", NULL);
            gw_client_drop(gateway, client);
            continue;
        }
        if (at <= now) {
            gw_client_serve(gateway, client, now);
            at = client->dead            ? INT64_MAX
                 : client->drop_at > 0   ? client->drop_at
                 : session->wake_at == 0 ? INT64_MAX
                                         : session->wake_at;
        }
        next = at < next ? at : next;
    }
    if (gateway->timed != first && gateway->timed != NULL)
        return 0; /* one of them has ended another one */
    if (next == INT64_MAX)
        return LOOK_MS;
    int64_t left = (next - now + 999999) / 1000000;
    return left < 0 ? 0 : left < LOOK_MS ? (int) left : LOOK_MS;
}

static bool is_stopped(const pn_gateway *gateway)
{
    uint64_t value;
    return read(gateway->stop_fd, &value, sizeof value) == sizeof value;
}

static bool empty(int fd)
{
    char bytes[64];
    while (read(fd, bytes, sizeof bytes) > 0)
        ;
    return true;
}

/* To all clients that are owed something by now. */
static void deliver_all(pn_gateway *gateway, int64_t now)
{
    struct gw_client *client;
    pn_group_begin(gateway->group);
    while ((client = pn_group_next(gateway->group)) != NULL)
        gw_client_event(gateway, client, 0, true, now);
}

static void handle_event(pn_gateway *gateway, const struct epoll_event *event, int64_t now)
{
    uint64_t data = event->data.u64;
    if (data == (uint64_t) (uintptr_t) &gateway->sockets.unix_fd)
        gw_accept_clients(gateway, gateway->sockets.unix_fd, now);
    else if (data == (uint64_t) (uintptr_t) &gateway->sockets.tcp_fd)
        gw_accept_clients(gateway, gateway->sockets.tcp_fd, now);
    else if (data == (uint64_t) (uintptr_t) &gateway->wake_fd)
        gateway->interrupted = empty(gateway->wake_fd);
    else if (data == (uint64_t) (uintptr_t) &gateway->group)
        deliver_all(gateway, now);
    else if (data != (uint64_t) (uintptr_t) &gateway->stop_fd)
        gw_client_event(gateway, (struct gw_client *) (uintptr_t) (data & ~(uint64_t) 1),
                        event->events, (data & 1) != 0, now);
}

/*
 * Events.  A client that waits for each answer sends the next statement soon; a processor that has
 * gone to sleep for so long takes several times that to come back.  So as long as events do come
 * soon, they are looked for a while, and others run in between; then this thread sleeps.
 */
static int await(pn_gateway *gateway, struct epoll_event events[EVENTS], int timeout)
{
    if (timeout == 0 || gateway->busy_poll_ns == 0)
        return epoll_wait(gateway->epfd, events, EVENTS, timeout);
    const int64_t begun = gw_now_ns(), left = timeout < 0 ? INT64_MAX : timeout * 1000000LL;
    const int64_t most = left < gateway->busy_poll_ns ? left : gateway->busy_poll_ns;
    while (gateway->soon > 0 && gw_now_ns() - begun < most) {
        int n = epoll_wait(gateway->epfd, events, EVENTS, 0);
        if (n != 0)
            return n;
        sched_yield();
    }
    int n = epoll_wait(gateway->epfd, events, EVENTS, timeout);
    const bool soon =
        gw_now_ns() - begun < SOON * gateway->busy_poll_ns; /* it came late by a sleep */
    if (soon && gateway->soon < SOON_MAX)
        gateway->soon++;
    else if (!soon && gateway->soon > 0)
        gateway->soon--;
    return n;
}

static int loop(pn_gateway *gateway)
{
    struct epoll_event events[EVENTS];
    for (;;) {
        int timeout = run_timed(gateway, gw_now_ns());
        gw_clients_free_dead(gateway);
        int n = await(gateway, events, timeout);
        if (n < 0 && errno != EINTR)
            return gw_say(gateway->message, errno, "epoll_wait: %s", strerror(errno));
        if (is_stopped(gateway))
            return 0;
        int64_t now = gw_now_ns();
        for (int i = 0; i < n; i++)
            handle_event(gateway, &events[i], now);
        if (gateway->interrupted) {
            gateway->interrupted = false;
            return -EINTR;
        }
        if (n == 0)
            gateway->shared.gone |= pn_engine_gone(gateway->shared.engine) != 0;
        if (gateway->shared.gone)
            return gw_say(gateway->message, PN_EGONE, "the segment was removed");
    }
}

PN_API int pn_gateway_run(pn_gateway *gateway)
{
    int before = pn_set_never_wait(1);
    locale_t numbers = newlocale(LC_NUMERIC_MASK, "C", (locale_t) 0); /* 1.5, wherever this runs */
    locale_t of_host = numbers != (locale_t) 0 ? uselocale(numbers) : (locale_t) 0;
    int rc = loop(gateway);
    if (rc != -EINTR)
        gw_clients_say_goodbye(gateway);
    pn_set_never_wait(before);
    if (numbers != (locale_t) 0) {
        uselocale(of_host);
        freelocale(numbers);
    }
    return rc;
}

PN_API void pn_gateway_stop(pn_gateway *gateway)
{
    uint64_t one = 1;
    int before = errno; /* of a signal handler's victim */
    (void) !write(gateway->stop_fd, &one, sizeof one);
    errno = before;
}

/* ---- opening and closing --------------------------------------------------------------------- */

static int open_loop(pn_gateway *gateway)
{
    gateway->epfd = epoll_create1(EPOLL_CLOEXEC);
    gateway->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    gateway->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    struct gw_sockets *sockets = &gateway->sockets;
    int rc = pn_group_open(&gateway->group);
    if (rc != 0)
        return gw_say(gateway->message, -rc, "%s", pn_error_message());
    if (gateway->epfd < 0 || gateway->stop_fd < 0 || gateway->spare_fd < 0 ||
        !gw_watch(gateway, EPOLL_CTL_ADD, gateway->stop_fd, EPOLLIN, &gateway->stop_fd, false) ||
        !gw_watch(gateway, EPOLL_CTL_ADD, pn_group_fileno(gateway->group), EPOLLIN, &gateway->group,
                  false) ||
        !gw_watch(gateway, EPOLL_CTL_ADD, sockets->unix_fd, EPOLLIN, &sockets->unix_fd, false) ||
        (gateway->interruptible &&
         !gw_watch(gateway, EPOLL_CTL_ADD, gateway->wake_fd, EPOLLIN, &gateway->wake_fd, false)) ||
        (sockets->tcp_fd >= 0 &&
         !gw_watch(gateway, EPOLL_CTL_ADD, sockets->tcp_fd, EPOLLIN, &sockets->tcp_fd, false)))
        return gw_say(gateway->message, errno, "no descriptors for the gateway's loop: %s",
                      strerror(errno));
    return 0;
}

static int set_up(pn_gateway *gateway, pn_engine *engine, const pn_gateway_options *options)
{
    struct gw_shared *shared = &gateway->shared;
    int port = options->port == 0 ? 5432 : options->port;
    bool others = options->nuids > 0 || options->ngids > 0;
    if (port < 1 || port > 65535)
        return gw_say(gateway->message, EINVAL, "a port is between 1 and 65535, not %d", port);
    int rc = gw_options_copy(gateway, options);
    if (rc != 0)
        return rc;
    shared->engine = engine;
    pn_engine_options(engine, &shared->options);
    snprintf(shared->version, sizeof shared->version, "PostgreSQL 15.0 (pynotify)");
    shared->database = gw_find_database;
    shared->cancel = gw_clients_cancel;
    shared->terminate = gw_clients_terminate;
    shared->server = gateway;
    shared->served = gateway->served;
    shared->log_dir = gateway->log_dir;
    shared->batch = pn_batch_new();
    if (shared->batch == NULL)
        return gw_say(gateway->message, ENOMEM, "out of memory");
    rc = gw_sockets_open(&gateway->sockets, options->directory, port, options->tcp != 0, others);
    return rc != 0 ? rc : open_loop(gateway);
}

PN_API int pn_gateway_open(pn_engine *engine, const pn_gateway_options *options, char *error,
                           size_t size, pn_gateway **out)
{
    pn_gateway *gateway = calloc(1, sizeof *gateway);
    if (gateway == NULL) {
        snprintf(error, size, "out of memory");
        return -ENOMEM;
    }
    gateway->epfd = gateway->stop_fd = gateway->spare_fd = -1;
    gateway->sockets = (struct gw_sockets) {
        .unix_fd = -1, .tcp_fd = -1, .lock_fd = -1, .message = gateway->message};
    int rc = set_up(gateway, engine, options);
    if (rc != 0) {
        snprintf(error, size, "%s", gateway->message);
        pn_gateway_close(gateway);
        return rc;
    }
    *out = gateway;
    return 0;
}

static void close_fd(int fd)
{
    if (fd >= 0)
        close(fd);
}

PN_API void pn_gateway_close(pn_gateway *gateway)
{
    gw_clients_say_goodbye(gateway); /* to those of a pn_gateway_run() that was not called again */
    gw_sockets_close(&gateway->sockets);
    for (size_t i = 0; i < GW_SCRIPTS; i++)
        gw_script_let_go(gateway->shared.script[i]);
    if (gateway->shared.batch != NULL)
        pn_batch_free(gateway->shared.batch);
    pn_group_close(gateway->group);
    close_fd(gateway->epfd);
    close_fd(gateway->stop_fd);
    close_fd(gateway->spare_fd);
    gw_options_free(gateway);
    free(gateway);
}

PN_API void pn_gateway_get_stat(const pn_gateway *gateway, pn_gateway_stat *out)
{
    const struct gw_shared *shared = &gateway->shared;
    *out = (pn_gateway_stat) {
        .accepted = __atomic_load_n(&gateway->stat.accepted, __ATOMIC_RELAXED),
        .refused = __atomic_load_n(&shared->refused, __ATOMIC_RELAXED),
        .clients = __atomic_load_n(&gateway->stat.clients, __ATOMIC_RELAXED),
        .slow = __atomic_load_n(&gateway->stat.slow, __ATOMIC_RELAXED),
        .received = __atomic_load_n(&shared->received, __ATOMIC_RELAXED),
        .delivered = __atomic_load_n(&shared->sent, __ATOMIC_RELAXED),
        .unreadable = __atomic_load_n(&shared->unreadable, __ATOMIC_RELAXED),
        .listens = __atomic_load_n(&shared->listens, __ATOMIC_RELAXED),
    };
}

PN_API const char *pn_gateway_path(const pn_gateway *gateway)
{
    return gateway->sockets.address.sun_path;
}

PN_API const char *pn_gateway_error(const pn_gateway *gateway)
{
    return gateway->message;
}
