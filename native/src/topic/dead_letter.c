/*
 * dead_letter.c - what is given up goes to another topic, as a copy.
 *
 * 1. A dead letter is a copy in another topic.  The copy is staged, in memory, or, if there is no
 *    room or something is there already, on disk; then a redo record names it and the delivery,
 *    and the store of its `valid` is the commit point of both.
 * 2. Headers are a JSON object, or nothing, as far as this file is concerned: what it adds to
 *    those of a dead letter is put at the end of the object.  If they are something else they are
 *    replaced.
 */
#define _GNU_SOURCE
#include "topic/dead_letter.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crashpoint.h"
#include "base/moment.h"
#include "segment/arena_body.h"
#include "segment/lock.h"
#include "topic/admission.h"
#include "topic/area.h"
#include "topic/cursors.h"
#include "topic/delivery.h"
#include "topic/journal.h"
#include "topic/message.h"
#include "topic/notes.h"
#include "topic/on_disk.h"
#include "topic/pump.h"
#include "topic/settings.h"
#include "topic/staging.h"
#include "topic/tables.h"
#include "topic/waiting.h"

static size_t put(char *to, size_t at, size_t cap, const char *text, size_t len)
{
    for (size_t i = 0; i < len && at + 7 < cap; i++) {
        unsigned char c = (unsigned char) text[i];
        if (c == '"' || c == '\\') {
            to[at++] = '\\';
            to[at++] = (char) c;
        } else if (c < 0x20 || c == 0x7f) {
            at += (size_t) snprintf(to + at, cap - at, "\\u%04x", c);
        } else {
            to[at++] = (char) c;
        }
    }
    return at;
}

static size_t field(char *to, size_t at, size_t cap, const char *key, const char *text, size_t len)
{
    const char *comma = to[at - 1] == '{' ? "" : ",";
    at += (size_t) snprintf(to + at, cap - at, "%s\"dead-letter-%s\":\"", comma, key);
    at = put(to, at, cap, text, len);
    to[at++] = '"';
    return at;
}

/* The room was made for names that can be. */
static uint32_t name_length(const uint32_t *len)
{
    uint32_t n = *(volatile const uint32_t *) len;
    return n <= PN_TOPIC_NAME_MAX ? n : 0;
}

/* Behind the `len` bytes of headers that stand in `to`; how long they are then. */
static size_t dead_headers(const struct pn_segment *seg, const struct pn_delivery *d, char *to,
                           size_t len, size_t cap, const char *reason, size_t reason_len)
{
    const struct pn_topic_channel *ch = pn_topic_channel_at(seg, d->channel);
    const struct pn_topic *topic = pn_topic_of(seg, ch);
    char id[17];
    size_t at = len;
    while (at > 0 && (to[at - 1] == ' ' || to[at - 1] == '\n'))
        at--;
    if (at >= 2 && to[0] == '{' && to[at - 1] == '}') {
        at--;
    } else {
        to[0] = '{';
        at = 1;
    }
    snprintf(id, sizeof id, "%016llx", (unsigned long long) pn_message_at(seg, d->message)->id);
    at = field(to, at, cap, "topic", topic->name, name_length(&topic->name_len));
    at = field(to, at, cap, "channel", ch->name, name_length(&ch->name_len));
    at = field(to, at, cap, "id", id, 16);
    at += (size_t) snprintf(to + at, cap - at, ",\"dead-letter-attempts\":\"%u\"",
                            pn_state_attempts(pn_load_relaxed(&d->state)));
    at = reason_len != 0 ? field(to, at, cap, "reason", reason, reason_len)
                         : field(to, at, cap, "reason", "max_attempts", 12);
    to[at++] = '}';
    return at;
}

/* While a commit is on its way there, nothing else goes behind what that has staged. */
static int spill_copy(struct pn_segment *seg, struct pn_topic *to, const struct pn_new_message *m,
                      const struct pn_moment *now, struct pn_dead_letter *out)
{
    if (to->disk_staged != 0 || m->headers_len > PN_HEADERS_MAX)
        return pn_fail(PN_ETOPICFULL, "there is no room for a dead letter in topic \"%.*s\"",
                       (int) to->name_len, to->name);
    int rc = pn_topic_spill_stage_locked(seg, to, m, now, &out->spill_seq);
    if (rc != 0)
        return rc;
    out->spilled = (uint32_t) (to - seg->topics.topic) + 1;
    out->headers_len = m->headers_len;
    pn_durable_note_spilled_locked(seg, to, m, now, false);
    return 0;
}

/* Topic and bodies are there: stage the copy. */
static int stage_copy(struct pn_segment *seg, struct pn_topic *to, const struct pn_delivery *d,
                      struct pn_lengths there, unsigned char *buf, size_t cap, const char *reason,
                      size_t reason_len, bool backlog, bool on_disk, struct pn_dead_letter *out)
{
    const struct pn_message *m = pn_message_at(seg, d->message);
    const struct pn_arena *mem = &seg->topics.arena;
    size_t skip, keep;
    char *headers = (char *) buf + there.body;
    if (!pn_arena_read(mem, d->message, sizeof *m, there.headers, buf, there.body) ||
        !pn_arena_read(mem, d->message, sizeof *m, 0, headers, there.headers))
        return pn_segment_poison(seg, "the body of message %016llx is broken",
                                 (unsigned long long) m->id);
    size_t len = dead_headers(seg, d, headers, there.headers, cap - there.body, reason, reason_len);
    const struct pn_moment now = pn_moment_now();
    const struct pn_new_message copy = {.body = buf,
                                        .headers = headers,
                                        .body_len = there.body,
                                        .headers_len = (uint32_t) len,
                                        .ttl_ns = pn_topic_ttl(to, 0),
                                        .fresh = true,
                                        .id = pn_fetch_add_relaxed(&seg->topics.ctl->next_id, 1)};
    if (on_disk && pn_topic_spills_locked(seg, to, 1))
        return spill_copy(seg, to, &copy, &now, out);
    int rc = pn_message_admit_locked(seg, to, 1, &skip, &keep);
    if (rc != 0 || skip >= keep)
        return rc;
    rc = pn_message_stage_if_room_locked(seg, to, &copy, &now, backlog, &out->ref);
    if (rc == PN_NO_ROOM)
        rc = pn_message_make_room_locked(seg, to, &copy, &now, backlog, &out->ref);
    return rc == -PN_ETOPICFULL && on_disk && pn_topic_may_spill(seg, to)
               ? spill_copy(seg, to, &copy, &now, out)
               : rc;
}

