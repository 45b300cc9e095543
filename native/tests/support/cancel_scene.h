/*
 * cancel_scene.h - deferred messages that are in memory, in files of several kinds, or all at once:
 * one channel is read, another one rests, a third has rested and has caught up.
 */
#ifndef PN_TESTS_CANCEL_SCENE_H
#define PN_TESTS_CANCEL_SCENE_H

#include "data_dirs.h"
#include "topic/cancel.h"
#include "topic/on_disk.h"
#include "topic/tables.h"
#include "topic/topic.h"
#include "topics.h"

static pn_engine *engine;
static pn_conn *conn;
static pn_ref topic, channel;
static pn_consumer *consumer;

enum { HOUR = 3600 };

static inline uint64_t publish_later(const char *body, int64_t delay_ns)
{
    uint64_t id;
    CHECK_OK(publish_in(conn, NULL, topic, body, delay_ns, 0, &id));
    return id;
}

static inline uint64_t publish_in_an_hour(const char *body)
{
    return publish_later(body, HOUR * 1000 * MS);
}

/* Of a topic with one channel and little memory, whose deferred messages leave that soon. */
static inline void open_with_little_memory(void)
{
    pn_options o = test_options();
    data_dir_empty();
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    o.topic_memory = 256 << 10;
    engine = test_engine(&o);
    conn = test_connect(engine);
    topic = topic_of(conn, "t");
    channel = channel_of(conn, topic, "c");
    consumer = consumer_of(conn, channel, 2);
}

static bool own; /* the topic is paused at first, so that what is on disk is its own */

/* Of a topic with one channel, of which so many messages stay in memory; 0: all that have room. */
static inline void open_with(uint64_t max_depth)
{
    pn_options o = test_options();
    data_dir_empty();
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    engine = test_engine(&o);
    conn = test_connect(engine);
    topic = topic_with(conn, "t", max_depth, PN_OVERFLOW_DISK);
    channel = channel_of(conn, topic, "c");
    CHECK_OK(pn_topic_pause(conn, topic, own));
    consumer = consumer_of(conn, channel, 2);
}

static inline void close_scene(void)
{
    CHECK_ENGINE(engine);
    CHECK_EQ(test_inside()->topics.ctl->tombstone_end, 0);
    CHECK_OK(pn_consumer_close(consumer));
    pn_conn_close(conn);
    pn_remove_spill_files(engine);
    CHECK_EQ(files_in(data_dir), 0);
    pn_engine_close(engine);
}

static inline void finish_one(const char *body)
{
    pn_message_out m;
    CHECK_OK(pn_topic_pause(conn, topic, false));
    GET(consumer, &m, body);
    FINISH(conn, &m);
}

/* All of it is in the depth of the topic or of its channel. */
static inline void check_counts(uint64_t unfinished, uint64_t on_disk)
{
    pn_topic_stats s = topic_stat(conn, topic);
    pn_topic_channel_stats c = channel_stat(conn, channel);
    CHECK_EQ(s.unfinished, unfinished);
    CHECK_EQ(s.on_disk, on_disk);
    if (s.paused || !own) /* else it is on its way to the channel, for several holds of the lock */
        CHECK_EQ(s.depth, s.paused ? unfinished + on_disk : 0);
    CHECK_EQ(s.depth + c.depth + c.deferred + c.in_flight, unfinished + on_disk);
    CHECK_ENGINE(engine);
}

#define CANCEL(txn, id, want) CHECK_EQ(pn_topic_cancel(conn, txn, topic, id), want)

static inline struct pn_topic *topic_locked(void)
{
    CHECK_OK(pn_lock_topics(test_inside(), &test_hold, PN_LOCK_TIMEOUT_NS));
    return pn_topic_named_locked(test_inside(), topic);
}

static inline bool is_in_memory(uint64_t id)
{
    struct pn_topic *t = topic_locked();
    bool found = pn_deferred_in_memory_locked(test_inside(), t, id) != 0;
    pn_lock_release(test_inside());
    return found;
}

/* By others, that are due earlier. */
static inline void make_it_leave(uint64_t id)
{
    char body[401];
    memset(body, 'x', 400);
    body[400] = '\0';
    for (int i = 0; i < 3000 && is_in_memory(id); i++)
        publish_in_an_hour(body);
    CHECK(!is_in_memory(id));
    CHECK(topic_stat(conn, topic).on_disk > 0);
}

static inline uint64_t has(pn_ref ch)
{
    pn_topic_channel_stats s = channel_stat(conn, ch);
    return s.depth + s.deferred + s.in_flight;
}

/* Of an idle channel one that rests, for which all of it is on disk. */
static inline pn_ref make_one_rest(const char *name)
{
    static char body[401];
    pn_message_out m;
    pn_ref idle = channel_of(conn, topic, name);
    memset(body, 'x', sizeof body - 1);
    for (int i = 0; i < 600; i++) {
        publish(conn, topic, body);
        GET(consumer, &m, body);
        FINISH(conn, &m);
    }
    CHECK(topic_stat(conn, topic).on_disk > 0);
    return idle;
}

/* It gets what it has on disk, up to the first that is deferred. */
static inline void catch_up(pn_ref idle)
{
    pn_message_out m;
    pn_consumer *slow = consumer_of(conn, idle, 1);
    while (pn_consumer_get(slow, 0, &m) == 1)
        FINISH(conn, &m);
    CHECK_OK(pn_consumer_close(slow));
}

typedef int look(struct pn_segment *, struct pn_topic *, struct pn_diskqueue_cursor *,
                 struct pn_topic_on_disk *);

/* In the files that `next` looks through. */
static inline int records_of(uint64_t id, look *next)
{
    struct pn_topic_on_disk d;
    struct pn_diskqueue_cursor at = {0};
    struct pn_topic *t = topic_locked();
    int n = 0, rc;
    while ((rc = next(test_inside(), t, &at, &d)) == 1 || rc == -EAGAIN)
        n += rc == 1 && d.there && d.m.id == id;
    pn_lock_release(test_inside());
    return n;
}

#endif
