/*
 * durable.c - durable topics: what happens to them is written to the segment's log.
 *
 * 1. Whatever changes a durable topic notes it in this process's memory; when the operation ends
 *    (pn_topics_end_locked) the notes become one batch of the log (topic_log.c).  What publishes
 *    flushes before its commit point, so a full disk is the publisher's error and nothing has
 *    happened; a transaction flushes messages and answers together before `head`.
 * 2. So log and memory differ while `topics_dirty` stands, and at no other time.  A death there is
 *    followed by a rebuild, before whose end the log is written again from memory: all topics, all
 *    messages, by a compaction of which each step is one of the rebuild's.  If no process is left,
 *    the log is what counts: a message whose publisher was not told may be there or not, an answer
 *    whose consumer was not told may have happened or not.
 * 3. On a full disk what has not happened is refused, and what has goes to the blocks that were
 *    reserved for it (pn_carry_owed); attempts and delays are left out.  When a flush fails of
 *    what memory has done already, the caller is told (PN_ESYNC) and `log_behind` is set until the
 *    log could be written again; publishing fails until then.  So it does when files of it are
 *    gone.
 * 4. After a sync that failed it is not known what of the files is on the disk, and the next one
 *    may succeed without it (topic_log.c 7).  The log is written again from memory, into a new
 *    file, and that is synced: at once by the caller that needs it for fsync="always", else by the
 *    next operation.  If that fails, too, its caller is told (PN_ESYNC); what it did is committed
 *    and cannot be refused any more.  Whatever was on the disk before stays there until the new
 *    file is (topic_log.c 5).
 * 5. Times: in the log CLOCK_REALTIME, in memory CLOCK_MONOTONIC.
 * 6. Ephemeral channels are not in the log.
 */
#include "topic/carry.h"
#include "topic/durable.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/crashpoint.h"
#include "base/moment.h"
#include "segment/dirlock.h"
#include "segment/lock.h"
#include "topic/area.h"
#include "topic/end.h"
#include "topic/journal.h"
#include "topic/notes.h"
#include "topic/on_disk.h"
#include "topic/restore.h"

/* ---- opening --------------------------------------------------------------------------------- */

int pn_durable_join_locked(struct pn_segment *seg)
{
    pn_assert_topics_held(seg);
    if (seg->topics.ctl->log_ready == 0 || pn_dirlock_held(seg))
        return 0;
    int rc = pn_dirlock_take(seg, false);
    if (rc != -ENOENT)
        return rc;
    /* Not made here: where others see another file system, each would write a log of its own. */
    return pn_fail(ENOENT,
                   "the directory %s/%s with the log of durable topics is not there\n"
                   "If it was removed, make it again, with mode 0700: the log is written from "
                   "memory.  Otherwise see that all processes have one data_dir.",
                   seg->data_dir, seg->name);
}

