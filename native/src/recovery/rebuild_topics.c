/*
 * rebuild_topics.c - closed topics are opened again: everything derived, from the truth, in steps.
 *
 * 1. What exists is found by looking at every cell: messages that are LIVE, or PREPARED by a
 *    slot that lives; deliveries that are not FREE, not void, in a channel in use, and of such a
 *    message.  A message in a backlog and in channels as well was half pumped, and is in the
 *    backlog (message.c 3); one without a delivery is free.  The rest of the arena is free.  Then
 *    the lists: pushed in any order, and sorted by merging, without memory.  Then the log of
 *    durable topics is written again.
 * 2. A step is at most PN_REBUILD_UNITS of that, and a hold of the lock has one step: so
 *    notifications go on, and wait for one step, not for all.  Where the next step begins stands in
 *    shared memory (struct pn_topic_repair), so that any process makes it: each that takes the
 *    lock, and those that want topics until they are open (pn_lock_topics).
 * 3. Between two steps PN_TOPICS_CLOSED stands alone, and nothing changes what the next
 *    one relies on: operations on topics wait; no slot is freed (backend.c), so what is PREPARED
 *    or HELD stays so; nothing is noted for the log.  What is read without the lock is a message
 *    that a consumer copies: nothing of it is changed, but the arena's marks are, so a copy that
 *    failed is made again when they are open (consume.c).
 * 4. Within a step PN_TOPICS_DIRTY stands as well.  A death there leaves lists and counters that
 *    say nothing; the truth is only ever freed of what does not exist, and so is still the truth.
 *    Recovery begins again with the first step (recover_topics.c); but where only the log was being
 *    written, with that: indices are right by then, and the log's compaction begins again as often
 *    as one likes.  A sorted list is long, and one step too short for it: so the merging stands in
 *    shared memory as well.
 * 5. The log is written again by a compaction that begins now (topic_log.c 4), before any call may
 *    change a topic: what the dead one had written and memory does not have must not be answered
 *    a second time before it is gone.  If that fails (a full disk), `log_behind` stands, topics are
 *    opened, and the next operation on a durable one says so.  A process that only notifies does
 *    none of its steps: they open files.
 * 6. At last what is waited for, which may have become true by what was redone: each topic is
 *    swept, pumped and settled as by any operation on it, so that consumers that sleep are woken.
 */
#include "recovery/rebuild_topics.h"

#include "base/crashpoint.h"
#include "recovery/rebuild_found.h"
#include "recovery/rebuild_lists.h"
#include "recovery/rebuild_sort.h"
#include "topic/end.h"
#include "topic/journal.h"
#include "topic/pump.h"
#include "topic/sweep.h"
#include "topic/waiting.h"

uint32_t pn_rebuild_units = PN_REBUILD_UNITS;
int64_t pn_repair_again_ns = PN_REPAIR_AGAIN_NS;

enum phase {
    TABLES,     /* of topics and channels: counts and lists are forgotten */
    MESSAGES,   /* which exist; and pages are unmarked */
    DELIVERIES, /* which exist, hung on their messages */
    MARKS,      /* bodies of messages that have deliveries */
    DELIVERY_MARKS,
    HISTOGRAMS,
    PAGES,     /* what is not marked is free, from the last page on */
    CONSUMERS, /* hung on their channels */
    PUSHING,   /* deliveries into the lists */
    LISTING,   /* messages into those of topics */
    SORTING,
    LOG_BEGIN,
    LOG,
    GOING_ON,
    OPEN
};

/* ---- the log, and what is waited for --------------------------------------------------------- */

static bool write_log(struct pn_rebuild_step *s)
{
    bool first = s->at->phase == LOG_BEGIN;
    s->left = 0;
    if (pn_durable_anew_locked(s->seg, first))
        return first; /* and on with LOG */
    s->at->phase = LOG;
    return true;
}

static bool go_on(struct pn_rebuild_step *s)
{
    struct pn_topics *t = &s->seg->topics;
    uint32_t row;
    if (s->at->cursor == 0)
        pn_topics_sweep_locked(s->seg);
    while (s->left > 0 && pn_rebuild_row(s, t->max_topics, &row)) {
        struct pn_topic *topic = &t->topic[row];
        s->left -= 4;
        if (pn_load_relaxed(&topic->state) != PN_RECORD_USED)
            continue;
        s->left -= 4 * (int64_t) PN_TOPIC_STEPS;
        pn_topic_pump_locked(s->seg, topic);
        pn_topic_settle_locked(s->seg, topic);
    }
    pn_topics_tend_locked(s->seg);
    return pn_rebuild_cursor(s) >= t->max_topics;
}

/* ---- steps ----------------------------------------------------------------------------------- */

static bool needs_files(const struct pn_segment *seg, uint32_t phase)
{
    return phase >= LOG_BEGIN && seg->topics.ctl->log_ready != 0 && seg->topics.durable == NULL;
}

