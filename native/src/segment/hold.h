/*
 * hold.h - what one hold of the writer lock collects, to be done when it is over.
 *
 * 1. It stands on the holder's stack: pn_lock_acquire() begins it, functions further down fill it
 *    through `seg->hold`, pn_lock_release() ends it and does what was collected, without the lock.
 * 2. `seg->hold` is written by the holder alone, and looked at by the holder alone: pn_hold_of()
 *    asserts so.  After the release its owner may still read it.
 * 3. A recovery runs within the hold of the successor that repairs.  If it fails, the hold ends
 *    there, and what it has collected so far is done like any other.
 * 4. The thread that makes the topic area has no writer lock while it does so (topic/open.c), and
 *    others may take it: so it has a hold of its own, `seg->topics.opening`.
 * 5. Nothing of it is shared memory: what a killed holder leaves undone is found there (`owed`,
 *    `woken`, the waits of consumers, `log_behind`).  A forked child forgets the pointer.
 */
#ifndef PN_HOLD_H
#define PN_HOLD_H

#include "segment/segment.h"

enum { PN_TOPIC_WAKES = 16, PN_LENGTHENED = 8 };

enum pn_hold_end {
    PN_RESIGNAL = 1,       /* there was a recovery: signal everything owed */
    PN_TELL_BRIDGES = 2,   /* a channel has got its first listener, or lost its last */
    PN_WAKE_CONSUMERS = 4, /* those in `wake` */
    PN_SYNC_LOG = 8,       /* as `sync` says */
    PN_REPAIR = 16,        /* topics were closed: finish what opens them again */
    PN_REMOVE_FILES = 32,  /* those below `files_end`, which the tail has left */
    PN_TELL_WATCHERS = 64, /* in front of the slots in `lengthened` */
    PN_REAP = 128          /* a dead slot is not free yet: go on with it */
};

/* What was written to the log of topics and is to be synced. */
struct pn_topic_sync {
    uint32_t policy;              /* 0: nothing */
    struct pn_topiclog_kept kept; /* of PN_FSYNC_ALWAYS */
};

struct pn_topic_notes;

/* What was moved between memory and files so far (topic/overflow.h). */
struct pn_moved {
    uint32_t records, looks;
    uint64_t read, written;
};

struct pn_hold {
    uint32_t at_end; /* enum pn_hold_end: what is to be done */
    uint32_t nwakes; /* slots with notified consumers; > PN_TOPIC_WAKES: all that are notified */
    uint32_t wake[PN_TOPIC_WAKES];
    /* slots of watchers that were reaped and live: walks end at them no more.  Of more of them the
     * watchers learn as they go to sleep, or by the slow timer: one process has lost its locks */
    uint32_t nlengthened, lengthened[PN_LENGTHENED];
    struct pn_topic_sync sync;
    uint64_t files_end;           /* of PN_REMOVE_FILES */
    struct pn_topic_notes *notes; /* time-outs, for the holder's latency log; NULL: it has none */
    struct pn_moved moved;
    uint32_t returned; /* messages of consumers that are no more */
    bool told;         /* the log of topics was told before the commit of what is done now */
};

#endif
