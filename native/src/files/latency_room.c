/*
 * latency_room.c - see latency_room.h.
 *
 * 1. A process holds a shared flock() on the file that it writes, from before its header until it
 *    is unmapped or the process is dead, whatever pid namespace it is in.  A file whose exclusive
 *    lock can be had is written by no process.
 * 2. W: of a name that exists, the process that has the exclusive lock of the file removes it.  It
 *    is never cut or written: a job that has it open reads on.  A file that lost its name between
 *    its making and its lock says so (no link), and its process makes another.
 * 3. Of one process the files go in the order in which it made them, so that a log loses its first
 *    ones; which process is next, the time of the last change decides.
 * 4. Before a file loses its name the ledger has it: log, part, records.  So what is missing at the
 *    beginning of a log was recycled, and not lost.  A death between the two leaves a line about a
 *    file that is there, which is no contradiction.  On a full disk the line comes afterwards.
 * 5. One process at a time makes room in a directory (flock() of the directory, without waiting);
 *    the others go on meanwhile, and so may all be above the limit by one file each.
 * 6. To look costs a stat() of each file.  It is left out within a second of the last look, while
 *    this process has made less than a 64th of the limit since.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "files/latency_room.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/atomic.h"
#include "files/latency_log.h"

#define SUFFIX      ".pynlog"
#define NAME_BYTES  200
#define AGAIN_NS    ((uint64_t) 1000000000)
#define SHARE       64 /* of the limit */
#define FILES_FIRST 64

struct entry {
    char name[NAME_BYTES];
    size_t writer_len; /* of the name: host, boot, pid and start time */
    uint32_t segno;
    int64_t changed_ns;
    uint64_t size;
    bool gone; /* or not to go */
};

struct listing {
    struct entry *at;
    size_t n, cap;
    uint64_t bytes;
};

/* The last look of this process.  W: any thread; two at once look twice. */
static pn_atomic_u64 looked_at, looked_ns, made_since;

/* ---- what there is ----------------------------------------------------------------------- */

/* <host>.<boot8>.<pid>.<starttime>.<segno>.pynlog */
static bool parse(struct entry *e, const char *name)
{
    size_t len = strlen(name), tail = sizeof SUFFIX - 1;
    char *end;
    if (len <= tail || len >= sizeof e->name || strcmp(name + len - tail, SUFFIX) != 0)
        return false;
    memcpy(e->name, name, len + 1);
    e->name[len - tail] = '\0';
    const char *dot = strrchr(e->name, '.');
    unsigned long segno = dot == NULL ? 0 : strtoul(dot + 1, &end, 10);
    bool ours = dot != NULL && end != dot + 1 && *end == '\0';
    e->writer_len = ours ? (size_t) (dot - e->name) : 0;
    e->segno = (uint32_t) segno;
    e->name[len - tail] = '.';
    return ours;
}

static int add(struct listing *all, int dir, const char *name)
{
    struct entry e = {.gone = false};
    struct stat st;
    if (!parse(&e, name) || fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
        !S_ISREG(st.st_mode))
        return 0;
    e.size = (uint64_t) st.st_size;
    e.changed_ns = (int64_t) st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    if (all->n == all->cap) {
        size_t cap = all->cap == 0 ? FILES_FIRST : all->cap * 2;
        struct entry *more = realloc(all->at, cap * sizeof *more);
        if (more == NULL)
            return -ENOMEM;
        all->at = more;
        all->cap = cap;
    }
    all->at[all->n++] = e;
    all->bytes += e.size;
    return 0;
}

static int list(int dir, struct listing *all)
{
    int copy = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = 0;
    DIR *d = copy < 0 ? NULL : fdopendir(copy);
    if (d == NULL) {
        rc = -errno;
        if (copy >= 0)
            close(copy);
        return rc;
    }
    for (struct dirent *e; rc == 0 && (e = readdir(d)) != NULL;)
        rc = add(all, dir, e->d_name);
    closedir(d);
    return rc;
}

/* ---- which goes -------------------------------------------------------------------------- */

static bool same_writer(const struct entry *a, const struct entry *b)
{
    return a->writer_len == b->writer_len && memcmp(a->name, b->name, a->writer_len) == 0;
}

/* Of the process whose file is the oldest, the first that is left. */
static struct entry *oldest(struct listing *all)
{
    struct entry *found = NULL;
    for (size_t i = 0; i < all->n; i++)
        if (!all->at[i].gone && (found == NULL || all->at[i].changed_ns < found->changed_ns))
            found = &all->at[i];
    for (size_t i = 0; found != NULL && i < all->n; i++)
        if (!all->at[i].gone && same_writer(&all->at[i], found) && all->at[i].segno < found->segno)
            found = &all->at[i];
    return found;
}

uint64_t pn_latroom_largest(void)
{
    struct rlimit r;
    return getrlimit(RLIMIT_FSIZE, &r) < 0 || r.rlim_cur == RLIM_INFINITY ? UINT64_MAX
                                                                          : (uint64_t) r.rlim_cur;
}

static bool is_version_1(const struct pn_latlog_header *h)
{
    return memcmp(h->magic, PN_LATLOG_MAGIC_1, sizeof h->magic) == 0;
}

/* What changes in a header.  Version 1 has plain numbers there; the rest is where it is. */
struct counts {
    uint64_t records, dropped;
    uint32_t sealed, nothing;
};

static struct counts counts_of(const struct pn_latlog_header *h)
{
    struct counts c;
    memcpy(&c, (const char *) h + offsetof(struct pn_latlog_header, state), sizeof c);
    if (!is_version_1(h))
        c = (struct counts) {c.records & PN_LATLOG_COUNT, (uint32_t) c.dropped,
                             (uint32_t) c.records & ~PN_LATLOG_COUNT, 0};
    return c;
}

