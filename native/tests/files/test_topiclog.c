/*
 * The log of durable topics: read again, it says what a plain model says, wherever it was cut or
 * damaged, however often it was opened and rolled; and it is synced when it should be.
 * test_topiclog_compaction.c compacts, test_crash_topiclog.c kills.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "topiclog_work.h"

#include <sys/resource.h>

static void test_what_is_read_again_is_what_was_done(void)
{
    for (uint64_t seed = 1; seed <= 60; seed++) {
        log_make();
        op_random = seed;
        for (int opened = 0; opened < 4; opened++) {
            work((unsigned) seed * 4);
            CHECK_EQ(log_start(&told), 0);
            check_same(&told.p, plain);
        }
    }
}

static void test_many_files_say_the_same(void)
{
    log_max_file = 8000;
    for (uint64_t seed = 100; seed < 120; seed++) {
        log_make();
        op_random = seed;
        set_up();
        work(800);
        CHECK(files_in(log_dir) > 5);
        CHECK_EQ(log_start(&told), 0);
        check_same(&told.p, plain);
    }
    log_max_file = 1 << 20;
}

/* ---- settings, behind the names -------------------------------------------------------------- */

/* A topic or channel with so many bytes of what follows its names. */
static void append_with(const struct op *op, const void *settings, size_t n)
{
    static struct op_record space;
    struct pn_record_in record = record_of(op, &space);
    uint64_t seq;
    set_part(&record, settings, n);
    CHECK_OK(pn_topiclog_append(tlog, &tfiles, &record, 1, &seq));
    apply_all(plain, op, 1);
}

static void test_logs_of_before_and_of_later_versions_are_read(void)
{
    const struct {
        struct pn_log_limits known;
        char later[24];
    } limits = {{.default_ttl = 7, .max_memory = 8, .max_disk_bytes = 9}, "unknown"};
    const struct pn_log_defaults defaults = {
        .given = 7, .max_attempts = 3, .dead_letter_len = 4, .dead_letter = "dead"};
    const struct op topic[] = {{.kind = PN_LOG_TOPIC, .topic = 0},
                               {.kind = PN_LOG_TOPIC, .topic = 1},
                               {.kind = PN_LOG_TOPIC, .topic = 2}};
    const struct op channel[] = {{.kind = PN_LOG_CHANNEL, .topic = 0, .channel = 0},
                                 {.kind = PN_LOG_CHANNEL, .topic = 0, .channel = 1}};
    log_make();
    append_with(&topic[0], "", 0); /* as before there were any */
    append_with(&topic[1], &limits, sizeof limits.known.default_ttl);
    append_with(&topic[2], &limits, sizeof limits);
    append_with(&channel[0], "", 0);
    append_with(&channel[1], &defaults, sizeof defaults);
    CHECK_EQ(log_start(&told), 0);
    check_same(&told.p, plain);
    const struct pn_log_limits none = {.default_ttl = 0}, part = {.default_ttl = 7};
    CHECK(memcmp(&told.limits[0], &none, sizeof none) == 0);
    CHECK(memcmp(&told.limits[1], &part, sizeof part) == 0);
    CHECK(memcmp(&told.limits[2], &limits.known, sizeof limits.known) == 0);
    CHECK_EQ(told.defaults[0][0].given, 0);
    CHECK(memcmp(&told.defaults[0][1], &defaults, sizeof defaults) == 0);
}

/* ---- cut and damaged ------------------------------------------------------------------------- */

enum { SMALL = 24 };

static struct op all_ops[SMALL * MOST];
static struct {
    off_t begin, end;
    bool last;    /* of its batch */
    size_t batch; /* where that begins */
} where[SMALL * MOST];
static uint8_t whole[1 << 18], all_bytes[1 << 18];

