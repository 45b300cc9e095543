/*
 * Sleep and wake across processes.  The slow timer, which would hide a lost wake-up, is put off
 * for ever: a process that is not woken hangs, and the test fails.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "engine.h"
#include "sleepers.h"

#include "kernel.h"
#include "wakeup/procsignal.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { PINGS = 10000 };
#else
enum { PINGS = 100000 };
#endif

enum way { BY_WAIT, BY_DESCRIPTOR, BY_DESCRIPTOR_ONE_BY_ONE };

static pn_engine *engine;
static int to_child[2], to_parent[2];

/* Receive exactly one message.  EINTR may come from a signal that was not needed any more. */
static void receive_one(pn_conn *conn, pn_batch *batch, enum way way)
{
    struct pollfd fd = {.fd = way != BY_WAIT ? pn_fileno(conn) : -1, .events = POLLIN};
    int64_t n = 0;
    while (n == 0) {
        no_slow_timer(conn);
        int rc = way == BY_WAIT ? pn_wait(conn, -1) : poll(&fd, 1, -1);
        if (rc < 0 && rc != -EINTR && errno != EINTR)
            FAIL("wait: %d: %s", rc, pn_error_message());
        n = pn_poll(conn, batch, way == BY_DESCRIPTOR_ONE_BY_ONE ? 1 : 0);
        CHECK(n == 0 || n == 1);
    }
}

static void check_number(const pn_batch *batch, int i)
{
    int got;
    CHECK_EQ(batch->offset[1], sizeof got);
    memcpy(&got, batch->data, sizeof got);
    CHECK_EQ(got, i);
}

static void pong(void *arg)
{
    enum way way = (enum way)(uintptr_t) arg;
    pn_conn *conn = test_connect(engine);
    pn_batch *batch = pn_batch_new();
    test_listen(conn, "ping");
    test_tell(to_parent);
    for (int i = 0; i < PINGS; i++) {
        receive_one(conn, batch, way);
        check_number(batch, i);
        CHECK_OK(pn_notify(conn, "pong", 4, &i, sizeof i));
    }
    pn_conn_close(conn);
    pn_batch_free(batch);
}

static void ping_pong(enum way way)
{
    engine = test_engine(NULL);
    pid_t pid = spawn(pong, (void *) (uintptr_t) way);
    pn_conn *conn = test_connect(engine);
    pn_batch *batch = pn_batch_new();
    test_listen(conn, "pong");
    test_hear(to_parent);
    for (int i = 0; i < PINGS; i++) {
        CHECK_OK(pn_notify(conn, "ping", 4, &i, sizeof i));
        receive_one(conn, batch, way);
        check_number(batch, i);
    }
    CHECK_CHILD(pid, 0);
    pn_stat stat = test_stat(engine);
    CHECK_EQ(stat.commits, 2 * PINGS + 2);
    CHECK(stat.signals_sent + stat.signals_elided >= 2 * PINGS);
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
    pn_batch_free(batch);
}

static void test_ping_pong_by_wait(void)
{
    ping_pong(BY_WAIT);
}

static void test_ping_pong_by_descriptor(void)
{
    ping_pong(BY_DESCRIPTOR);
}

static void test_ping_pong_by_descriptor_one_by_one(void)
{
    ping_pong(BY_DESCRIPTOR_ONE_BY_ONE);
}

/* Several notifiers at once, bursts of any length, a listener that dawdles now and then. */
static void burst_writer(void *arg)
{
    uint64_t seed = (uint64_t) (uintptr_t) arg * 77 + 1;
    pn_conn *conn = test_connect(engine);
    int message[2] = {(int) (uintptr_t) arg, 0}; /* whose, which */
    while (message[1] < PINGS / 10) {
        uint64_t burst = test_random(&seed) % 30;
        for (uint64_t i = 0; i < burst && message[1] < PINGS / 10; message[1]++, i++)
            while (pn_notify(conn, "c", 1, message, sizeof message) == -PN_EQUEUEFULL)
                ;
        for (volatile uint64_t i = test_random(&seed) % 20000; i > 0; i--)
            ;
    }
    pn_conn_close(conn);
}

