/* LISTEN, NOTIFY and UNLISTEN as a program sees them: what is heard, since when, in which order. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "pair.h"

static void notify_in(pn_txn *txn, const char *channel, const char *payload)
{
    CHECK_OK(pn_txn_notify(txn, channel, strlen(channel), payload, strlen(payload)));
}

static void listen_in(pn_txn *txn, const char *channel)
{
    CHECK_OK(pn_txn_listen(txn, channel, strlen(channel)));
}

static void unlisten_in(pn_txn *txn, const char *channel)
{
    CHECK_OK(pn_txn_unlisten(txn, channel, strlen(channel)));
}

static void test_a_listener_hears_from_its_commit_on(void)
{
    two_connections();
    CHECK_OK(test_notify(b, "c", "before"));
    pn_txn *txn = test_begin(a);
    listen_in(txn, "c");
    CHECK_OK(test_notify(b, "c", "not yet committed"));
    CHECK_POLL(a, "");
    CHECK_OK(pn_txn_commit(txn));
    CHECK_OK(test_notify(b, "c", "1"));
    CHECK_OK(test_notify(b, "d", "another channel"));
    CHECK_OK(test_notify(b, "c", "2"));
    CHECK_POLL(a, "1 2");
    CHECK_POLL(a, "");
    test_unlisten(a, "c");
    CHECK_OK(test_notify(b, "c", "after"));
    CHECK_POLL(a, "");
    done();
}

/* A subscription starts before its own transaction's notifications, and not earlier. */
static void test_self_notify(void)
{
    two_connections();
    pn_txn *txn = test_begin(a);
    notify_in(txn, "c", "1");
    listen_in(txn, "c");
    notify_in(txn, "c", "2");
    CHECK_OK(pn_txn_commit(txn));
    CHECK_POLL(a, "1 2");
    CHECK_OK(test_notify(a, "c", "3"));
    CHECK_EQ(pn_wait(a, -1), 1);
    CHECK_POLL(a, "3");
    txn = test_begin(a); /* UNLISTEN too takes effect before them */
    notify_in(txn, "c", "4");
    unlisten_in(txn, "c");
    CHECK_OK(pn_txn_commit(txn));
    CHECK_POLL(a, "");
    done();
}

static void test_the_last_action_wins(void)
{
    two_connections();
    pn_txn *txn = test_begin(a);
    listen_in(txn, "c");
    unlisten_in(txn, "c");
    listen_in(txn, "d");
    unlisten_in(txn, "e");
    listen_in(txn, "e");
    CHECK_OK(pn_txn_commit(txn));
    uint32_t channels[4];
    CHECK_EQ(pn_conn_listening(a, channels, 4), 2);
    CHECK_STR(pn_conn_channel(a, channels[0], NULL), "d");
    CHECK_STR(pn_conn_channel(a, channels[1], NULL), "e");
    txn = test_begin(a);
    listen_in(txn, "f");
    CHECK_OK(pn_txn_unlisten_all(txn));
    listen_in(txn, "d");
    CHECK_OK(pn_txn_commit(txn));
    CHECK_EQ(pn_conn_listening(a, channels, 4), 1);
    CHECK_STR(pn_conn_channel(a, channels[0], NULL), "d");
    CHECK_OK(test_notify(b, "d", "1"));
    CHECK_OK(test_notify(b, "e", "x"));
    CHECK_OK(test_notify(b, "f", "x"));
    CHECK_POLL(a, "1");
    txn = test_begin(a);
    listen_in(txn, "d"); /* again: nothing changes, nothing is lost or doubled */
    CHECK_OK(pn_txn_commit(txn));
    CHECK_OK(test_notify(b, "d", "2"));
    CHECK_POLL(a, "2");
    CHECK_EQ(test_stat(engine).subscriptions, 1);
    done();
}

/* UNLISTEN and LISTEN in one transaction leave the subscription as it is: what was unread is
 * still owed.  In two, the second subscription starts again. */
static void test_relisten(void)
{
    two_connections();
    test_listen(a, "c");
    CHECK_OK(test_notify(b, "c", "1"));
    pn_txn *txn = test_begin(a);
    unlisten_in(txn, "c");
    listen_in(txn, "c");
    CHECK_OK(pn_txn_commit(txn));
    CHECK_OK(test_notify(b, "c", "2"));
    CHECK_POLL(a, "1 2");
    CHECK_OK(test_notify(b, "c", "3"));
    test_unlisten(a, "c");
    test_listen(a, "c");
    CHECK_OK(test_notify(b, "c", "4"));
    CHECK_POLL(a, "4");
    test_listen(a, "d"); /* one of two re-listened: the other keeps what it is owed */
    CHECK_OK(test_notify(b, "c", "5"));
    CHECK_OK(test_notify(b, "d", "6"));
    test_unlisten(a, "c");
    test_listen(a, "c");
    CHECK_OK(test_notify(b, "c", "7"));
    CHECK_POLL(a, "6 7");
    done();
}

