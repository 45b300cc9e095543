/*
 * topic_model.h - topics and channels in arrays that are searched: what the engine promises, with
 * nothing of how (fuzz_topics.c).
 *
 * Things that are due happen at the next look at their channel, as in the engine; everything else
 * is exact at any time.
 */
#ifndef PN_FUZZ_TOPIC_MODEL_H
#define PN_FUZZ_TOPIC_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "pynotify.h"

enum {
    TM_TOPICS = 4,
    TM_DEAD_LETTERS = 2, /* the topic for them */
    TM_DEEP = 3,         /* one of few messages in memory, and the others on disk */
    TM_CHANNELS = 3,     /* of a topic; the last one is ephemeral */
    TM_OWN = 3,          /* the topic's own queue */
    TM_CONSUMERS = 4,
    TM_MESSAGES = 400,
    TM_DELIVERIES = 1600,
    TM_AHEAD = 64,
    TM_ON_DISK = 600, /* messages of a topic */
    TM_STEPS = 256    /* of them come back, or are passed, at the end of one operation */
};

enum tm_kind {
    TM_NONE,
    TM_READY,
    TM_DEFERRED,
    TM_IN_FLIGHT,
    TM_HELD,  /* answered by a prepared transaction */
    TM_STAGED /* of a message that is not published yet */
};

struct tm_message {
    bool used, staged;
    uint64_t generation; /* of its topic */
    uint64_t id, number; /* number: in the order of publishing */
    uint64_t dead;       /* the id of which it is the dead letter, 0: none */
    uint32_t len, headers;
    uint8_t content;
    int topic;
    int64_t expires; /* 0: never */
};

struct tm_delivery {
    enum tm_kind kind, then; /* then: what it becomes, of a staged one */
    bool emptied, gone;      /* its channel was, while it was held */
    int message, topic, channel;
    uint64_t order;
    int64_t due; /* until it is ready, or its deadline; in the own queue: until it is deferred */
    uint32_t attempts;
    int consumer;
    uint64_t opened; /* which consumer that was */
    uint64_t claim;  /* of all that there ever were */
    uint32_t number; /* of its consumer's claims */
    uint64_t flight; /* order of equal deadlines */
    int64_t delivered;
};

struct tm_channel {
    bool exists, paused;
    uint64_t next_order;
    uint64_t message_count, requeued, timed_out, finished, dead_lettered, dropped, expired;
};

/* A message on disk: what publishing it was told, and when. */
struct tm_spilled {
    uint64_t id;
    uint32_t len, headers;
    uint8_t content;
    int64_t since, delay, ttl;
    bool buried, burying; /* cancelled; by the transaction that commits */
};

struct tm_topic {
    bool exists, paused, ephemeral;
    bool spilling;  /* so does the transaction that commits */
    bool refilling; /* more may come back than did */
    uint32_t ndisk;
    struct tm_spilled disk[TM_ON_DISK]; /* the oldest first */
    uint64_t generation;                /* counts the times it was made */
    uint32_t overflow;
    uint64_t max_depth;
    uint64_t message_count, message_bytes, dropped, expired;
    struct tm_channel channel[TM_CHANNELS + 1];
};

struct tm_consumer {
    bool open, attached; /* attached: its channel is still there */
    int topic, channel;
    uint64_t opened;
    uint32_t max_in_flight, level, max_attempts, sample_rate;
    uint64_t key; /* what pn_is_sampled() knows it by */
    int64_t msg_timeout, max_msg_timeout;
    bool dead_letter;
    uint32_t claims, handed;
    struct {
        int delivery;
        uint64_t claim;
    } ahead[TM_AHEAD];
    uint32_t nahead, at;
    int64_t fetched_at, alive;
    uint64_t delivered, finished, requeued, timed_out;
};

/* A statement of an open transaction. */
struct tm_op {
    enum { TM_PUBLISH, TM_ANSWER, TM_CANCEL } kind;
    int topic, channel;
    uint64_t generation, id, claim;
    uint32_t len, headers;
    uint8_t content;
    int64_t delay, ttl;
    int answer;
    int message, delivery; /* found or staged when it commits or prepares; -1: none */
    bool spilled;          /* staged on disk */
    bool on_disk, buries;  /* the one to cancel was there at the call; is there at the commit */
    enum { TM_END, TM_BACK, TM_DEAD } outcome;
    uint64_t order;
};

enum { TM_OPS = 40 };

struct tm_txn {
    bool open, prepared;
    int nops, level, mark[4];
    struct tm_op op[TM_OPS];
};

struct topic_model {
    int64_t now;
    uint64_t number, claims, flights, opened, next_id;
    struct tm_topic topic[TM_TOPICS];
    struct tm_message message[TM_MESSAGES];
    struct tm_delivery delivery[TM_DELIVERIES];
    struct tm_consumer consumer[TM_CONSUMERS];
};

