/*
 * diskqueue.c - see diskqueue.h.
 *
 * THE MODEL
 *
 *  1. The queue is the records [read_seq, write_seq) in files (record_file.c) of the numbers
 *     [read_file, write_file].  Depth and bytes are differences of counters that the records
 *     carry, too: they cannot drift, and after damage they are what is left, exactly.
 *  2. **The commit point is the store of `current`.**  Every change is made in the other copy
 *     of the state, from a copy of the present one; so it is there whole or not at all, wherever a
 *     SIGKILL strikes, and nothing is repaired.
 *  3. put: the records are written behind write_at, where no reader is, then committed.  What a
 *     dead writer has left there is cut off by the next.  An error cuts it off at once.
 *  4. A batch stands in one file, which is begun when the present one has max_file bytes; a file
 *     is larger only for a batch that is.
 *  5. get: record by record; each is the taker's own first, and then the queue moves past
 *     it: the taker that was killed in between is given it again, and has to know it (by its id).
 *     After that, how far it was read is also marked in the file, for recover().
 *  6. The reader never judges by a file's length where writing goes on: it stops at write_at.  An
 *     older file ends where it ends; whether it should have gone on is told by the number
 *     of the next record, wherever that is.  A record that is damaged or missing costs itself and
 *     is counted in `corrupt`; no file is given up, set aside or renamed.
 *  7. Only what cannot be read because it is not there, or is there and wrong, is damage.  No
 *     descriptor, no memory, no permission, an I/O error: errors, after which nothing has changed.
 *  8. Files that may exist: [first_file, write_file + 1]; + 1 when its maker died before its
 *     commit.  Read ones are removed after the commit; first_file follows each that is gone.  A
 *     queue that was read to its end goes on in its file while that is short.
 *  9. Without the segment, recover() finds the same in the files: the oldest file's mark, and
 *     the last whole batch.  The page cache survives processes; nothing is synced here, since
 *     what has to survive a power failure is a durable topic's and stands in its log.
 * 10. A full disk must not keep from being written what makes room on it.  A log asks for blocks
 *     ahead (owed()): whatever adds to it is refused as long as there are none for what it adds
 *     and, behind that, for all records that end what is there.  Those are written with `ends`
 *     and go to the file that has the blocks, however long it is.  A file system that cannot
 *     reserve is not asked again before the next file.
 *
 * Why not pages: one is 8 KiB, a message 200 bytes; a record alone is skipped, not its page.
 */
#define _GNU_SOURCE
#include "files/diskqueue.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/crashpoint.h"
#include "base/err.h"

enum {
    SHORT_FILE = 1 << 20,  /* a file that was read to its end goes on up to here */
    ROOM_STEP = 256 << 10, /* bytes that are reserved at a time */
    FILES = 1 << 16, /* of one queue, between what is read and what is written: no more of them */
    MANY = 1 << 20   /* files that are there at all; more are numbers of overwritten memory */
};

static struct pn_diskqueue_state *spare(struct pn_diskqueue *q)
{
    return &q->state[1 - (pn_load_relaxed(&q->current) & 1)];
}

static void flip(struct pn_diskqueue *q)
{
    pn_store_release(&q->current, 1 - (pn_load_relaxed(&q->current) & 1));
}

static void commit(struct pn_diskqueue *q, const struct pn_diskqueue_state *next)
{
    *spare(q) = *next;
    PN_CRASH("diskqueue:written");
    flip(q);
    PN_CRASH("diskqueue:committed");
}

void pn_diskqueue_init(struct pn_diskqueue *q, uint64_t base, uint64_t max_file)
{
    memset(q, 0, sizeof *q);
    q->base = base;
    q->max_file = max_file != 0 ? max_file : PN_DISKQUEUE_FILE;
    q->first_file = base + 1;
    q->state[0].read_file = base + 1;
    q->state[0].write_file = base;
}

int pn_diskqueue_open(struct pn_diskqueue_files *files, const struct pn_data_dir *dir,
                      uint32_t longest)
{
    memset(files, 0, sizeof *files);
    files->dir = *dir;
    files->writer = (struct pn_recfile) PN_RECFILE_NONE;
    int rc = pn_recfile_reader_init(&files->reader, longest);
    if (rc == 0 && (rc = pn_recfile_reader_init(&files->peeker, longest)) != 0)
        pn_recfile_reader_free(&files->reader);
    return rc;
}

