/*
 * procsignal.c - signals, and the handshake between a sleeper and a process that wakes it.
 *
 * 1. The handshake.  A listener that has read everything marks its `pos` ASLEEP and looks at
 *    `want` once more; a notifier raises `want` and looks at `pos`.  With a full fence between
 *    the store and the load on both sides, at least one sees the other's store:
 *
 *        notifier (lock held)                     listener
 *          if quiet: from = begin                   pos = p | ASLEEP        (exchange)
 *          want = end             (release)         --- full fence (the exchange) ---
 *          --- full fence ---                       w = want                (seq_cst)
 *          p = pos                                  if w > p: CAS p|ASLEEP -> max(p, from),
 *          if p & ASLEEP: owed, then                   won or lost: awake, read again
 *            CAS p -> max(p, from); won: signal     else block on the latch
 *
 *    A reader that is held back (generation.c 6) has a second condition beside w > p, the counter,
 *    and the notifier stores that, too, before the fence.
 *
 *    The winner of the CAS makes the slot awake; only a notifier that won it signals: one signal
 *    per sleep, however long the burst, and none for a listener that is awake.
 * 2. `owed` is set before the CAS and cleared by the listener between draining its latch and
 *    loading pos.  It says "un-slept, but perhaps not signalled": a notifier that finds it on an
 *    awake slot for longer than PN_OWED_NS signals again, since the earlier one may have died
 *    between its CAS and its signal; a slow timer in every sleeper does the same.
 * 3. No signal is sent without proof that the pid is still the slot's.  A pidfd is opened first;
 *    then the slot's liveness byte must name the slot's pid, before every signal (rule L4).  One
 *    that was kept may have been closed by the program, and be another process's pidfd by now, of a
 *    child of the program's own: it has to be what it was, and where the kernel cannot tell none is
 *    kept.  What remains is that another thread of the target execs between the two system calls,
 *    or one of ours closes and opens in between; docs/signals.md names the window.
 *    Whether the target catches the signal is read from /proc, at most every PN_CATCHES_NS.
 * 4. The chain.  A notifier that wakes many signals the first PN_CHAIN of them itself and leaves
 *    the rest in deferred[]; the handler of each process that is signalled takes PN_CHAIN from
 *    there and passes the signal on.  So a broadcast to a hundred sleepers costs its sender two
 *    signals, it goes on committing while the chain runs, and each process that the chain reaches
 *    finds many messages instead of one.  It is the handler that does it, not wait(): it runs at
 *    once, however busy the program is.  Only a notifier in a stream, that is one that committed
 *    less than a millisecond ago, does so; and the next process to commit signals what has stood in
 *    deferred[] for longer than that, since the processes that were signalled may be stopped.  A
 *    process that dies with a claimed bit is like a notifier that dies before its signal: `owed`
 *    stays.
 * 5. The handler runs in a program that is not ours.  It does what PostgreSQL's does, keeps errno,
 *    and passes every signal that is not tagged as ours to the handler that was there before.
 */
#define _GNU_SOURCE
#include "wakeup/procsignal.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

#include "backend/backend.h"
#include "backend/generation.h"
#include "base/crashpoint.h"
#include "base/os.h"
#include "segment/identity.h"
#include "segment/lock.h"
#include "segment/lockfile.h"
#include "segment/process.h"
#include "wakeup/latch.h"
#include "wakeup/unsent.h"

#define PN_SIGNAL_MAGIC 0x504e5347U /* "PNSG", in the upper half of sival; the slot in the lower */
#define PN_OWED_NS      10000000LL
#define PN_CATCHES_NS   100000000LL
#define PN_CAUGHT_SIGNO UINT64_C(0xff)
#define PN_TRIES        4

enum { MAX_LOCAL = 65536, MAX_PIDFDS = 512, MAX_SIGNALS = 65 };

/* ---- the process's side: the handler -------------------------------------------------------- */

/* Entries are set and cleared under the process lock; the handler only loads them. */
static _Atomic(struct pn_conn *) local[MAX_LOCAL];
static pn_atomic_u32 local_used; /* one above the highest index ever used */
static uint32_t local_free;      /* none below it is free.  Process lock */
static pn_atomic_u32 in_handler; /* handlers that may hold a pointer out of local[] */

