/*
 * crc32c.h - CRC32C (Castagnoli): what guards records of the latency log and pages of files.
 */
#ifndef PN_CRC32C_H
#define PN_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Reflected; chainable: start with 0. */
uint32_t pn_crc32c(uint32_t crc, const void *p, size_t n);
/* The same of the four bytes of `word`, for what is counted all the time. */
uint32_t pn_crc32c_word(uint32_t crc, uint32_t word);
/* The same without the instruction; for tests and for processors that have none. */
uint32_t pn_crc32c_portable(uint32_t crc, const void *p, size_t n);

#endif
