/* tables.c - the tables of topics and of their channels (topic.c). */
#include "topic/tables.h"

#include <errno.h>
#include <string.h>

#include "backend/generation.h"
#include "base/crashpoint.h"
#include "segment/arena_share.h"
#include "segment/lock.h"
#include "topic/area.h"
#include "topic/notes.h"
#include "topic/settings.h"

enum { PN_DEAD_CHAIN = 32 };

static const char ephemeral_suffix[] = "#ephemeral";

/* ---- names, references ----------------------------------------------------------------------- */

static bool is_ephemeral(const char *name, size_t len)
{
    size_t n = sizeof ephemeral_suffix - 1;
    return len > n && memcmp(name + len - n, ephemeral_suffix, n) == 0;
}

int pn_topic_check_name(const char *what, const char *name, size_t len)
{
    size_t plain = is_ephemeral(name, len) ? len - (sizeof ephemeral_suffix - 1) : len;
    bool good = len >= 1 && len <= PN_TOPIC_NAME_MAX;
    for (size_t i = 0; good && i < plain; i++)
        good = (name[i] >= 'a' && name[i] <= 'z') || (name[i] >= 'A' && name[i] <= 'Z') ||
               (name[i] >= '0' && name[i] <= '9') || name[i] == '.' || name[i] == '_' ||
               name[i] == '-';
    if (good)
        return 0;
    return pn_fail(PN_ETOPICNAME,
                   "bad %s name\n"
                   "A name has 1 to %u of A-Z a-z 0-9 . _ -, and may end in %s.",
                   what, PN_TOPIC_NAME_MAX, ephemeral_suffix);
}

static int deleted(const char *what)
{
    return pn_fail(PN_ETOPICDELETED, "the %s was deleted\nOpen it again to make a new one.", what);
}

struct pn_topic *pn_topic_named_locked(const struct pn_segment *seg, pn_ref ref)
{
    pn_assert_topics_held(seg);
    uint32_t index = (uint32_t) ref - 1;
    if (pn_topics_ready(seg) && index < seg->topics.max_topics) {
        struct pn_topic *t = &seg->topics.topic[index];
        if (pn_load_relaxed(&t->state) == PN_RECORD_USED && t->generation == ref >> 32)
            return t;
    }
    deleted("topic");
    return NULL;
}

struct pn_topic *pn_topic_resolve_locked(struct pn_conn *conn, pn_ref ref)
{
    pn_assert_held(conn->seg);
    struct pn_topic *t = pn_topic_named_locked(conn->seg, ref);
    if (t == NULL || t->dboid == conn->dboid)
        return t;
    deleted("topic");
    return NULL;
}

struct pn_topic_channel *pn_topic_channel_named_locked(const struct pn_segment *seg, pn_ref ref)
{
    pn_assert_topics_held(seg);
    uint32_t index = (uint32_t) ref - 1;
    const struct pn_topics *t = &seg->topics;
    if (pn_topics_ready(seg) && index < t->max_channels && index >= t->max_topics) {
        struct pn_topic_channel *ch = &t->channel[index];
        if (pn_load_relaxed(&ch->state) == PN_RECORD_USED && ch->generation == ref >> 32)
            return ch;
    }
    deleted("channel");
    return NULL;
}

struct pn_topic_channel *pn_topic_channel_resolve_locked(struct pn_conn *conn, pn_ref ref)
{
    pn_assert_held(conn->seg);
    struct pn_topic_channel *ch = pn_topic_channel_named_locked(conn->seg, ref);
    if (ch == NULL || pn_topic_of(conn->seg, ch)->dboid == conn->dboid)
        return ch;
    deleted("channel");
    return NULL;
}

/* ---- lists of channels ----------------------------------------------------------------------- */

void pn_topics_link_locked(struct pn_segment *seg)
{
    pn_assert_topics_held(seg);
    struct pn_topics *t = &seg->topics;
    for (uint32_t i = 0; i < t->max_topics; i++)
        t->topic[i].first_channel = t->topic[i].nchannels = 0;
    for (uint32_t i = t->max_channels; i-- > t->max_topics;) {
        struct pn_topic_channel *ch = &t->channel[i];
        struct pn_topic *topic = pn_topic_of(seg, ch);
        if (pn_load_relaxed(&ch->state) != PN_RECORD_USED)
            continue;
        ch->sibling = topic->first_channel;
        topic->first_channel = i + 1;
        topic->nchannels++;
    }
}

