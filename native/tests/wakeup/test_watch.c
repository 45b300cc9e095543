/*
 * Which process watches which: the walk, which are told when it changes, and the slow timer.  What
 * a watcher does about a death: test_takeover.c.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "neighbours.h"

#include <sys/resource.h>

#include "segment/liveness_files.h"

/* ---- the walk -------------------------------------------------------------------------------- */

static void test_the_walk_ends_at_the_third_that_watches(void)
{
    begin();
    pn_conn *conn = watcher();
    pid_t pid[6];
    for (int i = 0; i < 6; i++)
        pid[i] = start(i != 1); /* the second does not listen */
    walk_again(conn);
    for (int i = 0; i < 4; i++)
        CHECK(sees(conn, pid[i]));
    CHECK(!sees(conn, pid[4]) && !sees(conn, pid[5]));
    CHECK(conn->watch.complete);
    for (int i = 0; i < 6; i++)
        end_process(pid[i]);
    pn_conn_close(conn);
    end();
}

static void test_connections_of_our_own_are_not_watched(void)
{
    begin();
    pn_conn *conn = watcher(), *other = watcher();
    pid_t pid = start(true);
    walk_again(conn);
    CHECK_EQ(conn->watch.n, 1);
    CHECK(sees(conn, pid));
    end_process(pid);
    pn_conn_close(other);
    pn_conn_close(conn);
    end();
}

static void test_more_neighbours_than_it_can_watch(void)
{
    pn_options o = test_options();
    o.max_backends = PN_NEIGHBOURS + 8;
    CHECK_EQ(pipe(up), 0);
    CHECK_EQ(pipe(down), 0);
    engine = test_engine(&o);
    pn_conn *conn = watcher();
    pid_t pid[PN_NEIGHBOURS + 1];
    for (int i = 0; i <= PN_NEIGHBOURS; i++)
        pid[i] = start(false);
    walk_again(conn);
    CHECK_EQ(conn->watch.n, PN_NEIGHBOURS);
    CHECK(!conn->watch.complete); /* and so the slow timer stays at its shortest */
    end_process(pid[0]);
    CHECK_SOON((walk_again(conn), conn->watch.complete));
    CHECK_EQ(conn->watch.n, PN_NEIGHBOURS);
    for (int i = 1; i <= PN_NEIGHBOURS; i++)
        end_process(pid[i]);
    pn_conn_close(conn);
    end();
}

static void test_without_descriptors_the_timer_stands_in(void)
{
    begin();
    pid_t pid = start(true);
    pn_conn *conn = test_connect(engine);
    test_listen(conn, "c");
    CHECK_OK(pn_fileno(conn));
    struct rlimit was, none;
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &was), 0);
    none = was;
    none.rlim_cur = 3;
    pn_store_relaxed(&conn->watch.stale, 1);
    pid_t other = start(true);
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    CHECK_POLL(conn, "");
    CHECK(!conn->watch.complete);
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &was), 0);
    pn_store_relaxed(&conn->watch.stale, 1);
    CHECK_POLL(conn, "");
    CHECK(conn->watch.complete);
    CHECK(sees(conn, pid) && sees(conn, other));
    end_process(pid);
    end_process(other);
    pn_conn_close(conn);
    end();
}

/* Its locks went with the descriptor; it lives on, and does nothing. */
static void watches_and_loses_its_locks(void *arg)
{
    (void) arg;
    pn_conn *conn = watcher();
    test_tell(up);
    test_hear(down);
    close(pn_segment_lock_file(conn->seg, conn->slot));
    test_tell(up);
    pause();
}

static bool lock_is_free(void)
{
    struct pn_hold hold;
    if (pn_lock_try(test_inside(), &hold) != 0)
        return false;
    pn_lock_release(test_inside());
    return true;
}

/* It does nothing from now on, and holds nothing. */
static void stop(pid_t pid)
{
    for (;;) {
        int status;
        CHECK_EQ(kill(pid, SIGSTOP), 0);
        CHECK_EQ(waitpid(pid, &status, WUNTRACED), pid);
        CHECK(WIFSTOPPED(status));
        if (lock_is_free())
            return;
        CHECK_EQ(kill(pid, SIGCONT), 0);
    }
}

static void takes_it_for_dead(void *arg)
{
    (void) arg;
    uint32_t before = pn_load_relaxed(&test_inside()->ctl->members);
    CHECK_EQ(test_stat(engine).backends, 4);
    CHECK_EQ(pn_load_relaxed(&test_inside()->ctl->members), before + 1);
}

