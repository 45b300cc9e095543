/* arena_share.h - how much of the arena each topic may have; arena_share.c has the model. */
#ifndef PN_ARENA_SHARE_H
#define PN_ARENA_SHARE_H

#include "segment/arena.h"

/* The shares, from which owners count and what they have. */
void pn_arena_share_locked(struct pn_arena *mem);

/* The owner counts from now on, or not any more; the shares follow. */
void pn_arena_count_locked(struct pn_arena *mem, uint32_t owner, bool counts);

/* And is that what the owner may have, by its share (arena_share.c)? */
bool pn_arena_may_locked(const struct pn_arena *mem, uint32_t owner,
                         const struct pn_arena_need *need);

/* Is there room besides what others have not taken of their shares?  Nothing is kept for owners
 * that are to come. */
bool pn_arena_leaves_shares_locked(const struct pn_arena *mem, uint32_t owner,
                                   const struct pn_arena_need *need);

/* Pages that are kept for those of the owner's users that have little (arena_share.c, 7). */
uint64_t pn_arena_reserve_of(const struct pn_arena *mem, const struct pn_arena_need *need);

/* Could it be got if no owner had more than its share, and this one nothing? */
bool pn_arena_ever(const struct pn_arena *mem, const struct pn_arena_need *need);

#endif
