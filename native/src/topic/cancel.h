/*
 * cancel.h - deferred messages that are cancelled, in memory and on disk.
 *
 * Everything needs the writer lock and, where something changes, `topics_dirty`.
 */
#ifndef PN_TOPIC_CANCEL_H
#define PN_TOPIC_CANCEL_H

#include "topic/overflow.h"
#include "topic/rest.h"

/* Which deferred message is looked for, and where it is.  Begins as zeros. */
struct pn_deferred {
    struct pn_diskqueue_cursor cursor; /* how far its topic's queue on disk was looked through */
    bool begun;                        /* that was done */
    uint64_t queue;                    /* of the topic's: 0, PN_REST_SEQ, then PN_LATER_SEQ */
    struct pn_diskqueue_cursor later;  /* there it may have gone since: where that ended */
    uint32_t message;                  /* in memory, or 0 */
    bool on_disk; /* this record; if PN_REST_SEQ is set in it, perhaps in memory as well: */
    uint64_t seq;
    int64_t due; /* until when that record is deferred */
};

/*
 * A message of that id which is deferred, in all its channels, now.  1: *d says where; 0: there is
 * none; -EAGAIN: let go of the lock and call again, as the files are long; -errno.
 */
int pn_deferred_find_locked(struct pn_segment *seg, struct pn_topic *topic, uint64_t id,
                            struct pn_deferred *d);
/* Only in memory: 0: there is none. */
uint32_t pn_deferred_in_memory_locked(struct pn_segment *seg, struct pn_topic *topic, uint64_t id);
/* Whatever a commit has found of it ends: in memory, on disk, or both. */
void pn_cancel_apply_locked(struct pn_segment *seg, uint64_t id, uint32_t message,
                            uint32_t tombstone, uint64_t seq);
/* Has that record a LIVE tombstone? */
bool pn_topic_is_buried_locked(const struct pn_segment *seg, const struct pn_topic *topic,
                               uint64_t seq);
/* Is that record on disk still, and no tombstone on it but a prepared transaction's? */
bool pn_deferred_on_disk_locked(const struct pn_segment *seg, const struct pn_topic *topic,
                                uint64_t seq);

/* A place that is kept for a message in memory has this: no record. */
#define PN_TOMB_NOWHERE (~PN_SEQ_QUEUE)

/*
 * A tombstone in that state, of a PREPARED one the slot of `owner`; its index + 1.  0: there is no
 * room, after pn_fail(PN_ETOPICFULL).
 */
uint32_t pn_tombstone_make_locked(struct pn_segment *seg, struct pn_topic *topic, uint64_t seq,
                                  enum pn_tombstone_state state, const struct pn_conn *owner);
/* Is it the one that this process keeps for a prepared transaction? */
bool pn_tombstone_is_prepared(const struct pn_segment *seg, uint32_t tombstone,
                              const struct pn_conn *owner);
/* Then its commit has begun: after a death from here on it was not prepared. */
void pn_tombstone_stage_locked(struct pn_segment *seg, uint32_t tombstone);
/* A STAGED one is LIVE, or already was. */
void pn_tombstone_bury_locked(struct pn_segment *seg, uint32_t tombstone, uint64_t seq);
void pn_tombstone_free_locked(struct pn_segment *seg, uint32_t tombstone);

static inline struct pn_tombstone *pn_tombstone_at(const struct pn_segment *seg, uint32_t tombstone)
{
    return &seg->topics.ctl
                ->tombstone[tombstone <= PN_TOMBSTONES && tombstone > 0 ? tombstone - 1 : 0];
}

/* How many LIVE ones there are of that record of the topic or later ones, in the same queue. */
uint64_t pn_tombstones_from_locked(const struct pn_segment *seg, const struct pn_topic *topic,
                                   uint64_t seq);
/* The record is another one from now on. */
void pn_tombstones_moved_locked(struct pn_segment *seg, const struct pn_topic *topic, uint64_t from,
                                uint64_t to);
/* LIVE ones whose records the topic's queue has passed go. */
void pn_tombstones_passed_locked(struct pn_segment *seg, struct pn_topic *topic);
/* Those of a slot that is no more go. */
void pn_tombstones_reap_locked(struct pn_segment *seg, uint32_t slot, uint32_t generation);
/* What is derived, from the truth; what died with its maker goes. */
void pn_tombstones_recover_locked(struct pn_segment *seg);

/* In cancel.c.  1, or 0: no message of that id is deferred. */
int pn_message_cancel(struct pn_conn *conn, pn_ref topic, uint64_t id);

#endif
