/*
 * generation.c - shared generation counters.
 *
 * 1. A table by (database, name), open addressing, entries only added, so that a counter is named
 *    by its index for ever and is read with one load.  An entry is made under the writer lock,
 *    `state` last; looking one up needs no lock.
 * 2. A bump is not an addition to the counter but a GENERATION entry in the queue, in front of its
 *    transaction's notifications, with the value that the counter has afterwards.  So one commit
 *    point serves both, and recovery may apply it any number of times.
 * 3. The committer stores the counters after `want` of all interested backends, and before the
 *    fence and the un-sleeping:
 *
 *        committer (lock held)                    reader of the counter
 *          head = end                               v = value          (acquire)
 *          want = end, of each     (release)        poll(): w = want   (acquire)
 *          value = v               (release)        w > pos: reads up to head
 *          --- full fence ---
 *          p = pos: un-sleep
 *          woken = end
 *
 *    A reader that sees the value finds the notifications: `want` was there before.  (If it were
 *    stored before `want`, the reader would poll, find nothing wanted, and go to sleep.)
 * 4. The other way round, a reader that is returned a notification must see the value, and an awake
 *    reader may be at the entries before the committer is at the counters.  So a reader passes the
 *    first GENERATION entry of a transaction only when the counter has come so far.  No process can
 *    have seen anything of that transaction until then, neither a value nor a message, and its
 *    committer has not returned: to stop in front of it is as if poll() had been called a moment
 *    earlier.
 * 5. Once the first counter has come so far, every `want` has been stored, and a reader may store
 *    the transaction's further counters itself: it must, since another process may have read the
 *    first one.  Not the first one as well: others would see it before their `want`.
 * 6. A reader that stops so is "held back".  It does not wait for the committer, which may be
 *    stopped: the handshake of procsignal.c has a second condition, and the reader falls asleep in
 *    front of the entry, to be un-slept by the committer that comes to the counter, or by its
 *    recovery:
 *
 *        committer                                reader, held back at value v
 *          value = v               (release)        pos = p | ASLEEP        (exchange)
 *          --- full fence ---                       --- full fence (the exchange) ---
 *          p = pos; ASLEEP: CAS, signal             value >= v: CAS, awake, read on
 *
 *    A dead committer is found by trying the lock; a free one says that it is announced by now.
 *    native/models/generation.pml has all this, and what fails if it is done otherwise.
 * 7. The time of a bump is that of its transaction, and is stored before the value: a reader of
 *    the value finds the time of it or of a later one.  The other way round a time may be one
 *    bump ahead of the value, for as long as its committer, or the recovery of that one, needs.
 *    A reader that stores a value itself (5) replaces only a time that was there while the value
 *    was missing; the committer's own, and those of later bumps, make its compare-and-swap fail.
 */
#define _GNU_SOURCE
#include "backend/generation.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/crashpoint.h"
#include "base/hash.h"
#include "base/os.h"
#include "segment/lock.h"

#define PN_HELD_SPINS 200 /* a commit that has stored head is over in less */

/* True: *at is the counter.  False: it would go there; nowhere, if that is max_generations. */
static bool probe(const struct pn_segment *seg, uint64_t hash, uint32_t dboid, const char *name,
                  size_t len, uint32_t *at)
{
    uint32_t start = (uint32_t) ((hash >> 32) % seg->max_generations);
    for (uint32_t i = 0; i < seg->max_generations; i++) {
        *at = start + i < seg->max_generations ? start + i : start + i - seg->max_generations;
        const struct pn_generation *g = pn_generation_at(seg, *at);
        if (pn_load_acquire(&g->state) != PN_GENERATION_USED) /* pairs with make_locked() */
            return false;
        if (g->hash == hash && g->dboid == dboid && g->name_len == len &&
            memcmp(g->name, name, len) == 0)
            return true;
    }
    *at = seg->max_generations;
    return false;
}

struct pn_generation *pn_generation_find(const struct pn_segment *seg, uint64_t hash,
                                         uint32_t dboid, const char *name, size_t len)
{
    uint32_t at;
    return probe(seg, hash, dboid, name, len, &at) ? pn_generation_at(seg, at) : NULL;
}

/* The database's number stands in the entry, so its row must stay as well. */
bool pn_keep_database_locked(struct pn_segment *seg, uint32_t dboid)
{
    pn_assert_held(seg);
    for (uint32_t row = 0; row < seg->max_databases; row++)
        if (seg->database[row].dboid == dboid) {
            seg->database[row].kept = 1;
            return true;
        }
    return false;
}

static int make_locked(struct pn_conn *conn, uint64_t hash, const char *name, size_t len,
                       uint32_t *at)
{
    pn_assert_held(conn->seg);
    struct pn_segment *seg = conn->seg;
    if (probe(seg, hash, conn->dboid, name, len, at))
        return 0; /* another process was faster */
    if (*at == seg->max_generations)
        return pn_fail(PN_EGENERATIONS,
                       "too many generation counters (max_generations is %u)\n"
                       "They are never removed: create the segment with a larger max_generations.",
                       seg->max_generations);
    if (!pn_keep_database_locked(seg, conn->dboid))
        return pn_fail(PN_EREAPED,
                       "the backend slot of the process with PID %d was given to another process\n"
                       "The process had lost its liveness locks; close and connect again.",
                       conn->pid);
    struct pn_generation *g = pn_generation_at(seg, *at);
    g->hash = hash;
    pn_store_relaxed(&g->value, 0);
    pn_store_relaxed(&g->changed_ns, 0);
    g->dboid = conn->dboid;
    g->name_len = (uint32_t) len;
    PN_CRASH("generation:entry");
    memcpy(g->name, name, len);
    pn_store_release(&g->state, PN_GENERATION_USED);
    PN_CRASH("generation:used");
    pn_invariant(seg, "I17", pn_generation_find(seg, hash, conn->dboid, name, len) == g);
    seg->ctl->generations_used++;
    return 0;
}

