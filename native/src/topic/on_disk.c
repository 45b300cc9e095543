/* on_disk.c - messages in the files of a topic: written, looked at, forgotten (overflow.c). */
#include "topic/on_disk.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crashpoint.h"
#include "base/moment.h"
#include "segment/lock.h"
#include "topic/area.h"
#include "topic/message.h"
#include "topic/queues.h"
#include "topic/settings.h"
#include "topic/tombstones.h"

/* numbers of a topic's files from there on are of its `later`, or its `rest` */
#define PN_LATER_FILES (1U << 30)
#define PN_REST_FILES  (1U << 31)

int pn_disk_result(const struct pn_segment *seg, int rc)
{
    if (rc != -ENOSPC && rc != -EDQUOT)
        return rc;
    return pn_fail(PN_EDISKFULL,
                   "the disk of the data directory %s has no room for messages: %s\n"
                   "Make room there, or let consumers finish what is there; nothing has happened.",
                   seg->data_dir, strerror(-rc));
}

/* ---- the files ------------------------------------------------------------------------------- */

bool pn_topic_may_spill(const struct pn_segment *seg, const struct pn_topic *topic)
{
    return topic->overflow == PN_OVERFLOW_DISK && topic->ephemeral == 0 && seg->data_dir[0] != '\0';
}

uint64_t pn_topic_disk_bytes(const struct pn_topic *topic)
{
    return pn_diskqueue_bytes(&topic->disk) - pn_topic_on_disk(topic) * sizeof(struct pn_spilled);
}

/* The queue, ready to be used, and our descriptors; -PN_ECORRUPT if it cannot be what it says. */
static int use_files(struct pn_segment *seg, struct pn_topic *topic)
{
    struct pn_data_dir dir;
    uint32_t index = (uint32_t) (topic - seg->topics.topic);
    uint64_t base = (uint64_t) (topic->generation & 0xffff) << 48 | (uint64_t) index << 32;
    if (topic->disk.max_file == 0)
        pn_diskqueue_init(&topic->disk, base, 0);
    if (topic->rest.max_file == 0)
        pn_diskqueue_init(&topic->rest, base + PN_REST_FILES, 0);
    if (topic->later.max_file == 0)
        pn_diskqueue_init(&topic->later, base + PN_LATER_FILES, 0);
    if (!pn_diskqueue_possible(&topic->disk, base) ||
        !pn_diskqueue_possible(&topic->later, base + PN_LATER_FILES) ||
        !pn_diskqueue_possible(&topic->rest, base + PN_REST_FILES))
        return pn_segment_poison(seg, "the queue on disk of topic %u is broken", index);
    if (seg->topics.disk != NULL)
        return 0;
    int rc = pn_data_dir_init(&dir, seg->data_dir, seg->uid, seg->name, seg->instance, 'd');
    if (rc != 0)
        return rc;
    seg->topics.disk = malloc(sizeof *seg->topics.disk);
    if (seg->topics.disk == NULL)
        return pn_fail(ENOMEM, "out of memory");
    rc = pn_diskqueue_open(seg->topics.disk, &dir,
                           seg->topics.max_body + PN_HEADERS_MAX +
                               (uint32_t) sizeof(struct pn_spilled) +
                               (seg->topics.max_channels - seg->topics.max_topics) *
                                   (uint32_t) sizeof(struct pn_spilled_delivery));
    if (rc != 0) {
        free(seg->topics.disk);
        seg->topics.disk = NULL;
    } else {
        seg->topics.disk->unmarked = true;
    }
    return rc;
}

int pn_topic_use_files_locked(struct pn_segment *seg, struct pn_topic *topic)
{
    pn_assert_topics_held(seg);
    return use_files(seg, topic);
}

/* ---- writing --------------------------------------------------------------------------------- */

static int64_t later_ns(int64_t now, int64_t by)
{
    return by <= 0 ? 0 : by > INT64_MAX - now ? INT64_MAX : now + by;
}

static struct pn_spilled head_of(const struct pn_new_message *m, const struct pn_moment *now)
{
    return (struct pn_spilled) {.id = m->id,
                                .published_ns = now->real,
                                .published_mono = now->mono,
                                .due = later_ns(now->mono, m->delay_ns),
                                .expires = later_ns(now->mono, m->ttl_ns),
                                .headers_len = m->headers_len,
                                .body_len = m->body_len};
}

int pn_topic_disk_full(const struct pn_topic *topic, uint64_t more)
{
    char asked[48] = "";
    if (more != 0)
        snprintf(asked, sizeof asked, ", this takes %llu more", (unsigned long long) more);
    return pn_fail(PN_ETOPICFULL,
                   "topic \"%.*s\" is full: max_disk_bytes is %llu bytes, %llu are used%s\n"
                   "Wait until its consumers have finished some, or raise the bound.",
                   (int) topic->name_len, topic->name,
                   (unsigned long long) pn_topic_limits(topic)->max_disk_bytes,
                   (unsigned long long) pn_topic_disk_used(topic), asked);
}

