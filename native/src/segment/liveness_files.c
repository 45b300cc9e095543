/*
 * liveness_files.c - the files that carry the liveness locks (rule L1).
 *
 * A file for each group of 64 slots, made by the first process that claims one.  A process opens
 * a file once and keeps it open as long as the segment is mapped: closing any descriptor of a
 * file drops the fcntl locks that the process holds on it.  The name carries the segment's
 * instance, so a new segment of the same name never meets the files of an old one.
 *
 * The instance can be read in the name of the first file, and so the names of the others are known
 * beforehand: another user may take them, and in a directory like /dev/shm no other user can remove
 * that.  Such a file is left alone; the group's file then gets a number that cannot be guessed,
 * which stands in the segment.
 */
#define _GNU_SOURCE
#include "segment/liveness_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/os.h"
#include "segment/dirlock.h"
#include "segment/identity.h"
#include "segment/process.h"

/* Async-signal-safe, as is everything that opens a lock file that is there. */
static void lock_file_path(const struct pn_segment *seg, uint32_t file, char *path)
{
    char digits[24];
    uint64_t number = seg->lock_number[file] != 0 ? seg->lock_number[file] : file;
    size_t at = strlen(seg->lock_prefix), count = 0;
    memcpy(path, seg->lock_prefix, at);
    for (uint64_t left = number; count == 0 || left != 0; left /= 10)
        digits[count++] = (char) ('0' + left % 10);
    while (count > 0)
        path[at++] = digits[--count];
    path[at] = '\0';
}

/* A segment whose name was removed without unlink(): its last user takes its files along. */
void pn_lock_files_orphaned(struct pn_segment *seg)
{
    char path[320];
    struct stat st;
    int fd = pn_segment_file(seg);
    if (fd == -PN_EGONE)
        return; /* closed by the program: nothing is known, and a later unlink() takes them */
    if (fstat(fd, &st) != 0 || st.st_nlink != 0)
        return;
    for (uint32_t i = 0; i * PN_SLOTS_PER_LOCK_FILE < seg->max_backends; i++)
        if (seg->lock_ino[i] != 0) {
            lock_file_path(seg, i, path);
            unlink(path);
        }
}

/* Close, never unlock: in a forked child an unlock would release the parent's OFD locks. */
void pn_lock_files_close(struct pn_segment *seg)
{
    pn_dirlock_close(seg);
    if (seg->lock_fd == NULL)
        return;
    for (uint32_t i = 0; i * PN_SLOTS_PER_LOCK_FILE < seg->max_backends; i++) {
        int fd = pn_load_relaxed(&seg->lock_fd[i]);
        if (fd >= 0 && pn_is_lock_file(seg, i, fd))
            close(fd);
        pn_store_relaxed(&seg->lock_fd[i], -1);
    }
}

/*
 * A file that is there although its inode is not in the segment belongs to a creator that died in
 * between, and no process has locked it yet: it is replaced.  Or another user has put it there.
 */
static int create_lock_file(struct pn_segment *seg, uint32_t file, char path[320])
{
    int fd = -1;
    for (int tries = 0; fd < 0 && tries < 3; tries++) {
        lock_file_path(seg, file, path);
        unlink(path);
        fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_CREAT | O_EXCL, 0600);
        if (fd >= 0 || errno != EEXIST)
            break;
        seg->lock_number[file] = pn_os_random() | 1ULL << 32; /* beyond those of all groups */
        errno = EEXIST;
    }
    return fd;
}

/* The first claimer of a group makes the file, under the writer lock; its inode is then stored. */
int pn_segment_make_lock_file(struct pn_segment *seg, uint32_t slot)
{
    uint32_t file = slot / PN_SLOTS_PER_LOCK_FILE;
    char path[320];
    struct stat st;
    if (seg->lock_ino[file] != 0)
        return pn_segment_lock_file(seg, slot);
    int fd = create_lock_file(seg, file, path);
    if (fd < 0 || fchmod(fd, 0600) != 0 || fstat(fd, &st) != 0) {
        int error = errno;
        if (fd >= 0)
            close(fd);
        return pn_fail(error, "could not make the lock file %s: %s", path, strerror(error));
    }
    seg->lock_ino[file] = st.st_ino;
    pn_store_release(&seg->lock_fd[file], fd);
    return fd;
}

/*
 * Async-signal-safe, and so without a lock: of two threads that open the same file the slower
 * one's descriptor stays open for good, since closing it would drop the fcntl locks that the
 * process may have taken through the other one by then.
 */
static int open_lock_file(struct pn_segment *seg, uint32_t slot)
{
    uint32_t file = slot / PN_SLOTS_PER_LOCK_FILE;
    char path[320];
    struct stat st;
    int32_t none = -1;
    if (seg->lock_ino[file] == 0)
        return -ENOENT; /* no process ever had a slot of this group */
    lock_file_path(seg, file, path);
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return errno == ENOENT ? -PN_EGONE : -errno;
    if (fstat(fd, &st) != 0 || st.st_nlink == 0 || st.st_ino != seg->lock_ino[file]) {
        close(fd); /* split brain: it was replaced under us */
        return -PN_EGONE;
    }
    return pn_cas(&seg->lock_fd[file], &none, fd) ? fd : none;
}

