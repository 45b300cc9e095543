/*
 * fuzz_calls.c - sequences of calls on several connections of one process, against model.c.
 *
 * An input is where the queue begins, then two bytes a call: what, and on which connection with
 * which argument.  What is received must be what the model owes, to the byte and with its headers;
 * what the model says is possible must not fail; and in the end nothing may be left.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "fuzz.h"
#include "model.h"
#include "segment/process.h"
#include "segment/segment.h"

enum { MAX_CALLS = 1500, MAX_PAYLOAD = 20000 };

static struct {
    struct model m;
    pn_engine *engine;
    pn_conn *conn[MODEL_CONNECTIONS];
    pn_txn *txn[MODEL_CONNECTIONS][MODEL_TXNS];
    uint32_t counter[MODEL_DATABASES][MODEL_COUNTERS];
    bool hushed[MODEL_CONNECTIONS];
    uint64_t seq[MODEL_LOG]; /* of each of the model's transactions, 0: not seen yet */
    pn_batch *batch;
} f;

static uint8_t payload[MAX_PAYLOAD], headers[PN_NOTIFY_HEADERS_MAX + 1];
static const char *const databases[MODEL_DATABASES] = {"x", "yy"};
static const char *const channels[MODEL_CHANNELS] = {"a", "b", "channel", "d", "\xc3\xa9", "f f"};

/* A call whose bytes say what to do. */
struct call {
    uint8_t what, argument;
    int c, t; /* which connection, which of its transactions */
};

static struct model_txn *model_txn(const struct call *call)
{
    return &f.m.connection[call->c].txn[call->t];
}

static void expect(const struct call *call, int got, int wanted)
{
    FUZZ_CHECK(got == wanted, "call %u on connection %d: %d, not %d: %s", call->what, call->c, got,
               wanted, pn_error_message());
}

/* ---- connections ----------------------------------------------------------------------------- */

static void open_connection(int c, uint8_t database)
{
    const char *name = databases[database];
    FUZZ_OK(pn_connect(f.engine, name, strlen(name), 0, NULL, &f.conn[c]));
    model_open(&f.m, c, database, pn_conn_backend_id(f.conn[c]));
    f.hushed[c] = false;
    for (int i = 0; i < MODEL_COUNTERS; i++) {
        const char counter[] = {'g', (char) ('0' + i)};
        uint32_t index;
        FUZZ_OK(pn_generation(f.conn[c], counter, 2, &index));
        FUZZ_CHECK(f.counter[database][i] == UINT32_MAX || f.counter[database][i] == index,
                   "a counter has moved");
        f.counter[database][i] = index;
    }
}

static void close_connection(int c)
{
    for (int t = 0; t < MODEL_TXNS; t++)
        if (f.m.connection[c].txn[t].open)
            pn_txn_abort(f.txn[c][t]);
    pn_conn_close(f.conn[c]);
    f.m.connection[c].open = false;
    f.conn[c] = NULL;
}

/* ---- receiving ------------------------------------------------------------------------------- */

static void check_bytes(const char *what, const uint8_t *got, uint64_t length,
                        struct model_bytes wanted)
{
    FUZZ_CHECK(length == wanted.length, "%llu bytes of %s instead of %u",
               (unsigned long long) length, what, wanted.length);
    for (uint32_t k = 0; k < wanted.length; k++)
        FUZZ_CHECK(got[k] == wanted.content, "other %s at byte %u", what, k);
}

static void check_headers(const pn_batch *b, size_t i, struct model_bytes wanted)
{
    if (b->with_headers == 0) {
        FUZZ_CHECK(wanted.length == 0, "%u bytes of headers are missing", wanted.length);
        return;
    }
    const uint64_t *offset = b->headers_offset + i;
    check_bytes("headers", b->headers + offset[0], offset[1] - offset[0], wanted);
}

