/*
 * segment.c - create, attach, poison, detach.
 *
 * 1. A segment is created whole or not at all.  It is built in a file without a name
 *    (O_TMPFILE), its pages are allocated (posix_fallocate: no room is -ENOSPC here and never a
 *    SIGBUS later), everything is initialised, and only then linked under its name.  A
 *    creator that dies before the link leaves nothing; one that loses the race attaches to the
 *    winner's.
 *    There is no "being initialised" state to wait for.
 * 2. Attaching believes nothing.  Owner, mode, link count, magic, layout hash, boot and pid
 *    namespace are compared first, then every size is computed again from the options and
 *    compared with what the header says.  Afterwards the process works with its own copies.
 * 3. Poison is for good.  When something read from the segment cannot be true, `state` goes to
 *    POISONED and every call in every process fails from then on: the brokerless equivalent of
 *    PostgreSQL's crash-restart.
 * 4. Unmapping.  pthread_mutex_unlock of a robust mutex touches the mutex until the moment it
 *    returns (glibc BZ 14485), so a segment is unmapped only when no handle and no connection is
 *    left: no thread can then be inside a call.  The alternative, to keep the control page for
 *    the life of the process, keeps the whole tmpfs inode, all of its pages, alive.
 */
#define _GNU_SOURCE
#include "segment/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/crashpoint.h"
#include "base/hash.h"
#include "base/os.h"
#include "files/data_dir.h"
#include "segment/identity.h"
#include "segment/liveness_files.h"
#include "segment/process.h"

struct pn_segment_hooks pn_segment_hooks;

/* ---- layout ------------------------------------------------------------------------------ */

static uint64_t place(uint64_t *cursor, uint64_t size, uint64_t align)
{
    uint64_t at = (*cursor + align - 1) / align * align;
    *cursor = at + size;
    return at;
}

/* An entry of the channel table: its fixed part, two levels of bitmap, the name. */
static uint32_t channel_entry_size(uint32_t max_backends, uint32_t max_channel_name)
{
    uint32_t words = (max_backends + 63) / 64, summary_words = (words + 63) / 64;
    size_t size = offsetof(struct GlobalChannelEntry, words) +
                  (size_t) (words + summary_words) * 8 + max_channel_name;
    return (uint32_t) ((size + PN_CACHE_LINE - 1) / PN_CACHE_LINE * PN_CACHE_LINE);
}

static uint32_t generation_size(uint32_t max_channel_name)
{
    size_t size = offsetof(struct pn_generation, name) + max_channel_name;
    return (uint32_t) ((size + PN_CACHE_LINE - 1) / PN_CACHE_LINE * PN_CACHE_LINE);
}

/* The last part, whose pages are not allocated before they are used (topic.c). */
static void lay_out_topics(struct pn_header *h, uint64_t *cursor)
{
    uint64_t pages = h->topic_memory / PN_ARENA_PAGE;
    uint64_t channels = (uint64_t) h->max_topics + h->max_topic_channels;
    h->topics_off = place(cursor, sizeof(struct pn_topic_control), PN_OS_PAGE);
    h->topic_off = place(cursor, (uint64_t) h->max_topics * sizeof(struct pn_topic), PN_CACHE_LINE);
    h->topic_channel_off = place(cursor, channels * sizeof(struct pn_topic_channel), PN_CACHE_LINE);
    h->consumer_off =
        place(cursor, (uint64_t) h->max_consumers * sizeof(struct pn_consumer_slot), PN_CACHE_LINE);
    h->arena_owner_off =
        place(cursor, (uint64_t) h->max_topics * sizeof(struct pn_arena_owner), PN_CACHE_LINE);
    h->arena_page_off = place(cursor, pages * sizeof(struct pn_arena_page), PN_CACHE_LINE);
    h->arena_off = place(cursor, pages * PN_ARENA_PAGE, PN_OS_PAGE);
}

