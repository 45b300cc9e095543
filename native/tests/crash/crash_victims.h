/*
 * crash_victims.h - the processes of test_crash.c: listeners, victims, and the journal in
 * which a victim writes what it is about to commit and what it has committed.  Included once.
 */
#ifndef PN_CRASH_VICTIMS_H
#define PN_CRASH_VICTIMS_H

/* ---- the journal ----------------------------------------------------------------------------- */

enum txn_state { UNUSED, ABOUT, COMMITTED, ABORTED };

struct journal_txn {
    _Atomic(uint32_t) state;
    uint32_t writer, n;
    uint32_t bumps; /* of counter 0; counter 1 is bumped once if this is not 0 */
};

/* Payload of every message on "all"; padded to the size that is wanted. */
struct message {
    uint32_t kind, txn, i, n;
};
enum kind { PLAIN = 1, PING, HOLD, QUIT };

struct got {
    struct message m;
    uint64_t seq;
};

struct listener_log {
    _Atomic(uint32_t) n;
    struct got got[MAX_GOT];
};

static struct shared {
    _Atomic(uint32_t) next_txn;
    _Atomic(uint32_t) stop, ready;
    _Atomic(uint32_t) scripted;      /* the victim's next stop is a part of its scenario */
    _Atomic(uint32_t) stray_signals; /* to a process that listens to nothing */
    struct journal_txn txn[MAX_TXNS];
    struct listener_log log[3];
} *j;

static uint32_t journal_begin(uint32_t writer, uint32_t n)
{
    uint32_t id = atomic_fetch_add(&j->next_txn, 1);
    CHECK(id < MAX_TXNS);
    j->txn[id].writer = writer;
    j->txn[id].n = n;
    atomic_store(&j->txn[id].state, ABOUT);
    return id;
}

static void journal_end(uint32_t id, int rc)
{
    if (rc < 0 && rc != -PN_EQUEUEFULL)
        FAIL("commit of %u: %d: %s", id, rc, pn_error_message());
    atomic_store(&j->txn[id].state, rc < 0 ? ABORTED : COMMITTED);
    if (rc < 0)
        sched_yield(); /* the listeners are behind */
}

/* ---- a case ---------------------------------------------------------------------------------- */

typedef void scenario(void);

static struct crash_case {
    const char *label;
    uint32_t nth;
    scenario *victim;
    int action;          /* enum pn_crash_action */
    uint32_t recoverers; /* that die in the recovery before the victim does */
} now;

static bool going_on(void)
{
    return atomic_load(&j->stop) == 0;
}

static const char *segment;
static pn_engine *engine;
static pn_conn *mine;
static int pipe_to_parent[2], hold_pipe[2];
static pid_t listeners[3], victim_pid, helper_pid;
static uint32_t counter[2];

static const char *const action_names[] = {"", "killed", "stopped", "exited"};

#define REQUIRE(cond, ...)                                                                         \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "%s, hit %u, %s: ", now.label, now.nth, action_names[now.action]);     \
            FAIL(__VA_ARGS__);                                                                     \
        }                                                                                          \
    } while (0)

static struct pn_segment *inside(void)
{
    struct pn_segment *seg = pn_first_segment();
    while (seg != NULL && strcmp(seg->name, segment) != 0)
        seg = seg->next;
    CHECK(seg != NULL);
    return seg;
}

static pn_conn *connect_with(int signo)
{
    pn_conn *conn;
    CHECK_OK(pn_connect(engine, "db", 2, signo, NULL, &conn));
    return conn;
}

static void listen_to(pn_conn *conn, const char *a, const char *b)
{
    pn_txn *txn;
    CHECK_OK(pn_txn_begin(conn, &txn));
    CHECK_OK(pn_txn_listen(txn, a, strlen(a)));
    if (b != NULL)
        CHECK_OK(pn_txn_listen(txn, b, strlen(b)));
    CHECK_OK(pn_txn_commit(txn));
}

static void listen_to_pattern(pn_conn *conn, const char *pattern)
{
    pn_txn *txn;
    CHECK_OK(pn_txn_begin(conn, &txn));
    CHECK_OK(pn_txn_listen_pattern(txn, pattern, strlen(pattern)));
    CHECK_OK(pn_txn_commit(txn));
}

