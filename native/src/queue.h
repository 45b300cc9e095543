/*
 * queue.h - the paged queue: where entries go, how they are read, how far the tail may go.
 */
#ifndef PN_QUEUE_H
#define PN_QUEUE_H

#include <string.h>

#include "conn.h"

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

/* Write one entry at or after pos, with the padding before it; returns the position behind it. */
QueuePosition pn_queue_append_locked(struct pn_conn *conn, QueuePosition pos, uint64_t xid,
                                     int64_t now, const struct pn_new_entry *entry);

/*
 * The entry at pos, limit being a position behind it; NULL after poisoning the segment when what
 * stands there cannot be an entry.  *next: the position behind it.
 */
const AsyncQueueEntry *pn_queue_entry_at(struct pn_segment *seg, QueuePosition pos,
                                         QueuePosition limit, QueuePosition *next);

/* Does the slot pin the queue, and where? */
bool pn_backend_pins(const struct QueueBackendStatus *backend, QueuePosition *start);

/* tail = min(head, what is pinned); returns the slot that holds it, -1 if none.  Lock held. */
int32_t pn_queue_advance_tail_locked(struct pn_segment *seg);

/* One commit's waiting for room under on_full=block; zero at first. */
struct pn_room_wait {
    int64_t deadline, interval;
    uint32_t seq;
    int32_t holder;
};

/*
 * Make sure that the queue up to `end` fits, leaving what others have reserved.  0; -EAGAIN: give
 * up every lock, call pn_queue_wait_for_room() and start the commit again; -PN_EQUEUEFULL.
 */
int pn_queue_make_room_locked(struct pn_conn *conn, QueuePosition end, uint64_t own_reserved,
                              struct pn_room_wait *wait);
int pn_queue_wait_for_room(struct pn_conn *conn, struct pn_room_wait *wait);

/* PostgreSQL's warning at 50 %, at most every 5 s for the whole segment.  Lock held. */
void pn_queue_fill_warning_locked(struct pn_conn *conn, QueuePosition head, int64_t now);

#endif