int pn_topic_disk_admit(const struct pn_topic *topic, const struct pn_diskqueue *queue,
                        uint64_t seq, uint64_t bytes, uint64_t n)
{
    const uint64_t most = pn_topic_limits(topic)->max_disk_bytes;
    struct pn_diskqueue_cursor end;
    if (most == 0)
        return 0;
    pn_diskqueue_end(queue, seq != 0, &end);
    const struct pn_diskqueue_state *now = pn_diskqueue_now(queue);
    bytes += end.sum - now->write_sum + (end.seq - now->write_seq + n) * PN_RECORD_HEADER;
    const uint64_t used = pn_topic_disk_used(topic);
    return used > most || bytes > most - used ? pn_topic_disk_full(topic, bytes) : 0;
}

/* n records behind those of *seq; `fresh`: max_disk_bytes may refuse them. */
static int stage(struct pn_segment *seg, struct pn_topic *topic, struct pn_diskqueue *queue,
                 bool fresh, const struct pn_record_in *records, size_t n, uint64_t *seq)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        bytes += pn_record_length(&records[i]);
    int rc = pn_topic_use_files_locked(seg, topic);
    if (rc == 0 && fresh)
        rc = pn_topic_disk_admit(topic, queue, *seq, bytes, n);
    if (rc == 0 && *seq != 0)
        rc = pn_diskqueue_stage_more(queue, seg->topics.disk, records, n, seq);
    else if (rc == 0)
        rc = pn_diskqueue_stage(queue, seg->topics.disk, records, n, seq);
    PN_CRASH("spilled:staged");
    return pn_disk_result(seg, rc);
}

/* `head`: what stands before the headers. */
static struct pn_record_in record_of(void *head, size_t head_len, const struct pn_new_message *m)
{
    return (struct pn_record_in) {
        .parts = 3,
        .part = {{head, head_len},
                 {(void *) (uintptr_t) m->headers, m->headers_len},
                 {(void *) (uintptr_t) m->body, m->body_len}},
    };
}

int pn_topic_spill_stage_locked(struct pn_segment *seg, struct pn_topic *topic,
                                const struct pn_new_message *m, const struct pn_moment *now,
                                uint64_t *seq)
{
    pn_assert_topics_held(seg);
    struct pn_spilled head = head_of(m, now);
    const struct pn_record_in record = record_of(&head, sizeof head, m);
    int rc = stage(seg, topic, &topic->disk, m->fresh, &record, 1, seq);
    if (rc == 0)
        topic->message_bytes -= m->headers_len; /* overflow.c, count() */
    return rc;
}

int pn_rest_stage_locked(struct pn_segment *seg, struct pn_topic *topic,
                         const struct pn_new_message *m, const struct pn_moment *now, uint64_t *seq)
{
    pn_assert_topics_held(seg);
    struct pn_spilled head = head_of(m, now);
    const struct pn_record_in record = record_of(&head, sizeof head, m);
    return stage(seg, topic, &topic->rest, m->fresh, &record, 1, seq);
}

void pn_topic_gather(struct pn_topic *topic, uint64_t queue, struct pn_topic_gathered *to)
{
    to->topic = topic;
    to->queue = pn_topic_queue(topic, queue);
    to->n = 0;
    to->bytes = 0;
    to->seq = 0;
}

int pn_topic_gathered_stage_locked(struct pn_segment *seg, struct pn_topic_gathered *g)
{
    pn_assert_topics_held(seg);
    const uint32_t n = g->n;
    g->n = 0;
    g->bytes = 0;
    return n == 0 ? 0 : stage(seg, g->topic, g->queue, g->fresh, g->record, n, &g->seq);
}

int pn_topic_gather_locked(struct pn_segment *seg, struct pn_topic_gathered *g,
                           const struct pn_new_message *m, const struct pn_moment *now)
{
    pn_assert_topics_held(seg);
    g->fresh = m->fresh;
    g->head[g->n] = head_of(m, now);
    g->record[g->n] = record_of(&g->head[g->n], sizeof g->head[0], m);
    g->bytes += pn_record_length(&g->record[g->n]);
    g->n++;
    return g->n < PN_TOPIC_GATHER && g->bytes < PN_TOPIC_GATHER_BYTES
               ? 0
               : pn_topic_gathered_stage_locked(seg, g);
}

