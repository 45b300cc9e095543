/*
 * test_topic_gathered.c - a batch, or the messages of a transaction, that goes to disk is written
 * in few calls; when one of these is refused, or the writer is killed within it, nothing is there.
 *
 * pwritev() stands here instead of libc's.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "kernel.h"
#include "data_dirs.h"
#include "topics.h"

#include <sys/syscall.h>
#include <sys/uio.h>

enum { N = 1000, BODY = 200, MEMORY = 256 << 10, PIECE = 16 << 10, MOVES = 256 };

static unsigned writes, fail_at, kill_at; /* 0: none is refused, or killed in */

/* A part of it, as a full disk has it. */
static void write_half(int fd, const struct iovec *iov, off_t at)
{
    const struct iovec half = {iov->iov_base, iov->iov_len / 2};
    CHECK(syscall(SYS_pwritev, fd, &half, 1, at, 0) >= 0);
}

ssize_t pwritev(int fd, const struct iovec *iov, int n, off_t at)
{
    writes++;
    /* Refused twice: the engine tries again when it still holds files that were removed. */
    const bool fails = fail_at != 0 && (writes == fail_at || writes == fail_at + 1);
    if (writes == kill_at || fails)
        write_half(fd, iov, at);
    if (writes == kill_at)
        kill(getpid(), SIGKILL);
    if (fails) {
        errno = ENOSPC;
        return -1;
    }
    return syscall(SYS_pwritev, fd, iov, n, at, 0);
}

static pn_engine *engine;
static pn_conn *conn;
static pn_ref topic, channel[2];
static uint32_t channels;
static int told; /* the last number that was published */
static bool in_transaction;

static void open_with(uint32_t n)
{
    pn_options o = test_options();
    data_dir_empty();
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    o.topic_memory = MEMORY;
    engine = test_engine(&o);
    conn = test_connect(engine);
    topic = topic_with(conn, "t", 0, PN_OVERFLOW_DISK);
    channels = n;
    for (uint32_t i = 0; i < n; i++)
        channel[i] = channel_of(conn, topic, i == 0 ? "a" : "b");
    told = 0;
    writes = fail_at = kill_at = 0;
}

/* Each body begins with its number, has headers and ends with zeros. */
static int publish_batch(pn_conn *by, pn_ref to)
{
    static unsigned char bodies[N * BODY];
    static uint32_t lens[N];
    const pn_message_in common = {.headers = "headers", .headers_len = 7};
    uint64_t id;
    for (int i = 0; i < N; i++) {
        char text[12];
        snprintf(text, sizeof text, "%04d", told + 1 + i);
        memcpy(bodies + (size_t) i * BODY, text, 4);
        lens[i] = BODY;
    }
    pn_txn *txn = in_transaction ? test_begin(by) : NULL;
    int rc = pn_topic_publish_many(by, txn, to, bodies, lens, N, &common, &id);
    if (rc == 0 && txn != NULL)
        rc = pn_txn_commit(txn);
    if (rc > 0) /* it has repaired the segment */
        rc = 0;
    if (rc == 0)
        told += N;
    return rc;
}

static void finish_all_of(pn_ref of)
{
    pn_message_out m;
    pn_consumer *consumer = consumer_of(conn, of, 1);
    for (int i = 1; i <= told; i++) {
        CHECK_EQ(pn_consumer_get(consumer, TEST_PATIENCE_MS * MS, &m), 1);
        CHECK_EQ(number_in(&m), i);
        CHECK_EQ(m.body_len, BODY);
        CHECK_EQ(m.headers_len, 7);
        CHECK_EQ(m.attempts, 1);
        FINISH(conn, &m);
    }
    NOTHING(consumer);
    CHECK_OK(pn_consumer_close(consumer));
}

static void close_scene(void)
{
    CHECK_ENGINE(engine);
    for (uint32_t i = 0; i < channels; i++)
        finish_all_of(channel[i]);
    CHECK_ENGINE(engine);
    CHECK_EQ(topic_stat(conn, topic).on_disk, 0);
    CHECK_EQ(topic_stat(conn, topic).corrupt, 0);
    CHECK_EQ(topic_stat(conn, topic).message_count, told);
    CHECK_EQ(topic_stat(conn, topic).message_bytes, told * BODY);
    pn_conn_close(conn);
    pn_remove_spill_files(engine);
    CHECK_EQ(files_in(data_dir), 0);
    pn_engine_close(engine);
}

