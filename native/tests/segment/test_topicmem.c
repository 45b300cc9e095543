/* The arena of the topics: cells, chains, exact accounts, rebuild; against a plain model. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "arena_rebuild.h"
#include "topic_arena.h"

#include "segment/arena_body.h"

enum { HEAD = 88, PAGES = 64, MAX_REFS = PAGES * PN_ARENA_GRANULES };

static const uint32_t cell_size[PN_PAGE_CLASSES] = {0, PN_DELIVERY_CELL, PN_BODY_CELL,
                                                    PN_ARENA_PAGE};
static const uint32_t cells_each[PN_PAGE_CLASSES] = {0, 64, 12, 1};

static uint32_t refs[MAX_REFS];

static uint32_t take_all(struct pn_arena *mem, enum pn_page_class class)
{
    uint32_t n = 0;
    for (uint32_t ref; (ref = pn_arena_take_locked(mem, 0, class)) != 0;) {
        CHECK(n < MAX_REFS);
        refs[n++] = ref;
    }
    return n;
}

static void give_all(struct pn_arena *mem, uint32_t n)
{
    while (n > 0)
        pn_arena_give_locked(mem, refs[--n]);
}

static uint64_t cells_used(const struct pn_arena *mem)
{
    uint64_t sum = 0;
    for (uint32_t class = 0; class < PN_PAGE_CLASSES; class ++)
        sum += mem->ctl->cells_used[class];
    return sum;
}

static void test_each_class_fills_the_arena(void)
{
    static unsigned char owner[PAGES * PN_ARENA_PAGE / 64];
    struct pn_arena mem = arena_make(PAGES);
    uint32_t pages = mem.pages - mem.first;
    for (uint32_t class = PN_PAGE_DELIVERY; class < PN_PAGE_CLASSES; class ++) {
        uint32_t n = take_all(&mem, (enum pn_page_class) class);
        CHECK_EQ(n, pages * cells_each[class]);
        CHECK_EQ(mem.ctl->cells_used[class], n);
        CHECK_EQ(cells_used(&mem), n);
        CHECK_EQ(mem.ctl->pages_free, 0);
        memset(owner, 0, sizeof owner);
        for (uint32_t i = 0; i < n; i++) {
            uint64_t at = (uint64_t) refs[i] * 64;
            CHECK(at >= mem.first * PN_ARENA_PAGE && at % 64 == 0);
            CHECK(at / PN_ARENA_PAGE == (at + cell_size[class] - 1) / PN_ARENA_PAGE);
            CHECK(at + cell_size[class] <= (uint64_t) mem.pages * PN_ARENA_PAGE);
            for (uint64_t granule = at / 64; granule < (at + cell_size[class]) / 64; granule++)
                CHECK_EQ(owner[granule]++, 0);
        }
        CHECK_ARENA(&mem);
        give_all(&mem, n); /* and the pages are there for the next class */
        CHECK_ARENA(&mem);
        CHECK_EQ(mem.ctl->pages_free, pages);
        CHECK_EQ(cells_used(&mem), 0);
    }
    arena_free(&mem);
}

static void test_a_page_that_was_something_else_is_formatted(void)
{
    struct pn_arena mem = arena_make(PAGES);
    uint32_t n = take_all(&mem, PN_PAGE_WHOLE);
    for (uint32_t i = 0; i < n; i++)
        memset(pn_arena_at(&mem, refs[i]), 0xff, PN_ARENA_PAGE);
    give_all(&mem, n);
    CHECK(pn_arena_take_locked(&mem, 0, PN_PAGE_DELIVERY) != 0);
    CHECK(pn_arena_take_locked(&mem, 0, PN_PAGE_BODY) != 0);
    uint32_t deliveries = 0, bodies = 0, ref = 0;
    while ((ref = pn_arena_next_cell(&mem, PN_PAGE_DELIVERY, ref)) != 0) {
        CHECK_EQ(*(uint64_t *) pn_arena_at(&mem, ref), 0);
        deliveries++;
    }
    while ((ref = pn_arena_next_cell(&mem, PN_PAGE_BODY, ref)) != 0) {
        CHECK_EQ(((struct pn_body_cell *) pn_arena_at(&mem, ref))->state, 0);
        bodies++;
    }
    CHECK_EQ(deliveries, 64);
    CHECK_EQ(bodies, PN_BODY_CELLS);
    arena_free(&mem);
}

