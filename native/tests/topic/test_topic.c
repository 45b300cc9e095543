/* test_topic.c - topics in one process: what each call does to a message. */
#include "topic_scene.h"

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

static void test_requeued_goes_to_the_tail(void)
{
    open_scene();
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    pn_consumer *c = consumer_of(conn, channel, 10);
    pn_message_out m;
    publish(conn, topic, "a");
    publish(conn, topic, "b");
    GET(c, &m, "a");
    CHECK_OK(answer(conn, NULL, &m, PN_ANSWER_REQUEUE, 0));
    CHECK_EQ(answer(conn, NULL, &m, PN_ANSWER_FINISH, 0), -PN_ENOTINFLIGHT);
    GET(c, &m, "b");
    FINISH(conn, &m);
    GET(c, &m, "a");
    CHECK_EQ(m.attempts, 2);
    FINISH(conn, &m);
    CHECK_EQ(channel_stat(conn, channel).requeued, 1);
    CHECK_OK(pn_consumer_close(c));
    close_scene();
}

static void test_a_later_delivery_is_not_answered_by_an_earlier_handle(void)
{
    open_scene();
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    pn_consumer *c = consumer_of(conn, channel, 1);
    pn_message_out first, second;
    publish(conn, topic, "a");
    GET(c, &first, "a");
    CHECK_OK(answer(conn, NULL, &first, PN_ANSWER_REQUEUE, 0));
    GET(c, &second, "a");
    CHECK_EQ(answer(conn, NULL, &first, PN_ANSWER_FINISH, 0), -PN_ENOTOWNER);
    FINISH(conn, &second);
    publish(conn, topic, "b"); /* in the same cells */
    GET(c, &first, "b");
    CHECK_EQ(answer(conn, NULL, &second, PN_ANSWER_FINISH, 0), -PN_ENOTINFLIGHT);
    FINISH(conn, &first);
    CHECK_OK(pn_consumer_close(c));
    close_scene();
}

static void test_deferred_comes_when_it_is_due(void)
{
    open_scene();
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    pn_consumer *c = consumer_of(conn, channel, 2);
    pn_message_out m;
    int64_t before = test_now_ns();
    CHECK_OK(publish_in(conn, NULL, topic, "later", 30 * MS, 0, NULL));
    publish(conn, topic, "now");
    CHECK_DEPTHS(conn, channel, 1, 0, 1);
    CHECK_EQ(channel_stat(conn, channel).message_count, 2);
    GET(c, &m, "now");
    CHECK_OK(answer(conn, NULL, &m, PN_ANSWER_REQUEUE, 60 * MS));
    CHECK_DEPTHS(conn, channel, 0, 0, 2);
    CHECK_ENGINE(engine);
    GET(c, &m, "later");
    CHECK(test_now_ns() - before >= 30 * MS);
    FINISH(conn, &m);
    GET(c, &m, "now");
    CHECK_EQ(m.attempts, 2);
    CHECK(test_now_ns() - before >= 60 * MS);
    FINISH(conn, &m);
    CHECK_OK(pn_consumer_close(c));
    close_scene();
}

static void test_what_is_not_answered_in_time_is_delivered_again(void)
{
    open_scene();
    const pn_consumer_options o = {.msg_timeout_ns = 20 * MS, .max_attempts = 2};
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    pn_consumer *c = consumer_with(conn, channel, &o);
    pn_message_out m, again;
    publish(conn, topic, "a");
    GET(c, &m, "a");
    GET(c, &again, "a");
    CHECK_EQ(again.attempts, 2);
    CHECK_EQ(channel_stat(conn, channel).timed_out, 1);
    CHECK_EQ(channel_stat(conn, channel).requeued, 0);
    CHECK_EQ(answer(conn, NULL, &m, PN_ANSWER_FINISH, 0), -PN_ENOTOWNER);
    /* the second is the last: it is dropped */
    CHECK_EQ(pn_consumer_get(c, -1, &m), -EINTR);
    CHECK_EQ(answer(conn, NULL, &again, PN_ANSWER_FINISH, 0), -PN_ENOTINFLIGHT);
    CHECK_EQ(channel_stat(conn, channel).dropped, 1);
    CHECK_EQ(topic_stat(conn, topic).unfinished, 0);
    CHECK_OK(pn_consumer_close(c));
    close_scene();
}

