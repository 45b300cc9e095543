/*
 * handshake.pml - sleep and wake, the lazy tail, commit, crash, recovery, watchdog, reaping.
 *
 * THE MODEL
 *
 *  1. A position is a small number and an entry is one position long.  The entry at position p lies
 *     in ring[p % RING] and holds its own position, so that reading a reclaimed or unfinished place
 *     is an assertion (I3).  ENT entries make one transaction.
 *  2. NL listeners have one slot each: pos (with the bit ASLEEP), want, from, owed, the reason flag
 *     and an eventfd.  NN notifiers commit NC transactions each; which listeners a transaction
 *     interests is chosen freely (none included).
 *  3. One shared access is one step: each STEP below is one load, one store or one
 *     read-modify-write of a word that another process may write, with the local work that follows
 *     it.  Words that only the lock holder writes (head, tail, woken, want, from) are read by the
 *     lock holder inside the step that needs them.  Memory is sequentially consistent here; tso.pml
 *     has the store buffers.
 *  4. The lock is a robust mutex: FREE, DIED (EOWNERDEAD for the next one) or its owner.  A try-lock
 *     of a held lock fails.
 *  5. head = end is the commit point.  woken is the word that recovery looks at: everything below it
 *     has been announced.  `applied` stands for chan_seq and the redo records.
 *  6. Quiet: want <= pos, asleep or awake.  A quiet slot pins nothing, whatever its pos.  A process
 *     that wakes a slot sets pos = max(pos, from), by CAS, and only when want > pos; a listener that is
 *     awake reads from there, and only when want > pos.
 *  7. The tail is scanned only when there is no room; a dead slot that pins is reaped on the way
 *     (its death may be noticed late: L6).  No room after that: the commit fails (QueueFull) and
 *     its transaction is gone, which is no loss.
 *  8. KILLS kills may fall between any two steps of a notifier and of the watchdog, in a commit, in
 *     recovery, in reaping, before a signal.  LKILLS kills may fall between any two steps of a
 *     listener, and while it is blocked.  A killed watchdog is replaced: it stands for "the timer
 *     (or the ring of neighbours) of some living process".
 *  9. Listeners have no timer of their own (an epoll user never enters our sleep): what the watchdog
 *     does must be enough.  It fires EARLY times at any moment, and once (WATCHDOG=1) when nothing
 *     else can move; killed in that round it fires again.  After that round everything due must have
 *     been got: delivery within one period of the timer after the last activity.
 *     With -DLIVE it fires for ever and <>[] all_got is checked under weak fairness instead.
 * 10. The end: due == got for every living listener, then the lock is taken and a scan must carry the
 *     tail to head (I13).
 *
 * 11. UNSLEEP_ALWAYS (not broken): the lock holder wakes an interested slot that is ASLEEP without
 *     looking whether want > pos still.  A listener that woke itself, read everything and slept again
 *     is then woken for nothing; its pos is head, so nothing reclaimed can be read.
 *     So says this model, in which nothing but a notifier wakes a listener; watch.pml knows better
 *     (unsleep-always-told), and the code looks.
 * 12. HANDLER (not broken): a signal is pending until the listener's handler runs, beside the
 *     listener and at any time; the handler takes the flag, clears owed, and only then writes the
 *     eventfd.  So a listener that is awake and busy is not signalled again and again.  Without it
 *     the handler runs at once, in the sender's step, and leaves owed alone, which is legal, too.
 *
 * ASSERTED: I1 I2 I3 I4 I5 I6 I7 I8 (KILLS=0, WATCHDOG=0) I9 I13.
 *
 * A comment PN_CRASH(label) stands where the C source has that crash point: after the transition
 * before it, before the transition behind it.
 *
 * BROKEN VARIANTS (-D): NO_FROM NO_RECHECK LISTENER_ORDER_SWAPPED NOTIFIER_ORDER_SWAPPED
 * DRAIN_AFTER_LOOK FROM_IF_NOT_QUIET FROM_AFTER_WANT WAKE_ON_TIMEOUT WATCHDOG=0 (with kills)
 * WATCHDOG_NO_TRYLOCK NO_OWED OWED_CLEARED_AFTER_LOOK OWED_AFTER_UNSLEEP WOKEN_BEFORE_UNSLEEP
 * AWAKE_READS_FROM_POS AWAKE_NOT_QUIET RECOVER_WOKEN_FIRST RECOVER_FROM_HEAD HEAD_BEFORE_ENTRY NO_REAP NO_APPLY_REDO POS_BEFORE_COPY
 * with HANDLER also HANDLER_CLEARS_LAST (owed after the eventfd).
 */
