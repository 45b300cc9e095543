/*
 * conn.h - a connection: what a process keeps of the backend slot that it owns.
 *
 * Locks of a connection, in the order in which they are taken:
 *   recv_mutex    what is received: the read position, the local channels
 *   writer lock   (lock.h)
 *   log_mutex     the latency log
 * Receiving takes recv_mutex alone, sending the writer lock alone, and only a commit with LISTEN
 * or UNLISTEN takes both: so receiving never blocks sending.
 */
#ifndef PN_CONN_H
#define PN_CONN_H

#include "backend/local.h"
#include "base/os.h"
#include "files/latency_log.h"
#include "queue/copy.h"
#include "segment/identity.h"
#include "segment/segment.h"

/* Why conn->efd is readable. */
enum pn_fd_flag {
    PN_FD_SIGNALLED = 1, /* a notifier woke us */
    PN_FD_POSTED = 2,    /* we wrote it ourselves: something is left unread (rule R5) */
    PN_FD_NEIGHBOUR = 4  /* the processes that we watch have changed */
};

enum { PN_SEATS = 8, PN_NEIGHBOURS = 64, PN_PASSED = 8 };

/* The processes that a connection watches while it sleeps (watch.c).  W: recv_mutex held. */
struct pn_watch {
    pn_atomic_i32 epfd;     /* readable when one of them is dead; -1 until it is needed */
    pn_atomic_u32 stale;    /* walk again.  W: also the handler */
    pn_atomic_u32 seen;     /* `members` of the segment before the last walk */
    pn_atomic_u64 retry_at; /* a takeover could not get the lock: CLOCK_MONOTONIC ns, or 0 */
    int64_t pause_ns;       /* before that */
    pn_atomic_u64 check_at; /* look at the pidfds again: CLOCK_MONOTONIC_COARSE ns */
    pn_atomic_u32 complete; /* all are watched that should be */
    pn_atomic_u32 lost;     /* so is epfd, and all in it (lost.c).  W: process lock held */
    bool in_epfd;           /* epfd is in conn->epfd, which is for fileno() */
    uint32_t n, npassed;
    struct pn_neighbour {
        int32_t pid;
        int fd;      /* pidfd, in the set of epfd unless `dead` */
        uint64_t id; /* of it, as pn_os_pidfd_id() */
        bool keep, dead;
    } neighbour[PN_NEIGHBOURS];
    struct {
        uint32_t slot, generation; /* slot + 1; 0: none */
    } passed[PN_PASSED];
};

/* What a thread blocks on (latch.c 2): an epoll set, made when it is needed; all stays in it. */
struct pn_sleep_set {
    pn_atomic_i32 fd;     /* -1: none */
    pn_atomic_u32 wakeup; /* id of the wakeup descriptor that is in it (latch.c 8); 0: none */
};

struct pn_conn;
/* One of several that a thread serves (wakeup/group.c). */
struct pn_in_group {
    _Atomic(struct pn_group *) group; /* NULL: none.  W: the serving thread, once */
    pn_atomic_u32 posted;
    struct pn_conn *next;
    void *user;
};

/*
 * References, counted in `refs`: the handle that pn_connect() returned, until
 * pn_conn_close(); every pn_txn, until it is committed or aborted; every pn_consumer, until it is
 * closed.  pn_conn_close() marks the connection closed, and from then on pn_conn_check() refuses
 * it; the last reference to go, in whatever order they do, frees the slot and the memory.
 */
struct pn_conn {
    struct pn_segment *seg;
    struct QueueBackendStatus *me;
    uint32_t slot, generation, dboid;
    int32_t pid;
    pn_atomic_u32 closing; /* pn_conn_interrupt() or pn_conn_close() was called */
    pn_atomic_u32 refs;
    int32_t src_pid;         /* whose messages we send: our own, unless we are a bridge */
    uint32_t src_generation; /* likewise (bridge.c 5) */
    int signo;               /* -1: poll */
    pn_atomic_u32 armed;     /* counted in handlers.c.  W: process lock held */
    uint32_t local_index;
    char database[PN_NAME_MAX + 1];

