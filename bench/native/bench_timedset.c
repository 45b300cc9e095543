/*
 * bench_timedset.c - the memory of topics by itself: what an operation of its modules costs, in a
 * process of its own, without any lock.
 *
 *   add, pop          a set of 1,000,000 entries at random times is filled, and emptied in order;
 *                     ns an operation.  The deliveries stand in an arena of cells, so that every
 *                     move writes into one of 64 MB, as it would in a segment.
 *   remove            the same, but each of them is taken out where it stands, in random order.
 *   message           the cells of a message with a body of 200 bytes and one delivery are taken,
 *                     the body is copied there, and the message of 1000 before is given back.
 *
 * Times include nothing but the calls.  The floor is none: these are absolute.
 */
#include "measure.h"

#include "segment/arena_body.h"
#include "topic/timedset.h"

#define ENTRIES    1000000U
#define MESSAGES   2000000U
#define HEAD       88U /* about what precedes a body */
#define BODY_BYTES 200U
#define BEHIND     1000U
#define PAGES      (ENTRIES / 64 + ENTRIES / 256 + 2000)

static struct pn_arena memory;
static uint32_t ref_of[ENTRIES];
static struct pn_timed entry_of[ENTRIES];
static uint64_t seed = 88172645463325252U;

static uint64_t random_number(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

static void make_memory(void)
{
    size_t before = sizeof(struct pn_arena_control) + sizeof(struct pn_arena_owner);
    size_t table = before + PAGES * sizeof(struct pn_arena_page);
    unsigned char *base = shared_memory((size_t) PAGES * PN_ARENA_PAGE);
    memory = (struct pn_arena) {.base = base,
                                .ctl = (void *) base,
                                .owner = (void *) (base + sizeof(struct pn_arena_control)),
                                .owners = 1,
                                .page = (void *) (base + before),
                                .pages = PAGES,
                                .first = (uint32_t) (table / PN_ARENA_PAGE + 1)};
    pn_arena_format_locked(&memory);
    for (uint32_t i = 0; i < ENTRIES; i++)
        if ((ref_of[i] = pn_arena_take_locked(&memory, 0, PN_PAGE_DELIVERY)) == 0)
            die("the arena is too small");
}

/* The order of adding does not follow the order of the cells. */
static void shuffle(void)
{
    for (uint32_t i = ENTRIES - 1; i > 0; i--) {
        uint32_t k = (uint32_t) (random_number() % (i + 1)), ref = ref_of[i];
        ref_of[i] = ref_of[k];
        ref_of[k] = ref;
    }
    for (uint32_t i = 0; i < ENTRIES; i++)
        entry_of[i] = (struct pn_timed) {(int64_t) (random_number() >> 1), ref_of[i], i};
}

static double fill(struct pn_timedset *set)
{
    int64_t start = now_ns();
    for (uint32_t i = 0; i < ENTRIES; i++) {
        if (!pn_timedset_reserve_locked(&memory, 0, set, 1))
            die("the arena is too small");
        pn_timedset_add_locked(&memory, set, entry_of[i]);
    }
    return (double) (now_ns() - start) / ENTRIES;
}

/* The entry of a delivery and its room. */
static void take_out(struct pn_timedset *set, uint32_t ref)
{
    pn_timedset_lend_locked(&memory, set, ref);
    pn_timedset_unreserve_locked(&memory, set, 1);
}

static double empty_in_order(struct pn_timedset *set)
{
    struct pn_timed entry;
    uint32_t n = 0;
    int64_t due = INT64_MIN, start = now_ns();
    for (; pn_timedset_first(&memory, set, &entry); n++) {
        take_out(set, entry.ref);
        if (entry.due < due)
            die("entry %u comes too late", n);
        due = entry.due;
    }
    if (n != ENTRIES)
        die("%u entries of %u", n, ENTRIES);
    return (double) (now_ns() - start) / ENTRIES;
}

static double empty_at_random(struct pn_timedset *set)
{
    shuffle();
    int64_t start = now_ns();
    for (uint32_t i = 0; i < ENTRIES; i++)
        take_out(set, ref_of[i]);
    if (set->n != 0)
        die("%u entries are left", set->n);
    return (double) (now_ns() - start) / ENTRIES;
}

static double messages(void)
{
    static uint32_t body[BEHIND], delivery[BEHIND];
    uint8_t payload[BODY_BYTES], got[BODY_BYTES];
    memset(payload, 37, sizeof payload);
    int64_t start = now_ns();
    for (uint32_t i = 0; i < MESSAGES + BEHIND; i++) {
        uint32_t at = i % BEHIND;
        if (i >= BEHIND) {
            pn_arena_give_locked(&memory, delivery[at]);
            pn_arena_give_body_locked(&memory, body[at]);
        }
        if (i >= MESSAGES)
            continue;
        memcpy(payload, &i, sizeof i);
        body[at] = pn_arena_take_body_locked(&memory, 0, HEAD, BODY_BYTES);
        delivery[at] = pn_arena_take_locked(&memory, 0, PN_PAGE_DELIVERY);
        if (body[at] == 0 || delivery[at] == 0)
            die("the arena is too small");
        pn_arena_write_body(&memory, body[at], HEAD, &(struct pn_piece) {payload, BODY_BYTES}, 1);
        if (i == MESSAGES / 2 && (!pn_arena_read(&memory, body[at], HEAD, 0, got, BODY_BYTES) ||
                                  memcmp(got, payload, BODY_BYTES) != 0))
            die("a body is not what was written");
    }
    return (double) (now_ns() - start) / MESSAGES;
}

int main(int argc, char **argv)
{
    settings s = parse_arguments(argc, argv);
    int n = s.quick ? 2 : 9;
    double added[MAX_PASSES], popped[MAX_PASSES], removed[MAX_PASSES], published[MAX_PASSES];
    struct pn_timedset set = {0};
    pin_to_cpu(0);
    make_memory();
    for (int pass = -1; pass < n; pass++) { /* the first one warms up */
        int at = pass < 0 ? 0 : pass;
        shuffle();
        added[at] = fill(&set);
        popped[at] = empty_in_order(&set);
        fill(&set);
        removed[at] = empty_at_random(&set);
        published[at] = messages();
    }
    figure figures[] = {
        {.name = "timed set of 1,000,000: add", .ours = added, .bar = 1000},
        {.name = "timed set of 1,000,000: pop", .ours = popped, .bar = 1000},
        {.name = "timed set of 1,000,000: remove", .ours = removed, .bar = 1000},
        {.name = "message of 200 bytes: take, copy, give back", .ours = published, .bar = 50},
    };
    for (size_t i = 0; i < sizeof figures / sizeof figures[0]; i++) {
        figures[i].unit = "ns";
        figures[i].n = n;
        figures[i].at_most = true;
        print_figure(&figures[i]);
    }
    return 0;
}
