/*
 * consumer_latch.c - the latch of a consumer: an eventfd that signal handlers and threads set.
 *
 * The handler walks the connection's list of consumers.  A program may close any descriptor; what
 * stands in its place then is neither written to nor read (wakeup/lost.c).
 */
#define _GNU_SOURCE
#include "topic/consumer_latch.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "wakeup/latch.h"
#include "wakeup/lost.h"

void pn_consumer_latch_set(struct pn_consumer *c)
{
    const uint64_t one = 1;
    int fd = pn_load_acquire(&c->efd);
    if (pn_is_anonymous(fd) && write(fd, &one, sizeof one) < 0)
        return; /* EAGAIN: the counter is full, so it is readable */
}

void pn_consumer_latch_drain(struct pn_consumer *c)
{
    uint64_t count;
    int fd = pn_load_relaxed(&c->efd);
    if (pn_is_anonymous(fd) && read(fd, &count, sizeof count) < 0)
        return; /* it was not set */
}

int pn_consumer_latch_open(struct pn_consumer *c)
{
    if (pn_load_relaxed(&c->efd) >= 0)
        return 0;
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0)
        return pn_fail(errno, "could not create an eventfd: %s", strerror(errno));
    pn_store_release(&c->efd, fd);
    return 0;
}

static bool fd_is_intact(const struct pn_consumer *c)
{
    return pn_load_acquire(&c->has_fd) == 0 ||
           (pn_is_kind(c->epfd, PN_KIND_EPOLL) && pn_is_kind(c->tfd, PN_KIND_TIMERFD));
}

bool pn_consumers_intact(struct pn_conn *conn)
{
    bool intact = true;
    struct pn_consumer *c = pn_load_acquire(&conn->consumers);
    for (; c != NULL; c = pn_load_acquire(&c->next)) {
        if (!fd_is_intact(c))
            pn_store_release(&c->fd_lost, 1);
        intact = intact && pn_latch_is_intact(conn, &c->efd, &c->sleep_set);
    }
    return intact;
}

void pn_consumers_forget(struct pn_conn *conn)
{
    struct pn_consumer *c = pn_load_acquire(&conn->consumers);
    for (; c != NULL; c = pn_load_acquire(&c->next)) {
        if (pn_load_acquire(&c->has_fd) != 0)
            pn_store_release(&c->fd_lost, 1);
        pn_store_release(&c->efd, -1);
        pn_store_release(&c->sleep_set.fd, -1);
    }
}

bool pn_consumers_watch(struct pn_conn *conn, int watched)
{
    bool found = false;
    struct pn_consumer *c = pn_load_acquire(&conn->consumers);
    for (; c != NULL && !found; c = pn_load_acquire(&c->next))
        found = pn_latch_watches(&c->sleep_set, watched) ||
                (pn_load_acquire(&c->has_fd) != 0 && pn_is_in_set(c->epfd, watched, 0));
    return found;
}

int pn_consumer_check_fd(const struct pn_consumer *c)
{
    if (pn_load_relaxed(&c->fd_lost) == 0)
        return 0;
    return pn_fail(EBADF, "could not wait: the program has closed the descriptor that fileno() "
                          "had given to it\n"
                          "Close the consumer and make another one.");
}

void pn_consumers_woken(struct pn_conn *conn, bool all)
{
    struct pn_consumer *c = pn_load_acquire(&conn->consumers);
    for (; c != NULL; c = pn_load_acquire(&c->next)) {
        if (!all && pn_load_acquire(&c->me->wait) != PN_CONSUMER_NOTIFIED)
            continue;
        if (pn_load_relaxed(&c->has_fd) != 0 || !pn_latch_interrupt(conn, c, PN_FD_SIGNALLED))
            pn_consumer_latch_set(c);
    }
}
