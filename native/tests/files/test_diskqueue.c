/*
 * A queue on disk: damage costs the record that it hits; a full disk is an error and nothing more;
 * a batch is there whole; without the segment the files say the same.  test_go_diskqueue.c has what
 * go-diskqueue has, test_crash_diskqueue.c kills.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "diskqueue_look.h"

#include <sys/mount.h>
#include <sys/resource.h>

#include "base/err.h"

/* ---- damage ---------------------------------------------------------------------------------- */

static void flip_byte(int fd, off_t at, uint8_t with)
{
    uint8_t byte;
    CHECK_EQ(pread(fd, &byte, 1, at), 1);
    byte ^= with;
    CHECK_EQ(pwrite(fd, &byte, 1, at), 1);
}

enum { FEW = 5, SIZE = 60 };

static off_t few_records(void)
{
    queue_start();
    q->max_file = 1 << 20;
    for (uint64_t i = 0; i < FEW; i++)
        CHECK_OK(put_sized(i, SIZE));
    file_path(1, path);
    return (off_t) pn_diskqueue_now(q)->write_at;
}

/* Which record a byte of the file belongs to; -1: none, and nothing is lost with it. */
static int owner_of(off_t at)
{
    off_t size = (off_t) pn_record_size(SIZE), in = (at - PN_RECFILE_START) % size;
    return at < PN_RECFILE_START || in >= PN_RECORD_HEADER + SIZE
               ? -1
               : (int) ((at - PN_RECFILE_START) / size);
}

static int note(void *arg, const struct pn_record_out *record)
{
    struct taken t = {.sized = true};
    *(unsigned *) arg |= 1U << record->type;
    return take(&t, record);
}

static unsigned all_records(void)
{
    unsigned seen = 0;
    int64_t rc;
    while ((rc = pn_diskqueue_get(q, &files, 1, note, &seen)) == -EAGAIN || rc > 0)
        ;
    CHECK_OK(rc);
    CHECK_EQ(pn_diskqueue_depth(q), 0);
    CHECK_EQ(pn_diskqueue_bytes(q), 0);
    return seen;
}

static void test_each_byte_that_is_flipped_costs_its_record_alone(void)
{
    off_t end = few_records();
    const struct pn_diskqueue saved = *q;
    int fd = open(path, O_RDWR);
    for (off_t at = 0; at < end; at++)
        for (uint8_t with = 1; with != 0; with = with == 1 ? 0xff : with == 0xff ? 0x80 : 0) {
            int owner = owner_of(at);
            *q = saved;
            flip_byte(fd, at, with);
            drop_cache();
            CHECK_EQ(all_records(), 31U & ~(owner < 0 ? 0 : 1U << owner));
            CHECK_EQ(pn_diskqueue_now(q)->corrupt, owner >= 0);
            flip_byte(fd, at, with);
        }
    close(fd);
    queue_end();
}

/* Without the segment the last record has none behind it that would tell of it. */
static void test_each_byte_that_is_flipped_costs_its_record_without_the_segment(void)
{
    off_t end = few_records();
    int fd = open(path, O_RDWR);
    uint8_t whole[4096];
    CHECK_EQ(pread(fd, whole, sizeof whole, 0), end);
    for (off_t at = 0; at < end; at++) {
        int owner = owner_of(at);
        CHECK_EQ(pwrite(fd, whole, (size_t) end, 0), end);
        CHECK_EQ(ftruncate(fd, end), 0);
        flip_byte(fd, at, 0xff);
        queue_recover();
        if (owner > 0) /* of the first its number is known from the file's header */
            CHECK_EQ(pn_diskqueue_depth(q), owner == FEW - 1 ? FEW - 1 : FEW);
        CHECK_EQ(all_records(), 31U & ~(owner < 0 ? 0 : 1U << owner));
        CHECK_OK(put_sized(FEW, SIZE));
        CHECK_EQ(all_records(), 1U << FEW);
    }
    close(fd);
    queue_end();
}

static void test_a_file_that_was_cut_at_any_length_keeps_what_is_whole(void)
{
    for (int recovered = 0; recovered < 2; recovered++)
        for (off_t length = 0;; length++) {
            off_t end = few_records(), size = (off_t) pn_record_size(SIZE);
            if (length > end)
                break;
            CHECK_EQ(truncate(path, length), 0);
            if (recovered)
                queue_recover();
            unsigned whole = 0;
            for (int i = 0; i < FEW; i++)
                whole += PN_RECFILE_START + i * size + PN_RECORD_HEADER + SIZE <= length;
            CHECK_EQ(all_records(), (1U << whole) - 1);
            if (!recovered)
                CHECK_EQ(pn_diskqueue_now(q)->corrupt, FEW - whole);
            CHECK_OK(put_sized(9, SIZE));
            CHECK_EQ(all_records(), 1U << 9);
            queue_end();
        }
}

