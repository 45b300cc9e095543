/*
 * handlers.h - our signal handler in front of the host program's.
 */
#ifndef PN_HANDLERS_H
#define PN_HANDLERS_H

#include "backend/conn.h"

/* Make the process ready for this connection's signal: install the handler if it is not. */
int pn_handler_arm(struct pn_conn *conn);
/* The last connection of its signal gives back the handler that was there before.  After the slot
 * was freed: until then a signal may be sent. */
void pn_handler_disarm(struct pn_conn *conn);

#endif
