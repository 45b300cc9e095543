/* topic_txn_model.c - transactions of the model: all of their statements, or none. */
#include "topic_model.h"

#include "fuzz.h"

static struct tm_publish what_of(const struct tm_op *op)
{
    return (struct tm_publish) {.topic = op->topic,
                                .n = 1,
                                .lens = &op->len,
                                .headers = op->headers,
                                .content = op->content,
                                .delay = op->delay,
                                .ttl = op->ttl,
                                .id = op->id};
}

static void spill(struct topic_model *m, const struct tm_op *op)
{
    const struct tm_publish p = what_of(op);
    tm_spill(m, &p, 0);
}

static void stage_publish(struct topic_model *m, struct tm_op *op, bool prepare, int *rc)
{
    const struct tm_publish p = what_of(op);
    uint64_t skip, keep;
    if (!m->topic[op->topic].exists || m->topic[op->topic].generation != op->generation)
        *rc = -PN_ETOPICDELETED;
    else if (!prepare && tm_spills(m, op->topic, 1))
        op->spilled = m->topic[op->topic].spilling = true;
    else
        *rc = tm_admit(m, op->topic, 1, &skip, &keep);
    if (*rc == 0 && !op->spilled && skip < keep)
        op->message = tm_stage(m, &p, 0, prepare);
}

static void stage_dead_letter(struct topic_model *m, struct tm_op *op, bool prepare)
{
    const struct tm_message *what = &m->message[m->delivery[op->delivery].message];
    const struct tm_publish p = {.topic = TM_DEAD_LETTERS,
                                 .n = 1,
                                 .lens = &what->len,
                                 .headers = what->headers,
                                 .content = what->content,
                                 .dead = what->id,
                                 .id = m->next_id};
    if (!m->topic[TM_DEAD_LETTERS].exists)
        tm_open_topic(m, TM_DEAD_LETTERS, PN_OVERFLOW_DISK, 0);
    m->next_id++;
    op->message = tm_stage(m, &p, 0, prepare);
}

static int64_t delay_of(const struct tm_op *op)
{
    return op->answer != PN_ANSWER_REQUEUE ? 0
           : op->delay > 3600000000000     ? 3600000000000
                                           : op->delay;
}

static void plan_order(struct topic_model *m, struct tm_op *op)
{
    struct tm_delivery *d = &m->delivery[op->delivery];
    if (op->outcome == TM_BACK)
        op->order = op->answer == PN_ANSWER_RELEASE
                        ? d->order
                        : m->topic[d->topic].channel[d->channel].next_order++;
}

static void stage_answer(struct topic_model *m, struct tm_op *op, bool prepare, int *rc)
{
    int i = tm_find(m, op->id, op->topic, op->channel, op->claim, rc);
    if (i >= 0 && m->delivery[i].due <= m->now) {
        tm_time_out(m, i);
        i = tm_find(m, op->id, op->topic, op->channel, op->claim, rc);
    }
    if (i < 0)
        return;
    struct tm_delivery *d = &m->delivery[i];
    const struct tm_consumer *c = &m->consumer[d->consumer];
    bool last = c->max_attempts != 0 && d->attempts >= c->max_attempts;
    bool back = op->answer == PN_ANSWER_RELEASE || (op->answer == PN_ANSWER_REQUEUE && !last);
    *rc = 0;
    op->delivery = i;
    op->outcome = op->answer == PN_ANSWER_FINISH ? TM_END
                  : back                         ? TM_BACK
                  : c->dead_letter               ? TM_DEAD
                                                 : TM_END;
    if (op->outcome == TM_DEAD)
        stage_dead_letter(m, op, prepare);
    if (prepare)
        d->kind = TM_HELD;
    else
        plan_order(m, op);
}

/* Where the message is at the commit. */
static void plan_cancel(struct topic_model *m, struct tm_op *op)
{
    const struct tm_topic *t = &m->topic[op->topic];
    if (!t->exists || t->generation != op->generation)
        return;
    struct tm_spilled *s = op->on_disk ? tm_find_spilled(m, op->topic, op->id, true) : NULL;
    if (s != NULL)
        op->buries = s->burying = true;
    else
        op->message = tm_find_deferred(m, op->topic, op->id);
}

static void bury(struct topic_model *m, const struct tm_op *op)
{
    struct tm_topic *t = &m->topic[op->topic];
    for (uint32_t i = 0; i < t->ndisk; i++)
        t->disk[i].buried |= t->disk[i].id == op->id;
}

/* The commit is over, one way or the other. */
static void forget(struct topic_model *m)
{
    for (int topic = 0; topic < TM_TOPICS; topic++) {
        m->topic[topic].spilling = false;
        for (uint32_t i = 0; i < m->topic[topic].ndisk; i++)
            m->topic[topic].disk[i].burying = false;
    }
}

static void unstage(struct topic_model *m, int message)
{
    for (int i = 0; i < TM_DELIVERIES; i++)
        if (m->delivery[i].kind == TM_STAGED && m->delivery[i].message == message)
            tm_end(m, i);
}

