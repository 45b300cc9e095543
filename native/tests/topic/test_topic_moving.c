/*
 * test_topic_moving.c - how much one hold of the lock moves between memory and files, and that the
 * next ones go on with it, by themselves if a consumer waits.
 */
#include "data_dirs.h"
#include "topic/overflow.h"
#include "topic/pump.h"
#include "topic/queues.h"
#include "topic/tables.h"
#include "topic/topic.h"
#include "topics.h"

enum { TOPICS = 4, LARGE = 20000, HUGE = 200000, SMALL = 100, DEFERRED = 400, HOUR = 3600 };

static pn_engine *engine;
static pn_conn *conn;
static pn_ref topic[TOPICS];
static pn_ref channel[TOPICS];

static void open_segment_of(uint64_t memory)
{
    pn_options o = test_options();
    data_dir_empty();
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    o.topic_memory = memory;
    engine = test_engine(&o);
    conn = test_connect(engine);
}

static void close_scene(void)
{
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_remove_spill_files(engine);
    pn_engine_close(engine);
}

static void set_memory(int i, uint64_t bytes)
{
    const pn_topic_options o = {.given = PN_TOPIC_MAX_MEMORY, .max_memory = bytes};
    CHECK_OK(pn_topic_configure(conn, topic[i], &o));
}

static void open_topic(int i, uint32_t channels)
{
    const char *const names[] = {"t0", "t1", "t2", "t3"};
    topic[i] = topic_with(conn, names[i], 0, PN_OVERFLOW_DISK);
    channel[i] = channel_of(conn, topic[i], "c");
    if (channels > 1)
        channel_of(conn, topic[i], "other");
}

/* Of `length` bytes, which begin with their numbers. */
static void publish_some(int i, int n, uint32_t length, int64_t delay_ns)
{
    static unsigned char body[HUGE];
    uint64_t id;
    for (int k = 1; k <= n; k++) {
        char text[12];
        snprintf(text, sizeof text, "%04d", k);
        memcpy(body, text, 4);
        const pn_message_in in = {.body = body, .body_len = length, .delay_ns = delay_ns};
        CHECK_OK(pn_topic_publish(conn, NULL, topic[i], &in, &id));
    }
}

struct counts {
    uint64_t memory, disk, later, rest; /* messages of all topics; `disk` has those of `rest` too */
};

enum moves { NONE, REFILL, PUMP };

/* What an operation ends with, alone; or begins with, if it may give out a backlog. */
static struct counts one_hold(enum moves moves)
{
    struct counts now = {0};
    struct pn_segment *seg = test_inside();
    CHECK_OK(pn_lock_topics(seg, &test_hold, PN_LOCK_TIMEOUT_NS));
    pn_topics_begin_locked(seg);
    if (moves == PUMP)
        pn_topic_go_on_locked(seg, pn_topic_named_locked(seg, topic[0]));
    if (moves != NONE)
        pn_topics_refill_locked(seg);
    for (int i = 0; i < TOPICS && topic[i] != 0; i++) {
        const struct pn_topic *t = pn_topic_named_locked(seg, topic[i]);
        now.memory += t->firm;
        now.disk += pn_topic_on_disk(t) + pn_diskqueue_depth(&t->rest);
        now.later += pn_topic_later(t);
        now.rest += pn_rest_records(t);
    }
    pn_store_relaxed(&seg->ctl->topics_dirty, 0);
    pn_lock_release(seg);
    CHECK_ENGINE(engine);
    return now;
}

/* All come back, so many in a hold at the most, and in order. */
static void check_holds(uint64_t most, int topics, int each, uint32_t length)
{
    struct counts before = one_hold(NONE), now;
    pn_message_out m;
    unsigned holds = 0;
    CHECK(before.disk > most);
    for (; before.disk != 0; before = now, holds++) {
        now = one_hold(REFILL);
        CHECK(now.memory - before.memory <= most);
        CHECK(now.memory > before.memory);
    }
    CHECK(holds > 1);
    for (int i = 0; i < topics; i++) {
        pn_consumer *consumer = consumer_of(conn, channel[i], 1);
        for (int k = 1; k <= each; k++) {
            CHECK_EQ(pn_consumer_get(consumer, TEST_PATIENCE_MS * MS, &m), 1);
            CHECK_EQ(number_in(&m), k);
            CHECK_EQ(m.body_len, length);
            FINISH(conn, &m);
        }
        NOTHING(consumer);
        CHECK_OK(pn_consumer_close(consumer));
    }
}

