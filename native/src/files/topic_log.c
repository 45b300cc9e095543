/*
 * topic_log.c - see topic_log.h.
 *
 * THE MODEL
 *
 *  1. The log is a queue on disk (diskqueue.c) of which nothing is got: the records from its
 *     reading end on, front to back, say what durable topics there are and what is in them.  It
 *     stands in <data_dir>/<segment>/, in files log.<random>.<number> that no unlink touches.
 *  2. **A change has happened when its batch is committed**: diskqueue.c's one store, after
 *     the bytes were given to the kernel.  A batch is a transaction's bracket: without one of its
 *     records none of it counts, wherever all processes were killed or the power went.  With the
 *     segment alive what was staged and not committed is cut off by the next append; a caller with
 *     a commit point of its own in the ring stages before it and commits after it, again if need
 *     be.
 *  3. A file begins with OPENED and with all topics and channels of that moment, so what stands
 *     before it can be dropped without it.  OPENED says also where the older file ended for the
 *     process that wrote it: what a process of an unlinked segment may still write there does not
 *     count.
 *  4. Reading again (topic_log_replay.c) needs no order but that of the log: FINISHED of what is
 *     not known says nothing, CARRIED says all of a message (or of what some of its channels have
 *     of it), again and again.  So compaction is
 *     nothing but: begin a file; carry all live messages, a few at a time, while others
 *     write; drop what stands before that file.  Killed anywhere, it begins again or goes on.
 *  5. It begins when the log has 16 MiB, and what is over in it six times the bytes of what is
 *     live, as the owner counts it: so compaction adds a sixth to what is written.  Of a log in
 *     which more than 21 MiB are live 128 MiB are over, or twice as much as is live: the disk has
 *     to hold it, and a reboot to read it.  On a full disk it is twice as much at once.  What is
 *     live is never guessed from the log: a few long messages among many short ones were written
 *     again all the time, and many short ones among long ones kept these.
 *     What it drops is removed when the new file is on the disk, and not before: a power cut
 *     finds one of the two whole (pn_topiclog_tidy()).  Until then DROPPED tells a reader that
 *     finds both.
 *  6. fsync: `written` and `synced` count records.  A sync takes what is written when it begins,
 *     so threads that wait for one together are done with the next; no lock is held, and a SIGKILL
 *     leaves nothing.  "always": the call returns after its records are synced.  "interval": the
 *     first operation on a durable topic a second or more after the last sync does one (so a lone
 *     one does its own), and so does a connection that closes; there is no thread for it.  "none":
 *     never.  Consumers may see a message before it is on the disk, under each of them.
 *  7. A sync that fails: the kernel may have dropped the pages and calls them clean, so another
 *     sync that succeeds says nothing.  The kernel tells each open file once, of errors since that
 *     was opened; a file that is opened later learns nothing of an error that another has been
 *     told.  So a sync goes through the open file that its caller has written with
 *     (pn_topiclog_keep()), and has failed, too, if another process's has since then (`failures`).
 *  8. pwrite() and no mapping: record_file.c (6).
 */
#define _GNU_SOURCE
#include "files/topic_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/crashpoint.h"
#include "base/err.h"
#include "base/os.h"
#include "files/data_file.h"
#include "files/topic_log_replay.h"

enum { GATHERED = 64, GATHERED_BYTES = 64 << 10 };

/* What a step of compaction has for the log: written one by one they cost ten times as many system
 * calls.  Each is a batch of its own all the same, so that damage to one costs one. */
struct pn_topiclog_gathered {
    uint32_t n;
    size_t used;
    struct pn_record_in record[GATHERED];
    uint64_t cursor[GATHERED][PN_TOPICLOG_CURSOR]; /* behind each */
    uint8_t bytes[GATHERED_BYTES];
};

/* ---- the directory -------------------------------------------------------------------------- */

/* Of log.<16 digits>.<16 digits>; the first name there ends the search. */
static int take_instance(void *arg, int dirfd, const char *name, const char *rest)
{
    uint64_t instance, number;
    (void) dirfd;
    (void) name;
    if (strlen(rest) != 33 || rest[16] != '.' || !pn_data_dir_digits(rest, &instance) ||
        !pn_data_dir_digits(rest + 17, &number) || instance == 0)
        return 0;
    *(uint64_t *) arg = instance;
    return 1;
}

