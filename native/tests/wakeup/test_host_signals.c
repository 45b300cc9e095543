/* Signals of the program that the library is in: its handlers, its masks, and what it blocks. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "listening.h"

#include <setjmp.h>

#include "backend/backend.h"
#include "kernel.h"

static volatile sig_atomic_t host_calls, host_pid;

static void host_handler(int signo)
{
    (void) signo;
    host_calls++;
}

static void host_action(int signo, siginfo_t *info, void *context)
{
    (void) signo;
    (void) context;
    host_calls++;
    host_pid = info->si_pid;
}

static sigset_t host_mask;

static void note_mask(int signo)
{
    (void) signo;
    pthread_sigmask(SIG_SETMASK, NULL, &host_mask);
}

/* Ours is interrupted by nothing; the host's by what it would have been without us. */
static void host_with_a_mask(void *arg)
{
    struct sigaction sa = {.sa_handler = note_mask}, ours;
    (void) arg;
    sigaddset(&sa.sa_mask, SIGHUP);
    CHECK_EQ(sigaction(SIGUSR1, &sa, NULL), 0);
    pn_conn *conn = listening(0);
    CHECK_EQ(sigaction(SIGUSR1, NULL, &ours), 0);
    CHECK(sigismember(&ours.sa_mask, SIGTERM) && sigismember(&ours.sa_mask, SIGRTMIN));
    CHECK(!sigismember(&ours.sa_mask, SIGSEGV));
    raise(SIGUSR1);
    CHECK(sigismember(&host_mask, SIGUSR1) && sigismember(&host_mask, SIGHUP));
    CHECK(!sigismember(&host_mask, SIGTERM) && !sigismember(&host_mask, SIGRTMIN));
    CHECK_EQ(pthread_sigmask(SIG_SETMASK, NULL, &host_mask), 0);
    CHECK(!sigismember(&host_mask, SIGUSR1) && !sigismember(&host_mask, SIGTERM));
    pn_conn_close(conn);
}

static void host_with_handler(void *arg)
{
    struct sigaction sa = {.sa_handler = host_handler};
    if (arg != NULL) {
        sa.sa_flags = SA_SIGINFO;
        sa.sa_sigaction = host_action;
    }
    CHECK_EQ(sigaction(SIGUSR1, &sa, NULL), 0);
    pn_conn *conn = listening(0);
    test_tell(up);
    wait_for(conn, "1"); /* ours: not the host's business */
    CHECK_EQ(host_calls, 0);
    errno = 77;
    raise(SIGUSR1);
    CHECK_EQ(errno, 77);
    CHECK_EQ(host_calls, 1);
    CHECK(arg == NULL || host_pid == getpid());
    test_tell(up);
    wait_for(conn, "2");
    CHECK_EQ(host_calls, 1);
    pn_conn_close(conn);
    raise(SIGUSR1); /* after the last close the host has its handler back */
    CHECK_EQ(host_calls, 2);
    struct sigaction now;
    CHECK_EQ(sigaction(SIGUSR1, NULL, &now), 0);
    CHECK(arg == NULL ? now.sa_handler == host_handler : now.sa_sigaction == host_action);
}

static void test_foreign_signals_go_to_the_hosts_handler(void)
{
    begin_connected();
    for (uintptr_t siginfo = 0; siginfo < 2; siginfo++) {
        pid_t pid = spawn(host_with_handler, (void *) siginfo);
        test_hear(up);
        CHECK_SOON(asleep(1) && is_blocked(pid));
        notify("1");
        test_hear(up);
        CHECK_SOON(asleep(1));
        notify("2");
        CHECK_CHILD(pid, 0);
    }
    end();
}

static void test_the_hosts_handler_has_its_own_mask(void)
{
    begin_connected();
    CHECK_CHILD(spawn(host_with_a_mask, NULL), 0);
    end();
}

static sigjmp_buf out;

