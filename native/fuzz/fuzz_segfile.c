/*
 * fuzz_segfile.c - a file of pages is overwritten and cut, then read, written and read again.
 *
 * What is read is a page that was written there, or an error; a page that was written after the
 * damage is read back, whatever stands around it, unless the header is damaged.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"
#include "segment/layout.h"
#include "files/segfile.h"

enum { WRITTEN = 7, NUMBER = 5, INSTANCE = 77 };

static struct pn_segfile_dir dir;
static char path[40];
static char file[sizeof dir.path + sizeof dir.prefix + 32];
static uint8_t out[PN_SEGFILE_PAGES * PN_QUEUE_PAGE];

static void fill(uint8_t *page, uint32_t number, uint32_t version)
{
    for (size_t i = 0; i < PN_QUEUE_PAGE; i++)
        page[i] = (uint8_t) (number * 31 + version * 7 + i / 64);
}

static int write_page(uint32_t number, uint32_t version)
{
    static uint8_t page[PN_QUEUE_PAGE];
    const void *pages[1] = {page};
    const uint32_t tags[1] = {number + 1};
    fill(page, number, version);
    return pn_segfile_write(&dir, NUMBER, number, pages, tags, 1);
}

static void tidy(void)
{
    scratch_remove(path);
}

static void make(void)
{
    FUZZ_CHECK(scratch_make("/dev/shm", path, sizeof path), "%s", strerror(errno));
    FUZZ_OK(pn_segfile_open_dir(&dir, path, (uint32_t) geteuid(), "fuzz", INSTANCE, 'q'));
    snprintf(file, sizeof file, "%s/%s%016llx", dir.path, dir.prefix, (unsigned long long) NUMBER);
    atexit(tidy);
}

static void damage(struct fuzz_input *in)
{
    int fd = open(file, O_RDWR | O_CLOEXEC);
    FUZZ_CHECK(fd >= 0, "%s: %s", file, strerror(errno));
    for (uint64_t n = fuzz_take(in, 1) & 7; n > 0; n--) {
        uint64_t how = fuzz_take(in, 1), bytes = fuzz_take(in, 4);
        /* the header, and what follows it, are small; a page is as good anywhere */
        int64_t at = (int64_t) (fuzz_take(in, 3) % (how & 1 ? 512 : 8 * PN_QUEUE_PAGE));
        if (how & 2 ? ftruncate(fd, at) != 0 : pwrite(fd, &bytes, 1 + (how >> 2 & 3), at) < 0)
            abort();
    }
    close(fd);
}

/* Any page of `pages` that can be read has to be one of those that were ever written there. */
static void read_back(uint32_t version)
{
    static uint8_t expected[PN_QUEUE_PAGE];
    uint32_t tags[PN_SEGFILE_PAGES];
    int fd = pn_segfile_open_read(&dir, NUMBER);
    if (fd < 0)
        return;
    for (uint32_t page = 0; page < PN_SEGFILE_PAGES; page++) {
        int rc = pn_segfile_read(fd, NUMBER, page, 1, out);
        FUZZ_CHECK(rc <= 0, "%d", rc);
        if (rc != 0)
            continue;
        bool known = false;
        for (uint32_t v = 0; v <= version && !known; v++) {
            fill(expected, page, v);
            known = memcmp(expected, out, sizeof expected) == 0;
        }
        FUZZ_CHECK(known, "page %u has what was never written", page);
    }
    if (pn_segfile_tags(fd, tags) == 0)
        for (uint32_t page = 0; page < PN_SEGFILE_PAGES; page++)
            FUZZ_CHECK(tags[page] == 0 || tags[page] == page + 1, "tag %u of page %u", tags[page],
                       page);
    pn_segfile_read(fd, NUMBER + 1, 0, 1, out);
    FUZZ_CHECK(pn_segfile_read(fd, NUMBER, 30, 7, out) < 0, "more pages than there are");
    pn_segfile_read(fd, NUMBER, 0, PN_SEGFILE_PAGES, out);
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_input in = {data, size};
    if (dir.instance == 0)
        make();
    for (uint32_t page = 0; page < WRITTEN; page++)
        FUZZ_OK(write_page(page, 0));
    damage(&in);
    read_back(0);
    uint32_t page = (uint32_t) fuzz_take(&in, 1) % PN_SEGFILE_PAGES;
    if (write_page(page, 1) == 0) {
        int fd = pn_segfile_open_read(&dir, NUMBER);
        FUZZ_CHECK(fd >= 0, "written, and then: %s", pn_error_message());
        FUZZ_OK(pn_segfile_read(fd, NUMBER, page, 1, out)); /* it was written just now */
        close(fd);
    }
    read_back(1);
    FUZZ_OK(pn_segfile_remove(&dir, NUMBER));
    FUZZ_CHECK(access(file, F_OK) != 0, "it is still there");
    return 0;
}
