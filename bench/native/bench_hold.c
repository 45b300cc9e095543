/*
 * bench_hold.c - how long the writer lock is held at the most: nothing else in a segment can commit
 * meanwhile; and how long another process's notify() takes beside that.
 *
 * Each scenario is played by this process; a figure is the longest single hold in it, from the lock
 * taken to the lock released, repairs included.  libpthread's calls are wrapped at link time, so
 * what is timed is the library as everybody has it.  The bar is the promise of docs/guarantees.md
 * on a quiet machine; what the scheduler takes away from the holder is in the figure, too, and
 * so the note says what processor time the longest hold took, by that clock.
 *
 * The bystander is a process that notifies again and again, with a pause in between.  Its holds
 * count as well: while topics are repaired it does a part of that.
 */
#include "measure.h"

#include <pthread.h>

#include "backend/conn.h"
#include "segment/lock.h"
#include "topic/topic.h"
#include "pynotify_topic.h"

enum { CHANNELS = 16000, LAGGARDS = 1000, BATCH = 1000, BODY = 200, IN_FLIGHT = 60000 };

static const double BAR_MS = 2, BYSTANDER_MS = 5;

/* ---- the longest hold ----------------------------------------------------------------------- */

enum { SAMPLES = 1 << 20, PAUSE_NS = 200000 };

/* Of this process and of the bystander. */
static struct shared {
    _Atomic(int64_t) longest_ns, longest_cpu_ns;
    atomic_int stop;
    uint32_t n;
    int64_t took_ns[SAMPLES];
} *shared;

static pthread_mutex_t *watched; /* the writer lock's mutex */
static int64_t taken_ns, taken_cpu_ns;

int __real_pthread_mutex_trylock(pthread_mutex_t *mutex);
int __real_pthread_mutex_clocklock(pthread_mutex_t *mutex, clockid_t clock,
                                   const struct timespec *until);
int __real_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_trylock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_clocklock(pthread_mutex_t *mutex, clockid_t clock,
                                   const struct timespec *until);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex);

static int64_t cpu_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (int64_t) ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void raise_to(_Atomic(int64_t) *word, int64_t value)
{
    int64_t old = atomic_load(word);
    while (old < value && !atomic_compare_exchange_weak(word, &old, value))
        ;
}

static int note_taken(pthread_mutex_t *mutex, int rc)
{
    if (mutex == watched && (rc == 0 || rc == EOWNERDEAD)) {
        taken_cpu_ns = cpu_ns();
        taken_ns = now_ns();
    }
    return rc;
}

int __wrap_pthread_mutex_trylock(pthread_mutex_t *mutex)
{
    return note_taken(mutex, __real_pthread_mutex_trylock(mutex));
}

int __wrap_pthread_mutex_clocklock(pthread_mutex_t *mutex, clockid_t clock,
                                   const struct timespec *until)
{
    return note_taken(mutex, __real_pthread_mutex_clocklock(mutex, clock, until));
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
    if (mutex == watched) {
        raise_to(&shared->longest_ns, now_ns() - taken_ns);
        raise_to(&shared->longest_cpu_ns, cpu_ns() - taken_cpu_ns);
    }
    return __real_pthread_mutex_unlock(mutex);
}

/* ---- the bystander -------------------------------------------------------------------------- */

static child bystander;

static void stand_by(int socket, void *arg)
{
    pn_conn *own = connect_to(arg);
    tell(socket, 1);
    while (atomic_load(&shared->stop) == 0 && shared->n < SAMPLES) {
        int64_t began = now_ns();
        (void) pn_notify(own, "c", 1, "x", 1); /* the queue may be full */
        shared->took_ns[shared->n++] = now_ns() - began;
        nanosleep(&(struct timespec) {.tv_nsec = PAUSE_NS}, NULL);
    }
}

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *) a, y = *(const int64_t *) b;
    return x < y ? -1 : x > y;
}

static void begin_watching(pn_conn *conn, pn_engine *of)
{
    uint64_t word;
    watched = &conn->seg->lock->mutex;
    shared->longest_ns = shared->longest_cpu_ns = 0;
    shared->stop = 0;
    shared->n = 0;
    bystander = start_child(stand_by, of);
    must_os((int) read(bystander.socket, &word, sizeof word), "read");
}

