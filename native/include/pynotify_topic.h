/*
 * pynotify_topic.h - topics and channels: work distribution between the processes of one host.
 *
 * Part of pynotify.h, which includes it.
 */
#ifndef PYNOTIFY_TOPIC_H
#define PYNOTIFY_TOPIC_H

#include "pynotify.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cffi:begin */

/* ---- topics and channels ----------------------------------------------------------------- */

/*
 * Work distribution as NSQ does it, without a broker.  Every message of a topic goes to each of
 * its channels, and within a channel to one consumer, which answers it: finish, requeue, touch,
 * dead letter.  What is not answered in time, or whose consumer dies, is delivered again.
 *
 * A topic, a channel and a consumer are named by a pn_ref: an index and, above it, which use of
 * that index, so that a stale one gives -PN_ETOPICDELETED and never what has the index now.
 * References are valid in all processes and connections of the same database.
 *
 *     pn_message_out m;
 *     while ((rc = pn_consumer_get(consumer, -1, &m)) == 1) {
 *         work(m.body, m.body_len);
 *         pn_message_answer(conn, NULL, m.delivery, m.tag, m.id, PN_ANSWER_FINISH, 0, NULL, 0);
 *     }
 *
 * Errors of all of them: -PN_ETOPICDELETED, -PN_ELOCK, -PN_ELOCKBUSY, -PN_EFORKED, -PN_ECLOSED,
 * -PN_ECORRUPT, -PN_EGONE, -PN_EREAPED, and -ENOSPC if the pages of the topic area cannot be had
 * (the first use of topics in a segment allocates them).
 */
typedef uint64_t pn_ref;

enum pn_overflow {
    PN_OVERFLOW_DISK = 1, /* the default; without data_dir as PN_OVERFLOW_ERROR */
    PN_OVERFLOW_ERROR = 2,
    PN_OVERFLOW_DROP_OLDEST = 3,
    PN_OVERFLOW_DROP_NEW = 4
};
enum pn_fsync { PN_FSYNC_NONE = 1, PN_FSYNC_INTERVAL = 2, PN_FSYNC_ALWAYS = 3 };

/* Bits of pn_topic_options.given. */
enum pn_topic_option {
    PN_TOPIC_DURABLE = 1,
    PN_TOPIC_FSYNC = 2,
    PN_TOPIC_OVERFLOW = 4,
    PN_TOPIC_MAX_DEPTH = 8,
    PN_TOPIC_DEFAULT_TTL = 16,
    PN_TOPIC_MAX_MEMORY = 32,
    PN_TOPIC_MAX_DISK_BYTES = 64
};

enum { PN_TOPIC_NAME_MAX = 64, PN_TOPIC_NAME_SIZE = 65 };

typedef struct pn_topic_options {
    uint32_t given; /* which of these the caller gave; the others are neither set nor compared */
    uint32_t durable;
    uint32_t fsync;          /* enum pn_fsync; not given: PN_FSYNC_INTERVAL */
    uint32_t overflow;       /* enum pn_overflow; not given: PN_OVERFLOW_DISK */
    uint64_t max_depth;      /* unfinished messages; 0: no bound */
    int64_t default_ttl_ns;  /* of messages that are published without one; 0: none */
    uint64_t max_memory;     /* bytes of topic_memory, from 4096; 0: as its share allows */
    uint64_t max_disk_bytes; /* of what has no room in memory, from 4096; 0: as the disk allows */
} pn_topic_options;

/*
 * The topic of this name in the connection's database, made if it is missing.  -PN_ETOPICNAME,
 * -PN_ETOPICS (max_topics), -PN_ETOPICOPTIONS (it was made with others), -EINVAL.
 */
int pn_topic_open(pn_conn *conn, const char *name, size_t len, const pn_topic_options *options,
                  pn_ref *out);
/*
 * Change what may be changed: PN_TOPIC_DEFAULT_TTL, PN_TOPIC_MAX_MEMORY, PN_TOPIC_MAX_DISK_BYTES.
 * All that is given, or nothing; the others stay as they are.  -EINVAL: another one is given, or a
 * value is bad.
 */
int pn_topic_configure(pn_conn *conn, pn_ref topic, const pn_topic_options *options);
/* 1: *out is it; 0: there is none. */
int pn_topic_find(pn_conn *conn, const char *name, size_t len, pn_ref *out);

