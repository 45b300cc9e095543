/*
 * api_dir.c - the C API: what a data directory has, without its segment.
 *
 * 1. The log is read by topic_log_replay.c, as the next segment will: what is said here of topics
 *    and messages is what that will have.  Items wait in the heap but for messages, which are read
 *    one by one.
 * 2. Behind the last whole batch of the last file stands what no caller was told of, or what was
 *    damaged since: a process that is killed while it writes leaves a prefix of a batch, byte by
 *    byte.  All else is told as a bad end, since nothing in the files says where the end was.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "api/api_conn.h"
#include "base/err.h"
#include "files/topic_log_replay.h"
#include "segment/dirlock.h"

struct pn_dir {
    struct pn_topiclog_files files;
    struct pn_diskqueue queue;
    struct pn_topiclog_reading *reading; /* NULL: not the log, or it is empty */
    pn_dir_item *item;
    size_t n, next;
    pn_dir_item message; /* kind 0: none */
    pn_dir_copy *copy;
    size_t copies; /* that there is memory for */
    uint64_t damaged;
    bool is_log, failed;
};

_Static_assert((int) PN_DIR_UNREADABLE == (int) PN_LOG_UNREADABLE &&
                   (int) PN_DIR_MISSING == (int) PN_LOG_MISSING,
               "one numbering");

static int no_memory(void)
{
    return pn_fail(ENOMEM, "no memory for reading a data directory");
}

/* One more, at the end. */
static pn_dir_item *add(struct pn_dir *dir, uint32_t kind)
{
    if ((dir->n & (dir->n - 1)) == 0) {
        pn_dir_item *more = realloc(dir->item, (dir->n == 0 ? 1 : 2 * dir->n) * sizeof *more);
        if (more == NULL)
            return NULL;
        dir->item = more;
    }
    pn_dir_item *item = &dir->item[dir->n++];
    *item = (pn_dir_item) {.kind = kind};
    return item;
}

/* ---- what the log says ----------------------------------------------------------------------- */

static void keep_name(char to[256], const char *from, uint32_t length)
{
    length = length < 255 ? length : 255;
    memcpy(to, from, length);
    to[length] = '\0';
}

static int note_topic(void *arg, const struct pn_log_topic *topic, const char *database,
                      const char *name)
{
    pn_dir_item *item = add(arg, PN_DIR_TOPIC);
    if (item == NULL)
        return no_memory();
    item->topic = topic->topic;
    item->paused = topic->paused;
    item->fsync = topic->fsync;
    item->max_depth = topic->max_depth;
    keep_name(item->database, database, topic->database_len);
    keep_name(item->name, name, topic->name_len);
    return 0;
}

static int note_channel(void *arg, const struct pn_log_channel *channel, const char *name)
{
    pn_dir_item *item = add(arg, PN_DIR_CHANNEL);
    if (item == NULL)
        return no_memory();
    item->topic = channel->topic;
    item->channel = channel->channel;
    item->paused = channel->paused;
    keep_name(item->name, name, channel->name_len);
    return 0;
}

static int note_message(void *arg, const struct pn_log_message *message,
                        const struct pn_log_delivery *deliveries, const uint8_t *headers,
                        const uint8_t *body, uint32_t body_len)
{
    struct pn_dir *dir = arg;
    if (message->deliveries > dir->copies) {
        pn_dir_copy *more = realloc(dir->copy, message->deliveries * sizeof *more);
        if (more == NULL)
            return no_memory();
        dir->copy = more;
        dir->copies = message->deliveries;
    }
    for (uint32_t i = 0; i < message->deliveries; i++)
        dir->copy[i] =
            (pn_dir_copy) {deliveries[i].channel, deliveries[i].attempts, deliveries[i].due};
    dir->message = (pn_dir_item) {.kind = PN_DIR_MESSAGE,
                                  .topic = message->topic,
                                  .id = message->id,
                                  .published_ns = message->published,
                                  .due_ns = message->due,
                                  .expires_ns = message->expires,
                                  .own = message->fanned_out == 0,
                                  .ncopies = message->deliveries,
                                  .copies = dir->copy,
                                  .headers = headers,
                                  .headers_len = message->headers_len,
                                  .body = body,
                                  .body_len = body_len};
    return 0;
}

