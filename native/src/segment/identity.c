/*
 * identity.c - do the numbers that a mapping keeps still mean what they meant?
 *
 * 1. Descriptors.  The library lives in programs that close descriptors which are not theirs: a
 *    double close, closerange() of a program that becomes a daemon.  The number is another file's
 *    next.  Record locks of a foreign file are all free, which would prove the death of every
 *    other process; and a foreign file must not be locked, unlocked, allocated or closed.  So a
 *    function that acts on what such a descriptor says, or changes its file, compares device and
 *    inode with what was mapped.  Only signalling does not: there a wrong file means no signal.
 * 2. A number that is another file's by now is forgotten, not closed, and the file opened again by
 *    its name.  The locks that the process held in a lock file went with the old descriptor; they
 *    are taken again by the next look after them (pn_backend_keep_alive).
 *    What has no inode of its own (eventfds, epoll sets, timers, pidfds) is closed only if the
 *    number is one of that kind still, and read and written only if it is of any of them, which
 *    costs less to ask; one that the program has made since, of the same kind, under the same
 *    number, can be told from ours only where it is in a set of ours, or ought to be (lost.c).  A
 *    forked child closes what its parent's connections have at once, in fork(), before it can have
 *    closed anything itself: so a program that becomes a daemon, and closes everything, loses
 *    nothing when they are collected.
 * 3. Namespaces.  A forked child may be in another pid namespace than its parent, and keeps the
 *    parent's mapping.  There the pids of the segment name other processes, or none: it may look,
 *    but not connect, and what pidfd_open() says of a pid proves nothing.
 * 4. Users.  After setresuid() the mapping is there still, but sleepers cannot be signalled, and
 *    files cannot be opened.  No call looks at the user each time, since that is a system call; it
 *    is looked at where a call makes others (to connect, to block, fileno(), a consumer), and when
 *    a signal was refused.  What is found is remembered, and every call then looks again: a program
 *    may have gone back to the user that it was.
 */
#define _GNU_SOURCE
#include "segment/identity.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os.h"

pn_atomic_u32 pn_files_lost;

/* ---- descriptors ----------------------------------------------------------------------------- */

bool pn_is_segment_file(const struct pn_segment *seg, int fd)
{
    struct stat st;
    return fd >= 0 && fstat(fd, &st) == 0 && st.st_dev == seg->dev && st.st_ino == seg->ino;
}

/* Async-signal-safe: every digit is put there by hand.  Where the text ends. */
static size_t append_number(char *text, size_t at, uint32_t number)
{
    char digits[12];
    size_t count = 0;
    for (; count == 0 || number != 0; number /= 10)
        digits[count++] = (char) ('0' + number % 10);
    while (count > 0)
        text[at++] = digits[--count];
    text[at] = '\0';
    return at;
}

static void segment_path(const struct pn_segment *seg, char path[sizeof seg->lock_prefix])
{
    static const char prefix[] = PN_SHM_DIR "/pynotify.";
    memcpy(path, prefix, sizeof prefix - 1);
    size_t at = append_number(path, sizeof prefix - 1, seg->uid);
    path[at++] = '.';
    memcpy(path + at, seg->name, strlen(seg->name) + 1);
}

int pn_segment_file(struct pn_segment *seg)
{
    char path[sizeof seg->lock_prefix];
    int32_t known = pn_load_acquire(&seg->fd);
    if (pn_is_segment_file(seg, known))
        return known;
    segment_path(seg, path);
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (!pn_is_segment_file(seg, fd)) {
        if (fd >= 0)
            close(fd);
        return -PN_EGONE;
    }
    if (pn_cas(&seg->fd, &known, fd))
        return fd;
    close(fd); /* another thread was faster */
    return known;
}

void pn_segment_close_file(struct pn_segment *seg)
{
    int fd = pn_load_relaxed(&seg->fd);
    if (pn_is_segment_file(seg, fd))
        close(fd);
}

/* A descriptor that was lost and cannot be had again says nothing about the name. */
bool pn_segment_unlinked(struct pn_segment *seg)
{
    struct stat st;
    int fd = pn_segment_file(seg);
    if (fd < 0 || fstat(fd, &st) != 0 || st.st_ino != seg->ino || st.st_nlink != 0)
        return pn_load_relaxed(&seg->hdr->state) == PN_STATE_GONE;
    pn_store_release(&seg->hdr->state, PN_STATE_GONE);
    return true;
}

