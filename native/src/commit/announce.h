/*
 * announce.h - one commit on its way, and telling the slots that it interests (steps f to i).
 */
#ifndef PN_ANNOUNCE_H
#define PN_ANNOUNCE_H

#include "commit/async.h"
#include "queue/queue.h"

enum { PN_WAKE_LIST = 256 };

/* One commit on its way; on the stack. */
struct pn_commit {
    struct pn_conn *conn;
    const unsigned char *arena; /* payload_off of the events is relative to it */
    struct pn_pending_event *events;
    size_t nevents;
    const struct pn_pending_headers *headers; /* of some of them */
    size_t nheaders;
    struct pn_pending_channel *channels;
    size_t nchannels;
    struct pn_pending_bump *bumps; /* each counter once */
    size_t nbumps;
    size_t nops;        /* of the transaction's: what it does to topics */
    uint32_t messages;  /* the chain of what it publishes */
    struct pn_txn *txn; /* NULL: a single notification, without LISTEN or UNLISTEN */
    uint64_t collapsed;
    enum pn_entry_kind kind; /* of the events */
    uint32_t upstream;       /* one of the channels goes upstream (bridge.c 3) */
    uint64_t xid;
    int64_t now;
    uint32_t nwake;
    uint32_t signals; /* how many backends are to be signalled for this commit */
    bool heard;       /* one of the channels has a listener */
    bool overflow;    /* more interested backends than wake[] holds */
    bool wakes_us;    /* our own latch is to be set */
    bool stream;      /* this connection committed just before: the chain may do some of the work */
    bool flush;       /* deferred signals have waited too long */
    bool deferred;    /* this commit deferred some */
    bool leaves;      /* nothing is listened to any more: our watchers look further */
    int heads;        /* of the chain */
    int32_t head_pid; /* the last of them */
    uint32_t wake[PN_WAKE_LIST];
};

/* Of its entries. */
static inline struct pn_entry_stamp pn_commit_stamp(const struct pn_commit *c)
{
    const struct pn_conn *conn = c->conn;
    return (struct pn_entry_stamp) {.xid = c->xid,
                                    .now = c->now,
                                    .dboid = conn->dboid,
                                    .pid = conn->src_pid,
                                    .slot = conn->slot,
                                    .generation = conn->src_generation};
}

/* Steps f to h: from and want, the counters, the fence, un-sleeping, woken.  Lock held. */
void pn_announce_locked(struct pn_commit *c, QueuePosition begin, QueuePosition end);
/* How many connections it was announced to since they listen; bridges apart.  Lock held. */
uint32_t pn_count_listeners_locked(const struct pn_commit *c);
/* Step i: the signals.  Lock not held. */
void pn_signal_collected(struct pn_commit *c);

#endif
