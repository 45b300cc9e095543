/*
 * err.h - how a function fails: 0 or a negative code, and a sentence in a thread-local buffer.
 *
 * Codes are -errno or the -PN_E* of pynotify.h.  pn_fail() is for cold paths only.
 */
#ifndef PN_ERR_H
#define PN_ERR_H

#include <pynotify.h>

/* Remember the sentence "message" or "message\nhint" for pn_error_message(); returns -code. */
int pn_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
