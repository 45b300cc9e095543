/* hash.h - the hash of names and payloads; in the segment, so a change of it is a new layout. */
#ifndef PN_HASH_H
#define PN_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t pn_mix(uint64_t a, uint64_t b)
{
    __extension__ typedef unsigned __int128 uint128;
    uint128 product = (uint128) a * b;
    return (uint64_t) product ^ (uint64_t) (product >> 64);
}

/* Multiply-fold over 8-byte words, as wyhash and rapidhash do it. */
static inline uint64_t pn_channel_hash(uint32_t dboid, const char *name, size_t len)
{
    const uint64_t k0 = 0xa0761d6478bd642fULL, k1 = 0xe7037ed1a0b428dbULL;
    uint64_t hash = (dboid + 1ULL) * k0 ^ len;
    uint64_t word;

    for (; len >= 8; name += 8, len -= 8) {
        memcpy(&word, name, 8);
        hash = pn_mix(hash ^ word, k1);
    }
    word = 0;
    if (len > 0)
        memcpy(&word, name, len);
    return pn_mix(hash ^ word ^ k0, k1);
}

#endif
