/*
 * A process that makes room in a full queue is killed, exits or is stopped there: every label of
 * copy.c, room.c, spill.c and the files, at its first and at a later hit, in each kind of full
 * queue that comes by it.  test_crash_full.c looks at single cases more closely.
 *
 * In a case a listener sleeps, another one reads little (the queue is full of what it has not
 * read), and a victim notifies and reads until it reaches the label.  Afterwards:
 *
 *     progress   the next notification reaches the sleeper within PROGRESS_MS
 *     exactness  what the victim committed comes once and in order to both, but for what a Gap
 *                stands for, and there are none where nothing may be dropped; what it was
 *                committing when it died comes to both or to none
 *     repair     pn_check() is clean; no slot, no reservation, no ticket, no file is left
 *
 * The same once more where two successors die in the recovery.
 *
 * Stopped with the lock it holds all others up, and nothing else happens; stopped without it,
 * none of them notices.  Continued, it goes on as if nothing had been.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "full_queue.h"

#include <sched.h>
#include <stdatomic.h>

#include "segment/lock.h"

enum { PROGRESS_MS = 4000, ROUNDS = 4000, PARALLEL = 4, MAX_SIZE = 30000 };
enum writer { VICTIM, HELPER, OURSELVES, WRITERS };
enum kind { PLAIN = 1, PING, QUIT };
enum policy { DROP, SPILL, DROP_AND_SPILL, BLOCK };
enum { HIT = 0, FAILED = 1, NOT_HIT = 3 };

struct message {
    uint32_t writer, kind;
    uint64_t number, size;
};

static struct crash_case {
    const char *label;
    enum policy policy;
    uint32_t nth;
    int action;
    const char *again; /* a label of the recovery, at which two successors die as well */
} now;

static struct journal {
    _Atomic(uint64_t) about, sent; /* of the victim: which number, and how many are committed */
    _Atomic(uint32_t) stop, died_again;
} *journal;

static pn_engine *engine;
static int heard_ping[2];

/* ---- messages -------------------------------------------------------------------------------- */

static int send_message(pn_conn *conn, enum writer writer, enum kind kind, uint64_t number,
                        size_t size)
{
    struct message m = {.writer = writer, .kind = kind, .number = number, .size = size};
    memset(payload, (int) (number * 31 % 251), size);
    memcpy(payload, &m, sizeof m);
    return pn_notify(conn, "c", 1, payload, size);
}

struct account {
    uint64_t next[WRITERS], messages, gaps, seq;
    bool jumps[WRITERS], doubtful_came;
};

#define BLAME(cond, ...)                                                                           \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "%s, policy %d, hit %u, action %d: ", now.label, (int) now.policy,     \
                    now.nth, now.action);                                                          \
            FAIL(__VA_ARGS__);                                                                     \
        }                                                                                          \
    } while (0)

/* One message into the account.  A number that the victim died with may be missing. */
static void book(struct account *a, const pn_batch *b, size_t k, struct message *m)
{
    size_t len = (size_t) (b->offset[k + 1] - b->offset[k]);
    const unsigned char *p = b->data + b->offset[k];
    CHECK(len >= sizeof *m);
    memcpy(m, p, sizeof *m);
    BLAME(m->size == len && m->writer < WRITERS, "a message of %zu bytes says %llu", len,
          (unsigned long long) m->size);
    for (size_t at = sizeof *m; at < len; at++)
        BLAME(p[at] == (unsigned char) (m->number * 31 % 251), "garbage at byte %zu", at);
    uint64_t *next = &a->next[m->writer];
    BLAME(m->number == *next || (m->number > *next && a->jumps[m->writer]),
          "message %llu of writer %u instead of %llu", (unsigned long long) m->number, m->writer,
          (unsigned long long) *next);
    BLAME(b->seq[k] > a->seq, "commit %llu comes late", (unsigned long long) b->seq[k]);
    *next = m->number + 1;
    a->jumps[m->writer] = false;
    a->seq = b->seq[k];
    a->messages++;
}

