/*
 * local.h - the channels and patterns that a connection listens to, and their numbers.
 *
 * Everything is private to the process, and needs the connection's recv_mutex.
 */
#ifndef PN_LOCAL_H
#define PN_LOCAL_H

#include <pynotify.h>

#include <stdbool.h>
#include <stdlib.h>

#include "base/atomic.h"
#include "segment/layout.h"

/*
 * A channel of this connection.  It is owed to LISTEN and to SUBSCRIBE separately, each from its
 * own commit on; in shared memory they are one subscription, which is there as long as one of them
 * is.
 */
struct pn_local_channel {
    char *name; /* NULL: the number is free */
    uint32_t len;
    uint32_t subscription; /* while routes != 0 */
    uint64_t hash;
    QueuePosition since[PN_ROUTES];
    uint64_t since_xid[PN_ROUTES]; /* the last commit before that */
    uint64_t next_chan_seq;        /* one above the last one handed over; for UNLISTEN's lag */
    uint64_t named;                /* a number of its own for each time that a name got a number */
    uint64_t handed;            /* which poll was the last to hand out a message of it; 0: none */
    uint32_t uses;              /* intents of prepared transactions */
    uint8_t routes;             /* bits 1 << enum pn_route */
    bool pattern;               /* it is one, and no channel */
    uint64_t order;             /* of the LISTEN that it has its first route from, or will */
    bool waits;                 /* stands in `waiting` */
    uint64_t folded[PN_ROUTES]; /* in which folding (async.c) an intent was made, and which */
    uint32_t intent[PN_ROUTES];
};

/* A batch that was polled into may be freed before the connection, or after it. */
struct pn_batch_life {
    pn_atomic_u32 holders; /* the batch, and each connection that filled it */
    pn_atomic_u32 freed;
};

struct pn_local_channels {
    struct pn_local_channel *at; /* [n] */
    uint32_t n, cap;
    uint32_t *table;     /* open addressing by hash: index + 1 */
    uint32_t table_size; /* a power of two */
    uint32_t *free;      /* [nfree], a heap: the lowest is first */
    uint32_t *waiting;   /* [nwaiting]: not listened to any more, but a batch may have the number */
    uint32_t nfree, nwaiting;
    uint32_t *pattern; /* [npatterns], with a route, in the order of their LISTENs */
    uint32_t npatterns, pattern_names; /* names: with a number */
    size_t patterns_cap;
    uint64_t orders; /* counts the LISTENs */
    uint64_t polls;  /* counts them, from 1 */
    uint64_t oldest; /* the earliest poll that a batch still has */
    struct pn_local_reader {
        struct pn_batch_life *life;
        uint64_t poll; /* what it has */
    } *reader;         /* [nreaders] */
    uint32_t nreaders;
    size_t readers_cap;
};

static inline uint32_t pn_local_number(const struct pn_local_channels *l,
                                       const struct pn_local_channel *c)
{
    return (uint32_t) (c - l->at);
}

struct pn_local_channel *pn_local_find(const struct pn_local_channels *l, uint64_t hash,
                                       const char *name, size_t len, bool pattern);

/* Found, or with a number that was free.  NULL: no memory. */
struct pn_local_channel *pn_local_add(struct pn_local_channels *l, uint64_t hash, const char *name,
                                      size_t len, bool pattern);

/* It has got its first route, or lost its last. */
void pn_local_begin_pattern(struct pn_local_channels *l, uint32_t number);
void pn_local_end_pattern(struct pn_local_channels *l, uint32_t number);

/* That number is perhaps not needed any more: if so, forget the name, now or after the batches. */
void pn_local_let_go(struct pn_local_channels *l, uint32_t number);

/* What the batch had is gone.  -ENOMEM, before anything was read. */
int pn_local_begin_poll(struct pn_local_channels *l, pn_batch *b);

/* The slow half of the next. */
int pn_local_tell(pn_batch *b, uint32_t number, uint64_t named);

/* The batch gets something of that channel.  0 or -ENOMEM. */
static inline int pn_local_hand_out(const struct pn_local_channels *l, struct pn_local_channel *c,
                                    pn_batch *b)
{
    uint32_t number = pn_local_number(l, c);
    c->handed = l->polls;
    if (__builtin_expect(number < b->known_cap && b->known[number] == c->named, 1))
        return 0;
    return pn_local_tell(b, number, c->named);
}

/* What it was told of names was thrown away with the rest of it. */
void pn_local_tell_again(pn_batch *b);

void pn_local_free(struct pn_local_channels *l);
void pn_local_free_batch(pn_batch *b);

#endif
