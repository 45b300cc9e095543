/* consume.h - a consumer as its own process sees it. */
#ifndef PN_CONSUME_H
#define PN_CONSUME_H

#include "deliver.h"

extern int64_t pn_consumer_slow_ns; /* the slow timer at first; tests put it off */

int pn_consume_open(struct pn_conn *conn, pn_ref channel, const pn_consumer_options *options,
                    struct pn_consumer **out);
int pn_consume_get(struct pn_consumer *consumer, int64_t timeout_ns, pn_message_out *out);
int pn_consume_fileno(struct pn_consumer *consumer);
int pn_consume_pause(struct pn_consumer *consumer, int level);
void pn_consume_interrupt(struct pn_consumer *consumer);
int pn_consume_close(struct pn_consumer *consumer);
struct pn_conn *pn_consume_conn(const struct pn_consumer *consumer);
pn_ref pn_consume_ref(const struct pn_consumer *consumer);

#endif
