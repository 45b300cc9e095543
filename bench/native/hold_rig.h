/*
 * hold_rig.h - what bench_hold times with: the longest hold of the writer lock, a bystander, and
 * the segment of a scenario.
 */
#ifndef HOLD_RIG_H
#define HOLD_RIG_H

#include "measure.h"

#include <inttypes.h>
#include <pthread.h>

#include "backend/conn.h"
#include "segment/lock.h"

/* ---- the longest hold ----------------------------------------------------------------------- */

enum { SAMPLES = 1 << 20, PAUSE_NS = 200000 };

/* Of this process and of the bystander. */
static struct shared {
    _Atomic(int64_t) longest_ns, longest_cpu_ns;
    atomic_int stop;
    uint32_t n;
    int64_t took_ns[SAMPLES];
} *shared;

static pthread_mutex_t *watched; /* the writer lock's mutex */
static int64_t taken_ns, taken_cpu_ns;

int __real_pthread_mutex_trylock(pthread_mutex_t *mutex);
int __real_pthread_mutex_clocklock(pthread_mutex_t *mutex, clockid_t clock,
                                   const struct timespec *until);
int __real_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_trylock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_clocklock(pthread_mutex_t *mutex, clockid_t clock,
                                   const struct timespec *until);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex);

static int64_t cpu_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (int64_t) ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void raise_to(_Atomic(int64_t) *word, int64_t value)
{
    int64_t old = atomic_load(word);
    while (old < value && !atomic_compare_exchange_weak(word, &old, value))
        ;
}

static int note_taken(pthread_mutex_t *mutex, int rc)
{
    if (mutex == watched && (rc == 0 || rc == EOWNERDEAD)) {
        taken_cpu_ns = cpu_ns();
        taken_ns = now_ns();
    }
    return rc;
}

int __wrap_pthread_mutex_trylock(pthread_mutex_t *mutex)
{
    return note_taken(mutex, __real_pthread_mutex_trylock(mutex));
}

int __wrap_pthread_mutex_clocklock(pthread_mutex_t *mutex, clockid_t clock,
                                   const struct timespec *until)
{
    return note_taken(mutex, __real_pthread_mutex_clocklock(mutex, clock, until));
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    if (mutex == watched) {
        raise_to(&shared->longest_ns, now_ns() - taken_ns);
        raise_to(&shared->longest_cpu_ns, cpu_ns() - taken_cpu_ns);
    }
    return __real_pthread_mutex_unlock(mutex);
}

/* ---- the bystander -------------------------------------------------------------------------- */

static child bystander;

static void stand_by(int socket, void *arg)
{
    pn_conn *own = connect_to(arg);
    tell(socket, 1);
    hear(socket);
    while (atomic_load(&shared->stop) == 0 && shared->n < SAMPLES) {
        int64_t began = now_ns();
        (void) pn_notify(own, "c", 1, "x", 1); /* the queue may be full */
        shared->took_ns[shared->n++] = now_ns() - began;
        nanosleep(&(struct timespec) {.tv_nsec = PAUSE_NS}, NULL);
    }
}

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *) a, y = *(const int64_t *) b;
    return x < y ? -1 : x > y;
}

/* Where a process dies: before its death, since connecting repairs what it left. */
static void place_bystander(pn_engine *of)
{
    bystander = start_child(stand_by, of);
    hear(bystander.socket);
}

static void begin_watching(pn_conn *conn, pn_engine *of)
{
    if (bystander.pid == 0)
        place_bystander(of);
    watched = &conn->seg->lock->mutex;
    shared->longest_ns = shared->longest_cpu_ns = 0;
    shared->stop = 0;
    shared->n = 0;
    tell(bystander.socket, 1);
}

struct result {
    double ms, cpu_ms, bystander_ms;
    uint32_t bystander_calls;
};

static struct result end_watching(void)
{
    atomic_store(&shared->stop, 1);
    watched = NULL;
    wait_for_death(bystander);
    bystander = (child) {.pid = 0};
    qsort(shared->took_ns, shared->n, sizeof *shared->took_ns, by_size);
    uint32_t at = (uint32_t) ((double) shared->n * 0.999);
    return (struct result) {.ms = (double) shared->longest_ns / 1e6,
                            .cpu_ms = (double) shared->longest_cpu_ns / 1e6,
                            .bystander_calls = shared->n,
                            .bystander_ms =
                                shared->n == 0 ? 0 : (double) shared->took_ns[at] / 1e6};
}

static bool quick;

/* ---- the segment of a scenario -------------------------------------------------------------- */

static pn_engine *engine;
static pn_conn *conn;

static void open_hold(const pn_options *o)
{
    engine = open_segment("hold", o);
    conn = connect_to(engine);
}

static void close_hold(void)
{
    pn_conn_close(conn);
    pn_engine_close(engine);
    remove_segments();
}

/* The scenario has been played: its segment and its files go. */
static struct result finish(void)
{
    struct result r = end_watching();
    close_hold();
    empty_directory();
    return r;
}

#endif
