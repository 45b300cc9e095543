/*
 * segfile.c - pages in files; see segfile.h.
 *
 * THE MODEL
 *
 *  1. A file of number N is <directory>/pynotify.<uid>.<segment>.<instance>.<kind>.<N>, with 16
 *     hexadecimal digits for instance and N.  Nothing else is ever opened or removed here.
 *
 *         0     struct segfile_header: what the file is, and a CRC32C of that
 *         64    struct segfile_page page[32]: of each page its CRC32C and the caller's tag; the CRC
 *               begins with the page's address (instance, N, page), so that a page is valid in
 *               its own place only; all 0 where none was written yet
 *         4096  32 pages of 8 KiB
 *
 *  2. Written by one process at a time (W: the holder of the lock of whoever uses this), in this
 *     order: the file, its header, pages, their checksums and tags.  That a page is there is said
 *     by the caller's own word, which he moves after we have returned.  So what a SIGKILL leaves
 *     is a page that nobody was told of, and the successor writes the same bytes once more,
 *     whatever part of it is there: a file without header, a page without checksum.
 *  3. Pages that others were told of are neither written nor moved by that: only bytes from
 *     first_page on and their checksums change.
 *  4. A reader needs no lock.  It believes the header's and a page's checksum, and nothing that it
 *     has not checked.  The page cache is shared: nothing is synced, since a segment does not
 *     outlive a reboot either.
 *  5. The directory belongs to the effective user and nobody else may write to it; this is looked
 *     at on every call (1 us of the 100 that a file takes).  A file is made O_EXCL|O_NOFOLLOW and
 *     0600 under any umask; one that is there already must be a regular file, ours, with one name.
 *  6. A damaged page costs itself, a damaged header its file; a damaged tag reads as 0.
 */
#define _GNU_SOURCE
#include "segfile.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "crashpoint.h"
#include "crc32c.h"
#include "err.h"
#include "layout.h"

#define SEGFILE_MAGIC 0x31474553464e5950ULL /* "PYNFSEG1" read as little-endian */
#define SEGFILE_VERSION 1U

struct segfile_header {
    uint64_t magic;
    uint32_t version, page_size, pages, kind;
    uint64_t instance, number;
    uint32_t unused[5];
    uint32_t crc; /* of all that is before */
    struct segfile_page {
        uint32_t crc;
        uint32_t tag, tag_crc; /* readable without the page, so it has a CRC of its own */
    } page[PN_SEGFILE_PAGES];
};
enum { IDENTITY = offsetof(struct segfile_header, page) };
_Static_assert(IDENTITY == 64, "as the model says");
_Static_assert(sizeof(struct segfile_header) <= PN_SEGFILE_HEADER, "the header has one OS page");

enum { NAME_SIZE = sizeof(((struct pn_segfile_dir *) 0)->prefix) + 17 };

/* ---- names and who owns them --------------------------------------------------------------- */

static void file_name(const struct pn_segfile_dir *dir, uint64_t number, char name[NAME_SIZE])
{
    snprintf(name, NAME_SIZE, "%s%016llx", dir->prefix, (unsigned long long) number);
}

/* "could not <what> <directory>/<name>: <why>"; returns -error. */
static int file_failed(const struct pn_segfile_dir *dir, const char *name, const char *what,
                       int error)
{
    return pn_fail(error, "could not %s %s/%s: %s", what, dir->path, name, strerror(error));
}

