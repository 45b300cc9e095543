/*
 * async.c - Asynchronous notification: LISTEN, NOTIFY, UNLISTEN.
 *
 * Asynchronous Notification Model
 *
 * 1. Multiple backends of one host share one queue.  Each has a slot in the backend array, with
 *    its read position, and a list of the channels it listens to; the channel table maps a
 *    channel to the backends that listen, so that a notifier finds them without asking any process.
 *
 * 2. NOTIFY, LISTEN and UNLISTEN only append to lists that are private to the transaction
 *    (pending.c).  Nothing uncommitted is ever in shared memory, so there is nothing to undo and no
 *    reader has to step over it: where PostgreSQL's readers ask for the state of a transaction,
 *    ours know that everything below head is committed.
 *
 * 3. Commit happens under the writer lock, in these steps; a process killed between any two of
 *    them is repaired by the next process that takes the lock (recover.c):
 *
 *      a. PreCommit, everything that can fail: entries in the channel table and subscriptions
 *         for LISTEN are staged; room in the queue is made (queue.c); messages are staged, and
 *         answers checked (topic_ops.c).
 *      b. LISTEN and UNLISTEN take effect (intent.c).  A subscription starts at the present
 *         head, before this transaction's own entries, so that NOTIFY c; LISTEN c; COMMIT hears
 *         itself.
 *         Only their owner has an interest in them: if it dies here it is reaped.
 *      c. The entries are copied beyond head, one for each counter that is bumped, redo of what
 *         is done to topics, then the notifications of channels that have a listener.
 *      d. head is moved over them, with release.  This is the commit point.
 *      e. What the entries imply is applied: chan_seq, the commit sequence number, topics.
 *      f. Each interested backend: `from`, if it was quiet; then `want`.  Then the generation
 *         counters that the transaction has bumped (generation.c).
 *      g. A full fence; then each of them is un-slept if it sleeps (procsignal.c).
 *      h. woken = head: all of them were told.
 *      i. Unlock, and only then signal.  Where there is room, no system call is made under the
 *         lock; where there is none, whether the holder of the tail lives (room.c), and files.
 *
 * 4. PostgreSQL signals after commit, outside of its lock, and moves the positions of those that
 *    are not interested; here they are not even looked at.  See layout.h and docs/design.md.
 *
 * 5. A prepared transaction has done step a and holds a reservation of room for its worst
 *    placement, so that its commit cannot fail.  No lock is held in between.
 */
#define _GNU_SOURCE
#include "commit/async.h"

#include <errno.h>

#include "backend/backend.h"
#include "backend/channel.h"
#include "backend/generation.h"
#include "backend/latency.h"
#include "backend/pattern.h"
#include "base/crashpoint.h"
#include "base/os.h"
#include "commit/announce.h"
#include "commit/cancel_ops.h"
#include "commit/intent.h"
#include "commit/room.h"
#include "commit/topic_ops.h"
#include "commit/upstream_payload.h"
#include "queue/queue.h"
#include "segment/lock.h"
#include "wakeup/make_way.h"
#include "wakeup/watch.h"

/* ---- step a: what can fail (lock held) ------------------------------------------------------- */

static bool is_heard(const struct GlobalChannelEntry *e)
{
    return e != NULL && (e->numListeners > 0 || e->staged > 0);
}

/* The end of the queue behind the events that may be heard. */
__attribute__((always_inline)) static inline QueuePosition
place_events(const struct pn_commit *c, QueuePosition pos, bool headed)
{
    const struct pn_segment *seg = c->conn->seg;
    for (size_t i = 0, at = 0; i < c->nevents; i++) {
        const struct pn_pending_channel *ch = &c->channels[c->events[i].channel];
        if (!ch->heard && !ch->matched)
            continue;
        uint64_t length = pn_entry_length(
            ch->name_len, c->events[i].payload_len +
                              (headed ? pn_headers_len(c->headers, c->nheaders, &at, i) : 0));
        pos = pn_queue_after(pn_queue_place(seg, pos, length), length);
    }
    return pos;
}

