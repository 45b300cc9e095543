/*
 * A message is in several places: in files of several kinds, or in memory several times, of which
 * one channel's copy may be in flight.  A process that cancels it - alone, in a transaction, in a
 * prepared one - is killed at each label on that way, at its first hits.  Afterwards all of it is
 * there or none, each channel counts that, and what was in flight is its consumer's still.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sys/mman.h>

#include "cancel_scene.h"
#include "topic/queues.h"

enum how { ALONE, IN_A_TRANSACTION, PREPARED, HOWS };
enum where { FILES, MEMORY, IN_FLIGHT, WHERES };
enum { MOST_HITS = 4, WORKERS = 4 };

static _Atomic(int) *returned; /* the cancel has; outlives SIGKILL */
static const char *label, *name;
static uint32_t nth;
static enum how how;
static enum where where;
static uint64_t id;
static pn_ref idle, slow;

static void most(uint64_t bytes)
{
    const pn_topic_options o = {.given = PN_TOPIC_MAX_MEMORY, .max_memory = bytes};
    CHECK_OK(pn_topic_configure(conn, topic, &o));
}

/* What the others have on disk comes to memory: copies of their own. */
static void bring_back(void)
{
    most(4 << 20);
    for (int i = 0; i < 100; i++)
        topic_stat(conn, topic);
    CHECK_OK(pn_topic_pause(conn, topic, false));
}

static void put_off(pn_ref ch)
{
    pn_message_out m;
    pn_consumer *k = consumer_of(conn, ch, 1);
    do {
        int rc = pn_consumer_get(k, 1000 * MS, &m);
        CHECK(rc == 1 || rc == -EINTR);
        if (rc == 1 && m.id != id)
            FINISH(conn, &m);
    } while (m.id != id);
    CHECK_OK(answer(conn, NULL, &m, PN_ANSWER_REQUEUE, HOUR * 1000 * MS));
    CHECK_OK(pn_consumer_close(k));
}

static void make_scene(pn_message_out *in_flight)
{
    pn_options o = test_options();
    data_dir_empty();
    name = test_segment_name();
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    o.topic_memory = where == FILES ? 256 << 10 : 8 << 20;
    CHECK_OK(pn_open(name, &o, &engine));
    conn = test_connect(engine);
    topic = topic_of(conn, "t");
    channel = channel_of(conn, topic, "c");
    consumer = consumer_of(conn, channel, 2);
    if (where != FILES)
        most(128 << 10);
    idle = make_one_rest("idle");
    slow = make_one_rest("slow");
    id = publish_later("cancelled", where == IN_FLIGHT ? 20 * MS : 2 * HOUR * 1000 * MS);
    if (where == FILES) {
        make_it_leave(id);
        catch_up(slow);
        make_it_leave(id);
        return;
    }
    bring_back();
    if (where == MEMORY)
        return;
    GET(consumer, in_flight, "cancelled");
    CHECK_EQ(in_flight->id, id);
    put_off(idle);
    put_off(slow);
}

static void count_copy(void *arg, uint32_t ref)
{
    (void) ref;
    ++*(int *) arg;
}

/* As often as a channel has it. */
static int copies(void)
{
    int n = 0;
    pn_deferred_copies_locked(test_inside(), topic_locked(), id, test_now_ns(), count_copy, &n);
    pn_lock_release(test_inside());
    return n + records_of(id, pn_rest_look_locked) + records_of(id, pn_later_look_locked);
}

static void victim(void *arg)
{
    pn_engine *e;
    (void) arg;
    CHECK_OK(pn_open(name, NULL, &e));
    pn_conn *mine = test_connect(e);
    pn_ref of = topic_of(mine, "t");
    pn_txn *txn = how == ALONE ? NULL : test_begin(mine);
    if (how != ALONE)
        CHECK_EQ(pn_topic_cancel(mine, txn, of, id), 1);
    CHECK_OK(pn_crash_arm(label, nth, PN_CRASH_KILL));
    if (how == ALONE)
        CHECK_EQ(pn_topic_cancel(mine, txn, of, id), 1);
    if (how == PREPARED)
        CHECK_OK(pn_txn_prepare(txn));
    if (how != ALONE)
        CHECK_OK(pn_txn_commit(txn));
    atomic_store(returned, 1);
}

static void check_channel(pn_ref ch, uint64_t had, bool gone, const char *of)
{
    if (has(ch) != had - gone)
        FAIL("%s, hit %u: channel \"%s\" had %llu, has %llu, the message is %s", label, nth, of,
             (unsigned long long) had, (unsigned long long) has(ch), gone ? "gone" : "there");
}

