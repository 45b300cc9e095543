/*
 * upstream.h - which slots are bridges, and which channels have listeners beside them.
 *
 * What backends and channels have to know of bridges; bridge.c has the model.
 */
#ifndef PN_UPSTREAM_H
#define PN_UPSTREAM_H

#include "segment/lock.h"
#include "segment/segment.h"

/* A listener is there that is no bridge (bridge.c 2). */
static inline bool pn_is_heard_here(const struct GlobalChannelEntry *e)
{
    return e->numListeners > (e->upstream != 0);
}

/* A channel has got its first listener or lost its last, or may have.  Lock held. */
static inline void pn_heard_changed_locked(struct pn_segment *seg)
{
    pn_assert_held(seg);
    pn_store_relaxed(&seg->ctl->heard, pn_load_relaxed(&seg->ctl->heard) + 1);
    if (pn_load_relaxed(&seg->ctl->bridges) != 0)
        pn_hold_of(seg)->at_end |= PN_TELL_BRIDGES;
}

/* Drop the slot's bridge role and its wildcard subscription.  Lock held. */
void pn_bridge_end_locked(struct pn_segment *seg, uint32_t slot);
/* `bridges`, counted again.  Lock held. */
void pn_bridge_count_locked(struct pn_segment *seg);

#endif
