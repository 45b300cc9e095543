/*
 * topiclogs.h - a log of durable topics in a directory of the test, operations at random, and a
 * plain model that says what has to be there.  Included by tests of topic_log.c.
 */
#ifndef PN_TESTS_TOPICLOGS_H
#define PN_TESTS_TOPICLOGS_H

#include "data_dirs.h"

#include "files/topic_log.h"

enum { TOPICS = 3, CHANNELS = 3, IDS = 600, MOST = 8 /* records in a batch */, BODY = 1000 };

struct op {
    uint32_t kind, topic, channel, attempts, fanned_out;
    uint64_t id;
    int64_t due;
};

/* All of it in arrays, by number; what is not there is zero, so two of them compare as bytes. */
struct plain {
    uint32_t topic[TOPICS]; /* 1 + paused */
    uint32_t channel[TOPICS][CHANNELS];
    struct plain_message {
        uint32_t there, topic, fanned_out, length;
        int64_t due;
        struct {
            int64_t due;
            uint32_t there, attempts;
        } to[CHANNELS];
    } message[IDS];
};

static struct pn_topiclog *tlog; /* shared */
static struct pn_topiclog_files tfiles;
static struct plain *plain; /* shared: what has been committed */
static uint64_t log_max_file = 1 << 20;
static uint64_t log_instance = 1;
static const char log_segment[] = "seg";

/* ---- the plain model ------------------------------------------------------------------------- */

static inline uint32_t body_length(uint64_t id)
{
    return id % 50 == 49 ? BODY : 1 + (uint32_t) (id * 31 % 90);
}

static inline void plain_forget(struct plain_message *m)
{
    memset(m, 0, sizeof *m);
}

static inline void plain_tidy(struct plain_message *m)
{
    bool wanted = !m->fanned_out;
    for (int c = 0; c < CHANNELS; c++)
        wanted |= m->to[c].there != 0;
    if (m->there && !wanted)
        plain_forget(m);
}

static inline void plain_give(struct plain *p, struct plain_message *m)
{
    m->fanned_out = 1;
    for (int c = 0; c < CHANNELS; c++)
        if (p->channel[m->topic][c] != 0) {
            m->to[c].there = 1;
            m->to[c].due = m->due;
        }
}

/* For each message of the topic: drop its delivery to channel `c`, or all of it. */
static inline void plain_drop(struct plain *p, uint32_t topic, uint32_t c, bool whole, bool own)
{
    for (int i = 0; i < IDS; i++) {
        struct plain_message *m = &p->message[i];
        if (!m->there || m->topic != topic)
            continue;
        if (whole || (own && !m->fanned_out))
            plain_forget(m);
        else if (!own)
            memset(&m->to[c], 0, sizeof m->to[c]);
        plain_tidy(m);
    }
}

static inline void plain_delivery(struct plain *p, const struct op *op)
{
    struct plain_message *m = &p->message[op->id];
    if (!m->there || m->topic != op->topic)
        return;
    if (op->kind == PN_LOG_CANCELLED)
        plain_forget(m);
    else if (p->channel[op->topic][op->channel] != 0 && m->to[op->channel].there) {
        m->to[op->channel].attempts = op->attempts;
        m->to[op->channel].due = op->kind == PN_LOG_REQUEUED ? op->due : 0;
        if (op->kind == PN_LOG_FINISHED)
            memset(&m->to[op->channel], 0, sizeof m->to[op->channel]);
    }
    plain_tidy(m);
}

static inline void plain_fan_out(struct plain *p, const struct op *op)
{
    struct plain_message *m = &p->message[op->id];
    if (!m->there || m->topic != op->topic || m->fanned_out)
        return;
    plain_give(p, m);
    plain_tidy(m);
}

static inline void plain_apply(struct plain *p, const struct op *op)
{
    struct plain_message *m = &p->message[op->id];
    if (op->kind == PN_LOG_TOPIC)
        p->topic[op->topic] = 1 + op->attempts % 2;
    if (op->kind == PN_LOG_TOPIC || p->topic[op->topic] == 0)
        return;
    if (op->kind == PN_LOG_CHANNEL) {
        p->channel[op->topic][op->channel] = 1 + op->attempts % 2;
    } else if (op->kind == PN_LOG_CHANNEL_DELETED) {
        p->channel[op->topic][op->channel] = 0;
        plain_drop(p, op->topic, op->channel, false, false);
    } else if (op->kind == PN_LOG_TOPIC_DELETED) {
        p->topic[op->topic] = 0;
        memset(p->channel[op->topic], 0, sizeof p->channel[op->topic]);
        plain_drop(p, op->topic, 0, true, false);
    } else if (op->kind == PN_LOG_EMPTIED) {
        plain_drop(p, op->topic, op->channel, false, op->channel == PN_LOG_TOPICS_OWN);
    } else if (op->kind == PN_LOG_PUBLISH) {
        *m = (struct plain_message) {
            .there = 1, .topic = op->topic, .due = op->due, .length = body_length(op->id)};
        if (op->fanned_out)
            plain_give(p, m);
        plain_tidy(m);
    } else if (op->kind == PN_LOG_FANNED_OUT) {
        plain_fan_out(p, op);
    } else {
        plain_delivery(p, op);
    }
}

