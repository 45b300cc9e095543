/*
 * crash_topic_unhelped.h - deaths after which no process ever comes again: no later publisher,
 * and the slow timers of consumers put off.  A part of test_crash_topic.c.
 */
#ifndef PN_CRASH_TOPIC_UNHELPED_H
#define PN_CRASH_TOPIC_UNHELPED_H

/* Sleeps in get(), or (kind 1) on its descriptor.  It never ends by itself. */
static void endless_consumer(void *arg)
{
    uintptr_t kind = (uintptr_t) arg & 1, writer = (uintptr_t) arg >> 1;
    pn_consumer_slow_ns = INT64_C(3600000000000);
    pn_conn *conn = connect_with(0);
    pn_consumer *consumer = consumer_of(conn, work_a, 1, 0);
    struct pollfd fd = {.fd = kind == 1 ? pn_consumer_fileno(consumer) : -1, .events = POLLIN};
    struct held h;
    if (writer == HELPER)
        CHECK_OK(pn_crash_arm(now.label, now.nth, PN_CRASH_KILL));
    CHECK_EQ(write(heard_from[0][1], "r", 1), 1);
    for (;;) {
        if (kind == 1 && poll(&fd, 1, -1) < 0)
            CHECK_EQ(errno, EINTR);
        if (take(consumer, (uint32_t) writer, WORK, 0, kind == 1 ? 0 : -1, &h))
            finish(conn, &h, (uint32_t) writer);
    }
}

static bool waits(uint32_t n)
{
    const struct pn_segment *seg = inside();
    const struct pn_topics *t = &seg->topics;
    uint32_t waiting = 0;
    for (uint32_t i = 0; i < t->max_consumers; i++)
        waiting += pn_load_acquire(&t->consumer[i].state) == PN_RECORD_USED &&
                   pn_load_acquire(&t->consumer[i].wait) == PN_CONSUMER_WAITING;
    return waiting == n;
}

static pid_t start_endless(enum writer writer, uintptr_t kind)
{
    pid_t pid = spawn(endless_consumer, (void *) ((uintptr_t) writer << 1 | kind));
    REQUIRE(hear(0, 1, TEST_PATIENCE_MS), "a consumer did not start");
    return pid;
}

static void begin_unhelped(void)
{
    test_watchdog(60);
    CHECK_EQ(pipe(heard_from[0]), 0);
    open_segment();
    mine = connect_with(0);
    work = topic_named(mine, "work");
    work_a = channel_named(mine, work, "a");
}

/* No process touches the segment meanwhile. */
static void await_all(void)
{
    int64_t began = test_now_ns();
    for (uint32_t i = 0; i < atomic_load(&j->next); i++)
        while (atomic_load(&j->m[i].in[0].finished) == 0) {
            REQUIRE(test_now_ns() - began < PROGRESS_MS * INT64_C(1000000),
                    "message %u of %u stays where it is", i, atomic_load(&j->next));
            test_sleep_ms(1);
        }
}

static void end_unhelped(pid_t pid)
{
    kill(pid, SIGKILL);
    CHECK_KILLED(pid, SIGKILL);
    check_segment("at the end");
    pn_conn_close(mine);
    pn_engine_close(engine);
    test_segments_remove();
    _exit(HIT);
}

static void last_words(void *arg)
{
    (void) arg;
    pn_conn *conn = connect_with(0);
    bool in_twos = strcmp(now.label, "publish:after-all") == 0;
    check_label(now.label);
    CHECK_OK(pn_crash_arm(now.label, now.nth, PN_CRASH_KILL));
    for (;;)
        if (in_twos)
            publish_many(conn, HELPER, WORK, work, 2);
        else
            publish(conn, HELPER, WORK, work, &(struct manner) {.size = 40});
}

/* One sleeping consumer, a publisher that dies, and no other process at all. */
static void run_last_words(void *arg)
{
    begin_unhelped();
    pid_t pid = start_endless(CONSUMER, (uintptr_t) arg);
    CHECK_SOON(waits(1));
    CHECK_KILLED(spawn(last_words, NULL), SIGKILL);
    await_all();
    end_unhelped(pid);
}

static bool is_dead(pid_t pid)
{
    siginfo_t dead = {.si_pid = 0};
    CHECK_EQ(waitid(P_PID, (id_t) pid, &dead, WEXITED | WNOHANG | WNOWAIT), 0);
    return dead.si_pid != 0;
}

/* Two, and the one that dies may have a message, or was to have it. */
static void run_heir(void *arg)
{
    begin_unhelped();
    pid_t heir = start_endless(CONSUMER, (uintptr_t) arg);
    pid_t dies = start_endless(HELPER, (uintptr_t) arg);
    for (;;) {
        uint32_t before = atomic_load(&j->next);
        CHECK_SOON(waits(2) || is_dead(dies));
        if (is_dead(dies))
            break;
        say(PLAIN);
        CHECK_SOON(atomic_load(&j->m[before].in[0].finished) != 0);
    }
    CHECK_KILLED(dies, SIGKILL);
    await_all();
    end_unhelped(heir);
}

/* The consumer that watches the time for the others dies in its sleep. */
static void run_timekeeper(void *arg)
{
    begin_unhelped();
    pid_t heir = start_endless(CONSUMER, (uintptr_t) arg);
    pid_t dies = start_endless(HELPER, (uintptr_t) arg);
    CHECK_SOON(waits(2));
    publish(mine, PARENT, WORK, work, &(struct manner) {.size = 40, .delay_ns = 200 * MS});
    CHECK_SOON(waits(2));
    kill(dies, SIGKILL);
    CHECK_KILLED(dies, SIGKILL);
    await_all();
    end_unhelped(heir);
}

static void first_channel(void *arg)
{
    (void) arg;
    pn_conn *conn = connect_with(0);
    check_label(now.label);
    CHECK_OK(pn_crash_arm(now.label, now.nth, PN_CRASH_KILL));
    channel_named(conn, topic_named(conn, "own"), "x");
}

/* Emptied, then two kept messages; the maker of the first channel dies in handing them over. */
static void run_late_channel(void *arg)
{
    (void) arg;
    begin_unhelped();
    pn_ref own = topic_named(mine, "own");
    throw_away(mine, own, 6);
    CHECK_OK(pn_topic_empty(mine, own));
    publish(mine, PARENT, OWN, own, &(struct manner) {.size = 40});
    publish(mine, PARENT, OWN, own, &(struct manner) {.size = 40});
    CHECK_KILLED(spawn(first_channel, NULL), SIGKILL);
    check_segment("after the death");
    finish_what_is_left(OWN, own, "x", 0);
    for (uint32_t i = 0; i < 2; i++)
        REQUIRE(atomic_load(&j->m[i].in[0].finished) == 1, "message %u is lost", i);
    check_nothing_left(own, "own");
    check_segment("at the end");
    pn_conn_close(mine);
    pn_engine_close(engine);
    test_segments_remove();
    _exit(HIT);
}

#endif
