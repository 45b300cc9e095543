/*
 * A notifier that dies after it has set the flags of a process's slots, before its signal; and a
 * listener that dies, or is stopped, in its handler between `owed` and its latch; and a slot that
 * changes hands between the flags and the signal (send.c).
 */
#include "children.h"
#include "sleepers.h"

#include "backend/backend.h"
#include "wakeup/send.h"

enum { SLOTS = 3 };

static void listener(void *label)
{
    pn_conn *conn[SLOTS];
    for (int i = 0; i < SLOTS; i++) {
        conn[i] = test_connect(engine);
        test_listen(conn[i], "c");
        sleep_on_descriptor(conn[i]);
    }
    if (label != NULL)
        CHECK_OK(pn_crash_arm(label, 2, PN_CRASH_STOP));
    test_tell(up);
    for (int i = 0; i < SLOTS; i++) {
        pn_batch *batch = pn_batch_new();
        for (int64_t n = 0; n < 2;) {
            CHECK(readable_within(pn_fileno(conn[i]), TEST_PATIENCE_MS));
            int64_t got = pn_poll(conn[i], batch, 0);
            CHECK(got >= 0);
            n += got;
        }
        pn_batch_free(batch);
        pn_conn_close(conn[i]);
    }
}

/* It has connected before the others: that would wake them, if they watch. */
static void notify_when_told(void *label)
{
    pn_conn *conn = test_connect(engine);
    CHECK_OK(pn_crash_arm(label, 1, PN_CRASH_STOP));
    test_tell(up);
    test_hear(down);
    if (strcmp(label, "chain:flags") == 0) /* in a stream */
        pn_store_relaxed(&conn->last_commit_ns, UINT64_MAX >> 1);
    CHECK_OK(test_notify(conn, "c", "x"));
    pn_procsignal_pass_on(conn->seg, 0); /* as the heads of the chain would, which are stopped */
    test_hear(down);                     /* its death would wake those that watch it */
    pn_conn_close(conn);
}

static void make_old(void)
{
    for (uint32_t i = 2; i < 2 + SLOTS; i++) /* behind ours and the notifier's */
        pn_store_relaxed(&test_inside()->backend[i].signalled_at,
                         (uint64_t) (test_now_ns() - 20000000));
}

/* Stopped, it is not noticed by those that watch it; the flags are set, the next one signals. */
static void the_notifier_stops(bool dies)
{
    int status;
    begin_connected();
    pid_t notifier = spawn(notify_when_told, "signal:flags");
    test_hear(up);
    pid_t pid = spawn(listener, NULL);
    test_hear(up);
    test_tell(down);
    CHECK_EQ(waitpid(notifier, &status, WUNTRACED), notifier);
    CHECK(WIFSTOPPED(status));
    if (dies) {
        CHECK_EQ(kill(notifier, SIGKILL), 0);
        CHECK_KILLED(notifier, SIGKILL);
    }
    make_old(); /* if no process that watched it has sent them */
    CHECK_OK(test_notify(mine, "c", "y"));
    CHECK_CHILD(pid, 0);
    if (!dies) {
        CHECK_EQ(kill(notifier, SIGCONT), 0);
        test_tell(down);
        CHECK_CHILD(notifier, 0);
    }
    end();
}

static void test_the_notifier_stops_before_its_signal(void)
{
    the_notifier_stops(false);
}

static void test_the_notifier_dies_before_its_signal(void)
{
    the_notifier_stops(true);
}

static void test_a_listener_stops_in_its_handler(void)
{
    int status;
    begin_connected();
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
    begin_connected();
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

/* ---- a slot of the run changes hands before the signal ------------------------------------- */

enum { OTHERS = 3, FIRST = OTHERS + 2 }; /* of the two slots; the others watch in front of them */
static int go[2], other_up[2];

static void bystander(void *arg)
{
    pn_conn *conn = test_connect(engine);
    test_listen(conn, arg);
    sleep_on_descriptor(conn);
    test_tell(other_up);
    for (;;)
        pause();
}

/* Two connections; the first is closed when the notifier has set the flags of both. */
static void closes_its_first(void *arg)
{
    (void) arg;
    pn_conn *conn[2];
    int fd[2];
    for (int i = 0; i < 2; i++) {
        conn[i] = test_connect(engine);
        CHECK_EQ(conn[i]->slot, FIRST + i);
        test_listen(conn[i], "c");
        fd[i] = sleep_on_descriptor(conn[i]);
    }
    test_tell(up);
    test_hear(go);
    pn_conn_close(conn[0]);
    test_tell(up);
    CHECK(readable_within(fd[1], TEST_PATIENCE_MS));
    CHECK_POLL(conn[1], "x");
    pn_conn_close(conn[1]);
}

static void the_first_slot_changes_hands(char *label, int heads)
{
    pid_t other[OTHERS + 1];
    int status;
    CHECK_EQ(pipe(go), 0);
    CHECK_EQ(pipe(other_up), 0);
    begin_connected();
    pid_t notifier = spawn(notify_when_told, label);
    test_hear(up);
    for (int i = 0; i < OTHERS; i++) {
        other[i] = spawn(bystander, i < heads ? "c" : "nothing");
        test_hear(other_up);
    }
    pid_t pid = spawn(closes_its_first, NULL);
    test_hear(up);
    for (int i = 0; i < heads; i++) {
        CHECK_EQ(kill(other[i], SIGSTOP), 0);
        CHECK_EQ(waitpid(other[i], &status, WUNTRACED), other[i]);
    }
    test_tell(down);
    CHECK_EQ(waitpid(notifier, &status, WUNTRACED), notifier);
    CHECK(WIFSTOPPED(status));
    test_tell(go);
    test_hear(up);
    test_inside()->ctl->slot_hint = FIRST;
    other[OTHERS] = spawn(bystander, "nothing");
    test_hear(other_up);
    CHECK_EQ(pn_load_relaxed(&test_inside()->backend[FIRST].pid), other[OTHERS]);
    CHECK_EQ(kill(notifier, SIGCONT), 0);
    CHECK_CHILD(pid, 0);
    test_tell(down);
    CHECK_CHILD(notifier, 0);
    for (int i = 0; i <= OTHERS; i++) {
        CHECK_EQ(kill(other[i], SIGKILL), 0);
        CHECK_KILLED(other[i], SIGKILL);
    }
    end();
    for (int i = 0; i < 2; i++) {
        close(go[i]);
        close(other_up[i]);
    }
}

static void test_the_first_slot_changes_hands(void)
{
    the_first_slot_changes_hands("signal:flags", 0);
    the_first_slot_changes_hands("chain:flags", PN_CHAIN);
}

int main(void)
{
    test_watchdog(60);
    RUN(test_the_first_slot_changes_hands);
    RUN(test_the_notifier_dies_before_its_signal);
    RUN(test_the_notifier_stops_before_its_signal);
    RUN(test_a_listener_stops_in_its_handler);
    RUN(test_a_listener_dies_in_its_handler);
    return tests_done();
}
