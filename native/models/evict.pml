/*
 * evict.pml - on_full = drop-slowest: eviction by `floor` (R7).
 *
 * THE MODEL
 *
 *  1. NW writers commit NC entries each, of one page and two words; the ring has RING pages.  Which of
 *     the NR readers an entry interests is chosen freely.  Sleeping and signalling are left out: a
 *     reader that has nothing to read waits until want > pos (handshake.pml has the rest).
 *  2. A slot with want > pos starts at max(pos, from, floor), and pins there; else it is quiet.
 *  3. A writer that finds the ring full scans the tail; still full: floor is raised to the end of the
 *     page where enough room is reached (or of the next one), then the tail is scanned again, then
 *     fence(release), then the ring is overwritten.  The holder never writes a reader's pos.
 *  4. Reader: look at want, from, head; copy a page, word by word; fence(acquire); load floor.
 *     floor > start of the copy: the copy is void, Gap(start..floor), go on at floor.  With PAGES=2 it
 *     copies two pages before it looks, and keeps them when the first is delivered.
 *  5. KILLS writers die at any step.  EOWNERDEAD: the successor raises from and want of all if woken <
 *     head.  floor > tail, left by a death between the two, is legal: the eviction has happened.
 *  6. Missing fences are enumerated: a store that may come early comes early, a load likewise.
 *
 * ASSERTED: I1 I2 I3 I4 I5 I6 I10 (everything due was got or lies in a Gap, nothing in both), floor <=
 * head, an eviction makes room, and that no reader waits that has something due.
 *
 * BROKEN VARIANTS: EVICT_BY_POS NO_VALIDATION VALIDATE_BEFORE_COPY NO_WRITER_FENCE NO_READER_FENCE
 * SCAN_IGNORES_FLOOR FLOOR_AFTER_OVERWRITE FROM_IGNORED
 */
#ifndef NW
#define NW 1
#endif
#ifndef NR
#define NR 1
#endif
#ifndef NC
#define NC 5
#endif
#ifndef RING
#define RING 2
#endif
#ifndef PAGES
#define PAGES 1
#endif
#ifndef KILLS
#define KILLS 0
#endif

#define FREE 0
#define DIED 100
#define MAX(a, b) ((a) > (b) -> (a) : (b))
#define BIT(n) (1 << (n))
#define RANGE(from, to) (BIT(to) - BIT(from))                   /* positions [from, to) */
#if KILLS
#define STEP(...) if :: atomic { __VA_ARGS__ } :: atomic { kills > 0 -> kills--; goto died } fi
#else
#define STEP(...) atomic { __VA_ARGS__ }
#endif

byte lock, head, tail, floor, woken;
byte ring_a[RING], ring_b[RING];                                /* position + 1 */
byte pos[NR], want[NR], from[NR];
short due[NR], got[NR], lost[NR];
byte kills = KILLS;

#define PINS(i) (want[i] > pos[i])
#ifdef SCAN_IGNORES_FLOOR
#define START(i) (MAX(pos[i], from[i]))
#else
#define START(i) (MAX(MAX(pos[i], from[i]), floor))
#endif

inline scan()
{
    STEP(m = head; i = 0);
    do
    :: i < NR -> STEP(if :: PINS(i) && START(i) < m -> m = START(i) :: else fi; i++)
    :: else -> break
    od;
    /* PN_CRASH("tail:scanned") */
    STEP(assert(tail <= m && m <= head); tail = m; m = 0; i = 0)        /* I1 */
    /* PN_CRASH("tail:stored") */
}

/* from, if the slot is quiet, and then want (R4) */
inline interest(begin)
{
    STEP(if :: !PINS(i) -> from[i] = begin :: else fi);
    /* PN_CRASH("commit:from") */
    STEP(want[i] = head)
    /* PN_CRASH("commit:want") */
}

