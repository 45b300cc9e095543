/*
 * Words by which a process goes on are overwritten: ends of the queue, lists, sets.  One that
 * follows them comes to an end, and poisons the segment; what it makes room for it has measured
 * once.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "topics.h"

#include <pthread.h>

#include "recovery/check.h"
#include "recovery/rebuild_sort.h"
#include "recovery/recover_topics.h"
#include "topic/delivery.h"
#include "topic/timedset.h"

enum { HALF_A_PAGE = 4000, PAGES = 64 };

/* ---- the queue ------------------------------------------------------------------------------- */

/* A reader that copies, in a ring of which every page has entries. */
static pn_conn *reader_in_a_full_ring(pn_engine **engine)
{
    static char payload[HALF_A_PAGE];
    pn_options o = test_options();
    pn_batch *batch = pn_batch_new();
    o.on_full = PN_FULL_DROP_SLOWEST;
    *engine = test_engine(&o);
    pn_conn *conn = test_connect(*engine);
    test_listen(conn, "c");
    for (int i = 0; i < 3 * PAGES; i++) {
        CHECK_OK(pn_notify(conn, "c", 1, payload, sizeof payload));
        CHECK_EQ(pn_poll(conn, batch, 0), 1);
    }
    CHECK_OK(pn_notify(conn, "c", 1, payload, sizeof payload));
    pn_batch_free(batch);
    return conn;
}