/* The random part of the names of files that are there; if there are none, a new one. */
static int find_instance(const char *path, uint64_t *instance)
{
    *instance = 0;
    int rc = pn_data_dir_each(path, "log.", take_instance, instance);
    while (rc == 0 && *instance == 0)
        *instance = pn_os_random();
    return rc < 0 ? rc : 0;
}

static int at_begin(void *arg, struct pn_diskqueue_writing *w)
{
    struct pn_topiclog_files *files = arg;
    struct pn_record_in opened = {.type = PN_LOG_OPENED, .parts = 1};
    opened.part[0] = (struct iovec) {&files->opened, sizeof files->opened};
    int rc = pn_topiclog_emit(w, &opened);
    PN_CRASH("topiclog:opened");
    if (rc == 0 && files->source.describe != NULL)
        rc = files->source.describe(files->source.arg, w);
    PN_CRASH("topiclog:described");
    return rc;
}

static int may_begin(void *arg)
{
    const struct pn_topiclog_files *files = arg;
    return files->source.own == NULL ? 0 : files->source.own(files->source.arg);
}

static int name_files(struct pn_data_dir *dir)
{
    dir->kind = 'l';
    return snprintf(dir->prefix, sizeof dir->prefix, "log.%016llx.",
                    (unsigned long long) dir->instance);
}

int pn_topiclog_make_dir(const char *data_dir, const char *segment)
{
    struct stat st;
    int fd = pn_data_dir_open(data_dir);
    if (fd < 0)
        return fd;
    int rc = mkdirat(fd, segment, 0700) == 0 || errno == EEXIST ? 0 : -errno;
    if (rc == 0 && fstatat(fd, segment, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode) &&
        st.st_uid == geteuid() && (st.st_mode & 0777) == 0) /* made under a strange umask */
        rc = fchmodat(fd, segment, 0700, 0) == 0 ? 0 : -errno;
    close(fd);
    return rc == 0 ? 0 : pn_data_file_failed(data_dir, segment, "make", -rc);
}

static uint64_t owed(void *arg, uint64_t more, uint64_t *rest)
{
    const struct pn_topiclog_files *files = arg;
    return files->source.owed(files->source.arg, more, rest);
}

static int open_files(struct pn_topiclog_files *files, struct pn_data_dir *dir, uint32_t longest)
{
    int rc = find_instance(dir->path, &dir->instance);
    if (rc != 0)
        return rc;
    name_files(dir);
    memset(files, 0, sizeof *files);
    return pn_diskqueue_open(&files->queue, dir, longest);
}

int pn_topiclog_look(struct pn_topiclog_files *files, const char *path)
{
    struct pn_data_dir dir = {.kind = 'l', .read_only = true};
    if (strlen(path) >= sizeof dir.path)
        return pn_fail(ENAMETOOLONG, "the path %.100s... is too long", path);
    memcpy(dir.path, path, strlen(path) + 1);
    return open_files(files, &dir, 0);
}

int pn_topiclog_open(struct pn_topiclog_files *files, const char *data_dir, const char *segment,
                     uint32_t longest, const struct pn_topiclog_source *source)
{
    struct pn_data_dir dir = {.kind = 'l', .whole = true};
    int rc = pn_topiclog_make_dir(data_dir, segment);
    if (rc != 0)
        return rc;
    int length = snprintf(dir.path, sizeof dir.path, "%s/%s", data_dir, segment);
    if (length < 0 || (size_t) length >= sizeof dir.path)
        return pn_fail(ENAMETOOLONG, "the path %s/%s is too long", data_dir, segment);
    rc = open_files(files, &dir, longest);
    if (rc != 0)
        return rc;
    files->queue.may_begin = may_begin;
    files->queue.at_begin = at_begin;
    files->queue.arg = files;
    if (source == NULL)
        return 0;
    files->source = *source;
    if (source->owed != NULL)
        files->queue.owed = owed;
    files->gathered = calloc(1, sizeof *files->gathered);
    if (files->gathered == NULL) {
        pn_topiclog_close(files);
        return pn_fail(ENOMEM, "no memory for the log of durable topics");
    }
    return 0;
}

