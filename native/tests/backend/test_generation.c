/* Shared generation counters: what a bump is worth, and which reader may see it when. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "pair.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "backend/generation.h"
#include "queue/queue.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { TRANSACTIONS = 2000 };
#else
enum { TRANSACTIONS = 20000 };
#endif

static uint32_t counter(pn_conn *conn, const char *name)
{
    uint32_t index = UINT32_MAX;
    CHECK_OK(pn_generation(conn, name, strlen(name), &index));
    return index;
}

static uint64_t value(uint32_t index)
{
    return pn_generation_value(engine, index);
}

static void bump(pn_txn *txn, uint32_t index, int n)
{
    for (int i = 0; i < n; i++)
        CHECK_OK(pn_txn_bump(txn, index));
}

/* ---- names ----------------------------------------------------------------------------------- */

static void test_a_name_is_a_counter(void)
{
    two_connections();
    uint32_t users = counter(a, "users"), orders = counter(b, "orders");
    CHECK(users != orders);
    CHECK_EQ(counter(b, "users"), users);
    CHECK_EQ(counter(a, "orders"), orders);
    CHECK_EQ(value(users), 0);
    CHECK_EQ(test_stat(engine).generations, 2);
    CHECK_OK(pn_bump(a, users));
    CHECK_OK(pn_bump(b, users));
    CHECK_EQ(value(users), 2);
    CHECK_EQ(value(orders), 0);
    pn_stat stat = test_stat(engine);
    CHECK_EQ(stat.commits, 2);
    CHECK_EQ(stat.notifications, 0);
    done();
}

static int64_t wall_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t) now.tv_sec * 1000000000 + now.tv_nsec;
}

static void test_when_a_counter_changed(void)
{
    two_connections();
    uint32_t g = counter(a, "g"), h = counter(a, "h");
    CHECK_EQ(pn_generation_changed_ns(engine, g), 0);
    CHECK_EQ(pn_generation_changed_ns(engine, UINT32_MAX), 0);
    pn_txn *txn = test_begin(a);
    bump(txn, g, 1);
    bump(txn, h, 1);
    CHECK_EQ(pn_generation_changed_ns(engine, g), 0);
    int64_t before = wall_ns();
    CHECK_OK(pn_txn_commit(txn)); /* the time is that of the commit, not of the call */
    int64_t first = pn_generation_changed_ns(engine, g);
    CHECK(before <= first && first <= wall_ns());
    CHECK_EQ(pn_generation_changed_ns(engine, h), first);
    before = wall_ns();
    CHECK_OK(pn_bump(b, g));
    CHECK(before <= pn_generation_changed_ns(engine, g));
    CHECK_EQ(pn_generation_changed_ns(engine, h), first);
    txn = test_begin(a);
    bump(txn, h, 1);
    pn_txn_abort(txn);
    CHECK_EQ(pn_generation_changed_ns(engine, h), first);
    done();
}

static void test_names_follow_the_rule_for_channels(void)
{
    char name[64];
    uint32_t index;
    two_connections();
    memset(name, 'n', sizeof name);
    CHECK_OK(pn_generation(a, name, 63, &index));
    CHECK_EQ(pn_generation(a, name, 64, &index), -PN_ECHANNELNAME);
    CHECK(strncmp(pn_error_message(), "counter name too long", 21) == 0);
    CHECK_EQ(pn_generation(a, "", 0, &index), -PN_ECHANNELNAME);
    CHECK_EQ(pn_generation(a, "a\0b", 3, &index), -PN_ECHANNELNAME);
    done();
}

