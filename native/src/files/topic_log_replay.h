/* topic_log_replay.h - reading the log of durable topics. */
#ifndef PN_TOPIC_LOG_REPLAY_H
#define PN_TOPIC_LOG_REPLAY_H

#include "files/topic_log.h"

/* topic_log_replay.c: what the records from `from` on say. */
int pn_topiclog_read(struct pn_topiclog_files *files, const struct pn_diskqueue_state *from,
                     const struct pn_topiclog_replay *replay, void *arg, uint64_t *damaged);

#endif
