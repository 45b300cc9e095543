/*
 * record_file.c - records in files; see record_file.h.
 *
 * THE MODEL
 *
 *  1. A file of number N has the name that data_dir.c gives it:
 *
 *         0     struct file_header: what it is, and of which record it begins with
 *         64    struct file_mark mark[2]: how far it was read, written in turn
 *         128   records, each beginning at a multiple of 8: struct record_header, body, zeros
 *
 *     None but its records is needed to read them: header and marks are hints, with checksums.
 *  2. A record's header has a magic and a CRC32C of itself, which begins with the record's address
 *     (instance, N, offset), so it is valid in its own place only.  A reader that finds no header
 *     where one should be steps on, eight bytes at a time, to the next: a damaged length costs one
 *     record.  The instance is random, so no program can write a body that would be taken for a
 *     record there.
 *  3. A body has a CRC32C of its own.  A damaged one costs one record, whose length is known.
 *  4. `seq` counts the records and `sum` the bytes of bodies before this one, so a reader that
 *     comes upon a gap knows exactly how much was lost.  `more` says how many of its batch follow,
 *     and the first one is marked: a batch that was written is there when its last record is, and
 *     whether all of it can be read, also behind a gap, is known from its records.
 *  5. W: one process at a time (the holder of the caller's lock), beyond the end that the caller
 *     keeps.  A SIGKILL leaves a part of a batch that the caller's end does not include; the next
 *     append cuts that off first, so that nothing of it is ever found behind a shorter batch.
 *  6. Why not pages: a record would cost a page, or a page's damage many records.  Why not a
 *     mapping: it is four times as fast (0.25 against 1.2 us for 264 bytes), but a full disk, a
 *     quota and RLIMIT_FSIZE are SIGBUS unless fallocate() reserves, which copy-on-write file
 *     systems do not; and an I/O error is reported to no call.
 */
#define _GNU_SOURCE
#include "files/record_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/crashpoint.h"
#include "base/crc32c.h"
#include "base/err.h"
#include "files/data_file.h"

#define FILE_MAGIC   0x31434552464e5950ULL /* "PYNFREC1" read as little-endian */
#define RECORD_MAGIC 0xda7ac0deU

struct file_header {
    uint64_t magic;
    uint32_t version, kind;
    uint64_t instance, number, seq, sum, unused;
    uint32_t pad;
    uint32_t crc; /* of all that is before */
};
_Static_assert(sizeof(struct file_header) == 64, "as the model says");

struct file_mark {
    uint64_t at, seq, sum;
    uint32_t turn; /* the newer one has the greater */
    uint32_t crc;  /* begins with the file's address */
};
_Static_assert(sizeof(struct file_header) + 2 * sizeof(struct file_mark) == PN_RECFILE_START, "");

struct record_header {
    uint32_t magic, length;
    uint64_t seq, sum;
    uint32_t type, more;
    uint32_t body_crc;
    uint32_t crc; /* of all that is before; begins with the record's address */
};
_Static_assert(sizeof(struct record_header) == PN_RECORD_HEADER, "no padding");

enum { WINDOW = 64 << 10, LARGE = 4 << 10 };

static uint32_t address_crc(const struct pn_data_dir *dir, uint64_t number, uint64_t at)
{
    const uint64_t address[] = {dir->instance, number, at, (uint64_t) dir->kind};
    return pn_crc32c(0, address, sizeof address);
}

/* ---- descriptors ---------------------------------------------------------------------------- */

static bool is_ours(const struct pn_recfile *file, struct stat *st)
{
    return file->fd >= 0 && fstat(file->fd, st) == 0 && st->st_ino == file->ino &&
           st->st_dev == file->dev;
}

void pn_recfile_close(struct pn_recfile *file)
{
    struct stat st;
    if (is_ours(file, &st))
        pn_data_file_close(file->fd);
    file->fd = -1;
}

static void take_file(struct pn_recfile *file, int fd, uint64_t number, const struct stat *st)
{
    *file = (struct pn_recfile) {fd, number, st->st_dev, st->st_ino};
}

