/*
 * entry.h - entries in the ring: where they go, how they are written, how they are read.
 */
#ifndef PN_ENTRY_H
#define PN_ENTRY_H

#include <string.h>

#include "segment/lock.h"
#include "segment/segment.h"

static inline unsigned char *pn_ring_at(const struct pn_segment *seg, QueuePosition pos)
{
    return seg->ring + (seg->ring_mask != 0 ? pos & seg->ring_mask : pos % seg->ring_bytes);
}

/* Bytes of an entry before it is placed. */
static inline uint64_t pn_entry_length(size_t channel_len, size_t payload_len)
{
    return QUEUEALIGN(PN_ENTRY_HEADER + channel_len + payload_len);
}

static inline uint64_t pn_page_up(uint64_t bytes)
{
    return (bytes + PN_QUEUE_PAGE - 1) & ~(uint64_t) (PN_QUEUE_PAGE - 1);
}

/* Where an entry of `length` stands if it is put at `pos` or as soon after as it fits. */
static inline QueuePosition pn_queue_place(const struct pn_segment *seg, QueuePosition pos,
                                           uint64_t length)
{
    if (length <= PN_QUEUE_PAGE)
        return QUEUE_POS_OFFSET(pos) + length <= PN_QUEUE_PAGE ? pos : pn_page_up(pos);
    QueuePosition start = pn_page_up(pos); /* whole pages, not around the end of the ring */
    uint64_t in_ring = start % seg->ring_bytes;
    return in_ring + pn_page_up(length) <= seg->ring_bytes ? start
                                                           : start + (seg->ring_bytes - in_ring);
}

/* The position behind it. */
static inline QueuePosition pn_queue_after(QueuePosition start, uint64_t length)
{
    return start + (length <= PN_QUEUE_PAGE ? length : pn_page_up(length));
}

/* What one notification is made of, while it is appended; or a bump (PN_ENTRY_GENERATION). */
struct pn_new_entry {
    const char *channel;
    const void *payload;
    uint32_t channel_len, payload_len;
    uint32_t channel_hash; /* or the counter */
    uint64_t chan_seq;     /* or its value after the transaction */
    enum pn_entry_kind kind;
};

/* What all entries of one commit bear: the commit, and its sender. */
struct pn_entry_stamp {
    uint64_t xid;
    int64_t now;
    uint32_t dboid;
    int32_t pid;
    uint32_t slot, generation;
};

/* Write one entry at or after pos, with the padding before it; returns the position behind it. */
QueuePosition pn_queue_append_locked(struct pn_segment *seg, QueuePosition pos,
                                     const struct pn_entry_stamp *stamp,
                                     const struct pn_new_entry *entry);
/* The same with headers behind the payload, which entry->payload_len does not count. */
QueuePosition pn_queue_append_headed_locked(struct pn_segment *seg, QueuePosition pos,
                                            const struct pn_entry_stamp *stamp,
                                            const struct pn_new_entry *entry, const void *headers,
                                            uint32_t headers_len);

/*
 * What of an entry was checked.  It stands in memory that others write, so it is loaded once, and
 * code that copies from the entry goes by these.
 */
struct pn_entry_extent {
    QueuePosition next;                /* the position behind it */
    uint32_t channel_len, payload_len; /* 0 of a dummy */
};

/*
 * The entry at pos, limit being a position behind it; NULL after poisoning the segment when what
 * stands there cannot be an entry.
 */
const AsyncQueueEntry *pn_queue_entry_at(struct pn_segment *seg, QueuePosition pos,
                                         QueuePosition limit, struct pn_entry_extent *extent);

/* Can it be an entry that stands at pos? */
bool pn_queue_entry_possible(const struct pn_segment *seg, const AsyncQueueEntry *qe,
                             QueuePosition pos, QueuePosition limit,
                             struct pn_entry_extent *extent);

/* True if qe->kind is a known kind. */
static inline bool pn_queue_entry_known(const struct pn_segment *seg, const AsyncQueueEntry *qe)
{
    return qe->dboid == 0 || qe->kind == PN_ENTRY_NOTIFY || qe->kind == PN_ENTRY_GAP ||
           qe->kind == PN_ENTRY_PUBLISH || qe->kind == PN_ENTRY_ANSWER ||
           qe->kind == PN_ENTRY_CANCEL || qe->kind == PN_ENTRY_SPILL || qe->kind == PN_ENTRY_BURY ||
           (qe->kind == PN_ENTRY_GENERATION && qe->channel_hash < seg->max_generations);
}

/*
 * The start of the first page behind the entry at pos, in the ring; where one begins, if not
 * behind head.  0: poisoned.
 */
QueuePosition pn_queue_next_page(struct pn_segment *seg, QueuePosition pos, QueuePosition head);

#endif
