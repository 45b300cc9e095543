/* What language bindings and event loops build on: two sets of channels, never waiting, kicks. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "pair.h"

#include <fcntl.h>
#include <pthread.h>

#include "base/os.h"
#include "wakeup/send.h"
#include "queue/queue.h"

/* ---- LISTEN and SUBSCRIBE -------------------------------------------------------------------- */

static void subscribe(pn_conn *conn, const char *channel)
{
    pn_txn *txn = test_begin(conn);
    CHECK_OK(pn_txn_subscribe(txn, channel, strlen(channel)));
    CHECK_OK(pn_txn_commit(txn));
}

static void unsubscribe(pn_conn *conn, const char *channel)
{
    pn_txn *txn = test_begin(conn);
    CHECK_OK(pn_txn_unsubscribe(txn, channel, strlen(channel)));
    CHECK_OK(pn_txn_commit(txn));
}

/* The routes of what one poll returns, a digit each. */
#define CHECK_ROUTES(conn, want) check_routes(__LINE__, conn, want)
static void check_routes(int line, pn_conn *conn, const char *want)
{
    char got[64] = "";
    pn_batch *batch = pn_batch_new();
    CHECK_OK(pn_poll(conn, batch, 0));
    CHECK(batch->n < sizeof got);
    for (size_t i = 0; i < batch->n; i++)
        got[i] = (char) ('0' + batch->routes[i]);
    pn_batch_free(batch);
    if (strcmp(got, want) != 0)
        FAIL("line %d: routes \"%s\", not \"%s\"", line, got, want);
}

static void test_each_route_is_owed_from_its_own_commit_on(void)
{
    two_connections();
    test_listen(a, "c");
    CHECK_OK(test_notify(b, "c", "1"));
    subscribe(a, "c");
    CHECK_EQ(test_stat(engine).subscriptions, 1); /* one in shared memory, for both */
    CHECK_OK(test_notify(b, "c", "2"));
    CHECK_ROUTES(a, "13");
    CHECK_OK(test_notify(b, "c", "3"));
    test_unlisten(a, "c"); /* what was not read by then is owed to the other route alone */
    CHECK_OK(test_notify(b, "c", "4"));
    CHECK_ROUTES(a, "22");
    CHECK_EQ(pn_conn_listening(a, NULL, 0), 0);
    test_listen(a, "c");
    CHECK_OK(test_notify(b, "c", "5"));
    unsubscribe(a, "c");
    CHECK_OK(test_notify(b, "c", "6"));
    CHECK_ROUTES(a, "11");
    unsubscribe(a, "c"); /* twice is no error */
    test_unlisten(a, "c");
    CHECK_OK(test_notify(b, "c", "7"));
    CHECK_ROUTES(a, "");
    done();
}

static void test_unlisten_all_leaves_subscriptions_alone(void)
{
    two_connections();
    subscribe(a, "s");
    test_listen(a, "l");
    subscribe(a, "l");
    pn_txn *txn = test_begin(a);
    CHECK_OK(pn_txn_listen(txn, "m", 1));
    CHECK_OK(pn_txn_unlisten_all(txn));
    CHECK_OK(pn_txn_commit(txn));
    CHECK_EQ(pn_conn_listening(a, NULL, 0), 0);
    CHECK_OK(test_notify(b, "s", "1"));
    CHECK_OK(test_notify(b, "l", "2"));
    CHECK_OK(test_notify(b, "m", "3"));
    CHECK_ROUTES(a, "22");
    done();
}

