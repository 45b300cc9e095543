/*
 * cancel.c - cancel: the end of a message that is still deferred.
 *
 * 1. In memory it is the end of the message as a whole, by one store (message.c 5).
 * 2. On disk, where it went for want of memory, a record cannot be taken out of the middle.  So a
 *    tombstone names the record; the store of LIVE is the commit point, and from then on the
 *    message does not exist: it is not counted, the log of a durable topic does not have it, and
 *    when its turn comes it is passed (overflow.c, take()).
 * 3. A tombstone is void as soon as its topic's queue has passed the record, so a death between the
 *    two leaves nothing wrong; the process that has passed some then frees them.  Until then each
 *    holds one of PN_TOMBSTONES places: they are for all topics of the segment, and a cancel that
 *    finds none is an error.
 * 4. In a transaction the tombstone is STAGED under the lock, an entry of the queue names it, and
 *    `head` makes it true; applied, it is LIVE (topic_ops.c).  prepare() keeps a PREPARED one, so
 *    that the commit cannot fail for want of a place: also for a message in memory, which may leave
 *    it (later.c).  The message may come back to memory meanwhile, and fire.
 * 5. Records have no index: a cancel reads the queue's files from the front, at most
 *    PN_TOPIC_STEPS records or PN_LOOK_BYTES in one hold of the lock.  Messages go from the topic's
 *    own files or `rest` to memory, from there to the end of `later` (later.c), and from its front
 *    to memory or to its end; from the topic's own files, or its backlog in memory, also to the end
 *    of `rest`.  So a process that has looked through the files in that order and then, in one hold
 *    that reached the end of `later`, through what was written to `rest` since it was there, and
 *    through memory, has missed none.
 *    A transaction that cancels remembers where `rest` and `later` ended as it began to look: what
 *    has gone to channels that rest, has left memory or was written again before it commits is
 *    behind that (cancel_ops.c 3).
 * 6. Channels that rest get copies, each when it has come to the record in `rest`; so does each
 *    that had it in memory from the beginning.  A copy may leave memory by itself.  So a message
 *    can be in a record of `rest`, in some of `later` and in memory, all at once: as many records
 *    as its topic has channels, and one that all have passed.  A cancel ends all of them, in one
 *    transaction.
 */
#define _GNU_SOURCE
#include "topic/cancel.h"

#include <errno.h>

#include "backend/backend.h"
#include "base/crashpoint.h"
#include "segment/lock.h"
#include "topic/area.h"
#include "topic/cursors.h"
#include "topic/drop.h"
#include "topic/end.h"
#include "topic/notes.h"
#include "topic/on_disk.h"
#include "topic/publish.h"
#include "topic/queues.h"
#include "topic/timedset.h"
#include "topic/tombstones.h"

enum { PN_A_LOOK = PN_LOOK_BYTES / PN_TOPIC_STEPS }; /* what one counts at the least */

/* ---- in memory ------------------------------------------------------------------------------- */

static bool all_deferred(const struct pn_segment *seg, const struct pn_message *m, int64_t now)
{
    PN_EACH_DELIVERY (seg, m, at) {
        const struct pn_delivery *d = pn_delivery_at(seg, at);
        const struct pn_topic_channel *ch = pn_topic_channel_at(seg, d->channel);
        bool deferred =
            pn_state_kind(pn_load_relaxed(&d->state)) == PN_KIND_DEFERRED || pn_is_backlog(seg, ch);
        if (!deferred || d->due <= now || pn_is_void(ch, d))
            return false;
    }
    return true;
}

/* What the channel has of it in its heap, which is looked through: that is what a cancel costs. */
static uint32_t find_timed(struct pn_segment *seg, struct pn_topic_channel *ch, uint64_t id)
{
    struct pn_timed entry;
    uint32_t i = 0;
    while ((i = pn_timedset_find(&seg->topics.arena, &ch->timed, (uint32_t) id, i)) < ch->timed.n) {
        if (!pn_timedset_entry(&seg->topics.arena, &ch->timed, i, &entry))
            break;
        uint32_t ref = pn_delivery_at(seg, entry.ref)->message;
        if (pn_message_at(seg, ref)->id == id)
            return ref;
        i++;
    }
    return 0;
}

static uint32_t find_in_backlog(struct pn_segment *seg, struct pn_topic *topic, uint64_t id)
{
    const struct pn_topic_channel *own =
        pn_topic_channel_at(seg, (uint32_t) (topic - seg->topics.topic));
    uint32_t steps = 0;
    for (uint32_t at = own->first; at != 0 && pn_cells_go_on(seg, &steps);
         at = pn_delivery_at(seg, at)->next)
        if (pn_message_at(seg, pn_delivery_at(seg, at)->message)->id == id)
            return pn_delivery_at(seg, at)->message;
    return 0;
}

