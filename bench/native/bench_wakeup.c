/*
 * bench_wakeup.c - from a notify to the message in the hand of a listener that slept.
 *
 * One way: the sender's clock before the call, the listener's clock once pn_poll() has returned the
 * message (CLOCK_MONOTONIC is one clock for both).  Before each message the sender looks in /proc
 * until the listener is blocked in the kernel, so every sample is a real wake-up.  Sender and
 * listener are pinned to one CPU: on a virtual machine a wake-up of the other CPU costs an
 * interrupt through the hypervisor, whatever the primitive, and hides everything else.  That case
 * is printed as well, without a bar.
 *
 * The floor is the same path without an engine: pidfd_send_signal(), an SA_SIGINFO handler that
 * writes an eventfd, ppoll() on that eventfd, a read that drains it.  ppoll() is interrupted by the
 * signal; the floor then reads the eventfd at once.  "the floor that polls twice" calls ppoll()
 * again first, as a plain event loop does; it is printed for comparison only.
 */
#include "measure.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/pidfd.h>

static const char FLOOR[] = "pidfd_send_signal, handler writes eventfd, ppoll, drain";
static const char FLOOR_TWICE[] = "the floor that polls twice";

enum kind { OURS, FLOOR_ONCE, FLOOR_POLLS_TWICE, KINDS };

typedef struct listener_plan {
    enum kind kind;
    board *board;
    pn_engine *engine;
} listener_plan;

/* What a listener is told: the nth CPU in the upper 32 bits, a number of messages in the lower. */
static uint64_t command(int cpu, int count)
{
    return (uint64_t) cpu << 32 | (uint64_t) count;
}

/* ---- ours -------------------------------------------------------------------------------- */

static void receive_ours(pn_conn *conn, pn_batch *batch, board *b, uint64_t count)
{
    uint8_t expected[PAYLOAD_BYTES];
    payload_init(expected);
    for (uint64_t i = 0; i < count;) {
        sleep_until_told(conn);
        int64_t n = must(pn_poll(conn, batch, 0), "pn_poll");
        if (n == 0)
            continue;
        take(b, i);
        if (n != 1)
            die("%lld messages at once", (long long) n);
        check_message(batch, 0, expected, i++);
    }
}

/* ---- the floor --------------------------------------------------------------------------- */

static int latch; /* an eventfd */

static void set_latch(int signo, siginfo_t *info, void *context)
{
    const uint64_t one = 1;
    int saved = errno;
    (void) signo;
    (void) info;
    (void) context;
    if (write(latch, &one, sizeof one) < 0)
        _exit(3);
    errno = saved;
}

