/*
 * chain.pml - the chain of signals (wakeup/send.c 3): a notifier in a stream signals the first
 *             listeners itself, each of which passes the signal on to others.
 *
 * THE MODEL
 *
 *  1. NL listeners are processes with one slot each, and asleep.  NN notifiers commit once; which
 *     sleepers the commit interests is chosen freely.  A commit (under the lock) makes them awake and
 *     owed; CHAIN of them it signals afterwards, the others it leaves in `deferred`.
 *  2. A signal: is the slot claimed, and by which process?  If it is passed on: is it still owed?
 *     Then the proof that the liveness byte is that process's, the flag, and the signal, a step each.
 *     One that was refused does not count, and the sender takes another from `deferred`.
 *  3. The handler runs beside the listener and its close(), at any time after the signal.  It looks
 *     whether the slot is its process's still, takes the flag, and then passes on: it takes what is
 *     owed from `deferred`, until it has signalled CHAIN of them.
 *  4. CLOSES listeners close at any step: the connection leaves the handler's table, and waits for a
 *     handler that is under way, which would take the flag of the slot's next owner; the slot is
 *     freed under the lock, then its byte.  From the first of these steps on the handler passes
 *     nothing on for this slot, so close() does: a notifier that counts this slot has found it in its
 *     commit, that is before the slot was freed, and so what it deferred stood there before that.
 *  5. OWNERS (0 or 1): another process claims a slot that was freed, and sleeps.  The chain signals it
 *     only if a commit made it awake.
 *  6. LACKS handlers find no descriptor when they pass on: they put back what they have taken, and
 *     leave all to a thread of theirs, by a flag and their latch; it may give a descriptor up.
 *     QUITS of these threads close their consumer at any step, while the connection stays: its latch
 *     goes when no handler has it any more, and with it what woke no thread yet.
 *  7. DEATHS (0 or 1) processes are killed between any two steps.  A process that watched it takes
 *     over, as watch.pml has it: it reaps, and signals every slot that is owed a signal, also
 *     those that the chain has left out.
 *  8. No process commits afterwards, and no timer ticks.
 *
 * ASSERTED at the end: each listener that lives, has a slot, and was made awake, was told.
 *
 * PASS_BEFORE_BYTE (not broken): close() passes on as soon as the slot is free.
 *
 * BROKEN VARIANTS: NO_PASS_AT_CLOSE PASS_BEFORE_SLOT (before the slot is freed) HIDE_LAST (the
 * connection leaves the handler's table when its slot is free) NO_SECOND_LOOK (whether it is owed)
 * NOT_LEFT (to the thread) LATCH_FIRST (before the flag that says why) NO_LOOK_AT_QUIT (for what
 * was left) QUIT_EARLY (it looks while a handler may still have the latch) NO_TAKEOVER (what is owed
 * is not signalled)
 */
#ifndef NL
#define NL 3
#endif
#ifndef NN
#define NN 1
#endif
#ifndef CHAIN
#define CHAIN 1
#endif
#ifndef CLOSES
#define CLOSES 1
#endif
#ifndef OWNERS
#define OWNERS 0
#endif
#ifndef LACKS
#define LACKS 0
#endif
#ifndef QUITS
#define QUITS 0
#endif
#ifndef DEATHS
#define DEATHS 0
#endif

#define BIT(n) (1 << (n))
#define STEP(...) atomic { __VA_ARGS__ }
#define LATER NL /* the process that claims a slot that was freed */
#define NP (NL + 1)
#define NOTIFIER(i) (NP + (i))
#if DEATHS > 0
#define MORTAL { skip;
#define UNLESS_KILLED(p) } unless { dead[p] }
#define IS_DEAD(p) dead[p]
#define WATCHES(j) (used[j] && listed[owner[j]] && !dead[owner[j]])
#else
#define MORTAL
#define UNLESS_KILLED(p)
#define IS_DEAD(p) false
#endif

byte owed, deferred, asleep = BIT(NL) - 1;
byte owner[NL];
bool used[NL] = 1, held[NL] = 1, flag[NL]; /* of slots */
bool listed[NP] = 1, pending[NP], busy[NP], told[NP]; /* of processes */
byte closes = CLOSES, owners = OWNERS;
byte taken = NL; /* the slot of LATER */
#if LACKS > 0
byte lacks = LACKS, quits = QUITS;
bool left[NP], latch[NP];
#endif
#if DEATHS > 0
byte deaths = DEATHS, gone; /* processes that died and were not taken over */
bool dead[NP + NN];
#endif