/* ---- records --------------------------------------------------------------------------------- */

static inline const uint8_t *message_body(uint64_t id)
{
    static uint8_t bytes[BODY + 5];
    memset(bytes, (int) (id % 251), sizeof bytes);
    memcpy(bytes, "head", 4);
    return bytes;
}

/* What a record is made of has to stay where it is until it is written. */
struct op_record {
    union {
        struct pn_log_topic topic;
        struct pn_log_channel channel;
        struct pn_log_delivery delivery;
        struct pn_log_message message;
    } u;
    struct pn_log_delivery to[CHANNELS];
    char names[32];
    uint8_t bytes[BODY + 8];
};

static inline void set_part(struct pn_record_in *out, const void *bytes, size_t n)
{
    out->part[out->parts++] = (struct iovec) {(void *) (uintptr_t) bytes, n};
}

static inline void names_record(const struct op *op, struct op_record *r, struct pn_record_in *out)
{
    if (op->kind == PN_LOG_TOPIC) {
        snprintf(r->names, sizeof r->names, "dbt%u", op->topic);
        r->u.topic = (struct pn_log_topic) {
            .topic = op->topic, .paused = op->attempts % 2, .database_len = 2, .name_len = 2};
        set_part(out, &r->u.topic, sizeof r->u.topic);
        set_part(out, r->names, 4);
    } else {
        snprintf(r->names, sizeof r->names, "c%u", op->channel);
        r->u.channel = (struct pn_log_channel) {
            .topic = op->topic, .channel = op->channel, .paused = op->attempts % 2, .name_len = 2};
        set_part(out, &r->u.channel, sizeof r->u.channel);
        set_part(out, r->names, 2);
    }
}

static inline void message_record(const struct op *op, struct op_record *r,
                                  struct pn_record_in *out)
{
    uint32_t length = body_length(op->id);
    r->u.message = (struct pn_log_message) {.id = op->id,
                                            .published = (int64_t) op->id + 5,
                                            .due = op->due,
                                            .topic = op->topic,
                                            .fanned_out = op->fanned_out,
                                            .headers_len = 4};
    memcpy(r->bytes, message_body(op->id), length + 4);
    set_part(out, &r->u.message, sizeof r->u.message);
    set_part(out, r->bytes, length + 4);
}

static inline struct pn_record_in record_of(const struct op *op, struct op_record *r)
{
    struct pn_record_in out = {.type = op->kind};
    if (op->kind == PN_LOG_TOPIC || op->kind == PN_LOG_CHANNEL) {
        names_record(op, r, &out);
    } else if (op->kind == PN_LOG_PUBLISH) {
        message_record(op, r, &out);
    } else {
        r->u.delivery = (struct pn_log_delivery) {.id = op->id,
                                                  .due = op->due,
                                                  .topic = op->topic,
                                                  .channel = op->channel,
                                                  .attempts = op->attempts};
        set_part(&out, &r->u.delivery, sizeof r->u.delivery);
    }
    return out;
}

static inline int append_ops(const struct op *ops, size_t n)
{
    static struct op_record space[MOST];
    struct pn_record_in records[MOST];
    uint64_t seq;
    for (size_t i = 0; i < n; i++)
        records[i] = record_of(&ops[i], &space[i]);
    return pn_topiclog_append(tlog, &tfiles, records, n, &seq);
}

/* ---- operations at random -------------------------------------------------------------------- */

static uint64_t op_random = 1, op_next_id = 1;

static inline uint32_t below(uint32_t n)
{
    op_random = op_random * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t) (op_random >> 33) % n;
}

