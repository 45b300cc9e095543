/*
 * step_scene.h - what is there while a process is killed step by step, and what has to hold after
 * each kill.  Included once.
 *
 * One segment serves thousands of kills, as long as all is well with it.  Those that stay:
 *
 *     mine       a connection of this process, which notifies
 *     ear        a connection of this process, which listens to "all"
 *     lazy       a connection of this process, which listens to "one" only: where it has read up to
 *                may have been overwritten long ago
 *     sleeper    a process that listens to "all" and "one", and sleeps in pn_wait(); its slow timer
 *                is put off for ever, so that it cannot hide a lost wake-up
 *     bystander  a process that has a connection and listens to nothing: it is never signalled
 */
#ifndef PN_STEP_SCENE_H
#define PN_STEP_SCENE_H

#include <sched.h>
#include <stdatomic.h>

#include "engine.h"
#include "queue/queue.h"
#include "stepper.h"

enum { BACKENDS = 8, CHANNELS = 16, SUBSCRIPTIONS = 32, PAGE = 8192 };
enum { PATIENCE_MS = 4000, NUDGE_MS = 6 };
enum { LOG = 256, OTHERS = 5, OTHERS_SUBSCRIBE = 4 };

enum { TEXT = 1, PING, FILL };

struct note {
    uint32_t kind, kill, i, n; /* message i of the n that the victim of this kill sends */
};

static struct common {
    _Atomic(uint32_t) committed; /* the victim knows that it has */
    _Atomic(uint32_t) stray_signals;
    _Atomic(uint32_t) heard; /* of the sleeper's log */
    struct note log[LOG];
} *common;

static const char *segment;
static pn_engine *engine;
static pn_conn *mine, *ear, *lazy;
static struct pn_segment *seg;
static pid_t sleeper_pid, bystander_pid;
static uint32_t sleeper_slot, counter, this_kill;
static const char *this_scene;
static uint32_t this_point; /* instructions that the victim was left */
static uint64_t bumps;      /* of counter, by what was committed */
static pn_batch *batch;
static unsigned nudges; /* times that a second notification was needed */
static int ready[2];

#define FAIL_HERE(...)                                                                             \
    do {                                                                                           \
        fprintf(stderr, "%s, after %u instructions: ", this_scene, this_point);                    \
        FAIL(__VA_ARGS__);                                                                         \
    } while (0)

/* ---- messages -------------------------------------------------------------------------------- */

static const char *payload_of(uint32_t kind, uint32_t i, uint32_t n, size_t size)
{
    static char payload[20000];
    const struct note note = {.kind = kind, .kill = this_kill, .i = i, .n = n};
    CHECK(size <= sizeof payload && size >= sizeof note);
    memset(payload, (int) (this_kill + i), size);
    memcpy(payload, &note, sizeof note);
    return payload;
}

static int send_note(pn_conn *conn, const char *channel, uint32_t kind, size_t size)
{
    return pn_notify(conn, channel, strlen(channel), payload_of(kind, 0, 1, size), size);
}

static struct note note_at(const pn_batch *b, size_t i)
{
    struct note note;
    uint64_t size = b->offset[i + 1] - b->offset[i];
    CHECK(size >= sizeof note);
    memcpy(&note, b->data + b->offset[i], sizeof note);
    for (uint64_t at = b->offset[i] + sizeof note; at < b->offset[i + 1]; at++)
        if (b->data[at] != (uint8_t) (note.kill + note.i))
            FAIL("message %u of kill %u is garbled", note.i, note.kill);
    return note;
}

/* ---- those that stay ------------------------------------------------------------------------- */

static void sleeper(void *arg)
{
    pn_conn *conn = test_connect(engine);
    (void) arg;
    test_listen(conn, "all");
    test_listen(conn, "one");
    conn->next_timer_ns = INT64_MAX;
    test_tell(ready);
    for (;;) {
        int rc = pn_wait(conn, -1);
        CHECK(rc >= 0 || rc == -EINTR);
        CHECK_OK(pn_poll(conn, batch, 0));
        for (size_t i = 0; i < batch->n; i++) {
            uint32_t at = atomic_load(&common->heard);
            struct note note = note_at(batch, i);
            if (note.kind == FILL)
                continue;
            CHECK(at < LOG);
            common->log[at] = note;
            atomic_store(&common->heard, at + 1);
        }
    }
}

static void count_stray(int signo)
{
    (void) signo;
    atomic_fetch_add(&common->stray_signals, 1);
}

static void bystander(void *arg)
{
    (void) arg;
    test_connect(engine);
    signal(SIGUSR1, count_stray);
    test_tell(ready);
    for (;;)
        pause();
}

static void end_process(pid_t pid)
{
    kill(pid, SIGKILL);
    CHECK_KILLED(pid, SIGKILL);
}

