/* latency.c - see latency.h. */
#include "topic/latency.h"

#include <string.h>

#include "backend/channel.h"
#include "segment/lock.h"
#include "topic/area.h"

uint32_t pn_log_topic_name(const struct pn_topic *topic, char name[PN_LOG_NAME])
{
    uint32_t len = topic->name_len <= PN_TOPIC_NAME_MAX ? topic->name_len : 0;
    memcpy(name, topic->name, len);
    return len;
}

uint32_t pn_log_channel_name(const struct pn_segment *seg, const struct pn_topic_channel *ch,
                             char name[PN_LOG_NAME])
{
    uint32_t at = pn_log_topic_name(pn_topic_of(seg, ch), name);
    uint32_t len = ch->name_len <= PN_TOPIC_NAME_MAX ? ch->name_len : 0;
    name[at++] = ':';
    memcpy(name + at, ch->name, len);
    return at + len;
}

void pn_note_delivery_locked(const struct pn_segment *seg, struct pn_topic_note *note,
                             enum pn_latkind kind, uint32_t delivery, int64_t now)
{
    pn_assert_topics_held(seg);
    const struct pn_delivery *d = pn_delivery_at(seg, delivery);
    const struct pn_message *m = pn_message_at(seg, d->message);
    uint32_t attempts = pn_state_attempts(pn_load_relaxed(&d->state));
    note->rec = (struct pn_latrec) {.ts = (uint64_t) now,
                                    .ref_ts = (uint64_t) m->published_mono,
                                    .commit_seq = m->id,
                                    .bytes = m->body_len,
                                    .kind = (uint8_t) kind,
                                    .attempts = (uint8_t) (attempts < 255 ? attempts : 255)};
    note->len = pn_log_channel_name(seg, pn_topic_channel_at(seg, d->channel), note->name);
}

void pn_note_timeout_locked(const struct pn_segment *seg, uint32_t delivery, int64_t now)
{
    pn_assert_topics_held(seg);
    struct pn_topic_notes *notes = pn_topics_hold(seg)->notes;
    if (notes != NULL && notes->n < PN_TOPIC_NOTES)
        pn_note_delivery_locked(seg, &notes->note[notes->n++], PN_LAT_TIMEOUT, delivery, now);
}

void pn_log_note(struct pn_conn *conn, struct pn_topic_note *note)
{
    uint64_t hash = pn_channel_hash(conn->dboid, note->name, note->len);
    note->rec.peer = conn->slot;
    pthread_mutex_lock(&conn->log_mutex);
    note->rec.channel = pn_latlog_number(conn->log, hash, conn->dboid, note->name, note->len);
    pn_latlog_append(conn->log, &note->rec);
    pthread_mutex_unlock(&conn->log_mutex);
}

void pn_log_notes(struct pn_conn *conn, struct pn_topic_notes *notes)
{
    for (uint32_t i = 0; i < notes->n; i++)
        pn_log_note(conn, &notes->note[i]);
}

void pn_log_publish(struct pn_conn *conn, struct pn_topic_note *note, uint64_t id, uint32_t bytes)
{
    note->rec = (struct pn_latrec) {
        .ts = (uint64_t) pn_now_ns(), .commit_seq = id, .bytes = bytes, .kind = PN_LAT_PUBLISH};
    pn_log_note(conn, note);
}
