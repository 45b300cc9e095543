/*
 * test_topic_settings.c - what topics and channels are set to for messages and consumers that do
 * not say it themselves: it counts at once, for consumers that are there and for dead ones, a
 * consumer's own value wins, it comes back after a reboot, and dead letters never come back.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "data_dirs.h"
#include "topics.h"

enum {
    ALL = PN_CHANNEL_MAX_ATTEMPTS | PN_CHANNEL_DEAD_LETTER | PN_CHANNEL_MSG_TIMEOUT,
    CHAIN = 40
};

static pn_engine *engine;
static pn_conn *conn;
static const char *segment;

static void attach(void)
{
    pn_options o = test_options();
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    CHECK_OK(pn_open(segment, &o, &engine));
    conn = test_connect(engine);
}

static void open_scene(void)
{
    data_dir_empty();
    segment = test_segment_name();
    attach();
}

static void close_scene(void)
{
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
    test_segments_remove();
}

static pn_channel_options options(uint32_t given, int64_t max_attempts, int64_t msg_timeout,
                                  const char *dead_letter)
{
    return (pn_channel_options) {.given = given,
                                 .max_attempts = max_attempts,
                                 .msg_timeout_ns = msg_timeout,
                                 .dead_letter = dead_letter,
                                 .dead_letter_len = dead_letter == NULL ? 0 : strlen(dead_letter)};
}

static int configure(pn_ref channel, uint32_t given, int64_t max_attempts, int64_t msg_timeout,
                     const char *dead_letter)
{
    const pn_channel_options o = options(given, max_attempts, msg_timeout, dead_letter);
    return pn_topic_channel_configure(conn, channel, &o);
}

static void check_set(pn_ref channel, int64_t max_attempts, int64_t msg_timeout,
                      const char *dead_letter)
{
    const pn_topic_channel_stats s = channel_stat(conn, channel);
    CHECK_EQ(s.max_attempts, max_attempts);
    CHECK_EQ(s.msg_timeout_ns, msg_timeout);
    CHECK(strcmp(s.dead_letter, dead_letter) == 0);
}

static pn_consumer *consumer_that_leaves_it(pn_ref channel)
{
    const pn_consumer_options o = {.max_attempts = 5, .fallback = ALL};
    return consumer_with(conn, channel, &o);
}

/* ---- defaults of channels -------------------------------------------------------------------- */

static void test_what_is_given_is_set_and_the_rest_stays(void)
{
    open_scene();
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    check_set(channel, -1, 0, "");
    CHECK_OK(configure(channel, PN_CHANNEL_MAX_ATTEMPTS, 3, 0, NULL));
    CHECK_OK(configure(channel, PN_CHANNEL_DEAD_LETTER, 0, 0, "dead"));
    check_set(channel, 3, 0, "dead");
    CHECK_OK(configure(channel, ALL, 0, 7 * MS, "other"));
    check_set(channel, 0, 7 * MS, "other");
    CHECK_OK(configure(channel, ALL, -1, 0, NULL));
    check_set(channel, -1, 0, "");
    CHECK_EQ(configure(channel, PN_CHANNEL_MAX_ATTEMPTS, 65536, 0, NULL), -EINVAL);
    CHECK_EQ(configure(channel, PN_CHANNEL_MSG_TIMEOUT, 0, -1, NULL), -EINVAL);
    CHECK_EQ(configure(channel, PN_CHANNEL_DEAD_LETTER, 0, 0, "a b"), -PN_ETOPICNAME);
    check_set(channel, -1, 0, "");
    close_scene();
}

