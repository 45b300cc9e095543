/*
 * data_dir.c - see data_dir.h.
 *
 * A directory belongs to the effective user, no other user may write to it, and it is no symbolic
 * link.  This is looked at whenever a file is opened (1 us).  Nothing but files of the names that
 * the head describes is ever opened or removed in it.
 */
#define _GNU_SOURCE
#include "files/data_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/crashpoint.h"
#include "base/err.h"
#include "files/data_file.h"

/* ---- the directory -------------------------------------------------------------------------- */

int pn_data_dir_open(const char *path)
{
    struct stat st;
    if (path[0] != '/' || strlen(path) > PN_DATA_DIR_MAX)
        return pn_fail(EINVAL,
                       "the data directory \"%.100s\" is not an absolute path of at most "
                       "%u bytes",
                       path, PN_DATA_DIR_MAX);
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        int error = errno;
        bool link = lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
        return link ? pn_fail(EACCES,
                              "the data directory %s is a symbolic link of user %u\n"
                              "Name the directory itself.",
                              path, (unsigned) st.st_uid)
                    : pn_fail(error, "could not open the data directory %s: %s", path,
                              strerror(error));
    }
    const char *wrong = NULL;
    if (fstat(fd, &st) != 0)
        wrong = strerror(errno);
    else if (st.st_uid != geteuid())
        wrong = "it belongs to another user";
    else if ((st.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        wrong = "others may write to it";
    if (wrong == NULL)
        return fd;
    close(fd);
    return pn_fail(EACCES,
                   "the data directory %s (of user %u, mode %04o) cannot be used by user "
                   "%u: %s\nMake a directory of your own for it, with mode 0700.",
                   path, (unsigned) st.st_uid, (unsigned) st.st_mode & 07777U, (unsigned) geteuid(),
                   wrong);
}

int pn_data_dir_check(const char *path)
{
    int fd = pn_data_dir_open(path);
    if (fd >= 0)
        close(fd);
    return fd < 0 ? fd : 0;
}

int pn_data_dir_sync(const struct pn_data_dir *dir)
{
    int fd = pn_data_dir_open(dir->path);
    if (fd < 0)
        return fd;
    int rc = fsync(fd) == 0 ? 0 : pn_data_file_failed(dir->path, ".", "sync", errno);
    close(fd);
    return rc;
}

uint64_t pn_data_dir_room(const char *path)
{
    struct statvfs fs;
    return statvfs(path, &fs) == 0 ? (uint64_t) fs.f_bavail * fs.f_frsize : UINT64_MAX;
}

/* ---- names ---------------------------------------------------------------------------------- */

enum { PREFIX_SIZE = PN_DATA_FILE_NAME - 17 };

/* "pynotify.<uid>.<segment>." and how long that is, or -errno. */
static int segment_prefix(char prefix[PREFIX_SIZE], uint32_t uid, const char *segment)
{
    int length = snprintf(prefix, PREFIX_SIZE, "pynotify.%u.%s.", uid, segment);
    if (length >= 0 && length + 16 + 3 < PREFIX_SIZE)
        return length;
    return pn_fail(ENAMETOOLONG, "the segment name \"%.100s\" is too long for files", segment);
}

int pn_data_dir_init(struct pn_data_dir *dir, const char *path, uint32_t uid, const char *segment,
                     uint64_t instance, char kind)
{
    int rc = pn_data_dir_check(path);
    if (rc != 0)
        return rc;
    memset(dir, 0, sizeof *dir);
    memcpy(dir->path, path, strlen(path) + 1);
    dir->instance = instance;
    dir->kind = kind;
    int length = segment_prefix(dir->prefix, uid, segment);
    if (length < 0)
        return length;
    snprintf(dir->prefix + length, sizeof dir->prefix - (size_t) length, "%016llx.%c.",
             (unsigned long long) instance, kind);
    return 0;
}

void pn_data_dir_name(const struct pn_data_dir *dir, uint64_t number, char name[PN_DATA_FILE_NAME])
{
    snprintf(name, PN_DATA_FILE_NAME, "%s%016llx", dir->prefix, (unsigned long long) number);
}

int pn_data_dir_failed(const struct pn_data_dir *dir, uint64_t number, const char *what, int error)
{
    char name[PN_DATA_FILE_NAME];
    pn_data_dir_name(dir, number, name);
    return pn_data_file_failed(dir->path, name, what, error);
}

bool pn_data_dir_digits(const char *text, uint64_t *value)
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

static bool parse_number(const char *rest, uint64_t *number)
{
    return strlen(rest) == 16 && pn_data_dir_digits(rest, number);
}

/* <instance>.<kind>.<number>, and nothing behind it: "a" does not own the files of "a.b". */
static bool parse_name(const char *rest, uint64_t *instance)
{
    uint64_t number;
    return strlen(rest) == 35 && pn_data_dir_digits(rest, instance) && rest[16] == '.' &&
           rest[18] == '.' && parse_number(rest + 19, &number);
}

/* ---- all of them ---------------------------------------------------------------------------- */

int pn_data_dir_each(const char *path, const char *prefix,
                     int (*found)(void *arg, int dirfd, const char *name, const char *rest),
                     void *arg)
{
    size_t length = strlen(prefix);
    int rc = 0, fd = pn_data_dir_open(path);
    if (fd < 0)
        return fd;
    DIR *dir = fdopendir(fd);
    if (dir == NULL) {
        int error = errno;
        close(fd);
        return pn_fail(error, "could not read the data directory %s: %s", path, strerror(error));
    }
    for (struct dirent *d; rc == 0 && (d = readdir(dir)) != NULL;)
        if (strncmp(d->d_name, prefix, length) == 0)
            rc = found(arg, fd, d->d_name, d->d_name + length);
    closedir(dir);
    return rc;
}

struct listing {
    int (*found)(void *arg, uint64_t number);
    void *arg;
};

static int list_one(void *arg, int dirfd, const char *name, const char *rest)
{
    const struct listing *listing = arg;
    uint64_t number;
    (void) dirfd;
    (void) name;
    return parse_number(rest, &number) ? listing->found(listing->arg, number) : 0;
}

int pn_data_dir_list(const struct pn_data_dir *dir, int (*found)(void *arg, uint64_t number),
                     void *arg)
{
    struct listing listing = {found, arg};
    return pn_data_dir_each(dir->path, dir->prefix, list_one, &listing);
}

/* ---- removing ------------------------------------------------------------------------------- */

int pn_data_dir_remove(const struct pn_data_dir *dir, uint64_t number)
{
    char name[PN_DATA_FILE_NAME];
    int dirfd = pn_data_dir_open(dir->path);
    if (dirfd < 0)
        return dirfd;
    pn_data_dir_name(dir, number, name);
    int fd = pn_data_files_wait()
                 ? openat(dirfd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)
                 : -1; /* without it, it is freed at once */
    int rc = unlinkat(dirfd, name, 0) == 0 || errno == ENOENT
                 ? 0
                 : pn_data_file_failed(dir->path, name, "remove", errno);
    if (fd >= 0)
        pn_data_file_close(fd);
    close(dirfd);
    PN_CRASH("datadir:removed");
    return rc;
}

struct removal {
    bool (*parse)(const char *rest, uint64_t *value);
    uint64_t except;
    int removed;
};

static int remove_one(void *arg, int dirfd, const char *name, const char *rest)
{
    struct removal *r = arg;
    uint64_t value;
    if (r->parse(rest, &value) && (r->except == 0 || value != r->except)) {
        r->removed += unlinkat(dirfd, name, 0) == 0;
        PN_CRASH("datadir:removed");
    }
    return 0;
}

int pn_data_dir_remove_own(const struct pn_data_dir *dir)
{
    struct removal all = {.parse = parse_number};
    int rc = pn_data_dir_each(dir->path, dir->prefix, remove_one, &all);
    return rc < 0 ? rc : all.removed;
}

int pn_data_dir_remove_all(const char *path, uint32_t uid, const char *segment, uint64_t except)
{
    char prefix[PREFIX_SIZE];
    struct removal all = {.parse = parse_name, .except = except};
    int rc = segment_prefix(prefix, uid, segment);
    if (rc >= 0)
        rc = pn_data_dir_each(path, prefix, remove_one, &all);
    return rc < 0 ? rc : all.removed;
}
