/* Real signals in a program's own process: whose they are, and which must not be signalled. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "children.h"

#include <fcntl.h>
#include <setjmp.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/timerfd.h>

#include "backend/backend.h"
#include "base/os.h"
#include "kernel.h"
#include "wakeup/send.h"

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

static void notify(const char *payload)
{
    CHECK_OK(test_notify(mine, "c", payload));
}

static bool asleep(uint32_t slot)
{
    return (pn_load_acquire(&test_inside()->backend[slot].pos) & PN_ASLEEP) != 0;
}

/* A listener whose slow timer never comes: it wakes by a signal, or not at all. */
static pn_conn *listening(int signo)
{
    pn_conn *conn;
    CHECK_OK(pn_connect(engine, "db", 2, signo, NULL, &conn));
    test_listen(conn, "c");
    conn->next_timer_ns = INT64_MAX;
    CHECK_POLL(conn, "");
    return conn;
}

static void wait_for(pn_conn *conn, const char *payload)
{
    int rc;
    conn->next_timer_ns = INT64_MAX;
    while ((rc = test_wait(conn, -1)) != 1)
        CHECK_EQ(rc, -EINTR);
    CHECK_POLL(conn, payload);
    CHECK_POLL(conn, "");
}

/* ---- the host's own signals ------------------------------------------------------------------ */

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

static void plain_listener(void *arg)
{
    pn_conn *conn;
    if (arg != NULL)
        signal(SIGUSR1, SIG_IGN);
    conn = listening(0);
    test_tell(up);
    for (;;)
        wait_for(conn, "x");
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

/* ---- signals that lose their siginfo --------------------------------------------------------- */

static void no_pending(void *arg)
{
    const struct rlimit none = {0, 0};
    (void) arg;
    CHECK_EQ(setrlimit(RLIMIT_SIGPENDING, &none), 0);
    pn_conn *conn = listening(0);
    test_tell(up);
    wait_for(conn, "x");
    /* the flag was taken by an earlier run of the handler: this one looks like a foreign one */
    int pidfd = pn_os_pidfd_open(getpid());
    CHECK_EQ(pn_os_pidfd_signal(pidfd, SIGUSR1, 0), 0);
    CHECK_EQ(pn_os_pidfd_signal(pidfd, SIGUSR1, 0), 0);
    test_tell(up);
    wait_for(conn, "y");
    test_tell(up);
    kill(getpid(), SIGUSR1); /* a foreign one keeps its siginfo, and terminates as before */
    FAIL("a foreign SIGUSR1 was swallowed");
}

static void test_without_room_for_pending_signals(void)
{
    begin_connected();
    pid_t pid = spawn(no_pending, NULL);
    test_hear(up);
    CHECK_SOON(asleep(1));
    notify("x");
    test_hear(up);
    CHECK_SOON(asleep(1));
    notify("y");
    test_hear(up);
    CHECK_KILLED(pid, SIGUSR1);
    end();
}

/* ---- a process that is not, or not any more, that backend ------------------------------------ */

static void execs(void *arg)
{
    (void) arg;
    listening(0);
    CHECK_EQ(dup2(down[0], STDIN_FILENO), STDIN_FILENO);
    fcntl(up[1], F_SETFD, FD_CLOEXEC);
    test_tell(up);
    close(down[1]);
    execl("/bin/cat", "cat", (char *) NULL);
    _exit(9);
}

static bool has_execd(pid_t pid)
{
    char path[32], text[32] = "";
    snprintf(path, sizeof path, "/proc/%d/comm", (int) pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, text, sizeof text - 1) < 0)
        text[0] = '\0';
    close(fd);
    return strcmp(text, "cat\n") == 0;
}

/* The program after exec() has SIGUSR1's default action: one signal would kill it. */
static void test_an_execd_program_is_not_signalled(void)
{
    begin_connected();
    pid_t pid = spawn(execs, NULL);
    test_hear(up);
    CHECK_SOON(has_execd(pid));
    for (int i = 0; i < 100; i++)
        notify("x");
    CHECK_SOON(test_stat(engine).backends == 1); /* once the kernel has let go of its lock */
    for (int i = 0; i < 100; i++)
        notify("x");
    close(down[1]);
    CHECK_CHILD(pid, 0); /* cat saw the end of its input */
    CHECK_EQ(pipe(down), 0);
    end();
}

