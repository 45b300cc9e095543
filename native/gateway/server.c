/*
 * server.c - the loop of a gateway: sockets, clients, timers.
 *
 * One thread, one epoll.  A client has two descriptors in it: its socket, and its slot's, for the
 * timer and for neighbours; that notifications are owed to clients, the descriptor of their group
 * says.  A client is freed at the end of a round, since events of the round may still name it.
 *
 * Nothing here waits: pn_set_never_wait() makes a commit that another process holds up return, and
 * the session is run again when its time has come.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "parse.h"
#include "peer.h"
#include "pynotify_gateway.h"
#include "session.h"
#include "sockets.h"

enum { EVENTS = 256, READ_SIZE = 64 * 1024, ACCEPTED_AT_ONCE = 64, ROUNDS = 8 };
/* Peers that have not said their names, at a time; each holds a descriptor. */
enum { REFUSED_MAX = 32, SILENT_MAX = 256, SILENT_MIN = 8 };
enum {
    NO_DESCRIPTOR_US = 10000,
    LOOK_MS = 1000
}; /* so often it looks whether the segment is there */

#define REFUSED_PATIENCE_NS 5000000000LL /* with a peer that will only be told that it may not */
#define STOP_PATIENCE_NS    200000000LL  /* for what is left to be sent when it stops */
#define CLOSE_PATIENCE_NS   1000000000LL
enum { BUSY_POLL_US = 50, BUSY_POLL_MAX_US = 1000, SOON = 4, SOON_MAX = 4 };

struct client {
    struct client *next, *previous; /* all */
    struct client *next_timed, *previous_timed;
    bool timed;
    struct gw_session *session;
    int fd, slot_fd; /* -1: none yet */
    uint32_t events; /* that the socket is waited for */
    int64_t started; /* CLOCK_MONOTONIC ns */
    int64_t drop_at; /* what is closing is dropped then; 0: it is not closing */
    bool dead, slow;
    struct silent *among; /* NULL: it has said its name */
};

/* The oldest first; it makes room for one more than `most`. */
struct silent {
    struct client *client[SILENT_MAX];
    size_t n, most;
};

struct pn_gateway {
    struct gw_shared shared;
    struct gw_sockets sockets;
    int epfd, stop_fd, spare_fd;
    pn_group *group; /* of the clients' slots */
    struct client *clients, *timed, *dead;
    struct silent allowed, refused; /* who may connect, and who may not */
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
    char in[READ_SIZE];
};

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t) now.tv_sec * 1000000000 + now.tv_nsec;
}

static void count(uint64_t *counter, int64_t by)
{
    gw_count(counter, (uint64_t) by);
}

/* ---- databases ------------------------------------------------------------------------------- */

static const char *find_database(void *server, const char *name)
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

/* ---- clients --------------------------------------------------------------------------------- */

static void set_timed(pn_gateway *gateway, struct client *client, bool timed)
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

static void forget_silent(struct client *client)
{
    struct silent *among = client->among;
    client->among = NULL;
    for (size_t i = 0; among != NULL && i < among->n; i++)
        if (among->client[i] == client) {
            among->n--;
            memmove(&among->client[i], &among->client[i + 1],
                    (among->n - i) * sizeof(struct client *));
            return;
        }
}

/* Out of the loop; its memory goes at the end of the round. */
static void drop(pn_gateway *gateway, struct client *client)
{
    if (client->dead)
        return;
    client->dead = true;
    set_timed(gateway, client, false);
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
    forget_silent(client);
    count(&gateway->stat.clients, -1);
    if (client->slow)
        count(&gateway->stat.slow, -1);
}

static void free_dead(pn_gateway *gateway)
{
    while (gateway->dead != NULL) {
        struct client *client = gateway->dead;
        gateway->dead = client->next;
        gw_session_free(client->session);
        free(client);
    }
}

/* The lowest bit of a pointer says which of a client's descriptors it is. */
static bool watch(const pn_gateway *gateway, int operation, int fd, uint32_t events, void *data,
                  bool slot)
{
    struct epoll_event event = {.events = events};
    event.data.u64 = (uint64_t) (uintptr_t) data | slot;
    return epoll_ctl(gateway->epfd, operation, fd, &event) == 0;
}