void pn_diskqueue_close(struct pn_diskqueue_files *files)
{
    pn_recfile_close(&files->writer);
    pn_recfile_reader_free(&files->reader);
    pn_recfile_reader_free(&files->peeker);
}

/* ---- removing ------------------------------------------------------------------------------- */

static int remove_until(struct pn_diskqueue *q, struct pn_diskqueue_files *files, uint64_t end)
{
    while (q->first_file < end && end - q->first_file <= MANY) {
        int rc = pn_data_dir_remove(&files->dir, q->first_file);
        if (rc != 0)
            return rc;
        PN_CRASH("diskqueue:removed");
        q->first_file++;
    }
    return 0;
}

int pn_diskqueue_remove(struct pn_diskqueue *q, struct pn_diskqueue_files *files)
{
    return remove_until(q, files, pn_diskqueue_now(q)->write_file + 2);
}

bool pn_diskqueue_possible(const struct pn_diskqueue *q, uint64_t base)
{
    const struct pn_diskqueue_state *s = pn_diskqueue_now(q);
    return q->base == base && q->max_file != 0 && s->write_file >= base &&
           s->write_file - base < UINT32_MAX && q->first_file > base &&
           q->first_file <= s->read_file && s->read_file <= s->write_file + 1 &&
           s->write_file + 1 - q->first_file < MANY && s->read_seq <= s->write_seq &&
           s->read_sum <= s->write_sum && s->write_seq - s->read_seq < 1ULL << 48;
}

int pn_diskqueue_empty(struct pn_diskqueue *q, struct pn_diskqueue_files *files)
{
    struct pn_diskqueue_state next = *pn_diskqueue_now(q);
    next.write_file++; /* one may be there that was not committed */
    next.write_at = 0;
    next.read_file = next.write_file + 1;
    next.read_at = 0;
    next.read_seq = next.write_seq;
    next.read_sum = next.write_sum;
    commit(q, &next);
    PN_CRASH("diskqueue:emptied");
    pn_store_relaxed(&q->error, 0);
    pn_recfile_close(&files->writer);
    pn_recfile_close(&files->reader.file);
    pn_recfile_close(&files->peeker.file);
    return remove_until(q, files, next.read_file);
}

/* ---- putting -------------------------------------------------------------------------------- */

struct pn_diskqueue_writing {
    struct pn_diskqueue_files *files;
    struct pn_diskqueue_state *next;
};

int pn_diskqueue_write(struct pn_diskqueue_writing *w, const struct pn_record_in *records, size_t n)
{
    struct pn_diskqueue_state *next = w->next;
    int rc = n == 0 ? 0
                    : pn_recfile_append(&w->files->dir, &w->files->writer, next->write_file,
                                        next->write_at, next->write_seq, next->write_sum, records,
                                        n, &next->write_at);
    for (size_t i = 0; rc == 0 && i < n; i++)
        next->write_sum += pn_record_length(&records[i]);
    next->write_seq += rc == 0 ? n : 0;
    return rc;
}

static int begin_file(struct pn_diskqueue *q, struct pn_diskqueue_writing *w)
{
    struct pn_diskqueue_state *next = w->next;
    if (next->write_file - q->base >= UINT32_MAX)
        return pn_fail(ENOSPC, "a queue on disk has used up its file numbers");
    int rc = w->files->may_begin == NULL ? 0 : w->files->may_begin(w->files->arg);
    if (rc != 0)
        return rc;
    q->room_file = 0; /* it may be that number's */
    rc = pn_recfile_make(&w->files->dir, next->write_file + 1, next->write_seq, next->write_sum,
                         &w->files->writer);
    if (rc != 0)
        return rc;
    next->write_file++;
    next->write_at = PN_RECFILE_START;
    if (next->read_seq == next->write_seq) {
        next->read_file = next->write_file;
        next->read_at = PN_RECFILE_START;
    }
    return w->files->at_begin == NULL ? 0 : w->files->at_begin(w->files->arg, w);
}

/*
 * For `size` bytes that add to it, and for those that are owed then.  What is reserved is not asked
 * for again: a tmpfs that has no room for all takes back what the file had there.
 */
