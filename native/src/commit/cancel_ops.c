/*
 * cancel_ops.c - what a transaction cancels: its operations, and what they end at the commit.
 *
 * 1. A message can be in memory and in files, in each as often as its topic has channels (cancel.c
 *    6).  So a cancel is a group of operations, one after the other in the list; all but the first
 *    are `again`.  Each ends one copy in memory, and buries one record, or does one of both, or
 *    nothing.  Its entry in the queue names them; so the redo of a commit ends these and no others,
 *    and looks for nothing.
 * 2. The call counts the records that it finds; there is one operation at the least.  Which copies
 *    and records there are is known at the commit, under the lock, where nothing is allocated.  If
 *    they are more than the group can end, everything is taken back, the group grows, and the
 *    commit begins again.
 * 3. A record that the call has found may have moved: to memory, or to the end of `rest` or of
 *    `later`.  So these are read on from where they ended when the call began to look.  A file that
 *    cannot be read is an error of the commit: it does not know then what to end.  One hold of the
 *    lock reads a part of it; then everything is taken back as well, and the commit begins again
 *    with what was found, and goes on reading behind that.
 * 4. The log of a durable topic is told which channels have done with the message, as one that has
 *    not put it off still gets it; what stands in a backlog, or the topic's own files, is of none.
 * 5. prepare() keeps a PREPARED tombstone for each operation of a message that is in files, or may
 *    go there: as many as the message can come to have records.  Its commit cannot fail: it ends
 *    what the group can, and what can be read.
 */
#include "commit/cancel_ops.h"

#include <string.h>

#include "backend/backend.h"
#include "segment/lock.h"
#include "topic/area.h"
#include "topic/cancel.h"
#include "topic/cursors.h"
#include "topic/notes.h"
#include "topic/on_disk.h"
#include "topic/queues.h"
#include "topic/tables.h"
#include "topic/tombstones.h"
#include "topic/topic.h"

/* ---- the call -------------------------------------------------------------------------------- */

static int add_op(struct pn_txn *txn, pn_ref topic, uint64_t id, const struct pn_deferred *d,
                  bool again)
{
    struct pn_pending_op *op = pn_pending_op(&txn->pending);
    if (op == NULL)
        return pn_fail(ENOMEM, "out of memory");
    op->kind = PN_OP_CANCEL;
    op->again = again;
    op->topic = topic;
    op->id = id;
    op->on_disk = d->on_disk;
    op->at = d->at;
    op->seq = d->seq;
    op->due = d->due;
    op->since = d->since;
    txn->pending.nops++;
    return 0;
}

int pn_topic_txn_cancel(struct pn_txn *txn, pn_ref ref, uint64_t id)
{
    struct pn_hold hold;
    struct pn_segment *seg = txn->conn->seg;
    struct pn_deferred d = {.begun = false};
    const size_t nops = txn->pending.nops;
    bool found = false;
    int rc;
    do {
        rc = pn_lock_topics_wait(seg, &hold, PN_LOCK_TIMEOUT_NS, txn);
        if (rc != 0)
            break;
        struct pn_topic *topic = pn_topic_resolve_locked(txn->conn, ref);
        rc = topic == NULL ? -PN_ETOPICDELETED : pn_deferred_find_locked(seg, topic, id, &d);
        pn_lock_release(seg);
        found |= rc == 1;
        if (rc == 1 && d.on_disk)
            rc = add_op(txn, ref, id, &d, txn->pending.nops != nops);
        if (rc >= 0 && !d.ended)
            rc = -EAGAIN;
    } while (rc == -EAGAIN);
    d.on_disk = false;
    if (rc >= 0 && found && txn->pending.nops == nops)
        rc = add_op(txn, ref, id, &d, false);
    if (rc < 0)
        txn->pending.nops = nops;
    return rc < 0 ? rc : found;
}

/* ---- step a ---------------------------------------------------------------------------------- */

enum { PN_MOST_LOOKS = 1000 };

/* A group, and what is done with it. */
struct plan {
    struct pn_txn *txn;
    struct pn_topic *topic;
    struct pn_pending_op *ops;
    size_t n, more; /* so many more would be needed */
    int64_t now;
    bool prepare;
    uint64_t *left; /* to be looked at in this hold of the lock */
};

static size_t group_length(const struct pn_pending *p, size_t first)
{
    size_t n = 1;
    while (first + n < p->nops && p->ops[first + n].kind == PN_OP_CANCEL && p->ops[first + n].again)
        n++;
    return n;
}

