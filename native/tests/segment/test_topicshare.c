/* What of the arena each owner may have: none takes another's share, and newcomers find some. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "segment/arena_share.h"
#include "topic_arena.h"

enum { PAGES = 1024 };

static struct pn_arena mem;

static void open_scene(uint32_t owners)
{
    mem = arena_make(PAGES);
    for (uint32_t i = 0; i < owners; i++)
        pn_arena_count_locked(&mem, i, true);
}

static void close_scene(void)
{
    CHECK_ARENA(&mem);
    arena_free(&mem);
}

/* As many pages, so many at a time, as the owner may have. */
static uint32_t take_what_it_may(uint32_t owner, uint32_t each)
{
    const struct pn_arena_need need = {.bodies = (uint64_t) each * PN_BODY_CELLS, .spare = 4};
    uint32_t before = mem.owner[owner].pages;
    while (pn_arena_may_locked(&mem, owner, &need))
        for (uint32_t i = 0; i < each * PN_BODY_CELLS; i++)
            CHECK(pn_arena_take_locked(&mem, owner, PN_PAGE_BODY) != 0);
    return mem.owner[owner].pages - before;
}

static void test_one_alone_leaves_a_share_for_the_next(void)
{
    open_scene(1);
    uint32_t usable = mem.pages - mem.first;
    CHECK_EQ(mem.ctl->share, usable / 4);
    CHECK_EQ(take_what_it_may(0, 1), usable - usable / 4 - 4);
    pn_arena_count_locked(&mem, 1, true);
    CHECK_EQ(mem.ctl->share, usable / 6);
    CHECK(take_what_it_may(1, 1) >= usable / 9); /* of its share, and something is left, too: */
    pn_arena_count_locked(&mem, 2, true);
    CHECK(take_what_it_may(2, 1) >= usable / 30);
    CHECK_EQ(take_what_it_may(0, 1), 0);
    close_scene();
}

static void test_a_share_cannot_be_taken_by_others(void)
{
    open_scene(3);
    uint32_t share = mem.ctl->share, common = mem.pages - mem.first - 4 * share;
    CHECK_EQ(take_what_it_may(0, 1), share + common - 4);
    CHECK_EQ(take_what_it_may(1, 1), share);
    CHECK_EQ(take_what_it_may(2, 7), share / 7 * 7);
    CHECK_EQ(mem.ctl->reserved, share % 7);
    close_scene();
}

/* What the first has left in each page, pinned, is in no other's way. */
static void test_pages_are_not_shared(void)
{
    static uint32_t refs[PAGES * PN_BODY_CELLS];
    const struct pn_arena_need need = {.bodies = 1, .spare = 4}, page = {.pages = 1, .spare = 4};
    uint32_t n = 0;
    open_scene(2);
    while (pn_arena_may_locked(&mem, 0, &need))
        refs[n++] = pn_arena_take_locked(&mem, 0, PN_PAGE_BODY);
    for (uint32_t i = 0; i < n; i++)
        if (i % PN_BODY_CELLS != 0)
            pn_arena_give_locked(&mem, refs[i]);
    CHECK(!pn_arena_may_locked(&mem, 0, &page));
    for (uint32_t i = 0; i < mem.ctl->share; i++) {
        CHECK(pn_arena_may_locked(&mem, 1, &page));
        CHECK(pn_arena_take_locked(&mem, 1, PN_PAGE_WHOLE) != 0);
    }
    close_scene();
}

static void test_a_first_message_may_be_larger_than_a_share(void)
{
    open_scene(0);
    mem.owners = 4;
    mem.largest = 200;
    for (uint32_t i = 0; i < 4; i++)
        pn_arena_count_locked(&mem, i, true);
    const struct pn_arena_need large = {.bodies = 1, .pages = 199};
    CHECK(mem.ctl->share < 200);
    take_what_it_may(0, 1);
    CHECK(pn_arena_may_locked(&mem, 1, &large));
    CHECK(pn_arena_take_locked(&mem, 1, PN_PAGE_BODY) != 0);
    CHECK(!pn_arena_may_locked(&mem, 1, &large));
    CHECK(pn_arena_may_locked(&mem, 2, &large));
    CHECK(pn_arena_ever(&mem, &large));
    CHECK(!pn_arena_ever(&mem, &(struct pn_arena_need) {.pages = PAGES / 2 + 1}));
    close_scene();
}

