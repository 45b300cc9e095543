/*
 * timedset.c - a 4-ary heap in pages of the arena.
 *
 * 1. An entry has 16 bytes, and four fill a cache line.  The root stands at position 3 and the
 *    children of p at 4 (p - 2), so the children of a node are one line, and no line crosses a
 *    page.  A million entries are ten levels; a binary heap would have twenty, with a line each.
 * 2. Pages are named by the set itself (the first 12) or by two levels of pages of references: a
 *    channel with a few deferred messages takes one page, one with millions moves nothing when it
 *    grows.
 * 3. Each entry's position stands in its delivery as well, so that any can be removed.
 * 4. Room is promised first (reserve), where nothing may fail later: a publish with a delay, a
 *    requeue in a transaction that is prepared.  So entries and promises together have pages, and
 *    add and lend only move entries.  One page more than that is kept, so that a set whose
 *    size goes to and fro does not take and give pages; an empty set has none.
 * 5. Equal times are in the order of ids, as long as these do not wrap around in 32 bits.
 * 6. Everything is derived.  A kill leaves a heap with an entry twice or in no order, and recovery
 *    fills a new one.
 */
#define _GNU_SOURCE
#include "topic/timedset.h"
#include "segment/lock.h"

#include <stdio.h>
#include <string.h>

#define ROOT      3U
#define MAX_PAGES (PN_TIMED_DIRECT + PN_TIMED_FANOUT * PN_TIMED_FANOUT)

static void broken(const struct pn_arena *mem, uint32_t what)
{
    pn_arena_broken(mem, "a timed set", what);
}

static inline bool less(const struct pn_timed *a, const struct pn_timed *b)
{
    /* without branches: which of two children is less cannot be foreseen */
    return (a->due < b->due) | ((a->due == b->due) & (a->low < b->low));
}

/* ---- pages (2) ------------------------------------------------------------------------------- */

/* The page that a reference means, whatever stands there: its address is within the arena. */
static inline void *page_at(const struct pn_arena *mem, uint32_t ref)
{
    if (__builtin_expect(!pn_arena_inside(mem, ref), 0))
        return NULL;
    return mem->base + (uint64_t) (ref / PN_ARENA_GRANULES) * PN_ARENA_PAGE;
}

/* Where the reference to a page of entries stands; NULL: nowhere. */
static inline uint32_t *name_of(const struct pn_arena *mem, struct pn_timedset *set, uint32_t no)
{
    if (no < PN_TIMED_DIRECT)
        return &set->direct[no];
    no -= PN_TIMED_DIRECT;
    uint32_t *refs = page_at(mem, set->root);
    if (refs == NULL || no / PN_TIMED_FANOUT >= PN_TIMED_FANOUT)
        return NULL;
    refs = page_at(mem, refs[no / PN_TIMED_FANOUT]);
    return refs == NULL ? NULL : &refs[no % PN_TIMED_FANOUT];
}

static inline struct pn_timed *entry_at(const struct pn_arena *mem, const struct pn_timedset *set,
                                        uint32_t position)
{
    uint32_t no = position / PN_TIMED_PAGE;
    uint32_t *name = no < set->pages ? name_of(mem, (struct pn_timedset *) set, no) : NULL;
    struct pn_timed *page = name != NULL ? page_at(mem, *name) : NULL;
    if (__builtin_expect(page == NULL, 0)) {
        broken(mem, position);
        return NULL;
    }
    return page + position % PN_TIMED_PAGE;
}

/* Pages for so many entries, and pages of references for so many pages. */
static uint64_t pages_for(uint64_t entries)
{
    return entries == 0 ? 0 : (entries + ROOT + PN_TIMED_PAGE - 1) / PN_TIMED_PAGE;
}

static uint64_t names_for(uint64_t pages)
{
    if (pages <= PN_TIMED_DIRECT)
        return 0;
    return 1 + (pages - PN_TIMED_DIRECT + PN_TIMED_FANOUT - 1) / PN_TIMED_FANOUT;
}

uint32_t pn_timedset_pages(const struct pn_timedset *set)
{
    return (uint32_t) (set->pages + names_for(set->pages));
}