static void test_databases_do_not_share_them(void)
{
    pn_conn *other;
    two_connections();
    CHECK_OK(pn_connect(engine, "elsewhere", 9, 0, NULL, &other));
    uint32_t here = counter(a, "users"), there = counter(other, "users");
    CHECK(here != there);
    CHECK_OK(pn_bump(a, here));
    CHECK_EQ(value(there), 0);
    CHECK_EQ(pn_bump(other, here), -EINVAL);
    pn_txn *txn = test_begin(other);
    CHECK_EQ(pn_txn_bump(txn, here), -EINVAL);
    CHECK_EQ(pn_txn_bump(txn, 12345), -EINVAL);
    CHECK_EQ(pn_txn_bump(txn, counter(other, "mine") + 1000000), -EINVAL);
    pn_txn_abort(txn);
    CHECK_EQ(pn_generation_value(engine, UINT32_MAX), 0);
    pn_conn_close(other);
    done();
}

/* To the last entry, and what is there already is found still. */
static void test_full_table(void)
{
    enum { N = 37 };
    pn_options o = test_options();
    uint32_t index[N], extra;
    char name[16];
    o.max_generations = N;
    two_connections_of(&o);
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "counter%d", i);
        index[i] = counter(a, name);
        CHECK(index[i] < N);
        for (int k = 0; k < i; k++)
            CHECK(index[k] != index[i]);
    }
    CHECK_EQ(pn_generation(a, "one more", 8, &extra), -PN_EGENERATIONS);
    CHECK(strstr(pn_error_message(), "max_generations") != NULL);
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "counter%d", i);
        CHECK_EQ(counter(b, name), index[i]);
        CHECK_OK(pn_bump(b, index[i]));
        CHECK_EQ(value(index[i]), 1);
    }
    CHECK_EQ(test_stat(engine).generations, N);
    done();
}

/* The number of a database stands in its counters, so it keeps its row without a backend. */
static void test_a_database_with_counters_is_not_forgotten(void)
{
    enum { ROWS = 64 };
    pn_options o = test_options();
    pn_conn *conn;
    char name[16];
    o.max_backends = 1;
    engine = test_engine(&o);
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < ROWS; i++) {
            int len = snprintf(name, sizeof name, "db%d", i);
            CHECK_OK(pn_connect(engine, name, (size_t) len, 0, NULL, &conn));
            CHECK_OK(pn_bump(conn, counter(conn, "g")));
            CHECK_EQ(value(counter(conn, "g")), round + 1);
            pn_conn_close(conn);
        }
    CHECK_EQ(pn_connect(engine, "new", 3, 0, NULL, &conn), -PN_EGENERATIONS);
    CHECK_OK(pn_connect(engine, "db7", 3, 0, NULL, &conn));
    CHECK_EQ(value(counter(conn, "g")), 2);
    pn_conn_close(conn);
    CHECK_ENGINE(engine);
    pn_engine_close(engine);
}

/* A counter that exists is found while the lock is held; to make one needs it. */
static void *look_up(void *arg)
{
    uint32_t index;
    pn_set_never_wait(1);
    CHECK_EQ(counter(b, "there"), *(uint32_t *) arg);
    CHECK_EQ(pn_generation(b, "not there", 9, &index), -PN_ELOCKBUSY);
    CHECK_EQ(pn_bump(b, *(uint32_t *) arg), -PN_ELOCKBUSY);
    return NULL;
}

static void test_looking_up_needs_no_lock(void)
{
    pthread_t thread;
    two_connections();
    uint32_t there = counter(a, "there");
    CHECK_OK(pn_lock_acquire(test_inside(), &test_hold, PN_LOCK_FOREVER));
    CHECK_EQ(pthread_create(&thread, NULL, look_up, &there), 0);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    pn_lock_release(test_inside());
    CHECK_EQ(value(there), 0);
    done();
}

/* ---- transactions ---------------------------------------------------------------------------- */

