/*
 * topic_wake.pml - topics: which consumer is woken for a message, and for a time that comes.
 *
 * THE MODEL
 *
 *  1. One channel, NC consumers, a publisher with M messages, each at once or due at time 1 or 2.  All of the
 *     channel is read and written under the writer lock.
 *  2. get(): take the lock; waiting and owed of oneself are cleared; what is due becomes READY; take one READY
 *     message (IN_FLIGHT, deadline now + 1), or set `armed` to the next due of the channel and `waiting`; settle;
 *     unlock; signal those chosen.  A consumer that got nothing sleeps on its latch, until `armed`
 *     at the latest.  It drains the latch before it looks again.
 *  3. settle, at the end of every section: as long as one is waiting, and there are more READY messages than have
 *     been woken and not come yet, or none that waits has armed <= next due and none that was woken
 *     is still to come: wake one, any.  `owed` is stored first, then waiting = 0; the signal
 *     follows after the unlock.
 *  4. A consumer with a message finishes it and comes again, or forgets it, and never comes again:
 *     then the deadline is another's to see.  LEAVES times a consumer's own time-out ends its
 *     sleep: it looks once more, under the lock, and goes with a message or without.
 *  5. `dirty` is set when the lock is taken and cleared after settling.  A process that gets the
 *     lock of a dead one returns the messages of the dead, if their death is to be seen yet (L6),
 *     dirty if that is a consumer, settles if it is dirty, unlocks, and signals all that are owed a
 *     signal.
 *  6. A sleeper sees each death (watch.pml has which ones, and how): it takes over: the lock (and its recovery), returns
 *     a dead consumer's messages and settles, unlocks, signals all that are owed.
 *  7. KILLS kills fall between any two steps of any process.  Time goes on at any moment, up to
 *     TMAX.
 *  8. STOP: consumer 0 may be stopped for ever in its sleep.  SLOW: once nothing can move any more, every sleeper
 *     looks once: the slow timer.
 *
 * ASSERTED when nothing can move, if a living consumer sleeps: no message is READY, nothing that is due has not been
 * fired, a consumer that sleeps is waiting, the lock is not a dead one's.  LIVE says the same of the first as liveness.
 *
 * BROKEN VARIANTS (-D): NO_SETTLE_CLAIM NO_SETTLE_LEAVE NO_SETTLE_REAP NO_SETTLE_RECOVER LEAVES_WAITING LEAVES_UNSEEN
 * DIRTY_CLEARED_FIRST REAP_NOT_DIRTY WAITING_BEFORE_OWED DRAIN_AFTER_LOOK NO_TAKEOVER TAKEOVER_NO_SIGNAL DUE_WAKES_NOBODY, and STOP without SLOW.
 * Not broken: WAKE_ONE (no second one is woken as long as one is to come: it settles), OWED_CLEARED_FIRST (before the lock),
 * ARMS_ONLY_FIRST (one sleeper has the timer, not all), NO_SETTLE_FINISH, NO_RESIGNAL (a takeover signals, too).
 */
#ifndef NC
#define NC 2
#endif
#ifndef M
#define M 2
#endif
#ifndef KILLS
#define KILLS 0
#endif
#ifndef LEAVES
#define LEAVES 0
#endif
#ifndef TMAX
#define TMAX 2
#endif

#define FREE 0
#define DIED 9
#define NEVER 99
#define PUB NC
#define ALL ((1 << NC) - 1)
#define BIT(i) (1 << (i))
#define IN(s, i) (((s) & BIT(i)) != 0)
#define ADD(s, i) s = s | BIT(i)
#define DEL(s, i) s = s & ~BIT(i)

mtype = { NONE, DEFERRED, READY, FLIGHT, DONE };

byte lock, now;
mtype st[M];
byte due[M], own[M];
byte waiting, owed;             /* W: lock holder */
byte armed[NC];                 /* W: its owner, under the lock */
bool dirty;
byte latch;                     /* the kernel's */
byte dead, stopped, asleep;     /* ghosts: sets */
byte reaped, slow;
byte kills = KILLS, leaves = LEAVES;

#if KILLS
#define STEP(...) if :: atomic { RUNS -> __VA_ARGS__ } :: atomic { kills > 0 -> kills--; goto died } fi
#else
#define STEP(...) atomic { RUNS -> __VA_ARGS__ }
#endif
#define RUNS !(stopped & BIT(me))

#if M == 2
#define N_READY ((st[0] == READY) + (st[1] == READY))
#define DUE(i) ((st[i] == DEFERRED || st[i] == FLIGHT) -> due[i] : NEVER)
#define NEXT_DUE (DUE(0) < DUE(1) -> DUE(0) : DUE(1))
#else
#define N_READY (st[0] == READY)
#define NEXT_DUE ((st[0] == DEFERRED || st[0] == FLIGHT) -> due[0] : NEVER)
#endif

