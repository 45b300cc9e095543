/*
 * test_channel_room.c - how much of a topic's memory each of its channels may have, asked of the
 * core at states that are made by publishing.
 */
#include "data_dirs.h"
#include "topics.h"

#include "segment/arena_share.h"
#include "segment/lock.h"
#include "topic/channel_room.h"
#include "topic/tables.h"

enum { DEPTH = 8, BODY = 3000 };
enum { SPARE = 4 }; /* pages for what moves messages that are there (topic/message.c) */

static pn_engine *engine;
static pn_conn *conn;
static pn_ref topic;

static void open_scene(uint64_t memory, uint64_t max_depth, int channels)
{
    static const char *const names[] = {"a", "b"};
    pn_options o = test_options();
    const pn_topic_options t = {.given = PN_TOPIC_MAX_DEPTH | PN_TOPIC_OVERFLOW,
                                .overflow = PN_OVERFLOW_DISK,
                                .max_depth = max_depth};
    o.topic_memory = memory;
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    engine = test_engine(&o);
    conn = test_connect(engine);
    CHECK_OK(pn_topic_open(conn, "t", 1, &t, &topic));
    for (int i = 0; i < channels; i++)
        channel_of(conn, topic, names[i]);
}

static void close_scene(void)
{
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static struct pn_channel_room room_for(uint64_t bytes, uint32_t more)
{
    struct pn_hold hold;
    CHECK_OK(pn_lock_topics(test_inside(), &hold, PN_LOCK_TIMEOUT_NS));
    struct pn_channel_room room = pn_channel_room_locked(
        test_inside(), pn_topic_resolve_locked(conn, topic), bytes, false, more);
    pn_lock_release(test_inside());
    return room;
}

/* Of eight places two are kept for channels that have little, and each may have two. */
static void test_places_are_kept_for_those_that_have_little(void)
{
    open_scene(16 << 20, DEPTH, 2);
    CHECK(room_for(1, DEPTH - 3).plenty && room_for(1, DEPTH - 3).little);
    CHECK(!room_for(1, DEPTH - 2).plenty && room_for(1, DEPTH - 2).little);
    CHECK_EQ(room_for(1, DEPTH - 2).count, 2);
    CHECK(!room_for(1, DEPTH - 1).plenty && room_for(1, DEPTH - 1).little);
    CHECK(!room_for(1, DEPTH).plenty && !room_for(1, DEPTH).little);
    close_scene();
}

static void test_none_are_kept_in_a_topic_with_one_channel(void)
{
    open_scene(16 << 20, DEPTH, 1);
    CHECK(room_for(1, DEPTH - 1).plenty);
    CHECK_EQ(room_for(1, DEPTH - 1).count, 1);
    CHECK(!room_for(1, DEPTH).plenty && !room_for(1, DEPTH).little);
    close_scene();
}

static struct pn_arena *arena(void)
{
    return &test_inside()->topics.arena;
}

/* Of so many pages. */
static uint64_t body_of(uint64_t pages)
{
    return pages * PN_ARENA_PAGE - 64;
}

/* The largest body, in pages, for which it says so. */
#define MOST_PAGES(said)                                                                           \
    ({                                                                                             \
        uint64_t most_ = 0;                                                                        \
        for (uint64_t p_ = 1; p_ <= arena()->pages; p_++)                                          \
            if (room_for(body_of(p_), 0).said)                                                     \
                most_ = p_;                                                                        \
        most_;                                                                                     \
    })

static void publish_body(void)
{
    static const char body[BODY];
    const pn_message_in in = {.body = body, .body_len = sizeof body};
    uint64_t id;
    CHECK_OK(pn_topic_publish(conn, NULL, topic, &in, &id));
}

/* Bytes that the topic's channels have, in pages. */
static uint64_t pages_had(void)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < test_inside()->topics.max_channels; i++)
        if (pn_load_relaxed(&test_inside()->topics.channel[i].state) == PN_RECORD_USED)
            bytes += test_inside()->topics.channel[i].bytes;
    return bytes / PN_ARENA_PAGE;
}