/* Sizes and offsets follow from the options alone, in the creator and in later processes. */
static void lay_out(struct pn_header *h)
{
    uint64_t words = (h->max_backends + 63) / 64;
    uint64_t lock_files = (h->max_backends + PN_SLOTS_PER_LOCK_FILE - 1) / PN_SLOTS_PER_LOCK_FILE;
    uint64_t cursor = 2ULL * PN_OS_PAGE;

    h->max_databases = h->max_backends < 64 ? 64 : h->max_backends;
    h->buckets = 64;
    while (h->buckets < 2ULL * h->max_channels)
        h->buckets *= 2;
    h->channel_entry_size = channel_entry_size(h->max_backends, h->max_channel_name);
    h->generation_size = generation_size(h->max_channel_name);
    h->control_off = place(&cursor, sizeof(struct AsyncQueueControl), PN_OS_PAGE);
    h->listeners_off = place(&cursor, words * 8, PN_CACHE_LINE);
    h->consumers_off = place(&cursor, words * 8, PN_CACHE_LINE);
    h->owed_off = place(&cursor, words * 8, PN_CACHE_LINE);
    h->deferred_off = place(&cursor, words * 8, PN_CACHE_LINE);
    h->pinning_off = place(&cursor, words * 8, PN_CACHE_LINE);
    h->backends_off =
        place(&cursor, (uint64_t) h->max_backends * sizeof(struct QueueBackendStatus), 128);
    h->lock_ino_off = place(&cursor, lock_files * 16, PN_CACHE_LINE);
    h->databases_off =
        place(&cursor, (uint64_t) h->max_databases * sizeof(struct pn_database), PN_CACHE_LINE);
    h->buckets_off = place(&cursor, (uint64_t) h->buckets * 4, PN_CACHE_LINE);
    h->channels_off =
        place(&cursor, (uint64_t) h->max_channels * h->channel_entry_size, PN_CACHE_LINE);
    h->subscriptions_off = place(
        &cursor, (uint64_t) h->max_subscriptions * sizeof(struct pn_subscription), PN_CACHE_LINE);
    h->generations_off =
        place(&cursor, (uint64_t) h->max_generations * h->generation_size, PN_CACHE_LINE);
    h->ring_off = place(&cursor, (uint64_t) h->queue_pages * PN_QUEUE_PAGE, PN_OS_PAGE);
    lay_out_topics(h, &cursor);
    h->total_size = cursor;
}

static uint64_t header_checksum(const struct pn_header *h)
{
    struct pn_header copy;
    memcpy(&copy, h, sizeof copy);
    copy.checksum = 0;
    return pn_channel_hash(0, (const char *) &copy, offsetof(struct pn_header, state));
}

static int check_topic_options(const pn_options *o)
{
    if (o->topic_memory < PN_ARENA_MIN_PAGES * PN_ARENA_PAGE ||
        o->topic_memory > (uint64_t) PN_ARENA_MAX_PAGES * PN_ARENA_PAGE)
        return pn_fail(EINVAL, "topic_memory must be between 64 KiB and 256 GiB");
    if (o->max_body < 1 || o->max_body > 1U << 30)
        return pn_fail(EINVAL, "max_body must be between 1 and %u bytes", 1U << 30);
    if (o->max_topics < 1 || o->max_topics > 65535)
        return pn_fail(EINVAL, "max_topics must be between 1 and 65535");
    if (o->max_topic_channels < 1 || o->max_topic_channels > 65535)
        return pn_fail(EINVAL, "max_topic_channels must be between 1 and 65535");
    if (o->max_consumers < 1 || o->max_consumers > 65535)
        return pn_fail(EINVAL, "max_consumers must be between 1 and 65535");
    return 0;
}

