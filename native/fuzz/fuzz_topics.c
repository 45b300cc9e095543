/*
 * fuzz_topics.c - sequences of calls on topics, channels and consumers, against topic_model.c.
 *
 * An input is three bytes a call: what, on which topic, channel or consumer, and an argument.  The
 * clock is ours (ld --wrap=pn_now_ns) and moves only when a call says so; so every time-out,
 * deferral and expiry happens where the input wants it.  One topic has room for few messages in
 * memory, and the others are on disk.  What is received must be what the model
 * says, in its order, to the byte; every counter must agree; pn_check() must find nothing; and in
 * the end, when everything is deleted, no page of the memory may be taken, and no file be left.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "fuzz.h"
#include "segment/process.h"
#include "segment/segment.h"
#include "topic_fuzz.h"

enum { MAX_CALLS = 1000, MAX_LEN = 12000, HEADERS = 40 };

struct topic_fuzz f;

const char *const topics[TM_TOPICS] = {"orders", "short#ephemeral", "dead", "deep"};
static const char *const channels[TM_CHANNELS] = {"a", "b", "c#ephemeral"};
static uint8_t bodies[8 * MAX_LEN];
static char headers[HEADERS + 1], data_dir[64];

int64_t __wrap_pn_now_ns(void);
int64_t __wrap_pn_now_coarse_ns(void);

int64_t __wrap_pn_now_ns(void)
{
    return f.m.now;
}

int64_t __wrap_pn_now_coarse_ns(void)
{
    return f.m.now;
}

/* A call whose bytes say what to do. */
struct call {
    uint8_t what, argument;
    int t, ch, c; /* topic, channel, consumer */
};

static pn_conn *conn_of(const struct call *call)
{
    return f.conn[call->c % CONNECTIONS];
}

/* The transaction to which it belongs; NULL: it is one of its own. */
static pn_txn *txn_of(const struct call *call)
{
    return f.model_txn[call->c % CONNECTIONS].open && call->argument % 8 != 7
               ? f.txn[call->c % CONNECTIONS]
               : NULL;
}

static struct tm_op *add_op(const struct call *call, struct tm_op op)
{
    struct tm_txn *t = &f.model_txn[call->c % CONNECTIONS];
    t->op[t->nops] = op;
    return &t->op[t->nops++];
}

static void expect(const struct call *call, int got, int wanted)
{
    FUZZ_CHECK(
        got == wanted, "call %u on topic %d, channel %d, consumer %d, argument %u: %d, not %d: %s",
        call->what, call->t, call->ch, call->c, call->argument, got, wanted, pn_error_message());
}

static bool there(const struct call *call)
{
    return f.m.topic[call->t].exists && f.m.topic[call->t].channel[call->ch].exists;
}

static int64_t span_of(uint8_t argument)
{
    static const int64_t spans[8] = {1,         1000000,    40000000,    250000000,
                                     900000000, 5000000000, 70000000000, 4000000000000};
    return spans[argument % 8];
}

/* ---- topics and channels --------------------------------------------------------------------- */

static void open_topic(const struct call *call)
{
    bool deep = call->t == TM_DEEP;
    const pn_topic_options o = {.given = PN_TOPIC_OVERFLOW | PN_TOPIC_MAX_DEPTH,
                                .overflow = PN_OVERFLOW_DISK + (deep ? 0 : call->argument % 4),
                                .max_depth = deep                      ? call->argument / 64 + 1
                                             : call->argument % 16 < 4 ? 0
                                                                       : call->argument / 16 + 1};
    bool plain = call->t == TM_DEAD_LETTERS || call->argument % 16 == 3;
    struct tm_topic *t = &f.m.topic[call->t];
    bool others = !plain && t->exists && (t->overflow != o.overflow || t->max_depth != o.max_depth);
    expect(call,
           pn_topic_open(conn_of(call), topics[call->t], strlen(topics[call->t]), plain ? NULL : &o,
                         &f.topic[call->t]),
           others ? -PN_ETOPICOPTIONS : 0);
    if (!t->exists)
        tm_open_topic(&f.m, call->t, plain ? PN_OVERFLOW_DISK : o.overflow,
                      plain ? 0 : o.max_depth);
}

