/*
 * channel.c - GlobalChannelTable and the subscription lists.
 *
 * 1. Truth and index.  What a backend listens to is the list of subscriptions that starts at its
 *    slot's firstSub.  The channel entries' bitmaps and counts, the hash chains, the free lists
 *    and the counters are an index of that, rebuilt by recovery (pn_channel_rebuild_locked) when
 *    a process died while index_dirty was set.  A list changes by one store: the head when a
 *    subscription is added, one `next` when it is removed.  `prev` is part of the index: with it an
 *    UNLISTEN costs the same however much the backend listens to.
 * 2. Only the lock holder reads or writes any of it: PostgreSQL needs 128 partition locks here
 *    because its committers do not hold one lock together; ours do already.
 * 3. An entry has two levels of bitmap, so that finding the listeners of a channel costs the
 *    same with 10 and with 10,000 registered backends.
 * 4. An entry whose last listener left stays, for the sake of its chan_seq, until the room is
 *    needed for another channel; that of a pattern is freed (pattern.h).
 */
#define _GNU_SOURCE
#include "backend/channel.h"

#include <errno.h>
#include <stdlib.h>

#include "backend/pattern.h"
#include "backend/upstream.h"
#include "base/crashpoint.h"
#include "segment/lock.h"

static uint32_t words_for(uint32_t n)
{
    return (n + 63) / 64;
}

static inline uint32_t bucket_of(const struct pn_segment *seg, uint64_t hash)
{
    return (uint32_t) (hash >> 32) & (seg->buckets - 1);
}

struct GlobalChannelEntry *pn_channel_find_locked(struct pn_segment *seg, uint64_t hash,
                                                  uint32_t dboid, const char *name, size_t len)
{
    pn_assert_held(seg);
    uint32_t link = seg->bucket[bucket_of(seg, hash)];
    for (uint32_t steps = 0; link != 0; steps++) {
        if (link > seg->max_channels || steps > seg->max_channels) {
            pn_segment_poison(seg, "a chain of the channel table leads nowhere");
            return NULL;
        }
        struct GlobalChannelEntry *e = pn_channel_at(seg, link - 1);
        if (e->hash == hash && e->dboid == dboid && e->name_len == len &&
            memcmp(pn_channel_name(seg, e), name, len) == 0)
            return e;
        link = e->next;
    }
    return NULL;
}

/* ---- entries ----------------------------------------------------------------------------- */

static void unchain(struct pn_segment *seg, struct GlobalChannelEntry *e)
{
    uint32_t self = pn_channel_index(seg, e) + 1;
    uint32_t *link = &seg->bucket[bucket_of(seg, e->hash)];
    for (uint32_t steps = 0; *link != 0 && steps <= seg->max_channels; steps++) {
        if (*link == self) {
            *link = e->next;
            return;
        }
        if (*link > seg->max_channels)
            return;
        link = &pn_channel_at(seg, *link - 1)->next;
    }
}

/* Give up the channel that has waited longest for a listener; its chan_seq is lost with it. */
static struct GlobalChannelEntry *evict_entry(struct pn_segment *seg)
{
    for (uint32_t i = 0; i < seg->max_channels; i++) {
        uint32_t at = seg->ctl->eviction_hand++ % seg->max_channels;
        struct GlobalChannelEntry *e = pn_channel_at(seg, at);
        if (e->state == PN_CHANNEL_USED && e->numListeners == 0 && e->staged == 0) {
            if (seg->ctl->chan_seq_floor < e->next_chan_seq)
                seg->ctl->chan_seq_floor = e->next_chan_seq;
            unchain(seg, e);
            e->state = PN_CHANNEL_FREE;
            seg->ctl->channels_used--;
            return e;
        }
    }
    return NULL;
}

