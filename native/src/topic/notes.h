/*
 * notes.h - what happens to a durable topic is noted in this process's memory, until the log is
 * told (journal.h).
 *
 * Everything needs the writer lock.
 */
#ifndef PN_TOPIC_NOTES_H
#define PN_TOPIC_NOTES_H

#include "base/moment.h"
#include "files/topic_log.h"
#include "topic/area.h"
#include "topic/message.h"

/* Bits of `noted`: there is something to be written; and to be compacted, when memory says what
 * the log does: what a commit has written it has not done yet. */
enum { PN_NOTED = 1, PN_GROWN = 2 };

static inline bool pn_is_durable(const struct pn_segment *seg, const struct pn_topic *topic)
{
    return __builtin_expect(topic->durable != 0, 0) && seg->topics.ctl->log_ready != 0;
}

/* What is noted is written by the next flush, all of it or nothing. */
void pn_durable_note_topic_locked(struct pn_segment *seg, const struct pn_topic *topic);
void pn_durable_note_channel_locked(struct pn_segment *seg, const struct pn_topic_channel *ch);
/* PN_LOG_DELIVERED, _REQUEUED, _FINISHED of a delivery as it is now; in a backlog, CANCELLED. */
void pn_durable_note_delivery_locked(struct pn_segment *seg, uint32_t kind, uint32_t delivery);
/* The message was given to the channels of this moment. */
void pn_durable_note_fanned_out_locked(struct pn_segment *seg, const struct pn_message *m);
/* What is in the channel, or in a backlog what is the topic's own, is forgotten. */
void pn_durable_note_emptied_locked(struct pn_segment *seg, const struct pn_topic_channel *ch);
/* By a commit: what an answer makes of a delivery; the end of a deferred message. */
void pn_durable_note_answer_locked(struct pn_segment *seg, uint32_t delivery,
                                   const struct pn_answer_redo *redo);
void pn_durable_note_cancelled_locked(struct pn_segment *seg, const struct pn_topic *topic,
                                      uint64_t id, bool happened);
/* The same of one channel: others may have it still. */
void pn_durable_note_ended_locked(struct pn_segment *seg, const struct pn_topic *topic, uint64_t id,
                                  uint32_t channel, bool happened);
/* A staged message; and one that is staged on disk. */
void pn_durable_note_publish_locked(struct pn_segment *seg, uint32_t ref);
void pn_durable_note_spilled_locked(struct pn_segment *seg, const struct pn_topic *topic,
                                    const struct pn_new_message *m, const struct pn_moment *now,
                                    bool given); /* to the channels of this moment */
/* One that was not is given to them, some of which have it on disk. */
void pn_durable_note_given_locked(struct pn_segment *seg, const struct pn_topic *topic,
                                  const struct pn_new_message *m, const struct pn_moment *then);

/* Without these a message comes again with the attempts or the delay that it had before. */
static inline bool pn_note_may_be_left_out(uint32_t kind)
{
    return kind == PN_LOG_DELIVERED || kind == PN_LOG_REQUEUED;
}

/* Our descriptors of the log, ready to be used; what is noted needs them as well. */
int pn_durable_open_files(struct pn_segment *seg);

#endif