void pn_topiclog_close(struct pn_topiclog_files *files)
{
    free(files->gathered);
    files->gathered = NULL;
    pn_diskqueue_close(&files->queue);
}

/* ---- writing -------------------------------------------------------------------------------- */

/* To write to a log that another process has started: its names, and what a file begins with. */
static void follow(const struct pn_topiclog *log, struct pn_topiclog_files *files)
{
    files->opened.instance = log->instance;
    files->opened.last_file = pn_diskqueue_now(&log->queue)->write_file;
    files->opened.last_end = pn_diskqueue_now(&log->queue)->write_at;
    if (files->queue.dir.instance != log->random) {
        files->queue.dir.instance = log->random;
        name_files(&files->queue.dir);
    }
}

static int stage(struct pn_topiclog *log, struct pn_topiclog_files *files,
                 const struct pn_record_in *records, size_t n, uint64_t *seq)
{
    follow(log, files);
    return pn_diskqueue_stage(&log->queue, &files->queue, records, n, seq);
}

static void tell_written(struct pn_topiclog *log)
{
    const struct pn_diskqueue_state *now = pn_diskqueue_now(&log->queue);
    pn_store_relaxed(&log->written_file, now->write_file);
    PN_CRASH("topiclog:written");
    pn_store_release(&log->written, now->write_seq);
}

static void commit(struct pn_topiclog *log, uint64_t seq)
{
    pn_diskqueue_commit(&log->queue, seq);
    tell_written(log);
}

/* What it had reserved is the next file's. */
static void release(struct pn_topiclog *log, struct pn_topiclog_files *files,
                    const struct pn_diskqueue_state *before)
{
    if (files->queue.owed != NULL && before->write_at != 0 &&
        pn_diskqueue_now(&log->queue)->write_file != before->write_file)
        pn_recfile_release_later(&files->queue.dir, before->write_file, before->write_at);
    PN_CRASH("topiclog:released");
}

int pn_topiclog_append(struct pn_topiclog *log, struct pn_topiclog_files *files,
                       const struct pn_record_in *records, size_t n, uint64_t *seq)
{
    const struct pn_diskqueue_state before = *pn_diskqueue_now(&log->queue);
    int rc = stage(log, files, records, n, seq);
    if (rc == 0)
        commit(log, *seq);
    if (rc == 0)
        release(log, files, &before);
    return rc;
}

bool pn_topiclog_is_gone(struct pn_topiclog *log, struct pn_topiclog_files *files)
{
    const struct pn_diskqueue_state *now = pn_diskqueue_now(&log->queue);
    const struct pn_data_dir *dir = &files->queue.dir;
    const struct pn_recfile *writer = &files->queue.writer;
    char path[sizeof dir->path + sizeof dir->prefix + 20];
    struct stat st;
    follow(log, files);
    for (uint64_t file = now->read_file; now->write_at != 0 && file <= now->write_file; file++) {
        snprintf(path, sizeof path, "%s/%s%016llx", dir->path, dir->prefix,
                 (unsigned long long) file);
        if (stat(path, &st) != 0)
            return errno == ENOENT;
    }
    if (now->write_at == 0)
        return false;
    /* `st` is of the last one. A copy may have its name by now, and writes go to what was moved. */
    return (uint64_t) st.st_size < now->write_at ||
           (writer->fd >= 0 && writer->number == now->write_file &&
            (writer->dev != st.st_dev || writer->ino != st.st_ino));
}

int pn_topiclog_append_ends(struct pn_topiclog *log, struct pn_topiclog_files *files,
                            const struct pn_record_in *records, size_t n, uint64_t *seq)
{
    files->queue.ends = files->queue.one_file = files->queue.owed != NULL;
    int rc = pn_topiclog_append(log, files, records, n, seq);
    files->queue.ends = files->queue.one_file = false;
    return rc;
}