bool pn_is_lock_file(const struct pn_segment *seg, uint32_t file, int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && st.st_dev == seg->dev && st.st_ino == seg->lock_ino[file];
}

bool pn_is_anonymous(int fd)
{
    struct stat st;
    return fd >= 0 && fstat(fd, &st) == 0 && (st.st_mode & S_IFMT) == 0;
}

bool pn_is_kind(int fd, enum pn_fd_kind kind)
{
    static const char *const names[] = {"[eventfd]", "[eventpoll]", "[timerfd]", "pidfd"};
    char link[32] = "/proc/self/fd/", target[64];
    if (fd < 0)
        return false;
    append_number(link, strlen(link), (uint32_t) fd);
    ssize_t n = readlink(link, target, sizeof target - 1);
    if (n < 0)
        return errno != ENOENT || access("/proc/self/fd", F_OK) != 0;
    target[n] = '\0';
    return strstr(target, names[kind]) != NULL && target[0] != '/';
}

bool pn_is_in_set(int fd, int member, uint64_t data)
{
    char path[40] = "/proc/self/fdinfo/", line[256];
    int found_fd;
    unsigned long long found;
    bool is = false;
    if (!pn_is_kind(fd, PN_KIND_EPOLL))
        return false;
    append_number(path, strlen(path), (uint32_t) fd);
    FILE *info = fopen(path, "re");
    if (info == NULL)
        return access("/proc/self/fdinfo", F_OK) != 0 || errno == EMFILE || errno == ENFILE;
    while (!is && fgets(line, sizeof line, info) != NULL)
        is = sscanf(line, "tfd: %d events: %*x data: %llx", &found_fd, &found) == 2 &&
             found_fd == member && found == data;
    fclose(info);
    return is;
}

/* Closed, or another file's number by now, it is not. */
void pn_close_if_ours(int fd, enum pn_fd_kind kind)
{
    if (pn_is_kind(fd, kind))
        close(fd);
}

bool pn_is_pidfd(int fd, uint64_t id)
{
    return id == 0 ? pn_is_kind(fd, PN_KIND_PIDFD) : fd >= 0 && pn_os_pidfd_id(fd) == id;
}

/* Another one by now is the host's, or of another process. */
void pn_close_pidfd(int fd, uint64_t id)
{
    if (pn_is_pidfd(fd, id))
        close(fd);
}

/* ---- users ----------------------------------------------------------------------------------- */

bool pn_is_other_user(struct pn_segment *seg)
{
    bool other = geteuid() != seg->uid;
    pn_store_relaxed(&seg->other_user, other);
    return other;
}

int pn_segment_check_user(struct pn_segment *seg)
{
    if (!pn_is_other_user(seg))
        return 0;
    return pn_fail(PN_EUSER,
                   "the connection was opened by user %u, this process is user %u now\n"
                   "Open the segment and connect after changing the user.",
                   (unsigned) seg->uid, (unsigned) geteuid());
}

/* ---- namespaces ------------------------------------------------------------------------------ */

bool pn_same_pid_namespace(const struct pn_segment *seg)
{
    uint64_t ino;
    return pn_os_namespace("pid", &ino) == 0 && ino == seg->hdr->pidns_ino;
}

int pn_check_namespaces(const struct pn_header *hdr, const char *name)
{
    uint64_t pidns = 0, timens = 0;
    if (pn_os_namespace("pid", &pidns) == 0 && pidns != hdr->pidns_ino)
        return pn_fail(PN_ELAYOUT,
                       "segment \"%s\" belongs to pid namespace %llu, we are in %llu\n"
                       "Processes that share a segment must share a pid namespace.",
                       name, (unsigned long long) hdr->pidns_ino, (unsigned long long) pidns);
    if (pn_os_namespace("time", &timens) == 0 && timens != hdr->timens_ino)
        return pn_fail(PN_ELAYOUT,
                       "segment \"%s\" belongs to time namespace %llu, we are in %llu\n"
                       "Processes that share a segment must share a monotonic clock.",
                       name, (unsigned long long) hdr->timens_ino, (unsigned long long) timens);
    return 0;
}
