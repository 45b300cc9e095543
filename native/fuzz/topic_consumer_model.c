/* topic_consumer_model.c - consumers of the model: what they get, hold and answer. */
#include "topic_model.h"

#include "topic/delivery.h"

static uint32_t in_flight(const struct topic_model *m, int consumer)
{
    uint32_t n = 0;
    for (int i = 0; i < TM_DELIVERIES; i++)
        n += m->delivery[i].kind == TM_IN_FLIGHT && m->delivery[i].consumer == consumer;
    return n;
}

static bool samples(const struct tm_consumer *c, uint64_t id)
{
    return c->sample_rate == 0 || pn_is_sampled(id, c->key, c->sample_rate);
}

static bool anybody_samples(const struct topic_model *m, int topic, int channel, uint64_t id)
{
    for (int i = 0; i < TM_CONSUMERS; i++)
        if (tm_is_member(&m->consumer[i], topic, channel) && samples(&m->consumer[i], id))
            return true;
    return false;
}

static int claim(struct topic_model *m, int consumer)
{
    uint64_t from = 0;
    struct tm_consumer *c = &m->consumer[consumer];
    struct tm_channel *ch = &m->topic[c->topic].channel[c->channel];
    for (int i; !ch->paused && (i = tm_first_ready(m, c->topic, c->channel, from)) >= 0;) {
        struct tm_delivery *d = &m->delivery[i];
        if (tm_has_expired(m, d)) {
            ch->expired++;
            tm_end(m, i);
            continue;
        }
        uint64_t id = m->message[d->message].id;
        if (!samples(c, id)) { /* what no consumer samples is dropped */
            from = d->order + 1;
            if (anybody_samples(m, c->topic, c->channel, id))
                continue;
            ch->dropped++;
            tm_end(m, i);
            continue;
        }
        d->kind = TM_IN_FLIGHT;
        d->attempts++;
        d->consumer = consumer;
        d->opened = c->opened;
        d->claim = ++m->claims;
        d->number = ++c->claims;
        d->flight = ++m->flights;
        d->delivered = m->now;
        d->due = m->now + c->msg_timeout;
        c->delivered++;
        return i;
    }
    return -1;
}

static void fetch(struct topic_model *m, int consumer)
{
    struct tm_consumer *c = &m->consumer[consumer];
    uint32_t ready = tm_count(m, c->topic, c->channel, TM_READY);
    uint32_t sharers = tm_consumers(m, c->topic, c->channel);
    uint32_t share = (ready + sharers - 1) / sharers;
    c->nahead = c->at = 0;
    c->fetched_at = c->alive = m->now;
    while (c->nahead < TM_AHEAD && c->nahead < share && in_flight(m, consumer) < c->level) {
        int i = claim(m, consumer);
        if (i < 0)
            return;
        c->ahead[c->nahead].delivery = i;
        c->ahead[c->nahead++].claim = m->delivery[i].claim;
    }
}

static int next_ahead(struct topic_model *m, int consumer)
{
    struct tm_consumer *c = &m->consumer[consumer];
    while (c->at < c->nahead) {
        int i = c->ahead[c->at].delivery;
        bool ours =
            m->delivery[i].kind == TM_IN_FLIGHT && m->delivery[i].claim == c->ahead[c->at].claim;
        if (m->now - c->fetched_at > c->msg_timeout / 64) {
            if (!c->attached)
                return -2;
            if (ours) {
                m->delivery[i].delivered = c->alive = m->now;
                tm_put_off(m, &m->delivery[i], m->now + c->msg_timeout);
            }
            tm_refill(m);
        }
        bool late = ours && tm_has_expired(m, &m->delivery[i]);
        if (late) {
            tm_back(m, i, true, 0, m->delivery[i].attempts - 1);
            tm_tick(m, c->topic, c->channel);
            tm_refill(m);
        }
        c->at++;
        c->handed++;
        if (ours && !late)
            return i;
    }
    return -1;
}