/* After UNLISTEN of the last channel a backend holds nothing, whatever it has not read. */
static void test_unlisten_of_the_last_channel_pins_nothing(void)
{
    static char payload[4000];
    two_connections();
    for (int way = 0; way < 3; way++) {
        test_listen(a, "c");
        test_listen(a, "d");
        CHECK_OK(test_notify(b, "c", "1"));
        CHECK_POLL(a, "1"); /* awake */
        for (int i = 0; i < 100; i++)
            CHECK_OK(pn_notify(b, "c", 1, payload, sizeof payload));
        CHECK_EQ(test_stat(engine).tail_holder_pid, getpid());
        pn_txn *txn = test_begin(a);
        if (way == 0) {
            CHECK_OK(pn_txn_unlisten_all(txn));
        } else {
            unlisten_in(txn, "c");
            unlisten_in(txn, "d");
        }
        if (way == 2)
            CHECK_OK(pn_txn_prepare(txn));
        CHECK_OK(pn_txn_commit(txn));
        pn_stat stat = test_stat(engine);
        CHECK_EQ(stat.tail_holder_pid, 0);
        CHECK_EQ(stat.tail, stat.head);
        CHECK_POLL(a, "");
        for (int i = 0; i < 300; i++)
            CHECK_OK(pn_notify(b, "c", 1, payload, sizeof payload));
    }
    done();
}

static void test_transactions_are_atomic_and_in_commit_order(void)
{
    two_connections();
    test_listen(a, "c");
    pn_txn *first = test_begin(b), *second = test_begin(b);
    notify_in(first, "c", "1a");
    notify_in(second, "c", "2a");
    notify_in(first, "c", "1b");
    notify_in(first, "c", "1a");  /* collapses */
    notify_in(second, "c", "1a"); /* does not: another transaction */
    CHECK_POLL(a, "");
    CHECK_OK(pn_txn_commit(second));
    CHECK_OK(pn_txn_commit(first));
    pn_batch *batch = pn_batch_new();
    CHECK_EQ(pn_poll(a, batch, 0), 4);
    CHECK(memcmp(batch->data, "2a1a1a1b", 8) == 0);
    CHECK_EQ(batch->seq[0], batch->seq[1]);
    CHECK_EQ(batch->seq[2], batch->seq[0] + 1);
    CHECK_EQ(batch->seq[3], batch->seq[2]);
    CHECK(batch->sent_ns[3] >= batch->sent_ns[0]);
    CHECK_EQ(batch->pid[0], getpid());
    CHECK_EQ(batch->backend_id[0], pn_conn_backend_id(b));
    CHECK_EQ((int32_t) batch->sender[0], pn_conn_backend_id(b));
    pn_batch_free(batch);
    first = test_begin(b);
    notify_in(first, "c", "aborted");
    pn_txn_abort(first);
    first = test_begin(b);
    CHECK_OK(pn_txn_commit(first)); /* empty */
    CHECK_POLL(a, "");
    done();
}

static void test_savepoints(void)
{
    two_connections();
    test_listen(a, "c");
    pn_txn *txn = test_begin(b);
    notify_in(txn, "c", "1");
    CHECK_EQ(pn_txn_savepoint(txn), 1);
    notify_in(txn, "c", "x");
    listen_in(txn, "c");
    CHECK_EQ(pn_txn_savepoint(txn), 2);
    notify_in(txn, "c", "y");
    CHECK_OK(pn_txn_release(txn, 2));
    CHECK_OK(pn_txn_rollback_to(txn, 1));
    CHECK_EQ(pn_txn_savepoint(txn), 1);
    notify_in(txn, "c", "2");
    CHECK_OK(pn_txn_release(txn, 1));
    CHECK_OK(pn_txn_commit(txn));
    CHECK_POLL(a, "1 2");
    CHECK_POLL(b, "");
    CHECK_EQ(pn_conn_listening(b, NULL, 0), 0);
    done();
}

/* Going back to a savepoint takes back what was listened to since, and nothing of before. */
static void test_what_was_staged_before_a_savepoint_stays(void)
{
    two_connections();
    pn_txn *txn = test_begin(a);
    listen_in(txn, "kept");
    CHECK_EQ(pn_txn_savepoint(txn), 1);
    listen_in(txn, "gone");
    CHECK_OK(pn_txn_rollback_to(txn, 1));
    CHECK_OK(pn_txn_commit(txn));
    CHECK_EQ(pn_conn_listening(a, NULL, 0), 1);
    CHECK_OK(pn_notify(b, "kept", 4, "1", 1));
    CHECK_OK(pn_notify(b, "gone", 4, "2", 1));
    CHECK_POLL(a, "1");
    done();
}

