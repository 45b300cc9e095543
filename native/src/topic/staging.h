/*
 * staging.h - messages that are written, and become live.
 *
 * Everything needs the writer lock and, where something changes, `topics_dirty`.
 */
#ifndef PN_TOPIC_STAGING_H
#define PN_TOPIC_STAGING_H

#include "base/moment.h"
#include "topic/on_disk.h"

/* Write it, with its deliveries, STAGED; 0: no memory. */
uint32_t pn_message_stage_locked(struct pn_segment *seg, struct pn_topic *topic,
                                 const struct pn_new_message *m, const struct pn_moment *now,
                                 bool backlog);
/* The same, if there is room once messages are dropped that only ephemeral channels have. */
uint32_t pn_message_stage_firm_locked(struct pn_segment *seg, struct pn_topic *topic,
                                      const struct pn_new_message *m, const struct pn_moment *now,
                                      bool backlog);

/* One that was there before: STAGED, without deliveries if not in the backlog; then those. */
uint32_t pn_message_restore_begin_locked(struct pn_segment *seg, struct pn_topic *topic,
                                         const struct pn_new_message *m,
                                         const struct pn_moment *then, bool backlog, bool shared);
bool pn_message_restore_delivery_locked(struct pn_segment *seg, uint32_t ref, uint32_t channel,
                                        int64_t due, uint32_t attempts);
/* Not published after all. */
void pn_message_unstage_locked(struct pn_segment *seg, uint32_t ref);
/* It is LIVE now: into the lists with it. */
void pn_message_link_locked(struct pn_segment *seg, uint32_t ref);
/* A chain of staged ones, whose commit point has passed: LIVE, and into the lists. */
void pn_message_golive_locked(struct pn_segment *seg, uint32_t ref);

/* One delivery more of a message that is staged, or is pumped.  False: no memory. */
bool pn_message_add_delivery_locked(struct pn_segment *seg, struct pn_message *m, uint32_t ref,
                                    struct pn_topic_channel *ch, int64_t due);

/* In memory again, STAGED, for the channels that still want it; 0: there is no room, `shared`: none
 * in the topic's share. */
uint32_t pn_topic_stage_given_locked(struct pn_segment *seg, struct pn_topic *topic,
                                     const struct pn_new_message *m, const struct pn_moment *then,
                                     const struct pn_spilled_deliveries *given, int64_t now,
                                     bool shared);

/* Of a message that is pumped: what was written for channels after `before` is not there. */
void pn_pump_give_back_locked(struct pn_segment *seg, struct pn_message *m, uint32_t before);

/* Does each channel there is go without a message, if it must? */
bool pn_topic_all_ephemeral(const struct pn_segment *seg, const struct pn_topic *topic);

#endif