static void bursts(enum way way)
{
    enum { WRITERS = 3 };
    engine = test_engine(NULL);
    pn_conn *conn = test_connect(engine);
    pn_batch *batch = pn_batch_new();
    struct pollfd fd = {.fd = way != BY_WAIT ? pn_fileno(conn) : -1, .events = POLLIN};
    int next[WRITERS] = {0};
    pid_t pid[WRITERS];
    test_listen(conn, "c");
    no_slow_timer(conn);
    for (uintptr_t i = 0; i < WRITERS; i++)
        pid[i] = spawn(burst_writer, (void *) i);
    for (int64_t left = (int64_t) WRITERS * (PINGS / 10); left > 0;) {
        no_slow_timer(conn);
        int rc = way == BY_WAIT ? pn_wait(conn, -1) : poll(&fd, 1, -1);
        CHECK(rc >= 0 || rc == -EINTR || errno == EINTR);
        int64_t n = pn_poll(conn, batch, way == BY_DESCRIPTOR_ONE_BY_ONE ? 3 : 0);
        CHECK_OK(n);
        for (int64_t i = 0; i < n; i++) {
            int got[2];
            memcpy(got, batch->data + batch->offset[i], sizeof got);
            CHECK_EQ(got[1], next[got[0]]++);
        }
        left -= n;
    }
    for (int i = 0; i < WRITERS; i++)
        CHECK_CHILD(pid[i], 0);
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
    pn_batch_free(batch);
}

static void test_bursts_by_wait(void)
{
    bursts(BY_WAIT);
}

static void test_bursts_by_descriptor(void)
{
    bursts(BY_DESCRIPTOR);
    bursts(BY_DESCRIPTOR_ONE_BY_ONE);
}

/* ---- which process is signalled -------------------------------------------------------------- */

/* Sleeps, says that it is awake, and does not read until told. */
static void sleeper(void *arg)
{
    pn_conn *conn = test_connect(engine);
    pn_batch *batch = pn_batch_new();
    (void) arg;
    test_listen(conn, "c");
    test_tell(to_parent);
    for (int round = 0; round < 10; round++) {
        no_slow_timer(conn);
        while (pn_wait(conn, -1) != 1)
            ;
        test_tell(to_parent);
        test_hear(to_child);
        CHECK_EQ(pn_poll(conn, batch, 0), 101);
        CHECK_EQ(pn_poll(conn, batch, 0), 0);
        test_tell(to_parent);
    }
    pn_conn_close(conn);
    pn_batch_free(batch);
}