static void forked(void *arg)
{
    pn_conn *parents = arg;
    pn_batch *batch = pn_batch_new();
    pn_txn *txn;
    CHECK_EQ(pn_notify(parents, "c", 1, "x", 1), -PN_EFORKED);
    CHECK_EQ(pn_poll(parents, batch, 0), -PN_EFORKED);
    CHECK_EQ(pn_wait(parents, 0), -PN_EFORKED);
    CHECK_EQ(pn_fileno(parents), -PN_EFORKED);
    CHECK_EQ(pn_txn_begin(parents, &txn), -PN_EFORKED);
    CHECK(strstr(pn_error_message(), "belongs to the process with PID") != NULL);
    pn_conn_close(parents);
    pn_conn *own = test_connect(engine); /* the engine survives */
    CHECK(pn_conn_backend_id(own) != 0);
    test_tell(up);
    test_hear(down);
    pn_conn_close(own);
    pn_engine_close(engine);
}

static void test_a_forked_child_touches_nothing_of_its_parents(void)
{
    begin_connected();
    test_listen(mine, "c");
    pn_fileno(mine);
    pn_conn *other = test_connect(engine);
    pn_txn *txn = test_begin(mine);
    CHECK_OK(pn_txn_listen(txn, "d", 1));
    CHECK_OK(pn_txn_prepare(txn));
    pid_t pid = spawn(forked, mine);
    test_hear(up);
    CHECK_EQ(pn_backend_verdict(test_inside(), 0), PN_ALIVE);
    CHECK_OK(test_notify(other, "c", "1"));
    CHECK_EQ(pn_wait(mine, -1), 1);
    CHECK_POLL(mine, "1");
    test_tell(down);
    CHECK_CHILD(pid, 0);
    CHECK_EQ(pn_backend_verdict(test_inside(), 0), PN_ALIVE);
    CHECK_OK(pn_txn_commit(txn));
    CHECK_OK(test_notify(other, "d", "2"));
    CHECK_POLL(mine, "2");
    CHECK_EQ(test_stat(engine).backends, 2);
    pn_conn_close(other);
    end();
}

static void listen_and_stay(void *arg)
{
    (void) arg;
    listening(0);
    test_tell(up);
    for (;;)
        pause();
}

/* A dead listener that was not waited for takes no signal and no room. */
static void test_zombies_are_dead(void)
{
    static char payload[8000];
    begin_connected();
    pid_t pid = spawn(listen_and_stay, NULL);
    siginfo_t info;
    test_hear(up);
    kill(pid, SIGKILL);
    CHECK_EQ(waitid(P_PID, (id_t) pid, &info, WEXITED | WNOWAIT), 0); /* still a zombie */
    for (int i = 0; i < 200; i++)
        CHECK_OK(pn_notify(mine, "c", 1, payload, sizeof payload));
    CHECK_EQ(test_stat(engine).backends, 1);
    CHECK_KILLED(pid, SIGKILL);
    end();
}

static void test_a_stopped_listener_gets_all_when_continued(void)
{
    begin_connected();
    pid_t pid = spawn(plain_listener, NULL);
    int status;
    test_hear(up);
    CHECK_SOON(asleep(1));
    kill(pid, SIGSTOP);
    CHECK_EQ(waitpid(pid, &status, WUNTRACED), pid);
    notify("x");
    CHECK(!asleep(1));
    CHECK_EQ(test_stat(engine).backends, 2); /* stopped is not dead */
    kill(pid, SIGCONT);
    CHECK_SOON(asleep(1));
    kill(pid, SIGKILL);
    CHECK_KILLED(pid, SIGKILL);
    end();
}

