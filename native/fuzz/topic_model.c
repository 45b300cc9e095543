/* topic_model.c - see topic_model.h. */
#include "topic_model.h"

#include <string.h>

#include "topic/delivery.h"
#include "fuzz.h"

struct tm_channel *tm_channel_of(struct topic_model *m, const struct tm_delivery *d)
{
    return &m->topic[d->topic].channel[d->channel];
}

bool tm_is_ephemeral(int channel)
{
    return channel == TM_CHANNELS - 1;
}

uint32_t tm_channels_of(const struct topic_model *m, int topic)
{
    uint32_t n = 0;
    for (int c = 0; c < TM_CHANNELS; c++)
        n += m->topic[topic].channel[c].exists;
    return n;
}

uint32_t tm_count(const struct topic_model *m, int topic, int channel, enum tm_kind kind)
{
    uint32_t n = 0;
    for (int i = 0; i < TM_DELIVERIES; i++)
        n += m->delivery[i].kind == kind && m->delivery[i].topic == topic &&
             m->delivery[i].channel == channel && !m->delivery[i].gone;
    return n;
}

uint32_t tm_unfinished(const struct topic_model *m, int topic)
{
    uint32_t n = 0;
    for (int i = 0; i < TM_MESSAGES; i++)
        n += m->message[i].used && !m->message[i].staged && m->message[i].topic == topic &&
             m->message[i].generation == m->topic[topic].generation;
    return n;
}

bool tm_is_member(const struct tm_consumer *c, int topic, int channel)
{
    return c->open && c->attached && c->topic == topic && c->channel == channel;
}

uint32_t tm_consumers(const struct topic_model *m, int topic, int channel)
{
    uint32_t n = 0;
    for (int i = 0; i < TM_CONSUMERS; i++)
        n += tm_is_member(&m->consumer[i], topic, channel);
    return n;
}

/* So much may one call need. */
bool tm_has_room(const struct topic_model *m)
{
    int messages = 0, deliveries = 0;
    for (int i = 0; i < TM_MESSAGES; i++)
        messages += !m->message[i].used;
    for (int i = 0; i < TM_DELIVERIES; i++)
        deliveries += m->delivery[i].kind == TM_NONE;
    for (int i = 0; i < TM_TOPICS; i++)
        if (m->topic[i].ndisk > TM_ON_DISK - 64)
            return false;
    return messages > TM_MESSAGES / 2 && deliveries > TM_DELIVERIES / 2;
}

/* ---- the end --------------------------------------------------------------------------------- */

void tm_end(struct topic_model *m, int delivery)
{
    struct tm_delivery *d = &m->delivery[delivery];
    bool last = true;
    d->kind = TM_NONE;
    for (int i = 0; i < TM_DELIVERIES && last; i++)
        last = m->delivery[i].kind == TM_NONE || m->delivery[i].message != d->message;
    if (last)
        m->message[d->message].used = false;
}

bool tm_has_expired(const struct topic_model *m, const struct tm_delivery *d)
{
    int64_t expires = m->message[d->message].expires;
    return expires != 0 && expires <= m->now;
}

/* ---- publishing ------------------------------------------------------------------------------ */

/* Of its deliveries, how many are in channels that are not ephemeral; the own queue is not. */
static uint32_t firm(const struct topic_model *m, int message)
{
    uint32_t n = 0;
    for (int i = 0; i < TM_DELIVERIES; i++)
        n += m->delivery[i].kind != TM_NONE && m->delivery[i].message == message &&
             !tm_is_ephemeral(m->delivery[i].channel);
    return n;
}

uint64_t tm_firm_messages(const struct topic_model *m, int topic)
{
    uint64_t n = 0;
    for (int i = 0; i < TM_MESSAGES; i++)
        n += m->message[i].used && m->message[i].topic == topic &&
             m->message[i].generation == m->topic[topic].generation &&
             (m->message[i].staged || firm(m, i) != 0);
    return n;
}

