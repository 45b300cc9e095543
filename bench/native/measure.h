/*
 * measure.h - what the native benchmarks share: clocks, pinning, child processes, figures.
 *
 * How they measure, once for all of them
 * --------------------------------------
 * M1 A figure is a ratio within one run: ours and the floor are measured in alternating passes, the
 *    order turns round after every pair, and the ratio is taken pair by pair.  Printed are the
 *    median and the extremes of the pairs.
 * M2 A pass is timed as a whole, with two readings of CLOCK_MONOTONIC, or (latencies) message by
 *    message on the same clock in both processes.
 * M3 Every message carries its number, and the listener compares every byte of it.  A pass whose
 *    listener finds anything else ends the program.
 * M4 Processes are started, connected and warmed up before the first pass that counts.
 * M5 Output is for people; with --json it is one JSON object a line, which `python -m bench native`
 *    reads.
 *
 * Everything is static: each file of this directory is one program.
 */
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "pynotify.h"

#define PAYLOAD_BYTES 100
#define MAX_PASSES    256
#define CHANNEL       "bench"

/* ---- giving up --------------------------------------------------------------------------- */

__attribute__((noreturn, format(printf, 1, 2), unused)) static void die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("bench: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

/* A result of the C API: errors end the program, notices (a fill warning) are welcome. */
__attribute__((unused)) static int64_t must(int64_t rc, const char *what)
{
    if (rc < 0)
        die("%s: %lld: %s", what, (long long) rc, pn_error_message());
    return rc;
}

/* A result of the operating system. */
__attribute__((unused)) static int must_os(int rc, const char *what)
{
    if (rc < 0)
        die("%s: %s", what, strerror(errno));
    return rc;
}

/* ---- time and place ---------------------------------------------------------------------- */

__attribute__((unused)) static int64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t) ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static cpu_set_t allowed_cpus; /* those this process was given at its start */

static inline int cpu_count(void)
{
    return CPU_COUNT(&allowed_cpus);
}

/* The nth (from 0, modulo) of the allowed CPUs. */
__attribute__((unused)) static void pin_to_cpu(int nth)
{
    int left = nth % cpu_count();
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &allowed_cpus) || left-- > 0)
            continue;
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        must_os(sched_setaffinity(0, sizeof one, &one), "sched_setaffinity");
        return;
    }
}

static inline void spin_hint(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* ---- shared memory ----------------------------------------------------------------------- */

/* Shared with the children that are forked afterwards; tmpfs pages, as the segment's are. */
__attribute__((unused)) static void *shared_memory(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        die("mmap of %zu bytes: %s", bytes, strerror(errno));
    return p;
}

/* ---- children ---------------------------------------------------------------------------- */

typedef struct child {
    pid_t pid;
    int socket;
} child;

/* `body` gets the child's end of the socket; its return ends the child. */
__attribute__((unused)) static child start_child(void (*body)(int socket, void *arg), void *arg)
{
    int ends[2];
    must_os(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), "socketpair");
    fflush(NULL);
    pid_t pid = must_os(fork(), "fork");
    if (pid == 0) {
        must_os(prctl(PR_SET_PDEATHSIG, SIGKILL), "prctl");
        close(ends[0]);
        body(ends[1], arg);
        exit(0);
    }
    close(ends[1]);
    return (child) {.pid = pid, .socket = ends[0]};
}

/* One number each way is all that these programs have to say to each other. */
__attribute__((unused)) static void tell(int socket, uint64_t word)
{
    ssize_t n;
    do
        n = write(socket, &word, sizeof word);
    while (n < 0 && errno == EINTR);
    if (n != (ssize_t) sizeof word)
        die("write to the other process: %s", strerror(errno));
}

__attribute__((unused)) static uint64_t hear(int socket)
{
    uint64_t word = 0;
    ssize_t n;
    do
        n = read(socket, &word, sizeof word);
    while (n < 0 && errno == EINTR);
    if (n != (ssize_t) sizeof word)
        die("the other process has ended");
    return word;
}

/* The child ends when its socket says so (hear() == QUIT). */
#define QUIT UINT64_MAX

__attribute__((unused)) static void end_child(child c)
{
    int status = 0;
    tell(c.socket, QUIT);
    must_os(waitpid(c.pid, &status, 0), "waitpid");
    close(c.socket);
    if (status != 0)
        die("process %d ended with status %#x", (int) c.pid, (unsigned) status);
}

