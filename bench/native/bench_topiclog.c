/*
 * What a message costs on its way to a durable topic's log, and to a queue on disk and back: one at
 * a time, as publishing does.  In TMPDIR, or /tmp; nothing is synced.
 *
 *     build/release/bench/bench_topiclog [MESSAGES]
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "pynotify.h"
#include "files/topic_log.h"

enum { BODY = 200, ROUNDS = 5 };

static char path[256], log_path[300];
static unsigned char body[BODY];

static clock_t cpu_begin;

static double seconds(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double) ts.tv_sec + (double) ts.tv_nsec * 1e-9;
}

static double start(void)
{
    cpu_begin = clock();
    return seconds();
}

static void must(int64_t rc)
{
    if (rc >= 0)
        return;
    fprintf(stderr, "%s\n", pn_error_message());
    exit(1);
}

static void remove_files(const char *where)
{
    DIR *dir = opendir(where);
    if (dir == NULL)
        return;
    for (struct dirent *d; (d = readdir(dir)) != NULL;)
        unlinkat(dirfd(dir), d->d_name, 0);
    closedir(dir);
    rmdir(where);
}

static void report(const char *what, double begin, long n)
{
    double each = (seconds() - begin) / (double) n;
    double cpu = (double) (clock() - cpu_begin) / CLOCKS_PER_SEC / (double) n;
    printf("%-36s %8.0f ns  %10.0f a second; %6.0f ns of processor\n", what, each * 1e9, 1 / each,
           cpu * 1e9);
}

static int no_topic(void *arg, const struct pn_log_topic *t, const char *database, const char *name)
{
    (void) arg, (void) t, (void) database, (void) name;
    return 0;
}

static void bench_log(long n)
{
    static struct pn_topiclog log;
    static struct pn_topiclog_files files;
    static const struct pn_topiclog_replay nothing = {.topic = no_topic};
    struct pn_log_message message = {.fanned_out = 1};
    uint64_t seq, damaged;
    must(pn_topiclog_open(&files, path, "bench", 1 << 20, NULL));
    must(pn_topiclog_start(&log, &files, 1, 0, &nothing, NULL, &damaged));
    double begin = start();
    for (long i = 0; i < n; i++) {
        struct pn_record_in record = {.type = PN_LOG_PUBLISH, .parts = 2};
        message.id = (uint64_t) i + 1;
        record.part[0] = (struct iovec) {&message, sizeof message};
        record.part[1] = (struct iovec) {body, BODY};
        must(pn_topiclog_append(&log, &files, &record, 1, &seq));
    }
    report("log: append", begin, n);
    pn_topiclog_close(&files);
    remove_files(log_path);
}

static int take(void *arg, const struct pn_record_out *record)
{
    *(uint64_t *) arg += record->length;
    return 1;
}

static void bench_queue(long n)
{
    static struct pn_diskqueue queue;
    static struct pn_diskqueue_files files;
    struct pn_segfile_dir dir;
    uint64_t sum = 0;
    must(pn_segfile_open_dir(&dir, path, (uint32_t) geteuid(), "bench", 1, 'd'));
    must(pn_diskqueue_open(&files, &dir, 1 << 20));
    pn_diskqueue_init(&queue, 0, 0);
    double begin = start();
    for (long i = 0; i < n; i++) {
        struct pn_record_in record = {.parts = 1, .part = {{body, BODY}}};
        must(pn_diskqueue_put(&queue, &files, &record, 1));
    }
    report("queue on disk: put", begin, n);
    begin = start();
    for (int64_t got = 0, rc; got < n; got += rc)
        must(rc = pn_diskqueue_get(&queue, &files, 1, take, &sum));
    report("queue on disk: get, one at a time", begin, n);
    for (long i = 0; i < n; i++) {
        struct pn_record_in record = {.parts = 1, .part = {{body, BODY}}};
        must(pn_diskqueue_put(&queue, &files, &record, 1));
    }
    begin = start();
    for (int64_t got = 0, rc; got < n; got += rc)
        must(rc = pn_diskqueue_get(&queue, &files, 256, take, &sum));
    report("queue on disk: get, 256 at a time", begin, n);
    pn_diskqueue_empty(&queue, &files);
    pn_diskqueue_close(&files);
}

int main(int argc, char **argv)
{
    long n = argc > 1 ? atol(argv[1]) : 200000;
    const char *tmp = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/bench.topiclog.XXXXXX", tmp != NULL ? tmp : "/tmp");
    if (n <= 0 || mkdtemp(path) == NULL) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        return 1;
    }
    snprintf(log_path, sizeof log_path, "%s/bench", path);
    for (int round = 0; round < ROUNDS; round++) {
        bench_log(n);
        bench_queue(n);
    }
    remove_files(path);
    return 0;
}