static int reserve_room(struct pn_diskqueue *q, struct pn_diskqueue_files *files,
                        const struct pn_diskqueue_state *next, uint64_t size)
{
    const uint64_t at = next->write_at;
    bool known = q->room_file == next->write_file && q->room_end + q->room_owed > at;
    uint64_t more = ROOM_STEP > size ? ROOM_STEP : size, need;
    const uint64_t have = known ? q->room_end + q->room_owed : at;
    int rc = 0;
    if (known && at + size <= q->room_end)
        return 0;
    for (uint64_t parts = 4;;) {
        uint64_t rest, owed = files->owed(files->arg, more, &rest);
        owed -= rest / 4 * (4 - parts);
        need = at + more + (owed < UINT32_MAX ? owed : UINT32_MAX);
        rc = need <= have ? 0
                          : pn_recfile_reserve(&files->dir, &files->writer, next->write_file, at,
                                               have, need);
        if (rc != -ENOSPC && rc != -EDQUOT && rc != -EFBIG)
            break;
        q->starved = 1; /* compaction should not wait until it needs room itself */
        if (more == size && (size != 0 || parts-- == 0))
            break;
        more = size;
    }
    if (rc != 0 && rc != -EOPNOTSUPP)
        return rc;
    need = need > have ? need : have;
    q->room_end = rc == 0 ? at + more : UINT64_MAX / 2;
    q->room_owed = rc == 0 && need - q->room_end < UINT32_MAX ? (uint32_t) (need - q->room_end) : 0;
    q->room_file = next->write_file;
    return 0;
}

static int write_records(struct pn_diskqueue *q, struct pn_diskqueue_files *files,
                         const struct pn_record_in *records, size_t n,
                         struct pn_diskqueue_state *next)
{
    struct pn_diskqueue_writing w = {files, next};
    uint64_t size = 0;
    for (size_t i = 0; i < n; i++)
        size += pn_record_size(pn_record_length(&records[i]));
    bool begin = next->write_at == 0 || (next->write_at > PN_RECFILE_START &&
                                         next->write_at + size > q->max_file && !files->one_file);
    const uint64_t file = next->write_file;
    int rc = begin ? begin_file(q, &w) : 0;
    if (rc == 0 && files->owed != NULL && !files->ends)
        rc = reserve_room(q, files, next, size);
    if (rc == 0 && (rc = pn_diskqueue_write(&w, records, n)) != 0)
        q->room_file = 0; /* what was written is cut off, and what was reserved with it */
    if (rc != 0 && next->write_file != file) { /* a full disk has better uses for it */
        pn_recfile_close(&files->writer);
        char sentence[512];
        snprintf(sentence, sizeof sentence, "%s", pn_error_message());
        pn_data_dir_remove(&files->dir, next->write_file);
        pn_fail(-rc, "%s", sentence);
    }
    return rc;
}

static int stage_from(struct pn_diskqueue *q, struct pn_diskqueue_files *files,
                      const struct pn_diskqueue_state *from, const struct pn_record_in *records,
                      size_t n, uint64_t *seq)
{
    struct pn_diskqueue_state next = *from;
    int rc = n == 0 ? 0 : write_records(q, files, records, n, &next);
    /* The file was removed by another program: it is lost.  A log is written again by its owner. */
    if (rc == -ENOENT && from != spare(q) && files->at_begin == NULL) {
        next = *from;
        next.write_at = 0;
        rc = write_records(q, files, records, n, &next);
    }
    pn_store_relaxed(&q->error, -rc);
    if (rc != 0)
        return rc;
    *spare(q) = next;
    *seq = next.write_seq;
    PN_CRASH("diskqueue:staged");
    return 0;
}

int pn_diskqueue_stage(struct pn_diskqueue *q, struct pn_diskqueue_files *files,
                       const struct pn_record_in *records, size_t n, uint64_t *seq)
{
    return stage_from(q, files, pn_diskqueue_now(q), records, n, seq);
}

int pn_diskqueue_stage_more(struct pn_diskqueue *q, struct pn_diskqueue_files *files,
                            const struct pn_record_in *records, size_t n, uint64_t *seq)
{
    return stage_from(q, files, spare(q), records, n, seq);
}

void pn_diskqueue_commit(struct pn_diskqueue *q, uint64_t seq)
{
    if (pn_diskqueue_now(q)->write_seq < seq && spare(q)->write_seq == seq)
        flip(q);
    PN_CRASH("diskqueue:committed");
}

