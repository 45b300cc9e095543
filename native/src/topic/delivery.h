/*
 * delivery.h - deliveries: where each stands, how it moves, and which consumer is woken for it.
 *
 * Everything needs the writer lock; what changes a delivery also `topics_dirty`.
 */
#ifndef PN_DELIVER_H
#define PN_DELIVER_H

#include "topic/area.h"

/* A delivery that exists and stands nowhere: put it where its state says. */
void pn_delivery_enqueue_locked(struct pn_segment *seg, uint32_t ref);
/* It ceases to exist; its message, too, if it was the last. */
void pn_delivery_end_locked(struct pn_segment *seg, uint32_t ref);
/* What pn_delivery_end_locked() does after its store of the state, which was `was`. */
void pn_delivery_ended_locked(struct pn_segment *seg, uint32_t ref, uint64_t was);

/* Whether a consumer (its slot and the generation of that) gets the message, of so many in 100. */
bool pn_is_sampled(uint64_t id, uint64_t consumer, uint32_t percent);
/* The next one for consumer `ci` of the channel, in flight from now on; 0: none. */
uint32_t pn_delivery_claim_locked(struct pn_segment *seg, uint32_t ci, int64_t now);

/* Where what is in flight goes back to. */
enum pn_back { PN_BACK_TAIL, PN_BACK_HEAD, PN_BACK_LATER };
/* In flight or held -> ready, or deferred until `due` (one entry must be reserved for it). */
void pn_delivery_back_locked(struct pn_segment *seg, uint32_t ref, enum pn_back where, int64_t due,
                             uint32_t attempts);
/* The state words of that move, without making it (for redo records). */
struct pn_answer_redo pn_delivery_back_redo(struct pn_segment *seg, uint32_t ref,
                                            enum pn_back where, int64_t due, uint32_t attempts);
/* Make a move whose words are known: in flight or held -> whatever redo->word says. */
void pn_delivery_apply_locked(struct pn_segment *seg, uint32_t ref,
                              const struct pn_answer_redo *redo);
/* In flight -> held, by a transaction of that slot's; and back, to its consumer if it is there. */
void pn_delivery_hold_locked(struct pn_segment *seg, uint32_t ref, uint32_t slot);
void pn_delivery_unhold_locked(struct pn_segment *seg, uint32_t ref);
/* Whose it is, in flight or held; NULL: that consumer is no more. */
struct pn_consumer_slot *pn_delivery_consumer(const struct pn_segment *seg, uint32_t ref);
/* Out of the backlog into channel `to`, with room for a timed entry reserved there if need be. */
void pn_delivery_take_over_locked(struct pn_segment *seg, uint32_t ref, struct pn_topic_channel *to,
                                  int64_t now, bool timed_reserved);
/* A new deadline. */
void pn_delivery_touch_locked(struct pn_segment *seg, uint32_t ref, int64_t due);

/* What is deferred until then is ready, and what has expired is over; up to `steps`; true: there is
 * more. */
bool pn_topic_channel_expire_locked(struct pn_segment *seg, struct pn_topic_channel *ch,
                                    int64_t now, uint32_t *steps);
/* What was done with a delivery did not take it away: by its own words it stands elsewhere.  True,
 * as the next look finds that. */
bool pn_delivery_stays(struct pn_segment *seg, uint32_t ref);

/* Up to `steps` of what is void in the channel; true: there is more. */
bool pn_topic_channel_sweep_locked(struct pn_segment *seg, struct pn_topic_channel *ch,
                                   uint32_t *steps);

#endif
