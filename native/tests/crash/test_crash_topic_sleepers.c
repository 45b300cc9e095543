/*
 * Topics that a death has closed are opened by sleepers as well: which are woken for it, by which
 * process that found the death, and when that one goes on by itself.
 */
#include "crash_topic_repair.h"

#include <pthread.h>

#include "api/api_conn.h"
#include "recovery/rebuild_topics.h"
#include "recovery/recover_topics.h"
#include "topic/consume.h"

/* ---- sleepers -------------------------------------------------------------------------------- */

static void sleep_for_one(void *arg)
{
    pn_engine *own;
    pn_message_out m;
    (void) arg;
    CHECK_OK(pn_open(name, NULL, &own));
    pn_conn *c = test_connect(own);
    pn_consumer *consumer = consumer_of(c, channel, 1);
    GET(consumer, &m, "last");
    FINISH(c, &m);
    CHECK_OK(pn_consumer_close(consumer));
    pn_conn_close(c);
    pn_engine_close(own);
}

static bool sleeps(void)
{
    struct pn_hold hold;
    bool asleep = false;
    CHECK_OK(pn_lock_topics(conn->seg, &hold, PN_LOCK_TIMEOUT_NS));
    for (uint32_t i = 0; i < conn->seg->topics.max_consumers; i++)
        asleep |= pn_load_relaxed(&conn->seg->topics.consumer[i].wait) == PN_CONSUMER_WAITING;
    pn_lock_release(conn->seg);
    return asleep;
}

/* The message is there, and its publisher dies before it could say so. */
static void publish_and_die(void *arg)
{
    pn_engine *own;
    (void) arg;
    CHECK_OK(pn_open(name, NULL, &own));
    pn_conn *c = test_connect(own);
    CHECK_OK(pn_crash_arm("publish:after-live", 1, PN_CRASH_KILL));
    publish(c, topic, "last");
}

static void a_sleeper_is_woken(bool second_death)
{
    struct death at = {"topic-recover:waiting", 1};
    durable = false;
    pn_rebuild_units = 50;
    open_with(0);
    pid_t sleeper = spawn(sleep_for_one, NULL);
    CHECK_SOON(sleeps());
    CHECK_KILLED(spawn(publish_and_die, NULL), SIGKILL);
    if (second_death) /* and its repairer: the sleeper itself may have done it by then */
        reap(spawn(repair_and_die, &at));
    CHECK_CHILD(sleeper, 0); /* this process calls nothing */
    pn_rebuild_units = PN_REBUILD_UNITS;
    close_all();
}

static void sleepers(void)
{
    a_sleeper_is_woken(false);
    for (int i = 0; i < 5; i++)
        a_sleeper_is_woken(true);
}

/* A death that is not seen before the lock is taken to reap: it has no slot. */
static void die_without_a_slot(void *arg)
{
    struct pn_hold hold;
    pn_engine *own;
    (void) arg;
    CHECK_OK(pn_open(name, NULL, &own));
    CHECK_OK(pn_lock_acquire(own->seg, &hold, PN_LOCK_TIMEOUT_NS));
    pn_topics_begin_locked(own->seg);
    kill(getpid(), SIGKILL);
}

static void find_two(void *arg)
{
    struct pn_hold hold;
    pn_engine *own;
    (void) arg;
    CHECK_OK(pn_open(name, NULL, &own));
    pn_repair_steps = UINT32_MAX; /* it does not hand over */
    CHECK_OK(pn_crash_arm("topic-recover:opened", 1, PN_CRASH_STOP));
    CHECK_OK(pn_lock_acquire(own->seg, &hold, PN_LOCK_TIMEOUT_NS));
    CHECK(pn_topics_closed(own->seg));
    pn_lock_release(own->seg);
    CHECK_EQ(own->seg->topics.ctl->repair.rebuilds, 2);
    CHECK(!pn_topics_closed(own->seg));
}

/* The process that found a death finds another when it has just repaired what the first left. */
static void a_second_death_is_finished_too(void)
{
    int status;
    durable = false;
    open_with(FEW);
    CHECK_KILLED(spawn(die_without_a_slot, NULL), SIGKILL);
    pid_t finder = spawn(find_two, NULL);
    CHECK_EQ(waitpid(finder, &status, WUNTRACED), finder);
    CHECK(WIFSTOPPED(status));
    CHECK(!is_closed());
    CHECK_KILLED(spawn(die_without_a_slot, NULL), SIGKILL);
    CHECK_OK(kill(finder, SIGCONT));
    CHECK_CHILD(finder, 0);
    CHECK(!is_closed());
    check_all_there(FEW);
    close_all();
}

