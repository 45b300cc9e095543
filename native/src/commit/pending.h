/*
 * pending.h - what a transaction has gathered: PostgreSQL's pendingActions and pendingNotifies.
 *
 * Private to the process and to the thread that began the transaction; no locks.
 */
#ifndef PN_PENDING_H
#define PN_PENDING_H

#include "backend/conn.h"
#include "topic/cancel.h"

/* One channel that the transaction notifies. */
struct pn_pending_channel {
    uint64_t hash;
    const char *name; /* set at commit: the arena may move before */
    size_t name_off;
    uint32_t name_len;
    /* filled in under the writer lock */
    struct GlobalChannelEntry *entry;
    uint64_t chan_seq;
    bool heard;   /* by listeners of the channel */
    bool matched; /* by listeners of patterns */
    uint32_t n;   /* how many were appended */
};

struct pn_pending_event {
    uint64_t hash; /* of channel and payload */
    uint64_t chan_seq;
    size_t payload_off;
    uint32_t payload_len;
    uint32_t channel; /* index into channels */
};

/*
 * Headers of the events from `first` to before `end`: a list of its own, in the order of the
 * events, so that events without any are no larger and cost nothing.
 */
struct pn_pending_headers {
    const void *bytes; /* set at commit: the arena may move before */
    size_t off, first, end;
    uint32_t len;
};

enum pn_action_kind {
    PN_ACTION_LISTEN,
    PN_ACTION_UNLISTEN,
    PN_ACTION_UNLISTEN_ALL,
    PN_ACTION_SUBSCRIBE,
    PN_ACTION_UNSUBSCRIBE
};

struct pn_pending_action {
    enum pn_action_kind kind;
    bool pattern; /* its name is one */
    uint32_t name_len;
    size_t name_off;
    uint64_t hash;
};

/* `count` bumps of a counter, one after the other. */
struct pn_pending_bump {
    uint64_t count;
    uint64_t value; /* filled in under the writer lock: the counter's after it */
    uint32_t index;
};

struct pn_topic_note;
enum pn_op_kind { PN_OP_PUBLISH, PN_OP_ANSWER, PN_OP_CANCEL };

/* What a transaction does to a topic (topic_ops.c). */
struct pn_pending_op {
    enum pn_op_kind kind;
    uint32_t body_len, headers_len; /* of an answer: the reason */
    size_t body_off, headers_off;
    pn_ref topic;
    uint64_t id;
    int64_t delay_ns, ttl_ns;
    uint32_t delivery, tag;
    bool again; /* of the cancel that the operation before is of (cancel_ops.c) */
    /* to be cancelled, and on disk: which record of its topic's queues, deferred until when */
    bool on_disk;
    struct pn_diskqueue_cursor at; /* it is read from there on */
    uint64_t seq;
    int64_t due;
    struct pn_deferred_since since; /* there it may have gone since */
    uint32_t wants;                 /* so many more operations does this cancel take */
    uint32_t looks;                 /* so many holds of the lock have looked for it in vain */
    int answer;                     /* enum pn_answer */
    /* filled in under the writer lock */
    uint32_t message;   /* staged, or to be cancelled; 0: none */
    uint64_t was;       /* state word of the delivery; 0: it is not to be touched */
    int outcome;        /* enum pn_outcome */
    uint64_t spilled;   /* where its topic's queue on disk ends with it; 0: it is in memory */
    uint32_t tombstone; /* of a message on disk that is to be cancelled; 0: none */
    uint32_t goes_on;   /* that topic, + 1, is looked after once all is applied; 0: none */
    struct pn_answer_redo redo;
    struct pn_topic_note *note; /* for the latency log, if there is one */
};

/* Where a level of nesting began. */
struct pn_pending_mark {
    size_t arena, events, channels, actions, bumps, ops;
    uint64_t collapsed;
};

/* Open addressing over indices; only while there are enough to be worth it. */
struct pn_index {
    uint32_t *slots; /* index + 1 */
    uint32_t size;
};