static void test_a_removed_file_costs_its_records_alone(void)
{
    for (uint64_t gone = 1; gone <= 4; gone++) {
        queue_start();
        q->max_file = PN_RECFILE_START + 5 * pn_record_size(SIZE);
        for (uint64_t i = 0; i < 20; i++)
            CHECK_OK(put_sized(i, SIZE));
        CHECK_EQ(files_in(data_dir), 4);
        file_path(gone, path);
        CHECK_EQ(unlink(path), 0);
        CHECK_OK(put_sized(20, SIZE));
        CHECK_EQ(all_records(), 0x1fffffU & ~(31U << (gone - 1) * 5));
        CHECK_EQ(pn_diskqueue_now(q)->corrupt, 5);
        queue_end();
    }
}

static void test_a_long_damaged_part_is_passed_in_steps(void)
{
    queue_start();
    q->max_file = 1 << 30;
    for (uint64_t i = 0; i < 200; i++)
        CHECK_OK(put_sized(i, LONGEST));
    file_path(1, path);
    uint64_t end = pn_diskqueue_now(q)->write_at;
    CHECK_OK(put_sized(200, SIZE));
    enum { NOISE = 1 << 16 };
    static const uint8_t noise[NOISE] = {1};
    int fd = open(path, O_RDWR), again = 0;
    for (uint64_t at = PN_RECFILE_START; at + NOISE < end; at += NOISE)
        CHECK_EQ(pwrite(fd, noise, NOISE, (off_t) at), NOISE);
    close(fd);
    struct taken t = {.sized = true};
    while (pn_diskqueue_get(q, &files, 1, take, &t) == -EAGAIN)
        again++;
    CHECK_EQ(t.first, 200);
    CHECK(again > 10);
    CHECK_EQ(pn_diskqueue_now(q)->corrupt, 200);
    queue_end();
}

/* ---- no room, no descriptor, no permission --------------------------------------------------- */

/* Nothing of what failed can be read; what was there can; it works as soon as there is room. */
static void check_no_room(int error)
{
    int64_t rc = 0;
    uint64_t n = 0;
    while (n < 5000 && (rc = put(n)) == 0)
        n++;
    CHECK_EQ(rc, -error);
    CHECK(strstr(pn_error_message(), strerror(error)) != NULL);
    CHECK(strstr(pn_error_message(), data_dir) != NULL);
    CHECK_EQ(pn_load_relaxed(&q->error), error);
    CHECK_EQ(pn_diskqueue_depth(q), n);
    CHECK_EQ(put_sized(n, LONGEST), -error);
    queue_recover();
    CHECK_EQ(pn_diskqueue_depth(q), n);
    get_these(0, n);
    CHECK_EQ(pn_diskqueue_now(q)->corrupt, 0);
    CHECK_OK(pn_diskqueue_empty(q, &files));
}

static void limited(void *arg)
{
    struct rlimit limit;
    (void) arg;
    q->max_file = max_file = 1 << 20;
    CHECK_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = 50000;
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    signal(SIGXFSZ, SIG_DFL); /* would kill */
    check_no_room(EFBIG);
    limit.rlim_cur = limit.rlim_max;
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
    CHECK_OK(put(1));
    CHECK_EQ(pn_load_relaxed(&q->error), 0);
    get_these(1, 1);
}

/* Whatever stands in the state, a look comes to an end; so does the removal of files. */
static void test_positions_that_are_overwritten_end(void)
{
    static const uint64_t values[] = {
        0, 1, INT64_MAX, UINT64_MAX, UINT64_MAX - 6, UINT64_MAX - 7, UINT64_MAX - 8, UINT32_MAX};
    struct pn_record_out record;
    queue_start();
    for (uint64_t i = 0; i < 300; i++)
        CHECK_OK(put(i));
    CHECK(files_in(data_dir) > 1);
    const struct pn_diskqueue good = *q;
    for (size_t field = 0; field < 8; field++)
        for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
            struct pn_diskqueue_cursor cursor = {0};
            uint32_t looks = 0;
            *q = good;
            ((uint64_t *) &q->state[q->current & 1])[field] = values[v];
            for (int rc = 1; rc == 1 || rc == -EAGAIN; looks++) {
                rc = pn_diskqueue_look(q, &files, &cursor, &record);
                CHECK(looks < 10000);
            }
        }
    for (size_t field = 0; field < 8; field++)
        for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
            *q = good;
            q->state[1 - (q->current & 1)] = q->state[q->current & 1];
            ((uint64_t *) &q->state[1 - (q->current & 1)])[field] = values[v];
            pn_diskqueue_unstage(q, &files);
        }
    *q = good;
    q->state[q->current & 1].write_file = INT64_MAX;
    CHECK_OK(pn_diskqueue_empty(q, &files));
    *q = good;
    get_these(0, 300);
    queue_end();
}

