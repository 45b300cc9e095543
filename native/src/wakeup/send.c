/*
 * send.c - signals to other processes: the proof before each, one for many slots, the chain.
 *
 * 1. No signal is sent without proof that the pid is still the slot's.  A pidfd is opened first;
 *    then the slot's liveness byte must name the slot's pid, before every signal (rule L4).  One
 *    that was kept may have been closed by the program, and be another process's pidfd by now, of a
 *    child of the program's own: it has to be what it was, and where the kernel cannot tell none is
 *    kept.  What remains is that another thread of the target execs between the two system calls,
 *    or one of ours closes and opens in between; docs/signals.md names the window.
 *    Whether the target catches the signal is read from /proc, at most every PN_CATCHES_NS.
 * 2. One signal for neighbours.  A process with a thousand connections has a thousand slots, and
 *    its handler looks at all of them.  So slots of one process that follow each other are told
 *    together: the flags of all, then one signal by the first that proves to be there.  A send that
 *    fails is tried by the next slot, since one connection of a process may be closed and the
 *    others not.  If a slot has changed hands since its pid was read, its flag is set for the new
 *    owner, and by it that one may even be signalled: harmless, but the process has not been told.
 *    So the slot is looked at once more after a signal, and if it is another's the next is tried.
 * 3. The chain.  A notifier that wakes many processes signals the first PN_CHAIN of them itself and
 *    leaves the rest in deferred[]; the handler of each process that is signalled takes PN_CHAIN
 *    from there and passes the signal on.  So a broadcast to a hundred sleepers costs its sender
 *    two signals, it goes on committing while the chain runs, and each process that the chain
 *    reaches finds many messages instead of one.  It is the handler that does it, not wait(): it
 *    runs at once, however busy the program is.  Signals that meet are one, and their handler
 *    passes on once; but since it does that after it has taken the flags, each flag that was set is
 *    followed by a look at deferred[], and the chain ends only when that is empty.  While close()
 *    runs the handler does not find the connection, so close() passes on when the slot is free: no
 *    commit that counts on the slot comes after that (chain.pml).  A handler that has no descriptor
 *    left leaves it to the thread that it wakes, which may give one up.  One in a sandbox that
 *    refuses pidfds leaves all where it is, to the others.  Only a notifier in a stream, that is
 *    one that committed less than a millisecond ago, defers; and the next process to commit
 *    signals what has stood in deferred[] for longer than that, since the processes that were
 *    signalled may be stopped.  A process that dies with a claimed bit is like a notifier that
 *    dies before its signal: `owed` stays.
 */
#define _GNU_SOURCE
#include "wakeup/send.h"

#include <errno.h>
#include <unistd.h>

#include "backend/backend.h"
#include "base/crashpoint.h"
#include "base/os.h"
#include "segment/identity.h"
#include "segment/liveness_files.h"
#include "segment/process.h"
#include "wakeup/latch.h"
#include "wakeup/stack.h"
#include "wakeup/unsent.h"

#define PN_CATCHES_NS   100000000LL
#define PN_CAUGHT_SIGNO UINT64_C(0xff)
#define PN_TRIES        4

enum { MAX_PIDFDS = 512 };

/* ---- the proof, and the signal --------------------------------------------------------------- */

static void forget_pidfd(struct pn_segment *seg, struct pn_pidfd_cache_entry *entry)
{
    if (entry->fd >= 0) {
        pn_close_pidfd(entry->fd, entry->id);
        entry->fd = -1;
        seg->pidfds_open--;
    }
}

static int open_pidfd(struct pn_segment *seg, struct pn_pidfd_cache_entry *entry, int32_t pid,
                      uint32_t generation)
{
    forget_pidfd(seg, entry);
    for (uint32_t i = 0; seg->pidfds_open >= MAX_PIDFDS && i < seg->max_backends; i++)
        forget_pidfd(seg, &seg->pidfds[seg->pidfd_hand++ % seg->max_backends]);
    int fd = pn_os_pidfd_open(pid);
    if (fd < 0)
        return fd;
    seg->pidfds_open++;
    entry->fd = fd;
    entry->id = pn_os_pidfd_id(fd);
    entry->generation = generation;
    return 0;
}

/* The pidfd is opened before the byte is looked at: then the byte's holder is the pidfd's. */
static int provably_there(struct pn_segment *seg, uint32_t slot, int32_t pid)
{
    int fd = pn_segment_lock_file(seg, slot);
    if (fd >= 0 && pn_os_lock_holder(fd, slot, 1, NULL, NULL) == pid)
        return 1;
    fd = pn_segment_true_lock_file(seg, slot);
    return fd < 0 ? fd : pn_os_lock_holder(fd, slot, 1, NULL, NULL) == pid;
}

