/*
 * A committer that is stopped, or dies, between the steps in which its bumps become visible; the
 * readers meet the real thing, at the crash points of a real commit.
 *
 * No process waits for a stopped committer, and none spins: poll() returns what there is to return,
 * the slot is asleep, the descriptor is not readable, and the slow timer, which could hide a lost
 * wake-up, is put off for ever.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "engine.h"
#include "sleepers.h"

#include <sys/timerfd.h>

#include "backend/generation.h"

static pn_engine *engine;
static pn_conn *reader, *second; /* both listen to "c" */
static uint32_t g, h;            /* g is stored first */
static pid_t committer;
static const char *stop_at;
static uint32_t stop_at_nth;

static uint64_t value(uint32_t index)
{
    return pn_generation_value(engine, index);
}

static uint32_t counter(pn_conn *conn, const char *name)
{
    uint32_t index;
    CHECK_OK(pn_generation(conn, name, strlen(name), &index));
    return index;
}

static void begin(uint32_t signaling)
{
    pn_options o = test_options();
    o.signaling = signaling;
    engine = test_engine(&o);
    reader = test_connect(engine);
    second = test_connect(engine);
    test_listen(reader, "c");
    test_listen(second, "c");
    uint32_t one = counter(reader, "one"), two = counter(reader, "two");
    g = one < two ? one : two;
    h = one < two ? two : one;
    no_slow_timer(reader);
    no_slow_timer(second);
}

static void end(void)
{
    CHECK_EQ(value(g), 2);
    CHECK_EQ(value(h), 1);
    CHECK_ENGINE(engine);
    pn_conn_close(reader);
    pn_conn_close(second);
    pn_engine_close(engine);
}

/* Bumps g twice and h once, and says so on "c". */
static void commit_and_stop(void *arg)
{
    pn_conn *conn = test_connect(engine);
    pn_txn *txn = test_begin(conn);
    (void) arg;
    CHECK_OK(pn_txn_notify(txn, "c", 1, "bumped", 6));
    CHECK_OK(pn_txn_bump(txn, h));
    CHECK_OK(pn_txn_bump(txn, g));
    CHECK_OK(pn_txn_bump(txn, g));
    CHECK_OK(pn_crash_arm(stop_at, stop_at_nth, PN_CRASH_STOP));
    CHECK_OK(pn_txn_commit(txn));
    pn_conn_close(conn);
}

static void start_committer(const char *label, uint32_t nth)
{
    int status;
    stop_at = label;
    stop_at_nth = nth;
    committer = spawn(commit_and_stop, NULL);
    CHECK_EQ(waitpid(committer, &status, WUNTRACED), committer);
    CHECK(WIFSTOPPED(status));
}

static void continue_committer(void)
{
    kill(committer, SIGCONT);
    CHECK_CHILD(committer, 0);
}

static void kill_committer(void)
{
    kill(committer, SIGKILL);
    CHECK_KILLED(committer, SIGKILL);
}

/* An awake slot, as that of a reader that has found something in its last poll(). */
static void make_awake(void)
{
    CHECK_OK(test_notify(second, "c", "first"));
    CHECK_POLL(second, "first");
    CHECK_POLL(reader, "first");
}

/* Told already, and not to be passed yet. */
static void check_held(pn_conn *conn, const char *what_else)
{
    int64_t before = test_now_ns();
    CHECK_POLL(conn, what_else);
    CHECK_POLL(conn, "");
    CHECK(test_now_ns() - before < 1000000000); /* the lock's time-out is ten times that */
    CHECK(asleep(conn->slot));
    CHECK(pn_held_back(conn));
    CHECK(pn_load_acquire(&conn->me->want) > (pn_load_relaxed(&conn->me->pos) & ~PN_ASLEEP));
    CHECK_EQ(pn_wait(conn, 0), 0);
    CHECK_EQ(value(g), 0);
    CHECK_EQ(value(h), 0);
}

static void test_no_value_without_its_commit(void)
{
    begin(PN_SIGNAL_TARGETED);
    start_committer("commit:before-head", 1);
    CHECK_EQ(value(g), 0);
    CHECK_POLL(reader, "");
    continue_committer();
    CHECK_POLL(reader, "bumped");
    CHECK_POLL(second, "bumped");
    end();
}

