/*
 * Processes at work in a segment while another one writes random words into it.
 *
 *     scribble_live [-scribbles=N] [-seed=N] [-patience=SECONDS] [-lock]
 *
 * Five processes listen, notify, LISTEN and UNLISTEN, publish and consume, look and connect; the
 * parent waits until they have done a little, overwrites a word, and so on, and then makes a new
 * segment: after a few words, so that what cannot be noticed, as a time far ahead, stays small.
 * Each process has to end by itself: any error will do, a crash or a hang won't.  Every message has
 * a checksum of its own, which the engine knows nothing of.  One that is wrong is allowed in a
 * segment of which the ring or the arena was overwritten, since the engine does not look at
 * payloads; otherwise not.  A third of the segments have pages, topics and a log in files.
 *
 * Which words: fields that steer (positions, links, lengths, generations, states), and anywhere.
 * -lock: also the words of the two robust mutexes, but for the pointers of their lists, which glibc
 * follows before any process can look at them.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "topics.h"

#include <dirent.h>
#include <execinfo.h>
#include <ftw.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>

#include "base/crc32c.h"

enum { WORKERS = 5, IN_A_ROUND = 12, LOG = 64, FILL = 300 };

/* What the processes of a round tell each other; apart from the segment, and never overwritten. */
static struct {
    pn_atomic_u32 stop;
    pn_atomic_u64 done[WORKERS]; /* calls that returned */
    pn_atomic_u64 errors, messages, wrong;
    bool disk; /* pages, topics and a log in files */
    uint32_t scribbles;
    struct scribble {
        const char *what;
        uint64_t at, old, new;
        uint32_t size;
    } log[LOG];
} *round_;

static struct {
    uint64_t seed, scribbles, patience, rounds, wrong_allowed, errors, messages;
    bool lock, contents;
} run_ = {.seed = 1, .scribbles = 300, .patience = 45};

static const char *segment_name;
static char directory[64]; /* of a round with files */

static uint64_t random_64(void)
{
    run_.seed ^= run_.seed << 13;
    run_.seed ^= run_.seed >> 7;
    run_.seed ^= run_.seed << 17;
    return run_.seed * 0x2545f4914f6cdd1dULL;
}

static uint64_t below(uint64_t n)
{
    return n == 0 ? 0 : (random_64() >> 11) % n;
}

/* ---- messages that say themselves whether they are whole ------------------------------------- */

struct body {
    uint32_t crc, len;
    uint64_t n;
    char fill[FILL];
};

static size_t make_body(struct body *b, uint64_t n)
{
    b->n = n;
    b->len = (uint32_t) (offsetof(struct body, fill) + n * 37 % FILL);
    memset(b->fill, (int) n, sizeof b->fill);
    b->crc = pn_crc32c(0, &b->len, b->len - sizeof b->crc);
    return b->len;
}

static void look_at(const void *data, size_t len)
{
    struct body b;
    pn_fetch_add_relaxed(&round_->messages, 1);
    if (len >= offsetof(struct body, fill) && len <= sizeof b) {
        memcpy(&b, data, len);
        if (b.len == len && b.crc == pn_crc32c(0, &b.len, len - sizeof b.crc))
            return;
    }
    pn_fetch_add_relaxed(&round_->wrong, 1);
}

/* ---- the workers ----------------------------------------------------------------------------- */

/* True: go on with this connection. */
static bool counted(int worker, int64_t rc)
{
    pn_fetch_add_relaxed(&round_->done[worker], 1);
    if (rc >= 0 || rc == -EINTR)
        return true;
    pn_fetch_add_relaxed(&round_->errors, 1);
    return rc != -PN_ECORRUPT && rc != -PN_EGONE && rc != -PN_EREAPED && rc != -PN_ELOCK;
}

static bool stopped(void)
{
    return pn_load_relaxed(&round_->stop) != 0;
}

