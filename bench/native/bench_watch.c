/*
 * bench_watch.c - what sleepers cost that watch each other, and how soon they see a death.
 *
 * Sleepers: a thousand processes, each with one connection that listens and sleeps in pn_wait().
 * Processor time is the scheduler's (/proc/PID/schedstat), switches are those of /proc/PID/status,
 * of all of them over the pass.  The floor is the same with a slow timer that never backs off: one
 * look a second, as it was before neighbours were watched.
 *
 * Death: one listener sleeps; a notifier stops itself at a crash point of its commit, and is then
 * killed.  From just before kill() to the message in the hand of the listener, which has no timer.
 * The figure is the median of a pass; the note has the slowest of all.
 */
#include "measure.h"

#include "backend/conn.h"
#include "receive/timer.h"

enum { SLEEPERS = 1000, DEATHS = 25, MAX_DEATH_PASSES = 8 };

typedef struct seen {
    _Atomic uint32_t ready;
    _Atomic int64_t heard_ns;
} seen;

static pn_engine *engine;
static seen *b;

/* ---- sleepers ---------------------------------------------------------------------------- */

/* `arg`: the longest period of the slow timer; it is there already, somewhere inside of one. */
static void sleeper(int socket, void *arg)
{
    int64_t period = *(const int64_t *) arg;
    pn_slow_timer_max_ns = period;
    pn_conn *conn = connect_to(engine);
    listen_to(conn, "idle");
    close(socket);
    conn->timer_step = 5;
    conn->next_timer_ns = (uint64_t) (now_ns() + (int64_t) getpid() * 7919 % 1000 * period / 1000);
    while (pn_wait(conn, 0) == -EINTR)
        ; /* walks */
    atomic_fetch_add(&b->ready, 1);
    for (;;)
        pn_wait(conn, -1);
}

static void total(const child *c, int n, double *cpu_ns, double *switches)
{
    *cpu_ns = *switches = 0;
    for (int i = 0; i < n; i++) {
        *cpu_ns += from_proc(c[i].pid, "schedstat", NULL);
        *switches += from_proc(c[i].pid, "status", "ctxt_switches");
    }
}

/* ms of processor time and context switches of all, for a minute. */
static void sleep_pass(int n, int seconds, int64_t period, double *ms, double *switches)
{
    child *c = calloc((size_t) n, sizeof *c);
    double cpu[2], count[2];
    atomic_store(&b->ready, 0);
    for (int i = 0; i < n; i++) {
        c[i] = start_child(sleeper, &period);
        close(c[i].socket);
    }
    while (atomic_load(&b->ready) < (uint32_t) n)
        sleep(1);
    sleep(2); /* they have told each other by now */
    total(c, n, &cpu[0], &count[0]);
    sleep((unsigned) seconds);
    total(c, n, &cpu[1], &count[1]);
    for (int i = 0; i < n; i++)
        kill(c[i].pid, SIGKILL);
    for (int i = 0; i < n; i++)
        waitpid(c[i].pid, NULL, 0);
    free(c);
    *ms = (cpu[1] - cpu[0]) / 1e6 * 60 / seconds;
    *switches = (count[1] - count[0]) * 60 / seconds;
}

static void measure_sleepers(settings s)
{
    int n = s.quick ? 100 : SLEEPERS, seconds = s.quick ? 3 : 60;
    int floor_seconds = s.quick ? 3 : 15; /* of a timer of one second; then for a minute */
    double ours, floor, ours_switches, floor_switches;
    char title[64], note[160];
    sleep_pass(n, floor_seconds, 1000000000, &floor, &floor_switches);
    sleep_pass(n, seconds, 30000000000, &ours, &ours_switches);
    snprintf(title, sizeof title, "%d sleepers, processor time", n);
    snprintf(note, sizeof note, "%.0f context switches a minute instead of %.0f", ours_switches,
             floor_switches);
    figure f = {.name = title,
                .unit = "ms/min",
                .against = "a slow timer of one second",
                .ours = &ours,
                .floor = &floor,
                .n = 1,
                .note = note};
    print_figure(&f);
}

/* ---- deaths ------------------------------------------------------------------------------ */

static void last_listener(int socket, void *arg)
{
    (void) arg;
    pn_conn *conn = connect_to(engine);
    pn_batch *batch = pn_batch_new();
    listen_to(conn, "death");
    conn->next_timer_ns = INT64_MAX;
    while (pn_wait(conn, 0) == -EINTR)
        ; /* walks */
    tell(socket, 0);
    for (;;) {
        sleep_until_told(conn);
        if (must(pn_poll(conn, batch, 0), "pn_poll") > 0)
            atomic_store(&b->heard_ns, now_ns());
    }
}

static void victim(int socket, void *arg)
{
    pn_conn *conn = connect_to(engine);
    tell(socket, 0);
    hear(socket);
    must(pn_crash_arm(arg, 1, PN_CRASH_STOP), "pn_crash_arm");
    must(pn_notify(conn, "death", 5, "x", 1), "pn_notify");
}

static double one_death(const char *label, int listener_stat)
{
    int status;
    child c = start_child(victim, (void *) (uintptr_t) label);
    hear(c.socket);
    while (!is_sleeping(listener_stat)) /* it was told of a neighbour */
        sched_yield();
    atomic_store(&b->heard_ns, 0);
    tell(c.socket, 0);
    must_os(waitpid(c.pid, &status, WUNTRACED), "waitpid");
    if (!WIFSTOPPED(status))
        die("%s was not reached", label);
    int64_t from = now_ns(), at;
    kill(c.pid, SIGKILL);
    while ((at = atomic_load(&b->heard_ns)) == 0) {
        const struct timespec pause = {.tv_nsec = 20000};
        nanosleep(&pause, NULL); /* the listener may need this processor */
        if (now_ns() - from > 20000000000)
            die("%s: not heard of for 20 s", label);
    }
    wait_for_death(c);
    return (double) (at - from) / 1e3;
}

static void measure_deaths(settings s, const char *label, const char *what)
{
    double us[DEATHS], median[MAX_DEATH_PASSES], slowest = 0;
    int passes = s.quick ? 1 : MAX_DEATH_PASSES;
    char note[64];
    child listener = start_child(last_listener, NULL);
    hear(listener.socket);
    int stat_fd = open_stat(listener.pid);
    for (int pass = 0; pass < passes; pass++) {
        for (int i = 0; i < DEATHS; i++) {
            us[i] = one_death(label, stat_fd);
            slowest = us[i] > slowest ? us[i] : slowest;
        }
        median[pass] = spread_of(us, DEATHS).median;
    }
    kill_child(listener);
    close(stat_fd);
    snprintf(note, sizeof note, "the slowest of %d: %.0f us", passes * DEATHS, slowest);
    figure f = {.name = what, .unit = "us", .ours = median, .n = passes, .note = note};
    print_figure(&f);
}

int main(int argc, char **argv)
{
    settings s = parse_arguments(argc, argv);
    pn_options options;
    pn_options_default(&options);
    options.max_backends = SLEEPERS + 24;
    engine = open_segment("watch", &options);
    b = shared_memory(sizeof *b);
    measure_deaths(s, "commit:after-head", "killed after the commit point, lock held, to delivery");
    measure_deaths(s, "commit:unlocked", "killed before the first signal, to delivery");
    measure_sleepers(s);
    pn_engine_close(engine);
    return 0;
}
