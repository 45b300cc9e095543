/*
 * block.pml - on_full = block: waiting for room (R9).
 *
 * THE MODEL
 *
 *  1. NR readers with a slot each, NW writers with NC transactions of one entry each; which readers an
 *     entry interests is chosen freely.  With OWN=1 writer 0 is one thread that also owns slot 0, and
 *     reads only when it is not committing.
 *  2. A writer that finds no room scans the tail.  Still none: under the lock, s = room_seq;
 *     waiters = 1; fence; scan AGAIN; still full: unlock, FUTEX_WAIT(room_seq, s).
 *  3. A reader that moves pos or becomes quiet: store, fence, and if waiters: waiters = 0,
 *     room_seq++, FUTEX_WAKE all.  Each of these is one step.
 *  4. FUTEX_WAIT compares and sleeps in one step; FUTEX_WAKE wakes all that sleep.
 *  5. RKILLS=1: a reader dies at any step, also between waiters = 0 and room_seq++; its slot is reaped
 *     by the next scan.  BOUND=1: the wait is bounded.  The bound fires only when nothing else can move
 *     (its worst moment), and then the scan must find room.
 *  6. A writer whose own slot pins the tail does not wait: QueueFull at once, the transaction is gone.
 *  7. Sleeping and waking of readers are short forms of handshake.pml; no process dies with the
 *     lock.
 *
 *  8. WAKE_ONLY_AT_SLEEP (not broken): a reader looks at waiters only when it becomes quiet, and saves
 *     the fence per batch; the bound then covers a reader that is never done.
 *
 * ASSERTED: I1 I2 I8, and that every writer comes to its end.
 *
 * BROKEN VARIANTS: NO_SECOND_SCAN READER_LOOKS_FIRST QUIET_DOES_NOT_WAKE LAGGARD_WAITS SEQ_AFTER_SCAN
 * WAITERS_AFTER_SCAN, and RKILLS=1 with BOUND=0
 */
#ifndef NW
#define NW 2
#endif
#ifndef NR
#define NR 1
#endif
#ifndef NC
#define NC 2
#endif
#ifndef RING
#define RING 1
#endif
#ifndef RKILLS
#define RKILLS 0
#endif
#ifndef BOUND
#define BOUND 0
#endif
#ifndef OWN
#define OWN 0
#endif

#define ASLEEP 128
#define P(x) ((x) & 127)
#define MAX(a, b) ((a) > (b) -> (a) : (b))
#define BIT(n) (1 << (n))
#define STEP(...) atomic { __VA_ARGS__ }
#if RKILLS
#define RSTEP(...) if :: atomic { __VA_ARGS__ } :: atomic { rkills > 0 -> rkills--; goto died } fi
#else
#define RSTEP(...) atomic { __VA_ARGS__ }
#endif

byte lock, head, tail, room_seq;
bool waiters;
byte pos[NR], want[NR], from[NR];
bool used[NR], dead[NR];
byte due[NR], got[NR];
bool sleeping[NW];
byte nsleeping, done, rkills = RKILLS;

#define EFFECTIVE(i) (!used[i] -> head : (!(pos[i] & ASLEEP) -> pos[i] : \
    (want[i] > P(pos[i]) -> MAX(P(pos[i]), from[i]) : head)))

inline scan(m)
{
    m = head; i = 0; pinner = 255;
    do
    :: atomic {
        i < NR ->
        if :: dead[i] -> used[i] = 0 :: else fi;                /* reaped */
        /* PN_CRASH("reap:freed") */
        if :: EFFECTIVE(i) < m -> m = EFFECTIVE(i); pinner = i :: else fi;
        i++
       }
    :: atomic { i == NR -> i = 0; assert(tail <= m && m <= head); tail = m; m = 0; break }   /* I1 */
    od
    /* PN_CRASH("tail:stored") */
}

#if NR == 1
#define CHOOSE_INTEREST if :: msk = 0 :: msk = 1 fi
#else
#define CHOOSE_INTEREST if :: msk = 0 :: msk = 1 :: msk = 2 :: msk = 3 fi
#endif

