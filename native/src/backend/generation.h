/*
 * generation.h - shared generation counters: the table, and what holds a reader back.
 */
#ifndef PN_GENERATION_H
#define PN_GENERATION_H

#include "backend/conn.h"

static inline struct pn_generation *pn_generation_at(const struct pn_segment *seg, uint32_t i)
{
    return (void *) (seg->generations + (size_t) i * seg->generation_size);
}

/* The counter of that name in the connection's database, made if need be.  Name checked before. */
int pn_generation_get(struct pn_conn *conn, const char *name, size_t len, uint32_t *index);

/* The database's number stands in something that stays, so its row must stay as well.  False:
 * there is no such row. */
bool pn_keep_database_locked(struct pn_segment *seg, uint32_t dboid);

/* 0, or -EINVAL when it is not a counter of the connection's database. */
int pn_generation_check(const struct pn_conn *conn, uint32_t index);

/* The entry of that name, or NULL.  No lock needed: entries are only added. */
struct pn_generation *pn_generation_find(const struct pn_segment *seg, uint64_t hash,
                                         uint32_t dboid, const char *name, size_t len);

/* How many there are, by looking at each.  Lock held. */
uint32_t pn_generation_count_locked(const struct pn_segment *seg);

/* CLOCK_REALTIME of a moment of CLOCK_MONOTONIC that is over. */
uint64_t pn_generation_time(int64_t mono_ns);

/* Redo of one entry in the queue: counter = max(counter, value).  Lock held. */
void pn_generation_redo_locked(struct pn_segment *seg, const AsyncQueueEntry *qe);

/*
 * Reading: may the transaction that begins with this GENERATION entry, or goes on with it, be
 * passed?  *passed: the transaction of which one was passed already.  0: it may; 1: it holds the
 * reader back (pn_held_back says for how long); -PN_ECORRUPT.  recv_mutex held.
 */
int pn_generation_pass(struct pn_conn *conn, const AsyncQueueEntry *qe, uint64_t *passed);

/* We are held back: see about the committer, without waiting for it.  0, or why not. */
int pn_generation_await(struct pn_conn *conn);

/* Is what the reader stopped at not announced yet?  Exact with recv_mutex held, else a hint. */
static inline bool pn_held_back(const struct pn_conn *conn)
{
    uint64_t value = pn_load_acquire(&conn->held_value);
    if (__builtin_expect(value == 0, 1))
        return false;
    uint32_t index = pn_load_relaxed(&conn->held_index);
    /* seq_cst: it is the sleeper's second condition (procsignal.c 1) */
    return pn_load_seq_cst(&pn_generation_at(conn->seg, index)->value) < value;
}

#endif
