/*
 * test_topic_disk.c - overflow="disk": what has no room in memory goes to files and comes back, in
 * order, with its times, once; alone, in batches and in transactions.  There it is the channel's
 * (topic/rest.c), and then, of a topic that is paused until something is to be got, the topic's own
 * (topic/overflow.c).
 */
#include "data_dirs.h"
#include "files/record_file.h"
#include "topics.h"

#include <sys/resource.h>

static pn_engine *engine;
static pn_conn *conn;
static pn_ref topic, channel;
static pn_consumer *consumer;

static bool own; /* it is paused at first */
#define RUN_BOTH(test)                                                                             \
    do {                                                                                           \
        RUN(test);                                                                                 \
        own = true;                                                                                \
        RUN(test);                                                                                 \
        own = false;                                                                               \
    } while (0)

static void open_with(uint64_t max_depth, uint64_t memory)
{
    pn_options o = test_options();
    data_dir_empty();
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    if (memory != 0)
        o.topic_memory = memory;
    engine = test_engine(&o);
    conn = test_connect(engine);
    topic = topic_with(conn, "t", max_depth, PN_OVERFLOW_DISK);
    channel = channel_of(conn, topic, "c");
    CHECK_OK(pn_topic_pause(conn, topic, own));
    consumer = consumer_of(conn, channel, 2);
}

static void go_on(void)
{
    CHECK_OK(pn_topic_pause(conn, topic, false));
}

static void close_scene(void)
{
    CHECK_ENGINE(engine);
    CHECK_OK(pn_consumer_close(consumer));
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_remove_spill_files(engine);
    CHECK_EQ(files_in(data_dir), 0);
    pn_engine_close(engine);
}

static void publish_numbers(int first, int last)
{
    char text[16];
    for (int i = first; i <= last; i++) {
        snprintf(text, sizeof text, "%d", i);
        publish(conn, topic, text);
    }
}

static void finish_numbers(int first, int last)
{
    pn_message_out m;
    char text[16];
    go_on();
    for (int i = first; i <= last; i++) {
        snprintf(text, sizeof text, "%d", i);
        GET(consumer, &m, text);
        CHECK_EQ(m.attempts, 1);
        FINISH(conn, &m);
    }
}

/* All of it is in the depth of the topic or of its channel. */
static void check_counts(uint64_t unfinished, uint64_t on_disk)
{
    pn_topic_stats s = topic_stat(conn, topic);
    pn_topic_channel_stats c = channel_stat(conn, channel);
    CHECK_EQ(s.unfinished, unfinished);
    CHECK_EQ(s.on_disk, on_disk);
    CHECK_EQ(s.depth, s.paused ? unfinished + on_disk : 0);
    CHECK_EQ(s.depth + c.depth + c.deferred + c.in_flight, unfinished + on_disk);
}

static void test_no_more_than_max_depth_is_in_memory_and_the_order_is_kept(void)
{
    open_with(4, 0);
    publish_numbers(1, 4);
    check_counts(4, 0);
    CHECK_EQ(files_in(data_dir), 0);
    publish_numbers(5, 300);
    check_counts(4, 296);
    CHECK_EQ(topic_stat(conn, topic).message_count, 300);
    finish_numbers(1, 100);
    check_counts(4, 196);
    publish_numbers(301, 400);
    check_counts(4, 296);
    CHECK_ENGINE(engine);
    finish_numbers(101, 400);
    check_counts(0, 0);
    CHECK_EQ(topic_stat(conn, topic).message_count, 400);
    CHECK_EQ(channel_stat(conn, channel).message_count, 400);
    NOTHING(consumer);
    publish_numbers(1, 3);
    check_counts(3, 0);
    finish_numbers(1, 3);
    close_scene();
}

