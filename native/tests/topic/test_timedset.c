/* The heap of what is due: NSQ's tests of its priority queues, and a sorted array as the model. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "arena_rebuild.h"
#include "topic_arena.h"

#include "topic/timedset.h"

enum { MAX = 300000 };

static uint32_t ref_of[MAX]; /* deliveries */

static uint32_t *timed_of(const struct pn_arena *mem, uint32_t ref)
{
    return (uint32_t *) ((char *) pn_arena_at(mem, ref) + PN_TIMED_OFFSET);
}

static struct pn_arena arena_with(uint32_t deliveries, uint32_t pages)
{
    struct pn_arena mem = arena_make(pages + deliveries / 64 + 1);
    for (uint32_t i = 0; i < deliveries; i++)
        CHECK((ref_of[i] = pn_arena_take_locked(&mem, 0, PN_PAGE_DELIVERY)) != 0);
    return mem;
}

static void add(struct pn_arena *mem, struct pn_timedset *set, uint32_t i, int64_t due)
{
    CHECK(pn_timedset_reserve_locked(mem, 0, set, 1));
    pn_timedset_add_locked(mem, set, (struct pn_timed) {due, ref_of[i], i});
}

/* The entry of a delivery and its room, as one that is answered gives them back. */
static void take_out(struct pn_arena *mem, struct pn_timedset *set, uint32_t ref)
{
    uint32_t before = set->reserved;
    pn_timedset_lend_locked(mem, set, ref);
    if (set->reserved > before)
        pn_timedset_unreserve_locked(mem, set, 1);
}

static bool pop(struct pn_arena *mem, struct pn_timedset *set, struct pn_timed *out)
{
    bool found = pn_timedset_first(mem, set, out);
    if (found)
        take_out(mem, set, out->ref);
    return found;
}

#define CHECK_SET(mem, set) CHECK_EQ(pn_timedset_check(mem, set, arena_problem, NULL), 0)

/* All of it in order; how many. */
static uint32_t pop_all(struct pn_arena *mem, struct pn_timedset *set)
{
    struct pn_timed entry, last = {INT64_MIN, 0, 0};
    uint32_t n = 0;
    for (; pop(mem, set, &entry); last = entry, n++) {
        CHECK(entry.due > last.due || (entry.due == last.due && entry.low > last.low));
        CHECK_EQ(entry.ref, ref_of[entry.low]);
        CHECK_EQ(*timed_of(mem, entry.ref), 0);
    }
    return n;
}

static void check_empty(struct pn_arena *mem, struct pn_timedset *set)
{
    struct pn_timed entry;
    static const struct pn_timedset empty;
    CHECK(!pn_timedset_first(mem, set, &entry));
    CHECK_EQ(mem->ctl->cells_used[PN_PAGE_WHOLE], 0);
    CHECK_EQ(set->n + set->reserved + set->pages + set->root, empty.n);
    CHECK_ARENA(mem);
    CHECK(!arena_was_poisoned());
}

/* One more than fits doubles NSQ's slice, here it takes a page; and it shrinks again. */
static void TestPriorityQueue(void)
{
    const uint32_t c = PN_TIMED_PAGE - 3;
    struct pn_arena mem = arena_with(c + 1, 10);
    struct pn_timedset set = {0};
    for (uint32_t i = 0; i < c + 1; i++) {
        CHECK_EQ(set.pages, i > 0);
        add(&mem, &set, i, i);
    }
    CHECK_EQ(set.n, c + 1);
    CHECK_EQ(set.pages, 2);
    CHECK_SET(&mem, &set);
    struct pn_timed entry;
    for (uint32_t i = 0; i < c + 1; i++) {
        CHECK(pop(&mem, &set, &entry));
        CHECK_EQ(entry.due, i);
    }
    CHECK_EQ(set.pages, 0);
    check_empty(&mem, &set);
    arena_free(&mem);
}

static void TestUnsortedInsert(void)
{
    const uint32_t c = 100;
    struct pn_arena mem = arena_with(c, 10);
    struct pn_timedset set = {0};
    uint64_t seed = 100;
    int64_t dues[100];
    for (uint32_t i = 0; i < c; i++) {
        dues[i] = (int64_t) test_random(&seed);
        add(&mem, &set, i, dues[i]);
    }
    CHECK_SET(&mem, &set);
    CHECK_EQ(pop_all(&mem, &set), c);
    check_empty(&mem, &set);
    arena_free(&mem);
}

