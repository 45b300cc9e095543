/* Threads: on one connection, on connections of one process, at one engine.  For TSan above all. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "engine.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { ROUNDS = 200 };
#else
enum { ROUNDS = 2000 };
#endif
#if defined(__SANITIZE_THREAD__)
enum { UNDER_TSAN = 1 };
#else
enum { UNDER_TSAN = 0 };
#endif
enum { THREADS = 8, BURST = 5 };

static pn_engine *engine;
static pn_conn *shared_conn;
static _Atomic(int) started, finished, received, sent, stop;

static void in_threads(int n, void *(*body)(void *) )
{
    pthread_t thread[32];
    atomic_store(&finished, 0);
    atomic_store(&started, 0);
    atomic_store(&stop, 0);
    atomic_store(&sent, 0);
    atomic_store(&received, 0);
    for (intptr_t i = 0; i < n; i++)
        CHECK_EQ(pthread_create(&thread[i], NULL, body, (void *) i), 0);
    for (int i = 0; i < n; i++)
        CHECK_EQ(pthread_join(thread[i], NULL), 0);
}

/* All begin together. */
static void meet(int n)
{
    atomic_fetch_add(&started, 1);
    while (atomic_load(&started) < n)
        sched_yield();
}

static void toggle(pn_conn *conn, int me, int round)
{
    char name[16];
    int len = snprintf(name, sizeof name, "own%d", (me + round) % 4);
    pn_txn *txn = test_begin(conn);
    CHECK_OK(round % 2 == 0 ? pn_txn_listen(txn, name, (size_t) len)
                            : pn_txn_unlisten(txn, name, (size_t) len));
    CHECK_OK(pn_txn_notify(txn, name, (size_t) len, "x", 1));
    CHECK_OK(pn_txn_commit(txn));
}

static int send_all(pn_conn *conn, int me, int round)
{
    char payload[32];
    int len = snprintf(payload, sizeof payload, "%d %d", me, round), rc;
    while ((rc = pn_notify(conn, "all", 3, payload, (size_t) len)) == -PN_EQUEUEFULL)
        sched_yield();
    CHECK_OK(rc);
    return atomic_fetch_add(&sent, 1);
}

static int count_all(pn_conn *conn, const pn_batch *batch)
{
    int n = 0;
    for (size_t i = 0; i < batch->n; i++) {
        size_t len;
        n += strcmp(pn_conn_channel(conn, batch->channel[i], &len), "all") == 0;
    }
    return n;
}

/* ---- eight threads on one connection --------------------------------------------------------- */

static void *everything_on_one(void *arg)
{
    int me = (int) (intptr_t) arg;
    pn_conn *conn = shared_conn;
    pn_batch *batch = pn_batch_new();
    char text[512];
    uint32_t channels[8];
    double usage;
    meet(THREADS);
    for (int i = 0; i < ROUNDS; i++) {
        switch (me % 4) {
        case 0:
            send_all(conn, me, i);
            break;
        case 1:
            CHECK_OK(pn_poll(conn, batch, i % 3 == 0 ? 0 : 2));
            atomic_fetch_add(&received, count_all(conn, batch));
            break;
        case 2: {
            int rc = pn_wait(conn, 1000000);
            CHECK(rc >= 0 || rc == -EINTR);
            CHECK(pn_fileno(conn) >= 0);
            break;
        }
        default:
            toggle(conn, me, i);
            CHECK_OK(pn_conn_listening(conn, channels, 8));
            pn_conn_notice(conn, text, sizeof text);
            if (i % 50 == 0)
                CHECK_OK(pn_queue_usage(engine, &usage));
        }
    }
    pn_batch_free(batch);
    return NULL;
}

static void test_eight_threads_on_one_connection(void)
{
    pn_batch *batch = pn_batch_new();
    engine = test_engine(NULL);
    shared_conn = test_connect(engine);
    test_listen(shared_conn, "all");
    in_threads(THREADS, everything_on_one);
    while (pn_poll(shared_conn, batch, 0) > 0)
        atomic_fetch_add(&received, count_all(shared_conn, batch));
    CHECK_EQ(atomic_load(&received), atomic_load(&sent));
    CHECK_EQ(atomic_load(&sent), 2 * ROUNDS);
    CHECK_ENGINE(engine);
    pn_conn_close(shared_conn);
    pn_engine_close(engine);
    pn_batch_free(batch);
}

