/*
 * Takeover of a dead process by one that watches it, without the slow timer; and what must not
 * happen meanwhile: a descriptor that stays readable, a signal to a stranger.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "neighbours.h"
#include "topics.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>

#include "topic/consume.h"

/* As the kernel says. */
static pid_t target(int pidfd)
{
    char path[64], line[256];
    int pid = -1;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", pidfd);
    FILE *info = fopen(path, "re");
    CHECK(info != NULL);
    while (pid < 0 && fgets(line, sizeof line, info) != NULL)
        sscanf(line, "Pid: %d", &pid);
    fclose(info);
    return pid;
}

static void test_a_dead_neighbour_is_reaped_by_a_sleeper(void)
{
    begin();
    pid_t sleeper = start(true), listener = start(true), other = start(false);
    end_process(listener);
    CHECK_SOON(!claimed(1));
    end_process(other);
    CHECK_SOON(!claimed(2));
    CHECK(claimed(0));
    end_process(sleeper);
    end();
}

static void test_the_descriptor_is_readable_until_the_dead_is_taken_over(void)
{
    begin();
    pid_t pid = start(true);
    pn_conn *conn = test_connect(engine);
    CHECK_OK(pn_fileno(conn));
    no_slow_timer(conn);
    test_listen(conn, "c"); /* walks */
    CHECK(sees(conn, pid));
    CHECK_POLL(conn, "");
    CHECK(!readable(conn));
    end_process(pid);
    CHECK(readable(conn));
    CHECK_POLL(conn, "");
    CHECK(!readable(conn));
    CHECK(!claimed(0));
    pid = start(false);
    CHECK(readable(conn)); /* told */
    CHECK_POLL(conn, "");
    CHECK(sees(conn, pid));
    end_process(pid);
    CHECK(readable(conn));
    CHECK_OK(pn_conn_mute_fd(conn));
    CHECK(!readable(conn));
    pn_conn_close(conn);
    end();
}

/* The lock is held by a process that does not go on: tried again, and quiet in between. */
static void hold_the_lock(void *arg)
{
    char c;
    (void) arg;
    CHECK_OK(pn_lock_acquire(test_inside(), &test_hold, PN_LOCK_TIMEOUT_NS));
    test_tell(up);
    CHECK_EQ(read(down[0], &c, 1), 1);
    pn_lock_release(test_inside());
}

static void test_a_takeover_that_cannot_have_the_lock_is_tried_again(void)
{
    begin();
    pid_t pid = start(true);
    pn_conn *conn = test_connect(engine);
    CHECK_OK(pn_fileno(conn));
    test_listen(conn, "c");
    CHECK_POLL(conn, "");
    pid_t holder = spawn(hold_the_lock, NULL);
    test_hear(up);
    end_process(pid);
    CHECK(readable(conn));
    CHECK_POLL(conn, "");
    CHECK(pn_load_relaxed(&conn->watch.retry_at) != 0);
    CHECK(claimed(0));
    for (int i = 0; i < 3; i++) { /* by the descriptor's timer */
        int64_t pause_ns = conn->watch.pause_ns;
        CHECK_SOON(readable(conn));
        CHECK_POLL(conn, "");
        CHECK(conn->watch.pause_ns >= pause_ns);
    }
    test_tell(down);
    CHECK_CHILD(holder, 0);
    CHECK_SOON((readable(conn) ? pn_conn_mute_fd(conn) : 0, !claimed(0)));
    CHECK_EQ(conn->watch.retry_at, 0);
    CHECK_EQ(conn->watch.pause_ns, 0);
    pn_conn_close(conn);
    end();
}

/* ...and in wait(), which has a time of its own for it. */
static void test_a_sleeper_tries_again(void)
{
    begin();
    pid_t sleeper = start(true), pid = start(true);
    pid_t holder = spawn(hold_the_lock, NULL);
    test_hear(up);
    end_process(pid);
    test_tell(down);
    CHECK_CHILD(holder, 0);
    CHECK_SOON(!claimed(1));
    end_process(sleeper);
    end();
}

/* A forked child that lives on has copies of the pidfds, and of the set they are in. */
static void test_a_forked_child_does_not_keep_the_dead_readable(void)
{
    begin();
    pid_t pid = start(true), other = start(true);
    pn_conn *conn = test_connect(engine);
    CHECK_OK(pn_fileno(conn));
    no_slow_timer(conn);
    test_listen(conn, "c");
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        pause();
    }
    end_process(pid);
    CHECK(readable(conn));
    CHECK_POLL(conn, "");
    CHECK(!readable(conn));
    CHECK(sees(conn, other));
    end_process(child);
    end_process(other);
    pn_conn_close(conn);
    end();
}

static int pidfd_of(const pn_conn *conn, pid_t pid)
{
    for (uint32_t k = 0; k < conn->watch.n; k++)
        if (conn->watch.neighbour[k].pid == pid)
            return conn->watch.neighbour[k].fd;
    FAIL("process %d is not watched", (int) pid);
}

