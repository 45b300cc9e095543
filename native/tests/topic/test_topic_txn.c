/* test_topic_txn.c - topics in transactions: all of it at the commit, or nothing. */
#include "topics.h"

#include "topic/consume.h"

static pn_engine *engine;
static pn_conn *conn;
static pn_ref topic, channel;
static pn_consumer *consumer;

static void open_scene(void)
{
    const pn_consumer_options o = {
        .max_in_flight = 10, .max_attempts = 2, .dead_letter = "dead", .dead_letter_len = 4};
    engine = test_engine(NULL);
    conn = test_connect(engine);
    topic = topic_of(conn, "t");
    channel = channel_of(conn, topic, "c");
    consumer = consumer_with(conn, channel, &o);
}

static void close_scene(void)
{
    CHECK_ENGINE(engine);
    CHECK_OK(pn_consumer_close(consumer));
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static void test_publish_finish_and_notify_together(void)
{
    open_scene();
    pn_message_out m;
    uint64_t id;
    test_listen(conn, "ch");
    publish(conn, topic, "first");
    GET(consumer, &m, "first");
    pn_txn *txn = test_begin(conn);
    CHECK_OK(publish_in(conn, txn, topic, "second", 0, 0, &id));
    CHECK_OK(answer(conn, txn, &m, PN_ANSWER_FINISH, 0));
    CHECK_EQ(answer(conn, txn, &m, PN_ANSWER_FINISH, 0), -PN_ENOTINFLIGHT);
    CHECK_OK(pn_txn_notify(txn, "ch", 2, "hello", 5));
    NOTHING(consumer);
    CHECK_DEPTHS(conn, channel, 0, 1, 0);
    CHECK_OK(pn_txn_commit(txn));
    CHECK_DEPTHS(conn, channel, 1, 0, 0);
    CHECK_POLL(conn, "hello");
    GET(consumer, &m, "second");
    CHECK_EQ(m.id, id);
    CHECK_EQ(channel_stat(conn, channel).finished, 1);
    close_scene();
}

static void test_a_rolled_back_answer_was_none(void)
{
    open_scene();
    pn_message_out m;
    publish(conn, topic, "x");
    GET(consumer, &m, "x");
    pn_txn *txn = test_begin(conn);
    CHECK_OK(publish_in(conn, txn, topic, "y", 0, 0, NULL));
    CHECK_OK(answer(conn, txn, &m, PN_ANSWER_FINISH, 0));
    pn_txn_abort(txn);
    CHECK_DEPTHS(conn, channel, 0, 1, 0);
    FINISH(conn, &m);
    /* to a savepoint */
    publish(conn, topic, "x");
    GET(consumer, &m, "x");
    txn = test_begin(conn);
    CHECK_OK(publish_in(conn, txn, topic, "1", 0, 0, NULL));
    int level = pn_txn_savepoint(txn);
    CHECK_OK(publish_in(conn, txn, topic, "2", 0, 0, NULL));
    CHECK_OK(answer(conn, txn, &m, PN_ANSWER_FINISH, 0));
    CHECK_OK(pn_txn_rollback_to(txn, level));
    CHECK_OK(publish_in(conn, txn, topic, "3", 0, 0, NULL));
    CHECK_OK(pn_txn_commit(txn));
    CHECK_DEPTHS(conn, channel, 2, 1, 0);
    FINISH(conn, &m);
    GET(consumer, &m, "1");
    GET(consumer, &m, "3");
    close_scene();
}

static void test_an_answer_that_is_too_late_undoes_all_of_it(void)
{
    open_scene();
    pn_message_out m, again;
    test_listen(conn, "ch");
    publish(conn, topic, "x");
    GET(consumer, &m, "x");
    pn_txn *txn = test_begin(conn);
    CHECK_OK(publish_in(conn, txn, topic, "y", 0, 0, NULL));
    CHECK_OK(pn_txn_notify(txn, "ch", 2, "never", 5));
    CHECK_OK(answer(conn, txn, &m, PN_ANSWER_FINISH, 0));
    CHECK_OK(answer(conn, NULL, &m, PN_ANSWER_REQUEUE, 0));
    CHECK_EQ(pn_txn_commit(txn), -PN_ENOTINFLIGHT);
    CHECK_ENGINE(engine);
    CHECK_DEPTHS(conn, channel, 1, 0, 0);
    txn = test_begin(conn);
    GET(consumer, &again, "x");
    CHECK_EQ(answer(conn, txn, &m, PN_ANSWER_FINISH, 0), -PN_ENOTOWNER);
    CHECK_OK(pn_txn_commit(txn));
    FINISH(conn, &again);
    CHECK_POLL(conn, "");
    CHECK_EQ(topic_stat(conn, topic).unfinished, 0);
    close_scene();
}

static void test_every_kind_of_answer(void)
{
    open_scene();
    pn_message_out m[5];
    static const char *const bodies[] = {"0", "1", "2", "3", "4"};
    uint64_t deferred;
    for (int i = 0; i < 5; i++) {
        publish(conn, topic, bodies[i]);
        GET(consumer, &m[i], bodies[i]);
    }
    CHECK_OK(publish_in(conn, NULL, topic, "deferred", 3600000 * MS, 0, &deferred));
    pn_txn *txn = test_begin(conn);
    CHECK_OK(answer(conn, txn, &m[0], PN_ANSWER_FINISH, 0));
    CHECK_OK(answer(conn, txn, &m[1], PN_ANSWER_REQUEUE, 0));
    CHECK_OK(answer(conn, txn, &m[2], PN_ANSWER_REQUEUE, 3600000 * MS));
    CHECK_OK(answer(conn, txn, &m[3], PN_ANSWER_DEAD_LETTER, 0));
    CHECK_OK(answer(conn, txn, &m[4], PN_ANSWER_RELEASE, 0));
    CHECK_EQ(pn_topic_cancel(conn, txn, topic, deferred), 1);
    CHECK_EQ(pn_topic_cancel(conn, txn, topic, m[0].id), 0);
    CHECK_EQ(answer(conn, txn, &m[4], PN_ANSWER_TOUCH, 0), -EINVAL);
    CHECK_DEPTHS(conn, channel, 0, 5, 1);
    CHECK_OK(pn_txn_commit(txn));
    CHECK_DEPTHS(conn, channel, 2, 0, 1);
    CHECK_ENGINE(engine);
    pn_topic_channel_stats s = channel_stat(conn, channel);
    CHECK_EQ(s.finished, 1);
    CHECK_EQ(s.requeued, 2);
    CHECK_EQ(s.dead_lettered, 1);
    CHECK_EQ(topic_stat(conn, topic_of(conn, "dead")).depth, 1);
    GET(consumer, &m[0], "4");
    CHECK_EQ(m[0].attempts, 1);
    GET(consumer, &m[0], "1");
    CHECK_EQ(m[0].attempts, 2);
    close_scene();
}

static void test_prepared(void)
{
    open_scene();
    const pn_message_in later = {.body = "later", .body_len = 5, .delay_ns = 3600000 * MS};
    pn_message_out m, n;
    uint64_t id;
    for (int commit = 0; commit <= 1; commit++) {
        publish(conn, topic, "x");
        GET(consumer, &m, "x");
        publish(conn, topic, "z");
        GET(consumer, &n, "z");
        pn_txn *txn = test_begin(conn);
        CHECK_OK(publish_in(conn, txn, topic, "y", 0, 0, NULL));
        CHECK_OK(pn_topic_publish(conn, txn, topic, &later, &id));
        CHECK_OK(answer(conn, txn, &m, PN_ANSWER_FINISH, 0));
        CHECK_OK(answer(conn, txn, &n, PN_ANSWER_REQUEUE, 3600000 * MS));
        CHECK_OK(pn_txn_prepare(txn));
        CHECK_ENGINE(engine);
        CHECK_EQ(publish_in(conn, txn, topic, "no", 0, 0, NULL), -PN_EPREPARED);
        CHECK_EQ(answer(conn, NULL, &m, PN_ANSWER_FINISH, 0), -PN_ENOTINFLIGHT);
        CHECK_DEPTHS(conn, channel, 0, 2, 0);
        NOTHING(consumer);
        if (commit == 0) {
            pn_txn_abort(txn);
            CHECK_DEPTHS(conn, channel, 0, 2, 0);
            FINISH(conn, &m);
            FINISH(conn, &n);
            CHECK_EQ(topic_stat(conn, topic).unfinished, 0);
        } else {
            CHECK_OK(pn_txn_commit(txn));
            CHECK_DEPTHS(conn, channel, 1, 0, 2);
            GET(consumer, &m, "y");
            FINISH(conn, &m);
            CHECK_EQ(topic_stat(conn, topic).depth, 0);
        }
        CHECK_ENGINE(engine);
    }
    close_scene();
}

static void test_prepared_keeps_while_its_channel_and_topic_go(void)
{
    open_scene();
    pn_message_out m;
    publish(conn, topic, "x");
    GET(consumer, &m, "x");
    pn_txn *txn = test_begin(conn);
    CHECK_OK(publish_in(conn, txn, topic, "y", 0, 0, NULL));
    CHECK_OK(answer(conn, txn, &m, PN_ANSWER_REQUEUE, 0));
    CHECK_OK(pn_txn_prepare(txn));
    CHECK_OK(pn_topic_delete(conn, topic));
    CHECK_ENGINE(engine);
    CHECK_OK(pn_txn_commit(txn));
    CHECK_ENGINE(engine);
    topic = topic_of(conn, "t");
    CHECK_EQ(topic_stat(conn, topic).depth, 0);
    close_scene();
}

static void test_a_consumer_closed_while_its_message_is_held(void)
{
    open_scene();
    pn_message_out m;
    for (int commit = 0; commit <= 1; commit++) {
        pn_consumer *other = consumer_of(conn, channel, 1);
        publish(conn, topic, "x");
        GET(other, &m, "x");
        pn_txn *txn = test_begin(conn);
        CHECK_OK(answer(conn, txn, &m, PN_ANSWER_FINISH, 0));
        CHECK_OK(pn_txn_prepare(txn));
        CHECK_OK(pn_consumer_close(other));
        CHECK_DEPTHS(conn, channel, 0, 1, 0);
        if (commit)
            CHECK_OK(pn_txn_commit(txn));
        else
            pn_txn_abort(txn);
        CHECK_DEPTHS(conn, channel, 1 - commit, 0, 0);
        CHECK_ENGINE(engine);
        CHECK_OK(pn_topic_channel_empty(conn, channel));
    }
    close_scene();
}

/* The next one has the record of the one that was closed, and nothing else of it. */
static void test_a_held_message_is_not_inherited(void)
{
    open_scene();
    pn_message_out m;
    for (int commit = 0; commit <= 1; commit++) {
        pn_consumer *old = consumer_of(conn, channel, 1);
        uint32_t record = old->ci;
        publish(conn, topic, "x");
        GET(old, &m, "x");
        pn_txn *txn = test_begin(conn);
        CHECK_OK(answer(conn, txn, &m, commit ? PN_ANSWER_REQUEUE : PN_ANSWER_FINISH, 0));
        CHECK_OK(pn_txn_prepare(txn));
        CHECK_OK(pn_consumer_close(old));
        pn_consumer *heir = consumer_of(conn, channel, 1);
        CHECK_EQ(heir->ci, record);
        if (commit)
            CHECK_OK(pn_txn_commit(txn));
        else
            pn_txn_abort(txn);
        CHECK_ENGINE(engine);
        CHECK_DEPTHS(conn, channel, 1, 0, 0);
        pn_consumer_stats s;
        CHECK_OK(pn_consumer_stat(heir, &s));
        CHECK_EQ(s.requeued, 0);
        CHECK_EQ(channel_stat(conn, channel).requeued, commit);
        GET(heir, &m, "x");
        CHECK_EQ(m.attempts, 2);
        FINISH(conn, &m);
        CHECK_OK(pn_consumer_close(heir));
    }
    close_scene();
}

/* The transaction is another connection's: that one's end counts, not the consumer's. */
static void test_held_by_another_connection(void)
{
    open_scene();
    pn_conn *others = test_connect(engine);
    pn_consumer *other = consumer_of(others, channel, 1);
    pn_message_out m;
    publish(conn, topic, "x");
    GET(other, &m, "x");
    pn_txn *txn = test_begin(conn);
    CHECK_OK(answer(conn, txn, &m, PN_ANSWER_FINISH, 0));
    CHECK_OK(pn_txn_prepare(txn));
    CHECK_OK(pn_consumer_close(other));
    pn_conn_close(others);
    CHECK_DEPTHS(conn, channel, 0, 1, 0);
    CHECK_OK(pn_txn_commit(txn));
    CHECK_DEPTHS(conn, channel, 0, 0, 0);
    CHECK_EQ(channel_stat(conn, channel).finished, 1);
    CHECK_EQ(topic_stat(conn, topic).unfinished, 0);
    close_scene();
}

static void test_a_bound_counts_what_is_prepared(void)
{
    open_scene();
    pn_ref bounded = topic_with(conn, "b", 2, PN_OVERFLOW_ERROR);
    pn_txn *txn = test_begin(conn);
    CHECK_OK(publish_in(conn, txn, bounded, "1", 0, 0, NULL));
    CHECK_OK(publish_in(conn, txn, bounded, "2", 0, 0, NULL));
    CHECK_OK(publish_in(conn, txn, bounded, "3", 0, 0, NULL));
    CHECK_EQ(pn_txn_commit(txn), -PN_ETOPICFULL);
    CHECK_EQ(topic_stat(conn, bounded).depth, 0);
    txn = test_begin(conn);
    CHECK_OK(publish_in(conn, txn, bounded, "1", 0, 0, NULL));
    CHECK_OK(publish_in(conn, txn, bounded, "2", 0, 0, NULL));
    CHECK_OK(pn_txn_prepare(txn));
    CHECK_EQ(publish_in(conn, NULL, bounded, "3", 0, 0, NULL), -PN_ETOPICFULL);
    CHECK_OK(pn_txn_commit(txn));
    CHECK_EQ(topic_stat(conn, bounded).depth, 2);
    close_scene();
}

/* An ephemeral channel takes no more than its topic may have, whatever it comes by. */
static void test_an_ephemeral_channel_goes_without(void)
{
    open_scene();
    pn_ref bounded = topic_with(conn, "b", 2, PN_OVERFLOW_ERROR);
    pn_ref soft = channel_of(conn, bounded, "e#ephemeral");
    const pn_message_in common = {.headers_len = 0};
    const uint32_t lens[] = {1, 1, 1, 1, 1};
    uint64_t id;
    pn_txn *txn = test_begin(conn);
    for (int i = 0; i < 5; i++)
        CHECK_OK(publish_in(conn, txn, bounded, "x", i == 0 ? 3600000 * MS : 0, 0, NULL));
    CHECK_OK(pn_txn_commit(txn));
    CHECK_ENGINE(engine);
    CHECK_DEPTHS(conn, soft, 1, 0, 1);
    CHECK_EQ(channel_stat(conn, soft).dropped, 3);
    CHECK_OK(pn_topic_channel_empty(conn, soft));
    CHECK_OK(pn_topic_publish_many(conn, NULL, bounded, "12345", lens, 5, &common, &id));
    CHECK_DEPTHS(conn, soft, 2, 0, 0);
    CHECK_EQ(channel_stat(conn, soft).dropped, 6);
    /* out of the backlog: what is prepared is there until the commit, whatever its channels have */
    txn = test_begin(conn);
    CHECK_OK(publish_in(conn, txn, bounded, "x", 0, 0, NULL));
    CHECK_OK(pn_txn_prepare(txn));
    CHECK_ENGINE(engine);
    CHECK_OK(pn_txn_commit(txn));
    CHECK_DEPTHS(conn, soft, 2, 0, 0);
    CHECK_EQ(channel_stat(conn, soft).dropped, 7);
    CHECK_EQ(topic_stat(conn, bounded).unfinished, 2);
    close_scene();
}

static void test_a_paused_topic_is_bounded_for_an_ephemeral_channel_too(void)
{
    open_scene();
    pn_ref bounded = topic_with(conn, "b", 2, PN_OVERFLOW_ERROR);
    pn_ref soft = channel_of(conn, bounded, "e#ephemeral");
    publish(conn, bounded, "1");
    CHECK_OK(pn_topic_pause(conn, bounded, 1));
    publish(conn, bounded, "2");
    publish(conn, bounded, "3");
    CHECK_EQ(publish_in(conn, NULL, bounded, "4", 0, 0, NULL), -PN_ETOPICFULL);
    CHECK_OK(pn_topic_pause(conn, bounded, 0));
    CHECK_DEPTHS(conn, soft, 2, 0, 0);
    CHECK_EQ(channel_stat(conn, soft).dropped, 1);
    /* beside a channel that takes all of them, be it the first or the last of the two */
    pn_ref firm = channel_of(conn, bounded, "firm");
    CHECK_OK(pn_topic_channel_empty(conn, soft));
    CHECK_OK(pn_topic_pause(conn, bounded, 1));
    publish(conn, bounded, "5");
    publish(conn, bounded, "6");
    CHECK_OK(pn_topic_pause(conn, bounded, 0));
    pn_consumer *c = consumer_of(conn, firm, 2);
    pn_message_out m;
    GET(c, &m, "5");
    FINISH(conn, &m);
    CHECK_OK(pn_topic_pause(conn, bounded, 1));
    publish(conn, bounded, "7");
    CHECK_OK(pn_topic_pause(conn, bounded, 0));
    CHECK_ENGINE(engine);
    CHECK_DEPTHS(conn, soft, 2, 0, 0);
    CHECK_EQ(channel_stat(conn, soft).dropped, 2);
    GET(c, &m, "6");
    GET(c, &m, "7");
    CHECK_OK(pn_consumer_close(c));
    close_scene();
}

int main(void)
{
    test_watchdog(100);
    RUN(test_publish_finish_and_notify_together);
    RUN(test_a_rolled_back_answer_was_none);
    RUN(test_an_answer_that_is_too_late_undoes_all_of_it);
    RUN(test_every_kind_of_answer);
    RUN(test_prepared);
    RUN(test_prepared_keeps_while_its_channel_and_topic_go);
    RUN(test_a_consumer_closed_while_its_message_is_held);
    RUN(test_a_held_message_is_not_inherited);
    RUN(test_held_by_another_connection);
    RUN(test_a_bound_counts_what_is_prepared);
    RUN(test_an_ephemeral_channel_goes_without);
    RUN(test_a_paused_topic_is_bounded_for_an_ephemeral_channel_too);
    return tests_done();
}
