/*
 * A queue on disk: what is put is got, in order, by whichever process.  The tests and their names
 * are go-diskqueue's.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "diskqueue_look.h"

static void TestDiskQueue(void)
{
    queue_start();
    CHECK_EQ(pn_diskqueue_depth(q), 0);
    CHECK_EQ(get(1).n, 0);
    CHECK_OK(put(1));
    CHECK_EQ(pn_diskqueue_depth(q), 1);
    CHECK_EQ(pn_diskqueue_bytes(q), length_of(1));
    get_these(1, 1);
    CHECK_EQ(pn_diskqueue_depth(q), 0);
    CHECK_EQ(pn_diskqueue_bytes(q), 0);
    for (uint64_t i = 2; i < 1000; i++)
        CHECK_OK(put(i));
    CHECK_EQ(pn_diskqueue_depth(q), 998);
    get_these(2, 998);
    CHECK_EQ(pn_diskqueue_now(q)->corrupt, 0);
    CHECK_EQ(pn_diskqueue_bytes(q), 0);
    queue_end();
}

static void TestDiskQueueRoll(void)
{
    const uint64_t before = max_file, ten = 10 * pn_record_size(100) + PN_RECFILE_START;
    max_file = ten;
    queue_start();
    max_file = before;
    for (uint64_t i = 0; i < 10; i++)
        CHECK_OK(put_sized(i, 100));
    CHECK_EQ(pn_diskqueue_now(q)->write_file, BASE + 1);
    CHECK_OK(put_sized(10, 100));
    CHECK_EQ(pn_diskqueue_now(q)->write_file, BASE + 2);
    CHECK_EQ(files_in(data_dir), 2);
    for (uint64_t i = 0; i < 11; i++) {
        struct taken t = {.sized = true, .stop = 1};
        CHECK_EQ(pn_diskqueue_get(q, &files, 1, take, &t), 1);
        CHECK_EQ(t.first, i);
        CHECK_EQ(pn_diskqueue_depth(q), 10 - i);
    }
    CHECK_EQ(files_in(data_dir), 1);
    queue_end();
}

static int refuse(void *arg, const struct pn_record_out *record)
{
    (void) arg;
    (void) record;
    return 0;
}

static int fail_to_take(void *arg, const struct pn_record_out *record)
{
    int *first = arg;
    (void) record;
    return first != NULL && (*first)-- > 0 ? 1 : -ENOMEM;
}

static void TestDiskQueuePeek(void)
{
    queue_start();
    for (uint64_t i = 0; i < 300; i++)
        CHECK_OK(put(i));
    for (uint64_t at = 0; at < 300; at += 50) {
        struct taken t = {0}, skipped = {0};
        CHECK_EQ(look_at(0, 300, take, &t), 300 - at);
        CHECK_EQ(t.first, at);
        CHECK_EQ(look_at(45, 3, take, &skipped), 3);
        CHECK_EQ(skipped.first, at + 45);
        CHECK_EQ(pn_diskqueue_depth(q), 300 - at);
        CHECK_EQ(pn_diskqueue_get(q, &files, 1, refuse, NULL), 0);
        CHECK_EQ(pn_diskqueue_get(q, &files, 1, fail_to_take, NULL), -ENOMEM);
        CHECK_EQ(look_at(0, 9, fail_to_take, &(int) {5}), -ENOMEM);
        get_these(at, 50);
    }
    queue_end();
}

static void TestDiskQueueEmpty(void)
{
    queue_start();
    CHECK_OK(pn_diskqueue_empty(q, &files));
    for (int again = 0; again < 3; again++) {
        for (uint64_t i = 0; i < 100; i++)
            CHECK_OK(put(i));
        get_these(0, 3);
        CHECK_EQ(pn_diskqueue_depth(q), 97);
        CHECK(files_in(data_dir) > 1);
        CHECK_OK(pn_diskqueue_empty(q, &files));
        CHECK_EQ(pn_diskqueue_depth(q), 0);
        CHECK_EQ(pn_diskqueue_bytes(q), 0);
        CHECK_EQ(files_in(data_dir), 0);
        CHECK_EQ(get(10).n, 0);
    }
    CHECK_EQ(pn_diskqueue_now(q)->corrupt, 0);
    queue_end();
}

static void TestDiskQueueCorruption(void)
{
    const uint64_t before = max_file;
    uint32_t size = 123;
    max_file = 6 * pn_record_size(size) + PN_RECFILE_START;
    queue_start();
    for (uint64_t i = 0; i < 25; i++)
        CHECK_OK(put_sized(i, size));
    CHECK_EQ(files_in(data_dir), 5);
    file_path(2, path);
    CHECK_EQ(truncate(path, 500), 0); /* two of its records stay */
    struct taken t = {.sized = true};
    while (pn_diskqueue_depth(q) > 1)
        CHECK_OK(pn_diskqueue_get(q, &files, 1, take, &t));
    CHECK_EQ(t.n, 20);
    CHECK_EQ(pn_diskqueue_now(q)->corrupt, 4);
    file_path(5, path); /* the present one: what is left in it is cut away */
    CHECK_EQ(truncate(path, PN_RECFILE_START + 10), 0);
    drop_cache();
    CHECK_EQ(pn_diskqueue_get(q, &files, 1, take, &t), 0);
    CHECK_EQ(pn_diskqueue_depth(q), 0);
    CHECK_EQ(pn_diskqueue_now(q)->corrupt, 5);
    CHECK_OK(put_sized(25, size));
    CHECK_EQ(pn_diskqueue_get(q, &files, 1, take, &t), 1);
    CHECK_EQ(t.last, 25);
    max_file = before;
    queue_end();
}

