/*
 * test_topic_smaller.c - durable topics in a segment with less memory than before: what was given
 * to channels and has no room any more comes back to those channels alone, with its attempts and
 * times, however often that happens, and not to one that was emptied or deleted meanwhile.
 */
#include "topic_smaller.h"

static void open_with_little(void)
{
    fill(0);
    reboot(LITTLE);
    CHECK(topic_stat(conn, topic).on_disk >= 10);
}

static void close_scene(void)
{
    CHECK_ENGINE(engine);
    pn_remove_spill_files(engine);
    detach();
    data_dir_empty();
    CHECK_EQ(files_in(data_dir), 0);
}

static uint64_t unfinished(void)
{
    pn_topic_stats s = topic_stat(conn, topic);
    return s.unfinished + s.on_disk;
}

static void finish_all(void)
{
    finish_some(INT32_MAX);
    check_nothing_is_left();
    CHECK(topic_stat(conn, topic).on_disk <= count_deferred());
    CHECK_ENGINE(engine);
}

static void test_each_channel_gets_what_it_had_with_its_attempts(void)
{
    uint64_t bytes;
    open_with_little();
    uint64_t there = count_left(&bytes);
    pn_ref late = channel_of(conn, topic, "late");
    CHECK_EQ(topic_stat(conn, topic).message_count, there);
    CHECK_EQ(topic_stat(conn, topic).message_bytes, bytes);
    finish_all();
    CHECK_EQ(unfinished(), count_deferred());
    CHECK_EQ(count_deferred(), 2);
    CHECK_EQ(channel_stat(conn, late).message_count, 0);
    CHECK_EQ(topic_stat(conn, topic).message_count, there);
    CHECK_EQ(topic_stat(conn, topic).message_bytes, bytes);
    publish_number(LAST + 1, 0);
    CHECK_EQ(channel_stat(conn, late).depth, 1);
    close_scene();
}

static void test_again_and_again(void)
{
    fill(0);
    for (int n = 0; n < 6; n++) {
        reboot(LITTLE);
        CHECK_EQ(finish_some(4), 4);
    }
    reboot(PLENTY);
    CHECK_EQ(topic_stat(conn, topic).on_disk, 0);
    CHECK_EQ(channel_stat(conn, channel[0]).deferred, 1);
    CHECK_EQ(channel_stat(conn, channel[1]).deferred, 1);
    finish_some(4);
    reboot(LITTLE);
    finish_all();
    reboot(LITTLE);
    CHECK_EQ(unfinished(), count_deferred());
    close_scene();
}

/* As after a death under the lock, or a sync that failed. */
static void test_a_log_written_again_says_the_same(void)
{
    open_with_little();
    CHECK_EQ(finish_some(2), 2);
    uint64_t compactions = test_inside()->topics.ctl->log.compactions;
    test_inside()->topics.ctl->log_behind = 1;
    CHECK_EQ(finish_some(1), 1);
    CHECK_EQ(test_inside()->topics.ctl->log.compactions, compactions + 1);
    CHECK(topic_stat(conn, topic).on_disk > 5);
    reboot(LITTLE);
    finish_all();
    close_scene();
}

/* Before the segment goes, or not. */
static void empty_and_delete(bool then_reboot)
{
    open_with_little();
    CHECK_OK(pn_topic_channel_empty(conn, channel[0]));
    memset(left[0], 0, sizeof left[0]);
    if (then_reboot)
        reboot(LITTLE);
    CHECK_EQ(finish_some(3), 3);
    CHECK(topic_stat(conn, topic).on_disk != 0);
    CHECK_OK(pn_consumer_close(consumer[1]));
    CHECK_OK(pn_topic_channel_delete(conn, channel[1]));
    channel[1] = channel_of(conn, topic, "b"); /* another one of that name */
    consumer[1] = consumer_of(conn, channel[1], 1);
    memset(left[1], 0, sizeof left[1]);
    if (then_reboot)
        reboot(LITTLE);
    finish_all();
    CHECK_EQ(unfinished(), 0);
    publish_number(LAST + 1, 0);
    for (int c = 0; c < CHANNELS; c++) {
        pn_message_out m = get_number(c, LAST + 1);
        FINISH(conn, &m);
    }
    close_scene();
}

