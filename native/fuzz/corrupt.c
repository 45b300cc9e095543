/*
 * corrupt.c - a used segment in a file of its own, ways to overwrite it, and everything that one
 * may then do with it.
 *
 * The lock page is left alone: a robust mutex holds pointers of the process that has it, and glibc
 * believes them.  That is the one thing in a segment that cannot be checked before it is used.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"
#include "base/hash.h"
#include "segment/layout.h"

static struct {
    uint8_t *image; /* what the file had in it at first */
    size_t size;
    int fd;
} file;

uint32_t fuzz_on_full = PN_FULL_ERROR;

static const struct pn_header *header(void)
{
    return (const void *) file.image;
}

static void die(const char *what, int rc)
{
    fprintf(stderr, "fuzz: %s: %d: %s: %s\n", what, rc, strerror(errno), pn_error_message());
    exit(2);
}

static pn_conn *connect_to(pn_engine *engine)
{
    pn_conn *conn;
    int rc = pn_connect(engine, "db", 2, -1, NULL, &conn);
    if (rc != 0)
        die("connect", rc);
    return conn;
}

int fuzz_listen(pn_conn *conn)
{
    pn_txn *txn;
    int rc = pn_txn_begin(conn, &txn);
    if (rc == 0)
        rc = pn_txn_listen(txn, "a", 1);
    if (rc == 0)
        rc = pn_txn_listen(txn, "b", 1);
    return rc == 0 ? pn_txn_commit(txn) : rc;
}

/* Something of everything, so that there is something to corrupt. */
static void populate(pn_engine *engine)
{
    pn_conn *reader = connect_to(engine), *writer = connect_to(engine);
    pn_txn *txn, *prepared = NULL;
    uint32_t counter;
    char text[300];
    memset(text, 'x', sizeof text);
    int rc = fuzz_listen(reader);
    if (rc == 0)
        rc = pn_generation(writer, "g", 1, &counter);
    for (unsigned i = 0; rc == 0 && i < 60; i++) {
        rc = pn_txn_begin(writer, &txn);
        for (unsigned k = 0; rc == 0 && k < 1 + i % 3; k++)
            rc = pn_txn_notify(txn, k == 1 ? "b" : "a", 1, text, 20 + (i * 7 + k) % 200);
        if (rc == 0 && i % 10 == 0)
            rc = pn_txn_bump(txn, counter);
        if (rc == 0)
            rc = pn_txn_commit(txn) & ~PN_NOTICE;
    }
    if (rc == 0)
        rc = pn_txn_begin(writer, &prepared);
    if (rc == 0)
        rc = pn_txn_notify(prepared, "a", 1, text, 100);
    if (rc == 0)
        rc = pn_txn_listen(prepared, "c", 1);
    if (rc == 0)
        rc = pn_txn_prepare(prepared);
    if (rc != 0)
        die("populate", rc);
    if (pread(file.fd, file.image, file.size, 0) != (ssize_t) file.size)
        die("read the segment", 0);
    pn_txn_abort(prepared);
    pn_conn_close(reader);
    pn_conn_close(writer);
}

static void make(void)
{
    pn_options o = fuzz_options();
    pn_engine *engine;
    struct stat st;
    o.max_payload = 20000;
    o.max_topics = o.max_topic_channels = o.max_consumers = 4;
    o.topic_memory = 256 << 10;
    o.on_full = fuzz_on_full;
    atexit(fuzz_remove);
    int rc = pn_open(fuzz_name(), &o, &engine);
    file.fd = open(fuzz_path(), O_RDWR | O_CLOEXEC);
    if (rc != 0 || file.fd < 0 || fstat(file.fd, &st) != 0)
        die("open", rc);
    file.size = (size_t) st.st_size;
    file.image = malloc(file.size);
    if (file.image == NULL)
        die("malloc", 0);
    populate(engine);
    pn_engine_close(engine);
}

int fuzz_segment_restore(void)
{
    if (file.image == NULL)
        make();
    if (ftruncate(file.fd, (off_t) file.size) != 0 ||
        pwrite(file.fd, file.image, file.size, 0) != (ssize_t) file.size)
        die("write the segment", 0);
    return file.fd;
}

