/*
 * lock.c - the one writer lock.
 *
 * 1. A robust, process-shared, error-checking pthread mutex.  When its holder dies, the kernel
 *    gives it to exactly one successor, with EOWNERDEAD; that one repairs (recover.c) before
 *    another process looks, and only then makes it consistent.  A crash inside the repair is the
 *    same event again.
 * 2. Spin shortly, since the section is about 100 ns long, and only where another processor
 *    could release it.  Then sleep, bounded; after the bound the caller gets the holder's pid in
 *    an error.  Never steal: a stopped process is not a dead one.
 * 3. A poisoned segment is left inconsistent on purpose only in memory (`state`): the mutex is
 *    made consistent, so that waiters get an answer instead of ENOTRECOVERABLE.
 * 4. The C library sleeps on through signals, and so nothing here sees that one came.  A caller
 *    whose language runs its signal handlers between two calls is let out every 50 ms instead
 *    (pn_lock_wait).  When the same call comes back within a second, its time goes on where it
 *    stood, unless it got the lock in between.  A call that is not made again, because a handler
 *    raised, leaves its time to no other: the binding says so (pn_lock_forget), and what a handler
 *    itself calls is told apart by what it waits for.
 * 5. After a death in the middle of an operation on topics these are closed, and opened again in
 *    steps (rebuild_topics.c), one at the most in a hold.  Each process that takes the lock does
 *    one, and a caller that needs topics takes it again and again; in between it sleeps as long as
 *    its step took, since a mutex does not ask how long the others have waited.  A short time (see
 *    lock.h) has one end, however often the lock is taken and the call made again meanwhile.
 * 6. A thread that has waited for long gets the lock next: see turn.h.
 */
#define _GNU_SOURCE
#include "segment/lock.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/crashpoint.h"
#include "base/os.h"
#include "files/data_file.h"
#include "segment/turn.h"

enum { SPINS = 200 };

#define ALL_STEPS UINT32_MAX

#define SECOND_NS    1000000000LL
#define PN_RESUME_NS SECOND_NS

_Thread_local bool pn_never_wait;
bool pn_interruptible;
_Thread_local int64_t pn_lock_timeout_ns = PN_LOCK_TIMEOUT_NS;

/* The wait that this thread has left, to let signal handlers run; `whose` is NULL: none. */
static _Thread_local struct {
    const void *whose;
    const char *what;
    int64_t deadline, left_at;
} left;
static pn_atomic_u32 some_left; /* in this process: else there is no need to look at `left` */

#ifdef NDEBUG
#define note(holding, seg) ((void) 0)
#else
/* The segment whose writer lock this thread holds.  A forked child has a copy, but no lock. */
static _Thread_local struct holding {
    const struct pn_segment *seg;
    int32_t pid;
} held, opening;

static void note(struct holding *holding, const struct pn_segment *seg)
{
    assert(seg == NULL || holding->seg == NULL || holding->pid != pn_my_pid); /* never two */
    holding->seg = seg;
    holding->pid = pn_my_pid;
}

bool pn_lock_is_held(const struct pn_segment *seg)
{
    return held.seg == seg && held.pid == pn_my_pid;
}

bool pn_topics_are_held(const struct pn_segment *seg)
{
    if (pn_lock_is_held(seg)) /* and they are not closed, but for a step of what opens them */
        return pn_load_relaxed(&seg->ctl->topics_dirty) != PN_TOPICS_CLOSED;
    return (opening.seg == seg && opening.pid == pn_my_pid &&
            pn_load_relaxed(&seg->ctl->topics_ready) == 0);
}
#endif

static void begin(struct pn_segment *seg, struct pn_hold *hold)
{
    note(&held, seg);
    hold->at_end = 0;
    hold->nwakes = 0;
    hold->nlengthened = 0;
    hold->returned = 0;
    hold->sync.policy = 0;
    hold->notes = NULL;
    hold->told = false;
    hold->moved = (struct pn_moved) {0};
    seg->hold = hold;
    pn_data_files_hold();
}

