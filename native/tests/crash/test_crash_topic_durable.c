/*
 * A process that publishes to a durable topic, alone, in batches and in transactions, and consumes
 * from it, is killed at each label of the log.  The next one, in the segment or after a reboot
 * with nothing but the files, gets every message that was published and not finished, in order; of
 * what the victim died in, all or none, and what it had in flight once more.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "crash_stream.h"

enum { ROUNDS = 150, MAX_DEPTH = 8, NOT_REACHED = 77 };

static void victim(void *arg)
{
    pn_engine *engine;
    (void) arg;
    CHECK_OK(pn_open(segment, NULL, &engine));
    pn_conn *conn = test_connect(engine);
    CHECK_OK(pn_crash_arm(label, nth, PN_CRASH_KILL));
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    pn_consumer *consumer = consumer_of(conn, channel, 1);
    for (int round = 0; round < ROUNDS; round++) {
        publish_some(conn, topic, atomic_load(&shared->told) + 1, 1 + round % MOST);
        for (int i = 0; i < 2 + round / 20; i++)
            if (atomic_load(&shared->finished) < atomic_load(&shared->told))
                finish_next(conn, consumer);
    }
}

static void check_left(pn_conn *conn)
{
    pn_ref channel = channel_of(conn, topic_of(conn, "t"), "c");
    pn_consumer *consumer = consumer_of(conn, channel, 1);
    pn_message_out m;
    int first = 0, last = 0;
    while (pn_consumer_get(consumer, 0, &m) == 1) {
        int i = number_in(&m);
        if (first == 0)
            first = i;
        else
            CHECK_EQ(i, last + 1);
        last = i;
        FINISH(conn, &m);
    }
    CHECK_OK(pn_consumer_close(consumer));
    check_range(first, last);
}

static void remove_log(void)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", data_dir, segment);
    DIR *dir = opendir(path);
    for (struct dirent *d; dir != NULL && (d = readdir(dir)) != NULL;)
        unlinkat(dirfd(dir), d->d_name, 0);
    if (dir != NULL)
        closedir(dir);
    rmdir(path);
    data_dir_empty();
}

/* arg: does the segment go, too? */
static void crash_case(void *arg)
{
    const pn_topic_options durable = {.given =
                                          PN_TOPIC_DURABLE | PN_TOPIC_MAX_DEPTH | PN_TOPIC_FSYNC,
                                      .durable = 1,
                                      .fsync = PN_FSYNC_INTERVAL,
                                      .max_depth = MAX_DEPTH};
    pn_options o = test_options();
    pn_engine *engine;
    pn_ref topic;
    memset(shared, 0, sizeof *shared);
    segment = test_segment_name();
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    CHECK_OK(pn_open(segment, &o, &engine));
    pn_conn *conn = test_connect(engine);
    CHECK_OK(pn_topic_open(conn, "t", 1, &durable, &topic));
    channel_of(conn, topic, "c");
    test_inside()->topics.ctl->log.compact_from = 1000; /* else nothing is compacted here */
    int status = reap(spawn(victim, NULL));
    bool reached = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (!reached)
        CHECK_EQ(status, 0);
    for (int again = 0; again < 2; again++) {
        if (arg != NULL || again != 0) {
            test_segment_remove(segment);
            pn_conn_close(conn);
            pn_engine_close(engine);
            CHECK_OK(pn_open(segment, &o, &engine));
            conn = test_connect(engine);
        }
        CHECK_ENGINE(engine);
        if (again == 0)
            check_left(conn);
    }
    topic = topic_of(conn, "t");
    CHECK_EQ(topic_stat(conn, topic).unfinished, 0);
    CHECK_EQ(topic_stat(conn, topic).on_disk, 0);
    pn_conn_close(conn);
    pn_remove_spill_files(engine);
    pn_engine_close(engine);
    remove_log();
    if (!reached)
        exit(NOT_REACHED);
}

/* Killed before `head`, with the log about to be compacted: only the log is left. */
static void move_victim(void *arg)
{
    const pn_topic_options durable = {
        .given = PN_TOPIC_DURABLE | PN_TOPIC_FSYNC, .durable = 1, .fsync = PN_FSYNC_NONE};
    pn_engine *engine;
    pn_ref from, to;
    pn_message_out m;
    pn_txn *txn;
    (void) arg;
    CHECK_OK(pn_open(segment, NULL, &engine));
    pn_conn *conn = test_connect(engine);
    CHECK_OK(pn_topic_open(conn, "from", 4, &durable, &from));
    CHECK_OK(pn_topic_open(conn, "to", 2, &durable, &to));
    pn_consumer *consumer = consumer_of(conn, channel_of(conn, from, "c"), 1);
    channel_of(conn, to, "c");
    for (int i = 0; i < 200; i++) {
        publish(conn, from, "over");
        GET(consumer, &m, "over");
        FINISH(conn, &m);
    }
    publish(conn, from, "moved");
    GET(consumer, &m, "moved");
    test_inside()->topics.ctl->log.compact_from = 1;
    publish(conn, to, "other"); /* compaction begins */
    CHECK(test_inside()->topics.ctl->log.compact_file != 0);
    CHECK_OK(pn_txn_begin(conn, &txn));
    publish_in(conn, txn, to, "moved", 0, 0, NULL);
    CHECK_OK(answer(conn, txn, &m, PN_ANSWER_FINISH, 0));
    CHECK_OK(pn_crash_arm("commit:topics-staged", 1, PN_CRASH_KILL));
    pn_txn_commit(txn);
}

static void test_a_move_that_is_compacted_is_whole(void *arg)
{
    pn_options o = test_options();
    pn_engine *engine;
    (void) arg;
    segment = test_segment_name();
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    CHECK_OK(pn_open(segment, &o, &engine));
    CHECK_KILLED(spawn(move_victim, NULL), SIGKILL);
    pn_engine_close(engine);
    test_segment_remove(segment);
    CHECK_OK(pn_open(segment, &o, &engine));
    pn_conn *conn = test_connect(engine);
    CHECK_EQ(topic_stat(conn, topic_of(conn, "from")).unfinished, 0);
    CHECK_EQ(topic_stat(conn, topic_of(conn, "to")).unfinished, 2);
    pn_conn_close(conn);
    pn_remove_spill_files(engine);
    pn_engine_close(engine);
    remove_log();
}

int main(void)
{
    static const char *const modules[] = {
        "dirlock:", "durable:",      "topiclog:",         "diskqueue:",        "recfile:",
        "publish:", "commit:topics", "commit:after-head", "commit:before-head"};
    unsigned cases = 0, reached = 0;
    data_dir_make();
    test_watchdog(110);
    make_journal();
    CHECK_CHILD(spawn(test_a_move_that_is_compacted_is_whole, NULL), 0);
    for (int i = 0; i < pn_crash_label_count(); i++) {
        bool ours = false;
        label = pn_crash_label(i);
        for (size_t k = 0; k < sizeof modules / sizeof modules[0]; k++)
            ours |= strncmp(label, modules[k], strlen(modules[k])) == 0;
        bool there = true;
        for (nth = 1; ours && there && nth <= 5; nth += 2)
            for (int gone = 0; gone < 2; gone++, cases++) {
                int status = reap(spawn(crash_case, gone ? "" : NULL));
                there = status != W_EXITCODE(NOT_REACHED, 0);
                if (there)
                    CHECK_EQ(status, 0);
                reached += there;
            }
    }
    printf("%u cases, %u of them reached\n", cases, reached);
    CHECK(reached >= 100);
    return 0;
}
