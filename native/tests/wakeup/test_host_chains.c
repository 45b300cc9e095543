/*
 * Handlers of the host that stand in front of ours and pass signals on to what they found: by the
 * number alone, as signal() lets them; put back later; with another mask.  And a thread that is
 * cancelled while ours runs in it.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "listening.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

static volatile sig_atomic_t calls, newer_calls;
static sigset_t mask;

static void counts(int signo)
{
    (void) signo;
    calls++;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
}

static struct sigaction installed(void)
{
    struct sigaction sa;
    CHECK_EQ(sigaction(SIGUSR1, NULL, &sa), 0);
    return sa;
}

static void install_counts(int besides)
{
    struct sigaction sa = {.sa_handler = counts};
    if (besides != 0)
        sigaddset(&sa.sa_mask, besides);
    CHECK_EQ(sigaction(SIGUSR1, &sa, NULL), 0);
}

static void (*found)(int, siginfo_t *, void *);

/* ---- the number alone ------------------------------------------------------------------------ */

#if !defined(__SANITIZE_THREAD__) /* calls handlers with all signals blocked, as the kernel ours */
static siginfo_t *garbage;

/* It calls what signal() returned with one argument; the registers of the others have something. */
static void passes_a_number_on(int signo)
{
    newer_calls++;
    found(signo, garbage, garbage);
}

enum { ILLEGIBLE, OF_ANOTHER, ILLEGIBLE_AND_MASKED, VARIANTS };

/* It may block what ours blocks, as far as its author thought of the faults. */
static void install_in_front(bool masked)
{
    struct sigaction sa = {.sa_handler = passes_a_number_on};
    if (masked) {
        sigfillset(&sa.sa_mask);
        sigdelset(&sa.sa_mask, SIGSEGV);
        sigdelset(&sa.sa_mask, SIGBUS);
        sigdelset(&sa.sa_mask, SIGFPE);
        sigdelset(&sa.sa_mask, SIGILL);
    }
    CHECK_EQ(sigaction(SIGUSR1, &sa, NULL), 0);
}

static void host_of_signal(void *arg)
{
    const uintptr_t variant = (uintptr_t) arg;
    static siginfo_t of_another;
    of_another.si_signo = SIGUSR1;
    of_another.si_code = SI_USER;
    of_another.si_pid = 1;
    garbage = variant == OF_ANOTHER ? &of_another : (siginfo_t *) (uintptr_t) SIGUSR1;
    pn_conn *conn = listening(0);
    int fd = sleep_on_descriptor(conn);
    found = installed().sa_sigaction;
    install_in_front(variant == ILLEGIBLE_AND_MASKED);
    test_tell(up);
    CHECK(readable_within(fd, TEST_PATIENCE_MS));
    CHECK_EQ(newer_calls, 1);
    CHECK_POLL(conn, "x");
    pn_conn_close(conn);
}

/* The default is before ours, and nothing that was not told makes the process take it. */
static void test_a_handler_may_pass_the_number_alone(void)
{
    begin_connected();
    for (uintptr_t variant = 0; variant < VARIANTS; variant++) {
        pid_t pid = spawn(host_of_signal, (void *) variant);
        test_hear(up);
        notify("x");
        CHECK_CHILD(pid, 0);
    }
    end();
}

static void (*found_by_signal)(int);

static void passes_nothing_else_on(int signo)
{
    newer_calls++;
    found_by_signal(signo);
}

static void signals_its_parent(void *arg)
{
    (void) arg;
    test_hear(down);
    kill(getppid(), SIGUSR1);
}

/*
 * Both signals come in the same place, and little is called in between that writes there; the
 * kernel writes no siginfo for the second.
 */
static void host_after_a_wake_up(void *arg)
{
    sigset_t it, before;
    (void) arg;
    sigemptyset(&it);
    sigaddset(&it, SIGUSR1);
    CHECK_EQ(pthread_sigmask(SIG_BLOCK, &it, &before), 0);
    install_counts(0);
    pn_conn *conn = listening(0);
    (void) sleep_on_descriptor(conn);
    found_by_signal = installed().sa_handler;
    pid_t by = spawn(signals_its_parent, NULL);
    for (int i = 0; i < 2; i++) {
        if (i != 0)
            CHECK(signal(SIGUSR1, passes_nothing_else_on) != SIG_ERR);
        test_tell(i == 0 ? up : down);
        CHECK_EQ(sigsuspend(&before), -1);
    }
    CHECK_EQ(newer_calls, 1);
    CHECK_EQ(calls, 1);
    CHECK_POLL(conn, "x");
    CHECK_CHILD(by, 0);
    pn_conn_close(conn);
}

