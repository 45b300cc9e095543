/*
 * Every crash point of the engine, each reached by a process that is killed there by SIGKILL, that
 * exits there, or that is stopped there and continued.
 *
 * A case is a label, which time it is reached, and what happens then.  In each case a notifier and
 * three listeners, one of them by a pattern, survive; a victim works until it dies.  One that is
 * stopped holds up no other, unless it has the lock; continued, it comes to its end.  Afterwards,
 * without any further help:
 *
 *     progress     the notifier's next notification reaches every listener within PROGRESS_MS
 *     exactness    what the victim knew to be committed was received once and in order by all,
 *                  what it aborted or never began by none; what it died in was received by all
 *                  or by none, in one piece, and as its label says if its label says so
 *     counters     the generation counters are what the received transactions have bumped, exactly;
 *                  every listener, after every poll, has read at least what it was told of, and
 *                  was told at least of what it had read before
 *     silence      a process that listens to nothing was not signalled
 *     repair       pn_check() is clean; the slots, subscriptions, channel entries and
 *                  reservations of the dead can be had again; a tail scan reaches head
 *
 * The labels come from the program itself (pn_crash_label), so a new one is tested, or fails the
 * run because no victim has reached it (job_of() says which goes where).  The journal of
 * what each committed is in anonymous shared memory: it outlives SIGKILL.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "harness.h"

#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/timerfd.h>

#include "backend/conn.h"
#include "segment/lock.h"
#include "segment/process.h"
#include "segment/segment.h"

enum {
    PROGRESS_MS = 4000, /* a loaded machine; 1 ms is usual */
    MAX_TXNS = 65536,
    MAX_GOT = 262144,
    ROUNDS = 400,
    PARALLEL = 4,
    BACKENDS = 10,
    CHANNELS = 12,
    SUBSCRIPTIONS = 23, /* so many that two connections take all that is left of both */
    BIG = 12000
};

#include "crash_topic_labels.h"
#include "crash_victims.h"

#define VICTIMS_H "crash_victims.h"
#include "crash_case.h"

/* ---- the order of a case --------------------------------------------------------------------- */

static void count_stray(int signo)
{
    (void) signo;
    atomic_fetch_add(&j->stray_signals, 1);
}

static void open_segment(void)
{
    pn_options o;
    pn_options_default(&o);
    o.queue_pages = 64;
    o.max_backends = BACKENDS;
    o.max_channels = CHANNELS;
    o.max_subscriptions = SUBSCRIPTIONS;
    o.max_generations = ROUNDS + 2;
    o.max_payload = 20000;
    if (now.victim == blocked_writer || now.victim == waking_writers) {
        o.on_full = PN_FULL_BLOCK;
        o.full_timeout_ns = 15000000000ULL;
    }
    segment = test_segment_name();
    CHECK_OK(pn_open(segment, &o, &engine));
    pn_conn *conn = connect_with(0);
    CHECK_OK(pn_generation(conn, "0", 1, &counter[0]));
    CHECK_OK(pn_generation(conn, "1", 1, &counter[1]));
    pn_conn_close(conn);
}

static bool released; /* listener 0, which holds up a blocked writer */

static void start_listeners(void)
{
    for (uintptr_t i = 0; i < 3; i++)
        listeners[i] = spawn(listener, (void *) i);
    REQUIRE(hear(3, TEST_PATIENCE_MS), "the listeners did not start");
}

static void release_listener(void)
{
    if (now.victim == blocked_writer && !released)
        CHECK_EQ(write(hold_pipe[1], "x", 1), 1);
    released = true;
}

static bool stands_back; /* listeners 0 to 2, while the victim is to be the first to see a death */

static void let_listeners_on(void)
{
    for (int i = 0; stands_back && i < 3; i++)
        kill(listeners[i], SIGCONT);
    stands_back = false;
}

