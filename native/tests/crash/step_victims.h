/*
 * step_victims.h - what the processes do that are killed step by step: everything before
 * step_begin() is preparation, what follows up to step_end() is gone through.  Included once.
 */
#ifndef PN_STEP_VICTIMS_H
#define PN_STEP_VICTIMS_H

#include "segment/process.h"
#include "step_scene.h"

static int64_t sleep_ns;

static void commit_victim(pn_txn *txn)
{
    CHECK_OK(pn_txn_commit(txn));
    atomic_store(&common->committed, 1);
}

static void add_notes(pn_txn *txn, const char *channel, uint32_t from, uint32_t upto, uint32_t n,
                      size_t size)
{
    for (uint32_t i = from; i < upto; i++)
        CHECK_OK(pn_txn_notify(txn, channel, strlen(channel), payload_of(TEXT, i, n, size), size));
}

/* ---- notifiers ------------------------------------------------------------------------------- */

static void notify_on(const char *channel)
{
    pn_conn *conn = test_connect(engine);
    const char *payload = payload_of(TEXT, 0, 1, 40);
    step_begin();
    CHECK_OK(pn_notify(conn, channel, 3, payload, 40));
    atomic_store(&common->committed, 1);
    step_end();
}

static void notify_all(void)
{
    notify_on("all");
}

static void notify_one(void)
{
    notify_on("one");
}

/* Five entries, one larger than a page; the head stands near the end of one; a counter. */
static void commit_many(void)
{
    pn_conn *conn = test_connect(engine);
    pn_txn *txn = test_begin(conn);
    add_notes(txn, "all", 0, 3, 5, 40);
    add_notes(txn, "all", 3, 4, 5, 8300);
    add_notes(txn, "all", 4, 5, 5, 200);
    CHECK_OK(pn_txn_bump(txn, counter));
    CHECK_OK(pn_txn_bump(txn, counter));
    step_begin();
    commit_victim(txn);
    step_end();
}

static void commit_prepared(void)
{
    pn_conn *conn = test_connect(engine);
    pn_txn *txn = test_begin(conn);
    add_notes(txn, "all", 0, 2, 2, 40);
    CHECK_OK(pn_txn_listen(txn, "own", 3));
    CHECK_OK(pn_txn_bump(txn, counter));
    step_begin();
    CHECK_OK(pn_txn_prepare(txn));
    commit_victim(txn);
    step_end();
}

static void abort_prepared(void)
{
    pn_conn *conn = test_connect(engine);
    pn_txn *txn = test_begin(conn);
    add_notes(txn, "all", 0, 2, 2, 40);
    CHECK_OK(pn_txn_listen(txn, "own", 3));
    step_begin();
    CHECK_OK(pn_txn_prepare(txn));
    pn_txn_abort(txn);
    step_end();
}

/* ---- listeners ------------------------------------------------------------------------------- */

static void wake(void *arg)
{
    uint32_t slot = (uint32_t) (uintptr_t) arg;
    pn_conn *conn = test_connect(engine);
    AWAIT(quiet(slot));
    CHECK_OK(send_note(conn, "all", FILL, 40));
    pn_conn_close(conn);
}

/* A wake-up in vain, of a neighbour that came or went, is no end of it. */
static int sleep_through(pn_conn *conn, int64_t timeout_ns)
{
    int rc;
    while ((rc = test_wait(conn, timeout_ns)) == -EINTR)
        ;
    CHECK_OK(rc);
    return rc;
}

/* A process that has slept, was woken and has read: awake, with a latch that is not set. */
static pn_conn *awake_listener(void)
{
    pn_conn *conn = test_connect(engine);
    test_listen(conn, "all");
    conn->next_timer_ns = INT64_MAX;
    pid_t pid = spawn(wake, (void *) (uintptr_t) conn->slot);
    while (sleep_through(conn, -1) != 1)
        ;
    CHECK_CHILD(pid, 0);
    CHECK_EQ(pn_poll(conn, batch, 0), 1);
    return conn;
}

