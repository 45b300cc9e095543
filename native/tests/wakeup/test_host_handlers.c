/*
 * Handlers of the host that stand before ours are called as the kernel would call them: once, if
 * they ask for that; on the stack that they ask for; and by handlers that know of a signal no more
 * than its number.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "children.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <sys/mman.h>

enum { ONCE = (int) SA_RESETHAND };

static volatile sig_atomic_t calls;

static void counts(int signo)
{
    (void) signo;
    calls++;
}

static void install(void (*handler)(int), int flags)
{
    const struct sigaction sa = {.sa_handler = handler, .sa_flags = flags};
    CHECK_EQ(sigaction(SIGUSR1, &sa, NULL), 0);
}

static struct sigaction installed(void)
{
    struct sigaction sa;
    CHECK_EQ(sigaction(SIGUSR1, NULL, &sa), 0);
    return sa;
}

static pn_conn *listening_by(int signo)
{
    pn_conn *conn;
    CHECK_OK(pn_connect(engine, "db", 2, signo, NULL, &conn));
    test_listen(conn, "c");
    return conn;
}

static pn_conn *listening(void)
{
    return listening_by(SIGUSR1);
}

/* ---- passed on without a context ------------------------------------------------------------- */

static struct sigaction found;
static sigset_t mask;

static void notes_its_mask(int signo)
{
    counts(signo);
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
}

/* It was installed without SA_SIGINFO. */
static void passes_a_number_on(int signo)
{
    found.sa_sigaction(signo, NULL, NULL);
}

static void host_that_passes_a_number_on(void *arg)
{
    struct sigaction sa = {.sa_handler = notes_its_mask};
    (void) arg;
    sigaddset(&sa.sa_mask, SIGHUP);
    CHECK_EQ(sigaction(SIGUSR1, &sa, NULL), 0);
    pn_conn *conn = listening();
    found = installed();
    install(passes_a_number_on, 0);
    for (int i = 1; i < 3; i++) {
        raise(SIGUSR1);
        CHECK_EQ(calls, i);
        CHECK(sigismember(&mask, SIGUSR1) && sigismember(&mask, SIGHUP));
#if !defined(__SANITIZE_THREAD__) /* which calls handlers with all signals blocked */
        CHECK(!sigismember(&mask, SIGTERM));
#endif
        test_listen(conn, "d"); /* and ours in front of that: the second comes to it twice */
    }
    CHECK_EQ(pthread_sigmask(SIG_SETMASK, NULL, &mask), 0);
    CHECK(!sigismember(&mask, SIGUSR1) && !sigismember(&mask, SIGHUP));
    pn_conn_close(conn);
}

static void test_a_signal_is_passed_on_without_its_context(void)
{
    begin();
    CHECK_CHILD(spawn(host_that_passes_a_number_on, NULL), 0);
    end();
}

/* ---- another signal -------------------------------------------------------------------------- */

static void raises_another(int signo)
{
    if (signo == SIGUSR1)
        raise(SIGRTMIN + 4);
    counts(signo);
}

static void host_of_two_signals(void *arg)
{
    (void) arg;
    install(raises_another, 0);
    CHECK(signal(SIGRTMIN + 4, raises_another) != SIG_ERR);
    pn_conn *conn = listening(), *other = listening_by(SIGRTMIN + 4);
    for (int i = 1; i < 3; i++) {
        raise(SIGUSR1);
        CHECK_EQ(calls, 2 * i);
    }
    pn_conn_close(conn);
    pn_conn_close(other);
}

static void test_what_a_handler_raises_besides_is_passed_on(void)
{
    begin();
    CHECK_CHILD(spawn(host_of_two_signals, NULL), 0);
    end();
}

/* ---- once ------------------------------------------------------------------------------------ */

/* As the handlers of System V do. */
static void stays(int signo)
{
    counts(signo);
    install(stays, ONCE | SA_NODEFER);
}

