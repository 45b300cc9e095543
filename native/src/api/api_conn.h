/* api_conn.h - what a pn_engine is, and the end of a connection; for the files of the C API. */
#ifndef PN_API_CONN_H
#define PN_API_CONN_H

#include <sys/types.h>

#include "backend/conn.h"

struct pn_engine {
    struct pn_segment *seg;
    uid_t euid;
};

/* One holder of the connection less; the last one frees it. */
void pn_conn_let_go(struct pn_conn *conn);

#endif
