/*
 * settings.h - what a topic or a channel was told to do with messages and consumers that do not say
 * it themselves; settings.c has the model.
 *
 * Everything needs the writer lock.
 */
#ifndef PN_TOPIC_SETTINGS_H
#define PN_TOPIC_SETTINGS_H

#include "topic/area.h"

static inline const struct pn_topic_limits *pn_topic_limits(const struct pn_topic *t)
{
    return &t->limits[pn_load_relaxed(&t->limits_now) & 1];
}
static inline const struct pn_channel_defaults *
pn_channel_defaults(const struct pn_topic_channel *ch)
{
    return &ch->defaults[pn_load_relaxed(&ch->defaults_now) & 1];
}

/* Pages of topic_memory that the topic may have; 0: as its share allows. */
static inline uint64_t pn_topic_most_pages(const struct pn_topic *t)
{
    uint64_t bytes = pn_topic_limits(t)->max_memory;
    return bytes / PN_ARENA_PAGE + (bytes != 0 && bytes < PN_ARENA_PAGE);
}
/* Bytes that it has. */
static inline uint64_t pn_topic_memory(const struct pn_segment *seg, const struct pn_topic *t)
{
    return (uint64_t) seg->topics.arena.owner[t - seg->topics.topic].pages * PN_ARENA_PAGE;
}

/* Of a message that is published with that time to live: 0: it says nothing; below 0: for ever. */
static inline int64_t pn_topic_ttl(const struct pn_topic *t, int64_t asked)
{
    return asked != 0 ? asked : pn_topic_limits(t)->default_ttl;
}

/* When a message that this consumer gets is given up, and where it goes then. */
struct pn_giving_up {
    uint32_t max_attempts; /* 0: never */
    uint32_t dead_letter_len;
    const char *dead_letter;
};
struct pn_giving_up pn_giving_up_of(const struct pn_topic_channel *ch,
                                    const struct pn_consumer_slot *c);

/* 0, or a negative error with a sentence. */
int pn_topic_settings_check(const pn_topic_options *o);
int pn_channel_settings_check(const pn_channel_options *o);
/* NULL: what is given in `o` is what there is; else the name of the first that is not. */
const char *pn_topic_settings_differ(const struct pn_topic *t, const pn_topic_options *o);
const char *pn_channel_settings_differ(const struct pn_topic_channel *ch,
                                       const pn_channel_options *o);
/* What is given is set, all of it or nothing, wherever the caller dies. */
void pn_topic_settings_store_locked(struct pn_segment *seg, struct pn_topic *t,
                                    const pn_topic_options *o);
void pn_channel_settings_store_locked(struct pn_segment *seg, struct pn_topic_channel *ch,
                                      const pn_channel_options *o);

#endif
