/*
 * handlers.c - our signal handler in a program that is not ours, and the host's handlers behind it.
 *
 * 1. What is not tagged as ours is passed on to the handler that was there before, as the kernel
 *    would call it: with its mask, once if it is for one signal, errno kept.  Where the default was
 *    there, it is taken.
 * 2. A handler that the host installs later stands in front of ours until the next look
 *    (pn_handler_arm), which puts ours in front of that one.  So there is a list of dispositions
 *    for each signal, and an entry of ours in front of each: a handler of the host's that calls
 *    what it found, or puts it back, has the entry that stands in front of what is older than it.
 * 3. A handler that has found the entry in front of itself, since it was installed twice, would go
 *    round for ever.  So a chain that runs (`passed`) only ever goes on to what is older.  It may
 *    have been left by siglongjmp(): what tells is in is_passed_on().
 * 4. A host's handler may know the number alone (is_told).  Then nothing is made of the rest.
 */
#define _GNU_SOURCE
#include "wakeup/handlers.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "base/os.h"
#include "segment/process.h"
#include "wakeup/procsignal.h"
#include "wakeup/send.h"
#include "wakeup/stack.h"

enum { MAX_SIGNALS = 65, ONCE = (int) SA_RESETHAND, ENTRIES = 8 };

/* ---- what stands behind ours ----------------------------------------------------------------- */

/* What stood before our handler, per signal; the newest first (2).  Never freed: a handler reads
 * it. */
struct disposition {
    struct sigaction sa, ours;
    uint32_t depth;
    pn_atomic_u32 spent; /* SA_RESETHAND: it was called, and the kernel would have forgotten it */
    struct disposition *older;
};
static _Atomic(struct disposition *) previous[MAX_SIGNALS];

static pn_atomic_u32 armed_by[MAX_SIGNALS]; /* connections that use it.  Process lock */

static void enter(uint32_t entry, int signo, siginfo_t *info, void *context);

#define ENTRY(n)                                                                                   \
    static void entry_##n(int signo, siginfo_t *info, void *context)                               \
    {                                                                                              \
        enter(n, signo, info, context);                                                            \
    }
ENTRY(0)
ENTRY(1)
ENTRY(2)
ENTRY(3)
ENTRY(4)
ENTRY(5)
ENTRY(6)
ENTRY(7)

static void (*const entries[ENTRIES])(int, siginfo_t *, void *) = {
    entry_0, entry_1, entry_2, entry_3, entry_4, entry_5, entry_6, entry_7};

/* ENTRIES: it is not ours. */
static uint32_t entry_of(const struct sigaction *sa)
{
    uint32_t entry = 0;
    while (entry < ENTRIES && sa->sa_sigaction != entries[entry])
        entry++;
    return entry;
}

/* What that entry stands in front of. */
static struct disposition *behind(int signo, uint32_t entry)
{
    struct disposition *newest = pn_load_acquire(&previous[signo]), *d = newest;
    while (d != NULL && d->depth % ENTRIES != entry)
        d = d->older;
    return d != NULL ? d : newest;
}

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

static bool is_tagged(const siginfo_t *info)
{
    return info->si_code == SI_QUEUE &&
           (uint64_t) (uintptr_t) info->si_value.sival_ptr >> 32 == PN_SIGNAL_MAGIC;
}

static bool is_ours(const siginfo_t *info, bool had_flag)
{
    return (info != NULL && is_tagged(info)) ||
           (had_flag && (lost_its_info(info) || raised_here(info)));
}

static bool is_the_same(const struct sigaction *a, const struct sigaction *b)
{
    return a->sa_sigaction == b->sa_sigaction && a->sa_flags == b->sa_flags;
}

/* Whether it has installed itself again, over ours; for one call more, if it was for one. */
static bool is_back(const struct sigaction *was, const struct sigaction *now)
{
    return (was->sa_flags & ONCE) != 0 ? is_the_same(was, now)
                                       : now->sa_sigaction == was->sa_sigaction;
}

/* Of what the signal has interrupted.  The kernel blocks all for ours; where it has not, a handler
 * of the host called ours, which runs with that and more. */
