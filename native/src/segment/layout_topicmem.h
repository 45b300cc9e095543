/*
 * layout_topicmem.h - the arena of the topics and its timed sets, as they stand in shared memory.
 *
 * A reference is a u32 in units of 64 bytes (granules) from the arena's base; 0 is none, since page
 * 0 is never given out.  Everything here is written by the holder of the writer lock.  "Truth" is
 * what a recovery goes by; whatever is derived is built again from it (arena.c).
 */
#ifndef PN_LAYOUT_TOPICMEM_H
#define PN_LAYOUT_TOPICMEM_H

#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"

#define PN_ARENA_PAGE      4096U
#define PN_ARENA_GRANULE   64U
#define PN_ARENA_GRANULES  (PN_ARENA_PAGE / PN_ARENA_GRANULE)
#define PN_ARENA_MIN_PAGES 16U
#define PN_ARENA_MAX_PAGES (1U << 26) /* 256 GiB: what a reference can name */

#define PN_DELIVERY_CELL 64U
#define PN_BODY_CELL     320U
#define PN_BODY_CELLS    (PN_ARENA_PAGE / PN_BODY_CELL) /* 12 a page */

enum pn_page_class {
    PN_PAGE_FREE = 0,
    PN_PAGE_DELIVERY = 1, /* 64 cells of 64 bytes */
    PN_PAGE_BODY = 2,     /* 12 cells of 320 bytes */
    PN_PAGE_WHOLE = 3,    /* one cell of 4096 bytes: large bodies, heaps, histograms */
    PN_PAGE_CLASSES = 4
};

/* One for each page, in an array of their own: two to a cache line. */
struct pn_arena_page {
    pn_atomic_u32 class; /* truth; stored (release) when the page's cells are formatted */
    uint32_t chain;      /* truth, WHOLE page of a body: what comes after it */
    pn_atomic_u64 free;  /* derived: the bit of each granule at which a free cell begins; copying
                            a body looks at it without the lock, others' bits may change then */
    uint32_t prev, next; /* derived: its owner's of its class with free cells; `next`: free pages */
    uint32_t owner;      /* truth, of a page that is not free: stored before its class */
    uint32_t pad;
};
_Static_assert(sizeof(struct pn_arena_page) == 32, "two pages to a cache line");

/* All but `fresh` is derived. */
struct pn_arena_control {
    uint32_t fresh;      /* no page from here on was ever used; raised before it is */
    uint32_t free_pages; /* head of the list of free pages below `fresh` */
    uint32_t pages_free; /* these and those from `fresh` on */
    uint32_t share;      /* pages that each owner has for itself (arena_share.c) */
    uint32_t reserved;   /* of all shares together, pages that are not taken */
    uint32_t newcomers;  /* pages for owners that there are not yet */
    uint32_t given;      /* counts what is given back */
    uint32_t pad;
    uint32_t cells_free[PN_PAGE_CLASSES]; /* in pages that are not free */
    uint32_t cells_used[PN_PAGE_CLASSES];
};
_Static_assert(sizeof(struct pn_arena_control) == 64, "one cache line");

/* Of each owner, a topic; all of it is derived. */
struct pn_arena_owner {
    uint32_t partial[PN_PAGE_CLASSES];    /* heads: its pages of the class with free cells */
    uint32_t cells_free[PN_PAGE_CLASSES]; /* in these pages */
    uint32_t pages;                       /* of any class */
    uint32_t bodies;                      /* BODY cells that are taken */
    uint32_t counts;                      /* 1: it has a share */
    uint32_t pad[5];
};
_Static_assert(sizeof(struct pn_arena_owner) == 64, "one cache line");

/* How a BODY cell begins, be it a message or what follows one. */
struct pn_body_cell {
    uint16_t state; /* truth; 0: free.  PN_BODY_CHAINED here, everything else is message.c's */
    uint16_t pad;
    uint32_t next; /* truth: the next piece of the chain, 0: the last */
    unsigned char data[PN_BODY_CELL - 8];
};
_Static_assert(sizeof(struct pn_body_cell) == PN_BODY_CELL, "a cell");
#define PN_BODY_CHAINED 3U

/* An entry of a timed set.  Ordered by (due, low). */
struct pn_timed {
    int64_t due;
    uint32_t ref; /* a delivery */
    uint32_t low; /* low half of its message's id */
};
_Static_assert(sizeof(struct pn_timed) == 16, "four to a cache line");

#define PN_TIMED_OFFSET 52U /* in a delivery: the u32 that says where its entry is, 0: nowhere */
#define PN_TIMED_PAGE   (PN_ARENA_PAGE / 16U) /* entries */
#define PN_TIMED_DIRECT 12U                   /* pages named by the set itself: 3069 entries */
#define PN_TIMED_FANOUT (PN_ARENA_PAGE / 4U)

/* All zero: empty.  All of it is derived. */
struct pn_timedset {
    uint32_t n;        /* entries */
    uint32_t reserved; /* promised room for that many more */
    uint32_t pages;    /* of entries */
    uint32_t root;     /* WHOLE page of references to WHOLE pages of references to pages */
    uint32_t direct[PN_TIMED_DIRECT];
};
_Static_assert(sizeof(struct pn_timedset) == 64, "one cache line");

#endif
