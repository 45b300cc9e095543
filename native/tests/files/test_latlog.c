/*
 * The latency log writer, read back as a stranger would: through the file, from the header on.
 * Exits 0, or 1 after naming what failed.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "latlog_dirs.h"

#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/hash.h"

static uint32_t number_of(pn_latlog *log, uint32_t dboid, const char *name, size_t len)
{
    return pn_latlog_number(log, pn_channel_hash(dboid, name, len), dboid, name, len);
}

static void remove_files(const char *dir)
{
    struct view v[64];
    int n = views_open(dir, v, 64);

    views_close(dir, v, n);
}

static void test_crc_vectors(void)
{
    unsigned char zeros[32] = {0}, ones[32], text[3000];

    memset(ones, 0xff, sizeof(ones));
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (unsigned char) (i * i / 7);
    CHECK(pn_crc32c(0, "123456789", 9) == 0xe3069283u);
    CHECK(pn_crc32c(0, zeros, 32) == 0x8a9136aau); /* RFC 3720 B.4 */
    CHECK(pn_crc32c(0, ones, 32) == 0x62a8ab43u);
    CHECK(pn_crc32c(0, "", 0) == 0);
    CHECK(pn_crc32c(pn_crc32c(0, "1234", 4), "56789", 5) == 0xe3069283u);
    for (size_t n = 0; n <= sizeof(text); n++)
        if (!CHECK(pn_crc32c(7, text, n) == pn_crc32c_portable(7, text, n)) ||
            !CHECK(pn_crc32c(~0u, text + n % 8, n / 2) ==
                   pn_crc32c_portable(~0u, text + n % 8, n / 2)))
            break;
}

static void test_no_file_before_the_first_record(void)
{
    char *dir = a_dir("lazy");
    pn_latlog *log;
    struct stat st;

    log = open_log(dir, 1);
    CHECK(stat(dir, &st) == 0 && (st.st_mode & 0777) == 0700);
    pn_latlog_close(log);
    CHECK(count_entries(dir) == 0);
    rmdir(dir);
}

static void test_channels_describe_themselves(void)
{
    char *dir = a_dir("channels"), name[255], read_back[256] = {0};
    struct pn_latrec r = a_send(0, 0);
    uint32_t a, b, longest;
    struct view v[4];
    pn_latlog *log;

    memset(name, 'n', sizeof(name));
    name[254] = '!';
    log = open_log(dir, 3);
    a = number_of(log, 1, "jobs", 4);
    b = number_of(log, 2, "jobs", 4);
    CHECK(a != 0 && b != 0 && a != b);
    CHECK(number_of(log, 1, "jobs", 4) == a);
    for (uint32_t i = 0; i < 100; i++) {
        char other[16];

        snprintf(other, sizeof(other), "c%u", i);
        CHECK(number_of(log, 1, other, strlen(other)) == i + 3);
    }
    longest = number_of(log, 9, name, sizeof(name));
    CHECK(longest != 0);
    r.channel = longest;
    pn_latlog_append(log, &r);
    CHECK((uint32_t) r.aux == pn_crc32c(0, "jobshello", 9));
    pn_latlog_append(log, &r);
    r.channel = 1000;
    pn_latlog_append(log, &r);
    CHECK(dropped == 1);
    pn_latlog_close(log);
    if (CHECK(views_open(dir, v, 4) == 1)) {
        check_header(&v[0]);
        CHECK(committed(v[0].h) == 8 + 2 && dropped_of(v[0].h) == 1);
        CHECK(end_of(v[0].h) == PN_LATLOG_CLOSED);
        CHECK(v[0].size == 4096 + 64 * 10 && v[0].h->backend_id == 3);
        CHECK(strcmp(v[0].h->segment, "seg") == 0);
        for (uint32_t i = 0; i < 8; i++) {
            struct pn_latrec d = view_record(&v[0], i);

            CHECK(d.kind == PN_LAT_CHANDEF && d.channel == longest && d.peer == 9);
            CHECK(d.bytes == 255 && d.lag == 8 && d.batch == i && record_ok(&d));
            memcpy(read_back + (size_t) i * 32, &d, i == 7 ? 31 : 32);
        }
        CHECK(memcmp(read_back, name, sizeof(name)) == 0);
    }
    views_close(dir, v, 1);
}

