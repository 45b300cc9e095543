/* journal.c - what was noted is written to the segment's log (durable.c 1 to 3). */
#include "topic/journal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/crashpoint.h"
#include "segment/dirlock.h"
#include "segment/lock.h"
#include "topic/carry.h"
#include "topic/notes.h"
#include "topic/on_disk.h"

_Thread_local int pn_sync_error;

int pn_durable_unwritten(struct pn_segment *seg, int rc)
{
    seg->topics.ctl->log_behind = 1;
    pn_sync_error = rc == -PN_EDISKFULL ? -ENOSPC : rc;
    return 0;
}

const char *pn_durable_reason(int error)
{
    return error == PN_EDATADIR ? "the log is another segment's"
           : error == PN_EGONE  ? "the segment was unlinked"
                                : strerror(error);
}

int pn_durable_failed(const struct pn_segment *seg)
{
    int error = pn_sync_error;
    pn_sync_error = 0;
    if (error < 0)
        return pn_fail(PN_ESYNC,
                       "it has happened, but is not in the log in %s/%s, which could not be "
                       "written (%s): if all processes end now, it is undone\n"
                       "See to that disk, and do not repeat the call: the next operation on a "
                       "durable topic writes the log again.",
                       seg->data_dir, seg->name, pn_durable_reason(-error));
    return pn_fail(PN_ESYNC,
                   "it has happened, but a power cut may undo it: the log in %s/%s could not be "
                   "synced (%s)\n"
                   "See to that disk, and do not repeat the call: the next operation on a durable "
                   "topic writes the log again.",
                   seg->data_dir, seg->name, strerror(error));
}

static int write_notes(struct pn_segment *seg, bool ends)
{
    struct pn_durable *d = pn_durable_mine(seg);
    uint64_t seq;
    size_t n = 0;
    struct pn_record_in *records = calloc(2 * d->notes, sizeof *records);
    if (records == NULL)
        return pn_fail(ENOMEM, "out of memory");
    for (size_t i = 0; i < d->notes; i++) {
        const struct pn_durable_note *from = &d->note[i];
        records[n] = (struct pn_record_in) {.type = from->kind, .parts = 1};
        records[n++].part[0] = (struct iovec) {d->bytes + from->off, from->length};
        if (from->kind == PN_LOG_TOPIC || from->kind == PN_LOG_CHANNEL) { /* carry.c emit() */
            records[n] = records[n - 1];
            n++;
        }
    }
    struct pn_topiclog *log = &seg->topics.ctl->log;
    int rc = ends ? pn_topiclog_append_ends(log, &d->files, records, n, &seq)
                  : pn_topiclog_append(log, &d->files, records, n, &seq);
    free(records);
    return rc;
}

/* Only what memory has, `required`: and cannot be left out.  Was there more that counts? */
static bool keep_what_happened(struct pn_durable *d, bool required)
{
    size_t n = 0;
    bool refused = false;
    for (size_t i = 0; i < d->notes; i++) {
        refused |= !d->note[i].happened;
        if (d->note[i].happened && !(required && pn_note_may_be_left_out(d->note[i].kind)))
            d->note[n++] = d->note[i];
    }
    d->notes = n;
    return refused;
}

void pn_durable_forget_locked(struct pn_segment *seg)
{
    pn_assert_topics_held(seg);
    if (pn_durable_mine(seg) != NULL)
        keep_what_happened(pn_durable_mine(seg), false);
}

static bool is_no_room(int rc)
{
    return rc == -ENOSPC || rc == -EDQUOT || rc == -EFBIG;
}

/* There is room for them, if the file system reserves (pn_carry_owed). */
static bool are_ends(const struct pn_durable *d)
{
    bool ends = true;
    for (size_t i = 0; i < d->notes && ends; i++)
        ends = d->note[i].happened &&
               (d->note[i].kind == PN_LOG_FINISHED || d->note[i].kind == PN_LOG_FANNED_OUT ||
                d->note[i].kind == PN_LOG_CANCELLED);
    return ends;
}