static void jumps_out(int signo)
{
    (void) signo;
    host_calls++;
    siglongjmp(out, 1);
}

static void signals_its_parent(void *arg)
{
    (void) arg;
    test_hear(down);
    kill(getppid(), SIGUSR1);
}

/* By a call of its own, or by another process; so much deeper in the stack than its caller. */
__attribute__((noinline)) static void is_signalled(pid_t by, size_t deeper)
{
    volatile char *room = __builtin_alloca(deeper + 1);
    room[0] = room[deeper] = 0;
    if (by == 0) {
        raise(SIGUSR1);
    } else {
        test_tell(down);
        pause();
    }
}

__attribute__((noinline)) static void does_something_else(void)
{
    volatile char room[128 << 10];
    for (size_t i = 0; i < sizeof room; i++)
        room[i] = (char) i;
}

/* Its handler never returns to ours, which must not take the next signal for what it has raised. */
static void host_that_jumps(void *arg)
{
    static const size_t deeper[] = {0, 0, 16, 65536, 300, 4096};
    (void) arg;
    CHECK(signal(SIGUSR1, jumps_out) != SIG_ERR);
    pn_conn *conn = listening(0);
    for (volatile int i = 0; i < 6; i++) {
        volatile pid_t by = i == 0 ? 0 : spawn(signals_its_parent, NULL);
        if (sigsetjmp(out, 1) == 0)
            is_signalled(by, deeper[i]);
        CHECK_EQ(host_calls, i + 1);
        if (by != 0)
            CHECK_CHILD(by, 0);
    }
    for (volatile int i = 6; i < 12; i++) { /* by the thread itself, no deeper; and deeper */
        does_something_else();
        if (sigsetjmp(out, 1) == 0)
            is_signalled(0, deeper[i - 6]);
        CHECK_EQ(host_calls, i + 1);
    }
    pn_conn_close(conn);
}

static void test_a_hosts_handler_may_jump_out(void)
{
    begin_connected();
    CHECK_CHILD(spawn(host_that_jumps, NULL), 0);
    end();
}

static void (*installed_first)(int, siginfo_t *, void *);
static volatile sig_atomic_t second_calls;

static void passes_it_on(int signo, siginfo_t *info, void *context)
{
    second_calls++;
    installed_first(signo, info, context);
}

/* Ours, a handler that passes signals on to it, and ours again: each is called once. */
static void host_with_a_ring(void *arg)
{
    struct sigaction sa = {.sa_handler = host_handler};
    (void) arg;
    CHECK_EQ(sigaction(SIGUSR1, &sa, NULL), 0);
    pn_conn *conn = listening(0);
    CHECK_EQ(sigaction(SIGUSR1, NULL, &sa), 0);
    installed_first = sa.sa_sigaction;
    sa.sa_sigaction = passes_it_on;
    CHECK_EQ(sigaction(SIGUSR1, &sa, NULL), 0);
    test_listen(conn, "d"); /* looks at the handler */
    for (int i = 1; i < 4; i++) {
        raise(SIGUSR1);
        CHECK_EQ(second_calls, i);
        CHECK_EQ(host_calls, i);
    }
    pid_t by = spawn(signals_its_parent, NULL);
    test_tell(down);
    CHECK_CHILD(by, 0);
    CHECK_SOON(second_calls == 4);
    CHECK_EQ(host_calls, 4);
    pn_conn_close(conn);
}

static void test_handlers_in_a_ring_end(void)
{
    begin_connected();
    CHECK_CHILD(spawn(host_with_a_ring, NULL), 0);
    end();
}

/* Is one on its way that it has not caught?  Another one is then the same to the kernel. */
static bool is_pending(pid_t pid, int signo)
{
    char path[32], line[256];
    unsigned long long of_thread = 0, of_process = 0;
    snprintf(path, sizeof path, "/proc/%d/status", (int) pid);
    FILE *status = fopen(path, "r");
    CHECK(status != NULL);
    while (fgets(line, sizeof line, status) != NULL) {
        sscanf(line, "SigPnd: %llx", &of_thread);
        sscanf(line, "ShdPnd: %llx", &of_process);
    }
    fclose(status);
    return ((of_thread | of_process) >> (signo - 1) & 1) != 0;
}

