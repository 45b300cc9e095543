/*
 * pending.c - pending lists with savepoints and duplicate elimination.
 *
 * 1. One vector each of events, channels, actions, bumps and ops, and one arena of bytes; a
 *    savepoint is a mark in all six.  ROLLBACK TO cuts them at the mark; RELEASE forgets the mark.
 *    The vector of headers is cut where its events are.
 * 2. Duplicates (channel and payload bytes equal) collapse into the first, whose headers stay: what
 *    a program says about a notification does not change which there are.  PostgreSQL compares
 *    within a subtransaction and once more when it is released, because its lists are separate;
 *    here an event of a subtransaction is compared with its parents' at once.  The outcome is
 *    the same: the parent's event lives at least as long as the child's duplicate would have.
 * 3. Bumps of a counter are added up, as far as no savepoint or bump of another lies between them,
 *    and altogether when the transaction commits.
 * 4. As in PostgreSQL the list is scanned while it is short; the 17th event builds a hash table.
 *    So does an answer behind the 16th op, and puts in it what was added since the last answer.
 */
#define _GNU_SOURCE
#include "commit/pending.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "backend/channel.h"
#include "base/grow.h"
#include "base/hash.h"
#include "queue/queue.h"

#define MIN_HASHABLE_NOTIFIES 16

#define GROW(p, array, cap, need) PN_GROW((p)->array, (p)->cap, 8, need)

void pn_pending_free(struct pn_pending *p)
{
    free(p->arena);
    free(p->events);
    free(p->headers);
    free(p->channels);
    free(p->actions);
    free(p->bumps);
    free(p->folded);
    for (size_t i = 0; i < p->nops; i++)
        free(p->ops[i].note);
    free(p->ops);
    free(p->marks);
    free(p->event_index.slots);
    free(p->channel_index.slots);
    free(p->answer_index.slots);
    memset(p, 0, sizeof *p);
}

static int keep_bytes(struct pn_pending *p, const void *bytes, size_t len, size_t *off)
{
    int rc = GROW(p, arena, arena_cap, p->arena_used + len);
    if (rc != 0)
        return rc;
    if (len > 0)
        memcpy(p->arena + p->arena_used, bytes, len);
    *off = p->arena_used;
    p->arena_used += len;
    return 0;
}

/* ---- the two indices ---------------------------------------------------------------------- */

static void index_put(struct pn_index *index, uint64_t hash, uint32_t value)
{
    uint32_t at = (uint32_t) hash & (index->size - 1);
    while (index->slots[at] != 0)
        at = (at + 1) & (index->size - 1);
    index->slots[at] = value + 1;
}

/* Build the index again for n members, with room to double. */
static int index_reset(struct pn_index *index, size_t n)
{
    uint32_t size = 64;
    while (size < 4 * n)
        size *= 2;
    uint32_t *slots = calloc(size, sizeof *slots);
    if (slots == NULL)
        return pn_fail(ENOMEM, "out of memory");
    free(index->slots);
    index->slots = slots;
    index->size = size;
    return 0;
}

static int index_channels(struct pn_pending *p)
{
    int rc = index_reset(&p->channel_index, p->nchannels);
    for (uint32_t i = 0; rc == 0 && i < p->nchannels; i++)
        index_put(&p->channel_index, p->channels[i].hash, i);
    return rc;
}

static bool same_channel(const struct pn_pending *p, uint32_t i, uint64_t hash, const char *name,
                         size_t len)
{
    const struct pn_pending_channel *c = &p->channels[i];
    return c->hash == hash && c->name_len == len && memcmp(p->arena + c->name_off, name, len) == 0;
}

static int64_t find_channel(const struct pn_pending *p, uint64_t hash, const char *name, size_t len)
{
    if (p->channel_index.slots == NULL) {
        for (uint32_t i = 0; i < p->nchannels; i++)
            if (same_channel(p, i, hash, name, len))
                return i;
        return -1;
    }
    uint32_t mask = p->channel_index.size - 1, at = (uint32_t) hash & mask;
    for (; p->channel_index.slots[at] != 0; at = (at + 1) & mask)
        if (same_channel(p, p->channel_index.slots[at] - 1, hash, name, len))
            return p->channel_index.slots[at] - 1;
    return -1;
}