/* Find the channels; the end of the queue if all entries that may be heard are appended. */
static QueuePosition plan_locked(struct pn_commit *c, QueuePosition pos)
{
    pn_assert_held(c->conn->seg);
    struct pn_segment *seg = c->conn->seg;
    for (size_t i = 0; i < c->nchannels; i++) {
        struct pn_pending_channel *ch = &c->channels[i];
        ch->entry = pn_channel_find_locked(seg, ch->hash, c->conn->dboid, ch->name, ch->name_len);
        ch->heard = is_heard(ch->entry);
        c->upstream |= ch->heard ? ch->entry->upstream : 0;
        ch->matched = false;
        if (__builtin_expect(pn_patterns_any(seg), 0)) { /* listened to or staged */
            struct pn_pattern_walk walk = pn_pattern_walk_begin(seg);
            ch->matched =
                pn_pattern_next_locked(seg, &walk, c->conn->dboid, ch->name, ch->name_len) != NULL;
        }
    }
    for (size_t i = 0; i < c->nbumps; i++)
        pos = pn_queue_after(pn_queue_place(seg, pos, PN_ENTRY_HEADER), PN_ENTRY_HEADER);
    for (size_t i = 0; i < c->nops; i++)
        pos = pn_queue_after(pn_queue_place(seg, pos, PN_ENTRY_OF_TOPICS), PN_ENTRY_OF_TOPICS);
    return __builtin_expect(c->nheaders != 0, 0) ? place_events(c, pos, true)
                                                 : place_events(c, pos, false);
}

static int precommit_locked(struct pn_commit *c, struct pn_room_wait *wait)
{
    pn_assert_held(c->conn->seg);
    uint64_t reserved = c->txn == NULL ? 0 : c->txn->reserved;
    int rc = pn_conn_check_slot(c->conn);
    if (rc == 0 && c->txn != NULL && !c->txn->prepared)
        rc = pn_intents_stage_locked(c->txn, false);
    if (rc != 0)
        return rc;
    const struct pn_segment *seg = c->conn->seg;
    QueuePosition head = pn_load_relaxed(&seg->ctl->head), end = plan_locked(c, head);
    if (head % 8 != 0 || head - pn_load_relaxed(&seg->ctl->tail) > seg->capacity)
        rc = pn_segment_poison(c->conn->seg, "no queue ends at %llu", (unsigned long long) head);
    else if (__builtin_expect(c->upstream != 0, 0) && (c->txn == NULL || !c->txn->prepared))
        rc = pn_upstream_check_locked(c);
    if (rc == 0 && end != head)
        rc = pn_queue_make_room_locked(c->conn, end, reserved, wait);
    PN_CRASH("commit:room");
    if (rc == 0 && c->nops != 0)
        rc = pn_topic_precommit_locked(c);
    if (rc != 0 && c->txn != NULL && !c->txn->prepared)
        pn_intents_unstage_locked(c->txn);
    return rc;
}

/* ---- steps c to e: the entries --------------------------------------------------------------- */

static QueuePosition append_bumps_locked(struct pn_commit *c, QueuePosition pos)
{
    pn_assert_held(c->conn->seg);
    const struct pn_entry_stamp stamp = pn_commit_stamp(c);
    for (size_t i = 0; i < c->nbumps; i++) {
        struct pn_pending_bump *bump = &c->bumps[i];
        const struct pn_generation *counter = pn_generation_at(c->conn->seg, bump->index);
        bump->value = pn_load_relaxed(&counter->value) + bump->count;
        const struct pn_new_entry entry = {
            .kind = PN_ENTRY_GENERATION, .channel_hash = bump->index, .chan_seq = bump->value};
        pos = pn_queue_append_locked(c->conn->seg, pos, &stamp, &entry);
    }
    return pos;
}

/* An entry of a transaction that has headers: its own, or none. */
__attribute__((noinline)) static QueuePosition
append_headed_locked(const struct pn_commit *c, QueuePosition pos, size_t *at, size_t i,
                     const struct pn_new_entry *entry)
{
    pn_assert_held(c->conn->seg);
    const struct pn_entry_stamp stamp = pn_commit_stamp(c);
    const struct pn_pending_headers *h = pn_headers_of(c->headers, c->nheaders, at, i);
    return h == NULL
               ? pn_queue_append_locked(c->conn->seg, pos, &stamp, entry)
               : pn_queue_append_headed_locked(c->conn->seg, pos, &stamp, entry, h->bytes, h->len);
}

