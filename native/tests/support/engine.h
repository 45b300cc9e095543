/*
 * engine.h - a small engine for a test, and what most tests do with one.
 *
 * Tests see the inside (struct pn_segment, struct pn_conn), so that they can put it into states
 * that would otherwise take days or luck: positions near 2^62, a lost message in a race.
 */
#ifndef PN_TESTS_ENGINE_H
#define PN_TESTS_ENGINE_H

#include "harness.h"

#include <stdbool.h>

#include "backend/conn.h"
#include "base/os.h"
#include "segment/lock.h"
#include "segment/process.h"

/* Of a test that takes the writer lock itself. */
__attribute__((unused)) static struct pn_hold test_hold;

static inline pn_options test_options(void)
{
    pn_options o;
    pn_options_default(&o);
    o.queue_pages = 64;
    o.max_backends = 16;
    o.max_channels = 64;
    o.max_subscriptions = 256;
    o.max_generations = 256;
    o.max_payload = 200000;
    return o;
}

static inline pn_engine *test_engine(const pn_options *o)
{
    pn_options small = test_options();
    pn_engine *engine;
    CHECK_OK(pn_open(test_segment_name(), o != NULL ? o : &small, &engine));
    return engine;
}

/* The mapping that was attached last. */
static inline struct pn_segment *test_inside(void)
{
    struct pn_segment *seg = pn_first_segment();
    CHECK(seg != NULL);
    return seg;
}

static inline pn_conn *test_connect(pn_engine *engine)
{
    char told[600];
    pn_conn *conn;
    CHECK_OK(pn_connect(engine, "db", 2, 0, NULL, &conn));
    if (pn_os_robust() != 0) /* where tests run all the same, that stands for nothing else */
        pn_conn_notice(conn, told, sizeof told);
    return conn;
}

static inline pn_txn *test_begin(pn_conn *conn)
{
    pn_txn *txn;
    CHECK_OK(pn_txn_begin(conn, &txn));
    return txn;
}

static inline void test_listen(pn_conn *conn, const char *channel)
{
    pn_txn *txn = test_begin(conn);
    CHECK_OK(pn_txn_listen(txn, channel, strlen(channel)));
    CHECK_OK(pn_txn_commit(txn));
}

static inline void test_unlisten(pn_conn *conn, const char *channel)
{
    pn_txn *txn = test_begin(conn);
    CHECK_OK(pn_txn_unlisten(txn, channel, strlen(channel)));
    CHECK_OK(pn_txn_commit(txn));
}

static inline int test_notify(pn_conn *conn, const char *channel, const char *payload)
{
    return pn_notify(conn, channel, strlen(channel), payload, strlen(payload));
}

/* pn_wait() without its notice bit, which no error has: a negative number has every high bit. */
static inline int test_wait(pn_conn *conn, int64_t timeout_ns)
{
    int rc = pn_wait(conn, timeout_ns);
    return rc < 0 ? rc : rc & ~PN_NOTICE;
}

/* Poll once; the payloads must be those of `want`, joined by blanks. */
#define CHECK_POLL(conn, want) check_poll(__FILE__, __LINE__, conn, want)
static inline void check_poll(const char *file, int line, pn_conn *conn, const char *want)
{
    char text[4096] = "";
    size_t used = 0;
    pn_batch *b = pn_batch_new();
    int64_t n = pn_poll(conn, b, 0);
    if (n < 0)
        FAIL("%s:%d: poll: %lld: %s", file, line, (long long) n, pn_error_message());
    for (size_t i = 0; i < b->n; i++) {
        size_t len = (size_t) (b->offset[i + 1] - b->offset[i]);
        CHECK(used + len + 2 < sizeof text);
        if (i > 0)
            text[used++] = ' ';
        if (len > 0)
            memcpy(text + used, b->data + b->offset[i], len);
        used += len;
        text[used] = '\0';
    }
    pn_batch_free(b);
    if (strcmp(text, want) != 0)
        FAIL("%s:%d: got \"%s\", not \"%s\"", file, line, text, want);
}

#define CHECK_ENGINE(engine) check_engine(__FILE__, __LINE__, engine)
static inline void check_engine(const char *file, int line, pn_engine *engine)
{
    char problems[4096];
    int n = pn_check(engine, problems, sizeof problems);
    if (n < 0)
        FAIL("%s:%d: pn_check: %d: %s", file, line, n, pn_error_message());
    if (n > 0)
        FAIL("%s:%d: pn_check finds %d problems:\n%s", file, line, n, problems);
}

static inline pn_stat test_stat(pn_engine *engine)
{
    pn_stat stat;
    CHECK_OK(pn_engine_stat(engine, &stat, NULL, 0));
    return stat;
}

/* xorshift: the same numbers in every run, so that a failure can be had again. */
static inline uint64_t test_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* One byte through a pipe: an event between processes. */
static inline void test_tell(const int pipe_fds[2])
{
    CHECK_EQ(write(pipe_fds[1], "x", 1), 1);
}

static inline void test_hear(const int pipe_fds[2])
{
    struct pollfd p = {.fd = pipe_fds[0], .events = POLLIN};
    int64_t until = test_now_ns() + TEST_PATIENCE_MS * INT64_C(1000000);
    int rc;
    char c;
    do
        rc = poll(&p, 1, TEST_PATIENCE_MS);
    while (rc < 0 && errno == EINTR && test_now_ns() < until);
    CHECK_EQ(rc, 1);
    CHECK_EQ(read(pipe_fds[0], &c, 1), 1);
}

/* In the kernel, and not between saying that it sleeps and looking once more.  Handlers call it. */
static inline bool is_blocked(pid_t pid)
{
    char path[32], stat[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int) pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    ssize_t n = read(fd, stat, sizeof stat - 1);
    close(fd);
    CHECK(n > 0);
    stat[n] = 0;
    const char *name_end = strrchr(stat, ')');
    CHECK(name_end != NULL && name_end[1] == ' ');
    return name_end[2] == 'S';
}

#endif