static sigset_t interrupted_mask(const ucontext_t *context)
{
    sigset_t mask;
    sigemptyset(&mask);
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    if (context != NULL && sigismember(&mask, SIGTERM) == 1)
        memcpy(&mask, &context->uc_sigmask, _NSIG / 8); /* the kernel's is no larger */
    return mask;
}

/* Put ours in front of a handler that has installed itself again. */
static void step_back_in_front(int signo, struct disposition *turn)
{
    struct sigaction now;
    if (pn_load_seq_cst(&armed_by[signo]) == 0 || sigaction(signo, NULL, &now) != 0 ||
        !is_back(&turn->sa, &now))
        return;
    pn_store_relaxed(&turn->spent, 0);
    sigaction(signo, &turn->ours, &now);
    if (pn_load_seq_cst(&armed_by[signo]) == 0 || !is_back(&turn->sa, &now))
        sigaction(signo, &now, NULL); /* another thread was quicker: a close, or an installation */
}

/*
 * Call a handler that was here before us as the kernel would.  One that passes signals on by
 * raise() installs itself again afterwards, over ours (faulthandler with chain=True), and so does
 * one of System V, which the kernel calls once.
 */
static void call_previous(int signo, siginfo_t *info, void *context, struct disposition *turn)
{
    const struct sigaction *was = &turn->sa;
    siginfo_t bare = {.si_signo = signo}; /* it may read one */
    sigset_t mask = interrupted_mask(context), before;
    sigorset(&mask, &mask, &was->sa_mask);
    if ((was->sa_flags & SA_NODEFER) == 0)
        sigaddset(&mask, signo);
    pthread_sigmask(SIG_SETMASK, &mask, &before); /* ours blocks everything */
    if ((was->sa_flags & SA_SIGINFO) != 0)
        was->sa_sigaction(signo, info != NULL ? info : &bare, context);
    else
        was->sa_handler(signo);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    step_back_in_front(signo, turn);
}

/* The innermost call of a handler that stood before ours. */
struct passed {
    int signo;
    struct disposition *turn; /* it */
    uintptr_t frame;          /* of chain(); the stack grows down */
    const void *context;
    const volatile uint64_t *mark; /* in that frame; it has a value of its own each time */
    uint64_t value;
};

/* PN_TLS_AT_START, since TLS on demand would malloc. */
static _Thread_local struct passed passed PN_TLS_AT_START;

static bool sent_by_this_process(const siginfo_t *info)
{
    return info == NULL ||
           ((info->si_code == SI_TKILL || info->si_code == SI_USER || info->si_code == SI_QUEUE) &&
            info->si_pid == pn_my_pid);
}

/* The kernel reads the mark first, since the stack that it was on may be gone: of a coroutine. */
__attribute__((no_sanitize_address)) static bool is_marked(void)
{
    enum { NO_WAY = -1 };
    return syscall(SYS_rt_sigprocmask, NO_WAY, passed.mark, NULL, _NSIG / 8) != 0 &&
           errno == EINVAL && *passed.mark == passed.value;
}

/* On an alternate stack the frame of a handler that does not run there says nothing. */
static bool is_below(uintptr_t frame)
{
    stack_t now;
    return frame < passed.frame ||
           (sigaltstack(NULL, &now) == 0 && (now.ss_flags & SS_ONSTACK) != 0 &&
            passed.frame - (uintptr_t) now.ss_sp >= now.ss_size);
}

/*
 * Did that handler pass the signal on to ours, by a call or by raising it again?  It may have left
 * by siglongjmp() long ago.  Then its frame does not stand above ours any more; or the thread has
 * gone deeper since, and what another process sends has a context of its own.  Of what the thread
 * sends itself there the mark tells, as long as other frames stand where it was.
 */
static bool is_passed_on(int signo, const siginfo_t *info, const void *context, uintptr_t frame)
{
    return passed.signo == signo &&
           (context == NULL || context == passed.context || sent_by_this_process(info)) &&
           is_below(frame) && is_marked();
}

