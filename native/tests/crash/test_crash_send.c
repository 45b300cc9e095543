/*
 * A notifier that dies after it has set the flags of a process's slots, before its signal; and a
 * listener that dies, or is stopped, in its handler between `owed` and its latch (send.c).
 */
#include "engine.h"

#include <poll.h>

#include "backend/backend.h"

enum { SLOTS = 3 };

static pn_engine *engine;
static pn_conn *mine;
static int up[2];

/* Its loop watches descriptors, so no timer of ours wakes it. */
static void listener(void *label)
{
    pn_conn *conn[SLOTS];
    for (int i = 0; i < SLOTS; i++) {
        conn[i] = test_connect(engine);
        test_listen(conn[i], "c");
        CHECK(pn_fileno(conn[i]) >= 0);
        CHECK_POLL(conn[i], "");
    }
    if (label != NULL)
        CHECK_OK(pn_crash_arm(label, 2, PN_CRASH_STOP));
    test_tell(up);
    for (int i = 0; i < SLOTS; i++) {
        struct pollfd p = {.fd = pn_fileno(conn[i]), .events = POLLIN};
        pn_batch *batch = pn_batch_new();
        int rc = poll(&p, 1, TEST_PATIENCE_MS);
        while (rc < 0 && errno == EINTR)
            rc = poll(&p, 1, TEST_PATIENCE_MS);
        CHECK_EQ(rc, 1);
        for (int64_t n = 0; n < 2;) {
            int64_t got = pn_poll(conn[i], batch, 0);
            CHECK(got >= 0);
            n += got;
        }
        pn_batch_free(batch);
        pn_conn_close(conn[i]);
    }
}

static void begin(void)
{
    CHECK_EQ(pipe(up), 0);
    engine = test_engine(NULL);
    mine = test_connect(engine);
}

static void end(void)
{
    CHECK_ENGINE(engine);
    pn_conn_close(mine);
    pn_engine_close(engine);
    close(up[0]);
    close(up[1]);
}

static void notify_and_die(void *label)
{
    pn_conn *conn = test_connect(engine);
    CHECK_OK(pn_crash_arm(label, 1, PN_CRASH_KILL));
    CHECK_OK(test_notify(conn, "c", "x"));
}

static void make_old(void)
{
    for (uint32_t i = 1; i <= SLOTS; i++)
        pn_store_relaxed(&test_inside()->backend[i].signalled_at,
                         (uint64_t) (test_now_ns() - 20000000));
}

static void test_the_notifier_dies_before_its_signal(void)
{
    begin();
    pid_t pid = spawn(listener, NULL);
    test_hear(up);
    CHECK_KILLED(spawn(notify_and_die, "signal:flags"), SIGKILL);
    make_old(); /* if no process that watched it has sent them */
    CHECK_OK(test_notify(mine, "c", "y"));
    CHECK_CHILD(pid, 0);
    end();
}

static void test_a_listener_stops_in_its_handler(void)
{
    int status;
    begin();
    pid_t pid = spawn(listener, "handler:owed-cleared"); /* of the second slot */
    test_hear(up);
    CHECK_OK(test_notify(mine, "c", "x"));
    CHECK_EQ(waitpid(pid, &status, WUNTRACED), pid);
    CHECK(WIFSTOPPED(status));
    CHECK_EQ(pn_load_relaxed(&test_inside()->owed[0]), 0x8); /* the third */
    CHECK_OK(test_notify(mine, "c", "y"));
    CHECK_EQ(kill(pid, SIGCONT), 0);
    CHECK_CHILD(pid, 0);
    end();
}

static void test_a_listener_dies_in_its_handler(void)
{
    int status;
    begin();
    pid_t pid = spawn(listener, "handler:owed-cleared");
    test_hear(up);
    CHECK_OK(test_notify(mine, "c", "x"));
    CHECK_EQ(waitpid(pid, &status, WUNTRACED), pid);
    CHECK_EQ(kill(pid, SIGKILL), 0);
    CHECK_KILLED(pid, SIGKILL);
    CHECK_EQ(test_stat(engine).backends, 1);
    CHECK_EQ(pn_load_relaxed(&test_inside()->owed[0]), 0);
    CHECK_OK(test_notify(mine, "c", "y"));
    end();
}

int main(void)
{
    test_watchdog(60);
    RUN(test_the_notifier_dies_before_its_signal);
    RUN(test_a_listener_stops_in_its_handler);
    RUN(test_a_listener_dies_in_its_handler);
    return tests_done();
}
