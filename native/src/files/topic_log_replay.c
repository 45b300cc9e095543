/*
 * topic_log_replay.c - what a log of topics says (topic_log.c), in the reader's heap.
 *
 * 1. From front to back: each record changes a model of topics, channels and messages, of which
 *    only the headers are kept; a message that no channel has to get is forgotten at once. At
 *    the end the bodies of those left are read from where they stand, in the order of ids.
 * 2. A batch counts whole or not at all: of one that was torn or damaged nothing has happened, but
 *    what it says of names, which stands in it twice, so that no damaged record takes a topic
 *    along.  What speaks of what is not known is passed.  FINISHED without its message says
 *    nothing; a message without its FINISHED is delivered again.
 * 3. Numbers of topics and channels are those of the segment that wrote them: OPENED of another
 *    instance unbinds them all, and names are what stays.
 * 4. DROPPED ends what is not said in the file that it names or since: it was not carried over.
 *    Where something of that file or since is damaged, what was carried may be, too, and all that
 *    is left counts: a power cut may leave DROPPED without what stands before it, and then the
 *    older files are there still.  Or some of them, when they are being removed, in any subset: so
 *    what is missing before a file's first record is missing in the file before it.
 * 5. What a file has behind the end that the next one's OPENED names does not count.
 */
#define _GNU_SOURCE
#include "files/topic_log.h"
#include "files/topic_log_replay.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

enum { NAMES = 512 }; /* bytes of names in a record at the most */

struct channel {
    struct pn_log_channel what;
    struct pn_log_defaults defaults;
    char *name;
    uint64_t file; /* that it was last described in */
    bool exists, bound;
    uint32_t emptied; /* how often; deliveries of before are void */
};

struct delivery {
    uint32_t channel, emptied; /* index into the topic's channels; NONE: it is done with */
    uint32_t attempts;
    int64_t due;
    uint64_t file; /* that said so */
};
enum { NONE = UINT32_MAX };

struct message {
    struct message *next; /* of its bucket */
    struct pn_log_message what;
    uint64_t file, at;
    uint32_t topic, n; /* index; deliveries */
    struct delivery *delivery;
};

struct topic {
    struct pn_log_topic what;
    struct pn_log_limits limits;
    char *names; /* database, name */
    uint64_t file;
    bool exists, bound;
    struct channel *channel;
    uint32_t channels;
    uint64_t *own; /* ids of its own messages, and of some that were since it was emptied */
    size_t owns;
};

struct model {
    struct topic *topic;
    uint32_t topics;
    struct message **bucket;
    size_t buckets, messages;
    uint64_t instance, file, at;
    uint64_t batch_end;    /* number of the record behind the batch that is being read */
    bool torn;             /* something of that cannot be read */
    uint64_t damaged;      /* records that were lost */
    uint64_t damaged_file; /* the last in which some were; 0: none */
    uint64_t dropped;      /* what stands before that file is over; 0: nothing was said to be */
    uint64_t nameless;     /* messages of topics that are not known */
};

/* A reader of the log, step by step. */
struct pn_topiclog_reading {
    struct model m;
    struct pn_topiclog_files *files;
    const struct pn_topiclog_replay *to;
    void *arg;
    uint64_t *damaged;
    uint64_t *ids; /* of messages, ascending */
    size_t n, next;
};

static int no_memory(void)
{
    return pn_fail(ENOMEM, "no memory for reading the log of topics");
}

/* One more element at the end of a vector that grows by doubling; zeroed.  NULL: no memory. */
static void *grow(void *vector, size_t n, size_t size)
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

static struct message **place_of(const struct model *m, uint64_t id)
{
    struct message **p = &m->bucket[(id * 0x9e3779b97f4a7c15U) >> 32 & (m->buckets - 1)];
    while (*p != NULL && (*p)->what.id != id)
        p = &(*p)->next;
    return p;
}

static struct message *find(const struct model *m, uint64_t id)
{
    return m->buckets == 0 ? NULL : *place_of(m, id);
}

