/*
 * A process that dies in a turn at the writer lock (turn.h): before it has the lock, with it, or
 * while it stands back for another.  Nothing repairs the word, and all others get the lock.
 */
#include "engine.h"

#include "segment/turn.h"

static pn_engine *engine;
static struct pn_segment *seg;

static void take_and_release(void)
{
    struct pn_hold hold;
    CHECK_OK(pn_lock_acquire(seg, &hold, PN_LOCK_FOREVER));
    pn_lock_release(seg);
}

/* Asks at once. */
static void wait_and_die(void *label)
{
    pn_turn_ns = 1;
    CHECK_OK(pn_crash_arm(label, 1, PN_CRASH_KILL));
    take_and_release();
}

static void begin(void)
{
    engine = test_engine(NULL);
    seg = test_inside();
}

/* The next ones get it, and one of them has ended the turn. */
static void end(void)
{
    take_and_release();
    CHECK_EQ(pn_turn_of(&seg->lock->turn), 0);
    take_and_release();
    CHECK_ENGINE(engine);
    pn_engine_close(engine);
}

static void test_before_it_has_the_lock(void)
{
    struct pn_hold hold;
    begin();
    CHECK_OK(pn_lock_acquire(seg, &hold, PN_LOCK_FOREVER));
    CHECK_KILLED(spawn(wait_and_die, "turn:asked"), SIGKILL);
    CHECK(pn_turn_of(&seg->lock->turn) != 0);
    pn_lock_release(seg);
    end();
}

static void test_with_the_lock(void)
{
    struct pn_hold hold;
    begin();
    CHECK_OK(pn_lock_acquire(seg, &hold, PN_LOCK_FOREVER));
    pid_t pid = spawn(wait_and_die, "turn:has-come");
    CHECK_SOON(pn_turn_of(&seg->lock->turn) != 0);
    pn_lock_release(seg);
    CHECK_KILLED(pid, SIGKILL);
    CHECK(pn_turn_of(&seg->lock->turn) != 0);
    take_and_release(); /* repairs; the mutex was not free, but a dead thread's */
    end();
}

static void test_while_it_stands_back(void)
{
    enum { ANOTHER = 77 };
    begin();
    pn_store_relaxed(&seg->lock->turn.number, ANOTHER);
    CHECK_KILLED(spawn(wait_and_die, "turn:stands-back"), SIGKILL);
    CHECK_EQ(pn_turn_of(&seg->lock->turn), ANOTHER);
    end();
}

int main(void)
{
    RUN(test_before_it_has_the_lock);
    RUN(test_with_the_lock);
    RUN(test_while_it_stands_back);
    return tests_done();
}
