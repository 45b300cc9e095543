/*
 * arena.c - the arena of the topics.
 *
 * 1. Pages of 4 KiB, each of a class (layout_topicmem.h): cells of 64 bytes for deliveries, cells
 *    of 320 for messages and what is left of their bodies, or the page as a whole.  Of 320 bytes a
 *    message and a body of 200 fill one cell, and twelve a page.
 * 2. A page belongs to an owner, the topic that it was taken for: what one topic leaves of its
 *    pages is not in the way of another.  How many pages each may have is arena_share.c's.
 *    Which cells of a page are free is a bitmap, a bit for the granule at which each begins; pages
 *    of an owner and a class with free cells form a list, free pages another.  So taking and giving
 *    are O(1) and touch the page's descriptor and the list's head, never a free cell: a list
 *    threaded through the cells would read a cold line for each, and would have to believe it.
 *    A page whose last cell comes back is free for every class at once.  Nothing is kept back
 *    against flapping: what a flap costs is the state words of a page.
 * 3. Pages from `fresh` on were never used, and are zero, so that nothing need be written through
 *    the whole area when it is made.
 * 4. Truth is a page's class and owner, its `chain` if it belongs to a body, `fresh`, and in the
 *    cells what is stored there: a state word each, 0 meaning free, and a body cell's `next`.  All
 *    else is derived.  A page gets its class when the state words of all its cells are 0, so that a
 *    recovery may look at every cell of every page, whatever stood there before.
 * 5. Killed anywhere, this leaves lists, bitmaps and counts that contradict each other; a process
 *    that changes anything has set topics_dirty before, and recovery rebuilds: begin (nothing is
 *    taken), mark what is reachable, end (what is not marked is free).  The bitmaps are the marks,
 *    so it needs no memory.  It may be killed as well, and begins again.
 * 6. Nothing read from the segment is believed: a reference is in range, its page of the class,
 *    its cell taken, or the segment is poisoned.
 */
#define _GNU_SOURCE
#include "segment/arena.h"

#include <stdio.h>
#include <string.h>

#include "base/crashpoint.h"
#include "segment/lock.h"
#include "segment/segment.h"

static const uint32_t cells_of_page[PN_PAGE_CLASSES] = {0, PN_ARENA_GRANULES, PN_BODY_CELLS, 1};

int pn_arena_broken(const struct pn_arena *mem, const char *what, uint32_t ref)
{
    return pn_segment_poison(mem->seg, "%s of the topics leads nowhere (%u)", what, ref);
}

static bool page_inside(const struct pn_arena *mem, uint32_t at)
{
    return at - mem->first < mem->pages - mem->first;
}

static uint32_t class_of(const struct pn_arena *mem, uint32_t at)
{
    return pn_load_relaxed(&mem->page[at].class);
}

void pn_arena_format_locked(struct pn_arena *mem)
{
    pn_assert_arena_held(mem);
    memset(mem->page, 0, (size_t) mem->pages * sizeof *mem->page);
    memset(mem->ctl, 0, sizeof *mem->ctl);
    memset(mem->owner, 0, mem->owners * sizeof *mem->owner);
    mem->ctl->fresh = mem->first;
    mem->ctl->pages_free = mem->pages - mem->first;
}

/* ---- pages --------------------------------------------------------------------------------- */

static struct pn_arena_owner *owner_at(const struct pn_arena *mem, uint32_t at)
{
    return &mem->owner[pn_arena_owner_of(mem, at * PN_ARENA_GRANULES)];
}

/* Into the list of its owner and class, at the front: what was used last is in the cache. */
static void link_page(const struct pn_arena *mem, uint32_t class, uint32_t at)
{
    struct pn_arena_owner *owner = owner_at(mem, at);
    uint32_t next = owner->partial[class];
    mem->page[at].prev = 0;
    mem->page[at].next = next;
    if (page_inside(mem, next))
        mem->page[next].prev = at;
    owner->partial[class] = at;
}

static bool unlink_page(const struct pn_arena *mem, uint32_t class, uint32_t at)
{
    struct pn_arena_page *page = &mem->page[at];
    struct pn_arena_owner *owner = owner_at(mem, at);
    uint32_t prev = page->prev, next = page->next;
    bool first = prev == 0;
    if (first ? owner->partial[class] != at
              : !page_inside(mem, prev) || mem->page[prev].next != at) {
        pn_arena_broken(mem, "a list of pages", at);
        return false;
    }
    if (next != 0 && (!page_inside(mem, next) || mem->page[next].prev != at)) {
        pn_arena_broken(mem, "a list of pages", next);
        return false;
    }
    if (first)
        owner->partial[class] = next;
    else
        mem->page[prev].next = next;
    if (next != 0)
        mem->page[next].prev = prev;
    return true;
}

