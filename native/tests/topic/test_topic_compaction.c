/*
 * test_topic_compaction.c - when the log of durable topics is compacted, counted in bytes: whatever
 * waits, long or short, what passes is written little more than once, and what is over does not
 * stay.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "data_dirs.h"
#include "topics.h"

enum { JOB = 100, MOST = 4 * JOB, LONG = 10000, SMALLEST = 64 << 10 };

static pn_engine *engine;
static pn_conn *conn;
static const char *segment;
static pn_ref waiting, jobs;
static pn_consumer *worker;

static struct pn_topiclog *the_log(void)
{
    return &test_inside()->topics.ctl->log;
}

static uint64_t log_bytes(void)
{
    return pn_diskqueue_bytes(&the_log()->queue) +
           pn_diskqueue_depth(&the_log()->queue) * PN_RECORD_HEADER;
}

/* Ever. */
static uint64_t written(void)
{
    const struct pn_diskqueue_state *now = pn_diskqueue_now(&the_log()->queue);
    return now->write_sum + now->write_seq * PN_RECORD_HEADER;
}

static pn_ref durable_topic(const char *text)
{
    const pn_topic_options o = {
        .given = PN_TOPIC_DURABLE | PN_TOPIC_FSYNC, .durable = 1, .fsync = PN_FSYNC_NONE};
    pn_ref ref;
    CHECK_OK(pn_topic_open(conn, text, strlen(text), &o, &ref));
    return ref;
}

static void open_scene(void)
{
    pn_options o = test_options();
    data_dir_empty();
    segment = test_segment_name();
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    CHECK_OK(pn_open(segment, &o, &engine));
    conn = test_connect(engine);
    waiting = durable_topic("waiting");
    channel_of(conn, waiting, "c");
    jobs = durable_topic("jobs");
    worker = consumer_of(conn, channel_of(conn, jobs, "c"), 1);
    the_log()->compact_from = SMALLEST;
}

static void close_scene(void)
{
    CHECK_ENGINE(engine);
    CHECK_OK(pn_consumer_close(worker));
    pn_conn_close(conn);
    pn_engine_close(engine);
    test_segments_remove();
}

static void publish_bytes(pn_ref topic, size_t n)
{
    static const char body[LONG];
    const pn_message_in in = {.body = body, .body_len = n};
    uint64_t id;
    CHECK_OK(pn_topic_publish(conn, NULL, topic, &in, &id));
}

static void finish(pn_consumer *c, int n)
{
    pn_message_out m;
    for (int i = 0; i < n; i++) {
        CHECK_EQ(pn_consumer_get(c, 0, &m), 1);
        FINISH(conn, &m);
    }
}

static void pass(int n, size_t bytes)
{
    for (int i = 0; i < n; i++) {
        publish_bytes(jobs, bytes);
        finish(worker, 1);
    }
}

/* Wherever it is looked at: at most four times the jobs, with what compaction writes. */
static void check_written(int n)
{
    enum { STEP = 100 };
    const uint64_t before = written();
    for (uint64_t done = STEP; done <= (uint64_t) n; done += STEP) {
        pass(STEP, JOB);
        const uint64_t bytes = written() - before;
        if (bytes > MOST * done)
            FAIL("%d jobs of %d bytes: %d bytes a job, %d compactions", (int) done, JOB,
                 (int) (bytes / done), (int) the_log()->compactions);
    }
}

static void test_few_long_ones_that_wait_are_seldom_written_again(void)
{
    open_scene();
    for (int i = 0; i < 20; i++)
        publish_bytes(waiting, LONG);
    check_written(12000);
    CHECK(the_log()->compactions >= 2);
    CHECK(log_bytes() < 8 * 20 * LONG);
    close_scene();
}

static void test_many_short_ones_that_wait_are_seldom_written_again(void)
{
    open_scene();
    for (int i = 0; i < 2000; i++)
        publish_bytes(waiting, 4);
    check_written(16000);
    CHECK(the_log()->compactions >= 2);
    close_scene();
}

static void test_what_waits_on_disk_counts_as_well(void)
{
    const pn_topic_options o = {.given = PN_TOPIC_DURABLE | PN_TOPIC_FSYNC | PN_TOPIC_MAX_DEPTH,
                                .durable = 1,
                                .fsync = PN_FSYNC_NONE,
                                .max_depth = 1};
    pn_ref deep;
    open_scene();
    CHECK_OK(pn_topic_open(conn, "deep", 4, &o, &deep));
    channel_of(conn, deep, "c");
    for (int i = 0; i < 20; i++)
        publish_bytes(deep, LONG);
    CHECK_EQ(topic_stat(conn, deep).on_disk, 19);
    check_written(12000);
    CHECK(the_log()->compactions >= 2);
    close_scene();
}

static void test_long_jobs_do_not_stay_for_short_ones_that_wait(void)
{
    open_scene();
    for (int i = 0; i < 100; i++)
        publish_bytes(waiting, 4);
    for (int i = 0; i < 300; i++) {
        pass(1, LONG);
        CHECK(log_bytes() < 4 * SMALLEST);
    }
    close_scene();
}

static void test_what_was_finished_does_not_stay_because_it_was_there(void)
{
    open_scene();
    pn_consumer *c = consumer_of(conn, channel_of(conn, waiting, "c"), 1);
    for (int i = 0; i < 100; i++)
        publish_bytes(waiting, LONG);
    pass(20000, JOB);
    CHECK(the_log()->compactions >= 1);
    CHECK(log_bytes() > 100 * LONG);
    finish(c, 99);
    pass(10, JOB);
    CHECK(log_bytes() < 2 * SMALLEST);
    CHECK_OK(pn_consumer_close(c));
    close_scene();
}

/* There is nothing but topics and channels: a log of no more than that is not written again. */
static void test_names_alone_are_not_written_again_and_again(void)
{
    enum { CHANNELS = 150 };
    open_scene();
    for (int i = 0; i < CHANNELS; i++) {
        char text[64];
        snprintf(text, sizeof text, "a-channel-with-a-name-of-some-length-%d", i);
        channel_of(conn, waiting, text);
    }
    the_log()->compact_from = 1024;
    pass(500, JOB);
    const uint64_t before = written();
    pass(2000, JOB);
    CHECK(written() - before < MOST * 2000);
    close_scene();
}

int main(void)
{
    data_dir_make();
    test_watchdog(110);
    RUN(test_few_long_ones_that_wait_are_seldom_written_again);
    RUN(test_many_short_ones_that_wait_are_seldom_written_again);
    RUN(test_what_waits_on_disk_counts_as_well);
    RUN(test_long_jobs_do_not_stay_for_short_ones_that_wait);
    RUN(test_what_was_finished_does_not_stay_because_it_was_there);
    RUN(test_names_alone_are_not_written_again_and_again);
    return 0;
}
