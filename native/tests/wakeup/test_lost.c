/*
 * A program closes every descriptor, as one does that becomes a daemon, and waits again; the
 * numbers are free then, or those of files of its own.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "topics.h"
#include "children.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

#include "topic/consume.h"

enum { HIGHEST = 64 };
enum reuse { NOT_USED, FILES, EVENTFDS, SETS };

static bool is_programs[HIGHEST];

/* ---- the program ----------------------------------------------------------------------------- */

static bool is_a_pipe(int fd)
{
    return fd == up[0] || fd == up[1] || fd == down[0] || fd == down[1];
}

static int open_one(enum reuse reuse)
{
    if (reuse == EVENTFDS)
        return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (reuse == SETS)
        return epoll_create1(EPOLL_CLOEXEC);
    int fd = open(P_tmpdir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    CHECK_EQ(write(fd, "precious", 8), 8);
    return fd;
}

static void close_all(enum reuse reuse)
{
    for (int fd = STDERR_FILENO + 1; fd < HIGHEST; fd++)
        if (!is_a_pipe(fd))
            close(fd);
    for (int fd = STDERR_FILENO + 1; reuse != NOT_USED && fd < HIGHEST / 2; fd++)
        if (!is_a_pipe(fd)) {
            CHECK_EQ(open_one(reuse), fd);
            is_programs[fd] = true;
        }
}

static void check_file(int fd)
{
    char text[16];
    struct stat st;
    CHECK_EQ(fstat(fd, &st), 0);
    CHECK_EQ(st.st_size, 8);
    CHECK(pread(fd, text, sizeof text, 0) == 8 && memcmp(text, "precious", 8) == 0);
}

static void check_set(int fd)
{
    char path[40], line[256];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    FILE *info = fopen(path, "re");
    CHECK(info != NULL);
    while (fgets(line, sizeof line, info) != NULL)
        if (strncmp(line, "tfd:", 4) == 0)
            FAIL("descriptor %d of the program: %s", fd, line);
    fclose(info);
}

static void check_untouched(enum reuse reuse)
{
    uint64_t count;
    for (int fd = 0; fd < HIGHEST; fd++) {
        if (!is_programs[fd])
            continue;
        if (reuse == FILES)
            check_file(fd);
        else if (reuse == SETS)
            check_set(fd);
        else if (read(fd, &count, sizeof count) != -1 || errno != EAGAIN)
            FAIL("descriptor %d of the program was written to, or closed", fd);
    }
}

/* ---- what waits ------------------------------------------------------------------------------ */

/* And it is time to look after the liveness locks, as it is every 50 ms. */
static void no_slow_timer(pn_conn *conn)
{
    pn_store_relaxed(&conn->next_keep_ns, 0);
    pn_store_relaxed(&conn->next_timer_ns, INT64_MAX);
}

static pn_conn *listener(const char *channel)
{
    pn_conn *conn = test_connect(engine);
    test_listen(conn, channel);
    no_slow_timer(conn);
    int rc = test_wait(conn, 1000000); /* makes all that it sleeps on */
    CHECK(rc == 0 || rc == -EINTR);
    CHECK(conn->efd >= 0);
    return conn;
}

static void wait_for(pn_conn *conn, const char *payload)
{
    int rc;
    no_slow_timer(conn);
    test_tell(up);
    do {
        rc = test_wait(conn, -1);
        if (rc < 0 && rc != -EINTR)
            FAIL("%s", pn_error_message());
    } while (rc == -EINTR);
    CHECK_EQ(rc, 1);
    CHECK_POLL(conn, payload);
}

static void *waits_for_y(void *conn)
{
    wait_for(conn, "y");
    return NULL;
}

static void two_listen(void *arg)
{
    enum reuse reuse = *(enum reuse *) arg;
    pthread_t thread;
    pn_conn *first = listener("x"), *second = listener("y");
    close_all(reuse);
    wait_for(first, "x"); /* makes its own under the numbers that the second had */
    CHECK_EQ(pthread_create(&thread, NULL, waits_for_y, second), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    check_untouched(reuse);
    pn_conn_close(first);
    pn_conn_close(second);
    check_untouched(reuse);
}

/* Each by a signal of another process, since there is no timer. */
static void check_two_listeners(enum reuse reuse)
{
    begin();
    pn_conn *conn = test_connect(engine);
    pid_t pid = spawn(two_listen, &reuse);
    const char *const channels[] = {"x", "y"};
    for (uint32_t i = 0; i < 2; i++) {
        test_hear(up);
        CHECK_SOON(is_blocked(pid) &&
                   pn_load_acquire(&test_inside()->backend[i + 1].pos) & PN_ASLEEP);
        CHECK_OK(test_notify(conn, channels[i], channels[i]));
    }
    CHECK_CHILD(pid, 0);
    pn_conn_close(conn);
    end();
}

static void test_listeners_wait_again(void)
{
    check_two_listeners(NOT_USED);
}

static void test_listeners_wait_beside_files_of_the_program(void)
{
    check_two_listeners(FILES);
}

static void test_listeners_wait_beside_the_programs_latches(void)
{
    check_two_listeners(EVENTFDS);
}

static void test_listeners_wait_beside_the_programs_sets(void)
{
    check_two_listeners(SETS);
}

static void consumes(void *arg)
{
    enum reuse reuse = *(enum reuse *) arg;
    pn_message_out m;
    pn_conn *conn = test_connect(engine);
    pn_consumer *c = consumer_with(conn, channel_of(conn, topic_of(conn, "t"), "ch"), NULL);
    int rc = pn_consumer_get(c, 1000000, &m);
    CHECK(rc == 0 || rc == -EINTR);
    close_all(reuse);
    no_slow_timer(conn);
    for (int i = 0; i < 2; i++) {
        test_tell(up);
        GET(c, &m, i == 0 ? "1" : "2");
        FINISH(conn, &m);
    }
    check_untouched(reuse);
    CHECK_OK(pn_consumer_close(c));
    pn_conn_close(conn);
    check_untouched(reuse);
}

static void test_a_consumer_waits_again(void)
{
    const enum reuse all[] = {NOT_USED, FILES, EVENTFDS, SETS};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        begin();
        pn_conn *conn = test_connect(engine);
        pn_ref topic = topic_of(conn, "t");
        pid_t pid = spawn(consumes, (void *) (uintptr_t) &all[i]);
        test_hear(up);
        CHECK_SOON(is_blocked(pid));
        publish(conn, topic, "1");
        test_hear(up);
        CHECK_SOON(is_blocked(pid));
        publish(conn, topic, "2");
        CHECK_CHILD(pid, 0);
        pn_conn_close(conn);
        end();
    }
}

/* ---- what cannot be had again ---------------------------------------------------------------- */

static void gave_it_out(void *arg)
{
    (void) arg;
    pn_conn *conn = test_connect(engine);
    test_listen(conn, "x");
    CHECK_OK(pn_fileno(conn));
    int rc = test_wait(conn, 1000000);
    CHECK(rc == 0 || rc == -EINTR);
    close_all(FILES);
    test_tell(up);
    test_hear(down);
    CHECK_POLL(conn, "x");
    do
        rc = test_wait(conn, -1);
    while (rc == -EINTR);
    CHECK_EQ(rc, -EBADF);
    CHECK(strstr(pn_error_message(), "connect again") != NULL);
    CHECK_EQ(pn_fileno(conn), -EBADF);
    CHECK_EQ(test_wait(conn, 0), -EBADF);
    CHECK_POLL(conn, "");
    pn_conn_close(conn);
    conn = listener("x");
    pn_conn_close(conn);
    check_untouched(FILES);
}

static void test_a_descriptor_that_was_given_out(void)
{
    begin();
    pn_conn *conn = test_connect(engine);
    pid_t pid = spawn(gave_it_out, NULL);
    test_hear(up);
    CHECK_OK(test_notify(conn, "x", "x"));
    test_tell(down);
    CHECK_CHILD(pid, 0);
    pn_conn_close(conn);
    end();
}

int main(void)
{
    test_watchdog(60);
    pn_consumer_slow_ns = INT64_C(3600000000000); /* nor is there one of consumers */
    RUN(test_listeners_wait_again);
    RUN(test_listeners_wait_beside_files_of_the_program);
    RUN(test_listeners_wait_beside_the_programs_latches);
    RUN(test_listeners_wait_beside_the_programs_sets);
    RUN(test_a_consumer_waits_again);
    RUN(test_a_descriptor_that_was_given_out);
    return tests_done();
}