/* What stood before our handler, per signal; the newest first.  Never freed: a handler reads it. */
struct disposition {
    struct sigaction sa;
    struct disposition *older;
};
static _Atomic(struct disposition *) previous[MAX_SIGNALS];
typedef void stack_printer(int signo);
static _Atomic(stack_printer *) printer;
static pn_atomic_i32 printer_signo;
static struct sigaction kept_disposition; /* between the two calls that set the printer */

static struct sigaction installed[MAX_SIGNALS]; /* ours, as it stands in the kernel */
static uint32_t armed_by[MAX_SIGNALS];          /* connections that use the signal.  Process lock */

/* RLIMIT_SIGPENDING of 0 costs a queued signal its siginfo: no code, no pid. */
static bool lost_its_info(const siginfo_t *info)
{
    return info == NULL || (info->si_code == SI_USER && info->si_pid == 0);
}

/* Raised by this process: also by a handler that stands before ours and passes the signal on. */
static bool raised_here(const siginfo_t *info)
{
    return info != NULL && info->si_code == SI_TKILL && info->si_pid == pn_my_pid;
}

static bool is_ours(const siginfo_t *info, bool had_flag)
{
    if (info != NULL && info->si_code == SI_QUEUE &&
        (uint64_t) (uintptr_t) info->si_value.sival_ptr >> 32 == PN_SIGNAL_MAGIC)
        return true;
    return had_flag && (lost_its_info(info) || raised_here(info));
}

/*
 * Call a handler that was here before us as the kernel would.  One that passes signals on by
 * raise() needs SA_NODEFER to mean something, and installs itself again afterwards, over ours
 * (faulthandler with chain=True): then we step back in front of it.
 */
static void call_previous(int signo, siginfo_t *info, void *context, const struct sigaction *was)
{
    const ucontext_t *interrupted = context;
    sigset_t mask, before;
    struct sigaction now;
    bool nodefer = (was->sa_flags & SA_NODEFER) != 0;
    sigemptyset(&mask);
    memcpy(&mask, &interrupted->uc_sigmask, _NSIG / 8); /* the kernel's is no larger */
    sigorset(&mask, &mask, &was->sa_mask);
    if (!nodefer)
        sigaddset(&mask, signo);
    pthread_sigmask(SIG_SETMASK, &mask, &before); /* ours blocks everything */
    if ((was->sa_flags & SA_SIGINFO) != 0)
        was->sa_sigaction(signo, info, context);
    else
        was->sa_handler(signo);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (nodefer && sigaction(signo, NULL, &now) == 0 && now.sa_sigaction == was->sa_sigaction)
        sigaction(signo, &installed[signo], NULL);
}

static void chain(int signo, siginfo_t *info, void *context)
{
    /*
     * Nested when the handler before ours passed the signal on to ours, which it found when it was
     * installed: then it is the turn of the one before that.  So two that chain to each other come
     * to an end.  initial-exec, since TLS on demand would malloc.
     */
    static _Thread_local int depth __attribute__((tls_model("initial-exec")));
    const struct disposition *turn = pn_load_acquire(&previous[signo]);
    for (int i = 0; turn != NULL && i < depth; i++)
        turn = turn->older;
    if (turn == NULL)
        return;
    const struct sigaction *was = &turn->sa;
    depth++;
    if ((was->sa_flags & SA_SIGINFO) != 0) {
        call_previous(signo, info, context, was);
    } else if (was->sa_handler == SIG_DFL) {
        /* the host never wanted it: do what would have happened without us, terminate; but not
         * for one that was queued and lost its info, or was passed on by a handler before ours:
         * that was one of ours, more likely than not */
        if (!lost_its_info(info) && (depth > 1 || !raised_here(info))) {
            signal(signo, SIG_DFL);
            raise(signo); /* pending until this handler returns */
        }
    } else if (was->sa_handler != SIG_IGN) {
        call_previous(signo, info, context, was);
    }
    depth--;
}

