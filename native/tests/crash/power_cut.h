/*
 * power_cut.h - a disk that loses power: what the engine does to the files of one directory is
 * recorded, and the directory can be had as a cut at any moment may leave it.
 *
 * libc's functions stand here instead, so a program that includes this has them for all of the
 * engine.  What a cut leaves of a file is harsher than a journalling file system:
 *   - what was written before its last fdatasync() that had returned is there;
 *   - of what was written later, any subset of pages of 4 KiB, and any of the lengths it had;
 *   - a file made, or removed, since the last fsync() of the directory is there or not.
 * Syncs are recorded and not done: the test does not depend on the disk it runs on.  One thread.
 */
#ifndef PN_TESTS_POWER_CUT_H
#define PN_TESTS_POWER_CUT_H

#include "harness.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>

enum cut_kind { CUT_WRITE, CUT_LENGTH, CUT_MAKE, CUT_REMOVE, CUT_SYNC, CUT_SYNC_DIR };

struct cut_op {
    enum cut_kind kind;
    unsigned file;
    uint64_t at, n;
    uint8_t *bytes;
};

struct cut_file {
    char name[64];
    uint64_t ino;
    bool gone;
};

enum { CUT_OPS = 1 << 17, CUT_FILES = 4096, CUT_PAGE = 4096 };

static struct {
    char dir[PATH_MAX]; /* empty: nothing is recorded */
    unsigned n, files, removed;
    struct cut_op op[CUT_OPS];
    struct cut_file file[CUT_FILES];
} cut;

static uint64_t cut_seed = 1;
static inline uint64_t cut_random(uint64_t below)
{
    cut_seed ^= cut_seed << 13;
    cut_seed ^= cut_seed >> 7;
    cut_seed ^= cut_seed << 17;
    return cut_seed * UINT64_C(0x2545F4914F6CDD1D) % below;
}

/* ---- recording ------------------------------------------------------------------------------ */

static inline bool cut_is_dir(int fd)
{
    char link[64], path[PATH_MAX];
    if (cut.dir[0] == '\0')
        return false;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n < 0)
        return false;
    path[n] = '\0';
    return strcmp(path, cut.dir) == 0;
}

static inline struct cut_op *cut_add(enum cut_kind kind, unsigned file)
{
    CHECK(cut.n < CUT_OPS);
    cut.op[cut.n] = (struct cut_op) {.kind = kind, .file = file};
    return &cut.op[cut.n++];
}

/* The number of an open file in the directory, or -1. */
static inline int cut_file_of(int fd)
{
    struct stat st;
    if (cut.dir[0] == '\0' || fstat(fd, &st) != 0)
        return -1;
    for (unsigned i = 0; i < cut.files; i++)
        if (!cut.file[i].gone && cut.file[i].ino == st.st_ino)
            return (int) i;
    return -1;
}

static inline void cut_write(int fd, const struct iovec *iov, int n, uint64_t at, ssize_t done)
{
    int file = done > 0 ? cut_file_of(fd) : -1;
    if (file < 0)
        return;
    struct cut_op *op = cut_add(CUT_WRITE, (unsigned) file);
    op->at = at;
    op->bytes = malloc((size_t) done);
    CHECK(op->bytes != NULL);
    for (int i = 0; i < n && op->n < (uint64_t) done; i++) {
        uint64_t rest = (uint64_t) done - op->n;
        uint64_t take = iov[i].iov_len < rest ? iov[i].iov_len : rest;
        memcpy(op->bytes + op->n, iov[i].iov_base, take);
        op->n += take;
    }
}

/* ---- instead of libc's ---------------------------------------------------------------------- */

ssize_t pwritev(int fd, const struct iovec *iov, int n, off_t at)
{
    ssize_t done = syscall(SYS_pwritev, fd, iov, n, at, 0);
    cut_write(fd, iov, n, (uint64_t) at, done);
    return done;
}

ssize_t pwrite(int fd, const void *bytes, size_t n, off_t at)
{
    const struct iovec iov = {(void *) (uintptr_t) bytes, n};
    ssize_t done = syscall(SYS_pwrite64, fd, bytes, n, at);
    cut_write(fd, &iov, 1, (uint64_t) at, done);
    return done;
}

int ftruncate(int fd, off_t length)
{
    int rc = (int) syscall(SYS_ftruncate, fd, length);
    int file = rc == 0 ? cut_file_of(fd) : -1;
    if (file >= 0)
        cut_add(CUT_LENGTH, (unsigned) file)->at = (uint64_t) length;
    return rc;
}

int openat(int dirfd, const char *name, int flags, ...)
{
    va_list more;
    struct stat st;
    va_start(more, flags);
    mode_t mode = (flags & O_CREAT) != 0 ? (mode_t) va_arg(more, int) : 0;
    va_end(more);
    int fd = (int) syscall(SYS_openat, dirfd, name, flags, mode);
    if (fd < 0 || (flags & O_CREAT) == 0 || !cut_is_dir(dirfd) || cut_file_of(fd) >= 0)
        return fd;
    CHECK(cut.files < CUT_FILES && fstat(fd, &st) == 0);
    struct cut_file *file = &cut.file[cut.files];
    snprintf(file->name, sizeof file->name, "%s", name);
    file->ino = st.st_ino;
    cut_add(CUT_MAKE, cut.files++);
    return fd;
}

