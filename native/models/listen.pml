/*
 * listen.pml - LISTEN, UNLISTEN, LISTEN again; `since` per subscription (R6); claim, release, reaping
 * and the channel index.
 *
 * THE MODEL
 *
 *  1. One slot, two channels, with PATTERN a pattern that matches both, NN notifiers with NC transactions of one entry each, to a channel chosen
 *     freely.  The entry at p lies in ring[p % RING] as 2p + channel.  Subscriptions 0 and 1 are to
 *     the channels, 2 is to the pattern.
 *  2. The slot's owner does up to NOPS transactions, each LISTEN or UNLISTEN of one of them, alone
 *     or with a NOTIFY to the same channel (of the pattern: to channel 0), at any moment: awake, with unread entries, or asleep.
 *  3. The truth about subscriptions is the slot's own list sub[] with since[]; bits[] is the index that
 *     notifiers look at.  Both change under the lock only.
 *  4. since = head at the LISTEN's commit, before the same transaction's own entries are appended.
 *     Entry e of channel c is delivered iff c, or the pattern, is subscribed now and e >= its since;
 *     once, by whichever.
 *  5. LISTEN and UNLISTEN leave pos, want and from alone, except that UNLISTEN of the last channel
 *     stores pos = head | ASLEEP (the slot then pins nothing).  A fresh slot starts there too.
 *  6. A notification is owed to a listener from its commit on by each subscription that it had then;
 *     a debt ends with that one's UNLISTEN.  Delivered must be what is owed: never more
 *     (I11), and at the end never less (I8).
 *  7. LIVES > 1: the owner leaves (or, with LKILLS, dies at any step, also holding the lock) and the
 *     slot is claimed again.  The liveness byte is taken before the slot is published
 *     and given up when the slot is freed, both under the lock.  A dead slot is
 *     reaped by a process that needs it or its room.  EOWNERDEAD: the index is built again from the
 *     lists.
 *  8. Coarser than handshake.pml: from and want are one step, un-sleep and signal are one step, a tail
 *     scan is one step.  Notifiers are not killed here.
 *  9. OWNERS=2: two processes want the one slot; a slot whose byte is held is not taken.
 *
 * ASSERTED: I1 I2 I3 I4 I6 I8 I11 I13, and "index == lists" (after recovery and at the end).
 *
 * BROKEN VARIANTS: DELIVER_IF_LISTENING_NOW POS_HEAD_AT_RELISTEN SINCE_AFTER_OWN SINCE_UNLOCKED
 * KEEP_RECORD_AT_UNLISTEN LAST_UNLISTEN_ASLEEP_AT_POS BYTES_AFTER_UNLOCK STALE_LIST_AT_CLAIM
 * BYTES_AFTER_RELEASE NO_REBUILD; with PATTERN: NOT_MATCHED CHANNEL_HIDES_PATTERN SINCE_OF_ANY
 */
#ifndef NN
#define NN 2
#endif
#ifndef NC
#define NC 2
#endif
#ifndef NOPS
#define NOPS 3
#endif
#ifndef RING
#define RING 2
#endif
#ifndef LIVES
#define LIVES 1
#endif
#ifndef LKILLS
#define LKILLS 0
#endif
#ifndef OWNERS
#define OWNERS 1
#endif

#ifdef PATTERN
#define SUBS 3
#define ANY_BIT (bits[0] || bits[1] || bits[2])
#define LISTS (bits[2] == (used && sub[2]))
#define DUE (due[0] | due[1] | due[2])
#define OWED_BY(s) (sub[s] && p >= since[s])
#ifdef NOT_MATCHED
#define HEARD(c) bits[c]
#else
#define HEARD(c) (bits[c] || bits[2])
#endif
#ifdef CHANNEL_HIDES_PATTERN
#define OWED(c) (sub[c] -> p >= since[c] : OWED_BY(2))
#elif defined(SINCE_OF_ANY)
#define OWED(c) ((sub[c] || sub[2]) && (p >= since[c] || p >= since[2]))
#else
#define OWED(c) (OWED_BY(c) || OWED_BY(2))
#endif
#else
#define SUBS 2
#define ANY_BIT (bits[0] || bits[1])
#define LISTS 1
#define DUE (due[0] | due[1])
#define HEARD(c) bits[c]
#define OWED(c) (sub[c] && p >= since[c])
#endif
#define CHANNEL(s) ((s) & 1)    /* of the pattern: 0 */

