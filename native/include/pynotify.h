/*
 * pynotify.h - LISTEN/NOTIFY between the processes of one host, in shared memory.
 *
 * The whole public C API.  It knows nothing of Python; the Python package is a client
 * of this header like any other.
 *
 * The model in six sentences
 * --------------------------
 * An engine is a mapped segment; a connection is one backend slot in it.  NOTIFY, LISTEN and
 * UNLISTEN belong to transactions and take effect together, atomically and in commit order, when
 * their transaction commits.  A listener is owed everything that was committed on its channels
 * while it was listening, once and in order, whichever processes are killed.  No process polls: a
 * listener that sleeps is woken by a real signal (SIGUSR1 unless chosen otherwise), and only if
 * something for it was committed.  A listener that reads pins the queue at what it has not read;
 * one that sleeps with nothing to read pins nothing.  Any process may be killed with SIGKILL at any
 * instruction.
 *
 * The right loop (libpq users: the equivalent of PQsocket, select, PQconsumeInput, PQnotifies)
 * --------------------------------------------------------------------------------------------
 *     pn_batch *b = pn_batch_new();
 *     for (;;) {
 *         int rc = pn_wait(conn, -1);              // or poll(2) on pn_fileno(conn)
 *         if (rc < 0 && rc != -EINTR) break;       // -EINTR: a signal of yours came
 *         int64_t n = pn_poll(conn, b, 0);         // never blocks
 *         for (int64_t i = 0; i < n; i++)
 *             handle(pn_conn_channel(conn, b->channel[i], NULL),
 *                    b->data + b->offset[i], b->offset[i + 1] - b->offset[i]);
 *     }
 * The forbidden one: to wait on pn_fileno() without calling pn_poll() when it is readable.  The
 * descriptor is level-triggered: readable as long as something is unread, and now and then when
 * the slow timer has work for pn_poll() to do.
 *
 * Results
 * -------
 * Functions that return int return 0 or a positive number, or a negative error: -errno, or one
 * of the -PN_E* codes below.  After an error pn_error_message() gives a sentence for people, and
 * after a newline what to do about it.  A positive PN_NOTICE bit in the result of a commit or of
 * pn_wait() means that pn_conn_notice() has something to log.
 *
 * Threads and signals
 * -------------------
 * Engines and connections may be used by any number of threads at once; a transaction belongs to
 * the thread that began it.  Receiving and sending do not block each other.  No function is
 * async-signal-safe: do not call them from signal handlers.  (Python's handlers run between
 * byte codes, never inside a call; they may.)
 *
 * fork
 * ----
 * An engine survives fork().  A connection does not: in the child every call on it returns
 * -PN_EFORKED, and pn_conn_close() only frees memory; the parent's slot is untouched.
 */
#ifndef PYNOTIFY_H
#define PYNOTIFY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(PN_API) /* a program that has all of it inside may say -DPN_API= */
#elif defined(__GNUC__)
#define PN_API __attribute__((visibility("default")))
#else
#define PN_API
#endif

/* cffi:begin */

/* ---- errors ------------------------------------------------------------------------------ */

/* Below -4096, so that they can never be a negated errno.  SQLSTATEs are PostgreSQL's. */
enum pn_error {
    PN_EQUEUEFULL = 5001,    /* 54000 */
    PN_ETOOBIG = 5002,       /* 54000: the transaction does not fit an empty queue */
    PN_ECHANNELNAME = 5003,  /* 22023: empty, too long, or contains NUL */
    PN_EPAYLOAD = 5004,      /* 22023: payload string too long */
    PN_EBACKENDS = 5005,     /* 53300 */
    PN_ECHANNELS = 5006,     /* 53200: channel or subscription table full */
    PN_ELAYOUT = 5007,       /* another layout, version, libc, page size, pid namespace or owner */
    PN_ECORRUPT = 5008,      /* poisoned, or a check of something read from the segment failed */
    PN_EGONE = 5009,         /* the segment was unlinked under us */
    PN_ELOCK = 5010,         /* the writer lock was not to be had in time; names its holder */
    PN_EFORKED = 5011,       /* a connection that belongs to another process */
    PN_ECLOSED = 5012,       /* the connection is closed */
    PN_EPREPARED = 5013,     /* the transaction is prepared: only commit and abort are left */
    PN_ESTALE = 5014,        /* segment of an earlier boot */
    PN_EREAPED = 5015,       /* our slot was taken from us: the process lost its liveness locks */
    PN_ELOCKBUSY = 5016,     /* pn_never_wait: PN_ELOCK without having waited */
    PN_EROOMBUSY = 5017,     /* pn_never_wait: the queue is full, and on_full is to wait */
    PN_EGENERATIONS = 5018,  /* 53200: the table of shared counters is full */
    PN_EENCODING = 5019,     /* 22021: the channel goes to a PostgreSQL, and this is no text */
    PN_ETOPICNAME = 5020,    /* a topic's or channel's name */
    PN_ETOPICFULL = 5021,    /* 54000 */
    PN_ENOTINFLIGHT = 5022,  /* the message is not in flight any more */
    PN_ENOTOWNER = 5023,     /* it is in flight again, from a later delivery */
    PN_ETOPICDELETED = 5024, /* the topic, channel or consumer is no more */
    PN_ETOPICS = 5025,       /* 53200: max_topics, max_topic_channels or max_consumers */
    PN_EBODY = 5026,         /* an empty body */
    PN_EBODYLONG = 5027,     /* 22023: larger than max_body, or headers too long */
    PN_ECONSUMERS = 5028,    /* the channel's max_consumers */
    PN_ETOPICOPTIONS = 5029, /* it was made with other options */
    PN_ESYNC = 5030,     /* 58030: it happened; a durable topic's log is not written or synced */
    PN_EDATADIR = 5031,  /* 55006: the log of durable topics is another segment's */
    PN_EDISKFULL = 5032, /* 53100: the disk of data_dir; nothing has happened */
    PN_EUSER = 5033      /* the process has another effective user than when it connected */
};