static int check_options(const pn_options *o)
{
    if (o->queue_pages < PN_MIN_QUEUE_PAGES || o->queue_pages > 1U << 24)
        return pn_fail(EINVAL, "queue_pages must be between %u and %u", PN_MIN_QUEUE_PAGES,
                       1U << 24);
    if (o->max_backends < 1 || o->max_backends > PN_MAX_BACKENDS)
        return pn_fail(EINVAL, "max_backends must be between 1 and %u", PN_MAX_BACKENDS);
    if (o->max_channels < 1 || o->max_channels > 1U << 24)
        return pn_fail(EINVAL, "max_channels must be between 1 and %u", 1U << 24);
    if (o->max_subscriptions < 1 || o->max_subscriptions > 1U << 26)
        return pn_fail(EINVAL, "max_subscriptions must be between 1 and %u", 1U << 26);
    if (o->max_generations < 1 || o->max_generations > 1U << 24)
        return pn_fail(EINVAL, "max_generations must be between 1 and %u", 1U << 24);
    if (o->max_channel_name < 1 || o->max_channel_name > PN_NAME_MAX)
        return pn_fail(EINVAL, "max_channel_name must be between 1 and %u bytes", PN_NAME_MAX);
    uint64_t largest = ((uint64_t) o->queue_pages - 1) * PN_QUEUE_PAGE / 2;
    if (o->max_payload < 1 || o->max_payload > largest || o->max_payload > 1U << 30)
        return pn_fail(EINVAL,
                       "max_payload must be between 1 and %llu bytes with queue_pages %u\n"
                       "An entry must fit half of the queue: raise queue_pages.",
                       (unsigned long long) largest, o->queue_pages);
    int rc = check_topic_options(o);
    if (rc != 0)
        return rc;
    if (o->on_full < PN_FULL_ERROR || o->on_full > PN_FULL_DROP_SLOWEST)
        return pn_fail(EINVAL, "on_full must be PN_FULL_ERROR, _BLOCK or _DROP_SLOWEST");
    if (o->max_queue_pages != 0 && o->max_queue_pages < o->queue_pages)
        return pn_fail(EINVAL, "max_queue_pages must be at least queue_pages, %u", o->queue_pages);
    if (memchr(o->data_dir, '\0', sizeof o->data_dir) == NULL)
        return pn_fail(EINVAL, "the path of data_dir must be shorter than %d bytes",
                       PN_DATA_DIR_SIZE);
    if (o->max_queue_pages > o->queue_pages && o->data_dir[0] == '\0')
        return pn_fail(EINVAL,
                       "max_queue_pages %u is more than queue_pages %u, and there is no data_dir\n"
                       "Name a directory for the pages beyond the ring.",
                       o->max_queue_pages, o->queue_pages);
    if (o->signaling != PN_SIGNAL_TARGETED && o->signaling != PN_SIGNAL_BROADCAST)
        return pn_fail(EINVAL, "signaling must be PN_SIGNAL_TARGETED or PN_SIGNAL_BROADCAST");
    return 0;
}

static void set_topic_pointers(struct pn_segment *seg, unsigned char *base,
                               const struct pn_header *h)
{
    seg->topics = (struct pn_topics) {
        .ctl = (void *) (base + h->topics_off),
        .topic = (void *) (base + h->topic_off),
        .channel = (void *) (base + h->topic_channel_off),
        .consumer = (void *) (base + h->consumer_off),
        .max_topics = h->max_topics,
        .max_channels = h->max_topics + h->max_topic_channels,
        .max_consumers = h->max_consumers,
        .max_body = h->max_body,
        .offset = h->topics_off,
        .memory = h->topic_memory,
        .arena = {.base = base + h->arena_off,
                  .ctl = &((struct pn_topic_control *) (base + h->topics_off))->arena,
                  .page = (void *) (base + h->arena_page_off),
                  .first = 1,
                  .owner = (void *) (base + h->arena_owner_off),
                  .owners = h->max_topics,
                  .largest = h->max_body / PN_ARENA_PAGE + 3,
                  .seg = seg,
                  .pages = (uint32_t) (h->topic_memory / PN_ARENA_PAGE)}};
}

