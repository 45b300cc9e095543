/*
 * test_topic_rest.c - channels of one topic that do not keep up: the others go on, and each gets
 * every message once and in order, whether it has it in memory or on disk.
 */
#include "data_dirs.h"
#include "topic/tables.h"
#include "topics.h"

enum { CHANNELS = 4, STEPS = 3000, MOST = 9, MEMORY = 256 * 1024 };

static pn_engine *engine;
static pn_conn *conn;
static pn_ref topic;
static const char *name;
static bool durable;
static uint64_t compactions, memory = MEMORY;

static void attach(void)
{
    pn_options o = test_options();
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    o.topic_memory = memory;
    CHECK_OK(pn_open(name, &o, &engine));
    conn = test_connect(engine);
}

static struct pn_topiclog *the_log(void)
{
    return &test_inside()->topics.ctl->log;
}

static void open_with(uint64_t max_depth)
{
    const pn_topic_options o = {.given = PN_TOPIC_MAX_DEPTH | PN_TOPIC_OVERFLOW | PN_TOPIC_DURABLE |
                                         PN_TOPIC_FSYNC,
                                .overflow = PN_OVERFLOW_DISK,
                                .max_depth = max_depth,
                                .durable = durable,
                                .fsync = PN_FSYNC_NONE};
    data_dir_empty();
    name = test_segment_name();
    attach();
    CHECK_OK(pn_topic_open(conn, "t", 1, &o, &topic));
    the_log()->compact_from = 64 << 10;
}