static void test_touch_puts_the_deadline_off_until_its_cap(void)
{
    open_scene();
    const pn_consumer_options o = {.msg_timeout_ns = 1000 * MS, .max_msg_timeout_ns = 1500 * MS};
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    pn_consumer *c = consumer_with(conn, channel, &o);
    pn_message_out m;
    int64_t first, second, third;
    publish(conn, topic, "a");
    GET(c, &m, "a");
    CHECK_OK(pn_message_deadline(conn, m.delivery, m.tag, m.id, &first));
    CHECK_OK(answer(conn, NULL, &m, PN_ANSWER_TOUCH, 0));
    CHECK_OK(pn_message_deadline(conn, m.delivery, m.tag, m.id, &second));
    CHECK(second > first);
    for (third = second; third < first + 500 * MS;) {
        CHECK_OK(answer(conn, NULL, &m, PN_ANSWER_TOUCH, 0));
        CHECK_OK(pn_message_deadline(conn, m.delivery, m.tag, m.id, &third));
    }
    CHECK_EQ(third, first + 500 * MS);
    FINISH(conn, &m);
    CHECK_OK(pn_consumer_close(c));
    close_scene();
}

static void test_every_channel_gets_every_message(void)
{
    open_scene();
    pn_ref topic = topic_of(conn, "t"), a = channel_of(conn, topic, "a"),
           b = channel_of(conn, topic, "b");
    pn_consumer *ca = consumer_of(conn, a, 1), *cb = consumer_of(conn, b, 1);
    pn_message_out m;
    publish(conn, topic, "x");
    GET(ca, &m, "x");
    FINISH(conn, &m);
    CHECK_EQ(topic_stat(conn, topic).unfinished, 1);
    GET(cb, &m, "x");
    CHECK_EQ(m.attempts, 1);
    FINISH(conn, &m);
    CHECK_EQ(topic_stat(conn, topic).unfinished, 0);
    CHECK_OK(pn_consumer_close(ca));
    CHECK_OK(pn_consumer_close(cb));
    close_scene();
}

static void test_the_first_channel_gets_what_the_topic_kept(void)
{
    open_scene();
    pn_ref topic = topic_of(conn, "t"), channel, second;
    pn_message_out m;
    char body[16];
    for (int i = 0; i < 600; i++) {
        snprintf(body, sizeof body, "m%d", i);
        publish(conn, topic, body);
    }
    CHECK_OK(publish_in(conn, NULL, topic, "deferred", 3600000 * MS, 0, NULL));
    CHECK_EQ(topic_stat(conn, topic).depth, 601);
    CHECK_EQ(topic_stat(conn, topic).deferred, 1);
    channel = channel_of(conn, topic, "c");
    CHECK_EQ(topic_stat(conn, topic).depth, 0);
    CHECK_DEPTHS(conn, channel, 600, 0, 1);
    second = channel_of(conn, topic, "d");
    CHECK_DEPTHS(conn, second, 0, 0, 0);
    pn_consumer *c = consumer_of(conn, channel, 600);
    for (int i = 0; i < 600; i++) {
        snprintf(body, sizeof body, "m%d", i);
        GET(c, &m, body);
        FINISH(conn, &m);
    }
    CHECK_OK(pn_consumer_close(c));
    close_scene();
}

static void test_a_paused_topic_keeps_a_paused_channel_holds(void)
{
    open_scene();
    pn_ref topic = topic_of(conn, "t"), a = channel_of(conn, topic, "a"),
           b = channel_of(conn, topic, "b");
    pn_consumer *c = consumer_of(conn, a, 1);
    pn_message_out m;
    CHECK_OK(pn_topic_pause(conn, topic, 1));
    publish(conn, topic, "x");
    CHECK_EQ(topic_stat(conn, topic).depth, 1);
    CHECK_DEPTHS(conn, a, 0, 0, 0);
    CHECK_OK(pn_topic_pause(conn, topic, 0));
    CHECK_EQ(topic_stat(conn, topic).depth, 0);
    CHECK_DEPTHS(conn, a, 1, 0, 0);
    CHECK_DEPTHS(conn, b, 1, 0, 0);
    CHECK_OK(pn_topic_channel_pause(conn, a, 1));
    NOTHING(c);
    CHECK_OK(pn_topic_channel_pause(conn, a, 0));
    GET(c, &m, "x");
    FINISH(conn, &m);
    CHECK_OK(pn_consumer_close(c));
    close_scene();
}

