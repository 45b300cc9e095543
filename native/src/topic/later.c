/*
 * later.c - deferred messages that leave memory for what is for now, and come back when due.
 *
 * 1. What is deferred must not keep a message for now from its consumer.  So when something of a
 *    topic has no room in memory, and waits in one of its files (overflow.c, rest.c), deferred
 *    messages go to a queue on disk of their own, `later`, until half a share is free: of 256 at a
 *    time that are looked at, those that are due in the later half of the time.  Only a message
 *    that is deferred in each of its channels goes, as a whole.
 * 2. A record there names the channels that have the message, until when each has deferred it, and
 *    its attempts and place there, as those of overflow.c 2 do.  So empty() and delete() of a
 *    channel make it void, and a channel that is made later gets none of it.
 * 3. `later` keeps no order.  When the earliest is nearly due, one turn is made of all that is in
 *    it, in steps (PN_MOVE_*), each by a process that ends an operation; a consumer that waits
 *    sleeps no longer than until then.  A turn
 *      - brings back what is due; where it has no room, others make some.  Of several channels
 *        those that take it (rest.c 3) do not wait for the others, which then find it in `rest`;
 *        so do all, if no room could be made.  A topic's only channel waits, and so does the turn,
 *        as what is in memory is its own, and for now;
 *      - brings back what is due within `later_window`, while half a share is free.  The window
 *        doubles when all such had room, and is halved when some had not;
 *      - passes what is void, expired or cancelled;
 *      - writes everything else again, behind the others; on a full disk it comes back as well,
 *        as far as memory has room.
 *    It begins so much before the earliest is due as it may take (lead()), and some time after the
 *    last one, so that turns take half of the time at most.
 *    Between turns the first ones come back, whenever they are due, while half a share is free.
 * 4. Truth: a message is in memory (LIVE), or in a record that is committed and not passed.  Both
 *    change by one redo record: leaving (`gone`, and where `later` ends), coming back (`messages`,
 *    and where it begins), being written again (begins, ends; a tombstone goes with it).
 * 5. What a channel has there is counted (`later`) beside that, so after a death it may be wrong by
 *    one: the next turn, which begins at once, counts again.
 * 6. The log of a durable topic is told nothing: there the message is deferred, wherever it is.
 *    But compaction (carry.c 3) looks through files first, then memory, so while it is under way
 *    none of a durable topic leaves memory, and a process that wants that makes it go on.
 */
#include "topic/later.h"

#include <errno.h>
#include <stdlib.h>

#include "base/crashpoint.h"
#include "base/moment.h"
#include "segment/arena_body.h"
#include "segment/arena_share.h"
#include "segment/lock.h"
#include "topic/area.h"
#include "topic/channel_room.h"
#include "topic/cursors.h"
#include "topic/drop.h"
#include "topic/journal.h"
#include "topic/message.h"
#include "topic/notes.h"
#include "topic/on_disk.h"
#include "topic/queues.h"
#include "topic/rest_given.h"
#include "topic/staging.h"
#include "topic/timedset.h"
#include "topic/tombstones.h"
#include "topic/waiting.h"

enum { PN_LATER_RECORD = 1024 };     /* counts as written besides a body: so few are, in one hold */
enum { PN_LATER_CELLS = 16384 };     /* deliveries of messages that one hold looks at */
#define PN_LATER_LEAD  1000000000LL  /* of a turn of few */
#define PN_LATER_EACH  50000LL       /* what each record may take of it */
#define PN_LATER_MOST  60000000000LL /* no lead is longer */
#define PN_LATER_PAUSE 20000000LL    /* between two turns */
#define PN_LATER_SOON  100000000LL   /* what is due by then does not leave */
#define PN_LATER_BEGIN 3600000000000LL /* the first window, and the longest: */
#define PN_LATER_DAY   86400000000000LL

/* ---- when the next turn begins --------------------------------------------------------------- */

static int64_t lead(const struct pn_topic *topic)
{
    const uint64_t n = pn_topic_later(topic),
                   most = (PN_LATER_MOST - PN_LATER_LEAD) / PN_LATER_EACH;
    return PN_LATER_LEAD + (int64_t) (n < most ? n : most) * PN_LATER_EACH;
}

