/* rebuild_step.h - one step of a rebuilding: what its phases share (rebuild_topics.c 2). */
#ifndef PN_REBUILD_STEP_H
#define PN_REBUILD_STEP_H

#include <stdbool.h>

#include "segment/arena.h"
#include "topic/area.h"

/* A step: what is left of its units. */
struct pn_rebuild_step {
    struct pn_segment *seg;
    struct pn_topic_repair *at;
    int64_t left;
};

/* The cells of a class in the page at the cursor, in ref. */
#define PN_EACH_CELL_HERE(s, class, ref)                                                           \
    for (uint64_t ref##_left = pn_arena_cells_of(&(s)->seg->topics.arena, (s)->at->cursor, class), \
                  ref = 0;                                                                         \
         ref##_left != 0 && (ref = (uint64_t) (s)->at->cursor * PN_ARENA_GRANULES +                \
                                   (uint32_t) __builtin_ctzll(ref##_left),                         \
                            (s)->left--, true);                                                    \
         ref##_left &= ref##_left - 1)

/* Pages from the cursor on, each looked at by `page`, while units are left; true: all were. */
static inline bool pn_rebuild_each_page(struct pn_rebuild_step *s,
                                        void (*page)(struct pn_rebuild_step *))
{
    const struct pn_arena *mem = &s->seg->topics.arena;
    if (s->at->cursor < mem->first)
        s->at->cursor = mem->first;
    for (; s->left > 0 && s->at->cursor < pn_arena_pages_used(mem); s->at->cursor++) {
        page(s);
        s->left--;
    }
    return s->at->cursor >= pn_arena_pages_used(mem);
}

#endif