struct pn_topic_channel *pn_topic_find_channel(const struct pn_segment *seg,
                                               const struct pn_topic *topic, const char *name,
                                               size_t len)
{
    PN_EACH_CHANNEL (seg, topic, i) {
        struct pn_topic_channel *ch = pn_topic_channel_at(seg, i - 1);
        if (ch->name_len == len && memcmp(ch->name, name, len) == 0)
            return ch;
    }
    return NULL;
}

struct pn_topic *pn_topic_lookup_locked(const struct pn_segment *seg, uint32_t dboid,
                                        const char *name, size_t len)
{
    pn_assert_topics_held(seg);
    for (uint32_t i = 0; i < seg->topics.max_topics; i++) {
        struct pn_topic *t = &seg->topics.topic[i];
        if (pn_load_relaxed(&t->state) == PN_RECORD_USED && t->dboid == dboid &&
            t->name_len == len && memcmp(t->name, name, len) == 0)
            return t;
    }
    return NULL;
}

/* ---- making ---------------------------------------------------------------------------------- */

static void fill_queue(struct pn_topic_channel *ch, uint32_t topic, uint32_t topic_generation,
                       const char *name, size_t len)
{
    uint32_t generation = ch->generation + 1;
    memset((char *) ch + sizeof ch->state, 0, sizeof *ch - sizeof ch->state);
    ch->generation = generation;
    ch->topic = topic;
    ch->topic_generation = topic_generation;
    ch->name_len = (uint32_t) len;
    if (len != 0)
        memcpy(ch->name, name, len);
    ch->ephemeral = len != 0 && is_ephemeral(name, len);
    ch->next_order = 1;
    ch->next_deadline = INT64_MAX;
}

/* From here on it is there, with all that it was set to. */
static void make_queue(struct pn_topic_channel *ch)
{
    PN_CRASH("topic:channel-entry");
    pn_store_release(&ch->state, PN_RECORD_USED);
    PN_CRASH("topic:channel-used");
}

static void set_options(struct pn_topic *t, const pn_topic_options *o)
{
    uint32_t given = o == NULL ? 0 : o->given;
    t->durable = (given & PN_TOPIC_DURABLE) != 0 && o->durable != 0;
    t->fsync = (given & PN_TOPIC_FSYNC) != 0 ? o->fsync : PN_FSYNC_INTERVAL;
    t->overflow = (given & PN_TOPIC_OVERFLOW) != 0 ? o->overflow : PN_OVERFLOW_DISK;
    t->max_depth = (given & PN_TOPIC_MAX_DEPTH) != 0 ? o->max_depth : 0;
    t->limits[0].default_ttl = (given & PN_TOPIC_DEFAULT_TTL) != 0 ? o->default_ttl_ns : 0;
    t->limits[0].max_memory = (given & PN_TOPIC_MAX_MEMORY) != 0 ? o->max_memory : 0;
    t->limits[0].max_disk_bytes = (given & PN_TOPIC_MAX_DISK_BYTES) != 0 ? o->max_disk_bytes : 0;
}

struct pn_topic *pn_topic_make_locked(struct pn_segment *seg, uint32_t dboid, const char *name,
                                      size_t len, const pn_topic_options *options)
{
    pn_assert_topics_held(seg);
    struct pn_topics *all = &seg->topics;
    struct pn_topic *t = pn_topic_lookup_locked(seg, dboid, name, len);
    uint32_t i = all->ctl->topic_hint;
    if (t != NULL)
        return t;
    while (i < all->max_topics && pn_load_relaxed(&all->topic[i].state) != PN_RECORD_FREE)
        i++;
    if (i >= all->max_topics || !pn_keep_database_locked(seg, dboid))
        return NULL;
    t = &all->topic[i];
    uint32_t generation = t->generation + 1;
    memset((char *) t + sizeof t->state, 0, sizeof *t - sizeof t->state);
    t->generation = generation;
    t->dboid = dboid;
    t->name_len = (uint32_t) len;
    memcpy(t->name, name, len);
    t->ephemeral = is_ephemeral(name, len);
    set_options(t, options);
    if (i >= all->ctl->topic_end)
        all->ctl->topic_end = i + 1;
    PN_CRASH("topic:entry");
    fill_queue(&all->channel[i], i, generation, NULL, 0);
    make_queue(&all->channel[i]);
    pn_store_release(&t->state, PN_RECORD_USED);
    PN_CRASH("topic:used");
    pn_arena_count_locked(&all->arena, i, true);
    all->ctl->topic_hint = i + 1;
    pn_durable_note_topic_locked(seg, t);
    return t;
}

