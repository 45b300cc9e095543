/*
 * fuzz.h - what the fuzz targets share.  A target is one file fuzz_*.c with the entry point of
 * libFuzzer; with another compiler than clang, replay.c has a main() for it.
 *
 * The oracle of all of them: no crash, no hang, and whatever an input does to a segment or file,
 * calls succeed or return an error.  What else must hold a target says with FUZZ_CHECK.
 */
#ifndef PN_FUZZ_H
#define PN_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "pynotify.h"
#include "scratch.h"
#include "segment/layout.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_CHECK(cond, ...)                                                                      \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "%s:%d: failed: %s: ", __FILE__, __LINE__, #cond);                     \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* A call that must succeed. */
#define FUZZ_OK(call)                                                                              \
    do {                                                                                           \
        int64_t rc_ = (call);                                                                      \
        FUZZ_CHECK(rc_ == 0, "%s: %lld: %s", #call, (long long) rc_, pn_error_message());          \
    } while (0)

/* ---- the input, from front to back; what is beyond its end is 0 ------------------------------ */

struct fuzz_input {
    const uint8_t *at;
    size_t left;
};

static inline uint64_t fuzz_take(struct fuzz_input *in, unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes && in->left > 0; i++, in->at++, in->left--)
        value |= (uint64_t) *in->at << (8 * i);
    return value;
}

/* ---- a small segment of this process --------------------------------------------------------- */

static inline pn_options fuzz_options(void)
{
    pn_options o;
    pn_options_default(&o);
    o.queue_pages = PN_MIN_QUEUE_PAGES;
    o.max_backends = 8;
    o.max_channels = 16;
    o.max_subscriptions = 32;
    o.max_generations = 8;
    return o;
}

static inline const char *fuzz_name(void)
{
    static char name[32];
    if (name[0] == '\0')
        scratch_sweep_segments("fuzz-", SCRATCH_OLD_S);
    snprintf(name, sizeof name, "fuzz-%d", (int) getpid());
    return name;
}

static inline const char *fuzz_path(void)
{
    static char path[128];
    snprintf(path, sizeof path, "/dev/shm/pynotify.%u.%s", (unsigned) geteuid(), fuzz_name());
    return path;
}

static inline void fuzz_remove(void)
{
    unlink(fuzz_path());
    pn_remove_lock_files(fuzz_name());
}

/* ---- a segment that was used, to be corrupted (corrupt.c) ------------------------------------ */

enum { FUZZ_HEADER, FUZZ_CONTROL, FUZZ_RING }; /* the parts that can be corrupted */

extern uint32_t fuzz_on_full; /* enum pn_on_full of the segment; before it is first restored */

/*
 * The segment as it was at first, in its file.  Afterwards a process that attaches finds dead
 * backends, unread entries, a prepared transaction, counters.  The descriptor stays ours.
 */
int fuzz_segment_restore(void);

/* Overwrite some of `part`, as the input says, until it says stop; in the file, so for all. */
void fuzz_corrupt(struct fuzz_input *in, int part);

/* Make the header's checksum right again. */
void fuzz_seal_header(void);

/* Everything that one does with an engine.  Any error will do, but an error or a result. */
void fuzz_use(pn_engine *engine, struct fuzz_input *in);

/* A connection that listens and has prepared another LISTEN; NULL: it could not.  The other half:
 * UNLISTEN, that LISTEN's commit, UNLISTEN of all, and close. */
pn_conn *fuzz_subscribe(pn_engine *engine, pn_txn **prepared);
void fuzz_unsubscribe(pn_conn *conn, pn_txn *prepared);

/* LISTEN to "a" and "b". */
int fuzz_listen(pn_conn *conn);

/* Read everything; returns what pn_poll() returned last. */
int64_t fuzz_read_all(pn_conn *conn, pn_batch *batch, uint64_t max);

#endif
