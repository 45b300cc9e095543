/*
 * topic_ops.c - what a transaction does to topics: the steps of its commit (async.c).
 *
 * 1. What it has gathered (topic_pending.c) stands in its own list.
 * 2. Step a, under the lock: messages are staged, in one chain, or written to their topics' files,
 *    as many together as follow one another in one topic (topic/on_disk.h); every answered delivery
 *    must be in flight with the tag that it was handed over with; what a requeue with a delay needs
 *    is reserved for it.  `topics_dirty` is set from here on, so that a death before `head` is
 *    followed by a rebuild that frees the chain.
 * 3. Step c: an entry that names the chain, one for each answer, with the delivery's state before
 *    and after, one for each cancel.  If no entry is left the transaction did nothing.
 * 4. Step e applies them in this order, and so does recovery: each can be applied any number of
 *    times, since an answer looks whether the state is still the one before.
 * 5. prepare() does step a and keeps it: messages are PREPARED, each with a delivery in its
 *    topic's backlog, since the channels may be others by the commit; deliveries are HELD, with the
 *    generations of their consumer and of the slot that holds them.  If that consumer's record
 *    belongs to another one by the end, that one neither gets them back nor is counted; the channel
 *    gets them, at once.  The commit makes the messages STAGED ones and goes on at step c; their
 *    delay and time to live count from there.  Until then they are durations.
 * 6. A cancel is several operations, one after the other (cancel_ops.c).
 */
#include "commit/topic_ops.h"

#include <stdlib.h>

#include "backend/generation.h"
#include "base/crashpoint.h"
#include "base/moment.h"
#include "commit/cancel_ops.h"
#include "queue/queue.h"
#include "segment/lock.h"
#include "topic/answer.h"
#include "topic/area.h"
#include "topic/cancel.h"
#include "topic/cursors.h"
#include "topic/dead_letter.h"
#include "topic/delivery.h"
#include "topic/end.h"
#include "topic/journal.h"
#include "topic/latency.h"
#include "topic/message.h"
#include "topic/notes.h"
#include "topic/on_disk.h"
#include "topic/publish.h"
#include "topic/pump.h"
#include "topic/queues.h"
#include "topic/returns.h"
#include "topic/settings.h"
#include "topic/staging.h"
#include "topic/tables.h"
#include "topic/timedset.h"
#include "topic/waiting.h"

/* ---- step a ---------------------------------------------------------------------------------- */

/* What was staged so far, of this commit. */
struct staging {
    struct pn_conn *conn;
    struct pn_txn *txn;
    struct pn_moment now;
    uint32_t first, last;
    bool prepare;
    struct pn_topic_gathered *gathered; /* for files, and not written yet; NULL: they get none */
};

/* PREPARED: its owner, a slot and the slot's generation, stands where the links will be. */
static void link_staged(struct staging *s, uint32_t ref)
{
    struct pn_segment *seg = s->conn->seg;
    struct pn_message *m = pn_message_at(seg, ref);
    pn_topic_at(seg, m->topic)->staged++;
    if (s->prepare) {
        m->prev = s->conn->slot;
        m->next = s->conn->generation;
        PN_CRASH("prepare:message-owner");
        seg->topics.ctl->prepared++;
        pn_store_release(&m->state, PN_MSG_PREPARED);
        PN_CRASH("prepare:message");
        return;
    }
    if (s->last != 0)
        pn_message_at(seg, s->last)->next = ref;
    else
        s->first = ref;
    s->last = ref;
    PN_CRASH("commit:staged");
}

static int write_gathered(struct staging *s)
{
    return s->gathered == NULL ? 0 : pn_topic_gathered_stage_locked(s->conn->seg, s->gathered);
}

/* Behind what this commit has for that topic already.  undo() takes it back. */
static int stage_on_disk(struct staging *s, struct pn_topic *topic, struct pn_pending_op *op,
                         const struct pn_new_message *m)
{
    struct pn_segment *seg = s->conn->seg;
    int rc = pn_topic_use_files_locked(seg, topic);
    if (rc == 0 && s->gathered->topic != topic) {
        rc = write_gathered(s);
        pn_topic_gather(topic, 0, s->gathered);
        s->gathered->seq = topic->disk_staged;
    }
    if (rc != 0)
        return rc;
    if (topic->disk_staged == 0)
        topic->disk_staged = pn_diskqueue_now(&topic->disk)->write_seq;
    op->spilled = ++topic->disk_staged;
    return pn_topic_gather_locked(seg, s->gathered, m, &s->now);
}