/* The reasons, a bit each: never clear a flag without having seen it set. */
static uint32_t check_proc_signal(struct pn_conn *conn)
{
    uint32_t reasons = 0;
    for (int reason = 0; reason < NUM_PROCSIGNALS; reason++)
        if (pn_load_relaxed(&conn->me->pss_signalFlags[reason]) != 0 &&
            pn_exchange(&conn->me->pss_signalFlags[reason], 0) != 0)
            reasons |= 1U << reason;
    return reasons;
}

/* Our stack was asked for.  Async-signal-safe. */
static void print_stack(void)
{
    static const char nothing[] = "pynotify: asked for the stack, but nothing here can print it\n";
    stack_printer *print = pn_load_acquire(&printer);
    if (print != NULL)
        print(pn_load_relaxed(&printer_signo));
    else if (write(STDERR_FILENO, nothing, sizeof nothing - 1) < 0)
        return;
}

static void procsignal_handler(int signo, siginfo_t *info, void *context)
{
    int saved_errno = errno;
    uint32_t all_reasons = 0;
    pn_fetch_add(&in_handler, 1);
    uint32_t used = pn_load_acquire(&local_used);
    for (uint32_t i = 0; i < used; i++) {
        struct pn_conn *conn = pn_load_acquire(&local[i]);
        if (conn == NULL || conn->signo != signo || conn->pid != pn_my_pid || !pn_owns_slot(conn))
            continue;
        uint32_t reasons = check_proc_signal(conn);
        all_reasons |= reasons;
        reasons &= ~(1U << PROCSIG_LOG_STACK);
        if (reasons != 0)
            pn_segment_hooks.consumers_woken(conn, reasons != 1U << PROCSIG_TOPIC);
        reasons &= ~(1U << PROCSIG_TOPIC | 1U << PROCSIG_REPAIR);
        if (reasons == 0)
            continue; /* nothing to wake up for */
        bool walk_only = reasons == 1U << PROCSIG_NEIGHBOUR;
        if ((reasons & 1U << PROCSIG_NEIGHBOUR) != 0 && !pn_watch_told(conn) && walk_only)
            continue;
        if (!walk_only)
            pn_procsignal_pass_on(conn->seg, 0);
        pn_latch_wake(conn, walk_only ? PN_FD_NEIGHBOUR : PN_FD_SIGNALLED);
    }
    pn_fetch_sub(&in_handler, 1);
    if ((all_reasons & 1U << PROCSIG_LOG_STACK) != 0)
        print_stack();
    if (!is_ours(info, all_reasons != 0))
        chain(signo, info, context);
    errno = saved_errno;
}

static bool is_our_handler(const struct sigaction *sa)
{
    return (sa->sa_flags & SA_SIGINFO) != 0 && sa->sa_sigaction == procsignal_handler;
}

static int remember(int signo, const struct sigaction *current)
{
    struct disposition *was = pn_load_relaxed(&previous[signo]);
    if (was != NULL && was->sa.sa_sigaction == current->sa_sigaction &&
        was->sa.sa_flags == current->sa_flags)
        return 0;
    struct disposition *copy = malloc(sizeof *copy);
    if (copy == NULL)
        return pn_fail(ENOMEM, "out of memory");
    copy->sa = *current;
    copy->older = was;
    pn_store_release(&previous[signo], copy);
    return 0;
}

/* SA_RESTART as the host's own handler has it: Python's relies on EINTR to run at all. */
static int install(int signo, const struct sigaction *current)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
    struct sigaction sa;
    int rc = remember(signo, current);
    if (rc != 0)
        return rc;
    bool host_handles = (current->sa_flags & SA_SIGINFO) != 0 ||
                        (current->sa_handler != SIG_DFL && current->sa_handler != SIG_IGN);
    memset(&sa, 0, sizeof sa);
    sa.sa_sigaction = procsignal_handler;
    sa.sa_flags = SA_SIGINFO | SA_ONSTACK;
    if (!host_handles || (current->sa_flags & SA_RESTART) != 0)
        sa.sa_flags |= SA_RESTART;
    /* No other handler on top of ours: the stack may be 8 KiB, most of it taken by the kernel.
     * What a fault raises cannot wait. */
    sigfillset(&sa.sa_mask);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigdelset(&sa.sa_mask, faults[i]);
    installed[signo] = sa;
    if (sigaction(signo, &sa, NULL) != 0)
        return pn_fail(errno, "could not install the handler of signal %d: %s", signo,
                       strerror(errno));
    return 0;
}

