/*
 * test_topic_durable.c - durable topics: what is in them is there again when the segment was
 * removed, as after a reboot: messages, attempts, delays, answers, channels, pauses.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "data_dirs.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "topics.h"

static pn_engine *engine;
static pn_conn *conn;
static pn_ref topic, channel;
static pn_consumer *consumer;
static const char *name;

static pn_ref durable_topic(const char *text, uint64_t max_depth)
{
    const pn_topic_options o = {.given = PN_TOPIC_DURABLE | PN_TOPIC_FSYNC | PN_TOPIC_MAX_DEPTH,
                                .durable = 1,
                                .fsync = PN_FSYNC_NONE,
                                .max_depth = max_depth};
    pn_ref ref;
    CHECK_OK(pn_topic_open(conn, text, strlen(text), &o, &ref));
    return ref;
}

static void attach(void)
{
    pn_options o = test_options();
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    CHECK_OK(pn_open(name, &o, &engine));
    conn = test_connect(engine);
}

static void detach(void)
{
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static void open_with(uint64_t max_depth)
{
    data_dir_empty();
    name = test_segment_name();
    attach();
    topic = durable_topic("t", max_depth);
    channel = channel_of(conn, topic, "c");
    consumer = consumer_of(conn, channel, 5);
}

/* Nothing is closed before; what the process writes afterwards does not count. */
static void reboot(void)
{
    pn_engine *old_engine = engine;
    pn_conn *old_conn = conn;
    pn_consumer *old_consumer = consumer;
    CHECK_ENGINE(engine);
    test_segment_remove(name);
    attach();
    topic = topic_of(conn, "t");
    pn_consumer_close(old_consumer);
    pn_conn_close(old_conn);
    pn_engine_close(old_engine);
    channel = channel_of(conn, topic, "c");
    consumer = consumer_of(conn, channel, 5);
    CHECK_ENGINE(engine);
}

static void close_scene(void)
{
    CHECK_ENGINE(engine);
    CHECK_OK(pn_consumer_close(consumer));
    pn_remove_spill_files(engine);
    detach();
}

static void publish_numbers(int first, int last)
{
    char text[16];
    for (int i = first; i <= last; i++) {
        snprintf(text, sizeof text, "%d", i);
        publish(conn, topic, text);
    }
}

static void finish_numbers(int first, int last)
{
    pn_message_out m;
    char text[16];
    for (int i = first; i <= last; i++) {
        snprintf(text, sizeof text, "%d", i);
        GET(consumer, &m, text);
        FINISH(conn, &m);
    }
}

static void finish_text(const char *text)
{
    pn_message_out m;
    GET(consumer, &m, text);
    FINISH(conn, &m);
}

static void test_messages_and_answers_survive(void)
{
    pn_message_out m;
    open_with(0);
    publish_numbers(1, 20);
    finish_numbers(1, 5);
    GET(consumer, &m, "6"); /* in flight */
    reboot();
    CHECK_EQ(topic_stat(conn, topic).durable, 1);
    CHECK_EQ(topic_stat(conn, topic).unfinished, 15);
    GET(consumer, &m, "6");
    CHECK_EQ(m.attempts, 2);
    FINISH(conn, &m);
    finish_numbers(7, 10);
    publish_numbers(21, 22);
    reboot();
    finish_numbers(11, 22);
    NOTHING(consumer);
    reboot();
    CHECK_EQ(topic_stat(conn, topic).unfinished, 0);
    close_scene();
}