enum pn_notice { PN_NOTICE = 1 << 20 };

/* A sentence about the last error of this thread, "message" or "message\nwhat to do". */
const char *pn_error_message(void);

/* ---- segments ---------------------------------------------------------------------------- */

enum pn_on_full { PN_FULL_ERROR = 1, PN_FULL_BLOCK = 2, PN_FULL_DROP_SLOWEST = 3 };
enum pn_signaling { PN_SIGNAL_TARGETED = 1, PN_SIGNAL_BROADCAST = 2 };

enum { PN_DATA_DIR_SIZE = 512 };

typedef struct pn_options {
    uint32_t queue_pages;       /* pages of 8 KiB in the ring; at least 64 */
    uint32_t max_backends;      /* slots; 1 to 65536 */
    uint32_t max_channels;      /* channels and patterns that are listened to */
    uint32_t max_subscriptions; /* (connection, channel or pattern) pairs */
    uint32_t max_generations;   /* shared generation counters */
    uint32_t max_payload;       /* bytes */
    uint32_t max_channel_name;  /* bytes, at most 255 */
    uint32_t on_full;           /* enum pn_on_full */
    uint32_t signaling;         /* enum pn_signaling */
    uint64_t full_timeout_ns;   /* bound of PN_FULL_BLOCK */
    uint32_t max_queue_pages;   /* beyond queue_pages they are files in data_dir; 0: queue_pages */
    char data_dir[PN_DATA_DIR_SIZE]; /* ours alone to write to; kept as an absolute path */
    uint64_t topic_memory;           /* bytes for the messages of all topics */
    uint32_t max_body;               /* bytes of a message of a topic */
    uint32_t max_topics;             /* at most 65536 */
    uint32_t max_topic_channels;     /* of all topics together; at most 65536 */
    uint32_t max_consumers;          /* of all channels together; at most 65535 */
} pn_options;

typedef struct pn_engine pn_engine;
typedef struct pn_conn pn_conn;
typedef struct pn_txn pn_txn;

/* Fill in the defaults. */
void pn_options_default(pn_options *opts);

/*
 * Create segment `name`, whole or not at all.  0, -EEXIST (another process was first: attach to its
 * segment), -ENOSPC (no room in /dev/shm; nothing is left behind), -EINVAL (an option out of
 * range).
 */
int pn_create(const char *name, const pn_options *opts);

/*
 * Attach to the segment behind `fd` (from shm_open; stays the caller's).  -PN_ELAYOUT,
 * -PN_ESTALE, -PN_ECORRUPT, -EACCES.  Attaching twice gives two handles on one mapping.
 */
int pn_attach(int fd, const char *name, pn_engine **out);

/* So long a segment that is created and unlinked all the time is tried again. */
enum { PN_OPEN_PATIENCE_S = 10 };

/*
 * Create if missing and attach: what a C program wants.  `opts` may be NULL.  A segment that is
 * being unlinked is waited for.  -EAGAIN: in PN_OPEN_PATIENCE_S there was never one that stayed.
 */
int pn_open(const char *name, const pn_options *opts, pn_engine **out);

/* Unmaps when it was the last handle and no connection is left. */
void pn_engine_close(pn_engine *engine);

void pn_engine_options(const pn_engine *engine, pn_options *out);
uint64_t pn_engine_size(const pn_engine *engine);      /* bytes */
int64_t pn_engine_created_ns(const pn_engine *engine); /* CLOCK_REALTIME */
int64_t pn_engine_used_ns(const pn_engine *engine);    /* likewise: a slot was claimed or freed */
int pn_engine_owner_euid(const pn_engine *engine);     /* euid that opened it */
int pn_engine_gone(const pn_engine *engine);           /* 1: its name was removed */