/* Each bit of each field comes to lie where the format has it, the record's own CRC aside. */
static void test_fields_lie_where_the_format_says(void)
{
    char *dir = a_dir("fields");
    struct pn_latrec r;
    struct view v[2];
    pn_latlog *log;

    log = open_log(dir, 1);
    for (unsigned i = 0; i < 512; i++) {
        memset(&r, 0, sizeof(r));
        ((unsigned char *) &r)[i / 8] = (unsigned char) (1u << i % 8);
        r.channel = 0;
        pn_latlog_append(log, &r);
    }
    pn_latlog_close(log);
    if (CHECK(views_open(dir, v, 2) == 1) && CHECK(committed(v[0].h) == 512))
        for (unsigned i = 0; i < 512; i++) {
            struct pn_latrec got = view_record(&v[0], i);

            memset(&r, 0, sizeof(r));
            ((unsigned char *) &r)[i / 8] = (unsigned char) (1u << i % 8);
            r.channel = 0;
            CHECK(record_ok(&got));
            r.aux = (uint32_t) r.aux | (got.aux & ~(uint64_t) UINT32_MAX);
            CHECK(memcmp(&r, &got, sizeof(r)) == 0);
        }
    views_close(dir, v, 1);
}

/* Allocated ahead, and no more of a short log than 64 KiB. */
static void test_room_is_there_before_it_is_written(void)
{
    char *dir = a_dir("room"), path[512];
    struct pn_latrec r = a_send(0, 0);
    struct view v[2];
    struct stat st;
    pn_latlog *log;

    log = open_log(dir, 1);
    pn_latlog_append(log, &r);
    CHECK(views_open(dir, v, 2) == 1);
    snprintf(path, sizeof(path), "%s/%s", dir, v[0].name);
    CHECK(stat(path, &st) == 0 && st.st_blocks >= 128 && st.st_blocks < 256);
    check_header(&v[0]);
    pn_latlog_close(log);
    views_close(dir, v, 1);
}

static void test_rotation(void)
{
    enum { N = 120000 };
    char *dir = a_dir("rotate");
    uint64_t next = 0, total = 0;
    uint32_t id;
    struct view v[8];
    pn_latlog *log;
    int n;

    log = open_log(dir, 1);
    id = number_of(log, 1, "jobs", 4);
    CHECK(id != 0);
    for (uint64_t i = 0; i < N; i++) {
        struct pn_latrec r = a_send(id, i);

        pn_latlog_append(log, &r);
    }
    CHECK(dropped == 0);
    n = views_open(dir, v, 8);
    CHECK(n == 4);
    for (int i = 0; i < n; i++) {
        uint64_t size = PN_LATLOG_SEGMENT_MIN << (2 * i);

        check_header(&v[i]);
        total += check_records(&v[i], PN_LAT_SEND, &next);
        CHECK(v[i].h->part == (uint32_t) i && v[i].h->log_id == v[0].h->log_id);
        CHECK(v[i].h->capacity == (size - 4096) / 64);
        CHECK(end_of(v[i].h) == (i < n - 1 ? PN_LATLOG_ROTATED : 0));
        CHECK(i == 0 || v[i].h->segno != v[i - 1].h->segno);
    }
    CHECK(total == N);
    pn_latlog_close(log);
    CHECK(n == 4 && end_of(v[3].h) == PN_LATLOG_CLOSED);
    views_close(dir, v, n);
}

/* A child that is killed while it writes as fast as it can: what is committed is whole. */
static void test_kill_in_mid_write(void)
{
    for (int round = 0; round < 8; round++) {
        char *dir = a_dir("kill");
        uint64_t next = 0, total = 0;
        struct view v[8];
        int ready[2], n, status;
        pid_t pid;
        char c;

        CHECK(pipe(ready) == 0);
        pid = fork();
        if (pid == 0) {
            pn_latlog *log;
            uint32_t id;

            if (pn_latlog_open(dir, "seg", 1, &log) < 0 || (id = number_of(log, 1, "jobs", 4)) == 0)
                _exit(1);
            for (uint64_t i = 0;; i++) {
                struct pn_latrec r = a_send(id, i);

                pn_latlog_append(log, &r);
                if (i == 2000 && write(ready[1], "x", 1) != 1)
                    _exit(1);
            }
        }
        CHECK(read(ready[0], &c, 1) == 1);
        for (volatile int spin = 0; spin < round * 100000; spin++)
            ;
        kill(pid, SIGKILL);
        CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
        close(ready[0]);
        close(ready[1]);
        n = views_open(dir, v, 8);
        for (int i = 0; i < n; i++) {
            check_header(&v[i]);
            CHECK(v[i].h->pid == pid);
            total += check_records(&v[i], PN_LAT_SEND, &next);
        }
        CHECK(n > 0 && end_of(v[n - 1].h) == 0 && total > 2000);
        views_close(dir, v, n);
    }
}

