/*
 * A process is stopped in the middle of an operation on a topic, and what it is about to follow is
 * overwritten: it comes to an end, and the segment is poisoned.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "data_dirs.h"
#include "topic/area.h"
#include "topics.h"

static pn_engine *engine;
static const char *name;

/* What was published while the topic was paused goes to its channels: to `fast` in memory, and for
 * `slow`, which rests, to disk. */
static void gives_out_the_backlog(void *arg)
{
    pn_engine *e;
    (void) arg;
    CHECK_OK(pn_open(name, NULL, &e));
    pn_conn *conn = test_connect(e);
    pn_ref topic = topic_of(conn, "t");
    CHECK_OK(pn_crash_arm("rest:pumped", 1, PN_CRASH_STOP));
    (void) pn_topic_pause(conn, topic, false);
    CHECK_EQ(pn_topic_pause(conn, topic, false), -PN_ECORRUPT);
    pn_conn_close(conn);
    pn_engine_close(e);
}

static pn_conn *with_a_channel_that_rests(void)
{
    pn_options o = test_options();
    pn_message_out m;
    name = test_segment_name();
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    CHECK_OK(pn_open(name, &o, &engine));
    pn_conn *conn = test_connect(engine);
    pn_ref topic = topic_with(conn, "t", 20, PN_OVERFLOW_DISK);
    channel_of(conn, topic, "slow");
    pn_consumer *fast = consumer_of(conn, channel_of(conn, topic, "fast"), 1);
    while (topic_stat(conn, topic).on_disk == 0) {
        publish(conn, topic, "x");
        CHECK_EQ(pn_consumer_get(fast, 0, &m), 1);
        FINISH(conn, &m);
    }
    CHECK_OK(pn_topic_pause(conn, topic, true));
    publish(conn, topic, "backlog");
    return conn;
}

static void test_a_list_of_deliveries_that_leads_round(void)
{
    int status;
    pn_conn *conn = with_a_channel_that_rests();
    const struct pn_segment *seg = test_inside();
    const pid_t pid = spawn(gives_out_the_backlog, NULL);
    CHECK_EQ(waitpid(pid, &status, WUNTRACED), pid);
    CHECK(WIFSTOPPED(status));
    const uint32_t own = seg->topics.ctl->redo.delivery;
    const uint32_t given = pn_message_at(seg, pn_delivery_at(seg, own)->message)->first;
    CHECK(given != 0 && given != own);
    CHECK_EQ(pn_delivery_at(seg, given)->of_message, own);
    pn_delivery_at(seg, given)->of_message = given;
    CHECK_EQ(kill(pid, SIGCONT), 0);
    CHECK_CHILD(pid, 0);
    pn_conn_close(conn);
    pn_remove_spill_files(engine);
    pn_engine_close(engine);
}

int main(void)
{
    data_dir_make();
    test_watchdog(60);
    RUN(test_a_list_of_deliveries_that_leads_round);
    return tests_done();
}