static void test_what_a_wake_up_has_left_is_not_taken_for_another(void)
{
    begin_connected();
    pid_t pid = spawn(host_after_a_wake_up, NULL);
    test_hear(up);
    notify("x");
    CHECK_CHILD(pid, 0);
    end();
}

static volatile pid_t told_of;

static void reads_its_info(int signo, siginfo_t *info, void *context)
{
    (void) context;
    calls++;
    CHECK_EQ(info->si_signo, signo);
    told_of = info->si_pid;
}

__attribute__((noinline)) static void writes_below(void)
{
    volatile char room[64 << 10];
    for (size_t i = 0; i < sizeof room; i++)
        room[i] = 1;
}

static void restore_by_signal(void)
{
    void (*old)(int) = signal(SIGUSR1, SIG_IGN);
    CHECK(signal(SIGUSR1, old) == SIG_IGN);
    CHECK_EQ(installed().sa_flags & SA_SIGINFO, 0);
}

/* What signal() puts back the kernel calls with the number alone. */
static void host_that_restores(void *arg)
{
    const struct sigaction sa = {.sa_sigaction = reads_its_info, .sa_flags = SA_SIGINFO};
    const bool has_a_handler = arg != NULL;
    if (has_a_handler)
        CHECK_EQ(sigaction(SIGUSR1, &sa, NULL), 0);
    pn_conn *conn = listening(0);
    int fd = sleep_on_descriptor(conn);
    restore_by_signal();
    writes_below();
    test_tell(up);
    CHECK(readable_within(fd, TEST_PATIENCE_MS));
    CHECK_POLL(conn, "x");
    CHECK_EQ(calls, 0);
    raise(SIGUSR1);
    CHECK_EQ(calls, has_a_handler);
    test_listen(conn, "d"); /* as it was */
    CHECK((installed().sa_flags & SA_SIGINFO) != 0);
    raise(SIGUSR1);
    CHECK_EQ(calls, has_a_handler ? 2 : 0);
    CHECK(!has_a_handler || told_of == getpid());
    restore_by_signal();
    pn_conn_close(conn);
    CHECK(has_a_handler ? installed().sa_sigaction == reads_its_info
                        : installed().sa_handler == SIG_IGN);
}

static void test_a_host_may_restore_ours_by_signal(void)
{
    begin_connected();
    for (uintptr_t has_a_handler = 0; has_a_handler < 2; has_a_handler++) {
        pid_t pid = spawn(host_that_restores, (void *) has_a_handler);
        test_hear(up);
        notify("x");
        CHECK_CHILD(pid, 0);
    }
    end();
}
#endif

/* ---- what was found is put back -------------------------------------------------------------- */

static void passes_it_on(int signo, siginfo_t *info, void *context)
{
    newer_calls++;
    found(signo, info, context);
}

/* As faulthandler.register() and unregister() do. */
static void host_that_puts_back(void *arg)
{
    const bool puts_back = arg != NULL;
    const struct sigaction newer = {.sa_sigaction = passes_it_on, .sa_flags = SA_SIGINFO};
    struct sigaction before;
    install_counts(0);
    pn_conn *conn = listening(0);
    CHECK_EQ(sigaction(SIGUSR1, &newer, &before), 0);
    found = before.sa_sigaction;
    test_listen(conn, "d"); /* ours in front */
    raise(SIGUSR1);
    CHECK_EQ(newer_calls, 1);
    CHECK_EQ(calls, 1);
    if (puts_back) {
        CHECK_EQ(sigaction(SIGUSR1, &before, NULL), 0);
        test_listen(conn, "e");
        raise(SIGUSR1);
        CHECK_EQ(newer_calls, 1);
        CHECK_EQ(calls, 2);
    }
    pn_conn_close(conn);
    raise(SIGUSR1);
    CHECK_EQ(newer_calls, puts_back ? 1 : 2); /* once */
    CHECK_EQ(calls, puts_back ? 3 : 2);
    CHECK(puts_back ? installed().sa_handler == counts : installed().sa_sigaction == passes_it_on);
}