/* Pages that are not needed are not written, not even zeroed: the area is a file with a hole. */
static void test_untouched_pages_stay_untouched(void)
{
    struct pn_arena mem = arena_make(PAGES);
    memset(mem.base + mem.first * PN_ARENA_PAGE, 0xee,
           (size_t) (mem.pages - mem.first) * PN_ARENA_PAGE);
    for (uint32_t i = 0; i < 3; i++)
        CHECK(pn_arena_take_locked(&mem, 0, PN_PAGE_WHOLE) != 0);
    CHECK_EQ(mem.ctl->fresh, mem.first + 3);
    for (uint64_t at = (uint64_t) mem.first * PN_ARENA_PAGE; at < (uint64_t) PAGES * 4096; at++)
        CHECK_EQ(mem.base[at], 0xee);
    arena_free(&mem);
}

/* References reach the end of an area of 6 GiB, of which hardly anything is touched. */
static void test_the_end_of_a_large_area(void)
{
    struct pn_arena mem = arena_make(6U << 18);
    mem.ctl->fresh = mem.pages - 3;
    mem.ctl->pages_free = 3;
    uint32_t n = take_all(&mem, PN_PAGE_BODY);
    CHECK_EQ(n, 36);
    CHECK_EQ((uint64_t) refs[35] * 64, (6ULL << 30) - 4096 + 55 * 64);
    memset(pn_arena_at(&mem, refs[35]), 0, PN_BODY_CELL);
    CHECK(pn_arena_valid(&mem, refs[35], PN_PAGE_BODY));
    CHECK(!pn_arena_inside(&mem, mem.pages * 64));
    CHECK(!pn_arena_inside(&mem, UINT32_MAX));
    CHECK(!pn_arena_inside(&mem, 63));
    give_all(&mem, n);
    CHECK_EQ(mem.ctl->pages_free, 3);
    arena_free(&mem);
}

/* ---- bodies ---------------------------------------------------------------------------------- */

static unsigned char text[300000], back[300000];

static void fill_text(uint64_t seed, uint64_t len)
{
    for (size_t i = 0; i < len; i++)
        text[i] = (unsigned char) test_random(&seed);
}

static struct pn_arena_need used_now(const struct pn_arena *mem)
{
    const uint32_t *used = mem->ctl->cells_used;
    return (struct pn_arena_need) {used[PN_PAGE_DELIVERY], used[PN_PAGE_BODY], used[PN_PAGE_WHOLE],
                                   0, 0};
}

static void one_chain(struct pn_arena *mem, uint32_t head, uint32_t headers, uint32_t len,
                      bool cells)
{
    struct pn_arena_need need = {.deliveries = 0}, counted = need;
    unsigned char before[HEAD * 3];
    uint32_t ref = cells ? pn_arena_take_cells_locked(mem, 0, head, headers + len)
                         : pn_arena_take_body_locked(mem, 0, head, headers + len);
    struct pn_piece pieces[] = {{text, headers}, {NULL, 0}, {text + headers, len}};
    CHECK(ref != 0);
    CHECK_EQ(((struct pn_body_cell *) pn_arena_at(mem, ref))->state, 0);
    if (cells)
        pn_arena_need_cells(&need, head, headers + len);
    else
        pn_arena_need_body(&need, head, headers + len, 1);
    CHECK(!cells || need.pages == 0);
    pn_arena_count_body(mem, ref, head, headers + len, &counted);
    CHECK(memcmp(&need, &counted, sizeof need) == 0);
    CHECK(memcmp(&need,
                 &(struct pn_arena_need) {0, used_now(mem).bodies, used_now(mem).pages, 0, 0},
                 sizeof need) == 0);
    memset((char *) pn_arena_at(mem, ref) + 8, 0xaa, head - 8);
    memcpy(before, pn_arena_at(mem, ref), head);
    CHECK_OK(pn_arena_write_body(mem, ref, head, pieces, 3));
    CHECK(memcmp(before, pn_arena_at(mem, ref), head) == 0);
    memset(back, 0, headers + len);
    CHECK(pn_arena_read(mem, ref, head, 0, back, headers));
    CHECK(pn_arena_read(mem, ref, head, headers, back + headers, len));
    CHECK(memcmp(back, text, headers + len) == 0);
    if (len > 3) { /* not before the end, and no byte more */
        memset(back, 0, 8);
        CHECK(pn_arena_read(mem, ref, head, headers + len - 3, back, 3));
        CHECK(memcmp(back, text + headers + len - 3, 3) == 0);
        CHECK_EQ(back[3], 0);
    }
    CHECK_ARENA(mem);
    CHECK_OK(pn_arena_give_body_locked(mem, ref));
    CHECK_ARENA(mem);
    CHECK_EQ(cells_used(mem), 0);
}

