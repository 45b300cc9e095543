/* publish.c - one message or many are published, each call a transaction of its own. */
#define _GNU_SOURCE
#include "topic/publish.h"

#include "base/crashpoint.h"
#include "base/moment.h"
#include "segment/lock.h"
#include "topic/admission.h"
#include "topic/area.h"
#include "topic/channel_room.h"
#include "topic/cursors.h"
#include "topic/drop.h"
#include "topic/end.h"
#include "topic/frontier.h"
#include "topic/journal.h"
#include "topic/latency.h"
#include "topic/message.h"
#include "topic/notes.h"
#include "topic/on_disk.h"
#include "topic/overflow.h"
#include "topic/pump.h"
#include "topic/rest.h"
#include "topic/returns.h"
#include "topic/settings.h"
#include "topic/staging.h"
#include "topic/tables.h"
#include "wakeup/make_way.h"

enum {
    PN_LOOK_STEPS = 4096,
    PN_LOOKS = 256 /* of a caller, if consumers give back all the time */
};

static int enter_topic(struct pn_conn *conn, struct pn_hold *hold, pn_ref ref,
                       struct pn_topic **topic)
{
    int rc = pn_lock_topics_wait(conn->seg, hold, PN_LOCK_TIMEOUT_NS, conn);
    if (rc != 0)
        return rc;
    rc = pn_conn_check_slot(conn);
    *topic = rc == 0 ? pn_topic_resolve_locked(conn, ref) : NULL;
    if (*topic == NULL) {
        pn_lock_release(conn->seg);
        return rc != 0 ? rc : -PN_ETOPICDELETED;
    }
    return 0;
}

/* What may have to be dropped is found before it must be, a piece in each hold of the lock. */
static bool looks_further_locked(struct pn_segment *seg, struct pn_topic *topic)
{
    pn_assert_topics_held(seg);
    uint32_t steps = PN_LOOK_STEPS;
    return topic->overflow == PN_OVERFLOW_DROP_OLDEST &&
           pn_frontier_find_locked(seg, topic, &steps) == 0 && steps == 0;
}

int pn_topic_look_ahead(struct pn_conn *conn, struct pn_hold *hold, pn_ref ref,
                        struct pn_topic **topic)
{
    int rc = enter_topic(conn, hold, ref, topic);
    for (int i = 0; rc == 0 && i < PN_LOOKS && looks_further_locked(conn->seg, *topic); i++) {
        pn_lock_release(conn->seg);
        pn_lock_stand_back(0);
        rc = enter_topic(conn, hold, ref, topic);
    }
    return rc;
}

int pn_topic_enter(struct pn_conn *conn, struct pn_hold *hold, pn_ref ref, struct pn_topic **topic)
{
    int rc = pn_topic_look_ahead(conn, hold, ref, topic);
    if (rc == 0)
        pn_topics_begin_locked(conn->seg);
    return rc;
}

/* What timed out for the last time makes room as well: before its topic's bound or policy decides.
 * (A dead letter does not see to that, admission.c.) */
int pn_publish_admit_locked(struct pn_segment *seg, struct pn_topic *topic, size_t n, size_t *skip,
                            size_t *keep)
{
    pn_assert_topics_held(seg);
    if (__builtin_expect(pn_topic_would_be_too_deep(topic, n), 0))
        pn_topic_tick_locked(seg, topic);
    return pn_message_admit_locked(seg, topic, n, skip, keep);
}

int pn_publish_stage_locked(struct pn_segment *seg, struct pn_topic *topic,
                            const struct pn_new_message *m, const struct pn_moment *now,
                            bool backlog, uint32_t *ref)
{
    pn_assert_topics_held(seg);
    int rc = pn_message_stage_if_room_locked(seg, topic, m, now, backlog, ref);
    if (__builtin_expect(rc != PN_NO_ROOM, 1))
        return rc;
    pn_topic_tick_locked(seg, topic);
    return pn_message_make_room_locked(seg, topic, m, now, backlog, ref);
}