int unlinkat(int dirfd, const char *name, int flags)
{
    int rc = (int) syscall(SYS_unlinkat, dirfd, name, flags);
    if (rc != 0 || !cut_is_dir(dirfd))
        return rc;
    for (unsigned i = 0; i < cut.files; i++)
        if (!cut.file[i].gone && strcmp(cut.file[i].name, name) == 0) {
            cut.file[i].gone = true;
            cut_add(CUT_REMOVE, i);
            cut.removed++;
        }
    return rc;
}

static inline int cut_sync(int fd)
{
    int file = cut_file_of(fd);
    if (file >= 0)
        cut_add(CUT_SYNC, (unsigned) file);
    else if (cut_is_dir(fd))
        cut_add(CUT_SYNC_DIR, 0);
    return 0;
}

int fdatasync(int fd)
{
    return cut_sync(fd);
}

int fsync(int fd)
{
    return cut_sync(fd);
}

/* ---- the directory after a cut -------------------------------------------------------------- */

struct cut_image {
    uint8_t *bytes;
    uint64_t n, cap;
};

static inline void cut_set_length(struct cut_image *image, uint64_t n)
{
    if (n > image->cap) {
        image->cap = n * 2;
        image->bytes = realloc(image->bytes, image->cap);
        CHECK(image->bytes != NULL);
    }
    if (n > image->n)
        memset(image->bytes + image->n, 0, n - image->n);
    image->n = n;
}

static inline void cut_apply(struct cut_image *image, const struct cut_op *op)
{
    if (op->kind == CUT_LENGTH) {
        cut_set_length(image, op->at);
    } else {
        if (op->at + op->n > image->n)
            cut_set_length(image, op->at + op->n);
        memcpy(image->bytes + op->at, op->bytes, op->n);
    }
}

/* What the cut after `k` operations leaves of a file that is there; `kept` is what was synced. */
static inline void cut_tear(unsigned file, unsigned k, unsigned synced, struct cut_image *torn)
{
    static struct cut_image full;
    unsigned lengths = 1;
    torn->n = full.n = 0;
    for (unsigned i = 0; i < k; i++) {
        if (cut.op[i].file != file || cut.op[i].kind > CUT_LENGTH)
            continue;
        cut_apply(&full, &cut.op[i]);
        if (i < synced)
            cut_apply(torn, &cut.op[i]);
    }
    /* Half of all cuts leave the whole length, the others one of those it had since the sync. */
    uint64_t length = full.n, had = torn->n;
    bool whole = cut_random(2) == 0;
    for (unsigned i = synced; i < k && !whole; i++) {
        if (cut.op[i].file != file || cut.op[i].kind > CUT_LENGTH)
            continue;
        had = cut.op[i].kind == CUT_LENGTH       ? cut.op[i].at
              : cut.op[i].at + cut.op[i].n > had ? cut.op[i].at + cut.op[i].n
                                                 : had;
        if (cut_random(++lengths) == 0)
            length = had;
    }
    cut_set_length(torn, length);
    uint64_t percent = cut_random(101);
    for (uint64_t at = 0; at < length && at < full.n; at += CUT_PAGE) {
        uint64_t n = length - at < CUT_PAGE ? length - at : CUT_PAGE;
        n = full.n - at < n ? full.n - at : n;
        if (cut_random(100) < percent)
            memcpy(torn->bytes + at, full.bytes + at, n);
    }
}

/* A moment among the operations from `first` to `last`: one in four is just behind a removal. */
static inline unsigned cut_moment(unsigned first, unsigned last)
{
    unsigned k = first + (unsigned) cut_random(last - first + 1);
    if (cut_random(4) != 0)
        return k;
    while (k < last && cut.op[k].kind != CUT_REMOVE)
        k++;
    k += 1 + (unsigned) cut_random(8);
    return k < last ? k : last;
}

/* Fill the directory `to`, which is empty, with what a cut after `k` operations leaves. */
static inline void cut_leave(unsigned k, const char *to)
{
    static struct cut_image image;
    for (unsigned file = 0; file < cut.files; file++) {
        unsigned made = UINT_MAX, gone = UINT_MAX, synced = 0, dir_synced = 0;
        char path[PATH_MAX];
        for (unsigned i = 0; i < k; i++) {
            if (cut.op[i].kind == CUT_SYNC_DIR)
                dir_synced = i;
            else if (cut.op[i].file != file)
                continue;
            else if (cut.op[i].kind == CUT_MAKE)
                made = i;
            else if (cut.op[i].kind == CUT_REMOVE)
                gone = i;
            else if (cut.op[i].kind == CUT_SYNC)
                synced = i;
        }
        if (made == UINT_MAX || (made > dir_synced && cut_random(2) == 0) ||
            (gone != UINT_MAX && (gone < dir_synced || cut_random(2) == 0)))
            continue;
        cut_tear(file, k, synced, &image);
        CHECK(snprintf(path, sizeof path, "%s/%s", to, cut.file[file].name) < (int) sizeof path);
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        CHECK(fd >= 0);
        CHECK_EQ(write(fd, image.bytes, image.n), image.n);
        close(fd);
    }
}

#endif