/* `h` is the checked copy of the header at `base`, which any process may overwrite meanwhile. */
static void set_pointers(struct pn_segment *seg, unsigned char *base, const struct pn_header *h)
{
    seg->base = base;
    seg->hdr = (void *) base;
    seg->lock = (void *) (base + PN_OS_PAGE);
    seg->ctl = (void *) (base + h->control_off);
    seg->listeners = (void *) (base + h->listeners_off);
    seg->owed = (void *) (base + h->owed_off);
    seg->deferred = (void *) (base + h->deferred_off);
    seg->pinning = (void *) (base + h->pinning_off);
    seg->backend = (void *) (base + h->backends_off);
    seg->lock_ino = (void *) (base + h->lock_ino_off);
    seg->lock_number = seg->lock_ino + (h->max_backends - 1) / PN_SLOTS_PER_LOCK_FILE + 1;
    seg->database = (void *) (base + h->databases_off);
    seg->bucket = (void *) (base + h->buckets_off);
    seg->channels = base + h->channels_off;
    seg->subscription = (void *) (base + h->subscriptions_off);
    seg->generations = base + h->generations_off;
    seg->ring = base + h->ring_off;
    seg->consuming = (void *) (base + h->consumers_off);
    set_topic_pointers(seg, base, h);
    seg->ring_bytes = (uint64_t) h->queue_pages * PN_QUEUE_PAGE;
    seg->ring_mask = (seg->ring_bytes & (seg->ring_bytes - 1)) == 0 ? seg->ring_bytes - 1 : 0;
    seg->capacity = (uint64_t) h->max_queue_pages * PN_QUEUE_PAGE;
    seg->spills = seg->capacity > seg->ring_bytes;
    seg->copies = seg->spills || h->on_full == PN_FULL_DROP_SLOWEST;
    memcpy(seg->data_dir, h->data_dir, sizeof seg->data_dir);
    seg->size = h->total_size;
    seg->max_backends = h->max_backends;
    seg->max_channels = h->max_channels;
    seg->max_subscriptions = h->max_subscriptions;
    seg->max_generations = h->max_generations;
    seg->generation_size = h->generation_size;
    seg->max_payload = h->max_payload;
    seg->max_channel_name = h->max_channel_name;
    seg->max_databases = h->max_databases;
    seg->buckets = h->buckets;
    seg->channel_entry_size = h->channel_entry_size;
    seg->words = (h->max_backends + 63) / 64;
    seg->summary_words = (seg->words + 63) / 64;
    seg->signaling = h->signaling;
    seg->on_full = h->on_full;
    seg->full_timeout_ns = h->full_timeout_ns;
    seg->uid = h->uid;
    seg->instance = h->instance;
    seg->created_ns = h->created_ns;
}

/* ---- creating ---------------------------------------------------------------------------- */

static void segment_path(char *path, size_t cap, const char *name, unsigned uid)
{
    snprintf(path, cap, PN_SHM_DIR "/pynotify.%u.%s", uid, name);
}

static int initialise(unsigned char *base, const struct pn_header *h)
{
    struct pn_segment seg = {0};
    pthread_mutexattr_t attr;
    int rc;

    set_pointers(&seg, base, h);
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST); /* or not: pn_os_robust() */
    /* error-checking: re-entry from a handler is EDEADLK, not a deadlock */
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ERRORCHECK);
    rc = -pthread_mutex_init(&seg.lock->mutex, &attr);
    if (rc == 0)
        rc = -pthread_mutex_init(&seg.lock->opening, &attr);
    pthread_mutexattr_destroy(&attr);
    if (rc != 0)
        return pn_fail(-rc, "could not initialise the writer lock: %s", strerror(-rc));
    for (uint32_t i = 0; i < seg.max_backends; i++)
        pn_store_relaxed(&seg.backend[i].pos, PN_ASLEEP);
    /* all channels and subscriptions are free, which is zero bytes; chain them through `next` */
    for (uint32_t i = 0; i < seg.max_channels; i++) {
        struct GlobalChannelEntry *e =
            (void *) (seg.channels + (size_t) i * seg.channel_entry_size);
        e->next = i + 1 < seg.max_channels ? i + 2 : 0;
    }
    for (uint32_t i = 0; i < seg.max_subscriptions; i++)
        seg.subscription[i].next = i + 1 < seg.max_subscriptions ? i + 2 : 0;
    seg.ctl->free_channel = 1;
    seg.ctl->free_subscription = 1;
    return 0;
}

/*
 * posix_fallocate gives up at signals; a burst of SIGUSR1 could starve it (dsm_impl.c).  The file
 * is `size` bytes long afterwards, if that is not 0.
 */