static void open_scene(void)
{
    pn_options o = test_options();
    o.max_backends = BACKENDS;
    o.max_channels = CHANNELS;
    o.max_subscriptions = SUBSCRIPTIONS;
    o.max_generations = 4;
    o.max_payload = 20000;
    segment = test_segment_name();
    bumps = 0;
    CHECK_EQ(pipe(ready), 0);
    CHECK_OK(pn_open(segment, &o, &engine));
    seg = test_inside();
    batch = pn_batch_new();
    sleeper_pid = spawn(sleeper, NULL);
    test_hear(ready);
    sleeper_slot = 0;
    CHECK_EQ(seg->backend[sleeper_slot].pid, sleeper_pid);
    bystander_pid = spawn(bystander, NULL);
    test_hear(ready);
    mine = test_connect(engine);
    ear = test_connect(engine);
    test_listen(ear, "all");
    ear->next_timer_ns = INT64_MAX;
    lazy = test_connect(engine);
    test_listen(lazy, "one");
    lazy->next_timer_ns = INT64_MAX;
    CHECK_OK(pn_generation(mine, "counter", 7, &counter));
}

static void close_scene(void)
{
    end_process(sleeper_pid);
    end_process(bystander_pid);
    pn_conn_close(mine);
    pn_conn_close(ear);
    pn_conn_close(lazy);
    pn_engine_close(engine);
    pn_batch_free(batch);
    close(ready[0]);
    close(ready[1]);
    test_segments_remove();
}

/* ---- before a kill --------------------------------------------------------------------------- */

static bool quiet(uint32_t slot)
{
    uint64_t pos = pn_load_acquire(&seg->backend[slot].pos);
    return (pos & PN_ASLEEP) != 0 && pn_load_acquire(&seg->backend[slot].want) <= (pos ^ PN_ASLEEP);
}

