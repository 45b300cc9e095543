/*
 * arena_share.c - how much of the arena each topic may have.
 *
 * 1. A topic without consumers must not stop the others.  So each has a share of the pages that
 *    no other can take: half of the arena, divided by the topics that there are and one more.
 *    The other half is common: a topic may go beyond its share as long as enough is free for
 *    what the others have not taken of theirs, and for topics to come.
 * 2. A topic comes when the arena is full, and the shares are smaller from then on than those that
 *    were kept free.  So what is kept for newcomers is a share, or as much as the largest body, if
 *    that is more, but not more than a quarter; and a topic that has less than its share may take
 *    what is free down to as much as it then has itself: there is something for the next.
 * 3. A topic without any message may take what is kept for newcomers for its first one, so that a
 *    large body that is more than a share does not wait for others for ever.
 * 4. Nothing is taken away from a topic that has more than its share when the shares get smaller.
 *    It gets nothing until it has given back as much.
 * 5. What moves messages that are there (the pump's least, a delay of a requeue, recovery) asks
 *    only whether there are free pages: publishers leave some (`spare`).
 * 6. An owner may be bound to less (`most`); its share is kept for it all the same.  Without any
 *    message it may go beyond that for its first one, as in 3, which so never waits for ever.
 * 7. What one part of an owner's users holds must not keep the others from theirs (rest.c).  The
 *    reserve for that is a quarter of the share, and what one such need takes when no cell is free:
 *    of a small arena, or for a large body, the quarter is less.
 */
#include "segment/arena.h"
#include "segment/lock.h"
#include "segment/arena_share.h"

/* Without what is no owner's page. */
static uint32_t usable(const struct pn_arena *mem)
{
    return mem->pages - mem->first;
}

void pn_arena_share_locked(struct pn_arena *mem)
{
    pn_assert_arena_held(mem);
    struct pn_arena_control *ctl = mem->ctl;
    uint32_t n = 0, most = usable(mem) / 4;
    uint64_t reserved = 0;
    for (uint32_t i = 0; i < mem->owners; i++)
        n += mem->owner[i].counts != 0; /* whatever stands there: n + 1 is no 0 */
    ctl->share = usable(mem) / (2 * (n + 1));
    for (uint32_t i = 0; i < mem->owners; i++)
        if (mem->owner[i].counts != 0 && mem->owner[i].pages < ctl->share)
            reserved += ctl->share - mem->owner[i].pages;
    ctl->reserved = (uint32_t) reserved;
    ctl->newcomers = mem->largest < most ? mem->largest : most;
    if (ctl->newcomers < ctl->share)
        ctl->newcomers = ctl->share;
}

void pn_arena_count_locked(struct pn_arena *mem, uint32_t owner, bool counts)
{
    pn_assert_arena_held(mem);
    if (owner < mem->owners)
        mem->owner[owner].counts = counts;
    pn_arena_share_locked(mem);
}

bool pn_arena_may_locked(const struct pn_arena *mem, uint32_t owner,
                         const struct pn_arena_need *need)
{
    pn_assert_arena_held(mem);
    const struct pn_arena_control *ctl = mem->ctl;
    const struct pn_arena_owner *own = &mem->owner[owner < mem->owners ? owner : 0];
    uint64_t pages = pn_arena_pages_for(mem, owner, need), free = ctl->pages_free;
    if (pages == 0)
        return true;
    if (pages > free)
        return false;
    uint64_t left = free - pages, has = own->pages;
    if (need->most != 0 && has + pages > need->most && own->bodies != 0) /* 6 */
        return false;
    uint64_t unused = own->counts != 0 && has < ctl->share ? ctl->share - has : 0;
    uint64_t others = ctl->reserved - (pages < unused ? pages : unused); /* afterwards */
    if (left >= others + ctl->newcomers + need->spare)
        return true;
    if (has + pages <= ctl->share && has + pages <= left) /* 2 */
        return true;
    return own->bodies == 0 && left >= others; /* 3 */
}

bool pn_arena_leaves_shares_locked(const struct pn_arena *mem, uint32_t owner,
                                   const struct pn_arena_need *need)
{
    pn_assert_arena_held(mem);
    const struct pn_arena_control *ctl = mem->ctl;
    const struct pn_arena_owner *own = &mem->owner[owner < mem->owners ? owner : 0];
    const uint64_t pages = pn_arena_pages_for(mem, owner, need), has = own->pages;
    const uint64_t unused = own->counts != 0 && has < ctl->share ? ctl->share - has : 0;
    return pages <= ctl->pages_free &&
           ctl->pages_free - pages >= ctl->reserved - unused + need->spare;
}

/* With no free cell there. */
static uint64_t pages_at_most(const struct pn_arena_need *need)
{
    return need->pages + (need->bodies + PN_BODY_CELLS - 1) / PN_BODY_CELLS +
           (need->deliveries + PN_ARENA_GRANULES - 1) / PN_ARENA_GRANULES;
}

uint64_t pn_arena_reserve_of(const struct pn_arena *mem, const struct pn_arena_need *need)
{
    const struct pn_arena_control *ctl = mem->ctl;
    uint64_t share = need->most != 0 && need->most < ctl->share ? need->most : ctl->share;
    uint64_t one = pages_at_most(need);
    return one > share / 4 ? one : share / 4;
}

bool pn_arena_ever(const struct pn_arena *mem, const struct pn_arena_need *need)
{
    return pages_at_most(need) <= usable(mem) / 2;
}