/* The lowest of the set `from` that is in it; NL: none. */
inline lowest(from)
{
    k = 0;
    do
    :: k < NL && !(from & BIT(k)) -> k++
    :: else -> break
    od
}

/* To slot j; `sent` counts it.  `passed`: it is owed, or not signalled. */
inline signal(j, passed)
{
    if
    :: atomic { used[j] -> ok = 1; to = owner[j] }
    :: atomic { else -> ok = 0 }
    fi;
#ifndef NO_SECOND_LOOK
    if
    :: atomic { passed -> ok = ok && (owed & BIT(j)) != 0 }
    :: atomic { else -> skip }
    fi;
#endif
    STEP(ok = ok && held[j] && owner[j] == to);
    if
    :: atomic { ok && used[j] -> flag[j] = 1 }
    :: atomic { else -> skip }
    fi;
    STEP(
        if
        :: ok ->
            assert(!passed || to != LATER || !(asleep & BIT(j)));
            pending[to] = 1;
            sent++
        :: else -> skip
        fi;
        ok = 0; to = 0)
    /* PN_CRASH("signal:sent") */
}

/* pn_procsignal_pass_on(seg, sent), up to `most` */
inline pass_on(most)
{
    do
    :: atomic { sent >= most -> break }
    :: atomic {
        sent < most ->
        lowest(deferred);
        if :: k == NL -> break :: else -> deferred = deferred & ~BIT(k) fi
       }
       /* PN_CRASH("chain:claimed") */
       if
       :: atomic { !(owed & BIT(k)) -> skip }
       :: atomic { else -> skip }
          signal(k, true)
       fi
    od;
    STEP(sent = 0; k = 0)
}

proctype Notifier(byte p)
{
    byte k, i, sent, head, msk, to;
    bool ok;

    MORTAL
    atomic {                                            /* the commit, under the lock */
        i = 0;
        do
        :: i < NL ->
            if
            :: used[i] && (asleep & BIT(i)) ->
                if
                :: asleep = asleep & ~BIT(i); owed = owed | BIT(i);
                    if
                    :: sent < CHAIN -> head = head | BIT(i); sent++
                    :: else -> deferred = deferred | BIT(i); msk = 1
                    fi
                :: skip                                 /* it is not interested */
                fi
            :: else -> skip
            fi;
            i++
        :: else -> break
        od;
        sent = 0; i = 0
    }
    /* PN_CRASH("commit:unlocked") */
    do
    :: atomic { head != 0 -> lowest(head); head = head & ~BIT(k); i = k }
       signal(i, false)
    :: atomic { head == 0 -> i = 0; break }
    od;
    if
    :: atomic { msk -> skip }
       pass_on(CHAIN)
    :: atomic { else -> skip }
    fi
    UNLESS_KILLED(p)
}

proctype Handler(byte p)
{
    byte k, sent, to, me;
    bool ok;

    MORTAL
end:
    do
    :: atomic {
        pending[p] -> pending[p] = 0; busy[p] = listed[p];
        me = (p == LATER -> taken : p)
       }
       if
       :: atomic { !busy[p] || !used[me] || owner[me] != p -> busy[p] = 0; me = 0; goto end }
       :: atomic { else -> skip }
       fi;
       if
       :: atomic { !flag[me] -> busy[p] = 0; me = 0; goto end }
       :: atomic { else -> flag[me] = 0 }
       fi;
       STEP(if :: used[me] && owner[me] == p -> owed = owed & ~BIT(me) :: else -> skip fi);
       /* PN_CRASH("handler:owed-cleared") */
       STEP(told[p] = 1; me = 0);
#if LACKS > 0
       if
       :: atomic {
           lacks > 0 && deferred != 0 ->
           lacks--; lowest(deferred); deferred = deferred & ~BIT(k)
          }
          STEP(deferred = deferred | BIT(k); k = 0);
#ifndef NOT_LEFT
#ifdef LATCH_FIRST
          STEP(latch[p] = 1);
          STEP(left[p] = 1)
#else
          STEP(left[p] = 1);
          STEP(latch[p] = 1)
#endif
#endif
       :: pass_on(CHAIN)
       fi;
#else
       pass_on(CHAIN);
#endif
       STEP(busy[p] = 0)
    od
    UNLESS_KILLED(p)
}

