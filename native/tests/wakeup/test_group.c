/*
 * test_group.c - connections that one thread serves behind one latch: each that is owed something
 * is returned, once, and the latch is readable as long as one is; also while signals come, while
 * connections close, and when the program has closed the latch.
 */
#include "engine.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>

enum { MEMBERS = 8, SENDERS = 3, EACH = 3000 };

struct member {
    pn_conn *conn;
    uint64_t last[SENDERS];
    int received, fd;
};

static pn_engine *engine;
static pn_group *group;
static struct member members[MEMBERS];

static void begin(int n)
{
    pn_options o = test_options();
    o.on_full = PN_FULL_BLOCK;
    engine = test_engine(&o);
    CHECK_OK(pn_group_open(&group));
    memset(members, 0, sizeof members);
    for (int i = 0; i < n; i++) {
        members[i].conn = test_connect(engine);
        CHECK_OK(pn_conn_join(members[i].conn, group, &members[i]));
        members[i].fd = pn_fileno(members[i].conn);
        CHECK(members[i].fd >= 0);
        test_listen(members[i].conn, "c");
        CHECK_POLL(members[i].conn, "");
    }
    pn_group_begin(group); /* for what fileno() and LISTEN have looked at */
    while (pn_group_next(group) != NULL)
        ;
}

static void end(int n)
{
    for (int i = 0; i < n; i++)
        pn_conn_close(members[i].conn);
    pn_group_close(group);
    CHECK_ENGINE(engine);
    pn_engine_close(engine);
}

