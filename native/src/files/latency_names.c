/*
 * latency_names.c - see latency_names.h.
 *
 * 1. Private to the process, and to one log, whose caller serialises.
 * 2. A number never changes and is never used again.
 */
#define _GNU_SOURCE
#include "files/latency_names.h"

#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"

/* The slot of that channel, or the empty one where it belongs. */
static uint32_t *find_slot(const struct pn_lognames *names, uint64_t hash, uint32_t dboid,
                           const char *name, size_t len)
{
    for (uint32_t i = (uint32_t) hash;; i++) {
        uint32_t *slot = &names->slots[i & (names->nslots - 1)];
        if (*slot == 0)
            return slot;
        const struct pn_logname *c = &names->at[*slot - 1];
        if (c->hash == hash && c->dboid == dboid && c->len == len &&
            memcmp(c->name, name, len) == 0)
            return slot;
    }
}

/* Makes room for one more in both arrays. */
static int grow_names(struct pn_lognames *names)
{
    uint32_t room = names->room == 0 ? 16 : names->room * 2;
    if (names->count < names->room)
        return 0;
    if (room > UINT32_MAX / 4)
        return -1;
    struct pn_logname *at = reallocarray(names->at, room, sizeof *at);
    if (at == NULL)
        return -1;
    names->at = at;
    uint32_t *slots = calloc((size_t) room * 2, sizeof *slots);
    if (slots == NULL)
        return -1;
    free(names->slots);
    names->slots = slots;
    names->nslots = room * 2;
    names->room = room;
    for (uint32_t i = 0; i < names->count; i++) {
        const struct pn_logname *c = &at[i];
        *find_slot(names, c->hash, c->dboid, c->name, c->len) = i + 1;
    }
    return 0;
}

uint32_t pn_lognames_number(struct pn_lognames *names, uint64_t hash, uint32_t dboid,
                            const char *name, size_t len)
{
    uint32_t *slot = names->nslots == 0 ? NULL : find_slot(names, hash, dboid, name, len);
    if (slot != NULL && *slot != 0)
        return *slot;
    char *copy = grow_names(names) < 0 ? NULL : malloc(len);
    if (copy == NULL)
        return 0;
    memcpy(copy, name, len);
    names->at[names->count++] = (struct pn_logname) {.name = copy,
                                                     .hash = hash,
                                                     .len = (uint32_t) len,
                                                     .dboid = dboid,
                                                     .crc = pn_crc32c(0, name, len)};
    *find_slot(names, hash, dboid, name, len) = names->count;
    return names->count;
}

void pn_lognames_free(struct pn_lognames *names)
{
    for (uint32_t i = 0; i < names->count; i++)
        free(names->at[i].name);
    free(names->at);
    free(names->slots);
    *names = (struct pn_lognames) {0};
}
