/* bridge.h - a backend that stands for another place: what a bridge to PostgreSQL needs. */
#ifndef PN_BRIDGE_H
#define PN_BRIDGE_H

#include "backend/upstream.h"
#include "commit/announce.h"

/* After the release of the lock (segment.h, PN_TELL_BRIDGES). */
void pn_bridge_tell(struct pn_segment *seg);

/* Of a notification that joins a transaction: can its payload go upstream, if its channel does?  A
 * hint, the commit decides. */
int pn_bridge_refuse(struct pn_conn *conn, const char *channel, size_t channel_len,
                     const void *payload, size_t payload_len);

#endif
