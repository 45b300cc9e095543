/*
 * A process that publishes to a topic of two channels, one of which rests (topic/rest.c), alone, in
 * batches and in transactions, and consumes from both, is killed at each label on that way, at its
 * first and at later hits.  Each channel gets every message that was published and that it had not
 * finished, once and in order; of what the victim died in, all or none.  Of a durable topic, while
 * its log is compacted, that is so too when the segment is gone with the victim.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "crash_stream.h"

enum { ROUNDS = 60, MAX_DEPTH = 12 };
enum how { IN_MEMORY, DURABLE, GONE };

/* Of the channel that rests, beside what crash_stream.h has of the other. */
static struct {
    _Atomic(int) finishing, finished;
} *slow;

static void finish_slow(pn_conn *conn, pn_consumer *consumer)
{
    pn_message_out m;
    char text[16];
    int i = atomic_load(&slow->finished) + 1;
    snprintf(text, sizeof text, "%04d", i);
    GET(consumer, &m, text);
    atomic_store(&slow->finishing, i);
    FINISH(conn, &m);
    atomic_store(&slow->finished, i);
}

static void victim(void *arg)
{
    pn_engine *engine;
    (void) arg;
    CHECK_OK(pn_open(segment, NULL, &engine));
    pn_conn *conn = test_connect(engine);
    pn_ref topic = topic_of(conn, "t"), abandoned = channel_of(conn, topic, "slow");
    pn_consumer *fast = consumer_of(conn, channel_of(conn, topic, "fast"), 1);
    pn_consumer *other = consumer_of(conn, abandoned, 1);
    CHECK_OK(pn_crash_arm(label, nth, PN_CRASH_KILL));
    for (int round = 0; round < ROUNDS; round++) {
        publish_some(conn, topic, atomic_load(&shared->told) + 1, 1 + round % MOST);
        while (atomic_load(&shared->finished) < atomic_load(&shared->told))
            finish_next(conn, fast);
        for (int i = 0; i < round / 20; i++)
            finish_slow(conn, other);
        while (round % 20 == 14 && atomic_load(&slow->finished) < atomic_load(&shared->told))
            finish_slow(conn, other);
        if (round % 20 == 19) {
            CHECK_OK(pn_topic_channel_empty(conn, abandoned));
            atomic_store(&slow->finished, atomic_load(&shared->told));
        }
    }
}

/* What is left, in order and once. */
static void read_left(pn_conn *conn, pn_ref channel, int *first, int *last)
{
    pn_consumer *consumer = consumer_of(conn, channel, 1);
    pn_message_out m;
    *first = *last = 0;
    while (pn_consumer_get(consumer, 0, &m) == 1) {
        int i = number_in(&m);
        if (*first == 0)
            *first = i;
        else
            CHECK_EQ(i, *last + 1);
        *last = i;
        FINISH(conn, &m);
    }
    CHECK_OK(pn_consumer_close(consumer));
}

static void check_slow(int first, int last)
{
    int begun = atomic_load(&shared->begun), told = atomic_load(&shared->told);
    int finishing = atomic_load(&slow->finishing), finished = atomic_load(&slow->finished);
    if (first == 0) {
        CHECK(finished == told || finishing == told || finished == begun);
        return;
    }
    CHECK(last == begun || last == told);
    CHECK(first == finished + 1 || first == finishing + 1);
}

/* arg: enum how */
static void crash_case(void *arg)
{
    const enum how *how = arg;
    const pn_topic_options to = {.given = PN_TOPIC_DURABLE | PN_TOPIC_MAX_DEPTH | PN_TOPIC_FSYNC |
                                          PN_TOPIC_OVERFLOW,
                                 .durable = *how != IN_MEMORY,
                                 .fsync = PN_FSYNC_NONE,
                                 .overflow = PN_OVERFLOW_DISK,
                                 .max_depth = MAX_DEPTH};
    pn_options o = test_options();
    pn_engine *engine;
    pn_ref topic;
    int first, last;
    memset(shared, 0, sizeof *shared);
    memset(slow, 0, sizeof *slow);
    segment = test_segment_name();
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    CHECK_OK(pn_open(segment, &o, &engine));
    pn_conn *conn = test_connect(engine);
    CHECK_OK(pn_topic_open(conn, "t", 1, &to, &topic));
    test_inside()->topics.ctl->log.compact_from = 1000;
    pn_ref fast = channel_of(conn, topic, "fast"), abandoned = channel_of(conn, topic, "slow");
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
        fast = channel_of(conn, topic, "fast");
        abandoned = channel_of(conn, topic, "slow");
    }
    CHECK_ENGINE(engine);
    read_left(conn, fast, &first, &last);
    check_range(first, last);
    read_left(conn, abandoned, &first, &last);
    if (strcmp(label, "rest:emptied") != 0)
        check_slow(first, last);
    CHECK_ENGINE(engine);
    CHECK_EQ(topic_stat(conn, topic).on_disk, 0);
    CHECK_EQ(topic_stat(conn, topic).corrupt, 0);
    CHECK_EQ(topic_stat(conn, topic).unfinished, 0);
    CHECK_OK(pn_topic_delete(conn, topic));
    CHECK_EQ(files_in(data_dir), *how != IN_MEMORY);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

int main(void)
{
    static const char *const modules[] = {"rest:",       "diskqueue:c",    "diskqueue:w",
                                          "diskqueue:s", "publish:redone", "publish:live"};
    static const uint32_t hits[] = {1, 2, 5, 11, 23};
    unsigned cases = 0;
    data_dir_make();
    test_watchdog(110);
    make_journal();
    slow = mmap(NULL, sizeof *slow, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(slow != MAP_FAILED);
    for (int i = 0; i < pn_crash_label_count(); i++) {
        bool ours = false;
        label = pn_crash_label(i);
        for (size_t k = 0; k < sizeof modules / sizeof modules[0]; k++)
            ours |= strncmp(label, modules[k], strlen(modules[k])) == 0;
        if (!ours)
            continue;
        bool rare = strcmp(label, "rest:emptied") == 0;
        for (size_t hit = 0; hit < (rare ? 1 : sizeof hits / sizeof hits[0]); hit++)
            for (enum how how = IN_MEMORY; how <= GONE; how++, cases++) {
                nth = hits[hit];
                data_dir_empty();
                CHECK_CHILD(spawn(crash_case, &how), 0);
            }
    }
    CHECK(cases >= 60);
    printf("%u cases\n", cases);
    return 0;
}
