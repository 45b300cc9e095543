/*
 * After a death in the middle of an operation on topics these are closed, and opened again in
 * steps: how much one hold of the lock does, and what goes on meanwhile; deaths in each step; that
 * sleepers are woken; and what the log says if everything ends in between.
 *
 * Work is counted, never timed.
 */
#include "data_dirs.h"

#include <pthread.h>
#include <sys/syscall.h>

#include "api/api_conn.h"
#include "backend/conn.h"
#include "base/crashpoint.h"
#include "recovery/rebuild_topics.h"
#include "recovery/recover_topics.h"
#include "segment/lock.h"
#include "topic/consume.h"
#include "topic/topic.h"
#include "topics.h"

enum { MANY = 9000, FEW = 600, BATCH = 100 };

static pn_engine *engine;
static pn_conn *conn;
static pn_ref topic, channel;
static const char *name;
static bool durable;

static void attach(void)
{
    const pn_topic_options t = {
        .given = PN_TOPIC_DURABLE | PN_TOPIC_FSYNC, .durable = durable, .fsync = PN_FSYNC_NONE};
    pn_options o = test_options();
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    o.topic_memory = 16 << 20;
    CHECK_OK(pn_open(name, &o, &engine));
    conn = test_connect(engine);
    CHECK_OK(pn_topic_open(conn, "t", 1, &t, &topic));
    channel = channel_of(conn, topic, "c");
}

static void publish_all(int n)
{
    static uint8_t bodies[BATCH * 4 + 1];
    static uint32_t lens[BATCH];
    uint64_t id;
    for (int i = 0; i < n; i += BATCH) {
        for (int k = 0; k < BATCH; k++) {
            snprintf((char *) bodies + 4 * k, 5, "%04d", (i + k) % 10000);
            lens[k] = 4;
        }
        CHECK_OK(pn_topic_publish_many(conn, NULL, topic, bodies, lens, BATCH, NULL, &id));
    }
}

static void open_with(int n)
{
    data_dir_empty();
    name = test_segment_name();
    attach();
    publish_all(n);
}

