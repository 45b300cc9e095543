/*
 * generation.pml - shared generation counters: a commit's bumps, and what of it readers may see
 * when.
 *
 * THE MODEL
 *
 *  0. NL listeners; NN committers of NC transactions each; counters 0 and 1, called A and B.
 *  1. A position is a small number and an entry is one position long; the ring is large enough for
 *     all of them (handshake.pml has its reuse).  A transaction is, in this order, a GENERATION entry
 *     for each counter that it bumps (counter, and the value after it) and one NOTIFY: N, AN, ABN, BN,
 *     or A alone.  Which of them the NOTIFY interests is chosen freely.
 *  2. A commit: entries, head, then `want` of the interested (and `from`), then the counters in the
 *     order of the entries, then the fence and the un-sleeping, then woken, then the lock.  A helped
 *     counter has its value already; storing it once more changes nothing.
 *  3. A reader may pass the first GENERATION entry of a transaction when the counter has reached its
 *     value: then every `want` of that transaction has been stored.  For the same reason it may store
 *     the counters of the transaction's further entries itself, if the committer has not come so far
 *     (compare and swap to the larger).  If the first counter has not reached its value the reader
 *     stops in front of the entry: it is held.  No process can have seen anything of that
 *     transaction.
 *  4. Held with nothing to return, a reader tries the lock, never waiting: free means that the
 *     transaction is announced by now, EOWNERDEAD that it has to repair.  Otherwise it falls asleep in
 *     front of the entry: ASLEEP is stored, then `want` and the counter are looked at once more.  The
 *     committer stores the counter, then looks for ASLEEP: one of them sees the other.
 *  5. Recovery of [woken, head): every reader is interested; then counter = max(counter, value of the
 *     entry); then un-sleeping; then woken.
 *  6. A listener looks at a counter whenever it likes (LOOKS times), then polls; and it polls when its
 *     latch is set, and again after every poll that brought something.
 *  7. KILLS kills may fall between any two steps of a committer that holds the lock, in recovery too.
 *     Un-sleeping and the signal are one step (handshake.pml has what lies between them), so the
 *     watchdog only has to take a lock whose owner is dead, when nothing else can move.
 *
 * ASSERTED
 *  G1  a reader that is returned a notification reads at least what its transaction's bumps made.
 *  G2  a reader of a value finds, in its next poll(), the notifications of every transaction that
 *      made it or an earlier one.
 *  G3  poll() returns what was committed before it was called: what a committer's call has returned
 *      for; of a transaction that bumps also what another reader was returned.  (Without bumps a
 *      reader may be ahead of the `want` of another one, until the committer's call returns.)
 *  G4  a counter never falls, and in the end is the number of committed transactions that bumped it.
 *  G5  poll() is not held by a committer that was dead when it was called, if no other process
 *      repairs.
 *  I4 I6 I7 I8 (I9 with kills).
 *
 * A comment PN_CRASH(label) stands where the C source has that crash point.
 *
 * BROKEN VARIANTS (-D): VALUE_BEFORE_HEAD VALUE_BEFORE_WANT VALUE_AFTER_UNSLEEP VALUE_AFTER_WOKEN
 * READER_PASSES READER_HELPS_FIRST READER_STOPS_AT_SECOND HELP_BY_STORE NO_RECHECK_WHEN_HELD NO_TRYLOCK
 * HELD_SLEEPS_NOT RECOVER_ADDS RECOVER_VALUES_FIRST RECOVER_NO_REDO
 */
#ifndef NL
#define NL 2
#endif
#ifndef NN
#define NN 1
#endif
#ifndef NC
#define NC 2
#endif
#ifndef LOOKS
#define LOOKS 1
#endif
#ifndef KILLS
#define KILLS 0
#endif

#define ASLEEP 128
#define P(x) ((x) & 127)
#define MAX(a, b) ((a) > (b) -> (a) : (b))
#define BIT(n) (1 << (n))
#define FREE 0
#define DIED 100
#define DOG (NN + NL + 1)
#define ROOM (NN * NC * 3)
#define NOTIFY 9

#if KILLS
#define STEP(...) if :: atomic { __VA_ARGS__ } \
    :: atomic { me <= NN && kills > 0 -> kills--; goto died } fi
#else
#define STEP(...) atomic { __VA_ARGS__ }
#endif

byte lock, head, woken;
byte kind[ROOM];                /* 0, 1: bump of that counter; NOTIFY */
byte val[ROOM];                 /* the counter's value after it */
byte txn[ROOM];                 /* 1 + position of the transaction's first entry */
byte value[2];                  /* the counters */
byte pos[NL], want[NL], from[NL];
bool efd[NL];