int pn_segment_allocate(int fd, uint64_t from, uint64_t bytes, uint64_t size)
{
    sigset_t all, before, pending, xfsz;
    const struct timespec at_once = {0};
    sigfillset(&all);
    sigemptyset(&xfsz);
    sigaddset(&xfsz, SIGXFSZ);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    sigpending(&pending);
    int rc;
    do
        rc = posix_fallocate(fd, (off_t) from, (off_t) bytes);
    while (rc == EINTR);
    if (rc == 0 && size != 0 && ftruncate(fd, (off_t) size) != 0)
        rc = errno;
    if (rc == EFBIG && !sigismember(&pending, SIGXFSZ))
        sigtimedwait(&xfsz, NULL, &at_once); /* RLIMIT_FSIZE is our error, not the host's death */
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc == ENOSPC || rc == ENOMEM)
        return pn_fail(ENOSPC,
                       "could not allocate %llu bytes of shared memory\n"
                       "Make " PN_SHM_DIR " larger (docker run --shm-size) or lower %s.",
                       (unsigned long long) bytes, from == 0 ? "queue_pages" : "topic_memory");
    return rc == 0 ? 0 : pn_fail(rc, "could not allocate shared memory: %s", strerror(rc));
}

/* Absolute, so that a process that stands elsewhere finds it; without links, which may move. */
static int resolve_data_dir(const char *path, char resolved[PN_DATA_DIR_SIZE])
{
    char *real = realpath(path, NULL);
    if (real == NULL)
        return pn_fail(errno, "could not find the data directory %s: %s", path, strerror(errno));
    int rc = pn_data_dir_check(real);
    if (rc == 0)
        memcpy(resolved, real, strlen(real) + 1); /* checked to be short enough */
    free(real);
    return rc;
}

/* The header but for the offsets. */
static int describe(struct pn_header *h, const char *name, const pn_options *o)
{
    struct timespec now;
    memset(h, 0, sizeof *h); /* padding too: it is part of the checksum */
    h->magic = PN_MAGIC;
    h->layout_hash = pn_layout_hash();
    int rc = pn_os_boot_id(h->boot_id);
    if (rc == 0)
        rc = pn_os_namespace("pid", &h->pidns_ino);
    if (rc != 0)
        return pn_fail(-rc, "could not read the identity of this host from /proc: %s",
                       strerror(-rc));
    if (pn_os_namespace("time", &h->timens_ino) != 0)
        h->timens_ino = 0;
    clock_gettime(CLOCK_REALTIME, &now);
    h->created_ns = (int64_t) now.tv_sec * 1000000000 + now.tv_nsec;
    h->instance = pn_os_random();
    h->uid = geteuid();
    h->queue_pages = o->queue_pages;
    h->max_backends = o->max_backends;
    h->max_channels = o->max_channels;
    h->max_subscriptions = o->max_subscriptions;
    h->max_generations = o->max_generations;
    h->max_payload = o->max_payload;
    h->max_channel_name = o->max_channel_name;
    h->on_full = o->on_full;
    h->signaling = o->signaling;
    h->max_queue_pages = o->max_queue_pages != 0 ? o->max_queue_pages : o->queue_pages;
    h->full_timeout_ns = o->full_timeout_ns;
    h->topic_memory = (o->topic_memory + PN_ARENA_PAGE - 1) / PN_ARENA_PAGE * PN_ARENA_PAGE;
    h->max_body = o->max_body;
    h->max_topics = o->max_topics;
    h->max_topic_channels = o->max_topic_channels;
    h->max_consumers = o->max_consumers;
    snprintf(h->name, sizeof h->name, "%s", name);
    return o->data_dir[0] == '\0' ? 0 : resolve_data_dir(o->data_dir, h->data_dir);
}