/* The process lost its locks (an open+close of the file): neither signalled nor reaped. */
static void loses_its_locks(void *arg)
{
    char path[320];
    const struct pn_segment *seg = test_inside();
    pn_conn *conn = listening(0);
    (void) arg;
    snprintf(path, sizeof path, "/dev/shm/pynotify-lock.%u.%s.%016llx.0", seg->uid, seg->name,
             (unsigned long long) seg->instance);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    close(fd);
    test_tell(up);
    test_hear(down);
    CHECK_EQ(pn_load_relaxed(&conn->me->generation), conn->generation);
    wait_for(conn, "x"); /* takes them again before it sleeps */
    test_tell(up);
    wait_for(conn, "y");
    pn_conn_close(conn);
}

static void test_lost_locks_are_taken_again(void)
{
    begin_connected();
    pid_t pid = spawn(loses_its_locks, NULL);
    test_hear(up);
    CHECK_EQ(pn_backend_verdict(test_inside(), 1), PN_LOST);
    uint64_t sent = test_stat(engine).signals_sent;
    notify("x");
    CHECK_EQ(test_stat(engine).backends, 2);
    CHECK_EQ(test_stat(engine).signals_sent, sent);
    test_tell(down);
    test_hear(up);
    /* asleep it is before it takes them, and then it is not signalled but for the slow timer */
    CHECK_SOON(asleep(1) && pn_backend_verdict(test_inside(), 1) == PN_ALIVE);
    notify("y");
    CHECK_CHILD(pid, 0);
    end();
}

/* ---- a pid that belongs to another process by now -------------------------------------------- */

static pid_t wanted_pid;

/* Of many tries only the one that got the pid may do anything. */
static bool got_it(void)
{
    return getpid() == wanted_pid;
}

static pid_t spawn_with_pid(pid_t wanted, void (*body)(void *))
{
    wanted_pid = wanted;
    for (int tries = 0; tries < 200; tries++) {
        char text[16];
        int len = snprintf(text, sizeof text, "%d", (int) wanted - 1);
        int fd = open("/proc/sys/kernel/ns_last_pid", O_WRONLY | O_CLOEXEC);
        if (fd < 0)
            return -1;
        ssize_t n = write(fd, text, (size_t) len);
        close(fd);
        if (n != len)
            return -1;
        pid_t pid = spawn(body, NULL);
        if (pid == wanted)
            return pid;
        CHECK_CHILD(pid, 0);
    }
    return -1;
}

static void stranger(void *arg)
{
    (void) arg;
    if (!got_it())
        return;
    signal(SIGUSR1, SIG_DFL);
    test_hear(down);
}

static void stranger_with_a_slot(void *arg)
{
    (void) arg;
    pn_conn *conn;
    if (!got_it())
        return;
    CHECK_OK(pn_connect(engine, "db", 2, 0, NULL, &conn));
    test_listen(conn, "other");
    test_tell(up);
    test_hear(down);
    CHECK_POLL(conn, "for you");
    pn_conn_close(conn);
}

static void test_a_reused_pid_is_not_signalled(void)
{
    begin_connected();
    for (int with_slot = 0; with_slot < 2; with_slot++) {
        pid_t pid = spawn(listen_and_stay, NULL);
        test_hear(up);
        kill(pid, SIGKILL);
        CHECK_KILLED(pid, SIGKILL);
        if (spawn_with_pid(pid, with_slot ? stranger_with_a_slot : stranger) < 0) {
            printf("# no pid reuse here (not root?): skipped\n");
            break;
        }
        if (with_slot)
            test_hear(up);
        uint64_t sent = test_stat(engine).signals_sent;
        for (int i = 0; i < 50; i++)
            notify("x"); /* for the dead one, whose slot still names the pid */
        CHECK_EQ(test_stat(engine).signals_sent, sent);
        if (with_slot)
            CHECK_OK(test_notify(mine, "other", "for you"));
        test_tell(down);
        CHECK_CHILD(pid, 0);
    }
    end();
}

/* ---- the stack ------------------------------------------------------------------------------- */

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* whose frames are larger */
/*
 * Rust's runtime gives its threads 8 KiB for handlers.  The kernel's frame, with the processor's
 * registers, takes some 3 KiB of it; ours has to do with 2.
 */
