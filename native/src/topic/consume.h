/* consume.h - a consumer as its own process sees it. */
#ifndef PN_CONSUME_H
#define PN_CONSUME_H

#include "topic/consumer_latch.h"

extern int64_t pn_consumer_slow_ns; /* the slow timer at first; tests put it off */

int pn_consume_get(struct pn_consumer *consumer, int64_t timeout_ns, pn_message_out *out);
int pn_consume_fileno(struct pn_consumer *consumer);
struct pn_conn *pn_consume_conn(const struct pn_consumer *consumer);
/* 0 if this consumer still owns its slot and its channel exists; else an error.  Lock held. */
int pn_consume_check_channel(struct pn_consumer *c, struct pn_topic_channel **ch);
pn_ref pn_consume_ref(const struct pn_consumer *consumer);

/* Requeue prefetched deliveries that the program was not given, without counting an attempt.  Lock
 * and `mutex` held. */
void pn_consume_give_back_locked(struct pn_consumer *c);

#endif
