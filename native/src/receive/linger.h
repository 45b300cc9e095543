/* linger.h - before a listener sleeps (receive.c): the next message may be near. */
#ifndef PN_LINGER_H
#define PN_LINGER_H

#include "backend/conn.h"

#define PN_SPIN_MAX_NS 30000LL

/* Stay awake for a while, if that has paid lately.  True: something is wanted. */
bool pn_linger(struct pn_conn *conn);

/* How long one waits here for the next message, on average. */
void pn_linger_note_gap(struct pn_conn *conn, int64_t gap_ns);

#endif