/* A record of it is due then. */
static void note_due(struct pn_topic *topic, int64_t due)
{
    const int64_t before = lead(topic);
    int64_t at = due > before ? due - before : 0;
    if (at < topic->later_pause)
        at = topic->later_pause;
    if (at < topic->later_next)
        topic->later_next = at;
}

void pn_later_forget_locked(const struct pn_segment *seg, struct pn_topic *topic)
{
    pn_assert_topics_held(seg);
    topic->later_turn = 0;
    topic->later_stuck = 0;
    topic->later_next = topic->later_pause = 0;
    topic->later_window = PN_LATER_BEGIN;
    topic->later_recount = PN_LATER_TO_COUNT;
}

/* Nothing is in it. */
static void begin_anew(struct pn_segment *seg, struct pn_topic *topic)
{
    topic->later_turn = 0;
    topic->later_stuck = 0;
    topic->later_next = INT64_MAX;
    topic->later_pause = 0;
    topic->later_window = PN_LATER_BEGIN;
    topic->later_recount = PN_LATER_COUNTED;
    PN_EACH_CHANNEL (seg, topic, i)
        pn_topic_channel_at(seg, i - 1)->later = 0;
}

/* ---- how many -------------------------------------------------------------------------------- */

uint64_t pn_later_depth(const struct pn_topic *topic, const struct pn_topic_channel *ch)
{
    const uint64_t there = pn_topic_later(topic);
    const uint64_t n = ch->later < there ? ch->later : there;
    return n > topic->later_buried ? n - topic->later_buried : 0;
}

static void count(struct pn_topic_channel *ch, bool more, bool again)
{
    uint64_t *n = again ? &ch->later_again : &ch->later;
    if (more)
        ++*n;
    else if (*n > 0)
        --*n;
}

void pn_later_emptied_locked(struct pn_segment *seg, struct pn_topic_channel *ch)
{
    pn_assert_topics_held(seg);
    struct pn_topic *topic = pn_topic_of(seg, ch);
    uint64_t left = 0;
    ch->later = ch->later_again = 0;
    if (pn_is_backlog(seg, ch) || pn_topic_later(topic) == 0 ||
        topic->later_recount != PN_LATER_COUNTED)
        return;
    PN_EACH_CHANNEL (seg, topic, i)
        left += pn_topic_channel_at(seg, i - 1)->later;
    if (left != 0 || pn_topic_use_files_locked(seg, topic) != 0)
        return;
    pn_diskqueue_empty(&topic->later, seg->topics.disk);
    PN_CRASH("later:emptied");
    pn_tombstones_passed_locked(seg, topic);
    begin_anew(seg, topic);
}

/* ---- leaving memory -------------------------------------------------------------------------- */

/* Is it deferred in each channel that has it?  *due: until when at the least. */
static bool is_deferred(const struct pn_segment *seg, const struct pn_topic *topic, uint32_t ref,
                        int64_t now, int64_t *due)
{
    const struct pn_message *m = pn_message_at(seg, ref);
    *due = INT64_MAX;
    if (pn_load_relaxed(&m->state) != PN_MSG_LIVE || pn_topic_at(seg, m->topic) != topic ||
        m->firm == 0 || (m->expires != 0 && m->expires <= now))
        return false;
    PN_EACH_DELIVERY (seg, m, at) {
        const struct pn_delivery *d = pn_delivery_at(seg, at);
        const struct pn_topic_channel *ch = pn_topic_channel_at(seg, d->channel);
        if (pn_state_kind(pn_load_relaxed(&d->state)) != PN_KIND_DEFERRED || pn_is_void(ch, d))
            return false;
        *due = d->due < *due ? d->due : *due;
    }
    return *due > now + PN_LATER_SOON;
}