static void test_a_channel_emptied_or_deleted_gets_none_of_them(void)
{
    empty_and_delete(false);
    empty_and_delete(true);
}

/* With its record, while others keep what was its own on disk. */
static void test_a_channel_made_again_is_another_one(void)
{
    open_with_little();
    uint64_t given = topic_stat(conn, topic).on_disk;
    CHECK_OK(pn_consumer_close(consumer[1]));
    pn_ref before = channel[1];
    CHECK_OK(pn_topic_channel_delete(conn, channel[1]));
    channel[1] = channel_of(conn, topic, "b");
    CHECK_EQ((uint32_t) channel[1], (uint32_t) before);
    CHECK(channel[1] != before);
    consumer[1] = consumer_of(conn, channel[1], 1);
    memset(left[1], 0, sizeof left[1]);
    CHECK(topic_stat(conn, topic).on_disk > given / 2);
    finish_all();
    CHECK_EQ(channel_stat(conn, channel[1]).message_count, 0);
    close_scene();
}

/* That is of what the topic itself has, and not of what its channels have. */
static void test_emptying_the_topic_leaves_them(void)
{
    open_with_little();
    uint64_t given = topic_stat(conn, topic).on_disk;
    for (int n = 0; n < 3; n++) {
        CHECK_OK(pn_topic_pause(conn, topic, 1));
        for (int i = 1; i <= 8; i++)
            publish_number(LAST + i, 0);
        CHECK_EQ(topic_stat(conn, topic).depth, 8);
        pn_topic_stats before = topic_stat(conn, topic);
        CHECK_OK(pn_topic_empty(conn, topic));
        CHECK_EQ(topic_stat(conn, topic).depth, 0);
        CHECK_EQ(topic_stat(conn, topic).on_disk, given);
        CHECK_OK(pn_topic_pause(conn, topic, 0));
        CHECK_EQ(topic_stat(conn, topic).message_count, before.message_count);
        CHECK_EQ(topic_stat(conn, topic).message_bytes, before.message_bytes);
        if (n == 1)
            reboot(LITTLE);
    }
    CHECK_ENGINE(engine);
    finish_all();
    CHECK_EQ(unfinished(), count_deferred());
    for (int i = 1; i <= 40; i++)
        publish_number(LAST + 1, 0);
    CHECK(topic_stat(conn, topic).on_disk != 0);
    for (int c = 0; c < CHANNELS; c++)
        CHECK_OK(pn_topic_channel_empty(conn, channel[c])); /* there are none left: the files go */
    CHECK_EQ(topic_stat(conn, topic).on_disk, 0);
    close_scene();
}

static void test_what_expires_on_disk_expires_for_its_channels(void)
{
    uint64_t wanted = 0, expired = 0;
    const int64_t ttl = 500 * MS;
    fill(ttl);
    int64_t until = test_now_ns() + ttl;
    reboot(LITTLE);
    uint64_t before = topic_stat(conn, topic).expired;
    CHECK_SOON(test_now_ns() > until); /* its time is over */
    for (int c = 0; c < CHANNELS; c++)
        NOTHING(consumer[c]);
    CHECK_EQ(unfinished(), 0);
    CHECK_EQ(topic_stat(conn, topic).message_count + before, count_left(&(uint64_t) {0}));
    for (int c = 0; c < CHANNELS; c++) {
        expired += channel_stat(conn, channel[c]).expired;
        for (int i = 1; i <= LAST; i++)
            wanted += left[c][i].there != 0;
    }
    if (before == 0) /* else there was little time */
        CHECK_EQ(expired, wanted);
    close_scene();
}

static void test_a_time_to_live_is_kept(void)
{
    pn_message_out m;
    const int64_t ttl = HOUR;
    fill(ttl);
    int64_t now = test_now_ns();
    reboot(LITTLE);
    while (left[1][LAST].there != 0 && finish_some(1) == 1)
        if (got_last[1] == LAST - 2) {
            m = get_number(1, LAST);
            CHECK(m.expires_ns <= now + ttl && m.expires_ns > now + ttl / 2);
            CHECK_OK(answer(conn, NULL, &m, PN_ANSWER_RELEASE, 0));
            got_last[1] = LAST - 1;
        }
    close_scene();
}

