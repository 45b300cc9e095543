/*
 * bench_notify.c - what a notify costs the notifier when no process has to be woken.
 *
 * One notify of 100 bytes on a channel with one listener, which is another process, awake, and not
 * reading meanwhile.  It stays awake because it leaves one message unread (a slot with something
 * unread is not asleep), so a pass makes no system call.  The ring holds a whole pass and every
 * page of it was touched by both processes in earlier passes.  Afterwards the listener compares
 * every byte.
 *
 * The floor is what no such engine can do without: a robust process-shared mutex locked and
 * unlocked, one clock_gettime(CLOCK_MONOTONIC), one memcpy of the 100 bytes into a shared ring of
 * the same size, packed as tightly as alignment allows.  Its bytes are read and compared by the
 * same listener afterwards, so that its cache lines come from where ours come from.
 *
 * Then a generation counter, in the same segment: what it costs to read it, and to bump it in a
 * transaction of its own, against a plain notify.
 *
 * The last part asks what listeners cost that are not concerned: 1,000 and 10,000 connections
 * in helper processes, each with a channel of its own, on one segment.  They come and go in
 * rounds, in both orders.  Three per cent are less than what others on the machine change within
 * seconds, so a twin segment with the same options, which never has idle listeners, is measured in
 * the same pairs: "without" is the segment before they came, times what the twin has changed since.
 *
 * The third part: what the latency log adds, by a second connection of the same process that has
 * one, in pairs with the first.  Logs are in /dev/shm, then in TMPDIR or /tmp, which should be a
 * disk: there the kernel makes pages in other ways.
 */
#include "measure.h"

#include <pthread.h>

#include "backend/conn.h"

#define FLOOR_STRIDE 104 /* 100 rounded up to 8 */
#define PER_HELPER   500
#define MANY         10000

static const char FLOOR[] = "robust mutex lock+unlock, clock_gettime, memcpy of 100 bytes";

/* ---- what both processes see ------------------------------------------------------------- */

typedef struct floor_ring {
    pthread_mutex_t mutex; /* robust, process-shared */
    uint64_t head;         /* W: holder of the mutex */
    int64_t last_ns;       /* W: holder of the mutex */
    uint64_t bytes;        /* constant; a multiple of FLOOR_STRIDE is used */
    uint8_t *data;         /* same address in both: mapped before the fork */
} floor_ring;

typedef struct pass_plan {
    pn_engine *engine; /* survives the fork */
    floor_ring *floor;
} pass_plan;

static floor_ring *floor_new(uint64_t bytes)
{
    floor_ring *ring = shared_memory(sizeof *ring);
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    if (pthread_mutex_init(&ring->mutex, &attr) != 0)
        die("no robust process-shared mutex here");
    pthread_mutexattr_destroy(&attr);
    ring->bytes = bytes / FLOOR_STRIDE * FLOOR_STRIDE;
    ring->data = shared_memory(bytes);
    return ring;
}

static void floor_free(floor_ring *ring, uint64_t bytes)
{
    munmap(ring->data, bytes);
    munmap(ring, sizeof *ring);
}

/* ---- the listener's process -------------------------------------------------------------- */

enum { BE_AWAKE = 1, VERIFY_OURS = 2, VERIFY_FLOOR = 3 };

/* What it is told: one of the above in the upper 32 bits, a number of messages in the lower. */
static uint64_t command(uint64_t what, uint64_t count)
{
    return what << 32 | count;
}

/* Read one of the two messages that are there: the other one keeps this slot awake. */
static void be_awake(pn_conn *conn, pn_batch *batch)
{
    while (must(pn_poll(conn, batch, 1), "pn_poll") == 0) {
        sleep_until_told(conn);
    }
}

/* The message that kept us awake, then numbers 0 to count-1, every byte. */
static void verify_ours(pn_conn *conn, pn_batch *batch, uint64_t count)
{
    uint8_t expected[PAYLOAD_BYTES];
    uint64_t got = 0;
    bool first = true;
    payload_init(expected);
    while (got < count) {
        int64_t n = must(pn_poll(conn, batch, 0), "pn_poll");
        if (n == 0)
            die("%llu of %llu messages", (unsigned long long) got, (unsigned long long) count);
        for (int64_t i = 0; i < n; i++) {
            if (!first)
                check_message(batch, (uint64_t) i, expected, got++);
            first = false;
        }
    }
    if (pn_poll(conn, batch, 0) != 0)
        die("more messages than were sent");
}

