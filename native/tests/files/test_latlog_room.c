/*
 * Room for the latency log: limits of the directory, of the process and of the disk; which files
 * go, and which stay.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "latlog_dirs.h"

#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "files/latency_room.h"

static const uint64_t CAPACITY = (PN_LATLOG_SEGMENT_MIN - PN_LATLOG_HEADER) / PN_LATLOG_RECORD;

static void test_without_room_records_are_dropped_and_counted(void)
{
    char *dir = a_dir("bound");
    uint64_t next = 0;
    struct pn_latrec r = a_send(0, CAPACITY);
    struct view v[4];
    pn_latlog *log;

    log = open_log(dir, 1);
    pn_latlog_limit(log, PN_LATLOG_SEGMENT_MIN + 1); /* its own file is all that there is */
    append_many(log, 0, 2 * CAPACITY);
    CHECK(dropped == CAPACITY && recycled == 0);
    pn_latlog_limit(log, PN_LATLOG_LIMIT_DEFAULT);
    append_many(log, 0, 1);
    CHECK(dropped == CAPACITY + 1);
    r.ts += 3000000000u; /* a second later it tries again */
    pn_latlog_append(log, &r);
    CHECK(views_open(dir, v, 4) == 2);
    CHECK(check_records(&v[0], PN_LAT_SEND, &next) == CAPACITY);
    CHECK(check_records(&v[1], PN_LAT_SEND, &next) == 1);
    CHECK(dropped_of(v[0].h) == CAPACITY + 1 && dropped_of(v[1].h) == CAPACITY + 1);
    pn_latlog_close(log);
    views_close(dir, v, 2);
}

/* The lines of the ledger; and the parts in them, in their order. */
static int ledger(const char *dir, uint64_t log_id, uint32_t *parts, int max)
{
    char path[256], line[256];
    unsigned long long id, records, lost;
    unsigned part;
    int n = 0;

    snprintf(path, sizeof(path), "%s/%s", dir, PN_LATROOM_LEDGER);
    FILE *f = fopen(path, "r");
    while (f != NULL && fgets(line, sizeof(line), f) != NULL)
        if (line[0] != '\n') {
            CHECK(sscanf(line,
                         "{\"log_id\":\"%llx\",\"part\":%u,\"records\":%llu,\"dropped\":%llu}", &id,
                         &part, &records, &lost) == 4);
            CHECK(id == log_id && records == CAPACITY && lost == 0 && n < max);
            parts[n++] = part;
        }
    if (f != NULL) {
        fclose(f);
        CHECK(unlink(path) == 0);
    }
    return n;
}

/* Files grow to that, and no further. */
static void test_no_file_has_more_than_a_part_of_the_limit(void)
{
    enum { FILES = 8, PART = 16 };
    char *dir = a_dir("parts");
    uint64_t next = 0, total = 0, n = 3 * CAPACITY * 4;
    struct view v[FILES];
    pn_latlog *log;

    log = open_log(dir, 1);
    pn_latlog_limit(log, PN_LATLOG_SEGMENT_MIN * 4 * PART + 1);
    append_many(log, 0, n);
    int files = views_open(dir, v, FILES);
    CHECK(files == 4);
    for (int i = 0; i < files; i++) {
        uint64_t size = i == 0 ? PN_LATLOG_SEGMENT_MIN : PN_LATLOG_SEGMENT_MIN * 4;
        CHECK(v[i].h->capacity == (size - PN_LATLOG_HEADER) / PN_LATLOG_RECORD);
        total += check_records(&v[i], PN_LAT_SEND, &next);
    }
    CHECK(total == n && dropped == 0);
    pn_latlog_close(log);
    views_close(dir, v, files);
}

static void limit_files(uint64_t size)
{
    struct rlimit r;
    CHECK(getrlimit(RLIMIT_FSIZE, &r) == 0);
    r.rlim_cur = size == 0 ? r.rlim_max : size;
    CHECK(setrlimit(RLIMIT_FSIZE, &r) == 0);
}

/* A program that has not asked for SIGXFSZ, which would end it. */
static int limited(const char *dir)
{
    struct pn_latrec r = a_send(0, 5 * CAPACITY);
    struct stat st;
    pn_latlog *log;

    signal(SIGXFSZ, SIG_DFL);
    log = open_log(dir, 1);
    limit_files(PN_LATLOG_SEGMENT_MIN); /* as many files as there need to be, but small ones */
    append_many(log, 0, 3 * CAPACITY);
    CHECK(dropped == 0);

    char path[256]; /* room is made, though the ledger is full */
    snprintf(path, sizeof(path), "%s/%s", dir, PN_LATROOM_LEDGER);
    CHECK(close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600)) == 0);
    CHECK(truncate(path, (off_t) PN_LATLOG_SEGMENT_MIN) == 0);
    pn_latlog_limit(log, PN_LATLOG_SEGMENT_MIN * 4);
    append_many(log, 0, 5 * CAPACITY);
    CHECK(recycled == 4 && dropped == 0);
    CHECK(stat(path, &st) == 0 && st.st_size == (off_t) PN_LATLOG_SEGMENT_MIN);
    CHECK(unlink(path) == 0);
    pn_latlog_limit(log, PN_LATLOG_LIMIT_DEFAULT);

    limit_files(PN_LATLOG_SEGMENT_MIN - 1); /* no file is small enough */
    append_many(log, 0, 10);
    CHECK(dropped == 10);
    limit_files(0);
    r.ts += 3000000000u; /* a second later it tries again, and makes a large one */
    pn_latlog_append(log, &r);
    CHECK(dropped == 10);
    limit_files(PN_LATLOG_SEGMENT_MIN); /* which is not filled now */
    for (uint64_t i = 0; i < 2 * CAPACITY; i++)
        pn_latlog_append(log, &r);
    CHECK(dropped == 10);
    pn_latlog_close(log);
    return failures;
}