bool pn_durable_exists(const struct pn_segment *seg)
{
    char path[2 * PN_DATA_DIR_MAX];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s", seg->data_dir, seg->name);
    return seg->data_dir[0] != '\0' && lstat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Rows of databases belong to the writer lock. */
static int describe_alone(void *arg, struct pn_diskqueue_writing *w)
{
    struct pn_hold hold;
    int rc = pn_lock_acquire(arg, &hold, PN_LOCK_TIMEOUT_NS);
    if (rc != 0)
        return rc;
    rc = pn_carry_describe(arg, w);
    pn_lock_release(arg);
    return rc;
}

static int start(struct pn_segment *seg, bool alone)
{
    struct pn_topic_control *ctl = seg->topics.ctl;
    struct pn_restore r = {.seg = seg, .now = pn_moment_now(), .alone = alone};
    uint64_t damaged;
    if (ctl->log_ready != 0)
        return 0;
    int rc = pn_durable_open_files(seg);
    if (rc == 0) {
        struct pn_topiclog_files *files = &pn_durable_mine(seg)->files;
        files->source.describe = alone ? describe_alone : pn_carry_describe;
        rc = pn_topiclog_start(&ctl->log, files, seg->instance, 0, &pn_restore, &r, &damaged);
        files->source.describe = pn_carry_describe;
    }
    free(r.topic);
    free(r.channel);
    if (rc < 0)
        return pn_disk_result(seg, rc);
    if (pn_load_relaxed(&ctl->next_id) <= r.last_id)
        pn_store_relaxed(&ctl->next_id, r.last_id + 1);
    pn_store_relaxed(&seg->log_damaged, damaged);
    ctl->log_behind = (uint32_t) rc; /* a full disk: then what is there can be had all the same */
    ctl->log_ready = 1;
    PN_CRASH("durable:ready");
    return 0;
}

int pn_durable_start_locked(struct pn_segment *seg)
{
    pn_assert_topics_held(seg);
    return start(seg, false);
}

int pn_durable_start_alone(struct pn_segment *seg)
{
    return start(seg, true);
}

/* ---- syncing --------------------------------------------------------------------------------- */

/* All that was written, for no caller in particular: the next operation hears of a failure. */
static void sync_all(struct pn_segment *seg)
{
    pn_topiclog_sync(&seg->topics.ctl->log, &pn_durable_mine(seg)->files, UINT64_MAX, NULL);
}

/* After a sync that has failed: all of it once more, into a new file.  0: that is on the disk. */
static int write_anew_and_sync(struct pn_segment *seg, int rc)
{
    struct pn_hold hold;
    if (pn_lock_topics(seg, &hold, PN_LOCK_TIMEOUT_NS) != 0)
        return rc;
    pn_topics_begin_locked(seg);
    pn_topics_end_locked(seg);
    hold.at_end &= ~(uint32_t) PN_SYNC_LOG; /* here */
    bool behind = seg->topics.ctl->log_behind != 0;
    pn_lock_release(seg);
    if (hold.sync.policy == PN_FSYNC_ALWAYS) {
        if (!behind)
            rc = pn_topiclog_sync(&seg->topics.ctl->log, &pn_durable_mine(seg)->files, UINT64_MAX,
                                  &hold.sync.kept);
        pn_topiclog_forget(&hold.sync.kept);
    }
    return rc;
}

_Thread_local const struct pn_conn *pn_puts_off, *pn_calling;
_Thread_local struct pn_sync *pn_put_off;

/* Leave it to the connection that puts syncs off; false: it is to be done at once. */
static bool is_put_off(struct pn_segment *seg, struct pn_topic_sync *sync)
{
    struct pn_sync *mine = pn_put_off;
    if (pn_puts_off == NULL || pn_calling != pn_puts_off || (mine != NULL && mine->seg != seg))
        return false;
    if (mine == NULL) {
        mine = malloc(sizeof *mine);
        if (mine == NULL)
            return false;
        pn_segment_acquire(seg);
        *mine = (struct pn_sync) {seg, *sync};
        pn_put_off = mine;
    } else if (mine->sync.policy != PN_FSYNC_ALWAYS) {
        mine->sync = *sync;
    } else if (sync->policy == PN_FSYNC_ALWAYS) { /* the older one began before more failures */
        sync->kept.failures = mine->sync.kept.failures;
        pn_topiclog_forget(&mine->sync.kept);
        mine->sync = *sync;
    }
    return true;
}

static void sync_now(struct pn_segment *seg, struct pn_topic_sync *sync)
{
    struct pn_topiclog *log = &seg->topics.ctl->log;
    if (sync->policy != PN_FSYNC_ALWAYS) {
        sync_all(seg);
        return;
    }
    int rc = pn_topiclog_sync(log, &pn_durable_mine(seg)->files, UINT64_MAX, &sync->kept);
    pn_topiclog_forget(&sync->kept);
    if (rc == -EIO || rc == -ENOSPC || rc == -EDQUOT)
        rc = write_anew_and_sync(seg, rc);
    if (rc != 0 && pn_sync_error == 0)
        pn_sync_error = -rc;
}

void pn_durable_sync(struct pn_segment *seg, struct pn_topic_sync *sync)
{
    bool interval = sync->policy == PN_FSYNC_INTERVAL;
    if (interval)
        pn_durable_mine(seg)->interval = true;
    if (interval && !pn_topiclog_sync_due(&seg->topics.ctl->log, pn_now_ns()))
        return;
    if (sync->policy >= PN_FSYNC_INTERVAL && !is_put_off(seg, sync))
        sync_now(seg, sync);
}

int pn_durable_wait(struct pn_sync *sync)
{
    pn_sync_error = 0;
    sync_now(sync->seg, &sync->sync);
    int rc = pn_durable_result(sync->seg, 0);
    pn_segment_release(sync->seg);
    free(sync);
    return rc;
}

void pn_durable_close(struct pn_segment *seg)
{
    struct pn_durable *d = pn_durable_mine(seg);
    if (seg->topics.disk != NULL)
        pn_diskqueue_close(seg->topics.disk);
    free(seg->topics.disk);
    seg->topics.disk = NULL;
    if (d == NULL)
        return;
    if (d->interval)
        sync_all(seg);
    pn_topiclog_close(&d->files);
    free(d->note);
    free(d->bytes);
    free(d->scratch);
    free(d);
    seg->topics.durable = NULL;
}
