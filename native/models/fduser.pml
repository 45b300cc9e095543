/*
 * fduser.pml - two slots in one process, one a user of the fd only; batches; poll() in a transaction;
 * notifying oneself (R5).
 *
 * THE MODEL
 *
 *  1. One process has two slots.  The user of slot 0 only ever watches the fd (epoll, level-triggered)
 *     and calls poll() when it is readable; the user of slot 1 sleeps in wait(), which blocks on the
 *     same readiness, and then polls.  poll() returns at most BATCH entries.
 *  2. One notifier of another process commits NC entries, each for slot 0, slot 1, or both; the process
 *     itself commits SELF entries from the thread of slot 0, which may be of interest to its own slots.
 *  3. A SIGUSR1 goes to the process and not to a slot: one pending signal stands for many.  The handler
 *     writes ALL eventfds of the process; a spurious wake is legal.
 *  4. A poll() that returns a full batch and leaves something unread writes its own eventfd.
 *  5. Inside a transaction poll() may drain the eventfd and return nothing, but remembers that and
 *     writes the eventfd again at commit or abort.
 *  6. A poll() that found nothing leaves the slot ASLEEP.  An awake slot with something unread always
 *     has a readable eventfd, a pending or coming signal, or a thread inside poll(): checked at the
 *     end as due == got (I8).
 *  7. Reading happens at once (one step loads head, one copies, one stores pos); the ring never wraps
 *     and no process is killed: that is handshake.pml.
 *  8. FLAG_WORD: the latch is two words, a flag word beside the eventfd, so that a poll() that left
 *     something unread need not write an eventfd that is readable already.  Set: flag, then write.
 *     Reset: drain, THEN clear the flag, and drain even when the flag is clear; then a set flag means
 *     "readable, or its writer is about to write".  The other order loses that: the handler runs
 *     between clear and drain, the drain takes its write, the flag stays set over an empty eventfd,
 *     and the next partial batch is not posted.
 *
 * ASSERTED: I4 I5 I8, and with FLAG_WORD that a reset which does nothing leaves nothing readable.
 *
 * BROKEN VARIANTS: NO_REPOST (partial batch) NO_REPOST_IN_TX HANDLER_ONE_EVENTFD DRAIN_AFTER_LOOK
 * NO_RECHECK POLL_LEAVES_AWAKE (a poll that found nothing does not arm the slot)
 * FRESH_AWAKE; with FLAG_WORD also FLAG_CLEARED_FIRST FLAG_EARLY_RETURN
 */
#ifndef NC
#define NC 2
#endif
#ifndef SELF
#define SELF 1
#endif
#ifndef BATCH
#define BATCH 1
#endif

#define ASLEEP 128
#define P(x) ((x) & 127)
#ifdef FRESH_AWAKE
#define ASLEEP_AT_START 0
#else
#define ASLEEP_AT_START ASLEEP
#endif
#define MAX(a, b) ((a) > (b) -> (a) : (b))
#define MIN(a, b) ((a) < (b) -> (a) : (b))
#define BIT(n) (1 << (n))
#define STEP(...) atomic { __VA_ARGS__ }

bool lock;
byte head, woken;
byte pos[2], want[2], from[2];
bool owed[2], efd[2];
byte pending;                   /* SIGUSR1 pending for the process; with HANDLER_ONE_EVENTFD 1 + slot */
bool repost[2];                 /* the connection remembers that it drained in a transaction */
byte due[2], got[2];
#ifdef FLAG_WORD
bool fl[2];
#define LATCH_SET(s) STEP(fl[s] = 1); STEP(efd[s] = 1)
#define POST_LEFT(s) STEP(if :: fl[s] -> goto polled :: else fi); LATCH_SET(s)
#ifdef FLAG_CLEARED_FIRST
#define LATCH_RESET(s) STEP(h = fl[s]; fl[s] = 0); \
    STEP(if :: efd[s] -> efd[s] = 0 :: else -> if :: h -> fl[s] = 1 :: else fi fi; h = 0)
#elif defined(FLAG_EARLY_RETURN)
#define LATCH_RESET(s) STEP(if :: !fl[s] -> assert(!efd[s]) :: else fi); STEP(efd[s] = 0); STEP(fl[s] = 0)
#else
#define LATCH_RESET(s) STEP(efd[s] = 0); STEP(fl[s] = 0)
#endif
#else
#define LATCH_SET(s) STEP(efd[s] = 1)
#define POST_LEFT(s) LATCH_SET(s)
#define LATCH_RESET(s) STEP(efd[s] = 0)
#endif

#define SKIPS_NOTHING(l, a, b) \
    ((due[l] & ~got[l] & (BIT(b) - 1) & ~(BIT(a) - 1)) == 0)

