/* unsent.h - wake-ups that could not be sent: what is kept against it, and what is said of it. */
#ifndef PN_UNSENT_H
#define PN_UNSENT_H

#include <errno.h>

#include "backend/conn.h"

/* No descriptor is left: one that is given up may help. */
static inline bool pn_is_short(int rc)
{
    return rc == -EMFILE || rc == -ENFILE;
}

/* All but the last with signal_mutex held.  Make the spare descriptors that are missing. */
void pn_spare_fill(struct pn_segment *seg);
/* Close one.  False: there is none. */
bool pn_spare_give_up(struct pn_segment *seg);

/* The process `pid` could not be signalled: count it, and have it told now and then. */
void pn_unsent_note(struct pn_segment *seg, int32_t pid, int rc);
/* Only count it.  Async-signal-safe, and without signal_mutex. */
void pn_unsent_count(struct pn_segment *seg, int rc);
/* Once a mapping: can any process be signalled here?  False: that was asked before. */
bool pn_unsent_probe(struct pn_segment *seg);

/* What pn_conn_notice() says; 0: nothing. */
int pn_unsent_text(struct pn_segment *seg, char *buf, size_t cap);

#endif