static bool note(int dir, const struct pn_latlog_header *h)
{
    struct counts c = counts_of(h);
    char line[200];
    int fd = openat(dir, PN_LATROOM_LEDGER,
                    O_WRONLY | O_APPEND | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    if (fd < 0)
        return false;
    /* the newline in front ends what a full disk may have left of the line before */
    int len = snprintf(line, sizeof line,
                       "\n{\"log_id\":\"%016llx\",\"part\":%u,\"records\":%llu,\"dropped\":%llu}\n",
                       (unsigned long long) h->log_id, h->part, (unsigned long long) c.records,
                       (unsigned long long) c.dropped);
    struct stat st;
    bool room =
        fstat(fd, &st) == 0 && (uint64_t) st.st_size + (uint64_t) len <= pn_latroom_largest();
    bool whole = room && write(fd, line, (size_t) len) == len;
    close(fd);
    return whole;
}

static bool is_named(int dir, const struct entry *e, const struct stat *st)
{
    struct stat now;
    return fstatat(dir, e->name, &now, AT_SYMLINK_NOFOLLOW) == 0 && now.st_dev == st->st_dev &&
           now.st_ino == st->st_ino;
}

/* `fd` has the exclusive lock.  A file without a whole header has no records either. */
static bool remove_idle(int dir, int fd, const struct entry *e)
{
    struct pn_latlog_header h;
    struct stat st;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid() ||
        !is_named(dir, e, &st))
        return false;
    bool whole = pread(fd, &h, sizeof h, 0) == (ssize_t) sizeof h &&
                 (memcmp(h.magic, PN_LATLOG_MAGIC, sizeof h.magic) == 0 || is_version_1(&h));
    if (!whole && st.st_size != 0)
        return false; /* not a log: another program's, or damaged, which is worth a look */
    if (whole && h.revision < 2 && counts_of(&h).sealed == 0)
        return false; /* of an older version, whose processes take no lock */
    bool noted = !whole || note(dir, &h);
    if (unlinkat(dir, e->name, 0) < 0)
        return false;
    if (!noted)
        note(dir, &h);
    return true;
}

/* A descriptor with the exclusive lock; -1: the file is being written, or cannot be had. */
static int open_idle(int dir, const struct entry *e)
{
    int fd = openat(dir, e->name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0) {
        close(fd);
        fd = -1;
    }
    return fd;
}

static bool recycle(int dir, const struct entry *e)
{
    int fd = open_idle(dir, e);
    bool removed = fd >= 0 && remove_idle(dir, fd, e);
    if (fd >= 0)
        close(fd);
    return removed;
}

/* Leaves those that are being written out; their bytes. */
static uint64_t leave_out_written(int dir, struct listing *all)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < all->n; i++) {
        int fd = open_idle(dir, &all->at[i]);
        all->at[i].gone = fd < 0;
        bytes += fd < 0 ? all->at[i].size : 0;
        if (fd >= 0)
            close(fd);
    }
    return bytes;
}

/* Nothing goes where that would not make enough room. */
static int shrink(int dir, struct listing *all, uint64_t limit, uint64_t need, uint64_t *recycled)
{
    struct entry *e;
    if (all->bytes <= limit - need)
        return 0;
    if (leave_out_written(dir, all) > limit - need)
        return -EDQUOT;
    while (all->bytes > limit - need && (e = oldest(all)) != NULL) {
        e->gone = true;
        if (recycle(dir, e)) {
            all->bytes -= e->size;
            ++*recycled;
        }
    }
    return all->bytes > limit - need ? -EDQUOT : 0;
}

/* ---- when -------------------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t) t.tv_sec * 1000000000u + (uint64_t) t.tv_nsec;
}

static bool is_due(int dir, uint64_t limit, uint64_t need)
{
    struct stat st;
    uint64_t where = fstat(dir, &st) < 0 ? 0 : (uint64_t) st.st_ino ^ (uint64_t) st.st_dev << 32;
    uint64_t now = now_ns();
    uint64_t made = pn_fetch_add_relaxed(&made_since, need) + need;
    if (where != 0 && pn_load_relaxed(&looked_at) == where && made < limit / SHARE &&
        now - pn_load_relaxed(&looked_ns) < AGAIN_NS)
        return false;
    pn_store_relaxed(&looked_at, where);
    pn_store_relaxed(&looked_ns, now);
    pn_store_relaxed(&made_since, need);
    return true;
}

int pn_latroom_make(int dir, uint64_t limit, uint64_t need, uint64_t *recycled)
{
    struct listing all = {.at = NULL};
    if (need > limit)
        return -EDQUOT;
    if (!is_due(dir, limit, need) || flock(dir, LOCK_EX | LOCK_NB) < 0)
        return 0;
    int rc = list(dir, &all);
    /* without memory or descriptors: the next look tells */
    rc = rc == 0 ? shrink(dir, &all, limit, need, recycled) : 0;
    if (rc != 0)
        pn_store_relaxed(&looked_at, 0);
    free(all.at);
    flock(dir, LOCK_UN);
    return rc;
}

int pn_latroom_own(int fd)
{
    struct stat st;
    if (flock(fd, LOCK_SH | LOCK_NB) < 0)
        return errno == EWOULDBLOCK ? -EEXIST : 0; /* a file system without locks */
    return fstat(fd, &st) == 0 && st.st_nlink == 0 ? -EEXIST : 0;
}
