/* neighbours.h - a connection that watches, and processes that it watches. */
#ifndef PN_TEST_NEIGHBOURS_H
#define PN_TEST_NEIGHBOURS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "children.h"
#include "sleepers.h"

#include <sys/timerfd.h>

static bool watches(uint32_t i)
{
    return pn_slot_watches(slot(i));
}

static bool sees(const pn_conn *conn, pid_t pid)
{
    for (uint32_t k = 0; k < conn->watch.n; k++)
        if (conn->watch.neighbour[k].pid == pid && !conn->watch.neighbour[k].dead)
            return true;
    return false;
}

/* ---- neighbours: processes that do nothing until they are told to end ------------------------ */

static void neighbour(void *arg)
{
    pn_conn *conn = test_connect(engine);
    if (arg != NULL)
        test_listen(conn, "c");
    test_tell(up);
    if (arg == NULL)
        pause();
    no_slow_timer(conn);
    for (;;) {
        int rc = test_wait(conn, -1);
        CHECK(rc == 1 || rc == -EINTR);
        pn_batch *batch = pn_batch_new();
        CHECK_OK(pn_poll(conn, batch, 0));
        pn_batch_free(batch);
    }
}

static pid_t start(bool listens)
{
    pid_t pid = spawn(neighbour, listens ? &engine : NULL);
    test_hear(up);
    uint32_t i = 0;
    while (!claimed(i) || pn_load_relaxed(&slot(i)->pid) != pid)
        i++;
    if (listens)
        CHECK_SOON(watches(i) && asleep(i));
    return pid;
}

static void end_process(pid_t pid)
{
    kill(pid, SIGKILL);
    CHECK_KILLED(pid, SIGKILL);
}

/* A listener of this process that has walked, and watches. */
static pn_conn *watcher(void)
{
    pn_conn *conn = test_connect(engine);
    test_listen(conn, "c");
    no_slow_timer(conn);
    CHECK_EQ(test_wait(conn, 0), 0);
    return conn;
}

static void walk_again(pn_conn *conn)
{
    int rc = test_wait(conn, 1000000); /* it looks at its neighbours when it blocks */
    CHECK(rc == 0 || rc == -EINTR);
}

#endif
