/*
 * harness.h - what a test program in this folder needs, and no more.
 *
 *     static void test_head_moves_only_at_commit(void) { ... CHECK_EQ(a, b); ... }
 *     int main(void) { RUN(test_head_moves_only_at_commit); return tests_done(); }
 *
 * A failed CHECK prints where and what and ends the process with status 1; in a child made by
 * spawn() it ends the child, and CHECK_CHILD() in the parent reports it.  Nothing waits without a
 * bound: a process that is late is killed and reported.
 */
#ifndef PN_TESTS_HARNESS_H
#define PN_TESTS_HARNESS_H

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "pynotify.h"
#include "scratch.h"

/*
 * PYNOTIFY_TIME_FACTOR (1) multiplies every time limit, here, of ctest and of pytest: for a busy or
 * slow machine.
 */
static inline int test_time_factor(void)
{
    const char *factor = getenv("PYNOTIFY_TIME_FACTOR");
    int n = factor == NULL ? 1 : atoi(factor);
    return n < 1 ? 1 : n > 99 ? 99 : n;
}

/* No event of a test takes longer, sanitizers included. */
#define TEST_PATIENCE_MS (60000 * test_time_factor())

static unsigned tests_run; /* one test program is one translation unit */

#define FAIL(...)                                                                                  \
    do {                                                                                           \
        fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, __func__);                              \
        fprintf(stderr, __VA_ARGS__);                                                              \
        fputc('\n', stderr);                                                                       \
        exit(1);                                                                                   \
    } while (0)

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond))                                                                               \
            FAIL("failed: %s", #cond);                                                             \
    } while (0)