/* Up to where more room has to be made; then, one instruction after the other, a record, one with a
 * channel, for which room is made and an anchor written, since it is of a minute later, and the
 * end. */
static void appends_step_by_step(const char *dir)
{
    static const char name[] = "a name that takes more than one record";
    const uint64_t ready = ((64u << 10) - PN_LATLOG_HEADER) / PN_LATLOG_RECORD;
    pn_latlog *log;
    uint32_t id;

    if (pn_latlog_open(dir, "seg", 1, &log) < 0 ||
        (id = number_of(log, 1, name, strlen(name))) == 0)
        _exit(1);
    append_many(log, 0, ready - 2);
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0 || raise(SIGSTOP) != 0)
        _exit(77);
    struct pn_latrec r = a_send(0, ready - 2);
    pn_latlog_append(log, &r);
    r = a_send(id, ready - 1);
    r.ts += (uint64_t) 3600 * 24 * 365 * 100 * 1000000000;
    pn_latlog_append(log, &r);
    pn_latlog_close(log);
    _exit(0);
}

/* What a reader finds after a death there: records, the end of the file and clocks. */
static bool is_whole(const struct view *v, uint64_t *seen)
{
    int before = failures;
    uint64_t n = committed(v->h);

    CHECK(n >= *seen && n <= v->h->capacity && dropped_of(v->h) == 0);
    for (uint64_t i = *seen; i < n; i++) {
        struct pn_latrec r = view_record(v, i);
        CHECK(record_ok(&r));
    }
    check_anchors(v->h);
    *seen = n;
    return failures == before;
}

/* Killed after any instruction, it leaves a file of which all is whole. */
static void test_every_instruction(void)
{
    char *dir = a_dir("steps");
    uint64_t seen = 0, steps = 0, counts = 0, marked = 0;
    struct view v[2];
    int status;
    pid_t pid = fork();

    if (pid == 0)
        appends_step_by_step(dir);
    CHECK(waitpid(pid, &status, 0) == pid);
    if (!WIFSTOPPED(status)) {
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 77);
        fprintf(stderr, "test_latlog: no ptrace() here, so nothing is done step by step\n");
        remove_files(dir);
        return;
    }
    CHECK(views_open(dir, v, 2) == 1);
    while (is_whole(&v[0], &seen) && WIFSTOPPED(status)) {
        uint64_t before = seen;
        CHECK(ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) == 0);
        CHECK(waitpid(pid, &status, 0) == pid);
        steps++;
        counts += committed(v[0].h) != before;
        for (int i = 0; i < (int) PN_LATLOG_ANCHORS; i++)
            marked += v[0].h->anchors[i].crc == PN_LATLOG_WRITING;
    }
    if (WIFSTOPPED(status)) {
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
    }
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(end_of(v[0].h) == PN_LATLOG_CLOSED && counts == 2 && steps > 100 && marked > 2);
    check_header(&v[0]);
    views_close(dir, v, 1);
}

static void child_of_fork(pn_latlog *log, const char *dir)
{
    struct pn_latrec r = a_send(0, 0);
    pn_latlog *own;

    pn_latlog_abandon(log);
    if (pn_latlog_open(dir, "seg", 2, &own) < 0)
        _exit(1);
    pn_latlog_append(own, &r);
    pn_latlog_close(own);
    _exit(0);
}

static void test_fork_and_abandon(void)
{
    char *dir = a_dir("fork");
    struct pn_latrec r = a_send(0, 0);
    pid_t parent = getpid(), pid;
    struct view v[4];
    pn_latlog *log;
    int status, n;

    log = open_log(dir, 1);
    pn_latlog_append(log, &r);
    pid = fork();
    if (pid == 0)
        child_of_fork(log, dir);
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    pid = fork();
    if (pid == 0) {
        pn_latlog_close(log); /* must notice that it is not the owner */
        _exit(0);
    }
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    r.chan_seq = 1;
    pn_latlog_append(log, &r);
    n = views_open(dir, v, 4);
    CHECK(n == 2);
    for (int i = 0; i < n; i++) {
        bool mine = v[i].h->pid == parent;

        check_header(&v[i]);
        CHECK(committed(v[i].h) == (mine ? 2 : 1));
        CHECK(end_of(v[i].h) == (mine ? 0 : PN_LATLOG_CLOSED));
    }
    CHECK(n == 2 && v[0].h->log_id != v[1].h->log_id);
    pn_latlog_close(log);
    views_close(dir, v, n);
}