static uint64_t bytes_in_files(void)
{
    uint64_t bytes = 0;
    struct stat st;
    DIR *dir = opendir(data_dir);
    CHECK(dir != NULL);
    for (struct dirent *d; (d = readdir(dir)) != NULL;) {
        if (d->d_name[0] == '.')
            continue;
        CHECK_EQ(fstatat(dirfd(dir), d->d_name, &st, 0), 0);
        bytes += (uint64_t) st.st_size;
    }
    closedir(dir);
    return bytes;
}

/* What it was, as tests compare it. */
struct before {
    pn_topic_stats topic;
    uint64_t depth[2], bytes;
};

/* Each operation on topics brings some back, as long as there is room. */
static void settle(void)
{
    const pn_ref other = topic_of(conn, "other");
    for (uint64_t on_disk = UINT64_MAX, now; (now = topic_stat(conn, topic).on_disk) != on_disk;) {
        on_disk = now;
        publish(conn, other, "x");
        CHECK_OK(pn_topic_empty(conn, other));
    }
}

static struct before look(void)
{
    struct before b = {.topic = topic_stat(conn, topic), .bytes = bytes_in_files()};
    for (uint32_t i = 0; i < channels; i++)
        b.depth[i] = channel_stat(conn, channel[i]).depth;
    return b;
}

static void check_same(const struct before *b, bool files)
{
    const struct before now = look();
    CHECK_ENGINE(engine);
    CHECK_EQ(now.topic.on_disk, b->topic.on_disk);
    CHECK_EQ(now.topic.unfinished, b->topic.unfinished);
    CHECK_EQ(now.topic.message_count, b->topic.message_count);
    CHECK_EQ(now.topic.message_bytes, b->topic.message_bytes);
    for (uint32_t i = 0; i < channels; i++)
        CHECK_EQ(now.depth[i], b->depth[i]);
    if (files)
        CHECK_EQ(now.bytes, b->bytes);
}

/* What a transaction has put on disk goes to channels that rest one by one, after its commit. */
static uint32_t most_channels(void)
{
    return in_transaction ? 1 : 2;
}

static void test_a_batch_is_written_in_few_calls(void)
{
    for (uint32_t n = 1; n <= most_channels(); n++) {
        open_with(n);
        while (topic_stat(conn, topic).on_disk == 0)
            CHECK_OK(publish_batch(conn, topic));
        const uint64_t before = bytes_in_files();
        writes = 0;
        CHECK_OK(publish_batch(conn, topic));
        const uint64_t bytes = bytes_in_files() - before;
        CHECK(bytes >= N * BODY);
        /* It was one for each message.  A commit ends with moves to a channel that rests. */
        CHECK(writes <= 2 * (bytes / PIECE + 1) + (in_transaction ? MOVES : 0));
        close_scene();
    }
}

static void test_a_refusal_in_each_write_changes_nothing(void)
{
    for (uint32_t n = 1; n <= most_channels(); n++) {
        unsigned refused = 0;
        open_with(n);
        for (int batch = 0; batch < 3; batch++) { /* the first: some have room in memory */
            settle();
            const struct before before = look();
            for (unsigned at = 1;; at++) {
                writes = 0;
                fail_at = at;
                int rc = publish_batch(conn, topic);
                fail_at = 0;
                if (rc == 0)
                    break;
                CHECK_EQ(rc, -PN_EDISKFULL);
                CHECK(strstr(pn_error_message(), "has no room") != NULL);
                check_same(&before, true);
                refused++;
            }
        }
        CHECK(refused > 10 * most_channels());
        CHECK_OK(publish_batch(conn, topic)); /* a refused move to a channel that rests is over */
        CHECK_STR(topic_stat(conn, topic).error, "");
        close_scene();
    }
}