/* ---- handing over ---------------------------------------------------------------------------- */

enum { DEPUTIES = 3, SLEEPERS = 5 }; /* those that are woken at once, and more */

static uint32_t asleep(void)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < conn->seg->topics.max_consumers; i++)
        n += pn_load_relaxed(&conn->seg->topics.consumer[i].wait) == PN_CONSUMER_WAITING;
    return n;
}

static uint32_t slots(void)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < conn->seg->max_backends; i++)
        n += pn_load_relaxed(&conn->seg->backend[i].state) != PN_SLOT_FREE;
    return n;
}

/* A notifier does not wait for a repair that takes long, and no other process needs it now. */
static void a_finder_leaves_it_to_the_next_call(void)
{
    durable = false;
    open_with(MANY);
    CHECK_KILLED(spawn(die_with_the_lock, NULL), SIGKILL);
    CHECK_OK(pn_notify(conn, "x", 1, "y", 1));
    CHECK(is_closed());
    CHECK_EQ(repair()->steps, pn_repair_steps);
    CHECK_EQ(slots(), 2);
    publish(conn, topic, "9000");
    CHECK(!is_closed());
    CHECK_EQ(slots(), 1); /* the dead one is reaped with that */
    check_all_there(MANY + 1);
    close_all();
}

/* False: it has died. */
static bool stops(pid_t pid)
{
    int status;
    CHECK_EQ(waitpid(pid, &status, WUNTRACED), pid);
    return WIFSTOPPED(status);
}

static void sleep_without_signals(void *arg)
{
    pn_engine *own;
    pn_conn *c;
    pn_message_out m;
    (void) arg;
    CHECK_OK(pn_open(name, NULL, &own));
    CHECK_OK(pn_connect(own, "db", 2, -1, NULL, &c)); /* it looks from time to time */
    GET(consumer_of(c, channel_of(c, topic, "other"), 1), &m, "never");
}

/* A sleeper that cannot be told may be late: the finder does all of it. */
static void a_finder_goes_on_if_it_can_tell_no_other(void)
{
    durable = false;
    open_with(MANY);
    pid_t pid = spawn(sleep_without_signals, NULL);
    CHECK_SOON(asleep() == 1);
    CHECK_OK(kill(pid, SIGSTOP));
    CHECK(stops(pid));
    if (asleep() == 1) { /* not looking just now */
        CHECK_KILLED(spawn(die_without_a_slot, NULL), SIGKILL);
        CHECK_OK(pn_notify(conn, "x", 1, "y", 1));
        CHECK(!is_closed());
    }
    CHECK_OK(kill(pid, SIGKILL));
    CHECK_KILLED(pid, SIGKILL);
    check_all_there(MANY);
    close_all();
}

static bool by_descriptor; /* sleepers sleep as an event loop does */
static int stopped;        /* so many of them are stopped meanwhile */
static bool in_a_hurry;    /* the finder's thread does not wait for the lock */

static void wait_on_descriptor(void)
{
    pn_engine *own;
    pn_message_out m;
    int rc;
    CHECK_OK(pn_open(name, NULL, &own));
    pn_conn *c = test_connect(own);
    pn_consumer *consumer = consumer_of(c, channel, 1);
    struct pollfd fd = {.fd = pn_consumer_fileno(consumer), .events = POLLIN};
    while ((rc = pn_consumer_get(consumer, 0, &m)) == 0)
        while (poll(&fd, 1, -1) < 0)
            CHECK_EQ(errno, EINTR); /* a signal alone does not tell it */
    CHECK_EQ(rc, 1);
    FINISH(c, &m);
    CHECK_OK(pn_consumer_close(consumer));
    pn_conn_close(c);
    pn_engine_close(own);
}