enum { ALTERNATE = 64 << 10, PATTERN = 0xAA, MOST = 2048 };
static unsigned char alternate[ALTERNATE];

static void clean_stack(void)
{
    memset(alternate, PATTERN, sizeof alternate);
}

static int stack_used(void)
{
    int left = 0;
    while (left < ALTERNATE && alternate[left] == PATTERN)
        left++;
    return ALTERNATE - left;
}

/* What the kernel puts there for any handler. */
static int kernels_frame(void)
{
    struct sigaction sa = {.sa_flags = SA_SIGINFO | SA_ONSTACK, .sa_sigaction = host_action};
    CHECK_EQ(sigaction(SIGUSR2, &sa, NULL), 0);
    clean_stack();
    raise(SIGUSR2);
    CHECK_EQ(host_calls, 1);
    return stack_used();
}

static void with_a_stack_for_handlers(void *arg)
{
    const stack_t given = {.ss_sp = alternate, .ss_size = sizeof alternate};
    (void) arg;
    CHECK_EQ(sigaltstack(&given, NULL), 0);
    int frame = kernels_frame(), ours = 0;
    pn_conn *conn = listening(0);
    for (int round = 0; round < 2; round++) { /* in the first the linker looks functions up */
        clean_stack();
        test_tell(up);
        CHECK_EQ(test_wait(conn, -1), -EINTR);
        test_hear(down);
        ours = stack_used() - frame;
    }
    CHECK(ours > 0);
    if (ours > MOST)
        FAIL("the handler has taken %d bytes of stack", ours);
    pn_conn_close(conn);
}

static void asleep_for_good(void *arg)
{
    (void) arg;
    pn_conn *conn = listening(0);
    test_tell(up);
    for (;;)
        test_wait(conn, -1);
}

/* Also where it passes the wake-up on: it opens a pidfd, and asks locks and /proc of the other. */
static void test_the_handler_needs_little_stack(void)
{
    enum { FIRST = 1, NEXT = 2 };
    begin_connected();
    struct pn_segment *seg = test_inside();
    pid_t first = spawn(with_a_stack_for_handlers, NULL);
    test_hear(up);
    pid_t next = spawn(asleep_for_good, NULL);
    test_hear(up);
    for (int round = 0; round < 2; round++) {
        if (round > 0)
            test_hear(up);
        uint64_t sent = test_stat(engine).signals_sent;
        pn_store_relaxed(&seg->backend[NEXT].caught_at, 0);
        pn_fetch_or(&seg->owed[0], 1U << NEXT);
        pn_fetch_or(&seg->deferred[0], 1U << NEXT);
        pn_store_release(&seg->ctl->deferred_at, (uint64_t) test_now_ns());
        CHECK(pn_procsignal_send(seg, FIRST, PROCSIG_NOTIFY_INTERRUPT));
        CHECK_SOON(test_stat(engine).signals_sent == sent + 2);
        /* Its handler has taken that, or it would take what the next round owes it. */
        CHECK_SOON(pn_load_relaxed(&seg->owed[0]) == 0);
        CHECK_EQ(pn_load_relaxed(&seg->deferred[0]), 0);
        CHECK(pn_load_relaxed(&seg->backend[NEXT].caught_at) != 0);
        test_tell(down);
    }
    CHECK_CHILD(first, 0);
    kill(next, SIGKILL);
    CHECK_KILLED(next, SIGKILL);
    end();
}
#endif

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
    RUN(test_without_room_for_pending_signals);
    RUN(test_an_execd_program_is_not_signalled);
    RUN(test_a_forked_child_touches_nothing_of_its_parents);
    RUN(test_zombies_are_dead);
    RUN(test_a_stopped_listener_gets_all_when_continued);
    RUN(test_lost_locks_are_taken_again);
    RUN(test_a_reused_pid_is_not_signalled);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    RUN(test_the_handler_needs_little_stack);
#endif
    return tests_done();
}
