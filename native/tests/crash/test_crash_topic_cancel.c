/*
 * A process that cancels deferred messages which are on disk - alone, in transactions, in prepared
 * ones - is killed at each label on that way, at its first and at later hits; at some of them
 * its successor, too, in the recovery.  Afterwards a message that was never to be cancelled is
 * there, one whose cancel has returned is not, and of a transaction all has happened or nothing;
 * and what is there is counted exactly.  The messages are the channel's (topic/rest.c), or, since
 * the topic is paused, its own (topic/overflow.c).
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdatomic.h>

#include "data_dirs.h"
#include "topics.h"

enum { MESSAGES = 160, MAX_DEPTH = 4, HOUR = 3600 };
enum fate { NONE, THERE, ASKED, GONE };

/* In memory that outlives SIGKILL. */
static struct shared {
    struct {
        _Atomic(uint64_t) id;
        _Atomic(int) fate, group; /* group: of one transaction, 0: none */
    } m[MESSAGES];
    _Atomic(int) n, groups;
} *j;
static const char *label, *dies_before;
static uint32_t nth;
static bool own;
static const char *segment;

static void publish_one(pn_conn *conn, pn_ref topic)
{
    uint64_t id;
    int i = atomic_load(&j->n);
    CHECK(i < MESSAGES);
    CHECK_OK(publish_in(conn, NULL, topic, "later", HOUR * 1000 * MS, 0, &id));
    atomic_store(&j->m[i].id, id);
    atomic_store(&j->m[i].fate, THERE);
    atomic_store(&j->n, i + 1);
}

static void cancel_one(pn_conn *conn, pn_ref topic, int i)
{
    atomic_store(&j->m[i].fate, ASKED);
    CHECK_EQ(pn_topic_cancel(conn, NULL, topic, atomic_load(&j->m[i].id)), 1);
    atomic_store(&j->m[i].fate, GONE);
}

enum end { COMMIT, ABORT, PREPARE_COMMIT, PREPARE_ABORT, ENDS };

/* Two of them together, or neither. */
static void cancel_two(pn_conn *conn, pn_ref topic, int a, int b, enum end end)
{
    pn_txn *txn = test_begin(conn);
    bool commits = end == COMMIT || end == PREPARE_COMMIT;
    const int both[] = {a, b};
    int group = atomic_fetch_add(&j->groups, 1) + 1;
    for (int k = 0; k < 2; k++)
        CHECK_EQ(pn_topic_cancel(conn, txn, topic, atomic_load(&j->m[both[k]].id)), 1);
    for (int k = 0; k < 2 && commits; k++)
        atomic_store(&j->m[both[k]].group, group);
    for (int k = 0; k < 2 && commits; k++)
        atomic_store(&j->m[both[k]].fate, ASKED);
    if (end == PREPARE_COMMIT || end == PREPARE_ABORT)
        CHECK_OK(pn_txn_prepare(txn));
    if (!commits) {
        pn_txn_abort(txn);
        return;
    }
    CHECK_OK(pn_txn_commit(txn));
    for (int k = 0; k < 2; k++)
        atomic_store(&j->m[both[k]].fate, GONE);
}

static void work(const char *dies_at, uint32_t hit)
{
    pn_engine *engine;
    CHECK_OK(pn_open(segment, NULL, &engine));
    pn_conn *conn = test_connect(engine);
    pn_ref topic = topic_of(conn, "t");
    CHECK_OK(pn_crash_arm(dies_at, hit, PN_CRASH_KILL));
    for (int round = 0; round < 8; round++) {
        int first = atomic_load(&j->n);
        while (atomic_load(&j->n) < first + 18)
            publish_one(conn, topic);
        cancel_one(conn, topic, first + 9); /* of one on disk, behind others that stay there */
        for (int end = COMMIT; end < ENDS; end++)
            cancel_two(conn, topic, first + 10 + 2 * end, first + 11 + 2 * end, (enum end) end);
        for (int i = first; i < first + 9; i++)
            cancel_one(conn, topic, i); /* in memory, and then the rest comes back or is passed */
        for (int i = first + 9; i < first + 18; i++)
            if (atomic_load(&j->m[i].fate) == THERE) /* what was aborted */
                cancel_one(conn, topic, i);
    }
}

static void victim(void *arg)
{
    (void) arg;
    work(dies_before != NULL ? dies_before : label, dies_before != NULL ? 3 : nth);
}

static void dies_in_recovery(void *arg)
{
    pn_engine *engine;
    pn_stat stat;
    (void) arg;
    CHECK_OK(pn_open(segment, NULL, &engine));
    CHECK_OK(pn_crash_arm(label, nth, PN_CRASH_KILL));
    CHECK_OK(pn_engine_stat(engine, &stat, NULL, 0));
}

