/*
 * channel.h - GlobalChannelTable: (database, channel) -> the backends that listen, and the
 * subscription lists of which it is the index.  Everything here needs the writer lock.
 */
#ifndef PN_CHANNEL_H
#define PN_CHANNEL_H

#include <string.h>

#include "base/hash.h"
#include "segment/segment.h"

static inline struct GlobalChannelEntry *pn_channel_at(const struct pn_segment *seg, uint32_t i)
{
    return (void *) (seg->channels + (size_t) i * seg->channel_entry_size);
}

static inline uint32_t pn_channel_index(const struct pn_segment *seg,
                                        const struct GlobalChannelEntry *e)
{
    return (uint32_t) ((size_t) ((const unsigned char *) e - seg->channels) /
                       seg->channel_entry_size);
}

static inline uint64_t *pn_channel_bits(const struct pn_segment *seg, struct GlobalChannelEntry *e)
{
    return e->words + seg->summary_words;
}

static inline char *pn_channel_name(const struct pn_segment *seg, struct GlobalChannelEntry *e)
{
    return (char *) (e->words + seg->summary_words + seg->words);
}

/* The entry, or NULL.  A chain that cannot be true poisons the segment and gives NULL. */
struct GlobalChannelEntry *pn_channel_find_locked(struct pn_segment *seg, uint64_t hash,
                                                  uint32_t dboid, const char *name, size_t len);

/* The channel of a subscription; NULL after poisoning the segment when it names none. */
struct GlobalChannelEntry *pn_subscribed_locked(struct pn_segment *seg, uint32_t subscription);

/*
 * LISTEN, the fallible half: make the entry if need be and hang a subscription with
 * PN_SINCE_STAGED into the slot's list.  -PN_ECHANNELS when a table is full.
 */
int pn_listen_stage_locked(struct pn_segment *seg, uint32_t slot, uint64_t hash, uint32_t dboid,
                           const char *name, size_t len, uint32_t *subscription);
/* The infallible half: from `since` on; but a segment that is damaged is poisoned. */
void pn_listen_apply_locked(struct pn_segment *seg, uint32_t slot, uint32_t subscription,
                            QueuePosition since);
/* Remove one subscription, staged or not. */
void pn_unlisten_locked(struct pn_segment *seg, uint32_t slot, uint32_t subscription);
void pn_unlisten_all_locked(struct pn_segment *seg, uint32_t slot);

/* Clear the index and build it again from the slots' lists; idempotent. */
int pn_channel_rebuild_locked(struct pn_segment *seg);

/* Does the slot's bit stand in the entry? */
static inline bool pn_channel_listens(const struct pn_segment *seg, struct GlobalChannelEntry *e,
                                      uint32_t slot)
{
    return (pn_channel_bits(seg, e)[slot / 64] >> (slot % 64) & 1) != 0;
}

#endif
