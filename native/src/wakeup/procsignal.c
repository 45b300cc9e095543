/*
 * procsignal.c - the handshake between a sleeper and a process that wakes it, and what the signal
 *                handler does for us.  send.c sends; handlers.c has the host's handlers.
 *
 * 1. The handshake.  A listener that has read everything marks its `pos` ASLEEP and looks at
 *    `want` once more; a notifier raises `want` and looks at `pos`.  With a full fence between
 *    the store and the load on both sides, at least one sees the other's store:
 *
 *        notifier (lock held)                     listener
 *          if quiet: from = begin                   pos = p | ASLEEP        (exchange)
 *          want = end             (release)         --- full fence (the exchange) ---
 *          --- full fence ---                       w = want                (seq_cst)
 *          p = pos                                  if w > p: CAS p|ASLEEP -> max(p, from),
 *          if p & ASLEEP: owed, then                   won or lost: awake, read again
 *            CAS p -> max(p, from); won: signal     else block on the latch
 *
 *    A reader that is held back (generation.c 6) has a second condition beside w > p, the counter,
 *    and the notifier stores that, too, before the fence.
 *
 *    The winner of the CAS makes the slot awake; only a notifier that won it signals: one signal
 *    per sleep, however long the burst, and none for a listener that is awake.
 * 2. `owed` is set before the CAS and cleared by the listener between draining its latch and
 *    loading pos, and by its handler before that sets the latch.  It says "un-slept, but perhaps
 *    not signalled": a notifier that finds it on an awake slot for longer than PN_OWED_NS signals
 *    again, since the earlier one may have died between its CAS and its signal; a slow timer in
 *    every sleeper does the same.  The handler clears it because a listener that is busy for long
 *    would otherwise be signalled again every PN_OWED_NS; and since it sets the latch afterwards,
 *    what a notifier un-slept before the bit was cleared is read in any case.
 * 3. The handler does what PostgreSQL's does: it takes the reasons, and sets the latch.
 */
#define _GNU_SOURCE
#include "wakeup/procsignal.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "backend/backend.h"
#include "backend/generation.h"
#include "base/crashpoint.h"
#include "base/os.h"
#include "segment/identity.h"
#include "segment/lock.h"
#include "segment/process.h"
#include "wakeup/latch.h"
#include "wakeup/send.h"

#define PN_OWED_NS 10000000LL

enum { MAX_LOCAL = 65536 };

/* ---- the process's side: the handler -------------------------------------------------------- */

/* Entries are set and cleared under the process lock; the handler only loads them. */
static _Atomic(struct pn_conn *) local[MAX_LOCAL];
static pn_atomic_u32 local_used; /* one above the highest index ever used */
static uint32_t local_free;      /* none below it is free.  Process lock */
static pn_atomic_u32 in_handler; /* handlers that may hold a pointer out of local[] */

/* The reasons, a bit each: never clear a flag without having seen it set. */
static uint32_t check_proc_signal(struct pn_conn *conn)
{
    uint32_t reasons = 0;
    for (int reason = 0; reason < NUM_PROCSIGNALS; reason++)
        if (pn_load_relaxed(&conn->me->pss_signalFlags[reason]) != 0 &&
            pn_exchange(&conn->me->pss_signalFlags[reason], 0) != 0)
            reasons |= 1U << reason;
    return reasons;
}

/*
 * Without a descriptor a thread does it that a latch wakes, which looks after draining it; or which
 * closes what has the latch, and looks after no handler can set it any more.
 */
static void pass_on(struct pn_conn *conn)
{
    if (pn_procsignal_try_to_pass_on(conn->seg, 0))
        return;
    pn_store_seq_cst(&conn->seg->passes_on, 1);
    pn_latch_set(conn, PN_FD_POSTED);
    /* Perhaps only they have a thread that waits; and one in another thread has looked already. */
    pn_segment_hooks.consumers_woken(conn, true);
}