#if LACKS > 0
/* It is woken by the latch, and drains it first. */
proctype Thread(byte p)
{
    byte k, sent, to;
    bool ok;

    MORTAL
end:
    do
    :: atomic { latch[p] && listed[p] -> latch[p] = 0 }
       if
       :: atomic { left[p] -> left[p] = 0 }
          pass_on(NL)
       :: atomic { else -> skip }
       fi
    :: atomic { quits > 0 && listed[p] -> quits-- }
#ifndef QUIT_EARLY
       atomic { !busy[p] -> latch[p] = 0 }
#endif
#ifndef NO_LOOK_AT_QUIT
       if
       :: atomic { left[p] -> left[p] = 0 }
          pass_on(NL)
       :: atomic { else -> skip }
       fi
#else
       skip
#endif
#ifdef QUIT_EARLY
       ;
       atomic { !busy[p] -> latch[p] = 0 }
#endif
    od
    UNLESS_KILLED(p)
}
#endif

inline hide(p)
{
    STEP(listed[p] = 0);
    atomic { !busy[p] -> skip }
}

proctype Close(byte me)
{
    byte k, sent, to;
    bool ok;

    MORTAL
end:
    atomic { closes > 0 -> closes-- }
#ifdef PASS_BEFORE_SLOT
    pass_on(CHAIN);
#endif
#ifndef HIDE_LAST
    hide(me);
#endif
    STEP(used[me] = 0; owed = owed & ~BIT(me));
    /* PN_CRASH("release:freed") */
#ifdef PASS_BEFORE_BYTE
    pass_on(CHAIN);
#endif
    STEP(held[me] = 0);
#ifdef HIDE_LAST
    hide(me);
#endif
#if !defined(NO_PASS_AT_CLOSE) && !defined(PASS_BEFORE_BYTE) && !defined(PASS_BEFORE_SLOT)
    pass_on(CHAIN)
#endif
    UNLESS_KILLED(me)
}

#if DEATHS > 0
proctype Kill()
{
    byte p, j;

end:
    atomic {
        deaths > 0 ->
        deaths--;
        do
        :: p < NP + NN - 1 -> p++
        :: p != LATER || OWNERS > 0 -> break
        od;
        dead[p] = 1;
        gone++;
        do
        :: p < NP && j < NL ->
            pending[p] = 0;
            if :: owner[j] == p -> held[j] = 0 :: else -> skip fi;
            j++
        :: else -> break
        od;
        p = 0; j = 0
    }
}

/* A process that watched the one that died takes over. */
proctype Watcher()
{
    byte k, sent, to, i, msk;
    bool ok;

end:
    do
    :: atomic {
        gone > 0 && (WATCHES(0) || WATCHES(1) || WATCHES(NL - 1)) ->
        gone--;
        do                                              /* it reaps, under the lock */
        :: i < NL ->
            if
            :: used[i] && dead[owner[i]] -> used[i] = 0; owed = owed & ~BIT(i)
            :: else -> skip
            fi;
            i++
        :: else -> break
        od;
        i = 0
       }
       /* PN_CRASH("watch:unlocked") */
#ifndef NO_TAKEOVER
       STEP(msk = owed);
       do
       :: atomic { msk != 0 -> lowest(msk); msk = msk & ~BIT(k); i = k }
          signal(i, false)
       :: atomic { msk == 0 -> i = 0; sent = 0; k = 0; break }
       od
#else
       skip
#endif
    od
}
#endif

#if OWNERS > 0
proctype Claim(byte j)
{
end:
    atomic {
        owners > 0 && !used[j] && !held[j] ->
        owners--;
        taken = j;
        owner[j] = LATER;
        used[j] = 1; held[j] = 1; flag[j] = 0;
        owed = owed & ~BIT(j); deferred = deferred & ~BIT(j);
        asleep = asleep | BIT(j)
    }
    /* PN_CRASH("claim:published") */
}
#endif

init
{
    byte i;
    atomic {
        i = 0;
        do
        :: i < NL -> owner[i] = i; i++
        :: else -> break
        od;
        i = 0;
        do
        :: i < NL + (OWNERS > 0) ->
            run Handler(i);
#if LACKS > 0
            run Thread(i);
#endif
            i++
        :: else -> break
        od;
        i = 0;
        do
        :: i < NL ->
            run Close(i);
#if OWNERS > 0
            run Claim(i);
#endif
            i++
        :: else -> break
        od;
        i = 0;
        do
        :: i < NN -> run Notifier(NOTIFIER(i)); i++
        :: else -> break
        od;
#if DEATHS > 0
        run Kill();
        run Watcher();
#endif
        i = 0
    }
end:
    atomic {
        timeout ->
        do
        :: i < NL ->
            assert(!used[i] || IS_DEAD(owner[i]) || (asleep & BIT(i)) || told[owner[i]]);
            i++
        :: else -> break
        od
    }
}
