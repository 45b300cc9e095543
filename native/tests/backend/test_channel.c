/* The channel table: chains, bitmaps, eviction, and that lists and index say the same. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "engine.h"

#include "backend/channel.h"
#include "recovery/check.h"

static void check_tables(struct pn_segment *seg)
{
    char problems[4096];
    CHECK_OK(pn_lock_acquire(seg, &test_hold, PN_LOCK_FOREVER));
    int n = pn_check_locked(seg, problems, sizeof problems); /* no reaping: no backend is real */
    pn_lock_release(seg);
    if (n != 0)
        FAIL("%d problems:\n%s", n, problems);
}

/* Backends that are no process's: the table does not ask. */
static void pretend_backends(struct pn_segment *seg)
{
    seg->database[0].dboid = 1;
    for (uint32_t i = 0; i < seg->max_backends; i++) {
        seg->backend[i].dboid = 1;
        pn_store_relaxed(&seg->backend[i].state, PN_SLOT_CLAIMED);
    }
}

static void no_backend_is_there(struct pn_segment *seg)
{
    for (uint32_t i = 0; i < seg->max_backends; i++) {
        CHECK_OK(pn_lock_acquire(seg, &test_hold, PN_LOCK_FOREVER));
        pn_unlisten_all_locked(seg, i);
        pn_lock_release(seg);
        pn_store_relaxed(&seg->backend[i].state, PN_SLOT_FREE);
    }
}

static uint64_t hash_of(const char *name)
{
    return pn_channel_hash(1, name, strlen(name));
}

static int stage(struct pn_segment *seg, uint32_t slot, const char *name, uint32_t *sub)
{
    CHECK_OK(pn_lock_acquire(seg, &test_hold, PN_LOCK_FOREVER));
    int rc = pn_listen_stage_locked(seg, slot, hash_of(name), 1, name, strlen(name), sub);
    pn_lock_release(seg);
    return rc;
}

static int listen_slot(struct pn_segment *seg, uint32_t slot, const char *name, uint32_t *sub)
{
    int rc = stage(seg, slot, name, sub);
    CHECK_OK(pn_lock_acquire(seg, &test_hold, PN_LOCK_FOREVER));
    if (rc == 0)
        pn_listen_apply_locked(seg, slot, *sub, 0);
    pn_lock_release(seg);
    return rc;
}

static void unlisten_slot(struct pn_segment *seg, uint32_t slot, uint32_t sub)
{
    CHECK_OK(pn_lock_acquire(seg, &test_hold, PN_LOCK_FOREVER));
    pn_unlisten_locked(seg, slot, sub);
    pn_lock_release(seg);
}

static struct GlobalChannelEntry *find(struct pn_segment *seg, const char *name)
{
    CHECK_OK(pn_lock_acquire(seg, &test_hold, PN_LOCK_FOREVER));
    struct GlobalChannelEntry *e =
        pn_channel_find_locked(seg, hash_of(name), 1, name, strlen(name));
    pn_lock_release(seg);
    return e;
}

/* ---- hashing --------------------------------------------------------------------------------- */

static void test_hash_sees_every_byte_and_the_database(void)
{
    char name[256];
    memset(name, 'a', sizeof name);
    for (size_t len = 1; len < 255; len++) {
        uint64_t whole = pn_channel_hash(1, name, len);
        CHECK(whole != pn_channel_hash(2, name, len));
        CHECK(whole != pn_channel_hash(1, name, len + 1));
        for (size_t i = 0; i < len; i++) {
            name[i] = 'b';
            CHECK(whole != pn_channel_hash(1, name, len));
            name[i] = 'a';
        }
    }
    CHECK(pn_channel_hash(1, NULL, 0) != pn_channel_hash(2, NULL, 0));
}

