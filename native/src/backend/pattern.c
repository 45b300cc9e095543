/* pattern.c - see pattern.h. */
#include "backend/pattern.h"

#include "backend/channel.h"
#include "base/crashpoint.h"
#include "base/glob.h"
#include "segment/lock.h"

/* `link` may be 0; a scribbled one is found when the list is followed. */
static struct GlobalChannelEntry *linked(const struct pn_segment *seg, uint32_t link)
{
    return link != 0 && link <= seg->max_channels ? pn_channel_at(seg, link - 1) : NULL;
}

void pn_pattern_link_locked(struct pn_segment *seg, struct GlobalChannelEntry *e)
{
    pn_assert_held(seg);
    uint32_t self = pn_channel_index(seg, e) + 1;
    struct GlobalChannelEntry *next = linked(seg, seg->ctl->first_pattern);
    pn_invariant(seg, "I32", pn_is_pattern(e) && seg->ctl->first_pattern != self);
    e->prev_pattern = 0;
    e->next_pattern = seg->ctl->first_pattern;
    if (next != NULL)
        next->prev_pattern = self;
    PN_CRASH("listen:pattern");
    seg->ctl->first_pattern = self;
    seg->ctl->patterns_used++;
}

void pn_pattern_unlink_locked(struct pn_segment *seg, struct GlobalChannelEntry *e)
{
    pn_assert_held(seg);
    struct GlobalChannelEntry *next = linked(seg, e->next_pattern);
    struct GlobalChannelEntry *prev = linked(seg, e->prev_pattern);
    pn_invariant(seg, "I32",
                 (prev != NULL ? prev->next_pattern : seg->ctl->first_pattern) ==
                     pn_channel_index(seg, e) + 1);
    if (next != NULL)
        next->prev_pattern = e->prev_pattern;
    PN_CRASH("unlisten:pattern");
    if (prev != NULL)
        prev->next_pattern = e->next_pattern;
    else
        seg->ctl->first_pattern = e->next_pattern;
    seg->ctl->patterns_used--;
}

struct GlobalChannelEntry *pn_pattern_next_locked(struct pn_segment *seg,
                                                  struct pn_pattern_walk *walk, uint32_t dboid,
                                                  const char *name, size_t len)
{
    pn_assert_held(seg);
    while (walk->link != 0) {
        struct GlobalChannelEntry *e = linked(seg, walk->link);
        uint32_t pattern_len = e == NULL ? 0 : *(volatile const uint16_t *) &e->name_len;
        if (e == NULL || walk->steps++ > seg->max_channels || pattern_len > seg->max_channel_name) {
            pn_segment_poison(seg, "the list of patterns leads nowhere");
            walk->link = 0;
            return NULL;
        }
        walk->link = e->next_pattern;
        if (e->dboid == (dboid | PN_PATTERN) &&
            pn_glob_matches(pn_channel_name(seg, e), pattern_len, name, len))
            return e;
    }
    return NULL;
}

bool pn_pattern_hears_locked(struct pn_segment *seg, uint32_t dboid, const char *name, size_t len)
{
    pn_assert_held(seg);
    struct pn_pattern_walk walk = pn_pattern_walk_begin(seg);
    const struct GlobalChannelEntry *e;
    do {
        e = pn_pattern_next_locked(seg, &walk, dboid, name, len);
    } while (e != NULL && e->numListeners == 0);
    return e != NULL;
}