/*
 * A new file, staged.  On a full disk what the present one has reserved is room for it: ends go to
 * the new one, which reserves it for them.
 */
static int stage_file(struct pn_topiclog *log, struct pn_topiclog_files *files, uint64_t *seq)
{
    const struct pn_diskqueue_state *now = pn_diskqueue_now(&log->queue);
    uint64_t rest;
    int rc = pn_diskqueue_stage_roll(&log->queue, &files->queue, seq);
    if ((rc != -ENOSPC && rc != -EDQUOT) || files->queue.owed == NULL || now->write_at == 0)
        return rc;
    if (pn_recfile_release(&files->queue.dir, now->write_file, now->write_at) != 0)
        return rc;
    rc = pn_diskqueue_stage_roll(&log->queue, &files->queue, seq);
    if (rc != 0) /* as much as it had, if no other process has taken it */
        pn_recfile_reserve(&files->queue.dir, &files->queue.writer, now->write_file, now->write_at,
                           now->write_at,
                           now->write_at + files->queue.owed(files->queue.arg, 0, &rest));
    return rc;
}

static int begin_file(struct pn_topiclog *log, struct pn_topiclog_files *files)
{
    const struct pn_diskqueue_state before = *pn_diskqueue_now(&log->queue);
    uint64_t seq;
    follow(log, files);
    int rc = stage_file(log, files, &seq);
    if (rc != 0)
        return rc;
    commit(log, seq);
    release(log, files, &before);
    return 0;
}

int pn_topiclog_start(struct pn_topiclog *log, struct pn_topiclog_files *files, uint64_t instance,
                      uint64_t max_file, const struct pn_topiclog_replay *replay, void *arg,
                      uint64_t *damaged)
{
    memset(log, 0, sizeof *log);
    int rc = pn_diskqueue_recover(&log->queue, &files->queue, 0, max_file);
    if (rc == 0)
        rc = pn_topiclog_read(files, pn_diskqueue_now(&log->queue), replay, arg, damaged);
    if (rc != 0)
        return rc;
    log->queue.state[pn_load_relaxed(&log->queue.current) & 1].corrupt = *damaged;
    log->instance = instance;
    log->random = files->queue.dir.instance;
    log->compact_from = PN_TOPICLOG_COMPACT;
    /* What is there, its writer may not have synced; else it is the first file that is made. */
    pn_store_relaxed(&log->synced_file, pn_diskqueue_now(&log->queue)->read_file);
    tell_written(log);
    rc = begin_file(log, files);
    return rc == -ENOSPC || rc == -EDQUOT ? 1 : rc;
}

/* ---- syncing -------------------------------------------------------------------------------- */

static void raise_to(pn_atomic_u64 *word, uint64_t value)
{
    uint64_t old = pn_load_relaxed(word);
    while (old < value && !pn_cas_u64(word, &old, value))
        ;
}

void pn_topiclog_keep(const struct pn_topiclog *log, const struct pn_topiclog_files *files,
                      uint32_t failures, struct pn_topiclog_kept *kept)
{
    kept->file = pn_diskqueue_now(&log->queue)->write_file;
    kept->fd = pn_recfile_dup(&files->queue.writer, kept->file);
    kept->failures = failures;
}

void pn_topiclog_forget(struct pn_topiclog_kept *kept)
{
    if (kept->fd >= 0)
        close(kept->fd);
    kept->fd = -1;
}

/* That the files are there, and the first time the directory itself. */
static int sync_dirs(const struct pn_data_dir *dir, bool parent)
{
    struct pn_data_dir above = *dir;
    int rc = pn_data_dir_sync(dir);
    if (rc != 0 || !parent)
        return rc;
    char *slash = strrchr(above.path, '/');
    slash[slash == above.path] = '\0';
    return pn_data_dir_sync(&above);
}

