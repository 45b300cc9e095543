/*
 * arena.h - memory of the topics: cells and pages by reference, chains of them for bodies.
 *
 * Everything needs the writer lock, except pn_arena_at() and pn_arena_read(), which are safe on
 * memory that another process changes at the same time (the bytes are then of no meaning).
 */
#ifndef PN_TOPICMEM_H
#define PN_TOPICMEM_H

#include <stdbool.h>

#include "segment/layout_topicmem.h"

struct pn_segment;

/* Private to the process: its own copies of what does not change. */
struct pn_arena {
    unsigned char *base; /* of page 0; 4 KiB aligned */
    struct pn_arena_control *ctl;
    struct pn_arena_page *page;
    struct pn_arena_owner *owner;
    uint32_t pages; /* including page 0 and whatever else of the caller's lies at the beginning */
    uint32_t first; /* the first page that is given out, >= 1 */
    uint32_t owners;
    uint32_t largest;       /* pages of the largest body */
    struct pn_segment *seg; /* to be poisoned */
};

/* What an operation is going to take. */
struct pn_arena_need {
    uint64_t deliveries, bodies, pages;
    uint64_t spare; /* pages that are to be free afterwards, for others to move what is there */
    uint64_t most;  /* pages that the owner may have then; 0: what its share allows */
};

/* Once, when the area is initialised.  Memory may be zero or left by a killed initialiser. */
void pn_arena_format_locked(struct pn_arena *mem);

/* 0: no room.  Neither content nor state word are touched: these are free when it is taken. */
uint32_t pn_arena_take_locked(struct pn_arena *mem, uint32_t owner, enum pn_page_class class);
/* The caller has stored its state as free before (DELIVERY, BODY). */
void pn_arena_give_locked(struct pn_arena *mem, uint32_t ref);

/* Would all of these be got?  Exact, and O(1). */
bool pn_arena_has_locked(const struct pn_arena *mem, uint32_t owner,
                         const struct pn_arena_need *need);
/* Pages that would be taken for it. */
uint64_t pn_arena_pages_for(const struct pn_arena *mem, uint32_t owner,
                            const struct pn_arena_need *need);

/* Of a page; whatever stands there, it is one. */
static inline uint32_t pn_arena_owner_of(const struct pn_arena *mem, uint32_t ref)
{
    uint32_t at = ref / PN_ARENA_GRANULES;
    uint32_t owner = at < mem->pages ? mem->page[at].owner : 0;
    return owner < mem->owners ? owner : 0;
}

/* ---- addresses ----------------------------------------------------------------------------- */

#define PN_BODY_STARTS ((uint64_t) 0x0084210842108421) /* granules 0, 5, ... 55 */

/* The granules of a page at which cells of a class begin. */
static inline uint64_t pn_arena_starts(uint32_t class)
{
    return class == PN_PAGE_DELIVERY ? UINT64_MAX
           : class == PN_PAGE_BODY   ? PN_BODY_STARTS
           : class == PN_PAGE_WHOLE  ? 1
                                     : 0;
}

/* Is it within the arena?  Then it can be read, whatever it is. */
static inline bool pn_arena_inside(const struct pn_arena *mem, uint32_t ref)
{
    return ref / PN_ARENA_GRANULES - mem->first < mem->pages - mem->first;
}

static inline void *pn_arena_at(const struct pn_arena *mem, uint32_t ref)
{
    return mem->base + (uint64_t) ref * PN_ARENA_GRANULE;
}

/* Does a cell of that class begin there, be it free or taken? */
static inline bool pn_arena_valid(const struct pn_arena *mem, uint32_t ref,
                                  enum pn_page_class class)
{
    return pn_arena_inside(mem, ref) &&
           pn_load_relaxed(&mem->page[ref / PN_ARENA_GRANULES].class) == (uint32_t) class &&
           (pn_arena_starts(class) >> ref % PN_ARENA_GRANULES & 1) != 0;
}

/* Is it a taken cell of that class? */
static inline bool pn_arena_taken(const struct pn_arena *mem, uint32_t ref,
                                  enum pn_page_class class)
{
    return pn_arena_valid(mem, ref, class) &&
           (pn_load_relaxed(&mem->page[ref / PN_ARENA_GRANULES].free) >> ref % PN_ARENA_GRANULES &
            1) == 0;
}

/* A reference that was read from the segment leads nowhere: poisons.  Always -PN_ECORRUPT. */
int pn_arena_broken(const struct pn_arena *mem, const char *what, uint32_t ref);

/* The taken cell, or NULL: the segment is poisoned. */
static inline void *pn_arena_cell(const struct pn_arena *mem, uint32_t ref,
                                  enum pn_page_class class)
{
    if (__builtin_expect(pn_arena_taken(mem, ref, class), 1))
        return pn_arena_at(mem, ref);
    pn_arena_broken(mem, "a reference", ref);
    return NULL;
}

/* ---- rebuild and check --------------------------------------------------------------------- */

/*
 * Counts and lists are forgotten; then each page that was ever used is unmarked; what is taken is
 * marked; and each of these pages is settled, from the last to the first, so that the lists begin
 * at the front: whatever is not marked is free.
 */
void pn_arena_rebuild_begin_locked(struct pn_arena *mem);
/* Pages from there on were never used. */
uint32_t pn_arena_pages_used(const struct pn_arena *mem);
/* The granules at which cells of that class begin in a page; 0: it is of another class. */
uint64_t pn_arena_cells_of(const struct pn_arena *mem, uint32_t page, enum pn_page_class class);
void pn_arena_unmark_page_locked(struct pn_arena *mem, uint32_t page);
/* false: no cell of that class begins there, or it was marked before. */
bool pn_arena_mark_locked(struct pn_arena *mem, uint32_t ref, enum pn_page_class class);
/* State words of unmarked cells become free: BODY 0, DELIVERY what free_mask leaves of it. */
void pn_arena_settle_page_locked(struct pn_arena *mem, uint32_t page, uint64_t free_mask);

/* The next cell of that class, free or taken, after a reference; 0: the first, and no more. */
uint32_t pn_arena_next_cell(const struct pn_arena *mem, enum pn_page_class class, uint32_t after);

/* How many of the arena's own invariants do not hold; tells each. */
int pn_arena_check(const struct pn_arena *mem, void (*problem)(void *arg, const char *text),
                   void *arg);

#endif