static QueuePosition append_locked(struct pn_commit *c)
{
    pn_assert_held(c->conn->seg);
    struct pn_segment *seg = c->conn->seg;
    /* Aligned, though it was overwritten since it was checked: a dummy entry ends with its page. */
    QueuePosition pos = QUEUEALIGN(pn_load_relaxed(&seg->ctl->head));
    for (size_t i = 0; i < c->nchannels; i++) {
        struct pn_pending_channel *ch = &c->channels[i];
        ch->heard = ch->entry != NULL && ch->entry->numListeners > 0;
        ch->chan_seq = ch->heard ? ch->entry->next_chan_seq : 0;
        ch->n = 0;
        if (__builtin_expect(ch->matched, 0)) /* some are only staged, or were UNLISTENed */
            ch->matched = pn_pattern_hears_locked(seg, c->conn->dboid, ch->name, ch->name_len);
    }
    c->now = pn_now_ns();
    c->xid = seg->ctl->last_xid + 1;
    pos = append_bumps_locked(c, pos);
    if (c->nops != 0)
        pos = pn_topic_append_locked(c, pos);
    const struct pn_entry_stamp stamp = pn_commit_stamp(c);
    for (size_t i = 0, at = 0; i < c->nevents; i++) {
        struct pn_pending_event *event = &c->events[i];
        struct pn_pending_channel *ch = &c->channels[event->channel];
        if (!ch->heard && !ch->matched)
            continue;
        c->heard = true;
        event->chan_seq = ch->chan_seq; /* 0: heard by patterns alone (I16) */
        ch->chan_seq += ch->heard && c->kind == PN_ENTRY_NOTIFY;
        ch->n += c->kind == PN_ENTRY_NOTIFY;
        const struct pn_new_entry entry = {.kind = c->kind,
                                           .channel = ch->name,
                                           .payload = c->arena + event->payload_off,
                                           .channel_len = ch->name_len,
                                           .payload_len = event->payload_len,
                                           .channel_hash = (uint32_t) ch->hash,
                                           .chan_seq = event->chan_seq};
        pos = __builtin_expect(c->nheaders != 0, 0)
                  ? append_headed_locked(c, pos, &at, i, &entry)
                  : pn_queue_append_locked(seg, pos, &stamp, &entry);
    }
    return pos;
}

static void give_back_reservation_locked(struct pn_segment *seg, struct pn_txn *txn)
{
    pn_assert_held(seg);
    if (txn == NULL || txn->reserved == 0)
        return;
    txn->conn->me->reserved -= txn->reserved;
    seg->ctl->reserved -= txn->reserved;
    txn->reserved = 0;
    PN_CRASH("reserve:released");
}

static void apply_entries_locked(struct pn_commit *c)
{
    pn_assert_held(c->conn->seg);
    for (size_t i = 0; i < c->nchannels; i++) {
        const struct pn_pending_channel *ch = &c->channels[i];
        if (!ch->heard)
            continue;
        pn_invariant(c->conn->seg, "I16", ch->entry->next_chan_seq + ch->n == ch->chan_seq);
        ch->entry->next_chan_seq = ch->chan_seq;
    }
    c->conn->seg->ctl->last_xid = c->xid;
    PN_CRASH("commit:applied");
}

/* ---- the commit ------------------------------------------------------------------------------ */

static void add_counter(pn_atomic_u64 *counter, uint64_t n)
{
    pn_store_relaxed(counter, pn_load_relaxed(counter) + n);
}

