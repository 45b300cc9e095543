/*
 * slot.pml - a process that has lost its liveness locks, and goes on while its slot has another owner.
 *
 * THE MODEL
 *
 *  1. One slot.  L, the loser, owns it first (generation 1), and has lost its locks: a process that looks finds it dead.
 *     S, the successor, reaps it, claims the slot (generation 2) and listens, each in one hold of the lock.
 *     L does not know, and polls LPOLLS times; a poll begins anywhere before, between and after that.
 *  2. A position is a number of commits.  N commits NC times, under the lock: head, from and want of the slot, if
 *     it listens; then it un-sleeps it, and signals its owner after it has unlocked.
 *  3. poll() is look() of receive.c, a step for each load, store and CAS; what is read is what lies between.  Each
 *     store of the owner is preceded by a look at state and generation, or is a CAS of `pos` from where it stood.
 *     A CAS that failed has two reasons: the slot is another's, then the poll ends and nothing was read; or the
 *     loser has put it to sleep where it stood, then the poll begins again.
 *     Before L blocks, it goes to sleep without looking once more (settle).
 *  4. wait() is: poll until asleep, then block until signalled.  There is no timer.
 *
 * ASSERTED: L neither moves `pos` of a slot that is not its own any more, nor returns what it has read when that
 * was not pinned to the end (but it may put the slot to sleep where S stands); S gets what is committed after its LISTEN, each once and in order, and is never told
 * that it lost its slot; at the end it has got everything.
 *
 * BROKEN VARIANTS: MOVE_BLIND (pos by a store) SLEEP_BLIND (falling asleep by an exchange) NO_LOOK (neither
 * state nor generation is compared) LOOK_BEFORE_POS and LOOK_BEFORE_WANT (they are, but before these are loaded)
 * FAILED_IS_REAPED (a CAS of the reader that failed is taken for the loss of the slot) FAILED_IS_ASLEEP (one of a reader that falls asleep, for sleep)
 */
#ifndef NC
#define NC 3
#endif
#ifndef LPOLLS
#define LPOLLS 2
#endif

#define L 1
#define S 2

bit lock;
byte head;
byte pos, want, from;           /* of the slot */
bit asleep = 1;                 /* in the word of pos: one load or CAS has both */
byte generation = L;            /* 0: free.  Stands for state and generation */
bit listens = 1, owed;
bit latch_s;                    /* S was signalled; L cannot be: it is dead to all that look */
bit freed;                      /* ghost: the slot is not the loser's any more */
byte since;                     /* ghost: where S begins to be owed */
byte got;                       /* ghost: S got everything up to there */


#define OWNS (generation == me)
#define ACQUIRE atomic { lock == 0 -> lock = 1 }
#define RELEASE lock = 0
#ifdef NO_LOOK
#define LOOKED 1
#else
#define LOOKED OWNS
#endif