/*
 * Processes that hold a backend slot in any segment called `name`, whatever its layout: proved by
 * their liveness locks.  Returns how many there are (at most `cap` are stored), or an error.
 */
int pn_live_pids(const char *name, int32_t *pids, size_t cap);

/* Tell every backend of the segment that it is being unlinked, and wake the sleepers. */
int pn_announce_gone(pn_engine *engine);

/*
 * Mark it gone, unless a process has a connection: then -EBUSY, and nothing has happened.  It is
 * one step with pn_connect(), which either comes before, or finds the segment gone.
 */
int pn_retire(pn_engine *engine);

/* Remove the liveness lock files of `name`; part of unlinking. */
int pn_remove_lock_files(const char *name);

/* Remove the files that hold pages of this segment's queue; part of unlinking. */
void pn_remove_spill_files(pn_engine *engine);

/*
 * Whether the calling thread must not wait, neither for the writer lock (-PN_ELOCKBUSY) nor for
 * room in the queue (-PN_EROOMBUSY): what an event loop needs.  After one of these two nothing
 * has happened, and a transaction is as it was: pn_txn_commit() has not ended it.  Returns what
 * it was before.  pn_poll() waits for nothing but a LISTEN of another thread that commits and for
 * pages that are in files; with this it returns -PN_ELOCKBUSY, and has received nothing.
 */
int pn_set_never_wait(int never);

/*
 * The same: the calling thread puts off what calls on this connection are to sync (fsync() of
 * durable topics); NULL: it does not.  Then pn_sync_owed() has to be called after each, in that
 * thread: NULL, or what any thread gives to pn_sync_wait(), once: 0, or -PN_ESYNC, as the call
 * itself would have returned it.  Calls on other connections, of a signal handler that comes in
 * between for instance, sync as ever.
 */
typedef struct pn_sync pn_sync;
void pn_set_put_off(const pn_conn *conn);
pn_sync *pn_sync_owed(void);
int pn_sync_wait(pn_sync *sync);

/*
 * How long the calling thread waits for the writer lock at the most until it gets -PN_ELOCK: for
 * callers to which a late answer is worth less than none.  < 0: 10 s, as it is at first, and as no
 * call waits longer.  Returns what it was before.
 */
int64_t pn_set_lock_timeout(int64_t timeout_ns);

/*
 * Whether calls of this process that wait come back in between, with -EINTR: what a binding needs
 * whose language runs signal handlers between two calls.  Off at first; set it before the first
 * connection, and then leave it.  It concerns whatever takes the writer lock but closing, aborting
 * and what a bridge does: such calls come back when they have waited for it for 50 ms, those that
 * send also after each sleep for room in the queue (100 ms at the most, less when a signal comes).
 * Nothing has happened then.  Call again, at once: it goes on with what is left of its time, and a
 * transaction with its place among those that wait for room.  Outside of a transaction nothing
 * keeps that place, so these return -EINTR instead of waiting for room: do the same in a
 * transaction.  What is prepared has to be committed or aborted: go on calling.  A caller that does
 * not call again, because a handler raised, calls pn_forget_wait(), or the same call has less time.
 */
void pn_set_interruptible(int interruptible);
void pn_forget_wait(void);

/* ---- connections ------------------------------------------------------------------------- */

/*
 * Claim a slot.  `signo`: 0 means SIGUSR1, -1 means "poll" (no signals; the listener looks every
 * few milliseconds), anything else a real-time signal.  `latency_log`: a directory or NULL.
 * -PN_EBACKENDS, -PN_ECHANNELNAME (bad database name), -PN_EGONE, -PN_ECORRUPT, -PN_ELOCK.
 */
int pn_connect(pn_engine *engine, const char *database, size_t database_len, int signo,
               const char *latency_log, pn_conn **out);

/*
 * What the connection is for, as pn_engine_stat() shows it: 63 bytes at the most, a longer one is
 * cut.  Without it there is none.  0; -PN_EREAPED, -PN_ELOCK, -PN_ELOCKBUSY, -PN_ECORRUPT.
 */
int pn_conn_set_application_name(pn_conn *conn, const char *name, size_t len);

/*
 * The most bytes that the directory of its latency log may have, whatever processes write there (4
 * GiB unless it is said).  When a log needs another file and there is no room, the oldest files
 * that no process writes are removed.  0; -EINVAL for a connection without a latency log.
 */
int pn_conn_limit_log(pn_conn *conn, uint64_t bytes);

/*
 * Afterwards `conn` is not to be used.  Its transactions and consumers still are, to end them: any
 * other call on them returns -PN_ECLOSED, but for the commit of a prepared transaction.  The slot
 * and the memory are freed when the last of them has ended.
 */
void pn_conn_close(pn_conn *conn);

