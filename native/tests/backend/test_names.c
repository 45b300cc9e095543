/*
 * Channels that were listened to once are forgotten, and their numbers used again; but not while
 * a batch has the number, or a prepared transaction will need it.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "pair.h"

static pn_txn *begun(pn_conn *conn, int (*add)(pn_txn *, const char *, size_t), const char *name)
{
    pn_txn *txn = test_begin(conn);
    CHECK_OK(add(txn, name, strlen(name)));
    return txn;
}

static uint32_t named(const pn_conn *conn)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < conn->local.n; i++)
        n += conn->local.at[i].name != NULL;
    return n;
}

/* The only message of the batch. */
#define CHECK_READ(batch, name, body) check_read(__LINE__, batch, name, body)
static void check_read(int line, const pn_batch *batch, const char *name, const char *body)
{
    const char *got = batch->n == 1 ? pn_conn_channel(a, batch->channel[0], NULL) : "";
    if (got == NULL || strcmp(got, name) != 0 || batch->offset[1] != strlen(body) ||
        memcmp(batch->data, body, strlen(body)) != 0)
        FAIL("line %d: %zu messages, channel \"%s\"", line, batch->n, got == NULL ? "" : got);
}

static void test_a_channel_for_each_request(void)
{
    pn_batch *batch = pn_batch_new();
    char name[32];
    two_connections();
    test_listen(a, "always");
    for (unsigned i = 0; i < 20000; i++) {
        snprintf(name, sizeof name, "reply-%u", i * 2654435761U);
        test_listen(a, name);
        CHECK_OK(test_notify(b, name, name));
        CHECK_EQ(pn_poll(a, batch, 0), 1);
        CHECK_READ(batch, name, name);
        CHECK_EQ(batch->nrenamed, 1); /* a reader that keeps names by number is told each time */
        test_unlisten(a, name);
    }
    CHECK(a->local.n <= 3 && a->local.table_size <= 16 && a->local.cap <= 8);
    CHECK(batch->known_cap <= 8 && batch->renamed_cap <= 8);
    CHECK_OK(test_notify(b, "always", "x"));
    CHECK_EQ(pn_poll(a, batch, 0), 1);
    CHECK_READ(batch, "always", "x");
    CHECK_EQ(named(a), 1);
    pn_batch_free(batch);
    done();
}

static void test_without_reading(void)
{
    char name[32];
    pn_batch *batch = pn_batch_new();
    two_connections();
    test_listen(a, "always");
    CHECK_OK(test_notify(b, "always", "x"));
    CHECK_EQ(pn_poll(a, batch, 0), 1);
    for (unsigned i = 0; i < 1000; i++) {
        snprintf(name, sizeof name, "c%u", i);
        test_listen(a, name);
        CHECK_OK(test_notify(b, name, "unread"));
        test_unlisten(a, name);
    }
    CHECK_EQ(a->local.n, 2);
    CHECK_EQ(named(a), 1);
    CHECK_READ(batch, "always", "x"); /* what a batch has stays as it was */
    pn_batch_free(batch);
    done();
}

static void test_a_refused_listen_leaves_no_name(void)
{
    char name[32];
    two_connections();
    for (unsigned i = 0; i < 64; i++) { /* max_channels */
        snprintf(name, sizeof name, "c%u", i);
        test_listen(b, name);
    }
    pn_txn *txn = begun(a, pn_txn_listen, "one more");
    CHECK_EQ(pn_txn_commit(txn), -PN_ECHANNELS);
    CHECK_EQ(named(a), 0);
    txn = begun(a, pn_txn_listen, "one more");
    CHECK_EQ(pn_txn_prepare(txn), -PN_ECHANNELS);
    pn_txn_abort(txn);
    CHECK_EQ(named(a), 0);
    done();
}

static void test_a_batch_keeps_its_names(void)
{
    pn_batch *one = pn_batch_new(), *other = pn_batch_new();
    two_connections();
    test_listen(a, "first");
    CHECK_OK(test_notify(b, "first", "1"));
    CHECK_EQ(pn_poll(a, one, 0), 1);
    test_unlisten(a, "first");
    test_listen(a, "second");
    CHECK_OK(test_notify(b, "second", "2"));
    CHECK_EQ(pn_poll(a, other, 0), 1);
    CHECK_READ(one, "first", "1");
    CHECK_READ(other, "second", "2");
    CHECK_EQ(named(a), 2);
    CHECK_EQ(pn_poll(a, one, 0), 0); /* now it has nothing any more */
    CHECK_EQ(named(a), 1);
    CHECK_READ(other, "second", "2");
    test_unlisten(a, "second");
    CHECK_EQ(named(a), 1);
    pn_batch_free(other); /* nor has this one, which need not be said */
    CHECK_EQ(pn_poll(a, one, 0), 0);
    CHECK_EQ(named(a), 0);
    done();
    pn_batch_free(one); /* after its connection */
}

