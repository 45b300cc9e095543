/*
 * Compaction of the log of durable topics: it changes nothing of what the log says, in little room
 * and with files that are there again or missing.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "topiclog_work.h"

#include <sys/resource.h>

/* ---- compaction ------------------------------------------------------------------------------ */

static void compact_while_working(uint64_t seed, uint32_t step)
{
    uint64_t before = 0, rounds = 0;
    log_make();
    op_random = seed;
    tlog->compact_from = 4000;
    set_up();
    while (tlog->compactions < 3) {
        work(5);
        if (op_next_id >= IDS - 20) { /* the numbers are used up: all of it is finished */
            const struct op ops[] = {{.kind = PN_LOG_TOPIC_DELETED, .topic = 0},
                                     {.kind = PN_LOG_TOPIC_DELETED, .topic = 1},
                                     {.kind = PN_LOG_TOPIC_DELETED, .topic = 2}};
            CHECK_OK(append_ops(ops, 3));
            apply_all(plain, ops, 3);
            op_next_id = 1;
            set_up();
        }
        uint64_t bytes = pn_diskqueue_bytes(&tlog->queue);
        before = bytes > before ? bytes : before;
        CHECK_OK(pn_topiclog_compact(tlog, &tfiles, 0, step));
        CHECK(rounds++ < 5000);
        if (rounds % 40 == 0) {
            struct pn_topiclog saved = *tlog;
            CHECK_EQ(log_start(&told), 0);
            check_same(&told.p, plain);
            tlog->compact_from = 4000;
            tlog->compactions = saved.compactions;
        }
    }
    CHECK(pn_diskqueue_bytes(&tlog->queue) < before);
    CHECK_EQ(log_start(&told), 0);
    check_same(&told.p, plain);
}

static void test_compaction_changes_nothing_but_the_size(void)
{
    compact_while_working(200, 4);
    compact_while_working(201, 1);
    compact_while_working(202, 1000);
}

enum { MANY = 150 };

/* A log with so many messages, and a compaction of it that has begun. */
static void begin_to_compact(void)
{
    log_make();
    tlog->compact_from = 1;
    set_up();
    for (uint64_t id = 1; id <= MANY; id++) {
        const struct op op = {.kind = PN_LOG_PUBLISH, .id = id};
        CHECK_OK(append_ops(&op, 1));
        plain_apply(plain, &op);
    }
    CHECK_EQ(pn_topiclog_compact(tlog, &tfiles, 0, MANY), 1);
    CHECK(tlog->compact_file != 0);
}

/* Though many are written at once. */
static void test_damage_to_what_was_carried_costs_one_message(void)
{
    static uint8_t file[1 << 20];
    begin_to_compact();
    off_t begin = log_end(); /* behind what the file begins with */
    while (tlog->compact_file != 0)
        CHECK_OK(pn_topiclog_compact(tlog, &tfiles, 0, MANY));
    CHECK_OK(pn_topiclog_tidy(tlog, &tfiles, true));
    path_of(&tfiles.queue.dir, pn_diskqueue_now(&tlog->queue)->write_file, path);
    int fd = open(path, O_RDONLY);
    off_t end = log_end();
    CHECK_EQ(pread(fd, file, (size_t) end, 0), end);
    close(fd);
    for (off_t at = begin; at < end; at += 41) { /* no multiple of a record's length */
        log_dir_empty();
        CHECK_OK(pn_topiclog_make_dir(data_dir, log_segment));
        fd = open(path, O_RDWR | O_CREAT, 0600);
        CHECK_EQ(pwrite(fd, file, (size_t) end, 0), end);
        const uint8_t flipped = file[at] ^ 1;
        CHECK_EQ(pwrite(fd, &flipped, 1, at), 1);
        close(fd);
        CHECK(log_start(&told) <= 1);
        CHECK(messages_in(&told.p) >= MANY - 1);
    }
}

static void compact_in_little_room(void *arg)
{
    struct rlimit limit;
    (void) arg;
    CHECK_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = (rlim_t) log_end() + 4000; /* of many, a few */
    tfiles.queue.owed = NULL;
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    uint64_t before = pn_diskqueue_depth(&tlog->queue);
    CHECK_EQ(pn_topiclog_compact(tlog, &tfiles, 0, MANY), -EFBIG);
    uint64_t carried = pn_diskqueue_depth(&tlog->queue) - before;
    CHECK(carried > 3 && carried < 40);
    CHECK_EQ(tlog->compact_cursor[1], carried); /* the next goes on behind them */
    limit.rlim_cur = limit.rlim_max;
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    while (tlog->compact_file != 0)
        CHECK_OK(pn_topiclog_compact(tlog, &tfiles, 0, MANY));
    CHECK_EQ(log_start(&told), 0);
    check_same(&told.p, plain);
}