static void test_bumps_take_effect_at_commit(void)
{
    two_connections();
    test_listen(b, "c");
    uint32_t g = counter(a, "g"), h = counter(a, "h");
    pn_txn *txn = test_begin(a);
    bump(txn, g, 3);
    CHECK_OK(pn_txn_notify(txn, "c", 1, "x", 1));
    bump(txn, h, 1);
    bump(txn, g, 2);
    CHECK_EQ(value(g), 0);
    CHECK_POLL(b, "");
    CHECK_OK(pn_txn_commit(txn));
    CHECK_EQ(value(g), 5);
    CHECK_EQ(value(h), 1);
    CHECK_POLL(b, "x");
    pn_stat stat = test_stat(engine);
    CHECK_EQ(stat.commits, 2); /* the LISTEN, and this */
    CHECK_EQ(stat.notifications, 1);
    txn = test_begin(a);
    bump(txn, g, 1);
    pn_txn_abort(txn);
    CHECK_EQ(value(g), 5);
    done();
}

/* Every bump counts, however they lie around savepoints. */
static void test_savepoints(void)
{
    two_connections();
    uint32_t g = counter(a, "g"), h = counter(a, "h");
    pn_txn *txn = test_begin(a);
    bump(txn, g, 1);
    CHECK_EQ(pn_txn_savepoint(txn), 1);
    bump(txn, g, 10); /* of the same counter: must not be added to the one before */
    CHECK_EQ(pn_txn_savepoint(txn), 2);
    bump(txn, g, 100);
    bump(txn, h, 1);
    CHECK_OK(pn_txn_rollback_to(txn, 2));
    bump(txn, g, 1000);
    CHECK_OK(pn_txn_release(txn, 1));
    CHECK_EQ(pn_txn_savepoint(txn), 1);
    bump(txn, h, 5);
    CHECK_OK(pn_txn_rollback_to(txn, 1));
    bump(txn, g, 1);
    CHECK_OK(pn_txn_commit(txn));
    CHECK_EQ(value(g), 1012);
    CHECK_EQ(value(h), 0);
    txn = test_begin(a);
    CHECK_EQ(pn_txn_savepoint(txn), 1);
    bump(txn, h, 7);
    CHECK_OK(pn_txn_rollback_to(txn, 1));
    CHECK_OK(pn_txn_commit(txn));
    CHECK_EQ(value(h), 0);
    done();
}

/* Against a plain model: nested levels of bumps of a few counters, at random. */
static void test_savepoints_at_random(void)
{
    enum { COUNTERS = 4, DEPTH = 6 };
    uint64_t seed = 12345, want[COUNTERS] = {0}, level[DEPTH + 1][COUNTERS];
    uint32_t g[COUNTERS];
    two_connections();
    for (int i = 0; i < COUNTERS; i++) {
        char name[8];
        snprintf(name, sizeof name, "g%d", i);
        g[i] = counter(a, name);
    }
    for (int round = 0; round < 200; round++) {
        pn_txn *txn = test_begin(a);
        int depth = 0;
        memcpy(level[0], want, sizeof want);
        for (int step = 0; step < 60; step++) {
            uint64_t what = test_random(&seed) % 10;
            uint32_t i = (uint32_t) (test_random(&seed) % COUNTERS);
            if (what < 6) {
                bump(txn, g[i], 1);
                level[depth][i]++;
            } else if (what < 8 && depth < DEPTH) {
                CHECK_EQ(pn_txn_savepoint(txn), depth + 1);
                memcpy(level[depth + 1], level[depth], sizeof level[0]);
                depth++;
            } else if (what == 8 && depth > 0) {
                CHECK_OK(pn_txn_release(txn, depth));
                memcpy(level[depth - 1], level[depth], sizeof level[0]);
                depth--;
            } else if (what == 9 && depth > 0) {
                CHECK_OK(pn_txn_rollback_to(txn, depth));
                depth--;
            }
        }
        if (round % 5 != 0) {
            CHECK_OK(pn_txn_commit(txn));
            memcpy(want, level[depth], sizeof want);
        } else {
            pn_txn_abort(txn);
        }
        for (int i = 0; i < COUNTERS; i++)
            CHECK_EQ(value(g[i]), want[i]);
    }
    done();
}