/* Committed, but no process was told: a reader that is at it for another's sake stops in front. */
static void test_the_first_is_told_and_the_second_not(void)
{
    for (int awake = 0; awake <= 1; awake++) {
        begin(PN_SIGNAL_TARGETED);
        if (awake != 0)
            make_awake();
        start_committer("commit:want", 1);
        check_held(reader, "");
        CHECK_POLL(second, "");
        CHECK_EQ(value(g), 0);
        continue_committer();
        CHECK_EQ(pn_wait(reader, -1), 1);
        CHECK_POLL(reader, "bumped");
        CHECK_POLL(second, "bumped");
        end();
    }
}

/* The committer un-sleeps the reader that it has held back, by signal... */
static void test_held_back_in_wait(void)
{
    for (uint32_t signaling = PN_SIGNAL_TARGETED; signaling <= PN_SIGNAL_BROADCAST; signaling++) {
        begin(signaling);
        make_awake();
        start_committer("commit:want", 2);
        check_held(reader, "");
        check_held(second, "");
        kill(committer, SIGCONT);
        int rc;
        while ((rc = pn_wait(reader, -1)) == -EINTR)
            ;
        CHECK_EQ(rc, 1);
        CHECK_POLL(reader, "bumped");
        CHECK_EQ(value(g), 2);
        CHECK_CHILD(committer, 0);
        CHECK_POLL(second, "bumped");
        end();
    }
}

/* ...and through the descriptor, which is quiet meanwhile. */
static void test_held_back_by_descriptor(void)
{
    begin(PN_SIGNAL_TARGETED);
    CHECK(pn_fileno(reader) >= 0);
    make_awake();
    no_slow_timer(reader);
    start_committer("commit:want", 2);
    CHECK_POLL(reader, ""); /* a neighbour came: it was readable for that */
    CHECK(!readable(reader));
    check_held(reader, "");
    CHECK(!readable(reader));
    continue_committer();
    CHECK_SOON(readable(reader));
    CHECK_POLL(reader, "bumped");
    CHECK_POLL(second, "bumped");
    end();
}

/* What lies before is returned, whole or in pieces. */
static void test_what_lies_before_is_returned(void)
{
    pn_batch *batch = pn_batch_new();
    begin(PN_SIGNAL_TARGETED);
    CHECK(pn_fileno(second) >= 0);
    no_slow_timer(second);
    CHECK_OK(test_notify(reader, "c", "0"));
    CHECK_OK(test_notify(reader, "c", "1"));
    CHECK_OK(test_notify(reader, "c", "2"));
    start_committer("commit:want", 2);
    check_held(reader, "0 1 2");
    CHECK_EQ(pn_poll(second, batch, 2), 2);
    CHECK(readable(second));
    CHECK_EQ(pn_poll(second, batch, 2), 1);
    CHECK(!readable(second));
    check_held(second, "");
    continue_committer();
    CHECK_POLL(reader, "bumped");
    CHECK_POLL(second, "bumped");
    pn_batch_free(batch);
    end();
}

/* One that has read the first counter finds the message, and then reads the second one, too. */
static void test_stopped_between_two_counters(void)
{
    for (int awake = 0; awake <= 1; awake++) {
        begin(PN_SIGNAL_TARGETED);
        if (awake != 0)
            make_awake();
        start_committer("commit:generation", 1);
        CHECK_EQ(value(g), 2);
        CHECK_EQ(value(h), 0);
        CHECK_POLL(reader, "bumped");
        CHECK_EQ(value(h), 1); /* helped */
        CHECK_POLL(second, "bumped");
        continue_committer();
        CHECK_EQ(value(h), 1);
        end();
    }
}

/* No reader is un-slept before it can see the counters: it might fall asleep again, held back. */
static void test_counters_are_stored_before_a_reader_is_woken(void)
{
    static const char *const labels[] = {"commit:owed", "commit:unslept"};
    for (int i = 0; i < 2; i++) {
        begin(PN_SIGNAL_TARGETED);
        start_committer(labels[i], 1);
        CHECK_EQ(value(g), 2);
        CHECK_EQ(value(h), 1);
        CHECK_POLL(reader, "bumped");
        continue_committer();
        CHECK_POLL(second, "bumped");
        end();
    }
}

