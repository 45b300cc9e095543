/* accept.h - new clients of a gateway, and those that it refuses. */
#ifndef PN_GATEWAY_ACCEPT_H
#define PN_GATEWAY_ACCEPT_H

#include "server.h"

/* Those that wait at the listener, as many as one round takes. */
void gw_accept_clients(pn_gateway *gateway, int listener, int64_t now);

#endif
