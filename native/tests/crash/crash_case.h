/*
 * crash_case.h - what the programs share that kill at every crash point: how a victim dies, and how
 * all cases are run, a few at a time, each in a process of its own.
 *
 * Stands behind the journal (struct shared, `j`), the case (struct crash_case, `now`) and
 * `victim_pid`, which are the program's; so are PROGRESS_MS and PARALLEL.
 */
#ifndef CRASH_CASE_H
#define CRASH_CASE_H

/* How a case ends; and a victim, by PN_CRASH_EXIT. */
enum { HIT = 0, FAILED = 1, NOT_HIT = 3, EXITED = 99 };

static bool begins(const char *label, const char *prefix)
{
    return strncmp(label, prefix, strlen(prefix)) == 0;
}

/* ---- a victim -------------------------------------------------------------------------------- */

static void victim(void *arg)
{
    (void) arg;
    CHECK_EQ(setpgid(0, 0), 0); /* its children can be waited for when it is dead */
    CHECK_OK(pn_crash_arm(now.label, now.nth, now.action));
    now.victim();
}

/* Of the test, which takes the writer lock itself. */
static struct pn_hold test_hold;

/* The lock; -EBUSY if the victim has it, or another process does not let it go. */
static int try_beside_the_stopped(struct pn_segment *seg, bool alone)
{
    int64_t until = test_now_ns() + PROGRESS_MS * INT64_C(1000000);
    int rc = pn_lock_try(seg, &test_hold);
    while (alone && rc == -EBUSY && pn_load_relaxed(&seg->lock->holder_pid) != victim_pid &&
           test_now_ns() < until) {
        sched_yield(); /* a survivor may be about to go back to sleep */
        rc = pn_lock_try(seg, &test_hold);
    }
    return rc;
}

/* Stopped is not dead: the holder keeps the lock.  True: it has not, and is in no other's way. */
static bool lock_is_free_beside_the_stopped(bool alone)
{
    struct pn_segment *seg = inside();
    int rc = try_beside_the_stopped(seg, alone);
    if (rc == 0) {
        pn_lock_release(seg);
        return true;
    }
    int32_t holder = pn_load_relaxed(&seg->lock->holder_pid);
    REQUIRE(rc == -EBUSY, "the lock: %d", rc);
    REQUIRE(holder == victim_pid || !alone, "%d has the lock, not the stopped %d", holder,
            victim_pid);
    return false;
}

/* True: it came to where it should. */
static bool judge_victim(int status, bool stopped)
{
    if (WIFEXITED(status) && WEXITSTATUS(status) == EXITED)
        return now.action == PN_CRASH_EXIT;
    REQUIRE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0, "the victim failed");
    REQUIRE(!WIFSIGNALED(status) || WTERMSIG(status) == SIGKILL, "the victim died of signal %d",
            WTERMSIG(status));
    return WIFSIGNALED(status) || stopped;
}

/*
 * The victim's own children die with it, but not in the same instant; until the kernel has taken
 * their memory down their slots are not free (L6), and nothing that counts slots may look.
 */
static void wait_for_orphans(void)
{
    while (waitpid(-victim_pid, NULL, 0) > 0 || errno == EINTR)
        ;
    CHECK_EQ(errno, ECHILD);
}

/* ---- all cases ------------------------------------------------------------------------------- */

struct job {
    struct crash_case c;
    void (*run)(void *arg);
    void *arg;
    pid_t pid;
    struct shared *shared;
};

static unsigned failures, not_hit, done;

static void finish_job(struct job *job)
{
    char leftover[64];
    int status = reap(job->pid); /* it has a watchdog of its own */
    bool exited = WIFEXITED(status);
    if (exited && WEXITSTATUS(status) == NOT_HIT) {
        fprintf(
            stderr,
            "crash label %s (%s, hit %u) was reached by no victim: give it a scenario in " VICTIMS_H
            ", and job_of() the way to it\n",
            job->c.label, action_names[job->c.action], job->c.nth);
        not_hit++;
    } else if (!exited || WEXITSTATUS(status) != HIT) {
        fprintf(stderr, "FAILED: %s, hit %u, %s\n", job->c.label, job->c.nth,
                action_names[job->c.action]);
        failures++;
        for (int i = 0; i < 4; i++) { /* what it could not remove itself */
            snprintf(leftover, sizeof leftover, "ctest.%d.%d", (int) job->pid, i);
            test_segment_remove(leftover);
        }
    }
    done++;
    munmap(job->shared, sizeof *job->shared);
}

static void start_job(struct job *job, void (*prepare_journal)(void))
{
    job->shared = mmap(NULL, sizeof *job->shared, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(job->shared != MAP_FAILED);
    j = job->shared;
    if (prepare_journal != NULL)
        prepare_journal();
    now = job->c;
    job->pid = spawn(job->run, job->arg);
}

/* The exit status of the program. */
static int run_jobs(struct job *jobs, size_t n, void (*prepare_journal)(void))
{
    int64_t began = test_now_ns();
    CHECK(n > 0);
    for (size_t i = 0; i < n + PARALLEL; i++) {
        if (i >= PARALLEL && i - PARALLEL < n)
            finish_job(&jobs[i - PARALLEL]);
        if (i < n)
            start_job(&jobs[i], prepare_journal);
    }
    printf("%u cases, %u failed, %u not reached; %.1f s\n", done, failures, not_hit,
           (double) (test_now_ns() - began) / 1e9);
    return failures + not_hit != 0;
}

#endif