#define ASLEEP 128
#define P(x) ((x) & 127)
#define MAX(a, b) ((a) > (b) -> (a) : (b))
#define BIT(n) (1 << (n))
#define FREE 0
#define DIED 100
#define OWNER 50

byte lock, head, tail, woken;
byte ring[RING];
byte pos, want, from;           /* the slot */
bool efd, used, byte_held;
bool bits[SUBS];                /* index: channel or pattern -> this slot */
bool sub[SUBS];                 /* the slot's own list */
byte since[SUBS];

bool alive;                     /* ghosts */
bool listening[SUBS];
byte due[SUBS], got;            /* sets of positions: owed by each, delivered */
byte lkills;

#if LKILLS
#define STEP(...) if :: atomic { __VA_ARGS__ } \
    :: atomic { me >= OWNER && lkills > 0 -> lkills--; goto died } fi
#else
#define STEP(...) atomic { __VA_ARGS__ }
#endif
#define INDEX_IS_TRUE (bits[0] == (used && sub[0]) && bits[1] == (used && sub[1]) && LISTS)
#define EFFECTIVE \
    (!used -> head : (!(pos & ASLEEP) -> pos : (want > P(pos) -> MAX(P(pos), from) : head)))

/* make room for one entry; jumps to nospace or room */
inline make_room()
{
    STEP(if :: head + 1 - tail <= RING -> goto room
        :: else -> if :: EFFECTIVE < head && !byte_held -> skip :: else -> goto scan fi fi);
    reap();
scan:
    /* PN_CRASH("tail:scanned") */
    STEP(assert(tail <= EFFECTIVE || !alive); tail = EFFECTIVE;         /* I1 I2 */
        if :: head + 1 - tail <= RING -> goto room :: else -> goto nospace fi);
    /* PN_CRASH("tail:stored") */
}

inline clear_bits()
{
    bits[0] = 0; bits[1] = 0
#ifdef PATTERN
    ; bits[2] = 0
#endif
}

inline owe(s)
{
    if :: listening[s] && alive -> due[s] = due[s] | BIT(head) :: else fi
}

inline forget_due(left)
{
    due[0] = left; due[1] = 0
#ifdef PATTERN
    ; due[2] = 0
#endif
}

inline reap()
{
    /* PN_CRASH("reap:begin") */
    STEP(assert(!alive); clear_bits());
    /* PN_CRASH("reap:bits") */
    STEP(used = 0; efd = 0)
    /* PN_CRASH("reap:freed") */
}

inline append(c)
{
    STEP(assert(woken == head); assert(head + 1 - tail <= RING); ring[head % RING] = 2 * head + c);     /* I6 I1 */
    /* PN_CRASH("commit:entry") */
    /* PN_CRASH("commit:before-head") */
    STEP(owe(c);
#ifdef PATTERN
        owe(2);
#endif
        head++);
    /* PN_CRASH("commit:after-head") */
    STEP(if
        :: HEARD(c) ->
            if :: (pos & ASLEEP) && want <= P(pos) -> from = woken :: else fi;
            /* PN_CRASH("commit:from") */
            want = head
            /* PN_CRASH("commit:want") */
        :: else
        fi);
    STEP(if
        :: HEARD(c) && (pos & ASLEEP) -> pos = MAX(P(pos), from); efd = 1
            /* PN_CRASH("commit:unslept") */
        :: else
        fi);
    /* PN_CRASH("commit:before-woken") */
    STEP(woken = head)
    /* PN_CRASH("commit:after-woken") */
}

inline recover()
{
    /* PN_CRASH("recover:begin") */
#ifndef NO_REBUILD
    STEP(bits[0] = used && sub[0]);
    STEP(bits[1] = used && sub[1]);
#ifdef PATTERN
    STEP(bits[2] = used && sub[2]);
#endif
#endif
    /* PN_CRASH("recover:index") */
    STEP(assert(INDEX_IS_TRUE);
        if
        :: woken < head ->
            if :: (pos & ASLEEP) && want <= P(pos) -> from = woken :: else fi;
            want = head;
            if :: pos & ASLEEP -> pos = MAX(P(pos), from); efd = 1 :: else fi;
            woken = head
        :: else
        fi)
    /* PN_CRASH("recover:consistent") */
}