/* What the phase does in what is left of the step; *done: it is over. */
static int play(struct pn_rebuild_step *s, bool *done)
{
    switch ((enum phase) s->at->phase) {
    case TABLES:
        *done = pn_rebuild_tables_locked(s);
        return 0;
    case MESSAGES:
        *done = pn_rebuild_messages_locked(s);
        return 0;
    case DELIVERIES:
        *done = pn_rebuild_deliveries_locked(s);
        return 0;
    case MARKS:
        return pn_rebuild_bodies_locked(s, done);
    case DELIVERY_MARKS:
        *done = pn_rebuild_delivery_marks_locked(s);
        return pn_segment_check_state(s->seg);
    case HISTOGRAMS:
        *done = pn_rebuild_histograms_locked(s);
        return 0;
    case PAGES:
        *done = pn_rebuild_pages_locked(s);
        return 0;
    case CONSUMERS:
        *done = pn_rebuild_consumers_locked(s);
        return 0;
    case PUSHING:
        return pn_rebuild_push_locked(s, done);
    case LISTING:
        *done = pn_rebuild_list_locked(s);
        return 0;
    case SORTING:
        *done = pn_rebuild_sort_locked(s);
        return pn_segment_check_state(s->seg);
    case LOG_BEGIN:
    case LOG:
        *done = write_log(s);
        return 0;
    case GOING_ON:
        *done = go_on(s);
        return pn_segment_check_state(s->seg);
    default:
        *done = true;
        return pn_segment_poison(s->seg, "the repair of topics is at %u, which is not",
                                 s->at->phase);
    }
}

static void crash_between(enum phase over)
{
    if (over == MESSAGES)
        PN_CRASH("topic-recover:messages");
    else if (over == DELIVERIES)
        PN_CRASH("topic-recover:deliveries");
    else if (over == TABLES)
        PN_CRASH("topic-recover:tables");
    else if (over == PAGES)
        PN_CRASH("topic-recover:arena");
    else if (over == LISTING)
        PN_CRASH("topic-recover:pushed");
    else if (over == SORTING)
        PN_CRASH("topic-recover:lists");
    else if (over == LOG)
        PN_CRASH("topic-recover:log");
    else if (over == GOING_ON)
        PN_CRASH("topic-recover:before-clean");
}

/* Phases, until the units are spent or the lists are right or all is. */
static int play_some(struct pn_rebuild_step *s, bool all)
{
    struct pn_topic_repair *at = s->at;
    int rc = 0;
    while (rc == 0 && s->left > 0 && at->phase != OPEN &&
           (all || !needs_files(s->seg, at->phase))) {
        bool done = false;
        rc = play(s, &done);
        if (rc != 0 || !done)
            break;
        crash_between(at->phase);
        at->phase++;
        at->cursor = at->kind = 0;
        pn_rebuild_sort_begin(&at->sort);
    }
    return rc;
}

void pn_topics_rebuild_anew_locked(struct pn_segment *seg)
{
    pn_assert_held(seg);
    struct pn_topic_repair *at = &seg->topics.ctl->repair;
    bool closed = pn_topics_closed(seg);
    bool log = closed && (at->phase == LOG_BEGIN || at->phase == LOG);
    at->phase = log ? LOG_BEGIN : TABLES;
    at->cursor = at->kind = 0;
    pn_rebuild_sort_begin(&at->sort);
    at->rebuilds += !closed;
    at->helped_at = pn_now_ns(); /* the process that found the death goes on with it */
}

/* What indexes something in a step; where another word was overwritten, less or more is done. */
static int check_place(struct pn_segment *seg, const struct pn_topic_repair *at)
{
    if (at->phase < OPEN && at->kind <= 3 && pn_rebuild_sort_possible(&at->sort))
        return 0;
    return pn_segment_poison(seg, "the repair of topics is at %u, %u, %u, %u, which is no place",
                             at->phase, at->kind, at->sort.doing, at->sort.level);
}

/* `wanted`: this process goes on with it. */
static void look_for_help(struct pn_segment *seg, bool wanted)
{
    struct pn_topic_repair *at = &seg->topics.ctl->repair;
    const int64_t now = pn_now_ns();
    if (wanted)
        at->helped_at = now;
    else if (now - at->helped_at >= pn_repair_again_ns)
        pn_hold_of(seg)->at_end |= PN_REPAIR;
}

int pn_topics_rebuild_step_locked(struct pn_segment *seg, bool all)
{
    pn_assert_held(seg);
    struct pn_topic_repair *at = &seg->topics.ctl->repair;
    const int64_t units = pn_rebuild_units;
    struct pn_rebuild_step s = {.seg = seg, .at = at, .left = units};
    int rc = check_place(seg, at);
    look_for_help(seg, all);
    if (rc != 0 || (!all && needs_files(seg, at->phase)))
        return rc;
    pn_store_relaxed(&seg->ctl->topics_dirty, PN_TOPICS_CLOSED | PN_TOPICS_DIRTY);
    pn_compiler_fence();
    PN_CRASH("topic-recover:step");
    rc = play_some(&s, all);
    if (rc != 0)
        return rc; /* the next holder begins again */
    at->steps++;
    if (units - s.left > at->most)
        at->most = (uint32_t) (units - s.left);
    PN_CRASH("topic-recover:stepped");
    pn_compiler_fence();
    pn_store_relaxed(&seg->ctl->topics_dirty, at->phase == OPEN ? 0 : PN_TOPICS_CLOSED);
    if (at->phase == OPEN) {
        PN_CRASH("topic-recover:clean");
        pn_hold_of(seg)->at_end |= PN_REPAIR; /* the dead are reaped */
    }
    return pn_segment_check_state(seg);
}
