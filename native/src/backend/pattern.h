/*
 * pattern.h - the patterns that are listened to, among the entries of the channel table.
 *
 * 1. A pattern is an entry of the channel table like a channel, with PN_PATTERN in its dboid: so no
 *    channel has its name, and subscriptions, bitmaps, limits, the end of a listener and recovery
 *    are those of channels.  It is freed with its last subscription.
 * 2. All of them are in a list that begins at first_pattern, whatever their database.  A commit
 *    matches the channels that it notifies against each; without any it makes one load.
 * 3. The list is part of the index (channel.c 1): rebuilt when a process died while it changed it.
 */
#ifndef PN_PATTERN_H
#define PN_PATTERN_H

#include "segment/segment.h"

static inline bool pn_is_pattern(const struct GlobalChannelEntry *e)
{
    return (e->dboid & PN_PATTERN) != 0;
}

/* Is any pattern listened to, or staged? */
static inline bool pn_patterns_any(const struct pn_segment *seg)
{
    return seg->ctl->first_pattern != 0;
}

/* index_dirty is set. */
void pn_pattern_link_locked(struct pn_segment *seg, struct GlobalChannelEntry *e);
void pn_pattern_unlink_locked(struct pn_segment *seg, struct GlobalChannelEntry *e);

/* A way through the list. */
struct pn_pattern_walk {
    uint32_t link, steps;
};

static inline struct pn_pattern_walk pn_pattern_walk_begin(const struct pn_segment *seg)
{
    return (struct pn_pattern_walk) {.link = seg->ctl->first_pattern};
}

/*
 * The next one that matches the channel of that database, listened to or staged; NULL: none.  A
 * list that cannot be true poisons the segment, and ends.
 */
struct GlobalChannelEntry *pn_pattern_next_locked(struct pn_segment *seg,
                                                  struct pn_pattern_walk *walk, uint32_t dboid,
                                                  const char *name, size_t len);

/* Is the channel heard by a pattern, one with a listener? */
bool pn_pattern_hears_locked(struct pn_segment *seg, uint32_t dboid, const char *name, size_t len);

#endif