static void test_memory_is_kept_for_those_that_have_little(void)
{
    open_scene(4 << 20, 0, 2);
    for (int i = 0; i < 10; i++)
        publish_body();
    uint64_t plenty = MOST_PAGES(plenty), little = MOST_PAGES(little);
    CHECK(plenty > 0);
    CHECK(plenty + arena()->ctl->share / 4 <= little);
    CHECK_EQ(MOST_PAGES(first), little + SPARE);
    close_scene();
}

static void test_no_memory_is_kept_in_a_topic_with_one_channel(void)
{
    open_scene(4 << 20, 0, 1);
    publish_body();
    CHECK(MOST_PAGES(plenty) > 0);
    CHECK_EQ(MOST_PAGES(plenty), MOST_PAGES(little));
    close_scene();
}

/* Beyond the share: with what such channels have, half of what is free. */
static void test_the_least_is_half_of_what_is_free(void)
{
    open_scene(4 << 20, 0, 2);
    for (int i = 0; i < 10; i++)
        publish_body();
    CHECK(pages_had() >= 10);
    uint64_t least = MOST_PAGES(least) + pages_had() + SPARE;
    uint64_t half = arena()->ctl->pages_free / 2;
    CHECK(least <= half && least + 2 >= half); /* it takes cells as well */
    close_scene();
}

/* For each channel and some lengths: how often the quick look says that it waits. */
static unsigned check_quick_look(void)
{
    static const uint64_t lengths[] = {0, 1, 300, 3000, 20000, 100000};
    struct pn_hold hold;
    unsigned waits = 0;
    CHECK_OK(pn_lock_topics(test_inside(), &hold, PN_LOCK_TIMEOUT_NS));
    struct pn_segment *seg = test_inside();
    struct pn_topic *t = pn_topic_resolve_locked(conn, topic);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        const struct pn_channel_room room = pn_channel_room_locked(seg, t, lengths[i], i % 2, 0);
        PN_EACH_CHANNEL_AS (seg, t, ch) {
            const bool waiting = pn_channel_waits_for_pages(seg, t, ch, lengths[i]);
            CHECK(!waiting || !pn_channel_takes(ch, &room, lengths[i]));
            waits += waiting;
        }
    }
    pn_lock_release(seg);
    return waits;
}

static void finish_some(pn_consumer *consumer, int n)
{
    pn_message_out m;
    for (int i = 0; i < n; i++) {
        int rc = pn_consumer_get(consumer, 0, &m);
        CHECK(rc >= 0 || rc == -EINTR);
        if (rc == 1)
            FINISH(conn, &m);
    }
}

/* A channel that the quick look passes over has no room by the long one either, whatever there is
 * in memory; and beside a channel that is not read it does pass over it. */
static void test_what_waits_for_pages_does_not_take(void)
{
    static char body[20000];
    unsigned waits = 0, seed = 1;
    open_scene(2 << 20, 0, 2);
    pn_consumer *a = consumer_of(conn, channel_of(conn, topic, "a"), 10);
    pn_consumer *b = consumer_of(conn, channel_of(conn, topic, "b"), 10);
    for (int i = 0; i < 10000; i++) {
        const uint64_t most = i % 50 == 0 ? sizeof body : 2000;
        const pn_message_in in = {.body = body, .body_len = 1 + (uint64_t) rand_r(&seed) % most};
        uint64_t id;
        if (i % 5000 < 3000)
            CHECK_OK(pn_topic_publish(conn, NULL, topic, &in, &id));
        finish_some(a, 2);
        if (i % 5000 > 3500)
            finish_some(b, 3);
        waits += check_quick_look();
    }

    CHECK(waits > 1000);
    CHECK_OK(pn_consumer_close(a));
    CHECK_OK(pn_consumer_close(b));
    CHECK_OK(pn_topic_delete(conn, topic));
    close_scene();
}

int main(void)
{
    data_dir_make();
    RUN(test_places_are_kept_for_those_that_have_little);
    RUN(test_none_are_kept_in_a_topic_with_one_channel);
    RUN(test_memory_is_kept_for_those_that_have_little);
    RUN(test_no_memory_is_kept_in_a_topic_with_one_channel);
    RUN(test_the_least_is_half_of_what_is_free);
    RUN(test_what_waits_for_pages_does_not_take);
    return tests_done();
}
