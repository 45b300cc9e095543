/*
 * topic_log_replay.c - what a log of topics says (topic_log.c), read once.
 *
 * 1. From front to back: each record changes a model in the reader's heap (topic_log_model.c).  At
 *    the end the bodies of the messages left are read from where they stand, in the order of ids.
 * 2. A batch counts whole or not at all: of one that was torn or damaged nothing has happened, but
 *    what it says of names, which stands in it twice, so that no damaged record takes a topic
 *    along.
 * 3. What a file has behind the end that the next one's OPENED names does not count.
 */
#define _GNU_SOURCE
#include "files/topic_log_replay.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "files/topic_log_model.h"

/* A reader of the log, step by step. */
struct pn_topiclog_reading {
    struct pn_logmodel m;
    struct pn_topiclog_files *files;
    const struct pn_topiclog_replay *to;
    void *arg;
    uint64_t *damaged;
    bool found;
    uint64_t begun; /* the file of the first record found; 0: it is known how many were before it */
    uint64_t *ids;  /* of messages, ascending */
    size_t n, next;
};

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
    struct pn_logmodel *m = &r->m;
    if (lost || record->first || record->seq >= m->batch_end) {
        int whole = !damaged && (!lost || record->first) ? rest_is_whole(r->files, end, record) : 0;
        if (whole < 0)
            return whole;
        m->batch_end = record->seq + record->more + 1;
        m->torn = !whole;
    }
    bool names = record->type == PN_LOG_TOPIC || record->type == PN_LOG_CHANNEL;
    if (!damaged && (!m->torn || names))
        return pn_logmodel_note(m, record);
    lose(r, damaged ? PN_LOG_SPOILT : PN_LOG_TORN, m->file, record->at, 1);
    return 0;
}

static int read_file(struct pn_topiclog_reading *r, uint64_t end, uint64_t *seq)
{
    struct pn_record_out record;
    uint64_t at = PN_RECFILE_START, last = at;
    bool found = false;
    int rc;
    while ((rc = pn_recfile_next(&r->files->queue.dir, &r->files->queue.reader, r->m.file, at, end,
                                 &record)) != PN_RECFILE_END) {
        if (rc == -ENOENT)
            lose(r, PN_LOG_MISSING, r->m.file, 0, 0); /* its records are, at the next one's */
        if (rc < 0)
            return rc == -ENOENT ? 0 : rc;
        at = record.next;
        if (rc == PN_RECFILE_SEARCH)
            continue;
        const bool no_begin = !found && record.at != PN_RECFILE_START;
        found = true;
        if (record.seq < *seq)
            continue;
        uint64_t lost = record.seq - *seq;
        if (lost == 0 && no_begin)
            lost = 1; /* or more: the mark, which would tell how many, was lost with them */
        if (!r->found && lost == 0)
            r->begun = r->m.file;
        r->found = true;
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

/* Files go from the front when a DROPPED behind them says so.  `there`: the first that is left; of
 * what is before `first` no record was found. */
static void look_before(struct pn_topiclog_reading *r, uint64_t there, uint64_t first)
{
    struct pn_record_out record;
    struct pn_log_opened opened;
    int rc = pn_recfile_next(&r->files->queue.dir, &r->files->queue.peeker, first, PN_RECFILE_START,
                             UINT64_MAX, &record);
    if (rc != PN_RECFILE_RECORD || record.type != PN_LOG_OPENED || record.length != sizeof opened)
        return;
    memcpy(&opened, record.body, sizeof opened);
    const enum pn_log_damage why = there < first ? PN_LOG_UNREADABLE : PN_LOG_MISSING;
    if (opened.last_file == first - 1 && opened.last_end != 0 && r->m.dropped < first)
        lose(r, why, first - 1, 0, 1); /* or more: nothing says how many counted */
}

/* ---- telling what is there ------------------------------------------------------------------ */

static int tell_channel(const struct pn_logmodel_channel *c, const struct pn_topiclog_replay *to,
                        void *arg)
{
    int rc = to->channel(arg, &c->what, c->name);
    return rc == 0 && to->defaults != NULL ? to->defaults(arg, &c->what, &c->defaults) : rc;
}

static int tell_topics(const struct pn_logmodel *m, const struct pn_topiclog_replay *to, void *arg)
{
    int rc = 0;
    for (uint32_t i = 0; i < m->topics && rc == 0; i++) {
        struct pn_logmodel_topic *t = &m->topic[i];
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

static int tell_message(struct pn_topiclog_reading *r, const struct pn_logmodel_message *msg)
{
    const struct pn_logmodel *m = &r->m;
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
        return pn_logmodel_no_memory();
    struct pn_log_message what = msg->what;
    size_t skip = sizeof what;
    if (record.type == PN_LOG_CARRIED)
        skip += what.deliveries * sizeof *d;
    what.deliveries = 0;
    what.topic = msg->topic;
    for (uint32_t i = 0; what.fanned_out != 0 && i < msg->n; i++)
        if (pn_logmodel_is_live(&m->topic[msg->topic], &msg->delivery[i]))
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
    const struct pn_logmodel *m = &r->m;
    r->ids = malloc((m->messages + 1) * sizeof *r->ids);
    if (r->ids == NULL)
        return pn_logmodel_no_memory();
    for (size_t i = 0; i < m->buckets; i++)
        for (const struct pn_logmodel_message *msg = m->bucket[i]; msg != NULL; msg = msg->next)
            if (pn_logmodel_wants(m, msg))
                r->ids[r->n++] = msg->what.id;
    qsort(r->ids, r->n, sizeof *r->ids, compare_ids);
    return 0;
}

void pn_topiclog_end(struct pn_topiclog_reading *reading)
{
    pn_logmodel_free(&reading->m);
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
        return pn_logmodel_no_memory();
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
    if (rc == 0 && r->begun != 0)
        look_before(r, from->read_file, r->begun);
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
    int rc = tell_message(reading, pn_logmodel_find(&reading->m, reading->ids[reading->next++]));
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
