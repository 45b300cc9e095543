/*
 * bench_spill.c - a queue that may go to files: what that costs while it does not, and how fast a
 * listener catches up that is 1 GiB behind.
 *
 *   notify            a transaction of its own each, to one listener that reads in between: in a
 *                     segment with max_queue_pages beyond the ring, of which nothing is ever used,
 *                     beside one without.  Only the notifies are timed.
 *   notify and read   the same with the reading, which makes a private copy of each page in the
 *                     first and reads in place in the second.
 *   catching up       the listener sleeps while 1 GiB of queue is written, nearly all of it to
 *                     files; then the clock runs from its first look to its last message.  It has
 *                     compared every byte by then, verified the checksum of every page, and removed
 *                     the files.  GB/s are bytes of the queue: entries with their headers.
 *                     The files have been written just before, so they come from the page cache.
 *   memory            what the listener's process has of its own meanwhile, at the most, and what
 *                     the segment takes in /dev/shm: the ring and the tables, whatever is behind.
 *
 * Files are made in TMPDIR, or /var/tmp if there is none: a disk, since a tmpfs would be memory.
 */
#include "measure.h"

#define RING_PAGES           1024U /* 8 MiB */
#define PAGE_BYTES           8192U
#define ENTRY_BYTES(payload) ((56 + sizeof CHANNEL - 1 + (payload) + 7) / 8 * 8)
#define MAX_PAYLOAD          1000
#define READ_AT_ONCE         4096

static pn_options options_with(uint32_t max_queue_pages)
{
    pn_options o;
    pn_options_default(&o);
    o.queue_pages = RING_PAGES;
    o.max_queue_pages = max_queue_pages;
    if (max_queue_pages > RING_PAGES)
        snprintf(o.data_dir, sizeof o.data_dir, "%s", directory);
    return o;
}

/* ---- nothing spills -------------------------------------------------------------------------- */

typedef struct one_process {
    pn_engine *engine;
    pn_conn *notifier, *listener;
    pn_batch *batch;
    uint64_t sent, got;
} one_process;

static void start(one_process *p, const char *name, uint32_t max_queue_pages)
{
    pn_options o = options_with(max_queue_pages);
    *p = (one_process) {.engine = open_segment(name, &o), .batch = pn_batch_new()};
    p->listener = connect_to(p->engine);
    p->notifier = connect_to(p->engine);
    listen_to(p->listener, CHANNEL);
}

/* ns a message of `count`, and in *with_reading what the reading adds to it. */
static double pass(one_process *p, uint64_t count, double *with_reading)
{
    uint8_t payload[PAYLOAD_BYTES], expected[PAYLOAD_BYTES];
    int64_t notifying = 0, begin = now_ns();
    payload_init(payload);
    payload_init(expected);
    for (uint64_t end = p->sent + count; p->sent < end;) {
        int64_t before = now_ns();
        for (int i = 0; i < 500; i++) {
            notify_number(p->notifier, payload, p->sent++);
        }
        notifying += now_ns() - before;
        int64_t n = must(pn_poll(p->listener, p->batch, 0), "pn_poll");
        for (int64_t i = 0; i < n; i++)
            check_message(p->batch, (uint64_t) i, expected, p->got++);
    }
    if (p->got != p->sent)
        die("%llu of %llu messages", (unsigned long long) p->got, (unsigned long long) p->sent);
    *with_reading = (double) (now_ns() - begin) / (double) count;
    return (double) notifying / (double) count;
}

static void end(one_process *p)
{
    pn_stat stat;
    must(pn_engine_stat(p->engine, &stat, NULL, 0), "pn_engine_stat");
    if (stat.spilled_pages != 0)
        die("%llu pages were written to files", (unsigned long long) stat.spilled_pages);
    pn_batch_free(p->batch);
    pn_conn_close(p->listener);
    pn_conn_close(p->notifier);
    pn_engine_close(p->engine);
}

static void measure_nothing_spilled(settings s)
{
    one_process with, without;
    double ours[MAX_PASSES], floor[MAX_PASSES], ours_read[MAX_PASSES], floor_read[MAX_PASSES];
    int passes = s.quick ? 11 : 101;
    uint64_t count = 20000;
    start(&with, "may-spill", 4 * RING_PAGES);
    start(&without, "never", 0);
    pin_to_cpu(0);
    for (int i = -2; i < passes; i++) {
        int at = i < 0 ? 0 : i;
        if (i % 2 != 0)
            floor[at] = pass(&without, count, &floor_read[at]);
        ours[at] = pass(&with, count, &ours_read[at]);
        if (i % 2 == 0)
            floor[at] = pass(&without, count, &floor_read[at]);
    }
    print_figure(&(figure) {.name = "notify where pages may go to files and none does",
                            .unit = "ns",
                            .ours = ours,
                            .floor = floor,
                            .n = passes,
                            .against = "a segment without max_queue_pages",
                            .bar = 1.05,
                            .at_most = true});
    print_figure(&(figure) {.name = "notify and read where pages may go to files and none does",
                            .unit = "ns",
                            .ours = ours_read,
                            .floor = floor_read,
                            .n = passes,
                            .against = "a segment without max_queue_pages"});
    end(&with);
    end(&without);
}

/* ---- catching up ----------------------------------------------------------------------------- */

typedef struct catching_up {
    pn_engine *engine;
    uint64_t payload_bytes;
    _Atomic int64_t ns;      /* W: listener */
    _Atomic uint64_t kbytes; /* W: listener: its own memory, at the most */
} catching_up;

/* KiB of this process alone. */
static uint64_t own_memory(void)
{
    return (uint64_t) from_proc(getpid(), "status", "RssAnon");
}

