/* Patterns that are listened to: what is heard, by which of them, and what is left afterwards. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "pair.h"

#include <sys/wait.h>

typedef int on_name(pn_txn *txn, const char *name, size_t len);

static int act(pn_conn *conn, on_name *what, const char *name)
{
    pn_txn *txn = test_begin(conn);
    int rc = what(txn, name, strlen(name));
    if (rc != 0) {
        pn_txn_abort(txn);
        return rc;
    }
    return pn_txn_commit(txn);
}

static void listen_to(pn_conn *conn, const char *pattern)
{
    CHECK_OK(act(conn, pn_txn_listen_pattern, pattern));
}

static void unlisten(pn_conn *conn, const char *pattern)
{
    CHECK_OK(act(conn, pn_txn_unlisten_pattern, pattern));
}

/* A new batch is told of each number that it has. */
static bool is_told(const pn_batch *batch, uint32_t number)
{
    for (size_t i = 0; i < batch->nrenamed; i++)
        if (batch->renamed[i] == number)
            return true;
    return false;
}

/* What comes, as "channel=payload<pattern ..."; without "<" it came by its channel. */
static const char *read_all(pn_conn *conn)
{
    static char text[4096];
    size_t used = 0;
    pn_batch *batch = pn_batch_new();
    text[0] = '\0';
    CHECK(pn_poll(conn, batch, 0) >= 0);
    for (size_t i = 0; i < batch->n; i++) {
        CHECK(is_told(batch, batch->channel[i]));
        int32_t by = batch->by_pattern == 0 ? -1 : batch->pattern[i];
        CHECK(by < 0 || is_told(batch, (uint32_t) by));
        const char *pattern = by < 0 ? NULL : pn_conn_channel(conn, (uint32_t) by, NULL);
        used += (size_t) snprintf(text + used, sizeof text - used, "%s%s=%.*s%s%s",
                                  i == 0 ? "" : " ", pn_conn_channel(conn, batch->channel[i], NULL),
                                  (int) (batch->offset[i + 1] - batch->offset[i]),
                                  (const char *) batch->data + batch->offset[i],
                                  pattern == NULL ? "" : "<", pattern == NULL ? "" : pattern);
    }
    pn_batch_free(batch);
    return text;
}

#define READS(conn, expected)                                                                      \
    do {                                                                                           \
        const char *got = read_all(conn);                                                          \
        if (strcmp(got, expected) != 0)                                                            \
            FAIL("read \"%s\", not \"%s\"", got, expected);                                        \
    } while (0)

static void test_what_matches_is_heard_once(void)
{
    two_connections();
    listen_to(a, "orders.*");
    listen_to(a, "*.eu");
    CHECK_OK(test_notify(b, "orders.1", "x"));
    CHECK_OK(test_notify(b, "users.1", "no"));
    CHECK_OK(test_notify(b, "users.eu", "y"));
    CHECK_OK(test_notify(b, "orders.eu", "z"));
    READS(a, "orders.1=x<orders.* users.eu=y<*.eu orders.eu=z<orders.*");
    test_listen(a, "orders.eu");
    CHECK_OK(test_notify(b, "orders.eu", "1"));
    READS(a, "orders.eu=1");
    test_unlisten(a, "orders.eu");
    CHECK_OK(test_notify(b, "orders.eu", "2"));
    unlisten(a, "orders.*");
    READS(a, "orders.eu=2<*.eu");
    done();
}

/* A pattern and a channel of the same name are two things. */
static void test_a_literal_channel_stays_one(void)
{
    two_connections();
    test_listen(a, "o*");
    CHECK_OK(test_notify(b, "orders", "no"));
    CHECK_OK(test_notify(b, "o*", "1"));
    READS(a, "o*=1");
    listen_to(a, "o*");
    CHECK_OK(test_notify(b, "orders", "2"));
    CHECK_OK(test_notify(b, "o*", "3"));
    READS(a, "orders=2<o* o*=3");
    test_unlisten(a, "o*");
    CHECK_OK(test_notify(b, "o*", "4"));
    READS(a, "o*=4<o*");
    CHECK_EQ(pn_channel_listeners(a, "o*", 2), 0);
    done();
}

