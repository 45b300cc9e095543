/*
 * topic_smaller.h - a durable topic whose messages were given to two channels, in a segment with
 * memory for all of them, and what is left of them in one with little: by test_topic_smaller.c and
 * test_crash_topic_smaller.c.
 */
#ifndef PN_TESTS_TOPIC_SMALLER_H
#define PN_TESTS_TOPIC_SMALLER_H

#include "data_dirs.h"
#include "topics.h"

#define HOUR (3600000 * MS)
enum { LAST = 60, LATE = LAST - 4, LONG = 3000, SHORT = 20, CHANNELS = 2 };
static int channels = CHANNELS; /* that there are */
enum { PLENTY = 4 << 20, LITTLE = 64 << 10 };

/* What a channel still has of a message: deferred for long, in flight or given back, or ready. */
struct left {
    int there, deferred;
    uint32_t attempts; /* so far */
};
/* In memory that outlives SIGKILL. */
static struct left (*left)[LAST + 1];
static int *finishing; /* of each channel: what is being finished */

static int doubtful[CHANNELS]; /* was perhaps got once more than `left` says */
static int unsure[CHANNELS];   /* was perhaps finished */
static bool others;            /* there may be messages of higher numbers, too */

static const char *name;
static pn_engine *engine;
static pn_conn *conn;
static pn_ref topic, channel[CHANNELS];
static pn_consumer *consumer[CHANNELS];
static int got_last[CHANNELS];