static int open_dir(const char *path)
{
    struct stat st;
    if (path[0] != '/' || strlen(path) > PN_DATA_DIR_MAX)
        return pn_fail(EINVAL, "the data directory \"%.100s\" is not an absolute path of at most "
                               "%u bytes", path, PN_DATA_DIR_MAX);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        int error = errno;
        bool link = lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
        return link ? pn_fail(EACCES, "the data directory %s is a symbolic link of user %u\n"
                                      "Name the directory itself.", path, (unsigned) st.st_uid)
                    : pn_fail(error, "could not open the data directory %s: %s", path,
                              strerror(error));
    }
    const char *wrong = NULL;
    if (fstat(fd, &st) != 0)
        wrong = strerror(errno);
    else if (st.st_uid != geteuid())
        wrong = "it belongs to somebody else";
    else if ((st.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        wrong = "others may write to it";
    if (wrong == NULL)
        return fd;
    close(fd);
    return pn_fail(EACCES, "the data directory %s (of user %u, mode %04o) cannot be used by user "
                           "%u: %s\nMake a directory of your own for it, with mode 0700.",
                   path, (unsigned) st.st_uid, (unsigned) st.st_mode & 07777U,
                   (unsigned) geteuid(), wrong);
}

int pn_segfile_check_dir(const char *path)
{
    int fd = open_dir(path);
    if (fd >= 0)
        close(fd);
    return fd < 0 ? fd : 0;
}

int pn_segfile_open_dir(struct pn_segfile_dir *dir, const char *path, uint32_t uid,
                        const char *segment, uint64_t instance, char kind)
{
    int rc = pn_segfile_check_dir(path);
    if (rc != 0)
        return rc;
    memset(dir, 0, sizeof *dir);
    memcpy(dir->path, path, strlen(path) + 1);
    dir->instance = instance;
    dir->kind = kind;
    int length = snprintf(dir->prefix, sizeof dir->prefix, "pynotify.%u.%s.%016llx.%c.",
                          uid, segment, (unsigned long long) instance, kind);
    if (length < 0 || (size_t) length >= sizeof dir->prefix)
        return pn_fail(ENAMETOOLONG, "the segment name \"%.100s\" is too long for files", segment);
    return 0;
}

/* Is what stands under that name a file of ours?  Names the owner of what is not. */
static int check_file(const struct pn_segfile_dir *dir, const char *name, const struct stat *st)
{
    const char *wrong = NULL;
    if (S_ISLNK(st->st_mode))
        wrong = "a symbolic link";
    else if (!S_ISREG(st->st_mode))
        wrong = "not a regular file";
    else if (st->st_uid != geteuid())
        wrong = "not ours";
    else if (st->st_nlink > 1)
        wrong = "a file with a second name";
    if (wrong == NULL)
        return st->st_nlink == 0 ? file_failed(dir, name, "use", ENOENT) : 0;
    return pn_fail(EACCES, "%s/%s is %s; it belongs to user %u, we are user %u\nNobody but "
                           "pynotify makes files of such names: find out who did, and remove it.",
                   dir->path, name, wrong, (unsigned) st->st_uid, (unsigned) geteuid());
}

/* openat() of a file that should be there, and look at what it is. */
static int open_existing(const struct pn_segfile_dir *dir, int dirfd, const char *name, int flags,
                         struct stat *st)
{
    int fd = openat(dirfd, name, flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    int error = errno;
    bool known = (fd >= 0 ? fstat(fd, st) : fstatat(dirfd, name, st, AT_SYMLINK_NOFOLLOW)) == 0;
    int rc = known ? check_file(dir, name, st) : 0;
    if (rc == 0 && (fd < 0 || !known))
        rc = file_failed(dir, name, "open", fd < 0 ? error : errno);
    if (rc != 0 && fd >= 0)
        close(fd);
    return rc != 0 ? rc : fd;
}

/* ---- the header ---------------------------------------------------------------------------- */

static struct segfile_header header_of(const struct pn_segfile_dir *dir, uint64_t number)
{
    struct segfile_header h = {.magic = SEGFILE_MAGIC,
                               .version = SEGFILE_VERSION,
                               .page_size = PN_QUEUE_PAGE,
                               .pages = PN_SEGFILE_PAGES,
                               .kind = (uint32_t) dir->kind,
                               .instance = dir->instance,
                               .number = number};
    h.crc = pn_crc32c(0, &h, offsetof(struct segfile_header, crc));
    return h;
}

/* 0: it is this file's header; 1: there is none, or it is another one; -errno. */
static int compare_header(const struct pn_segfile_dir *dir, int fd, uint64_t number)
{
    struct segfile_header want = header_of(dir, number);
    unsigned char got[IDENTITY];
    ssize_t n;
    do
        n = pread(fd, got, sizeof got, 0);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return -errno;
    return n == IDENTITY && memcmp(got, &want, IDENTITY) == 0 ? 0 : 1;
}

static uint32_t address_crc(uint64_t instance, uint64_t number, uint32_t page)
{
    const uint64_t address[] = {instance, number, page};
    return pn_crc32c(0, address, sizeof address);
}

static off_t page_offset(uint32_t page)
{
    return (off_t) (PN_SEGFILE_HEADER + (uint64_t) page * PN_QUEUE_PAGE);
}

/* ---- writing ------------------------------------------------------------------------------- */

static int write_all(int fd, struct iovec *iov, int n, off_t at)
{
    while (n > 0) {
        ssize_t done = pwritev(fd, iov, n, at);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return done < 0 ? -errno : -EIO;
        for (at += done; n > 0 && (size_t) done >= iov->iov_len; n--, iov++)
            done -= (ssize_t) iov->iov_len;
        if (n > 0) {
            iov->iov_base = (char *) iov->iov_base + done;
            iov->iov_len -= (size_t) done;
        }
    }
    return 0;
}

static int write_at(int fd, void *bytes, size_t n, off_t at)
{
    struct iovec one = {.iov_base = bytes, .iov_len = n};
    return write_all(fd, &one, 1, at);
}

/*
 * A new file, or the one that is there.  One of ours that we may not open is that of a creator
 * with a strange umask who was killed before its fchmod(): nobody was told of it.
 */
static int open_for_writing(const struct pn_segfile_dir *dir, int dirfd, const char *name,
                            struct stat *st)
{
    const int new = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    for (int tries = 0;; tries++) {
        int fd = openat(dirfd, name, new, 0600);
        if (fd >= 0) {
            PN_CRASH("segfile:created");
            if (fchmod(fd, 0600) == 0 && fstat(fd, st) == 0)
                return fd;
            int error = errno;
            unlinkat(dirfd, name, 0);
            close(fd);
            return file_failed(dir, name, "make", error);
        }
        if (errno != EEXIST)
            return file_failed(dir, name, "make", errno);
        fd = open_existing(dir, dirfd, name, O_RDWR, st);
        if (fd >= 0) {
            if ((st->st_mode & 07777) != 0600 && fchmod(fd, 0600) != 0) {
                int error = errno;
                close(fd);
                return file_failed(dir, name, "set the mode of", error);
            }
            return fd;
        }
        bool unfinished = fd == -EACCES && fstatat(dirfd, name, st, AT_SYMLINK_NOFOLLOW) == 0 &&
                          S_ISREG(st->st_mode) && st->st_uid == geteuid() && st->st_size == 0;
        if (tries > 0 || (fd != -ENOENT && !unfinished))
            return fd;
        unlinkat(dirfd, name, 0);
    }
}

static int fill(const struct pn_segfile_dir *dir, int fd, uint64_t number, uint32_t first_page,
                const void *const pages[], const uint32_t tags[], uint32_t n)
{
    struct iovec iov[PN_SEGFILE_PAGES];
    struct segfile_page page[PN_SEGFILE_PAGES];
    int rc = compare_header(dir, fd, number);
    if (rc > 0) {
        struct segfile_header h = header_of(dir, number);
        rc = write_at(fd, &h, sizeof h, 0);
        PN_CRASH("segfile:header");
    }
    if (rc != 0)
        return rc;
    for (uint32_t i = 0; i < n; i++) {
        iov[i].iov_base = (void *) (uintptr_t) pages[i];
        iov[i].iov_len = PN_QUEUE_PAGE;
        uint32_t begun = address_crc(dir->instance, number, first_page + i);
        page[i].crc = pn_crc32c(begun, pages[i], PN_QUEUE_PAGE);
        page[i].tag = tags != NULL ? tags[i] : 0;
        page[i].tag_crc = pn_crc32c(begun, &page[i].tag, sizeof page[i].tag);
    }
    rc = write_all(fd, iov, (int) n, page_offset(first_page));
    if (rc != 0)
        return rc;
    PN_CRASH("segfile:pages");
    rc = write_at(fd, page, n * sizeof page[0], (off_t) (IDENTITY + first_page * sizeof page[0]));
    PN_CRASH("segfile:checksums");
    return rc;
}

/* Beyond RLIMIT_FSIZE a write raises SIGXFSZ, which kills who did not ask for it. */
static void block_sigxfsz(sigset_t *xfsz, sigset_t *before)
{
    sigemptyset(xfsz);
    sigaddset(xfsz, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, xfsz, before);
}

static void unblock_sigxfsz(const sigset_t *xfsz, const sigset_t *before, bool raised)
{
    const struct timespec at_once = {0};
    if (sigismember(before, SIGXFSZ) == 1)
        return;
    if (raised)
        while (sigtimedwait(xfsz, NULL, &at_once) < 0 && errno == EINTR)
            ;
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

int pn_segfile_write(const struct pn_segfile_dir *dir, uint64_t number, uint32_t first_page,
                     const void *const pages[], const uint32_t tags[], uint32_t n)
{
    char name[NAME_SIZE];
    sigset_t xfsz, before;
    struct stat st;
    if (n == 0 || n > PN_SEGFILE_PAGES || first_page > PN_SEGFILE_PAGES - n)
        return pn_fail(EINVAL, "a file has no pages %u to %u", first_page, first_page + n);
    int dirfd = open_dir(dir->path);
    if (dirfd < 0)
        return dirfd;
    file_name(dir, number, name);
    int fd = open_for_writing(dir, dirfd, name, &st);
    if (fd < 0) {
        close(dirfd);
        return fd;
    }
    block_sigxfsz(&xfsz, &before);
    int rc = fill(dir, fd, number, first_page, pages, tags, n);
    unblock_sigxfsz(&xfsz, &before, rc == -EFBIG);
    if (rc != 0) {
        if (st.st_size == 0)
            unlinkat(dirfd, name, 0); /* a full disk has better uses for it */
        else if (ftruncate(fd, st.st_size) != 0)
            errno = 0; /* then it is overwritten the next time */
        file_failed(dir, name, "write to", -rc);
    }
    close(fd);
    close(dirfd);
    return rc;
}

/* ---- reading ------------------------------------------------------------------------------- */

int pn_segfile_open_read(const struct pn_segfile_dir *dir, uint64_t number)
{
    char name[NAME_SIZE];
    struct stat st;
    int dirfd = open_dir(dir->path);
    if (dirfd < 0)
        return dirfd;
    file_name(dir, number, name);
    int fd = open_existing(dir, dirfd, name, O_RDONLY, &st);
    close(dirfd);
    int rc = fd < 0 ? fd : compare_header(dir, fd, number);
    if (rc == 0)
        return fd;
    if (fd < 0)
        return fd;
    close(fd);
    return rc < 0 ? file_failed(dir, name, "read", -rc)
                  : pn_fail(EBADMSG, "%s/%s is damaged: its header is not that of this file",
                            dir->path, name);
}

/* -ENODATA: the file ends before. */
static int read_all(int fd, void *out, size_t n, off_t at)
{
    while (n > 0) {
        ssize_t got = pread(fd, out, n, at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? -errno : -ENODATA;
        out = (char *) out + got;
        n -= (size_t) got;
        at += got;
    }
    return 0;
}

/* Read at each call, since it grows; and since programs close and reuse what is not theirs. */
static int read_header(int fd, struct segfile_header *h)
{
    int rc = read_all(fd, h, sizeof *h, 0);
    if (rc != 0 && rc != -ENODATA)
        return pn_fail(-rc, "could not read the file of descriptor %d: %s", fd, strerror(-rc));
    if (rc == 0 && h->magic == SEGFILE_MAGIC && h->version == SEGFILE_VERSION &&
        h->crc == pn_crc32c(0, h, offsetof(struct segfile_header, crc)))
        return 0;
    return pn_fail(EBADF, "descriptor %d is none of a file of pages (any more)", fd);
}

/* A number can be used again after its file was removed: the pages may be in the new one. */
static bool is_removed(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && st.st_nlink == 0;
}

int pn_segfile_read(int fd, uint64_t number, uint32_t first_page, uint32_t n, void *out)
{
    struct segfile_header h;
    if (n > PN_SEGFILE_PAGES || first_page > PN_SEGFILE_PAGES - n)
        return pn_fail(EINVAL, "a file has no pages %u to %u", first_page, first_page + n);
    int rc = read_header(fd, &h);
    if (rc == 0 && h.number != number)
        rc = pn_fail(EBADF, "descriptor %d is that of file %llu, not of %llu", fd,
                     (unsigned long long) h.number, (unsigned long long) number);
    if (rc != 0)
        return rc;
    rc = read_all(fd, out, (size_t) n * PN_QUEUE_PAGE, page_offset(first_page));
    if (rc != 0 && rc != -ENODATA)
        return pn_fail(-rc, "could not read file %llu: %s", (unsigned long long) number,
                       strerror(-rc));
    uint32_t good = 0;
    while (rc == 0 && good < n) {
        const char *page = (const char *) out + (size_t) good * PN_QUEUE_PAGE;
        uint32_t begun = address_crc(h.instance, number, first_page + good);
        if (pn_crc32c(begun, page, PN_QUEUE_PAGE) != h.page[first_page + good].crc)
            break;
        good++;
    }
    if (rc == 0 && good == n)
        return 0;
    if (is_removed(fd))
        return pn_fail(EBADF, "descriptor %d is that of a file %llu which was removed", fd,
                       (unsigned long long) number);
    return rc == 0 ? pn_fail(EBADMSG, "file %llu is damaged: page %u does not have its checksum",
                             (unsigned long long) number, first_page + good)
                   : pn_fail(EBADMSG, "file %llu is damaged: it ends before page %u",
                             (unsigned long long) number, first_page + n);
}

int pn_segfile_tags(int fd, uint32_t tags[PN_SEGFILE_PAGES])
{
    struct segfile_header h;
    int rc = read_header(fd, &h);
    if (rc != 0)
        return rc;
    for (uint32_t i = 0; i < PN_SEGFILE_PAGES; i++) {
        const struct segfile_page *page = &h.page[i];
        uint32_t begun = address_crc(h.instance, h.number, i);
        bool valid = page->tag_crc == pn_crc32c(begun, &page->tag, sizeof page->tag);
        tags[i] = valid ? page->tag : 0;
    }
    return 0;
}

/* ---- removing ------------------------------------------------------------------------------ */

int pn_segfile_remove(const struct pn_segfile_dir *dir, uint64_t number)
{
    char name[NAME_SIZE];
    int dirfd = open_dir(dir->path);
    if (dirfd < 0)
        return dirfd;
    file_name(dir, number, name);
    int rc = unlinkat(dirfd, name, 0) == 0 || errno == ENOENT
                 ? 0
                 : file_failed(dir, name, "remove", errno);
    close(dirfd);
    PN_CRASH("segfile:removed");
    return rc;
}

/* 16 hexadecimal digits, as file_name() writes them. */
static bool parse_hex(const char *text, uint64_t *value)
{
    static const char digits[] = "0123456789abcdef";
    *value = 0;
    for (int i = 0; i < 16; i++) {
        const char *digit = text[i] == '\0' ? NULL : strchr(digits, text[i]);
        if (digit == NULL)
            return false;
        *value = *value << 4 | (uint64_t) (digit - digits);
    }
    return true;
}

/* <instance>.<kind>.<number>, and nothing behind it: "a" does not own the files of "a.b". */
static bool parse_name(const char *rest, uint64_t *instance)
{
    uint64_t number;
    return strlen(rest) == 35 && parse_hex(rest, instance) && rest[16] == '.' &&
           rest[18] == '.' && parse_hex(rest + 19, &number);
}

int pn_segfile_remove_all(const char *path, uint32_t uid, const char *segment, uint64_t except)
{
    char prefix[192];
    int length = snprintf(prefix, sizeof prefix, "pynotify.%u.%s.", uid, segment);
    if (length < 0 || (size_t) length >= sizeof prefix)
        return pn_fail(ENAMETOOLONG, "the segment name \"%.100s\" is too long for files", segment);
    int fd = open_dir(path);
    if (fd < 0)
        return fd;
    DIR *dir = fdopendir(fd);
    if (dir == NULL) {
        int error = errno;
        close(fd);
        return pn_fail(error, "could not read the data directory %s: %s", path, strerror(error));
    }
    int removed = 0;
    for (struct dirent *d; (d = readdir(dir)) != NULL;) {
        uint64_t instance;
        if (strncmp(d->d_name, prefix, (size_t) length) != 0 ||
            !parse_name(d->d_name + length, &instance) || (except != 0 && instance == except))
            continue;
        if (unlinkat(fd, d->d_name, 0) == 0)
            removed++;
        PN_CRASH("segfile:removed");
    }
    closedir(dir);
    return removed;
}