/* one transaction of one entry; its interest is chosen freely.  Leaves at committed. */
inline commit()
{
    atomic { !lock -> lock = 1; if :: msk = 1 :: msk = 2 :: msk = 3 fi };
    /* PN_CRASH("lock:acquired") */
    STEP(if :: msk & 1 -> due[0] = due[0] | BIT(head) :: else fi;
        if :: msk & 2 -> due[1] = due[1] | BIT(head) :: else fi;
        head++; i = 0);
    /* PN_CRASH("commit:after-head") */
publish:
    STEP(if
        :: msk & BIT(i) ->
            if :: (pos[i] & ASLEEP) && want[i] <= P(pos[i]) -> from[i] = woken :: else fi;
            /* PN_CRASH("commit:from") */
            want[i] = head
            /* PN_CRASH("commit:want") */
        :: else
        fi;
        i++; if :: i < 2 -> goto publish :: else -> i = 0 fi);
unsleep:
    STEP(if
        :: (msk & BIT(i)) && (pos[i] & ASLEEP) && want[i] > P(pos[i]) ->
            owed[i] = 1;
            /* PN_CRASH("commit:owed") */
            assert(SKIPS_NOTHING(i, P(pos[i]), MAX(P(pos[i]), from[i])));       /* I5 */
            pos[i] = MAX(P(pos[i]), from[i]); col = col | BIT(i)
            /* PN_CRASH("commit:unslept") */
        :: else
        fi;
        i++; if :: i < 2 -> goto unsleep :: else -> i = 0 fi);
    /* PN_CRASH("commit:before-woken") */
    STEP(woken = head; lock = 0; msk = 0);
    /* PN_CRASH("commit:unlocked") */
sending:
    STEP(if
#ifdef HANDLER_ONE_EVENTFD
        :: col & BIT(i) -> if :: pending == 0 -> pending = 1 + i :: else fi
#else
        :: col & BIT(i) -> pending = 1
#endif
        :: else
        fi;
        /* PN_CRASH("signal:sent") */
        i++; if :: i < 2 -> goto sending :: else -> i = 0; col = 0; goto committed fi)
}

/* One poll(): returns at polled, after reading at most BATCH entries. */
inline poll()
{
#ifdef DRAIN_AFTER_LOOK
    STEP(p = pos[l]);
    STEP(efd[l] = 0; if :: !(p & ASLEEP) -> goto read :: else -> goto polled fi);
#else
    LATCH_RESET(l);
    /* PN_CRASH("wake:drained") */
    STEP(owed[l] = 0);
    /* PN_CRASH("wake:owed-cleared") */
#endif
    STEP(p = pos[l]; if :: p & ASLEEP -> p = P(p) :: else -> goto read fi);
    STEP(if :: want[l] > p -> goto rewake :: else -> p = 0; goto polled fi);
rewake:
    STEP(if
        :: pos[l] == (p | ASLEEP) ->
            assert(SKIPS_NOTHING(l, p, MAX(p, from[l])));                       /* I5 */
            pos[l] = MAX(p, from[l])
        :: else
        fi);
    /* PN_CRASH("wake:unslept") */
    /* PN_CRASH("sleep:rewoken") */
    STEP(p = pos[l]; assert(!(p & ASLEEP)));
read:
    STEP(h = head; if :: p == h -> h = 0; goto nothing :: else -> h = MIN(p + BATCH, h) fi);
    /* PN_CRASH("read:head") */
    STEP(do
        :: p < h ->
            if
            :: due[l] & BIT(p) -> assert(!(got[l] & BIT(p))); got[l] = got[l] | BIT(p)  /* I4 */
            :: else
            fi;
            p++
        :: else -> break
        od);
    /* PN_CRASH("read:copied") */
    STEP(pos[l] = p; p = 0; h = 0);
    /* PN_CRASH("read:pos") */
    /* something may be left: do not return awake with an eventfd that no process will write */
#ifndef NO_REPOST
    POST_LEFT(l);
#endif
    goto polled;
nothing:
#ifdef POLL_LEAVES_AWAKE
    goto polled;
#endif
    STEP(pos[l] = p | ASLEEP);
    /* PN_CRASH("sleep:asleep") */
#ifdef NO_RECHECK
    goto polled;
#endif
    /* PN_CRASH("sleep:fenced") */
    STEP(if :: want[l] > p -> goto rewake :: else -> p = 0; goto polled fi)
}

proctype Notifier()
{
    byte n, i, msk, col;
next:
    atomic { if :: n < NC -> n++ :: else -> goto over fi };
    commit();
committed:
    goto next;
over:
    skip
}

/* the signal handler, in whatever thread */
proctype Handler()
{
end_none:
    do
    :: atomic {
        pending ->
#ifdef HANDLER_ONE_EVENTFD
        efd[pending - 1] = 1; pending = 0
#else
        pending = 0
#endif
       };
#ifndef HANDLER_ONE_EVENTFD
       LATCH_SET(0);
       LATCH_SET(1)
#endif
    od
}

proctype User(byte l)
{
    byte p, h, n, i, msk, col;
    bool in_tx;
idle:
end_watching:
    if
    :: atomic { efd[l] && !in_tx -> goto poll_now }
    :: atomic { efd[l] && in_tx -> goto poll_in_tx }
    :: atomic { l == 0 && !in_tx && n < SELF -> in_tx = 1; n++; goto idle }     /* BEGIN; NOTIFY */
    :: atomic { in_tx -> in_tx = 0; if :: goto finish :: goto aborted fi }
    fi;
poll_now:
    poll();
polled:
    goto idle;
poll_in_tx:
    LATCH_RESET(l);
    STEP(repost[l] = 1);
    goto idle;
finish:
    commit();
committed:
aborted:
#ifndef NO_REPOST_IN_TX
    STEP(if :: repost[l] -> repost[l] = 0 :: else -> goto idle fi);
    LATCH_SET(l);
#endif
    goto idle
}

init {
    /* a fresh slot is ASLEEP: awake, it would be deaf until a thread polled it unasked */
    atomic { pos[0] = ASLEEP_AT_START; pos[1] = ASLEEP_AT_START; run Notifier(); run Handler(); run User(0); run User(1) };
    timeout;
    assert(due[0] == got[0] && due[1] == got[1])                        /* I8 */
}
