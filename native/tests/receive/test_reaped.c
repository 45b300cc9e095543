/*
 * A process that loses both of its liveness locks loses its slot, and is told so by every call; it
 * takes nothing from the slot's next owner, and does not spoil the segment for the others.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "engine.h"

#include "backend/backend.h"
#include "segment/liveness_files.h"
#include "wakeup/procsignal.h"
#include "queue/queue.h"
#include "receive/read.h"

static pn_engine *engine;
static pn_conn *mine;
static pn_txn *early; /* of the loser, from when it had its slot */
static int up[2], down[2];

static void begin(void)
{
    CHECK_EQ(pipe(up), 0);
    CHECK_EQ(pipe(down), 0);
    pn_options few = test_options();
    few.max_backends = 3;
    engine = test_engine(&few);
    mine = test_connect(engine);
}

static void end(void)
{
    CHECK_ENGINE(engine);
    pn_conn_close(mine);
    pn_engine_close(engine);
    for (int i = 0; i < 2; i++) {
        close(up[i]);
        close(down[i]);
    }
}

/* Listens, and closes the file that its locks stand in, as closerange() does. */
static pn_conn *loses_its_locks(void)
{
    pn_conn *conn = test_connect(engine);
    test_listen(conn, "c");
    CHECK_POLL(conn, "");
    early = test_begin(conn);
    close(pn_segment_lock_file(test_inside(), conn->slot));
    test_tell(up);
    test_hear(down);
    return conn;
}

static pn_conn *take_slot_1(void)
{
    pn_conn *first = test_connect(engine);
    if (first->slot == 1)
        return first;
    pn_conn *second = test_connect(engine);
    CHECK_EQ(second->slot, 1);
    pn_conn_close(first);
    return second;
}

#define CHECK_REAPED(call, says)                                                                   \
    do {                                                                                           \
        CHECK_EQ(call, -PN_EREAPED);                                                               \
        CHECK(strstr(pn_error_message(), "was taken for dead, and " says) != NULL);                \
    } while (0)

static void calls_everything(void *arg)
{
    pn_conn *conn = loses_its_locks();
    pn_batch *batch = pn_batch_new();
    pn_txn *txn;
    (void) arg;
    CHECK_REAPED(pn_poll(conn, batch, 0), "is free");
    CHECK_REAPED(pn_wait(conn, 0), "is free");
    CHECK_REAPED(test_notify(conn, "c", "x"), "is free");
    CHECK_OK(pn_txn_begin(conn, &txn));
    CHECK_OK(pn_txn_listen(txn, "d", 1));
    CHECK_REAPED(pn_txn_commit(txn), "is free");
    test_tell(up);
    test_hear(down); /* the slot has a new owner now, and messages */
    CHECK_REAPED(pn_poll(conn, batch, 0), "belongs to the process with PID");
    CHECK_REAPED(pn_wait(conn, -1), "belongs to the process with PID");
    CHECK_EQ(pn_conn_unread(conn), 0);
    CHECK_REAPED(test_notify(conn, "c", "x"), "belongs to the process with PID");
    CHECK_OK(pn_txn_begin(conn, &txn));
    pn_txn_abort(txn);
    pn_txn_abort(early);
    raise(SIGUSR1);      /* its handler takes no flags of the new owner's */
    pn_conn_close(conn); /* nor does it free the other's slot */
    pn_batch_free(batch);
}

static void test_the_loser_is_told_and_hurts_no_other(void)
{
    begin();
    signal(SIGUSR1, SIG_IGN); /* what the loser raises is for no process */
    pid_t pid = spawn(calls_everything, NULL);
    test_hear(up);
    CHECK_EQ(test_stat(engine).backends, 1); /* this reaps it */
    test_tell(down);
    test_hear(up);
    pn_conn *heir = take_slot_1();
    test_listen(heir, "d");
    CHECK_POLL(heir, "");
    pn_store_release(&heir->me->pss_signalFlags[PROCSIG_NOTIFY_INTERRUPT], 1);
    CHECK_OK(test_notify(mine, "d", "1"));
    CHECK_OK(test_notify(mine, "d", "2"));
    pn_txn *txn = test_begin(heir);
    test_tell(down);
    CHECK_CHILD(pid, 0);
    CHECK_EQ(pn_slot_transactions(heir->me), 1);
    CHECK_EQ(pn_load_relaxed(&heir->me->pss_signalFlags[PROCSIG_NOTIFY_INTERRUPT]), 1);
    pn_txn_abort(txn);
    CHECK_POLL(heir, "1 2");
    CHECK_EQ(test_stat(engine).backends, 2);
    pn_conn_close(heir);
    signal(SIGUSR1, SIG_DFL);
    end();
}

/* As if it were reaped, and what it reads overwritten, while it is in the middle of a call. */
static void test_a_reader_that_pins_nothing_does_not_poison(void)
{
    begin();
    pn_conn *conn = test_connect(engine);
    test_listen(conn, "c");
    CHECK_POLL(conn, "");
    CHECK_OK(test_notify(mine, "c", "1"));
    struct pn_segment *seg = test_inside();
    pn_batch *batch = pn_batch_new();
    QueuePosition head = pn_load_relaxed(&seg->ctl->head), pos = 0;
    AsyncQueueEntry *qe = (void *) pn_ring_at(seg, pos), was = *qe;
    qe->length = 12345;
    pn_store_release(&conn->me->state, PN_SLOT_FREE);
    CHECK_REAPED(pn_read_entries(conn, batch, &pos, head, 10, UINT64_MAX), "is free");
    qe->length = was.length;
    qe->kind = 77;
    CHECK_REAPED(pn_read_entries(conn, batch, &pos, head, 10, UINT64_MAX), "is free");
    qe->kind = PN_ENTRY_GENERATION; /* of a counter that would be raised */
    qe->channel_hash = 0;
    CHECK_REAPED(pn_read_entries(conn, batch, &pos, head, 10, UINT64_MAX), "is free");
    CHECK_EQ(pn_load_relaxed(&seg->hdr->state), PN_STATE_READY);
    CHECK_EQ(pn_generation_value(engine, 0), 0);
    qe->kind = was.kind;
    qe->channel_hash = was.channel_hash;
    pn_store_release(&conn->me->state, PN_SLOT_CLAIMED);
    CHECK_POLL(conn, "1");
    pn_batch_free(batch);
    pn_conn_close(conn);
    end();
}