/* The topic whose queue on disk is to end where this op says; NULL: that is none, or a later's. */
static struct pn_topic *spilled_by(const struct pn_segment *seg, const struct pn_pending_op *op)
{
    struct pn_topic *topic = pn_topic_at(seg, (uint32_t) op->topic - 1);
    return op->kind == PN_OP_PUBLISH && op->spilled != 0 && topic->disk_staged == op->spilled
               ? topic
               : NULL;
}

static struct pn_new_message message_of(const struct pn_pending *p, const struct pn_pending_op *op)
{
    const unsigned char *arena = p->arena;
    return (struct pn_new_message) {.body = arena + op->body_off,
                                    .headers = arena + op->headers_off,
                                    .body_len = op->body_len,
                                    .headers_len = op->headers_len,
                                    .id = op->id,
                                    .delay_ns = op->delay_ns,
                                    .ttl_ns = op->ttl_ns};
}

static int stage_publish(struct staging *s, struct pn_pending_op *op)
{
    struct pn_segment *seg = s->conn->seg;
    struct pn_topic *topic = pn_topic_resolve_locked(s->conn, op->topic);
    op->message = 0;
    if (topic == NULL)
        return -PN_ETOPICDELETED;
    op->ttl_ns = pn_topic_ttl(topic, op->ttl_ns); /* for the note of it, too */
    struct pn_new_message m = message_of(&s->txn->pending, op);
    m.fresh = true;
    size_t skip, room;
    if (!s->prepare && (topic->disk_staged != 0 || pn_topic_spills_locked(seg, topic, 1)))
        return stage_on_disk(s, topic, op, &m);
    int rc = pn_publish_admit_locked(seg, topic, 1, &skip, &room);
    if (rc != 0 || skip >= room)
        return rc;
    rc = pn_publish_stage_locked(seg, topic, &m, &s->now, s->prepare, &op->message);
    if (rc == -PN_ETOPICFULL && !s->prepare && pn_topic_may_spill(seg, topic))
        return stage_on_disk(s, topic, op, &m);
    if (rc == 0 && op->message != 0)
        link_staged(s, op->message);
    return rc;
}

static int plan_dead_letter(struct staging *s, struct pn_pending_op *op)
{
    const char *reason = (const char *) s->txn->pending.arena + op->body_off;
    struct pn_dead_letter copy;
    int rc = pn_dead_letter_stage_locked(s->conn->seg, op->delivery, reason, op->body_len,
                                         s->prepare, false, &copy);
    op->message = copy.ref;
    if (rc == 0 && op->message != 0)
        link_staged(s, op->message);
    return rc;
}

/* What the delivery's state becomes.  For a prepared one nothing here can fail any more. */
static int plan_answer(struct staging *s, struct pn_pending_op *op, bool prepared)
{
    struct pn_segment *seg = s->conn->seg;
    struct pn_delivery *d = pn_delivery_at(seg, op->delivery);
    struct pn_topic_channel *ch = pn_topic_channel_at(seg, d->channel);
    uint64_t word = pn_load_relaxed(&d->state);
    uint32_t attempts = pn_state_attempts(word);
    if (!prepared) /* later its consumer may be no more */
        op->outcome = (int) pn_answer_outcome_locked(seg, op->delivery, op->answer);
    op->was = word;
    op->redo = (struct pn_answer_redo) {.word = pn_state_word(PN_KIND_FREE, 0, 0, op->tag)};
    if (op->outcome == PN_OUTCOME_DEAD)
        return prepared ? 0 : plan_dead_letter(s, op);
    if (op->outcome == PN_OUTCOME_END)
        return 0;
    bool later = op->delay_ns > 0 && op->answer == PN_ANSWER_REQUEUE;
    if (later && d->timed_reserved == 0) {
        if (pn_timedset_reserve_locked(&seg->topics.arena, ch->topic, &ch->timed, 1))
            d->timed_reserved = 1;
        else if (prepared)
            later = false; /* a rebuild took what was reserved: rather at once than not at all */
        else
            return pn_fail(PN_ETOPICFULL, "there is no room in topic_memory for a delay");
    }
    if (s->prepare)
        return 0;
    enum pn_back where = op->answer == PN_ANSWER_RELEASE ? PN_BACK_HEAD
                         : later                         ? PN_BACK_LATER
                                                         : PN_BACK_TAIL;
    if (op->answer == PN_ANSWER_RELEASE && attempts > 0)
        attempts--;
    int64_t due = s->now.mono + op->delay_ns;
    op->redo = pn_delivery_back_redo(seg, op->delivery, where, due, attempts);
    return 0;
}