static void host_for_one_signal(void *arg)
{
    (void) arg;
    install(counts, ONCE);
    pn_conn *conn = listening();
    raise(SIGUSR1);
    CHECK_EQ(calls, 1);
    install(counts, ONCE); /* for another one */
    test_listen(conn, "d");
    raise(SIGUSR1);
    CHECK_EQ(calls, 2);
    pn_conn_close(conn);
    CHECK(installed().sa_handler == SIG_IGN); /* as after any default */
    raise(SIGUSR1);
    conn = listening();
    raise(SIGUSR1);
    CHECK_EQ(calls, 2);
    pn_conn_close(conn);
}

static void host_for_two_signals(void *arg)
{
    (void) arg;
    install(counts, ONCE);
    (void) listening();
    raise(SIGUSR1);
    CHECK_EQ(calls, 1);
    kill(getpid(), SIGUSR1); /* what a handler raises may be ours, and ends nothing */
    FAIL("the second signal is to end the process");
}

static void host_of_system_v(void *arg)
{
    (void) arg;
    install(stays, ONCE | SA_NODEFER);
    pn_conn *conn = listening();
    const struct sigaction ours = installed();
    for (int i = 1; i < 5; i++) {
        raise(SIGUSR1);
        CHECK_EQ(calls, i);
        CHECK(installed().sa_sigaction == ours.sa_sigaction);
    }
    pn_conn_close(conn);
    CHECK(installed().sa_handler == stays);
}

static void test_a_handler_for_one_signal_is_called_once(void)
{
    begin();
    CHECK_CHILD(spawn(host_for_one_signal, NULL), 0);
    CHECK_CHILD(spawn(host_of_system_v, NULL), 0);
    CHECK_KILLED(spawn(host_for_two_signals, NULL), SIGUSR1);
    end();
}

/* ---- on which stack -------------------------------------------------------------------------- */

enum { ALTERNATE = 64 << 10 };
static unsigned char *alternate;
static volatile bool was_there;

static void notes_its_stack(int signo)
{
    const unsigned char *here = __builtin_frame_address(0);
    counts(signo);
    was_there = here > alternate && here < alternate + ALTERNATE;
}

static bool is_called_there(const struct sigaction *sa)
{
    const int before = calls;
    CHECK_EQ(sigaction(SIGUSR1, sa, NULL), 0);
    raise(SIGUSR1);
    CHECK_EQ(calls, before + 1);
    return was_there;
}

static void host_with_a_small_stack_beside(void *arg)
{
    (void) arg;
    alternate = malloc(ALTERNATE);
    const stack_t given = {.ss_sp = alternate, .ss_size = ALTERNATE};
    CHECK_EQ(sigaltstack(&given, NULL), 0);
    for (int flags = 0; flags <= SA_ONSTACK; flags += SA_ONSTACK) {
        const struct sigaction host = {.sa_handler = notes_its_stack, .sa_flags = flags};
        CHECK_EQ(is_called_there(&host), flags != 0);
        pn_conn *conn = listening();
        const struct sigaction ours = installed();
        CHECK(ours.sa_sigaction != host.sa_sigaction);
        CHECK_EQ(is_called_there(&ours), flags != 0);
        pn_conn_close(conn);
    }
    install(SIG_DFL, 0); /* and where no handler says that the stacks of threads are large enough */
    pn_conn *conn = listening();
    CHECK((installed().sa_flags & SA_ONSTACK) != 0);
    pn_conn_close(conn);
    free(alternate);
}

static void test_a_handler_has_the_stack_that_it_asked_for(void)
{
    begin();
    CHECK_CHILD(spawn(host_with_a_small_stack_beside, NULL), 0);
    end();
}

/* ---- SIG_IGN and SIG_DFL with SA_SIGINFO ----------------------------------------------------- */

/* So Go's runtime installs them; and so the kernel leaves a handler for one signal. */
static void host_that_ignores(void *arg)
{
    (void) arg;
    install(SIG_IGN, SA_SIGINFO | SA_RESTART);
    pn_conn *conn = listening();
    raise(SIGUSR1);
    pn_conn_close(conn);
    CHECK(installed().sa_handler == SIG_IGN);
}