int pn_diskqueue_stage_roll(struct pn_diskqueue *q, struct pn_diskqueue_files *files, uint64_t *seq)
{
    struct pn_diskqueue_state next = *pn_diskqueue_now(q);
    next.write_at = 0;
    int rc = write_records(q, files, NULL, 0, &next);
    pn_store_relaxed(&q->error, -rc);
    *spare(q) = rc == 0 ? next : *pn_diskqueue_now(q);
    *seq = next.write_seq;
    return rc;
}

void pn_diskqueue_unstage(struct pn_diskqueue *q, struct pn_diskqueue_files *files)
{
    const struct pn_diskqueue_state *now = pn_diskqueue_now(q);
    pn_recfile_close(&files->writer);
    q->room_file = 0;
    const uint64_t staged = spare(q)->write_file - now->write_file;
    for (uint64_t n = 1; n <= staged && staged < MANY; n++)
        pn_data_dir_remove(&files->dir, now->write_file + n);
    *spare(q) = *now;
}

void pn_diskqueue_take_back(struct pn_diskqueue *q, struct pn_diskqueue_files *files)
{
    const struct pn_diskqueue_state now = *pn_diskqueue_now(q);
    char sentence[512];
    snprintf(sentence, sizeof sentence, "%s", pn_error_message());
    pn_diskqueue_unstage(q, files);
    if (now.write_at != 0)
        pn_recfile_release(&files->dir, now.write_file, now.write_at); /* else the next one does */
    pn_fail(pn_load_relaxed(&q->error), "%s", sentence);
}

void pn_diskqueue_drop(struct pn_diskqueue *q, uint64_t file, uint64_t seq, uint64_t sum)
{
    struct pn_diskqueue_state next = *pn_diskqueue_now(q);
    next.read_file = file;
    next.read_at = PN_RECFILE_START;
    next.read_seq = seq;
    next.read_sum = sum;
    commit(q, &next);
}

int pn_diskqueue_tidy(struct pn_diskqueue *q, struct pn_diskqueue_files *files)
{
    const uint64_t end = pn_diskqueue_now(q)->read_file;
    bool all = q->starved != 0 || end - q->first_file <= PN_DISKQUEUE_TIDY;
    return remove_until(q, files, all ? end : q->first_file + PN_DISKQUEUE_TIDY);
}

/* ---- getting -------------------------------------------------------------------------------- */

/* Everything up to that record is got or lost; `sum` of what is lost is not known before. */
static void advance_read_mark(struct pn_diskqueue_state *s, uint64_t seq, uint64_t sum)
{
    s->corrupt += seq - s->read_seq;
    s->read_seq = seq;
    s->read_sum = sum;
}

void pn_diskqueue_pass(struct pn_diskqueue *q, uint64_t file, uint64_t at, uint64_t seq,
                       uint64_t sum)
{
    struct pn_diskqueue_state next = *pn_diskqueue_now(q);
    if (next.read_seq > seq)
        return;
    advance_read_mark(&next, seq, sum);
    next.read_seq++;
    next.read_file = file;
    next.read_at = at;
    commit(q, &next);
}

/* Does this record come next, or after some that are lost?  What is neither was got before. */
static bool is_due(const struct pn_diskqueue_state *s, const struct pn_record_out *record)
{
    return record->seq >= s->read_seq && record->seq < s->write_seq && record->sum >= s->read_sum &&
           record->sum + record->length <= s->write_sum;
}

/*
 * Move *s on to the next record: 1, and it is *record; 0: there is none; -EAGAIN: *s has moved, and
 * it was enough for once; -errno.
 */
