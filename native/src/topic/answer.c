/*
 * answer.c - finish, requeue, touch, dead letter.
 *
 * 1. A handle is a delivery, the tag of the claim and the message's id.  The tag tells a later
 *    claim of the same delivery, the id a later message in the same cell.
 * 2. An answer does what is due in the channel first: one that comes after the deadline is too
 *    late, whether or not a process has looked since.
 * 3. What is given up becomes a dead letter, if there is a topic for it (dead_letter.c).
 */
#define _GNU_SOURCE
#include "topic/answer.h"

#include <errno.h>

#include "segment/lock.h"
#include "topic/area.h"
#include "topic/dead_letter.h"
#include "topic/delivery.h"
#include "topic/e2e.h"
#include "topic/end.h"
#include "topic/latency.h"
#include "topic/returns.h"
#include "topic/settings.h"
#include "topic/timedset.h"
#include "topic/waiting.h"

#define PN_MAX_DELAY_NS 3600000000000LL

/* ---- checking -------------------------------------------------------------------------------- */

int pn_answer_check_kind(int answer, bool in_transaction)
{
    if (answer < PN_ANSWER_FINISH || answer > PN_ANSWER_RELEASE)
        return pn_fail(EINVAL, "there is no answer %d", answer);
    if (in_transaction && answer == PN_ANSWER_TOUCH)
        return pn_fail(EINVAL, "touch is never part of a transaction");
    return 0;
}

int64_t pn_answer_delay(int64_t delay_ns)
{
    return delay_ns <= 0 ? 0 : delay_ns > PN_MAX_DELAY_NS ? PN_MAX_DELAY_NS : delay_ns;
}

int pn_answer_check_locked(struct pn_conn *conn, const struct pn_handle *h, bool held)
{
    pn_assert_held(conn->seg);
    struct pn_segment *seg = conn->seg;
    bool there =
        pn_topics_ready(seg) && pn_arena_taken(&seg->topics.arena, h->delivery, PN_PAGE_DELIVERY);
    if (there) {
        const struct pn_delivery *d = pn_delivery_at(seg, h->delivery);
        const struct pn_topic_channel *ch = pn_topic_channel_at(seg, d->channel);
        uint64_t word = pn_load_relaxed(&d->state);
        enum pn_delivery_kind kind = pn_state_kind(word);
        bool flies = kind == PN_KIND_IN_FLIGHT || kind == PN_KIND_HELD;
        there = flies && !pn_is_void(ch, d) && pn_message_at(seg, d->message)->id == h->id &&
                pn_topic_of(seg, ch)->dboid == conn->dboid;
        if (there && pn_state_tag(word) != h->tag)
            return pn_fail(PN_ENOTOWNER,
                           "message %016llx is in flight again, from a later delivery",
                           (unsigned long long) h->id);
        there = there && (kind == PN_KIND_IN_FLIGHT || held);
    }
    if (there)
        return 0;
    return pn_fail(PN_ENOTINFLIGHT,
                   "message %016llx is not in flight\n"
                   "It was answered, or it timed out: see msg_timeout and touch.",
                   (unsigned long long) h->id);
}

/* ---- answering ------------------------------------------------------------------------------- */

enum pn_outcome pn_answer_outcome_locked(struct pn_segment *seg, uint32_t delivery, int answer)
{
    pn_assert_topics_held(seg);
    uint64_t word = pn_load_relaxed(&pn_delivery_at(seg, delivery)->state);
    const struct pn_giving_up up =
        pn_giving_up_of(pn_topic_channel_at(seg, pn_delivery_at(seg, delivery)->channel),
                        pn_consumer_at(seg, pn_state_consumer(word)));
    bool last = up.max_attempts != 0 && pn_state_attempts(word) >= up.max_attempts;
    if (answer == PN_ANSWER_FINISH)
        return PN_OUTCOME_END;
    if (answer == PN_ANSWER_RELEASE || (answer == PN_ANSWER_REQUEUE && !last))
        return PN_OUTCOME_BACK;
    return up.dead_letter_len != 0 ? PN_OUTCOME_DEAD : PN_OUTCOME_END;
}

