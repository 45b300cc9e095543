/*
 * A process that publishes to a topic that overflows to disk, in batches and in transactions, and
 * consumes from it, is killed at each label on that way, at its first and at later hits.  The
 * next one gets every message that was published and not finished, once and in order; of what the
 * victim died in, all or none.  The topic is paused again and again: then what it has no room for
 * is its own, and otherwise its channel's (topic/rest.c).
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "crash_stream.h"

enum { ROUNDS = 60, MAX_DEPTH = 5 };

/* What is in the channel stays. */
static void empty(pn_conn *conn, pn_ref topic, pn_ref channel, pn_consumer *consumer)
{
    atomic_store(&shared->emptying, 1);
    CHECK_OK(pn_topic_empty(conn, topic));
    while (channel_stat(conn, channel).depth != 0 || topic_stat(conn, topic).unfinished != 0)
        finish_next(conn, consumer);
    atomic_store(&shared->finished, atomic_load(&shared->told));
    atomic_store(&shared->emptying, 0);
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
    for (int round = 0, given = 0; round < ROUNDS; round++) {
        const bool paused = round % 4 != 3;
        CHECK_OK(pn_topic_pause(conn, topic, paused));
        given = paused ? given : atomic_load(&shared->told);
        publish_some(conn, topic, atomic_load(&shared->told) + 1, 1 + round % MOST);
        given = paused ? given : atomic_load(&shared->told);
        for (int i = 0; i < 4 + round / 10; i++)
            if (atomic_load(&shared->finished) < given)
                finish_next(conn, consumer);
        if (round % 20 == 18)
            empty(conn, topic, channel, consumer);
    }
}

/* What is left, in order and once. */
static void check_left(pn_conn *conn, pn_ref channel)
{
    pn_consumer *consumer = consumer_of(conn, channel, 1);
    pn_message_out m;
    int first = 0, last = 0;
    while (pn_consumer_get(consumer, 0, &m) == 1) {
        int i = number_in(&m);
        CHECK_EQ(m.body_len, 4);
        if (first == 0)
            first = i;
        else
            CHECK_EQ(i, last + 1);
        last = i;
        FINISH(conn, &m);
    }
    CHECK_OK(pn_consumer_close(consumer));
    if (atomic_load(&shared->emptying) == 0)
        check_range(first, last);
}

static void crash_case(void *arg)
{
    pn_options o = test_options();
    pn_engine *engine;
    (void) arg;
    memset(shared, 0, sizeof *shared);
    segment = test_segment_name();
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    CHECK_OK(pn_open(segment, &o, &engine));
    pn_conn *conn = test_connect(engine);
    pn_ref topic = topic_with(conn, "t", MAX_DEPTH, PN_OVERFLOW_DISK);
    pn_ref channel = channel_of(conn, topic, "c");
    int status = reap(spawn(victim, NULL));
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        FAIL("%s was not reached %u times", label, nth);
    CHECK_ENGINE(engine);
    CHECK_OK(pn_topic_pause(conn, topic, false));
    check_left(conn, channel);
    CHECK_ENGINE(engine);
    CHECK_EQ(topic_stat(conn, topic).on_disk, 0);
    CHECK_EQ(topic_stat(conn, topic).corrupt, 0);
    CHECK_OK(pn_topic_empty(conn, topic));
    CHECK_OK(pn_topic_delete(conn, topic));
    CHECK_EQ(files_in(data_dir), 0);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

int main(void)
{
    static const char *const modules[] = {"spilled:", "refill:", "diskqueue:", "recfile:"};
    static const uint32_t hits[] = {1, 2, 5, 11, 23};
    unsigned cases = 0;
    data_dir_make();
    test_watchdog(110);
    make_journal();
    for (int i = 0; i < pn_crash_label_count(); i++) {
        bool ours = false;
        label = pn_crash_label(i);
        for (int k = 0; k < 4; k++)
            ours |= strncmp(label, modules[k], strlen(modules[k])) == 0;
        if (!ours || strcmp(label, "diskqueue:marked") == 0 ||
            strcmp(label, "diskqueue:replaced") == 0)
            continue;
        bool rare = strcmp(label, "diskqueue:emptied") == 0 ||
                    strcmp(label, "diskqueue:removed") == 0 ||
                    strncmp(label, "recfile:m", 9) == 0 || strncmp(label, "recfile:h", 9) == 0;
        for (size_t hit = 0; hit < (rare ? 1 : sizeof hits / sizeof hits[0]); hit++, cases++) {
            nth = hits[hit];
            CHECK_CHILD(spawn(crash_case, NULL), 0);
        }
    }
    CHECK(cases >= 50);
    printf("%u cases\n", cases);
    return 0;
}