/* What is to be sent; false: the client is gone. */
static bool flush(struct client *client)
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

static void watch_socket(pn_gateway *gateway, struct client *client)
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
    if (!watch(gateway, EPOLL_CTL_MOD, client->fd, events, client, false))
        drop(gateway, client);
}

/* A session that has got its slot: the slot's descriptor joins the loop. */
static void watch_slot(pn_gateway *gateway, struct client *client)
{
    if (client->slot_fd >= 0 || client->session->conn == NULL)
        return;
    if (pn_conn_join(client->session->conn, gateway->group, client) == 0)
        client->slot_fd = pn_fileno(client->session->conn);
    if (client->slot_fd < 0 ||
        !watch(gateway, EPOLL_CTL_ADD, client->slot_fd, EPOLLIN, client, true)) {
        client->slot_fd = -1;
        gw_session_terminate(client->session, "the gateway cannot watch the client's slot");
    }
}

static void note_slow(pn_gateway *gateway, struct client *client)
{
    bool slow = gw_buffer_size(&client->session->out) >= GW_OUT_MAX;
    if (slow != client->slow)
        count(&gateway->stat.slow, slow ? 1 : -1);
    client->slow = slow;
}

/*
 * Go on until the session waits for input, time, or its client.  A session that had more to say
 * than fits is run again when its client has taken that; one client does not keep the others
 * waiting for long.
 */
static void serve(pn_gateway *gateway, struct client *client, int64_t now)
{
    struct gw_session *session = client->session;
    bool again = true;
    for (int rounds = 0; again; rounds++) {
        gw_session_run(session, now);
        if (client->among != NULL && session->activity != GW_STARTUP)
            forget_silent(client);
        watch_slot(gateway, client);
        bool full = gw_buffer_size(&session->out) >= GW_OUT_MAX;
        bool sent = flush(client), empty = gw_buffer_size(&session->out) == 0;
        if (!sent || (session->activity == GW_CLOSING && empty)) {
            drop(gateway, client);
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
        set_timed(gateway, client,
                  session->wake_at > 0 || session->activity == GW_STARTUP || client->drop_at > 0);
}

static void handle_input(pn_gateway *gateway, struct client *client, int64_t now)
{
    ssize_t n = recv(client->fd, gateway->in, READ_SIZE, MSG_DONTWAIT);
    if (n > 0) {
        gw_session_input(client->session, gateway->in, (size_t) n);
        serve(gateway, client, now);
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR && errno != EWOULDBLOCK)) {
        drop(gateway, client);
    }
}

static void handle_client(pn_gateway *gateway, struct client *client, uint32_t events, bool slot,
                          int64_t now)
{
    if (client->dead)
        return;
    if (slot) {
        gw_session_deliver(client->session, now);
        serve(gateway, client, now);
    } else if ((events & EPOLLIN) != 0) {
        handle_input(gateway, client, now);
    } else if ((events & (EPOLLERR | EPOLLHUP)) != 0) {
        drop(gateway, client);
    } else {
        serve(gateway, client, now);
    }
}

/* ---- accepting ------------------------------------------------------------------------------- */

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

/* With its last words, as far as its socket takes them. */
static void refuse_client(pn_gateway *gateway, struct client *client, const char *code,
                          const char *message, const char *hint)
{
    gw_session_refuse(client->session, code, message, hint);
    flush(client);
    drop(gateway, client);
}

static void note_silent(pn_gateway *gateway, struct silent *among, struct client *client,
                        int64_t now)
{
    if (among->n == among->most)
        handle_input(gateway, among->client[0], now); /* it may have said its name by now */
    if (among->n == among->most)
        refuse_client(gateway, among->client[0], "53300", "sorry, too many clients already",
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
    struct client *client = calloc(1, sizeof *client);
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
    if (client->session == NULL || !watch(gateway, EPOLL_CTL_ADD, fd, EPOLLIN, client, false)) {
        if (client->session != NULL)
            gw_session_free(client->session);
        free(client);
        return false;
    }
    client->next = gateway->clients;
    if (gateway->clients != NULL)
        gateway->clients->previous = client;
    gateway->clients = client;
    set_timed(gateway, client, true);
    count(&gateway->stat.clients, 1);
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
    count(&gateway->shared.refused, 1);
}

static void accept_clients(pn_gateway *gateway, int listener, int64_t now)
{
    for (int i = 0; i < ACCEPTED_AT_ONCE; i++) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
            refuse_one(gateway, listener);
            return;
        }
        if (fd < 0)
            return;
        count(&gateway->stat.accepted, 1);
        if (!add_client(gateway, fd, listener == gateway->sockets.tcp_fd, now))
            close(fd);
    }
}