/* It exits with 1 when the victim was killed. */
static void crash_case(void *arg)
{
    pn_message_out in_flight;
    pn_stat stat;
    (void) arg;
    atomic_store(returned, 0);
    make_scene(&in_flight);
    const int before = copies();
    CHECK(before >= 2);
    const uint64_t had[] = {has(channel), has(idle), has(slow)};
    const int status = reap(spawn(victim, NULL));
    if (!WIFSIGNALED(status))
        CHECK_EQ(status, 0);
    CHECK_OK(pn_engine_stat(engine, &stat, NULL, 0));
    CHECK_ENGINE(engine);
    const int after = copies();
    if ((after != before && after != 0) || (atomic_load(returned) && after != 0))
        FAIL("%s, hit %u: %d of %d are there", label, nth, after, before);
    check_channel(channel, had[0], after == 0 && where != IN_FLIGHT, "c");
    check_channel(idle, had[1], after == 0, "idle");
    check_channel(slow, had[2], after == 0, "slow");
    if (where == IN_FLIGHT)
        FINISH(conn, &in_flight);
    CHECK_EQ(pn_topic_cancel(conn, NULL, topic, id), after != 0);
    CHECK_EQ(copies(), 0);
    CHECK_ENGINE(engine);
    CHECK_OK(pn_consumer_close(consumer));
    pn_conn_close(conn);
    pn_remove_spill_files(engine);
    pn_engine_close(engine);
    exit(WIFSIGNALED(status));
}

static bool is_ours(const char *text)
{
    static const char *const modules[] = {"tombstone:", "commit:", "topic:", "prepare:", NULL};
    bool ours = false;
    for (const char *const *module = modules; *module != NULL; module++)
        ours |= strncmp(text, *module, strlen(*module)) == 0;
    return ours;
}

/* ---- another copy in the same cell ----------------------------------------------------------- */

enum { SOME = 40 };

/* In one commit: room for channel "idle", and the end of channel c's copy. */
static void makes_room_and_cancels(void *arg)
{
    pn_engine *e;
    pn_message_out m[SOME];
    (void) arg;
    CHECK_OK(pn_open(name, NULL, &e));
    pn_conn *mine = test_connect(e);
    pn_ref of = topic_of(mine, "t");
    pn_consumer *k = consumer_of(mine, channel_of(mine, of, "idle"), SOME);
    pn_txn *txn = test_begin(mine);
    for (int i = 0; i < SOME; i++) {
        CHECK_EQ(pn_consumer_get(k, 1000 * MS, &m[i]), 1);
        CHECK_OK(answer(mine, txn, &m[i], PN_ANSWER_FINISH, 0));
    }
    CHECK_EQ(pn_topic_cancel(mine, txn, of, id), 1);
    CHECK_OK(pn_crash_arm("rest:refilled", 1, PN_CRASH_KILL));
    CHECK_OK(pn_txn_commit(txn));
}

/* Until "idle" rests: the last message it has in a file, and channel c in memory, deferred. */
static void publish_until_it_rests(void)
{
    uint64_t records = 0;
    pn_message_out m;
    for (int i = 0; records == 0; i++) {
        CHECK(i < 1000);
        id = publish(conn, topic, "of both");
        struct pn_topic *t = topic_locked();
        records = pn_rest_records(t);
        pn_lock_release(test_inside());
        GET(consumer, &m, "of both");
        if (records == 0)
            FINISH(conn, &m);
    }
    CHECK_OK(answer(conn, NULL, &m, PN_ANSWER_REQUEUE, HOUR * 1000 * MS));
}

/* The commit that ends c's copy brings that of "idle" to memory, to the cell that was c's.  Killed
 * behind that, its redo ends c's copy again, and no other. */
static void test_another_copy_in_the_same_cell(void *arg)
{
    pn_options o = test_options();
    pn_message_out m;
    pn_stat stat;
    (void) arg;
    data_dir_make();
    name = test_segment_name();
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    o.topic_memory = 4 << 20;
    CHECK_OK(pn_open(name, &o, &engine));
    conn = test_connect(engine);
    topic = topic_with(conn, "t", 100, PN_OVERFLOW_DISK);
    channel = channel_of(conn, topic, "c");
    idle = channel_of(conn, topic, "idle");
    consumer = consumer_of(conn, channel, 2);
    publish_until_it_rests();
    pn_consumer *busy = consumer_of(conn, channel, 50); /* what it has fills the page of cells */
    for (int i = 0; i < 12; i++) {
        publish(conn, topic, "in flight");
        (void) pn_consumer_get(busy, 0, &m);
    }
    const int status = reap(spawn(makes_room_and_cancels, NULL));
    CHECK(WIFSIGNALED(status));
    CHECK_OK(pn_engine_stat(engine, &stat, NULL, 0));
    CHECK_ENGINE(engine);
    pn_consumer *k = consumer_of(conn, idle, 1);
    bool came = false;
    while (pn_consumer_get(k, 50 * MS, &m) == 1) {
        came |= m.id == id;
        FINISH(conn, &m);
    }
    CHECK(came);
    pn_remove_spill_files(engine);
    pn_engine_close(engine);
    data_dir_remove();
}