/* There are free pages enough. */
static bool add_page(struct pn_arena *mem, uint32_t owner, struct pn_timedset *set)
{
    uint32_t no = set->pages, beyond = no - PN_TIMED_DIRECT;
    if (no == PN_TIMED_DIRECT)
        set->root = pn_arena_take_locked(mem, owner, PN_PAGE_WHOLE);
    if (no >= PN_TIMED_DIRECT && beyond % PN_TIMED_FANOUT == 0) {
        uint32_t *refs = page_at(mem, set->root);
        if (refs != NULL)
            refs[beyond / PN_TIMED_FANOUT] = pn_arena_take_locked(mem, owner, PN_PAGE_WHOLE);
    }
    uint32_t *name = name_of(mem, set, no);
    if (name == NULL) {
        broken(mem, no);
        return false;
    }
    *name = pn_arena_take_locked(mem, owner, PN_PAGE_WHOLE);
    set->pages = no + 1;
    return *name != 0;
}

static void drop_page(struct pn_arena *mem, struct pn_timedset *set)
{
    uint32_t no = set->pages - 1, beyond = no - PN_TIMED_DIRECT;
    uint32_t *name = name_of(mem, set, no);
    if (name == NULL) {
        broken(mem, no);
        return;
    }
    pn_arena_give_locked(mem, *name);
    set->pages = no;
    if (no < PN_TIMED_DIRECT)
        return;
    const uint32_t *refs = page_at(mem, set->root);
    if (beyond % PN_TIMED_FANOUT == 0 && refs != NULL)
        pn_arena_give_locked(mem, refs[beyond / PN_TIMED_FANOUT]);
    if (beyond == 0) {
        pn_arena_give_locked(mem, set->root);
        set->root = 0;
    }
}

uint64_t pn_timedset_needs(const struct pn_timedset *set, uint32_t more)
{
    uint64_t have = set->pages, want = pages_for((uint64_t) set->n + set->reserved + more);
    return want <= have ? 0 : want + names_for(want) - have - names_for(have);
}

bool pn_timedset_reserve_locked(struct pn_arena *mem, uint32_t owner, struct pn_timedset *set,
                                uint32_t more)
{
    pn_assert_arena_held(mem);
    uint64_t want = pages_for((uint64_t) set->n + set->reserved + more);
    if (want > set->pages) {
        struct pn_arena_need need = {.pages = pn_timedset_needs(set, more)};
        if (want > MAX_PAGES || !pn_arena_has_locked(mem, owner, &need))
            return false;
        while (set->pages < want)
            if (!add_page(mem, owner, set))
                return false;
    }
    set->reserved += more;
    return true;
}

static void shrink(struct pn_arena *mem, struct pn_timedset *set)
{
    uint64_t keep = pages_for((uint64_t) set->n + set->reserved);
    if (keep != 0)
        keep++;
    if (set->pages > MAX_PAGES) {
        broken(mem, set->pages);
        return;
    }
    for (uint32_t before = set->pages; set->pages > keep; before = set->pages) {
        drop_page(mem, set);
        if (set->pages == before)
            return;
    }
}

void pn_timedset_unreserve_locked(struct pn_arena *mem, struct pn_timedset *set, uint32_t less)
{
    pn_assert_arena_held(mem);
    if (less > set->reserved) {
        broken(mem, less);
        return;
    }
    set->reserved -= less;
    shrink(mem, set);
}

void pn_timedset_forget_locked(const struct pn_arena *mem, struct pn_timedset *set)
{
    pn_assert_arena_held(mem);
    memset(set, 0, sizeof *set);
}

/* ---- the heap (1, 3) ------------------------------------------------------------------------- */

static inline uint32_t *position_of(const struct pn_arena *mem, uint32_t ref)
{
    if (__builtin_expect(!pn_arena_inside(mem, ref), 0))
        return NULL;
    return (uint32_t *) ((unsigned char *) pn_arena_at(mem, ref) + PN_TIMED_OFFSET);
}

static inline void place(const struct pn_arena *mem, struct pn_timed *at, struct pn_timed entry,
                         uint32_t position)
{
    uint32_t *back = position_of(mem, entry.ref);
    *at = entry;
    if (__builtin_expect(back == NULL, 0))
        broken(mem, entry.ref);
    else
        *back = position;
}