static pn_conn *connected(int worker, pn_engine *engine)
{
    pn_conn *conn = NULL;
    for (int i = 0; i < 3 && conn == NULL && !stopped(); i++)
        if (!counted(worker, pn_connect(engine, "db", 2, 0, NULL, &conn)))
            conn = NULL;
    return conn;
}

static bool change(int worker, pn_conn *conn, const char *channel, bool listen, bool prepare)
{
    pn_txn *txn;
    struct body b;
    int rc = pn_txn_begin(conn, &txn);
    if (rc != 0)
        return counted(worker, rc);
    if (listen)
        rc = pn_txn_listen(txn, channel, strlen(channel));
    else
        rc = pn_txn_unlisten(txn, channel, strlen(channel));
    if (rc == 0)
        rc = pn_txn_notify(txn, "a", 1, &b, make_body(&b, 5));
    if (rc >= 0 && prepare)
        rc = pn_txn_prepare(txn);
    if (rc >= 0)
        return counted(worker, pn_txn_commit(txn));
    pn_txn_abort(txn);
    return counted(worker, rc);
}

struct reader {
    pn_engine *engine;
    int worker;
};

static void *read_messages(void *arg)
{
    const struct reader *me = arg;
    while (!stopped()) {
        pn_conn *conn = connected(me->worker, me->engine);
        pn_batch *batch = pn_batch_new();
        bool goes_on = conn != NULL && change(me->worker, conn, "a", true, false) &&
                       change(me->worker, conn, "b", true, false);
        while (goes_on && !stopped()) {
            goes_on = counted(me->worker, pn_wait(conn, 2 * MS));
            int64_t n = goes_on ? pn_poll(conn, batch, 0) : 0;
            goes_on = goes_on && counted(me->worker, n);
            for (int64_t i = 0; i < n; i++) {
                size_t len = batch->offset[i + 1] - batch->offset[i];
                look_at(batch->data + batch->offset[i], len);
                if (pn_conn_channel(conn, batch->channel[i], NULL) == NULL)
                    pn_fetch_add_relaxed(&round_->wrong, 1);
            }
        }
        pn_batch_free(batch);
        if (conn == NULL)
            break;
        pn_conn_close(conn);
    }
    return NULL;
}

static void reads(int worker, pn_engine *engine)
{
    struct reader me = {engine, worker};
    pthread_t other;
    CHECK_EQ(pthread_create(&other, NULL, read_messages, &me), 0);
    read_messages(&me);
    pthread_join(other, NULL);
}

static void notifies(int worker, pn_engine *engine)
{
    static const char *const names[] = {"a", "b", "not heard"};
    struct body b;
    for (pn_conn *conn; (conn = connected(worker, engine)) != NULL; pn_conn_close(conn)) {
        bool goes_on = true;
        uint32_t counter;
        bool counts = pn_generation(conn, "g", 1, &counter) == 0;
        for (uint64_t n = 0; goes_on && !stopped(); n++) {
            const char *name = names[n % 3];
            goes_on = counted(worker, pn_notify(conn, name, strlen(name), &b, make_body(&b, n)));
            if (goes_on && counts && n % 16 == 0)
                goes_on = counted(worker, pn_bump(conn, counter));
            if (n % 64 == 0)
                test_sleep_ms(1); /* let them sleep, to be woken */
        }
    }
}

static void changes(int worker, pn_engine *engine)
{
    char name[16];
    for (pn_conn *conn; (conn = connected(worker, engine)) != NULL; pn_conn_close(conn)) {
        pn_batch *batch = pn_batch_new();
        bool goes_on = true;
        for (unsigned n = 0; goes_on && !stopped(); n++) {
            snprintf(name, sizeof name, "c%u", n % 40);
            goes_on = change(worker, conn, name, n % 3 != 2, n % 5 == 0) &&
                      counted(worker, pn_poll(conn, batch, 0));
        }
        pn_batch_free(batch);
    }
}

