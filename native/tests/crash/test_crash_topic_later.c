/*
 * A process that publishes deferred messages beyond what memory has room for, with some for now and
 * some that expire, and consumes what falls due, is killed at each label on their way out of
 * memory, round there and back (topic/later.c), at its first and at later hits.  Each that was
 * published and not finished comes once; of what the victim died in, all or none.  Of a durable
 * topic, while its log is compacted, that is so too when the segment is gone with the victim.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdatomic.h>
#include <sys/mman.h>

#include "segfiles.h"
#include "topics.h"

enum { MESSAGES = 700, LENGTH = 1000 };
enum { UNTOLD, TELLING, TOLD, FINISHING, FINISHED };
enum how { IN_MEMORY, DURABLE, GONE };

static _Atomic(unsigned char) *fate; /* of each message; outlives SIGKILL */
static const char *label, *segment;
static uint32_t nth;

static void publish_one(pn_conn *conn, pn_ref topic, int i)
{
    static char body[LENGTH];
    const int64_t delay = i % 5 == 0 ? 0 : i % 7 == 0 ? 3600 * 1000 * MS : (150 + i % 100) * MS;
    const pn_message_in m = {
        .body = body, .body_len = LENGTH, .delay_ns = delay, .ttl_ns = i % 7 == 0 ? 300 * MS : 0};
    uint64_t id;
    snprintf(body, sizeof body, "%04d", i);
    atomic_store(&fate[i], TELLING);
    CHECK_OK(pn_topic_publish(conn, NULL, topic, &m, &id));
    atomic_store(&fate[i], m.ttl_ns != 0 ? FINISHING : TOLD);
    if (i % 21 == 0 && pn_topic_cancel(conn, NULL, topic, id) == 1)
        atomic_store(&fate[i], FINISHED);
}

static int number_of(const pn_message_out *m)
{
    char text[5] = {0};
    CHECK_EQ(m->body_len, LENGTH);
    memcpy(text, m->body, 4);
    int i = atoi(text);
    CHECK(i >= 0 && i < MESSAGES);
    return i;
}

static bool finish_one(pn_conn *conn, pn_consumer *consumer, int64_t timeout)
{
    pn_message_out m;
    int rc = pn_consumer_get(consumer, timeout, &m);
    CHECK(rc >= 0 || rc == -EINTR);
    if (rc != 1)
        return false;
    int i = number_of(&m);
    atomic_store(&fate[i], FINISHING);
    FINISH(conn, &m);
    atomic_store(&fate[i], FINISHED);
    return true;
}

static uint64_t left_of(pn_conn *conn, pn_ref topic)
{
    return topic_stat(conn, topic).unfinished + topic_stat(conn, topic).on_disk;
}

static void victim(void *arg)
{
    pn_engine *engine;
    (void) arg;
    CHECK_OK(pn_open(segment, NULL, &engine));
    pn_conn *conn = test_connect(engine);
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    pn_consumer *consumer = consumer_of(conn, channel, 1);
    CHECK_OK(pn_crash_arm(label, nth, PN_CRASH_KILL));
    for (int i = 1; i < MESSAGES - 20; i++) {
        publish_one(conn, topic, i);
        if (i % 16 == 0)
            usleep(10000);
        for (int k = 0; k < 2; k++)
            finish_one(conn, consumer, 0);
    }
    while (left_of(conn, topic) != 0)
        finish_one(conn, consumer, 10 * MS);
    for (int i = 0; i < 200; i++) {
        const pn_message_in m = {.body = "x", .body_len = 1, .delay_ns = 3600 * 1000 * MS};
        uint64_t id;
        CHECK_OK(pn_topic_publish(conn, NULL, topic, &m, &id));
    }
    CHECK_OK(pn_topic_channel_empty(conn, channel));
}

