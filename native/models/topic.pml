/*
 * topic.pml - topics: what is true of each message and channel, and the one store that changes it.
 *
 * THE MODEL
 *
 *  1. Topic T has the channels X and Y, and a backlog, B; topic D, for dead letters, has Z.  NM cells for messages
 *     (FREE, STAGED, LIVE; id), ND for deliveries (kind, attempts, consumer and tag in one word; message, channel,
 *     order).  Free lists, ready lists and the counts of a message's deliveries are derived.
 *  2. A delivery exists if its kind is not FREE, its message is LIVE, its order is not below its channel's `voids`,
 *     and it is the backlog's or its message has none there.
 *  3. NW workers, OPS operations each (WITH says which), under one robust lock: publish, at once or into the backlog;
 *     pump; claim; finish; requeue; time-out of any consumer's; dead letter; empty X or B; and transactions that publish and
 *     finish: under the lock held once, or prepared, and later committed or aborted.  One message is there at first.
 *  4. Every operation changes what is true by one store: LIVE, a state word, `voids`; pump (which writes a delivery for
 *     each channel before) by FREE into the backlog's.  A dead letter is two stores behind a record (topic_redo), a
 *     transaction two behind the ring's entries and head.
 *  5. dirty = 1 before the first store, 0 after the last.  The next owner of a dead one's lock applies the ring's
 *     entries and the record again, stores woken, returns what the dead had (if their death is to be seen yet, L6), and
 *     then, if it is dirty, stores FREE into whatever does not exist, and makes the lists again.
 *  6. STAGED and HELD (answered in a prepared transaction) are their owner's until commit, abort or its death.
 *     A worker that claims again may keep its old delivery in hand: another thread's.
 *  7. KILLS kills fall between any two steps, in recovery too.  When nothing can move, the lock is taken once more.
 *
 * ASSERTED whenever the lock is given back:
 *  T1  a message that was committed has for each channel one delivery, or is finished there, once; or has one in the
 *      backlog, and none else.  Nothing is lost, nothing is in two states.
 *  T2  what was not committed, or was aborted, has none.
 *  T3  attempts is how often it was claimed.
 *  T4  free lists, ready lists and counts are what the truth says; no cell leaks once the dead are reaped.
 *  T5  an answer is taken only from the consumer with the delivery, for that very claim; a prepared commit is never refused.
 *
 * BROKEN VARIANTS (-D): LIVE_FIRST KIND_FIRST DIRTY_EARLY DIRTY_LATE STALE_KEPT NO_REBUILD ATTEMPTS_LATE NO_TAG PUMP_NO_UNDO
 * PUMP_TURNS_OVER TWO_STORES REDO_VALID_FIRST REDO_CLEARED_FIRST NO_REDO RING_NO_REDO REAP_FIRST WOKEN_FIRST LIVE_BEFORE_HEAD
 * ANSWER_BEFORE_HEAD NO_CHECK HELD_TIMES_OUT HELD_KEPT STAGED_KEPT ORDER_AT_STAGE ORDER_RESTARTS VOID_SWEEPS_STAGED
 */
#ifndef NW
#define NW 2
#endif
#ifndef OPS
#define OPS 2
#endif
#ifndef NM
#define NM 2
#endif
#ifndef ND
#define ND 4
#endif
#ifndef KILLS
#define KILLS 1
#endif
#define PUBLISH 1
#define BACKLOG 2               /* and pump */
#define ANSWERS 4               /* finish, requeue */
#define TIMEOUT 8
#define DEAD 16
#define EMPTY 32
#define TX 64
#define PREPARE 128
#ifndef WITH
#define WITH 255
#endif

#define FREE 0
#define DIED 9
#define BIT(i) (1 << (i))
#define IN(s, i) (((s) & BIT(i)) != 0)
#define ADD(s, i) s = s | BIT(i)
#define DEL(s, i) s = s & ~BIT(i)
#define X 0
#define Y 1
#define B 2
#define Z 3
#define NCHAN 4
#define IDS 5
#define AT(id, c) ((id) * NCHAN + (c))
#define NONE 15

/* message states; delivery kinds */
#define STAGED 1
#define LIVE 2
#define READY 1
#define FLIGHT 2
#define HELD 3

byte lock;
bool dirty;

