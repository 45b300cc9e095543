/* engine.h - what a pn_engine is; for the files of the C API. */
#ifndef PN_ENGINE_H
#define PN_ENGINE_H

#include <sys/types.h>

#include "segment.h"

struct pn_engine {
    struct pn_segment *seg;
    uid_t euid;
};

#endif
