/*
 * on_disk.h - messages in the files of a topic: written, looked at, forgotten.
 *
 * Everything needs the writer lock and, where something changes, `topics_dirty`.
 */
#ifndef PN_TOPIC_ON_DISK_H
#define PN_TOPIC_ON_DISK_H

#include <string.h>

#include "base/moment.h"
#include "topic/area.h"
#include "topic/message.h"
#include "topic/queues.h"

/* May messages of that topic go to files at all? */
bool pn_topic_may_spill(const struct pn_segment *seg, const struct pn_topic *topic);

/* Write one behind those staged so far (*seq 0: none); not there before the commit. */
int pn_topic_spill_stage_locked(struct pn_segment *seg, struct pn_topic *topic,
                                const struct pn_new_message *m, const struct pn_moment *now,
                                uint64_t *seq);

/* What stands in a record before deliveries, headers and body. */
struct pn_spilled {
    uint64_t id;
    int64_t published_ns, published_mono, due, expires;
    uint32_t headers_len, body_len;
    uint32_t fanned_out, deliveries; /* 1: it was given to its channels, and is still to so many */
};

/* Records of one batch, which are written some at a time: so many, or as soon as they have so many
 * bytes.  What they hold stays where it is until then.  Others may not write to that queue
 * meanwhile. */
enum { PN_TOPIC_GATHER = 128, PN_TOPIC_GATHER_BYTES = 256 << 10 };
struct pn_topic_gathered {
    struct pn_topic *topic;
    struct pn_diskqueue *queue;
    uint64_t seq; /* the queue goes on to there with those that are written; 0: none is */
    uint64_t bytes;
    uint32_t n; /* that are not written */
    bool fresh; /* as each of them is */
    struct pn_record_in record[PN_TOPIC_GATHER];
    struct pn_spilled head[PN_TOPIC_GATHER];
};
/* None so far, of the queue that these bits say (pn_topic_queue()). */
void pn_topic_gather(struct pn_topic *topic, uint64_t queue, struct pn_topic_gathered *to);
/* One more; it may be written at once.  -errno: the batch is to be dropped. */
int pn_topic_gather_locked(struct pn_segment *seg, struct pn_topic_gathered *g,
                           const struct pn_new_message *m, const struct pn_moment *now);
/* All are written, and up to the caller's commit. */
int pn_topic_gathered_stage_locked(struct pn_segment *seg, struct pn_topic_gathered *g);
/* None is, and the files are as long as before. */
void pn_topic_gathered_drop_locked(struct pn_segment *seg, struct pn_topic_gathered *g);

/* It is the commit point, or comes after it; again and again if need be. */
void pn_topic_spill_commit_locked(struct pn_segment *seg, struct pn_topic *topic, uint64_t seq);

uint64_t pn_topic_disk_bytes(const struct pn_topic *topic); /* of bodies and headers */

/* The error of it, -PN_ETOPICFULL, where so many bytes more are refused. */
int pn_topic_disk_full(const struct pn_topic *topic, uint64_t more);

/* What a message that was given to its channels already still is to one of them. */
struct pn_spilled_delivery {
    uint32_t channel, generation; /* index; which use of that record */
    uint64_t
        order;   /* it was to have that one; below the channel's discarded_below: emptied since */
    int64_t due; /* CLOCK_MONOTONIC, or 0 */
    uint32_t attempts, unused;
};
struct pn_spilled_deliveries {
    const void *bytes; /* of n of them, anyhow aligned */
    uint32_t n;
};
/* The i-th; false: its channel does not want it any more. */
bool pn_spilled_delivery_locked(const struct pn_segment *seg, const struct pn_topic *topic,
                                const struct pn_spilled_deliveries *given, uint32_t i,
                                struct pn_spilled_delivery *out);

/* One of before the segment was made, which is still the topic's own. */
int pn_topic_spill_again_locked(struct pn_segment *seg, struct pn_topic *topic,
                                const struct pn_new_message *m, const struct pn_moment *then);

/* What stands on disk, for a look through it. */
struct pn_topic_on_disk {
    uint64_t seq;
    uint32_t bytes;
    bool there;           /* else it is cancelled, or nothing that we have written */
    bool given;           /* to these channels already */
    int64_t due, expires; /* CLOCK_MONOTONIC, or 0; until when all of it is deferred */
    struct pn_new_message m;
    struct pn_moment then;
    struct pn_spilled_deliveries deliveries;
};
/*
 * The next record at *cursor (at first zeros): 1, and its bytes are good until files are read
 * again; 0: there is none; -EAGAIN: call again; -errno.
 */
int pn_topic_disk_look_locked(struct pn_segment *seg, struct pn_topic *topic,
                              struct pn_diskqueue_cursor *cursor, struct pn_topic_on_disk *out);

