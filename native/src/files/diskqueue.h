/*
 * diskqueue.h - a queue of records in files: first in, first out, for several processes.
 *
 *     struct pn_diskqueue *q = in shared memory;          pn_diskqueue_init(q, base, max_file);
 *     struct pn_diskqueue_files files;                    one per process
 *     rc = pn_diskqueue_open(&files, &dir, longest);
 *     rc = pn_diskqueue_stage(q, &files, records, n, &seq);
 *     pn_diskqueue_commit(q, seq);                        all of them or none
 *     n = pn_diskqueue_get(q, &files, 100, take, arg);    take() makes each one its own
 *     pn_diskqueue_close(&files);
 *
 * The caller holds the lock that keeps all but one process out, in everything that has a `q`.
 * diskqueue.c has the model.  0 or -errno with a sentence, unless something else is said.
 */
#ifndef PN_DISKQUEUE_H
#define PN_DISKQUEUE_H

#include "base/atomic.h"
#include "files/record_file.h"

#define PN_DISKQUEUE_FILE (64U << 20) /* bytes in a file, about */

/* Where reading and writing are.  W: holder, in the copy that is not `current`. */
struct pn_diskqueue_state {
    uint64_t read_file, read_at, read_seq, read_sum;
    uint64_t write_file, write_at, write_seq, write_sum; /* write_at 0: the next file is not made */
    uint64_t corrupt;                                    /* records that were lost to damage */
    uint64_t unused;
};

struct pn_diskqueue {
    pn_atomic_u32 current; /* which state[] is the truth: the one store of every change */
    pn_atomic_i32 error;   /* errno of the last write, 0: it succeeded.  W: holder.  R: any */
    uint64_t base;         /* its files have the numbers base + 1, base + 2, ... */
    uint64_t max_file;
    uint64_t first_file; /* files below are removed */
    /* Of a log; W: holder. */
    uint64_t room_file, room_end; /* what adds to it may write to there, and then there is room
                                   * for the rest (diskqueue.c 10) */
    uint32_t room_owed;           /* so many bytes are reserved behind room_end */
    uint32_t starved;             /* a full disk has refused something since the last compaction */
    struct pn_diskqueue_state state[2];
};
_Static_assert(sizeof(struct pn_diskqueue) == 216, "it is a part of the layout");

/* What a process has of it. */
struct pn_diskqueue_writing;
struct pn_diskqueue_files {
    struct pn_data_dir dir;
    struct pn_recfile writer;
    struct pn_recfile_reader reader, peeker;
    bool unmarked; /* no process will recover() it: save the marks */
    /* Before a file is made, or NULL: it is not if this fails.  0 or -errno. */
    int (*may_begin)(void *arg);
    /* Writes what each file begins with (pn_diskqueue_write), or NULL.  0 or -errno. */
    int (*at_begin)(void *arg, struct pn_diskqueue_writing *w);
    /* How many bytes the records may take that will be written with `ends`, after `more` bytes of
     * others; of them so many are a *rest that a new file may begin without.  NULL: none. */
    uint64_t (*owed)(void *arg, uint64_t more, uint64_t *rest);
    void *arg;
    bool ends;     /* what is written now was reserved before */
    bool one_file; /* and in the file that is there */
};

/* An empty queue.  `base`: 2^32 file numbers from there on are its own, in this directory. */
void pn_diskqueue_init(struct pn_diskqueue *q, uint64_t base, uint64_t max_file);
/* The same from the files that are there: what was put, less what the newest mark says was got. */
int pn_diskqueue_recover(struct pn_diskqueue *q, struct pn_diskqueue_files *files, uint64_t base,
                         uint64_t max_file);

int pn_diskqueue_open(struct pn_diskqueue_files *files, const struct pn_data_dir *dir,
                      uint32_t longest);
void pn_diskqueue_close(struct pn_diskqueue_files *files);

/*
 * Put records, in two steps for a caller with a commit point of its own between them: whatever
 * happens to the queue after stage() and before commit() takes back what was staged.  *seq says
 * which it was.  -ENOSPC, -EDQUOT, -EIO, -EFBIG, -EMFILE ...: nothing was staged.
 */
int pn_diskqueue_stage(struct pn_diskqueue *q, struct pn_diskqueue_files *files,
                       const struct pn_record_in *records, size_t n, uint64_t *seq);
/* The same behind what is staged, for the same commit. */
int pn_diskqueue_stage_more(struct pn_diskqueue *q, struct pn_diskqueue_files *files,
                            const struct pn_record_in *records, size_t n, uint64_t *seq);
