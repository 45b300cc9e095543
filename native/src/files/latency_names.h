/* latency_names.h - the channels that a latency log names, and their numbers in it. */
#ifndef PN_LOGNAMES_H
#define PN_LOGNAMES_H

#include <stddef.h>
#include <stdint.h>

struct pn_logname {
    char *name;
    uint64_t hash;
    uint32_t len, dboid;
    uint32_t crc;     /* CRC32C of the name, which those of the payloads continue */
    uint32_t defined; /* W: latency_log.c; files counter of the segment with its CHANDEF; 0: none */
};

/* All zero: empty. */
struct pn_lognames {
    struct pn_logname *at; /* [count]; number n, from 1, is at[n - 1] */
    uint32_t count, room;
    uint32_t *slots; /* open addressing: number, 0 = empty; a power of two, at most half full */
    uint32_t nslots;
};

/* The number of that channel, a new one when it has none; 0 without memory.  `hash` is
 * pn_channel_hash(dboid, name, len), which callers have at hand. */
uint32_t pn_lognames_number(struct pn_lognames *names, uint64_t hash, uint32_t dboid,
                            const char *name, size_t len);
void pn_lognames_free(struct pn_lognames *names);

#endif