static int build(int fd, const char *name, const pn_options *o, struct pn_header *h)
{
    int rc = describe(h, name, o);
    if (rc != 0)
        return rc;
    lay_out(h);

    if (fchmod(fd, 0600) != 0)
        return pn_fail(errno, "could not set the mode of the segment: %s", strerror(errno));
    rc = pn_segment_allocate(fd, 0, h->topics_off, h->total_size);
    if (rc != 0)
        return rc;
    void *base = mmap(NULL, h->total_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return pn_fail(errno, "could not map the segment: %s", strerror(errno));
    h->checksum = header_checksum(h);
    memcpy(base, h, sizeof *h);
    rc = initialise(base, h);
    munmap(base, h->total_size);
    return rc;
}

int pn_segment_create(const char *name, const pn_options *opts)
{
    char path[256], proc[64];
    struct pn_header h;
    int rc = check_options(opts);
    if (rc != 0)
        return rc;
    segment_path(path, sizeof path, name, geteuid());
    if (access(path, F_OK) == 0)
        return -EEXIST;
    int fd = open(PN_SHM_DIR, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0)
        return pn_fail(errno, "could not create a file in " PN_SHM_DIR ": %s", strerror(errno));
    rc = build(fd, name, opts, &h);
    if (rc == 0) {
        PN_CRASH("attach:created");
        snprintf(proc, sizeof proc, "/proc/self/fd/%d", fd);
        if (linkat(AT_FDCWD, proc, AT_FDCWD, path, AT_SYMLINK_FOLLOW) != 0)
            rc = errno == EEXIST ? -EEXIST
                                 : pn_fail(errno, "could not link %s: %s", path, strerror(errno));
        PN_CRASH("attach:linked");
    }
    if (rc == 0 &&
        h.data_dir[0] != '\0') /* the segment that had the name before us has it no more */
        pn_data_dir_remove_all(h.data_dir, h.uid, name, h.instance);
    close(fd);
    return rc;
}

/* ---- attaching --------------------------------------------------------------------------- */

static int check_owner(const struct stat *st, const char *name)
{
    if (!S_ISREG(st->st_mode) || st->st_nlink > 1)
        return pn_fail(PN_ELAYOUT, "\"%s\" is not a segment: not a plain file of one name", name);
    if (st->st_uid != geteuid())
        return pn_fail(EACCES,
                       "segment \"%s\" belongs to user %u, we are user %u\n"
                       "Processes that share a segment must run as one user.",
                       name, (unsigned) st->st_uid, (unsigned) geteuid());
    if ((st->st_mode & 077) != 0)
        return pn_fail(EACCES,
                       "segment \"%s\" has mode %03o: others may write to it\n"
                       "Remove it (pynotify.unlink) and create it again.",
                       name, (unsigned) st->st_mode & 0777);
    return 0;
}

static int check_header(const struct pn_header *h, uint64_t file_size, const char *name)
{
    uint8_t boot_id[16];
    struct pn_header again = *h;

    if (h->magic != PN_MAGIC)
        return pn_fail(PN_ELAYOUT, "\"%s\" is not a pynotify segment (magic %016llx)", name,
                       (unsigned long long) h->magic);
    if (h->layout_hash != pn_layout_hash())
        return pn_fail(PN_ELAYOUT,
                       "segment \"%s\" has layout %016llx, this library has %016llx\n"
                       "Another version, C library or page size made it.",
                       name, (unsigned long long) h->layout_hash,
                       (unsigned long long) pn_layout_hash());
    if (h->checksum != header_checksum(h) || h->uid != geteuid())
        return pn_fail(PN_ECORRUPT, "the header of segment \"%s\" was overwritten", name);
    if (pn_os_boot_id(boot_id) == 0 && memcmp(boot_id, h->boot_id, 16) != 0)
        return pn_fail(PN_ESTALE, "segment \"%s\" is of an earlier boot", name);
    int rc = pn_check_namespaces(h, name);
    if (rc != 0)
        return rc;
    pn_options o = {.queue_pages = h->queue_pages,
                    .max_backends = h->max_backends,
                    .max_channels = h->max_channels,
                    .max_subscriptions = h->max_subscriptions,
                    .max_generations = h->max_generations,
                    .max_payload = h->max_payload,
                    .max_channel_name = h->max_channel_name,
                    .on_full = h->on_full,
                    .signaling = h->signaling,
                    .max_queue_pages = h->max_queue_pages,
                    .topic_memory = h->topic_memory,
                    .max_body = h->max_body,
                    .max_topics = h->max_topics,
                    .max_topic_channels = h->max_topic_channels,
                    .max_consumers = h->max_consumers};
    memcpy(o.data_dir, h->data_dir, sizeof o.data_dir);
    if (h->max_queue_pages == 0 || check_options(&o) != 0 ||
        (h->data_dir[0] != '\0' && h->data_dir[0] != '/'))
        return pn_fail(PN_ECORRUPT, "segment \"%s\" has impossible options in its header", name);
    lay_out(&again);
    if (memcmp(&again, h, offsetof(struct pn_header, state)) != 0)
        return pn_fail(PN_ECORRUPT, "segment \"%s\" has impossible offsets in its header", name);
    if (file_size != h->total_size)
        return pn_fail(PN_ECORRUPT, "segment \"%s\" has %llu bytes instead of %llu", name,
                       (unsigned long long) file_size, (unsigned long long) h->total_size);
    return 0;
}

static struct pn_segment *find_mapped(dev_t dev, ino_t ino)
{
    struct pn_segment *seg = pn_first_segment();
    while (seg != NULL && !(seg->dev == dev && seg->ino == ino))
        seg = seg->next;
    return seg;
}

static void free_segment(struct pn_segment *seg)
{
    if (seg->base != NULL) {
        pn_lock_files_orphaned(seg);
        pn_segment_hooks.close_files(seg);
        pn_lock_files_close(seg);
        munmap(seg->base, seg->size);
    }
    for (uint32_t i = 0; seg->pidfds != NULL && i < seg->max_backends; i++)
        pn_close_if_ours(seg->pidfds[i].fd, PN_KIND_PIDFD);
    for (int i = 0; seg->base != NULL && i < PN_SPARES; i++)
        if (pn_is_segment_file(seg, seg->spare[i]))
            close(seg->spare[i]);
    pn_segment_close_file(seg);
    free(seg->lock_fd);
    free(seg->pidfds);
    free(seg->own);
    pthread_mutex_destroy(&seg->signal_mutex);
    free(seg);
}

static int map_segment(struct pn_segment *seg, uint64_t size)
{
    struct pn_header h;
    if (size < sizeof h || pread(seg->fd, &h, sizeof h, 0) != (ssize_t) sizeof h)
        return pn_fail(PN_ELAYOUT, "\"%s\" is not a pynotify segment: only %llu bytes", seg->name,
                       (unsigned long long) size);
    int rc = check_header(&h, size, seg->name);
    if (rc != 0)
        return rc;
    void *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, seg->fd, 0);
    if (base == MAP_FAILED)
        return pn_fail(errno, "could not map segment \"%s\": %s", seg->name, strerror(errno));
    set_pointers(seg, base, &h);
    if (memcmp(&h, base, offsetof(struct pn_header, state)) != 0) /* scribbled since */
        return pn_fail(PN_ECORRUPT, "the header of segment \"%s\" is being changed", seg->name);
    uint32_t files = (seg->max_backends + PN_SLOTS_PER_LOCK_FILE - 1) / PN_SLOTS_PER_LOCK_FILE;
    seg->lock_fd = malloc(files * sizeof *seg->lock_fd);
    seg->pidfds = calloc(seg->max_backends, sizeof *seg->pidfds);
    snprintf(seg->lock_prefix, sizeof seg->lock_prefix, PN_SHM_DIR "/pynotify-lock.%u.%s.%016llx.",
             seg->uid, seg->name, (unsigned long long) seg->instance);
    seg->own = calloc(seg->max_backends, sizeof(struct pn_conn *));
    if (seg->lock_fd == NULL || seg->pidfds == NULL || seg->own == NULL)
        return pn_fail(ENOMEM, "out of memory");
    for (uint32_t i = 0; i < files; i++)
        pn_store_relaxed(&seg->lock_fd[i], -1);
    for (uint32_t i = 0; i < seg->max_backends; i++)
        seg->pidfds[i].fd = -1;
    for (int i = 0; i < PN_SPARES; i++)
        seg->spare[i] = -1;
    return 0;
}