static void one_body(struct pn_arena *mem, uint32_t head, uint32_t headers, uint32_t len)
{
    one_chain(mem, head, headers, len, false);
    one_chain(mem, head, headers, len, true);
}

static void test_bodies_of_all_lengths(void)
{
    struct pn_arena mem = arena_make(128);
    fill_text(7, sizeof text);
    for (uint32_t len = 0; len < 1000; len++)
        one_body(&mem, HEAD, 0, len);
    for (uint32_t head = 8; head <= 256; head += 8)
        for (uint32_t len = 1; len < 20000; len += 509)
            one_body(&mem, head, len % 77, len);
    for (uint32_t pages = 1; pages < 60; pages += 13)
        for (uint32_t len = pages * 4096 - 2; len < pages * 4096 + 600; len += 37)
            one_body(&mem, HEAD, 232 % len, len);
    arena_free(&mem);
}

/* 200 bytes behind a header of 88: one cell.  A body that fills pages wastes less than one. */
static void test_what_a_body_takes(void)
{
    struct pn_arena_need need = {.deliveries = 0};
    pn_arena_need_body(&need, HEAD, 200, 1000);
    CHECK_EQ(need.bodies, 1000);
    CHECK_EQ(need.pages, 0);
    for (uint64_t len = 1000; len < 100000; len += 17) {
        need = (struct pn_arena_need) {0, 0, 0, 0, 0};
        pn_arena_need_body(&need, HEAD, len, 1);
        uint64_t bytes = need.bodies * 342 + need.pages * 4096; /* a twelfth of a page */
        CHECK(bytes < len + HEAD + 1000);
        CHECK(need.bodies <= PN_BODY_CELLS);
    }
}

static void test_a_body_that_does_not_fit_takes_nothing(void)
{
    struct pn_arena mem = arena_make(PAGES);
    uint64_t pages = mem.pages - mem.first;
    CHECK_EQ(pn_arena_take_body_locked(&mem, 0, HEAD, pages * 4096), 0);
    CHECK_EQ(pn_arena_take_body_locked(&mem, 0, HEAD, UINT64_MAX / 2), 0);
    CHECK_EQ(mem.ctl->pages_free, pages);
    uint32_t ref = pn_arena_take_body_locked(&mem, 0, HEAD, (pages - 1) * 4096);
    CHECK(ref != 0);
    CHECK_EQ(mem.ctl->pages_free, 0);
    CHECK_EQ(pn_arena_take_body_locked(&mem, 0, HEAD, 8000), 0);
    CHECK_EQ(pn_arena_take_locked(&mem, 0, PN_PAGE_DELIVERY), 0);
    CHECK_ARENA(&mem);
    CHECK(!arena_was_poisoned());
    arena_free(&mem);
}

