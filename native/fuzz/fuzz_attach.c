/* fuzz_attach.c - attaching to a segment whose header was overwritten, or whose file was cut. */
#define _GNU_SOURCE
#include <string.h>
#include <unistd.h>

#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    pn_engine *engine;
    int fd = fuzz_segment_restore();
    uint64_t how = fuzz_take(&in, 1);
    if (how & 2) {
        int64_t length = (int64_t) fuzz_take(&in, 3);
        if (ftruncate(fd, length) != 0)
            abort();
    }
    fuzz_corrupt(&in, FUZZ_HEADER);
    if (how & 1)
        fuzz_seal_header();
    if (pn_attach(fd, fuzz_name(), &engine) != 0) {
        FUZZ_CHECK(strlen(pn_error_message()) > 10, "an error without a sentence");
        return 0;
    }
    fuzz_use(engine, &in);
    pn_engine_close(engine);
    return 0;
}