/* The entry goes to `position`, which is free, or to an ancestor, each of which moves down. */
static void sift_up(const struct pn_arena *mem, const struct pn_timedset *set,
                    struct pn_timed entry, uint32_t position)
{
    struct pn_timed *at = entry_at(mem, set, position);
    while (at != NULL && position > ROOT) {
        uint32_t above = position / 4 + 2;
        struct pn_timed *parent = entry_at(mem, set, above);
        if (parent == NULL)
            return;
        if (!less(&entry, parent))
            break;
        place(mem, at, *parent, position);
        position = above;
        at = parent;
    }
    if (at != NULL)
        place(mem, at, entry, position);
}

static inline uint32_t least_of_four(const struct pn_timed *child)
{
    uint32_t a = less(&child[1], &child[0]), b = 2U + less(&child[3], &child[2]);
    return less(&child[b], &child[a]) ? b : a;
}

static uint32_t least_of(const struct pn_timed *child, uint32_t n)
{
    uint32_t least = 0;
    for (uint32_t i = 1; i < n; i++)
        if (less(&child[i], &child[least]))
            least = i;
    return least;
}

/*
 * Where eight entries from `position` on begin, of which the first exists, and fetch their lines:
 * the children of two siblings stand side by side.
 */
static inline struct pn_timed *fetch_eight(const struct pn_arena *mem,
                                           const struct pn_timedset *set, uint64_t position,
                                           uint32_t end)
{
    struct pn_timed *eight = position < end ? entry_at(mem, set, (uint32_t) position) : NULL;
    if (eight != NULL) {
        __builtin_prefetch(eight);
        __builtin_prefetch(eight + 4);
    }
    return eight;
}

/*
 * Likewise, downwards; `end` is the first position that does not exist.  What the four children
 * have below them is fetched before it is known which of them is the least.
 */
static void sift_down(const struct pn_arena *mem, const struct pn_timedset *set,
                      struct pn_timed entry, uint32_t position, uint32_t end)
{
    struct pn_timed *at = entry_at(mem, set, position);
    uint64_t first = 4 * ((uint64_t) position - 2);
    struct pn_timed *child = first < end ? entry_at(mem, set, (uint32_t) first) : NULL;
    if (at == NULL)
        return;
    while (child != NULL) {
        uint64_t below = 4 * (first - 2);
        struct pn_timed *eight[2] = {fetch_eight(mem, set, below, end),
                                     fetch_eight(mem, set, below + 8, end)};
        uint32_t n = end - (uint32_t) first;
        uint32_t i = n >= 4 ? least_of_four(child) : least_of(child, n);
        if (!less(&child[i], &entry))
            break;
        place(mem, at, child[i], position);
        at = &child[i];
        position = (uint32_t) first + i;
        first = below + 4 * i;
        child = first < end && eight[i / 2] != NULL ? eight[i / 2] + i % 2 * 4 : NULL;
    }
    place(mem, at, entry, position);
}

void pn_timedset_add_locked(struct pn_arena *mem, struct pn_timedset *set, struct pn_timed entry)
{
    pn_assert_arena_held(mem);
    if (set->reserved == 0) {
        broken(mem, set->n);
        return;
    }
    set->reserved--;
    sift_up(mem, set, entry, ROOT + set->n++);
}

/* The entry at a position, which was looked at, leaves. */
static void take_out(struct pn_arena *mem, struct pn_timedset *set, uint32_t position)
{
    uint32_t last = ROOT + --set->n;
    struct pn_timed *from = entry_at(mem, set, last);
    if (from == NULL || position == last)
        return;
    struct pn_timed entry = *from;
    if (position > ROOT) {
        struct pn_timed *parent = entry_at(mem, set, position / 4 + 2);
        if (parent == NULL)
            return;
        if (less(&entry, parent)) {
            sift_up(mem, set, entry, position);
            return;
        }
    }
    sift_down(mem, set, entry, position, last);
}

void pn_timedset_lend_locked(struct pn_arena *mem, struct pn_timedset *set, uint32_t ref)
{
    pn_assert_arena_held(mem);
    uint32_t *back = position_of(mem, ref);
    if (back != NULL && *back == 0)
        return;
    struct pn_timed *entry = NULL;
    if (back != NULL && *back >= ROOT && *back - ROOT < set->n)
        entry = entry_at(mem, set, *back);
    if (entry == NULL || entry->ref != ref) {
        broken(mem, ref);
        return;
    }
    uint32_t position = *back;
    *back = 0;
    take_out(mem, set, position);
    set->reserved++;
}

