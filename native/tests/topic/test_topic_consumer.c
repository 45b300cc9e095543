/* test_topic_consumer.c - how much a consumer takes, gives back, is told; and what is logged. */
#include "topic_scene.h"

#include <dirent.h>

#include "backend/latency.h"
#include "topic/consume.h"
#include "topic/delivery.h"
#include "topic/latency.h"

static void test_sampling(void)
{
    open_scene();
    const pn_consumer_options o = {.max_in_flight = 65535, .sample_rate = 42};
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    pn_consumer *c = consumer_with(conn, channel, &o), *all;
    pn_message_out m;
    int got = 0;
    for (int i = 0; i < 10000; i++)
        publish(conn, topic, "x");
    while (pn_consumer_get(c, 0, &m) == 1)
        got++;
    CHECK(got > 3700 && got < 4700);
    CHECK_DEPTHS(conn, channel, 0, got, 0);
    CHECK_EQ(channel_stat(conn, channel).dropped, 10000 - got);
    CHECK_OK(pn_topic_channel_empty(conn, channel));
    /* what it passes over is another's, if there is one */
    all = consumer_of(conn, channel, 65535);
    for (int i = 0; i < 1000; i++)
        publish(conn, topic, "x");
    for (got = 0; pn_consumer_get(c, 0, &m) == 1;)
        got++;
    CHECK(got > 300 && got < 540);
    CHECK_ENGINE(engine);
    CHECK_DEPTHS(conn, channel, 1000 - got, got, 0);
    while (pn_consumer_get(all, 0, &m) == 1)
        got++;
    CHECK_EQ(got, 1000);
    CHECK_OK(pn_consumer_close(c));
    CHECK_OK(pn_consumer_close(all));
    close_scene();
}

static void test_a_consumer_outlives_its_connection(void)
{
    open_scene();
    pn_conn *other = test_connect(engine);
    pn_ref topic = topic_of(other, "t"), channel = channel_of(other, topic, "c");
    pn_consumer *c = consumer_of(other, channel, 1);
    pn_message_out m;
    publish(conn, topic_of(conn, "t"), "x");
    CHECK_EQ(pn_consumer_get(c, 0, &m), 1);
    pn_conn_close(other);
    CHECK_EQ(pn_consumer_get(c, 0, &m), -PN_ECLOSED);
    CHECK_EQ(pn_consumer_get(pn_closed_consumer(), 0, &m), -PN_ECLOSED);
    CHECK_DEPTHS(conn, channel, 0, 1, 0);
    CHECK_OK(pn_consumer_close(c));
    CHECK_EQ(test_stat(engine).backends, 1);
    CHECK_DEPTHS(conn, channel, 1, 0, 0);
    close_scene();
}

/* Whatever the ids: of a thousand that follow each other, within eight standard deviations. */
static void test_sampling_is_even(void)
{
    const uint64_t a_day = 86400ULL * 1000000000 / 1024; /* ids begin with the time */
    for (uint64_t at = 0; at < 30000; at++) {
        uint64_t id = 0x18ea580000000000 + at * (a_day / 30000);
        uint64_t consumer = (at % 7 + 1) << 32 | at % 3;
        int got = 0;
        for (uint64_t i = 0; i < 1000; i++)
            got += pn_is_sampled(id + i, consumer, 42);
        CHECK(got > 420 - 125 && got < 420 + 125);
    }
}

static void test_closing_gives_back_in_the_old_order(void)
{
    open_scene();
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    pn_consumer *c = consumer_of(conn, channel, 10);
    pn_message_out m;
    static const char *const bodies[] = {"1", "2", "3", "4", "5"};
    for (int i = 0; i < 5; i++)
        publish(conn, topic, bodies[i]);
    GET(c, &m, "1");
    GET(c, &m, "2");
    GET(c, &m, "3");
    FINISH(conn, &m);
    CHECK_OK(pn_consumer_close(c));
    CHECK_DEPTHS(conn, channel, 4, 0, 0);
    CHECK_EQ(channel_stat(conn, channel).requeued, 0);
    CHECK_EQ(channel_stat(conn, channel).timed_out, 0);
    c = consumer_of(conn, channel, 10);
    GET(c, &m, "1");
    CHECK_EQ(m.attempts, 2);
    GET(c, &m, "2");
    GET(c, &m, "4");
    CHECK_EQ(m.attempts, 1); /* fetched ahead, but never seen */
    GET(c, &m, "5");
    CHECK_OK(answer(conn, NULL, &m, PN_ANSWER_RELEASE, 0));
    GET(c, &m, "5");
    CHECK_EQ(m.attempts, 1);
    CHECK_OK(pn_consumer_close(c));
    close_scene();
}

