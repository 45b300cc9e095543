/*
 * A process that publishes to a topic that overflows to disk, in batches and in transactions, and
 * consumes from it, is killed at each label on that way, at its first and at later hits.  Who
 * comes next gets every message that was published and not finished, once and in order; of what the
 * victim died in, all or none.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "segfiles.h"
#include "topics.h"

#include <stdatomic.h>

enum { ROUNDS = 60, MOST = 6, MAX_DEPTH = 5 };

static struct shared {
    _Atomic(int) begun, told;       /* numbers that were being published, that had been */
    _Atomic(int) finishing, finished;
} * shared;
static const char *label;
static uint32_t nth;
static const char *segment;

static void publish_some(pn_conn *conn, pn_ref topic, int first, int n)
{
    unsigned char bodies[MOST * 4 + 1];
    uint32_t lens[MOST];
    uint64_t id;
    for (int i = 0; i < n; i++) {
        char text[12];
        snprintf(text, sizeof text, "%04d", first + i);
        memcpy(bodies + 4 * i, text, 4);
        lens[i] = 4;
    }
    atomic_store(&shared->begun, first + n - 1);
    if (n == MOST) {
        pn_txn *txn = test_begin(conn);
        for (int i = 0; i < n; i++) {
            const pn_message_in in = {.body = bodies + 4 * i, .body_len = 4};
            CHECK_OK(pn_topic_publish(conn, txn, topic, &in, &id));
        }
        CHECK_OK(pn_txn_commit(txn));
    } else {
        CHECK_OK(pn_topic_publish_many(conn, NULL, topic, bodies, lens, (size_t)n, NULL, &id));
    }
    atomic_store(&shared->told, first + n - 1);
}

static void finish_next(pn_conn *conn, pn_consumer *consumer)
{
    pn_message_out m;
    char text[16];
    int i = atomic_load(&shared->finished) + 1;
    snprintf(text, sizeof text, "%04d", i);
    GET(consumer, &m, text);
    atomic_store(&shared->finishing, i);
    FINISH(conn, &m);
    atomic_store(&shared->finished, i);
}

static void victim(void *arg)
{
    pn_engine *engine;
    (void)arg;
    CHECK_OK(pn_open(segment, NULL, &engine));
    pn_conn *conn = test_connect(engine);
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    pn_consumer *consumer = consumer_of(conn, channel, 1);
    CHECK_OK(pn_crash_arm(label, nth, PN_CRASH_KILL));
    for (int round = 0; round < ROUNDS; round++) {
        publish_some(conn, topic, atomic_load(&shared->told) + 1, 1 + round % MOST);
        for (int i = 0; i < 2 + round / 20; i++)
            if (atomic_load(&shared->finished) < atomic_load(&shared->told))
                finish_next(conn, consumer);
        if (round % 20 == 19) {
            CHECK_OK(pn_topic_empty(conn, topic)); /* what is in the channel stays */
            while (topic_stat(conn, topic).unfinished != 0)
                finish_next(conn, consumer);
            atomic_store(&shared->finished, atomic_load(&shared->told));
        }
    }
}

/* What is left, in order and once. */
static void check_left(pn_conn *conn, pn_ref channel, bool emptying)
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
    int begun = atomic_load(&shared->begun), told = atomic_load(&shared->told);
    int finishing = atomic_load(&shared->finishing), finished = atomic_load(&shared->finished);
    if (emptying)
        return;
    if (first == 0) {
        CHECK(finished == told || finishing == told || finished == begun);
        return;
    }
    CHECK(last == begun || last == told);
    CHECK(first == finished + 1 || first == finishing + 1);
}

static void crash_case(void *arg)
{
    pn_options o = test_options();
    pn_engine *engine;
    (void)arg;
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
    bool emptying = strcmp(label, "diskqueue:emptied") == 0 ||
                    strcmp(label, "diskqueue:removed") == 0;
    check_left(conn, channel, emptying);
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
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    for (int i = 0; i < pn_crash_label_count(); i++) {
        bool ours = false;
        label = pn_crash_label(i);
        for (int k = 0; k < 4; k++)
            ours |= strncmp(label, modules[k], strlen(modules[k])) == 0;
        if (!ours || strcmp(label, "diskqueue:marked") == 0)
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