static void open_channel(const struct call *call)
{
    int rc = pn_topic_channel_open(conn_of(call), f.topic[call->t], channels[call->ch],
                                   strlen(channels[call->ch]), -1, &f.channel[call->t][call->ch]);
    expect(call, rc, f.m.topic[call->t].exists ? 0 : -PN_ETOPICDELETED);
    if (rc == 0 && !there(call))
        tm_open_channel(&f.m, call->t, call->ch);
}

static void pause_topic(const struct call *call)
{
    int paused = call->argument & 1;
    bool exists = f.m.topic[call->t].exists;
    expect(call, pn_topic_pause(conn_of(call), f.topic[call->t], paused),
           exists ? 0 : -PN_ETOPICDELETED);
    f.m.topic[call->t].paused = paused;
    if (exists && !paused)
        tm_pump(&f.m, call->t);
}

static void pause_channel(const struct call *call)
{
    int paused = call->argument & 1;
    expect(call, pn_topic_channel_pause(conn_of(call), f.channel[call->t][call->ch], paused),
           there(call) ? 0 : -PN_ETOPICDELETED);
    f.m.topic[call->t].channel[call->ch].paused = paused;
}

static void empty_one(const struct call *call)
{
    bool own = call->argument % 3 == 0, exists = own ? f.m.topic[call->t].exists : there(call);
    int rc = own ? pn_topic_empty(conn_of(call), f.topic[call->t])
                 : pn_topic_channel_empty(conn_of(call), f.channel[call->t][call->ch]);
    expect(call, rc, exists ? 0 : -PN_ETOPICDELETED);
    if (exists)
        tm_empty(&f.m, call->t, own ? TM_OWN : call->ch);
}

static void delete_one(const struct call *call)
{
    bool all = call->argument % 4 == 0, exists = all ? f.m.topic[call->t].exists : there(call);
    int rc = all ? pn_topic_delete(conn_of(call), f.topic[call->t])
                 : pn_topic_channel_delete(conn_of(call), f.channel[call->t][call->ch]);
    expect(call, rc, exists ? 0 : -PN_ETOPICDELETED);
    if (exists && all)
        tm_delete_topic(&f.m, call->t);
    else if (exists) {
        tm_delete_channel(&f.m, call->t, call->ch);
        tm_refill(&f.m); /* what stood there is swept before it returns */
    }
}

/* ---- publishing ------------------------------------------------------------------------------ */

static uint32_t length_of(uint8_t argument)
{
    static const uint32_t lens[8] = {1, 20, 248, 256, 257, 1000, 4300, MAX_LEN};
    return lens[argument >> 5];
}

static void fill_body(uint8_t *to, uint32_t len, uint8_t content)
{
    for (uint32_t i = 0; i < len; i++)
        to[i] = (uint8_t) (content + i);
}

static void keep_id(uint64_t id)
{
    f.ids[f.nids++ % HANDLES] = id;
}

static void publish_with(const struct call *call, int64_t delay, int64_t ttl)
{
    uint32_t lens[8], n = call->what % 2 == 0 ? 1 : 1 + call->argument % 8;
    uint32_t headers_len = call->argument % 4 == 0 ? HEADERS : 0;
    uint8_t *at = bodies;
    uint64_t id = 0;
    if (!tm_has_room(&f.m))
        return;
    for (uint32_t i = 0; i < n; at += lens[i], i++) {
        lens[i] = n == 1 ? length_of(call->argument) : 1 + (call->argument + i * 37) % 400;
        fill_body(at, lens[i], (uint8_t) (call->argument + i));
    }
    const pn_message_in in = {.body = bodies,
                              .body_len = lens[0],
                              .headers = headers,
                              .headers_len = headers_len,
                              .delay_ns = delay,
                              .ttl_ns = ttl};
    const struct tm_txn *open = &f.model_txn[call->c % CONNECTIONS];
    pn_txn *txn = txn_of(call);
    if (txn != NULL && open->nops + (int) n > TM_OPS)
        return;
    int rc = n == 1 ? pn_topic_publish(conn_of(call), txn, f.topic[call->t], &in, &id)
                    : pn_topic_publish_many(conn_of(call), txn, f.topic[call->t], bodies, lens, n,
                                            &in, &id);
    if (txn != NULL && open->prepared) {
        expect(call, rc, -PN_EPREPARED);
        return;
    }
    if (!f.m.topic[call->t].exists) {
        expect(call, rc, -PN_ETOPICDELETED);
        return;
    }
    FUZZ_CHECK(id == f.m.next_id, "id %llx, not %llx", (unsigned long long) id,
               (unsigned long long) f.m.next_id);
    keep_id(id + n - 1);
    for (uint32_t i = 0; txn != NULL && i < n; i++)
        add_op(call, (struct tm_op) {.kind = TM_PUBLISH,
                                     .topic = call->t,
                                     .generation = f.m.topic[call->t].generation,
                                     .id = f.m.next_id++,
                                     .len = lens[i],
                                     .headers = headers_len,
                                     .content = (uint8_t) (call->argument + i),
                                     .delay = delay,
                                     .ttl = ttl});
    if (txn != NULL) {
        expect(call, rc, 0);
        return;
    }
    struct tm_publish p = {.topic = call->t,
                           .n = n,
                           .lens = lens,
                           .headers = headers_len,
                           .content = call->argument,
                           .delay = delay,
                           .ttl = ttl};
    expect(call, rc, tm_publish(&f.m, &p));
}

