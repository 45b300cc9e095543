/* What everything stands on: checksums, the sentence of an error, record locks, pidfds. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "harness.h"

#include <fcntl.h>

#include "base/crc32c.h"
#include "base/err.h"
#include "base/os.h"
#include "kernel.h"

/* RFC 3720, B.4, and the check value of the catalogues. */
static void test_checksums_of_the_standard(void)
{
    uint8_t zeros[32] = {0}, ones[32], up[32], down[32];
    memset(ones, 0xff, sizeof ones);
    for (int i = 0; i < 32; i++) {
        up[i] = (uint8_t) i;
        down[i] = (uint8_t) (31 - i);
    }
    uint32_t (*const ways[])(uint32_t, const void *, size_t) = {pn_crc32c, pn_crc32c_portable};
    for (int i = 0; i < 2; i++) {
        CHECK_EQ(ways[i](0, "123456789", 9), 0xe3069283u);
        CHECK_EQ(ways[i](0, zeros, 32), 0x8a9136aau);
        CHECK_EQ(ways[i](0, ones, 32), 0x62a8ab43u);
        CHECK_EQ(ways[i](0, up, 32), 0x46dd794eu);
        CHECK_EQ(ways[i](0, down, 32), 0x113fdb5cu);
        CHECK_EQ(ways[i](0, zeros, 0), 0);
    }
}

/* Both ways, from every alignment, over every length, in one piece and in two. */
static void test_checksums_do_not_depend_on_the_way(void)
{
    enum { MOST = 600 };
    uint8_t bytes[MOST + 8];
    for (unsigned i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t) (i * 2654435761u >> 24);
    for (unsigned from = 0; from < 8; from++)
        for (unsigned n = 0; n <= MOST; n++) {
            const uint8_t *p = bytes + from;
            uint32_t crc = pn_crc32c_portable(0, p, n);
            CHECK_EQ(pn_crc32c(0, p, n), crc);
            CHECK_EQ(pn_crc32c(pn_crc32c(0, p, n / 3), p + n / 3, n - n / 3), crc);
        }
}

static void fail_in_a_child(void *arg)
{
    (void) arg;
    CHECK_EQ(pn_fail(PN_ELOCK, "%s", "of the child"), -PN_ELOCK);
    CHECK_STR(pn_error_message(), "of the child");
}

static void test_an_error_has_a_sentence(void)
{
    CHECK_EQ(pn_fail(ENOSPC, "no room for %d bytes\nFree some.", 7), -ENOSPC);
    CHECK_STR(pn_error_message(), "no room for 7 bytes\nFree some.");
    CHECK_EQ(reap(spawn(fail_in_a_child, NULL)), 0);
    CHECK_STR(pn_error_message(), "no room for 7 bytes\nFree some.");

    char longest[2000];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    pn_fail(EIO, "%s", longest); /* cut, not overrun */
    CHECK(strlen(pn_error_message()) < sizeof longest - 1);
    CHECK(strncmp(pn_error_message(), longest, strlen(pn_error_message())) == 0);
}