static void test_at_most_max_in_flight_and_its_level(void)
{
    open_scene();
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c"), r;
    pn_consumer *c = consumer_of(conn, channel, 2), *d, *none;
    pn_message_out a, b;
    for (int i = 0; i < 5; i++)
        publish(conn, topic, "x");
    GET(c, &a, "x");
    CHECK_OK(pn_consumer_pause(c, 0));
    NOTHING(c);
    CHECK_DEPTHS(conn, channel, 4, 1, 0);
    CHECK_OK(pn_consumer_pause(c, -1));
    GET(c, &b, "x");
    NOTHING(c);
    FINISH(conn, &a);
    GET(c, &a, "x");
    NOTHING(c);
    CHECK_OK(pn_topic_channel_open(conn, topic, "limited", 7, 1, &r));
    d = consumer_of(conn, r, 1);
    CHECK_EQ(pn_consumer_open(conn, r, NULL, &none), -PN_ECONSUMERS);
    CHECK_OK(pn_consumer_close(c));
    CHECK_OK(pn_consumer_close(d));
    close_scene();
}

/* Neither the channel's pause nor the consumer's lets out what was fetched ahead. */
static void test_a_pause_takes_back_what_is_ahead(void)
{
    static const char *const bodies[] = {"1", "2", "3", "4"};
    pn_message_out m;
    for (int by_consumer = 0; by_consumer <= 1; by_consumer++) {
        open_scene();
        pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
        pn_consumer *c = consumer_of(conn, channel, 10), *next;
        for (int i = 0; i < 4; i++)
            publish(conn, topic, bodies[i]);
        GET(c, &m, "1");
        CHECK_DEPTHS(conn, channel, 0, 4, 0);
        if (by_consumer)
            CHECK_OK(pn_consumer_pause(c, 0));
        else
            CHECK_OK(pn_topic_channel_pause(conn, channel, 1));
        NOTHING(c);
        CHECK_DEPTHS(conn, channel, 3, 1, 0);
        CHECK_ENGINE(engine);
        if (by_consumer)
            CHECK_OK(pn_consumer_pause(c, -1));
        else
            CHECK_OK(pn_topic_channel_pause(conn, channel, 0));
        GET(c, &m, "2");
        CHECK_EQ(m.attempts, 1);
        GET(c, &m, "3");
        CHECK_EQ(m.attempts, 1);
        CHECK_DEPTHS(conn, channel, 0, 4, 0);
        CHECK_OK(pn_consumer_close(c));
        next = consumer_of(conn, channel, 10);
        for (int i = 0; i < 4; i++) {
            GET(next, &m, bodies[i]);
            CHECK_EQ(m.attempts, i < 3 ? 2 : 1); /* a consumer that has seen it counts */
        }
        CHECK_OK(pn_consumer_close(next));
        close_scene();
    }
}

static void test_peek_and_e2e(void)
{
    open_scene();
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    pn_consumer *c = consumer_of(conn, channel, 1);
    const double q[] = {0.5, 1.0};
    pn_peeked rows[4];
    uint8_t bodies[4][2];
    double seconds[2];
    pn_message_out m;
    publish(conn, topic, "abc");
    publish(conn, topic, "def");
    CHECK_OK(publish_in(conn, NULL, topic, "ghi", 3600000 * MS, 0, NULL));
    GET(c, &m, "abc");
    CHECK_EQ(pn_topic_channel_peek(conn, channel, rows, 4, bodies[0], 2), 3);
    CHECK(rows[0].state == PN_MESSAGE_READY && memcmp(bodies[0], "de", 2) == 0);
    CHECK(rows[1].state == PN_MESSAGE_DEFERRED && memcmp(bodies[1], "gh", 2) == 0);
    CHECK(rows[1].due_in_ns > 3500000 * MS && rows[1].body_len == 3);
    CHECK(rows[2].state == PN_MESSAGE_IN_FLIGHT && rows[2].attempts == 1);
    CHECK_EQ(pn_topic_channel_e2e(conn, channel, q, 2, seconds), 0);
    FINISH(conn, &m);
    CHECK_EQ(pn_topic_channel_e2e(conn, channel, q, 2, seconds), 1);
    CHECK(seconds[0] > 0 && seconds[0] <= seconds[1] && seconds[1] < 10);
    CHECK_OK(pn_consumer_close(c));
    close_scene();
}

