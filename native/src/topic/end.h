/*
 * end.h - how every operation on topics ends.
 *
 * Everything needs the writer lock.
 */
#ifndef PN_TOPIC_END_H
#define PN_TOPIC_END_H

#include "topic/area.h"
#include "topic/journal.h"
#include "topic/overflow.h"
#include "topic/sweep.h"

/* What every operation on topics does at its end, for those before it. */
static inline void pn_topics_tend_locked(struct pn_segment *seg)
{
    pn_assert_topics_held(seg);
    if (__builtin_expect(seg->topics.ctl->sweeping != 0, 0)) /* perhaps of a dead process */
        pn_topics_sweep_locked(seg);
    if (__builtin_expect(seg->topics.ctl->spilled != 0, 0))
        pn_topics_refill_locked(seg);
    if (__builtin_expect(seg->topics.noted != 0 || seg->topics.ctl->log_behind != 0 ||
                             pn_load_relaxed(&seg->topics.ctl->log.failed) != 0,
                         0))
        pn_durable_end_locked(seg);
}
static inline void pn_topics_end_locked(struct pn_segment *seg)
{
    pn_topics_tend_locked(seg);
    pn_compiler_fence();
    pn_store_relaxed(&seg->ctl->topics_dirty, 0);
}

#endif
