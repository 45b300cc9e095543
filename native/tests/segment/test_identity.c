/* A program that closes descriptors which are not its own, and one that changes its namespace. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "topics.h"
#include "children.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/stat.h>

#include "backend/backend.h"
#include "segment/identity.h"
#include "segment/liveness_files.h"
#include "base/os.h"

static void listens_meanwhile(void *arg)
{
    (void) arg;
    pn_conn *conn = test_connect(engine);
    test_listen(conn, "c");
    test_tell(up);
    test_hear(down);
    CHECK_POLL(conn, "1");
    pn_conn_close(conn);
}

/* The program closes it, and opens a file without a name, which gets the number. */
static void steal(int fd, struct stat *st)
{
    int other = open(P_tmpdir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    CHECK(other >= 0);
    if (other != fd) {
        CHECK_EQ(dup2(other, fd), fd);
        close(other);
    }
    CHECK_EQ(write(fd, "precious", 8), 8);
    CHECK_EQ(fstat(fd, st), 0);
}

static void check_untouched(int fd, const struct stat *before)
{
    struct stat st;
    struct flock any = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    CHECK_EQ(fstat(fd, &st), 0);
    CHECK(st.st_ino == before->st_ino && st.st_dev == before->st_dev);
    CHECK_EQ(st.st_size, 8);
    CHECK_EQ(fcntl(fd, F_OFD_GETLK, &any), 0); /* it sees this process's fcntl locks, too */
    CHECK_EQ(any.l_type, F_UNLCK);
}

/* Done by another process: does it find us alive? */
static void finds_us_alive(void *arg)
{
    (void) arg;
    struct pn_segment *seg = test_inside();
    CHECK_EQ(pn_backend_verdict(seg, 0), PN_ALIVE);
    CHECK_EQ(pn_os_lock_holder(pn_segment_lock_file(seg, 0), PN_OFD_BYTE, 1, NULL, NULL),
             PN_LOCK_OFD);
    CHECK_EQ(test_stat(engine).backends, 2);
}

static void lose_the_lock_file(bool number_is_used_again)
{
    struct stat foreign;
    begin_connected();
    pid_t pid = spawn(listens_meanwhile, NULL);
    test_hear(up);
    struct pn_segment *seg = test_inside();
    int fd = pn_segment_lock_file(seg, 0);
    close(fd);
    if (number_is_used_again)
        steal(fd, &foreign);
    CHECK_EQ(pn_backend_verdict(seg, 1), PN_ALIVE);
    CHECK_EQ(test_stat(engine).backends, 2);
    CHECK_OK(pn_backend_keep_alive(mine)); /* as before each sleep */
    CHECK_CHILD(spawn(finds_us_alive, NULL), 0);
    CHECK_OK(test_notify(mine, "c", "1"));
    test_tell(down);
    CHECK_CHILD(pid, 0);
    end();
    if (number_is_used_again) {
        check_untouched(fd, &foreign);
        close(fd);
    }
}

static void test_a_closed_lock_file_proves_no_death(void)
{
    lose_the_lock_file(false);
}

static void test_another_file_under_the_number_proves_no_death(void)
{
    lose_the_lock_file(true);
}

/* Without a look in between: what is not ours any more is neither locked nor closed. */
static void test_a_foreign_file_is_not_touched(void)
{
    struct stat as_lock, as_segment;
    begin_connected();
    struct pn_segment *seg = test_inside();
    int lock = pn_segment_lock_file(seg, 0), file = pn_segment_file(seg);
    steal(lock, &as_lock);
    steal(file, &as_segment);
    pn_conn *second = test_connect(engine); /* locks a byte of the same file */
    CHECK_EQ(pn_backend_verdict(seg, 1), PN_ALIVE);
    check_untouched(lock, &as_lock);
    pn_conn_close(second);
    int true_lock = pn_segment_lock_file(seg, 0);
    CHECK(true_lock != lock);
    CHECK_EQ(dup2(lock, true_lock), true_lock);
    pn_conn_close(mine);
    pn_engine_close(engine);
    check_untouched(lock, &as_lock);
    check_untouched(true_lock, &as_lock);
    check_untouched(file, &as_segment);
    const int all[] = {lock, true_lock, file, up[0], up[1], down[0], down[1]};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        CHECK_EQ(close(all[i]), 0);
}

/* The file has no name, as a segment that was unlinked; and it is not to be allocated. */
static void test_another_file_under_the_segments_number(void)
{
    struct stat foreign;
    begin_connected();
    int file = pn_segment_file(test_inside());
    steal(file, &foreign);
    CHECK_EQ(pn_engine_gone(engine), 0);
    publish(mine, topic_of(mine, "t"), "body");
    check_untouched(file, &foreign);
    struct stat st;
    CHECK_EQ(fstat(pn_segment_file(test_inside()), &st), 0);
    CHECK(st.st_blocks * 512 > (int64_t) test_inside()->topics.memory);
    end();
    check_untouched(file, &foreign);
    close(file);
}

/* ---- namespaces ------------------------------------------------------------------------------ */

static void looks_from_inside(void *arg)
{
    (void) arg;
    pn_conn *conn;
    CHECK_EQ(pn_connect(engine, "db", 2, 0, NULL, &conn), -PN_ELAYOUT);
    CHECK(strstr(pn_error_message(), "pid namespace") != NULL);
    CHECK_EQ(test_stat(engine).backends, 2);
    CHECK_EQ(pn_engine_backends(engine), 2);
}

static void unshares(void *arg)
{
    CHECK_EQ(unshare(CLONE_NEWPID), 0);
    pid_t pid = spawn(looks_from_inside, arg);
    CHECK_CHILD(pid, 0);
}

static void test_another_pid_namespace_sees_no_dead(void)
{
    pid_t pid = fork(); /* may this be done here at all? */
    CHECK(pid >= 0);
    if (pid == 0)
        _exit(unshare(CLONE_NEWPID) == 0 ? 0 : 77);
    if (reap(pid) != 0)
        return;
    begin_connected();
    pid = spawn(listens_meanwhile, NULL);
    test_hear(up);
    CHECK_CHILD(spawn(unshares, NULL), 0);
    CHECK_EQ(test_stat(engine).backends, 2);
    CHECK_OK(test_notify(mine, "c", "1"));
    test_tell(down);
    CHECK_CHILD(pid, 0);
    end();
}

int main(void)
{
    test_watchdog(100);
    RUN(test_a_closed_lock_file_proves_no_death);
    RUN(test_another_file_under_the_number_proves_no_death);
    RUN(test_a_foreign_file_is_not_touched);
    RUN(test_another_file_under_the_segments_number);
    RUN(test_another_pid_namespace_sees_no_dead);
    return tests_done();
}