/* ---- looking --------------------------------------------------------------------------------- */

bool pn_timedset_first(const struct pn_arena *mem, const struct pn_timedset *set,
                       struct pn_timed *out)
{
    return pn_timedset_entry(mem, set, 0, out);
}

bool pn_timedset_entry(const struct pn_arena *mem, const struct pn_timedset *set, uint32_t i,
                       struct pn_timed *out)
{
    const struct pn_timed *entry = i < set->n ? entry_at(mem, set, ROOT + i) : NULL;
    if (entry == NULL)
        return false;
    *out = *entry;
    return true;
}

/* Where to go on when nothing below p is due: its next sibling, or that of an ancestor. */
static uint32_t beside(uint32_t p)
{
    while (p > ROOT && p % 4 == 3)
        p = p / 4 + 2;
    return p > ROOT ? p + 1 : 0;
}

bool pn_timedset_next_due(const struct pn_arena *mem, const struct pn_timedset *set, int64_t now,
                          uint32_t *at, struct pn_timed *out)
{
    uint32_t p = *at == 0 ? ROOT : 4 * (*at - 2); /* no child is due before its parent */
    while (p != 0 && !(pn_timedset_entry(mem, set, p - ROOT, out) && out->due <= now))
        p = beside(p);
    *at = p;
    return p != 0;
}

uint32_t pn_timedset_find(const struct pn_arena *mem, const struct pn_timedset *set, uint32_t low,
                          uint32_t i)
{
    while (i < set->n) {
        uint32_t position = ROOT + i, left = PN_TIMED_PAGE - position % PN_TIMED_PAGE;
        const struct pn_timed *entry = entry_at(mem, set, position);
        if (entry == NULL)
            return set->n;
        if (left > set->n - i)
            left = set->n - i;
        for (uint32_t k = 0; k < left; k++)
            if (entry[k].low == low)
                return i + k;
        i += left;
    }
    return set->n;
}

/* ---- check ----------------------------------------------------------------------------------- */

/* One entry: known to its delivery, and not before its parent. */
static const char *entry_problem(const struct pn_arena *mem, const struct pn_timedset *set,
                                 uint32_t i)
{
    struct pn_timed entry, parent;
    if (!pn_timedset_entry(mem, set, i, &entry))
        return "an entry cannot be read";
    if (!pn_arena_taken(mem, entry.ref, PN_PAGE_DELIVERY))
        return "an entry's delivery is none";
    if (*position_of(mem, entry.ref) != ROOT + i)
        return "a delivery does not know its entry";
    if (i > 0 && pn_timedset_entry(mem, set, (ROOT + i) / 4 + 2 - ROOT, &parent) &&
        less(&entry, &parent))
        return "an entry is before its parent";
    return NULL;
}

int pn_timedset_check(const struct pn_arena *mem, const struct pn_timedset *set,
                      void (*problem)(void *arg, const char *text), void *arg)
{
    char text[128];
    int n = 0;
    uint64_t pages = pages_for((uint64_t) set->n + set->reserved);
    if (set->pages < pages || set->pages > pages + (pages != 0) || set->pages > MAX_PAGES) {
        snprintf(text, sizeof text, "timed set: %u pages for %u entries and %u promised",
                 set->pages, set->n, set->reserved);
        problem(arg, text);
        return 1;
    }
    for (uint32_t no = 0; no < set->pages; no++) {
        const uint32_t *name = name_of(mem, (struct pn_timedset *) set, no);
        if (name == NULL || !pn_arena_taken(mem, *name, PN_PAGE_WHOLE)) {
            problem(arg, "timed set: a page of it is none");
            return 1;
        }
    }
    for (uint32_t i = 0; i < set->n; i++) {
        const char *what = entry_problem(mem, set, i);
        if (what == NULL)
            continue;
        snprintf(text, sizeof text, "timed set: %s (%u of %u)", what, i, set->n);
        problem(arg, text);
        n++;
    }
    return n;
}