/* The whole is announced, only the signals are missing. */
static void test_stopped_after_the_counters(void)
{
    static const char *const labels[] = {"commit:before-woken", "commit:after-woken"};
    for (int i = 0; i < 2; i++) {
        begin(PN_SIGNAL_TARGETED);
        start_committer(labels[i], 1);
        CHECK_EQ(value(g), 2);
        CHECK_EQ(value(h), 1);
        CHECK_POLL(reader, "bumped");
        continue_committer();
        CHECK_POLL(second, "bumped");
        end();
    }
}

/* Only a reader that polls is there: it repairs itself. */
static void test_a_dead_committer_does_not_hold_back(void)
{
    static const char *const labels[] = {"commit:want", "commit:want", "commit:generation"};
    static const uint32_t nth[] = {1, 2, 2};
    for (int i = 0; i < 3; i++) {
        begin(PN_SIGNAL_TARGETED);
        make_awake();
        start_committer(labels[i], nth[i]);
        kill_committer();
        CHECK_POLL(reader, "bumped");
        CHECK_EQ(value(g), 2);
        CHECK_EQ(value(h), 1);
        CHECK_POLL(second, "bumped");
        end();
    }
}

/*
 * A committer is stopped, and killed, between a counter's time and its value: the time is ahead for
 * that long, a value is never without its time, and the reader does not undo what a repair stored.
 */
static void test_the_time_comes_before_the_value(void)
{
    for (uint32_t nth = 1; nth <= 2; nth++) {
        begin(PN_SIGNAL_TARGETED);
        make_awake();
        start_committer("commit:time", nth);
        uint32_t ahead = nth == 1 ? g : h;
        CHECK(pn_generation_changed_ns(engine, ahead) != 0);
        CHECK_EQ(value(ahead), 0);
        CHECK_EQ(pn_generation_changed_ns(engine, h) != 0, nth == 2);
        int64_t time = pn_generation_changed_ns(engine, g);
        if (nth == 2) { /* the first has come so far: a reader stores the second */
            CHECK_POLL(reader, "bumped");
            CHECK_EQ(value(h), 1);
        }
        int64_t of_h = pn_generation_changed_ns(engine, h);
        kill_committer();
        CHECK_POLL(reader, nth == 1 ? "bumped" : "");
        CHECK_POLL(second, "bumped");
        if (nth == 2) { /* repaired, and nothing was stored again */
            CHECK_EQ(pn_generation_changed_ns(engine, g), time);
            CHECK_EQ(pn_generation_changed_ns(engine, h), of_h);
        }
        CHECK(pn_generation_changed_ns(engine, h) != 0);
        end();
    }
}

/* A reader was faster than the committer: its time is there with its value. */
static void test_a_reader_stores_the_time_too(void)
{
    begin(PN_SIGNAL_TARGETED);
    make_awake();
    start_committer("commit:generation", 1);
    CHECK_EQ(pn_generation_changed_ns(engine, h), 0);
    CHECK_POLL(reader, "bumped");
    CHECK_EQ(value(h), 1);
    CHECK(pn_generation_changed_ns(engine, h) != 0);
    continue_committer();
    CHECK_POLL(second, "bumped");
    end();
}

/* Held back by a living one, which dies then: the next poll() finds out. */
static void test_the_stopped_committer_dies(void)
{
    begin(PN_SIGNAL_TARGETED);
    make_awake();
    start_committer("commit:want", 2);
    check_held(reader, "");
    check_held(second, "");
    kill_committer();
    CHECK_POLL(reader, "bumped");
    CHECK_EQ(pn_wait(second, 0) & ~PN_NOTICE, 1); /* un-slept by the recovery */
    CHECK_POLL(second, "bumped");
    CHECK_EQ(test_stat(engine).recoveries, 1);
    end();
}

/* As in a commit: a process that sees a value in the middle of a repair is wanted already. */
static void repair_and_stop(void *arg)
{
    pn_stat stat;
    (void) arg;
    CHECK_OK(pn_crash_arm(stop_at, stop_at_nth, PN_CRASH_STOP));
    CHECK_OK(pn_engine_stat(engine, &stat, NULL, 0));
}