#ifndef NL
#define NL 1
#endif
#ifndef NN
#define NN 2
#endif
#ifndef NC
#define NC 2
#endif
#ifndef ENT
#define ENT 1
#endif
#ifndef RING
#define RING 2
#endif
#ifndef KILLS
#define KILLS 0
#endif
#ifndef LKILLS
#define LKILLS 0
#endif
#ifndef WATCHDOG
#define WATCHDOG 0
#endif
#ifndef EARLY
#define EARLY 0
#endif

#define ASLEEP 128
#define P(x) ((x) & 127)
#define MAX(a, b) ((a) > (b) -> (a) : (b))
#define FREE 0
#define DIED 100
#define DOG (NN + 1)
#define BIT(n) (1 << (n))
#ifdef HEAD_BEFORE_ENTRY
#define TX (head - ENT)
#else
#define TX head                 /* where the transaction's first entry goes */
#endif

#ifdef UNSLEEP_ALWAYS
#define WANTED(w, p) 1
#else
#define WANTED(w, p) ((w) > (p))
#endif
#ifdef NO_FROM
#define START(p, f) (p)
#else
#define START(p, f) MAX(p, f)
#endif

byte lock;                      /* FREE, DIED or the owner's number */
byte head, tail, woken, applied;
byte ring[RING];
byte pos[NL];                   /* W: owner; lock holder only by CAS from ASLEEP */
byte want[NL], from[NL];        /* W: lock holder */
bool owed[NL];                  /* W: lock holder sets, owner and its handler clear */
bool flag[NL];                  /* reason flag: sender sets, handler clears */
bool efd[NL];                   /* the eventfd is readable */
#ifdef HANDLER
bool pending[NL];               /* SIGUSR1 is pending; dropped with the process */
#define DELIVER(i) pending[i] = !dead[i]
#else
#define DELIVER(i) if :: flag[i] -> flag[i] = 0; efd[i] = 1 :: else fi
#endif
bool used[NL];                  /* the slot is claimed */
bool bits[NL];                  /* the channel index names this slot */

bool dead[NL];                  /* the kernel's word on the listener */
byte due[NL], got[NL];          /* ghosts: sets of positions */
byte kills = KILLS, lkills;

#if KILLS
#define STEP(...) if :: atomic { __VA_ARGS__ } :: atomic { kills > 0 -> kills--; goto died } fi
#else
#define STEP(...) atomic { __VA_ARGS__ }
#endif
#if LKILLS
#define LSTEP(...) if :: atomic { __VA_ARGS__ } :: atomic { lkills > 0 -> lkills--; goto died } fi
#else
#define LSTEP(...) atomic { __VA_ARGS__ }
#endif

/* I5: from a to b nothing that is due and unread is skipped */
#define SKIPS_NOTHING(l, a, b) \
    ((due[l] & ~got[l] & (BIT(b) - 1) & ~(BIT(a) - 1)) == 0)
#define PINS(l, t) (used[l] && !dead[l] && \
    want[l] > P(pos[l]) && MAX(P(pos[l]), from[l]) < (t))