static int stage_answer(struct staging *s, struct pn_pending_op *op)
{
    struct pn_segment *seg = s->conn->seg;
    const struct pn_handle h = {.id = op->id, .delivery = op->delivery, .tag = op->tag};
    op->was = 0;
    op->message = 0;
    int rc = pn_answer_check_locked(s->conn, &h, false);
    if (rc == 0 && pn_delivery_at(seg, h.delivery)->due <= s->now.mono) {
        pn_delivery_time_out_locked(seg, h.delivery, s->now.mono);
        rc = pn_answer_check_locked(s->conn, &h, false);
    }
    if (rc == 0)
        rc = plan_answer(s, op, false);
    if (rc == 0 && s->prepare) {
        pn_delivery_hold_locked(seg, op->delivery, s->conn->slot);
        seg->topics.ctl->prepared++;
    }
    return rc;
}

/* Is it still ours?  After a rebuild that found our slot dead it is not. */
static bool is_prepared(const struct staging *s, const struct pn_pending_op *op)
{
    const struct pn_message *m = pn_message_at(s->conn->seg, op->message);
    return op->message != 0 && pn_load_relaxed(&m->state) == PN_MSG_PREPARED &&
           m->prev == s->conn->slot && m->next == s->conn->generation;
}

static bool is_held(const struct staging *s, const struct pn_pending_op *op)
{
    const struct pn_delivery *d = pn_delivery_at(s->conn->seg, op->delivery);
    uint64_t word = pn_load_relaxed(&d->state);
    return op->was != 0 && pn_state_kind(word) == PN_KIND_HELD && pn_state_tag(word) == op->tag &&
           pn_message_at(s->conn->seg, d->message)->id == op->id;
}

/* Everything that step a has done so far. */
static void undo(struct staging *s)
{
    struct pn_segment *seg = s->conn->seg;
    for (size_t i = 0; i < s->txn->pending.nops; i++) {
        struct pn_pending_op *op = &s->txn->pending.ops[i];
        if (op->kind != PN_OP_CANCEL && op->message != 0) {
            if (s->prepare ? is_prepared(s, op) : true) {
                if (!s->prepare)
                    pn_topic_at(seg, pn_message_at(seg, op->message)->topic)->staged--;
                pn_message_unstage_locked(seg, op->message);
            }
            op->message = 0;
        }
        if (op->kind == PN_OP_ANSWER && s->prepare && is_held(s, op)) {
            struct pn_delivery *d = pn_delivery_at(seg, op->delivery);
            struct pn_topic_channel *ch = pn_topic_channel_at(seg, d->channel);
            pn_delivery_unhold_locked(seg, op->delivery);
            seg->topics.ctl->prepared--;
            pn_topic_channel_settle_locked(seg, ch);
        }
        if (op->kind == PN_OP_CANCEL)
            pn_cancel_op_undo_locked(s->conn, op, s->prepare);
        struct pn_topic *spilled = spilled_by(seg, op);
        if (spilled != NULL) {
            spilled->disk_staged = 0;
            pn_diskqueue_take_back(&spilled->disk, seg->topics.disk);
        }
        op->spilled = 0;
        op->was = 0;
        PN_CRASH("commit:undone");
    }
}

/* Of all of them before the first: then undo() can take back what there is. */
static void begin_staging(struct pn_pending *p)
{
    for (size_t i = 0; i < p->nops; i++) {
        struct pn_pending_op *op = &p->ops[i];
        op->message = op->tombstone = 0;
        op->spilled = 0;
        op->was = 0;
    }
}

/* Before anything else: they may have to be tried again, and what is written to files is not to be
 * written each time. */
static int plan_cancels(struct staging *s)
{
    struct pn_pending *p = &s->txn->pending;
    uint64_t left = PN_LOOK_BYTES;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < p->nops; i++)
        if (p->ops[i].kind == PN_OP_CANCEL && !p->ops[i].again)
            rc = pn_cancel_ops_plan_locked(s->txn, i, &s->now, s->prepare, &left);
    return rc;
}