proctype Notifier(byte me)
{
    byte n, c;
get_lock:
    if
    :: atomic {
        n < NC && (lock == FREE || lock == DIED) -> c = (lock == DIED); lock = me;
        if :: c -> c = 0 :: else -> goto choose fi
       }
    :: atomic { n == NC -> goto over }
    fi;
    recover();
choose:
    /* PN_CRASH("lock:acquired") */
    atomic { if :: c = 0 :: c = 1 fi };
    make_room();
room:
    append(c);
nospace:
    atomic { assert(lock == me); lock = FREE; c = 0; n++; goto get_lock };      /* I7 */
    /* PN_CRASH("commit:unlocked") */
died:
over:
    atomic { n = 0; c = 0 }
}

proctype Owner(byte me)
{
    byte p, h, w, c, ops, life;
    bool own, unl, mine;

claim:
    atomic {
        lock == FREE || lock == DIED ->
        c = (lock == DIED); lock = me;
        if :: ops = 0 :: ops = NOPS fi;
        if :: LIVES == 1 && LKILLS == 0 -> ops = NOPS :: else fi;
        if :: c -> c = 0 :: else -> goto claim_slot fi
    };
    recover();
claim_slot:
    STEP(if :: !used -> goto claim_bytes :: used && byte_held -> lock = FREE; goto over :: else fi);
    reap();
claim_bytes:
    STEP(
#ifndef STALE_LIST_AT_CLAIM
        sub[0] = 0; sub[1] = 0;
#ifdef PATTERN
        sub[2] = 0; listening[2] = 0;
#endif
#endif
        efd = 0; listening[0] = 0; listening[1] = 0; forget_due(0); got = 0; mine = 1);
#ifndef BYTES_AFTER_UNLOCK
    STEP(byte_held = 1);
#endif
    /* PN_CRASH("claim:bytes") */
    STEP(pos = head | ASLEEP);
    STEP(used = 1; alive = 1);
    /* PN_CRASH("claim:published") */
    STEP(assert(lock == me); lock = FREE);
#ifdef BYTES_AFTER_UNLOCK
    STEP(byte_held = 1);
#endif

idle:
end_idle:
    if
    :: atomic { efd -> goto drain }
    :: atomic { !(pos & ASLEEP) -> p = pos; goto read }
    :: atomic { ops > 0 -> ops--; goto transaction }
    :: atomic { ops == 0 && life + 1 < LIVES -> goto release }
#if LKILLS
    :: atomic { lkills > 0 -> lkills--; goto died }
#endif
    fi;

/* ---- poll() */
drain:
    STEP(efd = 0);
    /* PN_CRASH("wake:drained") */
    STEP(p = pos; if :: p & ASLEEP -> p = P(p) :: else -> goto read fi);
    STEP(if :: want > p -> goto rewake :: else -> p = 0; goto idle fi);
read:
    STEP(h = head; if :: p == h -> h = 0; goto sleep :: else fi);
    /* PN_CRASH("read:head") */
read_entry:
    STEP(w = ring[p % RING];
        assert(w / 2 == p);                                             /* I3 */
#ifdef DELIVER_IF_LISTENING_NOW
        if :: sub[w & 1] ->
#else
        if :: OWED(w & 1) ->
#endif
            assert(!(got & BIT(p)));                                    /* I4 */
            assert(DUE & BIT(p));                                       /* I11 */
            got = got | BIT(p)
        :: else
        fi;
        w = 0; p++;
        if :: p < h -> goto read_entry :: else -> h = 0 fi);
    /* PN_CRASH("read:copied") */
    STEP(assert(!(pos & ASLEEP) && tail <= pos); pos = p; p = 0; goto idle);     /* I2 */
    /* PN_CRASH("read:pos") */
sleep:
    STEP(pos = p | ASLEEP);
    /* PN_CRASH("sleep:asleep") */
    STEP(if :: want > p -> goto rewake :: else -> p = 0; goto idle fi);
rewake:
    STEP(if :: pos == (p | ASLEEP) -> pos = MAX(p, from) :: else fi);
    /* PN_CRASH("sleep:rewoken") */
    STEP(p = pos; assert(!(p & ASLEEP)); goto read);

/* ---- LISTEN c, UNLISTEN c, or LISTEN c with NOTIFY c */
transaction:
    atomic {
        if :: c = 0 :: c = 1
#ifdef PATTERN
        :: c = 2
#endif
        fi;
        if :: unl = 0; own = 0 :: unl = 0; own = 1 :: unl = 1; own = 0 fi;
#ifdef SINCE_UNLOCKED
        w = head
#endif
    };
    atomic {
        lock == FREE || lock == DIED -> h = (lock == DIED); lock = me;
        if :: h -> h = 0 :: else -> goto locked fi
    };
    recover();
locked:
    /* PN_CRASH("lock:acquired") */
    atomic { if :: unl -> goto unlisten :: own -> skip :: else -> goto room fi };
    make_room();
    /* the transaction with its own NOTIFY does not fit: QueueFull, nothing was applied */
room:
    /* PN_CRASH("commit:room") */
    STEP(if :: sub[c] -> goto listened :: else fi);             /* LISTEN twice changes nothing */
    /* PN_CRASH("listen:entry") */
#ifdef SINCE_UNLOCKED
    STEP(since[c] = w);
#else
    STEP(since[c] = head);
#endif
    STEP(sub[c] = 1; listening[c] = 1
#ifdef POS_HEAD_AT_RELISTEN
        ; pos = head | (pos & ASLEEP)
#endif
        );
    /* PN_CRASH("listen:sub") */
    STEP(bits[c] = 1);
    /* PN_CRASH("listen:bit") */
listened:
    atomic { if :: own -> skip :: else -> goto nospace fi };
    append(CHANNEL(c));
#ifdef SINCE_AFTER_OWN
    STEP(since[c] = head);
#endif
    goto nospace;
unlisten:
    STEP(bits[c] = 0);
    /* PN_CRASH("unlisten:bit") */
    STEP(
#ifndef KEEP_RECORD_AT_UNLISTEN
        sub[c] = 0;
#endif
        listening[c] = 0; due[c] = due[c] & got);
    /* PN_CRASH("unlisten:sub") */
    STEP(if
        :: !ANY_BIT ->
#ifdef LAST_UNLISTEN_ASLEEP_AT_POS
            pos = pos | ASLEEP
#else
            pos = head | ASLEEP
#endif
        :: else
        fi);
nospace:
    STEP(assert(lock == me); lock = FREE; c = 0; own = 0; unl = 0; w = 0; goto idle);   /* I7 */

/* ---- close(), and the next owner of the slot */
release:
    atomic {
        lock == FREE || lock == DIED -> h = (lock == DIED); lock = me;
        if :: h -> h = 0 :: else -> goto release_bits fi
    };
    recover();
release_bits:
    STEP(clear_bits(); forget_due(got); alive = 0);
    /* PN_CRASH("release:bits") */
#ifndef BYTES_AFTER_RELEASE
    STEP(byte_held = 0);
#endif
    STEP(used = 0; efd = 0; mine = 0);
    /* PN_CRASH("release:freed") */
    STEP(assert(lock == me); lock = FREE);
#ifdef BYTES_AFTER_RELEASE
    STEP(byte_held = 0);
#endif
died:
    atomic {
        if :: lock == me -> lock = DIED :: else fi;
        if :: mine -> alive = 0; forget_due(got); byte_held = 0; mine = 0 :: else fi;
        p = 0; h = 0; w = 0; c = 0; own = 0; unl = 0; ops = 0; life++;
        if :: life < LIVES -> goto claim :: else fi
    };
over:
    atomic { ops = 0; life = 0; c = 0 }
}

init {
    atomic {
        byte i = 1;
        if :: lkills = LKILLS :: lkills = 0 fi;
        do :: i <= NN -> run Notifier(i); i++ :: else -> break od;
        i = 0;
        do :: i < OWNERS -> run Owner(OWNER + i); i++ :: else -> break od;
        i = 0
    };
    timeout;
    atomic {
        assert(DUE == got);                                             /* I8 */
        assert(lock == DIED || INDEX_IS_TRUE);
        assert(!alive || EFFECTIVE == head)                             /* I13 */
    }
}
