/*
 * test_topic_cancel.c - the end of deferred messages that are on disk, for want of memory: alone,
 * in transactions and prepared ones; what there is then, exactly; and when there is no more room
 * for saying so.  What is on disk is the channel's (topic/rest.c), and then, of a topic that is
 * paused until something is to be got from it, the topic's own (topic/overflow.c).
 */
#include <sys/resource.h>

#include "cancel_scene.h"
#include "commit/async.h"
#include "files/record_file.h"
#include "topic/queues.h"
#include "topic/tombstones.h"

static bool own; /* it is paused at first */
#define RUN_BOTH(test)                                                                             \
    do {                                                                                           \
        RUN(test);                                                                                 \
        own = true;                                                                                \
        RUN(test);                                                                                 \
        own = false;                                                                               \
    } while (0)

static void open_with(uint64_t max_depth)
{
    pn_options o = test_options();
    data_dir_empty();
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    engine = test_engine(&o);
    conn = test_connect(engine);
    topic = topic_with(conn, "t", max_depth, PN_OVERFLOW_DISK);
    channel = channel_of(conn, topic, "c");
    CHECK_OK(pn_topic_pause(conn, topic, own));
    consumer = consumer_of(conn, channel, 2);
}

static void close_scene(void)
{
    CHECK_ENGINE(engine);
    CHECK_EQ(test_inside()->topics.ctl->tombstone_end, 0);
    CHECK_OK(pn_consumer_close(consumer));
    pn_conn_close(conn);
    pn_remove_spill_files(engine);
    CHECK_EQ(files_in(data_dir), 0);
    pn_engine_close(engine);
}

static void finish_one(const char *body)
{
    pn_message_out m;
    CHECK_OK(pn_topic_pause(conn, topic, false));
    GET(consumer, &m, body);
    FINISH(conn, &m);
}

/* All of it is in the depth of the topic or of its channel. */
static void check_counts(uint64_t unfinished, uint64_t on_disk)
{
    pn_topic_stats s = topic_stat(conn, topic);
    pn_topic_channel_stats c = channel_stat(conn, channel);
    CHECK_EQ(s.unfinished, unfinished);
    CHECK_EQ(s.on_disk, on_disk);
    if (s.paused || !own) /* else it is on its way to the channel, for several holds of the lock */
        CHECK_EQ(s.depth, s.paused ? unfinished + on_disk : 0);
    CHECK_EQ(s.depth + c.depth + c.deferred + c.in_flight, unfinished + on_disk);
    CHECK_ENGINE(engine);
}

#define CANCEL(txn, id, want) CHECK_EQ(pn_topic_cancel(conn, txn, topic, id), want)

static void test_a_message_on_disk_is_cancelled_and_counted_no_more(void)
{
    uint64_t id[4];
    open_with(1);
    publish(conn, topic, "first");
    for (int i = 0; i < 4; i++)
        id[i] = publish_later((const char *[]) {"a", "b", "c", "d"}[i],
                              i % 2 == 0 ? 300 * MS : HOUR * 1000 * MS); /* b, d: cancelled */
    check_counts(1, 4);
    CANCEL(NULL, id[1], 1);
    check_counts(1, 3);
    CANCEL(NULL, id[1], 0);
    CANCEL(NULL, id[3], 1);
    check_counts(1, 2);
    CHECK_EQ(topic_stat(conn, topic).message_count, 5);
    finish_one("first");
    finish_one("a");
    finish_one("c");
    NOTHING(consumer);
    check_counts(0, 0);
    CHECK_EQ(topic_stat(conn, topic).message_count, 5);
    CHECK_EQ(channel_stat(conn, channel).message_count, own ? 3 : 5);
    CHECK_EQ(topic_stat(conn, topic).message_bytes, strlen("first") + 4);
    close_scene();
}

static void test_what_is_first_on_disk_goes_at_once(void)
{
    open_with(1);
    uint64_t kept = publish_in_an_hour("kept");
    uint64_t next = publish_in_an_hour("next"), last = publish_in_an_hour("last");
    CANCEL(NULL, next, 1);
    CHECK_EQ(test_inside()->topics.ctl->tombstone_end, 0); /* passed already */
    check_counts(1, 1);
    CANCEL(NULL, kept, 1); /* and the last comes to memory */
    check_counts(1, 0);
    CANCEL(NULL, last, 1);
    check_counts(0, 0);
    close_scene();
}

static void test_only_what_is_deferred_can_be_cancelled(void)
{
    uint64_t gone, id;
    open_with(1);
    publish(conn, topic, "first");
    uint64_t plain = publish(conn, topic, "plain");
    uint64_t due = publish_later("due", 1);
    CHECK_OK(publish_in(conn, NULL, topic, "gone", HOUR * 1000 * MS, 1, &gone));
    CANCEL(NULL, plain, 0);
    CANCEL(NULL, due, 0);
    CANCEL(NULL, gone, 0);
    CANCEL(NULL, 12345, 0);
    pn_txn *txn = test_begin(conn);
    CANCEL(txn, plain, 0);
    CANCEL(txn, gone, 0);
    CHECK_OK(publish_in(conn, txn, topic, "mine", HOUR * 1000 * MS, 0, &id));
    CANCEL(txn, id, 0); /* it does not exist yet */
    pn_txn_abort(txn);
    check_counts(1, 3);
    finish_one("first");
    finish_one("plain");
    finish_one("due");
    NOTHING(consumer);
    close_scene();
}