/* UNLISTEN of the last channel: nothing can interest us any more, so pin nothing (R6). */
static void rest_locked(struct pn_commit *c)
{
    pn_assert_held(c->conn->seg);
    if (c->txn == NULL || c->txn->nintents == 0 || pn_load_relaxed(&c->conn->nlistening) != 0)
        return;
    pn_invariant(c->conn->seg, "I5", c->conn->me->numSubs == 0);
    pn_store_release(&c->conn->me->pos, pn_load_relaxed(&c->conn->seg->ctl->head) | PN_ASLEEP);
    pn_queue_let_go_locked(c->conn->seg);
    pn_room_wake(c->conn->seg);
    if (pn_slot_watches(c->conn->me) && pn_load_relaxed(&c->conn->nconsumers) == 0) {
        pn_store_relaxed(&c->conn->me->watches, pn_owned(c->conn->generation, 0));
        pn_watch_lengthened_locked(c->conn->seg);
        c->leaves = true;
    }
}

/* It cannot fail; but a segment that was overwritten is poisoned before anything is committed. */
static int atcommit_locked(struct pn_commit *c)
{
    pn_assert_held(c->conn->seg);
    struct AsyncQueueControl *ctl = c->conn->seg->ctl;
    QueuePosition begin = pn_load_relaxed(&ctl->head);

    if (c->txn != NULL)
        pn_intents_apply_locked(c->txn);
    int rc = pn_segment_check_state(c->conn->seg);
    if (rc != 0)
        return rc;
    pn_invariant(c->conn->seg, "I6", pn_load_relaxed(&ctl->woken) == begin);
    QueuePosition end = append_locked(c);
    give_back_reservation_locked(c->conn->seg, c->txn);
    if (end != begin) {
        pn_invariant(c->conn->seg, "I12",
                     end + ctl->reserved <= pn_load_relaxed(&ctl->tail) + c->conn->seg->capacity);
        pn_invariant(c->conn->seg, "I12",
                     end + ctl->reserved <=
                         pn_load_relaxed(&ctl->mem_tail) + c->conn->seg->ring_bytes);
        PN_CRASH("commit:before-head");
        pn_store_release(&ctl->head, end); /* committed; pairs with the acquire in poll_once() */
        PN_CRASH("commit:after-head");
        apply_entries_locked(c);
        if (c->nops != 0)
            pn_topic_apply_locked(c);
        pn_announce_locked(c, begin, end);
        if (__builtin_expect(c->txn != NULL && c->txn->listeners != NULL, 0))
            *c->txn->listeners = pn_count_listeners_locked(c);
        if (end - pn_load_relaxed(&ctl->tail) >= c->conn->seg->capacity / 2)
            pn_queue_fill_warning_locked(c->conn, end, c->now);
    }
    rest_locked(c);
    add_counter(&ctl->locked.commits, 1);
    add_counter(&ctl->locked.notifications, c->nevents);
    if (c->collapsed != 0)
        add_counter(&ctl->locked.collapsed, c->collapsed);
    return 0;
}

/* After the commit point, so that a log never names what was not committed. */
static void log_sends(const struct pn_commit *c)
{
    for (size_t i = 0; i < c->nevents; i++) {
        const struct pn_pending_event *event = &c->events[i];
        const struct pn_pending_channel *ch = &c->channels[event->channel];
        const struct pn_log_sent sent = {.channel = ch->name,
                                         .payload = c->arena + event->payload_off,
                                         .hash = ch->hash,
                                         .chan_seq = event->chan_seq,
                                         .channel_len = ch->name_len,
                                         .payload_len = event->payload_len};
        if (ch->heard || ch->matched)
            pn_log_send(c->conn, &sent, c->xid, c->now);
    }
    if (c->signals != 0)
        pn_log_signals(c->conn, c->xid, c->now, c->signals);
}

/*
 * How it waits for room, and whether it may be left meanwhile.  What prepare() has promised is not
 * left: the caller might not come back.  Nor is a gap, whose caller does not.
 */
static struct pn_room_wait *begin_waiting(const struct pn_commit *c, struct pn_room_wait *own)
{
    bool kept = c->txn != NULL && c->txn->explicit_begin;
    bool prepared = c->txn != NULL && c->txn->prepared;
    struct pn_room_wait *wait = kept ? &c->txn->room : own;
    wait->may_leave = pn_interruptible && !prepared && c->kind != PN_ENTRY_GAP;
    wait->brief = wait->may_leave && !kept;
    return wait;
}

