/*
 * cancel.h - deferred messages that are cancelled, in memory and on disk.
 *
 * Everything needs the writer lock and, where something changes, `topics_dirty`.
 */
#ifndef PN_TOPIC_CANCEL_H
#define PN_TOPIC_CANCEL_H

#include "files/diskqueue.h"
#include "topic/area.h"

/* Where two queues of a topic ended; what was written to them since stands behind that. */
struct pn_deferred_since {
    struct pn_diskqueue_cursor rest, later;
};

/* Which deferred message is looked for, and where it is.  Begins as zeros. */
struct pn_deferred {
    struct pn_diskqueue_cursor cursor; /* how far its topic's queue on disk was looked through */
    bool begun, ended;                 /* that */
    uint64_t queue;                    /* of the topic's: 0, PN_REST_SEQ, then PN_LATER_SEQ */
    struct pn_diskqueue_cursor rest;   /* and of its `rest`, after that */
    struct pn_deferred_since since;    /* at the beginning */
    uint32_t places;                   /* no more records of it can there be at once */
    uint32_t message;                  /* in memory, or 0 */
    bool on_disk;                      /* this record, which is read from `at` on: */
    struct pn_diskqueue_cursor at;
    uint64_t seq;
    int64_t due; /* until when that record is deferred */
};

/*
 * The next place of a message of that id which is deferred there, now (cancel.c 5).  1: *d says
 * where, and `ended`, whether it was the last one; 0: there is none; -EAGAIN: let go of the lock
 * and call again, as the files are long; -errno.
 */
int pn_deferred_find_locked(struct pn_segment *seg, struct pn_topic *topic, uint64_t id,
                            struct pn_deferred *d);
/* Only in memory: 0: there is none.  And all that is there, as often as a channel has it. */
uint32_t pn_deferred_in_memory_locked(struct pn_segment *seg, struct pn_topic *topic, uint64_t id);
void pn_deferred_copies_locked(struct pn_segment *seg, struct pn_topic *topic, uint64_t id,
                               int64_t now, void (*each)(void *arg, uint32_t ref), void *arg);
/* The next record that was written since; *since is behind it then, and *found says which.  1; 0;
 * -EAGAIN: *since is further on, and *left is 0, which begins as PN_LOOK_BYTES in a hold of the
 * lock; -errno. */
enum { PN_LOOK_BYTES = 1 << 20 };
int pn_deferred_since_locked(struct pn_segment *seg, struct pn_topic *topic, uint64_t id,
                             struct pn_deferred_since *since, uint64_t *left,
                             struct pn_deferred *found);
/* What a commit has found of it ends: a copy in memory, a record on disk, or both. */
void pn_cancel_apply_locked(struct pn_segment *seg, uint64_t id, uint32_t message,
                            uint32_t tombstone, uint64_t seq);

/* 1; 0: no message of that id is deferred; PN_CANCEL_EVERYWHERE: nothing has happened, as it may be
 * in several places, which end together in a transaction. */
enum { PN_CANCEL_EVERYWHERE = 2 };
int pn_message_cancel(struct pn_conn *conn, pn_ref topic, uint64_t id);

#endif
