/* What a bridge needs of the core: one to a database, which listens, refusals, gaps, senders. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "engine.h"

#include "commit/bridge.h"
#include "backend/channel.h"

static bool heard(pn_conn *conn, const char *channel)
{
    int rc = pn_channel_heard(conn, channel, strlen(channel));
    CHECK(rc >= 0);
    return rc == 1;
}

static pn_conn *bridge(pn_engine *engine)
{
    pn_conn *conn = test_connect(engine);
    CHECK_OK(pn_conn_bridge(conn));
    return conn;
}

static void test_one_to_a_database(void)
{
    pn_engine *engine = test_engine(NULL);
    pn_conn *first = test_connect(engine), *second = test_connect(engine), *other;
    char pid[32];
    CHECK_EQ(pn_bridge_pid(second), 0);
    CHECK_OK(pn_conn_bridge(first));
    CHECK_EQ(pn_bridge_pid(second), getpid());
    CHECK_EQ(pn_conn_bridge(second), -EBUSY);
    snprintf(pid, sizeof pid, "PID %d", (int) getpid());
    CHECK(strstr(pn_error_message(), pid) != NULL);
    CHECK_OK(pn_connect(engine, "other", 5, 0, NULL, &other));
    CHECK_EQ(pn_bridge_pid(other), 0);
    CHECK_OK(pn_conn_bridge(other));
    pn_conn_close(other);
    pn_conn_close(first);
    CHECK_EQ(pn_bridge_pid(second), 0);
    test_listen(second, "c");
    CHECK_EQ(pn_conn_bridge(second), -EINVAL);
    test_unlisten(second, "c");
    CHECK_OK(pn_conn_bridge(second));
    CHECK_ENGINE(engine);
    pn_conn_close(second);
    CHECK_EQ(pn_load_relaxed(&test_inside()->ctl->bridges), 0);
    pn_engine_close(engine);
}

static int held[2];

static void be_the_bridge(void *arg)
{
    pn_conn *conn = bridge(arg);
    test_listen(conn, "c");
    test_tell(held);
    pause();
}

static void test_a_dead_bridge_is_in_nobodys_way(void)
{
    pn_engine *engine = test_engine(NULL);
    pn_conn *conn = test_connect(engine);
    CHECK_OK(pipe(held));
    pid_t pid = spawn(be_the_bridge, engine);
    test_hear(held);
    CHECK_EQ(pn_bridge_pid(conn), pid);
    CHECK_EQ(pn_channel_upstream(conn, "c", 1), 1);
    kill(pid, SIGKILL);
    CHECK_KILLED(pid, SIGKILL);
    CHECK_EQ(pn_bridge_pid(conn), 0);
    CHECK_EQ(pn_channel_upstream(conn, "c", 1), 0);
    CHECK_OK(pn_conn_bridge(conn));
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

/* The bridge's own LISTEN does not count, in whichever order they come. */
static void test_first_and_last_listeners_are_told(void)
{
    pn_engine *engine = test_engine(NULL);
    pn_conn *conn = bridge(engine), *a = test_connect(engine), *b = test_connect(engine);
    struct pollfd p = {.fd = pn_fileno(conn), .events = POLLIN};
    CHECK(p.fd >= 0);
    for (int own = 0; own < 2; own++) {
        uint32_t before = pn_heard(engine);
        test_listen(a, "c");
        CHECK_EQ(pn_heard(engine), before + 1);
        CHECK_EQ(poll(&p, 1, TEST_PATIENCE_MS), 1);
        CHECK_POLL(conn, "");
        CHECK(heard(conn, "c") && !heard(conn, "d"));
        test_listen(b, "c");
        test_unlisten(a, "c");
        CHECK_EQ(pn_heard(engine), before + 1);
        CHECK(heard(conn, "c"));
        test_unlisten(b, "c");
        CHECK_EQ(pn_heard(engine), before + 2);
        CHECK_EQ(poll(&p, 1, TEST_PATIENCE_MS), 1);
        CHECK_POLL(conn, "");
        CHECK(!heard(conn, "c"));
        if (own == 0)
            test_listen(conn, "c");
        CHECK_EQ(pn_heard(engine), before + 2);
        CHECK_ENGINE(engine);
    }
    pn_conn_close(conn);
    pn_conn_close(a);
    pn_conn_close(b);
    pn_engine_close(engine);
}

static int send_bytes(pn_conn *conn, const char *channel, const char *bytes, size_t len)
{
    return pn_notify(conn, channel, strlen(channel), bytes, len);
}

static void test_what_postgresql_refuses_is_refused(void)
{
    static const char *const bad[] = {"\x80",     "a\xff",           "\xc3",
                                      "\xc0\x80", "\xed\xa0\x80",    "\xf4\x90\x80\x80",
                                      "\xe2\x82", "\xf0\x8f\xbf\xbf"};
    static const char *const good[] = {"",
                                       "a",
                                       "\xc3\xa9",
                                       "\xe2\x82\xac",
                                       "\xf0\x9f\x90\x98",
                                       "\xed\x9f\xbf",
                                       "\xee\x80\x80",
                                       "\xf4\x8f\xbf\xbf"};
    static char large[8001];
    pn_engine *engine = test_engine(NULL);
    pn_conn *conn = bridge(engine), *us = test_connect(engine);
    test_listen(conn, "up");
    memset(large, 'x', sizeof large);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_EQ(test_notify(us, "up", bad[i]), -PN_EENCODING);
        CHECK_OK(test_notify(us, "local", bad[i]));
        CHECK_OK(test_notify(us, "up", good[i]));
    }
    CHECK_EQ(send_bytes(us, "up", "a\0b", 3), -PN_EENCODING);
    CHECK(strstr(pn_error_message(), "0x00") != NULL);
    CHECK_EQ(send_bytes(us, "up", large, 8000), -PN_EPAYLOAD);
    CHECK_OK(send_bytes(us, "up", large, 7999));
    CHECK_OK(send_bytes(us, "local", large, 8000));

    pn_txn *txn = test_begin(us);
    CHECK_OK(pn_txn_notify(txn, "local", 5, "\xff", 1));
    CHECK_EQ(pn_txn_notify(txn, "up", 2, "\xff", 1), -PN_EENCODING);
    CHECK_OK(pn_txn_notify(txn, "up", 2, "fine", 4));
    CHECK_OK(pn_txn_commit(txn));
    pn_conn_close(conn);
    CHECK_OK(send_bytes(us, "up", large, 8000));
    pn_conn_close(us);
    pn_engine_close(engine);
}

