/* What a transaction gathers: duplicates, savepoints, the three indices; against a plain model. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "engine.h"

#include "commit/pending.h"

static struct pn_pending list;

static int notify(const char *channel, const char *payload)
{
    return pn_pending_notify(&list, channel, strlen(channel), payload, strlen(payload), true);
}

static bool event_is(size_t i, const char *channel, const char *payload)
{
    const struct pn_pending_event *e = &list.events[i];
    const struct pn_pending_channel *c = &list.channels[e->channel];
    return c->name_len == strlen(channel) &&
           memcmp(list.arena + c->name_off, channel, c->name_len) == 0 &&
           e->payload_len == strlen(payload) &&
           memcmp(list.arena + e->payload_off, payload, e->payload_len) == 0;
}

static void test_equal_ones_collapse(void)
{
    CHECK_EQ(notify("a", "x"), 1);
    CHECK_EQ(notify("a", "x"), 0);
    CHECK_EQ(notify("a", ""), 1);
    CHECK_EQ(notify("a", ""), 0);
    CHECK_EQ(notify("b", "x"), 1);
    CHECK_EQ(notify("ab", ""), 1); /* not the same as a/b */
    CHECK_EQ(notify("a", "b"), 1);
    CHECK_EQ(pn_pending_notify(&list, "a", 1, "x\0y", 3, true), 1);
    CHECK_EQ(pn_pending_notify(&list, "a", 1, "x\0z", 3, true), 1);
    CHECK_EQ(pn_pending_notify(&list, "a", 1, "x\0y", 3, true), 0);
    CHECK_EQ(pn_pending_notify(&list, "a", 1, NULL, 0, true), 0);
    CHECK_EQ(pn_pending_notify(&list, "a", 1, "x", 1, false), 1); /* it does not want that */
    CHECK_EQ(list.nevents, 8);
    CHECK_EQ(list.nchannels, 3);
    CHECK_EQ(list.collapsed, 4);
    CHECK(event_is(0, "a", "x"));
    CHECK(event_is(3, "ab", ""));
    pn_pending_free(&list);
    CHECK_EQ(list.nevents, 0);
}

static size_t indexed(void)
{
    size_t n = 0;
    for (uint32_t i = 0; i < list.event_index.size; i++)
        n += list.event_index.slots[i] != 0;
    return n;
}

/* Those that were not to collapse; or each would be looked for among all. */
static void test_equal_ones_stand_in_the_index_once(void)
{
    for (int i = 0; i < 500; i++)
        CHECK_EQ(pn_pending_notify(&list, "c", 1, "x", 1, false), 1);
    CHECK_EQ(indexed(), 1);
    CHECK_EQ(pn_pending_push(&list), 1);
    for (int i = 0; i < 500; i++)
        CHECK_EQ(pn_pending_notify(&list, "c", 1, i % 2 == 0 ? "y" : "", i % 2 == 0, false), 1);
    CHECK_EQ(indexed(), 3);
    CHECK_EQ(notify("c", "y"), 0);
    pn_pending_rollback(&list, 1);
    CHECK_EQ(list.nevents, 500);
    CHECK_EQ(indexed(), 1);
    CHECK_EQ(notify("c", "x"), 0);
    CHECK_EQ(notify("c", "y"), 1);
    pn_pending_free(&list);
}

/* The 17th makes the table, as in PostgreSQL; nothing else may change there. */
static void test_the_seventeenth(void)
{
    char text[16];
    for (int i = 0; i < 40; i++) {
        snprintf(text, sizeof text, "p%d", i);
        CHECK_EQ(notify("c", text), 1);
        CHECK_EQ(list.event_index.slots != NULL, i >= 16);
        for (int k = 0; k <= i; k++) {
            snprintf(text, sizeof text, "p%d", k);
            CHECK_EQ(notify("c", text), 0);
        }
    }
    pn_pending_free(&list);
    for (int i = 0; i < 40; i++) {
        snprintf(text, sizeof text, "c%d", i);
        CHECK_EQ(notify(text, "p"), 1);
        CHECK_EQ(list.channel_index.slots != NULL, i >= 16);
        CHECK_EQ(notify(text, "p"), 0);
        CHECK_EQ(list.nchannels, i + 1);
    }
    pn_pending_free(&list);
}

