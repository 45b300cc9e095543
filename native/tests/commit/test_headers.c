/* Headers: they come beside the payload they were sent with, however many others come with it. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "pair.h"

#include "queue/entry.h"

static void listener_and_other_of(const pn_options *o)
{
    two_connections_of(o);
    test_listen(a, "c");
}

static void listener_and_other(void)
{
    listener_and_other_of(NULL);
}

static pn_notify_in one(const char *channel, const char *payload, const uint32_t *len,
                        const char *headers)
{
    return (pn_notify_in) {.channel = channel,
                           .channel_len = strlen(channel),
                           .payloads = payload,
                           .lens = len,
                           .n = 1,
                           .headers = headers,
                           .headers_len = (uint32_t) strlen(headers)};
}

static int send_in(pn_txn *txn, const char *payload, const char *headers)
{
    uint64_t queued;
    uint32_t len = (uint32_t) strlen(payload);
    pn_notify_in in = one("c", payload, &len, headers);
    return pn_notify_headers(b, txn, &in, &queued);
}

/* What comes, as "payload{headers} ...". */
static const char *read_into(pn_conn *conn, pn_batch *batch)
{
    static char text[4096];
    size_t used = 0;
    text[0] = '\0';
    CHECK(pn_poll(conn, batch, 0) >= 0);
    for (size_t i = 0; i < batch->n; i++) {
        bool some = batch->with_headers != 0;
        uint64_t begin = some ? batch->headers_offset[i] : 0;
        uint64_t end = some ? batch->headers_offset[i + 1] : 0;
        used +=
            (size_t) snprintf(text + used, sizeof text - used, "%s%.*s{%.*s}", i == 0 ? "" : " ",
                              (int) (batch->offset[i + 1] - batch->offset[i]),
                              (const char *) batch->data + batch->offset[i], (int) (end - begin),
                              some ? (const char *) batch->headers + begin : "");
    }
    return text;
}

static const char *read_all(pn_conn *conn)
{
    pn_batch *batch = pn_batch_new();
    const char *text = read_into(conn, batch);
    pn_batch_free(batch);
    return text;
}

#define READS(got, expected)                                                                       \
    do {                                                                                           \
        const char *text_ = got;                                                                   \
        if (strcmp(text_, expected) != 0)                                                          \
            FAIL("read \"%s\", not \"%s\"", text_, expected);                                      \
    } while (0)

static void test_they_come_with_their_payload(void)
{
    listener_and_other();
    pn_batch *batch = pn_batch_new();
    CHECK_OK(test_notify(b, "c", "0"));
    CHECK_OK(send_in(NULL, "1", "h1"));
    CHECK_OK(test_notify(b, "c", "2"));
    CHECK_OK(send_in(NULL, "", "only"));
    CHECK_OK(send_in(NULL, "4", ""));
    READS(read_into(a, batch), "0{} 1{h1} 2{} {only} 4{}");
    CHECK_EQ(batch->with_headers, 2);
    CHECK_OK(test_notify(b, "c", "5"));
    READS(read_into(a, batch), "5{}"); /* the batch has forgotten those of before */
    CHECK_EQ(batch->with_headers, 0);
    CHECK_OK(send_in(NULL, "6", "h6"));
    READS(read_into(a, batch), "6{h6}");
    pn_batch_free(batch);
    done();
}