static void test_a_limit_of_the_process_is_no_signal(void)
{
    char *dir = a_dir("fsize");
    struct view v[16];
    int status;
    pid_t pid = fork();

    if (pid == 0)
        _exit(limited(dir));
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    int n = views_open(dir, v, 16);
    int large = 0;
    for (int i = 0; i < n; i++)
        large += v[i].h->capacity > CAPACITY;
    CHECK(n > 4 && large == 1);
    views_close(dir, v, n);
}

/* Of two logs the one that is written keeps its newest files, and the idle one its only one. */
static void test_the_oldest_files_go_when_the_directory_is_full(void)
{
    enum { FILES = 8 };
    char *dir = a_dir("recycled");
    uint64_t next;
    uint32_t parts[FILES];
    struct view v[FILES];
    pn_latlog *idle, *log;
    int n;

    idle = open_log(dir, 1);
    log = open_log(dir, 2);
    append_many(idle, 0, 1);
    pn_latlog_limit(log, PN_LATLOG_SEGMENT_MIN * 4);
    append_many(log, 0, FILES * CAPACITY);
    CHECK(dropped == 0 && recycled == FILES - 3);
    n = views_open(dir, v, FILES);
    CHECK(n == 4 && v[0].h->part == 0 && v[0].h->backend_id == 1 && committed(v[0].h) == 1);
    for (int i = 1; i < n; i++) {
        CHECK(v[i].h->part == (uint32_t) (FILES - n + i) && committed(v[i].h) == CAPACITY);
        next = v[i].h->part * CAPACITY;
        CHECK(check_records(&v[i], PN_LAT_SEND, &next) == CAPACITY);
    }
    CHECK(ledger(dir, v[1].h->log_id, parts, FILES) == FILES - 3);
    for (uint32_t i = 0; i < FILES - 3; i++)
        CHECK(parts[i] == i);
    pn_latlog_close(log);
    pn_latlog_close(idle);
    views_close(dir, v, n);
}

/* A process that is stopped holds its file; once it is killed the file can go, sealed or not. */
static void test_a_file_is_kept_while_its_process_lives(void)
{
    char *dir = a_dir("held");
    struct view v[4];
    pn_latlog *log;
    int status, told[2];
    char byte;

    CHECK(pipe(told) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        log = open_log(dir, 1);
        append_many(log, 0, 5);
        _exit(write(told[1], "x", 1) != 1 || pause() == 0);
    }
    CHECK(read(told[0], &byte, 1) == 1);
    log = open_log(dir, 2);
    pn_latlog_limit(log, PN_LATLOG_SEGMENT_MIN);
    append_many(log, 0, 1);
    CHECK(dropped == 1);
    CHECK(kill(pid, SIGKILL) == 0 && waitpid(pid, &status, 0) == pid);
    struct pn_latrec r = a_send(0, 1);
    r.ts += 3000000000u;
    pn_latlog_append(log, &r);
    CHECK(dropped == 1);
    CHECK(views_open(dir, v, 4) == 1 && v[0].h->backend_id == 2);
    pn_latlog_close(log);
    views_close(dir, v, 1);
    snprintf(v[0].name, sizeof(v[0].name), "%s/%s", dir, PN_LATROOM_LEDGER);
    CHECK(unlink(v[0].name) == 0 && rmdir(dir) == 0);
    close(told[0]);
    close(told[1]);
}

static bool looked_at; /* by a process that makes room, just when the file was made */

/* In the place of the system's: the first shared lock finds another process's exclusive one. */
int flock(int fd, int operation)
{
    if (looked_at && operation == (LOCK_SH | LOCK_NB)) {
        looked_at = false;
        errno = EWOULDBLOCK;
        return -1;
    }
    return (int) syscall(SYS_flock, fd, operation);
}

