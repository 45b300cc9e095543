/*
 * records.h - a queue on disk in a directory of the test, and records that are known by their
 * number.  Included by tests of record_file.c and diskqueue.c.
 */
#ifndef PN_TESTS_RECORDS_H
#define PN_TESTS_RECORDS_H

#include "data_dirs.h"

#include "files/diskqueue.h"

enum { LONGEST = 300000, BASE = 7 };

static struct pn_diskqueue *q; /* shared between processes */
static struct pn_diskqueue_files files;
static uint64_t max_file = 4096;

/* What record `i` holds: 8 bytes of its number at least. */
static inline uint32_t length_of(uint64_t i)
{
    return i % 97 == 96 ? 20000 + (uint32_t) (i % 1000) * 200 : 8 + (uint32_t) (i * 7919 % 300);
}

static inline const uint8_t *body_of(uint64_t i, uint32_t length)
{
    static uint8_t body[LONGEST];
    memcpy(body, &i, sizeof i);
    uint64_t word = i * 2654435761U + 1;
    for (uint32_t at = 8; at < length; at++, word = word * 6364136223846793005U + 1)
        body[at] = (uint8_t) (word >> 56);
    return body;
}

static inline int put_records(const struct pn_record_in *records, size_t n)
{
    uint64_t seq;
    int rc = pn_diskqueue_stage(q, &files, records, n, &seq);
    if (rc == 0)
        pn_diskqueue_commit(q, seq);
    return rc;
}

static inline int put_sized(uint64_t i, uint32_t length)
{
    const uint8_t *body = body_of(i, length);
    struct pn_record_in record = {.type = (uint32_t) i, .parts = 2};
    record.part[0] = (struct iovec) {(void *) (uintptr_t) body, 5};
    record.part[1] = (struct iovec) {(void *) (uintptr_t) (body + 5), length - 5};
    return put_records(&record, 1);
}

static inline int put(uint64_t i)
{
    return put_sized(i, length_of(i));
}

struct taken {
    uint64_t first, last, n; /* numbers of the records that came, which have to ascend */
    uint64_t stop;           /* take no more than that; 0: no bound */
    bool sized;              /* not of length_of() */
};

static inline int take(void *arg, const struct pn_record_out *record)
{
    struct taken *t = arg;
    uint64_t i;
    if (t->stop != 0 && t->n == t->stop)
        return 0;
    CHECK(record->length >= sizeof i);
    memcpy(&i, record->body, sizeof i);
    CHECK_EQ(record->type, (uint32_t) i);
    if (!t->sized)
        CHECK_EQ(record->length, length_of(i));
    CHECK(memcmp(body_of(i, record->length), record->body, record->length) == 0);
    CHECK(t->n == 0 || i > t->last);
    if (t->n++ == 0)
        t->first = i;
    t->last = i;
    return 1;
}

/* Get up to `max`; what came. */
static inline struct taken get(uint32_t max)
{
    struct taken t = {0};
    int64_t rc;
    while ((rc = pn_diskqueue_get(q, &files, max, take, &t)) == -EAGAIN)
        ;
    CHECK_OK(rc);
    CHECK_EQ(rc, t.n);
    return t;
}

static inline void get_these(uint64_t first, uint64_t n)
{
    struct taken t = {0};
    while (t.n < n) {
        int64_t rc = pn_diskqueue_get(q, &files, (uint32_t) (n - t.n), take, &t);
        if (rc != -EAGAIN && rc <= 0)
            FAIL("%lld after %llu of %llu: %s", (long long) rc, (unsigned long long) t.n,
                 (unsigned long long) n, pn_error_message());
    }
    CHECK_EQ(t.first, first);
    CHECK_EQ(t.last, first + n - 1);
}

static inline void queue_open(void)
{
    struct pn_data_dir dir;
    CHECK_OK(pn_data_dir_init(&dir, data_dir, geteuid(), "seg", INSTANCE, 'd'));
    CHECK_OK(pn_diskqueue_open(&files, &dir, LONGEST));
}

static inline void queue_start(void)
{
    if (q == NULL) {
        q = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        CHECK(q != MAP_FAILED);
    }
    if (files.reader.bytes != NULL)
        pn_diskqueue_close(&files);
    data_dir_empty();
    CHECK_EQ(chmod(data_dir, 0700), 0);
    queue_open();
    pn_diskqueue_init(q, BASE, max_file);
}

static inline void queue_end(void)
{
    pn_diskqueue_close(&files);
}

/* The segment is gone, and a new one finds the files. */
static inline void queue_recover(void)
{
    memset(q, 0xee, sizeof *q);
    pn_diskqueue_close(&files);
    queue_open();
    CHECK_OK(pn_diskqueue_recover(q, &files, BASE, max_file));
}

static inline void file_path(uint64_t number, char out[512])
{
    path_of(&files.dir, BASE + number, out);
}

static inline void drop_cache(void)
{
    pn_recfile_reader_forget(&files.reader);
    pn_recfile_reader_forget(&files.peeker);
}

#endif
