/*
 * test_topic_look.c - topics as one sees them through an engine: all databases, without a slot,
 * and without a word in the segment being changed.
 */
#include "topics.h"

#include "topic/e2e.h"
#include "topic/stats.h"
#include "topic/topic.h"

static pn_engine *engine;

/* The segment behind the page of the lock, as it was. */
static char *before;
static size_t size;

static char *words(void)
{
    return (char *) test_inside()->ctl;
}

static void open_scene(void)
{
    pn_options o = test_options();
    o.topic_memory = 4 << 20;
    engine = test_engine(&o);
    size = test_inside()->size - (size_t) (words() - (char *) test_inside()->hdr);
    CHECK((before = malloc(size)) != NULL);
}

static void close_scene(void)
{
    CHECK_ENGINE(engine);
    pn_engine_close(engine);
    free(before);
}

static pn_conn *connect_to(const char *database)
{
    pn_conn *conn;
    CHECK_OK(pn_connect(engine, database, strlen(database), 0, NULL, &conn));
    return conn;
}

#define LOOKING(call)                                                                              \
    do {                                                                                           \
        memcpy(before, words(), size);                                                             \
        call;                                                                                      \
        CHECK(memcmp(before, words(), size) == 0);                                                 \
    } while (0)

static pn_topic_channel_stats look_at(pn_ref topic)
{
    pn_topic_channel_stats row;
    LOOKING(CHECK_EQ(pn_engine_topic_channels(engine, topic, &row, 1), 1));
    return row;
}

static void test_topics_of_databases_without_a_connection(void)
{
    pn_topic_stats rows[3];
    pn_consumer_stats consumer;
    open_scene();
    LOOKING(CHECK_EQ(pn_engine_topics(engine, rows, 3), 0));
    pn_conn *one = connect_to("one"), *two = connect_to("two");
    pn_ref orders = topic_of(one, "orders"), elsewhere = topic_of(two, "orders");
    pn_ref billing = channel_of(one, orders, "billing");
    publish(one, orders, "a");
    publish(two, elsewhere, "bc");
    CHECK_OK(pn_topic_pause(two, elsewhere, 1));
    pn_conn_close(one);
    pn_conn_close(two);
    LOOKING(CHECK_EQ(pn_engine_topics(engine, rows, 3), 2));
    CHECK_EQ(pn_engine_backends(engine), 0);
    const pn_topic_stats *first = &rows[rows[0].ref == orders ? 0 : 1];
    const pn_topic_stats *second = &rows[rows[0].ref == orders ? 1 : 0];
    CHECK_EQ(first->ref, orders);
    CHECK_STR(first->name, "orders");
    CHECK_STR(first->database, "one");
    CHECK_EQ(first->channels, 1);
    CHECK_EQ(first->unfinished, 1);
    CHECK_EQ(first->paused, 0);
    CHECK_EQ(second->ref, elsewhere);
    CHECK_STR(second->database, "two");
    CHECK_EQ(second->message_bytes, 2);
    CHECK_EQ(second->paused, 1);
    pn_topic_channel_stats row = look_at(orders);
    CHECK_EQ(row.ref, billing);
    CHECK_EQ(row.topic, orders);
    CHECK_EQ(row.depth, 1);
    LOOKING(CHECK_EQ(pn_engine_topic_channels(engine, elsewhere, &row, 1), 0));
    LOOKING(CHECK_EQ(pn_engine_consumers(engine, billing, &consumer, 1), 0));
    CHECK_EQ(pn_engine_topics(engine, rows, 1), 2); /* how many there are, not how many fit */
    close_scene();
}

static void test_what_is_deleted_is_said_to_be(void)
{
    pn_topic_stats topics;
    pn_topic_channel_stats channels;
    pn_consumer_stats consumers;
    double q = 0.5, seconds;
    open_scene();
    pn_conn *conn = connect_to("db");
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    CHECK_OK(pn_topic_delete(conn, topic));
    CHECK_EQ(pn_engine_topics(engine, &topics, 1), 0);
    CHECK_EQ(pn_engine_topic_channels(engine, topic, &channels, 1), -PN_ETOPICDELETED);
    CHECK_EQ(pn_engine_topic_channels(engine, 0, &channels, 1), -PN_ETOPICDELETED);
    CHECK_EQ(pn_engine_consumers(engine, channel, &consumers, 1), -PN_ETOPICDELETED);
    CHECK_EQ(pn_engine_topic_channel_e2e(engine, channel, &q, 1, &seconds), -PN_ETOPICDELETED);
    pn_conn_close(conn);
    close_scene();
}