/* For one that was told nothing: it kills itself, or is killed here. */
__attribute__((unused)) static void wait_for_death(child c)
{
    must_os(waitpid(c.pid, NULL, 0), "waitpid");
    close(c.socket);
}

__attribute__((unused)) static void kill_child(child c)
{
    kill(c.pid, SIGKILL);
    wait_for_death(c);
}

/* The numbers behind `key:` in /proc/PID/file, added up; NULL: the number that it begins with. */
__attribute__((unused)) static double from_proc(pid_t pid, const char *file, const char *key)
{
    char path[64], text[4096];
    double sum = 0;
    snprintf(path, sizeof path, "/proc/%d/%s", (int) pid, file);
    int fd = must_os(open(path, O_RDONLY | O_CLOEXEC), path);
    ssize_t n = must_os((int) read(fd, text, sizeof text - 1), path);
    close(fd);
    text[n] = '\0';
    if (key == NULL)
        return strtod(text, NULL);
    for (const char *at = strstr(text, key); at != NULL; at = strstr(at + 1, key))
        sum += strtod(strchr(at, ':') + 1, NULL);
    return sum;
}

/* Blocked in the kernel: state S in /proc/PID/stat. */
__attribute__((unused)) static bool is_sleeping(int stat_fd)
{
    char text[256];
    ssize_t n = pread(stat_fd, text, sizeof text - 1, 0);
    if (n <= 0)
        die("/proc/PID/stat: %s", strerror(errno));
    text[n] = '\0';
    const char *after_name = strrchr(text, ')');
    return after_name != NULL && after_name[1] == ' ' && after_name[2] == 'S';
}

__attribute__((unused)) static int open_stat(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/stat", (int) pid);
    return must_os(open(path, O_RDONLY | O_CLOEXEC), path);
}

/* ---- messages ---------------------------------------------------------------------------- */

/* Number i and 92 bytes that follow from nothing else. */
__attribute__((unused)) static void payload_init(uint8_t payload[PAYLOAD_BYTES])
{
    for (int i = 0; i < PAYLOAD_BYTES; i++)
        payload[i] = (uint8_t) (i * 37 + 11);
}

static inline void payload_number(uint8_t payload[PAYLOAD_BYTES], uint64_t number)
{
    memcpy(payload, &number, sizeof number);
}

/* All bytes of `got` against those of number i; `expected` is scratch from payload_init(). */
static inline bool payload_is(const uint8_t *got, uint8_t expected[PAYLOAD_BYTES], uint64_t number)
{
    payload_number(expected, number);
    return memcmp(got, expected, PAYLOAD_BYTES) == 0;
}

/* ---- figures ----------------------------------------------------------------------------- */

typedef struct spread {
    double median, min, max;
} spread;

__attribute__((unused)) static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;
    return (x > y) - (x < y);
}

__attribute__((unused)) static spread spread_of(const double *values, int n)
{
    double sorted[MAX_PASSES];
    if (n < 1 || n > MAX_PASSES)
        die("%d values", n);
    memcpy(sorted, values, (size_t) n * sizeof *values);
    qsort(sorted, (size_t) n, sizeof *sorted, compare_doubles);
    double middle = n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
    return (spread) {middle, sorted[0], sorted[n - 1]};
}

typedef struct figure {
    const char *name, *unit;    /* unit of ours and of the floor */
    const double *ours, *floor; /* [n], pair by pair; floor NULL: an absolute figure */
    int n;
    const char *against; /* what the floor is */
    double bar;          /* 0: none */
    bool at_most;        /* the bar is an upper bound */
    const char *note;    /* NULL: none */
} figure;

static bool print_json_lines;

static inline void print_spread_json(const char *key, spread s)
{
    printf("\"%s\": {\"median\": %.6g, \"min\": %.6g, \"max\": %.6g}, ", key, s.median, s.min,
           s.max);
}

static inline void print_figure_json(const figure *f, spread ours, spread floor, spread compared)
{
    printf("{\"program\": \"%s\", \"figure\": \"%s\", \"unit\": \"%s\", ",
           program_invocation_short_name, f->name, f->unit);
    print_spread_json("ours", ours);
    if (f->floor != NULL) {
        print_spread_json("peer", floor);
        print_spread_json("ratio", compared);
        printf("\"against\": \"%s\", ", f->against);
    }
    if (f->bar > 0)
        printf("\"bar\": %g, \"at_most\": %s, ", f->bar, f->at_most ? "true" : "false");
    if (f->note != NULL)
        printf("\"note\": \"%s\", ", f->note);
    printf("\"repetitions\": %d}\n", f->n);
}

