/*
 * record_file.h - files of records: of any length, checksummed, found again after damage.
 *
 * What diskqueue.c, topic_log.c and page_file.c write.  record_file.c has the format.  One writer
 * at a time; where the records end is the caller's word and not the file's length.
 *
 *     rc = pn_recfile_make(&dir, number, seq, sum, &file);
 *     rc = pn_recfile_append(&dir, &file, number, at, seq, sum, records, n, &end);
 *     rc = pn_recfile_next(&dir, &reader, number, at, end, &record);
 *
 * 0 or -errno with a sentence in pn_error_message(), unless something else is said.
 */
#ifndef PN_RECORD_FILE_H
#define PN_RECORD_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "files/data_dir.h"

#define PN_RECFILE_START 128U         /* where a file's first record begins */
#define PN_RECORD_HEADER 40U          /* bytes on disk before a record's body */
#define PN_RECORD_FIRST  0x80000000U  /* on disk, of the first record of a batch */
#define PN_RECORD_MAX    (256U << 20) /* no record has a longer body */
#define PN_RECFILE_STEP  (1U << 20)   /* bytes that are searched through at a time */

/* A descriptor of this process: looked at before each use, as programs close what is not theirs. */
struct pn_recfile {
    int fd; /* -1: none */
    uint64_t number, dev, ino;
};

struct pn_record_in {
    uint32_t type; /* the caller's, below PN_RECORD_FIRST */
    uint32_t parts;
    bool alone;           /* a batch of its own, as are all that are written with it */
    struct iovec part[3]; /* the body is what they hold, one after the other */
};

struct pn_record_out {
    uint64_t file;
    uint64_t at, next; /* of this record and of what follows it */
    uint64_t seq, sum; /* records, and bytes in bodies, that were written before it */
    uint32_t type, more, length;
    bool first;          /* of its batch */
    const uint8_t *body; /* until the next call */
};

/* A process's reader: its file, and what it has read of it. */
struct pn_recfile_reader {
    struct pn_recfile file;
    uint8_t *bytes;
    size_t cap;
    uint64_t at, length; /* which part of the file is in `bytes` */
};

/* How far a file of a queue was read: a hint for a process that finds nothing but the files. */
struct pn_recfile_mark {
    uint64_t at, seq, sum;
};

static inline uint64_t pn_record_size(uint64_t length)
{
    return (PN_RECORD_HEADER + length + 7) & ~(uint64_t) 7;
}
uint64_t pn_record_length(const struct pn_record_in *record);

#define PN_RECFILE_NONE {.fd = -1}
/* Close it if it is still ours. */
void pn_recfile_close(struct pn_recfile *file);

/* `longest`: of the bodies that will be read, as a rule.  To be freed by the next. */
int pn_recfile_reader_init(struct pn_recfile_reader *reader, uint32_t longest);
void pn_recfile_reader_free(struct pn_recfile_reader *reader);
/* After something else than appending has changed the file, or it was read beyond its end. */
static inline void pn_recfile_reader_forget(struct pn_recfile_reader *reader)
{
    reader->length = 0;
}

/* Make a file, whatever of that name a dead writer has left; `seq`, `sum`: of its first record. */
int pn_recfile_make(const struct pn_data_dir *dir, uint64_t number, uint64_t seq, uint64_t sum,
                    struct pn_recfile *file);

/*
 * Write n records at `at`, and *end is where they end; what stood there is gone.  The first has
 * number `seq`.  When it fails the file has nothing beyond `at`.  -ENOSPC, -EDQUOT, -EIO, -EFBIG
 * for RLIMIT_FSIZE; -ENOENT if there is no such file, or one that ends before `at` and was to be
 * `whole`; -EMSGSIZE for what is too long.
 */
int pn_recfile_append(const struct pn_data_dir *dir, struct pn_recfile *file, uint64_t number,
                      uint64_t at, uint64_t seq, uint64_t sum, const struct pn_record_in *records,
                      size_t n, uint64_t *end);

/* Have blocks for [from, end), behind `at`, where its records end: a full disk refuses now and not
 * when they are written.  What was reserved before stays.  -EOPNOTSUPP: not on this file system. */
int pn_recfile_reserve(const struct pn_data_dir *dir, struct pn_recfile *file, uint64_t number,
                       uint64_t at, uint64_t from, uint64_t end);
/* Give back what it has behind `at`, where its records end. */
int pn_recfile_release(const struct pn_data_dir *dir, uint64_t number, uint64_t at);
/* The same when the lock is released (pn_data_file_close()), of a file that is not written again:
 * a disk at work takes its time for that. */
void pn_recfile_release_later(const struct pn_data_dir *dir, uint64_t number, uint64_t at);

enum pn_recfile_found {
    PN_RECFILE_END,     /* nothing from `at` to `end` or to the end of the file */
    PN_RECFILE_RECORD,  /* *out */
    PN_RECFILE_DAMAGED, /* *out but for its body, which is damaged */
    PN_RECFILE_SEARCH   /* nothing up to out->next: call again from there */
};
/* The first record at `at` or beyond it; enum pn_recfile_found, or -errno. */
int pn_recfile_next(const struct pn_data_dir *dir, struct pn_recfile_reader *reader,
                    uint64_t number, uint64_t at, uint64_t end, struct pn_record_out *out);

/*
 * Where all records have one length, a multiple of 8: copy the bodies of n of them, from the one at
 * `at` on, to `out`.  -EBADMSG: one of them is damaged, or not there; `out` is not to be used then.
 */
#define PN_RECFILE_READ 32U /* n at the most */
int pn_recfile_read(const struct pn_data_dir *dir, struct pn_recfile *file, uint64_t number,
                    uint64_t at, uint32_t length, uint32_t n, void *out);
/* The type of the record at `at`; -ENODATA, without a sentence: there is none. */
int pn_recfile_type(const struct pn_data_dir *dir, struct pn_recfile *file, uint64_t number,
                    uint64_t at, uint32_t *type);

int pn_recfile_set_mark(const struct pn_data_dir *dir, struct pn_recfile_reader *reader,
                        uint64_t number, const struct pn_recfile_mark *mark);
/* *mark: of the newest one that is whole, or the file's first record if its header is; else 1. */
int pn_recfile_get_mark(const struct pn_data_dir *dir, struct pn_recfile_reader *reader,
                        uint64_t number, struct pn_recfile_mark *mark);

int pn_recfile_sync(const struct pn_data_dir *dir, uint64_t number); /* fdatasync() */
int pn_recfile_sync_fd(const struct pn_data_dir *dir, uint64_t number, int fd);
/* Another descriptor of the same open file, if it is that number's; -1: none. */
int pn_recfile_dup(const struct pn_recfile *file, uint64_t number);

#endif