/* Some batches in one file; how many operations. */
static size_t small_log(uint64_t seed)
{
    struct op_record space;
    size_t total = 0;
    log_make();
    op_random = seed;
    set_up();
    memset(plain, 0, sizeof *plain);
    log_dir_empty();
    CHECK_EQ(log_start(&told), 0);
    for (int i = 0; i < SMALL; i++) {
        struct op *ops = all_ops + total;
        off_t at = log_end();
        size_t n = random_batch(ops);
        if (i == 0)
            ops[0] = (struct op) {.kind = PN_LOG_TOPIC};
        if (i == 1)
            ops[0] = (struct op) {.kind = PN_LOG_CHANNEL};
        CHECK_OK(append_ops(ops, n));
        for (size_t k = 0; k < n; k++) {
            struct pn_record_in record = record_of(&ops[k], &space);
            where[total + k].begin = at;
            at += (off_t) pn_record_size(pn_record_length(&record));
            where[total + k].end = at - (off_t) pn_record_size(pn_record_length(&record)) +
                                   PN_RECORD_HEADER + (off_t) pn_record_length(&record);
            where[total + k].last = k + 1 == n;
            where[total + k].batch = total;
        }
        CHECK_EQ(at, log_end());
        total += n;
    }
    path_of(&tfiles.queue.dir, pn_diskqueue_now(&tlog->queue)->write_file, path);
    int fd = open(path, O_RDONLY);
    CHECK_EQ(pread(fd, whole, sizeof whole, 0), log_end());
    close(fd);
    return total;
}

/* The file as it was, and no other. */
static int restore(off_t length)
{
    char saved[sizeof path];
    memcpy(saved, path, sizeof saved);
    DIR *dir = opendir(log_dir);
    for (struct dirent *d; (d = readdir(dir)) != NULL;)
        if (d->d_name[0] != '.')
            CHECK_EQ(unlinkat(dirfd(dir), d->d_name, 0), 0);
    closedir(dir);
    int fd = open(saved, O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0);
    CHECK_EQ(pwrite(fd, whole, (size_t) length, 0), length);
    return fd;
}

struct seen {
    uint64_t messages, damaged, harmful, unfinished;
};

/* What `pynotify topics fsck` sees, which changes nothing. */
static struct seen look(off_t length)
{
    static uint8_t after[sizeof whole];
    struct seen seen = {0};
    pn_dir *dir;
    pn_dir_about about;
    pn_dir_item item;
    int rc, fd = open(path, O_RDWR);
    ssize_t before = pread(fd, all_bytes, sizeof all_bytes, 0);
    CHECK_EQ(before, length);
    CHECK_OK(pn_dir_open(log_dir, NULL, 0, &dir, &about));
    while ((rc = pn_dir_next(dir, &item)) == 1) {
        seen.messages += item.kind == PN_DIR_MESSAGE;
        seen.unfinished += item.kind == PN_DIR_DAMAGE && item.why == PN_DIR_UNFINISHED;
        seen.harmful += item.kind == PN_DIR_DAMAGE && item.why != PN_DIR_UNFINISHED;
        CHECK(item.kind != PN_DIR_DAMAGE || item.at < (uint64_t) length);
    }
    CHECK_EQ(rc, 0);
    seen.damaged = about.damaged;
    pn_dir_close(dir);
    CHECK_EQ(files_in(log_dir), 1);
    CHECK_EQ(pread(fd, after, sizeof after, 0), before);
    CHECK(memcmp(after, all_bytes, (size_t) before) == 0);
    close(fd);
    return seen;
}

static void test_a_log_that_was_cut_at_any_byte_has_what_is_whole(void)
{
    size_t n = small_log(7);
    off_t end = log_end();
    struct plain *want = calloc(1, sizeof *want);
    size_t applied = 0, upto = 0;
    for (off_t length = PN_RECFILE_START; length <= end; length++) {
        while (upto < n && where[upto].end <= length) {
            upto++;
            if (where[upto - 1].last) {
                apply_all(want, all_ops + applied, upto - applied);
                applied = upto;
            }
        }
        close(restore(length));
        struct seen seen = look(length);
        log_start(&told);
        check_same(&told.p, want);
        CHECK_EQ(seen.messages, messages_in(want));
        CHECK_EQ(seen.harmful, 0);
        bool between = length == PN_RECFILE_START || (upto == applied && length % 8 == 0);
        CHECK(seen.unfinished <= 1 && (between || seen.unfinished == 1 || length % 8 != 0));
    }
    CHECK_EQ(applied, n);
    free(want);
}