static void close_scene(void)
{
    CHECK_ENGINE(engine);
    CHECK_OK(pn_topic_delete(conn, topic));
    CHECK_EQ(files_in(data_dir), durable);
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

/* What it has and has not finished; consumers fetch ahead. */
static uint64_t depth_of(pn_ref channel)
{
    pn_topic_channel_stats s;
    CHECK_OK(pn_topic_channel_stat(conn, channel, &s));
    return s.depth + s.in_flight;
}

static void publish_numbers(int first, int last, size_t length)
{
    char text[2000];
    uint64_t id;
    memset(text, 'x', sizeof text);
    for (int i = first; i <= last; i++) {
        snprintf(text, sizeof text, "%04d", i);
        const pn_message_in in = {.body = text, .body_len = length};
        CHECK_OK(pn_topic_publish(conn, NULL, topic, &in, &id));
    }
}

/* Numbers from `first` on, until there is none; the last one. */
static int finish_from(pn_consumer *consumer, int first)
{
    pn_message_out m;
    int i = first;
    for (; pn_consumer_get(consumer, 0, &m) == 1; i++) {
        CHECK_EQ(number_in(&m), i);
        FINISH(conn, &m);
    }
    return i - 1;
}

static void test_an_abandoned_channel_stops_no_other(void)
{
    pn_message_out m;
    open_with(0);
    pn_ref abandoned = channel_of(conn, topic, "abandoned");
    pn_consumer *fast = consumer_of(conn, channel_of(conn, topic, "fast"), 5);
    for (int i = 1; i <= 2000; i++) {
        publish_numbers(i, i, 500);
        CHECK_EQ(pn_consumer_get(fast, 0, &m), 1);
        CHECK_EQ(number_in(&m), i);
        FINISH(conn, &m);
    }
    CHECK_EQ(depth_of(abandoned), 2000);
    CHECK(topic_stat(conn, topic).on_disk > 1000);
    CHECK(topic_stat(conn, topic).unfinished < 1000);
    CHECK_EQ(topic_stat(conn, topic).depth, 0); /* it is in channels, all of it */
    pn_consumer *slow = consumer_of(conn, abandoned, 3);
    CHECK_EQ(finish_from(slow, 1), 2000);
    CHECK_EQ(topic_stat(conn, topic).on_disk, 0);
    publish_numbers(2001, 2001, 500);
    CHECK_EQ(finish_from(slow, 2001), 2001);
    CHECK_EQ(finish_from(fast, 2001), 2001);
    CHECK_OK(pn_consumer_close(fast));
    CHECK_OK(pn_consumer_close(slow));
    close_scene();
}

/* As many as it gets, and then it waits for one more. */
static void collect(void *arg)
{
    pn_message_out m;
    pn_conn *mine = test_connect(engine);
    pn_consumer *c = consumer_of(mine, channel_of(mine, topic_of(mine, "t"), "c"), 1000);
    int rc, n = 0;
    while (pn_consumer_get(c, 0, &m) == 1)
        n++;
    CHECK(n > 10);
    CHECK_EQ(write(*(int *) arg, "r", 1), 1);
    do
        rc = pn_consumer_get(c, TEST_PATIENCE_MS * MS, &m);
    while (rc == -EINTR);
    CHECK_EQ(rc, 1);
    CHECK_OK(pn_consumer_close(c));
    pn_conn_close(mine);
}

static uint32_t throttled(pn_ref channel)
{
    CHECK_OK(pn_lock_topics(test_inside(), &test_hold, PN_LOCK_TIMEOUT_NS));
    uint32_t n = pn_topic_channel_named_locked(test_inside(), channel)->throttled;
    pn_lock_release(test_inside());
    return n;
}

/* It is woken when others have left it some, or when the channel was emptied. */
static void test_a_consumer_with_much_in_flight_leaves_some_to_others(void)
{
    int pipes[2];
    char r;
    for (int emptied = 0; emptied < 2; emptied++) {
        open_with(0);
        CHECK_EQ(pipe(pipes), 0);
        pn_ref channel = channel_of(conn, topic, "c");
        publish_numbers(1, 1000, 500);
        pid_t pid = spawn(collect, &pipes[1]);
        CHECK_EQ(read(pipes[0], &r, 1), 1);
        CHECK_SOON(throttled(channel) == 1);
        CHECK_ENGINE(engine);
        const int held = (int) channel_stat(conn, channel).in_flight;
        CHECK(topic_stat(conn, topic).on_disk > 500);
        pn_consumer *other = consumer_of(conn, channel, 1);
        pn_message_out m;
        if (emptied != 0) {
            CHECK_OK(pn_topic_channel_empty(conn, channel));
            CHECK_EQ(throttled(channel), 0);
            CHECK_ENGINE(engine);
            publish_numbers(1, 1, 500);
        }
        for (int i = held + 1; emptied == 0 && throttled(channel) != 0; i++) {
            CHECK_EQ(pn_consumer_get(other, 0, &m), 1); /* it is there at once */
            CHECK_EQ(number_in(&m), i);
            FINISH(conn, &m);
        }
        CHECK_CHILD(pid, 0);
        CHECK_ENGINE(engine);
        CHECK_OK(pn_consumer_close(other));
        close(pipes[0]);
        close(pipes[1]);
        close_scene();
    }
}

static void test_a_later_channel_has_nothing_of_what_is_on_disk(void)
{
    open_with(8);
    pn_ref first = channel_of(conn, topic, "first"), second = channel_of(conn, topic, "second");
    publish_numbers(1, 100, 6);
    pn_ref late = channel_of(conn, topic, "late");
    CHECK_EQ(depth_of(first), 100);
    CHECK_EQ(depth_of(second), 100);
    CHECK_EQ(depth_of(late), 0);
    publish_numbers(101, 101, 6);
    pn_consumer *consumer = consumer_of(conn, late, 1);
    CHECK_EQ(finish_from(consumer, 101), 101);
    CHECK_OK(pn_consumer_close(consumer));
    close_scene();
}

static void test_what_is_emptied_or_deleted_leaves_nothing_on_disk(void)
{
    open_with(8);
    pn_ref first = channel_of(conn, topic, "first"), second = channel_of(conn, topic, "second");
    publish_numbers(1, 100, 6);
    CHECK_OK(pn_topic_channel_empty(conn, first));
    CHECK_EQ(depth_of(first), 0);
    CHECK_EQ(depth_of(second), 100);
    publish_numbers(101, 102, 6);
    pn_consumer *consumer = consumer_of(conn, first, 1);
    CHECK_EQ(finish_from(consumer, 101), 102);
    CHECK(topic_stat(conn, topic).on_disk > 50);
    CHECK_OK(pn_topic_channel_delete(conn, second));
    CHECK_EQ(topic_stat(conn, topic).on_disk, 0);
    CHECK_OK(pn_consumer_close(consumer));
    close_scene();
}

static void test_a_deferred_message_is_cancelled_wherever_it_is(void)
{
    pn_message_out m;
    uint64_t id;
    open_with(8);
    pn_ref first = channel_of(conn, topic, "first"), second = channel_of(conn, topic, "second");
    pn_consumer *fast = consumer_of(conn, first, 1);
    publish_numbers(1, 40, 6);
    CHECK_EQ(finish_from(fast, 1), 40);
    const pn_message_in in = {.body = "never", .body_len = 5, .delay_ns = 3600000000000};
    for (int with = 0; with < 2; with++) { /* the fast one has it in memory, the other on disk */
        CHECK_OK(pn_topic_publish(conn, NULL, topic, &in, &id));
        pn_txn *txn = with ? test_begin(conn) : NULL;
        CHECK_EQ(pn_topic_cancel(conn, txn, topic, id), 1);
        if (with)
            CHECK_OK(pn_txn_commit(txn));
        CHECK_EQ(pn_topic_cancel(conn, NULL, topic, id), 0);
        CHECK_EQ(depth_of(second), 40);
        CHECK_ENGINE(engine);
    }
    pn_topic_channel_stats s;
    CHECK_OK(pn_topic_channel_stat(conn, first, &s));
    CHECK_EQ(s.deferred, 0);
    pn_consumer *slow = consumer_of(conn, second, 1);
    CHECK_EQ(finish_from(slow, 1), 40);
    CHECK_EQ(pn_consumer_get(slow, 0, &m), 0);
    CHECK_EQ(topic_stat(conn, topic).on_disk, 0);
    CHECK_OK(pn_consumer_close(fast));
    CHECK_OK(pn_consumer_close(slow));
    close_scene();
}

/* ---- durable topics -------------------------------------------------------------------------- */

/* All processes are gone, and the segment; nothing is closed before. */
static void reboot(void)
{
    pn_engine *old_engine = engine;
    pn_conn *old_conn = conn;
    CHECK_ENGINE(engine);
    compactions += the_log()->compactions;
    test_segment_remove(name);
    attach();
    topic = topic_of(conn, "t");
    the_log()->compact_from = 64 << 10;
    pn_conn_close(old_conn);
    pn_engine_close(old_engine);
    CHECK_ENGINE(engine);
}

static void test_after_a_reboot_it_stops_no_other_either(void)
{
    pn_message_out m;
    durable = true;
    open_with(0);
    pn_ref abandoned = channel_of(conn, topic, "abandoned");
    pn_consumer *fast = consumer_of(conn, channel_of(conn, topic, "fast"), 5);
    publish_numbers(1, 1500, 500);
    CHECK_EQ(finish_from(fast, 1), 1500);
    publish_numbers(1501, 1502, 500);
    pn_consumer *old = fast;
    reboot();
    CHECK_OK(pn_consumer_close(old));
    abandoned = channel_of(conn, topic, "abandoned");
    fast = consumer_of(conn, channel_of(conn, topic, "fast"), 5);
    CHECK_EQ(depth_of(abandoned), 1502);
    CHECK_EQ(finish_from(fast, 1501), 1502);
    for (int i = 1503; i <= 2500; i++) {
        publish_numbers(i, i, 500);
        CHECK_EQ(pn_consumer_get(fast, 0, &m), 1);
        CHECK_EQ(number_in(&m), i);
        FINISH(conn, &m);
    }
    CHECK_EQ(depth_of(abandoned), 2500);
    CHECK_EQ(topic_stat(conn, topic).message_count, 2500);
    pn_consumer *slow = consumer_of(conn, abandoned, 3);
    CHECK_EQ(finish_from(slow, 1), 2500);
    CHECK_EQ(topic_stat(conn, topic).on_disk, 0);
    CHECK_OK(pn_consumer_close(fast));
    CHECK_OK(pn_consumer_close(slow));
    close_scene();
    durable = false;
}

/* A channel has finished later ones than those that it still has: of these there are records that
 * name others only, behind the first that it rests with. */
static void test_after_a_reboot_a_channel_has_what_it_had_not_finished(void)
{
    enum { KEPT = 500, ALL = 1000 };
    pn_message_out m;
    durable = true;
    memory = 8 * MEMORY; /* before the reboot: then it has most of them in flight */
    open_with(0);
    pn_consumer *old = consumer_of(conn, channel_of(conn, topic, "some"), ALL);
    channel_of(conn, topic, "all");
    publish_numbers(1, ALL, 500);
    for (int i = 1; i <= ALL; i++) {
        CHECK_EQ(pn_consumer_get(old, 0, &m), 1);
        CHECK_EQ(number_in(&m), i);
        if (i > KEPT)
            FINISH(conn, &m);
    }
    publish_numbers(ALL + 1, ALL + 1, 500);
    memory = MEMORY;
    reboot();
    CHECK_OK(pn_consumer_close(old));
    pn_ref some = channel_of(conn, topic, "some"), all = channel_of(conn, topic, "all");
    CHECK(topic_stat(conn, topic).on_disk > 0);
    CHECK_EQ(depth_of(some), KEPT + 1);
    CHECK_EQ(depth_of(all), ALL + 1);
    CHECK_EQ(channel_stat(conn, some).message_count, KEPT + 1);
    CHECK_EQ(channel_stat(conn, all).message_count, ALL + 1);
    pn_consumer *consumer = consumer_of(conn, some, 1);
    for (int i = 1; i <= KEPT + 1; i++) {
        CHECK_EQ(pn_consumer_get(consumer, 0, &m), 1);
        CHECK_EQ(number_in(&m), i <= KEPT ? i : ALL + 1);
        FINISH(conn, &m);
    }
    NOTHING(consumer);
    CHECK_EQ(depth_of(some), 0);
    CHECK_OK(pn_consumer_close(consumer));
    close_scene();
    durable = false;
}

/* What was published before there was a channel: some of it goes to memory, and some to disk. */
static void test_the_backlog_is_counted_for_each_channel(void)
{
    enum { ALL = 1500, MORE = 20 };
    pn_message_out m;
    open_with(0);
    publish_numbers(1, ALL, 500);
    pn_ref abandoned = channel_of(conn, topic, "abandoned");
    pn_ref fast = channel_of(conn, topic, "fast");
    pn_consumer *consumer = consumer_of(conn, fast, 1);
    CHECK_EQ(pn_consumer_get(consumer, 0, &m), 1);
    const int first = number_in(&m); /* those before went to the other, which was there alone */
    CHECK(first < ALL);
    FINISH(conn, &m);
    CHECK_EQ(finish_from(consumer, first + 1), ALL);
    CHECK_OK(pn_topic_pause(conn, topic, 1));
    publish_numbers(ALL + 1, ALL + MORE, 500); /* in memory, and there for one of the two */
    CHECK_OK(pn_topic_pause(conn, topic, 0));
    CHECK_EQ(finish_from(consumer, ALL + 1), ALL + MORE);
    CHECK_EQ(depth_of(abandoned), ALL + MORE);
    CHECK_EQ(channel_stat(conn, fast).message_count, ALL + MORE + 1 - first);
    CHECK_EQ(channel_stat(conn, abandoned).message_count, ALL + MORE);
    CHECK_OK(pn_consumer_close(consumer));
    close_scene();
}

/* Messages of the backlog go to disk for a channel between those two: what it rests with has been
 * carried already, and they have not. */
static void test_what_is_given_out_during_compaction_is_in_the_log(void)
{
    durable = true;
    open_with(0);
    the_log()->compact_from = UINT64_MAX;
    pn_consumer *fast = consumer_of(conn, channel_of(conn, topic, "fast"), 5);
    for (int i = 0; i < 2000; i++) {
        publish_numbers(1, 1, 500);
        CHECK_EQ(finish_from(fast, 1), 1);
    }
    channel_of(conn, topic, "abandoned");
    publish_numbers(1, 500, 500);
    CHECK_EQ(finish_from(fast, 1), 500);
    CHECK_OK(pn_topic_pause(conn, topic, 1));
    publish_numbers(501, 640, 500);
    the_log()->compact_from = 1;
    pn_topiclog_starve(the_log());
    publish_numbers(641, 641, 500);
    CHECK(the_log()->compact_file != 0);
    CHECK(topic_stat(conn, topic).on_disk > 200);
    int last_one = 641;
    while (the_log()->compact_cursor[0] < 2 * test_inside()->topics.max_topics)
        last_one++, publish_numbers(last_one, last_one, 500);
    CHECK(the_log()->compact_file != 0); /* all that is on disk was carried, and not the rest */
    CHECK_OK(pn_topic_pause(conn, topic, 0));
    CHECK_EQ(topic_stat(conn, topic).depth, 0);
    while (the_log()->compact_file != 0)
        last_one++, publish_numbers(last_one, last_one, 500);
    pn_ref both = channel_of(conn, topic, "fast");
    CHECK_EQ(channel_stat(conn, both).message_count, 2000 + last_one);
    both = channel_of(conn, topic, "abandoned");
    CHECK_EQ(channel_stat(conn, both).message_count, last_one);
    pn_consumer *old = fast;
    reboot();
    CHECK_OK(pn_consumer_close(old));
    pn_consumer *slow = consumer_of(conn, channel_of(conn, topic, "abandoned"), 5);
    fast = consumer_of(conn, channel_of(conn, topic, "fast"), 5);
    CHECK_EQ(finish_from(slow, 1), last_one);
    CHECK_EQ(finish_from(fast, 501), last_one);
    CHECK_OK(pn_consumer_close(fast));
    CHECK_OK(pn_consumer_close(slow));
    close_scene();
    durable = false;
}

/* ---- anything at all ------------------------------------------------------------------------- */

static uint64_t seed;

static uint32_t dice(uint32_t n)
{
    seed = seed * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t) (seed >> 33) % n;
}