static void test_empty_and_delete(void)
{
    open_scene();
    pn_ref topic = topic_of(conn, "t"), a = channel_of(conn, topic, "a"), again;
    pn_consumer *c = consumer_of(conn, a, 300);
    pn_message_out m;
    for (int i = 0; i < 700; i++)
        publish(conn, topic, "x");
    for (int i = 0; i < 700; i++)
        CHECK_OK(publish_in(conn, NULL, topic, "y", 3600000 * MS, 0, NULL));
    for (int i = 0; i < 300; i++)
        GET(c, &m, "x");
    CHECK_DEPTHS(conn, a, 400, 300, 700);
    CHECK_OK(pn_topic_channel_empty(conn, a));
    CHECK_DEPTHS(conn, a, 0, 0, 0);
    CHECK_EQ(answer(conn, NULL, &m, PN_ANSWER_FINISH, 0), -PN_ENOTINFLIGHT);
    CHECK_EQ(topic_stat(conn, topic).unfinished, 0);
    publish(conn, topic, "z");
    GET(c, &m, "z");
    CHECK_OK(pn_topic_channel_delete(conn, a));
    CHECK_EQ(pn_consumer_get(c, 0, &m), -PN_ETOPICDELETED);
    CHECK_EQ(answer(conn, NULL, &m, PN_ANSWER_FINISH, 0), -PN_ENOTINFLIGHT);
    CHECK_EQ(pn_topic_channel_delete(conn, a), -PN_ETOPICDELETED);
    publish(conn, topic, "kept");
    CHECK_EQ(topic_stat(conn, topic).depth, 1);
    again = channel_of(conn, topic, "a");
    CHECK(again != a);
    CHECK_DEPTHS(conn, again, 1, 0, 0);
    CHECK_EQ(pn_consumer_get(c, 0, &m), -PN_ETOPICDELETED);
    CHECK_OK(pn_consumer_close(c));
    CHECK_OK(pn_topic_delete(conn, topic));
    CHECK_EQ(publish_in(conn, NULL, topic, "x", 0, 0, NULL), -PN_ETOPICDELETED);
    CHECK_EQ(pn_topic_find(conn, "t", 1, &again), 0);
    close_scene();
}

static void test_ephemeral_ones_go_with_their_last_user(void)
{
    open_scene();
    pn_ref topic = topic_of(conn, "t#ephemeral"), a = channel_of(conn, topic, "a#ephemeral"), r;
    pn_consumer *c = consumer_of(conn, a, 1), *d = consumer_of(conn, a, 1);
    pn_message_out m;
    publish(conn, topic, "x");
    CHECK_OK(pn_consumer_close(d));
    GET(c, &m, "x");
    CHECK_OK(pn_consumer_close(c));
    CHECK_EQ(pn_topic_find(conn, "t#ephemeral", 11, &r), 0);
    close_scene();
}

static void test_names(void)
{
    static const char *const bad[] = {
        "", "a b", "a#", "#ephemeral", "a#ephemera", "a#ephemeral#ephemeral", "\xc3\xa4"};
    char name[66];
    pn_ref r;
    open_scene();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        CHECK_EQ(pn_topic_open(conn, bad[i], strlen(bad[i]), NULL, &r), -PN_ETOPICNAME);
    memset(name, 'a', sizeof name);
    CHECK_OK(pn_topic_open(conn, name, 64, NULL, &r));
    CHECK_EQ(pn_topic_open(conn, name, 65, NULL, &r), -PN_ETOPICNAME);
    CHECK_EQ(pn_topic_channel_open(conn, r, "a/b", 3, -1, &r), -PN_ETOPICNAME);
    close_scene();
}

static void test_options_of_a_topic_are_compared(void)
{
    open_scene();
    pn_ref topic = topic_with(conn, "t", 10, PN_OVERFLOW_ERROR), r;
    pn_topic_options o = {.given = PN_TOPIC_MAX_DEPTH, .max_depth = 11};
    CHECK_EQ(topic_of(conn, "t"), topic);
    CHECK_EQ(pn_topic_open(conn, "t", 1, &o, &r), -PN_ETOPICOPTIONS);
    o = (pn_topic_options) {.given = PN_TOPIC_DURABLE, .durable = 0};
    CHECK_OK(pn_topic_open(conn, "t", 1, &o, &r));
    CHECK_EQ(r, topic);
    close_scene();
}

