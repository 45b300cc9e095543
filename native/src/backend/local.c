/*
 * local.c - the channels that a connection listens to, and their numbers.
 *
 * 1. Messages carry numbers, so that a reader turns a name into an object once and not with each
 *    message.  A server that listens to a new channel for each request must not pay for all those
 *    that it had: a number is free again when its channel is not listened to any more, no prepared
 *    transaction has an intent about it, and no batch has the number.  The lowest free one is given
 *    out first, so that tables by number stay as small as what was ever listened to at once.
 * 2. What a batch has is what its last poll put there.  The connection counts polls, and keeps of
 *    each channel which one was the last to hand it out, and of each batch which one filled it.  A
 *    channel that was handed out before the earliest of these is in no batch.  One that was handed
 *    out later may be, and waits; each poll looks at those that wait.
 * 3. What was read by a pattern is of a channel that is not listened to: that gets a number while
 *    it is handed out, and waits at once.
 * 4. A reader that keeps names by number is told which it has to look up: those of the batch whose
 *    naming is not the one that the batch knows.  Namings are counted for the whole process, since
 *    one batch may serve several connections.
 */
#define _GNU_SOURCE
#include "backend/local.h"

#include <errno.h>
#include <string.h>

#include "base/err.h"
#include "base/grow.h"

enum { KEEP_CHANNELS = 64 }; /* so many need not be given back when none is left */

static pn_atomic_u64 namings;

/* ---- names ----------------------------------------------------------------------------------- */

struct pn_local_channel *pn_local_find(const struct pn_local_channels *l, uint64_t hash,
                                       const char *name, size_t len, bool pattern)
{
    if (l->table_size == 0)
        return NULL;
    uint32_t mask = l->table_size - 1;
    for (uint32_t i = (uint32_t) hash & mask; l->table[i] != 0; i = (i + 1) & mask) {
        struct pn_local_channel *c = &l->at[l->table[i] - 1];
        if (c->hash == hash && c->len == len && c->pattern == pattern &&
            memcmp(c->name, name, len) == 0)
            return c;
    }
    return NULL;
}

static void insert(struct pn_local_channels *l, uint32_t number)
{
    uint32_t mask = l->table_size - 1, i = (uint32_t) l->at[number].hash & mask;
    while (l->table[i] != 0)
        i = (i + 1) & mask;
    l->table[i] = number + 1;
}

/* What stands behind it moves up, unless it would come before where its search begins. */
static void remove_from_table(struct pn_local_channels *l, uint32_t number)
{
    uint32_t mask = l->table_size - 1, hole = (uint32_t) l->at[number].hash & mask;
    while (l->table[hole] != number + 1)
        hole = (hole + 1) & mask;
    for (uint32_t i = (hole + 1) & mask; l->table[i] != 0; i = (i + 1) & mask) {
        uint32_t home = (uint32_t) l->at[l->table[i] - 1].hash & mask;
        if (((i - home) & mask) >= ((i - hole) & mask)) {
            l->table[hole] = l->table[i];
            hole = i;
        }
    }
    l->table[hole] = 0;
}

static int grow_table(struct pn_local_channels *l)
{
    uint32_t size = l->table_size == 0 ? 16 : 2 * l->table_size;
    uint32_t *table = calloc(size, sizeof *table);
    if (table == NULL)
        return -ENOMEM;
    free(l->table);
    l->table = table;
    l->table_size = size;
    for (uint32_t i = 0; i < l->n; i++)
        if (l->at[i].name != NULL)
            insert(l, i);
    return 0;
}

/* Room for one more channel, and for its number among those that are free or wait. */
static int grow_channels(struct pn_local_channels *l)
{
    uint32_t cap = l->cap == 0 ? 8 : 2 * l->cap;
    struct pn_local_channel *at = realloc(l->at, cap * sizeof *at);
    if (at == NULL)
        return -ENOMEM;
    l->at = at;
    uint32_t *numbers = realloc(l->free, cap * sizeof *numbers);
    if (numbers == NULL)
        return -ENOMEM;
    l->free = numbers;
    numbers = realloc(l->waiting, cap * sizeof *numbers);
    if (numbers == NULL)
        return -ENOMEM;
    l->waiting = numbers;
    l->cap = cap;
    return 0;
}