/* Dies at `label`, unless it is NULL, when it is woken. */
static void sleep_and_die(void *label)
{
    pn_consumer_slow_ns = 3600LL * 1000000000; /* no timer of its own wakes it */
    if (label != NULL)
        CHECK_OK(pn_crash_arm(label, 1, PN_CRASH_KILL));
    else
        CHECK(nice(19) != -1); /* those that die come before those that do all of it */
    if (by_descriptor)
        return wait_on_descriptor();
    sleep_for_one(NULL);
}

/* It has connected before the death, and does not close: these are calls on topics. */
static void notify_and_stay(void *label)
{
    pn_engine *own;
    CHECK_OK(pn_open(name, NULL, &own));
    pn_conn *c = test_connect(own);
    raise(SIGSTOP);
    if (in_a_hurry)
        pn_set_lock_timeout(0);
    if (label != NULL)
        CHECK_OK(pn_crash_arm(label, 1, PN_CRASH_KILL));
    CHECK_OK(pn_notify(c, "x", 1, "y", 1));
    if (stopped == DEPUTIES) { /* by the next call it is time to wake others */
        pn_repair_again_ns = 0;
        CHECK_OK(pn_notify(c, "x", 1, "y", 1));
    }
    raise(SIGSTOP);
}

/* How many have not ended; the others are 0 afterwards. */
static int how_many_left(pid_t sleeper[SLEEPERS])
{
    int left = 0;
    for (int i = 0; i < SLEEPERS; i++) {
        if (sleeper[i] != 0 && waitpid(sleeper[i], NULL, WNOHANG) == sleeper[i])
            sleeper[i] = 0;
        left += sleeper[i] != 0;
    }
    return left;
}

/*
 * This process calls nothing until topics are open.  The first `deaths` of the sleepers die at
 * their label; the finder at its own, or it is stopped when its call is over.  False: some did not,
 * since one had not quite gone to sleep, and found the death, or came when all was over.  Such a
 * one may die at any time after that.
 */