/* From one route to the other in one transaction: the subscription stays, nothing is missed. */
static void test_changing_the_route(void)
{
    two_connections();
    test_listen(a, "c");
    pn_txn *txn = test_begin(a);
    CHECK_OK(pn_txn_unlisten(txn, "c", 1));
    CHECK_OK(pn_txn_subscribe(txn, "c", 1));
    CHECK_OK(pn_txn_notify(txn, "c", 1, "1", 1));
    CHECK_OK(pn_txn_commit(txn));
    CHECK_OK(test_notify(b, "c", "2"));
    CHECK_ROUTES(a, "22");
    txn = test_begin(a); /* prepared: every LISTEN is staged, whichever comes first */
    CHECK_OK(pn_txn_listen(txn, "c", 1));
    CHECK_OK(pn_txn_unsubscribe(txn, "c", 1));
    CHECK_OK(pn_txn_listen(txn, "d", 1));
    CHECK_OK(pn_txn_subscribe(txn, "d", 1));
    CHECK_OK(pn_txn_prepare(txn));
    CHECK_OK(test_notify(b, "c", "3"));
    CHECK_OK(pn_txn_commit(txn));
    CHECK_EQ(test_stat(engine).subscriptions, 2);
    CHECK_OK(test_notify(b, "c", "4"));
    CHECK_OK(test_notify(b, "d", "5"));
    CHECK_ROUTES(a, "13"); /* 3 was not read by the commit of its UNSUBSCRIBE */
    done();
}

/* ---- never waiting --------------------------------------------------------------------------- */

static int up[2], down[2];

/* The lock of a stopped process: held, and not to be had. */
static void holder(void *arg)
{
    (void) arg;
    CHECK_OK(pn_lock_acquire(test_inside(), &test_hold, PN_LOCK_FOREVER));
    test_tell(up);
    test_hear(down);
    pn_lock_release(test_inside());
}

static void test_never_waiting_for_the_lock(void)
{
    two_connections();
    CHECK_EQ(pipe(up), 0);
    CHECK_EQ(pipe(down), 0);
    test_listen(a, "c");
    pn_txn *txn = test_begin(a);
    CHECK_OK(pn_txn_notify(txn, "c", 1, "1", 1));
    CHECK_OK(pn_txn_listen(txn, "d", 1));
    pid_t pid = spawn(holder, NULL);
    test_hear(up);
    CHECK_EQ(pn_set_never_wait(1), 0);
    CHECK_EQ(test_notify(b, "c", "x"), -PN_ELOCKBUSY);
    char want[32];
    snprintf(want, sizeof want, "PID %d", (int) pid);
    CHECK(strstr(pn_error_message(), want) != NULL);
    CHECK_EQ(pn_txn_commit(txn), -PN_ELOCKBUSY); /* and is still there */
    CHECK_POLL(a, "");
    test_tell(down);
    CHECK_CHILD(pid, 0);
    CHECK_EQ(pn_set_never_wait(0), 1);
    CHECK_OK(pn_txn_commit(txn));
    CHECK_OK(test_notify(b, "d", "2"));
    CHECK_POLL(a, "1 2");
    done();
}

static void test_never_waiting_for_room(void)
{
    static char payload[4000];
    pn_options o = test_options();
    o.on_full = PN_FULL_BLOCK;
    o.full_timeout_ns = 60000000000ULL;
    two_connections_of(&o);
    test_listen(a, "c");
    pn_set_never_wait(1);
    int rc;
    do
        rc = pn_notify(b, "c", 1, payload, sizeof payload);
    while (rc >= 0);
    CHECK_EQ(rc, -PN_EROOMBUSY);
    pn_txn *txn = test_begin(b);
    CHECK_OK(pn_txn_notify(txn, "c", 1, payload, sizeof payload));
    CHECK_OK(pn_txn_listen(txn, "c", 1));
    CHECK_EQ(pn_txn_prepare(txn), -PN_EROOMBUSY);
    CHECK_EQ(pn_txn_commit(txn), -PN_EROOMBUSY);
    pn_set_never_wait(0);
    pn_batch *batch = pn_batch_new();
    CHECK(pn_poll(a, batch, 0) > 0);
    CHECK_OK(pn_txn_commit(txn));
    CHECK_EQ(pn_poll(a, batch, 0), 1);
    CHECK_EQ(pn_poll(b, batch, 0), 1);
    pn_batch_free(batch);
    done();
}

/* ---- kicks ----------------------------------------------------------------------------------- */

static void *waiter(void *arg)
{
    int rc;
    do
        rc = test_wait(arg, -1);
    while (rc == -EINTR);
    CHECK_EQ(rc, 1);
    return NULL;
}