/* The last `count` messages before head. */
static void verify_floor(const floor_ring *ring, uint64_t count)
{
    uint8_t expected[PAYLOAD_BYTES];
    uint64_t at = (ring->head + ring->bytes - count * FLOOR_STRIDE) % ring->bytes;
    payload_init(expected);
    for (uint64_t i = 0; i < count; i++) {
        if (!payload_is(ring->data + at, expected, i))
            die("floor: message %llu is not what was written", (unsigned long long) i);
        at = at + FLOOR_STRIDE == ring->bytes ? 0 : at + FLOOR_STRIDE;
    }
}

static void listener_main(int socket, void *arg)
{
    const pass_plan *plan = arg;
    pn_conn *conn = connect_to(plan->engine);
    pn_batch *batch = pn_batch_new();
    pin_to_cpu(1);
    listen_to(conn, CHANNEL);
    tell(socket, 0);
    for (uint64_t word; (word = hear(socket)) != QUIT; tell(socket, 0)) {
        uint64_t count = word & UINT32_MAX;
        if (word >> 32 == BE_AWAKE)
            be_awake(conn, batch);
        else if (word >> 32 == VERIFY_OURS)
            verify_ours(conn, batch, count);
        else
            verify_floor(plan->floor, count);
    }
    pn_batch_free(batch);
    pn_conn_close(conn);
}

/* ---- helper processes: listeners that are not concerned ----------------------------------- */

/* Told how many connections to hold; their channels are numbered from where the helper stands. */
static void helper_main(int socket, void *arg)
{
    static pn_conn *conns[PER_HELPER];
    pn_engine *engine = arg;
    uint64_t held = 0;
    for (uint64_t wanted; (wanted = hear(socket)) != QUIT; tell(socket, held)) {
        for (; held < wanted; held++) {
            char channel[32];
            snprintf(channel, sizeof channel, "idle.%d.%u", (int) getpid(), (unsigned) held);
            conns[held] = connect_to(engine);
            listen_to(conns[held], channel);
        }
        while (held > wanted)
            pn_conn_close(conns[--held]);
    }
    while (held > 0)
        pn_conn_close(conns[--held]);
}

typedef struct idle_crowd {
    child helpers[MANY / PER_HELPER];
    int n;
} idle_crowd;

/* `wanted` connections in all, PER_HELPER at most in each process. */
static void crowd_resize(idle_crowd *crowd, int wanted)
{
    for (int i = 0; i < crowd->n; i++) {
        int here = wanted < PER_HELPER ? wanted : PER_HELPER;
        tell(crowd->helpers[i].socket, (uint64_t) here);
        if (hear(crowd->helpers[i].socket) != (uint64_t) here)
            die("a helper has not as many connections as it should");
        wanted -= here;
    }
    if (wanted > 0)
        die("too few helpers");
}

/* ---- the notifier's process: passes ------------------------------------------------------- */

typedef struct notifier {
    pn_engine *engine;
    pn_conn *conn;
    floor_ring *floor;
    child listener;
    uint64_t count;   /* messages of a pass */
    uint32_t counter; /* a generation counter */
} notifier;

static void ask(const notifier *n, uint64_t what)
{
    tell(n->listener.socket, command(what, n->count));
    hear(n->listener.socket);
}

/* Two messages in one transaction, of which the listener takes one. */
static void wake_listener(const notifier *n)
{
    uint64_t queued = 0;
    const uint32_t lens[2] = {1, 1};
    must(pn_notify_many(n->conn, NULL, CHANNEL, strlen(CHANNEL), "ab", lens, 2, 0, &queued),
         "pn_notify_many");
    ask(n, BE_AWAKE);
}

