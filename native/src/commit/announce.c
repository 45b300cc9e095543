/*
 * announce.c - SignalBackends(): steps f to i of the model in async.c.
 *
 * 1. Only backends that listen to one of the transaction's channels, or to a pattern that one of
 *    these matches, are looked at; with signaling="broadcast" it is every listener of the database,
 *    as in PostgreSQL up to 18, so that the difference can be measured on one engine.
 * 2. First `from` and `want` of all of them, then one fence, then each is un-slept; `announced`
 *    keeps a backend that listens to several of the channels from being counted twice.
 * 3. The counters that the transaction bumps are stored between the two: after every `want`, so
 *    that a reader that sees the value finds the messages, and before the fence, so that a reader
 *    that was held back (generation.c) is un-slept.
 * 4. Signals are sent after the lock is released, by this process or, in a stream, along the
 *    chain (send.c 3).
 */
#define _GNU_SOURCE
#include "commit/announce.h"

#include "backend/channel.h"
#include "backend/generation.h"
#include "backend/pattern.h"
#include "base/crashpoint.h"
#include "base/os.h"
#include "segment/lock.h"
#include "wakeup/latch.h"
#include "wakeup/make_way.h"
#include "wakeup/procsignal.h"
#include "wakeup/send.h"

static void interest_locked(struct pn_commit *c, uint32_t slot, QueuePosition begin,
                            QueuePosition end)
{
    pn_assert_held(c->conn->seg);
    struct QueueBackendStatus *backend = &c->conn->seg->backend[slot];
    if (__builtin_expect(slot >= c->conn->seg->max_backends, 0)) {
        pn_segment_poison(c->conn->seg, "the channel table names backend %u, beyond max_backends",
                          slot);
        return;
    }
    if (backend->announced == c->xid)
        return; /* by another channel of this transaction */
    backend->announced = c->xid;
    c->conn->seg->pinning[slot / 64] |= 1ULL << (slot % 64);
    pn_set_from_if_quiet(backend, begin);
    PN_CRASH("commit:from");
    pn_store_release(&backend->want, end); /* pairs with the acquire in pn_wake_self() */
    PN_CRASH("commit:want");
    if (c->nwake < PN_WAKE_LIST)
        c->wake[c->nwake++] = slot;
    else
        c->overflow = true;
}

static void interest_channel_locked(struct pn_commit *c, struct GlobalChannelEntry *e,
                                    QueuePosition begin, QueuePosition end)
{
    pn_assert_held(c->conn->seg);
    const struct pn_segment *seg = c->conn->seg;
    const uint64_t *bits = pn_channel_bits(seg, e);
    for (uint32_t s = 0; s < seg->summary_words; s++)
        for (uint64_t words = e->words[s]; words != 0; words &= words - 1) {
            uint32_t word = s * 64 + (uint32_t) __builtin_ctzll(words);
            if (word >= seg->words)
                break; /* overwritten: what it would name is no backend */
            for (uint64_t left = bits[word]; left != 0; left &= left - 1)
                interest_locked(c, word * 64 + (uint32_t) __builtin_ctzll(left), begin, end);
        }
}

/* The listeners of the patterns that match a channel of it. */
static void interest_patterns_locked(struct pn_commit *c, const struct pn_pending_channel *ch,
                                     QueuePosition begin, QueuePosition end)
{
    pn_assert_held(c->conn->seg);
    struct pn_segment *seg = c->conn->seg;
    struct pn_pattern_walk walk = pn_pattern_walk_begin(seg);
    struct GlobalChannelEntry *e;
    while ((e = pn_pattern_next_locked(seg, &walk, c->conn->dboid, ch->name, ch->name_len)) !=
           NULL) {
        e->next_chan_seq += ch->n;
        PN_CRASH("commit:matched");
        if (seg->signaling != PN_SIGNAL_BROADCAST)
            interest_channel_locked(c, e, begin, end);
    }
}

/* signaling="broadcast": every listener of the database, as PostgreSQL did up to 18; but not for a
 * transaction that has bumped something and sent no notification. */
