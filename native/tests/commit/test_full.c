/* Full queues: the slowest listener is evicted, pages go to files. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "full_queue.h"

#include <fcntl.h>
#include <sys/resource.h>

#include "commit/room.h"
#include "queue/queue.h"
#include "files/record_file.h"
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

/* ---- drop-slowest ---------------------------------------------------------------------------- */

static pn_engine *dropping_engine(void)
{
    pn_options o = test_options();
    o.on_full = PN_FULL_DROP_SLOWEST;
    return test_engine(&o);
}

/* Exactly the bytes between where it stood and the first thing that it gets. */
static void test_the_slowest_gets_one_exact_gap(void)
{
    pn_engine *engine = dropping_engine();
    struct pn_segment *seg = test_inside();
    pn_conn *slow = test_connect(engine), *fast = test_connect(engine);
    pn_conn *conn = test_connect(engine);
    struct heard s = {0}, f = {0};
    test_listen(slow, "c");
    test_listen(fast, "c");
    uint64_t sent = 0;
    for (; sent < 10; sent++)
        CHECK_OK(send_number(conn, "c", sent, HALF_PAGE));
    CHECK_EQ(hear(slow, &s, 4), 4); /* two pages: of what it has begun it has a copy */
    QueuePosition stood = pn_load_relaxed(&slow->me->pos) & ~PN_ASLEEP;
    for (; sent < 500; sent++) {
        CHECK_OK(send_number(conn, "c", sent, HALF_PAGE));
        hear_all(fast, &f, 0);
    }
    CHECK_EQ(f.messages, 500);
    CHECK_EQ(f.gaps, 0);
    QueuePosition floor = pn_load_relaxed(&seg->ctl->floor);
    CHECK(floor > stood && floor % PAGE == 0);
    CHECK_ENGINE(engine);
    CHECK_EQ(hear(slow, &s, 1), 1); /* the gap alone: it counts for `max` */
    CHECK_EQ(s.gaps, 1);
    CHECK_EQ(s.missed, floor - stood);
    CHECK_EQ(s.reason, PN_GAP_EVICTED);
    CHECK_EQ(s.messages, 4);
    hear_all(slow, &s, 7);
    CHECK_EQ(s.gaps, 1);
    CHECK_EQ(s.next, 500);
    CHECK_EQ(s.messages, 500 - s.missed / (PAGE / 2)); /* all entries are of half a page */
    CHECK(test_stat(engine).evictions > 0);
    CHECK_ENGINE(engine);
    pn_conn_close(slow);
    pn_conn_close(fast);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

/* A page is copied once for all of its entries. */
static void test_what_is_copied_is_not_copied_again(void)
{
    pn_engine *engine = dropping_engine();
    struct pn_segment *seg = test_inside();
    pn_conn *conn = test_connect(engine);
    struct pn_copy copy = {0};
    struct pn_copy_gap gap;
    struct pn_entry_extent extent;
    const AsyncQueueEntry *qe;
    test_listen(conn, "c");
    for (uint64_t i = 0; i < 4; i++)
        CHECK_OK(send_number(conn, "c", i, 100));
    QueuePosition at = pn_load_relaxed(&conn->me->pos) & ~PN_ASLEEP;
    QueuePosition head = pn_load_relaxed(&seg->ctl->head);
    CHECK_EQ(pn_copy_fetch(seg, &copy, at, head, &gap), 0);
    CHECK(copy.start <= at && copy.end == head);
    copy.bytes[head - 1 - copy.base] ^= 0xff; /* behind the payload of the last */
    unsigned char changed = copy.bytes[head - 1 - copy.base];
    for (int i = 0; i < 4; i++, at = extent.next) {
        CHECK_EQ(pn_copy_fetch(seg, &copy, at, head, &gap), 0);
        CHECK_EQ(pn_copy_entry(seg, &copy, at, &qe, &extent, &gap), 0);
    }
    CHECK_EQ(at, head);
    CHECK_EQ(copy.bytes[head - 1 - copy.base], changed);
    pn_copy_free(&copy);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

/* Asleep, never signalled again: it wakes to the gap, then to the rest. */
static void test_a_sleeper_is_evicted_as_well(void)
{
    pn_engine *engine = dropping_engine();
    pn_conn *slow = test_connect(engine), *conn = test_connect(engine);
    struct heard s = {0};
    test_listen(slow, "c");
    CHECK_OK(send_number(conn, "other", 0, 100));
    for (uint64_t i = 0; i < 300; i++)
        CHECK_OK(send_number(conn, "c", i, HALF_PAGE));
    CHECK_EQ(test_wait(slow, 0), 1);
    hear_all(slow, &s, 0);
    CHECK_EQ(s.gaps, 1);
    CHECK_EQ(s.next, 300);
    CHECK_EQ(s.messages + s.missed / (PAGE / 2), 300);
    CHECK_EQ(test_wait(slow, 0), 0);
    CHECK_ENGINE(engine);
    pn_conn_close(slow);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

/* Each eviction that it comes to see is a gap; what is missing and what is there make up all. */
static void test_delivered_and_lost_make_up_what_was_committed(void)
{
    uint64_t seed = 77;
    pn_engine *engine = dropping_engine();
    struct pn_segment *seg = test_inside();
    pn_conn *slow[3], *conn = test_connect(engine);
    struct heard h[3] = {{0}};
    uint64_t began[3], sent = 0;
    for (int k = 0; k < 3; k++) {
        slow[k] = test_connect(engine);
        test_listen(slow[k], "c");
        began[k] = pn_load_relaxed(&seg->ctl->head);
    }
    for (int round = 0; round < 4000; round++) {
        uint64_t r = test_random(&seed);
        size_t n = r % 16 == 0 ? (r >> 8) % 100000 : (r >> 8) % 7000;
        CHECK_OK(send_number(conn, "c", sent++, n));
        for (int k = 0; k < 3; k++)
            if ((r >> 40) % (10U << (2 * k)) == 0)
                CHECK_OK(hear(slow[k], &h[k], 1 + (r >> 20) % 50));
        if (round % 256 == 0)
            CHECK_ENGINE(engine);
    }
    for (int k = 0; k < 3; k++) {
        hear_all(slow[k], &h[k], 0);
        CHECK_EQ(h[k].next, sent);
        CHECK(h[k].gaps > 0 && h[k].missed < pn_load_relaxed(&seg->ctl->head) - began[k]);
        pn_conn_close(slow[k]);
    }
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

/* A reservation is kept free by evicting, and its commit evicts no reader. */
static void test_a_reservation_evicts_and_its_commit_does_not(void)
{
    pn_engine *engine = dropping_engine();
    pn_conn *slow = test_connect(engine), *conn = test_connect(engine);
    pn_conn *other = test_connect(engine);
    struct heard s = {0};
    test_listen(slow, "c");
    uint64_t sent = 0;
    for (; sent < 127; sent++)
        CHECK_OK(send_number(other, "c", sent, HALF_PAGE));
    CHECK_EQ(test_stat(engine).evictions, 0);
    pn_txn *txn = test_begin(conn);
    for (int i = 0; i < 10; i++) {
        size_t n = make(1000 + (uint64_t) i, 20000);
        CHECK_OK(pn_txn_notify(txn, "c", 1, payload, n));
    }
    CHECK_OK(pn_txn_prepare(txn));
    uint64_t evictions = test_stat(engine).evictions;
    CHECK(evictions > 0);
    for (; sent < 1000; sent++)
        CHECK_OK(send_number(other, "c", sent, HALF_PAGE));
    CHECK_ENGINE(engine);
    evictions = test_stat(engine).evictions;
    CHECK_EQ(pn_txn_commit(txn) & ~PN_NOTICE, 0);
    CHECK_EQ(test_stat(engine).evictions, evictions);
    hear_all(slow, &s, 0);
    CHECK_EQ(s.next, 1010);
    CHECK_ENGINE(engine);
    pn_conn_close(slow);
    pn_conn_close(conn);
    pn_conn_close(other);
    pn_engine_close(engine);
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
/* ---- dead listeners, while topics are being repaired ----------------------------------------- */

static int steps_left;

/* In place of a repair; a step needs files, and is left to those that want topics. */
static int repair_slowly(struct pn_segment *seg, bool all)
{
    if (all && --steps_left == 0)
        pn_store_relaxed(&seg->ctl->topics_dirty, 0);
    return 0;
}

static void listens_and_dies(void *arg)
{
    test_listen(test_connect(arg), "c");
}

/* Its slot cannot be freed meanwhile.  A writer that finds it in the way helps to repair. */
static void full_because_of_the_dead(const pn_options *o, bool prepared)
{
    pn_engine *engine = test_engine(o);
    struct pn_segment *seg = test_inside();
    int (*repair)(struct pn_segment *, bool) = pn_segment_hooks.repair;
    pn_conn *conn = test_connect(engine);
    uint64_t sent = 0;
    CHECK_CHILD(spawn(listens_and_dies, engine), 0);
    pn_segment_hooks.repair = repair_slowly;
    steps_left = 5;
    pn_store_relaxed(&seg->ctl->topics_dirty, PN_TOPICS_CLOSED);
    pn_set_never_wait(1);
    CHECK_EQ(fill_up(conn, &sent, HALF_PAGE), -PN_ELOCKBUSY); /* and not QueueFull */
    CHECK(strstr(pn_error_message(), "are being repaired") != NULL);
    pn_set_never_wait(0);
    CHECK(pn_topics_closed(seg));
    if (prepared) {
        pn_txn *txn = test_begin(conn);
        CHECK_OK(pn_txn_notify(txn, "c", 1, payload, 3 * PAGE));
        CHECK_OK(pn_txn_prepare(txn));
        pn_txn_abort(txn);
    } else {
        CHECK_OK(send_number(conn, "c", sent, HALF_PAGE));
    }
    CHECK_EQ(steps_left, 0);
    CHECK_EQ(test_stat(engine).backends, 1);
    pn_segment_hooks.repair = repair;
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    done(engine);
}

static void test_the_dead_do_not_fill_the_queue_while_topics_are_closed(void)
{
    pn_options error = test_options(), block = error;
    block.on_full = PN_FULL_BLOCK;
    block.full_timeout_ns = 3600000000000ULL; /* it does not wait */
    full_because_of_the_dead(&error, false);
    full_because_of_the_dead(&error, true);
    full_because_of_the_dead(&block, false);
    full_because_of_the_dead(&block, true);
}

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
    RUN(test_the_slowest_gets_one_exact_gap);
    RUN(test_what_is_copied_is_not_copied_again);
    RUN(test_a_sleeper_is_evicted_as_well);
    RUN(test_delivered_and_lost_make_up_what_was_committed);
    RUN(test_a_reservation_evicts_and_its_commit_does_not);
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
    RUN(test_the_dead_do_not_fill_the_queue_while_topics_are_closed);
    RUN(test_files_of_a_dead_generation_are_removed);
    RUN(test_bad_directories_are_refused);
    return tests_done();
}
