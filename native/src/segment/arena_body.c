/*
 * arena_body.c - what a message's bytes lie in: chains of cells and pages of the arena.
 *
 * 1. A body is the rest of its message's cell, then as many whole pages as it fills, then cells for
 *    what remains, or one more page if that would take all cells of one.  Where a few cells of each
 *    page are taken no page is free, though most cells are: then it is in cells alone.  Which
 *    of the two it is, the class of the first page behind the message's cell says.
 * 2. A walk of a chain stops at the length that it was told, and gives back only what is taken: a
 *    loop ends.
 */
#include "segment/arena_body.h"

#include <string.h>

#include "segment/lock.h"

#define CHUNK sizeof(((struct pn_body_cell *) NULL)->data)

/* What comes after the first cell. */
struct tail {
    uint64_t pages, cells;
};

static uint64_t behind_the_first(uint32_t head, uint64_t len)
{
    uint64_t here = PN_BODY_CELL - head;
    return len > here ? len - here : 0;
}

static struct tail tail_of(uint32_t head, uint64_t len)
{
    uint64_t rest = behind_the_first(head, len);
    struct tail t = {rest / PN_ARENA_PAGE, (rest % PN_ARENA_PAGE + CHUNK - 1) / CHUNK};
    if (t.cells >= PN_BODY_CELLS)
        t = (struct tail) {t.pages + 1, 0};
    return t;
}

static struct tail tail_in_cells(uint32_t head, uint64_t len)
{
    uint64_t rest = behind_the_first(head, len);
    return (struct tail) {0, rest / CHUNK + (rest % CHUNK != 0)};
}

static void add_tail(struct pn_arena_need *need, struct tail t, uint32_t times)
{
    need->bodies += (1 + t.cells) * times;
    need->pages += t.pages * times;
}

void pn_arena_need_body(struct pn_arena_need *need, uint32_t head, uint64_t len, uint32_t times)
{
    add_tail(need, tail_of(head, len), times);
}

void pn_arena_need_cells(struct pn_arena_need *need, uint32_t head, uint64_t len)
{
    add_tail(need, tail_in_cells(head, len), 1);
}

/* Where the link to what follows a piece stands. */
static uint32_t *link_of(const struct pn_arena *mem, uint32_t ref, uint32_t class)
{
    return class == PN_PAGE_WHOLE ? &mem->page[ref / PN_ARENA_GRANULES].chain
                                  : &((struct pn_body_cell *) pn_arena_at(mem, ref))->next;
}

static uint32_t take_chain(struct pn_arena *mem, uint32_t owner, struct tail t)
{
    struct pn_arena_need need = {.deliveries = 0};
    if (t.pages != 0 || t.cells != 0) {
        add_tail(&need, t, 1);
        if (!pn_arena_has_locked(mem, owner, &need))
            return 0;
    }
    uint32_t first = pn_arena_take_locked(mem, owner, PN_PAGE_BODY);
    if (first == 0)
        return 0;
    struct pn_body_cell *cell = pn_arena_at(mem, first);
    cell->next = 0;
    for (uint32_t *link = &cell->next; t.pages + t.cells > 0;) {
        uint32_t class = t.pages > 0 ? PN_PAGE_WHOLE : PN_PAGE_BODY;
        uint32_t ref = pn_arena_take_locked(mem, owner, class);
        if (ref == 0) /* there was enough: the lists are broken, the segment is poisoned */
            return 0;
        if (class == PN_PAGE_BODY)
            ((struct pn_body_cell *) pn_arena_at(mem, ref))->state = PN_BODY_CHAINED;
        *link = ref;
        link = link_of(mem, ref, class);
        *link = 0;
        t.pages -= class == PN_PAGE_WHOLE;
        t.cells -= class == PN_PAGE_BODY;
    }
    return first;
}

uint32_t pn_arena_take_body_locked(struct pn_arena *mem, uint32_t owner, uint32_t head,
                                   uint64_t len)
{
    pn_assert_arena_held(mem);
    return take_chain(mem, owner, tail_of(head, len));
}

uint32_t pn_arena_take_cells_locked(struct pn_arena *mem, uint32_t owner, uint32_t head,
                                    uint64_t len)
{
    pn_assert_arena_held(mem);
    return take_chain(mem, owner, tail_in_cells(head, len));
}

/* As it lies there, from what follows the first cell. */
static struct tail tail_at(const struct pn_arena *mem, uint32_t next, uint32_t head, uint64_t len)
{
    return pn_arena_valid(mem, next, PN_PAGE_BODY) ? tail_in_cells(head, len) : tail_of(head, len);
}

