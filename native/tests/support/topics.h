/* topics.h - what tests of topics do again and again. */
#ifndef PN_TESTS_TOPICS_H
#define PN_TESTS_TOPICS_H

#include "engine.h"

#define MS INT64_C(1000000)

/* Of a body of four digits, which is no string. */
static inline int number_in(const pn_message_out *m)
{
    char text[5] = {0};
    memcpy(text, m->body, m->body_len < 4 ? m->body_len : 4);
    return atoi(text);
}

static inline pn_ref topic_of(pn_conn *conn, const char *name)
{
    pn_ref ref;
    CHECK_OK(pn_topic_open(conn, name, strlen(name), NULL, &ref));
    return ref;
}

static inline pn_ref topic_with(pn_conn *conn, const char *name, uint64_t max_depth,
                                uint32_t overflow)
{
    const pn_topic_options o = {.given = PN_TOPIC_MAX_DEPTH | PN_TOPIC_OVERFLOW,
                                .overflow = overflow,
                                .max_depth = max_depth};
    pn_ref ref;
    CHECK_OK(pn_topic_open(conn, name, strlen(name), &o, &ref));
    return ref;
}

static inline pn_ref channel_of(pn_conn *conn, pn_ref topic, const char *name)
{
    pn_ref ref;
    CHECK_OK(pn_topic_channel_open(conn, topic, name, strlen(name), -1, &ref));
    return ref;
}

static inline int publish_in(pn_conn *conn, pn_txn *txn, pn_ref topic, const char *body,
                             int64_t delay_ns, int64_t ttl_ns, uint64_t *id)
{
    const pn_message_in in = {
        .body = body, .body_len = strlen(body), .delay_ns = delay_ns, .ttl_ns = ttl_ns};
    uint64_t ignored;
    return pn_topic_publish(conn, txn, topic, &in, id != NULL ? id : &ignored);
}

static inline uint64_t publish(pn_conn *conn, pn_ref topic, const char *body)
{
    uint64_t id;
    CHECK_OK(publish_in(conn, NULL, topic, body, 0, 0, &id));
    return id;
}

static inline pn_consumer *consumer_with(pn_conn *conn, pn_ref channel,
                                         const pn_consumer_options *o)
{
    pn_consumer *consumer;
    CHECK_OK(pn_consumer_open(conn, channel, o, &consumer));
    return consumer;
}

static inline pn_consumer *consumer_of(pn_conn *conn, pn_ref channel, uint32_t max_in_flight)
{
    const pn_consumer_options o = {.max_in_flight = max_in_flight};
    return consumer_with(conn, channel, &o);
}

/* Get one that is there, or comes. */
#define GET(consumer, m, text) get_one(__FILE__, __LINE__, consumer, m, text)
static inline void get_one(const char *file, int line, pn_consumer *consumer, pn_message_out *m,
                           const char *text)
{
    int rc;
    do
        rc = pn_consumer_get(consumer, TEST_PATIENCE_MS * MS, m);
    while (rc == -EINTR);
    if (rc != 1)
        FAIL("%s:%d: get: %d: %s", file, line, rc, rc < 0 ? pn_error_message() : "nothing came");
    if (m->body_len != strlen(text) || memcmp(m->body, text, m->body_len) != 0)
        FAIL("%s:%d: got \"%.*s\", not \"%s\"", file, line, (int) m->body_len,
             (const char *) m->body, text);
}

#define NOTHING(consumer) CHECK_EQ(pn_consumer_get(consumer, 0, &(pn_message_out) {0}), 0)

static inline int answer(pn_conn *conn, pn_txn *txn, const pn_message_out *m, int what,
                         int64_t delay_ns)
{
    return pn_message_answer(conn, txn, m->delivery, m->tag, m->id, what, delay_ns, NULL, 0);
}

#define FINISH(conn, m) CHECK_OK(answer(conn, NULL, m, PN_ANSWER_FINISH, 0))

static inline pn_topic_channel_stats channel_stat(pn_conn *conn, pn_ref channel)
{
    pn_topic_channel_stats s;
    CHECK_OK(pn_topic_channel_stat(conn, channel, &s));
    return s;
}

static inline pn_topic_stats topic_stat(pn_conn *conn, pn_ref topic)
{
    pn_topic_stats s;
    CHECK_OK(pn_topic_stat(conn, topic, &s));
    return s;
}

#define CHECK_DEPTHS(conn, channel, want_ready, want_flying, want_deferred)                        \
    do {                                                                                           \
        pn_topic_channel_stats s_ = channel_stat(conn, channel);                                   \
        CHECK_EQ(s_.depth, want_ready);                                                            \
        CHECK_EQ(s_.in_flight, want_flying);                                                       \
        CHECK_EQ(s_.deferred, want_deferred);                                                      \
    } while (0)

#endif