static void test_delays_and_attempts_survive(void)
{
    pn_message_out m;
    uint64_t later, soon;
    open_with(0);
    CHECK_OK(publish_in(conn, NULL, topic, "soon", 200 * MS, 0, &soon));
    CHECK_OK(publish_in(conn, NULL, topic, "later", 3600000 * MS, 0, &later));
    CHECK_OK(publish_in(conn, NULL, topic, "expires", 0, 1, NULL));
    publish(conn, topic, "again");
    GET(consumer, &m, "again");
    CHECK_OK(answer(conn, NULL, &m, PN_ANSWER_REQUEUE, 0));
    reboot();
    CHECK_EQ(channel_stat(conn, channel).deferred >= 1, 1);
    GET(consumer, &m, "again");
    CHECK_EQ(m.attempts, 2);
    FINISH(conn, &m);
    GET(consumer, &m, "soon");
    CHECK_EQ(m.id, soon);
    CHECK_EQ(m.attempts, 1);
    FINISH(conn, &m);
    NOTHING(consumer);
    CHECK_EQ(pn_topic_cancel(conn, NULL, topic, later), 1);
    reboot();
    CHECK_EQ(topic_stat(conn, topic).unfinished, 0);
    close_scene();
}

static void test_channels_and_pauses_survive(void)
{
    pn_message_out m;
    open_with(0);
    pn_ref other = channel_of(conn, topic, "other"), gone = channel_of(conn, topic, "gone");
    publish_numbers(1, 2);
    CHECK_OK(pn_topic_channel_pause(conn, other, 1));
    CHECK_OK(pn_topic_channel_delete(conn, gone));
    CHECK_OK(pn_topic_pause(conn, topic, 1));
    publish_numbers(3, 4);
    finish_numbers(1, 2);
    reboot();
    CHECK_EQ(topic_stat(conn, topic).paused, 1);
    CHECK_EQ(topic_stat(conn, topic).channels, 2);
    CHECK_EQ(topic_stat(conn, topic).depth, 2);
    other = channel_of(conn, topic, "other");
    CHECK_EQ(channel_stat(conn, other).paused, 1);
    CHECK_EQ(channel_stat(conn, other).depth, 2);
    NOTHING(consumer);
    CHECK_OK(pn_topic_pause(conn, topic, 0));
    finish_numbers(3, 4);
    reboot();
    NOTHING(consumer);
    other = channel_of(conn, topic, "other");
    CHECK_EQ(channel_stat(conn, other).depth, 4);
    CHECK_OK(pn_topic_channel_empty(conn, other));
    reboot();
    CHECK_EQ(topic_stat(conn, topic).unfinished, 0);
    CHECK_OK(pn_topic_channel_pause(conn, channel_of(conn, topic, "other"), 0));
    publish_numbers(9, 9);
    GET(consumer, &m, "9");
    close_scene();
}

static void test_transactions_survive_whole(void)
{
    pn_message_out m;
    open_with(3);
    publish_numbers(1, 1);
    GET(consumer, &m, "1");
    pn_txn *txn = test_begin(conn);
    for (int i = 2; i <= 9; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", i);
        CHECK_OK(publish_in(conn, txn, topic, text, 0, 0, NULL));
    }
    CHECK_OK(answer(conn, txn, &m, PN_ANSWER_FINISH, 0));
    CHECK_OK(pn_txn_commit(txn));
    txn = test_begin(conn);
    CHECK_OK(publish_in(conn, txn, topic, "never", 0, 0, NULL));
    pn_txn_abort(txn);
    reboot();
    finish_numbers(2, 9);
    NOTHING(consumer);
    close_scene();
}

static void test_what_is_on_disk_for_lack_of_memory_survives(void)
{
    open_with(4);
    publish_numbers(1, 100);
    finish_numbers(1, 30);
    reboot();
    finish_numbers(31, 50);
    reboot();
    publish_numbers(101, 110);
    finish_numbers(51, 110);
    NOTHING(consumer);
    reboot();
    NOTHING(consumer);
    close_scene();
}

