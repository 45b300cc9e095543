/*
 * topic_log.h - the log of a segment's durable topics, and what it says when it is read again.
 *
 *     rc = pn_topiclog_open(&files, data_dir, segment, longest, &source);   each process
 *     rc = pn_topiclog_start(log, &files, instance, max_file, &replay, arg, &damaged);    once
 *     rc = pn_topiclog_append(log, &files, records, n, &seq);   all of a transaction, or nothing
 *     rc = pn_topiclog_sync(log, &files, seq);                  without the lock
 *     rc = pn_topiclog_compact(log, &files, live_bytes, 64);    now and then
 *
 * One log for all topics, so that a transaction over several is one batch and a group of commits
 * one fsync.  The caller holds the writer lock but where something else is said.  topic_log.c has
 * the model.  0 or -errno with a sentence.
 */
#ifndef PN_TOPICLOG_H
#define PN_TOPICLOG_H

#include "files/diskqueue.h"

#define PN_TOPICLOG_COMPACT  (16U << 20)  /* bytes */
#define PN_TOPICLOG_OVER     (128U << 20) /* the same; 5 */
#define PN_TOPICLOG_STEP     (256U << 10) /* bytes that are carried in one hold of the lock, */
#define PN_TOPICLOG_LOOKS    1024U        /* and calls of `carry`, which may find nothing */
#define PN_TOPICLOG_LATER    2
#define PN_TOPICLOG_CURSOR   6            /* words */
#define PN_TOPICLOG_INTERVAL 1000000000LL /* ns between two syncs of fsync="interval" */

/* A record's type.  Times are CLOCK_REALTIME in ns, 0: none. */
enum pn_log_kind {
    PN_LOG_OPENED = 1,    /* struct pn_log_opened; every file begins with one */
    PN_LOG_TOPIC,         /* struct pn_log_topic: there is one of this number, and what it is now */
    PN_LOG_TOPIC_DELETED, /* struct pn_log_delivery, of which only the topic counts */
    PN_LOG_CHANNEL,       /* struct pn_log_channel, likewise */
    PN_LOG_CHANNEL_DELETED, /* struct pn_log_delivery: topic and channel */
    PN_LOG_PUBLISH,         /* struct pn_log_message, headers, body */
    PN_LOG_CARRIED,    /* the same and its deliveries: what it is now, whatever was said before */
    PN_LOG_FANNED_OUT, /* struct pn_log_delivery[]: it is given to the channels of this moment */
    PN_LOG_DELIVERED,  /* struct pn_log_delivery[]: attempts */
    PN_LOG_FINISHED,   /* struct pn_log_delivery[]: this channel has done with it, however */
    PN_LOG_REQUEUED,   /* struct pn_log_delivery[]: attempts and due */
    PN_LOG_EMPTIED,    /* struct pn_log_delivery: topic and channel, PN_LOG_TOPICS_OWN: its own;
                        * of a channel what was given to it before */
    PN_LOG_CANCELLED,  /* struct pn_log_delivery[]: no channel gets it */
    PN_LOG_DROPPED,    /* struct pn_log_dropped: what older files say, and only they, is over */
    PN_LOG_KINDS
};
#define PN_LOG_TOPICS_OWN UINT32_MAX

struct pn_log_opened {
    uint64_t instance;            /* of the segment */
    uint64_t last_file, last_end; /* what stands behind that in an older file does not count */
};
struct pn_log_dropped {
    uint64_t file; /* with all that is live in it, or behind it */
};
struct pn_log_topic {
    uint32_t topic; /* number: from the last OPENED of another instance on */
    uint32_t paused, fsync, overflow;
    uint64_t max_depth;
    uint32_t database_len, name_len; /* followed by both, then pn_log_limits */
};
/* Behind the names, since logs of before have nothing there: as much of it as the record has room
 * for, the rest is 0.  What is added is added at its end. */
struct pn_log_limits {
    int64_t default_ttl; /* ns */
    uint64_t max_memory;
    uint64_t max_disk_bytes;
};
struct pn_log_channel {
    uint32_t topic, channel, paused, name_len;
    uint64_t max_consumers; /* followed by the name, then pn_log_defaults */
};
struct pn_log_defaults { /* as pn_log_limits */
    uint32_t given, max_attempts, dead_letter_len, unused;
    int64_t msg_timeout; /* ns */
    char dead_letter[64];
};
struct pn_log_delivery {
    uint64_t id;
    int64_t due;
    uint32_t topic, channel, attempts, unused;
};
struct pn_log_message {
    uint64_t id;
    int64_t published, due, expires;
    uint32_t topic;
    uint32_t fanned_out;    /* 1: given to the topic's channels of this moment */
#define PN_LOG_FANNED_TOO 2 /* of CARRIED: this says nothing of channels that it does not name */
    uint32_t deliveries;    /* of CARRIED: so many pn_log_delivery follow */
    uint32_t headers_len;   /* then headers, then the body */
};

