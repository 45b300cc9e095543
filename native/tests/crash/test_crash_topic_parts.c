/*
 * The messages of a dead process's consumers go back in several holds of the lock: whatever dies in
 * between, they stand in their old order, no consumer gets one before an older one, and the rest is
 * done by each process that comes by.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "topics.h"

#include <sys/mman.h>

#include "backend/backend.h"
#include "recovery/check_topics.h"
#include "segment/lock.h"
#include "segment/liveness_files.h"
#include "topic/consume.h"
#include "topic/consumers.h"

enum { MESSAGES = 13, A_HOLD = 2, MANY = 3 * PN_TOPIC_STEPS + 1 };

static pn_engine *engine;
static pn_conn *conn;
static pn_ref topic, channel;
static pn_consumer *taker;
static int up[2], down[2];

static void publish_all(int n)
{
    for (int i = 1; i <= n; i++) {
        char text[12];
        snprintf(text, sizeof text, "%04d", i);
        publish(conn, topic, text);
    }
}

/* Two consumers of the channel, which get them by turns. */
static void victim(void *arg)
{
    pn_conn *mine = test_connect(engine);
    pn_consumer *c[2] = {consumer_of(mine, channel, 65535), consumer_of(mine, channel, 65535)};
    pn_message_out m;
    (void) arg;
    test_tell(up);
    test_hear(down);
    for (int got = 1, i = 0; got != 0 || i % 2 != 0; i++)
        CHECK((got = pn_consumer_get(c[i % 2], 0, &m)) >= 0);
    test_tell(up);
    for (;;)
        pause();
}

static pid_t start_victim(int n)
{
    pid_t pid = spawn(victim, NULL);
    test_hear(up);
    publish_all(n);
    test_tell(down);
    test_hear(up);
    return pid;
}

static void kill_process(pid_t pid)
{
    kill(pid, SIGKILL);
    CHECK_KILLED(pid, SIGKILL);
}

static void open_scene(void)
{
    CHECK_EQ(pipe(up), 0);
    CHECK_EQ(pipe(down), 0);
    engine = test_engine(NULL);
    conn = test_connect(engine);
    topic = topic_of(conn, "t");
    channel = channel_of(conn, topic, "c");
    taker = consumer_of(conn, channel, 65535);
}

static void close_scene(void)
{
    CHECK_ENGINE(engine);
    CHECK_OK(pn_consumer_close(taker));
    pn_conn_close(conn);
    pn_engine_close(engine);
    for (int i = 0; i < 2; i++) {
        close(up[i]);
        close(down[i]);
    }
}

struct death {
    const char *label;
    uint32_t nth;
    int action;
};

/* Looks for the dead, and dies itself. */
static void reaper(void *arg)
{
    const struct death *at = arg;
    pn_conn *mine = test_connect(engine);
    pn_topic_channel_stats ignored;
    CHECK_OK(pn_crash_arm(at->label, at->nth, at->action));
    CHECK_OK(pn_topic_channel_stat(mine, channel, &ignored));
    pn_conn_close(mine);
}

static const struct pn_topic_channel *inside(void)
{
    return pn_topic_channel_at(test_inside(), (uint32_t) channel - 1);
}

static void check_order(int n)
{
    pn_message_out m;
    for (int i = 1; i <= n; i++) {
        CHECK_EQ(pn_consumer_get(taker, 0, &m), 1);
        CHECK_EQ(number_in(&m), i);
        FINISH(conn, &m);
    }
    NOTHING(taker);
}

/* The taker looks for no dead process: it returns what its channel's consumers had. */
static void killed_at(const char *label)
{
    uint32_t died = 0;
    for (uint32_t nth = 1;; nth++) {
        struct death at = {label, nth, PN_CRASH_KILL};
        open_scene();
        kill_process(start_victim(MESSAGES));
        int status = reap(spawn(reaper, &at));
        bool killed = WIFSIGNALED(status);
        CHECK(killed ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0);
        check_order(MESSAGES);
        CHECK_ENGINE(engine);
        CHECK_EQ(channel_stat(conn, channel).consumers, 1);
        CHECK_EQ(inside()->leaving, 0);
        close_scene();
        if (!killed)
            break;
        died++;
    }
    CHECK(died >= 1);
}

static void test_the_reaper_is_killed_between_two_holds(void)
{
    pn_return_steps = A_HOLD;
    killed_at("topic:reap-rest");
    killed_at("topic:reap-between");
}