void pn_answer_count_locked(struct pn_segment *seg, uint32_t delivery, int answer,
                            enum pn_outcome outcome, int64_t now)
{
    pn_assert_topics_held(seg);
    const struct pn_delivery *d = pn_delivery_at(seg, delivery);
    struct pn_topic_channel *ch = pn_topic_channel_at(seg, d->channel);
    struct pn_consumer_slot *c = pn_delivery_consumer(seg, delivery);
    if (c != NULL) {
        c->finished += answer == PN_ANSWER_FINISH;
        c->requeued += answer == PN_ANSWER_REQUEUE;
    }
    if (answer == PN_ANSWER_FINISH) {
        ch->finished++;
        pn_e2e_record_locked(seg, ch, now - pn_message_at(seg, d->message)->published_mono, now);
    } else if (answer == PN_ANSWER_REQUEUE) {
        ch->requeued++;
    }
    if (outcome == PN_OUTCOME_DEAD)
        ch->dead_lettered++;
    else if (answer != PN_ANSWER_FINISH && outcome == PN_OUTCOME_END)
        ch->dropped++;
}

static int go_back(struct pn_segment *seg, uint32_t ref, int answer, int64_t delay, int64_t now)
{
    struct pn_delivery *d = pn_delivery_at(seg, ref);
    struct pn_topic_channel *ch = pn_topic_channel_at(seg, d->channel);
    uint32_t attempts = pn_state_attempts(pn_load_relaxed(&d->state));
    if (answer == PN_ANSWER_RELEASE) {
        pn_answer_count_locked(seg, ref, answer, PN_OUTCOME_BACK, now);
        pn_delivery_back_locked(seg, ref, PN_BACK_HEAD, 0, attempts > 0 ? attempts - 1 : 0);
        return 0;
    }
    if (delay > 0 && d->timed_reserved == 0) {
        if (!pn_timedset_reserve_locked(&seg->topics.arena, ch->topic, &ch->timed, 1))
            return pn_fail(PN_ETOPICFULL, "there is no room in topic_memory for a delay\n"
                                          "Requeue without one.");
        d->timed_reserved = 1;
    }
    pn_answer_count_locked(seg, ref, answer, PN_OUTCOME_BACK, now);
    pn_delivery_back_locked(seg, ref, delay > 0 ? PN_BACK_LATER : PN_BACK_TAIL, now + delay,
                            attempts);
    return 0;
}

static void touch(struct pn_segment *seg, uint32_t ref, int64_t now)
{
    const struct pn_delivery *d = pn_delivery_at(seg, ref);
    const struct pn_consumer_slot *c =
        pn_consumer_at(seg, pn_state_consumer(pn_load_relaxed(&d->state)));
    int64_t due = now + c->msg_timeout, limit = d->delivered_ns + c->max_msg_timeout;
    pn_delivery_touch_locked(seg, ref, due < limit ? due : limit);
}