/* May be called again, also by a successor: does nothing if that was committed. */
void pn_diskqueue_commit(struct pn_diskqueue *q, uint64_t seq);

/* For at_begin(): records that are committed with those which the file was begun for. */
int pn_diskqueue_write(struct pn_diskqueue_writing *w, const struct pn_record_in *records,
                       size_t n);

/* Begin a file, staged; there has to be an at_begin().  stage_more() goes on in it; unstage() takes
 * it back, with its file. */
int pn_diskqueue_stage_roll(struct pn_diskqueue *q, struct pn_diskqueue_files *files,
                            uint64_t *seq);
void pn_diskqueue_unstage(struct pn_diskqueue *q, struct pn_diskqueue_files *files);
/* The same after a refusal, whose sentence stays: the files are as long as before, as far as that
 * succeeds. */
void pn_diskqueue_take_back(struct pn_diskqueue *q, struct pn_diskqueue_files *files);
/* Forget what stands before a file, which begins with record `seq` and `sum`.  The files stay. */
void pn_diskqueue_drop(struct pn_diskqueue *q, uint64_t file, uint64_t seq, uint64_t sum);
/* Remove the files of which nothing is left; some of them, but on a full disk. */
enum { PN_DISKQUEUE_TIDY = 12 };
int pn_diskqueue_tidy(struct pn_diskqueue *q, struct pn_diskqueue_files *files);

/* 1: it is taken; 0: it stays, as do all behind it; -errno: the same, and that is returned. */
typedef int pn_diskqueue_take(void *arg, const struct pn_record_out *record);

/*
 * Hand out the oldest records, `max` at the most, and forget each as soon as it is taken; killed in
 * between, the successor is given that one again.  How many were taken; -EAGAIN: none, but call
 * again (a long damaged part is passed in steps); -errno.
 */
int64_t pn_diskqueue_get(struct pn_diskqueue *q, struct pn_diskqueue_files *files, uint32_t max,
                         pn_diskqueue_take *take, void *arg);
/*
 * For a take() that has a commit point of its own: the queue moves past record `seq`, whose body
 * ends at `sum`, to `at` in `file`; it may be called again, also by a successor.
 */
void pn_diskqueue_pass(struct pn_diskqueue *q, uint64_t file, uint64_t at, uint64_t seq,
                       uint64_t sum);

/* A place in it, for a caller that looks through it and lets others in between; zeros: at its
 * beginning. */
struct pn_diskqueue_cursor {
    uint64_t file, at, seq, sum;
};
/* The next record that is not forgotten: 1; 0: there is none; -EAGAIN: call again; -errno. */
int pn_diskqueue_look(const struct pn_diskqueue *q, struct pn_diskqueue_files *files,
                      struct pn_diskqueue_cursor *cursor, struct pn_record_out *record);

/* Where the next record will stand; `staged`: behind what is staged. */
void pn_diskqueue_end(const struct pn_diskqueue *q, bool staged,
                      struct pn_diskqueue_cursor *cursor);
/* Forget what stands before the cursor, which is not behind the end; files of it are removed. */
void pn_diskqueue_forget(struct pn_diskqueue *q, struct pn_diskqueue_files *files,
                         const struct pn_diskqueue_cursor *cursor);

/* Forget all of them, and remove the files: when that fails, later calls do it. */
int pn_diskqueue_empty(struct pn_diskqueue *q, struct pn_diskqueue_files *files);

/* Remove the files; the caller forgets the queue as well. */
int pn_diskqueue_remove(struct pn_diskqueue *q, struct pn_diskqueue_files *files);

/* Can that be a queue?  In shared memory anything may stand. */
bool pn_diskqueue_possible(const struct pn_diskqueue *q, uint64_t base);

static inline const struct pn_diskqueue_state *pn_diskqueue_now(const struct pn_diskqueue *q)
{
    return &q->state[pn_load_acquire(&q->current) & 1];
}
/* Records that were put and neither got nor found damaged; bytes of their bodies. */
static inline uint64_t pn_diskqueue_depth(const struct pn_diskqueue *q)
{
    const struct pn_diskqueue_state *now = pn_diskqueue_now(q);
    return now->write_seq - now->read_seq;
}
static inline uint64_t pn_diskqueue_bytes(const struct pn_diskqueue *q)
{
    const struct pn_diskqueue_state *now = pn_diskqueue_now(q);
    return now->write_sum - now->read_sum;
}

#endif