/* Or PN_CANCEL_AGAIN. */
static int stage_all(struct staging *s)
{
    struct pn_pending *p = &s->txn->pending;
    begin_staging(p);
    int rc = plan_cancels(s);
    for (size_t i = 0; rc == 0 && i < p->nops; i++) {
        struct pn_pending_op *op = &p->ops[i];
        if (op->kind == PN_OP_PUBLISH)
            rc = stage_publish(s, op);
        else if (op->kind == PN_OP_ANSWER)
            rc = stage_answer(s, op);
    }
    if (rc == 0)
        rc = write_gathered(s);
    if (rc != 0)
        undo(s);
    return rc;
}

/* Of a prepared message the durations become times; false: its topic was deleted. */
static bool revive(struct staging *s, uint32_t ref)
{
    struct pn_segment *seg = s->conn->seg;
    struct pn_message *m = pn_message_at(seg, ref);
    const struct pn_topic *topic = pn_topic_at(seg, m->topic);
    if (pn_load_relaxed(&topic->state) != PN_RECORD_USED) {
        pn_message_unstage_locked(seg, ref);
        return false;
    }
    pn_store_release(&m->state, PN_MSG_STAGED); /* after a death from here on it was not prepared */
    PN_CRASH("prepare:staged");
    seg->topics.ctl->prepared--;
    struct pn_delivery *d = pn_delivery_at(seg, m->first);
    m->prev = m->next = 0;
    d->order =
        pn_topic_channel_at(seg, d->channel)->next_order++; /* it may have been emptied since */
    d->due = d->due == 0 ? 0 : s->now.mono + (d->due - m->published_mono);
    m->expires = m->expires == 0 ? 0 : s->now.mono + (m->expires - m->published_mono);
    m->published_mono = s->now.mono;
    m->published_ns = s->now.real;
    return true;
}

static void revive_all(struct staging *s)
{
    struct pn_pending *p = &s->txn->pending;
    for (size_t i = 0; i < p->nops; i++) {
        struct pn_pending_op *op = &p->ops[i];
        if (op->kind == PN_OP_CANCEL) {
            if (!op->again)
                pn_cancel_ops_plan_locked(s->txn, i, &s->now, false, NULL);
            continue;
        }
        if (op->message != 0 && !(is_prepared(s, op) && revive(s, op->message))) {
            op->message = 0;
        } else if (op->message != 0) {
            if (s->last != 0)
                pn_message_at(s->conn->seg, s->last)->next = op->message;
            else
                s->first = op->message;
            s->last = op->message;
        }
        if (op->kind == PN_OP_ANSWER && is_held(s, op)) {
            plan_answer(s, op, true);
            s->conn->seg->topics.ctl->prepared--;
        } else {
            op->was = 0;
        }
    }
}

/* How many of the cancels will end something. */
static size_t cancelled(const struct pn_pending *p)
{
    size_t n = 0;
    for (size_t i = 0; i < p->nops; i++)
        n += p->ops[i].kind == PN_OP_CANCEL && (p->ops[i].message != 0 || p->ops[i].tombstone != 0);
    return n;
}

/* What it does to durable topics, as one batch, before the commit point. */
static int log_all(struct staging *s)
{
    struct pn_segment *seg = s->conn->seg;
    const struct pn_pending *p = &s->txn->pending;
    if (seg->topics.ctl->log_ready == 0)
        return 0;
    for (size_t i = 0; i < p->nops; i++) {
        const struct pn_pending_op *op = &p->ops[i];
        struct pn_topic *topic = pn_topic_at(seg, (uint32_t) op->topic - 1);
        if (op->kind == PN_OP_CANCEL) {
            if (op->message != 0 || op->tombstone != 0)
                pn_cancel_op_note_locked(seg, topic, op);
            continue;
        }
        if (op->message != 0)
            pn_durable_note_publish_locked(seg, op->message);
        if (op->kind == PN_OP_ANSWER && op->was != 0)
            pn_durable_note_answer_locked(seg, op->delivery, &op->redo);
        if (op->kind == PN_OP_PUBLISH && op->spilled != 0) {
            const struct pn_new_message m = message_of(p, op);
            pn_durable_note_spilled_locked(seg, topic, &m, &s->now, false);
        }
    }
    return pn_durable_flush_locked(seg);
}

