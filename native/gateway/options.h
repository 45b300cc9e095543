/* options.h - what a gateway was started with: its databases, and the identities it lets in. */
#ifndef PN_GATEWAY_OPTIONS_H
#define PN_GATEWAY_OPTIONS_H

#include "server.h"

/* -errno, and `message` says why; what was copied is freed by gw_options_free(). */
int gw_options_copy(pn_gateway *gateway, const pn_gateway_options *options);
void gw_options_free(pn_gateway *gateway);
/* The database that clients get under this name; NULL: there is none.  `server`: the gateway. */
const char *gw_find_database(void *server, const char *name);

#endif
