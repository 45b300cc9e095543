/*
 * Full queues under SIGKILL and SIGSTOP: every label of copy.c, room.c and spill.c is reached by
 * a process that is killed there, and the others are owed what they were.
 *
 *   test_crash_full            all
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "full_queue.h"

#include <stdatomic.h>

#include "queue/spill.h"

enum { NEVER = 0xffff };

/* What a victim was about to commit, and has committed: numbers of messages on "c". */
static struct {
    _Atomic(uint64_t) about, sent;
    _Atomic(uint32_t) ready;
} *journal;

static const char *label;
static uint32_t nth;
static pn_engine *engine;

static void open_journal(void)
{
    if (journal == NULL) {
        journal = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        CHECK(journal != MAP_FAILED);
    }
    memset(journal, 0, 4096);
}

static int stopped(pid_t pid)
{
    int status = 0;
    pid_t got;
    do
        got = waitpid(pid, &status, WUNTRACED);
    while (got < 0 && errno == EINTR);
    CHECK_EQ(got, pid);
    return WIFSTOPPED(status);
}

/* ---- a reader that is stopped in the middle of a copy -------------------------------------- */

static void reader_that_stops(void *arg)
{
    struct heard h = {.next = 1};
    pn_conn *conn = test_connect(arg);
    test_listen(conn, "c");
    test_wait(conn, 0);
    atomic_store(&journal->ready, 1);
    while (test_wait(conn, -1) != 1)
        ;
    CHECK_OK(pn_crash_arm(label, nth, PN_CRASH_STOP));
    QueuePosition stood = pn_load_relaxed(&conn->me->pos) & ~PN_ASLEEP;
    do
        CHECK_OK(hear(conn, &h, 0)); /* stops in here; goes on when `sent` is known */
    while (h.next < atomic_load(&journal->sent));
    CHECK_EQ(h.next, atomic_load(&journal->sent));
    atomic_store(&journal->about, h.gaps == 0 ? 0 : h.missed + (stood << 32));
    pn_conn_close(conn);
}

/*
 * The copy was taken, or half of it, and before it is looked at its pages are gone: evicted, or
 * moved to a file.  Not one byte of it may come out, and nothing be missing without a gap.
 */
static void copy_that_goes_stale(bool spill, size_t size)
{
    pn_options o = test_options();
    if (spill)
        o = spilling(4096);
    else
        o.on_full = PN_FULL_DROP_SLOWEST;
    engine = test_engine(&o);
    open_journal();
    pn_conn *conn = test_connect(engine);
    pid_t pid = spawn(reader_that_stops, engine);
    CHECK_SOON(atomic_load(&journal->ready) != 0);
    uint64_t i = 1;
    for (; i < 4; i++)
        CHECK_OK(send_number(conn, "c", i, size));
    CHECK(stopped(pid));
    uint64_t before = pn_load_relaxed(&test_inside()->ctl->head);
    while (pn_load_relaxed(&test_inside()->ctl->head) < before + 150 * PAGE) {
        CHECK_OK(send_number(conn, "c", i, i % 2 ? HALF_PAGE : 20000));
        i++;
    }
    atomic_store(&journal->sent, i);
    CHECK_ENGINE(engine);
    kill(pid, SIGCONT);
    CHECK_CHILD(pid, 0);
    uint64_t missed = atomic_load(&journal->about) & 0xffffffff;
    if (spill)
        CHECK_EQ(missed, 0);
    else /* it stood at 0, and goes on where the eviction ended; no process has evicted it since */
        CHECK_EQ(missed, pn_load_relaxed(&test_inside()->ctl->floor));
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    done(engine);
}

static void copies_that_go_stale(bool spill)
{
    static const char *const labels[] = {"copy:half", "copy:ring"};
    for (size_t i = 0; i < 2; i++) {
        label = labels[i];
        nth = 1;
        copy_that_goes_stale(spill, HALF_PAGE);
        for (nth = 1; nth <= 2; nth++) /* the first page of a large entry; all of it */
            copy_that_goes_stale(spill, 60000);
    }
}

static void test_a_copy_that_is_evicted_meanwhile(void)
{
    copies_that_go_stale(false);
}

