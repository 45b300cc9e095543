/* hold_topics.h - scenarios of bench_hold: topics. */
#ifndef HOLD_TOPICS_H
#define HOLD_TOPICS_H

#include "hold_rig.h"

#include "pynotify_topic.h"
#include "topic/topic.h"

enum { BATCH = 1000, BODY = 200, IN_FLIGHT = 60000 };
enum { LONG = 400000 }; /* bytes of a long message */

static pn_ref topic, channel;

static void open_topic_in(uint64_t memory, bool durable, bool watch)
{
    pn_options o;
    pn_topic_options t = {.given = PN_TOPIC_DURABLE | PN_TOPIC_FSYNC | PN_TOPIC_OVERFLOW,
                          .durable = durable,
                          .fsync = PN_FSYNC_NONE,
                          .overflow = PN_OVERFLOW_DISK};
    pn_options_default(&o);
    o.topic_memory = memory;
    snprintf(o.data_dir, sizeof o.data_dir, "%s", directory);
    open_hold(&o);
    if (watch)
        begin_watching(conn, engine);
    must(pn_topic_open(conn, "t", 1, &t, &topic), "topic");
    must(pn_topic_channel_open(conn, topic, "c", 1, -1, &channel), "channel");
}

static void open_topic(bool durable, bool watch)
{
    open_topic_in(UINT64_C(512) << 20, durable, watch);
}

static void publish_batches(int n)
{
    static uint8_t bodies[BATCH * BODY];
    static uint32_t lens[BATCH];
    const pn_message_in common = {0};
    uint64_t id;
    for (int i = 0; i < BATCH; i++)
        lens[i] = BODY;
    for (int i = 0; i < n; i += BATCH)
        must(pn_topic_publish_many(conn, NULL, topic, bodies, lens, BATCH, &common, &id),
             "publish_many");
}

/* With the topic_memory that a segment has as a rule. */
static struct result first_topic(void)
{
    pn_ref ref;
    pn_options o;
    pn_options_default(&o);
    open_hold(&o);
    begin_watching(conn, engine);
    must(pn_topic_open(conn, "t", 1, NULL, &ref), "topic");
    return finish();
}

static struct result publishing(bool durable)
{
    open_topic(durable, false);
    begin_watching(conn, engine);
    publish_batches(20 * BATCH);
    return finish();
}

static struct result publishing_in_memory(void)
{
    return publishing(false);
}

static struct result publishing_durable(void)
{
    return publishing(true);
}

/* With a second channel each of them rests. */
static struct result publishing_to_disk(bool durable, bool rests)
{
    pn_topic_stats stats = {0};
    pn_ref other;
    open_topic_in(4 << 20, durable, false);
    if (rests)
        must(pn_topic_channel_open(conn, topic, "other", 5, -1, &other), "channel");
    while (stats.on_disk == 0) {
        publish_batches(BATCH);
        must(pn_topic_stat(conn, topic, &stats), "stat");
    }
    begin_watching(conn, engine);
    publish_batches(20 * BATCH);
    return finish();
}

static struct result publishing_on_disk(void)
{
    return publishing_to_disk(false, false);
}

static struct result publishing_durable_on_disk(void)
{
    return publishing_to_disk(true, false);
}

static struct result publishing_to_resting(void)
{
    return publishing_to_disk(false, true);
}

static void publish_one(size_t length, int64_t delay_ns)
{
    static uint8_t body[LONG];
    const pn_message_in in = {.body = body, .body_len = length, .delay_ns = delay_ns};
    uint64_t id;
    must(pn_topic_publish(conn, NULL, topic, &in, &id), "publish");
}

static void finish_some(int n)
{
    const pn_consumer_options o = {.max_in_flight = 1};
    pn_consumer *consumer;
    pn_message_out m;
    must(pn_consumer_open(conn, channel, &o, &consumer), "consumer");
    for (int i = 0; i < n;) {
        int rc = pn_consumer_get(consumer, INT64_C(1000000000), &m);
        if (rc == -EINTR)
            continue;
        if (must(rc, "get") != 1)
            die("only %d messages came", i);
        must(pn_message_finish(conn, m.delivery, m.tag, m.id), "finish");
        i++;
    }
    pn_consumer_close(consumer);
}

/* Memory is full of deferred messages, which make room for long ones. */
static struct result leaving(void)
{
    const int64_t day = INT64_C(86400000000000);
    pn_topic_stats stats = {0};
    open_topic_in(16 << 20, false, false);
    while (stats.on_disk == 0) {
        publish_one(BODY, day);
        must(pn_topic_stat(conn, topic, &stats), "stat");
    }
    begin_watching(conn, engine);
    for (int i = 0; i < 20; i++)
        publish_one(LONG, 0);
    finish_some(20);
    return finish();
}

/* A thousand channels, of which one is read, and memory is full of what the others have: deferred
 * messages, or they rest. */
static struct result of_many_channels(int64_t delay_ns)
{
    enum { CHANNELS_OF_ONE = 1000, NEW = 100 };
    pn_topic_stats stats = {0};
    pn_ref other;
    char name[16];
    int n = 0;
    open_topic_in(16 << 20, false, false);
    for (int i = 1; i < CHANNELS_OF_ONE; i++) {
        int length = snprintf(name, sizeof name, "o%d", i);
        must(pn_topic_channel_open(conn, topic, name, (size_t) length, -1, &other), "channel");
    }
    for (; stats.on_disk == 0; n++) {
        publish_one(BODY, delay_ns);
        must(pn_topic_stat(conn, topic, &stats), "stat");
    }
    begin_watching(conn, engine);
    for (int i = 0; i < NEW; i++)
        publish_one(BODY, delay_ns / 3);
    finish_some(n + NEW);
    return finish();
}