    pn_atomic_i32 efd;             /* the latch: eventfd, -1 until a thread waits */
    pn_atomic_u32 fd_flags;        /* enum pn_fd_flag */
    struct pn_in_group in_group;   /* which has the latch then (wakeup/group.c) */
    struct pn_sleep_set sleep_set; /* of efd and watch.epfd */
    pn_atomic_u32 waiters;         /* threads in wait() */
    int epfd, tfd; /* for fileno(): epoll over efd and a timer, slow or at once; -1 until asked */
    pn_atomic_u32 has_fd;
    pn_atomic_u32
        fd_lost;          /* the program has closed what fileno() gave out.  W: process lock held */
    pn_atomic_u32 posted; /* W: pn_conn_mark_readable(), so is tfd to be; pn_poll() clears it */
    int64_t tfd_due;      /* else when it is, CLOCK_MONOTONIC ns.  recv_mutex held */
    pn_atomic_u32 kicked; /* by pn_conn_interrupt_wait(), for which no pn_wait() has returned */
    pn_atomic_u64 next_timer_ns; /* when this connection's slow timer is due; INT64_MAX: never */
    pn_atomic_u32 timer_step;    /* how often it came since anything was read: it doubles */
    pn_atomic_u64 next_keep_ns;  /* when the liveness locks are due to be taken again */

    pthread_mutex_t recv_mutex;
    struct pn_watch watch;
    struct pn_local_channels local; /* recv_mutex held */
    uint64_t foldings;              /* counts them */
    pn_atomic_u32 nlistening;       /* channels with a route.  W: recv_mutex held */
    struct pn_copy copy;       /* of what is read, where it may be overwritten.  recv_mutex held */
    QueuePosition unannounced; /* head at an empty poll(), if woken was behind.  recv_mutex held */
    pn_atomic_u32 held_index;  /* the counter that has to reach held_value before we read on; */
    pn_atomic_u64 held_value;  /* 0: none (generation.c 6).  W: recv_mutex held */

    /* W: any thread in wait(), relaxed; estimates, so a lost update does not matter */
    pn_atomic_u64 spin_ns;        /* budget before going to sleep, adapted to what it brought */
    pn_atomic_u32 spin_skip;      /* waits to come that do not try it */
    pn_atomic_u64 gap_ns;         /* how long wait() waited lately, a moving average */
    pn_atomic_u32 wakes;          /* how often a notifier woke us */
    pn_atomic_u64 last_commit_ns; /* W: any thread; is this notifier in the middle of a stream? */
    pn_atomic_u64 last_wake_ns;   /* W: any thread; when it last woke a consumer */
    pn_atomic_u32 notices;        /* how many stand in `notice` */
    pthread_mutex_t notice_mutex;
    char notice[512];

    /* W: process lock and signal_mutex held.  R: the handler, too */
    _Atomic(struct pn_consumer *) consumers; /* linked; consume.c */
    pn_atomic_u32 nconsumers;

    pthread_mutex_t log_mutex;
    struct pn_latlog *log;     /* NULL: no latency log */
    pn_atomic_u32 last_wake;   /* enum pn_latwake: what ended the sleep before this batch */
    pn_atomic_u32 wake_to_log; /* a useful wake-up whose messages are not read yet */
    pn_atomic_u64 woke_at;     /* when it was, CLOCK_MONOTONIC ns */
    uint64_t *chan_seqs;       /* of the batch being read, for the log; grown with it */
    size_t chan_seqs_cap;
};

/* Walk again.  False: it never slept, and walks before it does.  Async-signal-safe. */
static inline bool pn_watch_told(struct pn_conn *conn)
{
    pn_store_seq_cst(&conn->watch.stale, 1);
    return pn_load_acquire(&conn->watch.epfd) >= 0;
}

/* One more holder; only for one that holds a reference, or was called with the handle. */
static inline void pn_conn_hold(struct pn_conn *conn)
{
    pn_fetch_add_relaxed(&conn->refs, 1);
}