static bool is_deferred_copy(const struct pn_segment *seg, uint32_t ref, int64_t now)
{
    return ref != 0 && pn_load_relaxed(&pn_message_at(seg, ref)->state) == PN_MSG_LIVE &&
           all_deferred(seg, pn_message_at(seg, ref), now);
}

/* Copies that were found, and in how many channels; more than these are looked for to the end. */
struct copies {
    uint32_t ref[16], n, channels;
};

static void add_copy(const struct pn_segment *seg, struct copies *found, uint32_t ref)
{
    const uint32_t most = sizeof found->ref / sizeof found->ref[0];
    for (uint32_t i = 0; i < found->n && i < most; i++)
        if (found->ref[i] == ref)
            return;
    if (found->n < most)
        found->ref[found->n] = ref;
    found->n++;
    found->channels += found->n <= most ? pn_message_at(seg, ref)->refs : 0;
}

void pn_deferred_copies_locked(struct pn_segment *seg, struct pn_topic *topic, uint64_t id,
                               int64_t now, void (*each)(void *arg, uint32_t ref), void *arg)
{
    pn_assert_topics_held(seg);
    const bool several = topic->rest.max_file != 0; /* else there is one, of all its channels */
    struct copies found = {.n = 0};
    PN_EACH_CHANNEL (seg, topic, i) {
        if ((found.n != 0 && !several) || found.channels >= topic->nchannels)
            break;
        const uint32_t ref = find_timed(seg, pn_topic_channel_at(seg, i - 1), id);
        if (ref == 0)
            continue;
        add_copy(seg, &found, ref);
        if (is_deferred_copy(seg, ref, now))
            each(arg, ref);
    }
    const uint32_t ref = found.n != 0 ? 0 : find_in_backlog(seg, topic, id);
    if (is_deferred_copy(seg, ref, now))
        each(arg, ref);
}

static void keep_first(void *arg, uint32_t ref)
{
    uint32_t *first = arg;
    *first = *first != 0 ? *first : ref;
}

uint32_t pn_deferred_in_memory_locked(struct pn_segment *seg, struct pn_topic *topic, uint64_t id)
{
    pn_assert_topics_held(seg);
    uint32_t first = 0;
    pn_deferred_copies_locked(seg, topic, id, pn_now_ns(), keep_first, &first);
    return first;
}

/* ---- on disk --------------------------------------------------------------------------------- */

/* Has a channel it still?  Else it was emptied or deleted, or all have passed it. */
static bool is_of_a_channel(struct pn_segment *seg, struct pn_topic *topic, uint64_t queue,
                            const struct pn_topic_on_disk *m)
{
    struct pn_spilled_delivery to;
    if (queue == 0)
        return true;
    PN_EACH_CHANNEL_AS (seg, topic, ch)
        if (queue == PN_REST_SEQ && pn_rest_has(seg, topic, ch, m))
            return true;
    for (uint32_t i = 0; queue == PN_LATER_SEQ && i < m->deliveries.n; i++)
        if (pn_spilled_delivery_locked(seg, topic, &m->deliveries, i, &to))
            return true;
    return false;
}

/* The next record of it in that queue which is deferred, *at on; -EAGAIN: *left is 0, of as much as
 * one hold of the lock looks at. */
static int find_on_disk(struct pn_segment *seg, struct pn_topic *topic, uint64_t id, uint64_t queue,
                        struct pn_diskqueue_cursor *at, uint64_t *left, struct pn_deferred *d)
{
    const int64_t now = pn_now_ns();
    struct pn_topic_on_disk m;
    if (pn_diskqueue_depth(pn_topic_queue_of(topic, queue)) == 0)
        return 0;
    while (*left > 0) {
        const struct pn_diskqueue_cursor before = *at;
        int rc = queue == PN_REST_SEQ    ? pn_rest_look_locked(seg, topic, at, &m)
                 : queue == PN_LATER_SEQ ? pn_later_look_locked(seg, topic, at, &m)
                                         : pn_topic_disk_look_locked(seg, topic, at, &m);
        if (rc <= 0 && rc != -EAGAIN)
            return rc;
        const uint64_t cost = rc != 1 ? PN_LOOK_BYTES : m.bytes > PN_A_LOOK ? m.bytes : PN_A_LOOK;
        *left = *left > cost ? *left - cost : 0;
        if (rc != 1 || !m.there || m.m.id != id || !is_of_a_channel(seg, topic, queue, &m))
            continue;
        d->at = before;
        d->seq = m.seq;
        d->due = m.due;
        d->on_disk = m.due > now && (m.expires == 0 || m.expires > now) &&
                     pn_deferred_on_disk_locked(seg, topic, m.seq);
        if (d->on_disk)
            return 1;
    }
    return -EAGAIN;
}