static struct GlobalChannelEntry *new_entry(struct pn_segment *seg, uint64_t hash, uint32_t dboid,
                                            const char *name, size_t len)
{
    struct GlobalChannelEntry *e = NULL;
    uint32_t link = seg->ctl->free_channel;
    if (link != 0 && link <= seg->max_channels) {
        e = pn_channel_at(seg, link - 1);
        seg->ctl->free_channel = e->next;
    } else {
        e = evict_entry(seg);
    }
    if (e == NULL)
        return NULL;
    e->hash = hash;
    e->next_chan_seq = e->first_chan_seq = seg->ctl->chan_seq_floor + 1;
    e->dboid = dboid;
    e->numListeners = 0;
    e->staged = 0;
    e->upstream = 0;
    e->next_pattern = e->prev_pattern = 0;
    e->name_len = (uint16_t) len;
    memset(e->words, 0, (size_t) (seg->summary_words + seg->words) * 8);
    memcpy(pn_channel_name(seg, e), name, len);
    PN_CRASH("listen:entry");
    e->state = PN_CHANNEL_USED;
    uint32_t *bucket = &seg->bucket[bucket_of(seg, hash)];
    e->next = *bucket;
    *bucket = pn_channel_index(seg, e) + 1;
    seg->ctl->channels_used++;
    if (pn_is_pattern(e))
        pn_pattern_link_locked(seg, e);
    return e;
}

/* Of a pattern, index_dirty is set: it goes with its last subscription. */
static void free_if_unheard(struct pn_segment *seg, struct GlobalChannelEntry *e)
{
    if (!pn_is_pattern(e) || e->numListeners != 0 || e->staged != 0)
        return;
    if (seg->ctl->chan_seq_floor < e->next_chan_seq)
        seg->ctl->chan_seq_floor = e->next_chan_seq; /* its count does not begin there again */
    pn_pattern_unlink_locked(seg, e);
    unchain(seg, e);
    e->state = PN_CHANNEL_FREE;
    e->next = seg->ctl->free_channel;
    seg->ctl->free_channel = pn_channel_index(seg, e) + 1;
    seg->ctl->channels_used--;
}

static void set_bit(struct pn_segment *seg, struct GlobalChannelEntry *e, uint32_t slot)
{
    uint64_t *bits = pn_channel_bits(seg, e);
    uint64_t mask = 1ULL << (slot % 64);
    if ((bits[slot / 64] & mask) == 0)
        e->numListeners++;
    bits[slot / 64] |= mask;
    e->words[slot / 64 / 64] |= 1ULL << (slot / 64 % 64);
}

static void clear_bit(struct pn_segment *seg, struct GlobalChannelEntry *e, uint32_t slot)
{
    uint64_t *bits = pn_channel_bits(seg, e);
    uint64_t mask = 1ULL << (slot % 64);
    if ((bits[slot / 64] & mask) != 0)
        e->numListeners--;
    bits[slot / 64] &= ~mask;
    if (bits[slot / 64] == 0)
        e->words[slot / 64 / 64] &= ~(1ULL << (slot / 64 % 64));
}

static inline bool has_bit(const struct pn_segment *seg, struct GlobalChannelEntry *e,
                           uint32_t slot)
{
    return (pn_channel_bits(seg, e)[slot / 64] >> (slot % 64) & 1) != 0;
}

/* The bit, and what a bridge has to know of it. */
static void set_listens(struct pn_segment *seg, struct GlobalChannelEntry *e, uint32_t slot,
                        bool listens)
{
    bool before = pn_is_heard_here(e);
    (listens ? set_bit : clear_bit)(seg, e, slot);
    if (pn_load_relaxed(&seg->backend[slot].bridge) != 0)
        e->upstream = listens;
    if (pn_is_heard_here(e) != before)
        pn_heard_changed_locked(seg);
}

/* ---- subscriptions ----------------------------------------------------------------------- */

static void set_listener_bit(struct pn_segment *seg, uint32_t slot, bool listens)
{
    uint64_t mask = 1ULL << (slot % 64);
    uint64_t word = pn_load_relaxed(&seg->listeners[slot / 64]);
    pn_store_relaxed(&seg->listeners[slot / 64], listens ? word | mask : word & ~mask);
}

struct GlobalChannelEntry *pn_subscribed_locked(struct pn_segment *seg, uint32_t subscription)
{
    pn_assert_held(seg);
    uint32_t channel = *(volatile const uint32_t *) &seg->subscription[subscription].channel;
    if (channel < seg->max_channels)
        return pn_channel_at(seg, channel);
    pn_segment_poison(seg, "a subscription is to channel %u, which is not", channel);
    return NULL;
}

/* `link` may be 0, or a scribbled one, which is found when it is followed. */
static void set_prev(struct pn_segment *seg, uint32_t link, uint32_t prev)
{
    if (link != 0 && link <= seg->max_subscriptions)
        seg->subscription[link - 1].prev = prev;
}