static bool names(const struct op *op)
{
    return op->kind == PN_LOG_TOPIC || op->kind == PN_LOG_CHANNEL;
}

/* But for what the batch says of names. */
static void test_a_flipped_byte_costs_its_batch(void)
{
    size_t n = small_log(8), hit = 0;
    off_t end = log_end();
    struct plain *want = calloc(1, sizeof *want);
    for (off_t at = 0; at < end; at++) {
        while (hit < n && at >= where[hit].end)
            hit++;
        bool costs = hit < n && at >= where[hit].begin;
        size_t begin = costs ? where[hit].batch : n, stop = begin;
        memset(want, 0, sizeof *want);
        uint64_t lost = 0;
        while (stop < n && where[stop].batch == begin)
            stop++;
        bool last = costs && hit == n - 1; /* of the file: as if that batch had not been written */
        for (size_t i = 0; i < (last ? begin : n); i++) {
            bool torn = i >= begin && i < stop;
            if (torn && (i == hit || !names(&all_ops[i])))
                lost++;
            else
                plain_apply(want, &all_ops[i]);
        }
        int fd = restore(end);
        uint8_t byte = (uint8_t) (whole[at] ^ (1U << at % 8));
        CHECK_EQ(pwrite(fd, &byte, 1, at), 1);
        close(fd);
        struct seen seen = look(end);
        uint64_t damaged = log_start(&told);
        CHECK_EQ(seen.damaged, damaged);
        CHECK_EQ(seen.messages, messages_in(&told.p));
        CHECK_EQ(seen.harmful != 0, costs || damaged != 0); /* also of what the file begins with */
        if (costs) { /* and messages of topics that nothing tells of */
            CHECK(damaged >= lost && damaged <= lost + n);
            CHECK_EQ(damaged == 0, lost == 0);
        }
        check_same(&told.p, want);
    }
    free(want);
}

/* A process that still writes to a segment that was unlinked and made again. */
static void test_what_an_unlinked_segment_writes_does_not_count(void)
{
    static struct pn_topiclog_files zombie;
    struct pn_topiclog *current = tlog, old;
    log_make();
    set_up();
    work(50);
    old = *tlog;
    CHECK_OK(pn_topiclog_open(&zombie, data_dir, log_segment, 10000, &plain_source));
    CHECK_EQ(log_start(&told), 0);
    struct pn_topiclog_files mine = tfiles;
    tlog = &old;
    tfiles = zombie;
    const struct op late = {.kind = PN_LOG_PUBLISH, .id = IDS - 1};
    for (int i = 0; i < 10; i++)
        CHECK_OK(append_ops(&late, 1));
    zombie = tfiles;
    tlog = current;
    tfiles = mine;
    work(50);
    CHECK_EQ(log_start(&told), 0);
    check_same(&told.p, plain);
    pn_topiclog_close(&zombie);
}

/* ---- syncing --------------------------------------------------------------------------------- */

static unsigned file_syncs, dir_syncs;
static int sync_error;

/* In place of the C library's, to be counted. */
int fdatasync(int fd)
{
    (void) fd;
    file_syncs++;
    errno = sync_error;
    return sync_error != 0 ? -1 : 0;
}

int fsync(int fd)
{
    (void) fd;
    dir_syncs++;
    return 0;
}

static void publish_one(uint64_t *seq)
{
    struct op op = {.kind = PN_LOG_PUBLISH, .id = 5};
    CHECK_OK(append_ops(&op, 1));
    *seq = pn_diskqueue_now(&tlog->queue)->write_seq;
}