static void test_the_descriptor_is_level_triggered(void)
{
    open_scene();
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    pn_consumer *c = consumer_of(conn, channel, 2);
    pn_message_out m;
    int fd = pn_consumer_fileno(c);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    CHECK_OK(fd);
    CHECK_EQ(pn_consumer_fileno(c), fd);
    NOTHING(c);
    CHECK_EQ(poll(&p, 1, 0), 0);
    publish(conn, topic, "a");
    CHECK_EQ(poll(&p, 1, TEST_PATIENCE_MS), 1);
    publish(conn, topic, "b");
    GET(c, &m, "a");
    CHECK_EQ(poll(&p, 1, 0), 1);
    FINISH(conn, &m);
    GET(c, &m, "b");
    FINISH(conn, &m);
    NOTHING(c);
    CHECK_EQ(poll(&p, 1, 0), 0);
    CHECK_OK(publish_in(conn, NULL, topic, "later", 20 * MS, 0, NULL));
    for (int rc = 0; rc == 0;) { /* a ready descriptor with nothing is allowed, never the reverse */
        CHECK_EQ(poll(&p, 1, TEST_PATIENCE_MS), 1);
        rc = pn_consumer_get(c, 0, &m);
        CHECK(rc == 0 || rc == 1);
    }
    CHECK_OK(pn_consumer_close(c));
    close_scene();
}

/* ---- the latency log ------------------------------------------------------------------------- */

static struct pn_latrec logged[512];

/* All records of the only log in `dir`, which is removed; CHANDEF left out. */
static int read_log(const char *dir)
{
    char path[512];
    struct dirent *entry;
    DIR *stream = opendir(dir);
    int n = 0;
    CHECK(stream != NULL);
    while ((entry = readdir(stream)) != NULL) {
        if (strstr(entry->d_name, ".pynlog") == NULL)
            continue;
        snprintf(path, sizeof path, "%s/%s", dir, entry->d_name);
        FILE *file = fopen(path, "rb");
        struct pn_latrec rec;
        CHECK(file != NULL);
        CHECK_EQ(fseek(file, PN_LATLOG_HEADER, SEEK_SET), 0);
        while (n < (int) (sizeof logged / sizeof *logged) && fread(&rec, sizeof rec, 1, file) == 1)
            if (rec.kind != 0 && rec.kind != PN_LAT_CHANDEF)
                logged[n++] = rec;
        fclose(file);
        unlink(path);
    }
    closedir(stream);
    rmdir(dir);
    return n;
}

/* A process that was taken for dead comes to a consumer's slot that has its next owner by now. */
/* Made while as many connections watched as may: when one of them has left it watches, too. */
static void test_a_descriptor_watches_when_there_is_a_seat(void)
{
    open_scene();
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    pn_consumer *c = consumer_of(conn, channel, 2);
    struct pn_segment *seg = test_inside();
    CHECK_EQ(pn_exchange(&seg->seats, PN_SEATS), 0);
    CHECK(pn_consumer_fileno(c) >= 0);
    NOTHING(c);
    CHECK(!c->watched);
    pn_store_relaxed(&seg->seats, 0);
    pn_fetch_add_relaxed(&seg->ctl->members, 1); /* as if a process had come: it looks again */
    NOTHING(c);
    CHECK(c->watched);
    CHECK_OK(pn_consumer_close(c));
    close_scene();
}

static void test_a_later_consumers_slot_stays(void)
{
    char told[200] = "";
    engine = test_engine(NULL);
    conn = test_connect(engine);
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    pn_consumer *c = consumer_of(conn, channel, 10);
    struct pn_consumer_slot *slot = c->me;
    pn_message_out m;
    publish(conn, topic, "one");
    publish(conn, topic, "two");
    GET(c, &m, "one");
    uint64_t before = pn_load_relaxed(&slot->handed), heirs = pn_handed(slot->generation + 1, 7);
    pn_store_relaxed(&slot->handed, heirs);
    CHECK_EQ(pn_consumer_get(c, 0, &m), -PN_EREAPED);
    CHECK_EQ(pn_load_relaxed(&slot->handed), heirs);
    pn_store_relaxed(&slot->handed, before);
    slot->slot_generation++;
    CHECK_EQ(pn_check(engine, told, sizeof told), 1);
    CHECK(strstr(told, "is of backend 0, which is gone") != NULL);
    slot->slot_generation--;
    CHECK_OK(pn_consumer_close(c));
    close_scene();
}

static bool is_held(pthread_mutex_t *mutex)
{
    if (pthread_mutex_trylock(mutex) != 0)
        return true;
    pthread_mutex_unlock(mutex);
    return false;
}

static void *get_and_finish(void *consumer)
{
    pn_message_out m;
    CHECK_EQ(pn_consumer_get(consumer, TEST_PATIENCE_MS * MS, &m), 1);
    FINISH(conn, &m);
    return NULL;
}

