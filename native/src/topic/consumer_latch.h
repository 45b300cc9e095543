/* consumer_latch.h - a consumer of this process, and what ends its sleep. */
#ifndef PN_TOPIC_CONSUMER_LATCH_H
#define PN_TOPIC_CONSUMER_LATCH_H

#include "topic/area.h"
#include "topic/latency.h"

enum { PN_PREFETCH = 64 };

struct pn_consumer {
    struct pn_conn *conn; /* holds a reference */
    struct pn_consumer_slot *me;
    uint32_t ci, generation;
    pthread_mutex_t mutex;         /* one thread gets at a time */
    pn_atomic_i32 efd;             /* the latch; -1 before a thread waits */
    struct pn_sleep_set sleep_set; /* as in struct pn_conn */
    pn_atomic_u32 has_fd, closing;
    pn_atomic_u32 fd_lost;   /* as in struct pn_conn */
    bool watched;            /* the connection's watch is in epfd */
    int epfd, tfd, failures; /* of this get(): to sleep, where the program closes what it is on */
    int64_t slow_ns;
    struct {
        uint32_t ref;
        uint64_t word;
    } prefetched[PN_PREFETCH];
    uint32_t nprefetched, at;
    int64_t fetched_at; /* when those prefetched were; CLOCK_MONOTONIC */
    uint8_t *buf;
    size_t cap;
    int64_t published_mono; /* of the message got last, for the log */
    int64_t woke_at;        /* when a sleep ended that is not in the log yet */
    uint8_t woken_by;       /* enum pn_latwake; of that sleep, NONE: there is none */
    uint8_t last_wake;      /* the same, of the message to be handed over next */
    uint32_t name_len;      /* "topic:channel" */
    char name[PN_LOG_NAME];
    _Atomic(struct pn_consumer *) next; /* of the connection's */
};

/* Make its latch readable.  Async-signal-safe. */
void pn_consumer_latch_set(struct pn_consumer *c);
void pn_consumer_latch_drain(struct pn_consumer *c);
/* If it is not open.  0 or -errno. */
int pn_consumer_latch_open(struct pn_consumer *c);
/* Fails: the program has closed what pn_consume_fileno() gave to it. */
int pn_consumer_check_fd(const struct pn_consumer *c);

/* The program has closed descriptors (wakeup/lost.c).  Process lock held; signal_mutex. */
bool pn_consumers_intact(struct pn_conn *conn);
void pn_consumers_forget(struct pn_conn *conn);
bool pn_consumers_watch(struct pn_conn *conn, int watched);

/* A signal handler, or a thread of this process's, tells its connection's consumers that they were
 * notified; `all`: that they are to look in any case.  Async-signal-safe. */
void pn_consumers_woken(struct pn_conn *conn, bool all);

#endif
