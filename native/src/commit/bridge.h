/* bridge.h - a backend that stands for another place: what a bridge to PostgreSQL needs. */
#ifndef PN_BRIDGE_H
#define PN_BRIDGE_H

#include "backend/upstream.h"
#include "commit/announce.h"

/* PostgreSQL's: a payload has fewer than 8000 bytes (NOTIFY_PAYLOAD_MAX_LENGTH). */
#define PN_UPSTREAM_PAYLOAD 7999U

/* After the release of the lock (segment.h, PN_TELL_BRIDGES). */
void pn_bridge_tell(struct pn_segment *seg);

/* One of the channels goes upstream: can its payloads?  Lock held. */
int pn_bridge_check_locked(const struct pn_commit *c);
/* The same for a notification that joins a transaction; a hint, the commit decides. */
int pn_bridge_refuse(struct pn_conn *conn, const char *channel, size_t channel_len,
                     const void *payload, size_t payload_len);

#endif