/* At most `max` more.  False: the message that ends it has come. */
static bool read_on(pn_conn *conn, pn_batch *b, struct account *a, uint64_t max, int64_t *n)
{
    bool go_on = true;
    size_t g = 0;
    *n = pn_poll(conn, b, max);
    CHECK_OK(*n);
    for (size_t k = 0; k <= b->n; k++) {
        struct message m;
        for (; g < b->ngaps && b->gap[g].before == k; g++, a->gaps++)
            memset(a->jumps, true, sizeof a->jumps);
        if (k == b->n)
            break;
        book(a, b, k, &m);
        if (m.kind == PING)
            CHECK_EQ(write(heard_ping[1], "p", 1), 1);
        go_on = go_on && m.kind != QUIT;
    }
    *n += (int64_t) b->ngaps;
    BLAME(a->gaps == 0 || now.policy == DROP || now.policy == DROP_AND_SPILL, "a gap");
    return go_on;
}

/* ---- processes ------------------------------------------------------------------------------- */

static void sleeper(void *arg)
{
    struct account a = {.seq = 0};
    pn_conn *conn = test_connect(engine);
    pn_batch *b = pn_batch_new();
    int64_t n;
    (void) arg;
    test_listen(conn, "c");
    CHECK_EQ(write(heard_ping[1], "r", 1), 1);
    bool go_on;
    do {
        test_wait(conn, -1);
        go_on = read_on(conn, b, &a, 0, &n);
    } while (go_on);
    if (now.policy == SPILL || now.policy == BLOCK)
        BLAME(a.next[VICTIM] == atomic_load(&journal->sent), "%llu of %llu messages",
              (unsigned long long) a.next[VICTIM],
              (unsigned long long) atomic_load(&journal->sent));
    pn_conn_close(conn);
    pn_batch_free(b);
}

static void helper(void *arg)
{
    pn_conn *conn = test_connect(engine);
    uint64_t number = 0;
    (void) arg;
    while (atomic_load(&journal->stop) == 0) {
        int rc = send_message(conn, HELPER, PLAIN, number, 9000);
        CHECK(rc == -PN_EQUEUEFULL || rc >= 0);
        number += rc >= 0;
    }
    pn_conn_close(conn);
}

static void victim(void *arg)
{
    struct account a = {.seq = 0};
    uint64_t seed = 88172645463325252ULL + now.nth;
    pn_conn *conn = test_connect(engine);
    pn_batch *b = pn_batch_new();
    int64_t n;
    (void) arg;
    test_listen(conn, "c");
    memset(a.jumps, true, sizeof a.jumps); /* the helper may have begun before */
    CHECK_OK(pn_crash_arm(now.label, now.nth, now.action));
    for (int round = 0; round < ROUNDS && atomic_load(&journal->stop) == 0; round++) {
        uint64_t r = test_random(&seed), number = atomic_load(&journal->sent);
        atomic_store(&journal->about, number + 1);
        int rc = send_message(conn, VICTIM, PLAIN, number, 64 + (r % 8 ? r % 6000 : r % MAX_SIZE));
        CHECK(rc >= 0 || (rc == -PN_EQUEUEFULL && now.policy == BLOCK));
        if (rc >= 0)
            atomic_store(&journal->sent, number + 1);
        atomic_store(&journal->about, 0);
        if (rc < 0 || r % 16 == 0)
            read_on(conn, b, &a, now.policy == BLOCK ? 4 : 0, &n);
    }
    pn_conn_close(conn);
    pn_batch_free(b);
}

/* ---- a case ---------------------------------------------------------------------------------- */