static int rehash(struct model *m)
{
    struct model more = {.buckets = m->buckets == 0 ? 1024 : 2 * m->buckets};
    more.bucket = calloc(more.buckets, sizeof *more.bucket);
    if (more.bucket == NULL)
        return no_memory();
    for (size_t i = 0; i < m->buckets; i++)
        for (struct message *msg = m->bucket[i], *next; msg != NULL; msg = next) {
            next = msg->next;
            msg->next = NULL;
            *place_of(&more, msg->what.id) = msg;
        }
    free(m->bucket);
    m->bucket = more.bucket;
    m->buckets = more.buckets;
    return 0;
}

static void forget(struct model *m, struct message *msg)
{
    struct message **p = place_of(m, msg->what.id);
    *p = msg->next;
    free(msg->delivery);
    free(msg);
    m->messages--;
}

static bool is_live(const struct topic *t, const struct delivery *d)
{
    return d->channel != NONE && t->channel[d->channel].exists &&
           t->channel[d->channel].emptied == d->emptied;
}

static bool anybody_wants(const struct model *m, const struct message *msg)
{
    const struct topic *t = &m->topic[msg->topic];
    bool wanted = t->exists && msg->what.fanned_out == 0;
    for (uint32_t i = 0; t->exists && !wanted && i < msg->n; i++)
        wanted = is_live(t, &msg->delivery[i]);
    return wanted;
}

/* ---- topics and channels -------------------------------------------------------------------- */

static struct topic *topic_of(const struct model *m, uint32_t number)
{
    for (uint32_t i = 0; i < m->topics; i++)
        if (m->topic[i].bound && m->topic[i].exists && m->topic[i].what.topic == number)
            return &m->topic[i];
    return NULL;
}

static uint32_t channel_of(const struct topic *t, uint32_t number)
{
    for (uint32_t i = 0; t != NULL && i < t->channels; i++)
        if (t->channel[i].bound && t->channel[i].exists && t->channel[i].what.channel == number)
            return i;
    return NONE;
}

static int open_log(struct model *m, const struct pn_log_opened *opened)
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

