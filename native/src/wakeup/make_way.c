/* make_way.c - see make_way.h. */
#define _GNU_SOURCE
#include "wakeup/make_way.h"

#include <sched.h>

#include "base/os.h"

void pn_make_way(void)
{
    pn_os_refresh_cpus(); /* an affinity may have changed; small beside the signal */
    if (pn_os_cpus() == 1)
        sched_yield();
}

void pn_make_way_for_consumers(struct pn_conn *conn)
{
    int64_t now = pn_now_ns();
    if (now - (int64_t) pn_exchange(&conn->last_wake_ns, (uint64_t) now) >= PN_STREAM_NS)
        pn_make_way();
}
