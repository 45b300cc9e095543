/*
 * fuzz_diskqueue.c - files of a queue on disk and of a log of topics are overwritten, cut, made
 * long and removed; then used, with the segment and without it.
 *
 * What is got is a record that was put, in order, and depth says how many there are; or the file
 * system's error.  What is put after the damage is got again.  A log is read to its end.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "files/diskqueue.h"
#include "fuzz.h"
#include "files/topic_log.h"

enum { RECORDS = 24, LONGEST = 6000, INSTANCE = 77, BASE = 3, MAX_FILE = 8192 };

static struct pn_diskqueue q;
static struct pn_diskqueue_files files;
static struct pn_topiclog tlog;
static struct pn_topiclog_files tfiles;
static char path[40];
static char log_path[sizeof path + 8];

static uint32_t length_of(uint32_t i)
{
    return 1 + i * 769 % LONGEST;
}

static const uint8_t *body_of(uint32_t i)
{
    static uint8_t body[LONGEST];
    memset(body, (int) (i * 7 + 1), sizeof body);
    return body;
}

static int put(uint32_t i)
{
    uint64_t seq;
    struct pn_record_in record = {.type = i, .parts = 1};
    record.part[0] = (struct iovec) {(void *) (uintptr_t) body_of(i), length_of(i)};
    int rc = pn_diskqueue_stage(&q, &files, &record, 1, &seq);
    if (rc == 0)
        pn_diskqueue_commit(&q, seq);
    return rc;
}

/* In place of all that are there. */
static int put_instead(uint32_t i)
{
    struct pn_diskqueue_cursor before;
    pn_diskqueue_end(&q, false, &before);
    int rc = put(i);
    if (rc != 0)
        return rc;
    pn_diskqueue_forget(&q, &files, &before);
    FUZZ_CHECK(pn_diskqueue_depth(&q) == 1, "the others are forgotten, and %u are there",
               (unsigned) pn_diskqueue_depth(&q));
    return 0;
}

static void remove_files(const struct pn_data_dir *dir)
{
    char name[sizeof dir->path + sizeof dir->prefix + 32];
    for (unsigned number = 0; number < 64; number++) {
        int n = snprintf(name, sizeof name, "%s/%s%016x", dir->path, dir->prefix, number);
        if (n > 0)
            unlink(name);
    }
}

static void tidy(void)
{
    scratch_remove(path);
}

static void make(void)
{
    struct pn_data_dir dir;
    FUZZ_CHECK(scratch_make("/dev/shm", path, sizeof path), "%s", strerror(errno));
    snprintf(log_path, sizeof log_path, "%s/log", path);
    FUZZ_OK(pn_data_dir_init(&dir, path, (uint32_t) geteuid(), "fuzz", INSTANCE, 'd'));
    FUZZ_OK(pn_diskqueue_open(&files, &dir, LONGEST));
    FUZZ_OK(pn_topiclog_open(&tfiles, path, "log", LONGEST, NULL));
    atexit(tidy);
}

/* One file of those: a few bytes, its end, or all of it. */
static void damage(struct fuzz_input *in, const struct pn_data_dir *dir, uint64_t base)
{
    char name[sizeof dir->path + sizeof dir->prefix + 32];
    for (uint64_t n = fuzz_take(in, 1) & 7; n > 0; n--) {
        uint64_t number = base + fuzz_take(in, 1) % 5, how = fuzz_take(in, 1);
        snprintf(name, sizeof name, "%s/%s%016llx", dir->path, dir->prefix,
                 (unsigned long long) number);
        uint64_t bytes = fuzz_take(in, 4);
        int64_t at = (int64_t) (fuzz_take(in, 2) % (how & 1 ? 256 : 2 * MAX_FILE));
        if (how % 16 == 15) {
            unlink(name);
            continue;
        }
        if (how % 16 == 14)
            at <<= 30; /* a hole of gigabytes */
        int fd = open(name, O_RDWR | O_CLOEXEC | (how & 32 ? O_CREAT : 0), 0600);
        if (fd < 0)
            continue;
        if (how % 4 == 2 ? ftruncate(fd, at) != 0 : pwrite(fd, &bytes, 1 + (how >> 2 & 3), at) < 0)
            FUZZ_CHECK(errno == EFBIG, "%s: %s", name, strerror(errno));
        close(fd);
    }
}

struct got {
    int64_t last, n;
};

static int take(void *arg, const struct pn_record_out *record)
{
    struct got *got = arg;
    FUZZ_CHECK((int64_t) record->type > got->last, "%u after %d", record->type, (int) got->last);
    FUZZ_CHECK(record->type <= RECORDS && record->length == length_of(record->type) &&
                   memcmp(record->body, body_of(record->type), record->length) == 0,
               "record %u is not what was put", record->type);
    got->last = record->type;
    got->n++;
    return 1;
}

static void get_all(struct got *got)
{
    int64_t rc;
    unsigned calls = 0;
    do {
        uint64_t depth = pn_diskqueue_depth(&q), before = (uint64_t) got->n;
        rc = pn_diskqueue_get(&q, &files, 1, take, got);
        FUZZ_CHECK(pn_diskqueue_depth(&q) + ((uint64_t) got->n - before) <= depth, "depth");
        FUZZ_CHECK(++calls < 20000, "it does not end");
    } while (rc > 0 || rc == -EAGAIN);
    FUZZ_CHECK(rc < 0 || pn_diskqueue_depth(&q) == 0, "%u are left",
               (unsigned) pn_diskqueue_depth(&q));
}

