/*
 * layout.h - every struct that lives in shared memory, its writers field by field, and the
 * invariants that hold between them.
 *
 *   page 0            struct pn_header         written by the creator; later only `state`
 *   page 1            struct pn_lock_page      the writer lock, on a page of its own
 *   page 2 ...        struct AsyncQueueControl head, tail, woken, counters
 *                     bitmaps                  listeners, consumers, owed, deferred, pinning:
 *                                              a bit a slot
 *                     struct QueueBackendStatus backend[max_backends]
 *                     u64 lock_ino[]           inode of each liveness lock file, 0: not yet made
 *                     u64 lock_number[]        the number in its name, 0: its own
 *                     struct pn_database       database[max_databases]
 *                     u32 bucket[]             heads of the channel table's chains
 *                     GlobalChannelEntry       channel[max_channels], each with its bitmap
 *                     struct pn_subscription   subscription[max_subscriptions]
 *                     struct pn_generation     generation[max_generations], each with its name
 *   page aligned      the queue                queue_pages * 8 KiB
 *   page aligned      topics                   layout_topic.h; allocated at their first use
 *
 * Only offsets and indices stand in shared memory, never pointers.  "W:" names the processes that
 * may write a field, "R:" those that read it without the lock.  "holder" is the process that holds
 * the writer lock.
 *
 * Invariants (cited by number in check.c, the models and the tests; docs/protocol.md lists them)
 *
 *  I1  tail <= head, head - tail <= capacity (max_queue_pages), head - mem_tail <= ring.
 *  I2  tail <= effective start of every live slot that pins (see queue.c).
 *  I3  What a reader reads at position p is the entry that was committed at p.
 *  I4  No entry is returned twice.
 *  I5  A jump of pos passes over no unread entry that interests the slot.
 *  I6  woken == head whenever entries are appended; woken <= head always.
 *  I7  Only the owner of the lock unlocks it.
 *  I8  Without crashes: what was due is what was got, without any timer.
 *  I9  With crashes: the same for the living, eventually.
 *  I10 What was returned and what a Gap stands for make up what was committed; a Gap is exact.
 *  I11 Nothing from before a subscription's `since` is returned for it.
 *  I12 head + sum(reserved) <= tail + capacity and <= mem_tail + ring: a prepared commit fits, and
 *      need not write a file.
 *  I13 After a listener's death a tail scan still reaches head.
 *  I14 A spill file is there as long as a reader may need it: while it has pages of
 *      [tail, mem_tail).
 *  I15 A slot's bit stands in a channel's bitmap iff a subscription in its list names the channel;
 *      a channel is `upstream` iff one of these slots is a bridge.
 *  I16 chan_seq of a channel is dense, and next_chan_seq is one above the last committed.  It is 0
 *      where only patterns hear the channel.
 *  I17 A counter's entry is found under its name, and stays as long as the segment.
 *  I18 The values of a counter's entries in the queue rise, and below `woken` the newest of them
 *      is the counter's value.  A counter that is not 0 has a time.
 *  I19 tail <= mem_tail <= head; [tail, mem_tail) stands in spill files, [mem_tail, head) in the
 *      ring; without spilling mem_tail == tail.  floor <= head.
 *  I32 The list of patterns has each entry that is a pattern once, and no other; each of them has a
 *      listener, or a LISTEN of it is staged.
 */
#ifndef PN_LAYOUT_H
#define PN_LAYOUT_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"
#include "segment/layout_topic.h"
#include <pynotify.h>

#define PN_MAGIC           0x31594649544f4e50ULL /* "PNOTIFY1" read as little-endian */
#define PN_LAYOUT_VERSION  27U
#define PN_CACHE_LINE      64U
#define PN_OS_PAGE         4096U
#define PN_QUEUE_PAGE_BITS 13U
#define PN_QUEUE_PAGE      (1U << PN_QUEUE_PAGE_BITS) /* QUEUE_PAGESIZE, PostgreSQL's BLCKSZ */

