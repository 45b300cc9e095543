/*
 * crash_unhelped.h - deaths after which no process ever comes again: no later notifier, no timer.
 * A part of test_crash.c, which includes it behind the checks that it uses.
 */
#ifndef CRASH_UNHELPED_H
#define CRASH_UNHELPED_H

static void last_words(void)
{
    pn_conn *conn = connect_with(0);
    for (;;)
        notify(conn, VICTIM, PLAIN, 40);
}

/* Everything that was begun has come to the only listener, which has no timer. */
static void await_all(const struct listener_log *log)
{
    int64_t start = test_now_ns();
    while (atomic_load(&log->n) < atomic_load(&j->next_txn)) {
        REQUIRE(test_now_ns() - start < TEST_PATIENCE_MS * INT64_C(1000000),
                "the listener got %u of %u messages", atomic_load(&log->n),
                atomic_load(&j->next_txn));
        test_sleep_ms(1);
    }
}

/* One sleeping listener (`arg`: 0 or 2), a notifier that dies, and no other process at all. */
static void run_without_help(void *arg)
{
    uintptr_t kind = (uintptr_t) arg;
    test_watchdog(60);
    CHECK_EQ(pipe(pipe_to_parent), 0);
    open_segment();
    without_timer = true;
    pid_t pid = spawn(listener, (void *) kind);
    REQUIRE(hear(1, TEST_PATIENCE_MS), "the listener did not start");
    const struct pn_segment *seg = inside();
    CHECK_SOON((pn_load_acquire(&seg->backend[0].pos) & PN_ASLEEP) != 0);
    CHECK_KILLED(spawn(victim, NULL), SIGKILL);
    await_all(&j->log[kind]);
    mine = connect_with(0);
    notify(mine, NOTIFIER, QUIT, 40);
    CHECK_CHILD(pid, 0);
    check_segment();
    pn_conn_close(mine);
    pn_engine_close(engine);
    test_segments_remove();
    _exit(HIT);
}

static void watcher_that_dies(void *arg)
{
    (void) arg;
    pn_batch *batch = pn_batch_new();
    pn_conn *conn = connect_with(0);
    listen_to(conn, "all", NULL);
    stop_slow_timer(conn);
    CHECK_OK(pn_crash_arm(now.label, 1, PN_CRASH_KILL));
    CHECK_EQ(write(pipe_to_parent[1], "r", 1), 1);
    for (;;) {
        int rc = pn_wait(conn, -1);
        CHECK(rc >= 0 || rc == -EINTR);
        drain(conn, batch);
    }
}

static void notifier_that_dies(void *arg)
{
    const char *const *label = arg;
    CHECK_OK(pn_crash_arm(*label, 1, PN_CRASH_KILL));
    last_words();
}

/* What takes over dies of it, too: one sleeper is left of three, and a dead notifier. */
static void run_chain_of_deaths(void *arg)
{
    static const char *const last_label[] = {"commit:want", "commit:unslept", "commit:unlocked"};
    uintptr_t kind = (uintptr_t) arg % 4;
    test_watchdog(60);
    CHECK_EQ(pipe(pipe_to_parent), 0);
    open_segment();
    without_timer = true;
    pid_t watchers[2], pid = 0;
    for (int i = 0; i < 3; i++) { /* the survivor's slot is before, between or behind theirs */
        if (i == (int) now.nth - 1)
            pid = spawn(listener, (void *) kind);
        else
            watchers[i < (int) now.nth - 1 ? i : i - 1] = spawn(watcher_that_dies, NULL);
        REQUIRE(hear(1, TEST_PATIENCE_MS), "a listener did not start");
        const struct pn_segment *seg = inside();
        CHECK_SOON(pn_slot_watches(&seg->backend[i]) &&
                   (pn_load_acquire(&seg->backend[i].pos) & PN_ASLEEP) != 0);
    }
    const char *label = last_label[(uintptr_t) arg / 4];
    CHECK_KILLED(spawn(notifier_that_dies, &label), SIGKILL);
    await_all(&j->log[kind]);
    for (int i = 0; i < 2; i++) {
        kill(watchers[i], SIGKILL); /* one that was not the first at the label may live */
        CHECK_KILLED(watchers[i], SIGKILL);
    }
    mine = connect_with(0);
    notify(mine, NOTIFIER, QUIT, 40);
    CHECK_CHILD(pid, 0);
    check_segment();
    pn_conn_close(mine);
    pn_engine_close(engine);
    test_segments_remove();
    _exit(HIT);
}

/* Too far in front of the notifier to watch it: woken by those that do. */
static void run_far_away(void *arg)
{
    pid_t others[3], pid;
    (void) arg;
    test_watchdog(60);
    CHECK_EQ(pipe(pipe_to_parent), 0);
    open_segment();
    without_timer = true;
    pid = spawn(listener, (void *) 0);
    REQUIRE(hear(1, TEST_PATIENCE_MS), "the listener did not start");
    for (int i = 0; i < 3; i++) {
        others[i] = spawn(watcher_that_dies, NULL); /* at a label that is not reached */
        REQUIRE(hear(1, TEST_PATIENCE_MS), "a watcher did not start");
        CHECK_SOON(pn_slot_watches(&inside()->backend[i + 1]));
    }
    const char *label = "commit:unlocked";
    CHECK_KILLED(spawn(notifier_that_dies, &label), SIGKILL);
    await_all(&j->log[0]);
    for (int i = 0; i < 3; i++) {
        kill(others[i], SIGKILL);
        CHECK_KILLED(others[i], SIGKILL);
    }
    mine = connect_with(0);
    notify(mine, NOTIFIER, QUIT, 40);
    CHECK_CHILD(pid, 0);
    check_segment();
    pn_conn_close(mine);
    pn_engine_close(engine);
    test_segments_remove();
    _exit(HIT);
}

#endif
