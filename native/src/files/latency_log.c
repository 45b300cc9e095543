/*
 * latency_log.c -- the latency log writer; latency_log.h has the format and the contract.
 *
 * 1. A record is copied to its place, then `state`, a count and its CRC in one word, is stored with
 *    release. A death in between leaves a record that no reader reads. Nothing is ever rewritten
 *    but anchors: one says so by its CRC, before and until it is whole again.
 * 2. No page is touched that has not been allocated and faulted in before: room is made in chunks,
 *    so a full disk is ENOSPC from fallocate or write and never a SIGBUS, and the common append is
 *    a CRC and a few stores.  Zeros are written only where no record has been.
 * 3. A segment is sealed only when its successor exists. Until then it stays mapped, so that
 *    `dropped` can be published even when there is no room for anything else. So the last file of a
 *    log is closed, or open; one that says that it was rotated misses those behind it.
 * 4. Making room may fail at any time. Then the log waits a second (by the records' own clock)
 *    before it bothers the file system again.
 * 5. A file is locked (flock) while it is written, for latency_room.c.
 * 6. Programs close descriptors that are not theirs: ours is used only while it is our inode.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "files/latency_log.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/hash.h"
#include "base/os.h"
#include "files/latency_names.h"
#include "files/latency_room.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_READ  22
#define MADV_POPULATE_WRITE 23
#endif

#define PAGE 4096u

#define CHUNK_MIN ((uint64_t) 64 << 10) /* also what one read fault maps, where it maps ahead */
#define CHUNK_MAX ((uint64_t) 256 << 10)
#define RETRY_NS  ((uint64_t) 1000000000)
#define PARTS     16u
#define ANCHOR_NS ((uint64_t) 10000000000)

static const char SCHEMA[] =
    "{\"format\":\"pynlog\",\"version\":2,"
    "\"record\":[[\"ts\",\"<u8\"],[\"ref_ts\",\"<u8\"],[\"commit_seq\",\"<u8\"],"
    "[\"chan_seq\",\"<u8\"],[\"channel\",\"<u4\"],[\"bytes\",\"<u4\"],[\"peer\",\"<u4\"],"
    "[\"lag\",\"<u4\"],[\"kind\",\"|u1\"],[\"wake\",\"|u1\"],[\"attempts\",\"|u1\"],"
    "[\"flags\",\"|u1\"],[\"batch\",\"<u4\"],[\"aux\",\"<u8\"]],"
    "\"units\":{\"ts\":\"ns CLOCK_MONOTONIC\",\"ref_ts\":\"ns CLOCK_MONOTONIC\","
    "\"bytes\":\"bytes\",\"lag\":\"messages\",\"batch\":\"messages\","
    "\"aux\":\"high 32: CRC32C of the 60 bytes before\"},"
    "\"kinds\":{\"SEND\":1,\"RECV\":2,\"FIN\":3,\"REQ\":4,\"TIMEOUT\":5,\"SIGNAL\":6,\"WAKE\":7,"
    "\"LISTEN\":8,\"UNLISTEN\":9,\"DROP\":10,\"CHANDEF\":11,\"PUBLISH\":12,\"DELIVER\":13},"
    "\"wakes\":{\"none\":0,\"signal\":1,\"fd\":2,\"timer\":3,\"neighbour\":4},"
    "\"header\":{\"header_crc\":508,\"anchors\":512,\"state\":1024,\"dropped\":1032,"
    "\"schema\":1152}}";

_Static_assert(sizeof(SCHEMA) <= sizeof(((struct pn_latlog_header *) 0)->schema), "schema fits");

struct file {
    int fd;
    dev_t dev;
    ino_t ino;
};

struct segment {
    struct file file;
    struct pn_latlog_header *map;
    uint64_t size, capacity;
    uint64_t ready; /* records whose pages are allocated and faulted in */
    uint64_t n;     /* = what `state` counts */
    uint32_t crc;   /* = header_crc */
    uint64_t anchored_ns;
    uint32_t anchors;
    bool on_tmpfs;
};

struct pn_latlog {
    struct segment seg; /* seg.map == NULL: no file yet */
    struct file dir;
    pid_t pid;
    uint32_t files; /* made so far; the current one has this number */
    uint64_t retry_ns, next_size, dropped;
    uint64_t limit; /* bytes of all files in the directory */
    /* NULL, or what is counted elsewhere too.  W: any (relaxed adds) */
    pn_atomic_u64 *count_dropped, *count_recycled;
    struct pn_lognames names;
    struct pn_latlog_header head; /* what every file's header starts from */
};