static void check_beside_the_stopped(void)
{
    /* while it repairs, or is helped by others, holder_pid may name another */
    bool alone = now.victim != waking_myself && helper_pid == 0 && !begins(now.label, "recover:");
    if (!lock_is_free_beside_the_stopped(alone))
        return;
    let_listeners_on();
    release_listener();
    if (now.victim == waking_writers)
        return; /* it has not read what fills the queue: that does hold up the others */
    notify(mine, NOTIFIER, PING, 40);
    REQUIRE(hear(3, PROGRESS_MS), "no progress beside the stopped process");
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
        if (atomic_load(&j->scripted) != 0) {
            notify(mine, NOTIFIER, PLAIN, 40);
            kill(victim_pid, SIGUSR2);
        } else {
            stopped = true;
            check_beside_the_stopped();
            release_listener();
            atomic_store(&j->stop, 1);
        }
        kill(victim_pid, SIGCONT);
    }
    return judge_victim(status, stopped);
}

/* ---- what has to hold afterwards ------------------------------------------------------------- */

/* All listeners got the same; each transaction in one piece; each writer's in its order. */
static void check_sequences(void)
{
    const struct listener_log *first = &j->log[0];
    uint32_t n = atomic_load(&first->n), last[4] = {0};
    for (uint32_t k = 1; k < 3; k++)
        REQUIRE(atomic_load(&j->log[k].n) == n, "listener 0 got %u messages, listener %u got %u", n,
                k, atomic_load(&j->log[k].n));
    for (uint32_t i = 0; i < n; i++) {
        const struct got *g = &first->got[i], *before = i > 0 ? &first->got[i - 1] : NULL;
        REQUIRE(g->m.txn < atomic_load(&j->next_txn), "message %u is of no transaction", i);
        const struct journal_txn *t = &j->txn[g->m.txn];
        for (uint32_t k = 1; k < 3; k++)
            REQUIRE(memcmp(g, &j->log[k].got[i], sizeof *g) == 0,
                    "message %u: listener 0 got %u.%u of commit %llu, listener %u %u.%u", i,
                    g->m.txn, g->m.i, (unsigned long long) g->seq, k, j->log[k].got[i].m.txn,
                    j->log[k].got[i].m.i);
        if (g->m.i != 0) {
            REQUIRE(before != NULL && before->m.txn == g->m.txn && before->m.i + 1 == g->m.i &&
                        before->seq == g->seq,
                    "message %u: transaction %u is torn", i, g->m.txn);
        } else {
            REQUIRE(before == NULL || (before->seq < g->seq && before->m.i + 1 == before->m.n),
                    "message %u: commit %llu is out of order", i, (unsigned long long) g->seq);
            REQUIRE(last[t->writer] == 0 || last[t->writer] < g->m.txn,
                    "message %u: writer %u's transaction %u comes late or twice", i, t->writer,
                    g->m.txn);
        }
        last[t->writer] = g->m.txn;
    }
}

/* -1: the label says that nothing was committed, 1: that all was, 0: it does not say. */
static int verdict_of_label(void)
{
    if (now.action == PN_CRASH_STOP)
        return 0; /* it went on */
    static const char *const before[] = {"commit:room", "commit:entry",   "commit:before-head",
                                         "listen:",     "reserve:stored", "block:armed"};
    static const char *const after[] = {
        "commit:after-head", "commit:applied", "commit:from",         "commit:want",
        "commit:owed",       "commit:unslept", "commit:before-woken", "commit:after-woken",
        "commit:unlocked",   "signal:",        "commit:generation",   "commit:time"};
    for (size_t i = 0; i < sizeof before / sizeof before[0]; i++)
        if (strncmp(now.label, before[i], strlen(before[i])) == 0)
            return -1;
    for (size_t i = 0; i < sizeof after / sizeof after[0]; i++)
        if (strncmp(now.label, after[i], strlen(after[i])) == 0)
            return 1;
    return 0;
}