static void test_directory_errors(void)
{
    char path[256], *dir = a_dir("file"), longname[400];
    pn_latlog *log = NULL;
    int fd = open(dir, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

    memset(longname, 'x', sizeof(longname));
    longname[399] = '\0';
    close(fd);
    CHECK(pn_latlog_open(dir, "seg", 1, &log) == -ENOTDIR);
    snprintf(path, sizeof(path), "%s/no/such", base);
    CHECK(pn_latlog_open(path, "seg", 1, &log) == -ENOENT);
    CHECK(pn_latlog_open("", "seg", 1, &log) == -EINVAL);
    CHECK(pn_latlog_open(base, longname, 1, &log) == -ENAMETOOLONG);
    unlink(dir);
    dir = a_dir("gone");
    log = open_log(dir, 1);
    CHECK(rmdir(dir) == 0);
    for (int i = 0; i < 3; i++) {
        struct pn_latrec r = a_send(0, 1);

        pn_latlog_append(log, &r);
    }
    CHECK(dropped == 3);
    pn_latlog_close(log);
    pn_latlog_close(NULL);
    pn_latlog_abandon(NULL);
}

/* The program closed our descriptors and opened its own under their numbers. */
static void test_foreign_descriptors_are_not_touched(void)
{
    char *dir = a_dir("fds"), other[128];
    struct pn_latrec r = a_send(0, 0);
    int first = open("/dev/null", O_RDONLY | O_CLOEXEC), victim;
    struct stat st;
    pn_latlog *log;

    snprintf(other, sizeof(other), "%s/other", base);
    close(first);
    log = open_log(dir, 1);
    pn_latlog_append(log, &r);
    victim = open(other, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    CHECK(write(victim, "precious", 8) == 8);
    for (int fd = first; fd < victim; fd++)
        dup2(victim, fd);
    for (uint64_t i = 0; i < 10000; i++) {
        r = a_send(0, i);
        pn_latlog_append(log, &r);
    }
    CHECK(dropped > 0);
    pn_latlog_close(log);
    CHECK(fstat(victim, &st) == 0 && st.st_size == 8);
    for (int fd = first; fd <= victim; fd++)
        CHECK(close(fd) == 0);
    unlink(other);
    remove_files(dir);
}

/* Of the log's descriptors only the directory's: the file has room still, its follower has none. */
static void test_no_file_is_made_in_a_foreign_directory(void)
{
    char dir[256], *foreign;
    struct pn_latrec r = a_send(0, 0);
    struct view v[2];
    struct stat st;
    pn_latlog *log;
    int first = open("/dev/null", O_RDONLY | O_CLOEXEC), theirs;

    snprintf(dir, sizeof(dir), "%s", a_dir("lost"));
    foreign = a_dir("foreign");
    CHECK(mkdir(foreign, 0700) == 0);
    close(first);
    log = open_log(dir, 1);
    pn_latlog_append(log, &r);
    theirs = open(foreign, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int fd = first; fd < theirs; fd++)
        if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode))
            CHECK(dup2(theirs, fd) == fd);
    for (uint64_t i = 1; dropped == 0 && i < 120000; i++) {
        r = a_send(0, i);
        pn_latlog_append(log, &r);
    }
    CHECK(dropped > 0);
    CHECK(views_open(foreign, v, 2) == 0);
    CHECK(views_open(dir, v, 2) == 1 && committed(v[0].h) == v[0].h->capacity);
    pn_latlog_close(log);
    CHECK(end_of(v[0].h) == PN_LATLOG_CLOSED && dropped_of(v[0].h) > 0);
    views_close(dir, v, 1);
    for (int fd = first; fd <= theirs; fd++)
        if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode))
            CHECK(close(fd) == 0);
    remove_files(dir);
    CHECK(rmdir(foreign) == 0);
}

static void tests(void)
{
    test_no_file_before_the_first_record();
    test_channels_describe_themselves();
    test_fields_lie_where_the_format_says();
    test_room_is_there_before_it_is_written();
    test_rotation();
    test_kill_in_mid_write();
    test_every_instruction();
    test_fork_and_abandon();
    test_directory_errors();
    test_foreign_descriptors_are_not_touched();
    test_no_file_is_made_in_a_foreign_directory();
}

int main(void)
{
    test_crc_vectors();
    return tests_in_both(tests);
}
