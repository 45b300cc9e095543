/* grow.c - see grow.h. */
#include "base/grow.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

int pn_grow(void *array, size_t *cap, size_t least, size_t need, size_t size)
{
    size_t wanted = *cap < least ? least : *cap;
    void *now, *bigger;
    while (wanted < need)
        wanted *= 2;
    memcpy(&now, array, sizeof now); /* it points to a pointer of any kind */
    bigger = realloc(now, wanted * size);
    if (bigger == NULL)
        return pn_fail(ENOMEM, "out of memory");
    memcpy(array, &bigger, sizeof bigger);
    *cap = wanted;
    return 0;
}