/* One cell of each page is taken: no page is free, and nearly all of the arena. */
static void test_a_body_in_cells_where_no_page_is_free(void)
{
    struct pn_arena mem = arena_make(PAGES);
    uint32_t ref, taken = 0;
    while ((ref = pn_arena_take_locked(&mem, 0, PN_PAGE_BODY)) != 0)
        if (taken++ % PN_BODY_CELLS != 0)
            ((struct pn_body_cell *) pn_arena_at(&mem, ref))->state = 7;
    for (uint32_t at = 0; (at = pn_arena_next_cell(&mem, PN_PAGE_BODY, at)) != 0;) {
        struct pn_body_cell *cell = pn_arena_at(&mem, at);
        if (cell->state != 7)
            continue;
        cell->state = 0;
        pn_arena_give_locked(&mem, at);
    }
    CHECK_EQ(mem.ctl->pages_free, 0);
    CHECK_EQ(pn_arena_take_body_locked(&mem, 0, HEAD, 5000), 0);
    uint32_t bodies = 0;
    while (pn_arena_take_cells_locked(&mem, 0, HEAD, 5000) != 0)
        bodies++;
    CHECK_EQ(mem.ctl->cells_used[PN_PAGE_BODY], (mem.pages - mem.first) + 17 * bodies);
    CHECK(mem.ctl->cells_free[PN_PAGE_BODY] < 17);
    CHECK_EQ(pn_arena_take_cells_locked(&mem, 0, HEAD, UINT64_MAX / 2), 0);
    CHECK(!arena_was_poisoned());
    arena_free(&mem);
}

/* ---- against a model ------------------------------------------------------------------------- */

static struct {
    uint32_t ref, class, mark;
    uint64_t len; /* BODY */
} live[MAX_REFS];
static uint32_t nlive, next_mark;

static bool model_take(struct pn_arena *mem, uint64_t r)
{
    uint32_t class = PN_PAGE_DELIVERY + (uint32_t) (r % 3);
    uint64_t len = (r >> 8) % 16 == 0 ? (r >> 16) % 20000 : (r >> 16) % 700;
    uint32_t owner = (uint32_t) (r >> 40) % ARENA_OWNERS;
    bool cells = (r >> 44) % 3 == 0;
    uint32_t ref = class != PN_PAGE_BODY
                       ? pn_arena_take_locked(mem, owner, (enum pn_page_class) class)
                   : cells ? pn_arena_take_cells_locked(mem, owner, HEAD, len)
                           : pn_arena_take_body_locked(mem, owner, HEAD, len);
    CHECK(ref == 0 || pn_arena_owner_of(mem, ref) == owner);
    if (ref == 0)
        return false;
    CHECK(nlive < MAX_REFS);
    live[nlive].ref = ref, live[nlive].class = class, live[nlive].len = len;
    live[nlive].mark = ++next_mark;
    if (class == PN_PAGE_BODY) {
        fill_text(next_mark, len);
        CHECK_OK(pn_arena_write_body(mem, ref, HEAD, &(struct pn_piece) {text, len}, 1));
        ((struct pn_body_cell *) pn_arena_at(mem, ref))->state = 2;
    } else {
        memset(pn_arena_at(mem, ref), (int) next_mark, cell_size[class]);
    }
    nlive++;
    return true;
}

static void model_verify(struct pn_arena *mem, uint32_t i)
{
    if (live[i].class == PN_PAGE_BODY) {
        fill_text(live[i].mark, live[i].len);
        CHECK(pn_arena_read(mem, live[i].ref, HEAD, 0, back, live[i].len));
        CHECK(memcmp(back, text, live[i].len) == 0);
        return;
    }
    const unsigned char *cell = pn_arena_cell(mem, live[i].ref, (enum pn_page_class) live[i].class);
    CHECK(cell != NULL);
    for (uint32_t k = 0; k < cell_size[live[i].class]; k++)
        CHECK_EQ(cell[k], (unsigned char) live[i].mark);
}

static void model_give(struct pn_arena *mem, uint32_t i)
{
    model_verify(mem, i);
    if (live[i].class == PN_PAGE_BODY) {
        CHECK_OK(pn_arena_give_body_locked(mem, live[i].ref));
    } else {
        if (live[i].class == PN_PAGE_DELIVERY)
            *(uint64_t *) pn_arena_at(mem, live[i].ref) = 0;
        pn_arena_give_locked(mem, live[i].ref);
    }
    live[i] = live[--nlive];
}

