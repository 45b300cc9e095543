/*
 * admission.c - may a message be published?  The bounds of its topic, and what makes room.
 *
 * What has expired makes room, and so does what was deleted, what only ephemeral channels have and,
 * if the topic says so, the oldest.  What timed out for the last time makes room as well, but by
 * then it may have become a dead letter, which asks this file for room in another topic.  So
 * publishers see to that before (publish.c), and dead letters do not: else one could lead to
 * another, and round and round, in one hold of the lock.
 */
#include "topic/admission.h"

#include <stdio.h>

#include "base/crashpoint.h"
#include "base/moment.h"
#include "segment/arena_share.h"
#include "segment/lock.h"
#include "topic/area.h"
#include "topic/delivery.h"
#include "topic/drop.h"
#include "topic/message.h"
#include "topic/on_disk.h"
#include "topic/queues.h"
#include "topic/settings.h"
#include "topic/staging.h"
#include "topic/sweep.h"

enum {
    PN_DROPS = 4096, /* no more of them for one message */
    PN_SWEEP_TRIES = 64
};

static int topic_full(const struct pn_topic *topic, const char *what)
{
    return pn_fail(PN_ETOPICFULL,
                   "topic \"%.*s\" is full: %s\n"
                   "Wait until its consumers have finished some, or raise the bound.",
                   (int) topic->name_len, topic->name, what);
}

/* What is deferred counts, and no consumer can finish it: how many has the channel with most? */
static int depth_full(const struct pn_segment *seg, const struct pn_topic *topic)
{
    const struct pn_topic_channel *most = NULL;
    char deferred[128] = "";
    PN_EACH_CHANNEL (seg, topic, i) {
        const struct pn_topic_channel *ch = pn_topic_channel_at(seg, i - 1);
        if (ch->ephemeral == 0 && ch->deferred > (most == NULL ? 0 : most->deferred))
            most = ch;
    }
    if (most != NULL)
        snprintf(deferred, sizeof deferred, ", of which channel \"%.*s\" has %u deferred",
                 (int) (most->name_len <= sizeof most->name ? most->name_len : 0), most->name,
                 most->deferred);
    return pn_fail(PN_ETOPICFULL,
                   "topic \"%.*s\" is full: max_depth is %llu messages%s\n"
                   "Wait until %sits consumers have finished some, or raise the bound.",
                   (int) topic->name_len, topic->name, (unsigned long long) topic->max_depth,
                   deferred, most != NULL ? "deferred ones are due and " : "");
}

/* By its own bound, or because of what all topics have. */
static int memory_full(const struct pn_segment *seg, const struct pn_topic *topic)
{
    const uint64_t most = pn_topic_limits(topic)->max_memory, has = pn_topic_memory(seg, topic);
    char what[96];
    if (most == 0 || has + most / 4 < most) /* a long message, or fragments, leave a part of it */
        return topic_full(topic, "its part of topic_memory");
    snprintf(what, sizeof what, "max_memory is %llu bytes, %llu are used",
             (unsigned long long) most, (unsigned long long) has);
    return topic_full(topic, what);
}

/* What has expired makes room. */
static void expire_locked(struct pn_segment *seg, struct pn_topic *topic)
{
    pn_assert_topics_held(seg);
    const int64_t now = pn_now_ns();
    PN_EACH_CHANNEL (seg, topic, i) {
        uint32_t steps = PN_TOPIC_STEPS;
        pn_topic_channel_expire_locked(seg, pn_topic_channel_at(seg, i - 1), now, &steps);
    }
    uint32_t steps = PN_TOPIC_STEPS;
    pn_topic_channel_expire_locked(
        seg, pn_topic_channel_at(seg, (uint32_t) (topic - seg->topics.topic)), now, &steps);
}