/* A copy in memory: one for each operation.  Several channels may have it. */
static void plan_copy(void *arg, uint32_t ref)
{
    struct plan *plan = arg;
    size_t i = 0;
    while (i < plan->n && plan->ops[i].message != 0 && plan->ops[i].message != ref)
        i++;
    if (i < plan->n)
        plan->ops[i].message = ref;
    else
        plan->more++;
}

static void plan_copies(struct plan *plan)
{
    struct pn_segment *seg = plan->txn->conn->seg;
    pn_deferred_copies_locked(seg, plan->topic, plan->ops[0].id, plan->now, plan_copy, plan);
    for (size_t i = 0; plan->prepare && i < plan->n; i++)
        plan->ops[i].message = 0; /* they are counted */
}

/* A tombstone for its record. */
static int make_tombstone(const struct plan *plan, struct pn_pending_op *op, uint32_t kept)
{
    struct pn_conn *conn = plan->txn->conn;
    if (kept != 0) {
        pn_tombstone_at(conn->seg, kept)->seq = op->seq;
        pn_tombstone_stage_locked(conn->seg, kept);
        op->tombstone = kept;
        return 0;
    }
    op->tombstone = pn_tombstone_make_locked(
        conn->seg, plan->topic, op->seq, plan->prepare ? PN_TOMB_PREPARED : PN_TOMB_STAGED, conn);
    return op->tombstone != 0 ? 0 : -PN_ETOPICFULL;
}

/* In as many holds as it takes; where others write without end the last of them is a long one. */
static int look_since(const struct plan *plan, struct pn_deferred_since *since,
                      struct pn_deferred *found)
{
    struct pn_pending_op *op = plan->ops;
    const bool whole = plan->txn->prepared || op->looks >= PN_MOST_LOOKS;
    uint64_t all = UINT64_MAX;
    const int rc = pn_deferred_since_locked(plan->txn->conn->seg, plan->topic, op->id, since,
                                            whole ? &all : plan->left, found);
    op->looks += rc == -EAGAIN;
    return rc;
}

/* Has one of the operations before it?  What is STAGED is not found again, what is PREPARED is. */
static bool is_taken(const struct plan *plan, size_t before, uint64_t seq)
{
    for (size_t i = 0; i < before; i++)
        if (plan->ops[i].tombstone != 0 && plan->ops[i].seq == seq)
            return true;
    return false;
}

/* The record that the call has found, if it is there, or the next one that was written since. */
static int find_record(const struct plan *plan, size_t i, struct pn_deferred_since *since)
{
    const struct pn_segment *seg = plan->txn->conn->seg;
    struct pn_pending_op *op = &plan->ops[i];
    struct pn_deferred found = {.at = op->at, .seq = op->seq, .due = op->due};
    int rc = 1;
    if (!op->on_disk || op->due <= plan->now || is_taken(plan, i, op->seq) ||
        !pn_deferred_on_disk_locked(seg, plan->topic, op->seq))
        do
            rc = look_since(plan, since, &found);
        while (rc == 1 && is_taken(plan, i, found.seq));
    op->at = found.at;
    op->seq = found.seq;
    op->due = found.due;
    op->on_disk = rc == 1;
    return rc;
}

static uint32_t take_kept(const struct plan *plan, struct pn_pending_op *op)
{
    struct pn_conn *conn = plan->txn->conn;
    const uint32_t kept =
        pn_tombstone_is_prepared(conn->seg, op->tombstone, conn) ? op->tombstone : 0;
    op->tombstone = 0;
    if (kept != 0) /* the record may have moved */
        op->seq = pn_tombstone_at(conn->seg, kept)->seq;
    return kept;
}

/* A record for each operation, as far as there are some: 1: the last one has one, too. */
static int plan_records(const struct plan *plan, struct pn_deferred_since *since)
{
    const bool prepared = plan->txn->prepared;
    int rc = 1;
    for (size_t i = 0; i < plan->n; i++) {
        struct pn_pending_op *op = &plan->ops[i];
        const uint32_t kept = take_kept(plan, op);
        op->on_disk |= kept != 0;
        rc = find_record(plan, i, since);
        if (rc < 0 && !prepared)
            return rc;
        if (kept != 0 && rc != 1) /* it is in memory by now, or gone */
            pn_tombstone_free_locked(plan->txn->conn->seg, kept);
        if (rc == 1 && make_tombstone(plan, op, kept) != 0 && !prepared)
            return -PN_ETOPICFULL;
    }
    return rc;
}

