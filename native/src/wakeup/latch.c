/*
 * latch.c - blocking, and what ends it.
 *
 * 1. A connection's latch is an eventfd, and flags that say what it was set for.  All threads of
 *    this process may set it: the handler, a commit, close().  It is made before the first sleep
 *    and lives as long as the connection.
 * 2. A sleep ends for the latch, and for a death among those that are watched (watch.c).
 *    wait() does not give both to ppoll(), which joins and leaves the queue of each descriptor in
 *    every sleep; it blocks on a set of the two, which stays.  That is 0.2 us less, and less than
 *    ppoll() on the latch alone.  The set is made when a thread first sleeps and a process is
 *    watched; a program that only uses fileno() has none, and pays for none.
 * 3. ppoll() remains: before 5.11 there is no epoll_pwait2(), and a sandbox may refuse it.  Then
 *    the process asks no more.  And where no descriptor is left for the set.
 * 4. When the signal hits the very thread that sleeps, and no other waits for the latch, the
 *    handler need not write it: it marks the sleeper and takes its time-out away.  The kernel reads
 *    the time-out when the call begins, so a signal just before that makes the call return at once,
 *    and one after it EINTR: there is no window.
 * 5. Several threads may sleep on one set.  All of it is level-triggered: of a latch that is
 *    readable the kernel wakes one thread, which on its way out wakes the next if it still is.
 *    The thread that drains the latch sees to it that it is set again if there is something for
 *    others (receive.c).
 * 6. A consumer of a topic sleeps in the same way, on a latch of its own (consumer_latch.c).
 *    A connection of a group has the group's (group.c), and no thread that waits.
 * 7. Nothing of this is in shared memory.  A process that is killed in here leaves nothing but
 *    `owed`.
 * 8. A signal of the program's, whose handler is not ours, can come just before the kernel has put
 *    the thread to sleep; then it interrupts nothing.  C programs look after the sleep, sooner or
 *    later; a binding that must not be late names a descriptor that its C handler writes to
 *    (pn_set_wakeup_fd()), and the thread sleeps on that, too.  It enters the set at its first
 *    sleep there, and stays in it; `wakeup` says which, by an id, since a number that was closed
 *    may be had again.  W: a thread with such a descriptor, of which a process has one at a time;
 *    and the thread that makes the set stores 0 before another can find it.  Edge-triggered: what
 *    nothing has read yet must not end the sleeps of threads that have named no descriptor.
 */
#define _GNU_SOURCE
#include "wakeup/latch.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/crashpoint.h"
#include "base/os.h"
#include "segment/identity.h"
#include "wakeup/group.h"

#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441 /* everywhere; older headers do not have it */
#endif

/* ThreadSanitizer holds handlers back, except in calls that it knows. */
#if defined(__SANITIZE_THREAD__)
enum { PN_TSAN = 1 };
#else
enum { PN_TSAN = 0 };
#endif

enum { THE_LATCH, THE_WATCHED, THE_WAKEUP, NUM_MEMBERS }; /* of the set, and for ppoll() */

/* The wait() or pn_consumer_get() that this thread is in, if any (4). */
static _Thread_local struct pn_sleeper *sleeper PN_TLS_AT_START;

/* What this thread's sleeps end for besides (8). */
static _Thread_local struct {
    int fd;
    uint32_t id;
} wakeup = {.fd = -1};

static pn_atomic_u32 refused = PN_TSAN; /* there is no epoll_pwait2() here */

/* ---- blocking ------------------------------------------------------------------------------ */

/* No other set has such data: it is how ours is known again (lost.c). */
static uint64_t data_of(const struct pn_sleep_set *set, uint64_t what)
{
    return (uint64_t) (uintptr_t) set << 2 | what;
}

static bool add_to_set(int set, int fd, uint32_t events, uint64_t data)
{
    struct epoll_event event = {.events = events, .data.u64 = data};
    return epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0;
}

bool pn_latch_watches(const struct pn_sleep_set *set, int watched)
{
    int fd = pn_load_acquire(&set->fd);
    return fd >= 0 && pn_is_in_set(fd, watched, data_of(set, THE_WATCHED));
}

