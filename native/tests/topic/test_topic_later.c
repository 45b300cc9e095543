/*
 * test_topic_later.c - deferred messages that leave memory (topic/later.c): on a full disk, with
 * max_depth, as dead letters, emptied; tests/topics/test_later.py has the promises to users.
 */
#include <sys/resource.h>

#include "data_dirs.h"
#include "topic/carry.h"
#include "topic/cursors.h"
#include "topic/delivery.h"
#include "topic/overflow.h"
#include "topic/queues.h"
#include "topic/tables.h"
#include "topic/topic.h"
#include "topic/waiting.h"
#include "topics.h"

enum { LENGTH = 400, HOUR = 3600, FOR_NOW = 600, DUE = 50 };

static pn_engine *engine;
static pn_conn *conn;
static pn_ref topic, channel;

/* Until then a scene is set; on a busy machine with a sanitizer that took more than a second. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LATER (4000 * MS)
#else
#define LATER (1000 * MS)
#endif

static void open_with(pn_topic_options *to)
{
    pn_options o = test_options();
    data_dir_empty();
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    o.topic_memory = 256 << 10;
    engine = test_engine(&o);
    conn = test_connect(engine);
    to->given |= PN_TOPIC_OVERFLOW;
    to->overflow = PN_OVERFLOW_DISK;
    CHECK_OK(pn_topic_open(conn, "t", 1, to, &topic));
    channel = channel_of(conn, topic, "c");
}

static void close_scene(void)
{
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_remove_spill_files(engine);
    pn_engine_close(engine);
}

static void publish_later(int n, int64_t delay_ns)
{
    static unsigned char bodies[50 * LENGTH];
    static uint32_t lens[50];
    const pn_message_in common = {.delay_ns = delay_ns};
    uint64_t first;
    for (int i = 0; i < 50; i++)
        lens[i] = LENGTH;
    for (int i = 0; i < n; i += 50)
        CHECK_OK(pn_topic_publish_many(conn, NULL, topic, bodies, lens,
                                       (size_t) (n - i < 50 ? n - i : 50), &common, &first));
}

static struct pn_topic *topic_locked(void)
{
    CHECK_OK(pn_lock_topics(test_inside(), &test_hold, PN_LOCK_TIMEOUT_NS));
    return pn_topic_named_locked(test_inside(), topic);
}

static void set_file_size(rlim_t most)
{
    struct rlimit limit;
    CHECK_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = most < limit.rlim_max ? most : limit.rlim_max;
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* ---- a full disk ----------------------------------------------------------------------------- */

/* Memory full of what is deferred, more of it on disk, and the log is being compacted. */
static void fill_while_compacting(void)
{
    for (int i = 0; i < 200; i++) {
        struct pn_topic *t = topic_locked();
        struct pn_topiclog *log = &test_inside()->topics.ctl->log;
        const bool full = t->refilling != 0 && pn_rest_records(t) != 0;
        if (!full && log->compact_file == 0)
            CHECK_EQ(pn_topiclog_begin_anew(log, &pn_durable_mine(test_inside())->files), 1);
        pn_lock_release(test_inside());
        if (full)
            return;
        publish_later(10, HOUR * 1000 * MS);
    }
    FAIL("memory was never full while the log was compacted");
}

/* What cannot go on is not tried again by each consumer that waits, at once. */
static void test_consumers_sleep_while_a_full_disk_stops_compaction(void)
{
    pn_topic_options to = {
        .given = PN_TOPIC_DURABLE | PN_TOPIC_FSYNC, .durable = 1, .fsync = PN_FSYNC_NONE};
    pn_message_out m;
    open_with(&to);
    pn_consumer *consumer = consumer_of(conn, channel, 2);
    publish_later(200, HOUR * 1000 * MS);
    fill_while_compacting();
    set_file_size(1);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(pn_consumer_get(consumer, 0, &m), 0);
    struct pn_topic *t = topic_locked();
    struct pn_topic_channel *ch = pn_topic_channel_named_locked(test_inside(), channel);
    CHECK(test_inside()->topics.ctl->log.compact_file != 0);
    CHECK(pn_rest_records(t) != 0);
    CHECK(pn_topic_channel_next_due_locked(test_inside(), ch) > test_now_ns());
    pn_lock_release(test_inside());
    set_file_size(RLIM_INFINITY);
    publish(conn, topic, "now");
    CHECK_SOON(pn_consumer_get(consumer, 10 * MS, &m) == 1);
    FINISH(conn, &m);
    CHECK_OK(pn_consumer_close(consumer));
    close_scene();
}