static void test_an_interruption_ends_one_wait(void)
{
    two_connections();
    test_listen(a, "c");
    pn_conn_interrupt_wait(a); /* before it waits: not lost, by a poll() neither */
    CHECK_POLL(a, "");
    CHECK_EQ(test_wait(a, -1), 1);
    CHECK_EQ(test_wait(a, 0), 0);
    for (int round = 0; round < 50; round++) { /* while it sleeps, or is about to */
        pthread_t thread;
        CHECK_EQ(pthread_create(&thread, NULL, waiter, a), 0);
        if (round % 2 == 0)
            CHECK_SOON(pn_load_acquire(&a->waiters) != 0);
        pn_conn_interrupt_wait(a);
        CHECK_POLL(a, ""); /* drains the latch */
        CHECK_EQ(pthread_join(thread, NULL), 0);
    }
    struct pollfd p = {.fd = pn_fileno(a), .events = POLLIN};
    pn_conn_interrupt_wait(a); /* the wait that it was meant for has ended by itself */
    CHECK_POLL(a, "");
    CHECK_EQ(poll(&p, 1, 0), 0);
    CHECK_EQ(pn_wait(a, -1) & ~PN_NOTICE, 1);
    done();
}

/* What is marked readable is for the thread that polls: one that sleeps in pn_wait() meanwhile does
 * not take it away. */
static void test_a_post_lasts_until_the_next_poll(void)
{
    pthread_t thread;
    two_connections();
    test_listen(a, "c");
    struct pollfd p = {.fd = pn_fileno(a), .events = POLLIN};
    CHECK(p.fd >= 0);
    CHECK_EQ(poll(&p, 1, 0), 0);
    CHECK_EQ(pthread_create(&thread, NULL, waiter, a), 0);
    CHECK_SOON(pn_load_acquire(&a->waiters) != 0);
    pn_conn_mark_readable(a);
    pn_conn_interrupt_wait(a); /* its wait() drains the latch */
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(poll(&p, 1, 0), 1);
    CHECK_POLL(a, "");
    CHECK_EQ(poll(&p, 1, 0), 0);
    CHECK_OK(test_notify(b, "c", "1"));
    CHECK_EQ(poll(&p, 1, TEST_PATIENCE_MS), 1);
    CHECK_POLL(a, "1");
    CHECK_EQ(poll(&p, 1, 0), 0);
    CHECK_OK(test_notify(b, "c", "2"));
    CHECK_EQ(poll(&p, 1, TEST_PATIENCE_MS), 1);
    CHECK_OK(pn_conn_mute_fd(a)); /* and now it must not be read */
    CHECK_EQ(poll(&p, 1, 0), 0);
    pn_conn_mark_readable(a);
    CHECK_EQ(poll(&p, 1, 0), 1);
    CHECK_POLL(a, "2");
    CHECK_EQ(poll(&p, 1, 0), 0);
    CHECK_OK(test_notify(b, "c", "3")); /* armed as ever */
    CHECK_EQ(poll(&p, 1, TEST_PATIENCE_MS), 1);
    CHECK_POLL(a, "3");
    done();
}

/* ---- stacks ---------------------------------------------------------------------------------- */

static volatile sig_atomic_t printed;

static void print(int signo)
{
    printed = signo;
}