int pn_procsignal_arm(struct pn_conn *conn)
{
    struct sigaction current;
    if (conn->signo < 0)
        return 0;
    if (sigaction(conn->signo, NULL, &current) != 0)
        return pn_fail(errno, "signal %d: %s", conn->signo, strerror(errno));
    if (is_our_handler(&current) && pn_load_relaxed(&conn->armed) != 0)
        return 0;
    int rc = 0;
    pn_process_lock();
    if (sigaction(conn->signo, NULL, &current) == 0 && !is_our_handler(&current)) {
        bool replaced = armed_by[conn->signo] != 0;
        rc = install(conn->signo, &current);
        if (rc == 0 && replaced) {
            pn_fetch_add_relaxed(&conn->seg->ctl->free.handler_reinstalls, 1);
            pn_conn_add_notice(conn,
                               "the handler of signal %d was replaced; installed again, in front "
                               "of the new one",
                               conn->signo);
        }
    }
    if (rc == 0 && pn_load_relaxed(&conn->armed) == 0) {
        pn_store_relaxed(&conn->armed, 1);
        armed_by[conn->signo]++;
    }
    pn_process_unlock();
    return rc;
}

/* After the last close a late wake-up must not kill: SIG_DFL becomes SIG_IGN. */
static void disarm(struct pn_conn *conn)
{
    struct sigaction current;
    if (pn_load_relaxed(&conn->armed) == 0 || --armed_by[conn->signo] != 0)
        return;
    if (sigaction(conn->signo, NULL, &current) != 0 || !is_our_handler(&current))
        return; /* not ours any more */
    struct sigaction back = pn_load_relaxed(&previous[conn->signo])->sa;
    if ((back.sa_flags & SA_SIGINFO) == 0 && back.sa_handler == SIG_DFL)
        back.sa_handler = SIG_IGN;
    sigaction(conn->signo, &back, NULL);
}

int pn_procsignal_keep_disposition(int signo)
{
    if (sigaction(signo, NULL, &kept_disposition) != 0)
        return pn_fail(errno, "signal %d: %s", signo, strerror(errno));
    return 0;
}

int pn_procsignal_adopt_stack_printer(int signo)
{
    struct sigaction current;
    if (sigaction(signo, &kept_disposition, &current) != 0)
        return pn_fail(errno, "signal %d: %s", signo, strerror(errno));
    pn_store_relaxed(&printer_signo, signo);
    pn_store_release(&printer, current.sa_handler);
    return 0;
}

static void reset_in_child(void)
{
    pn_os_know_ourselves();
    pn_process_child_reset();
    for (uint32_t i = 0; i < pn_load_relaxed(&local_used); i++) {
        struct pn_conn *conn = pn_load_relaxed(&local[i]);
        if (conn != NULL)
            pn_segment_hooks.close_inherited(conn);
        pn_store_relaxed(&local[i], NULL);
    }
    pn_store_relaxed(&local_used, 0);
    local_free = 0;
    pn_store_relaxed(&in_handler, 0);
    memset(armed_by, 0, sizeof armed_by); /* the handler is inherited; no signal comes yet */
}

static void initialise_process(void)
{
    pn_os_know_ourselves();
    pthread_atfork(pn_process_lock, pn_process_unlock, reset_in_child);
}

int pn_procsignal_register(struct pn_conn *conn)
{
    pn_process_lock();
    uint32_t i = local_free;
    while (i < MAX_LOCAL && pn_load_relaxed(&local[i]) != NULL)
        i++;
    local_free = conn->local_index = i;
    if (i < MAX_LOCAL) {
        pn_store_release(&local[i], conn);
        if (i >= pn_load_relaxed(&local_used))
            pn_store_release(&local_used, i + 1);
    }
    pn_process_unlock();
    if (i == MAX_LOCAL)
        return pn_fail(PN_EBACKENDS,
                       "too many connections in this process\n"
                       "It has %d. Close some, or connect from another process.",
                       MAX_LOCAL);
    pthread_mutex_lock(&conn->seg->signal_mutex);
    conn->seg->own[conn->slot] = conn;
    pthread_mutex_unlock(&conn->seg->signal_mutex);
    return 0;
}