/* The file of that number, open and not removed since. */
static int ensure(const struct pn_data_dir *dir, struct pn_recfile *file, uint64_t number,
                  struct stat *st)
{
    char name[PN_DATA_FILE_NAME];
    if (file->fd >= 0 && file->number == number && is_ours(file, st) && st->st_nlink == 1)
        return 0;
    pn_recfile_close(file);
    int dirfd = pn_data_dir_open(dir->path);
    if (dirfd < 0)
        return dirfd;
    pn_data_dir_name(dir, number, name);
    int fd = pn_data_file_open(dir->path, dirfd, name, dir->read_only ? O_RDONLY : O_RDWR, st);
    close(dirfd);
    if (fd < 0)
        return fd;
    take_file(file, fd, number, st);
    return 0;
}

/* The same of a reader, which forgets the bytes of another file. */
static int ensure_read(const struct pn_data_dir *dir, struct pn_recfile_reader *reader,
                       uint64_t number, struct stat *st)
{
    const struct pn_recfile before = reader->file;
    int rc = ensure(dir, &reader->file, number, st);
    if (before.fd != reader->file.fd || before.number != number || before.ino != reader->file.ino)
        reader->length = 0;
    return rc;
}

/* ---- writing -------------------------------------------------------------------------------- */

int pn_recfile_make(const struct pn_data_dir *dir, uint64_t number, uint64_t seq, uint64_t sum,
                    struct pn_recfile *file)
{
    struct file_header h = {.magic = FILE_MAGIC,
                            .version = 1,
                            .kind = (uint32_t) dir->kind,
                            .instance = dir->instance,
                            .number = number,
                            .seq = seq,
                            .sum = sum};
    struct iovec one = {.iov_base = &h, .iov_len = sizeof h};
    char name[PN_DATA_FILE_NAME];
    struct stat st;
    h.crc = pn_crc32c(0, &h, offsetof(struct file_header, crc));
    pn_recfile_close(file);
    int dirfd = pn_data_dir_open(dir->path);
    if (dirfd < 0)
        return dirfd;
    pn_data_dir_name(dir, number, name);
    int fd = pn_data_file_make(dir->path, dirfd, name, &st);
    int rc = fd < 0 ? fd : st.st_size > 0 && ftruncate(fd, 0) != 0 ? -errno : 0;
    PN_CRASH("recfile:made");
    if (rc == 0)
        rc = pn_data_file_write(fd, &one, 1, 0);
    PN_CRASH("recfile:header");
    if (rc == 0) {
        take_file(file, fd, number, &st);
    } else if (fd >= 0) {
        unlinkat(dirfd, name, 0); /* a full disk has better uses for it */
        close(fd);
        pn_data_dir_failed(dir, number, "write to", -rc);
    }
    close(dirfd);
    return rc;
}

/* Large parts are written from where they are, small ones gathered; no heap under the lock. */
struct writer {
    int fd, rc, n;
    uint64_t at; /* of what is put next */
    size_t used, put;
    struct iovec iov[2 * PN_RECFILE_READ];
    uint8_t bytes[16 << 10];
};

static void write_out(struct writer *w)
{
    if (w->rc == 0 && w->n > 0)
        w->rc = pn_data_file_write(w->fd, w->iov, w->n, (off_t) (w->at - w->put));
    w->n = 0;
    w->used = w->put = 0;
    PN_CRASH("recfile:part");
}

static void put_bytes(struct writer *w, const void *bytes, size_t n)
{
    struct iovec one = {.iov_base = (void *) (uintptr_t) bytes, .iov_len = n};
    const bool copied = n < LARGE;
    if (n == 0)
        return;
    if (w->n == 2 * PN_RECFILE_READ || (copied && n > sizeof w->bytes - w->used))
        write_out(w);
    if (copied) {
        one.iov_base = memcpy(w->bytes + w->used, bytes, n);
        w->used += n;
    }
    struct iovec *last = w->n > 0 ? &w->iov[w->n - 1] : NULL;
    if (last != NULL && (char *) last->iov_base + last->iov_len == one.iov_base)
        last->iov_len += n;
    else
        w->iov[w->n++] = one;
    w->put += n;
    w->at += n;
}

uint64_t pn_record_length(const struct pn_record_in *record)
{
    uint64_t length = 0;
    for (uint32_t i = 0; i < record->parts; i++)
        length += record->part[i].iov_len;
    return length;
}