static void test_a_file_size_limit_is_an_error_and_no_signal(void)
{
    queue_start();
    CHECK_CHILD(spawn(limited, NULL), 0);
    queue_end();
}

enum { MAY_NOT_MOUNT = 77 };

static void on_a_small_disk(void *arg)
{
    (void) arg;
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", data_dir, "tmpfs", MS_NOSUID | MS_NODEV, "size=300k,mode=0700") != 0)
        _exit(MAY_NOT_MOUNT);
    check_no_room(ENOSPC);
    CHECK_OK(put(1));
    get_these(1, 1);
}

static void test_a_full_disk_loses_nothing(void)
{
    queue_start();
    int status = reap(spawn(on_a_small_disk, NULL));
    if (WIFEXITED(status) && WEXITSTATUS(status) == MAY_NOT_MOUNT)
        printf("not for us: mounting a small disk\n");
    else
        CHECK_EQ(status, 0);
    queue_end();
}

static void without_descriptors(void *arg)
{
    struct rlimit limit, none = {0, 0};
    struct taken t = {0};
    (void) arg;
    CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none.rlim_max = limit.rlim_max;
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
    CHECK_EQ(pn_diskqueue_get(q, &files, 10, take, &t), -EMFILE);
    CHECK_EQ(put(100), -EMFILE);
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    get_these(0, 100);
    CHECK_EQ(pn_diskqueue_now(q)->corrupt, 0);
}

static void test_no_descriptor_is_an_error_and_no_damage(void)
{
    queue_start();
    for (uint64_t i = 0; i < 100; i++)
        CHECK_OK(put(i));
    pn_recfile_close(&files.writer);
    CHECK_CHILD(spawn(without_descriptors, NULL), 0);
    queue_end();
}

static void test_descriptors_that_were_closed_and_used_again_are_noticed(void)
{
    queue_start();
    for (uint64_t i = 0; i < 20; i++) {
        CHECK_OK(put(i));
        struct taken t = {0};
        CHECK_EQ(look_at(0, 1, take, &t), 1);
        int null = open("/dev/null", O_RDWR);
        CHECK_EQ(dup2(null, files.writer.fd), files.writer.fd);
        CHECK_EQ(close(files.peeker.file.fd), 0);
        CHECK_EQ(close(null), 0);
    }
    get_these(0, 20);
    queue_end();
}

static void test_a_squatted_name_is_refused(void)
{
    struct taken t = {0};
    queue_start();
    file_path(1, path);
    CHECK_EQ(symlink("/dev/null", path), 0);
    CHECK_EQ(put(0), -EACCES);
    CHECK_EQ(unlink(path), 0);
    CHECK_OK(put(0));
    CHECK_EQ(chmod(data_dir, 0777), 0);
    pn_recfile_close(&files.writer);
    CHECK_EQ(put(1), -EACCES);
    CHECK_EQ(pn_diskqueue_get(q, &files, 1, take, &t), -EACCES);
    CHECK_EQ(chmod(data_dir, 0700), 0);
    get_these(0, 1);
    queue_end();
}

/* ---- batches --------------------------------------------------------------------------------- */

static int put_batch(uint64_t first, size_t n, bool staged)
{
    static struct pn_record_in records[300];
    static uint8_t bodies[300][64];
    uint64_t seq;
    for (size_t i = 0; i < n; i++) {
        memcpy(bodies[i], body_of(first + i, SIZE), SIZE);
        records[i] = (struct pn_record_in) {
            .type = (uint32_t) (first + i), .parts = 1, .part = {{bodies[i], SIZE}}};
    }
    return staged ? pn_diskqueue_stage(q, &files, records, n, &seq) : put_records(records, n);
}