static int publish_locked(struct pn_segment *seg, struct pn_topic *topic, struct pn_new_message *m)
{
    pn_assert_topics_held(seg);
    struct pn_moment now = pn_moment_now();
    size_t skip = 0, keep = 1;
    uint32_t ref = 0;
    m->fits = pn_rest_runs(seg, topic);
    if (m->fits && pn_rest_splits_locked(seg, topic, (uint64_t) m->headers_len + m->body_len,
                                         m->delay_ns > 0 || m->ttl_ns > 0))
        return pn_rest_publish_locked(seg, topic, m, m->body, &m->body_len, 1);
    bool spill = pn_topic_spills_locked(seg, topic, 1);
    int rc = spill ? 0 : pn_publish_admit_locked(seg, topic, 1, &skip, &keep);
    if (rc == 0 && skip < keep && !spill)
        rc = pn_publish_stage_locked(seg, topic, m, &now, false, &ref);
    if (spill || (rc == -PN_ETOPICFULL && pn_topic_may_spill(seg, topic)))
        return pn_rest_or_spill_locked(seg, topic, m, m->body, &m->body_len, 1);
    if (rc != 0 || ref == 0)
        return rc;
    pn_durable_note_publish_locked(seg, ref);
    rc = pn_is_durable(seg, topic) ? pn_durable_flush_locked(seg) : 0;
    if (rc != 0) {
        pn_message_unstage_locked(seg, ref);
        return rc;
    }
    PN_CRASH("publish:before-live");
    pn_store_release(&pn_message_at(seg, ref)->state, PN_MSG_LIVE); /* published */
    PN_CRASH("publish:after-live");
    pn_message_link_locked(seg, ref);
    return 0;
}

static void release_after_publish(struct pn_conn *conn)
{
    bool woken = pn_topics_hold(conn->seg)->nwakes != 0;
    pn_lock_release(conn->seg);
    if (woken)
        pn_make_way_for_consumers(conn);
}

int pn_message_publish(struct pn_conn *conn, pn_ref ref, const pn_message_in *in, uint64_t *id)
{
    struct pn_hold hold;
    struct pn_segment *seg = conn->seg;
    struct pn_topic *topic;
    struct pn_new_message m = {.body = in->body,
                               .headers = in->headers,
                               .body_len = (uint32_t) in->body_len,
                               .headers_len = (uint32_t) in->headers_len,
                               .delay_ns = in->delay_ns,
                               .ttl_ns = in->ttl_ns,
                               .fresh = true};
    int rc = pn_topic_enter(conn, &hold, ref, &topic);
    if (rc != 0)
        return rc;
    m.ttl_ns = pn_topic_ttl(topic, m.ttl_ns);
    *id = m.id = pn_fetch_add_relaxed(&seg->topics.ctl->next_id, 1);
    rc = publish_locked(seg, topic, &m);
    if (rc == 0)
        pn_topic_go_on_locked(seg, topic);
    bool log = __builtin_expect(conn->log != NULL, 0);
    struct pn_topic_note note;
    if (log)
        note.len = pn_log_topic_name(topic, note.name);
    pn_topics_end_locked(seg);
    PN_CRASH("publish:done");
    release_after_publish(conn);
    if (log && rc == 0)
        pn_log_publish(conn, &note, m.id, m.body_len);
    return rc;
}

/* Those that were published so far of a publish_many that fails. */
static void take_back_locked(struct pn_segment *seg, struct pn_topic *topic, uint64_t first_id)
{
    pn_assert_topics_held(seg);
    uint32_t steps = 0;
    while (topic->newest != 0 && pn_message_at(seg, topic->newest)->id >= first_id &&
           pn_cells_go_on(seg, &steps)) {
        const struct pn_message *m = pn_message_at(seg, topic->newest);
        topic->message_count--;
        topic->message_bytes -= m->body_len;
        PN_EACH_DELIVERY (seg, m, at)
            pn_topic_channel_at(seg, pn_delivery_at(seg, at)->channel)->message_count--;
        pn_message_discard_locked(seg, topic->newest);
        PN_CRASH("publish:taken-back");
    }
}