static inline struct op random_op(void)
{
    static const uint32_t kinds[] = {
        PN_LOG_TOPIC,    PN_LOG_CHANNEL,  PN_LOG_CHANNEL,  PN_LOG_PUBLISH,   PN_LOG_PUBLISH,
        PN_LOG_PUBLISH,  PN_LOG_PUBLISH,  PN_LOG_PUBLISH,  PN_LOG_PUBLISH,   PN_LOG_FANNED_OUT,
        PN_LOG_FINISHED, PN_LOG_FINISHED, PN_LOG_FINISHED, PN_LOG_DELIVERED, PN_LOG_DELIVERED,
        PN_LOG_REQUEUED, PN_LOG_REQUEUED, PN_LOG_CANCELLED};
    static const uint32_t rare[] = {PN_LOG_TOPIC_DELETED, PN_LOG_CHANNEL_DELETED, PN_LOG_EMPTIED,
                                    PN_LOG_EMPTIED};
    struct op op = {.kind = below(40) == 0 ? rare[below(4)] : kinds[below(18)],
                    .topic = below(TOPICS),
                    .channel = below(CHANNELS),
                    .attempts = below(7)};
    uint32_t recent = op_next_id < 60 ? (uint32_t) op_next_id : 60;
    op.id = op_next_id - below(recent);
    op.due = below(2) ? (int64_t) below(1000000) : 0;
    op.fanned_out = below(4) != 0;
    if (op.kind == PN_LOG_PUBLISH)
        op.id = op_next_id < IDS - 1 ? ++op_next_id : op_next_id;
    if (op.kind == PN_LOG_EMPTIED && below(2) != 0)
        op.channel = PN_LOG_TOPICS_OWN;
    return op;
}

/* ---- reading it again ------------------------------------------------------------------------ */

/* struct plain again, from what replay() tells; it numbers topics and channels as it likes. */
struct told {
    struct plain p;
    uint32_t topic[64], channel[64][64];
    struct pn_log_limits limits[TOPICS];
    struct pn_log_defaults defaults[TOPICS][CHANNELS];
    uint64_t last_id;
};

static inline int told_topic(void *arg, const struct pn_log_topic *t, const char *database,
                             const char *name)
{
    struct told *told = arg;
    CHECK(memcmp(database, "db", 2) == 0 && t->database_len == 2 && t->name_len == 2);
    CHECK(t->topic < 64);
    told->topic[t->topic] = (uint32_t) (name[1] - '0');
    told->p.topic[told->topic[t->topic]] = 1 + t->paused;
    return 0;
}

static inline int told_channel(void *arg, const struct pn_log_channel *c, const char *name)
{
    struct told *told = arg;
    CHECK(c->name_len == 2 && c->topic < 64 && c->channel < 64);
    told->channel[c->topic][c->channel] = (uint32_t) (name[1] - '0');
    told->p.channel[told->topic[c->topic]][name[1] - '0'] = 1 + c->paused;
    return 0;
}

static inline int told_limits(void *arg, const struct pn_log_topic *t,
                              const struct pn_log_limits *limits)
{
    struct told *told = arg;
    told->limits[told->topic[t->topic]] = *limits;
    return 0;
}

static inline int told_defaults(void *arg, const struct pn_log_channel *c,
                                const struct pn_log_defaults *defaults)
{
    struct told *told = arg;
    told->defaults[told->topic[c->topic]][told->channel[c->topic][c->channel]] = *defaults;
    return 0;
}

static inline int told_message(void *arg, const struct pn_log_message *m,
                               const struct pn_log_delivery *d, const uint8_t *headers,
                               const uint8_t *body, uint32_t length)
{
    struct told *told = arg;
    CHECK(m->id > told->last_id && m->id < IDS);
    told->last_id = m->id;
    CHECK_EQ(m->headers_len, 4);
    CHECK_EQ(m->published, m->id + 5);
    CHECK_EQ(length, body_length(m->id));
    CHECK(memcmp(headers, message_body(m->id), 4) == 0);
    CHECK(memcmp(body, message_body(m->id) + 4, length) == 0);
    struct plain_message *p = &told->p.message[m->id];
    *p = (struct plain_message) {.there = 1,
                                 .topic = told->topic[m->topic],
                                 .due = m->due,
                                 .fanned_out = m->fanned_out,
                                 .length = length};
    for (uint32_t i = 0; i < m->deliveries; i++) {
        uint32_t c = told->channel[m->topic][d[i].channel];
        p->to[c].there = 1;
        p->to[c].attempts = d[i].attempts;
        p->to[c].due = d[i].due;
    }
    return 0;
}

static const struct pn_topiclog_replay told_ops = {.topic = told_topic,
                                                   .channel = told_channel,
                                                   .limits = told_limits,
                                                   .defaults = told_defaults,
                                                   .message = told_message};

/* ---- what the log asks: everything is in `plain` --------------------------------------------- */

static inline int source_describe(void *arg, struct pn_diskqueue_writing *w)
{
    struct op_record space;
    (void) arg;
    for (uint32_t t = 0; t < TOPICS; t++)
        for (uint32_t c = 0; plain->topic[t] != 0 && c <= CHANNELS; c++) {
            struct op op = {.kind = PN_LOG_TOPIC, .topic = t, .attempts = plain->topic[t] - 1};
            if (c > 0) {
                op = (struct op) {.kind = PN_LOG_CHANNEL,
                                  .topic = t,
                                  .channel = c - 1,
                                  .attempts = plain->channel[t][c - 1] - 1};
                if (plain->channel[t][c - 1] == 0)
                    continue;
            }
            struct pn_record_in record = record_of(&op, &space);
            int rc = pn_topiclog_emit(w, &record);
            if (rc != 0)
                return rc;
        }
    return 0;
}