/* Takes what is there.  Ends with `out`: 0 asleep, 1 something was read, 2 the slot is not ours. */
inline poll()
{
    out = 3;
    if
    :: atomic { LOOKED -> skip }
    :: atomic { !LOOKED -> out = 2 }
    fi;
    if
    :: atomic { out == 3 && owed && LOOKED -> skip } owed = 0
    :: atomic { out != 3 || !owed || !LOOKED -> skip }
    fi;
    do
    :: out != 3 -> break
    :: else ->
        /* pn_wake_self() */
        atomic { p = pos; a = asleep };
        if
        :: a ->
            atomic { w = want };
            if
            :: w <= p -> out = 0
            :: else ->
                if
                :: atomic { !LOOKED -> out = 0 }
                :: atomic { LOOKED -> skip }
                    atomic { f = from };
                    atomic {
                        if
                        :: pos == p && asleep ->
                            assert(me == S || !freed);
                            pos = (f > p -> f : p); asleep = 0
                        :: else
                        fi
                    }
                fi
            fi
        :: else
        fi;
        if
        :: out != 3
        :: else ->
            atomic { p = pos; a = asleep };
            if
            :: a -> skip /* once more */
            :: else ->
#ifdef LOOK_BEFORE_WANT
                if
                :: atomic { !LOOKED -> out = 2 }
                :: atomic { LOOKED -> skip }
                fi;
#endif
                atomic { w = want };
#if !defined(LOOK_BEFORE_WANT) && !defined(LOOK_BEFORE_POS)
                if
                :: atomic { !LOOKED -> out = 2 }
                :: atomic { LOOKED -> skip }
                fi;
#endif
                if
                :: out == 2
                :: out != 2 && w <= p ->
                    /* pn_fall_asleep(), which fails if another process moved it */
                    atomic {
#ifdef SLEEP_BLIND
                        pos = p; asleep = 1
#else
                        if
                        :: pos == p && !asleep -> asleep = 1
#ifdef FAILED_IS_ASLEEP
                        :: else -> out = 0
#else
                        :: else /* looks all the same */
#endif
                        fi
#endif
                    }
                :: else ->
                    atomic { f = from; f = (f > p -> f : p) };
                    atomic { h = head };
                    atomic {
#ifdef MOVE_BLIND
                        pos = h; asleep = 0; out = 1;
#else
                        if
                        :: pos == p && !asleep ->
                            assert(me == S || !freed);
                            pos = h; out = 1
                        :: else -> out = 4
                        fi;
#endif
                        if
                        :: out == 1 && me == S ->
                            assert(f <= (got > since -> got : since)); /* nothing was passed over */
                            if :: h > got -> got = h :: else fi
                        :: out == 1 && me == L -> assert(!freed)
                        :: else
                        fi
                    };
                    if
#ifdef FAILED_IS_REAPED
                    :: out == 4 -> out = 2
#else
                    :: atomic { out == 4 && LOOKED -> out = 3 }
                    :: atomic { out == 4 && !LOOKED -> out = 2 }
#endif
                    :: else
                    fi
                fi
            fi
        fi
    od;
    assert(!(me == S && out == 2)); /* it still has its slot */
    p = 0; w = 0; f = 0; h = 0; a = 0
}

/* As wait() goes to sleep before it blocks, which was not looked at since the call began. */
inline settle()
{
    if
    :: atomic { LOOKED -> skip }
        atomic { p = pos; a = asleep };
        atomic { if :: !a && pos == p && !asleep -> asleep = 1 :: else fi };
        /* pn_wake_self() finds that the slot is another's, or is as in poll() */
    :: atomic { !LOOKED -> skip }
    fi;
    p = 0; a = 0
}

active proctype Loser()
{
    byte me = L, polls, p, w, f, h, out;
    bit a;
    do
    :: polls < LPOLLS -> polls++; poll(); out = 0
    :: polls < LPOLLS -> polls++; settle()
    :: polls == LPOLLS -> break
    od
}

active proctype Successor()
{
    byte me = S, p, w, f, h, out;
    bit a;
    ACQUIRE;
    /* pn_backend_reap_locked(): from the store of pos on nothing is pinned for L */
    listens = 0;
    atomic { pos = head; asleep = 1; freed = 1 };
    owed = 0;
    generation = 0;
    RELEASE;
    ACQUIRE;
    /* claim_slot(): `generation` and `state` last */
    want = 0;
    from = 0;
    owed = 0;
    atomic { pos = head; asleep = 1 };
    generation = S;
    RELEASE;
    ACQUIRE;
    atomic { listens = 1; since = head; got = head };
    RELEASE;
    do
    :: poll();
        if
        :: out == 0 -> /* blocks: the end is here, too */
end_asleep: atomic { latch_s -> latch_s = 0 }
        :: else
        fi
    od
}

active proctype Notifier()
{
    byte n, to, p;
    bit wakes, a;
    do
    :: n < NC ->
        ACQUIRE;
        head++;
        if
        :: listens ->
            atomic { if :: want <= pos -> from = head - 1 :: else fi };
            want = head;
            /* pn_unsleep_locked(): owed first, and a CAS that is tried again */
            do
            :: atomic { p = pos; a = asleep };
                if
                :: !a || want <= p -> break
                :: else ->
                    owed = 1;
                    atomic {
                        if
                        :: pos == p && asleep ->
                            asleep = 0; wakes = 1; to = generation;
                            if :: from > p -> pos = from :: else fi
                        :: else
                        fi
                    }
                    if :: wakes -> break :: else fi
                fi
            od
        :: else
        fi;
        RELEASE;
        atomic { if :: wakes && to == S -> latch_s = 1 :: else fi; wakes = 0; to = 0; p = 0; a = 0; n++ }
    :: n == NC -> break
    od;

    /* when nothing can move any more: everything is there */
    timeout -> assert(got == NC)
}
