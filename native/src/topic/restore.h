/* restore.h - durable topics as the log has them, at the first open. */
#ifndef PN_RESTORE_H
#define PN_RESTORE_H

#include "base/moment.h"
#include "files/topic_log.h"
#include "topic/area.h"

/* What replay tells: its numbers of topics and channels, and ours. */
struct pn_restore {
    struct pn_segment *seg;
    struct pn_topic **topic;
    uint32_t topics;
    struct {
        uint32_t topic, channel, index;
    } *channel;
    uint32_t channels;
    struct pn_moment now;
    uint64_t last_id;
    bool alone; /* the writer lock is not held */
};
extern const struct pn_topiclog_replay pn_restore; /* arg: a struct pn_restore */

#endif
