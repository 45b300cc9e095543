/*
 * bench_hold.c - how long the writer lock is held at the most: nothing else in a segment can commit
 * meanwhile; and how long another process's notify() takes beside that.
 *
 * Each scenario is played by this process; a figure is the longest single hold in it, from the lock
 * taken to the lock released, repairs included.  libpthread's calls are wrapped at link time, so
 * what is timed is the library as it is built for use.  The bar is the promise of
 * docs/guarantees.md on a quiet machine; what the scheduler takes away from the holder is in the
 * figure, too, and so the note says what processor time the longest hold took, by that clock.
 *
 * The bystander is a process that notifies again and again, with a pause in between.  Its holds
 * count as well: while topics are repaired it does a part of that.
 */
#include "measure.h"

#include <inttypes.h>
#include <pthread.h>

#include "backend/channel.h"
#include "backend/conn.h"
#include "queue/queue.h"
#include "segment/lock.h"
#include "topic/topic.h"
#include "pynotify_topic.h"

enum { CHANNELS = 16000, LAGGARDS = 1000, BATCH = 1000, BODY = 200, IN_FLIGHT = 60000 };
enum { LONG = 400000 };                   /* bytes of a long message */
enum { RING_PAGES = 64, PAYLOAD = 7000 }; /* of a queue that is to be full; about a page each */

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
    hear(socket);
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

/* Where a process dies: before its death, since connecting repairs what it left. */
static void place_bystander(pn_engine *of)
{
    bystander = start_child(stand_by, of);
    hear(bystander.socket);
}

static void begin_watching(pn_conn *conn, pn_engine *of)
{
    if (bystander.pid == 0)
        place_bystander(of);
    watched = &conn->seg->lock->mutex;
    shared->longest_ns = shared->longest_cpu_ns = 0;
    shared->stop = 0;
    shared->n = 0;
    tell(bystander.socket, 1);
}

struct result {
    double ms, cpu_ms, bystander_ms;
    uint32_t bystander_calls;
};

static struct result end_watching(void)
{
    atomic_store(&shared->stop, 1);
    watched = NULL;
    wait_for_death(bystander);
    bystander = (child) {.pid = 0};
    qsort(shared->took_ns, shared->n, sizeof *shared->took_ns, by_size);
    uint32_t at = (uint32_t) ((double) shared->n * 0.999);
    return (struct result) {.ms = (double) shared->longest_ns / 1e6,
                            .cpu_ms = (double) shared->longest_cpu_ns / 1e6,
                            .bystander_calls = shared->n,
                            .bystander_ms =
                                shared->n == 0 ? 0 : (double) shared->took_ns[at] / 1e6};
}

static bool quick;

/* ---- the segment of a scenario -------------------------------------------------------------- */

static pn_engine *engine;
static pn_conn *conn;

static void open_hold(const pn_options *o)
{
    engine = open_segment("hold", o);
    conn = connect_to(engine);
}

static void close_hold(void)
{
    pn_conn_close(conn);
    pn_engine_close(engine);
    remove_segments();
}

/* The scenario has been played: its segment and its files go. */
static struct result finish(void)
{
    struct result r = end_watching();
    close_hold();
    empty_directory();
    return r;
}

/* ---- the core: one connection with 16,000 channels ------------------------------------------- */

static void open_for_channels(void)
{
    pn_options o;
    pn_options_default(&o);
    o.max_channels = o.max_subscriptions = 16384;
    open_hold(&o);
}

static void listen_to_channels(pn_conn *own)
{
    char name[16];
    for (int i = 0; i < CHANNELS; i++) {
        snprintf(name, sizeof name, "c%d", i);
        listen_to(own, name);
    }
}

static struct result unlisten_all(void)
{
    pn_txn *txn;
    open_for_channels();
    listen_to_channels(conn);
    begin_watching(conn, engine);
    must(pn_txn_begin(conn, &txn), "begin");
    must(pn_txn_unlisten_all(txn), "unlisten_all");
    must(pn_txn_commit(txn), "commit");
    return finish();
}

