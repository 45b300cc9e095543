/*
 * read.c - from the queue into a batch: what of the entries is owed to a connection.
 *
 * 1. An entry is delivered if its database is ours, its channel or a pattern that matches it is
 *    listened to now, and it does not lie before the subscription's `since` (R6); once, however
 *    many of them there are.
 * 2. Entries of the kind GENERATION are no messages, but may hold a reader back: it stops in front
 *    of the transaction until that is announced (generation.c 4 to 6).
 * 3. Payloads are copied out one after the other, the rest becomes columns.  Nothing that is read
 *    is believed: pn_queue_entry_possible() has checked that the lengths can be, and they are
 *    not loaded again.
 * 4. Where what is read may be overwritten meanwhile, the same happens to a validated private copy
 *    (copy.c).  What was overwritten before it was copied is a Gap in the batch, in its place: how
 *    many bytes of the queue, for any listener.  Gaps count as messages for `max`.
 * 5. An entry of the kind GAP is a Gap of no bytes, for the listeners of its channel (bridge.c 4).
 */
#define _GNU_SOURCE
#include "receive/read.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "backend/generation.h"
#include "base/glob.h"
#include "base/grow.h"
#include "base/hash.h"
#include "queue/copy.h"
#include "queue/queue.h"
#include "wakeup/procsignal.h"

enum { BYTES_FIRST = 16384 }; /* of payloads, and of headers */

/* As pn_local_find(), with what a queue entry has: the low half of the hash. */
static struct pn_local_channel *find_low(struct pn_conn *conn, uint32_t hash, const char *name,
                                         size_t len)
{
    const struct pn_local_channels *l = &conn->local;
    uint32_t mask = l->table_size - 1;
    for (uint32_t at = hash & mask; l->table[at] != 0; at = (at + 1) & mask) {
        struct pn_local_channel *c = &l->at[l->table[at] - 1];
        if ((uint32_t) c->hash == hash && c->len == len && !c->pattern &&
            memcmp(c->name, name, len) == 0)
            return c;
    }
    return NULL;
}

static int grow_columns(pn_batch *b)
{
    size_t cap = b->cap == 0 ? 64 : 2 * b->cap;
#define GROW_COLUMN(column, n)                                                                     \
    do {                                                                                           \
        void *bigger = realloc(b->column, (n) * sizeof *b->column);                                \
        if (bigger == NULL)                                                                        \
            return -ENOMEM;                                                                        \
        b->column = bigger;                                                                        \
    } while (0)
    GROW_COLUMN(seq, cap);
    GROW_COLUMN(sent_ns, cap);
    GROW_COLUMN(pid, cap);
    GROW_COLUMN(backend_id, cap);
    GROW_COLUMN(sender, cap);
    GROW_COLUMN(channel, cap);
    GROW_COLUMN(routes, cap);
    GROW_COLUMN(offset, cap + 1);
#undef GROW_COLUMN
    b->cap = cap;
    return 0;
}

/* The column is there from the first message on that came by a pattern. */
static int put_pattern(pn_batch *b, int32_t pattern)
{
    if (b->n >= b->pattern_cap) {
        int32_t *bigger = realloc(b->pattern, b->cap * sizeof *bigger);
        if (bigger == NULL)
            return -ENOMEM;
        b->pattern = bigger;
        b->pattern_cap = b->cap;
    }
    if (b->by_pattern == 0)
        memset(b->pattern, 0xff, b->n * sizeof *b->pattern); /* -1 */
    b->pattern[b->n] = pattern;
    b->by_pattern += pattern >= 0;
    return 0;
}

/* Likewise from the first message on that has headers. */
static int put_headers(pn_batch *b, const char *headers, uint32_t len)
{
    if (b->n + 1 >= b->headers_offset_cap) {
        uint64_t *bigger = realloc(b->headers_offset, (b->cap + 1) * sizeof *bigger);
        if (bigger == NULL)
            return -ENOMEM;
        b->headers_offset = bigger;
        b->headers_offset_cap = b->cap + 1;
    }
    if (b->with_headers == 0)
        memset(b->headers_offset, 0, (b->n + 1) * sizeof *b->headers_offset);
    size_t used = b->headers_offset[b->n];
    if (PN_GROW(b->headers, b->headers_cap, BYTES_FIRST, used + len) != 0)
        return -ENOMEM;
    if (len > 0)
        memcpy(b->headers + used, headers, len);
    b->headers_offset[b->n + 1] = used + len;
    b->with_headers += len > 0;
    return 0;
}