void pn_procsignal_each(void (*visit)(struct pn_conn *conn))
{
    for (uint32_t i = 0; i < pn_load_relaxed(&local_used); i++) {
        struct pn_conn *conn = pn_load_relaxed(&local[i]);
        if (conn != NULL)
            visit(conn);
    }
}

void pn_procsignal_disown(struct pn_conn *conn)
{
    pthread_mutex_lock(&conn->seg->signal_mutex);
    if (conn->seg->own[conn->slot] == conn) /* a slot that was lost may be ours again by another */
        conn->seg->own[conn->slot] = NULL;
    pthread_mutex_unlock(&conn->seg->signal_mutex);
}

void pn_procsignal_unregister(struct pn_conn *conn)
{
    pn_process_lock();
    if (conn->local_index < MAX_LOCAL) { /* else there was no room for it */
        pn_store_release(&local[conn->local_index], NULL);
        if (conn->local_index < local_free)
            local_free = conn->local_index;
    }
    disarm(conn);
    pn_process_unlock();
    pn_procsignal_quiesce();
}

/* A handler in another thread may still hold a pointer; it is short and never blocks. */
void pn_procsignal_quiesce(void)
{
    while (pn_load_seq_cst(&in_handler) != 0)
        sched_yield();
}

/* ---- the sender's side ---------------------------------------------------------------------- */

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

/*
 * Async-signal-safe.  1 sent, 0 not to be signalled, -errno: no descriptor is left, or the pidfd is
 * of no use any more.
 */
static int signal_if_there(struct pn_segment *seg, uint32_t slot, uint32_t generation, int32_t pid,
                           int pidfd, bool counted)
{
    struct QueueBackendStatus *backend = &seg->backend[slot];
    int signo = pn_load_acquire(&backend->signo);
    if (!pn_may_wake(signo) || pn_load_acquire(&backend->generation) != generation)
        return 0; /* it polls; or the slot changed hands, and pid and signo may be of two owners */
    int rc = provably_there(seg, slot, pid);
    if (rc == 1)
        rc = catches(backend, pid, signo);
    if (rc != 1)
        return pn_is_short(rc) ? rc : 0; /* owed stays: its own slow timer looks */
    uint64_t value = (uint64_t) PN_SIGNAL_MAGIC << 32 | slot;
    rc = pn_os_pidfd_signal(pidfd, signo, value);
    if (rc == 0 && counted)
        pn_fetch_add_relaxed(&seg->ctl->free.signals_sent, 1);
    if (counted)
        PN_CRASH("signal:sent");
    return rc == 0 ? 1 : rc;
}