/* State words of a page that has been used for something else (4). */
static void format_page(const struct pn_arena *mem, uint32_t class, uint32_t at)
{
    unsigned char *cell = pn_arena_at(mem, at * PN_ARENA_GRANULES);
    if (class == PN_PAGE_DELIVERY)
        for (uint32_t i = 0; i < PN_ARENA_GRANULES; i++)
            memset(cell + i * PN_DELIVERY_CELL, 0, 8);
    else if (class == PN_PAGE_BODY)
        for (uint32_t i = 0; i < PN_BODY_CELLS; i++)
            memset(cell + i * PN_BODY_CELL, 0, 8);
}

/* A free page becomes one of the owner and class, its cells free, in no list; 0: there is none. */
static uint32_t take_page(const struct pn_arena *mem, uint32_t owner, uint32_t class)
{
    struct pn_arena_control *ctl = mem->ctl;
    uint32_t at = ctl->free_pages, fresh = ctl->fresh;
    if (at != 0) {
        if (!page_inside(mem, at) || class_of(mem, at) != PN_PAGE_FREE) {
            pn_arena_broken(mem, "the list of free pages", at);
            return 0;
        }
        ctl->free_pages = mem->page[at].next;
        format_page(mem, class, at);
        PN_CRASH("arena:formatted");
    } else if (page_inside(mem, fresh)) {
        at = fresh;
        ctl->fresh = fresh + 1;
        PN_CRASH("arena:fresh");
    } else {
        return 0;
    }
    ctl->pages_free--;
    if (mem->owner[owner].counts != 0 && mem->owner[owner].pages < ctl->share)
        ctl->reserved--;
    mem->owner[owner].pages++;
    pn_store_relaxed(&mem->page[at].free, pn_arena_starts(class));
    mem->page[at].owner = owner;
    pn_store_release(&mem->page[at].class, class);
    PN_CRASH("arena:classed");
    return at;
}

static void free_page(const struct pn_arena *mem, uint32_t at)
{
    pn_store_release(&mem->page[at].class, PN_PAGE_FREE);
    PN_CRASH("arena:page-given");
    mem->page[at].next = mem->ctl->free_pages;
    mem->ctl->free_pages = at;
    mem->ctl->pages_free++;
}

static void give_page(const struct pn_arena *mem, uint32_t at)
{
    struct pn_arena_owner *owner = owner_at(mem, at);
    owner->pages--;
    if (owner->counts != 0 && owner->pages < mem->ctl->share)
        mem->ctl->reserved++;
    free_page(mem, at);
}

/* ---- cells --------------------------------------------------------------------------------- */

uint32_t pn_arena_take_locked(struct pn_arena *mem, uint32_t owner, enum pn_page_class class)
{
    pn_assert_arena_held(mem);
    struct pn_arena_control *ctl = mem->ctl;
    struct pn_arena_owner *own = &mem->owner[owner < mem->owners ? owner : 0];
    uint32_t at = own->partial[class];
    /* between the state that freed a cell and what is stored there next: pairs with copy_out() */
    pn_fence_release();
    if (__builtin_expect(at == 0, 0)) {
        at = take_page(mem, (uint32_t) (own - mem->owner), class);
        if (at == 0)
            return 0;
        ctl->cells_free[class] += cells_of_page[class];
        own->cells_free[class] += cells_of_page[class];
        link_page(mem, class, at);
    }
    uint64_t free = page_inside(mem, at) ? pn_load_relaxed(&mem->page[at].free) : 0;
    if (free == 0 || class_of(mem, at) != (uint32_t) class || owner_at(mem, at) != own) {
        pn_arena_broken(mem, "a list of pages", at);
        return 0;
    }
    uint32_t slot = (uint32_t) __builtin_ctzll(free);
    free &= free - 1;
    pn_store_relaxed(&mem->page[at].free, free);
    PN_CRASH("arena:taken");
    ctl->cells_free[class]--;
    own->cells_free[class]--;
    ctl->cells_used[class]++;
    own->bodies += class == PN_PAGE_BODY;
    if (free == 0 && !unlink_page(mem, class, at))
        return 0;
    return at * PN_ARENA_GRANULES + slot;
}