uint32_t pn_procsignal_wake(int signo)
{
    uint32_t all_reasons = 0;
    struct pn_conn *passes_on = NULL; /* one for each segment */
    pn_fetch_add(&in_handler, 1);
    uint32_t used = pn_load_acquire(&local_used);
    for (uint32_t i = 0; i < used; i++) {
        struct pn_conn *conn = pn_load_acquire(&local[i]);
        if (conn == NULL || conn->signo != signo || conn->pid != pn_my_pid || !pn_owns_slot(conn))
            continue;
        uint32_t reasons = check_proc_signal(conn);
        all_reasons |= reasons;
        reasons &= ~(1U << PROCSIG_LOG_STACK);
        if (reasons != 0)
            pn_segment_hooks.consumers_woken(conn, reasons != 1U << PROCSIG_TOPIC);
        reasons &= ~(1U << PROCSIG_TOPIC | 1U << PROCSIG_REPAIR);
        if (reasons == 0)
            continue; /* nothing to wake up for */
        if ((reasons & 1U << PROCSIG_NOTIFY_INTERRUPT) != 0) {
            pn_take_owed(conn);
            PN_CRASH("handler:owed-cleared");
        }
        bool walk_only = reasons == 1U << PROCSIG_NEIGHBOUR;
        if ((reasons & 1U << PROCSIG_NEIGHBOUR) != 0 && !pn_watch_told(conn) && walk_only)
            continue;
        pn_latch_wake(conn, walk_only ? PN_FD_NEIGHBOUR : PN_FD_SIGNALLED);
        if (walk_only)
            continue;
        if (passes_on != NULL && passes_on->seg != conn->seg)
            pass_on(passes_on);
        passes_on = conn;
    }
    if (passes_on != NULL) /* after the flags were taken (send.c 3) */
        pass_on(passes_on);
    pn_fetch_sub(&in_handler, 1);
    return all_reasons;
}

static void reset_in_child(void)
{
    pn_os_know_ourselves();
    pn_process_child_reset();
    for (uint32_t i = 0; i < pn_load_relaxed(&local_used); i++) {
        struct pn_conn *conn = pn_load_relaxed(&local[i]);
        if (conn != NULL)
            pn_segment_hooks.close_conn_files(conn);
        pn_store_relaxed(&local[i], NULL);
    }
    pn_store_relaxed(&local_used, 0);
    local_free = 0;
    pn_store_relaxed(&in_handler, 0);
}

static void initialise_process(void)
{
    pn_os_know_ourselves();
    pthread_atfork(pn_process_lock, pn_process_unlock, reset_in_child);
}

int pn_procsignal_register(struct pn_conn *conn)
{
    pn_process_lock();
    uint32_t i = local_free;
    while (i < MAX_LOCAL && pn_load_relaxed(&local[i]) != NULL)
        i++;
    local_free = conn->local_index = i;
    if (i < MAX_LOCAL) {
        pn_store_release(&local[i], conn);
        if (i >= pn_load_relaxed(&local_used))
            pn_store_release(&local_used, i + 1);
    }
    pn_process_unlock();
    if (i == MAX_LOCAL)
        return pn_fail(PN_EBACKENDS,
                       "too many connections in this process\n"
                       "It has %d. Close some, or connect from another process.",
                       MAX_LOCAL);
    pthread_mutex_lock(&conn->seg->signal_mutex);
    conn->seg->own[conn->slot] = conn;
    pthread_mutex_unlock(&conn->seg->signal_mutex);
    return 0;
}

void pn_procsignal_each(void (*visit)(struct pn_conn *conn))
{
    for (uint32_t i = 0; i < pn_load_relaxed(&local_used); i++) {
        struct pn_conn *conn = pn_load_relaxed(&local[i]);
        if (conn != NULL)
            visit(conn);
    }
}

void pn_procsignal_hide(struct pn_conn *conn)
{
    pn_process_lock();
    if (conn->local_index < MAX_LOCAL) { /* else there was no room for it */
        pn_store_release(&local[conn->local_index], NULL);
        if (conn->local_index < local_free)
            local_free = conn->local_index;
    }
    pn_procsignal_quiesce();
    pthread_mutex_lock(&conn->seg->signal_mutex);
    if (conn->seg->own[conn->slot] == conn) /* a slot that was lost may be ours again by another */
        conn->seg->own[conn->slot] = NULL;
    pthread_mutex_unlock(&conn->seg->signal_mutex);
    /* Not after the writer lock: no forked child would find them any more (reset_in_child). */
    pn_segment_hooks.close_conn_files(conn);
    pn_process_unlock();
}

