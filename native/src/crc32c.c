/*
 * crc32c.c - the CRC of iSCSI, by the processor's instruction or eight tables.
 */
#include "crc32c.h"

#include <string.h>

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
__attribute__((target("sse4.2"))) static uint32_t crc32c_sse42(uint32_t crc, const void *p,
                                                               size_t n)
{
    const unsigned char *s = p;
    uint64_t c = (uint32_t)~crc;

    for (; n >= 8; n -= 8, s += 8) {
        uint64_t w;

        memcpy(&w, s, 8);
        c = __builtin_ia32_crc32di(c, w);
    }
    for (; n > 0; n--)
        c = __builtin_ia32_crc32qi((uint32_t)c, *s++);
    return ~(uint32_t)c;
}
#endif

static uint32_t (*crc32c)(uint32_t, const void *, size_t) = pn_crc32c_portable;

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
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse4.2"))
        crc32c = crc32c_sse42;
#endif
}

uint32_t pn_crc32c(uint32_t crc, const void *p, size_t n)
{
    return crc32c(crc, p, n);
}
