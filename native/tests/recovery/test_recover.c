/* The writer lock: a process that dies with it, whatever it left, and one that only keeps it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "engine.h"

#include <pthread.h>
#include <sys/resource.h>

#include "backend/channel.h"
#include "kernel.h"
#include "queue/queue.h"

static pn_engine *engine;
static pn_conn *conn;
static struct pn_segment *seg;
static int up[2], down[2];

static void begin(void)
{
    CHECK_EQ(pipe(up), 0);
    CHECK_EQ(pipe(down), 0);
    engine = test_engine(NULL);
    seg = test_inside();
    conn = test_connect(engine);
    test_listen(conn, "c");
}

static void end(void)
{
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
    for (int i = 0; i < 2; i++) {
        close(up[i]);
        close(down[i]);
    }
}

static void *take_and_exit(void *arg)
{
    CHECK_OK(pn_lock_acquire(arg, &test_hold, PN_LOCK_FOREVER));
    return NULL;
}

/* A thread's end is as the death of its process: the lock is free, the state is repaired. */
static void test_a_thread_ends_with_the_lock(void)
{
    pthread_t thread;
    begin();
    for (uint64_t i = 1; i <= 3; i++) {
        CHECK_EQ(pthread_create(&thread, NULL, take_and_exit, seg), 0);
        CHECK_EQ(pthread_join(thread, NULL), 0);
        CHECK_OK(test_notify(conn, "c", "x"));
        CHECK_POLL(conn, "x");
        CHECK_EQ(test_stat(engine).recoveries, i);
        CHECK_EQ(test_stat(engine).backends, 1); /* the process lives: its slot is not reaped */
    }
    end();
}

/* ---- what the dead left half done ------------------------------------------------------------ */

static void wrong_sums(void)
{
    seg->ctl->reserved += 12345; /* between the slot's and the segment's */
}

static void dirty_index(void)
{
    seg->ctl->index_dirty = 1;
    memset(seg->bucket, 0xff, seg->buckets * sizeof *seg->bucket);
    for (uint32_t i = 0; i < seg->max_channels; i++)
        pn_channel_at(seg, i)->numListeners = 99;
    seg->ctl->free_subscription = 0;
    seg->ctl->free_channel = 0;
}

/* Committed, but nothing that follows from it was stored. */
static QueuePosition announced;

static void unannounced(void)
{
    struct GlobalChannelEntry *e =
        pn_channel_find_locked(seg, pn_channel_hash(conn->dboid, "c", 1), conn->dboid, "c", 1);
    pn_store_relaxed(&seg->ctl->woken, announced);
    seg->ctl->last_xid -= 3;
    e->next_chan_seq -= 3;
}

static void die_with_the_lock(void *arg)
{
    CHECK_OK(pn_lock_acquire(seg, &test_hold, PN_LOCK_FOREVER));
    void (*const *leave)(void) = arg;
    (*leave)();
    raise(SIGKILL);
}

static void left_by_the_dead(void (*leave)(void))
{
    CHECK_KILLED(spawn(die_with_the_lock, &leave), SIGKILL);
}

static void test_sums_are_derived_again(void)
{
    begin();
    pn_txn *txn = test_begin(conn);
    CHECK_OK(pn_txn_notify(txn, "c", 1, "x", 1));
    CHECK_OK(pn_txn_prepare(txn));
    uint64_t reserved = seg->ctl->reserved;
    left_by_the_dead(wrong_sums);
    CHECK_OK(test_notify(conn, "c", "y"));
    CHECK_EQ(seg->ctl->reserved, reserved);
    CHECK_OK(pn_txn_commit(txn));
    CHECK_EQ(seg->ctl->reserved, 0);
    CHECK_POLL(conn, "y x");
    end();
}

static void test_the_index_is_rebuilt(void)
{
    begin();
    test_listen(conn, "d");
    left_by_the_dead(dirty_index);
    CHECK_OK(test_notify(conn, "c", "1"));
    CHECK_OK(test_notify(conn, "d", "2"));
    CHECK_POLL(conn, "1 2");
    end();
}