struct pn_topic_channel *pn_topic_channel_make_locked(struct pn_segment *seg,
                                                      struct pn_topic *topic, const char *name,
                                                      size_t len, uint32_t max_consumers,
                                                      const pn_channel_options *o)
{
    pn_assert_topics_held(seg);
    struct pn_topics *all = &seg->topics;
    struct pn_topic_channel *ch = pn_topic_find_channel(seg, topic, name, len);
    uint32_t i = all->ctl->channel_hint;
    if (ch != NULL)
        return ch;
    while (i < all->max_channels && pn_load_relaxed(&all->channel[i].state) != PN_RECORD_FREE)
        i++;
    if (i >= all->max_channels)
        return NULL;
    ch = &all->channel[i];
    fill_queue(ch, (uint32_t) (topic - all->topic), topic->generation, name, len);
    ch->max_consumers = max_consumers;
    if (o != NULL)
        pn_channel_settings_store_locked(seg, ch, o);
    make_queue(ch);
    all->ctl->channel_hint = i + 1;
    pn_topics_link_locked(seg);
    return ch;
}

/* ---- dead letters that would come back (topic.c 6) ------------------------------------------- */

static bool is_named(const struct pn_topic *t, const char *name, size_t len)
{
    return t->name_len == len && memcmp(t->name, name, len) == 0;
}

static int comes_back(const struct pn_topic *from, const struct pn_topic *by,
                      const struct pn_topic_channel *ch)
{
    return pn_fail(PN_ETOPICOPTIONS,
                   "dead letters of topic \"%.*s\" would come back to it, through channel "
                   "\"%.*s\" of topic \"%.*s\"\n"
                   "Each round would be a new message, without end: name another topic, or change "
                   "dead_letter of that channel first.",
                   (int) from->name_len, from->name, (int) ch->name_len, ch->name,
                   (int) by->name_len, by->name);
}

/* The topics that dead letters of channels of `at` go to; each is put into `found` once. */
static int follow(const struct pn_segment *seg, const struct pn_topic *from,
                  const struct pn_topic *at, const struct pn_topic **found, uint32_t *n)
{
    PN_EACH_CHANNEL (seg, at, i) {
        const struct pn_topic_channel *ch = pn_topic_channel_at(seg, i - 1);
        const struct pn_channel_defaults *d = pn_channel_defaults(ch);
        uint32_t len = d->dead_letter_len <= PN_TOPIC_NAME_MAX ? d->dead_letter_len : 0, k = 0;
        if (len == 0)
            continue;
        if (is_named(from, d->dead_letter, len))
            return comes_back(from, at, ch);
        const struct pn_topic *to = pn_topic_lookup_locked(seg, from->dboid, d->dead_letter, len);
        while (to != NULL && k < *n && found[k] != to)
            k++;
        if (to == NULL || k < *n)
            continue;
        if (*n == PN_DEAD_CHAIN)
            return pn_fail(PN_ETOPICOPTIONS,
                           "dead letters of topic \"%.*s\" would go through more than %d topics\n"
                           "Let some of their channels name the last topic of the chain.",
                           (int) from->name_len, from->name, PN_DEAD_CHAIN);
        found[(*n)++] = to;
    }
    return 0;
}

int pn_dead_letter_check_locked(const struct pn_segment *seg, const struct pn_topic *from,
                                const char *to, size_t len)
{
    pn_assert_topics_held(seg);
    const struct pn_topic *found[PN_DEAD_CHAIN];
    uint32_t n = 0;
    int rc = 0;
    if (to == NULL)
        return 0;
    if (is_named(from, to, len))
        return pn_fail(PN_ETOPICOPTIONS,
                       "topic \"%.*s\" cannot be its own dead-letter topic\n"
                       "What is given up would come back to it as a new message, without end: name "
                       "another topic, or requeue with a delay and max_attempts 0.",
                       (int) from->name_len, from->name);
    found[0] = pn_topic_lookup_locked(seg, from->dboid, to, len);
    n = found[0] != NULL;
    for (uint32_t i = 0; i < n && rc == 0; i++)
        rc = follow(seg, from, found[i], found, &n);
    return rc;
}