static int send_one(pn_conn *conn, uint32_t kind, uint32_t id, size_t size)
{
    static char payload[BIG];
    struct message m = {.kind = kind, .txn = id, .i = 0, .n = 1};
    memcpy(payload, &m, sizeof m);
    return pn_notify(conn, "all", 3, payload, size);
}

static void notify(pn_conn *conn, uint32_t writer, uint32_t kind, size_t size)
{
    uint32_t id = journal_begin(writer, 1);
    journal_end(id, send_one(conn, kind, id, size));
}

/* With `headers`, or without. */
static void add_one(pn_txn *txn, const char *payload, size_t size, const struct message *headers)
{
    const uint32_t len = (uint32_t) size;
    const pn_notify_in in = {.channel = "all",
                             .channel_len = 3,
                             .payloads = payload,
                             .lens = &len,
                             .n = 1,
                             .headers = headers,
                             .headers_len = headers == NULL ? 0 : sizeof *headers};
    uint64_t queued;
    CHECK_OK(pn_notify_headers(NULL, txn, &in, &queued));
    CHECK_EQ(queued, 1);
}

/* Every other one has headers that say the same as its payload. */
static void add_messages(pn_txn *txn, uint32_t id, uint32_t n, size_t size)
{
    char *payload = calloc(1, BIG);
    for (uint32_t i = 0; i < n; i++) {
        struct message m = {.kind = PLAIN, .txn = id, .i = i, .n = n};
        memcpy(payload, &m, sizeof m);
        add_one(txn, payload, size, i % 2 == 1 ? &m : NULL);
        CHECK_OK(pn_txn_notify(txn, "all", 3, payload, size)); /* collapses */
    }
    free(payload);
}

static void add_bumps(pn_txn *txn, uint32_t id, uint32_t n)
{
    j->txn[id].bumps = n;
    CHECK_OK(pn_txn_bump(txn, counter[1]));
    for (uint32_t i = 0; i < n; i++)
        CHECK_OK(pn_txn_bump(txn, counter[0]));
}

/* What the messages of a listener say that the counters should be. */
struct sums {
    uint64_t bumps[2];
    uint32_t upto; /* of its log */
};

static void add_up(const struct listener_log *log, struct sums *sums)
{
    for (; sums->upto < atomic_load(&log->n); sums->upto++) {
        const struct message *m = &log->got[sums->upto].m;
        if (m->i != 0)
            continue;
        sums->bumps[0] += j->txn[m->txn].bumps;
        sums->bumps[1] += j->txn[m->txn].bumps != 0;
    }
}

static int64_t drain(pn_conn *conn, pn_batch *batch)
{
    int64_t n, sum = 0;
    while ((n = pn_poll(conn, batch, 0)) > 0)
        sum += n;
    CHECK_OK(n);
    return sum;
}

/* ---- listeners ------------------------------------------------------------------------------- */

static void check_headers(const pn_batch *b, size_t i, const struct message *m)
{
    uint64_t begin = b->with_headers == 0 ? 0 : b->headers_offset[i];
    uint64_t end = b->with_headers == 0 ? 0 : b->headers_offset[i + 1];
    CHECK_EQ(end - begin, m->i % 2 == 1 ? sizeof *m : 0);
    CHECK(begin == end || memcmp(b->headers + begin, m, sizeof *m) == 0);
}

static bool record(pn_batch *b, struct listener_log *log, uint32_t me)
{
    bool go_on = true;
    for (size_t i = 0; i < b->n; i++) {
        struct got g = {.seq = b->seq[i]};
        uint32_t at = atomic_load(&log->n);
        CHECK(b->offset[i + 1] - b->offset[i] >= sizeof g.m);
        memcpy(&g.m, b->data + b->offset[i], sizeof g.m);
        check_headers(b, i, &g.m);
        CHECK(at < MAX_GOT);
        log->got[at] = g;
        atomic_store(&log->n, at + 1);
        char c = 'p';
        if (g.m.kind == PING)
            CHECK_EQ(write(pipe_to_parent[1], &c, 1), 1);
        if (g.m.kind == HOLD && me == 0)
            CHECK_EQ(read(hold_pipe[0], &c, 1), 1); /* awake, and does not read on */
        if (g.m.kind == QUIT)
            go_on = false;
    }
    return go_on;
}

static bool without_timer;

static void stop_slow_timer(pn_conn *conn)
{
    static const struct itimerspec never;
    conn->next_timer_ns = INT64_MAX;
    if (conn->tfd >= 0)
        CHECK_EQ(timerfd_settime(conn->tfd, 0, &never, NULL), 0);
}

