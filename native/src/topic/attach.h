/* attach.h - a consumer comes and goes. */
#ifndef PN_ATTACH_H
#define PN_ATTACH_H

#include "topic/consume.h"

/* What stands for every consumer that was closed: all calls on it return -PN_ECLOSED. */
extern struct pn_consumer pn_consumer_that_is_closed;

/* Those of the channel whose process is no more go; true: one did, and perhaps the channel, too. */
bool pn_consumers_reap_dead_locked(struct pn_segment *seg, struct pn_topic_channel *ch);
int pn_consume_open(struct pn_conn *conn, pn_ref channel, const pn_consumer_options *options,
                    struct pn_consumer **out);

int pn_consume_pause(struct pn_consumer *consumer, int level);
void pn_consume_interrupt(struct pn_consumer *consumer);

/* In a forked child. */
void pn_consumers_close_inherited(struct pn_conn *conn);
int pn_consume_close(struct pn_consumer *consumer);

#endif