static void check_message(int c, size_t i)
{
    const pn_batch *b = f.batch;
    uint8_t routes = 0;
    const struct model_event *e = model_next(&f.m, c, &routes);
    size_t len = 0;
    const char *name = pn_conn_channel(f.conn[c], b->channel[i], &len);
    FUZZ_CHECK(e != NULL, "connection %d got a message too many", c);
    FUZZ_CHECK(name != NULL && len == strlen(channels[e->channel]) &&
                   memcmp(name, channels[e->channel], len) == 0,
               "connection %d: channel %s instead of %s", c, name, channels[e->channel]);
    FUZZ_CHECK(b->routes[i] == routes, "routes %u instead of %u", b->routes[i], routes);
    FUZZ_CHECK(b->pid[i] == getpid() && b->backend_id[i] == e->backend, "sender %d",
               b->backend_id[i]);
    check_bytes("payload", b->data + b->offset[i], b->offset[i + 1] - b->offset[i], e->payload);
    check_headers(b, i, e->headers);
    uint64_t *seq = &f.seq[e->transaction];
    FUZZ_CHECK(*seq == 0 || *seq == b->seq[i], "two numbers of one transaction");
    *seq = b->seq[i];
    for (uint32_t before = e->transaction; before-- > 0;)
        if (f.seq[before] != 0) {
            FUZZ_CHECK(f.seq[before] < *seq, "a later transaction has a smaller number");
            break;
        }
}

static void receive(const struct call *call)
{
    uint64_t max = call->argument % 5; /* 0: all */
    int64_t n = pn_poll(f.conn[call->c], f.batch, max);
    FUZZ_CHECK(n >= 0 && (uint64_t) n == f.batch->n, "poll: %lld: %s", (long long) n,
               pn_error_message());
    FUZZ_CHECK(max == 0 || f.batch->n <= max, "more than was asked for");
    for (size_t i = 0; i < f.batch->n; i++)
        check_message(call->c, i);
    if (max == 0 || f.batch->n < max)
        FUZZ_CHECK(!model_owes(&f.m, call->c), "connection %d did not get all", call->c);
}

static void look(const struct call *call)
{
    bool owes = model_owes(&f.m, call->c);
    int rc = pn_wait(f.conn[call->c], 0);
    FUZZ_CHECK(rc >= 0 || rc == -EINTR, "wait: %d: %s", rc, pn_error_message());
    if (owes)
        FUZZ_CHECK(rc >= 0 && (rc & 1), "wait() sleeps on what is unread: %d", rc);
    struct pollfd p = {.fd = pn_fileno(f.conn[call->c]), .events = POLLIN};
    FUZZ_CHECK(p.fd >= 0, "fileno: %d: %s", p.fd, pn_error_message());
    rc = poll(&p, 1, 0);
    FUZZ_CHECK(!owes || f.hushed[call->c] || rc == 1, "the descriptor is silent on what is unread");
}

static void hush_or_post(const struct call *call)
{
    f.hushed[call->c] = (call->argument & 1) != 0;
    if (f.hushed[call->c])
        expect(call, pn_conn_mute_fd(f.conn[call->c]), 0);
    else
        pn_conn_mark_readable(f.conn[call->c]);
}

static void check_listening(const struct call *call)
{
    uint32_t numbers[MODEL_CHANNELS];
    int n = pn_conn_listening(f.conn[call->c], numbers, MODEL_CHANNELS), wanted = 0;
    for (int ch = 0; ch < MODEL_CHANNELS; ch++) {
        bool listed = false;
        if (f.m.connection[call->c].since[PN_ROUTE_LISTEN][ch] < 0)
            continue;
        wanted++;
        for (int i = 0; i < n; i++)
            listed |= strcmp(pn_conn_channel(f.conn[call->c], numbers[i], NULL), channels[ch]) == 0;
        FUZZ_CHECK(listed, "connection %d should listen to %s", call->c, channels[ch]);
    }
    expect(call, n, wanted);
}

/* ---- sending --------------------------------------------------------------------------------- */

static bool refused_for_room(const struct call *call, int rc)
{
    bool anything = false; /* that can hold room */
    if (rc != -PN_EQUEUEFULL && rc != -PN_ETOOBIG)
        return false;
    for (int c = 0; c < MODEL_CONNECTIONS; c++) {
        const struct model_connection *conn = &f.m.connection[c];
        anything |= conn->open && conn->position < f.m.nlog;
        for (int t = 0; t < MODEL_TXNS; t++)
            anything |= conn->open && conn->txn[t].open && conn->txn[t].prepared;
    }
    FUZZ_CHECK(anything || rc == -PN_ETOOBIG, "call %u: full, but no backend holds anything: %s",
               call->what, pn_error_message());
    return true;
}

static uint32_t length_of(uint8_t argument)
{
    uint32_t wanted = argument >> 3;
    return wanted == 31 ? MAX_PAYLOAD : wanted == 30 ? 8100 : wanted * 9;
}