static bool same_event(const struct pn_pending *p, uint32_t i, uint64_t hash, uint32_t channel,
                       const void *payload, size_t len)
{
    const struct pn_pending_event *e = &p->events[i];
    return e->hash == hash && e->channel == channel && e->payload_len == len &&
           (len == 0 || memcmp(pn_pending_payloads(p) + e->payload_off, payload, len) == 0);
}

/* Where the index has an equal event; or, if that is 0, where it would have it. */
static uint32_t *slot_of(const struct pn_pending *p, uint64_t hash, uint32_t channel,
                         const void *payload, size_t len)
{
    uint32_t *slots = p->event_index.slots, mask = p->event_index.size - 1;
    uint32_t at = (uint32_t) hash & mask;
    while (slots[at] != 0 && !same_event(p, slots[at] - 1, hash, channel, payload, len))
        at = (at + 1) & mask;
    return &slots[at];
}

/* Of equal ones, which are there where none was to collapse, the first: a chain of all of them
 * would be walked for each. */
static void index_event(struct pn_pending *p, uint32_t i)
{
    const struct pn_pending_event *e = &p->events[i];
    const unsigned char *payload =
        e->payload_len == 0 ? NULL : pn_pending_payloads(p) + e->payload_off;
    uint32_t *slot = slot_of(p, e->hash, e->channel, payload, e->payload_len);
    if (*slot == 0)
        *slot = i + 1;
}

static int index_events(struct pn_pending *p, size_t n)
{
    int rc = index_reset(&p->event_index, n);
    for (uint32_t i = 0; rc == 0 && i < p->nevents; i++)
        index_event(p, i);
    return rc;
}

/* While there is no index. */
static bool have_event(const struct pn_pending *p, uint64_t hash, uint32_t channel,
                       const void *payload, size_t len)
{
    for (uint32_t i = 0; i < p->nevents; i++)
        if (same_event(p, i, hash, channel, payload, len))
            return true;
    return false;
}

/* ---- adding ------------------------------------------------------------------------------- */

static int intern_channel(struct pn_pending *p, const char *name, size_t len, uint32_t *out)
{
    uint64_t hash = pn_channel_hash(p->dboid, name, len);
    int64_t known = find_channel(p, hash, name, len);
    if (known >= 0) {
        *out = (uint32_t) known;
        return 0;
    }
    struct pn_pending_channel c = {.hash = hash, .name_len = (uint32_t) len};
    int rc = GROW(p, channels, channels_cap, p->nchannels + 1);
    if (rc == 0)
        rc = keep_bytes(p, name, len, &c.name_off);
    if (rc != 0)
        return rc;
    *out = (uint32_t) p->nchannels;
    p->channels[p->nchannels++] = c;
    if (p->channel_index.slots == NULL ? p->nchannels > MIN_HASHABLE_NOTIFIES
                                       : 2 * p->nchannels > p->channel_index.size)
        return index_channels(p);
    if (p->channel_index.slots != NULL)
        index_put(&p->channel_index, hash, *out);
    return 0;
}

/* Room for n more events with so many bytes of payload, at once. */
static int expect(struct pn_pending *p, size_t n, size_t size)
{
    int rc = GROW(p, events, events_cap, p->nevents + n);
    if (rc == 0)
        rc = GROW(p, arena, arena_cap, p->arena_used + size);
    if (rc == 0 && p->nevents + n > MIN_HASHABLE_NOTIFIES &&
        2 * (p->nevents + n) > p->event_index.size)
        rc = index_events(p, p->nevents + n);
    return rc;
}