static void TestRemove(void)
{
    const uint32_t c = 100;
    struct pn_arena mem = arena_with(c, 10);
    struct pn_timedset set = {0};
    uint64_t seed = 1;
    for (uint32_t i = 0; i < c; i++)
        add(&mem, &set, i, (int64_t) (test_random(&seed) % 100000000));
    for (uint32_t i = 0; i < 10; i++) {
        struct pn_timed entry;
        CHECK(pn_timedset_entry(&mem, &set, (uint32_t) test_random(&seed) % (c - i), &entry));
        take_out(&mem, &set, entry.ref);
        CHECK_EQ(*timed_of(&mem, entry.ref), 0);
        CHECK_EQ(pn_timedset_find(&mem, &set, entry.low, 0), set.n);
        take_out(&mem, &set, entry.ref); /* in none: nothing */
        CHECK_SET(&mem, &set);
    }
    CHECK_EQ(pop_all(&mem, &set), c - 10);
    check_empty(&mem, &set);
    arena_free(&mem);
}

static void test_equal_times_are_in_the_order_of_ids(void)
{
    struct pn_arena mem = arena_with(2000, 20);
    struct pn_timedset set = {0};
    for (uint32_t i = 0; i < 2000; i++) /* backwards, three times */
        add(&mem, &set, 1999 - i, 7 + i % 3);
    CHECK_SET(&mem, &set);
    CHECK_EQ(pop_all(&mem, &set), 2000);
    check_empty(&mem, &set);
    arena_free(&mem);
}

/* ---- against a sorted array ------------------------------------------------------------------ */

static struct pn_timed model[3000];
static uint32_t nmodel;

static bool before(struct pn_timed a, struct pn_timed b)
{
    return a.due < b.due || (a.due == b.due && a.low < b.low);
}

static void model_add(struct pn_timed entry)
{
    uint32_t i = nmodel++;
    for (; i > 0 && before(entry, model[i - 1]); i--)
        model[i] = model[i - 1];
    model[i] = entry;
}

static void model_remove(uint32_t i)
{
    nmodel--;
    for (; i < nmodel; i++)
        model[i] = model[i + 1];
}

static void test_random_use_against_a_sorted_array(void)
{
    struct pn_arena mem = arena_with(3000, 30);
    struct pn_timedset set = {0};
    uint64_t seed = 5;
    nmodel = 0;
    for (int i = 0; i < 60000; i++) {
        uint64_t r = test_random(&seed);
        bool growing = i / 5000 % 2 == 0;
        uint32_t which = (uint32_t) (r >> 8) % 3000;
        int64_t range = i % 20000 < 10000 ? 50 : INT64_MAX;
        struct pn_timed entry = {(int64_t) ((r >> 16) % (uint64_t) range) - 20, ref_of[which],
                                 which};
        if (*timed_of(&mem, entry.ref) == 0 && r % 4 < (growing ? 4 : 1)) {
            add(&mem, &set, which, entry.due);
            model_add(entry);
        } else if (nmodel > 0 && r % 8 < 5) {
            CHECK(pop(&mem, &set, &entry));
            CHECK(memcmp(&entry, &model[0], sizeof entry) == 0);
            model_remove(0);
        } else if (nmodel > 0) {
            which %= nmodel;
            CHECK_EQ(pn_timedset_find(&mem, &set, model[which].low, 0) + 3,
                     *timed_of(&mem, model[which].ref));
            take_out(&mem, &set, model[which].ref);
            model_remove(which);
        }
        CHECK_EQ(set.n, nmodel);
        CHECK_EQ(pn_timedset_first(&mem, &set, &entry), nmodel > 0);
        if (nmodel > 0)
            CHECK(memcmp(&entry, &model[0], sizeof entry) == 0);
        if (i % 200 == 0)
            CHECK_SET(&mem, &set);
    }
    CHECK_ARENA(&mem);
    CHECK_EQ(pop_all(&mem, &set), nmodel);
    check_empty(&mem, &set);
    arena_free(&mem);
}

