/* sleepers.h - slots and connections that sleep, and that no slow timer wakes. */
#ifndef PN_TESTS_SLEEPERS_H
#define PN_TESTS_SLEEPERS_H

#include "engine.h"

#include <poll.h>
#include <sys/timerfd.h>

static inline struct QueueBackendStatus *slot(uint32_t i)
{
    return &test_inside()->backend[i];
}

static inline bool claimed(uint32_t i)
{
    return pn_load_acquire(&slot(i)->state) == PN_SLOT_CLAIMED;
}

static inline bool asleep(uint32_t i)
{
    return (pn_load_acquire(&slot(i)->pos) & PN_ASLEEP) != 0;
}

/* It wakes by a signal, or not at all. */
static inline void no_slow_timer(pn_conn *conn)
{
    static const struct itimerspec never;
    conn->next_timer_ns = INT64_MAX;
    if (conn->tfd >= 0)
        CHECK_EQ(timerfd_settime(conn->tfd, 0, &never, NULL), 0);
}

/* Asleep, with a descriptor that no timer makes readable. */
static inline int sleep_on_descriptor(pn_conn *conn)
{
    int fd = pn_fileno(conn);
    CHECK(fd >= 0);
    CHECK_POLL(conn, "");
    no_slow_timer(conn);
    return fd;
}

static inline bool readable_within(int fd, int ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int rc;
    while ((rc = poll(&p, 1, ms)) < 0 && errno == EINTR)
        ;
    return rc == 1;
}

/* By now. */
static inline bool readable(pn_conn *conn)
{
    return readable_within(pn_fileno(conn), 0);
}

#endif
