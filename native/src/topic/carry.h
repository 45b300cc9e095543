/*
 * carry.h - what durable.c and carry.c share: what a process keeps for the log,
 * the records that say what there is, and a new log from them.
 *
 * Everything needs the writer lock.
 */
#ifndef PN_TOPIC_CARRY_H
#define PN_TOPIC_CARRY_H

#include "base/moment.h"
#include "topic/area.h"
#include "topic/message.h"

struct pn_durable_note {
    uint32_t kind;
    bool happened; /* memory has it: the log is behind if it cannot be written */
    size_t off, length;
};

/* Of this process; used with the lock. */
struct pn_durable {
    struct pn_topiclog_files files;
    struct pn_durable_note *note;
    size_t notes, notes_cap;
    uint8_t *bytes;
    size_t used, cap;
    bool failed;               /* no memory for a note */
    bool happened;             /* something of what was noted, but for what may be left out */
    uint32_t policy, failures; /* failures: of syncs, before what is flushed was written */
    uint8_t *scratch;
    size_t scratch_cap;
    int64_t looked; /* for files that were removed; CLOCK_MONOTONIC */
    bool interval;  /* we have written for a topic with fsync="interval" */
};

static inline struct pn_durable *pn_durable_mine(struct pn_segment *seg)
{
    return seg->topics.durable;
}

/* A vector of `cap` elements has room for `need`; NULL: no memory. */
void *pn_durable_room(void **vector, size_t *cap, size_t need, size_t size);

static inline int64_t pn_to_real(const struct pn_moment *now, int64_t mono)
{
    return mono == 0 ? 0 : mono - now->mono + now->real;
}

/* Does the log tell of it? */
static inline bool pn_topic_kept(const struct pn_topic *topic)
{
    return pn_load_relaxed(&topic->state) == PN_RECORD_USED && topic->durable != 0;
}

/* The bodies of PN_LOG_TOPIC and PN_LOG_CHANNEL; their lengths. */
enum {
    PN_TOPIC_RECORD = sizeof(struct pn_log_topic) + 2 * PN_NAME_MAX + 64 +
        sizeof(struct pn_log_limits),
    PN_CHANNEL_RECORD = sizeof(struct pn_log_channel) + 64 + sizeof(struct pn_log_defaults)
};
size_t pn_topic_record(const struct pn_segment *seg, const struct pn_topic *topic,
                       uint8_t out[PN_TOPIC_RECORD]);
size_t pn_channel_record(const struct pn_segment *seg, const struct pn_topic_channel *ch,
                         uint8_t out[PN_CHANNEL_RECORD]);
/* How PN_LOG_PUBLISH and PN_LOG_CARRIED begin, of a message in memory. */
struct pn_log_message pn_message_record(struct pn_segment *seg, const struct pn_message *m);

/* What topic_log.c asks for when it compacts, and for what it reserves; their arg: the segment. */
uint64_t pn_carry_owed(void *arg, uint64_t more, uint64_t *rest);
int pn_carry_describe(void *arg, struct pn_diskqueue_writing *w);
int pn_carry_next(void *arg, uint64_t cursor[PN_TOPICLOG_CURSOR], struct pn_record_in *record);

/* Write the log again, from what is in memory and on disk; the files are open. */
int pn_carry_all_locked(struct pn_segment *seg);
/* A step of compaction, if it is worth it. */
void pn_carry_some_locked(struct pn_segment *seg);
/* A step of the one under way: 1: there is more; 0: all is written; -errno. */
int pn_carry_step_locked(struct pn_segment *seg);

#endif
