/*
 * open.c - the topic area is made: allocated, formatted, and what the log of durable topics
 * says put into it.
 *
 * 1. It takes as long as the zeroing of topic_memory and the reading of the log, seconds with a
 *    million messages.  So it is done without the writer lock: commits and notifications go on.
 * 2. Until `topics_ready` is stored, only the thread that makes the area looks into it: there is
 *    one, the holder of the lock `opening` (lock.c).  Others that want topics wait for that lock,
 *    for a limited time.  It is robust: what a dead holder has made does not count, and the next
 *    one begins with the first step.
 * 3. What is shared with others before is taken under the writer lock, for a short while: rows of
 *    databases (restore.c, durable.c), and the store of `topics_ready`, so that no
 *    holder of the writer lock sees that change.
 * 4. The process that makes it does not leave in between, to let signal handlers run (lock.c 4):
 *    all would have to be done again.  It begins only when the writer lock is to be had.
 */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/crashpoint.h"
#include "segment/arena_share.h"
#include "segment/identity.h"
#include "topic/area.h"
#include "topic/durable.h"
#include "topic/end.h"
#include "topic/open.h"

static int allocate(struct pn_segment *seg)
{
    const struct pn_topics *t = &seg->topics;
    int fd = pn_segment_file(seg);
    if (fd < 0)
        return pn_fail(PN_EGONE,
                       "the file of segment \"%s\" was closed in this process, and has no name "
                       "any more\nClose the connection and open the segment again.",
                       seg->name);
    int rc = pn_segment_allocate(fd, t->offset, seg->size - t->offset, 0);
    PN_CRASH("topic:allocated");
    return rc;
}

/* Whatever a dead one has left there. */
static void format(struct pn_segment *seg)
{
    struct pn_topics *t = &seg->topics;
    struct timespec now;
    memset(t->ctl, 0, sizeof *t->ctl);
    memset(t->topic, 0, t->max_topics * sizeof *t->topic);
    memset(t->channel, 0, t->max_channels * sizeof *t->channel);
    memset(t->consumer, 0, t->max_consumers * sizeof *t->consumer);
    clock_gettime(CLOCK_REALTIME, &now);
    pn_store_relaxed(&t->ctl->next_id, (uint64_t) now.tv_sec * 1000000000 + (uint64_t) now.tv_nsec);
    t->ctl->seed = (uint32_t) pn_os_random();
    t->ctl->channel_hint = t->max_topics;
    pn_arena_format_locked(&t->arena);
    pn_arena_share_locked(&t->arena);
    PN_CRASH("topic:formatted");
}

static int fill(struct pn_segment *seg)
{
    int rc = allocate(seg);
    if (rc != 0)
        return rc;
    format(seg);
    if (pn_durable_exists(seg))
        rc = pn_durable_start_alone(seg);
    PN_CRASH("topic:restored");
    return rc;
}

/* What was collected without the lock is done after the first hold of it. */
static int make(struct pn_segment *seg)
{
    struct pn_hold hold, opening = {.at_end = 0};
    seg->topics.opening = &opening;
    int rc = fill(seg);
    seg->topics.opening = NULL;
    if (rc == 0)
        rc = pn_lock_topics(seg, &hold, PN_LOCK_TIMEOUT_NS);
    if (rc != 0)
        return rc;
    opening.at_end |= hold.at_end; /* of a recovery */
    hold = opening;
    pn_store_release(&seg->ctl->topics_ready, 1); /* pairs with the acquire in pn_topics_ready() */
    PN_CRASH("topic:ready");
    pn_lock_release(seg);
    return 0;
}

int pn_topics_make_ready(struct pn_segment *seg)
{
    if (__builtin_expect(pn_topics_ready(seg), 1))
        return 0;
    struct pn_hold hold;
    int rc = pn_lock_wait(seg, &hold, PN_LOCK_TIMEOUT_NS, seg); /* 4 */
    if (rc != 0)
        return rc;
    pn_lock_release(seg);
    rc = pn_opening_begin(seg);
    if (rc != 0)
        return rc;
    bool never_wait = pn_never_wait;
    pn_never_wait = false; /* what is done by now would be lost */
    rc = pn_topics_ready(seg) ? 0 : make(seg);
    pn_never_wait = never_wait;
    pn_opening_end(seg);
    return rc;
}

int pn_topics_wake(struct pn_segment *seg)
{
    struct pn_hold hold;
    int rc = pn_topics_make_ready(seg);
    if (rc == 0)
        rc = pn_lock_topics_wait(seg, &hold, PN_LOCK_TIMEOUT_NS, seg);
    if (rc != 0)
        return rc;
    pn_topics_begin_locked(seg);
    pn_topics_end_locked(seg);
    pn_lock_release(seg);
    return 0;
}

int pn_topics_await(struct pn_segment *seg)
{
    struct pn_hold hold;
    int rc = 0;
    if (!pn_topics_ready(seg)) {
        while ((rc = pn_opening_begin(seg)) == -EINTR)
            ; /* its thread runs no signal handlers */
        if (rc == 0)
            pn_opening_end(seg);
    }
    if (rc == 0)
        rc = pn_lock_topics(seg, &hold, PN_LOCK_TIMEOUT_NS);
    if (rc == 0)
        pn_lock_release(seg);
    return rc;
}
