/* topic_disk_model.c - messages of the model that are on disk (overflow="disk"). */
#include "topic_model.h"

#include <string.h>

#include "fuzz.h"

bool tm_may_spill(const struct topic_model *m, int topic)
{
    return m->topic[topic].overflow == PN_OVERFLOW_DISK && !m->topic[topic].ephemeral;
}

bool tm_spills(const struct topic_model *m, int topic, uint64_t n)
{
    const struct tm_topic *t = &m->topic[topic];
    if (!tm_may_spill(m, topic))
        return false;
    if (t->ndisk != 0 || t->spilling)
        return true;
    return t->max_depth != 0 && tm_firm_messages(m, topic) + n > t->max_depth &&
           (t->paused || !tm_only_ephemeral(m, topic));
}

void tm_spill(struct topic_model *m, const struct tm_publish *p, uint32_t i)
{
    struct tm_topic *t = &m->topic[p->topic];
    FUZZ_CHECK(t->ndisk < TM_ON_DISK, "the model is full");
    t->disk[t->ndisk++] = (struct tm_spilled) {.id = p->id + i,
                                               .len = p->lens[i],
                                               .headers = p->headers,
                                               .content = (uint8_t) (p->content + i),
                                               .since = m->now,
                                               .delay = p->delay,
                                               .ttl = p->ttl};
    t->message_count++;
    t->message_bytes += p->lens[i];
}

uint32_t tm_on_disk(const struct topic_model *m, int topic)
{
    const struct tm_topic *t = &m->topic[topic];
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->ndisk; i++)
        n += !t->disk[i].buried;
    return n;
}

static bool is_expired(const struct topic_model *m, const struct tm_spilled *s)
{
    return s->ttl > 0 && s->since + s->ttl <= m->now;
}

struct tm_spilled *tm_find_spilled(struct topic_model *m, int topic, uint64_t id, bool commits)
{
    struct tm_topic *t = &m->topic[topic];
    for (uint32_t i = 0; i < t->ndisk; i++) {
        struct tm_spilled *s = &t->disk[i];
        bool deferred = s->delay > 0 && s->since + s->delay > m->now;
        if (s->id == id && deferred && !s->buried && !s->burying && (commits || !is_expired(m, s)))
            return s;
    }
    return NULL;
}

/* ---- coming back ----------------------------------------------------------------------------- */

/* As if it were published now, but for its times; it was counted before. */
static void come_back(struct topic_model *m, int topic, const struct tm_spilled *s)
{
    const struct tm_publish p = {.topic = topic,
                                 .n = 1,
                                 .lens = &s->len,
                                 .headers = s->headers,
                                 .content = s->content,
                                 .delay = s->delay,
                                 .ttl = s->ttl,
                                 .since = s->since,
                                 .id = s->id};
    int message = tm_stage(m, &p, 0, false);
    if (message >= 0)
        tm_go_live(m, message);
    m->topic[topic].message_count--;
    m->topic[topic].message_bytes -= s->len;
}

/* The first on disk: false: it stays. */
static bool take(struct topic_model *m, int topic)
{
    struct tm_topic *t = &m->topic[topic];
    const struct tm_spilled s = t->disk[0];
    bool full = t->max_depth != 0 && tm_firm_messages(m, topic) >= t->max_depth;
    if (!s.buried && !is_expired(m, &s) && full)
        return false;
    memmove(&t->disk[0], &t->disk[1], --t->ndisk * sizeof t->disk[0]);
    if (!s.buried && is_expired(m, &s))
        t->expired++;
    else if (!s.buried)
        come_back(m, topic, &s);
    return true;
}

/* What came has left the backlog for ephemeral channels, and made room for more by that. */
static bool pump_makes_room(struct topic_model *m, int topic)
{
    uint64_t firm = tm_firm_messages(m, topic);
    tm_pump(m, topic);
    return tm_firm_messages(m, topic) < firm;
}

void tm_refill(struct topic_model *m)
{
    for (int topic = 0; topic < TM_TOPICS; topic++) {
        struct tm_topic *t = &m->topic[topic];
        uint32_t steps = 0;
        if (!t->exists || t->ndisk == 0) {
            t->refilling = false;
            continue;
        }
        do {
            while (steps < TM_STEPS && t->ndisk != 0 && take(m, topic))
                steps++;
        } while (pump_makes_room(m, topic) && steps < TM_STEPS && t->ndisk != 0);
        t->refilling = steps == TM_STEPS && t->ndisk != 0;
        tm_pump(m, topic);
    }
}
