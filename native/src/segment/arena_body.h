/* arena_body.h - bodies of messages in the arena; arena_body.c has the model. */
#ifndef PN_ARENA_BODY_H
#define PN_ARENA_BODY_H

#include "segment/arena.h"

/*
 * `head` bytes of the first cell (at least 8) are the caller's struct, which begins as struct
 * pn_body_cell; the bytes follow it, then in chained BODY cells or WHOLE pages.
 */
struct pn_piece {
    const void *data;
    size_t len;
};

/* What a message with so many bytes takes, and its deliveries, is added to `need`. */
void pn_arena_need_body(struct pn_arena_need *need, uint32_t head, uint64_t len, uint32_t times);
/* The same of one whose body is in cells alone. */
void pn_arena_need_cells(struct pn_arena_need *need, uint32_t head, uint64_t len);
/* All cells of the chain, linked; state of the first: left at 0.  0: no room, nothing taken. */
uint32_t pn_arena_take_body_locked(struct pn_arena *mem, uint32_t owner, uint32_t head,
                                   uint64_t len);
uint32_t pn_arena_take_cells_locked(struct pn_arena *mem, uint32_t owner, uint32_t head,
                                    uint64_t len);
/* What the chain takes that begins there; the first cell is the caller's. */
void pn_arena_count_body(const struct pn_arena *mem, uint32_t ref, uint32_t head, uint64_t len,
                         struct pn_arena_need *used);
/* Copy the pieces, one after the other, into a chain that was taken for their sum. */
int pn_arena_write_body(struct pn_arena *mem, uint32_t ref, uint32_t head,
                        const struct pn_piece *pieces, size_t n);
/* `len` bytes from the offset on; false: the chain is broken (does not poison: see above). */
bool pn_arena_read(const struct pn_arena *mem, uint32_t ref, uint32_t head, uint64_t offset,
                   void *to, uint64_t len);
/* The whole chain; the state words of its cells become 0, the first one's first.  0 or poisons. */
int pn_arena_give_body_locked(struct pn_arena *mem, uint32_t ref);
/* Of a rebuild: all cells of a chain for so many bytes; false: broken, or one was marked before. */
bool pn_arena_mark_body_locked(struct pn_arena *mem, uint32_t ref, uint32_t head, uint64_t len);

#endif
