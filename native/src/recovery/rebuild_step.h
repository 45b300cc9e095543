/* rebuild_step.h - one step of a rebuilding: what its phases share (rebuild_topics.c 2). */
#ifndef PN_REBUILD_STEP_H
#define PN_REBUILD_STEP_H

#include <stdbool.h>

#include "segment/arena.h"
#include "topic/area.h"

/*
 * A step: what is left of its units.  It takes milliseconds, and the places in `at` may be
 * overwritten meanwhile: what indexes something is loaded once, and compared.
 */
struct pn_rebuild_step {
    struct pn_segment *seg;
    struct pn_topic_repair *at;
    int64_t left;
    uint32_t page; /* at the cursor */
};

static inline uint32_t pn_rebuild_cursor(const struct pn_rebuild_step *s)
{
    return *(volatile const uint32_t *) &s->at->cursor;
}

/* Of `n` rows the one at the cursor, which moves on; false: there are no more. */
static inline bool pn_rebuild_row(struct pn_rebuild_step *s, uint32_t n, uint32_t *row)
{
    *row = pn_rebuild_cursor(s);
    if (*row >= n)
        return false;
    s->at->cursor = *row + 1;
    return true;
}

/* The cells of a class in the page, in ref. */
#define PN_EACH_CELL_HERE(s, class, ref)                                                           \
    for (uint64_t ref##_left = pn_arena_cells_of(&(s)->seg->topics.arena, (s)->page, class),       \
                  ref = 0;                                                                         \
         ref##_left != 0 &&                                                                        \
         (ref = (uint64_t) (s)->page * PN_ARENA_GRANULES + (uint32_t) __builtin_ctzll(ref##_left), \
         (s)->left--, true);                                                                       \
         ref##_left &= ref##_left - 1)

/* The page at the cursor.  False: all were looked at, or no units are left. */
static inline bool pn_rebuild_page(struct pn_rebuild_step *s, bool *all)
{
    const struct pn_arena *mem = &s->seg->topics.arena;
    s->page = pn_rebuild_cursor(s);
    if (s->page < mem->first)
        s->page = mem->first;
    *all = s->page >= pn_arena_pages_used(mem);
    return !*all && s->left > 0;
}

static inline void pn_rebuild_page_done(struct pn_rebuild_step *s)
{
    s->at->cursor = s->page + 1;
    s->left--;
}

/* Pages from the cursor on, each looked at by `look`, while units are left; true: all were. */
static inline bool pn_rebuild_each_page(struct pn_rebuild_step *s,
                                        void (*look)(struct pn_rebuild_step *))
{
    bool all;
    while (pn_rebuild_page(s, &all)) {
        look(s);
        pn_rebuild_page_done(s);
    }
    return all;
}

#endif
