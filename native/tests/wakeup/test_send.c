/* One signal for the slots of a process, however many it has; and which of them proves it. */
#include "children.h"
#include "sleepers.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>

#include "backend/backend.h"
#include "kernel.h"
#include "topic/consume.h"
#include "topics.h"
#include "wakeup/send.h"

enum { SLOTS = 100 }; /* more than a run holds */

static int go[2], later[2];

static void begin_many(void)
{
    pn_options o = test_options();
    o.max_backends = SLOTS + 10;
    CHECK_EQ(pipe(go), 0);
    CHECK_EQ(pipe(later), 0);
    begin_with(&o);
    mine = test_connect(engine);
}

static void end_many(void)
{
    end();
    for (int i = 0; i < 2; i++) {
        close(go[i]);
        close(later[i]);
    }
}

/* The notifier's last commit is long ago, or it was just now. */
static void not_in_a_stream(void)
{
    pn_store_relaxed(&mine->last_commit_ns, 0);
}

static void in_a_stream(void)
{
    pn_store_relaxed(&mine->last_commit_ns, UINT64_MAX >> 1);
}

/* A process of many connections, of which a loop watches the descriptors. */
static void many(void *arg)
{
    pn_conn *conn[SLOTS];
    int fd[SLOTS], n = *(const int *) arg;
    for (int i = 0; i < n; i++) {
        conn[i] = test_connect(engine);
        test_listen(conn[i], "c");
        fd[i] = sleep_on_descriptor(conn[i]);
    }
    test_tell(up);
    for (int i = 0; i < n; i++)
        CHECK(readable_within(fd[i], TEST_PATIENCE_MS));
    test_tell(up);
    test_hear(down);
    for (int i = 0; i < n; i++) {
        CHECK_POLL(conn[i], "x");
        pn_conn_close(conn[i]);
    }
}

static void check_signals(int processes, int slots, void (*how)(void), uint64_t most)
{
    pid_t pid[4];
    begin_many();
    for (int i = 0; i < processes; i++) {
        pid[i] = spawn(many, &slots);
        test_hear(up);
    }
    uint64_t before = test_stat(engine).signals_sent;
    how();
    CHECK_OK(test_notify(mine, "c", "x"));
    for (int i = 0; i < processes; i++)
        test_hear(up);
    uint64_t sent = test_stat(engine).signals_sent - before;
    for (int i = 0; i < processes; i++)
        test_tell(down);
    for (int i = 0; i < processes; i++)
        CHECK_CHILD(pid[i], 0);
    if (sent < (uint64_t) processes || sent > most)
        FAIL("%llu signals for %d slots of %d processes", (unsigned long long) sent,
             processes * slots, processes);
    end_many();
}

static void test_a_signal_for_each_process(void)
{
    check_signals(1, 1, not_in_a_stream, 1);
    check_signals(1, 60, not_in_a_stream, 1);
    check_signals(3, 10, not_in_a_stream, 3);
    check_signals(1, SLOTS, not_in_a_stream, 2);
}

/* Passed on by the handlers: each takes the slots that follow the one that it has found; two that
 * take at once share them. */
static void test_along_the_chain(void)
{
    check_signals(1, 60, in_a_stream, 1);
    check_signals(4, 20, in_a_stream, 20);
    check_signals(4, SLOTS / 4, in_a_stream, 25);
}

/* Of two neighbours the first does not prove to be there any more. */
static void spoil_and_notify(uint32_t slot)
{
    int two = 2;
    begin_many();
    struct pn_segment *seg = test_inside();
    pid_t pid = spawn(many, &two);
    test_hear(up);
    uint64_t before = test_stat(engine).signals_sent;
    struct QueueBackendStatus *backend = &seg->backend[slot];
    uint32_t state = pn_load_relaxed(&backend->state);
    struct pn_send_run run;
    CHECK_OK(pn_lock_acquire(seg, &test_hold, PN_LOCK_FOREVER));
    pn_store_release(&backend->state, PN_SLOT_FREE);
    pn_send_begin(&run, seg);
    pn_send_add(&run, 1);
    pn_send_add(&run, 2);
    CHECK_EQ(pn_send_end(&run), 1);
    pn_store_release(&backend->state, state);
    pn_lock_release(seg);
    CHECK_EQ(test_stat(engine).signals_sent, before + 1);
    not_in_a_stream();
    CHECK_OK(test_notify(mine, "c", "x"));
    test_hear(up);
    test_tell(down);
    CHECK_CHILD(pid, 0);
    end_many();
}