/* A body that is records, of the numbers that are to come, in a place where they are looked for. */
static void test_records_within_a_damaged_record_are_not_taken(void)
{
    static uint8_t fake[2048];
    off_t end = few_records(), length = 3 * (off_t) pn_record_size(SIZE);
    int fd = open(path, O_RDWR);
    CHECK_OK(put_batch(20, 3, true));
    CHECK_EQ(pread(fd, fake, (size_t) length, end), length);
    struct pn_record_in record = {.type = 9, .parts = 1, .part = {{fake, (size_t) length}}};
    CHECK_OK(put_records(&record, 1));
    CHECK_OK(put_sized(6, SIZE));
    flip_byte(fd, end + 4, 0xff); /* its length */
    close(fd);
    CHECK_EQ(all_records(), 31U | 1U << 6);
    CHECK_EQ(pn_diskqueue_now(q)->corrupt, 1);
    queue_end();
}

static void test_a_batch_is_there_whole_or_not_at_all(void)
{
    queue_start();
    q->max_file = max_file = 1 << 20;
    CHECK_OK(put_batch(0, 3, false));
    CHECK_OK(put_batch(3, 300, false));
    file_path(1, path);
    off_t end = (off_t) pn_diskqueue_now(q)->write_at, size = (off_t) pn_record_size(SIZE);
    for (int cut = 1; cut < 300; cut += 29) {
        CHECK_EQ(truncate(path, end - cut * size), 0);
        queue_recover();
        CHECK_EQ(pn_diskqueue_depth(q), 3);
    }
    CHECK_OK(put_batch(3, 2, false));
    CHECK_EQ(all_records(), 31);
    max_file = 4096;
    queue_end();
}

static void test_what_was_staged_and_not_committed_is_never_seen(void)
{
    uint64_t seq;
    queue_start();
    CHECK_OK(put_sized(0, SIZE));
    CHECK_OK(put_batch(1, 3, true));
    CHECK_EQ(pn_diskqueue_depth(q), 1);
    CHECK_OK(put_sized(4, SIZE)); /* as long as the first of those: the others stood behind it */
    queue_recover();
    CHECK_EQ(pn_diskqueue_depth(q), 2);
    CHECK_EQ(all_records(), 1U | 1U << 4);
    struct pn_record_in record = {.type = 5, .parts = 1};
    record.part[0] = (struct iovec) {(void *) (uintptr_t) body_of(5, SIZE), SIZE};
    CHECK_OK(pn_diskqueue_stage(q, &files, &record, 1, &seq));
    CHECK_EQ(pn_diskqueue_depth(q), 0);
    for (int again = 0; again < 3; again++) {
        pn_diskqueue_commit(q, seq);
        CHECK_EQ(pn_diskqueue_depth(q), 1);
    }
    CHECK_EQ(all_records(), 1U << 5);
    pn_diskqueue_commit(q, seq);
    CHECK_EQ(pn_diskqueue_depth(q), 0);
    queue_end();
}

/* Over several files, of which it began all but the first. */
static void test_what_is_taken_back_leaves_the_files_as_they_were(void)
{
    struct stat before, after;
    uint64_t seq = 0;
    queue_start();
    CHECK_OK(put_sized(0, SIZE));
    file_path(1, path);
    CHECK_OK(stat(path, &before));
    for (uint64_t i = 1; i < 300; i++) {
        struct pn_record_in record = {.type = (uint32_t) i, .parts = 1};
        record.part[0] = (struct iovec) {(void *) (uintptr_t) body_of(i, SIZE), SIZE};
        CHECK_OK(seq == 0 ? pn_diskqueue_stage(q, &files, &record, 1, &seq)
                          : pn_diskqueue_stage_more(q, &files, &record, 1, &seq));
    }
    CHECK(files_in(data_dir) > 3);
    pn_fail(ENOSPC, "why it was refused");
    pn_diskqueue_take_back(q, &files);
    CHECK_STR(pn_error_message(), "why it was refused");
    CHECK_EQ(files_in(data_dir), 1);
    CHECK_OK(stat(path, &after));
    CHECK_EQ(after.st_size, before.st_size);
    pn_diskqueue_commit(q, seq);
    CHECK_EQ(pn_diskqueue_depth(q), 1);
    CHECK_OK(put_sized(1, SIZE));
    CHECK_EQ(all_records(), 3);
    CHECK_EQ(pn_diskqueue_now(q)->corrupt, 0);
    queue_end();
}

/* It would be taken for what is reserved, and that is not written over. */
static void test_what_a_killed_writer_left_is_cut_off_where_room_is_reserved(void)
{
    struct stat st;
    queue_start();
    CHECK_OK(put_sized(0, SIZE));
    const struct pn_diskqueue_state *now = pn_diskqueue_now(q);
    const uint64_t at = now->write_at;
    path_of(&files.dir, now->write_file, path);
    CHECK_OK(truncate(path, (off_t) at + 100));
    CHECK_OK(pn_recfile_reserve(&files.dir, &files.writer, now->write_file, at, at + 50, at + 500));
    CHECK_OK(stat(path, &st));
    CHECK_EQ((uint64_t) st.st_size, at);
    CHECK_OK(put_sized(1, SIZE));
    CHECK_EQ(all_records(), 3);
    queue_end();
}