/* With SA_SIGINFO or not: the kernel looks at the address alone. */
static bool is_handler(const struct sigaction *sa)
{
    return sa->sa_handler != SIG_DFL && sa->sa_handler != SIG_IGN;
}

/* Whether it is to be called: one for one signal only once, then the default is in its place. */
static bool take_turn(struct disposition *turn)
{
    return is_handler(&turn->sa) &&
           ((turn->sa.sa_flags & ONCE) == 0 || pn_exchange(&turn->spent, 1) == 0);
}

static void chain(uint32_t entry, int signo, siginfo_t *info, void *context)
{
    /*
     * Nested when the handler before ours passed the signal on to ours.  If it has found the entry
     * that stands in front of it, it is the turn of the one before that.  So a handler that was
     * installed twice comes to an end.
     */
    const uintptr_t frame = (uintptr_t) __builtin_frame_address(0);
    const bool is_nested = is_passed_on(signo, info, context, frame);
    struct disposition *turn = behind(signo, entry);
    if (is_nested && turn->depth >= passed.turn->depth)
        turn = passed.turn->older;
    if (turn == NULL)
        return;
    const struct passed outer = passed;
    static _Thread_local uint64_t values PN_TLS_AT_START;
    const volatile uint64_t mark = ++values * 0x9e3779b97f4a7c15ULL;
    passed = (struct passed) {.signo = signo,
                              .turn = turn,
                              .frame = frame,
                              .context = context,
                              .mark = &mark,
                              .value = mark};
    if (take_turn(turn)) {
        call_previous(signo, info, context, turn);
    } else if (turn->sa.sa_handler != SIG_IGN) {
        /* the host never wanted it: do what would have happened without us, terminate; but not
         * for one that was queued and lost its info, or was passed on by a handler before ours:
         * that was one of ours, more likely than not.  A default ends no first process. */
        if (!lost_its_info(info) && (is_nested || !raised_here(info)) && pn_my_pid != 1) {
            signal(signo, SIG_DFL);
            raise(signo); /* pending until this handler returns */
        }
    }
    passed = outer;
}

/* ---- ours ------------------------------------------------------------------------------------ */

/*
 * Is there more than a number?  A handler that the host installed by signal() calls what it found
 * with that alone; the rest is whatever stands in the registers, or what the kernel has left out
 * for want of SA_SIGINFO.  The kernel blocks all but the faults for ours, ThreadSanitizer all.
 */
static bool is_told(int signo)
{
    sigset_t mask;
    struct sigaction front;
    sigemptyset(&mask);
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    bool all = sigismember(&mask, SIGTERM) == 1 && sigismember(&mask, SIGWINCH) == 1;
#if !defined(__SANITIZE_THREAD__)
    all = all && sigismember(&mask, SIGTRAP) == 0; /* hosts leave SIGSEGV out as well */
#endif
    if (all)
        return true;
    /* ours has no SA_SIGINFO where signal() has put it back */
    if (sigaction(signo, NULL, &front) != 0 || (front.sa_flags & SA_SIGINFO) == 0)
        return false;
    return entry_of(&front) == ENTRIES || passed.signo != signo ||
           (passed.turn->sa.sa_flags & SA_SIGINFO) != 0;
}

/* What the kernel has written stands above the frame of ours; to see that takes no system call. */
static bool is_tagged_by_the_kernel(const siginfo_t *info)
{
    enum { NEAR = 2048 };
    return (uintptr_t) info - (uintptr_t) __builtin_frame_address(0) < NEAR && is_tagged(info);
}

/* Where the next handler's siginfo will stand, which the kernel does not write for all of them. */
static void forget_tag(siginfo_t *info)
{
    info->si_code = SI_USER;
    info->si_pid = 0;
    info->si_value.sival_ptr = NULL;
}

static void enter(uint32_t entry, int signo, siginfo_t *info, void *context)
{
    int saved_errno = errno, cancel_state;
    /* A thread that is cancelled in write() would leave close() waiting for it. */
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel_state);
    uint32_t all_reasons = pn_procsignal_wake(signo);
    if ((all_reasons & 1U << PROCSIG_LOG_STACK) != 0)
        pn_stack_print();
    pthread_setcancelstate(cancel_state, NULL);
    if (!is_tagged_by_the_kernel(info)) {
        if (!is_told(signo))
            context = info = NULL;
        if (!is_ours(info, all_reasons != 0))
            chain(entry, signo, info, context);
    }
    if (info != NULL && is_tagged(info))
        forget_tag(info);
    errno = saved_errno;
}