static void test_bodies_of_any_length(void)
{
    static const size_t lengths[] = {1, 255, 256, 257, 568, 569, 1000, 4096, 70000, 1 << 20};
    open_scene();
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    pn_consumer *c = consumer_of(conn, channel, 1);
    unsigned char *body = malloc((1 << 20) + 1);
    pn_message_out m;
    uint64_t id;
    CHECK(body != NULL);
    for (size_t i = 0; i < (1 << 20) + 1; i++)
        body[i] = (unsigned char) (i * 7 + i / 251);
    pn_message_in in = {.body = body, .headers = "{\"a\":1}", .headers_len = 7};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        in.body_len = lengths[i];
        CHECK_OK(pn_topic_publish(conn, NULL, topic, &in, &id));
        CHECK_EQ(pn_consumer_get(c, 0, &m), 1);
        CHECK_EQ(m.body_len, lengths[i]);
        CHECK(memcmp(m.body, body, lengths[i]) == 0);
        CHECK(m.headers_len == 7 && memcmp(m.headers, "{\"a\":1}", 7) == 0);
        FINISH(conn, &m);
    }
    in.body_len = 0;
    CHECK_EQ(pn_topic_publish(conn, NULL, topic, &in, &id), -PN_EBODY);
    in.body_len = (1 << 20) + 1;
    CHECK_EQ(pn_topic_publish(conn, NULL, topic, &in, &id), -PN_EBODYLONG);
    free(body);
    CHECK_OK(pn_consumer_close(c));
    close_scene();
}

static void test_publish_many(void)
{
    open_scene();
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    pn_consumer *c = consumer_of(conn, channel, 3);
    const uint32_t lens[] = {1, 2, 3};
    uint32_t many[2000];
    char *bodies = malloc(2000UL * 20000);
    pn_message_out m;
    uint64_t first;
    CHECK(bodies != NULL);
    CHECK_OK(pn_topic_publish_many(conn, NULL, topic, "abbccc", lens, 3, NULL, &first));
    GET(c, &m, "a");
    CHECK_EQ(m.id, first);
    FINISH(conn, &m);
    GET(c, &m, "bb");
    CHECK_EQ(m.id, first + 1);
    FINISH(conn, &m);
    GET(c, &m, "ccc");
    FINISH(conn, &m);
    /* all or none: 40 MB are too many for 16 */
    for (int i = 0; i < 2000; i++)
        many[i] = 20000;
    memset(bodies, 'x', 2000UL * 20000);
    CHECK_EQ(pn_topic_publish_many(conn, NULL, topic, bodies, many, 2000, NULL, &first),
             -PN_ETOPICFULL);
    CHECK_ENGINE(engine);
    CHECK_DEPTHS(conn, channel, 0, 0, 0);
    CHECK_EQ(topic_stat(conn, topic).unfinished, 0);
    free(bodies);
    CHECK_OK(pn_consumer_close(c));
    close_scene();
}

static void test_a_bounded_topic(void)
{
    open_scene();
    pn_ref error = topic_with(conn, "e", 2, PN_OVERFLOW_ERROR),
           disk = topic_with(conn, "d", 2, PN_OVERFLOW_DISK),
           drop_new = topic_with(conn, "n", 2, PN_OVERFLOW_DROP_NEW),
           oldest = topic_with(conn, "o", 2, PN_OVERFLOW_DROP_OLDEST);
    const pn_ref all[] = {error, disk, drop_new, oldest};
    pn_consumer *c[4];
    pn_message_out m;
    for (int i = 0; i < 4; i++) {
        c[i] = consumer_of(conn, channel_of(conn, all[i], "c"), 2);
        publish(conn, all[i], "1");
        publish(conn, all[i], "2");
    }
    CHECK_EQ(publish_in(conn, NULL, error, "3", 0, 0, NULL), -PN_ETOPICFULL);
    CHECK_EQ(publish_in(conn, NULL, disk, "3", 0, 0, NULL), -PN_ETOPICFULL);
    publish(conn, drop_new, "3");
    publish(conn, oldest, "3");
    CHECK_EQ(topic_stat(conn, drop_new).dropped, 1);
    CHECK_EQ(topic_stat(conn, oldest).dropped, 1);
    GET(c[0], &m, "1");
    GET(c[2], &m, "1");
    GET(c[3], &m, "2");
    GET(c[3], &m, "3");
    CHECK_ENGINE(engine);
    for (int i = 0; i < 4; i++)
        CHECK_OK(pn_consumer_close(c[i]));
    close_scene();
}