static void fill(uint8_t *payload, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++)
        payload[i] = (uint8_t) (i * 37 + 11);
}

static uint64_t check_batch(const pn_batch *b, uint64_t next, uint8_t *expected, uint64_t bytes)
{
    if (b->ngaps != 0)
        die("a gap of %llu bytes", (unsigned long long) b->gap[0].missed_bytes);
    for (size_t i = 0; i < b->n; i++, next++) {
        memcpy(expected, &next, sizeof next);
        if (b->offset[i + 1] - b->offset[i] != bytes ||
            memcmp(b->data + b->offset[i], expected, bytes) != 0)
            die("message %llu is not what was sent", (unsigned long long) next);
    }
    return next;
}

static void listener_main(int socket, void *arg)
{
    catching_up *c = arg;
    uint8_t expected[MAX_PAYLOAD];
    pn_conn *conn = connect_to(c->engine);
    pn_batch *batch = pn_batch_new();
    pin_to_cpu(1);
    fill(expected, c->payload_bytes);
    listen_to(conn, CHANNEL);
    must(pn_poll(conn, batch, 0), "pn_poll");
    tell(socket, 0);
    for (uint64_t count; (count = hear(socket)) != QUIT; tell(socket, 0)) {
        uint64_t got = 0, most = own_memory();
        int64_t begin = now_ns(), looking = 0;
        for (uint64_t batches = 0; got < count; batches++) {
            must(pn_poll(conn, batch, READ_AT_ONCE), "pn_poll");
            got = check_batch(batch, got, expected, c->payload_bytes);
            if (batches % 64 == 0) { /* not our business, so not our time */
                int64_t before = now_ns();
                uint64_t now = own_memory();
                most = now > most ? now : most;
                looking += now_ns() - before;
            }
        }
        must(pn_poll(conn, batch, 0), "pn_poll"); /* which lets the last files go */
        atomic_store(&c->ns, now_ns() - begin - looking);
        atomic_store(&c->kbytes, most);
    }
    pn_batch_free(batch);
    pn_conn_close(conn);
}

static double segment_mib(void)
{
    char path[384];
    struct stat st;
    snprintf(path, sizeof path, "/dev/shm/pynotify.%u.%s", (unsigned) geteuid(),
             segment_names[segments_used - 1]);
    must_os(stat(path, &st), path);
    return (double) st.st_blocks * 512 / (1 << 20);
}

static void print_one(const char *name, const char *unit, const double *values, int n, double bar,
                      bool at_most)
{
    print_figure(&(figure) {.name = name,
                            .unit = unit,
                            .ours = values,
                            .n = n,
                            .bar = bar,
                            .at_most = at_most,
                            .note = cpu_count() < 2 ? "one CPU only" : NULL});
}

static void measure_catching_up(settings s, uint64_t payload_bytes)
{
    char name[128];
    double rate[MAX_PASSES], writing[MAX_PASSES], own[MAX_PASSES], segment[MAX_PASSES];
    int passes = s.quick ? 2 : 5;
    uint64_t bytes = (uint64_t) (s.quick ? 256 : 1024) << 20;
    uint64_t count = bytes / ENTRY_BYTES(payload_bytes);
    uint8_t payload[MAX_PAYLOAD];
    pn_options o = options_with((uint32_t) (bytes / PAGE_BYTES / 3 * 4));
    snprintf(name, sizeof name, "behind-%llu", (unsigned long long) payload_bytes);
    pn_engine *engine = open_segment(name, &o);
    catching_up *c = shared_memory(sizeof *c);
    c->engine = engine;
    c->payload_bytes = payload_bytes;
    child listener = start_child(listener_main, c);
    hear(listener.socket);
    pn_conn *conn = connect_to(engine);
    pin_to_cpu(0);
    fill(payload, payload_bytes);
    for (int i = 0; i < passes; i++) {
        int64_t begin = now_ns();
        for (uint64_t m = 0; m < count; m++) {
            memcpy(payload, &m, sizeof m);
            int rc = pn_notify(conn, CHANNEL, strlen(CHANNEL), payload, payload_bytes);
            if (rc < 0)
                must(rc, "pn_notify");
        }
        writing[i] = (double) bytes / (double) (now_ns() - begin);
        segment[i] = segment_mib();
        tell(listener.socket, count);
        hear(listener.socket);
        rate[i] = (double) bytes / (double) atomic_load(&c->ns);
        own[i] = (double) atomic_load(&c->kbytes) / 1024;
    }
    snprintf(name, sizeof name, "catching up with %llu MiB in files, payloads of %llu bytes",
             (unsigned long long) (bytes >> 20), (unsigned long long) payload_bytes);
    print_one(name, "GB/s", rate, passes, 1, false);
    snprintf(name, sizeof name, "notifies that go to files, payloads of %llu bytes",
             (unsigned long long) payload_bytes);
    print_one(name, "GB/s", writing, passes, 0, false);
    print_one("memory of its own of the listener that catches up", "MiB", own, passes, 0, false);
    print_one("the segment in /dev/shm, ring of 8 MiB", "MiB", segment, passes, 0, false);
    end_child(listener);
    pn_conn_close(conn);
    pn_remove_spill_files(engine);
    pn_engine_close(engine);
    munmap(c, sizeof *c);
}

int main(int argc, char **argv)
{
    settings s = parse_arguments(argc, argv);
    segments_owner = getpid();
    atexit(remove_segments);
    make_directory(NULL, "/var/tmp");
    measure_nothing_spilled(s);
    measure_catching_up(s, 1000);
    measure_catching_up(s, 100);
    return 0;
}