static uint64_t word_at(const unsigned char *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

/*
 * Of channel and payload; private to the process.  In two lanes, since a multiplication has to wait
 * for the one before it in its lane; the last words may overlap those before them.
 */
static uint64_t hash_event(uint32_t channel, const unsigned char *payload, size_t len)
{
    const uint64_t k0 = 0x8bb84b93962eacc9ULL, k1 = 0x4b33a62ed433d4a3ULL;
    if (len < 16)
        return pn_channel_hash(channel, (const char *) payload, len);
    uint64_t a = channel, b = len;
    const unsigned char *at = payload, *end = payload + len;
    for (; end - at > 32; at += 32) {
        a = pn_mix(a ^ word_at(at) ^ k0, word_at(at + 8) ^ k1);
        b = pn_mix(b ^ word_at(at + 16) ^ k1, word_at(at + 24) ^ k0);
    }
    if (end - at > 16)
        a = pn_mix(a ^ word_at(at) ^ k0, word_at(at + 8) ^ k1);
    b = pn_mix(b ^ word_at(end - 16) ^ k1, word_at(end - 8) ^ k0);
    return pn_mix(a ^ k1, b ^ k0);
}

/* The same as pn_pending_notify(), on channel c of the transaction; `off` is where the payload
 * stands among those that are borrowed. */
static int add_event(struct pn_pending *p, uint32_t c, const void *payload, size_t payload_len,
                     bool dedup, size_t off)
{
    uint64_t hash = hash_event(c, payload, payload_len);
    uint32_t *slot =
        p->event_index.slots == NULL ? NULL : slot_of(p, hash, c, payload, payload_len);
    if (dedup && (slot != NULL ? *slot != 0 : have_event(p, hash, c, payload, payload_len))) {
        p->collapsed++;
        return 0;
    }
    int rc = GROW(p, events, events_cap, p->nevents + 1);
    if (rc == 0 && p->borrowed == NULL)
        rc = keep_bytes(p, payload, payload_len, &off);
    if (rc != 0)
        return rc;
    struct pn_pending_event *e = &p->events[p->nevents++];
    e->hash = hash;
    e->chan_seq = 0;
    e->payload_off = off;
    e->payload_len = (uint32_t) payload_len;
    e->channel = c;
    if (slot == NULL ? p->nevents > MIN_HASHABLE_NOTIFIES : 2 * p->nevents > p->event_index.size)
        rc = index_events(p, p->nevents);
    else if (slot != NULL && *slot == 0)
        *slot = (uint32_t) p->nevents;
    if (rc < 0)
        p->nevents--; /* not queued, so not to be committed either */
    return rc < 0 ? rc : 1;
}

int pn_pending_notify(struct pn_pending *p, const char *channel, size_t channel_len,
                      const void *payload, size_t payload_len, bool dedup)
{
    uint32_t c;
    int rc = intern_channel(p, channel, channel_len, &c);
    return rc != 0 ? rc : add_event(p, c, payload, payload_len, dedup, 0);
}

/* Room for one more, whose bytes are in the arena; it counts when nheaders is raised. */
static int keep_headers(struct pn_pending *p, const struct pn_payloads *payloads)
{
    int rc = GROW(p, headers, headers_cap, p->nheaders + 1);
    if (rc != 0)
        return rc;
    struct pn_pending_headers *h = &p->headers[p->nheaders];
    *h = (struct pn_pending_headers) {.first = p->nevents, .len = payloads->headers_len};
    return keep_bytes(p, payloads->headers, payloads->headers_len, &h->off);
}

int pn_pending_notify_many(struct pn_pending *p, const char *channel, size_t channel_len,
                           const struct pn_payloads *payloads, bool dedup, uint64_t *queued)
{
    uint32_t c;
    size_t size = 0, off = 0, before = p->nevents;
    if (payloads->n == 0)
        return 0;
    for (size_t i = 0; p->borrowed == NULL && i < payloads->n; i++)
        size += payloads->lens[i];
    int rc = intern_channel(p, channel, channel_len, &c);
    if (rc == 0 && payloads->headers_len != 0)
        rc = keep_headers(p, payloads);
    if (rc == 0)
        rc = expect(p, payloads->n, size);
    for (size_t i = 0; rc >= 0 && i < payloads->n; i++) {
        rc = add_event(p, c, payloads->bytes + off, payloads->lens[i], dedup, off);
        off += payloads->lens[i];
        *queued += rc > 0;
    }
    if (payloads->headers_len != 0 && p->nevents > before)
        p->headers[p->nheaders++].end = p->nevents;
    return rc < 0 ? rc : 0;
}

int pn_pending_borrow_many(struct pn_pending *p, const char *channel, size_t channel_len,
                           const struct pn_payloads *payloads, bool dedup, uint64_t *queued)
{
    p->borrowed = (const unsigned char *) payloads->bytes;
    return pn_pending_notify_many(p, channel, channel_len, payloads, dedup, queued);
}

int pn_pending_action(struct pn_pending *p, enum pn_action_kind kind, bool pattern,
                      const char *channel, size_t channel_len)
{
    struct pn_pending_action a = {
        .kind = kind, .pattern = pattern, .name_len = (uint32_t) channel_len};
    int rc = GROW(p, actions, actions_cap, p->nactions + 1);
    if (rc == 0 && channel_len > 0) {
        a.hash = pn_channel_hash(p->dboid | (pattern ? PN_PATTERN : 0), channel, channel_len);
        rc = keep_bytes(p, channel, channel_len, &a.name_off);
    }
    if (rc == 0)
        p->actions[p->nactions++] = a;
    return rc;
}

/* ---- bumps -------------------------------------------------------------------------------- */

int pn_pending_bump(struct pn_pending *p, uint32_t index)
{
    size_t floor = p->nmarks > 0 ? p->marks[p->nmarks - 1].bumps : 0;
    if (p->nbumps > floor && p->bumps[p->nbumps - 1].index == index) {
        p->bumps[p->nbumps - 1].count++;
        return 0;
    }
    int rc = GROW(p, bumps, bumps_cap, p->nbumps + 1);
    if (rc == 0)
        p->bumps[p->nbumps++] = (struct pn_pending_bump) {.index = index, .count = 1};
    return rc;
}

static int by_index(const void *a, const void *b)
{
    uint32_t i = ((const struct pn_pending_bump *) a)->index;
    uint32_t j = ((const struct pn_pending_bump *) b)->index;
    return (i > j) - (i < j);
}

int pn_pending_fold_bumps(struct pn_pending *p)
{
    p->nfolded = 0;
    if (p->nbumps == 0)
        return 0;
    int rc = GROW(p, folded, folded_cap, p->nbumps);
    if (rc != 0)
        return rc;
    memcpy(p->folded, p->bumps, p->nbumps * sizeof *p->folded);
    qsort(p->folded, p->nbumps, sizeof *p->folded, by_index);
    for (size_t i = 0; i < p->nbumps; i++) {
        if (p->nfolded > 0 && p->folded[p->nfolded - 1].index == p->folded[i].index)
            p->folded[p->nfolded - 1].count += p->folded[i].count;
        else
            p->folded[p->nfolded++] = p->folded[i];
    }
    return 0;
}

/* ---- topics ------------------------------------------------------------------------------- */

struct pn_pending_op *pn_pending_op(struct pn_pending *p)
{
    if (GROW(p, ops, ops_cap, p->nops + 1) != 0)
        return NULL;
    memset(&p->ops[p->nops], 0, sizeof p->ops[0]);
    return &p->ops[p->nops];
}

static uint64_t hash_answer(uint32_t delivery, uint64_t id)
{
    return pn_mix(delivery ^ 0x8bb84b93962eacc9ULL, id ^ 0x4b33a62ed433d4a3ULL);
}

static bool is_answer(const struct pn_pending_op *op, uint32_t delivery, uint32_t tag, uint64_t id)
{
    return op->kind == PN_OP_ANSWER && op->delivery == delivery && op->tag == tag && op->id == id;
}

static int index_answers(struct pn_pending *p)
{
    int rc = 0;
    if (p->indexed == 0 || 2 * p->nops > p->answer_index.size) {
        p->indexed = 0;
        rc = index_reset(&p->answer_index, p->nops);
    }
    for (; rc == 0 && p->indexed < p->nops; p->indexed++) {
        const struct pn_pending_op *op = &p->ops[p->indexed];
        if (op->kind == PN_OP_ANSWER)
            index_put(&p->answer_index, hash_answer(op->delivery, op->id), (uint32_t) p->indexed);
    }
    return rc;
}

bool pn_pending_is_answered(struct pn_pending *p, uint32_t delivery, uint32_t tag, uint64_t id)
{
    if (p->nops <= MIN_HASHABLE_NOTIFIES || index_answers(p) != 0) {
        for (size_t i = p->nops; i-- > 0;)
            if (is_answer(&p->ops[i], delivery, tag, id))
                return true;
        return false;
    }
    const uint32_t *slots = p->answer_index.slots, mask = p->answer_index.size - 1;
    uint32_t at = (uint32_t) hash_answer(delivery, id) & mask;
    while (slots[at] != 0 && !is_answer(&p->ops[slots[at] - 1], delivery, tag, id))
        at = (at + 1) & mask;
    return slots[at] != 0;
}

int pn_pending_keep(struct pn_pending *p, const void *bytes, size_t len, size_t *off)
{
    return keep_bytes(p, bytes, len, off);
}

/* ---- room --------------------------------------------------------------------------------- */

/*
 * Bytes that the transaction takes wherever it is put.  Next-fit placement is monotone in the
 * position where it starts, so a start on a fresh page plus one page bounds every other start;
 * a large entry may have to skip to the start of the ring, once.
 */
uint64_t pn_pending_worst_case(const struct pn_pending *p)
{
    uint64_t pos = 0, largest = 0;
    for (size_t i = 0; i < p->nfolded + p->nops; i++) {
        uint64_t length = i < p->nfolded ? PN_ENTRY_HEADER : PN_ENTRY_OF_TOPICS;
        if (QUEUE_POS_OFFSET(pos) + length > PN_QUEUE_PAGE)
            pos = pn_page_up(pos);
        pos += length;
    }
    for (size_t i = 0, at = 0; i < p->nevents; i++) {
        uint64_t length = pn_entry_length(p->channels[p->events[i].channel].name_len,
                                          p->events[i].payload_len +
                                              pn_headers_len(p->headers, p->nheaders, &at, i));
        if (length > PN_QUEUE_PAGE) {
            length = pn_page_up(length);
            pos = pn_page_up(pos);
            largest = length > largest ? length : largest;
        } else if (QUEUE_POS_OFFSET(pos) + length > PN_QUEUE_PAGE) {
            pos = pn_page_up(pos);
        }
        pos += length;
    }
    return pos == 0 ? 0 : QUEUEALIGN(pos + PN_QUEUE_PAGE - 1 + largest);
}

/* ---- levels ------------------------------------------------------------------------------- */

int pn_pending_push(struct pn_pending *p)
{
    int rc = GROW(p, marks, marks_cap, p->nmarks + 1);
    if (rc != 0)
        return rc;
    p->marks[p->nmarks++] = (struct pn_pending_mark) {.arena = p->arena_used,
                                                      .events = p->nevents,
                                                      .channels = p->nchannels,
                                                      .actions = p->nactions,
                                                      .bumps = p->nbumps,
                                                      .ops = p->nops,
                                                      .collapsed = p->collapsed};
    return (int) p->nmarks;
}

void pn_pending_release(struct pn_pending *p, size_t level)
{
    if (level >= 1 && level <= p->nmarks)
        p->nmarks = level - 1;
}

void pn_pending_rollback(struct pn_pending *p, size_t level)
{
    if (level < 1 || level > p->nmarks)
        return;
    const struct pn_pending_mark *mark = &p->marks[level - 1];
    p->arena_used = mark->arena;
    p->nevents = mark->events;
    while (p->nheaders > 0 && p->headers[p->nheaders - 1].end > p->nevents)
        p->nheaders--;
    p->nchannels = mark->channels;
    p->nactions = mark->actions;
    p->nbumps = mark->bumps;
    while (p->nops > mark->ops)
        free(p->ops[--p->nops].note);
    if (p->indexed > p->nops)
        p->indexed = 0;
    p->collapsed = mark->collapsed;
    p->nmarks = level - 1;
    /* the indices name what is gone; without memory for new ones the lists are scanned */
    if (p->event_index.slots != NULL && index_events(p, p->nevents) != 0) {
        free(p->event_index.slots);
        p->event_index = (struct pn_index) {0};
    }
    if (p->channel_index.slots != NULL && index_channels(p) != 0) {
        free(p->channel_index.slots);
        p->channel_index = (struct pn_index) {0};
    }
}