static void interest_database_locked(struct pn_commit *c, QueuePosition begin, QueuePosition end)
{
    pn_assert_held(c->conn->seg);
    struct pn_segment *seg = c->conn->seg;
    for (uint32_t word = 0; word < seg->words; word++)
        for (uint64_t left = pn_load_relaxed(&seg->listeners[word]); left != 0; left &= left - 1) {
            uint32_t slot = word * 64 + (uint32_t) __builtin_ctzll(left);
            if (seg->backend[slot].dboid == c->conn->dboid)
                interest_locked(c, slot, begin, end);
        }
}

static bool listens_locked(const struct pn_commit *c, const struct pn_pending_channel *ch,
                           uint32_t slot)
{
    pn_assert_held(c->conn->seg);
    struct pn_segment *seg = c->conn->seg;
    if (ch->heard && pn_channel_listens(seg, ch->entry, slot))
        return true;
    struct pn_pattern_walk walk = pn_pattern_walk_begin(seg);
    struct GlobalChannelEntry *e = NULL;
    while (ch->matched &&
           (e = pn_pattern_next_locked(seg, &walk, c->conn->dboid, ch->name, ch->name_len)) != NULL)
        if (pn_channel_listens(seg, e, slot))
            return true;
    return false;
}

/*
 * Those that were announced to; with signaling="broadcast", where others are as well, each of them
 * is looked for in the channels and patterns, which takes as long as their product.
 */
uint32_t pn_count_listeners_locked(const struct pn_commit *c)
{
    pn_assert_held(c->conn->seg);
    const struct pn_segment *seg = c->conn->seg;
    uint32_t count = 0;
    for (uint32_t slot = 0; slot < seg->max_backends; slot++) {
        const struct QueueBackendStatus *backend = &seg->backend[slot];
        if (backend->announced != c->xid || pn_load_relaxed(&backend->bridge) != 0)
            continue;
        bool listens = seg->signaling != PN_SIGNAL_BROADCAST;
        for (size_t i = 0; !listens && i < c->nchannels; i++)
            listens = listens_locked(c, &c->channels[i], slot);
        count += listens;
    }
    return count;
}

static void store_counters_locked(struct pn_commit *c)
{
    pn_assert_held(c->conn->seg);
    uint64_t time = c->nbumps == 0 ? 0 : pn_generation_time(c->now);
    for (size_t i = 0; i < c->nbumps; i++) {
        struct pn_generation *g = pn_generation_at(c->conn->seg, c->bumps[i].index);
        pn_invariant(c->conn->seg, "I18",
                     pn_load_relaxed(&g->value) <= c->bumps[i].value && time != 0);
        pn_store_release(&g->changed_ns, time); /* pairs with set_unlocked() */
        PN_CRASH("commit:time");
        /* pairs with pn_generation_value(): its caller sees every `want` as well */
        pn_store_release(&g->value, c->bumps[i].value);
        PN_CRASH("commit:generation");
    }
}

static void defer_locked(struct pn_commit *c, uint32_t slot)
{
    pn_assert_held(c->conn->seg);
    struct pn_segment *seg = c->conn->seg;
    pn_fetch_or(&seg->deferred[slot / 64], 1ULL << (slot % 64));
    c->deferred = true;
    if (pn_load_relaxed(&seg->ctl->deferred_at) == 0)
        pn_store_relaxed(&seg->ctl->deferred_at, (uint64_t) c->now);
    c->flush = c->flush || !c->stream; /* more than wake[] holds: we send them, after the others */
}

