/*
 * latch.h - what a connection sleeps on: PostgreSQL's Latch, an eventfd.
 *
 * The right way to sleep, as in PostgreSQL's latch.h:
 *     for (;;) { drain the latch; look for work; if (none) block on the latch; }
 * The forbidden one: to look for work first and to drain the latch afterwards.
 */
#ifndef PN_LATCH_H
#define PN_LATCH_H

#include <signal.h>
#include <time.h>

#include "backend/conn.h"

/* One thread's sleep in wait(), or a consumer's; on its stack. */
struct pn_sleeper {
    struct pn_conn *conn;
    const struct pn_consumer *consumer; /* NULL: wait() */
    int fd;                             /* the latch */
    struct pn_sleep_set *set;           /* of it and the watched */
    struct timespec timeout;            /* the handler makes it zero */
    volatile sig_atomic_t signalled;    /* enum pn_fd_flag.  W: the handler, in this thread */
    bool neighbour;                     /* conn->watch.epfd is readable */
};
/*
 * Block until the latch is readable, a signal comes, or the time is over: 1, -EINTR, 0.  -EBADF or
 * -EINVAL: the program has closed the latch or the set, see lost.h.
 */
int pn_latch_block(struct pn_sleeper *sleeper);

/* pn_set_wakeup_fd() and pn_sleep(). */
void pn_latch_set_wakeup_fd(int fd, uint32_t id);
int pn_latch_sleep(int64_t timeout_ns);

/* Is `watched` in the set, if there is one, that threads sleep on? */
bool pn_latch_watches(const struct pn_sleep_set *set, int watched);
/* Are a latch, and the set of it and the watched, ours still, as far as they were made? */
bool pn_latch_is_intact(const struct pn_conn *conn, const pn_atomic_i32 *latch,
                        const struct pn_sleep_set *set);

/* Make conn->efd; idempotent. */
int pn_latch_open(struct pn_conn *conn);
void pn_latch_init(struct pn_conn *conn);
void pn_latch_close(struct pn_conn *conn);

/* Make it readable.  Async-signal-safe, as is the next. */
void pn_latch_set(struct pn_conn *conn, uint32_t why);
/* The same, for the handler: it may run in the only thread that waits. */
void pn_latch_wake(struct pn_conn *conn, uint32_t why);
/*
 * For the handler: if it interrupts the sleep of this consumer (NULL: of wait()), end that and be
 * true: no descriptor need be written.  Others that sleep on the latch are the caller's concern.
 */
bool pn_latch_interrupt(const struct pn_conn *conn, const struct pn_consumer *consumer,
                        uint32_t why);
/* Drain it; returns the enum pn_fd_flag bits that it was set for, 0 if it was not. */
uint32_t pn_latch_reset(struct pn_conn *conn);

#endif