/* So many random steps, taking more often than giving for a while, then the other way. */
static void model_run(struct pn_arena *mem, uint64_t *seed, int steps)
{
    for (int i = 0; i < steps; i++) {
        uint64_t r = test_random(seed);
        bool growing = i / 300 % 2 == 0;
        if (nlive == 0 || r % 8 < (growing ? 6 : 2))
            model_take(mem, r >> 8);
        else
            model_give(mem, (uint32_t) (r >> 8) % nlive);
    }
}

static void model_mark(struct pn_arena *mem, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        CHECK(live[i].class == PN_PAGE_BODY
                  ? pn_arena_mark_body_locked(mem, live[i].ref, HEAD, live[i].len)
                  : pn_arena_mark_locked(mem, live[i].ref, (enum pn_page_class) live[i].class));
}

static void test_random_use_against_a_model(void)
{
    struct pn_arena mem = arena_make(PAGES);
    uint64_t seed = 20261121;
    nlive = 0;
    for (int i = 0; i < 40; i++) {
        model_run(&mem, &seed, 150);
        CHECK_ARENA(&mem);
    }
    while (nlive > 0)
        model_give(&mem, nlive - 1);
    CHECK_ARENA(&mem);
    CHECK_EQ(mem.ctl->pages_free, mem.pages - mem.first);
    arena_free(&mem);
}

/* What `has` says is what happens, in any order; tried on a copy. */
static void test_has_is_exact(void)
{
    struct pn_arena mem = arena_make(PAGES), copy = arena_make(PAGES);
    uint64_t seed = 99;
    unsigned yes = 0, no = 0;
    nlive = 0;
    for (int i = 0; i < 1000; i++) {
        model_run(&mem, &seed, 7);
        uint64_t r = test_random(&seed), pages = mem.ctl->pages_free;
        struct pn_arena_need need = {r % (pages * 64 + 70), (r >> 16) % (pages * 12 + 12),
                                     (r >> 32) % (pages + 2), 0, 0};
        if (i % 2 == 0) /* at most one of them large: the sum is often near the edge */
            need.deliveries /= 3, need.bodies /= 3, need.pages /= 2;
        memcpy(copy.base, mem.base, (size_t) PAGES * PN_ARENA_PAGE);
        const uint64_t amount[] = {0, need.deliveries, need.bodies, need.pages};
        bool fits = true;
        for (int k = 0; k < 3; k++) {
            uint32_t class = PN_PAGE_DELIVERY + (uint32_t) (i + k) % 3;
            for (uint64_t n = amount[class]; n > 0; n--)
                fits &= pn_arena_take_locked(&copy, 0, (enum pn_page_class) class) != 0;
        }
        CHECK_EQ(pn_arena_has_locked(&mem, 0, &need), fits);
        yes += fits, no += !fits;
    }
    CHECK(yes > 100 && no > 100);
    CHECK(!pn_arena_has_locked(&mem, 0,
                               &(struct pn_arena_need) {UINT64_MAX, UINT64_MAX, UINT64_MAX, 0, 0}));
    CHECK(pn_arena_has_locked(&mem, 0, &(struct pn_arena_need) {0, 0, 0, 0, 0}));
    arena_free(&mem);
    arena_free(&copy);
}

/* ---- rebuild --------------------------------------------------------------------------------- */

/* Whatever stands in the derived fields: they may be anything when their writer was killed. */
static void spoil_what_is_derived(struct pn_arena *mem, uint64_t *seed)
{
    uint32_t fresh = mem->ctl->fresh;
    for (uint32_t at = mem->first; at < mem->pages; at++) {
        struct pn_arena_page *page = &mem->page[at];
        page->free = test_random(seed);
        page->prev = (uint32_t) test_random(seed);
        page->next = (uint32_t) test_random(seed) % 80;
    }
    for (size_t i = 0; i < sizeof *mem->ctl; i++)
        ((unsigned char *) mem->ctl)[i] = (unsigned char) test_random(seed);
    for (size_t i = 0; i < ARENA_OWNERS * sizeof *mem->owner; i++)
        ((unsigned char *) mem->owner)[i] = (unsigned char) test_random(seed);
    mem->ctl->fresh = fresh;
}