static bool is_readable(void)
{
    struct pollfd p = {.fd = pn_group_fileno(group), .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

/* How many are returned, each having just this. */
static int take_all(const char *want)
{
    struct member *m;
    int n = 0;
    pn_group_begin(group);
    while ((m = pn_group_next(group)) != NULL) {
        CHECK_POLL(m->conn, want);
        n++;
    }
    return n;
}

static void test_each_is_returned_once(void)
{
    begin(3);
    pn_conn *sender = test_connect(engine);
    CHECK(!is_readable());
    CHECK_OK(test_notify(sender, "other", "x"));
    CHECK(!is_readable());
    CHECK_OK(test_notify(sender, "c", "x"));
    CHECK(is_readable());
    CHECK_EQ(take_all("x"), 3);
    CHECK(!is_readable());
    CHECK_EQ(take_all("x"), 0);
    CHECK_OK(test_notify(sender, "c", "y"));
    CHECK_OK(test_notify(sender, "c", "z"));
    CHECK_EQ(take_all("y z"), 3);
    CHECK(!is_readable());
    pn_conn_close(sender);
    end(3);
}

static void test_what_is_left_unread_makes_it_readable_again(void)
{
    pn_batch *batch = pn_batch_new();
    begin(2);
    pn_conn *sender = test_connect(engine);
    for (int i = 0; i < 3; i++)
        CHECK_OK(test_notify(sender, "c", "x"));
    for (int round = 0; round < 3; round++) {
        struct member *m;
        int n = 0;
        CHECK(is_readable());
        pn_group_begin(group);
        while ((m = pn_group_next(group)) != NULL) {
            n++;
            CHECK_EQ(pn_poll(m->conn, batch, 1), 1);
        }
        CHECK_EQ(n, 2);
    }
    CHECK(!is_readable());
    pn_batch_free(batch);
    pn_conn_close(sender);
    end(2);
}

/* One that is handled, one that waits to be returned, and one that was posted since. */
static void test_one_that_closes_leaves_the_others(void)
{
    pn_batch *batch = pn_batch_new();
    for (int closes = 0; closes < 3; closes++) {
        begin(3);
        pn_conn *sender = test_connect(engine);
        CHECK_OK(test_notify(sender, "c", "x"));
        pn_group_begin(group);
        struct member *first = pn_group_next(group);
        CHECK(first != NULL);
        CHECK_POLL(first->conn, "x");
        CHECK_OK(test_notify(sender, "c", "x"));
        struct member *closed = closes == 0 ? first : &members[(first - members + closes) % 3];
        pn_conn_close(closed->conn);
        CHECK(is_readable());
        bool seen[3] = {false};
        struct member *m;
        for (int rounds = 0; rounds < 2; rounds++) {
            pn_group_begin(group);
            while ((m = pn_group_next(group)) != NULL) {
                CHECK(m != closed);
                seen[m - members] = true;
                CHECK(pn_poll(m->conn, batch, 0) >= 0);
            }
        }
        CHECK(!is_readable());
        for (int i = 0; i < 3; i++)
            CHECK_EQ(seen[i], &members[i] != closed);
        pn_conn_close(sender);
        for (int i = 0; i < 3; i++)
            if (&members[i] != closed)
                pn_conn_close(members[i].conn);
        end(0);
    }
    pn_batch_free(batch);
}

/* Something else refers to the connection still; the caller frees what it has, and the group. */
static void test_one_that_closes_with_a_transaction_open(void)
{
    begin(2);
    pn_conn *sender = test_connect(engine);
    CHECK_OK(test_notify(sender, "c", "1")); /* both are posted */
    pn_txn *txn = test_begin(members[0].conn);
    pn_conn_close(members[0].conn);
    CHECK_EQ(take_all("1"), 1);
    CHECK_OK(test_notify(sender, "c", "2"));
    CHECK_EQ(take_all("2"), 1);
    pn_conn_close(members[1].conn);
    pn_group_close(group);
    CHECK_OK(test_notify(sender, "c", "3"));
    pn_txn_abort(txn);
    pn_conn_close(sender);
    CHECK_ENGINE(engine);
    pn_engine_close(engine);
}

static void run_the_loop_once(void *arg)
{
    (void) arg;
    CHECK(is_readable());
    pn_group_begin(group);
    CHECK(pn_group_next(group) == NULL);
}

static void test_a_child_takes_nothing_from_its_parent(void)
{
    begin(1);
    pn_conn *sender = test_connect(engine);
    CHECK_OK(test_notify(sender, "c", "1"));
    CHECK_CHILD(spawn(run_the_loop_once, NULL), 0);
    CHECK(is_readable());
    CHECK_EQ(take_all("1"), 1);
    pn_conn_close(sender);
    end(1);
}

/* One that never asked for the descriptor of its own. */
static void test_what_is_left_is_posted_without_fileno(void)
{
    begin(0);
    pn_batch *batch = pn_batch_new();
    pn_conn *conn = test_connect(engine), *sender = test_connect(engine);
    CHECK_OK(pn_conn_join(conn, group, conn));
    test_listen(conn, "c");
    CHECK_POLL(conn, "");
    CHECK_OK(test_notify(sender, "c", "1"));
    CHECK_OK(test_notify(sender, "c", "2"));
    pn_group_begin(group);
    CHECK(pn_group_next(group) == conn);
    CHECK(pn_group_next(group) == NULL);
    CHECK_EQ(pn_poll(conn, batch, 1), 1);
    CHECK(is_readable());
    CHECK_EQ(pn_poll(conn, batch, 0), 1);
    pn_group_begin(group);
    while (pn_group_next(group) != NULL)
        ;
    CHECK_OK(test_notify(sender, "c", "3"));
    CHECK(is_readable());
    pn_batch_free(batch);
    pn_conn_close(sender);
    pn_conn_close(conn);
    end(0);
}

static void test_a_connection_joins_before_it_has_a_latch(void)
{
    pn_group *other;
    begin(1);
    CHECK_OK(pn_group_open(&other));
    CHECK_EQ(pn_conn_join(members[0].conn, other, NULL), -EINVAL);
    CHECK_EQ(test_wait(members[0].conn, 0), -EINVAL);
    CHECK(strstr(pn_error_message(), "group") != NULL);
    pn_conn *late = test_connect(engine);
    CHECK(pn_fileno(late) >= 0);
    CHECK_EQ(pn_conn_join(late, group, NULL), -EINVAL);
    pn_conn_close(late);
    late = test_connect(engine); /* it was set when it had no latch at all */
    test_listen(late, "c");
    CHECK_POLL(late, "");
    pn_conn *sender = test_connect(engine);
    pn_fetch_or(&late->fd_flags, PN_FD_SIGNALLED);
    CHECK_OK(pn_conn_join(late, other, late));
    pn_group_begin(other);
    CHECK(pn_group_next(other) == late);
    pn_conn_close(sender);
    pn_conn_close(late);
    pn_group_close(other);
    end(1);
}

static void test_a_latch_that_the_program_has_closed_is_not_written(void)
{
    char path[] = "/tmp/test-group-XXXXXX";
    struct stat st;
    begin(1);
    pn_conn *sender = test_connect(engine);
    int file = mkstemp(path);
    CHECK(file >= 0);
    CHECK_EQ(dup2(file, pn_group_fileno(group)), pn_group_fileno(group));
    CHECK_OK(test_notify(sender, "c", "x"));
    pn_group_begin(group);
    CHECK(pn_group_next(group) == &members[0]);
    CHECK_POLL(members[0].conn, "x");
    CHECK_EQ(fstat(file, &st), 0);
    CHECK_EQ(st.st_size, 0);
    unlink(path);
    pn_conn_close(sender);
    int number = pn_group_fileno(group);
    end(1);
    CHECK_EQ(close(number), 0); /* it is the program's */
    close(file);
}

/* ---- under way ------------------------------------------------------------------------------- */

static void send_many(void *arg)
{
    char text[32];
    const int number = *(const int *) arg;
    pn_conn *conn = test_connect(engine);
    for (int i = 1; i <= EACH; i++) {
        snprintf(text, sizeof text, "%d %d", number, i);
        CHECK_OK(test_notify(conn, "c", text));
    }
    pn_conn_close(conn);
}

static void *send_from_here(void *number)
{
    send_many(number);
    return NULL;
}

static void take_batch(struct member *m, const pn_batch *batch)
{
    for (size_t i = 0; i < batch->n; i++) {
        char text[32] = {0};
        unsigned number, value;
        memcpy(text, batch->data + batch->offset[i], batch->offset[i + 1] - batch->offset[i]);
        CHECK_EQ(sscanf(text, "%u %u", &number, &value), 2);
        CHECK_EQ(value, m->last[number] + 1);
        m->last[number] = value;
        m->received++;
    }
}

/* Other processes, by signals, and a thread of this one; nothing but the latch ends a sleep. */
static void test_nothing_is_missed(void)
{
    int number[SENDERS], done = 0;
    pid_t pid[SENDERS];
    pthread_t thread;
    pn_batch *batch = pn_batch_new();
    begin(MEMBERS);
    for (int i = 0; i < SENDERS; i++) {
        number[i] = i;
        if (i > 0)
            pid[i] = spawn(send_many, &number[i]);
    }
    CHECK_EQ(pthread_create(&thread, NULL, send_from_here, &number[0]), 0);
    while (done < MEMBERS) {
        struct pollfd p = {.fd = pn_group_fileno(group), .events = POLLIN};
        struct member *m;
        int rc = poll(&p, 1, TEST_PATIENCE_MS);
        CHECK(rc == 1 || (rc < 0 && errno == EINTR));
        pn_group_begin(group);
        while ((m = pn_group_next(group)) != NULL) {
            int before = m->received;
            CHECK(pn_poll(m->conn, batch, 7) >= 0);
            take_batch(m, batch);
            done += before < SENDERS * EACH && m->received == SENDERS * EACH;
        }
    }
    CHECK_EQ(pthread_join(thread, NULL), 0);
    for (int i = 1; i < SENDERS; i++)
        CHECK_CHILD(pid[i], 0);
    pn_batch_free(batch);
    end(MEMBERS);
}

int main(void)
{
    test_watchdog(100);
    RUN(test_each_is_returned_once);
    RUN(test_what_is_left_unread_makes_it_readable_again);
    RUN(test_one_that_closes_leaves_the_others);
    RUN(test_one_that_closes_with_a_transaction_open);
    RUN(test_a_child_takes_nothing_from_its_parent);
    RUN(test_what_is_left_is_posted_without_fileno);
    RUN(test_a_connection_joins_before_it_has_a_latch);
    RUN(test_a_latch_that_the_program_has_closed_is_not_written);
    RUN(test_nothing_is_missed);
    return tests_done();
}