static void test_foreign_signals_do_what_the_host_had_chosen(void)
{
    begin_connected();
    pid_t pid = spawn(plain_listener, NULL);
    test_hear(up);
    CHECK_SOON(asleep(1));
    notify("x");
    CHECK_SOON(asleep(1));
    CHECK_SOON(!is_pending(pid, SIGUSR1));
    kill(pid, SIGUSR1); /* SIG_DFL: as if we were not there */
    CHECK_KILLED(pid, SIGUSR1);
    pid = spawn(plain_listener, (void *) 1);
    test_hear(up);
    for (int i = 0; i < 10; i++)
        kill(pid, SIGUSR1); /* SIG_IGN */
    notify("x");
    CHECK_SOON(asleep(2) || asleep(1));
    kill(pid, SIGTERM);
    CHECK_KILLED(pid, SIGTERM);
    end();
}

static void closed(void *arg)
{
    (void) arg;
    pn_conn *conn = listening(0), *other = listening(0);
    pn_conn_close(conn);
    struct sigaction now;
    CHECK_EQ(sigaction(SIGUSR1, NULL, &now), 0);
    CHECK(now.sa_handler != SIG_DFL && now.sa_handler != SIG_IGN); /* one is left */
    pn_conn_close(other);
    raise(SIGUSR1);      /* a late one of ours: harmless */
    conn = listening(0); /* and all over again */
    test_tell(up);
    wait_for(conn, "x");
    pn_conn_close(conn);
}

static void test_after_the_last_close_a_late_signal_does_not_kill(void)
{
    begin_connected();
    pid_t pid = spawn(closed, NULL);
    test_hear(up);
    CHECK_SOON(asleep(1) || asleep(2));
    notify("x");
    CHECK_CHILD(pid, 0);
    end();
}

static void replacing_host(void *arg)
{
    char text[512];
    (void) arg;
    pn_conn *conn = listening(0);
    signal(SIGUSR1, host_handler); /* a library that does not ask */
    CHECK_EQ(pn_wait(conn, 0) & PN_NOTICE, PN_NOTICE);
    CHECK(pn_conn_notice(conn, text, sizeof text) > 0);
    CHECK(strstr(text, "handler of signal") != NULL);
    test_tell(up);
    wait_for(conn, "1");
    CHECK_EQ(host_calls, 0);
    raise(SIGUSR1);
    CHECK_EQ(host_calls, 1);
    signal(SIGUSR1, SIG_DFL);
    test_listen(conn, "d"); /* looks as well */
    test_tell(up);
    wait_for(conn, "2");
    pn_conn_close(conn);
}

static void test_a_replaced_handler_is_installed_again(void)
{
    begin_connected();
    pid_t pid = spawn(replacing_host, NULL);
    test_hear(up);
    CHECK_SOON(asleep(1));
    notify("1");
    test_hear(up);
    CHECK_SOON(asleep(1));
    notify("2");
    CHECK_CHILD(pid, 0);
    CHECK_EQ(test_stat(engine).handler_reinstalls, 2);
    end();
}

/* A process that watches the descriptor, and never enters our wait: its slow timer looks. */
static void watching_host(void *arg)
{
    const struct itimerspec at_once = {.it_value = {.tv_nsec = 1}};
    struct sigaction now;
    (void) arg;
    pn_conn *conn = listening(0);
    CHECK(pn_fileno(conn) >= 0);
    signal(SIGUSR1, host_handler);
    CHECK_EQ(timerfd_settime(conn->tfd, 0, &at_once, NULL), 0);
    CHECK_EQ(poll(&(struct pollfd) {.fd = conn->tfd, .events = POLLIN}, 1, TEST_PATIENCE_MS), 1);
    CHECK_POLL(conn, "");
    CHECK_EQ(sigaction(SIGUSR1, NULL, &now), 0);
    CHECK(now.sa_handler != host_handler);
    pn_conn_close(conn);
}

