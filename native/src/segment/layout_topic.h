/*
 * layout_topic.h - what of topics lives in shared memory; the model is in topic.c.
 *
 * The topic area is the last part of the segment, and its pages are not allocated before a process
 * uses a topic: nothing in it may be touched unless AsyncQueueControl.topics_ready is set.
 *
 *   page aligned      struct pn_topic_control
 *                     struct pn_topic          topic[max_topics]
 *                     struct pn_topic_channel  channel[max_topics + max_topic_channels]
 *                     struct pn_consumer_slot  consumer[max_consumers]
 *                     struct pn_arena_owner    owner[max_topics]
 *                     struct pn_arena_page     page[]
 *   page aligned      the arena                topic_memory (layout_topicmem.h)
 *
 * channel[i] of i < max_topics is the queue of topic[i] itself, its backlog; the channels that
 * have a name follow.  A "ref" is an offset into the arena in units of 64 bytes, 0: none.  Links
 * between topics, channels and consumers are index + 1, 0: none.
 *
 * The holder of the writer lock writes everything, except where noted.  "truth" is what recovery
 * believes; what is "derived" it rebuilds (rebuild_topics.c).
 *
 *  I20 A delivery exists iff its kind is not FREE, its message is LIVE or PREPARED, its channel is
 *      in use, and its order is not below the channel's discarded_below.
 *  I21 A message that is LIVE has a delivery.
 *  I22 Each delivery that exists stands in one place: READY in its channel's ready list, which is
 *      sorted by order; IN_FLIGHT in its consumer's list, sorted by deadline; DEFERRED, or READY
 *      with a time to live, in its channel's timed set; HELD nowhere.
 *      A message has a delivery in its topic's backlog, or in channels, never both.
 *  I23 Counters of deliveries and messages (depth and the like) are exact.
 *  I24 Whenever the lock is free: no consumer waits while its channel has more ready messages than
 *      notified consumers; and if something of the channel falls due, and consumers wait, then one
 *      of them sleeps no longer than until then.  What `refilling` says is due at once.  A consumer
 *      that is throttled has something in flight, and its channel has no more ready than it leaves
 *      to others.
 *  I25 A LIVE tombstone is of a record that its topic's queue on disk has not passed; no two are of
 *      the same one; `buried` counts them.
 *  I26 A message and its deliveries lie in pages of their topic's.
 *  I27 A channel that rests gets every record of its topic's `rest` from its cursor on, each once,
 *      but for `others` that name other channels only, and no message in memory before those; the
 *      files hold no less than what the cursors say.
 *  I28 A record of `later` that is not passed is a message that the channels it names have nowhere
 *      else; none of these is due before `later_next`, if no turn is being made (less what lead()
 *      and a pause are).
 *  I29 What a topic has on disk, in records and in bytes, follows from where its queues begin and
 *      end: no bytes without a record, no record without bytes.  Nothing else counts it.
 *  I30 While a consumer is LEAVING none of its channel claims a message: those that have gone back
 *      are newer than the rest.  A dead slot is not free before its consumers have nothing.
 *  I31 No message before a topic's frontier, but for those from there to `back_last`, can be
 *      dropped for a new one, as long as its list is sorted by id.
 */
#ifndef PN_LAYOUT_TOPIC_H
#define PN_LAYOUT_TOPIC_H

#include "files/diskqueue.h"
#include "segment/layout_topicmem.h"
#include <pynotify.h>
#include "files/topic_log.h"

#define PN_HEADERS_MAX 65536U

/* ---- messages and deliveries ---------------------------------------------------------------- */

enum pn_message_life {
    PN_MSG_FREE = 0,
    PN_MSG_STAGED = 1,  /* being published by the holder of the lock: dies with it */
    PN_MSG_LIVE = 2,    /* published */
    PN_MSG_PREPARED = 4 /* of a prepared transaction: lives as long as its slot */
};

/*
 * The head of a message, at the start of its first BODY cell; headers and body follow in the
 * chain.  `state` is the truth of whether the message exists; it is stored last.
 */
