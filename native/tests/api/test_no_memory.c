/*
 * test_no_memory.c - a process without memory: the nth allocation of the core fails, for every n.
 * The call says so or does without it, and when it is made again everything is as if it had not
 * failed: nothing is lost, doubled or leaked.
 */
#define _GNU_SOURCE
#include "data_dirs.h"

#include "topics.h"

static long until_failure; /* allocations; 0: none fails */
static unsigned refused;   /* calls */

static bool fails(void)
{
    return until_failure > 0 && --until_failure == 0;
}

/* The linker gives the core these instead of libc's. */
void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *old, size_t size);

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    return fails() ? NULL : __real_realloc(old, size);
}

/*
 * What the call returns, made once more if there was no memory.  That of a durable topic may have
 * happened without being in the log, which the next operation writes again (-PN_ESYNC).
 */
#define AGAIN(call)                                                                                \
    ({                                                                                             \
        int64_t rc_ = (call);                                                                      \
        if (rc_ == -ENOMEM) {                                                                      \
            refused++;                                                                             \
            rc_ = (call);                                                                          \
        }                                                                                          \
        if (rc_ < 0 && rc_ != -PN_ESYNC)                                                           \
            FAIL("%s: %lld: %s", #call, (long long) rc_, pn_error_message());                      \
        rc_;                                                                                       \
    })

/* Each scenario with a failure at every place, until none is reached. */
static void everywhere(void (*scenario)(void))
{
    refused = 0;
    for (long n = 1; until_failure == 0; n++) {
        until_failure = n;
        scenario();
    }
    until_failure = 0;
    CHECK(refused > 10);
}

/* ---- notifications --------------------------------------------------------------------------- */

static pn_engine *engine;
static pn_conn *conn;

static int one_transaction(void)
{
    pn_txn *txn;
    int rc = pn_txn_begin(conn, &txn), level = 0;
    if (rc != 0)
        return rc;
    for (int i = 0; rc == 0 && i < 20; i++) {
        char channel[16];
        int len = snprintf(channel, sizeof channel, "channel%d", i);
        rc = pn_txn_listen(txn, channel, (size_t) len);
        if (rc == 0)
            rc = pn_txn_notify(txn, channel, (size_t) len, "x", 1);
    }
    if (rc == 0)
        rc = level = pn_txn_savepoint(txn);
    if (level > 0)
        rc = pn_txn_notify(txn, "channel0", 8, "gone", 4);
    if (level > 0 && rc == 0)
        rc = pn_txn_rollback_to(txn, level);
    if (rc != 0) {
        pn_txn_abort(txn);
        return rc;
    }
    return pn_txn_commit(txn);
}

static void notifications(void)
{
    static char large[100000];
    const pn_options o = test_options();
    const char *name = test_segment_name();
    pn_batch *batch;
    uint64_t bytes = 0, messages = 0;
    AGAIN(pn_open(name, &o, &engine));
    AGAIN(pn_connect(engine, "db", 2, 0, NULL, &conn));
    while ((batch = pn_batch_new()) == NULL)
        refused++;
    AGAIN(one_transaction());
    AGAIN(pn_notify(conn, "channel1", 8, large, sizeof large));
    CHECK_EQ(AGAIN(pn_wait(conn, 0)) & 1, 1);
    for (int64_t n; (n = AGAIN(pn_poll(conn, batch, 9))) > 0; messages += (uint64_t) n)
        bytes += batch->offset[n]; /* a batch that cannot grow has what it has room for */
    CHECK_EQ(messages, 21);
    CHECK_EQ(bytes, 20 + sizeof large);
    long left = until_failure;
    until_failure = 0;
    CHECK_ENGINE(engine);
    until_failure = left;
    pn_batch_free(batch);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static void test_notifications(void)
{
    everywhere(notifications);
}

static void test_checking(void)
{
    const pn_options o = test_options();
    char found[1000];
    uint32_t counter;
    CHECK_OK(pn_open(test_segment_name(), &o, &engine));
    CHECK_OK(pn_connect(engine, "db", 2, 0, NULL, &conn));
    CHECK_OK(pn_generation(conn, "counter", 7, &counter));
    until_failure = 1;
    CHECK_EQ(pn_check(engine, found, sizeof found), 1);
    CHECK_EQ(until_failure, 0);
    CHECK(strstr(found, "out of memory") != NULL);
    CHECK_EQ(pn_check(engine, found, sizeof found), 0);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

/* ---- patterns -------------------------------------------------------------------------------- */

static int listen_to_patterns(void)
{
    pn_txn *txn;
    int rc = pn_txn_begin(conn, &txn);
    if (rc != 0)
        return rc;
    for (char pattern[] = "a*"; rc == 0 && pattern[0] <= 'm'; pattern[0]++)
        rc = pn_txn_listen_pattern(txn, pattern, 2);
    if (rc != 0) {
        pn_txn_abort(txn);
        return rc;
    }
    return pn_txn_commit(txn);
}

static const char *name_of_patterns;

/* Each on a channel of its own, which has a number only while the batch has it. */
static void patterns(void)
{
    const pn_options o = test_options();
    pn_batch *batch;
    uint64_t messages = 0;
    AGAIN(pn_open(name_of_patterns, &o, &engine));
    AGAIN(pn_connect(engine, "db", 2, 0, NULL, &conn));
    while ((batch = pn_batch_new()) == NULL)
        refused++;
    AGAIN(listen_to_patterns());
    for (int i = 0; i < 40; i++) {
        char name[16];
        int len = snprintf(name, sizeof name, "%c%d", 'a' + i % 13, i);
        AGAIN(pn_notify(conn, name, (size_t) len, name, (size_t) len));
    }
    for (int64_t n; (n = AGAIN(pn_poll(conn, batch, 25))) > 0; messages += (uint64_t) n)
        for (int64_t i = 0; i < n; i++) {
            size_t len;
            const char *name = pn_conn_channel(conn, batch->channel[i], &len);
            CHECK(len == batch->offset[i + 1] - batch->offset[i] &&
                  memcmp(name, batch->data + batch->offset[i], len) == 0);
            CHECK(batch->by_pattern != 0 && batch->pattern[i] >= 0);
            CHECK(pn_conn_channel(conn, (uint32_t) batch->pattern[i], NULL)[0] == name[0]);
        }
    CHECK_EQ(messages, 40);
    long left = until_failure;
    until_failure = 0;
    CHECK_ENGINE(engine);
    until_failure = left;
    pn_batch_free(batch);
    pn_conn_close(conn);
    pn_engine_close(engine);
    test_segment_remove(name_of_patterns);
}

static void test_patterns(void)
{
    name_of_patterns = test_segment_name();
    everywhere(patterns);
}

/* ---- topics ---------------------------------------------------------------------------------- */

static pn_ref topic, channel;
static pn_consumer *consumer;
static const char *segment;

static void attach(void)
{
    const pn_topic_options o = {.given = PN_TOPIC_DURABLE | PN_TOPIC_FSYNC | PN_TOPIC_MAX_DEPTH,
                                .durable = 1,
                                .fsync = PN_FSYNC_NONE,
                                .max_depth = 3};
    const pn_consumer_options c = {.max_in_flight = 2};
    pn_options options = test_options();
    snprintf(options.data_dir, sizeof options.data_dir, "%s", data_dir);
    AGAIN(pn_open(segment, &options, &engine));
    AGAIN(pn_connect(engine, "db", 2, 0, NULL, &conn));
    if (AGAIN(pn_topic_open(conn, "t", 1, &o, &topic)) != 0)
        AGAIN(pn_topic_find(conn, "t", 1, &topic));
    if (AGAIN(pn_topic_channel_open(conn, topic, "c", 1, -1, &channel)) != 0)
        AGAIN(pn_topic_channel_find(conn, topic, "c", 1, &channel));
    AGAIN(pn_consumer_open(conn, channel, &c, &consumer));
}

static void detach(void)
{
    CHECK_OK(pn_consumer_close(consumer));
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static int publish_two(const char *first, const char *second)
{
    pn_txn *txn;
    int rc = pn_txn_begin(conn, &txn);
    if (rc != 0)
        return rc;
    rc = publish_in(conn, txn, topic, first, 0, 0, NULL);
    if (rc == 0)
        rc = publish_in(conn, txn, topic, second, 0, 0, NULL);
    if (rc != 0) {
        pn_txn_abort(txn);
        return rc;
    }
    return pn_txn_commit(txn);
}

static void finish(const char *text)
{
    pn_message_out m;
    CHECK_EQ(AGAIN(pn_consumer_get(consumer, TEST_PATIENCE_MS * MS, &m)), 1);
    if (m.body_len != strlen(text) || memcmp(m.body, text, m.body_len) != 0)
        FAIL("got \"%.*s\", not \"%s\"", (int) m.body_len, (const char *) m.body, text);
    AGAIN(answer(conn, NULL, &m, PN_ANSWER_FINISH, 0));
}

static void topics(void)
{
    data_dir_empty();
    segment = test_segment_name();
    attach();
    AGAIN(publish_two("1", "2"));
    AGAIN(publish_two("3", "4"));
    AGAIN(publish_in(conn, NULL, topic, "5", 0, 0, NULL));
    AGAIN(publish_in(conn, NULL, topic, "6", 0, 0, NULL));
    finish("1");
    AGAIN(pn_topic_pause(conn, topic, 0));
    detach();
    test_segment_remove(segment);
    attach();
    for (char text[] = "2"; text[0] <= '6'; text[0]++)
        finish(text);
    CHECK_EQ(AGAIN(pn_consumer_get(consumer, 0, &(pn_message_out) {0})), 0);
    long left = until_failure;
    until_failure = 0;
    CHECK_ENGINE(engine);
    until_failure = left;
    pn_remove_spill_files(engine);
    detach();
}

static void test_topics(void)
{
    everywhere(topics);
}

int main(void)
{
    data_dir_make();
    test_watchdog(100);
    RUN(test_notifications);
    RUN(test_checking);
    RUN(test_patterns);
    RUN(test_topics);
    return tests_done();
}