static void test_in_a_transaction_it_is_at_commit(void)
{
    open_with(2);
    uint64_t in_memory = publish_in_an_hour("memory");
    publish(conn, topic, "first");
    uint64_t a = publish_in_an_hour("a"), b = publish_in_an_hour("b");
    pn_txn *txn = test_begin(conn);
    CANCEL(txn, a, 1);
    CANCEL(txn, in_memory, 1);
    pn_txn_abort(txn);
    check_counts(2, 2);
    txn = test_begin(conn);
    CANCEL(txn, b, 1);
    CANCEL(txn, b, 1); /* it is deferred still */
    CHECK_OK(pn_txn_commit(txn));
    check_counts(2, 1);
    b = publish_in_an_hour("b");
    txn = test_begin(conn);
    CANCEL(txn, b, 1);
    CANCEL(txn, in_memory, 1);
    CHECK_OK(publish_in(conn, txn, topic, "new", 0, 0, NULL));
    check_counts(2, 2);
    CHECK_OK(pn_txn_commit(txn));
    check_counts(2, 1); /* a has come to memory, b is no more, "new" is behind it */
    CANCEL(NULL, b, 0);
    CANCEL(NULL, a, 1);
    finish_one("first");
    finish_one("new");
    check_counts(0, 0);
    close_scene();
}

/* Before the commit it has come to memory, has fallen due, was cancelled by others. */
static void test_what_happens_before_the_commit_counts(void)
{
    open_with(1);
    publish(conn, topic, "first");
    uint64_t a = publish_in_an_hour("a");
    pn_txn *txn = test_begin(conn);
    CANCEL(txn, a, 1);
    finish_one("first"); /* now it is in memory */
    check_counts(1, 0);
    CHECK_OK(pn_txn_commit(txn));
    check_counts(0, 0);
    publish(conn, topic, "first");
    uint64_t due = publish_later("due", 20 * MS), other = publish_in_an_hour("other");
    int64_t begun = test_now_ns();
    txn = test_begin(conn);
    int on_time = pn_topic_cancel(conn, txn, topic, due); /* 0 on a machine that stalled */
    CANCEL(txn, other, 1);
    CANCEL(NULL, other, 1);
    while (test_now_ns() < begun + 30 * MS)
        test_sleep_ms(1);
    CHECK(on_time == 0 || on_time == 1);
    CHECK_OK(pn_txn_commit(txn));
    check_counts(1, 1);
    finish_one("first");
    finish_one("due");
    check_counts(0, 0);
    close_scene();
}

static void test_a_prepared_transaction_keeps_its_place(void)
{
    open_with(1);
    publish(conn, topic, "first");
    uint64_t a = publish_in_an_hour("a"), b = publish_in_an_hour("b");
    pn_txn *txn = test_begin(conn);
    CANCEL(txn, b, 1);
    CHECK_OK(pn_txn_prepare(txn));
    check_counts(1, 2);
    CHECK_EQ(test_inside()->topics.ctl->tombstone_end, 1);
    pn_txn_abort(txn);
    check_counts(1, 2);
    CHECK_EQ(test_inside()->topics.ctl->tombstone_end, 0);
    txn = test_begin(conn);
    CANCEL(txn, b, 1);
    CHECK_OK(pn_txn_prepare(txn));
    CHECK_OK(pn_txn_commit(txn));
    check_counts(1, 1);
    txn = test_begin(conn);
    CANCEL(txn, a, 1);
    CANCEL(txn, a, 1);
    CHECK_OK(pn_txn_prepare(txn));
    CHECK_EQ(test_inside()->topics.ctl->tombstone_end, 3);
    finish_one("first"); /* "a" comes to memory, and has to be found there */
    check_counts(1, 0);
    CHECK_OK(pn_txn_commit(txn));
    check_counts(0, 0);
    close_scene();
}

static void die_prepared(void *arg)
{
    pn_conn *mine = test_connect(engine);
    pn_txn *txn = test_begin(mine);
    CHECK_EQ(pn_topic_cancel(mine, txn, topic, *(uint64_t *) arg), 1);
    CHECK_OK(pn_txn_prepare(txn));
    raise(SIGKILL);
}

static void test_what_a_dead_process_had_prepared_is_as_before(void)
{
    pn_stat stat;
    open_with(1);
    publish(conn, topic, "first");
    uint64_t a = publish_in_an_hour("a");
    CHECK_KILLED(spawn(die_prepared, &a), SIGKILL);
    CHECK_OK(pn_engine_stat(engine, &stat, NULL, 0)); /* the caller reaps it */
    CHECK_EQ(test_inside()->topics.ctl->tombstone_end, 0);
    check_counts(1, 1);
    CANCEL(NULL, a, 1);
    finish_one("first");
    check_counts(0, 0);
    close_scene();
}