static void test_the_reaper_is_killed_in_a_hold(void)
{
    pn_return_steps = A_HOLD;
    killed_at("topic:leaving");
    killed_at("topic:returned");
    killed_at("topic:reaped-some");
}

static void problem(void *arg, const char *text)
{
    (void) arg;
    FAIL("between two holds: %s", text);
}

/* Stopped between two holds: what is in one of them, and what others do meanwhile. */
static void test_a_hold_returns_no_more_than_so_many(void)
{
    struct death at = {"topic:reap-rest", 1, PN_CRASH_STOP};
    struct pn_hold hold;
    int status;
    open_scene();
    kill_process(start_victim(MANY));
    pid_t pid = spawn(reaper, &at);
    CHECK_EQ(waitpid(pid, &status, WUNTRACED), pid);
    CHECK(WIFSTOPPED(status));
    CHECK_OK(pn_lock_topics(test_inside(), &hold, PN_LOCK_TIMEOUT_NS));
    CHECK_EQ(inside()->ready, PN_TOPIC_STEPS);
    CHECK_EQ(inside()->in_flight, MANY - PN_TOPIC_STEPS);
    CHECK_EQ(inside()->leaving, 2);
    pn_check_topics_locked(test_inside(), problem, NULL);
    pn_lock_release(test_inside());
    CHECK_ENGINE(engine);
    check_order(MANY);
    kill(pid, SIGCONT);
    CHECK_CHILD(pid, 0);
    close_scene();
}

static void reaper_of_all(void *arg)
{
    const struct death *at = arg;
    pn_stat ignored;
    CHECK_OK(pn_crash_arm(at->label, at->nth, at->action));
    CHECK_OK(pn_engine_stat(engine, &ignored, NULL, 0));
}

static void test_nor_does_one_that_reaps_several(void)
{
    enum { EACH = PN_TOPIC_STEPS - 10 };
    struct death at = {"topic:reap-between", 1, PN_CRASH_STOP};
    int status;
    open_scene();
    pid_t first = start_victim(EACH), second = start_victim(EACH);
    kill_process(first);
    kill_process(second);
    pid_t pid = spawn(reaper_of_all, &at);
    CHECK_EQ(waitpid(pid, &status, WUNTRACED), pid);
    CHECK(WIFSTOPPED(status));
    CHECK_EQ(inside()->ready, PN_TOPIC_STEPS);
    kill(pid, SIGCONT);
    CHECK_CHILD(pid, 0);
    CHECK_EQ(inside()->ready, 2 * EACH);
    close_scene();
}

/* A consumer of another channel, which sleeps, and so watches the others. */
static void watcher(void *arg)
{
    const struct death *at = arg;
    pn_conn *mine = test_connect(engine);
    pn_consumer *c = consumer_of(mine, channel_of(mine, topic_of(mine, "other"), "c"), 1);
    pn_message_out m;
    pn_consumer_slow_ns = INT64_MAX / 4;
    CHECK_OK(pn_crash_arm(at->label, at->nth, at->action));
    test_tell(up);
    for (;;)
        pn_consumer_get(c, -1, &m);
}

static bool sleeps(pid_t pid)
{
    const struct pn_segment *seg = test_inside();
    for (uint32_t i = 0; i < seg->topics.max_consumers; i++)
        if (pn_load_relaxed(&seg->topics.consumer[i].state) == PN_RECORD_USED &&
            seg->topics.consumer[i].pid == pid)
            return pn_load_acquire(&seg->topics.consumer[i].wait) == PN_CONSUMER_WAITING;
    return false;
}

static pid_t start_watcher(struct death *at)
{
    pid_t pid = spawn(watcher, at);
    test_hear(up);
    CHECK_SOON(sleeps(pid));
    return pid;
}

static bool has_slot(pid_t pid)
{
    for (uint32_t i = 0; i < test_inside()->max_backends; i++)
        if (pn_load_acquire(&test_inside()->backend[i].state) == PN_SLOT_CLAIMED &&
            pn_load_relaxed(&test_inside()->backend[i].pid) == pid)
            return true;
    return false;
}

/* No other process comes: the second that watched the dead one does what the first left. */
static void test_another_watcher_goes_on(void)
{
    struct death at = {"topic:reap-between", 2, PN_CRASH_KILL}, none = {"nothing", 1, 0};
    int status;
    pn_return_steps = A_HOLD;
    open_scene();
    pid_t dead = start_victim(MESSAGES);
    pid_t first = start_watcher(&at), second = start_watcher(&none);
    kill(second, SIGSTOP);
    CHECK_EQ(waitpid(second, &status, WUNTRACED), second);
    kill_process(dead);
    CHECK_KILLED(first, SIGKILL);
    CHECK(has_slot(dead));
    CHECK(inside()->leaving != 0);
    kill(second, SIGCONT);
    CHECK_SOON(!has_slot(dead));
    check_order(MESSAGES);
    kill_process(second);
    close_scene();
}