/* Get and finish n of them. */
static void finish_all(int n)
{
    pn_consumer *consumer = consumer_of(conn, channel, 10);
    pn_message_out m;
    const int64_t until = test_now_ns() + TEST_PATIENCE_MS * MS;
    while (n > 0 && test_now_ns() < until) {
        int rc = pn_consumer_get(consumer, 100 * MS, &m);
        CHECK(rc >= 0 || rc == -EINTR);
        if (rc != 1)
            continue;
        FINISH(conn, &m);
        n--;
    }
    CHECK_EQ(n, 0);
    CHECK_OK(pn_consumer_close(consumer));
}

/* What is not due stands before what is, and cannot be written again behind it. */
static void test_what_is_due_comes_on_a_full_disk(void)
{
    enum { TOMORROW = 100, SOON = 600 };
    pn_topic_options to = {0};
    open_with(&to);
    publish_later(TOMORROW, 24 * HOUR * 1000 * MS);
    publish_later(SOON, LATER);
    struct pn_topic *t = topic_locked();
    CHECK(pn_topic_later(t) > TOMORROW);
    pn_lock_release(test_inside());
    set_file_size(1);
    finish_all(SOON);
    CHECK_EQ(channel_stat(conn, channel).deferred, TOMORROW);
    set_file_size(RLIM_INFINITY);
    CHECK_OK(pn_topic_channel_empty(conn, channel));
    close_scene();
}

/* ---- of two channels ------------------------------------------------------------------------- */

/* On disk for both; one of them is there no more when it is due. */
static void check_the_one_that_is_left(bool first_goes)
{
    enum { ALL = 600 };
    pn_topic_options to = {0};
    open_with(&to);
    pn_ref second = channel_of(conn, topic, "d");
    publish_later(ALL, LATER);
    struct pn_topic *t = topic_locked();
    CHECK(pn_topic_later(t) > 0);
    pn_lock_release(test_inside());
    CHECK_OK(pn_topic_channel_delete(conn, first_goes ? channel : second));
    channel = first_goes ? second : channel;
    finish_all(ALL);
    CHECK_EQ(topic_stat(conn, topic).on_disk, 0);
    close_scene();
}

static void test_what_is_due_comes_to_the_channel_that_is_left(void)
{
    check_the_one_that_is_left(false);
    check_the_one_that_is_left(true);
}

static uint64_t has(pn_ref ch)
{
    pn_topic_channel_stats s = channel_stat(conn, ch);
    return s.depth + s.deferred + s.in_flight;
}

static void check_some_left_memory(uint64_t at_least)
{
    struct pn_topic *t = topic_locked();
    CHECK(pn_topic_later(t) >= at_least);
    pn_lock_release(test_inside());
}

/* Two channels have what is deferred; then "idle", which is not read, fills the memory. */
static pn_ref deferred_beside_one_that_is_not_read(uint64_t max_depth)
{
    pn_topic_options to = {.given = max_depth != 0 ? PN_TOPIC_MAX_DEPTH : 0,
                           .max_depth = max_depth};
    static unsigned char body[LENGTH];
    const pn_message_in in = {.body = body, .body_len = LENGTH};
    uint64_t id;
    open_with(&to);
    pn_ref idle = channel_of(conn, topic, "idle");
    publish_later(DUE, LATER);
    for (int i = 0; i < FOR_NOW; i++) {
        CHECK_OK(pn_topic_publish(conn, NULL, topic, &in, &id));
        finish_all(1);
    }
    return idle;
}

/* Its time comes: in the channel that is read, whatever the other one holds. */
static void check_due_beside_one_that_is_not_read(uint64_t max_depth, bool disk_is_full)
{
    pn_ref idle = deferred_beside_one_that_is_not_read(max_depth);
    check_some_left_memory(max_depth == 0);
    if (disk_is_full)
        set_file_size(1);
    finish_all(DUE);
    set_file_size(RLIM_INFINITY);
    CHECK_EQ(has(channel), 0);
    CHECK_EQ(has(idle), FOR_NOW + DUE);
    channel = idle;
    finish_all(FOR_NOW + DUE);
    CHECK_EQ(has(idle), 0);
    CHECK_EQ(topic_stat(conn, topic).on_disk, 0);
    close_scene();
}