static bool publish_and_consume(int worker, pn_conn *conn, pn_consumer *consumer, pn_ref topic,
                                uint64_t n)
{
    struct body b;
    pn_message_out m;
    size_t len = make_body(&b, n);
    bool goes_on = counted(worker, pn_topic_publish_body(conn, topic, (const char *) &b, len));
    if (goes_on && n % 8 == 0) {
        const pn_message_in later = {.body = &b, .body_len = make_body(&b, n), .delay_ns = 3 * MS};
        uint64_t id;
        goes_on = counted(worker, pn_topic_publish(conn, NULL, topic, &later, &id));
        if (goes_on && n % 16 == 0)
            goes_on = counted(worker, pn_topic_cancel(conn, NULL, topic, id));
    }
    int rc = goes_on ? pn_consumer_get(consumer, n % 4 == 0 ? MS : 0, &m) : 0;
    goes_on = goes_on && counted(worker, rc);
    if (rc != 1)
        return goes_on;
    look_at(m.body, m.body_len);
    if (n % 7 == 0)
        return true; /* it goes back, when the consumer is closed */
    return counted(worker, pn_message_answer(conn, NULL, m.delivery, m.tag, m.id,
                                             n % 3 == 0 ? PN_ANSWER_REQUEUE : PN_ANSWER_FINISH, 0,
                                             NULL, 0));
}

static void works(int worker, pn_engine *engine)
{
    const pn_consumer_options options = {.max_in_flight = 4, .max_attempts = 3};
    for (pn_conn *conn; (conn = connected(worker, engine)) != NULL; pn_conn_close(conn)) {
        pn_ref topic, channel;
        const pn_topic_options durable = {.given = PN_TOPIC_DURABLE | PN_TOPIC_FSYNC |
                                                   PN_TOPIC_MAX_DEPTH,
                                          .durable = 1,
                                          .fsync = PN_FSYNC_NONE,
                                          .max_depth = 8};
        bool goes_on = true;
        while (goes_on && !stopped()) {
            pn_consumer *consumer = NULL;
            int rc = pn_topic_open(conn, "t", 1, round_->disk ? &durable : NULL, &topic);
            if (rc == 0)
                rc = pn_topic_channel_open(conn, topic, "c", 1, -1, &channel);
            if (rc == 0)
                rc = pn_consumer_open(conn, channel, &options, &consumer);
            goes_on = counted(worker, rc);
            for (uint64_t n = 1; rc == 0 && goes_on && !stopped() && n < 200; n++)
                goes_on = publish_and_consume(worker, conn, consumer, topic, n);
            if (consumer != NULL)
                pn_consumer_close(consumer);
            if (rc == 0 && goes_on)
                goes_on = counted(worker, pn_topic_delete(conn, topic));
        }
    }
}

static void watches(int worker, pn_engine *engine)
{
    static char problems[4096];
    static pn_backend_stat rows[32];
    static pn_topic_stats topics[8];
    static pn_topic_channel_stats channels[8];
    for (pn_conn *conn; (conn = connected(worker, engine)) != NULL; pn_conn_close(conn)) {
        pn_stat stat;
        bool goes_on = counted(worker, pn_engine_stat(engine, &stat, rows, 32)) &&
                       counted(worker, pn_check(engine, problems, sizeof problems));
        int n = goes_on ? pn_engine_topics(engine, topics, 8) : 0;
        goes_on = goes_on && counted(worker, n);
        pn_ref topic;
        if (n > 0 && pn_topic_find(conn, "t", 1, &topic) == 0)
            counted(worker, pn_engine_topic_channels(engine, topic, channels, 8));
        test_sleep_ms(1);
    }
}

static void (*const worker[WORKERS])(int, pn_engine *) = {reads, notifies, changes, works, watches};

static void crashed(int signo, siginfo_t *info, void *context)
{
    (void) context;
    void *frames[40];
    fprintf(stderr, "signal %d at %p\n", signo, info->si_addr);
    backtrace_symbols_fd(frames, backtrace(frames, 40), 2);
    if (signo != SIGABRT) /* the parent asks for all threads' */
        _exit(100 + signo);
}