/* The tables of a segment are never written before. */
static struct result first_listen(void)
{
    pn_options o;
    pn_options_default(&o);
    o.max_channels = o.max_subscriptions = 1 << 20;
    open_hold(&o);
    begin_watching(conn, engine);
    listen_to(conn, "c");
    return finish();
}

/* And the LISTENs themselves. */
static struct result connecting(void)
{
    open_for_channels();
    begin_watching(conn, engine);
    pn_conn *own = connect_to(engine);
    listen_to_channels(own);
    struct result r = end_watching();
    pn_conn_close(own);
    close_hold();
    return r;
}

static struct result closing(void)
{
    open_for_channels();
    pn_conn *own = connect_to(engine);
    listen_to_channels(own);
    begin_watching(conn, engine);
    pn_conn_close(own);
    return finish();
}

static void listen_and_die(int socket, void *arg)
{
    (void) socket;
    listen_to_channels(connect_to(arg));
    kill(getpid(), SIGKILL);
}

static struct result reaping_a_listener(void)
{
    pn_stat stat;
    open_for_channels();
    place_bystander(engine);
    wait_for_death(start_child(listen_and_die, engine));
    begin_watching(conn, engine);
    must(pn_engine_stat(engine, &stat, NULL, 0), "stat"); /* it looks which backends are dead */
    struct result r = end_watching();
    must(pn_engine_stat(engine, &stat, NULL, 0), "stat");
    if (stat.subscriptions != 0)
        die("%u subscriptions of a dead process are left", (unsigned) stat.subscriptions);
    close_hold();
    return r;
}

/* As if killed in the middle of a LISTEN: the successor builds the table of channels again. */
static void die_in_listen(int socket, void *arg)
{
    struct pn_hold hold;
    pn_conn *own = connect_to(arg);
    (void) socket;
    must(pn_lock_acquire(own->seg, &hold, PN_LOCK_FOREVER), "lock");
    own->seg->ctl->index_dirty = 1;
    kill(getpid(), SIGKILL);
}

static struct result recovery_of_the_table(void)
{
    open_for_channels();
    listen_to_channels(conn);
    place_bystander(engine);
    wait_for_death(start_child(die_in_listen, engine));
    begin_watching(conn, engine);
    must(pn_notify(conn, "c1", 2, "x", 1), "notify");
    return finish();
}

/* ---- the core: 1,000 listeners --------------------------------------------------------------- */

static char payload[PAYLOAD];

static void open_for_listeners(int on_full, uint32_t max_queue_pages)
{
    pn_options o;
    pn_options_default(&o);
    o.queue_pages = RING_PAGES;
    o.max_queue_pages = max_queue_pages;
    o.max_backends = LAGGARDS + 10;
    o.on_full = (uint32_t) on_full;
    if (max_queue_pages != 0)
        snprintf(o.data_dir, sizeof o.data_dir, "%s", directory);
    open_hold(&o);
    memset(payload, 'x', sizeof payload);
}

static void notify_pages(int n)
{
    for (int i = 0; i < n; i++)
        must(pn_notify(conn, "c", 1, payload, sizeof payload), "notify");
}

static void laggards(int socket, void *arg)
{
    for (int i = 0; i < LAGGARDS; i++)
        listen_to(connect_to(arg), "c");
    tell(socket, 0);
    for (;;)
        pause();
}

static child start_laggards(void)
{
    child c = start_child(laggards, engine);
    hear(c.socket);
    return c;
}

static struct result full_queue(void)
{
    double usage;
    pn_stat stat;
    open_for_listeners(PN_FULL_ERROR, 0);
    child c = start_laggards();
    begin_watching(conn, engine);
    for (int i = 0; i < 200; i++)
        (void) pn_notify(conn, "c", 1, payload, sizeof payload);
    must(pn_queue_usage(engine, &usage), "queue_usage");
    must(pn_engine_stat(engine, &stat, NULL, 0), "stat");
    struct result r = end_watching();
    kill_child(c);
    close_hold();
    return r;
}