static void test_prepared_transactions(void)
{
    two_connections();
    pn_txn *txn = test_begin(a), *other;
    listen_in(txn, "c");
    notify_in(txn, "c", "1");
    CHECK_OK(pn_txn_prepare(txn));
    CHECK_EQ(pn_txn_notify(txn, "c", 1, "x", 1), -PN_EPREPARED);
    CHECK_EQ(pn_txn_listen(txn, "c", 1), -PN_EPREPARED);
    CHECK_EQ(pn_txn_savepoint(txn), -PN_EPREPARED);
    CHECK_EQ(pn_txn_prepare(txn), -PN_EPREPARED);
    CHECK_OK(test_notify(b, "c", "too early"));
    CHECK_POLL(a, "");
    CHECK_OK(pn_txn_commit(txn));
    CHECK_POLL(a, "1");
    txn = test_begin(a); /* overtaken by another transaction of the same connection */
    unlisten_in(txn, "c");
    CHECK_OK(pn_txn_prepare(txn));
    other = test_begin(a);
    listen_in(other, "c");
    CHECK_OK(pn_txn_prepare(other));
    CHECK_OK(pn_txn_commit(txn));
    CHECK_OK(test_notify(b, "c", "unheard"));
    CHECK_OK(pn_txn_commit(other));
    CHECK_OK(test_notify(b, "c", "2"));
    CHECK_POLL(a, "2");
    txn = test_begin(a);
    listen_in(txn, "d");
    CHECK_OK(pn_txn_prepare(txn));
    test_listen(a, "d"); /* before the prepared one commits */
    CHECK_OK(test_notify(b, "d", "3"));
    CHECK_OK(pn_txn_commit(txn));
    CHECK_POLL(a, "3");
    CHECK_EQ(test_stat(engine).subscriptions, 2);
    txn = test_begin(a);
    listen_in(txn, "e");
    CHECK_OK(pn_txn_prepare(txn));
    pn_txn_abort(txn);
    CHECK_EQ(test_stat(engine).subscriptions, 2);
    done();
}

static void test_databases_do_not_hear_each_other(void)
{
    two_connections();
    pn_conn *elsewhere;
    CHECK_OK(pn_connect(engine, "elsewhere", 9, 0, NULL, &elsewhere));
    test_listen(elsewhere, "c");
    test_listen(a, "c");
    CHECK_OK(test_notify(b, "c", "db"));
    CHECK_OK(test_notify(elsewhere, "c", "elsewhere"));
    CHECK_POLL(a, "db");
    CHECK_POLL(elsewhere, "elsewhere");
    pn_conn_close(elsewhere);
    done();
}

static void test_partial_polls(void)
{
    two_connections();
    pn_batch *batch = pn_batch_new();
    struct pollfd fd = {.fd = pn_fileno(a), .events = POLLIN};
    test_listen(a, "c");
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 7; i++)
            CHECK_OK(test_notify(b, "c", "x"));
        for (int left = 7; left > 0;) {
            CHECK_EQ(poll(&fd, 1, 0), 1); /* readable as long as something is unread (R5) */
            left -= (int) pn_poll(a, batch, 2);
            CHECK(batch->n > 0 && batch->n <= 2 && left >= 0);
        }
        int looks = 0; /* and at most once or twice in vain */
        while (poll(&fd, 1, 0) == 1 && looks++ < 3)
            CHECK_EQ(pn_poll(a, batch, 2), 0);
        CHECK(looks <= 2);
    }
    pn_batch_free(batch);
    done();
}

static void test_limits(void)
{
    static char big[200001];
    char name[64];
    two_connections();
    test_listen(a, "c");
    memset(name, 'n', sizeof name);
    CHECK_EQ(pn_notify(b, "", 0, "x", 1), -PN_ECHANNELNAME);
    CHECK_EQ(pn_notify(b, name, 64, "x", 1), -PN_ECHANNELNAME);
    CHECK_EQ(pn_notify(b, "a\0b", 3, "x", 1), -PN_ECHANNELNAME);
    CHECK_EQ(pn_notify(b, "c", 1, big, 200001), -PN_EPAYLOAD);
    CHECK_OK(pn_notify(b, name, 63, "x", 1));
    CHECK_OK(pn_notify(b, "c", 1, big, 200000));
    CHECK_OK(pn_notify(b, "c", 1, NULL, 0));
    pn_batch *batch = pn_batch_new();
    CHECK_EQ(pn_poll(a, batch, 1), 1);
    CHECK_EQ(batch->offset[1], 200000);
    pn_batch_free(batch);
    batch = pn_batch_new();
    CHECK_EQ(pn_poll(a, batch, 0), 1); /* a fresh batch whose first payload is empty */
    CHECK_EQ(batch->offset[1], 0);
    pn_batch_free(batch);
    done();
}

