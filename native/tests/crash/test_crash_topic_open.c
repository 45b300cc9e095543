/*
 * The topic area is made without the writer lock: beside a process that is stopped while it
 * allocates or reads the log, others send, and a process that wants topics is told which one it
 * waits for; of one that is killed there nothing counts, and the next one finds everything.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "data_dirs.h"
#include "topics.h"

enum { MESSAGES = 40, SPILL_FROM = 12 };

static const char *const labels[] = {
    "topic:allocated", "topic:formatted",  "dirlock:locked", "dirlock:owned",     "publish:cells",
    "publish:staged",  "publish:delivery", "publish:linked", "arena:fresh",       "topiclog:opened",
    "durable:ready",   "topic:restored",   "topic:ready",    "topiclog:described"};
static const char *label;
static const char *segment;
enum { LABELS = sizeof labels / sizeof labels[0] };

/* These two are reached with the lock, for a moment. */
static bool has_the_lock(void)
{
    return strcmp(label, "topic:ready") == 0 || strcmp(label, "topiclog:described") == 0;
}

static pn_engine *engine_of(pn_conn **conn)
{
    pn_options o = test_options();
    pn_engine *engine;
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    CHECK_OK(pn_open(segment, &o, &engine));
    *conn = test_connect(engine);
    return engine;
}

static void publish_number(pn_conn *conn, pn_ref topic, int i)
{
    char text[12];
    snprintf(text, sizeof text, "%04d", i);
    publish(conn, topic, text);
}

/* A log of durable messages, and the segment of it unlinked. */
static void leave_a_log(void)
{
    const pn_topic_options durable = {
        .given = PN_TOPIC_DURABLE | PN_TOPIC_MAX_DEPTH, .durable = 1, .max_depth = SPILL_FROM};
    pn_conn *conn;
    pn_ref topic;
    pn_engine *engine = engine_of(&conn);
    CHECK_OK(pn_topic_open(conn, "t", 1, &durable, &topic));
    channel_of(conn, topic, "c");
    for (int i = 1; i <= MESSAGES; i++)
        publish_number(conn, topic, i);
    pn_conn_close(conn);
    pn_remove_spill_files(engine);
    pn_engine_close(engine);
    test_segment_remove(segment);
}

static void opener(void *arg)
{
    pn_conn *conn;
    int action = arg == NULL ? PN_CRASH_KILL : PN_CRASH_STOP;
    pn_engine *engine = engine_of(&conn);
    CHECK_OK(pn_crash_arm(label, 1, action));
    topic_of(conn, "t");
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static void check_all_is_there(pn_engine *engine, pn_conn *conn)
{
    char text[12];
    pn_message_out m;
    pn_ref topic = topic_of(conn, "t");
    pn_consumer *consumer = consumer_of(conn, channel_of(conn, topic, "c"), 1);
    for (int i = 1; i <= MESSAGES; i++) {
        snprintf(text, sizeof text, "%04d", i);
        GET(consumer, &m, text);
        FINISH(conn, &m);
    }
    NOTHING(consumer);
    CHECK_OK(pn_consumer_close(consumer));
    CHECK_ENGINE(engine);
}

static void clean_up(pn_engine *engine, pn_conn *conn)
{
    char path[128];
    pn_conn_close(conn);
    pn_remove_spill_files(engine);
    pn_engine_close(engine);
    test_segment_remove(segment);
    snprintf(path, sizeof path, "%s/%s", data_dir, segment);
    DIR *dir = opendir(path);
    for (struct dirent *d; dir != NULL && (d = readdir(dir)) != NULL;)
        unlinkat(dirfd(dir), d->d_name, 0);
    if (dir != NULL)
        closedir(dir);
    rmdir(path);
    data_dir_empty();
}

static void test_the_opener_is_killed(void *arg)
{
    pn_conn *conn;
    (void) arg;
    segment = test_segment_name();
    leave_a_log();
    pn_engine *engine = engine_of(&conn);
    CHECK_KILLED(spawn(opener, NULL), SIGKILL);
    check_all_is_there(engine, conn);
    clean_up(engine, conn);
}

static pid_t stopped_opener(void)
{
    int status;
    pid_t pid = spawn(opener, "");
    CHECK_EQ(waitpid(pid, &status, WUNTRACED), pid);
    CHECK(WIFSTOPPED(status));
    return pid;
}

/* The error names it: in vain with a limit, at once for a caller that never waits. */
static void check_others_wait_for(pn_conn *conn, pid_t pid)
{
    char name[16];
    pn_ref topic;
    int64_t limit = pn_set_lock_timeout(20 * MS);
    CHECK_EQ(pn_topic_open(conn, "t", 1, NULL, &topic), -PN_ELOCK);
    snprintf(name, sizeof name, "PID %d ", (int) pid);
    CHECK(strstr(pn_error_message(), name) != NULL);
    pn_set_lock_timeout(limit);
    pn_set_never_wait(1);
    CHECK_EQ(pn_topic_open(conn, "t", 1, NULL, &topic), -PN_ELOCKBUSY);
    pn_set_never_wait(0);
}

static void waiter(void *arg)
{
    pn_conn *conn;
    pn_engine *engine = engine_of(&conn);
    CHECK_EQ(write(*(int *) arg, "w", 1), 1);
    pn_ref topic = topic_of(conn, "t");
    CHECK_EQ(topic_stat(conn, topic).ref, topic);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static void test_beside_a_stopped_opener(void *arg)
{
    int began[2];
    char byte;
    pn_conn *conn;
    (void) arg;
    segment = test_segment_name();
    leave_a_log();
    pn_engine *engine = engine_of(&conn);
    pid_t pid = stopped_opener();
    struct pn_segment *seg = test_inside();
    CHECK_EQ(pn_lock_try(seg, &test_hold), 0);
    pn_lock_release(seg);
    CHECK_OK(pn_notify(conn, "news", 4, "x", 1));
    check_others_wait_for(conn, pid);
    CHECK_EQ(pipe(began), 0);
    pid_t other = spawn(waiter, &began[1]);
    CHECK_EQ(read(began[0], &byte, 1), 1);
    kill(pid, SIGCONT);
    CHECK_CHILD(pid, 0);
    CHECK_CHILD(other, 0);
    check_all_is_there(engine, conn);
    clean_up(engine, conn);
}

/* A process that waits for one that dies makes the area itself. */
static void test_the_awaited_dies(void *arg)
{
    int began[2];
    char byte;
    pn_conn *conn;
    (void) arg;
    segment = test_segment_name();
    leave_a_log();
    pn_engine *engine = engine_of(&conn);
    pid_t pid = stopped_opener();
    CHECK_EQ(pipe(began), 0);
    pid_t other = spawn(waiter, &began[1]);
    CHECK_EQ(read(began[0], &byte, 1), 1);
    kill(pid, SIGKILL);
    CHECK_KILLED(pid, SIGKILL);
    CHECK_CHILD(other, 0);
    check_all_is_there(engine, conn);
    clean_up(engine, conn);
}

int main(void)
{
    data_dir_make();
    test_watchdog(110);
    for (size_t i = 0; i < LABELS; i++) {
        label = labels[i];
        CHECK_CHILD(spawn(test_the_opener_is_killed, NULL), 0);
        if (has_the_lock())
            continue;
        CHECK_CHILD(spawn(test_the_awaited_dies, NULL), 0);
        CHECK_CHILD(spawn(test_beside_a_stopped_opener, NULL), 0);
    }
    return 0;
}