static void check_poll_finds_it(pn_engine *engine, pn_conn *conn)
{
    pn_batch *batch = pn_batch_new();
    pn_conn *late;
    CHECK_EQ(pn_poll(conn, batch, 0), -PN_ECORRUPT);
    CHECK_EQ(pn_connect(engine, "db", 2, 0, NULL, &late), -PN_ECORRUPT);
    pn_batch_free(batch);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static void polls_up_to_no_head(void *arg)
{
    pn_engine *engine;
    pn_conn *conn = reader_in_a_full_ring(&engine);
    (void) arg;
    pn_fetch_add_relaxed(&test_inside()->ctl->head, 1ULL << 50);
    check_poll_finds_it(engine, conn);
}

static void polls_behind_an_impossible_word(void *arg)
{
    pn_engine *engine;
    pn_conn *conn = reader_in_a_full_ring(&engine);
    struct AsyncQueueControl *ctl = test_inside()->ctl;
    int which = *(const int *) arg;
    pn_atomic_u64 *word = which % 2 == 0 ? &ctl->floor : &ctl->mem_tail;
    pn_store_relaxed(word, which < 2 ? pn_load_relaxed(&ctl->head) + PN_QUEUE_PAGE
                                     : pn_load_relaxed(word) + 4);
    check_poll_finds_it(engine, conn);
}

static void test_ends_of_the_queue(void)
{
    CHECK_CHILD(spawn(polls_up_to_no_head, NULL), 0);
    for (int which = 0; which < 4; which++)
        CHECK_CHILD(spawn(polls_behind_an_impossible_word, &which), 0);
}

/* ---- topics ---------------------------------------------------------------------------------- */

static struct {
    pn_engine *engine;
    pn_conn *conn;
    pn_ref topic, channel;
    pn_consumer *consumer;
} has;

static void make_a_topic(void)
{
    const pn_consumer_options o = {
        .max_in_flight = 4, .max_attempts = 1, .dead_letter = "dead", .dead_letter_len = 4};
    has.engine = test_engine(NULL);
    has.conn = test_connect(has.engine);
    has.topic = topic_of(has.conn, "t");
    has.channel = channel_of(has.conn, has.topic, "c");
    has.consumer = consumer_with(has.conn, has.channel, &o);
}

static void close_all(void)
{
    if (has.consumer != NULL)
        pn_consumer_close(has.consumer);
    pn_conn_close(has.conn);
    pn_engine_close(has.engine);
}

static struct pn_topic_channel *inside(pn_ref channel)
{
    return &test_inside()->topics.channel[(uint32_t) channel - 1];
}

static void check_it_is_found(int rc)
{
    CHECK_EQ(rc, -PN_ECORRUPT);
    CHECK_EQ(pn_lock_acquire(test_inside(), &test_hold, PN_LOCK_FOREVER), -PN_ECORRUPT);
}

/* The first in the set is due, and does not know that it stands there. */
static void gets_what_never_leaves_the_timed_set(void *arg)
{
    const struct pn_segment *seg;
    struct pn_timed entry;
    pn_message_out m;
    int rc;
    (void) arg;
    make_a_topic();
    seg = test_inside();
    CHECK_OK(publish_in(has.conn, NULL, has.topic, "later", 20 * MS, 0, NULL));
    CHECK(pn_timedset_first(&seg->topics.arena, &inside(has.channel)->timed, &entry));
    pn_delivery_at(seg, entry.ref)->timed = 0;
    do
        rc = pn_consumer_get(has.consumer, -1, &m);
    while (rc == -EINTR || rc == 1); /* the message itself is there */
    check_it_is_found(rc);
    close_all();
}

/* It stands among those in flight, is too late, and says that it is ready. */
static void gets_beside_what_never_times_out(void *arg)
{
    const struct pn_segment *seg;
    pn_message_out m;
    (void) arg;
    make_a_topic();
    seg = test_inside();
    publish(has.conn, has.topic, "flies");
    GET(has.consumer, &m, "flies");
    struct pn_delivery *d = pn_delivery_at(seg, seg->topics.consumer[0].first);
    pn_store_relaxed(&d->state, pn_state_word(PN_KIND_READY, 0, 0, 1));
    d->due = 1;
    inside(has.channel)->next_deadline = 1;
    check_it_is_found(pn_consumer_get(has.consumer, 0, &m));
    close_all();
}

/* The end of none of its deliveries ends it. */
static void cancels_what_has_no_deliveries(void *arg)
{
    const struct pn_segment *seg;
    struct pn_timed entry;
    uint64_t id;
    (void) arg;
    make_a_topic();
    seg = test_inside();
    CHECK_OK(publish_in(has.conn, NULL, has.topic, "later", 3600000 * MS, 0, &id));
    CHECK(pn_timedset_first(&seg->topics.arena, &inside(has.channel)->timed, &entry));
    pn_message_at(seg, pn_delivery_at(seg, entry.ref)->message)->refs = 0;
    pn_topic_cancel(has.conn, NULL, has.topic, id);
    check_it_is_found(pn_topic_pause(has.conn, has.topic, 1));
    close_all();
}

static void goes_along_channels_that_lead_round(void *arg)
{
    pn_topic_stats stats;
    pn_topic_channel_stats rows[4];
    make_a_topic();
    inside(has.channel)->sibling = (uint32_t) has.channel;
    switch (*(const int *) arg) {
    case 0:
        pn_topic_stat(has.conn, has.topic, &stats);
        break;
    case 1:
        pn_engine_topic_channels(has.engine, has.topic, rows, 4);
        break;
    default:
        publish_in(has.conn, NULL, has.topic, "to each of them", 0, 0, NULL);
    }
    check_it_is_found(pn_topic_stat(has.conn, has.topic, &stats));
    close_all();
}

static void peeks_at_a_list_that_leads_round(void *arg)
{
    static uint8_t bodies[64];
    pn_peeked rows[16];
    (void) arg;
    make_a_topic();
    publish(has.conn, has.topic, "void");
    struct pn_topic_channel *ch = inside(has.channel);
    pn_delivery_at(test_inside(), ch->first)->next = ch->first;
    ch->discarded_below = UINT64_MAX; /* so that it is none of what is shown */
    pn_topic_channel_peek(has.conn, has.channel, rows, 16, bodies, 4);
    check_it_is_found(pn_topic_pause(has.conn, has.topic, 1));
    close_all();
}

/* The number of topics with a share, and one, was 0. */
static void deletes_among_too_many_owners(void *arg)
{
    (void) arg;
    make_a_topic();
    test_inside()->topics.arena.owner[5].counts = UINT32_MAX;
    pn_consumer_close(has.consumer);
    has.consumer = NULL;
    CHECK_OK(pn_topic_delete(has.conn, has.topic));
    close_all();
}

/* What a dead letter says of its topic has room for a name, not for what stands where its length
 * was. */
static void buries_with_a_name_without_end(void *arg)
{
    pn_message_out m;
    (void) arg;
    make_a_topic();
    publish(has.conn, has.topic, "dies");
    GET(has.consumer, &m, "dies");
    struct pn_topic *t = &test_inside()->topics.topic[(uint32_t) has.topic - 1];
    t->name_len = UINT32_MAX;
    inside(has.channel)->name_len = UINT32_MAX;
    CHECK_OK(answer(has.conn, NULL, &m, PN_ANSWER_REQUEUE, 0));
    t->name_len = 1;
    inside(has.channel)->name_len = 1;
    CHECK_EQ(channel_stat(has.conn, has.channel).dead_lettered, 1);
    close_all();
}

/* The word that says that there are topics; no thread of this process makes them. */
static void gets_when_there_are_no_topics(void *arg)
{
    pn_message_out m;
    (void) arg;
    make_a_topic();
    publish(has.conn, has.topic, "there");
    pn_store_relaxed(&test_inside()->ctl->topics_ready, 0);
    CHECK_EQ(pn_consumer_get(has.consumer, 0, &m), 1);
    pn_store_relaxed(&test_inside()->ctl->topics_ready, 1);
    close_all();
}

static void test_topics(void)
{
    void (*const bodies[])(void *) = {
        gets_what_never_leaves_the_timed_set, gets_beside_what_never_times_out,
        cancels_what_has_no_deliveries,       peeks_at_a_list_that_leads_round,
        deletes_among_too_many_owners,        buries_with_a_name_without_end,
        gets_when_there_are_no_topics};
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++)
        CHECK_CHILD(spawn(bodies[i], NULL), 0);
    for (int way = 0; way < 3; way++)
        CHECK_CHILD(spawn(goes_along_channels_that_lead_round, &way), 0);
}

/* ---- words that change between a look and the use of what was seen --------------------------- */

