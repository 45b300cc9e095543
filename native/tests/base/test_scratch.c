/* What tests leave when they are killed goes when the next ones begin, and not before. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "engine.h"

static char parent[64];
static int up[2];

static bool exists(const char *path)
{
    return access(path, F_OK) == 0;
}

static void with_a_directory(void *path)
{
    char inner[128];
    CHECK(scratch_make(parent, path, 64));
    snprintf(inner, sizeof inner, "%s/inner", (char *) path);
    CHECK_EQ(mkdir(inner, 0700), 0);
    snprintf(inner, sizeof inner, "%s/inner/file", (char *) path);
    CHECK(close(open(inner, O_WRONLY | O_CREAT | O_CLOEXEC, 0600)) == 0);
    test_tell(up);
    for (;;)
        pause();
}

static void test_a_directory_is_there_until_its_test_is_dead(void)
{
    char *path = mmap(NULL, 64, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char other[64];
    CHECK(path != MAP_FAILED);
    CHECK_EQ(pipe(up), 0);
    pid_t pid = spawn(with_a_directory, path);
    test_hear(up);
    CHECK(scratch_make(parent, other, sizeof other));
    CHECK(exists(path));
    kill(pid, SIGKILL);
    CHECK_KILLED(pid, SIGKILL);
    CHECK(exists(path));
    scratch_sweep(parent);
    CHECK(!exists(path) && exists(other)); /* which is ours */
    munmap(path, 64);
}

static void nothing(void *arg)
{
    (void) arg;
}

static void test_a_segment_is_there_until_its_test_is_dead_for_long(void)
{
    char path[2][96];
    pid_t dead = spawn(nothing, NULL);
    CHECK_CHILD(dead, 0);
    for (int i = 0; i < 2; i++) {
        snprintf(path[i], sizeof path[i], "/dev/shm/pynotify.%u.scratch-%d-%d.0",
                 (unsigned) geteuid(), (int) getpid(), i == 0 ? (int) dead : (int) getpid());
        CHECK(close(open(path[i], O_WRONLY | O_CREAT | O_CLOEXEC, 0600)) == 0);
    }
    char prefix[32];
    snprintf(prefix, sizeof prefix, "scratch-%d-", (int) getpid());
    scratch_sweep_segments(prefix, SCRATCH_OLD_S);
    CHECK(exists(path[0]) && exists(path[1]));
    scratch_sweep_segments(prefix, -1);
    CHECK(!exists(path[0]) && exists(path[1]));
    CHECK_EQ(unlink(path[1]), 0);
}

/* Of a killed test whose process ID this one has: it must not be attached to. */
static void test_a_name_is_of_no_segment(void)
{
    char left[64], path[128];
    pn_options o = test_options();
    (void) test_segment_name();
    snprintf(left, sizeof left, "ctest.%d.%u", (int) getpid(), test_segments.n);
    snprintf(path, sizeof path, "/dev/shm/pynotify.%u.%s", (unsigned) geteuid(), left);
    CHECK_OK(pn_create(left, &o));
    CHECK(exists(path));
    CHECK_STR(test_segment_name(), left);
    CHECK(!exists(path));
}

static void forks_with_a_segment(void *name)
{
    pn_options o = test_options();
    snprintf(name, 64, "%s", test_segment_name());
    CHECK_OK(pn_create(name, &o));
}

/* A child's own names go with the child, those of its parent stay. */
static void test_a_child_removes_its_own(void)
{
    char *its = mmap(NULL, 64, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char path[128];
    pn_options o = test_options();
    CHECK(its != MAP_FAILED);
    const char *ours = test_segment_name();
    CHECK_OK(pn_create(ours, &o));
    CHECK_CHILD(spawn(forks_with_a_segment, its), 0);
    snprintf(path, sizeof path, "/dev/shm/pynotify.%u.%s", (unsigned) geteuid(), its);
    CHECK(its[0] != '\0' && !exists(path));
    snprintf(path, sizeof path, "/dev/shm/pynotify.%u.%s", (unsigned) geteuid(), ours);
    CHECK(exists(path));
    munmap(its, 64);
}

int main(void)
{
    test_watchdog(20);
    CHECK(scratch_make("/tmp", parent, sizeof parent));
    RUN(test_a_directory_is_there_until_its_test_is_dead);
    RUN(test_a_segment_is_there_until_its_test_is_dead_for_long);
    RUN(test_a_name_is_of_no_segment);
    RUN(test_a_child_removes_its_own);
    scratch_remove(parent);
    return tests_done();
}