struct pn_message {
    _Atomic(uint16_t) state;        /* enum pn_message_life; truth */
    uint16_t topic;                 /* index; truth */
    uint32_t chain;                 /* next cell or page, 0: none; truth */
    uint64_t id;                    /* truth */
    int64_t published_ns;           /* CLOCK_REALTIME; truth */
    int64_t expires;                /* CLOCK_MONOTONIC, 0: never; truth */
    int64_t published_mono;         /* truth */
    uint32_t body_len, headers_len; /* truth */
    uint32_t first;                 /* delivery; derived, but for STAGED and PREPARED */
    uint16_t refs, firm;            /* deliveries; of them not in ephemeral channels; derived */
    /* LIVE: the topic's list, oldest first; derived.  STAGED: `next` is the chain of what is
     * published together.  PREPARED: owner's slot and generation; truth. */
    uint32_t prev, next;
};
_Static_assert(sizeof(struct pn_message) == 64, "one cache line");
_Static_assert(offsetof(struct pn_message, chain) == offsetof(struct pn_body_cell, next),
               "begins as a body cell");

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
    return (enum pn_delivery_kind)(word >> 61);
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

/* One message in one channel: a DELIVERY cell. */
struct pn_delivery {
    pn_atomic_u64 state; /* truth; the tag counts claims and survives FREE.  R: any (acquire) */
    uint64_t order;      /* place in the ready queue; truth */
    int64_t due; /* CLOCK_MONOTONIC; truth.  DEFERRED: when it is ready; IN_FLIGHT: its deadline;
                  * in a backlog: until when it is to be deferred, or 0; READY: nothing */
    int64_t delivered_ns; /* CLOCK_MONOTONIC; truth */
    uint32_t message;     /* ref; truth */
    uint32_t channel;     /* index; truth */
    union {
        struct {
            uint32_t prev, next; /* ready list, or the consumer's in-flight list; derived */
        };
        struct { /* HELD: the generations of its consumer, and of `holder`; truth */
            uint32_t consumer_generation, holder_generation;
        };
    };
    uint32_t of_message; /* the next delivery of the message; derived, but for STAGED */
    uint32_t timed;      /* place in the channel's timed set, + 1; 0: not in it; derived */
    uint32_t claim;      /* number of this claim of its consumer's; truth while it is in flight */
    uint16_t
        timed_reserved; /* entries of the channel's timed set that are reserved for it; derived */
    uint16_t holder;    /* HELD: the slot of the prepared transaction; truth */
};
_Static_assert(sizeof(struct pn_delivery) == PN_DELIVERY_CELL, "one cache line");
_Static_assert(offsetof(struct pn_delivery, timed) == PN_TIMED_OFFSET, "timedset.c");

/* ---- topics, channels, consumers ------------------------------------------------------------- */

enum pn_record_state {
    PN_RECORD_FREE = 0,
    PN_RECORD_USED = 1,
    PN_RECORD_DELETED = 2 /* what it holds is being swept */
};

/* What is published without it, and may be changed meanwhile (topic/settings.c); 0: none. */
struct pn_topic_limits {
    int64_t default_ttl;
    uint64_t max_memory;
    uint64_t max_disk_bytes;
};

/* Of consumers that leave it to their channel.  What is not `given` is zero. */
struct pn_channel_defaults {
    uint32_t given; /* enum pn_channel_option */
    uint32_t max_attempts, dead_letter_len, unused;
    int64_t msg_timeout;
    char dead_letter[64];
};