static void test_a_channel_is_made_with_them_and_others_are_a_mismatch(void)
{
    open_scene();
    pn_ref topic = topic_of(conn, "t"), channel, again;
    pn_channel_options o = options(ALL, 3, 5 * MS, "dead");
    CHECK_OK(pn_topic_channel_open_with(conn, topic, "c", 1, -1, &o, &channel));
    check_set(channel, 3, 5 * MS, "dead");
    CHECK_OK(pn_topic_channel_open_with(conn, topic, "c", 1, -1, &o, &again));
    CHECK_EQ(again, channel);
    CHECK_OK(pn_topic_channel_open(conn, topic, "c", 1, -1, &again));
    o.given = PN_CHANNEL_MAX_ATTEMPTS;
    o.max_attempts = 4;
    CHECK_EQ(pn_topic_channel_open_with(conn, topic, "c", 1, -1, &o, &again), -PN_ETOPICOPTIONS);
    o = options(PN_CHANNEL_DEAD_LETTER, 0, 0, NULL);
    CHECK_EQ(pn_topic_channel_open_with(conn, topic, "c", 1, -1, &o, &again), -PN_ETOPICOPTIONS);
    o = options(PN_CHANNEL_DEAD_LETTER, 0, 0, "t");
    CHECK_EQ(pn_topic_channel_open_with(conn, topic, "d", 1, -1, &o, &again), -PN_ETOPICOPTIONS);
    CHECK_EQ(topic_stat(conn, topic).channels, 1);
    close_scene();
}

static void give_up(pn_consumer *consumer, const char *body)
{
    pn_message_out m;
    GET(consumer, &m, body);
    CHECK_OK(answer(conn, NULL, &m, PN_ANSWER_DEAD_LETTER, 0));
}

static void test_they_count_for_a_consumer_that_is_there_and_its_own_value_wins(void)
{
    open_scene();
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    const pn_consumer_options own = {.dead_letter = "own", .dead_letter_len = 3};
    pn_consumer *leaves = consumer_that_leaves_it(channel);
    pn_message_out m;
    publish(conn, topic, "1");
    CHECK_OK(configure(channel, ALL, 1, 0, "dead"));
    GET(leaves, &m, "1");
    CHECK_OK(answer(conn, NULL, &m, PN_ANSWER_REQUEUE, 0));
    CHECK_EQ(channel_stat(conn, channel).dead_lettered, 1);
    CHECK_EQ(topic_stat(conn, topic_of(conn, "dead")).depth, 1);
    CHECK_OK(configure(channel, PN_CHANNEL_DEAD_LETTER, 0, 0, NULL));
    publish(conn, topic, "2");
    give_up(leaves, "2");
    CHECK_EQ(channel_stat(conn, channel).dropped, 1);
    CHECK_OK(configure(channel, PN_CHANNEL_DEAD_LETTER, 0, 0, "dead"));
    CHECK_OK(pn_consumer_close(leaves));
    pn_consumer *wins = consumer_with(conn, channel, &own);
    publish(conn, topic, "3");
    GET(wins, &m, "3");
    CHECK_OK(answer(conn, NULL, &m, PN_ANSWER_REQUEUE, 0)); /* it has no limit of its own: none */
    give_up(wins, "3");
    CHECK_EQ(topic_stat(conn, topic_of(conn, "own")).depth, 1);
    CHECK_EQ(topic_stat(conn, topic_of(conn, "dead")).depth, 1);
    CHECK_OK(pn_consumer_close(wins));
    close_scene();
}

static int64_t time_left(pn_consumer *consumer, const char *body)
{
    pn_message_out m;
    int64_t deadline;
    GET(consumer, &m, body);
    CHECK_OK(pn_message_deadline(conn, m.delivery, m.tag, m.id, &deadline));
    FINISH(conn, &m);
    return deadline - test_now_ns();
}

static void test_msg_timeout_is_that_of_consumers_that_are_made_later(void)
{
    const int64_t hour = 3600000 * MS;
    open_scene();
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    pn_consumer *before = consumer_that_leaves_it(channel);
    CHECK_OK(configure(channel, PN_CHANNEL_MSG_TIMEOUT, 0, 2 * hour, NULL));
    publish(conn, topic, "1");
    CHECK(time_left(before, "1") < hour);
    CHECK_OK(pn_consumer_close(before));
    pn_consumer *after = consumer_that_leaves_it(channel), *own = consumer_of(conn, channel, 1);
    publish(conn, topic, "2");
    publish(conn, topic, "3");
    CHECK(time_left(after, "2") > hour);
    CHECK(time_left(own, "3") < hour);
    CHECK_OK(pn_consumer_close(after));
    CHECK_OK(pn_consumer_close(own));
    close_scene();
}