/* Per process, shared by its logs. */
static pn_atomic_u32 next_segno;

/* ---- small things ---------------------------------------------------------------------- */

static uint64_t clock_ns(clockid_t id)
{
    struct timespec t;

    clock_gettime(id, &t);
    return (uint64_t) t.tv_sec * 1000000000u + (uint64_t) t.tv_nsec;
}

static uint64_t read_tsc(void)
{
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return 0;
#endif
}

static int file_identify(struct file *f)
{
    struct stat st;
    if (fstat(f->fd, &st) < 0)
        return -errno;
    f->dev = st.st_dev;
    f->ino = st.st_ino;
    return 0;
}

static bool file_is_ours(const struct file *f)
{
    struct stat st;

    return f->fd >= 0 && fstat(f->fd, &st) == 0 && st.st_dev == f->dev && st.st_ino == f->ino;
}

static void file_close(struct file *f)
{
    if (file_is_ours(f))
        close(f->fd);
    f->fd = -1;
}

/* The first line of a small file without its newline; "" when it cannot be read. */
static void read_line(const char *path, char *buf, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, buf, size - 1);

    if (fd >= 0)
        close(fd);
    buf[n > 0 ? n : 0] = '\0';
    buf[strcspn(buf, "\n")] = '\0';
}

/* Field 22 of /proc/self/stat; the command in field 2 may contain anything, ")" included. */
static uint64_t process_start(void)
{
    char buf[1024], *s;

    read_line("/proc/self/stat", buf, sizeof(buf));
    s = strrchr(buf, ')');
    for (int field = 2; s != NULL && field < 22; field++)
        s = strchr(s + 1, ' ');
    return s == NULL ? 0 : strtoull(s, NULL, 10);
}

void pn_latlog_limit(pn_latlog *log, uint64_t bytes)
{
    log->limit = bytes;
}

void pn_latlog_count_in(pn_latlog *log, pn_atomic_u64 *dropped, pn_atomic_u64 *recycled)
{
    log->count_dropped = dropped;
    log->count_recycled = recycled;
}

/* ---- segments -------------------------------------------------------------------------- */

static uint64_t record_end(uint64_t n)
{
    return PN_LATLOG_HEADER + n * PN_LATLOG_RECORD;
}

static void *record_at(const struct segment *seg, uint64_t i)
{
    return (char *) seg->map + record_end(i);
}

static void put_anchor(struct segment *seg, struct pn_latlog_header *h)
{
    uint32_t i = seg->anchors;
    struct pn_latlog_anchor *to, a = {.tsc = read_tsc(),
                                      .monotonic_ns = clock_ns(CLOCK_MONOTONIC),
                                      .realtime_ns = clock_ns(CLOCK_REALTIME),
                                      .number = seg->anchors};

    /* The first stays for good: with the newest it spans the file. */
    if (i >= PN_LATLOG_ANCHORS)
        i = 1 + (i - 1) % (PN_LATLOG_ANCHORS - 1);
    to = &h->anchors[i];
    pn_store_relaxed(&to->crc, PN_LATLOG_WRITING);
    /* No store of the clocks is before that of the mark, nor any behind that of the CRC: pairs with
     * _state_2() of spark_jobs, which reads the file. */
    pn_fence_release();
    to->tsc = a.tsc;
    to->monotonic_ns = a.monotonic_ns;
    to->realtime_ns = a.realtime_ns;
    to->number = a.number;
    pn_store_release(&to->crc, pn_crc32c(0, &a, offsetof(struct pn_latlog_anchor, crc)));
    seg->anchors++;
    seg->anchored_ns = a.monotonic_ns;
}

/* A word of a header: `low`, and its CRC, which continues `crc`. */
static uint64_t guarded(uint32_t crc, uint32_t low)
{
    return low | (uint64_t) pn_crc32c_word(crc, low) << 32;
}

static uint64_t dropped_word(uint32_t crc, uint64_t dropped)
{
    return guarded(~crc, dropped < UINT32_MAX ? (uint32_t) dropped : UINT32_MAX);
}

