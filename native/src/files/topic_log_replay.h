/* topic_log_replay.h - reading the log of durable topics. */
#ifndef PN_TOPIC_LOG_REPLAY_H
#define PN_TOPIC_LOG_REPLAY_H

#include "files/topic_log.h"

/* topic_log_replay.c: what the records from `from` on say. */
int pn_topiclog_read(struct pn_topiclog_files *files, const struct pn_diskqueue_state *from,
                     const struct pn_topiclog_replay *replay, void *arg, uint64_t *damaged);

/* The same in steps: topics and channels are told by begin(), and a message by each next(), which
 * returns 1, 0 when there are no more, or -errno.  *damaged grows as it is found. */
struct pn_topiclog_reading;
int pn_topiclog_begin(struct pn_topiclog_files *files, const struct pn_diskqueue_state *from,
                      const struct pn_topiclog_replay *replay, void *arg, uint64_t *damaged,
                      struct pn_topiclog_reading **out);
int pn_topiclog_next(struct pn_topiclog_reading *reading);
void pn_topiclog_end(struct pn_topiclog_reading *reading);

#endif