/* As long as its own time-out says. */
static void test_a_second_thread_waits_for_the_first(void)
{
    pthread_t first;
    open_scene();
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    pn_consumer *c = consumer_of(conn, channel, 2);
    CHECK_OK(publish_in(conn, NULL, topic, "1", 500 * MS, 0, NULL));
    CHECK_OK(publish_in(conn, NULL, topic, "2", 500 * MS, 0, NULL));
    CHECK_EQ(pthread_create(&first, NULL, get_and_finish, c), 0);
    CHECK_SOON(is_held(&c->mutex) || channel_stat(conn, channel).finished > 0);
    get_and_finish(c);
    CHECK_EQ(pthread_join(first, NULL), 0);
    CHECK_EQ(channel_stat(conn, channel).finished, 2);
    CHECK_OK(pn_consumer_close(c));
    close_scene();
}

/* Takes the WAKE out of what was logged; whether there is one depends on how slow the test is. */
static int without_sleep(int n)
{
    int kept = 0;
    for (int i = 0; i < n; i++) {
        CHECK(i == 0 || i >= n - 2 || logged[i].ts >= logged[i - 1].ts);
        if (logged[i].kind == PN_LAT_WAKE) {
            CHECK_EQ(logged[i].wake, PN_LATWAKE_TIMER);
            CHECK_EQ(logged[i].flags, PN_LATREC_USEFUL);
            CHECK_EQ(logged[i].batch, 1);
            CHECK_EQ(logged[i].channel, logged[i + 1].channel);
            CHECK_EQ(logged[i + 1].kind, PN_LAT_TIMEOUT); /* which it woke for */
            CHECK_EQ(logged[i + 2].wake, PN_LATWAKE_TIMER);
        } else {
            logged[kept++] = logged[i];
        }
    }
    return kept;
}

static void test_what_the_latency_log_says(void)
{
    static const uint8_t kinds[] = {PN_LAT_PUBLISH, PN_LAT_DELIVER, PN_LAT_REQ, PN_LAT_DELIVER,
                                    PN_LAT_TIMEOUT, PN_LAT_DELIVER, PN_LAT_FIN, PN_LAT_PUBLISH,
                                    PN_LAT_DELIVER, PN_LAT_PUBLISH, PN_LAT_FIN};
    static const uint8_t attempts[] = {0, 1, 1, 2, 2, 3, 3, 0, 1, 0, 1};
    char dir[] = "/dev/shm/pynotify-test-log-XXXXXX";
    const pn_consumer_options o = {.msg_timeout_ns = 30 * MS};
    engine = test_engine(NULL);
    CHECK(mkdtemp(dir) != NULL);
    CHECK_OK(pn_connect(engine, "db", 2, 0, dir, &conn));
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    pn_consumer *c = consumer_with(conn, channel, &o);
    pn_message_out m;
    uint64_t id = publish(conn, topic, "one");
    GET(c, &m, "one");
    CHECK_OK(answer(conn, NULL, &m, PN_ANSWER_REQUEUE, 0));
    GET(c, &m, "one");
    GET(c, &m, "one"); /* after its time-out */
    FINISH(conn, &m);
    publish(conn, topic, "two");
    GET(c, &m, "two");
    pn_txn *txn = test_begin(conn);
    CHECK_OK(answer(conn, txn, &m, PN_ANSWER_FINISH, 0));
    CHECK_OK(publish_in(conn, txn, topic, "three", 0, 0, NULL));
    CHECK_OK(pn_txn_commit(txn));
    CHECK_OK(pn_consumer_close(c));
    close_scene();
    int n = without_sleep(read_log(dir)), at[2] = {-1, -1};
    CHECK_EQ(n, sizeof kinds);
    for (int i = 0; i < n; i++) {
        bool swapped = i >= n - 2; /* of the transaction, in its own order */
        CHECK_EQ(logged[i].kind, kinds[swapped ? 2 * n - 3 - i : i]);
        CHECK_EQ(logged[i].attempts, attempts[swapped ? 2 * n - 3 - i : i]);
        CHECK(i > 6 || logged[i].commit_seq == id);
        CHECK((logged[i].ref_ts != 0) == (logged[i].kind != PN_LAT_PUBLISH));
        at[logged[i].kind != PN_LAT_PUBLISH] = (int) logged[i].channel;
    }
    CHECK(at[0] > 0 && at[1] > 0 && at[0] != at[1]);
}

static pn_conn *logging_connection(char *dir)
{
    pn_conn *logging;
    CHECK(mkdtemp(dir) != NULL);
    CHECK_OK(pn_connect(engine, "db", 2, 0, dir, &logging));
    return logging;
}