/* The files from `first` to `last`, and that they are there. */
static int sync_files(const struct pn_topiclog *log, const struct pn_topiclog_files *files,
                      uint64_t first, uint64_t last, const struct pn_topiclog_kept *kept)
{
    struct pn_data_dir dir = files->queue.dir;
    dir.instance = log->random;
    name_files(&dir);
    bool never = pn_load_relaxed(&log->syncs) == 0;
    int rc = never || first < last ? sync_dirs(&dir, never) : 0;
    for (uint64_t file = first; rc == 0 && file <= last; file++) {
        rc = kept != NULL && kept->fd >= 0 && kept->file == file
                 ? pn_recfile_sync_fd(&dir, file, kept->fd)
                 : pn_recfile_sync(&dir, file);
        rc = rc == -ENOENT ? 0 : rc; /* compacted away: what it was carried to is on the disk */
    }
    return rc;
}

int pn_topiclog_sync(struct pn_topiclog *log, struct pn_topiclog_files *files, uint64_t seq,
                     const struct pn_topiclog_kept *kept)
{
    uint64_t written = pn_load_acquire(&log->written);
    uint64_t last = pn_load_relaxed(&log->written_file); /* stored before `written` */
    uint64_t first = pn_load_acquire(&log->synced_file);
    uint32_t failures = kept != NULL ? kept->failures : pn_load_acquire(&log->failures);
    int rc = 0;
    bool again = pn_load_acquire(&log->synced) < (seq < written ? seq : written);
    if (again) {
        pn_store_relaxed(&log->synced_at, (uint64_t) pn_now_ns());
        rc = sync_files(log, files, first, last, kept);
        PN_CRASH("topiclog:synced");
    }
    if (rc == -EIO || rc == -ENOSPC || rc == -EDQUOT) {
        pn_store_relaxed(&log->failed, (uint32_t) -rc);
        pn_fetch_add_release(&log->failures, 1);
    } else if (rc == 0 && pn_load_acquire(&log->failures) != failures) {
        uint32_t error = pn_load_relaxed(&log->failed);
        rc = pn_fail(error != 0 ? (int) error : EIO, "another sync of the log in %s has failed",
                     files->queue.dir.path);
    }
    if (rc != 0 || !again)
        return rc;
    pn_fetch_add_relaxed(&log->syncs, 1);
    raise_to(&log->synced_file, last);
    raise_to(&log->synced, written);
    return 0;
}

bool pn_topiclog_sync_due(struct pn_topiclog *log, int64_t now)
{
    uint64_t last = pn_load_relaxed(&log->synced_at);
    return pn_load_relaxed(&log->written) > pn_load_relaxed(&log->synced) &&
           pn_since(now, last) >= PN_TOPICLOG_INTERVAL &&
           pn_cas_u64(&log->synced_at, &last, (uint64_t) now);
}

/* ---- compaction ----------------------------------------------------------------------------- */

static int begin_compaction(struct pn_topiclog *log, struct pn_topiclog_files *files)
{
    const struct pn_diskqueue_state before = *pn_diskqueue_now(&log->queue);
    int rc = begin_file(log, files);
    if (rc != 0)
        return rc;
    log->compact_seq = before.write_seq;
    log->compact_sum = before.write_sum;
    memset(log->compact_cursor, 0, sizeof log->compact_cursor);
    PN_CRASH("topiclog:begun");
    log->compact_file = pn_diskqueue_now(&log->queue)->write_file;
    return 1;
}

int pn_topiclog_begin_anew(struct pn_topiclog *log, struct pn_topiclog_files *files)
{
    log->compact_file = 0;
    return begin_compaction(log, files);
}

bool pn_topiclog_may_compact(const struct pn_topiclog *log)
{
    return log->compact_file != 0 || log->queue.starved != 0 ||
           pn_diskqueue_bytes(&log->queue) >= log->compact_from;
}

/* What stands before that file, which begins with record `seq` and `sum`, is over. */
static void drop(struct pn_topiclog *log, uint64_t file, uint64_t seq, uint64_t sum)
{
    PN_CRASH("topiclog:dropped");
    log->compact_file = 0;
    PN_CRASH("topiclog:compacted");
    log->compactions++;
    log->drop_seq = pn_diskqueue_now(&log->queue)->write_seq;
    PN_CRASH("topiclog:dropping");
    pn_diskqueue_drop(&log->queue, file, seq, sum);
}