static int lock_for_commit(const struct pn_commit *c, struct pn_hold *hold,
                           const struct pn_room_wait *wait)
{
    struct pn_segment *seg = c->conn->seg;
    bool topics = wait->topics || (c->txn != NULL && c->txn->pending.nops != 0);
    if (c->txn != NULL && c->txn->prepared) /* it comes back, and has to be called again */
        return topics ? pn_lock_topics_wait(seg, hold, PN_LOCK_FOREVER, c->txn)
                      : pn_lock_wait(seg, hold, PN_LOCK_FOREVER, c->txn);
    const void *waits = c->txn != NULL ? (const void *) c->txn : c->conn;
    if (topics)
        return wait->may_leave ? pn_lock_topics_wait(seg, hold, PN_LOCK_TIMEOUT_NS, waits)
                               : pn_lock_topics(seg, hold, PN_LOCK_TIMEOUT_NS);
    return wait->may_leave ? pn_lock_wait(seg, hold, PN_LOCK_TIMEOUT_NS, waits)
                           : pn_lock_acquire(seg, hold, PN_LOCK_TIMEOUT_NS);
}

static int check_fits_empty_queue(const struct pn_txn *txn, uint64_t bytes)
{
    uint64_t largest = pn_queue_largest(txn->conn->seg);
    if (bytes <= largest)
        return 0;
    return pn_fail(PN_ETOOBIG,
                   "too many notifications in the NOTIFY queue\n"
                   "The transaction does not fit an empty queue: it needs %llu bytes of %llu. "
                   "Commit in smaller pieces, or create the segment with queue_pages=%llu.",
                   (unsigned long long) bytes, (unsigned long long) largest,
                   (unsigned long long) (pn_page_up(bytes + txn->conn->seg->ring_bytes - largest) /
                                         PN_QUEUE_PAGE));
}

/* -EAGAIN: there is room now, in the queue or for all that a cancel ends. */
static int wait_or_grow(struct pn_conn *conn, struct pn_txn *txn, struct pn_room_wait *wait, int rc)
{
    if (rc == -EAGAIN)
        return pn_queue_wait_for_room(conn, wait);
    if (rc != PN_CANCEL_AGAIN)
        return rc;
    rc = pn_cancel_ops_grow(txn);
    if (rc == 0)
        rc = check_fits_empty_queue(txn, pn_pending_worst_case(&txn->pending));
    return rc == 0 ? -EAGAIN : rc;
}

static int commit(struct pn_commit *c)
{
    struct pn_hold hold;
    struct pn_conn *conn = c->conn;
    bool actions = c->txn != NULL && (c->txn->pending.nactions != 0 || c->txn->nintents != 0);
    bool consumers = false; /* were notified */
    struct pn_room_wait own = {0}, *wait = begin_waiting(c, &own);
    int rc;
    do {
        if (actions)
            pthread_mutex_lock(&conn->recv_mutex);
        rc = actions ? pn_intents_fold(c->txn) : 0;
        if (rc == 0)
            rc = lock_for_commit(c, &hold, wait);
        if (rc == 0) {
            rc = precommit_locked(c, wait);
            if (rc == 0)
                rc = atcommit_locked(c);
            consumers = hold.nwakes != 0;
            pn_lock_release(conn->seg);
        }
        if (actions) {
            if (rc == 0 && conn->log != NULL)
                pn_intents_log(c->txn, c->xid, c->now);
            if (rc == 0 || !c->txn->prepared)
                pn_intents_let_go(c->txn);
            pthread_mutex_unlock(&conn->recv_mutex);
        }
        if (__builtin_expect(wait->pass_on, 0))
            pn_queue_pass_on(conn->seg, wait);
        rc = wait_or_grow(conn, c->txn, wait, rc);
        if (__builtin_expect(rc == -EAGAIN, 0) && c->txn != NULL)
            c->nops = c->txn->pending.nops;
    } while (rc == -EAGAIN);
    if (rc != 0) {
        if (rc != -EINTR)
            *wait = (struct pn_room_wait) {0};
        else if (wait->deadline != 0)
            wait->left_at = pn_now_ns();
        return rc;
    }
    pn_signal_collected(c);
    if (__builtin_expect(consumers, 0))
        pn_make_way_for_consumers(conn);
    if (__builtin_expect(c->leaves, 0))
        pn_watch_tell(conn->seg, conn->slot);
    if (actions && pn_load_relaxed(&conn->has_fd) != 0)
        pn_watch_arm(conn); /* a thread that watches the descriptor sleeps already */
    if (__builtin_expect(conn->log != NULL, 0)) {
        log_sends(c);
        if (c->nops != 0)
            pn_topic_log_commit(c);
    }
    return pn_conn_notice_bit(conn);
}