static void test_what_was_committed_is_announced(void)
{
    begin();
    pn_conn *other = test_connect(engine);
    announced = pn_load_relaxed(&seg->ctl->head);
    for (int i = 0; i < 3; i++)
        CHECK_OK(test_notify(other, "c", "x"));
    pn_store_relaxed(&conn->me->want, announced); /* told to no process: as if asleep and quiet */
    pn_store_relaxed(&conn->me->from, announced);
    pn_store_relaxed(&conn->me->pos, announced | PN_ASLEEP);
    uint64_t xid = seg->ctl->last_xid;
    left_by_the_dead(unannounced);
    CHECK_EQ(test_wait(conn, 0), 0); /* no process has recovered yet */
    CHECK_OK(test_notify(other, "unheard", "recovers"));
    CHECK_EQ(test_wait(conn, 0), 1);
    CHECK_POLL(conn, "x x x");
    CHECK_EQ(seg->ctl->last_xid, xid);
    CHECK_EQ(pn_load_relaxed(&seg->ctl->woken), pn_load_relaxed(&seg->ctl->head));
    pn_batch *batch = pn_batch_new();
    CHECK_OK(test_notify(other, "c", "y"));
    CHECK_EQ(pn_poll(conn, batch, 0), 1);
    CHECK_EQ(batch->seq[0], xid + 1);
    const AsyncQueueEntry *qe =
        (const void *) pn_ring_at(seg, pn_load_relaxed(&seg->ctl->head) - 64);
    CHECK_EQ(qe->chan_seq, 4);
    pn_batch_free(batch);
    pn_conn_close(other);
    end();
}

/* ---- those that wait for it ------------------------------------------------------------------ */

static void keep_the_lock(void *arg)
{
    (void) arg;
    CHECK_OK(pn_lock_acquire(seg, &test_hold, PN_LOCK_FOREVER));
    test_tell(up);
    for (;;)
        pause();
}

static void waiting_notifier(void *arg)
{
    (void) arg;
    pn_conn *mine;
    test_tell(up);
    CHECK_OK(pn_connect(engine, "db", 2, 0, NULL, &mine));
    CHECK_OK(test_notify(mine, "c", "x"));
    pn_conn_close(mine);
}

static void with_waiters(int n)
{
    pid_t pid[8], holder;
    begin();
    holder = spawn(keep_the_lock, NULL);
    test_hear(up);
    for (int i = 0; i < n; i++) {
        pid[i] = spawn(waiting_notifier, NULL);
        test_hear(up);
    }
    test_sleep_ms(n > 0 ? 5 : 0); /* most of them are in the kernel by now; none of it matters */
    kill(holder, SIGKILL);
    CHECK_KILLED(holder, SIGKILL);
    for (int i = 0; i < n; i++)
        CHECK_CHILD(pid[i], 0);
    CHECK_OK(test_notify(conn, "c", "y"));
    pn_batch *batch = pn_batch_new();
    int64_t got = 0, k;
    while ((k = pn_poll(conn, batch, 0)) > 0)
        got += k;
    CHECK_EQ(got, n + 1);
    CHECK_EQ(test_stat(engine).recoveries, 1); /* exactly one of them got to repair */
    pn_batch_free(batch);
    end();
}

static void test_the_holder_dies_with_none_one_and_many_waiting(void)
{
    with_waiters(0);
    with_waiters(1);
    with_waiters(8);
}

/* Stopped is not dead: an error that names it, never a theft; and all is well when it goes on. */
static void test_a_stopped_holder_is_named(void)
{
    char pid_text[32];
    int status;
    begin();
    pid_t pid = spawn(keep_the_lock, NULL);
    test_hear(up);
    kill(pid, SIGSTOP);
    CHECK_EQ(waitpid(pid, &status, WUNTRACED), pid);
    int64_t start = test_now_ns();
    CHECK_EQ(pn_lock_acquire(seg, &test_hold, 100000000), -PN_ELOCK);
    CHECK(test_now_ns() - start >= 100000000);
    snprintf(pid_text, sizeof pid_text, "PID %d\n", (int) pid);
    CHECK(strstr(pn_error_message(), pid_text) != NULL);
    CHECK_POLL(conn, ""); /* readers need no lock */
    CHECK_EQ(pn_lock_try(seg, &test_hold), -EBUSY);
    kill(pid, SIGKILL);
    CHECK_KILLED(pid, SIGKILL);
    CHECK_OK(test_notify(conn, "c", "x"));
    CHECK_POLL(conn, "x");
    end();
}

/* ---- re-entry -------------------------------------------------------------------------------- */