static void test_rollback_over_the_threshold(void)
{
    char text[16];
    for (int i = 0; i < 10; i++) {
        snprintf(text, sizeof text, "p%d", i);
        CHECK_EQ(notify("c", text), 1);
    }
    CHECK_EQ(pn_pending_push(&list), 1);
    for (int i = 10; i < 30; i++) {
        snprintf(text, sizeof text, "p%d", i);
        CHECK_EQ(notify("c", text), 1);
        CHECK_EQ(notify(text, "in another channel"), 1);
    }
    pn_pending_rollback(&list, 1);
    CHECK_EQ(list.nevents, 10);
    CHECK_EQ(list.nchannels, 1);
    CHECK_EQ(list.nmarks, 0);
    CHECK_EQ(notify("c", "p5"), 0);
    CHECK_EQ(notify("c", "p15"), 1); /* it is gone from the index too */
    CHECK_EQ(notify("c", "p15"), 0);
    CHECK_EQ(notify("p15", "x"), 1);
    pn_pending_free(&list);
}

static void test_nested_levels(void)
{
    CHECK_EQ(notify("c", "0"), 1);
    CHECK_EQ(pn_pending_push(&list), 1);
    CHECK_EQ(notify("c", "0"), 0); /* equal to the parent's */
    CHECK_EQ(notify("c", "1"), 1);
    CHECK_EQ(pn_pending_push(&list), 2);
    CHECK_EQ(notify("c", "2"), 1);
    CHECK_EQ(pn_pending_push(&list), 3);
    CHECK_EQ(notify("c", "3"), 1);
    CHECK_EQ(pn_pending_action(&list, PN_ACTION_LISTEN, false, "c", 1), 0);
    pn_pending_release(&list, 3);
    CHECK_EQ(list.nevents, 4);
    pn_pending_rollback(&list, 2); /* with what was released into it */
    CHECK_EQ(list.nevents, 2);
    CHECK_EQ(list.nactions, 0);
    CHECK_EQ(list.collapsed, 1);
    CHECK_EQ(notify("c", "3"), 1);
    pn_pending_rollback(&list, 7); /* no such level: nothing */
    pn_pending_release(&list, 0);
    CHECK_EQ(list.nevents, 3);
    CHECK_EQ(pn_pending_push(&list), 2);
    pn_pending_rollback(&list, 1); /* two levels at once */
    CHECK_EQ(list.nevents, 1);
    CHECK_EQ(list.collapsed, 0);
    CHECK_EQ(list.nmarks, 0);
    pn_pending_free(&list);
}

/* The arena moves while it grows; what was kept stays what it was. */
static void test_arena_growth(void)
{
    static char big[300000];
    for (int i = 0; i < 200; i++) {
        size_t n = (size_t) (i * i * 7);
        memset(big, 'a' + i % 26, n);
        char name[16];
        int len = snprintf(name, sizeof name, "chan%d", i % 50);
        CHECK_EQ(pn_pending_notify(&list, name, (size_t) len, big, n, true), 1);
    }
    CHECK_EQ(list.nevents, 200);
    for (size_t i = 0; i < 200; i++) {
        const struct pn_pending_event *e = &list.events[i];
        const struct pn_pending_channel *c = &list.channels[e->channel];
        char name[16];
        snprintf(name, sizeof name, "chan%d", (int) i % 50);
        CHECK_EQ(c->name_len, strlen(name));
        CHECK(memcmp(list.arena + c->name_off, name, c->name_len) == 0);
        CHECK_EQ(e->payload_len, i * i * 7);
        for (size_t k = 0; k < e->payload_len; k++)
            CHECK_EQ(list.arena[e->payload_off + k], 'a' + i % 26);
    }
    pn_pending_free(&list);
}

