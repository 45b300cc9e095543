/* queue.h - the ring of pages: what pins it, and its tail. */
#ifndef PN_QUEUE_H
#define PN_QUEUE_H

#include "queue/entry.h"
#include "segment/lock.h"

/* Does the slot pin the queue, and where? */
bool pn_backend_pins(const struct pn_segment *seg, const struct QueueBackendStatus *backend,
                     QueuePosition *start);

/* tail = min(head, what is pinned); returns the slot that holds it, -1 if none.  Lock held. */
int32_t pn_queue_advance_tail_locked(struct pn_segment *seg);

/* A listener has gone: if there are files, perhaps only it needed them.  Lock held. */
static inline void pn_queue_let_go_locked(struct pn_segment *seg)
{
    pn_assert_held(seg);
    if (__builtin_expect(pn_load_relaxed(&seg->ctl->first_file) < seg->ctl->end_file, 0))
        pn_queue_advance_tail_locked(seg);
}

#endif
