/* receive.h - reading the queue. */
#ifndef PN_RECEIVE_H
#define PN_RECEIVE_H

#include "backend/conn.h"
#include "backend/generation.h"

int64_t pn_receive_poll(struct pn_conn *conn, pn_batch *batch, uint64_t max);
uint64_t pn_receive_unread(struct pn_conn *conn);

/* ---- what waiting needs of it --------------------------------------------------------------- */

void pn_receive_count_wake(struct pn_conn *conn, bool useful);
/* Drain the latch, and say what for it was set (PN_FD_...). */
uint32_t pn_receive_drain(struct pn_conn *conn);
/* The descriptor readable if something is unread, otherwise the slot asleep. */
void pn_receive_leave_armed(struct pn_conn *conn);
/* A dead neighbour makes the descriptor readable until its slot is taken over. */
void pn_receive_serve_neighbours(struct pn_conn *conn);

/* Free what reading has allocated. */
void pn_receive_free(struct pn_conn *conn);

#endif