static void test_consumers_and_latencies(void)
{
    pn_consumer_stats row;
    const double q[] = {0.5, 1.0}, wrong = 0;
    double seconds[2], same[2];
    pn_message_out m;
    open_scene();
    pn_conn *conn = connect_to("db");
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    pn_consumer *c = consumer_of(conn, channel, 3);
    publish(conn, topic, "a");
    GET(c, &m, "a");
    LOOKING(CHECK_EQ(pn_engine_consumers(engine, channel, &row, 1), 1));
    CHECK_EQ(row.pid, getpid());
    CHECK_EQ(row.in_flight, 1);
    CHECK_EQ(row.max_in_flight, 3);
    LOOKING(CHECK_EQ(pn_engine_topic_channel_e2e(engine, channel, q, 2, seconds), 0));
    FINISH(conn, &m);
    LOOKING(CHECK_EQ(pn_engine_topic_channel_e2e(engine, channel, q, 2, seconds), 1));
    CHECK_EQ(pn_topic_channel_e2e(conn, channel, q, 2, same), 1);
    CHECK(memcmp(seconds, same, sizeof same) == 0);
    CHECK_EQ(pn_engine_topic_channel_e2e(engine, channel, &wrong, 1, seconds), -EINVAL);
    /* Of the half before this one, five minutes later, and nothing another five minutes later. */
    struct pn_topic_channel *ch = pn_topic_channel_at(test_inside(), (uint32_t) channel - 1);
    ch->histogram_since -= 400000 * MS;
    LOOKING(CHECK_EQ(pn_engine_topic_channel_e2e(engine, channel, q, 2, seconds), 1));
    CHECK(memcmp(seconds, same, sizeof same) == 0);
    ch->histogram_since -= 400000 * MS;
    LOOKING(CHECK_EQ(pn_engine_topic_channel_e2e(engine, channel, q, 2, seconds), 0));
    CHECK_OK(pn_consumer_close(c));
    pn_conn_close(conn);
    close_scene();
}

/* From less than the shortest that is told apart to more than the longest, to a sixteenth each. */
static void test_latencies_of_every_length(void)
{
    const int64_t ns[] = {1, 3000, 1000000, 70 * MS, 2000 * MS, 3600000 * MS};
    const size_t n = sizeof ns / sizeof *ns;
    struct pn_segment *seg;
    open_scene();
    seg = test_inside();
    pn_conn *conn = connect_to("db");
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    struct pn_topic_channel *ch = pn_topic_channel_at(seg, (uint32_t) channel - 1);
    for (size_t i = 0; i < n; i++) {
        CHECK_OK(pn_lock_acquire(seg, &test_hold, PN_LOCK_TIMEOUT_NS));
        pn_e2e_record_locked(seg, ch, ns[i], pn_now_ns());
        pn_lock_release(seg);
        for (size_t k = 0; k <= i; k++) {
            double q = (double) (k + 1) / (double) (i + 1), seconds;
            CHECK_EQ(pn_topic_channel_e2e(conn, channel, &q, 1, &seconds), 1);
            double wanted = (double) ns[k] / 1e9, shortest = 2176e-9;
            CHECK(k == 0 ? seconds <= shortest
                         : seconds >= wanted && seconds <= wanted * (1 + 1.0 / 16));
        }
    }
    pn_conn_close(conn);
    close_scene();
}

/* No process comes by, and still the figures are those of now. */
static void test_what_fell_due_counts_where_it_goes_to(void)
{
    pn_message_out m;
    open_scene();
    pn_conn *conn = connect_to("db");
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    const pn_consumer_options o = {.max_in_flight = 2, .msg_timeout_ns = MS, .max_attempts = 1};
    const pn_consumer_options again = {.max_in_flight = 2, .msg_timeout_ns = MS};
    pn_consumer *once = consumer_with(conn, channel, &o);
    publish(conn, topic, "delivered often enough");
    GET(once, &m, "delivered often enough");
    pn_consumer *c = consumer_with(conn, channel, &again);
    publish(conn, topic, "timed out");
    GET(c, &m, "timed out");
    for (int i = 0; i < 5; i++)
        CHECK_OK(publish_in(conn, NULL, topic, "deferred", MS, 0, NULL));
    CHECK_OK(publish_in(conn, NULL, topic, "deferred", 3600000 * MS, 0, NULL));
    for (int i = 0; i < 3; i++)
        CHECK_OK(publish_in(conn, NULL, topic, "expires", 0, MS, NULL));
    CHECK_SOON(look_at(topic).depth == 6);
    CHECK_SOON(look_at(topic).expired == 3);
    pn_topic_channel_stats row = look_at(topic);
    CHECK_EQ(row.in_flight, 1);
    CHECK_EQ(row.deferred, 1);
    CHECK(row.oldest_ready_ns > 0);
    pn_topic_channel_stats moved = channel_stat(conn, channel);
    CHECK_EQ(moved.depth, 6);
    CHECK_EQ(moved.in_flight, 0); /* without a topic for dead letters that one is gone */
    CHECK_EQ(moved.deferred, 1);
    CHECK_EQ(moved.expired, 3);
    CHECK_OK(pn_consumer_close(c));
    CHECK_OK(pn_consumer_close(once));
    pn_conn_close(conn);
    close_scene();
}

