/*
 * model.h - LISTEN/NOTIFY as a list: what the engine promises, without how (fuzz_calls.c).
 *
 * There is one list of all committed notifications.  A connection has a position in it, and of
 * each of its two sets of channels the place from where on each channel is owed.
 */
#ifndef PN_FUZZ_MODEL_H
#define PN_FUZZ_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "pynotify.h"

enum {
    MODEL_CONNECTIONS = 4,
    MODEL_DATABASES = 2,
    MODEL_CHANNELS = 6,
    MODEL_COUNTERS = 3,
    MODEL_LOG = 1 << 15,
    MODEL_ITEMS = 512,
    MODEL_TXNS = 2 /* open ones of a connection */
};

/* `length` times the byte `content`. */
struct model_bytes {
    uint32_t length;
    uint8_t content;
};

struct model_event {
    uint32_t transaction; /* counted from 1 */
    struct model_bytes payload, headers;
    int32_t backend;
    uint8_t database, channel;
};

enum model_action { MODEL_NOTHING, MODEL_LISTEN, MODEL_UNLISTEN };

/* A statement of an open transaction. */
struct model_item {
    enum { MODEL_NOTIFY, MODEL_LISTENING, MODEL_UNLISTEN_ALL, MODEL_BUMP } kind;
    int level;
    struct model_bytes payload, headers;
    uint8_t channel, route, counter;
    bool listen;
};

struct model_txn {
    bool open, prepared;
    int level;
    uint32_t nitems;
    struct model_item item[MODEL_ITEMS];
    uint8_t intent[PN_ROUTES][MODEL_CHANNELS]; /* enum model_action; of a prepared one */
};

struct model_connection {
    bool open;
    uint8_t database;
    int32_t backend;
    uint32_t position;                        /* in the log */
    int64_t since[PN_ROUTES][MODEL_CHANNELS]; /* place in the log; -1: not listening */
    bool known[MODEL_CHANNELS];               /* it has said LISTEN there at some time */
    struct model_txn txn[MODEL_TXNS];
};

struct model {
    uint32_t nlog, transactions;
    struct model_event log[MODEL_LOG];
    uint64_t counter[MODEL_DATABASES][MODEL_COUNTERS];
    struct model_connection connection[MODEL_CONNECTIONS];
};

void model_open(struct model *m, int c, uint8_t database, int32_t backend);

/*
 * NOTIFY: an equal one of the same transaction collapses, unless `again`.  Headers make none
 * unequal; those of the first stay.
 */
void model_notify(struct model_txn *t, uint8_t channel, struct model_bytes payload,
                  struct model_bytes headers, bool again);
void model_rollback_to(struct model_txn *t, int level);
void model_release(struct model_txn *t, int level);

/* What its LISTENs and UNLISTENs come to, seen from now. */
void model_fold(struct model *m, int c, struct model_txn *t);
void model_commit(struct model *m, int c, struct model_txn *t);

/* The next one that connection c is owed, or NULL; the position goes behind it. */
const struct model_event *model_next(struct model *m, int c, uint8_t *routes);
bool model_owes(const struct model *m, int c);

#endif