/* Those behind the oldest, in steps. */
static void look_at_some(struct got *seen)
{
    struct pn_diskqueue_cursor cursor = {0};
    struct pn_record_out record;
    for (int i = 0, rc = 1; i < 6 && (rc == 1 || rc == -EAGAIN); i += rc == 1) {
        rc = pn_diskqueue_look(&q, &files, &cursor, &record);
        if (rc == 1 && i > 0 && take(seen, &record) != 1)
            break;
    }
}

static void fuzz_queue(struct fuzz_input *in, bool recovered, bool instead)
{
    struct got got = {.last = -1}, seen = {.last = -1};
    pn_diskqueue_init(&q, BASE, MAX_FILE);
    for (uint32_t i = 0; i < RECORDS; i++)
        FUZZ_CHECK(put(i) == 0, "%s", pn_error_message());
    FUZZ_CHECK(pn_diskqueue_get(&q, &files, 2, take, &got) == 2, "%s", pn_error_message());
    pn_recfile_reader_forget(&files.reader);
    damage(in, &files.dir, BASE + 1);
    if (recovered) {
        int rc = pn_diskqueue_recover(&q, &files, BASE, MAX_FILE);
        FUZZ_CHECK(rc <= 0, "%d", rc);
        got.last = -1; /* its mark may be damaged, too */
    }
    look_at_some(&seen);
    if ((instead ? put_instead(RECORDS) : put(RECORDS)) == 0) {
        get_all(&got);
        FUZZ_CHECK(got.last == RECORDS, "put, and not got: %s", pn_error_message());
    }
    pn_diskqueue_empty(&q, &files);
    FUZZ_CHECK(pn_diskqueue_depth(&q) == 0, "emptied, and not empty");
    remove_files(&files.dir);
}

/* ---- the log --------------------------------------------------------------------------------- */

static int tell_topic(void *arg, const struct pn_log_topic *t, const char *database,
                      const char *name)
{
    (void) arg;
    FUZZ_CHECK(database[0] == 'd' && name[0] == 't' && t->name_len == 1, "another name");
    return 0;
}

static int tell_channel(void *arg, const struct pn_log_channel *c, const char *name)
{
    (void) arg;
    FUZZ_CHECK(name[0] == 'c' && c->name_len == 1, "another name");
    return 0;
}

static int tell_message(void *arg, const struct pn_log_message *m, const struct pn_log_delivery *d,
                        const uint8_t *headers, const uint8_t *body, uint32_t length)
{
    uint64_t *last = arg;
    FUZZ_CHECK(m->id > *last && m->id <= RECORDS && m->deliveries <= 1, "message %u",
               (unsigned) m->id);
    FUZZ_CHECK(m->deliveries == 0 || d[0].attempts < 100, "attempts");
    FUZZ_CHECK(m->headers_len == 0 && headers == body && length == length_of((uint32_t) m->id) &&
                   memcmp(body, body_of((uint32_t) m->id), length) == 0,
               "its body");
    *last = m->id;
    return 0;
}

static const struct pn_topiclog_replay told = {
    .topic = tell_topic, .channel = tell_channel, .message = tell_message};

static void append(uint32_t kind, const void *head, size_t size, const void *tail, size_t left)
{
    uint64_t seq;
    struct pn_record_in record = {.type = kind, .parts = 2};
    record.part[0] = (struct iovec) {(void *) (uintptr_t) head, size};
    record.part[1] = (struct iovec) {(void *) (uintptr_t) tail, left};
    pn_topiclog_append(&tlog, &tfiles, &record, 1, &seq);
}

static void write_log(void)
{
    const struct pn_log_topic topic = {.database_len = 1, .name_len = 1};
    const struct pn_log_channel channel = {.name_len = 1};
    append(PN_LOG_TOPIC, &topic, sizeof topic, "dt", 2);
    append(PN_LOG_CHANNEL, &channel, sizeof channel, "c", 1);
    for (uint32_t i = 1; i <= RECORDS; i++) {
        const struct pn_log_message m = {.id = i, .fanned_out = i % 3 != 0};
        const struct pn_log_delivery d = {.id = i / 2, .attempts = i};
        append(PN_LOG_PUBLISH, &m, sizeof m, body_of(i), length_of(i));
        append(PN_LOG_DELIVERED + i % 3, &d, sizeof d, "", 0);
    }
}

static void fuzz_log(struct fuzz_input *in)
{
    uint64_t damaged, last = 0;
    remove_files(&tfiles.queue.dir);
    if (pn_topiclog_start(&tlog, &tfiles, 1, MAX_FILE, &told, &last, &damaged) != 0)
        abort();
    write_log();
    damage(in, &tfiles.queue.dir, 1);
    last = 0;
    if (pn_topiclog_start(&tlog, &tfiles, 2, MAX_FILE, &told, &last, &damaged) == 0) {
        write_log();
        last = 0;
        int rc = pn_topiclog_start(&tlog, &tfiles, 3, MAX_FILE, &told, &last, &damaged);
        FUZZ_CHECK(rc <= 0, "%d", rc);
    }
    remove_files(&tfiles.queue.dir);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    if (files.reader.bytes == NULL)
        make();
    uint64_t what = fuzz_take(&in, 1);
    if (what % 3 == 2)
        fuzz_log(&in);
    else
        fuzz_queue(&in, what % 3 == 1, what >= 128);
    return 0;
}
