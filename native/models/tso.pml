/*
 * tso.pml - store buffers and the two fences of the handshake.
 *
 * THE MODEL
 *
 *  1. One listener that has read up to 0 and goes to sleep, one notifier that publishes one entry
 *     (head = 1) for it.  A few words, nothing else: this is a litmus test of handshake.pml.
 *  2. x86 (default): each process has one FIFO store buffer; its stores become visible later, in
 *     order; its own loads look into the buffer first.  A seq_cst fence, an exchange and a CAS empty
 *     it before they go on.
 *  3. PSO (-DPSO): the buffered stores become visible in any order (to different words), except that a
 *     release store waits until everything before it is visible.
 *  4. The fence of the notifier stands between want and pos, that of the listener between pos | ASLEEP
 *     and want (the exchange does both).
 *  5. In PSO, from and head must be visible before want: want is a release store.  The tail has moved
 *     past the quiet listener's pos, so that waking at an old from would be reading reclaimed bytes.
 *
 * ASSERTED: I8 (no lost wake-up), I3 as "a process that wakes sees head, from and the entry".
 *
 * BROKEN VARIANTS: NO_NOTIFIER_FENCE NO_LISTENER_FENCE; with PSO also WANT_WITHOUT_RELEASE,
 * and HEAD_WITHOUT_RELEASE seen by a reader that is awake and looks at head only (AWAKE).
 */
#define ASLEEP 128
#define STEP(...) atomic { __VA_ARGS__ }

/* words */
#define ENTRY 0
#define HEAD 1
#define FROM 2
#define WANT 3
#define POS 4
#define NWORDS 5
#define EMPTY 255

byte mem[NWORDS];
bool efd, got, lock_done;

/* Buffers of the two processes (0 the notifier, 1 the listener): FIFO of (word, value).  Five places
 * are more than either ever needs. */
#define PLACES 5
byte bword[10] = EMPTY, bval[10];
byte blen[2];
#define BW(c, k) bword[(c) * PLACES + (k)]
#define BV(c, k) bval[(c) * PLACES + (k)]

inline store(c, wd, v)
{
    atomic { BW(c, blen[c]) = wd; BV(c, blen[c]) = v; blen[c]++ }
}

/* make the k-th buffered store of c visible and close the gap */
inline drain_one(c, k)
{
    d_step {
        mem[BW(c, k)] = BV(c, k);
        j = k;
        do
        :: j + 1 < blen[c] -> BW(c, j) = BW(c, j + 1); BV(c, j) = BV(c, j + 1); j++
        :: else -> break
        od;
        blen[c]--; BW(c, blen[c]) = EMPTY; BV(c, blen[c]) = 0; j = 0
    }
}

inline load(c, wd, dst)
{
    d_step {
        dst = mem[wd]; j = 0;
        do
        :: j < blen[c] -> if :: BW(c, j) == wd -> dst = BV(c, j) :: else fi; j++
        :: else -> break
        od;
        j = 0
    }
}

#define FENCE(c) blen[c] == 0

#ifdef PSO
#define RELEASE(c) blen[c] == 0
#else
#define RELEASE(c) skip
#endif

proctype Buffer(byte c)
{
    byte j;
end_empty:
    do
    :: blen[c] > 0 -> drain_one(c, 0)
#ifdef PSO
    :: blen[c] > 1 && BW(c, 1) != BW(c, 0) -> drain_one(c, 1)
    :: blen[c] > 2 && BW(c, 2) != BW(c, 0) && BW(c, 2) != BW(c, 1) -> drain_one(c, 2)
#endif
    od
}

proctype Notifier()
{
    byte p, j;
    store(0, ENTRY, 1);
    /* PN_CRASH("commit:entry") */
#ifndef HEAD_WITHOUT_RELEASE
    RELEASE(0);
#endif
    store(0, HEAD, 1);
    /* PN_CRASH("commit:after-head") */
    store(0, FROM, 1);
    /* PN_CRASH("commit:from") */
#ifndef WANT_WITHOUT_RELEASE
    RELEASE(0);
#endif
    store(0, WANT, 2);
    /* PN_CRASH("commit:want") */
#ifndef NO_NOTIFIER_FENCE
    FENCE(0);
#endif
    load(0, POS, p);
    if
    :: p & ASLEEP ->
        STEP(blen[0] == 0 ->
            if :: mem[POS] == p -> mem[POS] = mem[FROM]; efd = 1 :: else fi)
        /* PN_CRASH("commit:unslept") */
    :: else
    fi
}

/* The listener's pos is 0 and the transaction begins at 1: position 0 holds a reclaimed entry that did
 * not interest it.  Positions: from = begin = 1, want = end = 2; head is 1 when the entry is there. */
proctype Listener()
{
    byte p, w, f, h, e, j;
#ifdef AWAKE
    load(1, HEAD, h);
    if :: h == 1 -> load(1, ENTRY, e); assert(e == 1) :: else fi;       /* I3 */
    got = 1; goto over;
#endif
#ifdef NO_LISTENER_FENCE
    store(1, POS, ASLEEP);
    /* PN_CRASH("sleep:asleep") */
#else
    STEP(blen[1] == 0 -> mem[POS] = ASLEEP);                    /* exchange */
    /* PN_CRASH("sleep:asleep") */
    /* PN_CRASH("sleep:fenced") */
#endif
    load(1, WANT, w);
    if
    :: w > 0 ->
        load(1, FROM, f);
        STEP(blen[1] == 0 -> if :: mem[POS] == ASLEEP -> mem[POS] = f :: else fi)
        /* PN_CRASH("sleep:rewoken") */
    :: else ->
end_blocked:
        efd -> skip
    fi;
    load(1, POS, p);
    assert(p == 1);                                             /* not the reclaimed position */
    load(1, HEAD, h);
    assert(h == 1);
    load(1, ENTRY, e);
    assert(e == 1);                                             /* I3 */
    got = 1;
over:
    skip
}

init {
    atomic { run Buffer(0); run Buffer(1); run Notifier(); run Listener() };
    timeout;
    assert(got)                                                 /* I8 */
}
