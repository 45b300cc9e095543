/* Where things stand: the segment's parts, and entries in the ring. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "engine.h"

#include "queue/queue.h"
#include "segment/segment.h"

#define PAGE ((uint64_t) PN_QUEUE_PAGE)

static void test_parts_do_not_overlap(void)
{
    static const uint32_t backends[] = {1, 63, 64, 65, 1000, 4097};
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++) {
        pn_options o = test_options();
        o.max_backends = backends[i];
        o.max_channels = 7;
        pn_engine *engine = test_engine(&o);
        const struct pn_segment *seg = test_inside();
        const struct pn_header *h = seg->hdr;
        uint64_t words = (backends[i] + 63) / 64;
        CHECK_EQ(h->control_off, 2 * PN_OS_PAGE);
        CHECK(h->listeners_off >= h->control_off + sizeof(struct AsyncQueueControl));
        CHECK(h->owed_off >= h->listeners_off + words * 8);
        CHECK(h->backends_off >= h->owed_off + words * 8);
        CHECK_EQ(h->backends_off % 64, 0);
        CHECK(h->lock_ino_off >= h->backends_off + 256ULL * backends[i]);
        CHECK(h->databases_off >= h->lock_ino_off + words * 8);
        CHECK(h->buckets_off >=
              h->databases_off + (uint64_t) h->max_databases * sizeof(struct pn_database));
        CHECK(h->channels_off >= h->buckets_off + 4ULL * h->buckets);
        CHECK(h->subscriptions_off >= h->channels_off + 7ULL * h->channel_entry_size);
        CHECK(h->ring_off >= h->subscriptions_off + 256 * sizeof(struct pn_subscription));
        CHECK_EQ(h->ring_off % PN_OS_PAGE, 0);
        CHECK_EQ(h->topics_off, h->ring_off + 64 * PAGE);
        CHECK(h->consumers_off >= h->listeners_off + words * 8);
        CHECK(h->topic_off >= h->topics_off + sizeof(struct pn_topic_control));
        CHECK(h->topic_channel_off >= h->topic_off + h->max_topics * sizeof(struct pn_topic));
        CHECK(h->consumer_off >=
              h->topic_channel_off + ((uint64_t) h->max_topics + h->max_topic_channels) *
                                         sizeof(struct pn_topic_channel));
        CHECK(h->arena_owner_off >=
              h->consumer_off + h->max_consumers * sizeof(struct pn_consumer_slot));
        CHECK(h->arena_page_off >=
              h->arena_owner_off + h->max_topics * sizeof(struct pn_arena_owner));
        CHECK(h->arena_off >=
              h->arena_page_off + h->topic_memory / PN_ARENA_PAGE * sizeof(struct pn_arena_page));
        CHECK_EQ(h->arena_off % PN_ARENA_PAGE, 0);
        CHECK_EQ(h->total_size, h->arena_off + h->topic_memory);
        CHECK_EQ(pn_engine_size(engine), h->total_size);
        CHECK((h->buckets & (h->buckets - 1)) == 0 && h->buckets >= 14);
        CHECK_ENGINE(engine);
        pn_engine_close(engine);
    }
}

/* A segment of another layout has another hash, whichever fact is another. */
static void test_each_fact_of_the_layout_counts(void)
{
    uint64_t facts[27], before;
    for (size_t i = 0; i < 27; i++)
        facts[i] = i;
    before = pn_layout_fold(facts, 27);
    for (size_t i = 0; i < 27; i++) {
        facts[i]++;
        CHECK(pn_layout_fold(facts, 27) != before);
        facts[i]--;
    }
    CHECK(pn_layout_hash() != pn_layout_fold(facts, 0));
}

static struct pn_segment ring_of(uint64_t pages)
{
    uint64_t bytes = pages * PAGE;
    return (struct pn_segment) {.ring_bytes = bytes,
                                .ring_mask = (bytes & (bytes - 1)) == 0 ? bytes - 1 : 0};
}