/* A handler in another thread may still hold a pointer; it is short and never blocks. */
void pn_procsignal_quiesce(void)
{
    while (pn_load_seq_cst(&in_handler) != 0)
        sched_yield();
}

/* ---- handshake ------------------------------------------------------------------------------ */

enum pn_unsleep pn_unsleep_locked(struct pn_segment *seg, uint32_t slot, int64_t now)
{
    pn_assert_held(seg);
    struct QueueBackendStatus *backend = &seg->backend[slot];
    uint64_t mask = 1ULL << (slot % 64);
    uint64_t pos = pn_load_acquire(&backend->pos);
    while ((pos & PN_ASLEEP) != 0) {
        /* it has read all since: un-slept now, it could have cleared `owed` in between */
        if (pn_load_relaxed(&backend->want) <= (pos & ~PN_ASLEEP))
            return PN_NO_SIGNAL;
        pn_store_relaxed(&backend->signalled_at, (uint64_t) now);
        pn_fetch_or(&seg->owed[slot / 64], mask);
        PN_CRASH("commit:owed");
        uint64_t start = pn_later(pos & ~PN_ASLEEP, pn_load_relaxed(&backend->from) & ~PN_ASLEEP);
        if (pn_cas_u64(&backend->pos, &pos, start)) {
            PN_CRASH("commit:unslept");
            return PN_SIGNAL;
        }
    }
    if ((pn_load_relaxed(&seg->owed[slot / 64]) & mask) == 0 ||
        pn_since(now, pn_load_relaxed(&backend->signalled_at)) < PN_OWED_NS)
        return PN_NO_SIGNAL;
    pn_store_relaxed(&backend->signalled_at, (uint64_t) now);
    return PN_SIGNAL_AGAIN;
}

void pn_procsignal_pass_on_posted(struct pn_segment *seg)
{
    if (__builtin_expect(pn_load_relaxed(&seg->passes_on) != 0, 0) &&
        pn_exchange(&seg->passes_on, 0) != 0)
        pn_procsignal_flush(seg);
}

void pn_clear_owed(struct pn_conn *conn)
{
    pn_take_owed(conn);
    PN_CRASH("wake:owed-cleared");
    pn_procsignal_pass_on_posted(conn->seg);
}

bool pn_wake_self(struct pn_conn *conn)
{
    struct QueueBackendStatus *me = conn->me;
    uint64_t pos = pn_load_acquire(&me->pos);
    if ((pos & PN_ASLEEP) == 0)
        return true;
    uint64_t consumed = pos & ~PN_ASLEEP;
    /* seq_cst: not before pn_fall_asleep()'s exchange, which acquire alone does not forbid (1) */
    if (pn_load_seq_cst(&me->want) <= consumed)
        return false;
    if (pn_held_back(conn))
        return false;
    if (!pn_owns_slot(conn)) /* looked at after pos: a new owner's pos is another one */
        return false;
    /* from was written before want; it cannot change while we are not quiet */
    pn_cas_u64(&me->pos, &pos,
               pn_later(consumed, pn_load_relaxed(&me->from) & ~PN_ASLEEP)); /* scribbled over? */
    PN_CRASH("wake:unslept");
    return true; /* lost: a notifier did it */
}

bool pn_fall_asleep(struct pn_conn *conn, QueuePosition pos)
{
    /*
     * Full fence: pairs with the notifier's in pn_announce_locked().  It fails if the slot is
     * another's; or if it is ours, and an earlier owner, which does not know yet, has put it to
     * sleep here.  So look in any case.
     */
    pn_cas(&conn->me->pos, &pos, pos | PN_ASLEEP);
    PN_CRASH("sleep:asleep");
    bool asleep = !pn_wake_self(conn);
    if (asleep) {
        PN_CRASH("sleep:fenced");
        pn_room_wake(conn->seg);
    } else {
        PN_CRASH("sleep:rewoken");
    }
    return asleep;
}

__attribute__((constructor)) static void pn_constructor(void)
{
    initialise_process();
}