struct result {
    double ms, cpu_ms, bystander_ms;
};

static struct result end_watching(void)
{
    atomic_store(&shared->stop, 1);
    watched = NULL;
    waitpid(bystander.pid, NULL, 0);
    close(bystander.socket);
    qsort(shared->took_ns, shared->n, sizeof *shared->took_ns, by_size);
    uint32_t at = (uint32_t) ((double) shared->n * 0.999);
    return (struct result) {.ms = (double) shared->longest_ns / 1e6,
                            .cpu_ms = (double) shared->longest_cpu_ns / 1e6,
                            .bystander_ms =
                                shared->n == 0 ? 0 : (double) shared->took_ns[at] / 1e6};
}

/* ---- scenarios of the core ------------------------------------------------------------------ */

static struct result unlisten_all(void)
{
    pn_options o;
    pn_options_default(&o);
    o.max_channels = o.max_subscriptions = 16384;
    pn_engine *engine = open_segment("hold", &o);
    pn_conn *conn = connect_to(engine);
    pn_txn *txn;
    char name[16];
    for (int i = 0; i < CHANNELS; i++) {
        must(pn_txn_begin(conn, &txn), "begin");
        snprintf(name, sizeof name, "c%d", i);
        must(pn_txn_listen(txn, name, strlen(name)), "listen");
        must(pn_txn_commit(txn), "commit");
    }
    begin_watching(conn, engine);
    must(pn_txn_begin(conn, &txn), "begin");
    must(pn_txn_unlisten_all(txn), "unlisten_all");
    must(pn_txn_commit(txn), "commit");
    struct result r = end_watching();
    pn_conn_close(conn);
    pn_engine_close(engine);
    remove_segments();
    return r;
}

static void laggards(int socket, void *arg)
{
    char byte = 0;
    pn_engine *engine = arg;
    for (int i = 0; i < LAGGARDS; i++)
        listen_to(connect_to(engine), "c");
    must_os((int) write(socket, &byte, 1), "write");
    for (;;)
        pause();
}

static struct result full_queue(void)
{
    static char payload[7000];
    pn_options o;
    char byte;
    double usage;
    pn_stat stat;
    pn_options_default(&o);
    o.queue_pages = 64;
    o.max_backends = LAGGARDS + 10;
    pn_engine *engine = open_segment("hold", &o);
    pn_conn *conn = connect_to(engine);
    child c = start_child(laggards, engine);
    must_os((int) read(c.socket, &byte, 1), "read");
    memset(payload, 'x', sizeof payload);
    begin_watching(conn, engine);
    for (int i = 0; i < 200; i++)
        (void) pn_notify(conn, "c", 1, payload, sizeof payload);
    must(pn_queue_usage(engine, &usage), "queue_usage");
    must(pn_engine_stat(engine, &stat, NULL, 0), "stat");
    struct result r = end_watching();
    kill(c.pid, SIGKILL);
    waitpid(c.pid, NULL, 0);
    pn_conn_close(conn);
    pn_engine_close(engine);
    remove_segments();
    return r;
}

/* ---- scenarios of topics -------------------------------------------------------------------- */

static char data_dir[64];
static pn_engine *engine;
static pn_conn *conn;
static pn_ref topic, channel;

static void open_topic(bool durable, bool watch)
{
    pn_options o;
    pn_topic_options t = {
        .given = PN_TOPIC_DURABLE | PN_TOPIC_FSYNC, .durable = durable, .fsync = PN_FSYNC_NONE};
    pn_options_default(&o);
    o.topic_memory = UINT64_C(512) << 20;
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    engine = open_segment("hold", &o);
    conn = connect_to(engine);
    if (watch)
        begin_watching(conn, engine);
    must(pn_topic_open(conn, "t", 1, &t, &topic), "topic");
    must(pn_topic_channel_open(conn, topic, "c", 1, -1, &channel), "channel");
}

static void close_topic(void)
{
    pn_conn_close(conn);
    pn_engine_close(engine);
    remove_segments();
    segments_used = 0;
}