static void note_damage(void *arg, enum pn_log_damage why, uint64_t file, uint64_t at,
                        uint64_t records)
{
    struct pn_dir *dir = arg;
    pn_dir_item *item = add(dir, PN_DIR_DAMAGE);
    dir->failed = dir->failed || item == NULL;
    if (item == NULL)
        return;
    item->why = (uint32_t) why;
    item->file = file;
    item->at = at;
    item->records = records;
}

static const struct pn_topiclog_replay replay = {
    .topic = note_topic, .channel = note_channel, .message = note_message, .damage = note_damage};

/* ---- the end --------------------------------------------------------------------------------- */

static int64_t size_of(const struct pn_data_dir *dir, uint64_t number)
{
    char name[PN_DATA_FILE_NAME], path[sizeof dir->path + sizeof name];
    struct stat st;
    pn_data_dir_name(dir, number, name);
    snprintf(path, sizeof path, "%s/%s", dir->path, name);
    return stat(path, &st) == 0 ? (int64_t) st.st_size : -1;
}

/* Is [at, size) the prefix of a batch whose first record has number `seq`?  1, 0, -errno. */
static int is_prefix(struct pn_diskqueue_files *files, uint64_t file, uint64_t at, uint64_t size,
                     uint64_t seq)
{
    struct pn_record_out record;
    int rc;
    do {
        rc = pn_recfile_next(&files->dir, &files->peeker, file, at, UINT64_MAX, &record);
        if (rc < 0 || size - at < PN_RECORD_HEADER)
            return rc < 0 ? rc : 1;
        if ((rc != PN_RECFILE_RECORD && rc != PN_RECFILE_DAMAGED) || record.at != at ||
            record.seq != seq++)
            return 0;
        if (record.next > size) /* the zeros behind it, or more, are not there */
            return 1;
        at = record.next;
    } while (rc == PN_RECFILE_RECORD && at < size);
    return rc == PN_RECFILE_RECORD;
}

static int look_behind(struct pn_dir *dir, uint64_t file, uint64_t at, uint64_t seq)
{
    int64_t size = size_of(&dir->files.queue.dir, file);
    if (size <= (int64_t) at)
        return 0;
    int rc = is_prefix(&dir->files.queue, file, at, (uint64_t) size, seq);
    if (rc < 0)
        return rc;
    note_damage(dir, PN_LOG_UNREADABLE, file, at, 0);
    if (dir->failed)
        return no_memory();
    dir->item[dir->n - 1].why = rc == 1 ? PN_DIR_UNFINISHED : PN_DIR_BAD_END;
    dir->item[dir->n - 1].bytes = (uint64_t) size - at;
    return 0;
}

struct numbers {
    uint64_t first, last;
};

static int note_number(void *arg, uint64_t number)
{
    struct numbers *n = arg;
    n->first = n->first == 0 || number < n->first ? number : n->first;
    n->last = number > n->last ? number : n->last;
    return 0;
}

static int read_log(struct pn_dir *dir, struct numbers *n)
{
    int rc = pn_diskqueue_recover(&dir->queue, &dir->files.queue, 0, PN_DISKQUEUE_FILE);
    if (rc != 0 || n->last == 0)
        return rc;
    const struct pn_diskqueue_state *now = pn_diskqueue_now(&dir->queue);
    rc = pn_topiclog_begin(&dir->files, now, &replay, dir, &dir->damaged, &dir->reading);
    uint64_t at = now->write_at;
    for (uint64_t file = now->write_file; rc == 0 && file <= n->last; file++, at = 0)
        rc = look_behind(dir, file, at != 0 ? at : PN_RECFILE_START, now->write_seq);
    return rc;
}

