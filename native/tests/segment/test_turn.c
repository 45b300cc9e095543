/* Turns at the writer lock: a thread that has waited for long gets it before one that comes. */
#include <pthread.h>

#include "engine.h"

#include "base/os.h"
#include "segment/lock.h"
#include "segment/turn.h"

#define NEVER_NS (3600LL * 1000000000) /* a test that waits for it hangs */

enum { ROUNDS = 20, ANOTHER = 77 };

static pn_engine *engine;
static struct pn_segment *seg;
static struct pn_turn_word *word;

static atomic_int *holds; /* shared with children */

static void begin(void)
{
    engine = test_engine(NULL);
    seg = test_inside();
    word = &seg->lock->turn;
    holds = mmap(NULL, sizeof *holds, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(holds != MAP_FAILED);
}

static void end(void)
{
    pn_turn_ns = PN_TURN_NS;
    CHECK_ENGINE(engine);
    pn_engine_close(engine);
    munmap(holds, sizeof *holds);
}

static void take(struct pn_hold *hold)
{
    CHECK_OK(pn_lock_acquire(seg, hold, PN_LOCK_FOREVER));
}

/* ---- it is kept ------------------------------------------------------------------------------ */

/* Asks at once. */
static void wait_for_it(void *arg)
{
    struct pn_hold hold;
    (void) arg;
    pn_turn_ns = 1;
    take(&hold);
    atomic_fetch_add(holds, 1);
    pn_lock_release(seg);
}

/* Without turns it would be this process that had it again. */
static void test_it_goes_to_the_one_that_waits(void)
{
    struct pn_hold hold;
    begin();
    pn_turn_ns = NEVER_NS;
    for (int round = 0; round < ROUNDS; round++) {
        take(&hold);
        pid_t pid = spawn(wait_for_it, NULL);
        CHECK_SOON(pn_turn_of(word) != 0);
        pn_lock_release(seg);
        take(&hold);
        CHECK_EQ(atomic_load(holds), round + 1);
        CHECK_EQ(pn_turn_of(word), 0);
        pn_lock_release(seg);
        CHECK_CHILD(pid, 0);
    }
    end();
}

/* Not by those that may not wait, nor by the watchdog, which has somewhere else to go. */
static void test_some_stand_back_for_none(void)
{
    struct pn_hold hold;
    begin();
    pn_turn_ns = NEVER_NS;
    pn_store_relaxed(&word->number, ANOTHER);
    pn_set_never_wait(1);
    take(&hold);
    pn_lock_release(seg);
    pn_set_never_wait(0);
    CHECK_OK(pn_lock_try(seg, &hold));
    pn_lock_release(seg);
    CHECK_EQ(pn_turn_of(word), ANOTHER);
    pn_store_relaxed(&word->number, 0);
    end();
}

/* ---- signals while a thread stands back ------------------------------------------------------ */

static atomic_int signals, has_it;

static void count(int signo)
{
    (void) signo;
    atomic_fetch_add(&signals, 1);
}

static void *stand_back(void *arg)
{
    struct pn_hold hold;
    (void) arg;
    take(&hold);
    atomic_store(&has_it, 1);
    pn_lock_release(seg);
    return NULL;
}

static void test_signals_do_not_end_it(void)
{
    pthread_t thread;
    begin();
    pn_turn_ns = NEVER_NS;
    CHECK(sigaction(SIGUSR2, &(struct sigaction) {.sa_handler = count}, NULL) == 0);
    pn_store_relaxed(&word->number, ANOTHER);
    CHECK_EQ(pthread_create(&thread, NULL, stand_back, NULL), 0);
    for (int i = 0; i < ROUNDS; i++) {
        CHECK_EQ(pthread_kill(thread, SIGUSR2), 0);
        CHECK_SOON(atomic_load(&signals) == i + 1);
    }
    CHECK_EQ(pn_turn_of(word), ANOTHER);
    CHECK_EQ(atomic_load(&has_it), 0);
    pn_store_relaxed(&word->number, 0); /* it had the lock */
    pn_futex_wake_all(&word->number);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK_EQ(atomic_load(&has_it), 1);
    end();
}

/* ---- it ends --------------------------------------------------------------------------------- */

/* A number of no thread, as a dead one leaves it, or another program. */
static void test_that_of_a_dead_thread_is_taken_away(void)
{
    struct pn_hold hold;
    begin();
    pn_store_relaxed(&word->number, ANOTHER);
    take(&hold);
    CHECK_EQ(pn_turn_of(word), 0);
    pn_lock_release(seg);
    end();
}

/* It was taken away, and another thread has asked: that one's is not ended with it. */
static void test_a_thread_ends_its_own_alone(void)
{
    begin();
    struct pn_turn turn = pn_turn_later(word, 0);
    pn_turn_ask(&turn, test_now_ns());
    CHECK(turn.number != 0);
    CHECK_EQ(pn_turn_of(word), turn.number);
    pn_store_relaxed(&word->number, ANOTHER);
    pn_turn_end(&turn);
    CHECK_EQ(pn_turn_of(word), ANOTHER);
    pn_store_relaxed(&word->number, 0);
    end();
}

static void give_up(void *arg)
{
    struct pn_hold hold;
    (void) arg;
    CHECK_EQ(pn_lock_acquire(seg, &hold, 10 * 1000000), -PN_ELOCK);
    pn_set_interruptible(1);
    CHECK_EQ(pn_lock_wait(seg, &hold, PN_LOCK_FOREVER, seg), -EINTR);
}

/* A call that gives up, or is left for a while, has no turn any more. */
static void test_a_call_that_is_left_has_none(void)
{
    struct pn_hold hold;
    begin();
    pn_turn_ns = 1;
    take(&hold);
    pid_t pid = spawn(give_up, NULL);
    CHECK_CHILD(pid, 0);
    CHECK_EQ(pn_turn_of(word), 0);
    CHECK(pn_load_relaxed(&word->over_at) != 0);
    pn_lock_release(seg);
    end();
}

/* It had no processor when the lock was free, and may have one now. */
static void test_one_that_was_taken_away_is_asked_for_again(void)
{
    begin();
    int64_t now = test_now_ns();
    struct pn_turn turn = pn_turn_later(word, now);
    pn_turn_ask(&turn, now);
    for (int i = 0; i < ROUNDS; i++) {
        CHECK(turn.number != 0);
        CHECK(turn.ask_at <= now + 2 * PN_TURN_NS);
        pn_store_relaxed(&word->number, 0);
        now = turn.ask_at;
        pn_store_relaxed(&word->over_at, (uint32_t) (now / 1000)); /* just now */
        pn_turn_ask(&turn, now);
        CHECK_EQ(turn.number, 0);
        CHECK(turn.ask_at <= now + 2 * PN_TURN_NS);
        now = turn.ask_at;
        pn_turn_ask(&turn, now);
    }
    pn_turn_end(&turn);
    end();
}

/* ---- how often ------------------------------------------------------------------------------- */

static void test_one_at_a_time_and_not_at_once_again(void)
{
    begin();
    int64_t now = test_now_ns();
    struct pn_turn first = pn_turn_later(word, now), second = pn_turn_later(word, now);
    pn_turn_ask(&first, now);
    pn_turn_ask(&second, now);
    CHECK(first.number != 0);
    CHECK_EQ(second.number, 0);
    CHECK(second.ask_at > now + PN_TURN_NS); /* it asks less and less often */
    pn_turn_ns = NEVER_NS;
    pn_turn_end(&first);
    pn_turn_ask(&second, test_now_ns());
    CHECK_EQ(second.number, 0);
    pn_turn_ns = PN_TURN_NS;
    pn_turn_ask(&second, test_now_ns() + PN_TURN_NS);
    CHECK(second.number != 0);
    pn_turn_end(&second);
    end();
}

int main(void)
{
    RUN(test_it_goes_to_the_one_that_waits);
    RUN(test_some_stand_back_for_none);
    RUN(test_signals_do_not_end_it);
    RUN(test_that_of_a_dead_thread_is_taken_away);
    RUN(test_a_thread_ends_its_own_alone);
    RUN(test_a_call_that_is_left_has_none);
    RUN(test_one_that_was_taken_away_is_asked_for_again);
    RUN(test_one_at_a_time_and_not_at_once_again);
    return tests_done();
}