static void test_rebuild_from_what_is_true(void)
{
    struct pn_arena mem = arena_make(PAGES);
    uint64_t seed = 4;
    nlive = 0;
    for (int i = 0; i < 60; i++) {
        model_run(&mem, &seed, 130);
        uint64_t used = cells_used(&mem), free = mem.ctl->pages_free;
        spoil_what_is_derived(&mem, &seed);
        rebuild_begin(&mem);
        model_mark(&mem, nlive / 2);
        if (i % 2 == 0) /* the rebuilder was killed too */
            spoil_what_is_derived(&mem, &seed);
        rebuild_begin(&mem);
        model_mark(&mem, nlive);
        rebuild_end(&mem, 0);
        CHECK_ARENA(&mem);
        CHECK_EQ(cells_used(&mem), used);
        CHECK_EQ(mem.ctl->pages_free, free);
        for (uint32_t k = 0; k < nlive; k++)
            model_verify(&mem, k);
    }
    CHECK(!arena_was_poisoned());
    arena_free(&mem);
}

static void test_what_is_not_marked_is_free(void)
{
    const uint64_t tag = UINT64_C(0x5a) << 35;
    struct pn_arena mem = arena_make(PAGES);
    uint32_t kept = pn_arena_take_locked(&mem, 0, PN_PAGE_DELIVERY);
    uint32_t lost = pn_arena_take_locked(&mem, 0, PN_PAGE_DELIVERY);
    uint32_t body = pn_arena_take_body_locked(&mem, 0, HEAD, 0);
    uint32_t other = pn_arena_take_body_locked(&mem, 0, HEAD, 5000);
    uint32_t page = pn_arena_take_locked(&mem, 0, PN_PAGE_WHOLE);
    *(uint64_t *) pn_arena_at(&mem, kept) = tag | 3;
    *(uint64_t *) pn_arena_at(&mem, lost) = tag | 1;
    ((struct pn_body_cell *) pn_arena_at(&mem, body))->state = 2;
    ((struct pn_body_cell *) pn_arena_at(&mem, other))->state = 1;
    rebuild_begin(&mem);
    CHECK(pn_arena_mark_locked(&mem, kept, PN_PAGE_DELIVERY));
    CHECK(!pn_arena_mark_locked(&mem, kept, PN_PAGE_DELIVERY)); /* twice */
    CHECK(!pn_arena_mark_locked(&mem, lost, PN_PAGE_BODY));     /* not that class */
    CHECK(!pn_arena_mark_locked(&mem, body + 1, PN_PAGE_BODY)); /* no beginning */
    CHECK(!pn_arena_mark_locked(&mem, 0, PN_PAGE_WHOLE));
    CHECK(!pn_arena_mark_locked(&mem, (mem.ctl->fresh) * 64, PN_PAGE_FREE));
    CHECK(pn_arena_mark_body_locked(&mem, body, HEAD, 0));
    rebuild_end(&mem, ~(uint64_t) 0 << 35);
    CHECK_ARENA(&mem);
    CHECK_EQ(*(uint64_t *) pn_arena_at(&mem, kept), tag | 3);
    CHECK_EQ(*(uint64_t *) pn_arena_at(&mem, lost), tag);
    CHECK_EQ(((struct pn_body_cell *) pn_arena_at(&mem, other))->state, 0);
    CHECK(!pn_arena_taken(&mem, page, PN_PAGE_WHOLE));
    CHECK_EQ(mem.ctl->cells_used[PN_PAGE_DELIVERY], 1);
    CHECK_EQ(mem.ctl->cells_used[PN_PAGE_BODY], 1);
    CHECK_EQ(cells_used(&mem), 2);
    arena_free(&mem);
}

/* ---- what must not be believed --------------------------------------------------------------- */

