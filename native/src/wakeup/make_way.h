/* make_way.h - letting those run that a commit has woken. */
#ifndef PN_MAKE_WAY_H
#define PN_MAKE_WAY_H

#include "backend/conn.h"

#define PN_STREAM_NS 1000000LL /* commits closer together than this are a stream */

/*
 * With one processor to run on, a process that we woke there runs only when we stop, and the
 * scheduler lets a wakee preempt only while it has used less time than its waker.  So make way,
 * unless more is to come at once, as the caller knows.
 */
void pn_make_way(void);

/* The same, after consumers of topics were woken by what conn has published. */
void pn_make_way_for_consumers(struct pn_conn *conn);

#endif
