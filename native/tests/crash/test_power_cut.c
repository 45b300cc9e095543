/*
 * test_power_cut.c - durable topics after a power cut, at any moment.
 *
 *     test_power_cut [CUTS [STEPS]]
 *
 * A worker publishes to A one by one, in batches and in transactions, moves messages from A to B
 * in transactions of a publish and a finish, requeues and finishes, while the log is compacted.
 * A's second channel is not consumed, rests (topic/rest.c), and is emptied now and then; its third
 * is deleted instead, and made again, and has nothing of before.  B is left
 * alone for a while, and has more than its part of the memory then: the rest is in overflow files.
 * The log's files are short, so that a compaction removes several; a cut leaves any of those.
 * Then the directory is made as a cut after so many of its writes may leave it (power_cut.h),
 * opened, and read.  What a call had done when it returned is there, and nothing of it is twice or
 * in both topics.  Of the call under way a part may be there: compaction, in the same hold of the
 * lock, carries what it has just published into another page than that of its batch.
 *
 * With fsync="always" that is so of every call that has returned; with "interval" of those that had
 * returned when the last sync began, and the later ones may have happened, or not, or in part as
 * above, each by itself: no sync tells in which order their pages reach the disk.
 */
#include "power_cut.h"

#include "data_dirs.h"
#include "topics.h"

enum {
    KEYS = 1 << 16,
    CALLS = 1 << 16,
    LONGEST = 9000,
    EMPTY_AFTER = 370,
    REMAKE_AFTER = 60,
    STARVE = 8
};
enum place { NOWHERE, IN_A, IN_B, FINISHED };

struct call {
    unsigned begin, end; /* how many operations were recorded before it, and when it returned */
    uint32_t first, n;   /* keys */
    uint8_t place;       /* where they are afterwards */
};

static struct call calls[CALLS];
static unsigned n_calls, n_keys;
enum { EMPTIED = 256 };
/* A channel of A that is not consumed has had all of keys below `n` taken away. */
static struct idle {
    const char *name;
    pn_ref channel;
    unsigned times;
    struct call emptied[EMPTIED];
} idle_channel = {.name = "idle"}, remade = {.name = "remade"};
static bool rested, overflowed;
static uint8_t may[KEYS]; /* the places where it may be, a bit each; one bit: it is there, once */
static uint8_t found[KEYS], idle[KEYS];
static uint32_t fsync_option;
static unsigned gaps; /* cuts that left an older file of the log, but not the one after it */
static unsigned torn; /* cuts after which records were told to be lost */

static pn_engine *engine;
static pn_conn *conn;
static pn_ref a, b;
static pn_consumer *of_a, *of_b, *of_idle; /* a consumer after the cut only */

/* ---- bodies --------------------------------------------------------------------------------- */

static uint8_t body_byte(uint32_t key, size_t at)
{
    return (uint8_t) (key * 131 + at * 7);
}

/* The key, and bytes that say whether they are its own. */
static size_t make_body(uint32_t key, size_t len, uint8_t *body)
{
    memcpy(body, &key, sizeof key);
    for (size_t at = sizeof key; at < len; at++)
        body[at] = body_byte(key, at);
    return len;
}

static uint32_t key_of(const pn_message_out *m)
{
    uint32_t key;
    CHECK(m->body_len >= sizeof key);
    memcpy(&key, m->body, sizeof key);
    CHECK(key < n_keys);
    for (size_t at = sizeof key; at < m->body_len; at++)
        CHECK_EQ(m->body[at], body_byte(key, at));
    return key;
}

static size_t any_length(void)
{
    static const size_t lengths[] = {20, 300, 300, 3000, LONGEST};
    return lengths[cut_random(5)];
}

/* ---- the worker ----------------------------------------------------------------------------- */

static void open_all(const char *segment)
{
    const pn_topic_options o = {
        .given = PN_TOPIC_DURABLE | PN_TOPIC_FSYNC, .durable = 1, .fsync = fsync_option};
    const pn_consumer_options all = {.max_in_flight = 65535};
    pn_options options = test_options();
    snprintf(options.data_dir, sizeof options.data_dir, "%s", data_dir);
    options.topic_memory = 1 << 20;
    CHECK_OK(pn_open(segment, &options, &engine));
    conn = test_connect(engine);
    CHECK_OK(pn_topic_open(conn, "A", 1, &o, &a));
    CHECK_OK(pn_topic_open(conn, "B", 1, &o, &b));
    of_a = consumer_with(conn, channel_of(conn, a, "a"), &all);
    of_b = consumer_with(conn, channel_of(conn, b, "b"), &all);
    idle_channel.channel = channel_of(conn, a, idle_channel.name);
    remade.channel = channel_of(conn, a, remade.name);
}

