/* test_topic_procs.c - topics between processes: which gets what, which is woken, which dies. */
#include "topics.h"

#include <sched.h>

#include "topic/consume.h"

enum { WORKERS = 3 };

static pn_engine *engine;
static pn_conn *conn;
static pn_ref topic, channel;

/* Shared with the children. */
static struct {
    pn_consumer_options options;
    int go[2], done[2];
    volatile int got[WORKERS];
    volatile uint64_t id;
    volatile int64_t at;
} *shared;

static void open_scene(void)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    CHECK_EQ(pipe(shared->go), 0);
    CHECK_EQ(pipe(shared->done), 0);
    engine = test_engine(NULL);
    conn = test_connect(engine);
    topic = topic_of(conn, "t");
    channel = channel_of(conn, topic, "c");
}

static void close_scene(void)
{
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
    for (int i = 0; i < 2; i++) {
        close(shared->go[i]);
        close(shared->done[i]);
    }
    munmap(shared, sizeof *shared);
}

/* A child's own consumer, opened; the parent hears of it. */
static pn_consumer *child_consumer(pn_conn **mine)
{
    *mine = test_connect(engine);
    pn_consumer *c = consumer_with(*mine, channel, &shared->options);
    test_tell(shared->done);
    return c;
}

static int get_patiently(pn_consumer *c, pn_message_out *m)
{
    int rc;
    do
        rc = pn_consumer_get(c, TEST_PATIENCE_MS * MS, m);
    while (rc == -EINTR);
    return rc;
}

/* ---- one consumer each ----------------------------------------------------------------------- */

static void work(void *arg)
{
    int worker = (int) (intptr_t) arg;
    pn_conn *mine;
    pn_consumer *c = child_consumer(&mine);
    pn_message_out m;
    for (;;) {
        CHECK_EQ(get_patiently(c, &m), 1);
        bool last = m.body_len == 3;
        FINISH(mine, &m);
        if (last)
            break;
        shared->got[worker]++;
    }
    CHECK_OK(pn_consumer_close(c));
    pn_conn_close(mine);
}

static void test_each_message_goes_to_one_of_them(void)
{
    pid_t pid[WORKERS];
    int got = 0;
    open_scene();
    shared->options = (pn_consumer_options) {.max_in_flight = 4};
    for (int i = 0; i < WORKERS; i++)
        pid[i] = spawn(work, (void *) (intptr_t) i);
    for (int i = 0; i < WORKERS; i++)
        test_hear(shared->done);
    for (int i = 0; i < 3000; i++)
        publish(conn, topic, "x");
    CHECK_SOON(channel_stat(conn, channel).finished == 3000);
    for (int i = 0; i < WORKERS; i++)
        publish(conn, topic, "end");
    for (int i = 0; i < WORKERS; i++) {
        CHECK_CHILD(pid[i], 0);
        got += shared->got[i];
    }
    CHECK_EQ(got, 3000);
    CHECK_DEPTHS(conn, channel, 0, 0, 0);
    close_scene();
}

/* ---- waking ---------------------------------------------------------------------------------- */

static void get_one_message(void *arg)
{
    pn_conn *mine;
    pn_consumer *c = child_consumer(&mine);
    pn_message_out m;
    (void) arg;
    CHECK_EQ(get_patiently(c, &m), 1);
    shared->at = test_now_ns();
    shared->id = m.id;
    FINISH(mine, &m);
    CHECK_OK(pn_consumer_close(c));
    pn_conn_close(mine);
}

static bool sleeps(void)
{
    const struct pn_segment *seg = test_inside();
    for (uint32_t i = 0; i < seg->topics.max_consumers; i++)
        if (seg->topics.consumer[i].state == PN_RECORD_USED &&
            seg->topics.consumer[i].wait == PN_CONSUMER_WAITING)
            return true;
    return false;
}

static void test_a_sleeper_is_woken(void)
{
    open_scene();
    shared->options = (pn_consumer_options) {.max_in_flight = 1};
    pid_t pid = spawn(get_one_message, NULL);
    CHECK_SOON(sleeps());
    uint64_t id = publish(conn, topic, "x");
    CHECK_CHILD(pid, 0);
    CHECK_EQ(shared->id, id);
    close_scene();
}

static void test_a_deferred_message_wakes_a_sleeper_when_it_is_due(void)
{
    open_scene();
    shared->options = (pn_consumer_options) {.max_in_flight = 1};
    pid_t pid = spawn(get_one_message, NULL);
    CHECK_SOON(sleeps());
    int64_t before = test_now_ns();
    CHECK_OK(publish_in(conn, NULL, topic, "x", 50 * MS, 0, NULL));
    CHECK_CHILD(pid, 0);
    CHECK(shared->at >= before + 50 * MS);
    printf("#  fired %.3f ms late\n", (double) (shared->at - before - 50 * MS) / 1e6);
    close_scene();
}