struct pn_topiclog {
    struct pn_diskqueue queue;  /* its records from read_seq on are the log */
    uint64_t instance;          /* of the segment */
    uint64_t random;            /* of the names of its files */
    pn_atomic_u64 written_file; /* W: holder, before `written` */
    pn_atomic_u64 written;      /* records below are committed, in files up to written_file */
    pn_atomic_u64 synced;       /* records below that are on the disk.  W: any (CAS, only up) */
    pn_atomic_u64 synced_file;  /* up to this file, the directory too.  W: any */
    pn_atomic_u64 synced_at;    /* CLOCK_MONOTONIC ns of the last sync */
    pn_atomic_u64 syncs;        /* how many there were */
    /* While it is being compacted; W: holder, compact_file last. */
    uint64_t compact_file, compact_seq, compact_sum, compact_cursor[PN_TOPICLOG_CURSOR];
    uint64_t compactions;
    uint64_t compact_from;  /* bytes; a smaller log is not compacted */
    pn_atomic_u32 failed;   /* errno of a sync that failed since all was written again.  W: any,
                             * before failures; 0: holder */
    pn_atomic_u32 failures; /* syncs that failed, ever.  W: any (an add) */
    uint64_t drop_seq; /* records to be on the disk before dropped files are removed.  W: holder */
};
_Static_assert(sizeof(struct pn_topiclog) == 384, "it is a part of the layout");

/* Of a thread that has written and is to sync after the release of the lock. */
struct pn_topiclog_kept {
    int fd; /* of the file, open since before it was written to; -1: none */
    uint32_t failures;
    uint64_t file;
};

/* What only the owner of the topics knows; called with the lock held. */
struct pn_topiclog_source {
    /* Write TOPIC and CHANNEL for all that there are, with pn_topiclog_emit().  0 or -errno. */
    int (*describe)(void *arg, struct pn_diskqueue_writing *w);
    /* The live message after `cursor` (at first zeros; yours): *record, CARRIED: 1; 0: there is
     * none; PN_TOPICLOG_LATER: none yet, but the cursor has moved, call again; -errno. */
    int (*carry)(void *arg, uint64_t cursor[PN_TOPICLOG_CURSOR], struct pn_record_in *record);
    /* pn_diskqueue_files.owed; NULL: nothing is reserved. */
    uint64_t (*owed)(void *arg, uint64_t more, uint64_t *rest);
    /* Is the directory ours still?  Before a file is made, in the place of any of that name.  0 or
     * -errno; NULL: it is. */
    int (*own)(void *arg);
    void *arg;
};

struct pn_topiclog_gathered;

struct pn_topiclog_files {
    struct pn_diskqueue_files queue;
    struct pn_topiclog_gathered *gathered; /* what a step of compaction writes at once */
    struct pn_topiclog_source source;
    struct pn_log_opened opened; /* what the next file begins with */
};

enum pn_log_damage {
    PN_LOG_UNREADABLE = 1, /* from `at` on so many records: not even their headers are whole */
    PN_LOG_SPOILT,         /* the record at `at`: its body is not what was written */
    PN_LOG_TORN,           /* the record at `at` is whole, another one of its batch is not */
    PN_LOG_MISSING,        /* the file, which something there speaks of */
};

/* What is there when the log is read again; names are not terminated.  Each: 0 or -errno. */
struct pn_topiclog_replay {
    int (*topic)(void *arg, const struct pn_log_topic *topic, const char *database,
                 const char *name);
    int (*channel)(void *arg, const struct pn_log_channel *channel, const char *name);
    /* Right after it, what the topic or channel was set to; may be NULL. */
    int (*limits)(void *arg, const struct pn_log_topic *topic, const struct pn_log_limits *limits);
    int (*defaults)(void *arg, const struct pn_log_channel *channel,
                    const struct pn_log_defaults *defaults);
    /* In the order of ids.  With fanned_out 0 and no deliveries: still the topic's own. */
    int (*message)(void *arg, const struct pn_log_message *message,
                   const struct pn_log_delivery *deliveries, const uint8_t *headers,
                   const uint8_t *body, uint32_t body_len);
    /* Called where something was lost; NULL: the caller does not want to know. */
    void (*damage)(void *arg, enum pn_log_damage why, uint64_t file, uint64_t at, uint64_t records);
};