#define COMING (owed & ~waiting)
#if NC == 3
#define N_COMING (IN(COMING, 0) + IN(COMING, 1) + IN(COMING, 2))
#define TIMED(d) ((IN(waiting, 0) && armed[0] <= d) || (IN(waiting, 1) && armed[1] <= d) || (IN(waiting, 2) && armed[2] <= d))
#else
#define N_COMING (IN(COMING, 0) + IN(COMING, 1))
#define TIMED(d) ((IN(waiting, 0) && armed[0] <= d) || (IN(waiting, 1) && armed[1] <= d))
#endif
#define UNTIMED (COMING == 0 && NEXT_DUE != NEVER && !TIMED(NEXT_DUE))
#ifdef WAKE_ONE
#define UNSERVED (N_READY > 0 && COMING == 0)
#else
#define UNSERVED (N_READY > N_COMING)
#endif
#define UNSETTLED (waiting != 0 && (UNSERVED || UNTIMED))

/* ---- parts of the lock's holder */

inline settle()
{
    do
    :: atomic { !UNSETTLED -> i = 0; break }
    :: atomic { UNSETTLED -> i = 0;
            do :: !IN(waiting, i) -> i++
               :: IN(waiting, i) -> break
               :: IN(waiting, i) && (waiting >> (i + 1)) != 0 -> i++ od }
#ifdef WAITING_BEFORE_OWED
        STEP(DEL(waiting, i));
        STEP(ADD(owed, i); ADD(col, i))
#else
        STEP(ADD(owed, i));
        STEP(DEL(waiting, i); ADD(col, i))
#endif
    od
}

inline fire()
{
    i = 0;
    do
    :: atomic { i < M && (st[i] == DEFERRED || st[i] == FLIGHT) && due[i] <= now && RUNS -> skip }
        STEP(st[i] = READY; own[i] = 0; due[i] = 0; i++)
    :: atomic { i < M && !((st[i] == DEFERRED || st[i] == FLIGHT) && due[i] <= now) && RUNS -> i++ }
    :: atomic { i == M -> i = 0; break }
    od
}

/* The messages of the dead in `set`, a store each; then the slots. */
inline reap(set)
{
    i = 0;
    do
    :: atomic { i < M && st[i] == FLIGHT && IN(set, own[i]) -> skip }
        STEP(st[i] = READY; own[i] = 0; due[i] = 0; i++)
    :: atomic { i < M && !(st[i] == FLIGHT && IN(set, own[i])) -> i++ }
    :: atomic { i == M -> i = 0; break }
    od;
    STEP(waiting = waiting & ~(set); owed = owed & ~(set); reaped = reaped | (set))
}

inline recover()
{
    atomic { if :: set = dead & ~reaped :: set = 0 /* L6 */ fi; col = 0 };
#ifndef REAP_NOT_DIRTY
    STEP(if :: set & ALL -> dirty = 1 :: else fi);
#endif
    reap(set);
#ifndef NO_SETTLE_RECOVER
    if
    :: atomic { dirty -> skip };
        settle()
    :: atomic { !dirty -> skip }
    fi;
#endif
    STEP(repaired = 1; set = 0; dirty = 1)
}

inline acquire()
{
    if
    :: atomic { lock == FREE && RUNS -> lock = me + 1; dirty = 1 }
    :: atomic { lock == DIED && RUNS -> lock = me + 1 };
        recover()
    fi
}

inline release()
{
    STEP(dirty = 0);
    STEP(assert(lock == me + 1); lock = FREE;
#ifndef NO_RESIGNAL
        if :: repaired -> col = col | owed :: else fi;
#endif
        repaired = 0);
    do
    :: atomic { col == 0 -> break }
    :: atomic { col != 0 && RUNS -> i = 0; do :: !IN(col, i) -> i++ :: else -> break od }
        STEP(ADD(latch, i); DEL(col, i); i = 0)
    od
}

/* ---- the publisher */

proctype Publisher()
{
    byte n, i, col, set, me = PUB;
    bool repaired;

next:
    if :: atomic { n < M -> skip } :: atomic { n == M -> goto over } fi;
    acquire();
    STEP(if :: st[n] = READY :: st[n] = DEFERRED; due[n] = 1 :: st[n] = DEFERRED; due[n] = 2 fi; n++);
    /* PN_CRASH("publish:after-live") */
#ifdef DIRTY_CLEARED_FIRST
    STEP(dirty = 0);
#endif
#ifdef DUE_WAKES_NOBODY
    if :: atomic { N_READY == 0 -> skip } :: atomic { N_READY > 0 -> skip }; settle() fi;
#else
    settle();
#endif
    release();
    goto next;
died:
    atomic { ADD(dead, me); if :: lock == me + 1 -> lock = DIED :: else fi };
over:
    atomic { n = 0; i = 0; col = 0; set = 0; repaired = 0 }
}

/* ---- a consumer */