int32_t pn_conn_pid(const pn_conn *conn);        /* the process that owns it */
int32_t pn_conn_backend_id(const pn_conn *conn); /* its index in the backend array */
uint32_t pn_conn_claim(const pn_conn *conn);     /* which claim of it this is, from 1 */

/* Next notice (a warning to log) into buf; its length, 0 when there is none, or -PN_EFORKED. */
int pn_conn_notice(pn_conn *conn, char *buf, size_t cap);

/* ---- sending ----------------------------------------------------------------------------- */

/* One notification, a transaction of its own. */
int pn_notify(pn_conn *conn, const char *channel, size_t channel_len, const void *payload,
              size_t payload_len);

/* The same for a channel name that ends in NUL. */
int pn_notify_cstr(pn_conn *conn, const char *channel, const void *payload, size_t payload_len);

/*
 * n notifications on one channel, one transaction of its own, or part of `txn` when that is not
 * NULL.  `payloads` holds the bytes one after the other, `lens` their lengths.  *queued: how many
 * are left after collapsing duplicates.
 */
int pn_notify_many(pn_conn *conn, pn_txn *txn, const char *channel, size_t channel_len,
                   const void *payloads, const uint32_t *lens, size_t n, int dedup,
                   uint64_t *queued);

/* So many bytes of headers does a notification take. */
#define PN_NOTIFY_HEADERS_MAX 65535

typedef struct pn_notify_in {
    const char *channel;
    size_t channel_len;
    const void *payloads; /* as of pn_notify_many() */
    const uint32_t *lens;
    size_t n;
    const void *headers; /* of each of them */
    uint32_t headers_len;
    int keep_equal; /* no `dedup` */
} pn_notify_in;

/*
 * pn_notify_many(), with headers that go along beside each payload: bytes that the core does not
 * look into, of any program's making; those of Python are a JSON object of strings.  They do not
 * count for max_payload, nor for what is a duplicate: the first stays, with its headers.  A bridge
 * leaves them behind.  -PN_EPAYLOAD: more than PN_NOTIFY_HEADERS_MAX; else as pn_notify_many().
 */
int pn_notify_headers(pn_conn *conn, pn_txn *txn, const pn_notify_in *in, uint64_t *queued);

/* ---- transactions ------------------------------------------------------------------------ */

int pn_txn_begin(pn_conn *conn, pn_txn **out);
int pn_txn_notify(pn_txn *txn, const char *channel, size_t channel_len, const void *payload,
                  size_t payload_len);
int pn_txn_listen(pn_txn *txn, const char *channel, size_t channel_len);
int pn_txn_unlisten(pn_txn *txn, const char *channel, size_t channel_len);
int pn_txn_unlisten_all(pn_txn *txn);

/*
 * The commit says in *count how many connections its notifications were owed to: which listened to
 * one of their channels, by name or by a pattern, at that moment; bridges apart.  Where there are
 * none it stays as it is.  It is to live as long as the transaction.
 */
void pn_txn_count_listeners(pn_txn *txn, uint32_t *count);

/*
 * LISTEN and UNLISTEN for another part of the program than the one that calls LISTEN: a second set
 * of channels, which pn_txn_unlisten_all() leaves alone.  A channel in both is read once, and
 * pn_batch.routes tells for which of the two each message is.
 */
int pn_txn_subscribe(pn_txn *txn, const char *channel, size_t channel_len);
int pn_txn_unsubscribe(pn_txn *txn, const char *channel, size_t channel_len);

/*
 * The same four for a pattern: every channel that it matches is listened to; pn_pattern_matches()
 * says which these are.  A pattern follows the rules for channels, and is none: a channel of the
 * same name is another thing.  A message is read once, whatever it is owed by, and
 * pn_batch.pattern says which pattern that was: -1 where its channel is listened to itself, else
 * the first that matches, in the order of their LISTENs; of a message that is for SUBSCRIBE alone,
 * that of its SUBSCRIBEs.  -EINVAL: the connection is a bridge.
 */
int pn_txn_listen_pattern(pn_txn *txn, const char *pattern, size_t pattern_len);
int pn_txn_unlisten_pattern(pn_txn *txn, const char *pattern, size_t pattern_len);
int pn_txn_subscribe_pattern(pn_txn *txn, const char *pattern, size_t pattern_len);
int pn_txn_unsubscribe_pattern(pn_txn *txn, const char *pattern, size_t pattern_len);

/*
 * 1: the name matches the pattern, 0: it does not.  A pattern is as in Redis: `*`, `?`, `[a-z]`,
 * `[^a]`, and a backslash before what stands for itself; `?` and sets are of characters of UTF-8.
 */
int pn_pattern_matches(const char *pattern, size_t pattern_len, const char *name, size_t name_len);

/* Subtransactions: push returns the new level (1, 2, ...). */
int pn_txn_savepoint(pn_txn *txn);
int pn_txn_release(pn_txn *txn, int level);     /* keep the work of all levels >= level */
int pn_txn_rollback_to(pn_txn *txn, int level); /* undo all levels >= level, and end them */