/* A child holds a byte both ways; its parent is told the pid, or that it is a description's. */
static void test_locks_tell_their_holder(void)
{
    char path[] = "/tmp/pn-test-XXXXXX";
    int fd = mkstemp(path), ready[2], over[2];
    CHECK(fd >= 0 && pipe(ready) == 0 && pipe(over) == 0);
    pid_t child = fork();
    if (child == 0) {
        char byte;
        int own = open(path, O_RDWR);
        int rc = pn_os_lock_take(own, 3) | pn_os_lock_take_ofd(own, 5);
        close(over[1]);
        byte = (char) (rc == 0);
        if (write(ready[1], &byte, 1) != 1 || read(over[0], &byte, 1) != 0)
            _exit(2);
        _exit(0);
    }
    close(over[0]);
    char taken = 0;
    CHECK(read(ready[0], &taken, 1) == 1 && taken == 1);
    int64_t start, span;
    CHECK_EQ(pn_os_lock_holder(fd, 0, 5, &start, &span), child);
    CHECK_EQ(start, 3);
    CHECK_EQ(span, 1);
    CHECK_EQ(pn_os_lock_holder(fd, 4, 10, NULL, NULL), PN_LOCK_OFD);
    CHECK_EQ(pn_os_lock_holder(fd, 6, 10, NULL, NULL), PN_LOCK_FREE);
    CHECK(pn_os_lock_take(fd, 3) < 0);
    CHECK(pn_os_lock_take_ofd(fd, 5) < 0);
    close(over[1]);
    CHECK_EQ(reap(child), 0);
    CHECK_EQ(pn_os_lock_holder(fd, 0, 10, NULL, NULL), PN_LOCK_FREE); /* gone with the process */
    CHECK_EQ(pn_os_lock_take(fd, 3), 0);
    CHECK_EQ(pn_os_lock_take_ofd(fd, 5), 0);
    int again = open(path, O_RDWR); /* by which both are seen */
    CHECK_EQ(pn_os_lock_holder(again, 3, 1, NULL, NULL), getpid());
    CHECK_EQ(pn_os_lock_holder(again, 5, 1, NULL, NULL), PN_LOCK_OFD);
    CHECK_EQ(pn_os_lock_drop(fd, 3), 0);
    CHECK_EQ(pn_os_lock_holder(again, 3, 1, NULL, NULL), PN_LOCK_FREE);
    CHECK_EQ(pn_os_lock_drop_ofd(fd, 5), 0);
    CHECK_EQ(pn_os_lock_holder(again, 5, 1, NULL, NULL), PN_LOCK_FREE);
    close(again);
    CHECK_EQ(pn_os_lock_holder(-1, 0, 1, NULL, NULL), -EBADF - 1);
    close(fd);
    unlink(path);
}

static void wait_for_the_end(void *arg)
{
    char byte;
    CHECK(read(*(int *) arg, &byte, 1) >= 0);
}

static void test_a_pidfd_knows_the_dead(void)
{
    int over[2];
    CHECK(pipe2(over, O_CLOEXEC) == 0);
    pid_t child = spawn(wait_for_the_end, &over[0]);
    int pidfd = pn_os_pidfd_open(child);
    CHECK_OK(pidfd);
    CHECK(!pn_os_pidfd_dead(pidfd));
    CHECK_EQ(kill(child, SIGKILL), 0);
    CHECK_SOON(pn_os_pidfd_dead(pidfd)); /* a zombie is dead already */
    CHECK(waitpid(child, NULL, 0) == child);
    CHECK_EQ(pn_os_pidfd_signal(pidfd, SIGUSR1, 1), -ESRCH);
    CHECK(pn_os_pidfd_open(child) < 0 || child == 0);
    close(pidfd);
    close(over[0]);
    close(over[1]);
}

static void handle(int signo)
{
    (void) signo;
}

static void test_a_handler_is_seen(void)
{
    const struct sigaction ours = {.sa_handler = handle};
    struct sigaction before;
    CHECK_EQ(pn_os_catches(getpid(), SIGUSR1), 0);
    CHECK_EQ(sigaction(SIGUSR1, &ours, &before), 0);
    CHECK_EQ(pn_os_catches(getpid(), SIGUSR1), 1);
    CHECK_EQ(pn_os_catches(getpid(), SIGUSR2), 0);
    CHECK_EQ(sigaction(SIGUSR1, &before, NULL), 0);
    CHECK_EQ(pn_os_catches(getpid(), SIGUSR1), 0);
}

int main(void)
{
    test_watchdog(110);
    RUN(test_checksums_of_the_standard);
    RUN(test_checksums_do_not_depend_on_the_way);
    RUN(test_an_error_has_a_sentence);
    RUN(test_locks_tell_their_holder);
    RUN(test_a_pidfd_knows_the_dead);
    RUN_WHERE(handlers_in_proc(), test_a_handler_is_seen);
    return tests_done();
}