void pn_arena_give_locked(struct pn_arena *mem, uint32_t ref)
{
    pn_assert_arena_held(mem);
    struct pn_arena_control *ctl = mem->ctl;
    uint32_t at = ref / PN_ARENA_GRANULES, slot = ref % PN_ARENA_GRANULES;
    uint32_t class = pn_arena_inside(mem, ref) ? class_of(mem, at) : PN_PAGE_FREE;
    if (class >= PN_PAGE_CLASSES || !pn_arena_taken(mem, ref, (enum pn_page_class) class)) {
        pn_arena_broken(mem, "what is given back", ref);
        return;
    }
    struct pn_arena_owner *own = owner_at(mem, at);
    uint64_t free = pn_load_relaxed(&mem->page[at].free) | 1ULL << slot;
    if (pn_load_relaxed(&mem->page[at].free) == 0)
        link_page(mem, class, at);
    pn_store_relaxed(&mem->page[at].free, free);
    PN_CRASH("arena:given");
    ctl->cells_free[class]++;
    own->cells_free[class]++;
    ctl->cells_used[class]--;
    own->bodies -= class == PN_PAGE_BODY;
    ctl->given++;
    if (free != pn_arena_starts(class) || !unlink_page(mem, class, at))
        return;
    ctl->cells_free[class] -= cells_of_page[class];
    own->cells_free[class] -= cells_of_page[class];
    give_page(mem, at);
}

static uint64_t pages_for(uint64_t cells, uint64_t free, uint32_t class)
{
    uint64_t each = cells_of_page[class];
    return cells <= free ? 0 : (cells - free + each - 1) / each;
}

uint64_t pn_arena_pages_for(const struct pn_arena *mem, uint32_t owner,
                            const struct pn_arena_need *need)
{
    const struct pn_arena_owner *own = &mem->owner[owner < mem->owners ? owner : 0];
    uint64_t most = UINT32_MAX; /* of anything; so that the sums cannot wrap */
    if (need->deliveries > most || need->bodies > most || need->pages > most)
        return UINT64_MAX;
    return need->pages +
           pages_for(need->deliveries, own->cells_free[PN_PAGE_DELIVERY], PN_PAGE_DELIVERY) +
           pages_for(need->bodies, own->cells_free[PN_PAGE_BODY], PN_PAGE_BODY);
}

bool pn_arena_has_locked(const struct pn_arena *mem, uint32_t owner,
                         const struct pn_arena_need *need)
{
    pn_assert_arena_held(mem);
    return pn_arena_pages_for(mem, owner, need) <= mem->ctl->pages_free;
}

/* ---- rebuild (5) --------------------------------------------------------------------------- */

static uint32_t fresh_of(const struct pn_arena *mem)
{
    uint32_t fresh = mem->ctl->fresh;
    return fresh < mem->first ? mem->first : fresh > mem->pages ? mem->pages : fresh;
}

void pn_arena_rebuild_begin_locked(struct pn_arena *mem)
{
    pn_assert_arena_held(mem);
    const size_t derived = offsetof(struct pn_arena_control, free_pages);
    uint32_t fresh = fresh_of(mem);
    memset((char *) mem->ctl + derived, 0, sizeof *mem->ctl - derived);
    memset(mem->owner, 0, mem->owners * sizeof *mem->owner);
    mem->ctl->fresh = fresh;
    mem->ctl->pages_free = mem->pages - fresh;
}

uint32_t pn_arena_pages_used(const struct pn_arena *mem)
{
    return fresh_of(mem);
}

uint64_t pn_arena_cells_of(const struct pn_arena *mem, uint32_t page, enum pn_page_class class)
{
    return page >= mem->first && page < fresh_of(mem) && class_of(mem, page) == (uint32_t) class
               ? pn_arena_starts(class)
               : 0;
}

void pn_arena_unmark_page_locked(struct pn_arena *mem, uint32_t page)
{
    pn_assert_arena_held(mem);
    pn_store_relaxed(&mem->page[page].free, pn_arena_starts(class_of(mem, page)));
}

