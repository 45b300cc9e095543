/* Real signals between processes: which must not be signalled; how much stack a handler needs. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "listening.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "backend/backend.h"
#include "base/os.h"
#include "kernel.h"
#include "wakeup/send.h"

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

static volatile sig_atomic_t calls;

static void does_little(int signo, siginfo_t *info, void *context)
{
    (void) signo;
    (void) info;
    (void) context;
    calls++;
}

/* What the kernel puts there for any handler. */
static int kernels_frame(void)
{
    struct sigaction sa = {.sa_flags = SA_SIGINFO | SA_ONSTACK, .sa_sigaction = does_little};
    CHECK_EQ(sigaction(SIGUSR2, &sa, NULL), 0);
    clean_stack();
    raise(SIGUSR2);
    CHECK_EQ(calls, 1);
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