/*
 * The channel of this name, made if it is missing; the first one of a topic gets what the topic
 * has kept.  max_consumers: -1 not given, 0 no bound.  Errors as above; -PN_ETOPICS
 * (max_topic_channels).
 */
int pn_topic_channel_open(pn_conn *conn, pn_ref topic, const char *name, size_t len,
                          int64_t max_consumers, pn_ref *out);
int pn_topic_channel_find(pn_conn *conn, pn_ref topic, const char *name, size_t len, pn_ref *out);

/* Bits of pn_channel_options.given and pn_consumer_options.fallback. */
enum pn_channel_option {
    PN_CHANNEL_MAX_ATTEMPTS = 1,
    PN_CHANNEL_DEAD_LETTER = 2,
    PN_CHANNEL_MSG_TIMEOUT = 4
};

/* What consumers of a channel get that leave it to their channel. */
typedef struct pn_channel_options {
    uint32_t given;          /* which of these the caller gave; the others stay as they are */
    int64_t max_attempts;    /* deliveries; 0: no limit; < 0: the channel says nothing */
    int64_t msg_timeout_ns;  /* 0: the channel says nothing */
    const char *dead_letter; /* name of a topic; NULL: the channel says nothing */
    size_t dead_letter_len;
} pn_channel_options;

/*
 * pn_topic_channel_open() with such options, of a channel that exists to be compared:
 * -PN_ETOPICOPTIONS.  NULL: none is given.  Errors as of pn_topic_channel_configure(), too.
 */
int pn_topic_channel_open_with(pn_conn *conn, pn_ref topic, const char *name, size_t len,
                               int64_t max_consumers, const pn_channel_options *options,
                               pn_ref *out);
/*
 * All that is given, or nothing.  It counts for consumers that are there, and for messages of a
 * process that was killed, too; msg_timeout for those that are made from now on.  -EINVAL,
 * -PN_ETOPICNAME, -PN_ETOPICOPTIONS: dead letters would come back to the channel's own topic, by
 * what the channels of other topics are set to.
 */
int pn_topic_channel_configure(pn_conn *conn, pn_ref channel, const pn_channel_options *options);

typedef struct pn_message_in {
    const void *body; /* 1 to max_body bytes */
    size_t body_len;
    const void *headers; /* opaque; at most 64 KiB */
    size_t headers_len;
    int64_t delay_ns; /* <= 0: none */
    int64_t ttl_ns;   /* 0: the topic's; < 0: none; counts from when it becomes effective, too */
} pn_message_in;

/*
 * Publish; with a transaction when that commits (*id is known at once).  -PN_EBODY (empty),
 * -PN_EBODYLONG, -PN_ETOPICFULL (max_depth or topic_memory, and the topic's overflow says so;
 * or max_disk_bytes).
 * -PN_ESYNC, of this and all that changes a durable topic: it has happened, but could not be
 * written to the log; with PN_FSYNC_ALWAYS also: the file system does not say that it is on the
 * disk.
 */
int pn_topic_publish(pn_conn *conn, pn_txn *txn, pn_ref topic, const pn_message_in *message,
                     uint64_t *id);

/* The same for nothing but a body, outside of a transaction: its id, or a negative error. */
int64_t pn_topic_publish_body(pn_conn *conn, pn_ref topic, const char *body, size_t body_len);

/*
 * n messages, all or none.  `bodies` one after the other, `lens` their lengths; `common` gives
 * headers, delay and ttl, its body is not looked at; NULL: none.  The ids are *first_id ... + n-1.
 */
int pn_topic_publish_many(pn_conn *conn, pn_txn *txn, pn_ref topic, const void *bodies,
                          const uint32_t *lens, size_t n, const pn_message_in *common,
                          uint64_t *first_id);

/*
 * Take back a deferred message.  1: it was still deferred in all channels that have it, and is
 * gone; 0: it was not.  In a transaction the result is that of the moment, and the commit cancels
 * it if it is still deferred then.  Without one, -EINTR: nothing has happened; it was interrupted,
 * or has to wait for room in the queue, for which it is to be called in a transaction that is kept.
 */
int pn_topic_cancel(pn_conn *conn, pn_txn *txn, pn_ref topic, uint64_t id);
/* The commit says in *count what its cancels have ended: how many copies of messages; 0: none.  It
 * is to live as long as the transaction. */
void pn_txn_count_cancelled(pn_txn *txn, size_t *count);