/* Its record, staged; *bytes: of it. */
static int write_from_memory(struct pn_segment *seg, struct pn_topic *topic, uint32_t ref,
                             int64_t due, uint64_t *seq)
{
    const struct pn_message *m = pn_message_at(seg, ref);
    const struct pn_moment then = {.mono = m->published_mono, .real = m->published_ns};
    const struct pn_lengths length = pn_message_lengths(m);
    const uint32_t refs = m->refs;
    struct pn_spilled_delivery *to = calloc(refs + (size_t) 1, sizeof *to);
    unsigned char *bytes = malloc(length.both + 1);
    struct pn_spilled_deliveries given = {to, 0};
    int rc = to == NULL || bytes == NULL ? pn_fail(ENOMEM, "out of memory") : 0;
    if (rc == 0 && !pn_arena_read(&seg->topics.arena, ref, sizeof *m, 0, bytes, length.both))
        rc = pn_segment_poison(seg, "the body of message %016llx is broken",
                               (unsigned long long) m->id);
    for (uint32_t at = m->first; rc == 0 && at != 0 && given.n < refs;
         at = pn_delivery_at(seg, at)->of_message) {
        const struct pn_delivery *d = pn_delivery_at(seg, at);
        to[given.n++] = (struct pn_spilled_delivery) {
            .channel = d->channel,
            .generation = pn_topic_channel_at(seg, d->channel)->generation,
            .order = d->order,
            .due = d->due,
            .attempts = pn_state_attempts(pn_load_relaxed(&d->state))};
    }
    const struct pn_new_message copy = {.headers = bytes,
                                        .headers_len = length.headers,
                                        .body = rc == 0 ? bytes + length.headers : NULL,
                                        .body_len = length.body,
                                        .id = m->id,
                                        .delay_ns = due - then.mono,
                                        .ttl_ns = m->expires == 0 ? 0 : m->expires - then.mono};
    if (rc == 0)
        rc = pn_later_stage_locked(seg, topic, &copy, &then, &given, seq);
    free(to);
    free(bytes);
    return rc;
}

void pn_later_redo_locked(struct pn_segment *seg)
{
    pn_assert_topics_held(seg);
    const struct pn_topic_redo *redo = &seg->topics.ctl->redo;
    pn_diskqueue_commit(&pn_topic_at(seg, redo->spill - 1)->later, redo->spill_seq);
    struct pn_message *m = pn_message_at(seg, redo->gone);
    if (redo->gone != 0 && m->id == redo->gone_id && pn_load_relaxed(&m->state) == PN_MSG_LIVE)
        pn_store_release(&m->state, PN_MSG_FREE);
}

/* It is in `later`, and no more in memory. */
static int move_to_disk(struct pn_segment *seg, struct pn_topic *topic, uint32_t ref, int64_t due)
{
    struct pn_topic_redo *redo = &seg->topics.ctl->redo;
    struct pn_hold *hold = pn_topics_hold(seg);
    const struct pn_message *m = pn_message_at(seg, ref);
    uint64_t seq = 0;
    if (pn_topic_later(topic) == 0)
        begin_anew(seg, topic);
    int rc = write_from_memory(seg, topic, ref, due, &seq);
    if (rc != 0)
        return rc;
    redo->messages = redo->delivery = redo->disk = 0;
    redo->spill = (uint32_t) (topic - seg->topics.topic) + 1;
    redo->spill_seq = seq;
    redo->rest = PN_REDO_TO_LATER;
    redo->gone = ref;
    redo->gone_id = m->id;
    seg->topics.ctl->spilled = 1;
    PN_CRASH("later:redo");
    pn_store_release(&redo->valid, 1);
    PN_CRASH("later:redo-valid");
    pn_diskqueue_commit(&topic->later, seq);
    note_due(topic, m->expires != 0 && m->expires < due ? m->expires : due);
    PN_EACH_DELIVERY (seg, m, at) {
        struct pn_topic_channel *ch = pn_topic_channel_at(seg, pn_delivery_at(seg, at)->channel);
        count(ch, true, false);
        count(ch, true, true);
    }
    const bool told = hold->told;
    hold->told = true;
    pn_message_discard_locked(seg, ref);
    hold->told = told;
    PN_CRASH("later:left");
    pn_store_release(&redo->valid, 0);
    redo->gone = redo->spill = redo->rest = 0;
    return 0;
}

/* Is there room for so many bytes, and so many quarters of a share besides? */
enum { SOME = 1, HALF = 2 };
static bool is_roomy(const struct pn_segment *seg, const struct pn_topic *topic, uint64_t bytes,
                     uint32_t quarters)
{
    const struct pn_arena *mem = &seg->topics.arena;
    struct pn_arena_need need = pn_message_need(seg, topic, bytes, true);
    const uint64_t share = mem->ctl->share;
    need.pages += (need.most != 0 && need.most < share ? need.most : share) * quarters / 4;
    return pn_arena_may_locked(mem, (uint32_t) (topic - seg->topics.topic), &need);
}