static void test_memory_that_is_full_goes_on_on_disk(void)
{
    static char body[3000];
    pn_message_out m;
    open_with(0, 256 << 10);
    memset(body, 'x', sizeof body - 1);
    for (int i = 0; i < 500; i++)
        publish(conn, topic, body);
    uint64_t kept = topic_stat(conn, topic).unfinished;
    CHECK(kept > 20 && kept < 100);
    publish(conn, topic, "small"); /* there would be room for that one */
    check_counts(kept, 501 - kept);
    go_on();
    for (int i = 0; i < 500; i++) {
        GET(consumer, &m, body);
        FINISH(conn, &m);
    }
    GET(consumer, &m, "small");
    FINISH(conn, &m);
    NOTHING(consumer);
    close_scene();
}

static void test_delays_and_times_to_live_are_those_of_publishing(void)
{
    pn_message_out m;
    open_with(1, 0);
    publish(conn, topic, "first");
    CHECK_OK(publish_in(conn, NULL, topic, "late", 300 * MS, 0, NULL));
    CHECK_OK(publish_in(conn, NULL, topic, "gone", 0, 1, NULL));
    CHECK_OK(publish_in(conn, NULL, topic, "lasts", 0, 3600000 * MS, NULL));
    check_counts(1, 3);
    int64_t begun = test_now_ns();
    go_on();
    GET(consumer, &m, "first");
    FINISH(conn, &m);
    check_counts(1, own ? 1 : 2); /* it waits in memory, as deferred */
    GET(consumer, &m, "late");
    CHECK(test_now_ns() - begun < 300 * MS + TEST_PATIENCE_MS * MS);
    FINISH(conn, &m);
    GET(consumer, &m, "lasts");
    CHECK(m.expires_ns > test_now_ns() && m.expires_ns < begun + 3600000 * MS);
    FINISH(conn, &m);
    CHECK_EQ(topic_stat(conn, topic).expired + channel_stat(conn, channel).expired, 1);
    CHECK_EQ(topic_stat(conn, topic).message_count, 4);
    close_scene();
}

static void test_a_batch_goes_to_memory_or_to_disk_as_a_whole(void)
{
    enum { N = 1000 };
    static unsigned char bodies[N * 4];
    static uint32_t lens[N];
    pn_message_out m;
    uint64_t id;
    char text[16];
    for (int i = 0; i < N; i++) {
        snprintf(text, sizeof text, "%04d", i);
        memcpy(bodies + i * 4, text, 4);
        lens[i] = 4;
    }
    open_with(10, 0);
    CHECK_OK(pn_topic_publish_many(conn, NULL, topic, bodies, lens, 8, NULL, &id));
    check_counts(8, 0);
    CHECK_OK(pn_topic_publish_many(conn, NULL, topic, bodies + 32, lens, 92, NULL, &id));
    check_counts(10, 90); /* some came back at once */
    CHECK_OK(pn_topic_publish_many(conn, NULL, topic, bodies + 400, lens, N - 100, NULL, &id));
    go_on();
    for (int i = 0; i < N; i++) {
        snprintf(text, sizeof text, "%04d", i);
        GET(consumer, &m, text);
        FINISH(conn, &m);
    }
    close_scene();
}

/* What is the topic's own is given to the channels that there are when it goes on. */
static void test_a_later_channel_has_what_is_on_disk_if_that_is_the_topics_own(void)
{
    pn_message_out m;
    open_with(20, 0);
    publish_numbers(1, 40);
    pn_ref other = channel_of(conn, topic, "other");
    pn_consumer *late = consumer_of(conn, other, 10);
    finish_numbers(1, 40);
    CHECK_EQ(channel_stat(conn, other).message_count, own ? 40 : 0);
    for (int i = 1; i <= 40 && own; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", i);
        GET(late, &m, text);
        FINISH(conn, &m);
    }
    NOTHING(late);
    CHECK_OK(pn_consumer_close(late));
    close_scene();
}

