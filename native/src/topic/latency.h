/*
 * latency.h - what topics write into a connection's latency log; latency_log.h has the records.
 *
 * Never under the writer lock: what is known only there is noted, and written after the release.
 */
#ifndef PN_TOPIC_LATLOG_H
#define PN_TOPIC_LATLOG_H

#include "files/latency_log.h"
#include "topic/area.h"

enum { PN_TOPIC_NOTES = 32, PN_LOG_NAME = 2 * PN_TOPIC_NAME_MAX + 1 };

/* One record to be written, and the name that it is about: "topic", or "topic:channel". */
struct pn_topic_note {
    struct pn_latrec rec;
    uint32_t len;
    char name[PN_LOG_NAME];
};

/* Those of one hold of the lock. */
struct pn_topic_notes {
    uint32_t n;
    struct pn_topic_note note[PN_TOPIC_NOTES];
};

/* The name of a topic, or of a channel; returns its length. */
uint32_t pn_log_topic_name(const struct pn_topic *topic, char name[PN_LOG_NAME]);
uint32_t pn_log_channel_name(const struct pn_segment *seg, const struct pn_topic_channel *ch,
                             char name[PN_LOG_NAME]);

/* FIN, REQ or TIMEOUT of a delivery that is in flight.  Lock held. */
void pn_note_delivery_locked(const struct pn_segment *seg, struct pn_topic_note *note,
                             enum pn_latkind kind, uint32_t delivery, int64_t now);
/* Record a time-out, if this hold of the lock collects notes (hold.h). */
void pn_note_timeout_locked(const struct pn_segment *seg, uint32_t delivery, int64_t now);
/* There is no room for another: time-outs can wait. */
static inline bool pn_notes_full(const struct pn_segment *seg)
{
    const struct pn_topic_notes *notes = pn_topics_hold(seg)->notes;
    return notes != NULL && notes->n == PN_TOPIC_NOTES;
}

/* Lock not held; the connection has a log. */
void pn_log_note(struct pn_conn *conn, struct pn_topic_note *note);
/* A message was published in the topic that the note names. */
void pn_log_publish(struct pn_conn *conn, struct pn_topic_note *note, uint64_t id, uint32_t bytes);
void pn_log_notes(struct pn_conn *conn, struct pn_topic_notes *notes);

#endif