/* Sweeping: from the end, and again the place of what was removed; none is passed over. */
/* Each that is due by then once, and no other; it does not look at all of them. */
static void test_those_that_are_due(void)
{
    const uint32_t n = 5000;
    struct pn_arena mem = arena_with(n, 50);
    struct pn_timedset set = {0};
    struct pn_timed entry;
    static bool seen[5000];
    uint32_t at = 0;
    CHECK(!pn_timedset_next_due(&mem, &set, INT64_MAX, &at, &entry));
    for (uint32_t i = 0; i < n; i++)
        add(&mem, &set, i, (int64_t) i * 2654435761U % 1000);
    for (int64_t now = -1; now <= 1000; now += 77) {
        memset(seen, 0, sizeof seen);
        for (at = 0; pn_timedset_next_due(&mem, &set, now, &at, &entry);) {
            CHECK(entry.due <= now);
            CHECK(!seen[entry.low]);
            seen[entry.low] = true;
        }
        for (uint32_t i = 0; i < n; i++)
            CHECK_EQ(seen[i], (int64_t) i * 2654435761U % 1000 <= now);
    }
    CHECK_EQ(pop_all(&mem, &set), n);
    check_empty(&mem, &set);
    arena_free(&mem);
}

static void test_some_are_swept_out(void)
{
    struct pn_arena mem = arena_with(1500, 20);
    struct pn_timedset set = {0};
    uint64_t seed = 31;
    for (uint32_t round = 1; round < 100; round++) {
        struct pn_timed entry;
        uint32_t left = 0;
        for (uint32_t i = 0; i < 15 * round; i++)
            add(&mem, &set, i, (int64_t) (test_random(&seed) % 1000));
        for (uint32_t i = set.n; i-- > 0;)
            if (pn_timedset_entry(&mem, &set, i, &entry) && entry.low % 100 < round) {
                take_out(&mem, &set, entry.ref);
                if (i < set.n)
                    i++;
            }
        for (; pop(&mem, &set, &entry); left++)
            CHECK(entry.low % 100 >= round);
        CHECK(left <= 15 * round);
    }
    check_empty(&mem, &set);
    arena_free(&mem);
}

/* ---- room ------------------------------------------------------------------------------------ */

/* Over all sizes at which a page, or a page of references, comes or goes. */
static void test_pages_come_and_go(void)
{
    struct pn_arena mem = arena_with(MAX, 1300);
    struct pn_timedset set = {0};
    uint32_t most = 0;
    for (uint32_t i = 0; i < MAX; i++) {
        add(&mem, &set, i, (int64_t) (i * 2654435761U));
        CHECK_EQ(set.pages, (i + 1 + 3 + 255) / 256);
        if (i % 8192 == 0 || set.pages < 15)
            CHECK_EQ(mem.ctl->cells_used[PN_PAGE_WHOLE], pn_timedset_pages(&set));
    }
    most = pn_timedset_pages(&set);
    CHECK_EQ(most, set.pages + 3); /* the root and two of references */
    CHECK_SET(&mem, &set);
    struct pn_timed entry;
    for (uint32_t i = 0; i < MAX; i++) {
        if (i % 2 == 0)
            CHECK(pop(&mem, &set, &entry));
        else if (pn_timedset_entry(&mem, &set, (uint32_t) i * 31 % set.n, &entry))
            take_out(&mem, &set, entry.ref);
        CHECK(set.pages <= (set.n + 3 + 255) / 256 + 1);
        if (i % 8192 == 0 || set.pages < 15)
            CHECK_EQ(mem.ctl->cells_used[PN_PAGE_WHOLE], pn_timedset_pages(&set));
        if (i == MAX / 2)
            CHECK_SET(&mem, &set);
    }
    check_empty(&mem, &set);
    arena_free(&mem);
}

static void test_a_promise_that_cannot_be_kept_is_not_made(void)
{
    struct pn_arena mem = arena_with(5000, 30);
    struct pn_timedset set = {0}, other = {0};
    uint64_t pages = mem.ctl->pages_free;
    uint32_t most = 0;
    CHECK(!pn_timedset_reserve_locked(&mem, 0, &set, UINT32_MAX));
    CHECK(!pn_timedset_reserve_locked(&mem, 0, &set, (uint32_t) pages * 256));
    CHECK_EQ(mem.ctl->pages_free, pages);
    CHECK_EQ(set.pages + set.reserved, 0);
    while (pn_timedset_reserve_locked(&mem, 0, &set, 100))
        most += 100;
    CHECK_EQ(set.reserved, most);
    CHECK(most > 256 * (pages - 4));
    CHECK(!pn_timedset_reserve_locked(&mem, 0, &other, 1));
    CHECK_SET(&mem, &set);
    for (uint32_t i = 0; i < 4000; i++) /* nothing is needed any more */
        pn_timedset_add_locked(&mem, &set,
                               (struct pn_timed) {(int64_t) i * 77 % 4001, ref_of[i], i});
    CHECK_SET(&mem, &set);
    CHECK_EQ(set.reserved, most - 4000);
    pn_timedset_unreserve_locked(&mem, &set, set.reserved);
    CHECK_SET(&mem, &set);
    CHECK(pn_timedset_reserve_locked(&mem, 0, &other, 1));
    pn_timedset_unreserve_locked(&mem, &other, 1);
    CHECK_EQ(other.pages, 0);
    CHECK_EQ(pop_all(&mem, &set), 4000);
    check_empty(&mem, &set);
    arena_free(&mem);
}