/* Its place is that of its id, which publish() gave to it; and so it is in a transaction. */
static void test_after_a_reboot_the_order_is_that_of_publishing(void)
{
    pn_message_out m;
    open_with(0);
    pn_txn *txn = test_begin(conn);
    CHECK_OK(publish_in(conn, txn, topic, "committed last", 0, 0, NULL));
    publish_numbers(1, 3);
    CHECK_OK(pn_txn_commit(txn));
    GET(consumer, &m, "1");
    CHECK_OK(answer(conn, NULL, &m, PN_ANSWER_REQUEUE, 0));
    GET(consumer, &m, "2");
    CHECK_OK(answer(conn, NULL, &m, PN_ANSWER_REQUEUE, 0));
    GET(consumer, &m, "3");
    CHECK_OK(answer(conn, NULL, &m, PN_ANSWER_RELEASE, 0));
    reboot(); /* they were 3, committed last, 1, 2 */
    finish_text("committed last");
    GET(consumer, &m, "1");
    CHECK_EQ(m.attempts, 2);
    FINISH(conn, &m);
    finish_numbers(2, 3);
    NOTHING(consumer);
    close_scene();
}

/* It has a lower id than what was given to the channels before it, when there was one less. */
static void test_what_was_committed_late_is_given_to_those_there_then(void)
{
    pn_message_out m;
    open_with(2);
    pn_txn *txn = test_begin(conn);
    CHECK_OK(publish_in(conn, txn, topic, "late", 0, 0, NULL));
    publish_numbers(1, 3);
    CHECK_OK(pn_topic_pause(conn, topic, true));
    CHECK_OK(pn_txn_commit(txn));
    CHECK_EQ(topic_stat(conn, topic).on_disk, 2);
    finish_numbers(1, 1);
    CHECK_EQ(topic_stat(conn, topic).on_disk, 1);
    channel_of(conn, topic, "other");
    CHECK_OK(pn_topic_pause(conn, topic, false));
    finish_numbers(2, 2);
    CHECK_EQ(topic_stat(conn, topic).depth, 0); /* for the first channel it is on disk still */
    reboot();
    finish_text("late");
    finish_numbers(3, 3);
    NOTHING(consumer);
    pn_consumer *others = consumer_of(conn, channel_of(conn, topic, "other"), 5);
    GET(others, &m, "late");
    FINISH(conn, &m);
    NOTHING(others);
    CHECK_OK(pn_consumer_close(others));
    close_scene();
}

/* What comes after it in the log counts, also while much of it is to be freed. */
static void test_an_emptied_channel_stays_empty(void)
{
    pn_message_out m;
    open_with(0);
    pn_ref other = channel_of(conn, topic, "other");
    publish_numbers(1, 20);
    GET(consumer, &m, "1");
    CHECK_OK(pn_topic_channel_empty(conn, channel));
    publish_numbers(21, 22);
    reboot();
    finish_numbers(21, 22);
    NOTHING(consumer);
    other = channel_of(conn, topic, "other");
    CHECK_EQ(channel_stat(conn, other).depth, 22);
    close_scene();
}

static void test_topics_are_listed_before_one_is_opened(void)
{
    pn_topic_stats rows[4];
    open_with(0);
    publish_numbers(1, 3);
    CHECK_OK(pn_consumer_close(consumer));
    test_segment_remove(name);
    detach();
    attach();
    CHECK_EQ(pn_topic_list(conn, rows, 4), 1);
    CHECK_STR(rows[0].name, "t");
    CHECK_EQ(rows[0].unfinished, 3);
    topic = topic_of(conn, "t");
    CHECK_OK(pn_topic_delete(conn, topic));
    test_segment_remove(name);
    detach();
    attach();
    CHECK_EQ(pn_topic_list(conn, rows, 4), 0);
    detach();
}

/* Instead of libc's: what another process does while this one waits for it. */
static void (*while_waiting)(void);
int nanosleep(const struct timespec *pause, struct timespec *left)
{
    if (while_waiting != NULL)
        while_waiting();
    return (int) syscall(SYS_nanosleep, pause, left);
}

static int gate;
static void leave_the_gate(void)
{
    while_waiting = NULL;
    CHECK_OK(close(gate));
}