/* Names that share one bucket: all are found, whichever is removed from the chain. */
static void test_chains(void)
{
    enum { N = 20 };
    pn_options o = test_options();
    o.max_channels = N;
    pn_engine *engine = test_engine(&o);
    struct pn_segment *seg = test_inside();
    char names[N][16];
    uint32_t sub[N], mask = seg->buckets - 1, bucket = 0;
    pretend_backends(seg);
    for (int i = 0, n = 0; n < N; i++) {
        snprintf(names[n], sizeof names[n], "chan%d", i);
        uint32_t b = (uint32_t) (hash_of(names[n]) >> 32) & mask;
        if (n == 0)
            bucket = b;
        n += b == bucket;
    }
    for (int i = 0; i < N; i++)
        CHECK_OK(listen_slot(seg, 0, names[i], &sub[i]));
    CHECK_EQ(stage(seg, 1, "one too many", &sub[0]), -PN_ECHANNELS);
    CHECK(strstr(pn_error_message(), "max_channels is 20") != NULL);
    for (int i = 0; i < N; i++)
        CHECK(find(seg, names[i]) != NULL);
    check_tables(seg);
    for (int i = N; i-- > 0;) { /* evict from the middle, the end and the head of the chain */
        int victim = (i * 7 + 3) % N;
        uint32_t s = 0;
        char fresh[16];
        for (s = 0; s < seg->max_subscriptions; s++)
            if (seg->subscription[s].channel == pn_channel_index(seg, find(seg, names[victim])) &&
                seg->subscription[s].since == 0)
                break;
        unlisten_slot(seg, 0, s);
        snprintf(fresh, sizeof fresh, "new%d", i);
        CHECK_OK(listen_slot(seg, 1, fresh, &s));
        CHECK(find(seg, names[victim]) == NULL);
        CHECK(find(seg, fresh) != NULL);
        memcpy(names[victim], fresh, sizeof fresh);
        for (int k = 0; k < N; k++)
            CHECK(find(seg, names[k]) != NULL);
        check_tables(seg);
    }
    no_backend_is_there(seg);
    pn_engine_close(engine);
}

static void test_subscriptions_run_out_and_come_back(void)
{
    pn_options o = test_options();
    o.max_subscriptions = 5;
    pn_engine *engine = test_engine(&o);
    struct pn_segment *seg = test_inside();
    uint32_t sub[6];
    char name[8];
    pretend_backends(seg);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 5; i++) {
            snprintf(name, sizeof name, "s%d", i);
            CHECK_OK(listen_slot(seg, (uint32_t) i % 3, name, &sub[i]));
        }
        CHECK_EQ(stage(seg, 0, "s9", &sub[5]), -PN_ECHANNELS);
        CHECK(strstr(pn_error_message(), "max_subscriptions is 5") != NULL);
        check_tables(seg);
        for (int i = 0; i < 5; i++)
            unlisten_slot(seg, (uint32_t) i % 3, sub[i]);
        check_tables(seg);
        CHECK_EQ(seg->ctl->subscriptions_used, 0);
    }
    no_backend_is_there(seg);
    pn_engine_close(engine);
}

/* ---- eviction and chan_seq ------------------------------------------------------------------- */

static uint64_t next_chan_seq(const char *name)
{
    struct GlobalChannelEntry *e = find(test_inside(), name);
    return e == NULL ? 0 : e->next_chan_seq;
}

/* chan_seq is dense, starts at the first LISTEN, and outlives the last listener; there is a gap
 * only when the entry's room was needed. */
static void test_chan_seq(void)
{
    pn_options o = test_options();
    o.max_channels = 3;
    pn_engine *engine = test_engine(&o);
    pn_conn *conn = test_connect(engine), *other = test_connect(engine);
    CHECK_OK(test_notify(conn, "c", "unheard"));
    CHECK_EQ(next_chan_seq("c"), 0);
    test_listen(conn, "c");
    CHECK_EQ(next_chan_seq("c"), 1);
    for (int i = 0; i < 10; i++)
        CHECK_OK(test_notify(conn, "c", "x"));
    CHECK_EQ(next_chan_seq("c"), 11);
    pn_txn *txn = test_begin(other);
    CHECK_OK(pn_txn_notify(txn, "c", 1, "a", 1));
    CHECK_OK(pn_txn_notify(txn, "c", 1, "b", 1));
    CHECK_OK(pn_txn_notify(txn, "unheard", 7, "b", 1));
    CHECK_OK(pn_txn_commit(txn));
    CHECK_EQ(next_chan_seq("c"), 13);
    test_unlisten(conn, "c");
    CHECK_OK(test_notify(conn, "c", "unheard"));
    CHECK_EQ(next_chan_seq("c"), 13);
    test_listen(other, "c");
    CHECK_OK(test_notify(conn, "c", "x"));
    CHECK_EQ(next_chan_seq("c"), 14);
    test_unlisten(other, "c");
    test_listen(conn, "d");
    test_listen(conn, "e");
    CHECK_EQ(next_chan_seq("c"), 14); /* the table is full, and c still there */
    test_listen(conn, "f");
    CHECK_EQ(next_chan_seq("c"), 0);
    txn = test_begin(other);
    CHECK_OK(pn_txn_listen(txn, "c", 1));
    CHECK_EQ(pn_txn_commit(txn), -PN_ECHANNELS);
    test_unlisten(conn, "e");
    test_listen(other, "c");
    CHECK(next_chan_seq("c") > 14); /* again, but no number twice: audits would be misled */
    CHECK_EQ(test_stat(engine).channels, 3);
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_conn_close(other);
    pn_engine_close(engine);
}