static void test_an_owner_that_is_bound_has_no_more_but_its_first_message(void)
{
    const struct pn_arena_need one = {.bodies = 1, .spare = 4, .most = 5},
                               large = {.bodies = 1, .pages = 40, .most = 5};
    open_scene(2);
    uint32_t n = 0;
    CHECK(pn_arena_may_locked(&mem, 0, &large)); /* its first */
    for (; pn_arena_may_locked(&mem, 0, &one); n++)
        CHECK(pn_arena_take_locked(&mem, 0, PN_PAGE_BODY) != 0);
    CHECK_EQ(n, 5 * PN_BODY_CELLS);
    CHECK_EQ(mem.owner[0].pages, 5);
    CHECK(!pn_arena_may_locked(&mem, 0, &large));
    CHECK(pn_arena_may_locked(&mem, 0, &(struct pn_arena_need) {.bodies = 1, .most = 6}));
    CHECK_EQ(pn_arena_reserve_of(&mem, &(struct pn_arena_need) {.bodies = 1, .most = 20}), 5);
    CHECK_EQ(pn_arena_reserve_of(&mem, &(struct pn_arena_need) {.bodies = 1, .most = PAGES}),
             mem.ctl->share / 4);
    CHECK(take_what_it_may(1, 1) > mem.ctl->share); /* what is common is for the other */
    close_scene();
}

static void test_the_reserve_is_for_one_at_least(void)
{
    open_scene(2);
    uint32_t share = mem.ctl->share;
    CHECK(share / 4 > 2);
    CHECK_EQ(pn_arena_reserve_of(&mem, &(struct pn_arena_need) {.bodies = 1}), share / 4);
    CHECK_EQ(pn_arena_reserve_of(
                 &mem, &(struct pn_arena_need) {.bodies = 1, .deliveries = 1, .pages = share}),
             share + 2);
    close_scene();
}

static void test_an_owner_that_counts_no_more_has_no_share(void)
{
    open_scene(2);
    uint32_t share = mem.ctl->share;
    pn_arena_count_locked(&mem, 1, false);
    CHECK(mem.ctl->share > share);
    CHECK_EQ(mem.ctl->reserved, mem.ctl->share);
    pn_arena_count_locked(&mem, 0, false);
    CHECK_EQ(mem.ctl->reserved, 0);
    close_scene();
}

/* Whatever is taken and given, by any owner, the count of what is reserved is right. */
static void test_the_account_is_exact(void)
{
    static uint32_t refs[PAGES * 64];
    uint32_t n = 0;
    uint64_t seed = 5;
    open_scene(4);
    for (uint32_t i = 0; i < 200000; i++) {
        uint64_t r = test_random(&seed);
        if (r % 1000 == 0)
            pn_arena_count_locked(&mem, (uint32_t) (r >> 10) % 4, (r >> 12) % 2 == 0);
        if (n > 0 && (r >> 16) % 100 < 49 + (i / 20000) % 2 * 4) {
            uint32_t k = (uint32_t) (r >> 24) % n;
            pn_arena_give_locked(&mem, refs[k]);
            refs[k] = refs[--n];
        } else {
            uint32_t ref = pn_arena_take_locked(&mem, (uint32_t) (r >> 24) % 4,
                                                (enum pn_page_class)(1 + (r >> 26) % 3));
            if (ref != 0)
                refs[n++] = ref;
        }
        if (i % 5000 == 0)
            CHECK_ARENA(&mem);
    }
    close_scene();
}

int main(void)
{
    test_watchdog(60);
    RUN(test_one_alone_leaves_a_share_for_the_next);
    RUN(test_a_share_cannot_be_taken_by_others);
    RUN(test_pages_are_not_shared);
    RUN(test_a_first_message_may_be_larger_than_a_share);
    RUN(test_an_owner_that_is_bound_has_no_more_but_its_first_message);
    RUN(test_the_reserve_is_for_one_at_least);
    RUN(test_an_owner_that_counts_no_more_has_no_share);
    RUN(test_the_account_is_exact);
    return tests_done();
}