static int attach_once(int fd, const char *name, struct pn_segment **out)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return pn_fail(errno, "could not stat segment \"%s\": %s", name, strerror(errno));
    int rc = check_owner(&st, name);
    if (rc != 0)
        return rc;
    struct pn_segment *seg = find_mapped(st.st_dev, st.st_ino);
    if (seg == NULL) {
        seg = calloc(1, sizeof *seg);
        if (seg == NULL)
            return pn_fail(ENOMEM, "out of memory");
        pthread_mutex_init(&seg->signal_mutex, NULL);
        seg->dev = st.st_dev;
        seg->ino = st.st_ino;
        snprintf(seg->name, sizeof seg->name, "%s", name);
        pn_store_relaxed(&seg->fd, fcntl(fd, F_DUPFD_CLOEXEC, 0));
        rc = seg->fd < 0 ? pn_fail(errno, "could not duplicate a descriptor: %s", strerror(errno))
                         : map_segment(seg, (uint64_t) st.st_size);
        if (rc != 0) {
            free_segment(seg);
            return rc;
        }
        pn_process_add(seg);
    } else {
        const struct pn_header h = *seg->hdr; /* as it is now: it is read once, and checked */
        rc = check_header(&h, (uint64_t) st.st_size, name);
        if (rc != 0)
            return rc;
    }
    seg->refs++;
    *out = seg;
    return 0;
}

