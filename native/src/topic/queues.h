/*
 * queues.h - the three queues that a topic has on disk, and what stands in them.
 *
 * Its own (overflow.c), the one of channels that rest (rest.c), and the one of deferred messages
 * (later.c).  Everything needs the writer lock.
 */
#ifndef PN_TOPIC_QUEUES_H
#define PN_TOPIC_QUEUES_H

#include "topic/area.h"
#include "topic/settings.h"

/* Numbers of records, as tombstones and cancels have them, are of the one queue or the other. */
#define PN_REST_SEQ  (1ULL << 63)
#define PN_LATER_SEQ (1ULL << 62)
#define PN_SEQ_QUEUE (PN_REST_SEQ | PN_LATER_SEQ)

/* The queue that the number of a record is of, `queue`: the bits that say so. */
static inline const struct pn_diskqueue *pn_topic_queue_of(const struct pn_topic *topic,
                                                           uint64_t seq)
{
    return (seq >> 63) != 0 ? &topic->rest : (seq >> 62) != 0 ? &topic->later : &topic->disk;
}
static inline struct pn_diskqueue *pn_topic_queue(struct pn_topic *topic, uint64_t queue)
{
    return (queue >> 63) != 0 ? &topic->rest : (queue >> 62) != 0 ? &topic->later : &topic->disk;
}

/* Records in files; and those of them that are not cancelled. */
static inline uint64_t pn_topic_on_disk(const struct pn_topic *topic)
{
    return pn_diskqueue_depth(&topic->disk);
}
static inline uint64_t pn_topic_waits_on_disk(const struct pn_topic *topic)
{
    return pn_diskqueue_depth(&topic->disk) - topic->buried;
}

/* The same of deferred messages that left memory (topic/later.c). */
static inline uint64_t pn_topic_later(const struct pn_topic *topic)
{
    return pn_diskqueue_depth(&topic->later);
}
static inline uint64_t pn_topic_waits_later(const struct pn_topic *topic)
{
    return pn_diskqueue_depth(&topic->later) - topic->later_buried;
}
/* When these are to be looked through. */
static inline int64_t pn_topic_later_due(const struct pn_topic *topic)
{
    const struct pn_diskqueue_state *now = pn_diskqueue_now(&topic->later);
    return now->read_seq == now->write_seq || now->read_seq < topic->later_turn ? INT64_MAX
                                                                                : topic->later_next;
}

/* I29, of one of its queues. */
static inline bool pn_topic_queue_adds_up(const struct pn_diskqueue *queue)
{
    const uint64_t n = pn_diskqueue_depth(queue), bytes = pn_diskqueue_bytes(queue);
    return (n == 0) == (bytes == 0) && bytes >= n;
}

/* Bytes of all its records in files: of what they say, and of their headers there.  Nothing counts
 * them: they follow from where the queues begin and end. */
static inline uint64_t pn_topic_disk_used(const struct pn_topic *topic)
{
    const struct pn_diskqueue *queues[] = {&topic->disk, &topic->rest, &topic->later};
    uint64_t bytes = 0;
    for (int i = 0; i < 3; i++)
        bytes += pn_diskqueue_bytes(queues[i]) + pn_diskqueue_depth(queues[i]) * PN_RECORD_HEADER;
    return bytes;
}
/* Are they more than max_disk_bytes?  That may be: what left memory, or was there before. */
static inline bool pn_topic_disk_is_over(const struct pn_topic *topic)
{
    const uint64_t most = pn_topic_limits(topic)->max_disk_bytes;
    return most != 0 && pn_topic_disk_used(topic) > most;
}

/* Records that a channel still is to get. */
static inline uint64_t pn_rest_records(const struct pn_topic *topic)
{
    return pn_diskqueue_depth(&topic->rest);
}

#endif