/* 0: sleeps in pn_wait(); 1: is never signalled, and hears by a pattern; 2: sleeps on the
 * descriptor, reads by two */
static void listener(void *arg)
{
    uint32_t me = (uint32_t) (uintptr_t) arg;
    pn_conn *conn = connect_with(me == 1 ? -1 : 0);
    pn_batch *batch = pn_batch_new();
    struct pollfd fd = {.fd = me == 2 ? pn_fileno(conn) : -1, .events = POLLIN};
    struct sums sums = {.upto = 0};
    if (me == 1)
        listen_to_pattern(conn, "a[k-m]*");
    else
        listen_to(conn, "all", NULL);
    if (without_timer)
        stop_slow_timer(conn);
    CHECK_EQ(write(pipe_to_parent[1], "r", 1), 1);
    for (bool go_on = true; go_on;) {
        int rc = me == 2 ? poll(&fd, 1, -1) : pn_wait(conn, -1);
        if (rc < 0 && rc != -EINTR && !(me == 2 && errno == EINTR))
            FAIL("%s, hit %u: listener %u: wait: %d: %s", now.label, now.nth, me, rc,
                 pn_error_message());
        uint64_t before[2], after;
        for (int k = 0; k < 2; k++)
            before[k] = pn_generation_value(engine, counter[k]);
        int64_t n = pn_poll(conn, batch, me == 2 ? 2 : 0);
        if (n < 0)
            FAIL("%s, hit %u: listener %u: poll: %s", now.label, now.nth, me, pn_error_message());
        go_on = record(batch, &j->log[me], me);
        add_up(&j->log[me], &sums);
        for (int k = 0; k < 2; k++) {
            after = pn_generation_value(engine, counter[k]);
            REQUIRE(after >= sums.bumps[k], "listener %u was told of %llu bumps, and reads %llu",
                    me, (unsigned long long) sums.bumps[k], (unsigned long long) after);
            REQUIRE(me == 2 || sums.bumps[k] >= before[k],
                    "listener %u reads %llu, and was told of %llu bumps", me,
                    (unsigned long long) before[k], (unsigned long long) sums.bumps[k]);
        }
    }
    pn_conn_close(conn);
    pn_batch_free(batch);
    pn_engine_close(engine);
}

/* n bytes from the listeners; false if they do not come in time. */
static bool hear(int n, int ms)
{
    int64_t until = test_now_ns() + ms * INT64_C(1000000);
    struct pollfd p = {.fd = pipe_to_parent[0], .events = POLLIN};
    char c[8];
    while (n > 0) {
        int64_t left = (until - test_now_ns()) / 1000000;
        if (left < 0 || (poll(&p, 1, (int) left + 1) < 1 && errno != EINTR))
            return false;
        ssize_t k = p.revents != 0 ? read(p.fd, c, (size_t) n) : 0;
        n -= (int) k;
    }
    return true;
}

/* ---- the victim: a mixed workload that reaches most labels ----------------------------------- */

enum { VICTIM = 1, NOTIFIER = 2, HELPER = 3 };

static void in_transactions(pn_conn *conn, int round)
{
    char own[16];
    uint32_t id, index;
    pn_txn *txn;

    int len = snprintf(own, sizeof own, "counter%d", round);
    CHECK_OK(pn_generation(conn, own, (size_t) len, &index));
    len = snprintf(own, sizeof own, "own%d", round % 5);
    CHECK_OK(pn_txn_begin(conn, &txn));
    id = journal_begin(VICTIM, 3);
    CHECK_OK(pn_txn_listen(txn, own, (size_t) len));
    CHECK_OK(pn_txn_listen_pattern(txn, own, (size_t) len));
    CHECK_OK(pn_txn_listen_pattern(txn, "o?*", 3));
    add_messages(txn, id, 3, 64);
    CHECK_OK(pn_txn_notify(txn, own, (size_t) len, "x", 1));
    CHECK_EQ(pn_txn_savepoint(txn), 1);
    CHECK_OK(pn_txn_notify(txn, "all", 3, "never", 5));
    CHECK_OK(pn_txn_bump(txn, counter[0]));
    CHECK_OK(pn_txn_rollback_to(txn, 1));
    add_bumps(txn, id, 3);
    CHECK_OK(pn_txn_unlisten(txn, "other", 5));
    CHECK_OK(pn_txn_unlisten_pattern(txn, "*al?", 4));
    journal_end(id, pn_txn_commit(txn));

    for (int commit = 0; commit < 2; commit++) { /* prepare, then commit or abort */
        CHECK_OK(pn_txn_begin(conn, &txn));
        id = journal_begin(VICTIM, 2);
        add_messages(txn, id, 2, commit != 0 ? BIG : 100);
        add_bumps(txn, id, 1);
        CHECK_OK(pn_txn_listen(txn, "prepared", 8));
        CHECK_OK(pn_txn_listen_pattern(txn, "prep*", 5));
        int rc = pn_txn_prepare(txn);
        if (rc == 0 && commit != 0) {
            rc = pn_txn_commit(txn);
            CHECK_OK(rc);
        } else {
            pn_txn_abort(txn);
            rc = -PN_EQUEUEFULL;
        }
        journal_end(id, rc);
    }
}