static bool any_in_flight(const struct topic_model *m, int message)
{
    for (int i = 0; i < TM_DELIVERIES; i++)
        if ((m->delivery[i].kind == TM_IN_FLIGHT || m->delivery[i].kind == TM_HELD) &&
            m->delivery[i].message == message)
            return true;
    return false;
}

/* Each channel goes without so many. */
static void count_without(struct topic_model *m, int topic, uint64_t n)
{
    for (int c = 0; c < TM_CHANNELS; c++)
        if (m->topic[topic].channel[c].exists)
            m->topic[topic].channel[c].dropped += n;
}

void tm_discard(struct topic_model *m, int message, bool count)
{
    for (int i = 0; i < TM_DELIVERIES; i++)
        if (m->delivery[i].kind != TM_NONE && m->delivery[i].message == message) {
            if (count && m->delivery[i].channel == TM_OWN)
                count_without(m, m->delivery[i].topic, 1);
            else
                tm_channel_of(m, &m->delivery[i])->dropped += count;
            tm_end(m, i);
        }
}

/* The next message of the topic after that one; -1: none. */
static int next_message(const struct topic_model *m, int topic, uint64_t after)
{
    int next = -1;
    for (int i = 0; i < TM_MESSAGES; i++)
        if (m->message[i].used && !m->message[i].staged && m->message[i].topic == topic &&
            m->message[i].generation == m->topic[topic].generation &&
            m->message[i].number > after &&
            (next < 0 || m->message[i].number < m->message[next].number))
            next = i;
    return next;
}

static bool drop_oldest(struct topic_model *m, int topic)
{
    uint64_t after = 0;
    for (int tries = 0; tries < 64; tries++) {
        int i = next_message(m, topic, after);
        if (i < 0)
            return false;
        if (firm(m, i) != 0 && !any_in_flight(m, i)) {
            m->topic[topic].dropped++;
            tm_discard(m, i, true);
            return true;
        }
        after = m->message[i].number;
    }
    return false;
}

bool tm_only_ephemeral(const struct topic_model *m, int topic)
{
    bool all = tm_channels_of(m, topic) != 0;
    for (int c = 0; c < TM_CHANNELS; c++)
        all &= !m->topic[topic].channel[c].exists || tm_is_ephemeral(c);
    return all;
}

/* Which of n are published: [*skip, *keep). */
int tm_admit(struct topic_model *m, int topic, uint64_t n, uint64_t *skip, uint64_t *keep)
{
    struct tm_topic *t = &m->topic[topic];
    uint64_t there = tm_firm_messages(m, topic), max = t->max_depth;
    *skip = 0;
    *keep = n;
    if (max == 0 || there + n <= max)
        return 0;
    for (int c = 0; c <= TM_CHANNELS; c++) /* what has expired makes room */
        if (t->channel[c].exists)
            tm_tick(m, topic, c);
    there = tm_firm_messages(m, topic);
    if (there + n <= max || (tm_only_ephemeral(m, topic) && !t->paused))
        return 0;
    if (t->overflow == PN_OVERFLOW_DROP_NEW) {
        *keep = there >= max ? 0 : max - there;
        t->dropped += n - *keep;
        count_without(m, topic, n - *keep);
        return 0;
    }
    if (t->overflow != PN_OVERFLOW_DROP_OLDEST)
        return tm_may_spill(m, topic) ? 0 : -PN_ETOPICFULL;
    *skip = n > max ? n - max : 0;
    while (tm_firm_messages(m, topic) + (n - *skip) > max && drop_oldest(m, topic))
        ;
    if (tm_firm_messages(m, topic) + (n - *skip) > max)
        return -PN_ETOPICFULL;
    t->dropped += *skip;
    count_without(m, topic, *skip);
    return 0;
}