static int publish_many_locked(struct pn_segment *seg, struct pn_topic *topic,
                               struct pn_new_message *m, const unsigned char *bodies,
                               const uint32_t *lens, size_t n)
{
    pn_assert_topics_held(seg);
    struct pn_topic_redo *redo = &seg->topics.ctl->redo;
    struct pn_moment now = pn_moment_now();
    uint64_t first_id = m->id;
    size_t skip, keep;
    uint32_t ref;
    int rc = pn_publish_admit_locked(seg, topic, n, &skip, &keep);
    redo->void_first = first_id;
    PN_CRASH("publish:many");
    pn_store_release(&redo->void_n, n);
    for (size_t i = 0; rc == 0 && i < keep; bodies += lens[i], i++, m->id++) {
        if (i < skip)
            continue;
        m->body = bodies;
        m->body_len = lens[i];
        rc = pn_publish_stage_locked(seg, topic, m, &now, false, &ref);
        if (rc != 0 || ref == 0)
            continue;
        pn_store_release(&pn_message_at(seg, ref)->state, PN_MSG_LIVE);
        PN_CRASH("publish:one-of-many");
        pn_message_link_locked(seg, ref);
        pn_durable_note_publish_locked(seg, ref);
    }
    if (rc == 0 && pn_is_durable(seg, topic))
        rc = pn_durable_flush_locked(seg);
    if (rc != 0) { /* the log has none of it, and is told nothing of their end */
        pn_durable_forget_locked(seg);
        pn_topics_hold(seg)->told = true;
        take_back_locked(seg, topic, first_id);
        pn_topics_hold(seg)->told = false;
    }
    PN_CRASH("publish:before-all");
    pn_store_release(&redo->void_n, 0); /* published, all of them */
    PN_CRASH("publish:after-all");
    return rc;
}

int pn_message_publish_many(struct pn_conn *conn, pn_ref ref, const unsigned char *bodies,
                            const uint32_t *lens, size_t n, const pn_message_in *common,
                            uint64_t *first_id)
{
    struct pn_hold hold;
    struct pn_segment *seg = conn->seg;
    struct pn_topic *topic;
    struct pn_new_message m = {.fresh = true};
    if (common != NULL)
        m = (struct pn_new_message) {.headers = common->headers,
                                     .headers_len = (uint32_t) common->headers_len,
                                     .delay_ns = common->delay_ns,
                                     .ttl_ns = common->ttl_ns,
                                     .fresh = true};
    int rc = pn_topic_enter(conn, &hold, ref, &topic);
    if (rc != 0)
        return rc;
    m.ttl_ns = pn_topic_ttl(topic, m.ttl_ns);
    *first_id = m.id = pn_fetch_add_relaxed(&seg->topics.ctl->next_id, n);
    const struct pn_new_message all = m;
    bool spill = pn_topic_spills_locked(seg, topic, n) ||
                 (pn_rest_runs(seg, topic) &&
                  pn_rest_splits_locked(seg, topic, (uint64_t) m.headers_len + lens[0],
                                        m.delay_ns > 0 || m.ttl_ns > 0));
    if (!spill)
        rc = publish_many_locked(seg, topic, &m, bodies, lens, n);
    if (spill || (rc == -PN_ETOPICFULL && pn_topic_may_spill(seg, topic)))
        rc = pn_rest_or_spill_locked(seg, topic, &all, bodies, lens, n);
    if (rc == 0)
        pn_topic_go_on_locked(seg, topic);
    bool log = rc == 0 && __builtin_expect(conn->log != NULL, 0);
    struct pn_topic_note note;
    if (log)
        note.len = pn_log_topic_name(topic, note.name);
    pn_topics_end_locked(seg);
    release_after_publish(conn);
    for (size_t i = 0; log && i < n; i++)
        pn_log_publish(conn, &note, *first_id + i, lens[i]);
    return rc;
}