/* From the topic's own queue, and from that of channels which rest. */
static void test_no_more_than_a_mebibyte_comes_back_in_a_hold(void)
{
    enum { N = 600 };
    for (uint32_t channels = 1; channels <= 2; channels++) {
        open_segment_of(64 << 20);
        open_topic(0, channels);
        set_memory(0, 64 << 10);
        publish_some(0, N, LARGE, 0);
        set_memory(0, 0);
        check_holds((1 << 20) / LARGE + 1, 1, N, LARGE);
        close_scene();
        topic[0] = 0;
    }
}

static void test_no_more_than_256_messages_of_all_topics_come_back_in_a_hold(void)
{
    enum { N = 600 };
    open_segment_of(16 << 20);
    for (int i = 0; i < TOPICS; i++) {
        open_topic(i, 1);
        set_memory(i, 4096);
        publish_some(i, N, SMALL, 0);
    }
    for (int i = 0; i < TOPICS; i++)
        set_memory(i, 0);
    check_holds(256, TOPICS, N, SMALL);
    close_scene();
    memset(topic, 0, sizeof topic);
}

static void wait_for_one(void *arg)
{
    pn_message_out m;
    pn_conn *mine = test_connect(engine);
    pn_consumer *consumer = consumer_of(mine, channel_of(mine, topic_of(mine, "t0"), "c"), 1);
    int rc;
    (void) arg;
    while ((rc = pn_consumer_get(consumer, TEST_PATIENCE_MS * MS, &m)) == -EINTR)
        ;
    CHECK_EQ(rc, 1);
    CHECK_EQ(m.body_len, HUGE);
    FINISH(mine, &m);
    CHECK_OK(pn_consumer_close(consumer));
    pn_conn_close(mine);
}

/* It finishes those before it. */
static void wait_for_the_last(void *arg)
{
    pn_message_out m = {.body_len = 0};
    pn_conn *mine = test_connect(engine);
    pn_consumer *consumer = consumer_of(mine, channel_of(mine, topic_of(mine, "t0"), "c"), 1);
    (void) arg;
    while (m.body_len != HUGE) {
        int rc = pn_consumer_get(consumer, TEST_PATIENCE_MS * MS, &m);
        if (rc == -EINTR)
            continue;
        CHECK_EQ(rc, 1);
        FINISH(mine, &m);
    }
    CHECK_OK(pn_consumer_close(consumer));
    pn_conn_close(mine);
}

static uint32_t waiting(void)
{
    CHECK_OK(pn_lock_topics(test_inside(), &test_hold, PN_LOCK_TIMEOUT_NS));
    uint32_t n = pn_topic_channel_named_locked(test_inside(), channel[0])->waiting;
    pn_lock_release(test_inside());
    return n;
}

/* Until some have left. */
static void fill_with_deferred(uint32_t channels)
{
    char name[16];
    open_segment_of(channels > 1 ? 16 << 20 : 4 << 20);
    open_topic(0, 1);
    for (uint32_t i = 1; i < channels; i++) {
        snprintf(name, sizeof name, "c%u", i);
        channel_of(conn, topic[0], name);
    }
    for (int i = 0; one_hold(NONE).later == 0; i++) {
        CHECK(i < 100);
        publish_some(0, channels > 1 ? 10 : 100, DEFERRED, HOUR * 1000 * MS);
    }
    for (uint64_t later = 0, now; (now = one_hold(REFILL).later) != later;)
        later = now;
}

/* They make room for one message, and for half a share. */
static void check_leaving(uint32_t channels, bool many)
{
    const uint64_t each = channels > 1 ? channels * sizeof(struct pn_spilled_delivery) : 0;
    const uint64_t most = (128 << 10) / (1024 + DEFERRED + each) + 1;
    unsigned holds = 0;
    fill_with_deferred(channels);
    if (channels > 1 && many)
        set_memory(0, 2 << 20);
    struct counts before = one_hold(NONE), now;
    publish_some(0, 1, HUGE, 0);
    for (;; before = now, holds++) {
        now = one_hold(holds > 0 ? REFILL : NONE);
        CHECK(now.later - before.later <= most);
        CHECK(now.later > before.later || now.disk == 0);
        if (now.disk == 0)
            break;
    }
    CHECK(holds > 1 || !many);
    pid_t child = spawn(wait_for_one, NULL);
    CHECK_CHILD(child, 0);
    close_scene();
    topic[0] = 0;
}

