/*
 * topic_log_model.c - what the records of a log of topics come to, in the reader's heap
 * (topic_log_model.h).
 */
#define _GNU_SOURCE
#include "files/topic_log_model.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

enum { NAMES = 512 }; /* bytes of names in a record at the most */

int pn_logmodel_no_memory(void)
{
    return pn_fail(ENOMEM, "no memory for reading the log of topics");
}

/* One more element at the end of a vector that grows by doubling; zeroed.  NULL: no memory. */
static void *grow_vector(void *vector, size_t n, size_t size)
{
    void **base = vector;
    if ((n & (n - 1)) == 0) {
        void *more = realloc(*base, (n == 0 ? 1 : 2 * n) * size);
        if (more == NULL)
            return NULL;
        *base = more;
    }
    return memset((char *) *base + n * size, 0, size);
}

/* ---- messages by id ------------------------------------------------------------------------- */

static struct pn_logmodel_message **place_of(const struct pn_logmodel *m, uint64_t id)
{
    struct pn_logmodel_message **p =
        &m->bucket[(id * 0x9e3779b97f4a7c15U) >> 32 & (m->buckets - 1)];
    while (*p != NULL && (*p)->what.id != id)
        p = &(*p)->next;
    return p;
}

struct pn_logmodel_message *pn_logmodel_find(const struct pn_logmodel *m, uint64_t id)
{
    return m->buckets == 0 ? NULL : *place_of(m, id);
}

static int rehash(struct pn_logmodel *m)
{
    struct pn_logmodel more = {.buckets = m->buckets == 0 ? 1024 : 2 * m->buckets};
    more.bucket = calloc(more.buckets, sizeof *more.bucket);
    if (more.bucket == NULL)
        return pn_logmodel_no_memory();
    for (size_t i = 0; i < m->buckets; i++)
        for (struct pn_logmodel_message *msg = m->bucket[i], *next; msg != NULL; msg = next) {
            next = msg->next;
            msg->next = NULL;
            *place_of(&more, msg->what.id) = msg;
        }
    free(m->bucket);
    m->bucket = more.bucket;
    m->buckets = more.buckets;
    return 0;
}

static void forget(struct pn_logmodel *m, struct pn_logmodel_message *msg)
{
    struct pn_logmodel_message **p = place_of(m, msg->what.id);
    *p = msg->next;
    free(msg->delivery);
    free(msg);
    m->messages--;
}

bool pn_logmodel_is_live(const struct pn_logmodel_topic *t, const struct pn_logmodel_delivery *d)
{
    return d->channel != PN_LOGMODEL_NONE && t->channel[d->channel].exists &&
           t->channel[d->channel].emptied == d->emptied;
}

bool pn_logmodel_wants(const struct pn_logmodel *m, const struct pn_logmodel_message *msg)
{
    const struct pn_logmodel_topic *t = &m->topic[msg->topic];
    bool wanted = t->exists && msg->what.fanned_out == 0;
    for (uint32_t i = 0; t->exists && !wanted && i < msg->n; i++)
        wanted = pn_logmodel_is_live(t, &msg->delivery[i]);
    return wanted;
}

/* ---- topics and channels -------------------------------------------------------------------- */

static struct pn_logmodel_topic *topic_of(const struct pn_logmodel *m, uint32_t number)
{
    for (uint32_t i = 0; i < m->topics; i++)
        if (m->topic[i].bound && m->topic[i].exists && m->topic[i].what.topic == number)
            return &m->topic[i];
    return NULL;
}

static uint32_t channel_of(const struct pn_logmodel_topic *t, uint32_t number)
{
    for (uint32_t i = 0; t != NULL && i < t->channels; i++)
        if (t->channel[i].bound && t->channel[i].exists && t->channel[i].what.channel == number)
            return i;
    return PN_LOGMODEL_NONE;
}

static int open_log(struct pn_logmodel *m, const struct pn_log_opened *opened)
{
    if (opened->instance == m->instance)
        return 0;
    m->instance = opened->instance;
    for (uint32_t i = 0; i < m->topics; i++) {
        m->topic[i].bound = false;
        for (uint32_t k = 0; k < m->topic[i].channels; k++)
            m->topic[i].channel[k].bound = false;
    }
    return 0;
}

/* What stands behind the names, of which there may be less, or more. */
static void read_more(void *to, size_t size, const uint8_t *from, size_t left)
{
    memset(to, 0, size);
    memcpy(to, from, left < size ? left : size);
}

