/* test_topic.c - topics in one process: what each call does to a message. */
#include "topics.h"

static pn_engine *engine;
static pn_conn *conn;

static void open_scene(void)
{
    engine = test_engine(NULL);
    conn = test_connect(engine);
}

static void close_scene(void)
{
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    CHECK_ENGINE(engine);
    pn_engine_close(engine);
}

static void test_published_got_finished(void)
{
    open_scene();
    pn_ref topic = topic_of(conn, "orders"), channel = channel_of(conn, topic, "billing");
    pn_consumer *c = consumer_of(conn, channel, 1);
    pn_message_out m;
    NOTHING(c);
    uint64_t id = publish(conn, topic, "one");
    CHECK_DEPTHS(conn, channel, 1, 0, 0);
    GET(c, &m, "one");
    CHECK_EQ(m.id, id);
    CHECK_EQ(m.attempts, 1);
    CHECK(m.published_ns > 0);
    CHECK_DEPTHS(conn, channel, 0, 1, 0);
    CHECK_ENGINE(engine);
    FINISH(conn, &m);
    CHECK_DEPTHS(conn, channel, 0, 0, 0);
    CHECK_EQ(channel_stat(conn, channel).finished, 1);
    CHECK_EQ(topic_stat(conn, topic).unfinished, 0);
    CHECK_EQ(answer(conn, NULL, &m, PN_ANSWER_FINISH, 0), -PN_ENOTINFLIGHT);
    NOTHING(c);
    CHECK_OK(pn_consumer_close(c));
    close_scene();
}

int main(void)
{
    test_watchdog(100);
    RUN(test_published_got_finished);
    return tests_done();
}