static void test_the_next_one_is_tried(void)
{
    spoil_and_notify(1);
    spoil_and_notify(2);
}

/* The latches of our own connections are set, each. */
static void test_our_own(void)
{
    enum { OWN = 3 };
    pn_conn *conn[OWN];
    int fd[OWN];
    begin_many();
    for (int i = 0; i < OWN; i++) {
        conn[i] = test_connect(engine);
        test_listen(conn[i], "c");
    }
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < OWN; i++)
            fd[i] = sleep_on_descriptor(conn[i]);
        round == 0 ? not_in_a_stream() : in_a_stream();
        CHECK_OK(test_notify(mine, "c", "x"));
        CHECK_EQ(pn_load_relaxed(&test_inside()->owed[0]), 0);
        for (int i = 0; i < OWN; i++) {
            CHECK(readable_within(fd[i], TEST_PATIENCE_MS));
            CHECK_POLL(conn[i], "x");
        }
    }
    for (int i = 0; i < OWN; i++)
        pn_conn_close(conn[i]);
    end_many();
}

/* One, or as many connections as it says. */
static void deaf(void *arg)
{
    enum { MOST = 2 };
    int n = arg == NULL ? 1 : *(const int *) arg;
    pn_conn *conn[MOST];
    for (int i = 0; i < n; i++) {
        conn[i] = test_connect(engine);
        test_listen(conn[i], "c");
        sleep_on_descriptor(conn[i]);
    }
    CHECK(signal(SIGUSR1, SIG_IGN) != SIG_ERR); /* a host that takes the handler away */
    test_tell(up);
    test_hear(down);
    for (int i = 0; i < n; i++) {
        CHECK_POLL(conn[i], "x");
        pn_conn_close(conn[i]);
    }
}

/* Heads of a chain, and behind them a process that is signalled only by way of these. */
static void spawn_chain(pid_t pid[PN_CHAIN + 1], void (*head)(void *), void *arg)
{
    static int one = 1;
    for (int i = 0; i < PN_CHAIN; i++) {
        pid[i] = spawn(head, arg);
        test_hear(up);
    }
    pid[PN_CHAIN] = spawn(many, &one);
    test_hear(up);
}

/* Both heads of the chain cannot be signalled; our own latches, set as well, pass nothing on. */
static void test_our_own_are_no_heads(void)
{
    enum { OWN = 2 };
    pn_conn *conn[OWN];
    pid_t pid[PN_CHAIN + 1];
    begin_many();
    for (int i = 0; i < OWN; i++) {
        conn[i] = test_connect(engine);
        test_listen(conn[i], "c");
        sleep_on_descriptor(conn[i]);
    }
    spawn_chain(pid, deaf, NULL);
    in_a_stream();
    CHECK_OK(test_notify(mine, "c", "x"));
    test_hear(up);
    for (int i = 0; i <= PN_CHAIN; i++)
        test_tell(down);
    for (int i = 0; i <= PN_CHAIN; i++)
        CHECK_CHILD(pid[i], 0);
    for (int i = 0; i < OWN; i++)
        pn_conn_close(conn[i]);
    end_many();
}

/* A process at its limit: what it closes it may open again. */
static void use_up_descriptors(void)
{
    struct rlimit limit;
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = 64;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    while (dup(STDERR_FILENO) >= 0)
        ;
    CHECK_EQ(errno, EMFILE);
}

/* Signalled, but its handler never runs: it closes before; perhaps without a descriptor left. */
static void closes_unheard(void *without)
{
    sigset_t blocked;
    pn_conn *conn = test_connect(engine);
    test_listen(conn, "c");
    sleep_on_descriptor(conn);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    CHECK_EQ(pthread_sigmask(SIG_BLOCK, &blocked, NULL), 0);
    if (*(const bool *) without)
        use_up_descriptors();
    test_tell(up);
    test_hear(go);
    pn_conn_close(conn);
    test_tell(up);
    test_hear(later); /* a process that ends tells those that watch it */
}