int pn_topic_precommit_locked(struct pn_commit *c)
{
    pn_assert_held(c->conn->seg);
    struct pn_topic_gathered gathered;
    struct staging s = {
        .conn = c->conn, .txn = c->txn, .now = pn_moment_now(), .gathered = &gathered};
    struct pn_pending *p = &c->txn->pending;
    int rc = 0;
    for (size_t i = 0; c->conn->log != NULL && i < p->nops; i++)
        if (p->ops[i].note == NULL) /* without memory it is not logged */
            p->ops[i].note = calloc(1, sizeof *p->ops[i].note);
    if (!pn_topics_ready(c->conn->seg))
        return pn_fail(PN_ETOPICDELETED, "the topic was deleted");
    pn_topics_begin_locked(c->conn->seg);
    gathered.topic = NULL;
    gathered.n = 0;
    if (c->txn->prepared)
        revive_all(&s);
    else
        rc = stage_all(&s);
    if (rc == 0) {
        rc = log_all(&s);
        if (rc != 0 && !c->txn->prepared) {
            undo(&s);
        } else if (rc != 0) {
            rc = pn_durable_unwritten(c->conn->seg, rc); /* what was prepared is committed */
        }
    }
    c->messages = s.first;
    if (rc != 0)
        pn_topics_end_locked(c->conn->seg);
    else if (c->txn->cancelled != NULL)
        *c->txn->cancelled = cancelled(&c->txn->pending);
    PN_CRASH("commit:topics-staged");
    return rc;
}

int pn_topic_prepare_locked(struct pn_txn *txn)
{
    pn_assert_held(txn->conn->seg);
    struct staging s = {.conn = txn->conn, .txn = txn, .now = pn_moment_now(), .prepare = true};
    if (!pn_topics_ready(txn->conn->seg))
        return pn_fail(PN_ETOPICDELETED, "the topic was deleted");
    pn_topics_begin_locked(txn->conn->seg);
    int rc = stage_all(&s);
    pn_topics_end_locked(txn->conn->seg);
    PN_CRASH("prepare:topics");
    return rc;
}

void pn_topic_abort_locked(struct pn_txn *txn)
{
    pn_assert_held(txn->conn->seg);
    struct staging s = {.conn = txn->conn, .txn = txn, .prepare = true};
    if (txn->pending.nops == 0 || !pn_topics_ready(txn->conn->seg))
        return;
    pn_topics_begin_locked(txn->conn->seg);
    undo(&s);
    pn_topics_end_locked(txn->conn->seg);
    PN_CRASH("prepare:aborted");
}

/* ---- steps c and e --------------------------------------------------------------------------- */

QueuePosition pn_topic_append_locked(struct pn_commit *c, QueuePosition pos)
{
    pn_assert_held(c->conn->seg);
    const struct pn_pending *p = &c->txn->pending;
    const struct pn_entry_stamp stamp = pn_commit_stamp(c);
    if (c->messages != 0) {
        const struct pn_new_entry entry = {.kind = PN_ENTRY_PUBLISH,
                                           .channel_hash = c->messages,
                                           .chan_seq =
                                               pn_message_at(c->conn->seg, c->messages)->id};
        pos = pn_queue_append_locked(c->conn->seg, pos, &stamp, &entry);
    }
    for (size_t i = 0; i < p->nops; i++) {
        const struct pn_pending_op *op = &p->ops[i];
        struct pn_ended ended;
        struct pn_new_entry entry = {.kind = PN_ENTRY_CANCEL};
        if (op->kind == PN_OP_ANSWER)
            entry = (struct pn_new_entry) {.kind = PN_ENTRY_ANSWER,
                                           .channel_hash = op->delivery,
                                           .chan_seq = op->was,
                                           .payload = &op->redo,
                                           .payload_len = sizeof op->redo};
        if (op->kind == PN_OP_CANCEL)
            entry = pn_cancel_op_entry(c->conn->seg, op, &ended);
        const struct pn_topic *spilled = spilled_by(c->conn->seg, op);
        if (spilled != NULL)
            entry = (struct pn_new_entry) {.kind = PN_ENTRY_SPILL,
                                           .channel_hash =
                                               (uint32_t) (spilled - c->conn->seg->topics.topic),
                                           .chan_seq = op->spilled};
        bool cancels = op->kind == PN_OP_CANCEL && (op->message != 0 || op->tombstone != 0);
        if (spilled != NULL || cancels || (op->kind == PN_OP_ANSWER && op->was != 0))
            pos = pn_queue_append_locked(c->conn->seg, pos, &stamp, &entry);
    }
    if (pos == pn_load_relaxed(&c->conn->seg->ctl->head))
        pn_topics_end_locked(c->conn->seg); /* nothing to commit, so nothing will be applied */
    return pos;
}