static inline void make_left(void)
{
    left = mmap(NULL, CHANNELS * (sizeof *left + sizeof *finishing), PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(left != MAP_FAILED);
    finishing = (int *) &left[CHANNELS];
}

/* Some are so short that there is room for them where there is none for others. */
static inline size_t length_of(int number)
{
    return number % 5 == 4 ? SHORT : LONG;
}

static inline void publish_number(int number, int64_t ttl_ns)
{
    char body[LONG + 1];
    snprintf(body, sizeof body, "%0*d", LONG, 0);
    body[length_of(number)] = '\0';
    char digits[5];
    snprintf(digits, sizeof digits, "%04d", number);
    memcpy(body, digits, 4);
    CHECK_OK(publish_in(conn, NULL, topic, body, 0, ttl_ns, NULL));
}

static inline void attach(uint64_t memory)
{
    const pn_topic_options durable = {
        .given = PN_TOPIC_DURABLE | PN_TOPIC_FSYNC, .durable = 1, .fsync = PN_FSYNC_NONE};
    pn_options o = test_options();
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    o.topic_memory = memory;
    CHECK_OK(pn_open(name, &o, &engine));
    conn = test_connect(engine);
    CHECK_OK(pn_topic_open(conn, "t", 1, &durable, &topic));
    for (int c = 0; c < channels; c++) {
        channel[c] = channel_of(conn, topic, c == 0 ? "a" : "b");
        consumer[c] = consumer_of(conn, channel[c], 1); /* nothing is fetched ahead */
        got_last[c] = 0;
    }
}

/* Of a process that goes on; what it has in flight is given back. */
static inline void detach(void)
{
    for (int c = 0; c < channels; c++)
        CHECK_OK(pn_consumer_close(consumer[c]));
    pn_conn_close(conn);
    pn_engine_close(engine);
}

/* Everything goes but the files; nothing is closed before. */
static inline void reboot(uint64_t memory)
{
    pn_engine *old_engine = engine;
    pn_conn *old_conn = conn;
    pn_consumer *old[CHANNELS] = {consumer[0], consumer[1]};
    CHECK_ENGINE(engine);
    test_segment_remove(name);
    attach(memory);
    for (int c = 0; c < channels; c++)
        pn_consumer_close(old[c]);
    pn_conn_close(old_conn);
    pn_engine_close(old_engine);
    CHECK_ENGINE(engine);
}

static inline pn_message_out get_number(int c, int number)
{
    pn_message_out m;
    CHECK_EQ(pn_consumer_get(consumer[c], TEST_PATIENCE_MS * MS, &m), 1);
    CHECK_EQ(number_in(&m), number);
    return m;
}

/* Channel a has done with 1 to 10, has 11 and 13 given back, 12 for later, 14 in flight; b has
 * done with the odd ones, and given the others back, one of the last for later. */
static inline void fill(int64_t ttl_ns)
{
    memset(left, 0, CHANNELS * (sizeof *left + sizeof *finishing));
    memset(doubtful, 0, sizeof doubtful);
    memset(unsure, 0, sizeof unsure);
    others = false;
    data_dir_empty();
    name = test_segment_name();
    attach(PLENTY);
    for (int i = 1; i <= LAST; i++)
        publish_number(i, ttl_ns);
    for (int i = 1; i <= LAST; i++) {
        left[0][i] =
            (struct left) {.there = i > 10, .deferred = i == 12, .attempts = i > 10 && i < 15};
        if (channels == 1)
            continue;
        left[1][i] = (struct left) {.there = i % 2 == 0, .deferred = i == LATE, .attempts = 1};
        pn_message_out m = get_number(1, i);
        CHECK_OK(answer(conn, NULL, &m, i % 2 == 0 ? PN_ANSWER_REQUEUE : PN_ANSWER_FINISH,
                        i == LATE ? HOUR : 0));
    }
    for (int i = 1; i < 15; i++) {
        pn_message_out m = get_number(0, i);
        if (i <= 10)
            FINISH(conn, &m);
        else if (i < 14)
            CHECK_OK(answer(conn, NULL, &m, PN_ANSWER_REQUEUE, i == 12 ? HOUR : 0));
    }
}

/* Get one and finish it: it is one that is left, in its turn, and knows how often it was got
 * before.  False: there is none. */
static inline bool finish_one(int c)
{
    pn_message_out m;
    int rc = pn_consumer_get(consumer[c], 0, &m);
    CHECK(rc >= 0);
    if (rc == 0)
        return false;
    int i = number_in(&m);
    CHECK(i > got_last[c]);
    got_last[c] = i;
    CHECK_EQ(m.body_len, length_of(i));
    if (others && i > LAST) {
        FINISH(conn, &m);
        return true;
    }
    CHECK(i <= LAST && left[c][i].there && !left[c][i].deferred);
    if (m.attempts != left[c][i].attempts + 1 &&
        (i != doubtful[c] || m.attempts != left[c][i].attempts + 2))
        FAIL("message %d of channel %d has %u attempts, had %u", i, c, m.attempts,
             left[c][i].attempts);
    left[c][i].attempts = m.attempts;
    finishing[c] = i;
    FINISH(conn, &m);
    left[c][i].there = 0;
    finishing[c] = 0;
    return true;
}

/* Each channel in turns, since what the other one does not finish takes room; how many. */
static inline int finish_some(int most)
{
    int n = 0, idle = 0;
    for (int c = 0; n < most && idle < channels; c = (c + 1) % channels) {
        bool got = finish_one(c);
        n += got;
        idle = got ? 0 : idle + 1;
    }
    return n;
}

/* How many messages some channel still has; their bytes. */
static inline uint64_t count_left(uint64_t *bytes)
{
    uint64_t n = 0;
    *bytes = 0;
    for (int i = 1; i <= LAST; i++) {
        bool there = left[0][i].there || left[1][i].there;
        n += there;
        *bytes += there ? length_of(i) : 0;
    }
    return n;
}

/* Those that will come in an hour. */
static inline uint64_t count_deferred(void)
{
    uint64_t n = 0;
    for (int c = 0; c < CHANNELS; c++)
        for (int i = 1; i <= LAST; i++)
            n += left[c][i].there && left[c][i].deferred;
    return n;
}

/* What can be got was got, but for what is to be got later. */
static inline void check_nothing_is_left(void)
{
    uint64_t deferred = 0;
    for (int c = 0; c < channels; c++, deferred += channel_stat(conn, channel[c - 1]).deferred)
        for (int i = 1; i <= LAST; i++)
            if (left[c][i].there != left[c][i].deferred && i != unsure[c])
                FAIL("message %d did not come to channel %d", i, c);
    CHECK_EQ(deferred, count_deferred());
}

#endif
