/*
 * bench_topiclog.c - what a message costs on its way to a durable topic's log, and to a queue on
 * disk and back: one at a time, as publishing does.  In TMPDIR, or /tmp; nothing is synced.  A
 * figure is the time of a pass divided by its messages; processor time is in the note.
 */
#include "measure.h"

#include "files/topic_log.h"

enum { BODY = 200, APPEND = 0, PUT, GET_ONE, GET_MANY, FIGURES };

static unsigned char body[BODY];

/* ns a message, one value a pass. */
static double wall[FIGURES][MAX_PASSES], cpu[FIGURES][MAX_PASSES];
static int64_t wall_begin, cpu_begin;

static int64_t cpu_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (int64_t) ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void start(void)
{
    cpu_begin = cpu_ns();
    wall_begin = now_ns();
}

static void stop(int which, int pass, long n)
{
    wall[which][pass] = (double) (now_ns() - wall_begin) / (double) n;
    cpu[which][pass] = (double) (cpu_ns() - cpu_begin) / (double) n;
}

static int no_topic(void *arg, const struct pn_log_topic *t, const char *database, const char *name)
{
    (void) arg, (void) t, (void) database, (void) name;
    return 0;
}

static void bench_log(int pass, long n)
{
    static struct pn_topiclog log;
    static struct pn_topiclog_files files;
    static const struct pn_topiclog_replay nothing = {.topic = no_topic};
    struct pn_log_message message = {.fanned_out = 1};
    uint64_t seq, damaged;
    must(pn_topiclog_open(&files, directory, "bench", 1 << 20, NULL), "pn_topiclog_open");
    must(pn_topiclog_start(&log, &files, 1, 0, &nothing, NULL, &damaged), "pn_topiclog_start");
    start();
    for (long i = 0; i < n; i++) {
        struct pn_record_in record = {.type = PN_LOG_PUBLISH, .parts = 2};
        message.id = (uint64_t) i + 1;
        record.part[0] = (struct iovec) {&message, sizeof message};
        record.part[1] = (struct iovec) {body, BODY};
        must(pn_topiclog_append(&log, &files, &record, 1, &seq), "pn_topiclog_append");
    }
    stop(APPEND, pass, n);
    pn_topiclog_close(&files);
    empty_directory();
}

static int look(void *arg, const struct pn_record_out *record)
{
    *(uint64_t *) arg += record->length;
    return 1;
}

static void put(struct pn_diskqueue *queue, struct pn_diskqueue_files *files, long n)
{
    for (long i = 0; i < n; i++) {
        struct pn_record_in record = {.parts = 1, .part = {{body, BODY}}};
        uint64_t seq;
        must(pn_diskqueue_stage(queue, files, &record, 1, &seq), "pn_diskqueue_stage");
        pn_diskqueue_commit(queue, seq);
    }
}

static void get(struct pn_diskqueue *queue, struct pn_diskqueue_files *files, long n,
                uint32_t at_once)
{
    uint64_t sum = 0;
    for (int64_t got = 0, rc; got < n; got += rc)
        must(rc = pn_diskqueue_get(queue, files, at_once, look, &sum), "pn_diskqueue_get");
    if (sum != (uint64_t) n * BODY)
        die("%llu bytes of %ld messages", (unsigned long long) sum, n);
}

static void bench_queue(int pass, long n)
{
    static struct pn_diskqueue queue;
    static struct pn_diskqueue_files files;
    struct pn_data_dir dir;
    must(pn_data_dir_init(&dir, directory, (uint32_t) geteuid(), "bench", 1, 'd'),
         "pn_data_dir_init");
    must(pn_diskqueue_open(&files, &dir, 1 << 20), "pn_diskqueue_open");
    pn_diskqueue_init(&queue, 0, 0);
    start();
    put(&queue, &files, n);
    stop(PUT, pass, n);
    start();
    get(&queue, &files, n, 1);
    stop(GET_ONE, pass, n);
    put(&queue, &files, n);
    start();
    get(&queue, &files, n, 256);
    stop(GET_MANY, pass, n);
    pn_diskqueue_empty(&queue, &files);
    pn_diskqueue_close(&files);
}

int main(int argc, char **argv)
{
    static const char *const names[FIGURES] = {
        [APPEND] = "log: append",
        [PUT] = "queue on disk: put",
        [GET_ONE] = "queue on disk: get, one at a time",
        [GET_MANY] = "queue on disk: get, 256 at a time",
    };
    settings s = parse_arguments(argc, argv);
    int passes = s.quick ? 2 : 5;
    long n = s.quick ? 20000 : 200000;
    char note[80];
    make_directory(NULL, "/tmp");
    for (int pass = 0; pass < passes; pass++) {
        bench_log(pass, n);
        bench_queue(pass, n);
    }
    for (int i = 0; i < FIGURES; i++) {
        snprintf(note, sizeof note, "%.0f ns of processor time", spread_of(cpu[i], passes).median);
        print_figure(
            &(figure) {.name = names[i], .unit = "ns", .ours = wall[i], .n = passes, .note = note});
    }
    return 0;
}
