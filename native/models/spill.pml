/*
 * spill.pml - max_queue_pages beyond the ring: pages in files (R8), and with EVICT=1 on_full =
 * drop-slowest together with them (R7; evict.pml has it alone).
 *
 * THE MODEL
 *
 *  1. NW writers commit NC entries each, of one page and two words.  The queue has MAXQ pages, the ring
 *     RING of them; a file has FP pages.  A file is an inode, and a page is in the inode into which it
 *     was written.  Every entry interests each of the NR readers; sleeping is left out.
 *  2. Tail advance: tail; mem_tail = max(mem_tail, tail); then the files below the tail are removed (all
 *     of them when tail == mem_tail), each before first_file is stored.
 *  3. Admission: head + 1 <= tail + MAXQ, else QueueFull, or with EVICT=1 floor is raised first.  And
 *     head + 1 <= mem_tail + RING, else pages are moved: end_file, the file, the page, mem_tail; then
 *     fence(release), and only then the ring is overwritten.
 *  4. NOSPC=1: writing a page may fail, once or more.  A new file is removed again, the transaction is
 *     gone (QueueFull), nothing else has changed.
 *  5. Reader at p: load mem_tail, floor.  p < floor: Gap.  p < mem_tail: the file; its descriptor stays
 *     open for the next page, and is opened again if the page is not in it, since a number is used again
 *     when its file was removed with pages to come.  Not to be had: load floor again.  Else copy word by
 *     word; fence(acquire); load mem_tail and floor; p below one of them: the copy is void.
 *  6. KILLS writers die at any step; the successor puts mem_tail < tail right, and finds files that are
 *     made, half written, or written and not counted: it writes the same again.
 *
 * ASSERTED: I1 I3 I4 I10 I14 I19, that nothing is lost without a Gap and, after a tail advance with
 * no reader behind it, that no file is left.
 *
 * BROKEN VARIANTS: NO_VALIDATION NO_READER_FENCE MEM_TAIL_EARLY MEM_TAIL_LATE UNLINK_BELOW_MEM_TAIL
 * NO_REOPEN END_FILE_LATE FIRST_FILE_EARLY NOSPC_MOVES NO_REPAIR, and with EVICT=1 NO_FLOOR_RECHECK.
 * FLOOR_NOT_VALIDATED is not broken: an eviction has raised mem_tail, too, before anything is
 * overwritten, so a look at mem_tail again learns of it when there is no file.
 */
#ifndef NW
#define NW 1
#endif
#ifndef NR
#define NR 1
#endif
#ifndef NC
#define NC 4
#endif
#ifndef RING
#define RING 1
#endif
#ifndef MAXQ
#define MAXQ 3
#endif
#ifndef FP
#define FP 2
#endif
#ifndef KILLS
#define KILLS 0
#endif
#ifndef NOSPC
#define NOSPC 0
#endif
#ifndef EVICT
#define EVICT 0
#endif

#define POSITIONS (NW * NC)
#define FILES (POSITIONS / FP + 1)
#define FREE 0
#define DIED 100
#define MAX(a, b) ((a) > (b) -> (a) : (b))
#define BIT(n) (1 << (n))
#define RANGE(from, to) (BIT(to) - BIT(from))
#if KILLS
#define STEP(...) if :: atomic { __VA_ARGS__ } :: atomic { kills > 0 -> kills--; goto died } fi
#else
#define STEP(...) atomic { __VA_ARGS__ }
#endif

byte lock, head, tail, mem_tail, floor, first_file, end_file;
byte ring_a[RING], ring_b[RING];                                /* position + 1 */
byte inode[FILES + 1];                                          /* 0: there is no such file */
byte page_in[POSITIONS + 1];                                    /* the inode that has the page */
byte inodes;
byte pos[NR], got[NR], lost[NR];
byte kills = KILLS, done;

#define START(i) (MAX(pos[i], floor))