/* The list and its index are made for all of them, before the first is added. */
static void test_many_find_room_at_once(void)
{
    char bytes[1000];
    uint32_t lens[1000];
    const struct pn_payloads many = {.bytes = bytes, .lens = lens, .n = 1000};
    uint64_t queued = 0;
    for (int i = 0; i < 1000; i++) {
        bytes[i] = (char) (i % 200);
        lens[i] = 1;
    }
    CHECK_EQ(notify("c", ""), 1);
    CHECK_EQ(pn_pending_notify_many(&list, "c", 1, &many, true, &queued), 0);
    CHECK_EQ(queued, 200);
    CHECK_EQ(list.nevents, 201);
    CHECK_EQ(list.collapsed, 800);
    CHECK_EQ(list.event_index.size, 4096);
    CHECK_EQ(list.events_cap, 1024);
    CHECK_EQ(pn_pending_notify_many(&list, "c", 1, &many, false, &queued), 0);
    CHECK_EQ(queued, 1200);
    CHECK_EQ(list.nevents, 1201);
    CHECK_EQ(pn_pending_notify(&list, "c", 1, "\x05", 1, true), 0);
    const struct pn_payloads none = {.bytes = bytes, .lens = lens, .n = 0};
    CHECK_EQ(pn_pending_notify_many(&list, "d", 1, &none, true, &queued), 0);
    CHECK_EQ(list.nchannels, 1);
    pn_pending_free(&list);
}

/* Not copied, and found to be equal all the same; each length has another end to its words. */
static void test_borrowed_payloads(void)
{
    enum { LONGEST = 100 };
    char bytes[3 * LONGEST * LONGEST], *end = bytes;
    uint32_t lens[3 * LONGEST];
    struct pn_payloads many = {.bytes = bytes, .lens = lens};
    uint64_t queued = 0;
    for (uint32_t len = 1; len <= LONGEST; len++)
        for (int k = 0; k < 3; k++) { /* the third is equal to the first */
            memset(end, 'a', len);
            end[len * 7 / 10] = (char) ('a' + (k == 1));
            end[len - 1] = (char) ('a' + (k == 1));
            end += len;
            lens[many.n++] = len;
        }
    CHECK_EQ(pn_pending_borrow_many(&list, "c", 1, &many, true, &queued), 0);
    CHECK_EQ(queued, 2 * LONGEST);
    CHECK_EQ(list.collapsed, LONGEST);
    CHECK(pn_pending_payloads(&list) == (const unsigned char *) bytes);
    CHECK_EQ(list.arena_used, 1); /* the channel's name */
    for (size_t i = 0, off = 0; i < many.n; off += lens[i++])
        if (i % 3 != 2) {
            CHECK_EQ(list.events[i / 3 * 2 + i % 3].payload_off, off);
            CHECK_EQ(list.events[i / 3 * 2 + i % 3].payload_len, lens[i]);
        }
    pn_pending_free(&list);
}

/* ---- against a model ------------------------------------------------------------------------- */

enum { MAX = 4000, LEVELS = 10 };

static struct {
    uint32_t key[MAX];
    size_t n, mark[LEVELS], levels;
} model;

static void text_of(uint32_t key, char *channel, char *payload)
{
    sprintf(channel, "c%u", key % 37);
    sprintf(payload, "payload %u", key / 37);
}

static bool model_notify(uint32_t key)
{
    for (size_t i = 0; i < model.n; i++)
        if (model.key[i] == key)
            return false;
    model.key[model.n++] = key;
    return true;
}

/* Up to 40 of one channel at once, as pn_notify_many() has them. */
static void notify_many(uint64_t r, uint32_t range)
{
    char bytes[40 * 32], channel[16], *end = bytes;
    uint32_t lens[40], of = (uint32_t) (r >> 8) % 37;
    struct pn_payloads many = {.bytes = bytes, .lens = lens, .n = (r >> 20) % 40};
    uint64_t queued = 0, expected = 0;
    sprintf(channel, "c%u", of);
    for (size_t i = 0; i < many.n; i++) {
        uint32_t key = of + 37 * ((uint32_t) test_random(&r) % (range / 30));
        text_of(key, channel, end);
        lens[i] = (uint32_t) strlen(end);
        end += lens[i];
        expected += model_notify(key);
    }
    CHECK_EQ(pn_pending_notify_many(&list, channel, strlen(channel), &many, true, &queued), 0);
    CHECK_EQ(queued, expected);
}

static void compare(void)
{
    char channel[16], payload[32];
    CHECK_EQ(list.nevents, model.n);
    CHECK_EQ(list.nmarks, model.levels);
    for (size_t i = 0; i < model.n; i++) {
        text_of(model.key[i], channel, payload);
        CHECK(event_is(i, channel, payload));
    }
}