proctype Writer(byte me)
{
    byte n, i, m, msk, target;
next:
    atomic { if :: n == NC -> goto over :: else -> n++ fi };
    atomic {
        lock == FREE || lock == DIED ->
        if :: lock == DIED -> m = 1 :: else fi;
        lock = me
    };
    /* PN_CRASH("lock:acquired") */
    if
    :: m == 1 ->
        atomic { m = 0; assert(tail <= head && floor <= head && woken <= head) };
        /* PN_CRASH("recover:begin") */
        if
        :: woken < head ->
            do
            :: i < NR ->
                interest(woken);
                STEP(i++)
            :: else -> break
            od;
            STEP(woken = head; i = 0)
            /* PN_CRASH("recover:woken") */
        :: else
        fi
    :: else
    fi;
    if
    :: head + 1 - tail > RING ->
        scan()
    :: else
    fi;
    if
    :: head + 1 - tail > RING ->
        atomic {
            target = head + 1 - RING;
            if :: skip :: target < head -> target++ fi
        };
#ifdef EVICT_BY_POS
        do
        :: i < NR ->
            STEP(if :: PINS(i) && START(i) < target -> m = pos[i] :: else -> m = 255 fi);
            STEP(if :: m < 255 && pos[i] == m -> pos[i] = target :: else fi; m = 0; i++)
        :: else -> break
        od;
        STEP(i = 0);
#elif defined(FLOOR_AFTER_OVERWRITE)
        STEP(tail = target; ring_a[head % RING] = head + 1; ring_b[head % RING] = head + 1);
        STEP(floor = target);
#else
#ifdef NO_WRITER_FENCE
        STEP(ring_a[head % RING] = head + 1);
#endif
        STEP(assert(floor <= target && target <= head); floor = target);
        /* PN_CRASH("evict:floor") */
#endif
        scan();
        /* PN_CRASH("evict:tail") */
        STEP(target = 0)
        /* fence(release): pairs with the reader's between its copy and its load of floor */
    :: else
    fi;
    STEP(assert(head + 1 - tail <= RING); assert(woken == head);        /* I1 I6 */
        ring_a[head % RING] = head + 1);
    /* PN_CRASH("commit:room") */
    STEP(ring_b[head % RING] = head + 1;
        if :: msk = 0 :: msk = 1
#if NR > 1
        :: msk = 2 :: msk = 3
#endif
        fi);
    /* PN_CRASH("commit:entry") */
    STEP(due[0] = due[0] | (msk & 1 -> BIT(head) : 0);
#if NR > 1
        due[1] = due[1] | (msk & 2 -> BIT(head) : 0);
#endif
        head++);
    /* PN_CRASH("commit:after-head") */
    do
    :: i < NR ->
        if
        :: msk & BIT(i) -> interest(head - 1)
        :: else
        fi;
        STEP(i++)
    :: else -> break
    od;
    STEP(woken = head; i = 0; msk = 0);
    /* PN_CRASH("commit:after-woken") */
    atomic { lock = FREE; goto next };
    /* PN_CRASH("commit:unlocked") */
#if KILLS
died:
    atomic { if :: lock == me -> lock = DIED :: else fi };
#endif
over:
    atomic { n = 0; i = 0; m = 0; msk = 0; target = 0 }
}

/* It delivers what is at p, if that is due.  Nothing may be delivered that a Gap stands for. */
#define DELIVER(a, b) \
    assert(a == p + 1 && b == p + 1);                                   /* I3 */ \
    assert(!((got[r] | lost[r]) & BIT(p)));                             /* I4 I10 */ \
    got[r] = got[r] | (due[r] & BIT(p)); p++

#define GAP(to) \
    assert(p < to && to <= head);                                       /* I10 */ \
    assert(!((got[r] | lost[r]) & RANGE(p, to))); \
    lost[r] = lost[r] | RANGE(p, to); p = to

proctype Reader(byte r)
{
    byte p, h, f, a, b;
    bool two;
#if PAGES > 1
    byte a2, b2;
#endif
look:
end_blocked:
    atomic { want[r] > p -> f = from[r] };
    atomic {
#ifndef FROM_IGNORED
        if
        :: f > p -> assert(!(due[r] & RANGE(p, f) & ~(got[r] | lost[r]))); p = f        /* I5 */
        :: else
        fi;
#endif
        f = 0
    };
    atomic { h = head };
    /* PN_CRASH("read:head") */
    do
    :: p < h ->
#ifdef VALIDATE_BEFORE_COPY
        atomic { f = floor };
#endif
        atomic { a = ring_a[p % RING] };
#ifdef NO_READER_FENCE
        atomic { f = floor };
#endif
        atomic { b = ring_b[p % RING] };
#if PAGES > 1
        if
        :: p + 1 < h ->
            atomic { a2 = ring_a[(p + 1) % RING] };
            atomic { b2 = ring_b[(p + 1) % RING]; two = 1 }
        :: true
        fi;
#endif
        /* PN_CRASH("copy:ring") */
        /* fence(acquire): pairs with the writer's between floor and the ring */
#if !defined(VALIDATE_BEFORE_COPY) && !defined(NO_READER_FENCE) && !defined(NO_VALIDATION)
        atomic { f = floor };
#endif
        atomic {
            if
            :: f > p -> GAP(f); two = 0
            :: else -> DELIVER(a, b)
            fi;
            f = 0; a = 0; b = 0
        };
#if PAGES > 1
        if
        :: two ->
            atomic { pos[r] = p };                              /* a batch of one: poll() returns */
            /* PN_CRASH("read:pos") */
            atomic { DELIVER(a2, b2); two = 0 }
        :: else
        fi;
        atomic { a2 = 0; b2 = 0 }
#endif
    :: else -> break
    od;
    atomic { pos[r] = p; h = 0; goto look }
    /* PN_CRASH("read:pos") */
}

init {
    byte i = 0;
    atomic {
        if :: kills = KILLS :: KILLS > 0 -> kills = 0 fi;
        do :: i < NR -> run Reader(i); i++ :: else -> break od;
        i = 0;
        do :: i < NW -> run Writer(1 + i); i++ :: else -> break od;
        i = 0
    };
    timeout;
    atomic {
        i = 0;
        do
        :: i < NR ->
            /* one that died with the lock may not have told: the next holder does */
            assert(lock == DIED || !(due[i] & ~(got[i] | lost[i])));    /* I10 */
            i++
        :: else -> break
        od
    }
}