/* What headers a call has: none in half of them; some are as many as there may be, or one more. */
static struct model_bytes headers_of(const struct call *call)
{
    static const uint32_t lengths[8] = {
        1, 2, 3, 60, 8100, 20000, PN_NOTIFY_HEADERS_MAX, PN_NOTIFY_HEADERS_MAX + 1};
    if ((call->what & 16) == 0)
        return (struct model_bytes) {0};
    return (struct model_bytes) {.length = lengths[call->argument & 7],
                                 .content = (uint8_t) (200 + call->argument % 5)};
}

static int send_with(const struct call *call, struct model_bytes with, const uint32_t *lens,
                     size_t n, bool dedup, uint64_t *queued)
{
    const char *channel = channels[call->argument % MODEL_CHANNELS];
    memset(headers, with.content, with.length);
    const pn_notify_in in = {.channel = channel,
                             .channel_len = strlen(channel),
                             .payloads = payload,
                             .lens = lens,
                             .n = n,
                             .headers = headers,
                             .headers_len = with.length,
                             .keep_equal = !dedup};
    pn_txn *txn = model_txn(call)->open ? f.txn[call->c][call->t] : NULL;
    return pn_notify_headers(f.conn[call->c], txn, &in, queued);
}

static bool refused_for_headers(const struct call *call, struct model_bytes with, int rc)
{
    const struct model_txn *t = model_txn(call);
    if (with.length <= PN_NOTIFY_HEADERS_MAX || (t->open && t->prepared))
        return false;
    expect(call, rc, -PN_EPAYLOAD);
    return true;
}

static bool room_in_model(uint32_t events)
{
    return f.m.nlog + events < MODEL_LOG - MODEL_CONNECTIONS * MODEL_TXNS * MODEL_ITEMS;
}

static void notify(const struct call *call)
{
    struct model_txn *t = model_txn(call);
    uint8_t channel = call->argument % MODEL_CHANNELS;
    struct model_bytes what = {length_of(call->argument), call->argument % 3};
    struct model_bytes with = headers_of(call);
    uint64_t queued;
    memset(payload, what.content, what.length);
    int rc;
    if (with.length > 0)
        rc = send_with(call, with, &what.length, 1, true, &queued);
    else if (t->open)
        rc = pn_txn_notify(f.txn[call->c][call->t], channels[channel], strlen(channels[channel]),
                           payload, what.length);
    else
        rc = pn_notify_cstr(f.conn[call->c], channels[channel], payload, what.length);
    if (refused_for_headers(call, with, rc))
        return;
    if (t->open) {
        expect(call, rc, t->prepared ? -PN_EPREPARED : 0);
        if (rc == 0)
            model_notify(t, channel, what, with, false);
        return;
    }
    static struct model_txn alone;
    alone = (struct model_txn) {.open = true};
    model_notify(&alone, channel, what, with, false);
    if (refused_for_room(call, rc))
        return;
    expect(call, rc & ~PN_NOTICE, 0);
    model_commit(&f.m, call->c, &alone);
}

/* Some with equal payloads, so that it matters whether they collapse. */
static void notify_many(const struct call *call)
{
    static struct model_txn alone;
    struct model_txn *t = model_txn(call);
    uint8_t channel = call->argument % MODEL_CHANNELS;
    uint32_t lens[5] = {10, 0, 10, 7, 10};
    bool dedup = (call->argument & 64) != 0;
    struct model_bytes with = headers_of(call);
    uint64_t queued = 0;
    alone = (struct model_txn) {.open = true};
    struct model_txn *target = t->open ? t : &alone;
    uint32_t before = target->nitems;
    memset(payload, call->argument & 3, 40);
    int rc = with.length > 0
                 ? send_with(call, with, lens, 5, dedup, &queued)
                 : pn_notify_many(f.conn[call->c], t->open ? f.txn[call->c][call->t] : NULL,
                                  channels[channel], strlen(channels[channel]), payload, lens, 5,
                                  dedup, &queued);
    if (refused_for_headers(call, with, rc))
        return;
    if (t->open && t->prepared) {
        expect(call, rc, -PN_EPREPARED);
        return;
    }
    if (refused_for_room(call, rc))
        return;
    expect(call, rc & ~PN_NOTICE, 0);
    for (int i = 0; i < 5; i++)
        model_notify(target, channel,
                     (struct model_bytes) {lens[i], (uint8_t) (call->argument & 3)}, with, !dedup);
    FUZZ_CHECK(queued == target->nitems - before, "%llu queued instead of %u",
               (unsigned long long) queued, target->nitems - before);
    if (!t->open)
        model_commit(&f.m, call->c, &alone);
}