static void test_reentry_is_refused(void)
{
    pn_conn *another;
    pn_stat stat;
    pn_txn *txn;
    begin();
    txn = test_begin(conn);
    CHECK_OK(pn_txn_notify(txn, "c", 1, "x", 1));
    CHECK_OK(pn_lock_acquire(seg, &test_hold, PN_LOCK_FOREVER));
    CHECK_EQ(test_notify(conn, "c", "x"), -EDEADLK);
    CHECK_EQ(pn_txn_prepare(txn), -EDEADLK);
    CHECK_EQ(pn_txn_commit(txn), -EDEADLK);
    CHECK_EQ(pn_engine_stat(engine, &stat, NULL, 0), -EDEADLK);
    CHECK_EQ(pn_connect(engine, "db", 2, 0, NULL, &another), -EDEADLK);
    CHECK_POLL(conn, "");
    pn_lock_release(seg);
    CHECK_OK(test_notify(conn, "c", "x"));
    CHECK_POLL(conn, "x");
    end();
}

/* ---- what cannot be repaired ----------------------------------------------------------------- */

static int impossible;

static void impossible_positions(void)
{
    pn_atomic_u64 *word[] = {&seg->ctl->tail, &seg->ctl->woken, &seg->ctl->head};
    pn_store_relaxed(word[impossible], impossible == 2 ? 1ULL << 62 : pn_load_relaxed(word[2]) + 8);
}

static void unknown_kind(void)
{
    AsyncQueueEntry *qe = (void *) pn_ring_at(seg, 0);
    qe->kind = 77;
    pn_store_relaxed(&seg->ctl->woken, 0);
}

static void poisoned(void *arg)
{
    void (*const *leave)(void) = arg;
    pn_batch *batch = pn_batch_new();
    pn_txn *txn;
    int rc;
    begin();
    CHECK_OK(test_notify(conn, "c", "x"));
    left_by_the_dead(*leave);
    CHECK_EQ(test_notify(conn, "c", "x"), -PN_ECORRUPT);
    CHECK(strstr(pn_error_message(), "is corrupt: ") != NULL);
    CHECK_EQ(test_notify(conn, "c", "x"), -PN_ECORRUPT); /* for good, and never a hang */
    CHECK_EQ(pn_poll(conn, batch, 0), -PN_ECORRUPT);
    CHECK_EQ(pn_txn_begin(conn, &txn), -PN_ECORRUPT);
    while ((rc = pn_wait(conn, -1)) == -EINTR)
        ;
    CHECK_EQ(rc, -PN_ECORRUPT);
    pn_batch_free(batch);
    pn_conn_close(conn);
    pn_engine_close(engine);
    test_segments_remove();
}

static void test_impossible_states_poison(void)
{
    void (*leave)(void) = impossible_positions;
    for (impossible = 0; impossible < 3; impossible++)
        CHECK_CHILD(spawn(poisoned, &leave), 0);
    leave = unknown_kind;
    CHECK_CHILD(spawn(poisoned, &leave), 0);
}

/* A sleeper is told that the segment was poisoned, at the latest by its slow timer. */
static void sleep_until_poisoned(void *arg)
{
    int rc;
    (void) arg;
    pn_conn *mine = test_connect(engine);
    test_listen(mine, "c");
    test_tell(up);
    while ((rc = pn_wait(mine, -1)) >= 0 || rc == -EINTR)
        ;
    CHECK_EQ(rc, -PN_ECORRUPT);
    pn_conn_close(mine);
}