static void test_entries_are_placed_in_pages(void)
{
    struct pn_segment seg = ring_of(64);
    CHECK_EQ(pn_entry_length(1, 0), 64);
    CHECK_EQ(pn_entry_length(8, 0), 64);
    CHECK_EQ(pn_entry_length(8, 1), 72);
    CHECK_EQ(pn_queue_place(&seg, 0, 64), 0);
    CHECK_EQ(pn_queue_place(&seg, PAGE - 64, 64), PAGE - 64); /* ends with the page */
    CHECK_EQ(pn_queue_place(&seg, PAGE - 56, 64), PAGE);      /* 56 bytes of padding */
    CHECK_EQ(pn_queue_place(&seg, PAGE - 8, 64), PAGE);       /* the smallest padding */
    CHECK_EQ(pn_queue_place(&seg, 0, PAGE), 0);               /* a page exactly */
    CHECK_EQ(pn_queue_after(0, PAGE), PAGE);
    CHECK_EQ(pn_queue_place(&seg, 8, PAGE), PAGE);
    CHECK_EQ(pn_queue_place(&seg, 8, PAGE + 8), PAGE);              /* large: starts a page */
    CHECK_EQ(pn_queue_after(PAGE, PAGE + 8), 3 * PAGE);             /* and takes whole ones */
    CHECK_EQ(pn_queue_place(&seg, 62 * PAGE, 2 * PAGE), 62 * PAGE); /* to the end of the ring */
    CHECK_EQ(pn_queue_place(&seg, 62 * PAGE + 8, 2 * PAGE), 64 * PAGE);
    CHECK_EQ(pn_queue_place(&seg, 62 * PAGE, 2 * PAGE + 8), 64 * PAGE);
    CHECK_EQ(pn_queue_place(&seg, 63 * PAGE, 32 * PAGE), 64 * PAGE);
    CHECK_EQ(pn_queue_place(&seg, 63 * PAGE + 8, 64), 63 * PAGE + 8);
}

/* Whatever is placed: in order, aligned, inside a page or over whole contiguous ones. */
static void test_placement_of_anything(void)
{
    static const uint64_t pages[] = {64, 65, 100, 1024};
    static const uint64_t from[] = {0, 1ULL << 40, (1ULL << 62) - 3 * 64 * PAGE, 1ULL << 62};
    uint64_t seed = 42;
    for (size_t k = 0; k < 16; k++) {
        struct pn_segment seg = ring_of(pages[k % 4]);
        QueuePosition pos = from[k / 4];
        for (int i = 0; i < 20000; i++) {
            uint64_t r = test_random(&seed);
            uint64_t payload = r % 10 == 0 ? r >> 20 & 0x1ffff : r >> 20 & 0x1ff;
            uint64_t length = pn_entry_length(1 + (r >> 8) % 60, payload);
            QueuePosition at = pn_queue_place(&seg, pos, length), end = pn_queue_after(at, length);
            CHECK(at >= pos && at % 8 == 0 && end >= at + length);
            CHECK(at % seg.ring_bytes + (end - at) <= seg.ring_bytes); /* contiguous */
            if (length <= PAGE) {
                CHECK(end - at == length && at / PAGE == (end - 1) / PAGE);
                CHECK(at - pos < PAGE && (at == pos || at % PAGE == 0));
            } else {
                CHECK(at % PAGE == 0 && end % PAGE == 0 && end - at < length + PAGE);
                CHECK(at - pos < length + 2 * PAGE);
            }
            pos = end;
        }
    }
}

/* Put an empty queue somewhere else, before any process is connected. */
static void move_queue(struct pn_segment *seg, QueuePosition pos)
{
    pn_store_relaxed(&seg->ctl->tail, pos);
    pn_store_relaxed(&seg->ctl->mem_tail, pos);
    pn_store_relaxed(&seg->ctl->head, pos);
    pn_store_relaxed(&seg->ctl->woken, pos);
    for (uint32_t i = 0; i < seg->max_backends; i++)
        pn_store_relaxed(&seg->backend[i].pos, pos | PN_ASLEEP);
}

static void fill(unsigned char *p, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (unsigned char) (test_random(&seed) >> 24);
}

