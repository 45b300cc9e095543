/* diskqueue_look.h - records of the queue of records.h, looked at and left there. */
#ifndef PN_TEST_DISKQUEUE_LOOK_H
#define PN_TEST_DISKQUEUE_LOOK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "records.h"

static char path[512];

/* ---- go-diskqueue's -------------------------------------------------------------------------- */

/* Look at `max` records without the oldest `skip`; how many were handed out, or what went wrong. */
static int64_t look_at(uint64_t skip, uint32_t max, pn_diskqueue_take *hand, void *arg)
{
    struct pn_diskqueue_cursor cursor = {0};
    struct pn_record_out record;
    int64_t seen = 0;
    int rc = 1;
    while (rc == 1 && seen < max) {
        while ((rc = pn_diskqueue_look(q, &files, &cursor, &record)) == -EAGAIN)
            ;
        if (rc == 1 && skip > 0)
            skip--;
        else if (rc == 1 && (rc = hand(arg, &record)) == 1)
            seen++;
    }
    return rc < 0 ? rc : seen;
}

#endif
