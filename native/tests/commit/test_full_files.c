/* Full queues whose pages go to files: in order, once, and gone when the last reader has them. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "full_queue.h"

#include <fcntl.h>
#include <sys/resource.h>

#include "commit/room.h"
#include "queue/spill.h"

/* A segment, in which `slow` listens and does not read, and `conn` notifies. */
static pn_engine *open_pair(const pn_options *o, pn_conn **slow, pn_conn **conn)
{
    pn_engine *engine = test_engine(o);
    *slow = test_connect(engine);
    *conn = test_connect(engine);
    test_listen(*slow, "c");
    return engine;
}

static void close_pair(pn_engine *engine, pn_conn *slow, pn_conn *conn)
{
    pn_conn_close(slow);
    pn_conn_close(conn);
    done(engine);
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Several times the ring, large and small, to listeners that read at their own pace. */
static void come_back_in_order_once(bool headed)
{
    uint64_t seed = 4242, sent_headed = 0;
    pn_options o = spilling(4096);
    o.max_payload = 250000;
    pn_engine *engine = test_engine(&o);
    pn_conn *slow[3], *idle = test_connect(engine), *conn = test_connect(engine);
    struct heard h[3] = {{0}};
    test_listen(idle, "other");
    for (int k = 0; k < 3; k++) {
        slow[k] = test_connect(engine);
        test_listen(slow[k], "c");
    }
    uint64_t sent = 0;
    int most = 0;
    for (int round = 0; round < 2000; round++) {
        uint64_t r = test_random(&seed);
        size_t n = r % 32 == 0 ? (r >> 8) % 250000 : (r >> 8) % 9000;
        bool has = headed && r >> 40 & 1;
        int rc = has ? send_headed(conn, "c", sent, n) : send_number(conn, "c", sent, n);
        sent_headed += has;
        if (rc < 0)
            FAIL("commit %llu: %d: %s", (unsigned long long) sent, rc, pn_error_message());
        sent++;
        if (round % 50 == 0)
            CHECK_OK(hear(slow[0], &h[0], 0)); /* never far behind */
        if (round % 100 == 0)
            CHECK_OK(hear(slow[1], &h[1], 60));
        if (round % 100 == 0) {
            CHECK_ENGINE(engine);
            int files = count_files();
            most = files > most ? files : most;
        }
    }
    CHECK(most > 10);
    CHECK(test_stat(engine).spilled_pages > 500);
    hear_all(slow[2], &h[2], 1);
    hear_all(slow[1], &h[1], 7);
    hear_all(slow[0], &h[0], 0);
    for (int k = 0; k < 3; k++) {
        CHECK_EQ(h[k].messages, sent);
        CHECK_EQ(h[k].headed, sent_headed);
        CHECK_EQ(h[k].gaps, 0);
    }
    CHECK_EQ(count_files(), 0); /* the last of them took the files away */
    struct heard i = {0};
    CHECK_EQ(hear(idle, &i, 0), 0);
    CHECK_EQ(idle->copy.cap, 0); /* it has not read a byte of it all */
    CHECK_OK(send_number(conn, "other", 0, 10));
    CHECK_EQ(hear(idle, &i, 0), 1);
    CHECK(idle->copy.cap > 0 && !idle->copy.from_file);
    CHECK_ENGINE(engine);
    for (int k = 0; k < 3; k++)
        pn_conn_close(slow[k]);
    pn_conn_close(idle);
    pn_conn_close(conn);
    done(engine);
}

static void test_spilled_pages_come_back_in_order_once(void)
{
    come_back_in_order_once(false);
}

static void test_spilled_pages_come_back_with_their_headers(void)
{
    come_back_in_order_once(true);
}

/* All of max_queue_pages can be used, and then the policy decides. */
static void test_the_capacity_is_max_queue_pages(void)
{
    pn_options o = spilling(256);
    pn_conn *slow, *conn;
    pn_engine *engine = open_pair(&o, &slow, &conn);
    struct heard s = {0};
    uint64_t sent = 0;
    CHECK_EQ(fill_up(conn, &sent, HALF_PAGE), -PN_EQUEUEFULL);
    CHECK(strstr(pn_error_message(), "max_queue_pages") != NULL);
    CHECK_EQ(sent, 512);
    pn_stat stat = test_stat(engine);
    CHECK(stat.queue_usage > 0.99 && stat.queue_usage <= 1.0);
    CHECK_EQ(stat.max_queue_pages, 256);
    CHECK_EQ(stat.mem_tail - stat.tail, stat.spilled_pages * PAGE);
    CHECK_ENGINE(engine);
    CHECK_EQ(hear(slow, &s, 100), 100);
    CHECK_EQ(fill_up(conn, &sent, HALF_PAGE), -PN_EQUEUEFULL);
    CHECK_EQ(sent, 612);
    hear_all(slow, &s, 0);
    CHECK_EQ(s.messages, sent);
    CHECK_EQ(count_files(), 0);
    CHECK_ENGINE(engine);
    close_pair(engine, slow, conn);
}

/* The laggard goes away: what only it needed goes with it. */
static void test_files_go_with_the_reader_that_needed_them(void)
{
    pn_options o = spilling(512);
    pn_engine *engine = test_engine(&o);
    pn_conn *slow = test_connect(engine), *conn = test_connect(engine);
    uint64_t sent = 0;
    test_listen(slow, "c");
    for (; sent < 600; sent++)
        CHECK_OK(send_number(conn, "c", sent, HALF_PAGE));
    CHECK(count_files() > 3);
    test_unlisten(slow, "c");
    CHECK_EQ(count_files(), 0);
    test_listen(slow, "c");
    for (; sent < 1200; sent++)
        CHECK_OK(send_number(conn, "c", sent, HALF_PAGE));
    CHECK(count_files() > 3);
    pn_conn_close(slow);
    CHECK_EQ(count_files(), 0);
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    done(engine);
}

/* RLIMIT_FSIZE stands for a full disk: QueueFull with the cause, and everything as it was. */
static void test_a_full_disk_is_queue_full(void)
{
    struct rlimit before, small = {.rlim_cur = 100000};
    pn_options o = spilling(512);
    pn_conn *slow, *conn;
    pn_engine *engine = open_pair(&o, &slow, &conn);
    struct heard s = {0};
    uint64_t sent = 0;
    CHECK_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    small.rlim_max = before.rlim_max;
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    int rc = fill_up(conn, &sent, HALF_PAGE);
    char message[1024];
    snprintf(message, sizeof message, "%s", pn_error_message());
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    CHECK_EQ(rc, -PN_EQUEUEFULL);
    CHECK(strncmp(message, "too many notifications in the NOTIFY queue\n", 43) == 0);
    CHECK(strstr(message, strerror(EFBIG)) != NULL);
    CHECK(strstr(message, test_data_dir()) != NULL);
    CHECK_EQ(sent, 128);
    CHECK_EQ(count_files(), 0);
    CHECK_ENGINE(engine);
    for (; sent < 300; sent++) /* there is room on the disk again */
        CHECK_OK(send_number(conn, "c", sent, HALF_PAGE));
    hear_all(slow, &s, 0);
    CHECK_EQ(s.messages, sent);
    CHECK_EQ(s.gaps, 0);
    CHECK_ENGINE(engine);
    close_pair(engine, slow, conn);
}

/* Prepared: the ring has room for it, so that its commit writes no file and cannot fail. */
static void test_a_prepared_commit_writes_no_file(void)
{
    uint64_t seed = 3;
    struct rlimit before, none = {.rlim_cur = 0};
    pn_options o = spilling(2048);
    pn_engine *engine = test_engine(&o);
    pn_conn *slow = test_connect(engine), *conn = test_connect(engine);
    pn_conn *other = test_connect(engine);
    struct heard s = {0};
    uint64_t sent = 0;
    test_listen(slow, "c");
    CHECK_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    none.rlim_max = before.rlim_max;
    for (int round = 0; round < 100; round++) {
        pn_txn *txn = test_begin(conn);
        uint64_t n = 1 + test_random(&seed) % 10, i;
        for (i = 0; i < n; i++) {
            size_t size = make(1000000 + i, test_random(&seed) % 30000);
            CHECK_OK(pn_txn_notify(txn, "d", 1, payload, size));
        }
        CHECK_OK(pn_txn_prepare(txn));
        for (i = 0; i < 40; i++)
            CHECK_OK(send_number(other, "c", sent++, test_random(&seed) % 9000));
        CHECK_ENGINE(engine);
        CHECK_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
        int rc = pn_txn_commit(txn);
        CHECK_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
        CHECK_EQ(rc & ~PN_NOTICE, 0);
        if (round % 10 == 9) {
            hear_all(slow, &s, 0);
            CHECK_EQ(s.messages, sent);
        }
    }
    CHECK(test_stat(engine).spilled_pages > 500);
    CHECK_ENGINE(engine);
    pn_conn_close(slow);
    pn_conn_close(conn);
    pn_conn_close(other);
    done(engine);
}

static void each_file(void (*act)(int dirfd, const char *name))
{
    DIR *dir = opendir(test_data_dir());
    CHECK(dir != NULL);
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir))
        if (e->d_name[0] != '.')
            act(dirfd(dir), e->d_name);
    closedir(dir);
}

