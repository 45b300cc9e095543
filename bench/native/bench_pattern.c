/*
 * bench_pattern.c - what patterns that are listened to cost a notify on another channel.
 *
 * Two segments with the same options stand side by side, and passes alternate between them.  In
 * both a listener of CHANNEL stays awake, since it leaves a message unread, so a pass makes no
 * system call; in one of them another connection listens to 1 to 1,000 patterns as well, of which
 * none matches.  With patterns that begin with a letter, a look at each ends at the first character
 * of the name; with patterns that begin with a `*`, the name is gone through to its end.  The last
 * rows are a pattern that matches: its listener, which does not read meanwhile, is told.
 *
 * Then the matcher itself, with the worst that a pattern and a name of 63 and of 255 bytes can do.
 */
#include "measure.h"

enum { NOTIFIES = 20000, MATCHES = 20000 };

struct side {
    pn_engine *engine;
    pn_conn *sender, *listener, *others;
    pn_batch *batch;
};

static uint8_t payload[PAYLOAD_BYTES];

static void listen_to_pattern(pn_conn *conn, const char *pattern)
{
    pn_txn *txn = NULL;
    must(pn_txn_begin(conn, &txn), "pn_txn_begin");
    must(pn_txn_listen_pattern(txn, pattern, strlen(pattern)), "pn_txn_listen_pattern");
    must(pn_txn_commit(txn), "commit of LISTEN");
}

static void unlisten_all(pn_conn *conn)
{
    pn_txn *txn = NULL;
    must(pn_txn_begin(conn, &txn), "pn_txn_begin");
    must(pn_txn_unlisten_all(txn), "pn_txn_unlisten_all");
    must(pn_txn_commit(txn), "commit of UNLISTEN *");
}

static struct side open_side(const char *name)
{
    pn_options o;
    pn_options_default(&o);
    struct side side = {.engine = open_segment(name, &o), .batch = pn_batch_new()};
    side.sender = connect_to(side.engine);
    side.listener = connect_to(side.engine);
    side.others = connect_to(side.engine);
    listen_to(side.listener, CHANNEL);
    return side;
}

/* ns for one notify. */
static double pass(struct side *side)
{
    must(pn_poll(side->listener, side->batch, 0), "pn_poll");
    must(pn_poll(side->others, side->batch, 0), "pn_poll");
    for (int i = 0; i < 2; i++) /* one is read, one keeps it awake */
        notify_number(side->sender, payload, 0);
    must(pn_poll(side->listener, side->batch, 1), "pn_poll");
    must(pn_poll(side->others, side->batch, 1), "pn_poll");
    int64_t begin = now_ns();
    for (uint64_t i = 0; i < NOTIFIES; i++)
        notify_number(side->sender, payload, i);
    return (double) (now_ns() - begin) / NOTIFIES;
}

static void compare(struct side *with, struct side *without, const char *name, int passes)
{
    double ours[MAX_PASSES], twin[MAX_PASSES];
    pass(with);
    pass(without);
    for (int i = 0; i < passes; i++) {
        ours[i] = pass(with);
        twin[i] = pass(without);
    }
    print_figure(&(figure) {.name = name,
                            .unit = "ns",
                            .ours = ours,
                            .floor = twin,
                            .n = passes,
                            .against = "a segment without patterns",
                            .at_most = true});
}

static void listen_to_many(struct side *side, const char *format, uint32_t n)
{
    char pattern[32];
    for (uint32_t i = 0; i < n; i++) {
        snprintf(pattern, sizeof pattern, format, i);
        listen_to_pattern(side->others, pattern);
    }
}

static void measure_patterns(int passes)
{
    static const struct {
        const char *name, *format;
    } kinds[] = {{"orders.N.*", "orders.%u.*"}, {"*.N", "*.%u"}};
    struct side with = open_side("pattern"), without = open_side("none");
    char name[100];
    compare(&with, &without, "notify, no pattern in either segment", passes);
    for (size_t kind = 0; kind < 2; kind++)
        for (uint32_t n = 1; n <= 1000; n *= 10) {
            listen_to_many(&with, kinds[kind].format, n);
            snprintf(name, sizeof name, "notify, %u patterns as %s are listened to", n,
                     kinds[kind].name);
            compare(&with, &without, name, passes);
            unlisten_all(with.others);
        }
    for (uint32_t n = 0; n <= 100; n = n == 0 ? 100 : 1000) {
        listen_to_many(&with, "orders.%u.*", n);
        listen_to_pattern(with.others, "b*h");
        snprintf(name, sizeof name, "notify that a pattern matches, beside %u others", n);
        compare(&with, &without, name, passes);
        unlisten_all(with.others);
    }
}

/* A `*`, then half as many letters as the name has, and at their end another one. */
static void measure_worst(int passes, size_t len)
{
    char pattern[256], text[256], name[100];
    double ns[MAX_PASSES];
    memset(text, 'a', sizeof text);
    memset(pattern, 'a', sizeof pattern);
    pattern[0] = '*';
    pattern[len / 2] = 'b';
    for (int i = 0; i < passes; i++) {
        int64_t begin = now_ns(), found = 0;
        for (int k = 0; k < MATCHES; k++)
            found += pn_pattern_matches(pattern, len / 2 + 1, text, len);
        if (found != 0)
            die("it matches");
        ns[i] = (double) (now_ns() - begin) / MATCHES;
    }
    snprintf(name, sizeof name, "the worst pattern for a name of %zu bytes", len);
    print_values(name, "ns", ns, passes, 0, true);
}

int main(int argc, char **argv)
{
    settings s = parse_arguments(argc, argv);
    int passes = s.quick ? 5 : 41;
    payload_init(payload);
    pin_to_cpu(0);
    measure_patterns(passes);
    measure_worst(passes, 63);
    measure_worst(passes, 255);
    return 0;
}
