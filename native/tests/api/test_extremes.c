/*
 * What would take years, or a reckless neighbour: positions and numbers near their ends, a file
 * that is made shorter.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "engine.h"

#include <fcntl.h>
#include <signal.h>

#include "queue/queue.h"
#include "segment/process.h"

static void set_positions(struct pn_segment *seg, uint64_t pos)
{
    pn_store_relaxed(&seg->ctl->tail, pos);
    pn_store_relaxed(&seg->ctl->mem_tail, pos);
    pn_store_relaxed(&seg->ctl->woken, pos);
    pn_store_relaxed(&seg->ctl->head, pos);
}

/* The ring goes round many times, up to the last page below bit 63, which says "asleep". */
static void test_positions_near_2_to_the_63(void)
{
    const uint64_t end = 1ULL << 63, size = 4000;
    static char payload[4000];
    pn_engine *engine = test_engine(NULL);
    struct pn_segment *seg = test_inside();
    set_positions(seg, end - 16 * seg->ring_bytes);
    pn_conn *busy = test_connect(engine), *lazy = test_connect(engine);
    pn_batch *batch = pn_batch_new();
    test_listen(busy, "c");
    test_listen(lazy, "rarely");
    uint64_t last = 0, n = 0;
    while (pn_load_relaxed(&seg->ctl->head) < end - 4 * PN_QUEUE_PAGE) {
        CHECK_OK(pn_notify(lazy, "c", 1, payload, size));
        CHECK_EQ(pn_poll(busy, batch, 0), 1);
        CHECK(batch->seq[0] > last);
        last = batch->seq[0];
        if (++n % 512 == 0)
            CHECK_ENGINE(engine);
    }
    CHECK(n > 1000);
    CHECK_OK(test_notify(busy, "rarely", "woken"));
    CHECK_EQ(test_wait(lazy, -1), 1);
    CHECK_POLL(lazy, "woken");
    CHECK_EQ(test_wait(lazy, 0), 0);
    CHECK_ENGINE(engine);
    CHECK_EQ(test_stat(engine).tail, test_stat(engine).head);
    pn_batch_free(batch);
    pn_conn_close(busy);
    pn_conn_close(lazy);
    pn_engine_close(engine);
}

static void test_generations_of_slots_wrap(void)
{
    pn_engine *engine = test_engine(NULL);
    struct pn_segment *seg = test_inside();
    for (uint32_t slot = 0; slot < seg->max_backends; slot++)
        pn_store_relaxed(&seg->backend[slot].generation, UINT32_MAX - 1);
    for (int i = 0; i < 4; i++) {
        pn_conn *listener = test_connect(engine), *notifier = test_connect(engine);
        test_listen(listener, "c");
        CHECK_POLL(listener, "");
        CHECK_OK(test_notify(notifier, "c", "x"));
        CHECK_EQ(test_wait(listener, -1), 1);
        CHECK_POLL(listener, "x");
        CHECK_ENGINE(engine);
        pn_conn_close(listener);
        pn_conn_close(notifier);
    }
    pn_engine_close(engine);
}

static void test_large_commit_numbers(void)
{
    pn_engine *engine = test_engine(NULL);
    test_inside()->ctl->last_xid = UINT64_MAX - 1000;
    pn_conn *conn = test_connect(engine);
    test_listen(conn, "c");
    for (int i = 0; i < 500; i++) {
        CHECK_OK(test_notify(conn, "c", "x"));
        CHECK_POLL(conn, "x");
    }
    CHECK_ENGINE(engine);
    pn_conn_close(conn);
    pn_engine_close(engine);
}

static pn_engine *shared;
static const char *shared_name;

static void notify_once(void *arg)
{
    (void) arg;
    signal(SIGBUS, SIG_DFL); /* a sanitizer would make an error report of it */
    pn_conn *conn = test_connect(shared);
    CHECK_OK(test_notify(conn, "c", "x"));
}

/* A mapping of its own. */
static void attach_again(void *arg)
{
    pn_engine *again;
    int rc;
    (void) arg;
    pn_engine_close(shared);
    CHECK(pn_first_segment() == NULL);
    rc = pn_open(shared_name, NULL, &again);
    if (rc != -PN_ECORRUPT && rc != -PN_ELAYOUT)
        FAIL("attaching to a file that was cut: %d: %s", rc, pn_error_message());
}

/* A process that touches what is not there any more dies by SIGBUS; one that comes is refused. */
static void test_a_file_made_shorter(void)
{
    char path[128];
    pn_options o = test_options();
    shared_name = test_segment_name();
    CHECK_OK(pn_open(shared_name, &o, &shared));
    snprintf(path, sizeof path, "/pynotify.%u.%s", (unsigned) geteuid(), shared_name);
    int fd = shm_open(path, O_RDWR | O_CLOEXEC, 0);
    CHECK(fd >= 0);
    CHECK_EQ(ftruncate(fd, 2 * PN_OS_PAGE), 0);
    close(fd);
    int status = reap(spawn(notify_once, NULL));
    CHECK_EQ(status & 0x7f, SIGBUS);
    CHECK_CHILD(spawn(attach_again, NULL), 0);
    pn_engine_close(shared);
}

int main(void)
{
    RUN(test_positions_near_2_to_the_63);
    RUN(test_generations_of_slots_wrap);
    RUN(test_large_commit_numbers);
    RUN(test_a_file_made_shorter);
    return tests_done();
}
