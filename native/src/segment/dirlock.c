/*
 * dirlock.c - a log of durable topics belongs to one segment; see dirlock.h.
 *
 * THE MODEL
 *
 *  1. Two segments of one name and one data_dir (two containers with a /dev/shm each and one
 *     volume) would write one log, and each would lose what the other was told is safe.  So the
 *     directory has a file `lock`: a record of the segment that owns the log, and locks.
 *  2. The locks are those of an open file description (F_OFD_SETLK), one for each process of the
 *     segment, shared, on a byte that the segment's instance chooses.  A SIGKILL releases it with
 *     the descriptor.  Other connections of the process use the same descriptor, so none of them
 *     drops the lock by closing.  A forked child closes its copy, which releases nothing.
 *  3. Byte 0, exclusive, is held by a process for the few calls in which it looks and writes the
 *     record: of two that come together the second finds the first one's record and lock.
 *  4. The record is the fence.  A segment may take the directory over as long as it has not read
 *     the log (`start`), if no process holds the owner's byte.  A segment that has read it may go
 *     on only while the record is its own: another one has written to the log since.  Each process
 *     looks now and then, and before it makes a file, in whose place may be one of the other's.
 *  5. An owner that was unlinked is none, though processes still map it: what these write does not
 *     count (topic_log.c 3), and at their next look (4) they are told.  It is known to be unlinked
 *     if it was a file of this boot and of this /dev/shm and has no name there any more.  One that
 *     was renamed has one.
 *  6. A file `lock` that was removed, or moved away with its directory, under a running system
 *     locks nothing.  Each process looks for it now and then and makes it again; the segment that
 *     has made one first owns the log.
 *  7. The record is written over in its place, which a full disk allows, but not one of a file
 *     system that copies on write.  Where it cannot be written for lack of room, that of the owner
 *     before is cut off, which needs none: then the locks alone keep others out.
 */
#define _GNU_SOURCE
#include "segment/dirlock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crashpoint.h"
#include "base/crc32c.h"
#include "base/os.h"
#include "files/data_dir.h"
#include "files/data_file.h"
#include "segment/identity.h"

#define OWNER_MAGIC 0x314b434f4c4e5950ULL /* "PYNLOCK1" read as little-endian */

struct owner {
    uint64_t magic, instance;
    uint64_t dev, ino; /* of the segment's file */
    uint8_t boot_id[16];
    int32_t pid; /* of the process that joined last */
    char host[PN_DIRLOCK_HOST];
    uint32_t crc; /* of all that is before */
};

enum { GATE = 0, FIRST = 64 }; /* bytes: the exclusive one; shared ones from there on */
#define GATE_NS 1000000000LL

static int64_t byte_of(uint64_t instance)
{
    return FIRST + (int64_t) (instance >> 2);
}

static int lock_byte(int fd, int64_t byte, short type)
{
    struct flock fl = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(fd, F_OFD_SETLK, &fl) == 0 ? 0 : -errno;
}

static bool is_taken(int fd, int64_t first, int64_t len)
{
    return len > 0 && pn_os_lock_holder(fd, first, len, NULL, NULL) != PN_LOCK_FREE;
}

/* ---- the record ------------------------------------------------------------------------------ */

static struct owner ours(const struct pn_segment *seg)
{
    struct owner o;
    memset(&o, 0, sizeof o);
    o.magic = OWNER_MAGIC;
    o.instance = seg->instance;
    o.dev = seg->dev;
    o.ino = seg->ino;
    o.pid = pn_my_pid;
    pn_os_boot_id(o.boot_id);
    if (gethostname(o.host, sizeof o.host - 1) != 0)
        snprintf(o.host, sizeof o.host, "?");
    o.crc = pn_crc32c(0, &o, offsetof(struct owner, crc));
    return o;
}