static int next_record(struct pn_diskqueue_files *files, struct pn_recfile_reader *reader,
                       struct pn_diskqueue_state *s, struct pn_record_out *record)
{
    for (unsigned steps = 0; steps < 16; steps++) {
        if (s->read_seq == s->write_seq)
            return 0;
        bool last = s->read_file >= s->write_file; /* greater: none was written */
        uint64_t end = last ? s->write_at : UINT64_MAX;
        s->read_at = s->read_at > PN_RECFILE_START ? s->read_at : PN_RECFILE_START;
        int rc = pn_recfile_next(&files->dir, reader, s->read_file, s->read_at, end, record);
        if (rc < 0 && rc != -ENOENT)
            return rc;
        if (rc == PN_RECFILE_RECORD && is_due(s, record)) {
            advance_read_mark(s, record->seq, record->sum);
            s->read_at = record->at;
            return 1;
        }
        if (rc == PN_RECFILE_SEARCH || rc == PN_RECFILE_RECORD || rc == PN_RECFILE_DAMAGED) {
            s->read_at = record->next;
            if (rc == PN_RECFILE_DAMAGED && is_due(s, record))
                advance_read_mark(s, record->seq + 1, record->sum + record->length);
        } else if (last) {
            advance_read_mark(s, s->write_seq, s->write_sum);
            s->read_at = s->write_at;
        } else if (rc == -ENOENT && s->write_file - s->read_file > FILES) {
            s->read_file = s->write_file; /* overwritten memory: files have numbers in a row */
            s->read_at = PN_RECFILE_START;
        } else {
            s->read_file++;
            s->read_at = PN_RECFILE_START;
        }
        if (rc == PN_RECFILE_SEARCH)
            steps += 4;
    }
    return -EAGAIN;
}

/* After reading: remove what is read, and say in the file how far that is. */
static void tidy_after_reading(struct pn_diskqueue *q, struct pn_diskqueue_files *files)
{
    struct pn_diskqueue_state s = *pn_diskqueue_now(q);
    if (s.read_seq == s.write_seq && s.write_at > SHORT_FILE) {
        pn_diskqueue_empty(q, files);
        return;
    }
    remove_until(q, files, s.read_file); /* or later */
    if (s.write_at == 0 || files->unmarked)
        return;
    const struct pn_recfile_mark mark = {s.read_at, s.read_seq, s.read_sum};
    pn_recfile_set_mark(&files->dir, &files->reader, s.read_file, &mark);
    PN_CRASH("diskqueue:marked");
}

void pn_diskqueue_end(const struct pn_diskqueue *q, bool staged, struct pn_diskqueue_cursor *cursor)
{
    const struct pn_diskqueue_state *s =
        &q->state[(pn_load_relaxed(&q->current) ^ (uint32_t) staged) & 1];
    *cursor = (struct pn_diskqueue_cursor) {s->write_file, s->write_at, s->write_seq, s->write_sum};
}

void pn_diskqueue_forget(struct pn_diskqueue *q, struct pn_diskqueue_files *files,
                         const struct pn_diskqueue_cursor *cursor)
{
    struct pn_diskqueue_state next = *pn_diskqueue_now(q);
    if (cursor->seq <= next.read_seq || cursor->seq > next.write_seq)
        return;
    next.read_file = cursor->file;
    next.read_at = cursor->at;
    next.read_seq = cursor->seq;
    next.read_sum = cursor->sum;
    commit(q, &next);
    tidy_after_reading(q, files);
}

int64_t pn_diskqueue_get(struct pn_diskqueue *q, struct pn_diskqueue_files *files, uint32_t max,
                         pn_diskqueue_take *take, void *arg)
{
    const struct pn_diskqueue_state begin = *pn_diskqueue_now(q);
    struct pn_diskqueue_state s = begin;
    struct pn_record_out record;
    int64_t taken = 0;
    int rc = 1;
    while (rc == 1 && taken < max) {
        rc = next_record(files, &files->reader, &s, &record);
        if (rc != 1)
            break;
        rc = take(arg, &record);
        if (rc != 1)
            break;
        PN_CRASH("diskqueue:taken");
        s.read_at = record.next;
        s.read_seq++;
        s.read_sum += record.length;
        if (pn_diskqueue_now(q)->read_seq < s.read_seq) /* else take() has done it */
            commit(q, &s);
        taken++;
    }
    const struct pn_diskqueue_state *now = pn_diskqueue_now(q);
    bool moved =
        s.read_seq != now->read_seq || s.read_file != now->read_file || s.read_at != now->read_at;
    if (moved) /* past what is damaged */
        commit(q, &s);
    if (moved || taken > 0) {
        char sentence[512];
        snprintf(sentence, sizeof sentence, "%s", pn_error_message());
        tidy_after_reading(q, files);
        if (rc < 0)
            pn_fail(-rc, "%s", sentence);
    }
    return taken > 0 ? taken : rc < 0 ? rc : 0;
}