/* "PASS" or "below" beside the bar; a missed bar is a result, not a failure of the program. */
__attribute__((unused)) static void print_figure(const figure *f)
{
    double ratios[MAX_PASSES];
    spread ours = spread_of(f->ours, f->n), floor = {0, 0, 0};
    spread compared = ours;
    if (f->floor != NULL) {
        for (int i = 0; i < f->n; i++)
            ratios[i] = f->ours[i] / f->floor[i];
        floor = spread_of(f->floor, f->n);
        compared = spread_of(ratios, f->n);
    }
    if (print_json_lines) {
        print_figure_json(f, ours, floor, compared);
        fflush(stdout);
        return;
    }
    printf("%s: %s\n", program_invocation_short_name, f->name);
    printf("    ours   %10.4g %s [%.4g .. %.4g], %d repetitions\n", ours.median, f->unit, ours.min,
           ours.max, f->n);
    if (f->floor != NULL) {
        printf("    floor  %10.4g %s [%.4g .. %.4g]  (%s)\n", floor.median, f->unit, floor.min,
               floor.max, f->against);
        printf("    ratio  %10.3f x [%.3f .. %.3f]\n", compared.median, compared.min, compared.max);
    }
    if (f->bar > 0) {
        bool pass = f->at_most ? compared.median <= f->bar : compared.median >= f->bar;
        printf("    bar    %s %g%s: %s\n", f->at_most ? "<=" : ">=", f->bar,
               f->floor != NULL ? " x" : "", pass ? "PASS" : "below");
    }
    if (f->note != NULL)
        printf("    note   %s\n", f->note);
    fflush(stdout);
}

/* One that has no floor; a bar of 0 is none. */
__attribute__((unused)) static void print_values(const char *name, const char *unit,
                                                 const double *ours, int n, double bar,
                                                 bool at_most)
{
    print_figure(&(figure) {
        .name = name, .unit = unit, .ours = ours, .n = n, .bar = bar, .at_most = at_most});
}

/* ---- command line ------------------------------------------------------------------------ */

typedef struct settings {
    bool quick; /* fewer passes: a look, not a figure */
} settings;

__attribute__((unused)) static settings parse_arguments(int argc, char **argv)
{
    settings s = {false};
    signal(SIGPIPE, SIG_IGN);
    must_os(sched_getaffinity(0, sizeof allowed_cpus, &allowed_cpus), "sched_getaffinity");
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            print_json_lines = true;
        else if (strcmp(argv[i], "--quick") == 0)
            s.quick = true;
        else
            die("usage: %s [--quick] [--json]", argv[0]);
    }
    return s;
}

/* ---- a directory that is gone afterwards --------------------------------------------------- */

static char directory[256];
static pid_t directory_owner;

static inline int remove_below(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void) st, (void) type;
    if (at->level > 0 && remove(path) != 0)
        die("remove %s: %s", path, strerror(errno));
    return 0;
}

static inline void empty_directory(void)
{
    nftw(directory, remove_below, 8, FTW_DEPTH | FTW_PHYS);
}

static inline void remove_directory(void)
{
    if (getpid() != directory_owner || directory[0] == '\0')
        return;
    empty_directory();
    rmdir(directory);
    directory[0] = '\0';
}

/* In `parent`; NULL: in TMPDIR, or if there is none in `otherwise`. */
__attribute__((unused)) static void make_directory(const char *parent, const char *otherwise)
{
    const char *tmp = getenv("TMPDIR");
    if (parent == NULL)
        parent = tmp != NULL ? tmp : otherwise;
    if (directory_owner == 0)
        atexit(remove_directory);
    directory_owner = getpid();
    int n = snprintf(directory, sizeof directory, "%s/pynotify-bench.XXXXXX", parent);
    if (n >= (int) sizeof directory || mkdtemp(directory) == NULL)
        die("mkdtemp %s: %s", directory, strerror(errno));
}

/* ---- segments ---------------------------------------------------------------------------- */

static char segment_names[4][64];
static int segments_used;
static pid_t segments_owner;