static int answer_locked(struct pn_conn *conn, const struct pn_handle *h, int answer, int64_t delay,
                         const char *reason, size_t reason_len)
{
    pn_assert_held(conn->seg);
    struct pn_segment *seg = conn->seg;
    int64_t now = pn_now_ns();
    int rc = pn_answer_check_locked(conn, h, false);
    if (rc != 0)
        return rc;
    struct pn_delivery *d = pn_delivery_at(seg, h->delivery);
    struct pn_topic_channel *ch = pn_topic_channel_at(seg, d->channel);
    struct pn_consumer_slot *c = pn_consumer_at(seg, pn_state_consumer(pn_load_relaxed(&d->state)));
    if (d->due <= now) {
        pn_delivery_time_out_locked(seg, h->delivery, now);
        return pn_answer_check_locked(conn, h, false);
    }
    if (answer == PN_ANSWER_TOUCH) {
        touch(seg, h->delivery, now);
        return 0;
    }
    switch (pn_answer_outcome_locked(seg, h->delivery, answer)) {
    case PN_OUTCOME_END:
        pn_answer_count_locked(seg, h->delivery, answer, PN_OUTCOME_END, now);
        pn_delivery_end_locked(seg, h->delivery);
        return 0;
    case PN_OUTCOME_DEAD:
        rc = pn_message_dead_letter_locked(seg, h->delivery, reason, reason_len);
        if (rc == -PN_ETOPICFULL && answer == PN_ANSWER_REQUEUE) { /* as after a time-out */
            rc = go_back(seg, h->delivery, answer, delay, now);
            pn_topic_channel_settle_locked(seg, ch);
            return rc;
        }
        if (rc == 0 && answer == PN_ANSWER_REQUEUE) {
            ch->requeued++;
            c->requeued++;
        }
        return rc;
    case PN_OUTCOME_BACK:
        rc = go_back(seg, h->delivery, answer, delay, now);
        pn_topic_channel_settle_locked(seg, ch);
        break;
    }
    return rc;
}

/* The same, for a connection with a latency log: what that says of the delivery is read before. */
static int answer_and_log(struct pn_conn *conn, const struct pn_handle *h, int answer,
                          int64_t delay, const char *reason, size_t reason_len)
{
    struct pn_hold hold;
    struct pn_segment *seg = conn->seg;
    struct pn_topic_notes notes = {.n = 0};
    struct pn_topic_note note;
    int rc = pn_lock_topics_wait(seg, &hold, PN_LOCK_TIMEOUT_NS, conn);
    if (rc != 0)
        return rc;
    bool ready = pn_topics_ready(seg);
    if (ready)
        pn_topics_begin_locked(seg);
    if (pn_answer_check_locked(conn, h, false) == 0)
        pn_note_delivery_locked(seg, &note, answer == PN_ANSWER_FINISH ? PN_LAT_FIN : PN_LAT_REQ,
                                h->delivery, pn_now_ns());
    hold.notes = &notes;
    rc = answer_locked(conn, h, answer, delay, reason, reason_len);
    if (ready)
        pn_topics_end_locked(seg);
    pn_lock_release(seg);
    pn_log_notes(conn, &notes);
    if (rc == 0 && answer != PN_ANSWER_TOUCH)
        pn_log_note(conn, &note);
    return rc;
}

int pn_answer(struct pn_conn *conn, const struct pn_handle *h, int answer, int64_t delay_ns,
              const char *reason, size_t reason_len)
{
    struct pn_hold hold;
    int rc = pn_answer_check_kind(answer, false);
    if (rc == 0 && __builtin_expect(conn->log != NULL, 0))
        return answer_and_log(conn, h, answer, pn_answer_delay(delay_ns), reason, reason_len);
    if (rc == 0)
        rc = pn_lock_topics_wait(conn->seg, &hold, PN_LOCK_TIMEOUT_NS, conn);
    if (rc != 0)
        return rc;
    if (pn_topics_ready(conn->seg))
        pn_topics_begin_locked(conn->seg);
    rc = answer_locked(conn, h, answer, pn_answer_delay(delay_ns), reason, reason_len);
    if (pn_topics_ready(conn->seg))
        pn_topics_end_locked(conn->seg);
    pn_lock_release(conn->seg);
    return rc;
}

int pn_answer_deadline(struct pn_conn *conn, const struct pn_handle *h, int64_t *deadline)
{
    struct pn_hold hold;
    int rc = pn_lock_topics_wait(conn->seg, &hold, PN_LOCK_TIMEOUT_NS, conn);
    if (rc != 0)
        return rc;
    rc = pn_answer_check_locked(conn, h, false);
    if (rc == 0)
        *deadline = pn_delivery_at(conn->seg, h->delivery)->due;
    pn_lock_release(conn->seg);
    return rc;
}
