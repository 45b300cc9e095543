/* arena.h - memory that is freed at once: of a compiled text, of one execution. */
#ifndef PN_GATEWAY_ARENA_H
#define PN_GATEWAY_ARENA_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gw_chunk;

struct gw_arena {
    struct gw_chunk *chunks; /* the newest first */
    size_t bytes;            /* of all chunks */
};

/* Zeroed memory, aligned for anything; NULL: no memory. */
void *gw_alloc(struct gw_arena *arena, size_t size);
/* `len` bytes and a NUL behind them; NULL: no memory. */
char *gw_copy(struct gw_arena *arena, const char *text, size_t len);
/* Everything but the first chunk, which is used again. */
void gw_arena_reset(struct gw_arena *arena);
void gw_arena_free(struct gw_arena *arena);

/* The length of the valid UTF-8 at the beginning of `text`; NUL is not valid. */
size_t gw_utf8_valid(const char *text, size_t len);
/* At most `limit` bytes of `text`, and no part of a character. */
size_t gw_utf8_clip(const char *text, size_t len, size_t limit);
/* Characters, not bytes. */
size_t gw_utf8_length(const char *text, size_t len);
/* Code point to bytes; how many they are, 0: it is none. */
size_t gw_utf8_encode(uint32_t point, char out[4]);

/* Equal but for the case of ASCII letters. */
bool gw_same_word(const char *text, size_t len, const char *word);

#endif