/* More than the columns had room for at first. */
static void test_many_of_them(void)
{
    enum { N = 1000 };
    pn_batch *batch = pn_batch_new();
    char payload[16], headers[16], text[300];
    listener_and_other();
    for (int i = 0; i < N; i++) {
        snprintf(payload, sizeof payload, "%d", i);
        snprintf(headers, sizeof headers, "h%d", i);
        CHECK_OK(i % 3 == 2 ? send_in(NULL, payload, headers) : test_notify(b, "c", payload));
    }
    CHECK_EQ(pn_poll(a, batch, 0), N);
    CHECK_EQ(batch->with_headers, N / 3);
    for (size_t i = 0; i < N; i++) {
        uint64_t begin = batch->headers_offset[i], end = batch->headers_offset[i + 1];
        int len = i % 3 == 2 ? snprintf(headers, sizeof headers, "h%zu", i) : 0;
        CHECK_EQ(end - begin, (uint64_t) len);
        CHECK(len == 0 || memcmp(batch->headers + begin, headers, (size_t) len) == 0);
    }
    memset(text, 'h', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    for (int i = 0; i < 200; i++) /* more bytes of them than there was room for */
        CHECK_OK(send_in(NULL, "x", text));
    CHECK_EQ(pn_poll(a, batch, 0), 200);
    CHECK_EQ(batch->headers_offset[200], 200 * (sizeof text - 1));
    pn_batch_free(batch);
    done();
}

/* What is a duplicate is said by channel and payload alone; the first stays. */
static void test_they_make_no_difference_to_duplicates(void)
{
    listener_and_other();
    pn_txn *txn = test_begin(b);
    CHECK_OK(pn_txn_notify(txn, "c", 1, "1", 1));
    CHECK_OK(send_in(txn, "1", "late"));
    CHECK_OK(send_in(txn, "2", "first"));
    CHECK_OK(send_in(txn, "2", "second"));
    CHECK_OK(pn_txn_notify(txn, "c", 1, "2", 1));
    CHECK_OK(send_in(txn, "3", "third"));
    CHECK_OK(pn_txn_notify(txn, "c", 1, "4", 1));
    CHECK_OK(pn_txn_commit(txn));
    READS(read_all(a), "1{} 2{first} 3{third} 4{}");
    CHECK_EQ(test_stat(engine).collapsed, 3);
    done();
}

static void test_rolled_back_they_are_gone(void)
{
    listener_and_other();
    pn_txn *txn = test_begin(b);
    CHECK_OK(send_in(txn, "1", "h1"));
    CHECK_EQ(pn_txn_savepoint(txn), 1);
    CHECK_OK(send_in(txn, "2", "h2"));
    CHECK_OK(send_in(txn, "3", "h3"));
    CHECK_OK(pn_txn_rollback_to(txn, 1));
    CHECK_OK(pn_txn_notify(txn, "c", 1, "4", 1));
    CHECK_EQ(pn_txn_savepoint(txn), 1);
    CHECK_OK(send_in(txn, "5", "h5"));
    CHECK_OK(pn_txn_release(txn, 1));
    CHECK_OK(pn_txn_commit(txn));
    READS(read_all(a), "1{h1} 4{} 5{h5}");
    txn = test_begin(b);
    CHECK_OK(send_in(txn, "6", "h6"));
    pn_txn_abort(txn);
    READS(read_all(a), "");
    done();
}

static void test_of_many_each_has_them(void)
{
    static const uint32_t lens[] = {1, 2, 1, 1};
    pn_notify_in in = one("c", "12213", lens, "all");
    uint64_t queued;
    in.n = 4;
    listener_and_other();
    CHECK_OK(pn_notify_headers(b, NULL, &in, &queued));
    CHECK_EQ(queued, 3);
    READS(read_all(a), "1{all} 22{all} 3{all}");
    in.keep_equal = 1;
    pn_txn *txn = test_begin(b);
    CHECK_OK(pn_txn_notify(txn, "c", 1, "0", 1));
    CHECK_OK(pn_notify_headers(NULL, txn, &in, &queued));
    CHECK_EQ(queued, 4);
    CHECK_OK(pn_txn_notify(txn, "c", 1, "9", 1));
    CHECK_OK(pn_txn_commit(txn));
    READS(read_all(a), "0{} 1{all} 22{all} 1{all} 3{all} 9{}");
    done();
}

/* They count for room: the worst case of a prepared transaction has them, too. */
static void test_prepared(void)
{
    char payload[8] = "p", headers[301];
    memset(headers, 'h', 300);
    headers[300] = '\0';
    listener_and_other();
    pn_txn *txn = test_begin(b);
    for (int i = 0; i < 100; i++) {
        payload[1] = (char) ('0' + i / 10);
        payload[2] = (char) ('0' + i % 10);
        CHECK_OK(send_in(txn, payload, headers));
    }
    CHECK_OK(pn_txn_prepare(txn));
    CHECK(test_inside()->ctl->reserved >= 100 * pn_entry_length(1, 3 + 300));
    CHECK_OK(test_notify(b, "c", "between"));
    CHECK_OK(pn_txn_commit(txn));
    CHECK_EQ(test_inside()->ctl->reserved, 0);
    pn_batch *batch = pn_batch_new();
    CHECK_EQ(pn_poll(a, batch, 0), 101);
    CHECK_EQ(batch->with_headers, 100);
    CHECK_EQ(batch->headers_offset[1], 0); /* of "between" */
    CHECK_EQ(batch->headers_offset[101], 100 * 300);
    pn_batch_free(batch);
    done();
}

/* They do not count for max_payload, and have a bound of their own. */
static void test_bounds(void)
{
    static char payload[7999], headers[PN_NOTIFY_HEADERS_MAX + 1];
    uint32_t len = sizeof payload;
    uint64_t queued;
    pn_options o = test_options();
    pn_batch *batch = pn_batch_new();
    o.max_payload = sizeof payload;
    memset(payload, 'p', sizeof payload);
    memset(headers, 'h', sizeof headers);
    listener_and_other_of(&o);
    pn_notify_in in = {.channel = "c", .channel_len = 1, .payloads = payload, .lens = &len, .n = 1};
    in.headers = headers;
    for (uint32_t n = 1; n <= PN_NOTIFY_HEADERS_MAX; n = n == 1 ? 135 : n < 140 ? n + 1 : n * 2) {
        in.headers_len = n; /* around where the entry is larger than a page */
        CHECK_OK(pn_notify_headers(b, NULL, &in, &queued));
        CHECK_EQ(pn_poll(a, batch, 0), 1);
        CHECK_EQ(batch->offset[1], sizeof payload);
        CHECK_EQ(batch->headers_offset[1], n);
        CHECK(memcmp(batch->headers, headers, n) == 0);
    }
    in.headers_len = PN_NOTIFY_HEADERS_MAX;
    CHECK_OK(pn_notify_headers(b, NULL, &in, &queued));
    CHECK_EQ(pn_poll(a, batch, 0), 1);
    in.headers_len = PN_NOTIFY_HEADERS_MAX + 1;
    CHECK_EQ(pn_notify_headers(b, NULL, &in, &queued), -PN_EPAYLOAD);
    CHECK(strstr(pn_error_message(), "headers too long\nThey have 65536 bytes") != NULL);
    pn_batch_free(batch);
    done();
}

/* The largest payload fits an empty queue; with headers it may not, and that is found before the
 * lock is taken. */
static void test_too_large_for_the_queue(void)
{
    static char headers[PN_NOTIFY_HEADERS_MAX];
    pn_options o = test_options();
    o.max_payload = (o.queue_pages - 1) * PN_QUEUE_PAGE / 2;
    listener_and_other_of(&o);
    char *payload = calloc(1, o.max_payload);
    uint32_t len = o.max_payload;
    uint64_t queued;
    pn_notify_in in = {.channel = "c", .channel_len = 1, .payloads = payload, .lens = &len, .n = 1};
    CHECK_OK(pn_notify(b, "c", 1, payload, len));
    pn_batch *batch = pn_batch_new();
    CHECK_EQ(pn_poll(a, batch, 0), 1);
    in.headers = headers;
    in.headers_len = sizeof headers;
    CHECK_EQ(pn_notify_headers(b, NULL, &in, &queued), -PN_ETOOBIG);
    CHECK_OK(test_notify(b, "c", "on it goes"));
    CHECK_EQ(pn_poll(a, batch, 0), 1);
    pn_batch_free(batch);
    free(payload);
    done();
}

/* A commit makes room for them, too: what is unread is not overwritten. */
static void test_a_full_queue(void)
{
    char payload[16], headers[701];
    int rc, n = 0;
    memset(headers, 'h', 700);
    headers[700] = '\0';
    listener_and_other();
    do {
        snprintf(payload, sizeof payload, "%d", n);
        rc = send_in(NULL, payload, headers);
        n += rc >= 0;
        if (n % 16 == 0)
            CHECK_ENGINE(engine);
    } while (rc >= 0);
    CHECK_EQ(rc, -PN_EQUEUEFULL);
    CHECK_ENGINE(engine);
    pn_batch *batch = pn_batch_new();
    CHECK_EQ(pn_poll(a, batch, 0), n);
    for (size_t i = 0; i < batch->n; i++) {
        int len = snprintf(payload, sizeof payload, "%zu", i);
        CHECK_EQ(batch->offset[i + 1] - batch->offset[i], (uint64_t) len);
        CHECK(memcmp(batch->data + batch->offset[i], payload, (size_t) len) == 0);
        CHECK_EQ(batch->headers_offset[i + 1] - batch->headers_offset[i], 700);
    }
    pn_batch_free(batch);
    done();
}

static void test_by_a_pattern(void)
{
    listener_and_other();
    pn_txn *txn = test_begin(a);
    CHECK_OK(pn_txn_unlisten(txn, "c", 1));
    CHECK_OK(pn_txn_listen_pattern(txn, "?", 1));
    CHECK_OK(pn_txn_commit(txn));
    CHECK_OK(send_in(NULL, "1", "h1"));
    CHECK_OK(test_notify(b, "d", "2"));
    READS(read_all(a), "1{h1} 2{}");
    done();
}

/* From files, and from the private copies of what may be evicted. */
static void test_from_copies(void)
{
    char payload[16], headers[16];
    pn_options o = test_options();
    o.on_full = PN_FULL_DROP_SLOWEST;
    listener_and_other_of(&o);
    for (int i = 0; i < 5000; i++) {
        snprintf(payload, sizeof payload, "%d", i);
        snprintf(headers, sizeof headers, "h%d", i);
        CHECK_OK(send_in(NULL, payload, headers));
    }
    pn_batch *batch = pn_batch_new();
    CHECK_EQ(pn_poll(a, batch, 0), 5000);
    for (size_t i = 0; i < 5000; i++) {
        uint64_t begin = batch->headers_offset[i], end = batch->headers_offset[i + 1];
        int len = snprintf(headers, sizeof headers, "h%zu", i);
        CHECK_EQ(end - begin, (uint64_t) len);
        CHECK(memcmp(batch->headers + begin, headers, (size_t) len) == 0);
    }
    pn_batch_free(batch);
    done();
}

/* Of another kind an entry has none. */
static void test_a_check_looks_at_them(void)
{
    char problems[4096];
    listener_and_other();
    CHECK_OK(pn_notify(b, "c", 1, "payload", 7));
    AsyncQueueEntry *qe = (void *) pn_ring_at(test_inside(), 0);
    CHECK_EQ(qe->kind, PN_ENTRY_NOTIFY);
    uint32_t payload_len = qe->payload_len;
    qe->kind = PN_ENTRY_GAP;
    qe->payload_len = 0;
    qe->headers_len = 3;
    CHECK_EQ(pn_check(engine, problems, sizeof problems), 1);
    CHECK(strstr(problems, "cannot have headers of 3 bytes") != NULL);
    qe->kind = PN_ENTRY_NOTIFY;
    CHECK_EQ(pn_check(engine, problems, sizeof problems), 1); /* more than it has bytes */
    qe->payload_len = payload_len;
    CHECK_EQ(pn_check(engine, problems, sizeof problems), 0);
    READS(read_all(a), "payl{oad}");
    done();
}

int main(void)
{
    test_watchdog(100);
    RUN(test_they_come_with_their_payload);
    RUN(test_many_of_them);
    RUN(test_they_make_no_difference_to_duplicates);
    RUN(test_rolled_back_they_are_gone);
    RUN(test_of_many_each_has_them);
    RUN(test_prepared);
    RUN(test_bounds);
    RUN(test_too_large_for_the_queue);
    RUN(test_a_full_queue);
    RUN(test_by_a_pattern);
    RUN(test_from_copies);
    RUN(test_a_check_looks_at_them);
    return tests_done();
}