static void test_empty_and_delete_take_the_tombstones(void)
{
    uint64_t id = 0;
    open_with(1);
    for (int i = 0; i < 5; i++)
        id = publish_in_an_hour("old");
    CANCEL(NULL, id, 1);
    check_counts(1, 3);
    CHECK_OK(pn_topic_empty(conn, topic));
    CHECK_EQ(test_inside()->topics.ctl->tombstone_end, own ? 0 : 1);
    CHECK_OK(pn_topic_channel_empty(conn, channel));
    CHECK_EQ(test_inside()->topics.ctl->tombstone_end, 0);
    check_counts(0, 0);
    for (int i = 0; i < 5; i++)
        id = publish_in_an_hour("new");
    CANCEL(NULL, id, 1);
    CHECK_OK(pn_consumer_close(consumer));
    CHECK_OK(pn_topic_delete(conn, topic));
    CHECK_EQ(test_inside()->topics.ctl->tombstone_end, 0);
    topic = topic_with(conn, "t", 1, PN_OVERFLOW_DISK);
    channel = channel_of(conn, topic, "c");
    consumer = consumer_of(conn, channel, 2);
    for (int i = 0; i < 6; i++)
        publish(conn, topic, "another");
    check_counts(1, 5);
    for (int i = 0; i < 6; i++)
        finish_one("another");
    close_scene();
}

static void test_when_there_is_no_place_it_is_said(void)
{
    enum { ONE_BY_ONE = 48 }; /* each goes through the whole queue */
    static uint64_t id[PN_TOMBSTONES + 2];
    open_with(1);
    publish(conn, topic, "first");
    uint64_t front = publish_in_an_hour("front"); /* behind which nothing is passed */
    for (uint32_t i = 0; i < PN_TOMBSTONES + 2; i++)
        id[i] = publish_in_an_hour("x");
    pn_txn *txn = test_begin(conn); /* looks once for all that it cancels */
    for (uint32_t i = ONE_BY_ONE; i < PN_TOMBSTONES; i++)
        CANCEL(txn, id[i], 1);
    CHECK_OK(pn_txn_commit(txn));
    for (uint32_t i = ONE_BY_ONE; i-- > 0;)
        CANCEL(NULL, id[i], 1);
    check_counts(1, 3);
    CANCEL(NULL, id[PN_TOMBSTONES], -PN_ETOPICFULL);
    CHECK(strstr(pn_error_message(), "2048") != NULL);
    txn = test_begin(conn);
    CANCEL(txn, id[PN_TOMBSTONES], 1);
    CHECK_EQ(pn_txn_commit(txn), -PN_ETOPICFULL);
    txn = test_begin(conn);
    CANCEL(txn, id[PN_TOMBSTONES], 1);
    CHECK_EQ(pn_txn_prepare(txn), -PN_ETOPICFULL);
    pn_txn_abort(txn);
    check_counts(1, 3);
    finish_one("first");
    check_counts(1, 2);
    CANCEL(NULL, front, 1); /* in memory by now: all that were cancelled behind it are passed, */
    CHECK_SOON(topic_stat(conn, topic).on_disk == 1); /* some by each caller */
    check_counts(1, 1);
    CANCEL(NULL, id[PN_TOMBSTONES], 1);
    CANCEL(NULL, id[PN_TOMBSTONES + 1], 1);
    check_counts(0, 0);
    close_scene();
}

/* One hold of the lock is not enough for long files; what comes to memory meanwhile is found. */
static void test_a_long_queue_is_looked_through_in_steps(void)
{
    enum { N = 3 * PN_TOPIC_STEPS };
    struct pn_segment *seg;
    struct pn_topic *t;
    struct pn_deferred d = {.begun = false};
    open_with(N);
    for (int i = 0; i < N; i++)
        publish(conn, topic, "x");
    for (int i = 0; i < N - 1; i++)
        publish_in_an_hour("y");
    uint64_t last = publish_in_an_hour("last");
    seg = test_inside();
    CHECK_OK(pn_lock_acquire(seg, &test_hold, PN_LOCK_TIMEOUT_NS));
    t = pn_topic_named_locked(seg, topic);
    CHECK_EQ(pn_deferred_find_locked(seg, t, last, &d), -EAGAIN);
    pn_lock_release(seg);
    for (int i = 0; i < N; i++)
        finish_one("x");
    check_counts(N, 0);
    int rc = -EAGAIN, steps = 0;
    for (; rc == -EAGAIN; steps++) {
        CHECK_OK(pn_lock_acquire(seg, &test_hold, PN_LOCK_TIMEOUT_NS));
        rc = pn_deferred_find_locked(seg, t, last, &d);
        pn_lock_release(seg);
    }
    CHECK_EQ(rc, 1);
    CHECK(d.message != 0);
    for (int i = 0; i < N; i++)
        publish_in_an_hour("z");
    last = publish_in_an_hour("last");
    d = (struct pn_deferred) {.begun = false};
    for (rc = -EAGAIN, steps = 0; rc == -EAGAIN; steps++) {
        CHECK_OK(pn_lock_acquire(seg, &test_hold, PN_LOCK_TIMEOUT_NS));
        rc = pn_deferred_find_locked(seg, t, last, &d);
        pn_lock_release(seg);
    }
    CHECK_EQ(rc, 1);
    CHECK(d.message == 0 && steps == N / PN_TOPIC_STEPS + 1);
    CANCEL(NULL, last, 1);
    CHECK_OK(pn_topic_empty(conn, topic));
    CHECK_OK(pn_topic_channel_empty(conn, channel));
    close_scene();
}