static struct result eviction(void)
{
    open_for_listeners(PN_FULL_DROP_SLOWEST, 0);
    child c = start_laggards();
    begin_watching(conn, engine);
    notify_pages(4 * RING_PAGES);
    struct result r = end_watching();
    kill_child(c);
    close_hold();
    return r;
}

/* Also with a transaction of many pages, all of which go to files at once. */
static struct result spilling(int pages_at_once)
{
    pn_stat stat;
    pn_txn *txn;
    open_for_listeners(PN_FULL_ERROR, 32 * RING_PAGES);
    listen_to(conn, "c");
    begin_watching(conn, engine);
    for (int done = 0; done < 16 * RING_PAGES; done += pages_at_once) {
        must(pn_txn_begin(conn, &txn), "begin");
        for (int i = 0; i < pages_at_once; i++) {
            memcpy(payload, &i, sizeof i); /* PostgreSQL's rule: the same twice is sent once */
            must(pn_txn_notify(txn, "c", 1, payload, sizeof payload), "notify");
        }
        must(pn_txn_commit(txn), "commit");
    }
    struct result r = end_watching();
    must(pn_engine_stat(engine, &stat, NULL, 0), "stat");
    if (stat.spilled_pages == 0)
        die("nothing went to files");
    close_hold();
    empty_directory();
    return r;
}

/* A file has 32 pages; the listener that was behind leaves, and none is needed any more. */
static struct result removing_files(void)
{
    pn_stat stat;
    uint32_t pages = 32 * (quick ? 128 : 1024);
    open_for_listeners(PN_FULL_ERROR, pages + 2 * RING_PAGES);
    pn_conn *own = connect_to(engine);
    listen_to(own, "c");
    notify_pages((int) (pages + RING_PAGES));
    must(pn_engine_stat(engine, &stat, NULL, 0), "stat");
    if (stat.spilled_pages < pages)
        die("only %llu pages went to files", (unsigned long long) stat.spilled_pages);
    begin_watching(conn, engine);
    pn_conn_close(own);
    return finish();
}

static struct result spilling_pages(void)
{
    return spilling(1);
}

static struct result spilling_much(void)
{
    return spilling(RING_PAGES / 2);
}

/* All are connections of this process, so that their reading is watched, too. */
static struct result tail_advance(void)
{
    static pn_conn *reader[LAGGARDS];
    pn_batch *batch = pn_batch_new();
    open_for_listeners(PN_FULL_ERROR, 0);
    for (int i = 0; i < LAGGARDS; i++)
        listen_to(reader[i] = connect_to(engine), "c");
    begin_watching(conn, engine);
    for (int round = 0; round < 8; round++) {
        notify_pages(RING_PAGES / 4);
        for (int i = 0; i < LAGGARDS; i++)
            if (must(pn_poll(reader[i], batch, 0), "poll") < RING_PAGES / 4)
                die("a reader misses some");
    }
    struct result r = end_watching();
    for (int i = 0; i < LAGGARDS; i++)
        pn_conn_close(reader[i]);
    pn_batch_free(batch);
    close_hold();
    return r;
}

static void *sleep_in_wait(void *arg)
{
    (void) pn_wait(arg, -1);
    return NULL;
}

static void sleepers(int socket, void *arg)
{
    pthread_t thread;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 1 << 16);
    for (int i = 0; i < LAGGARDS; i++) {
        pn_conn *own = connect_to(arg);
        listen_to(own, "c");
        if (pthread_create(&thread, &small, sleep_in_wait, own) != 0)
            die("no thread");
    }
    tell(socket, 0);
    for (;;)
        pause();
}

static int asleep(void)
{
    int n = 0;
    const struct pn_segment *seg = conn->seg;
    for (uint32_t slot = 0; slot < seg->max_backends; slot++)
        n += (pn_load_relaxed(&seg->backend[slot].pos) & PN_ASLEEP) != 0 &&
             seg->backend[slot].numSubs != 0;
    return n;
}

