/*
 * Killed after any instruction: of a notifier, of a listener that goes to sleep and of one that
 * wakes, of LISTEN and UNLISTEN, of attaching and detaching, of a tail advance, of a recovery.
 *
 * Each scene is an operation, gone through step by step once; then it is done again and again by
 * new processes, and each is killed one instruction later than the one before.  After each kill,
 * the others go on at once, what was committed has reached all of them once and in order and what
 * was not none, pn_check() is clean, and no slot, subscription, channel, counter or byte is left
 * with the dead (step_scene.h).  A recovery is killed while it repairs what another dead process
 * has left, and a third one again.
 *
 * In a race no process dies: a notifier commits between two instructions of a listener that goes to
 * sleep, which has to hear of it without any timer.
 *
 *     test_step              a sample: every so-manieth instruction, beginning at a random one
 *     test_step full         every instruction
 *     test_step full SCENE   every instruction of one scene
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "step_victims.h"

#include <sys/timerfd.h>

enum {
    RECORDINGS = 4,  /* of a section; in a sample 2 */
    SAMPLE = 30,     /* kills of a scene in a sample */
    LEAKS_EVERY = 50 /* kills; then everything is claimed that should be free */
};

static struct step_trace trace;
static bool full;     /* every instruction, instead of a sample that begins at... */
static uint32_t seed; /* ...this one, modulo the stride */

static pid_t begin_child(void (*body)(void))
{
    char *why;
    pid_t pid = step_start(body, &why);
    if (pid < 0)
        FAIL("the victim could not be stepped: %s", why);
    return pid;
}

static void kill_holder(const struct scene *scene)
{
    pid_t pid = begin_child(scene->holder);
    step_until(pid, scene->holder_dies, (const char *) seg->ctl + scene->stored,
               scene->stored_size);
    step_kill(pid);
}

static pid_t begin_victim(const struct scene *scene)
{
    this_kill++;
    settle_scene(scene->offset);
    if (scene->prepare != NULL)
        scene->prepare();
    if (scene->holder != NULL) {
        kill(sleeper_pid, SIGSTOP); /* it watches the holder, and would repair before the victim */
        kill_holder(scene);
    }
    pid_t pid = begin_child(scene->body);
    if (scene->ready != NULL)
        scene->ready();
    return pid;
}

static uint32_t check_after(const struct scene *scene)
{
    int verdict = atomic_load(&common->committed) != 0 ? EVERYTHING : scene->verdict;
    if (scene->holder != NULL)
        kill(sleeper_pid, SIGCONT);
    if (scene->check != NULL)
        scene->check();
    return check_scene(scene->bumped, verdict, scene->on_one);
}

/* The shortest of some: a slow one reads the clock in vain, again and again, while it changes. */
static void record_once(pid_t pid, bool first)
{
    static struct step_trace another;
    step_record(pid, &another);
    step_kill(pid);
    if (first || another.n < trace.n)
        trace = another;
}

static int recordings(void)
{
    return full ? RECORDINGS : 2;
}

static void record(const struct scene *scene)
{
    for (int i = 0; i < recordings(); i++) {
        record_once(begin_victim(scene), i == 0);
        check_after(scene);
    }
}

struct result {
    _Atomic(uint32_t) halves, steps, kills, strayed, committed;
    _Atomic(uint64_t) ns;
};

static struct run {
    _Atomic(uint32_t) next; /* job */
    struct result result[SCENES];
    struct result race[8];
} *run;

/* Kill at every stride-th point from `first` on; in a recovery a third process, too. */
static void run_scene(const struct scene *scene, uint32_t first, uint32_t stride,
                      struct result *result)
{
    record(scene);
    if (stride == 0)
        stride = trace.n / SAMPLE + 1;
    for (uint32_t n = first % stride; n <= trace.n; n += stride) {
        this_point = n;
        pid_t pid = begin_victim(scene);
        unsigned long before = step_strayed;
        step_to(pid, &trace, n);
        step_kill(pid);
        bool strayed = step_strayed != before;
        if (scene->holder != NULL) {
            pid = begin_child(scene->body);
            step_to(pid, &trace, (n * 31 + first) % trace.n);
            step_kill(pid);
            atomic_fetch_add(&result->kills, 1);
        }
        atomic_fetch_add(&result->kills, 1);
        atomic_fetch_add(&result->committed, check_after(scene));
        atomic_fetch_add(&result->strayed, strayed);
        if (this_kill % LEAKS_EVERY == 0)
            check_all_is_to_be_had();
    }
    check_all_is_to_be_had();
}

/* ---- races ----------------------------------------------------------------------------------- */

/* Goes on by itself.  What it stops at, the end, is where it stays until it is killed. */
static void let_go(pid_t pid)
{
    CHECK_EQ(ptrace(PTRACE_DETACH, pid, NULL, NULL), 0);
}

static bool recording;