/* Large steps are cheap, but the first files of a log are for those that write little. */
static uint64_t chunk_of(const struct segment *seg)
{
    uint64_t quarter = seg->size / 4;

    return quarter < CHUNK_MIN ? CHUNK_MIN : quarter > CHUNK_MAX ? CHUNK_MAX : quarter;
}

/* In one call, so that a file system that has large folios takes them. */
static int write_zeros(int fd, uint64_t from, uint64_t to)
{
    static char zeros[16 << 10]; /* never written */
    struct iovec all[CHUNK_MAX / sizeof(zeros)];

    for (int tries = 0; from < to;) {
        int count = 0;
        ssize_t n;

        for (uint64_t at = from; at < to; at += all[count++].iov_len)
            all[count] = (struct iovec) {zeros, to - at < sizeof(zeros) ? to - at : sizeof(zeros)};
        n = pwritev(fd, all, count, (off_t) from);
        if (n < 0 && errno == EINTR && ++tries < 100)
            continue;
        if (n <= 0)
            return n < 0 ? -errno : -ENOSPC;
        from += (uint64_t) n;
    }
    return 0;
}

/* Maps pages that are in the page cache.  EINVAL is a kernel before 5.14: then first touch faults
 * the pages in, a little slower. */
static int map_pages(const struct segment *seg, uint64_t from, uint64_t to)
{
    char *at = (char *) seg->map + from, *end = (char *) seg->map + to, *next = end;

    if (!seg->on_tmpfs)
        return madvise(at, to - from, MADV_POPULATE_WRITE) < 0 && errno == EFAULT ? -EFAULT : 0;
    /* On tmpfs no file system has to be told of a page's first write, so that a read fault maps it
     * writable; and with it those around it, which a write fault does not. */
    for (; at < end; at = next) {
        next = at + (CHUNK_MIN - (uintptr_t) at % CHUNK_MIN);
        if (madvise(at, PAGE, MADV_POPULATE_READ) < 0 && errno == EFAULT)
            return -EFAULT;
    }
    return 0;
}

/* Allocates and faults in the chunks up to record `upto`, so that writing them cannot fail. */
static int segment_extend(struct segment *seg, uint64_t upto)
{
    uint64_t from = seg->ready == 0 ? PN_LATLOG_HEADER : record_end(seg->ready);
    uint64_t chunk = chunk_of(seg), to = (record_end(upto) + chunk - 1) / chunk * chunk;
    int rc = 0, tries = 0;

    if (upto <= seg->ready)
        return 0;
    if (to > seg->size)
        to = seg->size;
    if (!file_is_ours(&seg->file))
        return -EBADF;
    if (to > pn_latroom_largest())
        return -EFBIG;
    /* On disk the blocks: a write may leave those for later.  tmpfs has nothing but its pages. */
    if (!seg->on_tmpfs)
        do
            rc = -posix_fallocate(seg->file.fd, (off_t) from, (off_t) (to - from));
        while (rc == -EINTR && ++tries < 100);
    if (rc == 0)
        rc = write_zeros(seg->file.fd, from, to);
    if (rc == 0)
        rc = map_pages(seg, seg->ready == 0 ? 0 : from, to);
    if (rc == 0)
        seg->ready = (to - PN_LATLOG_HEADER) / PN_LATLOG_RECORD;
    return rc;
}

static void segment_unmap(struct segment *seg)
{
    if (seg->map != NULL)
        munmap(seg->map, seg->size);
    seg->map = NULL;
    file_close(&seg->file);
}

static void segment_seal(struct segment *seg, uint32_t how)
{
    uint64_t end = record_end(seg->n);

    put_anchor(seg, seg->map);
    pn_store_release(&seg->map->state, guarded(seg->crc, (uint32_t) seg->n | how));
    /* where it cannot be cut zeros stay behind the records, which no reader minds */
    (void) (file_is_ours(&seg->file) && ftruncate(seg->file.fd, (off_t) end) == 0);
    segment_unmap(seg);
}

/* A file of its own name, or -errno. A name can be taken by a process of another pid namespace, and
 * the file by one that makes room. */
