/*
 * topic_arena.h - an arena in plain memory, for tests of what lives in one.
 *
 * What poisons does so to a segment that is a header and a lock, which the test holds.
 */
#ifndef PN_TESTS_TOPIC_ARENA_H
#define PN_TESTS_TOPIC_ARENA_H

#include "engine.h"

#include "segment/arena.h"
#include "segment/lock.h"

static struct pn_header arena_header;
static struct AsyncQueueControl arena_queue;
static struct pn_lock_page arena_lock;
static struct pn_segment arena_segment = {
    .hdr = &arena_header, .ctl = &arena_queue, .lock = &arena_lock, .name = "test"};

enum { ARENA_OWNERS = 4 };

/* The writer lock of that segment, for as long as the test runs. */
static inline void arena_hold(void)
{
    static bool held;
    if (held)
        return;
    held = true;
    CHECK_EQ(pthread_mutex_init(&arena_lock.mutex, NULL), 0);
    pn_store_relaxed(&arena_header.state, PN_STATE_READY);
    CHECK_OK(pn_lock_acquire(&arena_segment, &test_hold, 0));
}

/* Control, owners, page array, pages; zero, as new pages are.  Nothing gets beyond either end. */
static inline struct pn_arena arena_make(uint32_t pages)
{
    size_t before = sizeof(struct pn_arena_control) + ARENA_OWNERS * sizeof(struct pn_arena_owner);
    size_t table = before + pages * sizeof(struct pn_arena_page);
    size_t size = (size_t) pages * PN_ARENA_PAGE;
    unsigned char *base = mmap(NULL, size + 2 * PN_ARENA_PAGE, PROT_NONE,
                               MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    arena_hold();
    CHECK(base != MAP_FAILED);
    base += PN_ARENA_PAGE;
    CHECK_OK(mprotect(base, size, PROT_READ | PROT_WRITE));
    struct pn_arena mem = {
        .base = base,
        .ctl = (void *) base,
        .owner = (void *) (base + sizeof(struct pn_arena_control)),
        .owners = ARENA_OWNERS,
        .page = (void *) (base + before),
        .pages = pages,
        .first = (uint32_t) ((table + PN_ARENA_PAGE - 1) / PN_ARENA_PAGE),
        .seg = &arena_segment,
    };
    pn_arena_format_locked(&mem);
    return mem;
}

static inline void arena_free(struct pn_arena *mem)
{
    munmap(mem->base - PN_ARENA_PAGE, ((size_t) mem->pages + 2) * PN_ARENA_PAGE);
}

static inline void arena_problem(void *arg, const char *text)
{
    (void) arg;
    fprintf(stderr, "%s\n", text);
}

static inline void arena_silent(void *arg, const char *text)
{
    (void) arg, (void) text;
}

#define CHECK_ARENA(mem) CHECK_EQ(pn_arena_check(mem, arena_problem, NULL), 0)

/* Was the segment poisoned?  Then it is no more. */
static inline bool arena_was_poisoned(void)
{
    return atomic_exchange(&arena_header.state, PN_STATE_READY) == PN_STATE_POISONED;
}

#endif