/*
 * /proc is asked at most every PN_CATCHES_NS a target; the answer holds for all senders, and for
 * the signal it was asked of: that stands in the lowest byte of the time.
 */
static int catches(struct QueueBackendStatus *backend, int32_t pid, int signo)
{
    int64_t now = pn_now_coarse_ns();
    uint64_t caught = pn_load_relaxed(&backend->caught_at);
    int64_t age = pn_since(now, caught & ~PN_CAUGHT_SIGNO);
    if ((caught & PN_CAUGHT_SIGNO) == (uint64_t) signo && age >= 0 && age < PN_CATCHES_NS)
        return 1;
    int rc = pn_os_catches(pid, signo);
    if (rc != 1)
        return rc;
    pn_store_relaxed(&backend->caught_at, ((uint64_t) now & ~PN_CAUGHT_SIGNO) | (uint64_t) signo);
    return 1;
}

/* What is told by one signal, to slots of one process. */
struct telling {
    enum pn_procsignal_reason reason;
    const uint32_t *slot;
    uint32_t n;
    bool passed_on; /* by the chain */
};

static void set_flags(struct pn_segment *seg, const struct telling *what)
{
    for (uint32_t i = 0; i < what->n; i++) {
        struct QueueBackendStatus *backend = &seg->backend[what->slot[i]];
        if (pn_load_acquire(&backend->state) == PN_SLOT_CLAIMED)
            pn_store_release(&backend->pss_signalFlags[what->reason], 1);
    }
    if (what->reason == PROCSIG_NEIGHBOUR)
        PN_CRASH("watch:flag");
    else if (!what->passed_on)
        PN_CRASH("signal:flag");
    if (what->n > 1 && what->passed_on)
        PN_CRASH("chain:flags");
    else if (what->n > 1)
        PN_CRASH("signal:flags");
}

/*
 * Set the flags, and signal.  Async-signal-safe.  1 sent, 0 not to be signalled, -errno: no
 * descriptor is left, or the pidfd is of no use any more.
 */
static int signal_if_there(struct pn_segment *seg, uint32_t slot, uint32_t generation, int32_t pid,
                           int pidfd, const struct telling *what)
{
    bool counted = what->reason < PROCSIG_NEIGHBOUR;
    struct QueueBackendStatus *backend = &seg->backend[slot];
    int signo = pn_load_acquire(&backend->signo); /* pairs with claim_slot() */
    if (!pn_may_wake(signo) || pn_load_acquire(&backend->generation) != generation)
        return 0; /* it polls; or the slot changed hands, and pid and signo may be of two owners */
    int rc = provably_there(seg, slot, pid);
    if (rc == 1)
        rc = catches(backend, pid, signo);
    if (rc != 1)
        return pn_is_short(rc) ? rc : 0; /* owed stays: its own slow timer looks */
    set_flags(seg, what); /* no sooner: with a flag a foreign raise() may be taken for ours */
    uint64_t value = (uint64_t) PN_SIGNAL_MAGIC << 32 | slot;
    rc = pn_os_pidfd_signal(pidfd, signo, value);
    if (rc == 0 && counted)
        pn_fetch_add_relaxed(&seg->ctl->free.signals_sent, 1);
    if (counted)
        PN_CRASH("signal:sent");
    return rc == 0 ? 1 : rc;
}

/* As signal_if_there(). */
static int try_to_send(struct pn_segment *seg, uint32_t slot, const struct telling *what,
                       int32_t *target)
{
    struct QueueBackendStatus *backend = &seg->backend[slot];
    struct pn_pidfd_cache_entry *entry = &seg->pidfds[slot];
    uint32_t generation = pn_load_acquire(&backend->generation);
    int32_t pid = *target = pn_load_acquire(&backend->pid); /* pairs with claim_slot() */
    if (pid <= 0 || pn_load_relaxed(&backend->signo) <= 0)
        return 0;
    if (entry->fd < 0 || entry->generation != generation ||
        pn_os_pidfd_id(entry->fd) != entry->id) {
        int rc = open_pidfd(seg, entry, pid, generation);
        if (rc != 0)
            return rc;
    }
    int rc = signal_if_there(seg, slot, generation, pid, entry->fd, what);
    if ((rc < 0 && !pn_is_short(rc)) || entry->id == 0)
        forget_pidfd(seg, entry);
    return rc;
}

/* A spare one, or another's pidfd. */
static bool give_up_a_descriptor(struct pn_segment *seg, uint32_t slot)
{
    if (pn_spare_give_up(seg))
        return true;
    for (uint32_t i = 0; seg->pidfds_open != 0 && i < seg->max_backends; i++) {
        uint32_t other = seg->pidfd_hand++ % seg->max_backends;
        if (other != slot && seg->pidfds[other].fd >= 0) {
            forget_pidfd(seg, &seg->pidfds[other]);
            return true;
        }
    }
    return false;
}