static void test_what_is_due_comes_beside_a_channel_that_is_not_read(void)
{
    check_due_beside_one_that_is_not_read(0, false);
    check_due_beside_one_that_is_not_read(100, false);
    check_due_beside_one_that_is_not_read(0, true);
}

/* Put off by one channel alone, which has more than it may; the other one's comes all the same. */
static void test_one_channels_delay_does_not_stop_anothers(void)
{
    enum { OWN = 40 };
    pn_ref idle = deferred_beside_one_that_is_not_read(0);
    pn_consumer *slow = consumer_of(conn, idle, OWN);
    pn_message_out m[OWN];
    for (int i = 0; i < OWN; i++)
        CHECK_EQ(pn_consumer_get(slow, 1000 * MS, &m[i]), 1);
    for (int i = 0; i < OWN; i++)
        CHECK_OK(answer(conn, NULL, &m[i], PN_ANSWER_REQUEUE, 200 * MS));
    CHECK_OK(pn_consumer_close(slow));
    publish_later(DUE, 400 * MS);
    finish_all(2 * DUE);
    CHECK_EQ(has(idle), FOR_NOW + 2 * DUE);
    channel = idle;
    finish_all(FOR_NOW + 2 * DUE);
    close_scene();
}

/* What it has no room for it drops, also of what is divided. */
static void test_an_ephemeral_channel_never_rests(void)
{
    pn_topic_options to = {0};
    static unsigned char body[LENGTH];
    const pn_message_in in = {.body = body, .body_len = LENGTH};
    pn_message_out m;
    pn_ref ephemeral;
    uint64_t id;
    open_with(&to);
    channel_of(conn, topic, "idle");
    CHECK_OK(pn_topic_channel_open(conn, topic, "e#ephemeral", 11, 1, &ephemeral));
    pn_consumer *its = consumer_of(conn, ephemeral, 1);
    publish_later(DUE, LATER);
    for (int i = 0; i < FOR_NOW + 300; i++) {
        CHECK_OK(pn_topic_publish(conn, NULL, topic, &in, &id));
        finish_all(1);
        while (pn_consumer_get(its, 0, &m) == 1)
            FINISH(conn, &m);
    }
    CHECK_OK(pn_topic_publish(conn, NULL, topic, &in, &id));
    CHECK_EQ(pn_consumer_get(its, 0, &m), 1); /* in flight: it has some */
    finish_all(DUE + 1);
    struct pn_topic *t = topic_locked();
    PN_EACH_CHANNEL_AS (test_inside(), t, ch)
        CHECK(!pn_rests(t, ch) || ch->ephemeral == 0);
    pn_lock_release(test_inside());
    CHECK_EQ(channel_stat(conn, ephemeral).dropped, DUE);
    CHECK_OK(pn_consumer_close(its));
    close_scene();
}

/* `others` of a cursor may count records that were damaged since. */
static void test_a_depth_is_never_below_zero(void)
{
    pn_ref idle = deferred_beside_one_that_is_not_read(0);
    const uint64_t had = channel_stat(conn, idle).depth;
    topic_locked();
    struct pn_topic_channel *ch = pn_topic_channel_named_locked(test_inside(), idle);
    ch->rest_cursor[pn_load_relaxed(&ch->rests) - 1].others = 1 << 20;
    pn_lock_release(test_inside());
    CHECK(channel_stat(conn, idle).depth < had);
    finish_all(DUE);
    close_scene();
}

