/*
 * A process that dies while it looks for what drop-oldest can drop: nothing repairs what it has
 * stored of that, and the next publisher drops the right message.
 */
#include "topic/frontier.h"
#include "topic/tables.h"
#include "topics.h"

enum { N = 8 };

static pn_engine *engine;
static pn_conn *conn;
static pn_ref topic;
static pn_consumer *consumer;
static pn_message_out flying[N];

/* All but `idle` are in flight. */
static uint64_t begin(void)
{
    engine = test_engine(NULL);
    conn = test_connect(engine);
    topic = topic_with(conn, "t", N + 1, PN_OVERFLOW_DROP_OLDEST);
    consumer = consumer_of(conn, channel_of(conn, topic, "c"), N);
    for (int i = 0; i < N; i++) {
        publish(conn, topic, "x");
        CHECK_EQ(pn_consumer_get(consumer, 0, &flying[i]), 1);
    }
    return publish(conn, topic, "idle");
}

static struct pn_topic *inside(void)
{
    return pn_topic_at(conn->seg, (uint32_t) topic - 1);
}

static void look(void *label)
{
    pn_conn *mine = test_connect(engine);
    pn_ref here = topic_of(mine, "t");
    CHECK_OK(pn_crash_arm(label, 1, PN_CRASH_KILL));
    publish(mine, here, "never");
}

/* The message goes for a new one. */
static void check_it_goes(uint64_t id)
{
    uint32_t steps = 100;
    struct pn_hold hold;
    CHECK_ENGINE(engine);
    CHECK_OK(pn_lock_topics(conn->seg, &hold, PN_LOCK_TIMEOUT_NS));
    uint32_t ref = pn_frontier_find_locked(conn->seg, inside(), &steps);
    CHECK(ref != 0);
    CHECK_EQ(pn_message_at(conn->seg, ref)->id, id);
    pn_lock_release(conn->seg);
    publish(conn, topic, "new");
    CHECK_EQ(topic_stat(conn, topic).dropped, 1);
    CHECK_ENGINE(engine);
    CHECK_OK(pn_consumer_close(consumer));
    pn_conn_close(conn);
    pn_engine_close(engine);
}

/* One came back, and is in flight again: the look jumps from it to where it had been. */
static void dies_in_a_jump(const char *label, bool others)
{
    uint64_t idle = begin();
    pn_message_out m;
    uint32_t steps = 100;
    struct pn_hold hold;
    CHECK_OK(pn_lock_topics(conn->seg, &hold, PN_LOCK_TIMEOUT_NS));
    pn_frontier_find_locked(conn->seg, inside(), &steps);
    pn_lock_release(conn->seg);
    CHECK_OK(answer(conn, NULL, &flying[2], PN_ANSWER_RELEASE, 0));
    CHECK_EQ(pn_consumer_get(consumer, 0, &m), 1);
    CHECK_EQ(m.id, flying[2].id);
    CHECK(inside()->back_last != 0);
    CHECK_KILLED(spawn(look, (void *) (uintptr_t) label), SIGKILL);
    if (!others)
        return check_it_goes(idle);
    /* one from where was jumped over comes back, and one before that is in flight again */
    CHECK_OK(answer(conn, NULL, &flying[4], PN_ANSWER_REQUEUE, 0));
    CHECK_OK(answer(conn, NULL, &flying[1], PN_ANSWER_RELEASE, 0));
    CHECK_EQ(pn_consumer_get(consumer, 0, &m), 1);
    CHECK_EQ(m.id, flying[1].id);
    check_it_goes(flying[4].id);
}

/* The list is unsorted, and what came back may stand before the frontier. */
static void dies_when_it_begins_again(const char *label)
{
    uint64_t idle = begin();
    CHECK_OK(answer(conn, NULL, &flying[0], PN_ANSWER_REQUEUE, 0));
    pn_message_out m;
    CHECK_EQ(pn_consumer_get(consumer, 0, &m), 1); /* "idle" */
    CHECK_EQ(m.id, idle);
    inside()->passed[0] = inside()->newest;
    inside()->back_last = 0;
    inside()->unsorted = PN_UNSORTED_MISSED;
    CHECK_KILLED(spawn(look, (void *) (uintptr_t) label), SIGKILL);
    check_it_goes(flying[0].id);
}

static void test_in_a_jump(void)
{
    for (int others = 0; others < 2; others++) {
        dies_in_a_jump("frontier:jumped", others);
        dies_in_a_jump("frontier:passed", others);
    }
}

static void test_when_it_begins_again(void)
{
    dies_when_it_begins_again("frontier:jumped");
    dies_when_it_begins_again("frontier:passed");
}

int main(void)
{
    test_watchdog(100);
    RUN(test_in_a_jump);
    RUN(test_when_it_begins_again);
    return tests_done();
}