/* ---- overflow files -------------------------------------------------------------------------- */

static int look_at_file(void *arg, uint64_t number)
{
    struct pn_dir *dir = arg;
    struct pn_diskqueue_files *files = &dir->files.queue;
    struct pn_record_out record;
    uint64_t at = PN_RECFILE_START, last = at, seq = UINT64_MAX;
    int rc;
    while ((rc = pn_recfile_next(&files->dir, &files->reader, number, at, UINT64_MAX, &record)) !=
           PN_RECFILE_END) {
        if (rc < 0)
            return rc == -ENOENT ? 0 : rc;
        at = record.next;
        if (rc == PN_RECFILE_SEARCH)
            continue;
        if (seq != UINT64_MAX && record.seq > seq)
            note_damage(dir, PN_LOG_UNREADABLE, number, last, record.seq - seq);
        if (rc == PN_RECFILE_DAMAGED && (int64_t) record.next <= size_of(&files->dir, number))
            note_damage(dir, PN_LOG_SPOILT, number, record.at, 1);
        seq = record.seq + 1;
        last = at;
    }
    return dir->failed ? no_memory() : 0;
}

static int open_spill(struct pn_dir *dir, const char *path, const char *spill, uint64_t instance)
{
    struct pn_data_dir where = {.instance = instance, .kind = 'd', .read_only = true};
    if (strlen(path) >= sizeof where.path || strlen(spill) >= sizeof where.prefix)
        return pn_fail(ENAMETOOLONG, "the path %.100s... is too long", path);
    memcpy(where.path, path, strlen(path) + 1);
    memcpy(where.prefix, spill, strlen(spill) + 1);
    return pn_diskqueue_open(&dir->files.queue, &where, 0);
}

/* ---- the calls ------------------------------------------------------------------------------- */

PN_API int pn_dir_holder(const char *path, int32_t *pid, char *host)
{
    return pn_dirlock_look(path, pid, host);
}

PN_API void pn_dir_close(pn_dir *dir)
{
    if (dir->reading != NULL)
        pn_topiclog_end(dir->reading);
    pn_topiclog_close(&dir->files);
    free(dir->item);
    free(dir->copy);
    free(dir);
}

PN_API int pn_dir_open(const char *path, const char *spill, uint64_t instance, pn_dir **out,
                       pn_dir_about *about)
{
    struct numbers n = {0};
    struct pn_dir *dir = calloc(1, sizeof *dir);
    if (dir == NULL)
        return no_memory();
    int rc = spill != NULL ? open_spill(dir, path, spill, instance)
                           : pn_topiclog_look(&dir->files, path);
    if (rc != 0) {
        free(dir);
        return rc;
    }
    dir->is_log = spill == NULL;
    rc = pn_data_dir_list(&dir->files.queue.dir, note_number, &n);
    if (rc == 0)
        rc = dir->is_log ? read_log(dir, &n)
                         : pn_data_dir_list(&dir->files.queue.dir, look_at_file, dir);
    if (rc == 0 && dir->failed)
        rc = no_memory();
    if (rc != 0) {
        pn_dir_close(dir);
        return rc;
    }
    *about = (pn_dir_about) {.first_file = n.first, .last_file = n.last, .damaged = dir->damaged};
    snprintf(about->prefix, sizeof about->prefix, "%.63s", dir->files.queue.dir.prefix);
    *out = dir;
    return 0;
}

PN_API int pn_dir_next(pn_dir *dir, pn_dir_item *item)
{
    int rc = 1;
    dir->message.kind = 0;
    while (dir->next == dir->n && rc == 1 && dir->reading != NULL && dir->message.kind == 0)
        rc = pn_topiclog_next(dir->reading);
    if (rc < 0 || dir->failed)
        return rc < 0 ? rc : no_memory();
    if (dir->next < dir->n)
        *item = dir->item[dir->next++];
    else if (dir->message.kind != 0)
        *item = dir->message;
    else
        return 0;
    return 1;
}