static void end(struct pn_segment *seg, struct pn_hold *hold)
{
    pn_assert_held(seg);
    assert(seg->hold == hold); /* I7: and pn_assert_held() */
    seg->hold = NULL;
    note(&held, NULL);
    pthread_mutex_unlock(&seg->lock->mutex);
    pn_data_files_release();
    if (__builtin_expect(hold->at_end != 0, 0))
        pn_segment_hooks.released(seg, hold);
}

/* What waits; NULL: something that may not be left. */
struct waiting {
    const void *whose; /* what is waited for by one call at a time: a transaction, a connection */
    const char *what;  /* the call */
};

static int leave_wait(const struct waiting *w, int64_t deadline)
{
    left.whose = w->whose;
    left.what = w->what;
    left.deadline = deadline;
    left.left_at = pn_now_ns();
    pn_store_relaxed(&some_left, 1);
    return -EINTR;
}

static bool was_left(const struct waiting *w)
{
    return left.whose == w->whose && left.what == w->what;
}

/* By when a wait that begins now is over, which would be `deadline` if it were a new one. */
static int64_t resume(const struct waiting *w, int64_t now, int64_t deadline)
{
    if (!was_left(w))
        return deadline;
    if (now - left.left_at < PN_RESUME_NS && left.deadline < deadline)
        deadline = left.deadline;
    left.whose = NULL;
    return deadline;
}

void pn_lock_forget(void)
{
    left.whose = NULL;
}

static int take_over(struct pn_segment *seg, struct pn_hold *hold, int rc)
{
    if (rc == ENOTRECOVERABLE)
        return pn_segment_poison(seg, "the writer lock is not recoverable");
    begin(seg, hold);
    pn_store_relaxed(&seg->recovered_from, pn_load_relaxed(&seg->lock->holder_pid));
    int err = pn_segment_hooks.recover(seg);
    if (rc == EOWNERDEAD)
        pthread_mutex_consistent(&seg->lock->mutex);
    if (err != 0) {
        end(seg, hold);
        return err;
    }
    return 0;
}

/* A recovery that itself failed (no memory) left the work to the next holder. */
static inline bool unfinished(const struct pn_segment *seg)
{
    return (seg->ctl->index_dirty | pn_load_relaxed(&seg->ctl->topics_dirty)) != 0 ||
           pn_load_relaxed(&seg->ctl->woken) != pn_load_relaxed(&seg->ctl->head);
}

/* What this thread takes the lock for, and when it got it last while the topics were closed. */
static _Thread_local bool wants_topics;
static _Thread_local int64_t step_ns;

/* All is as it should be, but for topics that are closed: so far. */
static int help(struct pn_segment *seg, struct pn_hold *hold)
{
    int64_t began = pn_now_ns();
    begin(seg, hold);
    int rc = pn_segment_hooks.repair(seg, wants_topics);
    step_ns = pn_now_ns() - began;
    if (rc != 0)
        end(seg, hold);
    return rc;
}

static bool only_closed(const struct pn_segment *seg)
{
    return seg->ctl->index_dirty == 0 &&
           pn_load_relaxed(&seg->ctl->topics_dirty) == PN_TOPICS_CLOSED &&
           pn_load_relaxed(&seg->ctl->woken) == pn_load_relaxed(&seg->ctl->head);
}

static int timed_out(struct pn_segment *seg, int error)
{
    int32_t holder = pn_load_relaxed(&seg->lock->holder_pid);
    return pn_fail(error,
                   "the writer lock of segment \"%s\" is held by the process with PID %d\n"
                   "If that process is stopped (SIGSTOP, a debugger), continue or kill it.",
                   seg->name, holder);
}

