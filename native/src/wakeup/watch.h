/* watch.h - a sleeper watches the slots behind its own, and takes over when a process dies. */
#ifndef PN_WATCH_H
#define PN_WATCH_H

#include "backend/conn.h"

/*
 * Before the slot is put to sleep: see to it that those behind it are watched.  A comparison of
 * two words when nothing has changed.  recv_mutex not held, or held (_receiving).
 */
void pn_watch_arm(struct pn_conn *conn);
void pn_watch_arm_receiving(struct pn_conn *conn);

/* The same, after conn->watch.epfd was readable, or may be. */
void pn_watch_look(struct pn_conn *conn);
void pn_watch_look_receiving(struct pn_conn *conn);

/*
 * For a backend that only polls, and so never meets the lock of a dead notifier; recv_mutex held.
 * 1: what it left undone was done by us or by others, look again; 0, or an error.
 */
int pn_watch_look_at_commit(struct pn_conn *conn);

/* After pn_watch_lengthened_locked() and the release of the lock: wake those whose walk it is. */
void pn_watch_tell(struct pn_segment *seg, uint32_t slot);

/* Make conn->watch.epfd; recv_mutex held.  0; 1: enough of this process watch; -errno. */
int pn_watch_open(struct pn_conn *conn);

void pn_watch_init(struct pn_conn *conn);
void pn_watch_close(struct pn_conn *conn);

/* Signal every slot whose `owed` bit is set and, if min_age_ns > 0, at least that old. */
void pn_watch_send_owed(struct pn_segment *seg, int64_t min_age_ns);
/* After the release of a lock that was recovered (segment.h, PN_RESIGNAL). */
void pn_watch_resignal(struct pn_segment *seg);

#endif