static void test_it_takes_effect_at_commit(void)
{
    two_connections();
    CHECK_OK(test_notify(b, "c1", "before"));
    pn_txn *txn = test_begin(a);
    CHECK_OK(pn_txn_listen_pattern(txn, "c*", 2));
    CHECK_OK(test_notify(b, "c1", "not yet committed"));
    CHECK_OK(pn_txn_notify(txn, "c2", 2, "own", 3));
    READS(a, "");
    CHECK_OK(pn_txn_commit(txn));
    CHECK_OK(test_notify(b, "c1", "1"));
    READS(a, "c2=own<c* c1=1<c*");
    CHECK_OK(test_notify(b, "c1", "left"));
    txn = test_begin(a); /* in one transaction: no gap */
    CHECK_OK(pn_txn_unlisten_pattern(txn, "c*", 2));
    CHECK_OK(pn_txn_listen_pattern(txn, "c*", 2));
    CHECK_OK(pn_txn_commit(txn));
    READS(a, "c1=left<c*");
    CHECK_OK(test_notify(b, "c1", "unread"));
    unlisten(a, "c*");
    listen_to(a, "c*");
    CHECK_OK(test_notify(b, "c1", "2"));
    READS(a, "c1=2<c*");
    txn = test_begin(a);
    CHECK_OK(pn_txn_unlisten_all(txn));
    CHECK_OK(pn_txn_commit(txn));
    CHECK_OK(test_notify(b, "c1", "after"));
    READS(a, "");
    done();
}

/* What lies in the queue for another listener, before the LISTEN. */
static void test_it_begins_at_its_commit(void)
{
    two_connections();
    test_listen(b, "c1");
    test_listen(a, "d");
    CHECK_OK(test_notify(b, "d", "1"));
    CHECK_OK(test_notify(b, "c1", "before"));
    listen_to(a, "c*");
    CHECK_OK(test_notify(b, "c1", "2"));
    READS(a, "d=1 c1=2<c*");
    done();
}

/* A LISTEN of the channel that comes later takes nothing away, nor does its end. */
static void test_the_channel_is_listened_to_later(void)
{
    two_connections();
    listen_to(a, "c*");
    CHECK_OK(test_notify(b, "c1", "1"));
    test_listen(a, "c1");
    CHECK_OK(test_notify(b, "c1", "2"));
    READS(a, "c1=1<c* c1=2");
    CHECK_OK(test_notify(b, "c1", "3"));
    unlisten(a, "c*");
    listen_to(a, "c*");
    CHECK_OK(test_notify(b, "c1", "4"));
    test_unlisten(a, "c1");
    READS(a, "c1=4<c*");
    done();
}

static void test_the_first_that_was_listened_to(void)
{
    char names[64];
    two_connections();
    pn_txn *txn = test_begin(a);
    CHECK_OK(pn_txn_listen_pattern(txn, "a*", 2));
    CHECK_OK(pn_txn_unlisten_pattern(txn, "a*", 2));
    CHECK_OK(pn_txn_listen_pattern(txn, "*z", 2));
    CHECK_OK(pn_txn_listen_pattern(txn, "a*", 2));
    CHECK_OK(pn_txn_commit(txn));
    listen_to(a, "*");
    CHECK_EQ(pn_conn_listening_patterns(a, names, sizeof names), 8);
    CHECK(memcmp(names, "*z\0a*\0*\0", 8) == 0);
    CHECK_OK(test_notify(b, "az", "1"));
    CHECK_OK(test_notify(b, "ab", "2"));
    CHECK_OK(test_notify(b, "b", "3"));
    READS(a, "az=1<*z ab=2<a* b=3<*");
    unlisten(a, "*z");
    listen_to(a, "*z");
    CHECK_OK(test_notify(b, "az", "4"));
    READS(a, "az=4<a*");
    done();
}

