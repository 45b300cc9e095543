/*
 * What wait() blocks on: a set of the latch and of those that are watched; ppoll() where there is
 * no epoll_pwait2(), or no descriptor for the set.  In each way of blocking a sleep is ended by a
 * signal, by another thread, by a death and by a wakeup descriptor, without the slow timer.
 */
#include "children.h"
#include "sleepers.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

#include "wakeup/latch.h"

#ifndef SYS_epoll_pwait2
#define SYS_epoll_pwait2 441
#endif

static void *interrupt(void *conn)
{
    CHECK_SOON(pn_load_acquire(&((pn_conn *) conn)->waiters) != 0);
    pn_conn_interrupt(conn);
    return NULL;
}

static int sleep_for(pn_conn *conn, int64_t timeout_ns)
{
    int rc;
    do
        rc = test_wait(conn, timeout_ns);
    while (rc == -EINTR); /* a signal may come after what it tells of was found */
    return rc;
}

static int sleep_on(pn_conn *conn)
{
    return sleep_for(conn, -1);
}

/* ---- ways of blocking ------------------------------------------------------------------------ */

enum way { ON_THE_SET, REFUSED_UNKNOWN, REFUSED_FORBIDDEN, NO_DESCRIPTORS };

/* As an old kernel, or an old sandbox, does. */
static void refuse_epoll_pwait2(uint32_t error)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_pwait2, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = 4, .filter = filter};
    CHECK_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        CHECK_EQ(errno, EINVAL); /* a kernel without filters: the set it is */
}

/* Listens, and has walked: what is missing to a sleep is what it blocks on. */
static pn_conn *listener(void)
{
    pn_conn *conn = test_connect(engine);
    test_listen(conn, "c");
    conn->next_timer_ns = INT64_MAX;
    CHECK_EQ(test_wait(conn, 0), 0);
    return conn;
}

struct bell {
    pn_conn *conn;
    int fd;
};

static void *ring(void *arg)
{
    const struct bell *bell = arg;
    const uint64_t one = 1;
    CHECK_SOON(pn_load_acquire(&bell->conn->waiters) != 0);
    CHECK_EQ(write(bell->fd, &one, sizeof one), sizeof one);
    return NULL;
}

/* It ends the sleep of a thread that has named it, and of no other, before it and in it. */
static void check_wakeup_fd(pn_conn *conn, int fd, uint32_t id)
{
    uint64_t count;
    pthread_t thread;
    struct bell bell = {conn, fd};
    pn_set_wakeup_fd(fd, id);
    CHECK_EQ(test_wait(conn, 1000000), 0);
    CHECK_EQ(pn_sleep(1000000), 0);
    CHECK_EQ(pthread_create(&thread, NULL, ring, &bell), 0);
    CHECK_EQ(test_wait(conn, -1), -EINTR);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(pn_sleep(-1), -EINTR);
    pn_set_wakeup_fd(-1, 0);
    CHECK_EQ(test_wait(conn, 1000000), 0); /* nothing has read it, and this thread does not care */
    pn_set_wakeup_fd(fd, id);
    CHECK_EQ(read(fd, &count, sizeof count), sizeof count);
    CHECK_EQ(test_wait(conn, 1000000), 0);
    pn_set_wakeup_fd(-1, 0);
}

static void check_wakeup_fds(pn_conn *conn, const int fds[3], bool can_dup)
{
    for (uint32_t id = 1; id <= 2; id++)
        check_wakeup_fd(conn, fds[id - 1], id);
    if (!can_dup)
        return;
    CHECK_EQ(dup2(fds[2], fds[1]), fds[1]); /* the number is another one's by now */
    CHECK_EQ(close(fds[2]), 0);
    check_wakeup_fd(conn, fds[1], 3);
}