static void fall_asleep(void)
{
    pn_conn *conn = awake_listener();
    step_begin();
    sleep_through(conn, sleep_ns);
    step_end();
}

static void look_and_fall_asleep(void)
{
    pn_conn *conn = awake_listener();
    step_begin();
    CHECK_EQ(pn_poll(conn, batch, 0), 0);
    step_end();
}

/* It sleeps, is un-slept and signalled, and reads: twice, the first time it is awake at the end. */
static void wake_and_read(void)
{
    pn_conn *conn = test_connect(engine);
    test_listen(conn, "all");
    CHECK_EQ(pn_poll(conn, batch, 0), 0);
    step_begin();
    CHECK_EQ(sleep_through(conn, -1), 1);
    CHECK(pn_poll(conn, batch, 1) == 1);
    CHECK_OK(pn_poll(conn, batch, 0));
    step_end();
}

static void something_to_read(void)
{
    CHECK_OK(send_note(mine, "all", FILL, 40));
    CHECK_OK(send_note(mine, "all", FILL, 40));
}

static void listen_to_two(void)
{
    pn_conn *conn = test_connect(engine);
    pn_txn *txn = test_begin(conn);
    CHECK_OK(pn_txn_listen(txn, "all", 3));
    CHECK_OK(pn_txn_listen(txn, "own", 3));
    step_begin();
    CHECK_OK(pn_txn_commit(txn));
    step_end();
}

static void unlisten_two(void)
{
    pn_conn *conn = test_connect(engine);
    test_listen(conn, "all");
    test_listen(conn, "own");
    test_listen(conn, "one");
    pn_txn *txn = test_begin(conn);
    CHECK_OK(pn_txn_unlisten(txn, "all", 3));
    step_begin();
    CHECK_OK(pn_txn_commit(txn));
    CHECK_OK(pn_txn_begin(conn, &txn));
    CHECK_OK(pn_txn_unlisten_all(txn));
    CHECK_OK(pn_txn_commit(txn));
    step_end();
}

/* ---- coming and going ------------------------------------------------------------------------ */

static void attach(void)
{
    pn_engine *again;
    pn_conn_close(mine); /* the parent's: only memory */
    pn_conn_close(ear);
    pn_conn_close(lazy);
    pn_engine_close(engine);
    CHECK(pn_first_segment() == NULL);
    step_begin();
    CHECK_OK(pn_open(segment, NULL, &again));
    test_connect(again);
    step_end();
}

static void detach(void)
{
    pn_conn *conn = test_connect(engine);
    test_listen(conn, "all");
    test_listen(conn, "own");
    pn_conn_close(mine);
    pn_conn_close(ear);
    pn_conn_close(lazy);
    step_begin();
    pn_conn_close(conn);
    pn_engine_close(engine);
    step_end();
}

static const char *created;

static void create(void)
{
    pn_options o = test_options();
    o.max_backends = 4;
    o.max_channels = 4;
    o.max_subscriptions = 4;
    o.max_generations = 4;
    step_begin();
    CHECK_OK(pn_create(created, &o));
    step_end();
}

/* Whole or not there; and nothing is in the way of the process that makes it then. */
static void check_created(void)
{
    pn_options o = test_options();
    pn_engine *other;
    CHECK_OK(pn_open(created, &o, &other));
    pn_conn *conn = test_connect(other);
    test_listen(conn, "c");
    CHECK_OK(test_notify(conn, "c", "x"));
    CHECK_POLL(conn, "x");
    CHECK_ENGINE(other);
    pn_conn_close(conn);
    pn_engine_close(other);
    test_segment_remove(created);
}

/* ---- room ------------------------------------------------------------------------------------ */

/* Three to read, of which `ear` reads one. */
static void lag_behind(void)
{
    for (int i = 0; i < 3; i++)
        CHECK_OK(send_note(mine, "all", FILL, 40));
    CHECK_EQ(pn_poll(ear, batch, 1), 1);
}