/* Un-sleep one; if a signal is ours to send, keep it in wake[] or defer it to the chain. */
static void unsleep_locked(struct pn_commit *c, uint32_t slot, uint32_t *kept,
                           struct pn_locked_counters *counters)
{
    pn_assert_held(c->conn->seg);
    struct pn_segment *seg = c->conn->seg;
    enum pn_unsleep found = pn_unsleep_locked(seg, slot, c->now);
    bool signal = found != PN_NO_SIGNAL && pn_load_relaxed(&seg->backend[slot].signo) > 0;
    if (slot == c->conn->slot) {
        c->wakes_us = c->wakes_us || found != PN_NO_SIGNAL;
        return;
    }
    if (signal) {
        c->signals++;
        /* a slot of our own process gets its latch set, which is cheap; a process that was
         * signalled before in vain is perhaps stopped, and would not pass anything on */
        int32_t pid = pn_load_relaxed(&seg->backend[slot].pid);
        bool direct = !c->stream || seg->own[slot] != NULL || found == PN_SIGNAL_AGAIN ||
                      (c->heads != 0 && pid == c->head_pid); /* told by the same signal */
        if (!direct && c->heads < PN_CHAIN) {
            c->heads++;
            c->head_pid = pid;
            direct = true;
        }
        if (direct && *kept < PN_WAKE_LIST)
            c->wake[(*kept)++] = slot;
        else
            defer_locked(c, slot);
    }
    pn_store_relaxed(&counters->slot_writes, pn_load_relaxed(&counters->slot_writes) + 1);
    if (!signal)
        pn_store_relaxed(&counters->signals_elided, pn_load_relaxed(&counters->signals_elided) + 1);
}

/* SignalBackends(), the part under the lock. */
void pn_announce_locked(struct pn_commit *c, QueuePosition begin, QueuePosition end)
{
    pn_assert_held(c->conn->seg);
    struct pn_segment *seg = c->conn->seg;
    uint32_t kept = 0, interested;
    if (seg->signaling == PN_SIGNAL_BROADCAST && c->heard)
        interest_database_locked(c, begin, end);
    else /* `heard` of each channel says the same */
        for (size_t i = 0; i < c->nchannels; i++)
            if (c->channels[i].heard)
                interest_channel_locked(c, c->channels[i].entry, begin, end);
    for (size_t i = 0; i < c->nchannels; i++)
        if (__builtin_expect(c->channels[i].matched, 0))
            interest_patterns_locked(c, &c->channels[i], begin, end);
    interested = c->nwake;
    c->stream = c->now - (int64_t) pn_load_relaxed(&c->conn->last_commit_ns) < PN_STREAM_NS;
    uint64_t deferred_at = pn_load_relaxed(&seg->ctl->deferred_at);
    if (deferred_at != 0 && pn_since(c->now, deferred_at) > PN_STREAM_NS) {
        pn_store_relaxed(&seg->ctl->deferred_at, 0);
        c->flush = true;
    }
    store_counters_locked(c);
    pn_fence_seq_cst(); /* pairs with the exchange in pn_fall_asleep() */
    for (uint32_t i = 0; !c->overflow && i < interested; i++)
        unsleep_locked(c, c->wake[i], &kept, &seg->ctl->locked);
    for (uint32_t slot = 0; c->overflow && slot < seg->max_backends; slot++)
        if (seg->backend[slot].announced == c->xid)
            unsleep_locked(c, slot, &kept, &seg->ctl->locked);
    c->nwake = kept;
    PN_CRASH("commit:before-woken");
    pn_invariant(seg, "I6", end == pn_load_relaxed(&seg->ctl->head));
    pn_store_release(&seg->ctl->woken, end);
    PN_CRASH("commit:after-woken");
}

/* SignalBackends(), the part without the lock. */
void pn_signal_collected(struct pn_commit *c)
{
    PN_CRASH("commit:unlocked");
    struct pn_send_run run;
    pn_send_begin(&run, c->conn->seg);
    for (uint32_t i = 0; i < c->nwake; i++)
        pn_send_add(&run, c->wake[i]);
    int sent = pn_send_end(&run);
    if (__builtin_expect(c->flush, 0))
        pn_procsignal_flush(c->conn->seg);
    else if (__builtin_expect(c->deferred, 0)) /* the heads of the chain may have been dead, */
        pn_procsignal_pass_on(c->conn->seg, sent - run.own); /* and our latches pass nothing on */
    pn_store_relaxed(&c->conn->last_commit_ns,
                     (uint64_t) (c->nwake == 0 && !c->flush ? c->now : pn_now_ns()));
    if (c->wakes_us)
        pn_latch_set(c->conn, PN_FD_POSTED); /* a notification to ourselves */
    if (sent > 0 && !c->stream)
        pn_make_way();
}