int due[NL], got[NL], told;     /* ghosts: sets of positions */
int bumping;                    /* ghost: NOTIFYs whose transaction bumps something */
byte made[2];                   /* ghost: committed bumps */
byte kills = KILLS;

/* ---- parts of the lock's holder */

inline raise_wants(set, begin)
{
    i = 0;
    do
    :: atomic { i == NL -> i = 0; break }
    :: atomic { i < NL && !((set) & BIT(i)) -> i++ }
    :: atomic { i < NL && ((set) & BIT(i)) -> skip };
        STEP(if :: want[i] <= P(pos[i]) -> from[i] = begin :: else fi);
        STEP(want[i] = head; i++)
    od
}

inline unsleep(set)
{
    /* fence(seq_cst), pairs with the exchange of a reader that falls asleep */
    i = 0;
    do
    :: atomic { i == NL -> i = 0; break }
    :: atomic { i < NL && !((set) & BIT(i)) -> i++ }
    :: atomic { i < NL && ((set) & BIT(i)) -> skip };
        STEP(if
            :: pos[i] & ASLEEP -> pos[i] = MAX(P(pos[i]), from[i]); efd[i] = 1
            :: else
            fi;
            i++)
    od
}

/* counter = max(counter, value), entry by entry; what a reader stores meanwhile is the same value */
inline redo()
{
    e = woken;
    do
    :: atomic { e == head -> e = 0; break }
    :: atomic { e < head && kind[e] == NOTIFY -> e++ }
    :: atomic { e < head && kind[e] != NOTIFY -> v = value[kind[e]] };
#ifdef RECOVER_ADDS
        STEP(value[kind[e]] = v + 1; v = 0; e++)
#else
        STEP(if :: v < val[e] -> value[kind[e]] = val[e] :: else fi; v = 0; e++)
        /* PN_CRASH("recover:generation") */
#endif
    od
}

inline recover()
{
    /* PN_CRASH("recover:begin") */
    if
    :: atomic { woken < head -> skip };
#ifdef RECOVER_VALUES_FIRST
        redo();
#endif
        raise_wants(BIT(NL) - 1, woken);
#if !defined(RECOVER_VALUES_FIRST) && !defined(RECOVER_NO_REDO)
        redo();
#endif
        unsleep(BIT(NL) - 1);
        /* PN_CRASH("recover:before-woken") */
        STEP(woken = head)
        /* PN_CRASH("recover:woken") */
    :: atomic { woken == head -> skip }
    fi
}

/* ---- a committer */

inline put(k)
{
    kind[e] = k;
    val[e] = (k < NOTIFY -> value[k] + 1 : 0);
    txn[e] = head + 1;
    e++
}

/* The counters of [head before, head after), in order. */
inline store_values()
{
    e = woken;
    do
    :: atomic { e == head -> e = 0; break }
    :: atomic { e < head && kind[e] == NOTIFY -> e++ }
    :: atomic { e < head && kind[e] != NOTIFY -> skip };
        STEP(assert(value[kind[e]] == val[e] - 1 || value[kind[e]] == val[e]);  /* G4 */
            value[kind[e]] = val[e]; e++)
        /* PN_CRASH("commit:generation") */
    od
}

