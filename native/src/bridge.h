/* bridge.h - a backend that stands for another place: what a bridge to PostgreSQL needs. */
#ifndef PN_BRIDGE_H
#define PN_BRIDGE_H

#include "announce.h"

/* PostgreSQL's: a payload has fewer than 8000 bytes (NOTIFY_PAYLOAD_MAX_LENGTH). */
#define PN_UPSTREAM_PAYLOAD 7999U

/* Somebody listens who is no bridge (model 2). */
static inline bool pn_is_heard_here(const struct GlobalChannelEntry *e)
{
    return e->numListeners > (e->upstream != 0);
}

/* A channel has got its first listener or lost its last, or may have.  Lock held. */
static inline void pn_heard_changed_locked(struct pn_segment *seg)
{
    pn_store_relaxed(&seg->ctl->heard, pn_load_relaxed(&seg->ctl->heard) + 1);
    if (pn_load_relaxed(&seg->ctl->bridges) != 0)
        seg->on_release |= PN_TELL_BRIDGES;
}

/* The slot ceases to be a bridge; it listens to nothing any more.  Lock held. */
void pn_bridge_end_locked(struct pn_segment *seg, uint32_t slot);
/* `bridges`, counted again.  Lock held. */
void pn_bridge_count_locked(struct pn_segment *seg);

/* After the release of the lock (segment.h, PN_TELL_BRIDGES). */
void pn_bridge_tell(struct pn_segment *seg);

/* One of the channels goes upstream: can its payloads?  Lock held. */
int pn_bridge_check_locked(const struct pn_commit *c);
/* The same for a notification that joins a transaction; a hint, the commit decides. */
int pn_bridge_refuse(struct pn_conn *conn, const char *channel, size_t channel_len,
                     const void *payload, size_t payload_len);

#endif