static void check_left(pn_conn *conn, pn_ref topic, pn_ref channel)
{
    static unsigned char seen[MESSAGES];
    pn_consumer *consumer = consumer_of(conn, channel, 1);
    pn_message_out m;
    while (left_of(conn, topic) != 0) {
        int rc = pn_consumer_get(consumer, 100 * MS, &m);
        CHECK(rc >= 0 || rc == -EINTR);
        if (rc != 1)
            continue;
        seen[number_of(&m)]++;
        FINISH(conn, &m);
    }
    CHECK_OK(pn_consumer_close(consumer));
    for (int i = 0; i < MESSAGES; i++) {
        unsigned char was = atomic_load(&fate[i]);
        if (was == TOLD ? seen[i] != 1 : seen[i] > (was == TELLING || was == FINISHING))
            FAIL("message %d, whose fate was %d, came %d times", i, was, seen[i]);
    }
}

/* arg: enum how */
static void crash_case(void *arg)
{
    const enum how *how = arg;
    const pn_topic_options to = {.given = PN_TOPIC_DURABLE | PN_TOPIC_FSYNC | PN_TOPIC_OVERFLOW,
                                 .durable = *how != IN_MEMORY,
                                 .fsync = PN_FSYNC_NONE,
                                 .overflow = PN_OVERFLOW_DISK};
    pn_options o = test_options();
    pn_engine *engine;
    pn_ref topic;
    for (int i = 0; i < MESSAGES; i++)
        atomic_store(&fate[i], UNTOLD);
    segment = test_segment_name();
    o.topic_memory = 128 << 10;
    o.max_body = 4096;
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    CHECK_OK(pn_open(segment, &o, &engine));
    pn_conn *conn = test_connect(engine);
    CHECK_OK(pn_topic_open(conn, "t", 1, &to, &topic));
    if (*how != IN_MEMORY)
        test_inside()->topics.ctl->log.compact_from = 1000;
    pn_ref channel = channel_of(conn, topic, "c");
    int status = reap(spawn(victim, NULL));
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        FAIL("%s was not reached %u times", label, nth);
    if (*how == GONE) {
        test_segment_remove(segment);
        pn_conn_close(conn);
        pn_engine_close(engine);
        CHECK_OK(pn_open(segment, &o, &engine));
        conn = test_connect(engine);
        topic = topic_of(conn, "t");
        channel = channel_of(conn, topic, "c");
    }
    CHECK_ENGINE(engine);
    if (strcmp(label, "later:emptied") != 0)
        check_left(conn, topic, channel);
    CHECK_ENGINE(engine);
    CHECK_EQ(topic_stat(conn, topic).corrupt, 0);
    CHECK_OK(pn_topic_delete(conn, topic));
    CHECK_EQ(files_in(data_dir), *how != IN_MEMORY);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

int main(void)
{
    static const char *const modules[] = {"later:", "refill:passed", "diskqueue:c",
                                          "topic:discarded"};
    static const uint32_t hits[] = {1, 9};
    unsigned cases = 0;
    data_dir_make();
    test_watchdog(110);
    fate = mmap(NULL, MESSAGES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(fate != MAP_FAILED);
    for (int i = 0; i < pn_crash_label_count(); i++) {
        bool ours = false;
        label = pn_crash_label(i);
        for (size_t k = 0; k < sizeof modules / sizeof modules[0]; k++)
            ours |= strncmp(label, modules[k], strlen(modules[k])) == 0;
        if (!ours)
            continue;
        bool rare = strcmp(label, "later:emptied") == 0;
        for (size_t hit = 0; hit < (rare ? 1 : sizeof hits / sizeof hits[0]); hit++)
            for (enum how how = IN_MEMORY; how <= GONE; how++, cases++) {
                nth = hits[hit];
                data_dir_empty();
                CHECK_CHILD(spawn(crash_case, &how), 0);
            }
    }
    CHECK(cases >= 45);
    printf("%u cases\n", cases);
    return 0;
}