/* ---- entry points ---------------------------------------------------------------------------- */

/* A commit without content; not a struct assignment, since wake[] need not be cleared. */
static void begin_commit(struct pn_commit *c, struct pn_conn *conn, struct pn_txn *txn)
{
    c->conn = conn;
    c->txn = txn;
    c->nevents = 0;
    c->nheaders = 0;
    c->nchannels = 0;
    c->nbumps = 0;
    c->nops = 0;
    c->collapsed = 0;
    c->kind = PN_ENTRY_NOTIFY;
    c->upstream = 0;
    c->nwake = 0;
    c->heard = false;
    c->overflow = false;
    c->wakes_us = false;
    c->flush = false;
    c->deferred = false;
    c->leaves = false;
    c->heads = 0;
    c->now = 0;
    c->signals = 0;
}

int pn_async_notify(struct pn_conn *conn, const char *channel, size_t channel_len,
                    const void *payload, size_t payload_len, enum pn_entry_kind kind)
{
    int rc = pn_check_channel(conn, channel, channel_len);
    if (rc == 0)
        rc = pn_check_payload(conn, payload_len);
    if (rc != 0)
        return rc;
    struct pn_pending_event event = {.payload_len = (uint32_t) payload_len};
    struct pn_pending_channel ch = {.hash = pn_channel_hash(conn->dboid, channel, channel_len),
                                    .name = channel,
                                    .name_len = (uint32_t) channel_len};
    struct pn_commit c;
    begin_commit(&c, conn, NULL);
    c.kind = kind;
    c.arena = payload;
    c.events = &event;
    c.nevents = 1;
    c.channels = &ch;
    c.nchannels = 1;
    return commit(&c);
}

int pn_async_bump(struct pn_conn *conn, uint32_t index)
{
    int rc = pn_generation_check(conn, index);
    if (rc != 0)
        return rc;
    struct pn_pending_bump bump = {.index = index, .count = 1};
    struct pn_commit c;
    begin_commit(&c, conn, NULL);
    c.bumps = &bump;
    c.nbumps = 1;
    return commit(&c);
}

static void resolve(struct pn_pending *p)
{
    for (size_t i = 0; i < p->nchannels; i++)
        p->channels[i].name = (const char *) p->arena + p->channels[i].name_off;
    for (size_t i = 0; i < p->nheaders; i++)
        p->headers[i].bytes = p->arena + p->headers[i].off;
}

int pn_async_commit(struct pn_txn *txn)
{
    int rc = pn_txn_check_commit(txn);
    return rc != 0 ? rc : pn_async_commit_held(txn);
}

int pn_async_commit_held(struct pn_txn *txn)
{
    struct pn_pending *p = &txn->pending;
    int rc = pn_conn_check_held(txn->conn);
    if (rc != 0)
        return rc;
    if (p->nevents == 0 && p->nactions == 0 && p->nbumps == 0 && p->nops == 0)
        return 0; /* no effect: not counted, not numbered */
    if (!txn->prepared)
        rc = pn_pending_fold_bumps(p);
    if (rc == 0)
        rc = check_fits_empty_queue(txn, pn_pending_worst_case(p));
    if (rc != 0)
        return rc;
    resolve(p);
    struct pn_commit c;
    begin_commit(&c, txn->conn, txn);
    c.arena = pn_pending_payloads(p);
    c.events = p->events;
    c.nevents = p->nevents;
    c.headers = p->headers;
    c.nheaders = p->nheaders;
    c.channels = p->channels;
    c.nchannels = p->nchannels;
    c.bumps = p->folded;
    c.nbumps = p->nfolded;
    c.nops = p->nops;
    c.collapsed = p->collapsed;
    return commit(&c);
}