byte mstate[NM], mid[NM], mowner[NM];
byte kind[ND], att[ND], cons[ND], tag[ND];      /* one word */
byte dmsg[ND], ch[ND], ord[ND];
byte voids[NCHAN], nextid;
byte next[NCHAN];                               /* next order.  Derived, but never below voids */

byte freem, freed, ready;                       /* derived: sets of cells */
byte refs[NM];

bool rvalid;                                    /* topic_redo */
byte rdel, rtag, rmsg, rid;
bool head;                                      /* woken < head */
byte emsg, eid, edel, etag;                     /* the ring's entries; NONE: no such entry */

byte kills = KILLS, dead, reaped;               /* dead: the kernel's word */
byte committed[IDS];                            /* ghost: 0, 1 in T, 2 in D */
byte claims[IDS * NCHAN], gone[IDS * NCHAN];    /* ghosts */
byte opened;                                    /* ghost: ids whose fan-out has been done */

#if KILLS
#define STEP(...) if :: atomic { __VA_ARGS__ } :: atomic { me < NW && kills > 0 -> kills--; goto died } fi
#else
#define STEP(...) atomic { __VA_ARGS__ }
#endif

#define B_OF(m, d) (kind[d] != FREE && ch[d] == B && dmsg[d] == (m) && ord[d] >= voids[B])
#if ND == 5
#define IN_BACKLOG(m) (B_OF(m, 0) || B_OF(m, 1) || B_OF(m, 2) || B_OF(m, 3) || B_OF(m, 4))
#else
#define IN_BACKLOG(m) (B_OF(m, 0) || B_OF(m, 1) || B_OF(m, 2) || B_OF(m, 3))
#endif
#define VALID(d) (kind[d] != FREE && ord[d] >= voids[ch[d]])
#ifdef PUMP_NO_UNDO
#define EXISTS(d) (VALID(d) && mstate[dmsg[d]] == LIVE)
#else
#define EXISTS(d) (VALID(d) && mstate[dmsg[d]] == LIVE && (ch[d] == B || !IN_BACKLOG(dmsg[d])))
#endif
/* its cell is in use: a STAGED message's, too, whatever its order */
#ifdef VOID_SWEEPS_STAGED
#define USED(d) (EXISTS(d) || (VALID(d) && mstate[dmsg[d]] == STAGED))
#else
#define USED(d) (EXISTS(d) || (kind[d] != FREE && mstate[dmsg[d]] == STAGED))
#endif
#define HAS(m, d) (USED(d) && dmsg[d] == (m))
#if ND == 5
#define COUNT(m) (HAS(m, 0) + HAS(m, 1) + HAS(m, 2) + HAS(m, 3) + HAS(m, 4))
#else
#define COUNT(m) (HAS(m, 0) + HAS(m, 1) + HAS(m, 2) + HAS(m, 3))
#endif
#define TWO_FREE ((freed & (freed - 1)) != 0)
#define CELL (freem != 0 && nextid < IDS)
#ifdef NO_TAG
#define OURS(d, t) ((d) != NONE && (kind[d] == FLIGHT || kind[d] == HELD) && cons[d] == me && EXISTS(d))
#else
#define OURS(d, t) ((d) != NONE && (kind[d] == FLIGHT || kind[d] == HELD) && cons[d] == me && tag[d] == (t) && EXISTS(d))
#endif

/* ---- the judge, whenever the lock is free and its last owner lived */