int pn_segment_attach(int fd, const char *name, struct pn_segment **out)
{
    pn_process_lock();
    int rc = attach_once(fd, name, out);
    pn_process_unlock();
    return rc;
}

void pn_segment_acquire(struct pn_segment *seg)
{
    pn_process_lock();
    seg->refs++;
    pn_process_unlock();
}

void pn_segment_release(struct pn_segment *seg)
{
    pn_process_lock();
    if (--seg->refs == 0) {
        pn_process_remove(seg);
        free_segment(seg);
    }
    pn_process_unlock();
}

/*
 * In a forked child: forget what belongs to the parent.  The lock files are closed, never
 * unlocked: an unlock would release the parent's OFD locks (rule L1).
 */
void pn_process_child_reset(void)
{
    pn_process_lock_reset();
    for (struct pn_segment *seg = pn_first_segment(); seg != NULL; seg = seg->next) {
        pthread_mutex_init(&seg->signal_mutex, NULL);
        seg->hold = NULL;
        seg->topics.opening = NULL;
        pn_store_relaxed(&seg->seats, 0);
        pn_store_relaxed(&seg->openings_begun, 0); /* another thread may have been in the middle */
        pn_store_relaxed(&seg->openings_ended, 0);
        pn_lock_files_close(seg);
        for (uint32_t i = 0; i < seg->max_backends; i++) {
            pn_close_if_ours(seg->pidfds[i].fd, PN_KIND_PIDFD);
            seg->pidfds[i].fd = -1;
        }
        seg->pidfds_open = 0;
        memset(seg->own, 0, seg->max_backends * sizeof(struct pn_conn *));
    }
}

/* ---- state ------------------------------------------------------------------------------- */

int pn_segment_unusable(const struct pn_segment *seg)
{
    if (pn_load_acquire(&seg->hdr->state) == PN_STATE_GONE)
        return pn_fail(PN_EGONE,
                       "segment \"%s\" was unlinked\n"
                       "Close the connection and open the segment again.",
                       seg->name);
    return pn_fail(PN_ECORRUPT,
                   "segment \"%s\" is corrupt: %.127s\n"
                   "Unlink it (pynotify.unlink with force=True) and start over.",
                   seg->name, seg->hdr->poison_reason);
}

int pn_segment_poison(struct pn_segment *seg, const char *format, ...)
{
    char reason[sizeof seg->hdr->poison_reason];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    if (pn_load_relaxed(&seg->hdr->state) == PN_STATE_READY) {
        memcpy(seg->hdr->poison_reason, reason, sizeof reason);
        pn_store_release(&seg->hdr->state, PN_STATE_POISONED);
        pn_fetch_add_relaxed(&seg->ctl->room_seq, 1); /* writers blocked for room look again */
        pn_futex_wake_all(&seg->ctl->room_seq);
    }
    return pn_segment_unusable(seg);
}