static void test_a_broken_chain_does_not_mark(void)
{
    struct pn_arena mem = arena_make(PAGES);
    const uint64_t len = 2 * 4096 + 1000; /* two pages and three cells */
    uint32_t ref = pn_arena_take_body_locked(&mem, 0, HEAD, len);
    uint32_t *first = &((struct pn_body_cell *) pn_arena_at(&mem, ref))->next;
    uint32_t *page = &mem.page[*first / 64].chain, whole = *first;
    struct pn_body_cell *cell = pn_arena_at(&mem, mem.page[*page / 64].chain);
    for (int i = 0; i < 6; i++) {
        uint32_t *link = i < 3 ? first : i < 5 ? page : &cell->next, good = *link;
        *link = (uint32_t[]) {UINT32_MAX, 0, ref, whole, mem.ctl->fresh * 64, 7}[i];
        rebuild_begin(&mem);
        CHECK(!pn_arena_mark_body_locked(&mem, ref, HEAD, len));
        *link = good;
    }
    rebuild_begin(&mem);
    CHECK(!pn_arena_mark_body_locked(&mem, ref, HEAD, len + 1000)); /* another length */
    rebuild_begin(&mem);
    CHECK(!pn_arena_mark_body_locked(&mem, ref, HEAD, 0));
    cell->state = 2; /* a message of its own */
    rebuild_begin(&mem);
    CHECK(!pn_arena_mark_body_locked(&mem, ref, HEAD, len));
    cell->state = PN_BODY_CHAINED;
    rebuild_begin(&mem);
    CHECK(pn_arena_mark_body_locked(&mem, ref, HEAD, len));
    rebuild_end(&mem, 0);
    CHECK_ARENA(&mem);
    CHECK(!arena_was_poisoned());
    arena_free(&mem);
}

static void test_a_loop_ends(void)
{
    struct pn_arena mem = arena_make(PAGES);
    uint32_t ref = pn_arena_take_body_locked(&mem, 0, HEAD, 3000);
    struct pn_body_cell *cell = pn_arena_at(&mem, ref);
    struct pn_body_cell *second = pn_arena_at(&mem, cell->next);
    second->next = cell->next;
    CHECK(pn_arena_read(&mem, ref, HEAD, 0, back, 3000)); /* some bytes; it ends */
    CHECK_OK(pn_arena_write_body(&mem, ref, HEAD, &(struct pn_piece) {text, 3000}, 1));
    CHECK(!arena_was_poisoned());
    CHECK(pn_arena_give_body_locked(&mem, ref) < 0);
    CHECK(arena_was_poisoned());
    arena_free(&mem);
}

static void test_bad_references_poison(void)
{
    struct pn_arena mem = arena_make(PAGES);
    uint32_t ref = pn_arena_take_locked(&mem, 0, PN_PAGE_DELIVERY);
    uint32_t body = pn_arena_take_body_locked(&mem, 0, HEAD, 2000);
    const uint32_t bad[] = {0, 1, ref + 1, body + 1, mem.pages * 64, UINT32_MAX, 70, 5};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        pn_arena_give_locked(&mem, bad[i]);
        CHECK(arena_was_poisoned());
        CHECK(pn_arena_cell(&mem, bad[i], PN_PAGE_BODY) == NULL);
        CHECK(arena_was_poisoned());
        CHECK(pn_arena_give_body_locked(&mem, bad[i]) < 0);
        CHECK(arena_was_poisoned());
        CHECK(!pn_arena_read(&mem, bad[i], HEAD, 0, back, 1));
        CHECK(!arena_was_poisoned()); /* its caller knows what that means */
    }
    struct pn_body_cell *first = pn_arena_at(&mem, body);
    struct pn_body_cell *other = pn_arena_at(&mem, pn_arena_take_body_locked(&mem, 0, HEAD, 0));
    other->state = 2; /* a message of its own, and a cell of another class */
    const uint32_t next[] = {(uint32_t) (((unsigned char *) other - mem.base) / 64), ref};
    for (int i = 0; i < 2; i++) {
        first->next = next[i];
        CHECK(!pn_arena_read(&mem, body, HEAD, 0, back, 300));
        CHECK(pn_arena_write_body(&mem, body, HEAD, &(struct pn_piece) {text, 300}, 1) < 0);
        CHECK(arena_was_poisoned());
    }
    first->next = next[0];
    CHECK(pn_arena_give_body_locked(&mem, body) < 0);
    CHECK(arena_was_poisoned());
    CHECK(pn_arena_taken(&mem, next[0], PN_PAGE_BODY));
    pn_arena_give_locked(&mem, ref);
    CHECK(!arena_was_poisoned());
    pn_arena_give_locked(&mem, ref); /* twice */
    CHECK(arena_was_poisoned());
    CHECK_STR(arena_header.poison_reason, "what is given back of the topics leads nowhere (64)");
    arena_free(&mem);
}