static void test_a_sync_is_for_all_that_is_written(void)
{
    uint64_t seq[4];
    log_make();
    set_up();
    file_syncs = dir_syncs = 0;
    for (int i = 0; i < 3; i++)
        publish_one(&seq[i]);
    CHECK_EQ(file_syncs, 0); /* fsync="none" */
    CHECK_OK(pn_topiclog_sync(tlog, &tfiles, seq[0], NULL));
    CHECK_EQ(file_syncs, 1);
    CHECK_EQ(dir_syncs, 2); /* the file is new, and so is its directory */
    for (int i = 0; i < 3; i++)
        CHECK_OK(pn_topiclog_sync(tlog, &tfiles, seq[i], NULL));
    CHECK_EQ(file_syncs, 1); /* the others of the group */
    publish_one(&seq[3]);
    CHECK_OK(pn_topiclog_sync(tlog, &tfiles, seq[3], NULL));
    CHECK_EQ(file_syncs, 2);
    CHECK_EQ(dir_syncs, 2);
    CHECK_EQ(pn_load_relaxed(&tlog->syncs), 2);
}

static void test_a_sync_over_several_files_takes_each(void)
{
    uint64_t seq;
    log_max_file = 4000;
    log_make();
    log_max_file = 1 << 20;
    set_up();
    publish_one(&seq);
    CHECK_OK(pn_topiclog_sync(tlog, &tfiles, seq, NULL));
    uint64_t first = pn_diskqueue_now(&tlog->queue)->write_file;
    while (pn_diskqueue_now(&tlog->queue)->write_file < first + 3)
        publish_one(&seq);
    file_syncs = dir_syncs = 0;
    CHECK_OK(pn_topiclog_sync(tlog, &tfiles, seq, NULL));
    CHECK_EQ(file_syncs, 4);
    CHECK_EQ(dir_syncs, 1);
}

/* With fsync="none" nothing was synced before: the first sync takes all files. */
static void test_the_first_sync_takes_all_files(void)
{
    uint64_t seq;
    log_max_file = 4000;
    log_make();
    log_max_file = 1 << 20;
    set_up();
    while (pn_diskqueue_now(&tlog->queue)->write_file < 3)
        publish_one(&seq);
    file_syncs = 0;
    CHECK_OK(pn_topiclog_sync(tlog, &tfiles, seq, NULL));
    CHECK_EQ(file_syncs, 3);
}

static void test_a_sync_that_failed_is_told_and_tried_again(void)
{
    uint64_t seq;
    log_make();
    set_up();
    publish_one(&seq);
    file_syncs = 0;
    sync_error = EIO;
    CHECK_EQ(pn_topiclog_sync(tlog, &tfiles, seq, NULL), -EIO);
    CHECK(strstr(pn_error_message(), log_dir) != NULL);
    CHECK_EQ(pn_topiclog_sync(tlog, &tfiles, seq, NULL), -EIO);
    sync_error = 0;
    CHECK_OK(pn_topiclog_sync(tlog, &tfiles, seq, NULL));
    CHECK_EQ(file_syncs, 3);
}

static void test_an_interval_is_synced_by_one_after_it_has_passed(void)
{
    uint64_t seq;
    int64_t now = test_now_ns();
    log_make();
    set_up();
    publish_one(&seq);
    CHECK(pn_topiclog_sync_due(tlog, now));
    CHECK(!pn_topiclog_sync_due(tlog, now)); /* another process does it */
    CHECK_OK(pn_topiclog_sync(tlog, &tfiles, UINT64_MAX, NULL));
    CHECK(!pn_topiclog_sync_due(tlog, now + 10 * PN_TOPICLOG_INTERVAL)); /* nothing to be done */
    publish_one(&seq);
    now = (int64_t) pn_load_relaxed(&tlog->synced_at);
    CHECK(!pn_topiclog_sync_due(tlog, now + PN_TOPICLOG_INTERVAL - 1));
    CHECK(pn_topiclog_sync_due(tlog, now + PN_TOPICLOG_INTERVAL));
}

/* ---- no room --------------------------------------------------------------------------------- */