int pn_generation_get(struct pn_conn *conn, const char *name, size_t len, uint32_t *index)
{
    struct pn_hold hold;
    uint64_t hash = pn_channel_hash(conn->dboid, name, len);
    if (probe(conn->seg, hash, conn->dboid, name, len, index))
        return 0;
    int rc = pn_lock_wait(conn->seg, &hold, PN_LOCK_TIMEOUT_NS, conn);
    if (rc != 0)
        return rc;
    rc = make_locked(conn, hash, name, len, index);
    pn_lock_release(conn->seg);
    return rc;
}

int pn_generation_check(const struct pn_conn *conn, uint32_t index)
{
    const struct pn_segment *seg = conn->seg;
    if (index < seg->max_generations &&
        pn_load_acquire(&pn_generation_at(seg, index)->state) == PN_GENERATION_USED &&
        pn_generation_at(seg, index)->dboid == conn->dboid)
        return 0;
    return pn_fail(EINVAL, "%u is no generation counter of database \"%s\"", index, conn->database);
}

uint32_t pn_generation_count_locked(const struct pn_segment *seg)
{
    pn_assert_held(seg);
    uint32_t used = 0;
    for (uint32_t i = 0; i < seg->max_generations; i++)
        used += pn_load_relaxed(&pn_generation_at(seg, i)->state) == PN_GENERATION_USED;
    return used;
}

uint64_t pn_generation_time(int64_t mono_ns)
{
    struct timespec real;
    int64_t ago = pn_now_ns() - mono_ns;
    /* This one second: a delay between the two makes the time later, never earlier. */
    clock_gettime(CLOCK_REALTIME, &real);
    return (uint64_t) ((int64_t) real.tv_sec * 1000000000 + real.tv_nsec - ago);
}

void pn_generation_redo_locked(struct pn_segment *seg, const AsyncQueueEntry *qe)
{
    pn_assert_held(seg);
    struct pn_generation *g = pn_generation_at(seg, qe->channel_hash);
    if (pn_load_relaxed(&g->value) >= qe->chan_seq)
        return;
    pn_store_release(&g->changed_ns, pn_generation_time(qe->sent_ns)); /* as in a commit */
    PN_CRASH("recover:time");
    pn_store_release(&g->value, qe->chan_seq);
}

/* ---- reading ------------------------------------------------------------------------------ */

/* What the committer is about to store, by a reader. */
static void set_unlocked(struct pn_generation *g, uint64_t value, int64_t sent_ns)
{
    uint64_t time = pn_load_acquire(&g->changed_ns); /* before the value: see 7 */
    uint64_t found = pn_load_acquire(&g->value);
    if (found >= value)
        return;
    pn_cas_u64(&g->changed_ns, &time, pn_generation_time(sent_ns));
    PN_CRASH("read:time");
    while (found < value && !pn_cas_u64(&g->value, &found, value))
        ;
}

int pn_generation_pass(struct pn_conn *conn, const AsyncQueueEntry *qe, uint64_t *passed)
{
    struct pn_segment *seg = conn->seg;
    uint32_t index = *(volatile const uint32_t *) &qe->channel_hash;
    uint64_t value = qe->chan_seq;
    int64_t sent_ns = *(volatile const int64_t *) &qe->sent_ns;
    uint8_t kind = *(volatile const uint8_t *) &qe->kind;
    if (kind >= PN_ENTRY_PUBLISH && kind <= PN_ENTRY_BURY)
        return 0; /* redo of topics: nothing for a reader */
    if (kind != PN_ENTRY_GENERATION)
        return pn_conn_impossible(conn, "an entry of unknown kind %u", kind);
    if (index >= seg->max_generations)
        return pn_conn_impossible(conn, "an entry bumps counter %u, which is not", index);
    pn_fence_acquire(); /* pairs with pn_backend_reap_locked() */
    if (!pn_owns_slot(conn))
        return pn_conn_reaped(conn);
    struct pn_generation *g = pn_generation_at(seg, index);
    uint64_t found = pn_load_acquire(&g->value); /* pairs with store_counters_locked() */
    if (found < value && *passed != qe->xid) {
        pn_store_relaxed(&conn->held_index, index);
        pn_store_release(&conn->held_value, value);
        return 1;
    }
    if (found < value)
        set_unlocked(g, value, sent_ns);
    PN_CRASH("read:generation");
    *passed = qe->xid;
    if (pn_load_relaxed(&conn->held_value) != 0)
        pn_store_release(&conn->held_value, 0);
    return 0;
}

/*
 * The committer is about to announce, or is dead, or is stopped.  The first is waited for as long
 * as it usually takes; the second is found by trying the lock, and repaired.
 */
int pn_generation_await(struct pn_conn *conn)
{
    struct pn_hold hold;
    for (int i = 0; pn_os_cpus() > 1 && i < PN_HELD_SPINS && pn_held_back(conn); i++)
        pn_cpu_relax();
    if (!pn_held_back(conn))
        return 0;
    int rc = pn_lock_try(conn->seg, &hold);
    if (rc == -EBUSY)
        return 0;
    if (rc != 0)
        return rc;
    pn_lock_release(conn->seg);
    if (pn_held_back(conn))
        return pn_segment_poison(conn->seg, "counter %u is behind its entries",
                                 pn_load_relaxed(&conn->held_index));
    return 0;
}