/* The C API leaves unlinking to its callers (shm_unlink); the name is the design's. */
static inline void remove_segments(void)
{
    char path[384];
    if (getpid() != segments_owner)
        return;
    for (int i = 0; i < segments_used; i++) {
        snprintf(path, sizeof path, "/pynotify.%u.%s", (unsigned) geteuid(), segment_names[i]);
        shm_unlink(path);
        pn_remove_lock_files(segment_names[i]);
    }
    segments_used = 0;
}

/* A segment of this run alone; removed when the program ends, however it does. */
__attribute__((unused)) static pn_engine *open_segment(const char *what, const pn_options *options)
{
    pn_engine *engine = NULL;
    char *name = segment_names[segments_used++];
    if (segments_owner == 0) {
        segments_owner = getpid();
        atexit(remove_segments);
    }
    snprintf(name, sizeof segment_names[0], "bench-%s-%d", what, (int) segments_owner);
    must(pn_open(name, options, &engine), "pn_open");
    return engine;
}

/* LISTEN, a transaction of its own. */
__attribute__((unused)) static void listen_to(pn_conn *conn, const char *channel)
{
    pn_txn *txn = NULL;
    must(pn_txn_begin(conn, &txn), "pn_txn_begin");
    must(pn_txn_listen(txn, channel, strlen(channel)), "pn_txn_listen");
    must(pn_txn_commit(txn), "commit of LISTEN");
}

__attribute__((unused)) static pn_conn *connect_to(pn_engine *engine)
{
    pn_conn *conn = NULL;
    must(pn_connect(engine, "default", strlen("default"), 0, NULL, &conn), "pn_connect");
    return conn;
}

/* ---- waking one that sleeps ---------------------------------------------------------------- */

#define MAX_SAMPLES 4000

/* What the sender and the sleeper share. */
typedef struct board {
    _Alignas(64) _Atomic int64_t sent_ns; /* W: sender, before each call */
    _Alignas(64) _Atomic uint64_t taken;  /* W: sleeper, messages of this pass so far */
    double sample_ns[MAX_SAMPLES];        /* W: sleeper, before `taken` */
} board;

/* In the sleeper: message i is in its hand. */
__attribute__((unused)) static void take(board *b, uint64_t i)
{
    b->sample_ns[i] = (double) (now_ns() - atomic_load(&b->sent_ns));
    atomic_store(&b->taken, i + 1);
}

/* `wake` is called for each message once the sleeper is blocked.  The median of the pass, ns. */
__attribute__((unused)) static double median_wakeup(board *b, int stat_fd, int count,
                                                    void (*wake)(void *arg, uint64_t i), void *arg)
{
    double sorted[MAX_SAMPLES];
    for (int i = 0; i < count; i++) {
        while (!is_sleeping(stat_fd))
            sched_yield();
        atomic_store(&b->sent_ns, now_ns());
        wake(arg, (uint64_t) i);
        while (atomic_load(&b->taken) != (uint64_t) i + 1)
            sched_yield();
    }
    memcpy(sorted, b->sample_ns, (size_t) count * sizeof *sorted);
    qsort(sorted, (size_t) count, sizeof *sorted, compare_doubles);
    return sorted[count / 2];
}

/* ---- messages of a connection --------------------------------------------------------------- */

/* Until something may be there, or a signal came. */
__attribute__((unused)) static void sleep_until_told(pn_conn *conn)
{
    int rc = pn_wait(conn, -1);
    if (rc < 0 && rc != -EINTR)
        must(rc, "pn_wait");
}

/* Message i of the batch must be that number; `expected` is scratch from payload_init(). */
__attribute__((unused)) static void check_message(const pn_batch *b, uint64_t i,
                                                  uint8_t expected[PAYLOAD_BYTES], uint64_t number)
{
    if (b->offset[i + 1] - b->offset[i] != PAYLOAD_BYTES ||
        !payload_is(b->data + b->offset[i], expected, number))
        die("message %llu is not what was sent", (unsigned long long) number);
}

/* A transaction of its own, with that number; `payload` is scratch from payload_init(). */
static inline void notify_number(pn_conn *conn, uint8_t payload[PAYLOAD_BYTES], uint64_t number)
{
    payload_number(payload, number);
    int rc = pn_notify(conn, CHANNEL, strlen(CHANNEL), payload, PAYLOAD_BYTES);
    if (rc < 0)
        must(rc, "pn_notify");
}

#endif