static bool are_opened_by_sleepers(const char *sleepers_label, int deaths,
                                   const char *finders_label)
{
    pid_t sleeper[SLEEPERS];
    durable = false;
    pn_rebuild_units = 50;
    open_with(0);
    for (int i = 0; i < SLEEPERS; i++) {
        const char *label = i < deaths ? sleepers_label : NULL;
        sleeper[i] = spawn(sleep_and_die, (void *) (uintptr_t) label);
        CHECK_SOON(asleep() == (uint32_t) i + 1); /* in the order of slots */
    }
    pid_t finder = spawn(notify_and_stay, (void *) (uintptr_t) finders_label);
    CHECK(stops(finder));
    for (int i = 0; i < stopped; i++) {
        CHECK_OK(kill(sleeper[i], SIGSTOP));
        CHECK(stops(sleeper[i]));
    }
    CHECK_KILLED(spawn(die_without_a_slot, NULL), SIGKILL); /* so that no process watches it */
    CHECK_OK(kill(finder, SIGCONT));
    const bool lives = stops(finder);
    CHECK_SOON(repair()->rebuilds != 0 && !is_closed());
    for (int i = 0; i < stopped; i++)
        CHECK_OK(kill(sleeper[i], SIGCONT));
    CHECK(repair()->steps > 10 * pn_repair_steps); /* more than the finder has made */
    int left;
    CHECK_SOON(asleep() == (uint32_t) (left = how_many_left(sleeper))); /* the dead are gone */
    CHECK(left >= SLEEPERS - deaths);
    if (lives) {
        CHECK_OK(kill(finder, SIGKILL));
        CHECK_KILLED(finder, SIGKILL);
    }
    for (int i = 0; i < left; i++)
        publish(conn, topic, "last");
    for (int i = 0; i < SLEEPERS; i++) {
        int status = sleeper[i] != 0 ? reap(sleeper[i]) : 0;
        CHECK(status == 0 || (i < deaths && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
    }
    pn_rebuild_units = PN_REBUILD_UNITS;
    close_all();
    return lives == (finders_label == NULL) && left == SLEEPERS - deaths;
}

static void sleepers_open_them(const char *sleepers_label, int deaths, const char *finders_label)
{
    int rounds = 0;
    while (!are_opened_by_sleepers(sleepers_label, deaths, finders_label))
        CHECK(++rounds < 400); /* on a busy machine many are needed */
}

/* Its program has something else to do. */
static void do_not_look(void *arg)
{
    pn_engine *own;
    pn_message_out m;
    (void) arg;
    pn_consumer_slow_ns = 3600LL * 1000000000;
    CHECK_OK(pn_open(name, NULL, &own));
    pn_consumer *consumer = consumer_of(test_connect(own), channel, 1);
    CHECK(pn_consumer_fileno(consumer) >= 0);
    CHECK_EQ(pn_consumer_get(consumer, 0, &m), 0);
    for (;;)
        pause();
}

static void those_that_no_thread_looks_at_do_not_count(void)
{
    pid_t busy[DEPUTIES];
    durable = false;
    open_with(0);
    for (uint32_t i = 0; i < DEPUTIES; i++) {
        busy[i] = spawn(do_not_look, NULL);
        CHECK_SOON(asleep() == i + 1);
    }
    pid_t sleeper = spawn(sleep_and_die, NULL);
    CHECK_SOON(asleep() == DEPUTIES + 1);
    CHECK_KILLED(spawn(die_without_a_slot, NULL), SIGKILL);
    pn_rebuild_units = 200;
    CHECK_OK(pn_notify(conn, "x", 1, "y", 1));
    CHECK_SOON(repair()->rebuilds != 0 && !is_closed());
    publish(conn, topic, "last");
    for (uint32_t i = 0; i < DEPUTIES; i++) {
        CHECK_OK(kill(busy[i], SIGKILL));
        CHECK_KILLED(busy[i], SIGKILL);
    }
    CHECK_CHILD(sleeper, 0);
    pn_rebuild_units = PN_REBUILD_UNITS;
    close_all();
}

static void *sleep_in_a_thread(void *arg)
{
    pn_message_out m;
    GET(arg, &m, "last");
    FINISH(conn, &m);
    return NULL;
}

/* The sleeper is a thread of the finder, which no signal wakes. */
static void a_thread_opens_them_for_its_own_process(void)
{
    pthread_t thread;
    durable = false;
    open_with(0);
    pn_consumer *consumer = consumer_of(conn, channel, 1);
    consumer->slow_ns = 3600LL * 1000000000;
    CHECK_EQ(pthread_create(&thread, NULL, sleep_in_a_thread, consumer), 0);
    CHECK_SOON(asleep() == 1);
    CHECK_KILLED(spawn(die_without_a_slot, NULL), SIGKILL);
    pn_rebuild_units = 200;
    CHECK_OK(pn_notify(conn, "x", 1, "y", 1));
    CHECK_SOON(repair()->rebuilds != 0 && !is_closed());
    publish(conn, topic, "last");
    CHECK_EQ(pthread_join(thread, NULL), 0);
    pn_rebuild_units = PN_REBUILD_UNITS;
    CHECK_OK(pn_consumer_close(consumer));
    close_all();
}

static void handing_over(void)
{
    a_thread_opens_them_for_its_own_process();
    a_finder_leaves_it_to_the_next_call();
    a_finder_goes_on_if_it_can_tell_no_other();
    sleepers_open_them(NULL, 0, NULL);
    sleepers_open_them(NULL, 0, "topic-recover:handing-over"); /* those that watch it do it */
    sleepers_open_them(NULL, 0, "topic-recover:handed-over");
    sleepers_open_them("topic-recover:waiting", 3, NULL); /* and those that watch them */
    sleepers_open_them("topic-recover:step", 3, NULL);
    sleepers_open_them("topic-recover:waiting", 3, "topic-recover:handed-over");
    in_a_hurry = true;
    sleepers_open_them(NULL, 0, NULL);
    in_a_hurry = false;
    stopped = 1;
    sleepers_open_them(NULL, 0, NULL);
    stopped = DEPUTIES;
    sleepers_open_them(NULL, 0, NULL);
    stopped = 0;
    those_that_no_thread_looks_at_do_not_count();
    by_descriptor = true;
    sleepers_open_them(NULL, 0, NULL);
    sleepers_open_them("topic-recover:waiting", 3, NULL);
    by_descriptor = false;
}

int main(void)
{
    data_dir_make();
    test_watchdog(110);
    pn_repair_again_ns = INT64_MAX; /* notifiers do one step each, and wake no sleepers */
    sleepers();
    a_second_death_is_finished_too();
    handing_over();
    return 0;
}
