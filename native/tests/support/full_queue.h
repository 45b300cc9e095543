/*
 * full_queue.h - what tests of full queues share: a directory for files, numbered messages whose
 * bytes follow from their number, and a listener's account of them.
 */
#ifndef PN_TESTS_FULL_QUEUE_H
#define PN_TESTS_FULL_QUEUE_H

#include "engine.h"

#include <dirent.h>
#include <fcntl.h>

#include "queue/queue.h"

#define PAGE      ((uint64_t) PN_QUEUE_PAGE)
#define HALF_PAGE (PAGE / 2 - PN_ENTRY_HEADER - 1) /* payload of an entry of half a page on "c" */

static unsigned char payload[300000];

/* ---- a directory for the files --------------------------------------------------------------- */

static char data_dir[64];

static inline void remove_data_dir(void)
{
    if (test_segments.owner != getpid())
        return;
    scratch_remove(data_dir);
}

static inline const char *test_data_dir(void)
{
    if (data_dir[0] == '\0') {
        test_segment_name(); /* registers the clean-up that comes last */
        CHECK(scratch_make("/tmp", data_dir, sizeof data_dir));
        atexit(remove_data_dir);
    }
    return data_dir;
}

static inline int count_files(void)
{
    DIR *dir = opendir(test_data_dir());
    CHECK(dir != NULL);
    int n = 0;
    for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir))
        n += e->d_name[0] != '.';
    closedir(dir);
    return n;
}

static inline pn_options spilling(uint32_t max_queue_pages)
{
    pn_options o = test_options();
    o.max_queue_pages = max_queue_pages;
    snprintf(o.data_dir, sizeof o.data_dir, "%s", test_data_dir());
    return o;
}

/* With its segment, which would take memory until the program ends. */
static inline void done(pn_engine *engine)
{
    char name[64];
    snprintf(name, sizeof name, "%.63s", test_inside()->name);
    pn_remove_spill_files(engine);
    pn_engine_close(engine);
    test_segment_remove(name);
}

/* ---- numbered messages ----------------------------------------------------------------------- */

/* Number i: its length and bytes follow from it. */
static inline size_t make(uint64_t i, size_t n)
{
    if (n < 16)
        n = 16;
    memset(payload, (int) (i * 31 % 251), n);
    memcpy(payload, &i, sizeof i);
    memcpy(payload + 8, &n, sizeof n);
    return n;
}

static inline int send_number(pn_conn *conn, const char *channel, uint64_t i, size_t n)
{
    n = make(i, n);
    return pn_notify(conn, channel, strlen(channel), payload, n);
}

struct headers {
    const unsigned char *at;
    uint32_t len;
};

/* Those of number i: of any length, some beyond a page. */
static inline struct headers headers_of(uint64_t i)
{
    static unsigned char bytes[PN_NOTIFY_HEADERS_MAX];
    uint32_t n = (uint32_t) (i % 8 == 7 ? i * 7919 % sizeof bytes : i * 37 % 500) + 1;
    memset(bytes, (int) (i * 17 % 241), n);
    return (struct headers) {bytes, n};
}

static inline int send_headed(pn_conn *conn, const char *channel, uint64_t i, size_t n)
{
    struct headers headers = headers_of(i);
    uint32_t len = (uint32_t) make(i, n);
    uint64_t queued;
    const pn_notify_in in = {.channel = channel,
                             .channel_len = strlen(channel),
                             .payloads = payload,
                             .lens = &len,
                             .n = 1,
                             .headers = headers.at,
                             .headers_len = headers.len};
    return pn_notify_headers(conn, NULL, &in, &queued);
}

/* Send until it fails, and how. */
static inline int fill_up(pn_conn *conn, uint64_t *sent, size_t n)
{
    int rc;
    while ((rc = send_number(conn, "c", *sent, n)) >= 0)
        ++*sent;
    return rc;
}

static inline uint64_t number_at(const pn_batch *b, size_t k)
{
    uint64_t i;
    size_t n, len = (size_t) (b->offset[k + 1] - b->offset[k]);
    const unsigned char *p = b->data + b->offset[k];
    CHECK(len >= 16);
    memcpy(&i, p, sizeof i);
    memcpy(&n, p + 8, sizeof n);
    CHECK_EQ(n, len);
    for (size_t at = 16; at < len; at++)
        if (p[at] != (unsigned char) (i * 31 % 251))
            FAIL("message %llu is garbage at byte %zu", (unsigned long long) i, at);
    return i;
}

/* Whether message k has headers, which are those of its number. */
static inline bool is_headed(const pn_batch *b, size_t k, uint64_t i)
{
    if (b->with_headers == 0 || b->headers_offset[k + 1] == b->headers_offset[k])
        return false;
    struct headers headers = headers_of(i);
    CHECK_EQ(b->headers_offset[k + 1] - b->headers_offset[k], headers.len);
    if (memcmp(b->headers + b->headers_offset[k], headers.at, headers.len) != 0)
        FAIL("the headers of message %llu are garbage", (unsigned long long) i);
    return true;
}

/* What a listener has got so far: numbers rise by one, but over gaps. */
struct heard {
    uint64_t next, messages, headed, gaps, missed;
    uint32_t reason;
    bool jumps; /* the last thing was a gap */
};

static inline int64_t hear(pn_conn *conn, struct heard *h, uint64_t max)
{
    pn_batch *b = pn_batch_new();
    CHECK_OK(pn_poll(conn, b, max));
    CHECK(max == 0 || b->n + b->ngaps <= max);
    size_t g = 0;
    for (size_t k = 0; k <= b->n; k++) {
        if (g < b->ngaps && b->gap[g].before == k) {
            h->jumps = true;
            h->gaps++;
            h->missed += b->gap[g].missed_bytes;
            h->reason = b->gap[g++].reason;
        }
        if (k == b->n)
            break;
        uint64_t i = number_at(b, k);
        if (!h->jumps && i != h->next)
            FAIL("message %llu instead of %llu, and no gap", (unsigned long long) i,
                 (unsigned long long) h->next);
        CHECK(i >= h->next);
        h->headed += is_headed(b, k, i);
        h->next = i + 1;
        h->jumps = false;
        h->messages++;
    }
    CHECK_EQ(g, b->ngaps);
    int64_t n = (int64_t) (b->n + b->ngaps);
    pn_batch_free(b);
    return n;
}

static inline void hear_all(pn_conn *conn, struct heard *h, uint64_t max)
{
    while (hear(conn, h, max) > 0)
        ;
}

#endif