static void test_a_transaction_takes_both_places(void)
{
    pn_message_out m;
    open_with(3, 0);
    pn_ref second = topic_with(conn, "u", 1, PN_OVERFLOW_DISK);
    pn_consumer *others = consumer_of(conn, channel_of(conn, second, "c"), 9);
    publish_numbers(1, 2);
    pn_txn *txn = test_begin(conn);
    for (int i = 3; i <= 8; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", i);
        CHECK_OK(publish_in(conn, txn, topic, text, 0, 0, NULL));
        CHECK_OK(publish_in(conn, txn, second, text, 0, 0, NULL));
    }
    check_counts(2, 0);
    go_on();
    GET(consumer, &m, "1");
    CHECK_OK(answer(conn, txn, &m, PN_ANSWER_FINISH, 0));
    CHECK_OK(pn_txn_commit(txn));
    check_counts(3, 4);
    CHECK_EQ(topic_stat(conn, second).on_disk, 5);
    txn = test_begin(conn);
    for (int i = 0; i < 5; i++)
        CHECK_OK(publish_in(conn, txn, topic, "never", 0, 0, NULL));
    pn_txn_abort(txn);
    check_counts(3, 4);
    CHECK_ENGINE(engine);
    finish_numbers(2, 8);
    NOTHING(consumer);
    for (int i = 3; i <= 8; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", i);
        GET(others, &m, text);
        FINISH(conn, &m);
    }
    CHECK_OK(pn_consumer_close(others));
    close_scene();
}

/* What fails in the middle has staged something on disk already. */
static void test_a_commit_that_fails_leaves_nothing_on_disk(void)
{
    pn_message_out m;
    open_with(1, 0);
    publish(conn, topic, "1");
    go_on();
    GET(consumer, &m, "1");
    pn_txn *txn = test_begin(conn);
    for (int i = 0; i < 5; i++)
        CHECK_OK(publish_in(conn, txn, topic, "never", 0, 0, NULL));
    CHECK_OK(answer(conn, txn, &m, PN_ANSWER_FINISH, 0));
    CHECK_OK(answer(conn, NULL, &m, PN_ANSWER_RELEASE, 0));
    CHECK_EQ(pn_txn_commit(txn), -PN_ENOTINFLIGHT);
    check_counts(1, 0);
    publish_numbers(2, 5);
    check_counts(1, 4);
    CHECK_EQ(topic_stat(conn, topic).message_count, 5);
    finish_numbers(1, 5);
    close_scene();
}

static void test_prepared_messages_are_in_memory_until_the_commit(void)
{
    open_with(1, 0);
    publish_numbers(1, 1);
    pn_txn *txn = test_begin(conn);
    CHECK_OK(publish_in(conn, txn, topic, "2", 0, 0, NULL));
    CHECK_OK(publish_in(conn, txn, topic, "3", 0, 0, NULL));
    CHECK_OK(pn_txn_prepare(txn));
    CHECK_EQ(files_in(data_dir), 0);
    CHECK_OK(pn_txn_commit(txn));
    if (own) /* beyond max_depth */
        check_counts(3, 0);
    else
        check_counts(1, 2);
    finish_numbers(1, 3);
    close_scene();
}

static void test_empty_and_delete_take_the_files(void)
{
    open_with(2, 0);
    publish_numbers(1, 50);
    CHECK_OK(pn_topic_empty(conn, topic));
    check_counts(own ? 0 : 2, own ? 0 : 48);
    CHECK_OK(pn_topic_channel_empty(conn, channel));
    check_counts(0, 0);
    CHECK_EQ(files_in(data_dir), own ? 0 : 1); /* a short one, in which it goes on */
    publish_numbers(1, 50);
    finish_numbers(1, 10);
    CHECK(files_in(data_dir) > 0);
    CHECK_OK(pn_consumer_close(consumer));
    CHECK_OK(pn_topic_delete(conn, topic));
    CHECK_EQ(files_in(data_dir), 0);
    topic = topic_with(conn, "t", 2, PN_OVERFLOW_DISK);
    channel = channel_of(conn, topic, "c");
    consumer = consumer_of(conn, channel, 2);
    publish_numbers(1, 20);
    check_counts(2, 18);
    finish_numbers(1, 20);
    close_scene();
}