/* Those of the channel that may leave, of as many as are looked at in one go. */
static uint32_t candidates(struct pn_segment *seg, struct pn_topic *topic,
                           struct pn_topic_channel *ch, int64_t now, uint32_t ref[PN_TOPIC_STEPS],
                           int64_t due[PN_TOPIC_STEPS])
{
    struct pn_moved *moved = &pn_topics_hold(seg)->moved;
    const uint32_t n = ch->timed.n, looks = n < PN_TOPIC_STEPS ? n : PN_TOPIC_STEPS;
    uint32_t found = 0, cells = 0, i = 0;
    struct pn_timed entry;
    if (ch->later_look >= n)
        ch->later_look = 0;
    for (; i < looks && cells < PN_LATER_CELLS; i++) {
        const uint32_t at = ch->later_look + i < n ? ch->later_look + i : ch->later_look + i - n;
        if (!pn_timedset_entry(&seg->topics.arena, &ch->timed, at, &entry))
            continue;
        ref[found] = pn_delivery_at(seg, entry.ref)->message;
        cells += pn_message_at(seg, ref[found])->refs;
        found += is_deferred(seg, topic, ref[found], now, &due[found]);
    }
    ch->later_look += i;
    moved->looks += i;
    return found;
}

static bool move_later(struct pn_segment *seg, struct pn_topic *topic, struct pn_topic_channel *ch,
                       uint64_t bytes)
{
    const int64_t now = pn_now_ns();
    uint32_t ref[PN_TOPIC_STEPS + 1];
    int64_t due[PN_TOPIC_STEPS + 1], last = now;
    const uint32_t n = candidates(seg, topic, ch, now, ref, due);
    bool left = false;
    /* beyond max_disk_bytes nothing leaves but for what waits */
    for (uint32_t i = 0; i < n; i++)
        last = due[i] > last ? due[i] : last;
    for (uint32_t i = 0; i < n && pn_topic_may_write_locked(seg) &&
                         !is_roomy(seg, topic, bytes, pn_topic_disk_is_over(topic) ? 0 : HALF);
         i++) {
        int64_t until;
        if (due[i] - now < (last - now) / 2 || !is_deferred(seg, topic, ref[i], now, &until))
            continue;
        const struct pn_message *m = pn_message_at(seg, ref[i]);
        const uint64_t written = pn_message_lengths(m).both + PN_LATER_RECORD +
                                 m->refs * sizeof(struct pn_spilled_delivery);
        if (move_to_disk(seg, topic, ref[i], until) != 0)
            break;
        pn_topic_has_written_locked(seg, written);
        left = true;
    }
    return left;
}

bool pn_later_make_room_locked(struct pn_segment *seg, struct pn_topic *topic)
{
    pn_assert_topics_held(seg);
    const bool stuck = topic->later_stuck != 0 && pn_topic_later(topic) != 0;
    uint64_t bytes = topic->stuck_seq != 0 ? topic->stuck_bytes : 0;
    struct pn_topic_channel *most = NULL;
    if (!pn_topic_may_spill(seg, topic) ||
        (!stuck && pn_topic_on_disk(topic) == 0 && pn_rest_records(topic) == 0))
        return false;
    if (stuck && topic->later_stuck > bytes)
        bytes = topic->later_stuck;
    PN_EACH_CHANNEL (seg, topic, i) {
        struct pn_topic_channel *ch = pn_topic_channel_at(seg, i - 1);
        bytes = ch->rest_stuck > bytes ? ch->rest_stuck : bytes;
        if (ch->deferred != 0 && (most == NULL || ch->deferred > most->deferred))
            most = ch;
    }
    if (most == NULL || is_roomy(seg, topic, bytes, SOME) ||
        pn_topic_use_files_locked(seg, topic) != 0)
        return false;
    if (pn_durable_compacts_locked(seg, topic)) {
        /* each operation does a part of it (6); on a full disk none is hurried to */
        topic->refilling = pn_load_relaxed(&seg->topics.ctl->log.queue.error) == 0;
        return false;
    }
    if (!pn_topic_may_look_locked(seg)) {
        topic->refilling = 1;
        return false;
    }
    bool left = move_later(seg, topic, most, bytes);
    if (left)
        pn_topic_settle_locked(seg, topic); /* the next turn may begin earlier now */
    return left;
}

/* ---- coming back ----------------------------------------------------------------------------- */