static void publish(const struct call *call)
{
    publish_with(call, 0, 0);
}

static void publish_later(const struct call *call)
{
    publish_with(call, span_of(call->argument), 0);
}

static void publish_mortal(const struct call *call)
{
    publish_with(call, call->argument & 16 ? span_of(call->argument >> 5) : 0,
                 span_of(call->argument) + 1);
}

static void cancel(const struct call *call)
{
    uint64_t id = f.ids[call->argument % HANDLES];
    pn_txn *txn = txn_of(call);
    const struct tm_txn *open = &f.model_txn[call->c % CONNECTIONS];
    bool exists = f.m.topic[call->t].exists;
    if (txn != NULL && open->nops == TM_OPS)
        return;
    bool on_disk = tm_find_spilled(&f.m, call->t, id, false) != NULL;
    int rc = pn_topic_cancel(conn_of(call), txn, f.topic[call->t], id);
    if (txn == NULL) {
        expect(call, rc, exists ? tm_cancel(&f.m, call->t, id) : -PN_ETOPICDELETED);
        return;
    }
    expect(call, rc,
           open->prepared ? -PN_EPREPARED
           : exists       ? on_disk || tm_find_deferred(&f.m, call->t, id) >= 0
                          : -PN_ETOPICDELETED);
    if (rc == 1)
        add_op(call, (struct tm_op) {.kind = TM_CANCEL,
                                     .topic = call->t,
                                     .generation = f.m.topic[call->t].generation,
                                     .on_disk = on_disk,
                                     .id = id});
}

/* ---- consuming ------------------------------------------------------------------------------- */

static void open_consumer(const struct call *call)
{
    struct tm_consumer *c = &f.m.consumer[call->c];
    uint8_t a = call->argument;
    const pn_consumer_options o = {.max_in_flight = a % 4 == 0 ? 1 : 1 + a / 4 % 20,
                                   .max_attempts = a / 16 % 4,
                                   .sample_rate = call->what == 20 ? a * 7U % 100 : 0,
                                   .msg_timeout_ns = span_of(2 + a / 32),
                                   .max_msg_timeout_ns = span_of(3 + a / 32 % 3),
                                   .dead_letter = a % 3 == 0 ? topics[TM_DEAD_LETTERS] : NULL,
                                   .dead_letter_len = strlen(topics[TM_DEAD_LETTERS])};
    if (c->open)
        return;
    int rc =
        pn_consumer_open(conn_of(call), f.channel[call->t][call->ch], &o, &f.consumer[call->c]);
    bool itself = o.dead_letter != NULL && call->t == TM_DEAD_LETTERS;
    expect(call, rc, !there(call) ? -PN_ETOPICDELETED : itself ? -PN_ETOPICOPTIONS : 0);
    if (rc != 0)
        return;
    *c = (struct tm_consumer) {.topic = call->t,
                               .channel = call->ch,
                               .max_in_flight = o.max_in_flight,
                               .level = o.max_in_flight,
                               .max_attempts = o.max_attempts,
                               .sample_rate = o.sample_rate,
                               .key = pn_consumer_ref(f.consumer[call->c]) - 1,
                               .msg_timeout = o.msg_timeout_ns,
                               .max_msg_timeout = o.max_msg_timeout_ns < o.msg_timeout_ns
                                                      ? o.msg_timeout_ns
                                                      : o.max_msg_timeout_ns,
                               .dead_letter = o.dead_letter != NULL};
    tm_open_consumer(&f.m, call->c);
}