static void put_record(const struct pn_data_dir *dir, struct writer *w, uint64_t number,
                       struct record_header *h, const struct pn_record_in *record, uint32_t first)
{
    static const uint8_t zeros[8];
    h->magic = RECORD_MAGIC;
    h->length = (uint32_t) pn_record_length(record);
    h->type = record->type | first;
    h->body_crc = 0;
    for (uint32_t i = 0; i < record->parts; i++)
        h->body_crc = pn_crc32c(h->body_crc, record->part[i].iov_base, record->part[i].iov_len);
    uint32_t begun = address_crc(dir, number, w->at);
    h->crc = pn_crc32c(begun, h, offsetof(struct record_header, crc));
    put_bytes(w, h, sizeof *h);
    for (uint32_t i = 0; i < record->parts; i++)
        put_bytes(w, record->part[i].iov_base, record->part[i].iov_len);
    put_bytes(w, zeros, (size_t) (pn_record_size(h->length) - sizeof *h - h->length));
}

/* By another program: behind a hole nothing would be found again. */
static int cut_short(const struct pn_data_dir *dir, uint64_t number, uint64_t size, uint64_t at)
{
    char name[PN_DATA_FILE_NAME];
    pn_data_dir_name(dir, number, name);
    return pn_fail(ENOENT, "%s/%s was cut short, to %llu bytes of %llu", dir->path, name,
                   (unsigned long long) size, (unsigned long long) at);
}

int pn_recfile_append(const struct pn_data_dir *dir, struct pn_recfile *file, uint64_t number,
                      uint64_t at, uint64_t seq, uint64_t sum, const struct pn_record_in *records,
                      size_t n, uint64_t *end)
{
    struct record_header h = {.seq = seq, .sum = sum};
    struct writer w; /* not its bytes: they are 16 KiB */
    struct stat st;
    for (size_t i = 0; i < n; i++)
        if (pn_record_length(&records[i]) > PN_RECORD_MAX)
            return pn_fail(EMSGSIZE, "a record of %llu bytes is too long for a file",
                           (unsigned long long) pn_record_length(&records[i]));
    if (n > UINT32_MAX)
        return pn_fail(E2BIG, "%zu records are too many to be written at once", n);
    int rc = ensure(dir, file, number, &st);
    if (rc != 0)
        return rc;
    if ((uint64_t) st.st_size > at && ftruncate(file->fd, (off_t) at) != 0)
        return pn_data_dir_failed(dir, number, "cut", errno);
    if ((uint64_t) st.st_size < at && at > PN_RECFILE_START && dir->whole)
        return cut_short(dir, number, (uint64_t) st.st_size, at);
    PN_CRASH("recfile:cut");
    w.fd = file->fd;
    w.rc = w.n = 0;
    w.at = at;
    w.used = w.put = 0;
    for (size_t i = 0; i < n && w.rc == 0; i++, h.seq++, h.sum += h.length) {
        h.more = records[i].alone ? 0 : (uint32_t) (n - 1 - i);
        put_record(dir, &w, number, &h, &records[i],
                   i == 0 || records[i].alone ? PN_RECORD_FIRST : 0);
    }
    write_out(&w);
    if (w.rc != 0) {
        if (ftruncate(file->fd, (off_t) at) != 0)
            errno = 0; /* then the next append does it */
        return pn_data_dir_failed(dir, number, "write to", -w.rc);
    }
    *end = w.at;
    return 0;
}

int pn_recfile_reserve(const struct pn_data_dir *dir, struct pn_recfile *file, uint64_t number,
                       uint64_t at, uint64_t from, uint64_t end)
{
    struct stat st;
    int rc = ensure(dir, file, number, &st);
    if (rc != 0)
        return rc;
    if ((uint64_t) st.st_size > at) { /* append() would cut off what is reserved as well */
        if (ftruncate(file->fd, (off_t) at) != 0)
            return pn_data_dir_failed(dir, number, "cut", errno);
        from = at;
    }
    rc = pn_data_file_reserve(file->fd, from, end - from);
    return rc == 0 || rc == -EOPNOTSUPP ? rc : pn_data_dir_failed(dir, number, "write to", -rc);
}

void pn_recfile_release_later(const struct pn_data_dir *dir, uint64_t number, uint64_t at)
{
    struct pn_recfile file = PN_RECFILE_NONE;
    struct stat st;
    if (ensure(dir, &file, number, &st) == 0)
        pn_data_file_cut_and_close(file.fd, (off_t) at);
}