static void test_prepare(void)
{
    two_connections();
    uint32_t g = counter(a, "g");
    pn_txn *txn = test_begin(a);
    bump(txn, g, 2);
    CHECK_OK(pn_txn_prepare(txn));
    CHECK_EQ(value(g), 0);
    CHECK_EQ(pn_txn_bump(txn, g), -PN_EPREPARED);
    CHECK_OK(pn_bump(b, g)); /* what is reserved is a place, not a value */
    CHECK_OK(pn_txn_commit(txn));
    CHECK_EQ(value(g), 3);
    CHECK_EQ(test_inside()->ctl->reserved, 0);
    txn = test_begin(a);
    bump(txn, g, 1);
    CHECK_OK(pn_txn_prepare(txn));
    CHECK(test_inside()->ctl->reserved >= PN_ENTRY_HEADER);
    pn_txn_abort(txn);
    CHECK_EQ(value(g), 3);
    CHECK_EQ(test_inside()->ctl->reserved, 0);
    done();
}

/* ---- the queue ------------------------------------------------------------------------------- */

static char page[8000];

/* Full, with `b` as the laggard. */
static void fill_up(void)
{
    memset(page, 'x', sizeof page);
    test_listen(b, "c");
    while (pn_notify(a, "c", 1, page, sizeof page) >= 0)
        ;
    int rc;
    while ((rc = pn_notify(a, "c", 1, "", 0)) >= 0) /* what is left of the last page */
        ;
    CHECK_EQ(rc, -PN_EQUEUEFULL);
}

static void test_full_queue(void)
{
    pn_batch *batch = pn_batch_new();
    two_connections();
    uint32_t g = counter(a, "g"), h = counter(a, "h");
    fill_up();
    CHECK_EQ(pn_bump(a, g), -PN_EQUEUEFULL);
    pn_txn *txn = test_begin(a);
    bump(txn, g, 3);
    bump(txn, h, 3);
    CHECK_EQ(pn_txn_commit(txn), -PN_EQUEUEFULL);
    CHECK_EQ(value(g), 0);
    CHECK_EQ(value(h), 0);
    CHECK_OK(pn_poll(b, batch, 0));
    CHECK_OK(pn_bump(a, g));
    CHECK_EQ(value(g), 1);
    pn_batch_free(batch);
    done();
}

/* Wherever they are put, also with page borders between them. */
static void test_prepared_bumps_fit(void)
{
    enum { COUNTERS = 200 }; /* more than a page of them */
    pn_batch *batch = pn_batch_new();
    uint32_t g[COUNTERS];
    uint64_t committed = 0;
    two_connections();
    test_listen(b, "c");
    for (int i = 0; i < COUNTERS; i++) {
        char name[8];
        snprintf(name, sizeof name, "g%d", i);
        g[i] = counter(a, name);
    }
    for (uint32_t shift = 0; shift < 60; shift++) {
        pn_txn *txn = test_begin(a);
        for (int i = 0; i < COUNTERS; i++)
            bump(txn, g[(i * 7) % COUNTERS], 1);
        CHECK_OK(pn_txn_notify(txn, "c", 1, page, 5000));
        CHECK_OK(pn_txn_prepare(txn));
        int rc;
        do { /* fill the rest in ever other steps */
            rc = pn_notify(b, "c", 1, page, 100 + 131 * shift);
        } while (rc >= 0);
        CHECK_EQ(rc, -PN_EQUEUEFULL);
        CHECK_OK(pn_txn_commit(txn));
        committed++;
        CHECK_OK(pn_poll(b, batch, 0));
        for (int i = 0; i < COUNTERS; i++)
            CHECK_EQ(value(g[i]), committed);
        CHECK_ENGINE(engine);
    }
    pn_batch_free(batch);
    done();
}

/* More counters than an empty queue has room for. */
static void test_too_large(void)
{
    enum { COUNTERS = 10000 };
    pn_options o = test_options();
    o.max_generations = COUNTERS;
    two_connections_of(&o);
    pn_txn *txn = test_begin(a);
    for (int i = 0; i < COUNTERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "g%d", i);
        bump(txn, counter(a, name), 1);
    }
    CHECK_EQ(pn_txn_commit(txn), -PN_ETOOBIG);
    txn = test_begin(a);
    for (int i = 0; i < COUNTERS; i++) /* one counter: one entry */
        bump(txn, counter(a, "g0"), 1);
    CHECK_OK(pn_txn_commit(txn));
    CHECK_EQ(value(counter(a, "g0")), COUNTERS);
    done();
}