static void check_published(uint64_t count, uint64_t bytes)
{
    pn_topic_stats s = topic_stat(conn, topic);
    CHECK_EQ(s.message_count, count);
    CHECK_EQ(s.message_bytes, bytes);
}

static void test_what_was_published_stays_counted(void)
{
    const pn_message_in in = {
        .body = "body", .body_len = 4, .headers = "headers", .headers_len = 7};
    const uint32_t lens[2] = {4, 4};
    pn_message_out m;
    uint64_t id;
    open_with(1, 0);
    for (int i = 0; i < 3; i++)
        CHECK_OK(pn_topic_publish(conn, NULL, topic, &in, &id));
    CHECK_OK(pn_topic_publish_many(conn, NULL, topic, "bodybody", lens, 2, &in, &id));
    pn_txn *txn = test_begin(conn);
    CHECK_OK(pn_topic_publish(conn, txn, topic, &in, &id));
    CHECK_OK(pn_txn_commit(txn));
    check_counts(1, 5);
    check_published(6, 24); /* bytes of bodies, also of those on disk */
    go_on();
    GET(consumer, &m, "body");
    txn = test_begin(conn);
    CHECK_OK(pn_topic_publish(conn, txn, topic, &in, &id));
    CHECK_OK(answer(conn, txn, &m, PN_ANSWER_FINISH, 0));
    CHECK_OK(answer(conn, NULL, &m, PN_ANSWER_RELEASE, 0));
    CHECK_EQ(pn_txn_commit(txn), -PN_ENOTINFLIGHT);
    check_published(6, 24);
    for (int i = 0; i < 3; i++) {
        GET(consumer, &m, "body");
        FINISH(conn, &m);
    }
    check_counts(1, 2);
    check_published(6, 24);
    CHECK_OK(pn_topic_channel_empty(conn, channel));
    check_counts(0, 0);
    check_published(6, 24);
    CHECK_OK(pn_topic_pause(conn, topic, true));
    for (int i = 0; i < 3; i++)
        CHECK_OK(pn_topic_publish(conn, NULL, topic, &in, &id));
    check_counts(1, 2);
    CHECK_OK(pn_topic_empty(conn, topic));
    check_counts(0, 0);
    check_published(9, 36);
    close_scene();
}

static int commit_one(int number)
{
    char text[16];
    pn_txn *txn = test_begin(conn);
    snprintf(text, sizeof text, "%d", number);
    CHECK_OK(publish_in(conn, txn, topic, text, 0, 0, NULL));
    return pn_txn_commit(txn);
}

static void limited(void *arg)
{
    struct rlimit limit;
    (void) arg;
    open_with(1, 0);
    publish_numbers(1, 3);
    CHECK_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = 2000;
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    int n = 3, rc = 0;
    while (rc == 0) {
        char text[16];
        snprintf(text, sizeof text, "%d", n + 1);
        rc = publish_in(conn, NULL, topic, text, 0, 0, NULL);
        n += rc == 0;
    }
    CHECK_EQ(rc, -EFBIG);
    CHECK(strlen(topic_stat(conn, topic).error) > 0);
    check_counts(1, (uint64_t) n - 1);
    if (!own) { /* it is in memory first, and stays there, one commit beyond max_depth */
        CHECK_OK(commit_one(++n));
        CHECK_EQ(topic_stat(conn, topic).depth, 1);
    }
    const uint64_t there = topic_stat(conn, topic).unfinished;
    limit.rlim_cur = 1; /* of the file of the other queue, too */
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    CHECK_EQ(commit_one(n + 1), -EFBIG);
    CHECK_EQ(publish_in(conn, NULL, topic, "never", 0, 0, NULL), -EFBIG);
    CHECK_EQ(topic_stat(conn, topic).unfinished, there);
    CHECK_EQ(topic_stat(conn, topic).on_disk, (uint64_t) n - there);
    limit.rlim_cur = limit.rlim_max;
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    publish_numbers(n + 1, n + 5);
    CHECK_STR(topic_stat(conn, topic).error, "");
    finish_numbers(1, n + 5);
    close_scene();
}

