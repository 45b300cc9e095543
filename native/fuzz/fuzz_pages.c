/*
 * fuzz_pages.c - a file of pages is overwritten and cut, then read, written and read again.
 *
 * What is read is a page that was written there, or an error; a page that was written after the
 * damage is read back, whatever stands around it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"
#include "segment/layout.h"
#include "files/page_file.h"
#include "files/record_file.h"

enum { WRITTEN = 7, NUMBER = 5, INSTANCE = 77 };

static struct pn_data_dir dir;
static char path[40];
static char file[sizeof dir.path + sizeof dir.prefix + 32];
static uint8_t out[PN_FILE_PAGES * PN_QUEUE_PAGE];

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
    return pn_pages_write(&dir, NUMBER, number, pages, tags, 1);
}

static void tidy(void)
{
    scratch_remove(path);
}

static void make(void)
{
    FUZZ_CHECK(scratch_make("/dev/shm", path, sizeof path), "%s", strerror(errno));
    FUZZ_OK(pn_data_dir_init(&dir, path, (uint32_t) geteuid(), "fuzz", INSTANCE, 'q'));
    char name[PN_DATA_FILE_NAME];
    pn_data_dir_name(&dir, NUMBER, name);
    snprintf(file, sizeof file, "%s/%s", dir.path, name);
    atexit(tidy);
}

static void damage(struct fuzz_input *in)
{
    int fd = open(file, O_RDWR | O_CLOEXEC);
    FUZZ_CHECK(fd >= 0, "%s: %s", file, strerror(errno));
    for (uint64_t n = fuzz_take(in, 1) & 7; n > 0; n--) {
        uint64_t how = fuzz_take(in, 1), bytes = fuzz_take(in, 4);
        /* headers are small; a page is as good anywhere */
        uint64_t at = fuzz_take(in, 3), record = PN_RECORD_HEADER + PN_QUEUE_PAGE;
        at = how & 1 ? PN_RECFILE_START + at / 64 % 8 * record + at % 64 : at % (8 * record);
        if (how & 2 ? ftruncate(fd, (off_t) at) != 0
                    : pwrite(fd, &bytes, 1 + (how >> 2 & 3), (off_t) at) < 0)
            abort();
    }
    close(fd);
}

/* Any page of `pages` that can be read has to be one of those that were ever written there. */
static void read_back(uint32_t version)
{
    static uint8_t expected[PN_QUEUE_PAGE];
    for (uint32_t page = 0; page < PN_FILE_PAGES; page++) {
        int found = pn_pages_find(&dir, NUMBER, page, page + 1);
        FUZZ_CHECK(found == (int) page || found == (int) PN_FILE_PAGES,
                   "the tag of page %u is that of page %d", page, found);
        int rc = pn_pages_read(&dir, NUMBER, page, 1, out);
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
    FUZZ_CHECK(pn_pages_read(&dir, NUMBER, 30, 7, out) < 0, "more pages than there are");
    pn_pages_read(&dir, NUMBER, 0, PN_FILE_PAGES, out);
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
    uint32_t page = (uint32_t) fuzz_take(&in, 1) % PN_FILE_PAGES;
    FUZZ_OK(write_page(page, 1));
    FUZZ_OK(pn_pages_read(&dir, NUMBER, page, 1, out)); /* it was written just now */
    read_back(1);
    FUZZ_OK(pn_data_dir_remove(&dir, NUMBER));
    FUZZ_CHECK(access(file, F_OK) != 0, "it is still there");
    return 0;
}