bool pn_arena_mark_locked(struct pn_arena *mem, uint32_t ref, enum pn_page_class class)
{
    pn_assert_arena_held(mem);
    if (ref / PN_ARENA_GRANULES >= mem->ctl->fresh || !pn_arena_valid(mem, ref, class) ||
        pn_arena_taken(mem, ref, class))
        return false;
    pn_atomic_u64 *free = &mem->page[ref / PN_ARENA_GRANULES].free;
    pn_store_relaxed(free, pn_load_relaxed(free) & ~(1ULL << ref % PN_ARENA_GRANULES));
    return true;
}

/* A page of cells, some of which are taken: the others' state words say so. */
static void settle_page(const struct pn_arena *mem, uint32_t class, uint32_t at, uint64_t mask)
{
    struct pn_arena_owner *own = owner_at(mem, at);
    uint64_t free = pn_load_relaxed(&mem->page[at].free);
    uint32_t n = pn_popcount(free);
    mem->ctl->cells_free[class] += n;
    mem->ctl->cells_used[class] += cells_of_page[class] - n;
    own->cells_free[class] += n;
    own->bodies += class == PN_PAGE_BODY ? cells_of_page[class] - n : 0;
    own->pages++;
    mem->page[at].owner = (uint32_t) (own - mem->owner); /* if it was none at all */
    if (n != 0)
        link_page(mem, class, at);
    for (; free != 0; free &= free - 1) {
        uint32_t ref = at * PN_ARENA_GRANULES + (uint32_t) __builtin_ctzll(free);
        if (class == PN_PAGE_DELIVERY)
            *(uint64_t *) pn_arena_at(mem, ref) &= mask;
        else
            ((struct pn_body_cell *) pn_arena_at(mem, ref))->state = 0;
    }
}

void pn_arena_settle_page_locked(struct pn_arena *mem, uint32_t page, uint64_t free_mask)
{
    pn_assert_arena_held(mem);
    uint32_t class = class_of(mem, page);
    if (class >= PN_PAGE_CLASSES ||
        pn_load_relaxed(&mem->page[page].free) == pn_arena_starts(class))
        free_page(mem, page);
    else
        settle_page(mem, class, page, free_mask);
}

uint32_t pn_arena_next_cell(const struct pn_arena *mem, enum pn_page_class class, uint32_t after)
{
    uint64_t starts = pn_arena_starts(class), left = starts;
    uint32_t fresh = fresh_of(mem), at = after / PN_ARENA_GRANULES;
    if (at < mem->first)
        at = mem->first;
    else
        left &= after % PN_ARENA_GRANULES == 63 ? 0 : UINT64_MAX << (after % PN_ARENA_GRANULES + 1);
    for (; at < fresh; at++, left = starts)
        if (left != 0 && class_of(mem, at) == (uint32_t) class)
            return at * PN_ARENA_GRANULES + (uint32_t) __builtin_ctzll(left);
    return 0;
}

/* ---- check --------------------------------------------------------------------------------- */

struct findings {
    void (*problem)(void *, const char *);
    void *arg;
    int n;
};

static void found(struct findings *f, const char *what, uint64_t got, uint64_t want)
{
    char text[160];
    snprintf(text, sizeof text, "arena: %s: %llu, not %llu", what, (unsigned long long) got,
             (unsigned long long) want);
    f->problem(f->arg, text);
    f->n++;
}

/* The lists of a class hold the pages of it that have free cells, each once, with its owner. */
static void check_lists(const struct pn_arena *mem, uint32_t class, uint32_t pages,
                        struct findings *f)
{
    uint32_t n = 0, cells = 0;
    for (uint32_t owner = 0; owner < mem->owners; owner++) {
        const struct pn_arena_owner *own = &mem->owner[owner];
        uint32_t prev = 0, at = own->partial[class], free = 0;
        for (; at != 0 && n <= pages; prev = at, at = mem->page[at].next, n++) {
            if (!page_inside(mem, at) || class_of(mem, at) != class ||
                pn_load_relaxed(&mem->page[at].free) == 0 || mem->page[at].prev != prev ||
                mem->page[at].owner != owner) {
                found(f, "a page in the list of another class or owner", at, class);
                return;
            }
            free += pn_popcount(pn_load_relaxed(&mem->page[at].free));
        }
        if (own->cells_free[class] != free)
            found(f, "count of an owner's free cells", own->cells_free[class], free);
        cells += free;
    }
    if (n != pages)
        found(f, "pages in the lists of a class", n, pages);
    if (mem->ctl->cells_free[class] != cells)
        found(f, "count of free cells in the lists", mem->ctl->cells_free[class], cells);
}