/* <data_dir>/<segment>, if it is not there. */
int pn_topiclog_make_dir(const char *data_dir, const char *segment);
/* The same, and opens it.  `source` may be NULL if the caller only syncs. */
int pn_topiclog_open(struct pn_topiclog_files *files, const char *data_dir, const char *segment,
                     uint32_t longest, const struct pn_topiclog_source *source);
/* Only to look, at the directory of the log itself: nothing is made, written or removed. */
int pn_topiclog_look(struct pn_topiclog_files *files, const char *path);
void pn_topiclog_close(struct pn_topiclog_files *files);

/*
 * Read what is there, and begin a file of our own.  Topics and channels are described with the
 * numbers they had; from here on those of `source` are used.  *damaged: records that were lost.
 * 1: read, but a full disk has no room for that file: pn_topiclog_write_anew() comes first.
 */
int pn_topiclog_start(struct pn_topiclog *log, struct pn_topiclog_files *files, uint64_t instance,
                      uint64_t max_file, const struct pn_topiclog_replay *replay, void *arg,
                      uint64_t *damaged);

/* Both.  When it returns 0 the kernel has it: no death of processes loses it. */
int pn_topiclog_append(struct pn_topiclog *log, struct pn_topiclog_files *files,
                       const struct pn_record_in *records, size_t n, uint64_t *seq);

/* Was a file that counts removed, or the last one replaced, or cut short? */
bool pn_topiclog_is_gone(struct pn_topiclog *log, struct pn_topiclog_files *files);
/* Records that end what is there, for which there is room (`owed`). */
int pn_topiclog_append_ends(struct pn_topiclog *log, struct pn_topiclog_files *files,
                            const struct pn_record_in *records, size_t n, uint64_t *seq);
/* A full disk has refused something: the next compaction begins as soon as it is worth it. */
static inline void pn_topiclog_starve(struct pn_topiclog *log)
{
    log->queue.starved = 1;
}
/* All that is live into a new file, and the older ones are dropped; or nothing has happened.
 * `least`: bytes that this takes, or fewer. */
int pn_topiclog_write_anew(struct pn_topiclog *log, struct pn_topiclog_files *files,
                           uint64_t least);

static inline int pn_topiclog_emit(struct pn_diskqueue_writing *w,
                                   const struct pn_record_in *record)
{
    return pn_diskqueue_write(w, record, 1);
}

/*
 * Have all records below `seq` on the disk.  No lock is needed, and none should be held.  -EIO:
 * they are written, but whether they are on the disk is not known, and a later sync that succeeds
 * does not tell: they have to be written again.  `kept`, NULL or what pn_topiclog_keep() has kept
 * when the caller had written: then no other process's sync that failed since goes unnoticed.
 */
int pn_topiclog_sync(struct pn_topiclog *log, struct pn_topiclog_files *files, uint64_t seq,
                     const struct pn_topiclog_kept *kept);
/*
 * Of fsync="interval": is it time, `now` being CLOCK_MONOTONIC?  Then the caller, and no other
 * process, is to call pn_topiclog_sync(log, files, UINT64_MAX).  No lock needed.
 */
bool pn_topiclog_sync_due(struct pn_topiclog *log, int64_t now);

/* With the lock, after writing.  `failures`: what they were before.  _forget() closes it. */
void pn_topiclog_keep(const struct pn_topiclog *log, const struct pn_topiclog_files *files,
                      uint32_t failures, struct pn_topiclog_kept *kept);
void pn_topiclog_forget(struct pn_topiclog_kept *kept);

/*
 * Are there files that compaction has dropped?  They are removed by the other, as soon as what
 * was carried over from them is on the disk, or `at_once`.
 */
bool pn_topiclog_is_untidy(const struct pn_topiclog *log);
int pn_topiclog_tidy(struct pn_topiclog *log, struct pn_topiclog_files *files, bool at_once);

/* Whatever is under way, and however little is worth it: a compaction begins with what is live now.
 * When it has ended nothing is left of what the log said before.  1, or -errno. */
int pn_topiclog_begin_anew(struct pn_topiclog *log, struct pn_topiclog_files *files);
/* May the next do anything? */
bool pn_topiclog_may_compact(const struct pn_topiclog *log);
/*
 * A step of compaction, so many messages, PN_TOPICLOG_STEP bytes or PN_TOPICLOG_LOOKS, or its
 * beginning if it is worth it: 1: call again; 0; -errno.  Memory has to say what the log does.
 * Looks are bounded apart from what is carried: on a full disk with nothing left in memory few
 * calls come, and each has to bring the end nearer.
 */
int pn_topiclog_compact(struct pn_topiclog *log, struct pn_topiclog_files *files,
                        uint64_t live_bytes, uint32_t messages);

#endif
