/*
 * Full queues: the slowest listener is evicted, and dead ones do not count.  Of those whose pages
 * go to files: test_full_files.c.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "full_queue.h"

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

int main(void)
{
    test_watchdog(110);
    RUN(test_the_slowest_gets_one_exact_gap);
    RUN(test_what_is_copied_is_not_copied_again);
    RUN(test_a_sleeper_is_evicted_as_well);
    RUN(test_delivered_and_lost_make_up_what_was_committed);
    RUN(test_a_reservation_evicts_and_its_commit_does_not);
    RUN(test_the_dead_do_not_fill_the_queue_while_topics_are_closed);
    return tests_done();
}
