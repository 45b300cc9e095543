/*
 * frontier.c - the oldest message that can be dropped is found without looking at all of them.
 *
 * 1. A consumer may have tens of thousands in flight, all older than what waits.  So a topic keeps
 *    how far it has looked: none before its frontier, passed[0], can be dropped (I31).  A look
 *    begins there, and each message is passed once for each time that it comes back.
 * 2. What comes back before the frontier becomes the frontier.  From the last of those, back_last,
 *    the look jumps to `beyond`, where the frontier stood: what is in between was passed.
 * 3. Which of two messages stands first is told by their ids.  A transaction takes its ids when its
 *    caller publishes and links its messages when it commits: from then on, until the list is
 *    empty, ids tell little.  What comes back then may be missed, so a look that finds nothing
 *    begins once more at the oldest.
 * 4. A look of many steps is made in pieces, between which the lock is free (publish.c).
 * 5. A look changes nothing that a death would have to repair, and so `topics_dirty` is not set for
 *    it.  What it stores is true after each store.
 */
#include "topic/frontier.h"

#include "base/atomic.h"
#include "base/crashpoint.h"
#include "segment/lock.h"

static bool any_in_flight(const struct pn_segment *seg, const struct pn_message *m)
{
    PN_EACH_DELIVERY (seg, m, at)
        if (pn_state_kind(pn_load_relaxed(&pn_delivery_at(seg, at)->state)) >= PN_KIND_IN_FLIGHT)
            return true;
    return false;
}

/* What can be dropped for a new one. */
static bool can_go(const struct pn_segment *seg, const struct pn_message *m)
{
    return m->firm != 0 && !any_in_flight(seg, m);
}

/* A look, on its holder's stack. */
struct look {
    uint32_t at, back_last, beyond, unsorted;
};

/* Where it goes on; 0: all was looked at. */
static uint32_t behind(const struct pn_segment *seg, const struct pn_topic *topic, struct look *l)
{
    uint32_t next = l->at == l->back_last ? l->beyond : pn_message_at(seg, l->at)->next;
    if (l->at == l->back_last)
        l->back_last = 0;
    if (next != 0 || l->unsorted != PN_UNSORTED_MISSED)
        return next;
    l->unsorted = PN_UNSORTED;
    l->back_last = 0;
    return topic->oldest;
}

/* Each store leaves what is true, if with more to look at: a look is not repaired (5). */
static void keep_what_was_seen(struct pn_topic *topic, const struct look *l)
{
    if (l->back_last == 0)
        topic->back_last = 0; /* before the frontier is behind it */
    pn_compiler_fence();
    PN_CRASH("frontier:jumped");
    if (l->back_last == 0)
        topic->beyond = 0;
    topic->passed[0] = l->at;
    pn_compiler_fence();
    PN_CRASH("frontier:passed");
    topic->unsorted = l->unsorted; /* after the frontier has begun again */
}

uint32_t pn_frontier_find_locked(struct pn_segment *seg, struct pn_topic *topic, uint32_t *steps)
{
    pn_assert_topics_held(seg);
    struct look l = {
        .back_last = topic->back_last, .beyond = topic->beyond, .unsorted = topic->unsorted};
    uint32_t found = 0;
    for (uint32_t at = topic->passed[0] != 0 ? topic->passed[0] : topic->oldest; at != 0;
         at = behind(seg, topic, &l)) {
        const struct pn_message *m = pn_message_at(seg, at);
        l.at = at;
        if (*steps == 0)
            break;
        --*steps;
        if (can_go(seg, m)) {
            pn_invariant(seg, "I31",
                         topic->unsorted != PN_SORTED || m->prev == 0 ||
                             !can_go(seg, pn_message_at(seg, m->prev)));
            found = at;
            break;
        }
    }
    keep_what_was_seen(topic, &l);
    return found;
}

uint32_t pn_frontier_find_soft_locked(struct pn_segment *seg, struct pn_topic *topic,
                                      uint32_t steps)
{
    pn_assert_topics_held(seg);
    uint32_t ref = topic->passed[1] != 0 ? topic->passed[1] : topic->oldest;
    for (; ref != 0; ref = pn_message_at(seg, ref)->next) {
        const struct pn_message *m = pn_message_at(seg, ref);
        topic->passed[1] = ref;
        if (steps-- == 0)
            return 0;
        if (m->firm == 0 && !any_in_flight(seg, m))
            return ref;
    }
    topic->passed[1] = 0;
    return 0;
}

void pn_frontier_linked_locked(struct pn_segment *seg, struct pn_topic *topic, uint32_t ref)
{
    pn_assert_topics_held(seg);
    const struct pn_message *m = pn_message_at(seg, ref);
    if (m->prev == 0)
        topic->unsorted = PN_SORTED;
    else if (topic->unsorted == PN_SORTED && m->id < pn_message_at(seg, m->prev)->id)
        topic->unsorted = PN_UNSORTED;
}

void pn_frontier_back_locked(struct pn_segment *seg, struct pn_topic *topic, uint32_t ref)
{
    pn_assert_topics_held(seg);
    const uint32_t front = topic->passed[0], last = topic->back_last;
    const uint64_t id = pn_message_at(seg, ref)->id;
    if (topic->unsorted != PN_SORTED)
        topic->unsorted = PN_UNSORTED_MISSED;
    if (front == 0)
        return;
    if (id < pn_message_at(seg, front)->id) {
        topic->passed[0] = ref;
        if (last == 0)
            topic->back_last = ref, topic->beyond = front;
    } else if (last != 0 && id > pn_message_at(seg, last)->id &&
               id < pn_message_at(seg, topic->beyond)->id) {
        topic->back_last = ref;
    }
}

void pn_frontier_left_locked(struct pn_segment *seg, struct pn_topic *topic, uint32_t ref)
{
    pn_assert_topics_held(seg);
    const struct pn_message *m = pn_message_at(seg, ref);
    const uint32_t other = m->next != 0 ? m->next : m->prev;
    if (topic->passed[1] == ref)
        topic->passed[1] = m->next;
    if (topic->beyond == ref)
        topic->beyond = other;
    if (topic->back_last == ref && topic->passed[0] == ref) {
        topic->passed[0] = topic->beyond;
        topic->back_last = topic->beyond = 0;
    } else if (topic->passed[0] == ref) {
        topic->passed[0] = other;
    } else if (topic->back_last == ref) {
        topic->back_last = m->prev;
    }
}
