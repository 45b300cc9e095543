/*
 * layout_topic.h - what of topics lives in shared memory; the model is in topic.c.
 *
 * The topic area is the last part of the segment, and its pages are not allocated before somebody
 * uses a topic: nothing in it may be touched unless AsyncQueueControl.topics_ready is set.
 *
 *   page aligned      struct pn_topic_control
 *                     struct pn_topic          topic[max_topics]
 *                     struct pn_topic_channel  channel[max_topics + max_topic_channels]
 *                     struct pn_consumer_slot  consumer[max_consumers]
 *                     struct pn_arena_page     page[topic_memory / 4 KiB]
 *   page aligned      the arena                topic_memory
 *
 * channel[i] of i < max_topics is the queue of topic[i] itself, its backlog; the channels that
 * have a name follow.  A "ref" is an offset into the arena in units of 64 bytes, 0: none.
 *
 * Who writes: the holder of the writer lock, everything, except where noted.  "truth" is what
 * recovery believes; what is "derived" it makes anew (topic_recover.c).
 */
#ifndef PN_LAYOUT_TOPIC_H
#define PN_LAYOUT_TOPIC_H

#include <stddef.h>
#include <stdint.h>

#include "atomic.h"
#include "pynotify.h"

#define PN_TOPIC_PAGE 4096U
#define PN_BODY_CELL 320U /* bytes of a B cell */
#define PN_HEADERS_MAX 65536U

/* ---- messages and deliveries ---------------------------------------------------------------- */

enum pn_cell_state {
    PN_CELL_FREE = 0,
    PN_CELL_STAGED = 1,   /* being published by the holder of the lock: dies with it */
    PN_CELL_PREPARED = 2, /* of a prepared transaction: lives as long as its slot */
    PN_CELL_LIVE = 3,     /* published */
    PN_CELL_BODY = 4      /* a further cell of a message */
};

/*
 * The head of a message, at the start of its first B cell; headers and body follow in this cell,
 * then in the chain.  `state` is the truth of whether the message exists; it is stored last.
 */
struct pn_message {
    _Atomic(uint16_t) state; /* enum pn_cell_state; truth */
    uint16_t topic;          /* index; truth */
    uint32_t first;          /* delivery; derived */
    uint64_t id;             /* truth */
    int64_t published_ns;    /* CLOCK_REALTIME; truth */
    int64_t expires;         /* CLOCK_MONOTONIC, 0: never; truth */
    int64_t published_mono;  /* truth */
    uint32_t body_len, headers_len; /* truth */
    uint32_t chain;                 /* next cell or page, 0: none; truth */
    uint16_t refs, soft_refs; /* deliveries, and of them in ephemeral channels; derived */
    /* LIVE: the topic's list in order of ids, derived.  STAGED: `next` is the chain of what is
     * published together.  PREPARED: owner's slot and generation; truth. */
    uint32_t prev, next;
};
_Static_assert(sizeof(struct pn_message) == 64, "one cache line");
#define PN_INLINE_BODY (PN_BODY_CELL - sizeof(struct pn_message))

/* A further B cell (BODY), or a whole page; which of them, the page's class says. */
struct pn_body_cell {
    _Atomic(uint16_t) state;
    uint16_t pad;
    uint32_t chain;
    uint8_t data[];
};
#define PN_CELL_BODY_BYTES (PN_BODY_CELL - sizeof(struct pn_body_cell))
#define PN_PAGE_BODY_BYTES (PN_TOPIC_PAGE - sizeof(struct pn_body_cell))

enum pn_delivery_kind {
    PN_KIND_FREE = 0,
    PN_KIND_READY = 1,
    PN_KIND_DEFERRED = 2,
    PN_KIND_IN_FLIGHT = 3,
    PN_KIND_HELD = 4 /* in flight, and answered by a prepared transaction: no time-out */
};

/* The state word: kind 3 | attempts 16 | consumer 16 | tag 29, from the top. */
#define PN_TAG_BITS 29
#define PN_TAG_MASK ((1U << PN_TAG_BITS) - 1)
static inline uint64_t pn_state_word(enum pn_delivery_kind kind, uint32_t attempts,
                                     uint32_t consumer, uint32_t tag)
{
    return (uint64_t) kind << 61 | (uint64_t) (attempts & 0xffff) << 45 |
           (uint64_t) (consumer & 0xffff) << PN_TAG_BITS | (tag & PN_TAG_MASK);
}
static inline enum pn_delivery_kind pn_state_kind(uint64_t word)
{
    return (enum pn_delivery_kind) (word >> 61);
}
static inline uint32_t pn_state_attempts(uint64_t word)
{
    return (uint32_t) (word >> 45) & 0xffff;
}
static inline uint32_t pn_state_consumer(uint64_t word)
{
    return (uint32_t) (word >> PN_TAG_BITS) & 0xffff;
}
static inline uint32_t pn_state_tag(uint64_t word)
{
    return (uint32_t) word & PN_TAG_MASK;
}

/* One message in one channel: a D cell.  It exists iff its kind is not FREE, its message is LIVE
 * (or PREPARED), and its order is not below the channel's void_below. */
struct pn_delivery {
    pn_atomic_u64 state; /* truth; the tag counts claims and survives FREE.  R: any (acquire) */
    uint64_t order;      /* place in the ready queue; truth */
    int64_t due; /* DEFERRED: when; IN_FLIGHT: the deadline; READY: when it expires, 0: never;
                  * CLOCK_MONOTONIC; truth */
    int64_t delivered_ns; /* CLOCK_MONOTONIC; truth */
    uint32_t message;     /* ref; truth */
    uint32_t channel;     /* index; truth */
    uint32_t prev, next;  /* ready list, or the consumer's in-flight list; derived */
    uint32_t of_message;  /* the next delivery of the message; derived */
    uint32_t timed;       /* place in the channel's timed set, + 1; 0: not in it; derived */
    /* The tag under which it was handed to the program.  W: the consumer's process, without the
     * lock.  R: holder: a claim that nobody saw is not counted in attempts. */
    pn_atomic_u32 handed;
    uint32_t pad;
};
_Static_assert(sizeof(struct pn_delivery) == 64, "one cache line");
_Static_assert(offsetof(struct pn_delivery, timed) == 52, "timedset.c");

#endif
