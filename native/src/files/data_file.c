/*
 * data_file.c - see data_file.h.
 *
 * A file is made O_EXCL|O_NOFOLLOW and close-on-exec; one that is there already must be a regular
 * file, ours, with one name.  No open waits: O_NONBLOCK passes by a FIFO.
 */
#define _GNU_SOURCE
#include "files/data_file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/crashpoint.h"
#include "base/err.h"

int pn_data_file_failed(const char *path, const char *name, const char *what, int error)
{
    return pn_fail(error, "could not %s %s/%s: %s", what, path, name, strerror(error));
}

/* Is what stands under that name a file of ours?  Names the owner of what is not. */
static int check_file(const char *path, const char *name, const struct stat *st)
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
        return st->st_nlink == 0 ? pn_data_file_failed(path, name, "use", ENOENT) : 0;
    return pn_fail(EACCES,
                   "%s/%s is %s; it belongs to user %u, we are user %u\nOnly "
                   "pynotify makes files of such names: find out what made it, and remove it.",
                   path, name, wrong, (unsigned) st->st_uid, (unsigned) geteuid());
}

int pn_data_file_open(const char *path, int dirfd, const char *name, int flags, struct stat *st)
{
    int fd = openat(dirfd, name, flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    int error = errno;
    bool known = (fd >= 0 ? fstat(fd, st) : fstatat(dirfd, name, st, AT_SYMLINK_NOFOLLOW)) == 0;
    int rc = known ? check_file(path, name, st) : 0;
    if (rc == 0 && (fd < 0 || !known))
        rc = pn_data_file_failed(path, name, "open", fd < 0 ? error : errno);
    if (rc != 0 && fd >= 0)
        close(fd);
    return rc != 0 ? rc : fd;
}

/*
 * An empty file of ours that we may not open was left by a creator with a strange umask, killed
 * before its fchmod(): no process uses it yet.
 */
int pn_data_file_make(const char *path, int dirfd, const char *name, struct stat *st)
{
    const int new = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    for (int tries = 0;; tries++) {
        int fd = openat(dirfd, name, new, 0600);
        if (fd >= 0) {
            PN_CRASH("datafile:created");
            if (fchmod(fd, 0600) == 0 && fstat(fd, st) == 0)
                return fd;
            int error = errno;
            unlinkat(dirfd, name, 0);
            close(fd);
            return pn_data_file_failed(path, name, "make", error);
        }
        if (errno != EEXIST)
            return pn_data_file_failed(path, name, "make", errno);
        fd = pn_data_file_open(path, dirfd, name, O_RDWR, st);
        if (fd >= 0) {
            if ((st->st_mode & 07777) != 0600 && fchmod(fd, 0600) != 0) {
                int error = errno;
                close(fd);
                return pn_data_file_failed(path, name, "set the mode of", error);
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

/* ---- closing ------------------------------------------------------------------------------- */

static _Thread_local struct {
    bool held;
    pn_atomic_u32 n;
    struct waiting {
        int fd;
        off_t cut; /* -1: not */
    } of[PN_CLOSE_LATER];
} later; /* W: the thread, and what interrupts it between two calls of close() */

bool pn_data_files_wait(void)
{
    return later.held && pn_load_relaxed(&later.n) < PN_CLOSE_LATER;
}

static void finish(const struct waiting *w)
{
    if (w->cut >= 0 && ftruncate(w->fd, w->cut) != 0)
        errno = 0; /* then it keeps its room until it is removed */
    close(w->fd);
}

void pn_data_file_cut_and_close(int fd, off_t length)
{
    const struct waiting one = {fd, length};
    uint32_t n = pn_load_relaxed(&later.n);
    if (!pn_data_files_wait()) {
        finish(&one);
        return;
    }
    later.of[n] = one;
    pn_store_relaxed(&later.n, n + 1);
}

void pn_data_file_close(int fd)
{
    pn_data_file_cut_and_close(fd, -1);
}

/* Did that make room, perhaps?  Each is closed once, also where a handler comes in between. */
static bool close_waiting(void)
{
    struct waiting of[PN_CLOSE_LATER];
    memcpy(of, later.of, sizeof of);
    uint32_t n = pn_exchange(&later.n, 0);
    for (uint32_t i = 0; i < n; i++)
        finish(&of[i]);
    return n > 0;
}

void pn_data_files_hold(void)
{
    later.held = true;
}

void pn_data_files_release(void)
{
    later.held = false;
    if (__builtin_expect(pn_load_relaxed(&later.n) > 0, 0))
        close_waiting();
}

static bool is_full(int rc)
{
    return rc == -ENOSPC || rc == -EDQUOT;
}

/* ---- writing and reading -------------------------------------------------------------------- */

/* Beyond RLIMIT_FSIZE a write raises SIGXFSZ, which kills a program that did not ask for it. */
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

/* So many bytes of what is left are done. */
static void advance(struct iovec **iov, int *n, size_t done)
{
    for (; *n > 0 && done >= (*iov)->iov_len; --*n, ++*iov)
        done -= (*iov)->iov_len;
    if (*n > 0) {
        (*iov)->iov_base = (char *) (*iov)->iov_base + done;
        (*iov)->iov_len -= done;
    }
}

static int write_all(int fd, struct iovec *iov, int n, off_t at)
{
    while (n > 0) {
        ssize_t done = pwritev(fd, iov, n, at);
        if (done < 0 && (errno == EINTR || (is_full(-errno) && close_waiting())))
            continue;
        if (done <= 0)
            return done < 0 ? -errno : -EIO;
        at += done;
        advance(&iov, &n, (size_t) done);
    }
    return 0;
}

int pn_data_file_write(int fd, struct iovec *iov, int n, off_t at)
{
    sigset_t xfsz, before;
    block_sigxfsz(&xfsz, &before);
    int rc = write_all(fd, iov, n, at);
    unblock_sigxfsz(&xfsz, &before, rc == -EFBIG);
    return rc;
}

/* Copy-on-write file systems take new blocks all the same: there this promises nothing. */
int pn_data_file_reserve(int fd, uint64_t at, uint64_t n)
{
    sigset_t xfsz, before;
    int rc;
    if (at > INT64_MAX - n)
        return -EFBIG;
    block_sigxfsz(&xfsz, &before);
    do
        rc = fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t) at, (off_t) n) == 0 ? 0 : -errno;
    while (rc == -EINTR || (is_full(rc) && close_waiting()));
    unblock_sigxfsz(&xfsz, &before, rc == -EFBIG);
    return rc == -ENOSYS ? -EOPNOTSUPP : rc;
}

int pn_data_file_read(int fd, struct iovec *iov, int n, off_t at)
{
    while (n > 0) {
        ssize_t got = preadv(fd, iov, n, at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return got < 0 ? -errno : -ENODATA;
        at += got;
        advance(&iov, &n, (size_t) got);
    }
    return 0;
}
