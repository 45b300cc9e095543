/* page_file.c - see page_file.h. */
#define _GNU_SOURCE
#include "files/page_file.h"

#include <errno.h>

#include "base/err.h"
#include "files/record_file.h"

_Static_assert(PN_FILE_PAGE_SIZE % 8 == 0, "records follow each other without a gap");
_Static_assert(PN_FILE_PAGES <= PN_RECFILE_READ, "a file is read in one call");

static uint64_t place_of(uint32_t page)
{
    return PN_RECFILE_START + page * pn_record_size(PN_FILE_PAGE_SIZE);
}

static int check_range(uint32_t first_page, uint32_t n)
{
    if (n <= PN_FILE_PAGES && first_page <= PN_FILE_PAGES - n)
        return 0;
    return pn_fail(EINVAL, "a file has no pages %u to %u", first_page, first_page + n);
}

/*
 * A file begins with any page: those before it were read before they had to be written.  Its first
 * page is new also where a dead writer has left a file; and a creator that was killed before its
 * fchmod() may have left one that cannot be opened.
 */
int pn_pages_write(const struct pn_data_dir *dir, uint64_t number, uint32_t first_page,
                   const void *const pages[], const uint32_t tags[], uint32_t n)
{
    struct pn_record_in record[PN_FILE_PAGES];
    struct pn_recfile file = PN_RECFILE_NONE;
    const uint64_t at = place_of(first_page), seq = number * PN_FILE_PAGES + first_page;
    uint64_t end;
    int rc = n == 0 ? pn_fail(EINVAL, "no pages are to be written") : check_range(first_page, n);
    if (rc != 0)
        return rc;
    for (uint32_t i = 0; i < n; i++)
        record[i] =
            (struct pn_record_in) {.type = tags[i],
                                   .parts = 1,
                                   .alone = true,
                                   .part = {{(void *) (uintptr_t) pages[i], PN_FILE_PAGE_SIZE}}};
    rc = -ENOENT;
    if (first_page > 0)
        rc = pn_recfile_append(dir, &file, number, at, seq, 0, record, n, &end);
    if (rc == -ENOENT || rc == -EACCES) {
        rc = pn_recfile_make(dir, number, seq, 0, &file);
        if (rc == 0)
            rc = pn_recfile_append(dir, &file, number, at, seq, 0, record, n, &end);
        if (rc != 0 && file.fd >= 0)
            pn_data_dir_remove(dir, number); /* a full disk has better uses for it */
    }
    pn_recfile_close(&file);
    return rc;
}

int pn_pages_read(const struct pn_data_dir *dir, uint64_t number, uint32_t first_page, uint32_t n,
                  void *out)
{
    struct pn_recfile file = PN_RECFILE_NONE;
    int rc = check_range(first_page, n);
    if (rc == 0)
        rc = pn_recfile_read(dir, &file, number, place_of(first_page), PN_FILE_PAGE_SIZE, n, out);
    pn_recfile_close(&file);
    return rc;
}

int pn_pages_find(const struct pn_data_dir *dir, uint64_t number, uint32_t first_page, uint32_t tag)
{
    struct pn_recfile file = PN_RECFILE_NONE;
    uint32_t page = first_page, found = 0;
    int rc = 0;
    for (; page < PN_FILE_PAGES; page++) {
        rc = pn_recfile_type(dir, &file, number, place_of(page), &found);
        if ((rc == 0 && found == tag) || (rc != 0 && rc != -ENODATA))
            break;
    }
    pn_recfile_close(&file);
    return rc != 0 && rc != -ENODATA ? rc : (int) page;
}