/* Of two processes that open a log at once one looks at its record first; the other waits. */
static void test_a_process_that_opens_waits_for_another_that_does(void)
{
    struct flock first = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    char path[512];
    open_with(0);
    CHECK_OK(pn_consumer_close(consumer));
    detach();
    snprintf(path, sizeof path, "%s/%s/lock", data_dir, name);
    gate = open(path, O_RDWR | O_CLOEXEC);
    CHECK(gate >= 0);
    CHECK_OK(fcntl(gate, F_OFD_SETLK, &first));
    attach();
    while_waiting = leave_the_gate;
    topic = durable_topic("t", 0);
    CHECK(while_waiting == NULL);
    consumer = consumer_of(conn, channel_of(conn, topic, "c"), 5);
    close_scene();
}

/* Instead of libc's: the file that a full disk does not allow to be written over. */
static ino_t no_room_in;
ssize_t pwritev(int fd, const struct iovec *iov, int n, off_t at)
{
    struct stat st;
    if (no_room_in == 0 || fstat(fd, &st) != 0 || st.st_ino != no_room_in)
        return syscall(SYS_pwritev, fd, iov, n, at, 0);
    errno = ENOSPC;
    return -1;
}

static void another_process(void *arg)
{
    (void) arg;
    pn_conn *mine = test_connect(engine);
    publish(mine, topic_of(mine, "t"), "3");
    pn_conn_close(mine);
}

/* As reboot(), but no process still has the unlinked segment. */
static void end_and_open_again(void)
{
    CHECK_OK(pn_consumer_close(consumer));
    test_segment_remove(name);
    detach();
    attach();
    topic = topic_of(conn, "t"); /* a file is made, before which the record is looked at */
    channel = channel_of(conn, topic, "c");
    consumer = consumer_of(conn, channel, 5);
}

/* One that copies on write: the record of the segment before is not left there (dirlock.c 7). */
static void test_a_full_disk_leaves_the_lock_to_its_holder(void)
{
    char path[512];
    struct stat st;
    open_with(0);
    publish_numbers(1, 1);
    snprintf(path, sizeof path, "%s/%s/lock", data_dir, name);
    CHECK_OK(stat(path, &st));
    no_room_in = st.st_ino;
    end_and_open_again();
    publish_numbers(2, 2);
    CHECK_CHILD(spawn(another_process, NULL), 0);
    no_room_in = 0;
    end_and_open_again(); /* of a record that is empty none knows that its owner was unlinked */
    finish_numbers(1, 3);
    close_scene();
}

/* Instead of libc's: a disk that cannot be written, so many times; and what else happens then. */
static int broken_syncs, syncs_seen;
static void (*while_syncing)(void);
int fdatasync(int fd)
{
    syncs_seen++;
    if (while_syncing != NULL)
        while_syncing();
    if (broken_syncs == 0)
        return (int) syscall(SYS_fdatasync, fd);
    broken_syncs--;
    errno = EIO;
    return -1;
}

static struct pn_topiclog *the_log(void)
{
    return &test_inside()->topics.ctl->log;
}

static void open_synced(void)
{
    const pn_topic_options o = {
        .given = PN_TOPIC_DURABLE | PN_TOPIC_FSYNC, .durable = 1, .fsync = PN_FSYNC_ALWAYS};
    data_dir_empty();
    name = test_segment_name();
    attach();
    CHECK_OK(pn_topic_open(conn, "t", 1, &o, &topic));
    channel = channel_of(conn, topic, "c");
    consumer = consumer_of(conn, channel, 5);
    publish(conn, topic, "a");
    CHECK_EQ(pn_load_relaxed(&the_log()->synced), pn_load_relaxed(&the_log()->written));
}

static void test_what_is_no_errno_has_words(void)
{
    open_with(0);
    pn_store_relaxed(&the_log()->queue.error, PN_EDATADIR);
    CHECK_STR(topic_stat(conn, topic).error, "the log is another segment's");
    pn_store_relaxed(&the_log()->queue.error, PN_EGONE);
    CHECK_STR(topic_stat(conn, topic).error, "the segment was unlinked");
    pn_store_relaxed(&the_log()->queue.error, 0);
    close_scene();
}