static void mixed(void)
{
    pn_batch *batch = pn_batch_new();
    double usage;
    for (int round = 0; round < ROUNDS && going_on(); round++) {
        pn_conn *conn = connect_with(0);
        listen_to(conn, "all", "other");
        listen_to_pattern(conn, "*al?");
        if (round % 2 == 1)
            CHECK(pn_fileno(conn) >= 0);
        drain(conn, batch);
        notify(conn, VICTIM, PLAIN, 40);
        CHECK_OK(pn_wait(conn, 100000000));
        drain(conn, batch);
        in_transactions(conn, round);
        CHECK_OK(pn_queue_usage(engine, &usage));
        notify(conn, VICTIM, PLAIN, BIG);
        int rc = pn_wait(conn, 1000000);
        CHECK(rc >= 0 || rc == -EINTR);
        drain(conn, batch);
        rc = pn_wait(conn, 1000); /* nothing to read: asleep, latch and all */
        CHECK(rc >= 0 || rc == -EINTR);
        pn_conn_close(conn);
    }
}

/* ---- victims with company -------------------------------------------------------------------- */

static void dead_listener(void *arg)
{
    pn_txn *txn;
    CHECK_OK(pn_crash_arm("nothing", 1, PN_CRASH_KILL));
    pn_conn *conn = connect_with(0);
    listen_to(conn, "all", "d");
    listen_to_pattern(conn, "a*");
    CHECK_OK(pn_txn_begin(conn, &txn));
    CHECK_OK(pn_txn_listen(txn, "e", 1));
    CHECK_OK(pn_txn_listen_pattern(txn, "e*", 2));
    CHECK_OK(pn_txn_notify(txn, "all", 3, "reserved", 8));
    CHECK_OK(pn_txn_prepare(txn));
    (void) arg;
    raise(SIGKILL);
}

static void reaping(void)
{
    pn_stat stat;
    pn_conn *conn = connect_with(0);
    for (int round = 0; round < 8 && going_on(); round++) {
        CHECK_KILLED(spawn(dead_listener, NULL), SIGKILL);
        CHECK_OK(pn_engine_stat(engine, &stat, NULL, 0));
        notify(conn, VICTIM, PLAIN, 40);
    }
    pn_conn_close(conn);
}

static void die_holding_the_lock(void *arg)
{
    static const char *const labels[] = {"commit:after-head", "listen:bit",        "commit:want",
                                         "unlisten:sub",      "commit:entry",      "listen:entry",
                                         "commit:unslept",    "commit:generation", "listen:pattern",
                                         "unlisten:pattern",  "commit:matched"};
    uint32_t round = (uint32_t) (uintptr_t) arg;
    pn_txn *txn;
    char own[16];
    int len = snprintf(own, sizeof own, "r%u", round % 4);
    CHECK_OK(pn_crash_arm("nothing", 1, PN_CRASH_KILL));
    pn_conn *conn = connect_with(0);
    listen_to(conn, "all", "d");
    listen_to_pattern(conn, "d*");
    CHECK_OK(pn_crash_arm(labels[round % 11], 1, PN_CRASH_KILL));
    for (int i = 0; i < 3; i++) {
        uint32_t id = journal_begin(HELPER, 2);
        CHECK_OK(pn_txn_begin(conn, &txn));
        CHECK_OK(pn_txn_listen(txn, own, (size_t) len));
        CHECK_OK(pn_txn_unlisten(txn, "d", 1));
        CHECK_OK(pn_txn_listen_pattern(txn, "r*", 2));
        CHECK_OK(pn_txn_unlisten_pattern(txn, "d*", 2));
        add_messages(txn, id, 2, 40);
        add_bumps(txn, id, 2);
        journal_end(id, pn_txn_commit(txn));
    }
}