static void close_all(void)
{
    CHECK_OK(pn_consumer_close(of_a));
    CHECK_OK(pn_consumer_close(of_b));
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static struct call *begin_call(uint32_t first, uint32_t n, enum place place)
{
    CHECK(n_calls < CALLS);
    calls[n_calls] = (struct call) {.begin = cut.n, .first = first, .n = n, .place = place};
    return &calls[n_calls++];
}

static void publish_in_transaction(uint32_t n)
{
    static uint8_t body[LONGEST];
    uint64_t id;
    struct call *call = begin_call(n_keys, n, IN_A);
    pn_txn *txn = n > 1 ? test_begin(conn) : NULL;
    for (uint32_t i = 0; i < n; i++) {
        const pn_message_in in = {.body = body,
                                  .body_len = make_body(n_keys, any_length(), body),
                                  .delay_ns = n_keys % 8 == 0 ? 1000000 : 0};
        n_keys++;
        CHECK_OK(pn_topic_publish(conn, txn, a, &in, &id));
    }
    if (txn != NULL)
        CHECK_OK(pn_txn_commit(txn));
    call->end = cut.n;
}

static void publish_batch(uint32_t n)
{
    static uint8_t bodies[8 * LONGEST];
    uint32_t lens[8];
    uint64_t id;
    size_t at = 0;
    struct call *call = begin_call(n_keys, n, IN_A);
    for (uint32_t i = 0; i < n; i++, at += lens[i - 1])
        lens[i] = (uint32_t) make_body(n_keys++, any_length(), bodies + at);
    const pn_message_in common = {0};
    CHECK_OK(pn_topic_publish_many(conn, NULL, a, bodies, lens, n, &common, &id));
    call->end = cut.n;
}

/* A message of A goes to B in one transaction; one in six goes back to A instead. */
static void move_one(void)
{
    static uint8_t body[LONGEST];
    pn_message_out m;
    uint64_t id;
    if (pn_consumer_get(of_a, 0, &m) != 1)
        return;
    if (cut_random(6) == 0) {
        CHECK_OK(answer(conn, NULL, &m, PN_ANSWER_REQUEUE, 0));
        return;
    }
    uint32_t key = key_of(&m);
    const pn_message_in in = {.body = body, .body_len = make_body(key, any_length(), body)};
    struct call *call = begin_call(key, 1, IN_B);
    pn_txn *txn = test_begin(conn);
    CHECK_OK(pn_topic_publish(conn, txn, b, &in, &id));
    CHECK_OK(answer(conn, txn, &m, PN_ANSWER_FINISH, 0));
    CHECK_OK(pn_txn_commit(txn));
    call->end = cut.n;
}

static void finish_one(void)
{
    pn_message_out m;
    if (pn_consumer_get(of_b, 0, &m) != 1)
        return;
    struct call *call = begin_call(key_of(&m), 1, FINISHED);
    FINISH(conn, &m);
    call->end = cut.n;
}

static void empty_one(struct idle *of)
{
    CHECK(of->times < EMPTIED);
    struct call *call = &of->emptied[of->times++];
    *call = (struct call) {.begin = cut.n, .n = n_keys};
    if (of == &remade) {
        CHECK_OK(pn_topic_channel_delete(conn, of->channel));
        of->channel = channel_of(conn, a, of->name);
    } else {
        CHECK_OK(pn_topic_channel_empty(conn, of->channel));
    }
    call->end = cut.n;
}

/* B is left alone until it has overflow files, and then until there is nothing left of it. */
static bool is_left_alone(void)
{
    static bool alone = true;
    pn_topic_stats stats = topic_stat(conn, b);
    overflowed |= stats.on_disk > 20;
    if (alone ? stats.on_disk > 20 : stats.unfinished == 0)
        alone = !alone;
    return alone;
}

static void one_step(void)
{
    uint64_t dice = cut_random(100);
    bool alone = is_left_alone();
    if (dice < 20)
        publish_in_transaction(1);
    else if (dice < 25)
        publish_in_transaction(3);
    else if (dice < 30)
        publish_batch(5);
    else if (dice < 66)
        for (int n = 0; n < (alone ? 3 : 1); n++)
            move_one();
    else
        for (int n = 0; n < 3 && !alone; n++)
            finish_one();
    rested |= topic_stat(conn, a).on_disk > 10;
    if (fsync_option == PN_FSYNC_INTERVAL && cut_random(40) == 0)
        pn_store_relaxed(&test_inside()->topics.ctl->log.synced_at, 0); /* it is due */
}

static void work(unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        if (i % EMPTY_AFTER == EMPTY_AFTER - 1)
            empty_one(&idle_channel);
        if (i % REMAKE_AFTER == REMAKE_AFTER - 1)
            empty_one(&remade);
        if (cut_random(STARVE) == 0) /* of room on the disk, so it is compacted earlier */
            test_inside()->topics.ctl->log.queue.starved = 1;
        one_step();
    }
}

