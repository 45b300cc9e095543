/*
 * A process that publishes to a topic with max_disk_bytes, as far as that lets it, and consumes
 * from it, is killed at each label on the way to disk and back.  The next one counts on disk what
 * is there, is refused exactly where the bound is, and gets every message that was accepted and not
 * finished, once and in order; when all is finished nothing is counted.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "crash_stream.h"

enum {
    ROUNDS = 240,
    MAX_DEPTH = 5,
    EACH = 100, /* of a number, on disk */
    QUOTA = 4096
};

static bool split; /* there is a channel that does not keep up, too; else the topic is paused again
                      and again: what is on disk then is its own */

static int offer(pn_conn *conn, pn_ref topic, int first, int n)
{
    unsigned char bodies[MOST * 4 + 1];
    uint32_t lens[MOST];
    uint64_t id;
    for (int i = 0; i < n; i++) {
        char text[12];
        snprintf(text, sizeof text, "%04d", first + i);
        memcpy(bodies + (size_t) i * 4, text, 4);
        lens[i] = 4;
    }
    if (n != MOST)
        return pn_topic_publish_many(conn, NULL, topic, bodies, lens, (size_t) n, NULL, &id);
    pn_txn *txn = test_begin(conn);
    for (int i = 0; i < n; i++) {
        const pn_message_in in = {.body = bodies + (size_t) i * 4, .body_len = 4};
        CHECK_OK(pn_topic_publish(conn, txn, topic, &in, &id));
    }
    return pn_txn_commit(txn);
}

/* False: it is refused. */
static bool offered(pn_conn *conn, pn_ref topic, int n)
{
    const int told = atomic_load(&shared->told);
    atomic_store(&shared->begun, told + n);
    int rc = offer(conn, topic, told + 1, n);
    if (rc == 0) {
        atomic_store(&shared->told, told + n);
        return true;
    }
    CHECK_EQ(rc, -PN_ETOPICFULL);
    CHECK(strstr(pn_error_message(), "max_disk_bytes is 4096 bytes") != NULL);
    atomic_store(&shared->begun, told);
    return false;
}

static void victim(void *arg)
{
    pn_engine *engine;
    int refused = 0;
    (void) arg;
    CHECK_OK(pn_open(segment, NULL, &engine));
    pn_conn *conn = test_connect(engine);
    pn_ref topic = topic_of(conn, "t");
    pn_consumer *consumer = consumer_of(conn, channel_of(conn, topic, "c"), 1);
    CHECK_OK(pn_crash_arm(label, nth, PN_CRASH_KILL));
    for (int round = 0, given = 0; round < ROUNDS; round++) {
        const bool paused = !split && round % 4 != 3;
        CHECK_OK(pn_topic_pause(conn, topic, paused));
        const bool full = !offered(conn, topic, 1 + round % MOST);
        given = paused ? given : atomic_load(&shared->told);
        refused += full;
        if (full && split)
            CHECK_OK(pn_topic_channel_empty(conn, channel_of(conn, topic, "slow")));
        for (int i = 0; i < 2 + round / 80; i++)
            if (atomic_load(&shared->finished) < given)
                finish_next(conn, consumer);
    }
    CHECK_OK(pn_topic_pause(conn, topic, false));
    CHECK(refused > 0);
    while (atomic_load(&shared->finished) < atomic_load(&shared->told))
        finish_next(conn, consumer);
    if (split)
        CHECK_OK(pn_topic_channel_empty(conn, channel_of(conn, topic, "slow")));
    CHECK_EQ(topic_stat(conn, topic).disk_bytes, 0);
}

