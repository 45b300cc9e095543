/*
 * test_topic_frontier.c - which message a topic drops for a new one, against a model that looks at
 * all of them, and how many are looked at for it.
 */
#include "segment/lock.h"
#include "topic/frontier.h"
#include "topic/tables.h"
#include "topics.h"

enum { CHANNELS = 2, DEPTH = 200, ROUNDS = 40000, MANY = 20000 };

static pn_message_out flying[MANY];
static int nflying;

static pn_engine *engine;
static pn_conn *conn;
static pn_ref topic, channel[CHANNELS];
static pn_consumer *consumer[CHANNELS];

static void open_scene(uint64_t depth, int channels)
{
    pn_options o = test_options();
    o.topic_memory = UINT64_C(64) << 20;
    engine = test_engine(&o);
    conn = test_connect(engine);
    topic = topic_with(conn, "t", depth, PN_OVERFLOW_DROP_OLDEST);
    for (int i = 0; i < channels; i++) {
        channel[i] = channel_of(conn, topic, i == 0 ? "a" : "b");
        consumer[i] = consumer_of(conn, channel[i], 65535);
    }
    nflying = 0;
}

static void close_scene(int channels)
{
    CHECK_ENGINE(engine);
    for (int i = 0; i < channels; i++)
        pn_consumer_close(consumer[i]);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static bool is_idle(const struct pn_message *m)
{
    PN_EACH_DELIVERY (conn->seg, m, at)
        if (pn_state_kind(pn_load_relaxed(&pn_delivery_at(conn->seg, at)->state)) >=
            PN_KIND_IN_FLIGHT)
            return false;
    return true;
}

struct listed {
    uint64_t id;
    bool idle;
};

/* Oldest first. */
static int list_messages(struct listed list[DEPTH])
{
    int n = 0;
    for (uint32_t at = pn_topic_at(conn->seg, (uint32_t) topic - 1)->oldest; at != 0; n++) {
        const struct pn_message *m = pn_message_at(conn->seg, at);
        CHECK(n < DEPTH);
        list[n] = (struct listed) {m->id, is_idle(m)};
        at = m->next;
    }
    return n;
}

/* One that is idle goes for a new one if it is full; the oldest, if `sorted`. */
static void publish_one(bool sorted)
{
    struct listed before[DEPTH], after[DEPTH];
    uint64_t id;
    int n = list_messages(before), oldest = 0, gone = 0;
    while (oldest < n && !before[oldest].idle)
        oldest++;
    if (publish_in(conn, NULL, topic, "x", 0, 0, &id) != 0) {
        CHECK(n == DEPTH && oldest == n);
        return;
    }
    int m = list_messages(after);
    CHECK_EQ(after[m - 1].id, id);
    if (n < DEPTH) {
        CHECK_EQ(m, n + 1);
        return;
    }
    CHECK_EQ(m, n);
    while (after[gone].id == before[gone].id)
        gone++;
    CHECK(before[gone].idle);
    CHECK(!sorted || gone == oldest);
}

static void get_one_of(int c)
{
    if (nflying < MANY && pn_consumer_get(consumer[c], 0, &flying[nflying]) == 1)
        nflying++;
}

static void answer_one(uint64_t *random)
{
    static const int answers[] = {PN_ANSWER_FINISH, PN_ANSWER_REQUEUE, PN_ANSWER_RELEASE};
    if (nflying == 0)
        return;
    int i = (int) (test_random(random) % (uint64_t) nflying);
    CHECK_OK(answer(conn, NULL, &flying[i], answers[test_random(random) % 3], 0));
    flying[i] = flying[--nflying];
}

/* Its ids are older than those of what is published until it commits. */
static void publish_later(pn_txn **txn)
{
    if (*txn == NULL) {
        CHECK_OK(pn_txn_begin(conn, txn));
        CHECK_OK(publish_in(conn, *txn, topic, "x", 0, 0, NULL));
    } else {
        int rc = pn_txn_commit(*txn);
        CHECK(rc == 0 || rc == -PN_ETOPICFULL);
        *txn = NULL;
    }
}

static void play(bool sorted)
{
    uint64_t random = 7;
    pn_txn *txn = NULL;
    open_scene(DEPTH, CHANNELS);
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t what = test_random(&random) % 8;
        if (!sorted && what == 0)
            publish_later(&txn);
        else if (what < 3)
            publish_one(sorted);
        else if (what < (i / 1000 % 2 == 0 ? 5U : 7U)) /* much is in flight, or little */
            get_one_of((int) (what % CHANNELS));
        else
            answer_one(&random);
        if (i % 64 == 0)
            CHECK_ENGINE(engine);
    }
    if (txn != NULL)
        pn_txn_abort(txn);
    CHECK(topic_stat(conn, topic).dropped > 1000);
    close_scene(CHANNELS);
}

static void test_it_is_the_oldest_at_any_time(void)
{
    play(true);
}

static void test_none_is_refused_while_one_can_be_dropped(void)
{
    play(false);
}

static uint32_t steps_of_a_look(uint32_t *ref)
{
    struct pn_hold hold;
    uint32_t most = 10 * MANY, steps = most;
    CHECK_OK(pn_lock_topics(conn->seg, &hold, PN_LOCK_TIMEOUT_NS));
    *ref = pn_frontier_find_locked(conn->seg, pn_topic_at(conn->seg, (uint32_t) topic - 1), &steps);
    pn_lock_release(conn->seg);
    return most - steps;
}

static void have_many_in_flight(void)
{
    open_scene(MANY + 2, 1);
    for (int i = 0; i < MANY; i++) {
        publish(conn, topic, "x");
        CHECK_EQ(pn_consumer_get(consumer[0], 0, &flying[i]), 1);
    }
}

