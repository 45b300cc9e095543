/*
 * A reader that is stopped in the middle of a read, and has lost its liveness locks, is reaped
 * meanwhile, and its slot has another owner when it goes on.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "engine.h"

#include "segment/lockfile.h"

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

static void stopped_at(const char *label)
{
    pn_options two = test_options();
    int status;
    two.max_backends = 2;
    CHECK_EQ(pipe(up), 0);
    CHECK_EQ(pipe(down), 0);
    engine = test_engine(&two);
    pn_conn *mine = test_connect(engine);
    pid_t pid = spawn(reader, (void *) (uintptr_t) label);
    test_hear(up);
    CHECK_OK(test_notify(mine, "c", "1"));
    test_tell(down);
    CHECK_EQ(waitpid(pid, &status, WUNTRACED), pid);
    CHECK(WIFSTOPPED(status));
    pn_conn *heir = test_connect(engine); /* reaps it */
    CHECK_EQ(heir->slot, 1);
    test_listen(heir, "d");
    CHECK_OK(test_notify(mine, "d", "2"));
    kill(pid, SIGCONT);
    CHECK_CHILD(pid, 0);
    CHECK_POLL(heir, "2");
    CHECK_OK(test_notify(mine, "d", "3"));
    CHECK_POLL(heir, "3");
    CHECK_ENGINE(engine);
    pn_conn_close(heir);
    pn_conn_close(mine);
    pn_engine_close(engine);
    for (int i = 0; i < 2; i++) {
        close(up[i]);
        close(down[i]);
    }
}

static void test_stopped_before_it_reads(void)
{
    stopped_at("read:head");
}

static void test_stopped_before_it_moves_its_position(void)
{
    stopped_at("read:copied");
}

int main(void)
{
    test_watchdog(100);
    RUN(test_stopped_before_it_reads);
    RUN(test_stopped_before_it_moves_its_position);
    return tests_done();
}
