/* lost.h - descriptors that the program has closed, although they are ours. */
#ifndef PN_LOST_H
#define PN_LOST_H

#include "backend/conn.h"

#define PN_WAIT_TRIES 3 /* to sleep, where the program closes what we sleep on */

/* Was a descriptor found to be closed since the last look?  One load. */
bool pn_lost_due(void);

/*
 * Look at all that the connections of this process have, and forget what is not ours any more: it
 * is made again when it is needed.  No lock held but a consumer's.
 */
void pn_lost_look(void);

/* 0, or an error: what fileno() gave out is lost, and the program has to do something. */
int pn_lost_check_fd(const struct pn_conn *conn);

#endif