static void limited(void *arg)
{
    struct rlimit limit;
    struct op op = {.kind = PN_LOG_PUBLISH, .id = IDS - 1};
    uint64_t seq = 0;
    (void) arg;
    CHECK_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = 20000;
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    int rc = 0;
    while (rc == 0 && seq++ < 1000) {
        rc = append_ops(&op, 1);
        if (rc == 0)
            plain_apply(plain, &op);
        op.id--;
    }
    CHECK_EQ(rc, -EFBIG);
    CHECK_EQ(pn_load_relaxed(&tlog->queue.error), EFBIG);
    limit.rlim_cur = limit.rlim_max;
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    CHECK_EQ(log_start(&told), 0);
    check_same(&told.p, plain);
}

static void test_a_full_disk_is_an_error_and_loses_nothing(void)
{
    log_make();
    set_up();
    CHECK_CHILD(spawn(limited, NULL), 0);
}

static void test_a_topic_in_its_directory_is_not_touched_by_unlink(void)
{
    log_make();
    set_up();
    work(10);
    unsigned files = files_in(log_dir);
    CHECK_EQ(pn_data_dir_remove_all(data_dir, geteuid(), log_segment, 0), 0);
    CHECK_EQ(pn_data_dir_remove_all(log_dir, geteuid(), log_segment, 0), 0);
    CHECK_EQ(files_in(log_dir), files);
    struct stat st;
    CHECK_EQ(stat(log_dir, &st), 0);
    CHECK_EQ(st.st_mode & 07777, 0700);
}

