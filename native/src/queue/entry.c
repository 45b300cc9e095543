/* entry.c - entries in the ring: writing one, and believing one that stands there. */
#include "queue/entry.h"

#include "base/crashpoint.h"
#include "segment/lock.h"

/* Dummy entries up to `end`, one a page; of each only length and dboid are written. */
static void pad(struct pn_segment *seg, QueuePosition pos, QueuePosition end)
{
    while (pos < end) {
        QueuePosition page_end = (pos | (PN_QUEUE_PAGE - 1)) + 1;
        QueuePosition stop = page_end < end ? page_end : end;
        AsyncQueueEntry *dummy = (void *) pn_ring_at(seg, pos);
        dummy->length = (uint32_t) (stop - pos);
        dummy->dboid = 0;
        pos = stop;
    }
}

/* Inlined into both callers, so that one without headers has nothing of them. */
__attribute__((always_inline)) static inline QueuePosition
append_locked(struct pn_segment *seg, QueuePosition pos, const struct pn_entry_stamp *stamp,
              const struct pn_new_entry *entry, const void *headers, uint32_t headers_len)
{
    pn_assert_held(seg);
    uint32_t behind = entry->payload_len + headers_len;
    uint64_t length = pn_entry_length(entry->channel_len, behind);
    QueuePosition start = pn_queue_place(seg, pos, length);
    QueuePosition end = pn_queue_after(start, length);

    if (__builtin_expect(start != pos, 0))
        pad(seg, pos, start);
    AsyncQueueEntry *qe = (void *) pn_ring_at(seg, start);
    qe->length = (uint32_t) (end - start);
    qe->dboid = stamp->dboid;
    qe->xid = stamp->xid;
    qe->sent_ns = stamp->now;
    qe->chan_seq = entry->chan_seq;
    qe->srcPid = stamp->pid;
    qe->srcBackend = stamp->slot;
    qe->srcGeneration = stamp->generation;
    qe->kind = (uint8_t) entry->kind;
    qe->channel_len = (uint8_t) entry->channel_len;
    qe->headers_len = (uint16_t) headers_len;
    qe->payload_len = behind;
    qe->channel_hash = entry->channel_hash;
    if (entry->channel_len > 0)
        memcpy(qe->data, entry->channel, entry->channel_len);
    if (entry->payload_len > 0)
        memcpy(qe->data + entry->channel_len, entry->payload, entry->payload_len);
    if (headers_len > 0)
        memcpy(qe->data + entry->channel_len + entry->payload_len, headers, headers_len);
    /* the lines of the next entry, which a reader's processor owns: fetch them meanwhile */
    for (uint64_t ahead = 512; ahead < 512 + 192; ahead += PN_CACHE_LINE)
        __builtin_prefetch(pn_ring_at(seg, end + ahead), 1);
    PN_CRASH("commit:entry");
    return end;
}

QueuePosition pn_queue_append_locked(struct pn_segment *seg, QueuePosition pos,
                                     const struct pn_entry_stamp *stamp,
                                     const struct pn_new_entry *entry)
{
    return append_locked(seg, pos, stamp, entry, NULL, 0);
}

QueuePosition pn_queue_append_headed_locked(struct pn_segment *seg, QueuePosition pos,
                                            const struct pn_entry_stamp *stamp,
                                            const struct pn_new_entry *entry, const void *headers,
                                            uint32_t headers_len)
{
    return append_locked(seg, pos, stamp, entry, headers, headers_len);
}

bool pn_queue_entry_possible(const struct pn_segment *seg, const AsyncQueueEntry *qe,
                             QueuePosition pos, QueuePosition limit, struct pn_entry_extent *extent)
{
    uint64_t length = *(volatile const uint32_t *) &qe->length; /* once: it is not ours alone */
    uint64_t room = PN_QUEUE_PAGE - QUEUE_POS_OFFSET(pos);
    bool large = length > PN_QUEUE_PAGE;

    if (length < 8 || length % 8 != 0 || length > limit - pos || (!large && length > room) ||
        (large && (room != PN_QUEUE_PAGE || length % PN_QUEUE_PAGE != 0 ||
                   pos % seg->ring_bytes + length > seg->ring_bytes)))
        return false;
    uint64_t channel_len = 0, payload_len = 0;
    if (length >= PN_ENTRY_HEADER) { /* what a dummy would have here is not believed either */
        channel_len = *(volatile const uint8_t *) &qe->channel_len;
        payload_len = *(volatile const uint32_t *) &qe->payload_len;
    }
    if (*(volatile const uint32_t *) &qe->dboid == 0)
        channel_len = payload_len = 0;
    else if (length < PN_ENTRY_HEADER || PN_ENTRY_HEADER + channel_len + payload_len > length)
        return false;
    *extent = (struct pn_entry_extent) {.next = pos + length,
                                        .channel_len = (uint32_t) channel_len,
                                        .payload_len = (uint32_t) payload_len};
    return true;
}

static const AsyncQueueEntry *impossible(struct pn_segment *seg, QueuePosition pos)
{
    pn_segment_poison(seg, "no entry can stand at queue position %llu", (unsigned long long) pos);
    return NULL;
}

const AsyncQueueEntry *pn_queue_entry_at(struct pn_segment *seg, QueuePosition pos,
                                         QueuePosition limit, struct pn_entry_extent *extent)
{
    if (pos % 8 != 0) /* a scribbled position: not even to be looked at */
        return impossible(seg, pos);
    const AsyncQueueEntry *qe = (const void *) pn_ring_at(seg, pos);
    return pn_queue_entry_possible(seg, qe, pos, limit, extent) ? qe : impossible(seg, pos);
}

QueuePosition pn_queue_next_page(struct pn_segment *seg, QueuePosition pos, QueuePosition head)
{
    if (QUEUE_POS_OFFSET(pos) != 0)
        return pn_page_up(pos);
    struct pn_entry_extent extent;
    if (pn_queue_entry_at(seg, pos, head, &extent) == NULL)
        return 0;
    return extent.next - pos > PN_QUEUE_PAGE ? extent.next : pos + PN_QUEUE_PAGE;
}
