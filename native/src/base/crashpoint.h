/*
 * crashpoint.h - PN_CRASH("module:event"): the places where a test may kill the process.
 *
 * One stands after every store that matters.  In release builds they are nothing.  With
 * PN_CRASHPOINTS each use also enters its label in a linker section, so that the list which the
 * tests run through is the source itself.
 */
#ifndef PN_CRASHPOINT_H
#define PN_CRASHPOINT_H

#ifdef PN_CRASHPOINTS
struct pn_crashpoint {
    const char *label;
};
/* lld drops what only the bounds of a section lead to. */
#if defined(__clang__) && __has_attribute(retain)
#define PN_RETAIN retain
#else
#define PN_RETAIN
#endif
void pn_crash_reached(const struct pn_crashpoint *point);
#define PN_CRASH(text)                                                                             \
    do {                                                                                           \
        static const struct pn_crashpoint point_here = {text};                                     \
        static const struct pn_crashpoint *const entry_here                                        \
            __attribute__((section("pn_crash_labels"), used, PN_RETAIN)) = &point_here;            \
        pn_crash_reached(entry_here);                                                              \
    } while (0)
#else
#define PN_CRASH(text) ((void) 0)
#endif

#endif