static struct result many_channels_rest(void)
{
    return of_many_channels(0);
}

static struct result many_channels_deferred(void)
{
    return of_many_channels(INT64_C(3000000000));
}

/* What was on disk has room at once. */
static struct result coming_back(size_t length, int n)
{
    pn_topic_options t = {.given = PN_TOPIC_MAX_MEMORY, .max_memory = 65536};
    open_topic_in(64 << 20, false, false);
    must(pn_topic_configure(conn, topic, &t), "configure");
    for (int i = 0; i < n; i++)
        publish_one(length, 0);
    t.max_memory = 0;
    begin_watching(conn, engine);
    must(pn_topic_configure(conn, topic, &t), "configure");
    finish_some(n);
    return finish();
}

static struct result coming_back_short(void)
{
    return coming_back(BODY, 20 * BATCH);
}

static struct result coming_back_long(void)
{
    return coming_back(LONG / 10, BATCH);
}

static void take_and_die(int socket, void *arg)
{
    const pn_consumer_options o = {.max_in_flight = 65535};
    pn_consumer *consumer;
    pn_message_out m;
    pn_conn *own = connect_to(arg);
    (void) socket;
    must(pn_consumer_open(own, channel, &o, &consumer), "consumer");
    for (int i = 0; i < IN_FLIGHT; i++)
        if (must(pn_consumer_get(consumer, 0, &m), "get") != 1)
            die("only %d messages came", i);
    kill(getpid(), SIGKILL);
}

static struct result reaping(void)
{
    pn_stat stat;
    open_topic(false, false);
    publish_batches(IN_FLIGHT);
    place_bystander(engine);
    wait_for_death(start_child(take_and_die, engine));
    begin_watching(conn, engine);
    must(pn_engine_stat(engine, &stat, NULL, 0), "stat");
    publish_batches(BATCH);
    return finish();
}

static void die_with_the_lock(int socket, void *arg)
{
    (void) socket;
    pn_conn *own = connect_to(arg);
    struct pn_hold hold;
    must(pn_lock_acquire(own->seg, &hold, PN_LOCK_FOREVER), "lock");
    pn_topics_begin_locked(own->seg); /* in the middle of an operation of topics */
    kill(getpid(), SIGKILL);
}

static struct result repairing(int messages)
{
    open_topic(true, false);
    publish_batches(messages);
    place_bystander(engine);
    wait_for_death(start_child(die_with_the_lock, engine));
    begin_watching(conn, engine);
    (void) pn_notify(conn, "c", 1, "x", 1);
    publish_batches(BATCH);
    return finish();
}

static struct result reopening(int messages)
{
    pn_ref ref;
    open_topic(true, false);
    publish_batches(messages);
    close_hold();
    open_topic(true, true); /* with all of topic_memory, which takes a while by itself */
    must(pn_topic_open(conn, "t", 1, NULL, &ref), "topic");
    return finish();
}

static struct result repairing_many(void)
{
    return repairing(quick ? 100000 : 1000000);
}

static struct result reopening_many(void)
{
    return reopening(quick ? 100000 : 1000000);
}

static struct result compacting(void)
{
    const pn_consumer_options o = {.max_in_flight = 100};
    pn_consumer *consumer;
    pn_message_out m;
    open_topic(true, false);
    conn->seg->topics.ctl->log.compact_from = 1 << 20;
    begin_watching(conn, engine);
    must(pn_consumer_open(conn, channel, &o, &consumer), "consumer");
    for (int i = 0; i < 60; i++) {
        publish_batches(BATCH);
        for (int k = 0; k < BATCH - 20; k++) {
            must(pn_consumer_get(consumer, 0, &m), "get");
            must(pn_message_finish(conn, m.delivery, m.tag, m.id), "finish");
        }
    }
    struct result r = end_watching();
    if (conn->seg->topics.ctl->log.compactions == 0)
        die("nothing was compacted");
    pn_consumer_close(consumer);
    close_hold();
    empty_directory();
    return r;
}

/* All but the newest are in flight, and each publish drops the oldest that is not. */
static struct result dropping(void)
{
    const pn_consumer_options o = {.max_in_flight = 65535};
    const pn_message_in in = {.body = "x", .body_len = 1};
    pn_consumer *consumer;
    pn_message_out m;
    uint64_t id;
    pn_options so;
    const pn_topic_options t = {.given = PN_TOPIC_MAX_DEPTH | PN_TOPIC_OVERFLOW,
                                .overflow = PN_OVERFLOW_DROP_OLDEST,
                                .max_depth = IN_FLIGHT + 10};
    pn_options_default(&so);
    so.topic_memory = UINT64_C(512) << 20;
    open_hold(&so);
    must(pn_topic_open(conn, "t", 1, &t, &topic), "topic");
    must(pn_topic_channel_open(conn, topic, "c", 1, -1, &channel), "channel");
    must(pn_consumer_open(conn, channel, &o, &consumer), "consumer");
    publish_batches(IN_FLIGHT);
    for (int i = 0; i < IN_FLIGHT; i++)
        if (must(pn_consumer_get(consumer, 0, &m), "get") != 1)
            die("only %d messages came", i);
    begin_watching(conn, engine);
    for (int i = 0; i < 2000; i++)
        must(pn_topic_publish(conn, NULL, topic, &in, &id), "publish");
    struct result r = end_watching();
    pn_consumer_close(consumer);
    close_hold();
    return r;
}

#endif
