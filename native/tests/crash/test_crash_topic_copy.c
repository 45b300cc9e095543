/*
 * A consumer is stopped between its look at a delivery and its copy of the body, until the message
 * has timed out, was finished by another, and its cells hold a later one.  What it then gets is the
 * later message, whole, and not the body of that one under the id of the first (consume.c 2).
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "topics.h"

#include <sys/mman.h>
#include <sys/wait.h>

#include "topic/topic.h"

static const char *segment;
static uint64_t *later; /* its id; of both processes */

static void slow_consumer(void *arg)
{
    const pn_consumer_options o = {.max_in_flight = 1, .msg_timeout_ns = MS};
    pn_engine *engine;
    pn_message_out m;
    (void) arg;
    CHECK_OK(pn_open(segment, NULL, &engine));
    pn_conn *conn = test_connect(engine);
    pn_consumer *consumer = consumer_with(conn, channel_of(conn, topic_of(conn, "t"), "c"), &o);
    CHECK_OK(pn_crash_arm("claim:copying", 1, PN_CRASH_STOP));
    GET(consumer, &m, "later one");
    CHECK(m.id == *later);
    CHECK_EQ(m.attempts, 1);
    pn_consumer_close(consumer);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static void test_stopped_before_it_copies(void)
{
    pn_engine *engine;
    pn_message_out m;
    int status;
    segment = test_segment_name();
    pn_options o = test_options();
    CHECK_OK(pn_open(segment, &o, &engine));
    pn_conn *conn = test_connect(engine);
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    const struct pn_topic_channel *ch = &test_inside()->topics.channel[(uint32_t) channel - 1];
    CHECK_OK(publish_in(conn, NULL, topic, "keeps their pages", 3600000 * MS, 0, NULL));
    publish(conn, topic, "first one");
    uint32_t cell = pn_delivery_at(test_inside(), ch->first)->message;
    pid_t pid = spawn(slow_consumer, NULL);
    CHECK_EQ(waitpid(pid, &status, WUNTRACED), pid);
    CHECK(WIFSTOPPED(status));
    pn_consumer *other = consumer_of(conn, channel, 1);
    GET(other, &m, "first one"); /* when it has timed out */
    FINISH(conn, &m);
    pn_consumer_close(other);
    *later = publish(conn, topic, "later one");
    CHECK_EQ(pn_delivery_at(test_inside(), ch->first)->message, cell);
    kill(pid, SIGCONT);
    CHECK_CHILD(pid, 0);
    CHECK_DEPTHS(conn, channel, 1, 0, 1);
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

int main(void)
{
    later = mmap(NULL, sizeof *later, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(later != MAP_FAILED);
    RUN(test_stopped_before_it_copies);
    return tests_done();
}
