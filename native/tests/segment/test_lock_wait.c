/* Waits for the writer lock that are left for signal handlers, and whose time that is. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "topics.h"

#include "segment/lock.h"

static pn_engine *engine;
static struct pn_segment *seg;
static pn_conn *conn;
static int to_holder[2], from_holder[2];
static struct pn_hold hold;

static void hold_it(void *arg)
{
    char word = 'h';
    CHECK_OK(pn_lock_acquire(arg, &hold, PN_LOCK_FOREVER));
    CHECK_EQ(write(from_holder[1], &word, 1), 1);
    CHECK_EQ(read(to_holder[0], &word, 1), 1);
    pn_lock_release(arg);
}

static pid_t begin_hold(void)
{
    char word;
    pid_t pid = spawn(hold_it, seg);
    CHECK_EQ(read(from_holder[0], &word, 1), 1);
    return pid;
}

static void end_hold(pid_t pid)
{
    CHECK_EQ(write(to_holder[1], "x", 1), 1);
    CHECK_CHILD(pid, 0);
}

static void begin(void)
{
    CHECK_EQ(pipe(to_holder), 0);
    CHECK_EQ(pipe(from_holder), 0);
    engine = test_engine(NULL);
    seg = test_inside();
    conn = test_connect(engine);
    pn_set_interruptible(1);
}

static void end(void)
{
    pn_forget_wait();
    pn_set_interruptible(0);
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
    for (int i = 0; i < 2; i++) {
        close(to_holder[i]);
        close(from_holder[i]);
    }
}

/* A slice is 50 ms: of 80 a call that comes back has 30 left, and is told when they are over. */
static int wait_80(const void *whose)
{
    return pn_lock_wait(seg, &hold, 80 * MS, whose);
}

static int wait_80_elsewhere(const void *whose)
{
    return pn_lock_wait(seg, &hold, 80 * MS, whose);
}

static void test_its_time_goes_on(void)
{
    begin();
    pid_t holder = begin_hold();
    CHECK_EQ(wait_80(conn), -EINTR);
    CHECK_EQ(wait_80(conn), -PN_ELOCK);
    CHECK_EQ(wait_80(conn), -EINTR); /* a new one */
    end_hold(holder);
    CHECK_OK(wait_80(conn));
    pn_lock_release(seg);
    end();
}

/* Its handler raised: what comes next has a time of its own. */
static void test_one_that_is_not_made_again(void)
{
    begin();
    pid_t holder = begin_hold();
    CHECK_EQ(wait_80(conn), -EINTR);
    pn_forget_wait();
    CHECK_EQ(wait_80(conn), -EINTR);
    end_hold(holder);
    end();
}

/* A handler's own calls, for something else or elsewhere, begin again; and then it goes on. */
static void test_others_in_between(void)
{
    begin();
    pid_t holder = begin_hold();
    CHECK_EQ(wait_80(conn), -EINTR);
    CHECK_EQ(wait_80(seg), -EINTR);
    pn_forget_wait();
    CHECK_EQ(wait_80(conn), -EINTR);
    CHECK_EQ(wait_80_elsewhere(conn), -EINTR);
    end_hold(holder);
    CHECK_OK(wait_80(seg)); /* it did not wait */
    pn_lock_release(seg);
    end();
}

static int repair_nothing(struct pn_segment *s, bool all)
{
    (void) s, (void) all;
    return 0;
}

/* While topics are repaired the lock is free each time, and so says nothing of the time. */
static void test_a_short_time_goes_on_while_topics_are_closed(void)
{
    enum { SLICES = 3 }; /* of 50 ms: the fourth would be beyond the time */
    pn_topic_stats topics[2];
    begin();
    int (*repair)(struct pn_segment *, bool) = pn_segment_hooks.repair;
    CHECK_OK(pn_engine_topics(engine, topics, 2));
    publish(conn, topic_of(conn, "t"), "body");
    pn_segment_hooks.repair = repair_nothing;
    pn_store_relaxed(&seg->ctl->topics_dirty, PN_TOPICS_CLOSED);
    pn_set_lock_timeout(SLICES * PN_LOCK_SLICE_NS + 10 * MS);
    for (int round = 0; round < 2; round++) { /* the next call has a time of its own */
        int rc, left = 0;
        while ((rc = pn_engine_topics(engine, topics, 2)) == -EINTR)
            if (++left > SLICES)
                FAIL("it was left %d times, and its time is not over", left);
        CHECK_EQ(rc, -PN_ELOCK);
        CHECK(strstr(pn_error_message(), "are being repaired") != NULL);
    }
    pn_set_lock_timeout(-1);
    pn_segment_hooks.repair = repair;
    pn_store_relaxed(&seg->ctl->topics_dirty, 0);
    CHECK_EQ(pn_engine_topics(engine, topics, 2), 1);
    end();
}