static void test_a_copy_that_is_spilled_meanwhile(void)
{
    copies_that_go_stale(true);
}

/* ---- writers that are killed --------------------------------------------------------------- */

static void send_until_killed(void *arg)
{
    pn_conn *conn = test_connect(arg);
    uint64_t seed = 5 + nth;
    CHECK_OK(pn_crash_arm(label, nth, PN_CRASH_KILL));
    for (uint64_t i = atomic_load(&journal->sent); i < 2000; i++) {
        uint64_t r = test_random(&seed);
        atomic_store(&journal->about, i);
        CHECK_OK(send_number(conn, "c", i, r % 8 == 0 ? r % 50000 : r % 6000));
        atomic_store(&journal->sent, i + 1);
    }
    pn_conn_close(conn);
}

/* As hear_all(), where the message that a victim was about to commit may not exist. */
static void hear_but_for(pn_conn *conn, struct heard *h, uint64_t doubtful)
{
    for (;;) {
        pn_batch *b = pn_batch_new();
        CHECK_OK(pn_poll(conn, b, 11));
        size_t n = b->n + b->ngaps;
        for (size_t g = 0; g < b->ngaps; g++) {
            h->gaps++;
            h->missed += b->gap[g].missed_bytes;
            h->jumps = true;
        }
        for (size_t k = 0; k < b->n; k++) {
            uint64_t i = number_at(b, k);
            bool gap = h->jumps || (h->next == doubtful && i == doubtful + 1);
            if (i < h->next || (i > h->next && !gap))
                FAIL("%s, hit %u: message %llu instead of %llu", label, nth, (unsigned long long) i,
                     (unsigned long long) h->next);
            h->next = i + 1;
            h->messages++;
            h->jumps = false;
        }
        pn_batch_free(b);
        if (n == 0)
            return;
    }
}

/* A victim commits until it is killed; then we go on.  The laggard reads at the end. */
static bool kill_a_writer(const pn_options *o, const char *at, uint32_t hit)
{
    struct heard h = {0}, late = {0};
    label = at;
    nth = hit;
    engine = test_engine(o);
    open_journal();
    pn_conn *slow = test_connect(engine), *later = test_connect(engine);
    pn_conn *conn = test_connect(engine);
    test_listen(slow, "c");
    test_listen(later, "c");
    pid_t pid = spawn(send_until_killed, engine);
    int status = reap(pid);
    bool killed = WIFSIGNALED(status);
    CHECK(killed || status == 0);
    uint64_t i = atomic_load(&journal->sent);
    uint64_t doubtful = killed ? atomic_load(&journal->about) : NEVER;
    if (i == doubtful)
        i++;
    CHECK_OK(send_number(conn, "c", i++, 100)); /* finds the lock's owner dead */
    CHECK_ENGINE(engine);
    hear_but_for(slow, &h, doubtful);
    CHECK_EQ(h.next, i);
    for (uint64_t end = i + 200; i < end; i++)
        CHECK_OK(send_number(conn, "c", i, HALF_PAGE));
    CHECK_ENGINE(engine);
    hear_but_for(slow, &h, doubtful);
    hear_but_for(later, &late, doubtful);
    CHECK_EQ(h.next, i);
    CHECK_EQ(late.next, i);
    if (o->on_full != PN_FULL_DROP_SLOWEST)
        CHECK(h.gaps == 0 && late.gaps == 0 && late.messages >= i - 1);
    CHECK_ENGINE(engine);
    CHECK_EQ(o->max_queue_pages > 0 ? count_files() : 0, 0);
    pn_conn_close(slow);
    pn_conn_close(later);
    pn_conn_close(conn);
    done(engine);
    return killed;
}