#if NW == 1
#define FUTEX_WAKE atomic { if :: sleeping[0] -> sleeping[0] = 0; nsleeping-- :: else fi }
#else
#define FUTEX_WAKE atomic { if :: sleeping[0] -> sleeping[0] = 0; nsleeping-- :: else fi; \
    if :: sleeping[1] -> sleeping[1] = 0; nsleeping-- :: else fi }
#endif

/* One poll() of slot r by its owner: everything up to head, then ASLEEP.  Leaves at polled. */
inline poll()
{
    RSTEP(h = head; if :: p == h -> h = 0; goto to_sleep :: else fi);
    /* PN_CRASH("read:head") */
#ifdef READER_LOOKS_FIRST
    RSTEP(w = waiters);                                         /* before pos, not after it */
    RSTEP(assert(tail <= pos[r]); got[r] = got[r] | (due[r] & (BIT(h) - 1)); pos[r] = h; p = h; h = 0;  /* I2 */
        if :: w -> w = 0 :: else -> goto poll_again fi);
#else
    RSTEP(assert(tail <= pos[r]); got[r] = got[r] | (due[r] & (BIT(h) - 1)); pos[r] = h; p = h; h = 0);  /* I2 */
    /* PN_CRASH("read:pos") */
    /* fence(seq_cst): pairs with the writer's between waiters = 1 and its second scan */
#ifdef WAKE_ONLY_AT_SLEEP
    goto poll_again;
#endif
    RSTEP(if :: waiters -> skip :: else -> goto poll_again fi);
#endif
    RSTEP(waiters = 0);
    RSTEP(room_seq++);
    /* PN_CRASH("block:woken") */
    RSTEP(FUTEX_WAKE; goto poll_again);
to_sleep:
#ifdef READER_LOOKS_FIRST
    RSTEP(w = waiters);
#endif
    RSTEP(pos[r] = p | ASLEEP);
    /* PN_CRASH("sleep:asleep") */
    RSTEP(if :: want[r] > p -> skip :: else -> goto quiet fi);
    RSTEP(if :: pos[r] == (p | ASLEEP) -> pos[r] = MAX(p, from[r]) :: else fi);
    /* PN_CRASH("sleep:rewoken") */
    RSTEP(p = pos[r]; goto poll_again);
quiet:
#ifndef QUIET_DOES_NOT_WAKE
#ifdef READER_LOOKS_FIRST
    RSTEP(if :: w -> w = 0 :: else -> p = 0; goto polled fi);
#else
    RSTEP(if :: waiters -> skip :: else -> p = 0; goto polled fi);
#endif
    RSTEP(waiters = 0);
    RSTEP(room_seq++);
    /* PN_CRASH("block:woken") */
    RSTEP(FUTEX_WAKE);
#endif
    p = 0
}


proctype Reader(byte r)
{
    byte p, h;
#ifdef READER_LOOKS_FIRST
    byte w;
#endif
poll_again:
    poll();
polled:
end_blocked:
    RSTEP(!(pos[r] & ASLEEP) -> p = pos[r]; goto poll_again);
died:
    atomic { dead[r] = 1; p = 0; h = 0 }
}

