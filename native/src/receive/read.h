/* read.h - from the queue into a batch. */
#ifndef PN_READ_H
#define PN_READ_H

#include "backend/conn.h"
#include "backend/generation.h"

/*
 * Read from *pos towards head until max messages are taken, or until we are held back.  *pos moves
 * over what was taken or passed over; beyond *pos + `piece` no entry is begun.  recv_mutex held,
 * and what is read is pinned.  0, -PN_ECORRUPT, -PN_EREAPED, or -ENOMEM, that only when nothing at
 * all could be taken.
 */
int pn_read_entries(struct pn_conn *conn, pn_batch *b, QueuePosition *pos, QueuePosition head,
                    uint64_t max, uint64_t piece);

/* How much of a batch is the caller's for good. */
struct pn_read_mark {
    size_t n, ngaps;
};

/*
 * Give up what was read: `pos` goes on.  Or nothing was read since the mark: -PN_EREAPED, it is not
 * ours; -EAGAIN, an earlier owner of the slot, which does not know yet, has put it to sleep where
 * we stand.
 */
int pn_read_move(struct pn_conn *conn, pn_batch *b, const struct pn_read_mark *mark,
                 QueuePosition from, QueuePosition to);

/* Neither `max` nor the batch's max_data is reached; of that 0 is no bound: one less is the largest
 * number. */
static inline bool pn_read_wants_more(const pn_batch *b, uint64_t max)
{
    return b->n + b->ngaps < max && (b->n == 0 || b->offset[b->n] <= b->max_data - 1);
}

/* Is there something that we may read? */
static inline bool pn_readable(const struct pn_conn *conn, QueuePosition pos)
{
    return pn_load_acquire(&conn->me->want) > pos && !pn_held_back(conn);
}

/* Is something unread that interests us?  Leaves ASLEEP if so. */
bool pn_receive_wanted(struct pn_conn *conn);

#endif