static void test_of_what_has_no_room_some_is_carried(void)
{
    begin_to_compact();
    CHECK_CHILD(spawn(compact_in_little_room, NULL), 0);
}

enum { LONG = 100000 };

static pid_t forked;
static int ended[2]; /* a pipe: the parent's step is over, and so are some messages */

static void compact_in_a_child(void)
{
    char word;
    CHECK_EQ(read(ended[0], &word, 1), 1);
    tfiles.source.carry = source_carry;
    while (tlog->compact_file != 0)
        CHECK_OK(pn_topiclog_compact(tlog, &tfiles, 0, MANY));
    CHECK_EQ(log_start(&told), 0);
    check_same(&told.p, plain);
}

/* As another thread of the process may do in the middle of a step. */
static int carry_and_fork(void *arg, uint64_t cursor[PN_TOPICLOG_CURSOR],
                          struct pn_record_in *record)
{
    int rc = source_carry(arg, cursor, record);
    if (cursor[1] != 10 || forked != 0)
        return rc;
    fflush(NULL);
    forked = fork();
    CHECK(forked >= 0);
    if (forked != 0)
        return rc;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    compact_in_a_child();
    _exit(0);
}

/* The child has a copy of what its parent had gathered, and must not write it. */
static void test_a_process_that_is_forked_in_a_step_writes_nothing_of_it(void)
{
    begin_to_compact();
    CHECK_EQ(pipe(ended), 0);
    tfiles.source.carry = carry_and_fork;
    CHECK_EQ(pn_topiclog_compact(tlog, &tfiles, 0, 20), 1);
    for (uint64_t id = 1; id <= 10; id++) {
        const struct op op = {.kind = PN_LOG_CANCELLED, .id = id};
        CHECK_OK(append_ops(&op, 1));
        plain_apply(plain, &op);
    }
    CHECK_EQ(write(ended[1], "x", 1), 1);
    CHECK_CHILD(forked, 0);
    close(ended[0]);
    close(ended[1]);
}

static int carry_long_ones(void *arg, uint64_t cursor[PN_TOPICLOG_CURSOR],
                           struct pn_record_in *record)
{
    static const uint8_t body[LONG];
    int rc = source_carry(arg, cursor, record);
    if (rc == 1)
        record->part[2] = (struct iovec) {(void *) (uintptr_t) body, LONG};
    return rc;
}

/* The lock is held meanwhile. */
static void test_a_step_ends_when_it_has_carried_enough(void)
{
    begin_to_compact();
    tfiles.source.carry = carry_long_ones;
    const uint64_t bytes = pn_diskqueue_now(&tlog->queue)->write_sum;
    CHECK_EQ(pn_topiclog_compact(tlog, &tfiles, 0, MANY), 1);
    const uint64_t carried = pn_diskqueue_now(&tlog->queue)->write_sum - bytes;
    CHECK(carried > PN_TOPICLOG_STEP - LONG && carried < PN_TOPICLOG_STEP + 2 * LONG);
}

/* One in the middle is longer than what is gathered. */
static int carry_a_long_one(void *arg, uint64_t cursor[PN_TOPICLOG_CURSOR],
                            struct pn_record_in *record)
{
    static const uint8_t body[LONG];
    int rc = source_carry(arg, cursor, record);
    if (rc == 1 && cursor[1] == MANY / 2)
        record->part[2] = (struct iovec) {(void *) (uintptr_t) body, LONG};
    return rc;
}

static void test_a_long_message_is_carried_among_short_ones(void)
{
    begin_to_compact();
    tfiles.source.carry = carry_a_long_one;
    const uint64_t bytes = pn_diskqueue_now(&tlog->queue)->write_sum;
    const uint64_t records = pn_diskqueue_now(&tlog->queue)->write_seq;
    while (tlog->compact_file != 0)
        CHECK_OK(pn_topiclog_compact(tlog, &tfiles, 0, MANY));
    CHECK_EQ(pn_diskqueue_now(&tlog->queue)->write_seq, records + MANY + 1); /* and DROPPED */
    CHECK(pn_diskqueue_now(&tlog->queue)->write_sum > bytes + LONG);
}

