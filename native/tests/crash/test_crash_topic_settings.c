/*
 * A process that sets a topic or a channel is killed at each store of it: all that one call gave is
 * set or nothing, and what the log says after a reboot is the same.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "data_dirs.h"
#include "topics.h"

enum { ALL = PN_CHANNEL_MAX_ATTEMPTS | PN_CHANNEL_DEAD_LETTER | PN_CHANNEL_MSG_TIMEOUT };

static const char *label, *segment;
static pn_engine *engine;
static pn_conn *conn;

static void attach(void)
{
    pn_options o = test_options();
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    CHECK_OK(pn_open(segment, &o, &engine));
    conn = test_connect(engine);
}

static void detach(void)
{
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static pn_channel_options options(int64_t n, const char *dead_letter)
{
    return (pn_channel_options) {.given = ALL,
                                 .max_attempts = n,
                                 .msg_timeout_ns = n * MS,
                                 .dead_letter = dead_letter,
                                 .dead_letter_len = strlen(dead_letter)};
}

static void check_set(pn_ref channel, int64_t n, const char *dead_letter)
{
    const pn_topic_channel_stats s = channel_stat(conn, channel);
    CHECK_EQ(s.max_attempts, n);
    CHECK_EQ(s.msg_timeout_ns, n * MS);
    CHECK(strcmp(s.dead_letter, dead_letter) == 0);
}

static void setter(void *arg)
{
    const pn_topic_options o = {.given = PN_TOPIC_DEFAULT_TTL, .default_ttl_ns = 2 * MS};
    const pn_channel_options two = options(2, "two");
    pn_engine *its;
    (void) arg;
    CHECK_OK(pn_open(segment, NULL, &its));
    conn = test_connect(its);
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    CHECK_OK(pn_crash_arm(label, 1, PN_CRASH_KILL));
    CHECK_OK(pn_topic_configure(conn, topic, &o));
    CHECK_OK(pn_topic_channel_configure(conn, channel, &two));
}

static void crash_case(void *arg)
{
    const pn_topic_options durable = {
        .given = PN_TOPIC_DURABLE | PN_TOPIC_DEFAULT_TTL, .durable = 1, .default_ttl_ns = MS};
    const pn_channel_options one = options(1, "one");
    pn_ref topic, channel;
    (void) arg;
    segment = test_segment_name();
    data_dir_empty();
    attach();
    CHECK_OK(pn_topic_open(conn, "t", 1, &durable, &topic));
    CHECK_OK(pn_topic_channel_open_with(conn, topic, "c", 1, -1, &one, &channel));
    int status = reap(spawn(setter, NULL));
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        FAIL("%s was not reached", label);
    bool ttl = strcmp(label, "topic:limits") != 0, all = strcmp(label, "topic:defaults-set") == 0;
    for (int i = 0; i < 2; i++) {
        topic = topic_of(conn, "t");
        CHECK_EQ(topic_stat(conn, topic).default_ttl_ns, ttl ? 2 * MS : MS);
        check_set(channel_of(conn, topic, "c"), all ? 2 : 1, all ? "two" : "one");
        detach();
        if (i == 0) { /* the log says what memory did */
            test_segment_remove(segment);
            attach();
        }
    }
    test_segments_remove();
}

int main(void)
{
    static const char *const labels[] = {"topic:limits", "topic:limits-set", "topic:defaults",
                                         "topic:defaults-set"};
    data_dir_make();
    test_watchdog(60);
    for (size_t i = 0; i < sizeof labels / sizeof labels[0]; i++) {
        label = labels[i];
        CHECK_CHILD(spawn(crash_case, NULL), 0);
    }
    return 0;
}