static int finish(struct pn_segment *seg, struct pn_hold *hold, int rc)
{
    if (rc == EDEADLK)
        return pn_fail(EDEADLK,
                       "this thread holds the writer lock of segment \"%s\" already\n"
                       "Do not call pynotify from a signal handler that interrupts it.",
                       seg->name);
    if (rc == EOWNERDEAD || rc == ENOTRECOVERABLE) {
        rc = take_over(seg, hold, rc);
        if (rc != 0)
            return rc;
    } else if (rc == 0 && unfinished(seg)) {
        rc = only_closed(seg) ? help(seg, hold) : take_over(seg, hold, 0);
        if (rc != 0)
            return rc;
    } else if (rc == 0) {
        begin(seg, hold);
    } else {
        return pn_segment_poison(seg, "the writer lock is damaged (%s)", strerror(rc));
    }
    rc = pn_segment_check_state(seg);
    if (__builtin_expect(rc != 0, 0)) {
        end(seg, hold);
        return rc;
    }
    pn_store_relaxed(&seg->lock->holder_pid, pn_my_pid);
    PN_CRASH("lock:acquired");
    return 0;
}

/* What trylock said; EBUSY if it is another's turn, for which this thread then has stood back. */
static inline int unless_others_turn(struct pn_segment *seg, int rc)
{
    const uint32_t other = pn_turn_of(&seg->lock->turn);
    if (__builtin_expect(other == 0, 1) || rc != 0 || pn_never_wait)
        return rc;
    pthread_mutex_unlock(&seg->lock->mutex);
    PN_CRASH("turn:stands-back");
    pn_turn_stand_back(&seg->lock->turn, other);
    return EBUSY;
}

/* What the C library says, ETIMEDOUT at `end_at`; or why there is nothing more to wait for. */
static int sleep_until(struct pn_segment *seg, int64_t end_at, struct pn_turn *turn)
{
    for (;;) {
        int64_t now = pn_now_ns(), until = end_at - now < SECOND_NS ? end_at : now + SECOND_NS;
        if (now >= turn->ask_at)
            pn_turn_ask(turn, now);
        if (until > turn->ask_at)
            until = turn->ask_at;
        int rc = pn_os_lock_until(&seg->lock->mutex, until);
        if (rc != ETIMEDOUT)
            return rc;
        rc = pn_segment_check_state(seg);
        if (rc != 0)
            return rc;
        if (until >= end_at)
            return ETIMEDOUT;
    }
}

static int lock_slowly(struct pn_segment *seg, struct pn_hold *hold, int64_t timeout_ns,
                       const struct waiting *waiting)
{
    const bool spins = pn_os_cpus() > 1 && pn_turn_of(&seg->lock->turn) == 0;
    for (int i = 0; spins && i < SPINS; i++) {
        pn_cpu_relax();
        int rc = pthread_mutex_trylock(&seg->lock->mutex);
        if (rc != EBUSY)
            return finish(seg, hold, rc);
    }
    if (pn_never_wait)
        return timed_out(seg, PN_ELOCKBUSY);
    if (timeout_ns != PN_LOCK_FOREVER && timeout_ns > pn_lock_timeout_ns)
        timeout_ns = pn_lock_timeout_ns;
    int64_t now = pn_now_ns(), back_at = INT64_MAX;
    int64_t deadline = timeout_ns == PN_LOCK_FOREVER ? INT64_MAX : now + timeout_ns;
    if (waiting != NULL) {
        deadline = resume(waiting, now, deadline);
        back_at = now + PN_LOCK_SLICE_NS;
    }
    struct pn_turn turn = pn_turn_later(&seg->lock->turn, now);
    const int64_t end_at = deadline < back_at ? deadline : back_at;
    int rc = sleep_until(seg, end_at, &turn);
    pn_turn_end(&turn);
    if (rc != ETIMEDOUT)
        return rc < 0 ? rc : finish(seg, hold, rc);
    return end_at >= deadline ? timed_out(seg, PN_ELOCK) : leave_wait(waiting, deadline);
}

