/* The lock with a time-out as it is where there is no pthread_mutex_clocklock(): musl, old glibc.
 * os.c is compiled once more here, so that the whole core of this program waits so. */
#define PN_WITHOUT_CLOCKLOCK 1
#include "base/os.c"

#include "kernel.h"

enum { MS = 1000000 };

static pthread_mutex_t mutex;
static atomic_int held;

static void make(bool robust)
{
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    if (robust)
        CHECK_EQ(pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST), 0);
    CHECK_EQ(pthread_mutex_init(&mutex, &attr), 0);
    pthread_mutexattr_destroy(&attr);
}

static void *hold(void *ms)
{
    CHECK_EQ(pthread_mutex_lock(&mutex), 0);
    atomic_store(&held, 1);
    usleep((useconds_t) * (int *) ms * 1000);
    CHECK_EQ(pthread_mutex_unlock(&mutex), 0);
    return NULL;
}

static void *hold_and_die(void *unused)
{
    CHECK_EQ(pthread_mutex_lock(&mutex), 0);
    return unused;
}

static pthread_t holder(int *ms)
{
    pthread_t thread;
    atomic_store(&held, 0);
    CHECK_EQ(pthread_create(&thread, NULL, hold, ms), 0);
    CHECK_SOON(atomic_load(&held));
    return thread;
}

/* Longer than one slice, and not before. */
static void test_it_waits_until_the_deadline(void)
{
    make(robust_mutexes());
    int ms = 1500;
    pthread_t thread = holder(&ms);
    int64_t until = pn_now_ns() + 250 * MS;
    CHECK_EQ(pn_os_lock_until(&mutex, until), ETIMEDOUT);
    CHECK(pn_now_ns() >= until);
    CHECK_EQ(pn_os_lock_until(&mutex, pn_now_ns() - 1), ETIMEDOUT);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(pn_os_lock_until(&mutex, 0), 0); /* it is free: no deadline is too early */
    CHECK_EQ(pthread_mutex_unlock(&mutex), 0);
}

static void test_it_has_the_lock_when_that_is_free(void)
{
    make(robust_mutexes());
    int ms = 250;
    pthread_t thread = holder(&ms);
    CHECK_EQ(pn_os_lock_until(&mutex, pn_now_ns() + 60000LL * MS), 0);
    CHECK_EQ(pthread_mutex_unlock(&mutex), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
}

static void test_it_tells_of_a_dead_holder(void)
{
    make(true);
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, hold_and_die, NULL), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(pn_os_lock_until(&mutex, pn_now_ns() + 60000LL * MS), EOWNERDEAD);
    CHECK_EQ(pthread_mutex_consistent(&mutex), 0);
    CHECK_EQ(pthread_mutex_unlock(&mutex), 0);
}

int main(void)
{
    test_watchdog(110);
    RUN(test_it_waits_until_the_deadline);
    RUN(test_it_has_the_lock_when_that_is_free);
    RUN_WHERE(robust_mutexes(), test_it_tells_of_a_dead_holder);
    return tests_done();
}