static void killed(void (*body)(void *))
{
    int status = reap(spawn(body, NULL));
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        FAIL("%s was not reached %u times", label, nth);
}

static void crash_case(void *arg)
{
    pn_options o = test_options();
    pn_engine *engine;
    pn_stat stat;
    int groups[MESSAGES] = {0}; /* of each transaction: 1, it has happened; -1, it has not */
    uint64_t there = 0;
    (void) arg;
    memset(j, 0, sizeof *j);
    segment = test_segment_name();
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    CHECK_OK(pn_open(segment, &o, &engine));
    pn_conn *conn = test_connect(engine);
    pn_ref topic = topic_with(conn, "t", MAX_DEPTH, PN_OVERFLOW_DISK);
    channel_of(conn, topic, "c");
    CHECK_OK(pn_topic_pause(conn, topic, own));
    killed(victim);
    if (dies_before != NULL)
        killed(dies_in_recovery);
    CHECK_OK(pn_engine_stat(engine, &stat, NULL, 0));
    CHECK_ENGINE(engine);
    pn_topic_stats s = topic_stat(conn, topic);
    CHECK_EQ(s.depth, own ? s.unfinished + s.on_disk : 0);
    for (int i = 0; i < atomic_load(&j->n); i++) {
        int fate = atomic_load(&j->m[i].fate), group = atomic_load(&j->m[i].group);
        int rc = pn_topic_cancel(conn, NULL, topic, atomic_load(&j->m[i].id));
        CHECK_OK(rc);
        there += (uint64_t) rc;
        if (fate != ASKED && rc != (fate == THERE))
            FAIL("%s, hit %u: message %d has fate %d, and cancel says %d", label, nth, i, fate, rc);
        if (group != 0 && fate == ASKED && groups[group] == 0)
            groups[group] = rc == 1 ? -1 : 1;
        else if (group != 0 && fate == ASKED && groups[group] != (rc == 1 ? -1 : 1))
            FAIL("%s, hit %u: half of transaction %d has happened", label, nth, group);
        CHECK_ENGINE(engine);
    }
    uint64_t counted = s.unfinished + s.on_disk; /* one may be there that was told to no process */
    CHECK(counted == there || counted == there + 1);
    s = topic_stat(conn, topic);
    CHECK_EQ(s.unfinished + s.on_disk, counted - there);
    CHECK_EQ(s.corrupt, 0);
    CHECK_OK(pn_topic_delete(conn, topic));
    CHECK_ENGINE(engine);
    CHECK_EQ(files_in(data_dir), 0);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static void run_label(const char *text, const char *before, unsigned *cases)
{
    static const uint32_t hits[] = {1, 2, 5, 11};
    label = text;
    dies_before = before;
    for (size_t hit = 0; hit < (before != NULL ? 1 : sizeof hits / sizeof hits[0]); hit++) {
        nth = hits[hit];
        CHECK_CHILD(spawn(crash_case, NULL), 0);
        ++*cases;
    }
}

static unsigned run_labels(void)
{
    static const char *const commits[] = {"commit:topics-staged", "commit:before-head",
                                          "commit:after-head", "commit:applied",
                                          "diskqueue:committed"};
    static const char *const owns[] = {"refill:passed", "refill:done"};
    static const char *const rests[] = {"rest:back",  "rest:back-valid", "rest:cursor",
                                        "rest:moved", "rest:followed",   "rest:refilled"};
    unsigned cases = 0;
    for (int i = 0; i < pn_crash_label_count(); i++)
        if (strcmp(pn_crash_label(i), "tombstone:recovered") == 0)
            run_label(pn_crash_label(i), "commit:before-head", &cases);
        else if (strncmp(pn_crash_label(i), "tombstone:", 10) == 0)
            run_label(pn_crash_label(i), NULL, &cases);
    for (size_t i = 0; i < sizeof commits / sizeof commits[0]; i++)
        run_label(commits[i], NULL, &cases);
    for (size_t i = 0; own && i < sizeof owns / sizeof owns[0]; i++)
        run_label(owns[i], NULL, &cases);
    for (size_t i = 0; !own && i < sizeof rests / sizeof rests[0]; i++)
        run_label(rests[i], NULL, &cases);
    run_label("recover:applied", "commit:after-head", &cases);
    run_label("topic-recover:lists", "tombstone:stored", &cases);
    return cases;
}

int main(void)
{
    data_dir_make();
    test_watchdog(110);
    j = mmap(NULL, sizeof *j, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(j != MAP_FAILED);
    unsigned cases = run_labels();
    own = true;
    unsigned owns = run_labels();
    CHECK(cases >= 40 && owns >= 40);
    printf("%u cases\n", cases + owns);
    return 0;
}