static void run_worker(void *arg)
{
    int i = *(const int *) arg;
#if !defined(__SANITIZE_ADDRESS__)
    const struct sigaction sa = {.sa_sigaction = crashed, .sa_flags = SA_SIGINFO};
    sigaction(SIGSEGV, &sa, NULL);
    sigaction(SIGBUS, &sa, NULL);
    sigaction(SIGABRT, &sa, NULL);
    sigaction(SIGFPE, &sa, NULL);
#else
    (void) crashed;
#endif
    while (!stopped()) {
        pn_engine *engine = NULL;
        if (!counted(i, pn_open(segment_name, NULL, &engine)) || engine == NULL)
            break; /* the name is there for the whole round: the header or a state is overwritten */
        worker[i](i, engine);
        pn_engine_close(engine);
        if (pn_load_relaxed(&round_->errors) > 0)
            break;
    }
}

/* ---- the words ------------------------------------------------------------------------------- */

struct area {
    const char *what;
    uint64_t at, size;
    unsigned weight;
};

#define AREA(name, p, n, w)                                                                        \
    (struct area)                                                                                  \
    {                                                                                              \
        name, (uint64_t) ((const unsigned char *) (p) - seg->base), (n), (w)                       \
    }

static size_t find_areas(const struct pn_segment *seg, struct area *areas)
{
    size_t n = 0;
    uint64_t bits = (uint64_t) seg->words * 8, ring = (uint64_t) (seg->ring - seg->base);
    uint64_t head = pn_load_relaxed(&seg->ctl->head) % seg->ring_bytes;
    uint64_t tail = pn_load_relaxed(&seg->ctl->tail) % seg->ring_bytes;
    const struct pn_header *h = seg->hdr;
    areas[n++] = AREA("control", seg->ctl, sizeof *seg->ctl, 20);
    areas[n++] = AREA("positions", seg->ctl, 128, 8);
    areas[n++] = AREA("backends", seg->backend, 10 * sizeof *seg->backend, 20);
    areas[n++] = AREA("bitmaps", seg->listeners, bits, 2);
    areas[n++] = AREA("bitmaps", seg->owed, bits, 2);
    areas[n++] = AREA("bitmaps", seg->deferred, bits, 2);
    areas[n++] = AREA("bitmaps", seg->pinning, bits, 2);
    areas[n++] = AREA("bitmaps", seg->consuming, bits, 2);
    areas[n++] = AREA("lock files", seg->lock_ino, 16, 1);
    areas[n++] = AREA("databases", seg->database, 2 * sizeof *seg->database, 2);
    areas[n++] = AREA("buckets", seg->bucket, seg->buckets * 4ULL, 4);
    areas[n++] =
        AREA("channels", seg->channels, (uint64_t) seg->max_channels * seg->channel_entry_size, 10);
    areas[n++] = AREA("subscriptions", seg->subscription, 48 * sizeof *seg->subscription, 10);
    areas[n++] = AREA("counters", seg->generations, 2ULL * seg->generation_size, 2);
    areas[n++] =
        (struct area) {"topic control", h->topics_off, sizeof(struct pn_topic_control), 10};
    areas[n++] = (struct area) {"topic", h->topic_off, 2 * sizeof(struct pn_topic), 10};
    areas[n++] = (struct area) {"topic channels", h->topic_channel_off,
                                8 * sizeof(struct pn_topic_channel), 10};
    areas[n++] =
        (struct area) {"consumers", h->consumer_off, 3 * sizeof(struct pn_consumer_slot), 6};
    areas[n++] =
        (struct area) {"arena's pages", h->arena_owner_off, h->arena_off - h->arena_owner_off, 6};
    if (run_.lock)
        areas[n++] = AREA("lock", seg->lock, 24, 3);
    if (!run_.contents)
        return n;
    areas[n++] = (struct area) {"entries", ring + head - head % 4096, 4096, 10};
    areas[n++] = (struct area) {"entries", ring + tail - tail % 4096, 4096, 10};
    areas[n++] = (struct area) {"arena", h->arena_off, 64 << 10, 20};
    areas[n++] = (struct area) {"anywhere", PN_OS_PAGE * 2ULL, seg->size - PN_OS_PAGE * 2ULL, 10};
    areas[n++] = (struct area) {"header", 0, sizeof *seg->hdr, 2};
    return n;
}