#define PN_MIN_QUEUE_PAGES     64U
#define PN_MAX_BACKENDS        65536U
#define PN_NAME_MAX            255U /* bytes of a channel or database name at the most */
#define PN_SLOTS_PER_LOCK_FILE 64U
#define PN_ROOM_TICKETS        32U /* writers that can stand in a queue for room, in order */
#define PN_OFD_BYTE (1U << 20)     /* a slot's OFD lock stands at this offset + slot (rule L1) */

/* QueuePosition: a byte position in an endless queue; page = pos >> 13, offset = the rest. */
typedef uint64_t QueuePosition;
#define PN_ASLEEP           (1ULL << 63) /* in `pos` only */
#define QUEUE_POS_PAGE(p)   ((p) >> PN_QUEUE_PAGE_BITS)
#define QUEUE_POS_OFFSET(p) ((uint32_t) ((p) & (PN_QUEUE_PAGE - 1U)))

enum pn_segment_state { PN_STATE_READY = 0, PN_STATE_POISONED = 1, PN_STATE_GONE = 2 };

/* Page 0.  W: creator before the segment has a name, except where noted. */
struct pn_header {
    uint64_t magic;
    uint64_t layout_hash; /* sizes and offsets of everything below, libc, page size, mutex size */
    uint64_t checksum;    /* of all fields up to `state`, itself taken as 0 */
    uint64_t total_size;
    uint64_t instance;  /* random: two segments of one name are told apart by it */
    int64_t created_ns; /* CLOCK_REALTIME */
    uint8_t boot_id[16];
    uint64_t pidns_ino;
    uint64_t timens_ino; /* 0: this kernel has no time namespaces */
    uint32_t uid;
    uint32_t queue_pages, max_backends, max_channels, max_subscriptions;
    uint32_t max_payload, max_channel_name, on_full, signaling;
    uint32_t max_databases, buckets; /* buckets: a power of two */
    uint32_t channel_entry_size;
    uint32_t max_generations, generation_size;
    uint32_t max_queue_pages, pad; /* > queue_pages: it spills */
    uint64_t full_timeout_ns;
    uint64_t control_off, listeners_off, owed_off, deferred_off, pinning_off, backends_off;
    uint64_t lock_ino_off, databases_off;
    uint64_t buckets_off, channels_off, subscriptions_off, generations_off, ring_off;
    uint64_t topic_memory;
    uint32_t max_body, max_topics, max_topic_channels, max_consumers;
    uint64_t consumers_off, topics_off; /* of a bitmap, and of struct pn_topic_control */
    uint64_t topic_off, topic_channel_off, consumer_off;
    uint64_t arena_owner_off, arena_page_off, arena_off;
    char name[128];
    char data_dir[PN_DATA_DIR_SIZE]; /* absolute, or empty */
    pn_atomic_u32 state;             /* W: any; only ever READY -> POISONED or GONE.  R: any */
    char poison_reason[128];         /* W: the process that poisons; informative */
};
_Static_assert(sizeof(struct pn_header) <= PN_OS_PAGE, "the header has one page");

/* Hints: with any values the lock is as exclusive, and every thread gets it.  See turn.h. */
struct pn_turn_word {
    pn_atomic_u32
        number; /* 0: it is no thread's turn.  W: 0 -> its own: a waiter, by CAS; back: the
                            * same, or one that has stood back for it in vain, by CAS.  R: any */
    pn_atomic_u32
        over_at; /* when it became 0, us.  W: the thread that has made it 0.  R: waiters */
};

/* Page 1.  glibc threads a list through the mutexes, so nothing else stands near them. */
struct pn_lock_page {
    pthread_mutex_t mutex;    /* robust, process-shared, error-checking */
    pn_atomic_i32 holder_pid; /* W: holder.  R: any, for messages: the last one that got it */
    struct pn_turn_word turn;
    /* The same of the making of the topic area, before there is one.  Taken before `mutex`. */
    _Alignas(512) pthread_mutex_t opening;
    pn_atomic_i32 opener_pid; /* W: its holder.  R: any, for messages */
};
_Static_assert(sizeof(struct pn_lock_page) <= PN_OS_PAGE, "the locks have one page");