#if NL == 1
#define PINNED(t) PINS(0, t)
#define ALL_GOT (dead[0] || due[0] == got[0])
#else
#define PINNED(t) (PINS(0, t) || PINS(1, t))
#define ALL_GOT ((dead[0] || due[0] == got[0]) && (dead[1] || due[1] == got[1]))
#endif

/* i to the next slot of the set m at or after i, NL when there is none */
#if NL == 1
#define SEEK(m) if :: i == 0 && !((m) & 1) -> i = 1 :: else fi
#else
#define SEEK(m) \
    if :: i == 0 && !((m) & 1) -> i = 1 :: else fi; \
    if :: i == 1 && !((m) & 2) -> i = 2 :: else fi
#endif
#if NL == 1
#define EVERY_SLOT used[0]
#else
#define EVERY_SLOT (used[0] | (used[1] << 1))
#endif

/* ------------------------------------------------------------------ parts of the lock's holder */

/* The tail, by a process that is short of room (queue.c).  Leaves at tail_stored. */
inline scan_tail()
{
    STEP(p = pos[i];
        w = (!used[i] -> 255 : (want[i] > P(p) -> MAX(P(p), from[i]) : 255));
        p = 0;
        if
        :: w < head && dead[i] -> goto reap
        :: w < head && dead[i] && n < NC -> skip         /* its death is not to be seen yet (L6) */
        :: else -> skip
        fi;
        t = (w < t -> w : t); w = 0; i++;
        if :: i < NL -> goto scan :: else -> i = 0; goto scanned fi);
reap:
#ifdef NO_REAP
    STEP(t = (w < t -> w : t); w = 0; i++;
        if :: i < NL -> goto scan :: else -> i = 0; goto scanned fi);
#else
    /* PN_CRASH("reap:begin") */
    STEP(w = 0; bits[i] = 0);
    /* PN_CRASH("reap:bits") */
    STEP(used[i] = 0; owed[i] = 0; i++;
        /* PN_CRASH("reap:freed") */
        if :: i < NL -> goto scan :: else -> i = 0; goto scanned fi);
#endif
scanned:
    /* PN_CRASH("tail:scanned") */
    STEP(assert(tail <= t && t <= head);                        /* I1 */
        assert(!PINNED(t));                                     /* I2 */
        tail = t; t = 0;
        /* PN_CRASH("tail:stored") */
        goto tail_stored)
}

/* After EOWNERDEAD (lock.c).  Leaves at signalling, with the lock free and `col` to be signalled. */
inline recover()
{
    /* PN_CRASH("recover:begin") */
    /* the index is built again from the slots' own lists (listen.pml): */
    STEP(if :: woken == head -> i = NL; goto r_consistent :: else fi;
#ifdef NO_APPLY_REDO
        applied = applied
#else
        applied = head
#endif
        ; i = 0; SEEK(EVERY_SLOT));
    /* PN_CRASH("recover:index") */
    /* PN_CRASH("recover:applied") */
#ifdef RECOVER_WOKEN_FIRST
    STEP(t = woken; woken = head);
#endif
r_publish:
    if
    :: atomic { i == NL -> i = 0; SEEK(EVERY_SLOT); goto r_unsleep }
    :: atomic { else -> skip }
    fi;
    STEP(p = pos[i];
        if
        :: want[i] <= P(p) -> p = 0; skip
        :: else -> p = 0; goto r_want
        fi);
#ifdef RECOVER_FROM_HEAD
    STEP(from[i] = head);
#elif defined(RECOVER_WOKEN_FIRST)
    STEP(from[i] = t);
#else
    STEP(from[i] = woken);
#endif
    /* PN_CRASH("recover:from") */
r_want:
    STEP(want[i] = head; i++; SEEK(EVERY_SLOT));
    /* PN_CRASH("recover:want") */
    goto r_publish;
r_unsleep:
    /* fence(seq_cst) */
    if
    :: atomic { i == NL -> goto r_woken }
    :: atomic { else -> skip }
    fi;
    STEP(p = pos[i];
        if
        :: (p & ASLEEP) && WANTED(want[i], P(p)) -> skip
        :: else -> p = 0; i++; SEEK(EVERY_SLOT); goto r_unsleep
        fi);
#ifndef OWED_AFTER_UNSLEEP
    STEP(owed[i] = 1);
#endif
    STEP(if
        :: pos[i] == p ->
            assert(SKIPS_NOTHING(i, P(p), START(P(p), from[i])));       /* I5 */
            pos[i] = START(P(p), from[i]); col = col | BIT(i)
        :: else
        fi;
        p = 0; i++; SEEK(EVERY_SLOT));
    /* PN_CRASH("recover:unslept") */
    goto r_unsleep;
r_woken:
    /* PN_CRASH("recover:before-woken") */
#ifndef RECOVER_WOKEN_FIRST
    STEP(woken = head);
#else
    STEP(t = 0);
#endif
    /* PN_CRASH("recover:woken") */
r_consistent:
    /* PN_CRASH("recover:consistent") */
    /* PN_CRASH("lock:before-unlock") */
    STEP(assert(lock == me); lock = FREE; i = 0; SEEK(col); goto signalling)    /* I7 */
}

