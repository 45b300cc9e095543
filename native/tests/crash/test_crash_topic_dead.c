/*
 * A process whose dead letters go to a topic that overflows to disk is killed at each label on that
 * way, with durable topics and without, and with a channel there and without: each message is in
 * its topic or in that of the dead letters, once.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "data_dirs.h"
#include "topics.h"

enum { MESSAGES = 12, IN_MEMORY = 3 };

static const char *label, *segment;
static uint32_t nth;
static bool durable, has_channel;

static pn_ref topic_in(pn_conn *conn, const char *name, uint64_t max_depth)
{
    pn_topic_options o = {.given = PN_TOPIC_MAX_DEPTH | PN_TOPIC_OVERFLOW,
                          .max_depth = max_depth,
                          .overflow = PN_OVERFLOW_DISK};
    pn_ref topic;
    if (durable) {
        o.given |= PN_TOPIC_DURABLE;
        o.durable = 1;
    }
    CHECK_OK(pn_topic_open(conn, name, strlen(name), &o, &topic));
    return topic;
}

static void victim(void *arg)
{
    const pn_consumer_options o = {.max_in_flight = 1, .dead_letter = "dead", .dead_letter_len = 4};
    pn_engine *engine;
    (void) arg;
    CHECK_OK(pn_open(segment, NULL, &engine));
    pn_conn *conn = test_connect(engine);
    pn_consumer *consumer = consumer_with(conn, channel_of(conn, topic_of(conn, "t"), "c"), &o);
    pn_message_out m;
    CHECK_OK(pn_crash_arm(label, nth, PN_CRASH_KILL));
    for (int i = 0; i < MESSAGES; i++) {
        CHECK_EQ(pn_consumer_get(consumer, 0, &m), 1);
        CHECK_OK(answer(conn, NULL, &m, PN_ANSWER_DEAD_LETTER, 0));
    }
}

static void take_all(pn_conn *conn, pn_ref topic, int seen[MESSAGES + 1])
{
    pn_consumer *consumer = consumer_of(conn, channel_of(conn, topic, "c"), 1);
    pn_message_out m;
    while (pn_consumer_get(consumer, 0, &m) == 1) {
        int i = number_in(&m);
        CHECK(i >= 1 && i <= MESSAGES);
        seen[i]++;
        FINISH(conn, &m);
    }
    CHECK_OK(pn_consumer_close(consumer));
    CHECK_EQ(topic_stat(conn, topic).unfinished, 0);
    CHECK_EQ(topic_stat(conn, topic).on_disk, 0);
}

static void crash_case(void *arg)
{
    pn_options o = test_options();
    pn_engine *engine;
    int seen[MESSAGES + 1] = {0};
    (void) arg;
    segment = test_segment_name();
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    CHECK_OK(pn_open(segment, &o, &engine));
    pn_conn *conn = test_connect(engine);
    pn_ref topic = topic_in(conn, "t", 0), dead = topic_in(conn, "dead", IN_MEMORY);
    channel_of(conn, topic, "c");
    if (has_channel)
        channel_of(conn, dead, "c");
    for (int i = 1; i <= MESSAGES; i++) {
        char text[12];
        snprintf(text, sizeof text, "%04d", i);
        publish(conn, topic, text);
    }
    int status = reap(spawn(victim, NULL));
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        FAIL("%s was not reached %u times", label, nth);
    CHECK_ENGINE(engine);
    take_all(conn, topic, seen);
    take_all(conn, dead, seen);
    for (int i = 1; i <= MESSAGES; i++)
        CHECK_EQ(seen[i], 1);
    CHECK_ENGINE(engine);
    CHECK_OK(pn_topic_delete(conn, topic));
    CHECK_OK(pn_topic_delete(conn, dead));
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static void run_label(const char *at)
{
    static const uint32_t hits[] = {1, IN_MEMORY, IN_MEMORY + 1, MESSAGES - IN_MEMORY};
    label = at;
    for (size_t hit = 0; hit < sizeof hits / sizeof hits[0]; hit++) {
        nth = hits[hit];
        CHECK_CHILD(spawn(crash_case, NULL), 0);
    }
}

int main(void)
{
    static const char *const labels[] = {"answer:redo",          "answer:redo-valid",
                                         "answer:dead",          "diskqueue:committed",
                                         "topic:delivery-ended", "spilled:staged"};
    static const char *const own[] = {"spilled:told", "spilled:committed", "publish:redone"};
    static const char *const rest[] = {"rest:pump", "rest:pump-valid", "rest:pumped"};
    data_dir_make();
    test_watchdog(110);
    for (int i = 0; i < 4; i++) {
        durable = i % 2 == 1;
        has_channel = i >= 2;
        for (size_t k = 0; k < sizeof labels / sizeof labels[0]; k++)
            run_label(labels[k]);
        for (size_t k = 0; k < 3; k++)
            run_label(has_channel ? rest[k] : own[k]);
    }
    return 0;
}