static void check_journal(void)
{
    static uint32_t count[MAX_TXNS];
    const struct listener_log *log = &j->log[0];
    uint32_t in_doubt = 0;
    memset(count, 0, sizeof count);
    for (uint32_t i = 0; i < atomic_load(&log->n); i++)
        count[log->got[i].m.txn]++;
    for (uint32_t id = 0; id < atomic_load(&j->next_txn); id++) {
        const struct journal_txn *t = &j->txn[id];
        uint32_t state = atomic_load(&t->state), got = count[id];
        REQUIRE(got == 0 || got == t->n, "%u of %u messages of transaction %u arrived", got, t->n,
                id);
        REQUIRE(state != COMMITTED || got == t->n, "transaction %u was committed and is lost", id);
        REQUIRE(state != ABORTED || got == 0, "transaction %u was aborted and arrived", id);
        if (state != ABOUT || t->writer != VICTIM)
            continue;
        REQUIRE(++in_doubt == 1, "two transactions of the victim are in doubt");
        int verdict = verdict_of_label();
        REQUIRE(verdict <= 0 || got != 0, "transaction %u had its head stored and is lost", id);
        REQUIRE(verdict >= 0 || got == 0, "transaction %u had no head stored and arrived", id);
    }
}

/* All of a transaction happens or nothing: its bumps with its messages, none twice. */
static void check_counters(void)
{
    struct sums sums = {.upto = 0};
    add_up(&j->log[0], &sums);
    for (int k = 0; k < 2; k++)
        REQUIRE(pn_generation_value(engine, counter[k]) == sums.bumps[k],
                "counter %d is %llu, the transactions that arrived make %llu", k,
                (unsigned long long) pn_generation_value(engine, counter[k]),
                (unsigned long long) sums.bumps[k]);
}

static void check_segment(void)
{
    char problems[4096];
    int n = pn_check(engine, problems, sizeof problems);
    if (n < 0)
        REQUIRE(false, "pn_check: %d: %s", n, pn_error_message());
    REQUIRE(n == 0, "pn_check finds %d problems:\n%s", n, problems);
}

/* What the dead had can be had again, to the last slot, subscription, channel and byte. */
static void check_nothing_leaked(void)
{
    pn_backend_stat rows[BACKENDS];
    pn_conn *more[BACKENDS - 4];
    pn_stat stat;
    pn_txn *txn;
    char name[16];

    CHECK_OK(pn_engine_stat(engine, &stat, rows, BACKENDS));
    REQUIRE(stat.backends == 4, "%u backends are left instead of 4", stat.backends);
    REQUIRE(stat.subscriptions == 3, "%u subscriptions are left instead of 3", stat.subscriptions);
    REQUIRE(stat.patterns == 1, "%u patterns are left instead of 1", stat.patterns);
    REQUIRE(inside()->ctl->reserved == 0, "%llu bytes are still reserved",
            (unsigned long long) inside()->ctl->reserved);
    for (int i = 0; i < BACKENDS - 4; i++)
        more[i] = connect_with(0);
    CHECK_OK(pn_txn_begin(more[0], &txn));
    for (int i = 0; i < CHANNELS - 2; i++) { /* beside "all" and a pattern */
        int len = snprintf(name, sizeof name, "leak%d", i);
        CHECK_OK(pn_txn_listen(txn, name, (size_t) len));
    }
    CHECK_OK(pn_txn_commit(txn));
    CHECK_OK(pn_txn_begin(more[1], &txn));
    for (int i = 0; i < SUBSCRIPTIONS - 3 - (CHANNELS - 2); i++) {
        int len = snprintf(name, sizeof name, "leak%d", i);
        CHECK_OK(pn_txn_listen(txn, name, (size_t) len));
    }
    CHECK_OK(pn_txn_commit(txn));
    check_segment();
    for (int i = 0; i < BACKENDS - 4; i++)
        pn_conn_close(more[i]);
    check_segment();
}

static void check_end(void)
{
    pn_stat stat;
    notify(mine, NOTIFIER, QUIT, 40);
    for (int i = 0; i < 3; i++)
        CHECK_CHILD(listeners[i], 0);
    CHECK_OK(pn_engine_stat(engine, &stat, NULL, 0));
    REQUIRE(stat.tail == stat.head, "no process listens and the tail does not reach head");
    check_segment();
    REQUIRE(atomic_load(&j->stray_signals) == 0, "a process that listens to nothing was signalled");
    check_sequences();
    check_journal();
    check_counters();
}