/* For the log only: the chan_seq of each message of the batch. */
static int keep_chan_seq(struct pn_conn *conn, size_t i, uint64_t chan_seq)
{
    if (PN_GROW(conn->chan_seqs, conn->chan_seqs_cap, 64, i + 1) != 0)
        return -ENOMEM;
    conn->chan_seqs[i] = chan_seq;
    return 0;
}

/* By which of our channels and patterns an entry is owed. */
struct owed {
    uint8_t routes;
    bool by_channel;
    uint32_t local;  /* the channel */
    int32_t pattern; /* or -1: as pn_batch.pattern */
};

/* What few messages have: a pattern, headers.  It goes first, since it judges headers_len. */
__attribute__((noinline)) static int put_rare(struct pn_conn *conn, pn_batch *b,
                                              const AsyncQueueEntry *qe, uint32_t headers_len,
                                              const struct pn_entry_extent *extent, int32_t pattern)
{
    int rc = 0;
    if (headers_len > extent->payload_len)
        return pn_conn_impossible(conn, "an entry of %u bytes has %u bytes of headers",
                                  extent->payload_len, headers_len);
    if (pattern >= 0 || b->by_pattern != 0)
        rc = put_pattern(b, pattern);
    if (rc == 0 && (headers_len != 0 || b->with_headers != 0))
        rc = put_headers(b, qe->data + extent->channel_len + extent->payload_len - headers_len,
                         headers_len);
    return rc;
}

static inline int take_entry(struct pn_conn *conn, pn_batch *b, const AsyncQueueEntry *qe,
                             const struct pn_entry_extent *extent, const struct owed *owed)
{
    size_t i = b->n, used = b->offset != NULL && i > 0 ? b->offset[i] : 0;
    uint32_t headers_len = *(volatile const uint16_t *) &qe->headers_len; /* once */
    uint32_t len = extent->payload_len - headers_len;
    int rc = 0;
    if (i >= b->cap)
        rc = grow_columns(b);
    size_t rare = b->by_pattern | b->with_headers | headers_len;
    if (rc == 0 && __builtin_expect(rare != 0 || owed->pattern >= 0, 0))
        rc = put_rare(conn, b, qe, headers_len, extent, owed->pattern);
    if (rc == 0)
        rc = PN_GROW(b->data, b->data_cap, BYTES_FIRST, used + len);
    if (rc == 0 && conn->log != NULL)
        rc = keep_chan_seq(conn, i, owed->by_channel ? qe->chan_seq : 0);
    if (rc != 0)
        return rc;
    if (len > 0)
        memcpy(b->data + used, qe->data + extent->channel_len, len);
    b->seq[i] = qe->xid;
    b->sent_ns[i] = qe->sent_ns;
    b->pid[i] = qe->srcPid;
    b->backend_id[i] = (int32_t) qe->srcBackend;
    b->sender[i] = (uint64_t) qe->srcGeneration << 32 | qe->srcBackend;
    b->channel[i] = owed->local;
    b->routes[i] = owed->routes;
    b->offset[i] = used;
    b->offset[i + 1] = used + len;
    b->n = i + 1;
    if (__builtin_expect(owed->by_channel, 1))
        conn->local.at[owed->local].next_chan_seq = qe->chan_seq + 1;
    return 0;
}

/* In front of the next message; nothing was delivered since an equal one.  channel -1: all. */
static int add_gap(pn_batch *b, uint64_t missed, uint32_t reason, uint32_t routes, int64_t channel)
{
    pn_gap *last = b->ngaps == 0 ? NULL : &b->gap[b->ngaps - 1];
    if (last != NULL && last->before == b->n && last->reason == reason &&
        last->channel == channel) {
        last->missed_bytes += missed;
        return 0;
    }
    if (b->ngaps == b->gap_cap) {
        size_t cap = b->gap_cap == 0 ? 4 : 2 * b->gap_cap;
        pn_gap *bigger = realloc(b->gap, cap * sizeof *bigger);
        if (bigger == NULL)
            return pn_fail(ENOMEM, "out of memory while reading the queue");
        b->gap = bigger;
        b->gap_cap = cap;
    }
    b->gap[b->ngaps++] = (pn_gap) {.before = b->n,
                                   .missed_bytes = missed,
                                   .reason = reason,
                                   .routes = routes,
                                   .channel = channel};
    return 0;
}

/* By which routes the entry at `at` is owed (R6). */
static uint8_t routes_owed(const struct pn_local_channel *local, QueuePosition at)
{
    uint8_t owed = local->routes;
    for (int route = 0; route < PN_ROUTES; route++)
        if (at < local->since[route])
            owed &= (uint8_t) ~(1U << route);
    return owed;
}

