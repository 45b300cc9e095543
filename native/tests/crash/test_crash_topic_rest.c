/*
 * A process that publishes to a topic of two channels, one of which rests (topic/rest.c), alone, in
 * batches and in transactions, and consumes from both, is killed at each label on that way, at its
 * first and at later hits.  Each channel gets every message that was published and that it had not
 * finished, once and in order; of what the victim died in, all or none.  Of a durable topic, while
 * its log is compacted, that is so too when the segment is gone with the victim.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "crash_three_ways.h"

enum { ROUNDS = 60, MAX_DEPTH = 12 };

/* Of the channel that rests, beside what crash_stream.h has of the other. */
static struct {
    _Atomic(int) finishing, finished;
} *slow;

static void finish_slow(pn_conn *conn, pn_consumer *consumer)
{
    pn_message_out m;
    char text[16];
    int i = atomic_load(&slow->finished) + 1;
    snprintf(text, sizeof text, "%04d", i);
    GET(consumer, &m, text);
    atomic_store(&slow->finishing, i);
    FINISH(conn, &m);
    atomic_store(&slow->finished, i);
}

static void victim(void *arg)
{
    pn_engine *engine;
    (void) arg;
    CHECK_OK(pn_open(segment, NULL, &engine));
    pn_conn *conn = test_connect(engine);
    pn_ref topic = topic_of(conn, "t"), abandoned = channel_of(conn, topic, "slow");
    pn_consumer *fast = consumer_of(conn, channel_of(conn, topic, "fast"), 1);
    pn_consumer *other = consumer_of(conn, abandoned, 1);
    CHECK_OK(pn_crash_arm(label, nth, PN_CRASH_KILL));
    for (int round = 0; round < ROUNDS; round++) {
        publish_some(conn, topic, atomic_load(&shared->told) + 1, 1 + round % MOST);
        while (atomic_load(&shared->finished) < atomic_load(&shared->told))
            finish_next(conn, fast);
        for (int i = 0; i < round / 20; i++)
            finish_slow(conn, other);
        while (round % 20 == 14 && atomic_load(&slow->finished) < atomic_load(&shared->told))
            finish_slow(conn, other);
        if (round % 20 == 19) {
            CHECK_OK(pn_topic_channel_empty(conn, abandoned));
            atomic_store(&slow->finished, atomic_load(&shared->told));
        }
    }
}

/* What is left, in order and once. */
static void read_left(pn_conn *conn, pn_ref channel, int *first, int *last)
{
    pn_consumer *consumer = consumer_of(conn, channel, 1);
    pn_message_out m;
    *first = *last = 0;
    while (pn_consumer_get(consumer, 0, &m) == 1) {
        int i = number_in(&m);
        if (*first == 0)
            *first = i;
        else
            CHECK_EQ(i, *last + 1);
        *last = i;
        FINISH(conn, &m);
    }
    CHECK_OK(pn_consumer_close(consumer));
}

static void check_slow(int first, int last)
{
    int begun = atomic_load(&shared->begun), told = atomic_load(&shared->told);
    int finishing = atomic_load(&slow->finishing), finished = atomic_load(&slow->finished);
    if (first == 0) {
        CHECK(finished == told || finishing == told || finished == begun);
        return;
    }
    CHECK(last == begun || last == told);
    CHECK(first == finished + 1 || first == finishing + 1);
}

static void set_up(void)
{
    make_journal();
    slow = mmap(NULL, sizeof *slow, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(slow != MAP_FAILED);
}

/* arg: enum how */
static void crash_case(void *arg)
{
    const pn_options o = test_options();
    int first, last;
    memset(shared, 0, sizeof *shared);
    memset(slow, 0, sizeof *slow);
    struct scene s = scene_open(*(const enum how *) arg, &o, MAX_DEPTH);
    channel_of(s.conn, s.topic, "fast");
    channel_of(s.conn, s.topic, "slow");
    scene_dies(&s, victim);
    read_left(s.conn, channel_of(s.conn, s.topic, "fast"), &first, &last);
    check_range(first, last);
    read_left(s.conn, channel_of(s.conn, s.topic, "slow"), &first, &last);
    if (strcmp(label, "rest:emptied") != 0)
        check_slow(first, last);
    CHECK_EQ(topic_stat(s.conn, s.topic).on_disk, 0);
    CHECK_EQ(topic_stat(s.conn, s.topic).unfinished, 0);
    scene_close(&s);
}

int main(void)
{
    static const char *const modules[] = {"rest:",       "diskqueue:c",    "diskqueue:w",
                                          "diskqueue:s", "publish:redone", "publish:live",
                                          NULL};
    static const uint32_t hits[] = {1, 2, 5, 11, 23, 0};
    const struct cases cases = {modules, hits, "rest:emptied", set_up, crash_case};
    return crash_three_ways(&cases, 60);
}
