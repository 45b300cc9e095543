/*
 * crash_stream.h - numbers through one topic, and what of them there may be after a death: what the
 * victims of test_crash_topic_disk.c and test_crash_topic_durable.c do, and their journal.
 */
#ifndef PN_TESTS_CRASH_STREAM_H
#define PN_TESTS_CRASH_STREAM_H

#include <stdatomic.h>

#include "data_dirs.h"
#include "topics.h"

enum { MOST = 6 }; /* so many are published at a time; these in a transaction */

/* In memory that outlives SIGKILL. */
static struct shared {
    _Atomic(int) begun, told;         /* the last number that was being published, that had been */
    _Atomic(int) finishing, finished; /* and finished */
    _Atomic(int) emptying;            /* some of them go in another way */
} *shared;
static const char *label;
static uint32_t nth;
static const char *segment;

static inline void make_journal(void)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
}

static inline void publish_some(pn_conn *conn, pn_ref topic, int first, int n)
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
    } else if (n == 1) {
        const pn_message_in in = {.body = bodies, .body_len = 4};
        CHECK_OK(pn_topic_publish(conn, NULL, topic, &in, &id));
    } else {
        CHECK_OK(pn_topic_publish_many(conn, NULL, topic, bodies, lens, (size_t) n, NULL, &id));
    }
    atomic_store(&shared->told, first + n - 1);
}

static inline void finish_next(pn_conn *conn, pn_consumer *consumer)
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

/* From one number to another without a hole, where only the ends may be in doubt. */
static inline void check_range(int first, int last)
{
    int begun = atomic_load(&shared->begun), told = atomic_load(&shared->told);
    int finishing = atomic_load(&shared->finishing), finished = atomic_load(&shared->finished);
    if (first == 0) {
        CHECK(finished == told || finishing == told || finished == begun);
        return;
    }
    CHECK(last == begun || last == told);
    CHECK(first == finished + 1 || first == finishing + 1);
}

#endif
