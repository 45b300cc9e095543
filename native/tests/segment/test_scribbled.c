/*
 * Single words of the segment are overwritten by a process with a bug.  One that meets them
 * poisons the segment; none crashes, hangs, or keeps the lock.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "full_queue.h"
#include "topics.h"

#include "backend/channel.h"
#include "queue/spill.h"

static const uint32_t wild[] = {64, 0x7fffffff, 0xffffffff}; /* max_channels is 64 */

static void check_poisoned(pn_engine *engine)
{
    pn_conn *conn;
    CHECK_EQ(pn_connect(engine, "db", 2, 0, NULL, &conn), -PN_ECORRUPT);
    /* none keeps the lock: it would be a time-out */
    CHECK_EQ(pn_lock_acquire(test_inside(), &test_hold, PN_LOCK_FOREVER), -PN_ECORRUPT);
}

/* ---- the channel of a subscription ----------------------------------------------------------- */

static void unlistens(void *arg)
{
    uint32_t channel = *(const uint32_t *) arg;
    pn_engine *engine = test_engine(NULL);
    pn_conn *conn = test_connect(engine);
    test_listen(conn, "a");
    uint64_t head = pn_load_relaxed(&test_inside()->ctl->head);
    test_inside()->subscription[0].channel = channel;
    pn_txn *txn = test_begin(conn);
    CHECK_OK(pn_txn_unlisten(txn, "a", 1));
    CHECK_OK(pn_txn_notify(txn, "a", 1, "x", 1));
    CHECK_EQ(pn_txn_commit(txn), -PN_ECORRUPT);
    CHECK_EQ(pn_load_relaxed(&test_inside()->ctl->head), head); /* nothing was committed */
    check_poisoned(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static void commits_a_prepared_listen(void *arg)
{
    pn_engine *engine = test_engine(NULL);
    pn_conn *conn = test_connect(engine);
    pn_txn *txn = test_begin(conn);
    CHECK_OK(pn_txn_listen(txn, "a", 1));
    CHECK_OK(pn_txn_prepare(txn));
    test_inside()->subscription[0].channel = *(const uint32_t *) arg;
    CHECK_EQ(pn_txn_commit(txn), -PN_ECORRUPT);
    check_poisoned(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static void closes(void *arg)
{
    pn_engine *engine = test_engine(NULL);
    pn_conn *conn = test_connect(engine);
    test_listen(conn, "a");
    test_listen(conn, "b");
    test_inside()->subscription[1].channel = *(const uint32_t *) arg;
    pn_conn_close(conn);
    check_poisoned(engine);
    pn_engine_close(engine);
}

static void test_a_subscription_to_no_channel(void)
{
    void (*const bodies[])(void *) = {unlistens, commits_a_prepared_listen, closes};
    for (size_t i = 0; i < sizeof wild / sizeof wild[0]; i++)
        for (size_t k = 0; k < sizeof bodies / sizeof bodies[0]; k++)
            CHECK_CHILD(spawn(bodies[k], (void *) (uintptr_t) &wild[i]), 0);
}

/* ---- lengths inside of an entry -------------------------------------------------------------- */

struct lengths {
    uint32_t channel_len, payload_len, headers_len;
};

/* The entry has 64 bytes: a header of 56, one of the channel, five of the payload, two spare. */
static const struct lengths impossible[] = {
    {1, 8, 0},          {4, 5, 0},          {9, 0, 0},          {0, 9, 0},
    {0xff, 5, 0},       {1, 0xffffffff, 0}, {1, 0x80000000, 0}, {1, 0xffffffc8, 0},
    {8, 0xfffffff8, 0}, {1, 5, 6},          {1, 5, 0xffff},     {0xff, 0xffffffff, 0xffff}};

static void reads(void *arg)
{
    const struct lengths *l = arg;
    pn_engine *engine = test_engine(NULL);
    pn_conn *conn = test_connect(engine);
    pn_batch *batch = pn_batch_new();
    test_listen(conn, "c");
    CHECK_OK(test_notify(conn, "c", "hello"));
    AsyncQueueEntry *qe = (void *) pn_ring_at(test_inside(), 0);
    CHECK_EQ(qe->length, 64);
    qe->channel_len = (uint8_t) l->channel_len;
    qe->payload_len = l->payload_len;
    qe->headers_len = (uint16_t) l->headers_len;
    CHECK_EQ(pn_poll(conn, batch, 0), -PN_ECORRUPT);
    check_poisoned(engine);
    pn_batch_free(batch);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static void test_lengths_that_reach_beyond_the_entry(void)
{
    for (size_t i = 0; i < sizeof impossible / sizeof impossible[0]; i++)
        CHECK_CHILD(spawn(reads, (void *) (uintptr_t) &impossible[i]), 0);
}

/* ---- numbers of spill files ------------------------------------------------------------------ */

/* unlink() goes by the names in the directory, and a move of the tail takes a bounded step. */
static void test_files_that_never_were(void)
{
    pn_options o = spilling(256);
    pn_engine *engine = test_engine(&o);
    pn_conn *conn = test_connect(engine), *notifier = test_connect(engine);
    struct pn_segment *seg = test_inside();
    struct heard heard = {0};
    uint64_t sent = 0;
    test_listen(conn, "c");
    for (int i = 0; i < 300; i++)
        CHECK_OK(send_number(notifier, "c", sent++, HALF_PAGE));
    CHECK(count_files() > 0);
    seg->ctl->end_file = 1ULL << 40;
    while (hear(conn, &heard, 0) > 0)
        ;
    CHECK_OK(pn_lock_acquire(seg, &test_hold, PN_LOCK_FOREVER));
    pn_queue_advance_tail_locked(seg);
    CHECK(seg->ctl->first_file > 0 && seg->ctl->first_file < 100000);
    pn_lock_release(seg);
    seg->ctl->first_file = 0;
    pn_conn_close(conn);
    pn_conn_close(notifier);
    done(engine);
    CHECK_EQ(count_files(), 0);
}

/* ---- lists of topics ------------------------------------------------------------------------- */

static void closes_a_consumer_of_no_backend(void *arg)
{
    pn_engine *engine = test_engine(NULL);
    pn_conn *conn = test_connect(engine);
    pn_ref channel = channel_of(conn, topic_of(conn, "t"), "c");
    pn_consumer *consumer = consumer_of(conn, channel, 1);
    test_inside()->topics.consumer[0].slot = *(const uint32_t *) arg;
    pn_consumer_close(consumer);
    check_poisoned(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static void looks_at_a_list_that_leads_round(void *arg)
{
    pn_engine *engine = test_engine(NULL);
    pn_conn *conn = test_connect(engine);
    pn_topic_channel_stats rows[4];
    (void) arg;
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    pn_consumer *consumer = consumer_of(conn, channel, 1);
    test_inside()->topics.consumer[0].next = 1; /* its own number */
    pn_topic_channel_list(conn, topic, rows, 4);
    pn_topic_channel_delete(conn, channel);
    check_poisoned(engine);
    pn_consumer_close(consumer);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static void test_consumers(void)
{
    CHECK_CHILD(spawn(closes_a_consumer_of_no_backend, (void *) (uintptr_t) &wild[2]), 0);
    CHECK_CHILD(spawn(looks_at_a_list_that_leads_round, NULL), 0);
}

/* ---- the database of a slot ------------------------------------------------------------------ */

static void is_in_no_database(void *arg)
{
    char problems[1024];
    pn_engine *engine = test_engine(NULL);
    pn_conn *conn = test_connect(engine);
    uint32_t row = conn->me->database;
    conn->me->database = *(const uint32_t *) arg;
    CHECK_EQ(pn_check(engine, problems, sizeof problems), 1);
    CHECK(strstr(problems, "slot 0 is in a database that is not") != NULL);
    conn->me->database = row;
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static void test_a_slot_in_no_database(void)
{
    for (size_t i = 1; i < sizeof wild / sizeof wild[0]; i++)
        CHECK_CHILD(spawn(is_in_no_database, (void *) (uintptr_t) &wild[i]), 0);
}

/* ---- something to read where nothing is listened to ------------------------------------------ */

/* It is passed over, as what no subscription is owed: such a reader has no table of channels. */
static void test_a_reader_that_listens_to_nothing(void)
{
    pn_engine *engine = test_engine(NULL);
    pn_conn *conn = test_connect(engine), *listener = test_connect(engine);
    pn_batch *batch = pn_batch_new();
    test_listen(listener, "a");
    CHECK_OK(test_notify(listener, "a", "x"));
    uint64_t head = pn_load_relaxed(&test_inside()->ctl->head);
    CHECK(head > (pn_load_relaxed(&conn->me->pos) & ~PN_ASLEEP));
    pn_store_relaxed(&conn->me->pos, pn_load_relaxed(&conn->me->pos) & ~PN_ASLEEP);
    pn_store_relaxed(&conn->me->want, head);
    CHECK_EQ(pn_poll(conn, batch, 0), 0);
    CHECK_EQ(pn_load_relaxed(&conn->me->pos) & ~PN_ASLEEP, head);
    CHECK_EQ(pn_poll(listener, batch, 0), 1);
    test_listen(conn, "a");
    CHECK_OK(test_notify(listener, "a", "y"));
    CHECK_EQ(pn_poll(conn, batch, 0), 1);
    pn_batch_free(batch);
    pn_conn_close(conn);
    pn_conn_close(listener);
    CHECK_ENGINE(engine);
    pn_engine_close(engine);
}

int main(void)
{
    test_watchdog(100);
    RUN(test_a_subscription_to_no_channel);
    RUN(test_lengths_that_reach_beyond_the_entry);
    RUN(test_files_that_never_were);
    RUN(test_consumers);
    RUN(test_a_slot_in_no_database);
    RUN(test_a_reader_that_listens_to_nothing);
    return tests_done();
}