/* Under the lock. */
inline advance_tail()
{
    STEP(m = head; i = 0);
    do
    :: i < NR -> STEP(if :: pos[i] < head && START(i) < m -> m = START(i) :: else fi; i++)
    :: else -> break
    od;
    STEP(assert(tail <= m && m <= head); tail = m; i = 0);              /* I1 */
    /* PN_CRASH("tail:stored") */
    STEP(mem_tail = MAX(mem_tail, tail); assert(mem_tail <= head);      /* I19 */
#ifdef UNLINK_BELOW_MEM_TAIL
        m = end_file
#else
        m = (tail == mem_tail || tail / FP > end_file -> end_file : tail / FP)
#endif
        );
    do
    :: first_file < m ->
#ifdef FIRST_FILE_EARLY
        STEP(first_file++);
        STEP(inode[first_file - 1] = 0)
#else
        STEP(inode[first_file] = 0);
        /* PN_CRASH("spill:removed") */
        STEP(first_file++)
#endif
    :: else -> break
    od;
    m = 0
}

/* One page; leaves at queue_full when there is no space. */
inline move_page()
{
    if
    :: first_file >= end_file ->
        STEP(end_file = mem_tail / FP);
        STEP(first_file = mem_tail / FP)
    :: else
    fi;
#ifndef END_FILE_LATE
    STEP(end_file = MAX(end_file, mem_tail / FP + 1));
    /* PN_CRASH("spill:file") */
#endif
#ifdef MEM_TAIL_EARLY
    STEP(mem_tail++);
#define MOVED (mem_tail - 1)
#else
#define MOVED mem_tail
#endif
    STEP(made = !inode[MOVED / FP];
        if :: made -> inodes++; inode[MOVED / FP] = inodes :: else fi);
    /* PN_CRASH("datafile:created") */
#if NOSPC
    if
    :: skip
    :: STEP(if :: made -> inode[MOVED / FP] = 0 :: else fi; made = 0);
#ifdef NOSPC_MOVES
        STEP(mem_tail++);
#endif
        goto queue_full
    fi;
#endif
    STEP(page_in[MOVED] = inode[MOVED / FP]; made = 0);
    /* PN_CRASH("spill:written") */
#ifdef END_FILE_LATE
    STEP(end_file = MAX(end_file, mem_tail / FP + 1));
#endif
#ifdef MEM_TAIL_LATE
    STEP(ring_a[head % RING] = head + 1);
#endif
#ifndef MEM_TAIL_EARLY
    STEP(mem_tail++; assert(tail <= mem_tail && mem_tail <= head))      /* I19 */
    /* PN_CRASH("spill:mem-tail") */
#endif
}

inline take_lock()
{
    atomic {
        lock == FREE || lock == DIED ->
        if :: lock == DIED -> m = 1 :: else fi;
        lock = me
    };
    /* PN_CRASH("lock:acquired") */
    if
    :: m == 1 ->
        atomic { m = 0 };
        /* PN_CRASH("recover:begin") */
#ifndef NO_REPAIR
        STEP(mem_tail = MAX(mem_tail, tail));
#endif
    :: else
    fi;
    assert(tail <= mem_tail && mem_tail <= head && floor <= head)       /* I19 */
}

proctype Writer(byte me)
{
    byte n, i, m;
    bool made;
next:
    atomic { if :: n == NC -> goto over :: else -> n++ fi };
    take_lock();
    if
    :: head + 1 - tail > MAXQ || head + 1 - mem_tail > RING -> advance_tail()
    :: else
    fi;
    if
    :: head + 1 - tail > MAXQ ->
#if EVICT
        STEP(floor = head + 1 - MAXQ);
        /* PN_CRASH("evict:floor") */
        advance_tail();
        /* PN_CRASH("evict:tail") */
        assert(head + 1 - tail <= MAXQ)
#else
        goto queue_full
#endif
    :: else
    fi;
    do
    :: head + 1 - mem_tail > RING -> move_page()
    :: else -> break
    od;
    /* fence(release): pairs with the reader's between its copy and its loads */
    STEP(assert(head + 1 - tail <= MAXQ && head + 1 - mem_tail <= RING);        /* I1 */
        ring_a[head % RING] = head + 1);
    STEP(ring_b[head % RING] = head + 1);
    /* PN_CRASH("commit:entry") */
    STEP(head++);
    /* PN_CRASH("commit:after-head") */
queue_full:
    atomic { lock = FREE; goto next };
    /* PN_CRASH("commit:unlocked") */
#if KILLS
died:
    atomic { if :: lock == me -> lock = DIED :: else fi };
#endif
over:
    atomic { done++; n = 0; i = 0; m = 0; made = 0 }
}

