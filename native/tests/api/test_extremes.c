/*
 * What would take years, or a reckless neighbour: positions and numbers near their ends, a file
 * that is made shorter.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "topics.h"

#include <fcntl.h>
#include <signal.h>

#include "queue/queue.h"
#include "segment/process.h"
#include "topic/consume.h"

static void set_positions(struct pn_segment *seg, uint64_t pos)
{
    pn_store_relaxed(&seg->ctl->tail, pos);
    pn_store_relaxed(&seg->ctl->mem_tail, pos);
    pn_store_relaxed(&seg->ctl->woken, pos);
    pn_store_relaxed(&seg->ctl->head, pos);
}

/* The ring goes round many times, up to the last page below bit 63, which says "asleep". */
static void test_positions_near_2_to_the_63(void)
{
    const uint64_t end = 1ULL << 63, size = 4000;
    static char payload[4000];
    pn_engine *engine = test_engine(NULL);
    struct pn_segment *seg = test_inside();
    set_positions(seg, end - 16 * seg->ring_bytes);
    pn_conn *busy = test_connect(engine), *lazy = test_connect(engine);
    pn_batch *batch = pn_batch_new();
    test_listen(busy, "c");
    test_listen(lazy, "rarely");
    uint64_t last = 0, n = 0;
    while (pn_load_relaxed(&seg->ctl->head) < end - 4 * PN_QUEUE_PAGE) {
        CHECK_OK(pn_notify(lazy, "c", 1, payload, size));
        CHECK_EQ(pn_poll(busy, batch, 0), 1);
        CHECK(batch->seq[0] > last);
        last = batch->seq[0];
        if (++n % 512 == 0)
            CHECK_ENGINE(engine);
    }
    CHECK(n > 1000);
    CHECK_OK(test_notify(busy, "rarely", "woken"));
    CHECK_EQ(test_wait(lazy, -1), 1);
    CHECK_POLL(lazy, "woken");
    CHECK_EQ(test_wait(lazy, 0), 0);
    CHECK_ENGINE(engine);
    CHECK_EQ(test_stat(engine).tail, test_stat(engine).head);
    pn_batch_free(batch);
    pn_conn_close(busy);
    pn_conn_close(lazy);
    pn_engine_close(engine);
}

static void test_generations_of_slots_wrap(void)
{
    pn_engine *engine = test_engine(NULL);
    struct pn_segment *seg = test_inside();
    for (uint32_t slot = 0; slot < seg->max_backends; slot++)
        pn_store_relaxed(&seg->backend[slot].generation, UINT32_MAX - 1);
    for (int i = 0; i < 4; i++) {
        pn_conn *listener = test_connect(engine), *notifier = test_connect(engine);
        test_listen(listener, "c");
        CHECK_POLL(listener, "");
        CHECK_OK(test_notify(notifier, "c", "x"));
        CHECK_EQ(test_wait(listener, -1), 1);
        CHECK_POLL(listener, "x");
        CHECK_ENGINE(engine);
        pn_conn_close(listener);
        pn_conn_close(notifier);
    }
    pn_engine_close(engine);
}