static int another_pidfd(void)
{
    return (int) syscall(SYS_pidfd_open, getpid(), 0);
}

static int a_latch(void)
{
    return eventfd(0, EFD_CLOEXEC);
}

/* The program closes descriptors that are not its own, and gets their numbers. */
static void a_closed_pidfd(int (*reuse)(void), bool by_descriptor, bool alone)
{
    begin();
    pid_t pid = start(true), other = alone ? -1 : start(true);
    pn_conn *conn = watcher();
    if (by_descriptor)
        CHECK(!readable(conn));
    else
        walk_again(conn); /* makes the set that it sleeps on */
    int fd = pidfd_of(conn, pid);
    if (alone && !by_descriptor && pn_load_relaxed(&conn->sleep_set.fd) < 0) {
        /* without epoll_pwait2() no set of ours has the set of one that is alone (watch.c 9) */
        end_process(pid);
        pn_conn_close(conn);
        end();
        return;
    }
    close(fd);
    if (reuse != NULL)
        CHECK_EQ(reuse(), fd);                  /* the lowest that is free */
    pn_store_relaxed(&conn->watch.check_at, 0); /* it is time */
    if (by_descriptor)
        CHECK_POLL(conn, "");
    else
        walk_again(conn);
    CHECK(sees(conn, pid) && (alone || sees(conn, other)));
    CHECK_EQ(target(pidfd_of(conn, pid)), pid);
    if (reuse != NULL)
        CHECK(pidfd_of(conn, pid) != fd && fcntl(fd, F_GETFD) >= 0); /* the program's */
    no_slow_timer(conn);
    end_process(pid);
    if (by_descriptor)
        CHECK(readable(conn));
    else
        CHECK_EQ(test_wait(conn, 1000000000LL * 30), -EINTR);
    CHECK_POLL(conn, "");
    CHECK(!claimed(0));
    if (!alone)
        end_process(other);
    if (reuse != NULL)
        CHECK_EQ(close(fd), 0);
    pn_conn_close(conn);
    end();
}

static void test_a_pidfd_that_the_program_has_closed_is_opened_again(void)
{
    for (int which = 0; which < 4; which++) {
        a_closed_pidfd(NULL, which & 1, which & 2);
        a_closed_pidfd(a_latch, which & 1, which & 2);
        a_closed_pidfd(another_pidfd, which & 1, which & 2);
    }
}

static void look_in_vain(pn_consumer *c, bool by_descriptor)
{
    pn_message_out m;
    int rc = pn_consumer_get(c, by_descriptor ? 0 : 1000000, &m);
    CHECK(rc == 0 || rc == -EINTR);
}

/* Of a connection that has consumers only, and only they sleep on its set, or have given it out. */
static void a_consumers_pidfd(int (*reuse)(void), bool by_descriptor)
{
    begin();
    pid_t pid = start(false);
    pn_conn *conn = test_connect(engine);
    pn_ref channel = channel_of(conn, topic_of(conn, "t"), "c");
    pn_consumer *c = consumer_with(conn, channel, NULL),
                *other = consumer_with(conn, channel, NULL);
    if (by_descriptor)
        CHECK_OK(pn_consumer_fileno(c));
    look_in_vain(c, by_descriptor);
    int fd = pidfd_of(conn, pid);
    if (by_descriptor || pn_load_relaxed(&c->sleep_set.fd) >= 0) { /* watch.c 9 */
        close(fd);
        if (reuse != NULL)
            CHECK_EQ(reuse(), fd);
        pn_store_relaxed(&conn->watch.check_at, 0); /* it is time */
        look_in_vain(c, by_descriptor);
        CHECK(sees(conn, pid));
        CHECK_EQ(target(pidfd_of(conn, pid)), pid);
    }
    end_process(pid);
    CHECK_SOON((look_in_vain(c, by_descriptor), !claimed(0)));
    if (reuse != NULL && fcntl(fd, F_GETFD) >= 0)
        CHECK_EQ(close(fd), 0);
    CHECK_OK(pn_consumer_close(other));
    CHECK_OK(pn_consumer_close(c));
    pn_conn_close(conn);
    end();
}

static void test_so_is_that_of_a_consumer(void)
{
    for (int which = 0; which < 2; which++) {
        a_consumers_pidfd(NULL, which);
        a_consumers_pidfd(a_latch, which);
    }
}

int main(void)
{
    RUN(test_a_dead_neighbour_is_reaped_by_a_sleeper);
    RUN(test_the_descriptor_is_readable_until_the_dead_is_taken_over);
    RUN(test_a_takeover_that_cannot_have_the_lock_is_tried_again);
    RUN(test_a_sleeper_tries_again);
    RUN(test_a_forked_child_does_not_keep_the_dead_readable);
    RUN(test_a_pidfd_that_the_program_has_closed_is_opened_again);
    RUN(test_so_is_that_of_a_consumer);
    return tests_done();
}
