/* grow.h - arrays that grow by doubling. */
#ifndef PN_GROW_H
#define PN_GROW_H

#include <stddef.h>

/*
 * Room for `need` elements in `array`, a pointer that belongs to us, which has it for `cap` of
 * them (a size_t): twice as many as before, and `least` at first.  0, or -ENOMEM with a sentence;
 * then nothing has changed.
 */
#define PN_GROW(array, cap, least, need)                                                           \
    ((need) <= (cap) ? 0 : pn_grow(&(array), &(cap), least, need, sizeof *(array)))

int pn_grow(void *array, size_t *cap, size_t least, size_t need, size_t size);

#endif