void pn_arena_count_body(const struct pn_arena *mem, uint32_t ref, uint32_t head, uint64_t len,
                         struct pn_arena_need *used)
{
    const uint32_t next = *link_of(mem, ref, PN_PAGE_BODY);
    add_tail(used, next == 0 ? (struct tail) {0} : tail_at(mem, next, head, len), 1);
}

/* A piece of a chain, as one reads along it. */
struct span {
    unsigned char *at;
    uint64_t room;
    uint32_t next;
};

static bool first_span(const struct pn_arena *mem, uint32_t ref, uint32_t head, struct span *span)
{
    if (!pn_arena_taken(mem, ref, PN_PAGE_BODY))
        return false;
    unsigned char *cell = pn_arena_at(mem, ref);
    *span = (struct span) {cell + head, PN_BODY_CELL - head, ((struct pn_body_cell *) cell)->next};
    return true;
}

static bool next_span(const struct pn_arena *mem, struct span *span)
{
    uint32_t ref = span->next;
    if (pn_arena_taken(mem, ref, PN_PAGE_WHOLE)) {
        *span = (struct span) {pn_arena_at(mem, ref), PN_ARENA_PAGE,
                               mem->page[ref / PN_ARENA_GRANULES].chain};
        return true;
    }
    if (!pn_arena_taken(mem, ref, PN_PAGE_BODY))
        return false;
    struct pn_body_cell *cell = pn_arena_at(mem, ref);
    *span = (struct span) {cell->data, CHUNK, cell->next};
    return cell->state == PN_BODY_CHAINED;
}

int pn_arena_write_body(struct pn_arena *mem, uint32_t ref, uint32_t head,
                        const struct pn_piece *pieces, size_t n)
{
    struct span span;
    if (!first_span(mem, ref, head, &span))
        return pn_arena_broken(mem, "a message", ref);
    for (size_t i = 0; i < n; i++) {
        const unsigned char *from = pieces[i].data;
        for (uint64_t left = pieces[i].len; left > 0;) {
            if (span.room == 0 && !next_span(mem, &span))
                return pn_arena_broken(mem, "a body", span.next);
            uint64_t step = left < span.room ? left : span.room;
            memcpy(span.at, from, step);
            span.at += step, span.room -= step;
            from += step, left -= step;
        }
    }
    return 0;
}

bool pn_arena_read(const struct pn_arena *mem, uint32_t ref, uint32_t head, uint64_t offset,
                   void *to, uint64_t len)
{
    struct span span;
    unsigned char *out = to;
    if (!first_span(mem, ref, head, &span))
        return false;
    while (len > 0) {
        uint64_t skip = offset < span.room ? offset : span.room;
        uint64_t step = len < span.room - skip ? len : span.room - skip;
        if (step > 0)
            memcpy(out, span.at + skip, step);
        out += step, len -= step, offset -= skip;
        if (len > 0 && !next_span(mem, &span))
            return false;
    }
    return true;
}

int pn_arena_give_body_locked(struct pn_arena *mem, uint32_t ref)
{
    pn_assert_arena_held(mem);
    for (bool first = true; first || ref != 0; first = false) {
        uint32_t next;
        if (!first && pn_arena_taken(mem, ref, PN_PAGE_WHOLE)) {
            next = mem->page[ref / PN_ARENA_GRANULES].chain;
        } else {
            struct pn_body_cell *cell = pn_arena_cell(mem, ref, PN_PAGE_BODY);
            if (cell == NULL || (!first && cell->state != PN_BODY_CHAINED))
                return pn_arena_broken(mem, "a body", ref);
            next = cell->next;
            pn_store_release_plain(&cell->state, 0);
        }
        pn_arena_give_locked(mem, ref);
        ref = next;
    }
    return 0;
}

bool pn_arena_mark_body_locked(struct pn_arena *mem, uint32_t ref, uint32_t head, uint64_t len)
{
    pn_assert_arena_held(mem);
    if (len / PN_ARENA_PAGE > mem->pages || !pn_arena_mark_locked(mem, ref, PN_PAGE_BODY))
        return false;
    uint32_t next = *link_of(mem, ref, PN_PAGE_BODY);
    struct tail t = tail_at(mem, next, head, len);
    while (t.pages + t.cells > 0) {
        uint32_t class = t.pages > 0 ? PN_PAGE_WHOLE : PN_PAGE_BODY;
        if (!pn_arena_mark_locked(mem, next, class))
            return false;
        if (class == PN_PAGE_BODY &&
            ((struct pn_body_cell *) pn_arena_at(mem, next))->state != PN_BODY_CHAINED)
            return false;
        next = *link_of(mem, next, class);
        t.pages -= class == PN_PAGE_WHOLE;
        t.cells -= class == PN_PAGE_BODY;
    }
    return next == 0;
}