/* ---- after the cut -------------------------------------------------------------------------- */

/* Operations before that were on the disk for certain when the power went after `k` of them. */
static unsigned synced_before(unsigned k)
{
    unsigned newest = 0, upto = 0;
    if (fsync_option == PN_FSYNC_ALWAYS)
        return k;
    for (unsigned i = 0; i < k; i++) {
        if (cut.op[i].kind == CUT_MAKE)
            newest = cut.op[i].file;
        else if (cut.op[i].kind == CUT_SYNC && cut.op[i].file == newest)
            upto = i;
    }
    return upto;
}

/* Where everything may be when the power goes after `k` operations. */
static void expect_after(unsigned k)
{
    unsigned synced = synced_before(k);
    memset(may, 1 << NOWHERE, sizeof may);
    for (unsigned i = 0; i < n_calls && calls[i].begin < k; i++)
        for (uint32_t key = calls[i].first; key < calls[i].first + calls[i].n; key++)
            if (calls[i].end <= synced)
                may[key] = (uint8_t) (1 << calls[i].place);
            else
                may[key] |= (uint8_t) (1 << calls[i].place);
}

static bool is_certain(uint32_t key)
{
    return (may[key] & (may[key] - 1)) == 0;
}

static void take_all(pn_consumer *consumer, enum place place, unsigned k)
{
    pn_message_out m;
    int rc;
    while ((rc = pn_consumer_get(consumer, 0, &m)) == 1) {
        uint32_t key = key_of(&m);
        if (found[key] != NOWHERE && is_certain(key))
            FAIL("cut after %u operations: message %u is twice, in %u and in %u", k, key,
                 found[key], place);
        found[key] = place;
        FINISH(conn, &m);
    }
    CHECK_OK(rc);
}

/* Whatever became of it elsewhere. */
static void take_idle(const struct idle *of, unsigned k)
{
    pn_message_out m;
    memset(idle, 0, sizeof idle);
    of_idle = consumer_of(conn, of->channel, 10);
    while (pn_consumer_get(of_idle, 0, &m) == 1) {
        uint32_t key = key_of(&m);
        if (idle[key]++ != 0)
            FAIL("cut after %u operations: channel %s has message %u twice", k, of->name, key);
        FINISH(conn, &m);
    }
    CHECK_OK(pn_consumer_close(of_idle));
    unsigned surely = 0, perhaps = 0, synced = synced_before(k);
    bool is_there = true; /* so was it when the others were published */
    for (unsigned i = 0; i < of->times; i++) {
        surely = of->emptied[i].end <= synced ? of->emptied[i].n : surely;
        perhaps = of->emptied[i].begin < k ? of->emptied[i].n : perhaps;
        is_there = of->emptied[i].begin >= k ? is_there : of->emptied[i].end <= synced;
    }
    for (unsigned key = 0; key < surely; key++)
        if (idle[key] != 0)
            FAIL("cut after %u operations: channel %s has message %u of before", k, of->name, key);
    for (unsigned key = perhaps; key < n_keys && (is_there || of != &remade); key++) {
        bool was = may[key] != 1 << NOWHERE, is = (may[key] & 1 << NOWHERE) == 0;
        if (idle[key] != was && idle[key] != is)
            FAIL("cut after %u of %u operations: channel %s has message %u %u times", k, cut.n,
                 of->name, key, idle[key]);
    }
}

