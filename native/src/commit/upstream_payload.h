/* upstream_payload.h - can a payload go to PostgreSQL? */
#ifndef PN_UPSTREAM_PAYLOAD_H
#define PN_UPSTREAM_PAYLOAD_H

#include "commit/announce.h"

/* PostgreSQL's: a payload has fewer than 8000 bytes (NOTIFY_PAYLOAD_MAX_LENGTH). */
#define PN_UPSTREAM_PAYLOAD 7999U

/* 0, -PN_EPAYLOAD, -PN_EENCODING. */
int pn_upstream_check_payload(const char *channel, size_t channel_len, const void *payload,
                              size_t len);
/* The same of everything in a commit whose channel goes upstream. */
int pn_upstream_check_locked(const struct pn_commit *c);

#endif