/* The sentence is that of the refusal. */
void pn_topic_gathered_drop_locked(struct pn_segment *seg, struct pn_topic_gathered *g)
{
    pn_assert_topics_held(seg);
    if (g->seq != 0)
        pn_diskqueue_take_back(g->queue, seg->topics.disk);
    g->n = 0;
    g->seq = 0;
}

/* The same of one that was given to its channels already. */
static int stage_given(struct pn_segment *seg, struct pn_topic *topic, struct pn_diskqueue *queue,
                       const struct pn_new_message *m, const struct pn_moment *then,
                       const struct pn_spilled_deliveries *given, uint64_t *seq)
{
    struct pn_spilled head = head_of(m, then);
    head.fanned_out = 1;
    head.deliveries = given->n;
    char *bytes = malloc(sizeof head + pn_spilled_given_bytes(&head));
    if (bytes == NULL)
        return pn_fail(ENOMEM, "out of memory");
    memcpy(bytes, &head, sizeof head);
    memcpy(bytes + sizeof head, given->bytes, pn_spilled_given_bytes(&head));
    const struct pn_record_in record =
        record_of(bytes, sizeof head + pn_spilled_given_bytes(&head), m);
    int rc = stage(seg, topic, queue, m->fresh, &record, 1, seq);
    free(bytes);
    return rc;
}

int pn_rest_stage_given_locked(struct pn_segment *seg, struct pn_topic *topic,
                               const struct pn_new_message *m, const struct pn_moment *then,
                               const struct pn_spilled_deliveries *given, uint64_t *seq)
{
    pn_assert_topics_held(seg);
    return stage_given(seg, topic, &topic->rest, m, then, given, seq);
}

int pn_later_stage_locked(struct pn_segment *seg, struct pn_topic *topic,
                          const struct pn_new_message *m, const struct pn_moment *then,
                          const struct pn_spilled_deliveries *given, uint64_t *seq)
{
    pn_assert_topics_held(seg);
    return stage_given(seg, topic, &topic->later, m, then, given, seq);
}

void pn_topic_spill_commit_locked(struct pn_segment *seg, struct pn_topic *topic, uint64_t seq)
{
    pn_assert_topics_held(seg);
    seg->topics.ctl->spilled = 1;
    PN_CRASH("spilled:told");
    pn_diskqueue_commit(&topic->disk, seq);
    PN_CRASH("spilled:committed");
}

int pn_topic_spill_again_locked(struct pn_segment *seg, struct pn_topic *topic,
                                const struct pn_new_message *m, const struct pn_moment *then)
{
    pn_assert_topics_held(seg);
    uint64_t seq = 0;
    int rc = pn_topic_spill_stage_locked(seg, topic, m, then, &seq);
    if (rc == 0)
        pn_topic_spill_commit_locked(seg, topic, seq);
    return rc;
}

/* ---- reading --------------------------------------------------------------------------------- */

bool pn_spilled_delivery_locked(const struct pn_segment *seg, const struct pn_topic *topic,
                                const struct pn_spilled_deliveries *given, uint32_t i,
                                struct pn_spilled_delivery *out)
{
    pn_assert_topics_held(seg);
    memcpy(out, (const char *) given->bytes + i * sizeof *out, sizeof *out);
    const struct pn_topic_channel *ch = pn_topic_channel_at(seg, out->channel);
    return out->channel >= seg->topics.max_topics && out->channel < seg->topics.max_channels &&
           pn_load_relaxed(&ch->state) == PN_RECORD_USED && ch->generation == out->generation &&
           ch->topic == (uint32_t) (topic - seg->topics.topic) && out->order >= ch->discarded_below;
}

void pn_topic_disk_redo_set_locked(struct pn_segment *seg, const struct pn_topic *topic,
                                   const struct pn_record_out *record)
{
    pn_assert_topics_held(seg);
    struct pn_topic_redo *redo = &seg->topics.ctl->redo;
    redo->disk_seq = record->seq;
    redo->disk_sum = record->sum + record->length;
    redo->disk_file = record->file;
    redo->disk_at = record->next;
    redo->disk = (uint32_t) (topic - seg->topics.topic) + 1;
}

bool pn_spilled_parse(const struct pn_segment *seg, const struct pn_record_out *record,
                      struct pn_spilled *head, struct pn_new_message *m, struct pn_moment *then)
{
    if (record->length < sizeof *head)
        return false;
    memcpy(head, record->body, sizeof *head);
    const uint8_t *headers = record->body + sizeof *head + pn_spilled_given_bytes(head);
    *then = (struct pn_moment) {.mono = head->published_mono, .real = head->published_ns};
    *m = (struct pn_new_message) {.body = headers + head->headers_len,
                                  .headers = headers,
                                  .body_len = head->body_len,
                                  .headers_len = head->headers_len,
                                  .id = head->id,
                                  .delay_ns = head->due == 0 ? 0 : head->due - then->mono,
                                  .ttl_ns = head->expires == 0 ? 0 : head->expires - then->mono};
    return head->body_len <= seg->topics.max_body && head->headers_len <= PN_HEADERS_MAX &&
           sizeof *head + pn_spilled_given_bytes(head) + head->headers_len + head->body_len ==
               record->length;
}