static void test_attempts_go_on_to_the_dead_letter(void)
{
    const pn_consumer_options strict = {
        .max_in_flight = 1, .max_attempts = 2, .dead_letter = "dead", .dead_letter_len = 4};
    pn_message_out m;
    open_with_little();
    CHECK_OK(pn_consumer_close(consumer[1]));
    consumer[1] = consumer_with(conn, channel[1], &strict);
    pn_ref dead = topic_of(conn, "dead");
    pn_consumer *reader = consumer_of(conn, channel_of(conn, dead, "c"), 1);
    while (got_last[1] != LAST - 2)
        CHECK_EQ(finish_some(1), 1);
    m = get_number(1, LAST);
    CHECK_OK(answer(conn, NULL, &m, PN_ANSWER_REQUEUE, 0));
    left[1][LAST].there = 0;
    CHECK_EQ(pn_consumer_get(reader, TEST_PATIENCE_MS * MS, &m), 1);
    CHECK_EQ(number_in(&m), LAST);
    FINISH(conn, &m);
    CHECK_OK(pn_consumer_close(reader));
    finish_all();
    close_scene();
}

static void test_a_paused_channel_stays_so(void)
{
    fill(0);
    CHECK_OK(pn_topic_channel_pause(conn, channel[1], 1));
    CHECK_OK(pn_topic_pause(conn, topic, 1)); /* they have left the topic */
    reboot(LITTLE);
    CHECK_EQ(channel_stat(conn, channel[1]).paused, 1);
    while (finish_one(0))
        ;
    NOTHING(consumer[1]);
    CHECK(topic_stat(conn, topic).on_disk != 0); /* memory is full of what is paused */
    CHECK_OK(pn_topic_channel_pause(conn, channel[1], 0));
    finish_all();
    close_scene();
}

/* Also where it stands again when the topic was emptied. */
static void test_one_that_is_deferred_for_all_can_be_cancelled(void)
{
    uint64_t gone, kept;
    fill(0);
    CHECK_OK(publish_in(conn, NULL, topic, "gone", HOUR, 0, &gone));
    CHECK_OK(publish_in(conn, NULL, topic, "kept", HOUR, 0, &kept));
    reboot(LITTLE);
    uint64_t before = topic_stat(conn, topic).on_disk;
    CHECK_EQ(pn_topic_cancel(conn, NULL, topic, gone), 1);
    CHECK_EQ(topic_stat(conn, topic).on_disk, before - 1);
    CHECK_OK(pn_topic_empty(conn, topic));
    CHECK_EQ(topic_stat(conn, topic).on_disk, before - 1);
    CHECK_ENGINE(engine);
    reboot(LITTLE);
    CHECK_EQ(topic_stat(conn, topic).on_disk, before - 1);
    CHECK_EQ(pn_topic_cancel(conn, NULL, topic, gone), 0);
    CHECK_EQ(pn_topic_cancel(conn, NULL, topic, kept), 1);
    finish_all();
    CHECK_EQ(unfinished(), count_deferred());
    close_scene();
}

int main(void)
{
    data_dir_make();
    test_watchdog(100);
    make_left();
    RUN(test_each_channel_gets_what_it_had_with_its_attempts);
    RUN(test_again_and_again);
    RUN(test_a_log_written_again_says_the_same);
    RUN(test_a_channel_emptied_or_deleted_gets_none_of_them);
    RUN(test_a_channel_made_again_is_another_one);
    RUN(test_emptying_the_topic_leaves_them);
    RUN(test_what_expires_on_disk_expires_for_its_channels);
    RUN(test_a_time_to_live_is_kept);
    RUN(test_attempts_go_on_to_the_dead_letter);
    RUN(test_a_paused_channel_stays_so);
    RUN(test_one_that_is_deferred_for_all_can_be_cancelled);
    return tests_done();
}