int pn_listen_stage_locked(struct pn_segment *seg, uint32_t slot, uint64_t hash, uint32_t dboid,
                           const char *name, size_t len, uint32_t *subscription)
{
    pn_assert_held(seg);
    uint32_t link = seg->ctl->free_subscription;
    if (link == 0 || link > seg->max_subscriptions)
        return pn_fail(PN_ECHANNELS,
                       "too many subscriptions (max_subscriptions is %u)\n"
                       "Unlisten somewhere, or create the segment with a larger max_subscriptions.",
                       seg->max_subscriptions);
    seg->ctl->index_dirty = 1;
    struct GlobalChannelEntry *e = pn_channel_find_locked(seg, hash, dboid, name, len);
    if (e == NULL)
        e = new_entry(seg, hash, dboid, name, len);
    if (e == NULL) {
        seg->ctl->index_dirty = 0;
        return pn_fail(PN_ECHANNELS,
                       "too many channels (max_channels is %u)\n"
                       "Unlisten somewhere, or create the segment with a larger max_channels; a "
                       "pattern counts as a channel.",
                       seg->max_channels);
    }
    struct pn_subscription *sub = &seg->subscription[link - 1];
    seg->ctl->free_subscription = sub->next;
    sub->channel = pn_channel_index(seg, e);
    sub->since = PN_SINCE_STAGED;
    sub->next = seg->backend[slot].firstSub;
    sub->prev = 0;
    PN_CRASH("listen:sub");
    set_prev(seg, sub->next, link);
    seg->backend[slot].firstSub = link; /* truth changes here */
    seg->ctl->subscriptions_used++;
    e->staged++;
    seg->ctl->index_dirty = 0;
    *subscription = link - 1;
    return 0;
}

void pn_listen_apply_locked(struct pn_segment *seg, uint32_t slot, uint32_t subscription,
                            QueuePosition since)
{
    pn_assert_held(seg);
    struct pn_subscription *sub = &seg->subscription[subscription];
    struct GlobalChannelEntry *e = pn_subscribed_locked(seg, subscription);
    if (e == NULL)
        return;
    seg->ctl->index_dirty = 1;
    sub->since = since;
    PN_CRASH("listen:bit");
    pn_invariant(seg, "I15", !has_bit(seg, e, slot));
    e->staged--;
    set_listens(seg, e, slot, true);
    seg->backend[slot].numSubs++;
    set_listener_bit(seg, slot, true);
    seg->ctl->index_dirty = 0;
}

void pn_unlisten_locked(struct pn_segment *seg, uint32_t slot, uint32_t subscription)
{
    pn_assert_held(seg);
    struct pn_subscription *sub = &seg->subscription[subscription];
    struct QueueBackendStatus *backend = &seg->backend[slot];
    struct GlobalChannelEntry *e = pn_subscribed_locked(seg, subscription);
    uint32_t prev = *(volatile const uint32_t *) &sub->prev;

    if (e == NULL)
        return;
    uint32_t *link = prev == 0 || prev > seg->max_subscriptions ? &backend->firstSub
                                                                : &seg->subscription[prev - 1].next;
    if (*link != subscription + 1) {
        pn_segment_poison(seg, "the subscription list of backend %u is broken", slot);
        return;
    }
    seg->ctl->index_dirty = 1;
    set_prev(seg, sub->next, prev);
    *link = sub->next; /* truth changes here */
    PN_CRASH("unlisten:sub");
    if (sub->since == PN_SINCE_STAGED) {
        e->staged--;
    } else {
        pn_invariant(seg, "I15", has_bit(seg, e, slot) && backend->numSubs > 0);
        set_listens(seg, e, slot, false);
        backend->numSubs--;
        set_listener_bit(seg, slot, backend->numSubs != 0);
    }
    PN_CRASH("unlisten:bit");
    free_if_unheard(seg, e);
    sub->next = seg->ctl->free_subscription;
    seg->ctl->free_subscription = subscription + 1;
    seg->ctl->subscriptions_used--;
    seg->ctl->index_dirty = 0;
}