/* All at once, never part of a transaction.  pn_topic_empty: the topic's own queue only. */
int pn_topic_pause(pn_conn *conn, pn_ref topic, int paused);
int pn_topic_empty(pn_conn *conn, pn_ref topic);
int pn_topic_delete(pn_conn *conn, pn_ref topic);
int pn_topic_channel_pause(pn_conn *conn, pn_ref channel, int paused);
int pn_topic_channel_empty(pn_conn *conn, pn_ref channel);
int pn_topic_channel_delete(pn_conn *conn, pn_ref channel);

typedef struct pn_consumer pn_consumer;

typedef struct pn_consumer_options {
    uint32_t max_in_flight;     /* 1 to 65535; 0: 1 */
    uint32_t max_attempts;      /* deliveries; 0: no limit */
    uint32_t sample_rate;       /* percent, 1 to 99; 0: all */
    int64_t msg_timeout_ns;     /* 0: 60 s */
    int64_t max_msg_timeout_ns; /* 0: 900 s; touch extends to at most this after delivery */
    const char *dead_letter;    /* name of a topic, made when it is needed; NULL: none */
    size_t dead_letter_len;
    uint32_t fallback; /* enum pn_channel_option: of these the channel's value, if it has one, comes
                        * first, and that above counts without one */
} pn_consumer_options;

/*
 * -PN_ECONSUMERS (max_consumers of the channel), -PN_ETOPICS (max_consumers of the segment),
 * -EINVAL, -PN_ETOPICNAME (dead_letter), -PN_ETOPICOPTIONS (dead letters would come back to the
 * channel's topic, as of pn_topic_channel_configure()).
 */
int pn_consumer_open(pn_conn *conn, pn_ref channel, const pn_consumer_options *options,
                     pn_consumer **out);

typedef struct pn_message_out {
    uint64_t id;
    uint64_t delivery; /* with `tag` the handle to answer with */
    uint32_t tag;
    uint32_t attempts;    /* this one included */
    int64_t published_ns; /* CLOCK_REALTIME */
    int64_t expires_ns;   /* CLOCK_MONOTONIC; 0: never */
    const uint8_t *body;
    uint64_t body_len;
    const uint8_t *headers;
    uint64_t headers_len;
} pn_message_out;

/*
 * The next message.  timeout_ns: -1 for ever, 0 look once.  1: *out is it, and its body and
 * headers are valid until the next call on this consumer; 0: the time is over; -EINTR: as of
 * pn_wait(), call again.  -PN_ECLOSED after pn_consumer_interrupt().  One thread at a time gets;
 * others wait for it.
 */
int pn_consumer_get(pn_consumer *consumer, int64_t timeout_ns, pn_message_out *out);

/* Level-triggered: readable when pn_consumer_get(consumer, 0, ..) may return a message. */
int pn_consumer_fileno(pn_consumer *consumer);

/* How many messages it takes at a time (NSQ's RDY): 0 none, and what was fetched ahead goes back;
 * up to max_in_flight; < 0: max_in_flight again. */
int pn_consumer_pause(pn_consumer *consumer, int level);

/* pn_consumer_get() returns -PN_ECLOSED, now and later, in all threads.  Before close. */
void pn_consumer_interrupt(pn_consumer *consumer);

/*
 * Gives back what is in flight, to the head of the queue, and frees; before or after its connection
 * is closed.  After a fork it only frees memory.
 */
int pn_consumer_close(pn_consumer *consumer);

/* As pn_conn_drop() and pn_closed_conn(). */
void pn_consumer_drop(pn_consumer **owner, pn_consumer *consumer);
pn_consumer *pn_closed_consumer(void);

pn_ref pn_consumer_ref(const pn_consumer *consumer);

enum pn_answer {
    PN_ANSWER_FINISH = 1,
    PN_ANSWER_REQUEUE = 2,     /* delay_ns <= 0: at once, at the tail; at most an hour */
    PN_ANSWER_TOUCH = 3,       /* msg_timeout from now; never part of a transaction */
    PN_ANSWER_DEAD_LETTER = 4, /* to the consumer's dead-letter topic; without one dropped */
    PN_ANSWER_RELEASE = 5      /* back to the head, as if it had not been delivered */
};

/*
 * Answer a delivery.  -PN_ENOTINFLIGHT: it is not in flight; -PN_ENOTOWNER: it is, but this is
 * another delivery of it.  With a transaction it is checked now and at commit, which fails with
 * these errors, too.  `reason` goes into the header dead-letter-reason, wherever the limit of
 * attempts or PN_ANSWER_DEAD_LETTER makes a dead letter of it.
 */