/* From the inside: pn_engine_stat() looks at 10,000 locks, which is more work than a pass. */
static uint64_t signals_sent(const notifier *n)
{
    return pn_load_relaxed(&n->conn->seg->ctl->free.signals_sent);
}

/* ns per notify. */
static double pass_ours(const notifier *n)
{
    uint8_t payload[PAYLOAD_BYTES];
    payload_init(payload);
    wake_listener(n);
    uint64_t signals_before = signals_sent(n);
    int64_t begin = now_ns();
    for (uint64_t i = 0; i < n->count; i++)
        notify_number(n->conn, payload, i);
    int64_t end = now_ns();
    if (signals_sent(n) != signals_before)
        die("the listener was not awake");
    ask(n, VERIFY_OURS);
    return (double) (end - begin) / (double) n->count;
}

/* ns per message. */
static double pass_floor(const notifier *n)
{
    uint8_t payload[PAYLOAD_BYTES];
    floor_ring *ring = n->floor;
    payload_init(payload);
    int64_t begin = now_ns();
    for (uint64_t i = 0; i < n->count; i++) {
        payload_number(payload, i);
        if (pthread_mutex_lock(&ring->mutex) != 0)
            die("pthread_mutex_lock");
        ring->last_ns = now_ns();
        memcpy(ring->data + ring->head, payload, sizeof payload);
        ring->head = ring->head + FLOOR_STRIDE == ring->bytes ? 0 : ring->head + FLOOR_STRIDE;
        pthread_mutex_unlock(&ring->mutex);
    }
    int64_t end = now_ns();
    ask(n, VERIFY_FLOOR);
    return (double) (end - begin) / (double) n->count;
}

/* ns per bump, each a transaction. */
static double pass_bump(const notifier *n)
{
    uint64_t before = pn_generation_value(n->engine, n->counter);
    int64_t begin = now_ns();
    for (uint64_t i = 0; i < n->count; i++) {
        int rc = pn_bump(n->conn, n->counter);
        if (rc < 0)
            must(rc, "pn_bump");
    }
    int64_t end = now_ns();
    if (pn_generation_value(n->engine, n->counter) != before + n->count)
        die("bumps were lost");
    return (double) (end - begin) / (double) n->count;
}

/* ns per reading of the counter. */
static double pass_read(const notifier *n)
{
    uint64_t sum = 0, value = pn_generation_value(n->engine, n->counter);
    int64_t begin = now_ns();
    for (uint64_t i = 0; i < n->count; i++)
        sum += pn_generation_value(n->engine, n->counter);
    int64_t end = now_ns();
    if (sum != n->count * value)
        die("the counter moved by itself");
    return (double) (end - begin) / (double) n->count;
}

typedef double pass_function(const notifier *n);

/* Passes of one and of the other, pair by pair, the order turning round. */
static void measure_pairs(pass_function *one, const notifier *n, double *ones, pass_function *other,
                          const notifier *m, double *others, int pairs)
{
    for (int i = 0; i < pairs; i++) {
        if (i % 2)
            others[i] = other(m);
        ones[i] = one(n);
        if (i % 2 == 0)
            others[i] = other(m);
    }
}

/* The length of an entry decides how many messages the ring holds; 45 % of it stays below the
 * warning at half full.  Then round the rings three times. */
static void notifier_start(notifier *n, pn_engine *engine, uint64_t ring_bytes, pass_plan *plan)
{
    pn_stat before, after;
    n->engine = engine;
    n->floor = floor_new(ring_bytes);
    *plan = (pass_plan) {.engine = engine, .floor = n->floor};
    n->listener = start_child(listener_main, plan);
    hear(n->listener.socket);
    n->conn = connect_to(engine);
    must(pn_generation(n->conn, CHANNEL, strlen(CHANNEL), &n->counter), "pn_generation");
    pin_to_cpu(0);
    n->count = 100;
    must(pn_engine_stat(engine, &before, NULL, 0), "pn_engine_stat");
    pass_ours(n);
    must(pn_engine_stat(engine, &after, NULL, 0), "pn_engine_stat");
    uint64_t entry = (after.head - before.head) / n->count + 1;
    n->count = ring_bytes * 45 / 100 / entry;
    for (uint64_t written = 0; written < 3 * ring_bytes; written += n->count * FLOOR_STRIDE) {
        pass_ours(n);
        pass_floor(n);
    }
}