static void asked(void *arg)
{
    (void) arg;
    struct sigaction mine = {.sa_handler = print}, now;
    CHECK_EQ(pn_keep_disposition(SIGRTMAX), 0);
    CHECK_EQ(sigaction(SIGRTMAX, &mine, NULL), 0);
    CHECK_EQ(pn_adopt_stack_printer(SIGRTMAX), 0);
    CHECK_EQ(sigaction(SIGRTMAX, NULL, &now), 0);
    CHECK(now.sa_handler == SIG_DFL); /* the program's own again */
    pn_conn *conn = test_connect(engine);
    test_listen(conn, "c");
    conn->next_timer_ns = INT64_MAX;
    test_tell(up);
    CHECK_SOON(printed == SIGRTMAX);
    CHECK_EQ(test_wait(conn, 0), 0); /* nothing to wake up for */
    test_tell(up);
    int rc;
    while ((rc = test_wait(conn, -1)) != 1)
        CHECK_EQ(rc, -EINTR);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static void test_asking_for_a_stack(void)
{
    two_connections();
    CHECK_EQ(pipe(up), 0);
    pid_t pid = spawn(asked, NULL);
    test_hear(up);
    CHECK_EQ(pn_log_stack(engine, pid), 1);
    test_hear(up);
    CHECK_EQ(pn_log_stack(engine, 1), 0);
    CHECK_EQ(test_stat(engine).wakeups_useless, 0);
    CHECK_OK(test_notify(b, "c", "end"));
    CHECK_CHILD(pid, 0);
    done();
}

/* ---- what others may have done to us --------------------------------------------------------- */

static void listens_until_end(void *arg)
{
    int rc;
    (void) arg;
    pn_conn *conn = test_connect(engine);
    test_listen(conn, "c");
    conn->next_timer_ns = INT64_MAX;
    test_tell(up);
    while ((rc = test_wait(conn, -1)) != 1)
        CHECK_EQ(rc, -EINTR);
    pn_conn_close(conn);
}

/* A scribbled signal number, and a yes of /proc that is fresh, but was about another signal. */
static void test_no_other_signal_is_sent_than_one_that_wakes(void)
{
    const int scribbled[] = {SIGKILL, SIGTERM, SIGABRT, SIGSTOP, SIGRTMIN + 7, 64 + 1, -1};
    two_connections();
    CHECK_EQ(pipe(up), 0);
    pid_t pid = spawn(listens_until_end, NULL);
    test_hear(up);
    struct QueueBackendStatus *slot = &test_inside()->backend[2];
    CHECK_EQ(slot->pid, pid);
    for (size_t i = 0; i < sizeof scribbled / sizeof scribbled[0]; i++) {
        uint64_t now = (uint64_t) pn_now_coarse_ns() & ~UINT64_C(0xff);
        pn_store_relaxed(&slot->caught_at, now | SIGUSR1);
        pn_store_relaxed(&slot->signo, scribbled[i]);
        CHECK(!pn_procsignal_send(test_inside(), 2, PROCSIG_NOTIFY_INTERRUPT));
    }
    pn_store_relaxed(&slot->signo, SIGUSR1);
    CHECK_OK(test_notify(a, "c", "end"));
    CHECK_CHILD(pid, 0);
    done();
}

/* As a thread of the parent that is in there leaves it. */
static void test_a_forked_child_does_not_wait_for_a_lock_of_its_parent(void)
{
    char text[64];
    two_connections();
    test_listen(a, "c");
    pthread_mutex_lock(&a->recv_mutex);
    pthread_mutex_lock(&a->notice_mutex);
    pid_t pid = fork();
    if (pid == 0) {
        alarm((unsigned) TEST_PATIENCE_MS / 2000);
        bool right = pn_conn_channel(a, 0, NULL) == NULL &&
                     pn_conn_notice(a, text, sizeof text) == -PN_EFORKED;
        _exit(right ? 0 : 1);
    }
    CHECK_CHILD(pid, 0);
    pthread_mutex_unlock(&a->notice_mutex);
    pthread_mutex_unlock(&a->recv_mutex);
    CHECK_STR(pn_conn_channel(a, 0, NULL), "c");
    done();
}

int main(void)
{
    test_watchdog(110);
    RUN(test_each_route_is_owed_from_its_own_commit_on);
    RUN(test_unlisten_all_leaves_subscriptions_alone);
    RUN(test_changing_the_route);
    RUN(test_never_waiting_for_the_lock);
    RUN(test_never_waiting_for_room);
    RUN(test_an_interruption_ends_one_wait);
    RUN(test_a_post_lasts_until_the_next_poll);
    RUN(test_no_other_signal_is_sent_than_one_that_wakes);
    RUN(test_a_forked_child_does_not_wait_for_a_lock_of_its_parent);
    RUN(test_asking_for_a_stack);
    return tests_done();
}