static void test_a_sync_that_fails_once_is_made_up_for(void)
{
    open_synced();
    uint64_t compactions = the_log()->compactions;
    broken_syncs = 1;
    publish(conn, topic, "b");
    CHECK_EQ(broken_syncs, 0);
    CHECK_EQ(the_log()->compactions, compactions + 1);
    CHECK_EQ(pn_load_relaxed(&the_log()->synced), pn_load_relaxed(&the_log()->written));
    CHECK_EQ(topic_stat(conn, topic).error[0], 0);
    reboot();
    CHECK_EQ(topic_stat(conn, topic).unfinished, 2);
    close_scene();
}

static void test_a_sync_that_keeps_failing_is_told(void)
{
    pn_message_out m;
    open_synced();
    broken_syncs = 1000;
    CHECK_EQ(publish_in(conn, NULL, topic, "b", 0, 0, NULL), -PN_ESYNC);
    CHECK(strstr(pn_error_message(), data_dir) != NULL);
    CHECK(strstr(pn_error_message(), strerror(EIO)) != NULL);
    CHECK_EQ(topic_stat(conn, topic).unfinished, 2); /* it has happened */
    CHECK(strcmp(topic_stat(conn, topic).error, strerror(EIO)) == 0);
    GET(consumer, &m, "a"); /* the consumer was promised nothing */
    CHECK_EQ(answer(conn, NULL, &m, PN_ANSWER_FINISH, 0), -PN_ESYNC);
    GET(consumer, &m, "b");
    pn_txn *txn = test_begin(conn);
    CHECK_OK(publish_in(conn, txn, topic, "c", 0, 0, NULL));
    CHECK_OK(answer(conn, txn, &m, PN_ANSWER_FINISH, 0));
    CHECK_EQ(pn_txn_commit(txn), -PN_ESYNC);
    CHECK_EQ(pn_topic_pause(conn, topic, 1), -PN_ESYNC);
    broken_syncs = 0;
    CHECK_OK(pn_topic_pause(conn, topic, 0));
    CHECK_EQ(pn_load_relaxed(&the_log()->synced), pn_load_relaxed(&the_log()->written));
    CHECK_EQ(topic_stat(conn, topic).error[0], 0);
    reboot();
    finish_text("c");
    NOTHING(consumer);
    close_scene();
}

/* What another process does between its failed sync, which takes the error away, and ours. */
static void that_of_another_fails(void)
{
    while_syncing = NULL;
    pn_store_relaxed(&the_log()->failed, EIO);
    pn_fetch_add_relaxed(&the_log()->failures, 1);
}

static void test_a_sync_that_failed_for_another_has_failed(void)
{
    open_synced();
    uint64_t compactions = the_log()->compactions;
    while_syncing = that_of_another_fails;
    publish(conn, topic, "b");
    CHECK(while_syncing == NULL);
    CHECK_EQ(the_log()->compactions, compactions + 1);
    CHECK_EQ(pn_load_relaxed(&the_log()->synced), pn_load_relaxed(&the_log()->written));
    close_scene();
}

/* In memory it stands behind those of higher ids. */
static void test_what_was_committed_late_is_in_the_new_log(void)
{
    open_synced();
    pn_txn *txn = test_begin(conn);
    CHECK_OK(publish_in(conn, txn, topic, "b", 0, 0, NULL));
    publish(conn, topic, "c");
    CHECK_OK(pn_txn_commit(txn));
    broken_syncs = 1;
    publish(conn, topic, "d");
    reboot();
    CHECK_EQ(topic_stat(conn, topic).unfinished, 4);
    for (const char *text = "abcd"; *text != '\0'; text++)
        finish_text((const char[]) {*text, '\0'});
    close_scene();
}

static int most_files;
static void count_files(void)
{
    char saved[sizeof data_dir];
    memcpy(saved, data_dir, sizeof saved);
    snprintf(data_dir, sizeof data_dir, "%.30s/%.30s", saved, name);
    int n = (int) files_in(data_dir) - 1; /* but for the lock */
    memcpy(data_dir, saved, sizeof saved);
    most_files = n > most_files ? n : most_files;
}

