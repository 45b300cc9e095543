/*
 * fuzz_copies.c - fuzz_read.c on a segment whose readers copy the ring before they look at it,
 * since they may be evicted at any time.
 */
#define FUZZ_POLICY PN_FULL_DROP_SLOWEST
#include "fuzz_read.c"