/* Up to the last number, which only overwritten memory can hold, there are 2^63 names. */
static void test_a_log_is_gone_if_a_file_of_it_is(void)
{
    char beside[sizeof log_dir + 8];
    log_make();
    set_up();
    snprintf(beside, sizeof beside, "%s.beside", log_dir);
    CHECK(!pn_topiclog_is_gone(tlog, &tfiles));
    const struct pn_topiclog good = *tlog;
    tlog->queue.state[tlog->queue.current & 1].write_file = INT64_MAX;
    CHECK(pn_topiclog_is_gone(tlog, &tfiles));
    CHECK_EQ(rename(log_dir, beside), 0);
    int file = open(log_dir, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    CHECK(file >= 0);
    CHECK(!pn_topiclog_is_gone(tlog, &tfiles)); /* ENOTDIR, and of each name again */
    close(file);
    CHECK_EQ(unlink(log_dir), 0);
    *tlog = good;
    CHECK(pn_topiclog_is_gone(tlog, &tfiles));
    CHECK_EQ(rename(beside, log_dir), 0);
    CHECK(!pn_topiclog_is_gone(tlog, &tfiles));
}

/* A copy has its name: what is written goes to a file without one. */
static void test_a_log_is_gone_if_a_file_of_it_was_replaced_or_cut(void)
{
    char beside[sizeof path + 8];
    log_make();
    set_up();
    path_of(&tfiles.queue.dir, pn_diskqueue_now(&tlog->queue)->write_file, path);
    snprintf(beside, sizeof beside, "%s.beside", path);
    CHECK_EQ(rename(path, beside), 0);
    int file = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    CHECK(file >= 0);
    CHECK_EQ(ftruncate(file, log_end()), 0);
    close(file);
    CHECK(pn_topiclog_is_gone(tlog, &tfiles));
    CHECK_EQ(rename(beside, path), 0);
    CHECK(!pn_topiclog_is_gone(tlog, &tfiles));
    CHECK_EQ(truncate(path, log_end() - 1), 0);
    CHECK(pn_topiclog_is_gone(tlog, &tfiles));
}

/* By a process that dies then: the file would be as long as it should be, and its hole not seen. */
static void test_a_file_that_was_cut_short_is_not_written_on(void)
{
    struct stat st;
    log_make();
    set_up();
    const struct op op = {.kind = PN_LOG_TOPIC};
    const off_t end = log_end();
    path_of(&tfiles.queue.dir, pn_diskqueue_now(&tlog->queue)->write_file, path);
    CHECK_EQ(truncate(path, end - 1), 0);
    CHECK_EQ(append_ops(&op, 1), -ENOENT);
    CHECK(strstr(pn_error_message(), "was cut short") != NULL);
    CHECK_EQ(stat(path, &st), 0);
    CHECK_EQ(st.st_size, end - 1);
    CHECK_EQ(log_end(), end);
    CHECK(pn_topiclog_is_gone(tlog, &tfiles));
    CHECK_OK(pn_topiclog_write_anew(tlog, &tfiles, 0));
    CHECK(!pn_topiclog_is_gone(tlog, &tfiles));
    CHECK_OK(append_ops(&op, 1));
}

static int refusal;

static int may_begin_or_not(void *arg)
{
    (void) arg;
    return refusal;
}

/* Another segment's may have that name by now. */
static void test_no_file_is_made_in_a_directory_of_anothers(void)
{
    struct pn_topiclog_source source = plain_source;
    const struct op op = {.kind = PN_LOG_TOPIC};
    char next[sizeof path];
    source.own = may_begin_or_not;
    refusal = 0;
    log_make();
    tfiles.source = source;
    set_up();
    uint64_t last = pn_diskqueue_now(&tlog->queue)->write_file;
    path_of(&tfiles.queue.dir, last + 1, next);
    int file = open(next, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    CHECK_EQ(write(file, "theirs", 6), 6);
    refusal = -EBUSY;
    CHECK_EQ(pn_topiclog_write_anew(tlog, &tfiles, 0), -EBUSY);
    CHECK_EQ(pn_topiclog_begin_anew(tlog, &tfiles), -EBUSY);
    CHECK_EQ(lseek(file, 0, SEEK_END), 6);
    CHECK_OK(append_ops(&op, 1)); /* it needs none */
    CHECK_EQ(pn_diskqueue_now(&tlog->queue)->write_file, last);
    refusal = 0;
    CHECK_OK(pn_topiclog_write_anew(tlog, &tfiles, 0));
    CHECK(lseek(file, 0, SEEK_END) > 6);
    close(file);
}

/* Not even which number the first one had is known, but that it was there. */
static void test_a_first_file_without_records_is_damage(void)
{
    log_max_file = 8000;
    for (int zeros = 0; zeros < 2; zeros++) {
        struct stat st;
        log_make();
        op_random = 120;
        set_up();
        work(800);
        uint64_t first = pn_diskqueue_now(&tlog->queue)->read_file;
        path_of(&tfiles.queue.dir, first, path);
        CHECK_EQ(stat(path, &st), 0);
        CHECK_EQ(truncate(path, 0), 0);
        if (zeros)
            CHECK_EQ(truncate(path, st.st_size), 0);
        CHECK(log_start(&told) > 0);
    }
    log_max_file = 1 << 20;
}

int main(void)
{
    data_dir_make();
    atexit(remove_log_dir);
    test_watchdog(280);
    RUN(test_what_is_read_again_is_what_was_done);
    RUN(test_many_files_say_the_same);
    RUN(test_logs_of_before_and_of_later_versions_are_read);
    RUN(test_a_log_that_was_cut_at_any_byte_has_what_is_whole);
    RUN(test_a_flipped_byte_costs_its_batch);
    RUN(test_what_an_unlinked_segment_writes_does_not_count);
    RUN(test_a_sync_is_for_all_that_is_written);
    RUN(test_a_sync_over_several_files_takes_each);
    RUN(test_the_first_sync_takes_all_files);
    RUN(test_a_sync_that_failed_is_told_and_tried_again);
    RUN(test_an_interval_is_synced_by_one_after_it_has_passed);
    RUN(test_a_full_disk_is_an_error_and_loses_nothing);
    RUN(test_a_topic_in_its_directory_is_not_touched_by_unlink);
    RUN(test_a_log_is_gone_if_a_file_of_it_is);
    RUN(test_a_log_is_gone_if_a_file_of_it_was_replaced_or_cut);
    RUN(test_a_file_that_was_cut_short_is_not_written_on);
    RUN(test_no_file_is_made_in_a_directory_of_anothers);
    RUN(test_a_first_file_without_records_is_damage);
    return tests_done();
}
