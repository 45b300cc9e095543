/*
 * ticket.pml - on_full = block: no writer that waits for room is passed over for ever.
 *
 * block.pml shows that a writer that waits is woken.  Here it is which of them gets the room: one
 * that needs two pages could wait for ever while others take one as soon as it is free.
 *
 * THE MODEL
 *
 *  1. The ring has RING pages, `used` of them.  A reader frees one after the other, and wakes those
 *     that wait (R9).  Of NW writers number 0 commits NEED0 pages once; the others commit one page
 *     each, once or, with LIVE, again and again.
 *  2. A writer that finds no room takes a ticket: a number, larger than all before.  The tickets in
 *     their order are the queue `line`.  Room is for a writer with no valid ticket in front of its
 *     own.
 *  3. A ticket counts while it is valid.  It is made valid at each attempt of its owner, and may cease to
 *     be at any time that it does not try: EXPIRIES times if it is alive, always if it is dead.
 *     Its owner keeps the number and comes back with it.
 *  4. A writer that leaves the line, with room or without (GIVE_UP: at its deadline), wakes those
 *     behind it.
 *  5. room_seq is modelled by `armed`: set where s = room_seq is loaded, cleared for all by a wake-up.
 *  6. KILLS=1: another writer dies while it waits, its ticket in the line.  Then, and only then, the wait
 *     has to be bounded (BOUND=1), as nothing wakes those behind it.
 *
 * ASSERTED: used <= RING; that no writer waits without end (safety), and with LIVE (acceptance cycles
 * through the wait of writer 0, weak fairness) that writer 0 comes to its end whatever the others do.
 *
 * BROKEN VARIANTS: NO_TICKET NO_PASS_ON DEAD_TICKET_COUNTS LAST_COMES_FIRST
 */
#ifndef NW
#define NW 3
#endif
#ifndef RING
#define RING 2
#endif
#ifndef NEED0
#define NEED0 2
#endif
#ifndef EXPIRIES
#define EXPIRIES 0
#endif
#ifndef KILLS
#define KILLS 0
#endif
#ifndef BOUND
#define BOUND 0
#endif
#ifndef GIVE_UP
#define GIVE_UP 0
#endif

byte lock, used;
bool waiters;
byte line[NW], queued;                                          /* writer + 1, in their order */
bool valid[NW], armed[NW], dead[NW];
byte kills = KILLS, expiries = EXPIRIES;

#define WAKE_ALL armed[0] = 0; armed[1] = 0; armed[NW - 1] = 0

/* Is there a valid ticket in front of mine?  All, if I have none. */
inline look()
{
    d_step {
        behind = 0; i = 0;
        do
        :: i < queued && line[i] != me + 1 ->
            if :: valid[line[i] - 1] -> behind = 1 :: else fi;
            i++
        :: else -> break
        od;
#ifdef LAST_COMES_FIRST
        behind = (queued > 0 && line[queued - 1] != me + 1 && valid[line[queued - 1] - 1]);
#endif
#ifdef NO_TICKET
        behind = 0;
#endif
        i = 0
    }
}

inline take_ticket()
{
    d_step {
        i = 0;
        do :: i < queued && line[i] != me + 1 -> i++ :: else -> break od;
        if :: i == queued -> line[i] = me + 1; queued++ :: else fi;
        valid[me] = 1; i = 0
    }
}

inline leave_line()
{
    d_step {
        i = 0;
        do :: i < queued && line[i] != me + 1 -> i++ :: else -> break od;
        pass_on = (i < queued);
        do
        :: i + 1 < queued -> line[i] = line[i + 1]; i++
        :: i + 1 == queued -> line[i] = 0; queued--; break
        :: else -> break
        od;
        valid[me] = 0; i = 0
    }
}

/* One attempt; `done` if it took the room, else it is armed and may wait. */
inline attempt(need)
{
    atomic { lock == 0 -> lock = 1 + me };
    look();
    if
    :: used + need <= RING && !behind -> done = 1
    :: else ->
        take_ticket();
        /* PN_CRASH("block:ticket") */
        atomic { armed[me] = 1 };
        atomic { waiters = 1 };
        /* PN_CRASH("block:armed") */
        /* fence(seq_cst), and the second scan */
        look();
        atomic { if :: used + need <= RING && !behind -> done = 1 :: else fi }
    fi;
    atomic { behind = 0; if :: done -> used = used + need; assert(used <= RING) :: else fi };
    if :: done -> leave_line() :: else fi;
    atomic { lock = 0 };
    /* PN_CRASH("commit:unlocked") */
    pass_it_on()
}

inline pass_it_on()
{
#ifndef NO_PASS_ON
    if
    :: atomic { pass_on -> waiters = 0; pass_on = 0 };
        atomic { WAKE_ALL }
        /* PN_CRASH("block:passed-on") */
    :: atomic { else -> pass_on = 0 }
    fi
#else
    pass_on = 0
#endif
}

#if BOUND
#define WOKEN (!armed[me] || timeout)
#else
#define WOKEN (!armed[me])
#endif

proctype Watched(byte me)
{
    byte i;
    bool behind, done, pass_on;
    do
    :: !done ->
        attempt(NEED0);
        if
        :: !done ->
#ifdef LIVE
accept_waits:
#endif
            WOKEN
        :: else
        fi
    :: else -> break
    od
}

proctype Other(byte me)
{
    byte i;
    bool behind, done, pass_on;
next:
    do
    :: !done ->
        attempt(1);
        if
        :: atomic { done }
        :: atomic { !done && WOKEN }
#if KILLS
        :: atomic { !done && kills > 0 -> kills--; dead[me] = 1; goto died }
#endif
#if GIVE_UP
        :: atomic { !done && lock == 0 -> lock = 1 + me };
            leave_line();
            atomic { lock = 0; armed[me] = 0 };
            pass_it_on();
            done = 1
#endif
        fi
    :: else -> break
    od;
    done = 0;
#ifdef LIVE
    goto next;
#endif
#if KILLS
died:
#endif
    skip
}

proctype Clock()
{
end:
    do
    :: atomic { expiries > 0 && valid[0] && armed[0] -> valid[0] = 0; expiries-- }
    :: atomic { expiries > 0 && valid[1] && armed[1] -> valid[1] = 0; expiries-- }
#ifndef DEAD_TICKET_COUNTS
    :: atomic { dead[1] && valid[1] -> valid[1] = 0 }
    :: atomic { dead[NW - 1] && valid[NW - 1] -> valid[NW - 1] = 0 }
#endif
    od
}

proctype Reader()
{
end:
    do
    :: atomic { used > 0 -> used-- };
        /* PN_CRASH("read:pos") */
        if
        :: atomic { waiters -> waiters = 0 };
            atomic { WAKE_ALL }
            /* PN_CRASH("block:woken") */
        :: atomic { else }
        fi
    od
}

init {
    atomic {
        byte i = 1;
        run Reader();
        run Clock();
        run Watched(0);
        do :: i < NW -> run Other(i); i++ :: else -> break od;
        i = 0
    }
}