/* A topic of another fsync makes the log be compacted: what was synced is never nowhere. */
static void test_compaction_removes_nothing_before_its_copy_is_synced(void)
{
    char body[4000];
    pn_message_out m;
    open_synced();
    pn_ref other = durable_topic("other", 0), its = channel_of(conn, other, "c");
    pn_consumer *reader = consumer_of(conn, its, 5);
    memset(body, 'x', sizeof body);
    body[sizeof body - 1] = '\0';
    the_log()->compact_from = 64 << 10;
    syncs_seen = most_files = 0;
    while_syncing = count_files;
    while (the_log()->compactions == 0) {
        CHECK_EQ(syncs_seen, 0);
        publish(conn, other, body);
        GET(reader, &m, body);
        FINISH(conn, &m);
    }
    while_syncing = NULL;
    CHECK(syncs_seen > 0);
    CHECK_EQ(most_files, 2);
    publish(conn, other, body);
    count_files();
    most_files = 0;
    count_files();
    CHECK_EQ(most_files, 1);
    CHECK_OK(pn_consumer_close(reader));
    reboot();
    finish_text("a");
    close_scene();
}

/* Where nothing is ever synced, the old files wait for no sync. */
static void test_without_syncs_the_old_log_is_removed_at_once(void)
{
    int i = 1;
    open_with(0);
    the_log()->compact_from = 64 << 10;
    for (; the_log()->compactions == 0; i++) {
        publish_numbers(i, i);
        finish_numbers(i, i);
    }
    publish_numbers(i, i);
    most_files = 0;
    count_files();
    CHECK_EQ(most_files, 1);
    reboot();
    finish_numbers(i, i);
    NOTHING(consumer);
    close_scene();
}

/* A backlog that stays on disk: the log does not grow with what passes through it. */
static void test_the_log_is_compacted_while_messages_are_on_disk(void)
{
    enum { BACKLOG = 2500, PASSING = 20000 };
    uint64_t most = 0;
    open_with(4);
    publish_numbers(1, BACKLOG);
    the_log()->compact_from = 64 << 10;
    uint64_t whole = pn_diskqueue_bytes(&the_log()->queue);
    for (int i = 1; i <= PASSING; i++) {
        publish_numbers(BACKLOG + i, BACKLOG + i);
        finish_numbers(i, i);
        uint64_t bytes = pn_diskqueue_bytes(&the_log()->queue);
        most = bytes > most ? bytes : most;
    }
    CHECK(the_log()->compactions >= 2);
    /* Seven times what is live, headers included, begins one.  A new log says of each message which
     * channel has it, for half of its bytes again, where `whole` has the messages alone. */
    CHECK(most < 14 * whole);
    CHECK_EQ(topic_stat(conn, topic).on_disk, BACKLOG - 4);
    reboot();
    CHECK_EQ(topic_stat(conn, topic).unfinished + topic_stat(conn, topic).on_disk, BACKLOG);
    finish_numbers(PASSING + 1, PASSING + BACKLOG);
    NOTHING(consumer);
    close_scene();
}

static void test_what_was_cancelled_on_disk_is_not_in_the_new_log(void)
{
    uint64_t id;
    open_with(1);
    publish_numbers(1, 2);
    CHECK_OK(publish_in(conn, NULL, topic, "later", 3600 * 1000 * MS, 0, &id));
    CHECK_EQ(pn_topic_cancel(conn, NULL, topic, id), 1);
    uint64_t compactions = the_log()->compactions;
    test_inside()->topics.ctl->log_behind = 1;
    publish_numbers(3, 3);
    CHECK_EQ(the_log()->compactions, compactions + 1);
    reboot();
    CHECK_EQ(topic_stat(conn, topic).unfinished + topic_stat(conn, topic).on_disk, 3);
    CHECK_EQ(pn_topic_cancel(conn, NULL, topic, id), 0);
    finish_numbers(1, 3);
    close_scene();
}