/* A delivery for each channel is taken out and written. */
static void test_deferred_ones_leave_some_at_a_time(void)
{
    check_leaving(1, true);
    check_leaving(300, true);
    check_leaving(300, false); /* they do not each read the record that waits */
}

/* No other process does anything meanwhile. */
static void test_a_consumer_that_waits_makes_them_go_on(void)
{
    fill_with_deferred(1);
    pid_t child = spawn(wait_for_one, NULL);
    CHECK_SOON(waiting() == 1);
    publish_some(0, 1, HUGE, 0);
    CHECK_CHILD(child, 0);
    close_scene();
    topic[0] = 0;
}

/* A backlog of `n`, in memory or on disk, is given to two channels that have little room. */
static void check_backlog(int n, bool on_disk)
{
    const uint64_t most = (128 << 10) / LARGE + 1;
    struct counts now;
    unsigned holds = 0;
    open_segment_of(64 << 20);
    open_topic(0, 2);
    CHECK_OK(pn_topic_pause(conn, topic[0], true));
    if (on_disk)
        set_memory(0, 64 << 10);
    publish_some(0, n, LARGE, 0);
    set_memory(0, 64 << 10);
    struct counts before = one_hold(NONE);
    CHECK_EQ(before.rest, 0);
    CHECK(on_disk ? before.disk > most : before.disk == 0);
    CHECK_OK(pn_lock_topics(test_inside(), &test_hold, PN_LOCK_TIMEOUT_NS));
    pn_topic_named_locked(test_inside(), topic[0])->paused = 0; /* and nothing else */
    pn_lock_release(test_inside());
    for (;; before = now, holds++) {
        now = one_hold(holds == 0 ? PUMP : REFILL); /* the next ones go on */
        CHECK(now.rest <= before.rest + most);
        if (now.rest == before.rest && now.disk == now.rest)
            break;
        CHECK(holds < (unsigned) n);
    }
    CHECK(holds * most > (unsigned) n / 2);
    const pn_ref channels[] = {channel[0], channel_of(conn, topic[0], "other")};
    for (int i = 0; i < 2; i++) {
        pn_message_out m;
        pn_consumer *consumer = consumer_of(conn, channels[i], 1);
        for (int k = 1; k <= n; k++) {
            CHECK_EQ(pn_consumer_get(consumer, TEST_PATIENCE_MS * MS, &m), 1);
            CHECK_EQ(number_in(&m), k);
            FINISH(conn, &m);
        }
        NOTHING(consumer);
        CHECK_OK(pn_consumer_close(consumer));
    }
    close_scene();
    topic[0] = 0;
}

static void test_a_backlog_goes_to_channels_that_rest_some_bytes_at_a_time(void)
{
    check_backlog(100, false);
    check_backlog(100, true);
}

/* No other process does anything but to give out a backlog once. */
static void test_a_consumer_that_waits_makes_a_backlog_go_on(void)
{
    open_segment_of(64 << 20);
    open_topic(0, 2);
    CHECK_OK(pn_topic_pause(conn, topic[0], true));
    publish_some(0, 99, LARGE, 0);
    publish_some(0, 1, HUGE, 0);
    set_memory(0, 64 << 10);
    pid_t child = spawn(wait_for_the_last, NULL);
    CHECK_SOON(waiting() == 1);
    CHECK_OK(pn_lock_topics(test_inside(), &test_hold, PN_LOCK_TIMEOUT_NS));
    pn_topic_named_locked(test_inside(), topic[0])->paused = 0;
    pn_lock_release(test_inside());
    one_hold(PUMP);
    CHECK_CHILD(child, 0);
    close_scene();
    topic[0] = 0;
}

int main(void)
{
    data_dir_make();
    test_watchdog(100);
    RUN(test_no_more_than_a_mebibyte_comes_back_in_a_hold);
    RUN(test_no_more_than_256_messages_of_all_topics_come_back_in_a_hold);
    RUN(test_deferred_ones_leave_some_at_a_time);
    RUN(test_a_consumer_that_waits_makes_them_go_on);
    RUN(test_a_backlog_goes_to_channels_that_rest_some_bytes_at_a_time);
    RUN(test_a_consumer_that_waits_makes_a_backlog_go_on);
    return tests_done();
}