static int note_topic(struct pn_logmodel *m, const struct pn_log_topic *what, const uint8_t *names,
                      size_t left)
{
    size_t length = (size_t) what->database_len + what->name_len;
    if (length > left || length > NAMES)
        return 0;
    struct pn_logmodel_topic *t = NULL;
    for (uint32_t i = 0; i < m->topics && t == NULL; i++)
        if (m->topic[i].exists && m->topic[i].what.name_len == what->name_len &&
            m->topic[i].what.database_len == what->database_len &&
            memcmp(m->topic[i].names, names, length) == 0)
            t = &m->topic[i];
    if (t == NULL) {
        t = grow_vector(&m->topic, m->topics, sizeof *t);
        if (t == NULL || (t->names = malloc(length + 1)) == NULL)
            return pn_logmodel_no_memory();
        memcpy(t->names, names, length);
        m->topics++;
    }
    for (uint32_t i = 0; i < m->topics; i++) /* if OPENED of another instance was lost */
        if (m->topic[i].what.topic == what->topic)
            m->topic[i].bound = false;
    t->what = *what;
    read_more(&t->limits, sizeof t->limits, names + length, left - length);
    t->file = m->file;
    t->exists = t->bound = true;
    return 0;
}

static int note_channel(struct pn_logmodel *m, const struct pn_log_channel *what,
                        const uint8_t *name, size_t left)
{
    struct pn_logmodel_topic *t = topic_of(m, what->topic);
    struct pn_logmodel_channel *c = NULL;
    if (t == NULL || what->name_len > left || what->name_len > NAMES)
        return 0;
    for (uint32_t i = 0; i < t->channels && c == NULL; i++)
        if (t->channel[i].exists && t->channel[i].what.name_len == what->name_len &&
            memcmp(t->channel[i].name, name, what->name_len) == 0)
            c = &t->channel[i];
    if (c == NULL) {
        c = grow_vector(&t->channel, t->channels, sizeof *c);
        if (c == NULL || (c->name = malloc(what->name_len + 1)) == NULL)
            return pn_logmodel_no_memory();
        memcpy(c->name, name, what->name_len);
        t->channels++;
    }
    for (uint32_t i = 0; i < t->channels; i++)
        if (t->channel[i].what.channel == what->channel)
            t->channel[i].bound = false;
    c->what = *what;
    read_more(&c->defaults, sizeof c->defaults, name + what->name_len, left - what->name_len);
    c->file = m->file;
    c->exists = c->bound = true;
    return 0;
}

/* ---- what happens to messages --------------------------------------------------------------- */

static int own_it(struct pn_logmodel_topic *t, uint64_t id)
{
    uint64_t *last = grow_vector(&t->own, t->owns, sizeof *last);
    if (last == NULL)
        return pn_logmodel_no_memory();
    *last = id;
    t->owns++;
    return 0;
}

/* To each channel that there is now, or to those of `from`. */
static int give(struct pn_logmodel *m, struct pn_logmodel_message *msg,
                const struct pn_log_delivery *from, uint32_t n)
{
    const struct pn_logmodel_topic *t = &m->topic[msg->topic];
    uint32_t most = from != NULL ? n : t->channels;
    struct pn_logmodel_delivery *d = most == 0 ? NULL : calloc(most, sizeof *d);
    if (most != 0 && d == NULL)
        return pn_logmodel_no_memory();
    free(msg->delivery);
    msg->delivery = d;
    msg->n = 0;
    msg->what.fanned_out = 1;
    for (uint32_t i = 0; i < most; i++) {
        struct pn_logmodel_delivery one = {.channel = i, .due = msg->what.due, .file = m->file};
        if (from != NULL) {
            one.channel = channel_of(t, from[i].channel);
            one.attempts = from[i].attempts;
            one.due = from[i].due;
        }
        if (one.channel == PN_LOGMODEL_NONE || !t->channel[one.channel].exists)
            continue;
        one.emptied = t->channel[one.channel].emptied;
        d[msg->n++] = one;
    }
    return 0;
}

/* To those of `from` as well; what is said of others stays. */
static int give_too(struct pn_logmodel *m, struct pn_logmodel_message *msg,
                    const struct pn_log_delivery *from, uint32_t n)
{
    const struct pn_logmodel_topic *t = &m->topic[msg->topic];
    msg->what.fanned_out = 1;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t channel = channel_of(t, from[i].channel), k = 0;
        while (k < msg->n && msg->delivery[k].channel != channel)
            k++;
        if (channel == PN_LOGMODEL_NONE)
            continue;
        if (k == msg->n) {
            struct pn_logmodel_delivery *more = realloc(msg->delivery, (msg->n + 1) * sizeof *more);
            if (more == NULL)
                return pn_logmodel_no_memory();
            msg->delivery = more;
            msg->n++;
        }
        msg->delivery[k] = (struct pn_logmodel_delivery) {.channel = channel,
                                                          .emptied = t->channel[channel].emptied,
                                                          .attempts = from[i].attempts,
                                                          .due = from[i].due,
                                                          .file = m->file};
    }
    return 0;
}