static uint64_t scramble(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
    return x ^ x >> 27;
}

/* One overwriting: how, where, and by what. */
static void overwrite(struct fuzz_input *in, uint64_t low, uint64_t size)
{
    static const uint64_t extremes[] = {0, 1, UINT64_MAX, 1ULL << 63, 1ULL << 32, 0xffffffffU, 7};
    uint8_t how = (uint8_t) fuzz_take(in, 1), bytes[512];
    uint64_t at = low + fuzz_take(in, 3) % size / (how & 8 ? 1 : 4) * (how & 8 ? 1 : 4);
    uint64_t value = 0;
    size_t n = 8;
    if (how & 16) { /* change what is there a little */
        if (pread(file.fd, &value, sizeof value, (off_t) at) < 0)
            return;
        value += (uint64_t) (int64_t) (int8_t) fuzz_take(in, 1);
    } else {
        value = how & 32 ? extremes[fuzz_take(in, 1) % 7] : fuzz_take(in, 4);
    }
    memcpy(bytes, &value, sizeof value);
    if ((how & 3) == 1) {
        n = 4;
    } else if ((how & 3) == 2) {
        n = sizeof bytes;
        for (size_t i = 0; i < n; i++)
            bytes[i] = (uint8_t) scramble(value + i);
    } else if ((how & 3) == 3) {
        n = 64;
        memset(bytes, (int) (value & 0xff), n);
    }
    if (n > low + size - at)
        n = (size_t) (low + size - at);
    if (pwrite(file.fd, bytes, n, (off_t) at) < 0)
        die("corrupt", 0);
}

void fuzz_corrupt(struct fuzz_input *in, int part)
{
    uint64_t low = 0, size = sizeof(struct pn_header);
    if (part == FUZZ_CONTROL) {
        low = header()->control_off;
        size = header()->ring_off - low;
    } else if (part == FUZZ_RING) {
        low = header()->ring_off;
        size = 3ULL * PN_QUEUE_PAGE; /* what there is to be read, and a little more */
    }
    for (uint64_t n = fuzz_take(in, 1); n > 0 && in->left > 0; n--)
        overwrite(in, low, size);
}

void fuzz_seal_header(void)
{
    struct pn_header h;
    if (pread(file.fd, &h, sizeof h, 0) != (ssize_t) sizeof h)
        return;
    h.checksum = 0;
    h.checksum = pn_channel_hash(0, (const char *) &h, offsetof(struct pn_header, state));
    if (pwrite(file.fd, &h, sizeof h, 0) < 0)
        die("seal", 0);
}

/* ---- using it ------------------------------------------------------------------------------- */

static int checked(int64_t rc)
{
    FUZZ_CHECK(rc >= 0 || rc > -4096 || (rc <= -PN_EQUEUEFULL && rc >= -PN_EQUEUEFULL - 99), "%lld",
               (long long) rc);
    return (int) rc;
}

int64_t fuzz_read_all(pn_conn *conn, pn_batch *batch, uint64_t max)
{
    int64_t n = 0;
    for (int i = 0; i < 10000; i++) {
        n = pn_poll(conn, batch, max);
        checked(n);
        for (int64_t k = 0; k < n; k++) {
            size_t len = 0;
            const char *name = pn_conn_channel(conn, batch->channel[k], &len);
            FUZZ_CHECK(name != NULL && len > 0, "message %lld is of no channel", (long long) k);
            FUZZ_CHECK(batch->offset[k + 1] >= batch->offset[k] &&
                           batch->offset[k + 1] <= batch->data_cap,
                       "a payload ends outside of the data");
        }
        if (n <= 0)
            return n;
    }
    FUZZ_CHECK(false, "there is always more");
    return n;
}

static void end(pn_txn *txn)
{
    int rc = checked(pn_txn_commit(txn));
    if (rc == -PN_ELOCKBUSY || rc == -PN_EROOMBUSY)
        pn_txn_abort(txn);
}