/* A case in a process of its own.  Exits with one of the above. */
static void run_case(void *arg)
{
    (void) arg;
    test_watchdog(60);
    CHECK_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    CHECK_EQ(pipe(pipe_to_parent), 0);
    CHECK_EQ(pipe(hold_pipe), 0);
    open_segment();
    start_listeners();
    mine = connect_with(0);
    signal(SIGUSR1, count_stray);
    notify(mine, NOTIFIER, PLAIN, 40);
    if (now.victim == blocked_writer)
        notify(mine, NOTIFIER, HOLD, 40);
    /* else the listeners take over before the victim comes to it */
    stands_back = now.victim == recovering || now.victim == recovering_again ||
                  now.victim == watching || now.victim == reaping;
    for (int i = 0; stands_back && i < 3; i++)
        kill(listeners[i], SIGSTOP);
    victim_pid = spawn(victim, NULL);
    if (now.victim == waking_writers) {
        CHECK_SOON(atomic_load(&j->ready) != 0);
        helper_pid = spawn(endless_writer, NULL);
    }
    if (now.victim == chained)
        start_chain();
    bool hit = watch_victim();
    let_listeners_on();
    if (now.victim == chained)
        end_chain();
    release_listener();
    if (helper_pid != 0) {
        atomic_store(&j->stop, 1);
        CHECK_CHILD(helper_pid, 0);
    }
    notify(mine, NOTIFIER, PING, 40);
    REQUIRE(hear(3, PROGRESS_MS), "no progress after the death");
    check_segment();
    wait_for_orphans();
    check_nothing_leaked();
    check_end();
    pn_conn_close(mine);
    pn_engine_close(engine);
    test_segments_remove();
    _exit(hit ? HIT : NOT_HIT);
}

/* ---- dying while a segment is made ----------------------------------------------------------- */

static void creator(void *arg)
{
    const char *const *names = arg;
    pn_options o;
    pn_options_default(&o);
    CHECK_OK(pn_crash_arm(now.label, now.nth, now.action));
    for (int i = 0; i < 4; i++) {
        CHECK_OK(pn_open(names[i], &o, &engine));
        pn_engine_close(engine);
    }
}

/* No half segment: what is there afterwards can be opened, what is not can be created. */
static void run_creation(void *arg)
{
    const char *names[4];
    char problems[512];
    pn_options o;
    (void) arg;
    test_watchdog(60);
    for (int i = 0; i < 4; i++)
        names[i] = test_segment_name();
    pid_t pid = spawn(creator, names);
    int status;
    CHECK_EQ(waitpid(pid, &status, WUNTRACED), pid);
    bool hit = !WIFEXITED(status) || WEXITSTATUS(status) == EXITED;
    pn_options_default(&o);
    for (int i = 0; i < 4; i++) {
        pn_batch *batch = pn_batch_new();
        CHECK_OK(pn_open(names[i], &o, &engine));
        mine = connect_with(0);
        listen_to(mine, "all", NULL);
        CHECK_OK(pn_notify(mine, "all", 3, "x", 1));
        CHECK_EQ(pn_poll(mine, batch, 0), 1);
        CHECK_EQ(pn_check(engine, problems, sizeof problems), 0);
        pn_conn_close(mine);
        pn_engine_close(engine);
        pn_batch_free(batch);
    }
    if (WIFSTOPPED(status)) {
        kill(pid, SIGCONT);
        CHECK_CHILD(pid, 0);
    }
    test_segments_remove();
    _exit(hit ? HIT : NOT_HIT);
}

/* ---- no process ever comes again ------------------------------------------------------------- */

#include "crash_unhelped.h" /* it uses what stands above */

/* ---- all cases ------------------------------------------------------------------------------- */