static void test_one_signal_for_each_sleep(void)
{
    engine = test_engine(NULL);
    pid_t pid = spawn(sleeper, NULL);
    test_hear(to_parent);
    pn_conn *conn = test_connect(engine);
    for (int round = 0; round < 10; round++) {
        CHECK_SOON(asleep(0) && is_blocked(pid));
        pn_stat before = test_stat(engine), after;
        CHECK_OK(test_notify(conn, "c", "wakes"));
        test_hear(to_parent);
        CHECK_EQ(test_stat(engine).signals_sent, before.signals_sent + 1);
        for (int i = 0; i < 100; i++)
            CHECK_OK(test_notify(conn, "c", "finds it awake"));
        after = test_stat(engine);
        CHECK_EQ(after.signals_sent, before.signals_sent + 1);
        CHECK_EQ(after.signals_elided, before.signals_elided + 100);
        CHECK_EQ(after.slot_writes, before.slot_writes + 101);
        test_tell(to_child);
        test_hear(to_parent);
    }
    CHECK_CHILD(pid, 0);
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

/* Awake, told by a signal, and busy with something else. */
static void busy(void *arg)
{
    pn_batch *batch = pn_batch_new();
    pn_conn *conn = test_connect(engine);
    (void) arg;
    test_listen(conn, "c");
    CHECK_POLL(conn, "");
    test_tell(to_parent);
    test_hear(to_child);
    CHECK_EQ(pn_poll(conn, batch, 0), 11);
    pn_conn_close(conn);
    pn_batch_free(batch);
}

static void long_ago(uint32_t slot)
{
    pn_store_relaxed(&test_inside()->backend[slot].signalled_at,
                     (uint64_t) (test_now_ns() - 20000000));
}

static void test_a_busy_listener_is_signalled_once(void)
{
    engine = test_engine(NULL);
    pid_t pid = spawn(busy, NULL);
    test_hear(to_parent);
    pn_conn *conn = test_connect(engine);
    struct pn_segment *seg = test_inside();
    CHECK_OK(test_notify(conn, "c", "wakes"));
    CHECK_SOON((pn_load_relaxed(&seg->owed[0]) & 1) == 0); /* its handler has run */
    pn_stat before = test_stat(engine);
    for (int i = 0; i < 9; i++) {
        long_ago(0);
        CHECK_OK(test_notify(conn, "c", "finds it awake"));
    }
    CHECK_EQ(test_stat(engine).signals_sent, before.signals_sent);
    /* one that has not taken its signal yet is signalled again */
    CHECK_OK(kill(pid, SIGSTOP));
    pn_fetch_or(&seg->owed[0], 1);
    long_ago(0);
    CHECK_OK(test_notify(conn, "c", "finds it stopped"));
    CHECK_EQ(test_stat(engine).signals_sent, before.signals_sent + 1);
    CHECK_OK(kill(pid, SIGCONT));
    test_tell(to_child);
    CHECK_CHILD(pid, 0);
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static void idler(void *arg)
{
    pn_conn *conn = test_connect(engine);
    (void) arg;
    test_listen(conn, "other");
    test_tell(to_parent);
    for (;;) {
        no_slow_timer(conn);
        pn_wait(conn, -1);
    }
}

/* A slot that a commit does not concern is neither read nor written nor woken, however often. */
static void test_the_uninterested_are_left_alone(void)
{
    enum { IDLERS = 5 };
    pid_t pid[IDLERS];
    struct QueueBackendStatus before[IDLERS];
    engine = test_engine(NULL);
    struct pn_segment *seg = test_inside();
    for (int i = 0; i < IDLERS; i++) {
        pid[i] = spawn(idler, NULL);
        test_hear(to_parent);
    }
    for (uint32_t i = 0; i < IDLERS; i++)
        CHECK_SOON(asleep(i));
    pn_conn *reader = test_connect(engine), *conn = test_connect(engine);
    test_listen(reader, "c");
    for (uint32_t i = 0; i < IDLERS; i++) /* they watch, and know of the two newcomers */
        CHECK_SOON(pn_slot_watches(&seg->backend[i]) &&
                   pn_load_acquire(&seg->backend[i].pss_signalFlags[PROCSIG_NEIGHBOUR]) == 0);
    memcpy((void *) before, (const void *) seg->backend, sizeof before);
    pn_stat was = test_stat(engine);
    for (int i = 0; i < 20000; i++) { /* many times around the ring, so the tail moves too */
        CHECK_OK(test_notify(conn, "c", "for the reader, which reads it now and then"));
        if (i % 500 == 0) {
            pn_batch *batch = pn_batch_new();
            CHECK_OK(pn_poll(reader, batch, 0));
            CHECK_EQ(pn_poll(reader, batch, 0), 0);
            pn_batch_free(batch);
        }
    }
    CHECK(memcmp((const void *) before, (const void *) seg->backend, sizeof before) == 0);
    pn_stat now = test_stat(engine);
    CHECK_EQ(now.slot_writes, was.slot_writes + 20000); /* the reader's */
    CHECK(now.head > 2 * seg->ring_bytes);
    for (int i = 0; i < IDLERS; i++) {
        kill(pid[i], SIGKILL);
        CHECK_KILLED(pid[i], SIGKILL);
    }
    CHECK_ENGINE(engine);
    pn_conn_close(reader);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

/* A quiet slot is left asleep, and where it stands, by poll() and by wait() that find nothing. */
static void test_looking_in_vain_moves_nothing(void)
{
    engine = test_engine(NULL);
    pn_conn *conn = test_connect(engine), *other = test_connect(engine);
    struct pn_segment *seg = test_inside();
    test_listen(conn, "c");
    test_listen(other, "d");
    uint64_t pos = pn_load_relaxed(&seg->backend[0].pos);
    for (int i = 0; i < 100; i++) {
        CHECK_OK(test_notify(other, "d", "x"));
        CHECK_POLL(conn, "");
        int rc = pn_wait(conn, 0);
        CHECK(rc == 0 || rc == -EINTR);
        CHECK_EQ(pn_load_relaxed(&seg->backend[0].pos), pos);
    }
    CHECK(pn_load_relaxed(&seg->ctl->head) > (pos & ~PN_ASLEEP));
    CHECK_OK(test_notify(other, "c", "y"));
    CHECK_POLL(conn, "y");
    pn_conn_close(conn);
    pn_conn_close(other);
    pn_engine_close(engine);
}

/*
 * The race itself, step by step: something is committed after the listener's last look and before
 * its ASLEEP, so the notifier sees it awake and does not signal.  It must look again.
 */
static void test_falling_asleep_looks_again(void)
{
    engine = test_engine(NULL);
    pn_conn *conn = test_connect(engine), *other = test_connect(engine);
    test_listen(conn, "c");
    for (int i = 0; i < 10; i++) {
        CHECK_OK(test_notify(other, "c", "1"));
        CHECK_POLL(conn, "1");
        uint64_t pos = pn_load_relaxed(&conn->me->pos);
        CHECK((pos & PN_ASLEEP) == 0);
        uint64_t sent = test_stat(engine).signals_sent;
        CHECK_OK(test_notify(other, "c", "2"));
        CHECK_EQ(test_stat(engine).signals_sent, sent);
        CHECK(!pn_fall_asleep(conn, pos));
        CHECK((pn_load_relaxed(&conn->me->pos) & PN_ASLEEP) == 0);
        CHECK_POLL(conn, "2");
        CHECK(pn_fall_asleep(conn, pn_load_relaxed(&conn->me->pos)));
    }
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_conn_close(other);
    pn_engine_close(engine);
}

/* And its mirror: `want` is raised and the notifier has not looked yet.  A reader that looks wakes
 * itself, at `from`, behind the tail's reach; the notifier then finds it awake. */
static void test_waking_oneself_starts_at_from(void)
{
    engine = test_engine(NULL);
    pn_conn *conn = test_connect(engine), *other = test_connect(engine);
    struct pn_segment *seg = test_inside();
    test_listen(conn, "c");
    test_listen(other, "d");
    CHECK_POLL(conn, "");
    for (int i = 0; i < 20000; i++) { /* the tail goes on, far beyond our pos */
        CHECK_OK(test_notify(other, "d", "some forty bytes of payload for the ring"));
        if (i % 1000 == 0) {
            pn_batch *batch = pn_batch_new();
            while (pn_poll(other, batch, 0) > 0)
                ;
            pn_batch_free(batch);
        }
    }
    CHECK((pn_load_relaxed(&conn->me->pos) & ~PN_ASLEEP) < pn_load_relaxed(&seg->ctl->tail));
    uint64_t begin = pn_load_relaxed(&seg->ctl->head);
    CHECK_OK(test_notify(other, "c", "x"));
    pn_store_relaxed(&conn->me->pos, 0 | PN_ASLEEP); /* as before the notifier's CAS */
    CHECK(pn_wake_self(conn));
    CHECK_EQ(pn_load_relaxed(&conn->me->pos), begin);
    CHECK_POLL(conn, "x");
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_conn_close(other);
    pn_engine_close(engine);
}

/* ---- the notifier that died between un-sleeping and signalling (R2) -------------------------- */

/* The slot is awake and owed, but no signal was sent: the next commit sends it, once it is old. */
static void test_owed_signals_are_sent_by_the_next(void)
{
    engine = test_engine(NULL);
    pid_t pid = spawn(sleeper, NULL);
    test_hear(to_parent);
    pn_conn *conn = test_connect(engine);
    struct pn_segment *seg = test_inside();
    CHECK_SOON(asleep(0) && is_blocked(pid));
    CHECK_OK(pn_lock_acquire(seg, &test_hold, PN_LOCK_FOREVER));
    struct QueueBackendStatus *slot = &seg->backend[0];
    long_ago(0);
    pn_fetch_or(&seg->owed[0], 1);
    uint64_t pos = pn_load_relaxed(&slot->pos);
    CHECK(pn_cas_u64(&slot->pos, &pos, pn_load_relaxed(&seg->ctl->head)));
    seg->pinning[0] |= 1;
    pn_lock_release(seg);
    pn_stat before = test_stat(engine);
    for (int i = 0; i < 101; i++)
        CHECK_OK(test_notify(conn, "c", "x"));
    test_hear(to_parent); /* it woke, though no process un-slept it now */
    CHECK(test_stat(engine).signals_sent > before.signals_sent);
    test_tell(to_child);
    test_hear(to_parent);
    CHECK_EQ(seg->owed[0] & 1, 0);
    kill(pid, SIGKILL);
    CHECK_KILLED(pid, SIGKILL);
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static void idle(void *arg)
{
    (void) arg;
    test_connect(engine);
    test_tell(to_parent);
    for (;;)
        pause();
}

/* No process commits any more: the slow timer of any listener sends it. */
static void test_owed_signals_are_sent_by_the_slow_timer(void)
{
    engine = test_engine(NULL);
    pid_t first = spawn(idle, NULL); /* the sleeper's slot should not be 0, as other things are */
    test_hear(to_parent);
    pid_t pid = spawn(sleeper, NULL);
    test_hear(to_parent);
    pn_conn *conn = test_connect(engine);
    struct pn_segment *seg = test_inside();
    test_listen(conn, "other");
    CHECK_SOON(asleep(1) && is_blocked(pid));
    struct QueueBackendStatus *slot = &seg->backend[1];
    CHECK_OK(pn_lock_acquire(seg, &test_hold, PN_LOCK_FOREVER));
    pn_store_relaxed(&slot->signalled_at, (uint64_t) (test_now_ns() - INT64_C(10000000000)));
    pn_fetch_or(&seg->owed[0], 2);
    uint64_t pos = pn_load_relaxed(&slot->pos);
    CHECK(pn_cas_u64(&slot->pos, &pos, pn_load_relaxed(&seg->ctl->head)));
    seg->pinning[0] |= 2;
    pn_lock_release(seg);
    pn_stat before = test_stat(engine);
    for (int ticks = 0; ticks < 10; ticks++) {
        conn->next_timer_ns = 0;
        CHECK_EQ(test_wait(conn, -1), -EINTR);
    }
    CHECK(test_stat(engine).signals_sent > before.signals_sent);
    CHECK_SOON((pn_load_acquire(&seg->owed[0]) & 2) == 0); /* it woke, and looked */
    kill(pid, SIGKILL);
    CHECK_KILLED(pid, SIGKILL);
    kill(first, SIGKILL);
    CHECK_KILLED(first, SIGKILL);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

/* ---- many sleepers --------------------------------------------------------------------------- */

enum trouble { DEAD, POLLING, STOPPED, NONE };
enum { HEADS = 3, SLEEPERS = 8 };

static void headed(void *arg)
{
    pn_conn *conn;
    CHECK_OK(pn_connect(engine, "db", 2, (enum trouble)(uintptr_t) arg == POLLING ? -1 : 0, NULL,
                        &conn));
    test_listen(conn, "c");
    CHECK_POLL(conn, "");
    test_tell(to_parent);
    for (;;)
        pause();
}

static void one_of_many(void *arg)
{
    (void) arg;
    pn_conn *conn = test_connect(engine);
    pn_batch *batch = pn_batch_new();
    test_listen(conn, "c");
    test_tell(to_parent);
    for (;;) {
        pn_wait(conn, -1); /* here the slow timer may help, but it must not be needed */
        int64_t n = pn_poll(conn, batch, 0);
        CHECK_OK(n);
        for (int64_t i = 0; i < n; i++)
            test_tell(to_parent);
    }
}

/*
 * Those that are woken first (the lowest slots) may be dead, or never signalled, or stopped:
 * no other may have to wait for its slow timer because of that.  Only the broadcast that
 * un-sleeps the stopped ones may be late: it cannot be known yet.
 */
static void broadcast_past(enum trouble trouble, int burst)
{
    enum { ROUNDS = 20 };
    const struct timespec pace = {.tv_nsec = 200000};
    pid_t head[HEADS], pid[SLEEPERS];
    int64_t worst = 0;
    engine = test_engine(NULL);
    for (int i = 0; i < HEADS; i++) {
        head[i] = spawn(headed, (void *) (uintptr_t) trouble);
        test_hear(to_parent);
    }
    for (int i = 0; i < SLEEPERS; i++) {
        pid[i] = spawn(one_of_many, NULL);
        test_hear(to_parent);
    }
    for (int i = 0; i < HEADS; i++)
        if (trouble == DEAD || trouble == STOPPED)
            kill(head[i], trouble == DEAD ? SIGKILL : SIGSTOP);
    pn_conn *conn = test_connect(engine);
    for (int round = 0; round < ROUNDS; round++) {
        for (uint32_t i = 0; i < SLEEPERS; i++)
            CHECK_SOON(asleep(HEADS + i));
        for (int i = 0; i < burst; i++) {
            if (i > 0)
                nanosleep(&pace, NULL); /* a stream, in which they fall asleep now and then */
            CHECK_OK(test_notify(conn, "c", "to all"));
        }
        int64_t start = test_now_ns();
        for (int i = 0; i < SLEEPERS * burst; i++)
            test_hear(to_parent);
        int64_t took = test_now_ns() - start;
        if (trouble != STOPPED || round > 0)
            worst = took > worst ? took : worst;
    }
    for (int i = 0; i < HEADS; i++) {
        kill(head[i], SIGKILL);
        CHECK_KILLED(head[i], SIGKILL);
    }
    for (int i = 0; i < SLEEPERS; i++) {
        kill(pid[i], SIGKILL);
        CHECK_KILLED(pid[i], SIGKILL);
    }
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
    if (worst > 250000000)
        FAIL("a broadcast took %d ms", (int) (worst / 1000000));
}

static void test_a_broadcast_reaches_all_at_once(void)
{
    broadcast_past(NONE, 1);
    broadcast_past(NONE, 20);
}

static void test_a_broadcast_past_dead_listeners(void)
{
    broadcast_past(DEAD, 1);
    broadcast_past(DEAD, 20);
}

static void test_a_broadcast_past_listeners_that_are_never_signalled(void)
{
    broadcast_past(POLLING, 1);
    broadcast_past(POLLING, 20);
}

static void test_a_broadcast_past_stopped_listeners(void)
{
    broadcast_past(STOPPED, 1);
    broadcast_past(STOPPED, 20);
}

/* ---- the latch ------------------------------------------------------------------------------- */

static int64_t cpu_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (int64_t) ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* A setter whose write comes after its flag was taken: one look in vain, not a busy loop. */
static void test_a_late_write_to_the_latch_is_drained(void)
{
    const uint64_t one = 1;
    engine = test_engine(NULL);
    pn_conn *conn = test_connect(engine);
    struct pollfd fd = {.fd = pn_fileno(conn), .events = POLLIN};
    test_listen(conn, "c");
    CHECK_POLL(conn, "");
    CHECK_POLL(conn, "");
    CHECK_EQ(poll(&fd, 1, 0), 0);
    CHECK_EQ(write(pn_load_relaxed(&conn->efd), &one, sizeof one), sizeof one);
    CHECK_EQ(poll(&fd, 1, 0), 1);
    CHECK_POLL(conn, "");
    CHECK_EQ(poll(&fd, 1, 0), 0);
    CHECK_EQ(write(pn_load_relaxed(&conn->efd), &one, sizeof one), sizeof one);
    int64_t before = cpu_ns();
    no_slow_timer(conn);
    CHECK_EQ(pn_wait(conn, 200000000), -EINTR);
    CHECK_EQ(pn_wait(conn, 200000000), 0);
    CHECK(cpu_ns() - before < 100000000);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

/* A flag whose write was swallowed must not keep the descriptor from becoming readable. */
static void test_a_stale_flag_does_not_deafen(void)
{
    engine = test_engine(NULL);
    pn_conn *conn = test_connect(engine), *other = test_connect(engine);
    pn_batch *batch = pn_batch_new();
    struct pollfd fd = {.fd = pn_fileno(conn), .events = POLLIN};
    test_listen(conn, "c");
    for (uint32_t flag = PN_FD_SIGNALLED; flag <= PN_FD_POSTED; flag++) {
        CHECK_POLL(conn, "");
        CHECK_POLL(conn, "");
        no_slow_timer(conn);
        for (int i = 0; i < 5; i++)
            CHECK_OK(test_notify(other, "c", "x"));
        while (poll(&fd, 1, 0) == 1) { /* take the wake-up away */
            uint64_t count;
            CHECK_EQ(read(pn_load_relaxed(&conn->efd), &count, sizeof count), sizeof count);
        }
        pn_store_relaxed(&conn->fd_flags, flag);
        CHECK_EQ(pn_poll(conn, batch, 2), 2);
        CHECK_EQ(poll(&fd, 1, 0), 1); /* three are unread */
        CHECK_EQ(pn_poll(conn, batch, 0), 3);
        CHECK_OK(test_notify(other, "c", "y"));
        CHECK_EQ(poll(&fd, 1, 0), 1);
        CHECK_POLL(conn, "y");
    }
    pn_batch_free(batch);
    pn_conn_close(conn);
    pn_conn_close(other);
    pn_engine_close(engine);
}

int main(void)
{
    test_watchdog(115);
    CHECK_EQ(pipe(to_child), 0);
    CHECK_EQ(pipe(to_parent), 0);
    RUN(test_ping_pong_by_wait);
    RUN(test_ping_pong_by_descriptor);
    RUN(test_ping_pong_by_descriptor_one_by_one);
    RUN(test_bursts_by_wait);
    RUN(test_bursts_by_descriptor);
    RUN(test_one_signal_for_each_sleep);
    RUN(test_a_busy_listener_is_signalled_once);
    RUN(test_the_uninterested_are_left_alone);
    RUN(test_looking_in_vain_moves_nothing);
    RUN(test_falling_asleep_looks_again);
    RUN(test_waking_oneself_starts_at_from);
    RUN(test_owed_signals_are_sent_by_the_next);
    RUN(test_owed_signals_are_sent_by_the_slow_timer);
    RUN_WHERE(robust_mutexes(), test_a_broadcast_reaches_all_at_once);
    RUN_WHERE(robust_mutexes(), test_a_broadcast_past_dead_listeners);
    RUN_WHERE(robust_mutexes(), test_a_broadcast_past_listeners_that_are_never_signalled);
    RUN_WHERE(robust_mutexes(), test_a_broadcast_past_stopped_listeners);
    RUN(test_a_late_write_to_the_latch_is_drained);
    RUN(test_a_stale_flag_does_not_deafen);
    return tests_done();
}