static int note_message(struct pn_logmodel *m, const struct pn_record_out *record)
{
    struct pn_log_message what;
    memcpy(&what, record->body, sizeof what);
    uint32_t n = record->type == PN_LOG_CARRIED ? what.deliveries : 0;
    struct pn_logmodel_topic *t = topic_of(m, what.topic);
    uint64_t need = sizeof what + (uint64_t) n * sizeof(struct pn_log_delivery) + what.headers_len;
    m->nameless += t == NULL;
    if (t == NULL || need > record->length)
        return 0;
    struct pn_logmodel_message *msg = pn_logmodel_find(m, what.id);
    if (msg == NULL) {
        int rc = m->messages >= m->buckets ? rehash(m) : 0;
        msg = rc == 0 ? calloc(1, sizeof *msg) : NULL;
        if (msg == NULL)
            return rc != 0 ? rc : pn_logmodel_no_memory();
        msg->what.id = what.id;
        *place_of(m, what.id) = msg;
        m->messages++;
    }
    msg->what = what;
    msg->topic = (uint32_t) (t - m->topic);
    msg->file = m->file;
    msg->at = record->at;
    bool too = record->type == PN_LOG_CARRIED && what.fanned_out == PN_LOG_FANNED_TOO;
    msg->n = too ? msg->n : 0;
    if (what.fanned_out == 0)
        return own_it(t, what.id);
    const struct pn_log_delivery *from = (const void *) (record->body + sizeof what);
    int rc = too ? give_too(m, msg, from, n)
                 : give(m, msg, record->type == PN_LOG_CARRIED ? from : NULL, n);
    if (rc == 0 && !pn_logmodel_wants(m, msg))
        forget(m, msg);
    return rc;
}

/* What is still its own is forgotten. */
static void drop_own(struct pn_logmodel *m, struct pn_logmodel_topic *t)
{
    for (size_t i = 0; i < t->owns; i++) {
        struct pn_logmodel_message *msg = pn_logmodel_find(m, t->own[i]);
        if (msg != NULL && &m->topic[msg->topic] == t && msg->what.fanned_out == 0)
            forget(m, msg);
    }
    t->owns = 0;
}

static int note_delivery(struct pn_logmodel *m, uint32_t kind, const struct pn_log_delivery *d)
{
    struct pn_logmodel_topic *t = topic_of(m, d->topic);
    struct pn_logmodel_message *msg = pn_logmodel_find(m, d->id);
    int rc = 0;
    if (t == NULL || msg == NULL || &m->topic[msg->topic] != t)
        return 0;
    if (kind == PN_LOG_CANCELLED) {
        forget(m, msg);
        return 0;
    }
    if (kind == PN_LOG_FANNED_OUT && msg->what.fanned_out == 0)
        rc = give(m, msg, NULL, 0);
    uint32_t channel = channel_of(t, d->channel);
    for (uint32_t i = 0; i < msg->n && kind != PN_LOG_FANNED_OUT; i++) {
        struct pn_logmodel_delivery *mine = &msg->delivery[i];
        if (channel == PN_LOGMODEL_NONE || mine->channel != channel)
            continue;
        mine->attempts = d->attempts;
        mine->due = kind == PN_LOG_REQUEUED ? d->due : 0;
        if (kind == PN_LOG_FINISHED)
            mine->channel = PN_LOGMODEL_NONE;
    }
    if (rc == 0 && !pn_logmodel_wants(m, msg))
        forget(m, msg);
    return rc;
}

/* Topics and channels that go, and what they have. */
static void note_end(struct pn_logmodel *m, uint32_t kind, const struct pn_log_delivery *d)
{
    struct pn_logmodel_topic *t = topic_of(m, d->topic);
    uint32_t channel = channel_of(t, d->channel);
    if (t == NULL)
        return;
    if (kind == PN_LOG_TOPIC_DELETED)
        t->exists = false;
    else if (kind == PN_LOG_EMPTIED && d->channel == PN_LOG_TOPICS_OWN)
        drop_own(m, t);
    else if (channel != PN_LOGMODEL_NONE && kind == PN_LOG_CHANNEL_DELETED)
        t->channel[channel].exists = false;
    else if (channel != PN_LOGMODEL_NONE && kind == PN_LOG_EMPTIED)
        t->channel[channel].emptied++;
}