/* STAGED, until tm_go_live(). */
static int deliver(struct topic_model *m, int message, int topic, int channel, int64_t due)
{
    struct tm_channel *c = &m->topic[topic].channel[channel];
    for (int i = 0; i < TM_DELIVERIES; i++)
        if (m->delivery[i].kind == TM_NONE) {
            m->delivery[i] = (struct tm_delivery) {
                .kind = TM_STAGED,
                .then = due != 0 && channel != TM_OWN ? TM_DEFERRED : TM_READY,
                .message = message,
                .topic = topic,
                .channel = channel,
                .order = c->next_order++,
                .due = due};
            return i;
        }
    FUZZ_CHECK(false, "the model is full");
    return -1;
}

static void begin_delivery(struct topic_model *m, int delivery)
{
    m->delivery[delivery].kind = m->delivery[delivery].then;
    tm_channel_of(m, &m->delivery[delivery])->message_count++;
}

/* From when its delay and its time to live count. */
static int64_t since(const struct topic_model *m, const struct tm_publish *p)
{
    return p->since != 0 ? p->since : m->now;
}

static int new_message(struct topic_model *m, const struct tm_publish *p, uint32_t i)
{
    for (int k = 0; k < TM_MESSAGES; k++)
        if (!m->message[k].used) {
            m->message[k] = (struct tm_message) {.used = true,
                                                 .staged = true,
                                                 .generation = m->topic[p->topic].generation,
                                                 .id = p->id + i,
                                                 .dead = p->dead,
                                                 .len = p->lens[i],
                                                 .headers = p->headers,
                                                 .content = (uint8_t) (p->content + i),
                                                 .topic = p->topic,
                                                 .expires = p->ttl > 0 ? since(m, p) + p->ttl : 0};
            return k;
        }
    FUZZ_CHECK(false, "the model is full");
    return -1;
}

/* An ephemeral channel with as much as the topic may have. */
static bool goes_without(const struct topic_model *m, int topic, int channel)
{
    uint64_t max = m->topic[topic].max_depth, n = tm_count(m, topic, channel, TM_READY);
    n += tm_count(m, topic, channel, TM_DEFERRED) + tm_count(m, topic, channel, TM_IN_FLIGHT) +
         tm_count(m, topic, channel, TM_HELD) + tm_count(m, topic, channel, TM_STAGED);
    return tm_is_ephemeral(channel) && max != 0 && n >= max;
}

/* The i-th of them; -1: every channel goes without it. */
int tm_stage(struct topic_model *m, const struct tm_publish *p, uint32_t i, bool keeps)
{
    struct tm_topic *t = &m->topic[p->topic];
    int message = new_message(m, p, i), n = 0;
    int64_t due = p->delay > 0 ? since(m, p) + p->delay : 0;
    keeps |=
        t->paused || tm_channels_of(m, p->topic) == 0 ||
        tm_count(m, p->topic, TM_OWN, TM_READY) + tm_count(m, p->topic, TM_OWN, TM_STAGED) != 0;
    if (keeps) {
        deliver(m, message, p->topic, TM_OWN, due);
        return message;
    }
    for (int c = 0; c < TM_CHANNELS; c++)
        if (t->channel[c].exists && goes_without(m, p->topic, c))
            t->channel[c].dropped++;
        else if (t->channel[c].exists)
            deliver(m, message, p->topic, c, due), n++;
    if (n > 0)
        return message;
    m->message[message].used = false;
    t->message_count++;
    t->message_bytes += p->lens[i];
    return -1;
}

void tm_go_live(struct topic_model *m, int message)
{
    struct tm_message *what = &m->message[message];
    what->staged = false;
    what->number = ++m->number;
    m->topic[what->topic].message_count++;
    m->topic[what->topic].message_bytes += what->len;
    for (int i = 0; i < TM_DELIVERIES; i++)
        if (m->delivery[i].kind == TM_STAGED && m->delivery[i].message == message)
            begin_delivery(m, i);
}

int tm_publish(struct topic_model *m, struct tm_publish *p)
{
    uint64_t skip, keep;
    p->id = m->next_id;
    m->next_id += p->n;
    if (tm_spills(m, p->topic, p->n)) {
        for (uint32_t i = 0; i < p->n; i++)
            tm_spill(m, p, i);
        tm_pump(m, p->topic);
        return 0;
    }
    int rc = tm_admit(m, p->topic, p->n, &skip, &keep), message;
    if (rc != 0)
        return rc;
    for (uint64_t i = skip; i < keep; i++)
        if ((message = tm_stage(m, p, (uint32_t) i, false)) >= 0)
            tm_go_live(m, message);
    tm_pump(m, p->topic);
    return rc;
}