static void note_publishes(struct pn_commit *c)
{
    struct pn_segment *seg = c->conn->seg;
    for (size_t i = 0; i < c->txn->pending.nops; i++) {
        struct pn_pending_op *op = &c->txn->pending.ops[i];
        if (op->kind != PN_OP_PUBLISH || op->message == 0 || op->note == NULL)
            continue;
        op->note->len =
            pn_log_topic_name(pn_topic_at(seg, (uint32_t) op->topic - 1), op->note->name);
    }
}

void pn_topic_log_commit(struct pn_commit *c)
{
    for (size_t i = 0; i < c->txn->pending.nops; i++) {
        struct pn_pending_op *op = &c->txn->pending.ops[i];
        if (op->note == NULL || op->note->len == 0)
            continue;
        if (op->kind == PN_OP_PUBLISH)
            pn_log_publish(c->conn, op->note, op->id, op->body_len);
        else
            pn_log_note(c->conn, op->note);
    }
}

static void apply_answer(struct pn_commit *c, const struct pn_pending_op *op)
{
    struct pn_segment *seg = c->conn->seg;
    if (op->note != NULL)
        pn_note_delivery_locked(seg, op->note,
                                op->answer == PN_ANSWER_FINISH ? PN_LAT_FIN : PN_LAT_REQ,
                                op->delivery, c->now);
    struct pn_topic_channel *ch =
        pn_topic_channel_at(seg, pn_delivery_at(seg, op->delivery)->channel);
    pn_answer_count_locked(seg, op->delivery, op->answer, (enum pn_outcome) op->outcome, c->now);
    pn_topics_hold(seg)->told = true;
    pn_delivery_apply_locked(seg, op->delivery, &op->redo);
    pn_topics_hold(seg)->told = false;
    pn_topic_channel_settle_locked(seg, ch);
    PN_CRASH("commit:answered");
}

/* The topics that get something, each once.  What an answer does is settled with it. */
static void mark_topics(struct pn_commit *c)
{
    struct pn_segment *seg = c->conn->seg;
    for (size_t i = 0; i < c->txn->pending.nops; i++) {
        struct pn_pending_op *op = &c->txn->pending.ops[i];
        bool staged = op->kind != PN_OP_CANCEL && op->message != 0;
        uint32_t at = staged ? pn_message_at(seg, op->message)->topic : (uint32_t) op->topic - 1;
        struct pn_topic *topic = pn_topic_at(seg, at);
        bool first = (staged || op->kind == PN_OP_PUBLISH) && topic->touched == 0;
        topic->staged -= staged;
        topic->touched |= first;
        op->goes_on = first ? at + 1 : 0;
    }
}

static void go_on(struct pn_commit *c)
{
    struct pn_segment *seg = c->conn->seg;
    for (size_t i = 0; i < c->txn->pending.nops; i++) {
        uint32_t topic = c->txn->pending.ops[i].goes_on;
        if (topic != 0) {
            pn_topic_at(seg, topic - 1)->touched = 0;
            pn_topic_go_on_locked(seg, pn_topic_at(seg, topic - 1));
        }
    }
}

void pn_topic_apply_locked(struct pn_commit *c)
{
    pn_assert_held(c->conn->seg);
    struct pn_segment *seg = c->conn->seg;
    const struct pn_pending *p = &c->txn->pending;
    mark_topics(c);
    if (c->messages != 0)
        pn_message_golive_locked(seg, c->messages);
    for (size_t i = 0; i < p->nops; i++) {
        const struct pn_pending_op *op = &p->ops[i];
        struct pn_topic *spilled = spilled_by(seg, op);
        if (op->spilled != 0) /* topic/overflow.c, count() */
            pn_topic_at(seg, (uint32_t) op->topic - 1)->message_bytes -= op->headers_len;
        if (spilled != NULL) {
            pn_topic_spill_commit_locked(seg, spilled, op->spilled);
            spilled->disk_staged = 0;
        } else if (op->kind == PN_OP_ANSWER && op->was != 0) {
            apply_answer(c, op);
        } else if (op->kind == PN_OP_CANCEL) {
            pn_cancel_apply_locked(seg, op->id, op->message, op->tombstone, op->seq);
        }
    }
    if (__builtin_expect(c->conn->log != NULL, 0))
        note_publishes(c);
    go_on(c);
    pn_topics_end_locked(seg);
    PN_CRASH("commit:topics");
}