static inline int source_carry(void *arg, uint64_t cursor[PN_TOPICLOG_CURSOR],
                               struct pn_record_in *record)
{
    static struct op_record space;
    (void) arg;
    for (uint64_t id = cursor[1] + 1; id < IDS; id++) {
        const struct plain_message *m = &plain->message[id];
        if (!m->there)
            continue;
        struct op op = {.kind = PN_LOG_PUBLISH,
                        .topic = m->topic,
                        .id = id,
                        .due = m->due,
                        .fanned_out = m->fanned_out};
        *record = record_of(&op, &space);
        record->type = PN_LOG_CARRIED;
        uint32_t n = 0;
        for (uint32_t c = 0; c < CHANNELS; c++)
            if (m->to[c].there)
                space.to[n++] = (struct pn_log_delivery) {.id = id,
                                                          .due = m->to[c].due,
                                                          .topic = m->topic,
                                                          .channel = c,
                                                          .attempts = m->to[c].attempts};
        space.u.message.deliveries = n;
        record->part[2] = record->part[1];
        record->part[1] = (struct iovec) {space.to, n * sizeof space.to[0]};
        record->parts = 3;
        cursor[1] = id;
        return 1;
    }
    return 0;
}

static uint64_t source_owed(void *arg, uint64_t more, uint64_t *rest)
{
    (void) arg;
    *rest = 4096;
    return 4096 + more / 8;
}

static const struct pn_topiclog_source plain_source = {
    .describe = source_describe, .carry = source_carry, .owed = source_owed};

/* ---- the log of the test --------------------------------------------------------------------- */

static char log_dir[128];

static inline void log_dir_empty(void)
{
    char saved[sizeof data_dir];
    memcpy(saved, data_dir, sizeof saved);
    snprintf(log_dir, sizeof log_dir, "%s/%s", data_dir, log_segment);
    memcpy(data_dir, log_dir, sizeof data_dir);
    data_dir_empty();
    memcpy(data_dir, saved, sizeof saved);
    data_dir_empty();
}

/* A new segment: what is there goes to *told.  How many records were damaged. */
static inline uint64_t log_start(struct told *told)
{
    uint64_t damaged;
    memset(told, 0, sizeof *told);
    pn_topiclog_close(&tfiles);
    CHECK_OK(pn_topiclog_open(&tfiles, data_dir, log_segment, 10000, &plain_source));
    CHECK_OK(
        pn_topiclog_start(tlog, &tfiles, log_instance++, log_max_file, &told_ops, told, &damaged));
    return damaged;
}

static inline void log_make(void)
{
    static struct told nothing;
    if (tlog == NULL) {
        tlog = mmap(NULL, sizeof *tlog + sizeof *plain, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        CHECK(tlog != MAP_FAILED);
        plain = (struct plain *) (tlog + 1);
        tfiles.queue.writer.fd = tfiles.queue.reader.file.fd = tfiles.queue.peeker.file.fd = -1;
    }
    memset(plain, 0, sizeof *plain);
    op_next_id = 1;
    log_dir_empty();
    CHECK_EQ(log_start(&nothing), 0);
}

static inline void check_same(const struct plain *got, const struct plain *want)
{
    CHECK(memcmp(got->topic, want->topic, sizeof got->topic) == 0);
    CHECK(memcmp(got->channel, want->channel, sizeof got->channel) == 0);
    for (int i = 0; i < IDS; i++) {
        const struct plain_message *g = &got->message[i], *w = &want->message[i];
        if (memcmp(g, w, sizeof *g) == 0)
            continue;
        for (int c = 0; c < CHANNELS; c++)
            fprintf(stderr, "channel %d: there %u attempts %u due %lld, not %u %u %lld\n", c,
                    g->to[c].there, g->to[c].attempts, (long long) g->to[c].due, w->to[c].there,
                    w->to[c].attempts, (long long) w->to[c].due);
        FAIL("message %d: there %u fanned out %u due %lld, not %u %u %lld", i, g->there,
             g->fanned_out, (long long) g->due, w->there, w->fanned_out, (long long) w->due);
    }
}

/* A batch at random: written, and then true. */
static inline size_t random_batch(struct op ops[MOST])
{
    size_t n = below(3) == 0 ? 1 + below(MOST) : 1;
    for (size_t i = 0; i < n; i++)
        ops[i] = random_op();
    return n;
}

static inline void apply_all(struct plain *p, const struct op *ops, size_t n)
{
    for (size_t i = 0; i < n; i++)
        plain_apply(p, &ops[i]);
}

#endif