static bool hear_ping(int count, int ms)
{
    int64_t until = test_now_ns() + ms * INT64_C(1000000);
    struct pollfd p = {.fd = heard_ping[0], .events = POLLIN};
    char c;
    while (count > 0) {
        int64_t left = (until - test_now_ns()) / 1000000;
        if (left < 0)
            return false;
        if (poll(&p, 1, (int) left + 1) == 1 && read(p.fd, &c, 1) == 1)
            count--;
    }
    return true;
}

static void die_in_recovery(void *arg)
{
    pn_stat stat;
    (void) arg;
    CHECK_OK(pn_crash_arm(now.again, 1, PN_CRASH_KILL));
    CHECK_OK(pn_engine_stat(engine, &stat, NULL, 0));
}

static void open_case(void)
{
    pn_options o = test_options();
    if (now.policy == SPILL)
        o = spilling(8192);
    if (now.policy == DROP_AND_SPILL)
        o = spilling(160);
    if (now.policy == BLOCK) {
        o.on_full = PN_FULL_BLOCK;
        o.full_timeout_ns = 15000000000ULL;
    } else if (now.policy != SPILL) {
        o.on_full = PN_FULL_DROP_SLOWEST;
    }
    engine = test_engine(&o);
    CHECK_EQ(pipe(heard_ping), 0);
}

/* Stopped: the holder of the lock holds all others up; another process holds none up. */
static void look_at_the_stopped(pn_conn *conn, uint64_t *number)
{
    struct pn_segment *seg = test_inside();
    int rc = pn_lock_try(seg, &test_hold);
    if (rc == -EBUSY)
        return;
    CHECK_OK(rc);
    pn_lock_release(seg);
    if (now.policy == BLOCK)
        return;                   /* the queue may be full */
    for (int i = 0; i < 200; i++) /* once round the ring: what it was copying is overwritten */
        CHECK_OK(send_message(conn, OURSELVES, PLAIN, (*number)++, 6000));
    CHECK_OK(send_message(conn, OURSELVES, PING, (*number)++, 64));
    BLAME(hear_ping(1, PROGRESS_MS), "no progress beside the stopped");
}

/* Until it is gone; true: by the label. */
static bool attend(pid_t pid, pn_conn *conn, pn_conn *slow, struct account *a, uint64_t *number)
{
    pn_batch *b = pn_batch_new();
    struct pn_segment *seg = test_inside();
    bool hit = false;
    int status;
    int64_t n;
    for (;;) {
        pid_t got = waitpid(pid, &status, WUNTRACED | (now.policy == BLOCK ? WNOHANG : 0));
        CHECK(got >= 0 || errno == EINTR);
        if (got == pid && WIFSTOPPED(status)) {
            look_at_the_stopped(conn, number);
            hit = true;
            atomic_store(&journal->stop, 1);
            kill(pid, SIGCONT);
        } else if (got == pid) {
            break;
        }
        if (now.policy == BLOCK && pn_load_relaxed(&seg->ctl->room_waiters) != 0)
            read_on(slow, b, a, 3, &n);
        else
            sched_yield();
    }
    pn_batch_free(b);
    if (WIFSIGNALED(status)) {
        CHECK_EQ(WTERMSIG(status), SIGKILL);
        return true;
    }
    CHECK(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 99);
    return hit || WEXITSTATUS(status) == 99;
}

/* The rest for the slow one, too. */
static void check_slow(pn_conn *slow, struct account *a)
{
    pn_batch *b = pn_batch_new();
    int64_t n;
    do
        read_on(slow, b, a, 7, &n);
    while (n > 0);
    pn_batch_free(b);
    if (a->next[VICTIM] == atomic_load(&journal->sent) + 1) /* what it died with was committed */
        atomic_store(&journal->sent, a->next[VICTIM]);
    if (now.policy == SPILL || now.policy == BLOCK)
        BLAME(a->next[VICTIM] == atomic_load(&journal->sent), "the slow one has %llu of %llu",
              (unsigned long long) a->next[VICTIM],
              (unsigned long long) atomic_load(&journal->sent));
    BLAME(a->next[VICTIM] <= atomic_load(&journal->sent), "a message that was never committed");
}