/* Labels of a module that has a program of its own for them: test_crash_<module>.c. */
static bool tested_elsewhere(const char *label)
{
    static const char *const others[] = {
        "copy:",        "evict:",          "spill:",
        "block:ticket", "block:passed-on", "recover:mem-tail", /* test_crash_full.c */
        "datafile:",    "datadir:",        "recfile:",         /* test_crash_pages.c */
        "diskqueue:",   "topiclog:",                           /* test_crash_<module>.c */
        "spilled:",     "refill:",         "durable:",
        "tombstone:",   "rest:",           "later:",
        "divide:",      "cancel:",         "dirlock:", /* test_crash_topic_*.c */
        "read:time",                                   /* test_crash_generation.c */
        "frontier:",                                   /* test_crash_frontier.c */
        "turn:",                                       /* test_crash_turn.c */
        "handler:",     "signal:flags",    "chain:flags" /* test_crash_send.c */};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (strncmp(label, others[i], strlen(others[i])) == 0)
            return true;
    return is_topic_label(label);
}

static struct job job_of(const char *label, uint32_t nth, int action)
{
    struct job job = {.c = {.label = label, .nth = nth, .victim = mixed, .action = action},
                      .run = run_case};
    if (begins(label, "attach:"))
        job.run = run_creation;
    else if (begins(label, "recover:"))
        job.c.victim = recovering;
    else if (begins(label, "reap:"))
        job.c.victim = reaping;
    else if (strcmp(label, "block:armed") == 0)
        job.c.victim = blocked_writer;
    else if (strcmp(label, "block:woken") == 0)
        job.c.victim = waking_writers;
    else if (strcmp(label, "sleep:rewoken") == 0)
        job.c.victim = rewoken;
    else if (strcmp(label, "wake:unslept") == 0)
        job.c.victim = waking_myself;
    else if (begins(label, "chain:"))
        job.c.victim = chained;
    else if (begins(label, "watch:"))
        job.c.victim = watching;
    return job;
}

static size_t add_unhelped(struct job *jobs, size_t n)
{
    static const char *const unhelped[] = {"commit:after-head", "commit:want", "commit:unslept",
                                           "commit:unlocked", "signal:flag"};
    for (size_t i = 0; i < 5; i++)
        for (uintptr_t kind = 0; kind <= 2; kind += 2)
            jobs[n++] = (struct job) {.c = {.label = unhelped[i],
                                            .nth = 1,
                                            .victim = last_words,
                                            .action = PN_CRASH_KILL},
                                      .run = run_without_help,
                                      .arg = (void *) kind};
    return n;
}

static size_t add_label(struct job *jobs, size_t n, const char *label)
{
    for (int action = PN_CRASH_KILL; action <= PN_CRASH_EXIT; action++)
        for (uint32_t nth = 1; nth <= 3; nth += 2)
            jobs[n++] = job_of(label, nth, action);
    for (uint32_t others = 1; others <= 2 && begins(label, "recover:"); others++) {
        jobs[n] = job_of(label, 1, PN_CRASH_KILL);
        jobs[n].c.victim = recovering_again;
        jobs[n++].c.recoverers = others;
    }
    return n;
}

static size_t add_chains_of_deaths(struct job *jobs, size_t n)
{
    static const char *const taking_over[] = {"watch:dead", "watch:locked", "watch:unlocked",
                                              "signal:flag"};
    for (uintptr_t i = 0; i < 4 * 3; i++)       /* where the watchers die, and the notifier */
        for (uint32_t nth = 1; nth <= 3; nth++) /* where in the ring the survivor is */
            jobs[n++] = (struct job) {.c = {.label = taking_over[i % 4], .nth = nth},
                                      .run = run_chain_of_deaths,
                                      .arg = (void *) (i / 4 * 4 + (i + nth) % 2 * 2)};
    jobs[n++] = (struct job) {.c = {.label = "nothing", .nth = 1}, .run = run_far_away};
    return n;
}

/* Without an argument, all; else a label, or "unhelped". */
int main(int argc, char **argv)
{
    static struct job jobs[1024];
    size_t n = 0;

    if (argc < 2 || strcmp(argv[1], "unhelped") == 0) {
        n = add_unhelped(jobs, n); /* the slow ones first */
        n = add_chains_of_deaths(jobs, n);
    }
    for (int i = 0; i < pn_crash_label_count(); i++)
        if (argc < 2 ? !tested_elsewhere(pn_crash_label(i))
                     : strcmp(argv[1], pn_crash_label(i)) == 0)
            n = add_label(jobs, n, pn_crash_label(i));
    return run_jobs(jobs, n, NULL);
}
