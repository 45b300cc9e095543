/* moment.c - the two clocks of one moment. */
#define _GNU_SOURCE
#include "base/moment.h"

#include <time.h>

#include "base/os.h"

struct pn_moment pn_moment_now(void)
{
    struct timespec real;
    clock_gettime(CLOCK_REALTIME, &real);
    return (struct pn_moment) {.mono = pn_now_ns(),
                               .real = (int64_t) real.tv_sec * 1000000000 + real.tv_nsec};
}