static void remove_logs(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s/*", data_dir);
    if (system(command) != 0)
        die("%s failed", command);
}

static void publish_batches(int n)
{
    static uint8_t bodies[BATCH * BODY];
    static uint32_t lens[BATCH];
    const pn_message_in common = {0};
    uint64_t id;
    for (int i = 0; i < BATCH; i++)
        lens[i] = BODY;
    for (int i = 0; i < n; i += BATCH)
        must(pn_topic_publish_many(conn, NULL, topic, bodies, lens, BATCH, &common, &id),
             "publish_many");
}

/* With the topic_memory that a segment has as a rule. */
static struct result first_topic(void)
{
    pn_ref ref;
    pn_options o;
    pn_options_default(&o);
    engine = open_segment("hold", &o);
    conn = connect_to(engine);
    begin_watching(conn, engine);
    must(pn_topic_open(conn, "t", 1, NULL, &ref), "topic");
    struct result r = end_watching();
    close_topic();
    return r;
}

static struct result publishing(bool durable)
{
    open_topic(durable, false);
    begin_watching(conn, engine);
    publish_batches(20 * BATCH);
    struct result r = end_watching();
    close_topic();
    remove_logs();
    return r;
}

static struct result publishing_in_memory(void)
{
    return publishing(false);
}

static struct result publishing_durable(void)
{
    return publishing(true);
}

static void take_and_die(int socket, void *arg)
{
    const pn_consumer_options o = {.max_in_flight = 65535};
    pn_consumer *consumer;
    pn_message_out m;
    pn_conn *own = connect_to(arg);
    (void) socket;
    must(pn_consumer_open(own, channel, &o, &consumer), "consumer");
    for (int i = 0; i < IN_FLIGHT; i++)
        if (must(pn_consumer_get(consumer, 0, &m), "get") != 1)
            die("only %d messages came", i);
    kill(getpid(), SIGKILL);
}

static struct result reaping(void)
{
    pn_stat stat;
    open_topic(false, false);
    publish_batches(IN_FLIGHT);
    child c = start_child(take_and_die, engine);
    waitpid(c.pid, NULL, 0);
    begin_watching(conn, engine);
    must(pn_engine_stat(engine, &stat, NULL, 0), "stat");
    publish_batches(BATCH);
    struct result r = end_watching();
    close_topic();
    remove_logs();
    return r;
}

static void die_with_the_lock(int socket, void *arg)
{
    (void) socket;
    pn_conn *own = connect_to(arg);
    struct pn_hold hold;
    must(pn_lock_acquire(own->seg, &hold, PN_LOCK_FOREVER), "lock");
    pn_topics_begin_locked(own->seg); /* in the middle of an operation of topics */
    kill(getpid(), SIGKILL);
}

static struct result repairing(int messages)
{
    open_topic(true, false);
    publish_batches(messages);
    child c = start_child(die_with_the_lock, engine);
    waitpid(c.pid, NULL, 0);
    begin_watching(conn, engine);
    (void) pn_notify(conn, "c", 1, "x", 1);
    publish_batches(BATCH);
    struct result r = end_watching();
    close_topic();
    remove_logs();
    return r;
}

static struct result reopening(int messages)
{
    pn_ref ref;
    open_topic(true, false);
    publish_batches(messages);
    close_topic();
    open_topic(true, true); /* with all of topic_memory, which takes a while by itself */
    must(pn_topic_open(conn, "t", 1, NULL, &ref), "topic");
    struct result r = end_watching();
    close_topic();
    remove_logs();
    return r;
}

static bool quick;

static struct result repairing_many(void)
{
    return repairing(quick ? 100000 : 1000000);
}

static struct result reopening_many(void)
{
    return reopening(quick ? 100000 : 1000000);
}

static struct result compacting(void)
{
    const pn_consumer_options o = {.max_in_flight = 100};
    pn_consumer *consumer;
    pn_message_out m;
    open_topic(true, false);
    conn->seg->topics.ctl->log.compact_from = 1 << 20;
    begin_watching(conn, engine);
    must(pn_consumer_open(conn, channel, &o, &consumer), "consumer");
    for (int i = 0; i < 60; i++) {
        publish_batches(BATCH);
        for (int k = 0; k < BATCH - 20; k++) {
            must(pn_consumer_get(consumer, 0, &m), "get");
            must(pn_message_finish(conn, m.delivery, m.tag, m.id), "finish");
        }
    }
    struct result r = end_watching();
    if (conn->seg->topics.ctl->log.compactions == 0)
        die("nothing was compacted");
    pn_consumer_close(consumer);
    close_topic();
    remove_logs();
    return r;
}

/* All but the newest are in flight, and each publish drops the oldest that is not. */
static struct result dropping(void)
{
    const pn_consumer_options o = {.max_in_flight = 65535};
    const pn_message_in in = {.body = "x", .body_len = 1};
    pn_consumer *consumer;
    pn_message_out m;
    uint64_t id;
    pn_options so;
    const pn_topic_options t = {.given = PN_TOPIC_MAX_DEPTH | PN_TOPIC_OVERFLOW,
                                .overflow = PN_OVERFLOW_DROP_OLDEST,
                                .max_depth = IN_FLIGHT + 10};
    pn_options_default(&so);
    so.topic_memory = UINT64_C(512) << 20;
    engine = open_segment("hold", &so);
    conn = connect_to(engine);
    must(pn_topic_open(conn, "t", 1, &t, &topic), "topic");
    must(pn_topic_channel_open(conn, topic, "c", 1, -1, &channel), "channel");
    must(pn_consumer_open(conn, channel, &o, &consumer), "consumer");
    publish_batches(IN_FLIGHT);
    for (int i = 0; i < IN_FLIGHT; i++)
        if (must(pn_consumer_get(consumer, 0, &m), "get") != 1)
            die("only %d messages came", i);
    begin_watching(conn, engine);
    for (int i = 0; i < 2000; i++)
        must(pn_topic_publish(conn, NULL, topic, &in, &id), "publish");
    struct result r = end_watching();
    pn_consumer_close(consumer);
    close_topic();
    return r;
}

static void remove_data_dir(void)
{
    if (getpid() == segments_owner && data_dir[0] != '\0') {
        remove_logs();
        rmdir(data_dir);
    }
}

int main(int argc, char **argv)
{
    settings s = parse_arguments(argc, argv);
    const struct {
        const char *name;
        struct result (*run)(void);
    } scenarios[] = {
        {"unlisten_all of 16,000 channels", unlisten_all},
        {"a full queue, 1,000 laggards: notify, queue_usage, stat", full_queue},
        {"the first topic of a segment", first_topic},
        {"publish_many of 1,000 messages of 200 bytes", publishing_in_memory},
        {"the same, durable, fsync none", publishing_durable},
        {"the death of a consumer with 60,000 messages in flight", reaping},
        {"drop-oldest with 60,000 messages in flight", dropping},
        {"publish and finish while the log is compacted", compacting},
        {"a death with the lock, 1,000,000 durable messages (--quick: 100,000)", repairing_many},
        {"the first topic() after a reboot, as many", reopening_many},
    };
    double ms[MAX_PASSES], bystander_ms[MAX_PASSES];
    char names[2][160];
    int n = s.quick ? 2 : 5;
    quick = s.quick;
    segments_owner = getpid();
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must_os(shared == MAP_FAILED ? -1 : 0, "mmap");
    atexit(remove_segments);
    const char *tmp = getenv("TMPDIR");
    snprintf(data_dir, sizeof data_dir, "%s/bench-hold.XXXXXX", tmp != NULL ? tmp : "/tmp");
    if (mkdtemp(data_dir) == NULL)
        die("mkdtemp %s: %s", data_dir, strerror(errno));
    atexit(remove_data_dir);
    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++) {
        double cpu_ms = 0;
        for (int pass = 0; pass < n; pass++) {
            struct result r = scenarios[i].run();
            ms[pass] = r.ms;
            bystander_ms[pass] = r.bystander_ms;
            cpu_ms = r.cpu_ms > cpu_ms ? r.cpu_ms : cpu_ms;
        }
        snprintf(names[0], sizeof names[0], "at most %.3g ms of processor time", cpu_ms);
        snprintf(names[1], sizeof names[1], "%s: notify() beside it, p99.9", scenarios[i].name);
        figure f = {.program = "bench_hold",
                    .name = scenarios[i].name,
                    .unit = "ms",
                    .ours = ms,
                    .n = n,
                    .bar = BAR_MS,
                    .at_most = true,
                    .note = names[0]};
        print_figure(&f);
        f.name = names[1];
        f.ours = bystander_ms;
        f.bar = BYSTANDER_MS;
        f.note = NULL;
        print_figure(&f);
    }
    return 0;
}
