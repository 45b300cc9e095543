/* The arena's rebuild in one go, as the repair of topics does it in steps. */
#ifndef PN_TEST_ARENA_REBUILD_H
#define PN_TEST_ARENA_REBUILD_H

#include "segment/arena.h"

static inline void rebuild_begin(struct pn_arena *mem)
{
    pn_arena_rebuild_begin_locked(mem);
    for (uint32_t page = mem->first; page < pn_arena_pages_used(mem); page++)
        pn_arena_unmark_page_locked(mem, page);
}

static inline void rebuild_end(struct pn_arena *mem, uint64_t free_mask)
{
    for (uint32_t page = pn_arena_pages_used(mem); page-- > mem->first;)
        pn_arena_settle_page_locked(mem, page, free_mask);
}

#endif
