/* How full the queue may be, which process holds it, and what happens then. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "engine.h"

#include <pthread.h>
#include <sched.h>

#include "backend/channel.h"
#include "segment/lock.h"
#include "queue/queue.h"

#define PAGE      ((uint64_t) PN_QUEUE_PAGE)
#define HALF_PAGE (PAGE / 2 - PN_ENTRY_HEADER - 1) /* payload of an entry of half a page on "c" */

static char payload[200000];

static int send_bytes(pn_conn *conn, size_t n)
{
    return pn_notify(conn, "c", 1, payload, n);
}

/* Listening to "c", awake: whatever comes from now on is pinned. */
static pn_conn *laggard(pn_engine *engine)
{
    pn_conn *conn = test_connect(engine);
    test_listen(conn, "c");
    CHECK_OK(test_notify(conn, "c", "first"));
    CHECK_POLL(conn, "first");
    return conn;
}

static uint64_t fill_up(pn_conn *conn, size_t n)
{
    uint64_t sent = 0;
    int rc;
    while ((rc = send_bytes(conn, n)) >= 0)
        sent++;
    CHECK_EQ(rc, -PN_EQUEUEFULL);
    return sent;
}

static void test_capacity_is_all_pages(void)
{
    pn_engine *engine = test_engine(NULL);
    pn_conn *slow = laggard(engine), *conn = test_connect(engine);
    char pid[64];
    /* "first" takes 64 bytes, so the first page takes one entry of half a page, then padding */
    CHECK_EQ(fill_up(conn, HALF_PAGE), 127);
    CHECK(strstr(pn_error_message(), "too many notifications in the NOTIFY queue\n") != NULL);
    snprintf(pid, sizeof pid, "PID %d ", (int) getpid());
    CHECK(strstr(pn_error_message(), pid) != NULL);
    CHECK_EQ(fill_up(conn, 7), 1); /* a small one still fits: 64 bytes, the place of "first" */
    pn_stat stat = test_stat(engine);
    CHECK_EQ(stat.head - stat.tail, 64 * PAGE);
    CHECK_EQ(stat.tail, 64);
    CHECK_EQ(stat.tail_holder_pid, getpid());
    CHECK(stat.queue_usage > 0.99);
    CHECK_ENGINE(engine);
    pn_batch *batch = pn_batch_new();
    CHECK_EQ(pn_poll(slow, batch, 1), 1);  /* one entry of half a page */
    CHECK_EQ(fill_up(conn, HALF_PAGE), 1); /* in its place */
    CHECK_EQ(pn_poll(slow, batch, 1), 1);
    CHECK_EQ(fill_up(conn, HALF_PAGE), 1);
    CHECK_EQ(pn_poll(slow, batch, 0), 128);
    CHECK_EQ(fill_up(conn, HALF_PAGE), 128); /* all 64 pages, since it begins in mid-page */
    CHECK_EQ(pn_poll(slow, batch, 0), 128);
    CHECK_ENGINE(engine);
    pn_batch_free(batch);
    pn_conn_close(slow);
    CHECK_EQ(send_bytes(conn, 10) & ~PN_NOTICE, 0);
    CHECK_EQ(test_stat(engine).queue_usage > 0, 0);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

/* A failed commit leaves nothing; the next one is whole. */
static void test_full_is_all_or_nothing(void)
{
    pn_engine *engine = test_engine(NULL);
    pn_conn *slow = laggard(engine), *conn = test_connect(engine);
    fill_up(conn, HALF_PAGE);
    uint64_t head = test_stat(engine).head;
    pn_txn *txn = test_begin(conn);
    CHECK_OK(pn_txn_listen(txn, "d", 1));
    for (int i = 0; i < 100; i++)
        CHECK_OK(pn_txn_notify(txn, "c", 1, payload, (size_t) i));
    CHECK_EQ(pn_txn_commit(txn), -PN_EQUEUEFULL);
    pn_stat stat = test_stat(engine);
    CHECK_EQ(stat.head, head);
    CHECK_EQ(stat.subscriptions, 1);
    CHECK_EQ(pn_conn_listening(conn, NULL, 0), 0);
    CHECK_ENGINE(engine);
    pn_conn_close(slow);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static void test_quiet_listeners_hold_nothing(void)
{
    pn_engine *engine = test_engine(NULL);
    pn_conn *quiet = test_connect(engine), *reader = test_connect(engine);
    pn_conn *conn = test_connect(engine);
    pn_batch *batch = pn_batch_new();
    test_listen(quiet, "other");
    test_listen(reader, "c");
    for (int round = 0; round < 20; round++) { /* ten times the ring */
        for (int i = 0; i < 64; i++)
            CHECK_EQ(send_bytes(conn, HALF_PAGE) & ~PN_NOTICE, 0);
        CHECK_EQ(pn_poll(reader, batch, 0), 64);
        CHECK_EQ(pn_poll(reader, batch, 0), 0);
    }
    CHECK_OK(pn_notify(conn, "unheard", 7, payload, 200)); /* takes no room at all */
    CHECK_EQ(test_stat(engine).tail, test_stat(engine).head);
    CHECK_OK(test_notify(conn, "other", "late"));
    CHECK_POLL(quiet, "late");
    CHECK_ENGINE(engine);
    pn_batch_free(batch);
    pn_conn_close(quiet);
    pn_conn_close(reader);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

/*
 * Awake, since its last poll() took something, and everything is read: it pins nothing, and what
 * comes next is read from where it stands (`from`), not from where the listener once was.
 */
static void test_an_awake_listener_that_has_read_all_holds_nothing(void)
{
    pn_engine *engine = test_engine(NULL);
    pn_conn *awake = test_connect(engine), *reader = test_connect(engine);
    pn_conn *conn = test_connect(engine);
    pn_batch *batch = pn_batch_new();
    test_listen(awake, "other");
    test_listen(reader, "c");
    for (int round = 0; round < 5; round++) {
        CHECK_OK(test_notify(conn, "other", "taken"));
        CHECK_POLL(awake, "taken");        /* and no second, empty poll(): it stays awake */
        for (int i = 0; i < 3 * 64; i++) { /* more than the ring */
            CHECK_EQ(send_bytes(conn, HALF_PAGE) & ~PN_NOTICE, 0);
            CHECK_EQ(pn_poll(reader, batch, 0), 1);
        }
        CHECK_OK(test_notify(conn, "other", "next"));
        CHECK_POLL(awake, "next");
    }
    CHECK_ENGINE(engine);
    pn_batch_free(batch);
    pn_conn_close(awake);
    pn_conn_close(reader);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static int pipe_up[2];

static void lag_and_die(void *arg)
{
    pn_conn *conn = laggard(arg);
    (void) conn;
    test_tell(pipe_up);
    for (;;)
        pause();
}

static void test_a_dead_laggard_is_reaped_when_full(void)
{
    pn_engine *engine = test_engine(NULL);
    CHECK_EQ(pipe(pipe_up), 0);
    pid_t pid = spawn(lag_and_die, engine);
    test_hear(pipe_up);
    pn_conn *conn = test_connect(engine);
    fill_up(conn, HALF_PAGE);
    pn_stat before;
    CHECK_OK(pn_engine_stat(engine, &before, NULL, 0));
    CHECK_EQ(before.tail_holder_pid, pid);
    kill(pid, SIGKILL);
    CHECK_KILLED(pid, SIGKILL);
    for (int i = 0; i < 1000; i++)
        CHECK_EQ(send_bytes(conn, HALF_PAGE) & ~PN_NOTICE, 0);
    pn_stat stat = test_stat(engine);
    CHECK_EQ(stat.backends, 1);
    CHECK_EQ(stat.subscriptions, 0);
    CHECK_EQ(stat.recoveries, 0);
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

/* Whether a backend lives is a system call under the lock: only the first of those that pin
 * decides, and the dead behind it are left alone until they are the first. */
static void test_only_the_holder_of_the_tail_is_looked_at(void)
{
    pn_engine *engine = test_engine(NULL);
    pn_conn *slow = laggard(engine), *conn = test_connect(engine);
    const struct QueueBackendStatus *dead = &test_inside()->backend[2];
    pn_batch *batch = pn_batch_new();
    CHECK_OK(send_bytes(conn, HALF_PAGE)); /* it pins before the other one */
    CHECK_EQ(pipe(pipe_up), 0);
    pid_t pid = spawn(lag_and_die, engine);
    test_hear(pipe_up);
    CHECK_EQ(pn_load_relaxed(&dead->pid), pid);
    fill_up(conn, HALF_PAGE);
    kill(pid, SIGKILL);
    CHECK_KILLED(pid, SIGKILL);
    CHECK_EQ(send_bytes(conn, HALF_PAGE), -PN_EQUEUEFULL);
    CHECK_EQ(pn_load_relaxed(&dead->state), PN_SLOT_CLAIMED);
    while (pn_poll(slow, batch, 0) > 0)
        ;
    CHECK_OK(send_bytes(conn, HALF_PAGE));
    CHECK_OK(send_bytes(conn, HALF_PAGE));
    CHECK_EQ(pn_load_relaxed(&dead->state), PN_SLOT_FREE);
    CHECK_ENGINE(engine);
    pn_batch_free(batch);
    pn_conn_close(slow);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static int pipe_down[2];

/* As recovery leaves a slot whose process died in an UNLISTEN while the kernel had its locks. */
static void lag_unlisten_and_die(void *arg)
{
    pn_conn *conn = laggard(arg);
    struct pn_segment *seg = test_inside();
    test_tell(pipe_up);
    test_hear(pipe_down);
    CHECK_OK(pn_lock_acquire(seg, &test_hold, PN_LOCK_FOREVER));
    pn_unlisten_all_locked(seg, conn->slot);
    pn_lock_release(seg);
    test_tell(pipe_up);
    for (;;)
        pause();
}

static void test_a_dead_laggard_without_channels_is_reaped_when_full(void)
{
    pn_engine *engine = test_engine(NULL);
    CHECK_EQ(pipe(pipe_up), 0);
    CHECK_EQ(pipe(pipe_down), 0);
    pid_t pid = spawn(lag_unlisten_and_die, engine);
    test_hear(pipe_up);
    pn_conn *conn = test_connect(engine), *reader = test_connect(engine);
    test_listen(reader, "d");
    fill_up(conn, HALF_PAGE);
    test_tell(pipe_down);
    test_hear(pipe_up);
    kill(pid, SIGKILL);
    CHECK_KILLED(pid, SIGKILL);
    CHECK_EQ(pn_notify(conn, "d", 1, payload, HALF_PAGE) & ~PN_NOTICE, 0);
    CHECK_EQ(test_stat(engine).backends, 2);
    CHECK_ENGINE(engine);
    pn_conn_close(reader);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static void test_warning_at_half_once_in_five_seconds(void)
{
    pn_engine *engine = test_engine(NULL);
    pn_conn *slow = laggard(engine), *conn = test_connect(engine);
    struct pn_segment *seg = test_inside();
    char text[600], pid[64];
    int warnings = 0, rc;
    CHECK_EQ(pn_conn_notice(conn, text, sizeof text), 0);
    for (int i = 0; (rc = send_bytes(conn, HALF_PAGE)) >= 0; i++)
        if ((rc & PN_NOTICE) != 0) {
            CHECK(i >= 61);
            CHECK(pn_conn_notice(conn, text, sizeof text) > 0);
            warnings++;
        }
    CHECK_EQ(warnings, 1);
    int percent = 0;
    CHECK_EQ(sscanf(text, "NOTIFY queue is %d%% full\n", &percent), 1);
    if (percent < 50 || percent > 53)
        FAIL("warned at %d%%", percent);
    snprintf(pid, sizeof pid, "process with PID %d ", (int) getpid());
    CHECK(strstr(text, pid) != NULL);
    CHECK_EQ(pn_conn_notice(conn, text, sizeof text), 0);
    seg->ctl->lastQueueFillWarn -= 5100000000; /* five seconds later */
    pn_batch *batch = pn_batch_new();
    CHECK_EQ(pn_poll(slow, batch, 2), 2);
    CHECK_EQ(send_bytes(conn, 100), PN_NOTICE);
    CHECK(pn_conn_notice(conn, text, sizeof text) > 0);
    CHECK(strstr(text, "% full\n") != NULL);
    pn_batch_free(batch);
    pn_conn_close(slow);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static void test_too_big_is_refused_before_the_lock(void)
{
    pn_engine *engine = test_engine(NULL);
    pn_conn *conn = test_connect(engine);
    for (int prepare = 0; prepare < 2; prepare++) {
        pn_txn *txn = test_begin(conn);
        for (int i = 0; i < 5; i++) {
            payload[0] = (char) i;
            CHECK_OK(pn_txn_notify(txn, "c", 1, payload, 120000));
        }
        CHECK_OK(pn_lock_acquire(test_inside(), &test_hold, PN_LOCK_FOREVER));
        CHECK_EQ(prepare ? pn_txn_prepare(txn) : pn_txn_commit(txn), -PN_ETOOBIG);
        pn_lock_release(test_inside());
        if (prepare)
            pn_txn_abort(txn);
    }
    pn_options o = test_options();
    o.max_payload = 63 * 8192 / 2; /* the largest that is allowed fits at every position */
    pn_engine *large = test_engine(&o);
    pn_conn *other = test_connect(large);
    char *most = calloc(1, o.max_payload);
    test_listen(other, "c");
    for (int i = 0; i < 200; i++) {
        pn_batch *batch = pn_batch_new();
        CHECK_OK(pn_notify(other, "c", 1, most, o.max_payload));
        CHECK_EQ(pn_poll(other, batch, 0), 1);
        CHECK_OK(pn_notify(other, "c", 1, most, (size_t) (i * 97 % 8000)));
        CHECK_EQ(pn_poll(other, batch, 0), 1);
        pn_batch_free(batch);
    }
    CHECK_ENGINE(large);
    free(most);
    pn_conn_close(other);
    pn_engine_close(large);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

/* ---- on_full = block ------------------------------------------------------------------------- */

static pn_engine *blocking_engine(uint64_t timeout_ns)
{
    pn_options o = test_options();
    o.on_full = PN_FULL_BLOCK;
    o.full_timeout_ns = timeout_ns;
    return test_engine(&o);
}

static void writer_of_300(void *arg)
{
    pn_conn *conn = test_connect(arg);
    for (int i = 0; i < 300; i++)
        CHECK_EQ(send_bytes(conn, HALF_PAGE) & ~PN_NOTICE, 0);
    pn_conn_close(conn);
}

static void test_block_until_a_reader_comes(void)
{
    pn_engine *engine = blocking_engine(15000000000ULL);
    struct pn_segment *seg = test_inside();
    pn_conn *slow = laggard(engine);
    pn_batch *batch = pn_batch_new();
    pid_t pid = spawn(writer_of_300, engine);
    for (int64_t got = 0; got < 300; got += (int64_t) batch->n) {
        if (got < 150) /* twice it has to wait until we read */
            CHECK_SOON(pn_load_relaxed(&seg->ctl->room_waiters) != 0);
        CHECK_OK(pn_poll(slow, batch, 0));
        sched_yield();
    }
    CHECK_CHILD(pid, 0);
    CHECK_ENGINE(engine);
    pn_batch_free(batch);
    pn_conn_close(slow);
    pn_engine_close(engine);
}

static void test_block_ends_when_the_reader_dies(void)
{
    pn_engine *engine = blocking_engine(15000000000ULL);
    struct pn_segment *seg = test_inside();
    CHECK_EQ(pipe(pipe_up), 0);
    pid_t slow = spawn(lag_and_die, engine);
    test_hear(pipe_up);
    pid_t pid = spawn(writer_of_300, engine);
    CHECK_SOON(pn_load_relaxed(&seg->ctl->room_waiters) != 0);
    kill(slow, SIGKILL);
    CHECK_KILLED(slow, SIGKILL);
    int64_t start = test_now_ns();
    CHECK_CHILD(pid, 0);
    CHECK(test_now_ns() - start < 5000000000);
    CHECK_EQ(test_stat(engine).backends, 0);
    pn_engine_close(engine);
}

static void test_block_never_waits_for_oneself(void)
{
    pn_engine *engine = blocking_engine(15000000000ULL);
    pn_conn *slow = laggard(engine);
    int64_t start = test_now_ns();
    CHECK_EQ(fill_up(slow, HALF_PAGE), 127);
    CHECK(test_now_ns() - start < 5000000000);
    pn_txn *txn = test_begin(slow);
    CHECK_OK(pn_txn_notify(txn, "c", 1, payload, HALF_PAGE));
    CHECK_EQ(pn_txn_prepare(txn), -PN_EQUEUEFULL);
    pn_txn_abort(txn);
    CHECK(test_now_ns() - start < 5000000000);
    pn_conn_close(slow);
    pn_engine_close(engine);
}

static void test_block_is_bounded(void)
{
    pn_engine *engine = blocking_engine(200000000);
    pn_conn *slow = laggard(engine), *conn = test_connect(engine);
    fill_up(conn, HALF_PAGE);
    int64_t start = test_now_ns();
    CHECK_EQ(send_bytes(conn, HALF_PAGE), -PN_EQUEUEFULL);
    int64_t took = test_now_ns() - start;
    CHECK(took >= 200000000 && took < 5000000000);
    pn_conn_close(slow);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static void preparer_of_room(void *arg)
{
    pn_conn *conn = test_connect(arg);
    pn_txn *txn = test_begin(conn);
    CHECK_OK(pn_txn_notify(txn, "c", 1, payload, 100000));
    CHECK_OK(pn_txn_prepare(txn));
    test_tell(pipe_up);
    for (;;)
        pause();
}

/* Reserved room is no other's; it comes back by abort, and by the death of its process. */
static void test_reservations_are_respected_and_reaped(void)
{
    pn_engine *engine = test_engine(NULL);
    pn_conn *slow = laggard(engine), *conn = test_connect(engine);
    struct pn_segment *seg = test_inside();
    CHECK_EQ(pipe(pipe_up), 0);
    pid_t pid = spawn(preparer_of_room, engine);
    test_hear(pipe_up);
    uint64_t reserved = seg->ctl->reserved;
    CHECK(reserved > 100000);
    uint64_t sent = fill_up(conn, HALF_PAGE);
    CHECK(sent < 127 && sent >= 127 - reserved / (PAGE / 2) - 1);
    CHECK_ENGINE(engine);
    kill(pid, SIGKILL);
    CHECK_KILLED(pid, SIGKILL);
    CHECK_EQ(fill_up(conn, HALF_PAGE), 127 - sent);
    CHECK_EQ(seg->ctl->reserved, 0);
    CHECK_ENGINE(engine);
    pn_conn_close(slow);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

/* ---- whatever was prepared fits -------------------------------------------------------------- */

static size_t random_size(uint64_t *seed)
{
    uint64_t r = test_random(seed);
    switch (r % 8) {
    case 0:
        return (r >> 8) % 60000; /* large ones take whole pages, and skip the ring's end */
    case 1:
        return PAGE - PN_ENTRY_HEADER - 1 + (r >> 8) % 3 - 1; /* a page, a byte less, a byte more */
    case 2:
        return HALF_PAGE + (r >> 8) % 5; /* two do not fit a page */
    default:
        return (r >> 8) % 3000;
    }
}

static pn_txn *random_txn(pn_conn *conn, uint64_t *seed)
{
    pn_txn *txn = test_begin(conn);
    int n = 1 + (int) (test_random(seed) % 12);
    for (int i = 0; i < n; i++) {
        memcpy(payload, seed, sizeof *seed);
        CHECK_OK(pn_txn_notify(txn, "c", 1, payload, random_size(seed)));
    }
    return txn;
}

/* Prepare a random shape anywhere, let others fill the rest to the brim: the commit must fit. */
static void test_a_prepared_commit_fits_a_full_queue(void)
{
    uint64_t seed = 99;
    for (uint32_t pages = 64; pages <= 67; pages++) {
        pn_options o = test_options();
        o.queue_pages = pages;
        pn_engine *engine = test_engine(&o);
        pn_conn *slow = laggard(engine), *conn = test_connect(engine);
        pn_conn *other = test_connect(engine);
        pn_batch *batch = pn_batch_new();
        int prepared = 0;
        for (int i = 0; i < 400; i++) {
            pn_txn *txn = random_txn(conn, &seed);
            int rc = pn_txn_prepare(txn);
            if (rc != 0) {
                CHECK(rc == -PN_ETOOBIG || rc == -PN_EQUEUEFULL);
                pn_txn_abort(txn);
            }
            fill_up(other, random_size(&seed));
            fill_up(other, 8);
            if (rc == 0) {
                prepared++;
                CHECK_EQ(pn_txn_commit(txn) & ~PN_NOTICE, 0);
            }
            if (i % 16 == 0)
                CHECK_ENGINE(engine);
            CHECK_OK(pn_poll(slow, batch, i % 3 == 0 ? 0 : 3));
            if (i % 3 != 0)
                CHECK_OK(pn_poll(slow, batch, 0));
        }
        CHECK(prepared > 100);
        CHECK_ENGINE(engine);
        pn_batch_free(batch);
        pn_conn_close(slow);
        pn_conn_close(conn);
        pn_conn_close(other);
        pn_engine_close(engine);
    }
}

/* Several prepared at once, committed and aborted in any order, among unprepared ones. */
static void test_prepared_ones_in_any_order(void)
{
    enum { PEOPLE = 6 };
    pn_engine *engine = test_engine(NULL);
    pn_conn *slow = laggard(engine), *conn[PEOPLE];
    pn_txn *txn[PEOPLE] = {0};
    pn_batch *batch = pn_batch_new();
    uint64_t seed = 5, commits = 0;
    for (int i = 0; i < PEOPLE; i++)
        conn[i] = test_connect(engine);
    for (int i = 0; i < 20000; i++) {
        uint64_t r = test_random(&seed), sender = (r >> 8) % PEOPLE;
        if (r % 4 == 0) {
            int rc = send_bytes(conn[sender], random_size(&seed));
            CHECK(rc >= 0 || rc == -PN_EQUEUEFULL);
        } else if (r % 16 == 1) {
            CHECK_OK(pn_poll(slow, batch, 1 + (r >> 16) % 20));
        } else if (txn[sender] == NULL) {
            txn[sender] = random_txn(conn[sender], &seed);
            int rc = pn_txn_prepare(txn[sender]);
            CHECK(rc == 0 || rc == -PN_EQUEUEFULL || rc == -PN_ETOOBIG);
            if (rc != 0)
                pn_txn_abort(txn[sender]);
            txn[sender] = rc != 0 ? NULL : txn[sender];
        } else if (r % 16 == 2) {
            pn_txn_abort(txn[sender]);
            txn[sender] = NULL;
        } else {
            CHECK_EQ(pn_txn_commit(txn[sender]) & ~PN_NOTICE, 0);
            txn[sender] = NULL;
            commits++;
        }
        if (i % 64 == 0)
            CHECK_ENGINE(engine);
    }
    CHECK(commits > 500);
    for (int i = 0; i < PEOPLE; i++) {
        if (txn[i] != NULL)
            pn_txn_abort(txn[i]);
        pn_conn_close(conn[i]);
    }
    CHECK_EQ(test_inside()->ctl->reserved, 0);
    CHECK_ENGINE(engine);
    pn_batch_free(batch);
    pn_conn_close(slow);
    pn_engine_close(engine);
}

int main(void)
{
    test_watchdog(110);
    RUN(test_capacity_is_all_pages);
    RUN(test_full_is_all_or_nothing);
    RUN(test_quiet_listeners_hold_nothing);
    RUN(test_an_awake_listener_that_has_read_all_holds_nothing);
    RUN(test_a_dead_laggard_is_reaped_when_full);
    RUN(test_only_the_holder_of_the_tail_is_looked_at);
    RUN(test_a_dead_laggard_without_channels_is_reaped_when_full);
    RUN(test_warning_at_half_once_in_five_seconds);
    RUN(test_too_big_is_refused_before_the_lock);
    RUN(test_block_until_a_reader_comes);
    RUN(test_block_ends_when_the_reader_dies);
    RUN(test_block_never_waits_for_oneself);
    RUN(test_block_is_bounded);
    RUN(test_reservations_are_respected_and_reaped);
    RUN(test_a_prepared_commit_fits_a_full_queue);
    RUN(test_prepared_ones_in_any_order);
    return tests_done();
}