#define DELIVER \
    assert(!((got[r] | lost[r]) & BIT(p)));                             /* I4 I10 */ \
    got[r] = got[r] | BIT(p); p++; unread = 0

/* Not to be had: then it was evicted, and is in a Gap, or what was needed was removed. */
#ifdef NO_FLOOR_RECHECK
#define MISSING assert(false)
#else
#define MISSING \
    f = floor; assert(f > p); fd = 0                                    /* I14 */
#endif

/* The page at p is below mem_tail.  p moves on, or unread stays 1. */
inline read_file()
{
    if
    :: fd == 0 || fd_of != p / FP ->
open_it:
        atomic { fd = inode[p / FP]; fd_of = p / FP; again = 1 }
    :: else
    fi;
    atomic {
        if
        :: fd != 0 && page_in[p] == fd -> DELIVER; again = 0
#ifndef NO_REOPEN
        :: fd != 0 && page_in[p] != fd && !again -> goto open_it
#endif
        :: else -> MISSING; again = 0
        fi;
        f = 0
    }
}

proctype Reader(byte r)
{
    byte p, h, f, m, a, b, fd, fd_of;
    bool unread, again;
look:
end_blocked:
    atomic { head > p -> h = head };
    /* PN_CRASH("read:head") */
    do
    :: p < h ->
        atomic { m = mem_tail; unread = 1 };
        atomic {
            f = floor;
            if
            :: f > p ->
                assert(!((got[r] | lost[r]) & RANGE(p, f)));            /* I10 */
                lost[r] = lost[r] | RANGE(p, f); p = f; unread = 0
            :: else
            fi;
            f = 0
        };
        if
        :: !unread -> skip
        :: unread && p < m -> read_file()
        :: unread && p >= m ->
            atomic { a = ring_a[p % RING] };
#ifdef NO_READER_FENCE
            atomic { m = mem_tail };
#endif
            atomic { b = ring_b[p % RING] };
            /* PN_CRASH("copy:ring") */
            /* fence(acquire): pairs with the writer's between mem_tail, floor and the ring */
#if !defined(NO_VALIDATION) && !defined(NO_READER_FENCE)
            atomic { m = mem_tail };
#endif
#ifndef FLOOR_NOT_VALIDATED
            atomic { f = floor };
#endif
            atomic {
                if
                :: p >= m && p >= f -> assert(a == p + 1 && b == p + 1); DELIVER        /* I3 */
                :: else
                fi;
                f = 0; a = 0; b = 0
            }
        fi;
        atomic { m = 0; unread = 0 }
    :: else -> break
    od;
    atomic { pos[r] = p; h = 0; goto look }
    /* PN_CRASH("read:pos") */
}

/* The next to need room, when all is quiet.  It is not killed. */
proctype Last(byte me)
{
    byte i, m;
    timeout;
    atomic { kills = 0 };
    take_lock();
    advance_tail();
    atomic {
        assert(tail == head && mem_tail == head);
        i = 0;
        do :: i <= FILES -> assert(!inode[i]); i++ :: else -> break od
    };
#if KILLS
died:
#endif
    skip
}

init {
    byte i = 0;
    atomic {
        if :: kills = KILLS :: KILLS > 0 -> kills = 0 fi;
        do :: i < NR -> run Reader(i); i++ :: else -> break od;
        i = 0;
        do :: i < NW -> run Writer(1 + i); i++ :: else -> break od;
        i = 0;
        run Last(90)
    };
    done == NW;
    do
    :: i < NR -> (pos[i] == head); assert((got[i] | lost[i]) == BIT(head) - 1); i++      /* I10 */
    :: else -> break
    od
}