static void floor_init(void)
{
    struct sigaction action = {.sa_sigaction = set_latch, .sa_flags = SA_SIGINFO | SA_RESTART};
    latch = must_os(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd");
    sigemptyset(&action.sa_mask);
    must_os(sigaction(SIGUSR1, &action, NULL), "sigaction");
}

static void receive_floor(board *b, uint64_t count, bool twice)
{
    struct pollfd fd = {.fd = latch, .events = POLLIN};
    uint64_t word;
    for (uint64_t i = 0; i < count;) {
        int rc = ppoll(&fd, 1, NULL, NULL);
        if (rc < 0 && twice)
            continue;
        if (read(latch, &word, sizeof word) != (ssize_t) sizeof word)
            continue;
        take(b, i++);
    }
}

/* ---- processes --------------------------------------------------------------------------- */

static void listener_main(int socket, void *arg)
{
    const listener_plan *plan = arg;
    pn_conn *conn = NULL;
    pn_batch *batch = NULL;
    if (plan->kind == OURS) {
        conn = connect_to(plan->engine);
        batch = pn_batch_new();
        listen_to(conn, CHANNEL);
    } else {
        floor_init();
    }
    tell(socket, 0);
    for (uint64_t word; (word = hear(socket)) != QUIT; tell(socket, 0)) {
        pin_to_cpu((int) (word >> 32));
        atomic_store(&plan->board->taken, 0);
        tell(socket, 0);
        if (conn != NULL)
            receive_ours(conn, batch, plan->board, word & UINT32_MAX);
        else
            receive_floor(plan->board, word & UINT32_MAX, plan->kind == FLOOR_POLLS_TWICE);
    }
    pn_batch_free(batch);
    if (conn != NULL)
        pn_conn_close(conn);
}

typedef struct subject {
    enum kind kind;
    child listener;
    pn_conn *conn; /* of the sender */
    int pidfd, stat_fd;
} subject;

static void wake(void *arg, uint64_t i)
{
    static uint8_t payload[PAYLOAD_BYTES];
    const subject *s = arg;
    if (i == 0)
        payload_init(payload);
    if (s->kind == OURS)
        notify_number(s->conn, payload, i);
    else
        must_os(pidfd_send_signal(s->pidfd, SIGUSR1, NULL, 0), "pidfd_send_signal");
}

/* The median of a pass, ns. */
static double pass(subject *s, board *b, int cpu, int count)
{
    tell(s->listener.socket, command(cpu, count));
    hear(s->listener.socket);
    double median = median_wakeup(b, s->stat_fd, count, wake, s);
    hear(s->listener.socket);
    return median;
}

static void report(const char *name, double medians[KINDS][MAX_PASSES], enum kind floor, int n,
                   double bar)
{
    print_figure(&(figure) {.name = name,
                            .unit = "ns",
                            .ours = medians[OURS],
                            .floor = medians[floor],
                            .n = n,
                            .against = floor == FLOOR_ONCE ? FLOOR : FLOOR_TWICE,
                            .bar = bar,
                            .at_most = true,
                            .note = "one value a pass: the median of its messages"});
}

static void measure(subject subjects[KINDS], board *b, settings s, int cpu)
{
    double medians[KINDS][MAX_PASSES];
    int pairs = s.quick ? 5 : 11, count = s.quick ? 400 : 2000;
    for (int i = -1; i < pairs; i++) { /* the first is a warm-up */
        for (int step = 0; step < KINDS; step++) {
            int k = i % 2 ? KINDS - 1 - step : step;
            double median = pass(&subjects[k], b, cpu, count);
            if (i >= 0)
                medians[k][i] = median;
        }
    }
    if (cpu == 0) {
        report("wake-up, one CPU", medians, FLOOR_ONCE, pairs, 1.15);
        report("wake-up, one CPU, second floor", medians, FLOOR_POLLS_TWICE, pairs, 0);
    } else {
        report("wake-up of the other CPU", medians, FLOOR_ONCE, pairs, 0);
    }
}

int main(int argc, char **argv)
{
    settings s = parse_arguments(argc, argv);
    subject subjects[KINDS];
    listener_plan plans[KINDS];

    pn_engine *engine = open_segment("wakeup", NULL);
    board *b = shared_memory(sizeof *b);
    for (int k = 0; k < KINDS; k++) {
        plans[k] = (listener_plan) {.kind = (enum kind) k, .board = b, .engine = engine};
        child c = start_child(listener_main, &plans[k]);
        hear(c.socket);
        subjects[k] = (subject) {.kind = (enum kind) k,
                                 .listener = c,
                                 .pidfd = must_os(pidfd_open(c.pid, 0), "pidfd_open"),
                                 .stat_fd = open_stat(c.pid)};
    }
    subjects[OURS].conn = connect_to(engine);
    pin_to_cpu(0);
    measure(subjects, b, s, 0);
    if (cpu_count() > 1)
        measure(subjects, b, s, 1);
    for (int k = 0; k < KINDS; k++)
        end_child(subjects[k].listener);
    pn_conn_close(subjects[OURS].conn);
    pn_engine_close(engine);
    return 0;
}