inline judge()
{
    d_step {
        i = 0;
        do
        :: i < ND ->
            if
            :: USED(i) -> assert(!IN(freed, i));
                assert(IN(ready, i) == (kind[i] == READY && mstate[dmsg[i]] == LIVE));          /* T4 */
                if
                :: mstate[dmsg[i]] == LIVE && ch[i] != B -> assert(att[i] == claims[AT(mid[dmsg[i]], ch[i])])  /* T3 */
                :: else
                fi
            :: else -> assert(kind[i] == FREE); assert(IN(freed, i)); assert(!IN(ready, i))     /* T4 */
            fi;
            i++
        :: else -> break
        od;
        i = 0;
        do
        :: i < NM -> j = 0; n = 0;
            do :: j < ND -> n = n + (USED(j) && dmsg[j] == i); j++ :: else -> break od;
            assert((mstate[i] == FREE) == IN(freem, i));
            assert(mstate[i] == FREE || refs[i] == n);
            assert(mstate[i] != LIVE || committed[mid[i]] != 0);                                /* T2 */
            assert(mstate[i] != LIVE || n > 0);
            i++
        :: else -> break
        od;
        i = 1;
        do
        :: i < IDS ->
            k = 0; bk = 0;
            do
            :: k < NCHAN -> j = 0; n = 0;
                do
                :: j < ND -> n = n + (EXISTS(j) && mid[dmsg[j]] == i && ch[j] == k); j++
                :: else -> break
                od;
                if
                :: committed[i] == 0 -> assert(n == 0)                                          /* T2 */
                :: committed[i] == 1 && k == B -> bk = n; assert(n + IN(opened, i) == 1)        /* T1 */
                :: committed[i] == 2 && k == Z -> assert(n + gone[AT(i, k)] == 1)               /* T1 */
                :: committed[i] == 1 && (k == X || k == Y) ->
                    assert(n + gone[AT(i, k)] == IN(opened, i))                                 /* T1 */
                :: else -> assert(n == 0)
                fi;
                k++
            :: else -> break
            od;
            i++
        :: else -> break
        od;
        i = 0; j = 0; k = 0; n = 0; bk = 0
    }
}

/* ---- parts of the lock's holder */

/* FREE into what does not exist, a store each; the lists, again, in one step. */
inline rebuild()
{
#ifndef STALE_KEPT
    i = 0;
    do
    :: atomic { i < ND && (kind[i] == FREE || USED(i)) -> i++ }
    :: atomic { i < ND && kind[i] != FREE && !USED(i) -> skip };
        STEP(kind[i] = FREE; i++)
    :: atomic { i == ND -> i = 0; break }
    od;
#endif
    do
    :: atomic { i < NM && (mstate[i] != LIVE || COUNT(i) > 0) -> i++ }
    :: atomic { i < NM && mstate[i] == LIVE && COUNT(i) == 0 -> skip };
        STEP(mstate[i] = FREE; i++)
    :: atomic { i == NM -> i = 0; break }
    od;
    STEP(d_step {
        freed = 0; ready = 0; freem = 0; i = 0;
        do
        :: i < ND ->
            if :: USED(i) -> skip :: else -> ADD(freed, i) fi;
            if :: kind[i] == READY && EXISTS(i) -> ADD(ready, i) :: else fi;
            i++
        :: else -> break
        od;
        i = 0;
        do
        :: i < NM -> refs[i] = COUNT(i); if :: mstate[i] == FREE -> ADD(freem, i) :: else fi; i++
        :: else -> break
        od;
        i = 0;
        do
        :: i < NCHAN ->
#ifdef ORDER_RESTARTS
            next[i] = 1;
#else
            next[i] = voids[i];
#endif
            j = 0;
            do
            :: j < ND -> if :: USED(j) && ch[j] == i && ord[j] >= next[i] -> next[i] = ord[j] + 1 :: else fi; j++
            :: else -> break
            od;
            i++
        :: else -> break
        od;
        i = 0; j = 0
    })
}

/* The ring's entries; the place in the queue is given now: empty() was before. */
inline apply()
{
#ifndef ORDER_AT_STAGE
    i = 0;
    do
    :: atomic { i < ND && !(emsg != NONE && mstate[emsg] == STAGED && mid[emsg] == eid && kind[i] != FREE && dmsg[i] == emsg) -> i++ }
    :: atomic { i < ND && emsg != NONE && mstate[emsg] == STAGED && mid[emsg] == eid && kind[i] != FREE && dmsg[i] == emsg -> skip };
        STEP(ord[i] = next[ch[i]]; next[ch[i]] = next[ch[i]] + 1; i++)
    :: atomic { i == ND -> i = 0; break }
    od;
#endif
    STEP(if :: emsg != NONE && mstate[emsg] == STAGED && mid[emsg] == eid -> mstate[emsg] = LIVE :: else fi);
#ifdef WOKEN_FIRST
    STEP(head = 0);
#endif
    STEP(if
        :: edel != NONE && (kind[edel] == FLIGHT || kind[edel] == HELD) && tag[edel] == etag -> kind[edel] = FREE
        :: else
        fi)
}

inline apply_record()
{
    STEP(if :: mstate[rmsg] == STAGED && mid[rmsg] == rid -> mstate[rmsg] = LIVE :: else fi);
#ifdef REDO_CLEARED_FIRST
    STEP(rvalid = 0);
#endif
    STEP(if :: kind[rdel] == FLIGHT && tag[rdel] == rtag -> kind[rdel] = FREE :: else fi);
    STEP(rvalid = 0)
}