/* A commit of one page, as far as its head; nothing is told of it, and no listener is woken. */
static void die_in_commit(int socket, void *arg)
{
    struct pn_hold hold;
    pn_conn *own = connect_to(arg);
    struct pn_segment *seg = own->seg;
    (void) socket;
    must(pn_lock_acquire(seg, &hold, PN_LOCK_FOREVER), "lock");
    const struct pn_entry_stamp stamp = {.xid = seg->ctl->last_xid + 1,
                                         .now = now_ns(),
                                         .dboid = own->dboid,
                                         .pid = own->pid,
                                         .slot = own->slot,
                                         .generation = own->generation};
    const struct pn_new_entry entry = {.kind = PN_ENTRY_NOTIFY,
                                       .channel = "c",
                                       .payload = payload,
                                       .channel_len = 1,
                                       .payload_len = PAYLOAD,
                                       .channel_hash =
                                           (uint32_t) pn_channel_hash(own->dboid, "c", 1)};
    QueuePosition end =
        pn_queue_append_locked(seg, pn_load_relaxed(&seg->ctl->head), &stamp, &entry);
    pn_store_release(&seg->ctl->head, end);
    kill(getpid(), SIGKILL);
}

static struct result recovery_of_a_commit(void)
{
    open_for_listeners(PN_FULL_ERROR, 0);
    child listeners = start_child(sleepers, engine);
    hear(listeners.socket);
    while (asleep() < LAGGARDS)
        usleep(1000);
    place_bystander(engine);
    wait_for_death(start_child(die_in_commit, engine));
    uint64_t before = pn_load_relaxed(&conn->seg->ctl->locked.recoveries);
    begin_watching(conn, engine);
    must(pn_notify(conn, "c", 1, "x", 1), "notify");
    struct result r = end_watching();
    if (pn_load_relaxed(&conn->seg->ctl->locked.recoveries) != before + 1)
        die("there was no recovery");
    kill_child(listeners);
    close_hold();
    return r;
}

/* ---- topics --------------------------------------------------------------------------------- */

static pn_ref topic, channel;

static void open_topic_in(uint64_t memory, bool durable, bool watch)
{
    pn_options o;
    pn_topic_options t = {.given = PN_TOPIC_DURABLE | PN_TOPIC_FSYNC | PN_TOPIC_OVERFLOW,
                          .durable = durable,
                          .fsync = PN_FSYNC_NONE,
                          .overflow = PN_OVERFLOW_DISK};
    pn_options_default(&o);
    o.topic_memory = memory;
    snprintf(o.data_dir, sizeof o.data_dir, "%s", directory);
    open_hold(&o);
    if (watch)
        begin_watching(conn, engine);
    must(pn_topic_open(conn, "t", 1, &t, &topic), "topic");
    must(pn_topic_channel_open(conn, topic, "c", 1, -1, &channel), "channel");
}

static void open_topic(bool durable, bool watch)
{
    open_topic_in(UINT64_C(512) << 20, durable, watch);
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
    open_hold(&o);
    begin_watching(conn, engine);
    must(pn_topic_open(conn, "t", 1, NULL, &ref), "topic");
    return finish();
}

static struct result publishing(bool durable)
{
    open_topic(durable, false);
    begin_watching(conn, engine);
    publish_batches(20 * BATCH);
    return finish();
}

static struct result publishing_in_memory(void)
{
    return publishing(false);
}

static struct result publishing_durable(void)
{
    return publishing(true);
}

/* With a second channel each of them rests. */
static struct result publishing_to_disk(bool durable, bool rests)
{
    pn_topic_stats stats = {0};
    pn_ref other;
    open_topic_in(4 << 20, durable, false);
    if (rests)
        must(pn_topic_channel_open(conn, topic, "other", 5, -1, &other), "channel");
    while (stats.on_disk == 0) {
        publish_batches(BATCH);
        must(pn_topic_stat(conn, topic, &stats), "stat");
    }
    begin_watching(conn, engine);
    publish_batches(20 * BATCH);
    return finish();
}

static struct result publishing_on_disk(void)
{
    return publishing_to_disk(false, false);
}