/* LISTEN and SUBSCRIBE are owed separately, each by channel or pattern. */
static void test_routes(void)
{
    two_connections();
    pn_batch *batch = pn_batch_new();
    test_listen(a, "c1");
    CHECK_OK(act(a, pn_txn_subscribe_pattern, "c*"));
    CHECK_OK(test_notify(b, "c1", "x"));
    CHECK_OK(test_notify(b, "c2", "y"));
    CHECK_EQ(pn_poll(a, batch, 0), 2);
    CHECK_EQ(batch->routes[0], 1U << PN_ROUTE_LISTEN | 1U << PN_ROUTE_SUBSCRIBE);
    CHECK_EQ(batch->pattern[0], -1);
    CHECK_EQ(batch->routes[1], 1U << PN_ROUTE_SUBSCRIBE);
    CHECK(batch->pattern[1] >= 0);
    CHECK_OK(act(a, pn_txn_listen_pattern, "?2"));
    CHECK_OK(test_notify(b, "c2", "z"));
    CHECK_EQ(pn_poll(a, batch, 0), 1);
    CHECK_EQ(batch->routes[0], 1U << PN_ROUTE_LISTEN | 1U << PN_ROUTE_SUBSCRIBE);
    CHECK(strcmp(pn_conn_channel(a, (uint32_t) batch->pattern[0], NULL), "?2") == 0);
    CHECK_OK(act(a, pn_txn_unsubscribe_pattern, "c*"));
    CHECK_OK(test_notify(b, "c3", "no"));
    CHECK_EQ(pn_poll(a, batch, 0), 0);
    pn_batch_free(batch);
    done();
}

static void test_prepared(void)
{
    two_connections();
    pn_txn *txn = test_begin(a);
    CHECK_OK(pn_txn_listen_pattern(txn, "c*", 2));
    CHECK_OK(pn_txn_notify(txn, "c0", 2, "own", 3));
    CHECK_OK(pn_txn_prepare(txn));
    CHECK_EQ(test_stat(engine).patterns, 1);
    uint64_t head = test_stat(engine).head;
    CHECK_OK(test_notify(b, "c1", "not yet committed"));
    CHECK_EQ(test_stat(engine).head, head); /* what is staged only makes no entry */
    CHECK_OK(pn_txn_commit(txn));
    CHECK_OK(test_notify(b, "c1", "1"));
    READS(a, "c0=own<c* c1=1<c*");
    unlisten(a, "c*");
    txn = test_begin(a);
    CHECK_OK(pn_txn_listen_pattern(txn, "c*", 2));
    CHECK_OK(pn_txn_prepare(txn));
    pn_txn_abort(txn);
    CHECK_EQ(test_stat(engine).patterns, 0);
    done();
}

static void test_nothing_is_stored_that_no_pattern_hears(void)
{
    two_connections();
    listen_to(a, "c*");
    uint64_t head = test_stat(engine).head;
    CHECK_OK(test_notify(b, "d", "no"));
    CHECK_EQ(test_stat(engine).head, head);
    pn_txn *txn = test_begin(a); /* the last listener goes in the transaction that notifies */
    CHECK_OK(pn_txn_unlisten_pattern(txn, "c*", 2));
    CHECK_OK(pn_txn_notify(txn, "c1", 2, "no", 2));
    CHECK_OK(pn_txn_commit(txn));
    CHECK_EQ(test_stat(engine).head, head);
    done();
}

static void test_only_those_that_match_are_woken(void)
{
    two_connections();
    pn_conn *c = test_connect(engine);
    listen_to(a, "a*");
    listen_to(c, "c*");
    uint64_t writes = test_stat(engine).slot_writes;
    CHECK_OK(test_notify(b, "c1", "x"));
    CHECK_EQ(test_stat(engine).slot_writes, writes + 1);
    READS(c, "c1=x<c*");
    READS(a, "");
    pn_conn_close(c);
    done();
}

static void test_databases_are_apart(void)
{
    two_connections();
    pn_conn *other;
    CHECK_OK(pn_connect(engine, "other", 5, 0, NULL, &other));
    listen_to(other, "*");
    listen_to(a, "*");
    CHECK_OK(test_notify(b, "c", "x"));
    READS(a, "c=x<*");
    READS(other, "");
    CHECK_EQ(test_stat(engine).patterns, 2);
    pn_conn_close(other);
    CHECK_EQ(test_stat(engine).patterns, 1);
    done();
}