int pn_dead_letter_stage_locked(struct pn_segment *seg, uint32_t delivery, const char *reason,
                                size_t reason_len, bool backlog, bool on_disk,
                                struct pn_dead_letter *out)
{
    pn_assert_topics_held(seg);
    *out = (struct pn_dead_letter) {.ref = 0};
    const struct pn_delivery *d = pn_delivery_at(seg, delivery);
    const struct pn_giving_up up =
        pn_giving_up_of(pn_topic_channel_at(seg, d->channel),
                        pn_consumer_at(seg, pn_state_consumer(pn_load_relaxed(&d->state))));
    const struct pn_lengths there = pn_message_lengths(pn_message_at(seg, d->message));
    uint32_t dboid = pn_topic_of(seg, pn_topic_channel_at(seg, d->channel))->dboid;
    const struct pn_topic *from = pn_topic_of(seg, pn_topic_channel_at(seg, d->channel));
    const pn_topic_options durable = {
        .given = PN_TOPIC_DURABLE | PN_TOPIC_FSYNC, .durable = 1, .fsync = from->fsync};
    struct pn_topic *to =
        pn_topic_make_locked(seg, dboid, up.dead_letter,
                             up.dead_letter_len <= PN_TOPIC_NAME_MAX ? up.dead_letter_len : 0,
                             pn_is_durable(seg, from) ? &durable : NULL);
    if (to == NULL)
        return pn_fail(PN_ETOPICS, "there is no room for the dead-letter topic \"%.*s\"",
                       (int) up.dead_letter_len, up.dead_letter);
    if (reason_len > 1024)
        reason_len = 1024;
    size_t cap = there.both + 6 * reason_len + 1024; /* and the topic's and the channel's names */
    unsigned char *buf = malloc(cap);
    if (buf == NULL)
        return pn_fail(ENOMEM, "out of memory");
    int rc = stage_copy(seg, to, d, there, buf, cap, reason, reason_len, backlog, on_disk, out);
    free(buf);
    return rc;
}

int pn_message_dead_letter_locked(struct pn_segment *seg, uint32_t delivery, const char *reason,
                                  size_t reason_len)
{
    pn_assert_topics_held(seg);
    struct pn_topic_redo *redo = &seg->topics.ctl->redo;
    struct pn_delivery *d = pn_delivery_at(seg, delivery);
    uint64_t word = pn_load_relaxed(&d->state);
    struct pn_dead_letter copy;
    int rc = pn_dead_letter_stage_locked(seg, delivery, reason, reason_len, false, true, &copy);
    if (rc != 0)
        return rc;
    pn_topic_channel_at(seg, d->channel)->dead_lettered++;
    if (copy.ref == 0 && copy.spilled == 0) {
        pn_delivery_end_locked(seg, delivery);
        return 0;
    }
    const struct pn_topic *from = pn_topic_of(seg, pn_topic_channel_at(seg, d->channel));
    struct pn_topic *to =
        pn_topic_at(seg, copy.ref != 0 ? pn_message_at(seg, copy.ref)->topic : copy.spilled - 1);
    if (copy.ref != 0)
        pn_durable_note_publish_locked(seg, copy.ref);
    if (pn_is_durable(seg, from)) {
        const struct pn_answer_redo gone = {.word = pn_state_word(PN_KIND_FREE, 0, 0, 0)};
        pn_durable_note_answer_locked(seg, delivery, &gone);
    }
    if (pn_is_durable(seg, from) || pn_is_durable(seg, to))
        rc = pn_durable_flush_locked(seg); /* both in one batch */
    if (rc != 0) {
        pn_topic_channel_at(seg, d->channel)->dead_lettered--;
        if (copy.ref != 0)
            pn_message_unstage_locked(seg, copy.ref);
        else /* overflow.c, count() */
            pn_topic_at(seg, copy.spilled - 1)->message_bytes += copy.headers_len;
        return rc;
    }
    redo->messages = copy.ref;
    redo->delivery = delivery;
    redo->expected = word;
    redo->disk = 0;
    redo->spill = copy.spilled;
    redo->rest = 0;
    redo->spill_seq = copy.spill_seq;
    PN_CRASH("answer:redo");
    pn_store_release(&redo->valid, 1); /* both, from here on */
    PN_CRASH("answer:redo-valid");
    if (copy.spilled != 0)
        pn_topic_spill_commit_locked(seg, pn_topic_at(seg, copy.spilled - 1), copy.spill_seq);
    pn_store_release(&d->state, pn_state_word(PN_KIND_FREE, 0, 0, pn_state_tag(word)));
    PN_CRASH("answer:dead");
    pn_message_golive_locked(seg, copy.ref);
    pn_topics_hold(seg)->told =
        true; /* a batch counts whole: nothing of it is said outside of it */
    pn_delivery_ended_locked(seg, delivery, word);
    pn_topics_hold(seg)->told = false;
    pn_topic_pump_locked(seg, to);
    pn_topic_settle_locked(seg, to);
    return 0;
}