static void taker(void *arg)
{
    const pn_consumer_options o = {.max_attempts = 5, .fallback = ALL};
    pn_message_out m;
    pn_engine *its;
    (void) arg;
    CHECK_OK(pn_open(segment, NULL, &its));
    pn_conn *mine = test_connect(its);
    pn_consumer *consumer = consumer_with(mine, channel_of(mine, topic_of(mine, "t"), "c"), &o);
    GET(consumer, &m, "poison");
    raise(SIGKILL);
}

static void test_a_killed_consumers_last_delivery_is_a_dead_letter_by_its_channel(void)
{
    open_scene();
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    publish(conn, topic, "poison");
    for (int i = 0; i < 2; i++) {
        int status = reap(spawn(taker, NULL));
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        if (i == 0)
            CHECK_DEPTHS(conn, channel, 1, 0, 0); /* which looks after the dead */
        /* between its death and that it is noticed, the second time */
        CHECK_OK(configure(channel, ALL, 2, 0, "dead"));
    }
    CHECK_DEPTHS(conn, channel, 0, 0, 0);
    CHECK_EQ(channel_stat(conn, channel).dead_lettered, 1);
    CHECK_EQ(topic_stat(conn, topic_of(conn, "dead")).depth, 1);
    close_scene();
}

/* ---- dead letters that would come back ------------------------------------------------------- */

static pn_ref channel_to(const char *from, const char *to, int want)
{
    pn_ref channel = channel_of(conn, topic_of(conn, from), "c");
    CHECK_EQ(configure(channel, PN_CHANNEL_DEAD_LETTER, 0, 0, to), want);
    return channel;
}

static void test_a_circle_is_refused(void)
{
    open_scene();
    channel_to("a", "a", -PN_ETOPICOPTIONS);
    channel_to("a", "b", 0);
    channel_to("b", "c", 0);
    channel_to("c", "d", 0);
    channel_to("d", "a", -PN_ETOPICOPTIONS);
    CHECK(strstr(pn_error_message(), "\"c\"") != NULL);
    channel_to("d", "b", -PN_ETOPICOPTIONS);
    check_set(channel_of(conn, topic_of(conn, "d"), "c"), -1, 0, "");
    channel_to("e", "b", 0); /* leads into the chain, not back */
    const pn_consumer_options back = {.dead_letter = "a", .dead_letter_len = 1};
    pn_consumer *consumer = NULL;
    CHECK_EQ(pn_consumer_open(conn, channel_of(conn, topic_of(conn, "d"), "c"), &back, &consumer),
             -PN_ETOPICOPTIONS);
    CHECK_OK(pn_topic_delete(conn, topic_of(conn, "c")));
    channel_to("d", "a", 0);
    close_scene();
}

static void test_a_chain_without_end_is_refused(void)
{
    open_scene();
    char from[16], to[16];
    int refused = 0;
    for (int i = CHAIN; i > 0; i--) {
        snprintf(from, sizeof from, "t%d", i);
        snprintf(to, sizeof to, "t%d", i + 1);
        pn_ref channel = channel_of(conn, topic_of(conn, from), "c");
        int rc = configure(channel, PN_CHANNEL_DEAD_LETTER, 0, 0, to);
        CHECK(rc == 0 || rc == -PN_ETOPICOPTIONS);
        refused += rc != 0;
        CHECK(rc == 0 || CHAIN - i >= 30);
        if (rc != 0)
            break;
    }
    CHECK_EQ(refused, 1);
    close_scene();
}

/* ---- the topic's default_ttl ----------------------------------------------------------------- */

