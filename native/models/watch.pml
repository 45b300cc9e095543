/*
 * watch.pml - sleepers that watch the processes behind their slot, so that a death needs no timer.
 *
 * THE MODEL
 *
 *  1. Slots 0 .. N-1 form a ring.  A and B are listeners, V a notifier that does not listen, and J, with
 *     JOIN, one that claims its slot while the others work (with AND_V besides V, else instead of it).
 *     V and J commit once each, to all that listen, and then live on without ever looking again.
 *  2. A listener that goes to sleep walks the ring from its own slot and watches whomever it meets, up to and
 *     including the WATCHERS-th that watches, too; a slot that does not listen ends no walk.
 *     `watches` of a slot is set when its walk is complete.  Each slot that a walk looks at is one
 *     step.  Walk, look, block.
 *  3. Whatever lengthens a walk (a claim, a listener's release, an UNLISTEN of all) wakes the nearest listeners
 *     in front, after it has unlocked, until WATCHERS that watch have been (rewalk).
 *  4. A watched process that dies wakes its watcher, which takes over: holds the lock once
 *     (EOWNERDEAD: recover), reaps, unlocks, then signals every slot that is owed a signal, and
 *     walks again.  The same when a walk meets a slot of a dead one.  A watched process that died
 *     is taken over also when its slot is gone.
 *  5. The lock is a robust mutex: FREE, DIED or its owner + 1.  In recovery a death may be invisible yet (L6),
 *     and the dead one is then not reaped by it.
 *  6. The handshake is handshake.pml's, in few steps: a listener looks and falls asleep in one; the CAS of a
 *     notifier compares what was read so far with what it has seen.
 *  7. KILLS kills fall between any two steps of any process.  STOP: B may be stopped for ever while
 *     it sleeps.
 *  8. With LOST, B's process loses its liveness locks and lives: V, before it commits, reaps B's slot, and tells
 *    those in front of it as in 3.  B's process may still act on what it watches, but writes to no slot, and
 *    is as good as gone when it blocks.
 *  9. The end, when nothing can move, and without any timer: if a listener lives and runs, then all that was
 *     committed is announced, every living process has got it, and the slots of all the dead are free again (but of
 *     one that died before it told a process that it is there, or what it has reaped; it has committed nothing).
 *
 * ASSERTED: I6 I7 I8 and I9 without a timer; the room of the dead is freed.
 *
 * BROKEN VARIANTS (-D): NO_WATCH PASS_DEAD TAKEOVER_NO_LOCK TAKEOVER_NO_RESIGNAL TRY_LOCK JOIN_SILENT
 * LEAVE_SILENT UNLISTEN_SILENT LOST_SILENT STOP_AT_ANYBODY NO_REWALK DRAIN_AFTER_WALK LOOK_BEFORE_WALK NO_COMPARE COMPARE_EARLY NO_REAP UNSLEEP_ALWAYS,
 * and STOP with one watcher.  Not broken: LEAVE, UNLISTEN and LOST (of B), JOIN, AND_V, WATCHERS, B_LAST (order A V B
 * instead of A B V), WAKE_LOCKED (walkers are woken before the unlock).
 */
#ifndef KILLS
#define KILLS 1
#endif
#ifndef WATCHERS
#define WATCHERS 1
#endif

#define A 0
#if defined(JOIN) && defined(AND_V)
#define J 1
#define V 2
#define B 3
#define N 4
#elif defined(JOIN)
#define J 1
#define B 2
#define N 3
#elif defined(B_LAST)
#define V 1
#define B 2
#define N 3
#else
#define B 1
#define V 2
#define N 3
#endif

#define FREE 0
#define DIED 9
#define BIT(i) (1 << (i))

byte lock;
byte head, woken;               /* commits, and those announced */
byte used, listens;             /* sets of slots.  W: lock holder */
byte watches;                   /* slots that have walked since they listen.  W: owner; lock holder clears */
byte asleep, owed, latch;       /* W: lock holder and owner */
byte rewalk;                    /* the eventfd of each process: walk again */
byte changed;                   /* `members` in bits: whose last walk began before its last change.  W: lock holder */
byte dead, reaped, stopped;     /* the kernel's word; reaped */
byte lost;                      /* live, and their slots were reaped.  W: lock holder */
byte untold;                    /* ghost: has claimed or reaped, told no process yet, and so committed nothing */
byte want[N], got[N];
byte kills = KILLS;