int pn_message_answer(pn_conn *conn, pn_txn *txn, uint64_t delivery, uint32_t tag, uint64_t id,
                      int answer, int64_t delay_ns, const char *reason, size_t reason_len);

/* PN_ANSWER_FINISH outside of a transaction. */
int pn_message_finish(pn_conn *conn, uint64_t delivery, uint32_t tag, uint64_t id);

/* When the delivery times out, CLOCK_MONOTONIC ns; errors as of an answer. */
int pn_message_deadline(pn_conn *conn, uint64_t delivery, uint32_t tag, uint64_t id,
                        int64_t *deadline_ns);

typedef struct pn_topic_stats {
    pn_ref ref;
    char name[65];
    uint32_t paused, ephemeral, durable, fsync, overflow, channels;
    uint32_t corrupt; /* records that could not be read */
    uint64_t max_depth;
    uint64_t depth;      /* in the topic's own queue */
    uint64_t deferred;   /* of them, deferred */
    uint64_t unfinished; /* in memory, and some channel still has it; each counted once */
    uint64_t message_count, message_bytes; /* ever published */
    uint64_t dropped; /* by `overflow`, each once; counted in each channel, too */
    uint64_t expired;
    uint64_t on_disk; /* messages */
    char error[128];  /* the last write error, or empty */
    char database[256];
    int64_t default_ttl_ns;  /* 0: none */
    uint64_t max_memory;     /* 0: none */
    uint64_t memory;         /* bytes of topic_memory that it has */
    uint64_t max_disk_bytes; /* 0: none */
    uint64_t disk_bytes;     /* of the records of `on_disk`, and of cancelled ones not yet passed */
} pn_topic_stats;

typedef struct pn_topic_channel_stats {
    pn_ref ref, topic;
    char name[65];
    uint32_t paused, ephemeral, consumers, max_consumers;
    uint64_t depth, in_flight, deferred;
    uint64_t message_count, requeued, timed_out, finished, dead_lettered, dropped, expired;
    int64_t oldest_ready_ns; /* since the first ready message was published; -1: none is ready */
    int64_t max_attempts;    /* as pn_channel_options; -1: it says nothing */
    int64_t msg_timeout_ns;  /* 0: it says nothing */
    char dead_letter[65];    /* empty: it says nothing */
} pn_topic_channel_stats;

typedef struct pn_consumer_stats {
    pn_ref ref;
    int32_t pid, backend_id;
    uint32_t in_flight, max_in_flight, level, sample_rate;
    uint64_t delivered, finished, requeued, timed_out;
} pn_consumer_stats;

/* Of this database.  Return how many there are; at most `cap` rows are stored, in no order. */
int pn_topic_list(pn_conn *conn, pn_topic_stats *rows, size_t cap);
int pn_topic_channel_list(pn_conn *conn, pn_ref topic, pn_topic_channel_stats *rows, size_t cap);
int pn_consumer_list(pn_conn *conn, pn_ref channel, pn_consumer_stats *rows, size_t cap);
int pn_topic_stat(pn_conn *conn, pn_ref topic, pn_topic_stats *out);
int pn_topic_channel_stat(pn_conn *conn, pn_ref channel, pn_topic_channel_stats *out);
int pn_consumer_stat(pn_consumer *consumer, pn_consumer_stats *out);

/*
 * Publish to finish, over the last five to ten minutes: the quantiles q[0 .. n-1], in (0, 1], in
 * seconds.  Returns 1, or 0 when nothing was finished in that time.
 */
int pn_topic_channel_e2e(pn_conn *conn, pn_ref channel, const double *q, size_t n, double *seconds);

/*
 * The same for callers that only look: of all databases, without a connection, and so without a
 * slot.  Nothing is changed and no consumer is woken.  What has fallen due and was not acted on
 * yet, since the channel was not used, counts as what it becomes, ready or expired; in a call up to
 * 4096 deliveries, and of topics' own queues as many are looked at for `deferred`, so that the lock
 * is held for a bounded time.  The references are of any database, and good for these calls only.
 * The first call finds the durable topics of an earlier segment, as pn_topic_list() does.
 */
int pn_engine_topics(pn_engine *engine, pn_topic_stats *rows, size_t cap);
int pn_engine_topic_channels(pn_engine *engine, pn_ref topic, pn_topic_channel_stats *rows,
                             size_t cap);
