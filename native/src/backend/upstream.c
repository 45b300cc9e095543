/* upstream.c - see upstream.h. */
#define _GNU_SOURCE
#include "backend/upstream.h"
#include "segment/lock.h"

void pn_bridge_count_locked(struct pn_segment *seg)
{
    pn_assert_held(seg);
    uint32_t bridges = 0;
    for (uint32_t slot = 0; slot < seg->max_backends; slot++)
        bridges += pn_load_relaxed(&seg->backend[slot].state) == PN_SLOT_CLAIMED &&
                   pn_load_relaxed(&seg->backend[slot].bridge) != 0;
    pn_store_relaxed(&seg->ctl->bridges, bridges);
}

void pn_bridge_end_locked(struct pn_segment *seg, uint32_t slot)
{
    pn_assert_held(seg);
    if (pn_load_relaxed(&seg->backend[slot].bridge) == 0)
        return;
    pn_store_relaxed(&seg->backend[slot].bridge, 0);
    pn_bridge_count_locked(seg);
}