static bool send_to_other(struct pn_segment *seg, uint32_t slot, const struct telling *what)
{
    int32_t pid;
    int rc = try_to_send(seg, slot, what, &pid);
    for (int i = 0; pn_is_short(rc) && i < PN_TRIES && give_up_a_descriptor(seg, slot); i++)
        rc = try_to_send(seg, slot, what, &pid); /* other threads open files, too */
    if (rc < 0 && rc != -ESRCH) /* the dead one's slot is reaped when it is needed */
        pn_unsent_note(seg, pid, rc);
    pn_spare_fill(seg);
    return rc > 0;
}

void pn_take_owed(const struct pn_conn *conn)
{
    uint64_t mask = 1ULL << (conn->slot % 64);
    pn_atomic_u64 *word = &conn->seg->owed[conn->slot / 64];
    if ((pn_load_relaxed(word) & mask) != 0 && pn_owns_slot(conn))
        pn_fetch_and(word, ~mask);
}

/* By a signal to the process of `slot`, which is one of those. */
static bool tell_slot(struct pn_segment *seg, uint32_t slot, const struct telling *what)
{
    enum pn_procsignal_reason reason = what->reason;
    bool sent = true;
    if (pn_load_acquire(&seg->backend[slot].state) != PN_SLOT_CLAIMED)
        return false;
    pthread_mutex_lock(&seg->signal_mutex);
    struct pn_conn *own = seg->own[slot];
    if (own != NULL && !pn_owns_slot(own))
        own = NULL; /* it was, and has another owner */
    if (own != NULL && reason == PROCSIG_LOG_STACK) {
        pn_stack_print();
    } else if (own != NULL && (reason == PROCSIG_TOPIC || reason == PROCSIG_REPAIR)) {
        pn_segment_hooks.consumers_woken(own, reason == PROCSIG_REPAIR);
    } else if (own != NULL) {
        if (reason == PROCSIG_SEGMENT_GONE)
            pn_segment_hooks.consumers_woken(own, true);
        pn_take_owed(own); /* a signal to ourselves would only do the same */
        pn_latch_set(own, PN_FD_SIGNALLED);
        pn_fetch_add_relaxed(&seg->ctl->free.signals_sent, 1);
    } else {
        sent = send_to_other(seg, slot, what);
    }
    pthread_mutex_unlock(&seg->signal_mutex);
    return sent;
}

bool pn_procsignal_send(struct pn_segment *seg, uint32_t slot, enum pn_procsignal_reason reason)
{
    return tell_slot(seg, slot, &(struct telling) {.reason = reason, .slot = &slot, .n = 1});
}

/* ---- slots of one process -------------------------------------------------------------------- */

void pn_send_begin(struct pn_send_run *run, struct pn_segment *seg)
{
    run->seg = seg;
    run->n = 0;
    run->pid = run->signo = 0;
    run->sent = run->own = 0;
}

static bool is_of(const struct pn_segment *seg, uint32_t slot, int32_t pid, int32_t signo)
{
    const struct QueueBackendStatus *backend = &seg->backend[slot];
    return pn_load_relaxed(&backend->pid) == pid && pn_load_relaxed(&backend->signo) == signo;
}

/* Each of our own has a latch to be set. */
static void send_run(struct pn_send_run *run)
{
    bool ours = run->pid == pn_my_pid, sent = false;
    for (uint32_t i = 0; i < run->n && (ours || !sent); i++) {
        const struct telling what = {.reason = PROCSIG_NOTIFY_INTERRUPT,
                                     .slot = ours ? &run->slot[i] : run->slot,
                                     .n = ours ? 1 : run->n};
        sent = tell_slot(run->seg, run->slot[i], &what);
        run->sent += sent;
        run->own += sent && ours;
        sent = sent && is_of(run->seg, run->slot[i], run->pid, run->signo);
    }
    run->n = 0;
}

void pn_send_add(struct pn_send_run *run, uint32_t slot)
{
    const struct QueueBackendStatus *backend = &run->seg->backend[slot];
    if (run->n == PN_SEND_RUN || (run->n != 0 && !is_of(run->seg, slot, run->pid, run->signo)))
        send_run(run);
    if (run->n == 0) {
        run->pid = pn_load_relaxed(&backend->pid);
        run->signo = pn_load_relaxed(&backend->signo);
    }
    run->slot[run->n++] = slot;
}

int pn_send_end(struct pn_send_run *run)
{
    send_run(run);
    return run->sent;
}

/* ---- the chain ------------------------------------------------------------------------------- */

static bool is_owed(const struct pn_segment *seg, uint32_t slot)
{
    return (pn_load_relaxed(&seg->owed[slot / 64]) >> (slot % 64) & 1) != 0;
}

/* As pn_procsignal_send, but without locks and caches.  As signal_if_there(); -ENOSYS: this process
 * can signal none. */