static void test_the_age_of_the_first_in_line(void)
{
    open_scene();
    pn_conn *conn = connect_to("db");
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    pn_consumer *c = consumer_of(conn, channel, 1);
    pn_message_out m;
    struct pn_segment *seg = test_inside();
    CHECK_EQ(look_at(topic).oldest_ready_ns, -1);
    publish(conn, topic, "an hour ago");
    struct pn_topic_channel *ch = pn_topic_channel_at(seg, (uint32_t) channel - 1);
    pn_message_at(seg, pn_delivery_at(seg, ch->first)->message)->published_ns -= 3600000 * MS;
    publish(conn, topic, "now");
    CHECK(look_at(topic).oldest_ready_ns > 3600000 * MS);
    CHECK(channel_stat(conn, channel).oldest_ready_ns > 3600000 * MS);
    GET(c, &m, "an hour ago");
    CHECK(look_at(topic).oldest_ready_ns >= 0);
    CHECK(look_at(topic).oldest_ready_ns < 3600000 * MS);
    FINISH(conn, &m);
    GET(c, &m, "now");
    CHECK_EQ(look_at(topic).oldest_ready_ns, -1);
    CHECK_EQ(answer(conn, NULL, &m, PN_ANSWER_REQUEUE, 0), 0);
    pn_message_at(seg, pn_delivery_at(seg, ch->first)->message)->published_ns += 3600000 * MS;
    CHECK_EQ(look_at(topic).oldest_ready_ns, 0); /* the clock was set back */
    CHECK_OK(pn_consumer_close(c));
    pn_conn_close(conn);
    close_scene();
}

/* What was emptied and is not swept yet is no channel's first. */
static void test_what_is_void_is_passed_over(void)
{
    open_scene();
    pn_conn *conn = connect_to("db");
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    struct pn_topic_channel *ch = pn_topic_channel_at(test_inside(), (uint32_t) channel - 1);
    publish(conn, topic, "a");
    ch->discarded_below = ch->next_order;
    CHECK_EQ(look_at(topic).oldest_ready_ns, -1);
    publish(conn, topic, "b");
    CHECK(look_at(topic).oldest_ready_ns >= 0);
    CHECK_OK(pn_topic_channel_empty(conn, channel));
    pn_conn_close(conn);
    close_scene();
}

/* The lock is held for a bounded time, however much there is to count. */
static void test_a_look_counts_so_many_and_no_more(void)
{
    enum { MANY = 6000, MOST = 4096 };
    static uint32_t lens[MANY];
    static char bodies[MANY];
    pn_message_in common = {.delay_ns = 3600000 * MS};
    pn_topic_stats row;
    uint64_t first;
    open_scene();
    pn_conn *conn = connect_to("db");
    pn_ref topic = topic_of(conn, "t");
    for (int i = 0; i < MANY; i++)
        lens[i] = 1;
    CHECK_OK(pn_topic_publish_many(conn, NULL, topic, bodies, lens, MANY, &common, &first));
    LOOKING(CHECK_EQ(pn_engine_topics(engine, &row, 1), 1));
    CHECK_EQ(row.deferred, MOST);
    CHECK_EQ(row.depth, MANY);
    CHECK_EQ(topic_stat(conn, topic).deferred, MANY);
    channel_of(conn, topic, "c");
    common.delay_ns = MS;
    CHECK_OK(pn_topic_empty(conn, topic));
    CHECK_OK(pn_topic_channel_empty(conn, channel_of(conn, topic, "c")));
    CHECK_OK(pn_topic_publish_many(conn, NULL, topic, bodies, lens, MANY, &common, &first));
    CHECK_SOON(look_at(topic).depth == MOST);
    CHECK_EQ(look_at(topic).deferred, MANY - MOST);
    pn_conn_close(conn);
    close_scene();
}

int main(void)
{
    test_watchdog(60);
    RUN(test_topics_of_databases_without_a_connection);
    RUN(test_what_is_deleted_is_said_to_be);
    RUN(test_consumers_and_latencies);
    RUN(test_latencies_of_every_length);
    RUN(test_what_fell_due_counts_where_it_goes_to);
    RUN(test_the_age_of_the_first_in_line);
    RUN(test_what_is_void_is_passed_over);
    RUN(test_a_look_counts_so_many_and_no_more);
    return tests_done();
}