#if KILLS
#define STEP(...) if :: atomic { RUNS -> __VA_ARGS__ } :: atomic { kills > 0 -> kills--; goto died } fi
#else
#define STEP(...) atomic { RUNS -> __VA_ARGS__ }
#endif
#define RUNS !(stopped & BIT(me))
#define IN(s, i) (((s) & BIT(i)) != 0)
#define ADD(s, i) s = s | BIT(i)
#define DEL(s, i) s = s & ~BIT(i)

/* Signal all in `col`, a step each: the flag and the send are one (send.c has them apart). */
inline signal_collected()
{
    do
    :: atomic { col == 0 -> break }
    :: atomic { col != 0 && RUNS -> i = 0; do :: !IN(col, i) -> i++ :: else -> break od }
        STEP(ADD(latch, i); DEL(col, i); i = 0)
        /* PN_CRASH("signal:sent") */
    od
}

/* Un-sleep all that listen; leaves them in `col`.  The commit's or the recovery's, in the same steps. */
inline announce()
{
    i = 0;
    do
    :: atomic { i < N && IN(used & listens, i) -> skip }
        STEP(want[i] = head; p = got[i];
            if
#ifdef UNSLEEP_ALWAYS
            :: IN(asleep, i) -> ADD(owed, i)
#else
            :: IN(asleep, i) && want[i] > got[i] -> ADD(owed, i)
#endif
            :: else -> i++
            fi);
        /* PN_CRASH("commit:owed") */
        if
        :: atomic { i < N && IN(owed, i) && IN(asleep, i) && want[i] == head -> skip }
            /* a CAS: got stands for pos; lost to one that is asleep again, it is tried again */
            STEP(if
                :: IN(asleep, i) && p == got[i] -> DEL(asleep, i); ADD(col, i); i++
                :: IN(asleep, i) && p != got[i] -> skip
                :: !IN(asleep, i) -> i++
                fi;
                p = 0)
            /* PN_CRASH("commit:unslept") */
        :: atomic { else -> skip }
        fi
    :: atomic { i < N && !IN(used & listens, i) -> i++ }
    :: atomic { i == N -> i = 0; p = 0; break }
    od
}

/* lock == DIED and it is ours now: repair, leave all that are owed a signal in `col`. */
inline recover()
{
    /* PN_CRASH("recover:begin") */
    if
    :: atomic { woken < head -> skip }
        announce();
        STEP(woken = head)
        /* PN_CRASH("recover:woken") */
    :: atomic { else -> skip }
    fi;
    STEP(if
        :: used = used & ~dead; listens = listens & ~dead; watches = watches & ~dead;
            reaped = reaped | dead
        :: skip                         /* its death is not to be seen yet (L6) */
        fi)
    /* PN_CRASH("recover:consistent") */
}

/* Under the lock, whatever it is that lengthens walks. */
#define CHANGED changed = BIT(N) - 1

#define TOLD (watches & ~dead)

/* Wake those whose walk meets `slot`, from the nearest on: i walks back.  A slot in its first walk
 * is not told: when it has walked, it compares. */
inline wake_watchers(slot)
{
    atomic { n = 0; i = (slot + N - 1) % N };
    do
    :: atomic { i == slot || n == WATCHERS -> i = 0; n = 0; break }
    :: atomic { i != slot && n < WATCHERS && !IN(TOLD, i) -> i = (i + N - 1) % N }
    :: atomic { i != slot && n < WATCHERS && IN(TOLD, i) && RUNS -> skip }
        STEP(n++; ADD(rewalk, i); i = (i + N - 1) % N)
        /* PN_CRASH("watch:told") */
    od
}

inline acquire()
{
    if
    :: atomic { lock == FREE && RUNS -> lock = me + 1 }
    :: atomic { lock == DIED && RUNS -> lock = me + 1; repaired = 1 }
    fi;
    if
    :: atomic { repaired -> skip }
        recover()
    :: atomic { else -> skip }
    fi
}