static void test_writers_killed_while_they_make_room(void)
{
    static const char *const evicting[] = {"evict:floor",      "evict:tail",  "tail:scanned",
                                           "tail:stored",      "commit:room", "commit:before-head",
                                           "commit:after-head"};
    static const char *const moving[] = {
        "spill:file",     "spill:written", "spill:mem-tail", "datafile:created", "recfile:made",
        "recfile:header", "recfile:cut",   "recfile:part",   "tail:stored",      "commit:entry"};
    static const uint32_t hits[] = {1, 2, 7};
    pn_options drop = test_options(), spill = spilling(8192), both = spilling(160);
    drop.on_full = both.on_full = PN_FULL_DROP_SLOWEST;
    for (size_t k = 0; k < sizeof hits / sizeof hits[0]; k++) {
        for (size_t i = 0; i < sizeof evicting / sizeof evicting[0]; i++) {
            CHECK(kill_a_writer(&drop, evicting[i], hits[k]));
            CHECK(kill_a_writer(&both, evicting[i], hits[k]));
        }
        for (size_t i = 0; i < sizeof moving / sizeof moving[0]; i++)
            CHECK(kill_a_writer(&spill, moving[i], hits[k]));
        CHECK(kill_a_writer(&both, "spill:removed", hits[k]));
    }
}

/* ---- the process that removes files or repairs ---------------------------------------------- */

static void read_until_killed(void *arg)
{
    struct heard h = {0};
    pn_conn *conn = test_connect(arg);
    test_listen(conn, "c");
    atomic_store(&journal->ready, 1);
    CHECK_SOON(atomic_load(&journal->sent) != 0);
    CHECK_OK(pn_crash_arm(label, nth, PN_CRASH_KILL));
    hear_all(conn, &h, 10);
    pn_conn_close(conn);
}

static bool file_and_ring_share_a_number(void)
{
    return pn_load_relaxed(&test_inside()->ctl->mem_tail) % PN_SPILL_FILE != 0;
}

static void hear_up_to_the_ring(pn_conn *conn, struct heard *h)
{
    const struct AsyncQueueControl *ctl = test_inside()->ctl;
    const QueuePosition mem_tail = pn_load_relaxed(&ctl->mem_tail);
    while ((pn_load_relaxed(&conn->me->pos) & ~PN_ASLEEP) < mem_tail)
        CHECK_EQ(hear(conn, h, 1), 1);
    CHECK_EQ((pn_load_relaxed(&conn->me->pos) & ~PN_ASLEEP) / PN_SPILL_FILE, ctl->end_file - 1);
}

/* The reader that leaves a file removes it, and dies at that: the next one does the rest. */
static void test_readers_killed_at_their_files(void)
{
    static const struct {
        const char *label;
        uint32_t hits;
        bool inside; /* the tail moves to the ring, and is still in the last file then */
    } at[] = {{"spill:released", 1, false},
              {"spill:removed", 4, false},
              {"spill:removed-last", 1, true},
              {"copy:ring", 2, false},
              {"tail:stored", 2, false}};
    pn_options o = spilling(4096);
    for (size_t k = 0; k < sizeof at / sizeof at[0]; k++)
        for (nth = 1; nth <= at[k].hits; nth++) {
            label = at[k].label;
            engine = test_engine(&o);
            open_journal();
            struct heard h = {0};
            pn_conn *slow = test_connect(engine), *conn = test_connect(engine);
            test_listen(slow, "c");
            pid_t pid = spawn(read_until_killed, engine);
            CHECK_SOON(atomic_load(&journal->ready) != 0);
            uint64_t sent = 0;
            while (sent < 600 || (at[k].inside && !file_and_ring_share_a_number()))
                CHECK_OK(send_number(conn, "c", sent++, at[k].inside ? 5 * PAGE : HALF_PAGE));
            if (at[k].inside)
                hear_up_to_the_ring(slow, &h);
            else
                hear_all(slow, &h, 0);
            CHECK_EQ(h.messages < sent, at[k].inside);
            CHECK(count_files() > 3);
            atomic_store(&journal->sent, 1);
            CHECK_KILLED(pid, SIGKILL);
            CHECK_ENGINE(engine);
            CHECK_OK(send_number(conn, "c", sent++, 100));
            hear_all(slow, &h, 0);
            CHECK_EQ(h.messages, sent);
            CHECK(test_stat(engine).backends == 2); /* which moves the tail */
            CHECK_EQ(count_files(), 0);
            CHECK_ENGINE(engine);
            pn_conn_close(slow);
            pn_conn_close(conn);
            done(engine);
        }
}