/* On a full disk what has not happened is refused, and what has takes what was reserved for it. */
static int write_what_was_noted(struct pn_segment *seg)
{
    struct pn_durable *d = pn_durable_mine(seg);
    int rc = write_notes(seg, are_ends(d));
    if (!is_no_room(rc))
        return rc;
    pn_topiclog_starve(&seg->topics.ctl->log);
    bool refused = keep_what_happened(d, true);
    int behind = d->notes == 0 ? 0 : write_notes(seg, true);
    d->happened = behind != 0;
    return refused || behind != 0 ? rc : 0;
}

/* A process that has carried what others have synced has it synced again. */
static void sync_what_was_carried(struct pn_segment *seg)
{
    struct pn_topiclog *log = &seg->topics.ctl->log;
    struct pn_durable *d = pn_durable_mine(seg);
    uint32_t policy = PN_FSYNC_NONE;
    if (__builtin_expect(!pn_topiclog_is_untidy(log), 1))
        return;
    for (uint32_t i = 0; i < seg->topics.max_topics; i++)
        if (pn_topic_kept(&seg->topics.topic[i]) && policy < seg->topics.topic[i].fsync)
            policy = seg->topics.topic[i].fsync;
    pn_topiclog_tidy(log, &d->files, policy == PN_FSYNC_NONE);
    if (d->policy < policy && pn_topiclog_is_untidy(log))
        d->policy = log->queue.starved != 0 ? PN_FSYNC_ALWAYS : policy; /* a full disk waits */
}

/* Of several flushes in one hold of the lock all are. */
static void to_be_synced(struct pn_segment *seg)
{
    struct pn_durable *d = pn_durable_mine(seg);
    struct pn_hold *hold = pn_topics_hold(seg);
    struct pn_topic_sync *sync = &hold->sync;
    if (d->policy == PN_FSYNC_ALWAYS) {
        uint32_t failures = sync->policy == PN_FSYNC_ALWAYS ? sync->kept.failures : d->failures;
        if (sync->policy == PN_FSYNC_ALWAYS)
            pn_topiclog_forget(&sync->kept);
        pn_topiclog_keep(&seg->topics.ctl->log, &d->files, failures, &sync->kept);
    }
    if (sync->policy < d->policy)
        sync->policy = d->policy;
    if (sync->policy != 0)
        hold->at_end |= PN_SYNC_LOG;
    d->policy = 0;
}

enum { LOOK_NS = 1000000000 };

/* What others have removed is to be written again, from memory: 1, and `log_behind` stands; 0; or
 * -errno.  `at_once`, or once in a second; each time while the directory cannot be locked. */
static int look_for_files(struct pn_segment *seg, bool at_once)
{
    struct pn_topic_control *ctl = seg->topics.ctl;
    struct pn_durable *d = pn_durable_mine(seg);
    const int64_t now = pn_now_ns();
    if (!at_once && seg->dir_lock.held && now - d->looked < LOOK_NS)
        return 0;
    d->looked = now;
    int rc = pn_topiclog_make_dir(seg->data_dir, seg->name);
    if (rc == 0)
        rc = pn_dirlock_renew(seg);
    if (rc != 0 || !pn_topiclog_is_gone(&ctl->log, &d->files))
        return rc;
    ctl->log_behind = 1;
    pn_store_relaxed(&seg->log_gone, 1);
    return 1;
}

/* All of it again if it is behind, and what was noted. */
static int write_all(struct pn_segment *seg)
{
    struct pn_topic_control *ctl = seg->topics.ctl;
    int rc = 0;
    if (ctl->log_behind != 0) {
        rc = pn_carry_all_locked(seg);
        ctl->log_behind = rc != 0;
        PN_CRASH("durable:rewritten");
    }
    return rc == 0 && pn_durable_mine(seg)->notes != 0 ? write_what_was_noted(seg) : rc;
}

