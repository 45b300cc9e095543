/*
 * journal.h - what was noted is written to the segment's log.
 *
 * Everything needs the writer lock; what changes something `topics_dirty`.
 */
#ifndef PN_TOPIC_JOURNAL_H
#define PN_TOPIC_JOURNAL_H

#include "base/os.h"
#include "topic/area.h"

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

/* Is the log being compacted, and the topic in it?  Then this operation does a part of that. */
bool pn_durable_compacts_locked(struct pn_segment *seg, const struct pn_topic *topic);

/* Of this thread: errno of such a sync of fsync="always" that failed; -errno: what the call has
 * done could not be written; 0: neither. */
extern _Thread_local int pn_sync_error PN_TLS_AT_START;
/* The log is to be written again, and the caller is told so; 0. */
int pn_durable_unwritten(struct pn_segment *seg, int rc);
int pn_durable_failed(const struct pn_segment *seg); /* -PN_ESYNC, and its sentence */
/* Why a log could not be written: strerror() of errno, and words for what is none. */
const char *pn_durable_reason(int error);
/* At the end of a call that promises it, whose result is rc; at its beginning it is set to 0. */
static inline int pn_durable_result(const struct pn_segment *seg, int rc)
{
    return __builtin_expect(rc >= 0 && pn_sync_error != 0, 0) ? pn_durable_failed(seg) : rc;
}

#endif