static void compare(unsigned k)
{
    for (unsigned key = 0; key < n_keys; key++) {
        bool is_over = found[key] == NOWHERE && (may[key] & 1 << FINISHED) != 0;
        if (!is_over && (may[key] & 1 << found[key]) == 0)
            FAIL("cut after %u of %u operations: message %u is in %u, not in one of %x", k, cut.n,
                 key, found[key], may[key]);
    }
}

/* Does the log have a file, and a later one, and none between them? */
static bool has_gap(const char *dir)
{
    uint64_t first = UINT64_MAX, last = 0, n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        if (strncmp(e->d_name, "log.", 4) != 0)
            continue;
        uint64_t number = strtoull(strrchr(e->d_name, '.') + 1, NULL, 16);
        first = number < first ? number : first;
        last = number > last ? number : last;
        n++;
    }
    closedir(d);
    return n != 0 && last - first + 1 != n;
}

static void look_after(unsigned k, const char *segment)
{
    char dir[PATH_MAX];
    snprintf(dir, sizeof dir, "%s/%s", data_dir, segment);
    CHECK(mkdir(dir, 0700) == 0);
    cut_leave(k, dir);
    gaps += has_gap(dir);
    expect_after(k);
    memset(found, NOWHERE, sizeof found);
    open_all(segment);
    take_all(of_a, IN_A, k);
    take_all(of_b, IN_B, k);
    torn += topic_stat(conn, a).corrupt != 0;
    take_idle(&idle_channel, k);
    take_idle(&remade, k);
    compare(k);
    CHECK_ENGINE(engine);
    close_all();
    test_segment_remove(segment);
    directory_empty(open(dir, O_RDONLY | O_DIRECTORY));
    CHECK(rmdir(dir) == 0);
}

static unsigned cuts = 60, steps = 1500;

static void forget_all(void)
{
    for (unsigned i = 0; i < cut.n; i++)
        free(cut.op[i].bytes);
    memset(&cut, 0, sizeof cut);
    n_calls = n_keys = idle_channel.times = remade.times = 0;
    rested = overflowed = false;
    gaps = torn = 0;
}

/* One in eight is while a channel is deleted and made again. */
static unsigned any_moment(unsigned first, unsigned last)
{
    if (cut_random(8) != 0)
        return cut_moment(first, last);
    const struct call *call = &remade.emptied[cut_random(remade.times)];
    return call->begin + 1 + (unsigned) cut_random(call->end - call->begin);
}

static void cut_power(uint32_t fsync, unsigned times)
{
    const char *segment = test_segment_name();
    forget_all();
    fsync_option = fsync;
    data_dir_make();
    snprintf(cut.dir, sizeof cut.dir, "%s/%s", data_dir, segment);
    open_all(segment);
    test_inside()->topics.ctl->log.compact_from = 128 << 10;
    test_inside()->topics.ctl->log.queue.max_file = 64 << 10; /* so that it drops several */
    unsigned first = cut.n;
    work(steps);
    unsigned last = cut.n;
    CHECK(cut.removed >= 2); /* files of the log that was compacted */
    CHECK(test_inside()->topics.ctl->log.compactions > steps / 600);
    CHECK(rested);
    CHECK(overflowed);
    cut.dir[0] = '\0';
    close_all();
    test_segment_remove(segment);
    const char *copy = test_segment_name();
    for (unsigned i = 0; i < times; i++)
        look_after(any_moment(first, last), copy);
    CHECK(gaps > 0 || times < 30);
    CHECK(torn > 0 || times < 30);
}

static void test_nothing_acknowledged_is_missing_after_a_power_cut(void)
{
    cut_power(PN_FSYNC_ALWAYS, cuts);
}

static void test_nothing_synced_is_missing_with_an_interval(void)
{
    cut_power(PN_FSYNC_INTERVAL, cuts / 2);
}

int main(int argc, char **argv)
{
    test_watchdog(600);
    cuts = argc > 1 ? (unsigned) atoi(argv[1]) : cuts;
    steps = argc > 2 ? (unsigned) atoi(argv[2]) : steps;
    RUN(test_nothing_acknowledged_is_missing_after_a_power_cut);
    RUN(test_nothing_synced_is_missing_with_an_interval);
    return tests_done();
}