/* Commit-side counters.  W: holder, plain adds under the lock.  R: any (relaxed). */
struct pn_locked_counters {
    pn_atomic_u64 commits, notifications, collapsed, signals_elided, slot_writes, recoveries;
    pn_atomic_u64 evictions, spilled_pages;
};

/* Counters of what happens outside the lock.  W: any (relaxed adds). */
struct pn_free_counters {
    pn_atomic_u64 signals_sent, signals_unsent, wakeups_useful, wakeups_useless;
    pn_atomic_u64 handler_reinstalls;
    pn_atomic_u64 log_dropped, log_recycled; /* latency logs: records, files */
};

/* A writer's place in the queue for room (room.c).  W: holder; `number` is stored last. */
struct pn_room_ticket {
    uint64_t number; /* 0: free */
    int64_t until;   /* CLOCK_MONOTONIC ns: not renewed until then, it counts no more */
};

/* Of topics, in `topics_dirty`. */
enum pn_topics_dirty {
    PN_TOPICS_DIRTY = 1, /* indices are being changed by the holder: if it dies there, recovery
                          * closes the topics */
    PN_TOPICS_CLOSED = 2 /* they are being built again, in steps: only those steps look at them */
};

struct AsyncQueueControl {
    /* W: holder.  R: any (acquire).  The release-store of head is the only commit point. */
    _Alignas(64) pn_atomic_u64 head;
    /* W: holder.  R: readers that copy, which look at head as well (acquire); both only grow, and
     * stand where an entry begins */
    pn_atomic_u64 mem_tail; /* what lies before it is in files only, if there are any */
    pn_atomic_u64 floor;    /* what lay before it was evicted */

    /* W: holder.  R: holder; any for statistics.  Everything below `woken` was announced. */
    _Alignas(64) pn_atomic_u64 woken;
    pn_atomic_u64 tail;         /* must be <= the position of every backend that pins */
    uint64_t last_xid;          /* commit sequence number; derived again from entries at recovery */
    uint64_t reserved;          /* sum of the slots' `reserved`; derived again at recovery */
    uint64_t no_scan_below;     /* a tail scan before head reaches this would find nothing new */
    int64_t lastQueueFillWarn;  /* CLOCK_MONOTONIC ns */
    pn_atomic_u64 deferred_at;  /* when the oldest in deferred[] was put there, or 0.  R: any */
    uint32_t index_dirty;       /* the channel index is being changed; recovery rebuilds it */
    pn_atomic_u32 topics_dirty; /* enum pn_topics_dirty; 0: the indices of topics are right */
    pn_atomic_u32 topics_ready; /* the topic area exists.  W: holder.  R: any (acquire) */
    uint32_t tickets; /* how many of room_ticket[] are taken, or more; a scan counts again */
    uint32_t last_dboid;
    uint32_t slot_hint;     /* where to look for a free slot first */
    uint32_t first_pattern; /* list of the patterns, index + 1; 0: none.  Derived */
    uint32_t patterns_used; /* how many there are.  Derived */

    _Alignas(64) struct pn_locked_counters locked;

    _Alignas(64) struct pn_free_counters free;

    /* on_full=block (rule R9).  room_seq is a futex; W: any */
    _Alignas(64) pn_atomic_u32 room_seq;
    pn_atomic_u32 room_waiters;

    /* W: holder */
    int64_t last_room_warn; /* CLOCK_MONOTONIC ns */
    uint64_t last_ticket;
    struct pn_room_ticket room_ticket[PN_ROOM_TICKETS];

    /* Numbers of spill files: [first_file, end_file) may exist (spill.c).  W: of end_file the
     * holder; first_file is raised by each thread that has removed a file */
    pn_atomic_u64 first_file;
    uint64_t end_file;