void pn_unlisten_all_locked(struct pn_segment *seg, uint32_t slot)
{
    pn_assert_held(seg);
    for (uint32_t steps = 0; seg->backend[slot].firstSub != 0; steps++) {
        uint32_t link = seg->backend[slot].firstSub;
        if (link > seg->max_subscriptions || steps > seg->max_subscriptions) {
            pn_segment_poison(seg, "the subscription list of backend %u is broken", slot);
            return;
        }
        pn_unlisten_locked(seg, slot, link - 1);
        if (pn_segment_check_state(seg) != 0)
            return;
    }
}

/* ---- rebuilding -------------------------------------------------------------------------- */

static void rebuild_entries(struct pn_segment *seg)
{
    memset(seg->bucket, 0, (size_t) seg->buckets * sizeof *seg->bucket);
    seg->ctl->free_channel = 0;
    seg->ctl->channels_used = 0;
    seg->ctl->first_pattern = seg->ctl->patterns_used = 0;
    for (uint32_t i = seg->max_channels; i-- > 0;) {
        struct GlobalChannelEntry *e = pn_channel_at(seg, i);
        uint32_t *head = &seg->ctl->free_channel;
        if (e->state == PN_CHANNEL_USED) {
            head = &seg->bucket[bucket_of(seg, e->hash)];
            seg->ctl->channels_used++;
            e->numListeners = 0;
            e->staged = 0;
            e->upstream = 0;
            memset(e->words, 0, (size_t) (seg->summary_words + seg->words) * 8);
        }
        e->next = *head;
        *head = i + 1;
    }
}

/* When the slots were walked. */
static void rebuild_patterns(struct pn_segment *seg)
{
    for (uint32_t i = 0; i < seg->max_channels; i++) {
        struct GlobalChannelEntry *e = pn_channel_at(seg, i);
        if (e->state != PN_CHANNEL_USED || !pn_is_pattern(e))
            continue;
        pn_pattern_link_locked(seg, e);
        PN_CRASH("recover:pattern");
        free_if_unheard(seg, e);
    }
}

/* Walk one slot's list; marks the subscriptions in use by a `next` that the free list lacks. */
static int rebuild_slot(struct pn_segment *seg, uint32_t slot, uint64_t *used)
{
    struct QueueBackendStatus *backend = &seg->backend[slot];
    backend->numSubs = 0;
    if (pn_load_relaxed(&backend->state) == PN_SLOT_FREE)
        backend->firstSub = 0;
    for (uint32_t link = backend->firstSub, prev = 0; link != 0;) {
        if (link > seg->max_subscriptions || (used[(link - 1) / 64] >> ((link - 1) % 64) & 1) != 0)
            return pn_segment_poison(seg, "the subscription list of backend %u is broken", slot);
        used[(link - 1) / 64] |= 1ULL << ((link - 1) % 64);
        struct pn_subscription *sub = &seg->subscription[link - 1];
        struct GlobalChannelEntry *e = pn_subscribed_locked(seg, link - 1);
        if (e == NULL || e->state != PN_CHANNEL_USED)
            return pn_segment_poison(seg, "backend %u subscribes to a channel that is not", slot);
        if (sub->since == PN_SINCE_STAGED) {
            e->staged++;
        } else {
            set_listens(seg, e, slot, true);
            backend->numSubs++;
        }
        seg->ctl->subscriptions_used++;
        sub->prev = prev;
        prev = link;
        link = sub->next;
    }
    set_listener_bit(seg, slot, backend->numSubs != 0);
    return 0;
}

int pn_channel_rebuild_locked(struct pn_segment *seg)
{
    pn_assert_held(seg);
    uint64_t *used = calloc(words_for(seg->max_subscriptions), sizeof *used);
    if (used == NULL)
        return pn_fail(ENOMEM, "out of memory while rebuilding the channel table");
    int rc = 0;
    rebuild_entries(seg);
    PN_CRASH("recover:index");
    seg->ctl->subscriptions_used = 0;
    for (uint32_t slot = 0; rc == 0 && slot < seg->max_backends; slot++)
        rc = rebuild_slot(seg, slot, used);
    if (rc == 0)
        rebuild_patterns(seg);
    seg->ctl->free_subscription = 0;
    for (uint32_t i = seg->max_subscriptions; rc == 0 && i-- > 0;)
        if ((used[i / 64] >> (i % 64) & 1) == 0) {
            seg->subscription[i].next = seg->ctl->free_subscription;
            seg->ctl->free_subscription = i + 1;
        }
    free(used);
    if (rc == 0)
        seg->ctl->index_dirty = 0;
    return rc;
}