static void test_a_handler_may_put_back_what_it_found(void)
{
    begin();
    for (uintptr_t puts_back = 0; puts_back < 2; puts_back++)
        CHECK_CHILD(spawn(host_that_puts_back, (void *) puts_back), 0);
    end();
}

/* ---- the same handler with another mask ------------------------------------------------------ */

static void host_with_another_mask(void *arg)
{
    (void) arg;
    install_counts(0);
    pn_conn *conn = listening(0);
    install_counts(SIGHUP);
    test_listen(conn, "d");
    raise(SIGUSR1);
    CHECK_EQ(calls, 1);
    CHECK(sigismember(&mask, SIGHUP));
    pn_conn_close(conn);
    const struct sigaction sa = installed();
    CHECK(sa.sa_handler == counts && sigismember(&sa.sa_mask, SIGHUP));
}

static void test_the_mask_is_that_of_the_last_installation(void)
{
    begin();
    CHECK_CHILD(spawn(host_with_another_mask, NULL), 0);
    end();
}

/* ---- the first process of a container -------------------------------------------------------- */

static void first_process(void *arg)
{
    (void) arg;
    CHECK_EQ(getpid(), 1);
    begin_connected();
    pn_conn *conn = listening(0);
    const struct sigaction ours = installed();
    pid_t child = fork();
    if (child == 0) {
        kill(1, SIGUSR1);
        _exit(0);
    }
    while (waitpid(child, NULL, 0) != child)
        ;
    CHECK(installed().sa_sigaction == ours.sa_sigaction);
    pn_conn_close(conn);
    end();
}

static void container(void *arg)
{
    (void) arg;
    if (unshare(CLONE_NEWPID) != 0)
        printf("# not root: skipped\n");
    else
        CHECK_CHILD(spawn(first_process, NULL), 0);
}

/* The kernel does not end it by a default action: it listens on. */
static void test_a_first_process_keeps_our_handler(void)
{
    CHECK_CHILD(spawn(container, NULL), 0);
}

/* ---- a thread that is cancelled -------------------------------------------------------------- */

#if !defined(__SANITIZE_THREAD__) /* holds the handler back while the thread computes */
static atomic_int computes_now, may_end;

static void *computes(void *arg)
{
    atomic_store(&computes_now, 1);
    while (!atomic_load(&may_end))
        ;
    for (;;)
        pthread_testcancel();
    return arg;
}

static void host_that_cancels(void *arg)
{
    pthread_t thread;
    sigset_t it;
    void *end;
    (void) arg;
    CHECK_EQ(pthread_create(&thread, NULL, computes, NULL), 0);
    sigemptyset(&it);
    sigaddset(&it, SIGUSR1);
    CHECK_EQ(pthread_sigmask(SIG_BLOCK, &it, NULL), 0); /* so that thread takes it */
    pn_conn *conn = listening(0);
    int fd = sleep_on_descriptor(conn);
    while (!atomic_load(&computes_now))
        sched_yield();
    CHECK_EQ(pthread_cancel(thread), 0);
    test_tell(up);
    CHECK(readable_within(fd, TEST_PATIENCE_MS));
    CHECK_POLL(conn, "x");
    atomic_store(&may_end, 1);
    CHECK_EQ(pthread_join(thread, &end), 0);
    CHECK(end == PTHREAD_CANCELED);
    pn_conn_close(conn); /* which waits for handlers that run */
}

static void test_a_thread_is_not_cancelled_in_our_handler(void)
{
    begin_connected();
    pid_t pid = spawn(host_that_cancels, NULL);
    test_hear(up);
    notify("x");
    CHECK_CHILD(pid, 0);
    end();
}
#endif

int main(void)
{
    test_watchdog(60);
#if !defined(__SANITIZE_THREAD__)
    RUN(test_a_handler_may_pass_the_number_alone);
    RUN(test_what_a_wake_up_has_left_is_not_taken_for_another);
    RUN(test_a_host_may_restore_ours_by_signal);
#endif
    RUN(test_a_handler_may_put_back_what_it_found);
    RUN(test_the_mask_is_that_of_the_last_installation);
    RUN(test_a_first_process_keeps_our_handler);
#if !defined(__SANITIZE_THREAD__)
    RUN(test_a_thread_is_not_cancelled_in_our_handler);
#endif
    return tests_done();
}