static void close_consumer(const struct call *call)
{
    if (!f.m.consumer[call->c].open)
        return;
    expect(call, pn_consumer_close(f.consumer[call->c]), 0);
    tm_close_consumer(&f.m, call->c);
    f.consumer[call->c] = NULL;
}

static void set_level(const struct call *call)
{
    int level = call->argument % 8 - 1;
    struct tm_consumer *c = &f.m.consumer[call->c];
    if (!c->open)
        return;
    expect(call, pn_consumer_pause(f.consumer[call->c], level),
           c->attached ? 0 : -PN_ETOPICDELETED);
    if (c->attached)
        tm_level(&f.m, call->c, level);
}

static void check_message(const pn_message_out *out, const struct tm_delivery *d)
{
    const struct tm_message *m = &f.m.message[d->message];
    FUZZ_CHECK(out->id == m->id, "message %llx, not %llx", (unsigned long long) out->id,
               (unsigned long long) m->id);
    FUZZ_CHECK(out->attempts == d->attempts, "attempt %u, not %u", out->attempts, d->attempts);
    FUZZ_CHECK(out->expires_ns == m->expires, "it expires at another time");
    FUZZ_CHECK(out->body_len == m->len, "%llu bytes, not %u", (unsigned long long) out->body_len,
               m->len);
    for (uint32_t i = 0; i < m->len; i++)
        FUZZ_CHECK(out->body[i] == (uint8_t) (m->content + i), "another body at byte %u", i);
    char id[32], text[4096];
    if (m->dead == 0) {
        FUZZ_CHECK(out->headers_len == m->headers, "%llu bytes of headers, not %u",
                   (unsigned long long) out->headers_len, m->headers);
        FUZZ_CHECK(memcmp(out->headers, headers, m->headers) == 0, "other headers");
        return;
    }
    FUZZ_CHECK(out->headers_len < sizeof text, "long headers of a dead letter");
    memcpy(text, out->headers, out->headers_len);
    text[out->headers_len] = '\0';
    snprintf(id, sizeof id, "%016llx", (unsigned long long) m->dead);
    FUZZ_CHECK(strstr(text, id) != NULL && text[0] == '{' && text[out->headers_len - 1] == '}',
               "headers of a dead letter: %s", text);
}

static void get(const struct call *call)
{
    pn_message_out out;
    if (!f.m.consumer[call->c].open || !tm_has_room(&f.m))
        return;
    int rc = pn_consumer_get(f.consumer[call->c], 0, &out), i = tm_get(&f.m, call->c);
    expect(call, rc, i >= 0 ? 1 : i == -2 ? -PN_ETOPICDELETED : 0);
    if (i < 0)
        return;
    const struct tm_delivery *d = &f.m.delivery[i];
    check_message(&out, d);
    f.handle[f.nhandles++ % HANDLES] = (struct handle) {.id = out.id,
                                                        .delivery = out.delivery,
                                                        .tag = out.tag,
                                                        .claim = d->claim,
                                                        .topic = d->topic,
                                                        .channel = d->channel};
}

static void answer_in_txn(const struct call *call, const struct handle *h, int answer,
                          int64_t delay)
{
    const struct tm_txn *open = &f.model_txn[call->c % CONNECTIONS];
    int error = 0;
    if (open->nops == TM_OPS)
        return;
    int rc = pn_message_answer(conn_of(call), txn_of(call), h->delivery, h->tag, h->id, answer,
                               delay, "why", 3);
    if (open->prepared)
        error = -PN_EPREPARED;
    else if (answer == PN_ANSWER_TOUCH)
        error = -EINVAL;
    else if (tm_find(&f.m, h->id, h->topic, h->channel, h->claim, &error) >= 0)
        error = 0;
    for (int i = 0; i < open->nops && !open->prepared && answer != PN_ANSWER_TOUCH; i++)
        if (open->op[i].kind == TM_ANSWER && open->op[i].claim == h->claim)
            error = -PN_ENOTINFLIGHT;
    expect(call, rc, error);
    if (rc == 0)
        add_op(call, (struct tm_op) {.kind = TM_ANSWER,
                                     .topic = h->topic,
                                     .channel = h->channel,
                                     .id = h->id,
                                     .claim = h->claim,
                                     .answer = answer,
                                     .delay = delay});
}

