/* glob.h - does a name match a pattern, as Redis writes them? */
#ifndef PN_GLOB_H
#define PN_GLOB_H

#include <stdbool.h>
#include <stddef.h>

/* Any bytes in both.  At most about pattern_len * name_len steps; no memory, no recursion. */
bool pn_glob_matches(const char *pattern, size_t pattern_len, const char *name, size_t name_len);

#endif