static void host_with_the_default(void *arg)
{
    if (arg != NULL) {
        install(counts, SA_SIGINFO | (int) SA_RESETHAND);
        raise(SIGUSR1);
        CHECK_EQ(calls, 1);
    } else {
        install(SIG_DFL, SA_SIGINFO);
    }
    pn_conn *conn = listening();
    pn_conn_close(conn);
    CHECK(installed().sa_handler == SIG_IGN); /* a late wake-up terminates nothing */
    CHECK_EQ(signal(SIGUSR1, SIG_DFL), SIG_IGN);
    install(SIG_DFL, SA_SIGINFO);
    listening();
    pid_t pid = getpid(), child = fork();
    if (child == 0) {
        kill(pid, SIGUSR1); /* not of ours: as without us */
        _exit(0);
    }
    for (;;)
        pause();
}

static void test_what_is_no_handler_is_not_called(void)
{
    begin();
    CHECK_CHILD(spawn(host_that_ignores, NULL), 0);
    for (uintptr_t once = 0; once < 2; once++) {
        int status = reap(spawn(host_with_the_default, (void *) once));
        CHECK(WIFSIGNALED(status));
        CHECK_EQ(WTERMSIG(status), SIGUSR1);
    }
    end();
}

/* ---- jumping out, and what stays of the frame ------------------------------------------------ */

static sigjmp_buf out;

static void jumps_out(int signo)
{
    counts(signo);
    siglongjmp(out, 1);
}

/* Nothing is written to what lies between, but to its end. */
__attribute__((noinline)) static void raises_below(size_t size)
{
    volatile char *room = __builtin_alloca(size + 1);
    room[0] = 0;
    raise(SIGUSR1);
}

static void host_that_jumps_and_goes_deeper(void *arg)
{
    (void) arg;
    install(jumps_out, 0);
    pn_conn *conn = listening();
    for (volatile int i = 0; i < 80; i++) {
        if (sigsetjmp(out, 1) == 0)
            raises_below(i % 2 == 0 ? 0 : (size_t) i * 512);
        CHECK_EQ(calls, i + 1);
    }
    pn_conn_close(conn);
}

static void test_nothing_of_a_frame_that_was_left_hides_a_signal(void)
{
    begin();
    CHECK_CHILD(spawn(host_that_jumps_and_goes_deeper, NULL), 0);
    end();
}

/* ---- the last close, in another thread, while a handler of the host runs --------------------- */

#if !defined(__SANITIZE_THREAD__) /* takes the lock of a forked child for one that is held */
static pn_conn *to_close;
static atomic_int handler_runs, has_closed;

static void *closes(void *arg)
{
    while (!atomic_load(&handler_runs))
        sched_yield();
    pn_conn_close(to_close);
    atomic_store(&has_closed, 1);
    return arg;
}

static void waits_for_the_close(int signo)
{
    (void) signo;
    atomic_store(&handler_runs, 1);
    while (!atomic_load(&has_closed))
        sched_yield();
}

static void host_that_is_left(void *arg)
{
    pthread_t thread;
    (void) arg;
    install(waits_for_the_close, SA_NODEFER);
    to_close = listening();
    CHECK_EQ(pthread_create(&thread, NULL, closes, NULL), 0);
    raise(SIGUSR1);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(installed().sa_handler == waits_for_the_close);
}

static void test_our_handler_does_not_come_back_after_the_last_close(void)
{
    begin();
    CHECK_CHILD(spawn(host_that_is_left, NULL), 0);
    end();
}
#endif

int main(void)
{
    test_watchdog(60);
    RUN(test_a_signal_is_passed_on_without_its_context);
    RUN(test_what_a_handler_raises_besides_is_passed_on);
    RUN(test_a_handler_for_one_signal_is_called_once);
    RUN(test_a_handler_has_the_stack_that_it_asked_for);
    RUN(test_what_is_no_handler_is_not_called);
    RUN(test_nothing_of_a_frame_that_was_left_hides_a_signal);
#if !defined(__SANITIZE_THREAD__)
    RUN(test_our_handler_does_not_come_back_after_the_last_close);
#endif
    return tests_done();
}
