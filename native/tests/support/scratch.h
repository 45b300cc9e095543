/*
 * scratch.h - directories and segments of tests, which are gone when their test ends, or when one
 * begins after it.  For tests and fuzz targets.
 *
 * 1. A test locks its directory (flock) for as long as it lives.  Its children inherit the lock.
 * 2. A test that is killed leaves the directory, but nothing that locks it.  The next that makes
 *    one removes those that it can lock itself.  A process ID in the name would not do: in another
 *    name space it is another's, and in time as well.
 * 3. A segment may lie unused for a moment while its test lives.  So one is removed when the
 *    process that its name names is dead, and it is older than any test becomes.
 */
#ifndef PN_TESTS_SCRATCH_H
#define PN_TESTS_SCRATCH_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "pynotify.h"

#define SCRATCH_PREFIX "pynotify-scratch."

enum { SCRATCH_OLD_S = 3600 };

/* Empties it; the descriptor is closed. */
static inline void directory_empty(int fd)
{
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);
    if (dir == NULL)
        return;
    for (struct dirent *d; (d = readdir(dir)) != NULL;) {
        if (strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0 ||
            unlinkat(dirfd(dir), d->d_name, 0) == 0)
            continue;
        directory_empty(openat(dirfd(dir), d->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
        unlinkat(dirfd(dir), d->d_name, AT_REMOVEDIR);
    }
    closedir(dir);
}

static inline void scratch_remove(const char *path)
{
    directory_empty(open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    rmdir(path);
}

/* Remove what killed tests have left. */
static inline void scratch_sweep(const char *parent)
{
    DIR *dir = opendir(parent);
    struct stat st;
    for (struct dirent *d; dir != NULL && (d = readdir(dir)) != NULL;) {
        if (strncmp(d->d_name, SCRATCH_PREFIX, strlen(SCRATCH_PREFIX)) != 0)
            continue;
        int fd = openat(dirfd(dir), d->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
            continue;
        if (fstat(fd, &st) == 0 && st.st_uid == geteuid() && flock(fd, LOCK_EX | LOCK_NB) == 0) {
            directory_empty(dup(fd));
            unlinkat(dirfd(dir), d->d_name, AT_REMOVEDIR);
        }
        close(fd);
    }
    if (dir != NULL)
        closedir(dir);
}

/* Make one in `parent`, and its path.  False: errno. */
static inline bool scratch_make(const char *parent, char *path, size_t size)
{
    struct stat st;
    scratch_sweep(parent);
    for (;;) {
        int n = snprintf(path, size, "%s/" SCRATCH_PREFIX "XXXXXX", parent);
        if (n < 0 || (size_t) n >= size || mkdtemp(path) == NULL)
            return false;
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* never closed: rule 1 */
        if (fd >= 0 && flock(fd, LOCK_EX) == 0 && fstat(fd, &st) == 0 && st.st_nlink > 0)
            return true;
        if (fd < 0 && errno != ENOENT)
            return false;
        if (fd >= 0) /* another one has swept before it was locked */
            close(fd);
    }
}

/* Remove the segments of killed tests that have a process ID behind `prefix` in their names. */
static inline void scratch_sweep_segments(const char *prefix, int64_t old_s)
{
    char begin[64], *end;
    struct stat st;
    DIR *dir = opendir("/dev/shm");
    int n = snprintf(begin, sizeof begin, "pynotify.%u.", (unsigned) geteuid());
    for (struct dirent *d; dir != NULL && (d = readdir(dir)) != NULL;) {
        const char *name = d->d_name + n;
        if (strncmp(d->d_name, begin, (size_t) n) != 0 ||
            strncmp(name, prefix, strlen(prefix)) != 0)
            continue;
        long pid = strtol(name + strlen(prefix), &end, 10);
        if (pid > 0 && (*end == '\0' || *end == '.') && kill((pid_t) pid, 0) != 0 &&
            errno == ESRCH && fstatat(dirfd(dir), d->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
            st.st_uid == geteuid() && time(NULL) - st.st_ctime > old_s) {
            unlinkat(dirfd(dir), d->d_name, 0);
            pn_remove_lock_files(name);
        }
    }
    if (dir != NULL)
        closedir(dir);
}

#endif