/* It is there as soon as there is room again. */
static void test_after_a_refusal_others_can_publish(void)
{
    open_with(1);
    while (topic_stat(conn, topic).on_disk == 0)
        CHECK_OK(publish_batch(conn, topic));
    writes = 0;
    fail_at = 5;
    CHECK_EQ(publish_batch(conn, topic), -PN_EDISKFULL);
    CHECK(strlen(topic_stat(conn, topic).error) > 0);
    fail_at = 0;
    CHECK_OK(publish_batch(conn, topic));
    close_scene();
}

static bool has_all(const struct before *b)
{
    return in_transaction && topic_stat(conn, topic).message_count == b->topic.message_count + N;
}

static void victim(void *arg)
{
    pn_conn *mine = test_connect(engine);
    pn_ref to = topic_of(mine, "t");
    writes = 0;
    kill_at = *(const unsigned *) arg;
    (void) publish_batch(mine, to);
    _exit(told == N ? 2 : 1); /* it was not reached */
}

static void test_a_writer_that_is_killed_in_each_write_has_put_none(void)
{
    for (uint32_t n = 1; n <= most_channels(); n++) {
        unsigned killed = 0;
        open_with(n);
        for (int batch = 0; batch < 2; batch++) {
            settle();
            const struct before before = look();
            for (unsigned at = 1;; at += 3) {
                int status = reap(spawn(victim, &at));
                if (!WIFSIGNALED(status) || has_all(&before)) /* in the moves after the commit */
                    break;
                CHECK_EQ(WTERMSIG(status), SIGKILL);
                check_same(&before, false);
                killed++;
            }
            told += N; /* what the last one did */
        }
        CHECK(killed > 4);
        CHECK_OK(publish_batch(conn, topic));
        close_scene();
    }
}

/* Each topic has its own, in order; behind them goes what is published afterwards. */
static void test_a_transaction_of_two_topics_by_turns(void)
{
    enum { EACH = 300 };
    pn_ref topics[2], of[2];
    pn_message_out m;
    uint64_t id;
    open_with(1);
    for (int t = 0; t < 2; t++) {
        topics[t] = topic_with(conn, t == 0 ? "u" : "v", 3, PN_OVERFLOW_DISK);
        of[t] = channel_of(conn, topics[t], "a");
    }
    for (int round = 0; round < 2; round++) {
        pn_txn *txn = test_begin(conn);
        for (int i = 0; i < 2 * EACH; i++) {
            char text[12];
            snprintf(text, sizeof text, "%04d", round * EACH + i / 2 + 1);
            const pn_message_in in = {.body = text, .body_len = 4};
            CHECK_OK(pn_topic_publish(conn, txn, topics[i % 2], &in, &id));
        }
        CHECK_OK(pn_txn_commit(txn));
        CHECK_ENGINE(engine);
    }
    for (int t = 0; t < 2; t++) {
        pn_consumer *consumer = consumer_of(conn, of[t], 1);
        CHECK_EQ(topic_stat(conn, topics[t]).message_count, 2 * EACH);
        CHECK_EQ(topic_stat(conn, topics[t]).message_bytes, 2 * EACH * 4);
        for (int i = 1; i <= 2 * EACH; i++) {
            CHECK_EQ(pn_consumer_get(consumer, TEST_PATIENCE_MS * MS, &m), 1);
            CHECK_EQ(number_in(&m), i);
            FINISH(conn, &m);
        }
        NOTHING(consumer);
        CHECK_OK(pn_consumer_close(consumer));
        CHECK_EQ(topic_stat(conn, topics[t]).on_disk, 0);
    }
    close_scene();
}

static void run_all(bool transaction)
{
    in_transaction = transaction;
    RUN(test_a_batch_is_written_in_few_calls);
    RUN(test_a_refusal_in_each_write_changes_nothing);
    RUN(test_after_a_refusal_others_can_publish);
    RUN_WHERE(robust_mutexes(), test_a_writer_that_is_killed_in_each_write_has_put_none);
}

int main(void)
{
    data_dir_make();
    test_watchdog(100);
    run_all(false);
    run_all(true);
    RUN(test_a_transaction_of_two_topics_by_turns);
    return tests_done();
}