struct pn_pending {
    uint32_t dboid;
    unsigned char *arena;
    const unsigned char *borrowed; /* the events' payloads, if they are not in the arena */
    struct pn_pending_event *events;
    struct pn_pending_headers *headers;
    struct pn_pending_channel *channels;
    struct pn_pending_action *actions;
    struct pn_pending_bump *bumps;
    struct pn_pending_op *ops;
    struct pn_pending_bump *folded; /* by pn_pending_fold_bumps() */
    struct pn_pending_mark *marks;
    size_t arena_used, arena_cap;
    size_t nevents, events_cap;
    size_t nheaders, headers_cap;
    size_t nchannels, channels_cap;
    size_t nactions, actions_cap;
    size_t nbumps, bumps_cap;
    size_t nfolded, folded_cap;
    size_t nops, ops_cap;
    size_t nmarks, marks_cap;
    struct pn_index event_index, channel_index, answer_index;
    size_t indexed; /* so many ops were put into answer_index; 0: it is built again */
    uint64_t collapsed;
};

void pn_pending_free(struct pn_pending *p);

/* 1: queued, 0: collapsed with an equal one, or -ENOMEM. */
int pn_pending_notify(struct pn_pending *p, const char *channel, size_t channel_len,
                      const void *payload, size_t payload_len, bool dedup);

/* n payloads, one after the other, and the headers of each, if headers_len is not 0. */
struct pn_payloads {
    const char *bytes;
    const uint32_t *lens;
    size_t n;
    const void *headers;
    uint32_t headers_len;
};

/* For a walk over all events in their order: the headers of event i, or NULL; *at: 0 at first. */
static inline const struct pn_pending_headers *
pn_headers_of(const struct pn_pending_headers *headers, size_t n, size_t *at, size_t i)
{
    while (*at < n && headers[*at].end <= i)
        ++*at;
    return *at < n && headers[*at].first <= i ? &headers[*at] : NULL;
}

/* Their length, 0 where there are none. */
static inline uint32_t pn_headers_len(const struct pn_pending_headers *headers, size_t n,
                                      size_t *at, size_t i)
{
    if (__builtin_expect(n == 0, 1))
        return 0;
    const struct pn_pending_headers *h = pn_headers_of(headers, n, at, i);
    return h == NULL ? 0 : h->len;
}

/* All of them; *queued is raised by how many did not collapse.  0 or -ENOMEM, after some. */
int pn_pending_notify_many(struct pn_pending *p, const char *channel, size_t channel_len,
                           const struct pn_payloads *payloads, bool dedup, uint64_t *queued);

/* The same as the only notifications of a transaction that ends before the payloads are freed: they
 * are not copied. */
int pn_pending_borrow_many(struct pn_pending *p, const char *channel, size_t channel_len,
                           const struct pn_payloads *payloads, bool dedup, uint64_t *queued);

/* What payload_off of the events is relative to. */
static inline const unsigned char *pn_pending_payloads(const struct pn_pending *p)
{
    return p->borrowed != NULL ? p->borrowed : p->arena;
}

int pn_pending_action(struct pn_pending *p, enum pn_action_kind kind, bool pattern,
                      const char *channel, size_t channel_len);

/* Every bump counts. */
int pn_pending_bump(struct pn_pending *p, uint32_t index);
/* Into `folded`: each counter once.  May be done again. */
int pn_pending_fold_bumps(struct pn_pending *p);

/* Room for one more; it counts when nops is raised.  NULL: no memory. */
struct pn_pending_op *pn_pending_op(struct pn_pending *p);
/* Is that delivery answered by one of the ops? */
bool pn_pending_is_answered(struct pn_pending *p, uint32_t delivery, uint32_t tag, uint64_t id);
/* Bytes of that op.  0 or -ENOMEM. */
int pn_pending_keep(struct pn_pending *p, const void *bytes, size_t len, size_t *off);

/*
 * Bytes of the queue that the transaction takes wherever it is put; its bumps were folded.
 */
uint64_t pn_pending_worst_case(const struct pn_pending *p);

/* Subtransactions; level 1 is the first savepoint. */
int pn_pending_push(struct pn_pending *p);
void pn_pending_release(struct pn_pending *p, size_t level);
void pn_pending_rollback(struct pn_pending *p, size_t level);

#endif