/* All of it truth but where noted.  `state` is stored last. */
struct pn_topic {
    pn_atomic_u32 state;
    uint32_t generation; /* counts the uses of this record */
    uint32_t dboid, name_len;
    char name[64];
    uint32_t paused, ephemeral, durable, fsync, overflow;
    uint32_t first_channel, nchannels; /* with a name; derived */
    uint32_t oldest, newest;           /* messages; derived */
    uint32_t messages, firm; /* LIVE ones; of them not only in ephemeral channels; derived */
    uint32_t staged;         /* PREPARED ones, and those of a commit on its way; derived */
    uint32_t refilling;      /* more on disk, or in its backlog, could be moved at once; derived */
    uint64_t max_depth;
    uint64_t message_count, message_bytes, dropped, expired;
    uint64_t disk_staged; /* where its queue on disk ends after the commit on its way; derived */
    uint64_t buried;      /* messages in that queue with a LIVE tombstone; derived */
    /* The record of that number did not come back for lack of room, it has so many bytes, and it
     * expires then, or INT64_MAX; derived */
    uint64_t stuck_seq;
    int64_t stuck_until;
    uint32_t stuck_bytes;
    /* What can be dropped is looked for from here, of those that only ephemeral channels have from
     * [1]; what came back stands up to `back_last`, then comes `beyond` (topic/frontier.c); 0: not
     * known, or none; derived */
    uint32_t passed[2], back_last, beyond;
    uint32_t touched;         /* by the commit on its way; derived */
    struct pn_diskqueue disk; /* truth, but for what is staged; max_file 0: never used */
    struct pn_diskqueue rest; /* the same, of what was given to channels that rest (topic/rest.c) */
    uint64_t rest_buried;     /* records there with a LIVE tombstone; derived */
    uint64_t rest_lost;       /* records there that were found damaged, */
    uint64_t rest_lost_end;   /* counted up to here */
    uint64_t rest_given;      /* records below may name the channels that get them; truth */
    struct pn_topic_limits limits[2];
    pn_atomic_u32 limits_now; /* which of the two counts: the one store that changes them */
    uint32_t unsorted;        /* enum pn_sorting; derived */
    /* Deferred messages that left memory (topic/later.c): truth, but for what is staged; buried
     * records of it; the turn that is being made ends at `later_turn`, 0: none is; the next begins
     * at `later_next`, none before `later_pause`; what is due so much later comes back in it.  All
     * of it derived but the queue; `later_recount`: channels are counted again; `later_stuck`:
     * what is due had no room for so many bytes. */
    struct pn_diskqueue later;
    uint64_t later_buried, later_turn;
    int64_t later_next, later_pause, later_window, later_began;
    uint32_t later_refused, later_recount, later_stuck, later_pad;
    uint64_t bytes; /* of headers and bodies of LIVE messages; derived */
};

/* The list of a topic's messages by their ids; MISSED: what can be dropped may stand before the
 * frontier. */
enum pn_sorting { PN_SORTED = 0, PN_UNSORTED = 1, PN_UNSORTED_MISSED = 2 };

enum pn_later_recount { PN_LATER_COUNTED = 0, PN_LATER_TO_COUNT = 1, PN_LATER_COUNTING = 2 };

/* From where on a channel reads what it has on disk. */
struct pn_rest_cursor {
    uint64_t file, at, seq, sum;
    uint64_t others; /* records from there on that are for other channels only */
};

struct pn_topic_channel {
    pn_atomic_u32 state;
    uint32_t generation;
    uint32_t topic, topic_generation;
    uint32_t name_len; /* 0: a backlog */
    char name[64];
    pn_atomic_u32 paused; /* W: holder.  R: a consumer's process, which has something ahead */
    uint32_t ephemeral, max_consumers;
    uint64_t next_order;      /* never less than any order + 1; truth */
    uint64_t discarded_below; /* what has a smaller order is void: empty() */
    uint64_t message_count, requeued, timed_out, finished, dead_lettered, dropped, expired;
    /* It rests from there on: rest_cursor[rests - 1]; 0: it does not.  The one store of `rests`
     * moves it (topic/rest.c). */
    pn_atomic_u32 rests;
    pn_atomic_u32 defaults_now; /* which of the two counts: the one store that changes them */
    struct pn_channel_defaults defaults[2];
    struct pn_rest_cursor rest_cursor[2];
    uint64_t later;       /* it has so many in its topic's `later`; a death may make it inexact */
    uint64_t later_again; /* the same, while it is counted */
    /* from here on derived */
    uint64_t bytes;      /* of messages that it has in memory, about: pn_message_cost() */
    uint64_t rest_stuck; /* bytes of the record at its cursor, which had no room; 0: not known */
    uint32_t later_look, later_pad; /* of its timed set so many were looked at (topic/later.c) */
    uint64_t swept_below;           /* nothing with a smaller order is in any list */
    uint32_t sibling;               /* the topic's next channel */
    uint32_t first, last;           /* ready */
    uint32_t ready, deferred, in_flight, held; /* how many */
    uint32_t staged; /* deliveries of messages that are not LIVE yet, none of the above */
    uint32_t first_consumer, consumers, samplers;
    uint32_t waiting, notified; /* consumers; of those that wait, with room */
    uint32_t leaving;           /* consumers; while there is one, no message is claimed */
    uint32_t throttled;         /* consumers */
    uint32_t histogram;         /* page, 0: none yet (topic/e2e.c) */
    int64_t next_deadline;      /* no deadline of a consumer's is earlier; INT64_MAX */
    int64_t histogram_since;
    struct pn_timedset timed;
};

