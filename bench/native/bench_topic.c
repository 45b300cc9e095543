/*
 * bench_topic.c - what a message of a topic costs.
 *
 * One process and one thread: publishing 200 bytes one at a time and in one call, getting and
 * finishing, and, with 1,000,000 deferred messages in the channel, adding one and firing one.  A
 * figure is the time of a pass divided by its messages.  There is no floor for these: they are
 * absolute, and their bars are those of the issue.
 *
 * Then from a publish to the message in the hand of a consumer that slept, in another process,
 * against the same with a notification and a listener: as bench_wakeup.c does it, both pinned to
 * one CPU, in alternating passes.
 */
#include "measure.h"

#define BODY_BYTES 200
#define DEFERRED   1000000
#define HOUR_NS    INT64_C(3600000000000)

static const char NOTIFICATION[] = "a notification to a listener that slept";

static pn_engine *engine;
static pn_conn *conn;

static pn_ref channel_of(const char *name, pn_ref *topic)
{
    pn_ref channel;
    must(pn_topic_open(conn, name, strlen(name), NULL, topic), "pn_topic_open");
    must(pn_topic_channel_open(conn, *topic, "c", 1, -1, &channel), "pn_topic_channel_open");
    return channel;
}

/* ---- publish, get, finish ----------------------------------------------------------------- */

static void finish_all(pn_consumer *c, int n)
{
    pn_message_out m;
    for (int i = 0; i < n; i++) {
        if (must(pn_consumer_get(c, 0, &m), "pn_consumer_get") != 1)
            die("message %d is missing", i);
        if (m.body_len != BODY_BYTES)
            die("message %d has %llu bytes", i, (unsigned long long) m.body_len);
        must(pn_message_answer(conn, NULL, m.delivery, m.tag, m.id, PN_ANSWER_FINISH, 0, NULL, 0),
             "finish");
    }
}

static void throughput(settings s)
{
    int passes = s.quick ? 5 : 15, n = s.quick ? 20000 : 100000;
    double one[MAX_PASSES], many[MAX_PASSES], finished[MAX_PASSES];
    char *bodies = malloc((size_t) n * BODY_BYTES);
    uint32_t *lens = malloc((size_t) n * sizeof *lens);
    const pn_consumer_options o = {.max_in_flight = 100};
    pn_consumer *c;
    pn_ref topic, channel = channel_of("throughput", &topic);
    uint64_t id;
    if (bodies == NULL || lens == NULL)
        die("no memory");
    memset(bodies, 'x', (size_t) n * BODY_BYTES);
    for (int i = 0; i < n; i++)
        lens[i] = BODY_BYTES;
    must(pn_consumer_open(conn, channel, &o, &c), "pn_consumer_open");
    for (int pass = -1; pass < passes; pass++) {
        int at = pass < 0 ? 0 : pass;
        const pn_message_in in = {.body = bodies, .body_len = BODY_BYTES};
        int64_t begin = now_ns();
        for (int i = 0; i < n; i++)
            must(pn_topic_publish(conn, NULL, topic, &in, &id), "pn_topic_publish");
        int64_t published = now_ns();
        finish_all(c, n);
        int64_t done = now_ns();
        one[at] = (double) n * 1e9 / (double) (published - begin);
        finished[at] = (double) n * 1e9 / (double) (done - published);
        begin = now_ns();
        must(pn_topic_publish_many(conn, NULL, topic, bodies, lens, (size_t) n, NULL, &id),
             "pn_topic_publish_many");
        many[at] = (double) n * 1e9 / (double) (now_ns() - begin);
        finish_all(c, n);
    }
    print_values("publish 200 bytes, one at a time", "1/s", one, passes, 500000, false);
    print_values("publish_many of 200 bytes", "1/s", many, passes, 3000000, false);
    print_values("get and finish", "1/s", finished, passes, 300000, false);
    must(pn_consumer_close(c), "pn_consumer_close");
    free(bodies);
    free(lens);
}

/* ---- deferred ----------------------------------------------------------------------------- */

static void publish_deferred(pn_ref topic, int n, int64_t delay, uint64_t *random)
{
    uint64_t id;
    pn_message_in in = {.body = "deferred", .body_len = 8};
    for (int i = 0; i < n; i++) {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        in.delay_ns = delay + (delay > 1 ? (int64_t) (*random % (uint64_t) HOUR_NS) : 0);
        must(pn_topic_publish(conn, NULL, topic, &in, &id), "pn_topic_publish");
    }
}