static void test_deleting_the_channel_ends_a_sleep(void)
{
    open_scene();
    shared->options = (pn_consumer_options) {.max_in_flight = 1};
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        pn_message_out m;
        pn_conn *mine;
        pn_consumer *c = child_consumer(&mine);
        int rc = get_patiently(c, &m);
        pn_consumer_close(c);
        pn_conn_close(mine);
        _exit(rc == -PN_ETOPICDELETED ? 0 : 1);
    }
    CHECK_SOON(sleeps());
    CHECK_OK(pn_topic_channel_delete(conn, channel));
    CHECK_CHILD(pid, 0);
    close_scene();
}

/* ---- death ----------------------------------------------------------------------------------- */

static void get_two_and_die(void *arg)
{
    pn_conn *mine;
    pn_consumer *c = child_consumer(&mine);
    pn_message_out m;
    (void) arg;
    GET(c, &m, "1");
    GET(c, &m, "2");
    test_tell(shared->done);
    for (;;)
        pause(); /* a late signal ends it */
}

static void test_what_a_dead_one_had_goes_back_in_order_at_once(void)
{
    pn_message_out m;
    open_scene();
    shared->options = (pn_consumer_options) {.max_in_flight = 3};
    pid_t pid = spawn(get_two_and_die, NULL);
    test_hear(shared->done);
    publish(conn, topic, "1");
    publish(conn, topic, "2");
    test_hear(shared->done);
    publish(conn, topic, "3");
    pn_consumer *c = consumer_of(conn, channel, 4);
    GET(c, &m, "3");
    kill(pid, SIGKILL);
    CHECK_KILLED(pid, SIGKILL);
    GET(c, &m, "1"); /* its deadline is in a minute */
    CHECK_EQ(m.attempts, 2);
    GET(c, &m, "2");
    CHECK_EQ(channel_stat(conn, channel).timed_out, 0);
    CHECK_EQ(channel_stat(conn, channel).requeued, 0);
    CHECK_OK(pn_consumer_close(c));
    close_scene();
}

static void test_a_sleeper_notices_a_death(void)
{
    open_scene();
    shared->options = (pn_consumer_options) {.max_in_flight = 3};
    pid_t victim = spawn(get_two_and_die, NULL);
    test_hear(shared->done);
    publish(conn, topic, "1");
    publish(conn, topic, "2");
    test_hear(shared->done);
    shared->options.max_in_flight = 1;
    pid_t pid = spawn(get_one_message, NULL);
    test_hear(shared->done);
    CHECK_SOON(sleeps());
    kill(victim, SIGKILL);
    CHECK_KILLED(victim, SIGKILL);
    CHECK_CHILD(pid, 0); /* no other looks */
    close_scene();
}

static void prepare_and_die(void *arg)
{
    pn_conn *mine;
    pn_consumer *c = child_consumer(&mine);
    pn_message_out m;
    (void) arg;
    GET(c, &m, "1");
    pn_txn *txn = test_begin(mine);
    CHECK_OK(answer(mine, txn, &m, PN_ANSWER_FINISH, 0));
    CHECK_OK(publish_in(mine, txn, topic, "never", 0, 0, NULL));
    CHECK_OK(pn_txn_prepare(txn));
    test_tell(shared->done);
    for (;;)
        pause(); /* a late signal ends it */
}

/* While that is not 0, all cells are looked at whenever a backend is reaped. */
static uint32_t kept_for_prepared(void)
{
    return test_inside()->topics.ctl->prepared;
}

static void test_what_a_dead_one_had_prepared_did_not_happen(void)
{
    pn_message_out m;
    open_scene();
    shared->options = (pn_consumer_options) {.max_in_flight = 1};
    publish(conn, topic, "1");
    pid_t pid = spawn(prepare_and_die, NULL);
    test_hear(shared->done);
    test_hear(shared->done);
    pn_consumer *c = consumer_of(conn, channel, 4);
    NOTHING(c);
    kill(pid, SIGKILL);
    CHECK_KILLED(pid, SIGKILL);
    GET(c, &m, "1");
    NOTHING(c);
    CHECK_EQ(topic_stat(conn, topic).unfinished, 1);
    CHECK_EQ(kept_for_prepared(), 0);
    CHECK_OK(pn_consumer_close(c));
    close_scene();
}

static void hold_and_die(void *arg)
{
    pn_conn *mine = test_connect(engine);
    pn_txn *txn = test_begin(mine);
    CHECK_OK(answer(mine, txn, arg, PN_ANSWER_FINISH, 0));
    CHECK_OK(pn_txn_prepare(txn));
    raise(SIGKILL);
}

