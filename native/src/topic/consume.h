/* consume.h - a consumer as its own process sees it. */
#ifndef PN_CONSUME_H
#define PN_CONSUME_H

#include "topic/area.h"
#include "topic/latency.h"

extern int64_t pn_consumer_slow_ns; /* the slow timer at first; tests put it off */

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

int pn_consume_get(struct pn_consumer *consumer, int64_t timeout_ns, pn_message_out *out);
int pn_consume_fileno(struct pn_consumer *consumer);
struct pn_conn *pn_consume_conn(const struct pn_consumer *consumer);
/* 0 if this consumer still owns its slot and its channel exists; else an error.  Lock held. */
int pn_consume_check_channel(struct pn_consumer *c, struct pn_topic_channel **ch);
/* Make its latch readable.  Async-signal-safe. */
void pn_consume_set_latch(struct pn_consumer *c);
pn_ref pn_consume_ref(const struct pn_consumer *consumer);

/* The program has closed descriptors (wakeup/lost.c).  Process lock held; signal_mutex. */
bool pn_consumers_intact(struct pn_conn *conn);
void pn_consumers_forget(struct pn_conn *conn);
bool pn_consumers_watch(struct pn_conn *conn, int watched);

/* A signal handler, or a thread of this process's, tells its connection's consumers that they were
 * notified; `all`: that they are to look in any case.  Async-signal-safe. */
void pn_consumers_woken(struct pn_conn *conn, bool all);

/* Requeue prefetched deliveries that the program was not given, without counting an attempt.  Lock
 * and `mutex` held. */
void pn_consume_give_back_locked(struct pn_consumer *c);

#endif