/*
 * Reserve queue room and table entries for the worst case.  Afterwards only commit and abort are
 * left, and commit can fail only with -PN_ECORRUPT, -PN_EGONE or, having happened, -PN_ESYNC.
 */
int pn_txn_prepare(pn_txn *txn);

/*
 * Ends and frees the transaction, also when it returns an error: then nothing has happened.  Only
 * after -PN_ELOCKBUSY and -PN_EROOMBUSY (pn_set_never_wait) and after -EINTR
 * (pn_set_interruptible) it goes on, to be committed again or aborted; and after -PN_ESYNC it has
 * been committed, but is not in the log, or for a topic with PN_FSYNC_ALWAYS not known to be on
 * the disk.
 */
int pn_txn_commit(pn_txn *txn);
void pn_txn_abort(pn_txn *txn);

/* ---- ownership, for bindings --------------------------------------------------------------- */

/*
 * A binding whose objects are destroyed in any order, and interrupted at any step, keeps with each
 * object the variable that pn_attach(), pn_connect(), pn_txn_begin() or pn_consumer_open() has set.
 * Dropping closes what *owner points to, and clears *owner: done twice it is done once.  The second
 * argument is not looked at; a binding that counts references to it keeps it alive so.
 */
void pn_engine_drop(pn_engine **owner, pn_engine *engine);
void pn_conn_drop(pn_conn **owner, pn_conn *conn);
void pn_txn_drop(pn_txn **owner, pn_txn *txn);

/* pn_txn_commit(), which clears *owner in the same step if the transaction has ended. */
int pn_txn_commit_owned(pn_txn **owner, pn_txn *txn);

/* Closed or ended for good: what a binding puts in the place of one that is. */
pn_conn *pn_closed_conn(void);
pn_txn *pn_ended_txn(void);

/* ---- shared generation counters ---------------------------------------------------------- */

/*
 * A counter in shared memory: reading it is one load, bumping it belongs to a transaction and takes
 * effect when that commits, together with its notifications and as surely.
 *
 *   A reader that was returned a notification reads at least the values that the bumps of the
 *   notification's transaction made.
 *   A listener that has read a value finds, in its next pn_poll(), the notifications owed to it of
 *   the transactions that made it.
 *
 * The use: a cache that is thrown away when the counter has moved.  Read the counter first, then
 * load what is cached; keep both.
 *
 * A counter is found by its name, which follows the rule for channels, in the connection's
 * database, or made: 0, at once, and for as long as the segment exists.  *index names it in all
 * processes.  A counter that exists is found without the lock.  -PN_ECHANNELNAME,
 * -PN_EGENERATIONS, -PN_ELOCK.
 */
int pn_generation(pn_conn *conn, const char *name, size_t len, uint32_t *index);

/* Its value: a load (acquire).  Needs no connection; any thread or process, also after a fork. */
uint64_t pn_generation_value(const pn_engine *engine, uint32_t index);

/*
 * When the transaction that bumped it last was committed: CLOCK_REALTIME in ns, 0: never.  A caller
 * that has read a value reads the time of that value or of a later one; before the value, the time
 * may be of one that is about to be seen.
 */
int64_t pn_generation_changed_ns(const pn_engine *engine, uint32_t index);

/* Add one at the commit of `txn`; every call counts.  -EINVAL: no counter of this database. */
int pn_txn_bump(pn_txn *txn, uint32_t index);

/* The same as a transaction of its own.  Results as of pn_notify(). */
int pn_bump(pn_conn *conn, uint32_t index);

/* ---- receiving --------------------------------------------------------------------------- */

/* By which of its two sets of channels a message is owed; bits of pn_batch.routes. */
enum pn_route { PN_ROUTE_LISTEN = 0, PN_ROUTE_SUBSCRIBE = 1, PN_ROUTES = 2 };

/* Why messages are missing. */
enum pn_gap_reason {
    PN_GAP_EVICTED = 1, /* PN_FULL_DROP_SLOWEST: this was the slowest listener */
    PN_GAP_DAMAGED = 2, /* a spill file cannot be read */
    PN_GAP_UPSTREAM = 3 /* a bridge was not connected to what it bridges: pn_send_gap() */
};

typedef struct pn_gap {
    uint64_t before;       /* it stands before the message of this index */
    uint64_t missed_bytes; /* of the queue, whether or not they were for this connection */
    uint32_t reason;       /* enum pn_gap_reason */
    uint32_t routes;       /* 1 << enum pn_route: by which something may be missing */
    int64_t channel;       /* for pn_conn_channel(): of PN_GAP_UPSTREAM; else -1, of all */
} pn_gap;