/* Room in the list for one more pattern with a number. */
static int grow_patterns(struct pn_local_channels *l)
{
    return PN_GROW(l->pattern, l->patterns_cap, 8, l->pattern_names + 1);
}

/* ---- the free numbers: a heap ---------------------------------------------------------------- */

static void push_free(struct pn_local_channels *l, uint32_t number)
{
    uint32_t i = l->nfree++;
    for (; i != 0 && l->free[(i - 1) / 2] > number; i = (i - 1) / 2)
        l->free[i] = l->free[(i - 1) / 2];
    l->free[i] = number;
}

static uint32_t pop_free(struct pn_local_channels *l)
{
    uint32_t lowest = l->free[0], last = l->free[--l->nfree], i = 0;
    for (uint32_t child = 1; child < l->nfree; child = 2 * i + 1) {
        if (child + 1 < l->nfree && l->free[child + 1] < l->free[child])
            child++;
        if (l->free[child] >= last)
            break;
        l->free[i] = l->free[child];
        i = child;
    }
    l->free[i] = last;
    return lowest;
}

/* ---- channels come and go -------------------------------------------------------------------- */

struct pn_local_channel *pn_local_add(struct pn_local_channels *l, uint64_t hash, const char *name,
                                      size_t len, bool pattern)
{
    struct pn_local_channel *c = pn_local_find(l, hash, name, len, pattern);
    if (c != NULL)
        return c;
    if (pattern && grow_patterns(l) != 0)
        return NULL;
    if (l->nfree == 0 && l->n == l->cap && grow_channels(l) != 0)
        return NULL;
    if (2 * (l->n + 1) > l->table_size && grow_table(l) != 0)
        return NULL;
    char *copy = malloc(len + 1);
    if (copy == NULL)
        return NULL;
    memcpy(copy, name, len);
    copy[len] = '\0';
    uint32_t number = l->nfree != 0 ? pop_free(l) : l->n++;
    c = &l->at[number];
    *c = (struct pn_local_channel) {
        .name = copy, .len = (uint32_t) len, .hash = hash, .pattern = pattern};
    l->pattern_names += pattern;
    c->named = pn_fetch_add_relaxed(&namings, 1) + 1;
    insert(l, number);
    return c;
}

static void forget(struct pn_local_channels *l, uint32_t number)
{
    remove_from_table(l, number);
    l->pattern_names -= l->at[number].pattern;
    free(l->at[number].name);
    l->at[number].name = NULL;
    push_free(l, number);
    if (l->nfree != l->n)
        return;
    l->n = l->nfree = 0;
    if (l->cap <= KEEP_CHANNELS)
        return;
    free(l->at);
    free(l->free);
    free(l->waiting);
    free(l->table);
    l->at = NULL;
    l->free = l->waiting = l->table = NULL;
    l->cap = l->table_size = 0;
}

void pn_local_begin_pattern(struct pn_local_channels *l, uint32_t number)
{
    uint32_t i = l->npatterns++;
    for (; i != 0 && l->at[l->pattern[i - 1]].order > l->at[number].order; i--)
        l->pattern[i] = l->pattern[i - 1];
    l->pattern[i] = number;
}

void pn_local_end_pattern(struct pn_local_channels *l, uint32_t number)
{
    uint32_t i = 0;
    while (l->pattern[i] != number)
        i++;
    l->npatterns--;
    memmove(&l->pattern[i], &l->pattern[i + 1], (l->npatterns - i) * sizeof *l->pattern);
}

static void let_go_of_life(struct pn_batch_life *life)
{
    if (pn_fetch_sub(&life->holders, 1) == 1)
        free(life);
}

/* The batches that were freed have nothing any more. */
static void find_oldest(struct pn_local_channels *l)
{
    l->oldest = UINT64_MAX;
    for (uint32_t i = 0; i < l->nreaders;) {
        struct pn_local_reader *reader = &l->reader[i];
        if (pn_load_acquire(&reader->life->freed) != 0) {
            let_go_of_life(reader->life);
            *reader = l->reader[--l->nreaders];
            continue;
        }
        if (reader->poll < l->oldest)
            l->oldest = reader->poll;
        i++;
    }
}