/* In flight again, if its consumer is still there. */
static void unhold(struct topic_model *m, int delivery)
{
    struct tm_delivery *d = &m->delivery[delivery];
    const struct tm_consumer *c = &m->consumer[d->consumer];
    if (d->emptied) {
        tm_end(m, delivery);
    } else if (c->open && c->attached && c->opened == d->opened) {
        d->kind = TM_IN_FLIGHT;
        d->flight = ++m->flights;
    } else {
        tm_back(m, delivery, true, 0, d->attempts);
    }
}

static void undo(struct topic_model *m, struct tm_txn *t, int n)
{
    for (int i = 0; i < n; i++) {
        struct tm_op *op = &t->op[i];
        if (op->kind != TM_CANCEL && op->message >= 0)
            unstage(m, op->message);
        if (op->kind == TM_ANSWER && op->delivery >= 0 && m->delivery[op->delivery].kind == TM_HELD)
            unhold(m, op->delivery);
    }
    forget(m);
}

static int stage_all(struct topic_model *m, struct tm_txn *t, bool prepare)
{
    int rc = 0;
    for (int i = 0; i < t->nops; i++) {
        struct tm_op *op = &t->op[i];
        op->message = op->delivery = -1;
        op->spilled = op->buries = false;
        if (op->kind == TM_PUBLISH)
            stage_publish(m, op, prepare, &rc);
        else if (op->kind == TM_ANSWER)
            stage_answer(m, op, prepare, &rc);
        else if (!prepare)
            plan_cancel(m, op);
        if (rc != 0) {
            undo(m, t, i + 1);
            return rc;
        }
    }
    return 0;
}

/* What was prepared counts from now. */
static void revive(struct topic_model *m, struct tm_op *op)
{
    struct tm_message *what = &m->message[op->message];
    const struct tm_topic *topic = &m->topic[what->topic];
    bool there = topic->exists && topic->generation == what->generation;
    if (!there) {
        unstage(m, op->message);
        op->message = -1;
        return;
    }
    what->expires = op->kind == TM_PUBLISH && op->ttl > 0 ? m->now + op->ttl : 0;
    for (int i = 0; i < TM_DELIVERIES; i++)
        if (m->delivery[i].kind == TM_STAGED && m->delivery[i].message == op->message) {
            m->delivery[i].order = m->topic[what->topic].channel[TM_OWN].next_order++;
            m->delivery[i].due = op->kind == TM_PUBLISH && op->delay > 0 ? m->now + op->delay : 0;
        }
}

static void apply_answer(struct topic_model *m, const struct tm_op *op)
{
    struct tm_delivery *d = &m->delivery[op->delivery];
    struct tm_consumer *c = &m->consumer[d->consumer];
    struct tm_channel none = {0}, *ch = d->gone ? &none : &m->topic[d->topic].channel[d->channel];
    bool gone = d->emptied;
    bool same = c->open && c->opened == d->opened;
    int64_t delay = delay_of(op);
    if (op->answer == PN_ANSWER_FINISH) {
        c->finished += same;
        ch->finished++;
    } else if (op->answer == PN_ANSWER_REQUEUE) {
        c->requeued += same;
        ch->requeued++;
    }
    ch->dead_lettered += op->outcome == TM_DEAD;
    ch->dropped += op->outcome == TM_END && op->answer != PN_ANSWER_FINISH;
    if (op->outcome != TM_BACK || gone) {
        tm_end(m, op->delivery);
        return;
    }
    tm_back(m, op->delivery, true, delay > 0 ? m->now + delay : 0,
            d->attempts - (op->answer == PN_ANSWER_RELEASE));
    d->order = op->order;
}

int tm_prepare(struct topic_model *m, struct tm_txn *t)
{
    int rc = stage_all(m, t, true);
    t->prepared = rc == 0;
    return rc;
}

int tm_commit(struct topic_model *m, struct tm_txn *t)
{
    int rc = t->prepared ? 0 : stage_all(m, t, false);
    t->open = false;
    if (rc != 0 || t->nops == 0)
        return rc;
    for (int i = 0; i < t->nops && t->prepared; i++) {
        struct tm_op *op = &t->op[i];
        if (op->kind == TM_CANCEL)
            plan_cancel(m, op);
        else if (op->message >= 0)
            revive(m, op);
        if (op->kind == TM_ANSWER)
            plan_order(m, op);
    }
    for (int i = 0; i < t->nops; i++)
        if (t->op[i].kind != TM_CANCEL && t->op[i].message >= 0)
            tm_go_live(m, t->op[i].message);
    for (int i = 0; i < t->nops; i++) {
        const struct tm_op *op = &t->op[i];
        if (op->kind == TM_ANSWER)
            apply_answer(m, op);
        else if (op->spilled)
            spill(m, op);
        else if (op->buries)
            bury(m, op);
        else if (op->kind == TM_CANCEL && op->message >= 0 && m->message[op->message].used &&
                 m->message[op->message].id == op->id)
            tm_discard(m, op->message, false);
    }
    forget(m);
    for (int i = 0; i < TM_TOPICS; i++)
        tm_pump(m, i);
    return 0;
}

void tm_abort(struct topic_model *m, struct tm_txn *t)
{
    if (t->prepared)
        undo(m, t, t->nops);
    t->open = false;
}