#define AWAIT(cond)                                                                                \
    do {                                                                                           \
        for (int64_t until_ = test_now_ns() + PATIENCE_MS * INT64_C(1000000); !(cond);) {          \
            if (test_now_ns() > until_)                                                            \
                FAIL_HERE("not within %d ms: %s", PATIENCE_MS, #cond);                             \
            sched_yield();                                                                         \
        }                                                                                          \
    } while (0)

/* Everything in the ring is overwritten, with what `ear` and the sleeper have read. */
static void go_round(void)
{
    for (uint64_t done = 0; done <= seg->ring_bytes; done += PAGE) {
        CHECK_OK(send_note(mine, "all", FILL, 8000));
        while (pn_poll(ear, batch, 0) > 0)
            ;
        if (done / PAGE % 32 == 0)
            AWAIT(quiet(sleeper_slot));
    }
    AWAIT(quiet(sleeper_slot));
}

/* The sleeper sleeps, `ear` is armed, and the head stands `offset` bytes into a page. */
static void settle_scene(uint32_t offset)
{
    uint64_t head = pn_load_relaxed(&seg->ctl->head);
    uint32_t at = QUEUE_POS_OFFSET(head);
    uint32_t header = (uint32_t) pn_entry_length(3, sizeof(struct note));
    while (offset != 0 && at != offset) {
        uint32_t gap = at < offset ? offset - at : PAGE - at;
        uint32_t length = gap < header ? header : gap; /* header: once more round, then */
        CHECK_OK(send_note(mine, "all", FILL, length - header + sizeof(struct note)));
        at = QUEUE_POS_OFFSET(pn_load_relaxed(&seg->ctl->head));
    }
    while (pn_poll(ear, batch, 0) > 0 || pn_poll(lazy, batch, 0) > 0)
        ;
    AWAIT(quiet(sleeper_slot));
    CHECK(quiet(ear->slot));
    atomic_store(&common->heard, 0);
    atomic_store(&common->committed, 0);
}

/* ---- after a kill ---------------------------------------------------------------------------- */

/* How many of the victim's n messages are in a log that ends with the ping. */
static uint32_t count_notes(const char *whose, const struct note *log, uint32_t used)
{
    for (uint32_t i = 0; i + 1 < used; i++) {
        if (log[i].kind != TEXT || log[i].kill != this_kill || log[i].i != i)
            FAIL_HERE("%s got message %u of kill %u in place %u", whose, log[i].i, log[i].kill, i);
        if (log[i].n != used - 1)
            FAIL_HERE("%s got %u of %u messages", whose, used - 1, log[i].n);
    }
    CHECK(used >= 1 && log[used - 1].kind == PING && log[used - 1].kill == this_kill);
    return used - 1;
}

static uint32_t heard_by_ear(void)
{
    struct note log[LOG];
    uint32_t used = 0;
    CHECK_OK(pn_poll(ear, batch, 0));
    for (size_t i = 0; i < batch->n; i++) {
        struct note note = note_at(batch, i);
        if (note.kind == FILL)
            continue;
        CHECK(used < LOG);
        log[used++] = note;
    }
    return count_notes("the listener", log, used);
}

static uint32_t heard_by_lazy(void)
{
    CHECK_OK(pn_poll(lazy, batch, 0));
    uint32_t n = (uint32_t) batch->n;
    for (uint32_t i = 0; i < n; i++) {
        struct note note = note_at(batch, i);
        CHECK(note.kind == TEXT && note.kill == this_kill && note.i == i && note.n == n);
    }
    CHECK_EQ(pn_poll(lazy, batch, 0), 0); /* and sleeps */
    return n;
}

static bool sleeper_has_ping(void)
{
    uint32_t n = atomic_load(&common->heard);
    return n > 0 && common->log[n - 1].kind == PING;
}

/*
 * A notifier that dies between un-sleeping and signalling leaves it owed; the next one signals
 * again, but not before it is 10 ms old.  So the next one comes every few ms.
 */
static uint32_t heard_by_sleeper(void)
{
    int64_t began = test_now_ns(), nudge = began + NUDGE_MS * 1000000;
    while (!sleeper_has_ping()) {
        int64_t now = test_now_ns();
        if (now - began > PATIENCE_MS * INT64_C(1000000))
            FAIL_HERE("the sleeper is not woken");
        if (now > nudge) {
            CHECK_OK(send_note(mine, "all", FILL, 40));
            nudge = now + NUDGE_MS * 1000000;
            nudges++;
        }
        sched_yield();
    }
    return count_notes("the sleeper", common->log, atomic_load(&common->heard));
}

/* Everything that is not used by those that stay can be had. */
static void check_all_is_to_be_had(void)
{
    pn_conn *more[BACKENDS - OTHERS];
    uint32_t left = SUBSCRIPTIONS - OTHERS_SUBSCRIBE;
    char name[16];
    for (int i = 0; i < BACKENDS - OTHERS; i++) {
        more[i] = test_connect(engine);
        pn_txn *txn = test_begin(more[i]);
        for (int k = 0; k < CHANNELS - 2 && left > 0; k++, left--) {
            int len = snprintf(name, sizeof name, "leak%d", k);
            CHECK_OK(pn_txn_listen(txn, name, (size_t) len));
        }
        CHECK_OK(pn_txn_commit(txn));
    }
    CHECK_EQ(left, 0);
    CHECK_ENGINE(engine);
    for (int i = 0; i < BACKENDS - OTHERS; i++)
        pn_conn_close(more[i]);
}

/* A repairer has to wake the sleeper as well; the next notification would hide it if not. */
static void recover_without_notifying(void)
{
    uint64_t recoveries = pn_load_relaxed(&seg->ctl->locked.recoveries);
    CHECK_OK(pn_lock_acquire(seg, &test_hold, PN_LOCK_TIMEOUT_NS));
    pn_lock_release(seg);
    if (pn_load_relaxed(&seg->ctl->locked.recoveries) != recoveries)
        AWAIT(quiet(sleeper_slot));
}

enum { NOTHING = -1, EITHER = 0, EVERYTHING = 1 };

/* Ends with 1 if what the victim sent was committed, else 0. */
static uint32_t check_scene(uint32_t bumped, int verdict, bool on_one)
{
    pn_stat stat;
    recover_without_notifying();
    CHECK_OK(send_note(mine, "all", PING, 40));
    uint32_t by_sleeper = heard_by_sleeper(), by_ear = heard_by_ear();
    if (by_ear != (on_one ? 0 : by_sleeper))
        FAIL_HERE("the listener got %u messages, the sleeper %u", by_ear, by_sleeper);
    CHECK_EQ(heard_by_lazy(), on_one ? by_sleeper : 0);
    if (verdict == EVERYTHING && by_sleeper == 0)
        FAIL_HERE("what was committed is lost");
    if (verdict == NOTHING && by_sleeper != 0)
        FAIL_HERE("what was not committed was delivered");
    bumps += by_sleeper != 0 ? bumped : 0;
    CHECK_EQ(pn_generation_value(engine, counter), bumps);
    AWAIT(quiet(sleeper_slot));
    CHECK_OK(pn_engine_stat(engine, &stat, NULL, 0)); /* reaps */
    CHECK_EQ(stat.backends, OTHERS);
    CHECK_EQ(stat.subscriptions, OTHERS_SUBSCRIBE);
    CHECK_EQ(stat.generations, 1);
    CHECK_EQ(seg->ctl->reserved, 0);
    while (pn_poll(ear, batch, 0) > 0)
        ;
    CHECK_OK(pn_engine_stat(engine, &stat, NULL, 0));
    CHECK_EQ(stat.tail, stat.head);
    CHECK_ENGINE(engine);
    CHECK_EQ(atomic_load(&common->stray_signals), 0);
    return by_sleeper != 0;
}

#endif
