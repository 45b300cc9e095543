/*
 * topic.c - topics and channels: what happens to them as a whole.
 *
 * Topics and channels
 *
 * 1. A topic's every message goes to each of its channels, and within a channel to one consumer.
 *    The body is stored once; for each channel there is a delivery, 64 bytes with a state word.
 *    Messages and deliveries lie in an arena (arena.c); topics, channels and consumers in
 *    tables.  All of it is one part of the segment, allocated when the first topic is made
 *    (open.c).
 * 2. The writer lock guards everything.  What is true is said by few words (layout_topic.h,
 *    "truth"), each operation of its own changes it with one store, and all else is an index, for
 *    which `topics_dirty` is set while it is being changed: after a death with it set, all indices
 *    are built again (rebuild_topics.c).  What needs more than one store at once goes through a
 *    redo record, or, in a transaction, through redo entries in the queue before `head`.
 * 3. A topic, or a channel, is deleted by the store of its state; emptied by the store of
 *    `discarded_below`: whatever stands in it with a smaller order does not exist any more.  What
 *    it holds is freed afterwards, PN_TOPIC_STEPS at a time, by the deleter, and by every other
 *    operation on a topic until all is freed, also if the deleter has died (`sweeping`).
 * 4. The first channel of a topic gets what the topic has kept; a paused topic keeps, too, and so
 *    does one that has something kept already, so that the order stays (message.c).
 * 5. An ephemeral channel goes with its last consumer, an ephemeral topic with its last channel.
 * 6. Dead letters that come back are new messages, without end.  So a channel may not be set to
 *    its own topic, nor to one from which channels' dead letters lead back to it.  The chain is
 *    followed for PN_DEAD_CHAIN topics, since the lock is held meanwhile: a longer one is refused.
 *    What consumers name themselves is no part of it: they come and go.
 */
#define _GNU_SOURCE
#include "topic/topic.h"

#include <errno.h>
#include <string.h>

#include "base/crashpoint.h"
#include "segment/arena_share.h"
#include "segment/identity.h"
#include "segment/lock.h"
#include "topic/area.h"
#include "topic/cursors.h"
#include "topic/durable.h"
#include "topic/end.h"
#include "topic/later.h"
#include "topic/notes.h"
#include "topic/on_disk.h"
#include "topic/open.h"
#include "topic/pump.h"
#include "topic/settings.h"
#include "topic/sweep.h"
#include "topic/tables.h"
#include "topic/waiting.h"

/* ---- opening --------------------------------------------------------------------------------- */

static int check_options(const pn_topic_options *o)
{
    if (o == NULL)
        return 0;
    if ((o->given & PN_TOPIC_FSYNC) != 0 &&
        (o->fsync < PN_FSYNC_NONE || o->fsync > PN_FSYNC_ALWAYS))
        return pn_fail(EINVAL, "fsync must be PN_FSYNC_NONE, _INTERVAL or _ALWAYS");
    if ((o->given & PN_TOPIC_OVERFLOW) != 0 &&
        (o->overflow < PN_OVERFLOW_DISK || o->overflow > PN_OVERFLOW_DROP_NEW))
        return pn_fail(EINVAL, "overflow must be PN_OVERFLOW_DISK, _ERROR, _DROP_OLDEST or "
                               "_DROP_NEW");
    return pn_topic_settings_check(o);
}

static int compare_options(const struct pn_topic *t, const pn_topic_options *o)
{
    const char *other = NULL;
    uint32_t given = o == NULL ? 0 : o->given;
    if ((given & PN_TOPIC_DURABLE) != 0 && (o->durable != 0) != (t->durable != 0))
        other = "durable";
    else if ((given & PN_TOPIC_FSYNC) != 0 && o->fsync != t->fsync)
        other = "fsync";
    else if ((given & PN_TOPIC_OVERFLOW) != 0 && o->overflow != t->overflow)
        other = "overflow";
    else if ((given & PN_TOPIC_MAX_DEPTH) != 0 && o->max_depth != t->max_depth)
        other = "max_depth";
    if (other != NULL)
        return pn_fail(PN_ETOPICOPTIONS,
                       "topic \"%.*s\" exists with another %s\n"
                       "Leave the option out, or delete the topic first.",
                       (int) t->name_len, t->name, other);
    other = pn_topic_settings_differ(t, o);
    if (other != NULL)
        return pn_fail(PN_ETOPICOPTIONS,
                       "topic \"%.*s\" exists with another %s\n"
                       "Leave the option out, or change it with configure().",
                       (int) t->name_len, t->name, other);
    return 0;
}

