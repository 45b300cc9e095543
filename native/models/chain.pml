/*
 * chain.pml - the chain of signals (wakeup/send.c 3): a notifier in a stream signals the first
 *             listeners itself, each of which passes the signal on to others.
 *
 * THE MODEL
 *
 *  1. NL listeners are processes with one slot each, and asleep.  NN notifiers commit once; which
 *     sleepers the commit interests is chosen freely.  A commit (under the lock) makes them awake and
 *     owed; CHAIN of them it signals afterwards, the others it leaves in `deferred`.
 *  2. A signal: is the slot claimed?  Then the proof that its liveness byte is held, the flag, and
 *     the signal, a step each.  One that was refused does not count, and the sender takes another from
 *     `deferred`.
 *  3. The handler runs beside the listener and its close(), at any time after the signal.  It takes the
 *     flag of a slot that is its process's still, and then passes on: it takes what is owed from
 *     `deferred`, until it has signalled CHAIN of them.
 *  4. CLOSES listeners close at any step: the slot is freed under the lock, then its byte, then the
 *     connection leaves the handler's table, and waits for a handler that is under way.  From the
 *     first of these steps on the handler passes nothing on for this slot, so close() does: a notifier
 *     that counts this slot has found it in its commit, that is before the slot was freed, and so
 *     what it deferred stood there before that.
 *  5. No process commits afterwards, and no timer ticks.  Nothing dies, and descriptors are plenty.
 *
 * ASSERTED at the end: each listener that has a slot, and was made awake, was told.
 *
 * PASS_BEFORE_BYTE (not broken): close() passes on as soon as the slot is free.
 *
 * BROKEN VARIANTS: NO_PASS_AT_CLOSE PASS_BEFORE_SLOT (before the slot is freed)
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

#define BIT(n) (1 << (n))
#define STEP(...) atomic { __VA_ARGS__ }

byte owed, deferred, asleep = BIT(NL) - 1;
bool used[NL] = 1, held[NL] = 1, listed[NL] = 1;
bool flag[NL], pending[NL], busy[NL], told[NL];
byte closes = CLOSES;

/* The lowest of the set `from` that is in it; NL: none. */
inline lowest(from)
{
    k = 0;
    do
    :: k < NL && !(from & BIT(k)) -> k++
    :: else -> break
    od
}

/* To slot j; `sent` counts it. */
inline signal(j)
{
    if
    :: atomic { used[j] -> ok = 1 }
    :: atomic { else -> ok = 0 }
    fi;
    STEP(ok = ok && held[j]);
    if
    :: atomic { ok && used[j] -> flag[j] = 1 }
    :: atomic { else -> skip }
    fi;
    STEP(if :: ok -> pending[j] = 1; sent++ :: else -> skip fi; ok = 0)
    /* PN_CRASH("signal:sent") */
}

/* pn_procsignal_pass_on(seg, sent) */
inline pass_on()
{
    do
    :: atomic { sent >= CHAIN -> break }
    :: atomic {
        sent < CHAIN ->
        lowest(deferred);
        if :: k == NL -> break :: else -> deferred = deferred & ~BIT(k) fi
       }
       /* PN_CRASH("chain:claimed") */
       if
       :: atomic { !(owed & BIT(k)) -> skip }
       :: atomic { else -> skip }
          signal(k)
       fi
    od;
    STEP(sent = 0; k = 0)
}

proctype Notifier()
{
    byte k, i, sent, head, msk;
    bool ok;

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
       signal(i)
    :: atomic { head == 0 -> i = 0; break }
    od;
    if
    :: atomic { msk -> skip }
       pass_on()
    :: atomic { else -> skip }
    fi
}

proctype Handler(byte me)
{
    byte k, sent;
    bool ok;

end:
    do
    :: atomic { pending[me] -> pending[me] = 0; busy[me] = listed[me] }
       if
       :: atomic { !busy[me] || !used[me] || !flag[me] -> busy[me] = 0; goto end }
       :: atomic { else -> flag[me] = 0 }
       fi;
       STEP(owed = owed & ~BIT(me));
       /* PN_CRASH("handler:owed-cleared") */
       STEP(told[me] = 1);
       pass_on();
       STEP(busy[me] = 0)
    od
}

proctype Close(byte me)
{
    byte k, sent;
    bool ok;

end:
    atomic { closes > 0 -> closes-- }
#ifdef PASS_BEFORE_SLOT
    pass_on();
#endif
    STEP(used[me] = 0; owed = owed & ~BIT(me));
    /* PN_CRASH("release:freed") */
#ifdef PASS_BEFORE_BYTE
    pass_on();
#endif
    STEP(held[me] = 0);
    STEP(listed[me] = 0);
    atomic { !busy[me] -> skip }
#if !defined(NO_PASS_AT_CLOSE) && !defined(PASS_BEFORE_BYTE) && !defined(PASS_BEFORE_SLOT)
    pass_on()
#endif
}

init
{
    byte i;
    atomic {
        i = 0;
        do
        :: i < NL -> run Handler(i); run Close(i); i++
        :: else -> break
        od;
        i = 0;
        do
        :: i < NN -> run Notifier(); i++
        :: else -> break
        od;
        i = 0
    }
end:
    atomic {
        timeout ->
        do
        :: i < NL ->
            assert(!used[i] || (asleep & BIT(i)) || told[i]);
            i++
        :: else -> break
        od
    }
}