/*
 * A message in the queue on disk of a topic that is not to come back (topic/cancel.c).  `state` is
 * the truth of whether it is there; it is stored last.  LIVE, and the topic is still of that
 * generation, and its queue has not passed `seq`: the message does not exist.
 */
enum pn_tombstone_state {
    PN_TOMB_FREE = 0,
    PN_TOMB_STAGED = 1,  /* of a commit by the holder of the lock: dies with it */
    PN_TOMB_LIVE = 2,    /* the message is cancelled */
    PN_TOMB_PREPARED = 3 /* kept for a prepared transaction: lives as long as its slot */
};
struct pn_tombstone {
    pn_atomic_u32 state;
    uint32_t topic, generation;       /* index */
    uint32_t owner, owner_generation; /* PREPARED: whose */
    uint32_t pad;
    uint64_t seq; /* of its record */
};
#define PN_TOMBSTONES 2048U

/* A copy in memory that a cancel ends.  Its cell may hold another copy of that message by the time
 * of the redo; the place of the first delivery in its channel is no other's. */
struct pn_ended {
    uint64_t id, order;
    uint32_t message, channel;
};

enum pn_consumer_wait {
    PN_CONSUMER_BUSY = 0,
    PN_CONSUMER_WAITING = 1,  /* it sleeps, and has room */
    PN_CONSUMER_BLOCKED = 2,  /* it sleeps, and has as much in flight as it may */
    PN_CONSUMER_NOTIFIED = 3, /* it slept and was woken; it has not come yet */
    PN_CONSUMER_LEAVING = 4,  /* a part of what it had in flight went back, the rest is to */
    PN_CONSUMER_THROTTLED = 5 /* it sleeps, and leaves what is ready to others (topic/waiting.c) */
};

struct pn_consumer_slot {
    pn_atomic_u32 state; /* FREE or USED; truth */
    uint32_t generation;
    uint32_t channel, channel_generation; /* truth */
    uint32_t slot, slot_generation;       /* whose it is; truth */
    int32_t pid;
    uint32_t max_in_flight, max_attempts, sample_rate; /* truth */
    uint32_t level; /* of max_in_flight, at present (RDY); truth */
    uint32_t dead_letter_len;
    uint32_t fallback; /* enum pn_channel_option: the channel's value, if any, comes first; truth */
    pn_atomic_u32
        inside; /* it sleeps in a call; 0: only its descriptor waits.  W: holder.  R: any */
    int64_t msg_timeout, max_msg_timeout; /* truth */
    char dead_letter[64];
    uint64_t delivered, finished, requeued, timed_out;
    /* W: holder.  R: the consumer's process, its signal handler too (acquire) */
    pn_atomic_u32 wait; /* enum pn_consumer_wait; truth */
    uint32_t in_flight; /* without HELD ones; derived */
    int64_t armed;      /* until when it sleeps; CLOCK_MONOTONIC */
    /* Number of the last claim that the program has seen; above it, the consumer's generation.  W:
     * the consumer's process, without the lock and so by CAS; holder for it.  R: holder: what the
     * program never saw is not counted in attempts. */
    pn_atomic_u64 handed;
    pn_atomic_u64 notified_at;
    int64_t alive;        /* when it fetched, or was handed something late; CLOCK_MONOTONIC */
    uint32_t claims;      /* number of its last claim; truth */
    uint32_t first, last; /* in flight; derived */
    uint32_t next, prev;  /* the channel's consumers; derived */
    uint32_t cursor;      /* sampling: it has passed over all ready ones up to here; derived */
};

