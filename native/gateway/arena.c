/* arena.c - see arena.h. */
#include "arena.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK_SIZE = 4096, ALIGNMENT = 16 };

struct gw_chunk {
    struct gw_chunk *next;
    size_t used, size; /* of what follows */
};

static const size_t head_size = (sizeof(struct gw_chunk) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;

static struct gw_chunk *add_chunk(struct gw_arena *arena, size_t size)
{
    size_t room = size > CHUNK_SIZE ? size : CHUNK_SIZE;
    struct gw_chunk *chunk = calloc(1, head_size + room);
    if (chunk == NULL)
        return NULL;
    chunk->size = room;
    chunk->next = arena->chunks;
    arena->chunks = chunk;
    arena->bytes += room;
    return chunk;
}

void *gw_alloc(struct gw_arena *arena, size_t size)
{
    struct gw_chunk *chunk = arena->chunks;
    if (size > SIZE_MAX / 2)
        return NULL;
    size = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (chunk == NULL || chunk->size - chunk->used < size)
        chunk = add_chunk(arena, size);
    if (chunk == NULL)
        return NULL;
    void *at = (char *) chunk + head_size + chunk->used;
    chunk->used += size;
    return at;
}

char *gw_copy(struct gw_arena *arena, const char *text, size_t len)
{
    char *copy = gw_alloc(arena, len + 1);
    if (copy != NULL && len > 0)
        memcpy(copy, text, len);
    return copy;
}

void gw_arena_reset(struct gw_arena *arena)
{
    struct gw_chunk *chunk = arena->chunks;
    while (chunk != NULL && (chunk->next != NULL || chunk->size > CHUNK_SIZE)) {
        struct gw_chunk *next = chunk->next;
        arena->bytes -= chunk->size;
        free(chunk);
        chunk = next;
    }
    arena->chunks = chunk;
    if (chunk != NULL) {
        memset((char *) chunk + head_size, 0, chunk->used);
        chunk->used = 0;
    }
}

void gw_arena_free(struct gw_arena *arena)
{
    while (arena->chunks != NULL) {
        struct gw_chunk *next = arena->chunks->next;
        free(arena->chunks);
        arena->chunks = next;
    }
    arena->bytes = 0;
}

/* The length of the character that begins here, 0: it is none.  RFC 3629, table 3-7 of Unicode. */
static size_t character(const unsigned char *at, size_t left)
{
    unsigned char first = at[0], low = 0x80, high = 0xBF;
    size_t len;
    if (first < 0x80)
        return first != 0;
    if (first >= 0xC2 && first <= 0xDF)
        len = 2;
    else if (first >= 0xE0 && first <= 0xEF)
        len = 3;
    else if (first >= 0xF0 && first <= 0xF4)
        len = 4;
    else
        return 0;
    if (first == 0xE0)
        low = 0xA0;
    else if (first == 0xED)
        high = 0x9F;
    else if (first == 0xF0)
        low = 0x90;
    else if (first == 0xF4)
        high = 0x8F;
    if (left < len || at[1] < low || at[1] > high)
        return 0;
    for (size_t i = 2; i < len; i++)
        if ((at[i] & 0xC0) != 0x80)
            return 0;
    return len;
}

size_t gw_utf8_valid(const char *text, size_t len)
{
    const unsigned char *bytes = (const unsigned char *) text;
    size_t at = 0;
    while (at < len) {
        size_t step = character(bytes + at, len - at);
        if (step == 0)
            break;
        at += step;
    }
    return at;
}

size_t gw_utf8_clip(const char *text, size_t len, size_t limit)
{
    if (len <= limit)
        return len;
    while (limit > 0 && ((unsigned char) text[limit] & 0xC0) == 0x80)
        limit--;
    return limit;
}

size_t gw_utf8_length(const char *text, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += ((unsigned char) text[i] & 0xC0) != 0x80;
    return n;
}

size_t gw_utf8_encode(uint32_t point, char out[4])
{
    if (point == 0 || point > 0x10FFFF || (point >= 0xD800 && point <= 0xDFFF))
        return 0;
    if (point < 0x80) {
        out[0] = (char) point;
        return 1;
    }
    size_t len = point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = len - 1; i > 0; i--) {
        out[i] = (char) (0x80 | (point & 0x3F));
        point >>= 6;
    }
    out[0] = (char) (lead[len] | point);
    return len;
}

static char folded(char c)
{
    return c >= 'A' && c <= 'Z' ? (char) (c - 'A' + 'a') : c;
}

bool gw_same_word(const char *text, size_t len, const char *word)
{
    for (size_t i = 0; i < len; i++)
        if (word[i] == '\0' || folded(text[i]) != folded(word[i]))
            return false;
    return word[len] == '\0';
}