static int segment_name_open(pn_latlog *log, struct pn_latlog_header *h, char *name, size_t size)
{
    int fd = -1;

    for (int tries = 0; tries < 64 && fd < 0; tries++) {
        h->segno = pn_fetch_add(&next_segno, 1);
        snprintf(name, size, "%s.%.8s.%d.%llu.%u.pynlog", h->host, h->boot_id, (int) h->pid,
                 (unsigned long long) h->starttime, h->segno);
        fd = openat(log->dir.fd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0 && errno != EEXIST)
            return -errno;
        if (fd >= 0 && pn_latroom_own(fd) < 0) {
            struct stat st;
            if (fstat(fd, &st) == 0 && st.st_nlink != 0)
                unlinkat(log->dir.fd, name, 0); /* an empty file would look like damage */
            close(fd);
            fd = -1;
        }
    }
    return fd < 0 ? -EEXIST : fd;
}

/* Writes the header in one piece before anything else: a file is empty or it has a header. */
static int segment_fill(pn_latlog *log, struct segment *seg, struct pn_latlog_header *h)
{
    struct statfs fs;
    void *map;
    ssize_t n;

    seg->on_tmpfs = fstatfs(seg->file.fd, &fs) == 0 && fs.f_type == TMPFS_MAGIC;
    h->part = log->files;
    h->capacity = seg->capacity;
    h->header_crc = pn_crc32c(0, h, offsetof(struct pn_latlog_header, header_crc));
    seg->crc = h->header_crc;
    pn_store_relaxed(&h->dropped, dropped_word(seg->crc, log->dropped));
    pn_store_relaxed(&h->state, guarded(seg->crc, 0));
    put_anchor(seg, h);
    n = pwrite(seg->file.fd, h, sizeof(*h), 0);
    if (n >= 0 && n != (ssize_t) sizeof(*h))
        return -ENOSPC;
    if (n < 0 || ftruncate(seg->file.fd, (off_t) seg->size) < 0)
        return -errno;
    map = mmap(NULL, seg->size, PROT_READ | PROT_WRITE, MAP_SHARED, seg->file.fd, 0);
    if (map == MAP_FAILED)
        return -errno;
    seg->map = map;
    return segment_extend(seg, 1);
}

/* No file has more than a part of the limit, so that what goes is the oldest part of what is there,
 * nor more than RLIMIT_FSIZE; a smaller one where there is no room for a large one. */
static int size_of_next(pn_latlog *log, uint64_t *size)
{
    uint64_t recycled = 0, largest = pn_latroom_largest();
    int rc;

    *size = log->next_size;
    while (*size > PN_LATLOG_SEGMENT_MIN && (*size > log->limit / PARTS || *size > largest))
        *size /= 4;
    if (*size > largest)
        return -EFBIG;
    while ((rc = pn_latroom_make(log->dir.fd, log->limit, *size, &recycled)) == -EDQUOT &&
           *size > PN_LATLOG_SEGMENT_MIN)
        *size /= 4;
    if (log->count_recycled != NULL && recycled != 0)
        pn_fetch_add_relaxed(log->count_recycled, recycled);
    return rc;
}

static int segment_create(pn_latlog *log, struct segment *seg)
{
    struct pn_latlog_header h = log->head;
    char name[200];
    int rc;

    if (!file_is_ours(&log->dir))
        return -EBADF;
    rc = size_of_next(log, &seg->size);
    if (rc < 0)
        return rc;
    seg->capacity = (seg->size - PN_LATLOG_HEADER) / PN_LATLOG_RECORD;
    seg->file.fd = rc = segment_name_open(log, &h, name, sizeof(name));
    if (rc < 0)
        return rc;
    rc = file_identify(&seg->file);
    if (rc == 0)
        rc = segment_fill(log, seg, &h);
    if (rc < 0) {
        unlinkat(log->dir.fd, name, 0);
        segment_unmap(seg);
    }
    return rc;
}

static int rotate(pn_latlog *log)
{
    struct segment next = {.file = {.fd = -1}};
    int rc = segment_create(log, &next);

    if (rc < 0)
        return rc;
    if (log->seg.map != NULL)
        segment_seal(&log->seg, PN_LATLOG_ROTATED);
    log->seg = next;
    log->files++;
    if (log->next_size < PN_LATLOG_SEGMENT_MAX)
        log->next_size *= 4;
    return 0;
}

/* ---- channels -------------------------------------------------------------------------- */

static uint32_t pieces(uint32_t len)
{
    return (len + PN_LATLOG_NAME_PIECE - 1) / PN_LATLOG_NAME_PIECE;
}

