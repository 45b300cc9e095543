/* crash_topic_repair.h - topics with much in them, and a death that closes them. */
#ifndef PN_CRASH_TOPIC_REPAIR_H
#define PN_CRASH_TOPIC_REPAIR_H

#include "data_dirs.h"

#include "topic/topic.h"
#include "topics.h"

enum { MANY = 9000, FEW = 600, BATCH = 100 };

static pn_engine *engine;
static pn_conn *conn;
static pn_ref topic, channel;
static const char *name;
static bool durable;

static void attach(void)
{
    const pn_topic_options t = {
        .given = PN_TOPIC_DURABLE | PN_TOPIC_FSYNC, .durable = durable, .fsync = PN_FSYNC_NONE};
    pn_options o = test_options();
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    o.topic_memory = 16 << 20;
    CHECK_OK(pn_open(name, &o, &engine));
    conn = test_connect(engine);
    CHECK_OK(pn_topic_open(conn, "t", 1, &t, &topic));
    channel = channel_of(conn, topic, "c");
}

static void publish_all(int n)
{
    static uint8_t bodies[BATCH * 4 + 1];
    static uint32_t lens[BATCH];
    uint64_t id;
    for (int i = 0; i < n; i += BATCH) {
        for (int k = 0; k < BATCH; k++) {
            snprintf((char *) bodies + 4 * k, 5, "%04d", (i + k) % 10000);
            lens[k] = 4;
        }
        CHECK_OK(pn_topic_publish_many(conn, NULL, topic, bodies, lens, BATCH, NULL, &id));
    }
}

static void open_with(int n)
{
    data_dir_empty();
    name = test_segment_name();
    attach();
    publish_all(n);
}

static void close_all(void)
{
    CHECK_ENGINE(engine);
    pn_remove_spill_files(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

/* In the middle of an operation on topics. */
static void die_with_the_lock(void *arg)
{
    struct pn_hold hold;
    pn_engine *own;
    (void) arg;
    CHECK_OK(pn_open(name, NULL, &own));
    pn_conn *c = test_connect(own);
    CHECK_OK(pn_lock_acquire(c->seg, &hold, PN_LOCK_TIMEOUT_NS));
    pn_topics_begin_locked(c->seg);
    kill(getpid(), SIGKILL);
}

static const struct pn_topic_repair *repair(void)
{
    return &conn->seg->topics.ctl->repair;
}

static bool is_closed(void)
{
    return pn_topics_closed(conn->seg);
}

static void check_all_there(int n)
{
    pn_consumer *consumer = consumer_of(conn, channel, 500);
    for (int i = 0; i < n; i++) {
        pn_message_out m;
        CHECK_EQ(pn_consumer_get(consumer, 0, &m), 1);
        CHECK_EQ(number_in(&m), i % 10000);
        FINISH(conn, &m);
    }
    NOTHING(consumer);
    CHECK_OK(pn_consumer_close(consumer));
}

struct death {
    const char *label;
    uint32_t nth;
};

static void repair_and_die(void *arg)
{
    const struct death *at = arg;
    struct pn_hold hold;
    pn_engine *own;
    CHECK_OK(pn_open(name, NULL, &own));
    pn_conn *c = test_connect(own);
    CHECK_OK(pn_crash_arm(at->label, at->nth, PN_CRASH_KILL));
    CHECK_OK(pn_lock_topics(c->seg, &hold, PN_LOCK_TIMEOUT_NS));
    pn_lock_release(c->seg);
}

#endif