/* Thirteen pages need two of references as well: all of it, or nothing. */
static void test_a_promise_counts_pages_of_references(void)
{
    for (uint32_t pages = 0; pages < 20; pages++) {
        struct pn_arena mem = arena_with(1, 30);
        struct pn_timedset set = {0};
        while (mem.ctl->pages_free > pages)
            pn_arena_take_locked(&mem, 0, PN_PAGE_WHOLE);
        CHECK_EQ(pn_timedset_reserve_locked(&mem, 0, &set, 13 * 256 - 3), pages >= 15);
        CHECK_EQ(mem.ctl->pages_free, pages >= 15 ? pages - 15 : pages);
        pn_timedset_unreserve_locked(&mem, &set, set.reserved);
        CHECK_EQ(mem.ctl->pages_free, pages);
        arena_free(&mem);
    }
}

/* At the edge of a page, one more and one less do not take and give it each time. */
static void test_to_and_fro(void)
{
    struct pn_arena mem = arena_with(300, 10);
    struct pn_timedset set = {0};
    for (uint32_t i = 0; i < 254; i++)
        add(&mem, &set, i, i);
    CHECK_EQ(set.pages, 2);
    for (uint32_t i = 0; i < 10; i++) {
        take_out(&mem, &set, ref_of[253]);
        CHECK_EQ(set.pages, 2);
        add(&mem, &set, 253, 0);
        CHECK_EQ(set.pages, 2);
    }
    CHECK_EQ(pop_all(&mem, &set), 254);
    check_empty(&mem, &set);
    arena_free(&mem);
}

/* What is reserved keeps its room, whatever others do meanwhile. */
static void test_what_is_lent_can_come_back(void)
{
    struct pn_arena mem = arena_with(1000, 10);
    struct pn_timedset set = {0};
    for (uint32_t i = 0; i < 1000; i++)
        add(&mem, &set, i, i);
    for (uint32_t i = 0; i < 700; i++)
        pn_timedset_lend_locked(&mem, &set, ref_of[i]);
    CHECK_EQ(pop_all(&mem, &set), 300);
    CHECK_SET(&mem, &set);
    while (pn_arena_take_locked(&mem, 0, PN_PAGE_WHOLE) != 0)
        ;
    for (uint32_t i = 0; i < 700; i++)
        pn_timedset_add_locked(&mem, &set, (struct pn_timed) {-(int64_t) i, ref_of[i], i});
    CHECK_EQ(pop_all(&mem, &set), 700);
    CHECK_EQ(set.pages, 0);
    CHECK(!arena_was_poisoned());
    arena_free(&mem);
}

/* After a crash: the pages were not marked; the entries are added again. */
static void test_rebuild(void)
{
    struct pn_arena mem = arena_with(3500, 20);
    struct pn_timedset set = {0};
    for (uint32_t i = 0; i < 3500; i++)
        add(&mem, &set, i, (int64_t) i * 7919 % 3500);
    while (pn_arena_take_locked(&mem, 0, PN_PAGE_BODY) != 0) /* the memory is full */
        ;
    rebuild_begin(&mem);
    for (uint32_t i = 0; i < 3500; i++)
        CHECK(pn_arena_mark_locked(&mem, ref_of[i], PN_PAGE_DELIVERY));
    rebuild_end(&mem, 0);
    pn_timedset_forget_locked(&mem, &set);
    CHECK_EQ(mem.ctl->cells_used[PN_PAGE_WHOLE], 0);
    for (uint32_t i = 0; i < 3500; i++) {
        *timed_of(&mem, ref_of[i]) = 0;
        add(&mem, &set, i, (int64_t) i * 7919 % 3500);
    }
    CHECK_SET(&mem, &set);
    CHECK_EQ(pop_all(&mem, &set), 3500);
    check_empty(&mem, &set);
    arena_free(&mem);
}