static int flush(struct pn_segment *seg)
{
    struct pn_durable *d = pn_durable_mine(seg);
    int rc = d->failed ? pn_fail(ENOMEM, "out of memory") : look_for_files(seg, false);
    if (rc < 0)
        return rc;
    sync_what_was_carried(seg);
    rc = write_all(seg);
    if (rc == -ENOENT) { /* a file of it is gone, or is not what it was */
        const int found = look_for_files(seg, true);
        rc = found == 1 ? write_all(seg) : found < 0 ? found : rc;
    }
    PN_CRASH("durable:flushed");
    return rc;
}

int pn_durable_flush_locked(struct pn_segment *seg)
{
    pn_assert_topics_held(seg);
    struct pn_topic_control *ctl = seg->topics.ctl;
    uint32_t failures = pn_load_acquire(&ctl->log.failures); /* before: pn_topiclog_sync() */
    if (ctl->log_ready != 0 && pn_exchange(&ctl->log.failed, 0) != 0)
        ctl->log_behind = 1;
    if (ctl->log_ready == 0 || ((seg->topics.noted & PN_NOTED) == 0 && ctl->log_behind == 0))
        return 0;
    seg->topics.noted &= ~(uint32_t) PN_NOTED;
    int rc = pn_durable_open_files(seg);
    struct pn_durable *d = pn_durable_mine(seg);
    if (rc == 0 && !pn_diskqueue_possible(&ctl->log.queue, ctl->log.queue.base))
        rc = pn_segment_poison(seg, "the log of durable topics is broken");
    if (rc != 0) {
        pn_durable_unwritten(seg, rc);
        return rc;
    }
    d->failures = failures;
    rc = flush(seg);
    if (rc != 0 && d->happened)
        pn_durable_unwritten(seg, rc);
    if (pn_topiclog_may_compact(&ctl->log))
        seg->topics.noted |= PN_GROWN;
    sync_what_was_carried(seg);
    d->notes = d->used = 0;
    d->failed = d->happened = false;
    to_be_synced(seg);
    return pn_disk_result(seg, rc);
}

void pn_durable_end_locked(struct pn_segment *seg)
{
    pn_assert_topics_held(seg);
    int rc = pn_durable_flush_locked(seg);
    bool grown = (seg->topics.noted & PN_GROWN) != 0;
    seg->topics.noted &= ~(uint32_t) PN_GROWN;
    if (rc != 0 || !grown || seg->topics.ctl->log_behind != 0 || !seg->dir_lock.held)
        return;
    pn_carry_some_locked(seg);
    sync_what_was_carried(seg);
    to_be_synced(seg);
}

bool pn_durable_compacts_locked(struct pn_segment *seg, const struct pn_topic *topic)
{
    pn_assert_topics_held(seg);
    if (!pn_is_durable(seg, topic) || seg->topics.ctl->log.compact_file == 0)
        return false;
    seg->topics.noted |= PN_GROWN;
    return true;
}

bool pn_durable_anew_locked(struct pn_segment *seg, bool first)
{
    pn_assert_topics_held(seg);
    struct pn_topic_control *ctl = seg->topics.ctl;
    if (ctl->log_ready == 0)
        return false;
    if (first) {
        ctl->log_behind = 1;
        pn_store_relaxed(&ctl->log.failed, 0);
    }
    int rc = pn_durable_open_files(seg);
    if (rc == 0 && !pn_diskqueue_possible(&ctl->log.queue, ctl->log.queue.base))
        rc = pn_segment_poison(seg, "the log of durable topics is broken");
    if (rc != 0)
        return false;
    struct pn_durable *d = pn_durable_mine(seg);
    d->failures = pn_load_acquire(&ctl->log.failures);
    rc = first ? pn_topiclog_begin_anew(&ctl->log, &d->files) : pn_carry_step_locked(seg);
    if (rc == 0)
        ctl->log_behind = 0;
    PN_CRASH("durable:step");
    sync_what_was_carried(seg);
    to_be_synced(seg);
    return rc > 0;
}
