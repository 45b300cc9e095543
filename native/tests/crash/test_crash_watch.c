/*
 * A process that comes during another's first walk is not told by it, and is watched all the
 * same: the walker is stopped in the middle of its walk, behind the slot that is then taken.
 */
#include "engine.h"
#include "sleepers.h"

#include "wakeup/watch.h"

static pn_engine *engine;
static int up[2], down[2];

static void bystander(void *arg)
{
    (void) arg;
    test_connect(engine);
    test_tell(up);
    pause();
}

static pid_t start_bystander(void)
{
    pid_t pid = spawn(bystander, NULL);
    test_hear(up);
    return pid;
}

static void end_process(pid_t pid)
{
    kill(pid, SIGKILL);
    CHECK_KILLED(pid, SIGKILL);
}

/* Meets a dead one in its first walk, and is stopped before it takes over. */
static void walker(void *arg)
{
    (void) arg;
    pn_conn *conn = test_connect(engine);
    test_listen(conn, "c");
    conn->next_timer_ns = INT64_MAX;
    test_tell(up);
    test_hear(down);
    CHECK_OK(pn_crash_arm("watch:dead", 1, PN_CRASH_STOP));
    for (;;)
        test_wait(conn, -1);
}

static void test_a_process_that_comes_during_a_first_walk_is_watched(void)
{
    int status;
    CHECK_EQ(pipe(up), 0);
    CHECK_EQ(pipe(down), 0);
    engine = test_engine(NULL);
    pid_t walks = spawn(walker, NULL);
    test_hear(up);
    pid_t first = start_bystander(), dead = start_bystander();
    end_process(first);
    test_stat(engine); /* reaps it: slot 1 is free */
    end_process(dead);
    CHECK(!claimed(1) && claimed(2));
    test_tell(down);
    CHECK_EQ(waitpid(walks, &status, WUNTRACED), walks);
    CHECK(WIFSTOPPED(status));
    CHECK(!pn_slot_watches(slot(0)));
    test_inside()->ctl->slot_hint = 1;
    pid_t comes = start_bystander();
    CHECK_EQ(slot(1)->pid, comes);
    kill(walks, SIGCONT);
    CHECK_SOON(pn_slot_watches(slot(0)));
    end_process(comes);
    CHECK_SOON(!claimed(1)); /* no other process is there to reap it */
    end_process(walks);
    CHECK_ENGINE(engine);
    pn_engine_close(engine);
    for (int i = 0; i < 2; i++) {
        close(up[i]);
        close(down[i]);
    }
}

int main(void)
{
    RUN(test_a_process_that_comes_during_a_first_walk_is_watched);
    return tests_done();
}