/* And those that no operation is left for.  What was found stands in the operations, so the next
 * try goes on where this one has come to. */
static int plan_files(struct plan *plan)
{
    struct pn_deferred_since since = plan->ops[0].since;
    struct pn_deferred found;
    int rc = plan_records(plan, &since);
    if (plan->txn->prepared)
        return 0;
    while (rc == 1 && (rc = look_since(plan, &since, &found)) == 1)
        plan->more += !is_taken(plan, plan->n, found.seq);
    if (plan->more != 0)
        return 0;
    plan->ops[0].since = since;
    return rc;
}

/* It is in memory or in a file, from where copies may go to other files before the prepared
 * transaction commits, as many as its topic has channels. */
static int keep_places(struct plan *plan)
{
    struct pn_conn *conn = plan->txn->conn;
    const size_t most = plan->topic->nchannels > 1 ? plan->topic->nchannels + 1U : 1;
    bool anywhere = pn_deferred_in_memory_locked(conn->seg, plan->topic, plan->ops[0].id) != 0;
    for (size_t i = 0; i < plan->n; i++)
        anywhere |= plan->ops[i].tombstone != 0;
    if (!anywhere || !pn_topic_may_spill(conn->seg, plan->topic))
        return 0;
    plan->more = plan->n < most ? most - plan->n : 0;
    for (size_t i = 0; plan->more == 0 && i < plan->n; i++) {
        struct pn_pending_op *op = &plan->ops[i];
        if (op->tombstone == 0)
            op->tombstone = pn_tombstone_make_locked(conn->seg, plan->topic, PN_TOMB_NOWHERE,
                                                     PN_TOMB_PREPARED, conn);
        if (op->tombstone == 0)
            return -PN_ETOPICFULL;
    }
    return 0;
}

int pn_cancel_ops_plan_locked(struct pn_txn *txn, size_t first, const struct pn_moment *now,
                              bool prepare, uint64_t *left)
{
    pn_assert_held(txn->conn->seg);
    struct pn_pending_op *ops = &txn->pending.ops[first];
    struct plan plan = {.txn = txn,
                        .topic = pn_topic_resolve_locked(txn->conn, ops->topic),
                        .ops = ops,
                        .n = group_length(&txn->pending, first),
                        .now = now->mono,
                        .prepare = prepare,
                        .left = left};
    for (size_t i = 0; i < plan.n; i++)
        ops[i].message = 0;
    if (plan.topic == NULL) { /* it was deleted, and all of it with it */
        for (size_t i = 0; i < plan.n; i++)
            pn_cancel_op_undo_locked(txn->conn, &ops[i], true);
        return 0;
    }
    int rc = plan_files(&plan);
    if (rc == 0)
        plan_copies(&plan);
    if (rc == 0 && prepare && plan.more == 0)
        rc = keep_places(&plan);
    ops->wants = (uint32_t) plan.more;
    if (rc == -EAGAIN || (rc == 0 && plan.more != 0 && !txn->prepared))
        return PN_CANCEL_AGAIN;
    return rc;
}

/* Its topic was deleted, or it is another's by now: nothing to take back. */
void pn_cancel_op_undo_locked(const struct pn_conn *conn, struct pn_pending_op *op, bool prepare)
{
    pn_assert_held(conn->seg);
    if (prepare ? pn_tombstone_is_prepared(conn->seg, op->tombstone, conn) : op->tombstone != 0)
        pn_tombstone_free_locked(conn->seg, op->tombstone);
    op->tombstone = op->message = 0;
}

/* The record that it buries; false: it cannot be read.  One that was written again after prepare()
 * is looked for from the front. */
static bool read_record(struct pn_segment *seg, struct pn_topic *topic,
                        const struct pn_pending_op *op, struct pn_topic_on_disk *d)
{
    struct pn_diskqueue_cursor at = op->at;
    const bool rest = (op->seq & PN_REST_SEQ) != 0;
    int rc =
        rest ? pn_rest_look_locked(seg, topic, &at, d) : pn_later_look_locked(seg, topic, &at, d);
    if (rc == 1 && d->seq == op->seq)
        return d->there;
    at = (struct pn_diskqueue_cursor) {0};
    do
        rc = rest ? pn_rest_look_locked(seg, topic, &at, d)
                  : pn_later_look_locked(seg, topic, &at, d);
    while (rc == -EAGAIN || (rc == 1 && d->seq < op->seq));
    return rc == 1 && d->seq == op->seq && d->there;
}