void pn_local_let_go(struct pn_local_channels *l, uint32_t number)
{
    if (number >= l->n || l->at[number].name == NULL)
        return; /* another intent about the same channel came first */
    struct pn_local_channel *c = &l->at[number];
    if (c->routes != 0 || c->uses != 0 || c->waits)
        return;
    if (c->handed != 0 && c->handed >= l->oldest)
        find_oldest(l);
    if (c->handed != 0 && c->handed >= l->oldest) {
        c->waits = true;
        l->waiting[l->nwaiting++] = number;
        return;
    }
    forget(l, number);
}

/* ---- batches --------------------------------------------------------------------------------- */

static void look_at_waiting(struct pn_local_channels *l)
{
    uint32_t n = l->nwaiting;
    l->nwaiting = 0; /* each one that is put back stands no further back than it did */
    for (uint32_t i = 0; i < n; i++) {
        uint32_t number = l->waiting[i];
        l->at[number].waits = false;
        pn_local_let_go(l, number);
    }
}

static struct pn_local_reader *add_reader(struct pn_local_channels *l, pn_batch *b)
{
    struct pn_batch_life *life = b->life;
    if (PN_GROW(l->reader, l->readers_cap, 1, l->nreaders + 1) != 0)
        return NULL;
    if (life == NULL) {
        life = calloc(1, sizeof *life);
        if (life == NULL)
            return NULL;
        pn_store_relaxed(&life->holders, 1);
        b->life = life;
    }
    pn_fetch_add_relaxed(&life->holders, 1);
    l->reader[l->nreaders] = (struct pn_local_reader) {.life = life};
    return &l->reader[l->nreaders++];
}

int pn_local_begin_poll(struct pn_local_channels *l, pn_batch *b)
{
    struct pn_local_reader *reader = NULL;
    b->nrenamed = 0;
    for (uint32_t i = 0; reader == NULL && i < l->nreaders; i++)
        if (l->reader[i].life == b->life)
            reader = &l->reader[i];
    if (reader == NULL)
        reader = add_reader(l, b);
    if (reader == NULL)
        return pn_fail(ENOMEM, "out of memory while reading the queue");
    reader->poll = ++l->polls;
    uint64_t oldest = l->oldest;
    if (l->nreaders == 1)
        l->oldest = l->polls;
    else
        find_oldest(l);
    if (__builtin_expect(l->nwaiting != 0, 0) && l->oldest != oldest)
        look_at_waiting(l);
    return 0;
}

int pn_local_tell(pn_batch *b, uint32_t number, uint64_t named)
{
    size_t before = b->known_cap;
    if (PN_GROW(b->known, b->known_cap, 8, (size_t) number + 1) != 0)
        return -ENOMEM;
    if (before < b->known_cap)
        memset(b->known + before, 0, (b->known_cap - before) * sizeof *b->known);
    if (PN_GROW(b->renamed, b->renamed_cap, 8, b->nrenamed + 1) != 0)
        return -ENOMEM;
    b->known[number] = named;
    b->renamed[b->nrenamed++] = number;
    return 0;
}

void pn_local_tell_again(pn_batch *b)
{
    for (size_t i = 0; i < b->nrenamed; i++)
        b->known[b->renamed[i]] = 0;
    b->nrenamed = 0;
}

void pn_local_free_batch(pn_batch *b)
{
    struct pn_batch_life *life = b->life;
    free(b->known);
    free(b->renamed);
    if (life == NULL)
        return;
    pn_store_release(&life->freed, 1);
    let_go_of_life(life);
}

void pn_local_free(struct pn_local_channels *l)
{
    for (uint32_t i = 0; i < l->n; i++)
        free(l->at[i].name);
    for (uint32_t i = 0; i < l->nreaders; i++)
        let_go_of_life(l->reader[i].life);
    free(l->at);
    free(l->table);
    free(l->free);
    free(l->waiting);
    free(l->pattern);
    free(l->reader);
}
