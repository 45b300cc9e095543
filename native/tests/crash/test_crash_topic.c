/*
 * Every crash point of topics, each reached by a process that is killed there by SIGKILL, that
 * exits there, or that is stopped there and continued.
 *
 * A case is a label, which time it is reached, and what happens then.  Three consumers survive, two
 * of one channel and one of another, and a publisher; a victim works until it dies.  One
 * that is stopped holds up no other, unless it has the lock.  Afterwards, without any further help:
 *
 *     progress     a message reaches both channels within PROGRESS_MS
 *     exactness    what was published was finished once in each channel, or is a dead letter, once;
 *                  what was refused, rolled back or never begun was never seen; what the victim
 *                  died in happened to all or to none of it: its messages, in both channels, its
 *                  answer, its notification
 *     one state    none is returned what another has in flight, or has finished
 *     attempts     are the deliveries, each counted once
 *     repair       pn_check() is clean, what the dead had in flight is there at once (all time-outs
 *                  are a minute), and in the end nothing is in any channel
 *
 * The labels come from the program itself, so a new one is tested, or fails the run because no
 * victim has reached it (job_of() says which goes where).  The journal is in anonymous shared
 * memory: it outlives SIGKILL.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "harness.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "backend/conn.h"
#include "topic/consume.h"
#include "topic/consumers.h"
#include "recovery/rebuild_topics.h"
#include "segment/lock.h"
#include "segment/process.h"
#include "segment/segment.h"

enum {
    PROGRESS_MS = 4000, /* a loaded machine; 1 ms is usual */
    MAX_MESSAGES = 32768,
    MAX_TXNS = 4096,
    ROUNDS = 60,
    PARALLEL = 4,
    BIG = 9000
};

#include "crash_topic_labels.h"
#include "topic_journal.h"
#include "topic_day.h"

#include "crash_topic_victims.h"

static struct pn_segment *inside(void)
{
    struct pn_segment *seg = pn_first_segment();
    while (seg != NULL && strcmp(seg->name, segment) != 0)
        seg = seg->next;
    CHECK(seg != NULL);
    return seg;
}

#define VICTIMS_H "crash_topic_victims.h"
#include "crash_case.h"

/* ---- the order of a case --------------------------------------------------------------------- */

static void open_segment(void)
{
    pn_options o;
    pn_options_default(&o);
    o.queue_pages = 64;
    o.max_backends = 12;
    o.max_topics = 16;
    o.max_topic_channels = 32;
    o.max_consumers = 64;
    o.topic_memory = 4 << 20;
    segment = test_segment_name();
    CHECK_OK(pn_open(segment, &o, &engine));
}

static void start_consumers(void)
{
    mine = connect_with(0);
    work = topic_named(mine, "work");
    work_a = channel_named(mine, work, "a");
    work_b = channel_named(mine, work, "b");
    pn_txn *txn;
    CHECK_OK(pn_txn_begin(mine, &txn));
    CHECK_OK(pn_txn_listen(txn, "news", 4));
    CHECK_OK(pn_txn_commit(txn));
    for (uintptr_t i = 0; i < 3; i++)
        consumers[i] = spawn(survivor, (void *) (CONSUMER + i));
    REQUIRE(hear(0, 2, TEST_PATIENCE_MS) && hear(1, 1, TEST_PATIENCE_MS),
            "the consumers did not start");
}

static void say(uint32_t kind)
{
    publish(mine, PARENT, WORK, work, &(struct manner) {.size = 40, .kind = kind});
}

/* Never with the lock in hand. */
static void stop_asleep(pid_t pid)
{
    struct pn_segment *seg = inside();
    CHECK_OK(pn_lock_acquire(seg, &test_hold, PN_LOCK_TIMEOUT_NS));
    kill(pid, SIGSTOP);
    CHECK_EQ(waitpid(pid, NULL, WUNTRACED), pid);
    pn_lock_release(seg);
}

static bool stands_back; /* the consumers, while the victim is to be the first to see a death */

static void let_consumers_on(void)
{
    for (int i = 0; stands_back && i < 3; i++)
        kill(consumers[i], SIGCONT);
    stands_back = false;
}

static void check_beside_the_stopped(void)
{
    if (!lock_is_free_beside_the_stopped(now.victim != recovering && now.victim != reaping))
        return;
    let_consumers_on();
    say(PING_B); /* in channel a it may be the stopped one's turn */
    REQUIRE(hear(1, 1, PROGRESS_MS), "no progress beside the stopped process");
}

