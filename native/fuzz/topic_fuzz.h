/* topic_fuzz.h - what the two files of the fuzz target of topics share. */
#ifndef PN_FUZZ_TOPIC_FUZZ_H
#define PN_FUZZ_TOPIC_FUZZ_H

#include "fuzz.h"
#include "topic_model.h"

enum { CONNECTIONS = 2, HANDLES = 32 };

/* What a program knows of a message that it got. */
struct handle {
    uint64_t id, delivery, claim;
    uint32_t tag;
    int topic, channel;
};

struct topic_fuzz {
    struct topic_model m;
    pn_engine *engine;
    pn_conn *conn[CONNECTIONS];
    pn_txn *txn[CONNECTIONS];
    struct tm_txn model_txn[CONNECTIONS];
    pn_ref topic[TM_TOPICS], channel[TM_TOPICS][TM_CHANNELS];
    pn_consumer *consumer[TM_CONSUMERS];
    struct handle handle[HANDLES];
    uint32_t nhandles;
    uint64_t ids[HANDLES]; /* of messages that were published */
    uint32_t nids;
};
extern struct topic_fuzz f;

extern const char *const topics[TM_TOPICS];

/* Compare everything that can be asked (topic_look.c). */
void check_engine(void);
/* Dead letters may have made their topic. */
void find_dead(void);
/*
 * An operation has ended: of what is on disk some comes back.  Where that is less than there is
 * room for, each of the next does its part.
 */
void check_refill(void);

#endif
