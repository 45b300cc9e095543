/*
 * test_topic_cancel.c - the end of deferred messages that are on disk, for want of memory: alone,
 * in transactions and prepared ones; what there is then, exactly; and when there is no more room
 * for saying so.  What is on disk is the channel's (topic/rest.c), and then, of a topic that is
 * paused until something is to be got from it, the topic's own (topic/overflow.c).
 */
#include "cancel_scene.h"
#include "files/record_file.h"
#include "topic/tombstones.h"

#define RUN_BOTH(test)                                                                             \
    do {                                                                                           \
        RUN(test);                                                                                 \
        own = true;                                                                                \
        RUN(test);                                                                                 \
        own = false;                                                                               \
    } while (0)

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
    return tests_done();
}