int pn_message_admit_locked(struct pn_segment *seg, struct pn_topic *topic, size_t n, size_t *skip,
                            size_t *keep)
{
    pn_assert_topics_held(seg);
    const uint64_t max = topic->max_depth;
    uint64_t there;
    *skip = 0;
    *keep = n;
    if (__builtin_expect(pn_topic_disk_is_over(topic), 0))
        return pn_topic_disk_full(topic, 0);
    if (!pn_topic_would_be_too_deep(topic, n))
        return 0;
    expire_locked(seg, topic);
    there = (uint64_t) topic->firm + topic->staged;
    if (n + there <= max)
        return 0;
    if (pn_topic_all_ephemeral(seg, topic) && topic->paused == 0)
        return 0; /* each of them goes without, if it is full */
    switch (topic->overflow) {
    case PN_OVERFLOW_DROP_NEW:
        *keep = there >= max ? 0 : max - there;
        pn_topic_count_dropped(seg, topic, n - *keep);
        return 0;
    case PN_OVERFLOW_DROP_OLDEST:
        *skip = n > max ? n - max : 0;
        for (uint32_t steps = 0; topic->firm + topic->staged + (n - *skip) > max &&
                                 pn_cells_go_on(seg, &steps) &&
                                 pn_message_drop_oldest_locked(seg, topic);)
            ;
        if (topic->firm + topic->staged + (n - *skip) > max)
            return topic_full(topic, "all is in flight");
        pn_topic_count_dropped(seg, topic, *skip);
        return 0;
    default:
        return pn_topic_may_spill(seg, topic) ? 0 : depth_full(seg, topic);
    }
}

/* What cannot leave memory is not to fill it with what is deferred (later.c): a part of a share is
 * for what is for now.  Where the oldest are dropped there is room anyway. */
static bool leaves_too_little(const struct pn_segment *seg, const struct pn_topic *topic,
                              const struct pn_new_message *in)
{
    const struct pn_arena *mem = &seg->topics.arena;
    if (in->delay_ns <= 0 || topic->messages == 0 || topic->overflow == PN_OVERFLOW_DROP_OLDEST ||
        pn_topic_may_spill(seg, topic))
        return false;
    struct pn_arena_need need =
        pn_message_need(seg, topic, (uint64_t) in->headers_len + in->body_len, true);
    need.pages += pn_arena_reserve_of(mem, &need);
    return !pn_arena_may_locked(mem, (uint32_t) (topic - seg->topics.topic), &need);
}

static int refuse(struct pn_segment *seg, struct pn_topic *topic, const char *what)
{
    if (pn_topic_all_ephemeral(seg, topic) && topic->paused == 0) {
        pn_topic_count_without(seg, topic, 1);
        return 0;
    }
    if (topic->overflow == PN_OVERFLOW_DROP_NEW) {
        pn_topic_count_dropped(seg, topic, 1);
        return 0;
    }
    return what != NULL ? topic_full(topic, what) : memory_full(seg, topic);
}

/* It is staged, for those channels that do not go without. */
static int staged(struct pn_segment *seg, struct pn_topic *topic, const struct pn_new_message *in,
                  uint32_t *ref)
{
    if (pn_message_at(seg, *ref)->refs != 0)
        return 0;
    pn_message_unstage_locked(seg, *ref); /* every channel goes without */
    *ref = 0;
    topic->message_count++;
    topic->message_bytes += in->body_len;
    return 0;
}

int pn_message_stage_if_room_locked(struct pn_segment *seg, struct pn_topic *topic,
                                    const struct pn_new_message *in, const struct pn_moment *now,
                                    bool backlog, uint32_t *ref)
{
    pn_assert_topics_held(seg);
    *ref = 0;
    if (__builtin_expect(in->delay_ns > 0, 0) && leaves_too_little(seg, topic, in))
        return refuse(
            seg, topic,
            "deferred messages may have no more of its part of topic_memory, as a quarter "
            "of a share is for what is for now");
    *ref = pn_message_stage_locked(seg, topic, in, now, backlog);
    return *ref != 0 ? staged(seg, topic, in, ref) : PN_NO_ROOM;
}

int pn_message_make_room_locked(struct pn_segment *seg, struct pn_topic *topic,
                                const struct pn_new_message *in, const struct pn_moment *now,
                                bool backlog, uint32_t *ref)
{
    pn_assert_topics_held(seg);
    expire_locked(seg, topic);
    *ref = pn_message_stage_locked(seg, topic, in, now, backlog);
    /* before anything is refused, dropped or spilled */
    for (int i = 0; *ref == 0 && i < PN_SWEEP_TRIES && seg->topics.ctl->sweeping != 0; i++) {
        pn_topics_sweep_locked(seg);
        *ref = pn_message_stage_locked(seg, topic, in, now, backlog);
    }
    if (*ref == 0)
        *ref = pn_message_stage_firm_locked(seg, topic, in, now, backlog);
    for (int i = 0; *ref == 0 && topic->overflow == PN_OVERFLOW_DROP_OLDEST && i < PN_DROPS &&
                    pn_message_drop_oldest_locked(seg, topic);
         i++)
        *ref = pn_message_stage_locked(seg, topic, in, now, backlog);
    return *ref != 0 ? staged(seg, topic, in, ref) : refuse(seg, topic, NULL);
}