int tm_first_ready(const struct topic_model *m, int topic, int channel, uint64_t from)
{
    int first = -1;
    for (int i = 0; i < TM_DELIVERIES; i++)
        if (m->delivery[i].kind == TM_READY && m->delivery[i].topic == topic &&
            m->delivery[i].channel == channel && m->delivery[i].order >= from &&
            (first < 0 || m->delivery[i].order < m->delivery[first].order))
            first = i;
    return first;
}

void tm_pump(struct topic_model *m, int topic)
{
    struct tm_topic *t = &m->topic[topic];
    for (int i; t->exists && !t->paused && tm_channels_of(m, topic) != 0 &&
                (i = tm_first_ready(m, topic, TM_OWN, 0)) >= 0;) {
        struct tm_delivery *d = &m->delivery[i];
        if (tm_has_expired(m, d)) {
            t->expired++;
            tm_end(m, i);
            continue;
        }
        int64_t due = d->due > m->now ? d->due : 0;
        for (int c = 0; c < TM_CHANNELS; c++)
            if (t->channel[c].exists && goes_without(m, topic, c))
                t->channel[c].dropped++;
            else if (t->channel[c].exists)
                begin_delivery(m, deliver(m, d->message, topic, c, due));
        tm_end(m, i);
    }
}

int tm_find_deferred(const struct topic_model *m, int topic, uint64_t id)
{
    for (int k = 0; k < TM_MESSAGES; k++) {
        bool deferred = true;
        if (!m->message[k].used || m->message[k].staged || m->message[k].id != id ||
            m->message[k].topic != topic)
            continue;
        for (int i = 0; i < TM_DELIVERIES; i++) {
            const struct tm_delivery *d = &m->delivery[i];
            if (d->kind != TM_NONE && d->message == k)
                deferred &= (d->kind == TM_DEFERRED || d->channel == TM_OWN) && d->due > m->now;
        }
        return deferred ? k : -1;
    }
    return -1;
}

bool tm_cancel(struct topic_model *m, int topic, uint64_t id)
{
    int message = tm_find_deferred(m, topic, id);
    struct tm_spilled *spilled = tm_find_spilled(m, topic, id, false);
    if (message >= 0)
        tm_discard(m, message, false);
    else if (spilled != NULL)
        spilled->buried = true;
    return message >= 0 || spilled != NULL;
}

/* ---- going back ------------------------------------------------------------------------------ */

void tm_back(struct topic_model *m, int delivery, bool head, int64_t due, uint32_t attempts)
{
    struct tm_delivery *d = &m->delivery[delivery];
    d->kind = due != 0 ? TM_DEFERRED : TM_READY;
    d->due = due;
    d->attempts = attempts;
    if (!head)
        d->order = tm_channel_of(m, d)->next_order++;
}

void tm_dead_letter(struct topic_model *m, int delivery)
{
    struct tm_delivery *d = &m->delivery[delivery];
    const struct tm_message *message = &m->message[d->message];
    struct tm_publish p = {.topic = TM_DEAD_LETTERS,
                           .n = 1,
                           .lens = &message->len,
                           .headers = message->headers,
                           .content = message->content,
                           .dead = message->id};
    if (!m->topic[TM_DEAD_LETTERS].exists)
        tm_open_topic(m, TM_DEAD_LETTERS, PN_OVERFLOW_DISK, 0);
    FUZZ_CHECK(tm_publish(m, &p) == 0, "the topic for dead letters has a bound");
    tm_channel_of(m, d)->dead_lettered++;
    tm_end(m, delivery);
}