/* What each owner has, and what is left of the shares. */
static void check_owners(const struct pn_arena *mem, uint32_t pages, struct findings *f)
{
    uint64_t all = 0, bodies = 0, reserved = 0;
    for (uint32_t owner = 0; owner < mem->owners; owner++) {
        const struct pn_arena_owner *own = &mem->owner[owner];
        all += own->pages;
        bodies += own->bodies;
        if (own->counts != 0 && own->pages < mem->ctl->share)
            reserved += mem->ctl->share - own->pages;
    }
    if (all != pages)
        found(f, "pages of all owners", all, pages);
    if (bodies != mem->ctl->cells_used[PN_PAGE_BODY])
        found(f, "bodies of all owners", bodies, mem->ctl->cells_used[PN_PAGE_BODY]);
    if (reserved != mem->ctl->reserved)
        found(f, "pages reserved for all owners", mem->ctl->reserved, reserved);
}

static void check_free_list(const struct pn_arena *mem, uint32_t pages, struct findings *f)
{
    uint32_t n = 0;
    for (uint32_t at = mem->ctl->free_pages; at != 0 && n <= pages; at = mem->page[at].next, n++)
        if (!page_inside(mem, at) || class_of(mem, at) != PN_PAGE_FREE) {
            found(f, "the class of a page in the list of free ones", at, PN_PAGE_FREE);
            return;
        }
    if (n != pages)
        found(f, "free pages in their list", n, pages);
    if (mem->ctl->pages_free != pages + mem->pages - mem->ctl->fresh)
        found(f, "count of free pages", mem->ctl->pages_free, pages + mem->pages - mem->ctl->fresh);
}

/* One page of a class; true: it has free cells. */
static bool check_page(const struct pn_arena *mem, uint32_t class, uint32_t at, uint32_t *cells,
                       struct findings *f)
{
    uint64_t free = pn_load_relaxed(&mem->page[at].free), starts = pn_arena_starts(class);
    if ((free & ~starts) != 0 || free == starts)
        found(f, "free cells of a page", free, starts);
    *cells += pn_popcount(free & starts);
    for (free &= starts; class == PN_PAGE_BODY && free != 0; free &= free - 1) {
        uint32_t ref = at * PN_ARENA_GRANULES + (uint32_t) __builtin_ctzll(free);
        const struct pn_body_cell *cell = pn_arena_at(mem, ref);
        if (cell->state != 0)
            found(f, "state of a free cell", cell->state, 0);
    }
    return pn_load_relaxed(&mem->page[at].free) != 0;
}

int pn_arena_check(const struct pn_arena *mem, void (*problem)(void *arg, const char *text),
                   void *arg)
{
    const struct pn_arena_control *ctl = mem->ctl;
    struct findings f = {problem, arg, 0};
    uint32_t pages[PN_PAGE_CLASSES] = {0}, partial[PN_PAGE_CLASSES] = {0};
    uint32_t cells[PN_PAGE_CLASSES] = {0};
    if (ctl->fresh < mem->first || ctl->fresh > mem->pages)
        found(&f, "the first page that was never used", ctl->fresh, mem->pages);
    for (uint32_t at = mem->first; at < fresh_of(mem); at++) {
        uint32_t class = class_of(mem, at);
        if (class >= PN_PAGE_CLASSES) {
            found(&f, "the class of a page", class, at);
            continue;
        }
        pages[class]++;
        if (class != PN_PAGE_FREE)
            partial[class] += check_page(mem, class, at, &cells[class], &f);
    }
    for (uint32_t class = PN_PAGE_DELIVERY; class < PN_PAGE_CLASSES; class ++) {
        uint32_t used = pages[class] * cells_of_page[class] - cells[class];
        check_lists(mem, class, partial[class], &f);
        if (ctl->cells_free[class] != cells[class])
            found(&f, "count of free cells", ctl->cells_free[class], cells[class]);
        if (ctl->cells_used[class] != used)
            found(&f, "count of taken cells", ctl->cells_used[class], used);
    }
    check_free_list(mem, pages[PN_PAGE_FREE], &f);
    check_owners(mem, fresh_of(mem) - mem->first - pages[PN_PAGE_FREE], &f);
    return f.n;
}
