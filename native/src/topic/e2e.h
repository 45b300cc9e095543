/* e2e.h - how long messages took from their publish to their finish. */
#ifndef PN_E2E_H
#define PN_E2E_H

#include "topic/area.h"

/* A message was finished so long after it was published.  Lock held. */
void pn_e2e_record_locked(struct pn_segment *seg, struct pn_topic_channel *ch, int64_t ns,
                          int64_t now);

/* Of the last five to ten minutes.  1; 0: nothing was finished.  Lock held. */
int pn_e2e_quantiles_locked(const struct pn_segment *seg, const struct pn_topic_channel *ch,
                            const double *q, size_t n, double *seconds);
/* Are these quantiles?  Before the lock is taken. */
int pn_e2e_check(const double *q, size_t n);

#endif