/* What the dead in `set` had; the lists are made again afterwards. */
inline reap()
{
    if :: atomic { set != 0 -> skip }; STEP(dirty = 1) :: atomic { set == 0 -> skip } fi;
    i = 0;
    do
#ifdef HELD_KEPT
    :: atomic { i < ND && kind[i] == FLIGHT && IN(set, cons[i]) -> skip };
        STEP(kind[i] = READY; i++)
    :: atomic { i < ND && !(kind[i] == FLIGHT && IN(set, cons[i])) -> i++ }
#else
    :: atomic { i < ND && (kind[i] == FLIGHT || kind[i] == HELD) && IN(set, cons[i]) -> skip };
        STEP(kind[i] = READY; i++)
    :: atomic { i < ND && !((kind[i] == FLIGHT || kind[i] == HELD) && IN(set, cons[i])) -> i++ }
#endif
    :: atomic { i == ND -> i = 0; break }
    od;
#ifndef STAGED_KEPT
    do
    :: atomic { i < NM && mstate[i] == STAGED && IN(set, mowner[i]) -> skip };
        STEP(mstate[i] = FREE; i++)
    :: atomic { i < NM && !(mstate[i] == STAGED && IN(set, mowner[i])) -> i++ }
    :: atomic { i == NM -> i = 0; break }
    od;
#endif
    STEP(reaped = reaped | set; set = 0)
}

inline recover()
{
    /* PN_CRASH("recover:begin") */
    atomic { if :: set = dead & ~reaped :: set = 0 /* L6 */ fi };
#ifdef REAP_FIRST
    reap();
#endif
#ifndef RING_NO_REDO
    if :: atomic { head -> skip }; apply() :: atomic { !head -> skip } fi;
    /* PN_CRASH("recover:applied") */
#endif
#ifdef NO_REDO
    STEP(rvalid = 0);
#else
    if :: atomic { rvalid -> skip }; apply_record() :: atomic { !rvalid -> skip } fi;
#endif
    STEP(head = 0; emsg = NONE; eid = 0; edel = NONE; etag = 0);
    /* PN_CRASH("recover:woken") */
    reap();
#ifndef NO_REBUILD
    if :: atomic { dirty -> skip }; rebuild() :: atomic { !dirty -> skip } fi
#else
    skip
#endif
    /* PN_CRASH("recover:consistent") */
}

/* A cell for a message, STAGED; and a delivery in channel c for it.  What lasts is stored last. */
inline stage()
{
    STEP(m = 0; do :: !IN(freem, m) -> m++ :: else -> break od;
        DEL(freem, m); mid[m] = nextid; nextid++; mowner[m] = me; refs[m] = 0; mstate[m] = STAGED)
    /* PN_CRASH("publish:staged") */
}

inline enqueue(c)
{
#ifdef KIND_FIRST
    STEP(d = 0; do :: !IN(freed, d) -> d++ :: else -> break od; DEL(freed, d); att[d] = 0; kind[d] = READY);
    STEP(dmsg[d] = m; ch[d] = c; ord[d] = next[c]; next[c] = next[c] + 1; refs[m]++; d = 0)
#else
    STEP(d = 0; do :: !IN(freed, d) -> d++ :: else -> break od;
        DEL(freed, d); dmsg[d] = m; ch[d] = c; ord[d] = next[c]; next[c] = next[c] + 1);
    /* PN_CRASH("publish:delivery") */
    STEP(att[d] = 0; kind[d] = READY; refs[m]++; d = 0)
    /* PN_CRASH("publish:delivery-state") */
#endif
}

#define COMMITTED(id, t) committed[id] = t
#define ANSWERED(d) gone[AT(mid[dmsg[d]], ch[d])]++