/* A LISTEN that is prepared keeps its entry, and a failed LISTEN of many gives all back. */
static void test_staged_entries_are_not_evicted(void)
{
    pn_options o = test_options();
    o.max_channels = 2;
    pn_engine *engine = test_engine(&o);
    pn_conn *conn = test_connect(engine);
    pn_txn *prepared = test_begin(conn), *txn = test_begin(conn);
    CHECK_OK(pn_txn_listen(prepared, "p", 1));
    CHECK_OK(pn_txn_prepare(prepared));
    CHECK_OK(pn_txn_listen(txn, "a", 1));
    CHECK_OK(pn_txn_listen(txn, "b", 1));
    CHECK_EQ(pn_txn_commit(txn), -PN_ECHANNELS);
    CHECK_ENGINE(engine);
    CHECK_EQ(test_stat(engine).subscriptions, 1);
    CHECK(find(test_inside(), "p") != NULL);
    CHECK_OK(pn_txn_commit(prepared));
    CHECK_EQ(pn_conn_listening(conn, NULL, 0), 1);
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

/* ---- many backends, and rebuilding ----------------------------------------------------------- */

/* Everything derived, as bytes, but for the links, whose order is free. */
static unsigned char *snapshot(struct pn_segment *seg, size_t *size)
{
    size_t words = (size_t) (seg->words + seg->summary_words) * 8, used = 0;
    unsigned char *copy = calloc(seg->max_channels + 1, words + 32 + (size_t) seg->words * 8);
    CHECK(copy != NULL);
#define KEEP(bytes, n) (memcpy(copy + used, (bytes), (n)), used += (n))
    for (uint32_t i = 0; i < seg->max_channels; i++) {
        struct GlobalChannelEntry *e = pn_channel_at(seg, i);
        KEEP(&e->state, sizeof e->state);
        if (e->state != PN_CHANNEL_USED)
            continue;
        KEEP(e->words, words);
        KEEP(&e->numListeners, sizeof e->numListeners);
        KEEP(&e->staged, sizeof e->staged);
        KEEP(&e->next_chan_seq, sizeof e->next_chan_seq);
    }
    KEEP((void *) seg->listeners, (size_t) seg->words * 8);
    KEEP(&seg->ctl->channels_used, 4);
    KEEP(&seg->ctl->subscriptions_used, 4);
#undef KEEP
    *size = used;
    return copy;
}

static void scribble_index(struct pn_segment *seg)
{
    memset(seg->bucket, 0xff, (size_t) seg->buckets * 4);
    for (uint32_t slot = 0; slot < seg->max_backends; slot++)
        pn_fetch_or(&seg->listeners[slot / 64], 1ULL << (slot % 64));
    for (uint32_t i = 0; i < seg->max_channels; i++) {
        struct GlobalChannelEntry *e = pn_channel_at(seg, i);
        memset(e->words, 0x5a, (size_t) (seg->words + seg->summary_words) * 8);
        e->numListeners = e->staged = e->next = 0x5a5a5a5a;
    }
    seg->ctl->free_channel = seg->ctl->free_subscription = 0xffffffff;
    seg->ctl->channels_used = seg->ctl->subscriptions_used = 77;
    seg->ctl->index_dirty = 1;
}

static void rebuild_and_compare(struct pn_segment *seg)
{
    size_t before_size, after_size;
    unsigned char *before = snapshot(seg, &before_size);
    CHECK_OK(pn_lock_acquire(seg, &test_hold, PN_LOCK_FOREVER));
    scribble_index(seg);
    CHECK_EQ(pn_channel_rebuild_locked(seg), 0);
    pn_lock_release(seg);
    unsigned char *after = snapshot(seg, &after_size);
    CHECK_EQ(after_size, before_size);
    CHECK(memcmp(before, after, after_size) == 0);
    check_tables(seg);
    free(before);
    free(after);
}

/* As in the engine, a backend has a channel in its list at most once. */
static bool has_already(struct pn_segment *seg, uint32_t slot, const char *name)
{
    struct GlobalChannelEntry *e = find(seg, name);
    for (uint32_t link = seg->backend[slot].firstSub; e != NULL && link != 0;
         link = seg->subscription[link - 1].next)
        if (seg->subscription[link - 1].channel == pn_channel_index(seg, e))
            return true;
    return false;
}

static void random_listening(uint32_t backends, uint32_t channels, int steps)
{
    enum { MAX = 4000 };
    static uint32_t sub[MAX], owner[MAX];
    pn_options o = test_options();
    uint64_t seed = backends;
    uint32_t n = 0;
    char name[16];
    o.max_backends = backends;
    o.max_channels = channels;
    o.max_subscriptions = MAX;
    pn_engine *engine = test_engine(&o);
    struct pn_segment *seg = test_inside();
    pretend_backends(seg);
    for (int i = 0; i < steps; i++) {
        uint64_t r = test_random(&seed);
        uint32_t slot = (uint32_t) (r >> 8) % backends;
        if (r % 5 < 3 && n < MAX) {
            snprintf(name, sizeof name, "c%u", (uint32_t) (r >> 40) % (channels * 2));
            if (has_already(seg, slot, name))
                continue;
            int rc = r % 11 == 0 ? stage(seg, slot, name, &sub[n])
                                 : listen_slot(seg, slot, name, &sub[n]);
            CHECK(rc == 0 || rc == -PN_ECHANNELS);
            owner[n] = slot;
            n += rc == 0;
        } else if (n > 0) {
            uint32_t k = (uint32_t) (r >> 40) % n;
            unlisten_slot(seg, owner[k], sub[k]);
            sub[k] = sub[--n];
            owner[k] = owner[n];
        }
        if (i % (steps / 20) == 0) {
            check_tables(seg);
            rebuild_and_compare(seg);
        }
    }
    CHECK_EQ(seg->ctl->subscriptions_used, n);
    no_backend_is_there(seg);
    check_tables(seg);
    CHECK_EQ(seg->ctl->subscriptions_used, 0);
    pn_engine_close(engine);
}

static void test_lists_and_index_agree(void)
{
    random_listening(60, 2000, 2000);
    random_listening(70, 2000, 2000);
    random_listening(4100, 300, 3000);
    random_listening(9000, 100, 2000);
}

/* The first, the last, and those at the borders of words and of summary words. */
static void test_summary_bits(void)
{
    static const uint32_t slots[] = {0, 63, 64, 127, 4032, 4095, 4096, 4159, 8191, 8192, 8299};
    enum { N = sizeof slots / sizeof slots[0] };
    pn_options o = test_options();
    o.max_backends = 8300;
    pn_engine *engine = test_engine(&o);
    struct pn_segment *seg = test_inside();
    uint32_t sub[N];
    pretend_backends(seg);
    CHECK_EQ(seg->words, 130);
    CHECK_EQ(seg->summary_words, 3);
    for (int i = 0; i < N; i++) {
        CHECK_OK(listen_slot(seg, slots[i], "c", &sub[i]));
        struct GlobalChannelEntry *e = find(seg, "c");
        CHECK_EQ(e->numListeners, i + 1);
        CHECK(pn_channel_listens(seg, e, slots[i]));
        CHECK((e->words[slots[i] / 4096] >> (slots[i] / 64 % 64) & 1) == 1);
    }
    check_tables(seg);
    rebuild_and_compare(seg);
    for (int i = 0; i < N; i++) {
        unlisten_slot(seg, slots[i], sub[i]);
        struct GlobalChannelEntry *e = find(seg, "c");
        CHECK(!pn_channel_listens(seg, e, slots[i]));
        check_tables(seg);
    }
    CHECK(find(seg, "c")->words[0] == 0 && find(seg, "c")->words[2] == 0);
    no_backend_is_there(seg);
    pn_engine_close(engine);
}

/* A broken list is a corrupt segment, not a loop. */
static void broken_list(void *arg)
{
    pn_engine *engine = test_engine(NULL);
    struct pn_segment *seg = test_inside();
    uint32_t a, b;
    pretend_backends(seg);
    CHECK_OK(listen_slot(seg, 3, "a", &a));
    CHECK_OK(listen_slot(seg, 3, "b", &b));
    seg->subscription[a].next = (uint32_t) (uintptr_t) arg == 0 ? b + 1 : 0x7fffffff;
    CHECK_OK(pn_lock_acquire(seg, &test_hold, PN_LOCK_FOREVER));
    CHECK_EQ(pn_channel_rebuild_locked(seg), -PN_ECORRUPT);
    pn_lock_release(seg);
    CHECK_EQ(pn_lock_acquire(seg, &test_hold, PN_LOCK_FOREVER), -PN_ECORRUPT);
    pn_engine_close(engine);
    test_segments_remove();
}

static void test_broken_lists_poison(void)
{
    CHECK_CHILD(spawn(broken_list, (void *) 0), 0);
    CHECK_CHILD(spawn(broken_list, (void *) 1), 0);
}

/* UNLISTEN looks at its neighbours in the list, and not at what else the backend listens to. */
static void test_unlisten_does_not_walk(void)
{
    pn_engine *engine = test_engine(NULL);
    struct pn_segment *seg = test_inside();
    pn_conn *conn = test_connect(engine);
    const char *const names[] = {"a", "b", "c", "d", "e"}; /* "e" is the first of the list */
    uint32_t subs[5];
    for (int i = 0; i < 5; i++) {
        subs[i] = seg->ctl->free_subscription - 1;
        test_listen(conn, names[i]);
    }
    uint32_t whole = seg->subscription[subs[3]].next;
    CHECK_EQ(whole, subs[2] + 1);
    seg->subscription[subs[3]].next = 0x7fffffff; /* a walk comes by here */
    test_unlisten(conn, "a");
    CHECK_EQ(seg->subscription[subs[1]].next, 0);
    seg->subscription[subs[3]].next = whole;
    CHECK_ENGINE(engine);
    test_unlisten(conn, "c");
    CHECK_ENGINE(engine);
    test_unlisten(conn, "e");
    CHECK_ENGINE(engine);
    test_listen(conn, "f");
    test_unlisten(conn, "b");
    test_unlisten(conn, "d");
    CHECK_ENGINE(engine);
    test_unlisten(conn, "f");
    CHECK_EQ(conn->me->firstSub, 0);
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

/* As after a death: `prev` is made again with the rest of the index. */
static void test_rebuilding_makes_the_list_whole(void)
{
    pn_engine *engine = test_engine(NULL);
    struct pn_segment *seg = test_inside();
    pn_conn *conn = test_connect(engine);
    test_listen(conn, "a");
    test_listen(conn, "b");
    test_listen(conn, "c");
    for (uint32_t i = 0; i < seg->max_subscriptions; i++)
        seg->subscription[i].prev = 77;
    seg->ctl->index_dirty = 1;
    CHECK_OK(pn_lock_acquire(seg, &test_hold, PN_LOCK_FOREVER));
    pn_lock_release(seg);
    CHECK_ENGINE(engine);
    test_unlisten(conn, "b");
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

/* Each channel is folded into one intent, by each route, however often it is named. */
static void test_many_actions_of_one_transaction(void)
{
    pn_engine *engine = test_engine(NULL);
    pn_conn *conn = test_connect(engine), *other = test_connect(engine);
    char name[8];
    for (int round = 0; round < 3; round++) {
        pn_txn *txn = test_begin(conn);
        for (int times = 0; times < 2; times++)
            for (int i = 0; i < 40; i++) {
                snprintf(name, sizeof name, "n%d", i);
                if ((i + times + round) % 3 == 0)
                    CHECK_OK(pn_txn_unlisten(txn, name, strlen(name)));
                else
                    CHECK_OK(pn_txn_listen(txn, name, strlen(name)));
            }
        CHECK_OK(pn_txn_commit(txn));
        for (int i = 0; i < 40; i++) {
            snprintf(name, sizeof name, "n%d", i);
            CHECK_OK(test_notify(other, name, name));
            CHECK_POLL(conn, (i + 1 + round) % 3 == 0 ? "" : name);
        }
        CHECK_ENGINE(engine);
    }
    pn_txn *txn = test_begin(conn);
    CHECK_OK(pn_txn_listen(txn, "x", 1));
    CHECK_OK(pn_txn_unlisten_all(txn));
    CHECK_OK(pn_txn_listen(txn, "n1", 2));
    CHECK_OK(pn_txn_commit(txn));
    CHECK_EQ(pn_conn_listening(conn, NULL, 0), 1);
    CHECK_ENGINE(engine);
    pn_conn_close(other);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

int main(void)
{
    test_watchdog(110);
    RUN(test_unlisten_does_not_walk);
    RUN(test_rebuilding_makes_the_list_whole);
    RUN(test_many_actions_of_one_transaction);
    RUN(test_hash_sees_every_byte_and_the_database);
    RUN(test_chains);
    RUN(test_subscriptions_run_out_and_come_back);
    RUN(test_chan_seq);
    RUN(test_staged_entries_are_not_evicted);
    RUN(test_summary_bits);
    RUN(test_lists_and_index_agree);
    RUN(test_broken_lists_poison);
    return tests_done();
}