int pn_deferred_since_locked(struct pn_segment *seg, struct pn_topic *topic, uint64_t id,
                             struct pn_deferred_since *since, uint64_t *left,
                             struct pn_deferred *found)
{
    pn_assert_topics_held(seg);
    int rc = find_on_disk(seg, topic, id, PN_REST_SEQ, &since->rest, left, found);
    if (rc == 0)
        rc = find_on_disk(seg, topic, id, PN_LATER_SEQ, &since->later, left, found);
    return rc;
}

/* Is it in memory, and so nowhere else? */
static bool is_at_hand(struct pn_segment *seg, struct pn_topic *topic, uint64_t id,
                       struct pn_deferred *d)
{
    if (pn_rest_records(topic) != 0 || (d->places > 1 && pn_topic_later(topic) != 0))
        return false;
    d->message = pn_deferred_in_memory_locked(seg, topic, id);
    return d->message != 0 || (pn_topic_on_disk(topic) == 0 && pn_topic_later(topic) == 0);
}

/* The three queues, one after the other; and `rest` once more, from where it ended before `later`
 * was looked through, in each hold that has come to the end of that. */
static int find_in_queues(struct pn_segment *seg, struct pn_topic *topic, uint64_t id,
                          struct pn_deferred *d)
{
    uint64_t left = PN_LOOK_BYTES;
    int rc = find_on_disk(seg, topic, id, d->queue, &d->cursor, &left, d);
    while (rc == 0 && d->queue != PN_LATER_SEQ) {
        if (d->queue == PN_REST_SEQ)
            pn_diskqueue_end(&topic->rest, false, &d->rest);
        d->queue = d->queue == 0 ? PN_REST_SEQ : PN_LATER_SEQ;
        d->cursor = (struct pn_diskqueue_cursor) {0};
        rc = find_on_disk(seg, topic, id, d->queue, &d->cursor, &left, d);
    }
    return rc != 0 ? rc : find_on_disk(seg, topic, id, PN_REST_SEQ, &d->rest, &left, d);
}

int pn_deferred_find_locked(struct pn_segment *seg, struct pn_topic *topic, uint64_t id,
                            struct pn_deferred *d)
{
    pn_assert_topics_held(seg);
    d->on_disk = false;
    d->message = 0;
    if (!d->begun) {
        d->places = topic->nchannels > 1 ? topic->nchannels + 1 : 1;
        pn_diskqueue_end(&topic->rest, false, &d->since.rest);
        pn_diskqueue_end(&topic->later, false, &d->since.later);
        d->ended = is_at_hand(seg, topic, id, d);
        if (d->ended)
            return d->message != 0;
    }
    d->begun = true;
    const int rc = find_in_queues(seg, topic, id, d);
    d->ended = rc == 0 || (rc == 1 && (d->queue == 0 || d->places == 1));
    if (rc == 0)
        d->message = pn_deferred_in_memory_locked(seg, topic, id);
    return d->message != 0 ? 1 : rc;
}

/* ---- tombstones ------------------------------------------------------------------------------ */

void pn_cancel_apply_locked(struct pn_segment *seg, uint64_t id, uint32_t message,
                            uint32_t tombstone, uint64_t seq)
{
    pn_assert_topics_held(seg);
    struct pn_hold *hold = pn_topics_hold(seg);
    if (tombstone != 0)
        pn_tombstone_bury_locked(seg, tombstone, seq);
    if (message == 0 || pn_message_at(seg, message)->id != id ||
        pn_load_relaxed(&pn_message_at(seg, message)->state) != PN_MSG_LIVE)
        return;
    hold->told = true;
    pn_message_discard_locked(seg, message);
    hold->told = false;
    PN_CRASH("commit:cancelled");
}

/* ---- the call -------------------------------------------------------------------------------- */

int pn_message_cancel(struct pn_conn *conn, pn_ref ref, uint64_t id)
{
    struct pn_hold hold;
    struct pn_segment *seg = conn->seg;
    struct pn_deferred d = {.begun = false};
    struct pn_topic *topic;
    int rc;
    do {
        rc = pn_topic_enter(conn, &hold, ref, &topic);
        if (rc != 0)
            return rc;
        rc = pn_deferred_find_locked(seg, topic, id, &d);
        if (topic->nchannels > 1 && (!d.ended || (rc == 1 && topic->rest.max_file != 0)))
            rc = PN_CANCEL_EVERYWHERE;
        else if (rc == 1 && d.on_disk &&
                 pn_tombstone_make_locked(seg, topic, d.seq, PN_TOMB_LIVE, conn) == 0)
            rc = -PN_ETOPICFULL;
        else if (rc == 1 && d.on_disk)
            pn_durable_note_cancelled_locked(seg, topic, id, true);
        for (uint32_t steps = 0; rc == 1 && d.message != 0 && pn_cells_go_on(seg, &steps);
             d.message = pn_deferred_in_memory_locked(seg, topic, id))
            pn_message_discard_locked(seg, d.message);
        pn_topics_end_locked(seg);
        pn_lock_release(seg);
        PN_CRASH("cancel:look");
    } while (rc == -EAGAIN);
    return rc;
}