uint32_t pn_latlog_number(pn_latlog *log, uint64_t hash, uint32_t dboid, const char *name,
                          size_t len)
{
    return pn_lognames_number(&log->names, hash, dboid, name, len);
}

uint32_t pn_latlog_name_crc(const pn_latlog *log, uint32_t id)
{
    return log->names.at[id - 1].crc;
}

/* ---- appending ------------------------------------------------------------------------- */

/* Room for n more is there. Not yet committed: the caller publishes. */
static void put_words(struct segment *seg, uint64_t at, const struct pn_latwords *words)
{
    uint64_t *to = record_at(seg, at);
    uint64_t crc = pn_crc32c(0, words, PN_LATLOG_RECORD - 4);

    for (int i = 0; i < 7; i++)
        to[i] = words->w[i];
    to[7] = words->w[7] | crc << 32;
}

static uint64_t put_chandef(pn_latlog *log, uint32_t id, struct pn_logname *c)
{
    uint32_t count = pieces(c->len);

    for (uint32_t i = 0; i < count; i++) {
        struct pn_latrec r = {.channel = id,
                              .bytes = c->len,
                              .peer = c->dboid,
                              .lag = count,
                              .kind = PN_LAT_CHANDEF,
                              .batch = i,
                              .aux = c->crc};
        uint32_t from = i * PN_LATLOG_NAME_PIECE, left = c->len - from;

        memcpy(&r, c->name + from, left < PN_LATLOG_NAME_PIECE ? left : PN_LATLOG_NAME_PIECE);
        const struct pn_latwords words = pn_latrec_words(&r);
        put_words(&log->seg, log->seg.n + i, &words);
    }
    c->defined = log->files;
    return count;
}

/* How many records the next append writes into the current file. */
static uint64_t needed(const pn_latlog *log, const struct pn_logname *c)
{
    return 1 + (c != NULL && c->defined != log->files ? pieces(c->len) : 0);
}

/* The slow path: a new chunk, a new segment, or no room. */
static bool make_room_for_record(pn_latlog *log, const struct pn_logname *c, uint64_t ts)
{
    int saved_errno = errno, rc = 0;

    if (log->retry_ns != 0 && ts < log->retry_ns)
        return false;
    if (log->seg.map == NULL || log->seg.n + needed(log, c) > log->seg.capacity)
        rc = rotate(log);
    if (rc == 0)
        rc = segment_extend(&log->seg, log->seg.n + needed(log, c));
    if (rc == -EFBIG && log->seg.map != NULL) { /* the limit was lowered: a smaller file */
        rc = rotate(log);
        if (rc == 0)
            rc = segment_extend(&log->seg, log->seg.n + needed(log, c));
    }
    if (rc == 0 && ts > log->seg.anchored_ns + ANCHOR_NS)
        put_anchor(&log->seg, log->seg.map);
    log->retry_ns = rc == 0 ? 0 : ts + RETRY_NS;
    errno = saved_errno;
    return rc == 0;
}

static void drop(pn_latlog *log)
{
    log->dropped++;
    if (log->count_dropped != NULL)
        pn_fetch_add_relaxed(log->count_dropped, 1);
    if (log->seg.map == NULL)
        return;
    pn_store_relaxed(&log->seg.map->dropped, dropped_word(log->seg.crc, log->dropped));
}

void pn_latlog_append_words(pn_latlog *log, const struct pn_latwords *words)
{
    struct pn_logname *c = NULL;
    struct segment *seg = &log->seg;
    uint32_t channel = (uint32_t) words->w[4];
    uint64_t n;

    if (channel > log->names.count) {
        drop(log);
        return;
    }
    if (channel != 0)
        c = &log->names.at[channel - 1];
    if (seg->n + needed(log, c) > seg->ready && !make_room_for_record(log, c, words->w[0])) {
        drop(log);
        return;
    }
    n = seg->n;
    if (c != NULL && c->defined != log->files)
        n += put_chandef(log, channel, c);
    put_words(seg, n, words);
    seg->n = n + 1;
    /* Pairs with the acquire load of a reader: of what is counted all bytes are there. */
    pn_store_release(&seg->map->state, guarded(seg->crc, (uint32_t) seg->n));
    /* The next record's line, which only the kernel has had in its cache: a lock would wait. */
    __builtin_prefetch(record_at(seg, seg->n), 1);
}

/* ---- opening and closing --------------------------------------------------------------- */