static void test_the_table_is_shared_with_channels(void)
{
    pn_options o = test_options();
    o.max_channels = 3;
    o.max_subscriptions = 4;
    two_connections_of(&o);
    listen_to(a, "1*");
    listen_to(a, "2*");
    test_listen(a, "3");
    CHECK_EQ(act(a, pn_txn_listen_pattern, "4*"), -PN_ECHANNELS);
    CHECK(strstr(pn_error_message(), "max_channels is 3") != NULL);
    CHECK(strstr(pn_error_message(), "pattern") != NULL);
    listen_to(b, "1*"); /* the same entry */
    CHECK_EQ(act(b, pn_txn_listen_pattern, "2*"), -PN_ECHANNELS);
    CHECK(strstr(pn_error_message(), "max_subscriptions is 4") != NULL);
    test_unlisten(a, "3"); /* evicted for a pattern */
    listen_to(a, "4*");
    unlisten(a, "4*"); /* freed for a channel */
    test_listen(a, "5");
    CHECK_OK(test_notify(b, "11", "x"));
    CHECK_OK(test_notify(b, "5", "y"));
    READS(a, "11=x<1* 5=y");
    done();
}

static void test_names(void)
{
    char name[300];
    two_connections();
    memset(name, '*', sizeof name);
    pn_txn *txn = test_begin(a);
    CHECK_EQ(pn_txn_listen_pattern(txn, "", 0), -PN_ECHANNELNAME);
    CHECK(strstr(pn_error_message(), "pattern name cannot be empty") != NULL);
    CHECK_EQ(pn_txn_listen_pattern(txn, name, 64), -PN_ECHANNELNAME);
    CHECK_OK(pn_txn_listen_pattern(txn, name, 63));
    CHECK_OK(pn_txn_commit(txn));
    CHECK_OK(test_notify(b, "anything", "x"));
    CHECK(strncmp(read_all(a), "anything=x<***", 14) == 0);
    done();
}

/* A channel that is heard by a pattern alone needs no entry, and a number only while it is read. */
static void test_channels_without_number(void)
{
    two_connections();
    char name[32];
    uint32_t channels = test_stat(engine).channels;
    listen_to(a, "c*");
    for (int round = 0; round < 40; round++) {
        for (int i = 0; i < 30; i++) {
            snprintf(name, sizeof name, "c%d.%d", round, i);
            CHECK_OK(test_notify(b, name, "x"));
        }
        CHECK(strlen(read_all(a)) > 100);
        CHECK(a->local.n < 70);
    }
    CHECK_EQ(test_stat(engine).channels, channels + 1);
    done();
}

static void test_what_was_read_ahead(void)
{
    two_connections();
    uint64_t seq;
    listen_to(a, "c*");
    CHECK_OK(test_notify(b, "c1", "x"));
    CHECK_OK(pn_commit_seq(engine, &seq));
    READS(a, "c1=x<c*");
    CHECK_EQ(pn_conn_owes(a, "c1", 2, seq), 1);
    CHECK_EQ(pn_conn_owes(a, "d1", 2, seq), 0);
    listen_to(a, "*1"); /* later than the message */
    unlisten(a, "c*");
    CHECK_EQ(pn_conn_owes(a, "c1", 2, seq), 0);
    CHECK_EQ(pn_conn_owes(a, "c1", 2, seq + 1), 1);
    test_listen(a, "c1");
    CHECK_EQ(pn_conn_owes(a, "c1", 2, seq), 0);
    done();
}

static int list_patterns(pn_channel_row *rows, size_t cap)
{
    uint32_t from = 0;
    int n = 0;
    do {
        int rc = pn_pattern_list(a, "", 0, &from, rows + n, cap - (size_t) n);
        CHECK(rc >= 0);
        n += rc;
    } while (from != 0);
    return n;
}

static void test_lists(void)
{
    two_connections();
    pn_channel_row rows[4];
    uint32_t from = 0;
    listen_to(a, "c*");
    listen_to(b, "c*");
    test_listen(b, "c1");
    CHECK_OK(test_notify(b, "c1", "x"));
    CHECK_OK(test_notify(b, "c2", "x"));
    CHECK_EQ(list_patterns(rows, 4), 1);
    CHECK_EQ(rows[0].listeners, 2);
    CHECK_EQ(rows[0].notifications, 2);
    CHECK(rows[0].name_len == 2 && memcmp(rows[0].name, "c*", 2) == 0);
    CHECK(strcmp(rows[0].database, "db") == 0);
    uint64_t first = rows[0].first;
    CHECK_EQ(pn_channel_list(a, "", 0, &from, rows, 4), 1);
    CHECK(rows[0].name_len == 2 && memcmp(rows[0].name, "c1", 2) == 0);
    CHECK_EQ(pn_engine_patterns(engine, "", 0, "", 0, &from, rows, 4), 1);
    CHECK(strcmp(rows[0].database, "db") == 0);
    unlisten(a, "c*");
    unlisten(b, "c*");
    CHECK_EQ(list_patterns(rows, 4), 0);
    listen_to(a, "c*"); /* counted from somewhere else */
    CHECK_EQ(list_patterns(rows, 4), 1);
    CHECK(rows[0].first != first && rows[0].notifications == 0);
    done();
}