/* A record, and where the queue goes on behind it. */
struct record {
    struct pn_topic_on_disk d;
    struct pn_diskqueue_cursor to;
};

struct turn {
    struct pn_segment *seg;
    struct pn_topic *topic;
    int64_t now;
    bool idle; /* no turn is being made */
    bool moved;
};

/* The queue has moved past it: so says the redo record, or that is all. */
static void advance(const struct turn *t, const struct record *r)
{
    pn_diskqueue_pass(&t->topic->later, r->to.file, r->to.at, r->to.seq - 1, r->to.sum);
    pn_invariant(t->seg, "I29", pn_topic_queue_adds_up(&t->topic->later));
}

static void redo_passes(const struct turn *t, const struct record *r)
{
    struct pn_topic_redo *redo = &t->seg->topics.ctl->redo;
    redo->delivery = redo->spill = redo->gone = 0;
    redo->disk = (uint32_t) (t->topic - t->seg->topics.topic) + 1;
    redo->disk_seq = r->to.seq - 1;
    redo->disk_sum = r->to.sum;
    redo->disk_file = r->to.file;
    redo->disk_at = r->to.at;
    redo->rest = PN_REDO_FROM_LATER;
}

/* Each channel that has it has one less, or is counted. */
static void count_all(const struct turn *t, const struct record *r, bool more, bool again)
{
    struct pn_spilled_delivery d;
    for (uint32_t i = 0; i < r->d.deliveries.n; i++)
        if (pn_spilled_delivery_locked(t->seg, t->topic, &r->d.deliveries, i, &d))
            count(pn_topic_channel_at(t->seg, d.channel), more, again);
}

static bool is_wanted(const struct turn *t, const struct record *r, bool expired)
{
    struct pn_spilled_delivery d;
    bool wanted = false;
    for (uint32_t i = 0; i < r->d.deliveries.n; i++) {
        if (!pn_spilled_delivery_locked(t->seg, t->topic, &r->d.deliveries, i, &d))
            continue;
        wanted = true;
        if (!expired)
            continue;
        pn_topic_channel_at(t->seg, d.channel)->expired++;
        pn_durable_note_ended_locked(t->seg, t->topic, r->d.m.id, d.channel, true);
    }
    return wanted;
}

/* It is over: cancelled, of no channel that is there, or expired.  The log is told no more than
 * that it has expired in these channels: others may have it, and of what was emptied or deleted
 * it was told as such. */
static bool is_over(const struct turn *t, const struct record *r)
{
    const bool expired = r->d.there && r->d.expires != 0 && r->d.expires <= t->now;
    if (r->d.there && is_wanted(t, r, expired) && !expired)
        return false;
    count_all(t, r, false, false);
    advance(t, r);
    PN_CRASH("later:over");
    return true;
}

static bool leaves_shares(const struct turn *t, const struct record *r)
{
    const uint64_t bytes = (uint64_t) r->d.m.headers_len + r->d.m.body_len;
    const struct pn_arena_need need = pn_message_need(t->seg, t->topic, bytes, true);
    return pn_arena_leaves_shares_locked(&t->seg->topics.arena,
                                         (uint32_t) (t->topic - t->seg->topics.topic), &need);
}

/* 1: it is in memory again; 0: there is no room; `shared`: none in the topic's share; else: none
 * but what other topics have not taken of theirs. */
static int come_back(struct turn *t, const struct record *r, bool shared)
{
    struct pn_segment *seg = t->seg;
    struct pn_topic_redo *redo = &seg->topics.ctl->redo;
    if (!shared && !leaves_shares(t, r))
        return 0;
    uint32_t ref = pn_topic_stage_given_locked(seg, t->topic, &r->d.m, &r->d.then, &r->d.deliveries,
                                               t->now, shared);
    if (ref == 0)
        return 0;
    redo_passes(t, r);
    redo->messages = ref;
    PN_CRASH("later:back");
    pn_store_release(&redo->valid, 1);
    PN_CRASH("later:back-valid");
    pn_topic_disk_redo_locked(seg);
    count_all(t, r, false, false);
    pn_message_golive_locked(seg, ref);
    redo->disk = redo->rest = 0;
    t->topic->message_count--; /* it was counted when it was published, for the channels as well */
    t->topic->message_bytes -= r->d.m.body_len;
    PN_EACH_DELIVERY (seg, pn_message_at(seg, ref), at)
        pn_topic_channel_at(seg, pn_delivery_at(seg, at)->channel)->message_count--;
    t->moved = true;
    return 1;
}