static void closer(void *arg)
{
    const struct death *at = arg;
    pn_conn *mine = test_connect(engine);
    pn_consumer *c = consumer_of(mine, channel, 65535);
    pn_message_out m;
    test_tell(up);
    test_hear(down);
    while (pn_consumer_get(c, 0, &m) == 1)
        ;
    CHECK_OK(pn_crash_arm(at->label, at->nth, at->action));
    CHECK_OK(pn_consumer_close(c));
    pn_conn_close(mine);
}

/* A consumer that closes gives back in parts as well. */
static void test_a_consumer_that_closes_is_stopped_between_two_holds(void)
{
    struct death at = {"topic:detach-between", 2, PN_CRASH_STOP};
    int status;
    pn_return_steps = A_HOLD;
    open_scene();
    pid_t pid = spawn(closer, &at);
    test_hear(up);
    publish_all(MESSAGES);
    test_tell(down);
    CHECK_EQ(waitpid(pid, &status, WUNTRACED), pid);
    CHECK(WIFSTOPPED(status));
    CHECK_EQ(inside()->ready, 2 * A_HOLD);
    check_order(MESSAGES);
    kill(pid, SIGCONT);
    CHECK_CHILD(pid, 0);
    close_scene();
}

/* It was taken for dead, and has its liveness locks again before its slot is freed. */
static void resurrected(void *arg)
{
    pn_conn *mine = test_connect(engine);
    pn_consumer *c = consumer_of(mine, channel, 65535);
    pn_message_out first, m;
    (void) arg;
    test_tell(up);
    test_hear(down);
    CHECK_EQ(pn_consumer_get(c, 0, &first), 1);
    while (pn_consumer_get(c, 0, &m) == 1)
        ;
    pn_txn *txn = test_begin(mine);
    CHECK_OK(answer(mine, txn, &first, PN_ANSWER_FINISH, 0));
    CHECK_OK(publish_in(mine, txn, topic, "last", 0, 0, NULL));
    CHECK_OK(pn_txn_prepare(txn));
    close(pn_segment_lock_file(test_inside(), mine->slot));
    test_tell(up);
    test_hear(down);
    CHECK_OK(pn_backend_keep_alive(mine));
    test_tell(up);
    test_hear(down);
    CHECK_OK(pn_txn_commit(txn));
    CHECK_OK(pn_consumer_close(c));
    pn_conn_close(mine);
}

static void test_a_process_that_is_alive_again_keeps_what_it_prepared(void)
{
    struct death at = {"topic:reap-between", 1, PN_CRASH_STOP};
    pn_message_out m;
    int status;
    pn_return_steps = A_HOLD;
    open_scene();
    pid_t pid = spawn(resurrected, NULL);
    test_hear(up);
    publish_all(MESSAGES);
    test_tell(down);
    test_hear(up);
    pid_t reaps = spawn(reaper, &at);
    CHECK_EQ(waitpid(reaps, &status, WUNTRACED), reaps);
    CHECK(WIFSTOPPED(status));
    test_tell(down);
    test_hear(up);
    kill(reaps, SIGCONT);
    CHECK_CHILD(reaps, 0);
    CHECK(has_slot(pid));
    CHECK_ENGINE(engine);
    test_tell(down);
    CHECK_CHILD(pid, 0);
    for (int i = 2; i <= MESSAGES; i++) { /* the first is finished */
        CHECK_EQ(pn_consumer_get(taker, 0, &m), 1);
        CHECK_EQ(number_in(&m), i);
        FINISH(conn, &m);
    }
    GET(taker, &m, "last");
    FINISH(conn, &m);
    NOTHING(taker);
    close_scene();
}

int main(void)
{
    test_watchdog(110);
    RUN(test_the_reaper_is_killed_between_two_holds);
    RUN(test_the_reaper_is_killed_in_a_hold);
    pn_return_steps = PN_TOPIC_STEPS;
    RUN(test_a_hold_returns_no_more_than_so_many);
    RUN(test_nor_does_one_that_reaps_several);
    RUN(test_another_watcher_goes_on);
    RUN(test_a_consumer_that_closes_is_stopped_between_two_holds);
    RUN(test_a_process_that_is_alive_again_keeps_what_it_prepared);
    return tests_done();
}