/* flag, then pidfd_send_signal, to the set `col` (send.c).  Without HANDLER the handler runs
 * in the last step: it takes the flag and writes the eventfd. */
inline signal_collected()
{
    if
    :: atomic { i == NL -> i = 0; col = 0; goto signalled }
    :: atomic { else -> skip }
    fi;
    STEP(flag[i] = 1);
    /* PN_CRASH("signal:flag") */
    STEP(DELIVER(i); i++; SEEK(col));
    /* PN_CRASH("signal:sent") */
    goto signalling
}

/* ------------------------------------------------------------------ a notifier */

#ifdef AWAKE_NOT_QUIET
#define IS_QUIET(p, w) (((p) & ASLEEP) && (w) <= P(p))
#else
#define IS_QUIET(p, w) ((w) <= P(p))
#endif
#ifndef FROM_AFTER_WANT
#define QUIET_NEXT goto c_from
#else
#define QUIET_NEXT goto c_want_first
#endif
#ifdef FROM_IF_NOT_QUIET
#define NOT_QUIET_NEXT goto c_from
#else
#define NOT_QUIET_NEXT goto c_want
#endif

proctype Notifier(byte me)
{
    byte n, i, p, w, t, msk, col;

get_lock:
    if
    :: atomic {
        n < NC && lock == FREE -> lock = me;
        if
        :: msk = 0
        :: msk = (bits[0] -> 1 : 0)
#if NL > 1
        :: msk = (bits[1] -> 2 : 0)
        :: msk = (bits[0] -> 1 : 0) | (bits[1] -> 2 : 0)
#endif
        fi;
        if :: head + ENT - tail > RING -> t = head; goto scan :: else -> goto c_entry fi
       }
    :: atomic { n < NC && lock == DIED -> lock = me; goto n_recover }
    :: atomic { n == NC -> goto over }
    fi;
n_recover:
    /* PN_CRASH("lock:acquired") */
    recover();
signalling:
    signal_collected();
signalled:
    goto get_lock;

scan:
    /* PN_CRASH("lock:acquired") */
    scan_tail();
tail_stored:
    STEP(if :: head + ENT - tail > RING -> goto c_unlock :: else -> goto c_entry fi);
    /* PN_CRASH("commit:room") */

c_entry:
    STEP(assert(woken == head && applied == head);                      /* I6 */
        assert(head + ENT - tail <= RING);                              /* I1 */
#ifdef HEAD_BEFORE_ENTRY
        goto c_head);
c_late_entry:
#else
        skip);
#endif
#if ENT == 1
    STEP(ring[TX % RING] = TX);
    /* PN_CRASH("commit:entry") */