/* Serve the victim's stops until it ends.  True: it came to where it should. */
static bool watch_victim(void)
{
    int status = 0;
    bool stopped = false;
    for (;;) {
        CHECK_EQ(waitpid(victim_pid, &status, WUNTRACED), victim_pid);
        if (!WIFSTOPPED(status))
            break;
        stopped = true;
        check_beside_the_stopped();
        atomic_store(&j->stop, 1);
        kill(victim_pid, SIGCONT);
    }
    atomic_fetch_add(&j->deaths, 1);
    return judge_victim(status, stopped);
}

/* ---- what has to hold afterwards ------------------------------------------------------------- */

static void end_case(void)
{
    pn_ref own = topic_named(mine, "own");
    CHECK_OK(pn_topic_pause(mine, own, 0));
    finish_what_is_left(OWN, own, "x", 0);
    finish_what_is_left(OWN, own, "y", 1);
    CHECK_SOON(left_in(work_a) == 0 && left_in(work_b) == 0);
    say(QUIT);
    say(QUIT);
    for (int i = 0; i < 3; i++)
        CHECK_CHILD(consumers[i], 0);
    read_dead_letters();
    hear_news();
    check_segment("at the end");
    check_journal();
    check_nothing_left(work, "work");
    check_nothing_left(own, "own");
    check_nothing_left(topic_named(mine, "dead"), "dead");
    check_segment("after all was deleted");
    pn_conn_close(mine);
    pn_engine_close(engine);
    test_segments_remove();
}

/* A case in a process of its own.  Exits with one of the above. */
static void run_case(void *arg)
{
    (void) arg;
    test_watchdog(60);
    CHECK_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    CHECK_EQ(pipe(heard_from[0]), 0);
    CHECK_EQ(pipe(heard_from[1]), 0);
    open_segment();
    start_consumers();
    say(PLAIN);
    CHECK_SOON(left_in(work_a) == 0 && left_in(work_b) == 0);
    stands_back = now.victim == recovering || now.victim == reaping;
    for (int i = 0; stands_back && i < 3; i++)
        stop_asleep(consumers[i]);
    victim_pid = spawn(victim, NULL);
    bool hit = watch_victim();
    let_consumers_on();
    say(PING);
    REQUIRE(hear(0, 1, PROGRESS_MS) && hear(1, 1, PROGRESS_MS), "no progress after the death");
    check_segment("after the death");
    wait_for_orphans();
    end_case();
    _exit(hit ? HIT : NOT_HIT);
}

/* ---- dying while the area of topics is made -------------------------------------------------- */

static void first_user(void *arg)
{
    (void) arg;
    CHECK_OK(pn_crash_arm(now.label, now.nth, now.action));
    pn_conn *conn = connect_with(0);
    throw_away(conn, topic_named(conn, "first"), 1);
    pn_conn_close(conn);
}

static void run_first_use(void *arg)
{
    (void) arg;
    test_watchdog(60);
    open_segment();
    int status;
    pid_t pid = spawn(first_user, NULL);
    CHECK_EQ(waitpid(pid, &status, WUNTRACED), pid);
    bool hit = !WIFEXITED(status) || WEXITSTATUS(status) == EXITED;
    if (WIFSTOPPED(status)) { /* a process that wants topics waits for it */
        kill(pid, SIGCONT);
        CHECK_CHILD(pid, 0);
    }
    mine = connect_with(0);
    pn_message_out out;
    pn_ref topic = topic_named(mine, "second");
    pn_consumer *consumer = consumer_of(mine, channel_named(mine, topic, "c"), 1, 0);
    throw_away(mine, topic, 2);
    CHECK_EQ(pn_consumer_get(consumer, 0, &out), 1);
    CHECK_OK(pn_consumer_close(consumer));
    check_segment("after the death");
    pn_conn_close(mine);
    pn_engine_close(engine);
    test_segments_remove();
    _exit(hit ? HIT : NOT_HIT);
}

/* ---- no process ever comes again ------------------------------------------------------------- */

#include "crash_topic_unhelped.h" /* it uses what stands above */

/* ---- all cases ------------------------------------------------------------------------------- */

