/*
 * timedset.h - deliveries by the time at which something is due: a heap in pages of the arena.
 *
 * Everything needs the writer lock.  Where an entry stands is written into its delivery, into the
 * u32 at PN_TIMED_OFFSET; 0: in no set.
 */
#ifndef PN_TIMEDSET_H
#define PN_TIMEDSET_H

#include "segment/arena.h"

/*
 * Promise room for so many more entries; false: no memory, and nothing is changed.  Each add uses
 * up one of them, or it is given back.
 */
bool pn_timedset_reserve_locked(struct pn_arena *mem, uint32_t owner, struct pn_timedset *set,
                                uint32_t more);
/* Pages that a promise would take. */
uint64_t pn_timedset_needs(const struct pn_timedset *set, uint32_t more);
void pn_timedset_unreserve_locked(struct pn_arena *mem, struct pn_timedset *set, uint32_t less);

/* Cannot fail: room was reserved.  (Like all below, it poisons if the segment is corrupt.) */
void pn_timedset_add_locked(struct pn_arena *mem, struct pn_timedset *set, struct pn_timed entry);
/* Take out the entry of a delivery, nothing if it has none.  Its room stays promised: it comes
 * back, and must not fail then, or the promise is given back. */
void pn_timedset_lend_locked(struct pn_arena *mem, struct pn_timedset *set, uint32_t ref);

/* The earliest; false: empty. */
bool pn_timedset_first(const struct pn_arena *mem, const struct pn_timedset *set,
                       struct pn_timed *out);

/*
 * Those that are due by `now`, one a call and in no order: *at is 0 at first.  Looks at no more
 * than four others for each.  false: that was all.
 */
bool pn_timedset_next_due(const struct pn_arena *mem, const struct pn_timedset *set, int64_t now,
                          uint32_t *at, struct pn_timed *out);

/*
 * The i-th of n entries, in no order; false: there is none.  For cancel, empty and check; a caller
 * that removes as it goes begins at the end, and looks again at the place of what it removed: one
 * that stood before it may have come there.
 */
bool pn_timedset_entry(const struct pn_arena *mem, const struct pn_timedset *set, uint32_t i,
                       struct pn_timed *out);
/* The first from the i-th on with that `low`, by looking at each; its number, or set->n. */
uint32_t pn_timedset_find(const struct pn_arena *mem, const struct pn_timedset *set, uint32_t low,
                          uint32_t i);

/* Rebuild: its pages were not marked, so they are gone; the entries are added again. */
void pn_timedset_forget_locked(const struct pn_arena *mem, struct pn_timedset *set);
/* Pages that it holds, those of references included. */
uint32_t pn_timedset_pages(const struct pn_timedset *set);

int pn_timedset_check(const struct pn_arena *mem, const struct pn_timedset *set,
                      void (*problem)(void *arg, const char *text), void *arg);

#endif