static uint64_t some_word(const struct pn_segment *seg, uint64_t old)
{
    switch (below(10)) {
    case 0:
        return 0;
    case 1:
        return UINT64_MAX;
    case 2:
        return old + 1;
    case 3:
        return old - 1;
    case 4:
        return below(64);
    case 5:
        return pn_load_relaxed(&seg->ctl->head) + 8 * below(100) - 400;
    case 6:
        return random_64() >> below(64);
    case 7:
        return 1ULL << below(64);
    default:
        return old ^ 1ULL << below(64);
    }
}

static void scribble(struct pn_segment *seg)
{
    static const uint32_t sizes[] = {8, 8, 4, 4, 2, 1};
    struct area areas[32];
    size_t n = find_areas(seg, areas), i = 0;
    unsigned sum = 0;
    for (size_t k = 0; k < n; k++)
        sum += areas[k].weight;
    for (uint64_t pick = below(sum); pick >= areas[i].weight; i++)
        pick -= areas[i].weight;
    struct scribble s = {.what = areas[i].what, .size = sizes[below(6)]};
    s.at = (areas[i].at + below(areas[i].size)) & ~(uint64_t) (s.size - 1);
    if (s.at + s.size > seg->size)
        return;
    memcpy(&s.old, seg->base + s.at, s.size);
    s.new = some_word(seg, s.old);
    round_->log[round_->scribbles++ % LOG] = s;
    memcpy(seg->base + s.at, &s.new, s.size);
    run_.scribbles--;
}

/* ---- a round --------------------------------------------------------------------------------- */

static void tell(const char *what, int i)
{
    const struct pn_header *hdr = test_inside()->hdr;
    fprintf(stderr, "state %u: %.128s\n", pn_load_relaxed(&hdr->state), hdr->poison_reason);
    fprintf(stderr, "round %llu: worker %d %s, after these words:\n",
            (unsigned long long) run_.rounds, i, what);
    for (uint32_t k = 0; k < round_->scribbles && k < LOG; k++)
        fprintf(stderr, "  %s, %llu: %llx, was %llx (%u)\n", round_->log[k].what,
                (unsigned long long) round_->log[k].at, (unsigned long long) round_->log[k].new,
                (unsigned long long) round_->log[k].old, round_->log[k].size);
}

static uint64_t done_by_all(void)
{
    uint64_t sum = 0;
    for (int i = 0; i < WORKERS; i++)
        sum += pn_load_relaxed(&round_->done[i]);
    return sum;
}

/* They do a little.  False: none does anything any more. */
static bool let_them_work(uint64_t calls)
{
    uint64_t until = done_by_all() + calls;
    for (int i = 0; i < 5000 && done_by_all() < until; i++)
        sched_yield();
    return done_by_all() >= until;
}

/* Each of its threads says where it is. */
static void ask_where(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", (int) pid);
    DIR *tasks = opendir(path);
    for (const struct dirent *e; tasks != NULL && (e = readdir(tasks)) != NULL;)
        if (e->d_name[0] != '.') {
            syscall(SYS_tgkill, pid, atoi(e->d_name), SIGABRT);
            test_sleep_ms(300);
        }
    if (tasks != NULL)
        closedir(tasks);
    kill(pid, SIGKILL);
}

static void await(pid_t *pids)
{
    int64_t until = test_now_ns() + (int64_t) run_.patience * 1000 * MS;
    for (int i = 0; i < WORKERS; i++) {
        int status;
        pid_t ended;
        while ((ended = waitpid(pids[i], &status, WNOHANG)) == 0 && test_now_ns() < until)
            test_sleep_ms(1);
        if (ended == 0) {
            tell("hangs", i);
            ask_where(pids[i]);
            exit(1);
        }
        if (status != 0) {
            tell("crashed", i);
            FAIL("status %x", (unsigned) status);
        }
    }
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void) st;
    (void) type;
    (void) at;
    return remove(path);
}