/* Some wait, some write; every message is taken by one of them, and none waits for the timer. */
static void *waiters_and_writers(void *arg)
{
    int me = (int) (intptr_t) arg;
    pn_batch *batch = pn_batch_new();
    meet(THREADS);
    if (me < 4) {
        for (int i = 0; i < ROUNDS; i++)
            send_all(shared_conn, me, i);
        if (atomic_fetch_add(&finished, 1) == 3)
            for (int i = 0; i < 4; i++) /* the waiters leave */
                CHECK_OK(pn_notify(shared_conn, "all", 3, NULL, 0));
    }
    while (me >= 4 && atomic_load(&stop) == 0) {
        int rc = pn_wait(shared_conn, 50000000);
        CHECK(rc >= 0 || rc == -EINTR);
        int64_t n = pn_poll(shared_conn, batch, me == 4 ? 1 : 0);
        CHECK_OK(n);
        if (atomic_fetch_add(&received, (int) n) + (int) n == 4 * ROUNDS + 4)
            atomic_store(&stop, 1);
    }
    pn_batch_free(batch);
    return NULL;
}

static void test_waiters_and_writers_on_one_connection(void)
{
    engine = test_engine(NULL);
    shared_conn = test_connect(engine);
    test_listen(shared_conn, "all");
    in_threads(THREADS, waiters_and_writers);
    CHECK_EQ(atomic_load(&received), 4 * ROUNDS + 4);
    pn_conn_close(shared_conn);
    pn_engine_close(engine);
}

/* ---- a connection for each thread, in one process -------------------------------------------- */

static pn_conn *of_thread[THREADS];

static void *one_each(void *arg)
{
    int me = (int) (intptr_t) arg, got = 0, last[THREADS];
    pn_conn *conn = of_thread[me];
    pn_batch *batch = pn_batch_new();
    memset(last, 0xff, sizeof last);
    meet(THREADS);
    for (int i = 0; i < ROUNDS / 4; i++) {
        for (int k = 0; k < BURST; k++)
            send_all(conn, me, i * BURST + k);
        toggle(conn, me, i);
        CHECK_OK(pn_wait(conn, -1) == -EINTR ? 0 : 1);
        int64_t n = pn_poll(conn, batch, i % 2 == 0 ? 0 : 7);
        CHECK_OK(n);
        got += count_all(conn, batch);
    }
    while (got < THREADS * (ROUNDS / 4) * BURST) {
        int rc = pn_wait(conn, -1);
        CHECK(rc >= 0 || rc == -EINTR);
        CHECK_OK(pn_poll(conn, batch, 0));
        for (size_t i = 0; i < batch->n; i++) {
            int sender, number;
            char text[32] = "";
            size_t len = (size_t) (batch->offset[i + 1] - batch->offset[i]);
            memcpy(text, batch->data + batch->offset[i], len < 31 ? len : 31);
            if (sscanf(text, "%d %d", &sender, &number) != 2)
                continue;
            CHECK(sender >= 0 && sender < THREADS && number > last[sender]);
            last[sender] = number;
        }
        got += count_all(conn, batch);
    }
    atomic_fetch_add(&received, got);
    pn_batch_free(batch);
    return NULL;
}

static void test_eight_connections_in_one_process(void)
{
    pn_options o = test_options();
    o.queue_pages = 1024; /* a thread that waits for its turn must not fill the queue for all */
    engine = test_engine(&o);
    for (int i = 0; i < THREADS; i++) {
        of_thread[i] = test_connect(engine);
        test_listen(of_thread[i], "all");
    }
    in_threads(THREADS, one_each);
    CHECK_EQ(atomic_load(&received), THREADS * THREADS * (ROUNDS / 4) * BURST);
    CHECK_ENGINE(engine);
    for (int i = 0; i < THREADS; i++)
        pn_conn_close(of_thread[i]);
    pn_engine_close(engine);
}

/* ---- opening and closing among others that send ---------------------------------------------- */

static const char *name;

