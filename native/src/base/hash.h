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

/*
 * Fewer than eight bytes as a word, the first one lowest.  Read as two that overlap: what is copied
 * byte by byte into a word has to be stored before it can be loaded.
 */
static inline uint64_t pn_short_word(const char *bytes, size_t len)
{
    uint32_t low, high;
    if (len >= 4) {
        memcpy(&low, bytes, 4);
        memcpy(&high, bytes + len - 4, 4);
        return low | (uint64_t) high << 8 * (len - 4);
    }
    uint64_t word = 0;
    for (size_t i = 0; i < len; i++)
        word |= (uint64_t) (unsigned char) bytes[i] << 8 * i;
    return word;
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
    return pn_mix(hash ^ pn_short_word(name, len) ^ k0, k1);
}

#endif