#else
    STEP(ring[TX % RING] = TX);
    /* PN_CRASH("commit:entry") */
    STEP(ring[(TX + 1) % RING] = TX + 1);
    /* PN_CRASH("commit:entry") */
#endif
#ifdef HEAD_BEFORE_ENTRY
    goto c_apply;
#endif
c_head:
    /* PN_CRASH("commit:before-head") */
    STEP(i = 0;
        do
        :: i < NL ->
            if
            :: msk & BIT(i) ->
                due[i] = due[i] | BIT(head);
                if :: ENT == 2 -> due[i] = due[i] | BIT(head + 1) :: else fi
            :: else
            fi;
            i++
        :: else -> break
        od;
        head = head + ENT; i = 0);
    /* PN_CRASH("commit:after-head") */
#ifdef HEAD_BEFORE_ENTRY
    goto c_late_entry;
c_apply:
#endif
    STEP(applied = head; i = 0; SEEK(msk));
    /* PN_CRASH("commit:applied") */

c_publish:
    if
    :: atomic { i == NL -> i = 0; SEEK(msk); goto c_unsleep }
    :: atomic { else -> skip }
    fi;
    STEP(p = pos[i];
        if
        :: IS_QUIET(p, want[i]) -> p = 0; QUIET_NEXT
        :: else -> p = 0; NOT_QUIET_NEXT
        fi);
#ifdef FROM_AFTER_WANT
c_want_first:
    STEP(want[i] = head);
#endif
c_from:
    STEP(from[i] = woken);
    /* PN_CRASH("commit:from") */
c_want:
#ifdef NOTIFIER_ORDER_SWAPPED
    atomic { i++; SEEK(msk) };
#else
    STEP(want[i] = head; i++; SEEK(msk));
    /* PN_CRASH("commit:want") */
#endif
    goto c_publish;

c_unsleep:
    /* fence(seq_cst), one for all slots; pairs with the exchange of the listener going to sleep */
#ifdef WOKEN_BEFORE_UNSLEEP
    STEP(woken = head);
#endif
c_unsleep_next:
    if
    :: atomic { i == NL -> goto c_woken }
    :: atomic { else -> skip }
    fi;
#ifdef NOTIFIER_ORDER_SWAPPED
    STEP(p = pos[i]);
    STEP(want[i] = head;
#else
    STEP(p = pos[i];
#endif
        if
        :: (p & ASLEEP) && WANTED(want[i], P(p)) -> skip
        :: !(p & ASLEEP) && owed[i] ->                  /* older than 10 ms: collect again */
            p = 0; col = col | BIT(i); i++; SEEK(msk); goto c_unsleep_next
        :: !((p & ASLEEP) && WANTED(want[i], P(p))) -> p = 0; i++; SEEK(msk); goto c_unsleep_next
        fi);
#ifndef OWED_AFTER_UNSLEEP
    STEP(owed[i] = 1);
    /* PN_CRASH("commit:owed") */
#endif
    STEP(if
        :: pos[i] == p ->
            assert(SKIPS_NOTHING(i, P(p), START(P(p), from[i])));       /* I5 */
            pos[i] = START(P(p), from[i]); col = col | BIT(i)
        :: else
        fi;
        p = 0; i++; SEEK(msk));
    /* PN_CRASH("commit:unslept") */
#ifdef OWED_AFTER_UNSLEEP
    STEP(if :: col & 1 -> owed[0] = 1 :: else fi);
#endif
    goto c_unsleep_next;

c_woken:
    /* PN_CRASH("commit:before-woken") */
    STEP(woken = head);
    /* PN_CRASH("commit:after-woken") */
c_unlock:
    /* PN_CRASH("lock:before-unlock") */
    STEP(assert(lock == me); lock = FREE; n++; msk = 0; i = 0; SEEK(col); goto signalling);   /* I7 */
    /* PN_CRASH("commit:unlocked") */

died:
    if :: lock == me -> lock = DIED :: else fi;
over:
    atomic { n = 0; i = 0; p = 0; w = 0; t = 0; msk = 0; col = 0 }
}