static void begin(const struct call *call)
{
    struct model_txn *t = model_txn(call);
    if (t->open)
        return;
    expect(call, pn_txn_begin(f.conn[call->c], &f.txn[call->c][call->t]), 0);
    *t = (struct model_txn) {.open = true};
}

static void listen_or_not(const struct call *call)
{
    struct model_txn *t = model_txn(call);
    pn_txn *txn = f.txn[call->c][call->t];
    uint8_t ch = call->argument % MODEL_CHANNELS;
    bool listen = (call->argument & 16) != 0;
    uint8_t route = (call->argument & 32) != 0 ? PN_ROUTE_SUBSCRIBE : PN_ROUTE_LISTEN;
    struct model_item item = {.kind = MODEL_LISTENING,
                              .level = t->level,
                              .channel = ch,
                              .route = route,
                              .listen = listen};
    size_t len = strlen(channels[ch]);
    int rc;
    if (!t->open)
        return;
    if (call->argument >= 240) {
        item.kind = MODEL_UNLISTEN_ALL;
        item.route = PN_ROUTE_LISTEN;
        rc = pn_txn_unlisten_all(txn);
    } else if (route == PN_ROUTE_SUBSCRIBE) {
        rc = listen ? pn_txn_subscribe(txn, channels[ch], len)
                    : pn_txn_unsubscribe(txn, channels[ch], len);
    } else {
        rc = listen ? pn_txn_listen(txn, channels[ch], len)
                    : pn_txn_unlisten(txn, channels[ch], len);
    }
    expect(call, rc, t->prepared ? -PN_EPREPARED : 0);
    if (rc == 0)
        t->item[t->nitems++] = item;
}

static void savepoint(const struct call *call)
{
    struct model_txn *t = model_txn(call);
    pn_txn *txn = f.txn[call->c][call->t];
    if (!t->open || t->level > 20)
        return;
    int level = t->level == 0 ? 1 : 1 + call->argument % t->level;
    int wanted = t->prepared ? -PN_EPREPARED : 0;
    if (call->argument < 100) {
        expect(call, pn_txn_savepoint(txn), t->prepared ? -PN_EPREPARED : t->level + 1);
        t->level += t->prepared ? 0 : 1;
    } else if (t->level > 0 && call->argument < 180) {
        expect(call, pn_txn_release(txn, level), wanted);
        if (wanted == 0)
            model_release(t, level);
    } else if (t->level > 0) {
        expect(call, pn_txn_rollback_to(txn, level), wanted);
        if (wanted == 0)
            model_rollback_to(t, level);
    }
}

static void bump(const struct call *call)
{
    static struct model_txn alone;
    struct model_txn *t = model_txn(call);
    uint8_t number = call->argument % MODEL_COUNTERS;
    uint32_t index = f.counter[f.m.connection[call->c].database][number];
    struct model_item item = {.kind = MODEL_BUMP, .level = t->level, .counter = number};
    if (t->open) {
        int rc = pn_txn_bump(f.txn[call->c][call->t], index);
        expect(call, rc, t->prepared ? -PN_EPREPARED : 0);
        if (rc == 0)
            t->item[t->nitems++] = item;
        return;
    }
    int rc = pn_bump(f.conn[call->c], index);
    if (refused_for_room(call, rc))
        return;
    expect(call, rc & ~PN_NOTICE, 0);
    alone = (struct model_txn) {.open = true, .nitems = 1};
    alone.item[0] = item;
    model_commit(&f.m, call->c, &alone);
}

static void prepare(const struct call *call)
{
    struct model_txn *t = model_txn(call);
    if (!t->open)
        return;
    if (!t->prepared)
        model_fold(&f.m, call->c, t);
    int rc = pn_txn_prepare(f.txn[call->c][call->t]);
    if (t->prepared) {
        expect(call, rc, -PN_EPREPARED);
        return;
    }
    if (refused_for_room(call, rc))
        return;
    expect(call, rc, 0);
    t->prepared = true;
}