static void remove_segment(void)
{
    char path[300];
    if (directory[0] != '\0')
        nftw(directory, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    directory[0] = '\0';
    snprintf(path, sizeof path, "/dev/shm/pynotify.%u.%s", (unsigned) geteuid(), segment_name);
    unlink(path);
    pn_remove_lock_files(segment_name);
}

static pn_options choose_options(void)
{
    static const uint32_t policies[] = {PN_FULL_ERROR, PN_FULL_DROP_SLOWEST, PN_FULL_BLOCK};
    pn_options o = test_options();
    o.on_full = policies[below(3)];
    o.full_timeout_ns = 20 * MS;
    o.max_topics = o.max_topic_channels = o.max_consumers = 8;
    o.topic_memory = 256 << 10;
    run_.contents = below(2) == 0;
    round_->disk = below(3) == 0;
    if (round_->disk) {
        snprintf(directory, sizeof directory, "/tmp/pynotify-scribble.%d", (int) getpid());
        CHECK_EQ(mkdir(directory, 0700), 0);
        snprintf(o.data_dir, sizeof o.data_dir, "%s", directory);
        o.max_queue_pages = 4 * o.queue_pages;
    }
    return o;
}

static void one_round(void)
{
    pn_engine *engine;
    pid_t pids[WORKERS];
    memset(round_, 0, sizeof *round_);
    pn_options o = choose_options();
    CHECK_OK(pn_open(segment_name, &o, &engine));
    for (int i = 0; i < WORKERS; i++)
        pids[i] = spawn(run_worker, &i);
    struct pn_segment *seg = test_inside();
    for (int i = 0; i < 200 && pn_load_relaxed(&round_->done[3]) < 20; i++)
        let_them_work(100);
    for (int i = 0; i < IN_A_ROUND && run_.scribbles != 0; i++) {
        scribble(seg);
        if (!let_them_work(30) || pn_load_relaxed(&seg->hdr->state) != PN_STATE_READY)
            break;
    }
    pn_store_relaxed(&round_->stop, 1);
    await(pids);
    uint64_t wrong = pn_load_relaxed(&round_->wrong);
    if (wrong != 0 && !run_.contents) {
        tell("(any) got what was never sent", -1);
        exit(1);
    }
    run_.wrong_allowed += wrong;
    run_.errors += pn_load_relaxed(&round_->errors);
    run_.messages += pn_load_relaxed(&round_->messages);
    run_.rounds++;
    remove_segment();
    pn_engine_close(engine);
}

static void test_scribbles_beside_everything(void)
{
    uint64_t n = run_.scribbles;
    while (run_.scribbles != 0)
        one_round();
    printf("# %llu words in %llu segments; %llu errors, %llu messages, %llu damaged ones\n",
           (unsigned long long) n, (unsigned long long) run_.rounds,
           (unsigned long long) run_.errors, (unsigned long long) run_.messages,
           (unsigned long long) run_.wrong_allowed);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (sscanf(argv[i], "-scribbles=%lu", &run_.scribbles) != 1 &&
            sscanf(argv[i], "-seed=%lu", &run_.seed) != 1 &&
            sscanf(argv[i], "-patience=%lu", &run_.patience) != 1 && strcmp(argv[i], "-lock") != 0)
            FAIL("no option: %s", argv[i]);
        run_.lock |= strcmp(argv[i], "-lock") == 0;
    }
    if (run_.seed == 0)
        run_.seed = (uint64_t) test_now_ns() ^ (uint64_t) getpid() << 40;
    printf("# seed %llu\n", (unsigned long long) run_.seed);
    run_.seed = run_.seed * 0x9e3779b97f4a7c15ULL + 1;
    segment_name = test_segment_name();
    round_ = mmap(NULL, sizeof *round_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(round_ != MAP_FAILED);
    RUN(test_scribbles_beside_everything);
    return tests_done();
}