static void test_random_transactions_against_a_model(void)
{
    uint64_t seed = 2026;
    char channel[16], payload[32];
    for (int txn = 0; txn < 300; txn++) {
        memset(&model, 0, sizeof model);
        uint32_t range = txn % 3 == 0 ? 30 : 2000;
        for (int i = 0; i < 400; i++) {
            uint64_t r = test_random(&seed);
            if (r % 16 == 0 && model.levels < LEVELS) {
                model.mark[model.levels++] = model.n;
                CHECK_EQ(pn_pending_push(&list), (int) model.levels);
            } else if (r % 16 == 1 && model.levels > 0) {
                model.levels = (r >> 8) % model.levels;
                model.n = model.mark[model.levels];
                pn_pending_rollback(&list, model.levels + 1);
            } else if (r % 16 == 2 && model.levels > 0) {
                model.levels = (r >> 8) % model.levels;
                pn_pending_release(&list, model.levels + 1);
            } else if (r % 16 == 3 && model.n < MAX - 40) {
                notify_many(r, range);
            } else if (model.n < MAX) {
                uint32_t key = (uint32_t) (r >> 8) % range;
                text_of(key, channel, payload);
                CHECK_EQ(notify(channel, payload), model_notify(key));
            }
            if (i % 50 == 49)
                compare();
        }
        compare();
        pn_pending_free(&list);
    }
}

/* ---- answers to deliveries ---------------------------------------------------------------- */

/* Delivery, tag and id are of few values each, so that answers differ in one of them alone. */
struct answer {
    uint32_t delivery, tag;
    uint64_t id;
};

static struct answer answer_of(uint64_t r)
{
    const uint32_t n = (uint32_t) (r % (29 * 7 * 11));
    return (struct answer) {1 + n % 29, 1 + n / 29 % 7, 1 + n / 203};
}

static void add_op(enum pn_op_kind kind, struct answer a)
{
    struct pn_pending_op *op = pn_pending_op(&list);
    op->kind = kind;
    op->delivery = a.delivery;
    op->tag = a.tag;
    op->id = a.id;
    list.nops++;
}

static bool is_among_ops(struct answer a)
{
    for (size_t i = 0; i < list.nops; i++)
        if (list.ops[i].kind == PN_OP_ANSWER && list.ops[i].delivery == a.delivery &&
            list.ops[i].tag == a.tag && list.ops[i].id == a.id)
            return true;
    return false;
}

static void test_an_answer_is_found_again(void)
{
    uint64_t seed = 15;
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 400; i++) {
            const struct answer a = answer_of(test_random(&seed));
            const uint64_t r = test_random(&seed);
            CHECK_EQ(pn_pending_is_answered(&list, a.delivery, a.tag, a.id), is_among_ops(a));
            if (r % 64 == 0)
                pn_pending_push(&list);
            else if (r % 64 == 1 && list.nmarks > 0)
                pn_pending_rollback(&list, 1 + (r >> 8) % list.nmarks);
            else
                add_op(r % 4 == 2 ? PN_OP_PUBLISH : PN_OP_ANSWER, a);
        }
        for (uint64_t r = 0; r < 29 * 7 * 11; r++) {
            const struct answer a = answer_of(r);
            CHECK_EQ(pn_pending_is_answered(&list, a.delivery, a.tag, a.id), is_among_ops(a));
        }
        pn_pending_free(&list);
    }
}

/* None is put into the index twice, but where that grows to double its size. */
static void test_answers_are_put_into_the_index_once(void)
{
    const uint32_t *slots = NULL;
    int made = 0;
    for (uint32_t i = 0; i < 5000; i++) {
        CHECK(!pn_pending_is_answered(&list, i, 1, i));
        CHECK_EQ(list.indexed, i > 16 ? i : 0);
        made += list.answer_index.slots != slots;
        slots = list.answer_index.slots;
        add_op(PN_OP_ANSWER, (struct answer) {i, 1, i});
    }
    CHECK(made <= 9);
    pn_pending_free(&list);
}

int main(void)
{
    test_watchdog(110);
    RUN(test_equal_ones_collapse);
    RUN(test_equal_ones_stand_in_the_index_once);
    RUN(test_the_seventeenth);
    RUN(test_rollback_over_the_threshold);
    RUN(test_nested_levels);
    RUN(test_arena_growth);
    RUN(test_many_find_room_at_once);
    RUN(test_borrowed_payloads);
    RUN(test_random_transactions_against_a_model);
    RUN(test_an_answer_is_found_again);
    RUN(test_answers_are_put_into_the_index_once);
    return tests_done();
}