static void test_a_replaced_handler_is_found_by_the_slow_timer(void)
{
    begin_connected();
    CHECK_CHILD(spawn(watching_host, NULL), 0);
    CHECK_EQ(test_stat(engine).handler_reinstalls, 1);
    end();
}

/* A process that does not catch it, even for a moment, is not signalled; its timer finds it. */
static void careless(void *arg)
{
    (void) arg;
    pn_conn *conn = listening(0);
    signal(SIGUSR1, SIG_DFL);
    test_tell(up);
    test_hear(down);
    conn->next_timer_ns = 0;
    while (pn_wait(conn, -1) < 1)
        ;
    CHECK_POLL(conn, "x");
    pn_conn_close(conn);
}

static void test_a_process_that_does_not_catch_it_is_not_signalled(void)
{
    begin_connected();
    pid_t pid = spawn(careless, NULL);
    test_hear(up);
    notify("x");
    test_tell(down);
    CHECK_CHILD(pid, 0);
    end();
}

static void real_time(void *arg)
{
    (void) arg;
    pn_conn *conn = listening(SIGRTMIN + 3);
    struct sigaction now;
    CHECK_EQ(sigaction(SIGUSR1, NULL, &now), 0);
    CHECK(now.sa_handler == SIG_DFL);
    test_tell(up);
    wait_for(conn, "x");
    pn_conn_close(conn);
}

static void blocked(void *arg)
{
    sigset_t set;
    (void) arg;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    pn_conn *conn = listening(0);
    test_tell(up);
    conn->next_timer_ns = 0;
    while (pn_wait(conn, -1) != 1)
        ; /* by the slow timer */
    CHECK_POLL(conn, "x");
    pn_conn_close(conn);
}

static void test_real_time_signals(void)
{
    begin_connected();
    pid_t pid = spawn(real_time, NULL);
    test_hear(up);
    CHECK_SOON(asleep(1));
    notify("x");
    CHECK_CHILD(pid, 0);
    end();
}

static void test_blocked_signals(void)
{
    begin_connected();
    pid_t pid = spawn(blocked, NULL);
    test_hear(up);
    notify("x");
    CHECK_CHILD(pid, 0);
    end();
}

static void without_a_signal(void *arg)
{
    (void) arg;
    pn_conn *conn = listening(-1);
    test_tell(up);
    wait_for(conn, "x");
    pn_conn_close(conn);
}

/* It looks by itself, every few milliseconds, and needs no slow timer for that. */
static void test_a_listener_without_a_signal_polls(void)
{
    begin_connected();
    pid_t pid = spawn(without_a_signal, NULL);
    test_hear(up);
    CHECK_SOON(asleep(1) && is_blocked(pid));
    notify("x");
    CHECK_CHILD(pid, 0);
    end();
}

int main(void)
{
    test_watchdog(115);
    RUN(test_foreign_signals_go_to_the_hosts_handler);
    RUN(test_the_hosts_handler_has_its_own_mask);
    RUN(test_a_hosts_handler_may_jump_out);
    RUN(test_handlers_in_a_ring_end);
    RUN(test_foreign_signals_do_what_the_host_had_chosen);
    RUN(test_after_the_last_close_a_late_signal_does_not_kill);
    RUN(test_a_replaced_handler_is_installed_again);
    RUN(test_a_replaced_handler_is_found_by_the_slow_timer);
    RUN_WHERE(handlers_in_proc(), test_a_process_that_does_not_catch_it_is_not_signalled);
    RUN_WHERE(realtime_signals_by_pidfd(), test_real_time_signals);
    RUN(test_blocked_signals);
    RUN(test_a_listener_without_a_signal_polls);
    return tests_done();
}
