/*
 * unsent.c - wake-ups that could not be sent.
 *
 * 1. A signal takes two descriptors: a pidfd, which stays, and for a moment /proc/PID/status.  A
 *    server at its limit has none, and is the very process that has much to tell.  So two are kept
 *    in reserve for each segment, and behind them stand the pidfds of others (send.c).
 * 2. A spare is a duplicate of the segment's own descriptor, so that before it is closed it can be
 *    told from what a program put in its place (identity.c 1).
 * 3. What could not be sent at all is `owed`, and comes late, by the sleeper's slow timer.  It is
 *    counted in the segment, and told once a minute; that pidfds are refused here, once, and at
 *    connect.
 */
#define _GNU_SOURCE
#include "wakeup/unsent.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/os.h"
#include "segment/identity.h"

#define PN_UNSENT_INTERVAL_NS 60000000000LL

/* ---- descriptors in reserve ------------------------------------------------------------------ */

void pn_spare_fill(struct pn_segment *seg)
{
    for (int i = 0; i < PN_SPARES; i++)
        if (seg->spare[i] < 0) {
            int own = pn_segment_file(seg);
            seg->spare[i] = own < 0 ? -1 : fcntl(own, F_DUPFD_CLOEXEC, 0);
        }
}

bool pn_spare_give_up(struct pn_segment *seg)
{
    for (int i = 0; i < PN_SPARES; i++) {
        int fd = seg->spare[i];
        seg->spare[i] = -1;
        if (pn_is_segment_file(seg, fd)) {
            close(fd);
            return true;
        }
    }
    return false;
}

/* ---- saying it ------------------------------------------------------------------------------- */

static bool is_refused(int error)
{
    return error == ENOSYS || error == EPERM;
}

static void note_reason(struct pn_segment *seg, int32_t pid, int rc)
{
    struct pn_unsent *unsent = &seg->unsent;
    int64_t now = pn_now_ns();
    if (is_refused(-rc) ? unsent->refused
                        : unsent->told_at != 0 && now - unsent->told_at < PN_UNSENT_INTERVAL_NS)
        return;
    if (is_refused(-rc))
        unsent->refused = true;
    else
        unsent->told_at = now;
    unsent->pid = pid;
    pn_store_release(&unsent->error, -rc);
}

void pn_unsent_count(struct pn_segment *seg, int rc)
{
    if (rc == -EPERM)
        pn_is_other_user(seg); /* then the next call says so */
    pn_fetch_add_relaxed(&seg->ctl->free.signals_unsent, 1);
}

void pn_unsent_note(struct pn_segment *seg, int32_t pid, int rc)
{
    seg->unsent.count++;
    pn_unsent_count(seg, rc);
    if (pn_load_relaxed(&seg->other_user) == 0)
        note_reason(seg, pid, rc);
}

bool pn_unsent_probe(struct pn_segment *seg)
{
    if (seg->unsent.probed)
        return false;
    seg->unsent.probed = true;
    int fd = pn_os_pidfd_open(pn_my_pid);
    int rc = fd < 0 ? fd : pn_os_pidfd_signal(fd, 0, 0);
    if (fd >= 0)
        close(fd);
    if (is_refused(-rc))
        note_reason(seg, pn_my_pid, rc);
    return true;
}

int pn_unsent_text(struct pn_segment *seg, char *buf, size_t cap)
{
    struct pn_unsent *unsent = &seg->unsent;
    int n = 0;
    if (pn_load_relaxed(&unsent->error) == 0)
        return 0;
    pthread_mutex_lock(&seg->signal_mutex);
    int error = cap > 0 ? pn_load_relaxed(&unsent->error) : 0;
    if (is_refused(error))
        n = snprintf(buf, cap,
                     "processes that sleep cannot be woken from here: pidfd_open or "
                     "pidfd_send_signal: %s\n"
                     "Notifications reach them late, after up to half a minute. Linux 5.3 and a "
                     "sandbox that permits both are needed, or listeners with wakeup=\"poll\".",
                     strerror(error));
    else if (error != 0)
        n = snprintf(buf, cap,
                     "could not wake the process with PID %d: %s (%u signals not sent until now)\n"
                     "Notifications reach processes that sleep late, after up to half a minute. "
                     "%s.",
                     unsent->pid, strerror(error), unsent->count,
                     error == EAGAIN ? "Raise RLIMIT_SIGPENDING"
                                     : "Raise RLIMIT_NOFILE, or close descriptors");
    if (n > 0)
        pn_store_relaxed(&unsent->error, 0);
    pthread_mutex_unlock(&seg->signal_mutex);
    return n < (int) cap ? n : (int) cap - 1;
}
