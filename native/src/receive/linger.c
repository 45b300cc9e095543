/*
 * linger.c - what a listener does before it sleeps: looking for a while, and letting others run.
 *
 * A sleep costs the next notifier a signal and the listener a wake-up.  Where the next message is
 * near it is cheaper to wait for it awake; how near it was lately decides.
 */
#define _GNU_SOURCE
#include "receive/linger.h"

#include <sched.h>

#include "base/os.h"
#include "receive/read.h"
#include "receive/receive.h"

#define PN_SPIN_MIN_NS    2000LL
#define PN_SPIN_REST      64       /* waits without it after it brought nothing */
#define PN_STREAM_GAP_NS  500000LL /* messages that come faster than this are a stream */
#define PN_YIELD_ALONE_NS 3000LL   /* a yield that took less found no other thread to run */
#define PN_YIELDS         8

/* Awake, and nothing is wanted: with a processor to spare it may pay to look for a while. */
static bool spin(struct pn_conn *conn)
{
    uint32_t skip = pn_load_relaxed(&conn->spin_skip);
    int64_t budget = (int64_t) pn_load_relaxed(&conn->spin_ns);
    if (pn_os_cpus() < 2)
        return false;
    if (skip > 0) {
        pn_store_relaxed(&conn->spin_skip, skip - 1);
        return false;
    }
    int64_t until = pn_now_ns() + budget;
    do {
        for (int i = 0; i < 32; i++) {
            pn_cpu_relax();
            if (pn_readable(conn, pn_load_relaxed(&conn->me->pos))) {
                budget = budget * 2 < PN_SPIN_MAX_NS ? budget * 2 : PN_SPIN_MAX_NS;
                pn_store_relaxed(&conn->spin_ns, (uint64_t) budget);
                return pn_receive_wanted(conn);
            }
        }
    } while (pn_now_ns() < until);
    budget = budget / 2 > PN_SPIN_MIN_NS ? budget / 2 : PN_SPIN_MIN_NS;
    pn_store_relaxed(&conn->spin_ns, (uint64_t) budget);
    pn_store_relaxed(&conn->spin_skip, budget == PN_SPIN_MIN_NS ? PN_SPIN_REST : 0);
    return false;
}

/*
 * In a stream of messages, on processors that others want as well: let them run first.  A
 * listener that sleeps costs the notifier a signal; a hundred that read one message each and
 * sleep again cost it a hundred signals for every message, and it never gets ahead.  Ended by a
 * yield that comes back at once, since then no other thread has anything to do.
 */
static bool give_way(struct pn_conn *conn)
{
    if ((int64_t) pn_load_relaxed(&conn->gap_ns) > PN_STREAM_GAP_NS)
        return false;
    for (int i = 0; i < PN_YIELDS; i++) {
        int64_t before = pn_now_ns();
        sched_yield();
        if (pn_receive_wanted(conn))
            return true;
        if (pn_now_ns() - before < PN_YIELD_ALONE_NS)
            return false;
    }
    return false;
}

bool pn_linger(struct pn_conn *conn)
{
    if ((pn_load_relaxed(&conn->me->pos) & PN_ASLEEP) != 0)
        return false;
    return spin(conn) || give_way(conn);
}

void pn_linger_note_gap(struct pn_conn *conn, int64_t gap_ns)
{
    int64_t old = (int64_t) pn_load_relaxed(&conn->gap_ns);
    pn_store_relaxed(&conn->gap_ns, (uint64_t) (old + (gap_ns - old) / 4));
}