/* Of 20,000 in flight each is passed once, whatever comes back afterwards. */
static void test_few_are_looked_at(void)
{
    uint32_t ref;
    have_many_in_flight();
    publish(conn, topic, "y");
    publish(conn, topic, "y"); /* it is full */
    steps_of_a_look(&ref);
    for (int i = 0; i < 50; i++) {
        publish(conn, topic, "y"); /* drops one */
        CHECK(steps_of_a_look(&ref) <= 3);
    }
    for (int i = 10; i < 60; i++) {
        int k = i % 2 ? i : MANY - i;
        CHECK_OK(answer(conn, NULL, &flying[k], PN_ANSWER_REQUEUE, 0));
        CHECK(steps_of_a_look(&ref) <= 3);
        CHECK_EQ(pn_message_at(conn->seg, ref)->id, flying[k].id);
        publish(conn, topic, "y"); /* drops that one */
        CHECK(steps_of_a_look(&ref) <= 3);
    }
    CHECK_EQ(topic_stat(conn, topic).dropped, 100);
    for (int i = 200; i > 100; i--) { /* each before the one before */
        CHECK_OK(answer(conn, NULL, &flying[i], PN_ANSWER_REQUEUE, 0));
        CHECK_EQ(steps_of_a_look(&ref), 1);
    }
    for (int i = 0; i < 100; i++)
        publish(conn, topic, "y");
    CHECK(steps_of_a_look(&ref) <= 3);
    close_scene(1);
}

/* Nor when all is in flight, and the newest ends. */
static void test_few_are_looked_at_in_vain(void)
{
    uint32_t ref;
    have_many_in_flight();
    CHECK(steps_of_a_look(&ref) <= 2); /* the publishers have looked already */
    CHECK_EQ(ref, 0);
    for (int i = MANY; i-- > MANY - 50;) {
        FINISH(conn, &flying[i]);
        CHECK_EQ(steps_of_a_look(&ref), 1);
    }
    close_scene(1);
}

/* The look ends in the middle: the next hold of the lock goes on. */
static void test_a_look_goes_on_in_pieces(void)
{
    uint32_t steps = 100, looks = 0, ref = 0;
    struct pn_hold hold;
    have_many_in_flight();
    uint64_t idle = publish(conn, topic, "y");
    pn_frontier_forget(pn_topic_at(conn->seg, (uint32_t) topic - 1));
    for (; ref == 0; looks++, steps = 100) {
        CHECK_OK(pn_lock_topics(conn->seg, &hold, PN_LOCK_TIMEOUT_NS));
        ref = pn_frontier_find_locked(conn->seg, pn_topic_at(conn->seg, (uint32_t) topic - 1),
                                      &steps);
        pn_lock_release(conn->seg);
    }
    CHECK_EQ(looks, MANY / 100 + 1);
    CHECK_EQ(pn_message_at(conn->seg, ref)->id, idle);
    close_scene(1);
}

/* Its commit is one hold of the lock. */
static void test_a_transaction_looks_before_it_commits(void)
{
    uint32_t ref;
    pn_txn *txn;
    have_many_in_flight();
    uint64_t idle = publish(conn, topic, "y");
    pn_frontier_forget(pn_topic_at(conn->seg, (uint32_t) topic - 1));
    CHECK_OK(pn_txn_begin(conn, &txn));
    CHECK_OK(publish_in(conn, txn, topic, "z", 0, 0, NULL));
    CHECK_EQ(steps_of_a_look(&ref), 1);
    CHECK_EQ(pn_message_at(conn->seg, ref)->id, idle);
    CHECK_OK(pn_txn_commit(txn));
    close_scene(1);
}

/* A transaction has its ids before others that are in the list before it. */
static void test_an_unsorted_list(void)
{
    pn_message_out m[4];
    pn_txn *txn;
    uint32_t ref;
    open_scene(3, 1);
    CHECK_OK(pn_txn_begin(conn, &txn));
    CHECK_OK(publish_in(conn, txn, topic, "first", 0, 0, NULL));
    publish(conn, topic, "a");
    publish(conn, topic, "b");
    CHECK_OK(pn_txn_commit(txn));
    GET(consumer[0], &m[0], "a");
    GET(consumer[0], &m[1], "b");
    GET(consumer[0], &m[2], "first");
    CHECK_EQ(publish_in(conn, NULL, topic, "none", 0, 0, NULL), -PN_ETOPICFULL);
    for (int i = 0; i < 3; i++) { /* each of them is found, though ids say otherwise */
        CHECK_OK(answer(conn, NULL, &m[i], PN_ANSWER_REQUEUE, 0));
        publish(conn, topic, "c");
        GET(consumer[0], &m[3], "c");
        CHECK_EQ(publish_in(conn, NULL, topic, "none", 0, 0, NULL), -PN_ETOPICFULL);
        CHECK_EQ(steps_of_a_look(&ref), 1); /* all were looked at once more, and are not again */
    }
    CHECK_EQ(topic_stat(conn, topic).dropped, 3);
    close_scene(1);
}

int main(void)
{
    test_watchdog(100);
    RUN(test_it_is_the_oldest_at_any_time);
    RUN(test_none_is_refused_while_one_can_be_dropped);
    RUN(test_few_are_looked_at);
    RUN(test_few_are_looked_at_in_vain);
    RUN(test_a_look_goes_on_in_pieces);
    RUN(test_a_transaction_looks_before_it_commits);
    RUN(test_an_unsorted_list);
    return tests_done();
}