static struct job job_of(const char *label, uint32_t nth, int action)
{
    struct job job = {.c = {.label = label, .nth = nth, .victim = mixed, .action = action},
                      .run = run_case};
    if (is_first_use(label))
        job.run = run_first_use;
    else if (begins(label, "recover:") || begins(label, "topic-recover:"))
        job.c.victim = recovering;
    else if (strcmp(label, "topic:reap") == 0 || strcmp(label, "topic:reaped") == 0 ||
             strcmp(label, "topic:unheld") == 0 || strcmp(label, "topic:leaving") == 0 ||
             begins(label, "topic:reap-") || strcmp(label, "topic:reaped-some") == 0)
        job.c.victim = reaping;
    return job;
}

/* Those that a death may interrupt in the middle of something. */
static void doom(void)
{
    atomic_store(&j->doomed[VICTIM], 1);
    for (uint32_t i = HELPER; i < MAX_WRITERS; i++)
        atomic_store(&j->doomed[i], 1);
}

static size_t add_label(struct job *jobs, size_t n, const char *label)
{
    /* happen once: in a segment, or after the death of the lock's holder */
    bool again = !is_first_use(label), once = strcmp(label, "topic-recover:clean") == 0 ||
                                              strcmp(label, "topic-recover:redone") == 0 ||
                                              strcmp(label, "topic-recover:opened") == 0 ||
                                              strcmp(label, "topic-recover:unpumped") == 0 ||
                                              strcmp(label, "topic-recover:answer") == 0;
    int last = PN_CRASH_EXIT;
#if defined(__SANITIZE_ADDRESS__)
    last = PN_CRASH_KILL; /* fifteen times as slow: a third of the cases */
    again = false;
#endif
    for (int action = PN_CRASH_KILL; action <= last; action++)
        for (uint32_t nth = 1; nth <= (again && action != PN_CRASH_EXIT ? 3 : 1); nth += 2)
            jobs[n++] = job_of(label, nth, action);
    for (uint32_t i = 1; i <= 2 && begins(label, "topic-recover:") && !once; i++) {
        jobs[n] = job_of(label, 1, PN_CRASH_KILL);
        jobs[n++].c.recoverers = i;
    }
    return n;
}

static size_t add_unhelped(struct job *jobs, size_t n)
{
    static const char *const publisher[] = {
        "publish:after-live", "publish:linked", "topic:wait",        "topic:notified",
        "publish:done",       "topic:unlocked", "publish:after-all", "signal:flag"};
    static const char *const consumer[] = {"claim:in-flight", "claim:listed", "claim:handed",
                                           "lock:acquired", "topic:wait"};
    static const char *const pump[] = {"topic:pump", "topic:pump-order", "topic:pump-kind",
                                       "topic:pumped"};
    for (size_t i = 0; i < sizeof publisher / sizeof publisher[0]; i++)
        for (uintptr_t kind = 0; kind < 2; kind++)
            jobs[n++] = (struct job) {.c = {.label = publisher[i], .nth = 1},
                                      .run = run_last_words,
                                      .arg = (void *) kind};
    for (size_t i = 0; i < sizeof consumer / sizeof consumer[0]; i++)
        for (uintptr_t kind = 0; kind < 2; kind++)
            jobs[n++] = (struct job) {
                .c = {.label = consumer[i], .nth = 2}, .run = run_heir, .arg = (void *) kind};
    for (uintptr_t kind = 0; kind < 2; kind++)
        jobs[n++] = (struct job) {
            .c = {.label = "nothing", .nth = 1}, .run = run_timekeeper, .arg = (void *) kind};
    for (size_t i = 0; i < sizeof pump / sizeof pump[0]; i++)
        for (uint32_t nth = 1; nth <= 2; nth++)
            jobs[n++] = (struct job) {.c = {.label = pump[i], .nth = nth}, .run = run_late_channel};
    return n;
}

/* Without an argument, all; "unhelped"; else a label, then perhaps which hit, and the action. */
int main(int argc, char **argv)
{
    static struct job jobs[1024];
    size_t n = 0;
    pn_rebuild_units = 1500; /* several steps, however little there is */
    pn_return_steps = 1;
    if (argc < 2 || strcmp(argv[1], "unhelped") == 0)
        n = add_unhelped(jobs, n); /* the slow ones first */
    for (int i = 0; i < pn_crash_label_count(); i++)
        if (argc < 2 ? is_ours(pn_crash_label(i)) : strcmp(argv[1], pn_crash_label(i)) == 0)
            n = add_label(jobs, n, pn_crash_label(i));
    if (argc == 4) {
        jobs[0] = job_of(argv[1], (uint32_t) atoi(argv[2]), atoi(argv[3]));
        n = 1;
    }
    return run_jobs(jobs, n, doom);
}