/* A byte of the body of record `i`, of bodies that are all as long as "x". */
static void damage_record(int i)
{
    char name[400];
    DIR *dir = opendir(data_dir);
    for (struct dirent *d; (d = readdir(dir)) != NULL;)
        if (d->d_name[0] != '.')
            snprintf(name, sizeof name, "%s/%s", data_dir, d->d_name);
    closedir(dir);
    struct stat st;
    int fd = open(name, O_RDWR);
    CHECK_OK(fstat(fd, &st));
    off_t each = (st.st_size - PN_RECFILE_START) / 3;
    const off_t at = PN_RECFILE_START + i * each + PN_RECORD_HEADER;
    char byte; /* whatever it is, another one */
    CHECK_EQ(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    CHECK_EQ(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void cancel_one(void *arg)
{
    pn_conn *mine = test_connect(engine);
    CHECK_EQ(pn_topic_cancel(mine, NULL, topic, *(uint64_t *) arg), 1);
    pn_conn_close(mine);
}

static void test_a_cancelled_record_that_is_damaged_is_counted_once(void)
{
    open_with(1);
    publish(conn, topic, "f");
    publish(conn, topic, "1");
    uint64_t id = publish_in_an_hour("2");
    publish(conn, topic, "3");
    CHECK_CHILD(spawn(cancel_one, &id), 0); /* another process: this one has not read the file */
    check_counts(1, 2);
    damage_record(1);
    finish_one("f");
    check_counts(1, 1);
    finish_one("1");
    finish_one("3");
    check_counts(0, 0);
    CHECK_EQ(topic_stat(conn, topic).corrupt, 1);
    CHECK_EQ(topic_stat(conn, topic).message_count, 4);
    close_scene();
}

static void test_consumers_of_other_processes_do_not_see_it(void)
{
    uint64_t id[200];
    char text[16];
    open_with(3);
    CHECK_OK(pn_topic_pause(conn, topic, true)); /* else some of it may be due too early */
    for (int i = 0; i < 200; i++) {
        snprintf(text, sizeof text, "%d", i);
        id[i] = publish_later(text, i % 2 == 0 ? 1 : HOUR * 1000 * MS);
    }
    for (int i = 1; i < 200; i += 2)
        CANCEL(NULL, id[i], 1);
    CHECK_EQ(topic_stat(conn, topic).unfinished, 3);
    CHECK_EQ(topic_stat(conn, topic).on_disk, 97);
    CHECK_EQ(topic_stat(conn, topic).depth, 100);
    CHECK_ENGINE(engine);
    CHECK_OK(pn_topic_pause(conn, topic, false));
    for (int i = 0; i < 200; i += 2) {
        snprintf(text, sizeof text, "%d", i);
        finish_one(text);
    }
    NOTHING(consumer);
    check_counts(0, 0);
    close_scene();
}

static void get_first_and_last(void *arg)
{
    pn_message_out m;
    pn_conn *mine = test_connect(engine);
    pn_consumer *c = consumer_of(mine, channel_of(mine, topic_of(mine, "t"), "c"), 1);
    int ready = *(int *) arg;
    CHECK_EQ(write(ready, "r", 1), 1);
    GET(c, &m, "first");
    FINISH(mine, &m);
    GET(c, &m, "last"); /* no other does anything meanwhile */
    FINISH(mine, &m);
    CHECK_OK(pn_consumer_close(c));
    pn_conn_close(mine);
}

/* No hold of the lock passes all of them, and only the one that waits comes by. */
static void test_a_consumer_gets_what_stands_behind_many_that_are_no_more(void)
{
    int pipes[2];
    char c;
    open_with(1);
    CHECK_OK(pn_consumer_close(consumer));
    CHECK_EQ(pipe(pipes), 0);
    CHECK_OK(pn_topic_channel_pause(conn, channel, true));
    publish(conn, topic, "first");
    for (int i = 0; i < 20 * PN_TOPIC_STEPS; i++)
        CHECK_OK(publish_in(conn, NULL, topic, "gone", 0, 1, NULL));
    publish(conn, topic, "last");
    pid_t pid = spawn(get_first_and_last, &pipes[1]);
    CHECK_EQ(read(pipes[0], &c, 1), 1);
    CHECK_OK(pn_topic_pause(conn, topic, false));
    CHECK_OK(pn_topic_channel_pause(conn, channel, false));
    CHECK_CHILD(pid, 0);
    close(pipes[0]);
    close(pipes[1]);
    consumer = consumer_of(conn, channel, 2);
    check_counts(0, 0);
    CHECK_EQ(topic_stat(conn, topic).expired + channel_stat(conn, channel).expired,
             20 * PN_TOPIC_STEPS);
    close_scene();
}

/* ---- deferred messages that leave memory ---------------------------------------------------- */

static uint32_t places[PN_TOMBSTONES + 1];

/* All that are left. */
static uint32_t take_places(void)
{
    uint32_t n = 0;
    struct pn_topic *t = topic_locked();
    while ((places[n] = pn_tombstone_make_locked(test_inside(), t, PN_TOMB_NOWHERE,
                                                 PN_TOMB_PREPARED, conn)) != 0)
        n++;
    pn_lock_release(test_inside());
    return n;
}

static void free_places(uint32_t n)
{
    topic_locked();
    while (n > 0)
        pn_tombstone_free_locked(test_inside(), places[--n]);
    pn_lock_release(test_inside());
}

static void empty_it(void)
{
    CHECK_OK(pn_topic_channel_empty(conn, channel));
    check_counts(0, 0);
    close_scene();
}

/* All places are taken between prepare and commit, and the message has left memory. */
static void test_what_leaves_memory_after_prepare_is_cancelled_all_the_same(void)
{
    open_with_little_memory();
    uint64_t id = publish_later("cancelled", 2 * HOUR * 1000 * MS);
    pn_txn *txn = test_begin(conn);
    CANCEL(txn, id, 1);
    CHECK_OK(pn_txn_prepare(txn));
    make_it_leave(id);
    uint32_t taken = take_places();
    uint64_t before = channel_stat(conn, channel).deferred;
    CHECK_OK(pn_txn_commit(txn));
    CHECK_EQ(channel_stat(conn, channel).deferred, before - 1);
    CANCEL(NULL, id, 0);
    CHECK_ENGINE(engine);
    free_places(taken);
    empty_it();
}

/* Backlogs of paused topics are in memory, or on disk; then two channels that rest get them. */
static uint64_t publish_to_a_backlog(uint64_t max_depth, pn_ref *other)
{
    static char body[20000];
    memset(body, 'x', sizeof body - 1);
    open_with(max_depth);
    *other = channel_of(conn, topic, "other");
    CHECK_OK(pn_topic_pause(conn, topic, true));
    for (int i = 0; i < 20; i++)
        publish(conn, topic, body);
    return publish_in_an_hour("cancelled");
}

static void make_them_rest(void)
{
    const pn_topic_options o = {.given = PN_TOPIC_MAX_MEMORY, .max_memory = 64 << 10};
    CHECK_OK(pn_topic_configure(conn, topic, &o));
    CHECK_OK(pn_topic_pause(conn, topic, false));
    for (int i = 0; topic_stat(conn, topic).depth != 0; i++) { /* each call gives on some */
        CHECK(i < 1000);
        topic_stat(conn, topic);
        CHECK_OK(pn_topic_pause(conn, topic, false));
    }
}

static void check_cancelled_in_rest(uint64_t max_depth, bool prepared)
{
    pn_ref other;
    uint64_t id = publish_to_a_backlog(max_depth, &other);
    pn_txn *txn = test_begin(conn);
    CANCEL(txn, id, 1);
    if (prepared)
        CHECK_OK(pn_txn_prepare(txn));
    make_them_rest();
    CHECK_EQ(has(channel) + has(other), 2 * 21);
    CHECK_OK(pn_txn_commit(txn));
    CHECK_EQ(has(channel) + has(other), 2 * 20);
    CANCEL(NULL, id, 0);
    CHECK_ENGINE(engine);
    CHECK_OK(pn_topic_channel_empty(conn, channel));
    CHECK_OK(pn_topic_channel_empty(conn, other));
    close_scene();
}

static void test_what_went_to_channels_that_rest_is_cancelled_all_the_same(void)
{
    check_cancelled_in_rest(0, false);
    check_cancelled_in_rest(1, false);
    check_cancelled_in_rest(0, true);
    check_cancelled_in_rest(1, true);
}

/* ---- in files of several kinds --------------------------------------------------------------- */

/* Of the one channel that is left; in front of its record is that of a channel that is gone. */
static void test_what_deleted_channels_had_is_passed_over(void)
{
    static char body[401];
    memset(body, 'x', sizeof body - 1);
    open_with_little_memory();
    pn_ref idle = make_one_rest("idle"), slow = make_one_rest("slow");
    uint64_t id = publish_later("cancelled", 2 * HOUR * 1000 * MS);
    make_it_leave(id);
    catch_up(slow);
    make_it_leave(id);
    for (int i = 0; i < 1500; i++) { /* slow rests again */
        publish(conn, topic, body);
        finish_one(body);
    }
    CHECK_OK(pn_consumer_close(consumer));
    CHECK_OK(pn_topic_channel_delete(conn, channel));
    CHECK_OK(pn_topic_channel_delete(conn, idle));
    const uint64_t had = has(slow);
    CANCEL(NULL, id, 1);
    CHECK_EQ(has(slow), had - 1);
    CANCEL(NULL, id, 0);
    CHECK_OK(pn_topic_channel_empty(conn, slow));
    channel = slow;
    consumer = consumer_of(conn, slow, 1);
    close_scene();
}

/* In a transaction; on a busy machine it may be due before that, and then another is later. */
static pn_txn *cancel_what_is_due_soon(void)
{
    for (int64_t delay = 20 * MS;; delay *= 4) {
        const uint64_t id = publish_later("soon", delay);
        pn_txn *txn = test_begin(conn);
        const int rc = pn_topic_cancel(conn, txn, topic, id);
        if (rc == 1)
            return txn;
        CHECK_EQ(rc, 0);
        CHECK(delay < 10000 * MS);
        pn_txn_abort(txn);
        CHECK_OK(pn_topic_channel_empty(conn, channel));
    }
}

/* What the call alone goes by: its message may fall due while its commit waits for room. */
static void test_a_commit_says_whether_its_cancel_ended_something(void)
{
    size_t cancelled = 7;
    open_with_little_memory();
    pn_txn *txn = cancel_what_is_due_soon();
    txn->cancelled = &cancelled;
    const uint64_t later = publish_in_an_hour("later");
    CHECK_SOON(channel_stat(conn, channel).depth == 1);
    CHECK_OK(pn_txn_commit(txn));
    CHECK_EQ(cancelled, 0);
    txn = test_begin(conn);
    txn->cancelled = &cancelled;
    CANCEL(txn, later, 1);
    CHECK_OK(pn_txn_commit(txn));
    CHECK_EQ(cancelled, 1);
    CHECK_OK(pn_topic_channel_empty(conn, channel));
    close_scene();
}

static void most(uint64_t bytes)
{
    const pn_topic_options o = {.given = PN_TOPIC_MAX_MEMORY, .max_memory = bytes};
    CHECK_OK(pn_topic_configure(conn, topic, &o));
}

/* The pump gives on some with each call. */
static void pump(void)
{
    CHECK_OK(pn_topic_pause(conn, topic, false));
    for (int i = 0; i < 50; i++) {
        topic_stat(conn, topic);
        CHECK_OK(pn_topic_pause(conn, topic, false));
    }
}

static uint64_t commits_of(pn_engine *of)
{
    pn_stat stat;
    CHECK_OK(pn_engine_stat(of, &stat, NULL, 0));
    return stat.commits;
}

/* It was one message in a backlog, of a topic with one channel: the transaction's cancel was one
 * operation.  When it commits, two channels have it, each in a file; it is prepared before, or
 * after the second is made, or after both got it. */
static void check_channels_made_after_the_cancel(bool prepares, bool moved_before)
{
    static char body[2001];
    memset(body, 'x', sizeof body - 1);
    open_with(0);
    CHECK_OK(pn_topic_pause(conn, topic, true));
    for (int i = 0; i < 200; i++)
        publish(conn, topic, body);
    uint64_t id = publish_later("cancelled", 2 * HOUR * 1000 * MS), before, after;
    pn_txn *txn = test_begin(conn);
    CHECK_OK(publish_in(conn, txn, topic, "before", HOUR * 1000 * MS, 0, &before));
    CANCEL(txn, id, 1);
    CHECK_EQ(txn->pending.nops, 2);
    CHECK_OK(pn_txn_savepoint(txn));
    CHECK_OK(publish_in(conn, txn, topic, "after", HOUR * 1000 * MS, 0, &after));
    pn_ref idle = channel_of(conn, topic, "idle");
    if (prepares && !moved_before)
        CHECK_OK(pn_txn_prepare(txn));
    most(128 << 10);
    pump();
    catch_up(channel);
    make_it_leave(id);
    if (prepares && moved_before)
        CHECK_OK(pn_txn_prepare(txn));
    CHECK_EQ(records_of(id, pn_rest_look_locked), 1);
    CHECK_EQ(records_of(id, pn_later_look_locked), 1);
    const uint64_t c = has(channel), idles = has(idle);
    CHECK_OK(pn_txn_commit(txn));
    CHECK_EQ(records_of(id, pn_rest_look_locked) + records_of(id, pn_later_look_locked), 0);
    pump();
    CHECK_EQ(has(channel), c - 1 + 2);
    CHECK_EQ(has(idle), idles - 1 + 2);
    CANCEL(NULL, id, 0);
    CANCEL(NULL, before, 1);
    CANCEL(NULL, after, 1);
    CHECK_OK(pn_topic_channel_empty(conn, idle));
    CHECK_OK(pn_topic_channel_empty(conn, channel));
    close_scene();
}

static void test_channels_made_after_the_cancel_lose_it_too(void)
{
    check_channels_made_after_the_cancel(false, false);
    check_channels_made_after_the_cancel(true, false);
    check_channels_made_after_the_cancel(true, true);
}

static void put_off(pn_ref ch, int64_t delay)
{
    pn_message_out m;
    pn_consumer *k = consumer_of(conn, ch, 1);
    GET(k, &m, "wanted");
    CHECK_OK(answer(conn, NULL, &m, PN_ANSWER_REQUEUE, delay));
    CHECK_OK(pn_consumer_close(k));
}

/* Each channel has put it off; that of the one that is read is due when there is no room for the
 * others, which find theirs in a file: deferred for hours, so it can be cancelled. */
static void test_what_others_have_put_off_is_cancelled(void)
{
    static char body[401];
    pn_message_out m;
    memset(body, 'x', sizeof body - 1);
    open_with_little_memory();
    pn_ref idle = channel_of(conn, topic, "idle"), third = channel_of(conn, topic, "third");
    uint64_t id = publish(conn, topic, "wanted");
    put_off(channel, 1000 * MS);
    put_off(idle, HOUR * 1000 * MS);
    put_off(third, 2LL * HOUR * 1000 * MS);
    for (int i = 0; i < 900; i++) {
        publish(conn, topic, body);
        finish_one(body);
    }
    CHECK_EQ(records_of(id, pn_later_look_locked), 1);
    GET(consumer, &m, "wanted");
    FINISH(conn, &m);
    CHECK_EQ(records_of(id, pn_rest_look_locked), 1);
    const uint64_t idles = has(idle), thirds = has(third);
    CANCEL(NULL, id, 1);
    CHECK_EQ(records_of(id, pn_rest_look_locked), 0);
    catch_up(idle);
    catch_up(third);
    CHECK_EQ(has(idle) + has(third), 0);
    CHECK(idles == 901 && thirds == 901);
    CANCEL(NULL, id, 0);
    close_scene();
}

static void take_memory(void *arg)
{
    const uint64_t *id = arg;
    conn = test_connect(engine);
    consumer = consumer_of(conn, channel, 2);
    make_one_rest("idle");
    CHECK_OK(pn_consumer_close(consumer));
    make_it_leave(*id);
    pn_conn_close(conn);
}

/* Whether it is in a file is not known to a commit that cannot open it. */
static void test_a_commit_that_cannot_look_into_files_fails(void)
{
    struct rlimit limit, low;
    open_with_little_memory();
    uint64_t id = publish_later("cancelled", 2 * HOUR * 1000 * MS), other;
    CHECK_OK(pn_consumer_close(consumer));
    pn_txn *txn = test_begin(conn);
    CHECK_OK(publish_in(conn, txn, topic, "of the same transaction", HOUR * 1000 * MS, 0, &other));
    CANCEL(txn, id, 1);
    CHECK_CHILD(spawn(take_memory, &id), 0);
    const uint64_t had = has(channel);
    CHECK_OK(getrlimit(RLIMIT_NOFILE, &limit));
    low = limit;
    low.rlim_cur = 3;
    CHECK_OK(setrlimit(RLIMIT_NOFILE, &low));
    CHECK_EQ(pn_txn_commit(txn), -EMFILE);
    CHECK_OK(setrlimit(RLIMIT_NOFILE, &limit));
    CHECK_EQ(has(channel), had);
    CANCEL(NULL, other, 0);
    CANCEL(NULL, id, 1);
    CHECK_EQ(has(channel), had - 1);
    consumer = consumer_of(conn, channel, 2);
    CHECK_OK(pn_topic_channel_empty(conn, channel_of(conn, topic, "idle")));
    empty_it();
}

/* Its record stands behind many, all of which were written after the cancel: the commit looks at
 * them in several holds of the lock. */
static void test_a_commit_looks_at_many_records(void)
{
    static char body[401];
    memset(body, 'x', sizeof body - 1);
    open_with_little_memory();
    pn_ref idle = make_one_rest("idle");
    uint64_t id = publish_later("cancelled", HOUR / 2 * 1000 * MS), other;
    pn_txn *txn = test_begin(conn);
    CHECK_OK(publish_in(conn, txn, topic, "of the same transaction", HOUR * 1000 * MS, 0, &other));
    CANCEL(txn, id, 1);
    for (int i = 0; i < 1500; i++)
        publish_in_an_hour(body);
    for (int i = 0; i < 3000 && is_in_memory(id); i++)
        publish_later(body, HOUR / 4 * 1000 * MS);
    CHECK_EQ(records_of(id, pn_later_look_locked), 1);
    const uint64_t c = has(channel), idles = has(idle), commits = commits_of(engine);
    CHECK_OK(pn_txn_commit(txn));
    CHECK_EQ(commits_of(engine), commits + 1);
    CHECK_EQ(has(channel), c);
    CHECK_EQ(has(idle), idles);
    CANCEL(NULL, id, 0);
    CANCEL(NULL, other, 1);
    CHECK_OK(pn_topic_channel_empty(conn, idle));
    empty_it();
}

/* The files take several holds of the lock.  Between two of them it goes from the backlog, in
 * memory, to a file that was looked through. */
static void test_what_leaves_the_backlog_while_it_is_looked_for_is_found(void)
{
    static char body[20001];
    struct pn_deferred d = {.begun = false};
    memset(body, 'x', sizeof body - 1);
    open_with(0);
    most(128 << 10);
    pn_ref idle = make_one_rest("idle");
    body[400] = '\0';
    for (int i = 0; i < 1500; i++)
        publish_in_an_hour(body);
    body[400] = 'x';
    catch_up(idle);
    most(4 << 20);
    pump();
    CHECK_OK(pn_topic_pause(conn, topic, true));
    for (int i = 0; i < 20; i++)
        publish(conn, topic, body);
    uint64_t id = publish_later("cancelled", 2 * HOUR * 1000 * MS);
    int rc = pn_deferred_find_locked(test_inside(), topic_locked(), id, &d);
    pn_lock_release(test_inside());
    CHECK_EQ(rc, -EAGAIN);
    CHECK_EQ(d.queue, PN_LATER_SEQ);
    CHECK(is_in_memory(id));
    most(64 << 10);
    pump();
    CHECK_EQ(records_of(id, pn_rest_look_locked), 1);
    for (int i = 0; rc == -EAGAIN; i++) {
        CHECK(i < 100);
        rc = pn_deferred_find_locked(test_inside(), topic_locked(), id, &d);
        pn_lock_release(test_inside());
    }
    CHECK_EQ(rc, 1);
    CHECK(d.on_disk && (d.seq & PN_REST_SEQ) != 0);
    CHECK_OK(pn_topic_channel_empty(conn, idle));
    CHECK_OK(pn_topic_channel_empty(conn, channel));
    close_scene();
}

enum how { ALONE, IN_A_TRANSACTION, PREPARED };

/*
 * Channel c has it in `later`, and an idle one in `rest`; `twice`: a third one, which rested and
 * has caught up, has it in `later` too, in a record of its own.  `moves`: all that comes about
 * between the cancel and the commit.
 */
static void check_cancelled_everywhere(enum how how, bool moves, bool twice)
{
    open_with_little_memory();
    pn_ref idle = make_one_rest("idle"), slow = twice ? make_one_rest("slow") : idle;
    uint64_t id = publish_later("cancelled", 2 * HOUR * 1000 * MS);
    pn_txn *txn = how == ALONE ? NULL : test_begin(conn);
    if (moves)
        CANCEL(txn, id, 1);
    if (moves && how == PREPARED)
        CHECK_OK(pn_txn_prepare(txn));
    make_it_leave(id);
    if (twice) {
        catch_up(slow);
        make_it_leave(id);
    }
    const uint64_t deferred = channel_stat(conn, channel).deferred, slows = has(slow);
    const uint64_t idles = has(idle);
    CHECK_EQ(records_of(id, pn_later_look_locked), twice ? 2 : 1);
    CHECK_EQ(records_of(id, pn_rest_look_locked), 1);
    if (!moves)
        CANCEL(txn, id, 1);
    if (!moves && how == PREPARED)
        CHECK_OK(pn_txn_prepare(txn));
    const uint32_t taken = how == PREPARED ? take_places() : 0; /* it has its own */
    if (txn != NULL)
        CHECK_OK(pn_txn_commit(txn));
    free_places(taken);
    CHECK_EQ(channel_stat(conn, channel).deferred, deferred - 1);
    CHECK_EQ(has(idle), idles - 1);
    CHECK_EQ(has(slow), slows - 1);
    CANCEL(NULL, id, 0);
    CHECK_ENGINE(engine);
    CHECK_OK(pn_topic_channel_empty(conn, idle));
    CHECK_OK(pn_topic_channel_empty(conn, slow));
    empty_it();
}

static void test_what_is_in_files_of_several_kinds_is_cancelled_in_all(void)
{
    for (int twice = 0; twice < 2; twice++) {
        check_cancelled_everywhere(ALONE, false, twice);
        for (int moves = 0; moves < 2; moves++) {
            check_cancelled_everywhere(IN_A_TRANSACTION, moves, twice);
            check_cancelled_everywhere(PREPARED, moves, twice);
        }
    }
}

static void test_prepare_says_that_there_is_no_place_for_what_may_leave_memory(void)
{
    open_with_little_memory();
    uint64_t id = publish_later("kept", 2 * HOUR * 1000 * MS);
    CHECK_EQ(take_places(), PN_TOMBSTONES);
    pn_txn *txn = test_begin(conn);
    CANCEL(txn, id, 1);
    CHECK_EQ(pn_txn_prepare(txn), -PN_ETOPICFULL);
    CHECK(strstr(pn_error_message(), "2048") != NULL);
    pn_txn_abort(txn);
    free_places(PN_TOMBSTONES);
    txn = test_begin(conn); /* its place goes with it, and with a commit that does not need it */
    CANCEL(txn, id, 1);
    CHECK_OK(pn_txn_prepare(txn));
    pn_txn_abort(txn);
    CHECK_EQ(test_inside()->topics.ctl->tombstone_end, 0);
    txn = test_begin(conn);
    CANCEL(txn, id, 1);
    CHECK_OK(pn_txn_prepare(txn));
    CHECK_OK(pn_txn_commit(txn));
    CHECK_EQ(test_inside()->topics.ctl->tombstone_end, 0);
    CANCEL(NULL, id, 0);
    empty_it();
}

int main(void)
{
    data_dir_make();
    test_watchdog(100);
    RUN_BOTH(test_a_message_on_disk_is_cancelled_and_counted_no_more);
    RUN_BOTH(test_what_is_first_on_disk_goes_at_once);
    RUN_BOTH(test_only_what_is_deferred_can_be_cancelled);
    RUN_BOTH(test_in_a_transaction_it_is_at_commit);
    RUN_BOTH(test_what_happens_before_the_commit_counts);
    RUN_BOTH(test_a_prepared_transaction_keeps_its_place);
    RUN_BOTH(test_what_a_dead_process_had_prepared_is_as_before);
    RUN_BOTH(test_empty_and_delete_take_the_tombstones);
    RUN(test_when_there_is_no_place_it_is_said); /* of both queues one, as it is a long test */
    RUN_BOTH(test_a_long_queue_is_looked_through_in_steps);
    RUN_BOTH(test_a_cancelled_record_that_is_damaged_is_counted_once);
    RUN(test_consumers_of_other_processes_do_not_see_it);
    RUN_BOTH(test_a_consumer_gets_what_stands_behind_many_that_are_no_more);
    RUN(test_what_leaves_memory_after_prepare_is_cancelled_all_the_same);
    RUN(test_what_went_to_channels_that_rest_is_cancelled_all_the_same);
    RUN(test_what_deleted_channels_had_is_passed_over);
    RUN(test_a_commit_says_whether_its_cancel_ended_something);
    RUN(test_channels_made_after_the_cancel_lose_it_too);
    RUN(test_what_others_have_put_off_is_cancelled);
    RUN(test_a_commit_that_cannot_look_into_files_fails);
    RUN(test_a_commit_looks_at_many_records);
    RUN(test_what_leaves_the_backlog_while_it_is_looked_for_is_found);
    RUN(test_what_is_in_files_of_several_kinds_is_cancelled_in_all);
    RUN(test_prepare_says_that_there_is_no_place_for_what_may_leave_memory);
    return tests_done();
}