static void test_what_a_dead_one_held_of_ours_is_ours_again(void)
{
    pn_message_out m, gone;
    pn_stat stat;
    open_scene();
    pn_consumer *c = consumer_of(conn, channel, 2), *other = consumer_of(conn, channel, 1);
    publish(conn, topic, "1");
    GET(c, &m, "1");
    publish(conn, topic, "2");
    GET(other, &gone, "2");
    CHECK_KILLED(spawn(hold_and_die, &m), SIGKILL);
    CHECK_KILLED(spawn(hold_and_die, &gone), SIGKILL);
    CHECK_OK(pn_consumer_close(other));
    CHECK_DEPTHS(conn, channel, 0, 2, 0);
    NOTHING(c);
    CHECK_OK(pn_engine_stat(engine, &stat, NULL, 0)); /* it looks for the dead */
    CHECK_EQ(kept_for_prepared(), 0);
    CHECK_DEPTHS(conn, channel, 1, 1, 0);
    FINISH(conn, &m);
    GET(c, &m, "2");
    CHECK_EQ(m.attempts, 2);
    FINISH(conn, &m);
    CHECK_OK(pn_consumer_close(c));
    close_scene();
}

static void test_a_limit_of_consumers_does_not_count_the_dead(void)
{
    pn_ref limited;
    open_scene();
    CHECK_OK(pn_topic_channel_open(conn, topic, "limited", 7, 1, &limited));
    channel = limited;
    shared->options = (pn_consumer_options) {.max_in_flight = 3};
    pid_t pid = spawn(get_two_and_die, NULL);
    test_hear(shared->done);
    pn_consumer *c;
    CHECK_EQ(pn_consumer_open(conn, limited, NULL, &c), -PN_ECONSUMERS);
    kill(pid, SIGKILL);
    CHECK_KILLED(pid, SIGKILL);
    CHECK_OK(pn_consumer_open(conn, limited, NULL, &c));
    CHECK_OK(pn_consumer_close(c));
    close_scene();
}

/* ---- signals of the program's own ------------------------------------------------------------ */

static volatile sig_atomic_t told_to_end;

static void note_end(int signo)
{
    (void) signo;
    told_to_end = 1;
}

static void get_until_told(void *arg)
{
    (void) arg;
    const struct sigaction sa = {.sa_handler = note_end};
    pn_conn *mine;
    pn_message_out m;
    CHECK_EQ(sigaction(SIGTERM, &sa, NULL), 0);
    pn_consumer_slow_ns = INT64_C(3600000000000);
    pn_consumer *c = child_consumer(&mine);
    while (!told_to_end)
        CHECK_EQ(pn_consumer_get(c, -1, &m), -EINTR);
    CHECK_OK(pn_consumer_close(c));
    pn_conn_close(mine);
}

static bool waits(uint32_t slot)
{
    return pn_slot_watches(&test_inside()->backend[slot]);
}

/* One sleep is ended by both, and no message is there. */
static void test_a_signal_that_comes_with_one_of_ours_is_not_lost(void)
{
    open_scene();
    shared->options = (pn_consumer_options) {.max_in_flight = 1};
    pid_t pid = spawn(get_until_told, NULL);
    test_hear(shared->done);
    CHECK_SOON(waits(1) && is_blocked(pid));
    kill(pid, SIGSTOP);
    CHECK_EQ(waitpid(pid, NULL, WUNTRACED), pid);
    pn_conn *newcomer = test_connect(engine);
    CHECK_EQ(test_inside()->backend[1].pss_signalFlags[PROCSIG_NEIGHBOUR], 1);
    kill(pid, SIGTERM);
    kill(pid, SIGCONT);
    CHECK_CHILD(pid, 0);
    pn_conn_close(newcomer);
    close_scene();
}

/* It looks every few milliseconds, and a signal may come in between. */
static void test_a_poller_returns_now_and_then(void)
{
    open_scene();
    shared->options = (pn_consumer_options) {.max_in_flight = 1};
    pn_conn *mine;
    pn_message_out m;
    CHECK_OK(pn_connect(engine, "db", 2, -1, NULL, &mine));
    pn_consumer *c = consumer_with(mine, channel, &shared->options);
    CHECK_EQ(pn_consumer_get(c, -1, &m), -EINTR);
    CHECK_EQ(pn_wait(mine, -1), -EINTR);
    CHECK_OK(pn_consumer_close(c));
    pn_conn_close(mine);
    close_scene();
}

int main(void)
{
    test_watchdog(100);
    RUN(test_each_message_goes_to_one_of_them);
    RUN(test_a_sleeper_is_woken);
    RUN(test_a_deferred_message_wakes_a_sleeper_when_it_is_due);
    RUN(test_deleting_the_channel_ends_a_sleep);
    RUN(test_what_a_dead_one_had_goes_back_in_order_at_once);
    RUN(test_a_sleeper_notices_a_death);
    RUN(test_what_a_dead_one_had_prepared_did_not_happen);
    RUN(test_what_a_dead_one_held_of_ours_is_ours_again);
    RUN(test_a_limit_of_consumers_does_not_count_the_dead);
    RUN(test_a_signal_that_comes_with_one_of_ours_is_not_lost);
    RUN(test_a_poller_returns_now_and_then);
    return tests_done();
}