typedef struct pn_batch {
    size_t n;            /* messages */
    uint64_t *seq;       /* [n] commit sequence number */
    int64_t *sent_ns;    /* [n] CLOCK_MONOTONIC at commit */
    int32_t *pid;        /* [n] sender's process */
    int32_t *backend_id; /* [n] sender's backend */
    uint64_t *sender;    /* [n] the same, and above it which claim of the slot: never used again */
    uint32_t *channel;   /* [n] for pn_conn_channel() */
    uint8_t *routes;     /* [n] 1 << enum pn_route, one or both */
    uint64_t *offset;    /* [n + 1] into data */
    uint8_t *data;       /* payloads, one after the other */
    size_t cap;          /* room in the columns */
    size_t data_cap;     /* room in data */
    size_t ngaps;        /* with PN_FULL_DROP_SLOWEST, pages in files, or a bridge */
    pn_gap *gap;         /* [ngaps] */
    size_t gap_cap;      /* room in gap */
    uint64_t max_data;   /* the caller's: with so many bytes in data nothing more is read; 0: any */
    size_t by_pattern;   /* 0: no message came by a pattern, and the next is not to be looked at */
    int32_t *pattern;    /* [n] for pn_conn_channel(), or -1: pn_txn_listen_pattern() */
    size_t pattern_cap;  /* room in pattern */
    size_t with_headers; /* 0: no message has headers, and the next two are not to be looked at */
    uint64_t *headers_offset;               /* [n + 1] into headers */
    uint8_t *headers;                       /* one after the other */
    size_t headers_offset_cap, headers_cap; /* room in them */
    size_t nrenamed;    /* numbers in it that this batch did not have before, or for another name */
    uint32_t *renamed;  /* [nrenamed] */
    size_t renamed_cap; /* room in renamed */
    uint64_t *known;    /* the core's own */
    size_t known_cap;
    void *life; /* likewise */
} pn_batch;

pn_batch *pn_batch_new(void); /* NULL: no memory */
void pn_batch_free(pn_batch *batch);

/*
 * Everything owed that was committed before the call, at most `max` messages and gaps (0: all),
 * into `batch`.  Never blocks.  Returns the number of messages (0 perhaps with gaps) or an error;
 * after -ENOMEM nothing is lost.
 */
int64_t pn_poll(pn_conn *conn, pn_batch *batch, uint64_t max);

/* About how many bytes of the queue the next pn_poll() has to look at: whether it takes long. */
uint64_t pn_conn_unread(pn_conn *conn);

/*
 * Sleep until there may be something to read.  Returns 1 (there may be), 0 (the time is over) or
 * -EINTR, each perhaps with PN_NOTICE.  timeout_ns: -1 none, 0 look once.
 *
 * -EINTR: the sleep has ended, and nothing is there to read.  Look at what your own signal handlers
 * have noted, and call again with what is left of the time.  A signal of yours always ends it so;
 * so do a wake-up in vain and the slow timer, since a signal may have come together with them.
 */
int pn_wait(pn_conn *conn, int64_t timeout_ns);

/*
 * For a binding whose signal handlers run only when a call has returned, as Python's do.  A signal
 * that comes before the kernel has put the thread to sleep does not interrupt the sleep, and masks
 * do not help where another thread takes it then.  So let your C handler write to a descriptor, and
 * name it here: when it becomes readable, the sleep of the calling thread ends, with -EINTR, or the
 * next one: in pn_wait(), pn_consumer_get() and pn_sleep().  Read all that is in it before each.
 * `id`: a number that no other such descriptor of this process has had.  fd -1: none, as at first.
 */
void pn_set_wakeup_fd(int fd, uint32_t id);
/* Only sleep, until that is readable, or a signal comes: -EINTR; 0: the time is over. */
int pn_sleep(int64_t timeout_ns);

/* Make the descriptor readable until the next pn_poll(): for callers that keep what they have read
 * ahead. */
void pn_conn_mark_readable(pn_conn *conn);

/*
 * The reverse, for callers that must not read now: what is unread does not make the descriptor
 * readable until pn_conn_mark_readable().  Until then no process signals it either, since the
 * backend counts as awake.
 */
int pn_conn_mute_fd(pn_conn *conn);

/* Make one pn_wait(), now or the next, return 1: this thread has read what another waits for. */
void pn_conn_interrupt_wait(pn_conn *conn);

/*
 * Make pn_wait() in all threads return -PN_ECLOSED, now and later, and refuse every other call on
 * the connection likewise; before pn_conn_close().
 */
void pn_conn_interrupt(pn_conn *conn);

/* One descriptor per connection, constant, level-triggered, for any event loop. */
int pn_fileno(pn_conn *conn);