static void test_bridges(void)
{
    two_connections();
    pn_conn *bridge = test_connect(engine);
    CHECK_OK(pn_conn_bridge(bridge));
    CHECK_EQ(act(bridge, pn_txn_listen_pattern, "*"), -EINVAL);
    uint32_t heard = pn_heard(engine);
    CHECK_EQ(pn_channel_heard(bridge, "c1", 2), 0);
    listen_to(a, "c*");
    CHECK(pn_heard(engine) != heard);
    CHECK_EQ(pn_channel_heard(bridge, "c1", 2), 1);
    CHECK_EQ(pn_channel_heard(bridge, "d", 1), 0);
    CHECK_OK(pn_send_gap(bridge, "c1", 2));
    pn_batch *batch = pn_batch_new();
    CHECK_EQ(pn_poll(a, batch, 0), 0);
    CHECK_EQ(batch->ngaps, 1);
    CHECK(strcmp(pn_conn_channel(a, (uint32_t) batch->gap[0].channel, NULL), "c1") == 0);
    pn_batch_free(batch);
    pn_conn_close(bridge);
    done();
}

static void test_broadcast(void)
{
    pn_options o = test_options();
    o.signaling = PN_SIGNAL_BROADCAST;
    two_connections_of(&o);
    listen_to(a, "c*");
    test_listen(b, "d");
    CHECK_OK(test_notify(b, "c1", "x"));
    READS(a, "c1=x<c*");
    READS(b, "");
    done();
}

/* A dead listener's patterns go with its slot. */
static void test_death(void)
{
    two_connections();
    pid_t child = fork();
    if (child == 0) {
        pn_conn *conn = test_connect(engine);
        pn_txn *txn = test_begin(conn);
        for (int i = 0; i < 20; i++) {
            char name[8];
            int len = snprintf(name, sizeof name, "p%d*", i);
            CHECK_OK(pn_txn_listen_pattern(txn, name, (size_t) len));
        }
        CHECK_OK(pn_txn_commit(txn));
        raise(SIGKILL);
    }
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFSIGNALED(status));
    CHECK_EQ(test_stat(engine).patterns, 0); /* it reaps first, and counts then */
    done();
}

static void test_a_list_that_leads_nowhere_poisons(void)
{
    static const uint32_t wrong[] = {65, UINT32_MAX, 1};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        two_connections();
        struct pn_segment *seg = test_inside();
        listen_to(a, "x*");
        CHECK_EQ(seg->ctl->first_pattern, 1);
        struct GlobalChannelEntry *e = (void *) seg->channels;
        e->next_pattern = wrong[i]; /* the last one is itself */
        char problems[4096];
        CHECK(pn_check(engine, problems, sizeof problems) > 0);
        CHECK(strstr(problems, "I32") != NULL);
        CHECK_EQ(test_notify(b, "y", "x"), -PN_ECORRUPT);
        CHECK(strstr(pn_error_message(), "patterns") != NULL);
        pn_conn_close(a);
        pn_conn_close(b);
        pn_engine_close(engine);
    }
}

int main(void)
{
    test_watchdog(100);
    RUN(test_what_matches_is_heard_once);
    RUN(test_a_literal_channel_stays_one);
    RUN(test_it_takes_effect_at_commit);
    RUN(test_it_begins_at_its_commit);
    RUN(test_the_channel_is_listened_to_later);
    RUN(test_the_first_that_was_listened_to);
    RUN(test_routes);
    RUN(test_prepared);
    RUN(test_nothing_is_stored_that_no_pattern_hears);
    RUN(test_only_those_that_match_are_woken);
    RUN(test_databases_are_apart);
    RUN(test_the_table_is_shared_with_channels);
    RUN(test_names);
    RUN(test_channels_without_number);
    RUN(test_what_was_read_ahead);
    RUN(test_lists);
    RUN(test_bridges);
    RUN(test_broadcast);
    RUN(test_death);
    RUN(test_a_list_that_leads_nowhere_poisons);
    return tests_done();
}