static int tables_full(const char *what, const char *option, uint32_t max)
{
    return pn_fail(PN_ETOPICS,
                   "too many %s (%s is %u)\n"
                   "Delete some, or create the segment with a larger %s.",
                   what, option, max, option);
}

static int begin(struct pn_conn *conn)
{
    int rc = pn_conn_check_slot(conn);
    if (rc == 0 && pn_topics_ready(conn->seg))
        rc = pn_durable_join_locked(conn->seg);
    if (rc != 0) {
        pn_lock_release(conn->seg);
        return rc;
    }
    if (pn_topics_ready(conn->seg))
        pn_topics_begin_locked(conn->seg);
    return 0;
}

/* With the lock, and the topic area there to be changed. */
static int enter_topics(struct pn_conn *conn, struct pn_hold *hold, bool make)
{
    int rc = make ? pn_topics_make_ready(conn->seg) : 0;
    if (rc == 0)
        rc = pn_lock_topics_wait(conn->seg, hold, PN_LOCK_TIMEOUT_NS, conn);
    return rc != 0 ? rc : begin(conn);
}

/* The same, in the middle of what is done in several holds: this may not be left. */
static int enter_again(struct pn_conn *conn, struct pn_hold *hold)
{
    int rc = pn_lock_topics(conn->seg, hold, PN_LOCK_TIMEOUT_NS);
    return rc != 0 ? rc : begin(conn);
}

static int leave_topics(struct pn_conn *conn, int rc)
{
    if (pn_topics_ready(conn->seg))
        pn_topics_end_locked(conn->seg);
    pn_lock_release(conn->seg);
    return rc;
}

int pn_topics_open(struct pn_conn *conn, const char *name, size_t len,
                   const pn_topic_options *options, pn_ref *out)
{
    struct pn_hold hold;
    struct pn_segment *seg = conn->seg;
    int rc = pn_topic_check_name("topic", name, len);
    if (rc == 0)
        rc = check_options(options);
    if (rc == 0)
        rc = enter_topics(conn, &hold, true);
    if (rc != 0)
        return rc;
    if (seg->topics.ctl->deleted != 0)
        pn_topics_sweep_locked(seg);
    if (options != NULL && (options->given & PN_TOPIC_DURABLE) != 0 && options->durable != 0)
        rc = seg->data_dir[0] == '\0'
                 ? pn_fail(PN_ETOPICOPTIONS, "a durable topic needs a segment with data_dir")
                 : pn_durable_start_locked(seg);
    if (rc != 0)
        return leave_topics(conn, rc);
    struct pn_topic *t = pn_topic_make_locked(seg, conn->dboid, name, len, options);
    if (t == NULL)
        return leave_topics(conn, tables_full("topics", "max_topics", seg->topics.max_topics));
    *out = pn_ref_make((uint32_t) (t - seg->topics.topic), t->generation);
    return leave_topics(conn, compare_options(t, options));
}

int pn_topics_find(struct pn_conn *conn, const char *name, size_t len, pn_ref *out)
{
    struct pn_hold hold;
    int rc = pn_topic_check_name("topic", name, len);
    if (rc != 0 || !pn_topics_ready(conn->seg))
        return rc;
    rc = enter_topics(conn, &hold, false);
    if (rc != 0)
        return rc;
    struct pn_topic *t = pn_topic_lookup_locked(conn->seg, conn->dboid, name, len);
    if (t != NULL)
        *out = pn_ref_make((uint32_t) (t - conn->seg->topics.topic), t->generation);
    return leave_topics(conn, t != NULL);
}

static int compare_channel(const struct pn_topic_channel *ch, int64_t max_consumers,
                           const pn_channel_options *o)
{
    if (max_consumers >= 0 && ch->max_consumers != (uint32_t) max_consumers)
        return pn_fail(PN_ETOPICOPTIONS, "channel \"%.*s\" exists with max_consumers %u",
                       (int) ch->name_len, ch->name, ch->max_consumers);
    const char *other = pn_channel_settings_differ(ch, o);
    if (other == NULL)
        return 0;
    return pn_fail(PN_ETOPICOPTIONS,
                   "channel \"%.*s\" exists with another %s\n"
                   "Leave the option out, or change it with configure().",
                   (int) ch->name_len, ch->name, other);
}

