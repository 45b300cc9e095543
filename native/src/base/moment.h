/* moment.h - the two clocks of one moment. */
#ifndef PN_MOMENT_H
#define PN_MOMENT_H

#include <stdint.h>

/* The two clocks of one moment. */
struct pn_moment {
    int64_t mono, real;
};
struct pn_moment pn_moment_now(void);

#endif