static void test_a_full_disk_is_the_publishers_error(void)
{
    CHECK_CHILD(spawn(limited, NULL), 0);
}

static void test_a_damaged_record_is_counted_and_the_others_come(void)
{
    char name[512], byte;
    open_with(1, 0);
    publish_numbers(1, 20);
    DIR *dir = opendir(data_dir);
    for (struct dirent *d; (d = readdir(dir)) != NULL;)
        if (d->d_name[0] != '.')
            snprintf(name, sizeof name, "%s/%s", data_dir, d->d_name);
    closedir(dir);
    int fd = open(name, O_RDWR);
    off_t each = (off_t) pn_record_size(57), ten = PN_RECFILE_START + 8 * each;
    CHECK_EQ(pread(fd, &byte, 1, ten + PN_RECORD_HEADER), 1);
    byte ^= 1; /* of its id, which may have any value */
    CHECK_EQ(pwrite(fd, &byte, 1, ten + PN_RECORD_HEADER), 1);
    close(fd);
    finish_numbers(1, 9);
    finish_numbers(11, 20);
    pn_topic_stats s = topic_stat(conn, topic);
    CHECK_EQ(s.corrupt, 1);
    CHECK_EQ(s.message_count, 20);
    close_scene();
}

static void finish_all(void *arg)
{
    const int last = *(const int *) arg;
    pn_message_out m;
    pn_conn *mine = test_connect(engine);
    pn_consumer *c = consumer_of(mine, channel_of(mine, topic_of(mine, "t"), "c"), 3);
    for (int i = 1; i <= last; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", i);
        GET(c, &m, text);
        FINISH(mine, &m);
    }
    CHECK_OK(pn_consumer_close(c));
    pn_conn_close(mine);
}

static void test_a_waiting_consumer_of_another_process_gets_all(void)
{
    int last = 500;
    open_with(3, 0);
    CHECK_OK(pn_consumer_close(consumer));
    pid_t pid = spawn(finish_all, &last);
    publish_numbers(1, last);
    go_on();
    CHECK_CHILD(pid, 0);
    check_counts(0, 0);
    consumer = consumer_of(conn, channel, 2);
    close_scene();
}

int main(void)
{
    data_dir_make();
    test_watchdog(100);
    RUN_BOTH(test_no_more_than_max_depth_is_in_memory_and_the_order_is_kept);
    RUN_BOTH(test_memory_that_is_full_goes_on_on_disk);
    RUN_BOTH(test_delays_and_times_to_live_are_those_of_publishing);
    RUN_BOTH(test_a_batch_goes_to_memory_or_to_disk_as_a_whole);
    RUN_BOTH(test_a_later_channel_has_what_is_on_disk_if_that_is_the_topics_own);
    RUN_BOTH(test_a_transaction_takes_both_places);
    RUN_BOTH(test_a_commit_that_fails_leaves_nothing_on_disk);
    RUN_BOTH(test_prepared_messages_are_in_memory_until_the_commit);
    RUN_BOTH(test_empty_and_delete_take_the_files);
    RUN_BOTH(test_what_was_published_stays_counted);
    RUN_BOTH(test_a_full_disk_is_the_publishers_error);
    RUN_BOTH(test_a_damaged_record_is_counted_and_the_others_come);
    RUN_BOTH(test_a_waiting_consumer_of_another_process_gets_all);
    return tests_done();
}
