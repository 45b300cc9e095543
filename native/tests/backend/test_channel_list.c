/* Which channels are listened to: counts, prefixes, databases, the dead, and a scribbled name. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "engine.h"

#include "backend/channel.h"

static int list(pn_conn *conn, const char *prefix, pn_channel_row *rows, size_t cap)
{
    uint32_t from = 0;
    int n = 0;
    do {
        int rc = pn_channel_list(conn, prefix, strlen(prefix), &from, rows + n, cap - (size_t) n);
        CHECK(rc >= 0);
        n += rc;
    } while (from != 0);
    return n;
}

static void test_counts_and_prefixes(void)
{
    pn_engine *engine = test_engine(NULL);
    pn_conn *a = test_connect(engine), *b = test_connect(engine), *other;
    pn_channel_row rows[8];
    CHECK_EQ(pn_channel_listeners(a, "room:1", 6), 0);
    test_listen(a, "room:1");
    test_listen(b, "room:1");
    test_listen(b, "hall");
    CHECK_EQ(pn_channel_listeners(a, "room:1", 6), 2);
    CHECK_EQ(list(a, "", rows, 8), 2);
    CHECK_EQ(list(a, "room:", rows, 8), 1);
    CHECK_EQ(rows[0].listeners, 2);
    CHECK_EQ(rows[0].name_len, 6);
    CHECK(memcmp(rows[0].name, "room:1", 6) == 0);
    CHECK_OK(pn_connect(engine, "other", 5, 0, NULL, &other));
    CHECK_EQ(list(other, "", rows, 8), 0);
    test_unlisten(b, "room:1");
    test_unlisten(a, "room:1");
    CHECK_EQ(list(a, "room:", rows, 8), 0);
    pn_conn_close(other);
    pn_conn_close(b);
    CHECK_EQ(list(a, "", rows, 8), 0);
    pn_conn_close(a);
    pn_engine_close(engine);
}

static const pn_channel_row *row_of(pn_engine *engine, const char *database, const char *name)
{
    static pn_channel_row rows[8];
    uint32_t from = 0;
    int n = 0;
    do {
        int rc = pn_engine_channels(engine, database, strlen(database), "", 0, &from, rows + n,
                                    8 - (size_t) n);
        CHECK(rc >= 0);
        n += rc;
    } while (from != 0);
    for (int i = 0; i < n; i++)
        if (rows[i].name_len == strlen(name) && memcmp(rows[i].name, name, strlen(name)) == 0)
            return &rows[i];
    return NULL;
}

static void test_an_engine_sees_all_databases(void)
{
    pn_engine *engine = test_engine(NULL);
    pn_conn *conn = test_connect(engine), *other;
    CHECK(row_of(engine, "", "c") == NULL);
    CHECK_OK(pn_connect(engine, "other", 5, 0, NULL, &other));
    test_listen(conn, "c");
    test_listen(other, "d");
    CHECK_EQ(row_of(engine, "", "c")->listeners, 1);
    CHECK(strcmp(row_of(engine, "", "d")->database, "other") == 0);
    CHECK(row_of(engine, "other", "c") == NULL);
    CHECK_EQ(row_of(engine, "other", "d")->listeners, 1);
    CHECK(row_of(engine, "no such", "d") == NULL);
    CHECK_EQ(test_stat(engine).backends, 2);
    pn_conn_close(other);
    CHECK(row_of(engine, "", "d") == NULL);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

/* A table of two: the channel without a listener gives up its place, and its numbers with it. */
static void test_what_was_heard_is_counted_until_the_channel_is_forgotten(void)
{
    pn_options options = test_options();
    options.max_channels = 2;
    pn_engine *engine = test_engine(&options);
    pn_conn *conn = test_connect(engine);
    test_listen(conn, "c");
    for (int i = 0; i < 3; i++)
        test_notify(conn, "c", "x");
    test_notify(conn, "unheard", "x");
    CHECK_EQ(row_of(engine, "", "c")->notifications, 3);
    uint64_t first = row_of(engine, "", "c")->first;
    test_unlisten(conn, "c");
    test_listen(conn, "c");
    CHECK_EQ(row_of(engine, "", "c")->first, first);
    CHECK_EQ(row_of(engine, "", "c")->notifications, 3);
    test_unlisten(conn, "c");
    test_listen(conn, "d");
    test_listen(conn, "e");
    test_unlisten(conn, "d");
    test_listen(conn, "c");
    CHECK(row_of(engine, "", "c")->first != first);
    CHECK_EQ(row_of(engine, "", "c")->notifications, 0);
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static void test_few_rows_at_a_time(void)
{
    pn_engine *engine = test_engine(NULL);
    pn_conn *conn = test_connect(engine);
    uint32_t from = 0;
    int n = 0, calls = 0;
    for (int i = 0; i < 50; i++) {
        char name[16];
        snprintf(name, sizeof name, "c%d", i);
        test_listen(conn, name);
    }
    do {
        pn_channel_row rows[7];
        int rc = pn_channel_list(conn, "c", 1, &from, rows, 7);
        CHECK(rc >= 0 && rc <= 7);
        n += rc;
        calls++;
    } while (from != 0);
    CHECK_EQ(n, 50);
    CHECK(calls >= 50 / 7);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static void test_a_bridge_is_no_listener(void)
{
    pn_engine *engine = test_engine(NULL);
    pn_conn *bridge = test_connect(engine), *conn = test_connect(engine);
    pn_channel_row rows[8];
    CHECK_OK(pn_conn_bridge(bridge));
    test_listen(bridge, "c");
    CHECK_EQ(pn_channel_listeners(conn, "c", 1), 0);
    CHECK_EQ(list(conn, "", rows, 8), 0);
    test_listen(conn, "c");
    CHECK_EQ(pn_channel_listeners(conn, "c", 1), 1);
    CHECK_EQ(list(conn, "", rows, 8), 1);
    pn_conn_close(bridge);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static int told[2];

static void listen_and_wait(void *arg)
{
    pn_conn *conn = test_connect(arg);
    test_listen(conn, "c");
    test_tell(told);
    pause();
}

static void test_the_dead_are_not_listed(void)
{
    pn_engine *engine = test_engine(NULL);
    pn_conn *conn = test_connect(engine);
    pn_channel_row rows[8];
    CHECK_OK(pipe(told));
    pid_t pid = spawn(listen_and_wait, engine);
    test_hear(told);
    CHECK_EQ(list(conn, "", rows, 8), 1);
    kill(pid, SIGKILL);
    CHECK_KILLED(pid, SIGKILL);
    CHECK_EQ(list(conn, "", rows, 8), 0);
    CHECK_EQ(pn_channel_listeners(conn, "c", 1), 0);
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static void test_a_scribbled_length_is_left_out(void)
{
    pn_engine *engine = test_engine(NULL);
    pn_conn *conn = test_connect(engine);
    pn_channel_row rows[8];
    struct pn_segment *seg = test_inside();
    struct GlobalChannelEntry *entry = NULL;
    uint32_t from = UINT32_MAX;
    test_listen(conn, "c");
    for (uint32_t i = 0; i < seg->max_channels; i++)
        if (pn_channel_at(seg, i)->state == PN_CHANNEL_USED)
            entry = pn_channel_at(seg, i);
    CHECK(entry != NULL);
    entry->name_len = 60000;
    CHECK_EQ(list(conn, "", rows, 8), 0);
    entry->name_len = 1;
    CHECK_EQ(list(conn, "", rows, 8), 1);
    CHECK_EQ(pn_channel_list(conn, "", 0, &from, rows, 8), 0);
    CHECK_EQ(from, 0);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

int main(void)
{
    test_watchdog(110);
    RUN(test_counts_and_prefixes);
    RUN(test_an_engine_sees_all_databases);
    RUN(test_what_was_heard_is_counted_until_the_channel_is_forgotten);
    RUN(test_few_rows_at_a_time);
    RUN(test_a_bridge_is_no_listener);
    RUN(test_the_dead_are_not_listed);
    RUN(test_a_scribbled_length_is_left_out);
    return tests_done();
}