void tm_come_back(struct topic_model *m, int delivery, bool head)
{
    struct tm_delivery *d = &m->delivery[delivery];
    const struct tm_consumer *c = &m->consumer[d->consumer];
    if (c->handed < d->number) {
        tm_back(m, delivery, true, 0, d->attempts - 1);
    } else if (c->max_attempts == 0 || d->attempts < c->max_attempts) {
        tm_back(m, delivery, head, 0, d->attempts);
    } else if (c->dead_letter) {
        tm_dead_letter(m, delivery);
    } else {
        tm_channel_of(m, d)->dropped++;
        tm_end(m, delivery);
    }
}

int tm_flying(const struct topic_model *m, int consumer, bool last)
{
    int found = -1;
    for (int i = 0; i < TM_DELIVERIES; i++) {
        const struct tm_delivery *d = &m->delivery[i], *f = &m->delivery[found < 0 ? 0 : found];
        if (d->kind != TM_IN_FLIGHT || d->consumer != consumer)
            continue;
        bool before = d->due < f->due || (d->due == f->due && d->flight < f->flight);
        if (found < 0 || before != last)
            found = i;
    }
    return found;
}

/* The consumer that was opened last before that one; -1: none. */
static int consumer_before(const struct topic_model *m, int topic, int channel, uint64_t opened)
{
    int found = -1;
    for (int i = 0; i < TM_CONSUMERS; i++)
        if (tm_is_member(&m->consumer[i], topic, channel) && m->consumer[i].opened < opened &&
            (found < 0 || m->consumer[i].opened > m->consumer[found].opened))
            found = i;
    return found;
}

/* When it leaves the place where it waits. */
static int64_t due_of(const struct topic_model *m, const struct tm_delivery *d)
{
    int64_t expires = m->message[d->message].expires;
    int64_t due = d->kind == TM_DEFERRED ? d->due : INT64_MAX;
    return expires != 0 && expires < due ? expires : due;
}

static int next_due(const struct topic_model *m, int topic, int channel)
{
    int next = -1;
    for (int i = 0; i < TM_DELIVERIES; i++) {
        const struct tm_delivery *d = &m->delivery[i], *n = &m->delivery[next < 0 ? 0 : next];
        if ((d->kind != TM_READY && d->kind != TM_DEFERRED) || d->topic != topic ||
            d->channel != channel || due_of(m, d) > m->now)
            continue;
        if (next < 0 || due_of(m, d) < due_of(m, n) ||
            (due_of(m, d) == due_of(m, n) &&
             (uint32_t) m->message[d->message].id < (uint32_t) m->message[n->message].id))
            next = i;
    }
    return next;
}

void tm_put_off(struct topic_model *m, struct tm_delivery *d, int64_t due)
{
    d->due = due;
    d->flight = ++m->flights;
}

void tm_time_out(struct topic_model *m, int delivery)
{
    struct tm_delivery *d = &m->delivery[delivery];
    const struct tm_consumer *c = &m->consumer[d->consumer];
    if (c->handed < d->number) { /* the program has not got it yet */
        if (c->alive + c->msg_timeout > m->now)
            tm_put_off(m, d, c->alive + c->msg_timeout);
        else
            tm_come_back(m, delivery, true);
        return;
    }
    m->consumer[d->consumer].timed_out++;
    m->topic[d->topic].channel[d->channel].timed_out++;
    tm_come_back(m, delivery, false);
}

void tm_tick(struct topic_model *m, int topic, int channel)
{
    struct tm_channel *ch = &m->topic[topic].channel[channel];
    for (int i; (i = next_due(m, topic, channel)) >= 0;)
        if (tm_has_expired(m, &m->delivery[i])) {
            ch->expired++;
            tm_end(m, i);
        } else {
            tm_back(m, i, false, 0, m->delivery[i].attempts);
        }
    int c = consumer_before(m, topic, channel, UINT64_MAX);
    for (; c >= 0; c = consumer_before(m, topic, channel, m->consumer[c].opened))
        for (int i; (i = tm_flying(m, c, false)) >= 0 && m->delivery[i].due <= m->now;)
            tm_time_out(m, i);
}
