/*
 * A large backlog is read and given up in pieces; what a poll takes is all that was committed
 * before it, and a piece that cannot be given up takes nothing that was given up before with it.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "engine.h"

#include "queue/queue.h"
#include "receive/read.h"

static pn_engine *engine;
static pn_conn *sender, *listener;
static pn_batch *batch;

static void begin(void)
{
    pn_options options = test_options();
    options.queue_pages = 1024;
    engine = test_engine(&options);
    sender = test_connect(engine);
    listener = test_connect(engine);
    test_listen(listener, "c");
    CHECK_POLL(listener, "");
    batch = pn_batch_new();
}

static void end(void)
{
    CHECK_ENGINE(engine);
    pn_batch_free(batch);
    pn_conn_close(listener);
    pn_conn_close(sender);
    pn_engine_close(engine);
}

static void send(uint32_t from, uint32_t to)
{
    char payload[500] = "";
    for (uint32_t i = from; i < to; i++) {
        memcpy(payload, &i, sizeof i);
        CHECK_OK(pn_notify(sender, "c", 1, payload, sizeof payload));
    }
}

static uint32_t number_of(size_t i)
{
    uint32_t number;
    memcpy(&number, batch->data + batch->offset[i], sizeof number);
    return number;
}

static void test_many_pieces_are_one_batch(void)
{
    begin();
    uint32_t many = (uint32_t) (test_inside()->ring_bytes / 2 / 600);
    CHECK(many > 5000); /* several pieces of 256 KiB */
    send(0, many);
    CHECK(pn_conn_unread(listener) > 500ULL * many);
    CHECK_EQ(pn_poll(listener, batch, 0), many);
    for (uint32_t i = 0; i < many; i++)
        CHECK_EQ(number_of(i), i);
    CHECK_EQ(pn_conn_unread(listener), 0);
    CHECK_EQ(pn_poll(listener, batch, 0), 0);
    send(0, 3000);
    CHECK_EQ(pn_poll(listener, batch, 2000), 2000);
    CHECK_EQ(number_of(1999), 1999);
    batch->max_data = 300000; /* a message more, and no piece more */
    CHECK_EQ(pn_poll(listener, batch, 0), 600);
    batch->max_data = 0;
    CHECK_EQ(pn_poll(listener, batch, 0), 400);
    CHECK_EQ(number_of(399), 2999);
    end();
}

static void test_a_piece_ends_behind_an_entry(void)
{
    begin();
    send(0, 3);
    QueuePosition pos = pn_load_relaxed(&listener->me->pos) & ~PN_ASLEEP, stood = pos;
    QueuePosition head = pn_load_relaxed(&test_inside()->ctl->head);
    CHECK_EQ(pn_read_entries(listener, batch, &pos, head, UINT64_MAX, 1), 0);
    CHECK_EQ(batch->n, 1);
    CHECK(pos > stood && pos < head);
    CHECK_EQ(pn_read_entries(listener, batch, &pos, head, UINT64_MAX, UINT64_MAX), 0);
    CHECK_EQ(batch->n, 3);
    CHECK_EQ(pos, head);
    CHECK_EQ(pn_poll(listener, batch, 0), 3); /* nothing was given up */
    end();
}

/* As it is when an earlier owner of the slot, which does not know yet, puts it to sleep. */
static void test_what_was_given_up_stays(void)
{
    begin();
    send(0, 3);
    QueuePosition stood = pn_load_relaxed(&listener->me->pos), pos = stood & ~PN_ASLEEP;
    QueuePosition head = pn_load_relaxed(&test_inside()->ctl->head);
    CHECK_EQ(pn_read_entries(listener, batch, &pos, head, 2, UINT64_MAX), 0);
    const struct pn_read_mark two = {.n = 2};
    CHECK_EQ(pn_read_entries(listener, batch, &pos, head, 3, UINT64_MAX), 0);
    CHECK_EQ(batch->n, 3);
    CHECK_EQ(pn_read_move(listener, batch, &two, stood ^ PN_ASLEEP, pos), -EAGAIN);
    CHECK_EQ(batch->n, 2);
    CHECK_EQ(pn_load_relaxed(&listener->me->pos), stood);
    const struct pn_read_mark none = {0};
    CHECK_EQ(pn_read_move(listener, batch, &none, stood ^ PN_ASLEEP, pos), -EAGAIN);
    CHECK_EQ(batch->n, 0);
    CHECK_EQ(pn_poll(listener, batch, 0), 3);
    end();
}

int main(void)
{
    test_watchdog(60);
    RUN(test_many_pieces_are_one_batch);
    RUN(test_a_piece_ends_behind_an_entry);
    RUN(test_what_was_given_up_stays);
    return tests_done();
}