static struct pn_record_in dropped_record(struct pn_log_dropped *dropped)
{
    struct pn_record_in last = {.type = PN_LOG_DROPPED, .parts = 1};
    last.part[0] = (struct iovec) {dropped, sizeof *dropped};
    return last;
}

/* At the end of compaction. */
static int drop_old_files(struct pn_topiclog *log, struct pn_topiclog_files *files)
{
    struct pn_log_dropped dropped = {.file = log->compact_file};
    const struct pn_record_in last = dropped_record(&dropped);
    uint64_t seq;
    int rc = pn_topiclog_append_ends(log, files, &last, 1, &seq);
    if (rc == 0)
        drop(log, dropped.file, log->compact_seq, log->compact_sum);
    return rc;
}

static int carry_all(struct pn_topiclog *log, struct pn_topiclog_files *files, uint64_t *seq)
{
    uint64_t cursor[PN_TOPICLOG_CURSOR] = {0};
    int rc = 1;
    while (rc > 0) {
        struct pn_record_in record;
        rc = files->source.carry(files->source.arg, cursor, &record);
        PN_CRASH("topiclog:carried");
        if (rc == 1) {
            rc = pn_diskqueue_stage_more(&log->queue, &files->queue, &record, 1, seq);
            rc = rc == 0 ? 1 : rc;
        }
    }
    return rc;
}

int pn_topiclog_write_anew(struct pn_topiclog *log, struct pn_topiclog_files *files, uint64_t least)
{
    const struct pn_diskqueue_state before = *pn_diskqueue_now(&log->queue);
    struct pn_log_dropped dropped = {.file = before.write_file + 1};
    const struct pn_record_in last = dropped_record(&dropped);
    uint64_t seq;
    if (pn_data_dir_room(files->queue.dir.path) < least) {
        pn_topiclog_starve(log);
        return pn_data_file_failed(files->queue.dir.path, "", "rewrite the log in", ENOSPC);
    }
    follow(log, files);
    int rc = stage_file(log, files, &seq);
    PN_CRASH("topiclog:begun");
    if (rc != 0)
        return rc;
    files->queue.one_file = true; /* OPENED of another would say where this one ends */
    rc = carry_all(log, files, &seq);
    files->queue.ends = true;
    if (rc == 0)
        rc = pn_diskqueue_stage_more(&log->queue, &files->queue, &last, 1, &seq);
    files->queue.ends = files->queue.one_file = false;
    if (rc != 0) {
        pn_diskqueue_unstage(&log->queue, &files->queue);
        return rc;
    }
    commit(log, seq);
    drop(log, dropped.file, before.write_seq, before.write_sum);
    return 0;
}

/* Is so much over (5)? */
static bool is_worth_it(const struct pn_topiclog *log, uint64_t live)
{
    const uint64_t bytes = pn_diskqueue_bytes(&log->queue);
    const uint64_t size = bytes + pn_diskqueue_depth(&log->queue) * PN_RECORD_HEADER;
    const uint64_t few = 2 * live, many = live < PN_TOPICLOG_OVER / 6 ? 6 * live : PN_TOPICLOG_OVER;
    const bool starved = log->queue.starved != 0;
    return (starved || bytes >= log->compact_from) && size >= live &&
           size - live >= (starved || many < few ? few : many);
}

/* ---- carrying -------------------------------------------------------------------------------- */

/* A copy, since the next look may overwrite what it consists of.  False: there is no room. */
static bool gather(struct pn_topiclog_gathered *g, const struct pn_record_in *record,
                   const uint64_t *cursor)
{
    const uint64_t length = pn_record_length(record);
    if (g->n == GATHERED || length > sizeof g->bytes - g->used)
        return false;
    struct pn_record_in *copy = &g->record[g->n];
    *copy = (struct pn_record_in) {.type = record->type, .parts = 1, .alone = true};
    copy->part[0] = (struct iovec) {g->bytes + g->used, length};
    for (uint32_t i = 0; i < record->parts; i++) {
        if (record->part[i].iov_len != 0)
            memcpy(g->bytes + g->used, record->part[i].iov_base, record->part[i].iov_len);
        g->used += record->part[i].iov_len;
    }
    memcpy(g->cursor[g->n++], cursor, sizeof g->cursor[0]);
    return true;
}