static void answer_with(const struct call *call, int answer, int64_t delay)
{
    const struct handle *h = &f.handle[call->argument % HANDLES];
    int error;
    if (f.nhandles <= call->argument % HANDLES || !tm_has_room(&f.m))
        return;
    if (txn_of(call) != NULL) {
        answer_in_txn(call, h, answer, delay);
        return;
    }
    int rc =
        pn_message_answer(f.conn[0], NULL, h->delivery, h->tag, h->id, answer, delay, "why", 3);
    int i = tm_find(&f.m, h->id, h->topic, h->channel, h->claim, &error);
    if (i >= 0 && f.m.delivery[i].due <= f.m.now) { /* too late, whether or not there was a look */
        tm_time_out(&f.m, i);
        i = tm_find(&f.m, h->id, h->topic, h->channel, h->claim, &error);
    }
    expect(call, rc, i >= 0 ? 0 : error);
    if (i >= 0)
        tm_answer(&f.m, i, answer, delay > 3600000000000 ? 3600000000000 : delay);
}

static void finish(const struct call *call)
{
    answer_with(call, PN_ANSWER_FINISH, 0);
}

static void answer_otherwise(const struct call *call)
{
    static const int answers[8] = {PN_ANSWER_REQUEUE, PN_ANSWER_REQUEUE,     PN_ANSWER_TOUCH,
                                   PN_ANSWER_RELEASE, PN_ANSWER_DEAD_LETTER, PN_ANSWER_REQUEUE,
                                   PN_ANSWER_TOUCH,   PN_ANSWER_FINISH};
    answer_with(call, answers[call->ch + call->t],
                call->c == 0 ? 0 : span_of((uint8_t) (call->c * 2)));
}

static void wait_a_while(const struct call *call)
{
    f.m.now += span_of(call->argument % 64 == 63 ? 6 : call->argument % 6);
}

/* ---- transactions ---------------------------------------------------------------------------- */

static void begin_or_prepare(const struct call *call)
{
    int c = call->c % CONNECTIONS;
    struct tm_txn *t = &f.model_txn[c];
    if (!t->open) {
        expect(call, pn_txn_begin(f.conn[c], &f.txn[c]), 0);
        *t = (struct tm_txn) {.open = true};
    } else if (t->prepared) {
        expect(call, pn_txn_prepare(f.txn[c]), -PN_EPREPARED);
    } else if (call->argument % 2 == 0) {
        int rc = pn_txn_prepare(f.txn[c]);
        expect(call, rc, tm_prepare(&f.m, t));
    } else if (t->level < 4) {
        expect(call, pn_txn_savepoint(f.txn[c]), t->level + 1);
        t->mark[t->level++] = t->nops;
    } else {
        t->level = call->argument / 4 % 4;
        t->nops = t->mark[t->level];
        expect(call, pn_txn_rollback_to(f.txn[c], t->level + 1), 0);
    }
}

static void end_txn(const struct call *call)
{
    int c = call->c % CONNECTIONS;
    struct tm_txn *t = &f.model_txn[c];
    if (!t->open || !tm_has_room(&f.m))
        return;
    if (call->argument % 4 == 0) {
        pn_txn_abort(f.txn[c]);
        tm_abort(&f.m, t);
        return;
    }
    int rc = pn_txn_commit(f.txn[c]);
    expect(call, rc, tm_commit(&f.m, t));
}

/* ---- an input -------------------------------------------------------------------------------- */

static void make_call(const struct call *call)
{
    static void (*const calls[32])(const struct call *) = {publish,
                                                           publish,
                                                           publish_later,
                                                           publish_later,
                                                           publish_mortal,
                                                           end_txn,
                                                           get,
                                                           get,
                                                           get,
                                                           get,
                                                           get,
                                                           end_txn,
                                                           finish,
                                                           finish,
                                                           answer_otherwise,
                                                           answer_otherwise,
                                                           answer_otherwise,
                                                           wait_a_while,
                                                           wait_a_while,
                                                           open_consumer,
                                                           open_consumer,
                                                           open_channel,
                                                           open_channel,
                                                           open_topic,
                                                           close_consumer,
                                                           set_level,
                                                           pause_topic,
                                                           pause_channel,
                                                           empty_one,
                                                           delete_one,
                                                           cancel,
                                                           begin_or_prepare};
    bool rare = calls[call->what] == delete_one || calls[call->what] == empty_one;
    if (!rare || call->argument >= 128)
        calls[call->what](call);
    check_refill();
    find_dead();
    if (call->argument % 16 == 9)
        check_engine();
}