static void send(pn_conn *conn, struct fuzz_input *in)
{
    static char payload[20000];
    pn_txn *txn;
    uint32_t counter = (uint32_t) fuzz_take(in, 1);
    checked(pn_notify(conn, "a", 1, payload, fuzz_take(in, 2) % sizeof payload));
    if (checked(pn_generation(conn, "g", 1, &counter)) == 0)
        checked(pn_bump(conn, counter));
    checked(pn_generation(conn, "h", 1, &counter));
    if (pn_txn_begin(conn, &txn) != 0)
        return;
    checked(pn_txn_listen(txn, "a", 1));
    checked(pn_txn_listen(txn, "d", 1));
    checked(pn_txn_notify(txn, "d", 1, payload, fuzz_take(in, 1)));
    checked(pn_txn_bump(txn, counter));
    if (fuzz_take(in, 1) & 1)
        checked(pn_txn_prepare(txn));
    end(txn);
}

pn_conn *fuzz_subscribe(pn_engine *engine, pn_txn **prepared)
{
    pn_conn *conn;
    pn_txn *txn;
    pn_set_never_wait(1);
    *prepared = NULL;
    if (checked(pn_connect(engine, "db", 2, -1, NULL, &conn)) != 0)
        return NULL;
    if (checked(pn_txn_begin(conn, &txn)) == 0) {
        checked(pn_txn_listen(txn, "a", 1));
        checked(pn_txn_listen(txn, "u", 1));
        end(txn);
    }
    if (checked(pn_txn_begin(conn, prepared)) == 0) {
        checked(pn_txn_listen(*prepared, "v", 1));
        checked(pn_txn_notify(*prepared, "v", 1, "prepared", 8));
        checked(pn_txn_prepare(*prepared));
    }
    return conn;
}

void fuzz_unsubscribe(pn_conn *conn, pn_txn *prepared)
{
    pn_txn *txn;
    if (checked(pn_txn_begin(conn, &txn)) == 0) {
        checked(pn_txn_unlisten(txn, "a", 1));
        end(txn);
    }
    if (prepared != NULL)
        end(prepared);
    if (checked(pn_txn_begin(conn, &txn)) == 0) {
        checked(pn_txn_unlisten_all(txn));
        end(txn);
    }
    pn_conn_close(conn);
}

static void list_channels(pn_conn *conn)
{
    pn_channel_row rows[4];
    uint32_t from = 0;
    int rc;
    do {
        rc = checked(pn_channel_list(conn, "", 0, &from, rows, 4));
        if (rc > 0)
            checked(pn_channel_listeners(conn, rows[0].name, rows[0].name_len));
    } while (rc >= 0 && from != 0);
}

static void list_all_channels(pn_engine *engine)
{
    pn_channel_row rows[4];
    uint32_t from = 0;
    while (checked(pn_engine_channels(engine, "", 0, "", 0, &from, rows, 4)) >= 0 && from != 0)
        ;
}

void fuzz_use(pn_engine *engine, struct fuzz_input *in)
{
    char problems[2000];
    pn_backend_stat rows[4];
    pn_stat stat;
    pn_conn *conn;
    double usage;
    uint64_t seq;
    pn_set_never_wait(1);
    uint64_t order = fuzz_take(in, 1);
    if (order & 1)
        checked(pn_check(engine, problems, sizeof problems));
    if (order & 2)
        checked(pn_engine_stat(engine, &stat, rows, 4));
    if (order & 4)
        checked(pn_queue_usage(engine, &usage));
    checked(pn_commit_seq(engine, &seq));
    checked(pn_engine_backends(engine));
    pn_batch *batch = pn_batch_new();
    if (batch != NULL && checked(pn_connect(engine, "db", 2, -1, NULL, &conn)) == 0) {
        send(conn, in);
        fuzz_read_all(conn, batch, fuzz_take(in, 1) % 4);
        struct pollfd p = {.fd = pn_fileno(conn), .events = POLLIN};
        poll(&p, 1, 0);
        checked(pn_wait(conn, 0));
        list_channels(conn);
        list_all_channels(engine);
        send(conn, in);
        fuzz_read_all(conn, batch, 0);
        pn_conn_close(conn);
    }
    pn_batch_free(batch);
    checked(pn_check(engine, problems, sizeof problems));
    checked(pn_engine_stat(engine, &stat, NULL, 0));
}
