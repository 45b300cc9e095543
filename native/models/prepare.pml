/*
 * prepare.pml - tx.prepare(): room reserved before the commit, padding included (R10).
 *
 * THE MODEL
 *
 *  1. Room is counted in units; a page has PAGE units, the ring NPAGES pages.  An entry does not cross
 *     a page: what is left of a page too short for it is padding.
 *  2. A transaction is one or two entries of 1..PAGE units, chosen freely.  NP preparers reserve,
 *     later commit or abort; NPLAIN others commit without reserving.  Each does it ROUNDS times.
 *  3. A reservation is for the worst alignment: next-fit from a fresh page, plus PAGE - 1.
 *  4. Admission of anything, under the lock: head + need + sum(reserved of others) <= tail + capacity;
 *     if not, the tail is scanned and every dead slot with reserved > 0 is reaped, whether or not it
 *     pins the tail; if still not: QueueFull.
 *  5. Commit of a prepared transaction: reserved = 0 is stored before head.  It cannot fail.
 *     Where pages go to files (RPAGES < NPAGES pages in the ring) also <= mem_tail + ring; if only that
 *     is short, whole pages below head are moved (spill.pml), or the disk is full: QueueFull, too.
 *  6. One reader moves pos towards head by one unit at any time, and may stop for ever, or die: then it
 *     is reaped and holds nothing.
 *  7. KILLS preparers die at any step.  EOWNERDEAD: the next one takes the lock over; there is nothing
 *     to repair here.
 *
 * ASSERTED: I1 I12 I13, I19 in part, that a prepared commit writes no file, and that at the end a scan
 * leaves no reservation of a dead slot.
 *
 * BROKEN VARIANTS: EXACT_SIZE OTHERS_IGNORE_RESERVATIONS REAP_ONLY_TAIL_PINNERS RELEASE_AFTER_HEAD
 * WORST_WITHOUT_PADDING RESERVE_UNLOCKED READER_NOT_REAPED, and with RPAGES RESERVE_LOGICALLY
 */
#ifndef NP
#define NP 2
#endif
#ifndef NPLAIN
#define NPLAIN 1
#endif
#ifndef ROUNDS
#define ROUNDS 1
#endif
#ifndef PAGE
#define PAGE 2
#endif
#ifndef NPAGES
#define NPAGES 3
#endif
#ifndef KILLS
#define KILLS 1
#endif

#ifndef RPAGES
#define RPAGES NPAGES
#endif

#define CAPACITY (PAGE * NPAGES)
#define RING (PAGE * RPAGES)
#define FREE 0
#define DIED 100
#if KILLS
#define STEP(...) if :: atomic { __VA_ARGS__ } \
    :: atomic { me <= NP && kills > 0 -> kills--; goto died } fi
#else
#define STEP(...) atomic { __VA_ARGS__ }
#endif

byte lock, head, tail, mem_tail, pos;
bool reader_dead;
byte reserved[3];               /* by slot; the plain ones keep it 0 */
bool dead[3];
byte kills = KILLS;

#define SUM (reserved[0] + reserved[1] + reserved[2])
#define BELOW_LIMITS(end) ((end) <= tail + CAPACITY && (end) <= mem_tail + RING)
#define I12 BELOW_LIMITS(head + SUM)

/* end = where the transaction (a, b) ends when it begins at `start` */
inline place(start, end)
{
    d_step {
        end = start;
        if :: end % PAGE + a > PAGE -> end = end + PAGE - end % PAGE :: else fi;
        end = end + a;
        if :: b > 0 && end % PAGE + b > PAGE -> end = end + PAGE - end % PAGE :: else fi;
        end = end + b
    }
}

/* under the lock: is there room for `need` beyond the others' reservations?  Sets ok. */
inline admit(need)
{
#ifdef OTHERS_IGNORE_RESERVATIONS
#define OTHERS 0
#else
#define OTHERS (SUM - reserved[me - 1])
#endif
    STEP(assert(I12);                                                   /* I12 */
        ok = BELOW_LIMITS(head + need + OTHERS));
    if
    :: ok -> skip
    :: else ->
        STEP(
#ifndef READER_NOT_REAPED
            if :: reader_dead -> pos = head :: else fi;
#endif
            tail = pos;                                                 /* scan */
            assert(tail <= head && head - tail <= CAPACITY);            /* I1 */
            if :: mem_tail < tail -> mem_tail = tail :: else fi;
            /* PN_CRASH("tail:stored") */
#ifdef REAP_ONLY_TAIL_PINNERS
            skip
#else
            if :: dead[0] -> reserved[0] = 0 :: else fi;
            if :: dead[1] -> reserved[1] = 0 :: else fi
            /* PN_CRASH("reap:freed") */
#endif
            );
        do
        :: head + need + OTHERS <= tail + CAPACITY && head + need + OTHERS > mem_tail + RING &&
           mem_tail / PAGE < head / PAGE ->
            STEP(mem_tail = (mem_tail / PAGE + 1) * PAGE; assert(mem_tail <= head))     /* I19 */
            /* PN_CRASH("spill:mem-tail") */
        :: RPAGES < NPAGES -> break                                     /* the disk is full */
        :: else -> break
        od;
#ifdef RESERVE_LOGICALLY
        STEP(ok = (head + need + OTHERS <= tail + CAPACITY))
#else
        STEP(ok = BELOW_LIMITS(head + need + OTHERS))
#endif
    fi
}