static void notifier_stop(notifier *n, uint64_t ring_bytes)
{
    end_child(n->listener);
    pn_conn_close(n->conn);
    floor_free(n->floor, ring_bytes);
}

/* ---- the parts --------------------------------------------------------------------------- */

#define PAGE_BYTES 8192u

static void compare_with_notify(const notifier *n, const char *name, pass_function *pass, int pairs)
{
    double ours[MAX_PASSES], plain[MAX_PASSES];
    measure_pairs(pass, n, ours, pass_ours, n, plain, pairs);
    print_figure(&(figure) {.name = name,
                            .unit = "ns",
                            .ours = ours,
                            .floor = plain,
                            .n = pairs,
                            .against = "notify, 1 awake listener"});
}

static void part_one_listener(settings s)
{
    pn_options options;
    pass_plan plan;
    notifier n;
    double ours[MAX_PASSES], floor[MAX_PASSES];
    int pairs = s.quick ? 11 : 101;

    pn_options_default(&options);
    pn_engine *engine = open_segment("notify", &options);
    uint64_t ring_bytes = (uint64_t) options.queue_pages * PAGE_BYTES;
    notifier_start(&n, engine, ring_bytes, &plan);
    measure_pairs(pass_ours, &n, ours, pass_floor, &n, floor, pairs);
    print_figure(&(figure) {.name = "notify, 1 awake listener, default segment",
                            .unit = "ns",
                            .ours = ours,
                            .floor = floor,
                            .n = pairs,
                            .against = FLOOR,
                            .bar = 2.2,
                            .at_most = true});
    compare_with_notify(&n, "generation counter, read", pass_read, pairs);
    compare_with_notify(&n, "generation counter, bump", pass_bump, pairs);
    notifier_stop(&n, ring_bytes);
    pn_engine_close(engine);
}

#define STATES 3
static const int CROWDS[STATES] = {0, 1000, MANY};

/* One value a round: the median of its passes, ns. */
typedef struct crowd_values {
    double crowded[STATES][MAX_PASSES], twin[STATES][MAX_PASSES], floor[MAX_PASSES];
    int rounds;
} crowd_values;

static void print_crowds(const crowd_values *v)
{
    double without[MAX_PASSES];
    char title[80];
    print_figure(&(figure) {.name = "notify, 1 awake listener, segment for 10,000",
                            .unit = "ns",
                            .ours = v->crowded[0],
                            .floor = v->floor,
                            .n = v->rounds,
                            .against = FLOOR,
                            .bar = 2.2,
                            .at_most = true});
    for (int state = 1; state < STATES; state++) {
        for (int i = 0; i < v->rounds; i++)
            without[i] = v->crowded[0][i] * v->twin[state][i] / v->twin[0][i];
        snprintf(title, sizeof title, "notify, 1 awake listener and %d idle on other channels",
                 CROWDS[state]);
        print_figure(&(figure) {.name = title,
                                .unit = "ns",
                                .ours = v->crowded[state],
                                .floor = without,
                                .n = v->rounds,
                                .against = "the same segment without idle listeners",
                                .bar = 1.03,
                                .at_most = true,
                                .note = "one value a round: the median of its passes"});
    }
}

/* All states once, upwards or downwards. */
static void measure_round(const notifier *crowded, const notifier *twin, idle_crowd *crowd,
                          crowd_values *v, int pairs)
{
    double one[MAX_PASSES], other[MAX_PASSES];
    int round = v->rounds++;
    for (int step = 0; step < STATES; step++) {
        int state = round % 2 ? STATES - 1 - step : step;
        crowd_resize(crowd, CROWDS[state]);
        /* First what connecting has pushed out of the caches. */
        measure_pairs(pass_ours, crowded, one, pass_ours, twin, other, 3);
        measure_pairs(pass_ours, crowded, one, pass_ours, twin, other, pairs);
        v->crowded[state][round] = spread_of(one, pairs).median;
        v->twin[state][round] = spread_of(other, pairs).median;
    }
    measure_pairs(pass_floor, crowded, one, pass_floor, crowded, other, pairs);
    v->floor[round] = spread_of(one, pairs).median;
}