static void close_all(void)
{
    CHECK_ENGINE(engine);
    pn_remove_spill_files(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

/* In the middle of an operation on topics. */
static void die_with_the_lock(void *arg)
{
    struct pn_hold hold;
    pn_engine *own;
    (void) arg;
    CHECK_OK(pn_open(name, NULL, &own));
    pn_conn *c = test_connect(own);
    CHECK_OK(pn_lock_acquire(c->seg, &hold, PN_LOCK_TIMEOUT_NS));
    pn_topics_begin_locked(c->seg);
    kill(getpid(), SIGKILL);
}

static const struct pn_topic_repair *repair(void)
{
    return &conn->seg->topics.ctl->repair;
}

static bool is_closed(void)
{
    return pn_topics_closed(conn->seg);
}

/* The process that finds the death goes no further: it could have died right after its release. */
static void find_the_death(void)
{
    struct pn_hold hold;
    struct pn_segment *seg = conn->seg;
    CHECK_OK(pn_lock_acquire(seg, &hold, PN_LOCK_TIMEOUT_NS));
    CHECK(is_closed());
    hold.at_end &= ~(uint32_t) PN_REPAIR;
    pn_lock_release(seg);
}

static void check_all_there(int n)
{
    pn_consumer *consumer = consumer_of(conn, channel, 500);
    for (int i = 0; i < n; i++) {
        pn_message_out m;
        CHECK_EQ(pn_consumer_get(consumer, 0, &m), 1);
        CHECK_EQ(number_in(&m), i % 10000);
        FINISH(conn, &m);
    }
    NOTHING(consumer);
    CHECK_OK(pn_consumer_close(consumer));
}

/* ---- what one hold does ---------------------------------------------------------------------- */

/* Rows of tables and pages of the arena are weighed, so a step may have a little more. */
static const uint32_t MOST = PN_REBUILD_UNITS + 3 * PN_REBUILD_UNITS / 2;

static void bystander(bool with_log)
{
    durable = with_log;
    open_with(MANY);
    CHECK_KILLED(spawn(die_with_the_lock, NULL), SIGKILL);
    find_the_death();
    uint64_t steps = repair()->steps, first = steps;
    int notified = 0;
    for (; is_closed(); notified++) {
        CHECK(notified < 10000);
        CHECK_OK(pn_notify(conn, "x", 1, "y", 1));
        CHECK(repair()->steps <= steps + 1);
        steps = repair()->steps;
    }
    /* two kinds of cells, looked at again and again, and a list that is merged */
    CHECK(steps - first > 8 * (uint64_t) MANY / PN_REBUILD_UNITS);
    CHECK((uint64_t) notified >= steps - first);
    CHECK(repair()->most <= MOST);
    CHECK_ENGINE(engine);
    check_all_there(MANY);
    close_all();
}

static void notified_beside_a_repair(void)
{
    bystander(false);
}

static void notified_beside_a_repair_with_a_log(void)
{
    bystander(true);
}

/* Topics are another process's. */
static void make_and_die(void *arg)
{
    attach();
    publish_all(FEW);
    die_with_the_lock(arg);
}

/* A process that has no file of the log open, and wants nothing of topics. */
static void a_notifier_opens_no_log(void)
{
    pn_options o = test_options();
    durable = true;
    data_dir_empty();
    name = test_segment_name();
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    o.topic_memory = 16 << 20;
    CHECK_OK(pn_open(name, &o, &engine));
    conn = test_connect(engine);
    CHECK_KILLED(spawn(make_and_die, NULL), SIGKILL);
    find_the_death();
    for (int i = 0; i < 5000; i++)
        CHECK_OK(pn_notify(conn, "x", 1, "y", 1));
    CHECK(is_closed());
    CHECK(conn->seg->topics.durable == NULL);
    pn_conn_close(conn); /* it frees its slot, and so has to wait until they are open */
    pn_engine_close(engine);
    attach();
    CHECK(!is_closed());
    check_all_there(FEW);
    close_all();
}

/* Calls on topics go on to the end, and those that must not wait say so. */
static void calls_meanwhile(void)
{
    uint64_t id;
    durable = true;
    open_with(FEW);
    for (int i = 0; i < 6; i++) {
        CHECK_KILLED(spawn(die_with_the_lock, NULL), SIGKILL);
        find_the_death();
        if (i == 0) {
            pn_set_never_wait(1);
            CHECK_EQ(publish_in(conn, NULL, topic, "0600", 0, 0, &id), -PN_ELOCKBUSY);
            pn_set_never_wait(0);
            CHECK(is_closed());
        } else if (i == 1) {
            CHECK_EQ(topic_stat(conn, topic).depth + channel_stat(conn, channel).depth, FEW);
        } else if (i == 2) {
            CHECK_EQ(channel_of(conn, topic, "c"), channel);
        } else if (i == 3) {
            CHECK_ENGINE(engine);
        } else if (i == 4) {
            pn_conn_close(test_connect(engine));
        } else {
            publish(conn, topic, "0600");
        }
        CHECK(i == 0 || !is_closed());
        CHECK_ENGINE(engine);
    }
    check_all_there(FEW + 1);
    close_all();
}

/* ---- deaths in it ---------------------------------------------------------------------------- */

struct death {
    const char *label;
    uint32_t nth;
};

static void repair_and_die(void *arg)
{
    const struct death *at = arg;
    struct pn_hold hold;
    pn_engine *own;
    CHECK_OK(pn_open(name, NULL, &own));
    pn_conn *c = test_connect(own);
    CHECK_OK(pn_crash_arm(at->label, at->nth, PN_CRASH_KILL));
    CHECK_OK(pn_lock_topics(c->seg, &hold, PN_LOCK_TIMEOUT_NS));
    pn_lock_release(c->seg);
}

/* Every so many-th of all labels that a repair passes, until one has nothing left to do. */
static void die_everywhere(const char *label, uint32_t stride, bool with_log)
{
    durable = with_log;
    pn_rebuild_units = 200;
    open_with(FEW);
    uint32_t died = 0;
    for (uint32_t nth = 1;; nth += stride) {
        struct death at = {label, nth};
        CHECK_KILLED(spawn(die_with_the_lock, NULL), SIGKILL);
        find_the_death();
        int status = reap(spawn(repair_and_die, &at));
        if (WIFEXITED(status)) {
            CHECK_EQ(WEXITSTATUS(status), 0);
            break;
        }
        CHECK_EQ(WTERMSIG(status), SIGKILL);
        died++;
        CHECK_ENGINE(engine);
        CHECK(!is_closed());
        CHECK_DEPTHS(conn, channel, FEW, 0, 0);
    }
    CHECK(died >= 3);
    check_all_there(FEW);
    pn_rebuild_units = PN_REBUILD_UNITS;
    close_all();
}

static void killed_in_steps(void)
{
    die_everywhere("topic-recover:step", 7, false);
    die_everywhere("topic-recover:stepped", 5, false);
    die_everywhere("topic-recover:waiting", 9, true);
    die_everywhere("topic-recover:step", 9, true);
    die_everywhere("topiclog:carried", 2, true);
    die_everywhere("durable:step", 1, true);
}

/* A step that ended is not made again; one that did not is, with all before it. */
static void goes_on_where_it_stopped(void)
{
    struct death at = {"topic-recover:waiting", 10};
    durable = false;
    pn_rebuild_units = 1000;
    open_with(FEW);
    CHECK_KILLED(spawn(die_with_the_lock, NULL), SIGKILL);
    find_the_death();
    CHECK_KILLED(spawn(repair_and_die, &at), SIGKILL);
    uint32_t phase = repair()->phase;
    CHECK_EQ(repair()->steps, 11); /* one when it connected */
    CHECK(phase != 0);
    CHECK_OK(pn_notify(conn, "x", 1, "y", 1));
    CHECK(repair()->phase >= phase);
    CHECK_EQ(repair()->steps, 12);
    CHECK_EQ(repair()->rebuilds, 1);
    at = (struct death) {"topic-recover:step", 5};
    CHECK_KILLED(spawn(repair_and_die, &at), SIGKILL);
    find_the_death();
    CHECK_EQ(repair()->phase, 0);
    pn_rebuild_units = PN_REBUILD_UNITS;
    check_all_there(FEW);
    close_all();
}

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

/* ---- everything ends in the middle ----------------------------------------------------------- */

static void lose_all_at(uint32_t nth)
{
    struct death at = {"topiclog:carried", nth};
    durable = true;
    open_with(FEW);
    pn_consumer *consumer = consumer_of(conn, channel, 1);
    pn_message_out m;
    GET(consumer, &m, "0000");
    FINISH(conn, &m);
    CHECK_OK(pn_consumer_close(consumer));
    CHECK_KILLED(spawn(die_with_the_lock, NULL), SIGKILL);
    find_the_death();
    CHECK_KILLED(spawn(repair_and_die, &at), SIGKILL);
    pn_engine *old_engine = engine;
    pn_conn *old_conn = conn;
    test_segment_remove(name);
    attach();
    CHECK_DEPTHS(conn, channel, FEW - 1, 0, 0);
    consumer = consumer_of(conn, channel, 1);
    for (int i = 1; i < FEW; i++) {
        CHECK_EQ(pn_consumer_get(consumer, 0, &m), 1);
        CHECK_EQ(number_in(&m), i);
        FINISH(conn, &m);
    }
    NOTHING(consumer);
    CHECK_OK(pn_consumer_close(consumer));
    close_all();
    pn_conn_close(old_conn);
    pn_engine_close(old_engine);
}

static void reboot_in_the_middle(void)
{
    const uint32_t writes = FEW / 64; /* and one for the rest */
    lose_all_at(1);
    lose_all_at(writes / 2);
    lose_all_at(writes);
}

/* Those that were finished are gone, and what is published next comes after them all the same. */
static void orders_do_not_go_back(void)
{
    durable = false;
    open_with(BATCH);
    check_all_there(BATCH);
    const struct pn_topic_channel *ch = &conn->seg->topics.channel[(uint32_t) channel - 1];
    uint64_t before = ch->next_order;
    CHECK(before > BATCH);
    CHECK_KILLED(spawn(die_with_the_lock, NULL), SIGKILL);
    publish_all(BATCH);
    CHECK(!is_closed());
    CHECK_EQ(ch->next_order, before + BATCH);
    check_all_there(BATCH);
    close_all();
}

/* ---- overwritten words ----------------------------------------------------------------------- */

/* The segment is poisoned: an answer to every call, and no end of any process. */
static void is_refused(void (*overwrite)(struct pn_topic_repair *), uint32_t after)
{
    struct pn_hold hold;
    struct death at = {"topic-recover:waiting", after};
    durable = false;
    pn_rebuild_units = 50;
    open_with(FEW);
    CHECK_KILLED(spawn(die_with_the_lock, NULL), SIGKILL);
    find_the_death();
    CHECK_KILLED(spawn(repair_and_die, &at), SIGKILL);
    CHECK(is_closed());
    overwrite(&conn->seg->topics.ctl->repair);
    int rc = pn_lock_topics(conn->seg, &hold, PN_LOCK_TIMEOUT_NS);
    CHECK_EQ(rc, -PN_ECORRUPT);
    CHECK_EQ(pn_notify(conn, "x", 1, "y", 1), -PN_ECORRUPT);
    pn_rebuild_units = PN_REBUILD_UNITS;
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static void no_mark(struct pn_topic_repair *at)
{
    (void) at;
    pn_store_relaxed(&conn->seg->ctl->topics_dirty, 6);
}

static void no_phase(struct pn_topic_repair *at)
{
    at->phase = 0x7fffffff;
}

/* Nothing has been built, and it would be opened. */
static void over_already(struct pn_topic_repair *at)
{
    at->phase = 14;
}

static void no_kind(struct pn_topic_repair *at)
{
    at->phase = 10; /* that of sorting */
    at->kind = 0x7fffffff;
}

static void no_level(struct pn_topic_repair *at)
{
    at->phase = 10;
    at->kind = 0;
    at->cursor = 0;
    at->sort.doing = 2; /* a list goes into the level */
    at->sort.level = 0x7fffffff;
}

/* Each message, as if it expired: there is not that much room for what says when. */
static void no_room(struct pn_topic_repair *at)
{
    const struct pn_arena *mem = &conn->seg->topics.arena;
    (void) at;
    for (uint32_t page = mem->first; page < pn_arena_pages_used(mem); page++)
        for (uint64_t left = pn_arena_cells_of(mem, page, PN_PAGE_BODY); left != 0;
             left &= left - 1)
            pn_message_at(conn->seg, page * PN_ARENA_GRANULES + (uint32_t) __builtin_ctzll(left))
                ->expires = INT64_MAX;
    conn->seg->topics.arena.pages = pn_arena_pages_used(mem);
}

static void overwritten(void)
{
    is_refused(no_mark, 3);
    is_refused(no_phase, 3);
    is_refused(over_already, 3);
    is_refused(no_kind, 3);
    is_refused(no_level, 3);
    is_refused(no_room, 3);
}

int main(void)
{
    data_dir_make();
    test_watchdog(110);
    pn_repair_again_ns = INT64_MAX; /* notifiers do one step each, and wake no sleepers */
    notified_beside_a_repair();
    notified_beside_a_repair_with_a_log();
    a_notifier_opens_no_log();
    calls_meanwhile();
    killed_in_steps();
    goes_on_where_it_stopped();
    sleepers();
    a_second_death_is_finished_too();
    handing_over();
    orders_do_not_go_back();
    reboot_in_the_middle();
    overwritten();
    return 0;
}