static void test_poison_reaches_sleepers_and_blocked_writers(void)
{
    begin();
    pid_t pid = spawn(sleep_until_poisoned, NULL);
    test_hear(up);
    impossible = 1;
    left_by_the_dead(impossible_positions);
    CHECK_EQ(test_notify(conn, "c", "x"), -PN_ECORRUPT);
    CHECK_CHILD(pid, 0);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

/* ---- recovery without memory ----------------------------------------------------------------- */

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/* (the sanitizers' shadow memory does not bear a limit) */
static uint64_t mapped_bytes(void)
{
    unsigned long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    CHECK(f != NULL && fscanf(f, "%llu", &pages) == 1);
    fclose(f);
    return pages * (uint64_t) sysconf(_SC_PAGESIZE);
}

/* A process without memory for the repair must not let another see the segment unrepaired. */
static void recover_without_memory(void *arg)
{
    struct rlimit limit, before;
    pn_conn *mine = arg;
    CHECK_EQ(getrlimit(RLIMIT_AS, &before), 0);
    limit = before;
    limit.rlim_cur = mapped_bytes() + 4096;
    CHECK_EQ(setrlimit(RLIMIT_AS, &limit), 0);
    pn_stat stat;
    int rc = pn_engine_stat(engine, &stat, NULL, 0);
    CHECK_EQ(setrlimit(RLIMIT_AS, &before), 0);
    CHECK(rc == 0 || rc == -ENOMEM);
    CHECK(mine != NULL);
}

static void test_recovery_without_memory_is_not_forgotten(void)
{
    pn_options o = test_options();
    o.max_subscriptions = 1 << 21; /* the rebuild's bitmap is 256 KiB: from mmap, not the heap */
    engine = test_engine(&o);
    seg = test_inside();
    conn = test_connect(engine);
    pn_conn *other = test_connect(engine);
    test_listen(conn, "c");
    left_by_the_dead(dirty_index);
    CHECK_CHILD(spawn(recover_without_memory, conn), 0);
    CHECK_OK(test_notify(other, "c", "x"));
    CHECK_POLL(conn, "x");
    CHECK_ENGINE(engine);
    pn_conn_close(other);
    pn_conn_close(conn);
    pn_engine_close(engine);
}
#endif

/* ---- a kernel that gives the lock of the dead to no other ------------------------------------ */

#if !defined(__SANITIZE_THREAD__) /* which wants no threads of a forked child */
static void *take_and_die(void *arg)
{
    (void) arg;
    CHECK_OK(pn_lock_acquire(seg, &test_hold, PN_LOCK_FOREVER));
    raise(SIGKILL);
    return NULL;
}

static void die_in_a_sandbox(void *arg)
{
    char text[600];
    pthread_t thread;
    (void) arg;
    refuse_call(SYS_set_robust_list, EPERM);
    for (int i = 0; i < 2; i++) { /* it is said, by the first */
        pn_conn *mine;
        CHECK_OK(pn_connect(engine, "db", 2, 0, NULL, &mine));
        int n = pn_conn_notice(mine, text, sizeof text);
        CHECK((n > 0) == (i == 0));
        CHECK(n == 0 || strstr(text, "set_robust_list: Operation not permitted") != NULL);
        CHECK(n == 0 || strstr(text, "(qemu-user) do not have it.") != NULL); /* and whole */
    }
    test_tell(up);
    CHECK_EQ(pthread_create(&thread, NULL, take_and_die, NULL), 0); /* it has no list */
    pthread_join(thread, NULL);
}

static void test_where_the_lock_of_the_dead_is_kept(void)
{
    char pid_text[32], text[600];
    CHECK_EQ(pipe(up), 0);
    engine = test_engine(NULL);
    seg = test_inside();
    pid_t pid = spawn(die_in_a_sandbox, NULL);
    test_hear(up);
    CHECK_KILLED(pid, SIGKILL);
    CHECK_EQ(pn_lock_acquire(seg, &test_hold, 100000000), -PN_ELOCK);
    snprintf(pid_text, sizeof pid_text, "PID %d\n", (int) pid);
    CHECK(strstr(pn_error_message(), pid_text) != NULL);
    pn_engine_close(engine);
    engine = test_engine(NULL);
    CHECK_OK(pn_connect(engine, "db", 2, 0, NULL, &conn));
    CHECK_EQ(pn_conn_notice(conn, text, sizeof text), 0); /* not here */
    pn_conn_close(conn);
    pn_engine_close(engine);
    for (int i = 0; i < 2; i++)
        close(up[i]);
}
#endif

int main(void)
{
    test_watchdog(110);
    RUN_WHERE(robust_mutexes(), test_a_thread_ends_with_the_lock);
    RUN_WHERE(robust_mutexes(), test_sums_are_derived_again);
    RUN_WHERE(robust_mutexes(), test_the_index_is_rebuilt);
    RUN_WHERE(robust_mutexes(), test_what_was_committed_is_announced);
    RUN_WHERE(robust_mutexes(), test_the_holder_dies_with_none_one_and_many_waiting);
    RUN_WHERE(robust_mutexes(), test_a_stopped_holder_is_named);
    RUN(test_reentry_is_refused);
    RUN_WHERE(robust_mutexes(), test_impossible_states_poison);
    RUN_WHERE(robust_mutexes(), test_poison_reaches_sleepers_and_blocked_writers);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    RUN_WHERE(robust_mutexes(), test_recovery_without_memory_is_not_forgotten);
#endif
#if !defined(__SANITIZE_THREAD__)
    RUN_WHERE(seccomp_filters(), test_where_the_lock_of_the_dead_is_kept);
#endif
    return tests_done();
}
