/*
 * bench_throughput.c - messages a second from one C process to another, each notification a
 * transaction of its own, every byte compared by the listener.
 *
 * The clock runs from the first notify to the moment at which the listener has compared the last
 * message.  Notifier and listener are on two CPUs; on a machine with one, the figure says little.
 *
 * Two listeners are measured:
 *
 *   "reads behind"  never quite catches up: it asks for all but the last message that it knows to
 *                   have been sent, so that its slot stays awake and the notifier never pays for a
 *                   signal.  It knows from a counter beside the segment which the notifier
 *                   publishes every 64 messages.
 *   "the loop"      is the loop of pynotify.h: pn_wait(), then everything with pn_poll().  It falls
 *                   asleep whenever it has caught up, and each time costs a signal.
 *
 * The ring has its default size and on_full is PN_FULL_BLOCK: a process that is ahead waits.
 */
#include "measure.h"

#define PUBLISH_EVERY 64

typedef struct progress {
    _Alignas(64) _Atomic uint64_t sent;  /* W: notifier */
    _Alignas(64) _Atomic int64_t end_ns; /* W: listener, once it has everything */
} progress;

typedef struct listener_plan {
    pn_engine *engine;
    progress *progress;
    bool reads_behind;
} listener_plan;

typedef struct reader {
    pn_conn *conn;
    pn_batch *batch;
    uint64_t got;
    uint8_t expected[PAYLOAD_BYTES];
} reader;

static void read_some(reader *r, uint64_t max)
{
    int64_t n = must(pn_poll(r->conn, r->batch, max), "pn_poll");
    for (int64_t i = 0; i < n; i++, r->got++)
        check_message(r->batch, (uint64_t) i, r->expected, r->got);
}

/* Leaves one message unread until the last 64. */
static void read_behind(reader *r, const progress *p, uint64_t count)
{
    while (r->got < count) {
        uint64_t sent = atomic_load_explicit(&p->sent, memory_order_acquire);
        if (sent == count)
            read_some(r, 0);
        else if (sent > r->got + 1)
            read_some(r, sent - r->got - 1);
        else
            spin_hint();
    }
}

static void read_in_the_loop(reader *r, uint64_t count)
{
    while (r->got < count) {
        sleep_until_told(r->conn);
        read_some(r, 0);
    }
}

static void listener_main(int socket, void *arg)
{
    const listener_plan *plan = arg;
    reader r = {.conn = connect_to(plan->engine), .batch = pn_batch_new()};
    pin_to_cpu(1);
    payload_init(r.expected);
    listen_to(r.conn, CHANNEL);
    tell(socket, 0);
    for (uint64_t count; (count = hear(socket)) != QUIT; tell(socket, 0)) {
        r.got = 0;
        tell(socket, 0);
        if (plan->reads_behind)
            read_behind(&r, plan->progress, count);
        else
            read_in_the_loop(&r, count);
        atomic_store(&plan->progress->end_ns, now_ns());
    }
    pn_batch_free(r.batch);
    pn_conn_close(r.conn);
}

/* Millions of messages a second. */
static double pass(pn_conn *conn, child listener, progress *p, uint64_t count)
{
    uint8_t payload[PAYLOAD_BYTES];
    payload_init(payload);
    atomic_store(&p->sent, 0);
    tell(listener.socket, count);
    hear(listener.socket);
    int64_t begin = now_ns();
    for (uint64_t i = 0; i < count; i++) {
        notify_number(conn, payload, i);
        if ((i + 1) % PUBLISH_EVERY == 0)
            atomic_store_explicit(&p->sent, i + 1, memory_order_release);
    }
    atomic_store_explicit(&p->sent, count, memory_order_release);
    hear(listener.socket);
    return (double) count * 1e3 / (double) (atomic_load(&p->end_ns) - begin);
}

static void measure(settings s, bool reads_behind)
{
    pn_options options;
    double rates[MAX_PASSES];
    int passes = s.quick ? 11 : 51;
    uint64_t count = 100000; /* about 10 ms: the shorter, the fewer passes others disturb */

    pn_options_default(&options);
    options.on_full = PN_FULL_BLOCK;
    pn_engine *engine = open_segment(reads_behind ? "behind" : "loop", &options);
    progress *p = shared_memory(sizeof *p);
    listener_plan plan = {.engine = engine, .progress = p, .reads_behind = reads_behind};
    child listener = start_child(listener_main, &plan);
    hear(listener.socket);
    pn_conn *conn = connect_to(engine);
    pin_to_cpu(0);
    pass(conn, listener, p, count);
    for (int i = 0; i < passes; i++)
        rates[i] = pass(conn, listener, p, count);
    print_figure(&(figure) {.name = reads_behind
                                        ? "C to C, single notifies, listener reads behind"
                                        : "C to C, single notifies, the loop of pynotify.h",
                            .unit = "M messages/s",
                            .ours = rates,
                            .n = passes,
                            .bar = reads_behind ? 8 : 0,
                            .note = cpu_count() < 2 ? "one CPU only" : NULL});
    end_child(listener);
    pn_conn_close(conn);
    pn_engine_close(engine);
    munmap(p, sizeof *p);
}

int main(int argc, char **argv)
{
    settings s = parse_arguments(argc, argv);
    measure(s, true);
    measure(s, false);
    return 0;
}