/* It may do that, as long as it does not know; nothing is lost, and the later owner stays one. */
static void test_put_to_sleep_by_an_earlier_owner(void)
{
    begin();
    pn_conn *conn = test_connect(engine);
    pn_batch *batch = pn_batch_new();
    test_listen(conn, "c");
    uint64_t pos = pn_load_relaxed(&conn->me->pos) & ~PN_ASLEEP;
    CHECK_OK(test_notify(mine, "c", "1"));
    pn_store_relaxed(&conn->me->pos, pos | PN_ASLEEP);
    const struct pn_read_mark none = {0};
    CHECK_EQ(pn_read_move(conn, batch, &none, pos, pos + 64), -EAGAIN);
    CHECK_EQ(pn_load_relaxed(&conn->me->pos), pos | PN_ASLEEP);
    CHECK(!pn_fall_asleep(conn, pos)); /* something is unread: awake */
    CHECK_POLL(conn, "1");
    pn_batch_free(batch);
    pn_conn_close(conn);
    end();
}

/* What stands in the slot after a new claim: none of the three changes it. */
static void test_positions_of_a_later_owner_stay(void)
{
    begin();
    pn_conn *conn = test_connect(engine);
    test_listen(conn, "c");
    CHECK_OK(test_notify(mine, "c", "1"));
    uint64_t pos = pn_load_relaxed(&conn->me->pos) & ~PN_ASLEEP;
    uint32_t generation = conn->generation;
    pn_store_relaxed(&conn->me->pos, pos | PN_ASLEEP);
    conn->generation--;
    CHECK(!pn_wake_self(conn));
    CHECK_EQ(pn_load_relaxed(&conn->me->pos), pos | PN_ASLEEP);
    pn_store_relaxed(&conn->me->pos, pos + 8);
    CHECK(!pn_fall_asleep(conn, pos)); /* not asleep: the caller looks, and finds out */
    CHECK_EQ(pn_load_relaxed(&conn->me->pos), pos + 8);
    pn_fetch_or(&test_inside()->owed[0], 1ULL << conn->slot);
    pn_clear_owed(conn);
    CHECK((pn_load_relaxed(&test_inside()->owed[0]) >> conn->slot & 1) == 1);
    pn_store_relaxed(&conn->me->pos, pos);
    conn->generation = generation;
    pn_clear_owed(conn);
    CHECK_POLL(conn, "1");
    pn_conn_close(conn);
    end();
}

/* A process that had the slot signals its new owner, and not its own connection. */
static void notifies_its_heir(void *arg)
{
    (void) arg;
    pn_conn *conn = loses_its_locks(), *other = test_connect(engine);
    CHECK(conn->slot != other->slot);
    CHECK_OK(test_notify(other, "d", "1"));
    pn_conn_close(other);
    pn_txn_abort(early);
    pn_conn_close(conn);
}

static void test_the_heir_is_signalled_by_the_loser(void)
{
    begin();
    pid_t pid = spawn(notifies_its_heir, NULL);
    test_hear(up);
    CHECK_EQ(test_stat(engine).backends, 1);
    pn_conn *heir = take_slot_1();
    test_listen(heir, "d");
    heir->next_timer_ns = INT64_MAX;
    CHECK_POLL(heir, "");
    test_tell(down);
    int rc;
    while ((rc = test_wait(heir, -1)) != 1)
        CHECK_EQ(rc, -EINTR);
    CHECK_POLL(heir, "1");
    CHECK_CHILD(pid, 0);
    pn_conn_close(heir);
    end();
}

/* A process that had the slot, and keeps the connection, takes its dead heir for dead. */
static void buries_its_heir(void *arg)
{
    (void) arg;
    pn_conn *conn = loses_its_locks();
    CHECK_EQ(pn_backend_verdict(test_inside(), conn->slot), PN_DEAD);
    CHECK_EQ(test_stat(engine).backends, 1);
    pn_txn_abort(early);
    pn_conn_close(conn);
}

static void inherits_and_waits(void *arg)
{
    (void) arg;
    take_slot_1();
    test_tell(up);
    pause();
}

static void test_the_loser_buries_its_heir(void)
{
    begin();
    pid_t loser = spawn(buries_its_heir, NULL);
    test_hear(up);
    CHECK_EQ(test_stat(engine).backends, 1);
    pid_t heir = spawn(inherits_and_waits, NULL);
    test_hear(up);
    kill(heir, SIGKILL);
    CHECK_EQ(waitpid(heir, NULL, 0), heir);
    test_tell(down);
    CHECK_CHILD(loser, 0);
    end();
}

int main(void)
{
    test_watchdog(100);
    RUN(test_the_loser_is_told_and_hurts_no_other);
    RUN(test_a_reader_that_pins_nothing_does_not_poison);
    RUN(test_put_to_sleep_by_an_earlier_owner);
    RUN(test_positions_of_a_later_owner_stay);
    RUN(test_the_heir_is_signalled_by_the_loser);
    RUN(test_the_loser_buries_its_heir);
    return tests_done();
}