static int impossible(struct pn_conn *conn, QueuePosition at)
{
    return pn_conn_impossible(conn, "no entry can stand at queue position %llu",
                              (unsigned long long) at);
}

/* The routes by which it is owed to patterns alone. */
static void add_patterns(const struct pn_conn *conn, const AsyncQueueEntry *qe,
                         const struct pn_entry_extent *extent, QueuePosition at, struct owed *owed)
{
    const uint8_t listen = 1U << PN_ROUTE_LISTEN, all = (1U << PN_ROUTES) - 1;
    const struct pn_local_channels *l = &conn->local;
    for (uint32_t i = 0; i < l->npatterns && owed->routes != all; i++) {
        const struct pn_local_channel *pattern = &l->at[l->pattern[i]];
        uint8_t more = routes_owed(pattern, at) & (uint8_t) ~owed->routes;
        if (more == 0 ||
            !pn_glob_matches(pattern->name, pattern->len, qe->data, extent->channel_len))
            continue;
        if ((more & listen) != 0 || owed->routes == 0)
            owed->pattern = (int32_t) l->pattern[i];
        owed->routes |= more;
    }
}

/* A number for the channel, as long as the batch has it (local.c 3).  0 or -ENOMEM. */
static int number_for_now(struct pn_conn *conn, const AsyncQueueEntry *qe,
                          const struct pn_entry_extent *extent, struct owed *owed)
{
    uint64_t hash = pn_channel_hash(conn->dboid, qe->data, extent->channel_len);
    const struct pn_local_channel *local =
        pn_local_add(&conn->local, hash, qe->data, extent->channel_len, false);
    if (local == NULL)
        return -ENOMEM;
    owed->local = pn_local_number(&conn->local, local);
    return 0;
}

/* Take one entry that is owed. */
static inline int hand_out(struct pn_conn *conn, pn_batch *b, const AsyncQueueEntry *qe,
                           const struct pn_entry_extent *extent, const struct owed *owed)
{
    struct pn_local_channels *l = &conn->local;
    int rc = pn_local_hand_out(l, &l->at[owed->local], b);
    if (rc == 0 && __builtin_expect(owed->pattern >= 0, 0))
        rc = pn_local_hand_out(l, &l->at[owed->pattern], b);
    if (__builtin_expect(rc != 0, 0))
        return rc;
    if (__builtin_expect(qe->kind == PN_ENTRY_GAP, 0))
        return add_gap(b, 0, PN_GAP_UPSTREAM, owed->routes, owed->local);
    return take_entry(conn, b, qe, extent, owed);
}

/* The same of an entry that patterns may be for; `routes` is what it is owed by to its channel,
 * which is `local`, or NULL. */
static int pass_by_patterns(struct pn_conn *conn, pn_batch *b, const AsyncQueueEntry *qe,
                            const struct pn_entry_extent *extent, QueuePosition at,
                            const struct pn_local_channel *local, uint8_t routes)
{
    struct owed owed = {.routes = routes, .by_channel = routes != 0, .pattern = -1};
    add_patterns(conn, qe, extent, at, &owed);
    if (owed.routes == 0)
        return 0;
    if (local != NULL)
        owed.local = pn_local_number(&conn->local, local);
    else if (number_for_now(conn, qe, extent, &owed) != 0)
        return -ENOMEM;
    int rc = hand_out(conn, b, qe, extent, &owed);
    if (!owed.by_channel)
        pn_local_let_go(&conn->local, owed.local);
    return rc;
}

/* Take one entry, if it is owed.  0; 1: it holds us back; an error. */
static inline int pass_entry(struct pn_conn *conn, pn_batch *b, const AsyncQueueEntry *qe,
                             const struct pn_entry_extent *extent, QueuePosition at,
                             uint64_t *passed)
{
    if (qe->dboid != conn->dboid)
        return 0;
    if (__builtin_expect(qe->kind != PN_ENTRY_NOTIFY && qe->kind != PN_ENTRY_GAP, 0))
        return pn_generation_pass(conn, qe, passed);
    if (conn->local.table_size == 0)
        return 0;
    struct pn_local_channel *local =
        find_low(conn, qe->channel_hash, qe->data, extent->channel_len);
    uint8_t routes = local == NULL ? 0 : routes_owed(local, at);
    if (__builtin_expect(conn->local.npatterns != 0, 0))
        return pass_by_patterns(conn, b, qe, extent, at, local, routes);
    if (routes == 0)
        return 0;
    const struct owed owed = {.routes = routes,
                              .by_channel = true,
                              .local = pn_local_number(&conn->local, local),
                              .pattern = -1};
    return hand_out(conn, b, qe, extent, &owed);
}