static void recovering(void)
{
    for (uint32_t round = 0; round < 30 && going_on(); round++) {
        pn_conn *conn = connect_with(0);
        listen_to(conn, "all", NULL);
        reap(spawn(die_holding_the_lock, (void *) (uintptr_t) round));
        notify(conn, VICTIM, PLAIN, 40);
        pn_conn_close(conn);
    }
}

/* The same, but others die in the recovery before we do: at our label, and at all the others. */
static void die_in_recovery(void *arg)
{
    static const char *const labels[] = {
        "recover:begin",      "recover:applied", "recover:from",      "recover:want",
        "recover:generation", "recover:unslept", "recover:woken",     "recover:before-woken",
        "recover:index",      "recover:pattern", "recover:consistent"};
    uint32_t i = (uint32_t) (uintptr_t) arg;
    pn_stat stat;
    CHECK_OK(pn_crash_arm(i % 2 == 0 ? now.label : labels[i / 2 % 11], 1, PN_CRASH_KILL));
    CHECK_OK(pn_engine_stat(engine, &stat, NULL, 0));
}

static void recovering_again(void)
{
    for (uint32_t round = 0; round < 30 && going_on(); round++) {
        pn_conn *conn = connect_with(0);
        listen_to(conn, "all", NULL);
        reap(spawn(die_holding_the_lock, (void *) (uintptr_t) round));
        for (uint32_t i = 0; i < now.recoverers; i++)
            reap(spawn(die_in_recovery, (void *) (uintptr_t) (round + i)));
        notify(conn, VICTIM, PLAIN, 40);
        pn_conn_close(conn);
    }
}

/* Asleep, while neighbours come, die with the lock in hand, and are taken over by us. */
static void watching(void)
{
    pn_conn *conn = connect_with(0);
    pn_batch *batch = pn_batch_new();
    listen_to(conn, "all", NULL);
    for (uint32_t round = 0; round < 30; round++) {
        pid_t pid = spawn(die_holding_the_lock, (void *) (uintptr_t) round);
        do {
            int rc = pn_wait(conn, 20000000);
            CHECK(rc >= 0 || rc == -EINTR);
            drain(conn, batch);
        } while (waitpid(pid, NULL, WNOHANG) == 0);
        int rc = pn_wait(conn, 1000000); /* it lies there at the latest now */
        CHECK(rc >= 0 || rc == -EINTR);
        drain(conn, batch);
    }
    pn_conn_close(conn);
}

/* Listener 0 holds the ring full; we wait for room and die of it. */
static void blocked_writer(void)
{
    pn_conn *conn = connect_with(0);
    while (going_on())
        notify(conn, VICTIM, PLAIN, 4000);
    pn_conn_close(conn);
}

/* The helper writes until the ring is full; we hold it, then read, and so wake the helper. */
static void endless_writer(void *arg)
{
    (void) arg;
    pn_conn *conn = connect_with(0);
    while (atomic_load(&j->stop) == 0)
        notify(conn, HELPER, PLAIN, 4000);
    pn_conn_close(conn);
}

/* Then the writer waits for this one slot. */
static bool others_have_read(const struct pn_segment *seg, uint32_t slot)
{
    for (uint32_t i = 0; i < seg->max_backends; i++) {
        const struct QueueBackendStatus *b = &seg->backend[i];
        if (i != slot && pn_load_relaxed(&b->state) == PN_SLOT_CLAIMED && b->numSubs != 0 &&
            (pn_load_acquire(&b->pos) & ~PN_ASLEEP) < pn_load_relaxed(&b->want))
            return false;
    }
    return true;
}

static void waking_writers(void)
{
    pn_conn *conn = connect_with(0);
    pn_batch *batch = pn_batch_new();
    struct pn_segment *seg = inside();
    listen_to(conn, "all", NULL);
    atomic_store(&j->ready, 1);
    /* a listener that has just read may still be about to wake the writer before us */
    for (int round = 0; round < 200 && going_on(); round++) {
        while (going_on() && !(others_have_read(seg, conn->slot) &&
                               pn_load_relaxed(&seg->ctl->room_waiters) != 0))
            sched_yield();
        CHECK_OK(pn_poll(conn, batch, 0));
    }
    pn_conn_close(conn);
}