proctype Writer(byte me)
{
    byte n, i, m, s, msk, pinner;
    byte p, h, r;
#ifdef READER_LOOKS_FIRST
    byte w;
#endif
    bool late;

next:
#if OWN
    if
    :: me == 0 && !(pos[0] & ASLEEP) -> p = pos[0]; goto poll_again
    :: me != 0 || (pos[0] & ASLEEP) -> skip
    :: n < NC -> skip                                           /* a commit before the next poll() */
    fi;
#endif
    atomic { if :: n < NC -> skip :: else -> goto over fi };
try:
    atomic { lock == 0 -> lock = 1 + me };
    /* PN_CRASH("lock:acquired") */
    atomic { if :: head + 1 - tail <= RING -> goto room :: else fi };
    scan(m);
    atomic { if :: head + 1 - tail <= RING -> goto room :: else -> assert(!late) fi };
#if OWN && !defined(LAGGARD_WAITS)
    atomic { if :: me == 0 && pinner == 0 -> goto queue_full :: else fi };
#endif
#ifdef WAITERS_AFTER_SCAN
    STEP(s = room_seq);
    scan(m);
    STEP(waiters = 1);
#elif defined(SEQ_AFTER_SCAN)
    STEP(waiters = 1);
    scan(m);
    STEP(s = room_seq);
#else
    STEP(s = room_seq);
    STEP(waiters = 1);
    /* PN_CRASH("block:armed") */
    /* fence(seq_cst): pairs with the reader's between pos and waiters */
#ifndef NO_SECOND_SCAN
    scan(m);
#endif
#endif
    atomic { if :: head + 1 - tail <= RING -> s = 0; goto room :: else fi };
#if OWN && !defined(LAGGARD_WAITS)
    atomic { if :: me == 0 && pinner == 0 -> s = 0; goto queue_full :: else fi };
#endif
    STEP(lock = 0; pinner = 0);
    /* FUTEX_WAIT(room_seq, s) */
    atomic { if :: room_seq != s -> s = 0; goto try :: else -> sleeping[me] = 1; nsleeping++; s = 0 fi };
    if
    :: atomic { !sleeping[me] -> skip }
#if BOUND
    :: atomic { timeout -> sleeping[me] = 0; nsleeping--; late = 1 }
#endif
    fi;
    goto try;
room:
    /* PN_CRASH("commit:room") */
    STEP(assert(head + 1 - tail <= RING); CHOOSE_INTEREST;      /* I1 */
        due[0] = due[0] | (msk & 1 -> BIT(head) : 0);
#if NR > 1
        due[1] = due[1] | (msk & 2 -> BIT(head) : 0);
#endif
        head++; i = 0);
    /* PN_CRASH("commit:after-head") */
    do
    :: atomic {
        i < NR ->
        if
        :: msk & BIT(i) ->
            if :: (pos[i] & ASLEEP) && want[i] <= P(pos[i]) -> from[i] = head - 1 :: else fi;
            want[i] = head
            /* PN_CRASH("commit:want") */
        :: else
        fi;
        i++
       }
    :: atomic { i == NR -> i = 0; break }
    od;
    do
    :: atomic {
        i < NR ->
        if :: (msk & BIT(i)) && (pos[i] & ASLEEP) -> pos[i] = MAX(P(pos[i]), from[i]) :: else fi;
        /* PN_CRASH("commit:unslept") */
        i++
       }
    :: atomic { i == NR -> i = 0; break }
    od;
queue_full:
    STEP(lock = 0; n++; late = 0; msk = 0; pinner = 0; goto next);
    /* PN_CRASH("commit:unlocked") */
#if OWN
poll_again:
    poll();
polled:
    goto next;
#endif
over:
    atomic { done++; n = 0 };
#if OWN
    /* it has nothing more to commit and only reads */
    if :: me == 0 -> skip :: else -> goto gone fi;
end_reads:
    !(pos[0] & ASLEEP);
    p = pos[0]; n = NC; done--;
    goto poll_again;
gone:
#endif
#if RKILLS && OWN
died:
#endif
    skip
}

init {
    atomic {
        byte i = 0;
        if :: rkills = RKILLS :: rkills = 0 fi;
        do
        :: i < NR ->
            used[i] = 1;
            if :: OWN && i == 0 -> pos[0] = ASLEEP :: else -> run Reader(i) fi;
            i++
        :: else -> break
        od;
        i = 0;
        do :: i < NW -> run Writer(i); i++ :: else -> break od;
        i = 0
    };
#if BOUND
    timeout && nsleeping == 0;
#else
    timeout;
#endif
    atomic {
        assert(done == NW);                                           /* no writer waits for ever */
        assert(dead[0] || due[0] == got[0]);                            /* I8 */
#if NR > 1
        assert(dead[1] || due[1] == got[1])
#endif
    }
}