static void TestDiskQueueSyncAfterRead(void)
{
    queue_start();
    for (uint64_t i = 0; i < 100; i++)
        CHECK_OK(put(i));
    for (uint64_t i = 0; i < 100; i++) {
        get_these(i, 1);
        queue_recover();
        CHECK_EQ(pn_diskqueue_depth(q), 99 - i);
    }
    CHECK_EQ(pn_diskqueue_bytes(q), 0);
    CHECK_OK(put(100));
    queue_recover();
    get_these(100, 1);
    queue_end();
}

/* Four writers and then four readers, as processes, under one lock. */
struct torture {
    pthread_mutex_t lock;
    uint64_t put, got, sum;
};
static struct torture *torture;

static void torture_write(void *arg)
{
    (void) arg;
    for (int n = 0; n < 250; n++) {
        pthread_mutex_lock(&torture->lock);
        CHECK_OK(put(torture->put));
        torture->put++;
        pthread_mutex_unlock(&torture->lock);
    }
}

static void torture_read(void *arg)
{
    bool more = true;
    (void) arg;
    while (more) {
        pthread_mutex_lock(&torture->lock);
        struct taken t = get(7);
        CHECK(t.n == 0 || t.first == torture->got);
        torture->got += t.n;
        more = pn_diskqueue_depth(q) > 0;
        pthread_mutex_unlock(&torture->lock);
    }
}

static void in_four(void (*body)(void *))
{
    pid_t pid[4];
    for (int i = 0; i < 4; i++)
        pid[i] = spawn(body, NULL);
    for (int i = 0; i < 4; i++)
        CHECK_CHILD(pid[i], 0);
}

static void TestDiskQueueTorture(void)
{
    pthread_mutexattr_t attr;
    torture = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(torture != MAP_FAILED);
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&torture->lock, &attr);
    queue_start();
    in_four(torture_write);
    CHECK_EQ(pn_diskqueue_depth(q), 1000);
    queue_recover();
    CHECK_EQ(pn_diskqueue_depth(q), 1000);
    in_four(torture_write);
    CHECK_EQ(pn_diskqueue_depth(q), 2000);
    in_four(torture_read);
    CHECK_EQ(torture->got, 2000);
    CHECK_EQ(pn_diskqueue_depth(q), 0);
    CHECK_EQ(pn_diskqueue_now(q)->corrupt, 0);
    munmap(torture, 4096);
    queue_end();
}

static void TestDiskQueueResize(void)
{
    const uint64_t before = max_file;
    queue_start();
    uint64_t put_so_far = 0;
    for (uint64_t size = 1000; size < 200000; size *= 5) {
        for (uint64_t end = put_so_far + 100; put_so_far < end; put_so_far++)
            CHECK_OK(put(put_so_far));
        max_file = size;
        queue_recover();
        CHECK_EQ(pn_diskqueue_depth(q), put_so_far);
    }
    max_file = before;
    get_these(0, put_so_far);
    CHECK_EQ(pn_diskqueue_now(q)->corrupt, 0);
    queue_end();
}

/* Read right after each write, by a reader at the end of the file that the writer leaves. */
static void roll_sizes(uint32_t from, uint32_t to, uint32_t ahead)
{
    for (uint32_t size = from; size <= to; size++) {
        queue_start();
        q->max_file = PN_RECFILE_START + 3 * pn_record_size(size) + size % 3;
        for (uint64_t i = 0, got = 0; i < 40; i++) {
            CHECK_OK(put_sized(i, size));
            for (; got + ahead <= i; got++) {
                struct taken t = {.sized = true};
                CHECK_EQ(pn_diskqueue_get(q, &files, 1, take, &t), 1);
                CHECK_EQ(t.first, got);
                CHECK_EQ(pn_diskqueue_depth(q), i - got);
            }
        }
        CHECK_EQ(pn_diskqueue_now(q)->corrupt, 0);
        CHECK(files_in(data_dir) <= 2 + ahead / 3);
        queue_end();
    }
}

static void TestDiskQueueRollAsync(void)
{
    roll_sizes(20, 40, 0);
}

static void TestWriteRollReadEOF(void)
{
    roll_sizes(20, 30, 1);
    roll_sizes(20, 25, 3);
    roll_sizes(20, 25, 7);
}

int main(void)
{
    data_dir_make();
    test_watchdog(280);
    RUN(TestDiskQueue);
    RUN(TestDiskQueueRoll);
    RUN(TestDiskQueuePeek);
    RUN(TestDiskQueueEmpty);
    RUN(TestDiskQueueCorruption);
    RUN(TestDiskQueueSyncAfterRead);
    RUN(TestDiskQueueTorture);
    RUN(TestDiskQueueResize);
    RUN(TestDiskQueueRollAsync);
    RUN(TestWriteRollReadEOF);
    return tests_done();
}