static void set_ttl(pn_ref topic, int64_t ttl)
{
    const pn_topic_options o = {.given = PN_TOPIC_DEFAULT_TTL, .default_ttl_ns = ttl};
    CHECK_OK(pn_topic_configure(conn, topic, &o));
    CHECK_EQ(topic_stat(conn, topic).default_ttl_ns, ttl);
}

/* How long what is next in the channel has left; 0: for ever. */
static int64_t life_left(pn_consumer *consumer)
{
    pn_message_out m;
    CHECK_EQ(pn_consumer_get(consumer, 0, &m), 1);
    FINISH(conn, &m);
    return m.expires_ns == 0 ? 0 : m.expires_ns - test_now_ns();
}

static void test_default_ttl_is_of_what_is_published_without(void)
{
    const int64_t hour = 3600000 * MS;
    const uint32_t lens[] = {1, 1};
    open_scene();
    pn_ref topic = topic_of(conn, "t");
    pn_consumer *c = consumer_of(conn, channel_of(conn, topic, "c"), 1);
    pn_txn *txn;
    uint64_t first;
    publish(conn, topic, "1");
    CHECK_EQ(life_left(c), 0);
    set_ttl(topic, 2 * hour);
    publish(conn, topic, "2");
    CHECK(life_left(c) > hour);
    CHECK(pn_topic_publish_body(conn, topic, "x", 1) > 0);
    CHECK(life_left(c) > hour);
    CHECK_OK(pn_topic_publish_many(conn, NULL, topic, "34", lens, 2, NULL, &first));
    CHECK(life_left(c) > hour);
    CHECK(life_left(c) > hour);
    CHECK_OK(publish_in(conn, NULL, topic, "5", 0, hour / 2, NULL));
    CHECK(life_left(c) < hour);
    CHECK_OK(publish_in(conn, NULL, topic, "6", 0, -1, NULL));
    CHECK_EQ(life_left(c), 0);
    CHECK_OK(pn_txn_begin(conn, &txn));
    CHECK_OK(publish_in(conn, txn, topic, "7", 0, 0, NULL));
    CHECK_OK(pn_txn_commit(txn));
    CHECK(life_left(c) > hour);
    set_ttl(topic, 0);
    publish(conn, topic, "8");
    CHECK_EQ(life_left(c), 0);
    CHECK_OK(pn_consumer_close(c));
    close_scene();
}

static void test_of_a_topic_that_is_there_only_limits_are_changed(void)
{
    open_scene();
    const pn_topic_options depth = {.given = PN_TOPIC_MAX_DEPTH, .max_depth = 3},
                           bad = {.given = PN_TOPIC_DEFAULT_TTL, .default_ttl_ns = -1},
                           some = {.given = PN_TOPIC_DEFAULT_TTL, .default_ttl_ns = MS};
    pn_ref topic = topic_of(conn, "t"), again;
    CHECK_EQ(pn_topic_configure(conn, topic, &depth), -EINVAL);
    CHECK_EQ(pn_topic_configure(conn, topic, &bad), -EINVAL);
    CHECK_EQ(pn_topic_open(conn, "t", 1, &some, &again), -PN_ETOPICOPTIONS);
    CHECK_OK(pn_topic_open(conn, "made", 4, &some, &again));
    CHECK_EQ(topic_stat(conn, again).default_ttl_ns, MS);
    CHECK_OK(pn_topic_delete(conn, topic));
    CHECK_EQ(pn_topic_configure(conn, topic, &some), -PN_ETOPICDELETED);
    close_scene();
}

/* ---- the topic's max_memory ------------------------------------------------------------------ */

enum { BOUND = 64 << 10, MANY = 2000 };

static pn_ref bound_topic(const char *text, uint32_t overflow)
{
    const pn_topic_options o = {.given = PN_TOPIC_OVERFLOW | PN_TOPIC_MAX_MEMORY,
                                .overflow = overflow,
                                .max_memory = BOUND};
    pn_ref topic;
    CHECK_OK(pn_topic_open(conn, text, strlen(text), &o, &topic));
    return topic;
}