static struct result publishing_durable_on_disk(void)
{
    return publishing_to_disk(true, false);
}

static struct result publishing_to_resting(void)
{
    return publishing_to_disk(false, true);
}

static void publish_one(size_t length, int64_t delay_ns)
{
    static uint8_t body[LONG];
    const pn_message_in in = {.body = body, .body_len = length, .delay_ns = delay_ns};
    uint64_t id;
    must(pn_topic_publish(conn, NULL, topic, &in, &id), "publish");
}

static void finish_some(int n)
{
    const pn_consumer_options o = {.max_in_flight = 1};
    pn_consumer *consumer;
    pn_message_out m;
    must(pn_consumer_open(conn, channel, &o, &consumer), "consumer");
    for (int i = 0; i < n;) {
        int rc = pn_consumer_get(consumer, INT64_C(1000000000), &m);
        if (rc == -EINTR)
            continue;
        if (must(rc, "get") != 1)
            die("only %d messages came", i);
        must(pn_message_finish(conn, m.delivery, m.tag, m.id), "finish");
        i++;
    }
    pn_consumer_close(consumer);
}

/* Memory is full of deferred messages, which make room for long ones. */
static struct result leaving(void)
{
    const int64_t day = INT64_C(86400000000000);
    pn_topic_stats stats = {0};
    open_topic_in(16 << 20, false, false);
    while (stats.on_disk == 0) {
        publish_one(BODY, day);
        must(pn_topic_stat(conn, topic, &stats), "stat");
    }
    begin_watching(conn, engine);
    for (int i = 0; i < 20; i++)
        publish_one(LONG, 0);
    finish_some(20);
    return finish();
}

/* A thousand channels, of which one is read, and memory is full of what the others have: deferred
 * messages, or they rest. */
static struct result of_many_channels(int64_t delay_ns)
{
    enum { CHANNELS_OF_ONE = 1000, NEW = 100 };
    pn_topic_stats stats = {0};
    pn_ref other;
    char name[16];
    int n = 0;
    open_topic_in(16 << 20, false, false);
    for (int i = 1; i < CHANNELS_OF_ONE; i++) {
        int length = snprintf(name, sizeof name, "o%d", i);
        must(pn_topic_channel_open(conn, topic, name, (size_t) length, -1, &other), "channel");
    }
    for (; stats.on_disk == 0; n++) {
        publish_one(BODY, delay_ns);
        must(pn_topic_stat(conn, topic, &stats), "stat");
    }
    begin_watching(conn, engine);
    for (int i = 0; i < NEW; i++)
        publish_one(BODY, delay_ns / 3);
    finish_some(n + NEW);
    return finish();
}

static struct result many_channels_rest(void)
{
    return of_many_channels(0);
}

static struct result many_channels_deferred(void)
{
    return of_many_channels(INT64_C(3000000000));
}

/* What was on disk has room at once. */
static struct result coming_back(size_t length, int n)
{
    pn_topic_options t = {.given = PN_TOPIC_MAX_MEMORY, .max_memory = 65536};
    open_topic_in(64 << 20, false, false);
    must(pn_topic_configure(conn, topic, &t), "configure");
    for (int i = 0; i < n; i++)
        publish_one(length, 0);
    t.max_memory = 0;
    begin_watching(conn, engine);
    must(pn_topic_configure(conn, topic, &t), "configure");
    finish_some(n);
    return finish();
}

static struct result coming_back_short(void)
{
    return coming_back(BODY, 20 * BATCH);
}

static struct result coming_back_long(void)
{
    return coming_back(LONG / 10, BATCH);
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
    place_bystander(engine);
    wait_for_death(start_child(take_and_die, engine));
    begin_watching(conn, engine);
    must(pn_engine_stat(engine, &stat, NULL, 0), "stat");
    publish_batches(BATCH);
    return finish();
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
    place_bystander(engine);
    wait_for_death(start_child(die_with_the_lock, engine));
    begin_watching(conn, engine);
    (void) pn_notify(conn, "c", 1, "x", 1);
    publish_batches(BATCH);
    return finish();
}