static void repair_until_killed(void *arg)
{
    CHECK_OK(pn_crash_arm("recover:mem-tail", 1, PN_CRASH_KILL));
    pn_conn_close(test_connect(arg));
}

static void read_all_and_die_at_the_tail(void *arg)
{
    pn_conn *conn = test_connect(arg);
    struct heard h = {0};
    pn_stat stat;
    test_listen(conn, "c");
    for (uint64_t i = 0; i < 20; i++)
        CHECK_OK(send_number(conn, "c", i, HALF_PAGE));
    hear_all(conn, &h, 0);
    CHECK_OK(pn_crash_arm("tail:stored", 1, PN_CRASH_KILL));
    pn_engine_stat(arg, &stat, NULL, 0);
}

static void test_killed_between_the_two_tails_and_again_in_the_repair(void)
{
    struct heard h = {0};
    pn_options o = test_options();
    o.on_full = PN_FULL_DROP_SLOWEST;
    engine = test_engine(&o);
    open_journal();
    CHECK_KILLED(spawn(read_all_and_die_at_the_tail, engine), SIGKILL);
    CHECK(pn_load_relaxed(&test_inside()->ctl->mem_tail) <
          pn_load_relaxed(&test_inside()->ctl->tail));
    CHECK_KILLED(spawn(repair_until_killed, engine), SIGKILL);
    pn_conn *conn = test_connect(engine);
    CHECK_ENGINE(engine);
    test_listen(conn, "c");
    CHECK_OK(send_number(conn, "c", 0, 100));
    hear_all(conn, &h, 0);
    CHECK_EQ(h.messages, 1);
    pn_conn_close(conn);
    done(engine);
}

/* ---- tickets ------------------------------------------------------------------------------- */

static void block_until_killed(void *arg)
{
    pn_conn *conn = test_connect(arg);
    CHECK_OK(pn_crash_arm(label, nth, PN_CRASH_KILL));
    atomic_store(&journal->about, 128);
    CHECK_OK(send_number(conn, "c", 128, HALF_PAGE));
    atomic_store(&journal->sent, 129);
    pn_conn_close(conn);
}

/* A writer that stands in the queue for room, or leaves it, dies: no other waits for it long. */
static void test_writers_killed_with_a_ticket(void)
{
    static const char *const labels[] = {"block:ticket", "block:passed-on", "block:armed"};
    for (size_t k = 0; k < 3; k++) {
        struct heard h = {0};
        pn_options o = test_options();
        o.on_full = PN_FULL_BLOCK;
        o.full_timeout_ns = 15000000000ULL;
        engine = test_engine(&o);
        open_journal();
        label = labels[k];
        nth = 1;
        pn_conn *slow = test_connect(engine), *conn = test_connect(engine);
        test_listen(slow, "c");
        for (uint64_t i = 0; i < 128; i++)
            CHECK_OK(send_number(conn, "c", i, HALF_PAGE));
        pid_t pid = spawn(block_until_killed, engine);
        if (k == 1) {
            CHECK_SOON(test_inside()->ctl->tickets != 0);
            hear_but_for(slow, &h, 128);
        }
        CHECK_KILLED(pid, SIGKILL);
        hear_but_for(slow, &h, 128);
        int64_t began = test_now_ns();
        for (uint64_t i = 129; i < 200; i++)
            CHECK_OK(send_number(conn, "c", i, HALF_PAGE));
        CHECK(test_now_ns() - began < 10000000000); /* not full_timeout */
        hear_but_for(slow, &h, 128);
        CHECK_EQ(h.next, 200);
        CHECK_EQ(test_inside()->ctl->tickets, 0);
        CHECK_ENGINE(engine);
        pn_conn_close(slow);
        pn_conn_close(conn);
        done(engine);
    }
}

int main(void)
{
    test_watchdog(110);
    if (pn_crash_label_count() <= 0)
        return 77;
    RUN(test_a_copy_that_is_evicted_meanwhile);
    RUN(test_a_copy_that_is_spilled_meanwhile);
    RUN(test_killed_between_the_two_tails_and_again_in_the_repair);
    RUN(test_readers_killed_at_their_files);
    RUN(test_writers_killed_with_a_ticket);
    RUN(test_writers_killed_while_they_make_room);
    return tests_done();
}