static pn_engine *open_for_crowd(const char *what, uint64_t *ring_bytes)
{
    pn_options options;
    pn_options_default(&options);
    options.max_backends = MANY + 64;
    options.max_channels = options.max_subscriptions = 2 * MANY;
    *ring_bytes = (uint64_t) options.queue_pages * PAGE_BYTES;
    return open_segment(what, &options);
}

static void part_idle_listeners(settings s)
{
    static crowd_values values;
    pass_plan plan, twin_plan;
    notifier n, twin;
    uint64_t ring_bytes;
    idle_crowd crowd = {.n = MANY / PER_HELPER};
    pn_engine *engine = open_for_crowd("crowd", &ring_bytes);
    pn_engine *twin_engine = open_for_crowd("twin", &ring_bytes);

    for (int i = 0; i < crowd.n; i++)
        crowd.helpers[i] = start_child(helper_main, engine);
    notifier_start(&n, engine, ring_bytes, &plan);
    notifier_start(&twin, twin_engine, ring_bytes, &twin_plan);
    for (int round = 0; round < (s.quick ? 3 : 9); round++)
        measure_round(&n, &twin, &crowd, &values, s.quick ? 11 : 31);
    print_crowds(&values);
    for (int i = 0; i < crowd.n; i++)
        end_child(crowd.helpers[i]);
    notifier_stop(&twin, ring_bytes);
    notifier_stop(&n, ring_bytes);
    pn_engine_close(twin_engine);
    pn_engine_close(engine);
}

/* ---- the latency log ---------------------------------------------------------------------- */

static void print_logging(const double *with, const double *without, int pairs, const char *where)
{
    double more[MAX_PASSES];
    char name[2][80];
    for (int i = 0; i < pairs; i++)
        more[i] = with[i] - without[i];
    snprintf(name[0], sizeof name[0], "notify with a latency log%s", where);
    snprintf(name[1], sizeof name[1], "what a latency log%s adds to a notify", where);
    print_figure(&(figure) {.name = name[0],
                            .unit = "ns",
                            .ours = with,
                            .floor = without,
                            .n = pairs,
                            .against = "the same without"});
    print_values(name[1], "ns", more, pairs, 30, true);
}

/* Passes with a log in that directory (NULL: TMPDIR) and without one. */
static void measure_logging(const notifier *plain, const char *parent, const char *where, int pairs)
{
    double with[MAX_PASSES], without[MAX_PASSES];
    notifier logged = *plain;

    make_directory(parent, "/tmp");
    must(pn_connect(plain->engine, "default", strlen("default"), 0, directory, &logged.conn),
         "pn_connect");
    measure_pairs(pass_ours, &logged, with, pass_ours, plain, without, 3);
    measure_pairs(pass_ours, &logged, with, pass_ours, plain, without, pairs);
    print_logging(with, without, pairs, where);
    pn_conn_close(logged.conn);
    remove_directory();
}

static void part_logging(settings s)
{
    pn_options options;
    pass_plan plan;
    notifier plain;
    int pairs = s.quick ? 11 : 101;

    pn_options_default(&options);
    pn_engine *engine = open_segment("logging", &options);
    uint64_t ring_bytes = (uint64_t) options.queue_pages * PAGE_BYTES;
    notifier_start(&plain, engine, ring_bytes, &plan);
    measure_logging(&plain, "/dev/shm", "", pairs);
    measure_logging(&plain, NULL, " on disk", pairs);
    notifier_stop(&plain, ring_bytes);
    pn_engine_close(engine);
}

int main(int argc, char **argv)
{
    settings s = parse_arguments(argc, argv);
    struct rlimit files;
    must_os(getrlimit(RLIMIT_NOFILE, &files), "getrlimit");
    files.rlim_cur = files.rlim_max;
    must_os(setrlimit(RLIMIT_NOFILE, &files), "setrlimit");
    part_one_listener(s);
    part_logging(s);
    part_idle_listeners(s);
    return 0;
}