/* Both heads of the chain close before their handlers run (chain.pml). */
static void the_heads_close(bool without_descriptors)
{
    pid_t pid[PN_CHAIN + 1];
    begin_many();
    spawn_chain(pid, closes_unheard, &without_descriptors);
    /* so that it is not told that its neighbours go */
    pn_store_relaxed(&test_inside()->backend[PN_CHAIN + 1].watches, 0);
    uint64_t before = test_stat(engine).signals_sent;
    in_a_stream();
    CHECK_OK(test_notify(mine, "c", "x"));
    CHECK_EQ(test_stat(engine).signals_sent, before + PN_CHAIN); /* none of them to the third */
    for (int i = 0; i < PN_CHAIN; i++)
        test_tell(go); /* the third would take what comes by `down` for a head that is late */
    for (int i = 0; i <= PN_CHAIN; i++)
        test_hear(up);
    for (int i = 0; i < PN_CHAIN; i++)
        test_tell(later); /* a pipe of its own, or the first to close took what is for the second */
    test_tell(down);
    for (int i = 0; i <= PN_CHAIN; i++)
        CHECK_CHILD(pid[i], 0);
    end_many();
}

static void test_a_listener_that_closes_passes_on(void)
{
    the_heads_close(false);
}

static void test_so_does_one_without_descriptors(void)
{
    the_heads_close(true);
}

static uint32_t flag_of(uint32_t slot)
{
    return pn_load_relaxed(&test_inside()->backend[slot].pss_signalFlags[PROCSIG_NOTIFY_INTERRUPT]);
}

/* A flag without a signal would have a foreign raise() be taken for ours. */
static void test_without_a_descriptor_no_flag_is_set(void)
{
    enum { SOME = 5 };
    int some = SOME;
    struct rlimit before, none;
    begin_many();
    struct pn_segment *seg = test_inside();
    pid_t pid = spawn(many, &some);
    test_hear(up);
    for (uint32_t slot = 1; slot <= SOME; slot++)
        pn_fetch_or(&seg->owed[0], 1ULL << slot);
    pn_store_relaxed(&seg->ctl->deferred_at, 1);
    pn_fetch_or(&seg->deferred[0], ((1ULL << SOME) - 1) << 1);
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    CHECK(!pn_procsignal_try_to_pass_on(seg, 0));
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    CHECK_EQ(pn_load_relaxed(&seg->deferred[0]), ((1ULL << SOME) - 1) << 1);
    for (uint32_t slot = 1; slot <= SOME; slot++)
        CHECK_EQ(flag_of(slot), 0);
    CHECK_OK(test_notify(mine, "c", "x"));
    CHECK(pn_procsignal_try_to_pass_on(seg, 0));
    test_hear(up);
    test_tell(down);
    CHECK_CHILD(pid, 0);
    end_many();
}

static void passes_on_in_a_sandbox(void *error)
{
    refuse_call(SYS_pidfd_open, *(const uint32_t *) error);
    CHECK(pn_procsignal_try_to_pass_on(test_inside(), 0));
}

/* It can signal none, and takes none from those that can. */
static void test_a_sandboxed_process_leaves_the_chain_to_others(void)
{
    enum { SOME = 5 };
    int some = SOME;
    begin_many();
    struct pn_segment *seg = test_inside();
    pid_t pid = spawn(many, &some);
    test_hear(up);
    for (uint32_t refused = 0; refused < 2; refused++) {
        uint32_t error = refused == 0 ? EPERM : ENOSYS;
        pn_fetch_or(&seg->owed[0], ((1ULL << SOME) - 1) << 1);
        pn_store_relaxed(&seg->ctl->deferred_at, 1);
        pn_fetch_or(&seg->deferred[0], ((1ULL << SOME) - 1) << 1);
        CHECK_CHILD(spawn(passes_on_in_a_sandbox, &error), 0);
        CHECK_EQ(pn_load_relaxed(&seg->deferred[0]), ((1ULL << SOME) - 1) << 1);
    }
    CHECK_OK(test_notify(mine, "c", "x"));
    CHECK(pn_procsignal_try_to_pass_on(seg, 0));
    test_hear(up);
    test_tell(down);
    CHECK_CHILD(pid, 0);
    end_many();
}

/* Nor of a process that would not catch the signal. */
static void test_what_is_not_signalled_has_no_flag(void)
{
    for (int n = 1; n <= 2; n++) {
        begin_many();
        pid_t pid = spawn(deaf, &n);
        test_hear(up);
        not_in_a_stream();
        CHECK_OK(test_notify(mine, "c", "x"));
        for (uint32_t slot = 1; slot <= (uint32_t) n; slot++) {
            CHECK_EQ(flag_of(slot), 0);
            CHECK(pn_load_relaxed(&test_inside()->owed[0]) >> slot & 1);
        }
        test_tell(down);
        CHECK_CHILD(pid, 0);
        end_many();
    }
}