static int set_memory(pn_ref topic, uint64_t bytes)
{
    const pn_topic_options o = {.given = PN_TOPIC_MAX_MEMORY, .max_memory = bytes};
    return pn_topic_configure(conn, topic, &o);
}

/* As many of them as are accepted. */
static int fill(pn_ref topic, int n, int *rc)
{
    char text[12];
    int i = 0;
    for (*rc = 0; i < n && *rc == 0; i += *rc == 0) {
        snprintf(text, sizeof text, "%04d", i);
        *rc = publish_in(conn, NULL, topic, text, 0, 0, NULL);
    }
    return i;
}

static void test_a_bound_topic_is_full_by_itself_and_says_so(void)
{
    int rc;
    open_scene();
    pn_ref topic = bound_topic("t", PN_OVERFLOW_ERROR);
    channel_of(conn, topic, "c");
    int n = fill(topic, MANY, &rc);
    CHECK(n > 100 && n < MANY);
    CHECK_EQ(rc, -PN_ETOPICFULL);
    CHECK(strstr(pn_error_message(), "max_memory is 65536 bytes") != NULL);
    pn_topic_stats s = topic_stat(conn, topic);
    CHECK_EQ(s.max_memory, BOUND);
    CHECK(s.memory <= BOUND && s.memory > BOUND / 2);
    pn_ref other = topic_of(conn, "other");
    channel_of(conn, other, "c");
    CHECK_EQ(fill(other, MANY, &rc), MANY);
    CHECK_OK(set_memory(topic, 2 * BOUND)); /* at once */
    CHECK(fill(topic, MANY, &rc) > 100);
    CHECK(topic_stat(conn, topic).memory > BOUND);
    CHECK_OK(set_memory(topic, 0));
    CHECK_EQ(fill(topic, MANY, &rc), MANY);
    CHECK_EQ(set_memory(topic, 4095), -EINVAL);
    close_scene();
}

static void test_a_bound_topics_oldest_are_dropped(void)
{
    int rc;
    open_scene();
    pn_ref topic = bound_topic("t", PN_OVERFLOW_DROP_OLDEST);
    channel_of(conn, topic, "c");
    CHECK_EQ(fill(topic, MANY, &rc), MANY);
    pn_topic_stats s = topic_stat(conn, topic);
    CHECK(s.memory <= BOUND);
    CHECK_EQ(s.dropped + s.unfinished, MANY);
    close_scene();
}

static void check_all_come(pn_consumer *c, int n)
{
    pn_message_out m;
    for (int i = 0; i < n; i++) {
        CHECK_EQ(pn_consumer_get(c, 0, &m), 1);
        CHECK_EQ(number_in(&m), i);
        FINISH(conn, &m);
    }
    CHECK_EQ(pn_consumer_get(c, 0, &m), 0);
}

static void test_beyond_its_bound_a_topic_goes_to_disk_and_comes_back(void)
{
    int rc;
    open_scene();
    pn_ref topic = bound_topic("t", PN_OVERFLOW_DISK);
    pn_ref slow = channel_of(conn, topic, "slow"), fast = channel_of(conn, topic, "fast");
    pn_consumer *c = consumer_of(conn, fast, 1);
    CHECK_EQ(fill(topic, MANY, &rc), MANY);
    CHECK(topic_stat(conn, topic).memory <= BOUND + BOUND / 4);
    CHECK(topic_stat(conn, topic).on_disk > 0);
    check_all_come(c, MANY); /* beside one that does not keep up */
    CHECK(topic_stat(conn, topic).memory <= BOUND + BOUND / 4);
    CHECK_OK(pn_consumer_close(c));
    c = consumer_of(conn, slow, 1);
    check_all_come(c, MANY);
    CHECK_OK(pn_consumer_close(c));
    close_scene();
}