bool pn_latch_is_intact(const struct pn_conn *conn, const pn_atomic_i32 *latch,
                        const struct pn_sleep_set *set)
{
    int fd = pn_load_relaxed(latch), sleepfd = pn_load_relaxed(&set->fd);
    if (fd >= 0 && !pn_is_kind(fd, PN_KIND_EVENTFD))
        return false;
    return sleepfd < 0 ||
           (pn_is_in_set(sleepfd, fd, data_of(set, THE_LATCH)) &&
            pn_is_in_set(sleepfd, pn_load_relaxed(&conn->watch.epfd), data_of(set, THE_WATCHED)));
}

/* The set of latch and watched; -1: there is none. */
static int set_of_both(const struct pn_sleeper *s)
{
    int watched = pn_load_acquire(&s->conn->watch.epfd), set = pn_load_acquire(&s->set->fd);
    if (pn_load_relaxed(&refused) != 0 || watched < 0 || pn_load_acquire(&s->conn->watch.lost) != 0)
        return -1;
    if (set >= 0)
        return set;
    int made = epoll_create1(EPOLL_CLOEXEC);
    if (made < 0)
        return -1;
    pn_store_relaxed(&s->set->wakeup, 0);
    if (add_to_set(made, s->fd, EPOLLIN, data_of(s->set, THE_LATCH)) &&
        add_to_set(made, watched, EPOLLIN, data_of(s->set, THE_WATCHED)) &&
        pn_cas(&s->set->fd, &set, made))
        return made;
    close(made);
    return set; /* -1, or of another thread, which was first */
}

/* The set of all that ends the sleep; -1: there is none. */
static int sleep_set(const struct pn_sleeper *s)
{
    int set = set_of_both(s);
    if (set < 0 || wakeup.fd < 0 || pn_load_relaxed(&s->set->wakeup) == wakeup.id)
        return set;
    if (!add_to_set(set, wakeup.fd, EPOLLIN | EPOLLET, data_of(s->set, THE_WAKEUP)) &&
        errno != EEXIST)
        return errno == ENOSPC || errno == ENOMEM ? -1 : set; /* it is none: the sleep says so */
    pn_store_relaxed(&s->set->wakeup, wakeup.id);
    return set;
}

/* What a sleep on several returns, of which `mask` are readable. */
static long ended_for(struct pn_sleeper *s, long n, unsigned mask)
{
    s->neighbour = (mask & 1U << THE_WATCHED) != 0;
    if (n <= 0 || mask != 1U << THE_WAKEUP)
        return n;
    errno = EINTR;
    return -1;
}

static long block_on_set(struct pn_sleeper *s, int set)
{
    struct epoll_event event[NUM_MEMBERS];
    unsigned mask = 0;
    long n = syscall(SYS_epoll_pwait2, set, event, NUM_MEMBERS, &s->timeout, NULL, _NSIG / 8);
    for (long i = 0; i < n; i++)
        mask |= 1U << (event[i].data.u64 & 3);
    return ended_for(s, n, mask);
}

static long block_on_each(struct pn_sleeper *s)
{
    bool watches = pn_load_acquire(&s->conn->watch.lost) == 0;
    struct pollfd p[NUM_MEMBERS] = {
        [THE_LATCH] = {.fd = s->fd, .events = POLLIN},
        [THE_WATCHED] = {.fd = watches ? pn_load_relaxed(&s->conn->watch.epfd) : -1,
                         .events = POLLIN},
        [THE_WAKEUP] = {.fd = wakeup.fd, .events = POLLIN}};
    unsigned mask = 0;
#if defined(__SANITIZE_THREAD__)
    /* on a copy of the time-out: the latch it is */
    long n = ppoll(p, NUM_MEMBERS, &s->timeout, NULL);
#else
    /* not ppoll(): glibc hands a copy of the time-out to the kernel */
    long n = syscall(SYS_ppoll, p, NUM_MEMBERS, &s->timeout, NULL, _NSIG / 8);
#endif
    for (unsigned i = 0; n > 0 && i < NUM_MEMBERS; i++)
        mask |= p[i].revents != 0 ? 1U << i : 0;
    if (n > 0 && ((p[THE_LATCH].revents | p[THE_WATCHED].revents) & POLLNVAL) != 0) {
        errno = EBADF;
        return -1;
    }
    return ended_for(s, n, mask);
}