static void test_a_log_of_live_messages_is_not_compacted(void)
{
    log_make();
    tlog->compact_from = 4000;
    set_up();
    work(300);
    const uint64_t bytes =
        pn_diskqueue_bytes(&tlog->queue) + pn_diskqueue_depth(&tlog->queue) * PN_RECORD_HEADER;
    CHECK_EQ(pn_topiclog_compact(tlog, &tfiles, 2 * bytes, 10), 0);
    CHECK_EQ(pn_topiclog_compact(tlog, &tfiles, bytes / 6, 10), 0);
    CHECK_EQ(tlog->compact_file, 0);
    CHECK_EQ(pn_topiclog_compact(tlog, &tfiles, bytes / 7, 10), 1);
    CHECK(tlog->compact_file != 0);
}

static void test_on_a_full_disk_a_log_is_compacted_before(void)
{
    log_make();
    tlog->compact_from = UINT64_MAX;
    set_up();
    work(300);
    const uint64_t bytes =
        pn_diskqueue_bytes(&tlog->queue) + pn_diskqueue_depth(&tlog->queue) * PN_RECORD_HEADER;
    CHECK_EQ(pn_topiclog_compact(tlog, &tfiles, bytes / 7, 10), 0);
    pn_topiclog_starve(tlog);
    CHECK_EQ(pn_topiclog_compact(tlog, &tfiles, bytes / 2, 10), 0);
    CHECK_EQ(pn_topiclog_compact(tlog, &tfiles, bytes / 3, 10), 1);
    CHECK(tlog->compact_file != 0);
}

/* What is over there is bounded: its sums say that it is long. */
static void test_of_a_long_log_twice_as_much_is_over(void)
{
    const uint64_t over = PN_TOPICLOG_OVER;
    log_make();
    set_up();
    work(300);
    struct pn_diskqueue_state *now = &tlog->queue.state[pn_load_relaxed(&tlog->queue.current) & 1];
    const uint64_t more = pn_diskqueue_depth(&tlog->queue) * PN_RECORD_HEADER;
    now->read_sum = 0;
    now->write_sum = 2 * over - more; /* with what is live, over / 2 */
    CHECK_EQ(pn_topiclog_compact(tlog, &tfiles, over + 1, 10), 0);
    CHECK_EQ(pn_topiclog_compact(tlog, &tfiles, over / 2, 10), 1);
    tlog->compact_file = 0;
    now = &tlog->queue.state[pn_load_relaxed(&tlog->queue.current) & 1];
    now->write_sum = 6 * over;
    CHECK_EQ(pn_topiclog_compact(tlog, &tfiles, 3 * over, 10), 0);
    CHECK_EQ(pn_topiclog_compact(tlog, &tfiles, 2 * over, 10), 1);
}

/* ---- files that come and go ------------------------------------------------------------------ */

enum { NUMBERS = 64 };

static struct {
    char name[64];
    size_t n;
    uint8_t bytes[1 << 16];
} saved[NUMBERS]; /* by number; no name: there was none */

static void save_files(void)
{
    memset(saved, 0, sizeof saved);
    DIR *dir = opendir(log_dir);
    for (struct dirent *d; (d = readdir(dir)) != NULL;) {
        if (d->d_name[0] == '.')
            continue;
        uint64_t number = strtoull(strrchr(d->d_name, '.') + 1, NULL, 16);
        CHECK(number < NUMBERS);
        int fd = openat(dirfd(dir), d->d_name, O_RDONLY);
        ssize_t n = read(fd, saved[number].bytes, sizeof saved[number].bytes);
        CHECK(n > 0 && (size_t) n < sizeof saved[number].bytes);
        close(fd);
        saved[number].n = (size_t) n;
        CHECK(strlen(d->d_name) < sizeof saved[number].name);
        memcpy(saved[number].name, d->d_name, strlen(d->d_name) + 1);
    }
    closedir(dir);
}

/* Those that were saved, but for those of the bits in `gone`, which are not there, or `empty`. */
static void leave_files(uint64_t gone, bool empty)
{
    DIR *dir = opendir(log_dir);
    for (struct dirent *d; (d = readdir(dir)) != NULL;)
        if (d->d_name[0] != '.')
            CHECK_EQ(unlinkat(dirfd(dir), d->d_name, 0), 0);
    for (unsigned i = 0; i < NUMBERS; i++) {
        const bool is_gone = (gone >> i & 1) != 0;
        if (saved[i].n == 0 || (is_gone && !empty))
            continue;
        int fd = openat(dirfd(dir), saved[i].name, O_RDWR | O_CREAT, 0600);
        if (!is_gone)
            CHECK_EQ(write(fd, saved[i].bytes, saved[i].n), saved[i].n);
        close(fd);
    }
    closedir(dir);
}