    /* W: holder */
    _Alignas(64) uint32_t free_subscription; /* index + 1 of the first free one, 0: none */
    uint32_t free_channel;                   /* likewise */
    uint32_t channels_used, subscriptions_used;
    uint32_t eviction_hand;    /* where to look for a channel entry without listeners */
    uint32_t generations_used; /* derived; counted again at recovery */
    uint64_t chan_seq_floor;   /* no chan_seq of an evicted channel is used again (audits) */
    pn_atomic_u32 members;     /* counts what lengthens a walk (watch.c 3).  R: any (acquire) */
    pn_atomic_u32 heard;   /* counts first and last listeners of channels (bridge.c 2).  R: any */
    pn_atomic_u32 bridges; /* derived: slots that are one.  R: any, as a hint */
    pn_atomic_u64 used_ns; /* CLOCK_REALTIME, when a slot was last claimed or freed.  R: any */
};

enum pn_procsignal_reason {
    PROCSIG_NOTIFY_INTERRUPT = 0, /* something for you was committed */
    PROCSIG_SEGMENT_GONE = 1,     /* the segment was unlinked, or poisoned */
    PROCSIG_LOG_STACK = 2,
    PROCSIG_NEIGHBOUR = 3, /* those you watch have changed (watch.c) */
    PROCSIG_TOPIC = 4,     /* one of your consumers was notified (delivery.c) */
    PROCSIG_REPAIR = 5,    /* topics are closed, and one of your consumers sleeps: it is to open
                            * them (recover_topics.c) */
    NUM_PROCSIGNALS = 6
};

#define PN_APPLICATION_NAME 64

enum pn_slot_state { PN_SLOT_FREE = 0, PN_SLOT_CLAIMED = 1 };

struct QueueBackendStatus {
    /*
     * Line 1.  Consumed up to here, plus PN_ASLEEP.  W: the owner; the holder only by CAS from
     * ASLEEP to awake (and by a plain store while it claims the slot).  R: holder.
     */
    _Alignas(64) pn_atomic_u64 pos;

    /* Line 2.  W: holder.  R: the owner (want before from/floor, acquire). */
    _Alignas(64) pn_atomic_u64 want; /* end of the newest entry that interests this slot */
    pn_atomic_u64 from;              /* start of the first unread interesting transaction */
    uint64_t reserved;               /* bytes promised to prepared transactions */
    uint64_t announced;              /* xid of the last commit that looked at this slot */

    /* Line 3, the ProcSignalSlot.  Set by senders before the signal, cleared by the handler. */
    _Alignas(64) pn_atomic_u32 pss_signalFlags[NUM_PROCSIGNALS];
    pn_atomic_u64 signalled_at; /* W: holder; when `owed` was last set, CLOCK_MONOTONIC ns */
    pn_atomic_u64 caught_at;    /* W: any sender; when /proc last said that it catches its signal,
                                   which is the lowest byte */

    /* Line 4.  W: holder, while it claims, releases or reaps; `state` is stored last. */
    _Alignas(64) pn_atomic_u32 state;
    pn_atomic_u32 generation; /* counts the claims: the holder of an earlier one sees it */
    pn_atomic_i32 pid;
    uint32_t dboid;
    pn_atomic_i32 signo;  /* -1: poll */
    uint32_t firstSub;    /* index + 1 into subscription[], 0: none; the truth of its LISTENs */
    uint32_t numSubs;     /* derived */
    uint32_t database;    /* index into database[] */
    pn_atomic_u32 bridge; /* 1: it is the bridge of its database (bridge.c 1).  R: any */
    /* Written by the owner without the lock, so with its generation above the value: pn_owned() */
    pn_atomic_u64 in_transaction; /* W: owner: open explicit transactions.  R: statistics */
    pn_atomic_u64 watches; /* W: owner sets, holder clears.  R: any: it has walked (watch.c 2) */

    /* Line 5, for people.  W, R: holder; the last byte is 0. */
    _Alignas(64) char application_name[PN_APPLICATION_NAME];
};
_Static_assert(sizeof(struct QueueBackendStatus) == 320, "five cache lines a backend");

/*
 * A process that has lost the slot, and does not know, changes such a word by CAS from what was its
 * own: the word of a later owner has another generation, and that of a free slot none.
 */
static inline uint64_t pn_owned(uint32_t generation, uint32_t value)
{
    return (uint64_t) generation << 32 | value;
}

