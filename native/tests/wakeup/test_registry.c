/* The table of a process's connections, which the handler walks. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "engine.h"

#include "wakeup/handlers.h"
#include "wakeup/procsignal.h"

enum { TABLE = 65536 };

/* Another process's, to which the handler does nothing: it may stand in the table many times. */
static struct pn_conn *no_slot[1];
static struct pn_segment nowhere = {.signal_mutex = PTHREAD_MUTEX_INITIALIZER, .own = no_slot};
static struct pn_conn filler = {.seg = &nowhere};

/* Does the handler find the connection? */
static bool is_found(pn_conn *conn)
{
    CHECK_OK(pn_handler_arm(conn));
    pn_store_relaxed(&conn->me->pss_signalFlags[PROCSIG_NOTIFY_INTERRUPT], 1);
    raise(SIGUSR1);
    return pn_load_relaxed(&conn->me->pss_signalFlags[PROCSIG_NOTIFY_INTERRUPT]) == 0;
}

static void test_one_connection_more_than_there_is_room_for(void)
{
    pn_engine *engine = test_engine(NULL);
    pn_conn *first = test_connect(engine), *more = NULL;
    while (pn_procsignal_register(&filler) == 0)
        CHECK(filler.local_index < TABLE);
    CHECK(strstr(pn_error_message(), "too many connections in this process") != NULL);
    CHECK_EQ(pn_connect(engine, "db", 2, 0, NULL, &more), -PN_EBACKENDS);
    CHECK(strstr(pn_error_message(), "65536") != NULL);
    CHECK_EQ(test_stat(engine).backends, 1);
    CHECK(is_found(first));

    filler.local_index = 7; /* of all indices, so that a search has to find it */
    pn_procsignal_hide(&filler);
    more = test_connect(engine);
    CHECK_EQ(more->local_index, 7);
    CHECK(is_found(more));
    for (uint32_t i = 1; i < TABLE; i++)
        if (i != more->local_index) {
            filler.local_index = i;
            pn_procsignal_hide(&filler);
        }
    pn_conn_close(first);
    CHECK(is_found(more));
    pn_conn_close(more);
    CHECK_ENGINE(engine);
    pn_engine_close(engine);
}

int main(void)
{
    test_watchdog(60);
    RUN(test_one_connection_more_than_there_is_room_for);
    return tests_done();
}