/* ---- a channel that is made while it looks --------------------------------------------------- */

static void looks_twice(void *arg)
{
    pn_engine *e;
    (void) arg;
    CHECK_OK(pn_open(name, NULL, &e));
    pn_conn *mine = test_connect(e);
    CHECK_OK(pn_crash_arm("cancel:look", 1, PN_CRASH_STOP));
    CHECK_EQ(pn_topic_cancel(mine, NULL, topic_of(mine, "t"), id), 1);
    pn_conn_close(mine);
    pn_engine_close(e);
}

/* The topic has one channel when the call begins, and its files take several holds of the lock.
 * Stopped between two of them: then two channels have the message, one of them in a file. */
static void test_a_channel_that_is_made_while_it_looks(void *arg)
{
    static char body[401];
    pn_options o = test_options();
    pn_message_out m;
    int status, none = 0;
    (void) arg;
    memset(body, 'x', sizeof body - 1);
    data_dir_make();
    name = test_segment_name();
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    CHECK_OK(pn_open(name, &o, &engine));
    conn = test_connect(engine);
    topic = topic_with(conn, "t", 50, PN_OVERFLOW_DISK);
    channel = channel_of(conn, topic, "c");
    consumer = consumer_of(conn, channel, 2);
    CHECK_OK(pn_topic_pause(conn, topic, true));
    for (int i = 0; i < 700; i++)
        publish(conn, topic, body);
    id = publish_in_an_hour("cancelled");
    const pid_t pid = spawn(looks_twice, NULL);
    CHECK_EQ(waitpid(pid, &status, WUNTRACED), pid);
    CHECK(WIFSTOPPED(status));
    idle = channel_of(conn, topic, "idle");
    CHECK_OK(pn_topic_pause(conn, topic, false));
    while (none < 20) {
        const int rc = pn_consumer_get(consumer, 5 * MS, &m);
        none = rc == 1 ? 0 : none + 1;
        if (rc == 1)
            FINISH(conn, &m);
    }
    CHECK(copies() >= 2);
    const uint64_t had = has(idle);
    CHECK_EQ(kill(pid, SIGCONT), 0);
    CHECK_CHILD(pid, 0);
    CHECK_EQ(copies(), 0);
    CHECK_EQ(has(channel), 0);
    CHECK_EQ(has(idle), had - 1);
    CHECK_ENGINE(engine);
    pn_remove_spill_files(engine);
    pn_engine_close(engine);
    data_dir_remove();
}

/* Every WORKERS-th label, in each way; a label that was not reached is not waited for again. */
static void work(void *arg)
{
    const int worker = *(const int *) arg;
    int killed = 0;
    data_dir_make();
    returned =
        mmap(NULL, sizeof *returned, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(returned != MAP_FAILED);
    for (int i = worker; i < pn_crash_label_count(); i += WORKERS) {
        label = pn_crash_label(i);
        for (int way = 0; is_ours(label) && way < HOWS * WHERES; way++) {
            bool reached = true;
            how = (enum how)(way % HOWS);
            where = (enum where)(way / HOWS);
            for (nth = 1; reached && nth <= MOST_HITS; nth++) {
                const int status = reap(spawn(crash_case, NULL));
                CHECK(WIFEXITED(status) && WEXITSTATUS(status) <= 1);
                reached = WEXITSTATUS(status) == 1;
                killed += reached;
            }
        }
    }
    CHECK(killed >= 20);
    printf("worker %d: %d killed\n", worker, killed);
    data_dir_remove();
}

int main(void)
{
    pid_t pid[WORKERS];
    test_watchdog(110);
    CHECK_CHILD(spawn(test_another_copy_in_the_same_cell, NULL), 0);
    CHECK_CHILD(spawn(test_a_channel_that_is_made_while_it_looks, NULL), 0);
    for (int i = 0; i < WORKERS; i++)
        pid[i] = spawn(work, &i);
    for (int i = 0; i < WORKERS; i++)
        reap_worker(pid[i]);
    return 0;
}
