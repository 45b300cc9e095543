/* listening.h - processes that listen to "c" and sleep until this one notifies. */
#ifndef PN_TESTS_LISTENING_H
#define PN_TESTS_LISTENING_H

#include "children.h"
#include "sleepers.h"

static inline void notify(const char *payload)
{
    CHECK_OK(test_notify(mine, "c", payload));
}

/* A listener whose slow timer never comes: it wakes by a signal, or not at all. */
static inline pn_conn *listening(int signo)
{
    pn_conn *conn;
    CHECK_OK(pn_connect(engine, "db", 2, signo, NULL, &conn));
    test_listen(conn, "c");
    conn->next_timer_ns = INT64_MAX;
    CHECK_POLL(conn, "");
    return conn;
}

static inline void wait_for(pn_conn *conn, const char *payload)
{
    int rc;
    conn->next_timer_ns = INT64_MAX;
    while ((rc = test_wait(conn, -1)) != 1)
        CHECK_EQ(rc, -EINTR);
    CHECK_POLL(conn, payload);
    CHECK_POLL(conn, "");
}

/* Until it is killed; `arg`: the program has ignored SIGUSR1. */
static inline void plain_listener(void *arg)
{
    pn_conn *conn;
    if (arg != NULL)
        signal(SIGUSR1, SIG_IGN);
    conn = listening(0);
    test_tell(up);
    for (;;)
        wait_for(conn, "x");
}

#endif