static int read_owner(int fd, struct owner *o)
{
    struct iovec one = {.iov_base = o, .iov_len = sizeof *o};
    int rc = pn_data_file_read(fd, &one, 1, 0);
    if (rc != 0 && rc != -ENODATA)
        return rc;
    if (rc != 0 || o->magic != OWNER_MAGIC ||
        o->crc != pn_crc32c(0, o, offsetof(struct owner, crc)))
        memset(o, 0, sizeof *o);
    o->host[sizeof o->host - 1] = '\0';
    return 0;
}

/* Has a file of this /dev/shm that number?  Of what cannot be known it is assumed. */
static bool has_a_name(const struct pn_segment *seg, const struct owner *o)
{
    uint8_t boot_id[16] = {0};
    bool found = false;
    if (pn_os_boot_id(boot_id) != 0 || memcmp(boot_id, o->boot_id, sizeof boot_id) != 0 ||
        o->dev != seg->dev)
        return true;
    DIR *dir = opendir(PN_SHM_DIR);
    if (dir == NULL)
        return true;
    for (struct dirent *d; !found && (d = readdir(dir)) != NULL;)
        found = d->d_ino == o->ino;
    closedir(dir);
    return found;
}

static int refuse(struct pn_segment *seg, const struct owner *o, bool start)
{
    char holder[sizeof o->host + 32] = "a process that is not known";
    if (o->magic != 0)
        snprintf(holder, sizeof holder, "process %d on host %s", o->pid, o->host);
    if (start)
        return pn_fail(PN_EDATADIR,
                       "the data directory %s/%s is in use by another segment of that name, "
                       "opened last by %s\n"
                       "End the processes of that segment, or give this one another name or "
                       "data_dir.",
                       seg->data_dir, seg->name, holder);
    if (pn_segment_unlinked(seg)) /* the other one has its name by now */
        return pn_fail(PN_EGONE,
                       "segment \"%s\" was unlinked, and another of that name has its log\n"
                       "Close the connection and open the segment again.",
                       seg->name);
    return pn_fail(PN_EDATADIR,
                   "the data directory %s/%s was taken over by another segment of that name, "
                   "opened last by %s\n"
                   "Unlink this segment: what its durable topics had is in the log there.",
                   seg->data_dir, seg->name, holder);
}

/* ---- taking it ------------------------------------------------------------------------------- */

/* With byte 0.  The file's record is ours afterwards, and our byte locked. */
static int enter_directory(struct pn_segment *seg, int fd, bool start)
{
    struct owner o, me = ours(seg);
    struct iovec one = {.iov_base = &me, .iov_len = sizeof me};
    const int64_t mine = byte_of(seg->instance);
    int rc = read_owner(fd, &o);
    if (rc != 0)
        return pn_data_file_failed(seg->data_dir, seg->name, "read the lock of", -rc);
    bool other = o.magic != 0 && o.instance != seg->instance;
    if (other && !start)
        return refuse(seg, &o, start);
    if (other && is_taken(fd, byte_of(o.instance), 1) && has_a_name(seg, &o))
        return refuse(seg, &o, start);
    if (o.magic == 0 &&
        (is_taken(fd, FIRST, mine - FIRST) || is_taken(fd, mine + 1, INT64_MAX - mine - 1)))
        return refuse(seg, &o, start);
    rc = lock_byte(fd, mine, F_RDLCK);
    PN_CRASH("dirlock:locked");
    if (rc == 0)
        rc = pn_data_file_write(fd, &one, 1, 0);
    PN_CRASH("dirlock:owned");
    if (rc == -ENOSPC || rc == -EDQUOT) /* another's record would keep us out from now on (4) */
        rc = !other || ftruncate(fd, 0) == 0 ? 0 : -errno;
    return rc == 0 ? 0 : pn_data_file_failed(seg->data_dir, seg->name, "lock", -rc);
}