/* Of each channel: what it is to get next, and that there is more to come. */
static struct {
    pn_ref ref;
    pn_consumer *consumer;
    int next;
} channel[CHANNELS];
static int last; /* number that was published */
static bool paused;

static void make_channel(int i)
{
    char text[8];
    snprintf(text, sizeof text, "c%d", i);
    channel[i].ref = channel_of(conn, topic, text);
    channel[i].consumer = consumer_of(conn, channel[i].ref, 1 + dice(4));
    channel[i].next = last + 1;
}

static void publish_any(size_t length)
{
    unsigned char bodies[MOST * 2000];
    uint32_t lens[MOST];
    const uint32_t how = dice(3), n = how == 0 ? 1 : 1 + dice(MOST);
    pn_txn *txn = how == 1 ? test_begin(conn) : NULL;
    uint64_t id;
    memset(bodies, 'x', sizeof bodies);
    for (uint32_t i = 0; i < n; i++) {
        char text[16];
        snprintf(text, sizeof text, "%04d", last + 1 + (int) i);
        memcpy(bodies + i * length, text, 4);
        lens[i] = (uint32_t) length;
    }
    CHECK_OK(pn_topic_publish_many(conn, txn, topic, bodies, lens, n, NULL, &id));
    /* which takes memory, if there is some, and then is before what the topic has on disk */
    if (txn != NULL && !paused && dice(2) == 0) {
        int rc = pn_txn_prepare(txn);
        CHECK(rc == 0 || rc == -PN_ETOPICFULL);
        if (rc != 0) {
            pn_txn_abort(txn);
            return;
        }
    }
    if (txn != NULL)
        CHECK_OK(pn_txn_commit(txn));
    last += (int) n;
}

