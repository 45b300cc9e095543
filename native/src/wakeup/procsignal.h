/*
 * procsignal.h - waking a backend with a real signal, and being woken.
 *
 * To wake (PostgreSQL's SendProcSignal): set the reason flag in the slot, then send the signal.
 * To be woken: the handler tests and clears the flag and sets the latch (an eventfd); the
 * process reads when it is idle.  Every reason is harmless when received by mistake.
 */
#ifndef PN_PROCSIGNAL_H
#define PN_PROCSIGNAL_H

#include "backend/conn.h"

/* Enter the table that the handler walks. */
int pn_procsignal_register(struct pn_conn *conn);
/* Leave it, before the slot is freed: from then on it may be another process's, whose flags a
 * handler that is under way would take.  No handler holds the connection afterwards. */
void pn_procsignal_hide(struct pn_conn *conn);
/* Each connection in it.  Process lock held. */
void pn_procsignal_each(void (*visit)(struct pn_conn *conn));
/* In the handler: wake each connection of the signal that has a reason, and the other listeners
 * that are to be woken.  Returns the reasons, a bit each. */
uint32_t pn_procsignal_wake(int signo);
/* Wait until no handler holds what was taken out of its sight before the call. */
void pn_procsignal_quiesce(void);

/* ---- the sleep/wake handshake ------------------------------------------------------------ */

static inline uint64_t pn_later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/*
 * Lock held.  quiet: nothing unread interests the slot.  Only then `from` may be written, and
 * before want (R4): from then on the slot pins the queue at `begin`.
 */
static inline void pn_set_from_if_quiet(struct QueueBackendStatus *b, QueuePosition begin)
{
    if (pn_load_relaxed(&b->want) <= (pn_load_relaxed(&b->pos) & ~PN_ASLEEP))
        pn_store_relaxed(&b->from, begin);
}

enum pn_unsleep {
    PN_NO_SIGNAL,   /* it was awake */
    PN_SIGNAL,      /* this call woke it: a signal is ours to send */
    PN_SIGNAL_AGAIN /* awake, but an earlier sender seems to have died before its (R2) */
};
/* Lock held, after the fence. */
enum pn_unsleep pn_unsleep_locked(struct pn_segment *seg, uint32_t slot, int64_t now);

/* The owner: leave ASLEEP if something is wanted.  True: awake now, by whomever. */
bool pn_wake_self(struct pn_conn *conn);
/* The owner, awake at `pos`: go to sleep there.  False: something came, awake again. */
bool pn_fall_asleep(struct pn_conn *conn, QueuePosition pos);
/* Clear `owed` between draining the latch and loading pos (R2, R3); and pass signals on where the
 * handler could not. */
void pn_clear_owed(struct pn_conn *conn);

/* What a handler without descriptors has left.  After a latch was drained. */
void pn_procsignal_pass_on_posted(struct pn_segment *seg);

#endif