/* Behind the others: 1, or -errno. */
static int write_again(struct turn *t, const struct record *r)
{
    struct pn_segment *seg = t->seg;
    struct pn_topic *topic = t->topic;
    struct pn_topic_redo *redo = &seg->topics.ctl->redo;
    uint64_t seq = 0;
    int rc = pn_later_stage_locked(seg, topic, &r->d.m, &r->d.then, &r->d.deliveries, &seq);
    if (rc != 0)
        return rc;
    redo_passes(t, r);
    redo->messages = 0;
    redo->spill = redo->disk;
    redo->spill_seq = seq;
    redo->rest |= PN_REDO_TO_LATER | PN_REDO_AGAIN;
    PN_CRASH("later:again");
    pn_store_release(&redo->valid, 1);
    PN_CRASH("later:again-valid");
    pn_diskqueue_commit(&topic->later, seq);
    pn_topic_disk_redo_locked(seg);
    PN_CRASH("later:again-moved");
    pn_store_release(&redo->valid, 0);
    redo->disk = redo->spill = redo->rest = 0;
    if (topic->later_recount == PN_LATER_COUNTING)
        count_all(t, r, true, true);
    pn_topic_has_written_locked(seg, r->d.bytes);
    note_due(topic, r->d.expires != 0 && r->d.expires < r->d.due ? r->d.expires : r->d.due);
    return 1;
}

/* Does a channel take it whose others do not?  Or is there no room that could be made? */
static bool is_to_be_divided(const struct turn *t, const struct record *r, bool full)
{
    struct pn_segment *seg = t->seg;
    const uint64_t bytes = (uint64_t) r->d.m.headers_len + r->d.m.body_len;
    struct pn_spilled_delivery d;
    if (!pn_rest_may(seg, t->topic) || pn_topic_firm_channels(seg, t->topic) < 2)
        return false;
    if (full || t->topic->later_stuck != 0)
        return true;
    const struct pn_channel_room room = pn_channel_room_locked(seg, t->topic, bytes, true, 0);
    for (uint32_t i = 0; i < r->d.deliveries.n; i++)
        if (pn_spilled_delivery_locked(seg, t->topic, &r->d.deliveries, i, &d) &&
            pn_channel_takes(pn_topic_channel_at(seg, d.channel), &room, bytes))
            return true;
    return false;
}

/* 1: it is in memory again for channels that have room, and in `rest` for the others; 0: not now.
 * On a full disk all have it in memory, as far as other topics have their shares. */
static int divide(struct turn *t, const struct record *r, bool full)
{
    int rc = pn_rest_divide_locked(t->seg, t->topic, &r->d, &r->to, t->now);
    if (rc != 1)
        return full ? 0 : come_back(t, r, false);
    count_all(t, r, false, false);
    t->moved = true;
    return 1;
}

/* It is due: 1; 0: not now. */
static int take_due(struct turn *t, const struct record *r)
{
    struct pn_topic *topic = t->topic;
    bool full = topic->max_depth != 0 && (uint64_t) topic->firm + topic->staged >= topic->max_depth;
    int rc = full ? 0 : come_back(t, r, true);
    if (rc == 0 && is_to_be_divided(t, r, full))
        rc = divide(t, r, full);
    topic->later_stuck = rc == 0 && !full ? r->d.m.headers_len + r->d.m.body_len : 0;
    return rc;
}

/* The next one: 1; 0: not now; -errno. */
static int take(struct turn *t, const struct record *r)
{
    struct pn_topic *topic = t->topic;
    const uint64_t bytes = (uint64_t) r->d.m.headers_len + r->d.m.body_len;
    if (is_over(t, r))
        return 1;
    if (t->idle)
        return is_roomy(t->seg, topic, bytes, HALF) ? come_back(t, r, true) : 0;
    if (r->d.due > t->now) {
        const bool soon = r->d.due - t->now <= topic->later_window;
        if (soon && is_roomy(t->seg, topic, bytes, HALF) && come_back(t, r, true) == 1)
            return 1;
        topic->later_refused |= soon;
        const int rc = write_again(t, r);
        /* on a full disk what is due may stand behind it */
        return rc < 0 && is_roomy(t->seg, topic, bytes, SOME) ? come_back(t, r, true) : rc;
    }
    return take_due(t, r);
}