int pn_latch_block(struct pn_sleeper *s)
{
    if (s->fd < 0)
        return -EBADF; /* lost since the caller made it */
    int set = sleep_set(s);
    if (!PN_TSAN)
        sleeper = s;
    pn_compiler_fence();
    PN_CRASH("sleep:begins");
    long n = set >= 0 ? block_on_set(s, set) : block_on_each(s);
    if (n < 0 && set >= 0 && (errno == ENOSYS || errno == EPERM)) {
        pn_store_relaxed(&refused, 1);
        n = block_on_each(s);
    }
    int rc = n > 0 ? 1 : n == 0 ? 0 : -errno;
    pn_compiler_fence();
    sleeper = NULL;
    pn_compiler_fence(); /* from here on the handler writes the latch */
    return rc;
}

void pn_latch_set_wakeup_fd(int fd, uint32_t id)
{
    wakeup.fd = fd;
    wakeup.id = id;
}

int pn_latch_sleep(int64_t timeout_ns)
{
    struct timespec timeout = {timeout_ns / 1000000000, timeout_ns % 1000000000};
    struct pollfd p = {.fd = wakeup.fd, .events = POLLIN};
    PN_CRASH("sleep:begins");
    return ppoll(&p, 1, timeout_ns < 0 ? NULL : &timeout, NULL) == 0 ? 0 : -EINTR;
}

/* ---- the latch ----------------------------------------------------------------------------- */

void pn_latch_init(struct pn_conn *conn)
{
    pn_store_relaxed(&conn->efd, -1);
    pn_store_relaxed(&conn->sleep_set.fd, -1);
}

void pn_latch_close(struct pn_conn *conn)
{
    pn_close_if_ours(pn_load_relaxed(&conn->sleep_set.fd), PN_KIND_EPOLL);
    pn_close_if_ours(pn_load_relaxed(&conn->efd), PN_KIND_EVENTFD);
    pn_latch_init(conn);
}

int pn_latch_open(struct pn_conn *conn)
{
    if (pn_load_acquire(&conn->efd) >= 0)
        return 0;
    if (pn_load_relaxed(&conn->in_group.group) != NULL)
        return pn_fail(EINVAL, "a connection of a group cannot wait: its group does");
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), none = -1;
    if (fd < 0)
        return pn_fail(errno, "could not create an eventfd: %s", strerror(errno));
    if (!pn_cas(&conn->efd, &none, fd)) {
        close(fd); /* another thread was first */
        return 0;
    }
    uint32_t before =
        pn_load_seq_cst(&conn->fd_flags); /* set when there was no latch to write to */
    if (before != 0)
        pn_latch_set(conn, before);
    return 0;
}

/* The flag goes first: a readable latch has its flag set. */
void pn_latch_set(struct pn_conn *conn, uint32_t why)
{
    const uint64_t one = 1;
    pn_fetch_or(&conn->fd_flags, why);
    struct pn_group *group =
        pn_load_seq_cst(&conn->in_group.group); /* pairs with pn_group_join() */
    if (group != NULL) {
        pn_group_post(group, conn);
        return;
    }
    int fd = pn_load_seq_cst(&conn->efd); /* full order: pairs with pn_latch_open() */
    if (pn_is_anonymous(fd) && write(fd, &one, sizeof one) < 0)
        return; /* EAGAIN: the counter is full, so it is readable */
}

void pn_latch_wake(struct pn_conn *conn, uint32_t why)
{
    if (pn_load_relaxed(&conn->waiters) != 1 || pn_load_relaxed(&conn->has_fd) != 0 ||
        !pn_latch_interrupt(conn, NULL, why))
        pn_latch_set(conn, why);
}

bool pn_latch_interrupt(const struct pn_conn *conn, const struct pn_consumer *consumer,
                        uint32_t why)
{
    struct pn_sleeper *s = sleeper;
    if (s == NULL || s->conn != conn || s->consumer != consumer)
        return false;
    s->timeout = (struct timespec) {0};
    s->signalled |= (sig_atomic_t) why;
    return true;
}

/*
 * Drain first, flags second.  Then a flag that is set says "readable, or its writer is about to
 * write"; and a latch that is readable without a flag, because a writer came in between, costs
 * one look in vain.  With the flags first, a reset interrupted by the handler would swallow the
 * handler's write and leave its flag: never readable again, and never written again either.
 */
uint32_t pn_latch_reset(struct pn_conn *conn)
{
    uint64_t count;
    uint32_t drained = 0;
    int fd = pn_load_acquire(&conn->efd);
    if (pn_is_anonymous(fd) && read(fd, &count, sizeof count) == (ssize_t) sizeof count)
        drained = PN_FD_POSTED;
    return pn_exchange(&conn->fd_flags, 0) | drained;
}