static int reserve_locked(struct pn_txn *txn, uint64_t bytes, struct pn_room_wait *wait)
{
    pn_assert_held(txn->conn->seg);
    struct pn_conn *conn = txn->conn;
    struct AsyncQueueControl *ctl = conn->seg->ctl;
    int rc = pn_conn_check_slot(conn);
    if (rc == 0 && bytes != 0)
        rc = pn_queue_make_room_locked(conn, pn_load_relaxed(&ctl->head) + bytes, 0, wait);
    if (rc == 0)
        rc = pn_intents_stage_locked(txn, true);
    if (rc == 0 && txn->pending.nops != 0) {
        rc = pn_topic_prepare_locked(txn);
        if (rc != 0)
            pn_intents_unstage_locked(txn);
    }
    if (rc != 0)
        return rc;
    conn->me->reserved += bytes;
    ctl->reserved += bytes;
    PN_CRASH("reserve:stored");
    txn->reserved = bytes;
    txn->prepared = true;
    return 0;
}

int pn_async_prepare(struct pn_txn *txn)
{
    struct pn_hold hold;
    struct pn_conn *conn = txn->conn;
    struct pn_room_wait *wait = &txn->room;
    int rc = pn_conn_check(conn);
    if (rc == 0)
        rc = pn_pending_fold_bumps(&txn->pending);
    if (rc == 0)
        rc = check_fits_empty_queue(txn, pn_pending_worst_case(&txn->pending));
    if (rc != 0)
        return rc;
    wait->may_leave = pn_interruptible;
    do {
        pthread_mutex_lock(&conn->recv_mutex);
        rc = pn_intents_fold(txn);
        if (rc == 0)
            rc = txn->pending.nops != 0 || wait->topics
                     ? pn_lock_topics_wait(conn->seg, &hold, PN_LOCK_TIMEOUT_NS, txn)
                     : pn_lock_wait(conn->seg, &hold, PN_LOCK_TIMEOUT_NS, txn);
        if (rc == 0) {
            rc = reserve_locked(txn, pn_pending_worst_case(&txn->pending), wait);
            pn_lock_release(conn->seg);
        }
        if (txn->prepared)
            pn_intents_keep(txn);
        else
            pn_intents_let_go(txn);
        pthread_mutex_unlock(&conn->recv_mutex);
        if (wait->pass_on)
            pn_queue_pass_on(conn->seg, wait);
        rc = wait_or_grow(conn, txn, wait, rc);
    } while (rc == -EAGAIN);
    if (rc != -EINTR)
        *wait = (struct pn_room_wait) {0};
    return rc;
}

static void abort_prepared(struct pn_txn *txn)
{
    struct pn_hold hold;
    struct pn_conn *conn = txn->conn;
    bool never_wait = pn_never_wait;
    pn_never_wait = false; /* what is given back here is kept from all others until then */
    int rc = pn_lock_topics(conn->seg, &hold, PN_LOCK_FOREVER);
    pn_never_wait = never_wait;
    if (rc != 0)
        return;
    if (pn_conn_check_slot(conn) == 0) {
        pn_intents_unstage_locked(txn);
        pn_topic_abort_locked(txn);
        give_back_reservation_locked(txn->conn->seg, txn);
        pn_room_wake(conn->seg);
    }
    pn_lock_release(conn->seg);
}

/* Give back what prepare() took; everything else is private and goes with the txn. */
void pn_async_abort(struct pn_txn *txn)
{
    struct pn_conn *conn = txn->conn;
    if (pn_conn_check_held(conn) != 0)
        return;
    pn_queue_stop_waiting(conn->seg, &txn->room);
    if (!txn->prepared)
        return;
    pthread_mutex_lock(&conn->recv_mutex); /* for the names */
    abort_prepared(txn);
    pn_intents_let_go(txn);
    pthread_mutex_unlock(&conn->recv_mutex);
}
