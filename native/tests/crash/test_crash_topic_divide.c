/*
 * A topic of two channels, of which one is not read and has all the memory that it may have.  A
 * process that publishes deferred messages and consumes the other channel is killed at each label
 * on which what falls due goes to that one in memory and to the first in files (rest_given.c).
 * Each channel gets every message that was published and that it had not finished, once; of what
 * the victim died in, all or none.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
enum { MESSAGES = 500, LENGTH = 400 };

#include "crash_fates.h"

static void publish_one(pn_conn *conn, pn_ref topic, int i)
{
    static char body[LENGTH];
    const pn_message_in m = {.body = body,
                             .body_len = LENGTH,
                             .delay_ns = i % 5 == 0 ? slowness * (150 + i % 50) * MS : 0};
    uint64_t id;
    snprintf(body, sizeof body, "%04d", i);
    atomic_store(&fate[i], TELLING);
    CHECK_OK(pn_topic_publish(conn, NULL, topic, &m, &id));
    atomic_store(&fate[i], TOLD);
}

static void victim(void *arg)
{
    pn_engine *engine;
    (void) arg;
    CHECK_OK(pn_open(segment, NULL, &engine));
    pn_conn *conn = test_connect(engine);
    pn_ref topic = topic_of(conn, "t");
    pn_consumer *consumer = consumer_of(conn, channel_of(conn, topic, "read"), 1);
    int finished = 0;
    CHECK_OK(pn_crash_arm(label, nth, PN_CRASH_KILL));
    for (int i = 0; i < MESSAGES; i++) {
        publish_one(conn, topic, i);
        finished += finish_one(conn, consumer, 0);
    }
    while (finished < MESSAGES)
        finished += finish_one(conn, consumer, 10 * MS);
}

static void check_channel(pn_conn *conn, pn_ref channel, bool read)
{
    static unsigned char seen[MESSAGES];
    pn_consumer *consumer = consumer_of(conn, channel, 1);
    pn_topic_channel_stats s;
    pn_message_out m;
    memset(seen, 0, sizeof seen);
    do {
        int rc = pn_consumer_get(consumer, 10 * MS, &m);
        CHECK(rc >= 0 || rc == -EINTR);
        if (rc == 1) {
            seen[number_of(&m)]++;
            FINISH(conn, &m);
        }
        s = channel_stat(conn, channel);
    } while (s.depth + s.deferred + s.in_flight != 0);
    CHECK_OK(pn_consumer_close(consumer));
    for (int i = 0; i < MESSAGES; i++) {
        const unsigned char was = atomic_load(&fate[i]);
        const bool once = read ? was == TOLD : was >= TOLD;
        const int most = was == TELLING || was == FINISHING;
        if (once ? seen[i] != 1 : seen[i] > most)
            FAIL("message %d, whose fate was %d, came %d times to channel \"%s\"", i, was, seen[i],
                 read ? "read" : "idle");
    }
}

/* arg: enum how */
static void crash_case(void *arg)
{
    pn_options o = test_options();
    forget_fates();
    o.topic_memory = 256 << 10;
    struct scene s = scene_open(*(const enum how *) arg, &o, 0);
    channel_of(s.conn, s.topic, "read");
    channel_of(s.conn, s.topic, "idle");
    scene_dies(&s, victim);
    check_channel(s.conn, channel_of(s.conn, s.topic, "read"), true);
    check_channel(s.conn, channel_of(s.conn, s.topic, "idle"), false);
    CHECK_EQ(topic_stat(s.conn, s.topic).on_disk, 0);
    CHECK_EQ(topic_stat(s.conn, s.topic).unfinished, 0);
    scene_close(&s);
}

int main(void)
{
    static const char *const modules[] = {"divide:", "refill:passed", NULL};
    static const uint32_t hits[] = {1, 2, 9, 0};
    const struct cases cases = {modules, hits, "", make_fates, crash_case};
    return crash_three_ways(&cases, 36);
}