proctype Committer(byte me)
{
    byte n, i, e, v, msk, end, first;

next:
    if
    :: atomic { n < NC && lock == FREE -> lock = me; goto locked }
    :: atomic { n < NC && lock == DIED -> lock = me }
    :: atomic { n == NC -> goto over }
    fi;
    recover();
locked:
    /* PN_CRASH("lock:acquired") */
    atomic {
        assert(woken == head);                                          /* I6 */
        n++;
        if :: msk = 1 :: NL > 1 -> msk = 2 :: NL > 1 -> msk = 3 fi;
        e = head;
        if
        :: put(NOTIFY)
        :: put(0); put(NOTIFY)
        :: put(1); put(NOTIFY)
        :: put(0); put(1); put(NOTIFY)
        :: put(0); msk = 0
        fi;
        end = e; e = 0
        /* PN_CRASH("commit:entry") */
    };
#ifdef VALUE_BEFORE_HEAD
    STEP(if :: kind[head] != NOTIFY -> value[kind[head]] = val[head] :: else fi);
#endif
    /* PN_CRASH("commit:before-head") */
    STEP(i = 0;
        do
        :: i < NL -> if :: msk & BIT(i) -> due[i] = due[i] | BIT(end - 1) :: else fi; i++
        :: else -> break
        od;
        if :: end - head > 1 -> bumping = bumping | BIT(end - 1) :: else fi;
        i = head;
        do
        :: i < end -> if :: kind[i] != NOTIFY -> made[kind[i]]++ :: else fi; i++
        :: else -> break
        od;
        i = 0; first = head; head = end);
    /* PN_CRASH("commit:after-head") */
#ifdef VALUE_BEFORE_WANT
    store_values();
#endif
    raise_wants(msk, first);
    /* PN_CRASH("commit:want") */
#if !defined(VALUE_BEFORE_WANT) && !defined(VALUE_AFTER_UNSLEEP) && !defined(VALUE_AFTER_WOKEN)
    store_values();
#endif
    unsleep(msk);
    /* PN_CRASH("commit:unslept") */
#ifdef VALUE_AFTER_UNSLEEP
    store_values();
#endif
    /* PN_CRASH("commit:before-woken") */
#ifdef VALUE_AFTER_WOKEN
    STEP(woken = head);
    e = first;
    do
    :: atomic { e == head -> e = 0; break }
    :: atomic { e < head && kind[e] == NOTIFY -> e++ }
    :: atomic { e < head && kind[e] != NOTIFY -> skip };
        STEP(value[kind[e]] = val[e]; e++)
    od;
#else
    STEP(woken = head);
    /* PN_CRASH("commit:after-woken") */
#endif
    /* PN_CRASH("lock:before-unlock") */
    atomic {
        assert(lock == me); lock = FREE;                                /* I7 */
        if :: kind[end - 1] == NOTIFY -> told = told | BIT(end - 1) :: else fi;
        msk = 0; end = 0; first = 0; goto next
    };
died:
    atomic { if :: lock == me -> lock = DIED :: else fi };
over:
    atomic { n = 0; i = 0; e = 0; v = 0; msk = 0; end = 0; first = 0 }
}

/* ---- a listener */

/* held: counter hc has not reached hv; hv == 0: not held */
#define HELD (hv > 0 && value[hc] < hv)
#define MINE(q) (due[l] & BIT(q))
#define BUMPED(q, c, x) /* the transaction of the NOTIFY at q made counter c at most x */ \
    ((q >= 1 && txn[q - 1] == txn[q] && kind[q - 1] == c && val[q - 1] <= (x)) || \
     (q >= 2 && txn[q - 2] == txn[q] && kind[q - 2] == c && val[q - 2] <= (x)))
#define SHORT_OF(q, c) /* ... and the counter has not come so far */ \
    ((q >= 1 && txn[q - 1] == txn[q] && kind[q - 1] == c && val[q - 1] > value[c]) || \
     (q >= 2 && txn[q - 2] == txn[q] && kind[q - 2] == c && val[q - 2] > value[c]))