int pn_lock_acquire(struct pn_segment *seg, struct pn_hold *hold, int64_t timeout_ns)
{
    int rc = unless_others_turn(seg, pthread_mutex_trylock(&seg->lock->mutex));
    if (__builtin_expect(rc == EBUSY, 0))
        return lock_slowly(seg, hold, timeout_ns, NULL);
    return finish(seg, hold, rc);
}

int pn_lock_wait_for(struct pn_segment *seg, struct pn_hold *hold, int64_t timeout_ns,
                     const void *whose, const char *what)
{
    const struct waiting waiting = {.whose = whose, .what = what};
    int rc = unless_others_turn(seg, pthread_mutex_trylock(&seg->lock->mutex));
    if (__builtin_expect(rc == EBUSY, 0))
        return lock_slowly(seg, hold, timeout_ns, pn_interruptible ? &waiting : NULL);
    if (__builtin_expect(pn_load_relaxed(&some_left) != 0, 0) && was_left(&waiting))
        left.whose = NULL;
    return finish(seg, hold, rc);
}

static int closed_for_long(const struct pn_segment *seg, int error)
{
    return pn_fail(
        error,
        "the topics of segment \"%s\" are being repaired, after the death of the process "
        "with PID %d in the middle of an operation on them\n"
        "Try again: each call does a part of it.",
        seg->name, pn_load_relaxed(&seg->recovered_from));
}

void pn_lock_stand_back(int64_t took_ns)
{
    enum { LEAST_NS = 20000, MOST_NS = 1000000 };
    int64_t ns = took_ns < LEAST_NS ? LEAST_NS : took_ns > MOST_NS ? MOST_NS : took_ns;
    nanosleep(&(struct timespec) {.tv_nsec = ns}, NULL);
}

/* A call that was left, and is made again, has what is left of its time. */
static int64_t short_deadline(const struct waiting *w, int64_t limit)
{
    int64_t now = pn_now_ns();
    if (w != NULL && pn_load_relaxed(&some_left) != 0 && was_left(w) &&
        now - left.left_at < PN_RESUME_NS)
        return left.deadline;
    return now + limit;
}

/* -EAGAIN: they are closed still, after as many steps. */
static int lock_topics(struct pn_segment *seg, struct pn_hold *hold, int64_t timeout_ns,
                       const struct waiting *waiting, uint32_t steps)
{
    int64_t limit = timeout_ns, back_at = 0, deadline = INT64_MAX;
    if (limit != PN_LOCK_FOREVER && limit > pn_lock_timeout_ns)
        limit = pn_lock_timeout_ns;
    bool is_short = limit < PN_LOCK_TIMEOUT_NS;
    if (is_short)
        deadline = short_deadline(waiting, limit); /* before taking the lock forgets it */
    for (;;) {
        wants_topics = true;
        int rc = waiting != NULL
                     ? pn_lock_wait_for(seg, hold, timeout_ns, waiting->whose, waiting->what)
                     : pn_lock_acquire(seg, hold, timeout_ns);
        wants_topics = false;
        if (__builtin_expect(rc != 0 || !pn_topics_closed(seg), 1))
            return rc;
        pn_lock_release(seg);
        PN_CRASH("topic-recover:waiting");
        if (steps != ALL_STEPS && --steps == 0)
            return -EAGAIN;
        if (pn_never_wait)
            return closed_for_long(seg, PN_ELOCKBUSY);
        int64_t now = pn_now_ns();
        back_at = back_at == 0 ? now + PN_LOCK_SLICE_NS : back_at;
        if (now >= deadline)
            return closed_for_long(seg, PN_ELOCK);
        if (waiting != NULL && pn_interruptible && now >= back_at)
            return leave_wait(waiting, is_short                   ? deadline
                                       : limit == PN_LOCK_FOREVER ? INT64_MAX
                                                                  : now + limit);
        if (is_short)
            timeout_ns = deadline - now; /* of the next time that the lock is waited for */
        pn_lock_stand_back(step_ns);
    }
}

int pn_lock_topics(struct pn_segment *seg, struct pn_hold *hold, int64_t timeout_ns)
{
    return lock_topics(seg, hold, timeout_ns, NULL, ALL_STEPS);
}