/* What is counted is what is there, and the bound is where it is. */
static int check_counted(pn_conn *conn, pn_ref topic)
{
    int more = 0;
    for (;; more++) {
        pn_topic_stats s = topic_stat(conn, topic);
        CHECK_EQ(s.disk_bytes, s.on_disk * EACH);
        CHECK(s.disk_bytes <= QUOTA);
        int rc = publish_in(conn, NULL, topic, "more", 0, 0, NULL);
        if (rc == 0)
            continue;
        CHECK_EQ(rc, -PN_ETOPICFULL);
        CHECK(s.disk_bytes + EACH > QUOTA);
        CHECK_EQ(topic_stat(conn, topic).disk_bytes, s.disk_bytes);
        return more;
    }
}

static void check_left(pn_conn *conn, pn_ref channel, int more)
{
    pn_consumer *consumer = consumer_of(conn, channel, 1);
    pn_message_out m;
    int first = 0, last = 0;
    while (pn_consumer_get(consumer, 0, &m) == 1) {
        int i = number_in(&m);
        if (i == 0) {
            more--;
        } else {
            CHECK(first == 0 || i == last + 1);
            first = first == 0 ? i : first;
            last = i;
        }
        FINISH(conn, &m);
    }
    CHECK_EQ(more, 0);
    CHECK_OK(pn_consumer_close(consumer));
    check_range(first, last);
}

static void crash_case(void *arg)
{
    const pn_topic_options limits = {.given = PN_TOPIC_MAX_DEPTH | PN_TOPIC_MAX_DISK_BYTES,
                                     .max_depth = MAX_DEPTH,
                                     .max_disk_bytes = QUOTA};
    pn_options o = test_options();
    pn_engine *engine;
    pn_ref topic;
    (void) arg;
    memset(shared, 0, sizeof *shared);
    segment = test_segment_name();
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    CHECK_OK(pn_open(segment, &o, &engine));
    pn_conn *conn = test_connect(engine);
    CHECK_OK(pn_topic_open(conn, "t", 1, &limits, &topic));
    pn_ref channel = channel_of(conn, topic, "c");
    if (split)
        channel_of(conn, topic, "slow");
    int status = reap(spawn(victim, NULL));
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        FAIL("%s was not reached %u times", label, nth);
    CHECK_ENGINE(engine);
    int more = check_counted(conn, topic);
    CHECK_ENGINE(engine);
    CHECK_OK(pn_topic_pause(conn, topic, false));
    check_left(conn, channel, more);
    if (split)
        CHECK_OK(pn_topic_channel_empty(conn, channel_of(conn, topic, "slow")));
    CHECK_ENGINE(engine);
    CHECK_EQ(topic_stat(conn, topic).disk_bytes, 0);
    CHECK_EQ(topic_stat(conn, topic).on_disk, 0);
    CHECK_OK(pn_topic_delete(conn, topic));
    CHECK_EQ(files_in(data_dir), 0);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static unsigned run_all(const char *const *labels, size_t n)
{
    static const uint32_t hits[] = {1, 4, 11, 23};
    const size_t most = split ? 2 : sizeof hits / sizeof hits[0];
    unsigned cases = 0;
    for (size_t i = 0; i < n; i++) {
        label = labels[i];
        for (size_t hit = 0; hit < most; hit++, cases++) {
            nth = hits[hit];
            CHECK_CHILD(spawn(crash_case, NULL), 0);
        }
    }
    return cases;
}

int main(void)
{
    static const char *const whole[] = {
        "diskqueue:staged",  "diskqueue:written", "diskqueue:committed", "diskqueue:taken",
        "spilled:staged",    "spilled:told",      "spilled:committed",   "refill:redo",
        "refill:redo-valid", "refill:passed"};
    static const char *const parts[] = {"spilled:staged", "rest:redo", "rest:redo-valid",
                                        "rest:moved", "rest:followed"};
    data_dir_make();
    test_watchdog(110);
    make_journal();
    unsigned cases = run_all(whole, sizeof whole / sizeof whole[0]);
    split = true;
    cases += run_all(parts, sizeof parts / sizeof parts[0]);
    printf("%u cases\n", cases);
    return 0;
}