static void read_until_ping(pn_conn *conn, struct pollfd *fd)
{
    for (bool found = false; !found;) {
        CHECK_OK(pn_poll(conn, batch, 0));
        for (size_t i = 0; i < batch->n; i++)
            found = found || note_at(batch, i).kind == PING;
        if (found)
            break;
        if (fd != NULL) {
            poll(fd, 1, recording ? 50 : -1);
            found = recording;
        } else {
            int rc = pn_wait(conn, -1);
            CHECK(rc >= 0 || rc == -EINTR);
        }
    }
}

static void sleep_by_wait(void)
{
    pn_conn *conn = awake_listener();
    step_begin();
    int rc = pn_wait(conn, recording ? 50000000 : INT64_C(3600000000000));
    CHECK(rc >= 0 || rc == -EINTR);
    if (!recording)
        read_until_ping(conn, NULL);
    step_end();
}

static void sleep_by_descriptor(void)
{
    static const struct itimerspec never;
    pn_conn *conn = test_connect(engine);
    test_listen(conn, "all");
    struct pollfd fd = {.fd = pn_fileno(conn), .events = POLLIN};
    CHECK_EQ(timerfd_settime(conn->tfd, 0, &never, NULL), 0);
    CHECK_OK(send_note(conn, "all", FILL, 40)); /* the poll() that reads it goes to sleep then */
    step_begin();
    read_until_ping(conn, &fd);
    step_end();
}

static bool holds_the_lock(pid_t pid)
{
    int rc = pn_lock_try(seg, &test_hold);
    if (rc == 0)
        pn_lock_release(seg);
    return rc == -EBUSY && pn_load_relaxed(&seg->lock->holder_pid) == pid;
}

/*
 * A commit between two instructions of a listener: it goes on, and hears of it.  Where it takes
 * over from a dead one it has the lock, and the commit comes when that is free.
 */
static void race_listener(pid_t pid)
{
    bool wait_for_it = holds_the_lock(pid);
    if (wait_for_it)
        let_go(pid);
    CHECK_OK(send_note(mine, "all", PING, 40));
    if (!wait_for_it)
        let_go(pid);
    AWAIT(*step_phase == STEP_DONE);
}

/* `ear` is awake when the notifier begins, and falls asleep between two instructions of it. */
static void wake_ear(void)
{
    CHECK_OK(send_note(mine, "all", FILL, 40));
    CHECK_EQ(pn_poll(ear, batch, 0), 1);
}

static void race_notifier(pid_t pid, pn_conn *conn)
{
    CHECK_OK(pn_poll(conn, batch, 0));
    bool got = batch->n != 0;
    let_go(pid);
    for (int64_t until = test_now_ns() + PATIENCE_MS * INT64_C(1000000); !got;) {
        int rc = test_wait(conn, until - test_now_ns());
        if (rc == 0)
            FAIL_HERE("the listener sleeps, and was not told");
        CHECK(rc == 1 || rc == -EINTR);
        CHECK_OK(pn_poll(conn, batch, 0));
        got = batch->n != 0;
    }
    AWAIT(*step_phase == STEP_DONE);
    CHECK_OK(pn_poll(conn, batch, 0));
}

static void race_ear(pid_t pid)
{
    race_notifier(pid, ear);
}

/* It sleeps, far behind, and looks for itself between two instructions of the notifier. */
static void race_lazy(pid_t pid)
{
    race_notifier(pid, lazy);
}

static const struct race {
    const char *name;
    void (*prepare)(void);
    void (*body)(void);
    void (*meet)(pid_t pid);
    bool sleeps; /* the section ends where it sleeps */
} races[] = {
    {.name = "race-wait", .body = sleep_by_wait, .meet = race_listener, .sleeps = true},
    {.name = "race-poll", .body = sleep_by_descriptor, .meet = race_listener, .sleeps = true},
    {.name = "race-notify", .prepare = wake_ear, .body = notify_all, .meet = race_ear},
    {.name = "race-lazy", .prepare = go_round, .body = notify_one, .meet = race_lazy},
};
enum { RACES = sizeof races / sizeof races[0] };

static pid_t begin_race(const struct race *r)
{
    this_kill++;
    settle_scene(0);
    if (r->prepare != NULL)
        r->prepare();
    return begin_child(r->body);
}

static void run_race(const struct race *r, uint32_t first, uint32_t stride, struct result *result)
{
    recording = true;
    for (int i = 0; i < recordings(); i++)
        record_once(begin_race(r), i == 0);
    recording = false;
    uint32_t end = r->sleeps ? trace.sleeps : trace.n;
    if (stride == 0)
        stride = end / SAMPLE + 1;
    for (uint32_t n = first % stride; n <= end; n += stride) {
        this_point = n;
        pid_t pid = begin_race(r);
        unsigned long before = step_strayed;
        if (step_to(pid, &trace, n))
            r->meet(pid);
        atomic_fetch_add(&result->strayed, step_strayed != before);
        kill(pid, SIGKILL);
        step_kill(pid);
        CHECK_OK(pn_poll(ear, batch, 0));
        AWAIT(quiet(sleeper_slot));
        CHECK_OK(pn_engine_backends(engine));
        atomic_fetch_add(&result->kills, 1);
        pn_stat stat = test_stat(engine);
        CHECK_EQ(stat.backends, OTHERS);
        CHECK_ENGINE(engine);
    }
}

