/*
 * A process that puts, gets, forgets and empties is killed at each label of diskqueue.c and
 * record_file.c, at its first and at later hits.  Its successor finds every record that was put,
 * each once, but that one whose taker was killed before the queue had moved on is given again; so
 * does one that finds nothing but the files.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "records.h"

#include <stdatomic.h>

static struct shared {
    _Atomic(uint64_t) begun, told;       /* how many were being put, and how many had been put */
    _Atomic(uint64_t) took;              /* how many were taken */
    _Atomic(uint64_t) emptying, emptied; /* no record below is to be found (any more) */
} *shared;
static const char *label;
static uint32_t nth;

enum { ROUNDS = 80 };

/* Behind the others, or in place of them: these are forgotten then. */
static int put_some(uint64_t first, size_t n, bool instead)
{
    struct pn_diskqueue_cursor before;
    static struct pn_record_in records[8];
    static uint8_t bodies[8][LONGEST];
    for (size_t i = 0; i < n; i++) {
        uint32_t length = length_of(first + i);
        memcpy(bodies[i], body_of(first + i, length), length);
        records[i].type = (uint32_t) (first + i);
        records[i].parts = 1;
        records[i].part[0] = (struct iovec) {bodies[i], length};
    }
    pn_diskqueue_end(q, false, &before);
    int rc = put_records(records, n);
    if (rc == 0 && instead)
        pn_diskqueue_forget(q, &files, &before);
    return rc;
}

static int take_told(void *arg, const struct pn_record_out *record)
{
    (void) arg;
    atomic_store(&shared->took, (uint64_t) record->type + 1);
    return 1;
}

static void victim(void *arg)
{
    (void) arg;
    CHECK_OK(pn_crash_arm(label, nth, PN_CRASH_KILL));
    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint64_t first = atomic_load(&shared->told), n = 1 + round % 8;
        bool instead = round % 5 == 2;
        if (instead)
            atomic_store(&shared->emptying, first);
        atomic_store(&shared->begun, first + n);
        CHECK_OK(put_some(first, n, instead));
        atomic_store(&shared->told, first + n);
        if (instead)
            atomic_store(&shared->emptied, first);
        uint32_t max = (uint32_t) (round % 5 + round / 4);
        CHECK_OK(pn_diskqueue_get(q, &files, max, take_told, NULL));
        if (round % 10 == 9) {
            atomic_store(&shared->emptying, first + n);
            CHECK_OK(pn_diskqueue_empty(q, &files));
            atomic_store(&shared->emptied, first + n);
        }
    }
}

/* What is there has to be of one piece, and to end with what was put. */
static void check_left(bool recovered)
{
    uint64_t begun = atomic_load(&shared->begun), told = atomic_load(&shared->told);
    uint64_t took = atomic_load(&shared->took), emptied = atomic_load(&shared->emptied);
    uint64_t depth = pn_diskqueue_depth(q), bytes = pn_diskqueue_bytes(q), sum = 0;
    struct taken t = get(UINT32_MAX);
    CHECK_EQ(t.n, depth);
    for (uint64_t i = 0; i < t.n; i++)
        sum += length_of(t.first + i);
    CHECK_EQ(sum, bytes);
    CHECK_EQ(pn_diskqueue_now(q)->corrupt, 0);
    uint64_t from = took > emptied ? took : emptied;
    if (t.n == 0) {
        CHECK(begun == from || told == from || atomic_load(&shared->emptying) == told);
        return;
    }
    CHECK_EQ(t.last - t.first + 1, t.n);
    CHECK(t.last + 1 == begun || t.last + 1 == told);
    CHECK(t.first >= emptied);
    CHECK(t.first <= from || t.first == atomic_load(&shared->emptying));
    if (!recovered)
        CHECK(t.first + 1 >= from);
}

/* It goes on to be used; and nothing stays behind that is not removed. */
static void check_usable(void)
{
    for (uint64_t i = 0; i < 100; i++)
        CHECK_OK(put(i));
    get_these(0, 60);
    CHECK_OK(pn_diskqueue_empty(q, &files));
    CHECK_EQ(files_in(data_dir), 0);
}

static void crash_case(void *arg)
{
    bool recovered = arg != NULL;
    memset(shared, 0, sizeof *shared);
    queue_start();
    int status = reap(spawn(victim, NULL));
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        FAIL("%s was not reached %u times", label, nth);
    if (recovered)
        queue_recover();
    check_left(recovered);
    check_usable();
    queue_end();
}

int main(void)
{
    static const uint32_t hits[] = {1, 2, 3, 5, 9, 14};
    unsigned cases = 0;
    data_dir_make();
    test_watchdog(100);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    queue_start(); /* so that the cases' processes share it */
    queue_end();
    for (int i = 0; i < pn_crash_label_count(); i++) {
        label = pn_crash_label(i);
        if (strncmp(label, "diskqueue:", 10) != 0 && strncmp(label, "recfile:", 8) != 0)
            continue;
        for (size_t hit = 0; hit < sizeof hits / sizeof hits[0]; hit++)
            for (int recovered = 0; recovered < 2; recovered++) {
                nth = hits[hit];
                if (strcmp(label, "diskqueue:emptied") == 0 && nth > 3)
                    continue;
                CHECK_CHILD(spawn(crash_case, recovered ? "" : NULL), 0);
                cases++;
            }
    }
    CHECK(cases >= 11 * 10);
    printf("%u cases\n", cases);
    return 0;
}