/* Walks ended at its slot; no pidfd says that it is gone. */
static void test_a_watcher_that_is_reaped_alive(void)
{
    begin();
    pn_conn *conn = test_connect(engine);
    CHECK_OK(pn_fileno(conn));
    no_slow_timer(conn);
    pid_t first = start(true), second = start(true);
    pid_t loser = spawn(watches_and_loses_its_locks, NULL);
    test_hear(up);
    pid_t last = start(false);
    test_listen(conn, "c");
    CHECK_POLL(conn, "");
    CHECK(sees(conn, loser) && !sees(conn, last));
    CHECK(!readable(conn));
    stop(first); /* or they look at their neighbours late, and reap it */
    stop(second);
    test_tell(down);
    test_hear(up);
    CHECK_CHILD(spawn(takes_it_for_dead, NULL), 0);
    CHECK(!claimed(3));
    CHECK_SOON(readable(conn)); /* told */
    CHECK_POLL(conn, "");
    CHECK(sees(conn, last));
    const pid_t all[] = {first, second, loser, last};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        end_process(all[i]);
    pn_conn_close(conn);
    end();
}

/* ---- telling --------------------------------------------------------------------------------- */

static void test_a_watcher_that_goes_or_unlistens_hands_over_those_behind_it(void)
{
    begin();
    pn_conn *first = watcher(); /* slot 0: the one whose walk becomes longer */
    pid_t pid[2] = {start(true), start(true)};
    pn_conn *goes = watcher(), *stays = watcher();
    pid_t behind = start(true);
    walk_again(first);
    CHECK(sees(first, behind)); /* connections of our own do not count */
    pn_conn_close(goes);
    test_unlisten(stays, "c");
    CHECK(!watches(4));
    walk_again(first);
    CHECK(sees(first, pid[0]) && sees(first, pid[1]) && sees(first, behind));
    for (int i = 0; i < 2; i++)
        end_process(pid[i]);
    end_process(behind);
    pn_conn_close(stays);
    pn_conn_close(first);
    end();
}

static void comes_and_goes(void *arg)
{
    (void) arg;
    pn_conn *conn = watcher();
    test_tell(up);
    char c;
    CHECK_EQ(read(down[0], &c, 1), 1);
    test_unlisten(conn, "c");
    test_tell(up);
    CHECK_EQ(read(down[0], &c, 1), 1);
    pn_conn_close(conn);
    test_tell(up);
    pause();
}

/* Signalled, when it sleeps; each walk is longer than the one before. */
static void test_a_sleeper_walks_on_when_the_end_of_its_walk_goes(void)
{
    begin();
    pid_t sleeper = start(true), go[3];
    for (int i = 0; i < 3; i++) {
        go[i] = spawn(comes_and_goes, NULL);
        test_hear(up);
    }
    pid_t last = start(false);
    for (int i = 0; i < 3; i++) { /* they live, and end no walk any more */
        test_tell(down);
        test_hear(up);
    }
    end_process(last); /* only the sleeper could see it */
    CHECK_SOON(!claimed(4));
    for (int i = 0; i < 3; i++)
        end_process(go[i]);
    end_process(sleeper);
    end();
}

static void test_telling_is_not_counted_as_a_wake_up(void)
{
    begin();
    pid_t pid = start(true);
    pn_stat before = test_stat(engine);
    uint32_t members = pn_load_acquire(&test_inside()->ctl->members);
    pn_conn *conn = test_connect(engine);
    CHECK(pn_load_acquire(&test_inside()->ctl->members) != members);
    pid_t other = start(true);
    CHECK_SOON(watches(0) && asleep(0));
    pn_stat after = test_stat(engine);
    CHECK_EQ(after.signals_sent, before.signals_sent);
    CHECK_EQ(after.wakeups_useless, before.wakeups_useless);
    end_process(pid);
    end_process(other);
    pn_conn_close(conn);
    end();
}

static void listens_and_never_sleeps(void *arg)
{
    (void) arg;
    test_listen(test_connect(engine), "c");
    test_tell(up);
    pause();
}

/* Stopped, so that the flag stays as it was left. */
static void test_only_watchers_are_told(void)
{
    begin();
    pid_t busy = spawn(listens_and_never_sleeps, NULL);
    test_hear(up);
    pid_t sleeper = start(true);
    kill(busy, SIGSTOP);
    kill(sleeper, SIGSTOP);
    CHECK_EQ(waitpid(busy, NULL, WUNTRACED), busy);
    CHECK_EQ(waitpid(sleeper, NULL, WUNTRACED), sleeper);
    pn_store_relaxed(&slot(0)->pss_signalFlags[PROCSIG_NEIGHBOUR], 0);
    pn_store_relaxed(&slot(1)->pss_signalFlags[PROCSIG_NEIGHBOUR], 0);
    pn_conn *conn = test_connect(engine);
    CHECK_EQ(slot(0)->pss_signalFlags[PROCSIG_NEIGHBOUR], 0);
    CHECK_EQ(slot(1)->pss_signalFlags[PROCSIG_NEIGHBOUR], 1);
    pn_conn_close(conn);
    end_process(busy);
    end_process(sleeper);
    end();
}

