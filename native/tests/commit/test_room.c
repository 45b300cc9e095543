/* on_full=block: writers that stand in a queue for room. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "full_queue.h"

#include "commit/room.h"

static struct block_case {
    pn_engine *engine;
    struct pn_segment *seg;
    pn_conn *slow, *conn, *d;
    pn_txn *prepared; /* to "d" */
    struct heard h;
    uint64_t sent;
    pid_t large;
} blocked;

static void send_large(void *arg)
{
    pn_conn *conn = test_connect(arg);
    CHECK_OK(send_number(conn, "c", blocked.sent, 160000));
    pn_conn_close(conn);
}

/* The queue is full, and a writer waits for 20 pages of it; its ticket may be over already. */
static void begin_block(uint64_t timeout_ns)
{
    pn_options o = test_options();
    o.on_full = PN_FULL_BLOCK;
    o.full_timeout_ns = timeout_ns;
    memset(&blocked, 0, sizeof blocked);
    blocked.engine = test_engine(&o);
    blocked.seg = test_inside();
    blocked.slow = test_connect(blocked.engine);
    blocked.conn = test_connect(blocked.engine);
    blocked.d = test_connect(blocked.engine);
    test_listen(blocked.slow, "c");
    test_listen(blocked.d, "d");
    blocked.prepared = test_begin(blocked.conn);
    CHECK_OK(pn_txn_notify(blocked.prepared, "d", 1, "prepared", 8));
    CHECK_OK(pn_txn_prepare(blocked.prepared));
    pn_set_never_wait(1);
    CHECK_EQ(fill_up(blocked.conn, &blocked.sent, HALF_PAGE), -PN_EROOMBUSY);
    pn_set_never_wait(0);
    blocked.large = spawn(send_large, blocked.engine);
    CHECK_SOON(((volatile struct AsyncQueueControl *) blocked.seg->ctl)->last_ticket == 1);
}

/* However rarely a writer that waits comes to run here, its ticket is valid. */
static void tickets_last(void)
{
    pn_ticket_ns = 3600000000000LL;
}

static void end_block(void)
{
    if (blocked.prepared != NULL)
        CHECK_EQ(pn_txn_commit(blocked.prepared) & ~PN_NOTICE, 0);
    CHECK_ENGINE(blocked.engine);
    pn_conn_close(blocked.d);
    pn_conn_close(blocked.slow);
    pn_conn_close(blocked.conn);
    done(blocked.engine);
}

static int try_small(void)
{
    pn_set_never_wait(1);
    int rc = test_notify(blocked.conn, "d", "small");
    pn_set_never_wait(0);
    return rc;
}

/* What is read in small pieces is kept for the first, but not from one that has reserved. */
static void test_a_large_commit_is_not_overtaken(void)
{
    tickets_last();
    begin_block(600000000000ULL);
    CHECK_EQ(hear(blocked.slow, &blocked.h, 20), 20);
    CHECK_EQ(try_small(), -PN_EROOMBUSY); /* though there is room for it */
    CHECK_EQ(hear(blocked.slow, &blocked.h, 10), 10);
    CHECK_EQ(try_small(), -PN_EROOMBUSY);
    pn_set_never_wait(1);
    CHECK_EQ(pn_txn_commit(blocked.prepared) & ~PN_NOTICE, 0);
    pn_set_never_wait(0);
    blocked.prepared = NULL;
    hear_all(blocked.slow, &blocked.h, 0);
    CHECK_CHILD(blocked.large, 0);
    hear_all(blocked.slow, &blocked.h, 0);
    CHECK_EQ(blocked.h.next, blocked.sent + 1);
    CHECK_EQ(blocked.seg->ctl->tickets, 0);
    CHECK_EQ(try_small() & ~PN_NOTICE, 0);
    CHECK_POLL(blocked.d, "prepared small");
    end_block();
    pn_ticket_ns = PN_TICKET_NS;
}

/* A writer that waits is told of each read, and not only by its own retries. */
static void test_a_read_wakes_the_writers_that_wait(void)
{
    struct AsyncQueueControl *ctl;
    uint64_t sent = 0;
    struct heard h = {0};
    pn_engine *engine = test_engine(NULL);
    pn_conn *slow = test_connect(engine), *conn = test_connect(engine);
    test_listen(slow, "c");
    for (; sent < 5; sent++)
        CHECK_OK(send_number(conn, "c", sent, HALF_PAGE));
    ctl = test_inside()->ctl;
    uint32_t seq = pn_load_relaxed(&ctl->room_seq);
    pn_store_relaxed(&ctl->room_waiters, 1); /* as one does that is about to sleep */
    CHECK_EQ(hear(slow, &h, 5), 5);
    CHECK_EQ(pn_load_relaxed(&ctl->room_waiters), 0);
    CHECK_EQ(pn_load_relaxed(&ctl->room_seq), seq + 1);
    pn_conn_close(slow);
    pn_conn_close(conn);
    done(engine);
}