/* What stands for every connection that was closed: all calls on it return -PN_ECLOSED. */
extern struct pn_conn pn_conn_that_is_closed;

int pn_conn_closed(void);

/* Fails: the connection belongs to the parent of this process. */
int pn_conn_foreign(const struct pn_conn *conn);

/* As pn_conn_check(), for what ends: a closed connection still gives back what it has taken. */
static inline int pn_conn_check_held(const struct pn_conn *conn)
{
    if (__builtin_expect(conn->pid != pn_my_pid, 0))
        return pn_conn_foreign(conn);
    return pn_segment_check_state(conn->seg);
}

/* 0, or why the connection cannot be used: closed, forked, of another user, poisoned, gone. */
static inline int pn_conn_check(const struct pn_conn *conn)
{
    if (__builtin_expect(pn_load_acquire(&conn->closing) != 0, 0))
        return pn_conn_closed();
    int rc = pn_conn_check_held(conn);
    if (rc == 0 && __builtin_expect(pn_load_relaxed(&conn->seg->other_user) != 0, 0))
        return pn_segment_check_user(conn->seg);
    return rc;
}

/*
 * Is the slot still ours?  A process that lost both of its liveness locks loses it (L3), perhaps in
 * the middle of a call.  `state` first: a process that sees a later claim of the slot then sees its
 * generation.
 *
 * Each call looks here, but without the writer lock the answer may be old as it is given.  So no
 * store may hit a later owner: `pos` changes by CAS from where we stood, and a reader looks again
 * after it has loaded that and `want`.  While we own the slot no other moves it from there, and a
 * later owner began at a head that was beyond it.  What was read in between is thrown away, and is
 * no reason to poison the segment (pn_conn_impossible).  What else the owner writes without the
 * lock has its generation in it (pn_owned).  Two things are left that we may do to a later owner.
 * If it stands where we stood, we put it to sleep there: it looks, and wakes itself
 * (native/models/slot.pml).  And our signal handler, or a read, may take a flag or a bit of `owed`
 * that has been set for it in between: its slow timer finds what it was to be told.
 */
static inline bool pn_owns_slot(const struct pn_conn *conn)
{
    return pn_load_acquire(&conn->me->state) == PN_SLOT_CLAIMED &&
           pn_load_relaxed(&conn->me->generation) == conn->generation;
}

/* 0, or -PN_EREAPED, with what has happened. */
int pn_conn_reaped(const struct pn_conn *conn); /* the error itself */
static inline int pn_conn_check_slot(const struct pn_conn *conn)
{
    return __builtin_expect(pn_owns_slot(conn), 1) ? 0 : pn_conn_reaped(conn);
}

static inline int pn_conn_check_receiver(const struct pn_conn *conn)
{
    int rc = pn_conn_check(conn);
    return rc != 0 ? rc : pn_conn_check_slot(conn);
}

/*
 * What a reader read cannot be.  If it pins the queue, the segment is damaged, and is poisoned; if
 * its slot was taken, the bytes may have been overwritten by right.
 */
int pn_conn_impossible(struct pn_conn *conn, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Keep a warning for pn_conn_notice(). */
void pn_conn_add_notice(struct pn_conn *conn, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static inline int pn_conn_notice_bit(const struct pn_conn *conn)
{
    return pn_load_relaxed(&conn->notices) != 0 || pn_load_relaxed(&conn->seg->log_damaged) != 0 ||
                   pn_load_relaxed(&conn->seg->log_gone) != 0 ||
                   pn_load_relaxed(&conn->seg->recovered_from) != 0 ||
                   pn_load_acquire(&conn->seg->unsent.error) != 0
               ? PN_NOTICE
               : 0;
}

/* Validates a name; `what` ("channel", ...) appears in the sentence. */
int pn_check_name(const struct pn_conn *conn, const char *what, const char *name, size_t len);
int pn_check_channel(const struct pn_conn *conn, const char *channel, size_t len);
int pn_check_payload(const struct pn_conn *conn, size_t len);

#endif
