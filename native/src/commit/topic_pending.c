/*
 * topic_pending.c - what a transaction is to do to topics, until its commit.
 *
 * 1. Bodies and answers wait in the transaction's own list; nothing of them is in shared memory.
 *    What ROLLBACK has to undo is this list alone.
 * 2. The lock is taken for what the caller is told now: the topic exists, what is answered is in
 *    flight.  The commit looks again (topic_ops.c 2), as it may be otherwise by then.
 * 3. Ids are taken now, since the caller gets them; those of a transaction that is rolled back are
 *    given to no other message.
 */
#include "commit/topic_pending.h"

#include <errno.h>

#include "segment/lock.h"
#include "topic/answer.h"
#include "topic/area.h"
#include "topic/publish.h"

static int no_memory(void)
{
    return pn_fail(ENOMEM, "out of memory");
}

/* With the lock: does the topic exist, and what are its next n ids?  The commit, which is one hold,
 * then finds what it may have to drop. */
static int take_ids(struct pn_conn *conn, pn_ref ref, size_t n, uint64_t *first)
{
    struct pn_hold hold;
    struct pn_topic *topic;
    int rc = pn_topic_look_ahead(conn, &hold, ref, &topic);
    if (rc != 0)
        return rc;
    *first = pn_fetch_add_relaxed(&conn->seg->topics.ctl->next_id, n);
    pn_lock_release(conn->seg);
    return rc;
}

int pn_topic_txn_publish_many(struct pn_txn *txn, pn_ref topic, const unsigned char *bodies,
                              const uint32_t *lens, size_t n, const pn_message_in *common,
                              uint64_t *first_id)
{
    struct pn_pending *p = &txn->pending;
    size_t nops = p->nops, headers_off = 0;
    int rc = take_ids(txn->conn, topic, n, first_id);
    if (rc == 0 && common != NULL)
        rc = pn_pending_keep(p, common->headers, common->headers_len, &headers_off);
    for (size_t i = 0; rc == 0 && i < n; bodies += lens[i++]) {
        struct pn_pending_op *op = pn_pending_op(p);
        if (op == NULL || pn_pending_keep(p, bodies, lens[i], &op->body_off) != 0) {
            rc = no_memory();
            break;
        }
        op->kind = PN_OP_PUBLISH;
        op->topic = topic;
        op->id = *first_id + i;
        op->body_len = lens[i];
        if (common != NULL) {
            op->headers_off = headers_off;
            op->headers_len = (uint32_t) common->headers_len;
            op->delay_ns = common->delay_ns;
            op->ttl_ns = common->ttl_ns;
        }
        p->nops++;
    }
    if (rc != 0)
        p->nops = nops;
    return rc;
}

int pn_topic_txn_publish(struct pn_txn *txn, pn_ref topic, const pn_message_in *in, uint64_t *id)
{
    const uint32_t len = (uint32_t) in->body_len;
    return pn_topic_txn_publish_many(txn, topic, in->body, &len, 1, in, id);
}

int pn_topic_txn_answer(struct pn_txn *txn, const struct pn_handle *h, int answer, int64_t delay_ns,
                        const char *reason, size_t reason_len)
{
    struct pn_hold hold;
    struct pn_pending *p = &txn->pending;
    int rc = pn_answer_check_kind(answer, true);
    if (rc == 0 && pn_pending_is_answered(p, h->delivery, h->tag, h->id))
        rc = pn_fail(PN_ENOTINFLIGHT, "message %016llx was answered in this transaction already",
                     (unsigned long long) h->id);
    if (rc == 0)
        rc = pn_lock_topics_wait(txn->conn->seg, &hold, PN_LOCK_TIMEOUT_NS, txn);
    if (rc != 0)
        return rc;
    rc = pn_answer_check_locked(txn->conn, h, false);
    pn_lock_release(txn->conn->seg);
    if (rc != 0)
        return rc;
    struct pn_pending_op *op = pn_pending_op(p);
    if (op == NULL || pn_pending_keep(p, reason, reason_len, &op->body_off) != 0)
        return no_memory();
    op->kind = PN_OP_ANSWER;
    op->delivery = h->delivery;
    op->tag = h->tag;
    op->id = h->id;
    op->answer = answer;
    op->delay_ns = pn_answer_delay(delay_ns);
    op->body_len = (uint32_t) reason_len;
    p->nops++;
    return 0;
}