/* Queues and our descriptors, ready to be used; -PN_ECORRUPT: they cannot be what they say. */
int pn_topic_use_files_locked(struct pn_segment *seg, struct pn_topic *topic);
/* Of a record of the topic's `rest`, as pn_topic_spill_stage_locked(). */
int pn_rest_stage_locked(struct pn_segment *seg, struct pn_topic *topic,
                         const struct pn_new_message *m, const struct pn_moment *now,
                         uint64_t *seq);
/* The same of one that only these channels are to get. */
int pn_rest_stage_given_locked(struct pn_segment *seg, struct pn_topic *topic,
                               const struct pn_new_message *m, const struct pn_moment *then,
                               const struct pn_spilled_deliveries *given, uint64_t *seq);
/* The redo record says that the topic's own queue has moved past that record. */
void pn_topic_disk_redo_set_locked(struct pn_segment *seg, const struct pn_topic *topic,
                                   const struct pn_record_out *record);

/*
 * In one hold of the lock so much is moved between memory and the files of all topics, and one
 * record more: records that are read, and their bytes; bytes of those that go to `later`, or from
 * a backlog to `rest`; messages that later.c looks at.  What is left to do is `refilling`, and goes
 * on in the next hold.
 */
enum {
    PN_MOVE_RECORDS = PN_TOPIC_STEPS,
    PN_MOVE_READ = 1 << 20,
    PN_MOVE_WRITTEN = 128 << 10,
    PN_MOVE_LOOKS = 2048
};
/* May one more be read; written; or looked at, and then written? */
static inline bool pn_topic_may_read_locked(const struct pn_segment *seg)
{
    pn_assert_topics_held(seg);
    const struct pn_moved *moved = &pn_topics_hold(seg)->moved;
    return moved->records < PN_MOVE_RECORDS && moved->read < PN_MOVE_READ;
}
static inline bool pn_topic_may_write_locked(const struct pn_segment *seg)
{
    pn_assert_topics_held(seg);
    return pn_topics_hold(seg)->moved.written < PN_MOVE_WRITTEN;
}
static inline bool pn_topic_may_look_locked(const struct pn_segment *seg)
{
    pn_assert_topics_held(seg);
    return pn_topics_hold(seg)->moved.looks < PN_MOVE_LOOKS && pn_topic_may_write_locked(seg);
}
static inline void pn_topic_has_read_locked(struct pn_segment *seg, uint64_t bytes)
{
    pn_assert_topics_held(seg);
    struct pn_moved *moved = &pn_topics_hold(seg)->moved;
    moved->records++;
    moved->read += bytes;
}
static inline void pn_topic_has_written_locked(struct pn_segment *seg, uint64_t bytes)
{
    pn_assert_topics_held(seg);
    pn_topics_hold(seg)->moved.written += bytes;
}

/* Those that are the topic's own are forgotten.  -errno: nothing is. */
int pn_topic_disk_empty_locked(struct pn_segment *seg, struct pn_topic *topic);
/* All of them are. */
void pn_topic_disk_delete_locked(struct pn_segment *seg, struct pn_topic *topic);

/* The files of all topics, when the segment is unlinked. */
void pn_topics_remove_files(struct pn_segment *seg);

int pn_later_stage_locked(struct pn_segment *seg, struct pn_topic *topic,
                          const struct pn_new_message *m, const struct pn_moment *then,
                          const struct pn_spilled_deliveries *given, uint64_t *seq);

int pn_later_look_locked(struct pn_segment *seg, struct pn_topic *topic,
                         struct pn_diskqueue_cursor *cursor, struct pn_topic_on_disk *out);
int pn_rest_look_locked(struct pn_segment *seg, struct pn_topic *topic,
                        struct pn_diskqueue_cursor *cursor, struct pn_topic_on_disk *out);

/* A full disk is -PN_EDISKFULL; else rc. */
int pn_disk_result(const struct pn_segment *seg, int rc);

/* Bytes of its deliveries. */
static inline uint64_t pn_spilled_given_bytes(const struct pn_spilled *head)
{
    return (uint64_t) head->deliveries * sizeof(struct pn_spilled_delivery);
}

/* Of the i-th delivery, as the record says. */
static inline uint32_t pn_spilled_channel(const struct pn_spilled_deliveries *given, uint32_t i)
{
    struct pn_spilled_delivery d;
    memcpy(&d.channel, (const char *) given->bytes + i * sizeof d, sizeof d.channel);
    return d.channel;
}

/* May `bytes` in n records be added to the queue, behind what is staged if seq is not 0? */
int pn_topic_disk_admit(const struct pn_topic *topic, const struct pn_diskqueue *queue,
                        uint64_t seq, uint64_t bytes, uint64_t n);
/* What a record says; false: nothing that we have written. */
bool pn_spilled_parse(const struct pn_segment *seg, const struct pn_record_out *record,
                      struct pn_spilled *head, struct pn_new_message *m, struct pn_moment *then);

#endif