/* As signal_if_there(). */
static int try_to_send(struct pn_segment *seg, uint32_t slot, bool counted, int32_t *target)
{
    struct QueueBackendStatus *backend = &seg->backend[slot];
    struct pn_pidfd_cache_entry *entry = &seg->pidfds[slot];
    uint32_t generation = pn_load_acquire(&backend->generation);
    int32_t pid = *target = pn_load_relaxed(&backend->pid);
    if (pid <= 0 || pn_load_relaxed(&backend->signo) <= 0)
        return 0;
    if (entry->fd < 0 || entry->generation != generation ||
        pn_os_pidfd_id(entry->fd) != entry->id) {
        int rc = open_pidfd(seg, entry, pid, generation);
        if (rc != 0)
            return rc;
    }
    int rc = signal_if_there(seg, slot, generation, pid, entry->fd, counted);
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

static bool send_to_other(struct pn_segment *seg, uint32_t slot, bool counted)
{
    int32_t pid;
    int rc = try_to_send(seg, slot, counted, &pid);
    for (int i = 0; pn_is_short(rc) && i < PN_TRIES && give_up_a_descriptor(seg, slot); i++)
        rc = try_to_send(seg, slot, counted, &pid); /* other threads open files, too */
    if (rc < 0 && rc != -ESRCH) /* the dead one's slot is reaped when it is needed */
        pn_unsent_note(seg, pid, rc);
    pn_spare_fill(seg);
    return rc > 0;
}

bool pn_procsignal_send(struct pn_segment *seg, uint32_t slot, enum pn_procsignal_reason reason)
{
    struct QueueBackendStatus *backend = &seg->backend[slot];
    bool sent = true;
    if (pn_load_acquire(&backend->state) != PN_SLOT_CLAIMED)
        return false;
    pthread_mutex_lock(&seg->signal_mutex);
    struct pn_conn *own = seg->own[slot];
    if (own != NULL && !pn_owns_slot(own))
        own = NULL; /* it was, and has another owner */
    if (own != NULL && reason == PROCSIG_LOG_STACK) {
        print_stack();
    } else if (own != NULL && (reason == PROCSIG_TOPIC || reason == PROCSIG_REPAIR)) {
        pn_segment_hooks.consumers_woken(own, reason == PROCSIG_REPAIR);
    } else if (own != NULL) {
        if (reason == PROCSIG_SEGMENT_GONE)
            pn_segment_hooks.consumers_woken(own, true);
        pn_latch_set(own, PN_FD_SIGNALLED); /* a signal to ourselves would only do the same */
        pn_fetch_add_relaxed(&seg->ctl->free.signals_sent, 1);
    } else {
        pn_store_release(&backend->pss_signalFlags[reason], 1);
        if (reason == PROCSIG_NEIGHBOUR)
            PN_CRASH("watch:flag");
        else
            PN_CRASH("signal:flag");
        sent = send_to_other(seg, slot, reason < PROCSIG_NEIGHBOUR);
    }
    pthread_mutex_unlock(&seg->signal_mutex);
    return sent;
}

/* ---- the chain ------------------------------------------------------------------------------ */

/* One deferred slot: as pn_procsignal_send, but without locks and caches.  As signal_if_there(). */
static int send_deferred(struct pn_segment *seg, uint32_t slot)
{
    struct QueueBackendStatus *backend = &seg->backend[slot];
    uint32_t generation = pn_load_acquire(&backend->generation);
    int32_t pid = pn_load_relaxed(&backend->pid);
    if (pn_load_acquire(&backend->state) != PN_SLOT_CLAIMED || pid <= 0 ||
        pn_load_relaxed(&backend->signo) <= 0)
        return 0;
    int pidfd = pn_os_pidfd_open(pid);
    if (pidfd < 0)
        return pidfd;
    pn_store_release(&backend->pss_signalFlags[PROCSIG_NOTIFY_INTERRUPT], 1);
    int rc = signal_if_there(seg, slot, generation, pid, pidfd, true);
    close(pidfd);
    return rc;
}

/* The next deferred slot, claimed; -1 when there is none.  Only what is still owed counts. */
static int64_t claim_deferred(struct pn_segment *seg)
{
    for (uint32_t word = 0; word < seg->words; word++) {
        uint64_t bits = pn_load_relaxed(&seg->deferred[word]);
        for (; bits != 0; bits &= bits - 1) {
            uint64_t bit = bits & -bits;
            uint32_t slot = word * 64 + (uint32_t) __builtin_ctzll(bits);
            if (slot >= seg->max_backends || (pn_fetch_and(&seg->deferred[word], ~bit) & bit) == 0)
                continue; /* another thread claimed it */
            PN_CRASH("chain:claimed");
            if ((pn_load_relaxed(&seg->owed[word]) & bit) != 0)
                return slot;
        }
    }
    return -1;
}

/* A slot that cannot be signalled (dead, polling) passes nothing on, and does not count. */
void pn_procsignal_pass_on(struct pn_segment *seg, int already)
{
    while (already < PN_CHAIN && pn_load_relaxed(&seg->ctl->deferred_at) != 0) {
        int64_t slot = claim_deferred(seg);
        if (slot < 0)
            return;
        int rc = send_deferred(seg, (uint32_t) slot);
        if (pn_is_short(rc)) { /* for a committer, which may give one up */
            pn_fetch_or(&seg->deferred[slot / 64], 1ULL << (slot % 64));
            return;
        }
        if (rc < 0 && rc != -ESRCH)
            pn_unsent_count(seg, rc);
        already += rc > 0;
    }
}

void pn_procsignal_flush(struct pn_segment *seg)
{
    for (int64_t slot; (slot = claim_deferred(seg)) >= 0;)
        pn_procsignal_send(seg, (uint32_t) slot, PROCSIG_NOTIFY_INTERRUPT);
}

/* ---- handshake ------------------------------------------------------------------------------ */

enum pn_unsleep pn_unsleep_locked(struct pn_segment *seg, uint32_t slot, int64_t now)
{
    pn_assert_held(seg);
    struct QueueBackendStatus *backend = &seg->backend[slot];
    uint64_t mask = 1ULL << (slot % 64);
    uint64_t pos = pn_load_acquire(&backend->pos);
    while ((pos & PN_ASLEEP) != 0) {
        /* it has read all since: un-slept now, it could have cleared `owed` in between */
        if (pn_load_relaxed(&backend->want) <= (pos & ~PN_ASLEEP))
            return PN_NO_SIGNAL;
        pn_store_relaxed(&backend->signalled_at, (uint64_t) now);
        pn_fetch_or(&seg->owed[slot / 64], mask);
        PN_CRASH("commit:owed");
        uint64_t start = pn_later(pos & ~PN_ASLEEP, pn_load_relaxed(&backend->from) & ~PN_ASLEEP);
        if (pn_cas_u64(&backend->pos, &pos, start)) {
            PN_CRASH("commit:unslept");
            return PN_SIGNAL;
        }
    }
    if ((pn_load_relaxed(&seg->owed[slot / 64]) & mask) == 0 ||
        pn_since(now, pn_load_relaxed(&backend->signalled_at)) < PN_OWED_NS)
        return PN_NO_SIGNAL;
    pn_store_relaxed(&backend->signalled_at, (uint64_t) now);
    return PN_SIGNAL_AGAIN;
}

void pn_clear_owed(struct pn_conn *conn)
{
    uint64_t mask = 1ULL << (conn->slot % 64);
    pn_atomic_u64 *word = &conn->seg->owed[conn->slot / 64];
    if ((pn_load_relaxed(word) & mask) != 0 && pn_owns_slot(conn))
        pn_fetch_and(word, ~mask);
    PN_CRASH("wake:owed-cleared");
}

bool pn_wake_self(struct pn_conn *conn)
{
    struct QueueBackendStatus *me = conn->me;
    uint64_t pos = pn_load_acquire(&me->pos);
    if ((pos & PN_ASLEEP) == 0)
        return true;
    uint64_t consumed = pos & ~PN_ASLEEP;
    /* seq_cst: not before pn_fall_asleep()'s exchange, which acquire alone does not forbid (1) */
    if (pn_load_seq_cst(&me->want) <= consumed)
        return false;
    if (pn_held_back(conn))
        return false;
    if (!pn_owns_slot(conn)) /* looked at after pos: a new owner's pos is another one */
        return false;
    /* from was written before want; it cannot change while we are not quiet */
    pn_cas_u64(&me->pos, &pos,
               pn_later(consumed, pn_load_relaxed(&me->from) & ~PN_ASLEEP)); /* scribbled over? */
    PN_CRASH("wake:unslept");
    return true; /* lost: a notifier did it */
}

bool pn_fall_asleep(struct pn_conn *conn, QueuePosition pos)
{
    /*
     * Full fence: pairs with the notifier's in pn_announce_locked().  It fails if the slot is
     * another's; or if it is ours, and an earlier owner, which does not know yet, has put it to
     * sleep here.  So look in any case.
     */
    pn_cas(&conn->me->pos, &pos, pos | PN_ASLEEP);
    PN_CRASH("sleep:asleep");
    bool asleep = !pn_wake_self(conn);
    if (asleep) {
        PN_CRASH("sleep:fenced");
        pn_room_wake(conn->seg);
    } else {
        PN_CRASH("sleep:rewoken");
    }
    return asleep;
}

__attribute__((constructor)) static void pn_constructor(void)
{
    initialise_process();
}