static void check_end(void)
{
    pn_stat stat = test_stat(engine);
    CHECK_EQ(stat.backends, 2);
    CHECK_EQ(test_inside()->ctl->reserved, 0);
    CHECK_EQ(test_inside()->ctl->tickets, 0);
    BLAME(stat.tail == stat.head && stat.mem_tail == stat.head, "the tail does not reach head");
    CHECK_EQ(now.policy == SPILL || now.policy == DROP_AND_SPILL ? count_files() : 0, 0);
    CHECK_ENGINE(engine);
}

static void run_case(void *arg)
{
    struct account a = {.seq = 0};
    uint64_t number = 0;
    pid_t helping = 0;
    (void) arg;
    test_watchdog(60);
    open_case();
    pid_t listening = spawn(sleeper, NULL);
    BLAME(hear_ping(1, TEST_PATIENCE_MS), "the listener did not start");
    pn_conn *slow = test_connect(engine), *conn = test_connect(engine);
    test_listen(slow, "c");
    pid_t pid = spawn(victim, NULL);
    if (now.policy == BLOCK)
        helping = spawn(helper, NULL);
    bool hit = attend(pid, conn, slow, &a, &number);
    atomic_store(&journal->stop, 1);
    for (int i = 0; now.again != NULL && i < 2; i++) {
        int status = reap(spawn(die_in_recovery, NULL));
        if (WIFSIGNALED(status)) /* else the sleeper was faster */
            atomic_fetch_add(&journal->died_again, 1);
    }
    if (helping != 0) {
        int64_t n;
        pn_batch *b = pn_batch_new();
        for (int status; waitpid(helping, &status, WNOHANG) == 0;) /* it may wait for the slow */
            read_on(slow, b, &a, 7, &n);
        pn_batch_free(b);
        check_slow(slow, &a);
    }
    CHECK_OK(send_message(conn, OURSELVES, PING, number++, 64));
    BLAME(hear_ping(1, PROGRESS_MS), "no progress after it");
    CHECK_ENGINE(engine);
    check_slow(slow, &a);
    CHECK_OK(send_message(conn, OURSELVES, QUIT, number++, 64));
    CHECK_CHILD(listening, 0);
    check_slow(slow, &a);
    check_end();
    pn_conn_close(slow);
    pn_conn_close(conn);
    done(engine);
    if (data_dir[0] != '\0')
        remove_data_dir();
    _exit(hit ? HIT : NOT_HIT);
}

/* ---- all cases ------------------------------------------------------------------------------- */

static bool begins(const char *label, const char *prefix)
{
    return strncmp(label, prefix, strlen(prefix)) == 0;
}

/* Which full queues come by the label?  A bit for each. */
static unsigned policies_of(const char *label)
{
    if (begins(label, "evict:"))
        return 1U << DROP | 1U << DROP_AND_SPILL;
    if (begins(label, "copy:"))
        return 1U << DROP | 1U << SPILL;
    if (strcmp(label, "spill:removed-last") == 0)
        return 0; /* of the last reader of long entries: test_crash_full */
    if (strcmp(label, "spill:released") == 0 || strcmp(label, "spill:removed") == 0 ||
        strcmp(label, "datadir:removed") == 0)
        return 1U << DROP_AND_SPILL;
    if (begins(label, "spill:") || begins(label, "datafile:") || begins(label, "recfile:"))
        return 1U << SPILL;
    return begins(label, "block:") ? 1U << BLOCK : 0;
}

static unsigned died_again;

struct job {
    struct crash_case c;
    struct journal *journal;
    pid_t pid;
};