int pn_diskqueue_look(const struct pn_diskqueue *q, struct pn_diskqueue_files *files,
                      struct pn_diskqueue_cursor *cursor, struct pn_record_out *record)
{
    struct pn_diskqueue_state s = *pn_diskqueue_now(q);
    if (cursor->file > s.read_file || (cursor->file == s.read_file && cursor->at > s.read_at)) {
        s.read_file = cursor->file;
        s.read_at = cursor->at;
        s.read_seq = cursor->seq;
        s.read_sum = cursor->sum;
    }
    int rc = next_record(files, &files->peeker, &s, record);
    if (rc == 1) {
        s.read_at = record->next;
        s.read_seq++;
        s.read_sum += record->length;
    }
    *cursor = (struct pn_diskqueue_cursor) {s.read_file, s.read_at, s.read_seq, s.read_sum};
    return rc;
}

/* ---- from the files ------------------------------------------------------------------------- */

struct numbers {
    uint64_t base, first, last;
};

static int note_number(void *arg, uint64_t number)
{
    struct numbers *n = arg;
    if (number <= n->base || number - n->base > UINT32_MAX)
        return 0;
    n->first = n->first == 0 || number < n->first ? number : n->first;
    n->last = number > n->last ? number : n->last;
    return 0;
}

/* Put the writing end of *s behind the last whole batch of a file: 1; 0: there is none; -errno. */
static int find_end(struct pn_diskqueue_files *files, uint64_t number, struct pn_diskqueue_state *s)
{
    struct pn_record_out record;
    uint64_t at = PN_RECFILE_START;
    int rc, found = 0;
    while ((rc = pn_recfile_next(&files->dir, &files->peeker, number, at, UINT64_MAX, &record)) !=
           PN_RECFILE_END) {
        if (rc == -ENOENT)
            return found;
        if (rc < 0)
            return rc;
        at = record.next;
        if (rc != PN_RECFILE_RECORD || record.more != 0)
            continue;
        s->write_file = number;
        s->write_at = at;
        s->write_seq = record.seq + 1;
        s->write_sum = record.sum + record.length;
        found = 1;
    }
    return found;
}

/* The reading end: what the mark says, or else the first record that can be read. */
static int find_begin(struct pn_diskqueue_files *files, uint64_t number,
                      struct pn_diskqueue_state *s)
{
    struct pn_recfile_mark mark;
    int rc = pn_recfile_get_mark(&files->dir, &files->peeker, number, &mark);
    if (rc < 0)
        return rc;
    s->read_file = number;
    s->read_at = PN_RECFILE_START;
    if (rc == 0) {
        s->read_at = mark.at;
        s->read_seq = mark.seq < s->write_seq ? mark.seq : s->write_seq;
        s->read_sum = mark.sum < s->write_sum ? mark.sum : s->write_sum;
        return 0;
    }
    struct pn_diskqueue_state from = *s;
    from.read_seq = from.read_sum = 0;
    struct pn_record_out record;
    while ((rc = next_record(files, &files->peeker, &from, &record)) == -EAGAIN)
        ;
    s->read_seq = rc == 1 ? record.seq : s->write_seq;
    s->read_sum = rc == 1 ? record.sum : s->write_sum;
    return rc < 0 ? rc : 0;
}

int pn_diskqueue_recover(struct pn_diskqueue *q, struct pn_diskqueue_files *files, uint64_t base,
                         uint64_t max_file)
{
    struct numbers n = {.base = base};
    int found = 0, rc = pn_data_dir_list(&files->dir, note_number, &n);
    pn_diskqueue_init(q, base, max_file);
    if (rc != 0 || n.last == 0)
        return rc;
    struct pn_diskqueue_state s = q->state[0];
    q->first_file = n.first;
    for (uint64_t last = n.last; found == 0 && last >= n.first; last--) {
        found = find_end(files, last, &s);
        /* It was made, and its maker was killed; or nothing in it is whole. */
        if (found == 0 && !files->dir.read_only)
            rc = pn_data_dir_remove(&files->dir, last);
        if (found < 0 || rc != 0)
            return found < 0 ? found : rc;
    }
    if (found == 0) {
        s.write_file = n.last;
        s.read_file = n.last + 1;
    } else if ((rc = find_begin(files, n.first, &s)) != 0) {
        return rc;
    }
    pn_recfile_reader_forget(&files->peeker); /* it has looked beyond the end */
    q->state[0] = s;
    return 0;
}
