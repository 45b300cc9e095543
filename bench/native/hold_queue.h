/* hold_queue.h - scenarios of bench_hold: the tables of channels, and the queue. */
#ifndef HOLD_QUEUE_H
#define HOLD_QUEUE_H

#include "hold_rig.h"

#include "backend/channel.h"
#include "queue/queue.h"

enum { CHANNELS = 16000, LAGGARDS = 1000 };
enum { RING_PAGES = 64, PAYLOAD = 7000 }; /* of a queue that is to be full; about a page each */

/* ---- the core: one connection with 16,000 channels ------------------------------------------- */

static void open_for_channels(void)
{
    pn_options o;
    pn_options_default(&o);
    o.max_channels = o.max_subscriptions = 16384;
    open_hold(&o);
}

static void listen_to_channels(pn_conn *own)
{
    char name[16];
    for (int i = 0; i < CHANNELS; i++) {
        snprintf(name, sizeof name, "c%d", i);
        listen_to(own, name);
    }
}

static struct result unlisten_all(void)
{
    pn_txn *txn;
    open_for_channels();
    listen_to_channels(conn);
    begin_watching(conn, engine);
    must(pn_txn_begin(conn, &txn), "begin");
    must(pn_txn_unlisten_all(txn), "unlisten_all");
    must(pn_txn_commit(txn), "commit");
    return finish();
}

/* The tables of a segment are never written before. */
static struct result first_listen(void)
{
    pn_options o;
    pn_options_default(&o);
    o.max_channels = o.max_subscriptions = 1 << 20;
    open_hold(&o);
    begin_watching(conn, engine);
    listen_to(conn, "c");
    return finish();
}

/* And the LISTENs themselves. */
static struct result connecting(void)
{
    open_for_channels();
    begin_watching(conn, engine);
    pn_conn *own = connect_to(engine);
    listen_to_channels(own);
    struct result r = end_watching();
    pn_conn_close(own);
    close_hold();
    return r;
}

static struct result closing(void)
{
    open_for_channels();
    pn_conn *own = connect_to(engine);
    listen_to_channels(own);
    begin_watching(conn, engine);
    pn_conn_close(own);
    return finish();
}

static void listen_and_die(int socket, void *arg)
{
    (void) socket;
    listen_to_channels(connect_to(arg));
    kill(getpid(), SIGKILL);
}

static struct result reaping_a_listener(void)
{
    pn_stat stat;
    open_for_channels();
    place_bystander(engine);
    wait_for_death(start_child(listen_and_die, engine));
    begin_watching(conn, engine);
    must(pn_engine_stat(engine, &stat, NULL, 0), "stat"); /* it looks which backends are dead */
    struct result r = end_watching();
    must(pn_engine_stat(engine, &stat, NULL, 0), "stat");
    if (stat.subscriptions != 0)
        die("%u subscriptions of a dead process are left", (unsigned) stat.subscriptions);
    close_hold();
    return r;
}

/* As if killed in the middle of a LISTEN: the successor builds the table of channels again. */
static void die_in_listen(int socket, void *arg)
{
    struct pn_hold hold;
    pn_conn *own = connect_to(arg);
    (void) socket;
    must(pn_lock_acquire(own->seg, &hold, PN_LOCK_FOREVER), "lock");
    own->seg->ctl->index_dirty = 1;
    kill(getpid(), SIGKILL);
}

static struct result recovery_of_the_table(void)
{
    open_for_channels();
    listen_to_channels(conn);
    place_bystander(engine);
    wait_for_death(start_child(die_in_listen, engine));
    begin_watching(conn, engine);
    must(pn_notify(conn, "c1", 2, "x", 1), "notify");
    return finish();
}

/* ---- the core: 1,000 listeners --------------------------------------------------------------- */

static char payload[PAYLOAD];

static void open_for_listeners(int on_full, uint32_t max_queue_pages)
{
    pn_options o;
    pn_options_default(&o);
    o.queue_pages = RING_PAGES;
    o.max_queue_pages = max_queue_pages;
    o.max_backends = LAGGARDS + 10;
    o.on_full = (uint32_t) on_full;
    if (max_queue_pages != 0)
        snprintf(o.data_dir, sizeof o.data_dir, "%s", directory);
    open_hold(&o);
    memset(payload, 'x', sizeof payload);
}

static void notify_pages(int n)
{
    for (int i = 0; i < n; i++)
        must(pn_notify(conn, "c", 1, payload, sizeof payload), "notify");
}

static void laggards(int socket, void *arg)
{
    for (int i = 0; i < LAGGARDS; i++)
        listen_to(connect_to(arg), "c");
    tell(socket, 0);
    for (;;)
        pause();
}

static child start_laggards(void)
{
    child c = start_child(laggards, engine);
    hear(c.socket);
    return c;
}

static struct result full_queue(void)
{
    double usage;
    pn_stat stat;
    open_for_listeners(PN_FULL_ERROR, 0);
    child c = start_laggards();
    begin_watching(conn, engine);
    for (int i = 0; i < 200; i++)
        (void) pn_notify(conn, "c", 1, payload, sizeof payload);
    must(pn_queue_usage(engine, &usage), "queue_usage");
    must(pn_engine_stat(engine, &stat, NULL, 0), "stat");
    struct result r = end_watching();
    kill_child(c);
    close_hold();
    return r;
}

static struct result eviction(void)
{
    open_for_listeners(PN_FULL_DROP_SLOWEST, 0);
    child c = start_laggards();
    begin_watching(conn, engine);
    notify_pages(4 * RING_PAGES);
    struct result r = end_watching();
    kill_child(c);
    close_hold();
    return r;
}