/* A bump alone wakes no process, whatever the signaling; and it pins nothing. */
static void test_a_bump_alone_concerns_no_process(void)
{
    for (uint32_t signaling = PN_SIGNAL_TARGETED; signaling <= PN_SIGNAL_BROADCAST; signaling++) {
        pn_options o = test_options();
        o.signaling = signaling;
        two_connections_of(&o);
        test_listen(b, "c");
        uint32_t g = counter(a, "g");
        CHECK_POLL(b, "");
        uint64_t before = test_stat(engine).slot_writes;
        for (int i = 0; i < 20000; i++) /* more than the ring has room for */
            CHECK_OK(pn_bump(a, g));
        CHECK_EQ(value(g), 20000);
        CHECK_EQ(test_stat(engine).slot_writes, before);
        CHECK((pn_load_relaxed(&b->me->pos) & PN_ASLEEP) != 0);
        CHECK_OK(test_notify(a, "c", "x"));
        CHECK_POLL(b, "x");
        done();
    }
}

/* The reader's place among entries that are no messages: partial reads, own bumps, LISTEN late. */
static void test_reading_around_bumps(void)
{
    pn_batch *batch = pn_batch_new();
    two_connections();
    test_listen(b, "c");
    uint32_t g = counter(a, "g");
    for (int i = 0; i < 6; i++) {
        char text[2] = {(char) ('0' + i), '\0'};
        pn_txn *txn = test_begin(i % 2 == 0 ? a : b);
        bump(txn, g, 1);
        CHECK_OK(pn_txn_notify(txn, "c", 1, text, 1));
        if (i == 3)
            CHECK_OK(pn_txn_listen(txn, "d", 1));
        CHECK_OK(pn_txn_commit(txn));
    }
    CHECK_EQ(pn_poll(b, batch, 1), 1);
    CHECK_EQ(pn_poll(b, batch, 2), 2);
    CHECK_EQ(batch->data[0], '1');
    CHECK_EQ(pn_poll(b, batch, 0), 3);
    CHECK_EQ(pn_poll(b, batch, 0), 0);
    test_listen(a, "c");
    CHECK_OK(pn_bump(a, g));
    CHECK_POLL(a, "");
    CHECK_OK(test_notify(a, "c", "z"));
    CHECK_POLL(a, "z");
    pn_batch_free(batch);
    done();
}

/* ---- readers and writers at once ------------------------------------------------------------- */

enum { WRITERS = 3, READERS = 2 };

static _Atomic(int) writing;
static uint32_t both[2];

/* What a transaction has bumped stands in its message, so that readers can add it up. */
struct news {
    uint32_t bumped[2];
};

static void *write_news(void *arg)
{
    uint64_t seed = (uint64_t) (uintptr_t) arg + 99;
    pn_conn *conn = test_connect(engine);
    for (int i = 0; i < TRANSACTIONS; i++) {
        struct news news;
        int rc;
        news.bumped[0] = (uint32_t) (test_random(&seed) % 3);
        news.bumped[1] = (uint32_t) (test_random(&seed) % 2);
        do {
            pn_txn *txn = test_begin(conn);
            bump(txn, both[0], (int) news.bumped[0]);
            bump(txn, both[1], (int) news.bumped[1]);
            CHECK_OK(pn_txn_notify(txn, "news", 4, &news, sizeof news));
            rc = pn_txn_commit(txn);
            if (rc == -PN_EQUEUEFULL)
                sched_yield();
        } while (rc == -PN_EQUEUEFULL);
        CHECK_OK(rc);
    }
    atomic_fetch_sub(&writing, 1);
    pn_conn_close(conn);
    return NULL;
}