/* Where the sorting of a repair is; overwritten within a step, which looked at it when it began. */
struct place {
    uint32_t kind, cursor, doing, level;
    bool is_none;
};

static void sorts_from(void *arg)
{
    const struct place *place = arg;
    make_a_topic();
    publish(has.conn, has.topic, "1");
    publish(has.conn, has.topic, "2");
    struct pn_segment *seg = test_inside();
    struct pn_topic_repair *repair = &seg->topics.ctl->repair;
    struct pn_rebuild_step step = {.seg = seg, .at = repair, .left = 1000};
    CHECK_OK(pn_lock_acquire(seg, &test_hold, PN_LOCK_FOREVER));
    repair->kind = place->kind;
    repair->cursor = place->cursor;
    repair->sort = (struct pn_topic_sort) {.doing = place->doing, .level = place->level};
    pn_rebuild_sort_locked(&step);
    CHECK_EQ(pn_segment_check_state(seg), place->is_none ? -PN_ECORRUPT : 0);
    pn_lock_release(seg);
    close_all();
}

static void test_where_a_repair_is(void)
{
    enum { CARRYING = 2, GATHERING = 4, FAR = 1 << 28 }; /* enum doing, rebuild_sort.c */
    static const struct place places[] = {
        {.level = 0},
        {.cursor = FAR},
        {.kind = 1, .cursor = FAR},
        {.kind = 3, .cursor = FAR},
        {.kind = 7, .cursor = FAR, .is_none = true},
        {.kind = 4, .is_none = true},
        {.doing = CARRYING, .level = FAR, .is_none = true},
        {.doing = CARRYING, .level = 33, .is_none = true},
        {.doing = GATHERING, .level = FAR, .is_none = true},
        {.doing = FAR, .level = FAR},
    };
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++)
        CHECK_CHILD(spawn(sorts_from, (void *) (uintptr_t) &places[i]), 0);
}

/* What stood in the entry when it was checked, and not what stands there now. */
static void redoes_what_was_checked(void *arg)
{
    static _Alignas(8) unsigned char bytes[512];
    AsyncQueueEntry *qe = (void *) bytes;
    const struct pn_entry_extent extent = {.payload_len = sizeof(struct pn_answer_redo)};
    pn_message_out m;
    (void) arg;
    make_a_topic();
    publish(has.conn, has.topic, "flies");
    GET(has.consumer, &m, "flies");
    struct pn_segment *seg = test_inside();
    struct pn_delivery *d = pn_delivery_at(seg, seg->topics.consumer[0].first);
    const int64_t due = d->due;
    const struct pn_answer_redo redo = {
        .word = pn_load_relaxed(&d->state), .order = d->order, .due = due + 1};
    memset(bytes, 0xff, sizeof bytes); /* channel_len, too */
    qe->kind = PN_ENTRY_ANSWER;
    qe->channel_hash = seg->topics.consumer[0].first;
    qe->chan_seq = redo.word;
    memcpy(qe->data, &redo, sizeof redo);
    CHECK_OK(pn_lock_acquire(seg, &test_hold, PN_LOCK_FOREVER));
    CHECK_OK(pn_topic_redo_entry_locked(seg, qe, &extent));
    CHECK_EQ(pn_load_relaxed(&d->state), redo.word);
    CHECK_EQ(d->due, due + 1);
    d->due = due;
    pn_lock_release(seg);
    CHECK_ENGINE(has.engine);
    close_all();
}

static void test_an_entry_that_changes(void)
{
    CHECK_CHILD(spawn(redoes_what_was_checked, NULL), 0);
}

static pn_atomic_u32 over;

/* Overwriting is no part of the program, so TSan is not told. */
__attribute__((no_sanitize("thread"))) static void *flips(void *channel)
{
    const uint32_t was = *(volatile uint32_t *) channel;
    while (pn_load_relaxed(&over) == 0) {
        *(volatile uint32_t *) channel = UINT32_MAX / 256;
        *(volatile uint32_t *) channel = was;
    }
    return NULL;
}

static void checks_what_changes(void *arg)
{
    char problems[4096];
    pthread_t thread;
    (void) arg;
    make_a_topic();
    publish(has.conn, has.topic, "void");
    struct pn_segment *seg = test_inside();
    uint32_t *channel = &pn_delivery_at(seg, inside(has.channel)->first)->channel;
    CHECK_EQ(pthread_create(&thread, NULL, flips, channel), 0);
    for (int i = 0; i < 2000; i++) {
        CHECK_OK(pn_lock_acquire(seg, &test_hold, PN_LOCK_FOREVER));
        CHECK(pn_check_locked(seg, problems, sizeof problems) >= 0);
        pn_lock_release(seg);
    }
    pn_store_relaxed(&over, 1);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_ENGINE(has.engine);
    close_all();
}

static void test_a_check_of_what_changes(void)
{
    CHECK_CHILD(spawn(checks_what_changes, NULL), 0);
}

int main(void)
{
    RUN(test_ends_of_the_queue);
    RUN(test_topics);
    RUN(test_where_a_repair_is);
    RUN(test_an_entry_that_changes);
    RUN(test_a_check_of_what_changes);
    return tests_done();
}