static int check_channel_options(const pn_channel_options *o)
{
    bool named = o != NULL && (o->given & PN_CHANNEL_DEAD_LETTER) != 0 && o->dead_letter != NULL;
    int rc = pn_channel_settings_check(o);
    return rc == 0 && named
               ? pn_topic_check_name("dead-letter topic", o->dead_letter, o->dead_letter_len)
               : rc;
}

static int check_dead_letter(const struct pn_segment *seg, const struct pn_topic *topic,
                             const pn_channel_options *o)
{
    bool given = o != NULL && (o->given & PN_CHANNEL_DEAD_LETTER) != 0;
    return given ? pn_dead_letter_check_locked(seg, topic, o->dead_letter, o->dead_letter_len) : 0;
}

static int open_queue_locked(struct pn_conn *conn, pn_ref ref, const char *name, size_t len,
                             int64_t max_consumers, const pn_channel_options *o, pn_ref *out)
{
    pn_assert_held(conn->seg);
    struct pn_segment *seg = conn->seg;
    struct pn_topics *all = &seg->topics;
    struct pn_topic *topic = pn_topic_resolve_locked(conn, ref);
    if (topic == NULL)
        return -PN_ETOPICDELETED;
    if (all->ctl->deleted != 0)
        pn_topics_sweep_locked(seg);
    struct pn_topic_channel *ch = pn_topic_find_channel(seg, topic, name, len);
    int rc = ch != NULL ? compare_channel(ch, max_consumers, o) : check_dead_letter(seg, topic, o);
    if (rc != 0)
        return rc;
    if (ch == NULL) {
        ch = pn_topic_channel_make_locked(seg, topic, name, len,
                                          max_consumers > 0 ? (uint32_t) max_consumers : 0, o);
        if (ch == NULL)
            return tables_full("channels", "max_topic_channels",
                               all->max_channels - all->max_topics);
        pn_durable_note_channel_locked(seg, ch);
    }
    *out = pn_ref_make(pn_topic_channel_index(seg, ch), ch->generation);
    return 0;
}

/* Bounded steps, and then the lock is given to others; but not longer than such a list can be. */
static int pump_all(struct pn_conn *conn, pn_ref ref)
{
    struct pn_hold hold;
    bool more = true;
    /* others publish meanwhile; what is left then is for the next that gets or publishes */
    uint64_t most = conn->seg->topics.memory / 32;
    for (uint64_t steps = 0; more && steps < most; steps += PN_TOPIC_STEPS) {
        int rc = enter_again(conn, &hold);
        if (rc != 0)
            return rc;
        struct pn_topic *topic = pn_topic_resolve_locked(conn, ref);
        more = topic != NULL && pn_topic_pump_locked(conn->seg, topic);
        if (topic != NULL)
            pn_topic_settle_locked(conn->seg, topic);
        leave_topics(conn, 0);
    }
    return 0;
}

int pn_topic_channels_open(struct pn_conn *conn, pn_ref topic, const char *name, size_t len,
                           int64_t max_consumers, const pn_channel_options *options, pn_ref *out)
{
    struct pn_hold hold;
    int rc = pn_topic_check_name("channel", name, len);
    if (rc == 0)
        rc = check_channel_options(options);
    if (rc == 0 && max_consumers > 65535)
        rc = pn_fail(EINVAL, "max_consumers must be at most 65535");
    if (rc == 0)
        rc = enter_topics(conn, &hold, false);
    if (rc != 0)
        return rc;
    rc = leave_topics(conn, open_queue_locked(conn, topic, name, len, max_consumers, options, out));
    return rc != 0 ? rc : pump_all(conn, topic);
}

int pn_topic_channels_find(struct pn_conn *conn, pn_ref ref, const char *name, size_t len,
                           pn_ref *out)
{
    struct pn_hold hold;
    int rc = pn_topic_check_name("channel", name, len);
    if (rc == 0)
        rc = enter_topics(conn, &hold, false);
    if (rc != 0)
        return rc;
    struct pn_topic *topic = pn_topic_resolve_locked(conn, ref);
    struct pn_topic_channel *ch =
        topic == NULL ? NULL : pn_topic_find_channel(conn->seg, topic, name, len);
    if (ch != NULL)
        *out = pn_ref_make(pn_topic_channel_index(conn->seg, ch), ch->generation);
    return leave_topics(conn, topic == NULL ? -PN_ETOPICDELETED : ch != NULL);
}

