/*
 * bench_calls.c - what single calls of the core cost its caller, in processor time.
 *
 * One thread with two connections: one sends 100 bytes, the other listens and is awake, so no
 * signal is sent; bodies of topics have 200 bytes.  What prepares a call is not timed.
 *
 * --serve: the other half of `python -m bench --only calls`, which makes the same calls from
 * Python.  It reads lines "CALL COUNT" and answers each with the nanoseconds of one, until its
 * input ends; so the passes of both can take turns.
 */
#include "measure.h"

#define BODY_BYTES 200
#define AT_ONCE    1000 /* messages of a poll, payloads of a notify_many */

static pn_conn *sender, *listener;
static pn_batch *batch;
static pn_consumer *consumer;
static pn_ref topic;
static char payloads[AT_ONCE * PAYLOAD_BYTES], body[BODY_BYTES];
static uint32_t lens[AT_ONCE];

static int64_t cpu_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (int64_t) ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* ---- the calls ---------------------------------------------------------------------------- */

static void notify(void)
{
    must(pn_notify(sender, CHANNEL, strlen(CHANNEL), payloads, PAYLOAD_BYTES), "pn_notify");
}

static void notify_many(void)
{
    uint64_t queued;
    must(
        pn_notify_many(sender, NULL, CHANNEL, strlen(CHANNEL), payloads, lens, AT_ONCE, 0, &queued),
        "pn_notify_many");
}

static void poll_many(void)
{
    if (must(pn_poll(listener, batch, 0), "pn_poll") != AT_ONCE)
        die("a poll of %zu messages", batch->n);
}

static void poll_one(void)
{
    if (must(pn_poll(listener, batch, 1), "pn_poll") != 1)
        die("a message is missing");
}

static void poll_none(void)
{
    if (must(pn_poll(listener, batch, 0), "pn_poll") != 0)
        die("a message that was not sent");
}

static void notify_and_poll(void)
{
    notify();
    poll_one();
}

static void publish(void)
{
    const pn_message_in in = {.body = body, .body_len = BODY_BYTES};
    uint64_t id;
    must(pn_topic_publish(sender, NULL, topic, &in, &id), "pn_topic_publish");
}

static void get_and_finish(void)
{
    pn_message_out m;
    if (must(pn_consumer_get(consumer, 0, &m), "pn_consumer_get") != 1)
        die("a message is missing");
    must(pn_message_answer(sender, NULL, m.delivery, m.tag, m.id, PN_ANSWER_FINISH, 0, NULL, 0),
         "finish");
}

/* ---- passes ------------------------------------------------------------------------------- */

static void drain(void)
{
    must(pn_poll(listener, batch, 0), "pn_poll");
}

static void notify_each(int n)
{
    for (int i = 0; i < n; i++)
        notify();
}

static void publish_each(int n)
{
    for (int i = 0; i < n; i++)
        publish();
}

static void take_all(int n)
{
    for (int i = 0; i < n; i++)
        get_and_finish();
}

static void send_many(int n)
{
    (void) n;
    notify_many();
}

static void take_batch(int n)
{
    (void) n;
    drain();
}

typedef struct call {
    const char *name, *title;
    void (*make)(void);
    void (*before)(int n), (*after)(int n); /* of a round; NULL: nothing */
    int rounds_of;                          /* calls; 0: all of a pass */
    int each;                               /* messages of a call */
} call;

static const call calls[] = {
    {"notify", "notify", notify, NULL, take_batch, 0, 1},
    {"notify-many", "notify_many of 1,000, a payload", notify_many, NULL, take_batch, 1, AT_ONCE},
    {"poll-many", "poll of 1,000, a message", poll_many, send_many, NULL, 1, AT_ONCE},
    {"poll-one", "poll of one", poll_one, notify_each, NULL, 0, 1},
    {"poll-none", "poll that finds nothing", poll_none, NULL, NULL, 0, 1},
    {"notify-poll", "notify and poll of it", notify_and_poll, NULL, NULL, 0, 1},
    {"publish", "publish", publish, NULL, take_all, 0, 1},
    {"get-finish", "get and finish", get_and_finish, publish_each, NULL, 0, 1},
};
#define CALLS ((int) (sizeof calls / sizeof *calls))

/* Nanoseconds of one message of `count`. */
static double pass(const call *c, int count)
{
    int64_t spent = 0;
    int of = c->rounds_of != 0 ? c->rounds_of : count, n = count / c->each;
    for (int done = 0; done < n; done += of) {
        if (c->before != NULL)
            c->before(of);
        int64_t begin = cpu_ns();
        for (int i = 0; i < of; i++)
            c->make();
        spent += cpu_ns() - begin;
        if (c->after != NULL)
            c->after(of);
    }
    return (double) spent / ((double) n * c->each);
}

static void serve(void)
{
    char name[32];
    int count;
    while (scanf("%31s %d", name, &count) == 2) {
        const call *c = calls;
        while (c < calls + CALLS && strcmp(c->name, name) != 0)
            c++;
        if (c == calls + CALLS || count < AT_ONCE)
            die("no call %s of %d", name, count);
        printf("%.3f\n", pass(c, count));
        fflush(stdout);
    }
}

static void print_all(settings s)
{
    int passes = s.quick ? 3 : 15, count = s.quick ? 2000 : 20000;
    double values[MAX_PASSES];
    for (int c = 0; c < CALLS; c++) {
        pass(&calls[c], count);
        for (int i = 0; i < passes; i++)
            values[i] = pass(&calls[c], count);
        print_values(calls[c].title, "ns", values, passes, 0, true);
    }
}

int main(int argc, char **argv)
{
    bool serves = argc == 2 && strcmp(argv[1], "--serve") == 0;
    if (serves)
        argc = 1;
    settings s = parse_arguments(argc, argv);
    pn_options o;
    pn_options_default(&o);
    pn_engine *engine = open_segment("calls", &o);
    const pn_consumer_options of = {.max_in_flight = 100};
    pn_ref channel;
    sender = connect_to(engine);
    listener = connect_to(engine);
    batch = pn_batch_new();
    if (batch == NULL)
        die("no memory");
    listen_to(listener, CHANNEL);
    must(pn_topic_open(sender, "t", 1, NULL, &topic), "pn_topic_open");
    must(pn_topic_channel_open(sender, topic, "c", 1, -1, &channel), "pn_topic_channel_open");
    must(pn_consumer_open(sender, channel, &of, &consumer), "pn_consumer_open");
    memset(payloads, 'x', sizeof payloads);
    memset(body, 'x', sizeof body);
    for (uint32_t i = 0; i < AT_ONCE; i++) {
        memcpy(payloads + i * PAYLOAD_BYTES, &i, sizeof i); /* no two are the same */
        lens[i] = PAYLOAD_BYTES;
    }
    if (serves)
        serve();
    else
        print_all(s);
    must(pn_consumer_close(consumer), "pn_consumer_close");
    pn_batch_free(batch);
    pn_conn_close(listener);
    pn_conn_close(sender);
    pn_engine_close(engine);
    return 0;
}
