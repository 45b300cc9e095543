/* group.h - connections that one thread serves, behind one latch. */
#ifndef PN_GROUP_H
#define PN_GROUP_H

#include "backend/conn.h"

struct pn_group;

int pn_group_make(struct pn_group **out);
/* Its connections are closed by then. */
void pn_group_free(struct pn_group *group);
int pn_group_latch(const struct pn_group *group);

/* Before the first sleep and the first fileno().  0 or an error. */
int pn_group_join(struct pn_conn *conn, struct pn_group *group, void *user);
/* As it closes, no longer of `group`: no other thread or handler posts it any more. */
void pn_group_leave(struct pn_conn *conn, struct pn_group *group);

/* It has something to do.  Any thread, and signal handlers. */
void pn_group_post(struct pn_group *group, struct pn_conn *conn);
/* Drain the latch, and take all that were posted: how many there may be is not counted. */
void pn_group_take(struct pn_group *group);
/* Of those that were taken the next one's `user`; NULL: there is none left. */
void *pn_group_each(struct pn_group *group);

#endif