int pn_recfile_release(const struct pn_data_dir *dir, uint64_t number, uint64_t at)
{
    struct pn_recfile file = PN_RECFILE_NONE;
    struct stat st;
    int rc = ensure(dir, &file, number, &st);
    /* Also of blocks behind its end; one that others have cut short does not grow. */
    const off_t length = st.st_size < (off_t) at ? st.st_size : (off_t) at;
    if (rc == 0 && ftruncate(file.fd, length) != 0)
        rc = pn_data_dir_failed(dir, number, "cut", errno);
    pn_recfile_close(&file);
    return rc;
}

/* ---- reading -------------------------------------------------------------------------------- */

int pn_recfile_reader_init(struct pn_recfile_reader *reader, uint32_t longest)
{
    *reader = (struct pn_recfile_reader) {.file = PN_RECFILE_NONE};
    reader->cap = WINDOW + (size_t) pn_record_size(longest);
    reader->bytes = malloc(reader->cap);
    return reader->bytes != NULL ? 0 : pn_fail(ENOMEM, "no memory for reading records of files");
}

void pn_recfile_reader_free(struct pn_recfile_reader *reader)
{
    pn_recfile_close(&reader->file);
    free(reader->bytes);
    *reader = (struct pn_recfile_reader) {.file = PN_RECFILE_NONE};
}

/* Have [at, at + n) in the window; fewer where the file or `end` is before.  How many, -errno. */
static int64_t fill(const struct pn_data_dir *dir, struct pn_recfile_reader *r, uint64_t number,
                    uint64_t at, uint64_t n, uint64_t end)
{
    n = end - at < n ? end - at : n;
    if (at < r->at || at + n > r->at + r->length) {
        uint64_t want = n > WINDOW ? n : WINDOW;
        want = end - at < want ? end - at : want;
        r->at = at;
        r->length = 0;
        while (r->length < want) {
            ssize_t got = pread(r->file.fd, r->bytes + r->length, (size_t) (want - r->length),
                                (off_t) (at + r->length));
            if (got < 0 && errno == EINTR)
                continue;
            if (got < 0)
                return pn_data_dir_failed(dir, number, "read", errno);
            if (got == 0)
                break;
            r->length += (uint64_t) got;
        }
    }
    uint64_t have = r->at + r->length - at;
    return (int64_t) (have < n ? have : n);
}

/* Is `h` that of a record at `at`? */
static bool is_header(const struct pn_data_dir *dir, uint64_t number, uint64_t at,
                      const struct record_header *h)
{
    return h->magic == RECORD_MAGIC && h->length <= PN_RECORD_MAX &&
           h->crc ==
               pn_crc32c(address_crc(dir, number, at), h, offsetof(struct record_header, crc));
}

/* Is there a record's header at `at`, which is in the window? */
static bool header_at(const struct pn_data_dir *dir, const struct pn_recfile_reader *r,
                      uint64_t number, uint64_t at, struct record_header *h)
{
    uint32_t magic;
    memcpy(&magic, r->bytes + (at - r->at), sizeof magic);
    if (__builtin_expect(magic != RECORD_MAGIC, 0))
        return false;
    memcpy(h, r->bytes + (at - r->at), sizeof *h);
    return is_header(dir, number, at, h);
}

/* *at: a header, or where to search on.  enum pn_recfile_found, or -errno. */
static int find_header(const struct pn_data_dir *dir, struct pn_recfile_reader *r, uint64_t number,
                       uint64_t *at, uint64_t end, struct record_header *h)
{
    for (uint64_t stop = *at + PN_RECFILE_STEP; *at < stop; *at += 8) {
        int64_t have = fill(dir, r, number, *at, sizeof *h, end);
        if (have < 0)
            return (int) have;
        if (have < (int64_t) sizeof *h)
            return PN_RECFILE_END;
        if (header_at(dir, r, number, *at, h))
            return PN_RECFILE_RECORD;
    }
    off_t data = lseek(r->file.fd, (off_t) *at, SEEK_DATA); /* a hole may be of any size */
    if (data < 0 && errno == ENXIO)
        return PN_RECFILE_END;
    if (data >= 0 && (uint64_t) data > *at)
        *at = (uint64_t) data & ~(uint64_t) 7;
    return PN_RECFILE_SEARCH;
}

/* A record of before may be longer than those that are written now. */
static int hold_record(struct pn_recfile_reader *r, uint32_t length)
{
    size_t cap = WINDOW + (size_t) pn_record_size(length);
    if (cap <= r->cap)
        return 0;
    uint8_t *bytes = realloc(r->bytes, cap);
    if (bytes == NULL)
        return pn_fail(ENOMEM, "no memory for reading a record of %u bytes", length);
    r->bytes = bytes;
    r->cap = cap;
    return 0;
}