/* What is published. */
struct tm_publish {
    int topic;
    uint32_t n;
    const uint32_t *lens;
    uint32_t headers;
    uint8_t content; /* of the first one; the next has one more */
    int64_t delay, ttl;
    uint64_t dead;
    uint64_t id;   /* of the first one */
    int64_t since; /* of what was on disk: from when delay and ttl count; 0: now */
};

bool tm_has_room(const struct topic_model *m);
/* Whether it is a consumer of the channel, and the channel is still there for it. */
bool tm_is_member(const struct tm_consumer *c, int topic, int channel);
uint32_t tm_channels_of(const struct topic_model *m, int topic);
/* Its ids are the next ones.  0 or -PN_ETOPICFULL */
int tm_publish(struct topic_model *m, struct tm_publish *p);
void tm_pump(struct topic_model *m, int topic);
void tm_tick(struct topic_model *m, int topic, int channel);
/* One delivery in flight, whose deadline is over: its answer came too late. */
void tm_time_out(struct topic_model *m, int delivery);
bool tm_cancel(struct topic_model *m, int topic, uint64_t id);

/* Consumers (topic_consumer_model.c). */
/* Index of the delivery that it gets, -1: nothing, -2: the channel was deleted. */
int tm_get(struct topic_model *m, int consumer);
/* The delivery of a claim if it is in flight with it; else the error in *error. */
int tm_find(const struct topic_model *m, uint64_t id, int topic, int channel, uint64_t claim,
            int *error);
void tm_answer(struct topic_model *m, int delivery, int answer, int64_t delay);
void tm_level(struct topic_model *m, int consumer, int level);
void tm_open_consumer(struct topic_model *m, int consumer);
void tm_close_consumer(struct topic_model *m, int consumer);

void tm_open_topic(struct topic_model *m, int topic, uint32_t overflow, uint64_t max_depth);
void tm_open_channel(struct topic_model *m, int topic, int channel);
void tm_empty(struct topic_model *m, int topic, int channel);
void tm_delete_channel(struct topic_model *m, int topic, int channel);
void tm_delete_topic(struct topic_model *m, int topic);

/* Transactions (topic_txn_model.c); 0 or what the engine must return. */
int tm_prepare(struct topic_model *m, struct tm_txn *t);
int tm_commit(struct topic_model *m, struct tm_txn *t);
void tm_abort(struct topic_model *m, struct tm_txn *t);

/* Pieces of the above, for transactions. */
int tm_admit(struct topic_model *m, int topic, uint64_t n, uint64_t *skip, uint64_t *keep);
int tm_stage(struct topic_model *m, const struct tm_publish *p, uint32_t i, bool keeps);
void tm_go_live(struct topic_model *m, int message);
void tm_end(struct topic_model *m, int delivery);
void tm_back(struct topic_model *m, int delivery, bool head, int64_t due, uint32_t attempts);
int tm_find_deferred(const struct topic_model *m, int topic, uint64_t id);
void tm_discard(struct topic_model *m, int message, bool count);

/* Pieces for consumers. */
struct tm_channel *tm_channel_of(struct topic_model *m, const struct tm_delivery *d);
bool tm_is_ephemeral(int channel);
bool tm_has_expired(const struct topic_model *m, const struct tm_delivery *d);
/* Of those of that order or a later one; -1: none. */
int tm_first_ready(const struct topic_model *m, int topic, int channel, uint64_t from);
void tm_put_off(struct topic_model *m, struct tm_delivery *d, int64_t due);
/* In flight no longer, without an answer. */
void tm_come_back(struct topic_model *m, int delivery, bool head);
void tm_dead_letter(struct topic_model *m, int delivery);
/* The first in flight with a consumer, or the last; -1: none. */
int tm_flying(const struct topic_model *m, int consumer, bool last);

/* What is on disk (topic_disk_model.c). */
bool tm_may_spill(const struct topic_model *m, int topic);
/* Do the next n go there? */
bool tm_spills(const struct topic_model *m, int topic, uint64_t n);
void tm_spill(struct topic_model *m, const struct tm_publish *p, uint32_t i);
/* An operation ends: what there is room for comes back, of all topics. */
void tm_refill(struct topic_model *m);
/* Messages that are not cancelled. */
uint32_t tm_on_disk(const struct topic_model *m, int topic);
/* One that is deferred; NULL: there is none.  A commit does not ask whether it has expired. */
struct tm_spilled *tm_find_spilled(struct topic_model *m, int topic, uint64_t id, bool commits);

uint32_t tm_count(const struct topic_model *m, int topic, int channel, enum tm_kind kind);
bool tm_only_ephemeral(const struct topic_model *m, int topic);
uint64_t tm_firm_messages(const struct topic_model *m, int topic);
uint32_t tm_unfinished(const struct topic_model *m, int topic);
uint32_t tm_consumers(const struct topic_model *m, int topic, int channel);

#endif
