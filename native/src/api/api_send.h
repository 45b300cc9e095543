/* api_send.h - what the C API of sending has for that of topics. */
#ifndef PN_API_SEND_H
#define PN_API_SEND_H

#include "commit/async.h"

/* A transaction that only the caller knows, for one call: where its commit would have to wait for
 * room, and a signal could interrupt that, it ends with -EINTR before. */
int pn_txn_new(struct pn_conn *conn, struct pn_txn **out);

#endif