/* Told, and not lost: a segment that can have it finds everything. */
static void test_a_message_too_long_for_the_new_segment_is_told(void)
{
    static char body[6 << 20]; /* longer than what a reader has room for at first */
    pn_options o = test_options();
    pn_ref ref;
    o.topic_memory = 16 << 20;
    o.max_body = sizeof body;
    data_dir_empty();
    name = test_segment_name();
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(pn_open(name, &o, &engine));
        conn = test_connect(engine);
        if (i == 0) {
            topic = durable_topic("t", 0);
            channel_of(conn, topic, "c");
            memset(body, 'x', sizeof body - 1);
            publish(conn, topic, body);
            publish_numbers(1, 1);
        } else {
            CHECK_EQ(pn_topic_open(conn, "t", 1, NULL, &ref), -PN_EBODYLONG);
            CHECK(strstr(pn_error_message(), "6291455 bytes") != NULL);
        }
        detach();
        test_segment_remove(name);
        o.max_body = i == 0 ? 1000 : sizeof body;
    }
    CHECK_OK(pn_open(name, &o, &engine));
    conn = test_connect(engine);
    topic = topic_of(conn, "t");
    channel = channel_of(conn, topic, "c");
    consumer = consumer_of(conn, channel, 5);
    finish_text(body);
    finish_numbers(1, 1);
    close_scene();
}

/* A few long messages wait, and many short ones come and go. */
static void test_compaction_writes_no_more_than_was_written(void)
{
    enum { LONG = 20000, JOBS = 9000 };
    static char body[LONG];
    open_with(0);
    pn_ref waiting = durable_topic("waiting", 0);
    channel_of(conn, waiting, "c");
    memset(body, 'x', sizeof body - 1);
    for (int i = 0; i < 8; i++)
        publish(conn, waiting, body);
    the_log()->compact_from = 64 << 10;
    publish_numbers(1, 1);
    uint64_t begin = pn_diskqueue_now(&the_log()->queue)->write_sum;
    finish_numbers(1, 1);
    publish_numbers(2, 2);
    uint64_t job = pn_diskqueue_now(&the_log()->queue)->write_sum - begin;
    for (int i = 2; i < JOBS; i++) {
        finish_numbers(i, i);
        publish_numbers(i + 1, i + 1);
    }
    uint64_t all = pn_diskqueue_now(&the_log()->queue)->write_sum - begin;
    CHECK(the_log()->compactions > 0);
    CHECK(all <= 2 * job * JOBS);
    finish_numbers(JOBS, JOBS);
    close_scene();
}

int main(void)
{
    data_dir_make();
    test_watchdog(100);
    RUN(test_messages_and_answers_survive);
    RUN(test_delays_and_attempts_survive);
    RUN(test_channels_and_pauses_survive);
    RUN(test_transactions_survive_whole);
    RUN(test_what_is_on_disk_for_lack_of_memory_survives);
    RUN(test_after_a_reboot_the_order_is_that_of_publishing);
    RUN(test_what_was_committed_late_is_given_to_those_there_then);
    RUN(test_an_emptied_channel_stays_empty);
    RUN(test_topics_are_listed_before_one_is_opened);
    RUN(test_a_process_that_opens_waits_for_another_that_does);
    RUN(test_a_full_disk_leaves_the_lock_to_its_holder);
    RUN(test_what_is_no_errno_has_words);
    RUN(test_a_sync_that_fails_once_is_made_up_for);
    RUN(test_a_sync_that_keeps_failing_is_told);
    RUN(test_a_sync_that_failed_for_another_has_failed);
    RUN(test_what_was_committed_late_is_in_the_new_log);
    RUN(test_compaction_removes_nothing_before_its_copy_is_synced);
    RUN(test_without_syncs_the_old_log_is_removed_at_once);
    RUN(test_the_log_is_compacted_while_messages_are_on_disk);
    RUN(test_what_was_cancelled_on_disk_is_not_in_the_new_log);
    RUN(test_a_message_too_long_for_the_new_segment_is_told);
    RUN(test_compaction_writes_no_more_than_was_written);
    return tests_done();
}
