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

/* ---- passed on by raise() -------------------------------------------------------------------- */

static volatile sig_atomic_t newer_calls;

/* Without SA_NODEFER it has to unblock the signal. */
static void raises_it_for_the_older(int signo)
{
    struct sigaction me;
    sigset_t it, before;
    CHECK(newer_calls++ < 100); /* no end */
    sigemptyset(&it);
    sigaddset(&it, signo);
    CHECK_EQ(sigaction(signo, &found, &me), 0);
    CHECK_EQ(pthread_sigmask(SIG_UNBLOCK, &it, &before), 0);
    raise(signo);
    CHECK_EQ(pthread_sigmask(SIG_SETMASK, &before, NULL), 0);
    CHECK_EQ(sigaction(signo, &me, NULL), 0);
}

__attribute__((noinline)) static void raises_below(size_t size)
{
    volatile char *room = __builtin_alloca(size + 1);
    room[0] = 0;
    raise(SIGUSR1);
}

/* The older one has an alternate stack, the newer one has not; that stack lies above the frames. */
static void host_that_raises_it(void *arg)
{
    char above[ALTERNATE];
    const stack_t given = {.ss_sp = above, .ss_size = sizeof above};
    const bool on_two_stacks = arg != NULL;
    CHECK_EQ(sigaltstack(&given, NULL), 0);
    install(counts, on_two_stacks ? SA_ONSTACK : 0);
    pn_conn *conn = listening();
    found = installed();
    install(raises_it_for_the_older, on_two_stacks ? SA_NODEFER : 0);
    test_listen(conn, "d");
    const struct sigaction ours = installed();
    for (int i = 1; i < 5; i++) {
        raises_below(64 << 10);
        CHECK_EQ(newer_calls, i);
        CHECK_EQ(calls, i);
        CHECK(installed().sa_sigaction == ours.sa_sigaction); /* in front of it again */
    }
    pn_conn_close(conn);
}

static void test_a_signal_that_is_raised_for_an_older_handler_comes_to_each_once(void)
{
    begin();
    for (uintptr_t two_stacks = 0; two_stacks < 2; two_stacks++)
        CHECK_CHILD(spawn(host_that_raises_it, (void *) two_stacks), 0);
    end();
}

/* ---- a handler that installs itself, and the mask of one that calls ours --------------------- */

static void installs_itself(int signo)
{
    counts(signo);
    CHECK(signal(signo, installs_itself) != SIG_ERR);
}

static void host_that_installs_itself(void *arg)
{
    (void) arg;
    CHECK(signal(SIGUSR1, installs_itself) != SIG_ERR);
    pn_conn *conn = listening();
    const struct sigaction ours = installed();
    for (int i = 1; i < 5; i++) {
        raise(SIGUSR1);
        CHECK_EQ(calls, i);
        CHECK(installed().sa_sigaction == ours.sa_sigaction);
    }
    pn_conn_close(conn);
    CHECK(installed().sa_handler == installs_itself);
}

static void calls_ours(int signo, siginfo_t *info, void *context)
{
    found.sa_sigaction(signo, info, context);
}

static void host_that_calls_ours(void *arg)
{
    struct sigaction sa = {.sa_sigaction = calls_ours, .sa_flags = SA_SIGINFO};
    (void) arg;
    install(notes_its_mask, 0);
    pn_conn *conn = listening();
    found = installed();
    sigaddset(&sa.sa_mask, SIGHUP);
    CHECK_EQ(sigaction(SIGUSR1, &sa, NULL), 0);
    for (int i = 1; i < 3; i++) {
        raise(SIGUSR1);
        CHECK_EQ(calls, i);
#if !defined(__SANITIZE_THREAD__)
        CHECK(sigismember(&mask, SIGHUP)); /* the newer one may hold what SIGHUP's handler needs */
        CHECK(!sigismember(&mask, SIGTERM));
#endif
        test_listen(conn, "d"); /* ours in front */
    }
    pn_conn_close(conn);
}

static void test_a_handler_may_install_itself_or_call_ours(void)
{
    begin();
    CHECK_CHILD(spawn(host_that_installs_itself, NULL), 0);
    CHECK_CHILD(spawn(host_that_calls_ours, NULL), 0);
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

/* ---- a copy of ours -------------------------------------------------------------------------- */

/* As a host may that sets all its signals to what the first has. */
static void host_that_copies_ours(void *arg)
{
    (void) arg;
    pn_conn *first = listening();
    struct sigaction sa = installed();
    CHECK_EQ(sigaction(SIGRTMIN, &sa, NULL), 0);
    pn_conn *second = listening_by(SIGRTMIN);
    CHECK_OK(test_notify(second, "c", "x"));
    CHECK_POLL(second, "x");
    pn_conn_close(second);
    CHECK_EQ(sigaction(SIGRTMIN, NULL, &sa), 0);
    CHECK(sa.sa_handler == SIG_IGN); /* a late wake-up does not kill */
    pn_conn_close(first);
}

static void test_ours_may_be_copied_to_another_signal(void)
{
    begin();
    CHECK_CHILD(spawn(host_that_copies_ours, NULL), 0);
    end();
}

int main(void)
{
    test_watchdog(60);
    RUN(test_a_signal_is_passed_on_without_its_context);
    RUN(test_what_a_handler_raises_besides_is_passed_on);
    RUN(test_a_handler_for_one_signal_is_called_once);
    RUN(test_a_handler_has_the_stack_that_it_asked_for);
    RUN(test_what_is_no_handler_is_not_called);
    RUN(test_a_signal_that_is_raised_for_an_older_handler_comes_to_each_once);
    RUN(test_a_handler_may_install_itself_or_call_ours);
    RUN(test_ours_may_be_copied_to_another_signal);
#if !defined(__SANITIZE_THREAD__)
    RUN(test_our_handler_does_not_come_back_after_the_last_close);
#endif
    return tests_done();
}