static void flip_a_byte_of_page_3(int dirfd, const char *name)
{
    unsigned char byte;
    off_t at = (off_t) (PN_RECFILE_START + 3 * pn_record_size(PAGE) + 100);
    int fd = openat(dirfd, name, O_RDWR);
    CHECK(fd >= 0);
    CHECK_EQ(pread(fd, &byte, 1, at), 1);
    byte ^= 0x40;
    CHECK_EQ(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void remove_it(int dirfd, const char *name)
{
    CHECK_EQ(unlinkat(dirfd, name, 0), 0);
}

/* One listener's loss, of exactly that page; the segment goes on. */
static void test_a_damaged_page_is_a_gap(void)
{
    pn_options o = spilling(512);
    pn_conn *slow, *conn;
    pn_engine *engine = open_pair(&o, &slow, &conn);
    struct heard s = {0};
    uint64_t sent = 0;
    for (; sent < 64; sent++)
        CHECK_OK(send_number(conn, "c", sent, HALF_PAGE));
    for (; sent < 84; sent++) /* larger than a page: the pages between are no place to go on */
        CHECK_OK(send_number(conn, "c", sent, 30000));
    for (; sent < 150; sent++)
        CHECK_OK(send_number(conn, "c", sent, HALF_PAGE));
    int files = count_files();
    CHECK(files >= 2);
    each_file(flip_a_byte_of_page_3);
    hear_all(slow, &s, 0);
    CHECK_EQ(s.next, sent);
    CHECK_EQ(s.gaps, files);
    CHECK_EQ(s.reason, PN_GAP_DAMAGED);
    CHECK(s.missed >= (uint64_t) files * PAGE && s.missed <= (uint64_t) files * 4 * PAGE);
    CHECK(s.messages >= sent - 2 * (uint64_t) files);
    CHECK_ENGINE(engine);
    for (; sent < 400; sent++)
        CHECK_OK(send_number(conn, "c", sent, HALF_PAGE));
    s.gaps = 0;
    each_file(remove_it);
    hear_all(slow, &s, 0);
    CHECK_EQ(s.gaps, 1);
    CHECK_EQ(s.next, sent);
    CHECK_ENGINE(engine);
    close_pair(engine, slow, conn);
}

/* drop-slowest on top of files: what is in files is evicted first, and removed. */
static void test_evicted_out_of_files(void)
{
    uint64_t seed = 12;
    pn_options o = spilling(200);
    o.on_full = PN_FULL_DROP_SLOWEST;
    pn_conn *slow, *conn;
    pn_engine *engine = open_pair(&o, &slow, &conn);
    struct heard s = {0};
    uint64_t sent = 0;
    for (int round = 0; round < 1500; round++) {
        uint64_t r = test_random(&seed);
        size_t n = r % 16 == 0 ? (r >> 8) % 100000 : (r >> 8) % 8000;
        CHECK_OK(send_number(conn, "c", sent++, n));
        if (round % 100 == 0)
            CHECK_ENGINE(engine);
        if (round % 400 == 200)
            hear(slow, &s, 20);
        CHECK(count_files() <= 200 / 32 + 2);
    }
    CHECK(test_stat(engine).evictions > 0);
    hear_all(slow, &s, 0);
    CHECK(s.gaps >= 2);
    CHECK_EQ(s.reason, PN_GAP_EVICTED);
    CHECK_EQ(s.next, sent);
    CHECK_EQ(count_files(), 0);
    CHECK_ENGINE(engine);
    close_pair(engine, slow, conn);
}

/* A writer that needs room would go from page to page, or from file to file, up to there. */
static void make_room_below(int which)
{
    pn_options o = spilling(200);
    o.on_full = PN_FULL_DROP_SLOWEST;
    pn_conn *slow, *conn;
    pn_engine *engine = open_pair(&o, &slow, &conn);
    struct pn_segment *seg = test_inside();
    struct pn_room_wait wait = {0};
    uint64_t sent = 0;
    while (count_files() == 0)
        CHECK_OK(send_number(conn, "c", sent++, HALF_PAGE));
    CHECK_OK(pn_lock_acquire(seg, &test_hold, PN_LOCK_FOREVER));
    pn_fetch_add_relaxed(which == 0 ? &seg->ctl->head : &seg->ctl->mem_tail, 1ULL << 50);
    QueuePosition end = pn_load_relaxed(&seg->ctl->head) + seg->capacity;
    CHECK_EQ(pn_queue_make_room_locked(conn, end, 0, &wait), -PN_ECORRUPT);
    CHECK(strstr(pn_error_message(), "the queue cannot have its tail at") != NULL);
    pn_lock_release(seg);
    close_pair(engine, slow, conn);
}

static void test_room_below_an_impossible_position(void)
{
    make_room_below(0);
    make_room_below(1);
}

static uint64_t send_into_files(pn_conn *conn, uint64_t from, uint64_t to)
{
    for (; from < to; from++)
        CHECK_OK(send_number(conn, "c", from, HALF_PAGE));
    CHECK(count_files() > 3);
    return to;
}

/* The writer lock is held for the one file that can be made once more, and for no other. */
static void test_files_are_removed_without_the_lock(void)
{
    pn_options o = spilling(4096);
    pn_conn *slow, *conn;
    pn_engine *engine = open_pair(&o, &slow, &conn);
    struct pn_segment *seg = test_inside();
    struct heard s = {0};
    send_into_files(conn, 0, 600);
    int files = count_files();
    CHECK_OK(pn_lock_acquire(seg, &test_hold, PN_LOCK_FOREVER));
    pn_store_release(&slow->me->pos, pn_load_relaxed(&seg->ctl->head)); /* as if it had read all */
    pn_queue_advance_tail_locked(seg);
    CHECK_EQ(pn_load_relaxed(&seg->ctl->tail), pn_load_relaxed(&seg->ctl->head));
    CHECK(count_files() >= files - 1);
    pn_lock_release(seg);
    CHECK_EQ(count_files(), 0);
    CHECK_EQ(pn_load_relaxed(&seg->ctl->first_file), seg->ctl->end_file);
    CHECK_ENGINE(engine);
    hear_all(slow, &s, 0);
    close_pair(engine, slow, conn);
}

/* A thread that was held up before it removed what it was to remove: others have been there. */
static void test_a_late_removal_harms_no_new_file(void)
{
    pn_options o = spilling(4096);
    pn_conn *slow, *conn;
    pn_engine *engine = open_pair(&o, &slow, &conn);
    struct pn_segment *seg = test_inside();
    struct heard s = {0};
    uint64_t sent = send_into_files(conn, 0, 600);
    uint64_t end = seg->ctl->end_file;
    hear_all(slow, &s, 0);
    CHECK_EQ(count_files(), 0);
    sent = send_into_files(conn, sent, sent + 600);
    int files = count_files();
    CHECK(seg->ctl->end_file > end);
    pn_spill_remove(seg, end);
    CHECK_EQ(count_files(), files);
    CHECK_ENGINE(engine);
    hear_all(slow, &s, 0);
    CHECK_EQ(s.messages, sent);
    CHECK_EQ(s.gaps, 0);
    CHECK_EQ(count_files(), 0);
    close_pair(engine, slow, conn);
}

static const char *generation_name;

static void spill_and_be_killed(void *arg)
{
    pn_engine *engine;
    uint64_t i;
    CHECK_OK(pn_open(generation_name, arg, &engine));
    pn_conn *slow = test_connect(engine), *conn = test_connect(engine);
    test_listen(slow, "c");
    for (i = 0; i < 300; i++)
        CHECK_OK(send_number(conn, "c", i, HALF_PAGE));
    raise(SIGKILL);
}

/* A segment of the same name takes away what its predecessor left. */
static void test_files_of_a_dead_generation_are_removed(void)
{
    pn_options o = spilling(512);
    pn_engine *engine;
    generation_name = test_segment_name();
    CHECK_KILLED(spawn(spill_and_be_killed, &o), SIGKILL);
    int files = count_files();
    CHECK(files > 2);
    pn_engine *other = test_engine(&o); /* of another name: leaves them alone */
    CHECK_EQ(count_files(), files);
    test_segment_remove(generation_name);
    CHECK_OK(pn_open(generation_name, &o, &engine));
    CHECK_EQ(count_files(), 0);
    pn_engine_close(other);
    pn_engine_close(engine);
}

/* A page whose checksum is right and which holds what cannot be: one listener's loss as well. */
static void test_an_impossible_entry_in_a_file_is_a_gap(void)
{
    pn_options o = spilling(512);
    pn_conn *slow, *conn;
    pn_engine *engine = open_pair(&o, &slow, &conn);
    struct heard s = {0};
    uint64_t sent = 0;
    for (; sent < 20; sent++)
        CHECK_OK(send_number(conn, "c", sent, HALF_PAGE));
    AsyncQueueEntry *qe = (void *) pn_ring_at(test_inside(), 3 * PAGE + PAGE / 2);
    qe->length = 4; /* number 7 */
    qe = (void *) pn_ring_at(test_inside(), 5 * PAGE + PAGE / 2);
    qe->kind = 77; /* number 11 */
    for (; sent < 200; sent++)
        CHECK_OK(send_number(conn, "c", sent, HALF_PAGE));
    hear_all(slow, &s, 0);
    CHECK_EQ(s.next, sent);
    CHECK_EQ(s.gaps, 2);
    CHECK_EQ(s.reason, PN_GAP_DAMAGED);
    CHECK_EQ(s.missed, PAGE); /* half a page, twice */
    CHECK_EQ(s.messages, sent - 2);
    CHECK_ENGINE(engine);
    close_pair(engine, slow, conn);
}

static void test_bad_directories_are_refused(void)
{
    pn_options o = spilling(512);
    pn_engine *engine;
    const char *name = test_segment_name();
    snprintf(o.data_dir, sizeof o.data_dir, "%s/nowhere", test_data_dir());
    CHECK_EQ(pn_open(name, &o, &engine), -ENOENT);
    CHECK(strstr(pn_error_message(), o.data_dir) != NULL);
    snprintf(o.data_dir, sizeof o.data_dir, "/tmp"); /* of any user */
    CHECK_EQ(pn_open(name, &o, &engine), -EACCES);
    o.data_dir[0] = '\0';
    CHECK_EQ(pn_open(name, &o, &engine), -EINVAL);
    o.max_queue_pages = 63;
    CHECK_EQ(pn_open(name, &o, &engine), -EINVAL);
}

int main(void)
{
    test_watchdog(110);
    RUN(test_spilled_pages_come_back_in_order_once);
    RUN(test_spilled_pages_come_back_with_their_headers);
    RUN(test_the_capacity_is_max_queue_pages);
    RUN(test_files_go_with_the_reader_that_needed_them);
    RUN(test_a_full_disk_is_queue_full);
    RUN(test_a_prepared_commit_writes_no_file);
    RUN(test_a_damaged_page_is_a_gap);
    RUN(test_an_impossible_entry_in_a_file_is_a_gap);
    RUN(test_evicted_out_of_files);
    RUN(test_room_below_an_impossible_position);
    RUN(test_files_are_removed_without_the_lock);
    RUN(test_a_late_removal_harms_no_new_file);
    RUN(test_files_of_a_dead_generation_are_removed);
    RUN(test_bad_directories_are_refused);
    return tests_done();
}