/* ---- what clients ask of one another --------------------------------------------------------- */

static void cancel(void *server, uint32_t pid, uint32_t secret)
{
    pn_gateway *gateway = server;
    for (struct client *client = gateway->clients; client != NULL; client = client->next) {
        struct gw_session *session = client->session;
        if (session->conn == NULL || session->pid != pid || session->secret != secret)
            continue;
        session->canceled = session->wake_at > 0;
        if (session->canceled)
            session->wake_at = 1; /* at once */
        return;
    }
}

static enum gw_signaled terminate(void *server, uint32_t by_uid, uint32_t pid, bool whole_session)
{
    pn_gateway *gateway = server;
    bool all = by_uid == 0 || by_uid == (uint32_t) pn_engine_owner_euid(gateway->shared.engine);
    for (struct client *client = gateway->clients; client != NULL; client = client->next) {
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
        set_timed(gateway, client, true);
        return GW_SIGNALED;
    }
    return GW_NO_CLIENT;
}

/* ---- the loop -------------------------------------------------------------------------------- */

/* Those whose time has come; when the next one's will, in ms for epoll_wait(), -1: never. */
static int run_timed(pn_gateway *gateway, int64_t now)
{
    int64_t next = INT64_MAX;
    const struct client *first = gateway->timed;
    for (struct client *client = gateway->timed, *following; client != NULL; client = following) {
        struct gw_session *session = client->session;
        following = client->next_timed;
        int64_t end = client->drop_at;
        if (session->activity == GW_STARTUP)
            end = client->started +
                  (session->refused ? REFUSED_PATIENCE_NS : gateway->authentication_ns);
        int64_t at = end > 0 ? end : session->wake_at;
        if (at <= now && end > 0) {
            if (session->activity == GW_STARTUP)
                refuse_client(gateway, client, "57014", "canceling authentication due to timeout",
                              NULL);
            drop(gateway, client);
            continue;
        }
        if (at <= now) {
            serve(gateway, client, now);
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
    struct client *client;
    pn_group_begin(gateway->group);
    while ((client = pn_group_next(gateway->group)) != NULL)
        handle_client(gateway, client, 0, true, now);
}

static void handle_event(pn_gateway *gateway, const struct epoll_event *event, int64_t now)
{
    uint64_t data = event->data.u64;
    if (data == (uint64_t) (uintptr_t) &gateway->sockets.unix_fd)
        accept_clients(gateway, gateway->sockets.unix_fd, now);
    else if (data == (uint64_t) (uintptr_t) &gateway->sockets.tcp_fd)
        accept_clients(gateway, gateway->sockets.tcp_fd, now);
    else if (data == (uint64_t) (uintptr_t) &gateway->wake_fd)
        gateway->interrupted = empty(gateway->wake_fd);
    else if (data == (uint64_t) (uintptr_t) &gateway->group)
        deliver_all(gateway, now);
    else if (data != (uint64_t) (uintptr_t) &gateway->stop_fd)
        handle_client(gateway, (struct client *) (uintptr_t) (data & ~(uint64_t) 1), event->events,
                      (data & 1) != 0, now);
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
    const int64_t begun = now_ns(), left = timeout < 0 ? INT64_MAX : timeout * 1000000LL;
    const int64_t most = left < gateway->busy_poll_ns ? left : gateway->busy_poll_ns;
    while (gateway->soon > 0 && now_ns() - begun < most) {
        int n = epoll_wait(gateway->epfd, events, EVENTS, 0);
        if (n != 0)
            return n;
        sched_yield();
    }
    int n = epoll_wait(gateway->epfd, events, EVENTS, timeout);
    const bool soon = now_ns() - begun < SOON * gateway->busy_poll_ns; /* it came late by a sleep */
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
        int timeout = run_timed(gateway, now_ns());
        free_dead(gateway);
        int n = await(gateway, events, timeout);
        if (n < 0 && errno != EINTR)
            return gw_say(gateway->message, errno, "epoll_wait: %s", strerror(errno));
        if (is_stopped(gateway))
            return 0;
        int64_t now = now_ns();
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

/* Clients are told; what they do not take soon they do not get. */
static void say_goodbye(pn_gateway *gateway)
{
    int64_t until = now_ns() + STOP_PATIENCE_NS;
    for (struct client *client = gateway->clients; client != NULL; client = client->next) {
        gw_session_terminate(client->session,
                             "terminating connection due to administrator command");
        flush(client);
    }
    while (gateway->clients != NULL) {
        struct client *client = gateway->clients;
        while (gw_buffer_size(&client->session->out) > 0 && now_ns() < until && flush(client))
            poll(&(struct pollfd) {client->fd, POLLOUT, 0}, 1, 10);
        drop(gateway, client);
    }
    free_dead(gateway);
}

PN_API int pn_gateway_run(pn_gateway *gateway)
{
    int before = pn_set_never_wait(1);
    locale_t numbers = newlocale(LC_NUMERIC_MASK, "C", (locale_t) 0); /* 1.5, wherever this runs */
    locale_t of_host = numbers != (locale_t) 0 ? uselocale(numbers) : (locale_t) 0;
    int rc = loop(gateway);
    if (rc != -EINTR)
        say_goodbye(gateway);
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
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0 || limit.rlim_cur / 4 >= SILENT_MAX)
        return SILENT_MAX;
    return limit.rlim_cur / 4 > SILENT_MIN ? (size_t) limit.rlim_cur / 4 : SILENT_MIN;
}

static int copy_options(pn_gateway *gateway, const pn_gateway_options *options)
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
    gateway->refused.most = REFUSED_MAX;
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
        !watch(gateway, EPOLL_CTL_ADD, gateway->stop_fd, EPOLLIN, &gateway->stop_fd, false) ||
        !watch(gateway, EPOLL_CTL_ADD, pn_group_fileno(gateway->group), EPOLLIN, &gateway->group,
               false) ||
        !watch(gateway, EPOLL_CTL_ADD, sockets->unix_fd, EPOLLIN, &sockets->unix_fd, false) ||
        (gateway->interruptible &&
         !watch(gateway, EPOLL_CTL_ADD, gateway->wake_fd, EPOLLIN, &gateway->wake_fd, false)) ||
        (sockets->tcp_fd >= 0 &&
         !watch(gateway, EPOLL_CTL_ADD, sockets->tcp_fd, EPOLLIN, &sockets->tcp_fd, false)))
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
    int rc = copy_options(gateway, options);
    if (rc != 0)
        return rc;
    shared->engine = engine;
    pn_engine_options(engine, &shared->options);
    snprintf(shared->version, sizeof shared->version, "PostgreSQL 15.0 (pynotify)");
    shared->database = find_database;
    shared->cancel = cancel;
    shared->terminate = terminate;
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

static void free_texts(char **texts, size_t n)
{
    for (size_t i = 0; texts != NULL && i < n; i++)
        free(texts[i]);
    free(texts);
}

static void close_fd(int fd)
{
    if (fd >= 0)
        close(fd);
}

PN_API void pn_gateway_close(pn_gateway *gateway)
{
    say_goodbye(gateway); /* to those of a pn_gateway_run() that was not called again */
    gw_sockets_close(&gateway->sockets);
    for (size_t i = 0; i < GW_SCRIPTS; i++)
        gw_script_let_go(gateway->shared.script[i]);
    if (gateway->shared.batch != NULL)
        pn_batch_free(gateway->shared.batch);
    pn_group_close(gateway->group);
    close_fd(gateway->epfd);
    close_fd(gateway->stop_fd);
    close_fd(gateway->spare_fd);
    free_texts(gateway->databases, gateway->ndatabases);
    free_texts(gateway->maps, gateway->nmaps);
    free(gateway->uids);
    free(gateway->gids);
    free(gateway->served);
    free(gateway->log_dir);
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
