/*
 * e2e.c - how long messages took from their publish to their finish.
 *
 * The times of a channel go into a histogram of 32 octaves in 16 steps each, in two halves of five
 * minutes: the one that is written, and the one before it.  It is a page of the arena, taken with
 * the channel's first finish if there is one.
 */
#include "topic/e2e.h"

#include <errno.h>
#include <string.h>

#include "base/crashpoint.h"
#include "base/os.h"
#include "segment/arena_share.h"
#include "segment/lock.h"

#define PN_E2E_HALF_NS 300000000000LL

enum { E2E_SUB = 16, E2E_OCTAVES = 32, E2E_FIRST = 11, E2E_BUCKETS = E2E_SUB * E2E_OCTAVES };

struct e2e {
    uint32_t half[2][E2E_BUCKETS];
};
_Static_assert(sizeof(struct e2e) == PN_ARENA_PAGE, "a page");

static uint32_t bucket_of(uint64_t ns)
{
    uint32_t octave = 63 - (uint32_t) __builtin_clzll(ns | 1);
    if (octave < E2E_FIRST)
        return 0;
    if (octave >= E2E_FIRST + E2E_OCTAVES)
        return E2E_BUCKETS - 1;
    return (octave - E2E_FIRST) * E2E_SUB + (uint32_t) (ns >> (octave - 4) & (E2E_SUB - 1));
}

static double bucket_begin(uint32_t bucket)
{
    return (double) ((uint64_t) (E2E_SUB + bucket % E2E_SUB) << (bucket / E2E_SUB + E2E_FIRST - 4));
}

/* How many of its halves are of the last five to ten minutes: beginning with the older, if two. */
static int halves_now(const struct pn_topic_channel *ch, int64_t now)
{
    int64_t age = now - ch->histogram_since;
    return age < PN_E2E_HALF_NS ? 2 : age < 2 * PN_E2E_HALF_NS ? 1 : 0;
}

/* The halves as of now: what is older than both is forgotten. */
static struct e2e *histogram(struct pn_segment *seg, struct pn_topic_channel *ch, int64_t now)
{
    if (!pn_arena_taken(&seg->topics.arena, ch->histogram, PN_PAGE_WHOLE))
        return NULL;
    struct e2e *h = pn_arena_at(&seg->topics.arena, ch->histogram);
    int halves = halves_now(ch, now);
    if (halves == 2)
        return h;
    if (halves == 1)
        memcpy(h->half[1], h->half[0], sizeof h->half[0]);
    else
        memset(h->half[1], 0, sizeof h->half[1]);
    memset(h->half[0], 0, sizeof h->half[0]);
    ch->histogram_since = now;
    return h;
}

void pn_e2e_record_locked(struct pn_segment *seg, struct pn_topic_channel *ch, int64_t ns,
                          int64_t now)
{
    pn_assert_topics_held(seg);
    if (ch->histogram == 0) {
        const struct pn_arena_need need = {.pages = 1, .spare = 7};
        if (!pn_arena_may_locked(&seg->topics.arena, ch->topic, &need))
            return; /* messages need them more */
        uint32_t ref = pn_arena_take_locked(&seg->topics.arena, ch->topic, PN_PAGE_WHOLE);
        if (ref == 0)
            return;
        memset(pn_arena_at(&seg->topics.arena, ref), 0, PN_ARENA_PAGE);
        ch->histogram_since = now;
        ch->histogram = ref;
        PN_CRASH("topic:histogram");
    }
    struct e2e *h = histogram(seg, ch, now);
    if (h != NULL)
        h->half[0][bucket_of(ns < 0 ? 0 : (uint64_t) ns)]++;
}

static double in_bucket(const struct e2e *h, int halves, uint32_t b)
{
    return (double) (halves > 0 ? h->half[0][b] : 0) + (double) (halves > 1 ? h->half[1][b] : 0);
}

static void quantiles(const struct e2e *h, int halves, double total, const double *q, size_t n,
                      double *seconds)
{
    for (size_t i = 0; i < n; i++) {
        double want = q[i] * total, before = 0;
        uint32_t b = 0;
        for (; b < E2E_BUCKETS - 1; b++) {
            double here = in_bucket(h, halves, b);
            if (here > 0 && before + here >= want)
                break;
            before += here;
        }
        double here = in_bucket(h, halves, b);
        double part = here > 0 ? (want - before) / here : 0;
        double begin = bucket_begin(b), width = bucket_begin(b + 1) - begin;
        seconds[i] = (begin + width * (part < 0 ? 0 : part > 1 ? 1 : part)) / 1e9;
    }
}

int pn_e2e_check(const double *q, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(q[i] > 0 && q[i] <= 1))
            return pn_fail(EINVAL, "a quantile must be greater than 0 and at most 1");
    return 0;
}

int pn_e2e_quantiles_locked(const struct pn_segment *seg, const struct pn_topic_channel *ch,
                            const double *q, size_t n, double *seconds)
{
    pn_assert_topics_held(seg);
    const struct pn_arena *arena = &seg->topics.arena;
    int halves = halves_now(ch, pn_now_ns());
    double total = 0;
    if (!pn_arena_taken(arena, ch->histogram, PN_PAGE_WHOLE))
        return 0;
    const struct e2e *h = pn_arena_at(arena, ch->histogram);
    for (uint32_t b = 0; b < E2E_BUCKETS; b++)
        total += in_bucket(h, halves, b);
    if (total > 0)
        quantiles(h, halves, total, q, n, seconds);
    return total > 0;
}