/* All or nothing, also when the bridge came after the notify; what is prepared is committed. */
static void test_the_commit_decides(void)
{
    pn_engine *engine = test_engine(NULL);
    pn_conn *us = test_connect(engine), *ear = test_connect(engine);
    test_listen(ear, "local");
    pn_txn *txn = test_begin(us), *prepared = test_begin(us);
    CHECK_OK(pn_txn_notify(txn, "local", 5, "x", 1));
    CHECK_OK(pn_txn_notify(txn, "up", 2, "\xff", 1));
    CHECK_OK(pn_txn_notify(prepared, "local", 5, "y", 1));
    CHECK_OK(pn_txn_notify(prepared, "up", 2, "\xff", 1));
    CHECK_OK(pn_txn_prepare(prepared));
    pn_conn *conn = bridge(engine);
    test_listen(conn, "up");
    CHECK_EQ(pn_txn_commit(txn), -PN_EENCODING);
    CHECK_POLL(ear, "");
    CHECK_OK(pn_txn_commit(prepared));
    CHECK_POLL(ear, "y");
    CHECK_POLL(conn, "\xff");
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_conn_close(us);
    pn_conn_close(ear);
    pn_engine_close(engine);
}

static void test_a_gap_takes_its_place(void)
{
    pn_engine *engine = test_engine(NULL);
    pn_conn *conn = bridge(engine), *ear = test_connect(engine), *deaf = test_connect(engine);
    pn_batch *b = pn_batch_new();
    test_listen(ear, "c");
    test_listen(ear, "d");
    test_listen(deaf, "e");
    CHECK_OK(test_notify(conn, "c", "1"));
    CHECK_OK(pn_send_gap(conn, "c", 1));
    CHECK_OK(pn_send_gap(conn, "c", 1));
    CHECK_OK(pn_send_gap(conn, "d", 1));
    CHECK_OK(test_notify(conn, "c", "2"));
    CHECK_EQ(test_wait(ear, 0), 1);
    CHECK_EQ(pn_poll(ear, b, 0), 2);
    CHECK_EQ(b->ngaps, 2);
    for (size_t i = 0; i < 2; i++) {
        CHECK_EQ(b->gap[i].before, 1);
        CHECK_EQ(b->gap[i].reason, PN_GAP_UPSTREAM);
        CHECK_EQ(b->gap[i].missed_bytes, 0);
        CHECK_EQ(b->gap[i].routes, 1 << PN_ROUTE_LISTEN);
        CHECK_STR(pn_conn_channel(ear, (uint32_t) b->gap[i].channel, NULL), i == 0 ? "c" : "d");
    }
    CHECK_EQ(pn_poll(deaf, b, 0), 0);
    CHECK_EQ(b->ngaps, 0);
    CHECK_OK(pn_send_gap(conn, "c", 1)); /* nothing else: it wakes all the same */
    CHECK_EQ(test_wait(ear, 0), 1);
    CHECK_EQ(pn_poll(ear, b, 1), 0);
    CHECK_EQ(b->ngaps, 1);
    CHECK_ENGINE(engine);
    pn_batch_free(b);
    pn_conn_close(conn);
    pn_conn_close(ear);
    pn_conn_close(deaf);
    pn_engine_close(engine);
}

static void test_whose_messages_they_are(void)
{
    pn_engine *engine = test_engine(NULL);
    pn_conn *conn = bridge(engine), *ear = test_connect(engine);
    pn_batch *b = pn_batch_new();
    test_listen(ear, "c");
    pn_conn_set_source(conn, 4711);
    CHECK_OK(test_notify(conn, "c", "1"));
    pn_conn_set_source(conn, 4712);
    CHECK_OK(test_notify(conn, "c", "2"));
    pn_conn_set_source(conn, 0);
    CHECK_OK(test_notify(conn, "c", "3"));
    CHECK_EQ(pn_poll(ear, b, 0), 3);
    CHECK_EQ(b->pid[0], 4711);
    CHECK_EQ(b->pid[1], 4712);
    CHECK_EQ(b->pid[2], getpid());
    CHECK(b->sender[0] != b->sender[1] && b->sender[1] != b->sender[2]);
    for (size_t i = 0; i < 3; i++)
        CHECK_EQ(b->backend_id[i], pn_conn_backend_id(conn));
    pn_batch_free(b);
    pn_conn_close(conn);
    pn_conn_close(ear);
    pn_engine_close(engine);
}

int main(void)
{
    test_watchdog(110);
    RUN(test_one_to_a_database);
    RUN(test_a_dead_bridge_is_in_nobodys_way);
    RUN(test_first_and_last_listeners_are_told);
    RUN(test_what_postgresql_refuses_is_refused);
    RUN(test_the_commit_decides);
    RUN(test_a_gap_takes_its_place);
    RUN(test_whose_messages_they_are);
    return tests_done();
}