static void left_alone(int rc)
{
    CHECK_EQ(rc, -EINTR);
    pn_forget_wait();
}

/* Whatever takes the lock is left, having done nothing, and can be called again. */
static void test_every_call_is_left(void)
{
    begin();
    pn_ref topic, channel, other;
    pn_consumer *consumer, *second;
    pn_message_out message;
    pn_topic_stats topics[2];
    pn_topic_channel_stats channels[2];
    pn_stat stat;
    double usage;
    uint64_t seq;
    uint32_t counter;
    char text[200];
    pn_conn *another;
    CHECK_OK(pn_topic_open(conn, "t", 1, NULL, &topic));
    CHECK_OK(pn_topic_channel_open(conn, topic, "ch", 2, -1, &channel));
    CHECK_OK(pn_consumer_open(conn, channel, NULL, &consumer));
    pn_txn *txn = test_begin(conn);
    CHECK_OK(pn_txn_notify(txn, "c", 1, "prepared", 8));
    CHECK_OK(pn_txn_prepare(txn));
    pid_t holder = begin_hold();
    left_alone(pn_txn_commit(txn));
    left_alone(pn_connect(engine, "db", 2, 0, NULL, &another));
    left_alone(pn_engine_stat(engine, &stat, NULL, 0));
    left_alone(pn_queue_usage(engine, &usage));
    left_alone(pn_commit_seq(engine, &seq));
    left_alone(pn_check(engine, text, sizeof text));
    left_alone(pn_retire(engine));
    left_alone((int) pn_engine_messages(engine));
    left_alone(pn_generation(conn, "g", 1, &counter));
    left_alone(pn_topic_open(conn, "u", 1, NULL, &other));
    left_alone(pn_topic_channel_open(conn, topic, "other", 5, -1, &other));
    left_alone(pn_topic_pause(conn, topic, 1));
    left_alone(pn_topic_channel_pause(conn, channel, 1));
    left_alone(pn_topic_empty(conn, topic));
    left_alone(pn_topic_channel_empty(conn, channel));
    left_alone(pn_topic_delete(conn, topic));
    left_alone(pn_topic_channel_delete(conn, channel));
    left_alone(pn_topic_list(conn, topics, 2));
    left_alone(pn_topic_stat(conn, topic, topics));
    left_alone(pn_topic_channel_list(conn, topic, channels, 2));
    left_alone(pn_engine_topics(engine, topics, 2));
    left_alone(pn_engine_topic_channels(engine, topic, channels, 2));
    left_alone(pn_consumer_open(conn, channel, NULL, &second));
    left_alone(pn_consumer_pause(consumer, 0));
    left_alone(pn_consumer_get(consumer, 0, &message));
    left_alone(pn_consumer_get(consumer, -1, &message));
    end_hold(holder);
    CHECK_OK(pn_topic_stat(conn, topic, topics));
    CHECK_EQ(topics[0].paused, 0);
    CHECK_EQ(pn_topic_list(conn, topics, 2), 1);
    CHECK_EQ(pn_topic_channel_list(conn, topic, channels, 2), 1);
    CHECK_EQ(pn_txn_commit(txn) & ~PN_NOTICE, 0);
    CHECK_OK(pn_consumer_close(consumer));
    end();
}

int main(void)
{
    test_watchdog(110);
    RUN(test_its_time_goes_on);
    RUN(test_one_that_is_not_made_again);
    RUN(test_others_in_between);
    RUN(test_a_short_time_goes_on_while_topics_are_closed);
    RUN(test_every_call_is_left);
    return tests_done();
}