static void test_a_message_larger_than_the_bound_comes_by_itself(void)
{
    static char body[3 * BOUND];
    pn_message_out m;
    uint64_t id;
    open_scene();
    pn_ref topic = bound_topic("t", PN_OVERFLOW_DISK);
    pn_consumer *c = consumer_of(conn, channel_of(conn, topic, "c"), 1);
    memset(body, 'x', sizeof body);
    const pn_message_in in = {.body = body, .body_len = sizeof body};
    for (int i = 0; i < 3; i++) {
        publish(conn, topic, "small");
        CHECK_OK(pn_topic_publish(conn, NULL, topic, &in, &id));
    }
    for (int i = 0; i < 3; i++) {
        GET(c, &m, "small");
        FINISH(conn, &m);
        CHECK_EQ(pn_consumer_get(c, 0, &m), 1);
        CHECK_EQ(m.body_len, sizeof body);
        FINISH(conn, &m);
    }
    CHECK_OK(pn_consumer_close(c));
    close_scene();
}

/* ---- after a reboot -------------------------------------------------------------------------- */

static void reboot(void)
{
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
    test_segment_remove(segment);
    attach();
}

static void test_they_come_back_with_a_durable_topic(void)
{
    const pn_topic_options durable = {.given = PN_TOPIC_DURABLE | PN_TOPIC_DEFAULT_TTL |
                                               PN_TOPIC_MAX_MEMORY,
                                      .durable = 1,
                                      .max_memory = BOUND,
                                      .default_ttl_ns = 1000 * MS};
    open_scene();
    pn_ref topic, channel, plain;
    CHECK_OK(pn_topic_open(conn, "t", 1, &durable, &topic));
    channel = channel_of(conn, topic, "c");
    plain = channel_of(conn, topic, "plain");
    check_set(plain, -1, 0, "");
    CHECK_OK(configure(channel, ALL, 3, 5 * MS, "dead"));
    reboot();
    topic = topic_of(conn, "t");
    CHECK_EQ(topic_stat(conn, topic).default_ttl_ns, 1000 * MS);
    CHECK_EQ(topic_stat(conn, topic).max_memory, BOUND);
    check_set(channel_of(conn, topic, "c"), 3, 5 * MS, "dead");
    check_set(channel_of(conn, topic, "plain"), -1, 0, "");
    set_ttl(topic, 0);
    CHECK_OK(configure(channel_of(conn, topic, "c"), PN_CHANNEL_MAX_ATTEMPTS, 0, 0, NULL));
    reboot(); /* from the description at the beginning of the file, and a record behind it */
    topic = topic_of(conn, "t");
    CHECK_EQ(topic_stat(conn, topic).default_ttl_ns, 0);
    check_set(channel_of(conn, topic, "c"), 0, 5 * MS, "dead");
    reboot();
    check_set(channel_of(conn, topic_of(conn, "t"), "c"), 0, 5 * MS, "dead");
    close_scene();
}

int main(void)
{
    data_dir_make();
    test_watchdog(110);
    RUN(test_what_is_given_is_set_and_the_rest_stays);
    RUN(test_a_channel_is_made_with_them_and_others_are_a_mismatch);
    RUN(test_they_count_for_a_consumer_that_is_there_and_its_own_value_wins);
    RUN(test_msg_timeout_is_that_of_consumers_that_are_made_later);
    RUN(test_a_killed_consumers_last_delivery_is_a_dead_letter_by_its_channel);
    RUN(test_a_circle_is_refused);
    RUN(test_a_chain_without_end_is_refused);
    RUN(test_default_ttl_is_of_what_is_published_without);
    RUN(test_of_a_topic_that_is_there_only_limits_are_changed);
    RUN(test_a_bound_topic_is_full_by_itself_and_says_so);
    RUN(test_a_bound_topics_oldest_are_dropped);
    RUN(test_beyond_its_bound_a_topic_goes_to_disk_and_comes_back);
    RUN(test_a_message_larger_than_the_bound_comes_by_itself);
    RUN(test_they_come_back_with_a_durable_topic);
    return 0;
}