/* Also with a transaction of many pages, all of which go to files at once. */
static struct result spilling(int pages_at_once)
{
    pn_stat stat;
    pn_txn *txn;
    open_for_listeners(PN_FULL_ERROR, 32 * RING_PAGES);
    listen_to(conn, "c");
    begin_watching(conn, engine);
    for (int done = 0; done < 16 * RING_PAGES; done += pages_at_once) {
        must(pn_txn_begin(conn, &txn), "begin");
        for (int i = 0; i < pages_at_once; i++) {
            memcpy(payload, &i, sizeof i); /* PostgreSQL's rule: the same twice is sent once */
            must(pn_txn_notify(txn, "c", 1, payload, sizeof payload), "notify");
        }
        must(pn_txn_commit(txn), "commit");
    }
    struct result r = end_watching();
    must(pn_engine_stat(engine, &stat, NULL, 0), "stat");
    if (stat.spilled_pages == 0)
        die("nothing went to files");
    close_hold();
    empty_directory();
    return r;
}

/* A file has 32 pages; the listener that was behind leaves, and none is needed any more. */
static struct result removing_files(void)
{
    pn_stat stat;
    uint32_t pages = 32 * (quick ? 128 : 1024);
    open_for_listeners(PN_FULL_ERROR, pages + 2 * RING_PAGES);
    pn_conn *own = connect_to(engine);
    listen_to(own, "c");
    notify_pages((int) (pages + RING_PAGES));
    must(pn_engine_stat(engine, &stat, NULL, 0), "stat");
    if (stat.spilled_pages < pages)
        die("only %llu pages went to files", (unsigned long long) stat.spilled_pages);
    begin_watching(conn, engine);
    pn_conn_close(own);
    return finish();
}

static struct result spilling_pages(void)
{
    return spilling(1);
}

static struct result spilling_much(void)
{
    return spilling(RING_PAGES / 2);
}

/* All are connections of this process, so that their reading is watched, too. */
static struct result tail_advance(void)
{
    static pn_conn *reader[LAGGARDS];
    pn_batch *batch = pn_batch_new();
    open_for_listeners(PN_FULL_ERROR, 0);
    for (int i = 0; i < LAGGARDS; i++)
        listen_to(reader[i] = connect_to(engine), "c");
    begin_watching(conn, engine);
    for (int round = 0; round < 8; round++) {
        notify_pages(RING_PAGES / 4);
        for (int i = 0; i < LAGGARDS; i++)
            if (must(pn_poll(reader[i], batch, 0), "poll") < RING_PAGES / 4)
                die("a reader misses some");
    }
    struct result r = end_watching();
    for (int i = 0; i < LAGGARDS; i++)
        pn_conn_close(reader[i]);
    pn_batch_free(batch);
    close_hold();
    return r;
}

static void *sleep_in_wait(void *arg)
{
    (void) pn_wait(arg, -1);
    return NULL;
}

static void sleepers(int socket, void *arg)
{
    pthread_t thread;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 1 << 16);
    for (int i = 0; i < LAGGARDS; i++) {
        pn_conn *own = connect_to(arg);
        listen_to(own, "c");
        if (pthread_create(&thread, &small, sleep_in_wait, own) != 0)
            die("no thread");
    }
    tell(socket, 0);
    for (;;)
        pause();
}

static int asleep(void)
{
    int n = 0;
    const struct pn_segment *seg = conn->seg;
    for (uint32_t slot = 0; slot < seg->max_backends; slot++)
        n += (pn_load_relaxed(&seg->backend[slot].pos) & PN_ASLEEP) != 0 &&
             seg->backend[slot].numSubs != 0;
    return n;
}

/* A commit of one page, as far as its head; nothing is told of it, and no listener is woken. */
static void die_in_commit(int socket, void *arg)
{
    struct pn_hold hold;
    pn_conn *own = connect_to(arg);
    struct pn_segment *seg = own->seg;
    (void) socket;
    must(pn_lock_acquire(seg, &hold, PN_LOCK_FOREVER), "lock");
    const struct pn_entry_stamp stamp = {.xid = seg->ctl->last_xid + 1,
                                         .now = now_ns(),
                                         .dboid = own->dboid,
                                         .pid = own->pid,
                                         .slot = own->slot,
                                         .generation = own->generation};
    const struct pn_new_entry entry = {.kind = PN_ENTRY_NOTIFY,
                                       .channel = "c",
                                       .payload = payload,
                                       .channel_len = 1,
                                       .payload_len = PAYLOAD,
                                       .channel_hash =
                                           (uint32_t) pn_channel_hash(own->dboid, "c", 1)};
    QueuePosition end =
        pn_queue_append_locked(seg, pn_load_relaxed(&seg->ctl->head), &stamp, &entry);
    pn_store_release(&seg->ctl->head, end);
    kill(getpid(), SIGKILL);
}

static struct result recovery_of_a_commit(void)
{
    open_for_listeners(PN_FULL_ERROR, 0);
    child listeners = start_child(sleepers, engine);
    hear(listeners.socket);
    while (asleep() < LAGGARDS)
        usleep(1000);
    place_bystander(engine);
    wait_for_death(start_child(die_in_commit, engine));
    uint64_t before = pn_load_relaxed(&conn->seg->ctl->locked.recoveries);
    begin_watching(conn, engine);
    must(pn_notify(conn, "c", 1, "x", 1), "notify");
    struct result r = end_watching();
    if (pn_load_relaxed(&conn->seg->ctl->locked.recoveries) != before + 1)
        die("there was no recovery");
    kill_child(listeners);
    close_hold();
    return r;
}

#endif