/* `handed` of a consumer of that generation, with that claim. */
static inline uint64_t pn_handed(uint32_t generation, uint32_t claim)
{
    return (uint64_t) generation << 32 | claim;
}

enum pn_redo_rest {
    PN_REDO_CURSORS = 1, /* what `disk` says is of the channels that `messages` has deliveries of */
    PN_REDO_REST = 2,    /* what `spill` says */
    PN_REDO_FROM_LATER = 4, /* what `disk` says is of the topic's `later` */
    PN_REDO_TO_LATER = 8,   /* what `spill` says */
    PN_REDO_AGAIN = 16      /* it is the same record: its tombstone goes with it */
};

/* What is done together, by the store of `valid`; recovery does it again (recover_topics.c) */
struct pn_topic_redo {
    pn_atomic_u32 valid;
    uint32_t messages; /* chain of STAGED ones: to be LIVE */
    uint32_t delivery; /* to be FREE, if its state is still `expected`; 0: none */
    /* Of that topic (index + 1) the queue on disk moves past a record; 0: of none */
    uint32_t disk;
    uint64_t expected;
    uint64_t disk_seq, disk_sum, disk_file, disk_at;
    /* Of that topic (index + 1) the queue on disk goes on to `spill_seq`; 0: of none */
    uint32_t spill;
    uint32_t rest; /* enum pn_redo_rest: which of its queues that is of */
    uint64_t spill_seq;
    /* with PN_REDO_TO_LATER: this message of that id is no more in memory; 0: none */
    uint32_t gone, gone_pad;
    uint64_t gone_id;
    /* messages with ids from void_first on, so many, do not exist: they are being published, all
     * together, by the store of 0 (message.c 2) */
    uint64_t void_first;
    pn_atomic_u64 void_n;
};

/* A list that is being sorted; a step goes on where the last one stopped (rebuild_topics.c 4). */
struct pn_topic_sort {
    uint32_t doing; /* enum */
    uint32_t rest;  /* not looked at yet */
    uint32_t one, level;
    uint32_t a, b, first, tail; /* being merged, and what has been */
    uint64_t moves;
    uint32_t part[32]; /* sorted lists of 1, 2, 4 ... */
};

/* How far the rebuild of closed topics has come.  W: holder */
struct pn_topic_repair {
    uint32_t phase;  /* enum, in the order in which they are done */
    uint32_t cursor; /* of the phase: a page, or a row */
    uint32_t kind;   /* of what it is that row */
    uint32_t most;   /* units of work in one hold of the lock, of all there ever were */
    uint64_t steps;  /* of all rebuilds */
    uint64_t rebuilds;
    int64_t helped_at; /* the last step of a process that wanted topics; CLOCK_MONOTONIC */
    pn_atomic_u32 handed_next, pad; /* the consumer from which on the next are woken.  W: any */
    struct pn_topic_sort sort;
};

struct pn_topic_control {
    pn_atomic_u64 next_id; /* W: any (an add) */
    uint32_t deleted;      /* records that are DELETED, or more */
    uint32_t prepared;     /* what prepared transactions keep, or more; derived */
    uint32_t topic_hint, channel_hint, consumer_hint; /* none below is free; derived */
    uint32_t topic_end;     /* no topic was ever made from here on; truth */
    uint32_t seed;          /* of the random choice of a consumer */
    uint32_t spilled;       /* 0: no topic has anything on disk */
    uint32_t log_ready;     /* `log` is that of this segment's durable topics */
    uint32_t log_behind;    /* it has to be written again (topic/durable.c) */
    uint32_t sweeping;      /* 0: nothing that was deleted or emptied is to be freed; derived */
    uint32_t tombstone_end; /* from here on all are FREE; derived */
    uint32_t refill_next;   /* that topic is looked at first; derived */
    uint32_t pad;
    struct pn_topiclog log;
    struct pn_topic_redo redo;
    struct pn_topic_repair repair;
    struct pn_arena_control arena;
    struct pn_tombstone tombstone[PN_TOMBSTONES];
};

#endif