int pn_lock_topics_after(struct pn_segment *seg, struct pn_hold *hold, uint32_t steps)
{
    return lock_topics(seg, hold, PN_LOCK_TIMEOUT_NS, NULL, steps);
}

int pn_lock_topics_wait_for(struct pn_segment *seg, struct pn_hold *hold, int64_t timeout_ns,
                            const void *whose, const char *what)
{
    const struct waiting waiting = {.whose = whose, .what = what};
    return lock_topics(seg, hold, timeout_ns, &waiting, ALL_STEPS);
}

int pn_lock_try(struct pn_segment *seg, struct pn_hold *hold)
{
    int rc = pthread_mutex_trylock(&seg->lock->mutex);
    return rc == EBUSY ? -EBUSY : finish(seg, hold, rc);
}

void pn_lock_release(struct pn_segment *seg)
{
    struct pn_hold *hold = pn_hold_of(seg);
    PN_CRASH("lock:before-unlock");
    end(seg, hold);
}

/* ---- making the topic area ------------------------------------------------------------------- */

static int already_opening(struct pn_segment *seg, int error)
{
    return pn_fail(error,
                   "the process with PID %d is still making the topics of segment \"%s\" ready: it "
                   "allocates their memory, or reads the log of durable topics\n"
                   "Try again when it has done so. If it is stopped, continue or kill it.",
                   pn_load_relaxed(&seg->lock->opener_pid), seg->name);
}

/* 0: `rc` is what the C library says of the mutex; else there is nothing to say of it. */
static int wait_to_open(struct pn_segment *seg, int *rc)
{
    const struct waiting waiting = {.whose = &seg->lock->opening, .what = __func__};
    int64_t limit =
        pn_lock_timeout_ns < PN_LOCK_TIMEOUT_NS ? pn_lock_timeout_ns : PN_LOCK_TIMEOUT_NS;
    int64_t now = pn_now_ns(), deadline = now + limit, back_at = INT64_MAX;
    if (pn_interruptible) {
        deadline = resume(&waiting, now, deadline);
        back_at = now + PN_LOCK_SLICE_NS;
    }
    for (; *rc == EBUSY || *rc == ETIMEDOUT; now = pn_now_ns()) {
        int64_t until = deadline - now < 1000000000 ? deadline : now + 1000000000;
        int state = pn_segment_check_state(seg);
        if (state != 0)
            return state;
        if (now >= deadline)
            return already_opening(seg, PN_ELOCK);
        if (now >= back_at)
            return leave_wait(&waiting, deadline);
        *rc = pn_os_lock_until(&seg->lock->opening, until < back_at ? until : back_at);
    }
    return 0;
}

int pn_opening_begin(struct pn_segment *seg)
{
    pthread_mutex_t *mutex = &seg->lock->opening;
    int rc = pthread_mutex_trylock(mutex);
    if (rc == EBUSY && pn_never_wait)
        return already_opening(seg, PN_ELOCKBUSY);
    if (rc == EBUSY) {
        int given_up = wait_to_open(seg, &rc);
        if (given_up != 0)
            return given_up;
    }
    if (rc == EDEADLK)
        return pn_fail(EDEADLK,
                       "this thread is making the topics of segment \"%s\" ready already\n"
                       "Do not call pynotify from a signal handler that interrupts it.",
                       seg->name);
    if (rc == EOWNERDEAD) /* it has left nothing that counts: see topic/open.c */
        rc = pthread_mutex_consistent(mutex);
    if (rc != 0)
        return pn_segment_poison(seg, "the lock for making topics is damaged (%s)", strerror(rc));
    pn_store_relaxed(&seg->lock->opener_pid, pn_my_pid);
    note(&opening, seg);
    return 0;
}

void pn_opening_end(struct pn_segment *seg)
{
    note(&opening, NULL);
    pthread_mutex_unlock(&seg->lock->opening);
}