static void begin_turn(struct turn *t)
{
    struct pn_topic *topic = t->topic;
    topic->later_turn = pn_diskqueue_now(&topic->later)->write_seq;
    topic->later_next = INT64_MAX;
    topic->later_began = t->now;
    topic->later_refused = 0;
    if (topic->later_recount == PN_LATER_COUNTED)
        return;
    topic->later_recount = PN_LATER_COUNTING;
    PN_EACH_CHANNEL (t->seg, topic, i)
        pn_topic_channel_at(t->seg, i - 1)->later_again = 0;
}

static void end_turn(struct turn *t)
{
    struct pn_topic *topic = t->topic;
    const int64_t now = pn_now_ns();
    if (topic->later_recount == PN_LATER_COUNTING)
        PN_EACH_CHANNEL (t->seg, topic, i) {
            struct pn_topic_channel *ch = pn_topic_channel_at(t->seg, i - 1);
            ch->later = ch->later_again;
        }
    if (topic->later_recount == PN_LATER_COUNTING)
        topic->later_recount = PN_LATER_COUNTED;
    topic->later_turn = 0;
    topic->later_pause = now + PN_LATER_PAUSE + (now - topic->later_began);
    if (topic->later_next < topic->later_pause)
        topic->later_next = topic->later_pause;
    if (topic->later_refused != 0 && topic->later_window > 2 * lead(topic))
        topic->later_window /= 2;
    else if (topic->later_refused == 0 && topic->later_window < PN_LATER_DAY)
        topic->later_window *= 2;
}

/* A step of it: 1: there is more to do at once; else nothing for now. */
static int step(struct turn *t, uint64_t until)
{
    struct pn_topic *topic = t->topic;
    struct record r = {.to = {0}};
    int rc = 1;
    while ((rc == 1 || rc == -EAGAIN) && pn_diskqueue_now(&topic->later)->read_seq < until) {
        if (!pn_topic_may_read_locked(t->seg) || !pn_topic_may_write_locked(t->seg))
            return 1;
        const uint64_t next = pn_diskqueue_now(&topic->later)->read_seq;
        rc = pn_later_look_locked(t->seg, topic, &r.to, &r.d);
        pn_topic_has_read_locked(t->seg, rc == 1 ? r.d.bytes : 0);
        if (rc == 1 && (r.to.seq - 1 != next || r.d.deliveries.n == 0) &&
            topic->later_recount ==
                PN_LATER_COUNTED) /* some are lost: of which channels is not known */
            topic->later_recount = PN_LATER_TO_COUNT;
        if (rc == 1)
            rc = take(t, &r);
        else if (rc == 0) /* damaged to its end */
            pn_diskqueue_forget(&topic->later, t->seg->topics.disk, &r.to);
    }
    return 0;
}

/* Between turns: is there so much room that any may come back? */
static bool has_much_room(const struct pn_segment *seg, const struct pn_topic *topic)
{
    return pn_topic_on_disk(topic) == 0 && pn_rest_records(topic) == 0 &&
           topic->later_recount == PN_LATER_COUNTED && is_roomy(seg, topic, 0, HALF);
}

void pn_later_turn_locked(struct pn_segment *seg, struct pn_topic *topic)
{
    pn_assert_topics_held(seg);
    struct turn t = {.seg = seg, .topic = topic, .now = pn_now_ns()};
    const struct pn_diskqueue_state *s = pn_diskqueue_now(&topic->later);
    bool turns = s->read_seq < topic->later_turn;
    t.idle = !turns && topic->later_next > t.now;
    if ((t.idle && !has_much_room(seg, topic)) || pn_topic_use_files_locked(seg, topic) != 0)
        return;
    if (!t.idle && !turns)
        begin_turn(&t);
    if (step(&t, t.idle ? s->write_seq : topic->later_turn) == 1)
        topic->refilling = 1;
    PN_CRASH("later:step");
    pn_diskqueue_tidy(&topic->later, seg->topics.disk);
    pn_tombstones_passed_locked(seg, topic);
    bool over = !t.idle && pn_diskqueue_now(&topic->later)->read_seq >= topic->later_turn;
    if (over)
        end_turn(&t);
    if (over || t.moved)
        pn_topic_settle_locked(seg, topic);
}
