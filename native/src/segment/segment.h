/*
 * segment.h - the mapped segment of a process, and what every module needs of it.
 *
 * A process maps a segment once, however many handles it has: the liveness locks demand that a
 * lock file is opened once per process (rule L1), and the signal handler needs one place
 * to look.  `struct pn_segment` is that mapping; it is private to the process.
 */
#ifndef PN_SEGMENT_H
#define PN_SEGMENT_H

#include <stdbool.h>
#include <sys/types.h>

#include "base/err.h"
#include "segment/arena.h"
#include "segment/layout.h"

enum { PN_SPARES = 2 };

struct pn_pidfd_cache_entry {
    uint32_t generation;
    int fd;      /* -1: none */
    uint64_t id; /* of its process, as pn_os_pidfd_id(); 0: not to be kept */
};

struct pn_hold;

/* The topic area: pointers into the mapping, not to be followed before topics_ready, and copies
 * of what does not change. */
struct pn_topics {
    struct pn_topic_control *ctl;
    struct pn_topic *topic;
    struct pn_topic_channel *channel; /* [max_channels], the backlogs first */
    struct pn_consumer_slot *consumer;
    uint32_t max_topics, max_channels, max_consumers, max_body;
    uint64_t offset, memory;
    struct pn_arena arena;
    struct pn_hold *opening;         /* of the thread that makes the area, until it is ready */
    struct pn_durable *durable;      /* used with the lock; NULL: not needed so far */
    uint32_t noted;                  /* `durable` has something for the log (topic/durable.c) */
    struct pn_diskqueue_files *disk; /* used with the lock; NULL: not needed so far */
    uint32_t rest_turn;              /* which channel of those that rest comes first.  W: holder */
};

struct pn_segment {
    unsigned char *base;
    struct pn_header *hdr;
    pn_atomic_u32 other_user; /* this process was seen to be one (identity.c 4).  W: any thread */
    struct pn_lock_page *lock;
    struct AsyncQueueControl *ctl;
    pn_atomic_u64 *listeners; /* bitmap: slots with at least one subscription.  W: holder */
    pn_atomic_u64 *owed;      /* bitmap: set by the holder, cleared by the slot's owner */
    pn_atomic_u64
        *deferred;     /* bitmap: owed, and to be signalled by the slot that was signalled first */
    uint64_t *pinning; /* bitmap: every slot that is not quiet, and some that are.  holder */
    struct QueueBackendStatus *backend;
    uint64_t *lock_ino, *lock_number; /* [lock files].  W: holder; lock_ino last */
    struct pn_database *database;
    uint32_t *bucket;
    unsigned char *channels;
    struct pn_subscription *subscription;
    unsigned char *generations;
    unsigned char *ring;
    pn_atomic_u64 *consuming; /* bitmap: slots with a consumer.  W: holder */
    struct pn_topics topics;

    /* Copied from the header and checked at attach; a scribbled header cannot change them. */
    uint64_t ring_bytes, ring_mask; /* ring_mask: 0 unless ring_bytes is a power of two */
    uint64_t capacity;              /* of the queue, pages in files included */
    bool spills;                    /* capacity > ring_bytes */
    bool copies; /* what a reader reads may be overwritten as it does: it copies first (copy.c) */
    uint64_t size;
    uint32_t max_backends, max_channels, max_subscriptions, max_payload, max_channel_name;
    uint32_t max_databases, buckets, channel_entry_size, max_generations, generation_size;
    uint32_t words, summary_words; /* of a bitmap of backends */
    uint32_t signaling, on_full;
    uint64_t full_timeout_ns;

    pn_atomic_i32 fd; /* its file; only to be used through pn_segment_file() */
    dev_t dev;
    ino_t ino;
    char name[128];
    char data_dir[PN_DATA_DIR_SIZE];
    uint32_t uid;
    uint64_t instance;
    int64_t created_ns;

    uint32_t refs;          /* handles and connections.  Under the process lock */
    pn_atomic_i32 *lock_fd; /* one per lock file, -1: not opened */
    pn_atomic_u32 openings_begun, openings_ended; /* of lock files, by any thread */
    char lock_prefix[300];                        /* their path but for the number */
    struct pn_segment *next; /* all segments of the process.  Under the process lock */