static void test_time_to_live(void)
{
    open_scene();
    pn_ref topic = topic_of(conn, "t"), channel;
    pn_message_out m;
    CHECK_OK(publish_in(conn, NULL, topic, "kept", 0, 20 * MS, NULL));
    channel = channel_of(conn, topic, "c");
    pn_consumer *c = consumer_of(conn, channel, 1);
    CHECK_OK(publish_in(conn, NULL, topic, "gone", 0, 20 * MS, NULL));
    CHECK_OK(publish_in(conn, NULL, topic, "deferred", 3600000 * MS, 20 * MS, NULL));
    CHECK_OK(publish_in(conn, NULL, topic, "stays", 0, 3600000 * MS, NULL));
    GET(c, &m, "kept");
    CHECK(m.expires_ns > 0);
    CHECK_SOON(channel_stat(conn, channel).expired == 2);
    CHECK_DEPTHS(conn, channel, 1, 1, 0);
    FINISH(conn, &m); /* it does not expire in flight */
    GET(c, &m, "stays");
    CHECK_OK(answer(conn, NULL, &m, PN_ANSWER_REQUEUE, 0));
    CHECK_ENGINE(engine);
    GET(c, &m, "stays");
    FINISH(conn, &m);
    CHECK_OK(pn_consumer_close(c));
    close_scene();
}

static void test_what_was_fetched_ahead_expires_until_it_is_seen(void)
{
    open_scene();
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    pn_consumer *c = consumer_of(conn, channel, 3);
    pn_message_out m;
    publish(conn, topic, "1");
    CHECK_OK(publish_in(conn, NULL, topic, "2", 0, 20 * MS, NULL));
    publish(conn, topic, "3");
    GET(c, &m, "1");
    CHECK_DEPTHS(conn, channel, 0, 3, 0);
    test_sleep_ms(25); /* its life, not an event */
    GET(c, &m, "3");
    CHECK_EQ(channel_stat(conn, channel).expired, 1);
    CHECK_DEPTHS(conn, channel, 0, 2, 0);
    CHECK_OK(pn_consumer_close(c));
    close_scene();
}

static void test_cancel(void)
{
    open_scene();
    pn_ref topic = topic_of(conn, "t"), a = channel_of(conn, topic, "a"),
           b = channel_of(conn, topic, "b");
    uint64_t id, ready = publish(conn, topic, "x");
    CHECK_OK(publish_in(conn, NULL, topic, "y", 3600000 * MS, 0, &id));
    CHECK_DEPTHS(conn, b, 1, 0, 1);
    CHECK_EQ(pn_topic_cancel(conn, NULL, topic, ready), 0);
    CHECK_EQ(pn_topic_cancel(conn, NULL, topic, id), 1);
    CHECK_EQ(pn_topic_cancel(conn, NULL, topic, id), 0);
    CHECK_DEPTHS(conn, a, 1, 0, 0);
    CHECK_DEPTHS(conn, b, 1, 0, 0);
    CHECK_EQ(topic_stat(conn, topic).unfinished, 1);
    close_scene();
}

static void test_dead_letters(void)
{
    static const char want[] = "{\"k\":1,\"dead-letter-topic\":\"t\",\"dead-letter-channel\":\"c\","
                               "\"dead-letter-id\":\"%016llx\",\"dead-letter-attempts\":\"%u\","
                               "\"dead-letter-reason\":\"a \\\"b\\\"\"}";
    open_scene();
    const pn_consumer_options o = {.max_attempts = 2, .dead_letter = "dead", .dead_letter_len = 4};
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c"), dead;
    pn_consumer *c = consumer_with(conn, channel, &o), *d;
    const pn_message_in in = {.body = "x", .body_len = 1, .headers = "{\"k\":1}", .headers_len = 7};
    pn_message_out m, letter;
    char headers[300];
    uint64_t id;
    CHECK_OK(pn_topic_publish(conn, NULL, topic, &in, &id));
    GET(c, &m, "x");
    CHECK_OK(pn_message_answer(conn, NULL, m.delivery, m.tag, m.id, PN_ANSWER_DEAD_LETTER, 0,
                               "a \"b\"", 5));
    dead = topic_of(conn, "dead");
    CHECK_EQ(topic_stat(conn, dead).depth, 1);
    d = consumer_of(conn, channel_of(conn, dead, "all"), 1);
    GET(d, &letter, "x");
    snprintf(headers, sizeof headers, want, (unsigned long long) id, 1);
    CHECK_EQ(letter.headers_len, strlen(headers));
    CHECK(memcmp(letter.headers, headers, letter.headers_len) == 0);
    FINISH(conn, &letter);
    publish(conn, topic, "y");
    GET(c, &m, "y");
    CHECK_OK(answer(conn, NULL, &m, PN_ANSWER_REQUEUE, 0));
    GET(c, &m, "y");
    CHECK_OK(answer(conn, NULL, &m, PN_ANSWER_REQUEUE, 0));
    GET(d, &letter, "y");
    CHECK_EQ(letter.attempts, 1);
    FINISH(conn, &letter);
    CHECK_EQ(channel_stat(conn, channel).dead_lettered, 2);
    CHECK_DEPTHS(conn, channel, 0, 0, 0);
    CHECK_OK(pn_consumer_close(c));
    CHECK_OK(pn_consumer_close(d));
    close_scene();
}

