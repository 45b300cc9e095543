/*
 * A process that is stopped in the middle of a read or a walk, and has lost its liveness locks, is
 * reaped meanwhile, and its slot has another owner when it goes on.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "engine.h"

#include "segment/liveness_files.h"

static pn_engine *engine;
static int up[2], down[2];

static void reader(void *label)
{
    pn_conn *conn = test_connect(engine);
    pn_batch *batch = pn_batch_new();
    test_listen(conn, "c");
    CHECK_POLL(conn, "");
    close(pn_segment_lock_file(test_inside(), conn->slot));
    test_tell(up);
    test_hear(down);
    CHECK_OK(pn_crash_arm(label, 1, PN_CRASH_STOP));
    CHECK_EQ(pn_poll(conn, batch, 0), -PN_EREAPED);
    CHECK_EQ(batch->n, 0);
    pn_batch_free(batch);
    pn_conn_close(conn);
}

static pn_conn *begin(void)
{
    pn_options two = test_options();
    two.max_backends = 2;
    CHECK_EQ(pipe(up), 0);
    CHECK_EQ(pipe(down), 0);
    engine = test_engine(&two);
    return test_connect(engine);
}

static void end(pn_conn *heir, pn_conn *mine)
{
    CHECK_ENGINE(engine);
    pn_conn_close(heir);
    pn_conn_close(mine);
    pn_engine_close(engine);
    for (int i = 0; i < 2; i++) {
        close(up[i]);
        close(down[i]);
    }
}

/* Takes the slot of a process that has stopped: it is reaped. */
static pn_conn *inherit_from(pid_t pid)
{
    int status;
    CHECK_EQ(waitpid(pid, &status, WUNTRACED), pid);
    CHECK(WIFSTOPPED(status));
    pn_conn *heir = test_connect(engine);
    CHECK_EQ(heir->slot, 1);
    return heir;
}

static void stopped_at(const char *label)
{
    pn_conn *mine = begin();
    pid_t pid = spawn(reader, (void *) (uintptr_t) label);
    test_hear(up);
    CHECK_OK(test_notify(mine, "c", "1"));
    test_tell(down);
    pn_conn *heir = inherit_from(pid);
    test_listen(heir, "d");
    CHECK_OK(test_notify(mine, "d", "2"));
    kill(pid, SIGCONT);
    CHECK_CHILD(pid, 0);
    CHECK_POLL(heir, "2");
    CHECK_OK(test_notify(mine, "d", "3"));
    CHECK_POLL(heir, "3");
    end(heir, mine);
}

static void test_stopped_before_it_reads(void)
{
    stopped_at("read:head");
}

static void test_stopped_before_it_moves_its_position(void)
{
    stopped_at("read:copied");
}

static void walker(void *arg)
{
    (void) arg;
    pn_conn *conn = test_connect(engine);
    CHECK_OK(pn_fileno(conn)); /* so LISTEN walks */
    close(pn_segment_lock_file(test_inside(), conn->slot));
    CHECK_OK(pn_crash_arm("watch:walked", 1, PN_CRASH_STOP));
    test_listen(conn, "c");
    CHECK_EQ(pn_wait(conn, 0), -PN_EREAPED);
    pn_conn_close(conn);
}

/* Others' walks would end at the heir, which watches no process yet. */
static void test_stopped_before_it_watches(void)
{
    pn_conn *mine = begin();
    pid_t pid = spawn(walker, NULL);
    pn_conn *heir = inherit_from(pid);
    test_listen(heir, "d");
    kill(pid, SIGCONT);
    CHECK_CHILD(pid, 0);
    CHECK(!pn_slot_watches(heir->me));
    CHECK_EQ(test_wait(heir, 0), 0);
    CHECK(pn_slot_watches(heir->me));
    end(heir, mine);
}

static void begins_a_transaction(void *arg)
{
    (void) arg;
    pn_txn *early, *late;
    pn_conn *conn = test_connect(engine);
    CHECK_OK(pn_txn_begin(conn, &early));
    close(pn_segment_lock_file(test_inside(), conn->slot));
    CHECK_OK(pn_crash_arm("txn:count", 1, PN_CRASH_STOP));
    CHECK_OK(pn_txn_begin(conn, &late));
    pn_txn_abort(late);
    pn_txn_abort(early);
    pn_conn_close(conn);
}

static void test_stopped_before_it_counts_a_transaction(void)
{
    pn_conn *mine = begin();
    pid_t pid = spawn(begins_a_transaction, NULL);
    pn_conn *heir = inherit_from(pid);
    kill(pid, SIGCONT);
    CHECK_CHILD(pid, 0);
    CHECK_EQ(pn_slot_transactions(heir->me), 0);
    pn_txn *txn = test_begin(heir);
    CHECK_EQ(pn_slot_transactions(heir->me), 1);
    pn_txn_abort(txn);
    CHECK_EQ(pn_slot_transactions(heir->me), 0);
    end(heir, mine);
}

int main(void)
{
    test_watchdog(100);
    RUN(test_stopped_before_it_reads);
    RUN(test_stopped_before_it_moves_its_position);
    RUN(test_stopped_before_it_watches);
    RUN(test_stopped_before_it_counts_a_transaction);
    return tests_done();
}