proctype Worker(byte me)
{
    byte i, j, k, n, bk;
    byte set, ops, m, d;
    byte hd = NONE, ht;             /* the delivery in hand */
    byte pm = NONE, pd = NONE, pt, hid, pc;     /* prepared */
    bool again;

next_op:
    if
    :: atomic { (ops < OPS || pm != NONE) && lock == FREE -> lock = me + 1 }
    :: atomic { (ops < OPS || pm != NONE) && lock == DIED -> lock = me + 1 };
        recover()
    :: atomic { ops == OPS && pm == NONE -> goto over }
    fi;
    /* PN_CRASH("lock:acquired") */
    atomic {
        if :: pm == NONE -> ops++ :: else fi;
        if
        :: pm != NONE -> goto end_prepared
        :: pm == NONE && (dead & ~reaped) != 0 -> set = dead & ~reaped; goto reap_them
        :: pm == NONE && (WITH & PUBLISH) && CELL && TWO_FREE -> goto publish
        :: pm == NONE && (WITH & BACKLOG) && CELL && freed != 0 -> goto publish_backlog
        :: pm == NONE && TWO_FREE -> goto pump
        :: pm == NONE && ready != 0 -> goto claim
        :: pm == NONE && (WITH & ANSWERS) && hd != NONE -> goto finish
        :: pm == NONE && (WITH & ANSWERS) && hd != NONE -> goto requeue
        :: pm == NONE && (WITH & TIMEOUT) -> goto time_out
        :: pm == NONE && (WITH & DEAD) && hd != NONE && CELL && freed != 0 -> goto dead_letter
        :: pm == NONE && (WITH & EMPTY) -> goto empty_it
        :: pm == NONE && (WITH & TX) && CELL && TWO_FREE -> goto transaction
        :: pm == NONE && (WITH & PREPARE) && CELL && freed != 0 -> goto prepare
        :: else -> goto unlock
        fi
    };

reap_them:
    reap();
    atomic { again = 1; goto done };

publish:
    STEP(dirty = 1);
    stage();
#ifdef LIVE_FIRST
    STEP(mstate[m] = LIVE; COMMITTED(mid[m], 1); ADD(opened, mid[m]));
#endif
    enqueue(X);
    enqueue(Y);
#ifndef LIVE_FIRST
    STEP(mstate[m] = LIVE; COMMITTED(mid[m], 1); ADD(opened, mid[m]));
#endif
    goto list_it;

publish_backlog:
    STEP(dirty = 1);
    stage();
    enqueue(B);
    STEP(mstate[m] = LIVE; COMMITTED(mid[m], 1));
list_it:
    /* PN_CRASH("publish:after-live") */
#ifdef DIRTY_EARLY
    STEP(dirty = 0);
#endif
    STEP(d = 0;
        do
        :: d < ND -> if :: dmsg[d] == m && kind[d] == READY -> ADD(ready, d) :: else fi; d++
        :: else -> break
        od;
        d = 0; m = 0);
    goto done;

pump:
    atomic { d = 0; do :: d < ND && !(EXISTS(d) && ch[d] == B) -> d++ :: else -> break od;
        if :: d == ND -> d = 0; goto unlock :: else -> m = dmsg[d]; k = d; d = 0 fi };
    STEP(dirty = 1);
    enqueue(X);
#ifdef PUMP_TURNS_OVER
    STEP(ord[k] = next[Y]; next[Y] = next[Y] + 1);
    STEP(ch[k] = Y; ADD(opened, mid[m]));
#else
    enqueue(Y);
    STEP(kind[k] = FREE; ADD(opened, mid[m]));
#endif
    STEP(k = 0; m = 0; again = 1);
    goto done;

claim:
    atomic { d = 0;
        do
        :: d < ND && !(IN(ready, d) && ch[d] != B) -> d++
        :: d < ND && IN(ready, d) && ch[d] != B -> break
        :: d < ND && IN(ready, d) && ch[d] != B -> d++
        :: d == ND -> break
        od;
        if :: d == ND -> d = 0; goto unlock :: else fi };
#ifdef DIRTY_LATE
    STEP(kind[d] = FLIGHT; cons[d] = me; tag[d]++; att[d]++; claims[AT(mid[dmsg[d]], ch[d])]++);
    STEP(dirty = 1);
#else
    STEP(dirty = 1);
#ifdef ATTEMPTS_LATE
    STEP(kind[d] = FLIGHT; cons[d] = me; tag[d]++; claims[AT(mid[dmsg[d]], ch[d])]++);
    STEP(att[d]++);
#else
    STEP(kind[d] = FLIGHT; cons[d] = me; tag[d]++; att[d]++; claims[AT(mid[dmsg[d]], ch[d])]++);
#endif
#endif
    STEP(DEL(ready, d); if :: hd = d; ht = tag[d] :: hd != NONE -> skip fi; d = 0);
    goto done;

finish:
    atomic { d = hd; if :: OURS(d, ht) -> assert(tag[d] == ht && cons[d] == me)                 /* T5 */
        :: else -> hd = NONE; ht = 0; d = 0; goto unlock fi };
    STEP(dirty = 1);
    STEP(m = dmsg[d]; kind[d] = FREE; ANSWERED(d); hd = NONE; ht = 0);
    STEP(ADD(freed, d); refs[m]--; d = 0);
    if
    :: atomic { refs[m] == 0 -> skip };
        STEP(mstate[m] = FREE);
        STEP(ADD(freem, m))
    :: atomic { refs[m] != 0 -> skip }
    fi;
    STEP(m = 0);
    goto done;

requeue:
    atomic { d = hd; k = ht; hd = NONE; ht = 0;
        if :: OURS(d, k) -> assert(tag[d] == k && cons[d] == me); k = 0                         /* T5 */
        :: else -> d = 0; k = 0; goto unlock fi };
    goto send_back;
time_out:
    atomic { d = 0;
        do
#ifdef HELD_TIMES_OUT
        :: d < ND && !(EXISTS(d) && (kind[d] == FLIGHT || kind[d] == HELD)) -> d++
        :: d < ND && EXISTS(d) && (kind[d] == FLIGHT || kind[d] == HELD) -> break
#else
        :: d < ND && !(EXISTS(d) && kind[d] == FLIGHT) -> d++
        :: d < ND && EXISTS(d) && kind[d] == FLIGHT -> break
        :: d < ND && EXISTS(d) && kind[d] == FLIGHT -> d++
#endif
        :: d == ND -> break
        od;
        if :: d == ND -> d = 0; goto unlock :: else fi };
send_back:
    STEP(dirty = 1);
    STEP(ord[d] = next[ch[d]]; next[ch[d]] = next[ch[d]] + 1);
    STEP(kind[d] = READY);
    /* PN_CRASH("answer:back") */
    STEP(ADD(ready, d); d = 0);
    goto done;

dead_letter:
    atomic { if :: OURS(hd, ht) -> assert(tag[hd] == ht && cons[hd] == me)                      /* T5 */
        :: else -> hd = NONE; ht = 0; goto unlock fi };
    STEP(dirty = 1);
    stage();
    enqueue(Z);
#ifdef TWO_STORES
    STEP(mstate[m] = LIVE; ANSWERED(hd); COMMITTED(mid[m], 2));
    STEP(kind[hd] = FREE);
#else
#ifdef REDO_VALID_FIRST
    STEP(rvalid = 1; ANSWERED(hd); COMMITTED(mid[m], 2));
    STEP(rdel = hd; rtag = ht; rmsg = m; rid = mid[m]);
#else
    STEP(rdel = hd; rtag = ht; rmsg = m; rid = mid[m]);
    STEP(rvalid = 1; ANSWERED(hd); COMMITTED(mid[m], 2));
    /* PN_CRASH("answer:redo-valid") */
#endif
    apply_record();
#endif
    STEP(hd = NONE; ht = 0; m = 0; rdel = 0; rtag = 0; rmsg = 0; rid = 0; again = 1);
    goto done;

empty_it:
    STEP(if :: k = X :: k = B fi; dirty = 1);
    STEP(d = 0;
        do
        :: d < ND ->
            if
            :: EXISTS(d) && ch[d] == k && k != B -> ANSWERED(d)
            :: EXISTS(d) && ch[d] == k && k == B -> committed[mid[dmsg[d]]] = 3
            :: else
            fi;
            d++
        :: else -> break
        od;
        voids[k] = next[k]; k = 0; d = 0; again = 1);
    /* PN_CRASH("topic:emptied") */
    goto done;

transaction:
#ifdef NO_CHECK
    STEP(dirty = 1);
#else
    STEP(if :: OURS(hd, ht) -> skip :: else -> hd = NONE; ht = 0 fi; dirty = 1);
#endif
    stage();
    enqueue(X);
    enqueue(Y);
commit:
#ifdef LIVE_BEFORE_HEAD
    STEP(mstate[m] = LIVE);
#endif
#ifdef ANSWER_BEFORE_HEAD
    STEP(if :: hd != NONE -> kind[hd] = FREE :: else fi);
#endif
    STEP(emsg = m; eid = mid[m]; edel = hd; etag = ht);
    /* PN_CRASH("commit:before-head") */
    STEP(head = 1; COMMITTED(eid, 1);
        d = 0;
        do :: d < ND -> if :: dmsg[d] == m && ch[d] == X && kind[d] != FREE -> ADD(opened, eid) :: else fi; d++ :: else -> break od;
        d = 0;
        if
        :: hd != NONE && kind[hd] != FREE ->
            assert(tag[hd] == ht && cons[hd] == me && (kind[hd] == FLIGHT || kind[hd] == HELD));        /* T5 */
            if :: EXISTS(hd) -> ANSWERED(hd) :: else fi
        :: else
        fi);
    /* PN_CRASH("commit:after-head") */
    apply();
    /* PN_CRASH("commit:applied") */
    STEP(head = 0; emsg = NONE; eid = 0; edel = NONE; etag = 0; hd = NONE; ht = 0; m = 0; again = 1);
    /* PN_CRASH("commit:after-woken") */
    goto done;

prepare:
    STEP(if :: OURS(hd, ht) -> skip :: else -> hd = NONE; ht = 0 fi; dirty = 1);
    STEP(if :: hd != NONE -> kind[hd] = HELD; pd = hd; pt = ht; hid = mid[dmsg[hd]]; pc = ch[hd] :: else fi; hd = NONE; ht = 0);
    /* PN_CRASH("prepare:held") */
    stage();
    enqueue(B);
    STEP(pm = m; m = 0);
    goto done;

end_prepared:
    STEP(dirty = 1; m = pm; hd = pd; ht = pt;
        if
        :: OURS(hd, ht) -> skip
        :: else -> assert(hd == NONE || gone[AT(hid, pc)] == 1); hd = NONE; ht = 0              /* T5 */
        fi;
        pm = NONE; pd = NONE; pt = 0; hid = 0; pc = 0);
    if :: atomic { skip -> goto commit } :: atomic { skip -> skip } fi;
    STEP(if :: hd != NONE -> kind[hd] = FLIGHT :: else fi);
    STEP(mstate[m] = FREE; m = 0; hd = NONE; ht = 0; again = 1);
    goto done;

done:
    if :: atomic { again -> again = 0 }; rebuild() :: atomic { !again -> skip } fi;
unlock:
    STEP(dirty = 0);
    judge();
    STEP(assert(lock == me + 1); lock = FREE);
    /* PN_CRASH("lock:before-unlock") */
    goto next_op;

died:
    atomic { ADD(dead, me); if :: lock == me + 1 -> lock = DIED :: else fi };
over:
    atomic { i = 0; j = 0; k = 0; n = 0; bk = 0; set = 0; ops = 0; m = 0; d = 0; hd = NONE; ht = 0; pm = NONE; pd = NONE;
        pt = 0; hid = 0; pc = 0; again = 0 }
}

