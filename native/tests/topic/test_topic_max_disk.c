/*
 * test_topic_max_disk.c - max_disk_bytes: what is published is refused when the topic would have
 * more on disk, and nothing has happened; what was accepted before is never refused or lost.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "data_dirs.h"
#include "topics.h"

enum {
    MEMORY = 32 << 10, /* max_memory of the topics here */
    QUOTA = 8192,
    EACH = 100, /* of a message of four bytes, on disk */
    MANY = 3000,
    BATCH = 20
};

static pn_engine *engine;
static pn_conn *conn;
static const char *segment;

static void attach(uint64_t topic_memory)
{
    pn_options o = test_options();
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    if (topic_memory != 0)
        o.topic_memory = topic_memory;
    CHECK_OK(pn_open(segment, &o, &engine));
    conn = test_connect(engine);
}

static void open_scene(void)
{
    data_dir_empty();
    segment = test_segment_name();
    attach(0);
}

static void detach(void)
{
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static void close_scene(void)
{
    detach();
    test_segments_remove();
}

static pn_ref quota_topic(const char *text, uint64_t quota)
{
    const pn_topic_options o = {.given = PN_TOPIC_MAX_MEMORY | PN_TOPIC_MAX_DISK_BYTES,
                                .max_memory = MEMORY,
                                .max_disk_bytes = quota};
    pn_ref topic;
    CHECK_OK(pn_topic_open(conn, text, strlen(text), &o, &topic));
    return topic;
}

static int set_quota(pn_ref topic, uint64_t bytes)
{
    const pn_topic_options o = {.given = PN_TOPIC_MAX_DISK_BYTES, .max_disk_bytes = bytes};
    return pn_topic_configure(conn, topic, &o);
}

static int publish_number(pn_txn *txn, pn_ref topic, int number, int64_t delay_ns)
{
    char text[12];
    snprintf(text, sizeof text, "%04d", number);
    return publish_in(conn, txn, topic, text, delay_ns, 0, NULL);
}

/* From that number on, until it is refused, by its bound: how many there are. */
static int fill(pn_ref topic, int from, int64_t delay_ns)
{
    int i = from, rc = 0;
    while (i < MANY && (rc = publish_number(NULL, topic, i, delay_ns)) == 0)
        i++;
    CHECK_EQ(rc, -PN_ETOPICFULL);
    CHECK(strstr(pn_error_message(), "is full: max_disk_bytes is ") != NULL);
    return i;
}

static int publish_batch(pn_ref topic, int from)
{
    unsigned char bodies[BATCH * 4 + 1];
    uint32_t lens[BATCH];
    uint64_t id;
    for (int i = 0; i < BATCH; i++) {
        char text[12];
        snprintf(text, sizeof text, "%04d", from + i);
        memcpy(bodies + (size_t) i * 4, text, 4);
        lens[i] = 4;
    }
    return pn_topic_publish_many(conn, NULL, topic, bodies, lens, BATCH, NULL, &id);
}

static int publish_in_transaction(pn_ref topic, int from)
{
    pn_txn *txn = test_begin(conn);
    for (int i = 0; i < BATCH; i++)
        CHECK_OK(publish_number(txn, topic, from + i, 0));
    return pn_txn_commit(txn);
}

static void take(pn_consumer *c, int first, int n)
{
    pn_message_out m;
    for (int i = first; i < first + n; i++) {
        CHECK_EQ(pn_consumer_get(c, 0, &m), 1);
        CHECK_EQ(number_in(&m), i);
        FINISH(conn, &m);
    }
}

static void check_same(const pn_topic_stats *a, pn_ref topic)
{
    const pn_topic_stats b = topic_stat(conn, topic);
    CHECK_EQ(a->disk_bytes, b.disk_bytes);
    CHECK_EQ(a->on_disk, b.on_disk);
    CHECK_EQ(a->unfinished, b.unfinished);
    CHECK_EQ(a->message_count, b.message_count);
    CHECK_EQ(a->message_bytes, b.message_bytes);
    CHECK_EQ(a->dropped, b.dropped);
    CHECK_EQ(b.error[0], 0);
}

static uint64_t bytes_of_files(void)
{
    DIR *dir = opendir(data_dir);
    uint64_t bytes = 0;
    struct stat st;
    CHECK(dir != NULL);
    for (const struct dirent *e; (e = readdir(dir)) != NULL;)
        if (fstatat(dirfd(dir), e->d_name, &st, 0) == 0 && S_ISREG(st.st_mode))
            bytes += (uint64_t) st.st_size;
    closedir(dir);
    return bytes;
}

/* ---- refusing -------------------------------------------------------------------------------- */

static void test_a_full_quota_refuses_and_nothing_has_happened(void)
{
    open_scene();
    pn_ref topic = quota_topic("t", QUOTA);
    pn_consumer *c = consumer_of(conn, channel_of(conn, topic, "c"), 1);
    int n = fill(topic, 0, 0);
    CHECK(strstr(pn_error_message(), "topic \"t\"") != NULL);
    CHECK(strstr(pn_error_message(), "is 8192 bytes, 8100 are used, this takes 100 more") != NULL);
    const pn_topic_stats s = topic_stat(conn, topic);
    CHECK_EQ(s.max_disk_bytes, QUOTA);
    CHECK_EQ(s.on_disk, QUOTA / EACH);
    CHECK_EQ(s.disk_bytes, s.on_disk * EACH);
    CHECK(bytes_of_files() >= s.disk_bytes &&
          bytes_of_files() < s.disk_bytes + s.on_disk * 8 + 256);
    const uint64_t files = bytes_of_files();
    CHECK_EQ(publish_number(NULL, topic, n, 0), -PN_ETOPICFULL);
    CHECK_EQ(publish_batch(topic, n), -PN_ETOPICFULL);
    CHECK_EQ(bytes_of_files(), files); /* not even the first of them */
    CHECK_EQ(publish_in_transaction(topic, n), -PN_ETOPICFULL);
    check_same(&s, topic);
    take(c, 0, n);
    CHECK_EQ(topic_stat(conn, topic).disk_bytes, 0);
    CHECK(fill(topic, n, 0) > n + QUOTA / EACH);
    CHECK_OK(pn_consumer_close(c));
    close_scene();
}

static void test_as_much_as_came_back_may_be_published(void)
{
    open_scene();
    pn_ref topic = quota_topic("t", QUOTA);
    pn_consumer *c = consumer_of(conn, channel_of(conn, topic, "c"), 1);
    int n = fill(topic, 0, 0), taken = 0;
    CHECK_EQ(publish_batch(topic, n), -PN_ETOPICFULL);
    for (; topic_stat(conn, topic).disk_bytes + BATCH * EACH > QUOTA; taken++)
        take(c, taken, 1);
    CHECK_OK(publish_batch(topic, n));
    for (; topic_stat(conn, topic).disk_bytes + BATCH * EACH > QUOTA; taken++)
        take(c, taken, 1);
    CHECK_OK(publish_in_transaction(topic, n + BATCH));
    CHECK(topic_stat(conn, topic).disk_bytes <= QUOTA);
    take(c, taken, n + 2 * BATCH - taken);
    NOTHING(c);
    CHECK_OK(pn_consumer_close(c));
    close_scene();
}

static void test_a_quota_is_of_one_topic_and_changes_at_once(void)
{
    open_scene();
    pn_ref topic = quota_topic("t", 4096), other = quota_topic("other", 0);
    channel_of(conn, topic, "c");
    channel_of(conn, other, "c");
    CHECK_EQ(set_quota(topic, 4095), -EINVAL);
    int n = fill(topic, 0, 0);
    for (int i = 0; i < MANY; i++)
        CHECK_OK(publish_number(NULL, other, i, 0));
    CHECK(topic_stat(conn, other).disk_bytes > 4096);
    CHECK_OK(set_quota(topic, QUOTA));
    n = fill(topic, n, 0);
    CHECK(topic_stat(conn, topic).disk_bytes > QUOTA - EACH);
    CHECK_OK(set_quota(topic, 0));
    CHECK_OK(publish_number(NULL, topic, n, 0));
    CHECK_OK(set_quota(topic, 4096)); /* what there is more stays */
    CHECK(topic_stat(conn, topic).disk_bytes > QUOTA);
    CHECK_EQ(publish_number(NULL, topic, n + 1, 0), -PN_ETOPICFULL);
    const pn_topic_options same = {.given = PN_TOPIC_MAX_DISK_BYTES, .max_disk_bytes = 4096},
                           differs = {.given = PN_TOPIC_MAX_DISK_BYTES, .max_disk_bytes = QUOTA};
    CHECK_OK(pn_topic_open(conn, "t", 1, &same, &other));
    CHECK_EQ(pn_topic_open(conn, "t", 1, &differs, &other), -PN_ETOPICOPTIONS);
    close_scene();
}

static void test_a_dead_letter_that_is_refused_stays_where_it_was(void)
{
    const pn_consumer_options o = {.max_in_flight = 1, .dead_letter = "dead", .dead_letter_len = 4};
    pn_message_out m;
    open_scene();
    pn_ref topic = topic_of(conn, "t"), dead = quota_topic("dead", QUOTA);
    channel_of(conn, dead, "c");
    pn_ref channel = channel_of(conn, topic, "c");
    pn_consumer *c = consumer_with(conn, channel, &o);
    fill(dead, 0, 0);
    publish(conn, topic, "poison");
    GET(c, &m, "poison");
    CHECK_EQ(answer(conn, NULL, &m, PN_ANSWER_DEAD_LETTER, 0), -PN_ETOPICFULL);
    CHECK(strstr(pn_error_message(), "topic \"dead\" is full: max_disk_bytes") != NULL);
    CHECK_DEPTHS(conn, channel, 0, 1, 0);
    CHECK_OK(set_quota(dead, 0));
    CHECK_OK(answer(conn, NULL, &m, PN_ANSWER_DEAD_LETTER, 0));
    CHECK_DEPTHS(conn, channel, 0, 0, 0);
    CHECK_OK(pn_consumer_close(c));
    close_scene();
}

/* ---- what was accepted ----------------------------------------------------------------------- */

static void test_what_a_slow_channel_has_counts_until_it_is_consumed_or_emptied(void)
{
    open_scene();
    pn_ref topic = quota_topic("t", QUOTA);
    pn_ref slow = channel_of(conn, topic, "slow");
    pn_consumer *fast = consumer_of(conn, channel_of(conn, topic, "fast"), 1);
    int n = 0;
    while (publish_number(NULL, topic, n, 0) == 0)
        take(fast, n++, 1);
    pn_topic_stats s = topic_stat(conn, topic);
    CHECK_EQ(s.disk_bytes, s.on_disk * EACH);
    CHECK(s.disk_bytes > QUOTA - EACH && s.disk_bytes <= QUOTA);
    CHECK_EQ(publish_batch(topic, n), -PN_ETOPICFULL);
    check_same(&s, topic);
    NOTHING(fast);
    pn_consumer *c = consumer_of(conn, slow, 1);
    take(c, 0, n - 1);
    CHECK_OK(publish_number(NULL, topic, n, 0));
    take(c, n - 1, 2);
    CHECK_OK(pn_consumer_close(c));
    CHECK_EQ(topic_stat(conn, topic).disk_bytes, 0);
    take(fast, n++, 1);
    while (publish_number(NULL, topic, n, 0) == 0)
        take(fast, n++, 1);
    CHECK_OK(pn_topic_channel_empty(conn, slow));
    CHECK_EQ(topic_stat(conn, topic).disk_bytes, 0);
    CHECK_OK(publish_number(NULL, topic, n, 0));
    CHECK_OK(pn_consumer_close(fast));
    close_scene();
}

static void test_late_channels_get_all_that_waited_though_it_takes_more(void)
{
    open_scene();
    pn_ref topic = quota_topic("t", QUOTA);
    int n = fill(topic, 0, 0); /* there is no channel yet */
    CHECK_OK(pn_topic_pause(conn, topic, 1));
    pn_consumer *a = consumer_of(conn, channel_of(conn, topic, "a"), 1);
    pn_consumer *b = consumer_of(conn, channel_of(conn, topic, "b"), 1);
    CHECK_OK(pn_topic_pause(conn, topic, 0));
    CHECK(topic_stat(conn, topic).disk_bytes > QUOTA / 2);
    CHECK_EQ(publish_number(NULL, topic, n, 0), -PN_ETOPICFULL);
    take(a, 0, n);
    NOTHING(a);
    take(b, 0, n);
    NOTHING(b);
    CHECK_EQ(topic_stat(conn, topic).disk_bytes, 0);
    CHECK_OK(publish_number(NULL, topic, n, 0));
    CHECK_OK(pn_consumer_close(a));
    CHECK_OK(pn_consumer_close(b));
    close_scene();
}

/* All that is in memory is put off by a consumer: what waits on disk comes nevertheless. */
static void test_deferred_ones_leave_memory_beyond_the_quota_for_what_waits(void)
{
    pn_message_out m;
    open_scene();
    pn_ref topic = quota_topic("t", QUOTA), channel = channel_of(conn, topic, "c");
    pn_consumer *c = consumer_of(conn, channel, 1);
    const int n = fill(topic, 0, 0);
    for (int i = 0; i < n; i++) {
        CHECK_EQ(pn_consumer_get(c, 0, &m), 1);
        CHECK_EQ(number_in(&m), i);
        CHECK_OK(answer(conn, NULL, &m, PN_ANSWER_REQUEUE, 3600 * 1000 * MS));
    }
    CHECK_DEPTHS(conn, channel, 0, 0, n);
    const uint64_t most = topic_stat(conn, topic).disk_bytes;
    CHECK(most > QUOTA);
    CHECK_EQ(publish_number(NULL, topic, n, 0), -PN_ETOPICFULL);
    CHECK_EQ(publish_number(NULL, topic, n, 3600 * 1000 * MS), -PN_ETOPICFULL);
    CHECK_EQ(publish_batch(topic, n), -PN_ETOPICFULL);
    CHECK_EQ(publish_in_transaction(topic, n), -PN_ETOPICFULL);
    CHECK_EQ(topic_stat(conn, topic).disk_bytes, most);
    CHECK_DEPTHS(conn, channel, 0, 0, n);
    CHECK_OK(pn_topic_channel_empty(conn, channel));
    CHECK_EQ(topic_stat(conn, topic).disk_bytes, 0);
    CHECK_OK(publish_number(NULL, topic, n, 0));
    CHECK_OK(pn_consumer_close(c));
    close_scene();
}

static void test_deferred_ones_are_refused_and_cancelled_ones_count_until_passed(void)
{
    uint64_t id;
    open_scene();
    pn_ref topic = quota_topic("t", QUOTA), channel = channel_of(conn, topic, "c");
    CHECK_OK(publish_in(conn, NULL, topic, "first", 3600 * 1000 * MS, 0, &id));
    const int n = fill(topic, 0, 3600 * 1000 * MS);
    const pn_topic_stats s = topic_stat(conn, topic);
    CHECK(s.disk_bytes > QUOTA - EACH && s.disk_bytes < QUOTA + 2 * EACH);
    CHECK_DEPTHS(conn, channel, 0, 0, n + 1);
    CHECK_EQ(pn_topic_cancel(conn, NULL, topic, id), 1);
    CHECK_EQ(publish_number(NULL, topic, n, 3600 * 1000 * MS), -PN_ETOPICFULL);
    CHECK_OK(pn_topic_channel_delete(conn, channel));
    CHECK_EQ(topic_stat(conn, topic).disk_bytes, 0);
    close_scene();
}

static void test_after_a_reboot_with_less_memory_nothing_is_lost(void)
{
    const pn_topic_options o = {
        .given = PN_TOPIC_DURABLE | PN_TOPIC_MAX_DISK_BYTES, .durable = 1, .max_disk_bytes = QUOTA};
    pn_ref topic;
    open_scene();
    CHECK_OK(pn_topic_open(conn, "t", 1, &o, &topic));
    channel_of(conn, topic, "c");
    for (int i = 0; i < MANY; i++)
        CHECK_OK(publish_number(NULL, topic, i, 0));
    CHECK_EQ(topic_stat(conn, topic).disk_bytes, 0);
    detach();
    test_segment_remove(segment);
    attach(64 << 10);
    topic = topic_of(conn, "t");
    pn_topic_stats s = topic_stat(conn, topic);
    CHECK_EQ(s.max_disk_bytes, QUOTA);
    CHECK(s.disk_bytes > QUOTA && s.disk_bytes >= s.on_disk * EACH);
    CHECK_EQ(publish_number(NULL, topic, MANY, 0), -PN_ETOPICFULL);
    pn_consumer *c = consumer_of(conn, channel_of(conn, topic, "c"), 1);
    take(c, 0, MANY);
    NOTHING(c);
    CHECK_EQ(topic_stat(conn, topic).disk_bytes, 0);
    CHECK_OK(publish_number(NULL, topic, MANY, 0));
    CHECK_OK(pn_consumer_close(c));
    close_scene();
}

static void test_a_prepared_transaction_commits_beyond_it(void)
{
    pn_txn *txn;
    open_scene();
    pn_ref topic = quota_topic("t", QUOTA);
    pn_consumer *c = consumer_of(conn, channel_of(conn, topic, "c"), 1);
    txn = test_begin(conn);
    for (int i = 0; i < BATCH; i++)
        CHECK_OK(publish_number(txn, topic, i, 0));
    CHECK_OK(pn_txn_prepare(txn));
    int n = fill(topic, BATCH, 0);
    CHECK_OK(pn_txn_commit(txn));
    pn_message_out m;
    bool seen[MANY] = {false};
    for (int i = 0; i < n; i++) {
        CHECK_EQ(pn_consumer_get(c, 0, &m), 1);
        CHECK(!seen[number_in(&m)]);
        seen[number_in(&m)] = true;
        FINISH(conn, &m);
    }
    NOTHING(c);
    CHECK_EQ(topic_stat(conn, topic).disk_bytes, 0);
    CHECK_OK(pn_consumer_close(c));
    close_scene();
}

static void test_emptying_and_deleting_make_room(void)
{
    open_scene();
    pn_ref topic = quota_topic("t", QUOTA);
    fill(topic, 0, 0);
    CHECK_OK(pn_topic_empty(conn, topic));
    CHECK_EQ(topic_stat(conn, topic).disk_bytes, 0);
    fill(topic, 0, 0);
    CHECK(topic_stat(conn, topic).disk_bytes > QUOTA - EACH);
    CHECK_OK(pn_topic_delete(conn, topic));
    topic = quota_topic("t", QUOTA);
    CHECK_EQ(topic_stat(conn, topic).disk_bytes, 0);
    fill(topic, 0, 0);
    close_scene();
}

int main(void)
{
    data_dir_make();
    test_watchdog(110);
    RUN(test_a_full_quota_refuses_and_nothing_has_happened);
    RUN(test_as_much_as_came_back_may_be_published);
    RUN(test_a_quota_is_of_one_topic_and_changes_at_once);
    RUN(test_a_dead_letter_that_is_refused_stays_where_it_was);
    RUN(test_what_a_slow_channel_has_counts_until_it_is_consumed_or_emptied);
    RUN(test_late_channels_get_all_that_waited_though_it_takes_more);
    RUN(test_deferred_ones_leave_memory_beyond_the_quota_for_what_waits);
    RUN(test_deferred_ones_are_refused_and_cancelled_ones_count_until_passed);
    RUN(test_after_a_reboot_with_less_memory_nothing_is_lost);
    RUN(test_a_prepared_transaction_commits_beyond_it);
    RUN(test_emptying_and_deleting_make_room);
    return 0;
}