static void has_no_descriptor_left(void *by_descriptor)
{
    pn_conn *conn = test_connect(engine);
    test_listen(conn, "c");
    int fd = *(const bool *) by_descriptor ? sleep_on_descriptor(conn) : -1;
    if (fd < 0) {
        int rc = test_wait(conn, 1000000); /* makes all that it sleeps on */
        CHECK(rc == 0 || rc == -EINTR);
    }
    conn->next_timer_ns = INT64_MAX;
    use_up_descriptors();
    test_tell(up);
    pn_batch *batch = pn_batch_new();
    for (int64_t n = 0; n == 0;) { /* it is told of neighbours, too */
        if (fd >= 0)
            CHECK(readable_within(fd, TEST_PATIENCE_MS));
        else
            CHECK((n = test_wait(conn, -1)) == 1 || n == -EINTR);
        CHECK((n = pn_poll(conn, batch, 0)) >= 0);
    }
    pn_batch_free(batch);
    test_tell(up);
    test_hear(down);
    pn_conn_close(conn);
}

/* It listens, too; its only thread waits for a message of a topic. */
static void consumes_without_descriptors(void *arg)
{
    (void) arg;
    pn_message_out m;
    pn_consumer_slow_ns = INT64_MAX / 4; /* no timer of its own wakes it */
    pn_conn *conn = test_connect(engine);
    pn_consumer *consumer = consumer_of(conn, channel_of(conn, topic_of(conn, "t"), "w"), 1);
    test_listen(conn, "c");
    CHECK_POLL(conn, "");
    CHECK_EQ(pn_consumer_get(consumer, 1000000, &m), 0); /* makes all that it sleeps on */
    conn->next_timer_ns = INT64_MAX;
    use_up_descriptors();
    test_tell(up);
    int rc = pn_consumer_get(consumer, -1, &m);
    while (rc == -EINTR)
        rc = pn_consumer_get(consumer, -1, &m);
    CHECK_EQ(rc, 1);
    pn_consumer_close(consumer);
    pn_conn_close(conn);
}

/* Both heads of the chain: their handlers cannot pass it on, the threads that they wake do. */
static void the_heads_have_none_left(bool by_descriptor)
{
    pid_t pid[PN_CHAIN + 1];
    begin_many();
    spawn_chain(pid, has_no_descriptor_left, &by_descriptor);
    for (int i = 0; i < PN_CHAIN && !by_descriptor; i++)
        CHECK_SOON(is_blocked(pid[i]) &&
                   pn_load_acquire(&test_inside()->backend[i + 1].pos) & PN_ASLEEP);
    in_a_stream();
    CHECK_OK(test_notify(mine, "c", "x"));
    for (int i = 0; i <= PN_CHAIN; i++)
        test_hear(up);
    for (int i = 0; i <= PN_CHAIN; i++)
        test_tell(down);
    for (int i = 0; i <= PN_CHAIN; i++)
        CHECK_CHILD(pid[i], 0);
    end_many();
}

static void test_heads_without_descriptors(void)
{
    the_heads_have_none_left(true);
    the_heads_have_none_left(false);
}

static void test_heads_without_descriptors_that_consume(void)
{
    pid_t pid[PN_CHAIN + 1];
    int one = 1;
    begin_many();
    for (int i = 0; i < PN_CHAIN; i++) {
        pid[i] = spawn(consumes_without_descriptors, NULL);
        test_hear(up);
    }
    pid[PN_CHAIN] = spawn(many, &one);
    test_hear(up);
    for (int i = 0; i < PN_CHAIN; i++)
        CHECK_SOON(is_blocked(pid[i]));
    in_a_stream();
    CHECK_OK(test_notify(mine, "c", "x"));
    test_hear(up); /* the third */
    for (int i = 0; i < PN_CHAIN; i++)
        publish(mine, topic_of(mine, "t"), "end");
    test_tell(down);
    for (int i = 0; i <= PN_CHAIN; i++)
        CHECK_CHILD(pid[i], 0);
    end_many();
}

int main(void)
{
    test_watchdog(100);
    RUN(test_a_signal_for_each_process);
    RUN(test_along_the_chain);
    RUN(test_the_next_one_is_tried);
    RUN(test_our_own);
    RUN(test_our_own_are_no_heads);
    RUN(test_a_listener_that_closes_passes_on);
    RUN(test_so_does_one_without_descriptors);
    RUN(test_without_a_descriptor_no_flag_is_set);
    RUN_WHERE(seccomp_filters(), test_a_sandboxed_process_leaves_the_chain_to_others);
    RUN(test_what_is_not_signalled_has_no_flag);
    RUN(test_heads_without_descriptors);
    RUN(test_heads_without_descriptors_that_consume);
    return tests_done();
}
