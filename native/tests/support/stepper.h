/*
 * stepper.h - a child that is traced, taken to any of its instructions, and killed there.
 *
 * 1. The child prepares itself at full speed and stops in step_begin(); from there on until
 *    step_end() is the section of interest.  A point of it is a number of steps: 0 is before its
 *    first instruction.  A system call is one step; a step of `rep movs` is one repetition.
 * 2. step_record() goes through a section once by PTRACE_SINGLESTEP and notes where it stands after
 *    each step.  step_to() brings another child, which does the same, to a point: it runs at full
 *    speed to a near place before it that is not often passed (a debug register stops it there) and
 *    goes the rest by single steps; where there is no such register, all the way.  Two children
 *    need not take the same way, since slots, positions and the time differ.  So what is killed
 *    may be a neighbour of the point that was meant; how often is counted.
 * 3. Signals that the child is sent meanwhile are delivered to it; stepping enters the handler.
 */
#ifndef PN_STEPPER_H
#define PN_STEPPER_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/ptrace.h>
#include <sys/time.h>
#include <sys/user.h>

#include "harness.h"

enum {
    STEP_MOST = 400000,   /* steps of a section */
    STEP_BUCKETS = 65536, /* places; a power of two */
    STEP_ASLEEP_MS = 300
};

enum step_phase { STEP_PREPARING, STEP_INSIDE, STEP_DONE };

struct step_trace {
    uint32_t n;                /* steps of the section */
    uint32_t sleeps;           /* the last step in which one sleeps for something to read */
    uint64_t place[STEP_MOST]; /* instruction pointer after so many steps */
    uint32_t times[STEP_MOST]; /* how often one came to that place until then, this included */
};

static _Atomic(uint32_t) *step_phase; /* in memory shared with the children */
static bool step_no_registers;        /* no debug registers: step all the way */
static unsigned long step_strayed;    /* children that took another way than the recorded one */

static void step_init(void)
{
    step_phase = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(step_phase != MAP_FAILED);
}

/* ---- in the child ---------------------------------------------------------------------------- */

static void step_begin(void)
{
    *step_phase = STEP_INSIDE;
    raise(SIGSTOP);
}

static void step_end(void)
{
    *step_phase = STEP_DONE;
    raise(SIGSTOP);
}

/* ---- in the parent --------------------------------------------------------------------------- */

static bool step_wait(pid_t pid, int *status)
{
    while (waitpid(pid, status, __WALL) != pid)
        CHECK_EQ(errno, EINTR);
    return WIFSTOPPED(*status);
}

/* A child that stands in step_begin(). */
static pid_t step_start(void (*body)(void), char **why)
{
    int status;
    *step_phase = STEP_PREPARING;
    *why = NULL;
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
            _exit(77);
        body();
        _exit(0);
    }
    while (step_wait(pid, &status)) {
        int signo = WSTOPSIG(status);
        if (signo == SIGSTOP && *step_phase == STEP_INSIDE) {
            ptrace(PTRACE_SETOPTIONS, pid, NULL, (void *) PTRACE_O_EXITKILL);
            return pid;
        }
        CHECK_EQ(ptrace(PTRACE_CONT, pid, NULL, (void *) (uintptr_t) signo), 0);
    }
    *why = WIFEXITED(status) && WEXITSTATUS(status) == 77 ? "ptrace is refused" : "it ended";
    return -1;
}

static uint64_t step_place(pid_t pid)
{
#if defined(__x86_64__)
    return (uint64_t) ptrace(PTRACE_PEEKUSER, pid, (void *) offsetof(struct user, regs.rip), NULL);
#else
    (void) pid;
    return 0;
#endif
}

/* Is the next step a system call in which one sleeps for something to read? */
static bool step_will_poll(pid_t pid)
{
#if defined(__x86_64__)
    long text = ptrace(PTRACE_PEEKTEXT, pid, (void *) step_place(pid), NULL);
    long number = ptrace(PTRACE_PEEKUSER, pid, (void *) offsetof(struct user, regs.rax), NULL);
    return (text & 0xffff) == 0x050f &&
           (number == SYS_epoll_pwait2 || number == SYS_ppoll || number == SYS_poll);
#else
    (void) pid;
    return false;
#endif
}

/* One instruction, with what signals come before it.  False: the section is over. */
static bool step_once(pid_t pid)
{
    uintptr_t signo = 0;
    int status;
    do {
        CHECK_EQ(ptrace(PTRACE_SINGLESTEP, pid, NULL, (void *) signo), 0);
        if (!step_wait(pid, &status))
            FAIL("the stepped process ended with status %x", (unsigned) status);
        signo = WSTOPSIG(status) == SIGTRAP ? 0 : (uintptr_t) WSTOPSIG(status);
    } while (signo != 0);
    return *step_phase != STEP_DONE;
}

enum step_condition { /* of debug register 0, as register 7 wants it */
                      STEP_NEVER = 0,
                      STEP_EXECUTED = 1,
                      STEP_WRITTEN4 = 0xd0001,
                      STEP_WRITTEN8 = 0x90001
};

