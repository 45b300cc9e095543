/*
 * latlog_view.h - a latency log as a stranger reads it: through the file, from the header on.
 * Included once.
 */
#ifndef PN_TEST_LATLOG_VIEW_H
#define PN_TEST_LATLOG_VIEW_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "files/latency_log.h"

static int failures;
static char base[64];

#define CHECK(cond) check((cond), #cond, __LINE__)

static inline bool check(bool ok, const char *what, int line)
{
    if (!ok) {
        fprintf(stderr, "%s:%d: failed: %s\n", program_invocation_short_name, line, what);
        failures++;
    }
    return ok;
}

struct view {
    const struct pn_latlog_header *h;
    size_t size;
    char name[256];
};

static inline struct pn_latrec view_record(const struct view *v, uint64_t i)
{
    struct pn_latrec r;

    memcpy(&r, (const char *) v->h + PN_LATLOG_HEADER + i * PN_LATLOG_RECORD, sizeof(r));
    return r;
}

static inline bool record_ok(const struct pn_latrec *rec)
{
    return pn_crc32c_portable(0, rec, PN_LATLOG_RECORD - 4) == rec->aux >> 32;
}

/* Maps every log file of `dir`, in the order of their parts. */
static inline int views_open(const char *dir, struct view *views, int max)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    int n = 0;

    while (d != NULL && (e = readdir(d)) != NULL) {
        struct stat st;
        char path[512];
        int fd;

        if (strstr(e->d_name, ".pynlog") == NULL || n >= max)
            continue;
        snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        if (!CHECK(fd >= 0 && fstat(fd, &st) == 0))
            exit(1);
        if (st.st_size == 0) { /* killed between creating it and writing its header */
            close(fd);
            unlink(path);
            continue;
        }
        CHECK(st.st_size >= PN_LATLOG_HEADER);
        CHECK((st.st_mode & 0777) == 0600);
        views[n].size = (size_t) st.st_size;
        views[n].h = mmap(NULL, views[n].size, PROT_READ, MAP_SHARED, fd, 0);
        snprintf(views[n].name, sizeof(views[n].name), "%s", e->d_name);
        close(fd);
        n++;
    }
    if (d != NULL)
        closedir(d);
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && views[j].h->part < views[j - 1].h->part; j--) {
            struct view t = views[j];

            views[j] = views[j - 1];
            views[j - 1] = t;
        }
    return n;
}

static inline void views_close(const char *dir, struct view *views, int n)
{
    char path[512];

    for (int i = 0; i < n; i++) {
        munmap((void *) (uintptr_t) views[i].h, views[i].size);
        snprintf(path, sizeof(path), "%s/%s", dir, views[i].name);
        unlink(path);
    }
    rmdir(dir);
}

static inline bool has_time_namespaces(void)
{
    return access("/proc/self/ns/time", F_OK) == 0;
}

/* The number of a word of a header, whose CRC has to match. */
static inline uint32_t number(uint64_t word, uint32_t crc)
{
    uint32_t low = (uint32_t) word;

    CHECK(pn_crc32c_portable(crc, &low, sizeof(low)) == word >> 32);
    return low;
}

static inline uint64_t committed(const struct pn_latlog_header *h)
{
    return number(atomic_load(&h->state), h->header_crc) & PN_LATLOG_COUNT;
}

/* PN_LATLOG_CLOSED, PN_LATLOG_ROTATED, 0. */
static inline uint32_t end_of(const struct pn_latlog_header *h)
{
    return number(atomic_load(&h->state), h->header_crc) & ~PN_LATLOG_COUNT;
}

static inline uint64_t dropped_of(const struct pn_latlog_header *h)
{
    return number(atomic_load(&h->dropped), ~h->header_crc);
}

/* Those that are used are whole, also after a death, but for one that was being written. */
static inline void check_anchors(const struct pn_latlog_header *h)
{
    static const struct pn_latlog_anchor unused;
    int written = 0;

    for (int i = 0; i < (int) PN_LATLOG_ANCHORS; i++) {
        const struct pn_latlog_anchor *a = &h->anchors[i];

        if (a->crc == PN_LATLOG_WRITING)
            written++;
        else if (memcmp(a, &unused, sizeof(*a)) != 0)
            CHECK(a->crc == pn_crc32c_portable(0, a, offsetof(struct pn_latlog_anchor, crc)));
    }
    CHECK(written <= 1);
    CHECK(h->anchors[0].monotonic_ns > 0 && h->anchors[0].realtime_ns > 0);
}

static inline void check_header(const struct view *v)
{
    const struct pn_latlog_header *h = v->h;
    char expected[256];

    CHECK(memcmp(h->magic, PN_LATLOG_MAGIC, 8) == 0);
    CHECK(h->endian == PN_LATLOG_ENDIAN && h->header_len == 4096 && h->record_len == 64);
    CHECK(h->header_crc == pn_crc32c(0, h, offsetof(struct pn_latlog_header, header_crc)));
    CHECK(h->schema_id == pn_crc32c(0, h->schema, sizeof(h->schema)));
    CHECK(h->schema[0] == '{' && h->schema[h->schema_len - 1] == '}');
    check_anchors(h);
    for (size_t i = 0; i < sizeof(h->zeros); i++)
        CHECK(h->zeros[i] == 0);
    CHECK(h->starttime > 0 && strlen(h->boot_id) == 36);
    CHECK(h->revision == PN_LATLOG_REVISION && (h->time_namespace != 0 || !has_time_namespaces()));
    snprintf(expected, sizeof(expected), "%s.%.8s.%d.%llu.%u.pynlog", h->host, h->boot_id, h->pid,
             (unsigned long long) h->starttime, h->segno);
    CHECK(strcmp(expected, v->name) == 0);
}

/* Checks all records of a file; returns how many are of `kind`, whose chan_seq must go up by 1
 * from *next, and checks that every channel is defined before its first use. */
static inline uint64_t check_records(const struct view *v, uint8_t kind, uint64_t *next)
{
    uint64_t n = committed(v->h), found = 0;
    bool defined[256] = {false};

    CHECK(n <= v->h->capacity && PN_LATLOG_HEADER + n * PN_LATLOG_RECORD <= v->size);
    for (uint64_t i = 0; i < n; i++) {
        struct pn_latrec r = view_record(v, i);

        if (!CHECK(record_ok(&r)))
            return found;
        if (r.kind == PN_LAT_CHANDEF && r.batch + 1 == r.lag && r.channel < 256)
            defined[r.channel] = true;
        else if (r.kind != PN_LAT_CHANDEF && r.channel != 0 && !CHECK(defined[r.channel & 255]))
            return found;
        if (r.kind == kind) {
            if (!CHECK(r.chan_seq == *next))
                return found;
            (*next)++;
            found++;
        }
    }
    return found;
}

#endif