/* In each round: what was read before the poll is found in it, what is found can be read after. */
static void *read_news(void *arg)
{
    pn_conn *conn = test_connect(engine);
    pn_batch *batch = pn_batch_new();
    uint64_t sum[2] = {0}, n = 0;
    test_listen(conn, "news");
    atomic_fetch_add((_Atomic(int) *) arg, 1);
    while (n < (uint64_t) WRITERS * TRANSACTIONS) {
        uint64_t before[2] = {value(both[0]), value(both[1])};
        CHECK_OK(pn_poll(conn, batch, 0));
        for (size_t i = 0; i < batch->n; i++) {
            struct news news;
            memcpy(&news, batch->data + batch->offset[i], sizeof news);
            sum[0] += news.bumped[0];
            sum[1] += news.bumped[1];
        }
        n += batch->n;
        for (int k = 0; k < 2; k++) {
            uint64_t after = value(both[k]);
            if (sum[k] < before[k] || after < sum[k])
                FAIL("counter %d: read %llu, was told of %llu, then read %llu", k,
                     (unsigned long long) before[k], (unsigned long long) sum[k],
                     (unsigned long long) after);
        }
        if (batch->n == 0) {
            int rc = pn_wait(conn, 1000000);
            CHECK(rc >= 0 || rc == -EINTR);
        }
    }
    CHECK_EQ(value(both[0]), sum[0]);
    CHECK_EQ(value(both[1]), sum[1]);
    pn_batch_free(batch);
    pn_conn_close(conn);
    return NULL;
}

static void test_readers_and_writers_at_once(void)
{
    pthread_t thread[WRITERS + READERS];
    _Atomic(int) listening = 0;
    two_connections();
    both[0] = counter(a, "g");
    both[1] = counter(a, "h");
    atomic_store(&writing, WRITERS);
    for (int i = 0; i < READERS; i++)
        CHECK_EQ(pthread_create(&thread[i], NULL, read_news, &listening), 0);
    CHECK_SOON(atomic_load(&listening) == READERS);
    for (intptr_t i = 0; i < WRITERS; i++)
        CHECK_EQ(pthread_create(&thread[READERS + i], NULL, write_news, (void *) i), 0);
    for (int i = 0; i < WRITERS + READERS; i++)
        CHECK_EQ(pthread_join(thread[i], NULL), 0);
    CHECK_EQ(atomic_load(&writing), 0);
    done();
}

/* Several threads make the same counters. */
static _Atomic(uint32_t) made[64];

static void *make_all(void *arg)
{
    pn_conn *conn = test_connect(engine);
    (void) arg;
    for (int i = 0; i < 64; i++) {
        char name[16];
        snprintf(name, sizeof name, "shared%d", i);
        uint32_t index = counter(conn, name), none = 0;
        if (!atomic_compare_exchange_strong(&made[i], &none, index + 1))
            CHECK_EQ(none, index + 1);
    }
    pn_conn_close(conn);
    return NULL;
}

static void test_made_by_several_at_once(void)
{
    pthread_t thread[4];
    two_connections();
    for (int i = 0; i < 4; i++)
        CHECK_EQ(pthread_create(&thread[i], NULL, make_all, NULL), 0);
    for (int i = 0; i < 4; i++)
        CHECK_EQ(pthread_join(thread[i], NULL), 0);
    CHECK_EQ(test_stat(engine).generations, 64);
    done();
}

/* ---- entries that cannot be ------------------------------------------------------------------ */