/* Integers of any type; both values are shown. */
#define CHECK_EQ(got, want)                                                                        \
    do {                                                                                           \
        long long got_ = (long long) (got), want_ = (long long) (want);                            \
        if (got_ != want_)                                                                         \
            FAIL("%s is %lld, not %s = %lld", #got, got_, #want, want_);                           \
    } while (0)

#define CHECK_STR(got, want)                                                                       \
    do {                                                                                           \
        const char *got_ = (got), *want_ = (want);                                                 \
        if (got_ == NULL || strcmp(got_, want_) != 0)                                              \
            FAIL("%s is \"%s\", not \"%s\"", #got, got_ ? got_ : "(null)", want_);                 \
    } while (0)

/* A call of ours that has to succeed (0 or positive); shows its error message. */
#define CHECK_OK(call)                                                                             \
    do {                                                                                           \
        long long rc_ = (long long) (call);                                                        \
        if (rc_ < 0)                                                                               \
            FAIL("%s: %lld: %s", #call, rc_, pn_error_message());                                  \
    } while (0)

/* A condition that another process or thread brings about: looked at until it holds. */
#define CHECK_SOON(cond)                                                                           \
    do {                                                                                           \
        int64_t until_ = test_now_ns() + TEST_PATIENCE_MS * INT64_C(1000000);                      \
        while (!(cond)) {                                                                          \
            if (test_now_ns() > until_)                                                            \
                FAIL("not within %d ms: %s", TEST_PATIENCE_MS, #cond);                             \
            test_sleep_ms(1);                                                                      \
        }                                                                                          \
    } while (0)

/* The child made by spawn() has to exit with `status`, or to die by `signo`. */
#ifndef W_EXITCODE /* musl */
#define W_EXITCODE(status, signal) ((status) << 8 | (signal))
#endif
#define CHECK_CHILD(pid, status) CHECK_EQ(reap(pid), W_EXITCODE(status, 0))
#define CHECK_KILLED(pid, signo) CHECK_EQ(reap(pid) & 0x7f, signo)

#define RUN(test)                                                                                  \
    do {                                                                                           \
        int64_t t0_ = test_now_ns();                                                               \
        test();                                                                                    \
        tests_run++;                                                                               \
        printf("ok %u - %s (%.1f ms)\n", tests_run, #test, (double) (test_now_ns() - t0_) / 1e6);  \
        fflush(stdout);                                                                            \
    } while (0)

/* A test that needs what `has` asks for; where PYNOTIFY_REQUIRE is set, nothing may be missing. */
#define RUN_WHERE(has, test)                                                                       \
    do {                                                                                           \
        if (has)                                                                                   \
            RUN(test);                                                                             \
        else if (getenv("PYNOTIFY_REQUIRE") != NULL)                                               \
            FAIL("there is no %s here, for %s", #has, #test);                                      \
        else                                                                                       \
            printf("ok %u - %s # skip: no %s\n", ++tests_run, #test, #has);                        \
    } while (0)

static inline int64_t test_now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t) ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static inline void test_sleep_ms(int ms)
{
    struct timespec ts = {ms / 1000, (long) (ms % 1000) * 1000000};
    nanosleep(&ts, NULL);
}

static inline int tests_done(void)
{
    printf("1..%u\n", tests_run);
    return tests_run > 0 ? 0 : 1;
}

static inline void test_segments_remove(void);

/* Run body(arg) in a forked child, which then exits with 0; it does not outlive its parent. */
static inline pid_t spawn(void (*body)(void *), void *arg)
{
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        body(arg);
        fflush(NULL);
        test_segments_remove(); /* its own, if it made any */
        _exit(0);
    }
    return pid;
}

/* The wait status of a child; one that does not end in time is killed, and the test fails. */
static inline int reap(pid_t pid)
{
    int status = -1;
    int fd = (int) syscall(SYS_pidfd_open, pid, 0);
    CHECK(fd >= 0);
    struct pollfd ended = {.fd = fd, .events = POLLIN};
    int64_t until = test_now_ns() + TEST_PATIENCE_MS * INT64_C(1000000);
    int rc;
    do
        rc = poll(&ended, 1, TEST_PATIENCE_MS);
    while (rc < 0 && errno == EINTR && test_now_ns() < until);
    if (rc <= 0) {
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
        FAIL("child %d did not end within %d ms", (int) pid, TEST_PATIENCE_MS);
    }
    while (waitpid(pid, &status, 0) < 0)
        CHECK(errno == EINTR);
    close(fd);
    return status;
}

/* A child that does a share of the work: test_watchdog() says how long it may take. */
static inline void reap_worker(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, 0) < 0)
        CHECK(errno == EINTR);
    CHECK_EQ(status, 0);
}

/* ---- segments of a test: named after the process, gone when it ends -------------------------- */

#define TEST_SEGMENTS 256

static struct {
    char name[TEST_SEGMENTS][64];
    unsigned n;
    pid_t owner;
} test_segments;

static inline void test_segment_remove(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "/pynotify.%u.%s", (unsigned) geteuid(), name);
    shm_unlink(path);
    pn_remove_lock_files(name);
}

static inline void test_segments_remove(void)
{
    if (test_segments.owner != getpid())
        return; /* a forked child that exits */
    for (unsigned i = 0; i < test_segments.n; i++)
        test_segment_remove(test_segments.name[i]);
}

/*
 * A name of its own; the segment is unlinked when the program ends.  What has that name was
 * left behind by a killed test whose process ID this one has now.
 */
static inline const char *test_segment_name(void)
{
    if (test_segments.owner == 0)
        scratch_sweep_segments("ctest.", SCRATCH_OLD_S);
    if (test_segments.owner != getpid()) { /* the first, or the first of a forked child */
        test_segments.owner = getpid();
        test_segments.n = 0;
        atexit(test_segments_remove);
    }
    CHECK(test_segments.n < TEST_SEGMENTS);
    char *name = test_segments.name[test_segments.n];
    snprintf(name, sizeof test_segments.name[0], "ctest.%d.%u", (int) getpid(), test_segments.n);
    test_segments.n++;
    test_segment_remove(name);
    return name;
}

static inline void test_too_late(int signo)
{
    static const char message[] = "the watchdog barked: a test hangs\n";
    (void) signo;
    if (write(STDERR_FILENO, message, sizeof message - 1) < 0)
        _exit(2);
    test_segments_remove();
    _exit(1);
}

/*
 * From now on, a program (or child) that hangs ends with status 1: one that is not done within five
 * times the `seconds` that are enough on a quiet machine.
 */
static inline void test_watchdog(unsigned seconds)
{
    signal(SIGALRM, test_too_late);
    alarm(5 * seconds * (unsigned) test_time_factor());
}

#endif