static struct pn_spilled_deliveries deliveries_in(const struct pn_record_out *record,
                                                  const struct pn_spilled *head)
{
    return (struct pn_spilled_deliveries) {record->body + sizeof *head, head->deliveries};
}

/* `queue`: PN_REST_SEQ, PN_LATER_SEQ, or 0 */
static int look_at_cursor(struct pn_segment *seg, struct pn_topic *topic, uint64_t queue,
                          struct pn_diskqueue_cursor *cursor, struct pn_topic_on_disk *out)
{
    struct pn_record_out record;
    struct pn_spilled head;
    int rc = pn_topic_use_files_locked(seg, topic);
    if (rc == 0)
        rc = pn_diskqueue_look(pn_topic_queue(topic, queue), seg->topics.disk, cursor, &record);
    if (rc != 1)
        return rc;
    *out = (struct pn_topic_on_disk) {.seq = record.seq | queue, .bytes = record.length};
    if (!pn_spilled_parse(seg, &record, &head, &out->m, &out->then))
        return 1;
    out->deliveries = deliveries_in(&record, &head);
    if (pn_topic_is_buried_locked(seg, topic, out->seq))
        return 1;
    out->there = true;
    out->due = head.due;
    out->expires = head.expires;
    out->given = head.fanned_out != 0;
    return 1;
}

int pn_topic_disk_look_locked(struct pn_segment *seg, struct pn_topic *topic,
                              struct pn_diskqueue_cursor *cursor, struct pn_topic_on_disk *out)
{
    pn_assert_topics_held(seg);
    return look_at_cursor(seg, topic, 0, cursor, out);
}

int pn_rest_look_locked(struct pn_segment *seg, struct pn_topic *topic,
                        struct pn_diskqueue_cursor *cursor, struct pn_topic_on_disk *out)
{
    pn_assert_topics_held(seg);
    return look_at_cursor(seg, topic, PN_REST_SEQ, cursor, out);
}

int pn_later_look_locked(struct pn_segment *seg, struct pn_topic *topic,
                         struct pn_diskqueue_cursor *cursor, struct pn_topic_on_disk *out)
{
    pn_assert_topics_held(seg);
    return look_at_cursor(seg, topic, PN_LATER_SEQ, cursor, out);
}

/* ---- the end --------------------------------------------------------------------------------- */

/* How many there were, and how much, is as before. */
static void forget_all(struct pn_segment *seg, struct pn_topic *topic)
{
    uint64_t n = pn_topic_on_disk(topic), bytes = pn_topic_disk_bytes(topic);
    pn_diskqueue_empty(&topic->disk, seg->topics.disk); /* files that stay, a later one removes */
    topic->message_count += n;
    topic->message_bytes += bytes;
    pn_tombstones_passed_locked(seg, topic);
}

int pn_topic_disk_empty_locked(struct pn_segment *seg, struct pn_topic *topic)
{
    pn_assert_topics_held(seg);
    if (topic->disk.max_file == 0)
        return 0; /* it was never used */
    int rc = pn_topic_use_files_locked(seg, topic);
    if (rc == 0)
        forget_all(seg, topic);
    return rc;
}

void pn_topic_disk_delete_locked(struct pn_segment *seg, struct pn_topic *topic)
{
    pn_assert_topics_held(seg);
    if (topic->disk.max_file != 0 && pn_topic_use_files_locked(seg, topic) == 0) {
        forget_all(seg, topic);
        pn_diskqueue_empty(&topic->rest, seg->topics.disk);
        pn_diskqueue_empty(&topic->later, seg->topics.disk);
        pn_tombstones_passed_locked(seg, topic);
    }
}

/* The segment is gone: its lock is not to be had any more. */
void pn_topics_remove_files(struct pn_segment *seg)
{
    if (!pn_topics_ready(seg) || seg->data_dir[0] == '\0')
        return;
    for (uint32_t i = 0; i < seg->topics.ctl->topic_end && i < seg->topics.max_topics; i++) {
        struct pn_topic *topic = &seg->topics.topic[i];
        if (topic->disk.max_file == 0 || use_files(seg, topic) != 0)
            continue;
        pn_diskqueue_remove(&topic->disk, seg->topics.disk);
        pn_diskqueue_remove(&topic->rest, seg->topics.disk);
        pn_diskqueue_remove(&topic->later, seg->topics.disk);
    }
}
