/*
 * check.c - does the segment hold together?
 *
 * Used by tests after every crash, by the fuzzers, and by Engine.check().  It reads everything
 * and believes nothing, so it must not fail itself on a segment that is scribbled all over.
 */
#define _GNU_SOURCE
#include "recovery/check.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/channel.h"
#include "backend/generation.h"
#include "backend/pattern.h"
#include "base/os.h"
#include "queue/copy.h"
#include "queue/queue.h"
#include "queue/spill.h"
#include "recovery/check_topics.h"
#include "recovery/recover_topics.h"
#include "segment/lock.h"

struct report {
    char *buf;
    size_t cap, used;
    int problems;
};

static void problem(struct report *r, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void problem(struct report *r, const char *format, ...)
{
    char line[200];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    r->problems++;
    if (n > 0 && r->used + (size_t) n + 2 < r->cap) {
        memcpy(r->buf + r->used, line, (size_t) n);
        r->used += (size_t) n;
        r->buf[r->used++] = '\n';
        r->buf[r->used] = '\0';
    }
}

static void topic_problem(void *report, const char *text)
{
    problem(report, "%s", text);
}

/* I1, I6, I12, I19 */
static bool check_positions(struct pn_segment *seg, struct report *r)
{
    uint64_t head = pn_load_relaxed(&seg->ctl->head), tail = pn_load_relaxed(&seg->ctl->tail);
    uint64_t mem_tail = pn_load_relaxed(&seg->ctl->mem_tail), reserved = seg->ctl->reserved;
    uint64_t floor = pn_load_relaxed(&seg->ctl->floor), woken = pn_load_relaxed(&seg->ctl->woken);
    int before = r->problems;
    if (tail > head || head - tail > seg->capacity)
        problem(r, "I1: tail %llu, head %llu, capacity %llu", (unsigned long long) tail,
                (unsigned long long) head, (unsigned long long) seg->capacity);
    if (mem_tail < tail || mem_tail > head || (!seg->spills && mem_tail != tail))
        problem(r, "I19: tail %llu, mem_tail %llu, head %llu", (unsigned long long) tail,
                (unsigned long long) mem_tail, (unsigned long long) head);
    if (head - mem_tail > seg->ring_bytes)
        problem(r, "I1: mem_tail %llu, head %llu, ring %llu", (unsigned long long) mem_tail,
                (unsigned long long) head, (unsigned long long) seg->ring_bytes);
    if (floor > head || (floor != 0 && seg->on_full != PN_FULL_DROP_SLOWEST))
        problem(r, "I19: floor %llu, head %llu", (unsigned long long) floor,
                (unsigned long long) head);
    if (woken != head)
        problem(r, "I6: woken %llu is not head %llu", (unsigned long long) woken,
                (unsigned long long) head);
    if (tail % 8 != 0 || head % 8 != 0 || mem_tail % 8 != 0 || floor % 8 != 0)
        problem(r, "tail, mem_tail, floor or head is not aligned");
    if (head + reserved > tail + seg->capacity || head + reserved > mem_tail + seg->ring_bytes)
        problem(r, "I12: %llu bytes are reserved beyond the capacity",
                (unsigned long long) reserved);
    return r->problems == before;
}

/* I18, one entry; newest[]: of each counter the value that its last entry says, 0: none yet. */
static void check_bump(struct pn_segment *seg, struct report *r, const AsyncQueueEntry *qe,
                       const struct pn_entry_extent *extent, uint64_t *newest)
{
    const uint32_t i = *(volatile const uint32_t *) &qe->channel_hash; /* once */
    if (i >= seg->max_generations || extent->channel_len != 0 || extent->payload_len != 0 ||
        pn_load_relaxed(&pn_generation_at(seg, i)->state) != PN_GENERATION_USED ||
        pn_generation_at(seg, i)->dboid != qe->dboid) {
        problem(r, "I18: commit %llu bumps counter %u, which is none of its database",
                (unsigned long long) qe->xid, i);
        return;
    }
    if (qe->chan_seq <= newest[i])
        problem(r, "I18: commit %llu sets counter %u to %llu, after %llu",
                (unsigned long long) qe->xid, i, (unsigned long long) qe->chan_seq,
                (unsigned long long) newest[i]);
    newest[i] = qe->chan_seq;
}

/* I17, and the rest of I18. */
static void check_generations(struct pn_segment *seg, struct report *r, const uint64_t *newest)
{
    uint32_t used = 0;
    for (uint32_t i = 0; i < seg->max_generations; i++) {
        const struct pn_generation *g = pn_generation_at(seg, i);
        uint64_t value = pn_load_relaxed(&g->value);
        if (pn_load_relaxed(&g->state) != PN_GENERATION_USED)
            continue;
        used++;
        if (newest[i] != 0 && newest[i] != value)
            problem(r, "I18: counter %u is %llu, its newest entry says %llu", i,
                    (unsigned long long) value, (unsigned long long) newest[i]);
        if (value != 0 && pn_load_relaxed(&g->changed_ns) == 0)
            problem(r, "I18: counter %u is %llu and has no time", i, (unsigned long long) value);
        if (g->name_len == 0 || g->name_len > seg->max_channel_name ||
            g->hash != pn_channel_hash(g->dboid, g->name, g->name_len) ||
            pn_generation_find(seg, g->hash, g->dboid, g->name, g->name_len) != g)
            problem(r, "I17: counter %u is not found under its name", i);
    }
    if (used != seg->ctl->generations_used)
        problem(r, "I17: %u counters are in use, their number says %u", used,
                seg->ctl->generations_used);
}

struct walk {
    uint64_t xid, *newest;
    int64_t sent;
};

static void check_entry(struct pn_segment *seg, struct report *r, struct walk *walk,
                        const AsyncQueueEntry *qe, const struct pn_entry_extent *extent,
                        QueuePosition at)
{
    if (qe->dboid == 0) /* there may be no more of it than that */
        return;
    const struct pn_topic_entry entry = pn_topic_entry_of(qe, extent);
    if (qe->xid < walk->xid || qe->sent_ns < walk->sent || qe->xid > seg->ctl->last_xid)
        problem(r, "I3: entry at %llu is out of commit order", (unsigned long long) at);
    if (qe->headers_len != 0 &&
        (qe->kind != PN_ENTRY_NOTIFY || qe->headers_len > extent->payload_len))
        problem(r, "I3: entry at %llu, of kind %u, cannot have headers of %u bytes",
                (unsigned long long) at, qe->kind, qe->headers_len);
    if (entry.kind == PN_ENTRY_GENERATION)
        check_bump(seg, r, qe, extent, walk->newest);
    else if (entry.kind >= PN_ENTRY_PUBLISH && !pn_topic_entry_possible(seg, &entry))
        problem(r, "I3: entry at %llu has the unknown kind %u", (unsigned long long) at,
                entry.kind);
    walk->xid = qe->xid;
    walk->sent = qe->sent_ns;
}

/* I14, and I3 for what stands in files; where reading is to go on. */
static QueuePosition check_files(struct pn_segment *seg, struct report *r, struct walk *walk)
{
    struct pn_copy copy = {0};
    QueuePosition pos = pn_load_relaxed(&seg->ctl->tail);
    QueuePosition mem_tail = pn_load_relaxed(&seg->ctl->mem_tail);
    if (pos < mem_tail && (pos / PN_SPILL_FILE < pn_load_relaxed(&seg->ctl->first_file) ||
                           (mem_tail - 1) / PN_SPILL_FILE >= seg->ctl->end_file))
        problem(r, "I14: files %llu to %llu are not all needed",
                pn_load_relaxed(&seg->ctl->first_file) + 0ULL, seg->ctl->end_file + 0ULL);
    if (pos < pn_load_relaxed(&seg->ctl->floor))
        pos = pn_load_relaxed(&seg->ctl->floor); /* killed in an eviction */
    while (pos < mem_tail) {
        const AsyncQueueEntry *qe;
        struct pn_copy_gap gap;
        struct pn_entry_extent extent;
        int rc = pn_copy_fetch(seg, &copy, pos, mem_tail, &gap);
        if (rc == 0)
            rc = pn_copy_entry(seg, &copy, pos, &qe, &extent, &gap);
        if (rc != 0) {
            problem(r, "I14: what stands at %llu cannot be read back (%s)",
                    (unsigned long long) pos, rc < 0 ? pn_error_message() : "damaged");
            break;
        }
        check_entry(seg, r, walk, qe, &extent, pos);
        pos = extent.next;
    }
    pn_copy_free(&copy);
    return mem_tail;
}

/* I3: the queue from tail to head is a sequence of entries, xid and time never fall. */
static void check_entries(struct pn_segment *seg, struct report *r, uint64_t *newest)
{
    struct walk walk = {.newest = newest};
    QueuePosition pos = seg->spills ? check_files(seg, r, &walk) : pn_load_relaxed(&seg->ctl->tail);
    QueuePosition head = pn_load_relaxed(&seg->ctl->head);
    while (pos < head) {
        QueuePosition at = pos;
        struct pn_entry_extent extent;
        const AsyncQueueEntry *qe = pn_queue_entry_at(seg, pos, head, &extent);
        if (qe == NULL) {
            problem(r, "I3: no entry can stand at %llu", (unsigned long long) at);
            return;
        }
        pos = extent.next;
        check_entry(seg, r, &walk, qe, &extent, at);
    }
}

/* I2, and that every claimed slot makes sense. */
static void check_slots(struct pn_segment *seg, struct report *r)
{
    uint64_t head = pn_load_relaxed(&seg->ctl->head), tail = pn_load_relaxed(&seg->ctl->tail);
    uint64_t reserved = 0;
    for (uint32_t slot = 0; slot < seg->max_backends; slot++) {
        struct QueueBackendStatus *b = &seg->backend[slot];
        QueuePosition start;
        if (pn_load_relaxed(&b->state) == PN_SLOT_FREE) {
            if (b->firstSub != 0)
                problem(r, "I15: free slot %u has subscriptions", slot);
            continue;
        }
        if (pn_load_relaxed(&b->state) != PN_SLOT_CLAIMED)
            problem(r, "slot %u has the impossible state %u", slot, pn_load_relaxed(&b->state));
        reserved += b->reserved;
        if ((pn_load_relaxed(&b->pos) & ~PN_ASLEEP) > head || pn_load_relaxed(&b->want) > head)
            problem(r, "slot %u stands beyond the head", slot);
        if (b->numSubs != 0 && pn_backend_pins(seg, b, &start) && start < tail)
            problem(r, "I2: slot %u pins %llu, behind the tail %llu", slot,
                    (unsigned long long) start, (unsigned long long) tail);
        if (b->numSubs != 0 && pn_backend_pins(seg, b, &start) &&
            (seg->pinning[slot / 64] >> (slot % 64) & 1) == 0)
            problem(r, "I2: slot %u pins the queue, a tail scan would not see it", slot);
        if (b->database >= seg->max_databases || seg->database[b->database].dboid != b->dboid)
            problem(r, "slot %u is in a database that is not", slot);
    }
    if (reserved != seg->ctl->reserved)
        problem(r, "I12: slots have reserved %llu bytes, the sum says %llu",
                (unsigned long long) reserved, (unsigned long long) seg->ctl->reserved);
}

/* Walk a slot's list; mark the subscriptions, count them per channel. */
static void check_list(struct pn_segment *seg, struct report *r, uint32_t slot, uint8_t *used,
                       uint32_t *listeners, uint32_t *staged)
{
    uint32_t count = 0;
    for (uint32_t link = seg->backend[slot].firstSub, prev = 0; link != 0;) {
        if (link > seg->max_subscriptions || used[link - 1] != 0 ||
            seg->subscription[link - 1].prev != prev) {
            problem(r, "I15: the subscription list of slot %u is broken", slot);
            return;
        }
        used[link - 1] = 1;
        const struct pn_subscription *sub = &seg->subscription[link - 1];
        uint32_t channel = *(volatile const uint32_t *) &sub->channel;
        if (channel >= seg->max_channels) {
            problem(r, "I15: slot %u subscribes to channel %u", slot, channel);
            return;
        }
        struct GlobalChannelEntry *e = pn_channel_at(seg, channel);
        if (sub->since == PN_SINCE_STAGED) {
            staged[channel]++;
        } else {
            count++;
            listeners[channel]++;
            if (e->state != PN_CHANNEL_USED || !pn_channel_listens(seg, e, slot))
                problem(r, "I15: slot %u listens to channel %u, its bit is not set", slot, channel);
            if (sub->since > pn_load_relaxed(&seg->ctl->head))
                problem(r, "I11: slot %u listens to channel %u since the future", slot, channel);
        }
        prev = link;
        link = sub->next;
    }
    if (count != seg->backend[slot].numSubs)
        problem(r, "I15: slot %u has %u subscriptions, numSubs is %u", slot, count,
                seg->backend[slot].numSubs);
    bool listens = (pn_load_relaxed(&seg->listeners[slot / 64]) >> (slot % 64) & 1) != 0;
    if (listens != (count != 0))
        problem(r, "I15: slot %u, its bit among the listeners is wrong", slot);
}

static uint32_t is_bridged(struct pn_segment *seg, struct GlobalChannelEntry *e)
{
    if (pn_load_relaxed(&seg->ctl->bridges) == 0)
        return 0; /* the usual case, and a quick one */
    for (uint32_t slot = 0; slot < seg->max_backends; slot++)
        if (pn_load_relaxed(&seg->backend[slot].bridge) != 0 && pn_channel_listens(seg, e, slot))
            return 1;
    return 0;
}

static void check_channel(struct pn_segment *seg, struct report *r, uint32_t i, uint32_t listeners,
                          uint32_t staged)
{
    struct GlobalChannelEntry *e = pn_channel_at(seg, i);
    if (e->state != PN_CHANNEL_USED) {
        if (listeners + staged != 0)
            problem(r, "I15: channel %u is free and has listeners", i);
        return;
    }
    const uint64_t *bits = pn_channel_bits(seg, e);
    uint32_t set = 0;
    for (uint32_t w = 0; w < seg->words; w++) {
        set += pn_popcount(bits[w]);
        if (((e->words[w / 64] >> (w % 64)) & 1) != (bits[w] != 0 ? 1 : 0))
            problem(r, "I15: the summary of channel %u is wrong at word %u", i, w);
    }
    if (set != listeners || e->numListeners != listeners || e->staged != staged)
        problem(r, "I15: channel %u has %u listeners, %u bits, numListeners %u, staged %u/%u", i,
                listeners, set, e->numListeners, e->staged, staged);
    if (e->upstream != is_bridged(seg, e))
        problem(r, "I15: channel %u says upstream %u", i, e->upstream);
    if (e->name_len == 0 || e->name_len > seg->max_channel_name) {
        problem(r, "channel %u has a name of %u bytes", i, e->name_len);
        return;
    }
    uint64_t hash = pn_channel_hash(e->dboid, pn_channel_name(seg, e), e->name_len);
    if (hash != e->hash ||
        pn_channel_find_locked(seg, hash, e->dboid, pn_channel_name(seg, e), e->name_len) != e)
        problem(r, "I15: channel %u is not found under its name", i);
}

/* I32; `patterns` of the entries are one. */
static void check_patterns(struct pn_segment *seg, struct report *r, uint32_t patterns)
{
    uint32_t found = 0;
    for (uint32_t link = seg->ctl->first_pattern, prev = 0; link != 0; found++) {
        const struct GlobalChannelEntry *e =
            link <= seg->max_channels ? pn_channel_at(seg, link - 1) : NULL;
        if (e == NULL || found > seg->max_channels || e->state != PN_CHANNEL_USED ||
            !pn_is_pattern(e) || e->prev_pattern != prev) {
            problem(r, "I32: the list of patterns is broken at its number %u", found);
            return;
        }
        if (e->numListeners + e->staged == 0)
            problem(r, "I32: nothing listens to the pattern in channel %u", link - 1);
        prev = link;
        link = e->next_pattern;
    }
    if (found != patterns || seg->ctl->patterns_used != patterns)
        problem(r, "I32: there are %u patterns, %u in the list, their number says %u", patterns,
                found, seg->ctl->patterns_used);
}

static void check_tables(struct pn_segment *seg, struct report *r)
{
    uint8_t *used = calloc(seg->max_subscriptions, 1);
    uint32_t *listeners = calloc(2ULL * seg->max_channels, sizeof *listeners);
    if (used == NULL || listeners == NULL) {
        problem(r, "out of memory while checking");
    } else {
        uint32_t *staged = listeners + seg->max_channels, subs = 0, channels = 0, free_subs = 0;
        uint32_t patterns = 0;
        for (uint32_t slot = 0; slot < seg->max_backends; slot++)
            check_list(seg, r, slot, used, listeners, staged);
        for (uint32_t i = 0; i < seg->max_channels; i++) {
            check_channel(seg, r, i, listeners[i], staged[i]);
            const struct GlobalChannelEntry *e = pn_channel_at(seg, i);
            channels += e->state == PN_CHANNEL_USED;
            patterns += e->state == PN_CHANNEL_USED && pn_is_pattern(e);
        }
        check_patterns(seg, r, patterns);
        for (uint32_t i = 0; i < seg->max_subscriptions; i++)
            subs += used[i];
        for (uint32_t link = seg->ctl->free_subscription; link != 0; free_subs++) {
            if (link > seg->max_subscriptions || used[link - 1] != 0) {
                problem(r, "the list of free subscriptions is broken");
                break;
            }
            used[link - 1] = 2;
            link = seg->subscription[link - 1].next;
        }
        if (subs != seg->ctl->subscriptions_used || channels != seg->ctl->channels_used)
            problem(r, "%u subscriptions and %u channels in use, counters say %u and %u", subs,
                    channels, seg->ctl->subscriptions_used, seg->ctl->channels_used);
        if (subs + free_subs != seg->max_subscriptions)
            problem(r, "%u subscriptions leaked", seg->max_subscriptions - subs - free_subs);
    }
    free(used);
    free(listeners);
}

int pn_check_locked(struct pn_segment *seg, char *buf, size_t cap)
{
    pn_assert_held(seg);
    struct report r = {.buf = buf, .cap = cap};
    if (cap > 0)
        buf[0] = '\0';
    if (seg->ctl->index_dirty != 0)
        problem(&r, "the channel table is marked as being changed");
    uint64_t *newest = calloc(seg->max_generations, sizeof *newest);
    if (newest == NULL) {
        problem(&r, "out of memory while checking");
    } else {
        if (check_positions(seg, &r))
            check_entries(seg, &r, newest);
        check_generations(seg, &r, newest);
        free(newest);
    }
    check_slots(seg, &r);
    check_tables(seg, &r);
    pn_check_topics_locked(seg, topic_problem, &r);
    return r.problems;
}

/* ---- statistics ------------------------------------------------------------------------------ */

static void stat_backend(struct pn_segment *seg, uint32_t slot, pn_backend_stat *row)
{
    const struct QueueBackendStatus *b = &seg->backend[slot];
    QueuePosition start, head = pn_load_relaxed(&seg->ctl->head);
    memset(row, 0, sizeof *row);
    row->backend_id = (int32_t) slot;
    row->pid = pn_load_relaxed(&b->pid);
    row->channels = b->numSubs;
    row->asleep = (pn_load_relaxed(&b->pos) & PN_ASLEEP) != 0;
    row->in_transaction = pn_slot_transactions(b) != 0;
    row->signo = pn_load_relaxed(&b->signo);
    if (pn_load_relaxed(&b->bridge) != 0)
        row->bridge = b->numSubs == 0 ? PN_BRIDGE_ONE_WAY : PN_BRIDGE_BOTH;
    if (b->numSubs != 0 && pn_backend_pins(seg, b, &start) && start < head)
        row->lag_bytes = head - start;
    memcpy(row->application_name, b->application_name, sizeof row->application_name - 1);
    if (b->database < seg->max_databases)
        snprintf(row->database, sizeof row->database, "%s", seg->database[b->database].name);
}

void pn_stat_locked(struct pn_segment *seg, pn_stat *out, pn_backend_stat *rows, size_t cap)
{
    pn_assert_held(seg);
    struct AsyncQueueControl *ctl = seg->ctl;
    int32_t holder = pn_queue_advance_tail_locked(seg);
    uint64_t head = pn_load_relaxed(&ctl->head), tail = pn_load_relaxed(&ctl->tail);

    *out =
        (pn_stat) {.commits = pn_load_relaxed(&ctl->locked.commits),
                   .notifications = pn_load_relaxed(&ctl->locked.notifications),
                   .collapsed = pn_load_relaxed(&ctl->locked.collapsed),
                   .signals_elided = pn_load_relaxed(&ctl->locked.signals_elided),
                   .slot_writes = pn_load_relaxed(&ctl->locked.slot_writes),
                   .recoveries = pn_load_relaxed(&ctl->locked.recoveries),
                   .signals_sent = pn_load_relaxed(&ctl->free.signals_sent),
                   .log_records_dropped = pn_load_relaxed(&ctl->free.log_dropped),
                   .log_files_recycled = pn_load_relaxed(&ctl->free.log_recycled),
                   .signals_unsent = pn_load_relaxed(&ctl->free.signals_unsent),
                   .wakeups_useful = pn_load_relaxed(&ctl->free.wakeups_useful),
                   .wakeups_useless = pn_load_relaxed(&ctl->free.wakeups_useless),
                   .handler_reinstalls = pn_load_relaxed(&ctl->free.handler_reinstalls),
                   .evictions = pn_load_relaxed(&ctl->locked.evictions),
                   .spilled_pages = pn_load_relaxed(&ctl->locked.spilled_pages),
                   .head = head,
                   .tail = tail,
                   .mem_tail = pn_load_relaxed(&ctl->mem_tail),
                   .tail_holder_pid = holder < 0 ? 0 : pn_load_relaxed(&seg->backend[holder].pid),
                   .queue_pages = (uint32_t) (seg->ring_bytes / PN_QUEUE_PAGE),
                   .max_queue_pages = (uint32_t) (seg->capacity / PN_QUEUE_PAGE),
                   .channels = ctl->channels_used,
                   .patterns = ctl->patterns_used,
                   .subscriptions = ctl->subscriptions_used,
                   .generations = ctl->generations_used};
    out->queue_usage = (double) (QUEUE_POS_PAGE(head) - QUEUE_POS_PAGE(tail)) /
                       (double) (seg->capacity / PN_QUEUE_PAGE);
    for (uint32_t slot = 0; slot < seg->max_backends; slot++) {
        if (pn_load_relaxed(&seg->backend[slot].state) != PN_SLOT_CLAIMED)
            continue;
        if (rows != NULL && out->backends < cap)
            stat_backend(seg, slot, &rows[out->backends]);
        out->backends++;
    }
}