static void deferred(settings s)
{
    int passes = s.quick ? 3 : 9, n = s.quick ? 2000 : 20000;
    double add[MAX_PASSES], fire[MAX_PASSES];
    uint64_t random = 88172645463325252ULL;
    pn_topic_channel_stats stats;
    pn_ref topic, channel = channel_of("deferred", &topic);
    publish_deferred(topic, DEFERRED, HOUR_NS, &random);
    for (int pass = 0; pass < passes; pass++) {
        int64_t begin = now_ns();
        publish_deferred(topic, n, HOUR_NS, &random);
        add[pass] = (double) (now_ns() - begin) / n;
        publish_deferred(topic, n, 1, &random); /* due at once: at the top of the heap */
        begin = now_ns();
        do /* a look fires so many and lets others have the lock */
            must(pn_topic_channel_stat(conn, channel, &stats), "pn_topic_channel_stat");
        while (stats.depth < (uint64_t) n * (uint64_t) (pass + 1));
        fire[pass] = (double) (now_ns() - begin) / n;
    }
    print_values("publish a deferred message, 1,000,000 there", "ns", add, passes, 2000, true);
    print_values("fire a deferred message, 1,000,000 there", "ns", fire, passes, 2000, true);
    must(pn_topic_delete(conn, topic), "pn_topic_delete");
}

/* ---- a sleeper ---------------------------------------------------------------------------- */

typedef struct plan {
    board *board;
    pn_ref topic, channel;
    bool consumes;
} plan;

static void consume(pn_conn *mine, pn_consumer *c, board *b, uint64_t count)
{
    pn_message_out m;
    for (uint64_t i = 0; i < count;) {
        int rc = pn_consumer_get(c, -1, &m);
        if (rc == -EINTR)
            continue;
        must(rc, "pn_consumer_get");
        take(b, i++);
        must(pn_message_answer(mine, NULL, m.delivery, m.tag, m.id, PN_ANSWER_FINISH, 0, NULL, 0),
             "finish");
    }
}

static void receive(pn_conn *mine, pn_batch *batch, board *b, uint64_t count)
{
    for (uint64_t i = 0; i < count;) {
        sleep_until_told(mine);
        if (must(pn_poll(mine, batch, 0), "pn_poll") != 0)
            take(b, i++);
    }
}

static void sleeper(int socket, void *arg)
{
    const plan *p = arg;
    pn_conn *mine = connect_to(engine);
    pn_batch *batch = pn_batch_new();
    pn_consumer *c = NULL;
    pin_to_cpu(0);
    if (p->consumes)
        must(pn_consumer_open(mine, p->channel, NULL, &c), "pn_consumer_open");
    else
        listen_to(mine, "wake");
    tell(socket, 0);
    for (uint64_t count; (count = hear(socket)) != QUIT; tell(socket, 0)) {
        atomic_store(&p->board->taken, 0);
        tell(socket, 0);
        if (p->consumes)
            consume(mine, c, p->board, count);
        else
            receive(mine, batch, p->board, count);
    }
    if (c != NULL)
        must(pn_consumer_close(c), "pn_consumer_close");
    pn_batch_free(batch);
    pn_conn_close(mine);
}

static void wake(void *arg, uint64_t i)
{
    static const char body[BODY_BYTES];
    const plan *p = arg;
    const pn_message_in in = {.body = body, .body_len = sizeof body};
    uint64_t id;
    (void) i;
    if (p->consumes)
        must(pn_topic_publish(conn, NULL, p->topic, &in, &id), "pn_topic_publish");
    else
        must(pn_notify_cstr(conn, "wake", body, sizeof body), "pn_notify");
}

/* The median, ns. */
static double pass(child c, int stat_fd, plan *p, int count)
{
    tell(c.socket, (uint64_t) count);
    hear(c.socket);
    double median = median_wakeup(p->board, stat_fd, count, wake, p);
    hear(c.socket);
    return median;
}

static void wakeup(settings s)
{
    int pairs = s.quick ? 5 : 11, count = s.quick ? 400 : 2000, stat_fd[2];
    double medians[2][MAX_PASSES];
    plan plans[2];
    child c[2];
    pn_ref topic, channel = channel_of("wakeup", &topic);
    for (int k = 0; k < 2; k++) {
        plans[k] = (plan) {.board = shared_memory(sizeof(board)),
                           .topic = topic,
                           .channel = channel,
                           .consumes = k == 0};
        c[k] = start_child(sleeper, &plans[k]);
        hear(c[k].socket);
        stat_fd[k] = open_stat(c[k].pid);
    }
    pin_to_cpu(0);
    for (int i = -1; i < pairs; i++) /* the first is a warm-up */
        for (int step = 0; step < 2; step++) {
            int k = i % 2 != 0 ? 1 - step : step;
            double median = pass(c[k], stat_fd[k], &plans[k], count);
            if (i >= 0)
                medians[k][i] = median;
        }
    print_figure(&(figure) {.name = "a sleeping consumer gets a message, one CPU",
                            .unit = "ns",
                            .ours = medians[0],
                            .floor = medians[1],
                            .n = pairs,
                            .against = NOTIFICATION,
                            .bar = 1.2,
                            .at_most = true,
                            .note = "one value a pass: the median of its messages"});
    for (int k = 0; k < 2; k++)
        end_child(c[k]);
}

int main(int argc, char **argv)
{
    settings s = parse_arguments(argc, argv);
    pn_options o;
    pn_options_default(&o);
    o.topic_memory = UINT64_C(640) << 20;
    engine = open_segment("topic", &o);
    conn = connect_to(engine);
    throughput(s);
    deferred(s);
    wakeup(s);
    pn_conn_close(conn);
    pn_engine_close(engine);
    return 0;
}