static bool is_our_handler(const struct sigaction *sa)
{
    return (sa->sa_flags & SA_SIGINFO) != 0 && entry_of(sa) != ENTRIES;
}

/*
 * SA_RESTART as the host's own handler has it: Python's relies on EINTR to run at all.  SA_ONSTACK
 * likewise: a handler without it may take more than there is of an alternate stack.  Where there
 * was none the stacks of threads may be too small for any.
 */
static struct sigaction in_front_of(const struct sigaction *current, uint32_t entry)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
    struct sigaction sa;
    int as_the_hosts = SA_RESTART | SA_ONSTACK;
    if (is_handler(current))
        as_the_hosts &= current->sa_flags;
    memset(&sa, 0, sizeof sa);
    sa.sa_sigaction = entries[entry];
    sa.sa_flags = SA_SIGINFO | as_the_hosts;
    /* No other handler on top of ours: the stack may be 8 KiB, most of it taken by the kernel.
     * What a fault raises cannot wait. */
    sigfillset(&sa.sa_mask);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigdelset(&sa.sa_mask, faults[i]);
    return sa;
}

/* As the newest.  NULL: no memory. */
static struct disposition *remember(int signo, const struct sigaction *current)
{
    struct disposition *was = pn_load_relaxed(&previous[signo]), *d;
    if (was != NULL && is_the_same(&was->sa, current) &&
        memcmp(&was->sa.sa_mask, &current->sa_mask, _NSIG / 8) == 0) {
        pn_store_relaxed(&was->spent, 0);
        return was;
    }
    d = calloc(1, sizeof *d);
    if (d == NULL)
        return NULL;
    if (was != NULL && was->sa.sa_sigaction == current->sa_sigaction)
        was = was->older; /* it has other flags now, or another mask */
    d->sa = *current;
    d->older = was;
    d->depth = was == NULL ? 0 : was->depth + 1;
    d->ours = in_front_of(current, d->depth % ENTRIES);
    pn_store_release(&previous[signo], d);
    return d;
}

static int install(int signo, const struct sigaction *current)
{
    /* signal() puts ours back without SA_SIGINFO and the mask */
    const uint32_t entry = entry_of(current);
    const struct disposition *d = entry != ENTRIES ? behind(signo, entry) : NULL;
    if (d == NULL)
        d = remember(signo, current);
    if (d == NULL)
        return pn_fail(ENOMEM, "out of memory");
    if (sigaction(signo, &d->ours, NULL) != 0)
        return pn_fail(errno, "could not install the handler of signal %d: %s", signo,
                       strerror(errno));
    return 0;
}

int pn_handler_arm(struct pn_conn *conn)
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
static void give_back(struct pn_conn *conn)
{
    struct sigaction current;
    if (pn_load_relaxed(&conn->armed) == 0 || --armed_by[conn->signo] != 0)
        return;
    if (sigaction(conn->signo, NULL, &current) != 0 || entry_of(&current) == ENTRIES)
        return; /* not ours any more */
    /* NULL: the host has copied it from another signal */
    const struct disposition *was = behind(conn->signo, entry_of(&current));
    struct sigaction back = {.sa_handler = SIG_IGN};
    if (was != NULL && was->sa.sa_handler != SIG_DFL && pn_load_relaxed(&was->spent) == 0)
        back = was->sa;
    sigaction(conn->signo, &back, NULL);
}

void pn_handler_disarm(struct pn_conn *conn)
{
    pn_process_lock();
    give_back(conn);
    pn_process_unlock();
}

static void reset_in_child(void)
{
    memset((void *) armed_by, 0, sizeof armed_by); /* ours is inherited; no signal comes yet */
}

__attribute__((constructor)) static void initialise_handlers(void)
{
    pthread_atfork(NULL, NULL, reset_in_child);
}
