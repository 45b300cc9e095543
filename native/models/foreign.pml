/*
 * foreign.pml - a signal that is not ours meets a wake-up; and a listener that only polls.
 *
 * THE MODEL, WITHOUT POLLS
 *
 *  1. One listener, in the main thread of an interpreter: it runs the handlers of the signals that are flagged
 *     (Python does so between two byte codes), then calls wait(), which settles, blocks, and looks.
 *  2. A notifier commits, un-sleeps the slot and then sends our signal.  A neighbour sends it for nothing, as
 *     one that connects; another one dies, which makes a descriptor readable that the sleep is on.
 *  3. A foreign signal only sets the flag.  It ends a system call that has begun (EINTR).
 *  4. Our handler writes the latch (an eventfd); or, when it interrupts the thread that sleeps, marks the
 *     sleeper and takes its time-out away instead (latch.c, 4).  The kernel reads the time-out as the call
 *     begins.  `sleeper` is set before the call and cleared behind it, and so there are windows on both sides.
 *  5. A foreign signal between the last byte code and the system call is not seen before that sleep ends: the
 *     interpreter has the same window in its own calls.  With WINDOW it may come there, and only the slow timer
 *     (TIMER) ends that sleep; else it may come at any other step.
 *
 * WITH POLLS
 *
 *  6. A listener that never sleeps, and two notifiers, one after the other or at once, KILLS of which die between
 *     any two steps, the second also while it repairs what the first left.  All may be dead then:
 *     nothing but the listener's polls moves.  The second empty poll in a row that finds the same
 *     commit unannounced tries the lock, and so repairs (watch.c, pn_watch_look_at_commit_locked).
 *
 * ASSERTED, when nothing can move any more: I8 (all that is committed was got); no foreign signal is kept waiting.  With
 * POLLS: three polls after the last step of the notifiers all that is committed was got (I9).
 *
 * BROKEN VARIANTS (-D): SLEEP_AGAIN (a sleep that brought nothing goes on, unless a foreign signal alone has ended it: as it
 * was; so does one that the TIMER has ended), KEEPS_TIMEOUT and SLEEPER_STAYS (of the shortcut of 4), NEVER_TAKES_OVER (with
 * POLLS), and WINDOW without TIMER, which is the window of 5.  Not broken: more signals (FOREIGN, WAKES).
 */
#define FREE 0
#define DIED 9

byte head, got;

#ifndef POLLS

#ifndef FOREIGN
#define FOREIGN 2
#endif
#ifndef WAKES
#define WAKES 1
#endif

bit flag;                       /* a foreign signal came, and its handler has not run */
bit asleep;                     /* the slot.  W: the listener; the notifier clears */
bit latch, watched;             /* descriptors: our eventfd; a neighbour's death */
bit sleeper, signalled, taken;  /* in a sleep, as the handler sees it; marked; its time-out is taken away */
bit entering;                   /* behind the last byte code, before the system call */
bit blocked, interrupted;       /* in the system call; a handler has run there */
bit ends = 0;                   /* nothing else could move: the slow timer */

inline our_handler()
{
    if
    :: sleeper -> signalled = 1
#ifndef KEEPS_TIMEOUT
        taken = 1
#endif
    :: !sleeper -> latch = 1
    fi;
    interrupted = blocked
}

active proctype Listener()
{
    bit why, foreign;

python:
    atomic { flag = 0; why = 0; foreign = 0; entering = 1 }
again:
    atomic {
        latch = 0;                      /* R3: drained before the look */
        if
        :: head > got -> got = head; asleep = 0; entering = 0; goto python
        :: else -> asleep = 1
        fi
    }
    atomic { sleeper = 1; signalled = 0; taken = 0; interrupted = 0 }
    /* here the handler marks the sleeper, and the call is not made yet */
    atomic { blocked = 1; entering = 0 }
end_sleep:
    atomic {
        latch || watched || interrupted || taken || ends ->
        blocked = 0;
        foreign = interrupted && !signalled;
        watched = 0;
        ends = 0
    }
#ifndef SLEEPER_STAYS
    atomic { sleeper = 0; why = signalled }
#endif
    /* woken(): from here on the handler writes the latch */
    atomic {
        if :: !why -> latch = 0 :: else fi;
        if
        :: head > got -> got = head; asleep = 0; sleeper = 0; goto python
        :: else -> skip
        fi
    }
#if defined(SLEEP_AGAIN)
    atomic { if :: foreign -> goto python :: else -> foreign = 0; entering = 1; goto again fi }
#else
    goto python
#endif
}

/* One commit; then the slot is un-slept, and only then signalled. */
active proctype Notifier()
{
    bit was;
    atomic { head++ }
    atomic { was = asleep; asleep = 0 }
    atomic { if :: was -> our_handler() :: else fi }
}

active proctype Neighbour()
{
    byte n = WAKES;
    do
    :: atomic { n > 0 -> n--; our_handler() }
    :: atomic { n > 0 -> n--; watched = 1 }
    :: n == 0 -> break
    od
}

active proctype Foreign()
{
    byte n = FOREIGN;
    do
#ifdef WINDOW
    :: atomic { n > 0 -> n--; flag = 1; interrupted = interrupted || blocked }
#else
    :: atomic { n > 0 && !entering -> n--; flag = 1; interrupted = interrupted || blocked }
#endif
    :: n == 0 -> break
    od
}

/* Nothing else can move. */
active proctype End()
{
#ifdef TIMER
    atomic { timeout -> ends = 1 }
#endif
    atomic {
        timeout ->
        assert(got == head);            /* I8 */
        assert(!flag)                   /* its handler has run */
    }
}

#else /* POLLS */

#ifndef KILLS
#define KILLS 2
#endif

byte lock, want, woken, over;
byte kills = KILLS;

#define STEP(x) if :: atomic { true -> x } :: atomic { kills > 0 -> kills--; goto died } fi

active [2] proctype Notifier()
{
    bit repairs;
    if
    :: atomic { lock == FREE -> lock = _pid + 1 }
    :: atomic { lock == DIED -> lock = _pid + 1; repairs = 1 }
    fi;
    if
    :: repairs -> STEP(want = head); STEP(woken = head)
    :: else
    fi;
    STEP(head++);
    /* PN_CRASH("commit:after-head") */
    STEP(want = head);
    /* PN_CRASH("commit:want") */
    STEP(woken = head);
    /* PN_CRASH("commit:after-woken") */
    atomic { lock = FREE; goto gone };
died:
    atomic { lock = DIED };
gone:
    over++
}

active proctype Poller()
{
    byte before, left = 3;
    bit ours;
    do
    :: left > 0 ->
        atomic { if :: over == 2 -> left-- :: else fi }
        atomic {
            if
            :: want > got -> got = head; goto next      /* an awake listener looks at `want` */
            :: else -> skip
            fi
        }
#ifndef NEVER_TAKES_OVER
        atomic {
            if
            :: woken == head -> goto next
            :: woken != head && before != head -> before = head; goto next
            :: else -> skip
            fi
        }
        atomic {
            if
            :: lock == DIED -> lock = 8; ours = 1
            :: lock == FREE -> goto next
            :: else -> goto next                        /* held by a living process */
            fi
        }
        want = head;
        woken = head;
        lock = FREE;
        atomic { if :: want > got -> got = head :: else fi }
#endif
next:   skip
    :: left == 0 -> break
    od;
    assert(got == head)                                 /* I9 */
}

#endif