/* Unlock; a process that has recovered then signals everything that is owed. */
inline release()
{
    STEP(assert(lock == me + 1); lock = FREE;                           /* I7 */
        if :: repaired -> col = col | owed; repaired = 0 :: else fi);
    signal_collected()
}

/* ------------------------------------------------------------------ a notifier, that may join */

proctype Notifier(byte me; bool joins)
{
    byte i, n, p, col;
    bool repaired;

    if
    :: atomic { joins -> skip }
        acquire();
        STEP(ADD(used, me); ADD(untold, me); CHANGED);
        /* PN_CRASH("claim:published") */
#ifdef WAKE_LOCKED
        wake_watchers(me);
#endif
        release();
#if !defined(WAKE_LOCKED) && !defined(JOIN_SILENT)
        wake_watchers(me);
#endif
        STEP(untold = 0)
    :: atomic { else -> skip }
    fi;

#ifdef LOST
    acquire();
    STEP(DEL(used, B); DEL(listens, B); DEL(asleep, B); DEL(owed, B); DEL(watches, B);
        if :: IN(dead, B) -> ADD(reaped, B) :: else -> ADD(lost, B) fi;
        ADD(untold, me); CHANGED);
    /* PN_CRASH("reap:freed") */
    release();
#ifndef LOST_SILENT
    wake_watchers(B);
#endif
    STEP(untold = 0);
#endif

    acquire();
    STEP(assert(woken == head); head++);                                /* I6 */
    /* PN_CRASH("commit:after-head") */
    announce();
    STEP(woken = head);
    /* PN_CRASH("commit:after-woken") */
    release();
    goto over;                      /* lives on, and never looks again */
died:
    atomic {
        ADD(dead, me);
        if :: lock == me + 1 -> lock = DIED :: else fi
    };
over:
    atomic { i = 0; n = 0; p = 0; col = 0; repaired = 0 }
}

/* ------------------------------------------------------------------ a listener */

#define NEXT(x) (((x) + 1) % N)

/* What is unread is read; nothing unread: asleep, in one step with the look. */
inline look()
{
    STEP(DEL(latch, me));
    /* PN_CRASH("wake:drained") */
    STEP(DEL(owed, me));
    /* PN_CRASH("wake:owed-cleared") */
    STEP(got[me] = want[me]; if :: IN(lost, me) -> skip :: else -> ADD(asleep, me) fi)
    /* PN_CRASH("sleep:asleep") */
}

