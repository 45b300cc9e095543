/*
 * glob.c - does a name match a pattern, as Redis writes them?
 *
 * 1. `*` stands for any characters, also none; `?` for one; `[abc]`, `[a-z]` and `[^a]` for one of
 *    a set, or of all others; a backslash takes its meaning from the character behind it, also in
 *    a set.  Anything else stands for itself.  Every pattern has a meaning: a set that is not
 *    closed ends with the pattern, and so does a backslash, which then stands for itself; a `-`
 *    before the `]`, or first, stands for itself; `[]` is no character, `[^]` any.
 * 2. A character is one of UTF-8.  A byte that belongs to none is a character of its own, which
 *    equals that byte and is in no range of others.
 * 3. Only the last `*` is ever gone back to: what an earlier one would take more, the last one can
 *    take instead.  So each place of the name is tried once with what stands behind each `*`, and a
 *    match costs pattern_len * name_len steps at the most.  A publisher makes it with the writer
 *    lock held.
 */
#include "base/glob.h"

#include <stdint.h>

typedef const unsigned char *bytes;

enum { NO_CHARACTER = 0x110000 }; /* and the byte: beyond Unicode */

/* The character at *at, which goes on behind it. */
static uint32_t next_character(bytes *at, bytes end)
{
    static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
    uint32_t first = *(*at)++, value;
    int more = first < 0xC2 ? 0 : first < 0xE0 ? 1 : first < 0xF0 ? 2 : first < 0xF5 ? 3 : 0;
    if (first < 0x80)
        return first;
    if (more == 0 || end - *at < more)
        return NO_CHARACTER + first;
    value = first & (0x3FU >> more);
    for (int i = 0; i < more; i++) {
        uint32_t byte = (*at)[i];
        if ((byte & 0xC0) != 0x80)
            return NO_CHARACTER + first;
        value = value << 6 | (byte & 0x3F);
    }
    if (value < least[more] || (value >= 0xD800 && value < 0xE000) || value >= NO_CHARACTER)
        return NO_CHARACTER + first;
    *at += more;
    return value;
}

/* The same in a pattern, where a backslash is passed over. */
static uint32_t next_literal(bytes *at, bytes end)
{
    if (**at == '\\' && end - *at >= 2)
        ++*at;
    return next_character(at, end);
}

/* Is it in the set that begins at *at, behind its bracket?  *at goes on behind the set. */
static bool set_has(bytes *at, bytes end, uint32_t character)
{
    bool others = *at < end && **at == '^', found = false;
    if (others)
        ++*at;
    while (*at < end && **at != ']') {
        uint32_t low = next_literal(at, end), high = low;
        if (end - *at >= 2 && (*at)[0] == '-' && (*at)[1] != ']') {
            ++*at;
            high = next_literal(at, end);
        }
        found = found || (low <= high ? character >= low && character <= high
                                      : character >= high && character <= low);
    }
    if (*at < end)
        ++*at;
    return found != others;
}

/* Does what stands at *at, and is no `*`, stand for the character?  *at goes on behind it. */
static bool stands_for(bytes *at, bytes end, uint32_t character)
{
    if (**at == '?') {
        ++*at;
        return true;
    }
    if (**at == '[') {
        ++*at;
        return set_has(at, end, character);
    }
    return next_literal(at, end) == character;
}

/* The usual case of a pattern's byte: a character that stands for itself alone. */
static inline bool is_plain(unsigned char byte)
{
    return byte < 0x80 && byte != '*' && byte != '?' && byte != '[' && byte != '\\';
}

bool pn_glob_matches(const char *pattern, size_t pattern_len, const char *name, size_t name_len)
{
    bytes at = (bytes) pattern, end = at + pattern_len;
    bytes text = (bytes) name, text_end = text + name_len;
    bytes star = NULL,
          from = NULL; /* behind the last `*`, and where what it does not take begins */
    while (text < text_end) {
        if (at < end && is_plain(*at) && *at == *text) {
            at++;
            text++;
            continue;
        }
        if (at < end && *at == '*') {
            while (at < end && *at == '*')
                at++;
            if (at == end)
                return true;
            star = at;
            from = text;
            continue;
        }
        bytes next = text;
        if (at < end && !is_plain(*at) && stands_for(&at, end, next_character(&next, text_end))) {
            text = next;
            continue;
        }
        if (star == NULL)
            return false;
        next_character(&from, text_end); /* the `*` takes one more */
        at = star;
        text = from;
    }
    while (at < end && *at == '*')
        at++;
    return at == end;
}