int pn_recfile_next(const struct pn_data_dir *dir, struct pn_recfile_reader *reader,
                    uint64_t number, uint64_t at, uint64_t end, struct pn_record_out *out)
{
    struct record_header h;
    struct stat st;
    int rc = ensure_read(dir, reader, number, &st);
    if (rc != 0)
        return rc;
    end = end < (uint64_t) st.st_size ? end : (uint64_t) st.st_size;
    if (at >= end) /* before it is aligned: one of overwritten memory would be 0 then */
        return PN_RECFILE_END;
    at = (at + 7) & ~(uint64_t) 7;
    if (at >= end)
        return PN_RECFILE_END;
    rc = find_header(dir, reader, number, &at, end, &h);
    *out = (struct pn_record_out) {.file = number, .at = at, .next = at};
    if (rc != PN_RECFILE_RECORD)
        return rc;
    *out = (struct pn_record_out) {.file = number,
                                   .at = at,
                                   .next = at + pn_record_size(h.length),
                                   .seq = h.seq,
                                   .sum = h.sum,
                                   .type = h.type & ~PN_RECORD_FIRST,
                                   .first = (h.type & PN_RECORD_FIRST) != 0,
                                   .more = h.more,
                                   .length = h.length};
    rc = hold_record(reader, h.length);
    if (rc != 0)
        return rc;
    int64_t have = fill(dir, reader, number, at, sizeof h + h.length, end);
    if (have < 0)
        return (int) have;
    out->body = reader->bytes + (at - reader->at) + sizeof h;
    return (uint64_t) have == sizeof h + h.length && h.body_crc == pn_crc32c(0, out->body, h.length)
               ? PN_RECFILE_RECORD
               : PN_RECFILE_DAMAGED;
}

/* ---- records of one length ------------------------------------------------------------------ */

static int read_some(const struct pn_data_dir *dir, int fd, uint64_t number, uint64_t at,
                     uint32_t length, uint32_t n, uint8_t *out)
{
    struct record_header h[PN_RECFILE_READ];
    struct iovec iov[2 * PN_RECFILE_READ];
    for (uint32_t i = 0; i < n; i++) {
        iov[2 * i] = (struct iovec) {&h[i], sizeof h[i]};
        iov[2 * i + 1] = (struct iovec) {out + (size_t) i * length, length};
    }
    int rc = pn_data_file_read(fd, iov, (int) (2 * n), (off_t) at);
    if (rc != 0 && rc != -ENODATA)
        return pn_data_dir_failed(dir, number, "read", -rc);
    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        uint64_t place = at + i * (sizeof h[i] + length);
        if (!is_header(dir, number, place, &h[i]) || h[i].length != length ||
            h[i].body_crc != pn_crc32c(0, out + (size_t) i * length, length))
            rc = -EBADMSG;
    }
    return rc == 0 ? 0 : pn_data_dir_failed(dir, number, "read all of", EBADMSG);
}

int pn_recfile_read(const struct pn_data_dir *dir, struct pn_recfile *file, uint64_t number,
                    uint64_t at, uint32_t length, uint32_t n, void *out)
{
    struct stat st;
    int rc = 0;
    for (int tries = 0; tries < 3; tries++) {
        rc = ensure(dir, file, number, &st);
        if (rc != 0)
            return rc;
        rc = read_some(dir, file->fd, number, at, length, n, out);
        if (rc == 0 || (is_ours(file, &st) && st.st_nlink == 1))
            break; /* else it was removed, and perhaps made again; or the program closed it */
    }
    return rc;
}

int pn_recfile_type(const struct pn_data_dir *dir, struct pn_recfile *file, uint64_t number,
                    uint64_t at, uint32_t *type)
{
    struct record_header h;
    struct iovec one = {.iov_base = &h, .iov_len = sizeof h};
    struct stat st;
    int rc = ensure(dir, file, number, &st);
    if (rc != 0)
        return rc;
    rc = pn_data_file_read(file->fd, &one, 1, (off_t) at);
    if (rc != 0 && rc != -ENODATA)
        return pn_data_dir_failed(dir, number, "read", -rc);
    if (rc != 0 || !is_header(dir, number, at, &h))
        return -ENODATA;
    *type = h.type & ~PN_RECORD_FIRST;
    return 0;
}

