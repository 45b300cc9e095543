/*
 * crc32c.c - the CRC of iSCSI, by the processor's instruction or eight tables.
 */
#include "base/crc32c.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

static uint32_t crc_table[8][256];

uint32_t pn_crc32c_portable(uint32_t crc, const void *p, size_t n)
{
    const unsigned char *s = p;

    crc = ~crc;
    for (; n >= 8; n -= 8, s += 8) {
        uint64_t w;

        memcpy(&w, s, 8);
        w ^= crc;
        crc = 0;
        for (int i = 0; i < 8; i++)
            crc ^= crc_table[7 - i][(w >> (8 * i)) & 0xff];
    }
    for (; n > 0; n--)
        crc = (crc >> 8) ^ crc_table[0][(crc ^ *s++) & 0xff];
    return ~crc;
}

#if defined(__x86_64__)
/* The instruction takes three cycles, and a new one can begin in each: so three lanes at once.
 * A lane is moved on over the n bytes behind it by a product with x**(8n - 33) modulo the
 * polynomial, reflected, which the instruction reduces. */
#define LANE              32u
#define LONG_LANE         256u
#define OVER_LANE         0xba4fc28e /* n = LANE */
#define OVER_2_LANES      0x9e4addf8 /* n = 2 * LANE */
#define OVER_LONG_LANE    0xb9e02b86 /* n = LONG_LANE */
#define OVER_2_LONG_LANES 0xdd7e3b0c

#define WITH_CRC __attribute__((target("sse4.2,pclmul,crc32")))

WITH_CRC static inline uint64_t load64(const unsigned char *s)
{
    uint64_t w;

    memcpy(&w, s, 8);
    return w;
}

/* Three lanes of n bytes, a multiple of 8; `over` and `over2`: see above. */
WITH_CRC static inline __attribute__((always_inline)) uint64_t three_lanes(uint64_t crc,
                                                                           const unsigned char *s,
                                                                           size_t n, uint32_t over,
                                                                           uint32_t over2)
{
    uint64_t b = 0, c = 0;

    for (size_t i = 0; i < n; i += 8) {
        crc = _mm_crc32_u64(crc, load64(s + i));
        b = _mm_crc32_u64(b, load64(s + n + i));
        c = _mm_crc32_u64(c, load64(s + 2 * n + i));
    }
    __m128i first = _mm_clmulepi64_si128(_mm_cvtsi64_si128((int64_t) crc),
                                         _mm_cvtsi64_si128((int64_t) over2), 0);
    __m128i second =
        _mm_clmulepi64_si128(_mm_cvtsi64_si128((int64_t) b), _mm_cvtsi64_si128((int64_t) over), 0);
    uint64_t moved = (uint64_t) _mm_cvtsi128_si64(_mm_xor_si128(first, second));
    return c ^ _mm_crc32_u64(0, moved);
}

WITH_CRC static uint32_t crc32c_sse42(uint32_t crc, const void *p, size_t n)
{
    const unsigned char *s = p;
    uint64_t c = (uint32_t) ~crc;

    for (; n >= 3 * LONG_LANE; n -= 3 * LONG_LANE, s += 3 * LONG_LANE)
        c = three_lanes(c, s, LONG_LANE, OVER_LONG_LANE, OVER_2_LONG_LANES);
    for (; n >= 3 * LANE; n -= 3 * LANE, s += 3 * LANE)
        c = three_lanes(c, s, LANE, OVER_LANE, OVER_2_LANES);
    for (; n >= 8; n -= 8, s += 8)
        c = _mm_crc32_u64(c, load64(s));
    if (n & 4) {
        uint32_t w;

        memcpy(&w, s, 4);
        c = _mm_crc32_u32((uint32_t) c, w);
        s += 4;
    }
    for (n &= 3; n > 0; n--)
        c = _mm_crc32_u8((uint32_t) c, *s++);
    return ~(uint32_t) c;
}

WITH_CRC static uint32_t word_sse42(uint32_t crc, uint32_t word)
{
    return ~_mm_crc32_u32(~crc, word);
}
#endif

static uint32_t word_portable(uint32_t crc, uint32_t word)
{
    return pn_crc32c_portable(crc, &word, sizeof(word));
}

static uint32_t (*crc32c)(uint32_t, const void *, size_t) = pn_crc32c_portable;
static uint32_t (*crc32c_word)(uint32_t, uint32_t) = word_portable;

__attribute__((constructor)) static void crc32c_prepare(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;

        for (int bit = 0; bit < 8; bit++)
            c = (c >> 1) ^ (c & 1 ? 0x82f63b78u : 0);
        crc_table[0][i] = c;
    }
    for (int t = 1; t < 8; t++)
        for (int i = 0; i < 256; i++) {
            uint32_t c = crc_table[t - 1][i];

            crc_table[t][i] = (c >> 8) ^ crc_table[0][c & 0xff];
        }
#if defined(__x86_64__)
    unsigned a, b, c, d;

    /* not __builtin_cpu_supports(), for which a compiler may link its own run-time library */
    if (__get_cpuid(1, &a, &b, &c, &d) && (c & bit_SSE4_2) && (c & bit_PCLMUL)) {
        crc32c = crc32c_sse42;
        crc32c_word = word_sse42;
    }
#endif
}

uint32_t pn_crc32c(uint32_t crc, const void *p, size_t n)
{
    return crc32c(crc, p, n);
}

uint32_t pn_crc32c_word(uint32_t crc, uint32_t word)
{
    return crc32c_word(crc, word);
}
