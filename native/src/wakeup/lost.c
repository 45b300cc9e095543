/*
 * lost.c - descriptors that the program has closed, although they are ours.
 *
 * 1. A program that becomes a daemon closes every descriptor, and goes on with a connection that
 *    was there before.  Latches, sets and pidfds are gone then; their numbers are free, or those of
 *    other files, the program's or our own: those of one connection may be made again under the
 *    numbers that another one had.  So when one is missed, all connections of the process are
 *    looked at before any is made.
 * 2. Missed they are when a sleep fails, since its set is none, and when the lock file's number is
 *    found to be another's, which a sleeper looks at in any case.
 * 3. A set is known by its members and their data, a latch by its kind and by being in a set.  If
 *    one of a connection's is not ours, then all of it counts as lost, but for what fileno() gave
 *    out.  Nothing lost is closed: it is closed already, or is not ours.  Of a program that closes
 *    some, and not others, those stay open for good.
 * 4. What is lost here is only forgotten; -1 is what it was before its first use.  The watch is
 *    marked, since its owner changes it under recv_mutex, and begins again at its next walk.  A
 *    thread that sleeps meanwhile, on a set that is kept by its sleep alone, is woken by its slow
 *    timer at the latest.
 * 5. What fileno() gave out cannot be had again: a loop of the program's waits for the old one.
 */
#define _GNU_SOURCE
#include "wakeup/lost.h"

#include <errno.h>

#include "backend/backend.h"
#include "base/os.h"
#include "segment/process.h"
#include "wakeup/latch.h"
#include "wakeup/procsignal.h"

static pn_atomic_u32 looked_at; /* pn_files_lost, at the last look */

bool pn_lost_due(void)
{
    return pn_load_relaxed(&pn_files_lost) != pn_load_relaxed(&looked_at);
}

static bool is_intact(struct pn_conn *conn)
{
    int watched = pn_load_relaxed(&conn->watch.epfd);
    return pn_latch_is_intact(conn, &conn->efd, &conn->sleep_set) &&
           (watched < 0 || pn_is_kind(watched, PN_KIND_EPOLL)) &&
           pn_segment_hooks.consumers_intact(conn);
}

static void look_at(struct pn_conn *conn)
{
    if (conn->pid != pn_my_pid)
        return;
    pn_backend_keep_alive(conn); /* its locks may have gone, too; an error comes again */
    bool given = pn_load_acquire(&conn->has_fd) != 0;
    bool intact = is_intact(conn);
    if (given && (!intact || !pn_is_kind(conn->epfd, PN_KIND_EPOLL) ||
                  !pn_is_kind(conn->tfd, PN_KIND_TIMERFD)))
        pn_store_release(&conn->fd_lost, 1);
    if (intact)
        return;
    pn_store_seq_cst(&conn->efd, -1);
    pn_store_release(&conn->sleep_set.fd, -1);
    if (pn_load_relaxed(&conn->watch.epfd) >= 0)
        pn_store_release(&conn->watch.lost, 1);
    pn_store_seq_cst(&conn->watch.stale, 1);
    pn_segment_hooks.consumers_forget(conn);
}

int pn_lost_check_fd(const struct pn_conn *conn)
{
    if (pn_load_relaxed(&conn->fd_lost) == 0)
        return 0;
    return pn_fail(EBADF, "could not wait: the program has closed the descriptor that fileno() "
                          "had given to it\n"
                          "poll() still returns what was sent; to wait, close the connection and "
                          "connect again.");
}

void pn_lost_look(void)
{
    pn_process_lock();
    uint32_t lost = pn_load_relaxed(&pn_files_lost);
    pn_procsignal_each(look_at);
    pn_store_relaxed(&looked_at, lost);
    pn_process_unlock();
}