    pn_atomic_u32 seats;     /* connections of this process that watch (watch.c 8) */
    pn_atomic_u32 passes_on; /* a thread has to, since a handler could not.  W: handlers, it */

    pthread_mutex_t signal_mutex;        /* guards pidfds and own */
    struct pn_conn **own;                /* this process's connection in each slot, or NULL */
    struct pn_pidfd_cache_entry *pidfds; /* one per slot */
    uint32_t pidfds_open, pidfd_hand;
    int spare[PN_SPARES]; /* descriptors in reserve, or -1.  Under signal_mutex */
    struct pn_unsent {
        pn_atomic_i32 error; /* to be told, or 0.  R: any process */
        int32_t pid;
        uint32_t count;
        int64_t told_at;
        bool refused, probed;
    } unsent; /* unsent.c.  W: signal_mutex held */

    struct {
        bool held;
        int fd;
        dev_t dev;
        ino_t ino;
    } dir_lock; /* dirlock.c */

    pn_atomic_i32 recovered_from; /* the dead holder that this process repaired after, to be told */
    pn_atomic_u32
        log_gone; /* files of the log were removed, and it was written again; to be told */
    pn_atomic_u64 log_damaged; /* records that were lost in the log that was read, to be told */
    struct pn_hold *hold;      /* of the writer lock, by this process (hold.h).  W, R: holder */
};

/*
 * What lock.c calls of the modules above it, and what backends, signals and the watch call of
 * topics; registered once, by api.c, when the library is loaded.
 */
struct pn_segment_hooks {
    int (*recover)(struct pn_segment *); /* EOWNERDEAD, lock held: recover.c */
    /* topics are closed, lock held: a step of what opens them again (rebuild_topics.c);
     * `all`: also one that needs files */
    int (*repair)(struct pn_segment *, bool all);
    /* the writer lock was released, and the hold has something to be done: api.c */
    void (*released)(struct pn_segment *, struct pn_hold *);
    void (*close_files)(struct pn_segment *); /* of topics, before the mapping goes */
    /* a slot is about to be free: what its owner's consumers hold goes back.  Lock held.
     * False: that is not done yet, and goes on in another hold */
    bool (*slot_freed)(struct pn_segment *, uint32_t slot);
    /* consumers that were notified so long ago and have not come; the lock is not held */
    void (*signal_owed)(struct pn_segment *, int64_t min_age_ns);
    /* a signal has come for the connection: consumer_latch.c.  Async-signal-safe */
    void (*consumers_woken)(struct pn_conn *, bool all);
    /* the program has closed descriptors: are those of the connection's consumers ours still?
     * Process lock held */
    bool (*consumers_intact)(struct pn_conn *);
    void (*consumers_forget)(struct pn_conn *); /* the same: they are not */
    /* is that set in one of theirs?  signal_mutex held */
    bool (*consumers_watch)(struct pn_conn *, int watched);
    /* what the connection has open: as it is closed, and of the parent's in a forked child.
     * Async-signal-safe */
    void (*close_conn_files)(struct pn_conn *);
};
extern struct pn_segment_hooks pn_segment_hooks;

void pn_process_child_reset(void); /* in a forked child */

/*
 * Allocate `bytes` of the segment's file; it is `size` long afterwards, if that is not 0.  -ENOSPC
 * if there is no room.
 */
int pn_segment_allocate(int fd, uint64_t from, uint64_t bytes, uint64_t size);

int pn_segment_create(const char *name, const pn_options *opts);

int pn_segment_attach(int fd, const char *name, struct pn_segment **out);
void pn_segment_acquire(struct pn_segment *seg);
void pn_segment_release(struct pn_segment *seg);

/* 0, or the error of a segment that is poisoned or gone.  One load of an unchanging line. */
int pn_segment_unusable(const struct pn_segment *seg);
static inline int pn_segment_check_state(const struct pn_segment *seg)
{
    if (__builtin_expect(pn_load_relaxed(&seg->hdr->state) == PN_STATE_READY, 1))
        return 0;
    return pn_segment_unusable(seg);
}

/* Mark the segment unusable for good; always returns -PN_ECORRUPT. */
int pn_segment_poison(struct pn_segment *seg, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static inline uint32_t pn_popcount(uint64_t x)
{
    return (uint32_t) __builtin_popcountll(x);
}

#endif