static void end_transaction(const struct call *call)
{
    struct model_txn *t = model_txn(call);
    if (!t->open)
        return;
    if (call->argument >= 200) {
        pn_txn_abort(f.txn[call->c][call->t]);
        t->open = false;
        return;
    }
    int rc = pn_txn_commit(f.txn[call->c][call->t]);
    if (!t->prepared && refused_for_room(call, rc)) {
        model_fold(&f.m, call->c, t);
        t->open = false;
        return;
    }
    expect(call, rc & ~PN_NOTICE, 0);
    model_commit(&f.m, call->c, t);
}

/* ---- an input -------------------------------------------------------------------------------- */

static void check_engine(void)
{
    char problems[4000];
    int n = pn_check(f.engine, problems, sizeof problems);
    FUZZ_CHECK(n == 0, "pn_check: %d: %s", n, n > 0 ? problems : pn_error_message());
    for (int d = 0; d < MODEL_DATABASES; d++)
        for (int i = 0; i < MODEL_COUNTERS; i++)
            if (f.counter[d][i] != UINT32_MAX)
                FUZZ_CHECK(pn_generation_value(f.engine, f.counter[d][i]) == f.m.counter[d][i],
                           "counter %d of database %d", i, d);
}

static void reconnect(const struct call *call)
{
    close_connection(call->c);
    open_connection(call->c, call->argument & 1);
}

static void make_call(const struct call *call)
{
    static void (*const calls[])(const struct call *) = {
        begin,         notify,          listen_or_not, savepoint, bump,         prepare,
        receive,       end_transaction, notify,        look,      hush_or_post, notify_many,
        listen_or_not, end_transaction, receive,       begin};
    const struct model_txn *t = model_txn(call);
    if (call->what % 32 == 31)
        reconnect(call);
    else if (call->what % 32 == 30)
        check_engine();
    else if (call->what % 32 == 29)
        check_listening(call);
    else if (t->nitems + 8 < MODEL_ITEMS && room_in_model(8))
        calls[call->what % 16](call);
    else
        end_transaction(call);
}

/* The segment, its queue beginning somewhere; near the end of 64 bits if the input wants it. */
static void begin_somewhere(struct fuzz_input *in)
{
    pn_options o = fuzz_options();
    o.max_channels = MODEL_DATABASES * MODEL_CHANNELS + 1;
    o.max_subscriptions = 128;
    o.max_generations = MODEL_DATABASES * MODEL_COUNTERS;
    o.max_payload = MAX_PAYLOAD;
    uint64_t where = fuzz_take(in, 3);
    o.signaling = where & 1 ? PN_SIGNAL_TARGETED : PN_SIGNAL_BROADCAST;
    FUZZ_OK(pn_open(fuzz_name(), &o, &f.engine));
    struct AsyncQueueControl *ctl = pn_first_segment()->ctl;
    QueuePosition start = (where >> 2) * 8 + (where & 2 ? 1ULL << 62 : 0);
    pn_store_relaxed(&ctl->head, start);
    pn_store_relaxed(&ctl->tail, start);
    pn_store_relaxed(&ctl->mem_tail, start);
    pn_store_relaxed(&ctl->woken, start);
}

static void end(void)
{
    pn_stat stat;
    check_engine();
    for (int c = 0; c < MODEL_CONNECTIONS; c++) {
        receive(&(struct call) {.c = c});
        close_connection(c);
    }
    check_engine();
    FUZZ_OK(pn_engine_stat(f.engine, &stat, NULL, 0));
    FUZZ_CHECK(stat.backends == 0 && stat.subscriptions == 0 && stat.head == stat.tail,
               "%u backends, %u subscriptions, %llu bytes are left", stat.backends,
               stat.subscriptions, (unsigned long long) (stat.head - stat.tail));
    pn_engine_close(f.engine);
    fuzz_remove();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    if (f.batch == NULL)
        f.batch = pn_batch_new();
    begin_somewhere(&in);
    f.m.nlog = f.m.transactions = 0;
    memset(f.m.counter, 0, sizeof f.m.counter);
    memset(f.counter, 0xff, sizeof f.counter);
    memset(f.seq, 0, sizeof f.seq);
    for (int c = 0; c < MODEL_CONNECTIONS; c++)
        open_connection(c, c == 3);
    for (int n = 0; n < MAX_CALLS && in.left > 0; n++) {
        uint64_t bytes = fuzz_take(&in, 2);
        const struct call call = {.what = bytes & 31,
                                  .c = (int) (bytes >> 5 & 3),
                                  .t = (int) (bytes >> 7 & 1),
                                  .argument = (uint8_t) (bytes >> 8)};
        make_call(&call);
    }
    end();
    return 0;
}
