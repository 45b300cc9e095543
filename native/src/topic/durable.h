/*
 * durable.h - durable topics: what happens to them is written to the segment's log.
 *
 * Everything needs the writer lock but pn_durable_sync(); what changes something `topics_dirty`.
 */
#ifndef PN_TOPIC_DURABLE_H
#define PN_TOPIC_DURABLE_H

#include "base/moment.h"
#include "files/topic_log.h"
#include "topic/area.h"
#include "topic/message.h"

/* The directory is there: what the log says is in memory afterwards. */
int pn_durable_start_locked(struct pn_segment *seg);
/* The same for the only thread that makes the topic area (open.c), without the writer lock. */
int pn_durable_start_alone(struct pn_segment *seg);
/* This process uses topics: if some are durable, the directory is kept from other segments. */
int pn_durable_join_locked(struct pn_segment *seg);
/* Is there one, from an earlier segment? */
bool pn_durable_exists(const struct pn_segment *seg);

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
/* Is the log being compacted, and the topic in it?  Then this operation does a part of that. */
bool pn_durable_compacts_locked(struct pn_segment *seg, const struct pn_topic *topic);
void pn_durable_note_emptied_locked(struct pn_segment *seg, const struct pn_topic_channel *ch);
/* By a commit: what an answer makes of a delivery; the end of a deferred message. */
void pn_durable_note_answer_locked(struct pn_segment *seg, uint32_t delivery,
                                   const struct pn_answer_redo *redo);
void pn_durable_note_cancelled_locked(struct pn_segment *seg, const struct pn_topic *topic,
                                      uint64_t id, bool happened);
/* A staged message; and one that is staged on disk. */
void pn_durable_note_publish_locked(struct pn_segment *seg, uint32_t ref);
void pn_durable_note_spilled_locked(struct pn_segment *seg, const struct pn_topic *topic,
                                    const struct pn_new_message *m, const struct pn_moment *now,
                                    bool given); /* to the channels of this moment */
/* One that was not is given to them, some of which have it on disk. */
void pn_durable_note_given_locked(struct pn_segment *seg, const struct pn_topic *topic,
                                  const struct pn_new_message *m, const struct pn_moment *then);

/* Write what was noted.  -errno: nothing of it is written; the next flush writes all again if some
 * of it has happened already, and the caller of a call that promises it is told.  On a full disk
 * only what has not happened yet is refused. */
int pn_durable_flush_locked(struct pn_segment *seg);
/* What has not happened yet is not noted any more. */
void pn_durable_forget_locked(struct pn_segment *seg);
/* The same at the end of an operation. */
void pn_durable_end_locked(struct pn_segment *seg);

/* Topics are closed: a step of writing the log again; false: it is, or it cannot be written, and
 * `log_behind` stands. */
bool pn_durable_anew_locked(struct pn_segment *seg, bool first);

/* After the lock's release: fsync, as the topics that were written to want it. */
void pn_durable_sync(struct pn_segment *seg, struct pn_topic_sync *sync);

/* Of this thread: errno of such a sync of fsync="always" that failed; -errno: what the call has
 * done could not be written; 0: neither. */
extern _Thread_local int pn_sync_error __attribute__((tls_model("initial-exec")));
/* The log is to be written again, and the caller is told so; 0. */
int pn_durable_unwritten(struct pn_segment *seg, int rc);
int pn_durable_failed(const struct pn_segment *seg); /* -PN_ESYNC, and its sentence */
/* At the end of a call that promises it, whose result is rc; at its beginning it is set to 0. */
static inline int pn_durable_result(const struct pn_segment *seg, int rc)
{
    return __builtin_expect(rc >= 0 && pn_sync_error != 0, 0) ? pn_durable_failed(seg) : rc;
}

/* What a thread that puts off its syncs owes until it is taken, with a reference to the segment. */
struct pn_sync {
    struct pn_segment *seg;
    struct pn_topic_sync sync;
};
/* The connection whose syncs the thread puts off, or NULL; and that whose call it is in. */
extern _Thread_local const struct pn_conn *pn_puts_off __attribute__((tls_model("initial-exec")));
extern _Thread_local const struct pn_conn *pn_calling __attribute__((tls_model("initial-exec")));
extern _Thread_local struct pn_sync *pn_put_off __attribute__((tls_model("initial-exec")));
int pn_durable_wait(struct pn_sync *sync); /* and it is freed */

void pn_durable_close(struct pn_segment *seg);

#endif
