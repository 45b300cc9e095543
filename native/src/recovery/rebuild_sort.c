/*
 * rebuild_sort.c - the lists of a rebuilding are sorted by merging, bottom up, without memory.
 *
 * One step is too short for a long list: where the merging is stands in shared memory (struct
 * pn_topic_sort), and a unit is one move.  After a death all of it begins again.
 */
#include "recovery/rebuild_sort.h"

#include "topic/message.h"
#include "topic/tables.h"

/* What a list is sorted by, and how it is linked. */
enum sorted { BY_ORDER, BY_DUE, BY_ID };

static uint64_t key(const struct pn_segment *seg, enum sorted by, uint32_t ref)
{
    return by == BY_ORDER ? pn_delivery_at(seg, ref)->order
           : by == BY_DUE ? (uint64_t) pn_delivery_at(seg, ref)->due
                          : pn_message_at(seg, ref)->id;
}

static uint32_t *link_of(const struct pn_segment *seg, enum sorted by, uint32_t ref)
{
    return by == BY_ID ? &pn_message_at(seg, ref)->next : &pn_delivery_at(seg, ref)->next;
}

enum doing { NEXT_LIST, TAKING, CARRYING, MERGING, GATHERING, GATHER_MERGING, LINKING };

/* Bottom up, as lists of 1, 2, 4 ... are merged, and then those; then the links back. */
struct sorting {
    struct pn_rebuild_step *s;
    struct pn_topic_sort *is;
    enum sorted by;
    uint32_t *head, *last;
};

enum { KINDS = 3, LEVELS = 32 };

/* The list of the row at the cursor, of its kind; false: that was the last, or there is none. */
static bool list_at(struct pn_rebuild_step *s, struct sorting *of)
{
    struct pn_topics *t = &s->seg->topics;
    const uint32_t n[KINDS] = {t->max_channels, t->max_consumers, t->max_topics};
    static const enum sorted by[KINDS] = {BY_ORDER, BY_DUE, BY_ID};
    uint32_t kind = *(volatile const uint32_t *) &s->at->kind, i = pn_rebuild_cursor(s);
    while (kind < KINDS && i >= n[kind])
        s->at->kind = ++kind, s->at->cursor = i = 0;
    if (kind > KINDS)
        pn_segment_poison(s->seg, "lists of the kind %u are to be sorted, which is none", kind);
    if (kind >= KINDS)
        return false;
    *of = (struct sorting) {.s = s, .is = &s->at->sort, .by = by[kind]};
    if (kind == 0)
        of->head = &t->channel[i].first, of->last = &t->channel[i].last;
    else if (kind == 1)
        of->head = &t->consumer[i].first, of->last = &t->consumer[i].last;
    else
        of->head = &t->topic[i].oldest, of->last = &t->topic[i].newest;
    return true;
}

static void begin_merge(struct sorting *of, uint32_t a, uint32_t b)
{
    of->is->a = a;
    of->is->b = b;
    of->is->first = of->is->tail = 0;
}

/* One move; true: all is merged, and stands in `first`. */
static bool merge_one(struct sorting *of)
{
    struct pn_topic_sort *is = of->is;
    const struct pn_segment *seg = of->s->seg;
    uint32_t *from = is->a == 0                                           ? &is->b
                     : is->b == 0                                         ? &is->a
                     : key(seg, of->by, is->a) <= key(seg, of->by, is->b) ? &is->a
                                                                          : &is->b;
    bool last = is->a == 0 || is->b == 0; /* what is left of the other follows as it is */
    uint32_t ref = *from;
    if (is->tail == 0)
        is->first = ref;
    else
        *link_of(seg, of->by, is->tail) = ref;
    if (last)
        return true;
    is->tail = ref;
    *from = *link_of(seg, of->by, ref);
    return false;
}

static void take_one(struct sorting *of)
{
    struct pn_topic_sort *is = of->is;
    is->level = 0;
    if (is->rest == 0) {
        is->one = 0;
        is->doing = GATHERING;
        return;
    }
    is->one = is->rest;
    is->rest = *link_of(of->s->seg, of->by, is->one);
    *link_of(of->s->seg, of->by, is->one) = 0;
    is->doing = CARRYING;
}

/* `one` into the next level; `gather`: through all of them. */
static void carry(struct sorting *of, bool gather)
{
    struct pn_topic_sort *is = of->is;
    const uint32_t level = *(volatile const uint32_t *) &is->level;
    if (level > LEVELS) {
        pn_segment_poison(of->s->seg, "lists are merged at level %u, which is none", level);
        of->s->left = 0;
        return;
    }
    if (gather && level == LEVELS) {
        *of->head = is->one;
        is->a = is->one;
        is->b = 0;
        is->doing = LINKING;
        return;
    }
    if (level == LEVELS || is->part[level] == 0) { /* there are fewer than 2^32 */
        if (!gather) {
            is->part[level % LEVELS] = is->one;
            is->doing = TAKING;
        }
        is->level++;
        return;
    }
    begin_merge(of, is->part[level], is->one);
    is->part[level] = 0;
    is->doing = gather ? GATHER_MERGING : MERGING;
}

/* `a` is at, and `b` what stands before it. */
static void link_back(struct sorting *of)
{
    struct pn_topic_sort *is = of->is;
    if (is->a == 0) {
        *of->last = is->b;
        is->doing = NEXT_LIST;
        of->s->at->cursor++;
        return;
    }
    if (of->by == BY_ID)
        pn_message_at(of->s->seg, is->a)->prev = is->b;
    else
        pn_delivery_at(of->s->seg, is->a)->prev = is->b;
    is->b = is->a;
    is->a = *link_of(of->s->seg, of->by, is->a);
}

/* One unit, at whatever place the list is. */
static void sort_on(struct sorting *of)
{
    struct pn_topic_sort *is = of->is;
    switch ((enum doing) is->doing) {
    case NEXT_LIST:
        *is = (struct pn_topic_sort) {.doing = TAKING, .rest = *of->head};
        if (is->rest == 0)
            *of->last = 0, is->doing = NEXT_LIST, of->s->at->cursor++;
        break;
    case TAKING:
        take_one(of);
        break;
    case CARRYING:
    case GATHERING:
        carry(of, is->doing == GATHERING);
        break;
    case MERGING:
    case GATHER_MERGING:
        if (merge_one(of)) {
            is->one = is->first;
            is->level++;
            is->doing = is->doing == MERGING ? CARRYING : GATHERING;
        }
        break;
    default:
        link_back(of);
    }
}

bool pn_rebuild_sort_locked(struct pn_rebuild_step *s)
{
    pn_assert_held(s->seg);
    struct sorting of;
    const uint64_t most = 64 * (s->seg->topics.memory / 32); /* of one list, by far */
    while (list_at(s, &of)) {
        if (s->left <= 0)
            return false;
        if (of.is->moves > most) {
            pn_list_ends(s->seg, "messages");
            return true;
        }
        sort_on(&of);
        of.is->moves++;
        s->left--;
    }
    return true;
}

void pn_rebuild_sort_begin(struct pn_topic_sort *sort)
{
    sort->doing = NEXT_LIST;
}

bool pn_rebuild_sort_possible(const struct pn_topic_sort *sort)
{
    return sort->doing <= LINKING && sort->level <= LEVELS;
}