static void test_the_same_name_again_while_it_waits(void)
{
    pn_batch *batch = pn_batch_new();
    two_connections();
    test_listen(a, "c");
    CHECK_OK(test_notify(b, "c", "1"));
    CHECK_EQ(pn_poll(a, batch, 0), 1);
    for (int i = 0; i < 3; i++) {
        test_unlisten(a, "c");
        test_listen(a, "c");
    }
    CHECK_EQ(named(a), 1);
    CHECK_OK(test_notify(b, "c", "2"));
    CHECK_EQ(pn_poll(a, batch, 0), 1);
    CHECK_READ(batch, "c", "2");
    CHECK_EQ(batch->nrenamed, 0);
    test_unlisten(a, "c");
    CHECK_EQ(pn_poll(a, batch, 0), 0);
    CHECK_EQ(named(a), 0);
    pn_batch_free(batch);
    done();
}

/* Its intents are numbers of channels until it ends. */
static void test_a_prepared_transaction_keeps_its_names(void)
{
    for (int commits = 0; commits < 2; commits++) {
        pn_batch *batch = pn_batch_new();
        two_connections();
        test_listen(a, "old");
        pn_txn *listens = begun(a, pn_txn_listen, "new"), *unlistens;
        unlistens = begun(a, pn_txn_unlisten, "old");
        CHECK_OK(pn_txn_prepare(listens));
        CHECK_OK(pn_txn_prepare(unlistens));
        test_unlisten(a, "old");
        test_unlisten(a, "new"); /* nothing: it is not listened to yet */
        test_listen(a, "another");
        CHECK_EQ(named(a), 3);
        if (commits) {
            CHECK_OK(pn_txn_commit(unlistens));
            CHECK_OK(pn_txn_commit(listens));
        } else {
            pn_txn_abort(unlistens);
            pn_txn_abort(listens);
        }
        CHECK_EQ(named(a), 1 + (unsigned) commits);
        CHECK_EQ(pn_conn_listening(a, NULL, 0), 1 + commits);
        CHECK_OK(test_notify(b, "new", "n"));
        CHECK_EQ(pn_poll(a, batch, 0), commits);
        if (commits)
            CHECK_READ(batch, "new", "n");
        pn_batch_free(batch);
        done();
    }
}

/*
 * Against a plain list, with patterns and channels of one name and hash; the table's gaps close,
 * and the lowest number is given out first.
 */
static void test_names_by_chance(void)
{
    struct pn_local_channels l = {0};
    uint32_t number[200], in_use = 0;
    char name[200][8];
    uint64_t state = 1;
    memset(number, 0xff, sizeof number);
    for (int step = 0; step < 200000; step++) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        unsigned i = (unsigned) (state >> 33) % 200;
        bool pattern = i >= 100;
        size_t len = (size_t) snprintf(name[i], sizeof name[i], "n%u", i % 100);
        uint64_t hash = i % 100 % 7 + (uint64_t) (i % 100) / 50 * 1000; /* many meet in the table */
        struct pn_local_channel *found = pn_local_find(&l, hash, name[i], len, pattern);
        if (found == NULL) {
            CHECK_EQ(number[i], UINT32_MAX);
            struct pn_local_channel *c = pn_local_add(&l, hash, name[i], len, pattern);
            CHECK(c != NULL);
            c->routes = 1;
            number[i] = pn_local_number(&l, c);
            in_use++;
        } else {
            CHECK_EQ(pn_local_number(&l, found), number[i]);
            found->routes = 0;
            pn_local_let_go(&l, number[i]);
            number[i] = UINT32_MAX;
            in_use--;
        }
        for (uint32_t k = 1; k < l.nfree; k++)
            CHECK(l.free[(k - 1) / 2] < l.free[k]);
        CHECK_EQ(l.n - l.nfree, in_use);
    }
    for (unsigned i = 0; i < 200; i++)
        if (number[i] != UINT32_MAX) {
            l.at[number[i]].routes = 0;
            pn_local_let_go(&l, number[i]);
        }
    CHECK_EQ(l.n, 0);
    CHECK(l.at == NULL && l.table == NULL); /* a hundred at once are not kept for good */
    pn_local_free(&l);
}

int main(void)
{
    test_watchdog(100);
    RUN(test_a_channel_for_each_request);
    RUN(test_without_reading);
    RUN(test_a_refused_listen_leaves_no_name);
    RUN(test_a_batch_keeps_its_names);
    RUN(test_the_same_name_again_while_it_waits);
    RUN(test_a_prepared_transaction_keeps_its_names);
    RUN(test_names_by_chance);
    return tests_done();
}