/* ------------------------------------------------------------------ a listener */

proctype Listener(byte l)
{
    byte p, h, w;

read:
    LSTEP(if :: want[l] > p -> skip :: else -> goto sleep fi);
#ifndef AWAKE_READS_FROM_POS
    LSTEP(w = from[l]; p = START(p, w); w = 0);
#endif
    LSTEP(h = head; if :: p == h -> h = 0; goto sleep :: else fi);
    /* PN_CRASH("read:head") */
#ifdef POS_BEFORE_COPY
    LSTEP(pos[l] = h);
#endif
read_entry:
    LSTEP(assert(ring[p % RING] == p);                          /* I3 */
        if
        :: due[l] & BIT(p) ->
            assert(!(got[l] & BIT(p)));                         /* I4 */
            got[l] = got[l] | BIT(p)
        :: else
        fi;
        p++;
        if :: p < h -> goto read_entry :: else -> h = 0 fi);
    /* PN_CRASH("read:copied") */
#ifndef POS_BEFORE_COPY
    LSTEP(assert(!(pos[l] & ASLEEP)); pos[l] = p);
    /* PN_CRASH("read:pos") */
#endif
    goto read;

sleep:
#ifdef LISTENER_ORDER_SWAPPED
    LSTEP(w = want[l]);
    LSTEP(pos[l] = p | ASLEEP);
    LSTEP(if :: w > p -> w = 0 :: else -> w = 0; goto blocked fi);
#else
    LSTEP(pos[l] = p | ASLEEP);                                 /* exchange, seq_cst */
    /* PN_CRASH("sleep:asleep") */
#ifdef NO_RECHECK
    goto blocked;
#endif
    /* PN_CRASH("sleep:fenced") */
    LSTEP(if :: want[l] > p -> skip :: else -> goto blocked fi);
#endif
    LSTEP(w = from[l]);
    LSTEP(if
        :: pos[l] == (p | ASLEEP) ->
            assert(SKIPS_NOTHING(l, p, START(p, w)));           /* I5 */
            pos[l] = START(p, w)
        :: else
        fi; w = 0);
    /* PN_CRASH("sleep:rewoken") */
    LSTEP(p = pos[l]; assert(!(p & ASLEEP)));
    goto read;

blocked:
end_blocked:
    p = 0;
end_blocked_in_the_kernel:
#ifdef WAKE_ON_TIMEOUT
    if
    :: atomic { efd[l] -> skip }
    :: atomic { else -> if :: pos[l] & ASLEEP -> pos[l] = P(pos[l]) :: else fi; p = pos[l]; goto read }
    fi;
#endif
#ifdef DRAIN_AFTER_LOOK
    LSTEP(efd[l] -> skip);
    LSTEP(p = pos[l]; if :: p & ASLEEP -> skip :: else -> goto drained fi);
    LSTEP(if :: want[l] > P(p) -> goto drained :: else -> goto drained fi);
drained:
    LSTEP(efd[l] = 0);
    LSTEP(owed[l] = 0; if :: p & ASLEEP -> goto blocked :: else -> goto read fi);
#else
    LSTEP(efd[l] -> efd[l] = 0);
    /* PN_CRASH("wake:drained") */
#ifndef OWED_CLEARED_AFTER_LOOK
    LSTEP(owed[l] = 0);                                         /* fetch_and, seq_cst */
    /* PN_CRASH("wake:owed-cleared") */
#endif
    LSTEP(p = pos[l]; if :: p & ASLEEP -> p = P(p) :: else -> goto awake fi);
    LSTEP(if :: want[l] > p -> skip :: else -> goto quiet fi);
    LSTEP(w = from[l]);
    LSTEP(if
        :: pos[l] == (p | ASLEEP) ->
            assert(SKIPS_NOTHING(l, p, START(p, w)));           /* I5 */
            pos[l] = START(p, w)
        :: else
        fi; w = 0);
    /* PN_CRASH("wake:unslept") */
    LSTEP(p = pos[l]; assert(!(p & ASLEEP)));
awake:
#ifdef OWED_CLEARED_AFTER_LOOK
    LSTEP(owed[l] = 0);
#endif
    goto read;
quiet:
#ifdef OWED_CLEARED_AFTER_LOOK
    LSTEP(owed[l] = 0);
#endif
    goto blocked;
#endif

died:
    atomic { dead[l] = 1; p = 0; h = 0; w = 0 }
}