static void test_a_file_that_is_looked_at_too_early_is_made_again(void)
{
    char *dir = a_dir("early");
    struct view v[2];
    pn_latlog *log;

    log = open_log(dir, 1);
    looked_at = true;
    append_many(log, 0, 1);
    CHECK(!looked_at && dropped == 0 && count_entries(dir) == 1);
    pn_latlog_close(log);
    CHECK(views_open(dir, v, 2) == 1 && committed(v[0].h) == 1);
    views_close(dir, v, 1);
}

/* What is no log, of an older version, locked, or linked from elsewhere stays. */
static void test_other_files_stay(void)
{
    char path[256], *dir = a_dir("others");
    struct pn_latlog_header old;
    uint32_t parts[2];
    pn_latlog *log;
    int held;

    log = open_log(dir, 1);
    snprintf(path, sizeof(path), "%s/notes.1.pynlog", dir);
    int fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    CHECK(ftruncate(fd, PN_LATLOG_SEGMENT_MIN) == 0);
    close(fd);
    snprintf(path, sizeof(path), "%s/old.boot.1.2.0.pynlog", dir);
    fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    memset(&old, 0, sizeof(old));
    memcpy(old.magic, PN_LATLOG_MAGIC_1, sizeof(old.magic));
    old.revision = 1;
    CHECK(write(fd, &old, sizeof(old)) == sizeof(old));
    close(fd);
    snprintf(path, sizeof(path), "%s/sealed.boot.1.2.0.pynlog", dir);
    held = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    old.zeros[0] = 1; /* where version 1 says how it ended */
    old.log_id = 5;
    old.part = 7;
    old.state = CAPACITY; /* and how many records there are, as a plain number */
    CHECK(write(held, &old, sizeof(old)) == sizeof(old) && flock(held, LOCK_SH) == 0);
    pn_latlog_limit(log, PN_LATLOG_SEGMENT_MIN);
    append_many(log, 0, 1);
    CHECK(dropped == 1 && count_entries(dir) == 3);
    CHECK(flock(held, LOCK_UN) == 0);
    struct pn_latrec r = a_send(0, 1);
    r.ts += 3000000000u;
    pn_latlog_append(log, &r);
    CHECK(dropped == 2 && count_entries(dir) == 3); /* and the ledger's first line */
    CHECK(ledger(dir, 5, parts, 2) == 1 && parts[0] == 7);
    pn_latlog_close(log);
    close(held);
    for (int i = 0; i < 2; i++) {
        static const char *const names[] = {"notes.1.pynlog", "old.boot.1.2.0.pynlog"};
        snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
        CHECK(unlink(path) == 0);
    }
    CHECK(rmdir(dir) == 0);
}

/* In a namespace of its own: a full file system costs records, and nothing else. */
static void fill_a_file_system(const char *dir)
{
    uint64_t next = 0, written = 0, i = 0, refused;
    char path[512];
    struct view v[4];
    pn_latlog *log;
    int n;

    log = open_log(dir, 1);
    for (; dropped == 0 && CHECK(i < 100000); i++) {
        struct pn_latrec r = a_send(0, i);
        pn_latlog_append(log, &r);
    }
    refused = i - 1;
    CHECK(refused > 16384 && refused <= (2u << 20) / 64); /* a third file was begun */
    n = views_open(dir, v, 4);
    CHECK(n == 3);
    for (int k = 0; k < n; k++)
        written += check_records(&v[k], PN_LAT_SEND, &next);
    CHECK(written == refused && n == 3 && dropped_of(v[2].h) == 1);
    snprintf(path, sizeof(path), "%s/%s", dir, v[0].name);
    munmap((void *) (uintptr_t) v[0].h, v[0].size);
    CHECK(unlink(path) == 0);
    for (i = 0; i < 1000; i++) { /* there is room again, which is found a second later */
        struct pn_latrec r = a_send(0, refused + i);
        r.ts += 3000000000u;
        pn_latlog_append(log, &r);
    }
    CHECK(dropped == 1);
    CHECK(check_records(&v[2], PN_LAT_SEND, &(uint64_t) {refused - committed(v[2].h) + 1000}) ==
          committed(v[2].h));
    pn_latlog_close(log);
}

static void test_full_file_system(void)
{
    char *dir = a_dir("full");
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        if (mkdir(dir, 0700) < 0)
            _exit(1);
        if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
            mount("none", dir, "tmpfs", 0, "size=2m,mode=0700") < 0)
            _exit(77);
        failures = 0;
        fill_a_file_system(dir);
        _exit(failures != 0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        fprintf(stderr, "test_latlog: no right to mount: the full file system is left out\n");
    else
        CHECK(status == 0);
    rmdir(dir);
}

static void tests(void)
{
    test_without_room_records_are_dropped_and_counted();
    test_no_file_has_more_than_a_part_of_the_limit();
    test_a_limit_of_the_process_is_no_signal();
    test_the_oldest_files_go_when_the_directory_is_full();
    test_a_file_is_kept_while_its_process_lives();
    test_a_file_that_is_looked_at_too_early_is_made_again();
    test_other_files_stay();
    test_full_file_system();
}

int main(void)
{
    return tests_in_both(tests);
}