static inline bool pn_slot_watches(const struct QueueBackendStatus *backend)
{
    return (uint32_t) pn_load_acquire(&backend->watches) != 0;
}

static inline uint32_t pn_slot_transactions(const struct QueueBackendStatus *backend)
{
    return (uint32_t) pn_load_relaxed(&backend->in_transaction);
}

struct pn_database {
    uint32_t dboid; /* 0: free.  W: holder; stored last when taken */
    uint32_t name_len;
    uint32_t kept; /* it has counters, so its row is given to no other database.  W: holder */
    char name[PN_NAME_MAX + 1];
};

/* One (slot, channel) pair.  The list that starts at a slot's firstSub is the truth. */
struct pn_subscription {
    uint32_t channel;    /* index into channel[] */
    uint32_t next;       /* index + 1 */
    uint32_t prev;       /* index + 1, 0: the slot's first; derived */
    QueuePosition since; /* head at the LISTEN's commit; PN_SINCE_STAGED: not committed yet */
};
#define PN_SINCE_STAGED UINT64_MAX

enum pn_channel_state { PN_CHANNEL_FREE = 0, PN_CHANNEL_USED = 1 };

#define PN_PATTERN 0x80000000U /* in the dboid of an entry: its name is a pattern (pattern.h) */

/* W: holder.  R: holder.  `state` is stored last when an entry is made. */
struct GlobalChannelEntry {
    uint64_t hash; /* of (dboid, name) */
    uint64_t
        next_chan_seq; /* of a pattern: counts what matched, but for a commit that was killed */
    uint64_t first_chan_seq; /* next_chan_seq when the entry was made */
    uint32_t next;           /* chain, index + 1 */
    uint32_t dboid;
    uint32_t numListeners; /* derived from the bitmap */
    uint32_t staged;       /* LISTENs that are prepared but not committed; derived */
    uint16_t name_len;
    uint16_t state;
    uint32_t upstream;                   /* 1: a bridge listens, and sends on what comes; derived */
    uint32_t next_pattern, prev_pattern; /* of a pattern: its neighbours, index + 1; derived */
    /* u64 summary[], one bit for each bitmap word; u64 listeners[]; char name[max_channel_name] */
    uint64_t words[];
};
_Static_assert(offsetof(struct GlobalChannelEntry, words) == 56, "bitmap follows in one line");

enum pn_generation_state { PN_GENERATION_FREE = 0, PN_GENERATION_USED = 1 };

/*
 * A shared counter.  Its entry never moves and is never freed.  W: holder, while it makes the
 * entry; `state` is stored last (release).  R: any, of an entry whose state is USED (acquire).
 */
struct pn_generation {
    uint64_t hash; /* of (dboid, name) */
    /* W: holder, at commit (release); a reader may be faster (generation.c 5).  R: any (acquire) */
    pn_atomic_u64 value;
    pn_atomic_u64 changed_ns; /* CLOCK_REALTIME of that; stored before it, by the same (7) */
    uint32_t dboid;
    uint32_t name_len;
    pn_atomic_u32 state;
    char name[]; /* max_channel_name bytes */
};

/*
 * What an entry is; recover.c applies each kind again after a crash (idempotently).
 *
 * A GENERATION entry is a redo record and no message: header only, before the notifications of its
 * transaction, one for each counter that this bumps.  It says in channel_hash which counter, and
 * in chan_seq its value afterwards; not how much was added, so that it can be applied twice.
 *
 * A GAP entry tells listeners of its channel that something may be missing there (bridge.c 4).  It
 * has no payload, and takes no chan_seq.
 *
 * Headers stand behind the payload, of NOTIFY alone, and payload_len counts them: only a reader
 * that takes the message tells them apart.
 */
