/*
 * fuzz_read.c - the ring is overwritten under a live reader: between its polls, and by another
 * thread while it reads.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>

#include "fuzz.h"

#ifndef FUZZ_POLICY
#define FUZZ_POLICY PN_FULL_ERROR
#endif

static void *corrupt(void *input)
{
    for (int i = 0; i < 20; i++) {
        struct fuzz_input in = *(struct fuzz_input *) input;
        fuzz_corrupt(&in, FUZZ_RING);
    }
    return NULL;
}

static int64_t send_some(pn_conn *conn, struct fuzz_input *in)
{
    static char text[20000];
    uint64_t lengths = fuzz_take(in, 2);
    int rc = 0;
    for (unsigned i = 0; i < 8; i++) {
        uint64_t length = i == 7 ? lengths % sizeof text : lengths >> i & 0xff;
        rc = pn_notify(conn, i % 3 == 1 ? "b" : "a", 1, text, length);
    }
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    pn_engine *engine;
    pn_conn *reader, *writer;
    fuzz_on_full = FUZZ_POLICY;
    FUZZ_OK(pn_attach(fuzz_segment_restore(), fuzz_name(), &engine));
    pn_set_never_wait(1);
    pn_batch *batch = pn_batch_new();
    bool made = pn_connect(engine, "db", 2, -1, NULL, &reader) == 0 &&
                pn_connect(engine, "db", 2, -1, NULL, &writer) == 0 && batch != NULL;
    FUZZ_CHECK(made, "%s", pn_error_message());
    FUZZ_OK(fuzz_listen(reader));
    for (int turn = 0; turn < 3 && send_some(writer, &in) >= 0; turn++) {
        uint64_t how = fuzz_take(&in, 1);
        pthread_t thread;
        struct fuzz_input theirs = in;
        bool both = (how & 1) && pthread_create(&thread, NULL, corrupt, &theirs) == 0;
        if (!both)
            fuzz_corrupt(&in, FUZZ_RING);
        if (how & 2)
            pn_poll(reader, batch, 1 + (how >> 2 & 3));
        if (how & 16)
            fuzz_corrupt(&in, FUZZ_RING);
        fuzz_read_all(reader, batch, how >> 5);
        if (both)
            pthread_join(thread, NULL);
    }
    fuzz_use(engine, &in);
    pn_conn_close(reader);
    pn_conn_close(writer);
    pn_batch_free(batch);
    pn_engine_close(engine);
    return 0;
}