/* Through the C API headers are bytes: what is no object is replaced, and what is one kept. */
static void test_headers_that_dead_letters_cannot_be_added_to(void)
{
    static const struct {
        const char *given, *kept;
    } cases[] = {{"a}", ""},  {"}", ""},     {"{", ""},       {"[\"k\"]", ""},
                 {"", ""},    {"{}", ""},    {"{a", ""},      {"k: {}", ""},
                 {" {}", ""}, {"{} \n", ""}, {"{a}\n", "a,"}, {"{\"k\":{}}", "\"k\":{},"}};
    static const char added[] = "\"dead-letter-topic\":\"t\",\"dead-letter-channel\":\"c\",";
    char want[128];
    open_scene();
    const pn_consumer_options o = {.max_attempts = 1, .dead_letter = "dead", .dead_letter_len = 4};
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    pn_ref dead = topic_of(conn, "dead");
    pn_consumer *c = consumer_with(conn, channel, &o);
    pn_consumer *d = consumer_of(conn, channel_of(conn, dead, "all"), 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const pn_message_in in = {.body = "x",
                                  .body_len = 1,
                                  .headers = cases[i].given,
                                  .headers_len = (uint32_t) strlen(cases[i].given)};
        pn_message_out m, letter;
        uint64_t id;
        CHECK_OK(pn_topic_publish(conn, NULL, topic, &in, &id));
        GET(c, &m, "x");
        CHECK_OK(answer(conn, NULL, &m, PN_ANSWER_REQUEUE, 0));
        GET(d, &letter, "x");
        int len = snprintf(want, sizeof want, "{%s%s", cases[i].kept, added);
        if (letter.headers_len < (uint32_t) len || memcmp(letter.headers, want, (size_t) len) != 0)
            FAIL("\"%s\" has become %.*s", cases[i].given, (int) letter.headers_len,
                 (const char *) letter.headers);
        FINISH(conn, &letter);
    }
    CHECK_OK(pn_consumer_close(c));
    CHECK_OK(pn_consumer_close(d));
    close_scene();
}

/* Consumers name each other's topic, which the check of channels does not know (topic.c 6). */
static void test_dead_letters_of_full_topics_in_a_circle(void)
{
    static const char *const names[] = {"t", "u"};
    const pn_topic_options one = {.given = PN_TOPIC_MAX_DEPTH | PN_TOPIC_OVERFLOW,
                                  .max_depth = 1,
                                  .overflow = PN_OVERFLOW_ERROR};
    const pn_message_in in = {.body = "z", .body_len = 1};
    pn_ref topic[2], channel[2];
    pn_consumer *c[2];
    pn_message_out m[2];
    uint64_t id;
    open_scene();
    for (int i = 0; i < 2; i++) {
        const pn_consumer_options o = {.msg_timeout_ns = 20 * MS,
                                       .max_attempts = 1,
                                       .dead_letter = names[1 - i],
                                       .dead_letter_len = 1};
        CHECK_OK(pn_topic_open(conn, names[i], 1, &one, &topic[i]));
        channel[i] = channel_of(conn, topic[i], "c");
        c[i] = consumer_with(conn, channel[i], &o);
        publish(conn, topic[i], names[i]);
        GET(c[i], &m[i], names[i]);
    }
    const int64_t due = test_now_ns() + 20 * MS;
    while (test_now_ns() < due)
        usleep(1000);
    CHECK_EQ(pn_topic_publish(conn, NULL, topic[0], &in, &id), -PN_ETOPICFULL);
    for (int i = 0; i < 2; i++) /* there is no room for its dead letter: it stays */
        GET(c[i], &m[i], names[i]);
    for (int i = 0; i < 2; i++) {
        FINISH(conn, &m[i]);
        CHECK_EQ(channel_stat(conn, channel[i]).dead_lettered, 0);
        CHECK_OK(pn_consumer_close(c[i]));
    }
    close_scene();
}