enum pn_entry_kind {
    PN_ENTRY_NOTIFY = 0,
    PN_ENTRY_GENERATION = 1,
    PN_ENTRY_GAP = 2,
    PN_ENTRY_PUBLISH = 3, /* channel_hash: first of a chain of STAGED messages; chan_seq: its id */
    PN_ENTRY_ANSWER = 4,  /* channel_hash: delivery; chan_seq: its state before; payload: struct
                          * pn_answer_redo */
    PN_ENTRY_CANCEL = 5,  /* channel_hash: message; chan_seq: its id; payload: struct pn_ended */
    PN_ENTRY_SPILL = 6,   /* channel_hash: topic; chan_seq: where its queue on disk ends now */
    PN_ENTRY_BURY = 7     /* channel_hash: tombstone; chan_seq: of which record; payload: struct
                          * pn_ended, or nothing */
};

/* What is done to a delivery in flight, at the commit of the transaction that answers it. */
struct pn_answer_redo {
    uint64_t word; /* its state afterwards */
    uint64_t order;
    int64_t due;
};
_Static_assert(sizeof(struct pn_answer_redo) == 24, "without holes");

/*
 * In the queue, at multiples of 8.  An entry does not cross a page, except one that is larger
 * than a page: that starts a page and takes whole pages, contiguous in the ring.  What is left of
 * a page is filled by a dummy entry with dboid 0, of which only the first 8 bytes exist.
 */
typedef struct AsyncQueueEntry {
    uint32_t length; /* of the whole entry, multiple of 8 */
    uint32_t dboid;  /* InvalidOid (0): dummy */
    uint64_t xid;    /* commit sequence number */
    int64_t sent_ns; /* CLOCK_MONOTONIC, under the lock: monotone in commit order */
    uint64_t chan_seq;
    int32_t srcPid;
    uint32_t srcBackend;
    uint32_t srcGeneration;
    uint8_t kind;
    uint8_t channel_len;
    uint16_t headers_len;  /* 0: none */
    uint32_t payload_len;  /* headers and all */
    uint32_t channel_hash; /* low half of the table's hash: readers filter by it first */
    char data[];           /* channel, payload, headers; no terminators */
} AsyncQueueEntry;
#define PN_ENTRY_HEADER offsetof(AsyncQueueEntry, data)
_Static_assert(PN_ENTRY_HEADER == 56, "AsyncQueueEntry header");
#define PN_ENTRY_OF_TOPICS (PN_ENTRY_HEADER + sizeof(struct pn_answer_redo)) /* at the most */
#define QUEUEALIGN(n)      (((n) + 7U) & ~(uint64_t) 7U)

static inline uint64_t pn_layout_fold(const uint64_t *facts, size_t n)
{
    uint64_t hash = 0x9e3779b97f4a7c15ULL;
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ facts[i]) * 0xff51afd7ed558ccdULL, hash ^= hash >> 32;
    return hash;
}

/* Everything whose change must make an old segment unreadable, folded into one number. */
static inline uint64_t pn_layout_hash(void)
{
    const uint64_t facts[] = {PN_LAYOUT_VERSION,
                              sizeof(struct pn_header),
                              offsetof(struct pn_header, state),
                              sizeof(struct pn_lock_page),
                              sizeof(pthread_mutex_t),
                              sizeof(struct AsyncQueueControl),
                              offsetof(struct AsyncQueueControl, free_subscription),
                              sizeof(struct QueueBackendStatus),
                              offsetof(struct QueueBackendStatus, state),
                              sizeof(struct pn_database),
                              sizeof(struct pn_subscription),
                              sizeof(struct GlobalChannelEntry),
                              sizeof(struct pn_generation),
                              sizeof(struct pn_message),
                              sizeof(struct pn_delivery),
                              sizeof(struct pn_topic),
                              sizeof(struct pn_topic_channel),
                              sizeof(struct pn_consumer_slot),
                              sizeof(struct pn_topic_control),
                              sizeof(struct pn_arena_page),
                              sizeof(struct pn_arena_owner),
                              offsetof(struct pn_generation, name),
                              PN_ENTRY_HEADER,
                              PN_QUEUE_PAGE,
                              PN_SLOTS_PER_LOCK_FILE,
#if defined(__GLIBC__)
                              1,
#else
                              2,
#endif
                              sizeof(void *)};
    return pn_layout_fold(facts, sizeof facts / sizeof facts[0]);
}

#endif