/* ---- what must not be believed --------------------------------------------------------------- */

static void test_contradictions_poison(void)
{
    struct pn_arena mem = arena_with(100, 10);
    struct pn_timedset set = {0};
    struct pn_timed entry;
    pn_timedset_add_locked(&mem, &set, (struct pn_timed) {1, ref_of[0], 0}); /* unpromised */
    CHECK(arena_was_poisoned());
    pn_timedset_unreserve_locked(&mem, &set, 1);
    CHECK(arena_was_poisoned());
    for (uint32_t i = 0; i < 50; i++)
        add(&mem, &set, i, i);
    *timed_of(&mem, ref_of[60]) = 9; /* an entry that is another's */
    take_out(&mem, &set, ref_of[60]);
    CHECK(arena_was_poisoned());
    *timed_of(&mem, ref_of[60]) = UINT32_MAX;
    take_out(&mem, &set, ref_of[60]);
    CHECK(arena_was_poisoned());
    CHECK_SET(&mem, &set);
    set.direct[0] = 3;
    CHECK(!pn_timedset_first(&mem, &set, &entry));
    CHECK(arena_was_poisoned());
    CHECK(pn_timedset_check(&mem, &set, arena_silent, NULL) > 0);
    arena_free(&mem);
}

/* One word of the set, a page, the references to pages, or of a delivery. */
static void scribble(struct pn_arena *mem, struct pn_timedset *set, const struct pn_timedset *good,
                     uint64_t r)
{
    uint32_t *words = (uint32_t *) set;
    uint32_t value = (r >> 50) % 2 == 0 ? (uint32_t) (r >> 20) : (uint32_t) (r >> 20) % 5000;
    switch (r % 4) {
    case 0:
        words[(r >> 8) % 16] = value;
        break;
    case 1:
        words = pn_arena_at(mem, good->direct[(r >> 8) % 12]);
        words[(r >> 16) % 1024] = value;
        break;
    case 2:
        words = pn_arena_at(mem, good->root);
        words[(r >> 8) % 2] = value;
        break;
    default:
        *timed_of(mem, ref_of[(r >> 8) % 4000]) = value;
    }
}

/* Nothing crashes and everything ends, whatever stands in a set, its pages and its deliveries. */
static void test_scribbled_all_over(void)
{
    uint64_t seed = 77;
    unsigned poisoned = 0;
    for (int round = 0; round < 150; round++) {
        struct pn_arena mem = arena_with(4000, 40);
        struct pn_timedset set = {0};
        struct pn_timed entry;
        for (uint32_t i = 0; i < 3900; i++)
            add(&mem, &set, i, (int64_t) (test_random(&seed) % 5000));
        struct pn_timedset good = set;
        for (int i = 0; i < 1 + round % 5; i++) {
            scribble(&mem, &set, &good, test_random(&seed));
            for (int k = 0; k < 20; k++) {
                uint32_t which = (uint32_t) test_random(&seed) % 4000;
                pop(&mem, &set, &entry);
                take_out(&mem, &set, ref_of[which]);
                if (pn_timedset_reserve_locked(&mem, 0, &set, 1))
                    pn_timedset_add_locked(&mem, &set, (struct pn_timed) {k, ref_of[which], which});
            }
        }
        pn_timedset_check(&mem, &set, arena_silent, NULL);
        pn_timedset_find(&mem, &set, UINT32_MAX, 0);
        poisoned += arena_was_poisoned();
        arena_free(&mem);
    }
    CHECK(poisoned > 30);
}

int main(void)
{
    test_watchdog(110);
    RUN(TestPriorityQueue);
    RUN(TestUnsortedInsert);
    RUN(TestRemove);
    RUN(test_equal_times_are_in_the_order_of_ids);
    RUN(test_random_use_against_a_sorted_array);
    RUN(test_those_that_are_due);
    RUN(test_some_are_swept_out);
    RUN(test_pages_come_and_go);
    RUN(test_a_promise_that_cannot_be_kept_is_not_made);
    RUN(test_a_promise_counts_pages_of_references);
    RUN(test_to_and_fro);
    RUN(test_what_is_lent_can_come_back);
    RUN(test_rebuild);
    RUN(test_contradictions_poison);
    RUN(test_scribbled_all_over);
    return tests_done();
}