/* ---- pausing --------------------------------------------------------------------------------- */

int pn_topics_pause(struct pn_conn *conn, pn_ref ref, bool paused)
{
    struct pn_hold hold;
    int rc = enter_topics(conn, &hold, false);
    if (rc != 0)
        return rc;
    struct pn_topic *topic = pn_topic_resolve_locked(conn, ref);
    if (topic != NULL) {
        topic->paused = paused;
        pn_durable_note_topic_locked(conn->seg, topic);
    }
    PN_CRASH("topic:paused");
    leave_topics(conn, 0);
    return topic == NULL ? -PN_ETOPICDELETED : paused ? 0 : pump_all(conn, ref);
}

int pn_topic_channels_pause(struct pn_conn *conn, pn_ref ref, bool paused)
{
    struct pn_hold hold;
    int rc = enter_topics(conn, &hold, false);
    if (rc != 0)
        return rc;
    struct pn_topic_channel *ch = pn_topic_channel_resolve_locked(conn, ref);
    if (ch != NULL) {
        pn_store_relaxed(&ch->paused, paused);
        pn_durable_note_channel_locked(conn->seg, ch);
        PN_CRASH("topic:channel-paused");
        pn_topic_channel_settle_locked(conn->seg, ch);
    }
    return leave_topics(conn, ch == NULL ? -PN_ETOPICDELETED : 0);
}

/* ---- settings -------------------------------------------------------------------------------- */

int pn_topics_configure(struct pn_conn *conn, pn_ref ref, const pn_topic_options *o)
{
    const uint32_t may = PN_TOPIC_DEFAULT_TTL | PN_TOPIC_MAX_MEMORY | PN_TOPIC_MAX_DISK_BYTES;
    struct pn_hold hold;
    int rc = pn_topic_settings_check(o);
    if (rc == 0 && (o->given & ~may) != 0)
        rc = pn_fail(EINVAL, "of a topic that is there only default_ttl, max_memory and "
                             "max_disk_bytes can be changed");
    if (rc == 0)
        rc = enter_topics(conn, &hold, false);
    if (rc != 0)
        return rc;
    struct pn_topic *topic = pn_topic_resolve_locked(conn, ref);
    if (topic != NULL) {
        pn_topic_settings_store_locked(conn->seg, topic, o);
        pn_durable_note_topic_locked(conn->seg, topic);
    }
    return leave_topics(conn, topic == NULL ? -PN_ETOPICDELETED : 0);
}

int pn_topic_channels_configure(struct pn_conn *conn, pn_ref ref, const pn_channel_options *o)
{
    struct pn_hold hold;
    struct pn_segment *seg = conn->seg;
    int rc = check_channel_options(o);
    if (rc == 0)
        rc = enter_topics(conn, &hold, false);
    if (rc != 0)
        return rc;
    struct pn_topic_channel *ch = pn_topic_channel_resolve_locked(conn, ref);
    rc = ch == NULL ? -PN_ETOPICDELETED : check_dead_letter(seg, pn_topic_of(seg, ch), o);
    if (rc == 0) {
        pn_channel_settings_store_locked(seg, ch, o);
        pn_durable_note_channel_locked(seg, ch);
    }
    return leave_topics(conn, rc);
}

/* ---- emptying and deleting ------------------------------------------------------------------- */

static int empty(struct pn_conn *conn, pn_ref ref, bool of_topic)
{
    struct pn_hold hold;
    bool more = true, marked = false;
    while (more) {
        int rc = marked ? enter_again(conn, &hold) : enter_topics(conn, &hold, false);
        if (rc != 0)
            return rc;
        struct pn_topic *topic = of_topic ? pn_topic_resolve_locked(conn, ref) : NULL;
        struct pn_topic_channel *ch =
            of_topic ? topic == NULL ? NULL : pn_topic_channel_at(conn->seg, (uint32_t) ref - 1)
                     : pn_topic_channel_resolve_locked(conn, ref);
        if (ch == NULL)
            return leave_topics(conn, marked ? 0 : -PN_ETOPICDELETED);
        if (!marked && of_topic && (rc = pn_topic_disk_empty_locked(conn->seg, topic)) != 0)
            return leave_topics(conn, rc);
        if (!marked) {
            pn_durable_note_emptied_locked(conn->seg, ch);
            conn->seg->topics.ctl->sweeping = 1;
            ch->discarded_below = ch->next_order;
            pn_rest_empty_locked(conn->seg, ch);
            pn_later_emptied_locked(conn->seg, ch);
        }
        marked = true;
        PN_CRASH("topic:emptied");
        more = pn_topic_sweep_one_locked(conn->seg, ch);
        pn_topic_channel_settle_locked(conn->seg, ch);
        leave_topics(conn, 0);
    }
    return 0;
}

