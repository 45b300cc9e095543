/*
 * durable.h - durable topics: what happens to them is written to the segment's log.
 *
 * Everything needs the writer lock but pn_durable_sync(); what changes something `topics_dirty`.
 */
#ifndef PN_TOPIC_DURABLE_H
#define PN_TOPIC_DURABLE_H

#include "base/os.h"
#include "files/topic_log.h"
#include "topic/area.h"

/* The directory is there: what the log says is in memory afterwards. */
int pn_durable_start_locked(struct pn_segment *seg);
/* The same for the only thread that makes the topic area (open.c), without the writer lock. */
int pn_durable_start_alone(struct pn_segment *seg);
/* This process uses topics: if some are durable, the directory is kept from other segments. */
int pn_durable_join_locked(struct pn_segment *seg);
/* Is there one, from an earlier segment? */
bool pn_durable_exists(const struct pn_segment *seg);

/* After the lock's release: fsync, as the topics that were written to want it. */
void pn_durable_sync(struct pn_segment *seg, struct pn_topic_sync *sync);

/* What a thread that puts off its syncs owes until it is taken, with a reference to the segment. */
struct pn_sync {
    struct pn_segment *seg;
    struct pn_topic_sync sync;
};
/* The connection whose syncs the thread puts off, or NULL; and that whose call it is in. */
extern _Thread_local const struct pn_conn *pn_puts_off PN_TLS_AT_START;
extern _Thread_local const struct pn_conn *pn_calling PN_TLS_AT_START;
extern _Thread_local struct pn_sync *pn_put_off PN_TLS_AT_START;
int pn_durable_wait(struct pn_sync *sync); /* and it is freed */

void pn_durable_close(struct pn_segment *seg);

#endif