int pn_read_move(struct pn_conn *conn, pn_batch *b, const struct pn_read_mark *mark,
                 QueuePosition from, QueuePosition to)
{
    if (__builtin_expect(pn_cas_u64(&conn->me->pos, &from, to), 1))
        return 0; /* release: pairs with pn_backend_pins() */
    b->n = mark->n;
    b->ngaps = mark->ngaps;
    if (b->n + b->ngaps == 0)
        pn_local_tell_again(b);
    return pn_owns_slot(conn) ? -EAGAIN : pn_conn_reaped(conn);
}

/* ---- from a private copy ------------------------------------------------------------------ */

/* By which routes this connection is owed anything at all. */
static uint32_t routes_open(const struct pn_conn *conn)
{
    uint32_t routes = 0;
    for (uint32_t i = 0; i < conn->local.n; i++)
        routes |= conn->local.at[i].routes;
    return routes;
}

static int take_gap(struct pn_conn *conn, pn_batch *b, QueuePosition *at,
                    const struct pn_copy_gap *gap)
{
    int rc = add_gap(b, gap->until - *at, gap->reason, routes_open(conn), -1);
    if (rc == 0)
        *at = gap->until;
    return rc;
}

static int read_copied(struct pn_conn *conn, pn_batch *b, QueuePosition *pos, QueuePosition head,
                       uint64_t max, uint64_t piece)
{
    struct pn_segment *seg = conn->seg;
    QueuePosition begin = *pos;
    uint64_t passed = 0;
    int rc = 0;
    while (rc == 0 && *pos < head && *pos - begin < piece && pn_read_wants_more(b, max)) {
        const AsyncQueueEntry *qe;
        struct pn_copy_gap gap;
        struct pn_entry_extent extent;
        rc = pn_copy_fetch(seg, &conn->copy, *pos, head, &gap);
        if (rc == 0)
            rc = pn_copy_entry(seg, &conn->copy, *pos, &qe, &extent, &gap);
        if (rc == 1) {
            rc = take_gap(conn, b, pos, &gap);
            continue;
        }
        if (rc == -ERANGE)
            return impossible(conn, *pos);
        if (rc == 0)
            rc = pass_entry(conn, b, qe, &extent, *pos, &passed);
        if (rc == 0)
            *pos = extent.next;
        if (rc == -ENOMEM)
            pn_fail(ENOMEM, "out of memory while reading the queue");
    }
    if (rc >= 0 || rc == -PN_ECORRUPT || rc == -PN_EREAPED)
        return rc < 0 ? rc : 0;
    return b->n + b->ngaps > 0 ? 0 : rc; /* the next call comes to it again */
}

/* ---- in place ----------------------------------------------------------------------------- */

int pn_read_entries(struct pn_conn *conn, pn_batch *b, QueuePosition *pos, QueuePosition head,
                    uint64_t max, uint64_t piece)
{
    struct pn_segment *seg = conn->seg;
    if (__builtin_expect(seg->copies, 0))
        return read_copied(conn, b, pos, head, max, piece);
    QueuePosition at = *pos;
    uint64_t passed = 0;
    int rc = 0;
    if (__builtin_expect(head - at > seg->ring_bytes, 0)) /* it would go round and round */
        return impossible(conn, at);
    while (at < head && at - *pos < piece && pn_read_wants_more(b, max)) {
        struct pn_entry_extent extent;
        const AsyncQueueEntry *qe = (const void *) pn_ring_at(seg, at);
        if (at % 8 != 0 || !pn_queue_entry_possible(seg, qe, at, head, &extent))
            return impossible(conn, at);
        rc = pass_entry(conn, b, qe, &extent, at, &passed);
        if (rc != 0)
            break;
        at = extent.next;
    }
    if (rc == -PN_ECORRUPT || rc == -PN_EREAPED)
        return rc;
    *pos = at;
    return rc >= 0 || b->n + b->ngaps > 0
               ? 0
               : pn_fail(ENOMEM, "out of memory while reading the queue");
}

bool pn_receive_wanted(struct pn_conn *conn)
{
    uint64_t pos = pn_load_acquire(&conn->me->pos);
    if ((pos & PN_ASLEEP) != 0)
        return pn_wake_self(conn);
    return pn_readable(conn, pos);
}