static void test_stopped_in_the_repair(void)
{
    static const char *const labels[] = {"recover:applied", "recover:want", "recover:want",
                                         "recover:generation", "recover:unslept"};
    static const uint32_t nth[] = {1, 1, 2, 1, 1};
    for (int i = 0; i < 5; i++) {
        int status;
        begin(PN_SIGNAL_TARGETED);
        start_committer("commit:after-head", 1);
        kill_committer();
        stop_at = labels[i];
        stop_at_nth = nth[i];
        pid_t pid = spawn(repair_and_stop, NULL);
        CHECK_EQ(waitpid(pid, &status, WUNTRACED), pid);
        CHECK(WIFSTOPPED(status));
        uint64_t seen = value(g);
        CHECK_EQ(seen, i < 3 ? 0 : 2);
        CHECK_POLL(second, seen == 0 ? "" : "bumped");
        CHECK_POLL(reader, seen == 0 ? "" : "bumped");
        kill(pid, SIGCONT);
        CHECK_CHILD(pid, 0);
        CHECK_POLL(second, seen == 0 ? "bumped" : "");
        CHECK_POLL(reader, seen == 0 ? "bumped" : "");
        end();
    }
}

/* Another database is not concerned, though it reads across the entries. */
static void test_other_databases_are_not_held_back(void)
{
    pn_conn *other;
    begin(PN_SIGNAL_TARGETED);
    CHECK_OK(pn_connect(engine, "other", 5, 0, NULL, &other));
    test_listen(other, "c");
    CHECK_OK(test_notify(other, "c", "own"));
    start_committer("commit:want", 2);
    CHECK_POLL(other, "own");
    CHECK(!pn_held_back(other));
    continue_committer();
    CHECK_POLL(reader, "bumped");
    CHECK_POLL(second, "bumped");
    pn_conn_close(other);
    end();
}

static int up[2], down[2];

static void read_and_die(void *arg)
{
    pn_conn *conn = test_connect(engine);
    pn_batch *batch = pn_batch_new();
    (void) arg;
    test_listen(conn, "c");
    test_tell(up);
    test_hear(down);
    CHECK_OK(pn_crash_arm("read:time", 1, PN_CRASH_KILL));
    pn_poll(conn, batch, 0);
}

/* A reader that stores for a stopped committer dies between the two: the committer goes on, or a
 * repair, or the next reader. */
static void test_a_reader_is_killed_between_time_and_value(void)
{
    for (int committer_lives = 0; committer_lives <= 1; committer_lives++) {
        CHECK_EQ(pipe(up), 0);
        CHECK_EQ(pipe(down), 0);
        begin(PN_SIGNAL_TARGETED);
        make_awake();
        pid_t pid = spawn(read_and_die, NULL);
        test_hear(up);
        start_committer("commit:generation", 1);
        test_tell(down);
        CHECK_KILLED(pid, SIGKILL);
        CHECK_EQ(value(h), 0);
        CHECK(pn_generation_changed_ns(engine, h) != 0);
        CHECK_POLL(reader, "bumped");
        CHECK_EQ(value(h), 1);
        committer_lives != 0 ? continue_committer() : kill_committer();
        CHECK_POLL(second, "bumped");
        end();
        for (int i = 0; i < 2; i++) {
            close(up[i]);
            close(down[i]);
        }
    }
}

int main(void)
{
    RUN(test_no_value_without_its_commit);
    RUN(test_the_first_is_told_and_the_second_not);
    RUN(test_held_back_in_wait);
    RUN(test_held_back_by_descriptor);
    RUN(test_what_lies_before_is_returned);
    RUN(test_stopped_between_two_counters);
    RUN(test_counters_are_stored_before_a_reader_is_woken);
    RUN(test_stopped_after_the_counters);
    RUN(test_a_dead_committer_does_not_hold_back);
    RUN(test_the_time_comes_before_the_value);
    RUN(test_a_reader_stores_the_time_too);
    RUN(test_a_reader_is_killed_between_time_and_value);
    RUN(test_the_stopped_committer_dies);
    RUN(test_stopped_in_the_repair);
    RUN(test_other_databases_are_not_held_back);
    return tests_done();
}