/* An entry as from a scribbled queue, committed and announced but for what it bumps. */
static void forge(pn_conn *conn, enum pn_entry_kind kind, uint32_t index, uint64_t to)
{
    struct pn_segment *seg = test_inside();
    const struct pn_new_entry entry = {.kind = kind, .channel_hash = index, .chan_seq = to};
    CHECK_OK(pn_lock_acquire(seg, &test_hold, PN_LOCK_FOREVER));
    QueuePosition begin = pn_load_relaxed(&seg->ctl->head);
    const struct pn_entry_stamp stamp = {.xid = ++seg->ctl->last_xid,
                                         .now = test_now_ns(),
                                         .dboid = conn->dboid,
                                         .pid = conn->src_pid,
                                         .slot = conn->slot,
                                         .generation = conn->src_generation};
    QueuePosition end = pn_queue_append_locked(seg, begin, &stamp, &entry);
    pn_store_relaxed(&seg->ctl->head, end);
    pn_store_relaxed(&b->me->from, begin);
    pn_store_relaxed(&b->me->want, end);
    pn_store_relaxed(&seg->ctl->woken, end);
    pn_lock_release(seg);
}

static void poisoned_by(enum pn_entry_kind kind, uint32_t index, uint64_t to, const char *why)
{
    pn_batch *batch = pn_batch_new();
    two_connections();
    test_listen(b, "c");
    counter(a, "g");
    forge(a, kind, index, to);
    CHECK_EQ(pn_poll(b, batch, 0), -PN_ECORRUPT);
    CHECK(strstr(pn_error_message(), why) != NULL);
    CHECK_EQ(pn_poll(b, batch, 0), -PN_ECORRUPT);
    pn_batch_free(batch);
    pn_conn_close(a);
    pn_conn_close(b);
    pn_engine_close(engine);
}

static void test_impossible_entries_poison(void)
{
    poisoned_by(PN_ENTRY_GENERATION, 1u << 20, 1, "counter 1048576, which is not");
    poisoned_by(PN_ENTRY_GENERATION, 0, UINT64_MAX, "is behind its entries");
    poisoned_by((enum pn_entry_kind) 77, 0, 1, "unknown kind 77");
}

static void test_check_finds_what_is_wrong(void)
{
    char problems[4096];
    two_connections();
    uint32_t g = counter(a, "g");
    struct pn_generation *inside = pn_generation_at(test_inside(), g);
    CHECK_OK(pn_bump(a, g));
    CHECK_OK(pn_bump(a, g));
    pn_store_relaxed(&inside->value, 1);
    CHECK_EQ(pn_check(engine, problems, sizeof problems), 1);
    CHECK(strstr(problems, "I18: counter") != NULL);
    CHECK_OK(pn_bump(a, g)); /* as after it: 2 once more */
    CHECK_EQ(pn_check(engine, problems, sizeof problems), 1);
    CHECK(strstr(problems, "I18: commit") != NULL);
    CHECK_OK(pn_bump(a, g));
    inside->name[0] ^= 1;
    CHECK(pn_check(engine, problems, sizeof problems) > 0);
    CHECK(strstr(problems, "I17: counter") != NULL);
    inside->name[0] ^= 1;
    test_inside()->ctl->generations_used = 9;
    CHECK(pn_check(engine, problems, sizeof problems) > 0);
    CHECK(strstr(problems, "9") != NULL);
    pn_conn_close(a);
    pn_conn_close(b);
    pn_engine_close(engine);
}

int main(void)
{
    RUN(test_a_name_is_a_counter);
    RUN(test_when_a_counter_changed);
    RUN(test_names_follow_the_rule_for_channels);
    RUN(test_databases_do_not_share_them);
    RUN(test_full_table);
    RUN(test_a_database_with_counters_is_not_forgotten);
    RUN(test_looking_up_needs_no_lock);
    RUN(test_bumps_take_effect_at_commit);
    RUN(test_savepoints);
    RUN(test_savepoints_at_random);
    RUN(test_prepare);
    RUN(test_full_queue);
    RUN(test_prepared_bumps_fit);
    RUN(test_too_large);
    RUN(test_a_bump_alone_concerns_no_process);
    RUN(test_reading_around_bumps);
    RUN(test_readers_and_writers_at_once);
    RUN(test_made_by_several_at_once);
    RUN(test_impossible_entries_poison);
    RUN(test_check_finds_what_is_wrong);
    return tests_done();
}