proctype Last()
{
    byte i, j, k, n, bk, set, m, d, me = NW;

    timeout;
    if
    :: atomic { lock == DIED -> lock = me + 1 };
        recover()
    :: atomic { lock == FREE -> lock = me + 1 }
    fi;
    set = dead & ~reaped;
    reap();
    rebuild();
    judge();
    atomic {
        do :: i < NM -> assert(mstate[i] != STAGED); i++ :: else -> break od;                   /* T4 */
        i = 0;
        do
        :: i < ND -> assert(kind[i] != HELD); assert(kind[i] != FLIGHT || !IN(dead, cons[i])); i++
        :: else -> break
        od
    };
died:
    skip
}

init {
    atomic {
        byte x = 0;
        nextid = 2;
        mid[0] = 1; mstate[0] = LIVE; refs[0] = 2; committed[1] = 1; ADD(opened, 1);
        kind[0] = READY; ch[0] = X; ord[0] = 1;
        kind[1] = READY; ch[1] = Y; ord[1] = 1;
        ready = 3;
        do :: x < NCHAN -> voids[x] = 1; next[x] = 1 + (x < B); x++ :: else -> break od;
        x = 2; do :: x < ND -> ADD(freed, x); x++ :: else -> break od;
        x = 1; do :: x < NM -> ADD(freem, x); x++ :: else -> break od;
        emsg = NONE; edel = NONE;
        x = 0; do :: x < NW -> run Worker(x); x++ :: else -> break od;
        run Last();
        x = 0
    }
}