int pn_segment_open_lock_file(struct pn_segment *seg, uint32_t slot)
{
    pn_fetch_add(&seg->openings_begun, 1);
    int fd = open_lock_file(seg, slot);
    pn_fetch_add(&seg->openings_ended, 1);
    return fd;
}

bool pn_lock_files_settled(const struct pn_segment *seg, uint32_t *openings)
{
    uint32_t ended = pn_load_seq_cst(&seg->openings_ended); /* first: begun is never less */
    *openings = pn_load_seq_cst(&seg->openings_begun);
    return *openings == ended;
}

int pn_segment_true_lock_file(struct pn_segment *seg, uint32_t slot)
{
    uint32_t file = slot / PN_SLOTS_PER_LOCK_FILE;
    int32_t fd = pn_segment_lock_file(seg, slot);
    if (fd < 0 || pn_is_lock_file(seg, file, fd))
        return fd;
    pn_fetch_add(&pn_files_lost, 1);
    pn_cas(&seg->lock_fd[file], &fd, -1);
    return pn_segment_open_lock_file(seg, slot);
}

/* Call back for each lock file of `name`, whatever segment instance it belongs to. */
static int each_lock_file(const char *name, int (*visit)(int dir, const char *file, void *arg),
                          void *arg)
{
    char prefix[192];
    int length = snprintf(prefix, sizeof prefix, "pynotify-lock.%u.%s.", geteuid(), name);
    DIR *dir = opendir(PN_SHM_DIR);
    if (dir == NULL)
        return pn_fail(errno, "could not read " PN_SHM_DIR ": %s", strerror(errno));
    int rc = 0;
    for (struct dirent *d; rc == 0 && (d = readdir(dir)) != NULL;) {
        if (strncmp(d->d_name, prefix, (size_t) length) != 0)
            continue;
        const char *rest = d->d_name + length; /* <16 hex digits>.<number> */
        if (strspn(rest, "0123456789abcdef") != 16 || rest[16] != '.' || rest[17] == '\0' ||
            rest[17 + strspn(rest + 17, "0123456789")] != '\0')
            continue;
        rc = visit(dirfd(dir), d->d_name, arg);
    }
    closedir(dir);
    return rc;
}

struct pid_list {
    int32_t *pids;
    size_t cap, n;
};

static struct pn_segment *mapped_segment_of(const char *file)
{
    for (struct pn_segment *seg = pn_first_segment(); seg != NULL; seg = seg->next) {
        const char *prefix = seg->lock_prefix + sizeof PN_SHM_DIR; /* and the slash */
        if (strncmp(file, prefix, strlen(prefix)) == 0)
            return seg;
    }
    return NULL;
}

/* The descriptor that the process keeps of that file, and not one to be closed: -1, there is none.
 * A file whose inode is not in the segment was locked by no process (create_lock_file()). */
static int kept_lock_fd(struct pn_segment *seg, const struct stat *st)
{
    for (uint32_t i = 0; i * PN_SLOTS_PER_LOCK_FILE < seg->max_backends; i++)
        if (seg->lock_ino[i] == st->st_ino && seg->dev == st->st_dev)
            return pn_segment_true_lock_file(seg, i * PN_SLOTS_PER_LOCK_FILE);
    return -1;
}

static void collect_holders(int fd, struct pid_list *list)
{
    for (int64_t byte = 0; byte < PN_OFD_BYTE;) {
        int64_t start = 0, span = 1;
        int32_t pid = pn_os_lock_holder(fd, byte, PN_OFD_BYTE - byte, &start, &span);
        if (pid == PN_LOCK_FREE || pid < PN_LOCK_OFD)
            break;
        if (pid == PN_LOCK_OFD)
            pid = 0; /* an fcntl lock without a pid: its holder is in another pid namespace */
        bool known = false;
        for (size_t i = 0; i < list->n && i < list->cap; i++)
            known = known || list->pids[i] == pid;
        if (!known) {
            if (list->n < list->cap)
                list->pids[list->n] = pid;
            list->n++;
        }
        byte = start + span;
    }
}

/*
 * Closing any descriptor of a lock file drops the fcntl locks that the process holds on it, and
 * another thread may be about to take one.  So a file of a segment that is mapped here is opened as
 * for a claim, and stays open.  No other is locked by this process: mapping needs the process lock,
 * which is held.
 */
static int visit_pids(int dir, const char *file, void *arg)
{
    struct stat st;
    if (fstatat(dir, file, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode) ||
        st.st_uid != geteuid()) /* another user may have put it there, and hold locks in it */
        return 0;
    struct pn_segment *seg = mapped_segment_of(file);
    int fd =
        seg != NULL ? kept_lock_fd(seg, &st) : openat(dir, file, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return 0;
    collect_holders(fd, arg);
    if (seg == NULL)
        close(fd);
    return 0;
}

int pn_lock_file_pids(const char *name, int32_t *pids, size_t cap)
{
    struct pid_list list = {.pids = pids, .cap = cap};
    pn_process_lock();
    int rc = each_lock_file(name, visit_pids, &list);
    pn_process_unlock();
    return rc != 0 ? rc : (int) list.n;
}

static int visit_unlink(int dir, const char *file, void *arg)
{
    (void) arg;
    unlinkat(dir, file, 0);
    return 0;
}

int pn_lock_files_unlink(const char *name)
{
    return each_lock_file(name, visit_unlink, NULL);
}