/* ---- marks ---------------------------------------------------------------------------------- */

static uint32_t mark_crc(const struct pn_data_dir *dir, uint64_t number,
                         const struct file_mark *mark)
{
    return pn_crc32c(address_crc(dir, number, 0), mark, offsetof(struct file_mark, crc));
}

static int newest_mark(const struct pn_data_dir *dir, int fd, uint64_t number,
                       struct file_mark mark[2])
{
    struct iovec both = {.iov_base = mark, .iov_len = 2 * sizeof *mark};
    int newest = -1, rc = pn_data_file_read(fd, &both, 1, sizeof(struct file_header));
    if (rc != 0 && rc != -ENODATA)
        return pn_data_dir_failed(dir, number, "read", -rc);
    for (int i = 0; rc == 0 && i < 2; i++)
        if (mark[i].turn != 0 && mark[i].crc == mark_crc(dir, number, &mark[i]) &&
            (newest < 0 || mark[i].turn > mark[newest].turn))
            newest = i;
    return newest < 0 ? -ENODATA : newest;
}

int pn_recfile_set_mark(const struct pn_data_dir *dir, struct pn_recfile_reader *reader,
                        uint64_t number, const struct pn_recfile_mark *mark)
{
    struct file_mark both[2];
    struct stat st;
    int rc = ensure_read(dir, reader, number, &st);
    if (rc != 0)
        return rc;
    int newest = newest_mark(dir, reader->file.fd, number, both);
    if (newest < 0 && newest != -ENODATA)
        return newest;
    struct file_mark next = {mark->at, mark->seq, mark->sum, newest < 0 ? 1 : both[newest].turn + 1,
                             0};
    next.crc = mark_crc(dir, number, &next);
    struct iovec one = {.iov_base = &next, .iov_len = sizeof next};
    off_t at = (off_t) (sizeof(struct file_header) + (newest == 0 ? sizeof next : 0));
    rc = pn_data_file_write(reader->file.fd, &one, 1, at);
    return rc == 0 ? 0 : pn_data_dir_failed(dir, number, "write to", -rc);
}

int pn_recfile_get_mark(const struct pn_data_dir *dir, struct pn_recfile_reader *reader,
                        uint64_t number, struct pn_recfile_mark *mark)
{
    struct file_header h;
    struct iovec one = {.iov_base = &h, .iov_len = sizeof h};
    struct file_mark both[2];
    struct stat st;
    int rc = ensure_read(dir, reader, number, &st);
    if (rc != 0)
        return rc;
    int newest = newest_mark(dir, reader->file.fd, number, both);
    if (newest >= 0 && both[newest].at >= PN_RECFILE_START && both[newest].at % 8 == 0) {
        *mark = (struct pn_recfile_mark) {both[newest].at, both[newest].seq, both[newest].sum};
        return 0;
    }
    if (newest < 0 && newest != -ENODATA)
        return newest;
    rc = pn_data_file_read(reader->file.fd, &one, 1, 0);
    if (rc != 0 && rc != -ENODATA)
        return pn_data_dir_failed(dir, number, "read", -rc);
    if (rc != 0 || h.magic != FILE_MAGIC || h.instance != dir->instance || h.number != number ||
        h.crc != pn_crc32c(0, &h, offsetof(struct file_header, crc)))
        return 1;
    *mark = (struct pn_recfile_mark) {PN_RECFILE_START, h.seq, h.sum};
    return 0;
}

/* ---- the disk -------------------------------------------------------------------------------- */

int pn_recfile_dup(const struct pn_recfile *file, uint64_t number)
{
    struct stat st;
    return file->number == number && is_ours(file, &st) ? fcntl(file->fd, F_DUPFD_CLOEXEC, 0) : -1;
}

int pn_recfile_sync_fd(const struct pn_data_dir *dir, uint64_t number, int fd)
{
    return fdatasync(fd) == 0 ? 0 : pn_data_dir_failed(dir, number, "sync", errno);
}

int pn_recfile_sync(const struct pn_data_dir *dir, uint64_t number)
{
    struct pn_recfile file = PN_RECFILE_NONE; /* not the writer's: no lock is held */
    struct stat st;
    int rc = ensure(dir, &file, number, &st);
    if (rc == 0)
        rc = pn_recfile_sync_fd(dir, number, file.fd);
    pn_recfile_close(&file);
    return rc;
}
