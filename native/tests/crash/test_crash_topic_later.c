/*
 * A process that publishes deferred messages beyond what memory has room for, with some for now and
 * some that expire, and consumes what falls due, is killed at each label on their way out of
 * memory, round there and back (topic/later.c), at its first and at later hits.  Each that was
 * published and not finished comes once; of what the victim died in, all or none.  Of a durable
 * topic, while its log is compacted, that is so too when the segment is gone with the victim.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
enum { MESSAGES = 700, LENGTH = 1000 };

#include "crash_fates.h"

static void publish_one(pn_conn *conn, pn_ref topic, int i)
{
    static char body[LENGTH];
    const int64_t delay = i % 5 == 0 ? 0 : i % 7 == 0 ? 3600 * 1000 * MS : (150 + i % 100) * MS;
    const pn_message_in m = {
        .body = body, .body_len = LENGTH, .delay_ns = delay, .ttl_ns = i % 7 == 0 ? 300 * MS : 0};
    uint64_t id;
    snprintf(body, sizeof body, "%04d", i);
    atomic_store(&fate[i], TELLING);
    CHECK_OK(pn_topic_publish(conn, NULL, topic, &m, &id));
    atomic_store(&fate[i], m.ttl_ns != 0 ? FINISHING : TOLD);
    if (i % 21 == 0 && pn_topic_cancel(conn, NULL, topic, id) == 1)
        atomic_store(&fate[i], FINISHED);
}

static uint64_t left_of(pn_conn *conn, pn_ref topic)
{
    return topic_stat(conn, topic).unfinished + topic_stat(conn, topic).on_disk;
}

static void victim(void *arg)
{
    pn_engine *engine;
    (void) arg;
    CHECK_OK(pn_open(segment, NULL, &engine));
    pn_conn *conn = test_connect(engine);
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    pn_consumer *consumer = consumer_of(conn, channel, 1);
    CHECK_OK(pn_crash_arm(label, nth, PN_CRASH_KILL));
    for (int i = 1; i < MESSAGES - 20; i++) {
        publish_one(conn, topic, i);
        if (i % 16 == 0)
            usleep(10000);
        for (int k = 0; k < 2; k++)
            finish_one(conn, consumer, 0);
    }
    while (left_of(conn, topic) != 0)
        finish_one(conn, consumer, 10 * MS);
    for (int i = 0; i < 200; i++) {
        const pn_message_in m = {.body = "x", .body_len = 1, .delay_ns = 3600 * 1000 * MS};
        uint64_t id;
        CHECK_OK(pn_topic_publish(conn, NULL, topic, &m, &id));
    }
    CHECK_OK(pn_topic_channel_empty(conn, channel));
}

static void check_left(pn_conn *conn, pn_ref topic, pn_ref channel)
{
    static unsigned char seen[MESSAGES];
    pn_consumer *consumer = consumer_of(conn, channel, 1);
    pn_message_out m;
    while (left_of(conn, topic) != 0) {
        int rc = pn_consumer_get(consumer, 100 * MS, &m);
        CHECK(rc >= 0 || rc == -EINTR);
        if (rc != 1)
            continue;
        seen[number_of(&m)]++;
        FINISH(conn, &m);
    }
    CHECK_OK(pn_consumer_close(consumer));
    for (int i = 0; i < MESSAGES; i++) {
        unsigned char was = atomic_load(&fate[i]);
        if (was == TOLD ? seen[i] != 1 : seen[i] > (was == TELLING || was == FINISHING))
            FAIL("message %d, whose fate was %d, came %d times", i, was, seen[i]);
    }
}

/* arg: enum how */
static void crash_case(void *arg)
{
    pn_options o = test_options();
    forget_fates();
    o.topic_memory = 128 << 10;
    o.max_body = 4096;
    struct scene s = scene_open(*(const enum how *) arg, &o, 0);
    channel_of(s.conn, s.topic, "c");
    scene_dies(&s, victim);
    if (strcmp(label, "later:emptied") != 0)
        check_left(s.conn, s.topic, channel_of(s.conn, s.topic, "c"));
    scene_close(&s);
}

int main(void)
{
    static const char *const modules[] = {"later:", "refill:passed", "diskqueue:c",
                                          "topic:discarded", NULL};
    static const uint32_t hits[] = {1, 9, 0};
    const struct cases cases = {modules, hits, "later:emptied", make_fates, crash_case};
    return crash_three_ways(&cases, 45);
}