/* What is due beside a channel that is not read takes no memory of another topic's share. */
static void test_on_a_full_disk_other_topics_have_their_share(void)
{
    enum { MANY = 3000, OTHERS = 100 };
    static unsigned char body[LENGTH];
    const pn_message_in in = {.body = body, .body_len = LENGTH};
    pn_options o = test_options();
    uint64_t id;
    data_dir_empty();
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    o.topic_memory = 1 << 20;
    engine = test_engine(&o);
    conn = test_connect(engine);
    topic = topic_with(conn, "t", 0, PN_OVERFLOW_DISK);
    pn_ref other = topic_with(conn, "other", 0, PN_OVERFLOW_DISK);
    channel_of(conn, other, "c");
    channel_of(conn, topic, "idle");
    channel = channel_of(conn, topic, "c");
    publish_later(MANY, LATER);
    for (int i = 0; i < FOR_NOW; i++)
        CHECK_OK(pn_topic_publish(conn, NULL, topic, &in, &id));
    finish_all(FOR_NOW);
    check_some_left_memory(1);
    set_file_size(1);
    finish_all(DUE);
    for (int i = 0; i < 300; i++)
        topic_stat(conn, topic);
    for (int i = 0; i < OTHERS; i++)
        CHECK_OK(pn_topic_publish(conn, NULL, other, &in, &id));
    set_file_size(RLIM_INFINITY);
    close_scene();
}

/* It is over before it is due: each channel counts it. */
static void test_what_expires_on_disk_is_counted_by_each_channel(void)
{
    enum { ALL = 600 };
    pn_topic_options to = {0};
    pn_message_out m;
    static unsigned char body[LENGTH];
    const pn_message_in in = {
        .body = body, .body_len = LENGTH, .delay_ns = 700 * MS, .ttl_ns = 600 * MS};
    uint64_t id;
    open_with(&to);
    pn_ref second = channel_of(conn, topic, "d");
    for (int i = 0; i < ALL; i++)
        CHECK_OK(pn_topic_publish(conn, NULL, topic, &in, &id));
    struct pn_topic *t = topic_locked();
    CHECK(pn_topic_later(t) > 0);
    pn_lock_release(test_inside());
    pn_consumer *consumer = consumer_of(conn, channel, 1);
    int rc = 0;
    do
        rc = pn_consumer_get(consumer, 10 * MS, &m);
    while (rc == -EINTR || (rc == 0 && channel_stat(conn, channel).expired < ALL));
    CHECK_EQ(rc, 0);
    CHECK_EQ(channel_stat(conn, channel).expired, ALL);
    CHECK_EQ(channel_stat(conn, second).expired, ALL);
    CHECK_EQ(topic_stat(conn, topic).on_disk, 0);
    CHECK_OK(pn_consumer_close(consumer));
    close_scene();
}

/* ---- overwritten memory ---------------------------------------------------------------------- */

/* Records that are not there are in no file: each file of a great many would be asked for them. */
static void cancel_beside(uint64_t write_seq, uint64_t write_file)
{
    pn_topic_options to = {0};
    open_with(&to);
    struct pn_topic *t = topic_locked();
    CHECK_OK(pn_topic_use_files_locked(test_inside(), t));
    struct pn_diskqueue_state *s = &t->later.state[pn_load_relaxed(&t->later.current)];
    s->write_seq += write_seq;
    s->write_file += write_file;
    test_inside()->topics.ctl->spilled = 1;
    pn_lock_release(test_inside());
    for (int i = 0; i < 2; i++) {
        int rc = pn_topic_cancel(conn, NULL, topic, 1);
        CHECK(rc == 0 || rc == -PN_ECORRUPT); /* it comes back */
    }
    pn_conn_close(conn);
    pn_remove_spill_files(engine);
    pn_engine_close(engine);
}

static void test_records_that_are_not_there(void)
{
    cancel_beside(0x30, 0);
    cancel_beside(1ULL << 40, 0);
    cancel_beside(1, 1ULL << 40);
}

int main(void)
{
    data_dir_make();
    test_watchdog(100);
    RUN(test_what_is_due_comes_on_a_full_disk);
    RUN(test_consumers_sleep_while_a_full_disk_stops_compaction);
    RUN(test_what_is_due_comes_to_the_channel_that_is_left);
    RUN(test_what_is_due_comes_beside_a_channel_that_is_not_read);
    RUN(test_an_ephemeral_channel_never_rests);
    RUN(test_a_depth_is_never_below_zero);
    RUN(test_on_a_full_disk_other_topics_have_their_share);
    RUN(test_one_channels_delay_does_not_stop_anothers);
    RUN(test_what_expires_on_disk_is_counted_by_each_channel);
    RUN(test_records_that_are_not_there);
    return tests_done();
}