int pn_engine_consumers(pn_engine *engine, pn_ref channel, pn_consumer_stats *rows, size_t cap);
int pn_engine_topic_channel_e2e(pn_engine *engine, pn_ref channel, const double *q, size_t n,
                                double *seconds);

enum pn_message_state { PN_MESSAGE_READY = 1, PN_MESSAGE_DEFERRED = 2, PN_MESSAGE_IN_FLIGHT = 3 };

typedef struct pn_peeked {
    uint64_t id;
    uint32_t state; /* enum pn_message_state */
    uint32_t attempts;
    int64_t due_in_ns; /* deferred: until it is ready; in flight: until it times out; else 0 */
    int64_t published_ns;
    uint64_t body_len; /* all of it; min(body_len, body_max) bytes are copied */
} pn_peeked;

/*
 * The first `cap` messages of a channel, ready ones first, then deferred, then in flight; changes
 * nothing.  Body i goes to bodies + i * body_max.  Returns how many were stored.
 */
int pn_topic_channel_peek(pn_conn *conn, pn_ref channel, pn_peeked *out, size_t cap,
                          uint8_t *bodies, size_t body_max);

/* ---- a data directory without its segment -------------------------------------------------- */

/*
 * What the log of durable topics has, <data_dir>/<segment>/, and what in it is damaged, as the next
 * pn_open() would find it; nothing is written, made or removed.  A process that is at work there
 * may make whole records look damaged: ask pn_dir_holder() before.
 *
 *     rc = pn_dir_open("/var/lib/app/jobs", &dir, &about);
 *     while ((rc = pn_dir_next(dir, &item)) == 1)      topics, channels, damage, then messages
 *         ...
 *     pn_dir_close(dir);
 */
typedef struct pn_dir pn_dir;

enum pn_dir_kind {
    PN_DIR_TOPIC = 1, /* topic, name, database, paused, fsync, max_depth */
    PN_DIR_CHANNEL,   /* topic, channel, name, paused */
    PN_DIR_DAMAGE,    /* why, file, at, records, bytes */
    PN_DIR_MESSAGE    /* topic, id, times, headers, body, copies */
};

/* Of damage: from `at` in `file` on. */
enum pn_dir_why {
    PN_DIR_UNREADABLE = 1, /* so many records: not even their headers are whole */
    PN_DIR_SPOILT,         /* a record whose content is not what was written */
    PN_DIR_TORN,           /* a whole record, of a batch that is not, and so does not count */
    PN_DIR_MISSING,        /* the file is not there, and is spoken of */
    PN_DIR_UNFINISHED, /* `bytes` at the end, as a process leaves them that is killed in a write:
                            * no damage */
    PN_DIR_BAD_END     /* `bytes` at the end that no such process leaves: a power cut, or damage */
};

typedef struct pn_dir_copy { /* of a message, in a channel */
    uint32_t channel, attempts;
    int64_t due_ns; /* 0: at once */
} pn_dir_copy;

typedef struct pn_dir_item {
    uint32_t kind, why;
    uint32_t topic, channel; /* numbers that are good for this pn_dir only */
    uint32_t paused, fsync;
    uint64_t max_depth;
    uint64_t file, at, records, bytes;
    char name[256], database[256];
    uint64_t id;
    int64_t published_ns, due_ns, expires_ns; /* CLOCK_REALTIME; 0: none */
    uint32_t own;                             /* it is still the topic's, and in no channel */
    uint32_t ncopies;
    const pn_dir_copy *copies; /* these three until the next call */
    const uint8_t *headers, *body;
    uint32_t headers_len, body_len;
} pn_dir_item;

typedef struct pn_dir_about {
    char prefix[64]; /* of the names of the files that belong to it; 16 hex digits follow */
    uint64_t first_file, last_file; /* 0: there are none */
    uint64_t damaged;               /* records, so far */
} pn_dir_about;

/* Does a process use it?  1, with the one that opened it last (pid 0: not known) and its host, of
 * 64 bytes; 0: no; -errno. */
int pn_dir_holder(const char *path, int32_t *pid, char *host);
/* `spill`: not the log, but overflow files in `path` whose names begin so, of that instance; only
 * their damage is told. */
int pn_dir_open(const char *path, const char *spill, uint64_t instance, pn_dir **out,
                pn_dir_about *about);
/* 1; 0: that was all; -errno. */
int pn_dir_next(pn_dir *dir, pn_dir_item *item);
void pn_dir_close(pn_dir *dir);

/* cffi:end */

#ifdef __cplusplus
}
#endif
#endif
