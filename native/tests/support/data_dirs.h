/*
 * data_dirs.h - a directory for files, which is gone when the test ends, and what is in files of
 * pages.  Included by tests of data_dir.c, and of what writes such files.
 */
#ifndef PN_TESTS_DATA_DIRS_H
#define PN_TESTS_DATA_DIRS_H

#include "harness.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "segment/layout.h"
#include "files/page_file.h"
#include "files/record_file.h"

enum { PAGE = PN_QUEUE_PAGE, PAGES = PN_FILE_PAGES, INSTANCE = 0xabcdef };
enum { PAGE_RECORD = PN_RECORD_HEADER + PAGE }; /* a page with what stands before it */

static char data_dir[64];
static pid_t data_dir_owner;

static inline void data_dir_empty(void)
{
    directory_empty(open(data_dir, O_RDONLY | O_DIRECTORY));
}

static inline void data_dir_remove(void)
{
    if (data_dir_owner != getpid())
        return; /* a forked child */
    scratch_remove(data_dir);
}

static inline void data_dir_make(void)
{
    CHECK(scratch_make("/tmp", data_dir, sizeof data_dir));
    data_dir_owner = getpid();
    atexit(data_dir_remove);
}

/* Page `i` of file `number`, as the test wants it. */
static inline void fill_page(unsigned char *page, uint64_t number, uint32_t i)
{
    uint64_t word = number * 1000003 + i * 7919 + 1;
    for (size_t at = 0; at < PAGE; at += sizeof word, word = word * 6364136223846793005U + 1)
        memcpy(page + at, &word, sizeof word);
}

static inline uint32_t tag_of(uint64_t number, uint32_t i)
{
    return (uint32_t) (number % 97 * 64 + i + 1);
}

static inline int write_pages(const struct pn_data_dir *dir, uint64_t number, uint32_t first,
                              uint32_t n)
{
    static unsigned char bytes[PAGES][PAGE];
    const void *pages[PAGES];
    uint32_t tags[PAGES];
    for (uint32_t i = 0; i < n; i++) {
        fill_page(bytes[i], number, first + i);
        pages[i] = bytes[i];
        tags[i] = tag_of(number, first + i);
    }
    return pn_pages_write(dir, number, first, pages, tags, n);
}

/* Read pages, and compare them if they were to be had. */
static inline int read_pages(const struct pn_data_dir *dir, uint64_t number, uint32_t first,
                             uint32_t n)
{
    static unsigned char got[PAGES][PAGE], want[PAGE];
    int rc = pn_pages_read(dir, number, first, n, got);
    for (uint32_t i = 0; rc == 0 && i < n; i++) {
        fill_page(want, number, first + i);
        CHECK(memcmp(got[i], want, PAGE) == 0);
    }
    return rc;
}

/* Where page `i` of a file begins, with the header of its record. */
static inline off_t page_at(uint32_t i)
{
    return PN_RECFILE_START + (off_t) i * PAGE_RECORD;
}

static inline void path_of(const struct pn_data_dir *dir, uint64_t number, char path[512])
{
    char name[PN_DATA_FILE_NAME];
    pn_data_dir_name(dir, number, name);
    CHECK(snprintf(path, 512, "%s/%s", dir->path, name) < 512);
}

static inline unsigned files_in(const char *path)
{
    unsigned n = 0;
    DIR *dir = opendir(path);
    CHECK(dir != NULL);
    for (struct dirent *d; (d = readdir(dir)) != NULL;)
        n += d->d_name[0] != '.';
    closedir(dir);
    return n;
}

#endif