static void remove_data_dir(void)
{
    scratch_remove(data_dir);
}

static void make_data_dir(void)
{
    FUZZ_CHECK(scratch_make("/dev/shm", data_dir, sizeof data_dir), "%s", strerror(errno));
    atexit(remove_data_dir);
}

static void check_no_files(void)
{
    DIR *dir = opendir(data_dir);
    FUZZ_CHECK(dir != NULL, "%s: %s", data_dir, strerror(errno));
    for (struct dirent *d; (d = readdir(dir)) != NULL;)
        FUZZ_CHECK(d->d_name[0] == '.', "%s is left", d->d_name);
    closedir(dir);
}

static void begin(void)
{
    pn_options o = fuzz_options();
    o.max_topics = TM_TOPICS + 1;
    o.max_topic_channels = TM_TOPICS * TM_CHANNELS + 1;
    o.max_consumers = TM_CONSUMERS;
    o.topic_memory = 8 << 20;
    o.max_body = MAX_LEN;
    snprintf(o.data_dir, sizeof o.data_dir, "%s", data_dir);
    FUZZ_OK(pn_open(fuzz_name(), &o, &f.engine));
    for (int c = 0; c < CONNECTIONS; c++)
        FUZZ_OK(pn_connect(f.engine, "x", 1, 0, NULL, &f.conn[c]));
    for (int t = 0; t < 2; t++) {
        open_topic(&(struct call) {.t = t, .argument = 3});
        open_channel(&(struct call) {.t = t, .ch = t});
    }
    open_topic(&(struct call) {.t = TM_DEEP, .argument = 128});
    open_channel(&(struct call) {.t = TM_DEEP, .ch = TM_CHANNELS - 1});
    f.m.next_id = 1ULL << 40; /* not the time of day: what is sampled is a function of it */
    pn_store_relaxed(&pn_first_segment()->topics.ctl->next_id, f.m.next_id);
}

static void end(void)
{
    check_engine();
    for (int c = 0; c < CONNECTIONS; c++)
        if (f.model_txn[c].open) {
            pn_txn_abort(f.txn[c]);
            tm_abort(&f.m, &f.model_txn[c]);
            check_refill();
        }
    for (int c = 0; c < TM_CONSUMERS; c++) {
        close_consumer(&(struct call) {.c = c});
        check_refill();
    }
    check_engine();
    open_topic(&(struct call) {.t = TM_DEAD_LETTERS}); /* making one sweeps up */
    for (int t = 0; t < TM_TOPICS; t++)
        delete_one(&(struct call) {.t = t});
    check_engine();
    const uint32_t *used = pn_first_segment()->topics.arena.ctl->cells_used;
    for (uint32_t class = 0; class < PN_PAGE_CLASSES; class ++)
        FUZZ_CHECK(used[class] == 0, "%u cells of class %u are left", used[class], class);
    check_no_files();
    for (int c = 0; c < CONNECTIONS; c++)
        pn_conn_close(f.conn[c]);
    pn_engine_close(f.engine);
    fuzz_remove();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    /* what 3 bits name; beside the topic on disk, which came later, what they have always named */
    static const int topic_of[8] = {0, 1, TM_DEAD_LETTERS, TM_DEEP, 1, TM_DEAD_LETTERS, 0, TM_DEEP};
    struct fuzz_input in = {data, size};
    if (data_dir[0] == '\0')
        make_data_dir();
    memset(&f, 0, sizeof f);
    memset(headers, 'h', HEADERS);
    f.m.now = 1000000000000;
    f.m.topic[1].ephemeral = true;
    begin();
    for (int n = 0; n < MAX_CALLS && in.left > 0; n++) {
        uint64_t bytes = fuzz_take(&in, 3);
        struct call call = {.what = bytes & 31,
                            .t = topic_of[bytes >> 5 & 7],
                            .ch = (int) (bytes >> 8 & 15) % TM_CHANNELS,
                            .c = (int) (bytes >> 12 & 15) % TM_CONSUMERS,
                            .argument = (uint8_t) (bytes >> 16)};
        if (tm_may_spill(&f.m, call.t)) /* others would rest: test_topic_rest.c */
            call.ch = TM_CHANNELS - 1;
        make_call(&call);
    }
    end();
    return 0;
}