/* What was fetched and not handed over goes back. */
static void give_back_ahead(struct topic_model *m, int consumer)
{
    struct tm_consumer *c = &m->consumer[consumer];
    while (c->nahead > c->at) {
        int i = c->ahead[--c->nahead].delivery;
        if (m->delivery[i].kind == TM_IN_FLIGHT &&
            m->delivery[i].claim == c->ahead[c->nahead].claim)
            tm_come_back(m, i, true);
    }
    c->handed = c->claims;
}

int tm_get(struct topic_model *m, int consumer)
{
    struct tm_consumer *c = &m->consumer[consumer];
    if (c->attached && m->topic[c->topic].channel[c->channel].paused)
        give_back_ahead(m, consumer);
    int i = next_ahead(m, consumer);
    if (i != -1)
        return i;
    if (!c->attached)
        return -2;
    tm_pump(m, c->topic);
    tm_tick(m, c->topic, c->channel);
    fetch(m, consumer);
    return next_ahead(m, consumer);
}

int tm_find(const struct topic_model *m, uint64_t id, int topic, int channel, uint64_t claim,
            int *error)
{
    *error = -PN_ENOTINFLIGHT;
    for (int i = 0; i < TM_DELIVERIES; i++) {
        const struct tm_delivery *d = &m->delivery[i];
        bool flies = d->kind == TM_IN_FLIGHT || (d->kind == TM_HELD && !d->emptied);
        if (!flies || d->topic != topic || d->channel != channel || m->message[d->message].id != id)
            continue;
        if (d->claim == claim)
            return d->kind == TM_IN_FLIGHT ? i : -1;
        *error = -PN_ENOTOWNER;
    }
    return -1;
}

void tm_answer(struct topic_model *m, int delivery, int answer, int64_t delay)
{
    struct tm_delivery *d = &m->delivery[delivery];
    struct tm_consumer *c = &m->consumer[d->consumer];
    struct tm_channel *ch = tm_channel_of(m, d);
    bool last = c->max_attempts != 0 && d->attempts >= c->max_attempts;
    if (answer == PN_ANSWER_TOUCH) {
        int64_t limit = d->delivered + c->max_msg_timeout;
        d->due = m->now + c->msg_timeout < limit ? m->now + c->msg_timeout : limit;
        d->flight = ++m->flights;
        return;
    }
    if (answer == PN_ANSWER_FINISH) {
        c->finished++;
        ch->finished++;
        tm_end(m, delivery);
    } else if (answer == PN_ANSWER_RELEASE) {
        tm_back(m, delivery, true, 0, d->attempts - 1);
    } else {
        c->requeued += answer == PN_ANSWER_REQUEUE;
        ch->requeued += answer == PN_ANSWER_REQUEUE;
        if (answer == PN_ANSWER_REQUEUE && !last) {
            tm_back(m, delivery, false, delay > 0 ? m->now + delay : 0, d->attempts);
        } else if (c->dead_letter) {
            tm_dead_letter(m, delivery);
        } else {
            ch->dropped++;
            tm_end(m, delivery);
        }
    }
}

void tm_level(struct topic_model *m, int consumer, int level)
{
    struct tm_consumer *c = &m->consumer[consumer];
    c->level =
        level < 0 || (uint32_t) level > c->max_in_flight ? c->max_in_flight : (uint32_t) level;
    if (c->level == 0)
        give_back_ahead(m, consumer);
}

void tm_open_consumer(struct topic_model *m, int consumer)
{
    m->consumer[consumer].open = m->consumer[consumer].attached = true;
    m->consumer[consumer].opened = ++m->opened;
}

void tm_close_consumer(struct topic_model *m, int consumer)
{
    struct tm_consumer *c = &m->consumer[consumer];
    for (int i; c->attached && (i = tm_flying(m, consumer, true)) >= 0;)
        tm_come_back(m, i, true);
    c->open = false;
    if (c->attached && tm_is_ephemeral(c->channel) && tm_consumers(m, c->topic, c->channel) == 0)
        tm_delete_channel(m, c->topic, c->channel);
}
