/*
 * cursors.h - which channels of a topic rest, and where each stands in the topic's `rest`.
 *
 * Everything needs the writer lock and, where something changes, `topics_dirty`.
 */
#ifndef PN_TOPIC_CURSORS_H
#define PN_TOPIC_CURSORS_H

#include "topic/on_disk.h"

/* Channels that are not ephemeral. */
uint32_t pn_topic_firm_channels(const struct pn_segment *seg, const struct pn_topic *topic);
/* May channels of the topic rest? */
bool pn_rest_may(const struct pn_segment *seg, const struct pn_topic *topic);
/* And does what is published go to the channels at once? */
bool pn_rest_runs(const struct pn_segment *seg, const struct pn_topic *topic);

/* How many it has on disk. */
uint64_t pn_rest_depth(const struct pn_segment *seg, const struct pn_topic *topic,
                       const struct pn_topic_channel *ch);
/* The channel has nothing there any more. */
void pn_rest_empty_locked(struct pn_segment *seg, struct pn_topic_channel *ch);

/* What a valid redo record says of cursors. */
void pn_rest_redo_locked(struct pn_segment *seg);

/* Is the record the channel's, which has not passed it? */
bool pn_rest_has(const struct pn_segment *seg, const struct pn_topic *topic,
                 const struct pn_topic_channel *ch, const struct pn_topic_on_disk *record);

/* Do the next n messages of the topic have to go to its own files? */
bool pn_topic_spills_locked(const struct pn_segment *seg, const struct pn_topic *topic, size_t n);

/* What a valid redo record says of a queue on disk. */
void pn_topic_disk_redo_locked(struct pn_segment *seg);

/* The channel's cursor, if it has one; and the store that moves it. */
const struct pn_rest_cursor *pn_rest_cursor_of(const struct pn_topic_channel *ch);
void pn_rest_cursor_set(struct pn_topic_channel *ch, const struct pn_diskqueue_cursor *to,
                        uint64_t others);
/* It rests from the end of the files on, `staged`: behind what is staged there. */
void pn_rest_begin(const struct pn_topic *topic, struct pn_topic_channel *ch, bool staged);
/* Has it something there that it is to get? */
bool pn_rests(const struct pn_topic *topic, const struct pn_topic_channel *ch);
/* Is it one of those that a record names?  Then *d is its own. */
bool pn_rest_is_named(const struct pn_segment *seg, const struct pn_topic *topic,
                      const struct pn_topic_channel *ch, const struct pn_topic_on_disk *record,
                      struct pn_spilled_delivery *d);
/* Those that have come to the end rest no more; before something is written behind it. */
void pn_rest_cursors_settle_locked(const struct pn_segment *seg, const struct pn_topic *topic);
/* The files go on to the last cursor (rest.c 6). */
void pn_rest_cursors_follow_locked(struct pn_segment *seg, struct pn_topic *topic);

#endif
