/* fuzz_check.c - everything between header and ring is overwritten, then looked at and used. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    pn_engine *engine;
    int fd = fuzz_segment_restore();
    uint64_t how = fuzz_take(&in, 1);
    bool before = (how & 1) != 0;
    pn_txn *prepared;
    if (before)
        fuzz_corrupt(&in, FUZZ_CONTROL);
    FUZZ_OK(pn_attach(fd, fuzz_name(), &engine)); /* the header was not touched */
    pn_conn *subscribed = (how & 2) != 0 ? fuzz_subscribe(engine, &prepared) : NULL;
    if (!before)
        fuzz_corrupt(&in, FUZZ_CONTROL);
    if (subscribed != NULL)
        fuzz_unsubscribe(subscribed, prepared);
    fuzz_use(engine, &in);
    fuzz_corrupt(&in, FUZZ_CONTROL);
    fuzz_use(engine, &in);
    pn_engine_close(engine);
    return 0;
}