static void *come_and_go(void *arg)
{
    int me = (int) (intptr_t) arg;
    pn_batch *batch = pn_batch_new();
    meet(THREADS);
    for (int i = 0; i < ROUNDS / 10; i++) {
        pn_engine *mine;
        pn_conn *conn;
        CHECK_OK(pn_open(name, NULL, &mine));
        CHECK_OK(pn_connect(mine, "db", 2, 0, NULL, &conn));
        test_listen(conn, "all");
        if (me % 2 == 0)
            CHECK(pn_fileno(conn) >= 0);
        send_all(conn, me, i);
        CHECK_OK(pn_poll(conn, batch, 0));
        CHECK(batch->n >= 1);
        int rc = pn_wait(conn, 10000);
        CHECK(rc >= 0 || rc == -EINTR);
        pn_engine_close(mine); /* the connection keeps the segment */
        CHECK_OK(test_notify(conn, "all", "still there"));
        pn_conn_close(conn);
    }
    pn_batch_free(batch);
    return NULL;
}

static void test_engines_and_connections_come_and_go(void)
{
    pn_options o = test_options();
    pn_engine *keep;
    name = test_segment_name();
    CHECK_OK(pn_open(name, &o, &keep));
    in_threads(THREADS, come_and_go);
    CHECK_EQ(test_stat(keep).backends, 0);
    CHECK_ENGINE(keep);
    pn_engine_close(keep);
    in_threads(THREADS, come_and_go); /* and mapped and unmapped all the time */
    CHECK_OK(pn_open(name, NULL, &keep));
    CHECK_EQ(test_stat(keep).backends, 0);
    CHECK_ENGINE(keep);
    pn_engine_close(keep);
}

/* ---- fork while other threads work ----------------------------------------------------------- */

static void *work_until_stopped(void *arg)
{
    int me = (int) (intptr_t) arg;
    pn_batch *batch = pn_batch_new();
    pn_conn *conn = of_thread[me];
    for (int i = 0; atomic_load(&stop) == 0; i++) {
        send_all(conn, me, i);
        CHECK_OK(pn_poll(conn, batch, 0));
        int rc = pn_wait(conn, 10000);
        CHECK(rc >= 0 || rc == -EINTR);
        toggle(conn, me, i);
    }
    pn_batch_free(batch);
    return NULL;
}

static void in_child(void *arg)
{
    (void) arg;
    pn_conn *conn = test_connect(engine);
    test_listen(conn, "all");
    CHECK_OK(test_notify(conn, "all", "from a child"));
    CHECK_OK(pn_wait(conn, -1) == 1 ? 0 : -1);
    CHECK_EQ(pn_notify(of_thread[0], "all", 3, "x", 1), -PN_EFORKED);
    pn_conn_close(of_thread[0]);
    pn_conn_close(conn);
}

static void test_fork_among_threads(void)
{
    pthread_t thread[3];
    pn_options o = test_options();
    o.queue_pages = 1024;
    engine = test_engine(&o);
    atomic_store(&stop, 0);
    for (int i = 0; i < 3; i++) {
        of_thread[i] = test_connect(engine);
        test_listen(of_thread[i], "all");
    }
    for (intptr_t i = 0; i < 3; i++)
        CHECK_EQ(pthread_create(&thread[i], NULL, work_until_stopped, (void *) i), 0);
    for (int i = 0; i < 20; i++)
        CHECK_CHILD(spawn(in_child, NULL), 0);
    atomic_store(&stop, 1);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(pthread_join(thread[i], NULL), 0);
    CHECK_EQ(test_stat(engine).backends, 3);
    CHECK_ENGINE(engine);
    for (int i = 0; i < 3; i++)
        pn_conn_close(of_thread[i]);
    pn_engine_close(engine);
}

int main(void)
{
    test_watchdog(115);
    RUN(test_eight_threads_on_one_connection);
    RUN(test_waiters_and_writers_on_one_connection);
    RUN(test_eight_connections_in_one_process);
    RUN(test_engines_and_connections_come_and_go);
    if (!UNDER_TSAN) /* it does not follow a fork of a process with threads */
        RUN(test_fork_among_threads);
    return tests_done();
}