/* The channels whose record it buries; false: they are not known, or it is of none yet. */
static bool note_record(struct pn_segment *seg, struct pn_topic *topic,
                        const struct pn_pending_op *op)
{
    struct pn_topic_on_disk d;
    struct pn_spilled_delivery to;
    if ((op->seq & PN_SEQ_QUEUE) == 0 || !pn_is_durable(seg, topic) ||
        !read_record(seg, topic, op, &d))
        return false;
    if ((op->seq & PN_REST_SEQ) != 0)
        PN_EACH_CHANNEL_AS (seg, topic, ch)
            if (pn_rest_has(seg, topic, ch, &d))
                pn_durable_note_ended_locked(seg, topic, op->id, pn_topic_channel_index(seg, ch),
                                             false);
    for (uint32_t i = 0; (op->seq & PN_LATER_SEQ) != 0 && i < d.deliveries.n; i++)
        if (pn_spilled_delivery_locked(seg, topic, &d.deliveries, i, &to))
            pn_durable_note_ended_locked(seg, topic, op->id, to.channel, false);
    return true;
}

void pn_cancel_op_note_locked(struct pn_segment *seg, struct pn_topic *topic,
                              const struct pn_pending_op *op)
{
    pn_assert_held(seg);
    bool of_all = op->tombstone != 0 && !note_record(seg, topic, op);
    if (op->message != 0)
        PN_EACH_DELIVERY (seg, pn_message_at(seg, op->message), at) {
            const uint32_t channel = pn_delivery_at(seg, at)->channel;
            if (pn_is_backlog(seg, pn_topic_channel_at(seg, channel)))
                of_all = true;
            else
                pn_durable_note_ended_locked(seg, topic, op->id, channel, false);
        }
    if (of_all)
        pn_durable_note_cancelled_locked(seg, topic, op->id, false);
}

struct pn_new_entry pn_cancel_op_entry(const struct pn_segment *seg, const struct pn_pending_op *op,
                                       struct pn_ended *ended)
{
    struct pn_new_entry entry = {
        .kind = PN_ENTRY_CANCEL, .channel_hash = op->message, .chan_seq = op->id};
    if (op->tombstone != 0)
        entry = (struct pn_new_entry) {
            .kind = PN_ENTRY_BURY, .channel_hash = op->tombstone, .chan_seq = op->seq};
    if (op->message == 0)
        return entry;
    const struct pn_delivery *d = pn_delivery_at(seg, pn_message_at(seg, op->message)->first);
    *ended = (struct pn_ended) {
        .id = op->id, .order = d->order, .message = op->message, .channel = d->channel};
    entry.payload = ended;
    entry.payload_len = sizeof *ended;
    return entry;
}

/* ---- more of them ---------------------------------------------------------------------------- */

/* Behind the group that begins with `first`; and behind them begins what savepoints have begun. */
static int add_to_group(struct pn_pending *p, size_t first)
{
    const size_t end = first + group_length(p, first), more = p->ops[first].wants;
    p->ops[first].wants = 0;
    for (size_t i = 0; i < more; i++) {
        struct pn_pending_op *op = pn_pending_op(p);
        if (op == NULL)
            return pn_fail(ENOMEM, "out of memory");
        const struct pn_pending_op *group = &p->ops[first];
        struct pn_pending_op added = {.kind = PN_OP_CANCEL,
                                      .again = true,
                                      .topic = group->topic,
                                      .id = group->id,
                                      .since = group->since};
        memmove(&p->ops[end + 1], &p->ops[end], (p->nops - end) * sizeof added);
        p->ops[end] = added;
        p->nops++;
        p->indexed = 0; /* they stand elsewhere now */
    }
    for (size_t i = 0; i < p->nmarks; i++)
        p->marks[i].ops += p->marks[i].ops > first ? more : 0;
    return 0;
}

int pn_cancel_ops_grow(struct pn_txn *txn)
{
    struct pn_pending *p = &txn->pending;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < p->nops; i++)
        if (p->ops[i].kind == PN_OP_CANCEL && p->ops[i].wants != 0)
            rc = add_to_group(p, i);
    return rc;
}