static int carry(struct pn_topiclog *log, struct pn_topiclog_files *files,
                 const struct pn_record_in *records, uint32_t n, const uint64_t *cursor)
{
    uint64_t seq;
    int rc = pn_topiclog_append(log, files, records, n, &seq);
    if (rc != 0)
        return rc;
    PN_CRASH("topiclog:carried");
    memcpy(log->compact_cursor, cursor, sizeof log->compact_cursor);
    return 0;
}

/* On a full disk there may be room for some of them, and each brings the end nearer. */
static int carry_gathered(struct pn_topiclog *log, struct pn_topiclog_files *files)
{
    struct pn_topiclog_gathered *g = files->gathered;
    const uint32_t n = g->n;
    int rc = n == 0 ? 0 : carry(log, files, g->record, n, g->cursor[n - 1]);
    if (rc != 0 && n > 1) {
        rc = 0;
        for (uint32_t i = 0; rc == 0 && i < n; i++)
            rc = carry(log, files, &g->record[i], 1, g->cursor[i]);
    }
    g->n = 0;
    g->used = 0;
    return rc;
}

static int carry_or_gather(struct pn_topiclog *log, struct pn_topiclog_files *files,
                           const struct pn_record_in *record, const uint64_t *cursor)
{
    if (gather(files->gathered, record, cursor))
        return 0;
    int rc = carry_gathered(log, files);
    if (rc != 0 || gather(files->gathered, record, cursor))
        return rc;
    return carry(log, files, record, 1, cursor); /* it is long */
}

/* As pn_topiclog_compact(), but that 0 means that there are no more. */
static int carry_some(struct pn_topiclog *log, struct pn_topiclog_files *files, uint32_t messages)
{
    uint64_t carried = 0, cursor[PN_TOPICLOG_CURSOR];
    int rc = 1;
    files->gathered->n = 0; /* of another thread's step, if this process was forked from it */
    files->gathered->used = 0;
    memcpy(cursor, log->compact_cursor, sizeof cursor);
    for (uint32_t looks = PN_TOPICLOG_LOOKS; rc > 0 && looks > 0 && messages > 0; looks--) {
        struct pn_record_in record;
        rc = files->source.carry(files->source.arg, cursor, &record);
        if (rc != 1)
            continue;
        const int failed = carry_or_gather(log, files, &record, cursor);
        rc = failed != 0 ? failed : 1;
        messages--;
        carried += pn_record_size(pn_record_length(&record));
        if (carried >= PN_TOPICLOG_STEP)
            break;
    }
    const int failed = carry_gathered(log, files);
    rc = rc < 0 || failed == 0 ? rc : failed;
    if (rc > 0)
        memcpy(log->compact_cursor, cursor, sizeof cursor); /* behind what was only looked at */
    return rc > 0 ? 1 : rc;
}

int pn_topiclog_compact(struct pn_topiclog *log, struct pn_topiclog_files *files,
                        uint64_t live_bytes, uint32_t messages)
{
    if (log->compact_file == 0)
        return is_worth_it(log, live_bytes) ? begin_compaction(log, files) : 0;
    int rc = carry_some(log, files, messages);
    return rc == 0 ? drop_old_files(log, files) : rc;
}

bool pn_topiclog_is_untidy(const struct pn_topiclog *log)
{
    return log->queue.first_file < pn_diskqueue_now(&log->queue)->read_file;
}

int pn_topiclog_tidy(struct pn_topiclog *log, struct pn_topiclog_files *files, bool at_once)
{
    follow(log, files);
    int rc = at_once || pn_load_acquire(&log->synced) >= log->drop_seq
                 ? pn_diskqueue_tidy(&log->queue, &files->queue)
                 : 0;
    if (rc == 0 && !pn_topiclog_is_untidy(log))
        log->queue.starved = 0;
    return rc;
}