#ifdef HANDLER
/* ------------------------------------------------------------------ its handler, in any thread */

proctype Handler(byte l)
{
none:
end_none:
    atomic { pending[l] -> pending[l] = 0; if :: flag[l] -> flag[l] = 0 :: else -> goto none fi };
#ifdef HANDLER_CLEARS_LAST
    atomic { efd[l] = 1 };
    atomic { owed[l] = 0 };
#else
    atomic { owed[l] = 0 };                                     /* fetch_and, seq_cst */
    /* PN_CRASH("handler:owed-cleared") */
    atomic { efd[l] = 1 };
#endif
    goto none
}
#endif

/* ------------------------------------------------------------------ the watchdog, and the end */

proctype Watchdog()
{
    byte n, i, p, w, t, col, early = EARLY;
    byte me = DOG;

idle:
end_idle:
    if
#ifdef LIVE
    :: atomic { WATCHDOG -> skip }
#else
    :: atomic { early > 0 -> early-- }
    :: atomic { timeout -> if :: n >= WATCHDOG -> goto final :: else -> n++ fi }
#endif
    fi;
    /* try-lock: EOWNERDEAD means recovery, held means leave it alone */
#ifndef WATCHDOG_NO_TRYLOCK
    STEP(if :: lock == DIED -> lock = me; goto w_recover :: else -> goto w_owed fi);
w_recover:
    recover();
signalling:
    signal_collected();
#endif
    /* then signal again whatever is owed, lock or not */
signalled:
w_owed:
#ifdef NO_OWED
    goto idle;
#else
    STEP(if :: owed[i] -> skip :: else -> i++; if :: i == NL -> i = 0; goto idle :: else -> goto w_owed fi fi);
    STEP(flag[i] = 1);
    /* PN_CRASH("signal:flag") */
    STEP(DELIVER(i);
        /* PN_CRASH("signal:sent") */
        i++; if :: i == NL -> i = 0; goto idle :: else -> goto w_owed fi);
#endif

died:
    atomic {
        if :: lock == me -> lock = DIED :: else fi;
        if :: n > 0 && n <= WATCHDOG -> n-- :: else fi;         /* the round did not happen */
        i = 0; p = 0; w = 0; t = 0; col = 0; goto idle
    }

final:
    atomic {
        assert(ALL_GOT);                                        /* I8 I9 */
#ifndef WATCHDOG_NO_TRYLOCK
        assert(lock == FREE || WATCHDOG == 0);
#endif
        if :: lock != FREE -> goto over :: else fi;
        kills = 0; lock = me; n = NC; t = head; i = 0
    }
scan:
    scan_tail();
tail_stored:
    assert(tail == head);                                       /* I13 */
over:
    skip
}

init {
    atomic {
        byte l = 0;
        if :: lkills = LKILLS :: lkills = 0 fi;
        do
        :: l < NL -> used[l] = 1; bits[l] = 1; run Listener(l);
#ifdef HANDLER
            run Handler(l);
#endif
            l++
        :: else -> break
        od;
        l = 1;
        do
        :: l <= NN -> run Notifier(l); l++
        :: else -> break
        od;
        l = 0;
        run Watchdog()
    }
}

#ifdef LIVE
ltl delivered { <> [] (ALL_GOT) }
#endif