static struct result reopening(int messages)
{
    pn_ref ref;
    open_topic(true, false);
    publish_batches(messages);
    close_hold();
    open_topic(true, true); /* with all of topic_memory, which takes a while by itself */
    must(pn_topic_open(conn, "t", 1, NULL, &ref), "topic");
    return finish();
}

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
    close_hold();
    empty_directory();
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
    open_hold(&so);
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
    close_hold();
    return r;
}

static const struct {
    const char *name;
    struct result (*run)(void);
} scenarios[] = {
    {"unlisten_all of 16,000 channels", unlisten_all},
    {"the first listen of a segment with tables of 1,048,576", first_listen},
    {"connect, and 16,000 listens", connecting},
    {"close of a connection with 16,000 channels", closing},
    {"the end of a dead backend with 16,000 channels", reaping_a_listener},
    {"a death in the middle of a listen, 16,000 channels", recovery_of_the_table},
    {"drop-slowest of 1,000 laggards", eviction},
    {"the tail advances, 1,000 readers", tail_advance},
    {"a death in the middle of a commit, 1,000 sleepers", recovery_of_a_commit},
    {"spilling, a page a transaction", spilling_pages},
    {"spilling, 32 pages a transaction", spilling_much},
    {"a listener leaves that was 1,024 files behind (--quick: 128)", removing_files},
    {"a full queue, 1,000 laggards: notify, queue_usage, stat", full_queue},
    {"the first topic of a segment", first_topic},
    {"publish_many of 1,000 messages of 200 bytes", publishing_in_memory},
    {"the same, durable, fsync none", publishing_durable},
    {"publish_many of 1,000 messages of 200 bytes, memory is full", publishing_on_disk},
    {"the same, durable, fsync none", publishing_durable_on_disk},
    {"the same, not durable, two channels rest", publishing_to_resting},
    {"messages of 200 bytes come back from disk", coming_back_short},
    {"messages of 40,000 bytes come back from disk", coming_back_long},
    {"deferred messages leave memory for some of 400,000 bytes", leaving},
    {"1,000 channels of a topic, of which one is read, memory is full", many_channels_rest},
    {"the same, all messages deferred for 1 to 3 s", many_channels_deferred},
    {"the death of a consumer with 60,000 messages in flight", reaping},
    {"drop-oldest with 60,000 messages in flight", dropping},
    {"publish and finish while the log is compacted", compacting},
    {"a death with the lock, 1,000,000 durable messages (--quick: 100,000)", repairing_many},
    {"the first topic() after a reboot, as many", reopening_many},
};

int main(int argc, char **argv)
{
    settings s = parse_arguments(argc, argv);
    double ms[MAX_PASSES], bystander_ms[MAX_PASSES];
    char names[2][160];
    int n = s.quick ? 2 : 5;
    quick = s.quick;
    segments_owner = getpid();
    shared = shared_memory(sizeof *shared);
    atexit(remove_segments);
    make_directory(NULL, "/tmp");
    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++) {
        double cpu_ms[MAX_PASSES];
        uint32_t calls = UINT32_MAX;
        for (int pass = 0; pass < n; pass++) {
            struct result r = scenarios[i].run();
            ms[pass] = r.ms;
            bystander_ms[pass] = r.bystander_ms;
            cpu_ms[pass] = r.cpu_ms;
            calls = r.bystander_calls < calls ? r.bystander_calls : calls;
        }
        snprintf(names[0], sizeof names[0], "%.3g to %.3g ms of processor time",
                 spread_of(cpu_ms, n).min, spread_of(cpu_ms, n).max);
        snprintf(names[1], sizeof names[1], "%s: notify() beside it, p99.9", scenarios[i].name);
        figure f = {.name = scenarios[i].name,
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
        /* of fewer than a thousand it is the longest one */
        snprintf(names[0], sizeof names[0], "of %" PRIu32 " calls or more a pass", calls);
        print_figure(&f);
    }
    return 0;
}