/* ---- what is void makes room, whichever process began to sweep it --------------------------- */

enum { VOID_MESSAGES = 6000 };

/* Memory full of what channel `name` alone has, and another topic that is not opened any more. */
static void open_crowded(const char *channel_name, pn_ref *crowded, pn_ref *other)
{
    pn_options o = test_options();
    o.topic_memory = 4 << 20;
    engine = test_engine(&o);
    conn = test_connect(engine);
    pn_ref topic = topic_of(conn, "t");
    *crowded = channel_of(conn, topic, channel_name);
    *other = topic_of(conn, "other");
    channel_of(conn, *other, "c");
    for (int i = 0; i < VOID_MESSAGES; i++)
        publish(conn, topic, "void soon");
}

static void publish_to_fill(pn_ref other)
{
    for (int i = 0; i < VOID_MESSAGES; i++)
        publish(conn, other, "instead");
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static void test_an_ephemeral_channel_that_has_gone_makes_room(void)
{
    pn_ref crowded, other;
    open_crowded("c#ephemeral", &crowded, &other);
    pn_consumer *last = consumer_of(conn, crowded, 1);
    CHECK_OK(pn_consumer_close(last)); /* it goes with its last consumer */
    publish_to_fill(other);
}

static void test_an_emptied_channel_whose_emptier_has_died_makes_room(void)
{
    pn_ref crowded, other;
    open_crowded("c", &crowded, &other);
    struct pn_topics *all = &test_inside()->topics; /* as a process leaves it that dies here */
    struct pn_topic_channel *ch = &all->channel[(uint32_t) crowded - 1];
    all->ctl->sweeping = 1;
    ch->discarded_below = ch->next_order;
    publish_to_fill(other);
}

static void test_what_is_void_makes_room_for_a_large_message_at_once(void)
{
    static char body[512 << 10];
    pn_ref crowded, other;
    open_crowded("c#ephemeral", &crowded, &other);
    pn_consumer *last = consumer_of(conn, crowded, 1);
    CHECK_OK(pn_consumer_close(last));
    memset(body, 'x', sizeof body - 1);
    for (int i = 0; i < 4; i++)
        publish(conn, other, body);
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

int main(void)
{
    test_watchdog(100);
    RUN(test_published_got_finished);
    RUN(test_requeued_goes_to_the_tail);
    RUN(test_a_later_delivery_is_not_answered_by_an_earlier_handle);
    RUN(test_deferred_comes_when_it_is_due);
    RUN(test_what_is_not_answered_in_time_is_delivered_again);
    RUN(test_touch_puts_the_deadline_off_until_its_cap);
    RUN(test_every_channel_gets_every_message);
    RUN(test_the_first_channel_gets_what_the_topic_kept);
    RUN(test_a_paused_topic_keeps_a_paused_channel_holds);
    RUN(test_empty_and_delete);
    RUN(test_ephemeral_ones_go_with_their_last_user);
    RUN(test_names);
    RUN(test_options_of_a_topic_are_compared);
    RUN(test_bodies_of_any_length);
    RUN(test_publish_many);
    RUN(test_a_bounded_topic);
    RUN(test_time_to_live);
    RUN(test_what_was_fetched_ahead_expires_until_it_is_seen);
    RUN(test_cancel);
    RUN(test_dead_letters);
    RUN(test_headers_that_dead_letters_cannot_be_added_to);
    RUN(test_dead_letters_of_full_topics_in_a_circle);
    RUN(test_an_ephemeral_channel_that_has_gone_makes_room);
    RUN(test_an_emptied_channel_whose_emptier_has_died_makes_room);
    RUN(test_what_is_void_makes_room_for_a_large_message_at_once);
    return tests_done();
}