static int send_deferred(const struct pn_send_run *run, uint32_t slot)
{
    struct pn_segment *seg = run->seg;
    struct QueueBackendStatus *backend = &seg->backend[slot];
    uint32_t generation = pn_load_acquire(&backend->generation);
    int32_t pid = pn_load_acquire(&backend->pid); /* pairs with claim_slot() */
    if (pn_load_acquire(&backend->state) != PN_SLOT_CLAIMED || pid <= 0 ||
        pn_load_relaxed(&backend->signo) <= 0)
        return 0;
    /* Looked at again: the owner of this generation is owed it, not one that has closed since. */
    if (!is_owed(seg, slot))
        return 0;
    int pidfd = pn_os_pidfd_open(pid);
    if (pidfd < 0)
        return pidfd == -EPERM ? -ENOSYS : pidfd; /* that of a signal is the target's */
    const struct telling what = {
        .reason = PROCSIG_NOTIFY_INTERRUPT, .slot = run->slot, .n = run->n, .passed_on = true};
    int rc = signal_if_there(seg, slot, generation, pid, pidfd, &what);
    close(pidfd);
    return rc;
}

/* False: another thread claimed it, or it is not owed any more. */
static bool claim(struct pn_segment *seg, uint32_t slot)
{
    uint64_t bit = 1ULL << (slot % 64);
    if ((pn_fetch_and(&seg->deferred[slot / 64], ~bit) & bit) == 0)
        return false;
    PN_CRASH("chain:claimed");
    return is_owed(seg, slot);
}

/* The next deferred slot, claimed; -1 when there is none.  Only what is still owed counts. */
static int64_t claim_deferred(struct pn_segment *seg)
{
    for (uint32_t word = 0; word < seg->words; word++) {
        uint64_t bits = pn_load_relaxed(&seg->deferred[word]);
        for (; bits != 0; bits &= bits - 1) {
            uint32_t slot = word * 64 + (uint32_t) __builtin_ctzll(bits);
            if (slot < seg->max_backends && claim(seg, slot))
                return slot;
        }
    }
    return -1;
}

/* `first` was claimed.  And those of its process that follow. */
static void claim_run(struct pn_send_run *run, uint32_t first)
{
    struct pn_segment *seg = run->seg;
    run->pid = pn_load_relaxed(&seg->backend[first].pid);
    run->signo = pn_load_relaxed(&seg->backend[first].signo);
    run->n = 0;
    run->slot[run->n++] = first;
    for (uint32_t next = first + 1; run->n < PN_SEND_RUN && next < seg->max_backends; next++) {
        if ((pn_load_relaxed(&seg->deferred[next / 64]) >> (next % 64) & 1) == 0 ||
            !is_of(seg, next, run->pid, run->signo))
            break;
        if (claim(seg, next))
            run->slot[run->n++] = next;
    }
}

/* As send_deferred(), of the first of them that is there. */
static int send_deferred_run(const struct pn_send_run *run)
{
    int rc = 0;
    struct pn_segment *seg = run->seg;
    const uint32_t *slot = run->slot;
    bool told = false;
    for (uint32_t i = 0; i < run->n && !told; i++) {
        rc = send_deferred(run, slot[i]);
        told = rc == 1 && is_of(seg, slot[i], run->pid, run->signo);
        if (pn_is_short(rc) || rc == -ENOSYS) { /* for those that can */
            for (; i < run->n; i++)
                pn_fetch_or(&seg->deferred[slot[i] / 64], 1ULL << (slot[i] % 64));
        } else if (rc < 0 && rc != -ESRCH) {
            pn_unsent_count(seg, rc);
        }
    }
    return rc;
}

/* A process that cannot be signalled (dead, polling) passes nothing on, and does not count. */
bool pn_procsignal_try_to_pass_on(struct pn_segment *seg, int already)
{
    struct pn_send_run run;
    pn_send_begin(&run, seg);
    while (already < PN_CHAIN && pn_load_relaxed(&seg->ctl->deferred_at) != 0) {
        int64_t first = claim_deferred(seg);
        if (first < 0)
            return true;
        claim_run(&run, (uint32_t) first);
        int rc = send_deferred_run(&run);
        if (pn_is_short(rc) || rc == -ENOSYS)
            return rc == -ENOSYS;
        already += rc > 0;
    }
    return true;
}

void pn_procsignal_pass_on(struct pn_segment *seg, int already)
{
    if (!pn_procsignal_try_to_pass_on(seg, already))
        pn_procsignal_flush(seg);
}

void pn_procsignal_flush(struct pn_segment *seg)
{
    struct pn_send_run run;
    pn_send_begin(&run, seg);
    for (int64_t slot; (slot = claim_deferred(seg)) >= 0;)
        pn_send_add(&run, (uint32_t) slot);
    pn_send_end(&run);
}
