/* area.c - the topic area: a list that leads nowhere. */
#include "topic/area.h"

bool pn_list_ends(const struct pn_segment *seg, const char *what)
{
    union {
        const struct pn_segment *is;
        struct pn_segment *poisoned; /* whatever the caller only looks at */
    } both = {seg};
    pn_segment_poison(both.poisoned, "a list of %s leads round", what);
    return false;
}