static void describe_process(pn_latlog *log)
{
    struct pn_latlog_header *h = &log->head;

    if (gethostname(h->host, sizeof(h->host) - 1) < 0 || h->host[0] == '\0')
        memcpy(h->host, "localhost", sizeof("localhost"));
    h->host[sizeof(h->host) - 1] = '\0';
    for (char *s = h->host; *s != '\0'; s++)
        if (*s == '/' || (*s == '.' && s == h->host) || *s <= ' ' || *s == 127)
            *s = '-';
    read_line("/proc/sys/kernel/random/boot_id", h->boot_id, sizeof(h->boot_id));
    read_line("/etc/machine-id", h->machine_id, sizeof(h->machine_id));
    if (h->boot_id[0] == '\0')
        memcpy(h->boot_id, "unknown", sizeof("unknown"));
    if (pn_os_namespace("time", &h->time_namespace) != 0)
        h->time_namespace = 0;
    h->starttime = process_start();
    h->pid = log->pid = getpid();
    if (getrandom(&h->log_id, sizeof(h->log_id), GRND_NONBLOCK) != (ssize_t) sizeof(h->log_id))
        h->log_id =
            clock_ns(CLOCK_REALTIME) ^ (uint64_t) (uintptr_t) log ^ ((uint64_t) h->pid << 40);
}

static void describe_format(struct pn_latlog_header *h)
{
    memcpy(h->magic, PN_LATLOG_MAGIC, sizeof(h->magic));
    h->endian = PN_LATLOG_ENDIAN;
    h->header_len = PN_LATLOG_HEADER;
    h->record_len = PN_LATLOG_RECORD;
    h->revision = PN_LATLOG_REVISION;
    h->schema_off = (uint32_t) offsetof(struct pn_latlog_header, schema);
    h->schema_len = (uint32_t) sizeof(SCHEMA) - 1;
    memcpy(h->schema, SCHEMA, sizeof(SCHEMA));
    h->schema_id = pn_crc32c(0, h->schema, sizeof(h->schema));
}

static int open_directory(const char *path, struct file *dir)
{
    struct stat st;
    int rc;
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return -errno;
    dir->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (dir->fd < 0 && (errno == ELOOP || errno == ENOTDIR) && lstat(path, &st) == 0 &&
        S_ISLNK(st.st_mode)) {
        if (st.st_uid != geteuid())
            return -EPERM; /* another user's link, be it to a directory of ours */
        dir->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    if (dir->fd < 0)
        return -errno;
    rc = file_identify(dir);
    if (rc == 0 &&
        (fstat(dir->fd, &st) < 0 || faccessat(dir->fd, ".", W_OK | X_OK, AT_EACCESS) < 0))
        rc = -errno;
    if (rc == 0 && (st.st_uid != geteuid() || (st.st_mode & 022) != 0))
        rc = -EPERM; /* another user could exchange the files */
    if (rc < 0)
        close(dir->fd);
    return rc;
}

int pn_latlog_open(const char *dir, const char *segment_name, int32_t backend_id, pn_latlog **out)
{
    pn_latlog *log;
    int rc;
    if (dir == NULL || dir[0] == '\0' || segment_name == NULL)
        return -EINVAL;
    if (strlen(segment_name) >= sizeof(log->head.segment))
        return -ENAMETOOLONG;
    log = calloc(1, sizeof(*log));
    if (log == NULL)
        return -ENOMEM;
    rc = open_directory(dir, &log->dir);
    if (rc < 0) {
        free(log);
        return rc;
    }
    log->seg.file.fd = -1;
    log->limit = PN_LATLOG_LIMIT_DEFAULT;
    log->next_size = PN_LATLOG_SEGMENT_MIN;
    log->head.backend_id = backend_id;
    memcpy(log->head.segment, segment_name, strlen(segment_name));
    describe_format(&log->head);
    describe_process(log);
    *out = log;
    return 0;
}

void pn_latlog_abandon(pn_latlog *log)
{
    if (log == NULL)
        return;
    segment_unmap(&log->seg);
    file_close(&log->dir);
    pn_lognames_free(&log->names);
    free(log);
}

void pn_latlog_close(pn_latlog *log)
{
    if (log != NULL && log->seg.map != NULL && log->pid == getpid())
        segment_seal(&log->seg, PN_LATLOG_CLOSED);
    pn_latlog_abandon(log);
}