/* What is written is read, byte for byte, at positions from the first to beyond any in use. */
static void write_and_read(uint32_t queue_pages, QueuePosition start)
{
    pn_options o = test_options();
    o.queue_pages = queue_pages;
    pn_engine *engine = test_engine(&o);
    unsigned char *out = malloc(200000), *want = malloc(200000);
    pn_batch *batch = pn_batch_new();
    uint64_t seed = 7 + queue_pages, sent = 0, got = 0;
    uint32_t sizes[64];

    move_queue(test_inside(), start);
    pn_conn *conn = test_connect(engine);
    test_listen(conn, "c");
    while (sent < 3000) {
        int n = (int) (test_random(&seed) % 8);
        for (int i = 0; i < n; i++, sent++) {
            uint64_t r = test_random(&seed);
            uint32_t size = (uint32_t) (r % 16 == 0 ? (r >> 8) % 50000 : (r >> 8) % 700);
            if (r % 16 == 1)
                size = (uint32_t) (PAGE - 64 + (r >> 8) % 3); /* around a whole page */
            fill(out, size, sent + 1);
            sizes[sent % 64] = size;
            CHECK_OK(pn_notify(conn, "c", 1, out, size));
        }
        CHECK_OK(pn_poll(conn, batch, 0));
        for (size_t i = 0; i < batch->n; i++, got++) {
            size_t len = (size_t) (batch->offset[i + 1] - batch->offset[i]);
            CHECK_EQ(len, sizes[got % 64]);
            fill(want, len, got + 1);
            CHECK(len == 0 || memcmp(want, batch->data + batch->offset[i], len) == 0);
        }
        CHECK_EQ(got, sent);
    }
    CHECK_ENGINE(engine);
    CHECK(test_stat(engine).head > start);
    pn_conn_close(conn);
    pn_engine_close(engine);
    pn_batch_free(batch);
    free(out);
    free(want);
}

static void test_bytes_at_all_positions(void)
{
    write_and_read(64, 0);
    write_and_read(65, 0);
    write_and_read(64, (1ULL << 62) - 64 * PAGE);
    write_and_read(100, (1ULL << 62) - 5 * PAGE);
    write_and_read(64, (1ULL << 32) - PAGE);
}

/* The padding before an entry that does not fit is a dummy of which 8 bytes exist. */
static void test_padding_is_a_dummy(void)
{
    pn_engine *engine = test_engine(NULL);
    struct pn_segment *seg = test_inside();
    pn_conn *conn = test_connect(engine);
    static char payload[8192];
    test_listen(conn, "c");
    CHECK_OK(pn_notify(conn, "c", 1, payload, PAGE - 57 - 8)); /* 8 bytes of the page are left */
    CHECK_OK(pn_notify(conn, "c", 1, payload, 1));
    const AsyncQueueEntry *dummy = (const void *) pn_ring_at(seg, PAGE - 8);
    CHECK_EQ(dummy->length, 8);
    CHECK_EQ(dummy->dboid, 0);
    const AsyncQueueEntry *second = (const void *) pn_ring_at(seg, PAGE);
    CHECK_EQ(second->payload_len, 1);
    CHECK_EQ(second->xid, 2);
    CHECK_EQ(second->chan_seq, 2);
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

/* Nothing that cannot be an entry is believed. */
static void scribbled_length(void *arg)
{
    uint32_t length = (uint32_t) (uintptr_t) arg;
    pn_engine *engine = test_engine(NULL);
    struct pn_segment *seg = test_inside();
    pn_conn *conn = test_connect(engine);
    pn_batch *batch = pn_batch_new();
    test_listen(conn, "c");
    CHECK_OK(test_notify(conn, "c", "hello"));
    AsyncQueueEntry *qe = (void *) pn_ring_at(seg, 0);
    qe->length = length;
    CHECK_EQ(pn_poll(conn, batch, 0), -PN_ECORRUPT);
    CHECK_EQ(pn_notify(conn, "c", 1, "x", 1), -PN_ECORRUPT); /* poisoned for all */
    CHECK_EQ(pn_wait(conn, -1), -PN_ECORRUPT);
    pn_conn_close(conn);
    pn_engine_close(engine);
    pn_batch_free(batch);
    test_segments_remove();
}

static void test_impossible_entries_poison(void)
{
    static const uint32_t lengths[] = {0, 4, 7, 48, 56, 63, 72, 8200, 0xfffffff8, 0x80000000};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++)
        CHECK_CHILD(spawn(scribbled_length, (void *) (uintptr_t) lengths[i]), 0);
}

int main(void)
{
    test_watchdog(110);
    RUN(test_each_fact_of_the_layout_counts);
    RUN(test_parts_do_not_overlap);
    RUN(test_entries_are_placed_in_pages);
    RUN(test_placement_of_anything);
    RUN(test_padding_is_a_dummy);
    RUN(test_bytes_at_all_positions);
    RUN(test_impossible_entries_poison);
    return tests_done();
}