static void test_large_commit_numbers(void)
{
    pn_engine *engine = test_engine(NULL);
    test_inside()->ctl->last_xid = UINT64_MAX - 1000;
    pn_conn *conn = test_connect(engine);
    test_listen(conn, "c");
    for (int i = 0; i < 500; i++) {
        CHECK_OK(test_notify(conn, "c", "x"));
        CHECK_POLL(conn, "x");
    }
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static pn_engine *shared;
static const char *shared_name;

static void notify_once(void *arg)
{
    (void) arg;
    signal(SIGBUS, SIG_DFL); /* a sanitizer would make an error report of it */
    pn_conn *conn = test_connect(shared);
    CHECK_OK(test_notify(conn, "c", "x"));
}

/* A mapping of its own. */
static void attach_again(void *arg)
{
    pn_engine *again;
    int rc;
    (void) arg;
    pn_engine_close(shared);
    CHECK(pn_first_segment() == NULL);
    rc = pn_open(shared_name, NULL, &again);
    if (rc != -PN_ECORRUPT && rc != -PN_ELAYOUT)
        FAIL("attaching to a file that was cut: %d: %s", rc, pn_error_message());
}

/* A process that touches what is not there any more dies by SIGBUS; one that comes is refused. */
static void test_a_file_made_shorter(void)
{
    char path[128];
    pn_options o = test_options();
    shared_name = test_segment_name();
    CHECK_OK(pn_open(shared_name, &o, &shared));
    snprintf(path, sizeof path, "/pynotify.%u.%s", (unsigned) geteuid(), shared_name);
    int fd = shm_open(path, O_RDWR | O_CLOEXEC, 0);
    CHECK(fd >= 0);
    CHECK_EQ(ftruncate(fd, 2 * PN_OS_PAGE), 0);
    close(fd);
    int status = reap(spawn(notify_once, NULL));
    CHECK_EQ(status & 0x7f, SIGBUS);
    CHECK_CHILD(spawn(attach_again, NULL), 0);
    pn_engine_close(shared);
}

static void notifies_the_sleeper(void *slot)
{
    const struct QueueBackendStatus *sleeper = slot;
    pn_conn *conn = test_connect(shared);
    CHECK_SOON((pn_load_acquire(&sleeper->pos) & PN_ASLEEP) != 0);
    CHECK_OK(test_notify(conn, "c", "x"));
    pn_conn_close(conn);
}

/* Counted from now on it is beyond what a clock can say: that is for ever, and not over at once. */
static void test_the_longest_time_outs(void)
{
    static const int64_t longest[] = {INT64_MAX, INT64_MAX - 1, INT64_MAX - 1000000000};
    shared = test_engine(NULL);
    pn_conn *conn = test_connect(shared);
    test_listen(conn, "c");
    for (size_t i = 0; i < sizeof longest / sizeof longest[0]; i++) {
        int rc;
        CHECK_POLL(conn, "");
        pid_t pid = spawn(notifies_the_sleeper, conn->me);
        while ((rc = test_wait(conn, longest[i])) != 1)
            CHECK_EQ(rc, -EINTR);
        CHECK_POLL(conn, "x");
        CHECK_CHILD(pid, 0);
    }
    pn_conn_close(conn);
    pn_engine_close(shared);
}

static pn_consumer *consumer;
static pn_atomic_i32 second_thread;

static void *gets_one(void *timeout_ns)
{
    pn_message_out m;
    int rc;
    pn_store_release(&second_thread, (int32_t) syscall(SYS_gettid));
    while ((rc = pn_consumer_get(consumer, *(const int64_t *) timeout_ns, &m)) != 1)
        CHECK_EQ(rc, -EINTR);
    return NULL;
}

/* The same where another thread is getting from the consumer. */
static void test_the_longest_time_out_behind_another_thread(void)
{
    int64_t for_ever = -1, longest = INT64_MAX;
    pthread_t thread[2];
    pn_engine *engine = test_engine(NULL);
    pn_conn *conn = test_connect(engine);
    pn_ref topic = topic_of(conn, "t");
    consumer = consumer_of(conn, channel_of(conn, topic, "w"), 2);
    CHECK_EQ(pthread_create(&thread[0], NULL, gets_one, &for_ever), 0);
    CHECK_SOON(pn_load_acquire(&consumer->me->wait) == PN_CONSUMER_WAITING);
    pn_store_release(&second_thread, 0);
    CHECK_EQ(pthread_create(&thread[1], NULL, gets_one, &longest), 0);
    CHECK_SOON(pn_load_acquire(&second_thread) != 0 && is_blocked(pn_load_acquire(&second_thread)));
    publish(conn, topic, "1");
    CHECK_EQ(pthread_join(thread[0], NULL), 0);
    CHECK_SOON(pn_load_acquire(&consumer->me->wait) == PN_CONSUMER_WAITING);
    publish(conn, topic, "2");
    CHECK_EQ(pthread_join(thread[1], NULL), 0);
    pn_consumer_close(consumer);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

/* In flight, touched, and put back for later: it does not come again meanwhile. */
static void test_the_longest_times_of_a_message(void)
{
    const pn_consumer_options o = {
        .max_in_flight = 2, .msg_timeout_ns = INT64_MAX, .max_msg_timeout_ns = INT64_MAX};
    pn_message_out m;
    pn_engine *engine = test_engine(NULL);
    pn_conn *conn = test_connect(engine);
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "w");
    consumer = consumer_with(conn, channel, &o);
    publish(conn, topic, "1");
    GET(consumer, &m, "1");
    NOTHING(consumer);
    CHECK_OK(answer(conn, NULL, &m, PN_ANSWER_TOUCH, 0));
    NOTHING(consumer);
    CHECK_DEPTHS(conn, channel, 0, 1, 0);
    CHECK_OK(answer(conn, NULL, &m, PN_ANSWER_REQUEUE, INT64_MAX));
    NOTHING(consumer);
    CHECK_DEPTHS(conn, channel, 0, 0, 1);
    CHECK_ENGINE(engine);
    pn_consumer_close(consumer);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

int main(void)
{
    RUN(test_positions_near_2_to_the_63);
    RUN(test_generations_of_slots_wrap);
    RUN(test_large_commit_numbers);
    RUN(test_a_file_made_shorter);
    RUN(test_the_longest_time_outs);
    RUN(test_the_longest_time_out_behind_another_thread);
    RUN(test_the_longest_times_of_a_message);
    return tests_done();
}