static int note_topic(struct model *m, const struct pn_log_topic *what, const uint8_t *names,
                      size_t left)
{
    size_t length = (size_t) what->database_len + what->name_len;
    if (length > left || length > NAMES)
        return 0;
    struct topic *t = NULL;
    for (uint32_t i = 0; i < m->topics && t == NULL; i++)
        if (m->topic[i].exists && m->topic[i].what.name_len == what->name_len &&
            m->topic[i].what.database_len == what->database_len &&
            memcmp(m->topic[i].names, names, length) == 0)
            t = &m->topic[i];
    if (t == NULL) {
        t = grow(&m->topic, m->topics, sizeof *t);
        if (t == NULL || (t->names = malloc(length + 1)) == NULL)
            return no_memory();
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

static int note_channel(struct model *m, const struct pn_log_channel *what, const uint8_t *name,
                        size_t left)
{
    struct topic *t = topic_of(m, what->topic);
    struct channel *c = NULL;
    if (t == NULL || what->name_len > left || what->name_len > NAMES)
        return 0;
    for (uint32_t i = 0; i < t->channels && c == NULL; i++)
        if (t->channel[i].exists && t->channel[i].what.name_len == what->name_len &&
            memcmp(t->channel[i].name, name, what->name_len) == 0)
            c = &t->channel[i];
    if (c == NULL) {
        c = grow(&t->channel, t->channels, sizeof *c);
        if (c == NULL || (c->name = malloc(what->name_len + 1)) == NULL)
            return no_memory();
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

static int own_it(struct topic *t, uint64_t id)
{
    uint64_t *last = grow(&t->own, t->owns, sizeof *last);
    if (last == NULL)
        return no_memory();
    *last = id;
    t->owns++;
    return 0;
}

/* To each channel that there is now, or to those of `from`. */
static int give(struct model *m, struct message *msg, const struct pn_log_delivery *from,
                uint32_t n)
{
    const struct topic *t = &m->topic[msg->topic];
    uint32_t most = from != NULL ? n : t->channels;
    struct delivery *d = most == 0 ? NULL : calloc(most, sizeof *d);
    if (most != 0 && d == NULL)
        return no_memory();
    free(msg->delivery);
    msg->delivery = d;
    msg->n = 0;
    msg->what.fanned_out = 1;
    for (uint32_t i = 0; i < most; i++) {
        struct delivery one = {.channel = i, .due = msg->what.due, .file = m->file};
        if (from != NULL) {
            one.channel = channel_of(t, from[i].channel);
            one.attempts = from[i].attempts;
            one.due = from[i].due;
        }
        if (one.channel == NONE || !t->channel[one.channel].exists)
            continue;
        one.emptied = t->channel[one.channel].emptied;
        d[msg->n++] = one;
    }
    return 0;
}

/* To those of `from` as well; what is said of others stays. */
static int give_too(struct model *m, struct message *msg, const struct pn_log_delivery *from,
                    uint32_t n)
{
    const struct topic *t = &m->topic[msg->topic];
    msg->what.fanned_out = 1;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t channel = channel_of(t, from[i].channel), k = 0;
        while (k < msg->n && msg->delivery[k].channel != channel)
            k++;
        if (channel == NONE)
            continue;
        if (k == msg->n) {
            struct delivery *more = realloc(msg->delivery, (msg->n + 1) * sizeof *more);
            if (more == NULL)
                return no_memory();
            msg->delivery = more;
            msg->n++;
        }
        msg->delivery[k] = (struct delivery) {.channel = channel,
                                              .emptied = t->channel[channel].emptied,
                                              .attempts = from[i].attempts,
                                              .due = from[i].due,
                                              .file = m->file};
    }
    return 0;
}

static int note_message(struct model *m, const struct pn_record_out *record)
{
    struct pn_log_message what;
    memcpy(&what, record->body, sizeof what);
    uint32_t n = record->type == PN_LOG_CARRIED ? what.deliveries : 0;
    struct topic *t = topic_of(m, what.topic);
    uint64_t need = sizeof what + (uint64_t) n * sizeof(struct pn_log_delivery) + what.headers_len;
    m->nameless += t == NULL;
    if (t == NULL || need > record->length)
        return 0;
    struct message *msg = find(m, what.id);
    if (msg == NULL) {
        int rc = m->messages >= m->buckets ? rehash(m) : 0;
        msg = rc == 0 ? calloc(1, sizeof *msg) : NULL;
        if (msg == NULL)
            return rc != 0 ? rc : no_memory();
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
    if (rc == 0 && !anybody_wants(m, msg))
        forget(m, msg);
    return rc;
}

/* What is still its own is forgotten. */
static void drop_own(struct model *m, struct topic *t)
{
    for (size_t i = 0; i < t->owns; i++) {
        struct message *msg = find(m, t->own[i]);
        if (msg != NULL && &m->topic[msg->topic] == t && msg->what.fanned_out == 0)
            forget(m, msg);
    }
    t->owns = 0;
}

static int note_delivery(struct model *m, uint32_t kind, const struct pn_log_delivery *d)
{
    struct topic *t = topic_of(m, d->topic);
    struct message *msg = find(m, d->id);
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
        struct delivery *mine = &msg->delivery[i];
        if (channel == NONE || mine->channel != channel)
            continue;
        mine->attempts = d->attempts;
        mine->due = kind == PN_LOG_REQUEUED ? d->due : 0;
        if (kind == PN_LOG_FINISHED)
            mine->channel = NONE;
    }
    if (rc == 0 && !anybody_wants(m, msg))
        forget(m, msg);
    return rc;
}

/* Topics and channels that go, and what they have. */
static void note_end(struct model *m, uint32_t kind, const struct pn_log_delivery *d)
{
    struct topic *t = topic_of(m, d->topic);
    uint32_t channel = channel_of(t, d->channel);
    if (t == NULL)
        return;
    if (kind == PN_LOG_TOPIC_DELETED)
        t->exists = false;
    else if (kind == PN_LOG_EMPTIED && d->channel == PN_LOG_TOPICS_OWN)
        drop_own(m, t);
    else if (channel != NONE && kind == PN_LOG_CHANNEL_DELETED)
        t->channel[channel].exists = false;
    else if (channel != NONE && kind == PN_LOG_EMPTIED)
        t->channel[channel].emptied++;
}

/* What stands in files before that one, and was not said again, is no more. */
static void drop_before(struct model *m, uint64_t file)
{
    for (uint32_t i = 0; i < m->topics; i++) {
        struct topic *t = &m->topic[i];
        t->exists = t->exists && t->file >= file;
        for (uint32_t k = 0; k < t->channels; k++)
            t->channel[k].exists = t->channel[k].exists && t->channel[k].file >= file;
    }
    for (size_t i = 0; i < m->buckets; i++)
        for (struct message *msg = m->bucket[i], *next; msg != NULL; msg = next) {
            next = msg->next;
            for (uint32_t k = 0; k < msg->n; k++)
                if (msg->delivery[k].file < file)
                    msg->delivery[k].channel = NONE;
            if (msg->file < file || !anybody_wants(m, msg))
                forget(m, msg);
        }
}

static int note_record(struct model *m, const struct pn_record_out *record)
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

/* ---- reading files -------------------------------------------------------------------------- */

/* Where file `number` ends: where the next one says, if it does. */
static int end_of(struct pn_topiclog_files *files, const struct pn_diskqueue_state *s,
                  uint64_t number, uint64_t *end)
{
    struct pn_record_out record;
    struct pn_log_opened opened;
    *end = number == s->write_file ? s->write_at : UINT64_MAX;
    if (number == s->write_file)
        return 0;
    int rc = pn_recfile_next(&files->queue.dir, &files->queue.peeker, number + 1, PN_RECFILE_START,
                             UINT64_MAX, &record);
    if (rc == PN_RECFILE_RECORD && record.type == PN_LOG_OPENED && record.length == sizeof opened) {
        memcpy(&opened, record.body, sizeof opened);
        if (opened.last_file == number)
            *end = opened.last_end;
    }
    return rc < 0 && rc != -ENOENT ? rc : 0;
}

/* Can the rest of that record's batch be read? */
static int rest_is_whole(struct pn_topiclog_files *files, uint64_t end,
                         const struct pn_record_out *begin)
{
    struct pn_record_out record = {.next = begin->next};
    for (uint32_t i = 1; i <= begin->more; i++) {
        int rc = pn_recfile_next(&files->queue.dir, &files->queue.peeker, begin->file, record.next,
                                 end, &record);
        if (rc < 0)
            return rc;
        if (rc != PN_RECFILE_RECORD || record.seq != begin->seq + i ||
            record.more != begin->more - i || record.first)
            return 0;
    }
    return 1;
}

static void lose(struct pn_topiclog_reading *r, enum pn_log_damage why, uint64_t file, uint64_t at,
                 uint64_t records)
{
    r->m.damaged += records;
    r->m.damaged_file = file;
    if (r->to->damage != NULL)
        r->to->damage(r->arg, why, file, at, records);
}

/* Another record, or the number of one that is damaged; `lost`: some before it are. */
static int note_in_batch(struct pn_topiclog_reading *r, uint64_t end,
                         const struct pn_record_out *record, bool lost, bool damaged)
{
    struct model *m = &r->m;
    if (lost || record->first || record->seq >= m->batch_end) {
        int whole = !damaged && (!lost || record->first) ? rest_is_whole(r->files, end, record) : 0;
        if (whole < 0)
            return whole;
        m->batch_end = record->seq + record->more + 1;
        m->torn = !whole;
    }
    bool names = record->type == PN_LOG_TOPIC || record->type == PN_LOG_CHANNEL;
    if (!damaged && (!m->torn || names))
        return note_record(m, record);
    lose(r, damaged ? PN_LOG_SPOILT : PN_LOG_TORN, m->file, record->at, 1);
    return 0;
}

static int read_file(struct pn_topiclog_reading *r, uint64_t end, uint64_t *seq)
{
    struct pn_record_out record;
    uint64_t at = PN_RECFILE_START, last = at;
    int rc;
    while ((rc = pn_recfile_next(&r->files->queue.dir, &r->files->queue.reader, r->m.file, at, end,
                                 &record)) != PN_RECFILE_END) {
        if (rc == -ENOENT)
            lose(r, PN_LOG_MISSING, r->m.file, 0, 0); /* its records are, at the next one's */
        if (rc < 0)
            return rc == -ENOENT ? 0 : rc;
        at = record.next;
        if (rc == PN_RECFILE_SEARCH || record.seq < *seq)
            continue;
        uint64_t lost = record.seq - *seq;
        if (lost != 0) /* what stood before a file's first record stood in an older file */
            lose(r, PN_LOG_UNREADABLE, r->m.file - (record.at == PN_RECFILE_START), last, lost);
        last = at;
        *seq = record.seq + 1;
        rc = note_in_batch(r, end, &record, lost != 0, rc == PN_RECFILE_DAMAGED);
        if (rc != 0)
            return rc;
    }
    return 0;
}

/* Files go from the front when a DROPPED behind them says so. */
static void look_before(struct pn_topiclog_reading *r, uint64_t first)
{
    struct pn_record_out record;
    struct pn_log_opened opened;
    int rc = pn_recfile_next(&r->files->queue.dir, &r->files->queue.peeker, first, PN_RECFILE_START,
                             UINT64_MAX, &record);
    if (rc != PN_RECFILE_RECORD || record.type != PN_LOG_OPENED || record.length != sizeof opened)
        return;
    memcpy(&opened, record.body, sizeof opened);
    if (opened.last_file == first - 1 && opened.last_end != 0 && r->m.dropped < first)
        lose(r, PN_LOG_MISSING, first - 1, 0, 1); /* or more: nothing says how many counted */
}

/* ---- telling what is there ------------------------------------------------------------------ */

static int tell_channel(const struct channel *c, const struct pn_topiclog_replay *to, void *arg)
{
    int rc = to->channel(arg, &c->what, c->name);
    return rc == 0 && to->defaults != NULL ? to->defaults(arg, &c->what, &c->defaults) : rc;
}

static int tell_topics(const struct model *m, const struct pn_topiclog_replay *to, void *arg)
{
    int rc = 0;
    for (uint32_t i = 0; i < m->topics && rc == 0; i++) {
        struct topic *t = &m->topic[i];
        t->what.topic = i;
        if (t->exists)
            rc = to->topic(arg, &t->what, t->names, t->names + t->what.database_len);
        if (t->exists && rc == 0 && to->limits != NULL)
            rc = to->limits(arg, &t->what, &t->limits);
        for (uint32_t k = 0; t->exists && k < t->channels && rc == 0; k++) {
            t->channel[k].what.topic = i;
            t->channel[k].what.channel = k;
            if (t->channel[k].exists)
                rc = tell_channel(&t->channel[k], to, arg);
        }
    }
    return rc;
}

static int tell_message(struct pn_topiclog_reading *r, const struct message *msg)
{
    const struct model *m = &r->m;
    struct pn_record_out record;
    int rc = pn_recfile_next(&r->files->queue.dir, &r->files->queue.reader, msg->file, msg->at,
                             UINT64_MAX, &record);
    if (rc < 0)
        return rc;
    if (rc != PN_RECFILE_RECORD || record.at != msg->at) {
        ++*r->damaged; /* since it was read a moment ago */
        if (r->to->damage != NULL)
            r->to->damage(r->arg, PN_LOG_SPOILT, msg->file, msg->at, 1);
        return 0;
    }
    struct pn_log_delivery *d = calloc(msg->n + 1, sizeof *d);
    if (d == NULL)
        return no_memory();
    struct pn_log_message what = msg->what;
    size_t skip = sizeof what;
    if (record.type == PN_LOG_CARRIED)
        skip += what.deliveries * sizeof *d;
    what.deliveries = 0;
    what.topic = msg->topic;
    for (uint32_t i = 0; what.fanned_out != 0 && i < msg->n; i++)
        if (is_live(&m->topic[msg->topic], &msg->delivery[i]))
            d[what.deliveries++] = (struct pn_log_delivery) {.id = what.id,
                                                             .due = msg->delivery[i].due,
                                                             .topic = msg->topic,
                                                             .channel = msg->delivery[i].channel,
                                                             .attempts = msg->delivery[i].attempts};
    const uint8_t *headers = record.body + skip, *body = headers + what.headers_len;
    rc = r->to->message(r->arg, &what, d, headers, body,
                        record.length - (uint32_t) skip - what.headers_len);
    free(d);
    return rc;
}

static int compare_ids(const void *a, const void *b)
{
    uint64_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

/* The ids of messages that are left. */
static int collect(struct pn_topiclog_reading *r)
{
    const struct model *m = &r->m;
    r->ids = malloc((m->messages + 1) * sizeof *r->ids);
    if (r->ids == NULL)
        return no_memory();
    for (size_t i = 0; i < m->buckets; i++)
        for (const struct message *msg = m->bucket[i]; msg != NULL; msg = msg->next)
            if (anybody_wants(m, msg))
                r->ids[r->n++] = msg->what.id;
    qsort(r->ids, r->n, sizeof *r->ids, compare_ids);
    return 0;
}

static void free_model(struct model *m)
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

void pn_topiclog_end(struct pn_topiclog_reading *reading)
{
    free_model(&reading->m);
    free(reading->ids);
    struct pn_recfile_reader *of[] = {&reading->files->queue.reader, &reading->files->queue.peeker};
    for (int i = 0; i < 2; i++) {
        pn_recfile_reader_forget(of[i]);
        pn_recfile_close(&of[i]->file); /* else a file that is removed keeps its room on the disk */
    }
    free(reading);
}

int pn_topiclog_begin(struct pn_topiclog_files *files, const struct pn_diskqueue_state *from,
                      const struct pn_topiclog_replay *replay, void *arg, uint64_t *damaged,
                      struct pn_topiclog_reading **out)
{
    struct pn_topiclog_reading *r = calloc(1, sizeof *r);
    uint64_t seq = from->read_seq;
    int rc = 0;
    *damaged = 0;
    if (r == NULL)
        return no_memory();
    r->files = files;
    r->to = replay;
    r->arg = arg;
    r->damaged = damaged;
    for (r->m.file = from->read_file;
         rc == 0 && from->write_at != 0 && r->m.file <= from->write_file; r->m.file++) {
        uint64_t end;
        rc = end_of(files, from, r->m.file, &end);
        if (rc == 0)
            rc = read_file(r, end, &seq);
    }
    if (rc == 0 && from->write_at != 0)
        look_before(r, from->read_file);
    *damaged = r->m.damaged + (r->m.damaged != 0 ? r->m.nameless : 0);
    if (rc == 0)
        rc = tell_topics(&r->m, replay, arg);
    if (rc == 0)
        rc = collect(r);
    if (rc != 0)
        pn_topiclog_end(r);
    else
        *out = r;
    return rc;
}

int pn_topiclog_next(struct pn_topiclog_reading *reading)
{
    if (reading->next == reading->n)
        return 0;
    int rc = tell_message(reading, find(&reading->m, reading->ids[reading->next++]));
    return rc == 0 ? 1 : rc;
}

int pn_topiclog_read(struct pn_topiclog_files *files, const struct pn_diskqueue_state *from,
                     const struct pn_topiclog_replay *replay, void *arg, uint64_t *damaged)
{
    struct pn_topiclog_reading *reading;
    int rc = pn_topiclog_begin(files, from, replay, arg, damaged, &reading);
    if (rc != 0)
        return rc;
    while ((rc = pn_topiclog_next(reading)) == 1)
        ;
    pn_topiclog_end(reading);
    return rc;
}
