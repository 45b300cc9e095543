/* lock.h - the writer lock: robust, bounded, never stolen. */
#ifndef PN_LOCK_H
#define PN_LOCK_H

#include <assert.h>

#include "segment/hold.h"

#define PN_LOCK_TIMEOUT_NS (10LL * 1000000000)
#define PN_LOCK_FOREVER    INT64_MAX
#define PN_LOCK_SLICE_NS   50000000LL

/* pn_set_never_wait(): the calling thread gets -PN_ELOCKBUSY instead of sleeping for the lock. */
extern _Thread_local bool pn_never_wait;

/*
 * pn_set_interruptible(): waits that pn_lock_wait() or a struct pn_room_wait allows to be left are
 * left in between.  Set before anything waits, and never again.
 */
extern bool pn_interruptible;

/* pn_set_lock_timeout(): the calling thread gives up after this, where it gives up at all. */
extern _Thread_local int64_t pn_lock_timeout_ns;

/*
 * Take the writer lock, and begin a hold.  Returns 0 with the lock held and everything repaired,
 * or, without it, -PN_ELOCK (names the holder), -EDEADLK (this thread holds it already: a call from
 * a signal handler), or the error of a segment that is poisoned or gone.
 */
int pn_lock_acquire(struct pn_segment *seg, struct pn_hold *hold, int64_t timeout_ns);

/*
 * The same, for callers that can be called again: with pn_interruptible it returns -EINTR when it
 * has waited for PN_LOCK_SLICE_NS, and the same call (here `what`, for `whose` sake) goes on with
 * what is left of the time.  Nothing is left behind in shared memory: the mutex has no queue, and a
 * thread that does not wait any more only leaves the kernel's list of sleepers.
 */
#define pn_lock_wait(seg, hold, timeout_ns, whose)                                                 \
    pn_lock_wait_for((seg), (hold), (timeout_ns), (whose), __func__)
int pn_lock_wait_for(struct pn_segment *seg, struct pn_hold *hold, int64_t timeout_ns,
                     const void *whose, const char *what);

/* pn_forget_wait(): what the thread has left, if anything, is not called again. */
void pn_lock_forget(void);

/* Are the topics closed?  With the lock. */
static inline bool pn_topics_closed(const struct pn_segment *seg)
{
    return (pn_load_relaxed(&seg->ctl->topics_dirty) & PN_TOPICS_CLOSED) != 0;
}

/*
 * The same two, for a caller that looks at topics: with the lock, and they are not closed.
 * While they are, each time it has the lock the caller does a step of what opens them, and gives
 * the lock to others in between.  -PN_ELOCKBUSY with pn_never_wait; a caller that has less time
 * than PN_LOCK_TIMEOUT_NS gets -PN_ELOCK after it, any other goes on to the end, which its own
 * steps bring nearer.
 */
int pn_lock_topics(struct pn_segment *seg, struct pn_hold *hold, int64_t timeout_ns);
#define pn_lock_topics_wait(seg, hold, timeout_ns, whose)                                          \
    pn_lock_topics_wait_for((seg), (hold), (timeout_ns), (whose), __func__)
int pn_lock_topics_wait_for(struct pn_segment *seg, struct pn_hold *hold, int64_t timeout_ns,
                            const void *whose, const char *what);

/* The same, for a process that has no business with topics: it does that many steps at the most.
 * -EAGAIN: they are closed still. */
int pn_lock_topics_after(struct pn_segment *seg, struct pn_hold *hold, uint32_t steps);

/* The watchdog's: -EBUSY when another thread holds it. */
int pn_lock_try(struct pn_segment *seg, struct pn_hold *hold);

/* Between two holds that do parts of one thing: sleep about as long as the first took.  What others
 * do then is theirs. */
void pn_lock_stand_back(int64_t took_ns);

/* Release; then do what this hold has collected (hold.h). */
void pn_lock_release(struct pn_segment *seg);

/*
 * The first statement of every function whose name ends in _locked: the calling thread holds the
 * writer lock of this segment.  Recovery counts, since it runs with the lock.  In builds without
 * NDEBUG (debug, sanitizers, crash points); nothing at all in the others.
 *
 * pn_invariant(): what docs/protocol.md numbers, where it is stored.  In the same builds a segment
 * in which it does not hold is poisoned, so that every test sees it, and says which.  It is no
 * assert(): memory that another program has overwritten ends in an error in these builds as well.
 */
#ifdef NDEBUG
#define pn_invariant(seg, name, holds) ((void) sizeof(seg), (void) (0 && (holds)))
#define pn_assert_held(seg)            ((void) sizeof(seg))
#define pn_assert_topics_held(seg)     ((void) sizeof(seg))
#define pn_assert_arena_held(mem)      ((void) sizeof(mem))
#else
#define pn_invariant(seg, name, holds)                                                             \
    ((holds) ? 0 : pn_segment_poison((seg), "%s does not hold: %s", (name), #holds))
bool pn_lock_is_held(const struct pn_segment *seg);
#define pn_assert_held(seg)        assert(pn_lock_is_held(seg))
/* The topic area is also that of the thread which makes it, until it is ready: see topic/open.c. */
bool pn_topics_are_held(const struct pn_segment *seg);
#define pn_assert_topics_held(seg) assert(pn_topics_are_held(seg))
#define pn_assert_arena_held(mem)  assert(pn_topics_are_held((mem)->seg))
#endif

/* The present hold of the writer lock, which is the caller's. */
static inline struct pn_hold *pn_hold_of(const struct pn_segment *seg)
{
    pn_assert_held(seg);
    return seg->hold;
}

/* The same for what is done to topics, also while their area is made. */
static inline struct pn_hold *pn_topics_hold(const struct pn_segment *seg)
{
    pn_assert_topics_held(seg);
    bool ready = pn_load_relaxed(&seg->ctl->topics_ready) != 0;
    if (__builtin_expect(ready, 1) || seg->topics.opening == NULL) /* overwritten: nothing opens */
        return seg->hold;
    return seg->topics.opening;
}

/*
 * Be the only thread that makes the topic area; what a dead one has made does not count.  The
 * writer lock is not held, and others may take it.  0; -PN_ELOCK (names the process that makes it);
 * -PN_ELOCKBUSY; -EDEADLK; -EINTR as of pn_lock_wait().
 */
int pn_opening_begin(struct pn_segment *seg);
void pn_opening_end(struct pn_segment *seg);

#endif
