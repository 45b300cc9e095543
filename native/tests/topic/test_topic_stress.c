/*
 * Topics under stress: eight processes do whatever they like, a supervisor kills one of them every
 * few milliseconds by SIGKILL, and starts another; then the journal is compared with what came
 * (topic_journal.h): nothing is lost, nothing comes twice, nothing that was not published comes at
 * all, and transactions happened whole or not at all.
 *
 *     test_topic_stress               two rounds
 *     test_topic_stress 60 [seed]     for a minute
 *
 * In every other round topics have a small max_depth, and what is more goes to disk.
 *
 * Under ThreadSanitizer the workers are threads, and none dies; and so it is where the kernel gives
 * the lock of the dead to no other.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "kernel.h"
#include "data_dirs.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>

enum {
    PROGRESS_MS = 20000,
    MAX_MESSAGES = 1 << 18,
    MAX_TXNS = 1 << 15,
    BIG = 9000,
    WORKERS = 8,
    ROUND_MS = 1500
};

#include "topic_journal.h"
#include "topic_day.h"

#if defined(__SANITIZE_THREAD__)
static bool with_threads = true;

/* A body is read without the lock, and believed if the state word is the same before and after
 * (consume.c 2): a reader that was too slow may read what is being overwritten. */
__attribute__((visibility("default"))) const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "race:copy_out\n";
}
#else
static bool with_threads;
#endif

static uint32_t seed, round_no;

static const char *what_runs(void)
{
    static char text[64];
    snprintf(text, sizeof text, "seed %u, round %u", seed, round_no);
    return text;
}