static unsigned finish(struct job *job)
{
    static const char *const actions[] = {"killed", "stopped", "exited"};
    static const char *const policies[] = {"drop-slowest", "files", "drop-slowest with files",
                                           "block"};
    int status = reap(job->pid);
    died_again += atomic_load(&job->journal->died_again);
    munmap(job->journal, sizeof *job->journal);
    if (WIFEXITED(status) && WEXITSTATUS(status) == HIT)
        return 0;
    fprintf(stderr, "%s: %s at %s, hit %u, %s\n",
            WIFEXITED(status) && WEXITSTATUS(status) == NOT_HIT ? "not reached" : "FAILED",
            actions[job->c.action == PN_CRASH_KILL   ? 0
                    : job->c.action == PN_CRASH_STOP ? 1
                                                     : 2],
            job->c.label, job->c.nth, policies[job->c.policy]);
    for (int i = 0; i < 2; i++) { /* what it could not remove itself */
        char leftover[64];
        snprintf(leftover, sizeof leftover, "ctest.%d.%d", (int) job->pid, i);
        test_segment_remove(leftover);
    }
    return 1;
}

static void start(struct job *job)
{
    now = job->c;
    job->journal = journal =
        mmap(NULL, sizeof *journal, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(journal != MAP_FAILED);
    job->pid = spawn(run_case, NULL);
}

/* Of what a full queue leaves to be repaired: nothing, but for the two tails. */
static unsigned add_deaths_in_recovery(struct job *jobs)
{
    static const struct {
        const char *first, *again;
    } deaths[] = {{"evict:floor", "recover:begin"},     {"evict:floor", "recover:consistent"},
                  {"evict:tail", "recover:consistent"}, {"tail:stored", "recover:begin"},
                  {"tail:stored", "recover:mem-tail"},  {"tail:stored", "recover:consistent"},
                  {"spill:file", "recover:consistent"}, {"recfile:part", "recover:consistent"},
                  {"spill:written", "recover:begin"},   {"spill:mem-tail", "recover:begin"}};
    unsigned n = 0;
    for (size_t i = 0; i < sizeof deaths / sizeof deaths[0]; i++)
        for (uint32_t nth = 1; nth <= 5; nth += 4)
            jobs[n++].c = (struct crash_case) {.label = deaths[i].first,
                                               .policy = DROP_AND_SPILL,
                                               .nth = nth,
                                               .action = PN_CRASH_KILL,
                                               .again = deaths[i].again};
    return n;
}

int main(int argc, char **argv)
{
    static const int actions[] = {PN_CRASH_KILL, PN_CRASH_STOP, PN_CRASH_EXIT};
    static struct job jobs[512];
    unsigned n = 0, failed = 0;
    for (int i = 0; i < pn_crash_label_count(); i++)
        for (enum policy policy = DROP; policy <= BLOCK; policy++)
            for (int k = 0; k < 3; k++)
                for (uint32_t nth = 1; nth <= 5; nth += 4)
                    if ((policies_of(pn_crash_label(i)) >> policy & 1U) != 0 &&
                        (argc < 2 || strcmp(argv[1], pn_crash_label(i)) == 0)) {
                        CHECK(n < sizeof jobs / sizeof jobs[0]);
                        jobs[n++].c = (struct crash_case) {.label = pn_crash_label(i),
                                                           .policy = policy,
                                                           .nth = nth,
                                                           .action = actions[k]};
                    }
    if (argc < 2)
        n += add_deaths_in_recovery(jobs + n);
    CHECK(n > 0 && n <= sizeof jobs / sizeof jobs[0]);
    for (unsigned i = 0; i < n + PARALLEL; i++) {
        if (i >= PARALLEL && i - PARALLEL < n)
            failed += finish(&jobs[i - PARALLEL]);
        if (i < n)
            start(&jobs[i]);
    }
    printf("%u cases, %u failed; %u died in recovery\n", n, failed, died_again);
    CHECK(argc > 1 || died_again > 0);
    return failed != 0;
}