/*
 * Labels that only a race reaches.  Un-slept between falling asleep and looking again: we stop
 * there, the notifier notifies, and the handler that runs when we are continued arms the label.
 */
static volatile sig_atomic_t race_round;

static void arm_for_real(int signo)
{
    (void) signo;
    atomic_store(&j->scripted, 0);
    if (now.nth > (uint32_t) race_round)
        pn_crash_arm(now.label, now.nth - (uint32_t) race_round, now.action);
}

static void rewoken(void)
{
    pn_batch *batch = pn_batch_new();
    signal(SIGUSR2, arm_for_real);
    CHECK_OK(pn_crash_arm("nothing", 1, PN_CRASH_KILL));
    pn_conn *conn = connect_with(0);
    listen_to(conn, "all", NULL);
    for (race_round = 0; race_round < 4 && going_on(); race_round++) {
        notify(conn, VICTIM, PLAIN, 40);
        CHECK(pn_poll(conn, batch, 0) >= 1); /* awake now */
        atomic_store(&j->scripted, 1);
        CHECK_OK(pn_crash_arm("sleep:asleep", 1, PN_CRASH_STOP));
        CHECK_OK(pn_poll(conn, batch, 0));
        CHECK_OK(pn_crash_arm("nothing", 1, PN_CRASH_KILL));
        drain(conn, batch);
    }
}

/* We wake ourselves, because a notifier has raised `want` and not yet un-slept us. */
static void slow_notifier(void *arg)
{
    CHECK_OK(pn_crash_arm("nothing", 1, PN_CRASH_KILL));
    pn_conn *conn = connect_with(0);
    CHECK_OK(pn_crash_arm("commit:want", 4, PN_CRASH_STOP)); /* three listeners, and the victim */
    (void) arg;
    notify(conn, HELPER, PLAIN, 40);
}

static void waking_myself(void)
{
    pn_batch *batch = pn_batch_new();
    pn_conn *conn = connect_with(0);
    listen_to(conn, "all", NULL);
    for (int round = 0; round < 8 && going_on(); round++) {
        int status;
        drain(conn, batch);
        pid_t pid = spawn(slow_notifier, NULL);
        CHECK_EQ(waitpid(pid, &status, WUNTRACED), pid);
        CHECK_OK(pn_poll(conn, batch, 0));
        kill(pid, SIGCONT);
        if (WIFSTOPPED(status))
            reap(pid);
    }
}

/* One of many sleepers, which signal each other on: dies in the handler, a claimed bit in hand. */
enum { CHAINED = 4 };
static pid_t chained_pid[CHAINED];

static void chained_sleeper(void *arg)
{
    pn_batch *batch = pn_batch_new();
    pn_conn *conn = connect_with(0);
    (void) arg;
    listen_to(conn, "all", NULL);
    CHECK_EQ(write(pipe_to_parent[1], "r", 1), 1);
    while (atomic_load(&j->stop) == 0) {
        pn_wait(conn, 100000000);
        drain(conn, batch);
    }
    pn_conn_close(conn);
}

static void chained(void)
{
    chained_sleeper(NULL);
}

static void paced_writer(void *arg)
{
    (void) arg;
    const struct timespec pace = {.tv_nsec = 100000}; /* a stream, and yet they sleep again */
    pn_conn *conn = connect_with(0);
    for (int i = 0; i < 20000 && atomic_load(&j->stop) == 0; i++) {
        notify(conn, HELPER, PLAIN, 40);
        nanosleep(&pace, NULL);
    }
    atomic_store(&j->stop, 1);
    pn_conn_close(conn);
}

static void start_chain(void)
{
    REQUIRE(hear(1, TEST_PATIENCE_MS), "the victim did not start");
    for (int i = 0; i < CHAINED; i++)
        chained_pid[i] = spawn(chained_sleeper, NULL);
    REQUIRE(hear(CHAINED, TEST_PATIENCE_MS), "the sleepers did not start");
    helper_pid = spawn(paced_writer, NULL);
}

static void end_chain(void)
{
    atomic_store(&j->stop, 1);
    for (int i = 0; i < CHAINED; i++)
        CHECK_CHILD(chained_pid[i], 0);
}

#endif
