/*
 * test_topic_cancel_files.c - the end of deferred messages that leave memory while a transaction is
 * to cancel them, and of those that are in files of several kinds, or of several channels.
 */
#include <sys/resource.h>

#include "cancel_scene.h"
#include "commit/async.h"
#include "topic/queues.h"
#include "topic/tombstones.h"

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