/*
 * Many connections that one thread serves, as the gateway's: what would make their descriptors
 * readable makes the group's readable, once.  A connection joins before its first pn_wait() and
 * pn_fileno(), and cannot pn_wait() any more.  Its own descriptor then is for its slow timer and
 * for deaths among its neighbours alone; the thread waits for that as well, and for the group's,
 * and calls pn_poll() when either is readable.  One thread does all this, and closes the
 * connections, then the group.
 *
 *     if (the group's descriptor is readable) {
 *         pn_group_begin(group);
 *         while ((mine = pn_group_next(group)) != NULL)
 *             pn_poll(mine->conn, ...);    // it is posted again if there is more
 *     }
 */
typedef struct pn_group pn_group;
int pn_group_open(pn_group **out);
int pn_group_fileno(const pn_group *group);
int pn_conn_join(pn_conn *conn, pn_group *group, void *user);
/* What was posted up to now; pn_group_next() returns the `user` of each, NULL: that was all. */
void pn_group_begin(pn_group *group);
void *pn_group_next(pn_group *group);
void pn_group_close(pn_group *group);

/*
 * Name of a channel number of this connection.  Both are constant as long as the channel is
 * listened to, and as long as a batch that has the number is neither polled into again nor freed;
 * after that the number may mean another channel.  NULL: no such number, or in a forked child.
 */
const char *pn_conn_channel(pn_conn *conn, uint32_t channel, size_t *len);

/* Numbers of the channels of the committed LISTENs, not SUBSCRIBEs; returns how many there are. */
int pn_conn_listening(pn_conn *conn, uint32_t *channels, size_t cap);
/* Their names, each with a NUL behind it; returns how many bytes that is, and writes what fits. */
int64_t pn_conn_listening_names(pn_conn *conn, char *names, size_t cap);
/* The same of the patterns, in the order of their LISTENs. */
int64_t pn_conn_listening_patterns(pn_conn *conn, char *names, size_t cap);
/*
 * Would a message of that channel and that commit be owed to LISTEN, if it were read now?  For what
 * was read before an UNLISTEN and not handed on yet.  1, 0 or an error.
 */
int pn_conn_owes(pn_conn *conn, const char *channel, size_t len, uint64_t seq);

/* ---- bridges ----------------------------------------------------------------------------- */

/*
 * A bridge carries the notifications of some channels from another place into the segment, and
 * perhaps those of the segment there; native/src/commit/bridge.c has the model.
 *
 * Make `conn`, which must not listen yet, the one bridge of its database, until it is closed.
 * What it listens to from then on goes upstream: a notification on such a channel that PostgreSQL
 * would refuse (8000 bytes or more, NUL, not UTF-8) is refused (-PN_EPAYLOAD, -PN_EENCODING).
 * -EBUSY: there is one; -EINVAL: it listens.
 */
int pn_conn_bridge(pn_conn *conn);

/* The process of the bridge of this connection's database; 0: there is none. */
int pn_bridge_pid(pn_conn *conn);

/*
 * Counts how often any channel has got its first listener or lost its last, bridges apart.  One
 * load.  The descriptor of a bridge becomes readable when it has changed.
 */
uint32_t pn_heard(const pn_engine *engine);

/* 1: a backend besides the bridge listens to the channel, perhaps by a pattern; 0: none does. */
int pn_channel_heard(pn_conn *conn, const char *channel, size_t len);

/* 1: what is sent on the channel goes upstream; 0: it does not. */
int pn_channel_upstream(pn_conn *conn, const char *channel, size_t len);

/* What the connection sends from now on was sent by process `pid` elsewhere; 0: by itself. */
void pn_conn_set_source(pn_conn *conn, int32_t pid);

/* Listeners to the channel get a pn_gap, in its place.  Results as of pn_notify(). */
int pn_send_gap(pn_conn *conn, const char *channel, size_t len);
/* ---- statistics, checking ---------------------------------------------------------------- */

typedef struct pn_stat {
    uint64_t commits, notifications, collapsed;
    uint64_t signals_sent, signals_elided, wakeups_useful, wakeups_useless, slot_writes;
    uint64_t log_records_dropped, log_files_recycled; /* of latency logs, for want of room */
    uint64_t signals_unsent; /* could not be sent: the sleeper comes by its slow timer */
    uint64_t handler_reinstalls, recoveries;
    uint64_t evictions;            /* how often the slowest listener lost its place */
    uint64_t spilled_pages;        /* written to files, ever */
    uint64_t head, tail, mem_tail; /* queue positions, bytes; [tail, mem_tail) is in files */
    double queue_usage;
    int32_t tail_holder_pid; /* 0: none */
    uint32_t queue_pages, max_queue_pages;
    uint32_t backends; /* how many rows there are */
    uint32_t channels; /* entries of the channel table in use, patterns among them */
    uint32_t patterns; /* that are listened to, or prepared to be */
    uint32_t subscriptions;
    uint32_t generations; /* shared counters that exist */
} pn_stat;