/* Stopped, it does not renew its ticket: the others go on, and it does when it is continued. */
static void test_a_stopped_writer_holds_no_other_up(void)
{
    begin_block(100000000000ULL);
    kill(blocked.large, SIGSTOP);
    int status;
    CHECK_EQ(waitpid(blocked.large, &status, WUNTRACED), blocked.large);
    CHECK(WIFSTOPPED(status));
    CHECK_EQ(hear(blocked.slow, &blocked.h, 20), 20);
    int64_t began = test_now_ns();
    for (int i = 0; i < 5; i++)
        CHECK_OK(test_notify(blocked.conn, "d", "small"));
    CHECK(test_now_ns() - began < 20000000000); /* not half of full_timeout */
    CHECK_POLL(blocked.d, "small small small small small");
    kill(blocked.large, SIGCONT);
    CHECK_SOON(blocked.seg->ctl->tickets != 0);
    hear_all(blocked.slow, &blocked.h, 0);
    CHECK_CHILD(blocked.large, 0);
    hear_all(blocked.slow, &blocked.h, 0);
    CHECK_EQ(blocked.h.next, blocked.sent + 1);
    end_block();
}

/* One that waits for a listener that never reads: the small ones go on, and none is refused. */
static void test_small_commits_survive_a_stuck_one(void)
{
    begin_block(600000000);
    CHECK_EQ(hear(blocked.slow, &blocked.h, 20), 20);
    for (int i = 0; i < 5; i++)
        CHECK_OK(test_notify(blocked.conn, "d", "small"));
    CHECK_POLL(blocked.d, "small small small small small");
    CHECK_CHILD(blocked.large, 1); /* QueueFull, in the end */
    end_block();
}

/* No writer is held up for longer than half of full_timeout by one that waits. */
static void test_an_exclusion_is_bounded(void)
{
    tickets_last();
    begin_block(2000000000ULL);
    CHECK_EQ(hear(blocked.slow, &blocked.h, 20), 20);
    CHECK_EQ(try_small(), -PN_EROOMBUSY);
    CHECK_SOON(try_small() >= 0);
    CHECK_EQ(waitpid(blocked.large, NULL, WNOHANG), 0); /* it waits still */
    hear_all(blocked.slow, &blocked.h, 0);
    CHECK_CHILD(blocked.large, 0);
    end_block();
    pn_ticket_ns = PN_TICKET_NS;
}

/* A writer that stands behind others to the end takes what room there is. */
static void test_what_fits_is_not_refused_at_the_deadline(void)
{
    pn_options o = test_options();
    o.on_full = PN_FULL_BLOCK;
    o.full_timeout_ns = 30000000;
    pn_engine *engine = test_engine(&o);
    pn_conn *conn = test_connect(engine);
    struct AsyncQueueControl *ctl = test_inside()->ctl;
    tickets_last();
    ctl->room_ticket[3] =
        (struct pn_room_ticket) {.number = 1, .until = test_now_ns() + pn_ticket_ns / 2};
    ctl->last_ticket = ctl->tickets = 1;
    test_listen(conn, "c");
    CHECK_OK(test_notify(conn, "c", "in the end"));
    CHECK_EQ(ctl->tickets, 1);
    CHECK_POLL(conn, "in the end");
    pn_conn_close(conn);
    done(engine);
    pn_ticket_ns = PN_TICKET_NS;
}

/* A ticket that is valid for longer than any was ever made is overwritten memory. */
static void test_a_scribbled_ticket_holds_no_writer_up(void)
{
    pn_options o = test_options();
    o.on_full = PN_FULL_BLOCK;
    o.full_timeout_ns = 60000000000ULL;
    pn_engine *engine = test_engine(&o);
    pn_conn *conn = test_connect(engine);
    struct AsyncQueueControl *ctl = test_inside()->ctl;
    ctl->room_ticket[3] = (struct pn_room_ticket) {.number = 1, .until = INT64_MAX};
    ctl->tickets = 1;
    test_listen(conn, "c");
    pn_set_never_wait(1);
    CHECK_OK(test_notify(conn, "c", "at once"));
    pn_set_never_wait(0);
    CHECK_EQ(ctl->tickets, 0);
    CHECK_POLL(conn, "at once");
    pn_conn_close(conn);
    done(engine);
}