int pn_topics_empty(struct pn_conn *conn, pn_ref ref)
{
    return empty(conn, ref, true);
}

int pn_topic_channels_empty(struct pn_conn *conn, pn_ref ref)
{
    return empty(conn, ref, false);
}

/* Consumers that wait there are told. */
static void delete_queue(struct pn_segment *seg, struct pn_topic_channel *ch)
{
    pn_store_release(&ch->state, PN_RECORD_DELETED);
    PN_CRASH("topic:channel-deleted");
    pn_durable_note_channel_locked(seg, ch);
    seg->topics.ctl->deleted++;
    seg->topics.ctl->sweeping = 1;
    ch->discarded_below = UINT64_MAX;
    PN_EACH_CONSUMER (seg, ch, i)
        if (pn_consumer_sleeps(pn_consumer_at(seg, i - 1)))
            pn_consumer_notify_locked(seg, i - 1);
}

static void delete_topic(struct pn_segment *seg, struct pn_topic *topic)
{
    uint32_t index = (uint32_t) (topic - seg->topics.topic);
    pn_store_release(&topic->state, PN_RECORD_DELETED);
    PN_CRASH("topic:deleted");
    pn_arena_count_locked(&seg->topics.arena, index, false);
    pn_durable_note_topic_locked(seg, topic);
    seg->topics.ctl->deleted++;
    seg->topics.ctl->sweeping = 1;
    PN_EACH_CHANNEL (seg, topic, i)
        delete_queue(seg, pn_topic_channel_at(seg, i - 1));
    delete_queue(seg, pn_topic_channel_at(seg, index));
    pn_topics_link_locked(seg);
}

static int sweep_all(struct pn_conn *conn)
{
    struct pn_hold hold;
    bool more = true;
    while (more) {
        int rc = enter_again(conn, &hold);
        if (rc != 0)
            return rc;
        more = pn_topics_sweep_locked(conn->seg);
        leave_topics(conn, 0);
    }
    return 0;
}

int pn_topics_delete(struct pn_conn *conn, pn_ref ref)
{
    struct pn_hold hold;
    int rc = enter_topics(conn, &hold, false);
    if (rc != 0)
        return rc;
    struct pn_topic *topic = pn_topic_resolve_locked(conn, ref);
    if (topic != NULL)
        delete_topic(conn->seg, topic);
    leave_topics(conn, 0);
    return topic == NULL ? -PN_ETOPICDELETED : sweep_all(conn);
}

static void delete_channel_locked(struct pn_segment *seg, struct pn_topic_channel *ch)
{
    pn_assert_topics_held(seg);
    struct pn_topic *topic = pn_topic_of(seg, ch);
    delete_queue(seg, ch);
    pn_topics_link_locked(seg);
    pn_later_emptied_locked(seg, ch);
    if (topic->ephemeral != 0 && topic->nchannels == 0 &&
        pn_load_relaxed(&topic->state) == PN_RECORD_USED)
        delete_topic(seg, topic);
}

int pn_topic_channels_delete(struct pn_conn *conn, pn_ref ref)
{
    struct pn_hold hold;
    int rc = enter_topics(conn, &hold, false);
    if (rc != 0)
        return rc;
    struct pn_topic_channel *ch = pn_topic_channel_resolve_locked(conn, ref);
    if (ch != NULL)
        delete_channel_locked(conn->seg, ch);
    leave_topics(conn, 0);
    return ch == NULL ? -PN_ETOPICDELETED : sweep_all(conn);
}

void pn_topic_channel_left_locked(struct pn_segment *seg, struct pn_topic_channel *ch)
{
    pn_assert_topics_held(seg);
    if (ch->ephemeral == 0 || ch->consumers != 0 || pn_load_relaxed(&ch->state) != PN_RECORD_USED)
        return;
    delete_channel_locked(seg, ch);
    pn_topics_sweep_locked(seg);
}