/* Stop where `place` is come to, or after it was written to. */
static bool step_register(pid_t pid, uint64_t place, enum step_condition when)
{
#if defined(__x86_64__)
    if (place != 0 && ptrace(PTRACE_POKEUSER, pid, (void *) offsetof(struct user, u_debugreg[0]),
                             (void *) place) != 0)
        return false;
    return ptrace(PTRACE_POKEUSER, pid, (void *) offsetof(struct user, u_debugreg[7]),
                  (void *) (uintptr_t) when) == 0;
#else
    (void) pid;
    (void) place;
    (void) when;
    return false;
#endif
}

/* One that sleeps for ever has gone past where it should have stopped. */
static pid_t step_running;

static void step_bound(int signo)
{
    (void) signo;
    kill(step_running, SIGSTOP);
}

static void step_set_bound(pid_t pid, long ms)
{
    const struct itimerval timer = {.it_value = {ms / 1000, ms % 1000 * 1000}};
    step_running = pid;
    signal(SIGALRM, step_bound);
    CHECK_EQ(setitimer(ITIMER_REAL, &timer, NULL), 0);
}

/* Run on until the register stops it.  False: it is at the end of the section, or sleeps. */
static bool step_run(pid_t pid)
{
    uintptr_t signo = 0;
    int status;
    do {
        CHECK_EQ(ptrace(PTRACE_CONT, pid, NULL, (void *) signo), 0);
        if (!step_wait(pid, &status))
            FAIL("the stepped process ended with status %x", (unsigned) status);
        signo = (uintptr_t) WSTOPSIG(status);
        if (signo == SIGSTOP)
            return false;
    } while (signo != SIGTRAP);
    return true;
}

/* Take the child to behind the store to `word`, of 4 or 8 bytes, that makes `holds` true. */
static void step_until(pid_t pid, bool (*holds)(void), const void *word, size_t size)
{
    enum step_condition written = size == 4 ? STEP_WRITTEN4 : STEP_WRITTEN8;
    bool watched = step_register(pid, (uint64_t) (uintptr_t) word, written);
    while (!holds())
        CHECK(watched ? step_run(pid) : step_once(pid));
}

/* By hashing, since a section may have 100,000 steps.  Repetitions of one instruction count once,
 * as for the debug register. */
static void step_count(struct step_trace *trace)
{
    static uint64_t place[STEP_BUCKETS];
    static uint32_t times[STEP_BUCKETS];
    memset(times, 0, sizeof times);
    for (uint32_t i = 1; i < trace->n; i++) {
        uint64_t at = trace->place[i], h = at * 0x9e3779b97f4a7c15ULL >> 48;
        while (times[h % STEP_BUCKETS] != 0 && place[h % STEP_BUCKETS] != at)
            h++;
        place[h % STEP_BUCKETS] = at;
        times[h % STEP_BUCKETS] += at != trace->place[i - 1] || times[h % STEP_BUCKETS] == 0;
        trace->times[i] = times[h % STEP_BUCKETS];
    }
}

/* Go through the whole section. */
static void step_record(pid_t pid, struct step_trace *trace)
{
    bool more = true;
    trace->n = 0;
    trace->sleeps = 0;
    trace->place[0] = step_place(pid);
    while (more) {
        if (step_will_poll(pid))
            trace->sleeps = trace->n;
        more = step_once(pid);
        CHECK(trace->n + 1 < STEP_MOST);
        trace->n += more;
        trace->place[trace->n] = step_place(pid);
    }
    step_count(trace);
    if (!step_register(pid, trace->place[0], STEP_EXECUTED) || !step_register(pid, 0, STEP_NEVER))
        step_no_registers = true;
}

/* The cheapest way to point n: run to a place before it (0: from the start), then single steps. */
static uint32_t step_plan(const struct step_trace *trace, uint32_t n)
{
    uint32_t best = 0, least = n;
    for (uint32_t m = n; m > 0 && n - m < least && !step_no_registers; m--) {
        uint32_t cost = trace->times[m] + n - m;
        if (cost < least && m < trace->n && trace->place[m] != trace->place[m - 1]) {
            least = cost;
            best = m;
        }
    }
    return best;
}

/* Take the child to point n.  False: its section was over before that. */
static bool step_to(pid_t pid, const struct step_trace *trace, uint32_t n)
{
    uint32_t from = step_plan(trace, n);
    if (from > 0) {
        CHECK(step_register(pid, trace->place[from], STEP_EXECUTED));
        bool there = true;
        if (trace->sleeps != 0)
            step_set_bound(pid, STEP_ASLEEP_MS);
        for (uint32_t times = trace->times[from]; there && times > 0; times--)
            there = step_run(pid);
        if (trace->sleeps != 0)
            step_set_bound(pid, 0);
        if (!there) {
            step_strayed++;
            return false;
        }
        step_register(pid, 0, STEP_NEVER);
    }
    for (uint32_t i = from; i < n; i++)
        if (!step_once(pid))
            return false;
    if (n < trace->n && step_place(pid) != trace->place[n])
        step_strayed++;
    return true;
}

static void step_kill(pid_t pid)
{
    int status;
    kill(pid, SIGKILL);
    while (step_wait(pid, &status))
        ;
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

#endif
