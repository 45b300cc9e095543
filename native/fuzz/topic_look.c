/* topic_look.c - statistics of the engine, and what the model says (fuzz_topics.c). */
#include <string.h>

#include "topic_fuzz.h"

static void same(const char *what, int t, int ch, uint64_t got, uint64_t wanted)
{
    FUZZ_CHECK(got == wanted, "topic %d, channel %d: %s is %llu, not %llu", t, ch, what,
               (unsigned long long) got, (unsigned long long) wanted);
}

static void check_channel(int t, int ch)
{
    const struct tm_channel *c = &f.m.topic[t].channel[ch];
    pn_topic_channel_stats s;
    int rc = pn_topic_channel_stat(f.conn[0], f.channel[t][ch], &s);
    FUZZ_CHECK(rc == (c->exists ? 0 : -PN_ETOPICDELETED), "channel %d of topic %d: %d", ch, t, rc);
    if (rc != 0) {
        tm_refill(&f.m); /* an operation that fails has an end, too */
        return;
    }
    tm_tick(&f.m, t, ch);
    same("depth", t, ch, s.depth, tm_count(&f.m, t, ch, TM_READY));
    same("deferred", t, ch, s.deferred, tm_count(&f.m, t, ch, TM_DEFERRED));
    same("in_flight", t, ch, s.in_flight,
         tm_count(&f.m, t, ch, TM_IN_FLIGHT) + tm_count(&f.m, t, ch, TM_HELD));
    same("consumers", t, ch, s.consumers, tm_consumers(&f.m, t, ch));
    same("message_count", t, ch, s.message_count, c->message_count);
    same("requeued", t, ch, s.requeued, c->requeued);
    same("timed_out", t, ch, s.timed_out, c->timed_out);
    same("finished", t, ch, s.finished, c->finished);
    same("dead_lettered", t, ch, s.dead_lettered, c->dead_lettered);
    same("dropped", t, ch, s.dropped, c->dropped);
    same("expired", t, ch, s.expired, c->expired);
    tm_refill(&f.m);
}

static void check_topic(int t)
{
    const struct tm_topic *topic = &f.m.topic[t];
    pn_topic_stats s;
    int rc = pn_topic_stat(f.conn[0], f.topic[t], &s);
    FUZZ_CHECK(rc == (topic->exists ? 0 : -PN_ETOPICDELETED), "topic %d: %d", t, rc);
    tm_refill(&f.m);
    for (int ch = 0; ch < TM_CHANNELS && topic->exists; ch++)
        check_channel(t, ch); /* it ticks, which may move messages to the topic of dead letters */
    if (rc != 0 || pn_topic_stat(f.conn[0], f.topic[t], &s) != 0)
        return;
    same("on_disk", t, TM_OWN, s.on_disk, tm_on_disk(&f.m, t));
    same("depth", t, TM_OWN, s.depth, tm_count(&f.m, t, TM_OWN, TM_READY) + tm_on_disk(&f.m, t));
    same("unfinished", t, TM_OWN, s.unfinished, tm_unfinished(&f.m, t));
    same("message_count", t, TM_OWN, s.message_count, topic->message_count);
    same("message_bytes", t, TM_OWN, s.message_bytes, topic->message_bytes);
    same("dropped", t, TM_OWN, s.dropped, topic->dropped);
    same("expired", t, TM_OWN, s.expired, topic->expired + topic->channel[TM_OWN].expired);
    tm_refill(&f.m);
}

void check_refill(void)
{
    pn_topic_stats s;
    tm_refill(&f.m);
    for (int t = 0; t < TM_TOPICS; t++)
        while (f.m.topic[t].exists && f.m.topic[t].refilling) {
            int rc = pn_topic_stat(f.conn[0], f.topic[t], &s);
            FUZZ_CHECK(rc == 0, "topic %d: %d", t, rc);
            same("on_disk", t, TM_OWN, s.on_disk, tm_on_disk(&f.m, t));
            tm_refill(&f.m);
        }
}

void find_dead(void)
{
    const char *name = topics[TM_DEAD_LETTERS];
    pn_ref ref = 0;
    int rc = pn_topic_find(f.conn[0], name, strlen(name), &ref);
    FUZZ_CHECK(rc == f.m.topic[TM_DEAD_LETTERS].exists, "the topic of dead letters: %d", rc);
    if (rc == 1)
        f.topic[TM_DEAD_LETTERS] = ref;
    tm_refill(&f.m);
}

void check_engine(void)
{
    char problems[4000];
    if (!tm_has_room(&f.m))
        return;
    find_dead();
    for (int t = 0; t < TM_TOPICS; t++) {
        check_topic(t);
        find_dead();
    }
    for (int i = 0; i < TM_CONSUMERS; i++) {
        const struct tm_consumer *c = &f.m.consumer[i];
        pn_consumer_stats s;
        if (!c->open || !c->attached)
            continue;
        FUZZ_CHECK(pn_consumer_stat(f.consumer[i], &s) == 0, "%s", pn_error_message());
        same("delivered", c->topic, c->channel, s.delivered, c->delivered);
        same("finished of a consumer", c->topic, c->channel, s.finished, c->finished);
        same("timed_out of a consumer", c->topic, c->channel, s.timed_out, c->timed_out);
        tm_refill(&f.m);
    }
    int n = pn_check(f.engine, problems, sizeof problems);
    FUZZ_CHECK(n == 0, "pn_check: %d: %s", n, n > 0 ? problems : pn_error_message());
}