#define TAKE_LOCK atomic { lock == FREE || lock == DIED -> lock = me }
#define CHOOSE \
    if :: a = 1 :: a = 2 :: PAGE > 2 -> a = 3 fi; \
    if :: b = 0 :: b = 1 :: b = 2 :: PAGE > 2 -> b = 3 fi

proctype Preparer(byte me)
{
    byte n, a, b, end, need;
    bool ok;
next:
    atomic { if :: n == ROUNDS -> goto over :: else -> n++; CHOOSE fi };
#ifndef RESERVE_UNLOCKED
    TAKE_LOCK;
#endif
    /* PN_CRASH("lock:acquired") */
#ifdef EXACT_SIZE
    STEP(place(head, end); need = end - head; end = 0);
#elif defined(WORST_WITHOUT_PADDING)
    STEP(place(0, end); need = end; end = 0);
#else
    STEP(place(0, end); need = end + PAGE - 1; end = 0);
#endif
    admit(need);
    STEP(if :: ok -> reserved[me - 1] = need :: else fi; need = 0);
    /* PN_CRASH("reserve:stored") */
#ifndef RESERVE_UNLOCKED
    STEP(assert(I12); lock = FREE);                                     /* I12 */
#endif
    atomic { if :: ok -> ok = 0 :: else -> a = 0; b = 0; goto next fi };
    /* the application commits its own database here */
    TAKE_LOCK;
    /* PN_CRASH("lock:acquired") */
    if
    :: atomic { skip -> goto abort }
    :: atomic { skip }
    fi;
    STEP(place(head, end);                                              /* I12: it cannot fail */
        assert(end - head <= reserved[me - 1]);
        assert(BELOW_LIMITS(end + OTHERS)));
    /* PN_CRASH("commit:room") */
#ifndef RELEASE_AFTER_HEAD
    STEP(reserved[me - 1] = 0);
    /* PN_CRASH("reserve:released") */
#endif
    /* PN_CRASH("commit:before-head") */
    STEP(head = end; assert(head - tail <= CAPACITY && head - mem_tail <= RING));                  /* I1 */
    /* PN_CRASH("commit:after-head") */
abort:
    /* also the release of an aborted transaction */
    STEP(reserved[me - 1] = 0);
    /* PN_CRASH("reserve:released") */
    STEP(assert(I12); lock = FREE; a = 0; b = 0; end = 0; goto next);   /* I12 */
    /* PN_CRASH("commit:unlocked") */
died:
    atomic { dead[me - 1] = 1; if :: lock == me -> lock = DIED :: else fi };
over:
    atomic { n = 0; a = 0; b = 0; end = 0; need = 0; ok = 0 }
}

proctype Plain(byte me)
{
    byte n, a, b, end, need;
    bool ok;
next:
    atomic { if :: n == ROUNDS -> goto over :: else -> n++; CHOOSE fi };
    TAKE_LOCK;
    /* PN_CRASH("lock:acquired") */
    atomic { place(head, end); need = end - head };
    admit(need);
    STEP(need = 0; if :: ok -> ok = 0 :: else -> goto queue_full fi);
    /* PN_CRASH("commit:room") */
    /* PN_CRASH("commit:before-head") */
    STEP(head = end; assert(head - tail <= CAPACITY && head - mem_tail <= RING));                  /* I1 */
    /* PN_CRASH("commit:after-head") */
queue_full:
    STEP(lock = FREE; a = 0; b = 0; end = 0; goto next);
    /* PN_CRASH("commit:unlocked") */
died:
over:
    atomic { n = 0; a = 0; b = 0; end = 0; need = 0; ok = 0 }
}

proctype Reader()
{
    do
    :: pos < head -> pos++
    :: break                                                    /* stuck for ever */
    :: reader_dead = 1 -> break
    od
}

/* the last one to need room */
proctype Last(byte me)
{
    byte need = CAPACITY;
    bool ok;
    timeout;
    atomic { kills = 0; lock = me };
    admit(need);
    assert(!reader_dead || tail == head);                               /* I13 */
    assert((dead[0] -> reserved[0] == 0 : 1) && (dead[1] -> reserved[1] == 0 : 1));
died:
    skip
}

init {
    atomic {
        byte i = 1;
        do :: i <= NP -> run Preparer(i); i++ :: else -> break od;
        i = 0;
        do :: i < NPLAIN -> run Plain(3); i++ :: else -> break od;
        run Reader();
        run Last(3);
        i = 0
    }
}