/* What stands in files before that one, and was not said again, is no more. */
static void drop_before(struct pn_logmodel *m, uint64_t file)
{
    for (uint32_t i = 0; i < m->topics; i++) {
        struct pn_logmodel_topic *t = &m->topic[i];
        t->exists = t->exists && t->file >= file;
        for (uint32_t k = 0; k < t->channels; k++)
            t->channel[k].exists = t->channel[k].exists && t->channel[k].file >= file;
    }
    for (size_t i = 0; i < m->buckets; i++)
        for (struct pn_logmodel_message *msg = m->bucket[i], *next; msg != NULL; msg = next) {
            next = msg->next;
            for (uint32_t k = 0; k < msg->n; k++)
                if (msg->delivery[k].file < file)
                    msg->delivery[k].channel = PN_LOGMODEL_NONE;
            if (msg->file < file || !pn_logmodel_wants(m, msg))
                forget(m, msg);
        }
}

int pn_logmodel_note(struct pn_logmodel *m, const struct pn_record_out *record)
{
    union {
        struct pn_log_opened opened;
        struct pn_log_topic topic;
        struct pn_log_channel channel;
        struct pn_log_delivery delivery;
        struct pn_log_message message;
        struct pn_log_dropped dropped;
    } u;
    static const size_t sizes[PN_LOG_KINDS] = {[PN_LOG_OPENED] = sizeof u.opened,
                                               [PN_LOG_TOPIC] = sizeof u.topic,
                                               [PN_LOG_TOPIC_DELETED] = sizeof u.delivery,
                                               [PN_LOG_CHANNEL] = sizeof u.channel,
                                               [PN_LOG_CHANNEL_DELETED] = sizeof u.delivery,
                                               [PN_LOG_PUBLISH] = sizeof u.message,
                                               [PN_LOG_CARRIED] = sizeof u.message,
                                               [PN_LOG_FANNED_OUT] = sizeof u.delivery,
                                               [PN_LOG_DELIVERED] = sizeof u.delivery,
                                               [PN_LOG_FINISHED] = sizeof u.delivery,
                                               [PN_LOG_REQUEUED] = sizeof u.delivery,
                                               [PN_LOG_EMPTIED] = sizeof u.delivery,
                                               [PN_LOG_CANCELLED] = sizeof u.delivery,
                                               [PN_LOG_DROPPED] = sizeof u.dropped};
    if (record->type == 0 || record->type >= PN_LOG_KINDS || record->length < sizes[record->type])
        return 0;
    size_t size = sizes[record->type], left = record->length - size;
    int rc = 0;
    memcpy(&u, record->body, size);
    switch (record->type) {
    case PN_LOG_OPENED:
        return open_log(m, &u.opened);
    case PN_LOG_TOPIC:
        return note_topic(m, &u.topic, record->body + size, left);
    case PN_LOG_CHANNEL:
        return note_channel(m, &u.channel, record->body + size, left);
    case PN_LOG_PUBLISH:
    case PN_LOG_CARRIED:
        return note_message(m, record);
    case PN_LOG_FANNED_OUT:
    case PN_LOG_DELIVERED:
    case PN_LOG_FINISHED:
    case PN_LOG_REQUEUED:
    case PN_LOG_CANCELLED:
        for (size_t at = 0; at + size <= record->length && rc == 0; at += size) {
            memcpy(&u, record->body + at, size);
            rc = note_delivery(m, record->type, &u.delivery);
        }
        return rc;
    case PN_LOG_DROPPED:
        m->dropped = u.dropped.file > m->dropped ? u.dropped.file : m->dropped;
        if (m->damaged_file < u.dropped.file)
            drop_before(m, u.dropped.file);
        return 0;
    default:
        note_end(m, record->type, &u.delivery);
        return 0;
    }
}

void pn_logmodel_free(struct pn_logmodel *m)
{
    for (size_t i = 0; i < m->buckets; i++)
        while (m->bucket[i] != NULL)
            forget(m, m->bucket[i]);
    for (uint32_t i = 0; i < m->topics; i++) {
        for (uint32_t k = 0; k < m->topic[i].channels; k++)
            free(m->topic[i].channel[k].name);
        free(m->topic[i].channel);
        free(m->topic[i].names);
        free(m->topic[i].own);
    }
    free(m->topic);
    free(m->bucket);
}