static void test_notify_many(void)
{
    static const uint32_t lens[] = {1, 1, 0, 2, 1};
    uint64_t queued;
    two_connections();
    test_listen(a, "c");
    CHECK_OK(pn_notify_many(b, NULL, "c", 1, "xyzzx", lens, 5, 1, &queued));
    CHECK_EQ(queued, 4);
    CHECK_POLL(a, "x y  zz");
    CHECK_OK(pn_notify_many(b, NULL, "c", 1, "xyzzx", lens, 5, 0, &queued));
    CHECK_EQ(queued, 5);
    CHECK_POLL(a, "x y  zz x");
    pn_txn *txn = test_begin(b);
    CHECK_OK(pn_notify_many(b, txn, "c", 1, "xyzzx", lens, 5, 1, &queued));
    CHECK_OK(pn_notify_many(b, txn, "c", 1, "xyzzx", lens, 5, 1, &queued));
    CHECK_EQ(queued, 0);
    CHECK_POLL(a, "");
    CHECK_OK(pn_txn_commit(txn));
    CHECK_POLL(a, "x y  zz");
    done();
}

/* More listeners than a commit's list of those to wake, in both ways of signalling. */
static void test_more_listeners_than_the_wake_list(void)
{
    enum { N = 300 };
    for (uint32_t signaling = PN_SIGNAL_TARGETED; signaling <= PN_SIGNAL_BROADCAST; signaling++) {
        pn_options o = test_options();
        pn_conn *conn[N];
        o.max_backends = N + 10;
        o.max_subscriptions = 2 * N;
        o.signaling = signaling;
        engine = test_engine(&o);
        b = test_connect(engine);
        for (int i = 0; i < N; i++) {
            conn[i] = test_connect(engine);
            test_listen(conn[i], i % 2 == 0 ? "even" : "all");
            if (i % 2 == 0)
                test_listen(conn[i], "all");
        }
        for (int round = 0; round < 3; round++) {
            pn_txn *txn = test_begin(b);
            notify_in(txn, "even", "e");
            notify_in(txn, "all", "a");
            CHECK_OK(pn_txn_commit(txn));
            for (int i = 0; i < N; i++) {
                CHECK_EQ(pn_wait(conn[i], 0), 1);
                CHECK_POLL(conn[i], i % 2 == 0 ? "e a" : "a");
                CHECK_POLL(conn[i], "");
            }
        }
        CHECK_ENGINE(engine);
        for (int i = 0; i < N; i++)
            pn_conn_close(conn[i]);
        pn_conn_close(b);
        pn_engine_close(engine);
    }
}

/* The handle goes first, as in a garbage collector that knows no order. */
static void test_a_transaction_outlives_its_connection(void)
{
    pn_txn *open, *prepared, *none;
    two_connections();
    pn_conn *first = test_connect(engine);
    CHECK_OK(pn_txn_begin(first, &open));
    notify_in(open, "a", "never");
    CHECK_OK(pn_txn_begin(first, &prepared));
    listen_in(prepared, "a");
    CHECK_OK(pn_txn_prepare(prepared));
    pn_conn_close(first);
    CHECK_EQ(test_stat(engine).backends, 3);
    CHECK_EQ(pn_txn_notify(open, "a", 1, "x", 1), -PN_ECLOSED);
    CHECK_EQ(pn_txn_commit(open), -PN_ECLOSED);
    CHECK_OK(pn_txn_commit(prepared));
    CHECK_EQ(test_stat(engine).backends, 2);
    CHECK_EQ(test_stat(engine).subscriptions, 0);
    CHECK_EQ(pn_notify(pn_closed_conn(), "a", 1, "x", 1), -PN_ECLOSED);
    CHECK_EQ(pn_txn_begin(pn_closed_conn(), &none), -PN_ECLOSED);
    CHECK_EQ(pn_txn_listen(pn_ended_txn(), "a", 1), -PN_ECLOSED);
    done();
}

int main(void)
{
    test_watchdog(110);
    RUN(test_a_listener_hears_from_its_commit_on);
    RUN(test_self_notify);
    RUN(test_the_last_action_wins);
    RUN(test_relisten);
    RUN(test_unlisten_of_the_last_channel_pins_nothing);
    RUN(test_transactions_are_atomic_and_in_commit_order);
    RUN(test_savepoints);
    RUN(test_what_was_staged_before_a_savepoint_stays);
    RUN(test_prepared_transactions);
    RUN(test_databases_do_not_hear_each_other);
    RUN(test_partial_polls);
    RUN(test_limits);
    RUN(test_notify_many);
    RUN(test_more_listeners_than_the_wake_list);
    RUN(test_a_transaction_outlives_its_connection);
    return tests_done();
}
