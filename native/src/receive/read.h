/* read.h - from the queue into a batch. */
#ifndef PN_READ_H
#define PN_READ_H

#include "backend/conn.h"
#include "backend/generation.h"

/*
 * Read from *pos towards head until max messages are taken, or until we are held back.  *pos moves
 * over what was taken or passed over.  recv_mutex held, and what is read is pinned.  0,
 * -PN_ECORRUPT, -PN_EREAPED, or -ENOMEM, that only when nothing at all could be taken.
 */
int pn_read_entries(struct pn_conn *conn, pn_batch *b, QueuePosition *pos, QueuePosition head,
                    uint64_t max);

/*
 * Give up what was read: `pos` goes on.  Or nothing was read: -PN_EREAPED, it is not ours; -EAGAIN,
 * an earlier owner of the slot, which does not know yet, has put it to sleep where we stand.
 */
int pn_read_move(struct pn_conn *conn, pn_batch *b, QueuePosition from, QueuePosition to);

/* Is there something that we may read? */
static inline bool pn_readable(const struct pn_conn *conn, QueuePosition pos)
{
    return pn_load_acquire(&conn->me->want) > pos && !pn_held_back(conn);
}

/* Is something unread that interests us?  Leaves ASLEEP if so. */
bool pn_receive_wanted(struct pn_conn *conn);

#endif