/* ---- signals of the program's own ------------------------------------------------------------ */

static volatile sig_atomic_t told_to_end;

static void note_end(int signo)
{
    (void) signo;
    told_to_end = 1;
}

static void listens_until_told(void *arg)
{
    pn_conn *conn = test_connect(engine);
    const struct sigaction sa = {.sa_handler = note_end};
    (void) arg;
    CHECK_EQ(sigaction(SIGTERM, &sa, NULL), 0);
    test_listen(conn, "c");
    no_slow_timer(conn);
    test_tell(up);
    while (!told_to_end)
        CHECK_EQ(test_wait(conn, -1), -EINTR);
    pn_conn_close(conn);
}

/* One sleep is ended by both, and nothing is there to read. */
static void test_a_signal_that_comes_with_one_of_ours_is_not_lost(void)
{
    begin();
    pid_t pid = spawn(listens_until_told, NULL);
    test_hear(up);
    CHECK_SOON(watches(0) && asleep(0) && is_blocked(pid));
    kill(pid, SIGSTOP);
    CHECK_EQ(waitpid(pid, NULL, WUNTRACED), pid);
    pn_conn *conn = test_connect(engine);
    CHECK_EQ(slot(0)->pss_signalFlags[PROCSIG_NEIGHBOUR], 1);
    kill(pid, SIGTERM);
    kill(pid, SIGCONT);
    CHECK_CHILD(pid, 0);
    pn_conn_close(conn);
    end();
}

/* ---- the slow timer -------------------------------------------------------------------------- */

static void test_the_timer_slows_down_and_starts_again_with_a_message(void)
{
    begin();
    pn_conn *conn = test_connect(engine);
    test_listen(conn, "c");
    for (int i = 0; i < 8; i++) {
        conn->next_timer_ns = 0;
        CHECK_EQ(test_wait(conn, -1), -EINTR);
    }
    int64_t period = (int64_t) conn->next_timer_ns - test_now_ns();
    CHECK(period > 20000000000 && period < 40000000000);
    CHECK_OK(test_notify(conn, "c", "x"));
    CHECK_EQ(test_wait(conn, -1), 1);
    CHECK_POLL(conn, "x");
    CHECK_EQ(test_wait(conn, 0), 0);
    period = (int64_t) conn->next_timer_ns - test_now_ns();
    CHECK(period < 1300000000);
    pn_conn_close(conn);
    end();
}

static int64_t descriptor_period(pn_conn *conn)
{
    struct itimerspec left;
    CHECK_EQ(timerfd_gettime(conn->tfd, &left), 0);
    return (int64_t) left.it_value.tv_sec * 1000000000 + left.it_value.tv_nsec;
}

static void test_so_does_that_of_the_descriptor(void)
{
    begin();
    pn_conn *conn = test_connect(engine);
    CHECK_OK(pn_fileno(conn));
    test_listen(conn, "c");
    for (int i = 0; i < 8; i++) {
        const struct itimerspec soon = {.it_value = {.tv_nsec = 1}};
        CHECK_EQ(timerfd_settime(conn->tfd, 0, &soon, NULL), 0);
        CHECK_SOON(readable(conn));
        CHECK_POLL(conn, "");
        CHECK(!readable(conn));
    }
    CHECK(descriptor_period(conn) > 20000000000);
    CHECK_OK(test_notify(conn, "c", "x"));
    CHECK_POLL(conn, "x");
    CHECK(descriptor_period(conn) < 2600000000);
    pn_conn_close(conn);
    end();
}

int main(void)
{
    RUN(test_the_walk_ends_at_the_third_that_watches);
    RUN(test_connections_of_our_own_are_not_watched);
    RUN(test_more_neighbours_than_it_can_watch);
    RUN(test_without_descriptors_the_timer_stands_in);
    RUN(test_a_watcher_that_is_reaped_alive);
    RUN(test_a_watcher_that_goes_or_unlistens_hands_over_those_behind_it);
    RUN(test_a_sleeper_walks_on_when_the_end_of_its_walk_goes);
    RUN(test_telling_is_not_counted_as_a_wake_up);
    RUN(test_only_watchers_are_told);
    RUN(test_a_signal_that_comes_with_one_of_ours_is_not_lost);
    RUN(test_the_timer_slows_down_and_starts_again_with_a_message);
    RUN(test_so_does_that_of_the_descriptor);
    return tests_done();
}