/* pn_set_interruptible(): it is left after each sleep, and comes back with its ticket. */
static void test_a_wait_that_is_left(void)
{
    pn_options o = test_options();
    o.on_full = PN_FULL_BLOCK;
    o.full_timeout_ns = 60000000000ULL;
    pn_engine *engine = test_engine(&o);
    pn_conn *slow = test_connect(engine), *conn = test_connect(engine);
    struct AsyncQueueControl *ctl = test_inside()->ctl;
    struct heard h = {0};
    uint64_t sent = 0;
    test_listen(slow, "c");
    pn_set_never_wait(1);
    CHECK_EQ(fill_up(conn, &sent, HALF_PAGE), -PN_EROOMBUSY);
    pn_set_never_wait(0);
    pn_set_interruptible(1);
    CHECK_EQ(test_notify(conn, "c", "x"), -EINTR); /* which nothing would keep a place for */
    CHECK_EQ(ctl->tickets, 0);
    pn_txn *txn = test_begin(conn), *given_up = test_begin(conn);
    CHECK_OK(pn_txn_notify(given_up, "c", 1, "never", 5));
    CHECK_EQ(pn_txn_commit(given_up), -EINTR);
    CHECK_EQ(ctl->tickets, 1);
    uint32_t seq = pn_load_relaxed(&ctl->room_seq);
    pn_txn_abort(given_up);
    CHECK_EQ(ctl->tickets, 0);
    CHECK_EQ(pn_load_relaxed(&ctl->room_seq), seq + 1); /* those behind it look again */
    CHECK_OK(pn_txn_notify(txn, "d", 1, "in the end", 10));
    CHECK_OK(pn_txn_notify(txn, "c", 1, "in the end", 10));
    CHECK_EQ(pn_txn_commit(txn), -EINTR);
    uint64_t number = ctl->last_ticket;
    CHECK_EQ(pn_txn_commit(txn), -EINTR);
    CHECK_EQ(ctl->last_ticket, number);
    hear_all(slow, &h, sent);
    CHECK_EQ(pn_txn_commit(txn) & ~PN_NOTICE, 0);
    CHECK_EQ(ctl->tickets, 0);
    CHECK_POLL(slow, "in the end");
    pn_set_interruptible(0);
    pn_conn_close(slow);
    pn_conn_close(conn);
    done(engine);
}

/* Counted from now on it is beyond what a clock can say: a writer waits, and keeps a ticket. */
static void test_the_longest_full_timeout(void)
{
    static const uint64_t longest[] = {UINT64_MAX, INT64_MAX, INT64_MAX - 1};
    for (size_t i = 0; i < sizeof longest / sizeof longest[0]; i++) {
        pn_options o = test_options();
        o.on_full = PN_FULL_BLOCK;
        o.full_timeout_ns = longest[i];
        pn_engine *engine = test_engine(&o);
        pn_conn *slow = test_connect(engine), *conn = test_connect(engine);
        struct heard h = {0};
        uint64_t sent = 0;
        test_listen(slow, "c");
        pn_set_never_wait(1);
        CHECK_EQ(fill_up(conn, &sent, HALF_PAGE), -PN_EROOMBUSY);
        pn_set_never_wait(0);
        pn_set_interruptible(1);
        pn_txn *txn = test_begin(conn);
        CHECK_OK(pn_txn_notify(txn, "c", 1, "in the end", 10));
        CHECK_EQ(pn_txn_commit(txn), -EINTR);
        CHECK_EQ(test_inside()->ctl->tickets, 1);
        hear_all(slow, &h, sent);
        CHECK_EQ(pn_txn_commit(txn) & ~PN_NOTICE, 0);
        pn_set_interruptible(0);
        CHECK_POLL(slow, "in the end");
        pn_conn_close(slow);
        pn_conn_close(conn);
        done(engine);
    }
}

/* The warning and the error name the process that holds all others up. */
static void test_block_names_the_laggard(void)
{
    pn_options o = test_options();
    char text[600], pid[64];
    o.on_full = PN_FULL_BLOCK;
    o.full_timeout_ns = 20000000;
    pn_engine *engine = test_engine(&o);
    pn_conn *slow = test_connect(engine), *conn = test_connect(engine);
    uint64_t sent = 0;
    test_listen(slow, "c");
    CHECK_EQ(fill_up(conn, &sent, HALF_PAGE), -PN_EQUEUEFULL);
    snprintf(pid, sizeof pid, "process with PID %d (backend %d)", getpid(),
             pn_conn_backend_id(slow));
    CHECK(strstr(pn_error_message(), pid) != NULL);
    CHECK(strstr(pn_error_message(), "within 0.02 s") != NULL);
    CHECK(pn_conn_notice(conn, text, sizeof text) > 0);
    CHECK(strstr(text, "NOTIFY queue is full\nWaiting for the ") != NULL);
    CHECK(strstr(text, pid) != NULL);
    pn_conn_close(slow);
    pn_conn_close(conn);
    done(engine);
}

int main(void)
{
    test_watchdog(110);
    RUN(test_a_large_commit_is_not_overtaken);
    RUN(test_a_read_wakes_the_writers_that_wait);
    RUN(test_a_stopped_writer_holds_no_other_up);
    RUN(test_small_commits_survive_a_stuck_one);
    RUN(test_an_exclusion_is_bounded);
    RUN(test_what_fits_is_not_refused_at_the_deadline);
    RUN(test_a_scribbled_ticket_holds_no_writer_up);
    RUN(test_a_wait_that_is_left);
    RUN(test_the_longest_full_timeout);
    RUN(test_block_names_the_laggard);
    return tests_done();
}