proctype Consumer(byte me)
{
    byte i, col, set, mine, passed;
    bool repaired, leaving;

get:
#ifdef OWED_CLEARED_FIRST
    STEP(DEL(owed, me));
#endif
    acquire();
    STEP(DEL(waiting, me); DEL(owed, me));
#ifdef LEAVES_UNSEEN
    if :: atomic { leaving -> mine = M; goto settled } :: atomic { !leaving -> skip } fi;
#endif
    fire();
    STEP(mine = 0;
        do
        :: mine < M && st[mine] != READY -> mine++
        :: mine < M && st[mine] == READY -> break
        :: mine == M -> break
        od;
        if
        :: mine < M -> st[mine] = FLIGHT; own[mine] = me; due[mine] = now + 1
#ifdef LEAVES_WAITING
        :: mine == M -> ADD(waiting, me); armed[me] = NEXT_DUE
#else
        :: mine == M && !leaving -> ADD(waiting, me);
#ifdef ARMS_ONLY_FIRST
            armed[me] = (waiting == BIT(me) -> NEXT_DUE : NEVER)
#else
            armed[me] = NEXT_DUE
#endif
        :: mine == M && leaving -> skip
#endif
        fi);
    /* PN_CRASH("claim:in-flight") PN_CRASH("topic:wait") */
#ifdef NO_SETTLE_CLAIM
    if :: atomic { mine < M -> goto settled } :: atomic { mine == M -> skip } fi;
#endif
#if defined(NO_SETTLE_LEAVE) || defined(LEAVES_WAITING)
    if :: atomic { mine == M && leaving -> goto settled } :: atomic { !(mine == M && leaving) -> skip } fi;
#endif
    settle();
settled:
    release();
#ifdef DRAIN_AFTER_LOOK
    STEP(DEL(latch, me));
#endif
    atomic { if :: mine < M -> goto hold :: mine == M && leaving -> mine = 0; goto over
        :: mine == M && !leaving -> mine = 0; ADD(asleep, me) fi };

end_block:
    if
    :: atomic { IN(latch, me) && RUNS -> DEL(asleep, me) };
#ifndef DRAIN_AFTER_LOOK
        STEP(DEL(latch, me));
#endif
        goto get
    :: atomic { armed[me] <= now && RUNS -> DEL(asleep, me); goto get }
    :: atomic { IN(slow, me) && RUNS -> DEL(slow, me); DEL(asleep, me); goto get }
    :: atomic { leaves > 0 && RUNS -> leaves--; leaving = 1; DEL(asleep, me); goto get }
#ifndef NO_TAKEOVER
    :: atomic { (dead & ~passed) != 0 && RUNS -> passed = dead; DEL(asleep, me); goto take_over }
#endif
#if KILLS
    :: atomic { kills > 0 -> kills--; goto died }
#endif
#ifdef STOP
    :: atomic { me == 0 && stopped == 0 -> ADD(stopped, me) }
#endif
    fi;
    goto end_block;

take_over:                          /* asleep still, for all others: waiting stays */
    acquire();
    atomic { set = passed & ~reaped };
    reap(set);
#ifndef NO_SETTLE_REAP
    if
    :: atomic { set & ALL -> skip };
        settle()
    :: atomic { !(set & ALL) -> skip }
    fi;
#endif
    atomic { set = 0 };
    release();
#ifndef TAKEOVER_NO_SIGNAL
    STEP(col = owed);
#endif
    do
    :: atomic { col == 0 -> break }
    :: atomic { col != 0 && RUNS -> i = 0; do :: !IN(col, i) -> i++ :: else -> break od }
        STEP(ADD(latch, i); DEL(col, i); i = 0)
    od;
    atomic { ADD(asleep, me); goto end_block };

hold:
    if
    :: atomic { skip -> goto over }                     /* forgets it */
    :: atomic { !leaving -> skip }
    :: atomic { kills > 0 -> kills--; goto died }
    fi;
    acquire();
    STEP(if :: st[mine] == FLIGHT && own[mine] == me -> st[mine] = DONE; own[mine] = 0; due[mine] = 0 :: else fi;
        mine = 0);
    /* PN_CRASH("topic:delivery-free") */
#ifndef NO_SETTLE_FINISH
    settle();
#endif
    release();
    goto get;

died:
    atomic { ADD(dead, me); DEL(asleep, me); if :: lock == me + 1 -> lock = DIED :: else fi };
over:
    atomic { i = 0; col = 0; set = 0; mine = 0; passed = 0; repaired = 0; leaving = 0 }
}

proctype Clock()
{
    byte i;
    do
    :: atomic { now < TMAX -> now++ }
    :: atomic { now == TMAX -> break }
    od;
#ifdef SLOW
    atomic { timeout -> slow = ALL };
#endif
#ifndef LIVE
    atomic {
        timeout;
        if
        :: asleep & ~stopped ->
            assert(lock == FREE);
            assert((asleep & ~stopped & ~waiting) == 0);
            do
            :: i < M -> assert(st[i] != READY);
                assert(!((st[i] == DEFERRED || st[i] == FLIGHT) && due[i] <= now)); i++
            :: i == M -> i = 0; break
            od
        :: else
        fi
    }
#endif
}

init {
    atomic {
        byte x = 0;
        do :: x < M -> st[x] = NONE; x++ :: else -> break od;
        x = 0;
        do :: x < NC -> run Consumer(x); x++ :: else -> break od;
        run Publisher();
        run Clock();
        x = 0
    }
}

#ifdef LIVE
#define QUIET (N_READY == 0 || asleep == 0)
ltl served { <> [] (QUIET) }
#endif