static void test_a_wake_up_is_logged_with_its_backend(void)
{
    char dir[] = "/dev/shm/pynotify-test-log-XXXXXX";
    open_scene();
    pn_conn *logging = logging_connection(dir);
    pn_log_wake(logging, PN_LATWAKE_TIMER, true, 7, 1000);
    pn_conn_close(logging);
    close_scene();
    CHECK_EQ(read_log(dir), 1);
    CHECK_EQ(logged[0].kind, PN_LAT_WAKE);
    CHECK_EQ(logged[0].wake, PN_LATWAKE_TIMER);
    CHECK_EQ(logged[0].peer, 1);
    CHECK_EQ(logged[0].batch, 7);
    CHECK_EQ(logged[0].ts, 1000);
}

static int time_outs_in(const char *dir)
{
    int n = read_log(dir), timed_out = 0;
    for (int i = 0; i < n; i++)
        timed_out += logged[i].kind == PN_LAT_TIMEOUT;
    return timed_out;
}

/* More at once than are noted in one hold of the lock. */
static void test_every_time_out_is_logged(void)
{
    enum { LATE = 3 * PN_TOPIC_NOTES + 7 };
    char dir[] = "/dev/shm/pynotify-test-log-XXXXXX";
    const pn_consumer_options hasty = {.max_in_flight = LATE, .msg_timeout_ns = 50 * MS};
    pn_message_out m;
    open_scene();
    pn_conn *logging = logging_connection(dir);
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    pn_consumer *late = consumer_with(conn, channel, &hasty), *c = consumer_of(logging, channel, 1);
    for (int i = 0; i < LATE; i++)
        publish(conn, topic, "x");
    for (int i = 0; i < LATE; i++)
        GET(late, &m, "x");
    int64_t due = test_now_ns() + hasty.msg_timeout_ns;
    CHECK_SOON(test_now_ns() > due);
    for (int i = 0; i < LATE; i++) {
        GET(c, &m, "x");
        CHECK_EQ(m.attempts, 2);
        FINISH(logging, &m);
    }
    CHECK_OK(pn_consumer_close(c));
    CHECK_EQ(channel_stat(conn, channel).timed_out, LATE);
    CHECK_OK(pn_consumer_close(late));
    pn_conn_close(logging);
    close_scene();
    CHECK_EQ(time_outs_in(dir), LATE);
}

/* Also when none looks for messages: what was fetched ahead is passed over, it has expired. */
static void test_a_time_out_noticed_by_the_way_is_logged(void)
{
    char dir[] = "/dev/shm/pynotify-test-log-XXXXXX";
    const pn_consumer_options hasty = {.max_in_flight = 1, .msg_timeout_ns = 50 * MS};
    pn_message_out m;
    open_scene();
    pn_conn *logging = logging_connection(dir);
    pn_ref topic = topic_of(conn, "t"), channel = channel_of(conn, topic, "c");
    pn_consumer *late = consumer_with(conn, channel, &hasty), *c = consumer_of(logging, channel, 3);
    publish(conn, topic, "late");
    GET(late, &m, "late");
    publish(conn, topic, "1");
    CHECK_OK(publish_in(conn, NULL, topic, "mortal", 0, 50 * MS, NULL));
    publish(conn, topic, "2");
    GET(c, &m, "1");
    int64_t due = test_now_ns() + 50 * MS;
    CHECK_SOON(test_now_ns() > due);
    GET(c, &m, "2");
    CHECK_OK(pn_consumer_close(c));
    CHECK_OK(pn_consumer_close(late));
    pn_conn_close(logging);
    close_scene();
    CHECK_EQ(time_outs_in(dir), 1);
}

int main(void)
{
    test_watchdog(100);
    RUN(test_a_consumer_outlives_its_connection);
    RUN(test_sampling);
    RUN(test_sampling_is_even);
    RUN(test_closing_gives_back_in_the_old_order);
    RUN(test_at_most_max_in_flight_and_its_level);
    RUN(test_a_pause_takes_back_what_is_ahead);
    RUN(test_peek_and_e2e);
    RUN(test_the_descriptor_is_level_triggered);
    RUN(test_a_descriptor_watches_when_there_is_a_seat);
    RUN(test_a_later_consumers_slot_stays);
    RUN(test_a_second_thread_waits_for_the_first);
    RUN(test_what_the_latency_log_says);
    RUN(test_a_wake_up_is_logged_with_its_backend);
    RUN(test_every_time_out_is_logged);
    RUN(test_a_time_out_noticed_by_the_way_is_logged);
    return tests_done();
}