static uint64_t owed_bytes;

static uint64_t owed(void *arg, uint64_t more, uint64_t *rest)
{
    (void) arg, (void) more;
    *rest = 0;
    return owed_bytes;
}

/* More than is needed by now is kept for what will be owed. */
static void test_room_that_the_file_has_is_not_forgotten(void)
{
    queue_start();
    files.owed = owed;
    owed_bytes = 1 << 20;
    CHECK_OK(put_sized(0, SIZE));
    const uint64_t end = q->room_end + q->room_owed;
    CHECK(end > owed_bytes);
    owed_bytes = 0;
    q->room_end = pn_diskqueue_now(q)->write_at; /* as after ROOM_STEP bytes */
    q->room_owed = (uint32_t) (end - q->room_end);
    CHECK_OK(put_sized(1, SIZE));
    CHECK_EQ(q->room_end + q->room_owed, end);
    files.owed = NULL;
    CHECK_EQ(all_records(), 3);
    queue_end();
}

/* In one file, and where the new ones begin another. */
static void test_all_before_what_is_put_can_be_forgotten(void)
{
    for (int many = 0; many < 2; many++)
        for (int recovered = 0; recovered < 2; recovered++) {
            uint64_t seq = 0;
            queue_start();
            for (uint64_t i = 0; i < (many ? 200 : 20); i++)
                CHECK_OK(put(i));
            get_these(0, 3);
            uint64_t depth = pn_diskqueue_depth(q), bytes = 0;
            struct pn_diskqueue_cursor before;
            pn_diskqueue_end(q, false, &before);
            for (uint64_t i = 500; i < 510; i++) {
                struct pn_record_in record = {.type = (uint32_t) i, .parts = 1};
                record.part[0] =
                    (struct iovec) {(void *) (uintptr_t) body_of(i, length_of(i)), length_of(i)};
                CHECK_OK(seq == 0 ? pn_diskqueue_stage(q, &files, &record, 1, &seq)
                                  : pn_diskqueue_stage_more(q, &files, &record, 1, &seq));
                bytes += length_of(i);
            }
            CHECK_EQ(pn_diskqueue_depth(q), depth);
            for (int again = 0; again < 2; again++) {
                pn_diskqueue_commit(q, seq);
                CHECK_EQ(pn_diskqueue_depth(q), again == 0 ? depth + 10 : 10);
                pn_diskqueue_forget(q, &files, &before);
            }
            CHECK_EQ(pn_diskqueue_depth(q), 10);
            CHECK_EQ(pn_diskqueue_bytes(q), bytes);
            CHECK_EQ(pn_diskqueue_now(q)->corrupt, 0);
            if (recovered)
                queue_recover();
            get_these(500, 10);
            CHECK_EQ(pn_diskqueue_depth(q), 0);
            CHECK_EQ(files_in(data_dir), 1);
            queue_end();
        }
}

int main(void)
{
    data_dir_make();
    test_watchdog(280);
    RUN(test_each_byte_that_is_flipped_costs_its_record_alone);
    RUN(test_each_byte_that_is_flipped_costs_its_record_without_the_segment);
    RUN(test_a_file_that_was_cut_at_any_length_keeps_what_is_whole);
    RUN(test_a_removed_file_costs_its_records_alone);
    RUN(test_records_within_a_damaged_record_are_not_taken);
    RUN(test_a_long_damaged_part_is_passed_in_steps);
    RUN(test_positions_that_are_overwritten_end);
    RUN(test_a_file_size_limit_is_an_error_and_no_signal);
    RUN(test_a_full_disk_loses_nothing);
    RUN(test_no_descriptor_is_an_error_and_no_damage);
    RUN(test_descriptors_that_were_closed_and_used_again_are_noticed);
    RUN(test_a_squatted_name_is_refused);
    RUN(test_a_batch_is_there_whole_or_not_at_all);
    RUN(test_what_was_staged_and_not_committed_is_never_seen);
    RUN(test_what_is_taken_back_leaves_the_files_as_they_were);
    RUN(test_room_that_the_file_has_is_not_forgotten);
    RUN(test_what_a_killed_writer_left_is_cut_off_where_room_is_reserved);
    RUN(test_all_before_what_is_put_can_be_forgotten);
    return tests_done();
}
