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
 *  2. Written by one process at a time (W: the holder of the caller's lock), in this order: the
 *     file, its header, pages, their checksums and tags.  That a page is there is said by a
 *     position that the caller keeps, and moves after we have returned.  So what a SIGKILL leaves
 *     is a page beyond that position, and the successor writes the same bytes once more, whatever
 *     part of it is there: a file without header, a page without checksum.
 *  3. Pages that others were told of are neither written nor moved by that: only bytes from
 *     first_page on and their checksums change.
 *  4. A reader needs no lock.  It believes the header's and a page's checksum, and nothing that it
 *     has not checked.  The page cache is shared: nothing is synced, since a segment does not
 *     outlive a reboot either.
 *  5. The directory belongs to the effective user and no other user may write to it; this is looked
 *     at on every call (1 us of the 100 that a file takes): datafile.c.
 *  6. A damaged page costs itself, a damaged header its file; a damaged tag reads as 0.
 */
#define _GNU_SOURCE
#include "files/segfile.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/crashpoint.h"
#include "base/crc32c.h"
#include "base/err.h"
#include "files/datafile.h"

#define SEGFILE_MAGIC   0x31474553464e5950ULL /* "PYNFSEG1" read as little-endian */
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

/* ---- names and owners ----------------------------------------------------------------------- */

static void file_name(const struct pn_segfile_dir *dir, uint64_t number, char name[NAME_SIZE])
{
    snprintf(name, NAME_SIZE, "%s%016llx", dir->prefix, (unsigned long long) number);
}

int pn_segfile_check_dir(const char *path)
{
    int fd = pn_data_dir_open(path);
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
    int length = snprintf(dir->prefix, sizeof dir->prefix, "pynotify.%u.%s.%016llx.%c.", uid,
                          segment, (unsigned long long) instance, kind);
    if (length < 0 || (size_t) length >= sizeof dir->prefix)
        return pn_fail(ENAMETOOLONG, "the segment name \"%.100s\" is too long for files", segment);
    return 0;
}

/* ---- the header ---------------------------------------------------------------------------- */

static struct segfile_header header_of(const struct pn_segfile_dir *dir, uint64_t number)
{
    struct segfile_header h = {.magic = SEGFILE_MAGIC,
                               .version = SEGFILE_VERSION,
                               .page_size = PN_SEGFILE_PAGE,
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
    return (off_t) (PN_SEGFILE_HEADER + (uint64_t) page * PN_SEGFILE_PAGE);
}

/* ---- writing ------------------------------------------------------------------------------- */

static int write_at(int fd, void *bytes, size_t n, off_t at)
{
    struct iovec one = {.iov_base = bytes, .iov_len = n};
    return pn_data_file_write(fd, &one, 1, at);
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
        iov[i].iov_len = PN_SEGFILE_PAGE;
        uint32_t begun = address_crc(dir->instance, number, first_page + i);
        page[i].crc = pn_crc32c(begun, pages[i], PN_SEGFILE_PAGE);
        page[i].tag = tags != NULL ? tags[i] : 0;
        page[i].tag_crc = pn_crc32c(begun, &page[i].tag, sizeof page[i].tag);
    }
    rc = pn_data_file_write(fd, iov, (int) n, page_offset(first_page));
    if (rc != 0)
        return rc;
    PN_CRASH("segfile:pages");
    rc = write_at(fd, page, n * sizeof page[0], (off_t) (IDENTITY + first_page * sizeof page[0]));
    PN_CRASH("segfile:checksums");
    return rc;
}

int pn_segfile_write(const struct pn_segfile_dir *dir, uint64_t number, uint32_t first_page,
                     const void *const pages[], const uint32_t tags[], uint32_t n)
{
    char name[NAME_SIZE];
    struct stat st;
    if (n == 0 || n > PN_SEGFILE_PAGES || first_page > PN_SEGFILE_PAGES - n)
        return pn_fail(EINVAL, "a file has no pages %u to %u", first_page, first_page + n);
    int dirfd = pn_data_dir_open(dir->path);
    if (dirfd < 0)
        return dirfd;
    file_name(dir, number, name);
    int fd = pn_data_file_make(dir->path, dirfd, name, &st);
    if (fd < 0) {
        close(dirfd);
        return fd;
    }
    int rc = fill(dir, fd, number, first_page, pages, tags, n);
    if (rc != 0) {
        if (st.st_size == 0)
            unlinkat(dirfd, name, 0); /* a full disk has better uses for it */
        else if (ftruncate(fd, st.st_size) != 0)
            errno = 0; /* then it is overwritten the next time */
        pn_data_file_failed(dir->path, name, "write to", -rc);
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
    int dirfd = pn_data_dir_open(dir->path);
    if (dirfd < 0)
        return dirfd;
    file_name(dir, number, name);
    int fd = pn_data_file_open(dir->path, dirfd, name, O_RDONLY, &st);
    close(dirfd);
    int rc = fd < 0 ? fd : compare_header(dir, fd, number);
    if (rc == 0)
        return fd;
    if (fd < 0)
        return fd;
    close(fd);
    return rc < 0 ? pn_data_file_failed(dir->path, name, "read", -rc)
                  : pn_fail(EBADMSG, "%s/%s is damaged: its header is not that of this file",
                            dir->path, name);
}

/* Read at each call, since it grows; and since programs close and reuse what is not theirs. */
static int read_header(int fd, struct segfile_header *h)
{
    int rc = pn_data_file_read(fd, h, sizeof *h, 0);
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
    rc = pn_data_file_read(fd, out, (size_t) n * PN_SEGFILE_PAGE, page_offset(first_page));
    if (rc != 0 && rc != -ENODATA)
        return pn_fail(-rc, "could not read file %llu: %s", (unsigned long long) number,
                       strerror(-rc));
    uint32_t good = 0;
    while (rc == 0 && good < n) {
        const char *page = (const char *) out + (size_t) good * PN_SEGFILE_PAGE;
        uint32_t begun = address_crc(h.instance, number, first_page + good);
        if (pn_crc32c(begun, page, PN_SEGFILE_PAGE) != h.page[first_page + good].crc)
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
    int dirfd = pn_data_dir_open(dir->path);
    if (dirfd < 0)
        return dirfd;
    file_name(dir, number, name);
    int fd = pn_data_files_wait()
                 ? openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)
                 : -1; /* without it, it is freed at once */
    int rc = unlinkat(dirfd, name, 0) == 0 || errno == ENOENT
                 ? 0
                 : pn_data_file_failed(dir->path, name, "remove", errno);
    if (fd >= 0)
        pn_data_file_close(fd);
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
    return strlen(rest) == 35 && parse_hex(rest, instance) && rest[16] == '.' && rest[18] == '.' &&
           parse_hex(rest + 19, &number);
}

/* Files whose names begin with `prefix`, and go on with a name, or with a number alone. */
static int remove_files(const char *path, const char *prefix, bool numbers, uint64_t except)
{
    size_t length = strlen(prefix);
    int fd = pn_data_dir_open(path);
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
        uint64_t parsed;
        if (strncmp(d->d_name, prefix, length) != 0)
            continue;
        const char *rest = d->d_name + length;
        if (numbers ? strlen(rest) != 16 || !parse_hex(rest, &parsed)
                    : !parse_name(rest, &parsed) || (except != 0 && parsed == except))
            continue;
        if (unlinkat(fd, d->d_name, 0) == 0)
            removed++;
        PN_CRASH("segfile:removed");
    }
    closedir(dir);
    return removed;
}

int pn_segfile_remove_own(const struct pn_segfile_dir *dir)
{
    return remove_files(dir->path, dir->prefix, true, 0);
}

int pn_segfile_remove_all(const char *path, uint32_t uid, const char *segment, uint64_t except)
{
    char prefix[192];
    int length = snprintf(prefix, sizeof prefix, "pynotify.%u.%s.", uid, segment);
    if (length < 0 || (size_t) length >= sizeof prefix)
        return pn_fail(ENAMETOOLONG, "the segment name \"%.100s\" is too long for files", segment);
    return remove_files(path, prefix, false, except);
}