static void test_a_broken_list_of_pages_poisons(void)
{
    struct pn_arena mem = arena_make(PAGES);
    uint32_t ref = pn_arena_take_locked(&mem, 0, PN_PAGE_DELIVERY);
    mem.page[ref / PN_ARENA_GRANULES].prev = UINT32_MAX;
    pn_arena_give_locked(&mem, ref); /* its page is empty, and leaves the list */
    CHECK(arena_was_poisoned());
    CHECK(strstr(arena_header.poison_reason, "a list of pages of the topics") != NULL);
    arena_free(&mem);
}

/* Any field of the arena may hold anything: nothing crashes, nothing is without an end. */
static void test_scribbled_all_over(void)
{
    struct pn_arena mem = arena_make(PAGES);
    uint64_t seed = 12;
    unsigned poisoned = 0;
    for (int round = 0; round < 400; round++) {
        memset(mem.base, 0, (size_t) PAGES * PN_ARENA_PAGE);
        pn_arena_format_locked(&mem);
        nlive = 0;
        for (int i = 0; i < 80; i++)
            model_take(&mem, test_random(&seed));
        for (int i = 0; i < 1 + round % 20; i++) {
            uint64_t r = test_random(&seed);
            uint32_t at = mem.first + (uint32_t) r % 40;
            uint32_t *words = round % 4 == 0   ? (uint32_t *) mem.ctl
                              : round % 4 == 1 ? (uint32_t *) &mem.page[at]
                              : round % 4 == 2 ? (uint32_t *) &mem.owner[r % ARENA_OWNERS]
                                               : pn_arena_at(&mem, at * 64);
            words[(r >> 8) % (round % 4 == 1 ? 8 : 16)] =
                (r >> 40) % 2 == 0 ? (uint32_t) (r >> 41) : (uint32_t) (r >> 41) % 80;
        }
        for (uint32_t i = 0; i < nlive; i++)
            if (live[i].class == PN_PAGE_BODY)
                pn_arena_give_body_locked(&mem, live[i].ref);
            else
                pn_arena_give_locked(&mem, live[i].ref);
        for (int i = 0; i < 100; i++)
            pn_arena_take_locked(&mem, 0, (enum pn_page_class)(1 + i % 3));
        pn_arena_check(&mem, arena_silent, NULL);
        rebuild_begin(&mem);
        for (uint32_t i = 0; i < nlive; i++)
            pn_arena_mark_body_locked(&mem, live[i].ref, HEAD, live[i].len);
        rebuild_end(&mem, 0);
        CHECK_ARENA(&mem);
        poisoned += arena_was_poisoned();
    }
    CHECK(poisoned > 100);
    arena_free(&mem);
}

int main(void)
{
    test_watchdog(110);
    RUN(test_each_class_fills_the_arena);
    RUN(test_a_page_that_was_something_else_is_formatted);
    RUN(test_untouched_pages_stay_untouched);
    RUN(test_the_end_of_a_large_area);
    RUN(test_bodies_of_all_lengths);
    RUN(test_what_a_body_takes);
    RUN(test_a_body_that_does_not_fit_takes_nothing);
    RUN(test_a_body_in_cells_where_no_page_is_free);
    RUN(test_random_use_against_a_model);
    RUN(test_has_is_exact);
    RUN(test_rebuild_from_what_is_true);
    RUN(test_what_is_not_marked_is_free);
    RUN(test_a_broken_chain_does_not_mark);
    RUN(test_a_loop_ends);
    RUN(test_bad_references_poison);
    RUN(test_a_broken_list_of_pages_poisons);
    RUN(test_scribbled_all_over);
    return tests_done();
}