/* ---- all of them ----------------------------------------------------------------------------- */

static void report(const char *name, const struct result *r)
{
    printf("%-15s %6u instructions, %6u times", name, atomic_load(&r->steps),
           atomic_load(&r->kills));
    if (atomic_load(&r->committed) != 0)
        printf(", %u committed", atomic_load(&r->committed));
    printf("; %u strayed; %.1f s\n", atomic_load(&r->strayed), (double) atomic_load(&r->ns) / 1e9);
    fflush(stdout);
}

/* Half of a scene or race; the process that ends the second half reports.  A sample is one job. */
static void run_job(uint32_t job, const char *only)
{
    uint32_t i = job / 2, half = job % 2;
    bool is_race = i >= SCENES;
    const char *name = is_race ? races[i - SCENES].name : scenes[i].name;
    struct result *result = is_race ? &run->race[i - SCENES] : &run->result[i];
    uint32_t stride = full ? 2 : 0, first = full ? half : seed;
    int64_t began = test_now_ns();
    if ((only != NULL && strcmp(only, name) != 0) || (!full && half == 1))
        return;
    this_scene = name;
    fflush(NULL);
    open_scene();
    if (is_race)
        run_race(&races[i - SCENES], first, stride, result);
    else
        run_scene(&scenes[i], first, stride, result);
    close_scene();
    atomic_fetch_add(&result->ns, (uint64_t) (test_now_ns() - began));
    if (atomic_load(&result->steps) < trace.n)
        atomic_store(&result->steps, trace.n);
    if (atomic_fetch_add(&result->halves, 1) == 1 || !full)
        report(name, result);
}

static void worker(void *arg)
{
    step_init();
    common = mmap(NULL, sizeof *common, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(common != MAP_FAILED);
    created = test_segment_name();
    sleep_ns = 1000000;
    for (uint32_t job; (job = atomic_fetch_add(&run->next, 1)) < 2 * (SCENES + RACES);)
        run_job(job, arg);
}

static void step_nothing(void)
{
    step_begin();
    step_end();
}

/* Containers may refuse it.  77: skipped, but not where it is required. */
static int without_ptrace(const char *why)
{
    const char *required = getenv("PYNOTIFY_REQUIRE");
    fprintf(stderr, "processes cannot be stepped here: %s\n", why);
    return required != NULL && strstr(required, "ptrace") != NULL ? 1 : 77;
}

/* Symbols bound at once; and no `rep movs`, which steps once a byte. */
static void again_with_environment(char **argv)
{
    if (getenv("LD_BIND_NOW") != NULL)
        return;
    setenv("LD_BIND_NOW", "1", 1);
    setenv("GLIBC_TUNABLES",
           "glibc.cpu.x86_rep_movsb_threshold=99999999:glibc.cpu.x86_rep_stosb_threshold=99999999",
           1);
    execv("/proc/self/exe", argv);
}

int main(int argc, char **argv)
{
    pid_t pid[16];
    char *why;
    uint64_t total = 0, raced = 0;
    int64_t began = test_now_ns();
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    int workers = cpus > 16 ? 16 : (int) cpus, status = 0;

    again_with_environment(argv);
    test_watchdog(argc > 1 ? 1500 : 110);
    step_init();
    pid_t probe = step_start(step_nothing, &why);
    if (probe < 0)
        return without_ptrace(why);
    step_record(probe, &trace);
    step_kill(probe);
    full = argc > 1 && strcmp(argv[1], "full") == 0;
    seed = (uint32_t) (test_now_ns() / 1000 % 1000003);
    run = mmap(NULL, sizeof *run, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(run != MAP_FAILED);
    if (!full)
        printf("a sample, beginning at %u\n", seed);
    for (int i = 0; i < workers; i++)
        pid[i] = spawn(worker, argc > 2 ? argv[2] : NULL);
    for (int i = 0; i < workers; i++) {
        int ended;
        while (waitpid(pid[i], &ended, 0) < 0)
            CHECK_EQ(errno, EINTR);
        status |= ended;
    }
    for (int i = 0; i < SCENES; i++)
        total += atomic_load(&run->result[i].kills);
    for (int i = 0; i < RACES; i++)
        raced += atomic_load(&run->race[i].kills);
    printf("%llu kills, %llu races; %.1f s; %s\n", (unsigned long long) total,
           (unsigned long long) raced, (double) (test_now_ns() - began) / 1e9,
           status == 0 ? "all is well" : "FAILED");
    return status != 0;
}
