/*
 * tombstones.h - records on disk that are cancelled.
 *
 * Everything needs the writer lock and, where something changes, `topics_dirty`.
 */
#ifndef PN_TOPIC_TOMBSTONES_H
#define PN_TOPIC_TOMBSTONES_H

#include "topic/area.h"
#include "topic/queues.h"

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

#endif