proctype Listener(byte me)
{
    byte i, n, p, col, set, passed, victim;
    bool repaired, changes;

#if defined(LEAVE) || defined(UNLISTEN)
    changes = (me == B);
#endif

again:
#ifndef DRAIN_AFTER_WALK
    STEP(DEL(rewalk, me));
#endif
    STEP(DEL(changed, me));
#ifdef LOOK_BEFORE_WALK
    look();
#endif
walk:
    /* a watched process that died is taken over, whether or not its slot is still there */
    STEP(if
#ifndef PASS_DEAD
        :: (set & dead) != 0 -> victim = set & dead; goto take_over
#endif
        :: else -> set = 0; n = 0; i = NEXT(me)
        fi);
    /* PN_CRASH("watch:begin") */
    do
    :: atomic { i == me || n == WATCHERS -> n = 0; i = 0; break }
    :: atomic { else -> skip }
        STEP(if
            :: !IN(used & ~passed, i) -> i = NEXT(i)
            :: IN(used & ~passed, i) && IN(dead, i) ->
#ifdef PASS_DEAD
                i = NEXT(i)
#else
                victim = BIT(i); n = 0; i = 0; goto take_over
#endif
            :: IN(used & ~passed, i) && !IN(dead, i) ->
                ADD(set, i);
#ifdef STOP_AT_ANYBODY
                n++;
#else
                if :: IN(watches, i) -> n++ :: else fi;
#endif
                i = NEXT(i)
            fi)
    od;
#ifdef COMPARE_EARLY
    STEP(n = IN(changed, me));
#endif
    STEP(if :: IN(watches | lost, me) -> skip :: else -> ADD(watches, me); i = 1 fi);
    /* PN_CRASH("watch:armed") */
#if !defined(NO_COMPARE) && !defined(COMPARE_EARLY)
    STEP(n = (i && IN(changed, me)));
#endif
    atomic { if :: n -> i = 0; n = 0; goto again :: else -> i = 0 fi };
#ifdef DRAIN_AFTER_WALK
    STEP(DEL(rewalk, me));
#endif
#ifndef LOOK_BEFORE_WALK
    look();
#endif
    goto end_block;

take_over:
    /* PN_CRASH("watch:dead") */
#ifdef TAKEOVER_NO_LOCK
    goto resignal;
#endif
#ifdef TRY_LOCK
    if
    :: atomic { lock != FREE && lock != DIED && RUNS -> goto resignal }
    :: acquire()
    fi;
#else
    acquire();
#endif
    STEP(
#ifndef NO_REAP
        used = used & ~victim; listens = listens & ~victim; watches = watches & ~victim;
        reaped = reaped | victim;
#endif
        repaired = 0);
    /* PN_CRASH("watch:locked") */
    STEP(assert(lock == me + 1); lock = FREE);                          /* I7 */
    /* PN_CRASH("watch:unlocked") */
resignal:
#ifndef TAKEOVER_NO_RESIGNAL
    STEP(col = owed);
    signal_collected();
#endif
    STEP(passed = passed | victim; set = set & ~victim; victim = 0);
    goto walk;

end_block:
    /* asleep (latch.c): the handler, the eventfd, the pidfds; the descriptors are level-triggered */
    if
    :: atomic { IN(latch, me) && RUNS -> goto again }
#ifndef NO_REWALK
    :: atomic { IN(rewalk, me) && RUNS -> goto again }
#endif
#ifndef NO_WATCH
    :: atomic { (set & dead) != 0 && RUNS -> goto again }
#endif
#if KILLS
    :: atomic { kills > 0 -> kills--; goto died }
#endif
#ifdef STOP
    :: atomic { me == B && stopped == 0 -> ADD(stopped, B) }
#endif
#ifdef LOST
    :: atomic { IN(lost, me) && RUNS -> goto over }
#endif
#if defined(LEAVE) || defined(UNLISTEN)
    :: atomic { changes && RUNS -> changes = 0; goto change }
#endif
    fi;
    goto end_block;

#if defined(LEAVE) || defined(UNLISTEN)
change:                             /* B, in its program, between two sleeps */
    acquire();
    STEP(DEL(listens, me); DEL(asleep, me); DEL(owed, me); DEL(watches, me);
#ifdef LEAVE
        DEL(used, me);
#endif
        CHANGED; set = 0);
    /* PN_CRASH("release:freed") */
#ifdef WAKE_LOCKED
    wake_watchers(me);
#endif
    release();
#if !defined(WAKE_LOCKED) && !defined(LEAVE_SILENT) && !defined(UNLISTEN_SILENT)
    wake_watchers(me);
#endif
    goto over;
#endif
died:
    atomic {
        ADD(dead, me);
        if :: lock == me + 1 -> lock = DIED :: else fi
    };
over:
    atomic { i = 0; n = 0; p = 0; col = 0; set = 0; passed = 0; victim = 0; repaired = 0; changes = 0 }
}

#define ALIVE(l) (IN(used & listens & ~stopped, l) && !IN(dead, l))
#define HAS_ALL(l) (!ALIVE(l) || got[l] == want[l] && want[l] == head)

init {
    atomic {
#if defined(JOIN) && !defined(AND_V)
        used = BIT(A) | BIT(B);
#else
        used = BIT(A) | BIT(B) | BIT(V);
        run Notifier(V, 0);
#endif
        listens = BIT(A) | BIT(B);
        asleep = listens;
        run Listener(A);
        run Listener(B);
#ifdef JOIN
        run Notifier(J, 1);
#endif
    }
    /* nothing can move any more */
    atomic {
        timeout ->
        if
        :: ALIVE(A) || ALIVE(B) ->
            assert(lock != DIED || woken == head);
            assert(woken == head);                      /* I9 */
            assert(HAS_ALL(A) && HAS_ALL(B));           /* I8, I9 */
            assert((dead & used & ~reaped & ~untold) == 0)        /* whatever it held is free again */
        :: else
        fi
    }
}