static uint32_t next_random(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

/* ---- a worker -------------------------------------------------------------------------------- */

/* As much as there is, up to n. */
static void consume(struct mortal *v, pn_consumer *consumer, enum topic_no no, int which, int n)
{
    struct held h;
    while (n-- > 0 && take(consumer, v->me, no, which, 0, &h)) {
        if (times_out(no, which))
            finish_perhaps(v->conn, &h, v->me);
        else
            finish(v->conn, &h, v->me);
    }
}

/* More than all publish, so that it does not grow. */
static void draining(struct mortal *v)
{
    pn_consumer *consumer =
        consumer_of(v->conn, channel_named(v->conn, v->work, v->sleeps_on == 0 ? "a" : "b"), 8, 0);
    consume(v, v->cx, OWN, 0, 40);
    consume(v, v->cy, OWN, 1, 40);
    consume(v, consumer, WORK, v->sleeps_on, 80);
    CHECK_OK(pn_consumer_close(consumer));
}

static void something(struct mortal *v, uint32_t *random)
{
    uint32_t r = next_random(random);
    v->sleeps_on = (int) (r >> 16 & 1);
    switch (r % 12) {
    case 0:
        publishing(v);
        break;
    case 1:
        answering(v);
        break;
    case 2:
        timing(v);
        break;
    case 3:
    case 4:
    case 5:
        in_transaction(v, (enum end_of_txn)(r >> 8 & 3));
        refused_transaction(v);
        break;
    case 6:
        pausing(v);
        break;
    case 7:
        deleting(v, (int) (r >> 8 & 0xffff));
        break;
    case 8:
        sleeping(v);
        break;
    case 9:
        close_mortal(v);
        open_mortal(v, v->me);
        break;
    default:
        draining(v);
    }
}

/* The journal is; then workers end by themselves. */
static bool is_full(void)
{
    return atomic_load(&j->next) > MAX_MESSAGES - 4096 ||
           atomic_load(&j->next_txn) > MAX_TXNS - 256;
}

static void worker(void *arg)
{
    struct mortal v;
    uint32_t me = (uint32_t) (uintptr_t) arg, random = (seed + round_no * 7919) * 2654435761U + me;
    random |= 1;
    open_mortal(&v, me);
    while (atomic_load(&j->stop) == 0 && !is_full())
        something(&v, &random);
    close_mortal(&v);
}

static void *worker_thread(void *arg)
{
    worker(arg);
    return NULL;
}

/* ---- a round --------------------------------------------------------------------------------- */

static pn_ref work, own;
static uint64_t most_on_disk; /* that was seen at the end of a round */

static pn_ref topic_of_depth(const char *name, uint64_t max_depth)
{
    const pn_topic_options o = {.given = PN_TOPIC_MAX_DEPTH, .max_depth = max_depth};
    pn_ref ref;
    CHECK_OK(pn_topic_open(mine, name, strlen(name), &o, &ref));
    return ref;
}

static uint64_t left_on_disk(pn_ref topic)
{
    pn_topic_stats stat;
    CHECK_OK(pn_topic_stat(mine, topic, &stat));
    most_on_disk = stat.on_disk > most_on_disk ? stat.on_disk : most_on_disk;
    return stat.on_disk;
}

/* What is on disk goes to both channels, so both have to make room. */
static void finish_both(enum topic_no no, pn_ref topic, const char *first, const char *second)
{
    uint64_t before;
    do {
        before = left_on_disk(topic);
        finish_what_is_left(no, topic, first, 0);
        finish_what_is_left(no, topic, second, 1);
    } while (before != 0);
}

static void begin_round(void)
{
    pn_options o;
    pn_txn *txn;
    pn_options_default(&o);
    o.max_backends = 4 * WORKERS;
    o.topic_memory = 64 << 20;
    on_disk = round_no % 2 == 1;
    if (on_disk)
        snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    segment = test_segment_name();
    CHECK_OK(pn_open(segment, &o, &engine));
    j = mmap(NULL, sizeof *j, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE,
             -1, 0);
    CHECK(j != MAP_FAILED);
    mine = connect_with(-1);
    work = topic_of_depth("work", on_disk ? 30 : 0);
    own = topic_of_depth("own", on_disk ? 20 : 0);
    channel_named(mine, work, "a");
    channel_named(mine, work, "b");
    channel_named(mine, own, "x");
    channel_named(mine, own, "y");
    CHECK_OK(pn_txn_begin(mine, &txn));
    CHECK_OK(pn_txn_listen(txn, "news", 4));
    CHECK_OK(pn_txn_commit(txn));
}

/* What workers have left that died while they had a topic of their own. */
static void delete_all(void)
{
    static pn_topic_stats rows[1024];
    int n = pn_topic_list(mine, rows, 1024);
    CHECK(n >= 0 && n <= 1024);
    for (int i = 0; i < n; i++)
        CHECK_OK(pn_topic_delete(mine, rows[i].ref));
}

static void end_round(void)
{
    CHECK_OK(pn_topic_pause(mine, own, 0));
    finish_both(WORK, work, "a", "b");
    finish_both(OWN, own, "x", "y");
    read_dead_letters();
    hear_news();
    check_segment("at the end");
    check_journal();
    check_nothing_left(work, "work");
    check_nothing_left(own, "own");
    check_nothing_left(topic_named(mine, "dead"), "dead");
    delete_all();
    check_segment("after all was deleted");
    if (on_disk)
        CHECK_EQ(files_in(data_dir), 0);
    printf("round %u: %u messages, %u transactions, %u killed, %llu on disk\n", round_no,
           atomic_load(&j->next), atomic_load(&j->next_txn), atomic_load(&j->deaths),
           (unsigned long long) most_on_disk);
    most_on_disk = 0;
    fflush(stdout);
    pn_conn_close(mine);
    pn_engine_close(engine);
    munmap(j, sizeof *j);
    test_segments_remove();
}

/* Kills and replaces them, until the time is over; then they end by themselves. */
static void supervise(void)
{
    pid_t pid[WORKERS];
    uint32_t id[WORKERS], next = HELPER, random = seed * 2246822519U + round_no * 2 + 1;
    int64_t until = test_now_ns() + ROUND_MS * INT64_C(1000000);
    for (int i = 0; i < WORKERS; i++)
        pid[i] = spawn(worker, (void *) (uintptr_t) (id[i] = next++));
    while (test_now_ns() < until && next < MAX_WRITERS && !is_full()) {
        uint32_t r = next_random(&random);
        int i = (int) (r >> 8) % WORKERS, status;
        struct timespec pause = {.tv_nsec = (long) (r >> 12) % 12 * MS};
        nanosleep(&pause, NULL);
        hear_news();
        if (r % 16 == 0) {
            check_segment("under stress");
            left_on_disk(own);
        }
        atomic_store(&j->doomed[id[i]], 1);
        atomic_fetch_add(&j->deaths, 1);
        kill(pid[i], SIGKILL);
        status = reap(pid[i]);
        REQUIRE(WIFSIGNALED(status) || is_full(), "a worker ended by itself, with status %x",
                status);
        pid[i] = spawn(worker, (void *) (uintptr_t) (id[i] = next++));
    }
    atomic_store(&j->stop, 1);
    for (int i = 0; i < WORKERS; i++)
        CHECK_CHILD(pid[i], 0);
}

static void run_threads(void)
{
    pthread_t thread[WORKERS];
    for (uintptr_t i = 0; i < WORKERS; i++)
        CHECK_EQ(pthread_create(&thread[i], NULL, worker_thread, (void *) (HELPER + i)), 0);
    for (int i = 0; i < ROUND_MS / 10; i++) {
        test_sleep_ms(10);
        hear_news();
    }
    atomic_store(&j->stop, 1);
    for (int i = 0; i < WORKERS; i++)
        CHECK_EQ(pthread_join(thread[i], NULL), 0);
}

int main(int argc, char **argv)
{
    int64_t began = test_now_ns(), seconds = argc > 1 ? atoll(argv[1]) : 0;
    seed = argc > 2 ? (uint32_t) strtoul(argv[2], NULL, 10) : (uint32_t) getpid();
    many = true;
    data_dir_make();
    printf("seed %u\n", seed);
    if (!robust_mutexes()) {
        with_threads = true;
        printf("# skip: no robust_mutexes()\n");
    }
    for (round_no = 0; round_no < 2 || test_now_ns() - began < seconds * 1000000000; round_no++) {
        begin_round();
        if (with_threads)
            run_threads();
        else
            supervise();
        end_round();
    }
    return 0;
}