static int pass_gate(struct pn_segment *seg, int fd)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    const int64_t until = pn_now_ns() + GATE_NS;
    int rc;
    while ((rc = lock_byte(fd, GATE, F_WRLCK)) == -EAGAIN || rc == -EACCES) {
        struct owner o;
        if (pn_now_ns() < until) {
            nanosleep(&pause, NULL);
            continue;
        }
        memset(&o, 0, sizeof o);
        read_owner(fd, &o);
        return refuse(seg, &o, true);
    }
    return rc == 0 ? 0 : pn_data_file_failed(seg->data_dir, seg->name, "lock", -rc);
}

bool pn_dirlock_held(const struct pn_segment *seg)
{
    struct stat st;
    return seg->dir_lock.held && fstat(seg->dir_lock.fd, &st) == 0 &&
           st.st_ino == seg->dir_lock.ino && st.st_dev == seg->dir_lock.dev;
}

int pn_dirlock_take(struct pn_segment *seg, bool start)
{
    char path[2 * PN_DATA_DIR_MAX];
    struct stat st;
    if (pn_dirlock_held(seg))
        return 0;
    snprintf(path, sizeof path, "%s/%s", seg->data_dir, seg->name);
    int dirfd = pn_data_dir_open(path);
    if (dirfd < 0)
        return dirfd;
    int fd = pn_data_file_make(path, dirfd, "lock", &st);
    close(dirfd);
    if (fd < 0)
        return fd;
    int rc = pass_gate(seg, fd);
    if (rc == 0) {
        rc = enter_directory(seg, fd, start);
        lock_byte(fd, GATE, F_UNLCK);
    }
    if (rc != 0) {
        close(fd);
        return rc;
    }
    seg->dir_lock.fd = fd;
    seg->dir_lock.dev = st.st_dev;
    seg->dir_lock.ino = st.st_ino;
    seg->dir_lock.held = true;
    return 0;
}

/* Is the record ours still?  One that cannot be read is no other segment's. */
static int check_owner(struct pn_segment *seg)
{
    struct owner o;
    int rc = read_owner(seg->dir_lock.fd, &o);
    if (rc != 0)
        return pn_data_file_failed(seg->data_dir, seg->name, "read the lock of", -rc);
    if (o.magic == 0 || o.instance == seg->instance)
        return 0;
    pn_dirlock_close(seg);
    return refuse(seg, &o, false);
}

int pn_dirlock_renew(struct pn_segment *seg)
{
    char path[2 * PN_DATA_DIR_MAX];
    struct stat st;
    snprintf(path, sizeof path, "%s/%s/lock", seg->data_dir, seg->name);
    if (pn_dirlock_held(seg) && lstat(path, &st) == 0 && st.st_dev == seg->dir_lock.dev &&
        st.st_ino == seg->dir_lock.ino)
        return check_owner(seg);
    pn_dirlock_close(seg);
    return pn_dirlock_take(seg, false);
}

void pn_dirlock_close(struct pn_segment *seg)
{
    if (pn_dirlock_held(seg))
        close(seg->dir_lock.fd);
    seg->dir_lock.held = false;
}

/* ---- looking --------------------------------------------------------------------------------- */

int pn_dirlock_look(const char *path, int32_t *pid, char *host)
{
    struct owner o;
    struct stat st;
    *pid = 0;
    host[0] = '\0';
    int dirfd = pn_data_dir_open(path);
    if (dirfd < 0)
        return dirfd;
    int fd = fstatat(dirfd, "lock", &st, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT
                 ? -ENOENT
                 : pn_data_file_open(path, dirfd, "lock", O_RDONLY, &st);
    close(dirfd);
    if (fd < 0)
        return fd == -ENOENT ? 0 : fd;
    bool held = is_taken(fd, FIRST, INT64_MAX - FIRST);
    int rc = read_owner(fd, &o);
    close(fd);
    if (rc != 0)
        return pn_data_file_failed(path, "lock", "read", -rc);
    *pid = o.pid;
    memcpy(host, o.host, sizeof o.host);
    return held;
}
