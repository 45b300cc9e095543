/* send.h - signals to other processes; see send.c. */
#ifndef PN_SEND_H
#define PN_SEND_H

#include <signal.h>

#include "backend/conn.h"

#define PN_SIGNAL_MAGIC 0x504e5347U /* "PNSG", in the upper half of sival; the slot in the lower */

/* Of what a slot says, too, which may be scribbled over: no other is ever sent. */
static inline bool pn_may_wake(int signo)
{
    return signo == SIGUSR1 || (signo >= SIGRTMIN && signo <= SIGRTMAX);
}

/* Clear `owed` of our slot.  The latch is set, or drained and looked at, afterwards. */
void pn_take_owed(const struct pn_conn *conn);

/*
 * Set the flag and signal the slot's process, if it is provably that backend (L4) and catches
 * the signal.  Our own connections get their latch set directly.  Lock not held.  True: sent.
 */
bool pn_procsignal_send(struct pn_segment *seg, uint32_t slot, enum pn_procsignal_reason reason);

/* The same of many slots, for PROCSIG_NOTIFY_INTERRUPT: one signal for neighbours of a process. */
enum { PN_SEND_RUN = 64 };
struct pn_send_run {
    struct pn_segment *seg;
    uint32_t n, slot[PN_SEND_RUN]; /* of one process, not told yet */
    int32_t pid, signo;
    int sent, own; /* of them latches of ours */
};
void pn_send_begin(struct pn_send_run *run, struct pn_segment *seg);
void pn_send_add(struct pn_send_run *run, uint32_t slot);
/* How many signals were sent, and latches of ours set. */
int pn_send_end(struct pn_send_run *run);

/* Signal deferred ones until PN_CHAIN processes really were.  Async-signal-safe, for the handler.
 * False: no descriptor is left for it. */
#define PN_CHAIN 2
bool pn_procsignal_try_to_pass_on(struct pn_segment *seg, int already);
/* The same, and without a descriptor all of them, as the next.  Lock not held. */
void pn_procsignal_pass_on(struct pn_segment *seg, int already);
/* Signal all of them: the chain was too slow.  Lock not held. */
void pn_procsignal_flush(struct pn_segment *seg);

#endif
