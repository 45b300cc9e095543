/* receive.h - reading the queue, sleeping, and being one of many descriptors in an event loop. */
#ifndef PN_RECEIVE_H
#define PN_RECEIVE_H

#include "backend/conn.h"
#include "backend/generation.h"

int64_t pn_receive_poll(struct pn_conn *conn, pn_batch *batch, uint64_t max);
uint64_t pn_receive_unread(struct pn_conn *conn);
int pn_receive_wait(struct pn_conn *conn, int64_t timeout_ns);
int pn_receive_fileno(struct pn_conn *conn);

/* The longest period of the slow timer; a benchmark sets it. */
extern int64_t pn_slow_timer_max_ns;

/* Make wait() in all threads fail with -PN_ECLOSED, now and later. */
void pn_receive_interrupt(struct pn_conn *conn);

/* Make the descriptor readable until the next poll(). */
void pn_receive_mark_readable(struct pn_conn *conn);

/* Make it unreadable until a post, whatever is unread. */
int pn_receive_mute_fd(struct pn_conn *conn);

/* Make one wait(), now or the next, return 1. */
void pn_receive_interrupt_wait(struct pn_conn *conn);

/* Close its descriptors, each once. */
void pn_receive_close_files(struct pn_conn *conn);

/* Free what reading has allocated. */
void pn_receive_free(struct pn_conn *conn);

#endif