proctype Listener(byte l)
{
    byte p, h, i, e, v, hc, hv, seen, oc, ov, looks;
    int owes, fresh;
    byte dead;                  /* 1 + kills left, if the lock's owner was dead when poll() began */
    byte me = NN + 1 + l;

idle:
end_idle:
    if
    :: atomic { efd[l] -> efd[l] = 0 }
    :: atomic { looks < LOOKS -> looks++; if :: oc = 0 :: oc = 1 fi; ov = value[oc] }
    fi;
poll:
    /* what must be found: G3, and of what the value was read G2 */
    atomic {
        owes = told & due[l]; dead = (lock == DIED -> kills + 1 : 0);
        i = 0;
        do
        :: i < head ->
            if :: kind[i] == NOTIFY && MINE(i) && BUMPED(i, oc, ov) -> owes = owes | BIT(i) :: else fi;
            i++
        :: else -> break
        od;
        i = 0; ov = 0; oc = 0
    };
#ifndef NO_TRYLOCK
    atomic { if :: HELD -> goto try_lock :: else fi };
#endif
look:
    atomic { p = pos[l]; if :: p & ASLEEP -> p = P(p) :: else -> goto awake fi };
    atomic { if :: want[l] > p -> skip :: else -> goto nothing fi };
    atomic { if :: HELD -> goto nothing :: else fi };
wake_myself:
    atomic { if :: pos[l] == (p | ASLEEP) -> pos[l] = MAX(p, from[l]) :: else fi; p = pos[l];
        assert(!(p & ASLEEP)) };
awake:
    atomic { if :: want[l] > p -> p = MAX(p, from[l]) :: else -> goto sleep fi };
    atomic { h = head; if :: p == h -> goto sleep :: else -> seen = 0 fi };
    /* PN_CRASH("read:head") */
read_entry:
    atomic { if :: p == h -> goto read_over :: p < h && kind[p] != NOTIFY -> skip
        :: p < h && kind[p] == NOTIFY ->
            if
            :: MINE(p) ->
                assert(!(got[l] & BIT(p)));                             /* I4 */
                assert(!SHORT_OF(p, 0) && !SHORT_OF(p, 1));             /* G1 */
                got[l] = got[l] | BIT(p);
                fresh = fresh | BIT(p)
            :: else
            fi;
            p++; goto read_entry
        fi };
#ifdef READER_PASSES
    atomic { p++; goto read_entry };
#endif
    atomic { v = value[kind[p]];
        if
        :: v >= val[p] -> v = 0; hc = 0; hv = 0; seen = txn[p]; p++; goto read_entry
#ifdef READER_STOPS_AT_SECOND
        :: v < val[p] -> hc = kind[p]; hv = val[p]; v = 0; goto read_over
#elif defined(READER_HELPS_FIRST)
        :: v < val[p] -> skip
#else
        :: v < val[p] && seen != txn[p] -> hc = kind[p]; hv = val[p]; v = 0; goto read_over
        :: v < val[p] && seen == txn[p] -> skip
#endif
        fi };
#ifdef HELP_BY_STORE
    atomic { value[kind[p]] = val[p]; v = 0; goto read_entry };
#else
    atomic { if :: value[kind[p]] == v -> value[kind[p]] = val[p] :: else fi; v = 0; goto read_entry };
    /* PN_CRASH("read:generation") */
#endif
read_over:
    /* PN_CRASH("read:copied") */
    atomic { assert(!(pos[l] & ASLEEP)); pos[l] = p; h = 0; seen = 0;
        if :: fresh != 0 -> p = 0; goto productive :: else fi };
    /* PN_CRASH("read:pos") */
    atomic { if :: HELD -> skip :: else -> goto look fi };
#ifdef HELD_SLEEPS_NOT
    atomic { p = 0; goto nothing };                     /* awake, and something is unread */
#endif
#ifdef NO_TRYLOCK
    goto sleep;
#else
try_lock:
    atomic {
        if
        :: lock == FREE -> assert(!HELD); p = 0; goto look
        :: lock == DIED -> lock = me
        :: else -> p = pos[l]; if :: p & ASLEEP -> goto look :: else -> goto sleep fi
        fi };
    recover();
    atomic { assert(lock == me); lock = FREE; assert(!HELD); p = 0; goto look };
#endif
sleep:
    atomic { h = 0; pos[l] = p | ASLEEP };                              /* exchange, seq_cst */
    /* PN_CRASH("sleep:asleep") */
    atomic { if :: want[l] > p -> skip :: else -> goto nothing fi };
#ifdef NO_RECHECK_WHEN_HELD
    atomic { if :: hv > 0 && val[p] == hv && kind[p] == hc -> goto nothing :: else fi };
#else
    atomic { if :: HELD -> goto nothing :: else fi };
#endif
    /* PN_CRASH("sleep:rewoken") */
    goto wake_myself;

productive:
    atomic { assert((owes & ~got[l]) == 0);                             /* G2 G3 */
        told = told | (fresh & bumping); fresh = 0; owes = 0; dead = 0; goto poll };
nothing:
    atomic { assert((owes & ~got[l]) == 0);                             /* G2 G3 */
        assert(!(HELD && lock == DIED && dead == kills + 1));           /* G5 */
        p = 0; owes = 0; dead = 0; goto idle };
died:
    skip
}

/* ---- the slow timer of some living process, and the end */

proctype Watchdog()
{
    byte i, e, v, me = DOG;
    timeout;
    if :: atomic { lock == DIED -> lock = me } :: atomic { lock == FREE -> goto final } fi;
    recover();
    atomic { assert(lock == me); lock = FREE };                         /* I7 */
final:
    timeout;
    i = 0;
    do
    :: i < NL -> assert(due[i] == got[i]); i++                          /* I8 I9 */
    :: else -> break
    od;
    assert(value[0] == made[0] && value[1] == made[1]);                 /* G4 */
died:
    skip
}

init {
    atomic {
        byte x = 1;
        do :: x <= NN -> run Committer(x); x++ :: else -> break od;
        x = 0;
        do :: x < NL -> pos[x] = ASLEEP; run Listener(x); x++ :: else -> break od;
        run Watchdog();
        x = 0
    }
}