struct compacted {
    uint64_t first, file, last; /* files: the oldest, where compaction began, the newest */
    uint64_t ids;               /* messages up to that one were published before */
};

/* Without the ends of channels: see docs/reliability.md on one that is made again. */
static void work_on_messages(void)
{
    struct op ops[MOST];
    size_t n = random_batch(ops);
    for (size_t i = 0; i < n; i++)
        if (ops[i].kind == PN_LOG_CHANNEL_DELETED || ops[i].kind == PN_LOG_TOPIC_DELETED)
            ops[i].kind = PN_LOG_DELIVERED;
    CHECK_OK(append_ops(ops, n));
    apply_all(plain, ops, n);
}

/* A compaction over several files, before anything is removed; all of them are saved. */
static struct compacted compact_several(uint64_t seed)
{
    struct compacted c = {0};
    log_max_file = 5000;
    log_make();
    log_max_file = 1 << 20;
    op_random = seed;
    set_up();
    tlog->compact_from = UINT64_MAX;
    while (pn_diskqueue_now(&tlog->queue)->write_file < 5)
        work_on_messages();
    c.first = pn_diskqueue_now(&tlog->queue)->read_file;
    c.ids = op_next_id;
    tlog->compact_from = 0;
    CHECK_EQ(pn_topiclog_compact(tlog, &tfiles, 0, 1), 1);
    c.file = tlog->compact_file;
    while (tlog->compact_file != 0) {
        CHECK(pn_topiclog_compact(tlog, &tfiles, 0, 2) >= 0);
        work_on_messages();
    }
    tlog->compact_from = UINT64_MAX;
    while (pn_diskqueue_now(&tlog->queue)->write_file < c.file + 2)
        work_on_messages();
    c.last = pn_diskqueue_now(&tlog->queue)->write_file;
    CHECK_EQ(c.file - c.first, 5);
    save_files();
    return c;
}

/* No sync tells in which order a disk removes files: a power cut may leave any of them. */
static void test_any_of_the_files_that_were_dropped_may_be_there(void)
{
    for (uint64_t seed = 300; seed < 310; seed++) {
        struct compacted c = compact_several(seed);
        for (uint64_t gone = 0; gone < 1U << (c.file - c.first); gone++) {
            leave_files(gone << c.first, false);
            log_start(&told);
            check_same(&told.p, plain);
        }
        for (uint64_t n = 1; n <= c.file - c.first; n++) { /* or without what stood in them */
            leave_files(((UINT64_C(1) << n) - 1) << c.first, true);
            CHECK_EQ(log_start(&told), 0);
            check_same(&told.p, plain);
        }
    }
}

/* All that is left counts then: what was carried may be in the one that is missing. */
static void test_a_file_that_is_missing_behind_them_brings_them_back(void)
{
    unsigned only_there = 0;
    for (uint64_t seed = 300; seed < 310; seed++) {
        struct compacted c = compact_several(seed);
        for (uint64_t file = c.file; file < c.last; file++) {
            leave_files(UINT64_C(1) << file, false);
            CHECK(log_start(&told) != 0);
            for (uint64_t id = 1; id <= c.ids; id++)
                if (plain->message[id].there && !told.p.message[id].there)
                    FAIL("without file %llu message %llu is missing", (unsigned long long) file,
                         (unsigned long long) id);
            leave_files(UINT64_C(1) << file | ((UINT64_C(1) << c.file) - 1), false);
            CHECK(log_start(&told) != 0);
            for (uint64_t id = 1; id <= c.ids; id++)
                only_there += plain->message[id].there && !told.p.message[id].there;
        }
    }
    CHECK(only_there > 0); /* without the older files */
}

int main(void)
{
    data_dir_make();
    atexit(remove_log_dir);
    test_watchdog(280);
    RUN(test_compaction_changes_nothing_but_the_size);
    RUN(test_damage_to_what_was_carried_costs_one_message);
    RUN(test_of_what_has_no_room_some_is_carried);
    RUN(test_a_process_that_is_forked_in_a_step_writes_nothing_of_it);
    RUN(test_a_step_ends_when_it_has_carried_enough);
    RUN(test_a_long_message_is_carried_among_short_ones);
    RUN(test_a_log_of_live_messages_is_not_compacted);
    RUN(test_on_a_full_disk_a_log_is_compacted_before);
    RUN(test_of_a_long_log_twice_as_much_is_over);
    RUN(test_any_of_the_files_that_were_dropped_may_be_there);
    RUN(test_a_file_that_is_missing_behind_them_brings_them_back);
    return tests_done();
}
