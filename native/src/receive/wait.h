/* wait.h - sleeping until something is to be read, and the descriptor for event loops. */
#ifndef PN_WAIT_H
#define PN_WAIT_H

#include "backend/conn.h"

int pn_receive_wait(struct pn_conn *conn, int64_t timeout_ns);
int pn_receive_fileno(struct pn_conn *conn);

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

#endif