static void advance_tail(void)
{
    double usage;
    step_begin();
    CHECK_OK(pn_queue_usage(engine, &usage));
    step_end();
}

static void die_listening(void *arg)
{
    (void) arg;
    test_listen(test_connect(engine), "all");
    raise(SIGKILL);
}

/* Short of room: all of it is held by a process that has read since, and by a dead one. */
static void fill_the_ring(void)
{
    CHECK_KILLED(spawn(die_listening, NULL), SIGKILL);
    while (pn_load_relaxed(&seg->ctl->head) - pn_load_relaxed(&seg->ctl->tail) <
           seg->ring_bytes - 2 * PAGE)
        CHECK_OK(send_note(mine, "all", FILL, 8000));
    while (pn_poll(ear, batch, 0) > 0)
        ;
    AWAIT(quiet(sleeper_slot));
}

static void make_room(void)
{
    pn_conn *conn = test_connect(engine);
    pn_txn *txn = test_begin(conn);
    add_notes(txn, "all", 0, 3, 3, 8000);
    step_begin();
    commit_victim(txn);
    step_end();
}

/* ---- recovery -------------------------------------------------------------------------------- */

static void recover(void)
{
    pn_stat stat;
    step_begin();
    CHECK_OK(pn_engine_stat(engine, &stat, NULL, 0));
    step_end();
}

static bool head_is_stored(void)
{
    return pn_load_relaxed(&seg->ctl->head) != pn_load_relaxed(&seg->ctl->woken);
}

static bool index_is_dirty(void)
{
    return seg->ctl->index_dirty != 0;
}

/* ---- the scenes ------------------------------------------------------------------------------ */

static const struct scene {
    const char *name;
    void (*prepare)(void); /* in the parent, before the victim; NULL: nothing */
    void (*ready)(void);   /* in the parent, when the victim stands at the beginning */
    void (*body)(void);
    void (*check)(void);
    void (*holder)(void);      /* dies before the victim, behind the store... */
    bool (*holder_dies)(void); /* ...that makes this true, */
    size_t stored;             /* to this word of struct AsyncQueueControl, */
    size_t stored_size;        /* of so many bytes */
    uint32_t offset;           /* of the head in its page; 0: any */
    uint32_t bumped;
    int verdict;
    bool on_one; /* sends to "one" instead of "all" */
} scenes[] = {
    {.name = "notify", .body = notify_all},
    {.name = "notify-one", .prepare = go_round, .body = notify_one, .on_one = true},
    {.name = "transaction", .body = commit_many, .offset = PAGE - 240, .bumped = 2},
    {.name = "prepared", .body = commit_prepared, .bumped = 1},
    {.name = "aborted", .body = abort_prepared, .verdict = NOTHING},
    {.name = "sleep", .body = fall_asleep},
    {.name = "look", .body = look_and_fall_asleep},
    {.name = "wake", .ready = something_to_read, .body = wake_and_read},
    {.name = "listen", .body = listen_to_two},
    {.name = "unlisten", .body = unlisten_two},
    {.name = "create", .body = create, .check = check_created},
    {.name = "attach", .body = attach},
    {.name = "detach", .body = detach},
    {.name = "tail", .prepare = lag_behind, .body = advance_tail},
    {.name = "room", .prepare = fill_the_ring, .body = make_room},
    {.name = "recover-commit",
     .body = recover,
     .holder = commit_many,
     .holder_dies = head_is_stored,
     .stored = offsetof(struct AsyncQueueControl, head),
     .stored_size = 8,
     .offset = PAGE - 240,
     .bumped = 2,
     .verdict = EVERYTHING},
    {.name = "recover-listen",
     .body = recover,
     .holder = listen_to_two,
     .holder_dies = index_is_dirty,
     .stored = offsetof(struct AsyncQueueControl, index_dirty),
     .stored_size = 4},
};
enum { SCENES = sizeof scenes / sizeof scenes[0] };

#endif