static void get_some(int i)
{
    pn_message_out m;
    for (uint32_t n = dice(12); n > 0 && pn_consumer_get(channel[i].consumer, 0, &m) == 1; n--) {
        CHECK_EQ(number_in(&m), channel[i].next);
        channel[i].next++;
        FINISH(conn, &m);
    }
}

static void reboot_all(void)
{
    pn_consumer *old[CHANNELS];
    int next[CHANNELS];
    for (int i = 0; i < CHANNELS; i++) {
        old[i] = channel[i].consumer;
        next[i] = channel[i].next;
    }
    reboot();
    for (int i = 0; i < CHANNELS; i++) {
        pn_consumer_close(old[i]);
        make_channel(i);
        channel[i].next = next[i];
    }
}

static void test_each_gets_everything_once_and_in_order(void)
{
    for (uint64_t round = 1; round <= 6; round++) {
        seed = round;
        last = 0;
        open_with(round % 2 == 0 ? 0 : 4 * round);
        for (int i = 0; i < CHANNELS; i++)
            make_channel(i);
        const size_t length = round % 2 == 0 ? 900 : 6;
        for (int step = 0; step < STEPS; step++) {
            int i = (int) dice(CHANNELS);
            uint32_t what = dice(64);
            if (what < 12) {
                publish_any(length);
            } else if (what < 60) {
                if (dice(CHANNELS) >= (uint32_t) i) /* the first is the slowest */
                    get_some(i);
            } else if (what == 60 && dice(8) == 0) {
                CHECK_OK(pn_topic_channel_empty(conn, channel[i].ref));
                channel[i].next = last + 1;
            } else if (what == 61 && dice(8) == 0) {
                CHECK_OK(pn_consumer_close(channel[i].consumer));
                CHECK_OK(pn_topic_channel_delete(conn, channel[i].ref));
                make_channel(i);
            } else if (what == 62 && dice(4) == 0) {
                CHECK_OK(pn_topic_pause(conn, topic, 1));
                paused = true;
                for (uint32_t n = dice(20); n > 0; n--)
                    publish_any(length);
                CHECK_OK(pn_topic_pause(conn, topic, 0));
                paused = false;
            } else if (what == 63 && durable && dice(4) == 0) {
                reboot_all();
            }
            CHECK_EQ(depth_of(channel[i].ref), (uint64_t) (last + 1 - channel[i].next));
            if (step % 256 == 0)
                CHECK_ENGINE(engine);
        }
        for (int i = 0; i < CHANNELS; i++) {
            CHECK_EQ(finish_from(channel[i].consumer, channel[i].next), last);
            CHECK_OK(pn_consumer_close(channel[i].consumer));
        }
        CHECK_EQ(topic_stat(conn, topic).on_disk, 0);
        if (!durable)
            CHECK_EQ(topic_stat(conn, topic).message_count, last);
        close_scene();
    }
}

int main(void)
{
    test_watchdog(110);
    data_dir_make();
    RUN(test_an_abandoned_channel_stops_no_other);
    RUN(test_a_consumer_with_much_in_flight_leaves_some_to_others);
    RUN(test_a_later_channel_has_nothing_of_what_is_on_disk);
    RUN(test_what_is_emptied_or_deleted_leaves_nothing_on_disk);
    RUN(test_a_deferred_message_is_cancelled_wherever_it_is);
    RUN(test_each_gets_everything_once_and_in_order);
    RUN(test_after_a_reboot_it_stops_no_other_either);
    RUN(test_after_a_reboot_a_channel_has_what_it_had_not_finished);
    RUN(test_the_backlog_is_counted_for_each_channel);
    RUN(test_what_is_given_out_during_compaction_is_in_the_log);
    durable = true;
    RUN(test_an_abandoned_channel_stops_no_other);
    RUN(test_a_later_channel_has_nothing_of_what_is_on_disk);
    RUN(test_what_is_emptied_or_deleted_leaves_nothing_on_disk);
    RUN(test_a_deferred_message_is_cancelled_wherever_it_is);
    RUN(test_each_gets_everything_once_and_in_order);
    CHECK(compactions > 8);
    return 0;
}
