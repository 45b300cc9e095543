/*
 * settings.c - limits of topics and defaults of channels, which may change while they are used.
 *
 * 1. They stand twice; the one store of `limits_now`, `defaults_now` says which of the two counts.
 *    So a call that sets several has set all of them or none, wherever its process is killed.
 * 2. A consumer's own value wins.  What it leaves to the channel is not copied into its slot, but
 *    looked up when a message goes back: so a change counts for the consumers that are there, and
 *    for one that has been killed with messages in flight.  Only msg_timeout is copied when it
 *    attaches, since its deliveries are sorted by it (delivery.c).
 */
#include "topic/settings.h"

#include <errno.h>
#include <string.h>

#include "base/crashpoint.h"

#define GIVEN(o, bit) ((o) != NULL && ((o)->given & (bit)) != 0)

/* ---- consumers ------------------------------------------------------------------------------- */

struct pn_giving_up pn_giving_up_of(const struct pn_topic_channel *ch,
                                    const struct pn_consumer_slot *c)
{
    const struct pn_channel_defaults *d = pn_channel_defaults(ch);
    struct pn_giving_up own = {.max_attempts = c->max_attempts,
                               .dead_letter_len = c->dead_letter_len,
                               .dead_letter = c->dead_letter};
    uint32_t from_channel = c->fallback & d->given;
    if ((from_channel & PN_CHANNEL_MAX_ATTEMPTS) != 0)
        own.max_attempts = d->max_attempts;
    if ((from_channel & PN_CHANNEL_DEAD_LETTER) != 0) {
        own.dead_letter_len = d->dead_letter_len;
        own.dead_letter = d->dead_letter;
    }
    return own;
}

/* ---- checking -------------------------------------------------------------------------------- */

int pn_topic_settings_check(const pn_topic_options *o)
{
    if (GIVEN(o, PN_TOPIC_DEFAULT_TTL) && o->default_ttl_ns < 0)
        return pn_fail(EINVAL, "default_ttl must not be negative");
    if (GIVEN(o, PN_TOPIC_MAX_MEMORY) && o->max_memory != 0 && o->max_memory < PN_ARENA_PAGE)
        return pn_fail(EINVAL, "max_memory must be at least %u bytes, or 0", PN_ARENA_PAGE);
    if (GIVEN(o, PN_TOPIC_MAX_DISK_BYTES) && o->max_disk_bytes != 0 &&
        o->max_disk_bytes < PN_ARENA_PAGE)
        return pn_fail(EINVAL, "max_disk_bytes must be at least %u, or 0", PN_ARENA_PAGE);
    return 0;
}

int pn_channel_settings_check(const pn_channel_options *o)
{
    if (GIVEN(o, PN_CHANNEL_MAX_ATTEMPTS) && o->max_attempts > UINT16_MAX)
        return pn_fail(EINVAL, "max_attempts must be at most %u", UINT16_MAX);
    if (GIVEN(o, PN_CHANNEL_MSG_TIMEOUT) && o->msg_timeout_ns < 0)
        return pn_fail(EINVAL, "msg_timeout must be positive");
    return 0;
}

static void merge_topic(struct pn_topic_limits *to, const pn_topic_options *o)
{
    if (GIVEN(o, PN_TOPIC_DEFAULT_TTL))
        to->default_ttl = o->default_ttl_ns;
    if (GIVEN(o, PN_TOPIC_MAX_MEMORY))
        to->max_memory = o->max_memory;
    if (GIVEN(o, PN_TOPIC_MAX_DISK_BYTES))
        to->max_disk_bytes = o->max_disk_bytes;
}

/* A value that there is none of is all zeros. */
static void merge_channel(struct pn_channel_defaults *to, const pn_channel_options *o)
{
    if (GIVEN(o, PN_CHANNEL_MAX_ATTEMPTS)) {
        to->max_attempts = o->max_attempts < 0 ? 0 : (uint32_t) o->max_attempts;
        to->given &= ~(uint32_t) PN_CHANNEL_MAX_ATTEMPTS;
        to->given |= o->max_attempts < 0 ? 0 : PN_CHANNEL_MAX_ATTEMPTS;
    }
    if (GIVEN(o, PN_CHANNEL_MSG_TIMEOUT)) {
        to->msg_timeout = o->msg_timeout_ns;
        to->given &= ~(uint32_t) PN_CHANNEL_MSG_TIMEOUT;
        to->given |= o->msg_timeout_ns == 0 ? 0 : PN_CHANNEL_MSG_TIMEOUT;
    }
    if (GIVEN(o, PN_CHANNEL_DEAD_LETTER)) {
        memset(to->dead_letter, 0, sizeof to->dead_letter);
        to->dead_letter_len = o->dead_letter == NULL ? 0 : (uint32_t) o->dead_letter_len;
        if (to->dead_letter_len != 0)
            memcpy(to->dead_letter, o->dead_letter, to->dead_letter_len);
        to->given &= ~(uint32_t) PN_CHANNEL_DEAD_LETTER;
        to->given |= o->dead_letter == NULL ? 0 : PN_CHANNEL_DEAD_LETTER;
    }
}

const char *pn_topic_settings_differ(const struct pn_topic *t, const pn_topic_options *o)
{
    const struct pn_topic_limits *has = pn_topic_limits(t);
    struct pn_topic_limits asked = *has;
    merge_topic(&asked, o);
    return asked.default_ttl != has->default_ttl         ? "default_ttl"
           : asked.max_memory != has->max_memory         ? "max_memory"
           : asked.max_disk_bytes != has->max_disk_bytes ? "max_disk_bytes"
                                                         : NULL;
}

const char *pn_channel_settings_differ(const struct pn_topic_channel *ch,
                                       const pn_channel_options *o)
{
    const struct pn_channel_defaults *has = pn_channel_defaults(ch);
    struct pn_channel_defaults asked = *has;
    merge_channel(&asked, o);
    uint32_t other = asked.given ^ has->given;
    if ((other & PN_CHANNEL_MAX_ATTEMPTS) != 0 || asked.max_attempts != has->max_attempts)
        return "max_attempts";
    if ((other & PN_CHANNEL_MSG_TIMEOUT) != 0 || asked.msg_timeout != has->msg_timeout)
        return "msg_timeout";
    return (other & PN_CHANNEL_DEAD_LETTER) != 0 || asked.dead_letter_len != has->dead_letter_len ||
                   memcmp(asked.dead_letter, has->dead_letter, sizeof has->dead_letter) != 0
               ? "dead_letter"
               : NULL;
}

/* ---- setting (1) ----------------------------------------------------------------------------- */

void pn_topic_settings_store_locked(struct pn_segment *seg, struct pn_topic *t,
                                    const pn_topic_options *o)
{
    pn_assert_topics_held(seg);
    uint32_t other = (pn_load_relaxed(&t->limits_now) & 1) ^ 1;
    t->limits[other] = *pn_topic_limits(t);
    merge_topic(&t->limits[other], o);
    PN_CRASH("topic:limits");
    pn_store_release(&t->limits_now, other);
    PN_CRASH("topic:limits-set");
}

void pn_channel_settings_store_locked(struct pn_segment *seg, struct pn_topic_channel *ch,
                                      const pn_channel_options *o)
{
    pn_assert_topics_held(seg);
    uint32_t other = (pn_load_relaxed(&ch->defaults_now) & 1) ^ 1;
    ch->defaults[other] = *pn_channel_defaults(ch);
    merge_channel(&ch->defaults[other], o);
    PN_CRASH("topic:defaults");
    pn_store_release(&ch->defaults_now, other);
    PN_CRASH("topic:defaults-set");
}