/* What a backend is to its database (pn_conn_bridge()). */
enum pn_bridge_kind {
    PN_BRIDGE_NONE = 0,
    PN_BRIDGE_ONE_WAY = 1, /* it listens to nothing: what is sent here stays here */
    PN_BRIDGE_BOTH = 2
};

typedef struct pn_backend_stat {
    int32_t backend_id, pid;
    uint32_t channels;
    uint32_t asleep, in_transaction;
    int32_t signo;   /* what it is woken by; -1: it polls */
    uint32_t bridge; /* enum pn_bridge_kind */
    uint64_t lag_bytes;
    char database[256];
    char application_name[64];
} pn_backend_stat;

/* Reaps the dead first.  rows may be NULL. */
int pn_engine_stat(pn_engine *engine, pn_stat *out, pn_backend_stat *rows, size_t cap);

/* The process that got the writer lock last: after -PN_ELOCK, its holder.  One load; 0: none. */
int32_t pn_engine_lock_holder(const pn_engine *engine);

/* How many live backends there are; takes no lock, so it answers even if the lock is stuck. */
int pn_engine_backends(pn_engine *engine);

/* Unfinished messages of its topics that end with the segment: those of durable ones do not. */
int64_t pn_engine_messages(pn_engine *engine);

/* The number of the last commit that had entries; every later one has a greater number. */
int pn_commit_seq(pn_engine *engine, uint64_t *out);

/* Wait until what -PN_ELOCKBUSY told of is free; it may be taken again by then.  0 or -PN_ELOCK. */
int pn_await_lock(pn_engine *engine);

/* How many backends listen to the channel now, bridges apart; not those that do by a pattern. */
int pn_channel_listeners(pn_conn *conn, const char *channel, size_t len);

typedef struct pn_channel_row {
    uint32_t listeners; /* backends, bridges apart; never 0 */
    uint32_t name_len;
    uint64_t notifications; /* since `first`, and heard: what had no listener is not counted */
    uint64_t first;         /* differs when the segment has forgotten the channel in between */
    char name[256];         /* without a terminating 0 */
    char database[256];
} pn_channel_row;

/*
 * Channels of the connection's database that are listened to and begin with `prefix`; the dead are
 * reaped first.  Each call gives the next ones and holds the writer lock for a bounded time: begin
 * with *from == 0, and call until it is 0 again.  Returns the number of rows, perhaps 0 of many.
 * A channel that is listened to all the while is given exactly once.
 */
int pn_channel_list(pn_conn *conn, const char *prefix, size_t len, uint32_t *from,
                    pn_channel_row *rows, size_t cap);

/*
 * The same of patterns.  `notifications` counts those on channels that matched; a commit whose
 * process was killed in it may be left out.
 */
int pn_pattern_list(pn_conn *conn, const char *prefix, size_t len, uint32_t *from,
                    pn_channel_row *rows, size_t cap);
int pn_engine_patterns(pn_engine *engine, const char *database, size_t database_len,
                       const char *prefix, size_t len, uint32_t *from, pn_channel_row *rows,
                       size_t cap);

/* pn_channel_list() of all databases, or of one; `database_len` 0: all. */
int pn_engine_channels(pn_engine *engine, const char *database, size_t database_len,
                       const char *prefix, size_t len, uint32_t *from, pn_channel_row *rows,
                       size_t cap);

/* pg_notification_queue_usage(): advances the tail, then (head page - tail page) / pages. */
int pn_queue_usage(pn_engine *engine, double *out);

/* Every invariant.  Returns the number of problems; their texts, a line each, in buf. */
int pn_check(pn_engine *engine, char *buf, size_t cap);

/* ---- asking a process for its stack ------------------------------------------------------ */

/*
 * Ask process `pid`, which has a backend in this segment, for its stack: LOG_STACK is set, and its
 * signal handler calls what pn_adopt_stack_printer() was given.  1: asked; 0: no backend of that
 * process can be signalled (there is none, it polls, or it has never listened).
 */
int pn_log_stack(pn_engine *engine, int32_t pid);

/*
 * What a process does when it is asked: the handler of `signo` that is installed now, called with
 * `signo`.  It must be async-signal-safe.  pn_keep_disposition(signo) before it was installed, and
 * this puts back what was kept: the signal itself stays the program's own.
 */
int pn_keep_disposition(int signo);
int pn_adopt_stack_printer(int signo);

/* ---- crash points (builds with PN_CRASHPOINTS only, else -ENOSYS) -------------------------- */

enum pn_crash_action { PN_CRASH_KILL = 1, PN_CRASH_STOP = 2, PN_CRASH_EXIT = 3 };

/* Do `action` when the calling process reaches PN_CRASH(label) for the nth time (from 1). */
int pn_crash_arm(const char *label, uint32_t nth, int action);
int pn_crash_label_count(void);
const char *pn_crash_label(int i);

/* cffi:end */

#ifdef __cplusplus
}
#endif

#include "pynotify_topic.h"
#endif