static void sleeper(void *arg)
{
    const enum way way = *(const enum way *) arg;
    const struct rlimit none = {.rlim_cur = 3, .rlim_max = 3};
    int bells[3];
    pthread_t thread;
    for (int i = 0; i < 3; i++)
        CHECK((bells[i] = eventfd(0, EFD_CLOEXEC)) >= 0);
    if (way == REFUSED_UNKNOWN)
        refuse_epoll_pwait2(ENOSYS);
    if (way == REFUSED_FORBIDDEN)
        refuse_epoll_pwait2(EPERM);
    pn_conn *conn = listener();
    if (way == NO_DESCRIPTORS)
        CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    test_tell(up);
    CHECK_EQ(sleep_on(conn), 1); /* by a signal, after a death */
    CHECK_POLL(conn, "x");
    CHECK_EQ(sleep_for(conn, 1000000), 0); /* by time */
#if !defined(__SANITIZE_THREAD__)
    CHECK_EQ(conn->sleep_set.fd >= 0, way != NO_DESCRIPTORS);
#endif
    check_wakeup_fds(conn, bells, way != NO_DESCRIPTORS);
    CHECK_EQ(pthread_create(&thread, NULL, interrupt, conn), 0);
    CHECK_EQ(sleep_on(conn), -PN_ECLOSED); /* by the latch */
    CHECK_EQ(pthread_join(thread, NULL), 0);
    pn_conn_close(conn);
}

static void bystander(void *arg)
{
    (void) arg;
    test_connect(engine);
    test_tell(up);
    pause();
}

static void check_way(enum way way)
{
    begin();
    pid_t dies = spawn(bystander, NULL);
    test_hear(up);
    pid_t pid = spawn(sleeper, &way);
    test_hear(up);
    kill(dies, SIGKILL);
    CHECK_KILLED(dies, SIGKILL);
    CHECK_SOON(!claimed(0)); /* no other process is there to reap it */
    pn_conn *conn = test_connect(engine);
    CHECK_SOON((pn_load_acquire(&slot(1)->pos) & PN_ASLEEP) != 0);
    CHECK_OK(test_notify(conn, "c", "x"));
    CHECK_CHILD(pid, 0);
    pn_conn_close(conn);
    end();
}

static void test_a_sleep_on_the_set(void)
{
    check_way(ON_THE_SET);
}

static void test_a_sleep_where_epoll_pwait2_is_refused(void)
{
    check_way(REFUSED_UNKNOWN);
    check_way(REFUSED_FORBIDDEN);
}

static void test_a_sleep_without_a_descriptor_for_the_set(void)
{
    check_way(NO_DESCRIPTORS);
}

/* ---- which connection has a set, and which shares one ---------------------------------------- */

static void test_a_user_of_the_descriptor_pays_for_no_set(void)
{
    begin();
    pn_conn *conn = test_connect(engine);
    CHECK_OK(pn_fileno(conn));
    test_listen(conn, "c");
    CHECK_POLL(conn, "");
    CHECK_OK(test_notify(conn, "c", "x"));
    CHECK_POLL(conn, "x");
    CHECK_EQ(conn->sleep_set.fd, -1);
    pn_conn_close(conn);
    end();
}

static void *end_of_sleep(void *conn)
{
    CHECK_EQ(sleep_on(conn), -PN_ECLOSED);
    return NULL;
}

static int descriptors(void)
{
    int n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* Of threads on one set the kernel wakes one at a time: each has to hand on what is for all. */
static void test_threads_on_one_set_are_all_woken(void)
{
    enum { THREADS = 8 };
    pthread_t thread[THREADS];
    begin();
    int before = 0;
    for (int round = 0; round < 20; round++) {
        pn_conn *conn = listener();
        for (int i = 0; i < THREADS; i++)
            CHECK_EQ(pthread_create(&thread[i], NULL, end_of_sleep, conn), 0);
        if (round % 2 == 0)
            CHECK_SOON(pn_load_acquire(&conn->waiters) == THREADS);
        pn_conn_interrupt(conn);
        for (int i = 0; i < THREADS; i++)
            CHECK_EQ(pthread_join(thread[i], NULL), 0);
        pn_conn_close(conn);
        if (round == 0)
            before = descriptors(); /* with those that the process keeps */
        CHECK_EQ(descriptors(), before);
    }
    end();
}

int main(void)
{
    RUN(test_a_sleep_on_the_set);
    RUN(test_a_sleep_where_epoll_pwait2_is_refused);
    RUN(test_a_sleep_without_a_descriptor_for_the_set);
    RUN(test_a_user_of_the_descriptor_pays_for_no_set);
    RUN(test_threads_on_one_set_are_all_woken);
    return tests_done();
}
