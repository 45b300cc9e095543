/*
 * A process that writes the log of durable topics, syncs and compacts it is killed at each label of
 * topic_log.c and of what it stands on, at its first and at later hits.  A process that goes on
 * in the segment, and one that finds nothing but the files, has every batch that was told to be
 * written, the one that was being written whole or not at all, and nothing else.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "topiclogs.h"

#include <stdatomic.h>

static struct shared {
    struct plain before, after; /* without and with the batch that is being written */
    _Atomic(uint64_t) random, next_id;
    _Atomic(uint64_t) seq; /* of the log with that batch */
} *shared;
static const char *label;
static uint32_t nth;
static struct told told;

enum { BATCHES = 400, FILE_SIZE = 12000 };

static void one_batch(void)
{
    struct op ops[MOST];
    size_t n = random_batch(ops);
    shared->before = *plain;
    shared->after = *plain;
    apply_all(&shared->after, ops, n);
    atomic_store(&shared->seq, pn_diskqueue_now(&tlog->queue)->write_seq);
    CHECK_OK(append_ops(ops, n));
    *plain = shared->after;
    shared->before = shared->after;
}

static void victim(void *arg)
{
    (void) arg;
    CHECK_OK(pn_crash_arm(label, nth, PN_CRASH_KILL));
    for (int i = 0; i < BATCHES; i++) {
        one_batch();
        CHECK_OK(pn_topiclog_compact(tlog, &tfiles, 0, 3));
        if (i % 5 == 0)
            CHECK_OK(pn_topiclog_sync(tlog, &tfiles, UINT64_MAX, NULL));
        CHECK_OK(pn_topiclog_tidy(tlog, &tfiles, i % 7 == 0));
        if (op_next_id >= IDS - 10) {
            const struct op op = {.kind = PN_LOG_TOPIC_DELETED, .topic = below(TOPICS)};
            shared->after = *plain;
            plain_apply(&shared->after, &op);
            atomic_store(&shared->seq, pn_diskqueue_now(&tlog->queue)->write_seq);
            CHECK_OK(append_ops(&op, 1));
            *plain = shared->before = shared->after;
            op_next_id = 1;
        }
        if (i == BATCHES / 2) /* it is unlinked and made again */
            log_start(&told);
    }
}

static void crash_case(void *arg)
{
    bool alive = arg != NULL;
    log_max_file = FILE_SIZE;
    op_random = nth * 77 + (uint64_t) label[10];
    log_make();
    tlog->compact_from = 4000;
    int status = reap(spawn(victim, NULL));
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        FAIL("%s was not reached %u times", label, nth);
    if (alive) { /* the successor knows from the log whether that batch is in it */
        *plain = pn_diskqueue_now(&tlog->queue)->write_seq > atomic_load(&shared->seq)
                     ? shared->after
                     : shared->before;
        op_next_id = 200;
        for (int i = 0; i < 30; i++) {
            one_batch();
            CHECK_OK(pn_topiclog_compact(tlog, &tfiles, 0, 3));
        }
        CHECK_OK(pn_topiclog_sync(tlog, &tfiles, UINT64_MAX, NULL));
    }
    CHECK_EQ(log_start(&told), 0);
    if (memcmp(&told.p, &shared->after, sizeof told.p) != 0)
        check_same(&told.p, &shared->before);
    *plain = told.p;
    one_batch();
    CHECK_EQ(log_start(&told), 0);
    check_same(&told.p, plain);
}

static void remove_log_dir(void)
{
    if (data_dir_owner == getpid())
        log_dir_empty();
}

int main(void)
{
    static const char *const modules[] = {"topiclog:", "diskqueue:", "recfile:"};
    static const uint32_t hits[] = {1, 2, 4, 7};
    unsigned cases = 0;
    data_dir_make();
    atexit(remove_log_dir);
    test_watchdog(100);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    for (int i = 0; i < pn_crash_label_count(); i++) {
        bool ours = false;
        label = pn_crash_label(i);
        for (int k = 0; k < 3; k++)
            ours |= strncmp(label, modules[k], strlen(modules[k])) == 0;
        if (!ours || strcmp(label, "diskqueue:taken") == 0 ||
            strcmp(label, "diskqueue:marked") == 0 || strcmp(label, "diskqueue:emptied") == 0 ||
            strcmp(label, "diskqueue:replaced") == 0)
            continue; /* nothing is got from a log */
        for (size_t hit = 0; hit < sizeof hits / sizeof hits[0]; hit++)
            for (int alive = 0; alive < 2; alive++) {
                nth = hits[hit];
                CHECK_CHILD(spawn(crash_case, alive ? "" : NULL), 0);
                cases++;
            }
    }
    CHECK(cases >= 8 * 15);
    printf("%u cases\n", cases);
    return 0;
}
